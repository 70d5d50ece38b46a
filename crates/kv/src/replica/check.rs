//! What a primary checks before another member gets its image: damage must not be spread, least of all over the copy that is
//! sound.
//!
//! Each value that the store serves is verified. One that is damaged is put right from whoever has it whole, whoever needs the
//! image among them, as its old one is still there. Then the image is compared with what is served, which is another copy wherever
//! it was written since this member took over; what the image has otherwise is shipped again. Where nobody has a value whole, the
//! damage is sent, and stays an error that names its key. The first bytes of the image, which say what it is, are verified and compared as
//! values are.
//!
//! That takes its time, between the messages of clients. Where the log has no room left before it has ended, nothing can wait any more, and
//! the store itself is in the middle of a change: then the image is looked at for itself ([`put_right`]), as a store that nobody serves.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use remanence_pmem::Medium;

use super::driver::{Driver, Fetch, Member};
use super::{LeadError, Mirror};
use crate::format::superblock::State;
use crate::format::{HEAD_WORDS, Superblock};
use crate::overlay::Overlay;
use crate::proto::Refusal;
use crate::server::{Options, Scrubbed, Server};

/// What a primary works on.
type Ships<M, C> = Mirror<M, Driver<C>>;

/// Values that are verified between two messages of clients.
const VALUES: usize = 16;
/// Ranges that may differ because the image is behind, before it is asked to follow.
const SUSPECTS_MAX: usize = 1024;
/// Bytes that are compared at a time.
const PIECE: u64 = 64 << 10;
/// Pieces for which members are asked at the same time.
const PIECES: usize = 16;

/// How far the check has come.
#[derive(Debug)]
pub struct Check {
    /// Where the scrub goes on; `None`: all values were seen.
    cursor: Option<u64>,
    /// What the image has otherwise than what is served: it is behind there, or damaged.
    suspects: Vec<Range<u64>>,
    /// The image was asked to have the records below this number before they are looked at again.
    below: Option<u64>,
}

impl Default for Check {
    fn default() -> Self {
        Self { cursor: Some(0), suspects: Vec::new(), below: None }
    }
}

/// The image, and who can have it follow.
pub struct Images<'a, M, C, I> {
    /// The store's working medium.
    pub ships: &'a Ships<M, C>,
    /// The image of the member that serves.
    pub image: &'a I,
}

impl<M, C, I> fmt::Debug for Images<'_, M, C, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Images").finish_non_exhaustive()
    }
}

impl<M: Medium, C, I: Medium> Images<'_, M, C, I> {
    fn is_as_served(&self, range: &Range<u64>) -> bool {
        let (mut served, mut kept) = (Vec::new(), Vec::new());
        pieces(range).all(|piece| {
            let len = (piece.end - piece.start) as usize;
            [&mut served, &mut kept].into_iter().for_each(|bytes| bytes.resize(len, 0));
            self.ships.medium().read(piece.start, &mut served);
            self.image.read(piece.start, &mut kept);
            served == kept
        })
    }
}

/// What was asked of members, and is to be asked.
#[derive(Default)]
struct Fetched {
    known: BTreeMap<(u64, u32), Vec<Vec<u8>>>,
    wanted: BTreeSet<(u64, u32)>,
}

/// Verifies all values of an image which nothing is applied to meanwhile, and puts those right in it that another has whole. `store`: what it
/// is, if it is a store yet.
///
/// # Errors
/// The medium failed.
pub fn put_right<M: Medium + Clone>(
    image: &M,
    store: Option<&Superblock>,
    fetch: Fetch<'_>,
) -> io::Result<()> {
    let is_right = |store: &&Superblock| {
        Superblock::read(image).is_ok_and(|found| found.whole == [true; 2] && found.superblock == **store)
    };
    if let Some(store) = store.filter(|store| !is_right(store)) {
        store.write(image, State::Current)?;
    }
    let fetched = Arc::new(Mutex::new(Fetched::default()));
    let overlay = Overlay::new(image.clone());
    // What cannot be checked holds nobody's image up.
    let Ok((mut server, _)) = Server::open(&overlay, Options::default()) else { return Ok(()) };
    let asked = Arc::clone(&fetched);
    server.set_copies(Box::new(move |at, len| {
        let Fetched { known, wanted } = &mut *asked.lock().unwrap_or_else(PoisonError::into_inner);
        let copies = known.get(&(at, len)).cloned();
        if copies.is_none() {
            wanted.insert((at, len));
        }
        copies
    }));
    let (mut sound, mut cursor) = (Vec::new(), Some(0));
    while let Some(from) = cursor {
        let mut some = Vec::new();
        let scrubbed = server.scrub_with(from, VALUES, |range| some.push(range));
        let mut fetched = fetched.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = std::mem::take(&mut fetched.wanted);
        match scrubbed {
            Ok(scrubbed) => {
                cursor = scrubbed.next;
                sound.extend(some);
                fetched.known.clear();
            }
            Err(Refusal::Unfinished) if !wanted.is_empty() => {
                fetched.known.extend(wanted.into_iter().map(|(at, len)| ((at, len), fetch(at, len))));
            }
            Err(_) => return Ok(()),
        }
    }
    drop(server);
    // What is in front of them has changed in the view as it was opened.
    sound
        .iter()
        .filter(|range| range.start >= HEAD_WORDS)
        .flat_map(pieces)
        .try_for_each(|piece| take_over(image, &overlay, &piece))
}

/// Has an image what a view of it has in a place, durably.
fn take_over<M: Medium>(image: &M, view: &Overlay<M>, piece: &Range<u64>) -> io::Result<()> {
    let len = (piece.end - piece.start) as usize;
    let (mut whole, mut has) = (vec![0; len], vec![0; len]);
    view.read(piece.start, &mut whole);
    image.read(piece.start, &mut has);
    if whole == has {
        return Ok(());
    }
    image.write(piece.start, &whole);
    image.persist(piece.clone())
}

/// What a scrub found of the image of a member.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Held {
    /// Places that are sound where the store is served, and are damaged there: each is the object of a value, or one of its chunks; or a part
    /// of what stands in front of them, a copy of the superblock for one.
    pub damaged: u64,
    /// Of those, how many are sound again.
    pub repaired: u64,
}

/// A scrub of some values from a cursor on, and of what the images of members have in the place of each that is sound. What is damaged there
/// is shipped again. Members are asked, and not waited for: it goes on whenever it is asked how far it is.
#[derive(Debug)]
pub struct Scrub {
    /// What was found where the store is served; `None`: not all of it was verified yet.
    scrubbed: Option<Scrubbed>,
    /// Parts of what is sound that are still to be compared.
    pieces: VecDeque<Piece>,
    /// By range, which members have something else there; and still had when it was shipped again.
    damaged: BTreeMap<u64, BTreeSet<usize>>,
    still: BTreeMap<u64, BTreeSet<usize>>,
}

/// A part of a sound value.
#[derive(Debug)]
struct Piece {
    /// Where the object or the chunk begins that this is a part of.
    of: u64,
    range: Range<u64>,
    /// What is served there, once it is compared with what members have.
    served: Option<Vec<u8>>,
    /// It was shipped again.
    again: bool,
}

impl Piece {
    /// Members whose images have something else than what is served, of those that have all that is acknowledged: who is behind, or lacks an
    /// image, has a reason that is said elsewhere. `None`: they are being asked.
    fn differing<M: Medium, C: Member>(&mut self, ships: &Ships<M, C>) -> Option<BTreeSet<usize>> {
        let (at, len) = (self.range.start, self.range.end - self.range.start);
        let is_now = || {
            let mut served = vec![0; len as usize];
            ships.medium().read(at, &mut served);
            served
        };
        let served = self.served.get_or_insert_with(is_now);
        let copies = ships.with_ship(|primary| primary.copies(at, len as u32))?;
        // Its place may have another value by now, as the log was cleaned.
        if is_now() != *served {
            return Some(BTreeSet::new());
        }
        let differ = copies.iter().filter(|copy| copy.follows && copy.bytes != *served);
        Some(differ.map(|copy| copy.member).collect())
    }
}

impl Default for Scrub {
    fn default() -> Self {
        Self::new()
    }
}

impl Scrub {
    /// One that has not begun.
    #[must_use]
    pub const fn new() -> Self {
        Self { scrubbed: None, pieces: VecDeque::new(), damaged: BTreeMap::new(), still: BTreeMap::new() }
    }

    /// Goes on from a cursor on; what it has found in a store of so many members, if it has ended.
    ///
    /// # Errors
    /// Nothing can be shipped any more.
    pub fn step<W: Medium + Clone, M: Medium, C: Member>(
        &mut self,
        core: &mut Server<W>,
        ships: &Ships<M, C>,
        members: usize,
        (cursor, limit): (u64, usize),
    ) -> Result<Option<(Scrubbed, Vec<Held>)>, Refusal> {
        let scrubbed = match self.scrubbed {
            Some(scrubbed) => scrubbed,
            None => {
                let mut sound = Vec::new();
                let scrubbed = match core.scrub_with(cursor, limit.min(VALUES), |range| sound.push(range)) {
                    Err(Refusal::Unfinished) => return Ok(None),
                    scrubbed => scrubbed?,
                };
                self.pieces = sound
                    .into_iter()
                    .flat_map(|range| pieces(&range).map(move |piece| (range.start, piece)))
                    .map(|(of, range)| Piece { of, range, served: None, again: false })
                    .collect();
                *self.scrubbed.insert(scrubbed)
            }
        };
        // The same ones until they are done: what members said to them waits for whoever asked.
        let mut waiting = Vec::new();
        for mut piece in self.pieces.drain(..self.pieces.len().min(PIECES)).collect::<Vec<_>>() {
            let Some(differing) = piece.differing(ships) else {
                waiting.push(piece);
                continue;
            };
            if differing.is_empty() {
                continue;
            }
            let found = if piece.again { &mut self.still } else { &mut self.damaged };
            found.entry(piece.of).or_default().extend(differing);
            if !piece.again {
                core.persist(piece.range.clone())?;
                waiting.push(Piece { served: None, again: true, ..piece });
            }
        }
        waiting.into_iter().rev().for_each(|piece| self.pieces.push_front(piece));
        if !self.pieces.is_empty() {
            return Ok(None);
        }
        let mut held = vec![Held::default(); members];
        for (of, damaged) in &self.damaged {
            for member in damaged {
                held[*member].damaged += 1;
                let still = self.still.get(of).is_some_and(|still| still.contains(member));
                held[*member].repaired += u64::from(!still);
            }
        }
        Ok(Some((scrubbed, held)))
    }
}

fn pieces(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let end = range.end;
    (range.start..end).step_by(PIECE as usize).map(move |at| at..(at + PIECE).min(end))
}

impl Check {
    /// All that can be put right is.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.cursor.is_none() && self.suspects.is_empty()
    }

    /// Goes on a little.
    ///
    /// # Errors
    /// Nothing can be shipped any more.
    pub fn step<W: Medium + Clone, M: Medium, C: Member>(
        &mut self,
        core: &mut Server<W>,
        images: &Images<'_, M, C, impl Medium>,
    ) -> Result<(), Refusal> {
        if let Some(cursor) = self.cursor.filter(|_| self.suspects.len() < SUSPECTS_MAX) {
            let suspect = |range: Range<u64>| {
                if !images.is_as_served(&range) {
                    self.suspects.push(range);
                }
            };
            self.cursor = match core.scrub_with(cursor, VALUES, suspect) {
                Ok(scrubbed) => scrubbed.next,
                Err(Refusal::Medium) => return Err(Refusal::Medium),
                // Other members are being asked.
                Err(Refusal::Unfinished) => Some(cursor),
                // What cannot be checked now holds nobody's image up.
                Err(_) => None,
            };
            return Ok(());
        }
        let follows = images.ships.with_ship(|primary| {
            let below = match self.below {
                Some(below) => below,
                None => {
                    primary.follow()?;
                    *self.below.insert(primary.acknowledged())
                }
            };
            Ok(primary.own_has_followed(below))
        });
        if !follows.map_err(|_: LeadError| Refusal::Medium)? {
            return Ok(());
        }
        self.below = None;
        for range in std::mem::take(&mut self.suspects) {
            if !images.is_as_served(&range) {
                // What is shipped again reaches the image before another member does: records are applied in order.
                for piece in pieces(&range) {
                    core.persist(piece)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use remanence_pmem::Region;

    use super::*;
    use crate::format::object::{Content, emit};
    use crate::format::superblock::COPIES;
    use crate::format::{Geometry, ObjectAddress};
    use crate::proto::{Expect, Reply, Request};
    use crate::server::{DamageLocation, format};

    const LEN: u64 = 1 << 20;

    /// The image of a store with some values, and where these are.
    fn image() -> (Region, Vec<u64>) {
        let region = Region::memfd("image", LEN).expect("memory");
        format(&region, &Geometry::for_size(LEN - 4096), 100, 7, [1; 16]).expect("room");
        let (mut server, _) = Server::open(region.clone(), Options::default()).expect("a store");
        let client = server.connect();
        let mut places = Vec::new();
        for n in 0..40_u8 {
            let (key, value) = ([n], vec![n ^ 0xFF; 3000]);
            let put = Request::Put { key: key.to_vec(), len: 3000, expires: 0, expect: Expect::Any };
            let Reply::Reserved(room) = server.handle(1, client, &put) else { panic!("there is room") };
            let place = ObjectAddress { salt: 7, head: room.head, offset: room.offset, epoch: room.epoch };
            let object = emit(&place, room.version, 0, &key, Content::Value(&value));
            Medium::write(&region, room.at + 8, &object[8..]);
            let settled = server.handle(1, client, &Request::Settle { key: key.to_vec() });
            assert!(!matches!(settled, Reply::Refused(_)), "{settled:?}");
            places.push(room.at + 500);
        }
        drop(server);
        (region, places)
    }

    #[test]
    fn what_a_medium_says_of_itself_is_scrubbed_with_its_values() {
        let (region, _) = image();
        let (mut server, _) = Server::open(region.clone(), Options::default()).expect("a store");
        let whole = bytes(&region);
        for copies in [&COPIES[..], &COPIES[1..]] {
            copies.iter().for_each(|at| Medium::write(&region, at + 16, &[0xA5; 30]));
            let mut sound = Vec::new();
            let scrubbed =
                server.scrub_with(0, 100, |range| sound.push(range)).expect("memory does not fail");
            assert_eq!((scrubbed.verified, scrubbed.repaired), (40, copies.len() as u64), "{scrubbed:?}");
            assert!(bytes(&region) == whole, "all is as it was");
            assert!(COPIES.iter().all(|at| sound.iter().any(|range| range.start == *at)), "{sound:?}");
        }
        assert_eq!(server.scrub(0, 100).expect("memory does not fail").repaired, 0, "once is enough");
        let named = |copy| server.findings().iter().any(|found| found.at == DamageLocation::Superblock(copy));
        assert!(named(0) && named(1));
    }

    fn bytes(region: &Region) -> Vec<u8> {
        let mut bytes = vec![0; LEN as usize];
        Medium::read(region, 0, &mut bytes);
        bytes
    }

    #[test]
    fn an_image_that_cannot_wait_is_put_right_from_who_has_a_value_whole() {
        let (region, places) = image();
        let whole = bytes(&region);
        let store = Superblock::read(&region).expect("a store").superblock;
        let damage = |places: &[u64]| {
            for at in places {
                Medium::write(&region, *at, &[whole[*at as usize] ^ 1]);
            }
        };
        damage(&places[3..30]);
        damage(&COPIES.map(|at| at + 20));
        let damaged = bytes(&region);
        let mut asked = 0;
        put_right(&region, Some(&store), &mut |at, len| {
            asked += 1;
            let part = at as usize..at as usize + len as usize;
            vec![damaged[part.clone()].to_vec(), whole[part].to_vec()]
        })
        .expect("memory does not fail");
        assert!(bytes(&region) == whole, "all is as it was, and nothing else has changed");
        assert!((27..200).contains(&asked), "{asked}");
        damage(&places[..2]);
        let damaged = bytes(&region);
        put_right(&region, Some(&store), &mut |_, _| Vec::new()).expect("memory does not fail");
        assert!(bytes(&region) == damaged, "where nobody has it, it is left as it is");
    }
}
