//! NVCache as a library: files whose reads and writes stay in the program, over a log in persistent memory (paper 000, 3.2.1), in Rust and in C.
//!
//! A write goes into the log, and into pages in memory if they are there; a read comes from these pages, and of what is not there from the file, with what
//! the log has of it put over that. No call of the kernel is on either path but for a miss. A thread brings what the log has into the files, in batches with one sync a file.
//! The program is the only opener of a file while it has it open; programs that share files, or that are not to be changed, use `rem run`.
//!
//! ```no_run
//! use remanence_nvcache::{Cache, OpenOptions, Options};
//!
//! let cache = Cache::open(&Options::new("/mnt/pmem/app.log").size(256 << 20))?; // recovers what a crash has left
//! let file = cache.open_file("app.db", &OpenOptions::new().read(true).write(true).create(true))?;
//! file.write_at(b"a row", 4096)?; // survives what `File` says
//! file.sync()?; // and from here on the loss of power too, wherever the log lies on something that keeps it
//! file.close()?; // it is in app.db, durably
//! cache.close()?;
//! # Ok::<(), remanence_nvcache::Error>(())
//! ```
//!
//! The log is the one of `rem cache`: `rem cache recover`, `fsck` and `dump` work on it. Pages in persistent memory, with a redo log, take its place where
//! [`Options::pages`] says so (NVPages, chapter 4); nothing else differs for who uses files. In C it is `nvcache.h`, in `include`; its functions are in [`mod@c`].
//!
//! | module | what it is |
//! |---|---|
//! | `cache` | opening: the log, files, their last close |
//! | `file` | a descriptor |
//! | `inner` | an access from its first step to its last, and when it is acknowledged |
//! | `cleaning` | the thread that brings entries into their files |
//! | `paging` | pages in the log's place (NVPages), and the thread that brings them into their files |
//! | `room`, `events` | who waits for what, and is told |
//! | [`programs`] | what `rem run` says to the library that it has loaded into a program, and what that counts |
//! | [`mod@c`] | the functions that C programs call |

pub mod c;

mod about;
mod cache;
mod cleaning;
mod error;
mod events;
mod file;
mod forks;
mod inner;
mod inode;
mod options;
mod paging;
pub mod programs;
mod room;

pub use cache::{Cache, Status, Survival};
pub use error::Error;
pub use file::{File, Stat};
pub use options::{OpenOptions, Options};

/// Bytes of a page, and of an entry's data.
pub(crate) const PAGE: usize = 4096;
