//! The members' images as the primary sees them: how far each has come, what each is asked for, and what is sent to one that has none.
//!
//! A machine without a clock or a connection. Whoever drives it says which members take part ([`Images::set_present`]), carries out the
//! orders that come out of [`Images::poll_order`], and hands back what members say to them ([`Images::told`]). Nothing here waits: a
//! member that is silent has one order under way and is asked nothing more, and no other member is asked later for it.
//!
//! **Following.** [`Images::follow`] names a record; each member that takes part is asked to apply what is below it, again and again until
//! it says that it has, as it applies a bounded part for one order. One that refuses is asked again when the next record is named.
//!
//! **Trimming.** The log may go below [`Images::trims_to`]: as many images as members acknowledge have all of that, durably, and so has
//! whoever is being sent one. A member's own log keeps what its image has still to take ([`Images::keeps`]).
//!
//! **Rebuilding.** An image that is sent is the primary's own, block by block, while that one goes on following. It counts as the image at
//! the record `from`, which was the first one not acknowledged when the rebuilding began. ARGUMENT that the log has what it lacks: `from`
//! bounds [`Images::trims_to`] from the begin on, and no log was trimmed above it before, as what is trimmed is acknowledged. The primary's
//! image has all below `from` before its first block is read; records that it takes later are applied again, in their order, which ends in
//! the same state. Logs of *other* members keep them too: that of the member itself may be begun anew, from another's, while it is sent
//! its image.
//!
//! **Fetching.** For a value that is damaged here, all members are asked for what their images have in its place, after they were asked to
//! follow.

use std::collections::{BTreeMap, BTreeSet};

use super::keeper::{BLOCK, ImageReply, Order};

/// Places that are fetched at a time. Whoever wants another one asks again later.
pub const FETCHES_MAX: usize = 64;

/// What the image of a member has in a place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copy {
    /// The member's place among all.
    pub member: usize,
    /// The image had all that was acknowledged when the fetch began.
    pub follows: bool,
    /// The bytes there.
    pub bytes: Vec<u8>,
}

/// The order that a member has under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Apply,
    /// To begin, take a block of, or end an image; or, of the primary's own, to give a block.
    Rebuild,
    /// The next part of a place that is fetched.
    Fetch(ByteRange),
    /// Something that nobody waits for any more.
    GivenUp,
}

/// A place of the medium: where, and how many bytes.
type ByteRange = (u64, u32);

#[derive(Clone, Default, Debug)]
struct Image {
    takes_part: bool,
    asked: Option<Asked>,
    /// All records below this number are in it, durably; `None`: it has not said so, or is none.
    applied: Option<u64>,
    /// It is to follow, and has neither done so nor said why not.
    is_to_follow: bool,
    needs_image: bool,
    /// Why it does not follow.
    trouble: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Step {
    /// The primary's own image follows first.
    Follow,
    Begin,
    Read,
    Send(Vec<u8>),
    End,
}

#[derive(Clone, Debug)]
struct Rebuild {
    member: usize,
    /// The image that is sent is that of this record, or later.
    from: u64,
    /// So many bytes were sent.
    at: u64,
    step: Step,
}

#[derive(Debug)]
struct Fetch {
    /// How often a member had begun to take part when this began: of those that have come since nobody was asked.
    joined: u64,
    /// The images are to have the records below this number before they are read.
    below: u64,
    /// Members that have not given all of it, and have not been lost since it began.
    waits_for: BTreeSet<usize>,
    came: BTreeMap<usize, Vec<u8>>,
}

/// The images of all members of a store.
#[derive(Debug)]
pub struct Images {
    own: usize,
    acks: usize,
    len: u64,
    /// All images are to have the records below this number.
    below: u64,
    members: Vec<Image>,
    rebuild: Option<Rebuild>,
    /// A member that has got an image since somebody asked, and has taken part since.
    rebuilt: Option<usize>,
    /// Why the image of the primary itself could not be sent.
    failed: Option<String>,
    fetches: BTreeMap<ByteRange, Fetch>,
    /// How often a member has begun to take part.
    joined: u64,
}

impl Images {
    /// Of so many members, of which `acks` acknowledge, with images of `len` bytes; the primary is the member `own`.
    #[must_use]
    pub fn new(members: usize, own: usize, acks: usize, len: u64) -> Self {
        Self {
            own,
            acks,
            len,
            below: 0,
            members: vec![Image::default(); members],
            rebuild: None,
            rebuilt: None,
            failed: None,
            fetches: BTreeMap::new(),
            joined: 0,
        }
    }

    /// A member takes part, or does not. What was under way with one that does not is over: whoever comes back is asked anew how far its
    /// image is. Whether it takes part since now.
    pub fn set_present(&mut self, member: usize, takes_part: bool) -> bool {
        let image = &mut self.members[member];
        if image.takes_part == takes_part {
            return false;
        }
        image.takes_part = takes_part;
        image.asked = None;
        image.is_to_follow = takes_part;
        if takes_part {
            self.joined += 1;
            return true;
        }
        image.needs_image = false;
        image.trouble = None;
        self.rebuilt = self.rebuilt.filter(|rebuilt| *rebuilt != member);
        for fetch in self.fetches.values_mut() {
            fetch.waits_for.remove(&member);
            fetch.came.remove(&member);
        }
        if let Some(rebuild) = &self.rebuild {
            if rebuild.member == member {
                self.end_rebuild();
            } else if member == self.own {
                self.cannot_rebuild("its log is gone");
            }
        }
        false
    }

    /// Asks all images to have the records below this number, which are acknowledged.
    pub fn follow(&mut self, below: u64) {
        self.below = self.below.max(below);
        let receives = self.receives();
        for (at, image) in self.members.iter_mut().enumerate() {
            image.is_to_follow |= image.takes_part && receives != Some(at);
        }
    }

    /// All images were asked to have the records below this number.
    #[must_use]
    pub const fn asked_to(&self) -> u64 {
        self.below
    }

    /// The member that is being sent an image.
    fn receives(&self) -> Option<usize> {
        self.rebuild.as_ref().filter(|rebuild| rebuild.step != Step::Follow).map(|rebuild| rebuild.member)
    }

    /// What is to be ordered next, and from whom.
    pub fn poll_order(&mut self) -> Option<(usize, Order)> {
        let free = |image: &Image| image.takes_part && image.asked.is_none();
        let free: Vec<usize> = (0..self.members.len()).filter(|at| free(&self.members[*at])).collect();
        for at in free {
            let next =
                self.rebuild_order(at).or_else(|| self.apply_order(at)).or_else(|| self.read_order(at));
            if let Some((asked, order)) = next {
                self.members[at].asked = Some(asked);
                return Some((at, order));
            }
        }
        None
    }

    fn rebuild_order(&self, at: usize) -> Option<(Asked, Order)> {
        let rebuild = self.rebuild.as_ref()?;
        let len = (self.len - rebuild.at).min(BLOCK as u64) as u32;
        let order = match &rebuild.step {
            Step::Read if at == self.own => Order::Read { at: rebuild.at, len },
            Step::Begin if at == rebuild.member => Order::Begin,
            Step::Send(bytes) if at == rebuild.member => {
                let zeros = bytes.iter().all(|byte| *byte == 0);
                Order::Block { at: rebuild.at, bytes: if zeros { Vec::new() } else { bytes.clone() }, len }
            }
            Step::End if at == rebuild.member => Order::End { applied: rebuild.from },
            _ => return None,
        };
        Some((Asked::Rebuild, order))
    }

    fn apply_order(&self, at: usize) -> Option<(Asked, Order)> {
        let wanted = self.members[at].is_to_follow && self.receives() != Some(at);
        wanted.then_some((Asked::Apply, Order::Apply { below: self.below }))
    }

    fn read_order(&self, at: usize) -> Option<(Asked, Order)> {
        if self.receives() == Some(at) {
            return None;
        }
        let (place, fetch) = self.fetches.iter().find(|(_, fetch)| fetch.waits_for.contains(&at))?;
        let done = fetch.came.get(&at).map_or(0, Vec::len) as u32;
        let read = Order::Read { at: place.0 + u64::from(done), len: (place.1 - done).min(BLOCK as u32) };
        Some((Asked::Fetch(*place), read))
    }

    /// Whether a member has an order under way.
    #[must_use]
    pub fn is_asked(&self, member: usize) -> bool {
        self.members[member].asked.is_some()
    }

    /// A member says something to the order that it has under way.
    pub fn told(&mut self, member: usize, told: ImageReply) {
        match self.members[member].asked.take() {
            Some(Asked::Apply) => self.told_of_records(member, told),
            Some(Asked::Rebuild) => self.told_of_image(member, told),
            Some(Asked::Fetch(place)) => self.told_of_place(member, place, &told),
            // It is there again: how far is its image?
            Some(Asked::GivenUp) => self.members[member].is_to_follow = true,
            None => {}
        }
    }

    fn told_of_records(&mut self, at: usize, told: ImageReply) {
        let image = &mut self.members[at];
        match told {
            ImageReply::Applied(applied) => {
                // No more than it was asked to have.
                let applied = applied.min(self.below);
                image.is_to_follow = applied < self.below;
                (image.applied, image.needs_image, image.trouble) = (Some(applied), false, None);
            }
            ImageReply::NeedsImage => {
                image.is_to_follow = false;
                (image.applied, image.needs_image, image.trouble) = (None, true, None);
            }
            // It has what it said last, and that durably; nothing more, until somebody sees to it.
            ImageReply::Refused(why) => (image.is_to_follow, image.trouble) = (false, Some(why)),
            ImageReply::Bytes(_) | ImageReply::Ok => {
                image.is_to_follow = false;
                image.trouble = Some("its answer means nothing".into());
            }
        }
        if at == self.own
            && let Some(rebuild) = &mut self.rebuild
            && rebuild.step == Step::Follow
        {
            if image.applied.is_some_and(|applied| applied >= rebuild.from) {
                rebuild.step = Step::Begin;
            } else if !image.is_to_follow {
                let why =
                    image.trouble.clone().unwrap_or_else(|| "it lacks records that were trimmed".into());
                self.cannot_rebuild(&why);
            }
        }
    }

    fn told_of_image(&mut self, at: usize, told: ImageReply) {
        let Some(rebuild) = &mut self.rebuild else { return };
        let len = (self.len - rebuild.at).min(BLOCK as u64);
        match (&rebuild.step, told) {
            (Step::Read, ImageReply::Bytes(bytes)) if at == self.own && bytes.len() as u64 == len => {
                rebuild.step = Step::Send(bytes);
            }
            (Step::Read, ImageReply::Refused(why)) => self.cannot_rebuild(&why),
            (Step::Read, _) => self.cannot_rebuild("its answer means nothing"),
            (Step::Begin, ImageReply::Ok) => rebuild.step = Step::Read,
            (Step::Send(_), ImageReply::Ok) => {
                rebuild.at += len;
                rebuild.step = if rebuild.at == self.len { Step::End } else { Step::Read };
            }
            (Step::End, ImageReply::Ok) => {
                let image = &mut self.members[at];
                (image.applied, image.needs_image, image.is_to_follow) = (Some(rebuild.from), false, true);
                self.rebuilt = Some(at);
                self.rebuild = None;
            }
            // It takes none now. It is asked how far its image is when images are to follow the next time.
            (_, told) => {
                let member = &mut self.members[rebuild.member];
                member.needs_image = false;
                member.trouble = match told {
                    ImageReply::Refused(why) => Some(why),
                    _ => Some("its answer means nothing".into()),
                };
                self.end_rebuild();
            }
        }
    }

    /// Whoever is being sent an image, if the log would be trimmed below this number but for that.
    #[must_use]
    pub fn receiver_holds(&self, below: u64) -> Option<usize> {
        let rebuild = self.rebuild.as_ref()?;
        (rebuild.from < below && self.enough_have() >= below).then_some(rebuild.member)
    }

    /// Gives the rebuilding up: whoever is being sent an image has none. It is asked how far it is when it has answered what it was asked
    /// last, whatever it says to that.
    pub fn give_rebuild_up(&mut self, why: &str) {
        let Some(member) = self.rebuild.as_ref().map(|rebuild| rebuild.member) else { return };
        self.end_rebuild();
        let member = &mut self.members[member];
        (member.needs_image, member.trouble) = (false, Some(why.to_owned()));
        member.is_to_follow = member.asked.is_none();
    }

    /// Nobody is being sent an image. Answers that are still to come are none to what is asked for another one.
    fn end_rebuild(&mut self) {
        self.rebuild = None;
        let asked = self.members.iter_mut().filter_map(|image| image.asked.as_mut());
        asked.filter(|asked| **asked == Asked::Rebuild).for_each(|asked| *asked = Asked::GivenUp);
    }

    fn cannot_rebuild(&mut self, why: &str) {
        self.end_rebuild();
        self.failed = Some(why.to_owned());
    }

    fn told_of_place(&mut self, at: usize, place: ByteRange, told: &ImageReply) {
        let Some(fetch) = self.fetches.get_mut(&place).filter(|fetch| fetch.waits_for.contains(&at)) else {
            return;
        };
        let came = fetch.came.entry(at).or_default();
        let left = place.1 as usize - came.len();
        match told {
            ImageReply::Bytes(bytes) if !bytes.is_empty() && bytes.len() == left.min(BLOCK) => {
                came.extend_from_slice(bytes);
                if came.len() == place.1 as usize {
                    fetch.waits_for.remove(&at);
                }
            }
            _ => {
                fetch.came.remove(&at);
                fetch.waits_for.remove(&at);
            }
        }
    }

    /// As many images as members acknowledge have all records below this number.
    fn enough_have(&self) -> u64 {
        let mut applied: Vec<u64> = self.members.iter().filter_map(|image| image.applied).collect();
        applied.sort_unstable_by_key(|applied| std::cmp::Reverse(*applied));
        applied.get(self.acks - 1).copied().unwrap_or(0)
    }

    /// Behind this record are the images of as many members as acknowledge, and whoever is being sent one.
    #[must_use]
    pub fn trims_to(&self) -> u64 {
        let images = self.enough_have();
        self.rebuild.as_ref().map_or(images, |rebuild| rebuild.from.min(images))
    }

    /// From which record on a member's own log is kept for its image: all of it if nothing is known, and none for one that takes nothing.
    #[must_use]
    pub fn keeps(&self, member: usize) -> u64 {
        let image = &self.members[member];
        match image.applied {
            _ if image.needs_image || image.trouble.is_some() => u64::MAX,
            Some(applied) => applied,
            None => 0,
        }
    }

    /// How many images can follow: of members that take part, have an image and take what they are told to.
    #[must_use]
    pub fn can_follow(&self) -> usize {
        let can = |image: &&Image| image.takes_part && !image.needs_image && image.trouble.is_none();
        self.members.iter().filter(can).count()
    }

    fn own_follows(&self, below: u64) -> bool {
        self.members[self.own].applied.is_some_and(|applied| applied >= below)
    }

    /// Whether the primary's own image has all the records below this number, or says that it does not follow.
    #[must_use]
    pub fn own_has_followed(&self, below: u64) -> bool {
        let own = &self.members[self.own];
        self.own_follows(below) || !own.is_to_follow && own.asked.is_none()
    }

    /// Members that take part and whose images do not follow, and why.
    pub fn behind(&self) -> impl Iterator<Item = (usize, &str)> {
        let images = self.members.iter().enumerate();
        images.filter_map(|(at, image)| Some((at, image.trouble.as_deref()?)))
    }

    /// Whoever is to be rebuilt next, unless somebody is being rebuilt: its image is still what it was.
    #[must_use]
    pub fn needs_image(&self) -> Option<usize> {
        let mut need = (0..self.members.len()).filter(|at| self.members[*at].needs_image);
        need.next().filter(|_| self.rebuild.is_none())
    }

    /// Begins to send an image to whoever [needs one](Self::needs_image). All records below `acknowledged` are.
    pub fn begin_rebuild(&mut self, acknowledged: u64) {
        let Some(member) = self.needs_image() else { return };
        if member == self.own {
            return self.cannot_rebuild("it lacks records that were trimmed");
        }
        if !self.members[self.own].takes_part {
            return self.cannot_rebuild("its log is gone");
        }
        let step = if self.own_follows(acknowledged) { Step::Begin } else { Step::Follow };
        if acknowledged > self.below {
            // Nobody else asks them to have that if nothing comes behind it.
            self.follow(acknowledged);
        }
        self.members[self.own].is_to_follow |= step == Step::Follow;
        // What it has is worth nothing from now on.
        for fetch in self.fetches.values_mut() {
            fetch.waits_for.remove(&member);
            fetch.came.remove(&member);
        }
        self.rebuild = Some(Rebuild { member, from: acknowledged, at: 0, step });
    }

    /// Who is being sent an image, and how many bytes of it are there.
    #[must_use]
    pub fn rebuilding(&self) -> Option<(usize, u64)> {
        self.rebuild.as_ref().map(|rebuild| (rebuild.member, rebuild.at))
    }

    /// A member that has got an image since this was asked last, and has taken part since.
    pub const fn take_rebuilt(&mut self) -> Option<usize> {
        self.rebuilt.take()
    }

    /// Why the primary's own image could not be sent, if that was so since this was asked last.
    pub const fn take_failure(&mut self) -> Option<String> {
        self.failed.take()
    }

    /// What all images have in a place, this member's included; `None`: they are being asked, so ask again. What has come is handed out once.
    /// All records below `acknowledged` are.
    pub fn fetch(&mut self, at: u64, len: u32, acknowledged: u64) -> Option<Vec<Copy>> {
        let place = (at, len);
        if self.fetches.get(&place).is_some_and(|fetch| fetch.joined != self.joined) {
            self.fetches.remove(&place);
        }
        if let Some(fetch) = self.fetches.get(&place) {
            if !fetch.waits_for.is_empty() {
                return None;
            }
            let Fetch { below, came, .. } = self.fetches.remove(&place)?;
            let follows = |at: usize| self.members[at].applied.is_some_and(|applied| applied >= below);
            let copy = |(member, bytes)| Copy { member, follows: follows(member), bytes };
            return Some(came.into_iter().map(copy).collect());
        }
        if self.fetches.len() >= FETCHES_MAX {
            // Whoever wanted one of these has not come back for it.
            let done =
                self.fetches.iter().find(|(_, fetch)| fetch.waits_for.is_empty()).map(|(place, _)| *place);
            self.fetches.remove(&done?);
        }
        if len == 0 || at.checked_add(len.into()).is_none_or(|end| end > self.len) {
            return Some(Vec::new());
        }
        let receives = self.rebuild.as_ref().map(|rebuild| rebuild.member);
        let gives = |at: &usize| self.members[*at].takes_part && receives != Some(*at);
        let waits_for = (0..self.members.len()).filter(gives).collect();
        let joined = self.joined;
        self.fetches.insert(place, Fetch { joined, below: acknowledged, waits_for, came: BTreeMap::new() });
        self.follow(acknowledged);
        None
    }

    /// How often a member has begun to take part: what was found of its image before is another's.
    #[must_use]
    pub const fn joined(&self) -> u64 {
        self.joined
    }

    /// Whether anything is under way, or to be ordered.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let busy = |image: &Image| image.takes_part && (image.asked.is_some() || image.is_to_follow);
        self.rebuild.is_some()
            || self.members.iter().any(busy)
            || self.fetches.values().any(|fetch| !fetch.waits_for.is_empty())
    }

    /// All connections were made anew: nothing that was asked before is answered.
    pub fn begin_anew(&mut self) {
        for at in 0..self.members.len() {
            self.set_present(at, false);
            self.members[at].applied = None;
        }
        self.rebuild = None;
        self.failed = None;
        self.fetches.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 2 * BLOCK as u64 + 100;

    /// Three members, of which two acknowledge and all take part; the first one is the primary.
    fn three() -> Images {
        let mut images = Images::new(3, 0, 2, LEN);
        (0..3).for_each(|member| assert!(images.set_present(member, true)));
        images
    }

    fn orders(images: &mut Images) -> Vec<(usize, Order)> {
        std::iter::from_fn(|| images.poll_order()).collect()
    }

    /// Each of these members says to the order that it has that its image is at this record.
    fn all_are_at(images: &mut Images, members: &[usize], applied: u64) {
        orders(images);
        members.iter().for_each(|member| images.told(*member, ImageReply::Applied(applied)));
    }

    #[test]
    fn a_silent_member_has_one_order_and_keeps_nobody_else_from_following() {
        let mut images = three();
        images.follow(10);
        let apply = |below| Order::Apply { below };
        assert_eq!(orders(&mut images), [(0, apply(10)), (1, apply(10)), (2, apply(10))]);
        images.told(0, ImageReply::Applied(10));
        images.told(1, ImageReply::Applied(4));
        assert_eq!(orders(&mut images), [(1, apply(10))], "it has applied a part, and goes on");
        assert_eq!(images.trims_to(), 4, "two acknowledge");
        images.told(1, ImageReply::Applied(10));
        assert_eq!((images.trims_to(), orders(&mut images)), (10, vec![]));
        images.follow(20);
        assert_eq!(orders(&mut images), [(0, apply(20)), (1, apply(20))], "the third has not answered");
        assert_eq!(images.keeps(2), 0, "nobody knows how far it is");
        images.told(2, ImageReply::Applied(10));
        assert_eq!((images.keeps(2), orders(&mut images)), (10, vec![(2, apply(20))]));
        images.told(0, ImageReply::Applied(u64::MAX));
        images.told(1, ImageReply::Applied(u64::MAX));
        assert_eq!(images.trims_to(), 20, "no image counts for more than it was asked to have");
    }

    #[test]
    fn one_that_refuses_is_named_and_asked_again_with_the_next_record() {
        let mut images = three();
        images.follow(10);
        all_are_at(&mut images, &[0, 1], 10);
        images.told(2, ImageReply::Refused("its disk is full".into()));
        assert_eq!(images.behind().collect::<Vec<_>>(), [(2, "its disk is full")]);
        assert_eq!((images.keeps(2), images.can_follow()), (u64::MAX, 2));
        assert!(orders(&mut images).is_empty() && !images.is_busy(), "it is not asked again and again");
        images.follow(10);
        all_are_at(&mut images, &[0, 1, 2], 10);
        assert_eq!((images.behind().count(), images.keeps(2)), (0, 10));
        assert_eq!(images.trims_to(), 10);
    }

    /// Goes on with a rebuilding until the member is to say something, which it does with `told`.
    fn goes_on(images: &mut Images, told: ImageReply) -> Order {
        loop {
            let (member, order) = images.poll_order().expect("something is to be done");
            match (member, &order) {
                (0, Order::Read { len, .. }) => images.told(0, ImageReply::Bytes(vec![7; *len as usize])),
                (0, Order::Apply { below }) => images.told(0, ImageReply::Applied(*below)),
                (1, Order::Apply { below }) => images.told(1, ImageReply::Applied(*below)),
                _ => {
                    assert_eq!(member, 2);
                    images.told(2, told);
                    return order;
                }
            }
        }
    }

    #[test]
    fn an_image_is_sent_whole_and_the_log_keeps_what_it_lacks() {
        let mut images = three();
        images.follow(10);
        all_are_at(&mut images, &[0, 1], 10);
        images.told(2, ImageReply::NeedsImage);
        assert_eq!((images.needs_image(), images.keeps(2)), (Some(2), u64::MAX));
        images.begin_rebuild(12);
        assert_eq!(images.trims_to(), 10, "its image is to follow first");
        assert_eq!(goes_on(&mut images, ImageReply::Ok), Order::Begin);
        images.follow(50);
        for (at, len) in [(0, BLOCK), (BLOCK as u64, BLOCK), (2 * BLOCK as u64, 100)] {
            let sent = Order::Block { at, bytes: vec![7; len], len: len as u32 };
            assert_eq!(goes_on(&mut images, ImageReply::Ok), sent);
            assert_eq!(images.trims_to(), 12, "the others are further, and it is not");
        }
        assert_eq!(images.rebuilding(), Some((2, LEN)));
        assert_eq!(goes_on(&mut images, ImageReply::Ok), Order::End { applied: 12 });
        assert_eq!(
            (images.take_rebuilt(), images.take_rebuilt(), images.rebuilding()),
            (Some(2), None, None)
        );
        assert_eq!((images.keeps(2), images.needs_image()), (12, None));
        assert_eq!(goes_on(&mut images, ImageReply::Applied(50)), Order::Apply { below: 50 });
        assert!(!images.is_busy());
    }

    /// Found by the simulation: that all had been asked to have the last record was said, and only the primary's own image had been.
    #[test]
    fn all_images_follow_to_where_one_is_rebuilt() {
        let mut images = three();
        images.follow(10);
        all_are_at(&mut images, &[0, 1], 10);
        images.told(2, ImageReply::NeedsImage);
        images.begin_rebuild(12);
        while images.is_busy() {
            goes_on(&mut images, ImageReply::Ok);
        }
        assert_eq!((images.asked_to(), images.keeps(0), images.keeps(1)), (12, 12, 12));
    }

    #[test]
    fn a_rebuilding_ends_with_the_connection_and_begins_anew() {
        let mut images = three();
        images.follow(10);
        all_are_at(&mut images, &[0, 1], 10);
        images.told(2, ImageReply::NeedsImage);
        images.begin_rebuild(10);
        assert_eq!(goes_on(&mut images, ImageReply::Ok), Order::Begin);
        images.set_present(2, false);
        assert_eq!((images.rebuilding(), images.needs_image()), (None, None));
        images.set_present(2, true);
        assert_eq!(goes_on(&mut images, ImageReply::NeedsImage), Order::Apply { below: 10 });
        assert_eq!(images.needs_image(), Some(2));
        images.begin_rebuild(10);
        assert_eq!(goes_on(&mut images, ImageReply::Refused("no".into())), Order::Begin);
        assert_eq!(images.behind().collect::<Vec<_>>(), [(2, "no")], "it is not tried again at once");
        assert_eq!((images.rebuilding(), images.needs_image(), images.take_failure()), (None, None, None));
    }

    /// Found by the simulation: a member had the end of the primary's image at its beginning.
    #[test]
    fn what_was_asked_for_one_rebuilding_is_no_answer_to_the_next() {
        let mut images = three();
        images.follow(10);
        all_are_at(&mut images, &[0], 10);
        (1..3).for_each(|member| images.told(member, ImageReply::NeedsImage));
        images.begin_rebuild(10);
        assert_eq!(orders(&mut images), [(1, Order::Begin)]);
        images.told(1, ImageReply::Ok);
        let read = [(0, Order::Read { at: 0, len: BLOCK as u32 })];
        assert_eq!(orders(&mut images), read);
        images.set_present(1, false);
        images.begin_rebuild(10);
        assert_eq!(orders(&mut images), [(2, Order::Begin)], "the primary's image has not answered");
        images.told(2, ImageReply::Ok);
        images.told(0, ImageReply::Bytes(vec![1; BLOCK]));
        let orders = orders(&mut images);
        assert!(orders.contains(&read[0]) || orders == [(0, Order::Apply { below: 10 })], "{orders:?}");
        assert!(!orders.iter().any(|(member, _)| *member == 2), "nothing was read for it yet");
    }

    #[test]
    fn an_image_that_cannot_be_read_is_the_primary_s_failure() {
        let mut images = three();
        images.follow(10);
        all_are_at(&mut images, &[0, 1], 10);
        images.told(2, ImageReply::NeedsImage);
        images.begin_rebuild(10);
        assert_eq!(images.poll_order(), Some((2, Order::Begin)));
        images.told(2, ImageReply::Ok);
        assert_eq!(images.poll_order(), Some((0, Order::Read { at: 0, len: BLOCK as u32 })));
        images.told(0, ImageReply::Refused("the medium failed".into()));
        assert_eq!(images.take_failure(), Some("the medium failed".into()));
        assert_eq!((images.rebuilding(), images.trims_to()), (None, 10));
    }

    #[test]
    fn a_place_is_fetched_from_whoever_is_there_after_all_have_followed() {
        let mut images = three();
        let len = BLOCK as u32 + 10;
        assert_eq!(images.fetch(64, len, 5), None);
        let first = orders(&mut images);
        assert!(first.iter().all(|(_, order)| *order == Order::Apply { below: 5 }), "{first:?}");
        images.told(0, ImageReply::Applied(5));
        images.told(1, ImageReply::NeedsImage);
        let read = |at, len| Order::Read { at, len };
        assert_eq!(orders(&mut images), [(0, read(64, BLOCK as u32)), (1, read(64, BLOCK as u32))]);
        images.told(0, ImageReply::Bytes(vec![1; BLOCK]));
        images.told(1, ImageReply::Bytes(vec![2; BLOCK]));
        let rest = read(64 + BLOCK as u64, 10);
        assert_eq!(orders(&mut images), [(0, rest.clone()), (1, rest)]);
        images.told(0, ImageReply::Bytes(vec![1; 10]));
        images.told(1, ImageReply::Bytes(vec![2; 10]));
        assert_eq!(images.fetch(64, len, 5), None, "the third has said nothing");
        images.set_present(2, false);
        let copy = |member, follows, byte| Copy { member, follows, bytes: vec![byte; len as usize] };
        assert_eq!(images.fetch(64, len, 5), Some(vec![copy(0, true, 1), copy(1, false, 2)]));
        assert_eq!(images.fetch(LEN, 1, 5), Some(Vec::new()), "there is no such place");
        // What was found before somebody came who may have it whole counts no more.
        assert_eq!(images.fetch(64, 1, 5), None);
        while let Some((member, order)) = images.poll_order() {
            let reply = match order {
                Order::Read { len, .. } => ImageReply::Bytes(vec![1; len as usize]),
                _ => ImageReply::Applied(5),
            };
            images.told(member, reply);
        }
        images.set_present(2, true);
        assert_eq!(images.fetch(64, 1, 5), None, "the third is asked as well");
        assert!(orders(&mut images).iter().any(|(member, _)| *member == 2));
        for at in 0..2 * FETCHES_MAX as u64 {
            assert_eq!(images.fetch(at, 1, 5), None);
            assert!(images.fetches.len() <= FETCHES_MAX);
        }
    }
}
