//! `libibverbs.so.1` and `librdmacm.so.1`, in `dropin` of cargo's directory for the profile.
//!
//! cargo gives a shared library no version nodes, and programs want them; so it builds an archive, and
//! `crates/ibverbs/link.sh` links it.

use std::path::{Path, PathBuf};
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
    link(&built.join("libremanence_ibverbs.a"), &out)?;
    println!("{}", out.display());
    Ok(())
}

/// Links the two libraries of an archive that is built.
pub(crate) fn link(archive: &Path, out: &Path) -> Result<(), String> {
    run_command(Command::new(root().join("crates/ibverbs/link.sh")).arg(archive).arg(out))
}

/// The directory that cargo builds into.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}
