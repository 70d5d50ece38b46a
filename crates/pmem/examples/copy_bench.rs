//! What a copy into a region costs beside memcpy, and what making it durable adds.
//!
//! `cargo run --release -p remanence-pmem --example copy_bench [DIRECTORY]`: one row per size, medians over
//! interleaved rounds, nanoseconds; memcpy goes to the same memory. The flush columns run on a tmpfs file declared ADR, which takes the instructions
//! of persistent memory; with a DIRECTORY also msync of one page of a file there.

#![expect(unsafe_code, reason = "memcpy to the region, as what our copy is measured against")]

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use remanence_pmem::domain::machine;
use remanence_pmem::{FileOptions, PersistenceDomain, Region};

const SIZES: [usize; 13] = [8, 16, 64, 128, 256, 512, 1024, 2048, 4096, 16384, 65536, 1 << 20, 1 << 24];
const ROUNDS: usize = 15;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cache lines are written back with {}", machine().instruction);
    let path = Path::new("/dev/shm").join(format!("copy-bench-{}", std::process::id()));
    let options = FileOptions::new().create_new(1 << 24).declare(PersistenceDomain::Adr).populate(true);
    let region = options.open(&path)?;
    std::fs::remove_file(&path)?;
    let mut other = vec![1_u8; 1 << 24];

    println!(
        "{:>9} {:>9} {:>9} {:>6} {:>9} {:>6} {:>13} {:>9}",
        "bytes", "memcpy", "write", "ratio", "read", "ratio", "write+pwb+ps", "nt+psync"
    );
    for size in SIZES {
        let repeat = ((1_usize << 21) / size).clamp(3, 100_000);
        let mut samples = [const { Vec::new() }; 5];
        for _ in 0..ROUNDS {
            samples[0].push(time(repeat, || memcpy(&region, &other[..size])));
            samples[1].push(time(repeat, || black_box(&region).write(0, black_box(&other[..size]))));
            samples[2].push(time(repeat, || black_box(&region).read(0, black_box(&mut other[..size]))));
            samples[3].push(time(repeat / 4 + 1, || {
                region.write(0, black_box(&other[..size]));
                region.persist(0..size as u64).expect("memory does not fail");
            }));
            samples[4].push(time(repeat / 4 + 1, || {
                region.write_nt(0, black_box(&other[..size]));
                region.psync().expect("memory does not fail");
            }));
        }
        let [memcpy, write, read, flushed, nt] = samples.map(median);
        println!(
            "{size:>9} {memcpy:>9.1} {write:>9.1} {:>6.2} {read:>9.1} {:>6.2} {flushed:>13.1} {nt:>9.1}",
            memcpy / write,
            memcpy / read
        );
    }
    if let Some(directory) = std::env::args().nth(1) {
        on_disk(Path::new(&directory))?;
    }
    Ok(())
}

fn on_disk(directory: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let path = directory.join(format!("copy-bench-{}", std::process::id()));
    let region: Region = FileOptions::new().create_new(1 << 24).open(&path)?;
    std::fs::remove_file(&path)?;
    println!("{}", region.domain());
    let mut failed = Ok(());
    let mut persist = |name: &str, offsets: &[u64]| {
        let mut samples = Vec::new();
        for _ in 0..60 {
            samples.push(time(1, || {
                for offset in offsets {
                    region.write(*offset, &[1; 64]);
                    region.pwb(*offset..offset + 64);
                }
                if let Err(e) = region.psync() {
                    failed = Err(e);
                }
            }));
        }
        println!("{name}: {:.1} us", median(samples) / 1000.0);
    };
    persist("one page", &[0]);
    persist("three pages apart", &[0, 1 << 20, 1 << 22]);
    persist("sixteen pages apart", &(0..16).map(|i| i << 18).collect::<Vec<u64>>());
    Ok(failed?)
}

#[inline(never)]
fn memcpy(to: &Region, from: &[u8]) {
    assert!(to.contains(0, from.len() as u64));
    let (to, from) = (black_box(to), black_box(from));
    // SAFETY: inside, as asserted; nobody else uses the region in this program.
    unsafe { libc::memcpy(to.base().cast(), from.as_ptr().cast(), from.len()) };
}

fn time(repeat: usize, mut what: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..repeat {
        what();
    }
    start.elapsed().as_nanos() as f64 / repeat as f64
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
