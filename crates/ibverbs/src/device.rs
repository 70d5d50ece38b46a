//! Devices: one for each network interface that is up and has an address.
//!
//! A device is a name for an interface; its GIDs are those of the interface when it is opened. Devices are never freed,
//! so that programs may compare pointers between two lists, and use what they opened after they freed the list.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::ptr;

use remanence_link::route::{self, Interface};

use crate::abi::*;
use crate::errno;
use crate::fork::Held;
use crate::settings::{self, LinkChoice, Settings};
use crate::sysfs;

/// A device, with what C sees of it in front.
#[repr(C)]
pub(crate) struct Device {
    pub(crate) c: verbs_device,
    pub(crate) info: Info,
}

// SAFETY: the pointers in `c` lead to statics, and nothing changes after it was made.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// What we know of a device beyond what C sees.
#[derive(Clone, Debug)]
pub(crate) struct Info {
    /// `rem_eth0`.
    pub(crate) name: String,
    /// `eth0`; nothing in shared memory.
    pub(crate) interface: Option<String>,
    /// The interface's number, which also is the device's: of all numbers, another process knows this one.
    pub(crate) index: u32,
    /// The GUID of the node, in host order; C programs see it in big-endian order.
    pub(crate) guid: u64,
    pub(crate) loopback: bool,
}

/// Our device behind C's pointer.
///
/// # Safety
/// `p` came from [`ibv_get_device_list`].
pub(crate) unsafe fn device(p: *mut ibv_device) -> &'static Device {
    // SAFETY: by the contract `c`, whose first field is the public part, is the first field of a Device of ours.
    unsafe { &*p.cast::<Device>() }
}

impl Device {
    /// C's pointer to it.
    pub(crate) fn as_c(&'static self) -> *mut ibv_device {
        ptr::from_ref(self).cast_mut().cast()
    }

    /// The addresses of its interface at the moment, IPv4 first, global before link-local: in this order they become
    /// GIDs, and programs that take the first one get one that works.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let Some(name) = &self.info.interface else { return Vec::new() };
        let all = route::interfaces().unwrap_or_default();
        let mut mine: Vec<IpAddr> =
            all.iter().filter(|i| i.name == *name && usable(i)).map(|i| i.addr).collect();
        mine.sort_by_key(|addr| match addr {
            IpAddr::V4(_) => 0,
            IpAddr::V6(v6) if v6.is_unicast_link_local() => 2,
            IpAddr::V6(_) => 1,
        });
        mine.dedup();
        mine.truncate(GID_TABLE_LEN);
        mine
    }

    /// It is the loopback interface's.
    pub(crate) fn is_loopback(&self) -> bool {
        self.info.loopback
    }

    /// The interface's speed in Mbit/s, where it has one.
    pub(crate) fn speed_mbps(&self) -> Option<u32> {
        let text =
            fs::read_to_string(format!("/sys/class/net/{}/speed", self.info.interface.as_ref()?)).ok()?;
        text.trim().parse().ok().filter(|&mbps| mbps > 0)
    }

    fn new(info: Info) -> Self {
        // Only its address matters: libmlx5 and libefa compare it with their own.
        static OPS: [usize; 1] = [0];
        let mut c = verbs_device::zeroed();
        c.ops = ptr::from_ref(&OPS).cast();
        c.refcount = 1;
        let public = &mut c.device;
        public.node_type = IBV_NODE_CA;
        public.transport_type = IBV_TRANSPORT_IB;
        let sys = sysfs::path();
        let node = format!("uverbs{}", info.index);
        fill(&mut public.name, &info.name);
        fill(&mut public.dev_name, &node);
        fill(&mut public.dev_path, &format!("{sys}/class/infiniband_verbs/{node}"));
        fill(&mut public.ibdev_path, &format!("{sys}/class/infiniband/{}", info.name));
        Self { c, info }
    }
}

pub(crate) use remanence_verbs::GID_TABLE_LEN;

/// Writes a C string, as much of it as fits.
fn fill(into: &mut [c_char], text: &str) {
    let end = into.len() - 1;
    for (to, from) in into[..end].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// Whether an address can be a GID: its interface is up, and the kernel lets us have it. (It does not while it still
/// looks whether somebody else on the network has the same one.)
fn usable(interface: &Interface) -> bool {
    interface.up && UdpSocket::bind(interface.socket_addr(0)).is_ok()
}

/// An EUI-64 made of the interface's MAC, as the kernel makes the GUID of a software device.
fn guid(interface: &str) -> u64 {
    let [a, b, c, d, e, f] = route::hardware_address(interface).unwrap_or_default();
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// The devices there are now, as the settings want them.
pub(crate) fn list() -> Result<Vec<&'static Device>, c_int> {
    let settings = settings::get()?;
    let mut found = if settings.link == LinkChoice::Shm {
        vec![Info {
            name: "rem_shm".to_owned(),
            interface: None,
            index: 0,
            guid: 0x0200_00ff_fe00_0001,
            loopback: false,
        }]
    } else {
        let interfaces = route::interfaces().map_err(|e| errno::of_io(&e))?;
        let mut found = of_interfaces(&interfaces);
        if settings.devices.is_empty() && leads_elsewhere(&interfaces) {
            found.retain(|info| !info.loopback);
        }
        found
    };
    found = chosen(found, settings)?;
    Ok(found.into_iter().map(intern).collect())
}

/// One for each interface that is up, loopback last.
fn of_interfaces(all: &[Interface]) -> Vec<Info> {
    let mut by_rank = BTreeMap::new();
    for interface in all.iter().filter(|i| i.up) {
        by_rank.entry((interface.loopback, interface.index)).or_insert_with(|| Info {
            name: format!("rem_{}", interface.name),
            interface: Some(interface.name.clone()),
            index: interface.index,
            guid: guid(&interface.name),
            loopback: interface.loopback,
        });
    }
    by_rank.into_values().collect()
}

/// Whether some other interface than loopback can be reached at an address that is not of its link alone. Then loopback is no
/// device unless it is named: programs that use all devices there are would choose it towards other hosts, or pair it with
/// another one of the same host. Addresses of loopback are those of the first device then, as in the kernel.
fn leads_elsewhere(all: &[Interface]) -> bool {
    let of_its_link = |addr: IpAddr| match addr {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    all.iter().any(|i| i.up && !i.loopback && !of_its_link(i.addr))
}

/// Those that the settings name.
fn chosen(found: Vec<Info>, settings: &Settings) -> Result<Vec<Info>, c_int> {
    if settings.devices.is_empty() {
        return Ok(found);
    }
    let mut chosen = Vec::new();
    for wanted in &settings.devices {
        let is_it = |info: &&Info| info.name == *wanted || info.interface.as_ref() == Some(wanted);
        if let Some(info) = found.iter().find(is_it) {
            chosen.push(info.clone());
        } else {
            let names: Vec<&str> = found.iter().map(|info| info.name.as_str()).collect();
            eprintln!(
                "remanence: REMANENCE_DEVICE={wanted}: there is no such device; there are {}",
                names.join(", ")
            );
            return Err(libc::EINVAL);
        }
    }
    Ok(chosen)
}

/// Every device that was ever listed.
pub(crate) static KNOWN: Held<Vec<&'static Device>> = Held::new(Vec::new());

/// The one device of that name and number in this process.
fn intern(info: Info) -> &'static Device {
    KNOWN.with(|devices| {
        let same = |d: &&&Device| d.info.name == info.name && d.info.index == info.index;
        if let Some(known) = devices.iter().find(same) {
            return *known;
        }
        let device: &'static Device = Box::leak(Box::new(Device::new(info)));
        devices.push(device);
        device
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    let devices = match list() {
        Ok(devices) => devices,
        Err(e) => {
            if !num_devices.is_null() {
                // SAFETY: not null, so it is the caller's integer.
                unsafe { *num_devices = 0 };
            }
            return errno::null_with(e);
        }
    };
    let n = devices.len();
    let mut pointers: Vec<*mut ibv_device> = devices.into_iter().map(Device::as_c).collect();
    pointers.push(ptr::null_mut());
    // SAFETY: an array of n + 1 pointers is allocated, and filled; `num_devices` is null or the caller's integer.
    unsafe {
        let list = libc::calloc(n + 1, size_of::<*mut ibv_device>()).cast::<*mut ibv_device>();
        if list.is_null() {
            return errno::null_with(libc::ENOMEM);
        }
        ptr::copy_nonoverlapping(pointers.as_ptr(), list, n + 1);
        if !num_devices.is_null() {
            *num_devices = c_int::try_from(n).unwrap_or(c_int::MAX);
        }
        list
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the caller gives back what ibv_get_device_list allocated; the devices stay.
    unsafe { libc::free(list.cast()) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(p: *mut ibv_device) -> *const c_char {
    // SAFETY: the caller's device.
    unsafe { (*p).name.as_ptr() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(p: *mut ibv_device) -> u64 {
    // SAFETY: the caller's device.
    unsafe { device(p) }.info.guid.to_be()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(p: *mut ibv_device) -> c_int {
    // SAFETY: the caller's device.
    c_int::try_from(unsafe { device(p) }.info.index).unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, index: u32, addr: &str, loopback: bool) -> Interface {
        let addr = addr.parse().expect("an address");
        Interface { name: name.to_owned(), index, addr, scope_id: 0, mtu: 1500, up: true, loopback }
    }

    #[test]
    fn each_interface_is_one_device_and_loopback_is_the_last() {
        let all = [
            interface("lo", 1, "127.0.0.1", true),
            interface("eth1", 3, "10.0.0.2", false),
            interface("eth0", 2, "10.0.0.1", false),
            interface("eth0", 2, "fe80::1", false),
            Interface { up: false, ..interface("eth2", 4, "10.0.0.3", false) },
        ];
        let names: Vec<String> = of_interfaces(&all).into_iter().map(|info| info.name).collect();
        assert_eq!(names, ["rem_eth0", "rem_eth1", "rem_lo"]);
    }

    #[test]
    fn loopback_is_a_device_where_nothing_leads_elsewhere() {
        let lo = interface("lo", 1, "127.0.0.1", true);
        let (linked, eth0) =
            (interface("tun0", 3, "fe80::1", false), interface("eth0", 2, "10.0.0.1", false));
        assert!(!leads_elsewhere(std::slice::from_ref(&lo)));
        assert!(!leads_elsewhere(&[lo.clone(), linked.clone()]));
        assert!(leads_elsewhere(&[lo.clone(), linked, eth0.clone()]));
        assert!(!leads_elsewhere(&[lo, Interface { up: false, ..eth0 }]));
    }

    #[test]
    fn the_settings_choose_and_order() {
        let found =
            of_interfaces(&[interface("lo", 1, "::1", true), interface("eth0", 2, "10.0.0.1", false)]);
        let of = |devices: &[&str]| {
            let devices = devices.iter().map(|&d| d.to_owned()).collect();
            let chosen = chosen(found.clone(), &Settings { devices, ..Settings::default() });
            chosen.map(|infos| infos.into_iter().map(|info| info.name).collect::<Vec<_>>())
        };
        assert_eq!(of(&["lo", "rem_eth0"]), Ok(vec!["rem_lo".to_owned(), "rem_eth0".to_owned()]));
        assert_eq!(of(&["eth7"]), Err(libc::EINVAL));
    }

    #[test]
    fn a_device_is_the_same_in_every_list() {
        let (a, b) = (list().expect("devices"), list().expect("devices"));
        assert!(!a.is_empty(), "every test machine has a loopback interface");
        assert!(a.iter().zip(&b).all(|(x, y)| ptr::eq(*x, *y)));
    }
}
