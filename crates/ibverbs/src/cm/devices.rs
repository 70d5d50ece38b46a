//! Devices as librdmacm shows them: opened once for the process, with a protection domain that whoever brings none
//! shares.

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::IpAddr;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use remanence_wire::Gid;

use crate::abi::*;
use crate::context;
use crate::device::{self, Device};
use crate::per_process::PerProcess;

use super::id::Verbs;
use super::{last_error, verbs};

/// The devices of this host.
pub(super) fn all() -> Vec<&'static Device> {
    device::list().unwrap_or_default()
}

/// Nothing works without devices, and the real library says so at once.
pub(super) fn some() -> Result<(), c_int> {
    // Interfaces that went away since are found out when they are needed.
    static FOUND: AtomicBool = AtomicBool::new(false);
    if !FOUND.load(Ordering::Relaxed) {
        if device::list()?.is_empty() {
            return Err(libc::ENODEV);
        }
        FOUND.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// The device that has an address; with an interface number, only that interface's.
pub(super) fn find(ip: IpAddr, scope: u32) -> Option<&'static Device> {
    let fits = |device: &Device| scope == 0 || device.info.index == scope;
    // Most connections are not the first, and to look at every interface of the host takes longer than all the rest.
    let known = domains()
        .keys()
        .map(|open| open.ctx())
        .find(|ctx| fits(ctx.device) && ctx.context.port().index_of(Gid::from_ip(ip)).is_some());
    if let Some(ctx) = known {
        return Some(ctx.device);
    }
    all().into_iter().find(|device| match device.info.interface {
        Some(_) => fits(device) && device.addresses().contains(&ip),
        None => gids(device).contains(&Gid::from_ip(ip)),
    })
}

/// What stands for a loopback address where loopback has no device: the first address of the first device, as in the kernel,
/// to which loopback is the first device that works.
pub(super) fn stand_in(ip: IpAddr) -> Option<IpAddr> {
    if !ip.is_loopback() || find(ip, 0).is_some() {
        return None;
    }
    let addresses = all().into_iter().flat_map(|device| match device.info.interface {
        Some(_) => device.addresses(),
        None => gids(device).iter().map(|gid| gid.to_ip()).collect(),
    });
    addresses.into_iter().find(|other| other.is_ipv4() == ip.is_ipv4() && !other.is_loopback())
}

/// The addresses that an open device has.
fn gids(device: &'static Device) -> Vec<Gid> {
    context::of_process(device)
        .map(|verbs| Verbs(verbs).ctx().context.port().addresses().collect())
        .unwrap_or_default()
}

/// Where packets to `remote` leave from on a device that is on no interface of the host: the routing table does not
/// know its network, and everyone in it is a neighbour.
pub(super) fn beside_the_host(remote: IpAddr) -> Option<IpAddr> {
    let device = all().into_iter().find(|device| device.info.interface.is_none())?;
    gids(device).iter().map(|gid| gid.to_ip()).find(|ip| ip.is_ipv4() == remote.is_ipv4())
}

/// A domain, which may go from thread to thread.
struct SharedPd(*mut ibv_pd);

// SAFETY: verbs may be called from every thread.
unsafe impl Send for SharedPd {}

/// Those of the devices that are open, which are never closed.
fn domains() -> MutexGuard<'static, HashMap<Verbs, SharedPd>> {
    static DOMAINS: PerProcess<Mutex<HashMap<Verbs, SharedPd>>> = PerProcess::new();
    // Every change is one insertion.
    DOMAINS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often a service is asked for again that nobody listens for yet, for a third of a second in all. Programs such as
/// perftest let the server begin to listen and the client begin to connect at the same moment.
const KNOCKS: u8 = 9;

/// The protection domain of those that bring none. It is never freed, as its device is never closed.
pub(super) fn default_pd(device: Verbs) -> Result<*mut ibv_pd, c_int> {
    let mut domains = domains();
    if let Some(pd) = domains.get(&device) {
        return Ok(pd.0);
    }
    // SAFETY: a live device.
    let pd = unsafe { verbs::ibv_alloc_pd(device.0) };
    if pd.is_null() {
        return Err(last_error());
    }
    device.ctx().context.cm().set_knocks(KNOCKS);
    device.ctx().context.cm().keep_undecided_quiet();
    domains.insert(device, SharedPd(pd));
    Ok(pd)
}

/// How many READs and atomics a device serves at a time, and has outstanding at a time.
pub(super) fn depths(device: Verbs) -> Result<(u8, u8), c_int> {
    let mut attr = ibv_device_attr::zeroed();
    // SAFETY: a live device, and room for its attributes.
    super::check(unsafe { verbs::ibv_query_device(device.0, &raw mut attr) })?;
    let clipped = |n: c_int| u8::try_from(n).unwrap_or(u8::MAX - 1);
    Ok((clipped(attr.max_qp_rd_atom), clipped(attr.max_qp_init_rd_atom)))
}

/// `rdma_get_devices(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let open: Vec<_> = all().into_iter().filter_map(|device| context::of_process(device).ok()).collect();
    // SAFETY: calloc may be called with any numbers; there is room for the devices and a null pointer behind them.
    let list = unsafe {
        let list: *mut *mut ibv_context = libc::calloc(open.len() + 1, size_of::<*mut ibv_context>()).cast();
        if !list.is_null() {
            ptr::copy_nonoverlapping(open.as_ptr(), list, open.len());
        }
        list
    };
    let count = if list.is_null() { 0 } else { open.len() };
    if !num_devices.is_null() {
        // SAFETY: what the C API promises.
        unsafe { num_devices.write(count as c_int) };
    }
    if open.is_empty() && !list.is_null() {
        // SAFETY: calloc made it.
        unsafe { libc::free(list.cast()) };
        return crate::errno::null_with(libc::ENODEV);
    }
    list
}

/// `rdma_free_devices(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: what the C API promises: it came from `rdma_get_devices`.
    unsafe { libc::free(list.cast()) };
}
