//! The process' side: one role, which does what a controller says.

use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use remanence_remote::Stop;
use serde::{Deserialize, Serialize};

use super::{Causes, Counters, End, Role};

/// Controller to role.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", bound = "R: Role")]
pub(super) enum Request<R: Role> {
    Open { end: End, spec: R::Spec },
    Connect(R::Peer),
    Serve(R::Burst),
    Stop,
    Run(R::Burst),
    Cost,
    Close,
}

/// Role to controller.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", bound = "R: Role")]
pub(super) enum Reply<R: Role> {
    Opened(R::Here),
    Done,
    Ran { values: R::Values, causes: Causes },
    Counted(Causes),
}

/// Serves one controller on standard input and output until it closes them.
#[must_use]
pub fn serve_controller<R: Role>() -> ExitCode {
    let mut process = Process::<R> { role: State::Closed, counters: Counters::default() };
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return ExitCode::FAILURE };
        let request = serde_json::from_str(&line).map_err(|e| format!("not a request: {e}"));
        let reply = request.and_then(|request| process.handle(request));
        let mut text = serde_json::to_string(&reply).expect("a reply is plain data");
        text.push('\n');
        let mut out = std::io::stdout().lock();
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            return ExitCode::FAILURE;
        }
    }
    // What it serves is ended, so that what it has made goes with it.
    let _ = process.end();
    ExitCode::SUCCESS
}

/// Where the role is.
enum State<R> {
    Closed,
    Here(R),
    /// In a thread of its own, which gives it back.
    Serving {
        stop: Stop,
        thread: JoinHandle<(R, Result<(), String>)>,
        before: Causes,
    },
}

struct Process<R> {
    role: State<R>,
    counters: Counters,
}

impl<R: Role> Process<R> {
    fn handle(&mut self, request: Request<R>) -> Result<Reply<R>, String> {
        match request {
            Request::Open { end, spec } => {
                self.end()?;
                end.keep();
                let (role, here) = R::open(spec)?;
                self.counters = role.counters();
                self.role = State::Here(role);
                if R::RESIDENT {
                    self.serve(|role, stop| role.reside(stop))?;
                }
                Ok(Reply::Opened(here))
            }
            Request::Connect(peer) => {
                // A resident has no peer that it must know.
                if !R::RESIDENT {
                    self.here()?.connect(peer)?;
                }
                Ok(Reply::Done)
            }
            Request::Serve(burst) => {
                self.here()?.prepare(&burst)?;
                self.serve(|role, stop| role.serve(burst, stop))?;
                Ok(Reply::Done)
            }
            Request::Stop => self.stop().map(Reply::Counted),
            Request::Run(burst) => {
                let before = self.counted();
                let values = self.here()?.run(burst)?;
                Ok(Reply::Ran { values, causes: self.counted().since(&before) })
            }
            Request::Cost => match &self.role {
                State::Serving { thread, .. } if thread.is_finished() => {
                    self.stop()?;
                    Err("it serves no longer".into())
                }
                _ => Ok(Reply::Counted(self.counted())),
            },
            Request::Close => self.end().map(|()| Reply::Done),
        }
    }

    fn here(&mut self) -> Result<&mut R, String> {
        match &mut self.role {
            State::Here(role) => Ok(role),
            State::Closed => Err("nothing is open".into()),
            State::Serving { .. } => Err("it is serving".into()),
        }
    }

    fn counted(&self) -> Causes {
        let mut causes = self.counters.read();
        if let State::Here(role) = &self.role {
            role.count(&mut causes);
        }
        causes
    }

    fn serve(
        &mut self,
        serve: impl FnOnce(&mut R, &Stop) -> Result<(), String> + Send + 'static,
    ) -> Result<(), String> {
        self.here()?;
        let before = self.counted();
        let State::Here(mut role) = std::mem::replace(&mut self.role, State::Closed) else { unreachable!() };
        let stop = Stop::new();
        let stopping = stop.clone();
        let (begins, begun) = channel();
        let thread = std::thread::Builder::new().name("application".into()).spawn(move || {
            let _ = begins.send(());
            let served = serve(&mut role, &stopping);
            (role, served)
        });
        self.role = State::Serving { stop, thread: thread.map_err(|e| e.to_string())?, before };
        // How long a thread takes to begin is not to be measured.
        let _ = begun.recv();
        Ok(())
    }

    fn stop(&mut self) -> Result<Causes, String> {
        match std::mem::replace(&mut self.role, State::Closed) {
            State::Serving { stop, thread, before } => {
                stop.ask();
                let (role, served) = thread.join().map_err(|_| "the serving thread panicked")?;
                self.role = State::Here(role);
                served?;
                Ok(self.counted().since(&before))
            }
            other => {
                self.role = other;
                Err("nothing is served".into())
            }
        }
    }

    /// Stops what is served, and lets the role go.
    fn end(&mut self) -> Result<(), String> {
        let served = if let State::Serving { .. } = self.role { self.stop().map(drop) } else { Ok(()) };
        // The devices go with the role.
        self.counters = Counters::default();
        self.role = State::Closed;
        served
    }
}
