//! `rem kv scrub`.

use std::path::Path;

use remanence_kv::live::repair;
use remanence_kv::server::Scrubbed;
use serde_json::json;

use super::{Reach, member, of, open_file, server_of};
use crate::fail::Fail;
use crate::ui::{self, Mood};

/// Values that the server reads for one call: it answers nobody meanwhile.
const LOT: u32 = 64;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem kv scrub 127.0.0.1                           the server reads every value on its medium
  rem kv scrub users.kv                            a file that nobody serves now; it is recovered first

A damaged value is put right where the same version is elsewhere: on another member of the store, or where
cleaning has copied it. It fails if values are lost.")]
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
    let all = if path.exists() {
        member::refuse(path)?;
        let region = open_file(path)?;
        repair(&region).map_err(|e| Fail::new(format!("{}: {e}", args.what)))?.scrubbed
    } else {
        of_server(args)?
    };
    if args.json {
        ui::print_json(&json!({ "verified": all.verified, "repaired": all.repaired, "lost": all.lost }))?;
    } else {
        let mood = if all.repaired + all.lost == 0 { Mood::Good } else { Mood::Note };
        let text = format!(
            "{} whole, {} put right, {} lost",
            ui::count(all.verified as usize, "value"),
            all.repaired,
            all.lost
        );
        ui::line(mood, "scrubbed", text);
    }
    if all.lost == 0 {
        return Ok(());
    }
    let names = if path.exists() {
        "serve it, and `rem kv verify` names the keys"
    } else {
        "`rem kv verify` names the keys"
    };
    Err(Fail::new(format!(
        "{}: {} damaged beyond repair; {names}: put them anew, restore them from a copy, or delete them",
        args.what,
        match all.lost {
            1 => "1 value is".to_owned(),
            n => format!("{n} values are"),
        }
    )))
}

fn of_server(args: &Args) -> Result<Scrubbed, Fail> {
    let server = server_of(&args.what)?;
    let mut store = args.reach.connect(&server)?;
    let mut all = Scrubbed::default();
    let mut cursor = Some(0);
    while let Some(from) = cursor {
        let some = store.scrub(from, LOT).map_err(|e| of(&server, &e))?;
        all.verified += some.verified;
        all.repaired += some.repaired;
        all.lost += some.lost;
        cursor = some.next;
    }
    Ok(all)
}
