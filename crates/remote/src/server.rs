//! The responder's side, live: a region is exported, and the responder's steps of recipes are served.
//!
//! [`Server::bind`] recovers before it listens. [`Server::run`] serves on the calling thread, and accepts on another one;
//! one-sided operations need neither, the device serves them. What is decided about a message is decided in
//! [`crate::responder`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use remanence_auth::{Role, Token, may_listen};
use remanence_persist::Config;
use remanence_persist::taxonomy::{Buffers, Domain, FlushSupport, Order};
use remanence_pmem::Region;
use remanence_rnic::{
    Access, Data, PostError, QpCaps, RecvWr, SendFlags, SendOp, SendWr, Wc, WcOpcode, WcStatus,
};
use remanence_verbs::{ConnectAttr, Connection, Context, Cq, Incoming, Listener, Mr, Pd, Qp, QpOptions};
use remanence_wire::Qpn;

use crate::admission::{Admission, Ends, Verdict};
use crate::error::Error;
use crate::grants::Grants;
use crate::hello::{Hello, Rejection, SLOT_SIZE_MAX, SLOTS_MAX, Stranger, VERSION, Welcome, Window};
use crate::message::Answer;
use crate::meter::Meter;
use crate::program::granule_shift;
use crate::responder::{Responder, Served, Terms, World};
use crate::ring::{Layout, Recovered, Ring, recover};
use crate::sentence::clipped;
use crate::session::{DESCRIBE, SETTLE};

/// How long the serving thread waits at most before it looks at whether it should stop.
const TICK: Duration = Duration::from_millis(100);
/// Connection requests that wait for an answer at most.
const BACKLOG: usize = 16;
/// Answers that are not longer go without a buffer.
const INLINE: usize = 256;
/// Marks a work request as a receive.
const RECEIVE: u64 = 1 << 63;
/// A send whose completion frees no buffer.
const NOBODY: u64 = u64::MAX >> 1;
/// One in so many binds of windows has a completion.
const BINDS: u32 = 8;

/// How a server is made.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    context: Context,
    region: Region,
    port: u16,
    declared: Option<Config>,
    ddio: Option<bool>,
    buffers: Buffers,
    sessions: u16,
    slots: u16,
    message: u32,
    relaxed: bool,
    token: Option<Token>,
    readers: Option<Token>,
    insecure: bool,
    guarded: bool,
    serves: Option<&'static str>,
}

impl ServerOptions {
    /// A server of that region on a port of the connection manager (0: one that is free), with receive buffers in DRAM, for
    /// 16 sessions with 64 buffers of 4 KiB each.
    #[must_use]
    pub fn new(context: &Context, region: Region, port: u16) -> Self {
        Self {
            context: context.clone(),
            region,
            port,
            declared: None,
            ddio: None,
            buffers: Buffers::Dram,
            sessions: 16,
            slots: 64,
            message: 4096,
            relaxed: false,
            token: None,
            readers: None,
            insecure: false,
            guarded: false,
            serves: None,
        }
    }

    /// What is served here, for clients that came for something else: "a log", with its article.
    #[must_use]
    pub const fn serves(mut self, what: &'static str) -> Self {
        self.serves = Some(what);
        self
    }

    /// Takes the operator's word for the whole configuration, in place of what is detected. Its receive buffers are put
    /// where it says.
    #[must_use]
    pub const fn declare(mut self, config: Config) -> Self {
        self.declared = Some(config);
        self.buffers = config.buffers;
        self
    }

    /// Whether arriving data stops in the CPU's cache. There is no way to find out; if nothing is said it is assumed so.
    #[must_use]
    pub const fn ddio(mut self, on: bool) -> Self {
        self.ddio = Some(on);
        self
    }

    /// Puts receive buffers at the end of the region, so that messages in them are durable when they are flushed; a restart
    /// applies them.
    #[must_use]
    pub const fn buffers(mut self, place: Buffers) -> Self {
        self.buffers = place;
        self
    }

    /// Sessions at a time.
    #[must_use]
    pub const fn sessions(mut self, count: u16) -> Self {
        self.sessions = count;
        self
    }

    /// Receive buffers of each session, 4 to 256, and the bytes of each, 512 to 1 MiB in steps of 64.
    #[must_use]
    pub const fn messages(mut self, slots: u16, bytes: u32) -> Self {
        self.slots = slots;
        self.message = bytes;
        self
    }

    /// Registers the memory with relaxed ordering, as programs do for speed. Clients that do not expect it refuse.
    #[must_use]
    pub const fn relaxed_ordering(mut self) -> Self {
        self.relaxed = true;
        self
    }

    /// Admits only clients that prove to have this token. Without one only this machine may reach the server.
    #[must_use]
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// Admits clients that prove to have this token, too. They may read the region and call the application, which is told
    /// of it ([`Call::role`]), and write nothing: neither their QP nor their messages have a right to.
    #[must_use]
    pub fn reader_token(mut self, token: Token) -> Self {
        self.readers = Some(token);
        self
    }

    /// Lets others than this machine reach it without a token: they may read and write the region.
    #[must_use]
    pub const fn insecure(mut self) -> Self {
        self.insecure = true;
        self
    }

    /// Lets clients read the region, and write only what [`Server::grants`] gives them.
    #[must_use]
    pub const fn guarded(mut self) -> Self {
        self.guarded = true;
        self
    }

    /// What this server is, and whether somebody's word was taken for a part of it.
    fn detect(&self) -> Result<(Config, bool), Error> {
        let domain = self.region.domain();
        let durable = domain.guarantee().is_durable();
        let order = if self.relaxed { Order::Relaxed } else { Order::Posted };
        if let Some(declared) = self.declared {
            if declared.flush == FlushSupport::Persistent && !durable {
                return Err(Error::Region(format!(
                    "FLUSH to persistence is declared, and nothing makes this region durable ({domain}); declare \"global\" or \"read\", or serve a file on a disk or on persistent memory"
                )));
            }
            return Ok((Config { order: order.max(declared.order), ..declared }, true));
        }
        let domain = match Domain::of(domain.domain()) {
            // Its platform promises nothing beyond the process, whatever it is made of.
            Some(_) if !durable => Domain::Process,
            Some(found) => found,
            None => {
                return Err(Error::Region(format!(
                    "nothing of this region outlives its process ({domain}); serve a file, or declare a configuration to try its methods"
                )));
            }
        };
        let found = Config { buffers: self.buffers, order, ..Config::software(domain) };
        let declared = self.region.domain().guarantee().declared;
        Ok((Config { ddio: self.ddio.unwrap_or(found.ddio), ..found }, declared || self.ddio.is_some()))
    }

    fn check(&self) -> Result<(), Error> {
        let argument = |text: String| Err(Error::Argument(text));
        if !(4..=SLOTS_MAX).contains(&self.slots) {
            return argument(format!("a session has 4 to {SLOTS_MAX} receive buffers, not {}", self.slots));
        }
        if !(512..=SLOT_SIZE_MAX).contains(&self.message) || !self.message.is_multiple_of(64) {
            return argument(format!(
                "a receive buffer has 512 to 1048576 bytes, in steps of 64, not {}",
                self.message
            ));
        }
        if self.sessions == 0 {
            return argument("a server takes at least one session".into());
        }
        match (&self.token, &self.readers) {
            (None, Some(_)) => {
                return argument(
                    "a token for readers needs one for writers beside it; give the server both".into(),
                );
            }
            (Some(writers), Some(readers)) if writers == readers => {
                return argument(
                    "readers have the token of writers, and could write; give them another one".into(),
                );
            }
            _ => {}
        }
        // Recovery applies what lies in them, and asks nobody whose it was.
        if self.buffers == Buffers::Pm && (self.guarded || self.readers.is_some()) {
            return argument(
                "messages in persistent receive buffers are applied by recovery, whoever sent them; keep the buffers in DRAM \
                 where not every client may write everything"
                    .into(),
            );
        }
        let caps = self.context.link_caps();
        // Shared memory does not leave the machine, whatever it calls its addresses.
        let open = |ip: &&IpAddr| !may_listen(**ip, self.token.is_some(), self.insecure);
        if let Some(ip) = caps.addresses.iter().find(open).filter(|_| caps.kind != "shm") {
            return argument(format!(
                "without a token whoever reaches {ip} could read and write the memory; give the server one (--token-file), let it listen on 127.0.0.1, or say that this is meant (--insecure)"
            ));
        }
        Ok(())
    }
}

/// A call to the application.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Names the session: never that of another one, before or after.
    pub session: u64,
    /// What its client may do.
    pub role: Role,
    /// What it asks.
    pub request: &'a [u8],
}

type Handler = Box<dyn FnMut(&Call<'_>) -> Result<Vec<u8>, String> + Send>;

/// Sees calls that have come together, before any of them is answered.
type Ahead = Box<dyn FnMut(&[Call<'_>]) + Send>;

/// What the serving thread does besides messages: it is told how much arrived, and says how long it can do without.
type Turn = Box<dyn FnMut(usize) -> Option<Duration> + Send>;

/// Reaches sessions of a server, to end one or to tell its client something: from a handler of its calls, which cannot do
/// it at once as it is called for one of them, or from another thread.
#[derive(Clone, Debug, Default)]
pub struct SessionControl(Arc<Mutex<Sessions>>);

#[derive(Debug, Default)]
struct Sessions {
    live: BTreeSet<u64>,
    cut: BTreeSet<u64>,
    notices: Vec<(u64, Vec<u8>)>,
    ended: u64,
}

impl SessionControl {
    /// Asks for the end of a session. It has come when [`is_live`](Self::is_live) says so.
    pub fn cut(&self, session: u64) {
        self.lock().cut.insert(session);
    }

    /// Whether a session goes on. If it does not, everything that it brought is in place, and nothing of it can come any
    /// more: its QP is in the error state.
    #[must_use]
    pub fn is_live(&self, session: u64) -> bool {
        self.lock().live.contains(&session)
    }

    /// How many sessions have ended so far.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.lock().ended
    }

    /// Tells a client something that it did not ask for: [`Session::notice`](crate::Session::notice). It goes out within a
    /// tenth of a second. Nobody learns whether it arrived; a client that does not look for a long time gets no more, and one
    /// that is gone is noticed so.
    pub fn notify(&self, session: u64, body: Vec<u8>) {
        let mut sessions = self.lock();
        if sessions.live.contains(&session) {
            sessions.notices.push((session, body));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a server did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Sessions that were accepted.
    pub sessions: u64,
    /// Sessions that were ended because the client broke the protocol.
    pub expelled: u64,
    /// Proofs of clients that were wrong: they have another token.
    pub wrong_tokens: u64,
    /// What was served, of all sessions.
    pub served: Served,
}

struct Link {
    id: u64,
    role: Role,
    connection: Connection,
    /// Receive buffers, DRAM or not.
    incoming: Mr,
    ring: Ring,
    outgoing: Mr,
    free: Vec<u32>,
    unsent: VecDeque<Answer>,
    failed: bool,
    grants: Grants,
    binds: u32,
}

struct ServedSession {
    /// Which of the server's sessions.
    index: u16,
    responder: Responder,
    link: Link,
}

struct State {
    peers: BTreeMap<Qpn, ServedSession>,
    stats: Stats,
    next_id: u64,
    cutter: SessionControl,
    grants: Grants,
}

/// All that both threads of a server use.
struct Core {
    options: ServerOptions,
    config: Config,
    declared: bool,
    layout: Option<Layout>,
    data_len: u64,
    recovered: Recovered,
    listener: Listener,
    pd: Pd,
    cq: Cq,
    memory: Mr,
    admission: Mutex<Admission>,
    begin: Instant,
    state: Mutex<State>,
}

/// The responder: exports a region, serves the responder's steps. Who has a session may read and write the region.
pub struct Server {
    core: Core,
    handlers: BTreeMap<u16, Handler>,
    ahead: Option<(u16, Ahead)>,
    round: Option<Box<dyn FnMut() + Send>>,
    turn: Option<Turn>,
    meter: Option<Meter>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("addr", &self.addr())
            .field("config", self.config())
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Recovers what a crash left in the region's receive buffers, and then listens. Clients that connect wait until
    /// [`run`](Self::run).
    ///
    /// # Errors
    /// One sentence that says what to do: the port is taken, the region keeps nothing, or too little, or cannot do what is
    /// declared of it; another version wrote its receive buffers; the medium failed.
    pub fn bind(options: ServerOptions) -> Result<Self, Error> {
        options.check()?;
        let (config, declared) = options.detect()?;
        let region = &options.region;
        let found = Layout::find(region)?;
        let recovered = recover(region)?;
        let medium = |e| Error::Ring(crate::ring::RingError::Medium(e));
        let layout = match (config.buffers, found) {
            (Buffers::Pm, _) => {
                let layout =
                    Layout::at_the_end(region.len(), options.sessions, options.slots, options.message)?;
                layout.format(region).map_err(medium)?;
                Some(layout)
            }
            (Buffers::Dram, Some(_)) => {
                Layout::remove(region).map_err(medium)?;
                None
            }
            (Buffers::Dram, None) => None,
        };
        let data_len = layout.map_or(region.len(), |layout| layout.data_len);
        let listener = Listener::bind(&options.context, options.port, BACKLOG)?;
        let pd = options.context.alloc_pd()?;
        let each = usize::from(options.slots) * 6 + 32;
        let capacity = (usize::from(options.sessions) * each).min(options.context.config().max_cqe as usize);
        let cq = options.context.create_cq(capacity as u32, None, 0)?;
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_READ | flush_rights(&config);
        access |= match options.guarded {
            true => Access::MW_BIND,
            false => Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
        };
        if config.order == Order::Relaxed {
            access |= Access::RELAXED_ORDERING;
        }
        let memory = pd.reg_mr_at(region, 0, data_len, 0, access)?;
        let state = State {
            peers: BTreeMap::new(),
            stats: Stats::default(),
            next_id: 1,
            cutter: SessionControl::default(),
            grants: Grants::new(&pd, &memory, flush_rights(&config), options.guarded),
        };
        let admission = Admission::new(options.token.clone());
        let admission = Mutex::new(match options.readers.clone() {
            Some(readers) => admission.readers(readers),
            None => admission,
        });
        let core = Core {
            options,
            config,
            declared,
            layout,
            data_len,
            recovered,
            listener,
            pd,
            cq,
            memory,
            admission,
            begin: Instant::now(),
            state: Mutex::new(state),
        };
        Ok(Self { core, handlers: BTreeMap::new(), ahead: None, round: None, turn: None, meter: None })
    }

    /// Where clients connect.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::new(self.core.options.context.link_caps().addresses[0], self.core.listener.port())
    }

    /// What it is.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.core.config
    }

    /// Bytes that clients may update, from the start of the region.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.core.data_len
    }

    /// Whether there is nothing to update: never.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.core.data_len == 0
    }

    /// What was found in receive buffers when it was bound.
    #[must_use]
    pub const fn recovered(&self) -> Recovered {
        self.core.recovered
    }

    /// What it is and which failures updates survive, in a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        self.core.sentence()
    }

    /// What acknowledged data survives, in few words.
    #[must_use]
    pub fn summary(&self) -> String {
        self.core.options.region.domain().summary()
    }

    /// Answers [`Session::call`](crate::Session::call)s of a service. The handler runs on the serving thread, and sees what
    /// its session did before.
    ///
    /// # Panics
    /// For the services 65534 and 65535, which are the server's own.
    pub fn on_call(
        &mut self,
        service: u16,
        handler: impl FnMut(&Call<'_>) -> Result<Vec<u8>, String> + Send + 'static,
    ) {
        assert!(service < DESCRIBE, "service {service} is the server's own");
        self.handlers.insert(service, Box::new(handler));
    }

    /// Shows the calls of a service that have come together, if they are several, before the first of them is answered: what each
    /// would wait for alone can be done for all of them. Not every call is shown, and one that is may never be made.
    ///
    /// # Panics
    /// For the services 65534 and 65535, which are the server's own.
    pub fn on_calls(&mut self, service: u16, look: impl FnMut(&[Call<'_>]) + Send + 'static) {
        assert!(service < DESCRIBE, "service {service} is the server's own");
        self.ahead = Some((service, Box::new(look)));
    }

    /// What sessions of a [guarded](ServerOptions::guarded) server may write.
    #[must_use]
    pub fn grants(&self) -> Grants {
        self.core.lock().grants.clone()
    }

    /// What ends sessions.
    #[must_use]
    pub fn cutter(&self) -> SessionControl {
        self.core.lock().cutter.clone()
    }

    /// Other work of the serving thread: called again and again, and no message is served meanwhile. This is what a busy
    /// application is to those who need its help; with it the thread never sleeps.
    pub fn on_round(&mut self, work: impl FnMut() + Send + 'static) {
        self.round = Some(Box::new(work));
    }

    /// What the serving thread does besides messages, unlike [`on_round`](Self::on_round) without keeping a core busy: called
    /// after each lot of messages with their number, and again when the time has passed that it returned, or a tenth of a
    /// second. No message is served meanwhile. If it returns `None`, [`run`](Self::run) ends.
    pub fn on_turn(&mut self, work: impl FnMut(usize) -> Option<Duration> + Send + 'static) {
        self.turn = Some(Box::new(work));
    }

    /// From here on counts messages, and the CPU time that they take.
    pub fn meter(&mut self) -> Meter {
        self.meter.get_or_insert_default().clone()
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let state = self.core.lock();
        let mut stats = state.stats;
        stats.wrong_tokens = self.core.admission().wrong();
        state.peers.values().for_each(|peer| add(&mut stats.served, peer.responder.served()));
        stats
    }

    /// Serves until `stop` is set, and then ends all sessions.
    ///
    /// # Errors
    /// The device is gone; the medium failed.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<Stats, Error> {
        let mut handlers = std::mem::take(&mut self.handlers);
        let (mut round, mut turn, mut ahead) = (self.round.take(), self.turn.take(), self.ahead.take());
        let (this, meter) = (&self.core, self.meter.as_ref());
        let over = &AtomicBool::new(false);
        let served = std::thread::scope(|scope| {
            let accepting =
                std::thread::Builder::new().name("persist-accept".into()).spawn_scoped(scope, move || {
                    while !stop.load(Ordering::Acquire) && !over.load(Ordering::Acquire) {
                        if let Some(incoming) = this.listener.get_request(Some(TICK)) {
                            // A peer may be refused or fail; the server goes on, and the peer was told.
                            let _ = this.accept(incoming);
                        }
                    }
                });
            let started = accepting.map(drop).map_err(|e| {
                Error::Verbs(remanence_verbs::Error::Os {
                    what: "a thread cannot be started".into(),
                    source: Arc::new(e),
                })
            });
            let served = started
                .and_then(|()| this.serve(stop, &mut handlers, &mut ahead, &mut round, &mut turn, meter));
            over.store(true, Ordering::Release);
            served
        });
        (self.handlers, self.ahead, self.round, self.turn) = (handlers, ahead, round, turn);
        let stats = self.stats();
        let everyone: Vec<Qpn> = self.core.lock().peers.keys().copied().collect();
        for qpn in everyone {
            self.core.lock().remove(qpn, &self.core.options.region);
        }
        served.map(|()| stats)
    }
}

impl Core {
    fn sentence(&self) -> String {
        let word = if self.declared { "declared" } else { "detected" };
        let ddio = match self.options.ddio {
            None if self.options.declared.is_none() => "; DDIO is assumed on, as it cannot be detected",
            _ => "",
        };
        format!("{}; configuration {} ({word}){ddio}", self.options.region.domain(), self.config)
    }

    /// The state is whole between any two statements that can panic; a poisoned lock is as good as any.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admission(&self) -> MutexGuard<'_, Admission> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(
        &self,
        stop: &AtomicBool,
        handlers: &mut BTreeMap<u16, Handler>,
        ahead: &mut Option<(u16, Ahead)>,
        round: &mut Option<Box<dyn FnMut() + Send>>,
        turn: &mut Option<Turn>,
        meter: Option<&Meter>,
    ) -> Result<(), Error> {
        let mut completions = Vec::new();
        let mut limit = TICK;
        while !stop.load(Ordering::Acquire) {
            completions.clear();
            let cq = |e: remanence_rnic::CqError| Error::Verbs(e.into());
            if let Some(work) = round {
                self.cq.poll(&mut completions, 256).map_err(cq)?;
                work();
            } else {
                self.cq.wait(&mut completions, 256, Some(limit)).map_err(cq)?;
            }
            // What was put off is put off no longer, and there may be no turn to say so.
            let waited = std::mem::replace(&mut limit, TICK);
            // Looking whether there is anything to do is nobody's message; what a turn put off is.
            let metered = meter.filter(|_| !completions.is_empty() || waited < TICK);
            let since = metered.map(|_| Meter::now());
            let mut state = self.lock();
            if let Some((service, look)) = ahead {
                look_ahead(&state, &completions, *service, look);
            }
            for wc in &completions {
                self.completed(&mut state, wc, handlers);
            }
            self.idle(&mut state, handlers);
            if let Some(turn) = turn {
                drop(state);
                let Some(longest) = turn(completions.len()) else { return Ok(()) };
                limit = longest.min(TICK);
                state = self.lock();
            }
            self.notices(&mut state, handlers);
            if state.cut(&self.options.region) {
                // Who asked for the end waits to hear of it.
                limit = Duration::ZERO;
            }
            drop(state);
            if let (Some(meter), Some(since)) = (metered, since) {
                let received = |wc: &&Wc| wc.status == WcStatus::Success && wc.wr_id & RECEIVE != 0;
                meter.add(completions.iter().filter(received).count() as u64, since);
            }
        }
        Ok(())
    }

    fn completed(&self, state: &mut State, wc: &Wc, handlers: &mut BTreeMap<u16, Handler>) {
        let Some(peer) = state.peers.get_mut(&wc.qpn) else { return };
        let region = &self.options.region;
        if wc.status != WcStatus::Success {
            state.remove(wc.qpn, region);
            return;
        }
        if wc.wr_id & RECEIVE == 0 {
            if wc.wr_id != NOBODY {
                peer.link.free.push(wc.wr_id as u32);
            }
            peer.link.push();
            return;
        }
        let ServedSession { responder, link, .. } = peer;
        let imm = (wc.opcode == WcOpcode::RecvRdmaWithImm).then(|| wc.imm.unwrap_or(0));
        let buffers = link.incoming.region().clone();
        let mut world = Live { link, handlers, core: self };
        let mut result = responder.message(wc.byte_len, imm, region, &buffers, &mut world);
        if result.is_ok() && responder.is_pressed() {
            result = responder.idle(region, &buffers, &mut world);
        }
        if result.is_err() {
            // What was said last goes out; then the connection ends, and the client learns of it.
            state.stats.expelled += 1;
            state.remove(wc.qpn, region);
        }
    }

    /// Does what was put off, when nobody waits.
    fn idle(&self, state: &mut State, handlers: &mut BTreeMap<u16, Handler>) {
        let region = &self.options.region;
        let mut gone = Vec::new();
        for (qpn, peer) in &mut state.peers {
            let ServedSession { responder, link, .. } = peer;
            let buffers = link.incoming.region().clone();
            let result = responder.idle(region, &buffers, &mut Live { link, handlers, core: self });
            peer.link.push();
            if result.is_err() || peer.link.failed {
                gone.push(*qpn);
            }
        }
        for qpn in gone {
            state.remove(qpn, region);
        }
    }

    /// Sends what the application has to say.
    fn notices(&self, state: &mut State, handlers: &mut BTreeMap<u16, Handler>) {
        let asked = std::mem::take(&mut state.cutter.lock().notices);
        for (id, body) in asked {
            let Some(peer) = state.peers.values_mut().find(|peer| peer.link.id == id) else { continue };
            let ServedSession { responder, link, .. } = peer;
            // A client that does not look at what it is told needs no more of it.
            if link.unsent.len() < usize::from(self.options.slots) {
                responder.notice(body, &mut Live { link, handlers, core: self });
            }
        }
    }

    fn accept(&self, incoming: Incoming) -> Result<(), Error> {
        let reject =
            |incoming: Incoming, why: &str| Ok(incoming.reject(&Rejection::Sentence(why.into()).emit())?);
        let hello = match Hello::parse(incoming.private_data()) {
            Ok(hello) => hello,
            Err(Stranger::Other) => {
                return reject(incoming, "this is a persistence server, and you are no client of one");
            }
            Err(Stranger::Version(theirs)) => {
                let why = format!(
                    "it speaks version {VERSION} of the protocol and you speak {theirs}; use the same release"
                );
                return reject(incoming, &why);
            }
        };
        let (role, bond) = match self.judge(&incoming, &hello) {
            Verdict::Admit(role, bond) => (role, bond),
            Verdict::Reject(rejection) => return Ok(incoming.reject(&rejection.emit())?),
        };
        let agreed = match hello.declared.map_or(Ok(self.config), |declared| self.config.agree(&declared)) {
            Ok(agreed) => agreed,
            Err(refusal) => return reject(incoming, &refusal.to_string()),
        };
        let (index, id) = {
            let mut state = self.lock();
            let taken = |n: u16| state.peers.values().any(|peer| peer.index == n);
            let Some(index) = (0..self.options.sessions).find(|n| !taken(*n)) else {
                return reject(incoming, "it has as many sessions as it takes; try again later");
            };
            state.next_id += 1;
            (index, state.next_id - 1)
        };
        // Memory is registered and a stamp made durable while others are served. The index stays free meanwhile: only
        // this thread takes one, and whoever had it before is in nobody's hands any more.
        let (stamp, ring, incoming_mr) = self.buffers(index)?;
        let outgoing = Region::anonymous(ring.bytes())?;
        let outgoing = self.pd.reg_mr(&outgoing, Access::LOCAL_WRITE)?;
        let slots = u32::from(ring.slots);
        let caps = QpCaps {
            max_send_wr: 4 * slots + 16,
            max_recv_wr: slots,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: INLINE as u32,
        };
        let qp = self.pd.create_qp(&QpOptions { caps, ..QpOptions::rc(&self.cq) })?;
        let shift = granule_shift(self.data_len);
        let terms = Terms {
            config: agreed,
            data_len: self.data_len,
            ring,
            durable_buffers: self.layout.is_some(),
            stamp,
            shift,
        };
        let welcome = Welcome {
            server: self.config,
            agreed,
            declared: self.declared,
            role,
            guarantee: self.options.region.domain().guarantee(),
            region: Window { rkey: self.memory.rkey().0, addr: self.memory.addr(), len: self.data_len },
            buffers: Window { rkey: incoming_mr.rkey().0, addr: incoming_mr.addr(), len: ring.bytes() },
            slots: ring.slots,
            slot_size: ring.slot_size,
            stamp,
            sentence: self.sentence(),
        };
        // Receives are posted before the peer can know of the QP; INIT is the first state that takes them.
        // What a server has under way itself, which is nothing; its clients have as many FLUSHes and READs as they ask for.
        let attr = ConnectAttr { max_rd_atomic: 1, ..ConnectAttr::default() };
        // Whatever key a reader finds out, it is good for nothing else through this QP.
        let access = if role.may_write() { attr.access } else { Access::REMOTE_READ };
        let attr = ConnectAttr { access, ..attr };
        qp.modify(&remanence_rnic::QpAttr {
            state: Some(remanence_rnic::QpState::Init),
            access: Some(attr.access),
            ..remanence_rnic::QpAttr::default()
        })
        .map_err(remanence_verbs::Error::from)?;
        for n in 0..u64::from(ring.slots) {
            post_recv(&qp, &incoming_mr, &ring, n + 1)?;
        }
        let mut welcome = welcome.emit();
        if let Some(bond) = bond {
            bond.seal(&mut welcome);
        }
        // What arrives from here on finds its session: the serving thread waits for the lock.
        let mut state = self.lock();
        let connection = incoming.accept(&qp, &attr, &welcome)?;
        let link = Link {
            id,
            role,
            connection,
            incoming: incoming_mr,
            ring,
            outgoing,
            free: (0..slots).collect(),
            unsent: VecDeque::new(),
            failed: false,
            grants: state.grants.clone(),
            binds: 0,
        };
        state.stats.sessions += 1;
        state.cutter.lock().live.insert(id);
        state.peers.insert(qp.qpn(), ServedSession { index, responder: Responder::new(terms), link });
        Ok(())
    }

    fn judge(&self, incoming: &Incoming, hello: &Hello) -> Verdict {
        let mut fresh = [0; 32];
        getrandom::fill(&mut fresh).expect("the kernel gives random bytes");
        let request = incoming.request();
        let server = SocketAddr::new(request.path.local.to_ip(), self.listener.port());
        let ends = Ends { client: incoming.peer(), qpn: request.remote_qpn.value(), server };
        self.admission().judge(self.begin.elapsed(), fresh, &ends, hello)
    }

    /// Receive buffers for a session: its stamp is durable when this returns.
    fn buffers(&self, index: u16) -> Result<(u64, Ring, Mr), Error> {
        let mut stamp = [0; 8];
        getrandom::fill(&mut stamp).expect("the kernel gives random bytes");
        let stamp = u64::from_be_bytes(stamp);
        if let Some(layout) = &self.layout {
            let ring = layout.ring(index);
            ring.begin(&self.options.region, stamp).map_err(crate::responder::Fault::Medium)?;
            // A READ in place of a FLUSH reads them.
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ | flush_rights(&self.config);
            let mr = self.pd.reg_mr_at(&self.options.region, ring.first, ring.bytes(), 0, access)?;
            return Ok((stamp, ring, mr));
        }
        let ring = Ring::volatile(self.options.slots, self.options.message);
        let region = Region::anonymous(ring.bytes())?;
        // For this server's RNIC alone: all sessions share a PD, and whoever guesses a key could read what others have sent.
        Ok((stamp, ring, self.pd.reg_mr(&region, Access::LOCAL_WRITE)?))
    }
}

fn add(all: &mut Served, one: Served) {
    all.messages += one.messages;
    all.copies += one.copies;
    all.psyncs += one.psyncs;
    all.acks += one.acks;
}

fn flush_rights(config: &Config) -> Access {
    match config.flush {
        FlushSupport::Read => Access::empty(),
        FlushSupport::Global => Access::FLUSH_GLOBAL,
        FlushSupport::Persistent => Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT,
    }
}

/// The buffer of message `number` is given to the RNIC.
fn post_recv(qp: &Qp, mr: &Mr, ring: &Ring, number: u64) -> Result<(), Error> {
    let at = ring.buffer(number) - ring.first;
    let sge = [mr.sge(at, ring.slot_size)];
    let posted = qp.post_recv(&RecvWr { wr_id: number | RECEIVE, sges: &sge });
    Ok(posted.map_err(remanence_verbs::Error::from)?)
}

impl State {
    /// A session ends. What it left in its buffers is applied: it may have been told that it is durable.
    fn remove(&mut self, qpn: Qpn, region: &Region) {
        let Some(mut peer) = self.peers.remove(&qpn) else { return };
        let buffers = peer.link.incoming.region().clone();
        let nobody =
            &mut EndedSession { session: peer.link.id, role: peer.link.role, grants: self.grants.clone() };
        let _ = peer.responder.settle(region, &buffers, nobody);
        self.grants.take_all(peer.link.id);
        add(&mut self.stats.served, peer.responder.served());
        let _ = peer.link.connection.disconnect();
        let mut sessions = self.cutter.lock();
        sessions.live.remove(&peer.link.id);
        sessions.cut.remove(&peer.link.id);
        sessions.ended += 1;
    }

    /// Ends the sessions whose end was asked for. Returns whether there were any.
    fn cut(&mut self, region: &Region) -> bool {
        let asked = std::mem::take(&mut self.cutter.lock().cut);
        let of = |id| self.peers.iter().find(|(_, peer)| peer.link.id == id).map(|(qpn, _)| *qpn);
        let gone: Vec<Qpn> = asked.into_iter().filter_map(of).collect();
        let any = !gone.is_empty();
        gone.into_iter().for_each(|qpn| self.remove(qpn, region));
        any
    }
}

/// The world of a session that is over.
struct EndedSession {
    session: u64,
    role: Role,
    grants: Grants,
}

impl World for EndedSession {
    fn send(&mut self, _: Answer) {}

    fn repost(&mut self, _: u64) {}

    fn may_write(&mut self, offset: u64, len: u64) -> bool {
        self.role.may_write() && self.grants.covers(self.session, offset, len)
    }

    fn call(&mut self, _: u16, _: &[u8]) -> Result<Vec<u8>, String> {
        Err("the session is over".into())
    }
}

/// Shows the calls of a service that are among what has arrived.
fn look_ahead(state: &State, completions: &[Wc], service: u16, look: &mut Ahead) {
    let received = |wc: &&Wc| wc.status == WcStatus::Success && wc.wr_id & RECEIVE != 0;
    if completions.iter().filter(received).count() < 2 {
        return;
    }
    let (mut before, mut found) = (BTreeMap::<Qpn, u64>::new(), Vec::new());
    for wc in completions.iter().filter(received) {
        let Some(ServedSession { responder, link, .. }) = state.peers.get(&wc.qpn) else { continue };
        let nth = before.entry(wc.qpn).or_default();
        if wc.opcode != WcOpcode::RecvRdmaWithImm
            && let Some((asked, body)) = responder.call_ahead(*nth, wc.byte_len, link.incoming.region())
            && asked == service
        {
            found.push((link.id, link.role, body));
        }
        *nth += 1;
    }
    if found.len() >= 2 {
        let calls =
            found.iter().map(|(session, role, request)| Call { session: *session, role: *role, request });
        look(&calls.collect::<Vec<_>>());
    }
}

struct Live<'a> {
    link: &'a mut Link,
    handlers: &'a mut BTreeMap<u16, Handler>,
    core: &'a Core,
}

impl World for Live<'_> {
    fn send(&mut self, answer: Answer) {
        self.link.unsent.push_back(answer);
        self.link.push();
    }

    fn repost(&mut self, number: u64) {
        let Link { connection, incoming, ring, failed, .. } = &mut *self.link;
        // The buffer of this message is the next one in the ring that the RNIC gets.
        let next = number + u64::from(ring.slots);
        *failed |= post_recv(connection.qp(), incoming, ring, next).is_err();
    }

    fn may_write(&mut self, offset: u64, len: u64) -> bool {
        self.link.role.may_write() && self.link.grants.covers(self.link.id, offset, len)
    }

    fn call(&mut self, service: u16, request: &[u8]) -> Result<Vec<u8>, String> {
        match (service, self.handlers.get_mut(&service)) {
            (SETTLE, _) => Ok(Vec::new()),
            (DESCRIBE, _) => {
                let room = self.link.ring.slot_size as usize - crate::message::ANSWER_HEADER;
                Ok(clipped(&self.core.sentence(), room).to_vec())
            }
            (_, Some(handler)) => handler(&Call { session: self.link.id, role: self.link.role, request }),
            (_, None) => Err(match self.core.options.serves {
                Some(what) => format!(
                    "this server is {what}, which has not what is asked for; check the address and the port"
                ),
                None => format!("the server has no service {service}"),
            }),
        }
    }
}

impl Link {
    /// Binds the windows that were given, as far as there is room. False: not all of them.
    fn bind(&mut self) -> bool {
        while let Some(bind) = self.grants.next_bind(self.id) {
            self.binds = self.binds.wrapping_add(1);
            // Some of them say when they are done, as nothing else may free the queue.
            let signaled = self.binds.is_multiple_of(BINDS);
            let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
            let wr = SendWr { wr_id: NOBODY, op: bind.op, data: Data::Sges(&[]), flags, ud: None };
            match self.connection.qp().post_send(&wr) {
                Ok(()) => {}
                Err(PostError::QueueFull | PostError::InvalidState) => {
                    self.grants.put_back(self.id, bind);
                    return false;
                }
                Err(_) => {
                    self.failed = true;
                    return false;
                }
            }
        }
        true
    }

    /// Sends what waits, as far as there is room.
    fn push(&mut self) {
        // An answer may carry the key of any of them.
        if !self.bind() {
            return;
        }
        while let Some(answer) = self.unsent.front() {
            let bytes = answer.emit();
            let qp = self.connection.qp();
            let posted = if bytes.len() <= INLINE {
                let wr = SendWr {
                    wr_id: NOBODY,
                    op: SendOp::Send,
                    data: Data::Inline(&bytes),
                    flags: SendFlags::empty(),
                    ud: None,
                };
                qp.post_send(&wr)
            } else {
                let Some(slot) = self.free.pop() else { return };
                let at = u64::from(slot) * u64::from(self.ring.slot_size);
                self.outgoing.region().write(at, &bytes);
                let sge = [self.outgoing.sge(at, bytes.len() as u32)];
                let wr = SendWr {
                    wr_id: slot.into(),
                    op: SendOp::Send,
                    data: Data::Sges(&sge),
                    flags: SendFlags::SIGNALED,
                    ud: None,
                };
                let posted = qp.post_send(&wr);
                if posted.is_err() {
                    self.free.push(slot);
                }
                posted
            };
            match posted {
                Ok(()) => drop(self.unsent.pop_front()),
                // Before the connection is established, and when the queue is full: soon again.
                Err(PostError::QueueFull | PostError::InvalidState) => return,
                Err(_) => {
                    self.failed = true;
                    return;
                }
            }
        }
    }
}
