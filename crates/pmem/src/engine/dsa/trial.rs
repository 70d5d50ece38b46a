//! What a device has to show before it is trusted with anybody's bytes: a bounded test on memory of its own, for each way of
//! copying. It is what somebody who met such a machine would try first.

use super::copies::Copies;
use super::portal::Portal;
use super::{Limits, Unusable};
use crate::engine::order::{Stress, stress};
use crate::engine::{CopyEngine, Options, Placement, Source};
use crate::region::Region;

/// Bytes of the memory that is copied to and from.
const MEMORY: u64 = 1 << 17;

/// Bytes on either side of a target, where nothing may be written.
const BESIDE: u64 = 64;

/// Lengths around those of words, lines and pages.
const LENGTHS: [u64; 18] =
    [1, 2, 3, 7, 8, 9, 63, 64, 65, 255, 1000, 4095, 4096, 4097, 8191, 12_345, 40_000, 65_537];

/// Where copies start, below a line: source and target.
const STARTS: [(u64, u64); 4] = [(0, 0), (1, 0), (0, 7), (33, 62)];

/// The order test: enough copies for a device that keeps no order to be met in the act, in a few milliseconds.
const STRESS: Stress = Stress { copies: 2000, len: 1024, slots: 12 };

/// Pages that nobody has touched yet.
const FRESH: u64 = 8 << 12;

/// Runs it, with a way to the device for each engine that it makes.
pub(super) fn run(
    open: &mut dyn FnMut() -> Result<Box<dyn Portal>, Unusable>,
    limits: Limits,
) -> Result<(), Unusable> {
    for placement in Placement::ALL {
        let mut engine = Copies::<Region>::new(open()?, limits, Options::new().placement(placement))?;
        let tried = bytes(&mut engine).and_then(|()| pages(&mut engine)).and_then(|()| order(&mut engine));
        tried.map_err(|why| Unusable::Trial(format!("with {placement} copies, {why}")))?;
    }
    Ok(())
}

/// A byte that says where it comes from.
fn pattern(at: u64) -> u8 {
    (at ^ at >> 8 ^ 0x5A) as u8 | 1
}

fn region(len: u64) -> Result<Region, String> {
    Region::anonymous(len).map_err(|e| format!("there was no memory for it: {e}"))
}

/// Every byte arrives, and nothing beside them changes.
fn bytes(engine: &mut dyn CopyEngine) -> Result<(), String> {
    let (from, to) = (region(MEMORY)?, region(MEMORY)?);
    let all: Vec<u8> = (0..MEMORY).map(pattern).collect();
    from.write(0, &all);
    to.populate();
    for len in LENGTHS {
        for (source, target) in STARTS {
            let target = BESIDE + target;
            copy(engine, Source::region(&from, source, len), &to, target)?;
            let seen = look(&to, target, len);
            let expected = &all[source as usize..(source + len) as usize];
            if seen[BESIDE as usize..][..len as usize] != *expected {
                return Err(format!("{len} bytes from {source} to {target} did not arrive as they were"));
            }
            let (before, behind) = (&seen[..BESIDE as usize], &seen[(BESIDE + len) as usize..]);
            if before.iter().chain(behind).any(|byte| *byte != 0) {
                return Err(format!("bytes were written beside the {len} to {target}"));
            }
            to.write(target, &vec![0; len as usize]);
        }
    }
    Ok(())
}

/// Pages that are not present do not end a copy.
fn pages(engine: &mut dyn CopyEngine) -> Result<(), String> {
    // To pages that are not there, from pages that are not there (zeros), and from there to there across all of them.
    let (from, to) = (region(FRESH)?, region(FRESH)?);
    let all: Vec<u8> = (0..FRESH).map(pattern).collect();
    copy(engine, all.clone().into(), &to, 0)?;
    let mut seen = vec![0; FRESH as usize];
    to.read(0, &mut seen);
    if seen != all {
        return Err("a copy to pages that were not present was not resumed".into());
    }
    copy(engine, Source::region(&from, 100, FRESH - 200), &to, 100)?;
    to.read(0, &mut seen);
    let zeros = seen[100..(FRESH - 100) as usize].iter().all(|byte| *byte == 0);
    if !zeros || seen[..100] != all[..100] || seen[(FRESH - 100) as usize..] != all[(FRESH - 100) as usize..]
    {
        return Err("a copy from pages that were not present was not resumed".into());
    }
    Ok(())
}

/// Nobody sees a later copy before an earlier one.
fn order(engine: &mut dyn CopyEngine) -> Result<(), String> {
    let memory = region(STRESS.len * STRESS.slots)?;
    let verdict = stress(engine, &memory, STRESS).map_err(|e| e.to_string())?;
    match verdict.first {
        None if verdict.looks > 0 => Ok(()),
        None => Err("nobody came to look at the order of copies".into()),
        Some(violation) => Err(violation.to_string()),
    }
}

fn copy(engine: &mut dyn CopyEngine, from: Source, to: &Region, offset: u64) -> Result<(), String> {
    engine.submit(from, to, offset).map_err(|e| e.to_string())?;
    let completion = engine.wait().ok_or("a copy did not complete")?;
    completion.outcome.map(|_| ()).map_err(|e| e.to_string())
}

fn look(region: &Region, target: u64, len: u64) -> Vec<u8> {
    let mut seen = vec![0; (len + 2 * BESIDE) as usize];
    region.read(target - BESIDE, &mut seen);
    seen
}
