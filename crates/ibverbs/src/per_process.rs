//! State of this process, which a forked child begins anew: its parent's belongs to threads and devices that the child
//! has not, and a lock in it may be held for ever.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::fork;

struct Made<T> {
    generation: u64,
    value: T,
}

/// A value that is made when it is first asked for, once in each process, and never freed.
pub(crate) struct PerProcess<T: 'static> {
    current: AtomicPtr<Made<T>>,
}

impl<T: Default + Sync> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { current: AtomicPtr::new(ptr::null_mut()) }
    }

    pub(crate) fn get(&self) -> &'static T {
        let generation = fork::generation();
        loop {
            let current = self.current.load(Ordering::Acquire);
            // SAFETY: what was once put here is never freed.
            if let Some(made) = unsafe { current.as_ref() }
                && made.generation == generation
            {
                return &made.value;
            }
            let new = Box::into_raw(Box::new(Made { generation, value: T::default() }));
            if self.current.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: another thread was faster, and nobody has seen ours.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn everyone_gets_the_same_one() {
        static SHARED: PerProcess<Mutex<Vec<u32>>> = PerProcess::new();
        std::thread::scope(|scope| {
            for i in 0..8 {
                scope.spawn(move || SHARED.get().lock().unwrap().push(i));
            }
        });
        assert_eq!(SHARED.get().lock().unwrap().len(), 8);
    }
}
