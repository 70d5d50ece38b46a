//! Open devices: the table of functions that a program calls through, and its attributes.

use std::collections::HashMap;
use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::{Mutex, MutexGuard, PoisonError};

use remanence_rnic::{CqHandle, SrqHandle};
use remanence_verbs::Context;
use remanence_wire::Qpn;

use crate::abi::{ibv_context, ibv_cq, ibv_qp, ibv_srq, verbs_context};
use crate::device::Device;

/// An open device.
pub(crate) struct Ctx {
    pub(crate) context: Context,
    pub(crate) device: &'static Device,
    table: Mutex<Table>,
}

impl Ctx {
    /// The C objects of this device by the engine's names, for asynchronous events.
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        // Every change is one insertion or removal: nothing is half done after a panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A C object and how many of its asynchronous events were handed out: all of them must be acknowledged before it
/// is destroyed.
pub(crate) struct Entry<T> {
    pub(crate) object: *mut T,
    pub(crate) reported: u32,
    /// Of a CQ: completion events that were handed out. They too must be acknowledged.
    pub(crate) completions: u32,
}

/// Events of a CQ that were handed out.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Reported {
    pub(crate) asynchronous: u32,
    pub(crate) completions: u32,
}

// SAFETY: the pointer is a name that is handed back to C; nothing here reads through it.
unsafe impl<T> Send for Entry<T> {}

/// From the engine's names of objects to C's pointers. Who creates a QP, CQ or SRQ puts it in; who destroys it takes it
/// out, and is told how many asynchronous events to wait for.
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

    /// Its events are no longer handed out; says how many were.
    pub(crate) fn remove_qp(&mut self, qpn: Qpn) -> u32 {
        self.qps.remove(&qpn).map_or(0, |entry| entry.reported)
    }

    /// As [`remove_qp`](Self::remove_qp).
    pub(crate) fn remove_cq(&mut self, cq: CqHandle) -> Reported {
        let reported =
            |entry: Entry<_>| Reported { asynchronous: entry.reported, completions: entry.completions };
        self.cqs.remove(&cq).map(reported).unwrap_or_default()
    }

    /// As [`remove_qp`](Self::remove_qp).
    pub(crate) fn remove_srq(&mut self, srq: SrqHandle) -> u32 {
        self.srqs.remove(&srq).map_or(0, |entry| entry.reported)
    }

    /// The C object of a QP number, about to be told of an event.
    pub(crate) fn report_qp(&mut self, qpn: Qpn) -> Option<*mut ibv_qp> {
        self.qps.get_mut(&qpn).map(Entry::report)
    }

    /// As [`report_qp`](Self::report_qp).
    pub(crate) fn report_cq(&mut self, cq: CqHandle) -> Option<*mut ibv_cq> {
        self.cqs.get_mut(&cq).map(Entry::report)
    }

    /// The C object of a CQ, about to be told of a completion event. `None`: it was destroyed after the event was
    /// taken from its channel, and the event is nobody's.
    pub(crate) fn report_completion(&mut self, cq: CqHandle) -> Option<*mut ibv_cq> {
        let entry = self.cqs.get_mut(&cq)?;
        entry.completions = entry.completions.wrapping_add(1);
        Some(entry.object)
    }

    /// As [`report_qp`](Self::report_qp).
    pub(crate) fn report_srq(&mut self, srq: SrqHandle) -> Option<*mut ibv_srq> {
        self.srqs.get_mut(&srq).map(Entry::report)
    }
}

impl<T> Entry<T> {
    fn new(object: *mut T) -> Self {
        Self { object, reported: 0, completions: 0 }
    }

    fn report(&mut self) -> *mut T {
        self.reported = self.reported.wrapping_add(1);
        self.object
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

/// A context of the device for this process, opened on first need and never closed: what librdmacm works with.
pub(crate) fn of_process(device: &'static Device) -> Result<*mut ibv_context, c_int> {
    let _ = device;
    Err(libc::EOPNOTSUPP)
}
