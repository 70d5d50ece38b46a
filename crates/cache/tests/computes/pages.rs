//! NVPages: what is read is what was written, what was promised survives, each page is whole, and none ever shows what was another's.

use remanence_cache::format::Promise;
use remanence_cache::op::Op;
use remanence_cache::pages::format::{Geometry, make};
use remanence_cache::pages::keeper::{Action, Keeper, Options, Token};
use remanence_cache::pages::recovery::{Outcome, Policy, Recovery, Scan};
use remanence_cache::pages::{Access, Fault, PageOf, Pages, Step};
use remanence_cache::table::{FileId, FileTable};
use remanence_pmem::crash_image::{Choices, CrashImage, Seeded};
use remanence_pmem::layout::Uuid;
use remanence_pmem::{Medium, PersistenceDomain};

use crate::crash::{FILES, identity};
use crate::files::{Change, Disk};

/// Bytes of a page in these tests.
pub(crate) const PAGE: usize = 64;

/// An empty cache that names the files.
pub(crate) fn made(slots: u32, records: u32, promise: Promise, domain: PersistenceDomain) -> CrashImage {
    let geometry = Geometry { slots, records, page: PAGE as u32, files: FILES, path_max: 64 };
    let image = CrashImage::new(geometry.size(), domain);
    let layout = make(&image, Uuid([8; 16]), geometry, 0xca5e, promise).expect("it is blank");
    let mut table = FileTable::empty(&image, layout.table());
    for number in 0..FILES {
        assert_eq!(table.register(&identity(number), 1).expect("there is room").0, number);
    }
    CrashImage::from_bytes(image.bytes(), domain)
}

/// The bytes of a file that a disk shows.
pub(crate) fn content(disk: &Disk, file: FileId) -> Vec<u8> {
    disk.visible().bytes.get(&file.0).cloned().unwrap_or_default()
}

/// What a file has of a page.
pub(crate) fn page_of(disk: &Disk, of: PageOf) -> Vec<u8> {
    let content = content(disk, of.file);
    let from = (of.page as usize * PAGE).min(content.len());
    content[from..content.len().min(from + PAGE)].to_vec()
}

/// Carries out what a keeper, or a recovery, asks for.
pub(crate) fn carry_out(disk: &mut Disk, action: Action, bytes: &[u8]) {
    match action {
        Action::Truncate { file, len } => disk.write(&Op::Truncate { file, len }),
        Action::Write { file, offset, len } => {
            assert_eq!(bytes.len(), len as usize);
            disk.write(&Op::Write { file, offset, bytes });
        }
        Action::Sync { file } => disk.sync(file.0),
    }
}

/// A cache, its keeper and its disk, used by one thread.
pub(crate) struct One<M> {
    pub(crate) pages: Pages<M>,
    pub(crate) keeper: Keeper,
    pub(crate) disk: Disk,
    choices: Seeded,
    asked: Vec<(Token, Action)>,
}

impl<M: Medium> One<M> {
    pub(crate) fn start(medium: M, promise: Promise, disk: Disk, seed: u64) -> Self {
        let pages = Pages::start(medium, promise).expect("it is clean");
        for file in (0..FILES).map(FileId) {
            pages.open_file(file, content(&disk, file).len() as u64);
        }
        let slots = pages.layout().geometry.slots;
        let keeper = Keeper::new(Options { batch: 3, ..Options::usual(slots) });
        Self { pages, keeper, disk, choices: Seeded::new(seed), asked: Vec::new() }
    }

    /// Does one thing that the keeper asks for; whether there was any.
    pub(crate) fn work(&mut self) -> bool {
        while let Some(asked) = self.keeper.poll(&self.pages).expect("the medium stands") {
            self.asked.push(asked);
        }
        if self.asked.is_empty() {
            return false;
        }
        let (token, action) = self.asked.swap_remove(self.choices.pick(self.asked.len()));
        let bytes = self.keeper.bytes(token).unwrap_or_default().to_vec();
        carry_out(&mut self.disk, action, &bytes);
        self.keeper.done(&self.pages, token);
        true
    }

    pub(crate) fn access(&mut self, access: &mut Access<'_>) -> Result<(), Fault> {
        for _ in 0..1000 {
            match self.pages.step(access)? {
                Step::Done => return Ok(()),
                Step::Load(of) => self.pages.loaded(access, &page_of(&self.disk, of)),
                Step::Full => {
                    self.keeper.drain();
                    self.work();
                }
                Step::Busy => assert!(self.work(), "nothing would ever change"),
            }
        }
        panic!("it comes to no end: {access:?} {:?}", self.keeper);
    }

    pub(crate) fn write(&mut self, file: u32, offset: u64, bytes: &[u8]) {
        self.access(&mut Access::write(FileId(file), offset, bytes)).expect("it is short");
    }

    pub(crate) fn read(&mut self, file: u32, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xaa; len];
        let mut access = Access::read(FileId(file), offset, &mut bytes);
        self.access(&mut access).expect("the medium stands");
        let done = access.done();
        bytes.truncate(done);
        bytes
    }

    pub(crate) fn truncate(&mut self, file: u32, len: u64) {
        loop {
            match self.keeper.truncate(&self.pages, FileId(file), len).expect("the medium stands") {
                Step::Done => return,
                Step::Full | Step::Busy => {
                    self.keeper.drain();
                    self.work();
                }
                Step::Load(_) => panic!("nothing is to be loaded"),
            }
        }
    }

    pub(crate) fn sync(&mut self) {
        let ticket = self.pages.ticket();
        assert_eq!(self.pages.sync(ticket).expect("the medium stands"), Step::Done);
    }

    pub(crate) fn drain(&mut self) {
        self.keeper.drain();
        while self.work() {}
        assert!(self.keeper.is_drained(&self.pages), "{:?}", self.keeper);
    }
}

/// Recovers a cache onto a disk, in an order that a seed chooses; stops after so many actions.
pub(crate) fn recover(
    medium: &impl Medium,
    scan: Scan,
    policy: Policy,
    disk: &mut Disk,
    seed: u64,
    mut actions: u64,
) -> Option<Outcome> {
    let mut choices = Seeded::new(seed);
    let mut recovery = Recovery::begin(medium, scan, policy).expect("the medium stands");
    let mut asked = Vec::new();
    loop {
        asked.extend(std::iter::from_fn(|| recovery.poll()));
        if asked.is_empty() {
            break;
        }
        if actions == 0 {
            return None;
        }
        actions -= 1;
        let (token, action) = asked.swap_remove(choices.pick(asked.len()));
        let bytes = recovery.bytes(medium, token).unwrap_or_default();
        carry_out(disk, action, &bytes);
        recovery.done(token);
    }
    Some(recovery.finish(medium).expect("the medium stands"))
}

/// A disk with these bytes in its files, durably.
pub(crate) fn disk(files: &[(u32, &[u8])]) -> Disk {
    let mut disk = Disk::default();
    for (file, bytes) in files {
        disk.write(&Change::Write { file: *file, offset: 0, bytes: bytes.to_vec() }.op());
        disk.sync(*file);
    }
    disk
}
