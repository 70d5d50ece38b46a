//! `rem log tail`.

use std::io::{self, Write as _};
use std::time::Duration;

use remanence_remotelog::proto::Request;
use remanence_remotelog::walk::Ahead;
use remanence_remotelog::{ReadError, Reader, SessionConnection, Status};
use serde_json::json;

use super::{Reach, WINDOW, look, of};
use crate::args::Server;
use crate::fail::{Context as _, Fail};
use crate::signals::Stop;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem log tail 127.0.0.1
  rem log tail 127.0.0.1 --from 1000 --follow --json

What is printed is durable on that server. In a log on several servers the last records may not have been acknowledged
yet, and a later writer may then cut them off: this ends with an error then.")]
pub(super) struct Args {
    /// The server
    #[arg(value_name = "SERVER")]
    server: Server,
    /// Number of the first record to print [default: the first one there is]
    #[arg(long, value_name = "SEQUENCE")]
    from: Option<u64>,
    /// Wait for more records, until Ctrl-C
    #[arg(short, long)]
    follow: bool,
    /// Print one JSON object for each record
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

/// How often a server is asked whether there is more.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let stop = Stop::listen()?;
    let (mut connection, mut status) = look(&args.server, &args.reach)?;
    let first = status.state.head.sequence;
    if let Some(from) = args.from {
        if from < first {
            return Err(Fail::new(format!(
                "record {from} was trimmed: the log begins with {first} now; leave --from out to begin there"
            )));
        }
        if from > status.tail.sequence && !args.follow {
            return Err(Fail::new(format!(
                "there is no record {from} yet: {} is next; wait for it with --follow",
                status.tail.sequence
            )));
        }
    }
    let from = args.from.unwrap_or(first);
    let mut reader = Reader::new(&status);
    let mut out = io::BufWriter::new(io::stdout().lock());
    let unwritten = || "standard output cannot be written".to_owned();
    let size = status.superblock.geometry.size;
    let mut ahead = Ahead::new(&mut connection, size, WINDOW);
    loop {
        while reader.next_sequence() < status.tail.sequence && !stop.is_asked() {
            let sequence = reader.next_sequence();
            let Ok((found, payload)) = reader.read(&mut ahead).map_err(|e| of(&args.server, &e))? else {
                break;
            };
            let payload = payload.to_vec();
            // Its writer may have cut off what was printed before it.
            if reader.changed_writer() {
                status = again(&mut reader, &mut ahead, sequence, &args.server)?;
            }
            if sequence < from {
                continue;
            }
            let written = if args.json {
                let (key, value) = match std::str::from_utf8(&payload) {
                    Ok(text) => ("text", text.to_owned()),
                    Err(_) => ("hex", payload.iter().map(|byte| format!("{byte:02x}")).collect()),
                };
                let mut record = json!({
                    "sequence": sequence,
                    "epoch": found.header.epoch.to_string(),
                    "bytes": payload.len(),
                });
                record[key] = value.into();
                writeln!(out, "{record}")
            } else {
                out.write_all(&payload).and_then(|()| out.write_all(b"\n"))
            };
            written.context(unwritten)?;
        }
        out.flush().context(unwritten)?;
        let seen = reader.next_sequence();
        if stop.is_asked() {
            return Ok(());
        }
        if seen < status.tail.sequence || args.follow {
            // Trimmed under our eyes, perhaps.
            status = again(&mut reader, &mut ahead, seen, &args.server)?;
        }
        if let Some(damage) = status.damage.filter(|damage| damage.sequence <= seen) {
            return Err(Fail::new(format!("{}: {damage}", args.server)));
        }
        if !args.follow && seen >= status.tail.sequence {
            return Ok(());
        }
        if seen >= status.tail.sequence {
            std::thread::sleep(PAUSE);
        }
    }
}

/// How the log is by now, if it is still the one of which everything before a record was read.
fn again(
    reader: &mut Reader,
    ahead: &mut Ahead<&mut SessionConnection>,
    seen: u64,
    server: &Server,
) -> Result<Status, Fail> {
    let status = ahead.get_mut().call(&Request::Status).map_err(|e| of(server, &e))?;
    ahead.forget();
    reader.refresh(&status);
    let first = status.state.head.sequence;
    if first > seen.max(reader.next_sequence()) {
        return Err(Fail::new(format!(
            "records {seen} to {} were trimmed before they could be read; begin again with --from {first}",
            first - 1
        )));
    }
    if status.damage.is_none() && !reader.can_go_on(&status) {
        return Err(of(server, &ReadError::CutOff { from: seen }));
    }
    Ok(status)
}
