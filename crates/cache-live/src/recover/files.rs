//! The few calls that a recovery makes on files: what a file system is to it, and a simulated one in its tests.

use std::fmt::Debug;
use std::io;

use remanence_cache::entry::Mtime;
use remanence_cache::recovery::Made;
use remanence_cache::table::Identity;

/// What a name leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory, which has names.
    Directory,
    /// A symbolic link, which nobody follows.
    Symlink,
    /// A device, a pipe or a socket, which nobody opens.
    Other,
}

/// What a file system says of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct About {
    /// The number of its device.
    pub device: u64,
    /// The number of its inode.
    pub inode: u64,
    /// When it was made, in nanoseconds since 1970; 0 where the file system does not say.
    pub born: u64,
    /// When its bytes were last changed.
    pub mtime: Mtime,
    /// When anything of it was last changed, its names too, in nanoseconds since 1970.
    pub changed: u64,
    /// Bytes of it.
    pub len: u64,
    /// What it is.
    pub kind: Kind,
    /// Whether it belongs to whoever runs this.
    pub is_own: bool,
}

impl About {
    /// Whether it is the file of this identity. A device's number may be another one after a restart, so it counts only where the file system does not say
    /// when a file was made, to the nanosecond.
    #[must_use]
    pub const fn is(&self, identity: &Identity) -> bool {
        let same = if identity.born == 0 || self.born == 0 {
            self.device == identity.device
        } else {
            self.born == identity.born
        };
        same && self.inode == identity.inode
    }

    /// Whether both are one file, found now.
    #[must_use]
    pub const fn is_same(&self, other: &Self) -> bool {
        self.device == other.device && self.inode == other.inode
    }
}

/// A file system. Names are those of a directory: none has a slash, and none is followed if it is a symbolic link.
pub trait Files {
    /// A file or directory that was found, and stays the same one whatever becomes of its names.
    type Node: Clone + Debug;

    /// The directory at a path, whatever links lead there.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn directory(&self, path: &[u8]) -> io::Result<Option<Self::Node>>;

    /// What the file handle of an identity leads to, and its path, if it has one.
    ///
    /// # Errors
    /// It is not permitted ([`PermissionDenied`](io::ErrorKind::PermissionDenied)), or the file system knows no handles.
    fn by_handle(&self, identity: &Identity) -> io::Result<Option<(Self::Node, Vec<u8>)>>;

    /// What has a name.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn named(&self, directory: &Self::Node, name: &[u8]) -> io::Result<Option<Self::Node>>;

    /// Tells each name in a directory, with the number of the inode that has it. Nothing, of one that nobody may read.
    ///
    /// # Errors
    /// It cannot be read.
    fn list(&self, directory: &Self::Node, told: &mut dyn FnMut(u64, &[u8])) -> io::Result<()>;

    /// What is known of a file.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn about(&self, node: &Self::Node) -> io::Result<About>;

    /// What a symbolic link says.
    ///
    /// # Errors
    /// It cannot be read.
    fn target(&self, node: &Self::Node) -> io::Result<Vec<u8>>;

    /// Reads bytes; fewer only at the end of the file.
    ///
    /// # Errors
    /// It cannot be read.
    fn read(&self, node: &Self::Node, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Writes bytes, all of them.
    ///
    /// # Errors
    /// Some were not written.
    fn write(&self, node: &Self::Node, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Cuts or extends a file.
    ///
    /// # Errors
    /// It was not.
    fn truncate(&self, node: &Self::Node, len: u64) -> io::Result<()>;

    /// `fallocate`.
    ///
    /// # Errors
    /// The file system does not do so.
    fn allocate(&self, node: &Self::Node, mode: u32, offset: u64, len: u64) -> io::Result<()>;

    /// Sets whose a file is, as far as whoever runs this may, and what they may do with it.
    ///
    /// # Errors
    /// Its permissions were not set.
    fn attributes(&self, node: &Self::Node, mode: u32, user: u32, group: u32) -> io::Result<()>;

    /// Sets when the bytes of a file were last changed.
    ///
    /// # Errors
    /// It was not set.
    fn stamp(&self, node: &Self::Node, mtime: Mtime) -> io::Result<()>;

    /// Makes a file, or the names of a directory, durable.
    ///
    /// # Errors
    /// They are not.
    fn sync(&self, node: &Self::Node) -> io::Result<()>;

    /// Makes something under a name that nothing has.
    ///
    /// # Errors
    /// Something has it ([`AlreadyExists`](io::ErrorKind::AlreadyExists)), or it was not made.
    fn make(&self, directory: &Self::Node, name: &[u8], made: &Made) -> io::Result<()>;

    /// Gives what has a name another one, which nothing has.
    ///
    /// # Errors
    /// Something has it ([`AlreadyExists`](io::ErrorKind::AlreadyExists)), or it was not given.
    fn link(&self, from: (&Self::Node, &[u8]), to: (&Self::Node, &[u8])) -> io::Result<()>;

    /// Gives what has a name another one instead, in place of what had that.
    ///
    /// # Errors
    /// It was not given.
    fn rename(&self, from: (&Self::Node, &[u8]), to: (&Self::Node, &[u8])) -> io::Result<()>;

    /// Takes a name away.
    ///
    /// # Errors
    /// It was not; a directory that is not empty keeps it.
    fn unlink(&self, directory: &Self::Node, name: &[u8], is_directory: bool) -> io::Result<()>;
}
