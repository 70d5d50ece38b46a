//! Recovery on the file systems of this machine: a log in a file, and files that are not as it says.

use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use remanence_cache::entry::{Mtime, Owner};
use remanence_cache::format::{self, Geometry, Held, Lost, Promise};
use remanence_cache::log::Log;
use remanence_cache::op::{Name, Op};
use remanence_cache::recovery::{Outcome, scan};
use remanence_cache::table::{FileId, FileTable, Identity};
use remanence_cache::words::LocalWords;
use remanence_cache_live::recover::files::Files as _;
use remanence_cache_live::recover::real::{RealFiles, identity};
use remanence_cache_live::recover::{Options, Report, State, recover};
use remanence_pmem::Region;
use remanence_pmem::layout::Uuid;

const GEOMETRY: Geometry = Geometry { entries: 256, slot: 4096, files: 16, path_max: 256 };
const ME: Owner = Owner::new(1);

/// A log, and a directory with the files that it is about.
struct Bench {
    directory: tempfile::TempDir,
    region: Region,
    log: Log<Region, LocalWords>,
    table: FileTable<Region>,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let region = format::file_options().create(GEOMETRY.size()).open(path).unwrap();
        let layout = format::make(&region, Uuid([9; 16]), GEOMETRY, 3, Promise::AtSync).unwrap();
        let log = Log::start(region.clone(), LocalWords::default(), Promise::AtSync).unwrap();
        let table = FileTable::empty(region.clone(), layout);
        fs::create_dir(directory.path().join("data")).unwrap();
        Self { directory, region, log, table }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("data").join(name)
    }

    fn register(&mut self, path: &Path) -> FileId {
        self.table.register(&identity(path).unwrap(), self.log.tail()).unwrap()
    }

    fn directory(&mut self) -> FileId {
        let path = self.directory.path().join("data");
        self.register(&path)
    }

    fn append(&self, op: &Op<'_>, mtime: Mtime) {
        let end = self.log.append(ME, op, mtime).unwrap();
        self.log.persist_up_to(ME, end).unwrap();
    }

    fn write(&self, file: FileId, offset: u64, bytes: &[u8]) {
        self.append(&Op::Write { file, offset, bytes }, now());
    }

    fn recover(&self, options: &Options) -> Report {
        let found = scan(&self.region, Lost::Unsynced).unwrap();
        recover(&self.region, found, &RealFiles, options).unwrap()
    }
}

/// Does something as a user who may not do everything.
fn as_nobody(does: impl FnOnce() + Send) {
    let run = || {
        if rustix::process::geteuid().is_root() {
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65534)).unwrap();
        }
        does();
    };
    // The user is that of the thread alone.
    std::thread::scope(|scope| scope.spawn(run).join().unwrap());
}

fn now() -> Mtime {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Mtime(now.as_nanos() as u64)
}

#[test]
fn bytes_lengths_and_names_are_as_the_log_says_and_a_second_time_changes_nothing() {
    let mut bench = Bench::new();
    let data = bench.directory();
    fs::write(bench.path("a"), b"before").unwrap();
    let a = bench.register(&bench.path("a"));
    bench.write(a, 3, b"more than it was");
    bench.append(&Op::Truncate { file: a, len: 12 }, now());
    bench.append(&Op::Allocate { file: a, mode: 0x03, offset: 0, len: 2 }, now());
    let at = |name| Name { directory: data, name };
    bench.append(&Op::Rename { file: a, from: at(b"a"), to: at(b"b"), exchanged: None }, now());
    bench.append(&Op::Link { file: a, at: at(b"c") }, now());
    // These are made, and lost.
    let lost = |number: u64, path: &str| Identity {
        device: 1,
        inode: u64::MAX - number,
        born: 9,
        handle_type: 0,
        handle: Vec::new(),
        path: bench.path(path).into_os_string().into_encoded_bytes(),
    };
    let lost = [lost(1, "d"), lost(2, "d/new"), lost(3, "link")];
    let [d, new, link] = lost.each_ref().map(|lost| bench.table.register(lost, bench.log.tail()).unwrap());
    bench.append(&Op::Create { file: d, at: at(b"d"), mode: 0o040_750 }, now());
    let within = Name { directory: d, name: b"new" };
    bench.append(&Op::Create { file: new, at: within, mode: 0o100_640 }, now());
    bench.append(&Op::Symlink { file: link, at: at(b"link"), target: b"b" }, now());
    let written = now();
    bench.append(&Op::Write { file: new, offset: 5000, bytes: &[7; 9000] }, written);

    let dry = bench.recover(&Options { dry: true, ..Options::default() });
    assert_eq!((dry.files.len(), dry.outcome), (2, None));
    assert_eq!(fs::read(bench.path("a")).unwrap(), b"before", "a dry run changes nothing");
    assert!(!scan(&bench.region, Lost::Unsynced).unwrap().is_clean());
    let report = bench.recover(&Options::default());
    assert_eq!(report.outcome, Some(Outcome::Empty), "{report:?}");
    let states: Vec<&State> = report.files.iter().map(|file| &file.state).collect();
    assert_eq!(states, [&State::Replayed, &State::Made], "{report:?}");
    assert_eq!(fs::read(bench.path("b")).unwrap(), b"\0\0fmore than");
    assert_eq!(fs::metadata(bench.path("b")).unwrap().ino(), fs::metadata(bench.path("c")).unwrap().ino());
    assert!(!bench.path("a").exists());
    let made = bench.path("d/new");
    assert_eq!(fs::read(&made).unwrap(), [vec![0; 5000], vec![7; 9000]].concat());
    let about = fs::metadata(&made).unwrap();
    assert_eq!((about.permissions().mode() & 0o777, about.nlink()), (0o640, 1));
    assert_eq!(about.mtime() as u64, written.0 / 1_000_000_000, "the time of its last change");
    assert_eq!(fs::read_link(bench.path("link")).unwrap(), Path::new("b"));
    let names: Vec<_> =
        fs::read_dir(bench.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 4, "{names:?}");
    assert!(bench.recover(&Options::default()).files.is_empty());
}

#[test]
fn no_link_leads_out_and_no_pipe_is_opened() {
    let mut bench = Bench::new();
    let secret = bench.directory.path().join("secret");
    fs::write(&secret, b"secret").unwrap();
    fs::write(bench.path("a"), b"ours").unwrap();
    fs::write(bench.path("b"), b"ours").unwrap();
    let (a, b) = (bench.register(&bench.path("a")), bench.register(&bench.path("b")));
    bench.write(a, 0, b"new");
    bench.write(b, 0, b"new");
    fs::remove_file(bench.path("a")).unwrap();
    symlink(&secret, bench.path("a")).unwrap();
    fs::remove_file(bench.path("b")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        bench.path("b"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let report = bench.recover(&Options::default());
    assert_eq!(report.outcome, Some(Outcome::Held(Held::Files(vec![a, b]))), "{report:?}");
    assert_eq!(fs::read(&secret).unwrap(), b"secret");
    // A link beside has no say in where its file is put.
    let aside = bench.directory.path().join("aside");
    fs::create_dir(&aside).unwrap();
    symlink(&secret, aside.join("a.rem-recovered")).unwrap();
    let report = bench.recover(&Options { set_aside: Some(aside.clone()), ..Options::default() });
    assert_eq!(report.outcome, Some(Outcome::Empty), "{report:?}");
    assert_eq!(fs::read(&secret).unwrap(), b"secret");
    assert_eq!(fs::read(aside.join("a.rem-recovered.1")).unwrap(), b"new");
    assert_eq!(fs::read(aside.join("b.rem-recovered")).unwrap(), b"new");
}

/// Who is not root finds no file by its handle, and has to decide.
#[test]
fn nothing_is_due_to_a_file_that_was_removed_where_nothing_has_its_name() {
    let mut bench = Bench::new();
    fs::write(bench.path("a"), b"ours").unwrap();
    let a = bench.register(&bench.path("a"));
    bench.write(a, 0, b"new");
    fs::remove_file(bench.path("a")).unwrap();
    let report = bench.recover(&Options::default());
    let outcome = match rustix::process::geteuid().is_root() {
        true => Outcome::Empty,
        false => Outcome::Held(Held::Files(vec![a])),
    };
    assert_eq!(report.outcome, Some(outcome), "{report:?}");
    assert!(!bench.path("a").exists());
}

#[test]
fn what_somebody_else_wrote_is_kept_and_ours_is_beside_it() {
    let mut bench = Bench::new();
    let path = bench.path("a");
    let file = File::create(&path).unwrap();
    file.write_all_at(&[2; 12_000], 0).unwrap();
    let a = bench.register(&path);
    let earlier = Mtime(now().0 - 60_000_000_000);
    bench.append(&Op::Write { file: a, offset: 0, bytes: &[1; 12_000] }, earlier);
    bench.append(&Op::Write { file: a, offset: 0, bytes: &[2; 12_000] }, earlier);
    bench.append(&Op::Write { file: a, offset: 9000, bytes: &[3; 10] }, earlier);
    file.write_all_at(&[9; 50], 5000).unwrap();
    let report = bench.recover(&Options::default());
    let State::Foreign { kept, replayed: 1, uncut: false, beside: Some(beside) } = &report.files[0].state
    else {
        panic!("{report:?}")
    };
    assert_eq!((&kept[..], &beside[..]), (&[4096][..], "a.rem-recovered"));
    let expected = |theirs: bool| {
        let mut bytes = vec![2; 12_000];
        bytes[9000..9010].fill(3);
        if theirs {
            bytes[5000..5050].fill(9);
        }
        bytes
    };
    assert_eq!(fs::read(&path).unwrap(), expected(true));
    assert_eq!(fs::read(bench.path("a.rem-recovered")).unwrap(), expected(false));
    assert!(bench.recover(&Options::default()).files.is_empty());
}

#[test]
fn a_file_that_was_moved_is_found_by_its_handle_where_that_is_permitted() {
    let mut bench = Bench::new();
    fs::write(bench.path("a"), b"ours").unwrap();
    let a = bench.register(&bench.path("a"));
    bench.write(a, 0, b"new!");
    let moved = bench.directory.path().join("moved");
    fs::rename(bench.path("a"), &moved).unwrap();
    let report = bench.recover(&Options::default());
    match &report.files[0].state {
        State::Replayed => assert_eq!(fs::read(&moved).unwrap(), b"new!"),
        State::Absent { why } => {
            println!("not found by its handle: {why:?}");
            assert_eq!(fs::read(&moved).unwrap(), b"ours");
            assert_eq!(report.outcome, Some(Outcome::Held(Held::Files(vec![a]))));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_directory_that_cannot_be_looked_at_is_no_reason_to_recover_nothing() {
    as_nobody(|| {
        let mut bench = Bench::new();
        bench.directory();
        for name in ["shut", "shut/below", "blind"] {
            let path = bench.path(name);
            fs::create_dir(&path).unwrap();
            bench.register(&path);
        }
        fs::write(bench.path("a"), b"ours").unwrap();
        let a = bench.register(&bench.path("a"));
        bench.write(a, 0, b"new!");
        fs::rename(bench.path("a"), bench.path("b")).unwrap();
        let allow = |name, mode| fs::set_permissions(bench.path(name), Permissions::from_mode(mode)).unwrap();
        allow("shut", 0);
        allow("blind", 0o300);
        let report = bench.recover(&Options::default());
        // They go with the test.
        allow("shut", 0o700);
        allow("blind", 0o700);
        assert_eq!(report.outcome, Some(Outcome::Empty), "{report:?}");
        assert_eq!(fs::read(bench.path("b")).unwrap(), b"new!");
    });
}

#[test]
fn a_file_that_cannot_be_given_to_its_owner_runs_as_nobody() {
    as_nobody(|| {
        let bench = Bench::new();
        fs::write(bench.path("a"), b"ours").unwrap();
        let data = RealFiles.directory(bench.path("").as_os_str().as_bytes()).unwrap().unwrap();
        let node = RealFiles.named(&data, b"a").unwrap().unwrap();
        let about = || fs::metadata(bench.path("a")).unwrap();
        let mode = |user, group| {
            RealFiles.attributes(&node, 0o106_755, user, group).unwrap();
            about().mode() & 0o7777
        };
        assert_eq!(mode(about().uid(), about().gid()), 0o6755);
        assert_eq!(mode(0, 0), 0o755, "it would run as whoever has recovered it");
    });
}

#[test]
fn a_disk_that_is_full_keeps_the_log_and_a_recovery_goes_on_when_there_is_room() {
    let mut bench = Bench::new();
    fs::write(bench.path("a"), b"ours").unwrap();
    let a = bench.register(&bench.path("a"));
    bench.write(a, 0, b"new!");
    // No file is as long: what the file system says is an error like any other.
    bench.append(&Op::Truncate { file: a, len: i64::MAX as u64 }, now());
    let found = scan(&bench.region, Lost::Unsynced).unwrap();
    let error = recover(&bench.region, found, &RealFiles, &Options::default());
    let Err(error) = error else {
        // Some file systems know files as long.
        return;
    };
    let said = error.to_string();
    assert!(said.contains("the log keeps everything") && said.contains("/data/a"), "{said}");
    let found = scan(&bench.region, Lost::Unsynced).unwrap();
    assert_eq!((found.items.len(), found.is_clean()), (2, false));
}
