//! Durable blobs in simulated clusters: seeds.

use remanence_sim::cluster::Params;
use remanence_sim::cluster::pool::Pool;

use crate::clusters::{cluster, of};

/// What seeds must meet in each run, of the pool and of faults.
const ACTIVE: &[(&str, f64)] = &[
    ("connected", 5.0),
    ("put", 5.0),
    ("incomplete", 0.5),
    ("got", 5.0),
    ("got_any", 0.2),
    ("deleted", 0.5),
    ("unknown", 0.5),
    ("caught_up", 1.0),
    ("verified", 1.0),
    ("pauses", 0.2),
    ("kills", 0.2),
    ("power_losses", 0.5),
    ("power_losses_within", 0.05),
    ("disks_lost", 0.05),
    ("repaired", 0.05),
    ("media_failed", 0.2),
    ("slow", 0.2),
    ("partitions", 0.1),
    ("aimed", 0.1),
];

cluster! { Pool;
    fn seeds_of_two_of_three() { 300, of(3, 2), ACTIVE }
    fn seeds_of_other_quorums() { 300, Params::default(), ACTIVE }
}
