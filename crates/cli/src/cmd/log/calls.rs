//! `rem log calls`: the persistent log server of paper 001, section 6. Entries are appended by calls to the server's CPU, and
//! not one-sidedly; its file is another one than that of `rem log serve`.

use std::io::{self, BufReader, Write as _};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use remanence_pmem::{FileOptions, PersistenceDomain};
use remanence_rpc::core::config::Config;
use remanence_rpc::core::event::Ended;
use remanence_rpc::durable::Fault;
use remanence_rpc::live::{Nexus, Options as Endpoint};
use remanence_rpc::log::client::Appended;
use remanence_rpc::log::{Client, LogFile, Options, Server, Word};
use remanence_rpc::{Error, Token};
use serde_json::json;

use super::append::read;
use crate::args::{self, Size};
use crate::device;
use crate::fail::{Context as _, Fail};
use crate::serving::{print_line, tell_token, when_asked};
use crate::signals::Stop;
use crate::ui::{self, Mood};

crate::cmd::subcommands! {
    #![command(after_help = "\
Examples:
  rem log calls serve audit.log --word rotating-counter
  rem log calls append 127.0.0.1 < events.txt
  rem log calls tail 127.0.0.1
  rem log calls trim 127.0.0.1 4096

The log server of paper 001: an append is a call, and its answer says that the entry is durable. One server, no
replication (docs/rpc.md). `rem log serve` appends one-sidedly, to several servers.")]

    /// Serve a log in a file; it is made if it is not there
    Serve(Serve) => serve,
    /// Append lines of standard input
    Append(Append) => append,
    /// Print the entries
    Tail(Tail) => tail,
    /// Give up entries, so that their place is free
    Trim(Trim) => trim,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem log calls serve audit.log --size 256M --word rotating-register
  rem log calls serve audit.log --listen 192.0.2.7 --token-file audit.token
                                                  reachable from other machines that have the token, which is made
                                                  if the file is not there

Without a token only this machine may reach the server, unless you say --insecure. RoCEv2 itself neither encrypts nor
authenticates: on a network that others can forge packets on, a token does not help.")]
struct Serve {
    /// File of the log; made if it is not there
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Size of a new file
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    size: Size,
    /// What holds the end of a new log
    #[arg(long, value_name = "WORD", default_value = "plain", value_parser = Word::ALL.map(Word::name))]
    word: String,
    /// Appends that may share one commit, if they have come together and commits are dear; 1 is the paper's
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
    /// Address to listen on
    #[arg(long, value_name = "HOST[:PORT]", default_value = "127.0.0.1")]
    listen: args::Server,
    #[command(flatten)]
    access: args::AccessOptions,
    /// Take your word for the persistence domain, where the machine does not tell
    #[arg(long, value_name = "DOMAIN", value_parser = ["adr", "eadr", "wsp"])]
    declare: Option<String>,
    /// Print JSON: one line when ready, one at the end
    #[arg(long)]
    json: bool,
    /// Stop when standard input ends: for programs that start servers
    #[arg(long, hide = true)]
    stop_on_eof: bool,
}

#[derive(Clone, Debug, clap::Args)]
struct Reach {
    /// The server
    #[arg(value_name = "SERVER")]
    server: args::Server,
    #[command(flatten)]
    tokens: args::Tokens,
    /// Local address to send from [default: the one that routes to the server]
    #[arg(long, value_name = "ADDRESS", env = "REM_LOCAL")]
    local: Option<IpAddr>,
    /// Give up when the server does not answer for so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,
}

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  echo 'paid 17' | rem log calls append 127.0.0.1\n\nEach line is an entry; its position is printed when it is durable."
)]
struct Append {
    #[command(flatten)]
    reach: Reach,
    /// All of the input is one entry
    #[arg(long)]
    whole: bool,
    /// How many entries are under way at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    depth: u16,
}

#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  rem log calls tail 127.0.0.1 --json")]
struct Tail {
    #[command(flatten)]
    reach: Reach,
    /// Print one JSON object for each entry
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  rem log calls trim 127.0.0.1 4096        what is before position 4096 is given up"
)]
struct Trim {
    #[command(flatten)]
    reach: Reach,
    /// The first position that stays: one that an append printed, or the end
    #[arg(value_name = "POSITION")]
    to: u64,
}

fn serve(args: &Serve) -> Result<(), Fail> {
    let asked = Stop::listen()?;
    let listen = args.listen.resolve()?;
    args.access.check(listen.ip(), super::serve::STRANGERS, None)?;
    let token = args.access.token()?;
    let unserved =
        |e: &dyn std::fmt::Display| Fail::new(format!("{} is not served: {e}", args.file.display()));
    let context = device::open_at(listen.ip())?;
    let nexus = Nexus::serve(&context, listen.port()).map_err(|e| unserved(&e))?;
    let mut file = FileOptions::new().image(LogFile::image);
    if let Some(domain) = args.declare.as_deref().and_then(PersistenceDomain::from_name) {
        file = file.declare(domain);
    }
    if !args.file.exists() {
        file = file.create(args.size.0);
    }
    let region = file.open(&args.file).map_err(|e| unserved(&e))?;
    let made = LogFile::is_blank(&region);
    let mut entries = 0;
    let log = if made {
        let mut tag = [0; 8];
        getrandom::fill(&mut tag).map_err(|e| Fail::new(format!("the system gives no random bytes: {e}")))?;
        let word =
            Word::ALL.into_iter().find(|word| word.name() == args.word).expect("clap asks for one of them");
        LogFile::format(region.clone(), word, u64::from_le_bytes(tag))
    } else {
        LogFile::open(region.clone(), |_, _| entries += 1)
    };
    let log = log.map_err(|e| unserved(&e))?;
    // (Who reads that the server is ready finds it.)
    let guarded = endpoint(token.as_ref().map(|(token, _)| token.clone()));
    let rpc = nexus.create(&guarded).map_err(|e| unserved(&e))?;
    let ((head, tail), word) = (log.bounds(), log.word());
    let domain = region.domain();
    let address = std::net::SocketAddr::new(listen.ip(), nexus.port().unwrap_or(listen.port()));
    if args.json {
        let ready = json!({
            "event": "ready",
            "address": address.to_string(),
            "pid": std::process::id(),
            "file": args.file,
            "made": made,
            "word": word.name(),
            "entries": entries,
            "head": head,
            "tail": tail,
            "token_file": token.as_ref().and_then(|(_, file)| *file),
            "token_fingerprint": token.as_ref().map(|(token, _)| token.fingerprint().to_string()),
            "durable": domain.guarantee().is_durable(),
            "survives": domain.to_string(),
        });
        print_line(&ready.to_string())?;
    } else {
        let what = if made { "made just now" } else { "recovered" };
        let entries = ui::count(entries, "record");
        ui::line(
            Mood::Good,
            "log",
            format!("{}, {word}, {entries}, {head} to {tail} ({what})", args.file.display()),
        );
        ui::line(Mood::Good, "address", address);
        let mood = if domain.guarantee().is_durable() { Mood::Good } else { Mood::Note };
        ui::line(mood, "durability", domain.summary());
        let with = tell_token(token.as_ref(), listen.ip(), "log");
        ui::remark(format!(
            "\n  rem log calls append {address}{with}\n  rem log calls tail {address}{with}\n"
        ));
        ui::remark("  Ctrl-C stops the server; the log in the file stays.");
    }
    let mut server = Server::new(rpc, log, Options { batch: args.batch.into() });
    let stop = remanence_rpc::Stop::new();
    let stopping = stop.clone();
    when_asked(&asked, args.stop_on_eof, move || stopping.ask());
    let ended = server.run(&stop).map_err(|e| {
        Fail::new(format!(
            "the log is not served any more ({e}); what was acknowledged is safe, look at the disk"
        ))
    });
    let ((appends, commits), refused) = (server.counts(), server.rpc().stats().unadmitted);
    if args.json {
        let stopped =
            json!({ "event": "stopped", "appends": appends, "commits": commits, "refused": refused });
        print_line(&stopped.to_string())?;
    } else {
        let commits = ui::count(commits as usize, "commit");
        ui::remark(format!("stopped after {} in {commits}", ui::count(appends as usize, "append")));
    }
    ended
}

fn endpoint(token: Option<Token>) -> Endpoint {
    Endpoint { config: Config { token, ..Config::default() }, ..Endpoint::default() }
}

/// A session; of several tokens, with the first that the server takes.
fn connect(reach: &Reach) -> Result<Client, Fail> {
    let to = reach.server.resolve()?;
    let said = |e: &dyn std::fmt::Display| Fail::new(format!("{}: {e}", reach.server));
    let context = device::open_towards(to.ip(), reach.local)?;
    let nexus = Nexus::new(&context).map_err(|e| said(&e))?;
    let patience = Duration::from_secs(reach.patience);
    let address = nexus.resolve(to, 0, patience).map_err(|e| said(&e))?;
    let mut tokens: Vec<Option<Token>> = reach.tokens.load_any()?.into_iter().map(Some).collect();
    if tokens.is_empty() {
        tokens.push(None);
    }
    let mut refused = None;
    for token in tokens {
        let mut options = endpoint(token);
        options.config.patience = patience;
        let rpc = nexus.create(&options).map_err(|e| said(&e))?;
        match Client::connect_and_wait(rpc, address) {
            Ok(client) => return Ok(client),
            Err(e @ Fault::Endpoint(Error::NoSession(Ended::WrongToken))) => refused = Some(e),
            Err(e) => return Err(told(reach, &e)),
        }
    }
    Err(told(reach, &refused.expect("there was one token to try, at least")))
}

/// Adds how a token is given, where one would help.
fn told(reach: &Reach, e: &Fault) -> Fail {
    let with = match e {
        Fault::Endpoint(Error::NoSession(Ended::TokenNeeded | Ended::WrongToken)) => {
            " (--token-file FILE, or REM_TOKEN)"
        }
        _ => "",
    };
    Fail::new(format!("{}: {e}{with}", reach.server))
}

/// Bytes of the longest record that is read, of which the server says whether it takes them.
const LONGEST: u64 = 64 << 20;

fn append(args: &Append) -> Result<(), Fail> {
    let said = |e: Fault| Fail::new(format!("{}: {e}", args.reach.server));
    let mut client = connect(&args.reach)?;
    let records = read(Box::new(BufReader::new(io::stdin())), args.whole, || Ok(LONGEST));
    let (mut printer, mut count) = (Positions::default(), 0_u64);
    let mut take = |client: &mut Client| -> Result<(), Fail> {
        match client.wait(None).map_err(said)? {
            Some(appended) => printer.ended(appended),
            None => Ok(()),
        }
    };
    for record in records {
        let record = record?;
        while client.under_way() >= u64::from(args.depth) {
            take(&mut client)?;
        }
        loop {
            match client.submit(&record) {
                Ok(_) => break,
                Err(Fault::Full) if client.under_way() > 0 => take(&mut client)?,
                Err(e) => return Err(said(e)),
            }
        }
        count += 1;
    }
    while client.under_way() > 0 {
        take(&mut client)?;
    }
    anstream::eprintln!("{} durable", ui::count(count as usize, "record"));
    Ok(())
}

/// Prints positions in the order of the entries.
#[derive(Default)]
struct Positions {
    printed: u64,
    early: std::collections::BTreeMap<u64, u64>,
}

impl Positions {
    fn ended(&mut self, appended: Appended) -> Result<(), Fail> {
        let position = appended.outcome.map_err(|why| {
            Fail::new(format!("entry {} is not appended, as far as is known: {why}", appended.number))
        })?;
        self.early.insert(appended.number, position);
        let mut out = io::stdout().lock();
        while let Some(position) = self.early.remove(&self.printed) {
            writeln!(out, "{position}").context(|| "standard output cannot be written".into())?;
            self.printed += 1;
        }
        out.flush().context(|| "standard output cannot be written".into())
    }
}

fn tail(args: &Tail) -> Result<(), Fail> {
    let said = |e: Fault| Fail::new(format!("{}: {e}", args.reach.server));
    let mut client = connect(&args.reach)?;
    let (mut at, tail) = client.bounds().map_err(said)?;
    let mut out = io::stdout().lock();
    while at < tail {
        // A ring's end may be skipped: then the entry that begins here lies at the start.
        let (bytes, next) = client.read(at).map_err(said)?;
        let line = if args.json {
            json!({ "position": at, "next": next, "text": String::from_utf8_lossy(&bytes) })
                .to_string()
                .into_bytes()
        } else {
            bytes
        };
        out.write_all(&line)
            .and_then(|()| out.write_all(b"\n"))
            .context(|| "standard output cannot be written".into())?;
        at = next;
    }
    out.flush().context(|| "standard output cannot be written".into())
}

fn trim(args: &Trim) -> Result<(), Fail> {
    let said = |e: Fault| Fail::new(format!("{}: {e}", args.reach.server));
    connect(&args.reach)?.trim(args.to).map_err(said)
}
