//! Commands that need no server: help, doctor, sim, and command lines that make no sense.

use crate::common;

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use common::{rem, run};

#[test]
fn every_command_has_help_with_an_example() {
    for command in [
        "demo",
        "doctor",
        "serve",
        "put",
        "get",
        "blob list",
        "blob delete",
        "blob sync",
        "cache recover",
        "cache fsck",
        "cache dump",
        "ping",
        "perf",
        "sim",
        "check persistence",
        "bench transport",
        "bench urdma",
        "bench verbs",
    ] {
        let help =
            String::from_utf8(run(rem().args(command.split(' ')).arg("--help")).good()).expect("UTF-8");
        assert!(help.contains("Example"), "{command}:\n{help}");
        assert!(help.contains(&format!("rem {command}")), "{command}:\n{help}");
        assert!(help.contains("--json"), "{command}:\n{help}");
    }
    let verbs = String::from_utf8(run(rem().args(["verbs", "--help"])).good()).expect("UTF-8");
    assert!(verbs.contains("Example") && verbs.contains("rem verbs -- "), "{verbs}");
    let all = String::from_utf8(run(rem().arg("--help")).good()).expect("UTF-8");
    assert!(all.contains("rem demo"), "{all}");
}

#[test]
fn a_command_line_that_makes_no_sense_has_status_2() {
    for line in [
        &["frobnicate"][..],
        &["serve"],
        &["put", "x"],
        &["get", "-s", "a b", "x"],
        &["serve", "p", "--size", "many"],
    ] {
        let said = run(rem().args(line));
        assert_eq!(said.status, Some(2), "{line:?}: {}", said.stderr);
        assert!(said.stdout.is_empty() && said.stderr.starts_with("error: "), "{line:?}: {}", said.stderr);
    }
}

#[test]
fn a_command_line_that_makes_no_sense_is_said_as_json_to_who_asked_for_json() {
    for (line, what) in [
        (&["kv", "get", "host", "--json"][..], "<KEY>..."),
        (&["kv", "get", "host", "key", "--json", "--size"], "--size"),
        (&["bench", "transport", "--json=file", "--frobnicate"], "--frobnicate"),
    ] {
        let said = run(rem().args(line));
        assert_eq!((said.status, &said.stdout[..]), (Some(2), &b""[..]), "{line:?}: {}", said.stderr);
        let json: serde_json::Value = serde_json::from_str(&said.stderr).expect("JSON, and nothing else");
        assert_eq!(json["status"], 2, "{json}");
        assert!(
            json["error"].as_str().is_some_and(|error| error.contains(what) && !error.contains('\n')),
            "{json}"
        );
    }
    // What another program is to be told is not for us.
    let said = run(rem().args(["verbs", "--loss", "x", "--", "program", "--json"]));
    assert!(said.stderr.starts_with("error: "), "{}", said.stderr);
}

#[test]
fn doctor_says_what_this_machine_guarantees() {
    let dir = tempfile::tempdir().expect("a directory");
    let said = run(rem().args(["doctor", "--json"]).arg(dir.path())).json();
    for section in ["machine", "persistence", "links", "rdma_devices", "verbs", "limits"] {
        assert!(said[section].as_array().is_some_and(|s| !s.is_empty()), "{section}");
    }
    assert!(said["persistence"][0]["survives"].is_string());
    let table = String::from_utf8(run(rem().arg("doctor")).good()).expect("UTF-8");
    assert!(table.contains("Persistence") && !table.contains('\u{1b}'), "no colours into a pipe:\n{table}");
    let missing = run(rem().args(["doctor", "/does/not/exist"]).arg(dir.path()));
    let table = String::from_utf8_lossy(&missing.stdout);
    assert!(
        table.contains("cannot be tried") && table.contains("Limits"),
        "the rest is said all the same:\n{table}"
    );
    assert_eq!(missing.status, Some(1));
    let sentence = "rem: nothing can be said of /does/not/exist";
    assert!(missing.stderr.starts_with(sentence), "{}", missing.stderr);
    assert!(missing.stderr.contains("; name a directory that is there"), "{}", missing.stderr);
}

/// A client may have several tokens, for several servers.
#[test]
fn a_server_has_one_token_wherever_it_comes_from() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, tokens) = (dir.path().join("store"), dir.path().join("tokens"));
    std::fs::write(&tokens, format!("{}\n{}\n", "a".repeat(40), "b".repeat(40))).expect("written");
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o600)).expect("ours");
    for server in [&["serve"][..], &["kv", "serve"], &["log", "serve"], &["log", "calls", "serve"]] {
        let command = |from: &dyn Fn(&mut Command) -> &mut Command| {
            let mut command = rem();
            command.args(server).arg(&file).args(["--size", "64M"]);
            run(from(&mut command))
        };
        let said = [
            command(&|command| command.arg("--token-file").arg(&tokens)),
            command(&|command| command.env("REM_TOKEN_FILE", &tokens)),
        ];
        for said in said {
            assert_eq!(said.status, Some(1), "{server:?}: {}", said.stderr);
            assert!(said.stderr.contains("the token file holds several"), "{server:?}: {}", said.stderr);
            assert!(!file.exists(), "{server:?}: nothing was made");
        }
    }
}

#[test]
fn a_seed_is_simulated_and_replayed() {
    let one = run(rem().args(["sim", "--seed", "7", "--json"])).json();
    let two = run(rem().args(["sim", "--seed", "7", "--json"])).json();
    assert_eq!(one, two);
    assert_eq!(one["verdict"], "pass");
    let of_none = ["sim", "--cluster", "log", "--seed", "1", "--faults", "99"];
    run(rem().args(of_none)).bad("--faults 99: seed 1 has");
}

#[test]
fn check_persistence_proves_the_papers_cells_and_kills_their_mutants() {
    let dir = tempfile::tempdir().expect("a directory");
    let found = run(rem().args(["check", "persistence", "--quick", "--json"])).json();
    assert_eq!((&found["cells_checked"], &found["cells_holding"]), (&144.into(), &144.into()));
    assert_eq!(found["mutants_made"], found["mutants_killed"]);
    assert!(found["states"].as_u64().is_some_and(|n| n > 10_000));
    // One cell, with a drawing of each failure.
    let cell = ["check", "persistence", "--cell", "no-ddio+dmp+pm/WRITE/compound", "--svg"];
    let told = String::from_utf8(run(rem().args(cell).arg(dir.path())).good()).expect("UTF-8");
    assert!(told.contains("Rq Write(a); Rq Flush; Rq AtomicWrite(b); Rq Flush; Rq Comp"), "{told}");
    assert!(told.contains("CRASH") && told.contains("paper 004, table 3"), "{told}");
    let drawn = std::fs::read_dir(dir.path()).expect("the directory").count();
    assert_eq!(drawn, 9, "one for each mutant");
    let said = run(rem().args(["check", "persistence", "--cell", "DMP+DDR"]));
    assert_eq!(said.status, Some(1));
    assert!(said.stderr.contains("is no part of a configuration"), "{}", said.stderr);
}

#[test]
fn doctor_says_what_a_hook_would_not_see_of_a_program() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = dir.path().join("script");
    std::fs::write(&script, "#!/bin/sh\n").expect("written");
    let said = run(rem().args(["doctor", "--json", "/bin/sh"])).json();
    assert_eq!(said.as_object().map(serde_json::Map::len), Some(1), "nothing else was asked: {said}");
    let shell = &said["programs"][0];
    assert_eq!(
        (&shell["libc"], &shell["go"], &shell["privileged"]),
        (&"glibc".into(), &().into(), &false.into())
    );
    assert!(
        shell["needs"].as_array().is_some_and(|needs| needs.iter().any(|name| name == "libc.so.6")),
        "{shell}"
    );
    let refused = run(rem().arg("doctor").arg(&script));
    assert_eq!(refused.status, Some(1));
    let table = String::from_utf8_lossy(&refused.stdout);
    assert!(table.contains("is a script: ask about its interpreter, /bin/sh"), "{table}");
    let doctor = |path: &std::path::Path| run(rem().arg("doctor").arg(path));
    let cut = dir.path().join("cut");
    let shell = std::fs::read("/bin/sh").expect("a program");
    std::fs::write(&cut, &shell[..3000]).expect("written");
    let refused = doctor(&cut);
    let table = String::from_utf8_lossy(&refused.stdout);
    assert!(table.contains("it is not whole") && !table.contains("all its system calls"), "{table}");
    // Why is said where it ends, too.
    let says = |refused: common::Said, why: &str| {
        assert_eq!(refused.status, Some(1));
        let begins = refused.stderr.starts_with("rem: nothing can be said of ");
        assert!(begins && refused.stderr.contains(why), "{}", refused.stderr);
    };
    says(refused, "what is loaded of it ends at byte ");
    let (text, huge, link) = (dir.path().join("text"), dir.path().join("huge"), dir.path().join("loop"));
    std::fs::write(&text, "text\n").expect("written");
    says(doctor(&text), "text: it is no ELF file");
    std::fs::File::create(&huge).expect("made").set_len(300 << 30).expect("it takes no room");
    says(doctor(&huge), "has 322122547200 bytes, and a program of more than ");
    std::os::unix::fs::symlink(&link, &link).expect("a link");
    says(doctor(&link), "loop: Too many levels of symbolic links");
    says(doctor("/dev/zero".as_ref()), "/dev/zero is a device, and no program");
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("it is there").success());
    says(doctor(&fifo), "fifo is a FIFO, and no program");
}

#[test]
fn doctor_explains_which_method_fits_and_what_it_survives() {
    let dir = tempfile::tempdir().expect("a directory");
    let said = run(rem().args(["doctor", "--explain", "--json"]).arg(dir.path())).json();
    assert!(said["explained"][0]["name"].is_string());
    let other = ["doctor", "--explain", "--responder", "DMP+DDIO+DRAM+read+fenced"];
    let told = String::from_utf8(run(rem().args(other)).good()).expect("UTF-8");
    assert!(told.contains("survives") && told.contains("faster with"), "{told}");
    // Of what nobody said the paper's value is taken, and that is said.
    assert!(told.contains("assumed     writes that are placed in their order"), "{told}");
    let named = ["doctor", "--explain", "--responder", "DMP+DDIO+DRAM+ib+read+fenced+posted"];
    let told = String::from_utf8(run(rem().args(named)).good()).expect("UTF-8");
    assert!(!told.contains("assumed"), "{told}");
    let said = run(rem().args(other).arg("--json")).json();
    let better = said["explained"][0]["plans"][0]["better_with"].as_array().expect("a list").clone();
    assert!(better.iter().any(|b| b["faster"] == false && b["one_sided"] == true), "{better:?}");
    let both = run(rem().args(["doctor", "--explain", "--responder", "DMP+DDIO+no-DDIO"]));
    assert!(both.stderr.contains("two values of one thing"), "{}", both.stderr);
    assert_eq!(run(rem().args(other).arg(dir.path())).status, Some(2), "it is one or the other");
}

#[test]
fn nobody_waits_to_hear_that_a_result_has_no_place() {
    let cell = ["check", "persistence", "--cell", "MHP+DDIO+DRAM"];
    for place in [["--json", "/nonexistent/file"], ["--svg", "/proc/lines"]] {
        let said = run(rem().args(cell).args(place));
        assert_eq!((said.status, said.stdout.len()), (Some(1), 0), "{}", said.stderr);
        assert!(said.stderr.contains(place[1]), "{}", said.stderr);
    }
    assert_eq!(run(rem().args(cell).arg("--quick")).status, Some(2), "one cell is no part of the quick ones");
}

#[test]
fn doctor_asks_a_live_server_what_both_can_rely_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let region =
        remanence_pmem::FileOptions::new().create(1 << 20).open(dir.path().join("m")).expect("a file");
    let options = remanence_verbs::Options::udp(common::address());
    let device = remanence_verbs::Context::open(options).expect("a device");
    let options = remanence_remote::ServerOptions::new(&device, region, 0);
    let mut server = remanence_remote::Server::bind(options).expect("a server");
    let (to, stop) = (server.addr().to_string(), remanence_remote::Stop::new());
    std::thread::scope(|scope| {
        scope.spawn(|| server.run(&stop).expect("it serves"));
        let ask = ["doctor", "--explain", "--responder", &to];
        let (told, said) = (run(rem().args(ask)), run(rem().args(ask).arg("--json")));
        stop.ask();
        let told = String::from_utf8(told.good()).expect("UTF-8");
        for wanted in
            ["DDIO is assumed on", "page-cache+DDIO+DRAM+persistent", "survives", "costs were measured"]
        {
            assert!(told.contains(wanted), "{wanted:?} is missing:\n{told}");
        }
        let said = said.json();
        assert_eq!(said["explained"][0]["plans"][1]["costs"], "measured");
        assert!(said["explained"][0]["measured_ns"]["round_trip"].as_f64().is_some_and(|t| t > 0.0));
    });
    let nobody = format!("{}:7999", common::address());
    run(rem().args(["doctor", "--explain", "--responder", &nobody])).bad("does not answer");
}

#[test]
fn a_standard_output_that_takes_nothing_is_said_in_a_sentence() {
    for args in [&["sim", "--seed", "7"][..], &["sim", "--cluster", "log", "--seed", "1"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("it is there");
        let said = rem().args(args).stdout(full).stderr(Stdio::piped()).output().expect("it runs");
        let stderr = String::from_utf8_lossy(&said.stderr);
        assert_eq!(said.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.contains("rem: standard output cannot be written: No space left on device"),
            "{stderr}"
        );
    }
}

/// The kernel's signal would end it without a word.
#[test]
fn a_file_that_would_be_larger_than_its_user_may_have_is_refused_in_a_sentence() {
    let dir = tempfile::tempdir().expect("a directory");
    let (address, store) = (common::address().to_string(), dir.path().join("store"));
    let refused = || {
        let line = "ulimit -f 64; exec \"$0\" kv serve \"$1\" --size 32M --listen \"$2\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", line, env!("CARGO_BIN_EXE_rem")]).arg(&store).arg(&address);
        run(shell.stdin(Stdio::null())).bad("the file-size limit of this process (ulimit -f) is ");
    };
    refused();
    assert_eq!(std::fs::read_dir(dir.path()).expect("there").count(), 0, "a file was left");
    // One that was made without the limit: it is no medium that failed.
    let mut serve = rem();
    serve.args(["kv", "serve"]).arg(&store).args(["--size", "32M", "--listen", &address, "--stop-on-eof"]);
    run(serve.stdin(Stdio::null())).good();
    refused();
}
