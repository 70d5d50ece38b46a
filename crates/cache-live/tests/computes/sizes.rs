//! Lengths: whatever a crash has left of a file and of its log, and whatever somebody else has done to it, a recovery makes the file as long as it was at some moment since what was promised.

use std::sync::Arc;

use remanence_cache::entry::Owner;
use remanence_cache::format::{self, Geometry, Lost, Promise};
use remanence_cache::log::Log;
use remanence_cache::op::Op;
use remanence_cache::recovery::{GRACE, Made, scan};
use remanence_cache::table::{FileId, FileTable};
use remanence_cache::words::LocalWords;
use remanence_cache_live::recover::files::Files as _;
use remanence_cache_live::recover::{Options, State, recover};
use remanence_effort::{replay, seeds};
use remanence_pmem::PersistenceDomain;
use remanence_pmem::crash_image::{Choices as _, CrashImage, Failure, Seeded};
use remanence_pmem::layout::Uuid;

use crate::disk::{Disk, Inode};

const ME: Owner = Owner::new(1);
const DATA: Inode = 2;
const GEOMETRY: Geometry = Geometry { entries: 192, slot: 512, files: 8, path_max: 64 };
/// `FALLOC_FL_KEEP_SIZE` and `FALLOC_FL_PUNCH_HOLE`.
const PUNCH: u32 = 0x03;

/// A program that does with one file what the face does for it.
struct Program {
    disk: Disk,
    image: Arc<CrashImage>,
    log: Log<Arc<CrashImage>, LocalWords>,
    inode: Inode,
    file: FileId,
    /// How long the file was, in its order, since what was promised.
    lens: Vec<u64>,
}

impl Program {
    fn new() -> Self {
        let disk = Disk::new();
        let image = Arc::new(CrashImage::new(GEOMETRY.size(), PersistenceDomain::PageCache));
        let layout = format::make(&image, Uuid([0xcd; 16]), GEOMETRY, 7, Promise::AtSync).unwrap();
        let log = Log::start(image.clone(), LocalWords::default(), Promise::AtSync).unwrap();
        disk.make(&DATA, b"a", &Made::Node { mode: 0o100_644 }).unwrap();
        disk.sync(&DATA).unwrap();
        let inode = disk.named(&DATA, b"a").unwrap().unwrap();
        let identity = disk.identity(inode, "/data/a");
        let file = FileTable::empty(image.clone(), layout).register(&identity, log.tail()).unwrap();
        Self { disk, image, log, inode, file, lens: vec![0] }
    }

    fn len(&self) -> u64 {
        self.disk.about(&self.inode).unwrap().len
    }

    fn log(&mut self, op: &Op<'_>) {
        self.log.append(ME, op, self.disk.about(&self.inode).unwrap().mtime).unwrap();
        self.lens.push(self.len());
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.disk.write(&self.inode, offset, bytes).unwrap();
        self.log(&Op::Write { file: self.file, offset, bytes });
    }

    /// What makes a file shorter is in the log before.
    fn truncate(&mut self, len: u64) {
        let op = Op::Truncate { file: self.file, len };
        let cuts = len < self.len();
        if cuts {
            self.log.append(ME, &op, self.disk.now()).unwrap();
            self.promise();
        }
        self.disk.truncate(&self.inode, len).unwrap();
        if cuts {
            self.lens = vec![self.len()];
        } else {
            self.log(&op);
        }
    }

    fn allocate(&mut self, mode: u32, offset: u64, len: u64) {
        if mode == 0 {
            self.disk.truncate(&self.inode, self.len().max(offset + len)).unwrap();
        } else {
            let within = self.len().min(offset + len).saturating_sub(offset);
            self.disk.write(&self.inode, offset, &vec![0; within as usize]).unwrap();
        }
        self.log(&Op::Allocate { file: self.file, mode, offset, len });
    }

    fn promise(&mut self) {
        self.log.persist_up_to(ME, self.log.head()).unwrap();
        self.lens = vec![self.len()];
    }

    /// A sync of the kernel, and what is older is settled.
    fn settle(&mut self) {
        let upto = self.log.head();
        self.disk.sync(&self.inode).unwrap();
        self.log(&Op::Settled { file: self.file, upto });
        self.promise();
    }
}

#[test]
fn a_file_is_as_long_as_it_was_at_some_moment_since_what_was_promised() {
    let (mut foreign_ones, mut kept_ones) = (0, 0);
    for seed in seeds(3000) {
        let mut choices = Seeded::new(seed);
        let mut program = Program::new();
        for _ in 0..4 + choices.pick(10) {
            let at = choices.pick(9000) as u64;
            match choices.pick(12) {
                0..=3 => {
                    let mut bytes = vec![1 + choices.pick(200) as u8; 1 + choices.pick(3000)];
                    // An end of zeros is none to whoever compares bytes.
                    let zeros = choices.pick(bytes.len() + 1);
                    bytes[zeros..].fill(0);
                    program.write(at, &bytes);
                }
                4..=6 => program.truncate(at),
                7 => program.allocate(0, at, 1 + choices.pick(4000) as u64),
                8 if program.len() > 0 => {
                    let at = at % program.len();
                    program.allocate(PUNCH, at, 1 + choices.pick(4000) as u64);
                }
                9 => program.settle(),
                _ => program.promise(),
            }
        }
        if choices.pick(3) == 0 {
            // Of somebody else, a long time after; and he has synced it or not.
            program.disk.wait(GRACE + 1);
            let at = choices.pick(12_000) as u64;
            match choices.pick(2) {
                0 => program.disk.write(&program.inode, at, &[9; 50]).unwrap(),
                _ => program.disk.truncate(&program.inode, at).unwrap(),
            }
            program.lens.push(program.len());
            if choices.pick(2) == 0 {
                program.disk.sync(&program.inode).unwrap();
            }
        }
        let disk = program.disk.crash(&mut choices);
        let image = program.image.crash(Failure::PowerLoss, &mut choices);
        let found = disk.about(&program.inode).unwrap().len;
        let report = recover(&image, scan(&image, Lost::Unsynced).unwrap(), &disk, &Options::default());
        let report = report.unwrap();
        let len = disk.about(&program.inode).unwrap().len;
        let state = report.files.first().map(|file| &file.state);
        let is_kept = matches!(state, Some(State::Foreign { kept, uncut, .. }) if *uncut || !kept.is_empty());
        // What was kept of somebody else's, or of before, is told, and the log's own lies beside it.
        let fits = program.lens.contains(&len) || is_kept && len == found;
        assert!(
            fits,
            "{}: {len} bytes, and before it {found}; and not one of {:?}: {report:?}",
            replay(seed),
            program.lens
        );
        foreign_ones += usize::from(matches!(state, Some(State::Foreign { .. })));
        kept_ones += usize::from(is_kept);
    }
    println!("{foreign_ones} were changed by somebody else, and of {kept_ones} something was kept");
}
