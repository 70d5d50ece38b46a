//! What a primary checks before another member gets its image: damage must not be spread, least of all over the copy that is
//! sound.
//!
//! Each value that the store serves is verified. One that is damaged is put right from whoever has it whole, whoever needs the
//! image among them, as its old one is still there. Then the image is compared with what is served, which is another copy wherever
//! it was written since this member took over; what the image has otherwise is shipped again. Where nobody has a value whole, the
//! damage is sent, and stays an error that names its key.

use std::collections::BTreeSet;
use std::ops::Range;

use remanence_pmem::{Medium, Region};

use super::Ships;
use crate::live::memory::Memory;
use crate::proto::Refusal;
use crate::server::{Scrubbed, Server};

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
