//! `rem log` as its users run it: real processes, killed at random points.

use crate::common;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use common::{Kind, Said, Server, Sparse, address, rem, run, run_with_input, start};
use serde_json::Value;

const LOG: Kind = Kind { command: &["log", "serve"], file: "log", usual: &[("--size", "2M")] };

/// A server of a log in a file of its own.
fn serve(place: Option<&str>, more: &[&str]) -> Server {
    Server::of(&LOG, place.map_or_else(tempfile::tempdir, tempfile::tempdir_in), more)
}

fn tail(server: &Server, more: &[&str]) -> Vec<Value> {
    let mut command = rem();
    command.args(["log", "tail", &server.name(), "--json"]).args(more);
    let out = String::from_utf8(run(&mut command).good()).expect("UTF-8");
    out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn records_go_in_come_out_and_are_trimmed() {
    for mode in ["singleton", "compound"] {
        let mut server = serve(Some("/dev/shm"), &["--mode", mode]);
        assert_eq!((server.ready["made"].as_bool(), server.ready["next"].as_u64()), (Some(true), Some(0)));
        let mut append = rem();
        append.args(["log", "append", &server.name()]);
        let said = run_with_input(&mut append, b"one\n\nthree\n");
        assert!(said.stderr.contains("3 records durable on 1 server"), "{}", said.stderr);
        assert_eq!(said.good(), b"0\n1\n2\n");
        let mut append = rem();
        append.args(["log", "append", &server.name(), "--json", "--whole"]);
        let told = run_with_input(&mut append, &[0xff, b'\n', 0]).json();
        assert_eq!((told["first"].as_u64(), told["next"].as_u64()), (Some(3), Some(4)));
        let survives = told["servers"][0]["survives"].as_str().expect("a sentence");
        assert!(survives.contains("process"), "{survives}");

        let mut plain = rem();
        plain.args(["log", "tail", &server.name()]);
        assert_eq!(run(&mut plain).good(), b"one\n\nthree\n\xff\n\0\n");
        let records = tail(&server, &["--from", "2"]);
        assert_eq!(
            (records[0]["text"].as_str(), records[1]["hex"].as_str()),
            (Some("three"), Some("ff0a00"))
        );

        server.kill();
        let whole = run(rem().args(["log", "verify", "--json"]).arg(server.file())).json();
        assert_eq!((whole["whole"].as_bool(), whole["records"].as_u64()), (Some(true), Some(4)));
        assert_eq!(whole["known"].as_u64(), Some(4), "the writer has closed the log");
        server.start(&[]);
        assert_eq!((server.ready["made"].as_bool(), server.ready["next"].as_u64()), (Some(false), Some(4)));
        run(rem().args(["log", "trim", &server.name(), "2"])).good();
        assert_eq!(tail(&server, &[]).len(), 2);
        run(rem().args(["log", "tail", &server.name(), "--from", "1"])).bad("was trimmed");
        run(rem().args(["log", "trim", &server.name(), "9"])).bad("up to 4");
        let whole = run(rem().args(["log", "verify", &server.name(), "--json"])).json();
        assert_eq!((whole["first"].as_u64(), whole["next"].as_u64()), (Some(2), Some(4)));
        run(rem().args(["log", "verify"]).arg(server.file())).bad("");
    }
}

#[test]
fn three_servers_go_on_without_one_and_it_is_brought_up_to_date() {
    let mut servers: Vec<Server> = (0..3).map(|_| serve(Some("/dev/shm"), &[])).collect();
    let names = servers.iter().map(Server::name).collect::<Vec<_>>().join(",");
    let append = |input: &[u8], more: &[&str]| {
        let mut command = rem();
        command.args(["log", "append", &names, "--json", "--patience", "5"]).args(more);
        run_with_input(&mut command, input)
    };
    assert_eq!(append(b"a\nb\n", &["--acks", "2"]).json()["next"].as_u64(), Some(2));
    servers[2].kill();
    let told = append(b"c\nd\n", &[]).json();
    assert_eq!(
        (told["first"].as_u64(), told["next"].as_u64(), told["acks"].as_u64()),
        (Some(2), Some(4), Some(2))
    );
    assert_eq!(told["lost"].as_array().map(Vec::len), Some(1));
    servers[1].kill();
    append(b"e\n", &[]).bad("1 of the 2 servers");
    servers[1].start(&[]);
    servers[2].start(&[]);
    append(b"e\n", &["--acks", "3"]).bad("leave out --acks");
    assert_eq!(append(b"e\n", &[]).json()["next"].as_u64(), Some(5));
    for server in &servers {
        let texts: Vec<String> =
            tail(server, &[]).iter().map(|r| r["text"].as_str().unwrap_or_default().into()).collect();
        assert_eq!(texts, ["a", "b", "c", "d", "e"]);
    }
    // A disk is lost and replaced: one line is enough for its server to get all that it lacks.
    let lines: String = (5..20_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(append(lines.as_bytes(), &[]).json()["next"].as_u64(), Some(20_000));
    servers[2].kill();
    std::fs::remove_file(servers[2].file()).expect("its log");
    servers[2].start(&[]);
    assert_eq!(append(b"one\n", &[]).json()["next"].as_u64(), Some(20_001));
    assert_eq!(tail(&servers[2], &[]).len(), 20_001);
    let one = servers[0].name();
    run_with_input(rem().args(["log", "append", &one]), b"x\n").bad("name them all");
}

#[test]
fn what_is_wrong_is_said_in_a_sentence() {
    let mut server = serve(Some("/dev/shm"), &["--segment", "4K"]);
    let name = server.name();
    run_with_input(rem().args(["log", "append", &name, "--whole"]), &[7; 5000])
        .bad("does not fit into a segment");
    let two = format!("{name},{name}");
    run_with_input(rem().args(["log", "append", &two]), b"x\n").bad("one and the same log");
    run(rem().args(["log", "tail", &address().to_string(), "--patience", "1"])).bad("");
    run(rem().args(["log", "verify", "no such thing"])).bad("neither a file nor an address");
    let lines: String = (0..100).map(|n| format!("record {n:060}\n")).collect();
    run_with_input(rem().args(["log", "append", &name]), lines.as_bytes()).good();
    server.kill();
    // A byte in the middle of the first record.
    let mut bytes = std::fs::read(server.file()).expect("the file");
    bytes[16384 + 50] ^= 0x40;
    std::fs::write(server.file(), &bytes).expect("the file");
    let said = run(rem().args(["log", "verify"]).arg(server.file()));
    said.bad("record 0");
    server.start(&[]);
    assert!(server.ready["damage"].as_str().is_some_and(|d| d.contains("record 0")), "{}", server.ready);
    run_with_input(rem().args(["log", "append", &name]), b"x\n").bad("damaged");
    server.kill();
    bytes[16384 + 50] ^= 0x40;
    let at = 16384 + 4096 + 200;
    bytes[at] ^= 0x40;
    std::fs::write(server.file(), &bytes).expect("the file");
    let said = run(rem().args(["log", "verify", "--json"]).arg(server.file()));
    let damage: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    let bad = damage["bad"].as_u64().expect("a number");
    assert!(
        bad > 20 && said.stderr.contains(&format!("records 0 to {} are whole and safe", bad - 1)),
        "{}",
        said.stderr
    );
    // A copy has the same damage, and does not pass for a whole one.
    let copy = server.dir.path().join("copy");
    let said = run(rem().args(["log", "salvage", "-o"]).arg(&copy).arg(server.file()));
    assert_eq!(said.status, Some(1));
    assert!(said.stderr.contains(&format!("record {bad} ")) && copy.exists(), "{}", said.stderr);
    server.start(&["--cut", &bad.to_string()]);
    assert_eq!((server.ready["damage"].as_str(), server.ready["next"].as_u64()), (None, Some(bad)));
    run_with_input(rem().args(["log", "append", &name]), b"x\n").good();
    assert_eq!(tail(&server, &[]).len() as u64, bad + 1);
    server.kill();
    bytes[8] = 9;
    std::fs::write(server.file(), &bytes).expect("the file");
    run(rem().args(["log", "serve", "--listen", &name]).arg(server.file())).bad("format version 9");
}

#[test]
fn a_log_that_cannot_be_made_leaves_no_file_behind() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("log");
    let listen = format!("{}:0", address());
    for (more, why) in [
        (&["--size", "10"][..], "too few for a log"),
        (&["--size", "64K", "--segment", "40K"], "at least two segments"),
        (&["--size", "64K", "--buffers", "pm"], "is not served"),
    ] {
        let said = run(rem().args(["log", "serve", "--listen", &listen]).arg(&file).args(more));
        said.bad(why);
        assert!(!file.exists(), "{more:?}");
    }
}

/// Kills the server while lines are appended, again and again; every line whose number was printed must be there.
fn kill_under_load(place: Option<&str>, more: &[&str], op: Option<&str>) {
    let rounds = remanence_effort::rounds(3, 60);
    let mut server = serve(place, more);
    let mut acknowledged: BTreeMap<u64, String> = BTreeMap::new();
    for round in 0..rounds {
        let input = server.dir.path().join("input");
        let line = |n: u64| format!("round {round} line {n} {}", "x".repeat((n * 13 % 90) as usize));
        std::fs::write(&input, (0..4000).map(|n| line(n) + "\n").collect::<String>()).expect("a file");
        let mut command = rem();
        command.args(["log", "append", &server.name(), "--patience", "5", "--file"]).arg(&input);
        if let Some(op) = op {
            command.args(["--op", op]);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("rem starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        // Another point each time: some way into the first lines, or far along.
        let until = 1 + (round * 37 + 11) % 300;
        let mut first = None;
        let mut count = 0;
        for printed in lines.by_ref().map_while(Result::ok) {
            let sequence: u64 = printed.parse().expect("a number");
            let first = *first.get_or_insert(sequence);
            let old = acknowledged.insert(sequence, line(sequence - first));
            assert_eq!(old, None, "{sequence} was acknowledged twice");
            count += 1;
            if count == until {
                server.kill();
            }
        }
        child.wait().expect("it ends");
        server.kill();
        server.start(more);
        assert_eq!(server.ready["damage"], Value::Null);
        let there: BTreeMap<u64, String> = tail(&server, &[])
            .iter()
            .map(|r| {
                (r["sequence"].as_u64().expect("a number"), r["text"].as_str().expect("text").to_owned())
            })
            .collect();
        for (sequence, text) in &acknowledged {
            assert_eq!(
                there.get(sequence),
                Some(text),
                "record {sequence}, which was acknowledged, round {round}"
            );
        }
    }
    assert!(acknowledged.len() as u64 > rounds, "hardly anything was acknowledged");
}

#[test]
fn a_killed_server_loses_nothing_that_was_acknowledged() {
    kill_under_load(Some("/dev/shm"), &["--mode", "compound"], None);
}

#[test]
fn a_killed_server_with_messages_in_its_file_loses_nothing_that_was_acknowledged() {
    kill_under_load(Some("/dev/shm"), &["--buffers", "pm", "--clients", "2"], Some("SEND"));
}

#[test]
fn a_log_that_was_cut_within_its_journal_is_refused() {
    let mut server = serve(Some("/var/tmp"), &[]);
    run_with_input(rem().args(["log", "append", &server.name()]), b"a record\n").good();
    server.kill();
    run(rem().args(["log", "verify"]).arg(server.file())).good();
    let (whole, kept) = (std::fs::metadata(server.file()).expect("a file").len(), 2 << 20);
    if whole == kept {
        println!("skipped: no file on this machine has a journal, as /var/tmp is no disk");
        return;
    }
    let file = std::fs::File::options().write(true).open(server.file()).expect("a file");
    for len in [whole - 1, kept + (whole - kept) / 2] {
        file.set_len(len).expect("it is cut");
        let refused = format!("was truncated: {len} bytes are left of {whole}");
        run(rem().args(["log", "verify"]).arg(server.file())).bad(&refused);
        run(rem().args(["log", "serve", "--listen", "127.0.0.1:0"]).arg(server.file())).bad(&refused);
        assert_eq!(file.metadata().expect("a file").len(), len, "nothing of it was changed");
    }
    // Cut exactly, or nothing but zeros in its place: the file says itself that it had one.
    let rescued = server.dir.path().join("rescued");
    for len in [kept, whole] {
        file.set_len(kept).and_then(|()| file.set_len(len)).expect("it is cut");
        for verb in [&["log", "verify"][..], &["log", "serve", "--listen", "127.0.0.1:0"]] {
            run(rem().args(verb).arg(server.file())).bad("rem log salvage FILE -o NEW");
        }
        run(rem().args(["log", "salvage", "-o"]).arg(&rescued).arg(server.file()))
            .bad("the copy has the rest");
        run(rem().args(["log", "salvage", "-o"]).arg(&rescued).arg(server.file())).bad("is there");
        run(rem().args(["log", "verify"]).arg(&rescued)).good();
        std::fs::remove_file(&rescued).expect("it was made");
    }
}

#[test]
fn a_sparse_file_that_is_no_log_is_left_as_it_is() {
    let dir = tempfile::tempdir().expect("a directory");
    for journal in ["off", "1M"] {
        let foreign = Sparse::in_dir(dir.path());
        let listen = address().to_string();
        run(rem().args(["log", "serve", "--listen", &listen, "--journal", journal]).arg(foreign.path()))
            .bad("this is not a log");
        foreign.is_as_it_was();
        run(rem().args(["log", "verify"]).arg(foreign.path())).bad("this is not a log");
        foreign.is_as_it_was();
    }
}

#[test]
fn a_killed_server_of_a_file_on_a_disk_loses_nothing_that_was_acknowledged() {
    kill_under_load(None, &[], None);
}

#[test]
fn a_log_with_a_token_is_for_those_who_have_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("token");
    let name = file.to_str().expect("UTF-8");
    let server = serve(Some("/dev/shm"), &["--token-file", name]);
    assert_eq!(server.ready["token_file"], name);
    assert!(server.ready["token_fingerprint"].is_string());
    let secret = std::fs::read_to_string(&file).expect("it was made");
    let append = |more: &[&str]| {
        let mut command = rem();
        command.args(["log", "append", &server.name()]).args(more);
        run_with_input(&mut command, b"paid 17\n")
    };
    append(&[]).bad("asks for a token");
    append(&["--token", "not-the-right-token"]).bad("has another token");
    assert_eq!(append(&["--token-file", name]).good(), b"0\n");
    assert_eq!(append(&["--token", secret.trim()]).good(), b"1\n");
    run(rem().args(["log", "tail", &server.name()])).bad("asks for a token");
    assert_eq!(tail(&server, &["--token-file", name]).len(), 2);
    run(rem().args(["log", "verify", &server.name(), "--token-file", name])).good();
    // An open server is not one for a client with a token: it could be anybody's.
    let open = serve(Some("/dev/shm"), &[]);
    let mut command = rem();
    command.args(["log", "append", &open.name(), "--token-file", name]);
    run_with_input(&mut command, b"paid 17\n").bad("did not prove that it has the token");
    let said = run(rem().args([
        "log",
        "bench",
        &server.name(),
        "--token-file",
        name,
        "--seconds",
        "1",
        "--json",
        "--trim-all",
    ]));
    assert!(said.json()["p50_us"].as_f64().is_some_and(|us| us > 1.0), "an append takes longer than that");
}

#[test]
fn without_a_token_a_log_is_not_served_to_other_machines_unless_that_is_said() {
    let Ok(route) = remanence_link::route::to([192, 0, 2, 1].into()) else {
        return println!("skipped: there is no way out of this machine");
    };
    let dir = tempfile::tempdir().expect("a directory");
    let serve = |more: &[&str]| {
        let mut command = rem();
        command.args(["log", "serve"]).arg(dir.path().join("log"));
        // It ends at once, as its standard input does.
        command.args(["--listen", &format!("{}:0", route.source), "--stop-on-eof"]).args(more);
        run(&mut command)
    };
    serve(&[]).bad("--insecure");
    serve(&["--insecure"]).good();
    serve(&["--token", "correct-horse-battery"]).good();
}

/// An input that has no end is refused where it is longer than any record, and what came before it is appended.
#[test]
fn a_record_without_end_is_refused() {
    let server = serve(Some("/dev/shm"), &[]);
    for more in [&[][..], &["--whole"]] {
        let mut append = rem();
        append.args(["log", "append", &server.name(), "--file", "/dev/zero"]).args(more);
        run(&mut append).bad("the input is too long: a record of this log has");
    }
    assert!(tail(&server, &[]).is_empty());
}

#[test]
fn the_log_server_of_calls_appends_prints_trims_and_recovers() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (file, at) = (dir.path().join("calls"), address().to_string());
    let serve = || {
        let mut command = rem();
        command.args(["log", "calls", "serve"]).arg(&file).args(["--listen", &at, "--size", "1M"]);
        command.args(["--word", "rotating-counter", "--json"]);
        start(&mut command)
    };
    let kill = |mut child: Child| {
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    };
    let (child, ready) = serve();
    assert_eq!((&ready["word"], &ready["made"]), (&"rotating-counter".into(), &true.into()));
    let said = run_with_input(rem().args(["log", "calls", "append", &at]), b"one\ntwo\nthree\n").good();
    let positions = String::from_utf8(said).expect("UTF-8");
    let positions: Vec<u64> = positions.lines().map(|line| line.parse().expect("a position")).collect();
    assert_eq!(positions.len(), 3);
    // What was acknowledged is there after the server was killed.
    kill(child);
    let (child, ready) = serve();
    assert_eq!((&ready["made"], &ready["entries"]), (&false.into(), &3.into()));
    assert_eq!(run(rem().args(["log", "calls", "tail", &at])).good(), b"one\ntwo\nthree\n");
    run(rem().args(["log", "calls", "trim", &at, &positions[1].to_string()])).good();
    assert_eq!(run(rem().args(["log", "calls", "tail", &at])).good(), b"two\nthree\n");
    run(rem().args(["log", "calls", "trim", &at, "3"])).bad("refuses");
    kill(child);
    run(rem().args(["log", "calls", "tail", &at, "--patience", "1"])).bad("nobody answers");
    let other = dir.path().join("other");
    run(rem().args(["log", "calls", "serve"]).arg(&other).args(["--listen", "192.0.2.1"])).bad("--insecure");
    std::fs::write(&other, [b'x'; 8192 * 4]).expect("written");
    let serve_other = ["--listen", &at, "--stop-on-eof"];
    run(rem().args(["log", "calls", "serve"]).arg(&other).args(serve_other)).bad("there is no log here");
    assert_eq!(std::fs::read(&other).expect("a file"), [b'x'; 8192 * 4], "it stays as it was");
    // As one is left whose maker was killed.
    std::fs::write(&file, [0; 8192 * 4]).expect("written");
    let (child, ready) = serve();
    assert_eq!(ready["made"].as_bool(), Some(true));
    kill(child);
}

#[test]
fn the_log_server_of_calls_hears_nobody_without_its_token() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (file, token, at) = (dir.path().join("calls"), dir.path().join("token"), address().to_string());
    let mut command = rem();
    command.args(["log", "calls", "serve"]).arg(&file).args(["--listen", &at, "--size", "1M", "--json"]);
    command.args(["--stop-on-eof", "--token-file"]).arg(&token);
    let (mut child, ready) = start(command.stdin(Stdio::piped()));
    assert_eq!(ready["token_file"], token.to_str().expect("UTF-8"));
    let append =
        |more: &[&str]| run_with_input(rem().args(["log", "calls", "append", &at]).args(more), b"mine\n");
    append(&[]).bad("asks for a token");
    append(&["--token", "correct-horse-batterz"]).bad("another token");
    // Several tokens may be tried; the right one is in the file that the server made.
    let ours = std::fs::read_to_string(&token).expect("the server made it");
    let both = dir.path().join("both");
    std::fs::write(&both, format!("correct-horse-batterz\n{ours}")).expect("written");
    append(&["--token-file", both.to_str().expect("UTF-8")]).good();
    let tail = |more: &[&str]| run(rem().args(["log", "calls", "tail", &at]).args(more));
    assert_eq!(tail(&["--token", ours.trim()]).good(), b"mine\n");
    tail(&[]).bad("asks for a token");
    run(rem().args(["log", "calls", "trim", &at, "0"])).bad("asks for a token");
    drop(child.stdin.take());
    let stopped = Said::of(child.wait_with_output().expect("it ends")).json();
    assert_eq!((&stopped["appends"], &stopped["refused"]), (&1.into(), &5.into()), "{stopped}");
}
