//! `libibverbs.so.1` and `librdmacm.so.1`, in `dropin` of cargo's directory for the profile.
//!
//! cargo gives a shared library no version nodes, and programs want them; so it builds an archive, and
//! `crates/ibverbs/link.sh` links it.

use std::path::PathBuf;
use std::process::Command;

use crate::{cargo, root, run as run_command};

pub(crate) fn run(release: bool) -> Result<(), String> {
    let (profile, directory) = if release { ("release", "release") } else { ("dev", "debug") };
    let mut args = vec!["rustc", "--locked", "-p", "remanence-ibverbs", "--lib", "--profile", profile];
    if release {
        // The archive alone: beside a Rust library cargo does not optimise it across crates, which is 3 % of the
        // instructions of a small WRITE.
        args.extend(["--crate-type", "staticlib"]);
    }
    cargo(&args)?;
    let built = target().join(directory);
    let out = built.join("dropin");
    let link = root().join("crates/ibverbs/link.sh");
    run_command(Command::new(link).arg(built.join("libremanence_ibverbs.a")).arg(&out))?;
    println!("{}", out.display());
    Ok(())
}

/// cargo's directory.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}
