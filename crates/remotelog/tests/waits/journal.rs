//! A log's file says that it has a journal: one of which nothing is left is missed, and older files go on.

use std::fs;
use std::path::{Path, PathBuf};

use remanence_pmem::{Error, FileOptions, JOURNAL_NOTE_LEN, Journaling, Medium, Region};
use remanence_remotelog::format::superblock::{JOURNAL_NOTE, Uuid, file_options, image};
use remanence_remotelog::{Epoch, Geometry, Make, Mode, Store, Writer};
use tempfile::TempDir;

/// Where its journal begins, too.
const LEN: u64 = 64 << 10;
const EPOCH: Epoch = Epoch::new(1, 1);

struct Disk(TempDir);

impl Disk {
    /// `None`: no file on this machine has a journal.
    fn new() -> Option<Self> {
        let this = Self(tempfile::tempdir_in("/var/tmp").expect("a directory"));
        let has = file_options().create(LEN).journal(Journaling::IfMade).open(this.path()).expect("a file");
        let has = has.journal().is_some();
        fs::remove_file(this.path()).expect("it was made");
        if !has {
            println!("skipped: no file on this machine has a journal, as /var/tmp is no disk");
        }
        has.then_some(this)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("log")
    }

    /// A log with one record in a new file.
    fn log(&self, options: &FileOptions) -> Vec<u8> {
        let region = options.clone().create(LEN).open(self.path()).expect("a file");
        let geometry = Geometry::new(LEN, 4096).expect("fair");
        let make = Make { mode: Mode::Singleton, geometry, uuid: Uuid([9; 16]), salt: 3 };
        let mut store = Store::create(region.clone(), &make).expect("room");
        let mut writer = Writer::new(store.grant(EPOCH).expect("the first").writer_grant(), EPOCH);
        for (at, bytes) in writer.append(b"a record").expect("room").list() {
            Medium::write(&region, at, bytes);
            region.persist(at..at + bytes.len() as u64).expect("a disk");
        }
        drop((store, region));
        self.bytes()
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.path()).expect("a file")
    }
}

fn records(region: Region) -> u64 {
    Store::open(region).expect("a log").tail().sequence
}

/// As a file says it whose journal is being made behind so many bytes.
fn being_made(journal: u64) -> [u8; JOURNAL_NOTE_LEN] {
    let mut note = [0; JOURNAL_NOTE_LEN];
    note[..8].copy_from_slice(b"RMNCjnot");
    (note[8], note[12]) = (1, 2);
    note[16..24].copy_from_slice(&LEN.to_le_bytes());
    note[24..32].copy_from_slice(&journal.to_le_bytes());
    let crc = crc32fast::hash(&note[..60]);
    note[60..].copy_from_slice(&crc.to_le_bytes());
    note
}

fn note_of(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).expect("a file");
    bytes[JOURNAL_NOTE as usize..][..JOURNAL_NOTE_LEN].to_vec()
}

#[test]
fn a_log_s_journal_is_missed_when_nothing_is_left_of_it() {
    let Some(disk) = Disk::new() else { return };
    let options = file_options().journal(Journaling::IfMade);
    let whole = disk.log(&options);
    assert_eq!(records(options.open(disk.path()).expect("it is whole")), 1);
    let kept = LEN as usize;
    let ways = [
        ("cut off exactly", whole[..kept].to_vec()),
        ("cut in its first block", whole[..kept + 10].to_vec()),
        ("zeros", [&whole[..kept], &vec![0; whole.len() - kept]].concat()),
    ];
    for (what, left) in ways {
        fs::write(disk.path(), &left).expect("a disk");
        for refused in [options.open(disk.path()), file_options().view(disk.path())] {
            let error = refused.expect_err(what);
            assert!(matches!(error, Error::JournalGone { .. }), "{what}: {error}");
            assert!(error.to_string().contains("rem log salvage"), "{error}");
        }
        assert!(disk.bytes() == left, "{what}: it stays as it was");
    }
    // Of what is left of one, that is said.
    fs::write(disk.path(), &whole[..whole.len() - 1]).expect("a disk");
    let cut = file_options().open(disk.path()).expect_err("it was cut");
    assert!(matches!(cut, Error::JournalCut { .. }), "{cut}");
}

#[test]
fn a_log_whose_journal_was_being_made_goes_on() {
    let Some(disk) = Disk::new() else { return };
    let whole = disk.log(&file_options().journal(Journaling::IfMade));
    let mut log = whole[..LEN as usize].to_vec();
    for blank in [false, true] {
        if blank {
            log.fill(0);
        }
        log[JOURNAL_NOTE as usize..][..JOURNAL_NOTE_LEN].copy_from_slice(&being_made(1 << 17));
        // Killed before the first block of the journal, and when some were there.
        for more in [0, 4096, 1 << 16] {
            fs::write(disk.path(), [&log[..], &vec![0; more]].concat()).expect("a disk");
            let region = file_options().open(disk.path()).expect("nothing is missing");
            assert_eq!((region.len(), region.journal().is_some()), (LEN, true), "{blank} {more}");
            match blank {
                false => assert_eq!(records(region), 1),
                true => {
                    drop(region);
                    disk.log(&file_options());
                    assert_eq!(records(file_options().open(disk.path()).expect("a log")), 1);
                }
            }
        }
    }
}

#[test]
fn a_log_of_an_older_release_says_that_it_has_a_journal_when_it_was_opened_once() {
    let Some(disk) = Disk::new() else { return };
    let old = FileOptions::new().image(image).journal(Journaling::IfMade);
    let whole = disk.log(&old);
    assert_eq!(note_of(&disk.path()), [0; JOURNAL_NOTE_LEN]);
    let (mut was, mut is) = (vec![0; LEN as usize], vec![0; LEN as usize]);
    Medium::read(&old.view(disk.path()).expect("it is whole"), 0, &mut was);
    let after = file_options().open(disk.path()).expect("it is whole");
    Medium::read(&after, 0, &mut is);
    let note = JOURNAL_NOTE as usize..JOURNAL_NOTE as usize + JOURNAL_NOTE_LEN;
    assert_ne!(is[note.clone()], [0; JOURNAL_NOTE_LEN]);
    is[note].fill(0);
    assert!(was == is, "nothing else of it has changed");
    assert_eq!(records(after), 1);
    let noted = disk.bytes();
    fs::write(disk.path(), &noted[..LEN as usize]).expect("a disk");
    assert!(matches!(file_options().open(disk.path()), Err(Error::JournalGone { .. })));
    // An older release takes no offence at it.
    fs::write(disk.path(), &noted).expect("a disk");
    assert_eq!(records(old.open(disk.path()).expect("it is whole")), 1);
    // Nobody knows what one had that says nothing.
    fs::write(disk.path(), &whole[..LEN as usize]).expect("a disk");
    file_options().open(disk.path()).expect("as it is");
}
