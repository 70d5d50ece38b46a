//! `rem switch groups` and `rem switch stats`.

use serde_json::Value;

use super::{Of, control};
use crate::fail::Fail;
use crate::ui::{self, Mood};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    of: Of,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn groups(args: &Args) -> Result<(), Fail> {
    let (said, _) = control::ask(&args.of.socket()?, "groups")?;
    if args.json {
        return ui::print_json(&said);
    }
    let all = said["groups"].as_array().map_or(&[][..], Vec::as_slice);
    if all.is_empty() {
        ui::line(Mood::Absent, "groups", "none");
    }
    for group in all {
        let text = format!(
            "leader {}, service {}, epoch {}, {} of {} replicas for a WRITE, {} for a READ, {} PSNs open",
            word(&group["leader"]),
            group["service"],
            group["epoch"],
            group["writes"],
            group["replicas"].as_array().map_or(0, Vec::len),
            group["reads"],
            group["open"],
        );
        let refused = group["refused"].as_str();
        let text = refused.map_or_else(|| text.clone(), |why| format!("{text}; over: {why}"));
        let mood = if refused.is_some() { Mood::Bad } else { Mood::Good };
        ui::line(mood, &format!("group {}", group["group"]), text);
        for replica in group["replicas"].as_array().into_iter().flatten() {
            let lag = replica["lag"].as_i64().unwrap_or_default();
            let (mood, how) = match (replica["out"] == true, replica["behind"] == true, lag) {
                (true, ..) => (Mood::Bad, "left out".to_owned()),
                (_, true, lag) => {
                    (Mood::Bad, format!("{lag} PSNs behind, and misses what is not sent again"))
                }
                (_, _, 1..) => (Mood::Note, format!("{lag} PSNs behind")),
                _ => (Mood::Good, "up to date".to_owned()),
            };
            ui::line(mood, &format!("  {}", word(&replica["address"])), how);
        }
    }
    Ok(())
}

pub(super) fn stats(args: &Args) -> Result<(), Fail> {
    let (said, _) = control::ask(&args.of.socket()?, "stats")?;
    if args.json {
        return ui::print_json(&said);
    }
    for (name, count) in said["counters"].as_object().into_iter().flatten() {
        let mood = if count == 0 { Mood::Absent } else { Mood::Good };
        ui::line(mood, name, count);
    }
    Ok(())
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
