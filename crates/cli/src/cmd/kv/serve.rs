//! `rem kv serve`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use remanence_kv::view::Mode;
use remanence_kv_live::{Server, ServerOptions};
use remanence_metrics::{Endpoint, Source};
use remanence_persist::Config;
use remanence_pmem::PersistenceDomain;
use remanence_remote::Token;
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
  rem kv serve users.kv --size 1G                 a store of 1G in a file, made if it is not there
  rem kv serve /mnt/pmem/users.kv --size 64G      on persistent memory
  rem kv serve users.kv --mode erda               as in the paper: acknowledged is visible, and not yet durable
  rem kv serve users.kv --listen 192.0.2.7 --token-file users.token
                                                  reachable from other machines that have the token, which is made
                                                  if the file is not there
  rem kv serve users.kv --token-file users.token --reader-token-file readers.token
                                                  who has the second token may look, and change nothing
  rem kv serve users --listen 127.0.0.1:7001 --members 127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003
                                                  one of three members of a store; start the other two likewise, each
                                                  with a directory and an address of its own

A store on several members goes on while most of them are there, and loses nothing acknowledged while fewer disks than
acknowledge are lost at a time (of three members two acknowledge). A member that returns, or starts with an empty directory
in place of a lost one, is rebuilt by the others while clients go on. With --token-file the members need a token among
themselves, too (--members-token-file): they write each other's logs, which no client may.

Without a token only this machine may reach the server, unless you say --insecure. RoCEv2 itself neither encrypts nor
authenticates: on a network that others can forge packets on, a token does not help.")]
pub(super) struct Args {
    /// File of the store, or directory of a member; made if it is not there
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    /// Size of a new store, or to which one that is there is to grow; none shrinks [default: 256M for a new one]
    #[arg(long, value_name = "SIZE")]
    pub(super) size: Option<Size>,
    /// Be one of several servers of a store: all of them, this one too, as HOST:PORT, in one order everywhere
    #[arg(long, value_name = "HOST[:PORT]", value_delimiter = ',')]
    pub(super) members: Vec<args::Server>,
    #[command(flatten)]
    pub(super) member: super::member::Membership,
    /// For how many keys the first table of a new store is made; it grows when it must [default: one for each KiB]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) keys: Option<u64>,
    /// What an acknowledged write is: `durable`, or visible and atomic as in the paper (`erda`)
    #[arg(long, value_name = "MODE", default_value = "durable", value_parser = ["durable", "erda"])]
    pub(super) mode: String,
    /// The longest value that the server writes, sent along with the request; longer ones the client writes into room that it
    /// asks for. 0: every one, as in the paper and with `--mode erda` [default and most: 8K]
    #[arg(long, value_name = "SIZE")]
    pub(super) inline_max: Option<Size>,
    /// Address to listen on; port 0 takes one that is free
    #[arg(long, value_name = "HOST[:PORT]", default_value = "127.0.0.1")]
    pub(super) listen: args::Server,
    #[command(flatten)]
    pub(super) access: args::AccessOptions,
    /// Let clients in that have the token of this file, too, to look and to change nothing; it is made if it is not there
    #[arg(long, value_name = "FILE")]
    pub(super) reader_token_file: Option<PathBuf>,
    /// Clients of one address at a time; others may be a quarter more
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(super) clients: u16,
    /// Cut a client off that holds others up for so many milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    pub(super) lease: u64,
    /// Clean logs only when `rem kv compact` asks for it
    #[arg(long)]
    pub(super) no_clean: bool,
    /// Take your word for the persistence domain, where the machine does not tell
    #[arg(long, value_name = "DOMAIN", value_parser = ["adr", "eadr", "wsp"])]
    pub(super) declare: Option<String>,
    /// Take your word for all that persistence depends on, like DMP+no-DDIO: to try the methods of another machine
    #[arg(long, value_name = "CONFIGURATION")]
    pub(super) configuration: Option<Config>,
    /// On a disk, write what is acknowledged to a journal in the file, of that size, and pages later; `off`: a new file has
    /// none [default: a new file has one of an eighth of its size, 64M at most]
    #[arg(long, value_name = "SIZE|off")]
    pub(super) journal: Option<args::Journal>,
    /// Serve metrics for Prometheus at http://ADDRESS/metrics, without authentication
    #[arg(long, value_name = "ADDRESS")]
    pub(super) metrics: Option<SocketAddr>,
    /// Print JSON: one line when ready, one at the end or when the medium has failed
    #[arg(long)]
    pub(super) json: bool,
    /// Stop when standard input ends: for programs that start servers
    #[arg(long, hide = true)]
    pub(super) stop_on_eof: bool,
}

/// Bytes that the file of a store is to have at least; `None`: those that it has.
pub(super) fn size_of(asked: Option<Size>, file: &Path) -> Option<u64> {
    asked.map(|size| size.0).or_else(|| (!file.exists()).then_some(NEW))
}

/// Bytes of a new store of which nothing is said.
const NEW: u64 = 256 << 20;

/// What who has no token could do, where none is asked for.
pub(super) const STRANGERS: &str = "read and write the store";

impl Args {
    fn options(&self, port: u16, token: Option<&Token>, readers: Option<&Token>) -> ServerOptions {
        let mode = if self.mode == "erda" { Mode::Erda } else { Mode::Durable };
        let mut options = ServerOptions::file(&self.file)
            .mode(mode)
            .port(port)
            .clients(self.clients)
            .lease(Duration::from_millis(self.lease))
            .journal(args::Journal::or_default(self.journal))
            .clean_by_itself(!self.no_clean);
        if let Some(size) = size_of(self.size, &self.file) {
            options = options.size(size);
        }
        if let Some(keys) = self.keys {
            options = options.keys(keys);
        }
        if let Some(Size(max)) = self.inline_max {
            options = options.inline_max(u32::try_from(max).unwrap_or(u32::MAX));
        }
        if let Some(domain) = self.declare.as_deref().and_then(PersistenceDomain::from_name) {
            options = options.declare(domain);
        }
        if let Some(config) = self.configuration {
            options = options.configuration(config);
        }
        if let Some(readers) = readers {
            options = options.reader_token(readers.clone());
        }
        match token {
            Some(token) => options.token(token.clone()),
            None if self.access.is_insecure() => options.insecure(),
            None => options,
        }
    }
}

impl Args {
    /// The token of those who may only look, if there is one for them.
    pub(super) fn reader_token(&self, for_writers: bool) -> Result<Option<Token>, Fail> {
        if !for_writers && self.reader_token_file.is_some() {
            return Err(Fail::new(
                "a token for readers needs one for writers beside it; name a file for that with --token-file",
            ));
        }
        self.reader_token_file.as_deref().map(args::token_in).transpose()
    }

    /// Where Prometheus comes, if it may.
    pub(super) fn endpoint(&self, source: Source) -> Result<Option<Endpoint>, Fail> {
        let serve = |address| {
            Endpoint::serve(address, vec![source, remanence_metrics::process()])
                .map_err(|e| Fail::new(format!("no metrics are served at {address}: {e}")))
        };
        self.metrics.map(serve).transpose()
    }
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    if !args.members.is_empty() {
        return super::member::run(args);
    }
    super::member::refuse(&args.file)?;
    let asked = Stop::listen()?;
    let listen = args.listen.resolve()?;
    args.access.check(listen.ip(), STRANGERS, args.metrics)?;
    let context = device::open_at(listen.ip())?;
    let token = args.access.token()?;
    let readers = args.reader_token(token.is_some())?;
    let options = args.options(listen.port(), token.as_ref().map(|(token, _)| token), readers.as_ref());
    let mut server = Server::bind(&context, options)
        .map_err(|e| Fail::new(format!("{} is not served: {e}", args.file.display())))?;
    let (stats, recovered) = (server.metrics().read(), *server.recovered());
    let durable = server.is_durable();
    // Ends with the server.
    let endpoint = args.endpoint(server.metrics().source())?;
    let metrics = endpoint.as_ref().map(|endpoint| format!("http://{}/metrics", endpoint.address()));
    if args.json {
        let ready = json!({
            "event": "ready",
            "address": server.addr().to_string(),
            "metrics": metrics,
            "pid": std::process::id(),
            "file": args.file,
            "made": server.made(),
            "grown_from": server.grown_from(),
            "mode": args.mode,
            "size": stats.size,
            "boot": stats.boot,
            "entries": stats.usage.entries,
            "recovered": {
                "entries": recovered.entries,
                "pending": recovered.pending,
                "completed": recovered.completed,
                "rolled_back": recovered.rolled_back,
                "doubled": recovered.doubled,
                "freed": recovered.freed,
                "mended": recovered.mended,
                "lost": recovered.lost,
                "upgraded": recovered.upgraded,
            },
            "configuration": server.config().to_string(),
            "token_file": token.as_ref().and_then(|(_, file)| *file),
            "token_fingerprint": token.as_ref().map(|(token, _)| token.fingerprint().to_string()),
            "reader_token_file": args.reader_token_file,
            "reader_token_fingerprint": readers.as_ref().map(|token| token.fingerprint().to_string()),
            "durable": durable && args.mode == "durable",
            "survives": server.sentence(),
        });
        print_line(&ready.to_string())?;
    } else {
        let what = match server.grown_from() {
            Some(bytes) => format!("recovered, grown from {}", ui::bytes(bytes)),
            None if server.made() => "made just now".to_owned(),
            None => "recovered".to_owned(),
        };
        let keys = match stats.usage.entries {
            0 => "no keys".to_owned(),
            n => ui::count(n as usize, "entry").replace("entrys", "entries"),
        };
        ui::line(
            Mood::Good,
            "store",
            format!("{}, {}, {keys} ({what})", args.file.display(), ui::bytes(stats.size)),
        );
        if recovered.pending + recovered.doubled + recovered.freed > 0 {
            ui::line(
                Mood::Note,
                "recovery",
                format!(
                    "{} writes were under way: {} were whole and count, {} went back to the version before; {} moves finished, \
                     {} regions freed",
                    recovered.pending,
                    recovered.completed,
                    recovered.rolled_back,
                    recovered.doubled,
                    recovered.freed
                ),
            );
        }
        if recovered.upgraded {
            ui::line(
                Mood::Note,
                "format",
                "upgraded: programs that know only the format before refuse the file now",
            );
        }
        if recovered.mended + recovered.lost > 0 {
            let text = format!(
                "damaged were {}, which are put right, and {}, whose keys say that they are damaged: `rem kv verify` names them",
                ui::count(recovered.mended as usize, "word"),
                recovered.lost
            );
            ui::line(Mood::Bad, "metadata", text);
        }
        ui::line(Mood::Good, "address", server.addr());
        if let Some(metrics) = &metrics {
            ui::line(Mood::Good, "metrics", metrics);
        }
        let with = tell_token(token.as_ref(), server.addr().ip(), "store");
        if let (Some(token), Some(file)) = (&readers, &args.reader_token_file) {
            let place = format!("in {} (fingerprint {}): to look only", file.display(), token.fingerprint());
            ui::line(Mood::Good, "readers", place);
        }
        if args.mode == "erda" {
            let text = "an acknowledged write is visible and atomic, not durable (--mode erda)";
            ui::line(Mood::Note, "durability", text);
        } else {
            let mood = if durable { Mood::Good } else { Mood::Note };
            ui::line(mood, "durability", server.summary());
        }
        let to = server.addr();
        ui::remark(format!("\n  rem kv put {to} KEY VALUE{with}\n  rem kv get {to} KEY{with}\n"));
        ui::remark("  Ctrl-C stops the server; the store in the file stays.");
    }
    let stats = serve_until_asked(&asked, args.stop_on_eof, &args.file, args.json, |stop| server.run(stop))?;
    if args.json {
        let mut stopped = super::stats::object(&stats);
        stopped["event"] = "stopped".into();
        print_line(&stopped.to_string())?;
    } else {
        ui::remark(format!(
            "stopped; {} and {} written",
            ui::count(stats.usage.entries as usize, "entry").replace("entrys", "entries"),
            ui::count((stats.server.reserved + stats.server.written) as usize, "change")
        ));
    }
    Ok(())
}
