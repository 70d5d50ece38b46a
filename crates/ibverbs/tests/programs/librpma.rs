//! librpma (Debian's librpma-dev) by a program of ours: write, flush, atomic write, read, messages; see `c/rpma.c`.

use std::path::Path;
use std::process::Command;

use crate::common;
use crate::harness::{Place, ROW, Ready, Row, run};

#[test]
fn librpma_writes_flushes_and_reads() {
    let dir = common::scratch("rpma");
    let program = dir.join("rpma");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/c/rpma.c");
    let built = Command::new("cc").arg("-o").arg(&program).arg(source).args(["-lrpma", "-libverbs"]).output();
    if !built.is_ok_and(|output| output.status.success()) {
        return println!("skipped: librpma-dev is not installed");
    }
    let (program, file) = (program.display(), dir.join("pool"));
    let leak = |text: String| -> &'static str { text.leak() };
    let row = Row {
        server: leak(format!("{program} server {{server}} 7204 {}", file.display())),
        client: leak(format!("{program} client {{server}} 7204")),
        ready: Ready::Cm(7204),
        says: &["greeting of the server: welcome", "read back, with the word atomical"],
        server_says: &["goodbye of the client: goodbye", "memory is as written, the atomic word is atomical"],
        ..ROW
    };
    run(Place::Host, &[row]);
    run(Place::Wire, &[row]);
    std::fs::remove_dir_all(&dir).expect("removed");
}
