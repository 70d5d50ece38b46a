//! The one member that serves: it takes the log over, ships changes, trims the log behind the images, and rebuilds members
//! that have lost theirs.
//!
//! It waits for one thing only: that enough members have what was shipped ([`Ship`]), which is what a psync promises; and where the log
//! has no room, that enough images have followed for it to be trimmed. Everything else is begun, and goes on whenever the primary is
//! [polled](Primary::poll): [`Images`] has its rules.

use std::fmt;
use std::time::Duration;

use remanence_coord::log::group::{ConnectionLost, Opened, ReplicaConnection};
use remanence_coord::log::{Epoch, Group, GroupError};

pub use remanence_coord::log::group::Options;

use super::change::Changes;
use super::images::{Copy, Images};
use super::keeper::{ImageReply, Order};
use super::mirror::Ship;

/// Orders that are given in one turn, if the answers come at once.
const ORDERS_A_TURN: usize = 32;

/// The connection to a member: its log, and its image.
pub trait Member: ReplicaConnection {
    /// Begins to have it do something with its image; what it says comes out of [`poll_told`](Self::poll_told). There is one such
    /// order at a time. One that is given before the last one was answered takes its place, as the member has not taken part in between: what
    /// is said to that one is of no interest any more.
    ///
    /// # Errors
    /// The member is gone.
    fn begin_order(&mut self, epoch: Epoch, order: &Order) -> Result<(), ConnectionLost>;

    /// What it says to the order that was begun, when it has.
    ///
    /// # Errors
    /// The member is gone.
    fn poll_told(&mut self) -> Result<Option<ImageReply>, ConnectionLost>;

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
pub struct Rebuilding {
    /// The member that is being sent an image.
    pub name: String,
    /// Bytes of it that are there.
    pub sent: u64,
    /// Bytes in all.
    pub of: u64,
}

/// What the images of members have in a place. Waits for them.
pub type Fetch<'a> = &'a mut dyn FnMut(u64, u32) -> Vec<Vec<u8>>;
/// Puts right what is damaged in this member's own image.
pub type PutRight = Box<dyn FnMut(Fetch<'_>) + Send>;

/// The primary's half of replication.
pub struct Primary<C> {
    /// `None`: it is the primary no more.
    group: Option<Group<C>>,
    /// All members, in the order in which the group has them.
    names: Vec<String>,
    own: usize,
    options: Options,
    epoch: Epoch,
    images: Images,
    put_right: Option<PutRight>,
    record_max: usize,
    image_len: u64,
    /// The log is to be trimmed as the images follow.
    trim: bool,
    /// Bytes that were shipped since the images were asked to follow, and after how many they are.
    shipped: u64,
    trim_after: u64,
    /// Records below this number were trimmed.
    trimmed: u64,
    /// From which record on each member's log was told to keep what its image has still to take.
    kept: Vec<u64>,
    /// Bytes that were shipped since a change has waited for room, and some log was more than half full all the same.
    since_room: Option<u64>,
}

impl<C> fmt::Debug for Primary<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = &self.names[self.own];
        f.debug_struct("Primary").field("own", own).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl<C: Member> Primary<C> {
    /// Takes the log over. On return nobody else can ship, and the image of `own` has all that was ever acknowledged: copy
    /// it to a working medium, put a [`Mirror`](super::Mirror) over that, and open the store.
    ///
    /// `trim_after` is how many bytes are shipped before images and log are brought up to date; a quarter of the log is
    /// fair. The other images are asked how far they are when the primary is [polled](Self::poll).
    ///
    /// # Errors
    /// Too few members, a faster one, or no image here.
    pub fn lead(
        members: Vec<(String, Result<C, ConnectionLost>)>,
        own: &str,
        options: &Options,
        trim_after: u64,
    ) -> Result<(Self, Opened), LeadError> {
        let names: Vec<String> = members.iter().map(|(name, _)| name.clone()).collect();
        let no_image = |why: &str| LeadError::NoImage(why.to_owned());
        let own = names.iter().position(|name| name == own).ok_or_else(|| no_image("it is no member"))?;
        let (group, opened) = Group::open(members, options)?;
        let mut this = Self {
            epoch: group.epoch(),
            images: Images::new(names.len(), own, group.quorum().0, 0),
            group: Some(group),
            names,
            own,
            options: *options,
            put_right: None,
            record_max: 0,
            image_len: 0,
            trim: false,
            shipped: 0,
            trim_after,
            trimmed: 0,
            kept: Vec::new(),
            since_room: None,
        };
        this.measure();
        this.take_own_over()?;
        Ok((this, opened))
    }

    /// Waits until this member's image has all that the log has, and no more.
    fn take_own_over(&mut self) -> Result<(), LeadError> {
        let epoch = self.epoch;
        let group = self.group.as_mut().ok_or(LeadError::Deposed)?;
        let (own, below) = (self.own, group.next());
        let no_image = |why: String| LeadError::NoImage(why);
        let lost = |e: ConnectionLost| LeadError::NoImage(e.to_string());
        loop {
            let gone = || LeadError::NoImage("its log is gone".into());
            group
                .connection(own)
                .ok_or_else(gone)?
                .begin_order(epoch, &Order::Apply { below })
                .map_err(lost)?;
            let told = loop {
                match group.connection(own).ok_or_else(gone)?.poll_told().map_err(lost)? {
                    Some(told) => break told,
                    None => group.pause()?,
                }
            };
            return match told {
                ImageReply::Applied(applied) if applied < below => continue,
                ImageReply::Applied(applied) if applied == below => Ok(()),
                ImageReply::Applied(_) => Err(no_image("it is ahead of the log".into())),
                ImageReply::NeedsImage => Err(no_image("records that it lacks were trimmed".into())),
                ImageReply::Refused(why) => Err(no_image(why)),
                ImageReply::Bytes(_) | ImageReply::Ok => Err(no_image("it says what means nothing".into())),
            };
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
        self.kept = vec![0; self.names.len()];
        (self.record_max, self.image_len) = (record, image);
        self.images.set_len(image);
    }

    /// Takes members in that came back, by opening the log again: these connections in place of the old ones, all of them, in the order
    /// of the first ones. What was shipped was acknowledged, so nothing is under way.
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
        self.images.begin_anew();
        self.trimmed = 0;
        self.measure();
        Ok(opened)
    }

    /// There is a connection again to a member that was lost, or none still: it is taken in, in the same epoch, while others are served.
    ///
    /// # Errors
    /// It is the primary no more.
    pub fn reconnect(&mut self, name: &str, connection: Result<C, ConnectionLost>) -> Result<(), LeadError> {
        let group = self.group.as_mut().ok_or(LeadError::Deposed)?;
        if let Some(member) = self.names.iter().position(|other| other == name) {
            // What was asked on the connection before is answered by nobody.
            self.images.set_present(member, false);
            group.reconnect(name, connection);
        }
        Ok(())
    }

    /// The epoch under which this primary has the log; a higher one after each [`reopen`](Self::reopen).
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Members that do without, and why.
    #[must_use]
    pub fn lost(&self) -> Vec<(String, String)> {
        self.group.as_ref().map(Group::lost).unwrap_or_default()
    }

    /// Members to which there is a connection, and which do not take part yet: they get what they have missed.
    #[must_use]
    pub fn joining(&self) -> Vec<String> {
        let Some(group) = &self.group else { return Vec::new() };
        let lost = group.lost();
        let joins = |n: &usize| {
            !group.machine().takes_part(*n) && lost.iter().all(|(name, _)| *name != self.names[*n])
        };
        (0..self.names.len()).filter(joins).map(|n| self.names[n].clone()).collect()
    }

    /// Members that are there and whose images do not follow, and why. Their logs have what was acknowledged; the log is trimmed
    /// only behind the images of enough others.
    #[must_use]
    pub fn behind(&self) -> Vec<(String, String)> {
        self.images.behind().map(|(member, why)| (self.names[member].clone(), why.to_owned())).collect()
    }

    /// Records that were trimmed so far.
    #[must_use]
    pub const fn trimmed(&self) -> u64 {
        self.trimmed
    }

    /// Goes on with whatever was begun: members are taken in, copy what they have missed, follow, are sent an image. Does not wait.
    ///
    /// # Errors
    /// It is the primary no more, or its own image cannot be sent.
    pub fn poll(&mut self) -> Result<(), LeadError> {
        self.group.as_mut().ok_or(LeadError::Deposed)?.poll()?;
        self.settle()
    }

    /// Takes what members say, and gives them their next orders.
    fn settle(&mut self) -> Result<(), LeadError> {
        let epoch = self.epoch;
        let (group, images) = (self.group.as_mut().ok_or(LeadError::Deposed)?, &mut self.images);
        for n in 0..self.names.len() {
            if images.set_present(n, group.connection(n).is_some()) {
                // Whoever comes has perhaps missed what nobody else has been asked for yet.
                images.follow(group.acknowledged());
            }
        }
        let mut left = ORDERS_A_TURN;
        while left > 0 {
            let mut any = false;
            for n in 0..self.names.len() {
                if !images.is_asked(n) {
                    continue;
                }
                let told = group.connection(n).map_or(Ok(None), Member::poll_told);
                match told {
                    Ok(None) => continue,
                    Ok(Some(told)) => images.told(n, told),
                    Err(why) => {
                        images.set_present(n, false);
                        group.lose(n, why);
                    }
                }
                any = true;
            }
            while let Some((n, order)) = images.poll_order() {
                any = true;
                // This member carries out at once what it is told: of records a bounded part, and then clients come first.
                let own_records = n == self.own && matches!(order, Order::Apply { .. });
                left = left.saturating_sub(if own_records { ORDERS_A_TURN } else { 1 });
                if let Some(member) = group.connection(n)
                    && let Err(why) = member.begin_order(epoch, &order)
                {
                    images.set_present(n, false);
                    group.lose(n, why);
                }
            }
            if !any {
                break;
            }
        }
        // A member's log keeps what its image has still to take, if it takes anything.
        for (n, kept) in self.kept.iter_mut().enumerate() {
            if *kept != images.keeps(n) {
                *kept = images.keeps(n);
                group.keep(n, *kept);
            }
        }
        if let Some(why) = images.take_failure() {
            return Err(LeadError::NoImage(why));
        }
        let below = images.trims_to();
        if self.trim && below > self.trimmed {
            group.begin_trim(below)?;
            self.trimmed = below;
        }
        self.trim &= images.is_busy();
        Ok(())
    }

    /// Asks the images to follow, and does not wait. The log keeps its records: a member that was away needs no image as long as the
    /// others' logs have what it lacks.
    ///
    /// # Errors
    /// It is the primary no more.
    pub fn follow(&mut self) -> Result<(), LeadError> {
        let group = self.group.as_ref().ok_or(LeadError::Deposed)?;
        self.images.follow(group.acknowledged());
        self.settle()
    }

    /// As [`follow`](Self::follow), and has the log trimmed behind them.
    ///
    /// # Errors
    /// It is the primary no more.
    pub fn trim(&mut self) -> Result<(), LeadError> {
        (self.shipped, self.trim) = (0, true);
        self.follow()
    }

    /// Whether the images were asked to have all that is acknowledged.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        self.images.asked_to() >= self.acknowledged()
    }

    /// The number of the first record that is not acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.group.as_ref().map_or(0, Group::acknowledged)
    }

    /// Whether this member's own image has all the records below this number, or says that it does not follow.
    #[must_use]
    pub fn own_has_followed(&self, below: u64) -> bool {
        self.images.own_has_followed(below)
    }

    /// Whether nothing is under way with any image, and nobody is to be asked.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        !self.images.is_busy()
    }

    /// How many members there is a connection to, and how many take part.
    #[must_use]
    pub fn present(&self) -> (usize, usize) {
        self.group.as_ref().map_or((0, 0), Group::present)
    }

    /// Whether something is expected of a connection for which nobody waits, so that the primary is to be [polled](Self::poll) when
    /// it comes: of a member that is taken in, or of an image. What else is under way is looked for by whatever is shipped next.
    #[must_use]
    pub fn expects(&self) -> bool {
        let (connected, part) = self.present();
        connected > part || self.images.is_busy()
    }

    /// How long nothing is due, if nothing comes. What is due is done when the primary is [polled](Self::poll).
    #[must_use]
    pub fn rests(&self) -> Duration {
        self.group.as_ref().map_or(Duration::MAX, Group::rests)
    }

    /// Has this called before an image is sent because the log has no room without, whatever was checked by then.
    pub fn set_put_right(&mut self, put_right: PutRight) {
        self.put_right = Some(put_right);
    }

    /// Who is to be rebuilt next, unless somebody is being rebuilt: its image is still what it was. Whoever can tell sound values
    /// from damaged ones puts this member's image right before it is sent.
    #[must_use]
    pub fn needs_image(&self) -> Option<&str> {
        self.images.needs_image().map(|member| &self.names[member][..])
    }

    /// Begins to send this member's image to whoever [needs one](Self::needs_image), while the store is served.
    ///
    /// # Errors
    /// It is the primary no more, or this member's own image cannot be read.
    pub fn begin_rebuild(&mut self) -> Result<(), LeadError> {
        let group = self.group.as_ref().ok_or(LeadError::Deposed)?;
        self.images.begin_rebuild(group.acknowledged());
        self.settle()
    }

    /// Who is being sent an image, and how far that is.
    #[must_use]
    pub fn rebuilding(&self) -> Option<Rebuilding> {
        let (member, sent) = self.images.rebuilding()?;
        Some(Rebuilding { name: self.names[member].clone(), sent, of: self.image_len })
    }

    /// A member that was sent all of an image since this was asked last.
    pub fn take_rebuilt(&mut self) -> Option<&str> {
        self.images.take_rebuilt().map(|member| &self.names[member][..])
    }

    /// What the images of all members that answer have there, this one's included: each as it was at its last record, after all
    /// were asked to follow. For a value that is damaged here, whose checksum says which of them is sound. `None`: they are being
    /// asked, so ask again after a while.
    pub fn copies(&mut self, at: u64, len: u32) -> Option<Vec<Copy>> {
        let acknowledged = self.acknowledged();
        let fetched = self.images.fetch(at, len, acknowledged);
        if fetched.is_none() && self.settle().is_err() {
            return Some(Vec::new());
        }
        fetched
    }

    /// How often a member has begun to take part: what [`copies`](Self::copies) had before may lack one.
    #[must_use]
    pub const fn joined(&self) -> u64 {
        self.images.joined()
    }

    fn append(&mut self, record: &[u8]) -> Result<(), LeadError> {
        self.leave_room()?;
        let group = self.group.as_mut().ok_or(LeadError::Deposed)?;
        Ok(group.begin_append(record).map(drop)?)
    }

    /// Whoever opens the log may have to copy it to a member that has none, where other ends of segments stay free. One that
    /// was full may not fit there, and where that member has to acknowledge it could then never be trimmed again: the store
    /// would stand still for ever. So half of it stays free, on as many members as acknowledge. Waits for their images, and for that of
    /// whoever is being sent one, as the log keeps what it lacks. Any other member that is slower loses its vote when its log is full.
    fn leave_room(&mut self) -> Result<(), LeadError> {
        let group = self.group.as_mut().ok_or(LeadError::Deposed)?;
        let lately = self.since_room.is_some_and(|shipped| shipped < self.trim_after / 8);
        if lately || !group.is_half_full() {
            return Ok(());
        }
        let below = group.next();
        group.wait(below)?;
        self.trim()?;
        let acks = group_of(&mut self.group)?.quorum().0;
        let mut follow = true;
        while follow && self.images.trims_to() < below {
            if self.images.can_follow() < acks && self.images.rebuilding().is_none() {
                // Too few images for the log to be trimmed: now they cannot wait any more.
                if self.images.needs_image().is_some() {
                    self.send_at_once(below)?;
                } else {
                    follow = false;
                }
            }
            group_of(&mut self.group)?.pause()?;
            self.settle()?;
        }
        while follow && group_of(&mut self.group)?.machine().trimmed(self.trimmed) < acks {
            group_of(&mut self.group)?.pause()?;
        }
        self.since_room = group_of(&mut self.group)?.is_half_full().then_some(0);
        Ok(())
    }

    /// Puts this member's image right as far as that can be done without the store, which is in the middle of a change, and begins to send
    /// it.
    fn send_at_once(&mut self, below: u64) -> Result<(), LeadError> {
        // Nothing may be applied to it while it is looked at: all that is acknowledged is in it then, and nothing more comes meanwhile.
        while !self.images.own_has_followed(below) {
            group_of(&mut self.group)?.pause()?;
            self.settle()?;
        }
        if let Some(mut put_right) = self.put_right.take() {
            put_right(&mut |at, len| self.wait_for_copies(at, len));
            self.put_right = Some(put_right);
        }
        self.begin_rebuild()
    }

    fn wait_for_copies(&mut self, at: u64, len: u32) -> Vec<Vec<u8>> {
        loop {
            if let Some(copies) = self.copies(at, len) {
                return copies.into_iter().map(|copy| copy.bytes).collect();
            }
            let Some(group) = &mut self.group else { return Vec::new() };
            if group.pause().is_err() {
                return Vec::new();
            }
        }
    }

    fn ship_all(&mut self, changes: &Changes) -> Result<(), LeadError> {
        for record in changes.records(self.record_max) {
            self.shipped += record.len() as u64;
            self.since_room = self.since_room.map(|bytes| bytes + record.len() as u64);
            self.append(&record)?;
        }
        let group = group_of(&mut self.group)?;
        let next = group.next();
        group.wait(next)?;
        if self.shipped >= self.trim_after {
            // The images follow while clients go on.
            self.trim()?;
        } else if self.trim {
            self.settle()?;
        }
        Ok(())
    }
}

fn group_of<C>(group: &mut Option<Group<C>>) -> Result<&mut Group<C>, LeadError> {
    group.as_mut().ok_or(LeadError::Deposed)
}

impl<C: Member> Ship for Primary<C> {
    fn ship(&mut self, changes: &Changes) -> Result<(), String> {
        self.ship_all(changes).map_err(|error| {
            self.group = None;
            error.to_string()
        })
    }
}
