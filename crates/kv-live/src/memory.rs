//! The memory under a store: a region of its own, or the working memory of a primary, whose syncs wait for other members.

use std::io;
use std::ops::Range;

use remanence_pmem::{Medium, Region, Ticket};

use super::member::Ships;

/// The memory. Clones are the same.
#[derive(Clone, Debug)]
pub(super) enum Memory {
    /// What is stored here is all there is.
    Alone(Region),
    /// What is stored here goes to the other members with the next sync.
    Replicated(Ships),
}

impl Memory {
    /// What clients reach.
    pub(super) const fn region(&self) -> &Region {
        match self {
            Self::Alone(region) => region,
            Self::Replicated(mirror) => mirror.medium(),
        }
    }
}

macro_rules! of {
    ($self:ident, $medium:ident => $act:expr) => {
        match $self {
            Self::Alone($medium) => $act,
            Self::Replicated($medium) => $act,
        }
    };
}

impl Medium for Memory {
    fn len(&self) -> u64 {
        Medium::len(self.region())
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        Medium::read(self.region(), offset, into);
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        of!(self, medium => Medium::write(medium, offset, bytes));
    }

    fn write_nt(&self, offset: u64, bytes: &[u8]) {
        of!(self, medium => Medium::write_nt(medium, offset, bytes));
    }

    fn write_from(&self, offset: u64, from: &Region, at: u64, len: u64) {
        of!(self, medium => Medium::write_from(medium, offset, from, at, len));
    }

    fn write_nt_from(&self, offset: u64, from: &Region, at: u64, len: u64) {
        of!(self, medium => Medium::write_nt_from(medium, offset, from, at, len));
    }

    fn load_u64(&self, offset: u64) -> u64 {
        Medium::load_u64(self.region(), offset)
    }

    fn store_u64(&self, offset: u64, value: u64) {
        of!(self, medium => Medium::store_u64(medium, offset, value));
    }

    fn compare_and_swap(&self, offset: u64, compare: u64, swap: u64) -> u64 {
        of!(self, medium => Medium::compare_and_swap(medium, offset, compare, swap))
    }

    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        of!(self, medium => Medium::fetch_add(medium, offset, add))
    }

    fn pwb(&self, range: Range<u64>) {
        of!(self, medium => Medium::pwb(medium, range));
    }

    fn pfence(&self) -> io::Result<()> {
        of!(self, medium => Medium::pfence(medium))
    }

    fn psync(&self) -> io::Result<()> {
        of!(self, medium => Medium::psync(medium))
    }

    fn failure(&self) -> io::Result<()> {
        Medium::failure(self.region())
    }

    fn ticket(&self) -> Option<Ticket> {
        match self {
            Self::Alone(region) => region.ticket(),
            // What others than this thread made durable here is nowhere else.
            Self::Replicated(_) => None,
        }
    }

    fn is_covered(&self, ticket: Ticket) -> bool {
        match self {
            Self::Alone(region) => region.is_covered(ticket),
            Self::Replicated(_) => false,
        }
    }
}
