//! Put and get against server processes: what works, and what is said when it does not.

use crate::common;

use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Said, Server, bytes, client, rem, run, run_with_input, signal, write};
use remanence_link::veth::{End, Veth};

#[test]
fn a_file_and_a_stream_are_put_and_got_back() {
    let server = Server::new("64M");
    let here = tempfile::tempdir().expect("a directory");
    let data = bytes(1, 3_000_000);
    let file = write(here.path(), "notes.bin", &data);
    let said = run(server.client("put").arg(&file).args(["--name", "notes", "--json"])).json();
    assert_eq!(
        (&said["bytes"], &said["durable"], &said["blobs"][0]["copies"]),
        (&3_000_000.into(), &true.into(), &1.into())
    );
    let streamed = bytes(2, 5_000_000);
    run_with_input(server.client("put").args(["--name", "stream", "-"]), &streamed).good();
    run_with_input(server.client("put").args(["--name", "nothing", "-"]), &[]).good();

    assert!(run(server.client("get").arg("stream")).good() == streamed);
    assert_eq!(run(server.client("get").arg("nothing")).good(), b"");
    let out = here.path().join("out");
    let said = run(server.client("get").arg("notes").arg("-o").arg(&out).arg("--json")).json();
    assert_eq!(said["len"], 3_000_000);
    assert!(fs::read(&out).expect("there") == data);
    let list = run(server.client("blob list").arg("--json")).json();
    let names: Vec<_> = list["blobs"].as_array().expect("a list").iter().map(|b| b["name"].clone()).collect();
    assert_eq!(names, ["notes", "nothing", "stream"]);
    run(server.client("blob delete").arg("notes")).good();
    run(server.client("get").arg("notes")).bad("there is no blob named \"notes\"");
    run(server.client("blob sync").args(["--to", &server.address.to_string()]))
        .bad("is to be brought up to date from others: name at least one of them with -s");
}

#[test]
fn a_directory_is_put_whole() {
    let server = Server::new("64M");
    let here = tempfile::tempdir().expect("a directory");
    fs::create_dir_all(here.path().join("src/deep")).expect("made");
    write(here.path(), "src/a.txt", b"a");
    write(here.path(), "src/deep/b.txt", &bytes(3, 700_000));
    let put = |more: &[&str]| run(server.client("put").args(more).arg("src").current_dir(here.path()));
    put(&[]).bad("add -r");
    put(&["-r"]).good();
    assert_eq!(run(server.client("get").arg("src/a.txt")).good(), b"a");
    assert_eq!(run(server.client("get").arg("src/deep/b.txt")).good(), bytes(3, 700_000));
}

#[test]
fn a_server_says_that_it_is_ready_and_stops_when_asked() {
    let mut server = Server::new("16M");
    assert_eq!((&server.ready["made"], &server.ready["blobs"]), (&true.into(), &0.into()));
    assert!(server.ready["survives"].as_str().expect("a sentence").contains("data survives"));
    let mode = fs::metadata(server.token_file()).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    run_with_input(server.client("put").args(["--name", "a", "-"]), b"kept").good();
    assert_eq!(server.stop()["committed"], 1);
    server.start(&["--check"]);
    assert_eq!((&server.ready["made"], &server.ready["blobs"]), (&false.into(), &1.into()));
    assert_eq!(run(server.client("get").arg("a")).good(), b"kept");
    server.stop();
    // It stops as its input has ended: the first signal is no second wish, which would end it at once.
    server.start(&["--stop-on-eof"]);
    let mut child = server.child.take().expect("it runs");
    signal(&child, "-TERM");
    assert!(child.wait().expect("it ends").success());
    server.start(&[]);
    fs::set_permissions(server.token_file(), fs::Permissions::from_mode(0o644)).expect("changed");
    server.stop();
    run(&mut server.command()).bad("others may read the token file");
}

/// Whatever it serves: whoever looks after processes sees that it has ended, and why.
#[test]
fn a_server_whose_medium_failed_says_so_and_ends() {
    for (serve, write) in
        [("log serve", "log append"), ("kv serve", "kv put"), ("serve", "put"), ("kv gateway --store", "SET")]
    {
        let (dir, at) = (tempfile::tempdir().expect("a directory"), common::address().to_string());
        let (file, token) = (dir.path().join("file"), dir.path().join("file.token"));
        let listen = if write == "SET" { "127.0.0.1:0" } else { &at };
        let mut command = rem();
        command.args(serve.split(' ')).arg(&file).args(["--size", "16M", "--listen", listen, "--json"]);
        let (mut child, ready) = common::start(command.stderr(Stdio::piped()));
        fs::File::options().write(true).open(&file).and_then(|file| file.set_len(0)).expect("cut");
        if write == "SET" {
            let address = ready["addresses"][0].as_str().expect("an address");
            let mut reply = Vec::new();
            // It may have noticed, and ended, before it is asked: then there is nobody to connect to, or no answer.
            let _ = std::net::TcpStream::connect(address).and_then(|mut redis| {
                std::io::Write::write_all(&mut redis, b"SET key value\r\n")?;
                std::io::Read::read_to_end(&mut redis, &mut reply)
            });
            assert!(!reply.starts_with(b"+OK"), "nothing is durable");
        } else {
            let mut command = rem();
            command.args(write.split(' '));
            match write {
                "put" => command.args(["-s", &at, "--name", "it", "-"]).arg("--token-file").arg(&token),
                "kv put" => command.args([&at, "key", "value"]),
                _ => command.arg(&at),
            };
            let client = run_with_input(&mut command, b"a line\n");
            assert_ne!(client.status, Some(0), "{write}: nothing is durable");
        }
        // It has not to be asked to.
        let mut said = String::new();
        std::io::Read::read_to_string(&mut child.stdout.take().expect("piped"), &mut said).expect("UTF-8");
        let ended = Said::of(child.wait_with_output().expect("it ends"));
        let event: serde_json::Value = serde_json::from_str(said.trim()).expect("one event");
        let why = event["why"].as_str().unwrap_or_default();
        assert!(event["event"] == "failed" && why.contains("the medium failed"), "{serve}: {said}");
        assert!(why.contains(&file.display().to_string()), "{serve}: {said}");
        ended.bad("is served no more: the medium failed");
    }
}

/// One that was asked to stop before anything was written says the same, and nothing else.
#[test]
fn a_server_that_cannot_close_its_medium_does_not_say_that_it_has_stopped() {
    let (dir, at) = (tempfile::tempdir().expect("a directory"), common::address().to_string());
    let file = dir.path().join("file");
    let mut command = rem();
    command.arg("serve").arg(&file).args(["--size", "16M", "--listen", &at, "--json"]);
    let (mut child, _) = common::start(command.stderr(Stdio::piped()));
    fs::File::options().write(true).open(&file).and_then(|file| file.set_len(0)).expect("cut");
    signal(&child, "-TERM");
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().expect("piped"), &mut said).expect("UTF-8");
    let ended = Said::of(child.wait_with_output().expect("it ends"));
    let event: serde_json::Value = serde_json::from_str(said.trim()).expect("one event");
    assert_eq!(event["event"], "failed", "{said}");
    ended.bad("is served no more: ");
}

#[test]
fn what_is_durable_is_there_after_sigkill() {
    let mut server = Server::new("64M");
    let data = bytes(7, 2_000_000);
    for n in 0..5 {
        run_with_input(server.client("put").args(["--name", &format!("blob-{n}"), "-"]), &data[n..]).good();
    }
    server.kill();
    server.start(&["--check"]);
    assert_eq!(server.ready["blobs"], 5);
    for n in 0..5 {
        assert!(run(server.client("get").arg(format!("blob-{n}"))).good() == data[n..]);
    }
}

#[test]
fn a_server_killed_in_the_middle_is_told_and_the_quorum_goes_on() {
    let (one, mut two, three) = (Server::new("256M"), Server::new("256M"), Server::new("256M"));
    let here = tempfile::tempdir().expect("a directory");
    for n in 0..400 {
        write(here.path(), &format!("{n:03}"), &bytes(n, 100_000));
    }
    let put = |quorum: &str| {
        let mut command = client("put", &[&one, &two, &three]);
        command.args(["-r", "--json", "--quorum", quorum, "."]).current_dir(here.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("rem starts")
    };
    // Killed as soon as it has something: in the middle of the stream.
    let wait_for_some = |server: &Server| {
        for _ in 0..1000 {
            let list = run(server.client("blob list").arg("--json")).json();
            if list["blobs"].as_array().is_some_and(|blobs| blobs.len() > 20) {
                return;
            }
        }
        panic!("nothing arrives");
    };
    let child = put("2");
    wait_for_some(&two);
    two.kill();
    let said = common::Said::of(child.wait_with_output().expect("it ends"));
    let note = said.stderr.clone();
    let said = said.json();
    assert_eq!(said["blobs"].as_array().expect("a list").len(), 400);
    if said["lost"].as_array().is_some_and(Vec::is_empty) {
        // It was done before the kill: a fast machine.
        assert_eq!(note, "");
    } else {
        assert!(note.contains("going on with the rest"), "{note}");
        two.start(&[]);
        let sync =
            run(client("blob sync", &[&one, &three]).args(["--to", &two.address.to_string(), "--json"]).env(
                "REM_TOKEN",
                [&one, &two, &three].map(|s| fs::read_to_string(s.token_file()).expect("a token")).join("\n"),
            ));
        assert!(sync.json()["copied"].as_u64().expect("a number") > 0);
    }
    two.start_if_down();
    for n in [0, 17, 399] {
        assert!(run(two.client("get").arg(format!("{n:03}"))).good() == bytes(n, 100_000));
    }
}

#[test]
fn without_a_quorum_the_put_fails_and_says_why() {
    let (one, mut two, three) = (Server::new("16M"), Server::new("16M"), Server::new("16M"));
    let all = [&one, &two, &three].map(|server| server.address.to_string());
    let put = |quorum: Option<&str>| {
        let mut put = client("put", &[&one, &three]);
        put.args(["-s", &all[1], "--name", "a", "-"]);
        put.args(quorum.into_iter().flat_map(|quorum| ["--quorum", quorum]));
        put
    };
    two.kill();
    run_with_input(&mut put(None), b"x").bad("only 2 of the 3 servers that were asked for can be used");
    run_with_input(&mut put(Some("1")), b"x").bad("no majority of 3 servers");
    let said = run_with_input(&mut put(Some("2")), b"x");
    assert!(said.stderr.contains("going on with the rest"), "{}", said.stderr);
    said.good();
    let mut put = client("put", &[&one]);
    run_with_input(put.args(["--name", "a", "--quorum", "2", "-"]), b"x")
        .bad("a quorum of 2 is not possible with 1");
    // Whoever missed it, and is alone, is not believed, and says so to programs as well.
    two.start(&[]);
    let mut get = client("get", &[&two]);
    get.args(["-s", &all[0], "-s", &all[2], "a", "--json"]);
    let (mut one, mut three) = (one, three);
    one.kill();
    three.kill();
    let said = run(&mut get);
    assert!(
        said.stderr.trim_end().lines().last().is_some_and(|line| line.starts_with("{\"error\":")),
        "{}",
        said.stderr
    );
    said.bad("only 1 of 3 servers can be used, and it takes 2");
    run(get.arg("--any")).bad("there is no blob named");
    three.start(&[]);
    two.kill();
    let said = run(get.env("REM_TOKEN", fs::read_to_string(three.token_file()).expect("a token")));
    assert!(said.stderr.contains("it may be older than what was put last"), "{}", said.stderr);
    assert!(
        said.stderr.contains("\"newest\":false") && said.stderr.contains("\"asked\":1"),
        "{}",
        said.stderr
    );
    assert_eq!(said.good(), b"x");
}

#[test]
fn a_damaged_copy_never_reaches_the_user() {
    let (mut one, two) = (Server::new("16M"), Server::new("16M"));
    let data = bytes(5, 300_000);
    run_with_input(client("put", &[&one, &two]).args(["--name", "a", "-"]), &data).good();
    one.stop();
    let mut pool = fs::read(one.file()).expect("there");
    // Wherever the blob lies: a run of its bytes is found, and one of them changed.
    let at = pool.windows(64).position(|w| w == &data[100_000..100_064]).expect("in the pool");
    pool[at] ^= 1;
    fs::write(one.file(), pool).expect("written");
    run(one.command().arg("--check")).bad("the pool holds damaged blobs: \"a\"");
    one.start(&[]);
    let here = tempfile::tempdir().expect("a directory");
    let out = here.path().join("out");
    run(one.client("get").arg("a")).bad("has other bytes than were put there");
    run(one.client("get").arg("a").arg("-o").arg(&out)).bad("has other bytes than were put there");
    assert_eq!(fs::read_dir(here.path()).expect("readable").count(), 0, "not even a part of it");
    let said = run(client("get", &[&one, &two]).arg("a").arg("-o").arg(&out));
    assert!(said.stderr.contains("has other bytes"), "{}", said.stderr);
    said.good();
    assert_eq!(fs::read(&out).expect("there"), data);
}

#[test]
fn a_wrong_or_missing_token_is_said() {
    let server = Server::new("16M");
    let get = || {
        let mut get = rem();
        get.args(["get", "-s", &server.address.to_string(), "a"]);
        get
    };
    run(&mut get()).bad("no token was given");
    run(get().env("REM_TOKEN", "this-is-the-wrong-one")).bad("has another token");
    run(get().env("REM_TOKEN", "short")).bad("at least 16 characters");
    run(get().args(["--token-file", "/does/not/exist"])).bad("the token file /does/not/exist cannot be read");
    let nobody = tempfile::NamedTempFile::new().expect("a file");
    run(get().arg("--token-file").arg(nobody.path())).bad("the token file is empty");
    run(get().arg("--token-file").arg(server.token_file())).bad("there is no blob named");
}

#[test]
fn a_server_that_is_not_there_is_said() {
    let nowhere = common::address().to_string();
    run(rem().args(["get", "-s", &nowhere, "a"]).env("REM_TOKEN", "any-token-will-do-here"))
        .bad("cannot be reached");
    run(rem().args(["ping", "no-such-host.invalid"]).env("REM_TOKEN", "any-token-will-do-here"))
        .bad("cannot be resolved");
    let server = Server::new("16M");
    let other = format!("{}:7999", server.address);
    run(rem().args(["get", "-s", &other, "a"]).env("REM_TOKEN", "any-token-will-do-here"))
        .bad("nothing listens on that port");
}

#[test]
fn a_pool_that_cannot_be_served_is_said() {
    let mut server = Server::new("16M");
    let mut second = rem();
    second.arg("serve").arg(server.file()).args(["--listen", &common::address().to_string()]);
    run(&mut second).bad("in use");
    let elsewhere = tempfile::tempdir().expect("a directory");
    let mut third = rem();
    third.arg("serve").arg(elsewhere.path().join("pool")).args([
        "--size",
        "1M",
        "--listen",
        &server.address.to_string(),
    ]);
    run(&mut third).bad("port 7471 is taken");
    server.stop();
    run(server.command().args(["--size", "32M"])).bad("leave --size out");
    let whole = fs::read(server.file()).expect("there");
    let mut other = whole.clone();
    other[8] = 200;
    fs::write(server.file(), &other).expect("written");
    run(&mut server.command()).bad("format version 200");
    fs::write(server.file(), &whole[..1_000_000]).expect("written");
    run(&mut server.command()).bad("truncated: 1000000 of 16777216 bytes are left");
    fs::write(server.file(), b"#!/bin/sh\n").expect("written");
    run(&mut server.command()).bad("too few for a pool");
    fs::write(server.file(), [b'x'; 9000]).expect("written");
    run(&mut server.command()).bad("not a pool file");
    let mut huge = rem();
    huge.arg("serve").arg(elsewhere.path().join("huge")).args(["--size", "15T"]);
    run(&mut huge).bad("no space for 16492674416640 bytes");
    assert_eq!(fs::read_dir(elsewhere.path()).expect("readable").count(), 0, "nothing is left behind");
    run(rem().args(["serve", "/does/not/exist/pool"])).bad("No such file or directory");
    run(rem().args(["serve", "--memory", "1K"])).bad("64K to 16T bytes, in steps of 4K, not 1024");
}

#[test]
fn a_full_pool_and_a_full_disk_are_said() {
    let server = Server::new("1M");
    run_with_input(server.client("put").args(["--name", "a", "-"]), &bytes(1, 2_000_000))
        .bad("the pool is full");
    run_with_input(server.client("put").args(["--name", "a", "-"]), b"small").good();
    run(server.client("get").args(["a", "-o", "/dev/full"])).bad("No space left on device");
    run(server.client("get").args(["a", "-o", "/does/not/exist"])).bad("cannot be written");
}

#[test]
fn operations_are_measured() {
    let server = Server::new("16M");
    let token = fs::read_to_string(server.token_file()).expect("a token");
    let at = server.address.to_string();
    let ping = run(rem()
        .args(["ping", &at, "-n", "50", "--op", "durable-write", "--size", "4K", "--json"])
        .env("REM_TOKEN", &token));
    let ping = ping.json();
    assert_eq!((&ping["size"], &ping["latency"]["n"]), (&4096.into(), &50.into()));
    let perf =
        run(rem().args(["perf", &at, "--time", "0.01", "--size", "8,4K", "--json"]).env("REM_TOKEN", &token));
    let rows = perf.json()["rows"].as_array().expect("rows").len();
    assert_eq!(rows, 12, "ping and three atomics once, four operations at two sizes");
    run(rem().args(["ping", &at, "--size", "2G"]).env("REM_TOKEN", &token)).bad("cannot be measured");
}

#[test]
fn a_server_stops_with_who_started_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = rem();
    command.arg("serve").arg(dir.path().join("pool")).args(["--size", "1M", "--json", "--stop-on-eof"]);
    command.args(["--listen", &common::address().to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("rem starts");
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
    let server = Server::new("1M");
    signal(server.child.as_ref().expect("it runs"), "-INT");
}

impl Server {
    fn start_if_down(&mut self) {
        if self.child.is_none() {
            self.start(&[]);
        }
    }
}

/// Processes at both ends of a cable, ended when this goes.
struct Cable {
    veth: Veth,
    processes: Vec<Child>,
}

impl Drop for Cable {
    fn drop(&mut self) {
        for child in &mut self.processes {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Cable {
    fn new() -> Option<Self> {
        match Veth::new(1500) {
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                println!("skipped: network namespaces need root: {e}");
                None
            }
            veth => Some(Self { veth: veth.expect("a veth pair"), processes: Vec::new() }),
        }
    }

    /// Starts a process that goes on, and returns its first line.
    fn start(&mut self, end: End, mut command: Command) -> String {
        let child = self.veth.within(end, || command.stdout(Stdio::piped()).spawn());
        let mut child = child.expect("it starts");
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        stdout.read_line(&mut line).expect("it says something");
        child.stdout = Some(stdout.into_inner());
        self.processes.push(child);
        line
    }

    fn run(&self, end: End, command: &mut Command) -> Said {
        self.veth.within(end, || Ok(run(command))).expect("the namespace is there")
    }

    fn ip(&self, end: End, line: &str) {
        let mut command = Command::new("ip");
        self.run(end, command.args(line.split_whitespace())).good();
    }
}

/// A server is opened once, and the network under it is not: addresses go and come, cables are pulled, interfaces are made anew,
/// and get longer frames.
#[test]
fn servers_are_there_again_when_their_address_is() {
    const PATIENCE: Duration = Duration::from_secs(120);
    let Some(mut cable) = Cable::new() else { return };
    let (left, right) = (End::Left, End::Right);
    let dir = tempfile::tempdir().expect("a directory");
    let at = |port: u16| format!("{}:{port}", left.ipv4());
    let own = |args: &[&str]| {
        let mut command = rem();
        command.args(args).env_remove("REM_LOCAL").current_dir(dir.path());
        command
    };
    for line in [
        format!("kv serve store --size 8M --json --insecure --listen {}", at(7001)),
        format!("serve pool --size 16M --json --token-file token --listen {}", at(7002)),
        format!("log serve log --size 16M --json --insecure --listen {}", at(7003)),
    ] {
        let said = cable.start(left, own(&line.split(' ').collect::<Vec<_>>()));
        assert!(said.contains("\"ready\""), "{line}: {said}");
    }
    // By which a namespace without a name can be told of.
    let mut sleep = Command::new("sh");
    sleep.args(["-c", "echo here; exec sleep 1000"]);
    cable.start(right, sleep);
    let there = cable.processes.last().expect("started").id();
    write(dir.path(), "blob", b"x");
    let all_serve = |cable: &Cable, after: &str| {
        for line in [
            format!("kv put {} key {after}", at(7001)),
            format!("put -s {} --token-file token blob", at(7002)),
            format!("log append {}", at(7003)),
        ] {
            let start = Instant::now();
            let said = loop {
                let mut command = own(&line.split(' ').collect::<Vec<_>>());
                let run = || Ok(run_with_input(&mut command, after.as_bytes()));
                let said = cable.veth.within(right, run).expect("the namespace is there");
                // The network takes a moment, and the first client may find it on its way.
                if said.status == Some(0) || start.elapsed() > PATIENCE {
                    break said;
                }
            };
            assert_eq!(said.status, Some(0), "{line}: {}", said.stderr);
        }
        let mut get = own(&["kv", "get", &at(7001), "key"]);
        assert_eq!(cable.run(right, &mut get).good(), after.as_bytes());
    };
    all_serve(&cable, "start");
    let address = format!("{}/24 dev {}", left.ipv4(), Veth::INTERFACE);
    cable.ip(left, &format!("address del {address}"));
    cable.ip(left, &format!("address add {address}"));
    all_serve(&cable, "address");
    cable.veth.set_up(left, false).expect("down");
    cable.veth.set_up(left, true).expect("up");
    all_serve(&cable, "cable");
    // Both ends go.
    cable.ip(left, &format!("link del {}", Veth::INTERFACE));
    cable.ip(left, &format!("link add {} type veth peer name new", Veth::INTERFACE));
    cable.ip(left, &format!("link set new netns {there}"));
    cable.ip(left, &format!("address add {address}"));
    cable.ip(left, &format!("link set {} up", Veth::INTERFACE));
    cable.ip(right, &format!("address add {}/24 dev new", right.ipv4()));
    cable.ip(right, "link set new up");
    all_serve(&cable, "interface");
    for mtu in [9000, 1280] {
        cable.ip(left, &format!("link set {} mtu {mtu}", Veth::INTERFACE));
        cable.ip(right, &format!("link set new mtu {mtu}"));
        all_serve(&cable, &format!("mtu-{mtu}"));
    }
}
