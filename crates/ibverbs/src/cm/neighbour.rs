//! Whether anybody is there to be connected to, which decides whether an address is resolved.
//!
//! Read first: `../neighbour.rs`. The network is asked once, and the answer waited for as long as the program said:
//! `ADDR_ERROR` with `ETIMEDOUT` is what comes of nobody. One thread waits for all of a process, and is there only while
//! somebody is asked for.

use std::ffi::c_int;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use remanence_link::neighbour::{Hop, Neighbours, Watch, call};
use remanence_link::{WaitFd, wait, without_signals};

use crate::per_process::PerProcess;

use super::id::{Local, registry};

/// What an identifier waits for.
struct Question {
    /// Of the identifier.
    token: u64,
    hop: Hop,
    src: SocketAddr,
    dst: SocketAddr,
    /// When it is given up; `None` for never.
    until: Option<Instant>,
    asked: bool,
}

/// Everything that is asked for in this process.
#[derive(Default)]
struct Asking {
    questions: Vec<Question>,
    /// Wakes the thread, while there is one.
    wake: Option<UnixStream>,
}

fn asking() -> MutexGuard<'static, Asking> {
    static ASKING: PerProcess<Mutex<Asking>> = PerProcess::new();
    // Every change is whole before anything can panic.
    ASKING.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the network asked for a hop, on behalf of the identifier with a token, which is told what came of it. A negative
/// time is for ever, as to the kernel.
///
/// # Errors
/// Nobody can be asked, for want of threads or descriptors.
pub(super) fn ask(
    token: u64,
    hop: Hop,
    src: SocketAddr,
    dst: SocketAddr,
    timeout_ms: c_int,
) -> io::Result<()> {
    let until = u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
    let mut asking = asking();
    if asking.wake.is_none() {
        let (wake, woken) = start()?;
        without_signals(|| thread::Builder::new().name("rdma_addr".into()).spawn(|| run(woken)))?;
        asking.wake = Some(wake);
    } else {
        asking.wake();
    }
    asking.questions.push(Question { token, hop, src, dst, until, asked: false });
    Ok(())
}

/// The identifier does not want to know any more.
pub(super) fn forget(token: u64) {
    let mut asking = asking();
    let before = asking.questions.len();
    asking.questions.retain(|question| question.token != token);
    if asking.questions.len() != before {
        asking.wake();
    }
}

impl Asking {
    /// Has the thread look again.
    fn wake(&mut self) {
        if let Some(wake) = &mut self.wake {
            // It does not wait: a stream that is full wakes as well as one with another byte in it.
            let _ = wake.write(&[0]);
        }
    }

    /// Answers what can be answered: a token and a status each.
    fn answer(&mut self, neighbours: &Neighbours, now: Instant) -> Vec<(u64, c_int)> {
        let mut answers = Vec::new();
        self.questions.retain_mut(|question| {
            let status = match neighbours.is_known(question.hop) {
                Ok(false) if question.until.is_some_and(|until| until <= now) => -libc::ETIMEDOUT,
                Ok(false) if question.asked || call(question.src, question.dst).is_ok() => {
                    question.asked = true;
                    return true;
                }
                // Where nobody can be asked for, connecting finds out.
                Ok(_) | Err(_) => 0,
            };
            answers.push((question.token, status));
            false
        });
        answers
    }
}

/// What the thread works with.
struct Woken {
    neighbours: Neighbours,
    /// Open before the network is asked: no answer comes unheard.
    watch: Watch,
    by: UnixStream,
}

fn start() -> io::Result<(UnixStream, Woken)> {
    let (neighbours, watch) = (Neighbours::open()?, Watch::open()?);
    let (by, wake) = UnixStream::pair()?;
    by.set_nonblocking(true)?;
    wake.set_nonblocking(true)?;
    Ok((wake, Woken { neighbours, watch, by }))
}

/// The thread: ends when nothing is asked for any more.
fn run(mut woken: Woken) {
    let fds = [woken.watch.wait_fd(), WaitFd { fd: woken.by.as_raw_fd(), events: libc::POLLIN }];
    loop {
        // What comes after this wakes.
        let _ = woken.watch.drain();
        let _ = woken.by.read(&mut [0; 64]);
        let now = Instant::now();
        let mut asking = asking();
        let answers = asking.answer(&woken.neighbours, now);
        let done = asking.questions.is_empty();
        if done {
            asking.wake = None;
        }
        let next = asking.questions.iter().filter_map(|question| question.until).min();
        drop(asking);
        for (token, status) in answers {
            registry().tell(token, Local::Neighbour(status));
        }
        if done {
            return;
        }
        // A signal that ends it early is as good as news.
        let _ = wait::poll(&fds, next.map(|next| next.saturating_duration_since(now)));
    }
}
