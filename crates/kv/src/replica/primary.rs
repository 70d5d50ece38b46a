//! The one member that serves: it takes the log over, ships changes, trims the log behind the images, and rebuilds members
//! that have lost theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use remanence_remotelog::group::{ConnectionLost, Opened, ReplicaConnection};
use remanence_remotelog::{Epoch, Group, GroupError};

pub use remanence_remotelog::group::Options;

use super::change::Changes;
use super::keeper::{BLOCK, Order, Told};
use super::mirror::Ship;

/// The connection to a member: its log, and its image.
pub trait Member: ReplicaConnection {
    /// Has it do something with its image.
    ///
    /// # Errors
    /// The member is gone.
    fn order(&mut self, epoch: Epoch, order: &Order) -> Result<Told, ConnectionLost>;

    /// Begins to have it do something with its image; what it says comes out of [`poll_told`](Self::poll_told). There is one such
    /// order at a time.
    ///
    /// # Errors
    /// The member is gone.
    fn begin_order(&mut self, epoch: Epoch, order: &Order) -> Result<(), ConnectionLost>;

    /// What it says to the order that was begun, when it has.
    ///
    /// # Errors
    /// The member is gone.
    fn poll_told(&mut self) -> Result<Option<Told>, ConnectionLost>;

    /// The longest record that its log takes, bytes.
    fn record_max(&self) -> usize;

    /// Bytes of its image.
    fn image_len(&self) -> u64;
}

/// Why this member does not become, or stay, the primary. What was acknowledged is safe in every case.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LeadError {
    /// The log cannot be taken over.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// It has no image to begin with.
    #[error(
        "this member's image is incomplete or out of date ({0}): let another member take over, which rebuilds it"
    )]
    NoImage(String),
    /// Somebody else was the primary meanwhile.
    #[error("another member has become the primary; connect to that one")]
    Deposed,
}

/// How the rebuilding of a member goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rebuilding {
    /// Nobody needs it, as far as is known.
    Nobody,
    /// So much of this member's image is there.
    UnderWay {
        /// The name of the member that is being rebuilt.
        name: String,
        /// Bytes that were sent.
        sent: u64,
        /// Bytes in all.
        of: u64,
    },
    /// This member has an image again.
    Done(String),
}

/// What the images of members have in a place.
pub type Fetch<'a> = &'a mut dyn FnMut(u64, u32) -> Vec<Vec<u8>>;
/// Puts right what is damaged in this member's own image.
pub type PutRight = Box<dyn FnMut(Fetch<'_>) + Send>;

struct Rebuild {
    name: String,
    /// The image is that of this record, or later: the log keeps it until then.
    from: u64,
    at: u64,
}

/// The primary's half of replication.
pub struct Primary<C> {
    /// `None`: it is the primary no more.
    group: Option<Group<C>>,
    own: String,
    options: Options,
    epoch: Epoch,
    /// How far the images are, of those that have one.
    applied: BTreeMap<String, u64>,
    needs_image: Vec<String>,
    /// Members whose images do not follow, and why.
    behind: BTreeMap<String, String>,
    /// Members that were asked to follow and have not said yet how far they are.
    asked: BTreeSet<String>,
    /// The log is to be trimmed when the images have followed.
    trim: bool,
    rebuild: Option<Rebuild>,
    put_right: Option<PutRight>,
    record_max: usize,
    image_len: u64,
    /// Bytes that were shipped since the log was trimmed, and after how many it is to be.
    shipped: u64,
    trim_after: u64,
    trimmed: u64,
}

impl<C> fmt::Debug for Primary<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Primary").field("own", &self.own).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

fn member<'a, C: Member>(group: &'a mut Group<C>, name: &str) -> Option<&'a mut C> {
    group.connections().find(|(other, _)| *other == name).map(|(_, member)| member)
}

impl<C: Member> Primary<C> {
    /// Takes the log over. On return nobody else can ship, and the image of `own` has all that was ever acknowledged: copy
    /// it to a working medium, put a [`Mirror`](super::Mirror) over that, and open the store.
    ///
    /// `trim_after` is how many bytes are shipped before images and log are brought up to date; a quarter of the log is
    /// fair.
    ///
    /// # Errors
    /// Too few members, a faster one, or no image here.
    pub fn lead(
        members: Vec<(String, Result<C, ConnectionLost>)>,
        own: &str,
        options: &Options,
        trim_after: u64,
    ) -> Result<(Self, Opened), LeadError> {
        let (group, opened) = Group::open(members, options)?;
        let mut this = Self {
            epoch: group.epoch(),
            group: Some(group),
            own: own.to_owned(),
            options: *options,
            applied: BTreeMap::new(),
            needs_image: Vec::new(),
            behind: BTreeMap::new(),
            asked: BTreeSet::new(),
            trim: false,
            rebuild: None,
            put_right: None,
            record_max: 0,
            image_len: 0,
            shipped: 0,
            trim_after,
            trimmed: 0,
        };
        this.measure();
        let group = this.group.as_mut().expect("opened just now");
        let (next, epoch) = (group.next(), this.epoch);
        let Some(own) = member(group, own) else { return Err(LeadError::NoImage("its log is gone".into())) };
        match own.order(epoch, &Order::Apply { below: next }) {
            Ok(Told::Applied(below)) if below == next => Ok((this, opened)),
            Ok(Told::Applied(_)) => Err(LeadError::NoImage("it is ahead of the log".into())),
            Ok(Told::NeedsImage) => Err(LeadError::NoImage("records that it lacks were trimmed".into())),
            Ok(Told::Refused(why)) => Err(LeadError::NoImage(why)),
            Ok(Told::Bytes(_) | Told::Ok) => Err(LeadError::NoImage("it says what means nothing".into())),
            Err(error) => Err(LeadError::NoImage(error.to_string())),
        }
    }

    fn measure(&mut self) {
        let Some(group) = &mut self.group else { return };
        let (mut record, mut image) = (usize::MAX, u64::MAX);
        for (_, member) in group.connections() {
            record = record.min(member.record_max());
            image = image.min(member.image_len());
        }
        // Whoever has not said yet how far its image is may need all that its log has.
        group.keep_all(0);
        (self.record_max, self.image_len) = (record, image);
    }

    /// Takes members in that came back, by opening the log again: these connections in place of the old ones, all of them.
    /// What was shipped was acknowledged, so nothing is under way.
    ///
    /// # Errors
    /// It is the primary no more.
    pub fn reopen(&mut self, members: Vec<(String, Result<C, ConnectionLost>)>) -> Result<Opened, LeadError> {
        let next = self.group.take().map(|group| group.next()).ok_or(LeadError::Deposed)?;
        let (group, opened) = Group::open(members, &self.options)?;
        // Whoever was the primary in between has shipped a record before anything else, and it would be there, or was
        // never acknowledged, and that primary is shut out now.
        if group.next() != next {
            return Err(LeadError::Deposed);
        }
        self.epoch = group.epoch();
        self.group = Some(group);
        self.rebuild = None;
        self.asked.clear();
        self.measure();
        Ok(opened)
    }

    /// The epoch under which this primary has the log.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Members that do without, and why.
    #[must_use]
    pub fn lost(&self) -> Vec<(String, String)> {
        self.group.as_ref().map(Group::lost).unwrap_or_default()
    }

    /// Members that are there and whose images do not follow, and why. Their logs have what was acknowledged; the log is trimmed
    /// only behind the images of enough others.
    #[must_use]
    pub fn behind(&self) -> Vec<(String, String)> {
        self.behind.iter().map(|(name, why)| (name.clone(), why.clone())).collect()
    }

    /// Records that were trimmed so far.
    #[must_use]
    pub const fn trimmed(&self) -> u64 {
        self.trimmed
    }

    /// Lets members go on that have not come as far as the others: they are taken in, or copy what they have missed. How many take
    /// part. Does not wait.
    ///
    /// # Errors
    /// It is the primary no more.
    pub fn poll(&mut self) -> Result<usize, LeadError> {
        let group = self.group.as_mut().ok_or(LeadError::Deposed)?;
        group.poll()?;
        let part = group.connections().count();
        self.take_told()?;
        if self.trim && self.asked.len() < part {
            self.trim_behind_images()?;
        }
        Ok(part)
    }

    /// Has the images follow, and trims the log behind them. Waits for them.
    ///
    /// # Errors
    /// It is the primary no more.
    pub fn follow(&mut self) -> Result<(), LeadError> {
        self.catch_up()?;
        let below = self.kept_from()?;
        let group = self.group.as_mut().ok_or(LeadError::Deposed)?;
        group.trim(below)?;
        (self.trimmed, self.shipped, self.trim) = (self.trimmed.max(below), 0, false);
        Ok(())
    }

    /// From which record on the log is kept: behind it are the images of as many members as acknowledge.
    fn kept_from(&self) -> Result<u64, LeadError> {
        let acks = self.group.as_ref().ok_or(LeadError::Deposed)?.quorum().0;
        let mut applied: Vec<u64> = self.applied.values().copied().collect();
        applied.sort_unstable_by_key(|applied| std::cmp::Reverse(*applied));
        let images = applied.get(acks - 1).copied().unwrap_or(0);
        Ok(self.rebuild.as_ref().map_or(images, |rebuild| rebuild.from.min(images)))
    }

    /// Trims as far as the images are that have said so, whoever has not.
    fn trim_behind_images(&mut self) -> Result<(), LeadError> {
        let below = self.kept_from()?;
        let group = self.group.as_mut().ok_or(LeadError::Deposed)?;
        if below > self.trimmed {
            group.begin_trim(below)?;
            self.trimmed = below;
        }
        self.trim = !self.asked.is_empty();
        Ok(())
    }

    /// Has the images follow. The log keeps its records: a member that was away needs no image as long as the others' logs have
    /// what it lacks. Waits for all that are there.
    ///
    /// # Errors
    /// It is the primary no more.
    pub fn catch_up(&mut self) -> Result<(), LeadError> {
        // Who was asked before may say less than is asked for now.
        self.wait_for_told()?;
        self.begin_to_catch_up()?;
        self.wait_for_told()
    }

    fn wait_for_told(&mut self) -> Result<(), LeadError> {
        self.take_told()?;
        while !self.asked.is_empty() {
            let group = self.group.as_mut().ok_or(LeadError::Deposed)?;
            group.pause()?;
            self.take_told()?;
        }
        Ok(())
    }

    /// Asks the images to follow, and does not wait: [`poll`](Self::poll) takes what their members say.
    ///
    /// # Errors
    /// It is the primary no more.
    pub fn begin_to_catch_up(&mut self) -> Result<(), LeadError> {
        let group = self.group.as_mut().ok_or(LeadError::Deposed)?;
        let (below, epoch) = (group.acknowledged(), self.epoch);
        // Who is lost is said to be lost.
        let lost = group.lost();
        self.behind.retain(|name, _| lost.iter().all(|(other, _)| other != name));
        for (name, member) in group.connections() {
            if self.rebuild.as_ref().is_some_and(|rebuild| rebuild.name == name) || self.asked.contains(name)
            {
                continue;
            }
            // The log's own calls find out whether it is gone.
            if member.begin_order(epoch, &Order::Apply { below }).is_ok() {
                self.asked.insert(name.to_owned());
            }
        }
        Ok(())
    }

    /// Takes what members say that were asked to follow.
    fn take_told(&mut self) -> Result<(), LeadError> {
        if self.asked.is_empty() {
            return Ok(());
        }
        let group = self.group.as_mut().ok_or(LeadError::Deposed)?;
        let mut waiting = BTreeSet::new();
        let mut kept: Vec<(String, u64)> = Vec::new();
        for (name, member) in group.connections().filter(|(name, _)| self.asked.contains(*name)) {
            let name = name.to_owned();
            let told = match member.poll_told() {
                Ok(None) => {
                    waiting.insert(name);
                    continue;
                }
                Ok(Some(told)) => told,
                Err(_) => continue,
            };
            // Its log keeps what its image has still to take, if it takes anything.
            kept.push((name.clone(), if let Told::Applied(applied) = told { applied } else { u64::MAX }));
            match told {
                Told::Applied(applied) => {
                    self.behind.remove(&name);
                    self.applied.insert(name, applied);
                }
                Told::NeedsImage => {
                    self.behind.remove(&name);
                    self.applied.remove(&name);
                    if !self.needs_image.contains(&name) {
                        self.needs_image.push(name);
                    }
                }
                // It has what it said last, and that durably; nothing more, until somebody sees to it.
                Told::Refused(why) => drop(self.behind.insert(name, why)),
                Told::Bytes(_) | Told::Ok => {}
            }
        }
        for (name, from) in kept {
            group.keep(&name, from);
        }
        // Who does not take part any more says nothing.
        self.asked = waiting;
        Ok(())
    }

    /// Has this called before an image is sent because the log has no room without, whatever was checked by then.
    pub fn set_put_right(&mut self, put_right: PutRight) {
        self.put_right = Some(put_right);
    }

    /// Who is to be rebuilt next, unless somebody is being rebuilt: its image is still what it was. Whoever can tell sound values
    /// from damaged ones puts this member's image right before it is sent.
    #[must_use]
    pub fn needs_image(&self) -> Option<&str> {
        self.needs_image.first().filter(|_| self.rebuild.is_none()).map(String::as_str)
    }

    /// Sends a member that has no image some of it, about `budget` bytes. The store is served meanwhile.
    ///
    /// # Errors
    /// It is the primary no more, or this member's own image cannot be read.
    pub fn rebuild(&mut self, budget: u64) -> Result<Rebuilding, LeadError> {
        let epoch = self.epoch;
        if self.rebuild.is_none() {
            let Some(name) = self.needs_image.first().cloned() else { return Ok(Rebuilding::Nobody) };
            let group = self.group.as_mut().ok_or(LeadError::Deposed)?;
            let below = group.acknowledged();
            let own = member(group, &self.own).ok_or_else(|| LeadError::NoImage("its log is gone".into()))?;
            let from = match own.order(epoch, &Order::Apply { below }) {
                Ok(Told::Applied(applied)) => applied,
                Ok(other) => return Err(LeadError::NoImage(format!("{other:?}"))),
                Err(error) => return Err(LeadError::NoImage(error.to_string())),
            };
            let begun = member(group, &name).map(|member| member.order(epoch, &Order::Begin));
            if !matches!(begun, Some(Ok(Told::Ok))) {
                self.needs_image.retain(|other| *other != name);
                return Ok(Rebuilding::Nobody);
            }
            self.rebuild = Some(Rebuild { name, from, at: 0 });
        }
        let mut sent = 0;
        while sent < budget {
            let rebuild = self.rebuild.as_ref().expect("begun");
            let (name, at, from) = (rebuild.name.clone(), rebuild.at, rebuild.from);
            let group = self.group.as_mut().ok_or(LeadError::Deposed)?;
            if at == self.image_len {
                let ended =
                    member(group, &name).map(|member| member.order(epoch, &Order::End { applied: from }));
                self.rebuild = None;
                self.needs_image.retain(|other| *other != name);
                return Ok(match ended {
                    Some(Ok(Told::Ok)) => {
                        self.applied.insert(name.clone(), from);
                        if let Some(group) = &mut self.group {
                            group.keep(&name, from);
                        }
                        Rebuilding::Done(name)
                    }
                    _ => Rebuilding::Nobody,
                });
            }
            let len = (self.image_len - at).min(BLOCK as u64) as u32;
            let own = member(group, &self.own).ok_or_else(|| LeadError::NoImage("its log is gone".into()))?;
            let bytes = match own.order(epoch, &Order::Read { at, len }) {
                Ok(Told::Bytes(bytes)) => bytes,
                Ok(other) => return Err(LeadError::NoImage(format!("{other:?}"))),
                Err(error) => return Err(LeadError::NoImage(error.to_string())),
            };
            let bytes = if bytes.iter().all(|byte| *byte == 0) { Vec::new() } else { bytes };
            let block = Order::Block { at, bytes, len };
            if !matches!(member(group, &name).map(|member| member.order(epoch, &block)), Some(Ok(Told::Ok))) {
                // Lost again: it begins anew when it comes back.
                self.rebuild = None;
                self.needs_image.retain(|other| *other != name);
                return Ok(Rebuilding::Nobody);
            }
            sent += u64::from(len);
            self.rebuild.as_mut().expect("begun").at += u64::from(len);
        }
        let rebuild = self.rebuild.as_ref().expect("begun");
        Ok(Rebuilding::UnderWay { name: rebuild.name.clone(), sent: rebuild.at, of: self.image_len })
    }

    /// What the images of all members that answer have there, this one's included: each as it was at its last record, after all
    /// were asked to follow. For a value that is damaged here, whose checksum says which of them is sound.
    pub fn copies(&mut self, at: u64, len: u32) -> Vec<Vec<u8>> {
        // It waits for who is slow, as whoever has an image follow does; nobody asks unless something is damaged.
        if self.catch_up().is_err() {
            return Vec::new();
        }
        let epoch = self.epoch;
        let Some(group) = &mut self.group else { return Vec::new() };
        let mut copies = Vec::new();
        for (_, member) in group.connections() {
            let mut copy = Vec::with_capacity(len as usize);
            while (copy.len() as u32) < len {
                let done = copy.len() as u32;
                let read = Order::Read { at: at + u64::from(done), len: (len - done).min(BLOCK as u32) };
                match member.order(epoch, &read) {
                    Ok(Told::Bytes(bytes)) if !bytes.is_empty() => copy.extend(bytes),
                    _ => break,
                }
            }
            if copy.len() == len as usize {
                copies.push(copy);
            }
        }
        copies
    }

    /// Members whose images have something else than this in a place, of those that have all that is acknowledged: what is served
    /// there is settled, and known to be sound. Who is behind, or lacks an image, has a reason that is said elsewhere.
    pub fn differing(&mut self, at: u64, served: &[u8]) -> Vec<String> {
        let (epoch, applied) = (self.epoch, &self.applied);
        let Some(group) = &mut self.group else { return Vec::new() };
        let acknowledged = group.acknowledged();
        let follows = |name: &str| applied.get(name).is_some_and(|applied| *applied >= acknowledged);
        let mut differing = Vec::new();
        for (name, member) in group.connections().filter(|(name, _)| follows(name)) {
            let mut differs = false;
            for (at, block) in (at..).step_by(BLOCK).zip(served.chunks(BLOCK)) {
                match member.order(epoch, &Order::Read { at, len: block.len() as u32 }) {
                    Ok(Told::Bytes(bytes)) => differs |= bytes != block,
                    _ => break,
                }
            }
            if differs {
                differing.push(name.to_owned());
            }
        }
        differing
    }

    fn append(&mut self, record: &[u8]) -> Result<(), LeadError> {
        self.leave_room()?;
        let group = self.group.as_mut().ok_or(LeadError::Deposed)?;
        Ok(group.append(record).map(drop)?)
    }

    /// Whoever opens the log may have to copy it to a member that has none, where other ends of segments stay free. One that
    /// was full may not fit there, and where that member has to acknowledge it could then never be trimmed again: the store
    /// would stand still for ever. So half of it stays free.
    fn leave_room(&mut self) -> Result<(), LeadError> {
        let group = self.group.as_mut().ok_or(LeadError::Deposed)?;
        if !group.is_half_full() {
            return Ok(());
        }
        let next = group.next();
        group.wait(next)?;
        self.follow()?;
        // Too few images for the log to be trimmed: now they cannot wait any more.
        while self.group.as_ref().is_some_and(Group::is_half_full) {
            if self.needs_image().is_some()
                && let Some(mut put_right) = self.put_right.take()
            {
                put_right(&mut |at, len| self.copies(at, len));
                self.put_right = Some(put_right);
            }
            if self.rebuild(u64::MAX)? == Rebuilding::Nobody {
                break;
            }
            self.follow()?;
        }
        Ok(())
    }

    fn ship_all(&mut self, changes: &Changes) -> Result<(), LeadError> {
        for record in changes.records(self.record_max) {
            self.shipped += record.len() as u64;
            self.append(&record)?;
        }
        let group = self.group.as_mut().ok_or(LeadError::Deposed)?;
        let next = group.next();
        group.wait(next)?;
        if self.shipped >= self.trim_after {
            // The images follow while clients go on.
            (self.shipped, self.trim) = (0, true);
            self.begin_to_catch_up()?;
        }
        if self.trim {
            self.poll()?;
        }
        Ok(())
    }
}

impl<C: Member> Ship for Primary<C> {
    fn ship(&mut self, changes: &Changes) -> Result<(), String> {
        self.ship_all(changes).map_err(|error| {
            self.group = None;
            error.to_string()
        })
    }
}
