//! `rem switch`: Byp4ss, a leader's requests scattered to replicas and their answers gathered. One file for each verb; what they share is here.

mod capture;
mod control;
mod look;
mod serve;

use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use remanence_cache_live::memory;
use remanence_pool::proto::DEFAULT_PORT;

use crate::args::Server;
use crate::fail::{Context as _, Fail};

crate::cmd::subcommands! {
    /// Carry packets between leaders and replicas until it is stopped
    Run(serve::Args) => serve::run,
    /// The groups that a switch of this machine has, and how far each replica is
    Groups(look::Args) => look::groups,
    /// What a switch of this machine has counted
    Stats(look::Args) => look::stats,
    /// Record what comes to a switch of this machine and leaves it, as a file that Wireshark reads
    Capture(capture::Args) => capture::run,
}

/// Which switch of this machine is meant; the only one of its user that runs, if nothing is said.
#[derive(Clone, Debug, clap::Args)]
struct Of {
    /// The address that the switch listens on [default: that of the only one]
    #[arg(value_name = "HOST")]
    address: Option<Server>,
    /// The socket that it is controlled by, where it was started with one
    #[arg(long, value_name = "SOCKET", conflicts_with = "address")]
    control: Option<PathBuf>,
}

impl Of {
    fn socket(&self) -> Result<PathBuf, Fail> {
        match (&self.control, &self.address) {
            (Some(socket), _) => Ok(socket.clone()),
            (None, Some(address)) => socket_of(address_of(address)?),
            (None, None) => only(),
        }
    }
}

/// The address of a switch that somebody names.
fn address_of(named: &Server) -> Result<IpAddr, Fail> {
    if named.port != DEFAULT_PORT {
        return Err(Fail::new(format!(
            "a switch is at UDP port 4791, and at no other; write {}",
            named.host
        )));
    }
    Ok(named.resolve()?.ip())
}

/// The socket of the only switch that runs.
fn only() -> Result<PathBuf, Fail> {
    let (place, prefix) = (place()?, prefix());
    let all = std::fs::read_dir(&place).context(|| format!("{} cannot be read", place.display()))?;
    let found: Vec<PathBuf> = all
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| address_in(path, &prefix).is_some() && UnixStream::connect(path).is_ok())
        .collect();
    match &found[..] {
        [one] => Ok(one.clone()),
        [] => Err(Fail::new(
            "no switch of yours runs on this machine; start one with `rem switch run`, or name its --control socket",
        )),
        several => {
            let mut names: Vec<&str> = several.iter().filter_map(|path| address_in(path, &prefix)).collect();
            names.sort_unstable();
            Err(Fail::new(format!(
                "several switches run; name the address of one of them: {}",
                names.join(", ")
            )))
        }
    }
}

/// The address in the name of a socket of this network namespace: others may have the same addresses.
fn address_in<'a>(socket: &'a Path, prefix: &str) -> Option<&'a str> {
    socket.file_name()?.to_str()?.strip_prefix(prefix)?.strip_suffix(".sock")
}

/// What the names of all sockets of this network namespace begin with.
fn prefix() -> String {
    // Older kernels do not number them.
    format!("switch-{:x}-", remanence_link::network_namespace().unwrap_or_default())
}

/// Where a switch at this address is controlled, unless it was told otherwise.
fn socket_of(address: IpAddr) -> Result<PathBuf, Fail> {
    Ok(place()?.join(format!("{}{address}.sock", prefix())))
}

/// A directory of this process' user, in which nobody else makes names.
fn place() -> Result<PathBuf, Fail> {
    memory::own().context(|| "no directory can be had in /dev/shm".into())
}
