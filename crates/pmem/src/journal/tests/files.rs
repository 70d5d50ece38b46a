//! Journals of real files.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::super::format::{ALIGN, ENDING, JournalLayout};
use super::super::{JOURNAL_NOTE_LEN, NO_NAME, Note, Sizes, is_journal_note};
use crate::file::tests::LEFT;
use crate::{Error, FileOptions, Image, Journaling, Region, WayOut, cache};

const LEN: u64 = 300_001;
const OTHER: [u8; 16] = [0x77; 16];

struct Scratch(PathBuf);

impl Scratch {
    /// A file that is not there yet, on a disk if the machine has one to write to.
    fn new(name: &str) -> Self {
        let path = format!("/var/tmp/remanence-journal-{}-{name}", std::process::id());
        let _ = fs::remove_file(&path);
        Self(path.into())
    }

    fn open(&self, options: FileOptions) -> Result<Region, Error> {
        options.open(&self.0)
    }

    /// The bytes as the kernel has them now, in a file of their own: what a crash of the process leaves.
    fn copy(&self, name: &str) -> Self {
        let copy = Self::new(name);
        fs::copy(&self.0, &copy.0).expect("there is room");
        copy
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn bytes(region: &Region, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.read(at, &mut bytes);
    bytes
}

/// A new file with a journal; `None`, and a word, where there is no page cache to try it on.
fn journaled(scratch: &Scratch) -> Option<Region> {
    let region =
        scratch.open(FileOptions::new().create(LEN).journal(Journaling::Len(1 << 18))).expect("a file");
    if region.journal().is_none() {
        println!("/var/tmp is {}: not tried", region.domain());
        return None;
    }
    Some(region)
}

#[test]
fn a_machine_that_starts_anew_has_what_was_persisted_and_a_process_all_that_was_visible() {
    let scratch = Scratch::new("boots");
    let Some(region) = journaled(&scratch) else { return };
    assert_eq!((region.len(), region.journal()), (LEN, Some(1 << 18)));
    let blank = scratch.copy("boots-blank");
    region.write(1000, b"persisted");
    region.write(LEN - 3, b"end");
    region.pwb(1000..1009);
    region.pwb(LEN - 3..LEN);
    region.psync().expect("a disk");
    region.write(1000, b"visible, ");
    let crashed = scratch.copy("boots-crashed");

    let same_boot = scratch.copy("boots-same");
    cache::leave_trace(&fs::File::options().write(true).open(&same_boot.0).expect("a file"));
    assert_eq!(
        bytes(&same_boot.open_here(), 1000, 9),
        b"visible, ",
        "the process died, and took nothing along"
    );
    let copy = scratch.copy("boots-copy").open_here();
    assert_eq!(bytes(&copy, 1000, 9), b"persisted", "of a copy nobody knows that its cache was kept");
    drop(copy);

    // The kernel had written the page, with what nobody had persisted.
    let replayed = crashed.open(FileOptions::new().in_boot(OTHER)).expect("it is whole");
    assert_eq!((replayed.len(), bytes(&replayed, 1000, 9)), (LEN, b"persisted".to_vec()));
    replayed.write(1000, b"older....");
    replayed.persist(1000..1009).expect("a disk");
    replayed.write(1000, b"newer....");
    drop(replayed);
    let clean = crashed.open(FileOptions::new().in_boot([3; 16])).expect("it is whole");
    assert_eq!(bytes(&clean, 1000, 9), b"newer....", "after an orderly end nothing is replayed");

    // The kernel had written nothing.
    let (now, journal) = (fs::read(&scratch.0).expect("readable"), LEN.next_multiple_of(ALIGN));
    let file = fs::File::options().write(true).open(&blank.0).expect("a file");
    file.write_all_at(&now[journal as usize..], journal).expect("a disk");
    let replayed = blank.open(FileOptions::new().in_boot(OTHER)).expect("it is whole");
    assert_eq!(bytes(&replayed, 1000, 9), b"persisted");
    assert_eq!(bytes(&replayed, LEN - 3, 3), b"end", "the last line is no whole one");
    assert_eq!(bytes(&replayed, 900, 100), [0; 100]);
}

#[test]
fn who_keeps_only_what_is_durable_has_that_back_though_the_cache_was_kept() {
    let scratch = Scratch::new("only-durable");
    let options =
        FileOptions::new().create(LEN).journal(Journaling::Len(1 << 18)).only_durable(true).in_boot(OTHER);
    let region = scratch.open(options.clone()).expect("a file");
    let Some(_) = region.journal() else { return };
    assert_eq!(region.domain().guarantee().before_psync, crate::Survives::NOTHING);
    let blank = fs::read(&scratch.0).expect("readable");
    region.write(1000, b"persisted");
    region.persist(1000..1009).expect("a disk");
    region.write(1000, b"visible, ");
    region.write(5000, b"visible, ");
    let died = scratch.copy("only-durable-died");
    drop(region);
    // Its region is as long before, and its journal as it was when it died: a copy that was taken by and by.
    let mut mixed = fs::read(&died.0).expect("readable");
    mixed[..LEN as usize].copy_from_slice(&blank[..LEN as usize]);
    for (has, visible) in [(None, *b"visible, "), (Some(mixed), [0; 9])] {
        let file = fs::File::options().write(true).open(&died.0).expect("a file");
        if let Some(bytes) = has {
            file.write_all_at(&bytes, 0).expect("a disk");
        }
        let again = scratch.copy("only-durable-again");
        fs::copy(&died.0, &again.0).expect("room");
        cache::leave_trace(&fs::File::options().write(true).open(&again.0).expect("a file"));
        for view in [true, false] {
            let found = if view { options.view(&again.0) } else { again.open(options.clone()) };
            let found = found.expect("it is whole");
            assert_eq!(bytes(&found, 1000, 9), b"persisted");
            assert_eq!(bytes(&found, 5000, 9), visible, "nobody asked for it, and nobody minds");
        }
    }
}

impl Scratch {
    fn open_here(&self) -> Region {
        self.open(FileOptions::new()).expect("it is whole")
    }
}

#[test]
fn many_psyncs_of_many_threads_go_around_the_journal_and_all_are_there() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 150;
    let scratch = Scratch::new("around");
    let Some(region) = journaled(&scratch) else { return };
    let at = |thread: u64, n: u64| (thread * 73 + n * 13 % 1100) % 4600 * 64;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let region = &region;
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    for n in 0..8 {
                        let at = at(thread, round + n) + thread * 8;
                        region.store_u64(at, round);
                        region.pwb(at..at + 8);
                    }
                    region.psync().expect("a disk");
                }
            });
        }
    });
    let before = bytes(&region, 0, LEN as usize);
    let crashed = scratch.copy("around-crashed");
    let replayed = crashed.open(FileOptions::new().in_boot(OTHER)).expect("it is whole");
    assert!(bytes(&replayed, 0, LEN as usize) == before);
    // As much as there is: no batch has room for it.
    region.write(0, &vec![0x5A; LEN as usize]);
    region.persist(0..LEN).expect("a disk");
    let crashed = scratch.copy("around-everything");
    let replayed = crashed.open(FileOptions::new().in_boot(OTHER)).expect("it is whole");
    assert!(bytes(&replayed, 0, LEN as usize).iter().all(|b| *b == 0x5A), "no older record comes after it");
}

#[test]
fn what_is_no_journal_of_ours_is_left_alone_and_what_was_one_is_refused() {
    let scratch = Scratch::new("refused");
    let Some(region) = journaled(&scratch) else { return };
    region.persist(0..64).expect("a disk");
    let file_len = fs::metadata(&scratch.0).expect("a file").len();
    assert_eq!(file_len % ALIGN, ENDING);
    drop(region);
    let whole = fs::read(&scratch.0).expect("readable");
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        fs::write(&scratch.0, bytes).expect("a disk");
        scratch.open(FileOptions::new())
    };
    let footer = whole.len() - ENDING as usize;
    let refused = with(&|bytes| bytes[footer + 20] ^= 1).expect_err("a damaged footer");
    assert!(matches!(refused, Error::JournalDamaged { way: WayOut::Nothing, .. }), "{refused}");
    let refused = with(&|bytes| bytes[footer + 8] = 2).expect_err("of a later version");
    assert!(matches!(refused, Error::JournalVersion { version: 2, .. }), "{refused}");
    let refused = with(&|bytes| bytes[LEN.next_multiple_of(ALIGN) as usize + 8192..footer].fill(0));
    let refused = refused.expect_err("all batches are gone");
    assert!(refused.to_string().contains(&format!("truncate -s {LEN}")), "{refused}");
    let foreign = with(&|bytes| bytes[footer..footer + 8].fill(0)).expect("no journal");
    assert_eq!((foreign.len(), foreign.journal()), (file_len, None));
    drop(foreign);
    // What a peer writes at the end of a region is no footer: the length is not one of those with a journal.
    let forged = with(&|bytes| bytes.truncate(bytes.len() - 1)).expect("no journal");
    assert_eq!((forged.len(), forged.journal()), (file_len - 1, None));
    drop(forged);

    for keep in [file_len - 1, file_len - ENDING - 1, LEN.next_multiple_of(ALIGN) + 4096] {
        let cut = |options: FileOptions| {
            fs::write(&scratch.0, &whole[..keep as usize]).expect("a disk");
            scratch.open(options)
        };
        for owner in [FileOptions::new().create(LEN), FileOptions::new().expect_len(LEN)] {
            let refused = cut(owner).expect_err("its owner knows its length");
            assert!(
                matches!(refused, Error::JournalCut { expected, way: WayOut::Truncate(LEN), .. } if expected == file_len),
                "{refused}"
            );
        }
        // Others see a region that is too long, and may ask.
        for options in [FileOptions::new(), FileOptions::new().journal(Journaling::Len(1 << 18))] {
            let left = cut(options).expect("nobody knows its length");
            assert!(left.len() >= keep.min(file_len - 1), "the rest of the journal is in the region");
            for end in [1, LEN - 4096, LEN] {
                let found = left.refuse_cut_journal(end..left.len());
                let is_seen =
                    matches!(found, Err(Error::JournalCut { expected, .. }) if expected == file_len);
                assert_eq!(is_seen, keep >= LEN.next_multiple_of(ALIGN) + 4096, "{found:?}");
            }
            for elsewhere in [0..LEN, LEN.next_multiple_of(ALIGN) + 1..u64::MAX] {
                let behind = left.refuse_cut_journal(elsewhere);
                assert!(behind.is_ok(), "{behind:?}");
            }
        }
    }
    fs::write(&scratch.0, &whole).expect("a disk");
    let intact = scratch.open(FileOptions::new()).expect("its journal is whole");
    assert!(intact.refuse_cut_journal(0..intact.len()).is_ok(), "the journal is not in the region");
    drop(intact);
    let longer =
        scratch.open(FileOptions::new().expect_len(LEN + 1)).expect_err("the journal is not the region's");
    assert!(matches!(longer, Error::Truncated { found: LEN, .. }), "{longer}");
}

#[test]
fn a_region_grows_and_keeps_its_bytes_and_its_journal() {
    let scratch = Scratch::new("grows");
    let Some(region) = journaled(&scratch) else { return };
    region.write(LEN - 5, b"bytes");
    drop(region);
    let larger = scratch.open(FileOptions::new().create(2 * LEN)).expect("it grows");
    assert_eq!((larger.len(), larger.journal()), (2 * LEN, Some(1 << 18)));
    assert_eq!(bytes(&larger, LEN - 5, 5), b"bytes");
    assert!(bytes(&larger, LEN, LEN as usize).iter().all(|b| *b == 0), "nothing of the old journal is in it");
    drop(larger);
    let same =
        scratch.open(FileOptions::new().create(LEN).journal(Journaling::Len(1 << 20))).expect("it is there");
    assert_eq!((same.len(), same.journal()), (2 * LEN, Some(1 << 18)), "it goes on as it is");
}

#[test]
fn a_region_for_which_there_is_no_room_to_grow_keeps_its_journal() {
    let scratch = Scratch::new("room");
    let Some(region) = journaled(&scratch) else { return };
    region.write(0, b"bytes");
    drop(region);
    let whole = fs::metadata(&scratch.0).expect("a file").len();
    let full = scratch.open(FileOptions::new().create(1 << 50)).expect_err("a petabyte");
    assert!(matches!(full, Error::NoSpace { .. }), "{full}");
    assert_eq!(fs::metadata(&scratch.0).expect("a file").len(), whole);
    let same = scratch.open(FileOptions::new()).expect("it is there");
    assert_eq!((same.len(), same.journal()), (LEN, Some(1 << 18)));
    assert_eq!(bytes(&same, 0, 5), b"bytes");
}

#[test]
fn a_file_without_a_journal_gets_one_when_asked_and_loses_it_where_no_pages_are_written() {
    let scratch = Scratch::new("gets");
    fs::write(&scratch.0, vec![7; 10_000]).expect("a disk");
    let none = scratch.open(FileOptions::new().create(1).journal(Journaling::IfMade)).expect("it is there");
    assert_eq!((none.len(), none.journal()), (10_000, None));
    drop(none);
    let some = scratch.open(FileOptions::new().journal(Journaling::Len(1))).expect("it is there");
    let Some(len) = some.journal() else { return };
    assert_eq!((some.len(), len), (10_000, super::super::format::MIN));
    assert!(some.domain().to_string().contains("with a journal of 128 KiB"), "{}", some.domain());
    some.write(0, b"new");
    some.persist(0..3).expect("a disk");
    let copy = Path::new("/dev/shm").join(scratch.0.file_name().expect("a name"));
    fs::copy(&scratch.0, &copy).expect("there is room");
    let shm = FileOptions::new().open(&copy);
    let found = fs::metadata(&copy).expect("a file").len();
    let _ = fs::remove_file(&copy);
    let shm = shm.expect("it is there");
    assert_eq!((shm.len(), shm.journal(), found), (10_000, None, 10_000));
    assert_eq!(bytes(&shm, 0, 4), b"new\x07");
}

#[test]
fn a_file_that_is_cut_under_a_journal_fails_every_psync_from_then_on() {
    let scratch = Scratch::new("cut");
    let Some(region) = journaled(&scratch) else { return };
    region.persist(0..8).expect("a disk");
    let file = fs::File::options().write(true).open(&scratch.0).expect("a file");
    file.set_len(file.metadata().expect("a file").len() - 1).expect("cut");
    for _ in 0..2 {
        region.pwb(0..8);
        let refused = region.psync().expect_err("the file is not whole");
        assert!(refused.to_string().contains("truncated"), "{refused}");
    }
}

#[test]
fn who_shares_the_memory_does_not_persist_it() {
    let scratch = Scratch::new("shared");
    let Some(owner) = journaled(&scratch) else { return };
    let peer = Region::from_shared_fd(owner.share().expect("a file"), LEN).expect("it is mapped");
    peer.write(0, b"theirs");
    let refused = peer.persist(0..6).expect_err("a record of the owner's could undo it");
    assert!(refused.to_string().contains("ask the owner"), "{refused}");
    owner.persist(0..6).expect("a disk");
    assert_eq!(bytes(&owner, 0, 6), b"theirs");
}

#[test]
fn a_footers_copy_in_front_is_the_same() {
    let scratch = Scratch::new("copy");
    let Some(region) = journaled(&scratch) else { return };
    drop(region);
    let bytes = fs::read(&scratch.0).expect("readable");
    let place = JournalLayout::decode(&bytes[bytes.len() - ENDING as usize..]).expect("a footer");
    assert_eq!(JournalLayout::decode(&bytes[place.start() as usize..]), Ok(place));
}

/// Ours begin with a word, and say how long they are.
fn look(head: &[u8], _: u64) -> Image {
    match head {
        [b'o', b'u', b'r', b's', ..] => Image::Ours { len: LEN },
        head if head.iter().all(|byte| *byte == 0) => Image::Blank,
        _ => Image::Foreign,
    }
}

#[test]
fn a_file_of_somebody_else_is_opened_as_it_is() {
    let scratch = Scratch::new("foreign");
    let with = |start: &[u8]| {
        let file = fs::File::create(&scratch.0).expect("a file");
        file.set_len(LEN).expect("it has holes");
        file.write_all_at(start, 0).expect("a disk");
        file.sync_all().expect("a disk");
    };
    let found = || {
        let is = fs::metadata(&scratch.0).expect("a file");
        (is.len(), is.blocks(), is.mtime(), is.mtime_nsec(), is.ctime(), is.ctime_nsec())
    };
    let options = || FileOptions::new().journal(Journaling::Len(1)).create(2 * LEN).image(look);
    with(b"theirs");
    let before = found();
    let theirs = scratch.open(options()).expect("its owner says what is wrong with it");
    assert_eq!((theirs.len(), theirs.journal(), bytes(&theirs, 0, 6)), (LEN, None, b"theirs".to_vec()));
    drop(theirs);
    assert_eq!(found(), before, "nothing of it was changed");
    for start in [&b"ours"[..], &[]] {
        with(start);
        let ours = scratch.open(options()).expect("there is room");
        assert_eq!(ours.len(), 2 * LEN);
        assert!(found().1 * 512 >= 2 * LEN, "its blocks are reserved");
    }
}

#[test]
fn whoever_says_what_an_image_is_is_refused_one_whose_journal_was_cut() {
    let scratch = Scratch::new("image");
    let Some(region) = journaled(&scratch) else { return };
    drop(region);
    let whole = fs::read(&scratch.0).expect("readable");
    let keep = LEN.next_multiple_of(ALIGN) + 8192;
    for (start, refused) in [(&b"ours"[..], true), (&[], true), (b"theirs", false)] {
        let mut cut = whole[..keep as usize].to_vec();
        cut[..start.len()].copy_from_slice(start);
        fs::write(&scratch.0, cut).expect("a disk");
        let opened = scratch.open(FileOptions::new().journal(Journaling::Len(1 << 18)).image(look));
        assert_eq!(matches!(opened, Err(Error::JournalCut { .. })), refused, "{opened:?}");
        drop(opened);
        assert_eq!(fs::metadata(&scratch.0).expect("a file").len(), keep, "it stays as it was");
    }
}

impl Scratch {
    /// All bytes, and when they were last changed.
    fn is(&self) -> (Vec<u8>, i64, i64, i64, i64) {
        let is = fs::metadata(&self.0).expect("a file");
        let bytes = fs::read(&self.0).expect("readable");
        (bytes, is.mtime(), is.mtime_nsec(), is.ctime(), is.ctime_nsec())
    }

    /// What a power loss leaves if the kernel had written nothing but the journal.
    fn crashed(&self, before: &[u8]) -> Vec<u8> {
        let mut bytes = fs::read(&self.0).expect("readable");
        bytes[..LEN as usize].copy_from_slice(&before[..LEN as usize]);
        bytes
    }
}

#[test]
fn who_only_looks_finds_what_the_next_owner_would_and_changes_nothing() {
    let scratch = Scratch::new("look");
    let Some(region) = journaled(&scratch) else { return };
    let before = fs::read(&scratch.0).expect("readable");
    region.write(1000, b"persisted");
    region.write(LEN - 3, b"end");
    region.pwb(1000..1009);
    region.pwb(LEN - 3..LEN);
    region.psync().expect("a disk");
    let refused = FileOptions::new().view(&scratch.0);
    assert!(matches!(refused, Err(Error::InUse { .. })), "{refused:?}");
    let crashed = Scratch::new("look-crashed");
    fs::write(&crashed.0, scratch.crashed(&before)).expect("a disk");
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o400);
    fs::set_permissions(&crashed.0, readable).expect("it is ours");
    let was = crashed.is();
    let views = [0, 1].map(|_| FileOptions::new().view(&crashed.0).expect("it is whole"));
    for view in &views {
        assert_eq!((view.len(), view.journal()), (LEN, None));
        assert_eq!((bytes(view, 1000, 9), bytes(view, LEN - 3, 3)), (b"persisted".to_vec(), b"end".to_vec()));
    }
    views[0].write(1000, b"nowhere..");
    views[0].persist(1000..1009).expect("it is memory");
    assert_eq!(bytes(&views[1], 1000, 9), b"persisted");
    assert!(views[0].share().is_err(), "it is nobody else's");
    let refused = crashed.open(FileOptions::new());
    assert!(matches!(refused, Err(Error::InUse { .. })), "{refused:?}");
    drop(views);
    assert!(crashed.is() == was, "a look changed the file");
    let (whole, damage) = FileOptions::new().salvage(&crashed.0).expect("it is whole");
    assert!(damage.is_none() && bytes(&whole, 1000, 9) == b"persisted", "{damage:?}");
    drop(whole);
    assert!(crashed.is() == was, "a look changed the file");
    let owned = crashed.open(FileOptions::new()).expect("it is whole");
    assert_eq!(bytes(&owned, 1000, 9), b"persisted");
}

#[test]
fn of_a_damaged_journal_what_is_whole_is_salvaged_and_the_rest_is_said() {
    let scratch = Scratch::new("salvage");
    let Some(region) = journaled(&scratch) else { return };
    let before = fs::read(&scratch.0).expect("readable");
    for n in 0..3_u64 {
        region.write(n * 5000, b"persisted");
        region.persist(n * 5000..n * 5000 + 9).expect("a disk");
    }
    let whole = scratch.crashed(&before);
    let start = LEN.next_multiple_of(ALIGN) as usize;
    let footer = whole.len() - ENDING as usize;
    let batch = |n: usize| start + 8192 + 4096 + n * 4096;
    let crashed = Scratch::new("salvage-crashed");
    // Which of the three are there.
    let salvaged = |bytes_are: &[u8]| {
        fs::write(&crashed.0, bytes_are).expect("a disk");
        let was = crashed.is();
        assert!(FileOptions::new().image(look).view(&crashed.0).is_err(), "it is not said to be whole");
        let (region, damage) = FileOptions::new().image(look).salvage(&crashed.0).expect("it is readable");
        let there = [0, 1, 2].map(|n| bytes(&region, n * 5000, 9) == b"persisted");
        assert_eq!(region.len(), LEN);
        drop(region);
        assert!(crashed.is() == was, "a look changed the file");
        (there, damage.expect("it is damaged").to_string())
    };
    let with = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        salvaged(&bytes)
    };
    let (there, said) = with(footer + 20);
    assert!(there == [true; 3] && said.contains("its last block"), "{there:?}: {said}");
    let (there, said) = with(batch(1) + 100);
    assert!(there == [true, false, true] && said.contains("acknowledged"), "{there:?}: {said}");
    let (there, said) = salvaged(&whole[..batch(2)]);
    assert!(there == [true, true, false] && said.contains("truncated"), "{there:?}: {said}");
    let (there, said) = salvaged(&whole[..start + 4096]);
    assert!(there == [false; 3] && said.contains("truncated"), "{there:?}: {said}");
    let mut none = whole.clone();
    none[start + 8192..footer].fill(0);
    let (there, said) = salvaged(&none);
    assert!(there == [false; 3] && said.contains("none of its records"), "{there:?}: {said}");
}

/// Where those of [`noting`] say that they have a journal.
const NOTE: u64 = 1024;

/// As [`look`], of an owner whose files say that they have a journal.
fn noting() -> FileOptions {
    let look = |head: &[u8], len: u64| {
        let mut head = head.to_vec();
        let end = head.len().min(NOTE as usize + JOURNAL_NOTE_LEN);
        if let Some(note) = head.get_mut(NOTE as usize..end).filter(|note| is_journal_note(note)) {
            note.fill(0);
        }
        look(&head, len)
    };
    FileOptions::new().image(look).journal_note(NOTE, "ask its owner")
}

/// A file of ours; `None` where there is no page cache to try it on.
fn noted(scratch: &Scratch, options: FileOptions) -> Option<Vec<u8>> {
    let region = scratch.open(options.create(LEN)).expect("a file");
    region.journal()?;
    region.write(0, b"ours, and what is kept");
    region.persist(0..22).expect("a disk");
    drop(region);
    Some(fs::read(&scratch.0).expect("readable"))
}

#[test]
fn a_journal_of_which_nothing_is_left_is_missed() {
    let scratch = Scratch::new("gone");
    let journal = Journaling::Len(1 << 18);
    let Some(whole) = noted(&scratch, noting().journal(journal)) else { return };
    let start = LEN.next_multiple_of(ALIGN) as usize;
    let zeroed = |from: usize, to: usize| {
        let mut bytes = whole.clone();
        bytes[from..to].fill(0);
        bytes
    };
    let footer = whole.len() - ENDING as usize;
    let ways = [
        ("all of it", zeroed(LEN as usize, whole.len())),
        ("its head and its footer", [&zeroed(start, start + 8192)[..footer], &[0; ENDING as usize]].concat()),
        ("cut, with zeros in front", zeroed(LEN as usize, whole.len())[..start + 8192].to_vec()),
        ("cut off", whole[..LEN as usize].to_vec()),
        ("cut in its first block", whole[..start + 10].to_vec()),
    ];
    for (what, left) in &ways {
        for options in [noting(), noting().journal(journal), noting().create(2 * LEN), noting().create(LEN)] {
            fs::write(&scratch.0, left).expect("a disk");
            for refused in [options.view(&scratch.0), options.open(&scratch.0)] {
                let is_missed =
                    matches!(refused, Err(Error::JournalGone { way: WayOut::Owner("ask its owner"), .. }));
                assert!(is_missed, "{what}: {refused:?}");
            }
            assert!(fs::read(&scratch.0).expect("readable") == *left, "{what}: it stays as it was");
        }
        let (rest, damage) = noting().salvage(&scratch.0).expect("it can be read");
        assert!(matches!(damage, Some(Error::JournalGone { .. })), "{what}: {damage:?}");
        assert_eq!((rest.len(), bytes(&rest, 0, 4)), (LEN, b"ours".to_vec()), "{what}");
    }
    let said = noting().open(&scratch.0).expect_err("its journal is gone").to_string();
    assert!(said.contains("from a replica or a backup, or ask its owner"), "{said}");
    fs::write(&scratch.0, &whole[..start + 8192]).expect("a disk");
    let cut = noting().open(&scratch.0).expect_err("its journal was cut");
    assert!(matches!(cut, Error::JournalCut { way: WayOut::Owner(_), .. }), "{cut}");
}

/// As a restore that takes the end of one file and the beginning of another leaves it.
#[test]
fn the_journal_of_another_file_is_refused() {
    let scratch = Scratch::new("another");
    let journal = Journaling::Len(1 << 18);
    let Some(one) = noted(&scratch, noting().journal(journal)) else { return };
    fs::remove_file(&scratch.0).expect("it is there");
    let Some(other) = noted(&scratch, noting().journal(journal)) else { return };
    assert_eq!(one.len(), other.len());
    let mixed = [&one[..LEN as usize], &other[LEN as usize..]].concat();
    for options in [noting(), noting().journal(journal), noting().create(2 * LEN), noting().create(LEN)] {
        fs::write(&scratch.0, &mixed).expect("a disk");
        for refused in [options.view(&scratch.0), options.open(&scratch.0)] {
            let refused = refused.expect_err("it is of another file").to_string();
            assert!(
                refused.contains("is damaged, it is that of another file")
                    && refused.ends_with("or ask its owner"),
                "{refused}"
            );
        }
        assert!(fs::read(&scratch.0).expect("readable") == mixed, "it stays as it was");
    }
    let (rest, damage) = noting().salvage(&scratch.0).expect("it can be read");
    assert!(matches!(damage, Some(Error::JournalDamaged { .. })), "{damage:?}");
    assert_eq!((rest.len(), bytes(&rest, 0, 4)), (LEN, b"ours".to_vec()));
    drop(rest);
    // What was written before there were names says none, and says one from then on.
    let mut older = one.clone();
    let sizes = Sizes { region: LEN, journal: 1 << 18, name: NO_NAME };
    older[NOTE as usize..][..JOURNAL_NOTE_LEN].copy_from_slice(&Note::Has(sizes).encode());
    fs::write(&scratch.0, &older).expect("a disk");
    let region = noting().open(&scratch.0).expect("it has a journal");
    assert_eq!(bytes(&region, 0, 4), b"ours");
    drop(region);
    let file = fs::File::open(&scratch.0).expect("it is there");
    assert!(matches!(Note::read(&file, NOTE).expect("readable"), Note::Has(sizes) if sizes.name != NO_NAME));
}

/// Of an owner who says of all of the file that it may be his: a peer's bytes may lie there.
#[test]
fn a_journal_of_which_some_is_left_is_found_where_the_file_says_that_it_began() {
    let scratch = Scratch::new("began");
    let all = |head: &[u8], len: u64| match look(head, len) {
        Image::Ours { .. } => Image::Ours { len },
        other => other,
    };
    let options = FileOptions::new().image(all).journal_note(NOTE, "ask its owner");
    let Some(whole) = noted(&scratch, options.clone().journal(Journaling::Len(1 << 18))) else { return };
    let start = LEN.next_multiple_of(ALIGN) as usize;
    for len in [whole.len() - 1, start + (1 << 17), start + 8192] {
        fs::write(&scratch.0, &whole[..len]).expect("a disk");
        for refused in [options.view(&scratch.0), options.open(&scratch.0)] {
            assert!(matches!(refused, Err(Error::JournalCut { .. })), "{len}: {refused:?}");
        }
        let (rest, damage) = options.salvage(&scratch.0).expect("it can be read");
        assert!(matches!(damage, Some(Error::JournalCut { .. })), "{len}: {damage:?}");
        assert_eq!((rest.len(), bytes(&rest, 0, 4)), (LEN, b"ours".to_vec()), "{len}");
    }
}

#[test]
fn a_file_that_says_nothing_of_a_journal_is_opened_and_says_it_then() {
    let scratch = Scratch::new("notes");
    let older = FileOptions::new().image(look).journal(Journaling::Len(1 << 18));
    let Some(whole) = noted(&scratch, older) else { return };
    let note =
        |scratch: &Scratch| Note::read(&fs::File::open(&scratch.0).expect("a file"), NOTE).expect("readable");
    assert_eq!(note(&scratch), Note::Nothing);
    drop(scratch.open(noting()).expect("it is whole"));
    assert!(
        matches!(note(&scratch), Note::Has(Sizes { region: LEN, journal, name }) if journal == 1 << 18 && name != NO_NAME)
    );
    // Nobody knows what an older one had.
    fs::write(&scratch.0, &whole[..LEN as usize]).expect("a disk");
    assert_eq!(scratch.open(noting()).expect("as it is").journal(), None);
    // Where no pages are written it has no journal, and says so: it goes on without one elsewhere.
    fs::write(&scratch.0, &whole).expect("a disk");
    drop(scratch.open(noting()).expect("it is whole"));
    let copy = Scratch(Path::new("/dev/shm").join(scratch.0.file_name().expect("a name")));
    fs::copy(&scratch.0, &copy.0).expect("there is room");
    assert_eq!(copy.open(noting()).expect("it is whole").journal(), None);
    assert_eq!(note(&copy), Note::Nothing);
    fs::copy(&copy.0, &scratch.0).expect("there is room");
    let again = scratch.open(noting()).expect("it has none");
    assert_eq!((again.len(), again.journal(), bytes(&again, 0, 4)), (LEN, None, b"ours".to_vec()));
    // Somebody else's is not written.
    drop(again);
    fs::write(&scratch.0, b"theirs").expect("a disk");
    let theirs = scratch.open(noting().journal(Journaling::Len(1))).expect("its owner says what is wrong");
    assert_eq!((theirs.len(), theirs.journal()), (6, None));
}

/// Whoever asked for more room, or for a journal, and was killed at any moment need not ask again for the journal.
#[test]
fn a_file_whose_journal_was_being_made_gets_it_when_it_is_opened_again() {
    let scratch = Scratch::new("moves");
    let journal = Journaling::Len(1 << 18);
    let Some(whole) = noted(&scratch, noting().journal(journal)) else { return };
    let mut bare = whole[..LEN as usize].to_vec();
    bare[NOTE as usize..][..JOURNAL_NOTE_LEN].fill(0);
    let longer = Journaling::Len(1 << 20);
    for (what, before, options, always) in [
        ("grows", &whole, noting().create(2 * LEN), true),
        ("grows, and its journal too", &whole, noting().create(2 * LEN).journal(longer), true),
        ("gets one", &bare, noting().journal(journal), false),
        ("gets one and grows", &bare, noting().create(2 * LEN).journal(journal), false),
    ] {
        fs::write(&scratch.0, before).expect("a disk");
        LEFT.set(Some(Vec::new()));
        let done = scratch.open(options.clone()).expect("there is room");
        let left = LEFT.take().expect("somebody looked");
        let (len, journal) = (done.len(), done.journal());
        drop(done);
        assert!(left.len() >= 5 && journal.is_some(), "{what}: {} steps", left.len());
        let mut without = 0;
        for (nth, left) in left.iter().enumerate() {
            for again in [noting(), options.clone(), noting().create(3 * LEN)] {
                fs::write(&scratch.0, left).expect("a disk");
                let viewed = again.view(&scratch.0).expect("nothing is missing");
                assert_eq!(bytes(&viewed, 0, 22), b"ours, and what is kept", "{what}: {nth}");
                drop(viewed);
                let (rest, damage) = noting().salvage(&scratch.0).expect("it can be read");
                assert!(damage.is_none() && bytes(&rest, 0, 4) == b"ours", "{what}: {nth}: {damage:?}");
                drop(rest);
                let opened = scratch.open(again).expect("nothing is missing");
                assert_eq!(bytes(&opened, 0, 22), b"ours, and what is kept", "{what}: {nth}");
                assert!([LEN, len, 3 * LEN].contains(&opened.len()), "{what}: {nth}: {} bytes", opened.len());
                assert!(
                    bytes(&opened, LEN, (opened.len() - LEN) as usize).iter().all(|byte| *byte == 0),
                    "{what}: {nth}: something of a journal is in the region"
                );
                without += usize::from(opened.journal().is_none());
                assert!(!always || opened.journal().is_some(), "{what}: {nth}");
                let (len, journal) = (opened.len(), opened.journal());
                drop(opened);
                let same = scratch.open(noting()).expect("it is whole");
                assert_eq!((same.len(), same.journal()), (len, journal), "{what}: {nth}");
            }
            fs::write(&scratch.0, left).expect("a disk");
            let all = scratch.open(options.clone()).expect("who asks again gets all");
            assert_eq!((all.len(), all.journal().is_some()), (len, true), "{what}: {nth}");
        }
        println!("{what}: {} steps, {without} without a journal", left.len());
    }
}
