//! `rem log append`.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write as _};
use std::path::PathBuf;
use std::sync::mpsc;

use remanence_remote::Reactor;
use remanence_remotelog::{AsyncLog, GroupError};
use serde_json::json;

use super::Write;
use crate::fail::{Context as _, Fail};
use crate::{input, ui};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  echo 'paid 17' | rem log append 127.0.0.1
  rem log append a,b,c --acks 2 < orders.txt
  rem log append 127.0.0.1 --file photo.jpg --whole

Each line is a record. Its number is printed when it is durable on --acks servers, and not before. A
server that is lost is connected to again meanwhile; at the end, those that are there are waited for
until they have all of the log. To write to a log shuts its earlier writer out.")]
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
    let (log, reactor, _background) = args.write.open_in_background()?;
    say_what_opening_did(&log);
    let first = log.next();
    let write = args.write.clone();
    let longest = move || write.longest();
    let mut out = Printer { quiet: args.json, printed: first };
    let appended = append(&log, &reactor, read(input, args.whole, longest), args.depth, &mut out);
    let (last, quorum) = (log.acknowledged(), log.quorum());
    let recipe = log.recipes();
    let closed = appended.and_then(|()| close(&log, &reactor));
    let lost = log.lost();
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

/// Each server that is not as it should be, and what becomes of it.
fn say_what_opening_did(log: &AsyncLog) {
    let (opened, behind) = (log.opened(), log.behind());
    for (server, why) in &opened.lost {
        anstream::eprintln!("rem: {server}: {why}; going on with the rest");
    }
    for (server, count) in opened.copied.iter().filter(|(server, _)| !behind.contains(server)) {
        let records = ui::count(*count as usize, "record");
        anstream::eprintln!("rem: {server} lacked {records}, and has got them");
    }
    for server in &behind {
        anstream::eprintln!("rem: {server} lacks records, and is given them meanwhile");
    }
    for (server, count) in &opened.cut {
        let records = ui::count(*count as usize, "record");
        anstream::eprintln!("rem: {server} had {records} that had never been acknowledged; they are cut off");
    }
}

/// Ends when each server that is there has the whole log: who is stopped before has lost nothing that was acknowledged, and leaves those
/// servers to a later writer.
fn close(log: &AsyncLog, reactor: &Reactor) -> Result<(), Fail> {
    let said = |e: GroupError| Fail::new(e.to_string());
    let behind = log.behind();
    if !behind.is_empty() {
        anstream::eprintln!("rem: waiting until {} have what they lacked", behind.join(", "));
        reactor.block_on(log.caught_up()).map_err(said)?;
    }
    reactor.block_on(log.clone().close()).map_err(said)
}

/// Records from a thread of its own, so that waiting for input and waiting for servers do not hold each other up. A record that is longer
/// than 64 MiB must not be longer than `longest` says.
pub(super) fn read(
    mut input: Box<dyn BufRead + Send>,
    whole: bool,
    mut longest: impl FnMut() -> Result<u64, Fail> + Send + 'static,
) -> mpsc::Receiver<Result<Vec<u8>, Fail>> {
    let (send, receive) = mpsc::sync_channel(AHEAD);
    let end = (!whole).then_some(b'\n');
    std::thread::spawn(move || {
        loop {
            let record = input::piece(&mut input, "the input", end, "a record of this log", &mut longest);
            let is_last = whole || record.is_err();
            let Some(record) = record.transpose() else { break };
            if send.send(record).is_err() || is_last {
                break;
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

/// Has the records appended, so many under way at once, and prints their numbers as they become durable.
fn append(
    log: &AsyncLog,
    reactor: &Reactor,
    records: mpsc::Receiver<Result<Vec<u8>, Fail>>,
    depth: u16,
    out: &mut Printer,
) -> Result<(), Fail> {
    let (begun, batches) = mpsc::channel();
    let (give, free) = mpsc::channel();
    let (to, on) = (log.clone(), reactor.clone());
    // Who waits for input is not waited for: what fails meanwhile ends this.
    std::thread::spawn(move || begin_all(&to, &on, &records, usize::from(depth), &begun, &free));
    for batch in batches {
        let (last, count) = match batch {
            Ok(batch) => batch,
            Err(refused) => {
                // What is under way may still become durable, and then counts.
                let _ = reactor.block_on(log.wait(log.next()));
                out.up_to(log.acknowledged())?;
                return Err(refused);
            }
        };
        let waited = reactor.block_on(log.wait(last + 1));
        out.up_to(log.acknowledged())?;
        waited.map_err(|e| Fail::new(e.to_string()))?;
        // Who reads the input may have come to its end.
        let _ = give.send(count);
    }
    Ok(())
}

/// The number of the last record of a batch that has its place, and how many there are; or why the next one has none, which is the end.
type Begun = Result<(u64, usize), Fail>;

/// Begins to append what there is to be read, in batches, while fewer than `depth` records are under way; `free` says which no longer are.
fn begin_all(
    log: &AsyncLog,
    reactor: &Reactor,
    records: &mpsc::Receiver<Result<Vec<u8>, Fail>>,
    depth: usize,
    begun: &mpsc::Sender<Begun>,
    free: &mpsc::Receiver<usize>,
) {
    let mut room = depth;
    while let Ok(first) = records.recv() {
        room += free.try_iter().sum::<usize>();
        while room == 0 {
            let Ok(count) = free.recv() else { return };
            room += count;
        }
        let more = records.try_iter().take(room - 1);
        let (mut batch, mut unread) = (Vec::new(), None);
        for record in std::iter::once(first).chain(more) {
            match record {
                Ok(record) => batch.push(record),
                Err(error) => unread = Some(error),
            }
        }
        if !batch.is_empty() {
            let count = batch.len();
            room -= count;
            let last = reactor.block_on(log.begin_append_batch(batch));
            let last = last.map_err(|e| Fail::new(format!("record {} is not appended: {e}", log.next())));
            let is_over = last.is_err();
            if begun.send(last.map(|last| (last, count))).is_err() || is_over {
                return;
            }
        }
        if let Some(error) = unread {
            let _ = begun.send(Err(error));
            return;
        }
    }
}
