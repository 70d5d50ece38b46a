//! Whose each slot is, where anybody may take any name.
//!
//! Any user of the host can bind all the names that a slot can be known by beforehand. So a name alone says nothing; a
//! name and the user whose socket has it do, and the kernel tells both ([`super::names`]).
//!
//! **The plain name** of a slot, `remanence/slot/3f`, is what everybody binds who finds it free. The kernel gives it to
//! one and to the first, and between two who do not trust each other nothing else can say who was first. **A name
//! beside it**, `remanence/slot/3f/` and a random number, is for who has a right to the slot although the plain name is
//! taken; nobody can bind that beforehand.
//!
//! Who looks decides, slot by slot, by these rules:
//!
//! 1. He trusts root and his own user, whatever their names are. The kernel lets only processes of one user share the
//!    port of an address, so these are the addresses' own; and root's are root's.
//! 2. Of all other users (*strangers*, who can be guests) a name counts in the slots that are that user's *home* only: a
//!    quarter of all, another one for every user ([`is_home`]). The plain name's holder comes first, then who stands
//!    beside it. If several users stand beside, none of them is believed.
//! 3. A plain name that a stranger has who is not at home there is squatted: nothing is sent to it.
//!
//! So nobody can take a slot from root or from the user who has the port; two users have some 16 slots in common, which
//! leaves each of them some 48 that the other cannot take; and what is sent on reaches root, one's own user, or who was
//! first. (What is still sent to one who has died goes to whoever takes his plain name, until the next look.)
//!
//! **The lease.** Who sends on uses what he has seen for [`LEASE`], and so may miss a name beside another that is younger. Who
//! takes such a name therefore lets that time pass before he uses the slot: a datagram for him can only come when
//! everybody who looks at what he has seen has seen him. With a plain name there is nothing to wait for, since that is
//! where datagrams go of whose slot nothing else was seen.

use std::io;
use std::time::Duration;

use super::SLOTS;
use super::names::Names;
use crate::sys::unix::{self, Name};

/// How long what was seen may be used, and so how long it takes to open a device on a host where somebody squats. A look takes
/// some 60 us, and 0.5 us more for each unix socket of the host: who sends on without end spends a ten-thousandth of his
/// time on it, or a hundredth where there are ten thousand sockets.
pub(super) const LEASE: Duration = Duration::from_millis(500);

/// How long a slot is believed to be a squatter's. Who takes a plain name uses it at once.
pub(super) const SHUT_LEASE: Duration = Duration::from_millis(10);

/// A user whom the user namespace of the one who looks does not have: every such user looks like this one.
const OVERFLOW: u32 = 65_534;

/// By which of its names the holder of a slot is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Label {
    Plain,
    Beside(u64),
}

impl Label {
    pub(super) fn name(self, slot: u8) -> Name {
        Name::new(&self.text(slot))
    }

    fn text(self, slot: u8) -> String {
        match self {
            Self::Plain => format!("remanence/slot/{slot:02x}"),
            Self::Beside(number) => format!("remanence/slot/{slot:02x}/{number:016x}"),
        }
    }

    /// The slot whose name `name` is, and which name.
    fn parse(name: &[u8]) -> Option<(u8, Self)> {
        let (slot, rest) =
            std::str::from_utf8(name).ok()?.strip_prefix("remanence/slot/")?.split_at_checked(2)?;
        let label = match rest.strip_prefix('/') {
            None => rest.is_empty().then_some(Self::Plain)?,
            Some(number) => {
                Self::Beside(u64::from_str_radix(number, 16).ok().filter(|_| number.len() == 16)?)
            }
        };
        let slot = u8::from_str_radix(slot, 16).ok()?;
        // There are other ways to write a number, and nobody sends to those.
        (label.text(slot).as_bytes() == name).then_some((slot, label))
    }
}

/// Who looks, and how the users that he sees are called outside his user namespace.
#[derive(Clone, Debug)]
pub(super) struct Viewer {
    user: u32,
    /// Triples of the first user inside, the first outside, and how many follow.
    map: Vec<[u32; 3]>,
}

/// What a user is to the one who looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    Trusted,
    Stranger,
    /// Perhaps root, perhaps a stranger.
    Unknown,
}

impl Viewer {
    /// A viewer with the effective user and the user namespace of this process.
    pub(super) fn here() -> Self {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Self::new(unix::effective_uid(), &map)
    }

    fn new(user: u32, map: &str) -> Self {
        let line = |line: &str| {
            let mut numbers = line.split_ascii_whitespace().map(|number| number.parse().ok());
            Some([numbers.next()??, numbers.next()??, numbers.next()??])
        };
        let map: Vec<_> = map.lines().filter_map(line).collect();
        Self { user, map: if map.is_empty() { vec![[0, 0, u32::MAX]] } else { map } }
    }

    /// What `user` is called outside, as the one who has the port may be there.
    fn outside(&self, user: u32) -> Option<u32> {
        let inside = |[first, _, count]: &&[u32; 3]| user.checked_sub(*first).is_some_and(|n| n < *count);
        self.map.iter().find(inside).map(|[first, outside, _]| outside.wrapping_add(user - first))
    }

    /// Whether all others believe `user`, by the rules above, in `slot`.
    fn is_home(&self, user: u32, slot: u8) -> bool {
        is_home(self.outside(user).unwrap_or(OVERFLOW), slot)
    }

    fn standing(&self, user: u32) -> Standing {
        match user {
            0 => Standing::Trusted,
            user if user == self.user => Standing::Trusted,
            OVERFLOW if self.outside(user).is_none() => Standing::Unknown,
            _ => Standing::Stranger,
        }
    }
}

/// Whether `slot` is one of `user`'s own: a quarter of them, another one for each; all are root's. Every process of a host has
/// to say the same.
pub(super) fn is_home(user: u32, slot: u8) -> bool {
    // The finalizer of SplitMix64: neighbours have nothing in common.
    let mut mixed = u64::from(user) << 8 | u64::from(slot);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    user == 0 || (mixed ^ mixed >> 31) % 4 == 0
}

/// Where what is for a slot's holder goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// To this name, whether or not somebody was seen there.
    To(Label),
    /// Nowhere: the plain name is a squatter's.
    Shut,
}

/// How a slot can be taken, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Rank {
    /// By its plain name, at home.
    Home,
    /// Beside a squatter, at home.
    HomeBeside,
    /// By its plain name, elsewhere: that counts at the addresses of one's own user only.
    Away,
    /// Beside a stranger who may be there, with the same limit; root's counts everywhere.
    AwayBeside,
    /// Beside somebody of whom we cannot know who he is, with the same limit.
    Unseen,
}

impl Rank {
    pub(super) const ALL: [Self; 5] =
        [Self::Home, Self::HomeBeside, Self::Away, Self::AwayBeside, Self::Unseen];

    pub(super) fn is_beside(self) -> bool {
        !matches!(self, Self::Home | Self::Away)
    }
}

/// What was seen of one slot.
#[derive(Clone, Copy, Default, Debug)]
struct Slot {
    /// The number of the socket that has the plain name.
    plain: u64,
    trusted_plain: bool,
    trusted_beside: Option<u64>,
    /// A stranger at home, or one who may be root, has the plain name.
    guest: bool,
    squatter: bool,
    unknown: bool,
    /// Strangers at home, beside the plain name.
    beside: Option<Beside>,
    /// Whom the previous look found beside the plain name is still there: trusted, or else at home.
    stays: Option<(u64, bool)>,
}

#[derive(Clone, Copy, Debug)]
struct Beside {
    user: u32,
    number: u64,
    several: bool,
}

impl Slot {
    fn trusted(&self) -> bool {
        self.trusted_plain || self.trusted_beside.is_some()
    }

    fn is_empty(&self) -> bool {
        !self.trusted() && !self.guest && !self.squatter && !self.unknown && self.beside.is_none()
    }

    fn way(&self) -> Way {
        let plain = Way::To(Label::Plain);
        let to = |number| Way::To(Label::Beside(number));
        // Who was there first stays, as far as who looks can know that.
        match (self.stays, self.trusted_beside, self.beside) {
            (Some((number, true)), ..) => to(number),
            _ if self.trusted_plain => plain,
            (_, Some(number), _) => to(number),
            (Some((number, false)), ..) => to(number),
            _ if self.guest || self.unknown => plain,
            (.., Some(Beside { number, several: false, .. })) => to(number),
            (.., Some(_)) => Way::Shut,
            _ if self.squatter => Way::Shut,
            _ => plain,
        }
    }
}

/// What one look at the names of all slots showed.
#[derive(Clone, Debug)]
pub(super) struct Roster {
    slots: Box<[Slot; SLOTS]>,
}

impl Roster {
    /// One look. `before`: what the previous one showed; `own`: the name that does not count, since it is the looker's.
    pub(super) fn look(
        names: &mut Names,
        viewer: &Viewer,
        before: Option<&Self>,
        own: Option<(u8, Label)>,
    ) -> io::Result<Self> {
        let mut roster = Self { slots: Box::new([Slot::default(); SLOTS]) };
        names.each(|name, user, socket| {
            if let Some((slot, label)) = Label::parse(name).filter(|found| Some(*found) != own) {
                roster.note(viewer, before, slot, label, user);
                if label == Label::Plain {
                    roster.slots[usize::from(slot)].plain = socket;
                }
            }
        })?;
        Ok(roster)
    }

    fn note(&mut self, viewer: &Viewer, before: Option<&Self>, at: u8, label: Label, user: u32) {
        let slot = &mut self.slots[usize::from(at)];
        let standing = viewer.standing(user);
        let counts =
            standing == Standing::Trusted || (standing == Standing::Stranger && viewer.is_home(user, at));
        match (standing, label) {
            (Standing::Trusted, Label::Plain) => slot.trusted_plain = true,
            (Standing::Trusted, Label::Beside(number)) => {
                slot.trusted_beside = Some(slot.trusted_beside.map_or(number, |other| other.min(number)));
            }
            (Standing::Unknown, _) => slot.unknown = true,
            (Standing::Stranger, Label::Plain) if counts => slot.guest = true,
            (Standing::Stranger, Label::Plain) => slot.squatter = true,
            (Standing::Stranger, Label::Beside(number)) if counts => {
                let new = Beside { user, number, several: false };
                slot.beside = Some(slot.beside.map_or(new, |old| Beside {
                    number: old.number.min(number),
                    several: old.several || old.user != user,
                    ..old
                }));
            }
            (Standing::Stranger, Label::Beside(_)) => {}
        }
        if let Label::Beside(number) = label
            && counts
            && before.is_some_and(|before| before.way(at) == Way::To(label))
        {
            slot.stays = Some((number, standing == Standing::Trusted));
        }
    }

    /// Where what is for `slot` goes.
    pub(super) fn way(&self, slot: u8) -> Way {
        self.slots[usize::from(slot)].way()
    }

    /// The same, with something that tells its holder from whoever has the name afterwards: a name beside the plain one is
    /// never taken twice.
    pub(super) fn holder(&self, slot: u8) -> Option<(Label, u64)> {
        let seen = &self.slots[usize::from(slot)];
        match seen.way() {
            Way::To(Label::Plain) => Some((Label::Plain, seen.plain)).filter(|(_, socket)| *socket != 0),
            Way::To(label) => Some((label, 0)),
            Way::Shut => None,
        }
    }

    /// Whether anybody at all is there.
    pub(super) fn is_held(&self, slot: u8) -> bool {
        !self.slots[usize::from(slot)].is_empty()
    }

    /// How `viewer` could take `slot`.
    pub(super) fn offer(&self, viewer: &Viewer, slot: u8) -> Option<Rank> {
        let seen = &self.slots[usize::from(slot)];
        let home = viewer.is_home(viewer.user, slot);
        if seen.trusted() {
            return None;
        }
        if seen.unknown {
            return Some(Rank::Unseen);
        }
        Some(match (home, seen.guest || seen.beside.is_some(), seen.squatter) {
            (true, false, false) => Rank::Home,
            (true, false, true) => Rank::HomeBeside,
            (false, false, false) => Rank::Away,
            _ => Rank::AwayBeside,
        })
    }

    /// Whether who has just taken a name of `slot`, by `rank`, and then looked, may keep it. Of two who meet both go, unless
    /// one of them had looked before the other came: so they never both stay. (That one of them stays could not be said by
    /// a rule: who looked first, and saw nobody, is not to be driven out by a smaller number that comes later.)
    pub(super) fn may_stay(&self, slot: u8, rank: Rank) -> bool {
        let seen = &self.slots[usize::from(slot)];
        let strangers = seen.guest || seen.beside.is_some();
        !seen.trusted() && (rank == Rank::Unseen || !seen.unknown) && (rank >= Rank::AwayBeside || !strangers)
    }
}

impl Viewer {
    /// Whether all others believe that `slot` is this process's once it is taken by `rank`.
    pub(super) fn counts_everywhere(&self, slot: u8, rank: Rank) -> bool {
        self.outside(self.user) == Some(0) || (rank <= Rank::HomeBeside && self.is_home(self.user, slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: u32 = 1000;
    const SLOT: u8 = 0x3f;

    /// Two users who are at home in the slot, or who are not.
    fn users(home: bool) -> [u32; 2] {
        let mut found = (2000..).filter(|&user| is_home(user, SLOT) == home);
        [(); 2].map(|()| found.next().expect("there are many"))
    }

    fn viewer() -> Viewer {
        Viewer::new(ME, "0 0 4294967295")
    }

    /// What somebody sees who looks at these labels of the slot and their users.
    fn seen(before: Option<&Roster>, names: &[(Label, u32)]) -> Roster {
        let mut roster = Roster { slots: Box::new([Slot::default(); SLOTS]) };
        for (label, user) in names {
            roster.note(&viewer(), before, SLOT, *label, *user);
        }
        assert!((0..=u8::MAX).all(|slot| slot == SLOT || !roster.is_held(slot)));
        roster
    }

    fn way(names: &[(Label, u32)]) -> Way {
        seen(None, names).way(SLOT)
    }

    const PLAIN: Label = Label::Plain;
    const ONE: Label = Label::Beside(1);
    const TWO: Label = Label::Beside(2);

    #[test]
    fn names_are_read_as_they_are_written_and_no_others_are() {
        for slot in 0..=u8::MAX {
            for label in [PLAIN, ONE, Label::Beside(u64::MAX)] {
                assert_eq!(Label::parse(label.text(slot).as_bytes()), Some((slot, label)));
            }
        }
        let others: [&[u8]; 11] = [
            b"",
            b"remanence/slot/",
            b"remanence/slot/3",
            b"remanence/slot/3F",
            b"remanence/slot/+3",
            b"remanence/slot/3f/",
            b"remanence/slot/3f/1",
            b"remanence/slot/3f/+00000000000001a",
            b"remanence/slot/3f\0",
            b"remanence/slot/3\xff\xff",
            b"remanence/slot/3\xc3\xbc",
        ];
        for other in others {
            assert_eq!(Label::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn everybody_has_slots_that_another_user_has_not() {
        let home = |user| (0..=u8::MAX).filter(|slot| is_home(user, *slot)).collect::<Vec<_>>();
        assert_eq!(home(0).len(), SLOTS);
        let homes: Vec<_> = (1000..1500).chain([65_534]).chain(100_000..100_100).map(home).collect();
        for (i, one) in homes.iter().enumerate() {
            assert!((32..=96).contains(&one.len()), "{}", one.len());
            for other in &homes[i + 1..] {
                let own = one.iter().filter(|slot| !other.contains(slot)).count();
                assert!(own >= 16, "one user can take all but {own} of another's");
            }
        }
        // Processes of other versions have to say the same.
        assert_eq!(home(1000)[..4], [7, 12, 17, 21]);
    }

    #[test]
    fn root_and_the_own_user_come_first_then_the_first_guest() {
        let ([guest, other], [squatter, _]) = (users(true), users(false));
        assert_eq!(way(&[]), Way::To(PLAIN));
        for trusted in [0, ME] {
            for stranger in [guest, squatter] {
                assert_eq!(way(&[(PLAIN, stranger), (TWO, trusted)]), Way::To(TWO));
                assert_eq!(way(&[(ONE, stranger), (TWO, trusted), (PLAIN, stranger)]), Way::To(TWO));
                assert_eq!(way(&[(ONE, stranger), (PLAIN, trusted)]), Way::To(PLAIN));
            }
        }
        assert_eq!(way(&[(PLAIN, guest), (ONE, other)]), Way::To(PLAIN), "who has the plain name came first");
        assert_eq!(way(&[(PLAIN, squatter)]), Way::Shut);
        assert_eq!(way(&[(ONE, squatter), (PLAIN, squatter)]), Way::Shut);
        assert_eq!(way(&[(ONE, squatter), (TWO, guest), (PLAIN, squatter)]), Way::To(TWO));
        assert_eq!(way(&[(TWO, guest), (ONE, guest)]), Way::To(ONE));
        assert_eq!(way(&[(ONE, guest), (TWO, other)]), Way::Shut, "either may be lying");
    }

    #[test]
    fn who_was_seen_first_beside_a_squatter_stays_until_he_goes() {
        let ([guest, other], [squatter, _]) = (users(true), users(false));
        let before = seen(None, &[(PLAIN, squatter), (TWO, guest)]);
        let stays = |names: &[(Label, u32)]| seen(Some(&before), names).way(SLOT);
        assert_eq!(stays(&[(PLAIN, squatter), (TWO, guest), (ONE, other)]), Way::To(TWO));
        assert_eq!(stays(&[(PLAIN, other), (TWO, guest)]), Way::To(TWO));
        assert_eq!(stays(&[(PLAIN, squatter), (ONE, other)]), Way::To(ONE));
        assert_eq!(stays(&[(PLAIN, 0), (TWO, guest)]), Way::To(PLAIN), "not against root");
        assert_eq!(stays(&[(ONE, ME), (TWO, guest)]), Way::To(ONE));
        let before = seen(None, &[(PLAIN, squatter), (TWO, ME)]);
        assert_eq!(seen(Some(&before), &[(TWO, ME), (ONE, ME)]).way(SLOT), Way::To(TWO));
    }

    #[test]
    fn slots_are_offered_by_how_far_they_count() {
        let ([guest, other], [squatter, nobody]) = (users(true), users(false));
        let at = |user, names: &[(Label, u32)]| seen(None, names).offer(&Viewer::new(user, ""), SLOT);
        for (user, home) in [(0, true), (guest, true), (squatter, false)] {
            let plain = if home { Rank::Home } else { Rank::Away };
            let beside = if home { Rank::HomeBeside } else { Rank::AwayBeside };
            assert_eq!(at(user, &[]), Some(plain));
            assert_eq!(at(user, &[(PLAIN, nobody)]), Some(beside));
            assert_eq!(at(user, &[(PLAIN, other)]), Some(Rank::AwayBeside));
            assert_eq!(at(user, &[(ONE, other)]), Some(Rank::AwayBeside));
            assert_eq!(at(user, &[(PLAIN, 0)]), None);
            assert_eq!(at(user, &[(ONE, ME)]), None);
        }
        for rank in Rank::ALL {
            assert!(Viewer::new(0, "").counts_everywhere(SLOT, rank));
            assert!(!Viewer::new(squatter, "").counts_everywhere(SLOT, rank));
            assert_eq!(Viewer::new(guest, "").counts_everywhere(SLOT, rank), rank <= Rank::HomeBeside);
            assert!(!seen(None, &[(ONE, ME)]).may_stay(SLOT, rank));
            assert!(!seen(None, &[(PLAIN, 0)]).may_stay(SLOT, rank));
            assert!(seen(None, &[(PLAIN, squatter)]).may_stay(SLOT, rank));
            assert_eq!(seen(None, &[(ONE, guest)]).may_stay(SLOT, rank), rank >= Rank::AwayBeside);
        }
    }

    /// In a user namespace users have other numbers than for who has the port, and most of them have none.
    #[test]
    fn users_are_judged_by_the_numbers_that_they_have_outside() {
        let inside = Viewer::new(0, "         0     100000      65534\n");
        let outside = [0, 7, 65_534].map(|user| inside.outside(user));
        assert_eq!(outside, [Some(100_000), Some(100_007), None]);
        let slots = || 0..=u8::MAX;
        assert!(slots().all(|slot| inside.is_home(0, slot) == is_home(100_000, slot)));
        assert!(slots().any(|slot| !inside.counts_everywhere(slot, Rank::Home)), "it is not root");
        // Somebody of whom we do not know whether he is root may have any slot, as long as there are others.
        let mut roster = Roster { slots: Box::new([Slot::default(); SLOTS]) };
        roster.note(&inside, None, SLOT, ONE, OVERFLOW);
        assert_eq!((roster.offer(&inside, SLOT), roster.way(SLOT)), (Some(Rank::Unseen), Way::To(PLAIN)));
        assert!(Rank::ALL.iter().all(|&rank| roster.may_stay(SLOT, rank) == (rank == Rank::Unseen)));
        assert!(!Viewer::new(ME, "1000 1000 1").counts_everywhere(SLOT, Rank::Unseen));
        // Elsewhere it is a user like others.
        assert_eq!(viewer().standing(OVERFLOW), Standing::Stranger);
        assert_eq!(Viewer::new(ME, "garbled\n1 2").outside(ME), Some(ME));
    }
}
