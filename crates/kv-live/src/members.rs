//! A client's side of a store on several members: who is the primary, and whether what it says may be believed.
//!
//! `replica/guard.rs` has the argument. What a client reads from a primary, and every reply, counts only if the promises of
//! `acks` members let that primary be believed that were read after the operation began; each is one READ of 24 bytes at the
//! member. They are posted before the first work request of the operation ([`Members::look_ahead`]) and taken when its
//! last one has come ([`Members::vouched`]), so that nobody waits for them in addition.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use std::task::Context as Task;

use remanence_remote::{Reactor, Reading, Waiter};
use remanence_remotelog::Epoch;

use super::member::wire::{EXPORTED, exported};
use super::member::{MemberStats, Role, Said};
use super::scout::Scout;
use super::wire::What;
use super::{ConnectOptions, Error, Session};
use remanence_kv::replica::{Claim, Promise, is_current, likely_primary};
use remanence_kv::view::View;

/// How long a member may be silent before a client goes on without it.
const SILENT: Duration = Duration::from_secs(3);
/// A member that says nothing for so long is late: others are asked beside it.
pub(super) const LATE: Duration = Duration::from_millis(250);
/// Who does not know the members yet waits for so long for all of those that were named, once one has answered.
const ALL: Duration = Duration::from_millis(200);
/// A primary that is silent for so long may have been replaced, and the others are asked; and again after this.
const DOUBT: Duration = Duration::from_millis(50);
/// Who connects waits for so long for members to say that they are the primary, and then begins anew.
const FIND: Duration = Duration::from_secs(1);

/// The members of a store, as a client reaches them.
#[derive(Debug)]
pub(super) struct Members {
    /// For any of the members, and the primary, whose sessions are on one reactor.
    waiter: Waiter,
    options: ConnectOptions,
    scout: Scout,
    /// The addresses of all members, in their order.
    addrs: Vec<SocketAddr>,
    readers: Vec<PromiseReader>,
    /// The epoch of the primary that it is connected to.
    epoch: Epoch,
    acks: usize,
    /// What the primary said when it was connected to, or asked again.
    said: MemberStats,
    asked: Asked,
}

/// How often members were asked whether the primary may be believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// READs that were under way together with those of an operation: nobody waited for them in addition.
    pub along: u64,
    /// READs after an operation had all that it wanted: each is a round trip more. A member is gone or has come back, or
    /// there is another primary.
    pub after: u64,
}

/// Where a client reads a member's promise.
#[derive(Debug)]
struct PromiseReader {
    /// The number of the member, by its place among all.
    at: usize,
    session: Option<remanence_remote::Session>,
    /// A promise that is being read, since when, and whether for an operation that is over: then it says nothing.
    reading: Option<Asking>,
}

#[derive(Debug)]
struct Asking {
    reading: Reading,
    since: Instant,
    stale: bool,
}

/// What a promise is read through.
trait Witness {
    /// The number of the member that it is of.
    fn at(&self) -> usize;

    /// Whether its promise is being read.
    fn is_read(&self) -> bool;

    /// Whether what is being read says nothing to whoever asks now.
    fn is_stale(&self) -> bool;

    /// Begins to read its promise. Returns whether that is under way.
    fn post(&mut self) -> bool;

    /// The promise that was begun to be read, if it comes within that time.
    fn take(&mut self, limit: Duration) -> Came;
}

/// What members have promised, by their numbers: each counts once.
pub(super) type Promises = Vec<(usize, Promise)>;

/// The members that may have to vouch for a primary, and how many must.
struct Witnesses<'a, D> {
    readers: &'a mut [D],
    epoch: Epoch,
    acks: usize,
    /// Waits until something has come from any of them, or until then.
    wait: &'a mut dyn FnMut(Instant),
}

impl<D: Witness> Witnesses<'_, D> {
    /// Takes promises that are being read, until they are enough or that time is over. Who has answered counts in `promises`.
    fn gather(&mut self, promises: &mut Promises, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            match self.collect(promises) {
                None if Instant::now() < end => (self.wait)(end),
                enough => return enough == Some(true),
            }
        }
    }

    /// Takes promises that have come. Whether they are enough; `None` if they are not, and some may still come.
    fn collect(&mut self, promises: &mut Promises) -> Option<bool> {
        let mut late = false;
        for reader in &mut *self.readers {
            if !reader.is_read() || reader.is_stale() {
                continue;
            }
            match reader.take(Duration::ZERO) {
                Came::Promise(promise) => promises.push((reader.at(), promise)),
                Came::Late => late = true,
                Came::Nothing => {}
            }
        }
        let enough = self.are_enough(promises);
        (enough || !late).then_some(enough)
    }

    fn are_enough(&self, promises: &Promises) -> bool {
        let promises: Vec<Promise> = promises.iter().map(|(_, promise)| *promise).collect();
        is_current(self.epoch, &promises, self.acks)
    }

    /// Asks all members that have not answered since the operation began, and one again whose promise does not let the primary
    /// be believed: it may have been changing. Those that answer late are waited for only if the others are too few. `open` has a
    /// reader take its connection, if one was made since; `asked` counts the READs.
    fn enough(&mut self, promises: &mut Promises, mut open: impl FnMut(&mut D), asked: &mut u64) -> bool {
        for _ in 0..2 {
            let epoch = self.epoch;
            promises.retain(|(_, promise)| promise.lets(epoch));
            // What an operation that broke off had begun to read is in the way until it has come, or was silent for too long.
            for reader in self.readers.iter_mut().filter(|reader| reader.is_stale()) {
                reader.take(LATE);
            }
            self.readers.iter_mut().for_each(&mut open);
            for reader in &mut *self.readers {
                if !reader.is_read() && promises.iter().all(|(at, _)| *at != reader.at()) {
                    *asked += u64::from(reader.post());
                }
            }
            if self.gather(promises, LATE) || self.gather(promises, SILENT) {
                // Who has answered is asked first from now on.
                self.readers.sort_by_key(|reader| promises.iter().all(|(at, _)| *at != reader.at()));
                return true;
            }
        }
        false
    }
}

/// What has come of a promise that is being read.
#[derive(Clone, Copy, Debug)]
enum Came {
    /// Nothing was being read, it was being changed, or the member is gone.
    Nothing,
    Promise(Promise),
    /// The promise has not come yet.
    Late,
}

impl PromiseReader {
    const fn new(at: usize) -> Self {
        Self { at, session: None, reading: None }
    }

    /// Takes the connection that was made for it, if it has none.
    fn open(&mut self, scout: &Scout) {
        if self.session.is_none() {
            self.session = scout.connection(self.at);
        }
    }

    /// Whatever an operation that broke off has begun to read says nothing of what comes after it.
    fn drop_reading(&mut self) {
        if let Some(asking) = &mut self.reading {
            asking.stale = true;
            self.take(Duration::ZERO);
        }
    }

    fn lose(&mut self) {
        (self.session, self.reading) = (None, None);
    }
}

impl Witness for PromiseReader {
    fn at(&self) -> usize {
        self.at
    }

    fn is_read(&self) -> bool {
        self.reading.is_some()
    }

    fn post(&mut self) -> bool {
        debug_assert!(self.reading.is_none(), "member {} is being read already", self.at);
        let Some(session) = &mut self.session else { return false };
        match session.post_read(0, EXPORTED as u32) {
            Ok(reading) => {
                self.reading = Some(Asking { reading, since: Instant::now(), stale: false });
                true
            }
            Err(_) => {
                self.lose();
                false
            }
        }
    }

    fn take(&mut self, limit: Duration) -> Came {
        let (Some(asking), Some(session)) = (&self.reading, &mut self.session) else { return Came::Nothing };
        let mut bytes = [0; EXPORTED];
        match session.finish_read_within(&asking.reading, &mut bytes, limit) {
            Ok(true) => {
                let stale = asking.stale;
                self.reading = None;
                exported(&bytes).filter(|_| !stale).map_or(Came::Nothing, Came::Promise)
            }
            Ok(false) if asking.since.elapsed() < SILENT => Came::Late,
            Ok(false) | Err(_) => {
                self.lose();
                Came::Nothing
            }
        }
    }

    fn is_stale(&self) -> bool {
        self.reading.as_ref().is_some_and(|asking| asking.stale)
    }
}

impl Members {
    /// Some members of a store, or all of them: any one that is there knows the others.
    ///
    /// # Errors
    /// None of them is there, they belong to different stores, or they ask for another token.
    pub(super) fn find(
        reactor: &Reactor,
        some: &[SocketAddr],
        options: &ConnectOptions,
    ) -> Result<Self, Error> {
        let scout = Scout::new(reactor, options, some)?;
        // Who does not answer as fast as the others is probably not there.
        let answered = |said: &[Option<&MemberStats>]| said.iter().any(Option::is_some);
        let described = scout.ask(SILENT.min(options.waits()), ALL, answered)?;
        let mut known: Option<(SocketAddr, &MemberStats)> = None;
        for (to, said) in some.iter().zip(&described) {
            let Ok(said) = said else { continue };
            match &known {
                Some((first, other)) if other.members != said.members || !same(other, said) => {
                    return Err(Error::Argument(format!(
                        "{first} and {to} are members of different stores ({} and {}); name members of one",
                        other.members.join(","),
                        said.members.join(",")
                    )));
                }
                Some(_) => {}
                None => known = Some((*to, said)),
            }
        }
        let Some((_, said)) = known else {
            let each = some.iter().zip(described);
            let why = each.filter_map(|(to, said)| Some(format!("{to}: {}", said.err()?)));
            return Err(Error::NoPrimary(why.collect::<Vec<_>>().join("; ")));
        };
        let mut all = Vec::new();
        for name in &said.members {
            let to = name.to_socket_addrs().ok().and_then(|mut found| found.next()).ok_or_else(|| {
                Error::Argument(format!(
                    "the member {name} cannot be resolved here; start the members with names or \
                     addresses that their clients know"
                ))
            })?;
            all.push(to);
        }
        if let Some(unknown) = some.iter().find(|to| !all.contains(to)) {
            return Err(Error::Argument(format!(
                "{unknown} is no member of the store, which lies on {}; name only those",
                said.members.join(",")
            )));
        }
        let said = said.clone();
        let scout = if all == some { scout } else { Scout::new(reactor, options, &all)? };
        let readers: Vec<PromiseReader> = (0..all.len()).map(PromiseReader::new).collect();
        Ok(Self {
            waiter: reactor.waiter(),
            options: options.clone(),
            scout,
            addrs: all,
            readers,
            epoch: Epoch::NONE,
            acks: 0,
            said,
            asked: Asked::default(),
        })
    }

    /// Connects to the primary, if there is one at the moment.
    ///
    /// # Errors
    /// There is none, or not enough members vouch for it.
    pub(super) fn connect(&mut self) -> Result<(Session, View), Error> {
        let enough = |said: &[Option<&MemberStats>]| likely(said.iter().copied()).is_some();
        let described = self.scout.ask(FIND.min(self.options.waits()), Duration::ZERO, enough)?;
        let primary = likely(described.iter().map(|said| said.as_ref().ok()));
        let primary = primary.and_then(|at| Some((at, described[at].as_ref().ok()?)));
        let Some((at, primary)) = primary else {
            // Who is there says why it waits, which is mostly who is not there.
            let some_away = described.iter().any(Result::is_err);
            let why = |(name, said): (&String, &Said)| match said {
                Err(why) => format!("{name}: {why}"),
                Ok(said) if said.role == Role::Primary => {
                    format!("{name} is primary, and too few of the others say that it may be")
                }
                Ok(said) if some_away || said.why.is_empty() => format!("{name} is {}", said.role.name()),
                Ok(said) => format!("{name} is {}: {}", said.role.name(), said.why),
            };
            let why: Vec<String> = self.said.members.iter().zip(&described).map(why).collect();
            return Err(Error::NoPrimary(why.join("; ")));
        };
        // Whoever was the primary before is probably silent; it is asked again when it answers.
        let before = usize::from(self.said.who);
        self.readers
            .iter_mut()
            .filter(|reader| at != before && reader.at == before)
            .for_each(PromiseReader::lose);
        // Connections to the others are made meanwhile.
        self.readers.iter_mut().for_each(|reader| reader.open(&self.scout));
        let to = SocketAddr::new(self.addrs[at].ip(), primary.store_port);
        let (lookout, primary) = (self.scout.lookout(), primary.clone());
        let options = self.options.watched(DOUBT, move |_| lookout.is_replaced(&primary));
        let (mut session, view) = Session::connect_on(self.waiter.reactor(), to, &options)?;
        self.ask(&mut session)?;
        self.open_readers();
        if !self.vouched(&mut session, Vec::new())? {
            return Err(Error::NoPrimary(format!(
                "{} serves, and too few of the other members say that it may",
                self.said.members.get(usize::from(self.said.who)).map_or("a member", String::as_str)
            )));
        }
        Ok((session, view))
    }

    /// Waits a little for connections to as many members as are needed.
    fn open_readers(&mut self) {
        self.readers.iter_mut().for_each(|reader| reader.open(&self.scout));
        let closed: Vec<usize> =
            self.readers.iter().filter(|reader| reader.session.is_none()).map(|reader| reader.at).collect();
        let open = self.readers.len() - closed.len();
        self.scout.wait_for_connections(
            &closed,
            self.acks.saturating_sub(open),
            SILENT.min(self.options.waits()),
        );
        self.readers.iter_mut().for_each(|reader| reader.open(&self.scout));
    }

    fn ask(&mut self, session: &mut Session) -> Result<(), Error> {
        let said = session.ask(What::Lead, &[])?;
        let Some(Ok(said)) = MemberStats::parse(&said) else {
            return Err(Error::Protocol("what the primary says of itself is nothing"));
        };
        self.epoch = said.epoch;
        self.acks = usize::from(said.acks).max(1);
        self.said = said;
        Ok(())
    }

    /// An operation begins: begins to read the promises of as many members as have to vouch for what it will bring.
    pub(super) fn look_ahead(&mut self) {
        self.readers.iter_mut().for_each(PromiseReader::drop_reading);
        let mut wanted = self.acks;
        for reader in &mut self.readers {
            let posted = wanted > 0 && reader.reading.is_none() && reader.post();
            wanted -= usize::from(posted);
            self.asked.along += u64::from(posted);
        }
    }

    /// Whether the promises that were read along with an operation are enough, for a task, which is woken when another one has
    /// come; `None` if some of them may still come.
    pub(super) fn glance(&mut self, promises: &mut Promises, task: &Task<'_>) -> Option<bool> {
        let (epoch, acks) = (self.epoch, self.acks);
        loop {
            let mut witnesses = Witnesses { readers: &mut self.readers, epoch, acks, wait: &mut |_| () };
            let enough = witnesses.collect(promises);
            // Each of them is to wake the task.
            let mut is_ready = false;
            for reader in self.readers.iter_mut().filter(|reader| reader.is_read() && !reader.is_stale()) {
                if let Some(session) = &mut reader.session {
                    is_ready |= session.poll_ready(task).is_ready();
                }
            }
            if enough.is_some() || !is_ready {
                return enough;
            }
        }
    }

    /// Whether what was read from this primary since [`look_ahead`](Self::look_ahead), and what it has said since, may be
    /// believed. Some promises may have been taken already.
    ///
    /// # Errors
    /// It does not answer any more.
    pub(super) fn vouched(&mut self, session: &mut Session, mut promises: Promises) -> Result<bool, Error> {
        // Those that were read along with the operation are enough, mostly.
        if self.gather(&mut promises, LATE) || self.enough(&mut promises) {
            return Ok(true);
        }
        // It has taken a member in that came back, by which its epoch is a new one; perhaps more than one meanwhile.
        loop {
            let before = self.epoch;
            self.ask(session)?;
            if self.epoch == before {
                break;
            }
            if self.enough(&mut Vec::new()) {
                return Ok(true);
            }
        }
        // A member is there again that was not.
        self.open_readers();
        Ok(self.enough(&mut Vec::new()))
    }

    fn gather(&mut self, promises: &mut Promises, limit: Duration) -> bool {
        let (epoch, acks) = (self.epoch, self.acks);
        let wait = &mut |end| {
            let _ = self.waiter.wait(Some(end));
        };
        Witnesses { readers: &mut self.readers, epoch, acks, wait }.gather(promises, limit)
    }

    fn enough(&mut self, promises: &mut Promises) -> bool {
        let (epoch, acks) = (self.epoch, self.acks);
        // A queue that is broken says so to each session that looks.
        let wait = &mut |end| {
            let _ = self.waiter.wait(Some(end));
        };
        let mut witnesses = Witnesses { readers: &mut self.readers, epoch, acks, wait };
        witnesses.enough(promises, |reader| reader.open(&self.scout), &mut self.asked.after)
    }

    /// What each member says of itself, and why the others do not.
    ///
    /// # Errors
    /// One is none of the protocol.
    pub(super) fn stats(&mut self) -> Result<Vec<(String, Said)>, Error> {
        let described = self.scout.ask(SILENT.min(self.options.waits()), Duration::ZERO, |_| false)?;
        Ok(self.said.members.iter().cloned().zip(described).collect())
    }

    /// How often members were asked so far.
    pub(super) const fn asked(&self) -> Asked {
        self.asked
    }

    /// What the primary said when it was connected to, or asked again.
    pub(super) const fn primary(&self) -> &MemberStats {
        &self.said
    }
}

/// The primary to try, by what those say that have answered.
fn likely<'a>(said: impl Iterator<Item = Option<&'a MemberStats>>) -> Option<usize> {
    let claim = |said: &MemberStats| Claim {
        serves: said.role == Role::Primary && said.store_port != 0,
        epoch: said.epoch,
        acks: said.acks.into(),
    };
    likely_primary(&said.map(|said| said.map(claim)).collect::<Vec<_>>())
}

/// Whether two members can be of one store: one that is new can be of any.
fn same(one: &MemberStats, other: &MemberStats) -> bool {
    let new = remanence_remotelog::format::superblock::Uuid::default();
    one.group == new || other.group == new || one.group == other.group
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A member that answers each READ with what comes next; nothing: it is gone.
    #[derive(Debug, Default)]
    struct Scripted {
        at: usize,
        answers: VecDeque<Came>,
        reading: bool,
        stale: bool,
    }

    impl Witness for Scripted {
        fn at(&self) -> usize {
            self.at
        }

        fn is_read(&self) -> bool {
            self.reading
        }

        fn is_stale(&self) -> bool {
            self.reading && self.stale
        }

        fn post(&mut self) -> bool {
            assert!(!self.reading, "member {} is being read already", self.at);
            self.reading = !self.answers.is_empty();
            self.reading
        }

        fn take(&mut self, _: Duration) -> Came {
            let came = self.answers.pop_front().unwrap_or(Came::Nothing);
            if let Came::Late = came {
                return came;
            }
            self.reading = false;
            if std::mem::take(&mut self.stale) { Came::Nothing } else { came }
        }
    }

    const OURS: Epoch = Epoch::new(5, 77);

    fn of(counter: u32, writer: u32) -> Came {
        let promised = Epoch::new(counter, writer);
        Came::Promise(Promise { promised, adopted: promised })
    }

    fn members(answers: &[&[Came]]) -> Vec<Scripted> {
        let member = |(at, answers): (usize, &&[Came])| Scripted {
            at,
            answers: answers.iter().copied().collect(),
            ..Scripted::default()
        };
        answers.iter().enumerate().map(member).collect()
    }

    /// Whether they are enough for `acks`; how often they were asked; and who is asked first from then on.
    fn asked(mut readers: Vec<Scripted>, acks: usize, mut promises: Promises) -> (bool, u64, Vec<usize>) {
        let mut asked = 0;
        let mut witnesses = Witnesses { readers: &mut readers, epoch: OURS, acks, wait: &mut |_| () };
        let enough = witnesses.enough(&mut promises, |_| (), &mut asked);
        (enough, asked, readers.iter().map(|reader| reader.at).collect())
    }

    #[test]
    fn as_many_members_must_vouch_as_acknowledge_and_each_counts_once() {
        let (same, later) = (of(5, 77), of(6, 1));
        let earlier = of(4, 3);
        for (answers, acks, enough, reads) in [
            (&[&[same][..], &[same], &[]][..], 2, true, 2),
            (&[&[same], &[], &[earlier]], 2, true, 2),
            (&[&[same], &[], &[]], 2, false, 1),
            (&[&[same], &[later, later], &[]], 2, false, 3),
            (&[&[same], &[later, later], &[]], 1, true, 2),
            (&[&[same], &[later, later], &[same]], 2, true, 3),
            (&[&[same], &[same], &[later, later]], 3, false, 4),
            (&[&[same], &[same], &[same]], 3, true, 3),
            // One that had promised nothing yet when it was asked first.
            (&[&[same], &[Came::Nothing, same], &[]], 2, true, 3),
            // Late ones are waited for, if the others are too few.
            (&[&[Came::Late, Came::Late, same], &[same], &[]], 2, true, 2),
        ] {
            let (found, asked, _) = asked(members(answers), acks, Vec::new());
            assert_eq!((found, asked), (enough, reads), "{answers:?}, {acks} of them");
        }
        let Came::Promise(blank) = earlier else { unreachable!() };
        let blank = Came::Promise(Promise { adopted: Epoch::NONE, ..blank });
        let lost = members(&[&[same], &[blank, blank], &[]]);
        assert!(!asked(lost, 2, Vec::new()).0, "who lost its disk may have promised anything");
    }

    #[test]
    fn who_has_answered_is_not_asked_again_and_is_asked_first_the_next_time() {
        let Came::Promise(same) = of(5, 77) else { unreachable!() };
        let Came::Promise(later) = of(6, 1) else { unreachable!() };
        let all = || members(&[&[], &[of(5, 77)], &[of(5, 77)]]);
        assert_eq!(asked(all(), 2, vec![(2, same)]), (true, 1, vec![1, 2, 0]));
        // Its promise let nobody be believed, and was changing.
        assert_eq!(asked(all(), 2, vec![(2, later)]), (true, 2, vec![1, 2, 0]));
        assert!(!asked(members(&[&[of(5, 77)], &[], &[]]), 2, vec![(0, same)]).0, "that is one member");
    }

    #[test]
    fn what_was_read_for_an_operation_that_is_over_vouches_for_nothing() {
        let mut readers = members(&[&[of(5, 77)], &[of(5, 77), of(5, 77)], &[]]);
        (readers[1].reading, readers[1].stale) = (true, true);
        assert_eq!(asked(readers, 2, Vec::new()), (true, 2, vec![0, 1, 2]));
        let mut readers = members(&[&[of(5, 77)], &[of(5, 77)], &[]]);
        (readers[1].reading, readers[1].stale) = (true, true);
        assert!(!asked(readers, 2, Vec::new()).0, "its answer was to an earlier question");
    }
}
