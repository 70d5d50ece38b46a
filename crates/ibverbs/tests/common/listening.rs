//! When a server listens for connections by librdmacm, to the moment: see `listening.c`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Tells when one server listens.
pub(crate) struct Sign(PathBuf);

impl Sign {
    /// For the server that the command will start.
    pub(crate) fn of(command: &mut Command) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("listens.{}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_file(&path);
        command.env("LD_PRELOAD", library()).env("LISTENS_AT", &path);
        Self(path)
    }

    /// Whether the server has said that it listens.
    pub(crate) fn is_given(&self) -> bool {
        self.0.exists()
    }
}

impl Drop for Sign {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The library that is preloaded; made once for each test process.
fn library() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/listening.c");
        let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (new, library) =
            (target.join(format!("listening.{}.so", std::process::id())), target.join("listening.so"));
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-o"]).args([&new, &source]).arg("-ldl");
        let made = cc.status().expect("a C compiler: apt install gcc");
        assert!(made.success(), "listening.c does not compile");
        // Whole at any time: other test processes may use it.
        fs::rename(&new, &library).expect("cargo's directory for tests can be written");
        library
    })
}
