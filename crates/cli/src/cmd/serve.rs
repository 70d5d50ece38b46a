//! `rem serve`: a memory server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use remanence_pmem::{PersistenceDomain, Region};
use remanence_pool::server::{self, Port, Server};
use remanence_pool::{Pool, State};
use serde_json::json;

use crate::args::{self, Size, Tokens};
use crate::device;
use crate::fail::Fail;
use crate::serving::{print_line, served_no_more, stop_on_eof};
use crate::signals::Stop;
use crate::ui::{self, Mood};

/// A new pool's size when none is given.
const DEFAULT_SIZE: Size = Size(1 << 30);

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem serve pool                                 a pool of 1G in the file `pool`, made if it is not there
  rem serve /mnt/pmem/pool --size 64G            on persistent memory
  rem serve pool --listen 192.0.2.7              reachable from other machines
  rem serve --memory 4G                          nothing survives: for measuring")]
pub(crate) struct Args {
    /// File of the pool; made if it is not there, with a token file beside it
    #[arg(value_name = "POOL", required_unless_present = "memory")]
    pool: Option<PathBuf>,
    /// Size of a new pool
    #[arg(long, value_name = "SIZE", conflicts_with = "memory")]
    size: Option<Size>,
    /// Keep the pool in memory instead; it is gone when the server ends
    #[arg(long, value_name = "SIZE", conflicts_with = "pool")]
    memory: Option<Size>,
    /// Address to listen on; port 0 takes one that is free
    #[arg(long, value_name = "HOST[:PORT]", default_value = "127.0.0.1")]
    listen: args::Server,
    #[command(flatten)]
    tokens: Tokens,
    /// Take your word for the persistence domain, where the machine does not tell
    #[arg(long, value_name = "DOMAIN", value_parser = ["adr", "eadr", "wsp"])]
    declare: Option<String>,
    /// Read every blob and compare its digest before serving
    #[arg(long)]
    check: bool,
    /// Print JSON: one line when ready, one at the end or when the medium has failed
    #[arg(long)]
    json: bool,
    /// Stop when standard input ends: for programs that start servers
    #[arg(long, hide = true)]
    stop_on_eof: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Fail> {
    let stop = Stop::listen()?;
    let unserved = |e: remanence_verbs::Error| Fail::new(format!("{} cannot be served: {e}", args.listen));
    let listen = args.listen.resolve()?;
    let port = Port::take(&device::open_at(listen.ip())?, listen.port()).map_err(unserved)?;
    // A token that is there is looked at before anything is made; one that is not, is made when all else went well.
    let known = token_file(args).is_none_or(|file| file.exists()).then(|| token(args)).transpose()?;
    let (pool, made) = open_pool(args)?;
    if args.check {
        check(&pool, args.json)?;
    }
    let (token, token_file) = known.map_or_else(|| token(args), Ok)?;
    let region = pool.medium().clone();
    let (usage, uuid) = (pool.usage(), pool.uuid());
    let options = server::Options::new(token.clone());
    let mut server = Server::start(port, pool, options).map_err(unserved)?;
    let address = server.address();
    let domain = region.domain();
    let place = args.pool.as_deref().unwrap_or(Path::new("memory"));
    if args.json {
        let ready = json!({
            "event": "ready",
            "address": address.to_string(),
            "pid": std::process::id(),
            "pool": args.pool,
            "uuid": uuid.to_string(),
            "made": made,
            "size": usage.size,
            "free": usage.free,
            "blobs": usage.blobs,
            "token_file": token_file,
            "token_fingerprint": token.fingerprint().to_string(),
            "domain": domain.domain().name(),
            "durable": domain.guarantee().is_durable(),
            "survives": domain.to_string(),
        });
        print_line(&ready.to_string())?;
    } else {
        let place = place.display();
        let what = if made { "made just now" } else { "recovered" };
        let blobs = ui::count(usage.blobs as usize, "blob");
        let free = ui::bytes(usage.free);
        ui::line(
            Mood::Good,
            "pool",
            format!("{place}, {}, {blobs}, {free} free ({what})", ui::bytes(usage.size)),
        );
        ui::line(Mood::Good, "address", address);
        match &token_file {
            Some(file) => ui::line(
                Mood::Good,
                "token",
                format!("in {} (fingerprint {})", file.display(), token.fingerprint()),
            ),
            None if args.tokens.token.is_some() => {
                ui::line(Mood::Good, "token", format!("as given (fingerprint {})", token.fingerprint()));
            }
            None => ui::line(Mood::Good, "token", token.secret()),
        }
        let mood = if domain.guarantee().is_durable() { Mood::Good } else { Mood::Note };
        ui::line(mood, "durability", domain.summary());
        hint(&address, token_file.as_deref(), token.secret());
    }
    let failed = wait(&mut server, &stop, args.stop_on_eof);
    let stats = server.stats();
    // One that was idle may have been asked to stop before it met its medium's failure.
    let unclosed = server.stop().err().map(|e| e.to_string());
    if let Some(why) = failed.or(unclosed) {
        return Err(served_no_more(place, &why, args.json));
    }
    if args.json {
        let stopped = json!({
            "event": "stopped",
            "clients_admitted": stats.admitted,
            "wrong_tokens": stats.wrong_tokens,
            "hostile": stats.hostile,
            "committed": stats.committed,
            "deleted": stats.deleted,
        });
        print_line(&stopped.to_string())?;
    } else {
        ui::remark(format!(
            "stopped after {} and {}",
            ui::count(stats.admitted as usize, "client"),
            ui::count(stats.committed as usize, "commit")
        ));
    }
    Ok(())
}

fn open_pool(args: &Args) -> Result<(Pool<Region>, bool), Fail> {
    let sentence = |e: server::FileError| Fail::new(e.to_string());
    match (&args.pool, args.memory) {
        (Some(path), _) => {
            let declared = args.declare.as_deref().and_then(PersistenceDomain::from_name);
            server::open_or_make(path, args.size.map(|s| s.0), DEFAULT_SIZE.0, declared).map_err(sentence)
        }
        (None, Some(size)) => server::in_memory(size.0).map(|pool| (pool, true)).map_err(sentence),
        (None, None) => unreachable!("clap asks for one of them"),
    }
}

/// The file that the token is in; `None` if it was given itself, or is for this run.
fn token_file(args: &Args) -> Option<PathBuf> {
    let beside = || {
        let mut name = args.pool.as_ref()?.as_os_str().to_owned();
        name.push(".token");
        Some(PathBuf::from(name))
    };
    match &args.tokens.token {
        Some(_) => None,
        None => args.tokens.token_file.clone().or_else(beside),
    }
}

/// The token, and the file that it is in.
fn token(args: &Args) -> Result<(remanence_pool::auth::Token, Option<PathBuf>), Fail> {
    let file = token_file(args);
    let token = match (&args.tokens.token, &file) {
        (Some(_), _) => args::server_token(&args.tokens, Path::new(""))?,
        (None, Some(file)) => args::server_token(&args.tokens, file)?,
        (None, None) => args::random_token()?,
    };
    Ok((token, file))
}

/// Compares every blob's digest; a damaged one is named, and the server does not start.
fn check(pool: &Pool<Region>, quiet: bool) -> Result<(), Fail> {
    let live = || pool.list(None).filter(|l| matches!(l.state, State::Live { .. }));
    let damaged: Vec<String> =
        live().filter(|l| pool.verify(&l.name) != Some(true)).map(|l| format!("\"{}\"", l.name)).collect();
    if !damaged.is_empty() {
        let list = damaged.join(", ");
        return Err(Fail::new(format!(
            "the pool holds damaged blobs: {list}; serve it without --check and put them again, or copy them from another server"
        )));
    }
    if !quiet {
        ui::line(
            Mood::Good,
            "check",
            format!("{} read, every digest right", ui::count(live().count(), "blob")),
        );
    }
    Ok(())
}

fn hint(address: &SocketAddr, token_file: Option<&Path>, secret: &str) {
    let token = match token_file {
        Some(file) => format!("--token-file {}", file.display()),
        None => format!("--token {secret}"),
    };
    ui::remark(format!("\n  rem put -s {address} {token} FILE\n  rem get -s {address} {token} FILE\n"));
    if address.ip().is_loopback() {
        ui::remark("  Only this machine can reach it; --listen ADDRESS lets others in.");
    }
    ui::remark("  Ctrl-C stops the server; a pool in a file stays.");
}

/// Until someone asks us to stop, or the server ends by itself. Why it did.
fn wait(server: &mut Server, stop: &Stop, on_eof: bool) -> Option<String> {
    if on_eof {
        stop_on_eof(stop);
    }
    let failed = Arc::new(Mutex::new(None));
    let (ended, asked, tell) = (server.take_ended(), stop.clone(), Arc::clone(&failed));
    std::thread::spawn(move || {
        let why = ended.and_then(|ended| ended.recv().ok());
        let why = why.unwrap_or_else(|| "its thread has panicked; report what it said".to_owned());
        *tell.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        asked.ask();
    });
    stop.wait();
    failed.lock().unwrap_or_else(PoisonError::into_inner).take()
}
