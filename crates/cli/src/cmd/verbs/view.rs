//! What programs look for below /sys and /dev when there is RDMA: made of plain files, for one process and its children.
//!
//! UCX wants /dev/infiniband/NAME to be a character device, pyverbs' tests and NCCL read /sys/class/infiniband. Neither
//! directory can be added to where the kernel has no RDMA, so /sys/class and /dev are covered, in a mount namespace of
//! our own, by a tmpfs with all that was there before, mounted at its name, and what we add.

use std::ffi::OsString;
use std::fmt::{Display, Write as _};
use std::fs::{self, File};
use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mknodat, openat};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, unmount};

use super::counters;
use super::devices::{Device, GIDS};
use super::namespace::{self, How};
use super::port;

const SYS: &str = "/sys/class";
const DEV: &str = "/dev";

/// Gives this process, and the program that takes its place, the view with these devices. Without it on any error.
pub(super) fn enter(devices: &[Device]) -> Result<String, String> {
    let roots_port = || {
        let guest = !rustix::process::geteuid().is_root() && port::is_roots(devices);
        guest.then_some("root's programs have the RoCEv2 port, and would not be known in a user namespace")
    };
    let how = namespace::enter_checked(roots_port).map_err(|why| why.to_string())?;
    with(SYS, &["infiniband", "infiniband_verbs"], |root| fill_sys(root, devices))?;
    if let Err(why) = with(DEV, &["infiniband"], |root| fill_dev(root, devices)) {
        let _ = unmount(SYS, UnmountFlags::DETACH);
        return Err(why);
    }
    Ok(match how {
        How::Privileged => "in a mount namespace of its own".into(),
        How::UserNamespace => "in a user namespace of its own".into(),
    })
}

/// Where there is no namespace to be had, but nodes can be made: those of /dev/infiniband, which UCX asks for. Nobody takes them
/// away again, and in a container, which is where this happens, they go with it.
pub(super) fn make_nodes(devices: &[Device]) -> io::Result<()> {
    let dir = Path::new(DEV).join("infiniband");
    let made = !dir.exists();
    let done = fill_with_nodes(&dir, devices);
    if done.is_err() && made {
        let _ = fs::remove_dir_all(&dir);
    }
    done
}

fn fill_with_nodes(dir: &Path, devices: &[Device]) -> io::Result<()> {
    // /dev/full, for the same reason as in the view.
    const FULL: (u32, u32) = (1, 7);
    fs::create_dir_all(dir)?;
    let of_device = |device: &Device| [device.name.clone(), format!("uverbs{}", device.index)];
    for name in devices.iter().flat_map(of_device).chain(["rdma_cm".to_owned()]) {
        let node = dir.join(name);
        if fs::metadata(&node).is_ok_and(|found| found.file_type().is_char_device()) {
            continue;
        }
        mknodat(CWD, &node, FileType::CharacterDevice, Mode::from(0o666), makedev(FULL.0, FULL.1))?;
        fs::set_permissions(&node, fs::Permissions::from_mode(0o666))?;
    }
    Ok(())
}

/// Covers a directory with its own contents, but for `without`, and lets `fill` add to them. Undone on any error.
fn with(at: &str, without: &[&str], fill: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), String> {
    cover(Path::new(at), without, fill).map_err(|why| format!("{at} cannot be covered ({why})"))
}

fn cover(at: &Path, without: &[&str], fill: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let old = contents(at, without)?;
    mount("remanence", at, "tmpfs", MountFlags::NOSUID | MountFlags::NOEXEC, c"mode=0755")?;
    let done = restore(at, &old).and_then(|()| fill(at));
    if done.is_err() {
        unmount(at, UnmountFlags::DETACH)?;
    }
    done
}

enum Old {
    Link(PathBuf),
    Directory(OwnedFd),
    File(OwnedFd),
}

/// What is in a directory, held by descriptors that outlive its being covered.
fn contents(at: &Path, without: &[&str]) -> io::Result<Vec<(OsString, Old)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(at)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        if without.iter().any(|w| name == *w) {
            continue;
        }
        let hold =
            || openat(CWD, entry.path(), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let old = if kind.is_symlink() {
            Old::Link(fs::read_link(entry.path())?)
        } else if kind.is_dir() {
            Old::Directory(hold()?)
        } else {
            Old::File(hold()?)
        };
        all.push((name, old));
    }
    Ok(all)
}

fn restore(at: &Path, old: &[(OsString, Old)]) -> io::Result<()> {
    for (name, old) in old {
        let to = at.join(name);
        match old {
            Old::Link(target) => symlink(target, to)?,
            Old::Directory(held) => {
                fs::create_dir(&to)?;
                mount_bind_recursive(by_descriptor(held), to)?;
            }
            Old::File(held) => {
                File::create(&to)?;
                mount_bind(by_descriptor(held), to)?;
            }
        }
    }
    Ok(())
}

fn by_descriptor(held: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", held.as_raw_fd())
}

/// A directory in the making: files hold one line, as those of sysfs do.
struct Dir(PathBuf);

impl Dir {
    fn new(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    fn dir(&self, name: impl AsRef<Path>) -> io::Result<Self> {
        Self::new(self.0.join(name))
    }

    fn file(&self, name: impl AsRef<Path>, line: impl Display) -> io::Result<()> {
        fs::write(self.0.join(name), format!("{line}\n"))
    }

    fn link(&self, name: impl AsRef<Path>, target: impl AsRef<Path>) -> io::Result<()> {
        symlink(target, self.0.join(name))
    }
}

fn fill_sys(root: &Path, devices: &[Device]) -> io::Result<()> {
    let (class, verbs) = (Dir::new(root.join("infiniband"))?, Dir::new(root.join("infiniband_verbs"))?);
    verbs.file("abi_version", 6)?;
    for device in devices {
        let dir = class.dir(&device.name)?;
        fill_device(&dir, device)?;
        let uverbs = verbs.dir(format!("uverbs{}", device.index))?;
        uverbs.file("ibdev", &device.name)?;
        uverbs.file("abi_version", 1)?;
        uverbs.file("dev", format_args!("231:{}", 192 + device.index))?;
        uverbs.link("device", format!("../../infiniband/{}/device", device.name))?;
    }
    Ok(())
}

fn fill_device(dir: &Dir, device: &Device) -> io::Result<()> {
    let guid = words(&device.guid());
    dir.file("node_type", "1: CA")?;
    dir.file("node_guid", &guid)?;
    dir.file("sys_image_guid", &guid)?;
    dir.file("node_desc", "remanence")?;
    dir.file("fw_ver", env!("CARGO_PKG_VERSION"))?;
    fill_parent(dir, device)?;
    fill_port(&dir.dir("ports/1")?, device)
}

/// `device`: the interface's own where it has hardware, so that a topology can be read; its likeness otherwise.
fn fill_parent(dir: &Dir, device: &Device) -> io::Result<()> {
    let network = device.interface.as_ref().map(|name| Path::new("/sys/class/net").join(name));
    if let (Some(interface), Some(network)) = (&device.interface, &network) {
        // The kernel's software devices name their interface so.
        dir.file("parent", interface)?;
        if network.join("device/net").join(interface).exists() {
            return dir.link("device", fs::canonicalize(network.join("device"))?);
        }
    }
    let parent = dir.dir("device")?;
    parent.file("numa_node", -1)?;
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    parent.file("local_cpulist", online.trim())?;
    parent.file("local_cpus", cpu_mask(online.trim()))?;
    let (Some(interface), Some(network)) = (&device.interface, &network) else { return Ok(()) };
    let interfaces = parent.dir("net")?;
    if network.exists() {
        return interfaces.link(interface, network);
    }
    // This /sys shows another network namespace.
    interfaces.dir(interface)?.file("mtu", device.mtu)
}

fn fill_port(port: &Dir, device: &Device) -> io::Result<()> {
    port.file("state", "4: ACTIVE")?;
    port.file("phys_state", "5: LinkUp")?;
    port.file("rate", device.rate())?;
    port.file("link_layer", "Ethernet")?;
    for (name, value) in [
        ("lid", "0x0"),
        ("lid_mask_count", "0"),
        ("sm_lid", "0x0"),
        ("sm_sl", "0"),
        ("cap_mask", "0x00010000"),
    ] {
        port.file(name, value)?;
    }
    port.dir("pkeys")?.file("0", "0xffff")?;
    let (gids, types, interfaces) =
        (port.dir("gids")?, port.dir("gid_attrs/types")?, port.dir("gid_attrs/ndevs")?);
    let used = device.gids();
    for n in 0..GIDS {
        let name = n.to_string();
        gids.file(&name, words(&used.get(n).unwrap_or(&Ipv6Addr::UNSPECIFIED).octets()))?;
        if n < used.len() {
            types.file(&name, "RoCE v2")?;
            interfaces.file(&name, device.interface.as_deref().unwrap_or_default())?;
        }
    }
    counters::put(&port.0, &device.name)
}

fn fill_dev(root: &Path, devices: &[Device]) -> io::Result<()> {
    let dir = root.join("infiniband");
    fs::create_dir(&dir)?;
    // Readable and writable as programs check, but for who speaks to the kernel's driver every command fails.
    let node = ["full", "null"].map(|name| root.join(name)).into_iter().find(|node| node.exists());
    let node = node.ok_or_else(|| io::Error::other("there is neither /dev/full nor /dev/null"))?;
    let numbered = devices.iter().map(|device| format!("uverbs{}", device.index));
    let named = devices.iter().map(|device| device.name.clone());
    for name in named.chain(numbered).chain(["rdma_cm".into()]) {
        let at = dir.join(name);
        File::create(&at)?;
        mount_bind(&node, &at)?;
    }
    Ok(())
}

/// `0000:0000:0000:0000:0000:ffff:c000:0202`: a GID or GUID as sysfs writes it.
fn words(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (n, pair) in bytes.chunks(2).enumerate() {
        let colon = if n == 0 { "" } else { ":" };
        let _ = write!(text, "{colon}{:02x}{:02x}", pair[0], pair[1]);
    }
    text
}

/// A CPU list, like `0-3,8`, as sysfs' mask: words of 32 bits, the highest first.
fn cpu_mask(list: &str) -> String {
    let mut words: Vec<u32> = vec![0];
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else { continue };
        for cpu in first..=last.min(1 << 16) {
            if words.len() <= cpu / 32 {
                words.resize(cpu / 32 + 1, 0);
            }
            words[cpu / 32] |= 1 << (cpu % 32);
        }
    }
    let words: Vec<String> = words.iter().rev().map(|word| format!("{word:08x}")).collect();
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_sysfs_does() {
        let gid = "::ffff:192.0.2.2".parse::<Ipv6Addr>().expect("an address");
        assert_eq!(words(&gid.octets()), "0000:0000:0000:0000:0000:ffff:c000:0202");
        assert_eq!(cpu_mask("0-1"), "00000003");
        assert_eq!(cpu_mask("0,33-34"), "00000006,00000001");
    }
}
