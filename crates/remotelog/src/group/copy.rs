//! What a server lacks, read from another one's log.

use crate::error::Fault;
use crate::format::Epoch;
use crate::store::{Reader, Status};
use crate::walk::{Found, Source};

/// Bytes that are read at a time.
const WINDOW: u64 = 256 << 10;

/// What comes next.
pub(super) enum Next<'a> {
    /// The record: who appended it, and its payload.
    Record(Epoch, &'a [u8]),
    /// A part of the log is to be read first.
    Read { offset: u64, len: u32 },
    /// That part is under way.
    Wait,
    /// The server does not have it (any more).
    Gone,
    /// It cannot be read, and may have been trimmed meanwhile: the server is to be asked how its log is.
    Look,
    /// It is damaged.
    Fault(Fault),
}

/// A log that is read from its head on.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) number: u64,
    pub(super) source: usize,
    reader: Reader,
    window: Window,
    /// Of the record that was read last, if it was not taken.
    record: Option<(u64, Epoch, Vec<u8>)>,
    /// How often the server had said how its log is when a record could not be read.
    failed: Option<u64>,
}

/// What was read last.
#[derive(Debug)]
struct Window {
    at: u64,
    bytes: Vec<u8>,
    /// Bytes of the region.
    size: u64,
    reading: Option<(u64, u32)>,
    /// Nothing was taken from it yet.
    fresh: bool,
}

/// These bytes are to be read first.
struct Missing(u64, u64);

impl Source for &Window {
    type Error = Missing;

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Missing> {
        let len = into.len() as u64;
        let end = self.at + self.bytes.len() as u64;
        if offset < self.at || offset + len > end {
            return Err(Missing(offset, len));
        }
        let from = (offset - self.at) as usize;
        into.copy_from_slice(&self.bytes[from..from + into.len()]);
        Ok(())
    }
}

impl Copy {
    pub(super) fn new(number: u64, source: usize, status: &Status) -> Self {
        let size = status.superblock.geometry.size;
        let window = Window { at: 0, bytes: Vec::new(), size, reading: None, fresh: false };
        Self { number, source, reader: Reader::new(status), window, record: None, failed: None }
    }

    /// What was asked for last has come.
    pub(super) fn came(&mut self, bytes: Vec<u8>) {
        if let Some((at, len)) = self.window.reading.take()
            && bytes.len() == len as usize
        {
            self.window = Window { at, bytes, fresh: true, reading: None, ..self.window };
        }
    }

    /// The record with that number, or what has to be done for it, if the server has all records below `has`.
    pub(super) fn next(&mut self, sequence: u64, has: u64, status: &Status, replies: u64) -> Next<'_> {
        if self.window.reading.is_some() {
            return Next::Wait;
        }
        if self.record.as_ref().is_some_and(|(number, ..)| *number == sequence) {
            let (_, epoch, payload) = self.record.as_ref().expect("just seen");
            return Next::Record(*epoch, payload);
        }
        self.reader.refresh(status);
        loop {
            let number = self.reader.next_sequence();
            // The head goes on, and the reader has passed this record.
            if number > sequence || number >= has || number < status.state.head.sequence {
                return Next::Gone;
            }
            let read = self.reader.read(&mut &self.window).map(|read| {
                let kept = |(found, payload): (Found, &[u8])| {
                    (found.header.sequence, found.header.epoch, payload.to_vec())
                };
                read.map(kept)
            });
            match read {
                Ok(Ok(record)) => {
                    (self.window.fresh, self.failed) = (false, None);
                    // What comes before it that server has already.
                    if record.0 == sequence {
                        let (_, epoch, payload) = self.record.insert(record);
                        return Next::Record(*epoch, payload);
                    }
                }
                // It may have been read before the record was there.
                Ok(Err(_)) if !self.window.fresh => {
                    self.window.bytes.clear();
                    self.window.fresh = true;
                }
                Ok(Err(fault)) => {
                    return match self.failed {
                        Some(before) if replies > before => Next::Fault(fault),
                        Some(_) => Next::Wait,
                        None => {
                            self.failed = Some(replies);
                            Next::Look
                        }
                    };
                }
                Err(Missing(offset, len)) => {
                    let len = len.max(WINDOW).min(self.window.size - offset) as u32;
                    self.window.reading = Some((offset, len));
                    return Next::Read { offset, len };
                }
            }
        }
    }

    /// It was sent.
    pub(super) fn taken(&mut self) {
        self.record = None;
    }
}
