//! Crashes a workload after every step, in every way or in many.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::{Choices, CrashImage, EveryWay, Failure, Lazy, Seeded, Step};

/// How thoroughly to crash.
#[derive(Clone, Copy, Debug)]
pub struct Explorer {
    /// What goes wrong at each step: a process, a kernel or the power.
    pub failure: Failure,
    /// At a step where a crash has no more outcomes than this, all are tried.
    pub ways_max: usize,
    /// Otherwise this many are drawn by seed, besides the first `ways_max`.
    pub samples: usize,
    /// The seed of the first outcome that is drawn; those after it have the seeds that follow.
    pub seed: u64,
}

impl Default for Explorer {
    fn default() -> Self {
        Self { failure: Failure::PowerLoss, ways_max: 512, samples: 256, seed: 1 }
    }
}

/// What an exploration has tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Steps after which the workload was crashed.
    pub steps: usize,
    /// How many of these steps had every outcome tried.
    pub exhausted: usize,
    /// Different outcomes that were checked.
    pub crashes: usize,
}

/// What a lazy exploration has tried.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LazyReport {
    /// Steps after which the workload was crashed.
    pub steps: usize,
    /// How often the check was executed, which covers every outcome of every step.
    pub executions: usize,
    /// The same at the step where it was most often.
    pub executions_max: usize,
    /// The most words that were open at a step.
    pub undecided_max: usize,
    /// How many outcomes an enumeration of what the crashes may leave would have had to go through.
    pub outcomes: f64,
    /// The same at the step where they are most.
    pub outcomes_max: f64,
}

impl Explorer {
    /// Runs the workload once on a copy of `start`, then, for each step of it, hands what a crash at that step leaves
    /// to `check`, with the notes that the workload had made by then.
    ///
    /// # Panics
    /// When `check` does: a line on standard error then names the step, so that it can be looked at alone.
    pub fn run(
        &self,
        start: &CrashImage,
        workload: impl FnOnce(&CrashImage),
        mut check: impl FnMut(&CrashImage, &[u64]),
    ) -> Report {
        let mut report = Report::default();
        each_step(start, workload, |image, step, notes, place| {
            self.crash_here(image, step, notes, &mut check, &mut report, place);
        });
        report
    }

    /// The same, with everything that recovery does not read left undecided, and so every outcome of every step: see
    /// [`Lazy`]. `check` is to be deterministic. `guarded` says, at each step, behind which offsets of the visible image a
    /// checksum is. Only power losses, in domains where a store is not durable at once; `samples` and `seed` are not used.
    ///
    /// # Panics
    /// When `check` does, as above. At a step where it reads so much that `ways_max` executions do not do.
    pub fn run_lazily<G: Fn(u64) -> bool>(
        &self,
        start: &CrashImage,
        workload: impl FnOnce(&CrashImage),
        guarded: impl Fn(&CrashImage) -> G,
        mut check: impl FnMut(&Lazy, &[u64]),
    ) -> LazyReport {
        let mut report = LazyReport::default();
        each_step(start, workload, |image, _, notes, place| {
            let nothing = Lazy::new(image, guarded(image));
            report.steps += 1;
            report.undecided_max = report.undecided_max.max(nothing.undecided());
            report.outcomes += nothing.outcomes();
            report.outcomes_max = report.outcomes_max.max(nothing.outcomes());
            let mut ways = EveryWay::new();
            let mut here = 0;
            loop {
                let crashed = nothing.again(ways);
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&crashed, notes))) {
                    eprintln!("the check failed after a crash at {place}, execution {here}, notes {notes:?}");
                    resume_unwind(panic);
                }
                here += 1;
                ways = crashed.into_ways();
                if !ways.advance() {
                    break;
                }
                assert!(here < self.ways_max, "{place}: more than {here} executions, of {nothing:?}");
            }
            report.executions += here;
            report.executions_max = report.executions_max.max(here);
        });
        report
    }

    fn crash_here(
        &self,
        image: &CrashImage,
        step: Option<&Step>,
        notes: &[u64],
        check: &mut impl FnMut(&CrashImage, &[u64]),
        report: &mut Report,
        place: &str,
    ) {
        let mut seen: HashSet<Vec<u8>> = HashSet::new();
        let mut one = |choices: &mut dyn Choices, how: &str| {
            let mut crashed = vec![image.crash(self.failure, choices)];
            if let Some(Step::Store(store)) = step.filter(|_| self.visible_survives(image)) {
                crashed.push(image.cut_short(store, choices));
            }
            for crashed in crashed {
                if !seen.insert(crashed.bytes()) {
                    continue;
                }
                report.crashes += 1;
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&crashed, notes))) {
                    eprintln!("the check failed after a crash at {place}, {how}, notes {notes:?}");
                    resume_unwind(panic);
                }
            }
        };
        report.steps += 1;
        let mut ways = EveryWay::new();
        for way in 0..self.ways_max {
            one(&mut ways, &format!("way {way}"));
            if !ways.advance() {
                report.exhausted += 1;
                return;
            }
        }
        for sample in 0..self.samples as u64 {
            let seed = self.seed.wrapping_add(sample);
            one(&mut Seeded::new(seed), &format!("seed {seed}"));
        }
    }

    fn visible_survives(&self, image: &CrashImage) -> bool {
        self.failure.is_in(crate::Guarantee::of(image.domain()).before_psync)
    }
}

/// Runs the workload once, then again step by step, and hands the image after each step to `visit`.
fn each_step(
    start: &CrashImage,
    workload: impl FnOnce(&CrashImage),
    mut visit: impl FnMut(&CrashImage, Option<&Step>, &[u64], &str),
) {
    let running = start.clone();
    running.start_recording();
    workload(&running);
    let steps = running.stop_recording();

    let replayed = start.clone();
    let mut notes = Vec::new();
    visit(&replayed, None, &notes, "before the first step");
    for (number, step) in steps.iter().enumerate() {
        replayed.replay(step);
        match step {
            // A write-back alone changes nothing that a crash could show.
            Step::Pwb(_) => continue,
            Step::Note(note) => notes.push(*note),
            Step::Store(_) | Step::Pfence | Step::Psync | Step::Alone(_) => {}
        }
        let place = format!("step {number} of {}: {}", steps.len(), describe(step));
        visit(&replayed, Some(step), &notes, &place);
    }
    assert_eq!(replayed.bytes(), running.bytes(), "the replay did what the workload did");
}

fn describe(step: &Step) -> String {
    match step {
        Step::Store(store) => format!("store of {} bytes at {}", store.bytes.len(), store.offset),
        Step::Pwb(range) => format!("pwb of {range:?}"),
        Step::Pfence => "pfence".to_owned(),
        Step::Psync => "psync".to_owned(),
        Step::Alone(range) => format!("{range:?} went past the caches"),
        Step::Note(note) => format!("note {note}"),
    }
}

impl CrashImage {
    /// What is left after a failure, chosen by a seed.
    #[must_use]
    pub fn crash_seeded(&self, failure: Failure, seed: u64) -> Self {
        self.crash(failure, &mut Seeded::new(seed))
    }
}
