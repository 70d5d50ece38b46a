//! `rem kv stats`.

use std::time::Duration;

use remanence_kv::view::Mode;
use remanence_kv_live::{Said, StoreStats};
use serde_json::{Value, json};

use super::{At, Reach, member, of};
use crate::fail::Fail;
use crate::ui::{self, Mood};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem kv stats 127.0.0.1
  rem kv stats 127.0.0.1 --json
  rem kv stats 127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003
                                                   who is the primary, who follows, and how far a rebuild is

GETs are not among the figures: clients read the server's memory themselves, and nobody there counts them.")]
pub(super) struct Args {
    /// Server as HOST or HOST:PORT; of a store on several, one member or all of them, separated by commas
    #[arg(value_name = "SERVER")]
    server: At,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

/// What is known of a store that no member serves: the members, and that it fails.
fn nobody_serves(args: &Args, members: &[(String, Said)]) -> Result<(), Fail> {
    if args.json {
        ui::print_json(&json!({ "address": args.server.to_string(), "members": objects(members) }))?;
    } else {
        member::show(members);
    }
    let away: Vec<&str> =
        members.iter().filter(|(_, said)| said.is_err()).map(|(name, _)| name.as_str()).collect();
    let there = members.len() - away.len();
    let what = match away[..] {
        [] => "they are choosing one, or each says why it cannot be the primary".to_owned(),
        _ => format!("start {}", away.join(", ")),
    };
    Err(Fail::new(format!(
        "no member serves the store at the moment: {there} of {} are there; {what}",
        members.len()
    )))
}

fn objects(members: &[(String, Said)]) -> Value {
    let said = |(name, said): &(String, Said)| match said {
        Ok(said) => member::object(said),
        Err(why) => json!({ "name": name, "role": "away", "why": why }),
    };
    members.iter().map(said).collect()
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let mut store = match args.reach.connect_or_ask(&args.server)? {
        Ok(store) => store,
        Err(members) => return nobody_serves(args, &members),
    };
    let stats = store.stats().map_err(|e| of(&args.server, &e))?;
    let members = store.members().map_err(|e| of(&args.server, &e))?;
    let region = store.session().region();
    // Of a store on several, what a change survives is said by the member's log, and not by what the primary works on.
    let survives = store.primary().map_or(region.sentence, |said| said.survives.clone());
    if args.json {
        let mut object = object(&stats);
        object["address"] = args.server.to_string().into();
        object["configuration"] = store.session().config().to_string().into();
        object["survives"] = survives.into();
        if !members.is_empty() {
            object["members"] = objects(&members);
        }
        return ui::print_json(&object);
    }
    let (server, usage) = (&stats.server, &stats.usage);
    let room = &usage.room;
    let keys = ui::count(room.keys as usize, "key");
    ui::line(
        Mood::Good,
        "store",
        format!(
            "{}, {keys}; {} of {} entries in use; opened {}",
            ui::bytes(stats.size),
            usage.entries,
            usage.entries_max,
            ui::times(stats.boot.into())
        ),
    );
    let free = u64::from(usage.regions_free) * stats.region_len;
    match room.counted {
        true => ui::line(
            if room.left > stats.size / 64 { Mood::Good } else { Mood::Bad },
            "room",
            format!(
                "{} live, {} garbage, {} free; {} more can be live",
                ui::bytes(room.live),
                ui::bytes(room.garbage),
                ui::bytes(room.free),
                ui::bytes(room.left)
            ),
        ),
        false => ui::line(Mood::Good, "room", format!("{} free; keys are being counted", ui::bytes(free))),
    }
    let meaning = match stats.mode {
        Mode::Durable => "durable",
        Mode::Erda => "erda: acknowledged is visible and atomic, not durable",
    };
    ui::line(Mood::Good, "mode", meaning);
    ui::line(Mood::Good, "medium", survives);
    member::show(&members);
    ui::line(
        Mood::Good,
        "writes",
        format!(
            "{} by clients ({} settled, {} given up, {} under way), {} by the server",
            server.reserved, server.settled, server.given_up, usage.unfinished, server.written
        ),
    );
    let doing = match (usage.cleaning, usage.growing) {
        (true, _) => "a log is being cleaned; ",
        (_, true) => "the table is growing; ",
        (false, false) => "",
    };
    ui::line(
        Mood::Good,
        "upkeep",
        format!(
            "{doing}{} objects moved, {} regions freed; table grown {}",
            server.objects_moved,
            server.regions_freed,
            ui::times(server.grown)
        ),
    );
    let mood = if server.damaged > server.repaired { Mood::Bad } else { Mood::Good };
    ui::line(mood, "damage", format!("{} found, {} repaired", server.damaged, server.repaired));
    ui::line(
        Mood::Good,
        "clients",
        format!(
            "{} now, {} cut off; {} calls in {}",
            stats.clients,
            server.fenced,
            stats.calls,
            ui::time(Duration::from_millis(stats.uptime))
        ),
    );
    Ok(())
}

/// All of it, for programs.
pub(super) fn object(stats: &StoreStats) -> Value {
    let (server, usage) = (&stats.server, &stats.usage);
    json!({
        "mode": match stats.mode { Mode::Durable => "durable", Mode::Erda => "erda" },
        "size": stats.size,
        "region_len": stats.region_len,
        "regions": usage.regions,
        "regions_free": usage.regions_free,
        "keys": usage.room.keys,
        "counted": usage.room.counted,
        "live": usage.room.live,
        "garbage": usage.room.garbage,
        "free": usage.room.free,
        "left": usage.room.left,
        "entries": usage.entries,
        "entries_max": usage.entries_max,
        "unfinished": usage.unfinished,
        "cleaning": usage.cleaning,
        "growing": usage.growing,
        "to_clean": stats.to_clean,
        "boot": stats.boot,
        "uptime_ms": stats.uptime,
        "clients": stats.clients,
        "calls": stats.calls,
        "reserved": server.reserved,
        "settled": server.settled,
        "given_up": server.given_up,
        "written": server.written,
        "conflicts": server.unfinished,
        "regions_freed": server.regions_freed,
        "objects_moved": server.objects_moved,
        "entries_moved": server.entries_moved,
        "grown": server.grown,
        "damaged": server.damaged,
        "repaired": server.repaired,
        "fenced": server.fenced,
    })
}
