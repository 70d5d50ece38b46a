//! Memory that may outlive a failure: what servers serve, and what is registered.
//!
//! A [`Region`] is mapped memory: a file on a disk or on persistent memory ([`FileOptions`]), shared memory, or anonymous memory. It
//! knows which failures its data survives, before and after [`Region::psync`].
//!
//! ```
//! use remanence::pmem::FileOptions;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::env::temp_dir().join(format!("remanence-region-doc-{}", std::process::id()));
//! let region = FileOptions::new().create(1 << 20).open(&path)?;
//! region.write(0, b"not lost any more");
//! region.pwb(0..17); // this range is to be written back,
//! region.psync()?; // and from here on it is durable
//! println!("{}", region.domain()); // which failures that survives
//! # std::fs::remove_file(&path)?;
//! # Ok(())
//! # }
//! ```

pub use remanence_pmem::flush::Instruction;
pub use remanence_pmem::layout::Uuid;
pub use remanence_pmem::{
    Domain, Error, Fault, FileOptions, Guarantee, Image, Journaling, Kind, Medium, PersistenceDomain, Region,
    StoreGranularity, Survives, Ticket, WayOut,
};
