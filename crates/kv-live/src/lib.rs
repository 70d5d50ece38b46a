//! The store on real memory and real connections: [`Server`] exports one, [`Store`] is a client that waits, and [`Session`]
//! is what it, or any other host of the client's [operations](remanence_kv::client), reaches a server by.
//!
//! ```
//! use remanence_kv_live::{ConnectOptions, PutOptions, Server, ServerOptions, Stop, Store};
//! use remanence_verbs::Context;
//!
//! # let path = std::env::temp_dir().join(format!("remanence-kv-doc-{}", std::process::id()));
//! let device = |ip: &str| Context::open(remanence_verbs::Options::udp(ip.parse().expect("an address")));
//! let mut server = Server::bind(&device("127.9.7.1")?, ServerOptions::file(&path).size(4 << 20))?;
//! let (to, stop) = (server.addr(), Stop::new());
//! let client = device("127.9.7.2")?;
//! std::thread::scope(|scope| {
//!     let serving = scope.spawn(|| server.run(&stop));
//!     let conduct = || -> Result<(), Box<dyn std::error::Error>> {
//!         let mut store = Store::connect(&client, to, ConnectOptions::default())?;
//!         // Durable when this returns: the value was written one-sidedly, and then flushed.
//!         let version = store.put(b"remanence", b"what stays", PutOptions::default())?;
//!         // The server's application sees nothing of this.
//!         let found = store.get(b"remanence")?.expect("it is there");
//!         assert_eq!((found.version, &found.value[..]), (version, &b"what stays"[..]));
//!         Ok(())
//!     };
//!     let result = conduct();
//!     stop.ask();
//!     serving.join().expect("the server's thread").expect("it served");
//!     result
//! })?;
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What decides is pure and lies in [`remanence_kv`], and for members in [`remanence_coord`] as well; here it is given memory,
//! connections, time and threads. `docs/kv.md` has what an acknowledgement promises on which medium.
#![forbid(unsafe_code)]

mod asynch;
mod connector;
mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod host;
mod iterate;
mod local;
mod medium;
mod member;
mod members;
mod memory;
mod options;
mod prometheus;
mod salvage;
mod scout;
mod server;
mod session;
mod stats;
mod store;
mod wire;

pub use asynch::{AsyncStore, Cancelled, Cancelling, Pending};
pub use error::Error;
pub use iterate::{AsyncEntries, AsyncKeys, Entries, Keys};
pub use local::{Local, Locals};
pub use medium::{Inspected, inspect, repair};
pub use member::{Held, Member, MemberMetrics, MemberOptions, MemberStats, Role, Said};
pub use members::Asked;
pub use remanence_kv::format::superblock::{file_options, image};
pub use remanence_remote::{Face, Reactor, Stop};
pub use salvage::{Salvaged, read_all, salvage};
pub use server::{Metrics, Server, ServerOptions};
pub use session::{ConnectOptions, Session};
pub use stats::StoreStats;
pub use store::{Change, Page, PutOptions, Store, Version};
pub use wire::VERSION as PROTOCOL_VERSION;

/// The number of the store's service at a server.
pub const SERVICE: u16 = 2;
