//! `rem switch capture`.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::path::PathBuf;

use serde_json::json;

use super::{Of, control};
use crate::fail::{Context as _, Fail};
use crate::serving::{print_line, when_asked};
use crate::signals::Stop;
use crate::ui;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem switch capture run.pcap                     until Ctrl-C, or until the switch stops
  tshark -r run.pcap                              what leaders sent, each copy of it, and all answers

Packets begin with their IP header. A switch never waits for a recording: where that does not keep up, packets are left out, and counted as `unrecorded`.")]
pub(super) struct Args {
    /// File to write, which must not be there
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    of: Of,
    /// Print JSON: a line when it has begun, one at the end
    #[arg(long)]
    json: bool,
    /// Stop when standard input ends: for programs that start commands
    #[arg(long, hide = true)]
    stop_on_eof: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let asked = Stop::listen()?;
    let socket = args.of.socket()?;
    let failed = || format!("{} cannot be written", args.file.display());
    let mut file = std::fs::File::options().write(true).create_new(true).open(&args.file).context(failed)?;
    let (_, mut from) = control::ask(&socket, "capture").inspect_err(|_| {
        // It has nothing in it.
        let _ = std::fs::remove_file(&args.file);
    })?;
    let stream = from.get_ref().try_clone().context(|| "the socket cannot be shared".into())?;
    when_asked(&asked, args.stop_on_eof, move || drop(stream.shutdown(Shutdown::Both)));
    if args.json {
        print_line(&json!({ "event": "ready", "file": args.file }).to_string())?;
    } else {
        ui::remark(format!("capturing to {}; Ctrl-C ends it", args.file.display()));
    }
    let mut buffer = vec![0; 1 << 16];
    let mut bytes = 0;
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => {
                file.write_all(&buffer[..len]).context(failed)?;
                bytes += len as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Fail::new(format!("the switch says no more ({e})"))),
        }
    }
    if args.json {
        print_line(&json!({ "event": "stopped", "bytes": bytes }).to_string())
    } else {
        ui::remark(format!("{} of {}", ui::bytes(bytes), args.file.display()));
        Ok(())
    }
}
