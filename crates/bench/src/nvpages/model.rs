//! What slower memory would add: the paper's figures are of Optane DIMMs, and memory in `/dev/shm` is DRAM.
//!
//! To what an access took here is added how long its bytes take to and from persistent memory, beyond what they take to and from DRAM. Both are rounded from "An
//! Empirical Guide to the Behavior and Use of Scalable Persistent Memory" (Yang et al., FAST'20, figures 2 and 4): one thread and an interleaved set of DIMMs.

use super::{Load, SHARES, Series};
use crate::nvcache::ends::BLOCK;
use crate::report::{Kind, Row};
use crate::samples::{Metric, Samples};

pub(super) const WORDS: &str = "to each access is added what its bytes take beyond DRAM: 4 KiB read 0.6 us, written 0.9 us; NVPages reads a page that is read, and writes one that is \
                                written into the redo log and into its page; NVCache writes one that is written";

/// Microseconds that a block takes from persistent memory beyond what it takes from DRAM, and the same to it.
const READ_US: f64 = 0.6;
const WRITE_US: f64 = 0.9;

/// Microseconds that an access takes more, on the average.
fn slower(series: Series, load: Load) -> Option<f64> {
    let reads = f64::from(load.reads) / 100.0;
    let of_block = BLOCK as f64 / 4096.0;
    let more = match series {
        // The record is read from where it was just written, which caches have.
        Series::Pages(_) => reads * READ_US + (1.0 - reads) * 2.0 * WRITE_US,
        Series::Log(_) => (1.0 - reads) * WRITE_US,
        Series::Unsynced | Series::Synced => return None,
    };
    Some(more * of_block)
}

pub(super) fn name(series: Series, fs: &str) -> String {
    format!("{}, slower memory (model)", series.name(fs))
}

/// Rates of one thread, as they would be there.
pub(super) fn rows(samples: &Samples, fs: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for series in SHARES.into_iter().flat_map(|share| [Series::Pages(share), Series::Log(share)]) {
        for load in Load::ALL {
            let key = super::Cell { series, load, jobs: 1 }.key(fs, Metric::Rate);
            let (Some(rate), Some(more)) = (samples.median(&key), slower(series, load)) else { continue };
            let slow = 1.0 / (1.0 / rate + more);
            let name = name(series, fs);
            rows.push(Row::single(load.name(), 1, &name, ("rate", "Mop/s"), slow, Kind::Model));
        }
    }
    rows
}
