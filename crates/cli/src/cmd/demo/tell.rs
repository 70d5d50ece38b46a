//! What the demo says, to people and to programs.

use std::time::Duration;

use anstream::println;
use anstyle::{AnsiColor, Style};
use remanence_pool::client::Lost;
use serde_json::json;

use super::input::Input;
use super::{ALL, QUORUM, Recovered, Story, VICTIM, Verified};
use crate::args::Size;
use crate::cmd::perf::Samples;
use crate::fail::Fail;
use crate::ui::{self, Bar};

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
const HARD: Style = AnsiColor::Red.on_default();

/// Says things as they happen, unless a program listens.
pub(super) struct Teller {
    json: bool,
}

/// All that the end of the story needs.
pub(super) struct Summary<'a> {
    pub(super) input: &'a Input,
    pub(super) story: &'a Story,
    pub(super) latency: &'a Samples,
    pub(super) recovered: &'a Recovered,
    pub(super) verified: &'a Verified,
    pub(super) durable: bool,
    pub(super) survives: &'a str,
    pub(super) elapsed: Duration,
}

impl Teller {
    pub(super) fn new(json: bool) -> Self {
        Self { json }
    }

    pub(super) fn bar(&self, bytes: u64) -> Bar {
        Bar::bytes(Some(bytes), self.json)
    }

    fn step(&self, style: Style, verb: &str, text: &str) {
        if !self.json {
            println!("  {style}{verb:<9}{style:#} {text}");
        }
    }

    pub(super) fn title(&self, input: &Input) {
        if !self.json {
            let files = ui::count(input.items.len(), "file");
            println!("{BOLD}Durable remote memory, on one machine{BOLD:#}");
            println!("{DIM}{}: {files}, {}{DIM:#}\n", input.what, ui::bytes(input.bytes));
        }
    }

    pub(super) fn started(&self, pids: &[u32], size: Size) {
        let text =
            format!("three memory servers, processes {}, each with a pool of {size} in a file", list(pids));
        self.step(BOLD, "start", &text);
    }

    pub(super) fn killed(&self, bar: &Bar, server: usize, pid: u32, at: u64) {
        bar.around(|| {
            let text = format!(
                "server {} (process {pid}) with SIGKILL, {} into the stream",
                server + 1,
                ui::bytes(at)
            );
            self.step(HARD, "kill", &text);
        });
    }

    pub(super) fn lost(&self, bar: &Bar, lost: &Lost, after: Option<Duration>) {
        bar.around(|| {
            let after = after.map_or(String::new(), |after| format!(", noticed after {}", ui::time(after)));
            self.step(DIM, "", &format!("{}{after}; going on with the other two", lost.server));
        });
    }

    pub(super) fn written(&self, story: &Story) {
        let text = format!(
            "{} ({}), every file on {QUORUM} servers at least, {} of them on all {}",
            ui::count(story.blobs, "file"),
            ui::bytes(story.bytes),
            story.blobs - story.incomplete,
            ALL.len()
        );
        self.step(GOOD, "durable", &text);
    }

    pub(super) fn caught_up(&self, server: usize, recovered: &Recovered) {
        let sync = &recovered.sync;
        let text = format!(
            "server {} (process {}): it kept {}; {} ({}) came from the others in {}",
            server + 1,
            recovered.pid,
            ui::count(recovered.kept as usize, "file"),
            sync.copied,
            ui::bytes(sync.bytes),
            ui::time(sync.elapsed)
        );
        self.step(GOOD, "restart", &text);
    }

    pub(super) fn killed_all(&self) {
        self.step(HARD, "kill", "all three servers with SIGKILL, at once");
    }

    pub(super) fn restarted(&self, took: Duration) {
        self.step(
            GOOD,
            "restart",
            &format!("all three; their pools were recovered, ready after {}", ui::time(took)),
        );
    }

    pub(super) fn verified(&self, verified: &Verified) {
        let text = format!(
            "{} read back from three servers in {} ({}): every byte is right",
            ui::bytes(verified.bytes),
            ui::time(verified.elapsed),
            ui::rate(verified.bytes, verified.elapsed)
        );
        self.step(GOOD, "verify", &text);
    }

    pub(super) fn summary(&self, s: &Summary<'_>) -> Result<(), Fail> {
        if self.json {
            return ui::print_json(&as_json(s));
        }
        let waited = s.story.noticed_after.unwrap_or_default();
        let active = s.story.elapsed.saturating_sub(waited);
        println!();
        println!(
            "  {BOLD}written{BOLD:#}   {} in {}, to three servers, in {} ({} to each) and {} of waiting for a dead one",
            ui::bytes(s.story.bytes),
            ui::count(s.story.blobs, "file"),
            ui::time(active),
            ui::rate(s.story.bytes, active),
            ui::time(waited)
        );
        println!(
            "  {BOLD}speed{BOLD:#}     a durable write of 4 KiB: median {}, p99 {} ({} times)",
            ui::time(s.latency.at(0.5)),
            ui::time(s.latency.at(0.99)),
            s.latency.count()
        );
        if s.story.undisturbed.count() > 0 {
            println!(
                "            a file, from its first byte to durable: median {}, p99 {} ({}, 32 at a time)",
                ui::time(s.story.undisturbed.at(0.5)),
                ui::time(s.story.undisturbed.at(0.99)),
                ui::count(s.story.undisturbed.count() as usize, "file")
            );
        }
        if let Some(disturbed) = s.story.disturbed {
            println!("            under way during the kill: {} at most", ui::time(disturbed));
        }
        println!(
            "  {BOLD}killed{BOLD:#}    server {} in the middle of the stream, then all three at once; not a byte was lost",
            VICTIM + 1
        );
        let word = if s.durable { "survives" } else { "careful" };
        for (n, row) in ui::wrap(s.survives, 96).into_iter().enumerate() {
            println!("  {BOLD}{:<9}{BOLD:#} {row}", if n == 0 { word } else { "" });
        }
        println!("\n{DIM}The servers and their files are gone. It took {}.{DIM:#}", ui::time(s.elapsed));
        Ok(())
    }
}

fn as_json(s: &Summary<'_>) -> serde_json::Value {
    json!({
        "input": s.input.what,
        "files": s.story.blobs,
        "bytes": s.story.bytes,
        "servers": ALL.len(),
        "quorum": QUORUM,
        "write_seconds": s.story.elapsed.as_secs_f64(),
        "durable_write_4k": s.latency.json(),
        "file_durable": s.story.undisturbed.json(),
        "file_durable_during_kill_max_us": s.story.disturbed.map(|d| d.as_secs_f64() * 1e6),
        "killed": {
            "server": VICTIM + 1,
            "pid": s.story.killed_pid,
            "after_bytes": s.story.killed_at,
            "noticed_after_seconds": s.story.noticed_after.map(|d| d.as_secs_f64()),
            "then_all": true,
        },
        "incomplete_before_catch_up": s.story.incomplete,
        "kept_by_killed_server": s.recovered.kept,
        "caught_up": {
            "files": s.recovered.sync.copied,
            "bytes": s.recovered.sync.bytes,
            "seconds": s.recovered.sync.elapsed.as_secs_f64(),
        },
        "verified_bytes": s.verified.bytes,
        "verify_seconds": s.verified.elapsed.as_secs_f64(),
        "wrong": 0,
        "durable": s.durable,
        "survives": s.survives,
        "seconds": s.elapsed.as_secs_f64(),
    })
}

fn list(pids: &[u32]) -> String {
    let words: Vec<String> = pids.iter().map(ToString::to_string).collect();
    words.join(", ")
}
