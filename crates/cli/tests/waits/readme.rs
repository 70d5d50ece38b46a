//! The lines of README.md under "Use it", typed as they stand, in their order, in one shell.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The hosts that the lines name. `localhost` is the loopback address; the others are addresses of the namespace alone.
const HOSTS: [&str; 7] = ["host", "a", "b", "c", "d", "e", "f"];

/// What comes before the lines: a network with these hosts, three memory servers, and how a server is started.
///
/// A server runs in the background; `serve` returns when it says how to stop it, and fails if it ends before. What it prints
/// is read to its end, so that it never waits for a reader.
const BEFORE: &str = r#"
set -euo pipefail
ip link set lo up
n=0
for host in $HOSTS; do n=$((n + 1)); ip address add "10.77.0.$n/32" dev lo; echo "10.77.0.$n $host" >> hosts; done
echo "127.0.0.1 localhost" >> hosts
mount --bind hosts /etc/hosts
servers=()
trap 'kill -INT "${servers[@]}"; wait' EXIT
serve() {
    exec {said}< <(exec "$@" 2>&1)
    servers+=("$!")
    while IFS= read -r line <&"$said"; do
        echo "$line"
        case "$line" in *"Ctrl-C stops"*) cat <&"$said" > /dev/null & return 0 ;; esac
    done
    return 1
}
for host in a b c; do
    serve rem serve "pool-$host" --size 64M --listen "$host" --token-file "$host.token"
done
"#;

/// The first fenced block behind that heading: each line without its comment, and lines that go on put together.
fn lines(text: &str, heading: &str) -> Vec<String> {
    let (_, behind) = text.split_once(&format!("\n{heading}\n")).expect("the heading is there");
    let (_, block) = behind.split_once("```sh\n").expect("a block behind it");
    let (block, _) = block.split_once("```").expect("an end of the block");
    let whole = block.replace("\\\n", " ");
    whole.lines().map(|line| line.split(" # ").next().unwrap_or_default().trim().to_owned()).collect()
}

/// What is typed for a line: a server goes into the background, and a measurement of minutes says its help.
fn typed(line: &str) -> String {
    let serves = |words: &str| line.starts_with(words);
    if ["rem serve ", "rem kv serve ", "rem log serve ", "rem switch run "].into_iter().any(serves) {
        return format!("serve {line}");
    }
    if line.starts_with("rem bench ") {
        return line
            .split("; ")
            .map(|command| format!("{command} --help > /dev/null"))
            .collect::<Vec<_>>()
            .join("; ");
    }
    // Of several servers, one token a line.
    if line.starts_with("export REM_TOKEN_FILE=") {
        return format!("cat ?.token >> pool.token; {line}");
    }
    line.to_owned()
}

#[test]
fn every_line_under_use_it_works_as_it_stands() {
    let namespace = ["--mount", "--net", "--user", "--map-root-user"];
    let there = Command::new("unshare").args(namespace).arg("true").output();
    if !there.is_ok_and(|output| output.status.success()) {
        return println!("skipped: no namespaces can be had (it takes root or user namespaces, and unshare)");
    }
    let readme =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).expect("there");
    let lines = lines(&readme, "## Use it");
    assert!(lines.len() > 15 && lines.iter().all(|line| !line.is_empty()), "{lines:#?}");

    let here = tempfile::tempdir().expect("a directory");
    fs::write(here.path().join("FILE"), vec![7; 3 << 20]).expect("written");
    fs::create_dir(here.path().join("dir")).expect("made");
    fs::write(here.path().join("dir/of"), "a tree\n").expect("written");
    let mut script = BEFORE.to_owned();
    for line in &lines {
        script += &format!("echo '$ {line}'\n{}\n", typed(line));
    }
    script += "cmp <(tar xOf backup.tar dir/of) dir/of\necho 'typed to the end'\n";

    let program = Path::new(env!("CARGO_BIN_EXE_rem")).parent().expect("in a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("unshare");
    for of_ours in ["REM_TOKEN", "REM_TOKEN_FILE", "REM_SERVERS", "REM_LOCAL"] {
        shell.env_remove(of_ours);
    }
    let output = shell
        .args(namespace)
        .args(["bash", "-c", &script])
        .current_dir(here.path())
        .env("PATH", format!("{}:{path}", program.display()))
        .env("HOSTS", HOSTS.join(" "))
        .stdin(Stdio::null())
        .output()
        .expect("unshare starts");
    let (said, complaint) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success() && said.ends_with("typed to the end\n"),
        "{}\n--- said:\n{said}\n--- and on stderr:\n{complaint}",
        output.status
    );
}
