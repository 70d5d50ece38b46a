//! The limit of an engine: what posting a WRITE, building its packet, taking it, acknowledging it and polling its completion cost by
//! themselves, two devices in memory on one core. A round trip takes as long as the bare one and this, if nothing else is added.

use std::hint::black_box;
use std::time::{Duration, Instant as Clock};

use remanence_rnic::side::{Plain, Side};
use remanence_rnic::{Access, Data, Instant, SendFlags, SendOp, SendWr, WcStatus};
use remanence_wire::Mtu;

use crate::role::End;

const SPAN: u64 = 1 << 16;
/// How many are measured at once, so that reading the clock is no part of them.
const GROUP: u32 = 32;

/// Two devices that are connected by nothing but calls.
pub(crate) struct Engine {
    requester: Side<Plain>,
    responder: Side<Plain>,
    /// The time of both, in nanoseconds.
    now: u64,
    buf: Vec<u8>,
    completions: Vec<remanence_rnic::Wc>,
}

impl Engine {
    pub(crate) fn new() -> Self {
        let side = |last| {
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            Side::new(last, Plain(vec![last; SPAN as usize]), SPAN, access, 16)
        };
        let (mut requester, mut responder, now) = (side(1), side(2), 1_000_000);
        requester.connect(&mut responder, Mtu::B4096, Access::REMOTE_WRITE, Instant::from_nanos(now));
        Self { requester, responder, now, buf: vec![0; 65_507], completions: Vec::new() }
    }

    /// Microseconds of a WRITE of `len` bytes and its acknowledgement, one at a time, for a while; each value is the mean of 32.
    pub(crate) fn burst(&mut self, len: u32, budget: Duration) -> Result<Vec<f64>, String> {
        let writing = || {
            End::Client.keep();
            let (begin, mut found) = (Clock::now(), Vec::new());
            while found.is_empty() || begin.elapsed() < budget {
                let group = Clock::now();
                for _ in 0..GROUP {
                    self.write(len)?;
                }
                found.push(group.elapsed().as_nanos() as f64 / 1e3 / f64::from(GROUP));
            }
            Ok(found)
        };
        // A thread of its own: the caller's is not to be pinned.
        let ended = std::thread::scope(|scope| scope.spawn(writing).join());
        ended.unwrap_or_else(|_| Err("the engines panicked".to_owned()))
    }

    fn write(&mut self, len: u32) -> Result<(), String> {
        let (requester, responder) = (&mut self.requester, &mut self.responder);
        self.now += 1000;
        let now = Instant::from_nanos(self.now);
        let (remote, sge) = (responder.remote(0), [requester.sge(0, len)]);
        let (op, data) = (SendOp::Write(remote), Data::Sges(&sge));
        let wr = SendWr { wr_id: self.now, op, data, flags: SendFlags::SIGNALED, ud: None };
        requester.device.post_send(requester.qpn, &wr).map_err(|why| why.to_string())?;
        while let Some(sent) = requester.transmit(now, &mut self.buf) {
            responder.receive(now, &sent, &self.buf);
        }
        while let Some(sent) = responder.transmit(now, &mut self.buf) {
            requester.receive(now, &sent, &self.buf);
        }
        self.completions.clear();
        let cq = requester.cq;
        requester.device.poll_cq(cq, &mut self.completions, 1).map_err(|why| why.to_string())?;
        match black_box(&self.completions)[..] {
            [wc] if (wc.status, wc.wr_id) == (WcStatus::Success, self.now) => Ok(()),
            _ => Err("a WRITE was not acknowledged at once".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_write_is_there_and_acknowledged() {
        let mut engine = Engine::new();
        let found = engine.burst(64, Duration::ZERO).expect("figures");
        assert!(found.len() == 1 && found[0] > 0.0 && found[0].is_finite(), "{found:?}");
        let bytes = &engine.responder.memory.0;
        assert!(bytes[..64].iter().all(|byte| *byte == 1) && bytes[64..].iter().all(|byte| *byte == 2));
        assert_eq!(engine.requester.device.stats().retransmits, 0);
    }
}
