//! The counters of a port, `hw_counters` and `counters`: files that the processes which have the device open add to
//! (`counters.rs` of `remanence-ibverbs`).
//!
//! They are the same files in every view of a user and a network namespace, as a kernel's counters are the same for
//! everybody: they lie in /dev/shm, where a reboot ends them as it ends a kernel's. Where there is none that is ours alone,
//! each view has its own.
//!
//! A namespace's inode, by which processes show theirs, is given again as soon as it is free. So the directory has the inode,
//! which tells whether anybody is still in there, and the kernel's cookie, which tells it from those before it.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use remanence_link::network_namespace;
use remanence_rnic::Stats;
use rustix::mount::mount_bind;
use rustix::process::geteuid;

/// Which counters, and in which directories.
fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    let none = Stats::default();
    let hardware = none.hw_counters(0).map(|(name, _)| ("hw_counters", name));
    let port = none.port_counters(0).map(|(name, _)| ("counters", name));
    hardware.into_iter().chain(port)
}

/// Puts the counters of a device's port into `ports/1` of the view.
pub(super) fn put(port: &Path, device: &str) -> io::Result<()> {
    for directory in ["hw_counters", "counters"] {
        fs::create_dir(port.join(directory))?;
    }
    let shared = Namespace::here().and_then(|here| shared(Path::new("/dev/shm"), &here)).and_then(|all| {
        let shared = all.join(device);
        fill(&shared)?;
        for directory in ["hw_counters", "counters"] {
            mount_bind(shared.join(directory), port.join(directory))?;
        }
        Ok(())
    });
    // A view of its own, with its own counts, is better than none.
    if shared.is_err() { fill(port) } else { Ok(()) }
}

/// Makes the files that are not there yet.
fn fill(port: &Path) -> io::Result<()> {
    for (directory, name) in names() {
        make(&port.join(directory).join(name), "0")?;
    }
    // In milliseconds, how old what is read may be.
    make(&port.join("hw_counters/lifespan"), "10")
}

fn make(file: &Path, line: &str) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(file.parent().expect("below the port"))?;
    match OpenOptions::new().write(true).create_new(true).open(file) {
        Ok(mut file) => writeln!(file, "{line}"),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e),
    }
}

/// A network namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Namespace {
    /// `net4026531840`: no other one has it that there is now.
    inode: OsString,
    /// No other one has it that there ever was; `None` from kernels before 5.14.
    cookie: Option<u64>,
}

impl Namespace {
    /// That of this process.
    fn here() -> io::Result<Self> {
        Ok(Self { inode: inode(&fs::read_link("/proc/self/ns/net")?), cookie: network_namespace().ok() })
    }

    /// The name of its directory.
    fn name(&self) -> OsString {
        let mut name = self.inode.clone();
        if let Some(cookie) = self.cookie {
            name.push(format!(".{cookie}"));
        }
        name
    }
}

/// The directory of all counters of this user in a network namespace, below one that everybody may write to.
fn shared(below: &Path, here: &Namespace) -> io::Result<PathBuf> {
    let user = geteuid().as_raw();
    let ours = below.join(format!("remanence-{user}"));
    match DirBuilder::new().mode(0o700).create(&ours) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let made = fs::symlink_metadata(&ours)?;
    if !made.is_dir() || made.uid() != user || made.mode() & 0o077 != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let (all, name) = (ours.join("counters"), here.name());
    DirBuilder::new().recursive(true).mode(0o700).create(all.join(&name))?;
    let others: Vec<OsString> =
        fs::read_dir(&all)?.flatten().map(|entry| entry.file_name()).filter(|other| *other != name).collect();
    if !others.is_empty() {
        // One that had this namespace's inode is gone, and so is one that nobody is in any more.
        let mut alive = namespaces();
        alive.remove(&here.inode);
        for gone in others.iter().filter(|other| !alive.contains(inode_of(other))) {
            let _ = fs::remove_dir_all(all.join(gone));
        }
    }
    Ok(all.join(name))
}

/// The inodes of the network namespaces that processes are in.
fn namespaces() -> HashSet<OsString> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|process| fs::read_link(process.path().join("ns/net")).ok())
        .map(|net| inode(&net))
        .collect()
}

/// `net:[4026531840]`, as a name that a shell leaves alone.
fn inode(net: &Path) -> OsString {
    net.to_string_lossy().chars().filter(|c| c.is_ascii_alphanumeric()).collect::<String>().into()
}

/// What a directory's name says of the namespace's inode.
fn inode_of(name: &OsStr) -> &OsStr {
    Path::new(name).file_stem().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(inode: &str, cookie: Option<u64>) -> Namespace {
        Namespace { inode: inode.into(), cookie }
    }

    #[test]
    fn counters_are_kept_and_those_of_namespaces_that_are_gone_are_not() {
        let below = tempfile::tempdir().expect("a directory");
        // Somebody is in this one, whoever asks.
        let real = Namespace::here().expect("we are in one");
        let theirs = shared(below.path(), &real).expect("ours alone");
        for cookie in [Some(7), None] {
            let here = namespace("net2", cookie);
            let all = shared(below.path(), &here).expect("ours alone");
            fill(&all.join("rem_lo")).expect("written");
            let file = all.join("rem_lo/hw_counters/sent_pkts");
            assert_eq!(fs::read_to_string(&file).expect("it is there"), "0\n");
            fs::write(&file, "7\n").expect("written");
            let gone = all.parent().expect("of all").join("net1.3");
            fs::create_dir(&gone).expect("made");

            let again = shared(below.path(), &here).expect("as before");
            fill(&again.join("rem_lo")).expect("nothing to do");
            assert_eq!(fs::read_to_string(&file).expect("it is there"), "7\n");
            assert!(!gone.exists() && again == all && theirs.exists());
            assert!(names().all(|(directory, name)| all.join("rem_lo").join(directory).join(name).exists()));
        }
    }

    #[test]
    fn a_namespace_that_has_the_inode_of_one_before_it_does_not_have_its_counters() {
        let below = tempfile::tempdir().expect("a directory");
        let before = shared(below.path(), &namespace("net1", Some(7))).expect("ours alone");
        fill(&before.join("rem_lo")).expect("written");
        let now = shared(below.path(), &namespace("net1", Some(8))).expect("ours alone");
        assert!(now != before && !before.exists() && now.exists());
    }

    /// As long as the kernel has cookies; where it has none, inodes have to do.
    #[test]
    fn a_namespace_stays_the_same() {
        let here = Namespace::here().expect("we are in one");
        assert_eq!(Namespace::here().expect("still"), here);
        assert!(here.inode.to_string_lossy().starts_with("net"), "{here:?}");
    }

    #[test]
    fn what_others_could_have_made_is_not_used() {
        let (below, here) = (tempfile::tempdir().expect("a directory"), namespace("net1", None));
        let ours = below.path().join(format!("remanence-{}", geteuid().as_raw()));
        std::os::unix::fs::symlink("/", &ours).expect("made");
        assert!(shared(below.path(), &here).is_err());
        fs::remove_file(&ours).expect("removed");
        DirBuilder::new().mode(0o777).create(&ours).expect("made");
        fs::set_permissions(&ours, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("ours");
        assert!(shared(below.path(), &here).is_err());
    }
}
