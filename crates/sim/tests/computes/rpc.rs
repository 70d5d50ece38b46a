//! Remote procedure calls in simulated clusters: seeds, and what the simulator must be able to see.

use remanence_sim::cluster::Params;
use remanence_sim::cluster::rpc::Rpc;

use crate::clusters::{cluster, of, what_is_not_guarded_is_found};

/// What seeds must meet in each run, of the service and of faults.
const ACTIVE: &[(&str, f64)] = &[
    ("answered", 20.0),
    ("unknown", 0.2),
    ("never_sent", 0.2),
    ("orphans", 0.1),
    ("refused", 0.2),
    ("given_up", 0.2),
    ("appended", 5.0),
    ("read", 0.5),
    ("trimmed", 0.2),
    ("full", 0.1),
    ("found_again", 0.2),
    ("media_ended", 0.02),
    ("timeouts", 1.0),
    ("stale", 1.0),
    ("datagrams_lost", 1.0),
    ("datagrams_twice", 1.0),
    ("datagrams_late", 1.0),
    ("datagrams_damaged", 1.0),
    ("pauses", 0.1),
    ("kills", 0.1),
    ("power_losses", 0.2),
    ("power_losses_within", 0.02),
    ("partitions", 0.05),
];

cluster! { Rpc;
    fn every_call_ends_once_and_is_carried_out_at_most_once() { 600, Params::default(), ACTIVE }
    fn seeds_of_three_servers() { 200, of(3, 2), ACTIVE }
}

#[test]
fn ends_that_say_and_draw_the_same_in_each_life_are_found_and_the_plan_is_shrunk() {
    what_is_not_guarded_is_found::<Rpc>();
}
