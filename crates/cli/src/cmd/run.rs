//! `rem run`: runs a program that knows nothing of us with its syncs absorbed by a log.
//!
//! The loader puts our library into it (`LD_PRELOAD`), and into what it executes. Into a static program no library can be loaded: its calls, and those of all that it
//! executes, are handed to a supervisor. Without `--report` the program takes the place of this process, as under `rem verbs`.
//!
//! That is the mode *through*; the two others are in `run/deferred.rs`.

mod deferred;

pub(super) use deferred::defers;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use remanence_cache_live::daemon::socket_of;
use remanence_cache_live::supervisor::Supervisor;
use remanence_intercept::{InspectError, Libc, Obstacle, Report, Way};
use remanence_nvcache::programs::VARIABLES;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::geteuid;
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM};

use super::cache::{self, Start};
use crate::args::Tokens;
use crate::fail::{Context as _, Fail};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem run -- sqlite3 app.db                      what survives a kill of everything but the kernel, as without rem
  rem run --log /mnt/pmem/log -- sqlite3 app.db  durable when the log on persistent memory has it
  rem run --log app.log --report -- sqlite3 app.db
                                                 durable when a file that is written in one place has it; and what was done
  rem run --log a,b,c -- sqlite3 app.db          durable when two of three servers (`rem log serve`) have it
  rem run --supervise -- sh serve.sh             a script whose programs are static, or some of them
  rem run --mode deferred --log app.log -- sqlite3 app.db
                                                 its files are read and written in the program, as long as nobody else has them open

A sync waits for the log, and not for the files; the daemon, which is started if none has the log, has them synced behind it.
What a log survives is what its medium does: `rem doctor DIRECTORY` says what that is; `rem doctor PROGRAM` says how a program's calls are seen.
See docs/cache.md for what is absorbed.")]
pub(crate) struct Args {
    #[command(flatten)]
    start: Start,
    /// What the log has of files, and where they are read and written
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Mode::Through)]
    mode: Mode,
    /// Say on stderr, when the program has ended, what was absorbed, and which files were not, and why
    #[arg(long)]
    report: bool,
    /// Have a supervisor see the calls of the program and of all that it executes, static programs too, at fifteen microseconds and more a call; by itself that is
    /// so for a program that is static
    #[arg(long)]
    supervise: bool,
    /// The program and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// How programs are run.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// Everything is the kernel's as ever, and syncs wait for the log: for any files, and any number of programs
    Through,
    /// Files that are opened to be written, and that nobody else has open, are read and written in the program, over a log of its own; they are handed back to the kernel when somebody else
    /// comes, or the program does what only the kernel can
    Deferred,
    /// The same over pages in persistent memory in the log's place
    Pages,
}

/// The variable that names the library's file.
const VARIABLE: &str = "REMANENCE_PRELOAD";
const LIBRARY: &str = "libremanence_preload.so";

pub(crate) fn run(args: &Args) -> Result<(), Fail> {
    let program = find(&args.command[0])?;
    if args.mode != Mode::Through {
        return deferred::run(args, &program);
    }
    let (file, way) = caught(&program, args.supervise)?;
    let library = if way == Way::Outside { None } else { Some(library()?) };
    let log = args.start.of.path()?;
    args.start.copies()?;
    let before = match cache::standing(&log) {
        Some(standing) => {
            args.start.is_fit(&log, &standing)?;
            standing
        }
        None => started(&args.start, &log)?,
    };
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    for name in VARIABLES {
        command.env_remove(name);
    }
    match library {
        Some(library) => hook(&mut command, library, way).env("REMANENCE_CACHE", socket_of(&log)),
        None => {
            supervise(&mut command, &log).map_err(|why| refused(&file, &why))?.env_remove("REMANENCE_CACHE")
        }
    };
    let cannot = |why: io::Error| match unsupervised(&why).filter(|_| way == Way::Outside) {
        Some(said) => refused(&file, &said),
        None => Fail::new(format!("{} cannot be run ({why})", program.display())).with_status(126),
    };
    if !args.report {
        return Err(cannot(command.exec()));
    }
    let status = waited_for(&mut command)?.map_err(cannot)?;
    match cache::standing(&log) {
        Some(after) => {
            anstream::eprintln!("rem: calls of {}: seen {way}", file.display());
            cache::report(&after, &before);
        }
        None => anstream::eprintln!("rem: the daemon of {} does not answer any more", log.display()),
    }
    ended(&program, status)
}

/// Runs a program, and waits until it has ended.
fn waited_for(command: &mut Command) -> Result<io::Result<ExitStatus>, Fail> {
    // They are the program's, which gets them too, and ends as it likes. It has none of these handlers.
    for signal in [SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))
            .context(|| "signals cannot be received".into())?;
    }
    Ok(command.status())
}

/// Ends as a program has.
fn ended(program: &Path, status: ExitStatus) -> Result<(), Fail> {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    match u8::try_from(code) {
        Ok(0) => Ok(()),
        Ok(code) => {
            Err(Fail::new(format!("{} has ended with status {code}", program.display())).with_status(code))
        }
        Err(_) => Err(Fail::new(format!("{} has ended with {status}", program.display()))),
    }
}

/// The library: the one that `REMANENCE_PRELOAD` names, or where a build or an installation puts it.
pub(super) fn library() -> Result<PathBuf, Fail> {
    let named = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()).map(PathBuf::from);
    let beside = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let places: Vec<PathBuf> = match (named, beside) {
        (Some(named), _) => vec![std::path::absolute(&named).unwrap_or(named)],
        (None, Some(beside)) => {
            let installed = beside.parent().map(|prefix| prefix.join("lib/remanence").join(LIBRARY));
            std::iter::once(beside.join(LIBRARY)).chain(installed).collect()
        }
        (None, None) => Vec::new(),
    };
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        let tried: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        Fail::new(format!(
            "the library is not at {}; build it with `cargo build --release -p remanence-preload`, or name it in {VARIABLE}",
            tried.join(" or ")
        ))
    })
}

/// How a program's calls are seen by us: our library has a C library itself, and cannot be loaded into a program that has another one.
pub(super) fn way_of(report: &Report) -> Result<Way, Obstacle> {
    // Nothing is looked into where this program has the same one.
    let own = if cfg!(target_env = "musl") { Libc::Musl } else { Libc::Glibc };
    let has_another = |library: PathBuf| {
        let ours = remanence_intercept::inspect(library).ok();
        ours.is_some_and(|ours| ours.libc != report.libc)
    };
    let way = report.way()?;
    let is_another = way != Way::Outside && report.libc != own && library().is_ok_and(has_another);
    Ok(if is_another { Way::Outside } else { way })
}

/// The file of a program, as the kernel and the shells look for it.
fn find(name: &OsStr) -> Result<PathBuf, Fail> {
    let path = Path::new(name);
    let found = if path.components().count() > 1 {
        path.is_file().then(|| path.to_owned())
    } else {
        let directories = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&directories).map(|directory| directory.join(name)).find(|file| file.is_file())
    };
    found.ok_or_else(|| {
        let name = path.display();
        Fail::new(format!("there is no program {name}; check its name, or give its path")).with_status(127)
    })
}

/// What the program's loader is to load before all else, without our library.
fn preloads() -> Vec<OsString> {
    let preloads = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let preloads = preloads.as_bytes().split(|byte| b": ".contains(byte)).filter(|name| !name.is_empty());
    let ours = |name: &&[u8]| !Path::new(OsStr::from_bytes(name)).ends_with(LIBRARY);
    preloads.filter(ours).map(|name| OsStr::from_bytes(name).to_owned()).collect()
}

/// Has the loader put our library into a program.
fn hook(command: &mut Command, library: PathBuf, way: Way) -> &mut Command {
    let mut preload = library.into_os_string();
    for more in preloads() {
        preload.push(":");
        preload.push(more);
    }
    command.env("LD_PRELOAD", preload);
    if way == Way::All {
        command.env("REMANENCE_CACHE_SCOPE", "all");
    }
    command
}

/// Has a supervisor see a program's calls. What it executes must not have our library as well, if this process is under one itself.
fn supervise<'c>(command: &'c mut Command, log: &Path) -> Result<&'c mut Command, String> {
    Supervisor::start(&socket_of(log))?.watch(command);
    Ok(match preloads() {
        none if none.is_empty() => command.env_remove("LD_PRELOAD"),
        others => command.env("LD_PRELOAD", others.join(OsStr::new(":"))),
    })
}

/// Why the kernel does not hand a program's calls to a supervisor, if that is what it says.
fn unsupervised(why: &io::Error) -> Option<&'static str> {
    Some(match Errno::from_io_error(why)? {
        Errno::INVAL => "a supervisor takes Linux 5.19",
        Errno::BUSY => "another supervisor sees its calls already, as in some containers (seccomp)",
        Errno::PERM => "this user may not look into it, which a supervisor has to",
        _ => return None,
    })
}

fn refused(file: &Path, why: &dyn std::fmt::Display) -> Fail {
    Fail::new(format!("{} cannot be run with its syncs absorbed: {why}", file.display())).with_status(126)
}

/// The file whose code a program is, and how its calls are seen. Refuses one whose calls would not be.
fn caught(program: &Path, supervise: bool) -> Result<(PathBuf, Way), Fail> {
    let mut file = program.to_owned();
    for _ in 0..4 {
        let report = match remanence_intercept::inspect(&file) {
            Ok(report) => report,
            Err(InspectError::Script(_, interpreter)) => {
                let mut words = interpreter.split_ascii_whitespace();
                let first = words.next().unwrap_or("/bin/sh");
                let through = words.next().filter(|_| first.ends_with("/env"));
                file = through.map_or_else(|| Ok(first.into()), |name| find(OsStr::new(name)))?;
                continue;
            }
            Err(why) => return Err(Fail::new(why.to_string()).with_status(126)),
        };
        return match way_of(&report) {
            Ok(way) => Ok((file, if supervise { Way::Outside } else { way })),
            Err(why) => Err(refused(&file, &why)),
        };
    }
    Err(Fail::new(format!("{} is a script of scripts", program.display())).with_status(126))
}

/// Starts a daemon that outlives this command, and says how it stands.
fn started(start: &Start, log: &Path) -> Result<Value, Fail> {
    let mut errors = log.as_os_str().to_owned();
    errors.push(".err");
    let errors = PathBuf::from(errors);
    // What somebody else has put there, in a directory that all may write to, is neither written to nor followed; and nothing is cut short.
    let told = File::options()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(&errors)
        .context(|| format!("{} cannot be written", errors.display()))?;
    let before = told.metadata().context(|| format!("{} cannot be read", errors.display()))?;
    if before.uid() != geteuid().as_raw() {
        return Err(Fail::new(format!("{} belongs to another user: name another log", errors.display())));
    }
    let own = std::env::current_exe().context(|| "this program's file is not known".into())?;
    // Through a shell, that ends at once: the daemon is not to be a child of the program.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "\"$@\" &", "sh"]).arg(own);
    // Servers by their names, and a file by its whole path: the daemon works in another directory one day.
    let name = if start.copies()?.is_some() { start.of.name() } else { log };
    command.args(["cache", "start", "--log"]).arg(name);
    if let Some(size) = start.size {
        command.args(["--size", &size.0.to_string()]);
    }
    if let Some(acks) = start.reach.acks {
        command.args(["--acks", &acks.to_string()]);
    }
    for (is_asked, option) in [(start.images, "--images"), (start.strict, "--strict")] {
        command.args(is_asked.then_some(option));
    }
    match &start.reach.tokens {
        Tokens { token: Some(token), .. } => drop(command.env("REM_TOKEN", token)),
        Tokens { token_file: Some(file), .. } => drop(command.arg("--token-file").arg(file)),
        Tokens { .. } => {}
    }
    for (option, paths) in [("--include", &start.include), ("--exclude", &start.exclude)] {
        for path in paths {
            command.arg(option).arg(path);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(told).process_group(0);
    let mut shell = command.spawn().context(|| "the daemon cannot be started".into())?;
    if let Some(out) = shell.stdout.take() {
        for line in BufReader::new(out).lines() {
            match line.context(|| "the daemon does not say that it is ready".into())?.as_str() {
                "ready" => break,
                recovered => anstream::eprintln!("rem: {recovered}"),
            }
        }
    }
    shell.wait().context(|| "a shell does not end".into())?;
    // Another one may have been quicker.
    cache::standing(log).ok_or_else(|| {
        let said = std::fs::read_to_string(&errors).unwrap_or_default();
        let said = said.get(before.len() as usize..).unwrap_or_default().trim();
        let said = said.strip_prefix("rem: ").unwrap_or(said).to_owned();
        if before.len() == 0 {
            let _ = std::fs::remove_file(&errors);
        }
        Fail::new(if said.is_empty() { format!("the daemon of {} has ended", log.display()) } else { said })
    })
}
