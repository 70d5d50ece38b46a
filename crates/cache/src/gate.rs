//! What both caches do with a file: cut an access at pages, know how long the file is, and keep everybody out while it is truncated.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::descriptors::PageOf;
use crate::table::FileId;

/// Who is in a file, and how long that is.
#[derive(Debug)]
pub(crate) struct Gate {
    /// How many accesses are in it, and whether no further one may come.
    inside: AtomicU32,
    pub(crate) size: AtomicU64,
}

/// Somebody waits to have the file alone.
const CLOSED: u32 = 1 << 31;
/// Somebody has it.
const OWNED: u32 = 1 << 30;
/// Of a file that nobody has opened.
pub(crate) const UNKNOWN: u64 = u64::MAX;

impl Gate {
    pub(crate) const fn new() -> Self {
        Self { inside: AtomicU32::new(0), size: AtomicU64::new(UNKNOWN) }
    }

    /// Comes in, if one may.
    pub(crate) fn enter(&self) -> bool {
        let come = |inside| (inside < OWNED - 1).then_some(inside + 1);
        self.inside.fetch_update(Ordering::AcqRel, Ordering::Acquire, come).is_ok()
    }

    pub(crate) fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::AcqRel);
    }

    /// Lets nobody in any more; whether nobody is inside, and the file is the caller's alone.
    pub(crate) fn close(&self) -> bool {
        self.inside.fetch_or(CLOSED, Ordering::AcqRel);
        let owned = CLOSED | OWNED;
        self.inside.compare_exchange(CLOSED, owned, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether nobody gets in.
    pub(crate) fn is_closed(&self) -> bool {
        self.inside.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Lets others in again, by whom it was alone.
    pub(crate) fn open(&self) {
        self.inside.fetch_and(!(CLOSED | OWNED), Ordering::AcqRel);
    }

    /// Does not wait any more. Whoever else does says so again.
    pub(crate) fn give_up(&self) {
        self.inside.fetch_and(!CLOSED, Ordering::AcqRel);
    }
}

/// A part of an access that lies in one page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) of: PageOf,
    /// Where it lies in the page.
    pub(crate) offset: usize,
    /// Where it lies in the access.
    pub(crate) from: usize,
    pub(crate) len: usize,
}

/// The part of an access that begins there.
pub(crate) fn piece(file: FileId, offset: u64, len: usize, page: usize, from: usize) -> Piece {
    let at = offset + from as u64;
    let within = (at % page as u64) as usize;
    let of = PageOf { file, page: at / page as u64 };
    Piece { of, offset: within, from, len: (page - within).min(len - from) }
}

/// All parts of an access.
pub(crate) fn pieces(file: FileId, offset: u64, len: usize, page: usize) -> impl Iterator<Item = Piece> {
    let mut from = 0;
    std::iter::from_fn(move || {
        (from < len).then(|| {
            let piece = piece(file, offset, len, page, from);
            from += piece.len;
            piece
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_a_file_alone_and_those_who_wait_keep_others_out() {
        let gate = Gate::new();
        assert!(gate.enter());
        assert!(!gate.close() && !gate.enter(), "one is inside, and one waits");
        gate.leave();
        assert!(gate.close() && !gate.close() && !gate.enter() && gate.is_closed(), "it is the first one's");
        gate.give_up();
        assert!(!gate.enter(), "the second one does not wait any more, and it is still the first one's");
        gate.open();
        assert!(!gate.is_closed() && gate.enter() && !gate.close());
        gate.give_up();
        assert!(gate.enter());
    }

    #[test]
    fn an_access_is_cut_at_pages() {
        let all: Vec<_> =
            pieces(FileId(1), 60, 70, 64).map(|one| (one.of.page, one.offset, one.from, one.len)).collect();
        assert_eq!(all, [(0, 60, 0, 4), (1, 0, 4, 64), (2, 0, 68, 2)]);
        assert_eq!(pieces(FileId(1), 60, 0, 64).count(), 0);
    }
}
