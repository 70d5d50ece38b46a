//! Files as byte vectors behind a page cache, of which a crash keeps some writes that were not synced and not others.

use std::collections::BTreeMap;

use remanence_cache::cleaner::Action;
use remanence_cache::op::{Name, Op};
use remanence_cache::recovery::{Judged, Outcome, Policy, Recovery, Scan};
use remanence_cache::table::FileId;
use remanence_pmem::Medium;
use remanence_pmem::crash_image::{Choices, Seeded};

/// A change that owns its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    Write { file: u32, offset: u64, bytes: Vec<u8> },
    Truncate { file: u32, len: u64 },
    Settled { file: u32, upto: u64 },
    Create { file: u32, name: &'static [u8] },
    Unlink { file: u32, name: &'static [u8] },
    Rename { file: u32, from: &'static [u8], to: &'static [u8] },
}

/// The number of the directory that has all names.
pub(crate) const DIRECTORY: FileId = FileId(0);

impl Change {
    pub(crate) fn op(&self) -> Op<'_> {
        let at = |name| Name { directory: DIRECTORY, name };
        match self {
            Self::Write { file, offset, bytes } => Op::Write { file: FileId(*file), offset: *offset, bytes },
            Self::Truncate { file, len } => Op::Truncate { file: FileId(*file), len: *len },
            Self::Settled { file, upto } => Op::Settled { file: FileId(*file), upto: *upto },
            Self::Create { file, name } => Op::Create { file: FileId(*file), at: at(name), mode: 0 },
            Self::Unlink { file, name } => Op::Unlink { file: FileId(*file), at: at(name) },
            Self::Rename { file, from, to } => {
                Op::Rename { file: FileId(*file), from: at(from), to: at(to), exchanged: None }
            }
        }
    }

    /// The file or directory whose sync makes it durable.
    fn synced_by(&self) -> u32 {
        match self {
            Self::Write { file, .. } | Self::Truncate { file, .. } => *file,
            _ => DIRECTORY.0,
        }
    }
}

/// What files there are.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Files {
    pub(crate) bytes: BTreeMap<u32, Vec<u8>>,
    pub(crate) names: BTreeMap<Vec<u8>, u32>,
}

impl Files {
    /// Carries an operation out.
    pub(crate) fn apply(&mut self, op: &Op<'_>) {
        match op {
            Op::Write { file, offset, bytes } => {
                let content = self.bytes.entry(file.0).or_default();
                let end = *offset as usize + bytes.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[*offset as usize..end].copy_from_slice(bytes);
            }
            Op::Truncate { file, len } => self.bytes.entry(file.0).or_default().resize(*len as usize, 0),
            Op::Create { file, at, .. } => drop(self.names.insert(at.name.to_vec(), file.0)),
            Op::Unlink { at, .. } => drop(self.names.remove(at.name)),
            Op::Rename { file, from, to, .. } => {
                self.names.remove(from.name);
                self.names.insert(to.name.to_vec(), file.0);
            }
            other => panic!("no test has {other:?}"),
        }
    }
}

/// Files behind a page cache.
#[derive(Clone, Default, Debug)]
pub(crate) struct Disk {
    pub(crate) durable: Files,
    cached: Vec<Change>,
}

impl Disk {
    pub(crate) fn write(&mut self, op: &Op<'_>) {
        let name =
            |name: &[u8]| [&b"a"[..], b"b", b"c"].into_iter().find(|known| *known == name).expect("a name");
        self.cached.push(match op {
            Op::Write { file, offset, bytes } => {
                Change::Write { file: file.0, offset: *offset, bytes: bytes.to_vec() }
            }
            Op::Truncate { file, len } => Change::Truncate { file: file.0, len: *len },
            Op::Create { file, at, .. } => Change::Create { file: file.0, name: name(at.name) },
            Op::Unlink { file, at } => Change::Unlink { file: file.0, name: name(at.name) },
            Op::Rename { file, from, to, .. } => {
                Change::Rename { file: file.0, from: name(from.name), to: name(to.name) }
            }
            other => panic!("no test has {other:?}"),
        });
    }

    /// All that concerns this file is durable.
    pub(crate) fn sync(&mut self, file: u32) {
        let (durable, cached) = self.cached.drain(..).partition(|change| change.synced_by() == file);
        self.cached = cached;
        let durable: Vec<Change> = durable;
        durable.iter().for_each(|change| self.durable.apply(&change.op()));
    }

    /// What is visible.
    pub(crate) fn visible(&self) -> Files {
        let mut files = self.durable.clone();
        self.cached.iter().for_each(|change| files.apply(&change.op()));
        files
    }

    /// The machine dies: of bytes that were not synced any part may be there; of names a prefix, as a file system's journal has it.
    pub(crate) fn crash(&mut self, choices: &mut dyn Choices) {
        let mut names = true;
        for change in std::mem::take(&mut self.cached) {
            let keeps = choices.pick(2) == 0;
            match &change {
                Change::Write { file, offset, bytes } => {
                    let half = choices.pick(bytes.len() + 1);
                    let bytes = &bytes[..if keeps { bytes.len() } else { half }];
                    if !bytes.is_empty() {
                        self.durable.apply(&Op::Write { file: FileId(*file), offset: *offset, bytes });
                    }
                }
                Change::Truncate { .. } if keeps => self.durable.apply(&change.op()),
                Change::Truncate { .. } => {}
                _ => {
                    names &= keeps;
                    if names {
                        self.durable.apply(&change.op());
                    }
                }
            }
        }
    }
}

/// Recovers a log onto a disk, beginning with what is to be done first or last as the seed says; stops after so many actions.
pub(crate) fn recover(
    medium: &impl Medium,
    scan: Scan,
    policy: Policy,
    disk: &mut Disk,
    seed: u64,
    mut actions: u64,
) -> Option<Outcome> {
    let mut choices = Seeded::new(seed);
    let mut recovery = Recovery::begin(medium, scan, policy, &Judged::default()).expect("the medium stands");
    let (mut payload, mut asked) = (Vec::new(), Vec::new());
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
        match action {
            Action::Apply { entry } => {
                recovery
                    .scan()
                    .payload(medium, &entry, &mut payload)
                    .expect("it was whole when it was scanned");
                disk.write(&entry.op(&payload).expect("it is a change"));
            }
            Action::Sync { file } => disk.sync(file.0),
            Action::Names => {
                let known = |name: &[u8]| [&b"a"[..], b"b", b"c"].into_iter().find(|known| *known == name);
                for ((_, name), means) in &recovery.names().means {
                    let name = known(name).expect("a name");
                    disk.cached.push(match means {
                        Some(file) => Change::Create { file: file.0, name },
                        None => Change::Unlink { file: 0, name },
                    });
                }
                // It may be cut short within.
                if actions < u64::MAX / 2 && choices.pick(4) == 0 {
                    return None;
                }
                disk.sync(DIRECTORY.0);
            }
            other => panic!("a recovery does not ask for {other:?}"),
        }
        recovery.done(token);
    }
    Some(recovery.finish(medium).expect("the medium stands"))
}
