//! Finds out where a store must get to, from what the kernel tells: once, when a region is made.
//!
//! A file's bytes live on a block device (sysfs), below a file system (mountinfo); that device may be made of others, or be
//! memory (brd, zram), or a file again (loop), on a file system of which the same is asked. Only a mapping that the kernel
//! accepted with MAP_SYNC may be made durable from user space; every other file goes through the page cache, on a
//! persistent-memory device too. Of persistent memory the platform tells what is flushed when the power goes:
//! `persistence_domain` of its nd region is `cpu_cache` (eADR), `memory_controller` (ADR) or silent.
//! Read first: Linux Documentation/driver-api/nvdimm, and mmap(2) on MAP_SYNC.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Domain, Guarantee, PersistenceDomain, Survives};
use crate::flush::{self, Instruction};
use crate::{Error, map};

/// File systems that keep their data in the kernel's memory.
const IN_MEMORY: &[&str] = &["tmpfs", "ramfs", "rootfs", "devtmpfs", "hugetlbfs"];

/// File systems whose device is another machine, or another program.
const REMOTE: &[&str] = &["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "virtiofs"];

/// File systems that manage their own devices, of which the file's device number says nothing.
const OWN_DEVICES: &[&str] = &["btrfs", "zfs", "bcachefs"];

/// Block devices that are memory of this machine: brd, zram and null_blk.
const IN_MEMORY_DEVICES: &[&str] = &["ram", "zram", "nullb"];

/// So many devices may be files on each other: no more than a person makes, and the kernel's stack holds few.
const NESTED_MAX: usize = 8;

/// What is known of the mount that a file lies on.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Mount {
    fs: String,
    source: String,
    options: String,
}

impl Mount {
    fn has(&self, wanted: &str) -> bool {
        self.options.split(',').any(|option| option == wanted)
    }
}

/// Detects the domain of an open file. `map_sync`: the kernel accepted a MAP_SYNC mapping of it.
pub(crate) fn of_file(
    file: &File,
    map_sync: bool,
    declared: Option<PersistenceDomain>,
) -> Result<Domain, Error> {
    let metadata = file.metadata().map_err(|e| Error::os("the file's metadata", e))?;
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut domain = judge(Path::new("/sys"), &mountinfo, mount_id(file), metadata.dev(), map_sync);
    if let Some(declared) = declared {
        if domain.domain() == PersistenceDomain::PageCache {
            return Err(Error::Declared { what: format!("a file on {}", domain.medium), declared });
        }
        domain.declare(declared);
    }
    Ok(domain)
}

/// The domain of anonymous memory.
pub(crate) fn of_anonymous() -> Domain {
    plain(PersistenceDomain::Volatile, "anonymous memory")
}

/// The domain of what is only looked at: nothing that is written to it gets anywhere.
pub(crate) fn of_copy() -> Domain {
    plain(PersistenceDomain::Volatile, "a copy in memory")
}

/// The domain of a memfd: it has no name to find it by, and goes with the last process that holds it.
pub(crate) fn of_memfd() -> Domain {
    plain(PersistenceDomain::Volatile, "a memfd")
}

/// The domain of memory that somebody else mapped, who may declare what it is.
pub(crate) fn of_foreign(declared: Option<PersistenceDomain>) -> Domain {
    let mut domain = plain(PersistenceDomain::Volatile, "foreign memory");
    if let Some(declared) = declared {
        domain.declare(declared);
    }
    domain
}

/// The domain of memory that its owner lends us, and may take away.
pub(crate) fn of_borrowed() -> Domain {
    plain(PersistenceDomain::Volatile, "memory of the process")
}

fn plain(domain: PersistenceDomain, medium: &str) -> Domain {
    Domain { guarantee: Guarantee::of(domain), medium: medium.to_owned(), caveat: None, evidence: Vec::new() }
}

/// The id of the mount that the file was opened through; /proc/self/mountinfo is indexed by it.
fn mount_id(file: &File) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

/// Line format: id parent major:minor root mountpoint options [tags] - type source superoptions (proc(5)).
fn find_mount(mountinfo: &str, id: u64) -> Option<Mount> {
    mountinfo.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ');
        if left.next()?.parse() != Ok(id) {
            return None;
        }
        let options = left.nth(4)?;
        let mut right = right.split(' ');
        let (fs, source) = (right.next()?.to_owned(), right.next()?.to_owned());
        let options = format!("{options},{}", right.next().unwrap_or_default());
        Some(Mount { fs, source, options })
    })
}

/// The mount that a path leads to, and the number of its device: of mounts on the same directory the last hides the others.
fn mount_at(mountinfo: &str, path: &Path) -> Option<(Mount, u64)> {
    let (_, line) = mountinfo
        .lines()
        .filter_map(|line| {
            let point = unescaped(line.split(' ').nth(4)?);
            path.starts_with(&point).then(|| (point.components().count(), line))
        })
        .max_by_key(|(depth, _)| *depth)?;
    let mut words = line.split(' ');
    let mount = find_mount(line, words.next()?.parse().ok()?)?;
    let (major, minor) = words.nth(1)?.split_once(':')?;
    Some((mount, libc::makedev(major.parse().ok()?, minor.parse().ok()?)))
}

/// A path of /proc/self/mountinfo, in which blanks and the like are octal numbers.
fn unescaped(word: &str) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::new(), word.as_bytes());
    while let Some((first, behind)) = rest.split_first() {
        let number = behind.get(..3).filter(|_| *first == b'\\');
        let number = number.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(number.unwrap_or(*first));
        rest = if number.is_some() { &behind[3..] } else { behind };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

fn judge(sys: &Path, mountinfo: &str, mount_id: Option<u64>, dev: u64, map_sync: bool) -> Domain {
    let mut evidence = Vec::new();
    let mount = mount_id.and_then(|id| find_mount(mountinfo, id));
    let fs = mount.as_ref().map_or("an unknown file system", |m| m.fs.as_str());
    let device = block_device(sys, dev).or_else(|| own_device(sys, mount.as_ref()?));
    let on = match (&device, &mount) {
        (Some(device), _) => name_of(device),
        (None, Some(mount)) => mount.source.clone(),
        (None, None) => "an unknown device".to_owned(),
    };
    if let Some(mount) = &mount {
        evidence.push(format!("{} mounted with {}", mount.fs, mount.options));
    }
    if IN_MEMORY.contains(&fs) {
        return Domain { evidence, ..plain(PersistenceDomain::Process, fs) };
    }
    evidence.push(format!("MAP_SYNC {}", if map_sync { "accepted" } else { "not supported" }));
    let medium = format!("{fs} on {on}");
    if map_sync {
        return persistent_memory(device.as_deref(), medium, evidence);
    }
    let kernel = Kernel { sys, mountinfo };
    kernel.page_cache(fs, device.as_deref(), mount.as_ref(), medium, evidence, NESTED_MAX)
}

fn persistent_memory(device: Option<&Path>, medium: String, mut evidence: Vec<String>) -> Domain {
    let regions = device.map(pmem_domains).unwrap_or_default();
    for (name, region) in &regions {
        evidence.push(format!("{name}: persistence_domain {region:?}"));
    }
    let all = |what: &str| !regions.is_empty() && regions.iter().all(|(_, region)| region == what);
    let known = |what: &str| matches!(what, "cpu_cache" | "memory_controller");
    let domain = if all("cpu_cache") { PersistenceDomain::Eadr } else { PersistenceDomain::Adr };
    let mut guarantee = Guarantee::of(domain);
    let mut caveat = None;
    if regions.is_empty() || regions.iter().any(|(_, region)| !known(region)) {
        // Memory that the kernel was told to treat as persistent (memmap=) looks like this, and is not.
        guarantee.after_psync = Survives::PROCESS_CRASH;
        guarantee.before_psync = Survives::PROCESS_CRASH;
        caveat = Some(
            "the platform does not say that this memory keeps its content without power; declare adr or eadr \
             if you know that it does"
                .to_owned(),
        );
    }
    Domain { guarantee, medium, caveat, evidence }
}

/// Where the kernel tells what it has.
#[derive(Clone, Copy)]
struct Kernel<'a> {
    sys: &'a Path,
    mountinfo: &'a str,
}

impl Kernel<'_> {
    fn page_cache(
        self,
        fs: &str,
        device: Option<&Path>,
        mount: Option<&Mount>,
        medium: String,
        mut evidence: Vec<String>,
        nested: usize,
    ) -> Domain {
        let mut guarantee = Guarantee::of(PersistenceDomain::PageCache);
        let mut caveat = None;
        let caches = device.map(write_caches).unwrap_or_default();
        for (name, cache) in &caches {
            evidence.push(format!("{name}: write cache {cache:?}"));
        }
        let below = device.map(|device| self.below(device, nested, &mut evidence)).unwrap_or_default();
        for domain in &below {
            guarantee.after_psync = guarantee.after_psync.and(domain.guarantee.after_psync);
        }
        let weakest = below.into_iter().min_by_key(|domain| {
            let Survives { os_crash, power_loss, .. } = domain.guarantee.after_psync;
            (os_crash, power_loss, domain.caveat.is_none())
        });
        let weakest = weakest.and_then(|domain| domain.caveat);
        let volatile_cache = caches.iter().any(|(_, cache)| cache == "write back");
        let unflushed = mount.is_some_and(|m| {
            m.has("nobarrier") || m.has("barrier=0") || (m.fs == "overlay" && m.has("volatile"))
        });
        if REMOTE.contains(&fs) || fs.starts_with("fuse") {
            caveat = Some(format!("as far as the server behind {fs} keeps its word"));
        } else if unflushed && (volatile_cache || caches.is_empty()) {
            guarantee.after_psync.power_loss = false;
            caveat = Some(
                "mounted without write barriers, so the device's cache is never flushed; mount it with barriers"
                    .to_owned(),
            );
        } else if volatile_cache {
            caveat = Some("the device has a write-back cache, which each psync has it flush".to_owned());
        } else if fs == "overlay" {
            caveat = Some("as far as the file system below the overlay keeps its word".to_owned());
        } else if device.is_none() && !OWN_DEVICES.contains(&fs) {
            // Whatever it is, it did not show that it has a device to keep the data on.
            guarantee.after_psync = Survives::PROCESS_CRASH;
            caveat = Some("no device is known below it; use a file system on a disk".to_owned());
        }
        // What lies deeper says more, unless it is this mount that has nothing flushed.
        if !(unflushed && guarantee.after_psync.os_crash) && weakest.is_some() {
            caveat = weakest;
        }
        Domain { guarantee, medium, caveat, evidence }
    }

    /// What the devices that a device is made of rest on, as far as that is no disk.
    fn below(self, device: &Path, nested: usize, evidence: &mut Vec<String>) -> Vec<Domain> {
        leaves(device).iter().filter_map(|leaf| self.rests_on(leaf, nested, evidence)).collect()
    }

    fn rests_on(self, leaf: &Path, nested: usize, evidence: &mut Vec<String>) -> Option<Domain> {
        let name = name_of(leaf);
        let weak = |why: String| Domain { caveat: Some(why), ..plain(PersistenceDomain::Process, &name) };
        if is_memory(&name) {
            return Some(weak(format!(
                "{name} is memory of this machine and goes with it; use a file system on a disk"
            )));
        }
        let file = fs::read(leaf.join("loop/backing_file")).ok()?;
        let file = PathBuf::from(OsString::from_vec(file.trim_ascii_end().to_vec()));
        evidence.push(format!("{name}: backing file {}", file.display()));
        let unknown = || {
            format!(
                "nothing tells on which device {} lies, which {name} is; use a file system on a disk",
                file.display()
            )
        };
        let Some((mount, dev)) = mount_at(self.mountinfo, &file).filter(|_| nested > 0) else {
            return Some(weak(unknown()));
        };
        if IN_MEMORY.contains(&mount.fs.as_str()) {
            return Some(weak(format!(
                "{name} is a file on {}, which goes with the machine; use a file system on a disk",
                mount.fs
            )));
        }
        evidence.push(format!("{name}: its file is on {} mounted with {}", mount.fs, mount.options));
        let device = block_device(self.sys, dev).or_else(|| own_device(self.sys, &mount));
        let mut found =
            self.page_cache(&mount.fs, device.as_deref(), Some(&mount), name, Vec::new(), nested - 1);
        evidence.append(&mut found.evidence);
        Some(found)
    }
}

/// Whether a device of this name is memory: `ram0`.
fn is_memory(name: &str) -> bool {
    IN_MEMORY_DEVICES.iter().any(|kind| {
        name.strip_prefix(kind)
            .is_some_and(|n| !n.is_empty() && n.bytes().all(|digit| digit.is_ascii_digit()))
    })
}

/// The sysfs folder of the whole block device with this number.
fn block_device(sys: &Path, dev: u64) -> Option<PathBuf> {
    let (major, minor) = (libc::major(dev), libc::minor(dev));
    let path = fs::canonicalize(sys.join(format!("dev/block/{major}:{minor}"))).ok()?;
    // A partition lies inside its disk's folder, and has no queue of its own.
    if path.join("partition").exists() { path.parent().map(Path::to_path_buf) } else { Some(path) }
}

/// A device of a file system that manages its own, of which the mount names one.
fn own_device(sys: &Path, mount: &Mount) -> Option<PathBuf> {
    let name = mount.source.strip_prefix("/dev/").filter(|name| !name.contains('/'))?;
    let number = read_word(&sys.join("class/block").join(name).join("dev"))?;
    let (major, minor) = number.split_once(':')?;
    block_device(sys, libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn name_of(device: &Path) -> String {
    device.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// The devices that a device is made of (device mapper, md), down to the last.
fn leaves(device: &Path) -> Vec<PathBuf> {
    let slaves: Vec<PathBuf> = fs::read_dir(device.join("slaves"))
        .map(|entries| entries.flatten().filter_map(|e| fs::canonicalize(e.path()).ok()).collect())
        .unwrap_or_default();
    if slaves.is_empty() {
        return vec![device.to_path_buf()];
    }
    slaves
        .iter()
        .map(|slave| match slave.join("partition").exists() {
            true => slave.parent().map_or_else(|| slave.clone(), Path::to_path_buf),
            false => slave.clone(),
        })
        .flat_map(|slave| leaves(&slave))
        .collect()
}

fn write_caches(device: &Path) -> Vec<(String, String)> {
    leaves(device)
        .iter()
        .filter_map(|leaf| Some((name_of(leaf), read_word(&leaf.join("queue/write_cache"))?)))
        .collect()
}

fn pmem_domains(device: &Path) -> Vec<(String, String)> {
    leaves(device)
        .iter()
        .map(|leaf| {
            // .../ndbus0/region0/pfn0.0/block/pmem0: the file is in one of the folders above.
            let word = leaf.ancestors().find_map(|folder| read_word(&folder.join("persistence_domain")));
            (name_of(leaf), word.unwrap_or_default())
        })
        .collect()
}

fn read_word(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// A persistent-memory block device, whether or not anything is mounted on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PmemDevice {
    /// Its name: pmem0.
    pub name: String,
    /// Whether file systems may map it directly.
    pub dax: bool,
    /// What the platform keeps when the power goes, in the kernel's words; empty where it does not say.
    pub persistence_domain: String,
}

/// What matters about the machine as a whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// The best instruction that writes a cache line back.
    pub instruction: Instruction,
    /// Bytes in a cache line.
    pub line: usize,
    /// Persistent-memory block devices.
    pub devices: Vec<PmemDevice>,
}

/// Looks at the machine, for `rem doctor`.
#[must_use]
pub fn machine() -> Machine {
    Machine { instruction: flush::instruction(), line: flush::LINE, devices: devices(Path::new("/sys")) }
}

fn devices(sys: &Path) -> Vec<PmemDevice> {
    let mut devices: Vec<PmemDevice> = fs::read_dir(sys.join("block"))
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("pmem"))
        .filter_map(|entry| fs::canonicalize(entry.path()).ok())
        .map(|device| PmemDevice {
            name: name_of(&device),
            dax: read_word(&device.join("queue/dax")).as_deref() == Some("1"),
            persistence_domain: pmem_domains(&device).pop().map(|(_, word)| word).unwrap_or_default(),
        })
        .collect();
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    devices
}

/// The domain that a file in this directory would have, found with a file that never gets a name.
///
/// # Errors
/// The directory cannot be written to.
pub fn probe_directory(directory: &Path) -> Result<Domain, Error> {
    let file = map::unnamed_file(directory)
        .and_then(|file| file.set_len(map::page_size() as u64).map(|()| file))
        .map_err(|e| Error::os(format!("trying out {}", directory.display()), e))?;
    let map_sync = map::accepts_map_sync(&file);
    of_file(&file, map_sync, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sysfs of our own, gone when the test ends.
    struct Sysfs(PathBuf);

    impl Sysfs {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("remanence-sysfs-{}-{name}", std::process::id()));
            fs::create_dir_all(root.join("dev/block")).unwrap();
            fs::create_dir_all(root.join("block")).unwrap();
            Self(root)
        }

        fn file(self, path: &str, text: &str) -> Self {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        fn link(self, from: &str, to: &str) -> Self {
            let from = self.0.join(from);
            fs::create_dir_all(from.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(self.0.join(to), from).unwrap();
            self
        }

        fn judge(&self, mountinfo: &str, minor: u32, map_sync: bool) -> Domain {
            judge(&self.0, mountinfo, Some(7), libc::makedev(259, minor), map_sync)
        }
    }

    impl Drop for Sysfs {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn pmem(name: &str, domain: &str) -> Sysfs {
        Sysfs::new(name)
            .file("devices/nd/region0/persistence_domain", domain)
            .file("devices/nd/region0/pfn0.0/block/pmem0/queue/dax", "1\n")
            .file("devices/nd/region0/pfn0.0/block/pmem0/queue/write_cache", "write back\n")
            .link("dev/block/259:0", "devices/nd/region0/pfn0.0/block/pmem0")
            .link("block/pmem0", "devices/nd/region0/pfn0.0/block/pmem0")
    }

    const DAX: &str = "7 1 259:0 / /mnt rw,relatime shared:1 - ext4 /dev/pmem0 rw,dax=always\n";

    #[test]
    fn the_platform_says_adr_or_eadr_or_nothing() {
        let adr = pmem("adr", "memory_controller\n").judge(DAX, 0, true);
        assert_eq!(adr.guarantee(), Guarantee::of(PersistenceDomain::Adr));
        assert_eq!(adr.medium(), "ext4 on pmem0");
        let eadr = pmem("eadr", "cpu_cache\n").judge(DAX, 0, true);
        assert_eq!(eadr.guarantee(), Guarantee::of(PersistenceDomain::Eadr));

        let silent = pmem("silent", "\n").judge(DAX, 0, true);
        assert_eq!(silent.domain(), PersistenceDomain::Adr, "lines are written back all the same");
        assert!(!silent.guarantee().is_durable(), "but nobody promises anything for a power loss");
        assert!(silent.caveat().unwrap().contains("declare"));
    }

    #[test]
    fn persistent_memory_without_map_sync_is_a_page_cache() {
        let domain = pmem("nosync", "cpu_cache\n").judge(DAX, 0, false);
        assert_eq!(domain.domain(), PersistenceDomain::PageCache);
    }

    #[test]
    fn a_stripe_is_as_strong_as_its_weakest_device() {
        let sys = pmem("stripe", "cpu_cache\n")
            .file("devices/nd/region1/persistence_domain", "memory_controller\n")
            .file("devices/nd/region1/pfn1.0/block/pmem1/queue/dax", "1\n")
            .file("devices/virtual/block/dm-0/queue/dax", "1\n")
            .link("devices/virtual/block/dm-0/slaves/pmem0", "devices/nd/region0/pfn0.0/block/pmem0")
            .link("devices/virtual/block/dm-0/slaves/pmem1", "devices/nd/region1/pfn1.0/block/pmem1")
            .link("dev/block/259:5", "devices/virtual/block/dm-0");
        let domain = sys.judge(DAX, 5, true);
        assert_eq!(domain.guarantee(), Guarantee::of(PersistenceDomain::Adr));
        assert_eq!(domain.medium(), "ext4 on dm-0");
    }

    #[test]
    fn a_disk_without_barriers_does_not_survive_a_power_loss() {
        let sys = || {
            Sysfs::new("disk")
                .file("devices/vda/queue/write_cache", "write back\n")
                .file("devices/vda/vda1/partition", "1\n")
                .link("dev/block/259:1", "devices/vda/vda1")
        };
        let mount = |options: &str| format!("7 1 259:1 / / rw - ext4 /dev/vda1 {options}\n");
        let safe = sys().judge(&mount("rw"), 1, false);
        assert_eq!(safe.medium(), "ext4 on vda");
        assert!(safe.guarantee().is_durable());
        assert!(safe.caveat().unwrap().contains("write-back cache"));
        let unsafe_mount = sys().judge(&mount("rw,nobarrier"), 1, false);
        assert!(!unsafe_mount.guarantee().is_durable());
        assert!(unsafe_mount.guarantee().after_psync.os_crash);
        assert!(unsafe_mount.to_string().contains("without write barriers"), "{unsafe_mount}");
    }

    /// ext4 on loop0, a file at `path`; vda is a disk.
    fn on_loop(name: &str, path: &str) -> Sysfs {
        Sysfs::new(name)
            .file("devices/virtual/block/loop0/queue/write_cache", "write back\n")
            .file("devices/virtual/block/loop0/loop/backing_file", &format!("{path}\n"))
            .file("devices/vda/queue/write_cache", "write through\n")
            .link("dev/block/259:0", "devices/virtual/block/loop0")
            .link("dev/block/259:1", "devices/vda")
    }

    const LOOP: &str = "7 1 259:0 / /mnt/deep rw - ext4 /dev/loop0 rw\n";

    #[test]
    fn a_loop_device_is_as_strong_as_the_file_that_it_is() {
        let mounts = |root: &str| format!("1 0 {root} rw\n2 1 0:30 / /dev/shm rw - tmpfs shm rw\n{LOOP}");
        let disk = mounts("259:1 / / rw - xfs /dev/vda");
        let of = |path: &str, mounts: &str| on_loop("loop", path).judge(mounts, 0, false);

        let good = of("/images/a file", &disk);
        assert!(good.guarantee().is_durable(), "{good}");
        assert_eq!(good.medium(), "ext4 on loop0");
        assert!(good.evidence().iter().any(|e| e == "vda: write cache \"write through\""), "{good:?}");

        for path in ["/dev/shm/image", "/dev/shm/image (deleted)"] {
            let lost = of(path, &disk);
            assert_eq!(lost.guarantee().after_psync, Survives::PROCESS_CRASH, "{lost}");
            assert_eq!(lost.domain(), PersistenceDomain::PageCache, "pages are written there all the same");
            assert!(lost.caveat().unwrap().contains("loop0 is a file on tmpfs"), "{lost}");
        }
        assert!(of("/dev/shmem", &disk).guarantee().is_durable(), "no part of that directory");

        let careless = of("/image", &mounts("259:1 / / rw - ext4 /dev/vda nobarrier"));
        assert!(careless.guarantee().is_durable(), "nothing that a barrier would flush: {careless}");
        let remote = of("/image", &mounts("0:50 / / rw - nfs4 server:/"));
        assert!(remote.guarantee().is_durable() && remote.caveat().unwrap().contains("server"), "{remote}");
        // Its files have a device number that no device has.
        let own = |path: &str| {
            let mounts = disk.replace("7 1 259:0", "7 1 0:60").replace("ext4 /dev/loop0", "btrfs /dev/loop0");
            let sys = on_loop("btrfs", path).file("class/block/loop0/dev", "259:0\n");
            judge(&sys.0, &mounts, Some(7), libc::makedev(0, 60), false)
        };
        assert!(own("/image").guarantee().is_durable());
        assert!(own("/dev/shm/image").caveat().unwrap().contains("loop0 is a file on tmpfs"));
        for nowhere in ["image", "(unreachable)/image", ""] {
            let unknown = of(nowhere, &disk);
            assert!(!unknown.guarantee().is_durable(), "{unknown}");
            assert!(unknown.caveat().unwrap().contains("nothing tells"), "{unknown}");
        }
    }

    #[test]
    fn a_loop_device_on_a_disk_without_barriers_does_not_survive_a_power_loss() {
        let sys = Sysfs::new("loop-barriers")
            .file("devices/loop0/queue/write_cache", "write back\n")
            .file("devices/loop0/loop/backing_file", "/image\n")
            .file("devices/vda/queue/write_cache", "write back\n")
            .link("dev/block/259:0", "devices/loop0")
            .link("dev/block/259:1", "devices/vda");
        let domain = sys.judge(&format!("1 0 259:1 / / rw - ext4 /dev/vda rw,nobarrier\n{LOOP}"), 0, false);
        assert!(!domain.guarantee().is_durable() && domain.guarantee().after_psync.os_crash, "{domain}");
        assert!(domain.caveat().unwrap().contains("without write barriers"), "{domain}");
    }

    #[test]
    fn files_on_each_other_are_followed_to_the_last() {
        let sys = |last: &str| {
            on_loop("nested", "/mnt/a b/image")
                .file("devices/loop1p/loop1/loop/backing_file", last)
                .file("devices/loop1p/loop1/loop1p2/partition", "2\n")
                .file("devices/virtual/block/dm-0/dm/name", "linear\n")
                .link("devices/virtual/block/dm-0/slaves/loop1p2", "devices/loop1p/loop1/loop1p2")
                .link("dev/block/259:5", "devices/virtual/block/dm-0")
        };
        let mounts = format!(
            "1 0 259:1 / / rw - xfs /dev/vda rw\n2 1 0:30 / /tmp rw - tmpfs t rw\n3 1 0:31 / /mnt/a\\040b rw - tmpfs \
             hidden rw\n4 3 259:5 / /mnt/a\\040b rw - ext4 /dev/dm-0 rw\n{LOOP}"
        );
        let lost = sys("/tmp/image\n").judge(&mounts, 0, false);
        assert_eq!(lost.guarantee().after_psync, Survives::PROCESS_CRASH, "{lost}");
        assert!(lost.caveat().unwrap().contains("loop1 is a file on tmpfs"), "{lost}");
        let kept = sys("/image\n").judge(&mounts, 0, false);
        assert!(kept.guarantee().is_durable(), "{kept}");
        // As another mount namespace may have it seem.
        let circle = sys("/mnt/deep/image\n").judge(&mounts, 0, false);
        assert!(!circle.guarantee().is_durable(), "{circle}");
        assert!(circle.evidence().len() < 8 * NESTED_MAX, "{circle:?}");
    }

    #[test]
    fn memory_that_poses_as_a_disk_goes_with_the_machine() {
        for name in ["ram0", "zram12", "nullb0"] {
            let sys = Sysfs::new(name)
                .file(&format!("devices/virtual/block/{name}/queue/write_cache"), "write back\n")
                .file("devices/vda/queue/write_cache", "write back\n")
                .file("devices/virtual/block/md0/queue/write_cache", "write back\n")
                .link("devices/virtual/block/md0/slaves/a", "devices/vda")
                .link("devices/virtual/block/md0/slaves/b", &format!("devices/virtual/block/{name}"))
                .link("dev/block/259:0", &format!("devices/virtual/block/{name}"))
                .link("dev/block/259:1", "devices/virtual/block/md0");
            for minor in [0, 1] {
                let mounts = format!("7 1 259:{minor} / / rw - ext4 /dev/a rw,nobarrier\n");
                let domain = sys.judge(&mounts, minor, false);
                assert_eq!(domain.guarantee().after_psync, Survives::PROCESS_CRASH, "{domain}");
                assert!(domain.caveat().unwrap().contains(&format!("{name} is memory")), "{domain}");
            }
        }
        assert!(!["ram", "rama", "sda", "zram", "ram0p1", "vda"].into_iter().any(is_memory));
    }

    #[test]
    fn a_tmpfs_survives_its_process_only() {
        let sys = Sysfs::new("tmpfs");
        let domain = sys.judge("7 1 0:44 / /dev/shm rw,nosuid - tmpfs tmpfs rw\n", 9, false);
        assert_eq!(domain.guarantee(), Guarantee::of(PersistenceDomain::Process));
    }

    #[test]
    fn a_file_system_that_shows_no_device_promises_nothing() {
        let sys = Sysfs::new("unknown");
        let of = |fs: &str| sys.judge(&format!("7 1 0:30 / / rw - {fs} none rw\n"), 9, false);
        assert!(!of("mystery").guarantee().is_durable());
        assert_eq!(of("rootfs").domain(), PersistenceDomain::Process, "an initramfs");
        assert!(of("btrfs").guarantee().is_durable());
        assert!(of("overlay").caveat().unwrap().contains("below the overlay"));
        assert!(of("nfs4").caveat().unwrap().contains("server"));
    }

    #[test]
    fn another_mount_is_not_taken_for_ours() {
        let info = "17 1 0:44 / /a rw - tmpfs a rw\n7 1 259:1 / /b rw - xfs /dev/b rw\n";
        assert_eq!(find_mount(info, 7).unwrap().fs, "xfs");
        assert_eq!(find_mount(info, 8), None);
    }

    #[test]
    fn persistent_memory_devices_are_listed() {
        let sys = pmem("list", "memory_controller\n");
        assert_eq!(
            devices(&sys.0),
            [PmemDevice {
                name: "pmem0".to_owned(),
                dax: true,
                persistence_domain: "memory_controller".to_owned()
            }]
        );
    }
}
