//! Mu in simulated clusters: seeds, and what the simulator must be able to see.

use remanence_sim::cluster::Params;
use remanence_sim::cluster::mu::Mu;

use crate::clusters::{cluster, of, what_is_not_guarded_is_found};

/// What seeds must meet in each run, of the group and of faults.
const ACTIVE: &[(&str, f64)] = &[
    ("tried", 2.0),
    ("led", 1.2),
    ("granted", 1.0),
    ("rejected", 0.01),
    ("decided", 20.0),
    ("snapshots", 2.0),
    ("restored", 0.1),
    ("read", 1.0),
    ("done", 20.0),
    ("sent_again", 1.0),
    ("forgotten", 0.1),
    ("busy", 0.5),
    ("pauses", 0.2),
    ("kills", 0.2),
    ("power_losses", 0.5),
    ("power_losses_within", 0.05),
    ("media_failed", 0.1),
    ("slow", 0.2),
    ("partitions", 0.1),
    ("aimed", 0.5),
];

cluster! { Mu;
    fn seeds_of_three() { 300, of(3, 2), ACTIVE }
    fn seeds_of_other_groups() { 300, Params::default(), ACTIVE }
}

#[test]
fn replicas_that_take_no_right_away_are_found_and_the_plan_is_shrunk() {
    what_is_not_guarded_is_found::<Mu>();
}
