//! `rem kv`: a key-value store in remote memory. One file for each verb; what they share is here.

mod bench;
mod compact;
mod del;
mod dump;
mod gateway;
mod get;
mod load;
mod member;
mod put;
mod salvage;
mod scan;
mod scrub;
mod serve;
mod stats;
mod verify;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use remanence_kv::proto::{Expect, Refusal};
use remanence_kv_live::{ConnectOptions, Error, Role, Said, Store};
use remanence_verbs::Context;
use serde_json::{Value, json};

use crate::args::{Server, Tokens};
use crate::device;
use crate::fail::Fail;

crate::cmd::subcommands! {
    /// Export a store in a file; it is made if it is not there
    Serve(serve::Args) => serve::run,
    /// Write values, durable when it returns
    Put(put::Args) => put::run,
    /// Read values, one-sidedly
    Get(get::Args) => get::run,
    /// Take values away
    Del(del::Args) => del::run,
    /// List keys
    Scan(scan::Args) => scan::run,
    /// What a server did, and how full it is
    Stats(stats::Args) => stats::run,
    /// Read and check every value, and change nothing
    Verify(verify::Args) => verify::run,
    /// Read every value on its medium, and repair what can be repaired
    Scrub(scrub::Args) => scrub::run,
    /// Copy all values into a file, with their versions and ends
    Dump(dump::Args) => dump::run,
    /// Write the values of a dump into a store
    Load(load::Args) => load::run,
    /// Read what is left of a damaged file into a dump
    Salvage(salvage::Args) => salvage::run,
    /// Clean all logs, so that what was replaced or deleted gives its room back
    Compact(compact::Args) => compact::run,
    /// YCSB's workloads against a store that runs: ours, Redis or memcached
    Bench(Box<bench::Args>) => bench::run,
    /// Redis clients on a store
    Gateway(gateway::Args) => gateway::run,
}

/// How a server is reached.
#[derive(Clone, Debug, clap::Args)]
struct Reach {
    #[command(flatten)]
    tokens: Tokens,
    /// Local address to send from [default: the one that routes to the server]
    #[arg(long, value_name = "ADDRESS", env = "REM_LOCAL")]
    local: Option<IpAddr>,
    /// Give up when a server shows no sign of life for so many seconds, or does not come back
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,
}

impl Reach {
    fn connect(&self, at: &At) -> Result<Store, Fail> {
        let (to, context, options) = self.way(at)?;
        at.connect(&context, &to, &options)
    }

    /// As [`connect`](Self::connect); of a store on several servers that none of them serves at the moment, what its members say
    /// instead, without waiting for one that does.
    fn connect_or_ask(&self, at: &At) -> Result<Result<Store, Vec<(String, Said)>>, Fail> {
        let (to, context, options) = self.way(at)?;
        if let [to] = to[..] {
            match Store::connect(&context, to, options.clone()) {
                Err(Error::Stranger(_)) => {}
                outcome => return outcome.map(Ok).map_err(|e| of(at, &e)),
            }
        }
        let said = Store::ask_members(&context, &to, &options).map_err(|e| of(at, &e))?;
        let serves = |(_, said): &(String, Said)| said.as_ref().is_ok_and(|said| said.role == Role::Primary);
        if !said.iter().any(serves) {
            return Ok(Err(said));
        }
        Store::connect_members(&context, &to, options).map(Ok).map_err(|e| of(at, &e))
    }

    fn way(&self, at: &At) -> Result<(Vec<SocketAddr>, Context, ConnectOptions), Fail> {
        let to = at.resolve()?;
        let context = device::open_towards(to[0].ip(), self.local)?;
        let options = ConnectOptions::default()
            .patience(Duration::from_secs(self.patience))
            .tokens(self.tokens.load_any()?);
        Ok((to, context, options))
    }
}

/// Where a store is: a server, or members of a store on several.
#[derive(Clone, Debug)]
struct At(Vec<Server>);

impl FromStr for At {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, server) in self.0.iter().enumerate() {
            write!(f, "{}{server}", if n > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl At {
    fn resolve(&self) -> Result<Vec<SocketAddr>, Fail> {
        self.0.iter().map(Server::resolve).collect()
    }

    fn connect(&self, context: &Context, to: &[SocketAddr], options: &ConnectOptions) -> Result<Store, Fail> {
        if let [to] = to {
            match Store::connect(context, *to, options.clone()) {
                // Perhaps a member of a store on several, which knows the others.
                Err(Error::Stranger(_)) => {}
                outcome => return outcome.map_err(|e| of(self, &e)),
            }
        }
        Store::connect_members(context, to, options.clone()).map_err(|e| of(self, &e))
    }
}

fn of(at: &At, error: &Error) -> Fail {
    Fail::new(format!("{at}: {error}"))
}

/// On what a change depends, as the command line has it.
#[derive(Clone, Copy, Debug)]
struct Condition(Expect);

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(match text {
            "any" => Expect::Any,
            "absent" => Expect::Absent,
            "present" => Expect::Present,
            version => Expect::Version(version.parse().map_err(|_| {
                format!(
                    "{text:?} is no condition; write absent, present, or the version that the key must have"
                )
            })?),
        }))
    }
}

/// So much of a key is shown where it is not what was asked for.
const KEY_SHOWN: usize = 100;

/// What a refused change has to do with the condition that was given.
fn refused(key: &[u8], error: &Error) -> String {
    let shown = |key: &[u8]| match shown(key) {
        text if text.chars().count() <= KEY_SHOWN => text,
        text => {
            let begin: String = text.chars().take(KEY_SHOWN).collect();
            format!("{begin}… ({} bytes in all)", key.len())
        }
    };
    match error {
        Error::Refused(Refusal::WrongVersion { found: 0 }) => {
            format!("{} has no value, and --expect asks for one; nothing was changed", shown(key))
        }
        Error::Refused(Refusal::WrongVersion { found }) => format!(
            "{} has version {found}, which is not what --expect asks for; nothing was changed: read it again and decide anew",
            shown(key)
        ),
        other => format!("{}: {other}", shown(key)),
    }
}

/// A key or a value for a person.
fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => format!("0x{}", hex(bytes)),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Puts bytes into an object: as text where they are some, in hexadecimal digits otherwise.
fn field(object: &mut Value, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object[name] = text.into(),
        Err(_) => object[format!("{name}_hex")] = hex(bytes).into(),
    }
}

/// A value and what is known of it.
fn record(key: &[u8], found: &remanence_kv::client::Found) -> Value {
    let mut record = json!({ "version": found.version, "bytes": found.value.len() });
    if found.expires != 0 {
        record["expires_ms"] = found.expires.into();
    }
    field(&mut record, "key", key);
    field(&mut record, "value", &found.value);
    record
}

/// The region of a file that nobody serves, to look at: the file is not changed.
fn view_file(path: &Path) -> Result<remanence_pmem::Region, Fail> {
    remanence_kv_live::file_options().view(path).map_err(|e| Fail::new(e.to_string()))
}

/// The region of a file that nobody serves.
fn open_file(path: &Path) -> Result<remanence_pmem::Region, Fail> {
    remanence_kv_live::file_options().open(path).map_err(|e| Fail::new(e.to_string()))
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// A server, if it is not a file.
fn server_of(what: &str) -> Result<At, Fail> {
    what.parse().map_err(|_| {
        Fail::new(format!("{what:?} is neither a file nor an address; write a path, or host:port"))
    })
}
