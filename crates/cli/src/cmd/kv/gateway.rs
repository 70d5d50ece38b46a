//! `rem kv gateway`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use remanence_gateway::live::Connector;
use remanence_gateway::near::Near;
use remanence_gateway::{Address, Gateway, Options};
use remanence_kv::view::Mode;
use remanence_kv_live::{ConnectOptions, ServerOptions};
use remanence_metrics::Source;
use remanence_resp::engine::Config;
use remanence_resp::protocol::Limits;
use remanence_resp::store::StoreError;
use serde_json::json;

use super::At;
use crate::args::{self, Reach, Server, Size};
use crate::device;
use crate::exposure::{self, Endpoint};
use crate::fail::{Context as _, Fail};
use crate::serving::{print_line, served_no_more, when_asked};
use crate::signals::Stop;
use crate::ui::{self, Mood};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem kv gateway 192.0.2.7                             Redis on 127.0.0.1:6379, over the store that 192.0.2.7 serves
  rem kv gateway 127.0.0.1 --listen 127.0.0.1:6380 --listen /run/gateway.sock --threads 2
  rem kv gateway 127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003
                                                       over a store on three members
  rem kv gateway 127.0.0.1 --metrics 127.0.0.1:9181 --password-file secret
  rem kv gateway --store users.kv --size 1G            Redis on 127.0.0.1:6379, with the store in this process: a GET
                                                       is a few loads then

Without a password only this machine may reach the gateway, without a token only this machine the store at --native, unless you
say --insecure. With a password and no token nobody reaches the store but through the gateway.

redis-cli, redis-benchmark and Redis libraries connect as to Redis 7; docs/gateway.md has the commands. A server that restarts
is connected to again. Several gateways may serve one store.")]
pub(super) struct Args {
    /// Server of the store, as HOST or HOST:PORT; of a store on several, its members, separated by commas
    #[arg(value_name = "SERVER")]
    server: Option<At>,
    /// Serve the store in this file, too, instead of connecting to a server; it is made if it is not there
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    store: Option<PathBuf>,
    /// Size of a new file, or to which the store in one that is there is to grow [default: 256M for a new one]
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// On a disk, write what is acknowledged to a journal in the file, of that size, and pages later; `off`: a new file has
    /// none [default: a new file has one of an eighth of its size, 64M at most]
    #[arg(long, value_name = "SIZE|off")]
    journal: Option<args::Journal>,
    /// Where clients of the store itself connect, as to `rem kv serve`; with --token-file they need that token, which is made if
    /// the file is not there [default: a free port of 127.0.0.1]
    #[arg(long, value_name = "HOST[:PORT]")]
    native: Option<Server>,
    /// Where Redis clients connect: HOST:PORT, or the path of a unix socket; may be given several times, port 0 is a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6379")]
    listen: Vec<String>,
    /// Threads, each with a connection to the server [default: one for each
    /// processor, 8 at most; if the store is served here, one less from memory, and half as many on a disk]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Serve metrics for Prometheus at http://ADDRESS/metrics, without authentication
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// File whose first line is the password that Redis clients must AUTHenticate with
    #[arg(long, value_name = "FILE", env = "REM_REDIS_PASSWORD_FILE")]
    password_file: Option<PathBuf>,
    /// Let other machines in where neither a password nor a token is asked for: without them they may read and write
    /// everything, and metrics ask for none
    #[arg(long)]
    insecure: bool,
    /// Redis clients at a time
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    clients: u32,
    /// Close clients that are idle for so many seconds; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    idle: u32,
    /// Close clients that leave replies unread for so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    stall: u32,
    /// Close clients that have not authenticated after so many seconds, if they must
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    auth_time: u32,
    /// Memory for the requests and replies of all clients together; who asks for more when it is used up is told so, and
    /// closed [default: a quarter of the machine's, 256M at least and 4G at most]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// Bytes of replies that a client may leave unread before it is not read from
    #[arg(long, value_name = "SIZE", default_value = "1M")]
    output: Size,
    /// Bytes of the longest value that a client may send
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    value: Size,
    /// Databases that SELECT has
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=128))]
    databases: u16,
    /// Places of values that each thread remembers, so that a GET takes one READ
    #[arg(long, value_name = "N", default_value_t = 1 << 20)]
    locations: usize,
    /// How long commands wait for a server that has gone before they fail at once, milliseconds [default: 1000]
    #[arg(long, value_name = "MS")]
    hold: Option<u64>,
    /// Give up a connection to the server when that shows no sign of life for so many seconds [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: Option<u64>,
    #[command(flatten)]
    reach: Reach,
    /// Print JSON: one line when ready, one at the end or when the store's medium has failed
    #[arg(long)]
    json: bool,
    /// Stop when standard input ends: for programs that start gateways
    #[arg(long, hide = true)]
    stop_on_eof: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Fail> {
    let asked = Stop::listen()?;
    match (&args.store, &args.server) {
        (Some(file), _) => {
            // What is said of the environment is said to all commands.
            let local = args
                .reach
                .local
                .filter(|ip| !std::env::var("REM_LOCAL").is_ok_and(|said| said.parse() == Ok(*ip)));
            let of_a_server = [
                ("--local", local.is_some()),
                ("--hold", args.hold.is_some()),
                ("--patience", args.patience.is_some()),
            ];
            if let Some((option, _)) = of_a_server.iter().find(|(_, given)| *given) {
                return Err(Fail::new(format!(
                    "{option} says how a server is reached, and {} is served by this process; leave it out, or name the SERVER \
                     in place of --store",
                    file.display()
                )));
            }
            super::member::refuse(file)?;
            beside(args, file, &asked)
        }
        (None, Some(server)) => {
            let of_a_file = [
                ("--size", args.size.is_some()),
                ("--native", args.native.is_some()),
                ("--journal", args.journal.is_some()),
            ];
            match of_a_file.iter().find(|(_, given)| *given) {
                Some((option, _)) => Err(Fail::new(format!(
                    "{option} says how a store in this process is served, and {server} serves its own; leave it out, or name a \
                     file with --store in place of the server"
                ))),
                None => towards(args, server, &asked),
            }
        }
        (None, None) => Err(Fail::new(
            "no store was named; give the SERVER of one, as HOST or HOST:PORT, or a file with --store FILE, which is served here",
        )),
    }
}

/// Over a server that runs elsewhere.
fn towards(args: &Args, server: &At, asked: &Stop) -> Result<(), Fail> {
    let (listen, password) = args.endpoints(None)?;
    let to = server.resolve()?;
    let context = device::open_towards(to[0].ip(), args.reach.local)?;
    let patience = Duration::from_secs(args.patience.unwrap_or(10));
    let connect = ConnectOptions::default()
        .patience(patience)
        .locations(args.locations)
        .tokens(args.reach.tokens.load_any()?);
    // What the store is, and whether there is one, is asked before anybody is let in.
    let mut probe = server.connect(&context, &to, &connect)?;
    let region = probe.session().region();
    let mode = probe.client().view().mode;
    let members = probe.primary().cloned();
    let writes = probe.session().role().may_write();
    drop(probe);
    let store = About {
        name: format!("{server}, {}", ui::bytes(region.len)),
        server: server.to_string(),
        mode,
        writes,
        durable: match &members {
            Some(said) => said.durable,
            None => mode == Mode::Durable && region.guarantee.is_durable(),
        },
        durability: match (mode, &members) {
            (Mode::Durable, Some(said)) => format!(
                "an acknowledged write is in the logs of {} of {} members, and survives what a member's memory does: {}",
                said.acks,
                said.members.len(),
                first_clause(&said.survives)
            ),
            (Mode::Durable, None) => {
                format!(
                    "an acknowledged write survives what the server's memory does: {}",
                    first_clause(&region.sentence)
                )
            }
            (Mode::Erda, _) => {
                "an acknowledged write is visible, and not yet durable: a failure of the server may take it back"
                    .to_owned()
            }
        },
        native: None,
    };
    let connector = match members {
        Some(_) => Connector::to_members(&context, to, connect),
        None => Connector::new(&context, to[0], connect),
    };
    let connector = connector.hold(Duration::from_millis(args.hold.unwrap_or(1000)));
    let options =
        Options { more_metrics: Some(connector.metrics()), ..args.options(&store, listen, password) };
    let open = |_| connector.connect().map_err(|e| StoreError::Unavailable(e.to_string()));
    let served = conduct(args, asked, &store, Gateway::start(options, open).map_err(gateway)?)?;
    served.tell(args.json)
}

/// Over a store in this process, which clients of the network may reach as well.
fn beside(args: &Args, file: &Path, asked: &Stop) -> Result<(), Fail> {
    let (ip, port) = match &args.native {
        Some(native) => native.resolve().map(|to| (to.ip(), to.port()))?,
        None => (IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
    };
    let (listen, password) = args.endpoints(Some(ip))?;
    let failed = |e: remanence_kv_live::Error| Fail::new(format!("{} is not served: {e}", file.display()));
    let context = device::open_at(ip)?;
    let tokens = &args.reach.tokens;
    let token = match (&tokens.token, &tokens.token_file, &password) {
        (Some(_), ..) => Some(args::server_token(tokens, Path::new(""))?),
        (None, Some(file), _) => Some(args::server_token(tokens, file)?),
        // One that nobody has, as nobody asked for this endpoint.
        (None, None, Some(_)) if args.native.is_none() => Some(args::random_token()?),
        (None, None, _) => None,
    };
    let mut options = ServerOptions::file(file).journal(args::Journal::or_default(args.journal)).port(port);
    if let Some(size) = super::serve::size_of(args.size, file) {
        options = options.size(size);
    }
    options = match &token {
        Some(token) => options.token(token.clone()),
        None if args.insecure => options.insecure(),
        None => options,
    };
    let mut server = remanence_kv_live::Server::bind(&context, options).map_err(failed)?;
    let locals = server.locals().expect("a store on this server alone");
    let (to, size) = (server.addr(), server.metrics().read().size);
    let store = About {
        name: format!("{}, {}, served at {to}", file.display(), ui::bytes(size)),
        server: to.to_string(),
        mode: Mode::Durable,
        writes: true,
        durable: server.is_durable(),
        durability: server.summary(),
        native: Some(match (&token, &tokens.token_file) {
            (Some(token), Some(file)) => {
                format!("{to}, token in {} (fingerprint {})", file.display(), token.fingerprint())
            }
            (Some(token), None) if tokens.token.is_some() => {
                format!("{to}, token as given (fingerprint {})", token.fingerprint())
            }
            (Some(_), None) => {
                "nobody is let in, as there is a password; --token-file lets in who has the token".into()
            }
            (None, _) if ip.is_loopback() => {
                format!("{to}, without a token: everybody on this machine may read and write")
            }
            (None, _) => format!("{to}, without a token: whoever reaches it may read and write"),
        }),
    };
    let mut options = args.options(&store, listen, password);
    if args.threads.is_none() {
        options.threads = Options::threads_beside_a_store(options.threads, locals.wait_for_a_disk());
    }
    let (over, ended) = (remanence_kv_live::Stop::new(), Arc::new(AtomicBool::new(false)));
    options.more_metrics = Some(store_metrics(server.metrics().source(), &ended));
    let (stop, end, asked_too) = (over.clone(), Arc::clone(&ended), asked.clone());
    let serving = std::thread::Builder::new()
        .name("store".into())
        .spawn(move || {
            let served = server.run(&stop);
            if !stop.is_asked() {
                // The medium failed. Nothing is written any more, and nobody is to take this for a gateway that serves.
                end.store(true, Ordering::Release);
                asked_too.ask();
            }
            served
        })
        .context(|| "no thread for the store can be started".into())?;
    let open = |_| Ok(Near::connect(&locals, args.locations));
    let conducted = match Gateway::start(options, open).map_err(gateway) {
        Ok(running) => conduct(args, asked, &store, running),
        Err(failed) => Err(failed),
    };
    // After the last command: what was written is settled.
    over.ask();
    let stored = serving.join().map_err(|_| Fail::new("the store's thread panicked; report what it said"))?;
    // A gateway that could not serve says why; one that did, why it does so no more.
    let served = conducted?;
    stored.map_err(|e| served_no_more(file, &e, args.json))?;
    served.tell(args.json)
}

/// What the store tells Prometheus, and whether it has ended.
fn store_metrics(own: Source, ended: &Arc<AtomicBool>) -> Source {
    let ended = Arc::clone(ended);
    Arc::new(move |page| {
        let help = "1 once the store's medium has failed: the gateway ends.";
        page.gauge("remanence_gateway_store_failed", None, help, u64::from(ended.load(Ordering::Acquire)))?;
        own(page)
    })
}

/// What a sentence says of the medium; how it was found out is what `rem doctor` tells.
fn first_clause(sentence: &str) -> &str {
    sentence.split("; ").next().unwrap_or(sentence)
}

/// What a store is.
struct About {
    name: String,
    server: String,
    mode: Mode,
    writes: bool,
    durable: bool,
    durability: String,
    /// Who may come to it natively, if it is served here.
    native: Option<String>,
}

impl Args {
    /// Where Redis clients come and with which password, once all endpoints have been looked at: before anything is made. `native`
    /// is where clients of the store itself come.
    fn endpoints(&self, native: Option<IpAddr>) -> Result<(Vec<Address>, Option<String>), Fail> {
        let listen: Vec<Address> =
            self.listen.iter().map(|text| Address::parse(text)).collect::<Result<_, _>>().map_err(gateway)?;
        let password = self.password()?;
        let tokens = &self.reach.tokens;
        let token = tokens.token.is_some() || tokens.token_file.is_some();
        let mut endpoints: Vec<_> = listen
            .iter()
            .filter_map(|address| match address {
                Address::Tcp(socket) => Some(Endpoint {
                    at: socket.ip(),
                    could: "read and write the store",
                    guard: Some("a password (--password-file)"),
                    guarded: password.is_some(),
                }),
                // The file's own rights say who.
                Address::Unix(_) => None,
            })
            .collect();
        if let Some(native) = native {
            if self.native.is_some() && password.is_some() && !token && !self.insecure {
                return Err(Fail::new(
                    "--native would let in without a token whom --password-file keeps out; give it one with --token-file, or say \
                     that this is meant (--insecure)",
                ));
            }
            let guarded = token || (self.native.is_none() && password.is_some());
            endpoints.push(Endpoint::server(native, "read and write the store", guarded));
        }
        endpoints.extend(self.metrics.map(|at| Endpoint::metrics(at.ip())));
        exposure::check(&endpoints, self.insecure)?;
        Ok((listen, password))
    }

    fn options(&self, store: &About, listen: Vec<Address>, password: Option<String>) -> Options {
        let (args, durable, durability) = (self, store.durable, store.durability.clone());
        Options {
            listen,
            metrics: args.metrics,
            threads: args.threads.map_or(Options::default().threads, usize::from),
            config: Config {
                password,
                databases: args.databases,
                clients_max: args.clients as usize,
                idle_timeout_s: args.idle.into(),
                bulk_max: args.value.0 as usize,
                durability,
                durable,
                // To a server others come as well.
                transactions: store.native.is_some(),
                ..Config::default()
            },
            limits: Limits { bulk: args.value.0 as usize, ..Limits::default() },
            output_high: args.output.0 as usize,
            stall: Duration::from_secs(args.stall.into()),
            auth_time: Duration::from_secs(args.auth_time.into()),
            memory: args.memory.map_or(Options::default().memory, |size| size.0 as usize),
            // What has expired is for somebody else to delete.
            sweep: if store.writes { Options::default().sweep } else { 0 },
            ..Options::default()
        }
    }
}

/// What a gateway has served, once it has stopped.
struct Served {
    clients: u64,
    commands: u64,
}

impl Served {
    fn tell(&self, as_json: bool) -> Result<(), Fail> {
        let Self { clients, commands } = self;
        if as_json {
            return print_line(
                &json!({ "event": "stopped", "clients": clients, "commands": commands }).to_string(),
            );
        }
        ui::remark(format!("stopped after {}", ui::count(*commands as usize, "command")));
        Ok(())
    }
}

/// Serves until it is asked to stop.
fn conduct(args: &Args, asked: &Stop, store: &About, running: Gateway) -> Result<Served, Fail> {
    let addresses: Vec<String> = running.addresses().iter().map(ToString::to_string).collect();
    let metrics = running.metrics().map(|address| format!("http://{address}/metrics"));
    if args.json {
        let ready = json!({
            "event": "ready",
            "addresses": addresses,
            "metrics": metrics,
            "pid": std::process::id(),
            "server": store.server,
            "mode": if store.mode == Mode::Durable { "durable" } else { "erda" },
            "access": if store.writes { "read-write" } else { "read-only" },
            "durable": store.durable,
            "durability": store.durability,
        });
        print_line(&ready.to_string())?;
    } else {
        ui::line(Mood::Good, "store", &store.name);
        ui::line(Mood::Good, "address", addresses.join(", "));
        if let Some(metrics) = &metrics {
            ui::line(Mood::Good, "metrics", metrics);
        }
        if let Some(native) = &store.native {
            ui::line(Mood::Good, "native", native);
        }
        if !store.writes {
            ui::line(Mood::Note, "access", "read-only, as the token is one for readers: writes are refused");
        }
        ui::line(if store.durable { Mood::Good } else { Mood::Note }, "durability", &store.durability);
        ui::remark("\n  Ctrl-C answers what has been received, and stops.");
    }
    let stopper = running.stopper();
    when_asked(asked, args.stop_on_eof, move || stopper.stop());
    let shared = running.shared().clone();
    if !running.wait() {
        return Err(Fail::new(
            "a thread of the gateway panicked, and the others were stopped; report what it said",
        ));
    }
    Ok(Served { clients: shared.stats.connections.get(), commands: shared.stats.commands.get() })
}

fn gateway(error: remanence_gateway::Error) -> Fail {
    Fail::new(error.to_string())
}

impl Args {
    fn password(&self) -> Result<Option<String>, Fail> {
        let Some(file) = &self.password_file else { return Ok(None) };
        let text = std::fs::read_to_string(file)
            .context(|| format!("the password file {} cannot be read", file.display()))?;
        let password = text.lines().next().unwrap_or_default();
        if password.is_empty() {
            return Err(Fail::new(format!(
                "the password file {} is empty; its first line is the password",
                file.display()
            )));
        }
        Ok(Some(password.to_owned()))
    }
}
