//! What is there: ibv_devices, ibv_devinfo, ibv_asyncwatch.

use super::harness::{ROW, Ready, Row, RunsOn, run};
use crate::common;

const ALONE: Row = Row { ready: Ready::Alone, ..ROW };

#[test]
fn devices_are_listed_and_described() {
    run(
        RunsOn::Host,
        &[
            Row { client: "ibv_devices", says: &["rem_lo"], ..ALONE },
            Row { client: "ibv_devinfo", says: &["hca_id:\trem_lo", "PORT_ACTIVE", "Ethernet"], ..ALONE },
            Row {
                client: "ibv_devinfo -v",
                says: &[
                    "transport:\t\t\tInfiniBand (0)",
                    "::ffff:127.0.0.1, RoCE v2",
                    "atomic_cap:",
                    "max_msg_sz:",
                    "fw_ver:",
                ],
                ..ALONE
            },
            Row { client: "ibv_devinfo -l", says: &["rem_lo"], ..ALONE },
        ],
    );
}

#[test]
fn the_addresses_of_an_interface_are_its_gids() {
    run(
        RunsOn::Wire,
        &[Row {
            client: "ibv_devinfo -v -d rem_veth0",
            says: &["::ffff:10.88.0.2, RoCE v2", "fd88::2, RoCE v2", "fe80::", "active_mtu:\t\t1024"],
            ..ALONE
        }],
    );
}

/// Those of all processes together, also of those that have ended.
#[test]
fn counters_below_sys_count_what_every_process_did() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/counters.sh");
    let mut command = common::program_alone("sh");
    let output = command.arg(script).arg(common::rem()).env("REMANENCE_LIB", common::dropin()).output();
    let output = output.expect("coreutils");
    let said = String::from_utf8_lossy(&output.stdout);
    if String::from_utf8_lossy(&output.stderr).contains("/sys/class/infiniband") {
        return println!("skipped: there can be no view here: {output:?}");
    }
    assert_eq!(said, "closed: 2000 2000 0 10\n", "{output:?}");
}

/// It waits for events for ever; the limit of the test is how it ends.
#[test]
fn asynchronous_events_are_waited_for() {
    run(
        RunsOn::Host,
        &[Row {
            server: "ibv_asyncwatch -d rem_lo",
            server_says: &["rem_lo: async event FD"],
            client: "ibv_devices",
            ready: Ready::Says("async event FD"),
            serves_on: true,
            ..ROW
        }],
    );
}
