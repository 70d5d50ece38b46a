//! Going from record to record: recovery, verification and readers all walk the same way.
//!
//! `format/mod.rs` has the argument of what may be taken for a record of the log.

use std::ops::Range;

use remanence_pmem::image::{Flaw, Order, Records, Standing};
pub use remanence_pmem::image::{Local, Source};

use crate::log::error::Fault;
use crate::log::format::record::{FRAMING, HEADER_LEN, Header};
use crate::log::format::root::Fence;
use crate::log::format::{Cursor, Geometry};

/// What decides whether bytes are a record of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// How the region is divided.
    pub geometry: Geometry,
    /// What goes into the checksum of the log's records.
    pub salt: u64,
    /// What was cut off, and stays so.
    pub fence: Fence,
    /// No record lies at or behind this position: there the ring meets its head.
    pub limit: u64,
}

/// A record that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The position at which the record begins.
    pub position: u64,
    /// The header of the record, which was checked.
    pub header: Header,
    /// Where the log goes on behind it.
    pub after: Cursor,
}

impl Rules {
    /// The record that the log goes on with, if there is one; `payload` then holds its payload.
    ///
    /// # Errors
    /// The source fails.
    pub fn next<S: Source>(
        &self,
        source: &mut S,
        at: &Cursor,
        payload: &mut Vec<u8>,
    ) -> Result<Result<Found, Fault>, S::Error> {
        let here = self.at(source, at.position, at, payload)?;
        let segment = self.geometry.next_segment(at.position);
        if here.is_ok() || at.position.is_multiple_of(self.geometry.segment) {
            return Ok(here);
        }
        // It did not fit into the rest of the segment, perhaps.
        Ok(match self.at(source, segment, at, payload)? {
            Ok(found) => Ok(found),
            Err(there) if here == Err(Fault::Nothing) => Err(there),
            Err(_) => here,
        })
    }

    /// The record at a position, if it may follow `after`.
    fn at<S: Source>(
        &self,
        source: &mut S,
        position: u64,
        after: &Cursor,
        payload: &mut Vec<u8>,
    ) -> Result<Result<Found, Fault>, S::Error> {
        self.whole(source, position, payload, |header| self.wrong(header, after))
    }

    /// What says of a header that it is not that of the record which is due behind `after`.
    fn wrong(&self, header: &Header, after: &Cursor) -> Option<Fault> {
        if header.sequence != after.sequence {
            // A record of an earlier round of the ring is where nothing was appended yet.
            return Some(if header.sequence < after.sequence { Fault::Nothing } else { Fault::Sequence });
        }
        (self.fenced(header) || header.epoch < after.epoch || header.stamp < after.stamp)
            .then_some(Fault::Stale)
    }

    /// Whether it was cut off.
    const fn fenced(&self, header: &Header) -> bool {
        header.sequence >= self.fence.sequence && header.stamp < self.fence.stamp
    }

    /// Where a record at a position may lie.
    fn room(&self, position: u64) -> Range<u64> {
        let end = self.geometry.next_segment(position).min(self.limit);
        let offset = self.geometry.offset(position);
        offset..offset + end.saturating_sub(position)
    }

    /// The record at a position, if it is whole and nothing is wrong with its header.
    fn whole<S: Source>(
        &self,
        source: &mut S,
        position: u64,
        payload: &mut Vec<u8>,
        wrong: impl FnOnce(&Header) -> Option<Fault>,
    ) -> Result<Result<Found, Fault>, S::Error> {
        let room = self.room(position);
        let found = FRAMING.read(Some(self.salt), source, room, payload, |bytes| {
            let header = Header::parse(bytes);
            // Nobody appends without an epoch: it is something else.
            let none = (header.epoch.counter() == 0 || header.stamp == 0).then_some(Fault::Checksum);
            none.or_else(|| wrong(&header)).map_or(Ok(header), Err)
        })?;
        Ok(match found {
            Ok((header, len)) => {
                let after = Cursor {
                    position: position + len,
                    sequence: header.sequence + 1,
                    epoch: header.epoch,
                    stamp: header.stamp,
                };
                Ok(Found { position, header, after })
            }
            Err(Flaw::Nothing) => Err(Fault::Nothing),
            Err(Flaw::Wrong(fault)) => Err(fault),
            Err(Flaw::Length) => Err(Fault::Length),
            Err(Flaw::Checksum) => Err(Fault::Checksum),
        })
    }

    /// A later record whose writer knew that the one due at `end` was durable: it proves that the log did not end here.
    ///
    /// It looks at every place of this segment, and where the others begin.
    ///
    /// # Errors
    /// The source fails.
    pub fn proof<S: Source>(&self, source: &mut S, end: &Cursor) -> Result<Option<u64>, S::Error> {
        let records = Records { framing: FRAMING, salt: self.salt };
        let proof = records.proof(&Due { rules: self, end }, source)?;
        Ok(proof.map(|header| Header::parse(&header).sequence))
    }

    /// Where whole records lie behind the end of a log that was cut there, which its fence does not keep out.
    ///
    /// It looks at every place, as the next records may be appended elsewhere than before, and this one be looked at from there.
    ///
    /// # Errors
    /// The source fails.
    pub fn leftovers<S: Source>(&self, source: &mut S, end: &Cursor) -> Result<Vec<u64>, S::Error> {
        let (mut places, mut payload) = (Vec::new(), Vec::new());
        for room in (end.position..self.limit).step_by(8).map(|position| self.room(position)) {
            let offset = room.start;
            let found = FRAMING.read(Some(self.salt), source, room, &mut payload, |bytes| {
                let header = Header::parse(bytes);
                let is_left = header.sequence > end.sequence && header.stamp > 0 && !self.fenced(&header);
                if is_left { Ok(()) } else { Err(()) }
            })?;
            places.extend(found.is_ok().then_some(offset));
        }
        Ok(places)
    }
}

/// The record that is due at the end of what was found.
struct Due<'a> {
    rules: &'a Rules,
    end: &'a Cursor,
}

impl Order for Due<'_> {
    type Header = Header;

    fn places(&self) -> impl Iterator<Item = Range<u64>> {
        let (geometry, here) = (self.rules.geometry, self.end.position);
        let next = geometry.next_segment(here);
        let elsewhere = (!here.is_multiple_of(geometry.segment)).then_some(next);
        std::iter::once(here).chain(elsewhere).map(|position| self.rules.room(position))
    }

    fn due(&self, header: &[u8]) -> Result<Header, Standing> {
        let header = Header::parse(header);
        match self.rules.wrong(&header, self.end) {
            None => Ok(header),
            Some(Fault::Nothing | Fault::Stale) => Err(Standing::Stale),
            Some(_) => Err(Standing::Other),
        }
    }

    fn later(&self) -> impl Iterator<Item = Range<u64>> {
        let (geometry, limit) = (self.rules.geometry, self.rules.limit);
        let next = geometry.next_segment(self.end.position);
        let here = (self.end.position..next.min(limit)).step_by(8);
        let segments = (next..limit).step_by(geometry.segment as usize);
        here.chain(segments).map(|position| self.rules.room(position))
    }

    fn proves(&self, header: &[u8]) -> bool {
        let (header, end) = (Header::parse(header), self.end);
        header.epoch.counter() > 0
            && header.sequence > end.sequence
            && header.sequence - end.sequence <= self.rules.geometry.capacity() / HEADER_LEN
            && header.sequence.saturating_sub(header.pending.into()) > end.sequence
            && header.stamp >= end.stamp.max(1)
            && !self.rules.fenced(&header)
    }
}

/// A source that reads ahead, for one that costs a round trip.
#[derive(Debug)]
pub struct Ahead<S> {
    source: S,
    /// No byte at or behind this is read.
    len: u64,
    window: u64,
    at: u64,
    bytes: Vec<u8>,
}

impl<S: Source> Ahead<S> {
    /// Reads `window` bytes at a time from a region of `len`.
    #[must_use]
    pub const fn new(source: S, len: u64, window: u64) -> Self {
        Self { source, len, window, at: 0, bytes: Vec::new() }
    }

    /// Forgets what it has read, as it may have changed since.
    pub fn forget(&mut self) {
        self.bytes.clear();
    }

    /// The source that is read from, for what else is done with it.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.source
    }
}

impl<S: Source> Source for Ahead<S> {
    type Error = S::Error;

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), S::Error> {
        let have = self.at..self.at + self.bytes.len() as u64;
        let want = offset..offset + into.len() as u64;
        if want.start < have.start || want.end > have.end {
            if want.end - want.start > self.window {
                return self.source.read(offset, into);
            }
            self.bytes.clear();
            let end = (offset + self.window).min(self.len).max(want.end);
            self.bytes.resize((end - offset) as usize, 0);
            self.at = offset;
            if let Err(error) = self.source.read(offset, &mut self.bytes) {
                self.bytes.clear();
                return Err(error);
            }
        }
        let start = (offset - self.at) as usize;
        into.copy_from_slice(&self.bytes[start..start + into.len()]);
        Ok(())
    }
}

/// What was read of a log from afar, for whoever walks it and does not wait: what is missing is said, and read by somebody who can.
///
/// It has the four parts that were read last: the record that is looked for lies behind the last one or where the next segment begins, and neither place can be told
/// without the other; and of a record that is longer than what is read at a time, its header and its payload are two parts.
#[derive(Debug)]
pub struct Window {
    parts: [(u64, Vec<u8>); 4],
    /// Bytes of the region.
    size: u64,
    /// Bytes that are read at a time.
    ahead: u64,
}

/// These bytes are to be read first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missing {
    /// The byte of the region at which they begin.
    pub offset: u64,
    /// How many bytes.
    pub len: u32,
}

impl Window {
    /// Of a region of `size` bytes, of which `ahead` are read at a time, or more where a record has more.
    #[must_use]
    pub const fn new(size: u64, ahead: u64) -> Self {
        Self { parts: [const { (0, Vec::new()) }; 4], size, ahead }
    }

    /// What was missing was read.
    pub fn came(&mut self, offset: u64, bytes: Vec<u8>) {
        self.parts.rotate_right(1);
        self.parts[0] = (offset, bytes);
    }

    /// Forgets what was read, as it may have changed since.
    pub fn forget(&mut self) {
        self.parts.iter_mut().for_each(|(_, bytes)| bytes.clear());
    }
}

impl Source for &Window {
    type Error = Missing;

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Missing> {
        let len = into.len() as u64;
        let has = |(at, bytes): &&(u64, Vec<u8>)| *at <= offset && offset + len <= *at + bytes.len() as u64;
        let Some((at, bytes)) = self.parts.iter().find(has) else {
            let len = len.max(self.ahead).min(self.size - offset) as u32;
            return Err(Missing { offset, len });
        };
        let from = (offset - at) as usize;
        into.copy_from_slice(&bytes[from..from + into.len()]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_places_with_a_header_and_a_long_payload_each_are_there_together() {
        let mut window = Window::new(1000, 16);
        let mut missed = 0;
        // What a walk reads before it has told both places, from the start each time something was missing.
        'walk: loop {
            for (offset, len) in [(100, 16), (116, 200), (500, 16), (516, 200)] {
                if let Err(missing) = (&window).read(offset, &mut vec![0; len]) {
                    missed += 1;
                    assert!(missed <= 4, "it is read for ever");
                    window.came(missing.offset, vec![0; missing.len as usize]);
                    continue 'walk;
                }
            }
            break;
        }
        assert_eq!(missed, 4);
    }
}
