//! Groups that are made by connection management: a leader, replicas that agree or not, and what is left when one of them goes.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remanence_auth::Token;
use remanence_effort::{replay, seeds};
use remanence_rnic::cm::{self, Accept, CommId, Connect, Event, Listen, Manager, Transport};
use remanence_rnic::{AhAttr, Instant};
use remanence_switch::private::{Answer, Ask, Memory};
use remanence_switch::{Access, Config, Report, Switch};
use remanence_wire::cm::{PortSpace, RejReason, ServiceId};
use remanence_wire::ip::Datagram;
use remanence_wire::packet::{Headers, Repr};
use remanence_wire::{Gid, Mtu, Opcode, Psn, Qkey, Qpn, Rkey, bth, deth, icrc, reth};

use crate::common::{PORT, Path, SWITCH, config, host, packet, plain_ack, see};

const SERVICE: ServiceId = ServiceId::new(PortSpace::Tcp, 7700);
const GRACE: Duration = Duration::from_millis(10);

/// A host with a connection manager.
struct Host {
    manager: Manager,
    /// What it was told.
    events: Vec<Event>,
    /// The QP of its last connection: each one has another.
    qpn: Qpn,
}

/// Leaders are 10.0.0.1 and 10.0.0.9, replicas 10.0.0.2 to 10.0.0.4.
struct Net {
    hosts: BTreeMap<IpAddr, Host>,
    switch: Switch,
    now: Instant,
    wire: BTreeMap<(Instant, u64), Vec<u8>>,
    sent: u64,
    rng: ChaCha8Rng,
    /// Of a hundred packets, so many are lost.
    loss: u32,
    /// What has come to the switch.
    heard: Vec<Vec<u8>>,
}

/// The memory that a replica has.
fn memory(last: u8) -> Memory {
    let (va, rkey) = (0x7000_0000_0000 + (u64::from(last) << 32), Rkey(0x1111 * u32::from(last)));
    Memory { va, size: 1 << (20 + last), rkey, linux_flush: last == 4 }
}

fn last(addr: IpAddr) -> u8 {
    let IpAddr::V4(addr) = addr else { panic!("{addr} is none of ours") };
    addr.octets()[3]
}

fn ask(epoch: u64, writes: u8, replicas: &[u8]) -> Ask {
    let addrs = replicas.iter().map(|&last| Ipv4Addr::new(10, 0, 0, last)).collect();
    Ask { writes, reads: 1, leader: 77, epoch, proof: [0x5a; 16], addrs }
}

impl Net {
    fn new(seed: u64, loss: u32) -> Self {
        Self::with(seed, loss, Access::anybody())
    }

    fn with(seed: u64, loss: u32, access: Access) -> Self {
        let services = vec![SERVICE];
        let switch = Switch::new(Config { services, access, grace: GRACE, guid: 100, seed, ..config() });
        let host = |last: u8| {
            let gids = vec![Gid::from_ip(host(last))];
            let config = cm::Config {
                ca_guid: last.into(),
                gids,
                seed: seed + u64::from(last),
                ..cm::Config::default()
            };
            let mut manager = Manager::new(config);
            manager.listen(&Listen { service_id: SERVICE, local: None, backlog: 4 }).unwrap();
            (
                crate::common::host(last),
                Host { manager, events: Vec::new(), qpn: Qpn::new(0x1000 * u32::from(last)) },
            )
        };
        let hosts = [1, 2, 3, 4, 9].map(host).into();
        let now = Instant::from_nanos(1_000_000_000);
        let rng = ChaCha8Rng::seed_from_u64(seed);
        Self { hosts, switch, now, wire: BTreeMap::new(), sent: 0, rng, loss, heard: Vec::new() }
    }

    fn host(&mut self, last: u8) -> &mut Host {
        self.hosts.get_mut(&host(last)).unwrap()
    }

    /// A new QP of a host.
    fn qpn(&mut self, last: u8) -> Qpn {
        let host = self.host(last);
        host.qpn = Qpn::new(host.qpn.value() + 1);
        host.qpn
    }

    fn connect(&mut self, leader: u8, ask: &Ask) -> CommId {
        self.connect_with(leader, &ask.to_bytes())
    }

    fn connect_with(&mut self, leader: u8, private_data: &[u8]) -> CommId {
        let connect = Connect {
            path: cm::Path { local: Gid::from_ip(host(leader)), remote: Gid::from_ip(SWITCH) },
            service_id: SERVICE,
            transport: Transport::Rc,
            qpn: self.qpn(leader),
            responder_resources: 0,
            initiator_depth: 8,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            mtu: Mtu::B1024,
            cma_port: Some(555),
            private_data,
        };
        let now = self.now;
        self.host(leader).manager.connect(now, &connect).unwrap()
    }

    /// The next request that a replica has.
    fn request(&mut self, replica: u8) -> cm::Request {
        let events = &mut self.host(replica).events;
        let at =
            events.iter().position(|event| matches!(event, Event::ConnectRequest(_))).expect("a request");
        let Event::ConnectRequest(request) = events.remove(at) else { unreachable!("it was one") };
        *request
    }

    fn agree(&mut self, replica: u8) -> cm::Request {
        let request = self.request(replica);
        let accept = Accept {
            qpn: self.qpn(replica),
            responder_resources: request.responder_resources,
            initiator_depth: 0,
            rnr_retry_count: 7,
            srq: false,
            private_data: &memory(replica).to_bytes(),
        };
        let now = self.now;
        self.host(replica).manager.accept(now, request.id, &accept).unwrap();
        request
    }

    fn refuse(&mut self, replica: u8) {
        let id = self.request(replica).id;
        self.host(replica).manager.reject(id, RejReason::CONSUMER_DEFINED, &[], &[]).unwrap();
    }

    fn launch(&mut self, packet: Vec<u8>) {
        if self.rng.next_u32() % 100 >= self.loss {
            self.sent += 1;
            self.wire.insert((self.now + Duration::from_micros(5), self.sent), packet);
        }
    }

    fn through_switch(&mut self, packet: &[u8]) -> Vec<Vec<u8>> {
        self.heard.push(packet.to_vec());
        let mut left = Vec::new();
        self.switch.handle(self.now, packet, &mut |packet| left.push(packet.to_vec()));
        left
    }

    /// Runs for that long.
    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            for (&addr, host) in &mut self.hosts {
                host.events.extend(std::iter::from_fn(|| host.manager.poll_event()));
                while let Some((path, mad)) = host.manager.poll_transmit() {
                    let bth = bth::Repr::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0));
                    let headers = Headers::Deth(deth::Repr { qkey: Qkey::GSI, src_qp: Qpn::GSI });
                    let path = Path { src: addr, dst: path.remote.to_ip(), src_port: PORT, ident: 0 };
                    self.sent += 1;
                    if self.rng.next_u32() % 100 >= self.loss {
                        let at = (self.now + Duration::from_micros(5), self.sent);
                        self.wire.insert(at, packet(&path, &Repr { bth, headers }, &mad[..]));
                    }
                }
            }
            let arrival = self.wire.first_key_value().map(|(&key, _)| key);
            let deadlines = self.hosts.values().map(|host| host.manager.poll_timeout());
            let deadline = deadlines.chain([self.switch.deadline()]).flatten().min();
            match (arrival, deadline) {
                (Some(key), _) if key.0 <= end && deadline.is_none_or(|deadline| key.0 <= deadline) => {
                    self.now = self.now.max(key.0);
                    let packet = self.wire.remove(&key).expect("it is the first");
                    let seen = see(&packet);
                    if seen.to == SWITCH {
                        self.through_switch(&packet).into_iter().for_each(|packet| self.launch(packet));
                    } else if let Some(host) = self.hosts.get_mut(&seen.to) {
                        let mad = seen.payload[..].try_into().expect("a MAD");
                        host.manager.handle_mad(self.now, Gid::from_ip(seen.from), mad);
                    }
                }
                (_, Some(deadline)) if deadline <= end => {
                    self.now = self.now.max(deadline);
                    self.hosts.values_mut().for_each(|host| host.manager.handle_timeout(self.now));
                    let mut left = Vec::new();
                    self.switch.handle_timeout(self.now, &mut |packet| left.push(packet.to_vec()));
                    left.into_iter().for_each(|packet| self.launch(packet));
                }
                _ => {
                    self.now = end;
                    return;
                }
            }
        }
    }

    fn run(&mut self) {
        self.run_for(Duration::from_millis(1));
    }

    /// What a leader was answered, and the switch's QP for it.
    fn answer(&mut self, leader: u8) -> Option<(Answer, Qpn)> {
        self.host(leader).events.iter().find_map(|event| match event {
            Event::Response { private_data, remote_qpn, .. } => {
                Some((Answer::parse(private_data)?, *remote_qpn))
            }
            _ => None,
        })
    }

    /// What a leader was refused with.
    fn refusal(&mut self, leader: u8) -> Option<(RejReason, Option<Answer>)> {
        self.host(leader).events.iter().find_map(|event| match event {
            Event::Rejected { reason, private_data, .. } => Some((*reason, Answer::parse(private_data))),
            _ => None,
        })
    }

    /// Replicas that were asked for something, since somebody looked.
    fn asked(&mut self) -> Vec<u8> {
        let mut asked = Vec::new();
        for last in 2..5 {
            let Some(host) = self.hosts.get_mut(&host(last)) else { continue };
            if !std::mem::take(&mut host.events).is_empty() {
                asked.push(last);
            }
        }
        asked
    }

    fn is_disconnected(&mut self, host: u8) -> bool {
        self.host(host).events.iter().any(|event| matches!(event, Event::Disconnected { .. }))
    }

    /// A group of all that are named; all agree.
    fn group(&mut self, leader: u8, ask: &Ask) -> CommId {
        let id = self.connect(leader, ask);
        self.run();
        for addr in &ask.addrs {
            self.agree(addr.octets()[3]);
        }
        self.run();
        assert!(self.answer(leader).is_some());
        self.host(leader).manager.establish(id, &[]).unwrap();
        self.run();
        id
    }

    fn reports(&mut self) -> Vec<Report> {
        std::iter::from_fn(|| self.switch.poll_report()).collect()
    }

    /// The leader writes 8 bytes with its first PSN: which hosts get them, each with its own numbers.
    fn write(&mut self, leader: u8, id: CommId) -> Vec<u8> {
        let (answer, broadcast) = self.answer(leader).unwrap();
        let memory = answer.memory.unwrap();
        let psn = self.host(leader).manager.qp_rts(id).unwrap().sq_psn.unwrap();
        let reth = reth::Repr { va: memory.va + 8, rkey: memory.rkey, dma_len: 8 };
        let repr =
            Repr { bth: bth::Repr::new(Opcode::RcWriteOnly, broadcast, psn), headers: Headers::Reth(reth) };
        let path = Path { src: host(leader), dst: SWITCH, src_port: PORT, ident: 0 };
        let copies = self.through_switch(&packet(&path, &repr, &[7; 8]));
        let check = |copy: &Vec<u8>| {
            let seen = see(copy);
            let (to, Headers::Reth(reth)) = (last(seen.to), seen.repr.headers) else { panic!("{seen:?}") };
            let own = self::memory(to);
            let known = 0x1000 * u32::from(to)..=self.hosts[&seen.to].qpn.value();
            assert!(seen.from == SWITCH && known.contains(&seen.repr.bth.dest_qp.value()), "{seen:?}");
            assert_eq!((reth.va, reth.rkey), (own.va + 8, own.rkey));
            to
        };
        copies.iter().map(check).collect()
    }
}

#[test]
fn a_group_is_made_of_the_replicas_that_agree() {
    let mut net = Net::new(1, 0);
    let asked = ask(5, 2, &[2, 3, 4]);
    let id = net.connect(1, &asked);
    net.run();
    let request = net.agree(2);
    assert_eq!(request.path.remote, Gid::from_ip(SWITCH), "it comes from the switch");
    let leader = Ask { addrs: vec![Ipv4Addr::new(10, 0, 0, 1)], ..asked };
    assert_eq!(Ask::parse(&request.private_data), Some(leader), "in the leader's name");
    net.refuse(3);
    net.run();
    assert_eq!(net.answer(1), None, "one has said nothing yet");
    let last = net.agree(4);
    net.run();
    let (answer, broadcast) = net.answer(1).unwrap();
    let memory = answer.memory.unwrap();
    assert_eq!((answer.agreed, memory.va, memory.size), (0b101, 0, 1 << 22), "as much as all have");
    net.host(1).manager.establish(id, &[]).unwrap();
    net.run();
    assert_eq!(net.write(1, id), [2, 4]);

    // Both acknowledge, to the QPs that they were asked from, and the leader is told.
    let mut told = Vec::new();
    for (replica, request) in [(2, &request), (4, &last)] {
        let attr = net.host(replica).manager.qp_rtr(request.id, AhAttr::new(request.path.remote)).unwrap();
        let bth = bth::Repr::new(Opcode::RcAck, attr.dest_qpn.unwrap(), attr.rq_psn.unwrap());
        let path = Path { src: host(replica), dst: SWITCH, src_port: PORT, ident: 0 };
        assert!(told.is_empty());
        told = net.through_switch(&packet(&path, &Repr { bth, headers: Headers::Aeth(plain_ack(1)) }, &[]));
    }
    let seen = see(&told[0]);
    let psn = net.host(1).manager.qp_rts(id).unwrap().sq_psn.unwrap();
    assert_eq!((seen.to, seen.repr.bth.dest_qp, seen.psn()), (host(1), net.hosts[&host(1)].qpn, psn));
    // The number between is nobody's.
    let before = net.switch.stats().no_qp;
    let between = Qpn::new(broadcast.value() + 2);
    let path = Path { src: host(3), dst: SWITCH, src_port: PORT, ident: 0 };
    let bth = bth::Repr::new(Opcode::RcAck, between, Psn::new(0));
    assert!(
        net.through_switch(&packet(&path, &Repr { bth, headers: Headers::Aeth(plain_ack(1)) }, &[]))
            .is_empty()
    );
    assert_eq!(net.switch.stats().no_qp, before + 1);
}

#[test]
fn too_few_that_agree_are_no_group() {
    let mut net = Net::new(2, 0);
    net.connect(1, &ask(5, 2, &[2, 3, 4]));
    net.run();
    net.refuse(2);
    net.agree(3);
    net.refuse(4);
    net.run();
    let answer = Answer { memory: None, agreed: 0b010 };
    assert_eq!(net.refusal(1), Some((RejReason::CONSUMER_DEFINED, Some(answer))));
    assert!(net.is_disconnected(3), "for nothing");
    // Its numbers are free again: of 256, it had four.
    for epoch in 6..76 {
        net.connect(1, &ask(epoch, 2, &[2, 3, 4]));
        net.run();
        (2..5).for_each(|replica| net.refuse(replica));
        net.run_for(Duration::from_secs(10));
    }
    assert_eq!(net.hosts[&host(1)].events.len(), 71);
}

#[test]
fn one_dead_replica_is_waited_for_no_longer_than_the_grace() {
    let mut net = Net::new(3, 0);
    net.hosts.remove(&host(3));
    let id = net.connect(1, &ask(5, 2, &[2, 3, 4]));
    net.run();
    net.agree(2);
    net.run_for(Duration::from_secs(1));
    assert_eq!(net.answer(1), None, "not enough yet");
    net.agree(4);
    net.run_for(GRACE - Duration::from_millis(1));
    assert_eq!(net.answer(1), None);
    net.run_for(Duration::from_millis(2));
    assert_eq!(net.answer(1).unwrap().0.agreed, 0b101);
    net.host(1).manager.establish(id, &[]).unwrap();
    assert_eq!(net.write(1, id), [2, 4]);
}

#[test]
fn a_leader_of_a_later_epoch_ends_the_group_of_an_earlier_one() {
    let mut net = Net::new(4, 0);
    net.group(1, &ask(5, 2, &[2, 3]));
    let id = net.group(9, &ask(6, 2, &[2, 3, 4]));
    assert!(net.is_disconnected(1), "its group is over");
    assert!(matches!(net.reports()[..], [Report::Replaced { .. }]));
    assert_eq!(net.write(9, id), [2, 3, 4]);
    net.host(1).events.clear();
    net.connect(1, &ask(5, 2, &[2, 3]));
    net.run();
    net.agree(2);
    net.agree(3);
    net.run();
    let answer = Answer { memory: None, agreed: 0b11 };
    assert_eq!(net.refusal(1), Some((RejReason::CONSUMER_DEFINED, Some(answer))), "whatever they say");
    assert_eq!(net.write(9, id), [2, 3, 4]);
}

#[test]
fn a_group_ends_with_its_leaders_connection_and_not_with_a_replicas() {
    let mut net = Net::new(5, 0);
    let id = net.group(1, &ask(5, 2, &[2, 3, 4]));
    let of_replica = net.host(3).events.iter().find_map(|event| match event {
        Event::Established { id } => Some(*id),
        _ => None,
    });
    let now = net.now;
    net.host(3).manager.disconnect(now, of_replica.unwrap()).unwrap();
    net.run();
    assert!(matches!(net.reports()[..], [Report::LeftOut { replica: 1, .. }]));
    assert_eq!(net.write(1, id), [2, 4]);
    let now = net.now;
    net.host(1).manager.disconnect(now, id).unwrap();
    net.run();
    for host in [1, 2, 4] {
        assert!(net.is_disconnected(host), "{host}");
    }
    assert!(net.switch.stats().no_qp == 0);
    assert_eq!(net.write_after_end(1), 1, "there is no such QP any more");
}

impl Net {
    /// How many packets the switch has dropped for want of a QP, after one more to the leader's.
    fn write_after_end(&mut self, leader: u8) -> u64 {
        let (_, broadcast) = self.answer(leader).unwrap();
        let reth = reth::Repr { va: 0, rkey: Rkey(0), dma_len: 0 };
        let bth = bth::Repr::new(Opcode::RcWriteOnly, broadcast, Psn::new(0));
        let path = Path { src: host(leader), dst: SWITCH, src_port: PORT, ident: 0 };
        assert!(
            self.through_switch(&packet(&path, &Repr { bth, headers: Headers::Reth(reth) }, &[])).is_empty()
        );
        self.switch.stats().no_qp
    }
}

#[test]
fn what_is_no_request_for_a_group_goes_to_no_replica() {
    let fine = ask(5, 2, &[2, 3, 4]);
    let mut other_version = fine.to_bytes();
    other_version[0] = 2;
    let mut none = fine.to_bytes();
    none[1] = 0;
    let mut many = fine.to_bytes();
    many[1] = 7;
    let asks = [
        ask(5, 4, &[2, 3, 4]),
        ask(5, 0, &[2, 3, 4]),
        Ask { reads: 4, ..fine.clone() },
        ask(5, 1, &[2, 100]),
        ask(5, 1, &[2, 2]),
    ];
    let refused = asks.iter().map(Ask::to_bytes).chain([other_version, none, many, [0; 56]]);
    for (seed, bytes) in (0..).zip(refused) {
        let mut net = Net::new(seed, 0);
        net.connect_with(1, &bytes);
        net.run();
        assert_eq!(net.refusal(1).map(|(reason, _)| reason), Some(RejReason::UNSUPPORTED), "{seed}");
        assert!((2..5).all(|replica| net.hosts[&host(replica)].events.is_empty()), "{seed}");
    }
}

#[test]
fn nothing_is_sent_on_for_who_may_not_have_it_sent() {
    let some = Access {
        leaders: vec!["10.0.0.0/30".parse().unwrap()],
        replicas: vec![host(2).into(), host(3).into()],
        ..Access::default()
    };
    let mut net = Net::with(6, 0, some.clone());
    net.connect(9, &ask(5, 1, &[2, 3]));
    net.connect(1, &ask(5, 1, &[2, 3, 4]));
    net.run_for(Duration::from_secs(10));
    let stats = *net.switch.stats();
    assert_eq!((stats.no_leader, stats.no_replica, net.asked()), (1, 1, vec![]));
    assert!(net.refusal(9).is_some() && net.refusal(1).is_some(), "and they are told");
    net.group(1, &ask(5, 1, &[2, 3]));

    // Who has to prove something as well.
    let token = Token::new("a-token-that-is-long-enough").unwrap();
    let mut net = Net::with(7, 0, Access { token: Some(token.clone()), ..some });
    let right = ask(5, 1, &[2]).prove(&token, SERVICE, host(1));
    let of_another = ask(5, 1, &[2]).prove(&token, SERVICE, host(2));
    let of_another_epoch = Ask { epoch: 6, ..right.clone() };
    let of_another_leader = Ask { leader: 78, ..right.clone() };
    for wrong in [ask(5, 1, &[2]), of_another, of_another_epoch, of_another_leader] {
        net.connect(1, &wrong);
        net.run();
        assert!(net.asked().is_empty(), "{wrong:?}");
    }
    assert_eq!(net.switch.stats().unproven, 4);
    net.host(1).events.clear();
    net.connect(1, &right);
    net.run();
    let request = net.agree(2);
    let onward = Ask::parse(&request.private_data).unwrap();
    assert!(onward.is_proven(&token, SERVICE, onward.addrs[0].into()), "the replica can see it too");
    assert!(!onward.is_proven(&token, ServiceId(SERVICE.0 + 1), host(1)), "of this service");
}

#[test]
fn a_leader_waits_for_one_answer_of_a_replica_at_a_time_and_has_so_many_groups() {
    let mut net = Net::with(8, 0, Access { groups: 3, ..Access::anybody() });
    net.hosts.remove(&host(3));
    net.connect(1, &ask(5, 2, &[2, 3]));
    net.run();
    net.agree(2);
    net.run();
    assert_eq!(net.asked(), [2], "and the other one does not answer");
    for others in [&[3][..], &[4, 3]] {
        net.connect(1, &ask(6, 1, others));
        net.run();
    }
    assert_eq!((net.switch.stats().bounded, net.asked()), (2, vec![]));
    // Another leader may, and so may this one ask others.
    net.group(9, &ask(6, 1, &[4]));
    net.group(1, &ask(7, 1, &[4]));
    net.group(1, &ask(7, 1, &[2]));
    net.asked();
    net.connect(1, &ask(8, 1, &[4]));
    net.run();
    assert_eq!(
        (net.switch.stats().bounded, net.asked()),
        (3, vec![]),
        "it has three, with the one it waits for"
    );
    net.run_for(Duration::from_secs(10));
    net.asked();
    net.connect(1, &ask(8, 1, &[4]));
    net.run();
    assert_eq!(net.asked(), [4], "it waits for one less");
}

#[test]
fn a_switch_that_closes_tells_everybody_and_begins_nothing() {
    let mut net = Net::new(9, 0);
    net.group(1, &ask(5, 2, &[2, 3]));
    net.connect(9, &ask(6, 1, &[4]));
    net.run();
    let now = net.now;
    net.switch.close(now);
    assert!(!net.switch.is_at_rest());
    let mut left = Vec::new();
    net.switch.handle_timeout(now, &mut |packet| left.push(packet.to_vec()));
    left.into_iter().for_each(|packet| net.launch(packet));
    net.run();
    assert!([1, 2, 3].into_iter().all(|host| net.is_disconnected(host)) && net.refusal(9).is_some());
    assert!(net.switch.is_at_rest() && net.switch.groups().next().is_none());
    net.asked();
    net.connect(1, &ask(7, 1, &[2]));
    net.run();
    assert!(net.asked().is_empty());
}

#[test]
fn messages_that_are_lost_are_said_again() {
    for seed in seeds(30) {
        let mut net = Net::new(seed, 10);
        let id = net.connect(1, &ask(5, 3, &[2, 3, 4]));
        let mut is_up = false;
        for _ in 0..400 {
            net.run_for(Duration::from_millis(50));
            for replica in 2..5 {
                let is_asked = |event: &Event| matches!(event, Event::ConnectRequest(_));
                if net.hosts[&host(replica)].events.iter().any(is_asked) {
                    net.agree(replica);
                }
            }
            if !is_up && net.answer(1).is_some() {
                net.host(1).manager.establish(id, &[]).unwrap();
                is_up = true;
            }
        }
        assert_eq!(net.answer(1).map(|(answer, _)| answer.agreed), Some(0b111), "{}", replay(seed));
        assert_eq!(net.write(1, id), [2, 3, 4], "{}", replay(seed));
    }
}

#[test]
fn no_message_makes_it_panic() {
    for seed in seeds(40) {
        let mut net = Net::new(seed, 0);
        let id = net.group(1, &ask(5, 2, &[2, 3]));
        let now = net.now;
        net.host(1).manager.disconnect(now, id).unwrap();
        net.run();
        let heard = std::mem::take(&mut net.heard);
        for _ in 0..200 {
            let mut message = heard[net.rng.next_u32() as usize % heard.len()].clone();
            for _ in 0..net.rng.next_u32() % 5 {
                // Behind IP, UDP, BTH and DETH.
                let at = 48 + net.rng.next_u32() as usize % (message.len() - 52);
                message[at] ^= 1 << (net.rng.next_u32() % 8);
            }
            let datagram = Datagram::parse(&message).unwrap();
            let (flow, ident) = (datagram.flow(), datagram.ip.ident);
            icrc::seal(&flow, ident, &mut message[28..]);
            for left in net.through_switch(&message) {
                net.launch(left);
            }
            if net.rng.next_u32().is_multiple_of(8) {
                net.run_for(Duration::from_millis(500));
            }
        }
    }
}
