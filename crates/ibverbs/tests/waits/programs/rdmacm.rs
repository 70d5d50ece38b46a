//! rdmacm-utils: programs that find each other by address and port through librdmacm.

use super::harness::{ROW, Ready, Row, RunsOn, both, run};
use super::weather::LOSS;
use crate::common;

const RPING: Row = Row { server: "rping -s -a {server} -C 20 -V", ready: Ready::Cm, ..ROW };
const UCMATOSE: Row = Row { server: "ucmatose", ready: Ready::Cm, says: &["return status 0"], ..ROW };
const UDADDY: Row = Row { server: "udaddy", ready: Ready::Cm, says: &["return status 0"], ..ROW };

const ROWS: &[Row] = &[
    Row { client: "rping -c -a {server} -C 20 -V -v", says: &["ping data: rdma-ping-19"], ..RPING },
    Row {
        client: "rping -c -a {server} -C 20 -V -S 30000",
        server: "rping -s -a {server} -C 20 -V -S 30000",
        ..RPING
    },
    UCMATOSE_ROW,
    Row {
        server: "ucmatose -c 10 -C 50 -S 4000 -t 8",
        client: "ucmatose -c 10 -C 50 -S 4000 -s {server}",
        ..UCMATOSE
    },
    Row { server: "ucmatose -m -c 2", client: "ucmatose -m -c 2 -s {server}", ..UCMATOSE },
    Row { client: "udaddy -s {server}", ..UDADDY },
    Row { server: "udaddy -c 4 -C 30 -S 512", client: "udaddy -c 4 -C 30 -S 512 -s {server}", ..UDADDY },
    // A QP that it makes and moves by itself; a server that goes on.
    Row { client: "rping -c -a {server} -C 20 -V -q", server: "rping -s -a {server} -C 20 -V -q", ..RPING },
    Row {
        client: "rping -c -a {server} -C 20 -V",
        server: "rping -s -P -a {server} -V",
        serves_on: true,
        ..RPING
    },
    Row {
        server: "cmtime -c 50",
        client: "cmtime -c 50 -s {server}",
        ready: Ready::Cm,
        says: &["connect"],
        serves_on: true,
        ..ROW
    },
    Row {
        server: "rdma_server",
        client: "rdma_client -s {server}",
        ready: Ready::Cm,
        says: &["rdma_client: end 0"],
        server_says: &["rdma_server: end 0"],
        ..ROW
    },
];

const UCMATOSE_ROW: Row = Row { client: "ucmatose -s {server}", ..UCMATOSE };

#[test]
fn rdmacm_utils_on_one_host() {
    run(RunsOn::Host, ROWS);
}

#[test]
fn rdmacm_utils_between_two_hosts() {
    run(RunsOn::Wire, ROWS);
}

/// Many connections, all of its options, on a path that loses packets too. It hung once, beside much else; as long a run as
/// then with `REMANENCE_EFFORT=night`.
#[test]
fn ucmatose_in_all_its_modes() {
    macro_rules! mode {
        ($options:literal) => {
            Row {
                server: concat!("ucmatose ", $options),
                client: concat!("ucmatose ", $options, " -s {server}"),
                server_says: &["return status 0"],
                ..UCMATOSE
            }
        };
    }
    const MODES: &[Row] = &[
        mode!("-c 100 -C 5"),
        mode!("-c 200 -C 2 -S 1"),
        mode!("-C 500 -S 20000"),
        mode!("-c 3 -C 100 -S 65536"),
        mode!("-c 50 -C 20 -S 9000 -t 8"),
        // No messages at all.
        mode!("-c 40 -C 0"),
        mode!("-c 40 -S 0"),
        mode!("-m -c 60 -C 10 -t 32"),
    ];
    let rounds = remanence_effort::rounds(1, 50);
    let lossy: Vec<Row> = MODES.iter().map(|row| Row { settings: LOSS, ..*row }).collect();
    for _ in 0..rounds {
        run(RunsOn::Host, MODES);
        run(RunsOn::Wire, &lossy);
    }
}

#[test]
fn multicast_is_received_by_who_joined() {
    run(
        RunsOn::Wire,
        &[Row {
            server: "mckey -m 239.1.2.3 -b {server} -C 10",
            client: "mckey -m 239.1.2.3 -b {client} -C 10 -s",
            ready: Ready::Says("joined dgid"),
            ..ROW
        }],
    );
}

#[test]
fn perftest_with_rdma_cm() {
    run(
        RunsOn::Host,
        &[
            Row { ready: Ready::Cm, ..both!("ib_write_lat -n 100 -R") },
            Row { ready: Ready::Cm, ..both!("ib_write_bw -n 100 -R -b") },
            Row { ready: Ready::Cm, ..both!("ib_read_lat -n 100 -R -o 1") },
            Row { ready: Ready::Cm, ..both!("ib_read_bw -n 100 -R -m 1024") },
            Row { ready: Ready::Cm, ..both!("ib_send_lat -n 100 -R -I 100 -s 100") },
            Row { ready: Ready::Cm, ..both!("ib_send_lat -n 100 -c UD -R") },
            Row { ready: Ready::Cm, ..both!("ib_send_bw -n 100 -R") },
            Row { ready: Ready::Cm, ..both!("ib_atomic_lat -n 100 -R") },
        ],
    );
    run(
        RunsOn::Wire,
        &[
            Row { ready: Ready::Cm, ..both!("ib_write_bw -d rem_veth0 -n 100 -R -q 2") },
            Row { ready: Ready::Cm, ..both!("ib_send_lat -d rem_veth0 -n 200 -R") },
        ],
    );
}

#[test]
fn rping_on_a_path_that_loses_packets() {
    let row = Row {
        server: "rping -s -a {server} -C 50 -V",
        client: "rping -c -a {server} -C 50 -V",
        settings: LOSS,
        ..RPING
    };
    run(RunsOn::Wire, &[row]);
}

/// They are exported so that programs load.
#[test]
fn rsockets_say_that_they_are_not_there() {
    let Ok(output) = common::program("rstream").args(["-s", "127.0.0.1"]).output() else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    // timeout(1), by which it is run, ends with 127 where there is no rstream.
    assert!(output.status.code() == Some(127) || said.contains("Function not implemented"), "{output:?}");
}
