//! Verbs programs on our libraries against the same programs on the Linux kernel's Soft-RoCE, both ways round.
//!
//! One test boots one guest (`tests/guest`) behind a tap, in a network namespace of its own. Debian's programs run in
//! the guest on Debian's libraries, and here on ours: each case once with us as the server and once as the client.
//! `dumpcap` records all packets; `tshark` must find none malformed. What is missing is said, and skipped.

use crate::common;
use crate::machine;
mod world;

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use machine::Capture;
use world::{Side, World};

/// Set in the process that runs inside the network namespace.
const INSIDE: &str = "REMANENCE_INTEROP";

/// Set by whoever wants only the cases that contain this word.
const ONLY: &str = "REMANENCE_INTEROP_ONLY";

#[test]
fn programs_on_our_libraries_and_on_linux_understand_each_other() {
    if std::env::var_os(INSIDE).is_none() {
        common::dropin();
    }
    machine::in_a_namespace(
        "interop::programs_on_our_libraries_and_on_linux_understand_each_other",
        INSIDE,
        inside,
    );
}

/// Where `common::dropin` puts them: it is no more called inside, where cargo has no network.
fn libraries() -> PathBuf {
    let beside = || {
        let program = std::env::current_exe().expect("this program");
        program.ancestors().nth(2).expect("target/debug/deps/waits").join("dropin")
    };
    std::env::var_os("REMANENCE_TEST_LIB").map_or_else(beside, PathBuf::from)
}

/// What one side serves and the other asks. In both, the words in braces are what [`World::start`] makes of them.
struct Case {
    server: String,
    client: String,
    /// What the client must have said.
    said: &'static str,
}

/// perftest, whose server is its client without a peer. A second of timeout, not 67 ms: emulated, a peer may be away from
/// its core for the half second that its seven retries then last.
fn perftest(command: &str) -> Case {
    let server = format!("{command} -d {{dev}} -F -u 18");
    let client = format!("{server} {{peer}}");
    Case { server, client, said: "#bytes" }
}

/// libibverbs' examples, with a look at the data.
fn pingpong(command: &str) -> Case {
    let server = format!("{command} -d {{dev}} -g {{gid}}");
    Case { client: format!("{server} {{peer}}"), server, said: " iters in " }
}

fn rping(options: &str) -> Case {
    let server = format!("rping -s -a {{own}} -V {options}");
    let client = format!("rping -c -a {{peer}} -v -V {options}");
    Case { server, client, said: "ping data: rdma-ping-9:" }
}

fn cm_example(name: &str, options: &str) -> Case {
    Case {
        server: format!("{name} -b {{own}} {options}"),
        client: format!("{name} -s {{peer}} {options}"),
        said: "return status 0",
    }
}

fn durable(options: &str) -> Case {
    let server = format!("durable -d {{dev}} -g {{gid}} {options}");
    Case { client: format!("{server} {{peer}}"), server, said: "durable: ok" }
}

/// Every operation and transport, addresses out of band and by rdma_cm, path MTU 1024 and 4096.
fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for mtu in ["1024", "4096"] {
        for (program, size, count) in [
            ("ib_write_lat", 9_000, 50),
            ("ib_read_lat", 9_000, 50),
            ("ib_send_lat", 9_000, 50),
            ("ib_write_bw", 65_536, 50),
            ("ib_read_bw", 65_536, 50),
            ("ib_send_bw", 65_536, 50),
        ] {
            cases.push(perftest(&format!("{program} -m {mtu} -s {size} -n {count}")));
        }
        cases.push(pingpong(&format!("ibv_rc_pingpong -c -m {mtu} -s 10000 -n 50")));
        cases.push(pingpong(&format!("ibv_uc_pingpong -c -m {mtu} -s 10000 -n 50")));
        cases.push(durable(&format!("-m {mtu}")));
    }
    for command in [
        // The smallest operations, atomics, both ways at once, several QPs, and sleeping for completions (not in
        // ib_send_lat, which hangs now and then with Soft-RoCE at both ends too).
        "ib_write_lat -s 8 -n 100",
        "ib_atomic_lat -A FETCH_AND_ADD -n 50",
        "ib_atomic_lat -A CMP_AND_SWAP -n 50",
        "ib_atomic_bw -A FETCH_AND_ADD -n 50",
        "ib_write_bw -b -s 16384 -n 50",
        "ib_write_bw -q 4 -s 16384 -n 50",
        "ib_read_bw -b -s 16384 -n 50",
        "ib_send_bw -b -e -s 16384 -n 50",
        "ib_send_bw -r 64 --use-srq -s 4096 -n 50",
        // Other transports.
        "ib_write_lat -c UC -s 64 -n 50",
        "ib_write_bw -c UC -s 16384 -n 50",
        "ib_send_bw -c UC -s 16384 -n 50",
        "ib_send_lat -c UD -s 1024 -n 50",
        "ib_send_bw -c UD -s 1024 -n 50",
        // Connected by rdma_cm.
        "ib_write_lat -R -s 64 -n 50",
        "ib_write_bw -R -s 65536 -n 50",
        "ib_read_lat -R -s 64 -n 50",
        "ib_read_bw -R -s 65536 -n 50",
        "ib_send_lat -R -s 64 -n 50",
        "ib_send_bw -R -s 65536 -n 50",
        "ib_atomic_bw -R -n 50",
    ] {
        cases.push(perftest(command));
    }
    cases.push(pingpong("ibv_rc_pingpong -c -e -s 4096 -n 50"));
    cases.push(pingpong("ibv_ud_pingpong -c -s 1024 -n 50"));
    cases.push(pingpong("ibv_srq_pingpong -c -q 4 -s 4096 -n 50"));
    cases.push(rping("-C 20"));
    cases.push(rping("-C 10 -S 30000"));
    cases.push(cm_example("ucmatose", "-c 3 -C 5 -S 1000"));
    cases.push(cm_example("udaddy", "-c 3 -C 5"));
    cases
}

/// What must arrive although packets are lost. FLUSH is not among them: Linux does not answer a repeated FLUSH, whose
/// responder resource knows no PSNs, so that a lost answer is the end of its QP.
fn in_bad_weather() -> Vec<Case> {
    [
        "ib_write_bw -s 65536 -n 30",
        "ib_read_bw -s 65536 -n 30",
        "ib_send_bw -s 65536 -n 30",
        "ib_send_lat -s 64 -n 50",
        "ib_atomic_lat -n 30",
        "ib_write_bw -R -m 4096 -s 65536 -n 30",
    ]
    .map(perftest)
    .into_iter()
    .chain([rping("-C 20 -S 20000"), pingpong("ibv_rc_pingpong -c -s 30000 -n 50")])
    .collect()
}

fn inside() {
    let missing: Vec<&str> = ["ib_write_lat", "rping", "ibv_rc_pingpong"]
        .into_iter()
        .filter(|name| !Command::new("which").arg(name).output().is_ok_and(|output| output.status.success()))
        .collect();
    if !missing.is_empty() {
        eprintln!("skipped: {} not installed (perftest, rdmacm-utils, ibverbs-utils)", missing.join(", "));
        return;
    }
    let mut world = World::new(libraries());
    let capture = Capture::start();
    let mut failures = through(&mut world, &all());
    world.weather = vec![("REMANENCE_LOSS", "0.02"), ("REMANENCE_SEED", "7")];
    eprintln!("one packet of fifty is lost, each way");
    failures.extend(through(&mut world, &in_bad_weather()));
    world.end();
    eprintln!("{}", failures.join("\n\n"));
    assert_eq!(failures.len(), 0, "so many cases failed");
    capture.judge();
}

/// Whether one side may have waited in vain because the other had no core: the programs' own patience, half a second
/// of retries, is shorter than what a busy machine may keep an emulated one waiting.
fn starved(said: &str) -> bool {
    ["ended with -1", "retry counter exceeded"].iter().any(|word| said.contains(word))
}

/// Runs all cases both ways round, and returns what went wrong.
fn through(world: &mut World, cases: &[Case]) -> Vec<String> {
    let mut failures = Vec::new();
    let only = std::env::var(ONLY).unwrap_or_default();
    for case in cases.iter().filter(|case| case.server.contains(&only)) {
        for side in [Side::Ours, Side::Guest] {
            let start = Instant::now();
            let mut answer = world.serve_and_ask((side, &case.server), &case.client);
            if answer.as_ref().is_err_and(|said| starved(said)) {
                eprintln!("  {}: once more", case.server);
                answer = world.serve_and_ask((side, &case.server), &case.client);
            }
            let seconds = start.elapsed().as_secs_f64();
            let word = if side == Side::Ours { "we serve" } else { "we ask" };
            let verdict = match answer {
                Ok(asked) if asked.contains(case.said) => "ok",
                Ok(asked) => {
                    failures.push(format!("{} ({word}) did not say {:?}:\n{asked}", case.client, case.said));
                    "FAILED"
                }
                Err(both) => {
                    failures.push(both);
                    "FAILED"
                }
            };
            eprintln!("  {} ({word}): {verdict}, {seconds:.1} s", case.server);
        }
    }
    failures
}
