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

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use remanence_pmem::{Medium, Region};

use super::Ships;
use crate::live::memory::Memory;
use crate::live::overlay::Overlay;
use crate::proto::Refusal;
use crate::replica::primary::Fetch;
use crate::server::{Options, Scrubbed, Server};

/// Values that are verified between two messages of clients.
const VALUES: usize = 16;
/// Ranges that may differ because the image is behind, before it is asked to follow.
const SUSPECTS_MAX: usize = 1024;
/// Bytes that are compared at a time.
const PIECE: u64 = 64 << 10;

/// How far the check has come.
#[derive(Debug)]
pub(super) struct Check {
    /// Where the scrub goes on; `None`: all values were seen.
    cursor: Option<u64>,
    /// What the image has otherwise than what is served: it is behind there, or damaged.
    suspects: Vec<Range<u64>>,
}

impl Default for Check {
    fn default() -> Self {
        Self { cursor: Some(0), suspects: Vec::new() }
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
    loop {
        let overlay = Overlay::new(image.clone());
        // What cannot be checked holds nobody's image up.
        let Ok((mut server, _)) = Server::open(&overlay, Options::default()) else { return Ok(()) };
        let asked = Arc::clone(&fetched);
        server.set_copies(Box::new(move |at, len| {
            let Fetched { known, wanted } = &mut *asked.lock().unwrap_or_else(PoisonError::into_inner);
            known.get(&(at, len)).cloned().unwrap_or_else(|| {
                wanted.insert((at, len));
                Vec::new()
            })
        }));
        let (mut sound, mut cursor) = (Vec::new(), Some(0));
        while let Some(from) = cursor {
            let Ok(scrubbed) = server.scrub_with(from, VALUES, |range| sound.push(range)) else {
                return Ok(());
            };
            cursor = scrubbed.next;
        }
        drop(server);
        let Fetched { mut known, wanted } =
            std::mem::take(&mut *fetched.lock().unwrap_or_else(PoisonError::into_inner));
        if wanted.is_empty() {
            return sound.iter().flat_map(pieces).try_for_each(|piece| take_over(image, &overlay, &piece));
        }
        known.extend(wanted.into_iter().map(|(at, len)| ((at, len), fetch(at, len))));
        fetched.lock().unwrap_or_else(PoisonError::into_inner).known = known;
    }
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

/// Verifies some values from a cursor on, and looks for each that is sound at what the images of `members` have in its place. What is
/// damaged there is shipped again.
///
/// # Errors
/// Nothing can be shipped any more.
pub(super) fn scrub(
    core: &mut Server<Memory>,
    ships: &Ships,
    members: &[String],
    (cursor, limit): (u64, usize),
) -> Result<(Scrubbed, Vec<Held>), Refusal> {
    let mut sound = Vec::new();
    let scrubbed = core.scrub_with(cursor, limit.min(VALUES), |range| sound.push(range))?;
    let follow = || match ships.with_ship(|primary| primary.catch_up().is_ok()) {
        true => Ok(()),
        false => Err(Refusal::Medium),
    };
    let differing = |range: &Range<u64>| {
        let mut names = BTreeSet::new();
        for piece in pieces(range) {
            let mut served = vec![0; (piece.end - piece.start) as usize];
            Medium::read(ships.medium(), piece.start, &mut served);
            names.extend(ships.with_ship(|primary| primary.differing(piece.start, &served)));
        }
        names
    };
    let mut held = vec![Held::default(); members.len()];
    follow()?;
    for range in sound {
        let damaged = differing(&range);
        if damaged.is_empty() {
            continue;
        }
        for piece in pieces(&range) {
            core.persist(piece)?;
        }
        follow()?;
        let still = differing(&range);
        for (name, held) in members.iter().zip(&mut held) {
            held.damaged += u64::from(damaged.contains(name));
            held.repaired += u64::from(damaged.contains(name) && !still.contains(name));
        }
    }
    Ok((scrubbed, held))
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
                // What cannot be checked now holds nobody's image up.
                Err(_) => None,
            };
            return Ok(());
        }
        let followed = images.ships.with_ship(|primary| primary.catch_up().is_ok());
        if !followed {
            return Err(Refusal::Medium);
        }
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
    use crate::format::object::{Content, emit};
    use crate::format::{Geometry, Place};
    use crate::proto::{Expect, Reply, Request};
    use crate::server::format;

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
            let place = Place { salt: 7, head: room.head, offset: room.offset, epoch: room.epoch };
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
