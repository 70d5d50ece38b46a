//! Regions over files: what is refused at once, what happens when the file changes under us, what a kill leaves. Alone in its program,
//! which `dax` runs in a guest.

#![expect(unsafe_code, reason = "one test faults on purpose")]

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use remanence_effort::{Process, again};
use remanence_pmem::{
    Error, FileOptions, Image, Journaling, PersistenceDomain, Region, StoreGranularity, domain,
};

/// Tells this program, started once more by a test of its own, that it is the child.
const CHILD: &str = "REMANENCE_PMEM_TEST_FILE";

struct Scratch(PathBuf);

impl Scratch {
    fn new(directory: &str, name: &str) -> Self {
        let path = Path::new(directory).join(format!("files-{}-{name}", std::process::id()));
        let _ = fs::remove_file(&path);
        Self(path)
    }

    /// `dax.rs` runs this program once more, on a file system of its own choice.
    fn on_disk(name: &str) -> Self {
        let chosen = std::env::var("REMANENCE_TEST_DIR");
        Self::new(chosen.as_deref().unwrap_or(env!("CARGO_TARGET_TMPDIR")), name)
    }

    fn shm(name: &str) -> Self {
        Self::new("/dev/shm", name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_second_owner_is_told_who_the_first_is() {
    let scratch = Scratch::on_disk("second");
    let first = FileOptions::new().create(8192).open(&scratch.0).unwrap();
    let refused = FileOptions::new().open(&scratch.0).unwrap_err();
    let Error::InUse { holder, .. } = &refused else { panic!("{refused}") };
    assert_eq!(*holder, Some(std::process::id()), "{refused}");
    assert!(refused.to_string().contains("stop it first"), "{refused}");
    drop(first);
    FileOptions::new().open(&scratch.0).unwrap();
}

/// As every child has until it executes its program: whoever opens the file next must not meet it by chance.
#[test]
fn a_duplicate_of_the_descriptor_keeps_no_lock() {
    let scratch = Scratch::on_disk("duplicate");
    for journal in [Journaling::Off, Journaling::IfMade] {
        let _ = fs::remove_file(&scratch.0);
        let first = FileOptions::new().create(8192).journal(journal).open(&scratch.0).unwrap();
        let _duplicate = first.fd().unwrap().try_clone_to_owned().unwrap();
        let refused = FileOptions::new().open(&scratch.0);
        assert!(matches!(refused, Err(Error::InUse { .. })), "the region lives: {refused:?}");
        drop(first);
        FileOptions::new().open(&scratch.0).expect("the region is gone");
    }
}

#[test]
fn what_a_forked_child_drops_stays_its_parents() {
    let scratch = Scratch::on_disk("forked");
    let region = FileOptions::new().create(8192).open(&scratch.0).unwrap();
    // SAFETY: the child drops what it inherited, which takes no lock that a thread of the parent could hold, and ends
    // without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(region);
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for a child of ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child ended well");
    let refused = FileOptions::new().open(&scratch.0);
    assert!(matches!(refused, Err(Error::InUse { .. })), "{refused:?}");
    drop(region);
    FileOptions::new().open(&scratch.0).unwrap();
}

#[test]
fn lines_are_written_back_by_the_instruction_that_was_asked_for_if_the_cpu_has_it() {
    use remanence_pmem::flush::{self, Instruction};
    let all = [
        Instruction::Clwb,
        Instruction::ClflushOpt,
        Instruction::Clflush,
        Instruction::DcCvap,
        Instruction::DcCvac,
    ];
    for instruction in all {
        let scratch = Scratch::shm("instruction");
        let options =
            FileOptions::new().create_new(8192).declare(PersistenceDomain::Adr).write_back(instruction);
        match options.open(&scratch.0) {
            Ok(region) => {
                assert!(flush::has(instruction));
                region.write(100, b"written back");
                region.persist(100..112).unwrap();
            }
            Err(refused) => {
                assert!(!flush::has(instruction));
                assert_eq!(
                    refused.to_string(),
                    format!(
                        "this CPU has no {instruction}: leave the choice out, and the best that it has is taken"
                    )
                );
                assert!(!scratch.0.exists(), "refused before anything was made");
            }
        }
    }
}

#[test]
fn who_shares_the_memory_does_not_hold_the_lock() {
    let scratch = Scratch::on_disk("shared");
    let owner = FileOptions::new().create(8192).open(&scratch.0).unwrap();
    let peer = Region::from_shared_fd(owner.share().unwrap(), 8192).unwrap();
    owner.write(100, b"seen by both");
    let mut seen = [0; 12];
    peer.read(100, &mut seen);
    assert_eq!(&seen, b"seen by both");
    drop(owner);
    FileOptions::new().open(&scratch.0).expect("the peer outlives the owner and does not stand in its way");
    let too_long = Region::from_shared_fd(peer.share().unwrap(), 8193).unwrap_err();
    assert!(matches!(too_long, Error::Truncated { expected: 8193, found: 8192, .. }), "{too_long}");
}

#[test]
fn what_cannot_work_is_refused_in_a_sentence() {
    let scratch = Scratch::shm("refused");
    let open = |options: FileOptions| options.open(&scratch.0).unwrap_err();
    assert!(matches!(open(FileOptions::new()), Error::Missing { .. }));
    let full = open(FileOptions::new().create(1 << 50));
    assert!(matches!(full, Error::NoSpace { .. }), "{full}");
    assert!(!scratch.0.exists(), "no half-made file is left");
    assert!(matches!(open(FileOptions::new().create(0)), Error::BadLength { len: 0 }));
    assert!(matches!(Region::anonymous(0), Err(Error::BadLength { .. })));
    assert!(matches!(Region::anonymous(u64::MAX), Err(Error::BadLength { .. })));
    assert!(matches!(FileOptions::new().open("/dev/null"), Err(Error::NotAFile { .. })));
    assert!(matches!(FileOptions::new().create(1).open("/dev/shm"), Err(Error::NotAFile { .. })));

    File::create(&scratch.0).unwrap();
    let noted = FileOptions::new().image(|_, _| Image::Blank).journal_note(128, "ask its owner");
    for empty in [noted.open(&scratch.0), noted.view(&scratch.0)] {
        let empty = empty.unwrap_err().to_string();
        let says = format!("{} has no bytes: put back what was there", scratch.0.display());
        assert!(empty.starts_with(&says) && empty.ends_with(", or ask its owner"), "{empty}");
    }
    assert!(matches!(open(FileOptions::new()), Error::Empty { .. }));
    File::create(&scratch.0).unwrap().write_all(&[1; 5000]).unwrap();
    let exists = open(FileOptions::new().create_new(4096));
    assert!(matches!(exists, Error::Exists { .. }), "{exists}");
    let short = open(FileOptions::new().expect_len(8192));
    assert!(matches!(short, Error::Truncated { expected: 8192, found: 5000, .. }), "{short}");
    assert!(short.to_string().contains("restore it"), "{short}");
    assert_eq!(fs::read(&scratch.0).unwrap(), [1; 5000], "nothing was touched");
}

#[test]
fn an_existing_file_keeps_its_bytes_and_grows_by_zeros() {
    let scratch = Scratch::on_disk("grows");
    fs::write(&scratch.0, [7; 5000]).unwrap();
    let whole = FileOptions::new().open(&scratch.0).unwrap();
    assert_eq!(whole.len(), 5000);
    drop(whole);
    let grown = FileOptions::new().create(10_000).populate(true).open(&scratch.0).unwrap();
    let mut bytes = vec![1; 10_000];
    grown.read(0, &mut bytes);
    assert!(bytes[..5000].iter().all(|b| *b == 7) && bytes[5000..].iter().all(|b| *b == 0));
    let kept = FileOptions::new().create(100);
    drop(grown);
    assert_eq!(kept.open(&scratch.0).unwrap().len(), 10_000, "never cut short");
}

#[test]
fn domains_are_detected_and_a_declaration_cannot_wish_a_page_cache_away() {
    let disk = Scratch::on_disk("domain");
    let shm = Scratch::shm("domain");
    let on_disk = FileOptions::new().create(4096).open(&disk.0).unwrap();
    let expected = domain::probe_directory(disk.0.parent().unwrap()).unwrap();
    assert_eq!(on_disk.domain(), &expected, "a probe of the directory says the same");
    let declared = FileOptions::new().create(4096).declare(PersistenceDomain::Adr);
    let on_shm = declared.open(&shm.0).unwrap();
    assert!(on_shm.domain().guarantee().declared);
    assert!(on_shm.domain().to_string().contains("declared"), "{}", on_shm.domain());
    drop(on_disk);
    if expected.domain() == PersistenceDomain::PageCache {
        let refused = declared.open(&disk.0).unwrap_err();
        assert!(matches!(refused, Error::Declared { .. }), "{refused}");
        assert!(disk.0.exists(), "a file that was there before stays");
    }
}

/// What is detected on the file system under test; `dax.rs` looks for the line.
#[test]
fn the_domain_is_said_aloud() {
    let scratch = Scratch::on_disk("said");
    let region = FileOptions::new().create(4096).open(&scratch.0).unwrap();
    let guarantee = region.domain().guarantee().to_bits();
    println!("{:?} {guarantee:#x} {}", region.kind(), region.domain());
}

/// The file is cut short while it is mapped: the process lives, and nothing is called durable any more.
fn truncation(scratch: &Scratch) {
    let region = FileOptions::new().create(4 * 4096).open(&scratch.0).unwrap();
    region.write(0, &[5; 4 * 4096]);
    region.persist(0..4 * 4096).unwrap();
    File::options().write(true).open(&scratch.0).unwrap().set_len(4096).unwrap();

    let mut bytes = [1; 8];
    region.read(2 * 4096 + 16, &mut bytes);
    assert_eq!(bytes, [0; 8], "a lost page reads as zeros");
    assert_eq!(region.load_u64(0), 0x0505_0505_0505_0505, "the others are untouched");
    region.write(2 * 4096, &[6; 100]);
    let failure = region.failure().unwrap_err().to_string();
    assert!(failure.contains("offset 8192") && failure.contains("truncated"), "{failure}");
    region.write(0, &[6; 8]);
    for _ in 0..2 {
        let refused = region.persist(0..8).unwrap_err().to_string();
        assert!(refused.contains("truncated"), "{refused}");
    }
}

#[test]
fn a_file_that_is_truncated_fails_its_region_and_not_the_process() {
    truncation(&Scratch::on_disk("truncated"));
    truncation(&Scratch::shm("truncated"));
}

#[test]
fn a_truncation_that_nobody_touched_is_found_by_psync_where_it_is_a_system_call_anyway() {
    let scratch = Scratch::on_disk("untouched");
    let region = FileOptions::new().create(4 * 4096).open(&scratch.0).unwrap();
    File::options().write(true).open(&scratch.0).unwrap().set_len(4096).unwrap();
    region.write(0, &[6; 8]);
    let found = region.persist(0..8);
    if region.domain().granularity() == StoreGranularity::Page {
        let refused = found.unwrap_err().to_string();
        assert!(refused.contains("truncated"), "{refused}");
    } else {
        found.expect("a psync of some instructions looks at its own pages only");
        assert_eq!(region.load_u64(8192), 0);
        assert!(region.psync().is_err(), "who touches a lost page finds out");
    }
}

/// Whoever serves a region does not ask for every psync of it: a peer's FLUSH has one, of which it hears nothing.
#[test]
fn a_psync_that_failed_is_told_to_who_did_not_ask_for_it() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    let scratch = Scratch::on_disk("told");
    let region = FileOptions::new().create(4 * 4096).open(&scratch.0).unwrap();
    let called = [Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0))];
    let mut watches = Vec::new();
    for count in &called {
        let count = Arc::clone(count);
        let counts = move || {
            count.fetch_add(1, Ordering::Relaxed);
        };
        watches.push(region.when_failed(counts));
    }
    region.persist(0..8).unwrap();
    File::options().write(true).open(&scratch.0).unwrap().set_len(4096).unwrap();
    assert_eq!(region.load_u64(8192), 0, "who touches a lost page finds out");
    watches.pop();
    region.psync_unannounced().expect_err("nothing is durable any more");
    let calls = || called.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert_eq!(calls(), [0, 0], "whoever asked for it has somebody to answer first");
    region.announce_failure();
    assert_eq!(calls(), [1, 0], "one of them wants to know it no more");
    region.psync().expect_err("it stays so");
    assert_eq!(calls(), [2, 0]);
    region.failure().expect_err("it stays so");
}

/// The page cache is what it was, and a later look finds nothing wrong with it.
#[test]
fn a_region_whose_psync_failed_once_has_failed() {
    let scratch = Scratch::on_disk("once");
    let region = FileOptions::new().create(4 * 4096).open(&scratch.0).unwrap();
    if region.domain().granularity() != StoreGranularity::Page {
        return println!("skipped: psync makes no system call here");
    }
    let cut = |len| File::options().write(true).open(&scratch.0).unwrap().set_len(len).unwrap();
    let whole = fs::metadata(&scratch.0).unwrap().len();
    cut(4096);
    region.write(0, &[6; 8]);
    region.persist(0..8).expect_err("it is shorter than it was");
    cut(whole);
    let why = region.failure().expect_err("what was to be written may be lost").to_string();
    assert!(why.contains("an earlier psync failed") && why.contains("truncated"), "{why}");
    region.persist(0..8).expect_err("it stays so");
}

#[test]
fn two_failed_regions_do_not_share_their_fate_with_a_third() {
    let (one, two) = (Scratch::shm("fate-1"), Scratch::shm("fate-2"));
    let lost = FileOptions::new().create(8192).open(&one.0).unwrap();
    let fine = FileOptions::new().create(8192).open(&two.0).unwrap();
    File::options().write(true).open(&one.0).unwrap().set_len(0).unwrap();
    lost.write(0, &[1]);
    fine.write(0, &[1]);
    assert!(lost.psync().is_err());
    fine.psync().unwrap();
    drop(lost);
    let reopened = FileOptions::new().create(8192).open(&one.0).unwrap();
    reopened.persist(0..8192).expect("a new region starts afresh");
}

/// Starts this test program again as a child that runs one function of this file.
fn child(name: &str, path: &Path) -> Command {
    let mut command = again(name);
    command.env(CHILD, path);
    command
}

fn child_path() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

/// With our handler installed, does what should kill this process.
fn die_of_sigbus(path: &Path, how: &str) {
    if how != "chained" {
        // Rust's runtime has a handler of its own, a C program none.
        // SAFETY: puts the default action back.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
    let watched = FileOptions::new().create(4096).open(path).unwrap();
    watched.write(0, &[1]);
    if how == "sent" {
        // SAFETY: sends a signal, to this thread.
        unsafe { libc::raise(libc::SIGBUS) };
    } else {
        let file = File::open(path).unwrap();
        // SAFETY: a new mapping of a page that the file does not have; reading it raises SIGBUS.
        unsafe {
            let page = libc::mmap(
                std::ptr::null_mut(),
                8192,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            page.cast::<u8>().add(4096).read_volatile();
        }
    }
    unreachable!("survived SIGBUS");
}

#[test]
fn a_fault_outside_of_every_region_kills_as_it_always_did() {
    if let Some(path) = child_path() {
        return die_of_sigbus(&path, &path.extension().unwrap().to_string_lossy());
    }
    for how in ["sent", "raised", "chained"] {
        let scratch = Scratch::shm(&format!("outside.{how}"));
        let name = "a_fault_outside_of_every_region_kills_as_it_always_did";
        let status = child(name, &scratch.0).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{how}: {status}");
    }
}

#[test]
fn what_was_written_outlives_a_killed_process() {
    if let Some(path) = child_path() {
        let region = FileOptions::new().create(1 << 20).open(path).unwrap();
        region.write(1000, b"written by the dead");
        region.store_u64(0, 1);
        println!("it is written");
        loop {
            std::thread::park();
        }
    }
    let scratch = Scratch::on_disk("killed");
    let name = "what_was_written_outlives_a_killed_process";
    let mut process = Process::start(child(name, &scratch.0).stderr(Stdio::null()));
    process.after("it is written").expect("the child says so");
    assert!(matches!(FileOptions::new().open(&scratch.0), Err(Error::InUse { .. })), "while it lives");
    process.kill();
    let region = FileOptions::new().open(&scratch.0).expect("the lock went with the process");
    let mut bytes = [0; 19];
    region.read(1000, &mut bytes);
    assert_eq!(&bytes, b"written by the dead");
    assert_eq!(region.load_u64(0), 1);
}

#[test]
fn a_private_copy_shows_the_file_until_it_is_written_and_changes_nothing_there() {
    let scratch = Scratch::on_disk("private");
    let file = FileOptions::new().create(3 * 8192).open(&scratch.0).unwrap();
    file.write(100, b"first");
    file.write(8192, b"second");
    let copy = file.private_copy().unwrap();
    let read = |region: &Region, at: u64, len: usize| {
        let mut bytes = vec![0; len];
        region.read(at, &mut bytes);
        bytes
    };
    assert_eq!((read(&copy, 100, 5), read(&copy, 8192, 6)), (b"first".to_vec(), b"second".to_vec()));
    assert!(!copy.domain().guarantee().is_durable());
    copy.write(102, b"F");
    assert_eq!((read(&copy, 100, 5), read(&file, 100, 5)), (b"fiFst".to_vec(), b"first".to_vec()));
    // What was written in the copy first may be written in the file later, and is not seen twice.
    file.write(102, b"G");
    assert_eq!(read(&copy, 100, 5), b"fiFst");
    copy.persist(0..copy.len()).unwrap();
    assert_eq!(fs::read(&scratch.0).unwrap()[100..105], *b"fiGst");
    let memory = Region::anonymous(3 << 20).unwrap();
    memory.write((3 << 20) - 4, b"last");
    assert_eq!(read(&memory.private_copy().unwrap(), (3 << 20) - 4, 4), b"last");
}
