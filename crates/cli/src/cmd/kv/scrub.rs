//! `rem kv scrub`.

use std::collections::BTreeMap;
use std::path::Path;

use remanence_kv::server::Scrubbed;
use remanence_kv_live::{Held, repair};
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
cleaning has copied it. Of a store on several members each member's image is looked at, and named if it is damaged.
It fails if values are lost, or a member's image stays damaged.")]
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
    let (all, members) = if path.exists() {
        member::refuse(path)?;
        let region = open_file(path)?;
        (repair(&region).map_err(|e| Fail::new(format!("{}: {e}", args.what)))?.scrubbed, BTreeMap::new())
    } else {
        of_server(args)?
    };
    if args.json {
        let held = |held: &Held| json!({ "damaged": held.damaged, "repaired": held.repaired });
        let held: BTreeMap<_, _> = members.iter().map(|(name, of)| (name, held(of))).collect();
        ui::print_json(&json!({
            "verified": all.verified,
            "repaired": all.repaired,
            "lost": all.lost,
            "members": held,
        }))?;
    } else {
        let mood = if all.repaired + all.lost == 0 { Mood::Good } else { Mood::Note };
        let text = format!(
            "{} whole, {} put right, {} lost",
            ui::count(all.verified as usize, "value"),
            all.repaired,
            all.lost
        );
        ui::line(mood, "scrubbed", text);
        for (name, held) in members.iter().filter(|(_, held)| held.damaged > 0) {
            let text = format!(
                "{name}: its image had {}, {} put right",
                ui::count(held.damaged as usize, "damaged place"),
                held.repaired
            );
            ui::line(Mood::Note, "member", text);
        }
    }
    let still: Vec<&str> = members
        .iter()
        .filter(|(_, held)| held.repaired < held.damaged)
        .map(|(name, _)| name.as_str())
        .collect();
    if all.lost == 0 && still.is_empty() {
        return Ok(());
    }
    if all.lost == 0 {
        return Err(Fail::new(format!(
            "{}: the image of {} stays damaged, and what is served is whole: replace its disk, and the member is made anew when its \
             directory is taken away",
            args.what,
            still.join(", ")
        )));
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

fn of_server(args: &Args) -> Result<(Scrubbed, BTreeMap<String, Held>), Fail> {
    let server = server_of(&args.what)?;
    let mut store = args.reach.connect(&server)?;
    let mut all = Scrubbed::default();
    let mut members: BTreeMap<String, Held> = BTreeMap::new();
    let mut cursor = Some(0);
    while let Some(from) = cursor {
        let (some, held) = store.scrub_all(from, LOT).map_err(|e| of(&server, &e))?;
        for (name, held) in held {
            let of = members.entry(name).or_default();
            of.damaged += held.damaged;
            of.repaired += held.repaired;
        }
        all.verified += some.verified;
        all.repaired += some.repaired;
        all.lost += some.lost;
        cursor = some.next;
    }
    Ok((all, members))
}
