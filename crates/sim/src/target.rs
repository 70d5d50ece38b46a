//! What a peer's memory may hold: the oracle of one target region, which one QP alone operates on.
//!
//! The region is a sequence of versions: each WRITE, atomic and ATOMIC WRITE makes the next one, in the order of
//! posting, as a sequential machine would. `image` is the last of them. What is really there may lag behind, but
//! never behind what was promised: a completed operation is visible, a flushed one survives. Where operations
//! overlap without a fence, a byte may hold any version since the promised one (IBA Vol 1, 10.8.3.3).

use std::ops::Range;

/// One change of a region.
#[derive(Debug)]
struct Mutation {
    seq: u64,
    start: usize,
    data: Vec<u8>,
}

impl Mutation {
    fn end(&self) -> usize {
        self.start + self.data.len()
    }
}

/// The oracle of one target region.
#[derive(Debug)]
pub(crate) struct Target {
    /// Before the first mutation.
    base: Vec<u8>,
    image: Vec<u8>,
    history: Vec<Mutation>,
    /// By byte: the version that survives for certain.
    durable: Vec<u64>,
}

/// A byte that holds what it cannot hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WrongByte {
    pub(crate) offset: usize,
    pub(crate) found: u8,
    pub(crate) newest: u8,
}

impl Target {
    pub(crate) fn new(base: Vec<u8>) -> Self {
        Self { image: base.clone(), durable: vec![0; base.len()], history: Vec::new(), base }
    }

    pub(crate) fn len(&self) -> usize {
        self.image.len()
    }

    /// After everything that was posted.
    pub(crate) fn image(&self) -> &[u8] {
        &self.image
    }

    pub(crate) fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.image[at..at + 8].try_into().expect("8 bytes"))
    }

    /// Operation `seq` will store `data` at `start`.
    pub(crate) fn post(&mut self, seq: u64, start: usize, data: &[u8]) {
        self.image[start..start + data.len()].copy_from_slice(data);
        self.history.push(Mutation { seq, start, data: data.to_vec() });
    }

    /// A FLUSH of `range`, posted as operation `seq`, has completed with placement persistence.
    pub(crate) fn flushed(&mut self, seq: u64, range: Range<usize>) {
        for byte in &mut self.durable[range] {
            *byte = seq.max(*byte);
        }
    }

    /// Whether the bytes at `start` can be what an observer sees once everything up to operation `seq` is done.
    pub(crate) fn check_visible(&self, seq: u64, start: usize, found: &[u8]) -> Result<(), WrongByte> {
        self.check(start, found, u64::MAX, |_| seq)
    }

    /// Whether the bytes can be what a READ posted as `seq` returns, if nothing after `barrier` could overtake it.
    pub(crate) fn check_read(
        &self,
        seq: u64,
        barrier: u64,
        start: usize,
        found: &[u8],
    ) -> Result<(), WrongByte> {
        self.check(start, found, barrier, |_| seq)
    }

    /// Whether the bytes can be what a crash leaves.
    pub(crate) fn check_survived(&self, start: usize, found: &[u8]) -> Result<(), WrongByte> {
        self.check(start, found, u64::MAX, |at| self.durable[at])
    }

    /// Whether the bytes can be what a crash leaves once a FLUSH posted as `seq` has taken place.
    pub(crate) fn check_flushed(&self, seq: u64, start: usize, found: &[u8]) -> Result<(), WrongByte> {
        self.check(start, found, u64::MAX, |at| self.durable[at].max(seq))
    }

    /// Whether the bytes can be there at all.
    pub(crate) fn check_possible(&self, start: usize, found: &[u8]) -> Result<(), WrongByte> {
        self.check(start, found, u64::MAX, |_| 0)
    }

    /// A byte may hold its version at `floor`, or any later one up to `ceiling`.
    fn check(
        &self,
        start: usize,
        found: &[u8],
        ceiling: u64,
        floor: impl Fn(usize) -> u64,
    ) -> Result<(), WrongByte> {
        let range = start..start + found.len();
        // Nearly always it is the newest version, and that is always allowed unless a ceiling is set.
        if ceiling == u64::MAX && self.image[range.clone()] == *found {
            return Ok(());
        }
        let mut allowed: Vec<[u64; 4]> = vec![[0; 4]; found.len()];
        let set = |byte: u8| {
            let mut bits = [0; 4];
            bits[usize::from(byte >> 6)] = 1 << (byte & 63);
            bits
        };
        for (bits, &byte) in allowed.iter_mut().zip(&self.base[range.clone()]) {
            *bits = set(byte);
        }
        for mutation in self.history.iter().take_while(|mutation| mutation.seq <= ceiling) {
            let (from, to) = (mutation.start.max(range.start), mutation.end().min(range.end));
            for at in from..to {
                let byte = set(mutation.data[at - mutation.start]);
                let bits = &mut allowed[at - start];
                if mutation.seq <= floor(at) {
                    *bits = byte;
                } else {
                    for (all, one) in bits.iter_mut().zip(byte) {
                        *all |= one;
                    }
                }
            }
        }
        for (offset, (&byte, bits)) in found.iter().zip(&allowed).enumerate() {
            if bits[usize::from(byte >> 6)] >> (byte & 63) & 1 == 0 {
                let at = start + offset;
                return Err(WrongByte { offset: at, found: byte, newest: self.image[at] });
            }
        }
        Ok(())
    }

    /// The QP was lost, and with it the knowledge of which operations took place: from operation `seq` on the
    /// region is what it really is.
    pub(crate) fn adopt(&mut self, seq: u64, actual: &[u8]) {
        assert_eq!(actual.len(), self.len());
        self.post(seq, 0, actual);
    }

    /// The region has just come back from a crash, with these bytes, which are durable.
    pub(crate) fn restart(&mut self, actual: &[u8]) {
        self.base.copy_from_slice(actual);
        self.image.copy_from_slice(actual);
        self.history.clear();
        self.durable.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        let mut target = Target::new(vec![0; 8]);
        target.post(1, 0, &[1; 4]);
        target.post(2, 2, &[2; 4]);
        target.post(3, 0, &[3; 8]);
        target
    }

    #[test]
    fn a_completed_operation_is_visible_and_later_ones_may_be() {
        let target = target();
        assert_eq!(target.check_visible(0, 0, &[0, 1, 2, 1, 2, 0, 3, 3]), Ok(()));
        assert_eq!(target.check_visible(2, 0, &[1, 1, 2, 3, 3, 2, 0, 3]), Ok(()));
        let wrong = WrongByte { offset: 1, found: 0, newest: 3 };
        assert_eq!(target.check_visible(2, 0, &[1, 0, 2, 3, 3, 2, 0, 3]), Err(wrong));
        assert!(target.check_visible(2, 3, &[1]).is_err(), "overwritten by 2, which is done");
    }

    #[test]
    fn a_read_does_not_see_past_its_barrier() {
        let target = target();
        assert!(target.check_read(1, 2, 0, &[1, 1, 2, 1]).is_ok());
        assert!(target.check_read(1, 2, 0, &[3]).is_err());
        assert!(target.check_read(1, u64::MAX, 0, &[3]).is_ok());
    }

    #[test]
    fn what_was_flushed_survives() {
        let mut target = target();
        target.flushed(2, 0..4);
        assert!(target.check_survived(0, &[1, 1, 2, 2, 0, 0]).is_ok());
        assert!(target.check_survived(3, &[1]).is_err());
        assert!(target.check_survived(4, &[0, 2, 3]).is_ok());
        target.restart(&[7; 8]);
        assert!(target.check_survived(0, &[7; 8]).is_ok());
        assert!(target.check_survived(0, &[3]).is_err());
    }
}
