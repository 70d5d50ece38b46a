//! `rem verbs` with programs that need no RDMA: what it prepares for them, and that it then is out of the way.
//! Real verbs programs are run by `crates/ibverbs/tests/waits/programs`.

use crate::common;

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

use common::{rem, run};
use tempfile::TempDir;

/// `rem verbs` with a directory that passes for the libraries'.
fn verbs() -> (TempDir, Command) {
    let libraries = tempfile::tempdir().expect("a directory");
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        fs::write(libraries.path().join(name), name).expect("written");
    }
    let mut command = rem();
    command.env_remove("LD_LIBRARY_PATH").env("REMANENCE_LIB", libraries.path()).arg("verbs");
    (libraries, command)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn the_program_gets_its_arguments_and_our_settings_and_its_status_is_ours() {
    let (libraries, mut command) = verbs();
    command
        .args(["--link", "shm", "--loss", "0.02", "--delay", "500us", "--seed", "7", "--capture", "c.pcapng"])
        .args(["--device", "rem_shm", "--", "sh", "-c", "env; echo \"args $*\"; exit 7", "sh", "-v", "a b"]);
    let said = run(&mut command);
    assert_eq!(said.status, Some(7), "{}", said.stderr);
    assert_eq!(said.stderr, "", "nothing but the program speaks");
    let out = text(said.stdout);
    let has = |line: &str| assert!(out.lines().any(|l| l == line), "no {line:?} in\n{out}");
    has(&format!("LD_LIBRARY_PATH={}", libraries.path().display()));
    has("REMANENCE_LINK=shm");
    has("REMANENCE_LOSS=0.02");
    has("REMANENCE_DELAY=500us");
    has("REMANENCE_SEED=7");
    has("REMANENCE_DEVICE=rem_shm");
    has("args -v a b");
    let here = std::env::current_dir().expect("a directory").join("c.pcapng");
    has(&format!("REMANENCE_CAPTURE={}", here.display()));
}

#[test]
fn a_library_path_of_the_caller_comes_after_ours() {
    let (libraries, mut command) = verbs();
    command.env("LD_LIBRARY_PATH", "/some/where").args(["--", "sh", "-c", "echo $LD_LIBRARY_PATH"]);
    let out = text(run(&mut command).good());
    assert_eq!(out.trim(), format!("{}:/some/where", libraries.path().display()));
}

#[test]
fn the_program_takes_the_place_of_rem_so_that_signals_reach_it() {
    let (_libraries, mut command) = verbs();
    let mut child = command
        .args(["--", "sh", "-c", "echo $$; exec sleep 60"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("rem starts");
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().expect("piped"));
    std::io::BufRead::read_line(&mut out, &mut line).expect("the program speaks");
    assert_eq!(line.trim(), child.id().to_string(), "the same process");
    child.kill().expect("it is there");
    assert_eq!(child.wait().expect("it ends").signal(), Some(9));
}

#[test]
fn what_cannot_run_is_told_in_one_sentence_with_the_status_of_env() {
    let told = |args: &[&str], status: i32, what: &str| {
        let (_libraries, mut command) = verbs();
        let said = run(command.args(args));
        assert_eq!(said.status, Some(status), "{}", said.stderr);
        assert!(said.stderr.contains(what) && said.stderr.lines().count() == 1, "{:?}", said.stderr);
    };
    told(&["--", "no-such-program"], 127, "there is no program no-such-program");
    told(&["--", "/etc/passwd"], 126, "cannot be run");
    told(
        &["--capture", "/no/such/c.pcapng", "--", "true"],
        1,
        "there is no directory /no/such for the capture",
    );
    told(&["--device", "rem_nosuch", "--", "true"], 1, "there is no device rem_nosuch; this host has ");

    let nowhere = tempfile::tempdir().expect("a directory");
    run(rem().env("REMANENCE_LIB", nowhere.path()).args(["verbs", "--", "true"])).bad("REMANENCE_LIB names");
    for line in
        [&["verbs"][..], &["verbs", "--loss", "2", "--", "true"], &["verbs", "--delay", "5", "--", "true"]]
    {
        assert_eq!(run(rem().args(line)).status, Some(2), "{line:?}");
    }
}

/// What the program sees, with the command before `rem` that may take rights away.
fn seen_by_a_program(before: &[&str]) -> Option<String> {
    let (_libraries, command) = verbs();
    let mut outer = match before {
        [] => command,
        [first, rest @ ..] => {
            let mut outer = Command::new(first);
            outer.args(rest).arg(command.get_program()).args(command.get_args());
            for (name, value) in command.get_envs() {
                match value {
                    Some(value) => outer.env(name, value),
                    None => outer.env_remove(name),
                };
            }
            outer
        }
    };
    let look = "cd /sys/class/infiniband/rem_lo && cat parent ports/1/gids/0 ports/1/gid_attrs/types/0 node_type && \
                ls device/net && test -r ports/1/counters/port_rcv_packets && \
                cat /sys/class/infiniband_verbs/uverbs*/ibdev && \
                cd /dev/infiniband && test -c rem_lo -a -r rem_lo -a -w rem_lo -a -c uverbs1 -a -c rdma_cm && \
                test -c /dev/null -a -d /dev/shm -a -d /sys/class/net && id -u && echo whole";
    let said = run(outer.args(["--verbose", "--device", "lo", "--", "sh", "-c", look]));
    if said.stderr.contains("runs without") {
        println!("skipped: no namespaces here: {}", said.stderr);
        return None;
    }
    assert_eq!(said.status, Some(0), "{}", said.stderr);
    Some(text(said.stdout))
}

#[test]
fn the_program_sees_the_devices_below_sys_and_dev_and_nobody_else_does() {
    let before = (Path::new("/sys/class/infiniband").exists(), Path::new("/dev/infiniband").exists());
    let Some(seen) = seen_by_a_program(&[]) else { return };
    let expected = "lo\n0000:0000:0000:0000:0000:ffff:7f00:0001\nRoCE v2\n1: CA\nlo\n";
    assert!(seen.starts_with(expected) && seen.ends_with("whole\n"), "{seen}");
    assert!(seen.contains("rem_lo\n"), "{seen}");
    let after = (Path::new("/sys/class/infiniband").exists(), Path::new("/dev/infiniband").exists());
    assert_eq!(before, after);
}

/// The same by a user namespace, with which the program still is the user that it was.
#[test]
fn the_view_takes_no_rights_where_user_namespaces_are_allowed() {
    let without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", "--"];
    if !Command::new(without[0]).args(&without[1..]).arg("true").status().is_ok_and(|status| status.success())
    {
        println!("skipped: no right to give rights away; the test above had none either");
        return;
    }
    let Some(seen) = seen_by_a_program(&without) else { return };
    let user = text(Command::new("id").arg("-u").output().expect("id").stdout);
    assert!(seen.ends_with(&format!("{user}whole\n")), "{seen}");
}

/// In a user namespace root looks like anybody, whose datagrams nobody takes: a guest of root's port would hear nothing.
#[test]
fn a_guest_of_roots_port_runs_without_a_user_namespace_and_is_told_why() {
    const WHY: &str = "root's programs have the RoCEv2 port";
    let (libraries, command) = verbs();
    fs::set_permissions(libraries.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    // Without a word before it, or in a network namespace of its own, where nobody has the port whatever else runs here.
    let as_another = |before: &[&str]| {
        let mut other = Command::new("env");
        other
            .args(before)
            .arg("setpriv")
            .args(["--reuid=4711", "--regid=4711", "--clear-groups", "--"])
            .arg(command.get_program());
        other.args(command.get_args()).args(["--device", "lo", "--", "id", "-u"]).current_dir("/");
        other.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        run(&mut other)
    };
    let Ok(_port) = UdpSocket::bind("[::1]:4791") else {
        println!("SKIPPED: no IPv6, or somebody has the port there");
        return;
    };
    let said = as_another(&[]);
    if said.status != Some(0) {
        println!("SKIPPED: no right to become another user: {}", said.stderr);
        return;
    }
    assert!(said.stderr.contains(WHY), "{}", said.stderr);
    assert_eq!(text(said.stdout), "4711\n");
    let said = as_another(&["unshare", "--net", "--", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
    assert!(said.status == Some(0) && !said.stderr.contains(WHY), "{}", said.stderr);
}

/// For programs that bring a libibverbs of their own under another name.
#[test]
fn the_libraries_can_be_loaded_before_the_programs_own() {
    let (libraries, mut command) = verbs();
    command.env("LD_PRELOAD", "/nowhere/theirs.so");
    let said = run(command.args(["--preload", "--no-view", "--", "sh", "-c", "echo $LD_PRELOAD"]));
    let at = libraries.path().display();
    let expected = format!("{at}/libibverbs.so.1:{at}/librdmacm.so.1:/nowhere/theirs.so\n");
    assert_eq!(text(said.stdout), expected, "{}", said.stderr);
}

/// As in a container: root that may not mount anything, in a root directory of its own, where there are no user namespaces.
#[test]
fn without_namespaces_there_are_plain_nodes_and_a_warning() {
    const CONTAINER: &str = "mount --rbind / \"$1\" && mount -t tmpfs tmpfs \"$1/dev\" && mknod -m 666 \"$1/dev/null\" c 1 3 && \
                             exec chroot \"$@\"";
    let drop = |right: &str| {
        let caps = format!("-sys_admin{right}");
        [
            "setpriv".to_owned(),
            format!("--bounding-set={caps}"),
            format!("--inh-caps={caps}"),
            "--".to_owned(),
        ]
    };
    let contained = |right: &str, program: &[&str]| {
        let root = tempfile::tempdir().expect("a directory");
        let (_libraries, command) = verbs();
        let mut container = Command::new("unshare");
        container.args(["--mount", "--propagation", "private", "sh", "-c", CONTAINER, "sh"]);
        container.arg(root.path()).args(drop(right)).arg(command.get_program()).args(command.get_args());
        container.args(["--device", "lo", "--"]).args(program);
        container.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        run(&mut container)
    };
    if contained("", &["true"]).status != Some(0) {
        println!("skipped: no right to make a container");
        return;
    }
    let looks = ["sh", "-c", "cd /dev/infiniband && test -c rem_lo -a -w rem_lo -a -c uverbs1 -a -c rdma_cm"];
    let said = contained("", &looks);
    assert_eq!(said.status, Some(0), "{}", said.stderr);
    assert!(said.stderr.contains("plain nodes"), "{}", said.stderr);
    let said = contained(",-mknod", &["sh", "-c", "test ! -e /dev/infiniband"]);
    assert_eq!(said.status, Some(0), "{}", said.stderr);
    assert!(said.stderr.contains("UCX finds no devices"), "{}", said.stderr);
}

#[test]
fn what_is_installed_can_be_used_and_removed_without_a_trace() {
    let prefix = tempfile::tempdir().expect("a directory");
    let to = prefix.path().join("opt");
    let (_libraries, mut command) = verbs();
    let said = text(run(command.arg("--install").arg(&to)).good());
    let installed = to.join("lib/remanence");
    assert!(said.contains(&format!("LD_LIBRARY_PATH={} ", installed.display())), "{said}");
    assert_eq!(fs::read_to_string(installed.join("libibverbs.so")).expect("a link"), "libibverbs.so.1");
    let sourced = format!(". {}/remanence.env; echo $LD_LIBRARY_PATH", installed.display());
    let shell = Command::new("sh").args(["-c", &sourced]).env("LD_LIBRARY_PATH", "/x").output().expect("sh");
    assert_eq!(text(shell.stdout).trim(), format!("{}:/x", installed.display()));

    // Somebody else's file stays, and so does what it lies in.
    fs::write(to.join("lib/theirs"), "").expect("written");
    let again = || run(verbs().1.arg("--uninstall").arg(&to));
    again().good();
    assert!(!installed.exists() && !to.join("lib/pkgconfig").exists() && to.join("lib/theirs").exists());
    again().bad("nothing of ours");
}
