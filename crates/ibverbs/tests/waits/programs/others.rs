//! Verbs programs of other projects: UCX, libfabric, Open MPI, uDAPL, QEMU, fio.

use std::time::Duration;

use super::harness::{ROW, Ready, Row, RunsOn, run};
use crate::common;

const UCX: Row = Row {
    server: "ucx_perftest -p 13337",
    ready: Ready::Tcp(13337),
    says: &["Final:"],
    verbs: Some(&[]),
    settings: &[("UCX_TLS", "rc_verbs,ud_verbs,self"), ("UCX_NET_DEVICES", "rem_lo:1")],
    ..ROW
};
/// Datagrams alone, whose retransmission is UCX's own.
const UCX_UD: Row = Row { settings: &[("UCX_TLS", "ud_verbs,self"), ("UCX_NET_DEVICES", "rem_lo:1")], ..UCX };

fn uct(options: &str) -> Row {
    let line = format!("ucx_perftest -p 13337 -d rem_lo:1 {{server}} -w 5 -x {options}");
    Row { client: line.leak(), settings: &[], ..UCX }
}

/// UCX takes a device only if /dev/infiniband has it.
#[test]
fn ucx_runs_on_rc_and_on_ud() {
    run(
        RunsOn::Host,
        &[
            Row { client: "ucx_perftest -p 13337 {server} -t tag_lat -n 100 -w 5 -s 4096", ..UCX },
            Row { client: "ucx_perftest -p 13337 {server} -t stream_bw -n 100 -w 5 -s 100000", ..UCX },
            Row { client: "ucx_perftest -p 13337 {server} -t ucp_put_lat -n 100 -w 5 -s 64", ..UCX },
            Row { client: "ucx_perftest -p 13337 {server} -t ucp_get -n 50 -w 5 -s 65536", ..UCX },
            Row { client: "ucx_perftest -p 13337 {server} -t ucp_fadd -n 50 -w 5 -s 8", ..UCX },
            Row { client: "ucx_perftest -p 13337 {server} -t tag_lat -n 50 -w 5 -s 64", ..UCX_UD },
            // UCX's transports themselves, without what it builds on them.
            uct("rc_verbs -t put_lat -n 100 -s 8"),
            uct("rc_verbs -t get -n 50 -s 4096 -D zcopy"),
            uct("rc_verbs -t am_bw -n 100 -s 64"),
            uct("rc_verbs -t fadd -n 50 -s 8"),
            uct("ud_verbs -t am_lat -n 100 -s 64"),
            uct("ud_verbs -t am_bw -n 100 -s 512 -D zcopy"),
        ],
    );
}

/// Open MPI and others run on it. (It looks for interfaces, and leaves loopback out.)
#[test]
fn libfabric_runs_messages_and_datagrams() {
    const FI: Row = Row { ready: Ready::Tcp(47592), says: &["bytes"], ..ROW };
    run(
        RunsOn::Wire,
        &[
            Row {
                server: "fi_pingpong -p verbs -e msg -I 50",
                client: "fi_pingpong -p verbs -e msg -I 50 {server}",
                ..FI
            },
            Row {
                server: "fi_pingpong -p verbs;ofi_rxm -e rdm -I 50",
                client: "fi_pingpong -p verbs;ofi_rxm -e rdm -I 50 {server}",
                ..FI
            },
            Row {
                server: "fi_pingpong -p verbs -e dgram -I 50 -S 64",
                client: "fi_pingpong -p verbs -e dgram -I 50 -S 64 {server}",
                ..FI
            },
        ],
    );
}

/// With what Debian's can use on Ethernet: UCX, and libfabric. (Its own `openib` is built without rdma_cm, and then is for
/// InfiniBand alone.) Two ranks, whose data is checked, and who write into each other's memory.
#[test]
fn open_mpi_runs_over_ucx_and_over_libfabric() {
    if !std::path::Path::new("/usr/lib/python3/dist-packages/mpi4py").exists() {
        return println!("skipped: no python3-mpi4py is installed");
    }
    const MPI: Row = Row {
        ready: Ready::Alone,
        verbs: Some(&["--device", "rem_veth0"]),
        says: &["2 ranks were right"],
        settings: &[
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("UCX_TLS", "rc_verbs,ud_verbs,self"),
            ("UCX_NET_DEVICES", "rem_veth0:1"),
        ],
        ..ROW
    };
    let line = |how: &str| {
        let ring = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/ring.py");
        &*format!("mpirun --oversubscribe -np 2 {how} /usr/bin/python3 {ring}").leak()
    };
    run(
        RunsOn::Wire,
        &[
            Row { client: line("--mca pml ucx --mca osc ucx"), ..MPI },
            Row {
                client: line("--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm"),
                ..MPI
            },
        ],
    );
}

/// By rdma_cm (`libdaplofa`) and by QP numbers that travel over TCP (`libdaploscm`).
#[test]
fn udapl_runs_over_rdma_cm_and_over_sockets() {
    const DAT: Row = Row {
        ready: Ready::Tcp(15828),
        says: &["PASSED"],
        server_says: &["PASSED"],
        settings: &[("DAT_OVERRIDE", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/dat.conf"))],
        ..ROW
    };
    run(
        RunsOn::Wire,
        &[
            Row {
                server: "dtest -P remanence-cma -B 10 -s",
                client: "dtest -P remanence-cma -B 10 -h {server}",
                ..DAT
            },
            Row {
                server: "dtest -P remanence-scm -B 10 -s",
                client: "dtest -P remanence-scm -B 10 -h {server}",
                ..DAT
            },
        ],
    );
}

/// Live migration, of memory that is registered at first and of memory that is registered piece by piece.
#[test]
fn qemu_moves_a_machine() {
    const QEMU: Row =
        Row { ready: Ready::Tcp(4444), says: &["all of them right"], limit: Duration::from_secs(300), ..ROW };
    const SERVER: &str = "qemu-system-x86_64 -nodefaults -display none -accel tcg -m 64 -incoming defer \
                          -qmp tcp:{server}:4444,server=on,wait=off";
    let line = |pin: &str| {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/migrate.py");
        &*format!("/usr/bin/python3 {program} {{scratch}} {{server}} 4444 {pin}").leak()
    };
    run(
        RunsOn::Wire,
        &[
            Row { server: SERVER, client: line("off"), ..QEMU },
            Row { server: SERVER, client: line("on"), ..QEMU },
        ],
    );
}

/// Its jobs are threads, as its processes would outlive it. It gives its peer half a second to post receives, and asks for
/// no RNR retry: where that is too little, the client says so and ends, and its server waits for ever.
const FIO: Row = Row {
    ready: Ready::Cm,
    excuse: Some("RNR retry counter exceeded"),
    limit: Duration::from_secs(40),
    ..ROW
};

#[test]
fn fio_writes_and_sends_with_verification() {
    run(
        RunsOn::Host,
        &[
            Row {
                server: "fio --thread --name=s --ioengine=rdma --port=5001 --bs=16k --size=2m --iodepth=8 --rw=read",
                client: "fio --thread --name=c --ioengine=rdma --hostname={server} --port=5001 --verb=write --bs=16k \
                         --size=2m --iodepth=8 --rw=write",
                says: &["WRITE:", "err= 0"],
                ..FIO
            },
            Row {
                server: "fio --thread --name=s --ioengine=rdma --port=5001 --bs=16k --size=2m --iodepth=8 --rw=read",
                client: "fio --thread --name=c --ioengine=rdma --hostname={server} --port=5001 --verb=read --bs=16k \
                         --size=2m --iodepth=8 --rw=write",
                says: &["WRITE:", "err= 0"],
                ..FIO
            },
            Row {
                server: "fio --thread --name=s --ioengine=rdma --port=5001 --bs=16k --size=2m --iodepth=16 --rw=read \
                         --verify=crc32c --verify_fatal=1 --verify_state_save=0",
                client: "fio --thread --name=c --ioengine=rdma --hostname={server} --port=5001 --verb=send --bs=16k \
                         --size=2m --iodepth=1 --iodepth_batch_complete=1 --rw=write --verify=crc32c --do_verify=0 \
                         --verify_state_save=0",
                says: &["WRITE:", "err= 0"],
                server_says: &["READ:", "err= 0"],
                ..FIO
            },
        ],
    );
}

/// Whatever the verb: its engine takes sequential requests alone. (Its server is not told, and waits for ever.)
#[test]
fn fio_itself_refuses_random_requests() {
    let line = "--thread --name=c --ioengine=rdma --hostname=127.0.0.1 --port=5001 --verb=read --bs=16k --size=2m \
                --iodepth=8 --rw=randwrite";
    let output = common::program("fio").args(line.split_whitespace()).output().expect("coreutils");
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    // timeout(1), by which it is run, ends with 127 where there is no fio.
    let refused = !output.status.success() && said.contains("RDMA network IO can't be random");
    assert!(output.status.code() == Some(127) || refused, "{output:?}");
}
