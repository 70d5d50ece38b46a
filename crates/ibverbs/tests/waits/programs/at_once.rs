//! Several programs at the same time: pairs that know nothing of each other and share a device, and clients of one server.

use super::harness::{ROW, Ready, Row, RunsOn, both, run, run_at_once};

#[test]
fn pairs_share_a_device() {
    const fn at(port: u16, row: Row) -> Row {
        Row { ready: Ready::Tcp(port), ..row }
    }
    run_at_once(
        RunsOn::Host,
        &[
            at(18601, both!("ibv_rc_pingpong -g 0 -c -n 300 -p 18601")),
            at(18602, both!("ibv_rc_pingpong -g 1 -c -e -n 300 -p 18602")),
            at(18603, both!("ibv_srq_pingpong -g 0 -c -n 100 -p 18603")),
            at(18604, both!("ib_send_bw -n 100 -s 4096 -p 18604")),
            at(18605, both!("ib_write_lat -n 100 -p 18605")),
            Row {
                server: "rping -s -a {server} -C 20 -V",
                client: "rping -c -a {server} -C 20 -V",
                ready: Ready::Cm,
                ..ROW
            },
        ],
    );
}

/// Not rping -s -P: it takes the next request before it is done with the last, and mixes them up (`rping.c` hands one
/// global "child" to all of its threads). qperf serves one client after the other.
#[test]
fn clients_share_a_server() {
    run(
        RunsOn::Host,
        &[
            Row {
                server: "ucmatose -c 3 -C 20 -S 2000",
                client: "ucmatose -C 20 -S 2000 -s {server}",
                ready: Ready::Cm,
                says: &["return status 0"],
                server_says: &["return status 0"],
                clients: 3,
                ..ROW
            },
            Row {
                server: "udaddy -c 3 -C 10",
                client: "udaddy -C 10 -s {server}",
                ready: Ready::Cm,
                says: &["return status 0"],
                server_says: &["return status 0"],
                clients: 3,
                ..ROW
            },
        ],
    );
}
