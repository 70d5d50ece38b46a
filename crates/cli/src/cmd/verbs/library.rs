//! Where the drop-in libraries are.

use std::path::{Path, PathBuf};

use crate::fail::Fail;

/// What a program may ask the loader for; the names without a number are what some open by hand.
pub(super) const FILES: [&str; 4] = ["libibverbs.so.1", "libibverbs.so", "librdmacm.so.1", "librdmacm.so"];

/// The variable that names their directory.
const VARIABLE: &str = "REMANENCE_LIB";

/// The directory with the libraries: the one that `REMANENCE_LIB` names, or where a build or an installation puts them.
pub(crate) fn find() -> Result<PathBuf, Fail> {
    if let Some(given) = std::env::var_os(VARIABLE).filter(|given| !given.is_empty()) {
        let given = std::path::absolute(&given).unwrap_or_else(|_| given.into());
        return if complete(&given) {
            Ok(given)
        } else {
            Err(Fail::new(format!("{VARIABLE} names {}, which has no libibverbs.so.1", given.display())))
        };
    }
    let places = places();
    places.iter().find(|place| complete(place)).cloned().ok_or_else(|| {
        let tried: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        Fail::new(format!(
            "the libraries are not in {}; build them with `cargo xtask dropin --release`, or name their directory in {VARIABLE}",
            tried.join(" or ")
        ))
    })
}

/// Beside the binary after a build, and below the same prefix after an installation.
fn places() -> Vec<PathBuf> {
    let Some(directory) = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned))
    else {
        return Vec::new();
    };
    let mut places = vec![directory.join("dropin")];
    places.extend(directory.parent().map(|prefix| prefix.join("lib/remanence")));
    places
}

fn complete(directory: &Path) -> bool {
    ["libibverbs.so.1", "librdmacm.so.1"].iter().all(|name| directory.join(name).is_file())
}
