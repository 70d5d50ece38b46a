//! The live half: QPs, registrations and the two threads of a server.
//!
//! The *serving* thread waits for completions, hands each message to the [`Core`], and sends what it answers; what
//! the core wants durable it settles once per round, so that commits of many clients share a wait for the medium.
//! The *accepting* thread takes connections. One-sided operations need neither: the device serves them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use remanence_pmem::Region;
use remanence_rnic::{
    Access, Data, PlacementSupport, QpCaps, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Wc, WcOpcode,
    WcStatus,
};
use remanence_verbs::{ConnectAttr, Connection, Context, Cq, Incoming, Listener, Mr, Pd, Qp, QpOptions};

use remanence_wire::{Qpn, Rkey};

use super::core::{ClientId, Core, Keys, Limits, Rights, Stats, Verdict};
use crate::auth::Token;
use crate::error::PoolError;
use crate::pool::Pool;
use crate::proto::{BadPurpose, MAX_MESSAGE, Purpose, RemoteExtent, VERSION, WINDOW};

/// How long the serving thread waits at most before it looks at its clock and at whether it should stop.
const TICK: Duration = Duration::from_millis(200);

/// Send buffers of a client: a reply for each request it may have open, and as many whose completion is late.
const SENDS: usize = 2 * WINDOW;

/// The number of send work requests whose completion says only that the peer is there.
const PROBE: u64 = u64::MAX;

/// How a server is started.
#[derive(Debug)]
pub struct Options {
    /// The token that clients have to prove that they have.
    pub token: Token,
    /// Bounds of what clients may have.
    pub limits: Limits,
}

struct PoolConnection {
    pd: Pd,
    control: Connection,
    data: Option<Connection>,
    /// WINDOW receive buffers, then SENDS send buffers.
    buffers: Mr,
    free_sends: Vec<u32>,
    unsent: VecDeque<Vec<u8>>,
    keys: HashMap<u32, Mr>,
    heard: Instant,
    probing: bool,
    /// Whether the client is disconnected once its last reply is out.
    leaving: bool,
}

/// The memory that clients reach, and the clients that reach it.
struct Peers {
    region: Region,
    support: PlacementSupport,
    by_id: BTreeMap<ClientId, PoolConnection>,
    by_qpn: HashMap<Qpn, ClientId>,
}

impl Keys for Peers {
    fn open(
        &mut self,
        client: ClientId,
        offset: u64,
        len: u64,
        rights: Rights,
    ) -> Result<RemoteExtent, String> {
        let peer = self.by_id.get_mut(&client).ok_or("the client is gone")?;
        let flush = match self.support.contains(PlacementSupport::PERSISTENCE) {
            true => Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT,
            false => Access::FLUSH_GLOBAL,
        };
        let access = match rights {
            Rights::Read => Access::REMOTE_READ,
            Rights::Fill => Access::LOCAL_WRITE | Access::REMOTE_WRITE | flush,
            Rights::All => {
                Access::LOCAL_WRITE
                    | Access::REMOTE_WRITE
                    | Access::REMOTE_READ
                    | Access::REMOTE_ATOMIC
                    | flush
            }
        };
        // The address is the offset in the pool: it says nothing of this process's own memory.
        let mr = peer
            .pd
            .reg_mr_at(&self.region, offset, len, offset, access)
            .map_err(|e| format!("the server cannot register memory ({e})"))?;
        let rkey = mr.rkey().0;
        peer.keys.insert(rkey, mr);
        Ok(RemoteExtent { addr: offset, len, rkey })
    }

    fn close(&mut self, client: ClientId, extent: RemoteExtent) {
        if let Some(peer) = self.by_id.get_mut(&client) {
            peer.keys.remove(&extent.rkey);
        }
    }
}

struct State {
    core: Core<Region>,
    peers: Peers,
    next_id: u64,
    started: Instant,
    next_tick: Duration,
}

struct Shared {
    state: Mutex<State>,
    context: Context,
    cq: Cq,
    stop: AtomicBool,
}

/// A port that is ours: clients that connect wait until a [`Server`] is started on it.
///
/// It is apart from the server, so that a program finds out that the port is taken before it makes a pool.
pub struct Port {
    context: Context,
    listener: Listener,
}

impl Port {
    /// Takes a port of the connection manager; 0 takes one that is free.
    ///
    /// # Errors
    /// The port is taken.
    pub fn take(context: &Context, port: u16) -> Result<Self, remanence_verbs::Error> {
        let listener = Listener::bind(context, port, Limits::default().strangers.most)?;
        Ok(Self { context: context.clone(), listener })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.context.link_caps().addresses[0], self.listener.port())
    }
}

/// A server that serves until it is dropped or [stopped](Server::stop).
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Serves `pool` on a port.
    ///
    /// # Errors
    /// The device has no room.
    pub fn start(port: Port, pool: Pool<Region>, options: Options) -> Result<Self, remanence_verbs::Error> {
        let address = port.address();
        let Port { context, listener } = port;
        let region = pool.medium().clone();
        let domain = region.domain();
        let durable = domain.guarantee().is_durable();
        let support = match durable {
            true => PlacementSupport::GLOBAL_VISIBILITY | PlacementSupport::PERSISTENCE,
            false => PlacementSupport::GLOBAL_VISIBILITY,
        };
        let (name, survives) = (domain.domain().name(), domain.to_string());
        let core = Core::new(pool, options.token, options.limits, name, &survives, durable);
        let peers = Peers { region, support, by_id: BTreeMap::new(), by_qpn: HashMap::new() };
        let state = State { core, peers, next_id: 1, started: Instant::now(), next_tick: Duration::ZERO };
        let capacity = (options.limits.clients * (WINDOW + SENDS + 2)).min(context.config().max_cqe as usize);
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            context: context.clone(),
            cq: context.create_cq(capacity as u32, None, 0)?,
            stop: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        let accepting = Arc::clone(&shared);
        let threads = vec![
            spawn("pool-serve", move || serving.serve())?,
            spawn("pool-accept", move || accepting.accept(&listener))?,
        ];
        Ok(Self { shared, address, threads })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.lock().core.stats()
    }

    /// Clients that are connected.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.shared.lock().core.clients()
    }

    /// Whether the serving thread is still there; it ends only when the device does.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }

    /// Stops serving: clients are disconnected, the pool is closed.
    ///
    /// # Errors
    /// The medium failed.
    pub fn stop(mut self) -> Result<(), PoolError> {
        self.join();
        let mut state = self.shared.lock();
        let everyone: Vec<ClientId> = state.peers.by_id.keys().copied().collect();
        everyone.into_iter().for_each(|client| state.remove(client));
        state.core.close()
    }

    fn join(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.join();
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, remanence_verbs::Error> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    thread.map_err(|e| remanence_verbs::Error::Os {
        what: "a thread cannot be started".into(),
        source: Arc::new(e),
    })
}

impl Shared {
    /// The state is whole between any two statements that can panic; a poisoned lock is as good as any.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn serve(&self) {
        let mut completions = Vec::new();
        while !self.stopping() {
            completions.clear();
            if self.cq.wait(&mut completions, 256, Some(TICK)).is_err() {
                // The CQ is sized for what clients may have open; only our own mistake overflows it.
                break;
            }
            let mut state = self.lock();
            for wc in &completions {
                state.completed(wc);
            }
            if state.core.has_waiting() {
                for (client, message) in state.core.settle() {
                    state.send(client, message);
                }
            }
            state.tick();
        }
    }

    fn accept(&self, listener: &Listener) {
        while !self.stopping() {
            let Some(incoming) = listener.get_request(Some(TICK)) else { continue };
            // What a peer asks for may be refused or fail; the server goes on, and the peer was told.
            let _ = match Purpose::parse(incoming.private_data()) {
                Ok(Purpose::Control) => self.accept_control(incoming),
                Ok(Purpose::Data { ticket }) => self.accept_data(incoming, &ticket),
                Err(BadPurpose::OtherVersion(theirs)) => incoming.reject(
                    format!("it speaks version {VERSION} of the pool protocol and you speak {theirs}; use the same release").as_bytes(),
                ),
                Err(BadPurpose::Stranger) => incoming.reject(b"this is a memory pool (rem serve pool), and you are no client of one"),
            };
        }
    }

    fn accept_control(&self, incoming: Incoming) -> Result<(), remanence_verbs::Error> {
        // Registering memory takes its time; nobody who is served waits for it.
        let ready = Ready::new(&self.context, &self.cq)?;
        let mut state = self.lock();
        let id = ClientId(state.next_id);
        let now = state.started.elapsed();
        if let Some(goes) = state.core.connected(now, id, incoming.peer()) {
            state.remove(goes);
        }
        state.next_id += 1;
        match PoolConnection::accept(ready, incoming) {
            Ok(peer) => {
                state.peers.by_qpn.insert(peer.control.qp().qpn(), id);
                state.peers.by_id.insert(id, peer);
                Ok(())
            }
            Err(error) => {
                state.remove(id);
                Err(error)
            }
        }
    }

    fn accept_data(&self, incoming: Incoming, ticket: &[u8; 16]) -> Result<(), remanence_verbs::Error> {
        let mut state = self.lock();
        let client = state.core.by_ticket(ticket);
        let Some((id, peer)) = client.and_then(|id| Some((id, state.peers.by_id.get_mut(&id)?))) else {
            return incoming.reject(b"the ticket is unknown; connect again");
        };
        if peer.data.is_some() {
            return incoming.reject(b"this client has its data connection already");
        }
        // The client's own PD: keys of one client open nothing to another one's QPs.
        let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let qp = peer.pd.create_qp(&QpOptions { caps, ..QpOptions::rc(&self.cq) })?;
        let connection = incoming.accept(&qp, &ConnectAttr::default(), &[])?;
        peer.data = Some(connection);
        state.peers.by_qpn.insert(qp.qpn(), id);
        Ok(())
    }
}

/// What a client needs of us before its connection request is answered.
struct Ready {
    pd: Pd,
    buffers: Mr,
    qp: Qp,
}

impl Ready {
    fn new(context: &Context, cq: &Cq) -> Result<Self, remanence_verbs::Error> {
        let pd = context.alloc_pd()?;
        let buffers = Region::anonymous(((WINDOW + SENDS) * MAX_MESSAGE) as u64).map_err(|e| {
            remanence_verbs::Error::Os {
                what: "message buffers".into(),
                source: Arc::new(std::io::Error::other(e)),
            }
        })?;
        let buffers = pd.reg_mr(&buffers, Access::LOCAL_WRITE)?;
        let caps = QpCaps {
            max_send_wr: SENDS as u32 + 1,
            max_recv_wr: WINDOW as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let qp = pd.create_qp(&QpOptions { caps, ..QpOptions::rc(cq) })?;
        Ok(Self { pd, buffers, qp })
    }
}

impl PoolConnection {
    fn accept(ready: Ready, incoming: Incoming) -> Result<Self, remanence_verbs::Error> {
        let Ready { pd, buffers, qp } = ready;
        // No one-sided access at all on the control QP: a stranger has one.
        let attr = ConnectAttr { access: Access::empty(), ..ConnectAttr::default() };
        let control = incoming.accept(&qp, &attr, &[])?;
        let peer = Self {
            pd,
            control,
            data: None,
            buffers,
            free_sends: (0..SENDS as u32).collect(),
            unsent: VecDeque::new(),
            keys: HashMap::new(),
            heard: Instant::now(),
            probing: false,
            leaving: false,
        };
        (0..WINDOW as u64).try_for_each(|slot| peer.post_recv(slot))?;
        Ok(peer)
    }

    fn qp(&self) -> &Qp {
        self.control.qp()
    }

    fn post_recv(&self, slot: u64) -> Result<(), remanence_verbs::Error> {
        let sge = self.buffers.sge(slot * MAX_MESSAGE as u64, MAX_MESSAGE as u32);
        Ok(self.qp().post_recv(&RecvWr { wr_id: slot, sges: &[sge] })?)
    }

    /// Sends what waits, as far as there are buffers.
    fn push(&mut self) -> Result<(), remanence_verbs::Error> {
        while let (Some(message), Some(slot)) = (self.unsent.front(), self.free_sends.last()) {
            let at = (WINDOW as u64 + u64::from(*slot)) * MAX_MESSAGE as u64;
            self.buffers.region().write(at, message);
            let sge = self.buffers.sge(at, message.len() as u32);
            self.qp().post_send(&SendWr {
                wr_id: u64::from(*slot),
                op: SendOp::Send,
                data: Data::Sges(&[sge]),
                flags: SendFlags::SIGNALED,
                ud: None,
            })?;
            self.unsent.pop_front();
            self.free_sends.pop();
        }
        Ok(())
    }

    /// A WRITE of no bytes touches nothing and needs no key, and a peer that is gone does not acknowledge it.
    fn probe(&mut self) -> Result<(), remanence_verbs::Error> {
        self.probing = true;
        Ok(self.qp().post_send(&SendWr {
            wr_id: PROBE,
            op: SendOp::Write(RemoteAddr { addr: 0, rkey: Rkey(0) }),
            data: Data::Sges(&[]),
            flags: SendFlags::SIGNALED,
            ud: None,
        })?)
    }
}

impl State {
    fn completed(&mut self, wc: &Wc) {
        let Some(&client) = self.peers.by_qpn.get(&wc.qpn) else { return };
        if wc.status != WcStatus::Success {
            // Flushed, as the client went; or it does not answer any more.
            return self.remove(client);
        }
        let Some(peer) = self.peers.by_id.get_mut(&client) else { return };
        peer.heard = Instant::now();
        match wc.opcode {
            WcOpcode::Recv => self.received(client, wc),
            _ if wc.wr_id == PROBE => {
                peer.probing = false;
                self.core.probed();
            }
            _ => {
                peer.free_sends.push(wc.wr_id as u32);
                let failed = peer.push().is_err();
                let done = peer.leaving && peer.free_sends.len() == SENDS;
                if failed || done {
                    self.remove(client);
                }
            }
        }
    }

    fn received(&mut self, client: ClientId, wc: &Wc) {
        let Some(peer) = self.peers.by_id.get_mut(&client) else { return };
        let mut message = vec![0; wc.byte_len as usize];
        peer.buffers.region().read(wc.wr_id * MAX_MESSAGE as u64, &mut message);
        if peer.leaving || peer.post_recv(wc.wr_id).is_err() {
            return;
        }
        let now = self.started.elapsed();
        let mut random = |bytes: &mut [u8]| getrandom::fill(bytes).expect("the kernel gives random bytes");
        let verdict = self.core.receive(now, client, &message, &mut random, &mut self.peers);
        if let Some(goes) = self.core.gave_way() {
            self.remove(goes);
        }
        match verdict {
            Verdict::Reply(reply) => self.send(client, reply),
            Verdict::Later => {}
            Verdict::Last(reply) => {
                if let Some(peer) = self.peers.by_id.get_mut(&client) {
                    peer.leaving = true;
                }
                self.send(client, reply);
            }
            Verdict::Hostile(_) => self.remove(client),
        }
    }

    fn send(&mut self, client: ClientId, message: Vec<u8>) {
        let Some(peer) = self.peers.by_id.get_mut(&client) else { return };
        peer.unsent.push_back(message);
        // Of a client that asks and does not take the answers, all of them would have to be kept.
        if peer.push().is_err() || peer.unsent.len() > WINDOW {
            self.remove(client);
        }
    }

    /// Forgets a client: its QPs go to the error state, its keys are closed, what it held is free.
    fn remove(&mut self, client: ClientId) {
        self.core.disconnected(client, &mut self.peers);
        if let Some(peer) = self.peers.by_id.remove(&client) {
            for connection in [Some(&peer.control), peer.data.as_ref()].into_iter().flatten() {
                self.peers.by_qpn.remove(&connection.qp().qpn());
                // It may be over already; then there is nothing to end.
                let _ = connection.disconnect();
            }
        }
    }

    /// Looks for strangers that take too long and for clients that are silently gone.
    fn tick(&mut self) {
        let now = self.started.elapsed();
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + TICK;
        let limit = self.core.limits().quiet;
        let expired: Vec<ClientId> = self.core.expired(now).collect();
        let quiet =
            self.peers.by_id.iter_mut().filter(|(_, peer)| !peer.probing && peer.heard.elapsed() >= limit);
        let dead: Vec<ClientId> =
            quiet.filter_map(|(id, peer)| peer.probe().is_err().then_some(*id)).collect();
        expired.into_iter().chain(dead).for_each(|client| self.remove(client));
    }
}
