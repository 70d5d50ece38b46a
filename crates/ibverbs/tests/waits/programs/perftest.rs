//! perftest: latency and bandwidth of write, read, send and the atomics, in the modes that people use.
//!
//! Few iterations each: these runs show that the programs work; `rem bench verbs` measures. With rdma_cm: `rdmacm.rs`.
//! All sizes (-a) are for bandwidth alone: the latency programs measure the processor's frequency for a second each time.

use super::harness::{RunsOn, both, run};

#[test]
fn write() {
    run(
        RunsOn::Host,
        &[
            both!("ib_write_lat -n 200"),
            both!("ib_write_lat -n 5 -s 8388608"),
            both!("ib_write_lat -n 100 -I 64 -s 64"),
            both!("ib_write_lat -n 100 -c UC"),
            both!("ib_write_bw -n 200"),
            both!("ib_write_bw -a -n 5"),
            both!("ib_write_bw -n 100 -b"),
            both!("ib_write_bw -n 100 -q 4 -s 4096"),
            both!("ib_write_bw -n 100 -c UC -m 512"),
            both!("ib_write_bw -n 104 -l 8 -t 64 -Q 8 -s 512"),
            both!("ib_write_bw -n 100 --ipv6 -x 1"),
        ],
    );
}

#[test]
fn read() {
    run(
        RunsOn::Host,
        &[
            both!("ib_read_lat -n 200"),
            both!("ib_read_lat -n 5 -s 8388608"),
            both!("ib_read_lat -n 100 -e"),
            both!("ib_read_bw -n 200"),
            both!("ib_read_bw -a -n 5"),
            both!("ib_read_bw -n 100 -b"),
            both!("ib_read_bw -n 100 -q 4 -e -s 4096"),
        ],
    );
}

#[test]
fn send() {
    run(
        RunsOn::Host,
        &[
            both!("ib_send_lat -n 200"),
            both!("ib_send_lat -n 5 -s 8388608"),
            both!("ib_send_lat -n 100 -e"),
            both!("ib_send_lat -n 100 -c UC"),
            both!("ib_send_lat -n 100 -c UD"),
            both!("ib_send_lat -n 100 -c UD -e -s 1024"),
            both!("ib_send_bw -n 200"),
            both!("ib_send_bw -a -n 5"),
            both!("ib_send_bw -n 100 -b -q 4 -s 4096"),
            both!("ib_send_bw -n 100 -e -r 64"),
            both!("ib_send_bw -n 100 --use-srq -q 4 -s 4096"),
            both!("ib_send_bw -n 100 -c UC -b"),
            both!("ib_send_bw -n 100 -c UD -s 2048"),
        ],
    );
}

#[test]
fn atomics() {
    run(
        RunsOn::Host,
        &[
            both!("ib_atomic_lat -n 200"),
            both!("ib_atomic_lat -n 100 -A CMP_AND_SWAP -e"),
            both!("ib_atomic_bw -n 200"),
            both!("ib_atomic_bw -n 100 -A CMP_AND_SWAP -b"),
            both!("ib_atomic_bw -n 100 -q 4 -e"),
        ],
    );
}

#[test]
fn between_two_hosts() {
    run(
        RunsOn::Wire,
        &[
            both!("ib_write_lat -d rem_veth0 -n 200"),
            both!("ib_write_bw -d rem_veth0 -n 200 -b"),
            both!("ib_read_lat -d rem_veth0 -n 200"),
            both!("ib_read_bw -d rem_veth0 -n 100 -e"),
            both!("ib_send_bw -d rem_veth0 -n 200 --ipv6 -x 1"),
            both!("ib_send_bw -d rem_veth0 -n 100 -c UD -s 1024"),
            both!("ib_atomic_bw -d rem_veth0 -n 100"),
        ],
    );
}
