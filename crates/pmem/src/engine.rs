//! Copy engines: who carries bytes from a volatile buffer into a region, and when the caller gets on with its work.
//!
//! Read first: paper 001, sections 5.3 to 5.5. A server that copies a message into persistent memory by itself cannot
//! receive the next one meanwhile; a DMA engine can copy while it does. Behind one trait, [`CopyEngine`], there are:
//!
//! | engine | copies | the caller meanwhile |
//! |---|---|---|
//! | [`Inline`] | with the caller's own CPU, at once | waits |
//! | [`Worker`] | with a thread of its own, in order, up to a window of copies ahead | goes on |
//! | [`DsaEngine`] | with Intel's accelerator where there is one, in order; never run on hardware yet ([`dsa`]) | goes on |
//!
//! Each copies in one of three ways ([`Placement`]), which are what *direct cache access* on and off are to a DMA
//! engine.
//!
//! **The contract**, of every engine.
//!
//! 1. *Completions come in the order of the submissions*, one for each, and hand the source back. Until then the
//!    engine owns the source: nobody can change it under the copy. (Registered memory can be changed by a peer at
//!    any time; such a source is copied as it is when the engine gets to it.)
//! 2. *Visible in order.* No observer sees a byte of a copy who could not also see every byte of all earlier copies
//!    of this engine, to any region. [`order`] has the stress test of the paper, and shows that it finds an engine
//!    that breaks the rule.
//! 3. *What a completion says.* [`Promise::Visible`]: every observer sees all bytes. [`Promise::Synced`]: they are
//!    in the persistence domain of their region too, and which failures that survives is the region's to say
//!    ([`Promise::survives`]). Before the completion nothing is promised.
//! 4. *What a crash leaves* ([`CrashOrder`]). With [`CrashOrder::Prefix`], the default: all of the copies up to some
//!    point, perhaps parts of one more, and nothing of any later one. (With [`Placement::Cached`] nothing is said of
//!    a crash, as it waits for no persistence domain.)
//! 5. *Failure stops the engine.* When a medium fails under a copy, that completion carries the error, and everything
//!    submitted behind it completes as given up, as otherwise a crash could leave later copies without earlier ones. A
//!    stopped engine refuses all further work; make a new one for what is still sound.
//! 6. *Shutdown loses nothing.* Dropping an engine carries out what was submitted, and waits for it. Only the
//!    completions are lost; [`CopyEngine::finish`] collects them first.
//!
//! ```
//! use remanence_pmem::Region;
//! use remanence_pmem::engine::{CopyEngine, Options, Placement, Promise, Worker};
//! let log = Region::anonymous(1 << 20)?;
//! let mut engine = Worker::new(Options::new().placement(Placement::NonTemporal).window(8))?;
//! let ticket = engine.submit(b"a message".to_vec().into(), &log, 4096)?;
//! // … receive the next message …
//! let done = engine.wait().expect("one copy is under way");
//! assert_eq!((done.ticket, done.outcome?), (ticket, Promise::Synced));
//! let buffer = done.source.into_bytes(); // to be used again
//! # assert_eq!(buffer.as_deref(), Some(&b"a message"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod dsa;
mod inline;
pub mod order;
mod patience;
mod source;
mod worker;

use std::fmt;
use std::io;

pub use dsa::DsaEngine;
pub use inline::Inline;
pub use source::Source;
pub use worker::{Notify, Worker};

use crate::domain::{Guarantee, Survives};
use crate::flush;
use crate::medium::Medium;
use crate::region::Region;

/// One submitted copy of one engine. Tickets count up from 0, in the order of the submissions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub(crate) u64);

impl Ticket {
    /// How many copies had been submitted to the engine before this one.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Where a copy's stores go first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Placement {
    /// Into the cache, and no further: what a DMA engine does with direct cache access on. Visible, not durable.
    Cached,
    /// Into the cache, then written back line by line.
    WriteBack,
    /// Past the caches, as far as the CPU can and where lines must be written back at all (see
    /// [`Medium::write_nt`]): what a DMA engine does with direct cache access off.
    NonTemporal,
}

impl Placement {
    /// Every placement, in the order in which they are declared.
    pub const ALL: [Self; 3] = [Self::Cached, Self::WriteBack, Self::NonTemporal];

    /// The name that options and machine-readable output use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::WriteBack => "write-back",
            Self::NonTemporal => "non-temporal",
        }
    }

    /// The placement of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|placement| placement.name() == name)
    }

    /// What a completion of such a copy says.
    #[must_use]
    pub const fn promise(self) -> Promise {
        match self {
            Self::Cached => Promise::Visible,
            Self::WriteBack | Self::NonTemporal => Promise::Synced,
        }
    }

    /// Copies, and asks for the write-backs. In front of whatever the thread stores next, for every observer.
    fn copy<M: Medium>(self, from: Bytes<'_>, to: &M, offset: u64) {
        match (self, from) {
            (Self::Cached, Bytes::Slice(bytes)) => to.write(offset, bytes),
            (Self::Cached, Bytes::Region(region, at, len)) => to.write_from(offset, region, at, len),
            (Self::WriteBack, Bytes::Slice(bytes)) => to.write(offset, bytes),
            (Self::WriteBack, Bytes::Region(region, at, len)) => to.write_from(offset, region, at, len),
            (Self::NonTemporal, Bytes::Slice(bytes)) => to.write_nt(offset, bytes),
            (Self::NonTemporal, Bytes::Region(region, at, len)) => to.write_nt_from(offset, region, at, len),
        }
        match self {
            // Plain stores are seen in their order on x86-64; elsewhere this is the barrier that makes it so.
            Self::Cached => std::sync::atomic::fence(std::sync::atomic::Ordering::Release),
            Self::WriteBack => {
                to.pwb(offset..offset + from.len());
                std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
            }
            // Non-temporal stores are ordered with nothing but a fence.
            Self::NonTemporal => flush::fence(),
        }
    }

    /// Waits for the persistence domain, if that is promised.
    fn sync<M: Medium>(self, to: &M) -> io::Result<()> {
        match self.promise() {
            Promise::Visible => Ok(()),
            Promise::Synced => to.psync(),
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a completed copy is known to be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Promise {
    /// Every observer sees all its bytes.
    Visible,
    /// They are in the region's persistence domain too: `psync` has returned for them.
    Synced,
}

impl Promise {
    /// Which failures the copied bytes survive in a region of this guarantee.
    #[must_use]
    pub const fn survives(self, region: Guarantee) -> Survives {
        match self {
            Self::Visible => region.before_psync,
            Self::Synced => region.after_psync,
        }
    }
}

/// What a crash may leave of copies that were under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CrashOrder {
    /// A prefix of them, and perhaps parts of the one that follows: each is synced before the next begins.
    #[default]
    Prefix,
    /// Any parts of any of those that were not completed: one sync serves all copies that are waiting, which is many
    /// times cheaper where a sync is a system call. Visibility and completions are in order all the same.
    Any,
}

/// How an engine copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Where the stores of a copy go first.
    pub placement: Placement,
    /// What a crash may leave.
    pub order: CrashOrder,
    /// How many copies may be submitted and not yet handed back.
    pub window: usize,
}

impl Options {
    /// The most copies that can be under way: a window is memory, and nothing gains by a longer one.
    pub const WINDOW_MAX: usize = 1 << 16;

    /// Past the caches, a crash leaves a prefix, and eight copies under way (more gain nothing: paper 001, 5.4).
    #[must_use]
    pub const fn new() -> Self {
        Self { placement: Placement::NonTemporal, order: CrashOrder::Prefix, window: 8 }
    }

    /// Where stores go first.
    #[must_use]
    pub const fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// What a crash may leave.
    #[must_use]
    pub const fn crash_order(mut self, order: CrashOrder) -> Self {
        self.order = order;
        self
    }

    /// How many copies may be submitted and not yet handed back; 1 to [`WINDOW_MAX`](Self::WINDOW_MAX), and brought
    /// into that range by the engine.
    #[must_use]
    pub const fn window(mut self, copies: usize) -> Self {
        self.window = copies;
        self
    }

    fn within_bounds(self) -> Self {
        Self { window: self.window.clamp(1, Self::WINDOW_MAX), ..self }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

/// Why a copy was not accepted. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// As many copies as the window allows have not been handed back yet.
    #[error("{window} copies are under way, which is the window: take a completion first")]
    WindowFull {
        /// The most copies that may be submitted and not yet handed back, which is what `Options::window` chose.
        window: usize,
    },
    /// The bytes do not fit where they should go.
    #[error("{len} bytes at offset {offset} do not lie in a region of {region}")]
    OutOfRange {
        /// Offset in the region at which they should go.
        offset: u64,
        /// How many bytes they are.
        len: u64,
        /// How long the region is.
        region: u64,
    },
    /// An earlier copy failed, or the engine's thread ended.
    #[error(
        "the copy engine has stopped since an earlier copy failed: look at that completion, and make a new engine"
    )]
    Stopped,
}

/// A copy that was not accepted, with its source.
#[derive(Debug)]
pub struct Refused {
    /// The reason for which the engine did not accept the copy.
    pub why: Refusal,
    /// What was to be copied, for the caller to submit again.
    pub source: Source,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl std::error::Error for Refused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.why)
    }
}

/// Why a copy that was accepted did not keep its promise.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// Its medium failed: the bytes may be there in part.
    #[error("the copy may be lost, as its medium failed: {0}")]
    Medium(#[from] io::Error),
    /// An earlier copy failed. With [`CrashOrder::Prefix`] this one was not begun, else it may be there in part.
    #[error("the copy was given up, as an earlier one failed")]
    GivenUp,
    /// The engine's thread died within this copy or before it.
    #[error("the copy engine's thread died; the copy may be there in part")]
    Died,
    /// The device that copied failed: the bytes may be there in part.
    #[error("the copy may be lost, as the device failed: {0}")]
    Device(#[from] dsa::DeviceError),
    /// The bytes do not fit where they should go; nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// A copy that has come to its end.
#[derive(Debug)]
pub struct Completion {
    /// The ticket that [`submit`](CopyEngine::submit) gave for this copy.
    pub ticket: Ticket,
    /// What was copied, to be used again. Empty after [`CopyError::Died`].
    pub source: Source,
    /// What holds for it now.
    pub outcome: Result<Promise, CopyError>,
}

/// Copies bytes into regions, in order. The module's head has the contract.
///
/// One thread at a time uses an engine (its methods want `&mut self`); it may move from thread to thread.
pub trait CopyEngine<M: Medium = Region>: Send {
    /// How the engine copies.
    fn options(&self) -> Options;

    /// Hands over one copy: `from` to `to`, starting at `offset`.
    ///
    /// # Errors
    /// [`Refusal`], with the source handed back: the window is full, the bytes do not fit, or the engine has stopped.
    fn submit(&mut self, from: Source, to: &M, offset: u64) -> Result<Ticket, Refused>;

    /// The next completion, if there is one. Never waits for a copy. (An engine without a thread, [`Inline`] or
    /// [`DsaEngine`], syncs in its owner's calls: where that is a system call, they take as long.)
    fn poll(&mut self) -> Option<Completion>;

    /// The next completion; `None` when nothing is under way. Spins while that pays, then sleeps.
    fn wait(&mut self) -> Option<Completion>;

    /// Copies borrowed bytes, behind everything that was submitted, with the caller's own CPU, and returns when it is
    /// done: for what is too short to be worth a hand-over. Completions of earlier copies stay where they are.
    ///
    /// # Errors
    /// As [`submit`](Self::submit), or the medium failed.
    fn copy(&mut self, from: &[u8], to: &M, offset: u64) -> Result<Promise, CopyError>;

    /// How many copies were submitted and not yet handed back.
    fn in_flight(&self) -> usize;

    /// Waits until this copy has come to its end, and hands every completion up to it to `each`. Of a copy that was
    /// handed back already there is nothing left to wait for.
    fn wait_for(&mut self, ticket: Ticket, each: &mut dyn FnMut(Completion)) {
        while let Some(completion) =
            self.oldest().filter(|oldest| *oldest <= ticket).and_then(|_| self.wait())
        {
            each(completion);
        }
    }

    /// Waits for everything that was submitted.
    fn finish(&mut self, each: &mut dyn FnMut(Completion)) {
        while let Some(completion) = self.wait() {
            each(completion);
        }
    }

    /// The oldest copy that has not been handed back.
    fn oldest(&self) -> Option<Ticket>;
}

/// Bytes to copy, as the engine that holds their source sees them.
#[derive(Clone, Copy)]
enum Bytes<'a> {
    Slice(&'a [u8]),
    Region(&'a Region, u64, u64),
}

impl Bytes<'_> {
    fn len(self) -> u64 {
        match self {
            Self::Slice(bytes) => bytes.len() as u64,
            Self::Region(_, _, len) => len,
        }
    }
}

/// Refuses bytes that do not fit the region.
fn check<M: Medium>(len: u64, to: &M, offset: u64) -> Result<(), Refusal> {
    let region = to.len();
    if offset.checked_add(len).is_some_and(|end| end <= region) {
        Ok(())
    } else {
        Err(Refusal::OutOfRange { offset, len, region })
    }
}

#[cfg(test)]
mod tests;
