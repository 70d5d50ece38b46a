//! The end of a run: whether it has come, and what must be true then.

use remanence_rnic::{AsyncEvent, QpType, Stats};

use crate::world::{Check, ConnState, Violation, World, ensure};

/// After the last completion, what is still under way gets this long to do harm, in nanoseconds.
const AFTERMATH_NANOS: u64 = 1_000_000_000;

impl World<'_> {
    /// Whether all work is done.
    pub(crate) fn finished(&self) -> bool {
        self.healed.is_some()
            && self.conns.iter().all(|conn| conn.state == ConnState::Up)
            && self.ends.iter().all(|end| {
                end.todo == 0 && end.ops.is_empty() && (end.ty != QpType::Rc || end.outbox.is_empty())
            })
    }

    /// What keeps the run from its end.
    pub(crate) fn unfinished(&self) -> String {
        let mut text = String::new();
        for (index, end) in self.ends.iter().enumerate() {
            let state = self.conns[index / 2].state;
            if end.todo > 0 || !end.ops.is_empty() || !end.outbox.is_empty() || state != ConnState::Up {
                text.push_str(&format!(
                    "end {index} ({state:?}) has {} to post, {} outstanding from {:?}, {} undelivered, {} receives; ",
                    end.todo,
                    end.ops.len(),
                    end.ops.front().map(|op| op.seq),
                    end.outbox.len(),
                    self.recvs[end.recv].posted.len()
                ));
            }
        }
        text
    }

    /// All work is done: late packets change nothing, every target is the sequential outcome, and what was posted
    /// and not used is flushed.
    pub(crate) fn finish(&mut self) -> Check {
        let end = self.now + AFTERMATH_NANOS;
        while self.step_until(end)? {}
        for (index, end) in self.ends.iter().enumerate() {
            let peer = &self.ends[end.peer];
            let actual = self.nodes[peer.node].memory.bytes(peer.target, 0, end.oracle.len());
            if end.ty == QpType::Rc {
                ensure!(
                    end.atomics.is_empty(),
                    "end {index}: {} atomics were never carried out",
                    end.atomics.len()
                );
                let wrong = actual.iter().zip(end.oracle.image()).position(|(a, b)| a != b);
                if let Some(at) = wrong {
                    return Err(Violation(format!(
                        "in the end, the target of end {index} holds {:#04x} at {at} in place of {:#04x}",
                        actual[at],
                        end.oracle.image()[at]
                    )));
                }
            } else if let Err(wrong) = end.oracle.check_possible(0, &actual) {
                return Err(Violation(format!(
                    "in the end, the target of end {index} holds {:#04x} at {}, which nobody wrote",
                    wrong.found, wrong.offset
                )));
            }
        }
        for conn in 0..self.conns.len() {
            self.tear_down(conn)?;
        }
        Ok(())
    }

    /// Asynchronous events: most tell of what a completion tells too.
    pub(crate) fn pump_events(&mut self, index: usize) -> Check {
        while let Some(event) = self.nodes[index].device.as_mut().and_then(|device| device.poll_async_event())
        {
            match event {
                AsyncEvent::CommEst(_)
                | AsyncEvent::SqDrained(_)
                | AsyncEvent::LastWqeReached(_)
                | AsyncEvent::SrqLimitReached(_) => {}
                AsyncEvent::QpRequestError(_)
                | AsyncEvent::QpAccessError(_)
                | AsyncEvent::QpFatal(_)
                | AsyncEvent::CqError(_) => {
                    return Err(Violation(format!("node {index}: {event:?}, for no reason")));
                }
            }
        }
        Ok(())
    }

    /// Takes a device away and keeps its counters.
    pub(crate) fn retire_device(&mut self, index: usize) {
        if let Some(device) = self.nodes[index].device.take() {
            let Stats { retransmits, timeouts, rx_nak_sequence, rx_rnr_nak, rx_duplicates, tx_cnp, .. } =
                *device.stats();
            let counts = &mut self.counts;
            counts.retransmits += retransmits;
            counts.timeouts += timeouts;
            counts.nak_sequence += rx_nak_sequence;
            counts.rnr_nak += rx_rnr_nak;
            counts.duplicates_answered += rx_duplicates;
            counts.cnp += tx_cnp;
            counts.dropped += device.stats().dropped_total();
        }
    }

    /// Adds up the counters of all devices, at the very end.
    pub(crate) fn collect_stats(&mut self) {
        for index in 0..self.nodes.len() {
            self.retire_device(index);
        }
    }
}
