//! The persistent log server: clients append to one log by calls, and an answer says that the entry is durable.
//!
//! Read first: paper 001, section 6. The log is pmem's [`CountedLog`]: entries, and a word that says how many bytes of them
//! there are. Which word ([`Word`]) is the paper's question; how many appends share one update of it
//! ([`Options::batch`]) is what it leaves out.
//!
//! ```text
//! APPEND (1): bytes                          ->  position u64, end u64
//! BOUNDS (2): nothing                        ->  head u64, tail u64
//! READ   (3): position u64                   ->  end u64, bytes of the entry that begins there
//! TRIM   (4): position u64                   ->  nothing: what is before it is forgotten
//! ```
//! Big-endian. **What is promised**: an acknowledged entry survives what the file's persistence domain says, at its
//! position, with all entries acknowledged before it. An append whose answer is lost is there once or not at all.
//! A medium that fails ends the server, and acknowledges nothing more.
//!
//! [`CountedLog`]: remanence_pmem::counter::CountedLog

pub mod client;
pub mod file;
pub mod machine;
pub mod server;
mod sharing;

pub use client::Client;
pub use file::{LogFile, OpenError, Word};
pub use server::{Options, Server};

/// Append an entry.
pub const APPEND: u16 = 1;
/// From where to where there are entries.
pub const BOUNDS: u16 = 2;
/// The service that reads one entry.
pub const READ: u16 = 3;
/// The service that forgets entries.
pub const TRIM: u16 = 4;
