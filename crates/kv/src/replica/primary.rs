//! The one member that serves, as a state machine: it takes the log over, ships changes, trims the log behind the images, and rebuilds
//! members that have lost theirs.
//!
//! Nothing here waits, reads a clock or has a connection. Whoever drives it ([`Driver`](super::Driver)) connects to the members
//! ([`Primary::connected`], [`Primary::unreachable`]), carries out what [`Primary::poll_action`] says, in that order on each connection,
//! hands in what comes back ([`Primary::handle`]), and calls [`Primary::timeout`] when [`Primary::deadline`] has come.
//!
//! **What is waited for** is one thing: that enough members have what was shipped ([`Primary::is_shipped`]), which is what a psync promises;
//! and where the log has no room, that enough images have followed for it to be trimmed. Everything else is begun, and goes on with whatever
//! comes: [`Images`] has its rules. While what was shipped is waited for, images are given no orders, as this member carries out its own at
//! once, and a client waits; unless room is what is waited for, which they make.
//!
//! **Room.** Whoever opens the log may have to copy it to a member that has none, where other ends of segments stay free. One that was full
//! may not fit there, and where that member has to acknowledge it could then never be trimmed again: the store would stand still for ever.
//! So half of it stays free, on as many members as acknowledge. Their images are waited for, and that of whoever is being sent one, as the log
//! keeps what it lacks, and would be filled again and again before it has its image; but for that one only as long as it goes on: it loses what it
//! has of its image if it leaves a part of it unanswered for longer than [`Options::grace`] while nothing else keeps the log from being
//! trimmed. So a member that stops costs the others no more. Any other member that is slower loses its vote when its log is full.

use std::collections::VecDeque;

use remanence_coord::log::group::machine::Time;
use remanence_coord::log::group::{Action as LogAction, Event as LogEvent, Machine, NotTaken, Opening};
use remanence_coord::log::{Epoch, GroupError};

pub use remanence_coord::log::group::Options;

use super::change::Changes;
use super::images::{Copy, Images};
use super::keeper::{ImageReply, Order};

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

fn no_image(why: &str) -> LeadError {
    LeadError::NoImage(why.to_owned())
}

/// The log on these members, of which `own` is to have an image with all of it: its own log is not trimmed before that has taken what it
/// lacks, wherever the logs of the others begin.
fn log_of(names: &[String], own: usize, options: &Options) -> Machine {
    let mut log = Machine::new(names.iter().cloned(), *options);
    log.keep(Time::ZERO, own, 0);
    log
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

/// How large a store and its records are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Bytes of an image.
    pub image_len: u64,
    /// The longest record that the members' logs take, bytes.
    pub record_max: usize,
    /// How many bytes are shipped before images and log are brought up to date; a quarter of the log is fair.
    pub trim_after: u64,
}

/// What is to be done on the connection to a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Something with its log, which is the server of that number.
    Log(LogAction),
    /// Have it do something with its image. There is one such order at a time.
    Order {
        /// The member's place among the names that the primary was made with.
        member: usize,
        /// The primary's epoch.
        epoch: Epoch,
        /// What it is to do.
        order: Order,
    },
}

impl Action {
    /// The member's place among the names that the primary was made with.
    #[must_use]
    pub const fn member(&self) -> usize {
        match self {
            Self::Log(action) => action.server(),
            Self::Order { member, .. } => *member,
        }
    }
}

/// What comes back from a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Something that was asked of its log, or the end of the connection.
    Log(LogEvent),
    /// What it says to the order for its image.
    Image(ImageReply),
}

/// How far a primary has come.
#[derive(Debug)]
enum Phase {
    /// The log is opened; again, if it was to go on with that record.
    Opening(Opening, Option<u64>),
    /// This member's image takes what the log has more: the records below this number.
    TakingOver { below: u64, is_asked: bool },
    /// It is the primary.
    Leading,
    /// It is none, or none any more.
    Ended(LeadError),
}

/// What room in the log is waited for by, if more than half of some log is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Room {
    /// There is some, or nobody needs it.
    Fair,
    /// All records below this number are to be acknowledged.
    Acknowledged(u64),
    /// As many images as acknowledge are to have them.
    Followed(u64),
    /// The images are too few: this member's own is to have them, before it is put right.
    Own(u64),
    /// It is being put right.
    PutRight(u64),
    /// Enough logs are to have given them up.
    Trimmed,
}

/// The primary's half of replication.
#[derive(Debug)]
pub struct Primary {
    log: Machine,
    options: Options,
    sizes: Sizes,
    own: usize,
    /// The latest time that was said.
    now: Time,
    phase: Phase,
    epoch: Epoch,
    images: Images,
    /// Since when the order of each member is under way, on the connection that there is.
    ordered: Vec<Option<Time>>,
    /// The log is to be trimmed as the images follow.
    trim: bool,
    /// Something was shipped and is not acknowledged, and what of it was not appended yet.
    is_shipping: bool,
    records: VecDeque<Vec<u8>>,
    room: Room,
    /// Bytes that were shipped since the images were asked to follow.
    shipped: u64,
    /// Records below this number were trimmed.
    trimmed: u64,
    /// From which record on each member's log was told to keep what its image has still to take.
    kept: Vec<u64>,
    /// Bytes that were shipped since a change has waited for room, and some log was more than half full all the same.
    since_room: Option<u64>,
}

impl Primary {
    /// Of a store on these members, to all of which somebody tries to connect; this one is called `own`. It takes the log over: when it
    /// [leads](Self::is_leading) nobody else can ship, and its image has all that was ever acknowledged: copy it to a working medium, put
    /// a [`Mirror`](super::Mirror) over that, and open the store.
    ///
    /// # Errors
    /// It is no member.
    pub fn new(names: &[String], own: &str, options: &Options, sizes: Sizes) -> Result<Self, LeadError> {
        let own = names.iter().position(|name| name == own).ok_or_else(|| no_image("it is no member"))?;
        Ok(Self {
            log: log_of(names, own, options),
            options: *options,
            sizes,
            own,
            now: Time::ZERO,
            phase: Phase::Opening(Opening::new(options.grace), None),
            epoch: Epoch::NONE,
            // How many acknowledge is known when the log is open.
            images: Images::new(names.len(), own, names.len(), sizes.image_len),
            ordered: vec![None; names.len()],
            trim: false,
            is_shipping: false,
            records: VecDeque::new(),
            room: Room::Fair,
            shipped: 0,
            trimmed: 0,
            kept: Vec::new(),
            since_room: None,
        })
    }

    /// There is a connection to a member, a first one or a new one: it is taken in, in the same epoch, while others are served.
    pub fn connected(&mut self, now: Time, member: usize) {
        self.forget(member);
        self.log.connected(now, member);
        self.advance(now);
    }

    /// There is none, and whoever tried has given up for now. A sentence.
    pub fn unreachable(&mut self, now: Time, member: usize, why: &str) {
        self.forget(member);
        self.log.unreachable(now, member, why);
        self.advance(now);
    }

    /// What was asked on the connection to a member is answered by nobody.
    fn forget(&mut self, member: usize) {
        self.ordered[member] = None;
        self.images.set_present(member, false);
    }

    /// Something has come back from a member.
    pub fn handle(&mut self, now: Time, member: usize, event: Event) {
        match event {
            Event::Log(event) => {
                if matches!(event, LogEvent::Lost(_)) {
                    self.forget(member);
                }
                self.log.handle(now, member, event);
            }
            Event::Image(reply) => {
                if self.ordered[member].take().is_none() {
                    return;
                }
                match self.phase {
                    Phase::TakingOver { below, .. } if member == self.own => self.own_says(below, &reply),
                    _ => self.images.told(member, reply),
                }
            }
        }
        self.advance(now);
    }

    /// When [`timeout`](Self::timeout) is to be called at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let own = match &self.phase {
            Phase::Opening(opening, _) => opening.deadline(),
            Phase::Leading => self.held_up_until(),
            Phase::TakingOver { .. } => None,
            Phase::Ended(_) => return None,
        };
        self.log.deadline().into_iter().chain(own).min()
    }

    /// Does what is due.
    pub fn timeout(&mut self, now: Time) {
        if !matches!(self.phase, Phase::Ended(_)) {
            self.log.timeout(now);
            self.advance(now);
        }
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        if let Some(action) = self.log.poll_action() {
            return Some(Action::Log(action));
        }
        let (member, order) = match self.phase {
            Phase::TakingOver { below, is_asked: false } => {
                self.phase = Phase::TakingOver { below, is_asked: true };
                (self.own, Order::Apply { below })
            }
            Phase::Leading if !self.is_shipping || self.wants_room() => self.images.poll_order()?,
            Phase::Leading | Phase::Opening(..) | Phase::TakingOver { .. } | Phase::Ended(_) => return None,
        };
        self.ordered[member] = Some(self.now);
        Some(Action::Order { member, epoch: self.epoch, order })
    }

    /// Goes on as far as what has come allows.
    fn advance(&mut self, now: Time) {
        self.now = now;
        match &mut self.phase {
            Phase::Opening(opening, next) => match opening.is_over(now, &self.log) {
                Ok(true) => {
                    let next = *next;
                    self.has_opened(next);
                }
                Ok(false) => {}
                Err(error) => self.end(error.into()),
            },
            Phase::TakingOver { .. } if !self.log.takes_part(self.own) => {
                self.end(no_image("its log is gone"));
            }
            Phase::Leading => {
                self.look_at_images();
                self.ship_on();
            }
            Phase::TakingOver { .. } | Phase::Ended(_) => {}
        }
    }

    fn has_opened(&mut self, next: Option<u64>) {
        // Whoever was the primary in between has shipped a record before anything else, and it would be there, or was never acknowledged,
        // and that primary is shut out now. Where it is there, clients are not to take this one for the primary of the new epoch.
        if next.is_some_and(|next| self.log.next() != next) {
            return self.end(LeadError::Deposed);
        }
        self.epoch = self.log.epoch();
        let members = self.ordered.len();
        // Whoever has not said yet how far its image is may need all that its log has.
        (0..members).for_each(|n| self.log.keep(self.now, n, 0));
        self.kept = vec![0; members];
        self.trimmed = 0;
        self.phase = match next {
            None => {
                let acks = self.log.quorum().0;
                self.images = Images::new(members, self.own, acks, self.sizes.image_len);
                Phase::TakingOver { below: self.log.next(), is_asked: false }
            }
            Some(_) => Phase::Leading,
        };
        self.advance(self.now);
    }

    /// This member's image is to have all that the log has, and no more.
    fn own_says(&mut self, below: u64, reply: &ImageReply) {
        match reply {
            ImageReply::Applied(applied) if *applied < below => {
                self.phase = Phase::TakingOver { below, is_asked: false };
            }
            ImageReply::Applied(applied) if *applied == below => self.phase = Phase::Leading,
            ImageReply::Applied(_) => self.end(no_image("it is ahead of the log")),
            ImageReply::NeedsImage => self.end(no_image("records that it lacks were trimmed")),
            ImageReply::Refused(why) => self.end(no_image(why)),
            ImageReply::Bytes(_) | ImageReply::Ok => self.end(no_image("it says what means nothing")),
        }
    }

    /// It is the primary no more.
    pub(super) fn end(&mut self, error: LeadError) {
        self.records.clear();
        self.phase = Phase::Ended(error);
    }

    /// Whether it is the primary, or may become it still.
    ///
    /// # Errors
    /// It is the primary no more; or its own image cannot be sent, which is said once.
    pub fn check(&mut self) -> Result<(), LeadError> {
        if let Phase::Ended(error) = &self.phase {
            return Err(error.clone());
        }
        if let Some(error) = self.log.failed() {
            return Err(error.clone().into());
        }
        if let Some(why) = self.images.take_failure() {
            return Err(LeadError::NoImage(why));
        }
        if !self.records.is_empty() || self.log.acknowledged() < self.log.next() {
            self.log.enough()?;
        }
        Ok(())
    }

    /// Opens the log again, to take members in that have promised it to somebody else: all of them are to be connected to again. What was
    /// shipped was acknowledged, so nothing is under way.
    ///
    /// # Errors
    /// It is the primary no more.
    pub fn reopen(&mut self) -> Result<(), LeadError> {
        if let Phase::Ended(error) = &self.phase {
            return Err(error.clone());
        }
        let names: Vec<String> = (0..self.ordered.len()).map(|n| self.log.name(n).to_owned()).collect();
        self.ordered.fill(None);
        self.images.begin_anew();
        self.phase = Phase::Opening(Opening::new(self.options.grace), Some(self.log.next()));
        self.log = log_of(&names, self.own, &self.options);
        Ok(())
    }

    /// Whether it has become the primary.
    #[must_use]
    pub const fn is_leading(&self) -> bool {
        matches!(self.phase, Phase::Leading)
    }

    /// Begins to ship changes, behind all that were shipped before.
    ///
    /// # Errors
    /// It is the primary no more.
    pub fn ship(&mut self, now: Time, changes: &Changes) -> Result<(), LeadError> {
        self.check()?;
        self.records.extend(changes.records(self.sizes.record_max));
        self.is_shipping = true;
        self.advance(now);
        Ok(())
    }

    /// Whether all that was shipped is acknowledged.
    #[must_use]
    pub const fn is_shipped(&self) -> bool {
        !self.is_shipping
    }

    /// Appends what is to be shipped, as far as there is room.
    fn ship_on(&mut self) {
        while !self.records.is_empty() && self.has_room() {
            let Some(record) = self.records.front() else { break };
            let bytes = record.len() as u64;
            match self.log.append_batch(self.now, &[record]) {
                Ok(_) => {
                    self.records.pop_front();
                    self.shipped += bytes;
                    self.since_room = self.since_room.map(|since| since + bytes);
                }
                Err(NotTaken::NotYet) => return,
                Err(NotTaken::Refused(error)) => return self.end(error.into()),
            }
        }
        let is_acknowledged = self.records.is_empty() && self.log.acknowledged() == self.log.next();
        if self.is_shipping && is_acknowledged && self.is_leading() {
            self.is_shipping = false;
            if self.shipped >= self.sizes.trim_after {
                // The images follow while clients go on.
                self.begin_trim();
            }
        }
    }

    /// Whether the next record may be appended; else goes on with what makes room for it.
    fn has_room(&mut self) -> bool {
        loop {
            let next = match self.room {
                Room::Fair => {
                    let lately = self.since_room.is_some_and(|shipped| shipped < self.sizes.trim_after / 8);
                    if lately || !self.log.is_half_full() {
                        return true;
                    }
                    Room::Acknowledged(self.log.next())
                }
                Room::Acknowledged(below) if self.log.acknowledged() < below => return false,
                Room::Acknowledged(below) => {
                    self.begin_trim();
                    Room::Followed(below)
                }
                Room::Followed(below) if self.images.trims_to() >= below => Room::Trimmed,
                Room::Followed(below) if self.is_short_of_images() => {
                    if self.images.needs_image().is_none() {
                        return self.has_waited_for_room();
                    }
                    // Now they cannot wait any more. Nothing may be applied to the image while it is looked at: all that is acknowledged is
                    // in it then, and nothing more comes meanwhile.
                    Room::Own(below)
                }
                Room::Followed(_) => {
                    let Some(until) = self.held_up_until() else { return false };
                    if self.now < until {
                        return false;
                    }
                    self.images
                        .give_rebuild_up("it has not taken its image in time, and the log had no room");
                    self.trim_behind();
                    continue;
                }
                Room::Own(below) if self.images.own_has_followed(below) => Room::PutRight(below),
                Room::Own(_) | Room::PutRight(_) => return false,
                Room::Trimmed if self.log.trimmed(self.trimmed) < self.log.quorum().0 => return false,
                Room::Trimmed => return self.has_waited_for_room(),
            };
            self.room = next;
        }
    }

    /// There is room, or what there is has to do.
    fn has_waited_for_room(&mut self) -> bool {
        self.room = Room::Fair;
        self.since_room = self.log.is_half_full().then_some(0);
        true
    }

    /// The images that follow are too few for the log to be trimmed, and nobody is being sent one.
    fn is_short_of_images(&self) -> bool {
        self.images.can_follow() < self.log.quorum().0 && self.images.rebuilding().is_none()
    }

    /// Whether no change is to be taken from clients: half of the log is full, and the images that follow are too few for it to be trimmed,
    /// of which no rebuilding makes more. What is shipped nevertheless takes the room that a member without its disk would need, and where
    /// that one has to acknowledge, the store would stand still for ever.
    #[must_use]
    pub fn is_short_of_room(&self) -> bool {
        self.log.is_half_full() && self.is_short_of_images() && self.images.needs_image().is_none()
    }

    /// Whether what is shipped waits for images.
    const fn wants_room(&self) -> bool {
        !matches!(self.room, Room::Fair | Room::Acknowledged(_))
    }

    /// Until when a member may leave the part that it was sent last of an image unanswered, where room is waited for, and its image alone
    /// keeps the log from being trimmed.
    fn held_up_until(&self) -> Option<Time> {
        let Room::Followed(below) = self.room else { return None };
        let member = self.images.receiver_holds(below)?;
        self.ordered[member]?.checked_add(self.options.grace)
    }

    /// Whether this member's image is to be put right now, as it will be sent at once, unchecked: say so when
    /// [it is](Self::image_is_right). The store is in the middle of a change, and cannot be asked.
    #[must_use]
    pub const fn wants_image_right(&self) -> bool {
        matches!((&self.phase, self.room), (Phase::Leading, Room::PutRight(_)))
    }

    /// This member's image was put right, as far as that can be done: it is sent.
    pub fn image_is_right(&mut self, now: Time) {
        if let Room::PutRight(below) = self.room {
            self.images.begin_rebuild(self.log.acknowledged());
            self.room = Room::Followed(below);
            self.advance(now);
        }
    }

    /// Sees which members take part, has their logs keep what their images have still to take, and the log trimmed behind these.
    fn look_at_images(&mut self) {
        for n in 0..self.ordered.len() {
            // Who has been away, with an order under way that nobody waits for any more, is there when it has answered.
            let is_answering = self.ordered[n].is_some() && !self.images.is_asked(n);
            if self.images.set_present(n, self.log.takes_part(n) && !is_answering) {
                // Whoever comes has perhaps missed what nobody else has been asked for yet.
                self.images.follow(self.log.acknowledged());
            }
        }
        for (n, kept) in self.kept.iter_mut().enumerate() {
            if *kept != self.images.keeps(n) {
                *kept = self.images.keeps(n);
                self.log.keep(self.now, n, *kept);
            }
        }
        self.trim_behind();
    }

    fn trim_behind(&mut self) {
        if !self.trim {
            return;
        }
        let below = self.images.trims_to();
        if below > self.trimmed {
            if let Err(error) = self.log.trim(self.now, below) {
                return self.end(error.into());
            }
            self.trimmed = below;
        }
        self.trim = self.images.is_busy() || self.wants_room();
    }

    fn begin_trim(&mut self) {
        (self.shipped, self.trim) = (0, true);
        self.images.follow(self.log.acknowledged());
        self.trim_behind();
    }

    /// Asks the images to follow. The log keeps its records: a member that was away needs no image as long as the others' logs have what it
    /// lacks.
    pub fn follow(&mut self, now: Time) {
        self.images.follow(self.log.acknowledged());
        self.advance(now);
    }

    /// As [`follow`](Self::follow), and has the log trimmed behind them.
    pub fn trim(&mut self, now: Time) {
        self.begin_trim();
        self.advance(now);
    }

    /// Whether the log is being trimmed as the images follow: they are given orders between any two changes then, so that there is room.
    #[must_use]
    pub const fn is_trimming(&self) -> bool {
        self.trim
    }

    /// Begins to send this member's image to whoever [needs one](Self::needs_image), while the store is served.
    pub fn begin_rebuild(&mut self, now: Time) {
        self.images.begin_rebuild(self.log.acknowledged());
        self.advance(now);
    }

    /// The name of a member.
    #[must_use]
    pub fn name(&self, member: usize) -> &str {
        self.log.name(member)
    }

    /// The epoch under which this primary has the log; a higher one after each [`reopen`](Self::reopen).
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Members that do without, and why.
    #[must_use]
    pub fn lost(&self) -> Vec<(String, String)> {
        self.log.lost()
    }

    /// Members to which there is a connection, and which do not take part yet: they get what they have missed.
    #[must_use]
    pub fn joining(&self) -> Vec<String> {
        let lost = self.log.lost();
        let joins =
            |n: &usize| !self.log.takes_part(*n) && lost.iter().all(|(name, _)| name != self.name(*n));
        (0..self.ordered.len()).filter(joins).map(|n| self.name(n).to_owned()).collect()
    }

    /// Members that are there and whose images do not follow, and why. Their logs have what was acknowledged; the log is trimmed
    /// only behind the images of enough others.
    #[must_use]
    pub fn behind(&self) -> Vec<(String, String)> {
        self.images.behind().map(|(member, why)| (self.name(member).to_owned(), why.to_owned())).collect()
    }

    /// Records that were trimmed so far.
    #[must_use]
    pub const fn trimmed(&self) -> u64 {
        self.trimmed
    }

    /// Whether the images were asked to have all that is acknowledged.
    #[must_use]
    pub const fn is_followed(&self) -> bool {
        self.images.asked_to() >= self.acknowledged()
    }

    /// The number of the first record that is not acknowledged.
    #[must_use]
    pub const fn acknowledged(&self) -> u64 {
        self.log.acknowledged()
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
        if matches!(self.phase, Phase::Ended(_)) { (0, 0) } else { self.log.present() }
    }

    /// Whether something is expected of a connection for which nobody waits, so that the primary is to be polled when it comes: of a member
    /// that is taken in, or of an image. What else is under way is looked for by whatever is shipped next.
    #[must_use]
    pub fn expects(&self) -> bool {
        let (connected, part) = self.present();
        connected > part || self.images.is_busy()
    }

    /// Who is to be rebuilt next, unless somebody is being rebuilt: its image is still what it was. Whoever can tell sound values
    /// from damaged ones puts this member's image right before it is sent.
    #[must_use]
    pub fn needs_image(&self) -> Option<&str> {
        self.images.needs_image().map(|member| self.name(member))
    }

    /// Who is being sent an image, and how far that is.
    #[must_use]
    pub fn rebuilding(&self) -> Option<Rebuilding> {
        let (member, sent) = self.images.rebuilding()?;
        Some(Rebuilding { name: self.name(member).to_owned(), sent, of: self.sizes.image_len })
    }

    /// A member that was sent all of an image since this was asked last.
    pub fn take_rebuilt(&mut self) -> Option<&str> {
        self.images.take_rebuilt().map(|member| self.log.name(member))
    }

    /// What the images of all members that answer have there, this one's included: each as it was at its last record, after all
    /// were asked to follow. For a value that is damaged here, whose checksum says which of them is sound. `None`: they are being
    /// asked, so ask again after a while.
    pub fn copies(&mut self, at: u64, len: u32) -> Option<Vec<Copy>> {
        self.images.fetch(at, len, self.log.acknowledged())
    }

    /// How often a member has begun to take part: what [`copies`](Self::copies) had before may lack one.
    #[must_use]
    pub const fn joined(&self) -> u64 {
        self.images.joined()
    }
}
