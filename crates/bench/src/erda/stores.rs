//! Every store of this bench as the load generator wants it.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use remanence_kv::format::hash;
use remanence_kv::format::slot::fingerprint;
use remanence_kv_live::{ConnectOptions, PutOptions, Store};
use remanence_verbs::Context;
use remanence_ycsb::packed::KeyValue;

use super::load::{Handle, StoreClient};
use super::tcp::{At, Memcached, Redis};

/// A running store, as a user names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// A server of ours: HOST or HOST:PORT.
    Native(String),
    /// Whatever speaks RESP: `redis://HOST:PORT`.
    Redis(String),
    /// `memcached://HOST:PORT`.
    Memcached(String),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let with_port = |rest: &str, port: u16| {
            let rest = rest.trim_end_matches('/');
            if rest.is_empty() {
                return Err(format!("{text} names no host; write SCHEME://HOST:PORT"));
            }
            let has = rest.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            Ok(if has { rest.to_owned() } else { format!("{rest}:{port}") })
        };
        match text.split_once("://") {
            Some(("redis", rest)) => with_port(rest, 6379).map(Self::Redis),
            Some(("memcached", rest)) => with_port(rest, 11211).map(Self::Memcached),
            Some((other, _)) => Err(format!(
                "{other}:// is no store that is known here; write HOST for ours, redis://HOST:PORT or memcached://HOST:PORT"
            )),
            None if text.is_empty() => Err("a store is named by its host".into()),
            None => Ok(Self::Native(text.to_owned())),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Native(host) => f.write_str(host),
            Self::Redis(host) => write!(f, "redis://{host}"),
            Self::Memcached(host) => write!(f, "memcached://{host}"),
        }
    }
}

/// A client of our store.
pub struct Native {
    store: Store,
}

impl Native {
    /// Connects to the server at `to`.
    ///
    /// # Errors
    /// The store's sentence.
    pub fn connect(context: &Context, to: SocketAddr, options: &ConnectOptions) -> Result<Self, String> {
        Store::connect(context, to, options.clone()).map(|store| Self { store }).map_err(|e| e.to_string())
    }

    /// The store's own client, for what this one has no method for.
    pub const fn store(&mut self) -> &mut Store {
        &mut self.store
    }
}

impl StoreClient for Native {
    fn rest(&mut self) -> Result<(), String> {
        self.store.rest().map_err(|e| e.to_string())
    }
}

impl KeyValue for Native {
    type Error = String;

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, String> {
        let found = self.store.get(key).map_err(|e| e.to_string())?;
        Ok(found.map(|found| *value = found.value).is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        self.store.put(key, value, PutOptions::default()).map(drop).map_err(|e| e.to_string())
    }

    /// In the order of the keys' fingerprints, which is the only one that a hash table has.
    fn scan(
        &mut self,
        start: &[u8],
        count: u64,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Option<Result<(), String>> {
        let mut scan = || -> Result<(), String> {
            let mut cursor = Some(fingerprint(hash(self.store.client().view().salt, start)));
            let mut left = count;
            while let (Some(at), 1..) = (cursor, left) {
                let page = self.store.scan(at, left.min(256) as u32).map_err(|e| e.to_string())?;
                let keys: Vec<_> = page.keys.into_iter().take(left as usize).collect();
                let values = self.store.get_many(&keys).map_err(|e| e.to_string())?;
                for (key, found) in keys.iter().zip(values) {
                    // It may have been deleted in between.
                    if let Some(found) = found {
                        each(key, &found.value);
                        left -= 1;
                    }
                }
                cursor = page.next;
            }
            Ok(())
        };
        Some(scan())
    }
}

/// Clients of a store that is not ours, one for each thread. They spin if each can have a core beside the server's.
///
/// # Errors
/// It cannot be reached.
pub fn others(target: &Target, threads: usize) -> Result<Vec<Handle>, String> {
    use std::net::ToSocketAddrs as _;
    let (host, redis) = match target {
        Target::Redis(host) => (host, true),
        Target::Memcached(host) => (host, false),
        Target::Native(host) => return Err(format!("{host} is a store of ours")),
    };
    let mut found =
        host.to_socket_addrs().map_err(|e| format!("{host} is no address that is known ({e})"))?;
    let to = At::from(found.next().ok_or_else(|| format!("{host} has no address"))?);
    let spin = threads < std::thread::available_parallelism().map_or(1, Into::into);
    (0..threads)
        .map(|_| -> Result<Handle, String> {
            Ok(match redis {
                true => Box::new(Redis::connect(&to, spin, "Redis")?),
                false => Box::new(Memcached::connect(&to, spin)?),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_named_as_users_name_them() {
        let parse = |text: &str| text.parse::<Target>();
        assert_eq!(parse("10.0.0.1:7475"), Ok(Target::Native("10.0.0.1:7475".into())));
        assert_eq!(parse("redis://localhost"), Ok(Target::Redis("localhost:6379".into())));
        assert_eq!(parse("redis://h:1/"), Ok(Target::Redis("h:1".into())));
        assert_eq!(parse("memcached://[::1]:7"), Ok(Target::Memcached("[::1]:7".into())));
        assert!(parse("mongodb://h").unwrap_err().contains("redis://"));
        assert!(parse("redis://").unwrap_err().contains("no host"));
        assert!(parse("").is_err());
    }
}
