//! `rem cache start`, `status`, `drain`, `freeze`, `thaw`, `stop`: the daemon of a write cache, and what is asked of it.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use remanence_cache_live::command;
use remanence_cache_live::copies::Copies;
use remanence_cache_live::daemon::{Options, Paths, Rule, of_another_size, serve};
use remanence_cache_live::memory;
use remanence_metrics::Endpoint;
use remanence_remotelog::ConnectOptions;
use serde_json::Value;

use super::{metrics, unit};
use crate::args::{Server, Size, Tokens};
use crate::exposure;
use crate::fail::{Context as _, Fail};
use crate::serving::{print_line, when_asked};
use crate::signals::Stop;
use crate::ui::{self, Mood};

/// Which log is meant.
#[derive(clap::Args, Clone, Debug)]
pub(in crate::cmd) struct Of {
    /// The log's file, made if it is not there; `shm` is one in memory, which survives the death of any process, and no loss of power; HOST,HOST,.. is
    /// one in memory with a copy on these servers of `rem log serve`
    #[arg(long, value_name = "FILE", default_value = "shm")]
    log: PathBuf,
}

/// The same, also without the option's name: as of `recover`, `fsck` and `dump`.
#[derive(clap::Args, Clone, Debug)]
pub(in crate::cmd) struct Named {
    /// The log: a file, `shm`, or servers HOST,HOST,.. [default: shm]
    #[arg(value_name = "LOG", conflicts_with = "log")]
    named: Option<PathBuf>,
    /// The log, by an option
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

impl Named {
    pub(in crate::cmd) fn of(&self) -> Of {
        let named = self.named.as_ref().or(self.log.as_ref());
        Of { log: named.map_or_else(|| "shm".into(), Clone::clone) }
    }
}

impl Of {
    /// As it was named.
    pub(in crate::cmd) fn name(&self) -> &Path {
        &self.log
    }

    /// Where it is.
    pub(in crate::cmd) fn path(&self) -> Result<PathBuf, Fail> {
        if self.log == Path::new("shm") {
            return in_memory("log");
        }
        if let Some(servers) = servers(&self.log)? {
            return beside(servers.iter());
        }
        std::path::absolute(&self.log).context(|| format!("the log {} has no place", self.log.display()))
    }
}

/// The servers that a name of a log means, if it means some: several with commas between, or one by its address.
fn servers(log: &Path) -> Result<Option<Vec<Server>>, Fail> {
    let Some(text) = log.to_str().filter(|text| !text.contains('/')) else { return Ok(None) };
    if !text.contains(',') && text.parse::<IpAddr>().is_err() && text.parse::<SocketAddr>().is_err() {
        return Ok(None);
    }
    let all: Result<Vec<Server>, String> = text.split(',').map(str::parse).collect();
    all.map(Some)
        .map_err(|why| Fail::new(format!("{why}; a log's file with a comma in its name is called ./NAME")))
}

/// A log in memory, in a directory in which nobody else makes names.
fn in_memory(name: &str) -> Result<PathBuf, Fail> {
    let place = memory::own().context(|| "no directory can be had in /dev/shm".into())?;
    Ok(place.join(name))
}

/// The log in memory that goes with servers, in whatever order they are named.
fn beside(servers: impl Iterator<Item = impl ToString>) -> Result<PathBuf, Fail> {
    let mut names: Vec<String> = servers.map(|server| server.to_string()).collect();
    names.sort_unstable();
    let mut crc = crc32fast::Hasher::new();
    names.iter().for_each(|name| crc.update(name.as_bytes()));
    in_memory(&format!("{:08x}.log", crc.finalize()))
}

/// The log in memory of a daemon with such copies.
pub(super) fn copies_path(copies: &Copies) -> Result<PathBuf, Fail> {
    let all: Result<Vec<Server>, String> = copies.name.split(',').map(str::parse).collect();
    beside(all.map_err(Fail::new)?.iter())
}

/// How servers that have a log's copy are reached.
#[derive(clap::Args, Clone, Debug)]
pub(in crate::cmd) struct Reach {
    #[command(flatten)]
    pub(in crate::cmd) tokens: Tokens,
    /// How many of the servers must have what a sync waits for; fixed when their log is made [default: more than half]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..))]
    pub(in crate::cmd) acks: Option<u16>,
}

impl Reach {
    /// The servers of a log that is named so, if it has some.
    pub(in crate::cmd) fn copies(&self, log: &Path) -> Result<Option<Copies>, Fail> {
        match servers(log)? {
            Some(named) => self.reached(log, &named).map(Some),
            None if self.acks.is_some() => {
                Err(Fail::new("--acks is for a log that has copies on servers: name these with --log"))
            }
            None => Ok(None),
        }
    }

    /// The same where servers are meant in any case.
    pub(in crate::cmd) fn copies_on(&self, named: &Path) -> Result<Copies, Fail> {
        let text = named.to_str().unwrap_or_default();
        let all: Result<Vec<Server>, String> = text.split(',').map(str::parse).collect();
        self.reached(named, &all.map_err(Fail::new)?)
    }

    fn reached(&self, name: &Path, named: &[Server]) -> Result<Copies, Fail> {
        if self.acks.is_some_and(|acks| usize::from(acks) > named.len()) {
            return Err(Fail::new(format!(
                "--acks asks for more servers than the {} that were named; name more, or ask for fewer",
                named.len()
            )));
        }
        let servers = named.iter().map(Server::resolve).collect::<Result<Vec<_>, _>>()?;
        let connect = ConnectOptions::default().patience(PATIENCE).tokens(self.tokens.load_any()?);
        let name = name.display().to_string();
        Ok(Copies { servers, connect, acks: self.acks, images: false, name })
    }
}

/// A server that shows no sign of life for so long is done without.
const PATIENCE: Duration = Duration::from_secs(5);

/// How a daemon is started.
#[derive(clap::Args, Clone, Debug)]
pub(in crate::cmd) struct Start {
    #[command(flatten)]
    pub(in crate::cmd) of: Of,
    #[command(flatten)]
    pub(in crate::cmd) reach: Reach,
    /// Size of a log that is made, 128M if it is left out; one that is there has to have this size
    #[arg(long, value_name = "SIZE")]
    pub(in crate::cmd) size: Option<Size>,
    /// Have the servers of the log keep images of the files as well, so that these survive the loss of this machine with its disk: their logs need room for
    /// four times the log here and twice the files
    #[arg(long)]
    pub(in crate::cmd) images: bool,
    /// Have each write, truncation and allocation durable when it returns, and not only when the program syncs; of a log on a disk, each waits for that
    #[arg(long)]
    pub(in crate::cmd) strict: bool,
    /// Cache only this path and what is below; `*` and `?` stand for bytes of a name, `**` for names, and `*.db` without a slash is in any directory
    #[arg(long, value_name = "PATTERN")]
    pub(in crate::cmd) include: Vec<PathBuf>,
    /// Cache nothing of these, also of what is included
    #[arg(long, value_name = "PATTERN")]
    pub(in crate::cmd) exclude: Vec<PathBuf>,
}

impl Start {
    /// Entries that the log is to have, if somebody asks for that.
    pub(in crate::cmd) fn entries(&self) -> Option<u64> {
        self.size.map(|size| (size.0 / ENTRY).max(64))
    }

    /// The servers of the log, if it has some.
    pub(in crate::cmd) fn copies(&self) -> Result<Option<Copies>, Fail> {
        let copies = self.reach.copies(&self.of.log)?;
        if self.images && copies.is_none() {
            return Err(Fail::new("--images is for a log that has copies on servers: name these with --log"));
        }
        Ok(copies.map(|copies| Copies { images: self.images, ..copies }))
    }

    /// What is cached.
    pub(in crate::cmd) fn paths(&self) -> Result<Paths, Fail> {
        let rules =
            |texts: &[PathBuf]| texts.iter().map(|text| rule(text)).collect::<Result<Vec<Rule>, Fail>>();
        Ok(Paths { include: rules(&self.include)?, exclude: rules(&self.exclude)? })
    }

    /// Refuses a daemon that runs already if it is not as is asked for.
    pub(in crate::cmd) fn is_fit(&self, log: &Path, standing: &Value) -> Result<(), Fail> {
        let has = number_of(standing, "entries");
        if let Some(wants) = self.entries().filter(|wants| *wants != has) {
            return Err(Fail::new(of_another_size(log, has, wants)));
        }
        if self.images && standing["copies"]["images"].is_null() {
            let log = self.of.log.display();
            return Err(Fail::new(format!(
                "the daemon of {log} keeps no images of files: `rem cache stop --log {log}` ends it"
            )));
        }
        if self.strict && standing["strict"] != true {
            let log = self.of.log.display();
            return Err(Fail::new(format!(
                "the daemon of {log} is not a strict one: `rem cache stop --log {log}` ends it"
            )));
        }
        let Paths { include, exclude } = self.paths()?;
        let same = |name: &str, rules: &[Rule]| {
            let has =
                standing[name].as_array().into_iter().flatten().map(|rule| rule.as_str().unwrap_or_default());
            rules.is_empty() || has.eq(rules.iter().map(ToString::to_string))
        };
        if same("include", &include) && same("exclude", &exclude) {
            if let Some(why) = standing["failed"].as_str() {
                anstream::eprintln!("rem: no sync is absorbed: {why}");
            }
            if text_of(standing, "state") == "frozen" {
                anstream::eprintln!(
                    "rem: no sync is absorbed: the log is frozen (`rem cache thaw` ends that)"
                );
            }
            return Ok(());
        }
        let log = log.display();
        Err(Fail::new(format!(
            "the daemon of {log} runs with other paths than --include and --exclude say: `rem cache stop --log {log}` ends it"
        )))
    }
}

/// A rule of the command line, as the kernel says the paths of open files.
fn rule(text: &Path) -> Result<Rule, Fail> {
    let names: Vec<Component<'_>> = text.components().collect();
    let open = names.iter().position(|name| Rule::is_open(name.as_os_str().as_bytes()));
    let (fixed, open) = names.split_at(open.unwrap_or(names.len()));
    if fixed.is_empty() && open.len() == 1 {
        return Ok(Rule::new(text.to_owned()));
    }
    let fixed: PathBuf = if fixed.is_empty() { ".".into() } else { fixed.iter().collect() };
    let mut whole = std::fs::canonicalize(&fixed).context(|| format!("{} is not there", fixed.display()))?;
    whole.extend(open);
    Ok(Rule::new(whole))
}

/// A daemon in the foreground.
#[derive(clap::Args, Debug)]
pub(in crate::cmd) struct Foreground {
    #[command(flatten)]
    start: Start,
    /// Serve metrics for Prometheus at http://ADDRESS/metrics, without authentication
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// Let other machines read the metrics
    #[arg(long, requires = "metrics")]
    insecure: bool,
}

#[derive(clap::Args, Debug)]
pub(in crate::cmd) struct Status {
    #[command(flatten)]
    log: Named,
    /// As JSON; with --watch, one object a line
    #[arg(long)]
    json: bool,
    /// Go on, with a line each so many seconds of what was counted meanwhile, until somebody ends it [default: 1]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", require_equals = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    watch: Option<u64>,
}

/// How long a change lies in the log: a file system's own is as old when the kernel writes it.
const LIES: Duration = Duration::from_secs(30);
/// Bytes that an entry takes.
const ENTRY: u64 = 4096 + 64;

pub(in crate::cmd) fn start(args: &Foreground) -> Result<(), Fail> {
    let Foreground { start: args, metrics: at, insecure } = args;
    if let Some(at) = at {
        exposure::check(&[exposure::Endpoint::metrics(at.ip())], *insecure)?;
    }
    let copies = args.copies()?;
    let log = args.of.path()?;
    let serves = |at: &SocketAddr| {
        Endpoint::serve(*at, vec![metrics::source(log.clone()), remanence_metrics::process()])
            .map_err(|e| Fail::new(format!("no metrics are served at {at}: {e}")))
    };
    // It ends with the daemon.
    let endpoint = at.as_ref().map(serves).transpose()?;
    let (entries, paths) = (args.entries(), args.paths()?);
    let (strict, drain_after) = (args.strict, Some(LIES));
    let options = Options { log, entries, batch: None, paths, copies, strict, drain_after };
    let stop = Stop::listen()?;
    let (ended, end) = UnixStream::pair().context(|| "a pair of sockets cannot be had".into())?;
    when_asked(&stop, false, move || drop(end));
    let ready = |recovered: Option<&str>| {
        // Who does not read it any more has the socket.
        let told = recovered.map_or(Ok(()), print_line);
        let metrics =
            endpoint.as_ref().map(|endpoint| format!("metrics http://{}/metrics", endpoint.address()));
        let told = told.and_then(|()| metrics.map_or(Ok(()), |metrics| print_line(&metrics)));
        let _ = told.and_then(|()| print_line("ready"));
        unit::is_ready();
    };
    serve(&options, ended.as_fd(), ready).map_err(|why| Fail::new(why.to_string()))
}

pub(in crate::cmd) fn drain(log: &Named) -> Result<(), Fail> {
    asked(&log.of(), "drained", command::drain)
}

pub(in crate::cmd) fn freeze(log: &Named) -> Result<(), Fail> {
    asked(&log.of(), "frozen: all that was promised is in its files, until `rem cache thaw`", command::freeze)
}

pub(in crate::cmd) fn thaw(log: &Named) -> Result<(), Fail> {
    asked(&log.of(), "thawed", command::thaw)
}

pub(in crate::cmd) fn stop(log: &Named) -> Result<(), Fail> {
    asked(&log.of(), "closed", command::stop)
}

fn asked(of: &Of, done: &str, ask: fn(&Path) -> std::io::Result<()>) -> Result<(), Fail> {
    let log = of.path()?;
    ask(&log).map_err(|why| refused(of, &log, &why))?;
    ui::print(format!("{} is {done}", log.display()));
    Ok(())
}

fn refused(of: &Of, log: &Path, why: &std::io::Error) -> Fail {
    // Servers by their names, and a file by its whole path.
    let is_named = matches!(servers(of.name()), Ok(Some(_)));
    let log = if is_named { of.name() } else { log }.display();
    match why.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
            Fail::new(format!("no daemon has the log {log}: `rem cache start --log {log}` starts one"))
        }
        std::io::ErrorKind::PermissionDenied => {
            Fail::new(format!("the daemon of {log} is another user's, and serves nobody else ({why})"))
        }
        _ => Fail::new(format!("the daemon of {log} could not do it ({why}); `rem cache status` says more")),
    }
}

/// How a daemon stands; `None` if there is none.
pub(in crate::cmd) fn standing(log: &Path) -> Option<Value> {
    serde_json::from_str(&command::status(log).ok()?).ok()
}

/// How the daemon of a log stands, or why nobody knows.
fn told(of: &Of, log: &Path) -> Result<Value, Fail> {
    let text = command::status(log).map_err(|why| refused(of, log, &why))?;
    serde_json::from_str(&text).context(|| "the daemon's answer cannot be read".into())
}

/// A line each so many seconds.
fn watch(of: &Of, log: &Path, seconds: u64, as_json: bool) -> Result<(), Fail> {
    let stop = Stop::listen()?;
    let mut before: Option<(Instant, Value)> = None;
    loop {
        let (now, status) = (Instant::now(), told(of, log)?);
        if as_json {
            print_line(&status.to_string())?;
        } else {
            let line = match &before {
                None => format!(
                    "{:>8} {:>9} {:>10} {:>13} {:>11} {:>11} {:>8}",
                    "state", "in use", "changes/s", "logged/s", "absorbed/s", "kernel/s", "full/s"
                ),
                Some((then, before)) => rates(&status, before, now - *then),
            };
            print_line(&line)?;
        }
        before = Some((now, status));
        if stop.wait_for(Duration::from_secs(seconds)) {
            return Ok(());
        }
    }
}

/// What was counted in a while, by the second.
fn rates(status: &Value, before: &Value, took: Duration) -> String {
    let rate = |name: &str| {
        let counted = number_of(status, name).saturating_sub(number_of(before, name));
        counted as f64 / took.as_secs_f64().max(1e-9)
    };
    let in_use = 100.0 * number_of(status, "used") as f64 / number_of(status, "entries").max(1) as f64;
    format!(
        "{:>8} {in_use:>8.1}% {:>10.0} {:>13} {:>11.0} {:>11.0} {:>8.0}",
        text_of(status, "state"),
        rate("changes"),
        ui::bytes(rate("bytes") as u64),
        rate("syncs_absorbed"),
        rate("syncs_kernel"),
        rate("waits") + rate("refused"),
    )
}

pub(in crate::cmd) fn status(args: &Status) -> Result<(), Fail> {
    let of = args.log.of();
    let log = of.path()?;
    if let Some(seconds) = args.watch {
        return watch(&of, &log, seconds, args.json);
    }
    let status = told(&of, &log)?;
    if args.json {
        return ui::print_json(&status);
    }
    ui::heading(format!("{} ({})", log.display(), text_of(&status, "medium")));
    let number = |name: &str| number_of(&status, name);
    let mood = if status["failed"].is_null() { Mood::Good } else { Mood::Bad };
    let failed = status["failed"].as_str().map_or(String::new(), |why| format!(": {why}"));
    ui::line(mood, "state", format!("{}{failed}", text_of(&status, "state")));
    ui::line(Mood::Note, "entries", format!("{} of {} in use", number("used"), number("entries")));
    ui::line(Mood::Note, "programs", number("programs"));
    if status["strict"] == true {
        ui::line(Mood::Note, "strict", "each change is durable when it returns");
    }
    if let Some(copies) = status["copies"].as_object() {
        let number = |name: &str| copies.get(name).and_then(Value::as_u64).unwrap_or_default();
        let text = format!("a sync waits for {} of {} servers", number("acks"), number("members"));
        ui::line(Mood::Note, "copies", text);
        for lost in copies.get("lost").and_then(Value::as_array).into_iter().flatten() {
            ui::line(Mood::Bad, "lost", lost.as_str().unwrap_or_default());
        }
        match &status["copies"]["images"] {
            Value::Null => {
                ui::line(Mood::Note, "images", "none: files are lost with their disk (--images keeps them)");
            }
            images => tell_images(images),
        }
    }
    tell(&status, &Value::Null);
    Ok(())
}

/// What would survive the loss of the machine with its disk.
fn tell_images(images: &Value) {
    let number = |name: &str| number_of(images, name);
    let text = format!(
        "{} would survive this machine, in {} of {} that the servers have room for",
        ui::count(number("whole") as usize, "file"),
        ui::bytes(number("bytes")),
        ui::bytes(number("room")),
    );
    ui::line(Mood::Note, "images", text);
    if number("unheld") > 0 {
        let text =
            "files could not be taken in, as too many are open: syncs of those do not survive the machine";
        ui::line(Mood::Bad, "not held", format!("{} times {text}", number("unheld")));
    }
    for file in images["lacking"].as_array().into_iter().flatten() {
        let (has, of) = (ui::bytes(number_of(file, "has")), ui::bytes(number_of(file, "of")));
        let (mood, why) = match text_of(file, "state") {
            "building" => (Mood::Note, format!("{has} of {of} are on the servers, and it would be lost")),
            "stale" => {
                (Mood::Note, "it would be there, and not all of what was changed without being logged".into())
            }
            _ => (
                Mood::Bad,
                format!(
                    "its {of} are not on the servers, which have no room, or it cannot be read: it would be lost"
                ),
            ),
        };
        ui::line(mood, text_of(file, "path"), why);
    }
}

pub(super) fn text_of<'a>(status: &'a Value, name: &str) -> &'a str {
    status[name].as_str().unwrap_or_default()
}

pub(super) fn number_of(status: &Value, name: &str) -> u64 {
    status[name].as_u64().unwrap_or_default()
}

/// What was counted since an earlier status, and which files are not absorbed.
fn lines(status: &Value, since: &Value) -> Vec<(String, String)> {
    let number = |name: &str| number_of(status, name).saturating_sub(number_of(since, name));
    let mut lines = vec![
        ("logged".to_owned(), format!("{} changes, {}", number("changes"), ui::bytes(number("bytes")))),
        (
            "syncs".to_owned(),
            format!("{} absorbed, {} by the kernel", number("syncs_absorbed"), number("syncs_kernel")),
        ),
    ];
    if number("waits") + number("refused") > 0 {
        let text =
            format!("{} waits for room, {} changes that found none", number("waits"), number("refused"));
        lines.push(("log full".to_owned(), text));
    }
    for file in status["files"].as_array().into_iter().flatten() {
        if let Some(why) = file["why"].as_str() {
            let rule = file["rule"].as_str().map_or(String::new(), |rule| format!(" ({rule})"));
            lines.push(("not absorbed".to_owned(), format!("{}: {why}{rule}", text_of(file, "path"))));
        }
    }
    lines
}

fn tell(status: &Value, since: &Value) {
    for (name, text) in lines(status, since) {
        ui::line(Mood::Note, &name, text);
    }
}

/// The same on stderr, behind a program that has ended.
pub(in crate::cmd) fn report(status: &Value, since: &Value) {
    if let Some(why) = status["failed"].as_str() {
        anstream::eprintln!("rem: failed: {why}");
    }
    for (name, text) in lines(status, since) {
        anstream::eprintln!("rem: {name}: {text}");
    }
}
