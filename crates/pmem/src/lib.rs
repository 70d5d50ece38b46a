//! Memory that may outlive a failure: mapped regions, write-back and fences, and the sentence that says which
//! failures the data survives.
//!
//! A [`Region`] is memory of one kind (a DAX file, a plain file, shared memory, anonymous memory, memory of
//! somebody else). It knows its [`Domain`]: which failures a store survives before and after [`Region::psync`].
//! The three verbs `pwb`, `pfence` and `psync` mean the same on every kind; what they do is chosen once, when
//! the region is made: cache-line write-backs and store fences on persistent memory, `msync` on a page cache.
//!
//! Code that recovers after a crash is written against [`Medium`], which a [`Region`] implements, and so does
//! [`crash_image::CrashImage`], where a test decides what a crash leaves behind.
//! [`image`] tells what lies on a medium, and has the root records and the logs that on-media formats are made of; [`engine`] has those who copy into
//! a region while their caller does something else.
//!
//! ```
//! use remanence_pmem::FileOptions;
//! # let path = std::env::temp_dir().join(format!("remanence-doc-{}", std::process::id()));
//! let region = FileOptions::new().create(1 << 20).open(&path)?;
//! region.write(4096, b"an entry");
//! region.pwb(4096..4104);
//! region.pfence()?; // the entry is in the domain before its commit word can be
//! region.store_u64(0, 1);
//! region.pwb(0..8);
//! region.psync()?; // from here on a crash cannot take the entry back
//! println!("{}", region.domain());
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Where `unsafe` is, and what each room promises: `copy` (bytes move by instructions that the compiler does not
//! see as accesses), `guarded` (the same for memory that may vanish), `flush` (cache maintenance), `map` (the mapping
//! system calls), `cache` (what the kernel knows of a file's pages), `sigbus` (the fault handler), `region` (every pointer lies inside a live mapping) and `engine::dsa` (what a device
//! was told of stays there until it has answered).

pub mod counter;
pub mod crash_image;
pub mod dimm;
pub mod domain;
pub mod engine;
pub mod flush;
pub mod image;
pub mod layout;
pub mod watched;

mod cache;
mod copy;
mod error;
mod failure;
mod file;
mod guarded;
mod journal;
mod lock;
mod map;
mod medium;
mod region;
mod sigbus;
mod unnamed;

pub use domain::{Domain, Guarantee, PersistenceDomain, StoreGranularity, Survives};
pub use error::{Error, WayOut};
pub use failure::FailureWatch;
pub use file::{FileOptions, Image, Journaling};
pub use guarded::Fault;
pub use journal::{JOURNAL_NOTE_LEN, is_journal_note};
pub use medium::{Medium, Ticket};
pub use region::{Kind, Region};
