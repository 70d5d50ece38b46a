//! A replicated service in simulated clusters: seeds, and what the simulator must be able to see.

use remanence_sim::cluster::Params;
use remanence_sim::cluster::replicated::Replicated;

use crate::clusters::{cluster, of, what_is_not_guarded_is_found};

/// What seeds must meet in each run, of the service and of faults.
const ACTIVE: &[(&str, f64)] = &[
    ("led", 1.0),
    ("from_snapshot", 0.2),
    ("stood_down", 0.2),
    ("done", 20.0),
    ("sent_again", 1.0),
    ("unknown", 0.1),
    ("expired", 0.05),
    ("connected_again", 0.2),
    ("pauses", 0.2),
    ("kills", 0.2),
    ("power_losses", 0.5),
    ("power_losses_within", 0.05),
    ("media_failed", 0.2),
    ("slow", 0.2),
    ("partitions", 0.1),
];

cluster! { Replicated;
    fn seeds_of_two_of_three() { 600, of(3, 2), ACTIVE }
    fn seeds_of_other_quorums() { 600, Params::default(), ACTIVE }
}

#[test]
fn servers_that_do_not_shut_older_hosts_out_are_found_and_the_plan_is_shrunk() {
    what_is_not_guarded_is_found::<Replicated>();
}
