//! Identifiers as programs make, move and set them.

use std::ffi::{c_int, c_void};
use std::task::Poll;

use crate::abi::*;
use crate::sleep::Sleep;

use super::channel::Channel;
use super::event::EventRef;
use super::id::{Id, State};
use super::{answer, devices};

/// A new identifier; with no channel, one whose calls wait.
pub(super) fn create(
    channel: Option<Channel>,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<Id, c_int> {
    devices::some()?;
    if !matches!(ps, RDMA_PS_TCP | RDMA_PS_UDP | RDMA_PS_IPOIB | RDMA_PS_IB) {
        return Err(libc::EINVAL);
    }
    let sync = channel.is_none();
    let channel = channel.map_or_else(Channel::new, Ok)?;
    let id = Id::new(context, ps, qp_type);
    id.set_channel(channel.c());
    id.lock().sync = sync;
    Ok(id)
}

/// Waits for the answer to what was just asked for, where the program wants that.
pub(super) fn complete(id: Id) -> Result<(), c_int> {
    if !forgets_the_last(id) {
        return Ok(());
    }
    let event = id.events().next()?;
    completed(id, event)
}

/// Whether calls with this identifier wait; if so, the event that the last one left is acknowledged.
pub(super) fn forgets_the_last(id: Id) -> bool {
    if !id.lock().sync {
        return false;
    }
    if let Some(event) = EventRef::of(id.event()) {
        id.set_event(std::ptr::null_mut());
        event.acknowledge();
    }
    true
}

/// The call `begin` and [`complete`], up to its next sleep.
pub(super) fn step(
    id: Id,
    sleep: &mut Sleep,
    begin: impl FnOnce() -> Result<Answer, c_int>,
) -> Poll<Result<(), c_int>> {
    if sleep.begins() {
        match begin() {
            Ok(Answer::Comes) if forgets_the_last(id) => {}
            begun => return Poll::Ready(begun.map(|_| ())),
        }
    }
    id.events().step(sleep).map(|next| next.and_then(|event| completed(id, event)))
}

/// Whether an event answers what was asked for.
pub(super) enum Answer {
    Comes,
    None,
}

/// What the event says that was waited for.
fn completed(id: Id, event: *mut rdma_cm_event) -> Result<(), c_int> {
    id.set_event(event);
    // SAFETY: it was just handed out, and is ours until the program sees it.
    let event = unsafe { &*event };
    match event.status {
        0 => Ok(()),
        _ if event.event == RDMA_CM_EVENT_REJECTED => Err(libc::ECONNREFUSED),
        status => Err(status.abs()),
    }
}

/// Moves an identifier to another channel, or to one of its own.
pub(super) fn migrate(id: Id, channel: Option<Channel>) -> Result<(), c_int> {
    let sync = channel.is_none();
    let was_sync = id.lock().sync;
    if was_sync && sync {
        return Err(libc::EINVAL);
    }
    let new = channel.map_or_else(Channel::new, Ok)?;
    let old = id.events();
    if old.c() != new.c() {
        let inner = id.lock();
        if let Some((verbs, conn)) = inner.connection() {
            verbs.ctx().context.cm().adopt(conn, &new.queue(), id.token());
        }
        for &(verbs, listener) in &inner.listeners {
            verbs.ctx().context.cm().adopt_listener(listener, &new.queue());
        }
        for &token in inner.tokens.iter().chain([&id.token()]) {
            old.queue().move_to(token, &new.queue());
        }
        id.set_channel(new.c());
    }
    if was_sync && let Some(event) = EventRef::of(id.event()) {
        id.set_event(std::ptr::null_mut());
        event.acknowledge();
    }
    let mut inner = id.lock();
    inner.sync = sync;
    // What was handed out on the old channel may still be looked at.
    drop(id.wait_acked(inner));
    if was_sync {
        old.destroy();
    }
    Ok(())
}

/// `rdma_create_id(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    // SAFETY: what the C API promises.
    let channel = (!channel.is_null()).then(|| unsafe { Channel::of(channel) });
    let ud = matches!(ps, RDMA_PS_IPOIB | RDMA_PS_UDP);
    let created = create(channel, context, ps, if ud { IBV_QPT_UD } else { IBV_QPT_RC });
    // SAFETY: what the C API promises.
    answer(created.map(|created| unsafe { id.write(created.c()) }))
}

/// `rdma_destroy_id(3)`: waits until all of the identifier's events are acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: what the C API promises.
    unsafe { Id::of(id) }.destroy();
    0
}

/// `rdma_migrate_id(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    // SAFETY: what the C API promises.
    let (id, channel) = unsafe { (Id::of(id), (!channel.is_null()).then(|| Channel::of(channel))) };
    answer(migrate(id, channel))
}

/// An option's value, if it has the right size.
///
/// # Safety
/// `value` has `len` bytes.
unsafe fn option<T: Copy>(value: *const c_void, len: usize) -> Result<T, c_int> {
    if value.is_null() || len != size_of::<T>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: by the contract and the line above; T is a number in all uses here.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// `rdma_set_option(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rem_rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    // SAFETY: what the C API promises.
    let id = unsafe { Id::of(id) };
    let set = || {
        let mut inner = id.lock();
        match (level, optname) {
            (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => {
                // SAFETY: what the C API promises.
                inner.tos = Some(unsafe { option::<u8>(optval, optlen) }?);
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
                // SAFETY: what the C API promises.
                let reuse = unsafe { option::<c_int>(optval, optlen) }? != 0;
                if !reuse && inner.state != State::Idle {
                    return Err(libc::EINVAL);
                }
                inner.reuseaddr = reuse;
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
                // SAFETY: what the C API promises.
                let only = unsafe { option::<c_int>(optval, optlen) }? != 0;
                if !matches!(inner.state, State::Idle | State::Bound) {
                    return Err(libc::EINVAL);
                }
                inner.afonly = Some(only);
            }
            (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
                // SAFETY: what the C API promises.
                let timeout = unsafe { option::<u8>(optval, optlen) }?;
                if id.qp_type() != IBV_QPT_RC {
                    return Err(libc::EINVAL);
                }
                inner.ack_timeout = Some(timeout & 0x1f);
            }
            // RDMA_OPTION_IB_PATH is for subnets with a subnet manager, which RoCE has not.
            (_, _) => return Err(libc::ENOSYS),
        }
        Ok(())
    };
    answer(set())
}
