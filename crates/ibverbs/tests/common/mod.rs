//! What the tests of the C ABI share: a C compiler, and directories of their own.
#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod listening;
pub(crate) mod world;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A directory for what this test process builds, below cargo's own.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{}", std::process::id()));
    fs::create_dir_all(&dir).expect("cargo's directory for tests can be written");
    dir
}

/// Compiles a C program and gives what it prints.
pub(crate) fn run_c(name: &str, source: &str, include: Option<&PathBuf>) -> String {
    let dir = scratch(name);
    let (file, program) = (dir.join("main.c"), dir.join("main"));
    fs::write(&file, source).expect("written");
    let mut cc = Command::new("cc");
    if let Some(include) = include {
        cc.arg("-I").arg(include);
    }
    let status =
        cc.args(["-w", "-o"]).arg(&program).arg(&file).status().expect("a C compiler: apt install gcc");
    assert!(status.success(), "{name} does not compile: apt install libibverbs-dev");
    let output = Command::new(&program).output().expect("it runs");
    assert!(output.status.success(), "{name}: {output:?}");
    fs::remove_dir_all(&dir).expect("removed");
    String::from_utf8(output.stdout).expect("text")
}

/// The directory of the two libraries as this test's sources make them: as `REMANENCE_TEST_LIB` says, by which `cargo xtask
/// test` names what it built; otherwise built once for each process. (cargo and `link.sh` lock what they write, so test
/// programs need not.)
pub(crate) fn dropin() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| std::env::var_os("REMANENCE_TEST_LIB").map_or_else(build, PathBuf::from)).clone()
}

fn build() -> PathBuf {
    let arguments = ["-p", "remanence-ibverbs", "--profile", "test"];
    let made = remanence_effort::built(env!("CARGO_TARGET_TMPDIR"), &arguments);
    let (out, archive) = (made.join("dropin"), made.join("libremanence_ibverbs.a"));
    let link = Path::new(env!("CARGO_MANIFEST_DIR")).join("link.sh");
    let linked = Command::new(link).arg(archive).arg(&out).status().expect("a shell");
    assert!(linked.success(), "the libraries do not link: apt install gcc");
    out
}

/// `rem`, as this workspace makes it: as `REMANENCE_TEST_REM` says, as above, or built.
pub(crate) fn rem() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let arguments = ["-p", "remanence-cli", "--profile", "test"];
        remanence_effort::built(env!("CARGO_TARGET_TMPDIR"), &arguments).join("rem")
    };
    BUILT.get_or_init(|| std::env::var_os("REMANENCE_TEST_REM").map_or_else(build, PathBuf::from)).clone()
}

/// A program as its users run it, but with our libraries, and on the loopback interface only.
pub(crate) fn program(name: impl AsRef<OsStr>) -> Command {
    with_libraries(Command::new("timeout"), name)
}

/// The same in a network of its own, where there can be one: no other process shares its port.
pub(crate) fn program_alone(name: impl AsRef<OsStr>) -> Command {
    const SCRIPT: &str = "ip link set lo up && ip route add 224.0.0.0/4 dev lo && exec timeout \"$@\"";
    static POSSIBLE: OnceLock<bool> = OnceLock::new();
    let network = || {
        let mut command = world::namespace();
        command.args(["sh", "-c", SCRIPT, "sh"]);
        command
    };
    if *POSSIBLE.get_or_init(|| world::quiet(network().args(["10", "true"]))) {
        with_libraries(network(), name)
    } else {
        program(name)
    }
}

fn with_libraries(mut command: Command, name: impl AsRef<OsStr>) -> Command {
    command.arg("240").arg(name);
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("REMANENCE_") {
            command.env_remove(variable);
        }
    }
    command.env("LD_LIBRARY_PATH", dropin()).env("REMANENCE_DEVICE", "rem_lo");
    command
}

/// Compiles a C program against the installed headers and our libraries.
pub(crate) fn compile(dir: &Path, name: &str, source: &str) -> PathBuf {
    let (file, program) = (dir.join(name).with_extension("c"), dir.join(name));
    fs::write(&file, source).expect("written");
    let compiled = Command::new("cc")
        .args(["-D_GNU_SOURCE", "-Wall", "-Wextra", "-O1", "-o"])
        .arg(&program)
        .arg(&file)
        .arg("-L")
        .arg(dropin())
        .args(["-libverbs", "-lrdmacm", "-lpthread", "-ldl"])
        .status();
    assert!(compiled.expect("a C compiler: apt install gcc").success(), "{name} does not compile");
    program
}
