//! Open devices: the block of memory that C has a pointer into, and what is behind it.
//!
//! One block holds the grown context and ends with the `ibv_context` whose address programs know; see `abi/context.rs`.
//! Most verbs are not exported symbols but pointers in there: [`ops`](crate::ops) fills them.

use std::collections::HashMap;
use std::ffi::c_int;
use std::fs::File;
use std::mem::offset_of;
use std::os::fd::AsRawFd as _;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use remanence_link::udp;
use remanence_link::{shm, xdp};
use remanence_rnic::{AsyncEvent, CqHandle, SrqHandle, VerbError};
use remanence_verbs::{Context, DeviceEvent, LinkKind, Options};
use remanence_wire::Qpn;

use crate::abi::*;
use crate::capture;
use crate::cm;
use crate::counters;
use crate::device::{Device, device};
use crate::errno;
use crate::fork::{self, Held};
use crate::ops;
use crate::settings::{self, LinkChoice};

/// An open device.
pub(crate) struct Ctx {
    pub(crate) context: Context,
    pub(crate) device: &'static Device,
    table: Mutex<Table>,
    /// `cmd_fd`: where a program would find the kernel's driver. It may be duplicated; nobody listens there.
    commands: File,
}

impl Ctx {
    /// The C objects of this device by the engine's names, for asynchronous events.
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        // Every change is one insertion or removal: nothing is half done after a panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In a forked child: from here on it only refuses.
    ///
    /// # Safety
    /// No other thread uses it, or ever did in this process.
    pub(crate) unsafe fn abandon(&mut self) {
        // Its threads, and the state of its locks, stayed with the parent. What a parent's thread may have had in its
        // hands is not looked at again, not even to free it.
        // SAFETY: nobody refers to the table.
        unsafe { ptr::write(&raw mut self.table, Mutex::default()) };
        self.context.abandon();
    }

    /// Destroys a QP in the engine, and forgets it: its events that nobody took yet vanish. Says how many were handed
    /// out; the caller waits until all of those are acknowledged.
    ///
    /// The engine gives numbers again. So the table is locked from before this one is free until it is out of it: a new
    /// QP of the same number comes in after that.
    pub(crate) fn destroy_qp(
        &self,
        qpn: Qpn,
        destroy: impl FnOnce() -> Result<(), VerbError>,
    ) -> Result<u32, c_int> {
        let mut table = self.table();
        destroy().map_err(errno::of_verb)?;
        let entry = table.qps.remove(&qpn);
        self.context.retain_async_events(|event| {
            !matches!(
                event,
                DeviceEvent::Affiliated(
                    AsyncEvent::CommEst(q)
                        | AsyncEvent::SqDrained(q)
                        | AsyncEvent::LastWqeReached(q)
                        | AsyncEvent::QpRequestError(q)
                        | AsyncEvent::QpAccessError(q)
                        | AsyncEvent::QpFatal(q)
                ) if *q == qpn
            )
        });
        Ok(entry.map_or(0, |entry| entry.reported.asynchronous))
    }

    /// As [`destroy_qp`](Self::destroy_qp).
    pub(crate) fn destroy_cq(
        &self,
        cq: CqHandle,
        destroy: impl FnOnce() -> Result<(), VerbError>,
    ) -> Result<Reported, c_int> {
        let mut table = self.table();
        destroy().map_err(errno::of_verb)?;
        let entry = table.cqs.remove(&cq);
        self.context.retain_async_events(|e| *e != DeviceEvent::Affiliated(AsyncEvent::CqError(cq)));
        Ok(entry.map(|entry| entry.reported).unwrap_or_default())
    }

    /// As [`destroy_qp`](Self::destroy_qp).
    pub(crate) fn destroy_srq(
        &self,
        srq: SrqHandle,
        destroy: impl FnOnce() -> Result<(), VerbError>,
    ) -> Result<u32, c_int> {
        let mut table = self.table();
        destroy().map_err(errno::of_verb)?;
        let entry = table.srqs.remove(&srq);
        self.context.retain_async_events(|e| *e != DeviceEvent::Affiliated(AsyncEvent::SrqLimitReached(srq)));
        Ok(entry.map_or(0, |entry| entry.reported.asynchronous))
    }
}

/// A C object and how many of its events were handed out: all of them must be acknowledged before it is destroyed.
pub(crate) struct Entry<T> {
    object: *mut T,
    reported: Reported,
}

/// Events of an object that were handed out.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Reported {
    pub(crate) asynchronous: u32,
    /// Of a CQ.
    pub(crate) completions: u32,
}

// SAFETY: the pointer is a name that is handed back to C; nothing here reads through it.
unsafe impl<T> Send for Entry<T> {}

impl<T> Entry<T> {
    fn new(object: *mut T) -> Self {
        Self { object, reported: Reported::default() }
    }

    fn report(&mut self) -> *mut T {
        self.reported.asynchronous = self.reported.asynchronous.wrapping_add(1);
        self.object
    }
}

/// From the engine's names of objects to C's pointers. Who creates a QP, CQ or SRQ puts it in; it goes out when it is
/// destroyed ([`Ctx::destroy_qp`]).
#[derive(Default)]
pub(crate) struct Table {
    qps: HashMap<Qpn, Entry<ibv_qp>>,
    cqs: HashMap<CqHandle, Entry<ibv_cq>>,
    srqs: HashMap<SrqHandle, Entry<ibv_srq>>,
}

impl Table {
    pub(crate) fn add_qp(&mut self, qpn: Qpn, object: *mut ibv_qp) {
        self.qps.insert(qpn, Entry::new(object));
    }

    pub(crate) fn add_cq(&mut self, cq: CqHandle, object: *mut ibv_cq) {
        self.cqs.insert(cq, Entry::new(object));
    }

    pub(crate) fn add_srq(&mut self, srq: SrqHandle, object: *mut ibv_srq) {
        self.srqs.insert(srq, Entry::new(object));
    }

    /// The C object of a QP number; it is being told of an asynchronous event.
    pub(crate) fn report_qp(&mut self, qpn: Qpn) -> Option<*mut ibv_qp> {
        self.qps.get_mut(&qpn).map(Entry::report)
    }

    /// As [`report_qp`](Self::report_qp).
    pub(crate) fn report_cq(&mut self, cq: CqHandle) -> Option<*mut ibv_cq> {
        self.cqs.get_mut(&cq).map(Entry::report)
    }

    /// As [`report_qp`](Self::report_qp).
    pub(crate) fn report_srq(&mut self, srq: SrqHandle) -> Option<*mut ibv_srq> {
        self.srqs.get_mut(&srq).map(Entry::report)
    }

    /// The C object of a CQ, if it still is the one that asked; it is being told of a completion.
    pub(crate) fn report_completion(&mut self, cq: CqHandle, object: *mut ibv_cq) -> Option<*mut ibv_cq> {
        let entry = self.cqs.get_mut(&cq).filter(|entry| entry.object == object)?;
        entry.reported.completions = entry.reported.completions.wrapping_add(1);
        Some(entry.object)
    }
}

/// Our device behind C's pointer.
///
/// # Safety
/// `p` came from `ibv_open_device` (or from `rdma_cm_id.verbs`) and was not closed yet.
pub(crate) unsafe fn ctx<'a>(p: *mut ibv_context) -> &'a Ctx {
    // SAFETY: by the contract `p` is the last field of a live verbs_context of ours, whose `priv_` is a live Ctx.
    unsafe { &*(*verbs(p)).priv_.cast::<Ctx>() }
}

/// The grown context around C's pointer.
pub(crate) fn verbs(p: *mut ibv_context) -> *mut verbs_context {
    p.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
}

/// Opens a device for this process. `removed` is called with the interface's number when that is no more.
fn open(device: &'static Device, removed: Option<fn(u32)>) -> Result<*mut ibv_context, c_int> {
    let settings = settings::get()?;
    let link = match settings.link {
        LinkChoice::Udp => LinkKind::Udp(udp::Options::new(device.addresses())),
        LinkChoice::Xdp => {
            LinkKind::Xdp(xdp::Config::new(device.info.interface.as_deref().unwrap_or_default()))
        }
        LinkChoice::Shm => LinkKind::Shm(shm::Config { address: settings.address, ..shm::Config::default() }),
    };
    if settings.link == LinkChoice::Udp && device.addresses().is_empty() {
        // A program that tries again and again is not told again and again.
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Ordering::Relaxed) {
            let interface = device.info.interface.as_deref().unwrap_or_default();
            eprintln!(
                "remanence: cannot open {}: the interface {interface} has no address that can be used now; see `ip address`",
                device.info.name
            );
        }
        return Err(libc::ENODEV);
    }
    let mut options = Options::new(link);
    options.mtu = settings.mtu.unwrap_or(options.mtu);
    options.follow = device.info.interface.clone();
    options.removed = removed.map(|tell| (tell, device.info.index));
    options.faults = settings.faults;
    options.capture = settings.capture.as_deref().map(capture::file);
    let context = Context::open(options).map_err(|e| {
        eprintln!("remanence: cannot open {}: {e}", device.info.name);
        errno::of(&e)
    })?;
    let commands = File::open("/dev/null").map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?;
    let ctx = Box::new(Ctx { context, device, table: Mutex::default(), commands });
    let mut block = Box::new(verbs_context::zeroed());
    let c = &mut block.context;
    c.device = device.as_c();
    c.cmd_fd = ctx.commands.as_raw_fd();
    c.async_fd = ctx.context.async_fd().as_raw_fd();
    c.num_comp_vectors = std::thread::available_parallelism().map_or(1, |n| n.get().try_into().unwrap_or(1));
    c.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    c.abi_compat = ptr::without_provenance_mut(usize::MAX);
    block.sz = size_of::<verbs_context>();
    ops::install(&mut block);
    block.priv_ = Box::into_raw(ctx).cast();
    let block = Box::into_raw(block);
    fork::opened(block);
    counters::opened(block, &device.info.name);
    // SAFETY: just allocated.
    Ok(unsafe { &raw mut (*block).context })
}

/// The contexts of [`of_process`]: generation, device, context.
pub(crate) static OF_PROCESS: Held<Vec<(u64, usize, usize)>> = Held::new(Vec::new());

/// A context of the device for this process, opened on first need and never closed: what librdmacm works with. A forked
/// child gets its own.
pub(crate) fn of_process(device: &'static Device) -> Result<*mut ibv_context, c_int> {
    OF_PROCESS.with(|contexts| {
        let (generation, key) = (fork::generation(), device.as_c().addr());
        if let Some(&(.., p)) = contexts.iter().find(|&&(g, d, _)| (g, d) == (generation, key)) {
            return Ok(ptr::with_exposed_provenance_mut(p));
        }
        let p = open(device, Some(cm::device_removed))?;
        contexts.retain(|&(g, ..)| g == generation);
        contexts.push((generation, key, p.expose_provenance()));
        Ok(p)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(p: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: the caller's device.
    open(unsafe { device(p) }, None).unwrap_or_else(errno::null_with)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(p: *mut ibv_context) -> c_int {
    let block = verbs(p);
    counters::closed(block);
    fork::closed(block);
    // SAFETY: the caller gives back what `open` made of two boxes.
    unsafe {
        let ctx = Box::from_raw((*block).priv_.cast::<Ctx>());
        drop(Box::from_raw(block));
        drop(ctx);
    }
    0
}

/// There is no kernel to share a device's objects through.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_device(_cmd_fd: c_int) -> *mut ibv_context {
    errno::null_with(libc::EOPNOTSUPP)
}
