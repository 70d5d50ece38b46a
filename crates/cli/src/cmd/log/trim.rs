//! `rem log trim`.

use remanence_remotelog::proto::Request;
use serde_json::json;

use super::{Reach, look, of};
use crate::args::Server;
use crate::fail::Fail;
use crate::ui;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  rem log trim a,b,c 5000        records 0 to 4999 were applied; their place is free

It may be done while somebody appends. Their writer is not shut out.")]
pub(super) struct Args {
    /// All servers of the log, separated by commas
    #[arg(value_name = "SERVER", value_delimiter = ',', required = true)]
    servers: Vec<Server>,
    /// The first record that stays
    #[arg(value_name = "SEQUENCE")]
    below: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let mut connections = Vec::new();
    for server in &args.servers {
        let (connection, status) = look(server, &args.reach)?;
        let (members, named) = (usize::from(status.state.members), args.servers.len());
        if members != named && members != 0 {
            return Err(Fail::new(format!(
                "{server} is one of {members} servers of its log, and {named} were named; name them all, or trim when they \
                 are back"
            )));
        }
        // What is not everywhere may not have been acknowledged, and must stay where it is to be copied from.
        if status.tail.sequence < args.below {
            return Err(Fail::new(format!(
                "{server} has records up to {} (exclusive) only, so that {} cannot be the first one that stays",
                status.tail.sequence, args.below
            )));
        }
        connections.push((server, connection));
    }
    let mut told = Vec::new();
    for (server, connection) in &mut connections {
        let status = connection.call(&Request::Trim { below: args.below }).map_err(|e| of(server, &e))?;
        let used = status.tail.position - status.state.head.position;
        let free = status.superblock.geometry.capacity() - used;
        if !args.json {
            let left = status.tail.sequence - status.state.head.sequence;
            ui::remark(format!(
                "{server}: {} left, {} free",
                ui::count(left as usize, "record"),
                ui::bytes(free)
            ));
        }
        told.push(json!({
            "server": server.to_string(),
            "first": status.state.head.sequence,
            "next": status.tail.sequence,
            "free": free,
        }));
    }
    if args.json { ui::print_json(&json!({ "servers": told })) } else { Ok(()) }
}
