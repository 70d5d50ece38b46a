//! What a server lacks, read from another one's log.

use crate::log::error::Fault;
use crate::log::format::Epoch;
use crate::log::store::{Reader, Status};
use crate::log::walk::{Found, Missing, Window};

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
    /// What of it is under way.
    reading: Option<Missing>,
    /// All of it was read since a record could not be.
    again: bool,
    /// Of the record that was read last, if it was not taken.
    record: Option<(u64, Epoch, Vec<u8>)>,
    /// How often the server had said how its log is when a record could not be read.
    failed: Option<u64>,
}

impl Copy {
    pub(super) fn new(number: u64, source: usize, status: &Status) -> Self {
        let window = Window::new(status.superblock.geometry.size, WINDOW);
        let reader = Reader::new(status);
        Self { number, source, reader, window, reading: None, again: false, record: None, failed: None }
    }

    /// What was asked for last has come.
    pub(super) fn came(&mut self, bytes: Vec<u8>) {
        if let Some(Missing { offset, len }) = self.reading.take()
            && bytes.len() == len as usize
        {
            self.window.came(offset, bytes);
        }
    }

    /// The record with that number, or what has to be done for it, if the server has all records below `has`.
    pub(super) fn next(&mut self, sequence: u64, has: u64, status: &Status, replies: u64) -> Next<'_> {
        if self.reading.is_some() {
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
                    (self.again, self.failed) = (false, None);
                    // What comes before it that server has already.
                    if record.0 == sequence {
                        let (_, epoch, payload) = self.record.insert(record);
                        return Next::Record(*epoch, payload);
                    }
                }
                // It may have been read before the record was there.
                Ok(Err(_)) if !self.again => {
                    self.window.forget();
                    self.again = true;
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
                Err(missing) => {
                    self.reading = Some(missing);
                    return Next::Read { offset: missing.offset, len: missing.len };
                }
            }
        }
    }

    /// It was sent.
    pub(super) fn taken(&mut self) {
        self.record = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use remanence_pmem::crash_image::CrashImage;
    use remanence_pmem::{Medium, PersistenceDomain};

    use super::*;
    use crate::log::format::superblock::Uuid;
    use crate::log::format::{Geometry, Mode};
    use crate::log::store::{Make, Store};
    use crate::log::writer::Writer;

    const EPOCH: Epoch = Epoch::new(1, 1);

    /// An empty log of so many bytes.
    fn log(size: u64) -> (Store<Arc<CrashImage>>, Writer) {
        let geometry = Geometry::for_size(size).expect("fair");
        let image = Arc::new(CrashImage::new(geometry.size, PersistenceDomain::Adr));
        let make = Make { mode: Mode::Singleton, geometry, uuid: Uuid([1; 16]), salt: 3 };
        let mut store = Store::create(image, &make).expect("fair");
        let writer = Writer::new(store.grant(EPOCH).expect("it is the first").writer_grant(), EPOCH);
        (store, writer)
    }

    fn append(store: &Store<Arc<CrashImage>>, writer: &mut Writer, payload: &[u8]) {
        for (offset, bytes) in writer.append(payload).expect("room").list() {
            store.medium().write(offset, bytes);
            store.medium().persist(offset..offset + bytes.len() as u64).expect("memory does not fail");
        }
        writer.acknowledged(writer.next());
    }

    /// The payload of a record of a server that has all below `has`, and how many READs that took; none if it is not to be had.
    fn copied(
        copy: &mut Copy,
        store: &Store<Arc<CrashImage>>,
        wanted: u64,
        has: u64,
        status: &Status,
    ) -> (Option<Vec<u8>>, u32) {
        let mut reads = 0;
        loop {
            match copy.next(wanted, has, status, 1) {
                Next::Record(epoch, payload) => {
                    assert_eq!(epoch, EPOCH);
                    let payload = payload.to_vec();
                    copy.taken();
                    return (Some(payload), reads);
                }
                Next::Read { offset, len } => {
                    reads += 1;
                    assert!(reads < 40, "it reads the same again and again");
                    let mut bytes = vec![0; len as usize];
                    store.medium().read(offset, &mut bytes);
                    copy.came(bytes);
                }
                Next::Gone => return (None, reads),
                Next::Wait | Next::Look | Next::Fault(_) => panic!("record {wanted} is there"),
            }
        }
    }

    /// Else a server that has not got so far would be given up, as what nobody has yet does not look like a record.
    #[test]
    fn nothing_is_copied_that_a_server_may_not_have_durably() {
        let (mut store, mut writer) = log(1 << 16);
        (0..3).for_each(|n| append(&store, &mut writer, &[n; 40]));
        let status = store.status().expect("memory does not fail");
        let mut copy = Copy::new(1, 0, &status);
        for (wanted, there) in [(0, true), (1, true), (2, false)] {
            let (payload, _) = copied(&mut copy, &store, wanted, 2, &status);
            assert_eq!(payload.is_some(), there, "{wanted}");
        }
    }

    /// The end of the ring has room that is not used, farther from its start than is read at a time.
    #[test]
    fn a_log_is_copied_round_the_ring() {
        let (mut store, mut writer) = log(1 << 20);
        let payload = |sequence: u64| vec![sequence as u8 | 1; 7000 + sequence as usize % 500];
        // Twice round.
        for sequence in 0..300 {
            append(&store, &mut writer, &payload(sequence));
            if let Some(below) = (sequence + 1).checked_sub(80).filter(|below| below % 10 == 0) {
                writer.trimmed(store.trim(below).expect("it is there").state.head.position);
            }
            let status = store.status().expect("memory does not fail");
            let (first, next) = (status.state.head.sequence, status.tail.sequence);
            if sequence % 40 != 39 {
                continue;
            }
            let (mut copy, mut reads) = (Copy::new(1, 0, &status), 0);
            for wanted in first..next {
                let (found, took) = copied(&mut copy, &store, wanted, next, &status);
                assert_eq!(found, Some(payload(wanted)));
                reads += took;
            }
            assert!(reads < 40, "the same is read for many records");
        }
    }
}
