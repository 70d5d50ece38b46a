//! What a command asks the daemon of a log.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::daemon::socket_of;
use crate::sys::{Address, Socket};
use crate::wire::{self, Answer, Kind, Question};

/// Bytes of the longest status.
const STATUS_MAX: usize = 160 << 10;
/// How long a daemon may take to drain.
const LONG_MS: u64 = 600_000;
const SHORT_MS: u64 = 5000;

fn ask(log: &Path, kind: Kind, milliseconds: u64) -> io::Result<Vec<u8>> {
    let path = socket_of(&std::path::absolute(log)?);
    let failed = io::Error::from_raw_os_error;
    let address = Address::new(path.as_os_str().as_bytes()).ok_or_else(|| failed(libc::ENAMETOOLONG))?;
    let socket = Socket::connect(&address, milliseconds).map_err(failed)?;
    let question = Question { kind, segment: 0, about: u64::MAX };
    socket.send(&question.emit(), &[]).map_err(failed)?;
    let mut bytes = vec![0; wire::LEN + STATUS_MAX];
    let (len, _) = socket.receive(&mut bytes).map_err(failed)?;
    bytes.truncate(len);
    match Answer::parse(&bytes) {
        Some(Answer { error: 0, .. }) => Ok(bytes.split_off(wire::LEN)),
        Some(answer) => Err(failed(answer.error)),
        None => Err(failed(libc::EPROTO)),
    }
}

/// How the daemon of a log stands, as JSON.
///
/// # Errors
/// No daemon answers.
pub fn status(log: &Path) -> io::Result<String> {
    ask(log, Kind::Status, SHORT_MS).map(|text| String::from_utf8_lossy(&text).into_owned())
}

/// Waits until all that is in the log now is in its files.
///
/// # Errors
/// No daemon answers, or it cannot.
pub fn drain(log: &Path) -> io::Result<()> {
    ask(log, Kind::Drain, LONG_MS).map(drop)
}

/// Has the daemon drain and close the log, and end.
///
/// # Errors
/// No daemon answers, or it has left something in the log.
pub fn stop(log: &Path) -> io::Result<()> {
    ask(log, Kind::Stop, LONG_MS).map(drop)
}

/// Has nothing logged any more until [`thaw`]: all that was is in its files when this returns, durably, and from then on syncs are the kernel's.
///
/// # Errors
/// No daemon answers, it cannot drain, or a program is in the middle of a change and does not go on: then nothing is frozen.
pub fn freeze(log: &Path) -> io::Result<()> {
    ask(log, Kind::Freeze, LONG_MS).map(drop)
}

/// Has changes logged again.
///
/// # Errors
/// No daemon answers.
pub fn thaw(log: &Path) -> io::Result<()> {
    ask(log, Kind::Thaw, SHORT_MS).map(drop)
}
