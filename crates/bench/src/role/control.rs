//! The controller's side: processes, pairs of them, and what was lost.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::agent::{Reply, Request};
use super::{Causes, End, Role};
use crate::machine;
use crate::netns::NetworkPath;
use crate::process;

/// How long a process may take for anything that it is asked for; longer than anything that it waits for itself.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How long a process may take for a burst at least, where it has run others: as long as it waits for its peer, and some more.
const BURST: Duration = Duration::from_secs(25);
/// By how much a burst may be longer than the longest before it.
const LONGER: u32 = 20;
/// Who waits longer than this says so.
const NOTICE: Duration = Duration::from_secs(3);
/// What a pair could not be made so often in a row is not tried any more.
const TRIES: u32 = 3;
/// How long a process may take to end when its input has.
const FAREWELL: Duration = Duration::from_secs(2);

type Notice = Box<dyn Fn(&str) + Send + Sync>;

static NOTICES: OnceLock<Notice> = OnceLock::new();

/// Says who is told that a process is waited for; it is said once.
pub fn notice_waits(tell: impl Fn(&str) + Send + Sync + 'static) {
    let _ = NOTICES.set(Box::new(tell));
}

/// How long a process may take for a burst, of which the longest so far took that long.
fn limit_of_burst(patience: Duration, longest: Option<Duration>) -> Duration {
    longest.map_or(patience, |longest| patience.min(BURST + longest * LONGER))
}

/// Where the processes of a bench are started, and from which program.
#[derive(Debug)]
pub struct Launcher {
    program: PathBuf,
    network: NetworkPath,
    envs: Vec<(&'static str, OsString)>,
    /// What starts the program in turn, on this host: a command that has it behind its own words.
    under: Vec<OsString>,
}

impl Launcher {
    /// On this host.
    #[must_use]
    pub fn here(program: &Path) -> Self {
        Self::at(program, NetworkPath::Loopback)
    }

    /// At both ends of a network.
    #[must_use]
    pub fn at(program: &Path, network: NetworkPath) -> Self {
        Self { program: program.to_owned(), network, envs: Vec::new(), under: Vec::new() }
    }

    /// With a variable of the environment more.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.envs.push((name, value.into()));
        self
    }

    /// With a command in front that becomes the program in the end, as `rem run` does: the process is the same one.
    #[must_use]
    pub fn under(mut self, command: Vec<OsString>) -> Self {
        self.under = command;
        self
    }

    /// The network that joins the ends.
    #[must_use]
    pub const fn network(&self) -> &NetworkPath {
        &self.network
    }

    fn command(&self, end: End, word: &str) -> Result<Command, String> {
        let mut command = match self.network {
            NetworkPath::Loopback => match self.under.split_first() {
                Some((first, more)) => {
                    let mut command = Command::new(first);
                    command.args(more).arg(&self.program);
                    command
                }
                None => Command::new(&self.program),
            },
            NetworkPath::Veth(_) => {
                let program = self.program.to_str().ok_or("the program's path is not UTF-8")?;
                let core = end.cores(&machine::allowed()).first().copied().unwrap_or(0);
                self.network.command(program, core, end == End::Client)
            }
        };
        command.args(["bench-agent", word]).envs(self.envs.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }
}

/// The controller's hold on a process that is a role. It ends when this goes.
#[derive(Debug)]
pub(crate) struct Agent<R> {
    end: End,
    process: Child,
    requests: Option<ChildStdin>,
    replies: Receiver<String>,
    patience: Duration,
    /// The longest burst that it has run.
    longest: Option<Duration>,
    is_gone: bool,
    is: PhantomData<fn() -> R>,
}

impl<R: Role> Agent<R> {
    /// Starts the process.
    pub(crate) fn start(launcher: &Launcher, end: End) -> Result<Self, String> {
        let mut command = launcher.command(end, R::WORD)?;
        let name = command.get_program().display().to_string();
        let child = process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut process = child.map_err(|e| format!("cannot start {name}: {e}"))?;
        let requests = process.stdin.take();
        let lines = BufReader::new(process.stdout.take().ok_or("no standard output")?).lines();
        let (sender, replies) = channel();
        // A pipe is read without a limit; a channel has one. The thread ends when the process does.
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let (patience, longest, is_gone, is) = (PATIENCE, None, false, PhantomData);
        Ok(Self { end, process, requests, replies, patience, longest, is_gone, is })
    }

    /// With another deadline for each request.
    pub(crate) fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Has it become what the specification says; what its peer is to know of it.
    pub(crate) fn open(&mut self, spec: &R::Spec) -> Result<R::Here, String> {
        match self.ask(Request::Open { end: self.end, spec: spec.clone() })? {
            Reply::Opened(here) => Ok(here),
            _ => Err(self.odd()),
        }
    }

    fn connect(&mut self, peer: &R::Peer) -> Result<(), String> {
        self.done(Request::Connect(peer.clone()))
    }

    fn serve(&mut self, burst: &R::Burst) -> Result<(), String> {
        self.done(Request::Serve(burst.clone()))
    }

    fn stop(&mut self) -> Result<Causes, String> {
        self.counted(Request::Stop)
    }

    pub(crate) fn run(&mut self, burst: &R::Burst) -> Result<(R::Values, Causes), String> {
        let begin = Instant::now();
        match self.ask(Request::Run(burst.clone()))? {
            Reply::Ran { values, causes } => {
                self.longest = self.longest.max(Some(begin.elapsed()));
                Ok((values, causes))
            }
            _ => Err(self.odd()),
        }
    }

    /// What it has counted since it began.
    pub(crate) fn cost(&mut self) -> Result<Causes, String> {
        self.counted(Request::Cost)
    }

    fn close(&mut self) -> Result<(), String> {
        self.done(Request::Close)
    }

    fn done(&mut self, request: Request<R>) -> Result<(), String> {
        match self.ask(request)? {
            Reply::Done => Ok(()),
            _ => Err(self.odd()),
        }
    }

    fn counted(&mut self, request: Request<R>) -> Result<Causes, String> {
        match self.ask(request)? {
            Reply::Counted(causes) => Ok(causes),
            _ => Err(self.odd()),
        }
    }

    fn odd(&self) -> String {
        self.named("answered out of turn")
    }

    fn named(&self, what: &str) -> String {
        format!("{}: {what}", self.end.name())
    }

    /// The next line that it says within a limit; who waits for long says so.
    fn reply(&self, limit: Duration) -> Result<String, RecvTimeoutError> {
        match self.replies.recv_timeout(limit.min(NOTICE)) {
            Err(RecvTimeoutError::Timeout) if limit > NOTICE => {
                if let Some(tell) = NOTICES.get() {
                    tell(&format!("waiting for {}, up to {} s", self.end.name(), limit.as_secs()));
                }
                self.replies.recv_timeout(limit - NOTICE)
            }
            said => said,
        }
    }

    fn ask(&mut self, request: Request<R>) -> Result<Reply<R>, String> {
        let is_burst = matches!(request, Request::Run(_));
        let limit = if is_burst { limit_of_burst(self.patience, self.longest) } else { self.patience };
        let mut line = serde_json::to_string(&request).expect("a request is plain data");
        line.push('\n');
        // A process that is gone says so below.
        let _ = self.requests.as_mut().is_some_and(|requests| requests.write_all(line.as_bytes()).is_ok());
        match self.reply(limit) {
            Ok(line) => match serde_json::from_str::<Result<Reply<R>, String>>(&line) {
                Ok(said) => said.map_err(|why| self.named(&why)),
                Err(e) => Err(self.named(&format!("said what is no reply: {e}: {line}"))),
            },
            Err(RecvTimeoutError::Disconnected) => {
                self.is_gone = true;
                let status = self.process.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
                Err(self.named(&format!("its process ended: {status}")))
            }
            Err(RecvTimeoutError::Timeout) => {
                // Only a signal ends it: it may not even read.
                let _ = self.process.kill();
                self.is_gone = true;
                let limit = limit.as_secs_f64();
                Err(self.named(&format!("no answer for {limit} s, so its process was ended")))
            }
        }
    }
}

impl<R> Drop for Agent<R> {
    fn drop(&mut self) {
        // Closing its input ends it; a process that does not hear is ended.
        drop(self.requests.take());
        let begin = Instant::now();
        while begin.elapsed() < FAREWELL {
            if let Ok(Some(_)) = self.process.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A burst: what the client found, and what each end counted meanwhile.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ran<V> {
    /// What the client found.
    pub values: V,
    /// What its process counted.
    pub client: Causes,
    /// What the server's process counted.
    pub server: Causes,
}

impl<V> Ran<V> {
    /// The same burst, of which something else is told.
    #[must_use]
    pub fn map<T>(self, tell: impl FnOnce(V) -> T) -> Ran<T> {
        Ran { values: tell(self.values), client: self.client, server: self.server }
    }
}

/// A server and a client. Whatever fails ends both processes, as they do not agree any more on what is under way; the next
/// [`open`](Self::open) starts them anew.
#[derive(Debug)]
pub struct Pair<S, C> {
    launcher: Launcher,
    patience: Duration,
    ends: Option<(Agent<S>, Agent<C>)>,
    is_open: bool,
    /// What it could not be made lately, how often in a row, and why.
    refused: (String, u32, String),
}

impl<S, C> Pair<S, C>
where
    S: Role,
    C: Role<Peer = S::Here, Here = S::Peer>,
{
    /// One that is to be opened.
    #[must_use]
    pub const fn new(launcher: Launcher) -> Self {
        Self {
            launcher,
            patience: PATIENCE,
            ends: None,
            is_open: false,
            refused: (String::new(), 0, String::new()),
        }
    }

    /// With another deadline for each request.
    #[must_use]
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Where it is.
    #[must_use]
    pub const fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    /// Whether it is open.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Opens and connects both ends; what was open is closed. Processes that are not there are started.
    ///
    /// Returns what the server says of itself.
    ///
    /// # Errors
    /// What either end, or both, failed with.
    pub fn open(&mut self, server: &S::Spec, client: &C::Spec) -> Result<S::Here, String> {
        if self.is_open {
            self.close()?;
        }
        let wanted = serde_json::to_string(&(server, client)).expect("specifications are plain data");
        let tried = if self.refused.0 == wanted { self.refused.1 } else { 0 };
        if tried >= TRIES {
            return Err(format!("{} ({TRIES} times in a row, and not tried again)", self.refused.2));
        }
        if self.ends.is_none() {
            let server = Agent::start(&self.launcher, End::Server)?;
            self.ends = Some((server, Agent::start(&self.launcher, End::Client)?));
        }
        let opened = self.attempt(|s, c| {
            let (there, here) = (s.open(server)?, c.open(client)?);
            s.connect(&here)?;
            c.connect(&there)?;
            Ok(there)
        });
        self.is_open = opened.is_ok();
        let refused = opened.as_ref().err().map(|why| (wanted, tried + 1, why.clone()));
        self.refused = refused.unwrap_or_default();
        opened
    }

    /// A burst of the client's, while the server serves `serve`; a resident serves anyway.
    ///
    /// # Errors
    /// What either end, or both, failed with.
    pub fn burst(&mut self, serve: Option<&S::Burst>, run: &C::Burst) -> Result<Ran<C::Values>, String> {
        let ((values, client), server) = self.attempt(|s, c| match serve {
            Some(serve) => {
                s.serve(serve)?;
                let ran = c.run(run);
                both(ran, s.stop())
            }
            None => {
                let before = s.cost()?;
                let ran = c.run(run)?;
                Ok((ran, s.cost()?.since(&before)))
            }
        })?;
        Ok(Ran { values, client, server })
    }

    /// What the server has counted since it began.
    ///
    /// # Errors
    /// What it failed with.
    pub fn server_cost(&mut self) -> Result<Causes, String> {
        self.attempt(|server, _| server.cost())
    }

    /// Closes both ends; their processes stay.
    ///
    /// # Errors
    /// What either end, or both, failed with.
    pub fn close(&mut self) -> Result<(), String> {
        if !std::mem::replace(&mut self.is_open, false) {
            return Ok(());
        }
        self.attempt(|server, client| both(client.close(), server.close()).map(drop))
    }

    /// Ends both processes; the next [`open`](Self::open) starts others. What a process draws once, such as where its memory lies, is then
    /// drawn anew, and what it matters is part of every interval over blocks.
    ///
    /// # Errors
    /// What either end, or both, failed with when they were closed. They have ended all the same.
    pub fn renew(&mut self) -> Result<(), String> {
        let closed = self.close();
        self.ends = None;
        closed
    }

    /// Does something with both ends. If it fails, the server is asked how it fares, and both are gone.
    fn attempt<T>(
        &mut self,
        with: impl FnOnce(&mut Agent<S>, &mut Agent<C>) -> Result<T, String>,
    ) -> Result<T, String> {
        let (server, client) = self.ends.as_mut().ok_or("nothing is open")?;
        (server.patience, client.patience) = (self.patience, self.patience);
        let why = match with(server, client) {
            Ok(done) => return Ok(done),
            Err(why) => why,
        };
        // What a server serves may have failed first, and so have been the cause.
        let last = if server.is_gone { Ok(()) } else { server.close() };
        (self.ends, self.is_open) = (None, false);
        both(Err(why), last).map(|(done, ())| done)
    }
}

/// Where both failed, one of them is the cause and the other its consequence, and only a reader can tell which.
fn both<A, B>(client: Result<A, String>, server: Result<B, String>) -> Result<(A, B), String> {
    match (client, server) {
        (Ok(a), Ok(b)) => Ok((a, b)),
        (Err(why), Ok(_)) | (Ok(_), Err(why)) => Err(why),
        (Err(client), Err(server)) => Err(format!("{client}; {server}")),
    }
}

/// What could not be measured, by its cause.
#[derive(Clone, Debug, Default)]
pub struct Lost(Vec<(String, Vec<String>)>);

impl Lost {
    /// A cell that was lost, whose every burst may be.
    pub fn add(&mut self, cell: impl Into<String>, why: impl Into<String>) {
        let (cell, why) = (cell.into(), why.into());
        let at = self.0.iter().position(|(known, _)| *known == why).unwrap_or_else(|| {
            self.0.push((why, Vec::new()));
            self.0.len() - 1
        });
        let cells = &mut self.0[at].1;
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }

    /// A line for each cause, with all cells that it cost.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.0.iter().map(|(why, cells)| format!("{}: {why}", cells.join(", "))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_may_take_as_long_as_the_others_let_expect() {
        let ms = Duration::from_millis;
        assert_eq!(limit_of_burst(PATIENCE, None), PATIENCE, "nothing is known of it");
        assert_eq!(limit_of_burst(PATIENCE, Some(ms(5))), BURST + ms(100));
        assert_eq!(limit_of_burst(PATIENCE, Some(ms(60_000))), PATIENCE);
        assert_eq!(limit_of_burst(ms(2000), Some(ms(5))), ms(2000), "it was said how long");
    }

    #[test]
    fn each_lost_cell_is_listed_once_beside_its_cause() {
        let mut lost = Lost::default();
        for (cell, why) in [("a", "gone"), ("b", "gone"), ("a", "gone"), ("a", "late")] {
            lost.add(cell, why);
        }
        assert_eq!(lost.lines(), ["a, b: gone", "a: late"]);
    }
}
