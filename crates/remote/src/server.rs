//! The responder's side, live: a region is exported, and the responder's steps of recipes are served.
//!
//! [`Server::bind`] recovers before it listens. [`Server::run`] serves on the calling thread, and accepts on another one;
//! one-sided operations need neither, the device serves them. What is decided about a message is decided in
//! [`crate::responder`].

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use remanence_auth::{Role, Token, may_listen};
use remanence_persist::Config;
use remanence_persist::taxonomy::{Buffers, Domain, FlushSupport, Order};
use remanence_pmem::Region;
use remanence_rnic::Access;
use remanence_service::Meter;
use remanence_service::server::{self as floor, Bounds, Control, SessionId, Stop};
use remanence_verbs::{Context, Mr};

use crate::admission::Admission;
use crate::error::Error;
use crate::grants::Grants;
use crate::hello::{SLOT_SIZE_MAX, SLOTS_MAX};
use crate::message::BY_IMMEDIATE;
use crate::responder::Served;
use crate::ring::{Layout, Recovered, recover};
use crate::serving::{Entrance, Serving};

/// Connection requests that wait for an answer at most.
const BACKLOG: usize = 16;

/// How a server is made.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    context: Context,
    pub(crate) region: Region,
    port: u16,
    declared: Option<Config>,
    ddio: Option<bool>,
    buffers: Buffers,
    sessions: u16,
    each: Option<u16>,
    pub(crate) slots: u16,
    pub(crate) message: u32,
    relaxed: bool,
    token: Option<Token>,
    readers: Option<Token>,
    insecure: bool,
    guarded: bool,
    no_buffers: bool,
    pub(crate) immediates: bool,
    pub(crate) serves: Option<&'static str>,
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
            each: None,
            slots: 64,
            message: 4096,
            relaxed: false,
            token: None,
            readers: None,
            insecure: false,
            guarded: false,
            no_buffers: false,
            immediates: false,
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

    /// Sessions at a time. One address may have all of them, and others a quarter more, unless [`sessions_each`](Self::sessions_each)
    /// says how many one address may have, or the buffers are in the region, where there are so many and no more.
    #[must_use]
    pub const fn sessions(mut self, count: u16) -> Self {
        self.sessions = count;
        self
    }

    /// Sessions at a time that come from one address, of [all](Self::sessions).
    #[must_use]
    pub const fn sessions_each(mut self, count: u16) -> Self {
        self.each = Some(count);
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

    /// There are no receive buffers in this region and never were: its last bytes are the service's, and are not looked at. Without that,
    /// what lies there is taken for what a crash left, and applied, if it looks like it.
    #[must_use]
    pub const fn without_buffers(mut self) -> Self {
        self.no_buffers = true;
        self
    }

    /// Lets a client that asks for it ([`Session::call_by_immediate`](crate::Session::call_by_immediate)) bring its calls by WRITE
    /// with immediate, into receive buffers of its own session, which nobody else can write. Others call by SEND as ever.
    #[must_use]
    pub const fn calls_by_immediate(mut self) -> Self {
        self.immediates = true;
        self
    }

    /// Bytes of the region that are left for the service, from its start.
    ///
    /// # Errors
    /// Receive buffers are to lie in the region, and it is too small for them.
    pub fn data_len(&self) -> Result<u64, Error> {
        let len = self.region.len();
        match self.buffers {
            Buffers::Pm => Ok(Layout::at_the_end(len, self.sessions, self.slots, self.message)?.data_len),
            Buffers::Dram => Ok(len),
        }
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
        if self.buffers == Buffers::Pm && self.no_buffers {
            return argument("receive buffers cannot lie in a region that is said to have none".into());
        }
        if self.buffers == Buffers::Pm && self.immediates {
            return argument(
                "recovery applies what lies in persistent receive buffers, so no client may write there; keep them in DRAM where \
                 calls come by WRITE with immediate"
                    .into(),
            );
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

/// A call that is answered by [`SessionControl::answer`], once.
#[derive(Debug)]
#[must_use = "its client waits for the answer"]
pub struct Unanswered {
    pub(crate) session: u64,
    pub(crate) number: u64,
    pub(crate) answer_max: usize,
}

impl Unanswered {
    /// Bytes that the answer can have.
    #[must_use]
    pub const fn answer_max(&self) -> usize {
        self.answer_max
    }
}

type Now = Box<dyn FnMut(&Call<'_>) -> Result<Vec<u8>, String> + Send>;
type Later = Box<dyn FnMut(&Call<'_>, Unanswered) + Send>;

/// What answers the calls of a service.
pub(crate) enum Handler {
    Now(Now),
    Later(Later),
}

/// What another thread, or a handler, has the serving thread tell a client. The floor carries it as bytes.
pub(crate) enum Word {
    Notice(Vec<u8>),
    /// To the call in the message with this number.
    Answer(u64, Result<Vec<u8>, String>),
}

impl Word {
    fn emit(self) -> Vec<u8> {
        let (kind, number, body) = match self {
            Self::Notice(body) => (0, 0, body),
            Self::Answer(number, Ok(body)) => (1, number, body),
            Self::Answer(number, Err(why)) => (2, number, why.into_bytes()),
        };
        let mut bytes = body;
        bytes.extend_from_slice(&u64::to_le_bytes(number));
        bytes.push(kind);
        bytes
    }

    pub(crate) fn parse(mut bytes: Vec<u8>) -> Option<Self> {
        let kind = bytes.pop()?;
        let (_, number) = bytes.split_last_chunk()?;
        let number = u64::from_le_bytes(*number);
        bytes.truncate(bytes.len() - size_of::<u64>());
        match kind {
            0 => Some(Self::Notice(bytes)),
            1 => Some(Self::Answer(number, Ok(bytes))),
            _ => String::from_utf8(bytes).ok().map(|why| Self::Answer(number, Err(why))),
        }
    }
}

/// Sees calls that have come together, before any of them is answered.
pub(crate) type Ahead = Box<dyn FnMut(&[Call<'_>]) + Send>;

/// What the serving thread does besides messages: it is told how much arrived, and says how long it can do without.
pub(crate) type TurnWork = Box<dyn FnMut(usize) -> Option<Duration> + Send>;

/// Reaches sessions of a server, to end one or to tell its client something: from a handler of its calls, which cannot do
/// it at once as it is called for one of them, or from another thread.
#[derive(Clone, Debug, Default)]
pub struct SessionControl(Control);

impl SessionControl {
    /// Asks for the end of a session. It has come when [`is_live`](Self::is_live) says so.
    pub fn cut(&self, session: u64) {
        self.0.end(SessionId(session));
    }

    /// Whether a session goes on. If it does not, everything that it brought is in place, and nothing of it can come any
    /// more: its QP is in the error state.
    #[must_use]
    pub fn is_live(&self, session: u64) -> bool {
        self.0.is_live(SessionId(session))
    }

    /// How many sessions have ended so far.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.0.counters().ended()
    }

    /// Tells a client something that it did not ask for: [`Session::notice`](crate::Session::notice). It goes out at once,
    /// or when the serving thread has done what it is about. Nobody learns whether it arrived; a client that does not look for
    /// a long time gets no more, and one that is gone is noticed so.
    pub fn notify(&self, session: u64, body: Vec<u8>) {
        self.0.notify(SessionId(session), Word::Notice(body).emit());
    }

    /// Answers a call that was not answered [at once](Server::on_call_later), or refuses it with a sentence. Nothing becomes of it if its
    /// session is over.
    pub fn answer(&self, call: Unanswered, answer: Result<Vec<u8>, String>) {
        self.0.notify(SessionId(call.session), Word::Answer(call.number, answer).emit());
    }

    /// Asks the serving thread for a turn ([`Server::on_turn`]) now.
    pub fn wake(&self) {
        self.0.wake();
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

/// What both threads of a server use.
pub(crate) struct Core {
    pub(crate) options: ServerOptions,
    pub(crate) config: Config,
    pub(crate) declared: bool,
    pub(crate) layout: Option<Layout>,
    pub(crate) data_len: u64,
    recovered: Recovered,
    pub(crate) floor: floor::Server,
    pub(crate) memory: Mr,
    admission: Mutex<Admission>,
    pub(crate) begin: Instant,
    pub(crate) grants: Grants,
}

/// What clients may have. Whoever has all clients on one host counts on as many sessions as he asked for, so that one address may have
/// them all. For that it shuts nobody else out, there are a quarter more, which others alone can have. Receive buffers that lie in the
/// region are as many as its layout has, which may be older than this server.
fn bounds(sessions: u16, each: Option<u16>, in_region: bool) -> Bounds {
    let sessions = u32::from(sessions);
    // A server for one client is for one.
    let more = if each.is_some() || in_region || sessions == 1 { 0 } else { sessions.div_ceil(4) };
    Bounds { sessions: sessions + more, each: each.map_or(sessions, u32::from), bytes: u64::MAX }
}

/// What the application does in a server.
#[derive(Default)]
pub(crate) struct Application {
    pub(crate) handlers: BTreeMap<u16, Handler>,
    pub(crate) ahead: Option<(u16, Ahead)>,
    pub(crate) round: Option<Box<dyn FnMut() + Send>>,
    pub(crate) spins: bool,
    pub(crate) turn: Option<TurnWork>,
}

/// The responder: exports a region, serves the responder's steps. Who has a session may read and write the region.
pub struct Server {
    core: Core,
    application: Application,
    meter: Option<Meter>,
    served: Served,
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
        let (found, recovered) = match options.no_buffers {
            true => (None, Recovered::default()),
            false => (Layout::find(region)?, recover(region)?),
        };
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
        let bounds = bounds(options.sessions, options.each, layout.is_some());
        let mut floor = floor::Server::bind(
            &options.context,
            floor::Options {
                port: options.port,
                backlog: BACKLOG,
                message: options.message,
                bounds,
                quiet: None,
            },
        )?;
        floor.rests_on(region);
        let pd = floor.pd();
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_READ | flush_rights(&config);
        access |= match options.guarded {
            true => Access::MW_BIND,
            false => Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
        };
        if config.order == Order::Relaxed {
            access |= Access::RELAXED_ORDERING;
        }
        let memory = pd.reg_mr_at(region, 0, data_len, 0, access)?;
        let grants = Grants::new(pd, &memory, flush_rights(&config), options.guarded);
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
            floor,
            memory,
            admission,
            begin: Instant::now(),
            grants,
        };
        Ok(Self { core, application: Application::default(), meter: None, served: Served::default() })
    }

    /// Where clients connect.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.core.floor.addr()
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
    /// For the services from 65533 on, which are the server's own.
    pub fn on_call(
        &mut self,
        service: u16,
        handler: impl FnMut(&Call<'_>) -> Result<Vec<u8>, String> + Send + 'static,
    ) {
        assert!(service < BY_IMMEDIATE, "service {service} is the server's own");
        self.application.handlers.insert(service, Handler::Now(Box::new(handler)));
    }

    /// As [`on_call`](Self::on_call) for what cannot be answered at once: it is later, by [`SessionControl::answer`], and other clients are
    /// served meanwhile. A client is told its answers in the order of its calls.
    ///
    /// # Panics
    /// For the services from 65533 on, which are the server's own.
    pub fn on_call_later(
        &mut self,
        service: u16,
        handler: impl FnMut(&Call<'_>, Unanswered) + Send + 'static,
    ) {
        assert!(service < BY_IMMEDIATE, "service {service} is the server's own");
        self.application.handlers.insert(service, Handler::Later(Box::new(handler)));
    }

    /// Shows the calls of a service that have come together, if they are several, before the first of them is answered: what each
    /// would wait for alone can be done for all of them. Not every call is shown, and one that is may never be made.
    ///
    /// # Panics
    /// For the services from 65533 on, which are the server's own.
    pub fn on_calls(&mut self, service: u16, look: impl FnMut(&[Call<'_>]) + Send + 'static) {
        assert!(service < BY_IMMEDIATE, "service {service} is the server's own");
        self.application.ahead = Some((service, Box::new(look)));
    }

    /// What sessions of a [guarded](ServerOptions::guarded) server may write.
    #[must_use]
    pub fn grants(&self) -> Grants {
        self.core.grants.clone()
    }

    /// What ends sessions.
    #[must_use]
    pub fn cutter(&self) -> SessionControl {
        SessionControl(self.core.floor.control())
    }

    /// Other work of the serving thread: called again and again, each time before it looks at what has come, and serves all of
    /// that. Who comes during a call waits until its end. This is what a busy application is to those who need its help; with it
    /// the thread never sleeps.
    pub fn on_round(&mut self, work: impl FnMut() + Send + 'static) {
        self.application.round = Some(Box::new(work));
    }

    /// The serving thread never sleeps: it looks whether something has come, again and again. The lowest latency, for a core.
    pub fn spin(&mut self) {
        self.application.spins = true;
    }

    /// What the serving thread does besides messages, unlike [`on_round`](Self::on_round) without keeping a core busy: called
    /// after each lot of messages with their number, when somebody [asks](SessionControl::wake) for it, and again when the time
    /// has passed that it returned. No message is served meanwhile. If it returns `None`, [`run`](Self::run) ends.
    pub fn on_turn(&mut self, work: impl FnMut(usize) -> Option<Duration> + Send + 'static) {
        self.application.turn = Some(Box::new(work));
    }

    /// From here on counts messages, and the CPU time that they take.
    pub fn meter(&mut self) -> Meter {
        self.meter.get_or_insert_default().clone()
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let control = self.core.floor.control();
        Stats {
            sessions: control.counters().sessions(),
            expelled: control.counters().expelled(),
            wrong_tokens: self.core.admission().wrong(),
            served: self.served,
        }
    }

    /// Serves until it is stopped, which it hears of at once. Then it sends what was answered, and ends all sessions.
    ///
    /// # Errors
    /// The device is gone; the medium failed.
    pub fn run(&mut self, stop: &Stop) -> Result<Stats, Error> {
        let Self { core, application, meter, served } = self;
        let mut serving = Serving::new(core, application, meter.as_ref());
        let result = core.floor.run(&mut serving, &mut Entrance(core), stop);
        *served = serving.served();
        result?;
        Ok(self.stats())
    }
}

impl Core {
    pub(crate) fn sentence(&self) -> String {
        let word = if self.declared { "declared" } else { "detected" };
        let ddio = match self.options.ddio {
            None if self.options.declared.is_none() => "; DDIO is assumed on, as it cannot be detected",
            _ => "",
        };
        format!("{}; configuration {} ({word}){ddio}", self.options.region.domain(), self.config)
    }

    /// The policy is whole between any two statements that can panic.
    pub(crate) fn admission(&self) -> MutexGuard<'_, Admission> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn flush_rights(config: &Config) -> Access {
    match config.flush {
        FlushSupport::Read => Access::empty(),
        FlushSupport::Global => Access::FLUSH_GLOBAL,
        FlushSupport::Persistent => Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_may_have_as_many_sessions_as_were_asked_for_and_there_is_room_for_others() {
        let of = |sessions, each, in_region| {
            let bounds = bounds(sessions, each, in_region);
            (bounds.each, bounds.sessions)
        };
        assert_eq!(of(64, None, false), (64, 80));
        assert_eq!((of(1, None, false), of(2, None, false)), ((1, 1), (2, 3)));
        assert_eq!(of(u16::MAX, None, false), (65535, 65535 + 16384));
        // Who says how many one address may have, has said how many there are.
        assert_eq!(of(64, Some(16), false), (16, 64));
        assert_eq!(of(64, None, true), (64, 64));
    }
}
