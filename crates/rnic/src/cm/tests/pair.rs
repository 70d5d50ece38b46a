//! Two managers, simulated time, and messages that arrive unless a test takes them out of the path.

use std::net::Ipv4Addr;
use std::time::Duration;

use remanence_wire::cm::{Message, PortSpace, Repr, ServiceId};
use remanence_wire::{Gid, Mtu, Qpn};

use crate::cm::message::Mad;
use crate::cm::{Accept, CommId, Config, Connect, Event, Listen, ListenId, Manager, Path, Transport};
use crate::time::Instant;

pub(super) const SERVICE: ServiceId = ServiceId::new(PortSpace::Tcp, 7471);

pub(super) fn gid(host: u8) -> Gid {
    Gid::from(Ipv4Addr::new(10, 0, 0, host))
}

pub(super) fn config(host: u8) -> Config {
    Config {
        ca_guid: 0x1000 + u64::from(host),
        gids: vec![gid(host)],
        seed: u64::from(host),
        ..Config::default()
    }
}

pub(super) fn listen_anywhere(backlog: usize) -> Listen {
    Listen { service_id: SERVICE, local: None, backlog }
}

pub(super) fn connect_to(host: u8, from: u8, qpn: u32) -> Connect<'static> {
    Connect {
        path: Path { local: gid(from), remote: gid(host) },
        service_id: SERVICE,
        transport: Transport::Rc,
        qpn: Qpn::new(qpn),
        responder_resources: 4,
        initiator_depth: 3,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        mtu: Mtu::B1024,
        cma_port: Some(40_000),
        private_data: b"hello",
    }
}

pub(super) fn accept_with(qpn: u32) -> Accept<'static> {
    Accept {
        qpn: Qpn::new(qpn),
        responder_resources: 3,
        initiator_depth: 4,
        rnr_retry_count: 6,
        srq: true,
        private_data: b"welcome",
    }
}

/// Node 1 connects, node 2 listens.
pub(super) struct Pair {
    pub(super) now: Instant,
    pub(super) active: Manager,
    pub(super) passive: Manager,
    pub(super) listener: ListenId,
}

impl Pair {
    pub(super) fn new() -> Self {
        let mut passive = Manager::new(config(2));
        let listener = passive.listen(&listen_anywhere(8)).unwrap();
        Self { now: Instant::ZERO, active: Manager::new(config(1)), passive, listener }
    }

    /// Delivers what waits, in both directions, until nothing does.
    pub(super) fn run(&mut self) {
        while self.step_active() | self.step_passive() {}
    }

    /// Delivers what the active side sent.
    pub(super) fn step_active(&mut self) -> bool {
        let mut moved = false;
        while let Some((path, mad)) = self.active.poll_transmit() {
            assert_eq!(path, Path { local: gid(1), remote: gid(2) });
            self.passive.handle_mad(self.now, path.local, &mad);
            moved = true;
        }
        moved
    }

    /// Delivers what the passive side sent.
    pub(super) fn step_passive(&mut self) -> bool {
        let mut moved = false;
        while let Some((path, mad)) = self.passive.poll_transmit() {
            assert_eq!(path, Path { local: gid(2), remote: gid(1) });
            self.active.handle_mad(self.now, path.local, &mad);
            moved = true;
        }
        moved
    }

    /// Lets time pass, timers and all.
    pub(super) fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.run();
            let next = self.active.poll_timeout().into_iter().chain(self.passive.poll_timeout()).min();
            let Some(next) = next.filter(|&next| next <= until) else { break };
            self.now = next;
            self.active.handle_timeout(next);
            self.passive.handle_timeout(next);
        }
        self.now = until;
    }

    /// Takes the one MAD that `manager` wants to send out of the path.
    pub(super) fn lose(manager: &mut Manager) -> Mad {
        let (_, mad) = manager.poll_transmit().expect("a message to lose");
        assert!(manager.poll_transmit().is_none(), "more than one message");
        *mad
    }

    pub(super) fn request(&mut self) -> (CommId, CommId) {
        let active = self.active.connect(self.now, &connect_to(2, 1, 0x11)).unwrap();
        self.step_active();
        let Some(Event::ConnectRequest(request)) = self.passive.poll_event() else { panic!("no request") };
        (active, request.id)
    }

    pub(super) fn establish(&mut self) -> (CommId, CommId) {
        let (active, passive) = self.request();
        self.passive.accept(self.now, passive, &accept_with(0x22)).unwrap();
        self.run();
        assert!(matches!(self.active.poll_event(), Some(Event::Response { id, .. }) if id == active));
        self.active.establish(active, b"").unwrap();
        self.run();
        assert_eq!(self.passive.poll_event(), Some(Event::Established { id: passive }));
        (active, passive)
    }
}

pub(super) fn parse(mad: &Mad) -> Message {
    Repr::parse(mad).unwrap().message
}
