//! Changes of several commands, of one connection or of many, that the store makes at once.
//!
//! A store that waits for a disk, or for another machine, waits once for all that it is given at once. So commands on one key
//! are carried out on what [`Joined`] shows them: the store, and in front of it what commands before them have changed and
//! the store has not been given yet. Then all of it is [written](Joint::write), and only then is any of them answered, which is
//! the caller's part; so is that a connection waits before it goes on to something that is not carried out so.
//!
//! A key that was looked at is written on the condition that it still has the version that was found, and a key that was only
//! looked at is looked at again when the others have been written. If somebody else was faster, the commands on that key, and no others,
//! are carried out [again](Verdict::Again), in their order: a command has one key, so nothing else can depend on them. Nobody
//! can tell in which order the changes of different keys are made, or whether one that another has replaced ever was.
//!
//! Where others are in the way of a change, as a store that cleans its log may be for a while, the other ones are made, and that one and its
//! commands [wait](Joint::write): whoever serves many does something else meanwhile, and tries again. So they do while a command on several
//! keys holds the key. Where a store's server has [not answered yet](StoreError::UnderWay) nobody knows whether the change has been made, and its
//! key is held until that is known.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::engine::{Bell, Shared};
use crate::holds::Keys;
use crate::protocol::Request;
use crate::store::{Change, Condition, Fetched, HEAD_LEN, Key, Store, StoreError, StoreLimits, Version};

/// So many keys and commands are put off at most, and bytes of values and requests. What is larger gains nothing by company.
const KEYS_MAX: usize = 512;
const PIECES_MAX: usize = 2048;
const BYTES_MAX: usize = 1 << 20;

/// Versions of values that no store has given: they are told apart from those, and from each other.
const UNWRITTEN: u64 = 1 << 63;

/// What commands have changed, and the store has not been given yet.
#[derive(Default, Debug)]
pub struct Joint {
    entries: Vec<Entry>,
    /// By the number of the database, and behind it the name.
    places: BTreeMap<Box<[u8]>, usize>,
    /// The name that is looked for: the buffer is kept.
    sought: Vec<u8>,
    pieces: Vec<Piece>,
    bytes: usize,
    /// The entry that the command under way has looked at.
    touched: Option<usize>,
    version: u64,
    /// All of it has waited for others.
    waited: bool,
    /// Some of it waits for the store.
    obstructed: bool,
    /// The command that it is of holds its keys.
    pub(crate) hold: Option<u64>,
    /// It holds them itself: some of its changes are under way.
    own_hold: Option<u64>,
    /// The store's [mark](Store::mark) when it was first written, if some of it waits.
    mark: Option<u64>,
    /// What is rung when keys are given back that it waits for.
    bell: Option<Arc<dyn Bell>>,
}

/// What is known of one key that the commands looked at.
#[derive(Debug)]
struct Entry {
    /// The number of the database, and behind it the name.
    name: Box<[u8]>,
    base: Base,
    now: Now,
    /// It was looked at twice, and was not the same; or it is not known what it is, as the store was in the way of the look.
    moved: bool,
    /// How many of its values were [written so that something takes less room](Condition::Freeing), and how many were not.
    freeing: usize,
    others: usize,
    verdict: Verdict,
}

/// What the store had when a command looked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Base {
    /// None has looked: what is there makes no difference.
    Unseen,
    Seen(Option<Version>),
}

/// What the key is to have.
#[derive(Debug)]
enum Now {
    Same,
    Value(Vec<u8>, Version),
    Gone,
}

/// What became of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// What was answered holds.
    Done,
    /// Somebody else has changed the key: nothing of it was written.
    Again,
    /// The store has not written it, or nobody knows whether it has.
    Failed(StoreError),
    /// Others are in the way.
    Waits,
}

/// Replies that came out otherwise: where the first ones start and end in an output, and what is to stand there.
#[derive(Default, Debug)]
pub struct Mended(BTreeMap<usize, (usize, Vec<u8>)>);

impl Mended {
    /// The new reply to a command. A later one replaces it.
    pub fn put(&mut self, piece: &Piece, reply: Vec<u8>) {
        self.0.insert(piece.reply.start, (piece.reply.end, reply));
    }

    /// Puts them where they belong, and forgets them.
    pub fn apply(&mut self, output: &mut Vec<u8>) {
        let mended = std::mem::take(&mut self.0);
        let Some((&first, _)) = mended.first_key_value() else { return };
        let before = output.split_off(first.min(output.len()));
        let mut at = first;
        for (start, (end, reply)) in mended {
            // What was wanted for lack of memory is not there any more.
            let Some(kept) = before.get(at - first..start - first) else { break };
            output.extend_from_slice(kept);
            output.extend_from_slice(&reply);
            at = end;
        }
        output.extend_from_slice(before.get(at - first..).unwrap_or_default());
    }
}

/// A command that was carried out, and waits for the store.
#[derive(Debug)]
pub struct Piece {
    /// Whose it is: the caller's number.
    pub owner: usize,
    /// Where its reply stands in that connection's output.
    pub reply: Range<usize>,
    /// The request, as a client would send it; empty if it need never be repeated.
    pub request: Vec<u8>,
    entry: usize,
}

impl Entry {
    /// Whether some of its values were written so that something takes less room, and others were not, by commands that can be repeated.
    fn is_mixed(&self) -> bool {
        self.freeing > 0 && self.others > 0 && self.base != Base::Unseen
    }

    fn is_free(&self) -> bool {
        self.verdict != Verdict::Waits
    }

    fn key(&self) -> Key<'_> {
        Key { space: self.name[0], name: &self.name[1..] }
    }

    /// What is to be written, and on which condition; nothing where nothing was changed in the end.
    fn change(&self) -> Option<Change<'_>> {
        let value = match (&self.now, self.base) {
            _ if self.moved => return None,
            (Now::Same, _) | (Now::Gone, Base::Seen(None)) => return None,
            (Now::Value(value, _), _) => Some(&value[..]),
            (Now::Gone, _) => None,
        };
        let condition = match self.base {
            Base::Seen(version) if self.freeing > 0 && self.others == 0 => Condition::Freeing(version),
            Base::Unseen => Condition::Always,
            Base::Seen(None) => Condition::Absent,
            Base::Seen(Some(version)) => Condition::Is(version),
        };
        Some(Change { key: self.key(), value, condition })
    }
}

impl Joint {
    /// One whose owner is told when keys are given back that [it waits for](Self::write).
    #[must_use]
    pub fn with_bell(bell: Arc<dyn Bell>) -> Self {
        Self { bell: Some(bell), ..Self::default() }
    }

    /// Whether some of what waits does so for the store, which is to be tried again. All else waits for keys that commands hold.
    #[must_use]
    pub const fn is_obstructed(&self) -> bool {
        self.obstructed
    }

    /// Whether a change of what waits has perhaps been made: it is not given up before the store says what came of it.
    #[must_use]
    pub const fn is_under_way(&self) -> bool {
        self.own_hold.is_some()
    }

    /// Whether nothing has been put off.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.pieces.is_empty()
    }

    /// Whether anything more may be put off.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.entries.len() < KEYS_MAX && self.pieces.len() < PIECES_MAX && self.bytes < BYTES_MAX
    }

    /// Commands that wait for the store.
    #[must_use]
    pub const fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Has the store write all of it, and returns the commands whose answers do not hold, with the reasons, in the order in which they
    /// were carried out. What others are in the way of stays here, with its commands, to be written again; of anything else nothing is put off
    /// from here on.
    ///
    /// # Panics
    /// The store does not answer for each change.
    pub fn write<S: Store + ?Sized>(&mut self, store: &mut S, shared: &Shared) -> Vec<(Piece, Verdict)> {
        let mark = self.mark.unwrap_or_else(|| store.mark());
        let before = store.recall(self.mark);
        let left = self.write_at(store, shared);
        store.recall(before);
        self.mark = (!self.is_empty()).then_some(mark);
        left
    }

    fn write_at<S: Store + ?Sized>(&mut self, store: &mut S, shared: &Shared) -> Vec<(Piece, Verdict)> {
        let own = self.hold.or(self.own_hold);
        for entry in &mut self.entries {
            let writes = entry.change().is_some();
            if shared.keys_held.bar(entry.key(), writes, own, self.bell.as_ref()) {
                entry.verdict = Verdict::Waits;
            }
        }
        let barred = self.waits();
        let is_changed = |n: &usize| self.entries[*n].is_free() && self.entries[*n].change().is_some();
        let changed: Vec<usize> = (0..self.entries.len()).filter(is_changed).collect();
        let changes: Vec<Change<'_>> = changed.iter().filter_map(|n| self.entries[*n].change()).collect();
        let mut done = Vec::with_capacity(changes.len());
        if !changes.is_empty() {
            store.change_many(&changes, &mut done);
        }
        assert_eq!(done.len(), changes.len(), "a store answers for each change");
        let is_under_way = |done: &&Result<bool, StoreError>| **done == Err(StoreError::UnderWay);
        let held =
            changes.iter().zip(&done).filter(|(_, done)| is_under_way(done)).map(|(change, _)| change.key);
        let held = Some(Keys::changed(held)).filter(|held| !held.is_empty());
        let mut verdicts = Vec::with_capacity(done.len());
        for ((change, n), done) in changes.iter().zip(&changed).zip(done) {
            let unconditional = change.condition == Condition::Always;
            if done.as_ref().is_err_and(StoreError::waits) {
                verdicts.push(Verdict::Waits);
                continue;
            }
            verdicts.push(match done {
                // To delete what is not there is no failure.
                Ok(there) if there || unconditional => Verdict::Done,
                Ok(_) => Verdict::Again,
                // Those that free are not refused for the others' sake: each by itself.
                Err(StoreError::Full) if self.entries[*n].is_mixed() => Verdict::Again,
                Err(error) => Verdict::Failed(error),
            });
            shared.wrote(change.key);
            if let (Some(Verdict::Failed(StoreError::Full)), Some(value)) = (verdicts.last(), change.value) {
                shared.has_no_room(change.key, value);
            }
            // Before it has landed others find nothing to fold.
            if verdicts.last() == Some(&Verdict::Done)
                && let Some(value) = change.value
            {
                shared.fold_if_due(change.key, value);
            }
        }
        // What has waited comes behind what was written meanwhile.
        let any = !changes.is_empty() || self.waited;
        for (n, verdict) in changed.into_iter().zip(verdicts) {
            self.entries[n].verdict = verdict;
        }
        for entry in &mut self.entries {
            entry.verify(store, any);
        }
        let obstructed = self.waits() > barred;
        let mut left = Vec::new();
        let (mut pieces, mut places) = (Vec::new(), BTreeMap::new());
        if self.entries.iter().any(|entry| entry.verdict != Verdict::Done) {
            for piece in self.pieces.drain(..) {
                match self.entries[piece.entry].verdict.clone() {
                    Verdict::Done => {}
                    Verdict::Waits => {
                        let next = places.len();
                        let entry = *places.entry(piece.entry).or_insert(next);
                        pieces.push(Piece { entry, ..piece });
                    }
                    verdict => left.push((piece, verdict)),
                }
            }
        }
        let mut waits: Vec<(usize, Entry)> = self
            .entries
            .drain(..)
            .enumerate()
            .filter_map(|(n, entry)| Some((*places.get(&n)?, Entry { verdict: Verdict::Done, ..entry })))
            .collect();
        waits.sort_unstable_by_key(|(place, _)| *place);
        self.clear();
        self.entries.extend(waits.into_iter().map(|(_, entry)| entry));
        (self.waited, self.obstructed) = (!pieces.is_empty(), obstructed);
        self.pieces = pieces;
        // Those that have begun on one of them are on that key alone, and depend on its version.
        let over = match held {
            Some(_) if self.hold.is_some() => None,
            held => std::mem::replace(&mut self.own_hold, held.map(|held| shared.keys_held.take(held))),
        };
        over.into_iter().for_each(|hold| shared.give_back(hold));
        left
    }

    /// How many keys wait.
    fn waits(&self) -> usize {
        self.entries.iter().filter(|entry| !entry.is_free()).count()
    }

    /// Gives up what has waited for too long.
    pub fn give_up(&mut self) -> Vec<(Piece, Verdict)> {
        let why = Verdict::Failed(StoreError::InTheWay);
        let left = self.pieces.drain(..).map(|piece| (piece, why.clone())).collect();
        self.clear();
        left
    }

    /// Whose commands these are.
    pub fn owners(&self) -> impl Iterator<Item = usize> {
        self.pieces.iter().map(|piece| piece.owner)
    }

    /// Bytes of the values that are to be written.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        let bytes = |entry: &Entry| match &entry.now {
            Now::Value(value, _) => value.len(),
            Now::Same | Now::Gone => 0,
        };
        self.entries.iter().map(bytes).sum()
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.places.clear();
        self.pieces.clear();
        self.bytes = 0;
        self.touched = None;
        (self.waited, self.obstructed) = (false, false);
    }

    /// The command under way has not been carried out.
    pub(crate) const fn forget(&mut self) {
        self.touched = None;
    }

    /// Notes a command that was to be carried out again, and could not be, as the store was in the way: it comes again.
    pub(crate) fn postpone(&mut self, piece: &Piece, key: Key<'_>) {
        let n = self.find(key).unwrap_or_else(|| self.add(Base::Unseen));
        self.entries[n].moved = true;
        self.note_again(piece);
    }

    /// Notes a command that has just been carried out, if what it answered depends on the store's taking it.
    pub(crate) fn note(&mut self, owner: usize, reply: Range<usize>, request: &Request<'_>) {
        let Some(entry) = self.touched.take() else { return };
        let mut bytes = Vec::new();
        if self.entries[entry].base != Base::Unseen {
            request.encode(&mut bytes);
            self.bytes += bytes.len();
        }
        self.pieces.push(Piece { owner, reply, request: bytes, entry });
    }

    /// The same of one that was carried out again.
    pub(crate) fn note_again(&mut self, piece: &Piece) {
        let Some(entry) = self.touched.take() else { return };
        self.bytes += piece.request.len();
        self.pieces.push(Piece {
            reply: piece.reply.clone(),
            request: piece.request.clone(),
            entry,
            ..*piece
        });
    }

    /// The key's entry, if there is one; the command under way has looked at it.
    fn find(&mut self, key: Key<'_>) -> Option<usize> {
        self.sought.clear();
        self.sought.push(key.space);
        self.sought.extend_from_slice(key.name);
        let found = self.places.get(&self.sought[..]).copied();
        self.touched = found.or(self.touched);
        found
    }

    /// Adds the key that was [not found](Self::find) just now.
    fn add(&mut self, base: Base) -> usize {
        let n = self.entries.len();
        let name = Box::<[u8]>::from(&self.sought[..]);
        self.places.insert(name.clone(), n);
        self.bytes += name.len();
        let (now, verdict) = (Now::Same, Verdict::Done);
        self.entries.push(Entry { name, base, now, moved: false, freeing: 0, others: 0, verdict });
        self.touched = Some(n);
        n
    }

    const fn next_version(&mut self) -> Version {
        self.version += 1;
        Version(UNWRITTEN | self.version)
    }
}

impl Entry {
    /// Looks again at what was only looked at, if there was something to come before it: `any`.
    fn verify<S: Store + ?Sized>(&mut self, store: &mut S, any: bool) {
        if !self.is_free() {
            return;
        }
        let seen = match self.base {
            _ if self.moved => None,
            Base::Seen(base) if any && self.change().is_none() => Some(base),
            Base::Seen(_) | Base::Unseen => return,
        };
        self.verdict = match store.head(self.key(), &mut Vec::with_capacity(HEAD_LEN)) {
            // It is to be carried out again when it can be.
            Err(error) if error.waits() => Verdict::Waits,
            _ if self.moved => Verdict::Again,
            Ok(version) if Some(version) == seen => Verdict::Done,
            Ok(_) => Verdict::Again,
            Err(error) => Verdict::Failed(error),
        };
    }
}

/// A store, and what has been changed in front of it.
#[derive(Debug)]
pub struct Joined<'a, S: ?Sized> {
    pub(crate) store: &'a mut S,
    pub(crate) joint: &'a mut Joint,
}

impl<S: Store + ?Sized> Joined<'_, S> {
    /// What a key has, found by `look` where the store has to be asked; what there is to read of it is put into `value`.
    fn look(
        &mut self,
        key: Key<'_>,
        value: &mut Vec<u8>,
        max: usize,
        look: impl FnOnce(&mut S, Key<'_>, &mut Vec<u8>) -> Result<Option<Version>, StoreError>,
    ) -> Result<Option<Version>, StoreError> {
        let Some(n) = self.joint.find(key) else {
            let version = look(self.store, key, value)?;
            self.joint.add(Base::Seen(version));
            return Ok(version);
        };
        let entry = &mut self.joint.entries[n];
        match &entry.now {
            Now::Value(bytes, version) => {
                value.extend_from_slice(&bytes[..bytes.len().min(max)]);
                return Ok(Some(*version));
            }
            Now::Gone => return Ok(None),
            Now::Same => {}
        }
        let version = look(self.store, key, value)?;
        entry.moved |= entry.base != Base::Seen(version);
        Ok(version)
    }

    /// The version that a key has, and its entry.
    fn current(&mut self, key: Key<'_>) -> Result<(usize, Option<Version>), StoreError> {
        let version = self.look(key, &mut Vec::with_capacity(HEAD_LEN), 0, S::head)?;
        Ok((self.joint.touched.expect("it was looked at"), version))
    }

    /// The key's entry, if the condition holds.
    fn admit(&mut self, key: Key<'_>, condition: Condition) -> Result<Option<usize>, StoreError> {
        let wanted = match condition {
            Condition::Always => {
                let found = self.joint.find(key);
                return Ok(Some(found.unwrap_or_else(|| self.joint.add(Base::Unseen))));
            }
            Condition::Absent => None,
            Condition::Is(version) => Some(version),
            Condition::Freeing(version) | Condition::Moving(version) => version,
        };
        let (n, version) = self.current(key)?;
        Ok((version == wanted).then_some(n))
    }
}

impl<S: Store + ?Sized> Store for Joined<'_, S> {
    fn limits(&self) -> StoreLimits {
        self.store.limits()
    }

    fn get(&mut self, key: Key<'_>, value: &mut Vec<u8>) -> Result<Option<Version>, StoreError> {
        self.look(key, value, usize::MAX, S::get)
    }

    fn head(&mut self, key: Key<'_>, head: &mut Vec<u8>) -> Result<Option<Version>, StoreError> {
        self.look(key, head, HEAD_LEN, S::head)
    }

    fn put(&mut self, key: Key<'_>, value: &[u8], condition: Condition) -> Result<bool, StoreError> {
        self.store.limits().check(key, value)?;
        let Some(n) = self.admit(key, condition)? else { return Ok(false) };
        let version = self.joint.next_version();
        self.joint.bytes += value.len();
        let entry = &mut self.joint.entries[n];
        match condition {
            Condition::Freeing(_) => entry.freeing += 1,
            _ => entry.others += 1,
        }
        match &mut entry.now {
            Now::Value(bytes, last) => {
                value.clone_into(bytes);
                *last = version;
            }
            now => *now = Now::Value(value.to_vec(), version),
        }
        Ok(true)
    }

    fn delete(&mut self, key: Key<'_>, condition: Condition) -> Result<bool, StoreError> {
        let (n, version) = self.current(key)?;
        let holds = match condition {
            Condition::Always => true,
            Condition::Absent => version.is_none(),
            Condition::Is(wanted) => version == Some(wanted),
            Condition::Freeing(wanted) | Condition::Moving(wanted) => version == wanted,
        };
        let gone = holds && version.is_some();
        if gone {
            self.joint.entries[n].now = Now::Gone;
        }
        Ok(gone)
    }

    fn beneath(&mut self, keys: &[Key<'_>], values: &mut Vec<u8>, found: &mut Vec<Fetched>) {
        self.store.beneath(keys, values, found);
    }

    fn is_outdated(&mut self, key: Key<'_>) -> bool {
        let Some(n) = self.joint.find(key) else { return true };
        let entry = &mut self.joint.entries[n];
        let bare = matches!(entry.now, Now::Same);
        entry.moved |= !bare;
        bare
    }

    // What goes over many keys is not carried out in front of a store.

    fn scan(
        &mut self,
        space: u8,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<u64, StoreError> {
        self.store.scan(space, cursor, count, each)
    }

    fn anywhere(&self, random: u64) -> u64 {
        self.store.anywhere(random)
    }

    fn count(&mut self, space: u8) -> Result<Option<u64>, StoreError> {
        self.store.count(space)
    }

    fn clear(&mut self, space: Option<u8>, cursor: u64) -> Result<u64, StoreError> {
        self.store.clear(space, cursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Config;
    use crate::memory::MemoryStore;

    const A: Key<'_> = Key { space: 0, name: b"a" };
    const B: Key<'_> = Key { space: 0, name: b"b" };

    fn value(store: &mut impl Store, key: Key<'_>) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        store.get(key, &mut value).unwrap().map(|_| value)
    }

    /// Carries something out as one command.
    fn command<T>(
        joint: &mut Joint,
        store: &mut MemoryStore,
        owner: usize,
        mut command: impl FnMut(&mut Joined<'_, MemoryStore>) -> T,
    ) -> T {
        let done = command(&mut Joined { store, joint });
        let mut decoder = crate::protocol::Decoder::new(crate::protocol::Limits::default());
        decoder.push(b"PING\r\n");
        joint.note(owner, 0..0, &decoder.next(false).unwrap().unwrap());
        done
    }

    #[test]
    fn what_was_put_off_is_seen_by_those_that_follow_and_by_nobody_else_before_it_is_written() {
        let (mut store, mut joint) = (MemoryStore::default(), Joint::default());
        let shared = Shared::new(Config::default(), 0);
        store.put(B, b"old", Condition::Always).unwrap();
        command(&mut joint, &mut store, 1, |joined| {
            assert!(joined.put(A, b"1", Condition::Absent).unwrap());
            let version = joined.head(A, &mut Vec::new()).unwrap().unwrap();
            assert!(!joined.put(A, b"2", Condition::Absent).unwrap());
            assert!(joined.put(A, b"2", Condition::Is(version)).unwrap());
            assert!(!joined.put(A, b"3", Condition::Is(version)).unwrap());
            assert_eq!(value(joined, A).as_deref(), Some(&b"2"[..]));
        });
        command(&mut joint, &mut store, 2, |joined| {
            assert!(joined.delete(B, Condition::Always).unwrap());
            assert!(!joined.delete(B, Condition::Always).unwrap());
            assert_eq!(value(joined, B), None);
        });
        assert_eq!((value(&mut store, A), value(&mut store, B).as_deref()), (None, Some(&b"old"[..])));
        assert!(joint.write(&mut store, &shared).is_empty());
        assert!(joint.is_empty());
        assert_eq!((value(&mut store, A).as_deref(), value(&mut store, B)), (Some(&b"2"[..]), None));
    }

    #[test]
    fn commands_on_a_key_that_somebody_else_has_changed_come_again_and_no_others() {
        let shared = Shared::new(Config::default(), 0);
        for (changed, written) in [(A, true), (A, false), (B, true), (B, false)] {
            let (mut store, mut joint) = (MemoryStore::default(), Joint::default());
            if written {
                store.put(changed, b"before", Condition::Always).unwrap();
            }
            // One that depends on what it found, one that only looked, one that did neither.
            let look = |joined: &mut Joined<'_, MemoryStore>| value(joined, A);
            command(&mut joint, &mut store, 1, look);
            command(&mut joint, &mut store, 2, |joined| {
                let version = joined.head(B, &mut Vec::new()).unwrap();
                let condition = version.map_or(Condition::Absent, Condition::Is);
                assert!(joined.put(B, b"next", condition).unwrap());
            });
            let blind = Key { space: 1, name: b"a" };
            command(&mut joint, &mut store, 3, |joined| {
                assert!(joined.put(blind, b"blind", Condition::Always).unwrap());
            });
            store.put(changed, b"between", Condition::Always).unwrap();
            store.put(blind, b"between", Condition::Always).unwrap();
            let left = joint.write(&mut store, &shared);
            let owners: Vec<usize> = left.iter().map(|(piece, _)| piece.owner).collect();
            assert_eq!(owners, [if changed == A { 1 } else { 2 }]);
            assert!(
                left.iter()
                    .all(|(piece, verdict)| { *verdict == Verdict::Again && !piece.request.is_empty() })
            );
            let b: &[u8] = if changed == A { b"next" } else { b"between" };
            assert_eq!(value(&mut store, B).as_deref(), Some(b));
            assert_eq!(value(&mut store, blind).as_deref(), Some(&b"blind"[..]));
        }
    }

    #[test]
    fn what_frees_may_take_kept_room_unless_it_is_written_with_what_does_not() {
        let (mut store, mut joint) = (MemoryStore::default(), Joint::default());
        store.put(B, b"there", Condition::Always).unwrap();
        let version = store.get(B, &mut Vec::new()).unwrap();
        let put =
            |joint: &mut Joint, store: &mut MemoryStore, condition: fn(Option<Version>) -> Condition| {
                command(joint, store, 1, |joined| {
                    let found = joined.get(B, &mut Vec::new()).unwrap();
                    assert!(joined.put(B, b"next", condition(found)).unwrap());
                });
            };
        let other = |found: Option<Version>| found.map_or(Condition::Absent, Condition::Is);
        let conditions = |joint: &Joint| {
            joint.entries.iter().filter_map(Entry::change).map(|c| c.condition).collect::<Vec<_>>()
        };
        put(&mut joint, &mut store, Condition::Freeing);
        put(&mut joint, &mut store, Condition::Freeing);
        assert_eq!(conditions(&joint), [Condition::Freeing(version)]);
        put(&mut joint, &mut store, other);
        assert_eq!(conditions(&joint), [Condition::Is(version.unwrap())]);
        assert!(joint.entries[0].is_mixed());
    }

    #[test]
    fn what_came_and_went_is_not_written() {
        let (mut store, mut joint) = (MemoryStore::default(), Joint::default());
        let shared = Shared::new(Config::default(), 0);
        command(&mut joint, &mut store, 1, |joined| {
            assert!(joined.put(A, b"1", Condition::Absent).unwrap());
            assert!(joined.delete(A, Condition::Always).unwrap());
        });
        assert!(joint.write(&mut store, &shared).is_empty());
        assert_eq!(store.count(0), Ok(Some(0)));
        // Without a look it has to be deleted: nobody knows what is there.
        store.put(A, b"there", Condition::Always).unwrap();
        command(&mut joint, &mut store, 1, |joined| {
            assert!(joined.put(A, b"1", Condition::Always).unwrap());
            assert!(joined.delete(A, Condition::Always).unwrap());
        });
        assert!(joint.write(&mut store, &shared).is_empty());
        assert_eq!(value(&mut store, A), None);
    }
}
