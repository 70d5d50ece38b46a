//! `rem run --mode deferred` and `--mode pages`: the program's files are read and written in the program, by the library, over a log or pages that it has for itself.
//!
//! There is no daemon. What a program that was killed has left in the log is recovered here before the next one starts; it has the log from the moment in which it opens the first file that it may write.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use remanence_cache_live::daemon::Paths;
use remanence_intercept::{Libc, Report, Way, inspect};
use remanence_nvcache::programs::{Count, Settings};
use remanence_nvcache::{Cache, Options};
use rustix::fs::{MemfdFlags, memfd_create};

use super::{Args, Mode, caught, ended, hook, library, refused, waited_for};
use crate::fail::{Context as _, Fail};

pub(super) fn run(args: &Args, program: &Path) -> Result<(), Fail> {
    let start = &args.start;
    let name = if args.mode == Mode::Pages { "pages" } else { "deferred" };
    let no = |what: &str| Fail::new(format!("{what} is not for --mode {name}: leave it out, or the mode"));
    if args.supervise {
        return Err(no("--supervise"));
    }
    if start.images {
        return Err(no("--images"));
    }
    if start.copies()?.is_some() {
        return Err(no("a log with copies on servers"));
    }
    let (file, way) = caught(program, false)?;
    if !inspect(&file).is_ok_and(|report| defers(&report)) {
        let why = format!(
            "--mode {name} is for programs with the GNU C library that the loader loads, and for none of Go; --mode through runs it"
        );
        return Err(refused(&file, &why));
    }
    let log = log(args, name)?;
    prepare(args, &log)?;
    let paths = start.paths()?;
    refuse_newlines(&paths)?;
    let counts = args.report.then(counts).transpose()?;
    let place = counts
        .as_ref()
        .map(|counts| PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), counts.as_raw_fd())));
    let settings = Settings { log: log.clone(), pages: args.mode == Mode::Pages, counts: place, paths };
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]).env_remove("REMANENCE_CACHE");
    hook(&mut command, library()?, way);
    for (name, value) in settings.variables() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let cannot =
        |why: io::Error| Fail::new(format!("{} cannot be run ({why})", program.display())).with_status(126);
    let Some(counts) = counts else { return Err(cannot(command.exec())) };
    let status = waited_for(&mut command)?.map_err(cannot)?;
    anstream::eprintln!("rem: mode {name}: {} over {}", file.display(), log.display());
    for count in Count::ALL {
        let mut word = [0; 8];
        counts.read_exact_at(&mut word, count as u64 * 8).context(|| "the counts cannot be read".into())?;
        let number = u64::from_le_bytes(word);
        if number > 0 || count as u8 <= Count::Syncs as u8 {
            anstream::eprintln!("rem: {}: {number}", count.said());
        }
    }
    // What one has left that was killed; unless others have the log.
    if let Err(why) = prepare(args, &log) {
        anstream::eprintln!("rem: {why}");
    }
    ended(program, status)
}

/// Whether a program's files can be read and written in it: a thread of ours has to be at home there, and all calls be seen.
pub(in crate::cmd) fn defers(report: &Report) -> bool {
    matches!(report.way(), Ok(Way::Libc | Way::All)) && report.libc == Libc::Glibc && report.go.is_none()
}

/// Where the log, or the pages, are.
fn log(args: &Args, name: &str) -> Result<PathBuf, Fail> {
    let of = &args.start.of;
    if of.name() == Path::new("shm") {
        return Ok(format!("/dev/shm/remanence-{name}-{}", rustix::process::geteuid().as_raw()).into());
    }
    // By the path that the kernel shows, where it is there.
    let path = of.path()?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    let directory =
        std::fs::canonicalize(directory).context(|| format!("{} is not there", directory.display()))?;
    Ok(path.file_name().map_or_else(|| directory.clone(), |name| directory.join(name)))
}

/// Makes the log if it is not there, and recovers what a program has left in it.
fn prepare(args: &Args, log: &Path) -> Result<(), Fail> {
    let options = if args.mode == Mode::Pages { Options::pages(log) } else { Options::new(log) };
    let options = args.start.size.map_or(options.clone(), |size| options.size(size.0));
    let cache = Cache::open(&options).map_err(|why| Fail::new(why.to_string()))?;
    if let Some(recovered) = cache.recovered() {
        anstream::eprintln!("rem: {recovered}");
    }
    cache.close().map_err(|why| Fail::new(why.to_string()))
}

/// Rules are told one a line.
fn refuse_newlines(paths: &Paths) -> Result<(), Fail> {
    let mut rules = paths.include.iter().chain(&paths.exclude);
    match rules.find(|rule| rule.text().to_string_lossy().contains('\n')) {
        Some(rule) => Err(Fail::new(format!("a rule with a newline is none for this mode: {rule}"))),
        None => Ok(()),
    }
}

/// Memory that the programs count in.
fn counts() -> Result<File, Fail> {
    let made = memfd_create("rem-counts", MemfdFlags::CLOEXEC).map(File::from).map_err(io::Error::from);
    made.and_then(|counts| counts.set_len(Count::LEN).map(|()| counts))
        .context(|| "memory for the report cannot be had".into())
}
