//! The committed corpora of the fuzz targets: what a fuzzer once found stays found, without a fuzzer.

use std::path::{Path, PathBuf};

/// The files of a target's corpus, by their names.
///
/// # Panics
/// There are none, or they cannot be read.
#[must_use]
pub fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let read = || -> std::io::Result<Vec<(PathBuf, Vec<u8>)>> {
        let paths = std::fs::read_dir(&directory)?.map(|entry| Ok(entry?.path()));
        paths.map(|path| path.and_then(|path| Ok((path.clone(), std::fs::read(path)?)))).collect()
    };
    let mut files = read().unwrap_or_else(|e| panic!("corpus of {target}: {e}"));
    assert!(!files.is_empty(), "{target} has no corpus");
    files.sort();
    files
}

/// Runs each target's body on each file of its corpus, and prints the file's path before.
///
/// # Panics
/// A target has no corpus, or a body panics.
pub fn replay_corpora<B: Fn(&[u8])>(bodies: &[(&str, B)]) {
    for (target, body) in bodies {
        for (path, bytes) in corpus(target) {
            println!("{}", path.display());
            body(&bytes);
        }
    }
}
