//! NVLog: the persistent log of a write cache, its recovery and its cleaner, as machines without a clock, a thread or a system call.
//!
//! A program's writes, truncations and changes of names become entries of a log on fast persistent memory, or on a disk's journal, and are
//! carried out on their files later, many with one sync. What was synced is durable when the *log* has it. (NVCache, paper 000, chapter 3; what is
//! different here and why stands in each module, and in `ARCHITECTURE.md`.)
//!
//! | module | what it is |
//! |---|---|
//! | [`mod@format`] | where things lie on a medium, and the root record |
//! | [`entry`] | the header of an entry, its commit word, its claim |
//! | [`op`] | what an entry does to files and names |
//! | [`words`] | the words that all who append share |
//! | [`log`] | appending, syncing, passing the dead: lock-free |
//! | [`table`] | which file a number means |
//! | [`cleaner`] | carries entries out in batches |
//! | [`copy`] | the log on other machines: what is sent of it, and how it is made again |
//! | [`images`] | the files beside that copy: what is kept of them, and how they are made again where nothing is left |
//! | [`imager`] | which piece of which file is sent next |
//! | [`recovery`] | what counts after a crash, and how it comes into its files |
//! | [`reads`] | the cache in memory over the log: hits, and misses that the log's entries patch |
//! | [`pages`] | NVPages: pages in persistent memory with a redo log, in the log's place |
//! | [`foreign`] | which pages of a file that somebody else has changed are replayed |
//!
//! # Which failure each promise survives
//!
//! | medium | [`AtReturn`](format::Promise::AtReturn) | [`AtSync`](format::Promise::AtSync) |
//! |---|---|---|
//! | persistent memory (DAX) | an append that returned survives the power's loss | a sync that returned does, with all before it |
//! | a plain file | the same, at two waits for the disk an append: sync behind each append instead, which is one | the same |
//! | shared memory | the death of any process, and no loss of power or kernel: it is gone as a whole then | the same |
//!
//! Under either, the death of processes alone takes nothing that was committed: recover with [`Lost::Nothing`](format::Lost::Nothing). Under
//! `AtSync` what survives the machine's loss is always a prefix: where an append had returned before another began, the second is not there without the first.
//! No entry is ever there in part, nor a group of entries. A bit that rots in what was durable is found, and told; in what nobody had been promised it
//! cannot be told from what the crash tore, and is listed as unsure.
//!
//! ```
//! use remanence_cache::entry::{Mtime, Owner};
//! use remanence_cache::format::{self, Geometry, Lost, Promise};
//! use remanence_cache::log::Log;
//! use remanence_cache::op::Op;
//! use remanence_cache::table::{FileTable, Identity};
//! use remanence_cache::words::LocalWords;
//! use remanence_pmem::PersistenceDomain;
//! use remanence_pmem::crash_image::CrashImage;
//! use remanence_pmem::layout::Uuid;
//!
//! let geometry = Geometry { entries: 64, slot: 4096, files: 4, path_max: 256 };
//! let medium = CrashImage::new(geometry.size(), PersistenceDomain::PageCache);
//! let layout = format::make(&medium, Uuid([1; 16]), geometry, 42, Promise::AtSync)?;
//! let log = Log::start(&medium, LocalWords::default(), Promise::AtSync)?;
//! let mut files = FileTable::empty(&medium, layout);
//! let identity = Identity { device: 1, inode: 2, born: 3, handle_type: 0, handle: vec![], path: b"/data/db".to_vec() };
//! let file = files.register(&identity, log.tail())?;
//!
//! let owner = Owner::new(1);
//! let written = Mtime(1_700_000_000_000_000_000); // as the file says after its `write`
//! let end = log.append(owner, &Op::Write { file, offset: 0, bytes: b"a row" }, written)?;
//! log.persist_up_to(owner, end)?; // from here on the row survives
//!
//! let found = remanence_cache::recovery::scan(&medium, Lost::Unsynced)?;
//! assert_eq!(found.items.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod cleaner;
pub mod copy;
pub mod entry;
pub mod foreign;
pub mod format;
pub mod imager;
pub mod images;
pub mod log;
pub mod op;
pub mod pages;
pub mod reads;
pub mod recovery;
pub mod table;
pub mod words;

mod descriptors;
mod gate;
mod read;
mod tree;

pub use read::{Damage, Entry, Flaw};
