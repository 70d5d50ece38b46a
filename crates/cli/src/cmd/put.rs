//! `rem put`: files or a stream, durable on one or several servers.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use remanence_pool::BlobName;
use remanence_pool::client::{Client, Event, Source, Upload};
use serde_json::json;

use crate::args::Servers;
use crate::device;
use crate::fail::{Context as _, Fail};
use crate::ui::{self, Bar};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem put -s 127.0.0.1 --token-file pool.token notes.txt
  tar c src | rem put -s a,b,c --quorum 2 --name src.tar -
  rem put -s a,b,c -r src

A blob is durable on every server that was named, or on --quorum of them, before rem says so. Name all the servers
that keep it each time, also those that are away: a majority of them decides what was put last.")]
pub(crate) struct Args {
    /// Files, and with -r directories; `-` is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    servers: Servers,
    /// Name of the blob, if there is one file only [default: the path as given]
    #[arg(long)]
    name: Option<String>,
    /// How many servers must have a blob durably, a majority at least [default: all]
    #[arg(long, value_name = "K")]
    quorum: Option<usize>,
    /// Put directories with everything in them
    #[arg(short, long)]
    recursive: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A file to put, under its name.
pub(crate) struct Item {
    pub(crate) name: BlobName,
    /// `None` is standard input.
    pub(crate) path: Option<PathBuf>,
    pub(crate) len: Option<u64>,
}

impl Item {
    /// Opens it: when its turn has come, as there may be more files than descriptors.
    pub(crate) fn open(&self) -> Result<Source<'static>, (String, io::Error)> {
        let reader: Box<dyn io::Read + Send> = match &self.path {
            None => Box::new(io::stdin()),
            Some(path) => {
                Box::new(File::open(path).map_err(|e| (format!("{} cannot be read", path.display()), e))?)
            }
        };
        Ok(Source { name: self.name.clone(), len: self.len, reader, version: None })
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Fail> {
    let items = items(args)?;
    let servers = args.servers.servers.len();
    let quorum = args.quorum.unwrap_or(servers);
    let mut client = device::connect(&args.servers, quorum)?;
    let known: Option<u64> = items.iter().map(|item| item.len).sum();
    let bar = Bar::bytes(known, args.json);
    for lost in client.lost() {
        bar.say(format!("{lost}; going on with the rest"));
    }
    let mut blobs = Vec::new();
    let upload = Upload { quorum, servers: None };
    let report = client.put(items.iter().map(Item::open), &upload, &mut |event| match event {
        Event::Sent(bytes) => bar.add(bytes),
        Event::Lost(lost) => bar.say(format!("{lost}; going on with the rest")),
        Event::Durable { name, version, len, digest, took, copies } => blobs.push(json!({
            "name": name.as_str(),
            "version": version.counter,
            "len": len,
            "blake3": digest.to_string(),
            "copies": copies,
            "seconds": took.as_secs_f64(),
        })),
    });
    bar.done();
    let report = report.map_err(|e| Fail::new(e.to_string()))?;
    let (durable, survives) = survival(&client);
    if args.json {
        let servers: Vec<_> = client.live().map(|s| client.name(s).to_owned()).collect();
        let out = json!({
            "blobs": blobs,
            "bytes": report.bytes,
            "seconds": report.elapsed.as_secs_f64(),
            "quorum": quorum,
            "servers": servers,
            "lost": client.lost().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "durable": durable,
            "survives": survives,
        });
        ui::print_json(&out)?;
    } else {
        for blob in blobs.iter().take(8) {
            ui::remark(format!(
                "{}  {}",
                blob["blake3"].as_str().unwrap_or_default(),
                blob["name"].as_str().unwrap_or_default()
            ));
        }
        if blobs.len() > 8 {
            ui::remark(format!("… and {} more", blobs.len() - 8));
        }
        let word = if durable { "durable" } else { "stored, not durable," };
        let full = report.blobs - report.incomplete;
        let on = match (full, report.incomplete) {
            (_, 0) => format!("on {}", ui::count(servers, "server")),
            (0, _) => format!("on at least {quorum} of {servers} servers"),
            (full, part) => format!("on {servers} servers ({full}) or at least {quorum} of them ({part})"),
        };
        ui::print(format_args!(
            "{}, {}, {word} {on} in {} ({})",
            ui::count(report.blobs, "blob"),
            ui::bytes(report.bytes),
            ui::time(report.elapsed),
            ui::rate(report.bytes, report.elapsed)
        ));
        ui::wrap(&survives, 100).into_iter().for_each(ui::remark);
    }
    Ok(())
}

/// Whether the weakest server makes anything durable, and what its data survives.
pub(crate) fn survival(client: &Client) -> (bool, String) {
    let infos: Vec<_> = client.live().filter_map(|s| client.info(s)).collect();
    let weakest = infos.iter().find(|info| !info.guarantee.is_durable()).or(infos.first());
    weakest.map_or((false, String::new()), |info| (info.guarantee.is_durable(), info.survives.clone()))
}

fn items(args: &Args) -> Result<Vec<Item>, Fail> {
    let named = args.name.as_deref();
    if named.is_some() && (args.files.len() > 1 || args.files[0].is_dir()) {
        return Err(Fail::new(
            "--name names one blob, and there are several files; leave it out to use their paths",
        ));
    }
    let mut items = Vec::new();
    for file in &args.files {
        if file.as_os_str() == "-" {
            let name = named.ok_or_else(|| Fail::new("standard input has no name; give one with --name"))?;
            items.push(Item { name: blob_name(name)?, path: None, len: None });
        } else if file.is_dir() {
            if !args.recursive {
                return Err(Fail::new(format!(
                    "{} is a directory; add -r to put all that is in it",
                    file.display()
                )));
            }
            walk(file, &clean(file)?, &mut items)?;
        } else {
            let name = named.map_or_else(|| clean(file), |name| Ok(name.to_owned()))?;
            items.push(of_file(file, &name)?);
        }
    }
    Ok(items)
}

fn of_file(path: &Path, name: &str) -> Result<Item, Fail> {
    let metadata = fs::metadata(path).context(|| format!("{} cannot be read", path.display()))?;
    // The length of a pipe or a device says nothing.
    let len = metadata.is_file().then_some(metadata.len());
    Ok(Item { name: blob_name(name)?, path: Some(path.to_owned()), len })
}

/// All files below a directory, in the order of their names. Links are not followed: they could go in circles.
pub(crate) fn walk(dir: &Path, prefix: &str, items: &mut Vec<Item>) -> Result<(), Fail> {
    let unreadable = || format!("the directory {} cannot be read", dir.display());
    let entries: Result<Vec<_>, _> = fs::read_dir(dir).context(unreadable)?.collect();
    let mut entries = entries.context(unreadable)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type().context(unreadable)?;
        let file_name = entry.file_name();
        let file_name = file_name.to_str().ok_or_else(|| {
            Fail::new(format!("the name of {} is not UTF-8; rename it", entry.path().display()))
        })?;
        let name = if prefix.is_empty() { file_name.to_owned() } else { format!("{prefix}/{file_name}") };
        if kind.is_dir() {
            walk(&entry.path(), &name, items)?;
        } else if kind.is_file() {
            items.push(of_file(&entry.path(), &name)?);
        }
    }
    Ok(())
}

/// A path as a blob name: without `./` in front and `/` behind.
fn clean(path: &Path) -> Result<String, Fail> {
    let text = path
        .to_str()
        .ok_or_else(|| Fail::new(format!("the name of {} is not UTF-8; use --name", path.display())))?;
    let mut text = text.trim_end_matches('/');
    while let Some(rest) = text.strip_prefix("./") {
        text = rest.trim_start_matches('/');
    }
    Ok(if text == "." { String::new() } else { text.to_owned() })
}

pub(crate) fn blob_name(text: &str) -> Result<BlobName, Fail> {
    BlobName::new(text).map_err(|e| Fail::new(format!("\"{}\" is no blob name: {e}", text.escape_debug())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_becomes_a_name() {
        for (path, name) in [
            ("a", "a"),
            ("./a/b", "a/b"),
            (".//a", "a"),
            ("src/", "src"),
            ("/etc/hosts", "/etc/hosts"),
            (".", ""),
        ] {
            assert_eq!(clean(Path::new(path)).expect("UTF-8"), name);
        }
    }
}
