//! The same programs on other links than UDP, and on UDP that is recorded and slow, as `rem verbs` has options for.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::harness::{ROW, Ready, Row, RunsOn, both, run, run_and};

const SHM: Row = Row { verbs: Some(&["--link", "shm"]), ..ROW };
/// The server at an address that its client knows; what travels in shared memory needs no interface that has it.
const SHM_CM: Row = Row { ready: Ready::Cm, ..SHM };

#[test]
fn in_shared_memory() {
    const fn shm(row: Row) -> Row {
        Row { verbs: SHM.verbs, ..row }
    }
    run(
        RunsOn::Host,
        &[
            Row { client: "ibv_devices", says: &["rem_shm"], ready: Ready::Alone, ..SHM },
            shm(both!("ibv_rc_pingpong -g 0 -c")),
            shm(both!("ibv_rc_pingpong -g 0 -c -e -m 4096 -s 100000 -n 200")),
            shm(both!("ibv_ud_pingpong -g 0 -c -e")),
            shm(both!("ib_write_lat -n 200")),
            shm(both!("ib_write_bw -a -n 5")),
            shm(both!("ib_read_bw -n 100 -q 4 -e -s 4096")),
            shm(both!("ib_send_bw -n 100 -b -q 2 -s 4096")),
            shm(both!("ib_atomic_bw -n 100 -A CMP_AND_SWAP -b")),
            Row {
                server: "env REMANENCE_ADDRESS=10.99.0.1 rping -s -a 10.99.0.1 -C 20 -V -S 30000",
                client: "rping -c -a 10.99.0.1 -C 20 -V -S 30000",
                ..SHM_CM
            },
            Row {
                server: "env REMANENCE_ADDRESS=10.99.0.1 ucmatose -b 10.99.0.1 -c 3 -C 10",
                client: "ucmatose -s 10.99.0.1 -c 3 -C 10",
                says: &["return status 0"],
                ..SHM_CM
            },
            shm(both!("ibv_rc_pingpong -g 0 -c -n 100")),
        ],
    );
}

/// Each process has a queue of its interface to itself, and sends and receives frames without the kernel's UDP.
#[test]
fn on_af_xdp() {
    const fn xdp(row: Row) -> Row {
        Row { verbs: Some(&["--link", "xdp", "--device", "veth0"]), ..row }
    }
    if !Command::new("unshare").args(["--net", "true"]).status().is_ok_and(|status| status.success()) {
        return println!("skipped: AF_XDP needs root");
    }
    run(
        RunsOn::Wire,
        &[
            xdp(both!("ibv_rc_pingpong -d rem_veth0 -g 0 -c")),
            xdp(both!("ibv_rc_pingpong -d rem_veth0 -g 1 -c -e -s 100000 -n 100")),
            xdp(both!("ibv_ud_pingpong -d rem_veth0 -g 0 -c -s 1024")),
            xdp(both!("ib_write_bw -d rem_veth0 -n 200 -b")),
            xdp(both!("ib_read_lat -d rem_veth0 -n 200")),
            xdp(both!("ib_atomic_lat -d rem_veth0 -n 100 -e")),
            xdp(Row {
                server: "rping -s -a {server} -C 20 -V -S 30000",
                client: "rping -c -a {server} -C 20 -V -S 30000",
                ready: Ready::Cm,
                ..ROW
            }),
        ],
    );
}

#[test]
fn recorded_and_delayed() {
    const fn slow(row: Row) -> Row {
        Row { verbs: Some(&["--capture", "{scratch}/run.pcapng", "--delay", "1ms"]), ..row }
    }
    run_and(
        RunsOn::Wire,
        &[
            slow(both!("ibv_rc_pingpong -d rem_veth0 -g 0 -c -n 100")),
            slow(both!("ibv_srq_pingpong -d rem_veth0 -g 1 -c -n 50 -e")),
            slow(both!("ib_read_bw -d rem_veth0 -n 20 -s 100000")),
            slow(both!("ib_atomic_lat -d rem_veth0 -n 50")),
            slow(Row {
                server: "ucmatose -b {server} -c 2 -C 10",
                client: "ucmatose -c 2 -C 10 -s {server}",
                ready: Ready::Cm,
                ..ROW
            }),
        ],
        recordings_are_whole,
    );
}

/// All processes of a run left files, in which tshark finds RoCE and nothing malformed.
fn recordings_are_whole(scratch: &Path) {
    let files: Vec<_> =
        fs::read_dir(scratch).expect("a directory").map(|file| file.expect("a file").path()).collect();
    // Each row's first process takes the name, which is free again when it has ended.
    assert_eq!(files.len(), 1 + 5, "{files:?}");
    for file in files {
        let count = |filter: &str| {
            let output = Command::new("tshark")
                .env("HOME", scratch)
                .env("XDG_CONFIG_HOME", scratch)
                .args(["-n", "--disable-protocol", "rpcordma", "--disable-heuristic", "eth_over_ib"])
                .args(["--disable-heuristic", "mellanox_eoib", "-Y", filter, "-r"])
                .arg(&file)
                .output();
            output
                .ok()
                .filter(|output| output.status.success())
                .map(|output| output.stdout.iter().filter(|b| **b == b'\n').count())
        };
        let Some(all) = count("infiniband") else { return println!("skipped: apt install tshark") };
        assert!(all > 20, "{} has {all} packets", file.display());
        assert_eq!(count("_ws.malformed"), Some(0), "{}", file.display());
    }
}
