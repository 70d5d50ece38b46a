//! `rem switch` as its users run it: a process between a leader and a replica, looked at, recorded, stopped and killed.

use crate::common;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Said, address, rem, run, signal, start, write};
use remanence_pmem::Region;
use remanence_rnic::{Access, Data, RemoteAddr, SendFlags, SendOp, SendWr, WcStatus};
use remanence_switch::private::{Answer, Ask, Memory};
use remanence_verbs::{ConnectAttr, Connection, Context, Listener, Options, QpOptions};
use serde_json::Value;

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
const SERVICE: u16 = 7700;

/// How a switch of a test is started.
fn command(at: IpAddr) -> Command {
    let mut command = rem();
    command.args(["switch", "run", "--listen", &at.to_string(), "--service", &SERVICE.to_string()]);
    command.args(["--allow-leader", "127.0.0.0/8", "--allow-replica", "127.0.0.0/8", "--json"]);
    command
}

/// A switch that runs; it is killed if the test does not end it.
struct Switch {
    at: IpAddr,
    child: Option<Child>,
}

impl Switch {
    fn start(at: IpAddr) -> Self {
        let (child, ready) = start(command(at).stderr(Stdio::piped()));
        assert_eq!((&ready["event"], &ready["address"]), (&"ready".into(), &at.to_string().into()));
        Self { at, child: Some(child) }
    }

    /// A verb of it, as JSON.
    fn asks(&self, verb: &str) -> Value {
        run(rem().args(["switch", verb, &self.at.to_string(), "--json"])).json()
    }

    fn stop(mut self) -> Value {
        let child = self.child.take().expect("it runs");
        signal(&child, "-TERM");
        let said = Said::of(child.wait_with_output().expect("it ends")).good();
        let last = said.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty());
        serde_json::from_slice(last.expect("a line")).expect("JSON")
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Has a group made of one replica, and writes through it so often; looks at it before it ends.
fn write_through(switch: IpAddr, count: u64, look: impl FnOnce()) {
    const SIZE: u64 = 1 << 16;
    let [leader, replica] = [(), ()].map(|()| Context::open(Options::udp(address())).expect("a device"));
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let listener = Listener::bind(&replica, SERVICE, 4).expect("a port");
    let (pd, cq) = (replica.alloc_pd().unwrap(), replica.create_cq(16, None, 0).unwrap());
    let mr = pd.reg_mr(&Region::anonymous(SIZE).unwrap(), rights).unwrap();
    let IpAddr::V4(addr) = replica.config().gids[0].to_ip() else { panic!("an IPv4 address") };
    let ask = Ask { writes: 1, reads: 1, leader: 1, epoch: 1, proof: [0; 16], addrs: vec![addr] };
    let (own_pd, own_cq) = (leader.alloc_pd().unwrap(), leader.create_cq(16, None, 0).unwrap());
    let own = own_pd.reg_mr(&Region::anonymous(SIZE).unwrap(), rights).unwrap();
    let qp = own_pd.create_qp(&QpOptions::rc(&own_cq)).unwrap();
    let attr = ConnectAttr::default();
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            let incoming = listener.get_request(LIMIT).expect("a request");
            let qp = pd.create_qp(&QpOptions::rc(&cq)).unwrap();
            let RemoteAddr { addr: va, rkey } = mr.remote(0);
            let memory = Memory { va, size: SIZE, rkey, linux_flush: false };
            incoming.accept(&qp, &attr, &memory.to_bytes()).unwrap()
        });
        let to = SocketAddr::new(switch, SERVICE);
        let connection = Connection::connect(&qp, to, &attr, &ask.to_bytes(), LIMIT).unwrap();
        let _accepted = accepted.join().expect("no panic");
        let memory = Answer::parse(&connection.private_data()).unwrap().memory.unwrap();
        for n in 0..count {
            own.region().write(64 * n, &n.to_be_bytes());
            let remote = RemoteAddr { addr: memory.va + 64 * n, rkey: memory.rkey };
            let (op, sges) = (SendOp::Write(remote), [own.sge(64 * n, 8)]);
            let wr = SendWr { wr_id: n, op, data: Data::Sges(&sges), flags: SendFlags::SIGNALED, ud: None };
            qp.post_send(&wr).unwrap();
            let mut wcs = Vec::new();
            assert_eq!(own_cq.wait(&mut wcs, 1, LIMIT), Ok(1));
            assert_eq!(wcs[0].status, WcStatus::Success);
            let mut there = [0; 8];
            mr.region().read(64 * n, &mut there);
            assert_eq!(there, n.to_be_bytes());
        }
        look();
    });
}

/// How many packets of a recording pass a filter of tshark's; `None` without tshark.
fn packets(file: &Path, filter: &str) -> Option<usize> {
    let home = file.parent().expect("a directory");
    let output = Command::new("tshark")
        .env("HOME", home)
        .env("XDG_CONFIG_HOME", home)
        .args(["-n", "--disable-protocol", "rpcordma", "-Y", filter, "-r"])
        .arg(file)
        .output()
        .ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(output.stdout.iter().filter(|byte| **byte == b'\n').count())
}

#[test]
fn a_group_is_seen_counted_and_recorded() {
    let switch = Switch::start(address());
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("run.pcap");
    let mut capture = rem();
    capture.args(["switch", "capture"]).arg(&file).args([&switch.at.to_string(), "--json"]);
    let (capture, ready) = start(capture.stderr(Stdio::piped()));
    assert_eq!(ready["event"], "ready");
    let second = dir.path().join("second.pcap");
    run(rem().args(["switch", "capture"]).arg(&second).arg(switch.at.to_string())).bad("captures already");
    assert!(!second.exists(), "nothing was in it");

    assert_eq!(switch.asks("groups")["groups"], serde_json::json!([]));
    write_through(switch.at, 20, || {
        let groups = switch.asks("groups");
        let group = &groups["groups"][0];
        assert_eq!((group["service"].as_u64(), group["writes"].as_u64()), (Some(7700), Some(1)), "{groups}");
        assert_eq!((group["replicas"][0]["out"].as_bool(), group["refused"].as_str()), (Some(false), None));
        let said = run(rem().args(["switch", "groups", &switch.at.to_string()])).good();
        let said = String::from_utf8(said).expect("UTF-8");
        assert!(said.contains("1 of 1 replicas for a WRITE") && said.contains("up to date"), "{said}");
    });
    let counted = switch.asks("stats");
    assert!(counted["counters"]["scattered"].as_u64() >= Some(20), "{counted}");
    let stopped = switch.stop();
    assert_eq!(
        (stopped["event"].as_str(), stopped["counters"]["groups"].as_u64()),
        (Some("stopped"), Some(0))
    );
    let said = Said::of(capture.wait_with_output().expect("it ends with the switch")).good();
    let said: Value = serde_json::from_slice(&said).expect("JSON");
    let bytes = std::fs::metadata(&file).expect("a file").len();
    assert_eq!((said["event"].as_str(), said["bytes"].as_u64()), (Some("stopped"), Some(bytes)));

    let Some(all) = packets(&file, "infiniband") else { return println!("skipped: apt install tshark") };
    // Each WRITE and its copy, each ACK and that of the group.
    assert!(all >= 80, "{all} packets");
    assert_eq!(packets(&file, "_ws.malformed"), Some(0));
    assert!(packets(&file, "infiniband.bth.opcode == 10") >= Some(40), "WRITEs");
}

#[test]
fn one_that_was_killed_is_started_again() {
    let mut switch = Switch::start(address());
    let at = switch.at;
    let mut child = switch.child.take().expect("it runs");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    run(rem().args(["switch", "stats", &at.to_string()])).bad("no switch of yours");
    let switch = Switch::start(at);
    write_through(at, 3, || ());
    assert_eq!(switch.stop()["event"], "stopped");
}

#[test]
fn what_is_wrong_is_said_in_a_sentence() {
    let switch = Switch::start(address());
    run(&mut command(switch.at)).bad("there is no switch at");
    run(rem().args(["switch", "groups", &address().to_string(), "--json"])).bad("no switch of yours");
    let dir = tempfile::tempdir().expect("a directory");
    let file = write(dir.path(), "file", b"somebody's");
    run(rem().args(["switch", "capture"]).arg(&file).arg(switch.at.to_string())).bad("cannot be written");
    run(command(address()).arg("--control").arg(&file)).bad("is a file, and no socket");
    assert_eq!(std::fs::read(&file).expect("it is there"), b"somebody's");
    run(rem().args(["switch", "stats", &format!("{}:7700", switch.at)])).bad("at no other");
    run(command(address()).args(["--service", "7700"])).bad("is there twice");
    run(command(address()).args(["--xdp", "no-such-interface"])).bad("no network interface");
    for wrong in [&["--allow-leader", "10.0.0.0/33"][..], &["--service", "0"], &["--groups", "0"]] {
        let said = run(command(address()).args(wrong));
        assert_eq!(said.status, Some(2), "{wrong:?}: {}", said.stderr);
    }
}
