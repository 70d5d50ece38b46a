//! What a primary checks before another member gets its image: damage must not be spread, least of all over the copy that is
//! sound.
//!
//! Each value that the store serves is verified. One that is damaged is put right from whoever has it whole, whoever needs the
//! image among them, as its old one is still there. Then the image is compared with what is served, which is another copy wherever
//! it was written since this member took over; what the image has otherwise is shipped again. Where nobody has a value whole, the
//! damage is sent, and stays an error that names its key.
//!
//! That takes its time, between the messages of clients. Where the log has no room left before it has ended, nothing can wait any more, and
//! the store itself is in the middle of a change: then the image is looked at for itself ([`put_right`]), as a store that nobody serves.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use remanence_pmem::{Medium, Region};

use super::Ships;
use crate::memory::Memory;
use crate::overlay::Overlay;
use remanence_kv::proto::Refusal;
use remanence_kv::replica::LeadError;
use remanence_kv::replica::driver::Fetch;
use remanence_kv::server::{Options, Scrubbed, Server};

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
pub(super) struct Check {
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
pub(super) struct Images<'a> {
    pub(super) ships: &'a Ships,
    pub(super) image: &'a Region,
}

impl Images<'_> {
    fn is_as_served(&self, range: &Range<u64>) -> bool {
        let (mut served, mut kept) = (Vec::new(), Vec::new());
        pieces(range).all(|piece| {
            let len = (piece.end - piece.start) as usize;
            for (medium, bytes) in [(self.ships.medium(), &mut served), (self.image, &mut kept)] {
                bytes.resize(len, 0);
                Medium::read(medium, piece.start, bytes);
            }
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

/// Verifies all values of an image which nothing is applied to meanwhile, and puts those right in it that another has whole.
///
/// # Errors
/// The medium failed.
pub(super) fn put_right(image: &Region, fetch: Fetch<'_>) -> io::Result<()> {
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
    sound.iter().flat_map(pieces).try_for_each(|piece| take_over(image, &overlay, &piece))
}

/// Has an image what a view of it has in a place, durably.
fn take_over(image: &Region, view: &Overlay, piece: &Range<u64>) -> io::Result<()> {
    let len = (piece.end - piece.start) as usize;
    let (mut whole, mut has) = (vec![0; len], vec![0; len]);
    Medium::read(view, piece.start, &mut whole);
    Medium::read(image, piece.start, &mut has);
    if whole == has {
        return Ok(());
    }
    Medium::write(image, piece.start, &whole);
    Medium::persist(image, piece.clone())
}

/// What a scrub found of the image of a member.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Held {
    /// Places of values that are sound where the store is served, and are damaged there: each is the object of a value, or one of
    /// its chunks.
    pub damaged: u64,
    /// Of those, how many are sound again.
    pub repaired: u64,
}

/// A scrub of some values from a cursor on, and of what the images of members have in the place of each that is sound. What is damaged there
/// is shipped again. Members are asked, and not waited for: it goes on whenever it is asked how far it is.
#[derive(Debug)]
pub(super) struct Scrub {
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
    fn differing(&mut self, ships: &Ships) -> Option<BTreeSet<usize>> {
        let (at, len) = (self.range.start, self.range.end - self.range.start);
        let is_now = || {
            let mut served = vec![0; len as usize];
            Medium::read(ships.medium(), at, &mut served);
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

impl Scrub {
    /// One that has not begun.
    pub(super) const fn new() -> Self {
        Self { scrubbed: None, pieces: VecDeque::new(), damaged: BTreeMap::new(), still: BTreeMap::new() }
    }

    /// Goes on from a cursor on; what it has found in a store of so many members, if it has ended.
    ///
    /// # Errors
    /// Nothing can be shipped any more.
    pub(super) fn step(
        &mut self,
        core: &mut Server<Memory>,
        ships: &Ships,
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
    pub(super) const fn is_done(&self) -> bool {
        self.cursor.is_none() && self.suspects.is_empty()
    }

    /// Goes on a little.
    ///
    /// # Errors
    /// Nothing can be shipped any more.
    pub(super) fn step(&mut self, core: &mut Server<Memory>, images: &Images<'_>) -> Result<(), Refusal> {
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
    use super::*;
    use remanence_kv::format::object::{Content, emit};
    use remanence_kv::format::{Geometry, ObjectAddress};
    use remanence_kv::proto::{Expect, Reply, Request};
    use remanence_kv::server::format;

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

    fn bytes(region: &Region) -> Vec<u8> {
        let mut bytes = vec![0; LEN as usize];
        Medium::read(region, 0, &mut bytes);
        bytes
    }

    #[test]
    fn an_image_that_cannot_wait_is_put_right_from_who_has_a_value_whole() {
        let (region, places) = image();
        let whole = bytes(&region);
        let damage = |places: &[u64]| {
            for at in places {
                Medium::write(&region, *at, &[whole[*at as usize] ^ 1]);
            }
        };
        damage(&places[3..30]);
        let damaged = bytes(&region);
        let mut asked = 0;
        put_right(&region, &mut |at, len| {
            asked += 1;
            let part = at as usize..at as usize + len as usize;
            vec![damaged[part.clone()].to_vec(), whole[part].to_vec()]
        })
        .expect("memory does not fail");
        assert!(bytes(&region) == whole, "all is as it was, and nothing else has changed");
        assert!((27..200).contains(&asked), "{asked}");
        damage(&places[..2]);
        let damaged = bytes(&region);
        put_right(&region, &mut |_, _| Vec::new()).expect("memory does not fail");
        assert!(bytes(&region) == damaged, "where nobody has it, it is left as it is");
    }
}
