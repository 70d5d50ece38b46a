//! A process' place at a device: which UD QPs of it serve calls, for clients that ask (SIDR; IBA Vol 1, 12.11).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use remanence_rnic::cm::{Event, Listen, ListenId, Path, SidrReply, SidrRequest};
use remanence_verbs::{CmChannel, Context};
use remanence_wire::cm::{PortSpace, ServiceId, SidrRep};
use remanence_wire::{Gid, Qkey, Qpn};

use super::{Error, Options, Rpc};
use crate::header::Address;

/// Of every endpoint: who reaches a QP of ours speaks our protocol.
pub(super) const QKEY: Qkey = Qkey(0x5270_0001);
/// Clients that ask at the same time; others ask again.
const BACKLOG: usize = 256;
/// Our own port in a question: nobody listens there, the header wants a number.
const CALLER_PORT: u16 = 0;

#[derive(Debug)]
struct Shared {
    context: Context,
    /// The endpoints that serve, in the order in which they were made; `None` of one that is gone.
    serving: Mutex<Vec<Option<Qpn>>>,
    stop: AtomicBool,
}

/// A process' place at a device.
#[derive(Debug)]
pub struct Nexus {
    shared: Arc<Shared>,
    port: Option<u16>,
    channel: CmChannel,
    listening: Option<ListenId>,
    thread: Option<JoinHandle<()>>,
}

impl Nexus {
    /// For clients only.
    ///
    /// # Errors
    /// The operating system refuses a descriptor.
    pub fn new(context: &Context) -> Result<Self, Error> {
        let shared =
            Shared { context: context.clone(), serving: Mutex::default(), stop: AtomicBool::new(false) };
        Ok(Self {
            shared: Arc::new(shared),
            port: None,
            channel: CmChannel::new()?,
            listening: None,
            thread: None,
        })
    }

    /// Answers clients that ask at a port of RDMA-CM's UDP port space. The device needs its progress thread.
    ///
    /// # Errors
    /// Another process has the port, or the operating system refuses a thread.
    pub fn serve(context: &Context, port: u16) -> Result<Self, Error> {
        let mut nexus = Self::new(context)?;
        let listen = Listen { service_id: service(port), local: None, backlog: BACKLOG };
        nexus.listening = Some(context.cm().listen(&listen, &nexus.channel, 0)?);
        nexus.port = Some(port);
        let (shared, channel) = (Arc::clone(&nexus.shared), nexus.channel.clone());
        let thread = std::thread::Builder::new()
            .name("remanence-nexus".into())
            .spawn(move || shared.answer(&channel))
            .map_err(Error::Thread)?;
        nexus.thread = Some(thread);
        Ok(nexus)
    }

    /// The device that the endpoints' QPs belong to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// The port at which it answers, if it does.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// An endpoint for one thread. Of a nexus that serves, clients find it as number 0, 1, … in the order of creation.
    ///
    /// # Errors
    /// The device or the memory has no room.
    pub fn create(&self, options: &Options) -> Result<Rpc, Error> {
        let mut rpc = Rpc::new(&self.shared.context, options)?;
        let mut serving = self.shared.serving();
        rpc.seat = Some(Seat { shared: Arc::clone(&self.shared), number: serving.len() });
        serving.push(Some(rpc.address().qpn));
        drop(serving);
        Ok(rpc)
    }

    /// Asks a server for its endpoint number `endpoint`, and waits for the answer.
    ///
    /// # Errors
    /// Nobody answers, or has no such endpoint, or cannot be reached from this device.
    pub fn resolve(&self, server: SocketAddr, endpoint: u8, limit: Duration) -> Result<Address, Error> {
        let remote = Gid::from_ip(server.ip());
        let gids = &self.shared.context.config().gids;
        let ours = gids.iter().find(|gid| **gid == remote);
        let ours = ours.or_else(|| gids.iter().find(|gid| gid.to_ip().is_ipv4() == server.is_ipv4()));
        let local = *ours.ok_or(Error::NoPath(server))?;
        let channel = CmChannel::new()?;
        let cm = self.shared.context.cm();
        let path = Path { local, remote };
        let asked = cm.resolve(path, service(server.port()), Some(CALLER_PORT), &[endpoint], &channel, 0);
        let id = asked.map_err(remanence_verbs::Error::from)?;
        let event = channel.get_event(Some(limit)).and_then(|event| event.event);
        match event {
            Some(Event::SidrResponse { status: SidrRep::STATUS_VALID, qpn, .. }) => {
                Ok(Address { gid: remote, qpn })
            }
            Some(Event::SidrResponse { .. }) => Err(Error::NoService(server)),
            _ => {
                cm.close(id);
                Err(Error::NoAnswer(server))
            }
        }
    }
}

fn service(port: u16) -> ServiceId {
    ServiceId::new(PortSpace::Udp, port)
}

/// An endpoint's entry, until the endpoint goes.
#[derive(Debug)]
pub(super) struct Seat {
    shared: Arc<Shared>,
    number: usize,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.serving()[self.number] = None;
    }
}

impl Shared {
    fn serving(&self) -> MutexGuard<'_, Vec<Option<Qpn>>> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers until the nexus goes.
    fn answer(&self, channel: &CmChannel) {
        while !self.stop.load(Ordering::Acquire) {
            let Some(event) = channel.get_event(None) else { return };
            if let Some(Event::SidrRequest(request)) = event.event {
                self.reply(&request);
            }
        }
    }

    fn reply(&self, request: &SidrRequest) {
        let number = usize::from(request.private_data.first().copied().unwrap_or(0));
        let qpn = self.serving().get(number).copied().flatten();
        let reply = match qpn {
            Some(qpn) => SidrReply { status: SidrRep::STATUS_VALID, qpn, qkey: QKEY, private_data: &[] },
            None => {
                let (qpn, qkey) = (Qpn::new(0), Qkey(0));
                SidrReply { status: SidrRep::STATUS_NO_QP, qpn, qkey, private_data: &[] }
            }
        };
        // A request that was taken back meanwhile needs no answer.
        let _ = self.context.cm().sidr_reply(request.id, &reply);
    }
}

impl Drop for Nexus {
    fn drop(&mut self) {
        if let Some(id) = self.listening.take() {
            self.shared.context.cm().unlisten(id);
        }
        self.shared.stop.store(true, Ordering::Release);
        self.channel.push(0);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
