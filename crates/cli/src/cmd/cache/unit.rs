//! What a service manager is told that has started a daemon: systemd, and those that do as it does (`sd_notify`).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable that names its socket.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Says that programs can join, to who waits for that.
pub(super) fn is_ready() {
    // Who is not told goes by what the daemon prints.
    if let Some(Err(why)) = std::env::var_os(VARIABLE).map(|name| tell(name.as_bytes(), b"READY=1")) {
        anstream::eprintln!("rem: {VARIABLE} does not take what it is told: {why}");
    }
}

fn tell(name: &[u8], what: &[u8]) -> io::Result<()> {
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(OsStr::from_bytes(name))?,
    };
    UnixDatagram::unbound()?.send_to_addr(what, &address).map(drop)
}
