//! Taking over, and what a primary's serving thread does besides serving.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use remanence_remote::Stop;
use remanence_remotelog::format::superblock::Uuid;

use super::arrivals::Arrivals;
use super::connection::{DEPTH, MemberConnection};
use super::link::{Connecting, MemberConnector};
use super::node::{Back, Node, State};
use super::wire::MemberStats;
use super::{MemberOptions, Ships};
use crate::medium::{New, make_if_blank};
use crate::memory::Memory;
use crate::{Error, Server};
use remanence_coord::takeover::{Input, Obstacle};
use remanence_kv::format::Superblock;
use remanence_kv::proto::Refusal;
use remanence_kv::replica::check::{Check, Held, Images, Scrub, put_right};
use remanence_kv::replica::primary::Options as GroupOptions;
use remanence_kv::replica::{Driver, LeadError, Mirror, Rebuilding, Sizes, upkeep};
use remanence_kv::server::{Scrubbed, Server as Core};

/// Bytes of what members were found to have that are kept for whoever asks again.
const KNOWN_MAX: usize = 16 << 20;
/// Bytes of an image that are sent between two messages of clients, and for how long they wait for that.
const REBUILD: u64 = 256 << 10;
const SPENT: Duration = Duration::from_millis(1);
/// Members are asked again after this for what they have of a damaged value.
const AGAIN: Duration = Duration::from_secs(1);
/// Scrubs that are under way at a time. Whoever began the oldest one begins anew.
const SCRUBS_MAX: usize = 8;

/// What a primary does between the messages of clients.
#[derive(Debug)]
pub(crate) struct Upkeep {
    node: Arc<Node>,
    ships: Ships,
    arrivals: Arc<Arrivals>,
    /// There is more to do at once.
    busy: bool,
    /// As it was when the members were looked at: how many there is a connection to, and how many take part.
    present: (usize, usize),
    /// When images are asked to follow.
    images: upkeep::Upkeep,
    /// Who needs an image gets one that was checked.
    check: Check,
    /// Scrubs that were begun, by where and how much, the oldest one first.
    scrubs: VecDeque<((u64, usize), Scrub)>,
}

impl Upkeep {
    /// Takes members in that are back, and rebuilds who has no image. Returns whether there is more to do at once. Most turns do
    /// nothing: there is something to do when the node [says so](Node::wake_primary), when a time has come, when the number of members
    /// is another, and when something may have come that is expected.
    ///
    /// # Errors
    /// It is the primary no more. A sentence.
    pub(crate) fn turn(&mut self, core: &mut Core<Memory>) -> Result<bool, String> {
        let (acknowledged, present, expects) =
            self.ships.with_ship(|primary| (primary.acknowledged(), primary.present(), primary.expects()));
        self.images.acknowledged(self.node.now(), acknowledged);
        let asked =
            self.node.take_wake() || self.present != present || expects && !self.arrivals.is_awaited();
        if !asked && !self.busy && !self.next().is_zero() {
            return Ok(false);
        }
        // Whatever comes from here on is not seen by what follows.
        let waiter = self.arrivals.waiter();
        if let Err(error) = self.take_back().and_then(|()| self.go_on(core)) {
            let why = error.to_string();
            self.node.lock().why.clone_from(&why);
            return Err(why);
        }
        let (present, expects) = self.ships.with_ship(|primary| (primary.present(), primary.expects()));
        self.present = present;
        // A connection that breaks while nobody writes says so there, and to nobody else.
        if expects || self.node.now() >= self.images.rests_from() {
            self.arrivals.wait_for(waiter);
        }
        Ok(self.busy)
    }

    /// Whether no change is to be taken from clients: see [`is_short_of_room`](remanence_kv::replica::Primary::is_short_of_room).
    pub(crate) fn is_short_of_room(&self) -> bool {
        self.ships.with_ship(|primary| primary.is_short_of_room())
    }

    /// How long there is nothing to do, if nobody says that there is.
    pub(crate) fn next(&self) -> Duration {
        let (is_followed, rests) = self.ships.with_ship(|primary| (primary.is_followed(), primary.rests()));
        let quiet = (!self.arrivals.is_awaited()).then(|| self.images.rests_from());
        let due = self.images.deadline(is_followed).into_iter().chain(quiet).min();
        due.map_or(rests, |at| rests.min(at.saturating_sub(self.node.now())))
    }

    /// Takes members in that are there again, and finds out whether the log is promised to somebody else.
    fn take_back(&mut self) -> Result<(), LeadError> {
        let Back { all, some } = self.node.take_back();
        let is_back = all.is_some() || !some.is_empty() || self.node.changed_lives();
        if is_back {
            self.node.know_lives();
        }
        let is_followed = self.ships.with_ship(|primary| primary.is_followed());
        let follow = self.images.follows(self.node.now(), is_back, is_followed);
        let promised = self.node.log.with(|store| store.state().promised);
        self.ships.with_ship(|primary| {
            // Whoever has this member's promise may serve by now: to open the log again would end that one.
            if promised != primary.epoch() {
                return Err(LeadError::Deposed);
            }
            if let Some(connections) = all {
                primary.reopen(connections)?;
            }
            for (name, connection) in some {
                // Whoever has been taken in meanwhile stays.
                if primary.lost().iter().any(|(lost, _)| *lost == name) {
                    primary.reconnect(&name, Ok(connection))?;
                }
            }
            if follow { primary.follow() } else { Ok(()) }
        })
    }

    /// Goes on with whatever is under way.
    fn go_on(&mut self, core: &mut Core<Memory>) -> Result<(), LeadError> {
        let to_check = self.ships.with_ship(|primary| {
            primary.poll()?;
            let wants = primary.needs_image().is_some();
            if wants && self.check.is_done() {
                primary.begin_rebuild()?;
            }
            Ok::<_, LeadError>(primary.needs_image().map(ToOwned::to_owned))
        })?;
        let rebuilding = match to_check {
            Some(name) => {
                let images = Images { ships: &self.ships, image: &self.node.image };
                self.check.step(core, &images).map_err(|_| LeadError::Deposed)?;
                Some((name, 0, self.node.image.len()))
            }
            None => {
                let rebuilding = self.ships.with_ship(|primary| send_some(primary, Instant::now()))?;
                if rebuilding.is_none() {
                    self.check = Check::default();
                }
                rebuilding.map(|Rebuilding { name, sent, of }| (name, sent, of))
            }
        };
        let (lost, joining, behind, epoch) = self
            .ships
            .with_ship(|primary| (primary.lost(), primary.joining(), primary.behind(), primary.epoch()));
        self.images.behind(!behind.is_empty());
        let mut guard = self.node.lock();
        let state = &mut *guard;
        let lost: Vec<String> = lost.into_iter().map(|(name, _)| name).collect();
        let is_other = state.lost != lost || state.epoch != epoch;
        state.epoch = epoch;
        state.lost = lost;
        state.joining = joining;
        state.behind = behind.into_iter().map(|(name, why)| format!("{name}: {why}")).collect();
        self.busy = rebuilding.is_some();
        state.rebuilding = rebuilding;
        if is_other {
            self.node.stir_returns(guard);
        }
        Ok(())
    }

    /// Verifies some values, where they are served and in the images of all members. `None`: that is under way, so ask again.
    ///
    /// # Errors
    /// Nothing can be shipped any more, or as for the scrub of a store that lies on one server.
    pub(crate) fn scrub(
        &mut self,
        core: &mut Core<Memory>,
        cursor: u64,
        limit: usize,
    ) -> Result<Option<(Scrubbed, Vec<Held>)>, Refusal> {
        self.ships.with_ship(Driver::poll).map_err(|_| Refusal::Medium)?;
        let what = (cursor, limit);
        let begun = self.scrubs.iter().position(|(other, _)| *other == what);
        let mut scrub =
            begun.and_then(|at| self.scrubs.remove(at)).map_or_else(Scrub::new, |(_, scrub)| scrub);
        let found = scrub.step(core, &self.ships, self.node.names.len(), what)?;
        if found.is_none() {
            if self.scrubs.len() == SCRUBS_MAX {
                self.scrubs.pop_front();
            }
            self.scrubs.push_back((what, scrub));
        }
        Ok(found)
    }

    /// What other members have, for a value that is damaged here.
    pub(crate) fn copies(&self) -> remanence_kv::server::Copies {
        let ships = self.ships.clone();
        let mut known = Known::default();
        Box::new(move |at, len| {
            ships.with_ship(|primary| {
                // A failure ends the primary elsewhere.
                let _ = primary.poll();
                known.clear_if_joined(primary.joined());
                let fetch = || {
                    let copies = primary.copies(at, len)?;
                    Some(copies.into_iter().map(|copy| copy.bytes).collect())
                };
                known.get((at, len), Instant::now(), fetch)
            })
        })
    }

    /// The epoch, and what else clients are told.
    pub(crate) fn said(&self) -> MemberStats {
        // Not the epoch of the last look: a client that asks has seen that it is another one.
        let epoch = self.ships.with_ship(|primary| primary.epoch());
        MemberStats { epoch, ..self.node.said() }
    }
}

/// Sends some of an image, if one is being sent, as long as its member answers at once. How far it is.
fn send_some(
    primary: &mut Driver<MemberConnection>,
    begin: Instant,
) -> Result<Option<Rebuilding>, LeadError> {
    let Some(before) = primary.rebuilding() else { return Ok(None) };
    loop {
        primary.poll()?;
        let Some(now) = primary.rebuilding() else { return Ok(None) };
        let sent = now.sent.saturating_sub(before.sent);
        if now.name != before.name || sent >= REBUILD || begin.elapsed() >= SPENT {
            return Ok(Some(now));
        }
        std::thread::yield_now();
    }
}

/// What members were found to have a moment ago: who reads a value again and again that no member has whole does not have them asked each
/// time.
#[derive(Default)]
struct Known {
    places: BTreeMap<(u64, u32), (Instant, Found)>,
    bytes: usize,
    joined: u64,
}

/// What each image has in a place.
type Found = Vec<Vec<u8>>;

impl Known {
    /// Forgets all of it if a member has come since, who may have what nobody had.
    fn clear_if_joined(&mut self, joined: u64) {
        if self.joined != joined {
            *self = Self { joined, ..Self::default() };
        }
    }

    fn get(
        &mut self,
        place: (u64, u32),
        now: Instant,
        fetch: impl FnOnce() -> Option<Found>,
    ) -> Option<Found> {
        if let Some((since, copies)) = self.places.get(&place)
            && now.saturating_duration_since(*since) < AGAIN
        {
            return Some(copies.clone());
        }
        let copies = fetch()?;
        // At least something, so that places of which nothing came are counted as well.
        let bytes = copies.iter().map(Vec::len).sum::<usize>().max(64);
        if self.bytes + bytes > KNOWN_MAX {
            self.places.clear();
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.places.insert(place, (now, copies.clone()));
        Some(copies)
    }
}

/// Why this member cannot take over, though nobody serves, for whoever looks.
pub(super) fn explain(node: &Node, obstacle: Obstacle) -> String {
    let state = node.lock();
    let members = node.names.len();
    let missing = || -> String {
        let others = (0..members).filter(|at| *at != node.who && node.recent(&state, *at).is_none());
        // Those that are missing for one reason together.
        let mut by_reason: Vec<(String, Vec<&str>)> = Vec::new();
        for at in others {
            let (name, why) = (node.names[at].as_str(), node.absent(&state, at));
            match by_reason.iter_mut().find(|(reason, _)| *reason == why) {
                Some((_, names)) => names.push(name),
                None => by_reason.push((why, vec![name])),
            }
        }
        by_reason
            .iter()
            .map(|(why, names)| format!("{} ({why})", names.join(", ")))
            .collect::<Vec<_>>()
            .join("; ")
    };
    match obstacle {
        Obstacle::Failed => "the medium of this member's log failed, and it ends".into(),
        Obstacle::Stuck => format!(
            "this member's ledger could not be written, so its image takes no change and it cannot take over: start it again ({})",
            state.seen.stuck.as_deref().unwrap_or("its medium failed")
        ),
        Obstacle::IsNew => "this member is new: it is rebuilt by the member that takes over".into(),
        Obstacle::NotAll => {
            format!("a new store needs all of its {members} members to be made; missing: {}", missing())
        }
        Obstacle::NoImage => {
            "the image of this member is incomplete: it is rebuilt by the member that takes over".into()
        }
        Obstacle::NoneHasImage => none_has_image(node, &state, &missing()),
        Obstacle::TooFew { there, needed } => format!(
            "{there} of {members} members are there, and {needed} are needed; start the others: {}",
            missing()
        ),
    }
}

/// What is left to do where nobody who is there has an image that others could be sent.
fn none_has_image(node: &Node, state: &State, missing: &str) -> String {
    let others = |holds: bool| {
        let is_such = move |at: &usize| {
            let said = state.takeover.recent(*at, node.now());
            *at != node.who && said.is_some_and(|said| said.holds == holds)
        };
        (0..node.names.len()).filter(is_such).map(|at| node.names[at].as_str()).collect::<Vec<_>>().join(", ")
    };
    let is_new = !state.seen.holds();
    let salvage = if is_new {
        // Its own was never anything.
        match others(true) {
            none if none.is_empty() => "nothing of this member's can be salvaged".to_owned(),
            others => format!("`rem kv salvage IMAGE -o DUMP` of what {others} has reads what is left there"),
        }
    } else {
        let image = node.image.path().map_or_else(|| "IMAGE".into(), |path| path.display().to_string());
        format!("`rem kv salvage {image} -o DUMP` reads what is left of this member's")
    };
    let this = if is_new { "this member is new, and " } else { "" };
    if !missing.is_empty() {
        return format!(
            "{this}no member that is there has a whole image: start the others, of which one may have it: {missing}; if none has, {salvage}"
        );
    }
    match (is_new, others(false)) {
        (false, new) if new.is_empty() => format!(
            "the images of all {} members are damaged or incomplete, and nobody can make them anew: stop this member, and {salvage}",
            node.names.len()
        ),
        (false, new) => format!(
            "no member has a whole image, as {new} began with an empty directory, and nobody can make this one's anew: stop this member, and {salvage}"
        ),
        (true, _) => format!("{this}no member has a whole image to make its own from: {salvage}"),
    }
}

/// What the threads beside a primary's serving thread are ended by, however that one ends.
struct Beside<'a> {
    node: &'a Node,
    arrivals: &'a Arrivals,
    over: Arc<AtomicBool>,
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        self.node.serves(None);
        self.node.stir_returns(self.node.lock());
        self.arrivals.end();
    }
}

/// Takes over, if it can, and serves until it is stopped or somebody else takes over.
///
/// # Errors
/// It could not, or does not any more. A sentence.
pub(super) fn lead(
    node: &Arc<Node>,
    connector: &MemberConnector,
    options: &MemberOptions,
    stop: &Stop,
) -> Result<(), Error> {
    let arrivals = Arc::new(Arrivals::new(&connector.reactor));
    std::thread::scope(|scope| {
        let over = Arc::new(AtomicBool::new(false));
        let _beside = Beside { node, arrivals: &arrivals, over: Arc::clone(&over) };
        let mut connecting = Connecting::new(scope, connector, node, over);
        let primary = take_over(node, &mut connecting, options)?;
        serve(node, connector, options, (primary, &arrivals), stop, || {
            scope.spawn(move || {
                node.watched("the thread that connects to other members", || connecting.bring_back());
            });
            scope.spawn(|| node.watched("the thread that waits for other members", || arrivals.run(node)));
        })
    })
}

/// Has the log promised to this member, and its image take what the log has more.
fn take_over(
    node: &Arc<Node>,
    connecting: &mut Connecting<'_, '_>,
    options: &MemberOptions,
) -> Result<Driver<MemberConnection>, Error> {
    let sentence = |error: &dyn std::fmt::Display| Error::Argument(error.to_string());
    let is_new = node.seen().is_new();
    let mut random = [0; 20];
    getrandom::fill(&mut random).map_err(|e| sentence(&format!("the system gives no random bytes: {e}")))?;
    let (writer, group) = random.split_first_chunk().expect("four bytes and sixteen");
    let acks = match options.acks {
        Some(acks) => Some(acks),
        None => is_new.then(|| options.acks_of(node.names.len()) as u16),
    };
    let group = Uuid(group.try_into().expect("sixteen bytes"));
    let group_options =
        GroupOptions::new(u32::from_le_bytes(*writer), group).acks(acks).depth(DEPTH).grace(node.notice);
    let image_len = node.image.len();
    let trim_after = options.log_len(image_len) / 4;
    let sizes = Sizes { image_len, record_max: node.record_max, trim_after };
    Driver::lead(connecting.all_members(), node.own_name(), &group_options, sizes).map_err(|e| sentence(&e))
}

/// Serves the store, with `beside` begun, until it is stopped or this is the primary no more.
fn serve(
    node: &Arc<Node>,
    connector: &MemberConnector,
    options: &MemberOptions,
    (mut primary, arrivals): (Driver<MemberConnection>, &Arc<Arrivals>),
    stop: &Stop,
    beside: impl FnOnce(),
) -> Result<(), Error> {
    let epoch = primary.epoch();
    // Dropped after the server, and all that is left of its medium.
    let (working, _shown) = node.show_image(epoch)?;
    // As it was seen to be right.
    let store = Superblock::read(&working).ok().map(|found| found.superblock);
    let image = node.image.clone();
    primary.set_put_right(Box::new(move |fetch| {
        // A medium that fails is found by the next order that changes the image.
        let _ = put_right(&image, store.as_ref(), fetch);
    }));
    let ships: Ships = Mirror::new(working.clone(), primary);
    let memory = Memory::Replicated(ships.clone());
    make_if_blank(&memory, &New { geometry: options.common.geometry, keys: options.common.keys })?;
    node.know_lives();
    let upkeep = Upkeep {
        node: Arc::clone(node),
        ships: ships.clone(),
        arrivals: Arc::clone(arrivals),
        busy: true,
        present: (0, 0),
        images: upkeep::Upkeep::new(node.now()),
        check: Check::default(),
        scrubs: VecDeque::new(),
    };
    let mut server = Server::bind_replicated(&connector.context, options.store(working), memory, upkeep)?;
    {
        let state = &mut *node.lock();
        state.happens(node.now(), Input::Leads { epoch });
        state.joined = true;
        state.why.clear();
        (state.epoch, state.store_port) = (epoch, server.addr().port());
        state.store = Some(server.metrics());
        state.back = Back::default();
        state.lost = ships.with_ship(|primary| primary.lost()).into_iter().map(|(name, _)| name).collect();
    }
    node.serves(Some(server.control()));
    node.notify();
    options.tell(node);
    beside();
    let served = server.run(stop);
    drop(server);
    match (served, ships.failed()) {
        (Err(_), Some(why)) => Err(Error::Argument(why)),
        (Err(error), None) => {
            let why = node.lock().why.clone();
            Err(if why.is_empty() { error } else { Error::Argument(why) })
        }
        (Ok(_), _) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use remanence_verbs::{Context, Options};

    use super::*;
    use crate::Member;

    #[test]
    fn where_nobody_has_a_whole_image_it_is_said_who_may_have_one_or_what_is_left_to_do() {
        let directory = tempfile::tempdir().expect("a directory");
        let [a, b, c, d] = std::process::id().to_be_bytes();
        let ip = std::net::Ipv4Addr::new(127, (a ^ b) | 16, c, d.clamp(1, 254));
        let context = Context::open(Options::udp(ip.into())).expect("a device");
        let names = [7471, 7472, 7473].map(|port| std::net::SocketAddr::new(ip.into(), port));
        let names = names.map(|addr| (addr.to_string(), addr)).to_vec();
        // Nobody is taken for dead, however busy the machine is.
        let options = MemberOptions::directory(directory.path(), names).size(2 << 20);
        let member =
            Member::bind(&context, 7471, options.notice(Duration::from_secs(3600))).expect("a member");
        let node = member.node();
        let hears = |who: u16, complete| {
            let log = Uuid([who as u8; 16]);
            node.heard(Some(who.into()), MemberStats { who, log, complete, ..node.said() });
        };
        let says = |is_damaged: bool| {
            let complete = std::mem::replace(&mut node.lock().seen.ledger.complete, !is_damaged);
            let said = explain(node, Obstacle::NoneHasImage);
            node.lock().seen.ledger.complete = complete;
            said
        };
        let salvage = format!("`rem kv salvage {} -o DUMP`", directory.path().join("image").display());
        let [_, second, third] = &node.names[..] else { panic!("three members") };
        hears(1, false);
        let said = says(true);
        assert!(said.contains(&format!("start the others, of which one may have it: {third}")), "{said}");
        assert!(!said.contains(second) && said.contains(&salvage), "that one is there: {said}");
        let said = says(false);
        assert!(
            said.starts_with("this member is new") && said.contains(&format!("may have it: {third}")),
            "{said}"
        );
        assert!(said.contains(&format!("of what {second} has")) && !said.contains(&salvage), "{said}");
        hears(2, true);
        let said = says(true);
        assert!(said.contains(&format!("as {third} began with an empty directory")), "{said}");
        assert!(said.contains(&salvage) && !said.contains("start"), "{said}");
        let said = says(false);
        assert!(said.contains(&format!("of what {second} has")) && !said.contains("start"), "{said}");
        hears(2, false);
        let said = says(true);
        assert!(
            said.contains("all 3 members") && said.contains(&salvage) && !said.contains("start"),
            "{said}"
        );
    }

    #[test]
    fn members_are_not_asked_for_one_place_again_and_again() {
        let (begin, mut known, asked) = (Instant::now(), Known::default(), Cell::new(0));
        let mut get = |place, now| {
            known.get(place, now, || {
                asked.set(asked.get() + 1);
                Some(vec![vec![asked.get() as u8; 10]])
            })
        };
        let first = get((64, 10), begin).expect("asked");
        assert_eq!(get((64, 10), begin + AGAIN / 2), Some(first), "what was found a moment ago");
        assert_eq!(asked.get(), 1);
        get((64, 20), begin);
        assert_eq!(asked.get(), 2, "what turned out to be longer");
        get((64, 10), begin + AGAIN);
        assert_eq!(asked.get(), 3, "one of them may be back");
        assert_eq!(known.get((64, 30), begin, || None), None);
        known.clear_if_joined(0);
        assert!(known.get((64, 20), begin, || None).is_some());
        known.clear_if_joined(1);
        assert_eq!(known.get((64, 20), begin, || None), None, "somebody has come who may have it whole");
        for at in 0..(2 * KNOWN_MAX / 64) as u64 {
            known.get((at, 1), begin, || Some(Vec::new()));
            assert!(known.bytes <= KNOWN_MAX && known.places.len() <= KNOWN_MAX / 64);
        }
        assert_eq!(known.get((64, 30), begin, || None), None, "they are being asked still");
    }
}
