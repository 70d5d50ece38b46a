//! What becomes of contexts in a forked child.
//!
//! A child has the memory of its parent, and none of its threads. So its copies of the parent's contexts are dead: they
//! are abandoned at once, which closes the descriptors that belong to the parent's devices, and from then on only
//! refuse. New devices can be opened. The parent notices nothing. (The memory that `fork` shares copy-on-write is no
//! matter: no hardware holds physical addresses of it.)

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::abi::*;
use crate::context::{self, Ctx};
use crate::device;

/// State of the process behind a lock that is held across `fork`, so that a child finds it in order, and free: a plain
/// mutex stays locked for ever in a child if another thread of the parent had it.
///
/// Each is in [`before_fork`] and the two functions after it.
pub(crate) struct Held<T> {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached with the lock held only.
unsafe impl<T: Send> Sync for Held<T> {}

impl<T> Held<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER), value: UnsafeCell::new(value) }
    }

    fn lock(&self) {
        // SAFETY: a mutex that was initialized by its constant, and never moves: these are statics.
        unsafe { libc::pthread_mutex_lock(self.lock.get()) };
    }

    fn unlock(&self) {
        // SAFETY: as above; this thread holds it. (In a child: its only thread is the copy of the one that forked.)
        unsafe { libc::pthread_mutex_unlock(self.lock.get()) };
    }

    pub(crate) fn with<R>(&'static self, f: impl FnOnce(&mut T) -> R) -> R {
        self.lock();
        self.with_locked(f)
    }

    /// `None` if the lock is taken, perhaps by this very thread, which a signal interrupted.
    fn try_with<R>(&'static self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        // SAFETY: as in `lock`.
        let locked = unsafe { libc::pthread_mutex_trylock(self.lock.get()) } == 0;
        locked.then(|| self.with_locked(f))
    }

    fn with_locked<R>(&'static self, f: impl FnOnce(&mut T) -> R) -> R {
        /// Unlocks, whether `f` returned or panicked.
        struct Guard<T: 'static>(&'static Held<T>);
        impl<T> Drop for Guard<T> {
            fn drop(&mut self) {
                self.0.unlock();
            }
        }
        let _guard = Guard(self);
        // SAFETY: under the lock, which this thread took, this is the only reference.
        f(unsafe { &mut *self.value.get() })
    }
}

/// A context that is open.
struct Open(*mut verbs_context);

// SAFETY: the pointer is compared, and used by a child that is alone.
unsafe impl Send for Open {}

static REGISTRY: Held<Vec<Open>> = Held::new(Vec::new());

static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Another number in every child: what was made under another one is not ours.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// Forks are noticed from when the library is loaded: a thread that asked for it later could itself be overtaken by one.
#[used]
#[unsafe(link_section = ".init_array")]
static WATCH: extern "C" fn() = {
    extern "C" fn watch() {
        // SAFETY: three functions that live as long as the process: the library is never unloaded.
        unsafe {
            libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child))
        };
    }
    watch
};

/// Takes the locks, in the order in which they nest: a context of the process is opened under the first.
extern "C" fn before_fork() {
    context::OF_PROCESS.lock();
    device::KNOWN.lock();
    REGISTRY.lock();
}

extern "C" fn after_fork_in_parent() {
    REGISTRY.unlock();
    device::KNOWN.unlock();
    context::OF_PROCESS.unlock();
}

extern "C" fn after_fork_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the parent's thread that forked took the lock, and its copy is the only thread here.
    let open = std::mem::take(unsafe { &mut *REGISTRY.value.get() });
    for Open(block) in &open {
        // SAFETY: contexts in the list are open, and nobody else exists who could close or use them.
        unsafe {
            (*(**block).priv_.cast::<Ctx>()).abandon();
            (**block).context.async_fd = -1;
            (**block).context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        }
    }
    after_fork_in_parent();
}

/// When a process ends by `exit` with devices open, what the network brought it that is for other processes of this host
/// goes on to them: as sockets close, the kernel's choice among the rest changes, and for a moment anybody may get
/// anybody's.
///
/// If it delays its packets, the rest of them leaves too, as it would from a wire that is long, and the peers of its
/// connections hear of it. Of no other: programs such as rping end while threads of theirs still use what was destroyed,
/// and survive only because exit comes at once.
#[used]
#[unsafe(link_section = ".fini_array")]
static PART: extern "C" fn() = {
    /// Of the whole farewell, should another thread hold what it needs and never let go: `exit` may have been called by
    /// a signal handler.
    const LIMIT_SECONDS: libc::time_t = 1;

    extern "C" fn part_from_all(_: *mut c_void) -> *mut c_void {
        REGISTRY.with(|open| {
            for Open(block) in open.iter() {
                // SAFETY: contexts in the list are open, and are not closed while we hold its lock.
                unsafe { (*(**block).priv_.cast::<Ctx>()).context.part() };
            }
        });
        std::ptr::null_mut()
    }

    /// What handing on may take: it waits for a thread that may have to wait for a core.
    const HAND_ON_LIMIT: Duration = Duration::from_millis(100);

    fn leave_all() {
        REGISTRY.try_with(|open| {
            for Open(block) in open.iter() {
                // SAFETY: contexts in the list are open, and are not closed while we hold its lock.
                unsafe { (*(**block).priv_.cast::<Ctx>()).context.leave(HAND_ON_LIMIT) };
            }
        });
    }

    extern "C" fn part() {
        // SAFETY: getenv(3), while other threads may set variables; as all of C's programs call it.
        let delays = unsafe { !libc::getenv(c"REMANENCE_DELAY".as_ptr()).is_null() };
        if delays { part_within_limit() } else { leave_all() }
    }

    fn part_within_limit() {
        // SAFETY: plain C calls, with pointers to locals; the thread is waited for, or dies with the process that ends
        // right after this.
        unsafe {
            let mut thread = std::mem::zeroed();
            if REGISTRY.try_with(|open| open.is_empty()).unwrap_or(true)
                || libc::pthread_create(
                    &raw mut thread,
                    std::ptr::null(),
                    part_from_all,
                    std::ptr::null_mut(),
                ) != 0
            {
                return;
            }
            let mut end = std::mem::zeroed();
            libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut end);
            end.tv_sec += LIMIT_SECONDS;
            pthread_timedjoin_np(thread, std::ptr::null_mut(), &raw const end);
        }
    }
    part
};

unsafe extern "C" {
    /// pthread_tryjoin_np(3).
    fn pthread_timedjoin_np(
        thread: libc::pthread_t,
        ret: *mut *mut c_void,
        abstime: *const libc::timespec,
    ) -> c_int;
}

/// A context is open from here on.
pub(crate) fn opened(block: *mut verbs_context) {
    REGISTRY.with(|open| open.push(Open(block)));
}

/// It is about to be closed.
pub(crate) fn closed(block: *mut verbs_context) {
    REGISTRY.with(|open| open.retain(|other| other.0 != block));
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
