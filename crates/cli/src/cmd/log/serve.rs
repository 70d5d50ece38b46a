//! `rem log serve`.

use std::path::PathBuf;

use remanence_persist::Config;
use remanence_persist::taxonomy::Buffers;
use remanence_pmem::PersistenceDomain;
use remanence_remote::ServerOptions;
use remanence_remotelog::format::Geometry;
use remanence_remotelog::format::superblock::file_options;
use remanence_remotelog::{LogServer, New};
use remanence_remotelog::{Mode, OpenError};
use serde_json::json;

use crate::args::{self, Size};
use crate::device;
use crate::fail::Fail;
use crate::serving::{print_line, serve_until_asked, tell_token};
use crate::signals::Stop;
use crate::ui::{self, Mood};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem log serve orders.log --size 256M            a log of 256M in a file, made if it is not there
  rem log serve /mnt/pmem/orders.log --size 4G --mode compound
  rem log serve orders.log --listen 192.0.2.7 --token-file orders.token
                                                  reachable from other machines that have the token, which is made
                                                  if the file is not there

Without a token only this machine may reach the server, unless you say --insecure. RoCEv2 itself neither encrypts nor
authenticates: on a network that others can forge packets on, a token does not help.")]
pub(super) struct Args {
    /// File of the log; made if it is not there
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Size of a new file
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    size: Size,
    /// How the end of a new log is found: by checksums (one update for an append), or by a word (two, in order)
    #[arg(long, value_name = "MODE", default_value = "singleton", value_parser = ["singleton", "compound"])]
    mode: String,
    /// Longest record of a new log, with 32 bytes of header [default: a sixteenth of the log]
    #[arg(long, value_name = "SIZE")]
    segment: Option<Size>,
    /// Address to listen on; port 0 takes one that is free
    #[arg(long, value_name = "HOST[:PORT]", default_value = "127.0.0.1")]
    listen: args::Server,
    #[command(flatten)]
    access: args::AccessOptions,
    /// Clients of one address at a time; others may be a quarter more
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    clients: u16,
    /// Where messages are received: in volatile memory, or in the file, which lets clients SEND one-sidedly
    #[arg(long, value_name = "PLACE", default_value = "dram", value_parser = ["dram", "pm"])]
    buffers: String,
    /// Take your word for the persistence domain, where the machine does not tell
    #[arg(long, value_name = "DOMAIN", value_parser = ["adr", "eadr", "wsp"])]
    declare: Option<String>,
    /// Take your word for all that persistence depends on, like DMP+no-DDIO+PM: to try the methods of another machine
    #[arg(long, value_name = "CONFIGURATION", conflicts_with = "buffers")]
    configuration: Option<Config>,
    /// On a disk, write what is acknowledged to a journal in the file, of that size, and pages later; `off`: a new file has
    /// none [default: a new file has one of an eighth of its size, 64M at most]
    #[arg(long, value_name = "SIZE|off")]
    journal: Option<args::Journal>,
    /// Give up a damaged record of that number and everything behind it
    #[arg(long, value_name = "SEQUENCE")]
    cut: Option<u64>,
    /// Print JSON: one line when ready, one at the end or when the medium has failed
    #[arg(long)]
    json: bool,
    /// Stop when standard input ends: for programs that start servers
    #[arg(long, hide = true)]
    stop_on_eof: bool,
}

/// What who has no token could do, where none is asked for.
pub(super) const STRANGERS: &str = "read and write the log";

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let asked = Stop::listen()?;
    let listen = args.listen.resolve()?;
    args.access.check(listen.ip(), STRANGERS, None)?;
    let context = device::open_at(listen.ip())?;
    let mut file = file_options().journal(args::Journal::or_default(args.journal)).only_durable(true);
    if let Some(domain) = args.declare.as_deref().and_then(PersistenceDomain::from_name) {
        file = file.declare(domain);
    }
    if !args.file.exists() {
        fits(args)?;
        file = file.create(args.size.0);
    }
    let token = args.access.token()?;
    let region = file.open(&args.file).map_err(|e| Fail::new(e.to_string()))?;
    let mut options =
        ServerOptions::new(&context, region.clone(), listen.port()).serves("a log").sessions(args.clients);
    options = args.access.guard(options, token.as_ref().map(|(token, _)| token));
    options = match args.configuration {
        Some(config) => options.declare(config),
        None if args.buffers == "pm" => options.buffers(Buffers::Pm),
        None => options,
    };
    let mut random = [0; 24];
    getrandom::fill(&mut random).map_err(|e| Fail::new(format!("the system gives no random bytes: {e}")))?;
    let mode: Mode = args.mode.parse().map_err(Fail::new)?;
    let new = New { mode, segment: args.segment.map(|s| s.0), random };
    let unserved =
        |e: &dyn std::fmt::Display| Fail::new(format!("{} is not served: {e}", args.file.display()));
    let mut server = LogServer::bind(options, &region, &new).map_err(|e| {
        if region.is_new() {
            // No log was made in it, and the next attempt would ask what it is.
            let _ = std::fs::remove_file(&args.file);
        }
        unserved(&e)
    })?;
    if let Some(sequence) = args.cut {
        server.give_up_from(sequence).map_err(|e| unserved(&e))?;
    }
    let status = server.status().map_err(|e| unserved(&e))?;
    let durable = region.domain().guarantee().is_durable();
    if args.json {
        let ready = json!({
            "event": "ready",
            "address": server.addr().to_string(),
            "pid": std::process::id(),
            "file": args.file,
            "made": server.made(),
            "uuid": status.superblock.uuid.to_string(),
            "mode": status.superblock.mode.name(),
            "size": status.superblock.geometry.size,
            "segment": status.superblock.geometry.segment,
            "first": status.state.head.sequence,
            "next": status.tail.sequence,
            "replayed": server.recovered().applied,
            "damage": status.damage.map(|d| d.to_string()),
            "configuration": server.config().to_string(),
            "token_file": token.as_ref().and_then(|(_, file)| *file),
            "token_fingerprint": token.as_ref().map(|(token, _)| token.fingerprint().to_string()),
            "durable": durable,
            "survives": server.sentence(),
        });
        print_line(&ready.to_string())?;
    } else {
        let what = if server.made() { "made just now" } else { "recovered" };
        let records = match status.tail.sequence - status.state.head.sequence {
            0 => "no records".to_owned(),
            n => format!("{} from {}", ui::count(n as usize, "record"), status.state.head.sequence),
        };
        let log = format!(
            "{}, {}, {}, {records} ({what})",
            args.file.display(),
            ui::bytes(status.superblock.geometry.size),
            status.superblock.mode.name()
        );
        ui::line(Mood::Good, "log", log);
        ui::line(Mood::Good, "address", server.addr());
        let with = tell_token(token.as_ref(), server.addr().ip(), "log");
        ui::line(if durable { Mood::Good } else { Mood::Note }, "durability", server.summary());
        if let Some(damage) = status.damage {
            ui::line(Mood::Bad, "damage", damage);
        }
        ui::remark(format!(
            "\n  rem log append {0}{with}\n  rem log tail {0}{with} --follow\n",
            server.addr()
        ));
        ui::remark("  Ctrl-C stops the server; the log in the file stays.");
    }
    let stats = serve_until_asked(&asked, args.stop_on_eof, &args.file, args.json, |stop| server.run(stop))?;
    if args.json {
        let stopped = json!({
            "event": "stopped",
            "clients": stats.sessions,
            "expelled": stats.expelled,
            "wrong_tokens": stats.wrong_tokens,
            "messages": stats.served.messages,
        });
        print_line(&stopped.to_string())?;
    } else {
        ui::remark(format!("stopped after {}", ui::count(stats.sessions as usize, "client")));
    }
    Ok(())
}

/// Whether a new log may have the size that was asked for.
fn fits(args: &Args) -> Result<(), Fail> {
    let (size, segment) = (args.size.0, args.segment.map(|s| s.0));
    let geometry = match segment {
        Some(segment) => Geometry::new(size, segment),
        None => Geometry::for_size(size),
    };
    match (geometry, segment) {
        (Some(_), _) => Ok(()),
        (None, Some(segment)) => Err(Fail::new(OpenError::BadGeometry { size, segment }.to_string())),
        (None, None) => {
            Err(Fail::new(format!("{size} bytes are too few for a log; ask for --size 64K or more")))
        }
    }
}
