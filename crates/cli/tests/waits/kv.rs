//! `rem kv` as its users run it: real processes, killed while they work.

use crate::common;
use crate::load::{self, PATIENCE};

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Kind, Server, Sparse, address, rem, run, run_with_input, start};
use remanence_kv_live::{ConnectOptions, Store};
use serde_json::Value;

/// Long enough that nobody is cut off because the machine is busy.
const STORE: Kind =
    Kind { command: &["kv", "serve"], file: "store", usual: &[("--size", "4M"), ("--lease", "30000")] };

/// A server of a store in a file of its own.
fn serve(more: &[&str]) -> Server {
    serve_under("/dev/shm", more)
}

fn serve_under(parent: &str, more: &[&str]) -> Server {
    Server::of(&STORE, tempfile::tempdir_in(parent), more)
}

fn kv(server: &Server, verb: &str, more: &[&str]) -> common::Said {
    run(rem().args(["kv", verb, &server.name()]).args(more))
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn values_go_in_and_come_out() {
    let mut server = serve(&[]);
    assert_eq!(server.ready["made"].as_bool(), Some(true));
    let version = text(kv(&server, "put", &["greeting", "hello"]).good());
    assert_eq!(kv(&server, "get", &["greeting"]).good(), b"hello");
    kv(&server, "get", &["nothing"]).bad("nothing has no value");
    kv(&server, "put", &["greeting", "no", "--expect", "absent"]).bad("not what --expect asks for");
    kv(&server, "put", &["other", "no", "--expect", "present"]).bad("--expect asks for one");
    let made = kv(&server, "put", &["greeting", "hi", "--expect", version.trim(), "--json"]).json();
    assert!(made["version"].as_u64() > version.trim().parse().ok(), "{made}");
    assert!(made["survives"].as_str().is_some_and(|survives| survives.contains("process")), "{made}");
    kv(&server, "put", &["greeting", "no", "--expect", version.trim()]).bad("not what --expect asks for");

    // Any bytes, of a size that takes several chunks; from a stream and from a file.
    let large = common::bytes(7, 600_000);
    let mut put = rem();
    put.args(["kv", "put", &server.name(), "large"]);
    run_with_input(&mut put, &large).good();
    let out = server.dir.path().join("out");
    kv(&server, "get", &["large", "--output", out.to_str().expect("UTF-8")]).good();
    assert!(std::fs::read(&out).expect("written") == large, "600,000 bytes come back");
    kv(&server, "put", &["copy", "--file", out.to_str().expect("UTF-8")]).good();
    assert!(kv(&server, "get", &["copy"]).good() == large, "and again");

    let mut put = rem();
    put.args(["kv", "put", &server.name(), "--batch"]);
    let pairs: String = (0..300).map(|n| format!("user:{n}\tvalue {n}\n")).collect();
    assert_eq!(text(run_with_input(&mut put, pairs.as_bytes()).good()).lines().count(), 300);
    let mut keys: Vec<String> =
        text(kv(&server, "scan", &["--prefix", "user:"]).good()).lines().map(str::to_owned).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 300);
    assert_eq!(text(kv(&server, "scan", &["--limit", "5"]).good()).lines().count(), 5);
    let pairs = text(kv(&server, "scan", &["--prefix", "user:29", "--values"]).good());
    assert!(pairs.contains("user:299\tvalue 299\n"), "{pairs}");
    assert_eq!(text(kv(&server, "get", &["user:1", "user:2"]).good()), "user:1\tvalue 1\nuser:2\tvalue 2\n");
    assert_eq!(text(kv(&server, "del", &["user:1", "user:2", "nobody"]).good()), "2\n");
    kv(&server, "get", &["user:1", "user:3", "--json"]).good_but("has no value");

    let stats = kv(&server, "stats", &["--json"]).json();
    assert_eq!(stats["mode"].as_str(), Some("durable"));
    // Small values go along with the request; the two large ones are written by the client.
    assert!(stats["written"].as_u64() >= Some(300) && stats["reserved"].as_u64() == Some(2), "{stats}");
    // It has counted its keys when it has been round once.
    let counted = std::iter::repeat_with(|| kv(&server, "stats", &["--json"]).json())
        .find(|stats| stats["counted"] == true)
        .expect("endless");
    assert_eq!(counted["keys"], 301, "{counted}");
    let [live, free, left, size] = ["live", "free", "left", "size"].map(|word| counted[word].as_u64());
    assert!(live > Some(301 * 64) && left > Some(0) && left < free && free < size, "{counted}");
    let said = String::from_utf8(kv(&server, "stats", &[]).good()).expect("UTF-8");
    assert!(said.contains("301 keys; ") && said.contains("more can be live"), "{said}");
    let whole = kv(&server, "verify", &["--json"]).json();
    assert_eq!((whole["whole"].as_bool(), whole["values"].as_u64()), (Some(true), Some(301)), "{whole}");
    let scrubbed = kv(&server, "scrub", &["--json"]).json();
    assert_eq!((scrubbed["repaired"].as_u64(), scrubbed["lost"].as_u64()), (Some(0), Some(0)), "{scrubbed}");
    let compact = kv(&server, "compact", &["--json"]).json();
    assert_eq!(compact["to_clean"].as_u64(), Some(0), "{compact}");
    assert!(compact["objects_moved"].as_u64() >= Some(301), "{compact}");

    // Served: not by a second one, and not to be looked at.
    run(rem().args(["kv", "serve", "--listen", &address().to_string()]).arg(server.file()))
        .bad("is not served");
    run(rem().args(["kv", "verify"]).arg(server.file())).bad("");
    server.kill();
    let before = std::fs::read(server.file()).expect("a file");
    run(rem().args(["kv", "verify", "--json"]).arg(server.file())).good();
    let size = server.ready["size"].as_u64().expect("a number") as usize;
    let killed = std::fs::read(server.file()).expect("a file");
    assert!(killed[..size] == before[..size], "a journal notes whose server was killed, and nothing else");
    let before = killed;
    let whole = run(rem().args(["kv", "verify", "--json"]).arg(server.file())).json();
    assert_eq!(
        (whole["whole"].as_bool(), whole["verified"].as_u64() >= Some(301)),
        (Some(true), true),
        "{whole}"
    );
    assert!(std::fs::read(server.file()).expect("a file") == before, "verifying changes nothing");
    run(rem().args(["kv", "scrub"]).arg(server.file())).good();
    server.start(&["--mode", "erda"]);
    assert_eq!(server.ready["made"].as_bool(), Some(false));
    assert_eq!(kv(&server, "get", &["greeting"]).good(), b"hi");
    assert!(kv(&server, "get", &["copy"]).good() == large, "it is still there");
}

trait GoodBut {
    fn good_but(self, what: &str);
}

impl GoodBut for common::Said {
    /// It failed, and printed something first.
    fn good_but(self, what: &str) {
        assert_eq!(self.status, Some(1), "{}", self.stderr);
        assert!(self.stderr.contains(what), "{}", self.stderr);
        assert!(!self.stdout.is_empty());
    }
}

#[test]
fn a_store_whose_journal_was_cut_or_is_gone_is_refused() {
    let mut server = serve_under("/var/tmp", &[]);
    // Small and large values are written in different ways there, and promise the same.
    let large = "v".repeat(20_000);
    let promises = ["value", &large].map(|value| {
        let made = kv(&server, "put", &["key", value, "--json"]).json();
        made["survives"].as_str().expect("a sentence").to_owned()
    });
    assert_eq!(promises[0], promises[1]);
    kv(&server, "put", &["key", "value"]).good();
    server.kill();
    run(rem().args(["kv", "verify"]).arg(server.file())).good();
    let whole = std::fs::metadata(server.file()).expect("a file").len();
    let kept = 4 << 20;
    if whole == kept {
        println!("skipped: no file on this machine has a journal, as /var/tmp is no disk");
        return;
    }
    let cut = server.dir.path().join("cut");
    for (len, zeros) in [(whole - 1, false), (kept + (whole - kept) / 2, false), (kept, false), (whole, true)]
    {
        std::fs::copy(server.file(), &cut).expect("there is room");
        let file = std::fs::File::options().write(true).open(&cut).expect("a file");
        if zeros {
            file.set_len(kept).expect("its end is taken away");
        }
        file.set_len(len).expect("it is cut, or zeros are its end");
        let refused = match len {
            _ if zeros || len == kept => "is gone".to_owned(),
            _ => format!("was truncated: {len} bytes are left of {whole}"),
        };
        for verb in ["verify", "scrub", "serve"] {
            let mut command = rem();
            command.args(["kv", verb]).arg(&cut);
            if verb == "serve" {
                command.args(["--listen", &address().to_string()]);
            }
            let said = run(&mut command);
            assert!(said.stderr.contains("`rem kv salvage FILE -o DUMP`"), "{}", said.stderr);
            said.bad(&refused);
        }
        let rescued = server.dir.path().join("rescued");
        run(&mut kv_file("salvage", &cut, Some(&rescued)))
            .good_but("its journal is damaged, and what was acknowledged last may be missing");
        assert!(rescued.exists(), "what is left is in it");
        assert_eq!(std::fs::metadata(&cut).expect("a file").len(), len, "nothing of it was changed");
    }
}

/// `rem kv` of a verb, on a file.
fn kv_file(verb: &str, file: &Path, output: Option<&Path>) -> Command {
    let mut command = rem();
    command.args(["kv", verb]).arg(file);
    if let Some(output) = output {
        command.arg("-o").arg(output);
    }
    command
}

#[test]
fn who_looks_at_the_file_of_a_killed_server_finds_what_it_acknowledged_and_changes_nothing() {
    let mut server = serve_under("/var/tmp", &[]);
    let blank = std::fs::read(server.file()).expect("a store");
    let mut put = rem();
    put.args(["kv", "put", &server.name(), "--batch"]);
    let pairs: String = (0..40).map(|n| format!("user:{n}\tvalue {n}\n")).collect();
    run_with_input(&mut put, pairs.as_bytes()).good();
    let dump = server.dir.path().join("dump");
    for verb in ["verify", "dump", "salvage"] {
        let output = (verb != "verify").then_some(&*dump);
        run(&mut kv_file(verb, &server.file(), output)).bad("stop it first");
    }
    server.kill();
    // As after a power loss before which no page was written: all that was acknowledged is in the journal.
    let mut bytes = std::fs::read(server.file()).expect("a store");
    let region = 4 << 20;
    if bytes.len() == region {
        println!("skipped: no file on this machine has a journal, as /var/tmp is no disk");
        return;
    }
    bytes[..region].copy_from_slice(&blank[..region]);
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let crashed = dir.path().join("crashed");
    std::fs::write(&crashed, &bytes).expect("there is room");
    std::fs::set_permissions(&crashed, std::fs::Permissions::from_mode(0o400)).expect("it is ours");
    let is = || {
        let is = std::fs::metadata(&crashed).expect("a file");
        (is.mtime(), is.mtime_nsec(), is.ctime(), is.ctime_nsec())
    };
    let was = is();
    let look = |through: &dyn Fn(Command) -> Command| {
        let verified = run(through(kv_file("verify", &crashed, None)).arg("--json")).json();
        assert_eq!((verified["whole"].as_bool(), verified["verified"].as_u64()), (Some(true), Some(40)));
        for verb in ["dump", "salvage"] {
            let mut command = through(kv_file(verb, &crashed, Some(&dump)));
            assert_eq!(run(command.arg("--json")).json()["values"].as_u64(), Some(40), "{verb}");
        }
        assert!(is() == was && std::fs::read(&crashed).expect("a file") == bytes, "a look changed the file");
    };
    look(&|command| command);
    let unshare = ["--mount", "--propagation", "private"];
    let there = Command::new("unshare").args(unshare).arg("true").output();
    if !there.is_ok_and(|output| output.status.success()) {
        println!("skipped: no mount namespace can be had (it takes root, and unshare)");
        return;
    }
    look(&|command| {
        let script = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && ! touch \"$0/x\" 2>/dev/null && exec \"$@\"";
        let mut outer = Command::new("unshare");
        outer.args(unshare).args(["sh", "-c", script]).arg(dir.path());
        outer.arg(command.get_program()).args(command.get_args());
        outer
    });
}

#[test]
fn a_sparse_file_that_is_no_store_is_left_as_it_is() {
    let dir = tempfile::tempdir().expect("a directory");
    for journal in ["off", "1M"] {
        let foreign = Sparse::in_dir(dir.path());
        let listen = address().to_string();
        run(rem().args(["kv", "serve", "--listen", &listen, "--journal", journal]).arg(foreign.path()))
            .bad("something else than a store");
        foreign.is_as_it_was();
    }
    let foreign = Sparse::in_dir(dir.path());
    let dump = dir.path().join("dump");
    for verb in ["verify", "scrub", "dump", "salvage"] {
        let mut command = rem();
        command.args(["kv", verb]).arg(foreign.path());
        if matches!(verb, "dump" | "salvage") {
            command.arg("-o").arg(&dump);
        }
        run(&mut command).bad("there is no store");
        foreign.is_as_it_was();
    }
}

/// On a disk with its journal, which moves, and in shared memory.
#[test]
fn a_store_grows_to_the_size_that_is_asked_for_and_does_not_shrink() {
    for parent in ["/var/tmp", "/dev/shm"] {
        let mut server = serve_under(parent, &["--size", "2M"]);
        let grown_from = |server: &Server| server.ready["grown_from"].as_u64();
        let value = "v".repeat(100_000);
        let fill = |server: &Server, keys: std::ops::Range<usize>| {
            keys.take_while(|key| kv(server, "put", &[&key.to_string(), &value]).status == Some(0)).count()
        };
        let first = fill(&server, 0..100);
        assert!((5..20).contains(&first), "{first} values of 100 kB in 2 MiB");
        assert_eq!(grown_from(&server), None);
        let has_journal = std::fs::metadata(server.file()).expect("a file").len() > 2 << 20;
        let mut keys = first;
        for (size, before, room) in [("6M", Some(2 << 20), 10), ("20M", Some(6 << 20), 50), ("4M", None, 0)] {
            server.kill();
            server.start(&["--size", size]);
            assert_eq!(grown_from(&server), before.map(|bytes: u64| bytes - 4096), "{size} in {parent}");
            let more = fill(&server, keys..keys + 100);
            assert!(more >= room, "{more} more values of 100 kB in {size}");
            keys += more;
        }
        let len = std::fs::metadata(server.file()).expect("a file").len();
        assert_eq!(len > 20 << 20, has_journal, "{len} bytes in {parent}");
        // Without a size it is opened as it is.
        server.kill();
        let mut command = rem();
        command.args(["kv", "verify", "--json"]).arg(server.file());
        assert_eq!(run(&mut command).json()["verified"].as_u64(), Some(keys as u64));
        server.start(&["--size", "1M"]);
        assert_eq!(server.ready["size"].as_u64(), Some((20 << 20) - 4096));
        for key in 0..keys {
            assert!(kv(&server, "get", &[&key.to_string()]).good() == value.as_bytes(), "{key}");
        }
        let dump = server.dir.path().join("dump");
        let dumped = run(rem().args(["kv", "dump", &server.name(), "--json", "-o"]).arg(&dump)).json();
        assert_eq!(dumped["values"].as_u64(), Some(keys as u64));
        server.kill();
        // What it cannot grow to is said, and the file is as it was: its heads have no links for so much.
        for size in ["5G", "64T"] {
            run(rem().args(["kv", "serve", "--listen", &server.name(), "--size", size]).arg(server.file()))
                .bad("`rem kv load` it into one that is made larger");
            assert_eq!(std::fs::metadata(server.file()).expect("a file").len(), len, "{size}");
        }
        server.start(&[]);
        assert_eq!(kv(&server, "get", &["0"]).good(), value.as_bytes());
    }
}

#[test]
fn what_cannot_be_done_is_said_in_a_sentence() {
    let server = serve(&["--size", "1M"]);
    let long = "k".repeat(1025);
    kv(&server, "put", &[&long, "v"]).bad("1 to 1024 bytes");
    let refused = kv(&server, "put", &[&long, "v"]).stderr;
    assert!(!refused.contains(&long[..200]) && refused.contains("1025 bytes in all"), "{refused}");
    let mut other = rem();
    other.args(["get", "-s", &server.name(), "x"]).env("REM_TOKEN", "any-token-will-do-here");
    run(&mut other).bad("this is a key-value store");
    let mut put = rem();
    put.args(["kv", "put", &server.name(), "large"]);
    run_with_input(&mut put, &vec![1; 2 << 20]).bad("too large for this pool");
    kv(&server, "put", &["endless", "--file", "/dev/zero"])
        .bad("/dev/zero is too long: a value of this store has");
    let mut put = rem();
    put.args(["kv", "put", &server.name(), "--batch"])
        .stdin(std::fs::File::open("/dev/zero").expect("it is there"));
    run(&mut put).bad("line 1: standard input is too long: a pair of this store has");
    let mut put = rem();
    put.args(["kv", "put", &server.name(), "--batch"]);
    run_with_input(&mut put, b"no tab\n").bad("line 1 has no tab");
    let unread = kv(&server, "put", &["k", "v", "--ttl", "soon"]);
    assert!(unread.stderr.contains("is no time"), "{}", unread.stderr);
    let unread = kv(&server, "put", &["k", "v", "--expect", "maybe"]);
    assert!(unread.stderr.contains("is no condition"), "{}", unread.stderr);

    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("letter");
    std::fs::write(&file, vec![b'x'; 1 << 20]).expect("written");
    run(rem().args(["kv", "serve", "--listen", &address().to_string()]).arg(&file))
        .bad("something else than a store");
    run(rem().args(["kv", "verify"]).arg(&file)).bad("there is no store");
    let short = dir.path().join("short");
    std::fs::write(&short, "x\n").expect("written");
    run(rem().args(["kv", "serve", "--listen", &address().to_string()]).arg(&short))
        .bad("something else than a store");
    let small = dir.path().join("small");
    run(rem().args(["kv", "serve", "--size", "4K", "--listen", &address().to_string()]).arg(&small))
        .bad("256 KiB at least");
    run(rem().args(["kv", "verify", "no such file"])).bad("neither a file nor an address");
    // Nobody there.
    run(rem().args(["kv", "get", &address().to_string(), "key", "--patience", "1"])).bad("");
}

#[test]
fn a_client_that_is_killed_leaves_whole_values() {
    let server = serve(&["--lease", "5000", "--size", "16M"]);
    for round in 0..2 {
        let mut writer = rem();
        writer.args(["kv", "put", &server.name(), "--batch"]);
        writer.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = writer.spawn().expect("rem starts");
        let mut stdin = child.stdin.take().expect("piped");
        let feeding = std::thread::spawn(move || {
            for n in 0_u64.. {
                let pair =
                    format!("key {}\tround {round} value {n} {}\n", n % 500, "x".repeat(n as usize % 700));
                if stdin.write_all(pair.as_bytes()).is_err() {
                    return;
                }
            }
        });
        // Some are acknowledged, and then it dies in the midst of others.
        let mut acknowledged = BufReader::new(child.stdout.take().expect("piped")).lines();
        let seen = (0..600).map_while(|_| acknowledged.next()).count();
        assert_eq!(seen, 600);
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        feeding.join().expect("the feeder ends");
        // Every one of the first 500 keys was acknowledged, and each has a whole value now, this round's.
        let found = text(kv(&server, "scan", &["--values", "--patience", "60"]).good());
        let values: BTreeMap<&str, &str> = found.lines().filter_map(|line| line.split_once('\t')).collect();
        assert_eq!(values.len(), 500);
        for (key, value) in values {
            assert!(value.starts_with(&format!("round {round} value ")), "{key}: {value}");
        }
        // The keys that it was writing are free again.
        kv(&server, "put", &["key 1", "mine", "--patience", "60"]).good();
    }
    assert_eq!(kv(&server, "verify", &["--json"]).json()["whole"].as_bool(), Some(true));
}

fn connect(addr: SocketAddr) -> Store {
    let options = ConnectOptions::default().patience(PATIENCE);
    Store::connect(&load::context(), addr, options).expect("connected")
}

#[test]
fn a_server_that_is_killed_under_load_has_everything_that_was_acknowledged() {
    let mut server = serve(&["--size", "16M"]);
    let addr = server.addr();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (stop, done) = (&stop, &done);
        let writers: Vec<_> =
            (0..2).map(|n| scope.spawn(move || load::write(connect(addr), n, stop, done))).collect();
        for _ in 0..3 {
            load::goes_on(done, 100);
            server.kill();
            server.start(&[]);
        }
        load::goes_on(done, 100);
        stop.store(true, Ordering::Release);
        let known: Vec<load::Known> =
            writers.into_iter().map(|writer| writer.join().expect("a writer")).collect();
        server.kill();
        server.start(&[]);
        load::is_there(&mut connect(addr), &known);
    });
    assert_eq!(kv(&server, "verify", &["--json"]).json()["whole"].as_bool(), Some(true));
}

#[test]
fn the_place_of_a_client_that_died_is_free_again() {
    let server = serve(&["--clients", "1"]);
    let mut writer = rem();
    writer.args(["kv", "put", &server.name(), "--batch"]);
    writer.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = writer.spawn().expect("rem starts");
    let mut stdin = child.stdin.take().expect("piped");
    let pairs: String = (0..256).map(|n| format!("key {n}\tvalue\n")).collect();
    stdin.write_all(pairs.as_bytes()).expect("it reads");
    let mut acknowledged = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!((0..256).map_while(|_| acknowledged.next()).count(), 256);
    kv(&server, "get", &["key 1"]).bad("as many sessions as it takes");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let begin = Instant::now();
    while kv(&server, "get", &["key 1"]).status != Some(0) {
        assert!(begin.elapsed() < PATIENCE, "nobody noticed that it died");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn who_has_the_token_for_readers_looks_and_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let (writers, readers) = (path("writers"), path("readers"));
    run(rem().args(["kv", "serve", &path("store"), "--reader-token-file", &readers]))
        .bad("needs one for writers beside it");
    assert!(!dir.path().join("readers").exists() && !dir.path().join("store").exists());
    let server = serve(&["--token-file", &writers, "--reader-token-file", &readers]);
    assert_eq!(server.ready["reader_token_file"].as_str(), Some(&readers[..]));
    assert_ne!(server.ready["reader_token_fingerprint"], server.ready["token_fingerprint"]);
    let (writer, reader) = (["--token-file", &writers], ["--token-file", &readers]);
    let with = |args: &[&str], token: [&str; 2]| {
        let (verb, rest) = args.split_first().expect("a verb");
        kv(&server, verb, &[rest, &token].concat())
    };
    with(&["put", "key", "value"], writer).good();
    kv(&server, "get", &["key"]).bad("asks for a token");
    assert_eq!(with(&["get", "key"], reader).good(), b"value");
    assert_eq!(with(&["scan"], reader).good(), b"key\n");
    with(&["stats"], reader).good();
    with(&["verify"], reader).good();
    for args in [
        &["put", "key", "forged"][..],
        &["put", "other", "forged"],
        &["del", "key"],
        &["compact"],
        &["scrub"],
    ] {
        with(args, reader).bad("one for readers");
    }
    assert_eq!(with(&["get", "key"], writer).good(), b"value");

    // Redis' clients behind that token are told so in Redis' words.
    let mut command = rem();
    command.args(["kv", "gateway", &server.name(), "--listen", "127.0.0.1:0", "--json", "--stop-on-eof"]);
    let (mut gateway, ready) = start(command.args(reader).stdin(Stdio::piped()));
    assert_eq!(ready["access"].as_str(), Some("read-only"));
    let at: SocketAddr = ready["addresses"][0].as_str().expect("one").parse().expect("an address");
    let mut stream = std::net::TcpStream::connect(at).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let mut replies = BufReader::new(stream.try_clone().expect("a clone"));
    let mut ask = |command: &str| {
        stream.write_all(format!("{command}\r\n").as_bytes()).expect("sent");
        let mut reply = String::new();
        replies.read_line(&mut reply).expect("a reply");
        reply.trim_end().to_owned()
    };
    assert_eq!(ask("EXISTS key"), ":0", "a name of its own is in front of the gateway's keys");
    for command in ["SET key forged", "INCR count", "FLUSHALL", "MSET a 1 b 2"] {
        let reply = ask(command);
        assert!(reply.starts_with("-READONLY "), "{command}: {reply}");
    }
    drop(gateway.stdin.take());
    assert!(gateway.wait().expect("it ends").success());
}

#[test]
fn a_dump_brings_everything_back_and_a_broken_file_is_salvaged() {
    let mut one = serve(&[]);
    let at = one.name();
    let kv = |verb: &str, more: &[&str]| {
        let mut command = rem();
        command.args(["kv", verb]).args(more);
        command
    };
    {
        let mut store = connect(one.addr());
        for n in 0..40_u8 {
            let options = remanence_kv_live::PutOptions {
                ttl: (n % 8 == 7).then(|| Duration::from_secs(3600)),
                ..Default::default()
            };
            store.put(&[b'k', n, 0xFF, b'\n'], &vec![n; usize::from(n) * 100], options).expect("room");
        }
    }
    let path = |name: &str| one.dir.path().join(name).display().to_string();
    let (dump, again, rescued) = (path("dump"), path("again"), path("rescued"));
    let file = one.file();
    let made = run(&mut kv("dump", &[&at, "-o", &dump, "--json"])).json();
    assert_eq!((made["values"].as_u64(), made["damaged"].as_array().map(Vec::len)), (Some(40), Some(0)));
    // It is for who may read the store, and never takes the store's own place.
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&dump).expect("made").permissions());
    assert_eq!(mode & 0o777, 0o600);
    let store = file.display().to_string();
    run(&mut kv("dump", &[&at, "-o", &store])).bad("is there, and is no dump");
    assert_eq!(
        std::fs::read_dir(one.dir.path())
            .expect("a directory")
            .filter(|entry| {
                entry.as_ref().is_ok_and(|entry| entry.path().extension().is_some_and(|e| e == "part"))
            })
            .count(),
        0
    );
    // Cut short, nothing of it is written.
    let whole = std::fs::read(&dump).expect("a dump");
    let two = serve(&[]);
    let to = two.name();
    std::fs::write(&again, &whole[..whole.len() - 20]).expect("written");
    run(&mut kv("load", &[&to, &again])).bad("nothing was written");
    let loaded = run(&mut kv("load", &[&to, &dump, "--json"])).json();
    assert_eq!(loaded["written"].as_u64(), Some(40));
    run(&mut kv("dump", &[&to, "-o", &again])).good();
    let values = |path: &str| {
        let mut reader =
            remanence_kv::dump::Reader::new(std::fs::File::open(path).expect("a file")).expect("a dump");
        let mut all = BTreeMap::new();
        while let Some(record) = reader.next().expect("whole") {
            all.insert(record.key, (record.value, record.expires > 0));
        }
        all
    };
    assert_eq!(values(&dump).len(), 40);
    assert_eq!(values(&dump), values(&again));
    one.kill();
    // One superblock is damaged, and the other tells.
    let mut bytes = std::fs::read(&file).expect("a store");
    let name = file.display().to_string();
    bytes[40] ^= 1;
    std::fs::write(&file, &bytes).expect("written");
    run(&mut kv("dump", &[&name, "-o", &again])).good();
    assert_eq!(values(&dump), values(&again));
    let said = run(&mut kv("verify", &[&name])).stderr;
    assert!(said.contains("puts 1 word right"), "{said}");
    run(&mut kv("scrub", &[&name])).good();
    run(&mut kv("verify", &[&name])).good();
    // Both are damaged: objects alone tell.
    bytes[11776..11848].fill(0);
    std::fs::write(&file, &bytes).expect("written");
    run(&mut kv("salvage", &[&name, "-o", &name])).bad("is there, and is no dump");
    let found = run(&mut kv("salvage", &[&name, "-o", &rescued, "--json"])).json();
    assert_eq!(found["values"].as_u64(), Some(40), "{found}");
    assert_eq!(values(&dump), values(&rescued));
    run(&mut kv("verify", &[&name])).bad("");
}

/// Damage that covers the key as well as what is in front of it leaves nothing to name.
#[test]
fn a_value_of_which_nobody_can_tell_the_key_is_not_passed_over() {
    let mut server = serve(&["--journal", "off"]);
    {
        let mut store = connect(server.addr());
        for n in 100..200 {
            let (key, value) = (format!("key{n}"), format!("value{n}"));
            store.put(key.as_bytes(), value.as_bytes(), Default::default()).expect("room");
        }
        store.put(b"key170", b"value170b", Default::default()).expect("room");
    }
    server.kill();
    let store = server.file();
    let whole = std::fs::read(&store).expect("a store");
    let erase = |what: &[u8]| {
        let mut bytes = whole.clone();
        let at = bytes.windows(what.len()).rposition(|there| there == what).expect("it is there");
        bytes[at - 24..at + 6].fill(0);
        std::fs::write(&store, &bytes).expect("written");
    };
    erase(b"key150value150");
    let (file, out) =
        (server.file().display().to_string(), server.dir.path().join("out").display().to_string());
    let kv = |verb: &str, more: &[&str]| run(rem().args(["kv", verb]).args(more));
    let lost = |said: common::Said, count: &str| {
        assert_eq!(said.status, Some(1), "{}", said.stderr);
        assert!(said.stderr.contains(count), "{}", said.stderr);
    };
    lost(kv("dump", &[&file, "-o", &out]), "1 key is not in the dump");
    lost(kv("salvage", &[&file, "-o", &out]), "1 value is lost");
    let said = kv("salvage", &[&file, "-o", &out, "--json"]);
    let object: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    assert_eq!((object["values"].as_u64(), object["lost_without_a_name"].as_u64()), (Some(99), Some(1)));
    server.start(&[]);
    let at = server.name();
    for _ in 0..2 {
        lost(kv("dump", &[&at, "-o", &out]), "1 key is not in the dump");
        lost(kv("verify", &[&at]), "1 of 100 values is damaged");
    }
    server.kill();
    // The version before is there, and is not what was acknowledged last.
    erase(b"key170value170b");
    lost(kv("salvage", &[&file, "-o", &out]), "1 key has an older version in the dump");
}

#[test]
fn a_port_that_is_taken_leaves_no_new_file() {
    let server = serve(&[]);
    let (dir, at) = (tempfile::tempdir().expect("a directory"), server.addr().to_string());
    let members = format!("{at},127.0.0.1:1,127.0.0.1:2");
    let commands = [
        &["kv", "serve", "file", "--size", "4M", "--listen", &at][..],
        &["kv", "serve", "file", "--size", "4M", "--listen", &at, "--members", &members],
        &["log", "serve", "file", "--size", "4M", "--listen", &at],
        &["serve", "file", "--size", "4M", "--listen", &at],
    ];
    for command in commands {
        // Should one listen all the same, it ends with its standard input.
        let said = run(rem().args(command).arg("--stop-on-eof").current_dir(dir.path()));
        assert_eq!(said.status, Some(1), "{command:?}: {}", said.stderr);
        let mut left = vec![dir.path().to_owned(), dir.path().join("file")];
        left.retain(|dir| dir.is_dir());
        let left = left.iter().flat_map(|dir| std::fs::read_dir(dir).expect("a directory"));
        let left: Vec<_> =
            left.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file()).collect();
        assert!(!left.iter().any(|path| path.extension().is_none()), "{command:?} left {left:?}");
        let _ = std::fs::remove_dir_all(dir.path().join("file"));
    }
    // A file that was there stays.
    let mut other = serve(&[]);
    other.kill();
    run(rem().args(["kv", "serve", "--listen", &at]).arg(other.file())).bad("");
    assert!(other.file().exists());
}
