//! `rem log verify`.

use std::path::Path;

use remanence_remotelog::Part;
use remanence_remotelog::format::superblock::{FORMAT, file_options, recorded_size};
use remanence_remotelog::walk::{Ahead, Local, Source};
use remanence_remotelog::{OpenError, Reader, Status, Store};
use serde_json::json;

use super::{Reach, WINDOW, look, of};
use crate::args::Server;
use crate::fail::Fail;
use crate::ui::{self, Mood};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem log verify 127.0.0.1                        every record of a running server, read over the network
  rem log verify orders.log                       a file that nobody serves now

Nothing is changed. It fails if a record is damaged, and says which, how that is known, and what is safe.")]
pub(super) struct Args {
    /// A server, or a file
    #[arg(value_name = "SERVER|FILE")]
    what: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let path = Path::new(&args.what);
    let (status, read) = if path.exists() { of_file(path)? } else { of_server(args)? };
    let (first, next) = (status.state.head.sequence, status.tail.sequence);
    let wrong = wrong(&status, &read);
    if args.json {
        ui::print_json(&json!({
            "whole": wrong.is_none(),
            "damage": wrong,
            "bad": status.damage.map(|damage| damage.sequence),
            "first": first,
            "next": next,
            "records": read.records,
            "bytes": read.bytes,
            "mode": status.superblock.mode.name(),
            "uuid": status.superblock.uuid.to_string(),
            "group": status.state.group.to_string(),
            "members": status.state.members,
            "acks": status.state.acks,
            "epoch": status.state.promised.to_string(),
            "known": status.state.known,
        }))?;
    } else if wrong.is_none() {
        let there = match next - first {
            0 => format!("no records; {next} is next"),
            _ => format!(
                "{} ({first} to {}), {}, every checksum right",
                ui::count(read.records as usize, "record"),
                next - 1,
                ui::bytes(read.bytes)
            ),
        };
        ui::line(Mood::Good, "whole", there);
        if status.superblock.mode.name() == "singleton" && status.state.known < next {
            ui::line(Mood::Note, "end", unclosed(status.state.known.max(first), next));
        }
    }
    wrong.map_or(Ok(()), |what| Err(Fail::new(format!("{}: {what}", args.what))))
}

pub(super) struct Read {
    records: u64,
    bytes: u64,
    fault: Option<remanence_remotelog::error::Fault>,
}

/// What is wrong with a log of which this was read, and what is safe.
pub(super) fn wrong(status: &Status, read: &Read) -> Option<String> {
    let first = status.state.head.sequence;
    match (status.damage, &read.fault) {
        (Some(damage), _) => Some(damage.to_string()),
        (None, Some(fault)) => Some(format!(
            "record {} cannot be read any more ({fault}); records {first} up to it are whole; restart the server to find out \
             more",
            first + read.records
        )),
        (None, None) => None,
    }
}

pub(super) fn read_all<S: Source>(status: &Status, source: &mut S) -> Result<Read, S::Error> {
    let mut reader = Reader::new(status);
    let mut read = Read { records: 0, bytes: 0, fault: None };
    while reader.next_sequence() < status.tail.sequence {
        match reader.read(source)? {
            Ok((_, payload)) => {
                read.records += 1;
                read.bytes += payload.len() as u64;
            }
            Err(fault) => {
                read.fault = Some(fault);
                break;
            }
        }
    }
    Ok(read)
}

fn of_file(path: &Path) -> Result<(Status, Read), Fail> {
    let bad = |e: &dyn std::fmt::Display| Fail::new(format!("{}: {e}", path.display()));
    if std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() == 0) {
        return Err(bad(&OpenError::TooShort { len: 0 }));
    }
    let region = file_options().view(path).map_err(|e| bad(&e))?;
    // Receive buffers may lie behind the log.
    let end = |page: &[u8]| recorded_size(page).filter(|len| *len <= region.len()).unwrap_or(region.len());
    let page = FORMAT.open(&region, |page| end(page)..region.len()).map_err(|e| bad(&e))?;
    let len = end(&page);
    let mut store = Store::open(Part::new(region, len)).map_err(|e| bad(&e))?;
    let status = store.status().map_err(|e| bad(&e))?;
    let Ok(read) = read_all(&status, &mut Local(store.medium()));
    Ok((status, read))
}

fn of_server(args: &Args) -> Result<(Status, Read), Fail> {
    let server: Server = args.what.parse().map_err(|_| {
        Fail::new(format!("{:?} is neither a file nor an address; write a path, or host:port", args.what))
    })?;
    let (mut connection, status) = look(&server, &args.reach)?;
    let mut ahead = Ahead::new(&mut connection, status.superblock.geometry.size, WINDOW);
    let read = read_all(&status, &mut ahead).map_err(|e| of(&server, &e))?;
    Ok((status, read))
}

/// Of records `known` and later, up to `next`, nothing says whether they were acknowledged.
fn unclosed(known: u64, next: u64) -> String {
    let which = match next - known {
        1 => format!("record {known} is whole, and nothing here says that it was"),
        _ => format!("records {known} to {} are whole, and nothing here says that they were", next - 1),
    };
    format!("the writer has not closed the log: {which} acknowledged")
}
