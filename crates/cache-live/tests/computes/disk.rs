//! A file system in memory, of which a crash keeps what was synced, and of the rest any mixture: of a file's bytes each piece of any time since it was synced, of names each
//! change or not.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;

use remanence_cache::entry::Mtime;
use remanence_cache::recovery::Made;
use remanence_cache::table::Identity;
use remanence_cache_live::recover::files::{About, Files, Kind};
use remanence_pmem::crash_image::Choices;

/// Bytes that come to the disk wholly or not at all.
const SECTOR: usize = 512;

/// The number of an inode.
pub(crate) type Inode = u64;

#[derive(Clone, Debug)]
struct Content {
    bytes: Vec<u8>,
    mtime: u64,
}

#[derive(Clone, Debug)]
struct File {
    kind: Kind,
    born: u64,
    changed: u64,
    target: Vec<u8>,
    /// What it was besides its bytes since it was synced, the last one now.
    attributes: Vec<[u32; 3]>,
    /// What it was since it was synced, the last one now.
    versions: Vec<Content>,
}

/// What a name came to mean, in a directory.
type Change = (Inode, Vec<u8>, Option<Inode>);

#[derive(Clone, Debug, Default)]
struct State {
    files: BTreeMap<Inode, File>,
    /// What names mean, of each directory.
    names: BTreeMap<(Inode, Vec<u8>), Inode>,
    durable: BTreeMap<(Inode, Vec<u8>), Inode>,
    /// Changes of names that no sync has made durable; what is in one is there together.
    pending: Vec<Vec<Change>>,
    clock: u64,
}

/// A file system.
#[derive(Debug)]
pub(crate) struct Disk {
    state: RefCell<State>,
    /// So many more changes, and everything fails; once only, if it is to go on.
    left: Cell<u64>,
    only_once: Cell<bool>,
    /// Changes until now.
    pub(crate) steps: Cell<u64>,
    /// Whether files may be looked for by their handle.
    pub(crate) handles: Cell<bool>,
}

/// What a tree of names has: contents, which names are of one file, and its mode and owners, where they were said.
pub(crate) type Tree = BTreeMap<Vec<u8>, (Kind, Vec<u8>, Vec<Vec<u8>>, [u32; 3])>;

const ROOT: Inode = 1;

impl Disk {
    /// One with a directory `/data`.
    pub(crate) fn new() -> Self {
        let disk = Self {
            state: RefCell::default(),
            left: Cell::new(u64::MAX),
            only_once: Cell::new(false),
            steps: Cell::new(0),
            handles: Cell::new(false),
        };
        disk.state.borrow_mut().clock = 1_000_000_000_000;
        disk.new_file(Kind::Directory, &[]);
        disk.make(&ROOT, b"data", &Made::Node { mode: 0o040_755 }).unwrap();
        disk.sync(&ROOT).unwrap();
        disk
    }

    /// Fails after so many changes, for ever or once.
    pub(crate) fn fail_after(&self, changes: u64, only_once: bool) {
        self.left.set(changes);
        self.only_once.set(only_once);
    }

    pub(crate) fn wait(&self, nanoseconds: u64) {
        self.state.borrow_mut().clock += nanoseconds;
    }

    pub(crate) fn now(&self) -> Mtime {
        Mtime(self.state.borrow().clock)
    }

    pub(crate) fn identity(&self, inode: Inode, path: &str) -> Identity {
        let about = self.about(&inode).unwrap();
        let handle = inode.to_le_bytes().to_vec();
        let (device, born) = (about.device, about.born);
        Identity { device, inode, born, handle_type: 1, handle, path: path.as_bytes().to_vec() }
    }

    fn step(&self) -> io::Result<()> {
        if self.left.get() == 0 {
            if self.only_once.get() {
                self.left.set(u64::MAX);
            }
            return Err(io::Error::other("input/output error"));
        }
        self.left.set(self.left.get() - 1);
        self.steps.set(self.steps.get() + 1);
        self.state.borrow_mut().clock += 1000;
        Ok(())
    }

    fn new_file(&self, kind: Kind, target: &[u8]) -> Inode {
        let mut state = self.state.borrow_mut();
        let inode = state.files.keys().last().map_or(ROOT, |last| last + 1);
        let clock = state.clock;
        let content = Content { bytes: Vec::new(), mtime: clock };
        let (target, attributes, versions) = (target.to_vec(), vec![[0; 3]], vec![content]);
        let file = File { kind, born: clock, changed: clock, target, attributes, versions };
        state.files.insert(inode, file);
        inode
    }

    fn change_names(&self, changes: &[Change]) {
        let mut state = self.state.borrow_mut();
        let clock = state.clock;
        for (directory, name, means) in changes {
            let name = (*directory, name.clone());
            state.names.remove(&name);
            // That of what lost a name is as durable as the loss is.
            if let Some(inode) = means {
                state.files.get_mut(inode).unwrap().changed = clock;
                state.names.insert(name, *inode);
            }
        }
        state.pending.push(changes.to_vec());
    }

    fn change(&self, inode: Inode, change: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.step()?;
        let mut state = self.state.borrow_mut();
        let clock = state.clock;
        let file = state.files.get_mut(&inode).unwrap();
        let mut content = file.versions.last().unwrap().clone();
        change(&mut content.bytes);
        content.mtime = clock;
        file.changed = clock;
        file.versions.push(content);
        Ok(())
    }

    /// What a machine finds that went down now.
    pub(crate) fn crash(&self, choices: &mut dyn Choices) -> Self {
        let mut state = self.state.borrow().clone();
        for changes in std::mem::take(&mut state.pending) {
            let is_directory = |inode: &Inode| state.files[inode].kind == Kind::Directory;
            let together = changes.iter().any(|(.., means)| means.as_ref().is_some_and(is_directory));
            let all = choices.pick(2) == 0;
            for (directory, name, means) in changes {
                let keeps = if together { all } else { choices.pick(2) == 0 };
                if !keeps {
                    continue;
                }
                match means {
                    Some(inode) => drop(state.durable.insert((directory, name), inode)),
                    None => drop(state.durable.remove(&(directory, name))),
                }
            }
        }
        // What has no name is gone, with all that was in it, and its number is used again.
        loop {
            let named: Vec<Inode> = state.durable.values().copied().chain([ROOT]).collect();
            state.files.retain(|inode, _| named.contains(inode));
            let before = state.durable.len();
            state.durable.retain(|(directory, _), _| state.files.contains_key(directory));
            if state.durable.len() == before {
                break;
            }
        }
        state.names = state.durable.clone();
        for file in state.files.values_mut().filter(|file| file.versions.len() > 1) {
            let versions = &file.versions;
            let mut content = versions[choices.pick(versions.len())].clone();
            for at in (0..content.bytes.len()).step_by(SECTOR) {
                let from = &versions[choices.pick(versions.len())].bytes;
                let end = content.bytes.len().min(at + SECTOR);
                for n in at..end {
                    content.bytes[n] = from.get(n).copied().unwrap_or(0);
                }
            }
            content.mtime = versions[choices.pick(versions.len())].mtime;
            file.versions = vec![content];
        }
        for file in state.files.values_mut() {
            file.attributes = vec![file.attributes[choices.pick(file.attributes.len())]];
        }
        let handles = self.handles.clone();
        Self {
            state: RefCell::new(state),
            left: Cell::new(u64::MAX),
            only_once: Cell::new(false),
            steps: Cell::new(0),
            handles,
        }
    }

    /// Two names mean each what the other one did, both at once.
    pub(crate) fn exchange(&self, from: (&Inode, &[u8]), to: (&Inode, &[u8])) -> io::Result<()> {
        self.step()?;
        let [one, other] = [from, to].map(|(directory, name)| self.named(directory, name));
        let (one, other) = (one?, other?);
        self.change_names(&[(*from.0, from.1.to_vec(), other), (*to.0, to.1.to_vec(), one)]);
        Ok(())
    }

    /// All names below `/data`, and what they mean.
    pub(crate) fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut paths: BTreeMap<Inode, Vec<Vec<u8>>> = BTreeMap::new();
        let mut below = vec![(2, b"/data".to_vec())];
        let state = self.state.borrow();
        while let Some((directory, path)) = below.pop() {
            for ((_, name), inode) in state.names.range((directory, Vec::new())..(directory + 1, Vec::new()))
            {
                let path = [&path[..], b"/", name].concat();
                paths.entry(*inode).or_default().push(path.clone());
                if state.files[inode].kind == Kind::Directory {
                    below.push((*inode, path));
                }
            }
        }
        for (inode, mut paths) in paths {
            paths.sort();
            let file = &state.files[&inode];
            let bytes = [&file.versions.last().unwrap().bytes[..], &file.target].concat();
            for path in &paths {
                let attributes = file.attributes[file.attributes.len() - 1];
                tree.insert(path.clone(), (file.kind, bytes.clone(), paths.clone(), attributes));
            }
        }
        tree
    }

    fn path_of(&self, inode: Inode) -> Option<Vec<u8>> {
        let state = self.state.borrow();
        let mut path = Vec::new();
        let mut at = inode;
        while at != ROOT {
            let ((directory, name), _) = state.names.iter().find(|(_, means)| **means == at)?;
            path = [b"/", &name[..], &path].concat();
            at = *directory;
        }
        Some(path)
    }
}

impl Files for Disk {
    type Node = Inode;

    fn directory(&self, path: &[u8]) -> io::Result<Option<Inode>> {
        let state = self.state.borrow();
        let mut at = ROOT;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            match state.names.get(&(at, name.to_vec())) {
                Some(next) => at = *next,
                None => return Ok(None),
            }
        }
        Ok((state.files[&at].kind == Kind::Directory).then_some(at))
    }

    fn by_handle(&self, identity: &Identity) -> io::Result<Option<(Inode, Vec<u8>)>> {
        if !self.handles.get() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let inode = u64::from_le_bytes(identity.handle[..].try_into().unwrap());
        let is_there = self.state.borrow().files.contains_key(&inode);
        Ok(self.path_of(inode).filter(|_| is_there).map(|path| (inode, path)))
    }

    fn named(&self, directory: &Inode, name: &[u8]) -> io::Result<Option<Inode>> {
        assert!(!name.contains(&b'/') && name != b".." && name != b".", "no name");
        Ok(self.state.borrow().names.get(&(*directory, name.to_vec())).copied())
    }

    fn list(&self, directory: &Inode, told: &mut dyn FnMut(u64, &[u8])) -> io::Result<()> {
        let state = self.state.borrow();
        let names = state.names.iter().filter(|((parent, _), _)| parent == directory);
        names.for_each(|((_, name), inode)| told(*inode, name));
        Ok(())
    }

    fn about(&self, node: &Inode) -> io::Result<About> {
        let state = self.state.borrow();
        let file = state.files.get(node).ok_or(io::ErrorKind::NotFound)?;
        let content = file.versions.last().unwrap();
        Ok(About {
            device: 1,
            inode: *node,
            born: file.born,
            mtime: Mtime(content.mtime),
            changed: file.changed,
            len: content.bytes.len() as u64,
            kind: file.kind,
            is_own: true,
        })
    }

    fn target(&self, node: &Inode) -> io::Result<Vec<u8>> {
        Ok(self.state.borrow().files[node].target.clone())
    }

    fn read(&self, node: &Inode, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let state = self.state.borrow();
        let bytes = &state.files[node].versions.last().unwrap().bytes;
        let from = bytes.get(offset as usize..).unwrap_or_default();
        let len = from.len().min(into.len());
        into[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }

    fn write(&self, node: &Inode, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(*node, |content| {
            let end = offset as usize + bytes.len();
            content.resize(content.len().max(end), 0);
            content[offset as usize..end].copy_from_slice(bytes);
        })
    }

    fn truncate(&self, node: &Inode, len: u64) -> io::Result<()> {
        self.change(*node, |content| content.resize(len as usize, 0))
    }

    fn allocate(&self, _: &Inode, _: u32, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn attributes(&self, node: &Inode, mode: u32, user: u32, group: u32) -> io::Result<()> {
        self.step()?;
        self.state.borrow_mut().files.get_mut(node).unwrap().attributes.push([mode, user, group]);
        Ok(())
    }

    fn stamp(&self, node: &Inode, mtime: Mtime) -> io::Result<()> {
        self.change(*node, |_| ())?;
        let mut state = self.state.borrow_mut();
        state.files.get_mut(node).unwrap().versions.last_mut().unwrap().mtime = mtime.0;
        Ok(())
    }

    fn sync(&self, node: &Inode) -> io::Result<()> {
        self.step()?;
        let mut state = self.state.borrow_mut();
        let file = state.files.get_mut(node).unwrap();
        let last = file.versions.pop().unwrap();
        file.versions = vec![last];
        file.attributes.drain(..file.attributes.len() - 1);
        let (synced, pending): (Vec<_>, Vec<_>) = std::mem::take(&mut state.pending)
            .into_iter()
            .partition(|changes| changes.iter().any(|(directory, ..)| directory == node));
        state.pending = pending;
        for (directory, name, means) in synced.into_iter().flatten() {
            match means {
                Some(inode) => drop(state.durable.insert((directory, name), inode)),
                None => drop(state.durable.remove(&(directory, name))),
            }
        }
        Ok(())
    }

    fn make(&self, directory: &Inode, name: &[u8], made: &Made) -> io::Result<()> {
        if self.named(directory, name)?.is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.step()?;
        let inode = match made {
            Made::Symlink { target } => self.new_file(Kind::Symlink, target),
            Made::Node { mode } if mode & 0o170_000 == 0o040_000 => self.new_file(Kind::Directory, &[]),
            Made::Node { .. } => self.new_file(Kind::File, &[]),
        };
        self.change_names(&[(*directory, name.to_vec(), Some(inode))]);
        Ok(())
    }

    fn link(&self, from: (&Inode, &[u8]), to: (&Inode, &[u8])) -> io::Result<()> {
        let inode = self.named(from.0, from.1)?.ok_or(io::ErrorKind::NotFound)?;
        if self.named(to.0, to.1)?.is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.step()?;
        assert_ne!(self.about(&inode)?.kind, Kind::Directory, "a directory has one name");
        self.change_names(&[(*to.0, to.1.to_vec(), Some(inode))]);
        Ok(())
    }

    fn rename(&self, from: (&Inode, &[u8]), to: (&Inode, &[u8])) -> io::Result<()> {
        let inode = self.named(from.0, from.1)?.ok_or(io::ErrorKind::NotFound)?;
        self.step()?;
        // Two names of one file: nothing happens.
        if self.named(to.0, to.1)? != Some(inode) {
            self.change_names(&[(*to.0, to.1.to_vec(), Some(inode)), (*from.0, from.1.to_vec(), None)]);
        }
        Ok(())
    }

    fn unlink(&self, directory: &Inode, name: &[u8], _: bool) -> io::Result<()> {
        let inode = self.named(directory, name)?.ok_or(io::ErrorKind::NotFound)?;
        if self.state.borrow().names.keys().any(|(parent, _)| *parent == inode) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        self.step()?;
        self.change_names(&[(*directory, name.to_vec(), None)]);
        Ok(())
    }
}
