//! A log in a region, under one of three words.
//!
//! ```text
//! 0      root record (pmem's, twice, a page each): "RLOG" u32, version u32, word u32, 0 u32, start u64, end u64, tag u64
//! 7680   a mark, while a log is made
//! start  the log (pmem's `CountedLog`)
//! ```
//! Little-endian. The root record is written when the log behind it is durable, so a crash while a log is made leaves
//! none. What it leaves has the mark, and is as good as blank.

use std::collections::VecDeque;
use std::fmt;
use std::io;

use remanence_pmem::counter::{
    CountedLog, Entry, LogFault, PlainWord, Position, RotatingCounter, RotatingRegister,
};
use remanence_pmem::image::{Making, ROOT_LEN, Root, RootError, Signature};
use remanence_pmem::{Image, Medium, Region};

const MAGIC: u32 = 0x474f_4c52; // "RLOG"
const VERSION: u32 = 1;
/// Tells our root record from others.
const ROOT_TAG: u64 = 0x7265_6d20_6c6f_6720;
const RECORD_LEN: usize = 40;
/// What tells a log from all else. A root record begins with its tag, in either of its pages; the mark is in the last sector of these,
/// which the record leaves alone.
const SIGNATURE: Signature = Signature {
    magic: ROOT_TAG.to_le_bytes(),
    second: Some(ROOT_LEN / 2),
    making: Some(Making { at: ROOT_LEN - 512, mark: b"RLOGmake", ends: true }),
    head: 64 << 10,
    note: None,
};

/// The word that says how far the log goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Word {
    /// Eight bytes, set in place.
    Plain,
    /// A counter that rotates over ten blocks; the greatest counts.
    RotatingCounter,
    /// A register that rotates over ten blocks; the XOR of them counts.
    RotatingRegister,
}

impl Word {
    /// Every kind of word.
    pub const ALL: [Self; 3] = [Self::Plain, Self::RotatingCounter, Self::RotatingRegister];

    /// The name that options and machine-readable output use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::RotatingCounter => "rotating-counter",
            Self::RotatingRegister => "rotating-register",
        }
    }

    const fn number(self) -> u32 {
        match self {
            Self::Plain => 1,
            Self::RotatingCounter => 2,
            Self::RotatingRegister => 3,
        }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a log cannot be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is none.
    #[error("there is no log here: it was never made, or was still being made when the machine failed")]
    None,
    /// It is of another version.
    #[error(
        "the log here is of version {found}, and this program knows version {VERSION}: use the program that made it"
    )]
    Version {
        /// The version that the log's record names.
        found: u32,
    },
    /// What its record says cannot be.
    #[error("the log's record does not fit its medium ({0}): the file was cut short, or is damaged")]
    Record(&'static str),
    /// The log itself.
    #[error(transparent)]
    Log(#[from] LogFault),
    /// The medium failed.
    #[error("the medium failed: {0}")]
    Medium(#[from] io::Error),
}

impl From<RootError> for OpenError {
    fn from(error: RootError) -> Self {
        match error {
            RootError::Invalid { .. } => Self::None,
            RootError::Medium(e) => Self::Medium(e),
        }
    }
}

/// A log, whatever its word.
enum Store<M: Medium> {
    Plain(CountedLog<PlainWord<M>>),
    Counter(CountedLog<RotatingCounter<M>>),
    Register(CountedLog<RotatingRegister<M>>),
}

/// The same with each of them.
macro_rules! with {
    ($store:expr, $log:ident => $what:expr) => {
        match $store {
            Store::Plain($log) => $what,
            Store::Counter($log) => $what,
            Store::Register($log) => $what,
        }
    };
}

/// A log on a medium, with an index of its entries.
pub struct LogFile<M: Medium = Region> {
    medium: M,
    word: Word,
    store: Store<M>,
    /// Committed and uncommitted entries from head to end, oldest first.
    entries: VecDeque<Entry>,
}

impl<M: Medium> fmt::Debug for LogFile<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogFile")
            .field("word", &self.word)
            .field("bounds", &self.bounds())
            .field("entries", &self.entries.len())
            .finish_non_exhaustive()
    }
}

impl LogFile {
    /// What a file has that begins so: who opens it for a log says this to
    /// [`FileOptions::image`](remanence_pmem::FileOptions::image).
    #[must_use]
    pub fn image(head: &[u8], len: u64) -> Image {
        SIGNATURE.image(head, len)
    }

    /// Whether nothing is in it yet: a log is to be made.
    #[must_use]
    pub fn is_blank(region: &Region) -> bool {
        Self::image(&SIGNATURE.read(region), region.len()) == Image::Blank
    }
}

impl<M: Medium + Clone> LogFile<M> {
    /// Makes an empty log over all of a medium. `tag` must not have been used for an earlier log there: draw it.
    ///
    /// # Errors
    /// The medium is too short, or failed.
    pub fn format(medium: M, word: Word, tag: u64) -> Result<Self, OpenError> {
        let (start, end) = (ROOT_LEN, medium.len() & !7);
        if start >= end {
            return Err(OpenError::Record("the medium is too short for a log"));
        }
        SIGNATURE.begin(&medium)?;
        // Nobody finds the log that was here while the new one is half there.
        medium.write(0, &[0; 16]);
        medium.write(ROOT_LEN / 2, &[0; 16]);
        medium.pwb(0..ROOT_LEN);
        medium.psync()?;
        let area = start..end;
        let on = medium.clone();
        let store = match word {
            Word::Plain => Store::Plain(CountedLog::format(on, area, tag)?),
            Word::RotatingCounter => Store::Counter(CountedLog::format(on, area, tag)?),
            Word::RotatingRegister => Store::Register(CountedLog::format(on, area, tag)?),
        };
        let mut record = Vec::with_capacity(RECORD_LEN);
        for number in [MAGIC, VERSION, word.number(), 0] {
            record.extend_from_slice(&number.to_le_bytes());
        }
        for number in [start, end, tag] {
            record.extend_from_slice(&number.to_le_bytes());
        }
        Root::format(medium.clone(), 0, ROOT_TAG, &record)?;
        SIGNATURE.end(&medium)?;
        Ok(Self { medium, word, store, entries: VecDeque::new() })
    }

    /// Finds a log again, and hands every entry to `visit`, oldest first.
    ///
    /// # Errors
    /// There is none, it is of another version, it is damaged ([`LogFault::Damaged`] after the entries before the
    /// damage were handed out), or the medium failed.
    pub fn open(medium: M, mut visit: impl FnMut(Entry, &[u8])) -> Result<Self, OpenError> {
        if medium.len() < ROOT_LEN {
            return Err(OpenError::None);
        }
        let begins = SIGNATURE.judge(&SIGNATURE.read(&medium));
        let (_, record) =
            Root::open(medium.clone(), 0, ROOT_TAG).map_err(|error| match OpenError::from(error) {
                OpenError::None if begins.is_ok() => OpenError::Record("neither of its two copies is whole"),
                error => error,
            })?;
        let u32_at =
            |at: usize| record.get(at..at + 4).map_or(0, |b| u32::from_le_bytes(b.try_into().expect("four")));
        let u64_at = |at: usize| {
            record.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().expect("eight")))
        };
        if u32_at(0) != MAGIC {
            return Err(OpenError::None);
        }
        if u32_at(4) != VERSION {
            return Err(OpenError::Version { found: u32_at(4) });
        }
        let word = Word::ALL.into_iter().find(|word| word.number() == u32_at(8));
        let word = word.ok_or(OpenError::Record("it names a word that this program does not know"))?;
        let (start, end, tag) = (u64_at(16), u64_at(24), u64_at(32));
        if start != ROOT_LEN || end > medium.len() || record.len() != RECORD_LEN {
            return Err(OpenError::Record("its area does not lie on the medium"));
        }
        let (mut entries, area) = (VecDeque::new(), start..end);
        let mut see = |entry: Entry, bytes: &[u8]| {
            entries.push_back(entry);
            visit(entry, bytes);
        };
        let on = medium.clone();
        let store = match word {
            Word::Plain => Store::Plain(CountedLog::open(on, area, tag, &mut see)?),
            Word::RotatingCounter => Store::Counter(CountedLog::open(on, area, tag, &mut see)?),
            Word::RotatingRegister => Store::Register(CountedLog::open(on, area, tag, &mut see)?),
        };
        Ok(Self { medium, word, store, entries })
    }
}

impl<M: Medium> LogFile<M> {
    /// The kind of word that says how far this log goes.
    #[must_use]
    pub fn word(&self) -> Word {
        self.word
    }

    /// Appends an entry; durable after the next [`commit`](Self::commit).
    ///
    /// # Errors
    /// It does not fit, which changes nothing; or the medium failed before.
    pub fn append(&mut self, payload: &[u8]) -> Result<Entry, LogFault> {
        let entry = with!(&mut self.store, log => log.append(payload))?;
        self.entries.push_back(entry);
        Ok(entry)
    }

    /// Makes every appended entry durable.
    ///
    /// # Errors
    /// The medium failed: the entries since the last commit may or may not be found later.
    pub fn commit(&mut self) -> Result<(), LogFault> {
        with!(&mut self.store, log => log.commit()).map(|_| ())
    }

    /// Forgets the entries before a position.
    ///
    /// # Errors
    /// It is no end of a committed entry, or the medium failed.
    pub fn trim(&mut self, to: Position) -> Result<(), LogFault> {
        with!(&mut self.store, log => log.trim(to))?;
        while self.entries.front().is_some_and(|entry| entry.position < to) {
            self.entries.pop_front();
        }
        Ok(())
    }

    /// From where to where there are committed entries.
    #[must_use]
    pub fn bounds(&self) -> (Position, Position) {
        with!(&self.store, log => (log.head(), log.tail()))
    }

    /// The committed entry that begins at a position, or the next one if there are only bytes that were skipped at the
    /// end of the ring.
    #[must_use]
    pub fn read(&self, position: Position) -> Option<(Entry, Vec<u8>)> {
        let at = self.entries.partition_point(|entry| entry.position < position);
        let before =
            at.checked_sub(1).and_then(|at| self.entries.get(at)).map_or(self.bounds().0, |entry| entry.end);
        let entry = *self.entries.get(at)?;
        if before != position && entry.position != position || entry.end > self.bounds().1 {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(entry.len).ok()?];
        self.medium.read(entry.payload, &mut bytes);
        Some((entry, bytes))
    }
}

#[cfg(test)]
mod tests {
    use remanence_pmem::PersistenceDomain;
    use remanence_pmem::crash_image::{CrashImage, Explorer};

    use super::*;

    const LEN: u64 = 16 << 10;

    #[test]
    fn a_file_is_blank_a_log_or_somebody_elses() {
        let region = Region::memfd("log", LEN).expect("memory");
        assert!(LogFile::is_blank(&region));
        drop(LogFile::format(region.clone(), Word::Plain, 7).expect("room"));
        assert!(!LogFile::is_blank(&region));
        let mut head = vec![0; LEN as usize];
        region.read(0, &mut head);
        assert_eq!(LogFile::image(&head, LEN), Image::Ours { len: LEN });
        assert_eq!(LogFile::image(&vec![b'x'; 5000], 5000), Image::Foreign);
        assert_eq!(LogFile::image(&[], 0), Image::Blank);
    }

    /// Written by the first release of this format.
    #[test]
    fn its_bytes_are_those_of_the_format() {
        let image = CrashImage::new(LEN, PersistenceDomain::Adr);
        drop(LogFile::format(&image, Word::Plain, 7).expect("room"));
        let head = image.bytes();
        let hex: String = head[..64].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "20676f6c206d65720100000000000000280000004f4f7a82524c4f4701000000\
             0100000000000000002000000000000000400000000000000700000000000000"
        );
        assert!(head[64..4096].iter().all(|byte| *byte == 0));
        // Early releases wrote the first copy alone, and read whichever has the higher generation.
        assert_eq!((&head[4096..4104], head[4104], &head[4120..4160]), (&head[..8], 2, &head[24..64]));
        assert!(head[4160..ROOT_LEN as usize].iter().all(|byte| *byte == 0), "the mark is gone");
        let mut log = LogFile::open(&image, |_, _| {}).expect("whole");
        log.append(b"kept").and_then(|_| log.commit()).expect("room");
        for at in [0, 4096] {
            let first = CrashImage::from_bytes(image.bytes(), PersistenceDomain::Adr);
            first.write(at, &[0; 64]);
            let mut kept = 0;
            LogFile::open(&first, |_, _| kept += 1).expect("one copy is whole");
            assert_eq!(kept, 1);
            first.write(4096 - at + 30, b"rot");
            drop(LogFile::open(&first, |_, _| {}).expect("the other was made whole again"));
            first.write(at + 30, b"rot");
            drop(LogFile::open(&first, |_, _| {}).expect("and again"));
            [0, 4096].iter().for_each(|at| first.write(at + 30, b"rot"));
            assert!(matches!(LogFile::open(&first, |_, _| {}), Err(OpenError::Record(_))));
        }
        image.write(7680, b"RLOGmake");
        assert_eq!(LogFile::image(&image.bytes(), LEN), Image::Blank, "whatever else is there");
    }

    /// Whoever finds what is left of it makes it again.
    #[test]
    fn a_crash_while_a_log_is_made_leaves_a_log_or_what_is_as_good_as_blank() {
        for domain in [PersistenceDomain::Adr, PersistenceDomain::PageCache] {
            let (mut blank, mut whole) = (0, 0);
            Explorer { ways_max: 16, samples: 16, ..Explorer::default() }.run(
                &CrashImage::new(LEN, domain),
                |image| drop(LogFile::format(image, Word::RotatingCounter, 2).expect("room")),
                |crashed, _| match LogFile::image(&crashed.bytes(), LEN) {
                    Image::Blank => {
                        blank += 1;
                        is_made_anew(crashed);
                    }
                    Image::Ours { .. } => {
                        LogFile::open(crashed, |_, _| panic!("it is empty")).expect("it is whole");
                        whole += 1;
                    }
                    Image::Foreign => panic!("nobody makes a log of it, and nobody opens it"),
                },
            );
            assert!(blank > 20 && whole > 0, "{blank} {whole}");
        }
    }

    /// What is left of a log that was being made is made one, which keeps what it is given.
    fn is_made_anew(left: &CrashImage) {
        let mut log = LogFile::format(left, Word::RotatingRegister, 3).expect("room");
        log.append(b"kept").expect("room");
        log.commit().expect("memory does not fail");
        drop(log);
        let again = CrashImage::from_bytes(left.bytes(), left.domain());
        assert!(matches!(LogFile::image(&again.bytes(), LEN), Image::Ours { .. }));
        let mut found = Vec::new();
        let log = LogFile::open(&again, |_, bytes| found.push(bytes.to_vec())).expect("it is whole");
        assert_eq!((log.word(), found), (Word::RotatingRegister, vec![b"kept".to_vec()]));
    }

    fn payload(n: u64) -> Vec<u8> {
        (0..8 + n * 37 % 60).map(|i| (n * 31 + i) as u8).collect()
    }

    #[test]
    fn a_crash_at_every_step_loses_nothing_that_was_acknowledged() {
        for word in Word::ALL {
            let blank = CrashImage::new(LEN, PersistenceDomain::Adr);
            drop(LogFile::format(&blank, word, 1).unwrap());
            let explorer = Explorer { ways_max: 24, samples: 24, ..Explorer::default() };
            let report = explorer.run(
                &blank,
                |image| {
                    let mut log = LogFile::open(image, |_, _| {}).unwrap();
                    for n in 0..4 {
                        log.append(&payload(2 * n)).unwrap();
                        log.append(&payload(2 * n + 1)).unwrap();
                        log.commit().unwrap();
                        image.note(2 * n + 2);
                    }
                },
                |crashed, notes| {
                    let mut found = Vec::new();
                    let mut log = LogFile::open(crashed, |_, bytes| found.push(bytes.to_vec())).unwrap();
                    let acknowledged = notes.iter().max().copied().unwrap_or(0);
                    assert!(found.len() as u64 >= acknowledged, "{} of {acknowledged} entries", found.len());
                    for (n, bytes) in found.iter().enumerate() {
                        assert_eq!(*bytes, payload(n as u64), "entry {n}");
                    }
                    assert_eq!(log.word(), word);
                    // And it goes on.
                    let entry = log.append(b"further").unwrap();
                    log.commit().unwrap();
                    assert_eq!(log.read(entry.position).unwrap().1, b"further");
                },
            );
            assert!(report.steps > 20, "{report:?}");
        }
    }

    #[test]
    fn a_crash_while_a_log_is_made_leaves_none_or_an_empty_one() {
        let old = CrashImage::new(LEN, PersistenceDomain::Adr);
        let mut log = LogFile::format(&old, Word::Plain, 1).unwrap();
        log.append(b"of the old log").unwrap();
        log.commit().unwrap();
        drop(log);
        let explorer = Explorer { ways_max: 24, samples: 24, ..Explorer::default() };
        let report = explorer.run(
            &old,
            |image| {
                drop(LogFile::format(image, Word::RotatingCounter, 2).unwrap());
                image.note(1);
            },
            |crashed, notes| {
                let image = LogFile::image(&crashed.bytes(), LEN);
                assert_ne!(image, Image::Foreign, "nobody makes a log of it, and nobody opens it");
                match LogFile::open(crashed, |_, _| {}) {
                    Ok(log) if log.word() == Word::RotatingCounter => assert_eq!(log.bounds(), (0, 0)),
                    Ok(log) => {
                        assert!(notes.is_empty(), "the new log was made, and is gone");
                        assert_eq!(log.read(0).unwrap().1, b"of the old log");
                    }
                    Err(OpenError::None) => assert!(notes.is_empty(), "the new log was made, and is gone"),
                    Err(e) => panic!("{e}"),
                }
                if image == Image::Blank {
                    assert!(notes.is_empty(), "the new log was made, and is made again");
                    is_made_anew(crashed);
                }
            },
        );
        assert!(report.steps > 5, "{report:?}");
    }

    #[test]
    fn what_is_no_log_of_ours_is_refused_with_a_sentence() {
        let image = CrashImage::new(LEN, PersistenceDomain::Adr);
        assert!(matches!(LogFile::open(&image, |_, _| {}), Err(OpenError::None)));
        let mut log = LogFile::format(&image, Word::RotatingRegister, 1).unwrap();
        for n in 0..5 {
            log.append(&payload(n)).unwrap();
        }
        log.commit().unwrap();
        let third = log.entries[2];
        drop(log);
        // Damaged in the middle: what is before it is handed out, and the sentence says where it is.
        image.write(third.payload, &[0xff]);
        let mut found = 0;
        let damaged = LogFile::open(&image, |_, _| found += 1);
        assert!(matches!(&damaged, Err(OpenError::Log(LogFault::Damaged { whole: 2, .. }))), "{damaged:?}");
        assert_eq!(found, 2);
        // Of another version; cut short.
        let (mut root, mut record) = Root::open(&image, 0, ROOT_TAG).unwrap();
        let shorter = CrashImage::from_bytes(image.bytes()[..12 << 10].to_vec(), PersistenceDomain::Adr);
        assert!(matches!(LogFile::open(&shorter, |_, _| {}), Err(OpenError::Record(_))));
        record[4] = 2;
        root.store(&record).unwrap();
        assert!(matches!(LogFile::open(&image, |_, _| {}), Err(OpenError::Version { found: 2 })));
        assert!(matches!(
            LogFile::format(&CrashImage::new(4096, PersistenceDomain::Adr), Word::Plain, 1),
            Err(OpenError::Record(_))
        ));
    }

    #[test]
    fn entries_are_found_by_position_until_they_are_trimmed() {
        let image = CrashImage::new(LEN, PersistenceDomain::Adr);
        let mut log = LogFile::format(&image, Word::Plain, 1).unwrap();
        let first = log.append(b"one").unwrap();
        assert!(log.read(first.position).is_none(), "it is not committed");
        log.commit().unwrap();
        let second = log.append(b"two").unwrap();
        log.commit().unwrap();
        assert_eq!(log.read(first.position).unwrap().1, b"one");
        assert_eq!(log.read(first.end).unwrap(), (second, b"two".to_vec()));
        assert!(log.read(first.position + 8).is_none() && log.read(second.end).is_none());
        log.trim(first.end).unwrap();
        assert!(log.read(first.position).is_none());
        assert!(matches!(log.trim(second.position + 8), Err(LogFault::NotAnEnd { .. })));
        // Round and round: what the ring skips at its end is not in the way of a reader.
        let mut at = second.position;
        for n in 0..300_u64 {
            let bytes = vec![n as u8; 700];
            let entry = log.append(&bytes).unwrap();
            log.commit().unwrap();
            let (next, _) = log.read(at).unwrap();
            let (found, read) = log.read(next.end).unwrap();
            assert_eq!((found, read), (entry, bytes));
            log.trim(found.position).unwrap_or_else(|_| log.trim(next.end).unwrap());
            at = found.position;
        }
    }
}
