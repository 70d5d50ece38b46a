//! Durable remote blobs: streams of bytes under names, in a pool in a server's file, on one server or several.
//!
//! A put is durable on as many servers as it was asked for when it returns, and that has to be a majority; a get returns what was put
//! last, verified by its digest. A [`Client`] moves the data by one-sided operations, and holds connections to all servers that it
//! names. `rem serve`, `rem put` and `rem get` are this.
//!
//! ```no_run
//! use remanence::pool::{BlobName, Client, ConnectOptions, Token};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let servers = ["192.0.2.7:7471", "192.0.2.8:7471", "192.0.2.9:7471"];
//! let servers: Vec<_> = servers.iter().map(|at| Ok((at.to_string(), at.parse()?))).collect::<Result<_, std::net::AddrParseError>>()?;
//! let token = Token::new(std::fs::read_to_string("pool.token")?.trim())?;
//! // Two of the three have to be there.
//! let mut client = Client::connect_to(ConnectOptions::new(servers).tokens([token]), 2)?;
//! let name = BlobName::new("greeting")?;
//! client.put_bytes(&name, b"hello", 2)?; // durable on two of them, at least
//! assert_eq!(client.get_bytes(&name)?, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! [`AsyncClient`] is the same with futures, for any executor:
//!
//! ```no_run
//! # use remanence::pool::{AsyncClient, BlobName, ConnectOptions, Error};
//! # async fn use_it(options: ConnectOptions, name: BlobName) -> Result<(), Error> {
//! let client = AsyncClient::connect_to(options, 2).await?;
//! client.put_bytes(&name, b"hello", 2).await?;
//! assert_eq!(client.get_bytes(&name).await?, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! `cargo run -p remanence --example pool` has the server too, and puts a stream.

pub use remanence_auth::crowd::Room;
pub use remanence_auth::{BadToken, Token};
pub use remanence_pool::blob::BadName;
pub use remanence_pool::client::{
    AsyncClient, BlobReader, Client, Error, Event, Got, LossReason, Lost, Options as ConnectOptions,
    PutReport, Source, SyncReport, Upload,
};
pub use remanence_pool::proto::{Code, PoolInfo};
pub use remanence_pool::server::{
    FileError, Limits, Options as ServerOptions, Port, Server, Stats, in_memory, open_or_make,
};
pub use remanence_pool::{BlobName, Digest, Listing, OpenError, Pool, PoolError, State, Version};
