//! The RNIC of a command: opened at the address from which its peers are reached.

use std::net::{IpAddr, SocketAddr};

use remanence_pool::auth::Token;
use remanence_pool::client::{self, Client};
use remanence_verbs::{Context, Options};

use crate::args::Servers;
use crate::fail::{Context as _, Fail};

/// A device at a local address.
pub(crate) fn open_at(address: IpAddr) -> Result<Context, Fail> {
    Context::open(Options::udp(address))
        .map_err(|e| Fail::new(format!("the network device cannot be opened: {e}")))
}

/// A device from which `peer` is reached: at the address that was given, or at the one that the routes say.
pub(crate) fn open_towards(peer: IpAddr, local: Option<IpAddr>) -> Result<Context, Fail> {
    if let Some(local) = local {
        return open_at(local);
    }
    let route = remanence_link::route::to(peer)
        .context(|| format!("there is no way from here to {peer}; check the address and the network"))?;
    open_at(route.source)
}

/// A client of the servers that a command names, at least `need` of which must be there.
pub(crate) fn connect(servers: &Servers, need: usize) -> Result<Client, Fail> {
    let named = resolve(servers)?;
    let context = open_towards(named[0].1.ip(), servers.reach.local)?;
    connect_on(&context, named, servers.reach.tokens.load()?, need)
}

/// The servers of a command, and where they are.
pub(crate) fn resolve(servers: &Servers) -> Result<Vec<(String, SocketAddr)>, Fail> {
    servers.servers.iter().map(|server| Ok((server.to_string(), server.resolve()?))).collect()
}

/// A client on a device that is open.
pub(crate) fn connect_on(
    context: &Context,
    servers: Vec<(String, SocketAddr)>,
    tokens: Vec<Token>,
    need: usize,
) -> Result<Client, Fail> {
    Client::connect(context, client::Options::new(servers).tokens(tokens), need)
        .map_err(|e| Fail::new(e.to_string()))
}
