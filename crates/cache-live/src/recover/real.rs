//! The machine's own file systems. A file that was found is held by a descriptor that says where it is and opens nothing (`O_PATH`); it is opened only
//! when its kind and identity are known, so that no pipe or device ever is.
#![expect(unsafe_code, reason = "open_by_handle_at has no safe wrapper")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::{Arc, OnceLock};

use remanence_cache::entry::Mtime;
use remanence_cache::format::Lost;
use remanence_cache::recovery::Made;
use remanence_cache::table::{HANDLE_MAX, Identity};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, StatxFlags, Timespec, Timestamps};

use rustix::process::{Gid, Uid};

use super::files::{About, Files, Kind};

/// The file systems of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFiles;

/// A file or directory that was found.
#[derive(Clone, Debug)]
pub struct Node {
    place: Arc<OwnedFd>,
    /// It is opened when it is needed.
    open: Arc<OnceLock<File>>,
}

impl From<OwnedFd> for Node {
    fn from(fd: OwnedFd) -> Self {
        Self { place: Arc::new(fd), open: Arc::new(OnceLock::new()) }
    }
}

impl Node {
    /// Where the kernel shows what this is.
    fn shown(&self) -> String {
        format!("/proc/self/fd/{}", self.place.as_raw_fd())
    }

    /// The file itself. Only regular files and directories are opened.
    fn open(&self) -> io::Result<&File> {
        if let Some(file) = self.open.get() {
            return Ok(file);
        }
        let flags = match of(self)?.kind {
            Kind::File => OFlags::RDWR,
            Kind::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
            Kind::Symlink | Kind::Other => return Err(io::Error::from(rustix::io::Errno::INVAL)),
        };
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match rustix::fs::open(self.shown(), flags, Mode::empty()) {
            // Its owner wrote to it before he took that right from himself.
            Err(rustix::io::Errno::ACCESS) => {
                let mode = Mode::from_raw_mode(rustix::fs::stat(self.shown())?.st_mode & 0o7777);
                rustix::fs::chmod(self.shown(), mode | Mode::RUSR | Mode::WUSR)?;
                let file = rustix::fs::open(self.shown(), flags, Mode::empty());
                rustix::fs::chmod(self.shown(), mode)?;
                file?
            }
            file => file?,
        };
        Ok(self.open.get_or_init(|| file.into()))
    }

    /// A descriptor to read by, of a regular file or a directory.
    pub(super) fn to_read(&self) -> io::Result<File> {
        match of(self)?.kind {
            Kind::File | Kind::Directory => {}
            Kind::Symlink | Kind::Other => return Err(io::Error::from(rustix::io::Errno::INVAL)),
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        Ok(rustix::fs::open(self.shown(), flags, Mode::empty())?.into())
    }

    fn fd(&self) -> impl AsFd {
        Arc::clone(&self.place)
    }
}

fn nanoseconds(seconds: i64, more: u32) -> u64 {
    u64::try_from(seconds)
        .map_or(0, |seconds| seconds.saturating_mul(1_000_000_000).saturating_add(more.into()))
}

fn of(node: &Node) -> io::Result<About> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = rustix::fs::statx(node.fd(), c"", AtFlags::EMPTY_PATH, wanted)?;
    let mode = u32::from(stat.stx_mode);
    let has_birth = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    let born = if has_birth { nanoseconds(stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec) } else { 0 };
    Ok(About {
        device: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
        inode: stat.stx_ino,
        born,
        mtime: Mtime(nanoseconds(stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec)),
        changed: nanoseconds(stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec),
        len: stat.stx_size,
        kind: match FileType::from_raw_mode(mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            _ => Kind::Other,
        },
        is_own: stat.stx_uid == rustix::process::geteuid().as_raw(),
    })
}

/// Nothing there is no error.
fn found(opened: Result<OwnedFd, rustix::io::Errno>) -> io::Result<Option<Node>> {
    use rustix::io::Errno;
    match opened {
        Ok(fd) => Ok(Some(fd.into())),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

impl Files for RealFiles {
    type Node = Node;

    fn directory(&self, path: &[u8]) -> io::Result<Option<Node>> {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
        found(rustix::fs::open(path, flags, Mode::empty()))
    }

    fn by_handle(&self, identity: &Identity) -> io::Result<Option<(Node, Vec<u8>)>> {
        if identity.handle.len() > HANDLE_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // Any directory of its file system will do: that in which it was, or one above which is there still.
        let mut above = identity.path.as_slice();
        let mount = loop {
            let end = above.iter().rposition(|byte| *byte == b'/').ok_or(io::ErrorKind::NotFound)?;
            above = &above[..end];
            let path = if above.is_empty() { b"/".as_slice() } else { above };
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY;
            match rustix::fs::open(path, flags, Mode::empty()) {
                Ok(directory) => break directory,
                Err(_) if !above.is_empty() => {}
                Err(error) => return Err(error.into()),
            }
        };
        // Its two numbers, and the bytes behind them.
        let mut handle = vec![identity.handle.len() as u32, identity.handle_type];
        for word in identity.handle.chunks(4) {
            let mut bytes = [0; 4];
            bytes[..word.len()].copy_from_slice(word);
            #[expect(
                clippy::host_endian_bytes,
                reason = "they are bytes of memory, in no order of their own"
            )]
            handle.push(u32::from_ne_bytes(bytes));
        }
        // SAFETY: the buffer begins like a `file_handle`, is aligned as one, and has as many bytes behind it as it says.
        let fd = unsafe {
            libc::open_by_handle_at(
                mount.as_raw_fd(),
                handle.as_mut_ptr().cast::<libc::file_handle>(),
                libc::O_PATH | libc::O_CLOEXEC | libc::O_NOFOLLOW,
            )
        };
        if fd < 0 {
            let error = io::Error::last_os_error();
            let is_gone = error.raw_os_error() == Some(libc::ESTALE);
            return if is_gone { Ok(None) } else { Err(error) };
        }
        // SAFETY: the call has just returned it, and nobody else has it.
        let node = Node::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let path = std::fs::read_link(node.shown())?;
        Ok(Some((node, path.as_os_str().as_bytes().to_vec())))
    }

    fn named(&self, directory: &Node, name: &[u8]) -> io::Result<Option<Node>> {
        found(rustix::fs::openat(directory.fd(), name, PLACE, Mode::empty()))
    }

    fn list(&self, directory: &Node, told: &mut dyn FnMut(u64, &[u8])) -> io::Result<()> {
        let open = match directory.to_read() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
            open => open?,
        };
        for entry in rustix::fs::Dir::read_from(&open)? {
            let entry = entry?;
            told(entry.ino(), entry.file_name().to_bytes());
        }
        Ok(())
    }

    fn about(&self, node: &Node) -> io::Result<About> {
        of(node)
    }

    fn target(&self, node: &Node) -> io::Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(node.fd(), c"", Vec::new())?.into_bytes())
    }

    fn read(&self, node: &Node, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let file = node.open()?;
        let mut len = 0;
        while len < into.len() {
            match file.read_at(&mut into[len..], offset + len as u64) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(len)
    }

    fn write(&self, node: &Node, offset: u64, bytes: &[u8]) -> io::Result<()> {
        node.open()?.write_all_at(bytes, offset)
    }

    fn truncate(&self, node: &Node, len: u64) -> io::Result<()> {
        node.open()?.set_len(len)
    }

    fn allocate(&self, node: &Node, mode: u32, offset: u64, len: u64) -> io::Result<()> {
        let mode = FallocateFlags::from_bits_retain(mode);
        match rustix::fs::fallocate(node.open()?, mode, offset, len) {
            Err(rustix::io::Errno::OPNOTSUPP) => Err(io::ErrorKind::Unsupported.into()),
            other => Ok(other?),
        }
    }

    fn attributes(&self, node: &Node, mode: u32, user: u32, group: u32) -> io::Result<()> {
        let file = node.open()?;
        let is = rustix::fs::fstat(file)?;
        // 0 is root, and all ones is nobody's number.
        let (user, group) = (Uid::from_raw_unchecked(user), Gid::from_raw_unchecked(group));
        let mut bits = 0o7777;
        if (is.st_uid, is.st_gid) != (user.as_raw(), group.as_raw()) {
            match rustix::fs::fchown(file, Some(user), Some(group)) {
                // Only root gives files away, and to whom there is. Nobody runs as whoever recovers for that.
                Err(rustix::io::Errno::PERM | rustix::io::Errno::INVAL) => bits = 0o1777,
                other => other?,
            }
        }
        Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode & bits))?)
    }

    fn stamp(&self, node: &Node, mtime: Mtime) -> io::Result<()> {
        let seconds = i64::try_from(mtime.0 / 1_000_000_000).map_err(|_| io::ErrorKind::InvalidInput)?;
        let last_modification = Timespec { tv_sec: seconds, tv_nsec: (mtime.0 % 1_000_000_000) as i64 };
        let last_access = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        Ok(rustix::fs::futimens(node.open()?, &Timestamps { last_access, last_modification })?)
    }

    fn sync(&self, node: &Node) -> io::Result<()> {
        node.open()?.sync_all()
    }

    fn make(&self, directory: &Node, name: &[u8], made: &Made) -> io::Result<()> {
        match made {
            Made::Symlink { target } => rustix::fs::symlinkat(&target[..], directory.fd(), name)?,
            Made::Node { mode } => {
                let kind = FileType::from_raw_mode(*mode);
                // The process' mask was applied before, when this was logged.
                let mode = Mode::from_raw_mode(mode & 0o7777);
                match kind {
                    FileType::RegularFile => {
                        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
                        let flags = flags | OFlags::WRONLY | OFlags::CLOEXEC;
                        let file = rustix::fs::openat(directory.fd(), name, flags, Mode::RUSR | Mode::WUSR)?;
                        rustix::fs::fchmod(file, mode)?;
                    }
                    FileType::Directory => rustix::fs::mkdirat(directory.fd(), name, mode)?,
                    FileType::Fifo => rustix::fs::mknodat(directory.fd(), name, kind, mode, 0)?,
                    _ => return Err(io::ErrorKind::Unsupported.into()),
                }
            }
        }
        Ok(())
    }

    fn link(&self, from: (&Node, &[u8]), to: (&Node, &[u8])) -> io::Result<()> {
        Ok(rustix::fs::linkat(from.0.fd(), from.1, to.0.fd(), to.1, AtFlags::empty())?)
    }

    fn rename(&self, from: (&Node, &[u8]), to: (&Node, &[u8])) -> io::Result<()> {
        Ok(rustix::fs::renameat(from.0.fd(), from.1, to.0.fd(), to.1)?)
    }

    fn unlink(&self, directory: &Node, name: &[u8], is_directory: bool) -> io::Result<()> {
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        Ok(rustix::fs::unlinkat(directory.fd(), name, flags)?)
    }
}

/// What a crash can have taken from a log at a path: where that is memory which goes with the machine, nothing that is left.
#[must_use]
pub fn lost(path: &std::path::Path) -> Lost {
    /// `TMPFS_MAGIC` and `RAMFS_MAGIC`.
    const MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];
    let is_memory = rustix::fs::statfs(path).is_ok_and(|stat| MEMORY.contains(&(stat.f_type as u64)));
    if is_memory { Lost::Nothing } else { Lost::Unsynced }
}

/// Which other processes have the log at a path mapped, as those have that log into it, whether anybody takes it from them or not.
pub(super) fn users(log: &std::path::Path) -> io::Result<Vec<u32>> {
    let (found, path) = (std::fs::metadata(log)?, std::fs::canonicalize(log)?);
    let device = format!("{:02x}:{:02x}", rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    let (inode, path) = (found.ino().to_string(), path.to_string_lossy().into_owned());
    let is_log = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(3);
        let at = (fields.next(), fields.next());
        // Some file systems have other numbers of devices there.
        at.1 == Some(inode.as_str()) && (at.0 == Some(device.as_str()) || line.ends_with(&path))
    };
    let mut users = Vec::new();
    for process in std::fs::read_dir("/proc")? {
        let Some(process) = process?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if is_about_to_execute(process) {
            continue;
        }
        // Of another user's nothing is ours, and one that has ended has nothing.
        let Ok(maps) = std::fs::read(format!("/proc/{process}/maps")) else { continue };
        if process != std::process::id() && String::from_utf8_lossy(&maps).lines().any(is_log) {
            users.push(process);
        }
    }
    Ok(users)
}

/// Whether a process is a child of this one that has not executed its program yet: it has all that we have mapped, until then. That it is of our image, its
/// vector of addresses says, which is another one after each `exec`.
fn is_about_to_execute(process: u32) -> bool {
    let read = |process: &str, what| std::fs::read(format!("/proc/{process}/{what}")).unwrap_or_default();
    let name = process.to_string();
    let stat = String::from_utf8_lossy(&read(&name, "stat")).into_owned();
    let parent = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_ascii_whitespace().nth(1));
    let image = read(&name, "auxv");
    parent == Some(std::process::id().to_string().as_str())
        && !image.is_empty()
        && image == read("self", "auxv")
}

/// The identity of what is at a path, as a log has it; no link is followed at its end.
///
/// # Errors
/// There is nothing, or it cannot be looked at.
pub fn identity(path: &std::path::Path) -> io::Result<Identity> {
    let node = Node::from(rustix::fs::openat(CWD, path, PLACE, Mode::empty())?);
    let about = of(&node)?;
    let mut handle = vec![0_u32; 2 + HANDLE_MAX / 4];
    handle[0] = HANDLE_MAX as u32;
    let mut mount = 0;
    // SAFETY: the buffer begins like a `file_handle`, is aligned as one, and has as many bytes behind it as it says; the path ends with a zero.
    let has_handle = unsafe {
        libc::name_to_handle_at(
            node.place.as_raw_fd(),
            c"".as_ptr(),
            handle.as_mut_ptr().cast::<libc::file_handle>(),
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    } == 0;
    let len = if has_handle { handle[0] as usize } else { 0 };
    let bytes: Vec<u8> = handle[2..].iter().flat_map(|word| word.to_ne_bytes()).take(len).collect();
    Ok(Identity {
        device: about.device,
        inode: about.inode,
        born: about.born,
        handle_type: if has_handle { handle[1] } else { 0 },
        handle: bytes,
        path: path.as_os_str().as_bytes().to_vec(),
    })
}
