//! An append-only log in the memory of one server or of several.
//!
//! [`Log`] is one that is open for its one writer. [`append`](Log::append) returns when the record is durable on as many servers as the
//! log was made with (all of them if nothing is said), and [`Log::survives`] which failures that survives.
//! [`begin_append`](Log::begin_append) returns at once, and promises nothing until [`wait`](Log::wait) has returned: so many records can
//! be under way. Who opens the log for writing shuts earlier writers out, and finds every record that any of them had acknowledged.
//! [`LogReader`] is an iterator over the records of a server. A [`Log`] is a [`Group`] of connections, which
//! [`Log::group`] gives.
//!
//! ```no_run
//! use remanence::log::{ConnectOptions, Log, LogReader};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let servers = ["192.0.2.7:7472".parse()?, "192.0.2.8:7472".parse()?, "192.0.2.9:7472".parse()?];
//! let mut log = Log::connect_to(&servers, &ConnectOptions::default().acks(2))?;
//! let number = log.append(b"paid 17")?; // durable on two of the three
//! for amount in 18..100 {
//!     log.begin_append(format!("paid {amount}").as_bytes())?;
//! }
//! log.wait(log.next())?; // and so are all of these
//! log.trim(number)?; // what was applied needs no place any more
//! for record in LogReader::connect_to(servers[0], &ConnectOptions::default())? {
//!     println!("{}", String::from_utf8_lossy(&record?.payload));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`AsyncLog`] is the same with futures, for any executor, any number of tasks and threads:
//!
//! ```no_run
//! use remanence::log::{AsyncLog, ConnectOptions};
//!
//! # async fn use_it() -> Result<(), Box<dyn std::error::Error>> {
//! let servers = ["192.0.2.7:7472".parse()?, "192.0.2.8:7472".parse()?, "192.0.2.9:7472".parse()?];
//! let log = AsyncLog::connect_to(&servers, &ConnectOptions::default().acks(2)).await?;
//! let appends: Vec<_> = (17..100).map(|amount| log.append(format!("paid {amount}").as_bytes())).collect();
//! for append in appends {
//!     append.await?; // durable on two of the three
//! }
//! # Ok(())
//! # }
//! ```
//!
//! `cargo run -p remanence --example log` has the server too, and `--example futures` the same with futures. `docs/remotelog.md` of the repository has the promises, the failures and the
//! proof.

pub use remanence_auth::Token;
pub use remanence_remotelog::group::ConnectionLost;
pub use remanence_remotelog::{
    AppendError, Damage, Epoch, Group, GroupError as Error, Mode, OpenError, Refused, Status,
};
pub use remanence_remotelog::{
    AsyncLog, AsyncLogReader, CallError, ConnectOptions, Log, LogOptions as ServerOptions, LogReader,
    LogServer as Server, Method, New, OwnLog, Pending, ReadError, Record, ServeError, SessionConnection,
    Stop,
};
