//! qperf, whose server serves one test after another.

use super::harness::{ROW, Ready, Row, RunsOn, run};

/// All tests of one kind in one run of the client, against one server. On RoCE it needs -cm1: without rdma_cm it speaks
/// to LIDs, which there are none of.
const QPERF: Row = Row { server: "qperf", ready: Ready::Tcp(19765), serves_on: true, ..ROW };

#[test]
fn qperf() {
    run(
        RunsOn::Host,
        &[
            Row {
                client: "qperf {server} -cm1 -t 1 rc_lat rc_bw rc_bi_bw",
                says: &["rc_lat:", "rc_bw:", "rc_bi_bw:", "bw  ="],
                ..QPERF
            },
            Row {
                client: "qperf {server} -cm1 -t 1 rc_rdma_write_lat rc_rdma_write_poll_lat rc_rdma_write_bw \
                         rc_rdma_read_lat rc_rdma_read_bw",
                says: &["rc_rdma_write_lat:", "rc_rdma_write_poll_lat:", "rc_rdma_read_bw:", "bw  ="],
                ..QPERF
            },
            Row {
                client: "qperf {server} -cm1 -t 1 rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add",
                says: &["rc_fetch_add_mr:", "ver_rc_compare_swap:", "ver_rc_fetch_add:", "msg_rate  ="],
                ..QPERF
            },
            Row { client: "qperf {server} -cm1 -t 1 -cp1 rc_lat", says: &["latency  ="], ..QPERF },
        ],
    );
}
