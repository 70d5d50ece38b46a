//! Bad input and faults, over the C ABI and with real processes: the errno, completion status or CM event that the
//! standard libraries would give, no hang, nothing left behind, and nobody else disturbed. Programs: `tests/faults/*.c`.

use crate::common;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::world::{ADDRESS, Net, Program, compile, namespace};
use remanence_rnic::cm::{self, Manager, Path, Transport};
use remanence_rnic::side::Plain;
use remanence_rnic::{AhAttr, Device, Instant, MAD_LEN, ROCE_PORT};
use remanence_wire::cm::ServiceId;
use remanence_wire::{Gid, Mtu, Qpn};

const VERBS: &[&str] = &["-libverbs", "-lrdmacm"];

/// A network, the programs, and a pair of them that must not notice anything.
struct Scene {
    net: Net,
    dir: PathBuf,
    libraries: PathBuf,
    programs: HashMap<&'static str, PathBuf>,
    /// Most of these programs spin, and would only wait for those of other tests.
    _turn: MutexGuard<'static, ()>,
}

impl Scene {
    fn new(name: &str) -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        match Net::new() {
            Ok(net) => {
                let (dir, libraries) = (common::scratch(name), common::dropin());
                Some(Self { net, dir, libraries, programs: HashMap::new(), _turn: turn })
            }
            Err(why) => {
                println!("skipped: {why}");
                None
            }
        }
    }

    fn start(&mut self, program: &'static str, args: &[&str]) -> Program {
        let binary =
            self.programs.entry(program).or_insert_with(|| compile("faults", program, VERBS, &self.dir));
        let mut command = self.net.command(&self.libraries, binary);
        command.args(args);
        Program::start(command)
    }

    /// One end of a connection, by its role in `cm.c`.
    fn cm(&mut self, role: &str, port: &str) -> Program {
        self.start("cm", &[role, ADDRESS, port])
    }

    /// A server that listens; what it says of its descriptors and threads.
    fn server(&mut self, port: &str) -> (Program, String) {
        let mut server = self.cm("serve", port);
        let has = server.until("ready");
        (server, has)
    }

    /// Runs a program to its end, which must be a good one.
    fn verified(&mut self, program: &'static str, args: &[&str]) {
        let said = self.start(program, args).ends_well();
        assert_eq!(said.last().map(String::as_str), Some("verified"), "{said:?}");
    }

    fn bystanders(&mut self) -> Bystanders {
        let (server, _) = self.server("7400");
        let mut client = self.cm("pair", "7400");
        client.until("running");
        Bystanders { _server: server, client }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A server and a client that exchange messages and check every byte, for as long as this lives.
struct Bystanders {
    _server: Program,
    client: Program,
}

impl Bystanders {
    #[track_caller]
    fn noticed_nothing(self) {
        let said = self.client.ends_well();
        assert!(said.last().is_some_and(|line| line.starts_with("rounds ")), "{said:?}");
    }
}

/// Waits until a server has seen a client go, and holds no more than before.
#[track_caller]
fn gone(server: &mut Program, has: &str) {
    server.until("disconnected");
    assert_eq!(
        server.until("gone"),
        format!("8 flushed, {has}"),
        "every receive comes back, and nothing is left"
    );
}

#[test]
fn a_client_killed_in_the_middle_of_a_write_leaves_nothing_behind() {
    let Some(mut scene) = Scene::new("killed-client") else { return };
    let bystanders = scene.bystanders();
    let (mut server, has) = scene.server("7471");
    for _ in 0..2 {
        let mut writer = scene.cm("write", "7471");
        writer.until("writing");
        writer.kill();
        gone(&mut server, &has);
    }
    // And it serves on.
    let mut client = scene.cm("pair", "7471");
    client.until("running");
    client.ends_well();
    gone(&mut server, &has);
    bystanders.noticed_nothing();
}

#[test]
fn a_killed_server_is_noticed_by_who_waits_and_by_who_sends() {
    let Some(mut scene) = Scene::new("killed-server") else { return };
    let bystanders = scene.bystanders();
    let (mut server, _) = scene.server("7471");
    let (mut waits, mut sends) = (scene.cm("wait", "7471"), scene.cm("send", "7471"));
    waits.until("waiting");
    sends.until("waiting");
    sends.say("a message");
    assert_eq!(sends.until("status"), "success");
    server.kill();
    sends.say("a message");
    assert_eq!(sends.until("status"), "transport retry counter exceeded");
    sends.say("a message");
    assert_eq!(sends.until("status"), "Work Request Flushed Error");
    sends.ends_well();
    // As the kernel says when a DREQ has no answer: -ETIMEDOUT.
    assert_eq!(waits.until("event"), "RDMA_CM_EVENT_DISCONNECTED -110");
    waits.until("flushed");
    waits.ends_well();
    // Another one can have its place.
    let (_server, _) = scene.server("7471");
    let mut client = scene.cm("pair", "7471");
    client.until("running");
    client.ends_well();
    bystanders.noticed_nothing();
}

#[test]
fn nobody_refuses_at_once_and_an_absent_host_in_time() {
    let Some(mut scene) = Scene::new("nobody") else { return };
    // Without anybody at the port: the network itself says so.
    let said = scene.start("cm", &["nobody", ADDRESS, "7"]).ends_well();
    assert!(said[0].contains("RDMA_CM_EVENT_REJECTED 8"), "{said:?}");
    assert_eq!(said[1], "connect -1 ECONNREFUSED");
    // With others who use the port, but not this service: reason 8, invalid service ID.
    let bystanders = scene.bystanders();
    let said = scene.start("cm", &["nobody", ADDRESS, "7"]).ends_well();
    assert_eq!(said, ["event RDMA_CM_EVENT_REJECTED 8", "connect -1 ECONNREFUSED"]);
    // A host that went away: its neighbours still have its address.
    let said = scene.start("cm", &["nobody", "10.77.0.8", "7"]).ends_well();
    assert_eq!(said, ["event RDMA_CM_EVENT_UNREACHABLE -110", "connect -1 ETIMEDOUT"]);
    bystanders.noticed_nothing();
}

/// The kernel tells peers of a listener that ends that it rejects them (with reason 28). Here nobody is left to do so: whoever
/// else uses the port says that there is no such service.
#[test]
fn who_waits_for_an_answer_is_told_when_nobody_is_left_to_give_it() {
    let Some(mut scene) = Scene::new("deaf") else { return };
    let ask = |scene: &mut Scene| {
        let mut deaf = scene.cm("deaf", "7471");
        deaf.until("ready");
        let client = scene.cm("nobody", "7471");
        deaf.until("asked");
        deaf.kill();
        client.ends_well()
    };
    let rejected = ["event RDMA_CM_EVENT_REJECTED 8", "connect -1 ECONNREFUSED"];
    assert_eq!(ask(&mut scene), rejected);
    let bystanders = scene.bystanders();
    assert_eq!(ask(&mut scene), rejected);
    bystanders.noticed_nothing();
}

/// As `addr.c` of Linux has it. Behind the interface there is nobody; a route leads through somebody who is not there; and
/// for two families.
#[test]
fn who_is_not_there_is_no_address_to_resolve() {
    let Some(mut scene) = Scene::new("absent") else { return };
    for absent in ["10.77.0.9", "10.78.0.1", "fd77::9"] {
        let said = scene.start("cm", &["absent", absent, "7"]).ends_well();
        let error = "event RDMA_CM_EVENT_ADDR_ERROR -110, no device";
        assert_eq!(said, [error, error, "left 0 descriptors, 0 threads", "resolve -1 ETIMEDOUT"], "{absent}");
    }
}

/// As in the kernel: it is as good as any address, and leads to the first device. (libfabric asks that way what there is.)
#[test]
fn loopback_without_a_device_is_the_first_device() {
    let Some(mut scene) = Scene::new("loopback") else { return };
    for (at, from) in [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", ADDRESS), (ADDRESS, "127.0.0.1")] {
        let mut server = scene.start("cm", &["serve", at, "7471"]);
        server.until("ready");
        let mut client = scene.start("cm", &["pair", from, "7471"]);
        client.until("running");
        client.ends_well();
    }
}

/// The same of address vectors, which the kernel looks for when they are given.
#[test]
fn an_address_vector_to_nobody_is_refused() {
    let Some(mut scene) = Scene::new("vectors") else { return };
    scene.start("vectors", &["10.77.0.9", "10.77.0.8", "203.0.113.1", "0"]).ends_well();
    scene.start("vectors", &["fd77::9", "fd77::8", "2001:db8::1", "1"]).ends_well();
}

/// An address of which the kernel still looks whether somebody else has it: for ever, with so many questions to ask.
#[test]
fn an_interface_whose_address_cannot_be_used_yet_is_told() {
    if !std::path::Path::new("/usr/bin/ibv_devinfo").exists() {
        return println!("skipped: no ibv_devinfo is installed");
    }
    let script = "ip link set lo up && ip link add rv0 type veth peer name rv1 && ip link set rv0 addrgenmode none && \
                  echo 1 > /proc/sys/net/ipv6/conf/rv0/accept_dad && echo 100000 > /proc/sys/net/ipv6/conf/rv0/dad_transmits && \
                  ip addr add fd77::1/64 dev rv0 && ip link set rv0 up && ip link set rv1 up && echo made >&2 && exec \"$@\"";
    let mut command = namespace();
    let program = ["env", "REMANENCE_DEVICE=rem_rv0", "ibv_devinfo", "-d", "rem_rv0"];
    command.args(["sh", "-c", script, "sh"]).args(program).env("LD_LIBRARY_PATH", common::dropin());
    let output = command.output().expect("util-linux");
    let said = String::from_utf8_lossy(&output.stderr);
    if !said.contains("made") {
        return println!("skipped: {said}");
    }
    assert!(!output.status.success(), "{output:?}");
    let why = "cannot open rem_rv0: the interface rv0 has no address that can be used now";
    assert_eq!(said.matches(why).count(), 1, "{said}");
}

#[test]
fn garbage_is_dropped() {
    let Some(mut scene) = Scene::new("garbage") else { return };
    let bystanders = scene.bystanders();
    let (mut server, has) = scene.server("7471");
    let mut client = scene.cm("pair", "7471");
    let qpn = client.until("running");
    let qpn = qpn.split(' ').next_back().expect("its QP number").to_owned();
    scene.start("garbage", &[ADDRESS, &qpn, "20000"]).ends_well();
    client.ends_well();
    gone(&mut server, &has);
    bystanders.noticed_nothing();
}

#[test]
fn full_queues_and_wrong_requests_have_the_errno_of_the_standard() {
    let Some(mut scene) = Scene::new("queues") else { return };
    scene.verified("queues", &[]);
}

#[test]
fn memory_that_goes_away_fails_what_uses_it_and_nothing_else() {
    let Some(mut scene) = Scene::new("dereg") else { return };
    scene.verified("dereg", &[]);
}

#[test]
fn children_do_not_disturb_their_parent() {
    let Some(mut scene) = Scene::new("fork") else { return };
    let bystanders = scene.bystanders();
    scene.verified("fork", &[]);
    bystanders.noticed_nothing();
}

#[test]
fn a_thread_that_asks_a_destroyed_channel_sleeps_and_the_program_may_end() {
    let Some(mut scene) = Scene::new("late") else { return };
    scene.verified("late", &[]);
}

#[test]
fn whatever_is_made_can_be_destroyed_without_a_trace() {
    let Some(mut scene) = Scene::new("cycle") else { return };
    scene.verified("cycle", &[ADDRESS, "7471", "20"]);
}

#[test]
fn half_open_handshakes_and_a_flood_of_requests_pass() {
    let Some(scene) = Scene::new("flood") else { return };
    pass(scene, "faults::the_part_of_the_flood", "5000");
}

/// Datagrams that are right down to their ICRC, and what is in them is not.
#[test]
fn messages_of_a_connection_manager_that_lies_pass() {
    let Some(scene) = Scene::new("liar") else { return };
    pass(scene, "faults::the_part_of_the_liar", "5000");
}

/// A child process has its way with a server, which others reach nonetheless, and which holds nothing of it in the end.
fn pass(mut scene: Scene, part: &str, count: &str) {
    let bystanders = scene.bystanders();
    let (mut server, has) = scene.server("7471");
    let me = std::env::current_exe().expect("this program has a file");
    let mut child = scene.net.command(&scene.libraries, me);
    child.args([part, "--exact", "--ignored", "--nocapture"]).env(PART, count);
    let mut child = Program::start(child);
    child.until("begins");
    // Whoever means it gets through.
    let mut client = scene.cm("pair", "7471");
    client.until("running");
    child.until("done");
    child.end();
    client.ends_well();
    // What was accepted for nobody is given up, one by one; at last only the listener is left.
    let mut tries = 0;
    while !server.until("gone").ends_with(&has) {
        tries += 1;
        assert!(tries < 200, "more was accepted than a backlog holds");
    }
    bystanders.noticed_nothing();
}

/// How many messages a child process is to send.
const PART: &str = "REMANENCE_TEST_FLOOD";

/// Requests for connections that will never be, from an engine of its own that does not listen to answers.
#[test]
#[ignore = "a child process of `cargo test -p remanence-ibverbs --test waits faults::half_open_handshakes`"]
fn the_part_of_the_flood() {
    send_requests(|_, _| ());
}

#[test]
#[ignore = "a child process of `cargo test -p remanence-ibverbs --test waits faults::messages_of_a_connection_manager`"]
fn the_part_of_the_liar() {
    const ATTRIBUTE: usize = 16;
    const SERVICE_END: usize = 24 + 16;
    let mut state = 7_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    send_requests(|n, mad| match n % 4 {
        // Anything at all; any message of a connection manager; a request with a few wrong bytes; one for the right service.
        0 => mad.fill_with(|| random() as u8),
        1 => {
            let attribute = 0x10 + random() as u16 % 11;
            mad[24..].fill_with(|| random() as u8);
            mad[ATTRIBUTE..ATTRIBUTE + 2].copy_from_slice(&attribute.to_be_bytes());
        }
        2 => (0..=random() % 8).for_each(|_| mad[random() % 256] = random() as u8),
        _ => mad[SERVICE_END..].fill_with(|| random() as u8),
    });
}

/// Sends requests for connections, with what `spoil` makes of each.
fn send_requests(mut spoil: impl FnMut(u32, &mut [u8; MAD_LEN])) {
    let Ok(count) = std::env::var(PART) else { return };
    let address: Ipv4Addr = ADDRESS.parse().expect("an address");
    let gid = Gid::from_ip(IpAddr::V4(address));
    let config = remanence_rnic::Config { gids: vec![gid], ..remanence_rnic::Config::default() };
    let mut device = Device::new(config);
    let config = cm::Config { ca_guid: 7, gids: vec![gid], seed: 7, ..cm::Config::default() };
    let mut manager = Manager::new(config);
    let socket = UdpSocket::bind((address, 0)).expect("a socket");
    let mut buf = vec![0; 9000];
    println!("begins");
    for n in 0..count.parse::<u32>().expect("a number") {
        let now = Instant::from_nanos(1_000_000_000 + u64::from(n));
        let request = cm::Connect {
            path: Path { local: gid, remote: gid },
            service_id: ServiceId(0x0106_0000 | 7471),
            transport: Transport::Rc,
            qpn: Qpn::new(0xee_0000 | (n & 0xffff)),
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            mtu: Mtu::B1024,
            cma_port: Some(9),
            private_data: &[],
        };
        manager.connect(now, &request).expect("room");
        while let Some((path, mut mad)) = manager.poll_transmit() {
            spoil(n, &mut mad);
            device.send_mad(&AhAttr::new(path.remote), &mad).expect("an address of its own");
        }
        while let Some(out) = device.poll_transmit(now, &mut buf, 1, &mut Plain(Vec::new())) {
            // A full socket buffer loses some, as floods do.
            let _ = socket.send_to(&buf[..out.len], (address, ROCE_PORT));
        }
        if n.is_multiple_of(64) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    println!("done");
}
