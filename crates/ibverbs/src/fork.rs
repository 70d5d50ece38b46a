//! Forked children.
//!
//! A child has the memory of its parent, and none of its threads. So its copies of the parent's contexts are dead: they
//! are abandoned at once, which closes the descriptors that belong to the parent's devices, and from then on only
//! refuse. New devices can be opened. The parent notices nothing. (The memory that `fork` shares copy-on-write is no
//! matter: no hardware holds physical addresses of it.)

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::*;
use crate::context::Ctx;

/// The contexts that are open, behind a lock that is held across `fork`, so that a child finds the list in order.
struct Registry {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    open: UnsafeCell<Vec<*mut verbs_context>>,
}

// SAFETY: `open` is reached with the lock held only; the pointers are used by a child that is alone.
unsafe impl Sync for Registry {}

static REGISTRY: Registry =
    Registry { lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER), open: UnsafeCell::new(Vec::new()) };

static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Another number in every child: what was made under another one is not ours.
pub(crate) fn generation() -> u64 {
    watch();
    GENERATION.load(Ordering::Relaxed)
}

/// From here on forks are noticed.
fn watch() {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: three functions that live as long as the process: the library is never unloaded.
        unsafe {
            libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child))
        };
    });
}

impl Registry {
    fn lock(&self) {
        // SAFETY: a mutex that was initialized by its constant, and never moves.
        unsafe { libc::pthread_mutex_lock(self.lock.get()) };
    }

    fn unlock(&self) {
        // SAFETY: as above; this thread holds it. (In a child: its only thread is the copy of the one that forked.)
        unsafe { libc::pthread_mutex_unlock(self.lock.get()) };
    }

    fn with<R>(&self, f: impl FnOnce(&mut Vec<*mut verbs_context>) -> R) -> R {
        self.lock();
        // SAFETY: under the lock this is the only reference.
        let result = f(unsafe { &mut *self.open.get() });
        self.unlock();
        result
    }
}

extern "C" fn before_fork() {
    REGISTRY.lock();
}

extern "C" fn after_fork_in_parent() {
    REGISTRY.unlock();
}

extern "C" fn after_fork_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the parent's thread that forked took the lock, and its copy is the only thread here.
    let open = std::mem::take(unsafe { &mut *REGISTRY.open.get() });
    for block in &open {
        // SAFETY: contexts in the list are open, and nobody else exists who could close or use them.
        unsafe {
            (*(**block).priv_.cast::<Ctx>()).abandon();
            (**block).context.async_fd = -1;
            (**block).context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        }
    }
    REGISTRY.unlock();
}

/// A context is open from here on.
pub(crate) fn opened(block: *mut verbs_context) {
    watch();
    REGISTRY.with(|open| open.push(block));
}

/// It is about to be closed.
pub(crate) fn closed(block: *mut verbs_context) {
    REGISTRY.with(|open| open.retain(|&other| other != block));
}

/// Nothing needs to be done to the memory that is registered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    IBV_FORK_UNNEEDED
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
