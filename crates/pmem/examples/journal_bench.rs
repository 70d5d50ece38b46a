//! What a psync of scattered lines costs on a disk, with a journal and without.
//!
//! `cargo run --release -p remanence-pmem --example journal_bench [DIRECTORY]`: 50 times 128 and 16 bytes somewhere in a file of
//! 256 MiB, then a psync; both in turn, medians and quartiles.

use std::path::PathBuf;
use std::time::Instant;

use remanence_pmem::{FileOptions, Journaling, Region};

const LEN: u64 = 256 << 20;
const TURNS: usize = 12;
const PSYNCS: usize = 50;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "/var/tmp".to_owned()));
    let mut state = 1_u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut kinds = Vec::new();
    for (name, journal) in [("pages", Journaling::Off), ("journal", Journaling::Len(64 << 20))] {
        let path = directory.join(format!("remanence-journal-bench-{}-{name}", std::process::id()));
        let region = FileOptions::new().create_new(LEN).journal(journal).open(&path)?;
        // Every block is written once, so that neither has a file system's first writes in it.
        for at in (0..LEN).step_by(4096) {
            region.store_u64(at, 1);
        }
        region.persist(0..LEN)?;
        println!("{name}: {}", region.domain());
        kinds.push((name, path, region, Vec::new()));
    }
    for _ in 0..TURNS {
        for (_, _, region, times) in &mut kinds {
            for _ in 0..PSYNCS {
                times.push(one(region, &mut random)?);
            }
        }
    }
    for (name, path, region, mut times) in kinds {
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times[(times.len() as f64 * part) as usize];
        println!("{name}: {:.0} us a psync ({:.0} to {:.0})", at(0.5), at(0.25), at(0.75));
        drop(region);
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// Microseconds of a psync.
fn one(region: &Region, random: &mut impl FnMut(u64) -> u64) -> std::io::Result<f64> {
    for _ in 0..50 {
        for len in [128, 16] {
            let at = random(LEN / 64 - 4) * 64;
            region.write(at, &vec![random(256) as u8; len]);
            region.pwb(at..at + len as u64);
        }
    }
    let start = Instant::now();
    region.psync()?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}
