//! Brings about what names mean in the end, so that it can be cut short anywhere and begun anew, and so that no file loses its last name on the way.
//!
//! 1. Each file that is to get a name gets one for the time being, in the directory of that name; a directory, which can have one name only, is moved there.
//!    All that is synced.
//! 2. The names are given, in place of what had them. All that is synced.
//! 3. Names that mean nothing are taken away, and the names for the time being, but for those of files that this recovery has made.
//!
//! Names in a directory that the kernel has synced since ([settled](remanence_cache::op::Op::Settled)) are none of this.
//!
//! What the log does not know is left alone, and told, where it came after the last change of its name; what was there before was replaced by that change.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use remanence_cache::entry::Mtime;
use remanence_cache::recovery::{Made, Names};
use remanence_cache::table::FileId;
use remanence_pmem::Medium;

use super::files::{About, Files, Kind};
use super::find::{Finder, Found, is_name};
use super::{Error, NEWER, Name, NameState};

/// A name that is to be given.
struct Need<N> {
    directory: Found<N>,
    name: Vec<u8>,
    file: FileId,
    shown: String,
}

/// Directories whose names have changed.
struct Changed<N>(BTreeMap<(u64, u64), (N, String)>);

impl<N: Clone> Changed<N> {
    fn note(&mut self, directory: &N, about: &About, shown: &str) {
        self.0.entry((about.device, about.inode)).or_insert_with(|| (directory.clone(), shown.to_owned()));
    }

    fn sync<F: Files<Node = N>>(&mut self, files: &F) -> Result<(), Error> {
        for (node, shown) in std::mem::take(&mut self.0).into_values() {
            files.sync(&node).map_err(Error::of("synced", shown))?;
        }
        Ok(())
    }
}

/// Brings about names; or says only what it would do.
pub(super) struct Namer<'b, 'a, M, F: Files> {
    pub(super) finder: &'b mut Finder<'a, M, F>,
    pub(super) names: &'b Names,
    pub(super) dry: bool,
    pub(super) told: Vec<Name>,
    /// What this or an earlier recovery has made.
    pub(super) made: BTreeSet<FileId>,
    /// Files that did not get a name which they were to get.
    left: BTreeSet<FileId>,
    changed: Changed<F::Node>,
    depth: u32,
}

impl<'b, 'a, M: Medium, F: Files> Namer<'b, 'a, M, F> {
    pub(super) fn new(finder: &'b mut Finder<'a, M, F>, names: &'b Names, dry: bool) -> Self {
        let changed = Changed(BTreeMap::new());
        Self {
            finder,
            names,
            dry,
            told: Vec::new(),
            made: BTreeSet::new(),
            left: BTreeSet::new(),
            changed,
            depth: 0,
        }
    }

    pub(super) fn run(&mut self) -> Result<(), Error> {
        let mut needs = Vec::new();
        let names = self.names;
        // What the kernel has synced since means what it means.
        let newer = self.finder.newer.clone();
        let due = || {
            let due = names.means.iter().filter(|(name, _)| !names.settled.contains(name));
            due.filter(|(name, _)| !newer.contains(name))
        };
        for (directory, name) in newer.iter().filter(|name| names.means.contains_key(name)) {
            self.tell(self.finder.shown_name(*directory, name), NameState::Left(NEWER));
        }
        for ((directory, name), means) in due() {
            let shown = self.finder.shown_name(*directory, name);
            if !is_name(name) {
                self.left.extend(means);
                self.tell(shown, NameState::Left("no directory can have such a name"));
            } else if let Some(file) = *means {
                needs.extend(self.need(*directory, name, file, shown)?);
            }
        }
        if !self.dry {
            self.sync_all()?;
            for need in &needs {
                self.give(need)?;
            }
            self.sync_all()?;
        }
        for ((directory, name), means) in due() {
            if means.is_none() && is_name(name) {
                self.take(*directory, name)?;
            }
        }
        if !self.dry {
            self.sync_all()?;
            let made = self.made.clone();
            self.clear(|file| !made.contains(&file))?;
            self.sync_all()?;
        }
        Ok(())
    }

    /// Syncs each directory that names of the log are in: also what is visible may have been made by somebody who died, or failed, before he synced it.
    fn sync_all(&mut self) -> Result<(), Error> {
        let directories: BTreeSet<FileId> =
            self.names.means.keys().map(|(directory, _)| *directory).collect();
        for file in directories {
            let shown = self.finder.shown(file);
            let found = self.finder.find(file).map_err(Error::of("looked at", shown.clone()))?;
            if let Some(found) = found.filter(|found| found.about.kind == Kind::Directory) {
                self.changed.note(&found.node, &found.about, &shown);
            }
        }
        self.changed.sync(self.finder.files)
    }

    /// A file does not get a name: then it keeps those that it has.
    fn leave(&mut self, file: FileId, name: String, state: NameState) {
        self.left.insert(file);
        self.tell(name, state);
    }

    fn tell(&mut self, name: String, state: NameState) {
        self.told.push(Name { name, state });
    }

    /// Whether a name lacks its file; then that has one for the time being.
    fn need(
        &mut self,
        directory: FileId,
        name: &[u8],
        file: FileId,
        shown: String,
    ) -> Result<Option<Need<F::Node>>, Error> {
        let bad = |shown: &str| Error::of("looked at", shown.to_owned());
        let place = (directory, name.to_vec());
        if self.dry && self.finder.find(directory).map_err(bad(&shown))?.is_none() && self.is_made(directory)
        {
            self.tell(shown, NameState::Given);
            return Ok(None);
        }
        let Some(directory) = self.have(directory)?.filter(|found| found.about.kind == Kind::Directory)
        else {
            self.leave(file, shown, NameState::Left("its directory is not found"));
            return Ok(None);
        };
        let there = self.finder.there(&directory.node, name).map_err(bad(&shown))?;
        let found = match self.dry && self.is_made(file) {
            true => self.finder.find(file).map_err(bad(&shown))?,
            false => self.have(file)?,
        };
        if let (Some(there), Some(found)) = (&there, &found)
            && there.about.is_same(&found.about)
        {
            return Ok(None);
        }
        if found.is_none() && !self.is_made(file) {
            self.leave(file, shown, NameState::Left("the file that had it is not found"));
            return Ok(None);
        }
        if let Some(there) = &there {
            let when = self.names.changed.get(&place).copied().unwrap_or(Mtime::UNKNOWN);
            if !self.finder.had(&there.about, &place)
                && (when == Mtime::UNKNOWN || there.about.changed > when.0)
            {
                self.leave(file, shown, NameState::Left("somebody has given it to another file since"));
                return Ok(None);
            }
        }
        if self.dry {
            self.tell(shown, NameState::Given);
            return Ok(None);
        }
        let Some(found) = found else { return Ok(None) };
        let Some(place) = found.place.clone() else {
            self.leave(
                file,
                shown,
                NameState::Left("its file is found by its handle only, and not by a name"),
            );
            return Ok(None);
        };
        let for_now = self.finder.for_now(file, false);
        let has = self.finder.there(&directory.node, &for_now).map_err(bad(&shown))?;
        if !has.is_some_and(|has| has.about.is_same(&found.about)) {
            let (from, to) = ((&place.0, &place.1[..]), (&directory.node, &for_now[..]));
            let files = self.finder.files;
            if found.about.kind == Kind::Directory {
                files.rename(from, to).map_err(Error::of("moved", shown.clone()))?;
                let about = files.about(&place.0).map_err(bad(&shown))?;
                self.changed.note(&place.0, &about, &shown);
                self.finder.put(file, Found { place: Some((directory.node.clone(), for_now)), ..found });
            } else {
                files.link(from, to).map_err(Error::of("given a name", shown.clone()))?;
            }
            self.changed.note(&directory.node, &directory.about, &shown);
        }
        Ok(Some(Need { directory, name: name.to_vec(), file, shown }))
    }

    fn is_made(&self, file: FileId) -> bool {
        self.names.made.contains_key(&file)
    }

    fn give(&mut self, need: &Need<F::Node>) -> Result<(), Error> {
        let Need { directory, name, file, shown } = need;
        let files = self.finder.files;
        let Some(found) = self.finder.find(*file).map_err(Error::of("looked at", shown.clone()))? else {
            return Ok(());
        };
        let first = self.finder.for_now(*file, false);
        let mut from = first.clone();
        if found.about.kind != Kind::Directory {
            // The first stays until the end.
            let second = self.finder.for_now(*file, true);
            match files.link((&directory.node, &first), (&directory.node, &second)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(Error::of("given a name", shown.clone())(error));
                }
                _ => from = second,
            }
        }
        let to = (&directory.node, &name[..]);
        files.rename((&directory.node, &from), to).map_err(Error::of("given its name", shown.clone()))?;
        self.changed.note(&directory.node, &directory.about, shown);
        let place = Some((directory.node.clone(), name.clone()));
        self.finder.put(*file, Found { place, ..found });
        self.tell(shown.clone(), NameState::Given);
        Ok(())
    }

    /// Takes a name away that means nothing, from a file that the log knows.
    fn take(&mut self, directory: FileId, name: &[u8]) -> Result<(), Error> {
        let shown = self.finder.shown_name(directory, name);
        let bad = |shown: &str| Error::of("looked at", shown.to_owned());
        let place = (directory, name.to_vec());
        let Some(directory) = self.finder.find(directory).map_err(bad(&shown))? else { return Ok(()) };
        let Some(there) = self.finder.there(&directory.node, name).map_err(bad(&shown))? else {
            return Ok(());
        };
        if !self.finder.had(&there.about, &place) {
            let when = self.names.changed.get(&place).copied().unwrap_or(Mtime::UNKNOWN);
            let newer = when != Mtime::UNKNOWN && there.about.changed > when.0;
            let why = if newer { NEWER } else { "a file has it that the log does not know by it" };
            self.tell(shown, NameState::Left(why));
            return Ok(());
        }
        let is_it = |(_, known): &(FileId, &Found<F::Node>)| known.about.is_same(&there.about);
        let keeps = self.finder.all().filter(is_it).any(|(file, _)| self.left.contains(&file));
        if keeps {
            self.tell(shown, NameState::Left("the name that its file is to have instead is taken"));
            return Ok(());
        }
        if !self.dry {
            let is_directory = there.about.kind == Kind::Directory;
            match self.finder.files.unlink(&directory.node, name, is_directory) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                    self.tell(shown, NameState::Left("the directory is not empty"));
                    return Ok(());
                }
                other => other.map_err(Error::of("taken away", shown.clone()))?,
            }
            self.changed.note(&directory.node, &directory.about, &shown);
        }
        self.tell(shown, NameState::Taken);
        Ok(())
    }

    /// Takes names for the time being away, of those files.
    pub(super) fn clear(&mut self, of: impl Fn(FileId) -> bool) -> Result<(), Error> {
        for (file, places) in self.names.places.clone() {
            if !of(file) {
                continue;
            }
            for (directory, _) in places {
                let shown = self.finder.shown(directory);
                let bad = |shown: &str| Error::of("looked at", shown.to_owned());
                let Some(directory) = self.finder.find(directory).map_err(bad(&shown))? else { continue };
                if directory.about.kind != Kind::Directory {
                    continue;
                }
                for name in [self.finder.for_now(file, false), self.finder.for_now(file, true)] {
                    let there = self.finder.there(&directory.node, &name).map_err(bad(&shown))?;
                    if there.is_some_and(|there| there.about.kind != Kind::Directory) {
                        let gone = self.finder.files.unlink(&directory.node, &name, false);
                        gone.map_err(Error::of("cleaned up", shown.clone()))?;
                        self.changed.note(&directory.node, &directory.about, &shown);
                    }
                }
            }
        }
        self.changed.sync(self.finder.files)
    }

    /// A file, which is made if its creation was lost.
    fn have(&mut self, file: FileId) -> Result<Option<Found<F::Node>>, Error> {
        let shown = self.finder.shown(file);
        let bad = || Error::of("looked at", shown.clone());
        if let Some(found) = self.finder.find(file).map_err(bad())? {
            if found.place.as_ref().is_some_and(|(_, name)| *name == self.finder.for_now(file, false)) {
                self.made.insert(file);
                if !self.dry && matches!(found.about.kind, Kind::File | Kind::Directory) {
                    self.finder.files.sync(&found.node).map_err(Error::of("synced", shown.clone()))?;
                }
            }
            return Ok(Some(found));
        }
        let Some(made) = self.names.made.get(&file).cloned() else { return Ok(None) };
        if self.depth > 500 || self.dry {
            return Ok(None);
        }
        self.depth += 1;
        let found = self.make(file, &made, &shown);
        self.depth -= 1;
        let found = found?;
        if let Some(found) = &found {
            self.made.insert(file);
            self.finder.put(file, found.clone());
        }
        Ok(found)
    }

    fn make(&mut self, file: FileId, made: &Made, shown: &str) -> Result<Option<Found<F::Node>>, Error> {
        let bad = || Error::of("looked at", shown.to_owned());
        let mut place = None;
        for (directory, name) in self.finder.due(file) {
            if is_name(&name) && place.is_none() {
                place = self.have(directory)?.filter(|found| found.about.kind == Kind::Directory);
            }
        }
        let Some(directory) = place else { return Ok(None) };
        let name = self.finder.for_now(file, false);
        let there = self.finder.there(&directory.node, &name).map_err(bad())?;
        let mut found = there.filter(|found| self.finder.is_made_now(file, &name, found));
        if found.is_none() {
            let made = self.finder.files.make(&directory.node, &name, made);
            made.map_err(Error::of("made", shown.to_owned()))?;
            found = self.finder.there(&directory.node, &name).map_err(bad())?;
        }
        self.changed.note(&directory.node, &directory.about, shown);
        if let Some(found) = &found
            && matches!(found.about.kind, Kind::File | Kind::Directory)
        {
            self.finder.files.sync(&found.node).map_err(Error::of("synced", shown.to_owned()))?;
        }
        Ok(found)
    }
}
