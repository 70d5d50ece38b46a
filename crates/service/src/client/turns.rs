//! Something that one task uses at a time, and others wait for in the order in which they asked.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Something that tasks use in turn. Clones are the same thing.
#[derive(Debug)]
pub struct Turns<T>(Arc<Mutex<State<T>>>);

#[derive(Debug)]
struct State<T> {
    /// Not there while it is somebody's turn.
    value: Option<Box<T>>,
    /// Whoever waits, by the order in which they asked.
    queue: BTreeMap<u64, Waker>,
    asked: u64,
}

impl<T> State<T> {
    fn first(&self) -> Option<Waker> {
        self.queue.first_key_value().map(|(_, waker)| waker.clone())
    }
}

impl<T> Clone for Turns<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Turns<T> {
    /// For this, which is nobody's yet.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self(Arc::new(Mutex::new(State { value: Some(Box::new(value)), queue: BTreeMap::new(), asked: 0 })))
    }

    /// Each change is whole between any two statements that can panic.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn, behind all that wait already. It ends when what this gives is dropped; a future that is dropped before gives
    /// up its place.
    pub async fn turn(&self) -> Turn<T> {
        let mut asking = Asking { of: self, number: None };
        std::future::poll_fn(|task| asking.poll(task)).await
    }
}

/// Somebody who waits for a turn.
struct Asking<'a, T> {
    of: &'a Turns<T>,
    number: Option<u64>,
}

impl<T> Asking<'_, T> {
    fn poll(&mut self, task: &Context<'_>) -> Poll<Turn<T>> {
        let mut state = self.of.lock();
        let is_first = match (self.number, state.queue.first_key_value()) {
            (Some(number), Some((first, _))) => number == *first,
            (None, first) => first.is_none(),
            (Some(_), None) => unreachable!("it waits as long as it has a number"),
        };
        if is_first && let Some(value) = state.value.take() {
            if let Some(number) = self.number.take() {
                state.queue.remove(&number);
            }
            return Poll::Ready(Turn { of: self.of.clone(), value: Some(value) });
        }
        let number = match self.number {
            Some(number) => number,
            None => {
                state.asked += 1;
                *self.number.insert(state.asked)
            }
        };
        state.queue.insert(number, task.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for Asking<'_, T> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut state = self.of.lock();
        state.queue.remove(&number);
        // It may have been woken for a turn that it does not take.
        let next = state.value.is_some().then(|| state.first()).flatten();
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

/// Somebody's turn. Dropped, it is the next one's.
#[derive(Debug)]
pub struct Turn<T> {
    of: Turns<T>,
    /// `None` when it goes.
    value: Option<Box<T>>,
}

impl<T> Deref for Turn<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("it is there until the turn ends")
    }
}

impl<T> DerefMut for Turn<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("it is there until the turn ends")
    }
}

impl<T> Drop for Turn<T> {
    fn drop(&mut self) {
        let mut state = self.of.lock();
        state.value = self.value.take();
        let next = state.first();
        drop(state);
        next.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    /// Counts how often its task was woken.
    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn turns_go_round_in_the_order_in_which_they_were_asked_for() {
        let turns = Turns::new(0);
        let woken = [(); 3].map(|()| Arc::<Woken>::default());
        let wakers = [0, 1, 2].map(|n: usize| Waker::from(Arc::clone(&woken[n])));
        let [mut first, mut second, mut third] = [0, 1, 2].map(|_| Box::pin(turns.turn()));
        let Poll::Ready(mut mine) = first.as_mut().poll(&mut Context::from_waker(&wakers[0])) else {
            panic!("nobody else has asked")
        };
        *mine += 1;
        assert!(
            second.as_mut().poll(&mut Context::from_waker(&wakers[1])).is_pending()
                && third.as_mut().poll(&mut Context::from_waker(&wakers[2])).is_pending()
        );
        drop(mine);
        assert_eq!([1, 2].map(|n: usize| woken[n].0.load(Ordering::Relaxed)), [1, 0]);
        assert!(third.as_mut().poll(&mut Context::from_waker(&wakers[2])).is_pending(), "it is not its turn");
        // Who was woken goes away: the turn is not lost.
        drop(second);
        assert_eq!(woken[2].0.load(Ordering::Relaxed), 1);
        let Poll::Ready(mine) = third.as_mut().poll(&mut Context::from_waker(&wakers[2])) else {
            panic!("nobody else waits")
        };
        assert_eq!(*mine, 1);
        drop(mine);
        let fourth = pin!(turns.turn()).poll(&mut Context::from_waker(Waker::noop()));
        assert!(fourth.is_ready(), "nobody waits any more");
    }
}
