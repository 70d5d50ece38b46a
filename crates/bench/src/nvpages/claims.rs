//! What the paper says of NVPages and NVCache, in its chapter 4.

use super::{JOBS, Load, SHARES, Series, ratio};
use crate::claims::{Claim, Shape, Verdict, times};
use crate::report::Sense;
use crate::samples::Samples;
use crate::stats::{Estimate, worst};

pub(super) fn claims(samples: &Samples, fs: &str) -> Vec<Claim> {
    let of = |load: Load, jobs: usize, share: u64| {
        ratio(samples, fs, [Series::Log(share), Series::Pages(share)], (load, jobs))
    };
    // NVCache over NVPages, at each of these loads and both sizes, by one thread.
    let all = |loads: &dyn Fn(&Load) -> bool| -> Option<Vec<Estimate>> {
        let loads = Load::ALL.into_iter().filter(loads);
        loads.flat_map(|load| SHARES.map(|share| of(load, 1, share))).collect()
    };
    let least = |loads: &dyn Fn(&Load) -> bool| all(loads).and_then(|all| worst(&all, Sense::AtLeast));
    let said = |found: Option<Estimate>| format!("{} of NVPages' rate where that is least", times(found));
    let listed = |loads: &dyn Fn(&Load) -> bool| {
        let loads = Load::ALL.into_iter().filter(loads);
        let one = |load: Load| {
            let [small, large] = SHARES.map(|share| times(of(load, 1, share)));
            format!("{} {small} and {large}", load.name())
        };
        loads.map(one).collect::<Vec<_>>().join(", ")
    };
    let sizes = "memory of 0.1 and 5 x the file";
    let reads = |load: &Load| load.reads == 100;
    let writes = |load: &Load| load.reads == 0;
    let mixes = |load: &Load| load.reads != 0 && load.reads != 100;
    let both = |load: &Load| of(*load, 1, SHARES[0]).zip(of(*load, 1, SHARES[1]));
    let grows = both(&Load::ALL[0]).map(|(small, large)| [small, large]);
    let parallel: Option<Vec<Estimate>> = Load::ALL
        .into_iter()
        .filter(|load| !load.zipf)
        .flat_map(|load| {
            SHARES
                .map(|share| ratio(samples, fs, [Series::Pages(share), Series::Log(share)], (load, JOBS[1])))
        })
        .collect();
    let parallel = parallel.and_then(|all| worst(&all, Sense::AtLeast));
    vec![
        Claim::new(
            "4.3, figures 4.3 and 4.4: NVCache reads faster, as its pages are in DRAM (NVPages' misses copy a page to NVMM, its hits are NVMM's)",
            Verdict::judged(least(&reads), Sense::AtLeast, 1.0),
            format!("{}; {sizes}: {}. Here both are in DRAM", said(least(&reads)), listed(&reads)),
        ),
        Claim::new(
            "4.3: NVCache writes faster, as NVPages writes all data twice",
            Verdict::judged(least(&writes), Sense::AtLeast, 1.0),
            format!("{}; {sizes}: {}", said(least(&writes)), listed(&writes)),
        ),
        Claim::new(
            "4.3: NVCache is significantly better in almost every workload, mixes too, of which the contrary was expected",
            Verdict::judged(least(&mixes), Sense::AtLeast, 1.0),
            format!("{}; {sizes}: {}", said(least(&mixes)), listed(&mixes)),
        )
        .or_in_shape(
            Shape::new("it is ahead in the mixes where memory has room for all of the file")
                .and(of(Load::ALL[1], 1, SHARES[1]), Sense::AtLeast, 1.0)
                .and(of(Load::ALL[2], 1, SHARES[1]), Sense::AtLeast, 1.0),
        ),
        Claim::new(
            "4.2: more NVMM gives NVPages more hits, and NVCache none",
            Verdict::of(grows.map(|[small, large]| large.value() < small.value())),
            match grows {
                Some([small, large]) => format!(
                    "of random reads NVCache has {} of NVPages' rate with memory of 0.1 x the file, and {} with 5 x",
                    times(Some(small)),
                    times(Some(large))
                ),
                None => "not measured".to_owned(),
            },
        ),
        Claim::new(
            "4.4: NVPages may outperform NVCache on parallel I/O, by independent redo logs",
            Verdict::judged(parallel, Sense::AtLeast, 1.0),
            format!(
                "with {} threads in one file it has {} of NVCache's rate where that is least; our records are taken from one list",
                JOBS[1],
                times(parallel)
            ),
        ),
    ]
}
