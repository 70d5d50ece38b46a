//! What is asked of whom.

use serde::{Deserialize, Serialize};

use crate::peers::version;
use crate::redis::installed;

/// What a client asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// 64 bytes, and has them back.
    Echo,
    /// The value of a key.
    Get,
    /// Sets a key.
    Put,
    /// A record at the end of a log, durable when that is answered.
    Append,
}

impl Request {
    pub(super) const ALL: [Self; 4] = [Self::Echo, Self::Get, Self::Put, Self::Append];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Get => "GET",
            Self::Put => "PUT",
            Self::Append => "append",
        }
    }
}

/// Whose servers answer the requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(super) enum Who {
    /// A procedure that is called: two-sided.
    Rpc,
    /// Memory that is read and written one-sidedly: a store, or a log for each client, as a log has one writer.
    OneSided,
    /// Sockets with nothing of ours on them.
    BareUdp,
    RedisTcp,
    RedisUnix,
    MemcachedTcp,
    MemcachedUnix,
}

/// What is asked of whom.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(super) struct Service {
    pub(super) request: Request,
    pub(super) who: Who,
}

impl Service {
    pub(super) const ALL: [Self; 13] = [
        Self::of(Request::Echo, Who::Rpc),
        Self::of(Request::Echo, Who::BareUdp),
        Self::of(Request::Get, Who::OneSided),
        Self::of(Request::Get, Who::RedisTcp),
        Self::of(Request::Get, Who::RedisUnix),
        Self::of(Request::Get, Who::MemcachedTcp),
        Self::of(Request::Get, Who::MemcachedUnix),
        Self::of(Request::Put, Who::OneSided),
        Self::of(Request::Put, Who::RedisTcp),
        Self::of(Request::Put, Who::RedisUnix),
        Self::of(Request::Put, Who::MemcachedTcp),
        Self::of(Request::Append, Who::OneSided),
        Self::of(Request::Append, Who::Rpc),
    ];
    /// The limit of all of them.
    pub(super) const BARE: Self = Self::of(Request::Echo, Who::BareUdp);

    pub(super) const fn of(request: Request, who: Who) -> Self {
        Self { request, who }
    }

    pub(super) const fn series(self) -> &'static str {
        match (self.request, self.who) {
            (Request::Echo, Who::Rpc) => "rpc, two-sided",
            (Request::Append, Who::Rpc) => "one log, rpc",
            (_, Who::Rpc) => "rpc",
            (Request::Append, _) => "a log each, one-sided",
            (_, Who::OneSided) => "kv, one-sided",
            (_, Who::BareUdp) => "bare UDP",
            (_, Who::RedisTcp) => "Redis, TCP",
            (_, Who::RedisUnix) => "Redis, Unix socket",
            (_, Who::MemcachedTcp) => "memcached, TCP",
            (_, Who::MemcachedUnix) => "memcached, Unix socket",
        }
    }

    pub(super) fn words(self) -> String {
        format!("{} {}", self.request.name(), self.series())
    }

    /// As many as it may have at once.
    pub(super) const fn clients_max(self) -> usize {
        match (self.request, self.who) {
            // Each log has a thread that serves it, and memory.
            (Request::Append, Who::OneSided) => 16,
            _ => 256,
        }
    }

    /// The program of a peer, and the package that brings it.
    const fn program(self) -> Option<(&'static str, &'static str)> {
        match self.who {
            Who::RedisTcp | Who::RedisUnix => Some(("redis-server", "redis-server")),
            Who::MemcachedTcp | Who::MemcachedUnix => Some(("memcached", "memcached")),
            Who::Rpc | Who::OneSided | Who::BareUdp => None,
        }
    }

    /// Why it cannot be measured here, if so.
    pub(super) fn missing(self) -> Option<String> {
        let (program, package) = self.program()?;
        installed(program, package).err()
    }

    /// How a peer is run.
    pub(super) fn settings(self) -> Option<(&'static str, String)> {
        let (program, _) = self.program()?;
        let how = if program == "memcached" { "-m 256 -t 4" } else { "--save '' --appendonly no" };
        Some((program, format!("{}; {program} {how}, on the server's cores", version(program, "--version"))))
    }
}
