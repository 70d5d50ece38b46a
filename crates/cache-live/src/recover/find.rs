//! Finds the files of a log: by the path that each had when it was opened, by the names that entries gave it, by its inode's number in the directories that the log knows (the
//! crash may have kept a name, and not the entry that tells of it), by its handle; and nowhere else. What is found is the file only if its identity says so, whatever its name.
//!
//! A file that a recovery makes has another identity than the one that was lost. Until the recovery has come to its end it has a second name, which says of
//! which log and file it is: by that one it is found again if the recovery is cut short.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use remanence_cache::format::Layout;
use remanence_cache::recovery::{Made, Names};
use remanence_cache::table::{FileId, Identity};
use remanence_codec::printable;
use remanence_pmem::Medium;

use super::files::{About, Files, Kind};

/// The longest name that Linux has.
const NAME_MAX: usize = 255;
/// Directories in each other that nobody has: longer chains of them are no file system's.
const DEPTH_MAX: u32 = 500;

/// The names that inodes have, each with its directory.
type Listed<N> = BTreeMap<u64, Vec<(N, Vec<u8>)>>;

/// A file that was found.
#[derive(Clone, Debug)]
pub(super) struct Found<N> {
    pub(super) node: N,
    pub(super) about: About,
    /// The directory and the name by which it was found.
    pub(super) place: Option<(N, Vec<u8>)>,
}

/// Whether a directory can have such a name.
pub(super) fn is_name(name: &[u8]) -> bool {
    let fair = !name.is_empty() && name.len() <= NAME_MAX && name != b"." && name != b"..";
    fair && !name.contains(&b'/') && !name.contains(&0)
}

/// The directory and the name of a path.
pub(super) fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = path.iter().rposition(|byte| *byte == b'/')?;
    let directory = if at == 0 { &path[..1] } else { &path[..at] };
    (path[0] == b'/' && !path.contains(&0)).then_some((directory, &path[at + 1..]))
}

/// Who finds them, and remembers.
pub(super) struct Finder<'a, M, F: Files> {
    pub(super) files: &'a F,
    medium: &'a M,
    layout: Layout,
    pub(super) names: Names,
    found: BTreeMap<FileId, Option<Found<F::Node>>>,
    /// Why a file was not looked for any further.
    refused: BTreeMap<FileId, String>,
    /// Files whose handles lead to nothing any more.
    stale: BTreeSet<FileId>,
    /// Names that have come to mean something else behind all that counts.
    pub(super) newer: BTreeSet<(FileId, Vec<u8>)>,
    /// The names in the directories that the log knows, by inodes, as they were when this was asked for: those of inodes that files of the log had.
    listed: Option<Listed<F::Node>>,
    depth: u32,
}

impl<'a, M: Medium, F: Files> Finder<'a, M, F> {
    pub(super) fn new(files: &'a F, medium: &'a M, layout: Layout, names: Names) -> Self {
        let (found, refused) = (BTreeMap::new(), BTreeMap::new());
        let (stale, newer) = (BTreeSet::new(), BTreeSet::new());
        Self { files, medium, layout, names, found, refused, stale, newer, listed: None, depth: 0 }
    }

    pub(super) fn identity(&self, file: FileId) -> Option<Identity> {
        Identity::read(self.medium, &self.layout, file)
    }

    /// Its path as the log has it, fit to be shown.
    pub(super) fn shown(&self, file: FileId) -> String {
        self.identity(file).map_or_else(|| file.to_string(), |identity| identity.shown())
    }

    /// A name in a directory, fit to be shown.
    pub(super) fn shown_name(&self, directory: FileId, name: &[u8]) -> String {
        format!("{}/{}", self.shown(directory).trim_end_matches('/'), printable(name))
    }

    /// The name that a file has while a recovery is under way, or its second one.
    pub(super) fn for_now(&self, file: FileId, second: bool) -> Vec<u8> {
        let uuid = &self.layout.uuid.0;
        let log = u32::from_be_bytes([uuid[0], uuid[1], uuid[2], uuid[3]]);
        let end = if second { "~" } else { "" };
        format!(".rem-recovering-{log:08x}-{}{end}", file.0).into_bytes()
    }

    /// Why a file was not looked for everywhere.
    pub(super) fn refusal(&self, file: FileId) -> Option<&str> {
        self.refused.get(&file).map(String::as_str)
    }

    /// All that were found by now.
    pub(super) fn all(&self) -> impl Iterator<Item = (FileId, &Found<F::Node>)> {
        self.found.iter().filter_map(|(file, found)| Some((*file, found.as_ref()?)))
    }

    /// Whether this is a file that had a name as the log knows: so nobody else has put it there.
    pub(super) fn had(&self, about: &About, place: &(FileId, Vec<u8>)) -> bool {
        let known = self.all().filter(|(_, known)| known.about.is_same(about));
        known.map(|(file, _)| file).any(|file| {
            let path = self.identity(file).map(|identity| identity.path).unwrap_or_default();
            let opened = split(&path).is_some_and(|(parent, name)| {
                name == place.1 && self.identity(place.0).is_some_and(|directory| directory.path == parent)
            });
            opened || self.names.places.get(&file).is_some_and(|places| places.contains(place))
        })
    }

    /// Where a file is now.
    pub(super) fn put(&mut self, file: FileId, found: Found<F::Node>) {
        self.found.insert(file, Some(found));
    }

    pub(super) fn find(&mut self, file: FileId) -> io::Result<Option<Found<F::Node>>> {
        if let Some(known) = self.found.get(&file) {
            return Ok(known.clone());
        }
        // Also for who asks meanwhile: a directory is not found by a name that it has itself.
        self.found.insert(file, None);
        if self.depth > DEPTH_MAX {
            return Ok(None);
        }
        self.depth += 1;
        let found = match self.look(file) {
            Ok(None) => self.look_for_made(file),
            found => found,
        };
        self.depth -= 1;
        self.found.insert(file, found?);
        Ok(self.found[&file].clone())
    }

    fn look(&mut self, file: FileId) -> io::Result<Option<Found<F::Node>>> {
        let Some(identity) = self.identity(file) else { return Ok(None) };
        if let Some(found) = self.at_path(&identity, &identity.path)? {
            return Ok(Some(found));
        }
        for (directory, name) in self.names.places.get(&file).cloned().unwrap_or_default() {
            let Some(directory) = self.find(directory)?.filter(|found| found.about.kind == Kind::Directory)
            else {
                continue;
            };
            for name in [name, self.for_now(file, false)] {
                if let Some(found) = self.there(&directory.node, &name)?
                    && (found.about.is(&identity) || self.is_made_now(file, &name, &found))
                {
                    return Ok(Some(found));
                }
            }
        }
        if let Some(found) = self.in_directories(&identity)? {
            return Ok(Some(found));
        }
        if identity.handle.is_empty() {
            return Ok(None);
        }
        match self.files.by_handle(&identity) {
            Ok(None) => {
                self.stale.insert(file);
                Ok(None)
            }
            Ok(Some((node, path))) => {
                let about = self.files.about(&node)?;
                if !about.is(&identity) {
                    return Ok(None);
                }
                let place = self.at_path(&identity, &path)?.and_then(|found| found.place);
                Ok(Some(Found { node, about, place }))
            }
            Err(error) => {
                let why = match error.kind() {
                    io::ErrorKind::PermissionDenied => {
                        "to look for it by its handle takes the right to pass any directory (CAP_DAC_READ_SEARCH): run as root".to_owned()
                    }
                    _ => format!("it cannot be looked for by its handle: {error}"),
                };
                self.refused.insert(file, why);
                Ok(None)
            }
        }
    }

    /// What has the inode of an identity in one of the directories that have a number in the log, and are where they were, or where its entries say.
    fn in_directories(&mut self, identity: &Identity) -> io::Result<Option<Found<F::Node>>> {
        if self.listed.is_none() {
            // Of who asks meanwhile nothing is known yet.
            self.listed = Some(BTreeMap::new());
            let (mut directories, mut inodes) = (Vec::new(), BTreeSet::new());
            for known in (0..self.layout.geometry.files).filter_map(|file| self.identity(FileId(file))) {
                inodes.insert(known.inode);
                // One that cannot be looked at is no reason to recover nothing.
                if let Ok(Some(node)) = self.files.directory(&known.path)
                    && self.files.about(&node).is_ok_and(|about| about.is(&known))
                {
                    directories.push(node);
                }
            }
            let named: BTreeSet<FileId> = self.names.means.keys().map(|(directory, _)| *directory).collect();
            for file in named {
                let found = self.find(file)?.filter(|found| found.about.kind == Kind::Directory);
                directories.extend(found.map(|found| found.node));
            }
            let mut listed = Listed::new();
            for directory in directories {
                // There may be more of them than there is memory.
                self.files.list(&directory, &mut |inode, name| {
                    if inodes.contains(&inode) {
                        listed.entry(inode).or_default().push((directory.clone(), name.to_vec()));
                    }
                })?;
            }
            self.listed = Some(listed);
        }
        let listed = self.listed.as_ref().and_then(|listed| listed.get(&identity.inode));
        for (directory, name) in listed.cloned().unwrap_or_default() {
            if let Some(found) = self.there(&directory, &name)?
                && found.about.is(identity)
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// A directory or a link that has its name, and is no file that was lost: what has no second name was put there by a recovery that was cut short.
    fn look_for_made(&mut self, file: FileId) -> io::Result<Option<Found<F::Node>>> {
        let Some(made) = self.names.made.get(&file).cloned() else { return Ok(None) };
        for (directory, name) in self.names.wanted(file) {
            let Some(directory) = self.find(directory)? else { continue };
            let Some(there) = self.there(&directory.node, &name)? else { continue };
            let is_it = match (&made, there.about.kind) {
                (Made::Symlink { target }, Kind::Symlink) => self.files.target(&there.node)? == *target,
                (Made::Node { mode }, Kind::Directory) => kind_of(*mode) == Kind::Directory,
                _ => false,
            };
            if is_it {
                return Ok(Some(there));
            }
        }
        Ok(None)
    }

    /// What this recovery, or one before it, made in place of a file that was lost.
    pub(super) fn is_made_now(&self, file: FileId, name: &[u8], found: &Found<F::Node>) -> bool {
        let made = match self.names.made.get(&file) {
            Some(Made::Symlink { .. }) => Kind::Symlink,
            Some(Made::Node { mode }) => kind_of(*mode),
            None => return false,
        };
        name == self.for_now(file, false) && found.about.kind == made && found.about.is_own
    }

    /// The file of an identity, if it is at that path.
    fn at_path(&self, identity: &Identity, path: &[u8]) -> io::Result<Option<Found<F::Node>>> {
        let Some((parent, name)) = split(path) else { return Ok(None) };
        if let Some(directory) = self.files.directory(parent)?
            && let Some(found) = self.there(&directory, name)?
            && found.about.is(identity)
        {
            return Ok(Some(found));
        }
        // A directory may be found by a link, as nothing is made or taken away at its own name.
        let Some(node) = self.files.directory(path)? else { return Ok(None) };
        let about = self.files.about(&node)?;
        Ok(about.is(identity).then_some(Found { node, about, place: None }))
    }

    /// What has a name in a directory.
    pub(super) fn there(&self, directory: &F::Node, name: &[u8]) -> io::Result<Option<Found<F::Node>>> {
        if !is_name(name) {
            return Ok(None);
        }
        let Some(node) = self.files.named(directory, name)? else { return Ok(None) };
        let about = self.files.about(&node)?;
        Ok(Some(Found { node, about, place: Some((directory.clone(), name.to_vec())) }))
    }

    /// Looks which names have come to mean something else behind all that counts: the file system has kept a change whose entry the crash has taken. A file that has a name which the log
    /// does not know of it came by that then, as all that it could have before are known, but where it was linked.
    pub(super) fn look_for_newer(&mut self) -> io::Result<()> {
        let mut known: BTreeMap<u64, Vec<(FileId, Identity)>> = BTreeMap::new();
        for file in (0..self.layout.geometry.files).map(FileId) {
            if let Some(identity) = self.identity(file) {
                known.entry(identity.inode).or_default().push((file, identity));
            }
        }
        for ((within, name), means) in self.names.means.clone() {
            let Some(directory) = self.find(within)?.filter(|found| found.about.kind == Kind::Directory)
            else {
                continue;
            };
            let mut newer = false;
            match (self.there(&directory.node, &name)?, means) {
                (Some(there), means) => {
                    for (other, identity) in known.get(&there.about.inode).into_iter().flatten() {
                        newer |= means != Some(*other)
                            && there.about.is(identity)
                            && self.is_newer(*other, &there)?;
                    }
                }
                (None, Some(file)) => {
                    if let Some(found) = self.find(file)? {
                        newer = self.is_newer(file, &found)?;
                    }
                }
                (None, None) => {}
            }
            if newer {
                self.newer.insert((within, name));
            }
        }
        Ok(())
    }

    /// Whether a file has come to where it was found behind all that counts.
    fn is_newer(&mut self, file: FileId, found: &Found<F::Node>) -> io::Result<bool> {
        let Some((directory, name)) = &found.place else { return Ok(false) };
        let for_now = [false, true].map(|second| self.for_now(file, second));
        if self.names.linked.contains(&file) || for_now.contains(name) {
            return Ok(false);
        }
        let here = self.files.about(directory)?;
        let path = self.identity(file).map(|identity| identity.path).unwrap_or_default();
        if let Some((parent, last)) = split(&path)
            && last == name
            && let Some(parent) = self.files.directory(parent)?
            && self.files.about(&parent)?.is_same(&here)
        {
            return Ok(false);
        }
        for (within, known) in self.names.places.get(&file).cloned().unwrap_or_default() {
            if known == *name && self.find(within)?.is_some_and(|within| within.about.is_same(&here)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The names of a file that are to be brought about, if they are not there.
    pub(super) fn due(&self, file: FileId) -> Vec<(FileId, Vec<u8>)> {
        let mut due = self.names.due(file);
        due.retain(|name| !self.newer.contains(name));
        due
    }

    /// Whether a file has been removed behind all that counts: its handle leads to nothing, on the file system that it was on. Where something
    /// has its name that the log does not know, as after files were brought back from a copy of theirs, somebody has to decide.
    pub(super) fn is_removed(&self, file: FileId) -> io::Result<bool> {
        let Some(identity) = self.identity(file).filter(|_| self.stale.contains(&file)) else {
            return Ok(false);
        };
        let Some((parent, name)) = split(&identity.path) else { return Ok(false) };
        let Some(parent) = self.files.directory(parent)? else { return Ok(false) };
        let device = self.files.about(&parent)?.device;
        if let Some(there) = self.there(&parent, name)?
            && !self.all().any(|(_, known)| known.about.is_same(&there.about))
        {
            return Ok(false);
        }
        // The number may be another one after a restart; then something else of the log is there.
        Ok(device == identity.device || self.all().any(|(_, known)| known.about.device == device))
    }

    /// Whether names say that a file is gone in the end: it was unlinked, or something else was put in its place.
    pub(super) fn is_gone(&self, file: FileId) -> bool {
        let means = &self.names.means;
        // Who was not looked for everywhere may have names that no entry tells of, but if it was made by one.
        let is_known = self.names.made.contains_key(&file) || !self.refused.contains_key(&file);
        if self.names.wanted(file).iter().any(|name| !is_known || !self.newer.contains(name)) {
            return false;
        }
        let named = self.names.places.contains_key(&file);
        let path = self.identity(file).map(|identity| identity.path).unwrap_or_default();
        let Some((parent, name)) = split(&path) else { return named };
        let replaced =
            |directory: &FileId| self.identity(*directory).is_some_and(|directory| directory.path == parent);
        named || means.keys().any(|(directory, other)| other == name && replaced(directory))
    }
}

/// The kind of what a mode makes.
pub(super) const fn kind_of(mode: u32) -> Kind {
    match mode & 0o170_000 {
        0o100_000 | 0 => Kind::File,
        0o040_000 => Kind::Directory,
        _ => Kind::Other,
    }
}
