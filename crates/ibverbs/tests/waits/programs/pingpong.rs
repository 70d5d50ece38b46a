//! rdma-core's examples: ibv_rc_pingpong and the like. They exchange QP numbers over TCP, and check the data with -c.

use super::harness::{Row, RunsOn, both, run};

#[test]
fn rc_pingpong() {
    run(
        RunsOn::Host,
        &[
            both!("ibv_rc_pingpong -g 0 -c"),
            both!("ibv_rc_pingpong -g 0 -c -e"),
            both!("ibv_rc_pingpong -g 0 -c -N"),
            both!("ibv_rc_pingpong -g 1 -c -m 4096 -s 65536 -n 200"),
            both!("ibv_rc_pingpong -g 0 -c -m 256 -s 10001 -n 100 -e"),
            both!("ibv_rc_pingpong -g 0 -s 1 -r 1 -n 500"),
            both!("ibv_rc_pingpong -g 0 -s 1048576 -n 20"),
        ],
    );
}

#[test]
fn uc_pingpong() {
    run(
        RunsOn::Host,
        &[
            both!("ibv_uc_pingpong -g 0 -c"),
            both!("ibv_uc_pingpong -g 0 -c -e -m 2048 -s 9000 -n 200"),
            both!("ibv_uc_pingpong -g 1 -c -s 64"),
        ],
    );
}

#[test]
fn ud_pingpong() {
    run(
        RunsOn::Host,
        &[
            both!("ibv_ud_pingpong -g 0 -c"),
            both!("ibv_ud_pingpong -g 0 -c -e"),
            both!("ibv_ud_pingpong -g 1 -c -s 4096"),
            both!("ibv_ud_pingpong -g 0 -s 1 -r 2"),
        ],
    );
}

#[test]
fn srq_pingpong() {
    run(
        RunsOn::Host,
        &[
            both!("ibv_srq_pingpong -g 0 -c -n 200"),
            both!("ibv_srq_pingpong -g 0 -c -e -n 100"),
            both!("ibv_srq_pingpong -g 0 -q 3 -r 20 -s 3000 -m 512 -n 200"),
            both!("ibv_srq_pingpong -g 1 -q 64 -n 50"),
        ],
    );
}

#[test]
fn pingpong_between_two_hosts() {
    const WIRE: &[Row] = &[
        both!("ibv_rc_pingpong -d rem_veth0 -g 0 -c"),
        both!("ibv_rc_pingpong -d rem_veth0 -g 1 -c -e"),
        both!("ibv_rc_pingpong -d rem_veth0 -g 0 -c -N -s 100000 -n 100"),
        both!("ibv_uc_pingpong -d rem_veth0 -g 0 -c"),
        both!("ibv_ud_pingpong -d rem_veth0 -g 0 -c -s 1024"),
        both!("ibv_ud_pingpong -d rem_veth0 -g 1 -c -s 1024 -e"),
        both!("ibv_srq_pingpong -d rem_veth0 -g 0 -c -n 100"),
    ];
    run(RunsOn::Wire, WIRE);
}
