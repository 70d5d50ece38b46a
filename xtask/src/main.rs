//! The project's own checks: `cargo xtask check` is what CI runs, and what to run before a push.
//!
//! `check` runs them all; each can be run by its name. They print what they do, and stop at the first failure.
//!
//! And one thing that cargo cannot build alone: `cargo xtask dropin` makes the two C libraries. `cargo xtask mutate` asks
//! whether the tests would notice if a rule were broken, which takes too long for every push; `cargo xtask soak` runs that and
//! everything else that does.

mod deps;
mod dropin;
mod ledger;
mod mutate;
mod soak;
mod testing;
mod tidy;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

type Step = (&'static str, &'static str, fn() -> Result<(), String>);

/// Every check, in the order in which `check` runs them: cheap ones first.
const STEPS: &[Step] = &[
    ("tidy", "source rules: no long files, no unfinished places, no machine paths", tidy::run),
    ("deps", "crate edges of the architecture, and licences", deps::run),
    ("ledger", "the compliance ledger against the tests that it names", ledger::run),
    ("mutations", "what `cargo xtask mutate` applies still applies", mutate::check),
    ("fmt", "formatting", || cargo(&["fmt", "--all", "--check"])),
    ("clippy", "lints, crate by crate so that features do not unify", clippy),
    ("doc", "documentation builds without a warning", doc),
    ("package", "each crate can be packaged, as for a registry", package),
    ("test", "every test, from one build", testing::run),
];

fn main() -> ExitCode {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let further: Vec<String> = std::env::args().skip(2).collect();
    let outcome = match &wanted[..] {
        "dropin" => Some(dropin::run(further.iter().any(|arg| arg == "--release"))),
        "mutate" => Some(mutate::run(&further)),
        "soak" => Some(soak::run(&further)),
        "stress" => Some(testing::stress(&further)),
        _ => None,
    };
    if let Some(outcome) = outcome {
        return match outcome {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("==> {wanted} failed: {why}");
                ExitCode::FAILURE
            }
        };
    }
    let steps: Vec<&Step> = STEPS.iter().filter(|s| wanted == "check" || s.0 == wanted).collect();
    if steps.is_empty() {
        eprintln!("usage: cargo xtask dropin [--release]: builds libibverbs.so.1 and librdmacm.so.1");
        eprintln!(
            "       cargo xtask mutate [--list] [NAME...]: breaks rules of the code, and runs the tests that must notice"
        );
        eprintln!(
            "       cargo xtask soak [--list] [NAME...]: what takes hours: many seeds, many kills, every mutation"
        );
        eprintln!(
            "       cargo xtask stress [RUNS] [PROGRAM...]: the tests that take real time, again and again beside busy loops"
        );
        eprintln!("       cargo xtask check|NAME, where NAME is one of");
        for (name, what, _) in STEPS {
            eprintln!("  {name:9} {what}");
        }
        return ExitCode::from(2);
    }
    for (name, what, run) in steps {
        println!("==> {name}: {what}");
        let start = Instant::now();
        if let Err(why) = run() {
            eprintln!("==> {name} failed: {why}");
            return ExitCode::FAILURE;
        }
        println!("==> {name}: ok, {:.1} s", start.elapsed().as_secs_f64());
    }
    ExitCode::SUCCESS
}

/// The workspace's root, wherever the command was started.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_path_buf()
}

fn cargo(args: &[&str]) -> Result<(), String> {
    run(Command::new(env!("CARGO")).args(args))
}

fn run(command: &mut Command) -> Result<(), String> {
    let status = command.current_dir(root()).status().map_err(|e| format!("{command:?}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}

fn clippy() -> Result<(), String> {
    for package in deps::members()? {
        cargo(&["clippy", "--quiet", "--locked", "-p", &package, "--all-targets", "--", "-D", "warnings"])?;
    }
    Ok(())
}

/// Without a lock file, for which the crates would have to be in a registry already. Its warnings, that there is no home page yet, are for
/// those who publish.
fn package() -> Result<(), String> {
    let how = ["--no-verify", "--allow-dirty", "--exclude-lockfile", "--offline"];
    let mut command = Command::new(env!("CARGO"));
    command.args(["package", "--workspace", "--exclude", "xtask"]).args(how).current_dir(root());
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn doc() -> Result<(), String> {
    // The head of a file leads its own developers through the files beside it, which are private.
    run(Command::new(env!("CARGO"))
        .args(["doc", "--quiet", "--workspace", "--no-deps", "--locked"])
        .env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links"))
}
