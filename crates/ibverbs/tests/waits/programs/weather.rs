//! The same programs on a path that loses packets.

use super::harness::{Row, RunsOn, both, run};

pub(crate) const LOSS: &[(&str, &str)] = &[("REMANENCE_LOSS", "0.02"), ("REMANENCE_SEED", "7")];

#[test]
fn reliable_programs_work_on_a_path_that_loses_packets() {
    run(
        RunsOn::Wire,
        &[
            Row { settings: LOSS, ..both!("ibv_rc_pingpong -d rem_veth0 -g 0 -c -n 300") },
            Row { settings: LOSS, ..both!("ibv_srq_pingpong -d rem_veth0 -g 0 -c -n 50") },
            Row { settings: LOSS, ..both!("ib_write_bw -d rem_veth0 -n 200") },
            Row { settings: LOSS, ..both!("ib_read_bw -d rem_veth0 -n 100") },
            Row { settings: LOSS, ..both!("ib_atomic_lat -d rem_veth0 -n 200") },
        ],
    );
}
