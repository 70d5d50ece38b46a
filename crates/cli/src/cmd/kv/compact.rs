//! `rem kv compact`.

use std::time::Duration;

use serde_json::json;

use super::{At, Reach, of};
use crate::fail::Fail;
use crate::ui::{self, Bar, Mood};

/// How often it looks how far the server is.
const LOOK: Duration = Duration::from_millis(50);

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem kv compact 127.0.0.1                         cleans, shows how far it is, and says what became free
  rem kv compact 127.0.0.1 --start                 only asks for it

Clients go on meanwhile. A server cleans by itself when room runs low, unless it was started with --no-clean.")]
pub(super) struct Args {
    /// Server as HOST or HOST:PORT; of a store on several, one member or all of them, separated by commas
    #[arg(value_name = "SERVER")]
    server: At,
    /// Ask for it and do not wait
    #[arg(long)]
    start: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let mut store = args.reach.connect(&args.server)?;
    let said = |e| of(&args.server, &e);
    let before = store.stats().map_err(said)?;
    store.compact().map_err(said)?;
    let mut now = store.stats().map_err(said)?;
    if !args.start {
        let all = now.to_clean + u64::from(now.usage.cleaning);
        let bar = Bar::items(all.max(1), "logs", args.json);
        let mut done = 0;
        while now.to_clean > 0 || now.usage.cleaning {
            std::thread::sleep(LOOK);
            // Cleaning waits until every client has said that it uses nothing of what becomes free, this one too.
            store.rest().map_err(said)?;
            now = store.stats().map_err(said)?;
            let left = now.to_clean + u64::from(now.usage.cleaning);
            let so_far = all.saturating_sub(left);
            bar.add(so_far.saturating_sub(done));
            done = done.max(so_far);
        }
        bar.done();
    }
    let moved = now.server.objects_moved - before.server.objects_moved.min(now.server.objects_moved);
    let freed = now.server.regions_freed - before.server.regions_freed.min(now.server.regions_freed);
    if args.json {
        return ui::print_json(&json!({
            "waited": !args.start,
            "objects_moved": moved,
            "regions_freed": freed,
            "regions_free_before": before.usage.regions_free,
            "regions_free": now.usage.regions_free,
            "region_len": now.region_len,
            "cleaning": now.usage.cleaning,
            "to_clean": now.to_clean,
        }));
    }
    let text = if args.start {
        format!("asked for; {} logs to clean, `rem kv stats` shows how far it is", now.to_clean)
    } else {
        format!(
            "{} moved; {} free for values, {} before",
            ui::count(moved as usize, "object"),
            ui::bytes(u64::from(now.usage.regions_free) * now.region_len),
            ui::bytes(u64::from(before.usage.regions_free) * now.region_len)
        )
    };
    ui::line(Mood::Good, "compact", text);
    Ok(())
}
