//! RemoteLog: an append-only log in remote memory.
//!
//! A writer puts records into a server's memory by RDMA and makes them durable with whatever recipe its machine needs
//! (`remanence_persist`); the server's CPU takes part only where the recipe asks for it. One log may lie on several
//! servers.
//!
//! What decides is pure and lies in [`remanence_coord::log`], whose head says in which order to read it; its modules are here by
//! the same names. This is the same on real memory and real connections: [`LogServer`] exports a log, [`Log`] is one that is open
//! for writing, a [`Group`] of connections, [`LogReader`] reads one; [`AsyncLog`] and [`AsyncLogReader`] are the same with futures.
//! [`replicated`] makes a service of a state machine over it.
//!
//! ```
//! use remanence_remotelog::{ConnectOptions, Log, LogOptions, LogReader, LogServer, Stop};
//! use remanence_verbs::{Context, Options};
//!
//! # let path = std::env::temp_dir().join(format!("remanence-log-doc-{}", std::process::id()));
//! let device = Context::open(Options::udp("127.9.6.1".parse()?))?;
//! let mut server = LogServer::open(&device, LogOptions::file(&path).size(1 << 20))?;
//! let (to, stop) = (server.addr(), Stop::new());
//! std::thread::scope(|scope| {
//!     let serving = scope.spawn(|| server.run(&stop));
//!     let conduct = || -> Result<(), Box<dyn std::error::Error>> {
//!         let mut log = Log::connect_to(&[to], &ConnectOptions::default())?;
//!         // Durable when it returns.
//!         assert_eq!(log.append(b"paid 17")?, 0);
//!         for record in LogReader::connect_to(to, &ConnectOptions::default())? {
//!             assert_eq!(record?.payload, b"paid 17");
//!         }
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
//! Appends, reads and whatever else moves records are RDMA into the server's region, by the recipe that its machine needs;
//! the server's application is asked only for what [`proto`] has.
//!
//! Read first: paper 004, section 4.1; `docs/remotelog.md` has the promises and the failures.
#![forbid(unsafe_code)]

mod asynch;
mod client;
mod connection;
pub mod group;
mod medium;
pub mod replicated;
mod server;

pub use asynch::{AsyncLog, AsyncLogReader, Pending};
pub use client::{ConnectOptions, Log, LogReader, ReadError, Record};
pub use connection::{CallError, Method, SessionConnection, connect};
pub use group::{Group, ReplicaConnection};
pub use medium::Part;
pub use remanence_coord::log::{
    AppendError, Cursor, Damage, Epoch, Geometry, GroupError, Make, Mode, OpenError, Options, Reader,
    Refused, Status, Store, Updates, Writer, error, format, proto, serve, store, walk, writer,
};
pub use remanence_remote::Stop;
pub use server::{LogOptions, LogServer, New, OwnLog, ServeError};

/// The number of the log's service at a server.
pub const SERVICE: u16 = 1;
