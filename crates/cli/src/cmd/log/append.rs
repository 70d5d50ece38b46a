//! `rem log append`.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write as _};
use std::path::PathBuf;
use std::sync::mpsc;

use remanence_remotelog::SessionConnection;
use remanence_remotelog::{AppendError, Group, GroupError};
use serde_json::json;

use super::Write;
use crate::fail::{Context as _, Fail};
use crate::ui;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  echo 'paid 17' | rem log append 127.0.0.1
  rem log append a,b,c --acks 2 < orders.txt
  rem log append 127.0.0.1 --file photo.jpg --whole

Each line is a record. Its number is printed when it is durable on --acks servers, and not before. To write to a log
shuts its earlier writer out.")]
pub(super) struct Args {
    #[command(flatten)]
    write: Write,
    /// Read this file in place of standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// All of the input is one record
    #[arg(long)]
    whole: bool,
    /// How many records are under way at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    depth: u16,
    /// Print one JSON object at the end in place of the numbers
    #[arg(long)]
    json: bool,
}

/// Lines that are read ahead.
const AHEAD: usize = 256;

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let input: Box<dyn BufRead + Send> = match &args.file {
        Some(path) => Box::new(BufReader::new(
            File::open(path).context(|| format!("{} cannot be read", path.display()))?,
        )),
        None => Box::new(BufReader::new(io::stdin())),
    };
    let (mut group, opened) = args.write.open()?;
    for (server, why) in &opened.lost {
        anstream::eprintln!("rem: {server}: {why}; going on with the rest");
    }
    for (server, count) in &opened.copied {
        anstream::eprintln!(
            "rem: {server} lacked {}, and has got them",
            ui::count(*count as usize, "record")
        );
    }
    for (server, count) in &opened.cut {
        let records = ui::count(*count as usize, "record");
        anstream::eprintln!("rem: {server} had {records} that had never been acknowledged; they are cut off");
    }
    let first = group.next();
    let mut out = Printer { quiet: args.json, printed: first };
    let appended = append(&mut group, read(input, args.whole), usize::from(args.depth), &mut out);
    let (last, quorum) = (group.acknowledged(), group.quorum());
    let recipe = explain(&mut group);
    let lost = group.lost();
    let closed = appended.and_then(|()| group.close().map_err(|e| Fail::new(e.to_string())));
    // What was acknowledged is said in any case.
    let told = if args.json {
        let survives: Vec<_> = recipe.iter().map(|(server, recipe, survives)| json!({ "server": server, "recipe": recipe, "survives": survives })).collect();
        ui::print_json(&json!({
            "first": first,
            "next": last,
            "count": last - first,
            "acks": quorum.0,
            "members": quorum.1,
            "servers": survives,
            "lost": lost.iter().map(|(server, why)| format!("{server}: {why}")).collect::<Vec<_>>(),
        }))
    } else {
        let on = match quorum {
            (1, 1) => "1 server".to_owned(),
            (acks, all) if acks == all => format!("all {all} servers"),
            (acks, all) => format!("at least {acks} of {all} servers"),
        };
        anstream::eprintln!("{} durable on {on}", ui::count((last - first) as usize, "record"));
        // The whole sentence and the recipe are for `--json` and for `rem doctor --explain`.
        for (server, _, survives) in &recipe {
            let survives = survives.split("; ").next().unwrap_or(survives);
            ui::wrap(&format!("{server}: {survives}"), 100)
                .iter()
                .for_each(|row| anstream::eprintln!("  {row}"));
        }
        Ok(())
    };
    closed.and(told)
}

/// By server: the recipe, and which failures a record survives.
fn explain(group: &mut Group<SessionConnection>) -> Vec<(String, String, String)> {
    let explained = group.connections().map(|(server, connection)| {
        let plan = remanence_persist::plan::Request::record(64);
        let recipe = connection.explain(&plan).map_or_else(|e| e.to_string(), |(recipe, _)| recipe);
        (server.to_owned(), recipe, connection.session().region().sentence)
    });
    explained.collect()
}

/// Records from a thread of its own, so that waiting for input and waiting for servers do not hold each other up.
pub(super) fn read(mut input: Box<dyn BufRead + Send>, whole: bool) -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (send, receive) = mpsc::sync_channel(AHEAD);
    std::thread::spawn(move || {
        if whole {
            let mut all = Vec::new();
            let read = input.read_to_end(&mut all).map(|_| all);
            return drop(send.send(read));
        }
        loop {
            let mut line = Vec::new();
            match input.read_until(b'\n', &mut line) {
                Ok(0) => break,
                Ok(_) => {
                    if line.last() == Some(&b'\n') {
                        line.pop();
                    }
                    if send.send(Ok(line)).is_err() {
                        break;
                    }
                }
                Err(error) => {
                    let _ = send.send(Err(error));
                    break;
                }
            }
        }
    });
    receive
}

/// Prints numbers as they become durable.
struct Printer {
    quiet: bool,
    printed: u64,
}

impl Printer {
    fn up_to(&mut self, below: u64) -> Result<(), Fail> {
        if !self.quiet && self.printed < below {
            let mut out = io::stdout().lock();
            let lines: String = (self.printed..below).map(|n| format!("{n}\n")).collect();
            out.write_all(lines.as_bytes())
                .and_then(|()| out.flush())
                .context(|| "standard output cannot be written".into())?;
        }
        self.printed = below;
        Ok(())
    }
}

fn append(
    group: &mut Group<SessionConnection>,
    records: mpsc::Receiver<io::Result<Vec<u8>>>,
    depth: usize,
    out: &mut Printer,
) -> Result<(), Fail> {
    let mut waiting: VecDeque<Vec<u8>> = VecDeque::new();
    let mut over = false;
    let said = |e: GroupError| Fail::new(e.to_string());
    loop {
        // As much as there is, and if there is nothing: first what is under way, then the next record.
        while !over && waiting.len() < depth {
            let next = match records.try_recv() {
                Ok(next) => Some(next),
                Err(mpsc::TryRecvError::Disconnected) => None,
                Err(mpsc::TryRecvError::Empty) if !waiting.is_empty() => break,
                Err(mpsc::TryRecvError::Empty) => {
                    let next = group.next();
                    group.wait(next).map_err(said)?;
                    out.up_to(group.acknowledged())?;
                    records.recv().ok()
                }
            };
            match next {
                Some(record) => waiting.push_back(record.context(|| "the input cannot be read".into())?),
                None => over = true,
            }
        }
        if waiting.is_empty() {
            break;
        }
        while group.next() - group.acknowledged() >= depth as u64 {
            group.poll().map_err(said)?;
        }
        let batch: Vec<&[u8]> = waiting.iter().map(Vec::as_slice).collect();
        match group.begin_append_batch(&batch) {
            Ok((_, count)) => drop(waiting.drain(..count)),
            Err(error) => {
                // What is under way may still become durable, and then counts.
                if matches!(error, GroupError::Append(AppendError::Full { .. } | AppendError::TooLong { .. }))
                {
                    let next = group.next();
                    let _ = group.wait(next);
                }
                out.up_to(group.acknowledged())?;
                return Err(Fail::new(format!("record {} is not appended: {error}", group.next())));
            }
        }
        let polled = group.poll().map_err(said);
        out.up_to(group.acknowledged())?;
        polled?;
    }
    let next = group.next();
    let waited = group.wait(next).map_err(said);
    out.up_to(group.acknowledged())?;
    waited
}
