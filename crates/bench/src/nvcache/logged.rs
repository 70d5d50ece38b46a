//! A program and its log: a daemon, and who writes under `rem run`; or who writes without a log.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use remanence_cache_live::command;
use serde_json::Value;

use super::ends::{Burst, Daemon, Found, LogSpec, Writer, WriterSpec};
use crate::erda::tcp::At;
use crate::process;
use crate::programs::{Programs, Spec, Started, signal};
use crate::role::{Agent, Causes, End, Launcher, Ran};

/// So many syncs say whether they were absorbed, and one in so many may be the kernel's.
const TELLING: u64 = 100;
const ONE_IN: u64 = 20;

/// What a daemon has counted of its programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Syncs {
    pub(super) absorbed: u64,
    pub(super) kernel: u64,
    /// Changes that found no room in the log.
    refused: u64,
}

impl Syncs {
    fn of(status: &str) -> Option<Self> {
        let status: Value = serde_json::from_str(status).ok()?;
        let number = |name: &str| status[name].as_u64();
        let (absorbed, kernel) = (number("syncs_absorbed")?, number("syncs_kernel")?);
        Some(Self { absorbed, kernel, refused: number("refused")? })
    }

    fn since(&self, before: &Self) -> Self {
        let less = |of: fn(&Self) -> u64| of(self).saturating_sub(of(before));
        Self {
            absorbed: less(|syncs| syncs.absorbed),
            kernel: less(|syncs| syncs.kernel),
            refused: less(|syncs| syncs.refused),
        }
    }

    /// Whether they are of a program that syncs files which are there for long: all but the first few are to be absorbed.
    ///
    /// # Errors
    /// One sentence: it measured the kernel.
    pub(super) fn are_absorbed(&self) -> Result<(), String> {
        let Self { absorbed, kernel, refused } = *self;
        if refused > 0 {
            return Err(format!("{refused} changes found no room in the log"));
        }
        if absorbed + kernel >= TELLING && kernel * ONE_IN > absorbed {
            let all = absorbed + kernel;
            return Err(format!(
                "{kernel} of {all} syncs were the kernel's, so this is none of the cache's figures"
            ));
        }
        Ok(())
    }
}

/// What was done with a log: what came of it, what the daemon has cost, and its syncs.
pub(super) struct Done<T> {
    pub(super) value: T,
    pub(super) server: Causes,
    pub(super) syncs: Syncs,
}

/// A program, with a log or without. What fails ends it, and it is started anew for the next burst.
pub(super) struct Logged {
    program: PathBuf,
    log: Option<LogSpec>,
    /// How servers are started that have copies of the log, if it has some.
    copied: Option<Spec>,
    servers: Option<Agent<Programs>>,
    files: WriterSpec,
    daemon: Option<Agent<Daemon>>,
    writer: Option<Agent<Writer>>,
}

impl Logged {
    pub(super) const fn new(program: PathBuf, log: Option<LogSpec>, files: WriterSpec) -> Self {
        Self { program, log, copied: None, servers: None, files, daemon: None, writer: None }
    }

    /// The same, whose log has copies on such servers.
    pub(super) fn copied(self, servers: Spec) -> Self {
        Self { copied: Some(servers), ..self }
    }

    /// What a command is put behind to be run with this log; nothing, without one.
    pub(super) fn under(&self) -> Vec<OsString> {
        let Some(LogSpec { log, .. }) = &self.log else { return Vec::new() };
        let words = ["run", "--log"].map(OsString::from);
        let program = [self.program.clone().into_os_string()];
        program.into_iter().chain(words).chain([log.clone().into_os_string(), "--".into()]).collect()
    }

    /// Whether nothing was written into its log yet.
    pub(super) const fn is_new(&self) -> bool {
        self.log.is_some() && self.writer.is_none()
    }

    pub(super) fn directory(&self) -> &Path {
        &self.files.directory
    }

    /// Starts the daemon, if there is none and a log.
    fn serve(&mut self) -> Result<(), String> {
        let Some(spec) = self.log.as_ref().filter(|_| self.daemon.is_none()) else { return Ok(()) };
        // Whoever was there before, and did not end in order, has left what it had.
        process::remove_segment_of(&spec.log);
        let _ = std::fs::remove_file(&spec.log);
        let launcher = Launcher::here(&self.program);
        let mut spec = spec.clone();
        if let Some(copied) = &self.copied {
            // What those of the log before have is of no use.
            self.servers = None;
            let mut servers = Agent::<Programs>::start(&launcher, End::Server)?;
            let address = |server: Started| match server.at[..] {
                [At::Tcp(at)] => Ok(at),
                _ => Err("a server does not say where it is".to_owned()),
            };
            let here = servers.open(copied)?.into_iter().map(address);
            spec.servers = here.collect::<Result<_, _>>()?;
            self.servers = Some(servers);
        }
        let mut daemon = Agent::start(&launcher, End::Server)?;
        daemon.open(&spec)?;
        self.daemon = Some(daemon);
        self.can_run()
    }

    /// Has `rem run` say why it does not run programs here, if it does not.
    fn can_run(&self) -> Result<(), String> {
        let under = self.under();
        let (first, more) = under.split_first().ok_or("there is no log")?;
        let mut command = process::tool(&first.to_string_lossy());
        command.args(more).arg("true").stdout(Stdio::null());
        let said = command.output().map_err(|e| format!("rem run cannot be started: {e}"))?;
        if said.status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&said.stderr).trim().to_owned();
        Err(words.strip_prefix("rem: ").unwrap_or(&words).to_owned())
    }

    /// Starts what is not there.
    pub(super) fn ready(&mut self) -> Result<(), String> {
        let started = self.started();
        if started.is_err() {
            (self.writer, self.daemon) = (None, None);
        }
        started
    }

    fn started(&mut self) -> Result<(), String> {
        self.serve()?;
        if self.writer.is_none() {
            let launcher = Launcher::here(&self.program).under(self.under());
            let mut writer = Agent::start(&launcher, End::Client)?;
            writer.open(&self.files)?;
            self.writer = Some(writer);
            self.drain()?;
        }
        Ok(())
    }

    fn syncs(&self) -> Result<Syncs, String> {
        let Some(LogSpec { log, .. }) = &self.log else { return Ok(Syncs::default()) };
        let said = command::status(log).map_err(|e| format!("the daemon of {}: {e}", log.display()))?;
        Syncs::of(&said).ok_or_else(|| format!("the daemon of {} said {said}", log.display()))
    }

    /// Waits until all is in its files.
    pub(super) fn drain(&self) -> Result<(), String> {
        let Some(LogSpec { log, .. }) = &self.log else { return Ok(()) };
        command::drain(log).map_err(|e| format!("the log {} cannot be drained: {e}", log.display()))
    }

    /// Does something with this log, and has all of it in its files behind that.
    pub(super) fn counted<T>(
        &mut self,
        act: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Result<Done<T>, String> {
        let done = self.counted_once(act);
        if done.is_err() {
            (self.writer, self.daemon) = (None, None);
        }
        done
    }

    fn counted_once<T>(
        &mut self,
        act: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Result<Done<T>, String> {
        let before = self.syncs()?;
        let cost = |this: &mut Self| this.daemon.as_mut().map_or(Ok(Causes::default()), Agent::cost);
        let idle = cost(self)?;
        let value = act(self)?;
        let server = cost(self)?.since(&idle);
        let syncs = self.syncs()?.since(&before);
        self.drain()?;
        Ok(Done { value, server, syncs })
    }

    /// A burst of the program.
    pub(super) fn burst(&mut self, burst: &Burst) -> Result<Ran<Found>, String> {
        self.ready()?;
        let run = |this: &mut Self| this.writer.as_mut().ok_or("it is not there")?.run(burst);
        let Done { value: (values, client), server, syncs } = self.counted(run)?;
        syncs.are_absorbed()?;
        Ok(Ran { values, client, server })
    }

    /// The same, of which all stays in the log.
    pub(super) fn undrained(&mut self, burst: &Burst) -> Result<(), String> {
        self.writer.as_mut().ok_or("it is not there")?.run(burst).map(drop)
    }

    /// Ends all of it, and takes the log away.
    pub(super) fn end(&mut self) {
        (self.writer, self.daemon) = (None, None);
        self.servers = None;
        if let Some(LogSpec { log, .. }) = &self.log {
            process::remove_segment_of(log);
            let _ = std::fs::remove_file(log);
        }
    }

    /// Kills the daemon, and ends the program.
    pub(super) fn crash(&mut self) -> Result<(), String> {
        let daemon = self.daemon.take().ok_or("there is no daemon")?;
        signal(daemon.id(), "KILL")?;
        self.writer = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syncs_that_the_kernel_made_are_no_figure_of_the_cache() {
        let of = |absorbed, kernel, refused| {
            let status =
                serde_json::json!({ "syncs_absorbed": absorbed, "syncs_kernel": kernel, "refused": refused });
            Syncs::of(&status.to_string()).expect("all three are there")
        };
        let before = of(10, 10, 1);
        let judged = |now: Syncs| now.since(&before).are_absorbed();
        assert_eq!(judged(of(10_000, 300, 1)), Ok(()), "some at the start are");
        assert_eq!(judged(of(12, 12, 1)), Ok(()), "four say nothing");
        assert!(judged(of(10, 1000, 1)).is_err_and(|why| why.starts_with("990 of 990 syncs")));
        assert!(judged(of(10_000, 10, 2)).is_err_and(|why| why.contains("no room")));
        assert_eq!(Syncs::of("{}"), None);
    }

    #[test]
    fn a_program_without_a_log_is_put_behind_nothing() {
        let files = WriterSpec { directory: "/d".into(), files: 0, bytes: 0 };
        let log = LogSpec { log: "/l".into(), entries: 64, batch: None, servers: Vec::new() };
        let words = |log| Logged::new("rem".into(), log, files.clone()).under();
        assert!(words(None).is_empty());
        assert_eq!(words(Some(log)), ["rem", "run", "--log", "/l", "--"].map(OsString::from));
    }
}
