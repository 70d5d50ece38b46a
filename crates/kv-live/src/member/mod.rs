//! A member of a store on several servers, live: its log, its image, what clients read of it, and while it is the primary
//! the store.
//!
//! A member serves two things always: its *log*, which other members write, and its *promises*, where clients read one-sidedly
//! whom it has promised that log to, and ask who is the primary. They have tokens of their own, as a client must not be able
//! to write a log. Who is the primary serves a third, the *store*. Members tell each other all the time what they are
//! ([`link`]); who hears of no primary for a while takes over ([`lead`]). [`Takeover`](remanence_coord::takeover::Takeover) decides when
//! somebody tries: the clock, the lock and the thread that waits for its deadline are here ([`node`], [`take_part`]). The time decides
//! nothing else: [`remanence_kv::replica`] decides who may, by epochs.

mod arrivals;
mod connection;
mod lead;
mod link;
mod node;
mod promise;
pub(crate) mod wire;

use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use remanence_persist::Config;
use remanence_persist::taxonomy::Domain;
use remanence_pmem::image::Signature;
use remanence_pmem::{FileOptions, PersistenceDomain, Region};
use remanence_remote::{Reactor, Stop, Token};
use remanence_remotelog::Mode as LogMode;
use remanence_remotelog::format::superblock as log_format;
use remanence_remotelog::store::Store;
use remanence_remotelog::{LogServer, New as NewLog, Part};
use remanence_verbs::Context;

use super::options::{Common, common_options};
use super::server::remove_if_new;
use super::{Error, Metrics, ServerOptions};
use connection::MemberConnection;
pub(super) use lead::Upkeep;
use link::MemberConnector;
pub(crate) use link::{describe, plain};
use node::{Back, Node, Parts};
use promise::PromiseServer;
use remanence_coord::takeover::Input;
pub use remanence_coord::takeover::Role;
use remanence_kv::format::superblock::{FORMAT as STORE, file_options};
use remanence_kv::format::{Geometry, Superblock, SuperblockError};
pub use remanence_kv::replica::check::Held;
use remanence_kv::replica::keeper::{self, KeeperError, LEDGER_LEN, Unfit, emit_told, parse_order};
use remanence_kv::replica::{Driver, Keeper, Mirror};
pub use wire::{MemberStats, Said};

/// The working medium of a primary.
pub(super) type Ships = Mirror<Region, Driver<MemberConnection>>;

/// Services of a member: what it tells clients of itself, what members tell each other, what a primary wants of an image.
pub(super) const MEMBERS: u16 = 5;
const BEATS: u16 = 6;
const ORDERS: u16 = 7;

/// Receive buffers of a member's log, and bytes of each: a block of an image fits.
const SLOTS: u16 = 16;
const SLOT: u32 = 32 << 10;
/// The longest record, bytes.
const RECORD_MAX: u64 = 128 << 10;
/// How long a primary may be silent.
const NOTICE: Duration = Duration::from_millis(200);
/// Of a log: a fraction of the store, and bounds.
const LOG_MIN: u64 = 1 << 20;
const LOG_MAX: u64 = 1 << 30;

/// Where a member keeps what it has.
#[derive(Clone, Debug)]
enum Storage {
    Directory(PathBuf),
}

/// Told whenever the member's part changes.
type Teller = Arc<dyn Fn(&MemberStats) + Send + Sync>;

/// How a member is made.
#[derive(Clone)]
pub struct MemberOptions {
    place: Storage,
    members: Vec<(String, SocketAddr)>,
    common: Common,
    log: Option<u64>,
    acks: Option<u16>,
    notice: Duration,
    members_token: Option<Token>,
    teller: Option<Teller>,
}

impl std::fmt::Debug for MemberOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemberOptions")
            .field("place", &self.place)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

impl MemberOptions {
    /// Of a member that keeps its log and its image in this directory, which is made if it is not there. `members`: all of
    /// them, this one included, by the names that all of them are started with, and where these are.
    #[must_use]
    pub fn directory(path: impl Into<PathBuf>, members: Vec<(String, SocketAddr)>) -> Self {
        Self {
            place: Storage::Directory(path.into()),
            members,
            common: Common::NEW,
            log: None,
            acks: None,
            notice: NOTICE,
            members_token: None,
            teller: None,
        }
    }

    /// Bytes of the store; 256 MiB if nothing is said. What is there keeps its size.
    #[must_use]
    pub const fn size(mut self, bytes: u64) -> Self {
        self.common.size = Some(bytes);
        self
    }

    common_options!();

    /// Bytes of the log; a fourth of the store if nothing is said, 1 MiB at least.
    #[must_use]
    pub const fn log(mut self, bytes: u64) -> Self {
        self.log = Some(bytes);
        self
    }

    /// How many members must have a change durably before it is acknowledged; more than half of them if nothing is said. It
    /// is fixed when the store is made.
    #[must_use]
    pub const fn acks(mut self, count: u16) -> Self {
        self.acks = Some(count);
        self
    }

    /// A member that has been silent for so long is taken for dead: if it was the primary, another one takes over; so it does
    /// when the primary's medium has not answered for five times as long. 200 ms if nothing is said. Nothing depends on it for
    /// being right, only for how long others wait; who was suspected wrongly is given more the next time.
    #[must_use]
    pub const fn notice(mut self, time: Duration) -> Self {
        self.notice = time;
        self
    }

    /// Admits only clients that prove to have the first of these tokens, and only members that prove to have the second: they
    /// write each other's logs, which no client may.
    #[must_use]
    pub fn tokens(mut self, clients: Token, members: Token) -> Self {
        (self.common.token, self.members_token) = (Some(clients), Some(members));
        self
    }

    /// Calls somebody whenever this member begins or ceases to do something, with what it says of itself then.
    #[must_use]
    pub fn on_change(mut self, tell: impl Fn(&MemberStats) + Send + Sync + 'static) -> Self {
        self.teller = Some(Arc::new(tell));
        self
    }

    fn acks_of(&self, members: usize) -> usize {
        self.acks.map_or(members / 2 + 1, usize::from)
    }

    fn log_len(&self, image: u64) -> u64 {
        self.log.unwrap_or(image / 4).clamp(LOG_MIN, LOG_MAX)
    }

    fn tell(&self, node: &Node) {
        if let Some(tell) = &self.teller {
            tell(&node.said());
        }
    }

    /// Of the store that a primary serves.
    fn store(&self, working: Region) -> ServerOptions {
        ServerOptions::region(working).configuration(config()).common(self.common.clone())
    }

    fn check(&self, own: SocketAddr) -> Result<usize, Error> {
        let argument = |text: String| Err(Error::Argument(text));
        let names: Vec<&str> = self.members.iter().map(|(name, _)| name.as_str()).collect();
        if let Some(twice) = (1..names.len()).find(|n| {
            self.members[..*n].iter().any(|(name, addr)| name == names[*n] || *addr == self.members[*n].1)
        }) {
            return argument(format!(
                "{} is named twice among the members; name each of them once",
                names[twice]
            ));
        }
        if !(2..=16).contains(&names.len()) {
            return argument(format!("a store lies on 2 to 16 members, not on {}", names.len()));
        }
        let acks = self.acks_of(names.len());
        if !(1..=names.len()).contains(&acks) {
            return argument(format!(
                "1 to {} of {} members can acknowledge, not {acks}",
                names.len(),
                names.len()
            ));
        }
        let Some(who) = self.members.iter().position(|(_, addr)| *addr == own) else {
            return argument(format!(
                "this member listens on {own}, which is not among the members {}; name it there, and start the others with the \
                 same list",
                names.join(",")
            ));
        };
        if self.notice < Duration::from_millis(100) {
            return argument("a member may be silent for 100 ms at least before it is taken for dead".into());
        }
        Ok(who)
    }
}

/// Memory of the process: what a member exports to clients, and what a primary works on.
fn config() -> Config {
    Config::software(Domain::Process)
}

/// A member that is served.
pub struct Member {
    node: Arc<Node>,
    connector: MemberConnector,
    options: MemberOptions,
    log: LogServer,
    promises: PromiseServer,
    new: bool,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").field("name", &self.node.own_name()).finish_non_exhaustive()
    }
}

/// What a member is, for other threads and after its end. Clones look at the same one.
#[derive(Clone, Debug)]
pub struct MemberMetrics(Arc<Node>);

impl MemberMetrics {
    /// As it is now.
    #[must_use]
    pub fn read(&self) -> MemberStats {
        self.0.said()
    }

    /// Of the store, while this member serves it.
    #[must_use]
    pub fn store(&self) -> Option<Metrics> {
        self.0.lock().store.clone()
    }
}

/// Makes a directory, and those that it lies in, each durably. Returns whose names were made durable.
fn make_directory(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let missing: Vec<PathBuf> = path
        .ancestors()
        .take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists())
        .map(Into::into)
        .collect();
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    for dir in &missing {
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::File::open(parent)?.sync_all()?;
    }
    Ok(missing)
}

impl Member {
    /// Recovers this member's log and image, or makes them, and listens at `port` of the device's address, which must be one
    /// of the members'. Nothing is served before [`run`](Self::run).
    ///
    /// # Errors
    /// One sentence that says what to do: this is none of the members, the directory has something else or is in use, the
    /// port is taken.
    pub fn bind(context: &Context, port: u16, options: MemberOptions) -> Result<Self, Error> {
        let mut opened = Vec::new();
        let bound = Self::bind_over(context, port, options, &mut opened);
        if bound.is_err() {
            opened.iter().for_each(remove_if_new);
        }
        bound
    }

    fn bind_over(
        context: &Context,
        port: u16,
        options: MemberOptions,
        opened: &mut Vec<Region>,
    ) -> Result<Self, Error> {
        let own = SocketAddr::new(context.link_caps().addresses[0], port);
        let who = options.check(own)?;
        let Storage::Directory(path) = &options.place;
        let io = |what: &str, e: &std::io::Error| Error::Argument(format!("{what}: {e}"));
        make_directory(path).map_err(|e| io(&path.display().to_string(), &e))?;
        let mut open = |name: &str, len: u64, file: FileOptions| -> Result<Region, Error> {
            let path = path.join(name);
            let mut file = file.journal(options.common.journal).only_durable(true);
            if let Some(domain) = options.common.declared {
                file = file.declare(domain);
            }
            if !path.exists() {
                file = file.create(len);
            }
            let region = file.open(path)?;
            opened.push(region.clone());
            Ok(region)
        };
        let image = open("image", options.common.size.unwrap_or(256 << 20), file_options())?;
        if let Some(asked) = options.common.size.filter(|asked| *asked > image.len()) {
            // One that is shorter than it was made is none that could be told to grow.
            if let Err(cut @ SuperblockError::CutOff { .. }) = Superblock::read(&image) {
                return Err(Error::Argument(KeeperError::OtherImage(Unfit::Superblock(cut)).to_string()));
            }
            return Err(Error::Argument(format!(
                "the image in {} has {} bytes, and a store on several members does not grow to {asked}: `rem kv dump` it, and \
                 `rem kv load` it into one that is made larger",
                path.display(),
                image.len()
            )));
        }
        let log = log_format::file_options().journal_note(log_format::JOURNAL_NOTE, keeper::ANEW);
        let log = open("log", options.log_len(image.len()), log)?;
        let ledger = keeper::SIGNATURE.file_options(|head, _| keeper::SIGNATURE.image(head, LEDGER_LEN));
        let ledger = open("ledger", LEDGER_LEN, ledger)?;
        let connector = MemberConnector {
            context: context.clone(),
            reactor: Reactor::new(context).map_err(remanence_remote::Error::from)?,
            clients: options.common.token.clone(),
            members: options.members_token.clone(),
        };
        let mut served = remanence_remote::ServerOptions::new(context, log.clone(), 0)
            .serves("the log of a member of a key-value store")
            .sessions(4 * options.members.len() as u16 + 4)
            .messages(SLOTS, SLOT);
        if let Some(token) = &options.members_token {
            served = served.token(token.clone());
        }
        if options.common.insecure {
            served = served.insecure();
        }
        let mut drawn = [0; 32];
        getrandom::fill(&mut drawn)
            .map_err(|e| Error::Argument(format!("the system gives no random bytes: {e}")))?;
        let (life, random) = drawn.split_first_chunk().expect("eight bytes and 24");
        let random = random.try_into().expect("24 bytes");
        let new_log = NewLog { mode: LogMode::Singleton, segment: None, random };
        let mut log = LogServer::bind(served, &log, &new_log)
            .map_err(|e| Error::Argument(format!("the log of this member is not served: {e}")))?;
        let (payload_max, made) =
            log.own().with(|store| (store.superblock().geometry.payload_max(), *store.state()));
        if let Some(acks) = options.acks.filter(|acks| made.acks > 0 && *acks != made.acks) {
            return Err(Error::Argument(format!(
                "this store acknowledges what {} of its members have, as it was made, and was to do so with {acks}; leave that out, or \
                 `rem kv dump` the store and `rem kv load` it into another one",
                made.acks
            )));
        }
        let (keeper, new) = log.own().with(|store| made_or_left(image, ledger, store))?;
        let mut promises = PromiseServer::bind(context, port, &options)?;
        let node = Node::new(Parts {
            names: options.members.iter().map(|(name, _)| name.clone()).collect(),
            addrs: options.members.iter().map(|(_, addr)| *addr).collect(),
            who,
            log: log.own(),
            keeper,
            record_max: payload_max.min(RECORD_MAX) as usize,
            log_port: log.addr().port(),
            // Nobody's life is 0.
            life: u64::from_le_bytes(*life) | 1,
            acks: options.acks_of(options.members.len()),
            survives: log.sentence(),
            log_survives: log.config().domain.survives(),
            notice: options.notice,
        });
        promises.watch(&log.own(), &node);
        let obeying = Arc::clone(&node);
        log.on_call(ORDERS, move |call| {
            let (epoch, order) = parse_order(call.request).ok_or("the order means nothing")?;
            Ok(emit_told(&obeying.obey_other(epoch, &order)))
        });
        let hearing = Arc::clone(&node);
        log.on_call(BEATS, move |call| {
            match MemberStats::parse(call.request) {
                Some(Ok(said)) => hearing.heard(None, said),
                _ => return Err("the call means nothing; use the same release everywhere".to_owned()),
            }
            Ok(hearing.said().emit())
        });
        let asked = Arc::clone(&node);
        promises.on_call(move || asked.said().emit());
        Ok(Self { node, connector, options, log, promises, new })
    }

    /// Where clients connect.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.promises.addr()
    }

    /// It has never been a member before.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        self.new
    }

    /// What it is and which failures what it has survives, in a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        self.node.survives.clone()
    }

    /// What acknowledged data survives, in few words.
    #[must_use]
    pub fn summary(&self) -> String {
        self.node.image.domain().summary()
    }

    #[cfg(test)]
    const fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// What it is, for other threads.
    #[must_use]
    pub fn metrics(&self) -> MemberMetrics {
        MemberMetrics(Arc::clone(&self.node))
    }

    /// Is a member until it is asked to stop, which it hears of at once.
    ///
    /// # Errors
    /// The device is gone, the log's medium failed, or this is no member of the store that the others serve.
    pub fn run(&mut self, stop: &Stop) -> Result<MemberStats, Error> {
        let Self { node, connector, options, log, promises, .. } = self;
        let (node, connector, options) = (&*node, &*connector, &*options);
        let over = &Stop::new();
        let ran = std::thread::scope(|scope| {
            let mut threads = vec![scope.spawn(move || {
                let _noticed = node.noticed("the thread that serves this member's log");
                // Without its log it is no member.
                if let Err(error) = log.run(over) {
                    node.give_up(&format!("the log of this member: {error}"));
                }
            })];
            threads.push(scope.spawn(move || {
                let _noticed = node.noticed("the thread that serves this member's promises");
                if let Err(error) = promises.run(over) {
                    node.give_up(&error);
                }
            }));
            for at in (0..node.names.len()).filter(|at| *at != node.who) {
                threads.push(scope.spawn(move || {
                    let _noticed = node.noticed("the thread that talks to another member");
                    connector.keep(node, at);
                }));
            }
            let ends = Ends { node, stop: over };
            let ran = take_part(node, connector, options, stop);
            drop(ends);
            // Why one of them has panicked the member says itself.
            threads.into_iter().for_each(|thread| drop(thread.join()));
            ran
        });
        ran.map(|()| node.said())
    }
}

/// What ends the other threads, also if this one panics, which somebody else's function may do that it calls: else the member would
/// neither go on nor end.
struct Ends<'a> {
    node: &'a Node,
    stop: &'a Stop,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.stop.ask();
        self.node.lock().over = true;
        self.node.notify();
    }
}

/// Does what this member's [`Takeover`](remanence_coord::takeover::Takeover) says, and gives it its time.
fn take_part(
    node: &Arc<Node>,
    connector: &MemberConnector,
    options: &MemberOptions,
    stop: &Stop,
) -> Result<(), Error> {
    let ending = &Stop::new();
    let waking = Arc::clone(node);
    let _wakes = stop.wakes(move || waking.stir_part());
    std::thread::scope(|scope| {
        let ends = Ends { node, stop: ending };
        let (mut told, mut trouble) = (None, None);
        let mut leading: Option<ScopedJoinHandle<'_, ()>> = None;
        let taken_part = loop {
            if stop.is_asked() {
                break Ok(());
            }
            let turn = node.turn();
            if let Some(why) = turn.fatal {
                options.tell(node);
                break Err(Error::Argument(why));
            }
            // If it has panicked, that is why this member ends.
            leading.take_if(|leading| leading.is_finished()).map(ScopedJoinHandle::join);
            if turn.is_to_lead {
                leading = Some(scope.spawn(move || {
                    let _noticed = node.noticed("the thread that serves the store");
                    lead(node, connector, options, ending);
                }));
                told = None;
                continue;
            }
            // Whoever leads tells that itself.
            if matches!(turn.role, Role::TakingOver | Role::Primary) {
                continue;
            }
            if turn.is_served {
                // Why this one could not is no news.
                node.lock().why.clear();
            }
            // Its image does not follow any more, or does again.
            let is_other = trouble.as_ref().is_some_and(|before| *before != turn.trouble);
            trouble = Some(turn.trouble);
            if told.replace(turn.role) != Some(turn.role) || is_other {
                options.tell(node);
            }
            if let Some(obstacle) = turn.obstacle.filter(|_| !turn.is_served) {
                let why = lead::explain(node, obstacle);
                let is_other = std::mem::replace(&mut node.lock().why, why.clone()) != why;
                if is_other {
                    options.tell(node);
                }
            }
        };
        drop(ends);
        leading.map(ScopedJoinHandle::join);
        taken_part
    })
}

/// Tries to lead, serves if that comes about, and is one of the others again.
fn lead(node: &Arc<Node>, connector: &MemberConnector, options: &MemberOptions, ending: &Stop) {
    let led = lead::lead(node, connector, options, ending);
    // Whom its log is promised to by now is no news.
    node.seen();
    let mut state = node.lock();
    state.behind.clear();
    (state.store_port, state.store, state.back, state.rebuilding) = (0, None, Back::default(), None);
    state.lost.clear();
    state.joining.clear();
    if let Err(error) = &led {
        state.why = error.to_string();
    }
    state.happens(node.now(), Input::Ended);
    node.stir(state);
}

/// The image and its ledger, new or as they were left.
fn made_or_left(
    image: Region,
    ledger: Region,
    log: &mut Store<Part>,
) -> Result<(Keeper<Region>, bool), Error> {
    let failed = |e: keeper::KeeperError| Error::Argument(e.to_string());
    let is_blank = |signature: &Signature, medium| signature.is_blank(&signature.read(medium));
    // Before its first order a member has no record of anything: the image is what a store is before the first record.
    if is_blank(&keeper::SIGNATURE, &ledger) && is_blank(&STORE.signature, &image) {
        return Ok((Keeper::create(image, ledger).map_err(failed)?, true));
    }
    Ok((Keeper::open(image, ledger, log).map_err(failed)?, false))
}

#[cfg(test)]
mod tests {
    use remanence_remotelog::Epoch;
    use remanence_remotelog::proto::Request;
    use remanence_verbs::Options;

    use super::*;
    use remanence_kv::replica::{ImageReply, Order};

    #[test]
    fn an_image_that_is_shown_to_clients_follows_nobody_else() {
        let directory = tempfile::tempdir().expect("a directory");
        let [a, b, c, d] = std::process::id().to_be_bytes();
        let ip = std::net::Ipv4Addr::new(127, (a ^ b) | 64, c, d.clamp(1, 254));
        let context = Context::open(Options::udp(ip.into())).expect("a device");
        let own = SocketAddr::new(ip.into(), 7471);
        let names = [own, SocketAddr::new(ip.into(), 7472)].map(|addr| (addr.to_string(), addr)).to_vec();
        let options = MemberOptions::directory(directory.path(), names).size(2 << 20);
        let member = Member::bind(&context, own.port(), options).expect("a member");
        let node = &member.node;
        let (ours, theirs) = (Epoch::new(1, 1), Epoch::new(2, 2));
        node.log.call(&Request::Grant { epoch: ours }).expect("nobody has it");
        let (working, shown) = node.show_image(ours).expect("it is ours");
        let ending =
            |told: ImageReply| matches!(told, ImageReply::Refused(why) if why.contains("is ending that"));
        assert!(!ending(node.obey(ours, &Order::Apply { below: 0 })), "its own image follows itself");
        node.log.call(&Request::Grant { epoch: theirs }).expect("a later one");
        for order in [Order::Apply { below: 0 }, Order::Begin] {
            assert!(ending(node.obey_other(theirs, &order)), "{order:?} changes what clients read");
        }
        drop((working, shown));
        assert!(!ending(node.obey_other(theirs, &Order::Apply { below: 0 })));
        assert!(node.show_image(ours).is_err(), "whoever was replaced shows nothing any more");
    }

    #[test]
    fn a_member_whose_log_is_served_no_more_ends_with_a_sentence() {
        let directory = tempfile::tempdir().expect("a directory");
        let [a, b, c, d] = std::process::id().to_be_bytes();
        let ip = |net| std::net::Ipv4Addr::new(127, (a ^ b) | net, c, d.clamp(1, 254));
        let context = Context::open(Options::udp(ip(32).into())).expect("a device");
        let own = SocketAddr::new(ip(32).into(), 7471);
        let names = [own, SocketAddr::new(ip(32).into(), 7472)].map(|addr| (addr.to_string(), addr)).to_vec();
        let options = MemberOptions::directory(directory.path(), names).size(2 << 20);
        let mut member = Member::bind(&context, own.port(), options).expect("a member");
        let (service, stop) = (99, Stop::new());
        member.log.on_call(service, |_| panic!("a defect"));
        let log = SocketAddr::new(own.ip(), member.node.log_port);
        let ended = std::thread::scope(|scope| {
            let running = scope.spawn(|| member.run(&stop));
            let client = Context::open(Options::udp(ip(16).into())).expect("a device");
            let options = link::plain(Duration::from_secs(5));
            let mut session = remanence_remote::Session::connect(&client, log, options).expect("it serves");
            session.call(service, &[]).expect_err("nobody answers that");
            let begin = std::time::Instant::now();
            while !running.is_finished() && begin.elapsed() < Duration::from_secs(120) {
                std::thread::sleep(Duration::from_millis(50));
            }
            stop.ask();
            running.join().expect("the member itself does not panic")
        });
        let sentence = ended.expect_err("its log is gone").to_string();
        assert!(sentence.contains("serves this member's log has panicked"), "{sentence}");
    }

    #[test]
    fn a_member_ends_when_whoever_is_told_of_its_part_panics() {
        let directory = tempfile::tempdir().expect("a directory");
        let [a, b, c, d] = std::process::id().to_be_bytes();
        let ip = std::net::Ipv4Addr::new(127, (a ^ b) | 128, c, d.clamp(1, 254));
        let context = Context::open(Options::udp(ip.into())).expect("a device");
        let names = [7471, 7472].map(|port| SocketAddr::new(ip.into(), port));
        let names = names.map(|addr| (addr.to_string(), addr)).to_vec();
        let options = MemberOptions::directory(directory.path(), names).size(2 << 20);
        let options = options.on_change(|_| panic!("nobody reads the output any more"));
        let mut member = Member::bind(&context, 7471, options).expect("a member");
        let (ended, end) = std::sync::mpsc::channel();
        let running = std::thread::spawn(move || {
            let _ended: std::sync::mpsc::Sender<()> = ended;
            member.run(&Stop::new())
        });
        // Else it would be there for ever, with nobody who takes part.
        let end = end.recv_timeout(Duration::from_secs(120));
        assert_eq!(end, Err(std::sync::mpsc::RecvTimeoutError::Disconnected), "it is there for ever");
        running.join().expect_err("it has panicked");
    }

    #[test]
    fn each_directory_that_is_made_has_its_name_durably() {
        let root = std::env::temp_dir().join(format!("remanence-member-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir(&root).expect("a directory");
        let path = root.join("stores/one");
        let made = make_directory(&path).expect("it can be made");
        assert_eq!(made, [path.clone(), root.join("stores")]);
        assert!(path.is_dir() && make_directory(&path).expect("it is there").is_empty());
        std::fs::remove_dir_all(&root).expect("it is there");
    }
}
