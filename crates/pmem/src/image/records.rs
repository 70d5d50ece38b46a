//! A log of records, and what a place has where a record is due: one, or what a crash left of one, or of an earlier life, or damage.
//!
//! A format describes how its records are [framed](Framing) and what it knows of their [order](Order): where the one that is due may
//! lie, what in its header makes it that one, and what says of a record that it was durable. [`Records::next`] judges by that, for
//! a log whose end is a durable word, for one that ends where nothing is, and for one that goes round in a ring.
//!
//! **The crash argument.** It is made here for all of them; a format's own part is to say truly what `Order` asks.
//!
//! *What is believed.* A record counts if it is whole (a checksum that covers a salt or tag of this life of the medium), is the one that
//! is due (a number or a position, which counts up), and is not of an earlier life of its place (an epoch, a generation, or again the position,
//! none of which is ever lower than in the record before it). So what is handed out is what was appended there, or nothing.
//!
//! *[Torn](Verdict::Torn).* Records become durable in any order until a sync, and a crash may leave any part of one. What is not
//! whole where a record is due was being written, and as nobody was told of it, it is as good as none. The next record goes over it.
//!
//! *[Stale](Verdict::Stale).* What lies behind the end may be whole: of the lap before, of the log that was here before, or appended
//! behind a record that was torn and so cut off. It is never the one that is due: a number or position of a lap before is lower;
//! another log had another salt; and what was cut off has an older epoch than what is appended after the recovery that cut it off. For this the
//! format raises its epoch durably at each recovery, before it appends, or (where a word says where the log ends) never reads
//! beyond that word.
//!
//! *[Rotted](Verdict::Rotted).* A record that was acknowledged and is damaged looks like a torn one, and to take it for the end would give up all
//! that is behind it. Two things tell: something durable that was written when the record was, and says that the log [reached](Order::reached)
//! beyond it (a tail word, a number in the root record); or a [later](Order::later) record that is whole, of this life, and
//! [proves](Order::proves) it, as it was only written when this one was durable, or says up to where they were. Nothing of a rotted log is
//! given up by who reads it: that is decided by who owns it.
//!
//! *[End](Verdict::End).* There is nothing. Of the very last record, where neither is there, damage is not told from a torn write: who needs
//! that says durably how far the log has come, now and then.
//!
//! Recovery makes durable what it found before it acts on it, and where it goes on: after the death of a process alone, the last
//! records may be visible only.

use std::ops::Range;

use super::framing::{Flaw, Framing, Source};

/// The records of a log, as they are framed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Records {
    /// How each is framed.
    pub framing: Framing,
    /// What goes into their checksums: drawn anew for each log that is made.
    pub salt: u64,
}

/// What a format knows of the order of its records, at the place where one is due.
pub trait Order {
    /// A header that was read.
    type Header;

    /// Where the record may begin, and up to where it has room: in one place, or in several that are looked at one after the other.
    fn places(&self) -> impl Iterator<Item = Range<u64>>;

    /// Reads a header.
    ///
    /// # Errors
    /// It is not that of the record that is due.
    fn due(&self, header: &[u8]) -> Result<Self::Header, Standing>;

    /// Whether something durable says that the record was.
    fn reached(&self) -> bool {
        false
    }

    /// Where later records may begin that would prove it.
    fn later(&self) -> impl Iterator<Item = Range<u64>> {
        std::iter::empty()
    }

    /// Whether a record with this header, if it is whole, is of this life of the log, and proves that the one that is due was durable.
    fn proves(&self, header: &[u8]) -> bool {
        let _ = header;
        false
    }
}

/// What a header is that is not due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It is of an earlier life, an earlier lap, or an earlier number.
    Stale,
    /// It is none, or a later one.
    Other,
}

/// A record that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<H> {
    /// What its header says.
    pub header: H,
    /// Where it begins.
    pub at: u64,
    /// Bytes that it takes.
    pub len: u64,
}

/// What a place has where a record is due. The head of this module has the argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict<H> {
    /// The record that is due.
    Whole(Record<H>),
    /// What is not whole, and was never acknowledged as far as anything says: the log ends before it.
    Torn,
    /// What was there before: the log ends before it.
    Stale,
    /// A record was durable here, and is damaged. The log does not end here.
    Rotted,
    /// Nothing: the log ends here.
    End,
}

impl Records {
    /// Looks at the place where a record is due. If it is there, its payload is in `payload` then.
    ///
    /// # Errors
    /// The source fails.
    pub fn next<S: Source, O: Order>(
        &self,
        order: &O,
        source: &mut S,
        payload: &mut Vec<u8>,
    ) -> Result<Verdict<O::Header>, S::Error> {
        let (mut torn, mut stale) = (false, false);
        for room in order.places() {
            let at = room.start;
            match self.framing.read(Some(self.salt), source, room, payload, |header| order.due(header))? {
                Ok((header, len)) => return Ok(Verdict::Whole(Record { header, at, len })),
                Err(Flaw::Nothing) => {}
                Err(Flaw::Wrong(Standing::Stale)) => stale = true,
                Err(Flaw::Wrong(Standing::Other) | Flaw::Length | Flaw::Checksum) => torn = true,
            }
        }
        Ok(match () {
            () if order.reached() || self.proof(order, source)?.is_some() => Verdict::Rotted,
            () if torn => Verdict::Torn,
            () if stale => Verdict::Stale,
            () => Verdict::End,
        })
    }

    /// The header of a later record that proves that the one that is due was durable.
    ///
    /// # Errors
    /// The source fails.
    pub fn proof<S: Source, O: Order>(&self, order: &O, source: &mut S) -> Result<Option<Vec<u8>>, S::Error> {
        let mut payload = Vec::new();
        for room in order.later() {
            let judge = |header: &[u8]| if order.proves(header) { Ok(header.to_vec()) } else { Err(()) };
            if let Ok((header, _)) = self.framing.read(Some(self.salt), source, room, &mut payload, judge)? {
                return Ok(Some(header));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PersistenceDomain;
    use crate::crash_image::{CrashImage, Explorer, Failure};
    use crate::image::framing::Local;
    use crate::layout::{get_u32, get_u64};
    use crate::medium::Medium;

    /// A word that says which record is the first, and where; the epoch; how far the log has come, if the test keeps that.
    const WORDS: [u64; 3] = [0, 64, 128];
    const START: u64 = 192;
    const RING: u64 = 512;
    const HEADER: usize = 24;
    const RECORDS: Records = Records {
        framing: Framing {
            header: HEADER,
            length: Some(0),
            mark: None,
            max: 200,
            crc: 4,
            align: 8,
            padding: true,
        },
        salt: 77,
    };
    const DOMAINS: [PersistenceDomain; 2] = [PersistenceDomain::Adr, PersistenceDomain::PageCache];

    fn payload(number: u64) -> Vec<u8> {
        vec![number as u8 + 1; 5 + number as usize * 11 % 30]
    }

    /// A log in a ring, at the place where a record is due. Header: length, CRC, u64 number, u32 epoch, u32 below which number all
    /// records were acknowledged when it was appended.
    #[derive(Clone, Copy)]
    struct Log<'a> {
        image: &'a CrashImage,
        /// Where the first record begins, in bytes ever appended.
        head: u64,
        position: u64,
        number: u64,
        epoch: u32,
        done: u64,
    }

    impl Order for Log<'_> {
        type Header = u32;

        fn places(&self) -> impl Iterator<Item = Range<u64>> {
            // In the rest of the ring, or at its start.
            [
                Some(self.position),
                Some(self.position.next_multiple_of(RING)).filter(|at| *at != self.position),
            ]
            .into_iter()
            .flatten()
            .map(|position| self.room(position))
        }

        fn due(&self, header: &[u8]) -> Result<u32, Standing> {
            let (number, epoch) = (get_u64(header, 8), get_u32(header, 16));
            match () {
                () if number == self.number && epoch >= self.epoch => Ok(epoch),
                () if number <= self.number => Err(Standing::Stale),
                () => Err(Standing::Other),
            }
        }

        fn reached(&self) -> bool {
            self.image.load_u64(WORDS[2]) > self.number
        }

        fn later(&self) -> impl Iterator<Item = Range<u64>> {
            (self.position..self.head + RING).step_by(8).map(|position| self.room(position))
        }

        fn proves(&self, header: &[u8]) -> bool {
            let number = get_u64(header, 8);
            number > self.number
                && u64::from(get_u32(header, 20)) > self.number
                && get_u32(header, 16) >= self.epoch
        }
    }

    impl<'a> Log<'a> {
        fn room(&self, position: u64) -> Range<u64> {
            let left = (RING - position % RING).min((self.head + RING).saturating_sub(position));
            START + position % RING..START + position % RING + left
        }

        /// Finds the records of the log: their numbers, and what ends them.
        fn open(image: &'a CrashImage) -> (Self, Vec<u64>, Verdict<u32>) {
            let word = image.load_u64(WORDS[0]);
            let (position, number) = (word >> 32, word & 0xFFFF_FFFF);
            let mut log = Self { image, head: position, position, number, epoch: 0, done: 0 };
            let (mut numbers, mut bytes) = (Vec::new(), Vec::new());
            loop {
                let Ok(verdict) = RECORDS.next(&log, &mut Local(image), &mut bytes);
                let Verdict::Whole(record) = verdict else { break (log, numbers, verdict) };
                assert_eq!(bytes, payload(log.number), "record {}", log.number);
                numbers.push(log.number);
                log.step(record.at, record.len, record.header);
            }
        }

        fn step(&mut self, at: u64, len: u64, epoch: u32) {
            let lap = self.position / RING * RING;
            let begins = lap + at - START;
            self.position = if begins < self.position { begins + RING } else { begins } + len;
            (self.number, self.epoch) = (self.number + 1, epoch);
        }

        /// Goes on after a recovery: what was found is durable, and what was cut off has an older epoch than what follows.
        fn recover(image: &'a CrashImage) -> (Self, Vec<u64>) {
            let (mut log, numbers, _) = Self::open(image);
            image.persist(START..START + RING).unwrap();
            log.epoch = image.load_u64(WORDS[1]) as u32 + 1;
            image.store_u64(WORDS[1], log.epoch.into());
            image.persist(WORDS[1]..WORDS[1] + 8).unwrap();
            log.done = log.number;
            (log, numbers)
        }

        fn append(&mut self) {
            let bytes = payload(self.number);
            let len = RECORDS.framing.len(bytes.len());
            let room = self.room(self.position);
            let at = if room.end - room.start >= len { room.start } else { START };
            let mut header = [0; HEADER];
            header[..4].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
            header[8..16].copy_from_slice(&self.number.to_le_bytes());
            header[16..20].copy_from_slice(&self.epoch.to_le_bytes());
            header[20..].copy_from_slice(&(self.done as u32).to_le_bytes());
            let mut record = Vec::new();
            RECORDS.framing.emit(Some(RECORDS.salt), &header, &bytes, &mut record);
            self.image.write_nt(at, &record);
            self.step(at, len, self.epoch);
        }

        fn sync(&mut self) {
            self.image.psync().unwrap();
            self.done = self.number;
            self.image.note(self.number);
        }

        /// Gives up all records but the last three.
        fn trim(&mut self) {
            let mut at = Self::open(self.image).0;
            (at.position, at.number, at.epoch) = (self.head, self.image.load_u64(WORDS[0]) & 0xFFFF_FFFF, 0);
            while at.number + 3 < self.number {
                let Ok(Verdict::Whole(record)) = RECORDS.next(&at, &mut Local(self.image), &mut Vec::new())
                else {
                    panic!("record {}", at.number)
                };
                at.step(record.at, record.len, record.header);
            }
            self.image.store_u64(WORDS[0], at.position << 32 | at.number);
            self.image.persist(WORDS[0]..WORDS[0] + 8).unwrap();
            self.head = at.position;
        }

        fn fill(&mut self, rounds: u64) {
            for _ in 0..rounds {
                self.append();
                self.append();
                self.sync();
                self.trim();
            }
        }
    }

    /// Three laps: at every crash there is one beneath, or two.
    #[test]
    fn a_crash_keeps_what_was_acknowledged_and_what_it_cut_off_does_not_come_back() {
        for domain in DOMAINS {
            for failure in [Failure::ProcessCrash, Failure::PowerLoss] {
                let mut ends = [0; 3];
                let report = Explorer { failure, ways_max: 48, samples: 24, seed: 7 }.run(
                    &CrashImage::new(START + RING, domain),
                    |image| Log::recover(image).0.fill(12),
                    |crashed, notes| {
                        let told = notes.last().copied().unwrap_or(0);
                        let (log, _, verdict) = Log::open(crashed);
                        assert!(log.number >= told && log.number <= told + 2, "{} of {told}", log.number);
                        match verdict {
                            Verdict::Torn => ends[0] += 1,
                            Verdict::Stale => ends[1] += 1,
                            Verdict::End => ends[2] += 1,
                            other => panic!("a crash is no rot: {other:?}"),
                        }
                        let first = log.number;
                        let (mut log, found) = Log::recover(crashed);
                        log.append();
                        log.sync();
                        let (after, all, _) = Log::open(crashed);
                        assert_eq!(
                            (after.number, all.len()),
                            (first + 1, found.len() + 1),
                            "nothing came back"
                        );
                    },
                );
                assert!(report.crashes > 100 && ends.iter().all(|times| *times > 0), "{report:?} {ends:?}");
            }
        }
    }

    /// The record after a torn one is whole, and the next one is as long as the torn one.
    #[test]
    fn the_epoch_is_what_keeps_a_record_away_that_was_cut_off() {
        for raised in [true, false] {
            let image = CrashImage::new(START + RING, PersistenceDomain::Adr);
            let mut log = Log::recover(&image).0;
            log.append();
            log.append();
            log.sync();
            image.write(START, &[0; HEADER]);
            let mut log = Log { done: 0, ..Log::open(&image).0 };
            assert_eq!((log.number, Log::open(&image).2), (0, Verdict::End), "nobody was told of the second");
            log.epoch = if raised { 2 } else { 1 };
            log.append();
            assert_eq!(Log::open(&image).1, if raised { vec![0] } else { vec![0, 1] });
        }
    }

    /// Every bit of every record, with laps beneath: no damaged record is handed out, none before it is lost, and what was
    /// acknowledged before a later record was appended, or is said by a durable word to be there, is told from a torn end.
    #[test]
    fn rot_is_told_from_the_end_wherever_anything_proves_it() {
        for word in [false, true] {
            let image = CrashImage::new(START + RING, PersistenceDomain::Adr);
            let mut log = Log::recover(&image).0;
            log.fill(12);
            log.append();
            log.append();
            log.sync();
            if word {
                image.store_u64(WORDS[2], log.number);
            }
            let (_, numbers, end) = Log::open(&image);
            assert!(
                numbers.len() == 5 && !matches!(end, Verdict::Whole(_) | Verdict::Rotted),
                "{numbers:?} {end:?}"
            );
            // Appended with the last sync: nothing but the word says of these that they were acknowledged.
            let unproven = log.number - 2;
            let good = image.bytes();
            let mut at = Log::open(&image).0;
            (at.position, at.number, at.epoch) = (at.head, numbers[0], 0);
            for number in numbers.iter().copied() {
                let Ok(Verdict::Whole(record)) = RECORDS.next(&at, &mut Local(&image), &mut Vec::new())
                else {
                    panic!("record {number}")
                };
                for bit in 0..record.len * 8 {
                    let mut bad = good.clone();
                    bad[(record.at + bit / 8) as usize] ^= 1 << (bit % 8);
                    let bad = CrashImage::from_bytes(bad, PersistenceDomain::Adr);
                    let (_, found, verdict) = Log::open(&bad);
                    assert_eq!(
                        found,
                        (numbers[0]..number).collect::<Vec<u64>>(),
                        "bit {bit} of record {number}"
                    );
                    let told = word || number < unproven;
                    assert_eq!(verdict == Verdict::Rotted, told, "bit {bit} of record {number}: {verdict:?}");
                }
                at.step(record.at, record.len, record.header);
            }
        }
    }

    #[test]
    fn records_of_another_log_are_none() {
        let image = CrashImage::new(START + RING, PersistenceDomain::Adr);
        Log::recover(&image).0.fill(1);
        let (mut log, _, _) = Log::open(&image);
        (log.position, log.number, log.epoch) = (0, 0, 0);
        let other = Records { salt: 78, ..RECORDS };
        assert_eq!(other.next(&log, &mut Local(&image), &mut Vec::new()), Ok(Verdict::Torn));
    }
}
