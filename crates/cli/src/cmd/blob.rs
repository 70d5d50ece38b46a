//! `rem blob`: what is on the servers.

use remanence_pool::State;
use remanence_pool::client::Event;
use serde_json::json;

use super::put::blob_name;
use crate::args::{self, Servers};
use crate::device;
use crate::fail::Fail;
use crate::ui::{self, Bar};

crate::cmd::subcommands! {
    /// List the blobs of one server
    List(List) => list,
    /// Delete a blob on all servers
    Delete(Delete) => delete,
    /// Bring one server up to date from the others
    Sync(Sync) => sync,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  rem blob list -s 127.0.0.1 --token-file pool.token")]
struct List {
    #[command(flatten)]
    servers: Servers,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  rem blob delete -s a,b,c notes.txt")]
struct Delete {
    /// Name of the blob
    name: String,
    #[command(flatten)]
    servers: Servers,
    /// On how many servers it must be durably gone, a majority at least [default: all]
    #[arg(long, value_name = "K")]
    quorum: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  rem blob sync --to b -s a,c          after b was away")]
struct Sync {
    /// The server to bring up to date
    #[arg(long, value_name = "HOST[:PORT]")]
    to: args::Server,
    #[command(flatten)]
    servers: Servers,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn list(args: &List) -> Result<(), Fail> {
    if args.servers.servers.len() != 1 {
        return Err(Fail::new("a list is of one server; name one with -s"));
    }
    let mut client = device::connect(&args.servers, 1)?;
    let fail = |e: remanence_pool::client::Lost| Fail::new(e.to_string());
    let info = client.stat(0).map_err(fail)?;
    let catalogue = client.list(0).map_err(fail)?;
    let live = catalogue.iter().filter_map(|listing| match listing.state {
        State::Live { len, digest } => Some((listing, len, digest)),
        State::Deleted => None,
    });
    if args.json {
        let blobs: Vec<_> = live
            .map(|(listing, len, digest)| {
                json!({
                    "name": listing.name.as_str(),
                    "version": listing.version.counter,
                    "len": len,
                    "blake3": digest.to_string(),
                })
            })
            .collect();
        return ui::print_json(&json!({
            "server": client.name(0),
            "uuid": info.uuid.to_string(),
            "size": info.size,
            "free": info.free,
            "durable": info.guarantee.is_durable(),
            "survives": info.survives,
            "blobs": blobs,
        }));
    }
    for (listing, len, digest) in live {
        let digest = digest.to_string();
        ui::print(format_args!(
            "{:>10}  {}  v{:<4} {}",
            ui::bytes(len),
            &digest[..16],
            listing.version,
            listing.name
        ));
    }
    let blobs = ui::count(info.blobs as usize, "blob");
    ui::remark(format!(
        "{blobs}, {} of {} free; {}",
        ui::bytes(info.free),
        ui::bytes(info.capacity),
        info.survives
    ));
    Ok(())
}

fn delete(args: &Delete) -> Result<(), Fail> {
    let name = blob_name(&args.name)?;
    let quorum = args.quorum.unwrap_or(args.servers.servers.len());
    let mut client = device::connect(&args.servers, quorum)?;
    let gone = client.delete(&name, quorum).map_err(|e| Fail::new(e.to_string()))?;
    if args.json {
        ui::print_json(&json!({ "name": name.as_str(), "deleted_on": gone }))
    } else {
        ui::print(format_args!("\"{name}\" is durably gone on {}", ui::count(gone, "server")));
        Ok(())
    }
}

fn sync(args: &Sync) -> Result<(), Fail> {
    let tokens = args.servers.reach.tokens.load()?;
    let to = args.to.resolve()?;
    let from = device::resolve(&args.servers)?;
    if from.iter().all(|(_, from)| *from == to) {
        return Err(Fail::new(format!(
            "{} is to be brought up to date from others: name at least one of them with -s",
            args.to
        )));
    }
    let context = device::open_towards(to.ip(), args.servers.reach.local)?;
    let mut sources = device::connect_on(&context, from, tokens.clone(), 1)?;
    let mut target = device::connect_on(&context, vec![(args.to.to_string(), to)], tokens, 1)?;
    let bar = Bar::bytes(None, args.json);
    let report = target.catch_up(&mut sources, &mut |event| {
        if let Event::Sent(bytes) = event {
            bar.add(bytes);
        }
    });
    bar.done();
    let report = report.map_err(|e| Fail::new(e.to_string()))?;
    if args.json {
        return ui::print_json(&json!({
            "server": args.to.to_string(),
            "copied": report.copied,
            "bytes": report.bytes,
            "deleted": report.deleted,
            "seconds": report.elapsed.as_secs_f64(),
        }));
    }
    ui::print(format_args!(
        "{} is up to date: {} copied ({}), {} deleted, in {}",
        args.to,
        ui::count(report.copied, "blob"),
        ui::bytes(report.bytes),
        report.deleted,
        ui::time(report.elapsed)
    ));
    Ok(())
}
