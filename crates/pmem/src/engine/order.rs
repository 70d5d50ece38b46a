//! The stress test of paper 001 (5.4): does anybody ever see a later copy who cannot see an earlier one?
//!
//! Copy number n fills slot n mod *slots* with the word n, again and again. A monitor reads while the engine copies.
//! When it meets the word n in a slot, copy n - 1 must be whole: its slot holds no word below n - 1. (Words may well
//! be higher: a later lap has been there.) Looking at every slot in this way finds any reordering, however far: of a
//! run of copies of which the last is visible and the first is not, there are two neighbours of which that is true.
//!
//! Whoever relies on the order of an engine in crashes as well relies on this first: what is not visible in order
//! cannot become durable in order.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{CopyEngine, CopyError, Source};
use crate::region::Region;

/// How hard to look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stress {
    /// How many copies.
    pub copies: u64,
    /// Bytes of each, a multiple of 8.
    pub len: u64,
    /// How many places they go to, in turn.
    pub slots: u64,
}

/// What the monitor saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// Copies that were made.
    pub copies: u64,
    /// How often the monitor looked at everything.
    pub looks: u64,
    /// In how many of them a copy was under way: only these could have found anything.
    pub under_way: u64,
    /// How many found a later copy before an earlier one.
    pub violations: u64,
    /// The first of them.
    pub first: Option<Violation>,
}

/// A word of an earlier copy that was not there when one of a later copy was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The later copy, of which a word was seen.
    pub seen: u64,
    /// The earlier one.
    pub missing: u64,
    /// Where its word should be.
    pub offset: u64,
    /// What was there.
    pub found: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seen, missing, offset, found } = self;
        write!(f, "copy {seen} was visible while copy {missing} was not: the word at {offset} was {found}")
    }
}

/// Runs the stress test on the first `len * slots` bytes of a region, over what is there.
///
/// # Errors
/// A copy failed.
///
/// # Panics
/// The region is too short, or `len` is no multiple of 8, or there are no two slots.
pub fn stress(engine: &mut dyn CopyEngine, region: &Region, options: Stress) -> Result<Verdict, CopyError> {
    let ring = Ring::new(region, options);
    for slot in 0..options.slots {
        region.write(slot * options.len, &vec![0; options.len as usize]);
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let monitor = scope.spawn(|| {
            let mut verdict = Verdict { copies: options.copies, ..Verdict::default() };
            loop {
                // One more look after the last copy.
                let last = over.load(Ordering::Acquire);
                ring.look(&mut verdict);
                if last {
                    return verdict;
                }
                std::thread::yield_now();
            }
        });
        let copied = copy_all(engine, region, options);
        over.store(true, Ordering::Release);
        let verdict = monitor.join().expect("the monitor only reads");
        copied.map(|()| verdict)
    })
}

fn copy_all(engine: &mut dyn CopyEngine, region: &Region, options: Stress) -> Result<(), CopyError> {
    let mut free: Vec<Vec<u8>> = Vec::new();
    for number in 1..=options.copies {
        let mut bytes = free.pop().unwrap_or_else(|| vec![0; options.len as usize]);
        for word in bytes.chunks_exact_mut(8) {
            // As `load_u64` reads it.
            word.copy_from_slice(&number.to_le().to_le_bytes());
        }
        let mut source = Source::from(bytes);
        while let Err(refused) = engine.submit(source, region, number % options.slots * options.len) {
            source = refused.source;
            let completion = engine.wait().ok_or(CopyError::Refused(refused.why))?;
            completion.outcome?;
            free.extend(completion.source.into_bytes());
        }
    }
    let mut outcome = Ok(());
    engine.finish(&mut |completion| {
        if let (Err(e), true) = (completion.outcome, outcome.is_ok()) {
            outcome = Err(e);
        }
    });
    outcome
}

/// Where the copies go.
struct Ring<'a> {
    region: &'a Region,
    len: u64,
    slots: u64,
}

impl<'a> Ring<'a> {
    fn new(region: &'a Region, options: Stress) -> Self {
        let Stress { len, slots, .. } = options;
        assert!(len.is_multiple_of(8) && len > 0 && slots >= 2, "{options:?} cannot be watched");
        assert!(region.contains(0, len * slots), "{options:?} needs {} bytes", len * slots);
        Self { region, len, slots }
    }

    /// The words of a slot, each loaded once.
    fn words(&self, slot: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        (slot * self.len..(slot + 1) * self.len).step_by(8).map(|at| (at, self.region.load_u64(at)))
    }

    /// Takes each slot in turn as that of the later copy, and looks at the one before it.
    fn look(&self, verdict: &mut Verdict) {
        let mut under_way = false;
        for slot in 0..self.slots {
            let mut words = self.words(slot).map(|(_, word)| word);
            let first = words.next().unwrap_or(0);
            let (low, high) = words.fold((first, first), |(low, high), word| (low.min(word), high.max(word)));
            under_way |= low != high;
            if let Some(violation) = self.earlier(high) {
                verdict.violations += 1;
                verdict.first.get_or_insert(violation);
            }
        }
        verdict.looks += 1;
        verdict.under_way += u64::from(under_way);
    }

    /// A word that the copy before `seen` should have brought, and which is not there.
    fn earlier(&self, seen: u64) -> Option<Violation> {
        let missing = seen.checked_sub(1).filter(|missing| *missing > 0)?;
        let mut words = self.words(missing % self.slots);
        let (offset, found) = words.find(|(_, word)| *word < missing)?;
        Some(Violation { seen, missing, offset, found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRESS: Stress = Stress { copies: 0, len: 16, slots: 3 };

    fn look(region: &Region) -> Verdict {
        let mut verdict = Verdict::default();
        Ring::new(region, STRESS).look(&mut verdict);
        verdict
    }

    /// Copies number by number and word by word; `place` says which word comes next.
    fn put(region: &Region, number: u64, words: std::ops::Range<u64>) {
        for word in words {
            region.store_u64(number % 3 * 16 + word * 8, number);
        }
    }

    #[test]
    fn copies_in_order_are_never_a_violation_however_far_they_have_got() {
        let region = Region::anonymous(48).unwrap();
        for number in 1..20 {
            put(&region, number, 0..1);
            let verdict = look(&region);
            assert_eq!((verdict.violations, verdict.under_way), (0, 1), "{number} is half there");
            put(&region, number, 1..2);
            let verdict = look(&region);
            assert_eq!((verdict.violations, verdict.under_way), (0, 0), "{number} is there");
        }
    }

    #[test]
    fn a_later_copy_before_an_earlier_one_is_seen_even_by_a_single_word() {
        let region = Region::anonymous(48).unwrap();
        (1..=7).for_each(|number| put(&region, number, 0..2));
        // Number 9 overtakes number 8, of which one word is missing.
        put(&region, 8, 0..1);
        put(&region, 9, 1..2);
        let verdict = look(&region);
        let expected = Violation { seen: 9, missing: 8, offset: 40, found: 5 };
        assert_eq!((verdict.violations, verdict.first), (1, Some(expected)));
        put(&region, 8, 1..2);
        assert_eq!(look(&region).violations, 0);
        // And with two copies overtaken.
        put(&region, 11, 0..1);
        assert_eq!(look(&region).first.unwrap().missing, 10);
        put(&region, 10, 0..2);
        assert_eq!(look(&region).first.unwrap().missing, 9);
        put(&region, 9, 0..2);
        assert_eq!(look(&region).violations, 0);
    }
}
