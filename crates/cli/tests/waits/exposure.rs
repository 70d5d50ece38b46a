//! Who may reach what a command listens at: every command that listens, and every endpoint of it.

use crate::common;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use common::{address, rem, run, start, write};

/// An address that no machine has (RFC 5737), and that others could reach if one had it.
const ELSEWHERE: &str = "192.0.2.1:0";
const TOKEN: &str = "correct-horse-battery";

/// The last words of each command, which listens at [`ELSEWHERE`]; and what guards that endpoint, if anything does.
const DOORS: [(&[&str], Option<[&str; 2]>); 11] = [
    (&["kv", "serve", "FILE", "--listen", ELSEWHERE], Some(["--token", TOKEN])),
    (&["kv", "serve", "FILE", "--listen", "127.0.0.1:0", "--metrics", ELSEWHERE], None),
    (
        &["kv", "serve", "FILE", "--listen", ELSEWHERE, "--members", "192.0.2.1:1,192.0.2.2:1"],
        Some(["--token", TOKEN]),
    ),
    (&["kv", "gateway", "--store", "FILE", "--listen", ELSEWHERE], Some(["--password-file", "PASSWORD"])),
    (
        &["kv", "gateway", "--store", "FILE", "--listen", "127.0.0.1:0", "--native", ELSEWHERE],
        Some(["--token", TOKEN]),
    ),
    (&["kv", "gateway", "--store", "FILE", "--listen", "127.0.0.1:0", "--metrics", ELSEWHERE], None),
    (
        &["kv", "gateway", "127.0.0.1:9", "--patience", "1", "--listen", ELSEWHERE],
        Some(["--password-file", "PASSWORD"]),
    ),
    (&["log", "serve", "FILE", "--listen", ELSEWHERE], Some(["--token", TOKEN])),
    (&["log", "calls", "serve", "FILE", "--listen", ELSEWHERE], Some(["--token", TOKEN])),
    (&["cache", "start", "--log", "FILE", "--metrics", ELSEWHERE], None),
    (
        &[
            "switch",
            "run",
            "--listen",
            "192.0.2.1",
            "--service",
            "7700",
            "--allow-leader",
            "192.0.2.0/24",
            "--allow-replica",
            "192.0.2.0/24",
        ],
        Some(["--token", TOKEN]),
    ),
];

/// A server, which goes with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(dir: &Path, words: &[&str]) -> Command {
    let mut command = rem();
    for word in words {
        match *word {
            "FILE" => command.arg(dir.join("file")),
            "PASSWORD" => command.arg(dir.join("password")),
            word => command.arg(word),
        };
    }
    command
}

#[test]
fn nothing_that_asks_for_nothing_is_reached_from_other_machines_unless_that_is_said() {
    for (words, guard) in DOORS {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        write(dir.path(), "password", b"open sesame\n");
        run(&mut command(dir.path(), words)).bad("--insecure");
        assert!(!dir.path().join("file").exists(), "{words:?} was refused, and made a file");
        // Who is let past that fails only because the address is not this machine's.
        let mut let_past: Vec<Vec<&str>> = vec![vec!["--insecure"]];
        let_past.extend(guard.map(Vec::from));
        for more in let_past {
            let said = run(&mut command(dir.path(), &[words, &more].concat()));
            assert_eq!(said.status, Some(1), "{words:?} {more:?}: {}", said.stderr);
            assert!(!said.stderr.contains("--insecure"), "{words:?} {more:?}: {}", said.stderr);
        }
    }
}

#[test]
fn who_keeps_redis_clients_out_does_not_let_others_in_by_the_native_endpoint() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let password = write(dir.path(), "password", b"open sesame\n");
    let file = dir.path().join("file");
    let gateway = |more: &[&str]| {
        let mut command = rem();
        command.args(["kv", "gateway", "--listen", "127.0.0.1:0", "--size", "8M", "--store"]).arg(&file);
        command.arg("--password-file").arg(&password).args(more);
        command
    };
    let native = address().to_string();
    run(&mut gateway(&["--native", &native])).bad("--token-file");
    // What would mean nothing is refused, and so is leave that nobody needs.
    run(&mut gateway(&["--token", TOKEN, "--insecure"])).bad("--insecure lets nobody in");
    for option in ["--hold", "--patience"] {
        run(&mut gateway(&[option, "5"])).bad(option);
    }
    run(&mut gateway(&["--local", "127.0.0.1"])).bad("--local");
    assert!(!file.exists());

    // With a token the endpoint takes that one; without, and unasked for, it takes none.
    for (more, lets_in) in [(&["--native", native.as_str(), "--token", TOKEN] as &[&str], true), (&[], false)]
    {
        let (server, ready) = start(gateway(more).arg("--json"));
        let server = Running(server);
        let at = ready["server"].as_str().expect("an address").to_owned();
        let get = |more: &[&str]| run(rem().args(["kv", "stats", &at]).args(more)).status;
        assert_eq!(get(&["--token", TOKEN]), Some(u8::from(!lets_in).into()), "{more:?}");
        assert_eq!(get(&[]), Some(1), "{more:?}");
        drop(server);
    }
}

/// Every file and directory below one.
fn below(dir: &Path, found: &mut Vec<(PathBuf, u32)>) {
    for entry in std::fs::read_dir(dir).expect("it is there") {
        let (path, metadata) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))).expect("there");
        if metadata.is_dir() {
            below(&path, found);
        }
        found.push((path, metadata.permissions().mode()));
    }
}

#[test]
fn what_servers_make_is_for_their_user_alone() {
    let at = address().to_string();
    let members = format!("{at},{}", address());
    let servers: [(&[&str], usize); 6] = [
        (&["serve", "FILE", "--size", "1M"], 2),
        (&["kv", "serve", "FILE", "--size", "8M"], 1),
        (&["kv", "serve", "FILE", "--size", "8M", "--members", &members], 4),
        (&["kv", "gateway", "--store", "FILE", "--size", "8M"], 1),
        (&["log", "serve", "FILE", "--size", "1M"], 1),
        (&["log", "calls", "serve", "FILE", "--size", "1M"], 1),
    ];
    for (words, files) in servers {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let mut server = command(dir.path(), words);
        let listen = if words[1] == "gateway" { "127.0.0.1:0" } else { &at };
        // Its standard input ends at once.
        run(server.args(["--listen", listen, "--stop-on-eof", "--json"])).good();
        let mut made = Vec::new();
        below(dir.path(), &mut made);
        assert_eq!(made.len(), files, "{words:?}: {made:?}");
        for (path, mode) in made {
            assert_eq!(mode & 0o077, 0, "{words:?}: others may do something with {}", path.display());
        }
    }
}

#[test]
fn a_server_takes_no_token_that_others_may_read() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let token = write(dir.path(), "token", TOKEN.as_bytes());
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o644)).expect("ours");
    run(command(dir.path(), &["kv", "serve", "FILE", "--token-file"]).arg(&token)).bad("chmod 600");
}
