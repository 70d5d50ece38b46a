//! Datagrams held back, by the time at which they go on; equal times keep their order.

use std::collections::BTreeMap;
use std::time::Instant;

/// When it is due, and how many were pushed before it.
type DueAt = (Instant, u64);

/// Held datagrams with what belongs to each.
#[derive(Debug)]
pub(super) struct Queue<M> {
    held: BTreeMap<DueAt, (M, Box<[u8]>)>,
    pushed: u64,
    bytes: usize,
}

impl<M> Default for Queue<M> {
    fn default() -> Self {
        Self { held: BTreeMap::new(), pushed: 0, bytes: 0 }
    }
}

impl<M> Queue<M> {
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Payload bytes held, and a little for each datagram, so that empty ones are bounded too.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn push(&mut self, due: Instant, meta: M, payload: &[u8]) {
        self.pushed += 1;
        self.bytes += payload.len() + OVERHEAD;
        self.held.insert((due, self.pushed), (meta, payload.into()));
    }

    /// The first datagram, if its time has come.
    pub(super) fn first_due(&self, now: Instant) -> Option<(&M, &[u8])> {
        let ((due, _), (meta, payload)) = self.held.first_key_value()?;
        (*due <= now).then_some((meta, payload))
    }

    pub(super) fn remove_first(&mut self) {
        if let Some((_, (_, payload))) = self.held.pop_first() {
            self.bytes -= payload.len() + OVERHEAD;
        }
    }

    /// When the first datagram goes on.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.held.first_key_value().map(|((due, _), _)| *due)
    }
}

const OVERHEAD: usize = 128;
