//! The log on real memory and real connections: [`LogServer`] exports one, [`Log`] is one that is open for writing, [`LogReader`]
//! reads one.
//!
//! ```
//! use std::sync::atomic::{AtomicBool, Ordering};
//!
//! use remanence_remotelog::live::{ConnectOptions, Log, LogOptions, LogReader, LogServer};
//! use remanence_verbs::{Context, Options};
//!
//! # let path = std::env::temp_dir().join(format!("remanence-log-doc-{}", std::process::id()));
//! let device = Context::open(Options::udp("127.9.6.1".parse()?))?;
//! let mut server = LogServer::open(&device, LogOptions::file(&path).size(1 << 20))?;
//! let (to, stop) = (server.addr(), AtomicBool::new(false));
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
//!     stop.store(true, Ordering::Release);
//!     serving.join().expect("the server's thread").expect("it served");
//!     result
//! })?;
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Appends, reads and whatever else moves records are RDMA into the server's region, by the recipe that its machine needs;
//! the server's application is asked only for what [`crate::proto`] has.

mod client;
#[expect(clippy::disallowed_types, reason = "who waits for servers has a clock")]
mod connection;
mod medium;
mod server;

pub use client::{ConnectOptions, Log, LogReader, ReadError, Record};
pub use connection::{CallError, Method, SessionConnection, connect};
pub use medium::Part;
pub use server::{LogOptions, LogServer, New, OwnLog, ServeError};

/// The number of the log's service at a server.
pub const SERVICE: u16 = 1;
