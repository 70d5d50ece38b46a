//! Threads that can be started in a forked child, whatever its parent's other threads did at that moment.
//!
//! A thread of the standard library notes itself under a process-wide lock as it starts and as it ends (for its message about a
//! stack that overflowed). A fork that meets another thread there leaves the lock taken in the child for ever, and
//! every thread that the child starts waits for it. These do without: their stacks have guard pages all the same.

use std::ffi::{CStr, c_void};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

type Body = Box<dyn FnOnce() + Send>;

/// A thread. Dropped without [`join`](Self::join), it goes on by itself.
#[derive(Debug)]
pub struct Thread(libc::pthread_t);

impl Thread {
    /// Starts one. A panic ends the thread and no other.
    ///
    /// # Errors
    /// The system has no room for another thread.
    pub fn spawn(name: &CStr, body: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let body: Box<Body> = Box::new(Box::new(body));
        let argument = Box::into_raw(body);
        let mut id = 0;
        // SAFETY: `start` takes the box over, once, if the thread comes to be.
        let error = unsafe { libc::pthread_create(&raw mut id, std::ptr::null(), start, argument.cast()) };
        if error != 0 {
            // SAFETY: nobody else has it.
            drop(unsafe { Box::from_raw(argument) });
            return Err(io::Error::from_raw_os_error(error));
        }
        // SAFETY: a thread that was neither joined nor detached, and a string that ends.
        unsafe { libc::pthread_setname_np(id, name.as_ptr()) };
        Ok(Self(id))
    }

    /// Waits for its end.
    pub fn join(self) {
        let id = self.0;
        std::mem::forget(self);
        // SAFETY: it was neither joined nor detached, and is not this thread, which could not own itself.
        unsafe { libc::pthread_join(id, std::ptr::null_mut()) };
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: it was not joined.
        unsafe { libc::pthread_detach(self.0) };
    }
}

extern "C" fn start(argument: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` made it for this call.
    let body = unsafe { Box::from_raw(argument.cast::<Body>()) };
    // The panic's message has been printed; there is nobody else to tell.
    let _ = catch_unwind(AssertUnwindSafe(body));
    std::ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn it_runs_once_has_its_name_and_a_panic_ends_it_alone() {
        let runs = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&runs);
        let (said, heard) = std::sync::mpsc::channel();
        let (named, wait) = std::sync::mpsc::channel::<()>();
        let thread = Thread::spawn(c"a-name", move || {
            wait.recv().expect("it is told");
            said.send(std::fs::read_to_string("/proc/thread-self/comm").expect("proc(5)")).expect("heard");
            counted.fetch_add(1, Ordering::Relaxed);
            panic!("as intended");
        })
        .expect("room for a thread");
        named.send(()).expect("it waits");
        assert_eq!(heard.recv().expect("said").trim(), "a-name");
        thread.join();
        assert_eq!((runs.load(Ordering::Relaxed), Arc::strong_count(&runs)), (1, 1), "what it held is gone");
        drop(Thread::spawn(c"another", || ()).expect("room for a thread"));
    }
}
