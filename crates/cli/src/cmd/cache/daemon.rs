//! `rem cache start`, `status`, `drain`, `stop`: the daemon of a write cache, and what is asked of it.

use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};

use remanence_cache_live::command;
use remanence_cache_live::daemon::{Options, Paths, Rule, of_another_size, serve};
use serde_json::Value;

use crate::args::Size;
use crate::fail::{Context as _, Fail};
use crate::serving::{print_line, when_asked};
use crate::signals::Stop;
use crate::ui::{self, Mood};

/// Which log is meant.
#[derive(clap::Args, Clone, Debug)]
pub(in crate::cmd) struct Of {
    /// The log's file, made if it is not there; `shm` is one in memory, which survives the death of any process, and no loss of power
    #[arg(long, value_name = "FILE", default_value = "shm")]
    log: PathBuf,
}

impl Of {
    /// Where it is.
    pub(in crate::cmd) fn path(&self) -> Result<PathBuf, Fail> {
        if self.log == Path::new("shm") {
            let user = rustix::process::geteuid().as_raw();
            return Ok(format!("/dev/shm/remanence-cache-{user}.log").into());
        }
        std::path::absolute(&self.log).context(|| format!("the log {} has no place", self.log.display()))
    }
}

/// How a daemon is started.
#[derive(clap::Args, Clone, Debug)]
pub(in crate::cmd) struct Start {
    #[command(flatten)]
    pub(in crate::cmd) of: Of,
    /// Size of a log that is made, 128M if it is left out; one that is there has to have this size
    #[arg(long, value_name = "SIZE")]
    pub(in crate::cmd) size: Option<Size>,
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

    /// What is cached.
    fn paths(&self) -> Result<Paths, Fail> {
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
        let Paths { include, exclude } = self.paths()?;
        let same = |name: &str, rules: &[Rule]| {
            let has =
                standing[name].as_array().into_iter().flatten().map(|rule| rule.as_str().unwrap_or_default());
            rules.is_empty() || has.eq(rules.iter().map(ToString::to_string))
        };
        if same("include", &include) && same("exclude", &exclude) {
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

#[derive(clap::Args, Debug)]
pub(in crate::cmd) struct Status {
    #[command(flatten)]
    of: Of,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Bytes that an entry takes.
const ENTRY: u64 = 4096 + 64;

pub(in crate::cmd) fn start(args: &Start) -> Result<(), Fail> {
    let options =
        Options { log: args.of.path()?, entries: args.entries(), batch: None, paths: args.paths()? };
    let stop = Stop::listen()?;
    let (ended, end) = UnixStream::pair().context(|| "a pair of sockets cannot be had".into())?;
    when_asked(&stop, false, move || drop(end));
    let ready = |recovered: Option<&str>| {
        // Who does not read it any more has the socket.
        let _ = recovered.map_or(Ok(()), print_line).and_then(|()| print_line("ready"));
    };
    serve(&options, ended.as_fd(), ready).map_err(|why| Fail::new(why.to_string()))
}

pub(in crate::cmd) fn drain(of: &Of) -> Result<(), Fail> {
    asked(&of.path()?, "drained", command::drain)
}

pub(in crate::cmd) fn stop(of: &Of) -> Result<(), Fail> {
    asked(&of.path()?, "closed", command::stop)
}

fn asked(log: &Path, done: &str, ask: fn(&Path) -> std::io::Result<()>) -> Result<(), Fail> {
    ask(log).map_err(|why| refused(log, &why))?;
    ui::print(format!("{} is {done}", log.display()));
    Ok(())
}

fn refused(log: &Path, why: &std::io::Error) -> Fail {
    let log = log.display();
    match why.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
            Fail::new(format!("no daemon has the log {log}: `rem cache start --log {log}` starts one"))
        }
        _ => Fail::new(format!("the daemon of {log} could not do it ({why}); `rem cache status` says more")),
    }
}

/// How a daemon stands; `None` if there is none.
pub(in crate::cmd) fn standing(log: &Path) -> Option<Value> {
    serde_json::from_str(&command::status(log).ok()?).ok()
}

pub(in crate::cmd) fn status(args: &Status) -> Result<(), Fail> {
    let log = args.of.path()?;
    let text = command::status(&log).map_err(|why| refused(&log, &why))?;
    let status: Value =
        serde_json::from_str(&text).context(|| "the daemon's answer cannot be read".into())?;
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
    tell(&status, &Value::Null);
    Ok(())
}

fn text_of<'a>(status: &'a Value, name: &str) -> &'a str {
    status[name].as_str().unwrap_or_default()
}

fn number_of(status: &Value, name: &str) -> u64 {
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
    for (name, text) in lines(status, since) {
        anstream::eprintln!("rem: {name}: {text}");
    }
}
