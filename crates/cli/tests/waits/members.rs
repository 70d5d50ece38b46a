//! `rem kv` on several members, as its users run it: real processes, killed while they work.

use crate::common;
use crate::load::{self, PATIENCE};

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Said, address, rem, run, run_with_input, start};
use remanence_kv_live::{ConnectOptions, Store};
use serde_json::Value;
use tempfile::TempDir;

/// Members of a store, each a process with an address and a directory of its own.
struct Members {
    dir: TempDir,
    addrs: Vec<SocketAddr>,
    more: Vec<String>,
    children: Vec<Option<Child>>,
    ready: Vec<Value>,
}

impl Members {
    fn new(count: usize, more: impl FnOnce(&TempDir) -> Vec<String>) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let more = more(&dir);
        let addrs = (0..count).map(|_| SocketAddr::new(address(), 7471)).collect();
        let children = (0..count).map(|_| None).collect();
        let mut this = Self { dir, addrs, more, children, ready: vec![Value::Null; count] };
        (0..count).for_each(|n| this.start(n));
        this
    }

    fn list(&self) -> String {
        self.addrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    fn directory(&self, n: usize) -> PathBuf {
        self.dir.path().join(format!("m{n}"))
    }

    fn start(&mut self, n: usize) {
        let mut command = rem();
        command.args(["kv", "serve"]).arg(self.directory(n));
        command.args(["--listen", &self.addrs[n].to_string(), "--members", &self.list(), "--json"]);
        // Long enough that nobody is cut off because the machine is busy.
        command.args(["--size", "4M", "--lease", "30000", "--notice", "3000"]).args(&self.more);
        let (mut child, ready) = start(command.stderr(Stdio::piped()));
        self.ready[n] = ready;
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        // It says whatever changes, and somebody must read it.
        std::thread::spawn(move || lines.lines().map_while(Result::ok).for_each(drop));
        self.children[n] = Some(child);
    }

    /// Ends server `n` with SIGKILL, and waits until it has ended.
    fn kill(&mut self, n: usize) {
        let mut child = self.children[n].take().expect("it runs");
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }

    fn kill_all(&mut self) {
        for n in 0..self.children.len() {
            if self.children[n].is_some() {
                self.kill(n);
            }
        }
    }

    fn kv(&self, verb: &str, more: &[&str]) -> Said {
        run(rem().args(["kv", verb, &self.list(), "--patience", "100"]).args(more))
    }

    /// What each member says of itself, as `rem kv stats` has it.
    fn members(&self, more: &[&str]) -> Vec<Value> {
        let said = self.kv("stats", &[more, &["--json"]].concat());
        // It fails while nobody serves, and says all the same who is there; nothing if nobody answers at all.
        let stats: Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
        stats["members"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until they are in a state.
    fn wait<T>(&self, what: &str, more: &[&str], is: impl Fn(&[Value]) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            let said = self.members(more);
            if let Some(found) = is(&said) {
                return found;
            }
            assert!(begin.elapsed() < PATIENCE, "{what}: {said:#?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn primary(&self) -> usize {
        self.wait("a primary", &[], |said| said.iter().position(|said| said["role"] == "primary"))
    }

    /// All of them are there, with whole images, and the primary does without none.
    fn whole(&self, more: &[&str]) {
        self.wait("all members", more, |said| {
            let primary = said.iter().find(|said| said["role"] == "primary")?;
            let whole = |said: &Value| said["image"]["complete"] == true && said["role"] != "away";
            let alone = primary["lost"] != serde_json::json!([]) || !primary["rebuilding"].is_null();
            (!alone && said.iter().all(whole)).then_some(())
        });
    }

    fn connect(&self) -> Store {
        let options = ConnectOptions::default().patience(PATIENCE);
        Store::connect_members(&load::context(), &self.addrs, options).expect("connected")
    }
}

#[test]
fn what_members_are_is_said_without_a_quorum_too() {
    let mut members = Members::new(3, |_| Vec::new());
    members.whole(&[]);
    let alone = 1;
    (0..3).filter(|n| *n != alone).for_each(|n| members.kill(n));
    members.wait("a member that waits", &[], |said| (said.get(alone)?["role"] == "waiting").then_some(()));
    for json in [true, false] {
        // With a patience that would be felt.
        let more: &[&str] = if json { &["--json"] } else { &[] };
        let said = members.kv("stats", more);
        assert_eq!(said.status, Some(1), "{}", said.stderr);
        let sentence = format!("1 of 3 are there; start {}, {}", members.addrs[0], members.addrs[2]);
        assert!(said.stderr.contains(&sentence) && said.stderr.len() < 250, "{}", said.stderr);
        let stdout = String::from_utf8(said.stdout).expect("UTF-8");
        if json {
            let stats: Value = serde_json::from_str(&stdout).expect("JSON");
            let roles: Vec<&Value> = (0..3).map(|n| &stats["members"][n]["role"]).collect();
            assert_eq!(roles, ["away", "waiting", "away"], "{stats}");
        } else {
            // What a member says of its own may speak of members, too.
            let member = |line: &&str| line.split_whitespace().nth(1) == Some("member");
            assert_eq!(stdout.lines().filter(member).count(), 3, "{stdout}");
        }
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.kill_all();
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("UTF-8")
}

/// A gateway, and a connection to it.
struct Gateway {
    child: Child,
    replies: BufReader<std::net::TcpStream>,
}

impl Gateway {
    fn new(members: &Members) -> Self {
        let mut command = rem();
        command.args([
            "kv",
            "gateway",
            &members.list(),
            "--listen",
            "127.0.0.1:0",
            "--json",
            "--stop-on-eof",
        ]);
        // Commands wait for the next primary.
        command.args(["--threads", "1", "--hold", "100000", "--patience", "100"]);
        let (child, ready) = start(command.stdin(Stdio::piped()));
        assert!(ready["durability"].as_str().is_some_and(|said| said.contains("of 3 members")), "{ready}");
        let at: SocketAddr = ready["addresses"][0].as_str().expect("one").parse().expect("an address");
        let stream = std::net::TcpStream::connect(at).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        Self { child, replies: BufReader::new(stream) }
    }

    fn ask(&mut self, command: &str) -> String {
        self.replies.get_mut().write_all(format!("{command}\r\n").as_bytes()).expect("sent");
        let mut line = || {
            let mut line = String::new();
            self.replies.read_line(&mut line).expect("a reply");
            line.trim_end().to_owned()
        };
        let first = line();
        if first.starts_with('$') && first != "$-1" { line() } else { first }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn members_serve_what_one_server_does() {
    let members = Members::new(3, |_| vec!["--metrics".to_owned(), "127.0.0.1:0".to_owned()]);
    let version = text(members.kv("put", &["greeting", "hello"]).good());
    assert_eq!(members.kv("get", &["greeting"]).good(), b"hello");
    members.kv("get", &["nothing"]).bad("nothing has no value");
    members.kv("put", &["greeting", "no", "--expect", "absent"]).bad("not what --expect asks for");
    let made = members.kv("put", &["greeting", "hi", "--expect", version.trim(), "--json"]).json();
    assert!(made["version"].as_u64() > version.trim().parse().ok(), "{made}");
    // Any one of them knows the others.
    for addr in &members.addrs {
        let one = run(rem().args(["kv", "get", &addr.to_string(), "greeting", "--patience", "100"]));
        assert_eq!(one.good(), b"hi");
    }
    let large = common::bytes(7, 600_000);
    let mut put = rem();
    put.args(["kv", "put", &members.list(), "large", "--patience", "100"]);
    run_with_input(&mut put, &large).good();
    assert!(members.kv("get", &["large"]).good() == large, "600,000 bytes come back");
    let mut put = rem();
    put.args(["kv", "put", &members.list(), "--batch", "--patience", "100"]);
    let pairs: String = (0..50).map(|n| format!("user:{n}\tvalue {n}\n")).collect();
    assert_eq!(text(run_with_input(&mut put, pairs.as_bytes()).good()).lines().count(), 50);
    assert_eq!(text(members.kv("scan", &["--prefix", "user:"]).good()).lines().count(), 50);
    let pairs = text(members.kv("scan", &["--prefix", "user:29", "--values"]).good());
    assert_eq!(pairs, "user:29\tvalue 29\n");
    assert_eq!(text(members.kv("del", &["user:1", "user:2", "nobody"]).good()), "2\n");
    members.kv("get", &["user:1"]).bad("has no value");

    members.whole(&[]);
    members.kv("stats", &[]).good();
    let whole = members.kv("verify", &["--json"]).json();
    assert_eq!((whole["whole"].as_bool(), whole["values"].as_u64()), (Some(true), Some(50)), "{whole}");
    let scrubbed = members.kv("scrub", &["--json"]).json();
    assert_eq!((scrubbed["repaired"].as_u64(), scrubbed["lost"].as_u64()), (Some(0), Some(0)), "{scrubbed}");
    let compact = members.kv("compact", &["--json"]).json();
    assert_eq!(compact["to_clean"].as_u64(), Some(0), "{compact}");
    assert!(compact["objects_moved"].as_u64() >= Some(50), "{compact}");
    assert!(members.kv("get", &["large"]).good() == large, "what was moved is there");

    // What a member's own figures are, for Prometheus.
    let primary = members.primary();
    for (n, ready) in members.ready.iter().enumerate() {
        let page = scrape(ready["metrics"].as_str().expect("an address"));
        assert!(page.contains("\nremanence_kv_member_members 3\n"), "{page}");
        assert!(
            page.contains(&format!("\nremanence_kv_member_primary {}\n", u64::from(n == primary))),
            "{page}"
        );
        assert_eq!(page.contains("\nremanence_kv_entries "), n == primary, "{page}");
    }
}

/// What an endpoint of metrics says.
fn scrape(url: &str) -> String {
    let at = url.trim_start_matches("http://").trim_end_matches("/metrics");
    let mut stream = std::net::TcpStream::connect(at).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("a page");
    page
}

#[test]
fn a_primary_that_is_killed_under_load_takes_nothing_with_it_and_is_rebuilt() {
    let mut members = Members::new(3, |_| Vec::new());
    let mut gateway = Gateway::new(&members);
    assert_eq!(gateway.ask("SET visits 41"), "+OK");
    members.whole(&[]);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let known: Vec<load::Known> = std::thread::scope(|scope| {
        let (stop, done) = (&stop, &done);
        let write = |n| {
            let store = members.connect();
            scope.spawn(move || load::write(store, n, stop, done))
        };
        let writers: Vec<_> = (0..2).map(write).collect();
        load::goes_on(done, 50);
        let first = members.primary();
        members.kill(first);
        load::goes_on(done, 50);
        // Not what was there when it died: another one serves, and what that has acknowledged is there, too.
        assert_ne!(members.primary(), first);
        assert_eq!(gateway.ask("GET visits"), "41");
        assert_eq!(gateway.ask("INCR visits"), ":42");
        members.start(first);
        members.whole(&[]);
        load::goes_on(done, 50);
        stop.store(true, Ordering::Release);
        let known = writers.into_iter().map(|writer| writer.join().expect("a writer")).collect();
        // Now with what was rebuilt: the member that served meanwhile goes.
        let second = members.primary();
        members.kill(second);
        known
    });
    load::is_there(&mut members.connect(), &known);
    assert_eq!(gateway.ask("GET visits"), "42");
    assert_eq!(members.kv("verify", &["--json"]).json()["whole"].as_bool(), Some(true));
    drop(gateway);
    members.kill_all();
    // What one member has by itself, while nobody serves it: to be looked at, and not to be changed.
    for directory in (0..3).map(|n| members.directory(n)) {
        // The first to open it notes in its journal that it was killed.
        run(rem().args(["kv", "verify"]).arg(directory.join("image"))).good();
        let before = std::fs::read(directory.join("image")).expect("an image");
        for path in [&directory, &directory.join("image")] {
            let whole = run(rem().args(["kv", "verify", "--json"]).arg(path)).json();
            assert_eq!(whole["whole"].as_bool(), Some(true));
            let listen = address().to_string();
            run(rem().args(["kv", "serve", "--listen", &listen]).arg(path)).bad("of a store on several");
            run(rem().args(["kv", "gateway", "--store"]).arg(path)).bad("of a store on several");
            run(rem().args(["kv", "scrub"]).arg(path)).bad("of a store on several");
        }
        assert!(std::fs::read(directory.join("image")).expect("an image") == before, "it was changed");
    }
}

#[test]
fn who_may_only_look_may_so_at_members() {
    let path = |dir: &TempDir, name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let members = Members::new(2, |dir| {
        let tokens = ["--token-file", "--members-token-file", "--reader-token-file"];
        tokens.into_iter().flat_map(|option| [option.to_owned(), path(dir, &option[2..])]).collect()
    });
    let (writers, readers) = (path(&members.dir, "token-file"), path(&members.dir, "reader-token-file"));
    let (writer, reader) = (["--token-file", &writers], ["--token-file", &readers]);
    let with = |args: &[&str], token: [&str; 2]| {
        let (verb, rest) = args.split_first().expect("a verb");
        members.kv(verb, &[rest, &token].concat())
    };
    with(&["put", "key", "value"], writer).good();
    assert_eq!(with(&["get", "key"], reader).good(), b"value");
    assert_eq!(with(&["scan"], reader).good(), b"key\n");
    with(&["stats"], reader).good();
    with(&["verify"], reader).good();
    for args in [&["put", "key", "forged"][..], &["del", "key"], &["compact"], &["scrub"]] {
        with(args, reader).bad("one for readers");
    }
    run(rem().args(["kv", "get", &members.list(), "key", "--patience", "3"])).bad("token");
    assert_eq!(with(&["get", "key"], writer).good(), b"value");
}

#[test]
fn what_members_do_not_do_is_said_in_a_sentence() {
    let dir = tempfile::tempdir().expect("a directory");
    let addrs: Vec<String> = (0..2).map(|_| format!("{}:7471", address())).collect();
    let list = addrs.join(",");
    let serve = |more: &[&str]| {
        let mut command = rem();
        command.args(["kv", "serve"]).arg(dir.path().join("member"));
        run(command.args(["--listen", &addrs[0], "--members", &list]).args(more))
    };
    serve(&["--mode", "erda"]).bad("is for a store on one server");
    serve(&["--configuration", "DMP"]).bad("is for a store on one server");
    serve(&["--reader-token-file", "readers"]).bad("needs one for writers beside it");
    serve(&["--token-file", dir.path().join("token").to_str().expect("UTF-8")]).bad("--members-token-file");
    serve(&["--acks", "3"]).bad("can acknowledge, not 3");
    run(rem().args(["kv", "bench", &list, "--operations", "9"])).bad("on one server");
    // Nobody is there.
    run(rem().args(["kv", "get", &list, "key", "--patience", "1"])).bad("no member serves the store");
}
