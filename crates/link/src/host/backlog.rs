//! Trains whose owner's queue was full when they should have been sent on.
//!
//! The kernel queues as few as ten datagrams per unix socket (`net.unix.max_dgram_qlen`), far less than what can
//! arrive between two looks of a process that shares its core with others. A little memory here and a little
//! patience bridge that; an owner that is stopped, or too slow, loses what is older or more than that.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Owner;
use super::message;
use super::seat::Passed;
use crate::link::LinkStats;
use crate::train::Train;

/// How long a train may wait.
const PATIENCE: Duration = Duration::from_millis(100);

/// The most bytes that may wait for one owner.
const MAX_BYTES: usize = 4 << 20;

/// The most owners for whom something waits.
const MAX_OWNERS: usize = 16;

/// What waits, by owner, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Backlog(Vec<Waiting>);

#[derive(Debug)]
struct Waiting {
    owner: Owner,
    trains: VecDeque<(Instant, Box<[u8]>)>,
    bytes: usize,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Something waits for `owner` already, and what comes now must wait behind it.
    pub(super) fn holds(&self, owner: Owner) -> bool {
        self.0.iter().any(|waiting| waiting.owner == owner)
    }

    /// Keeps `train` for later; `false` if there is no room.
    pub(super) fn push(&mut self, owner: Owner, train: &Train<'_>) -> bool {
        let len = message::HEADER_LEN + train.data.len();
        let place = match self.0.iter().position(|waiting| waiting.owner == owner) {
            Some(place) => place,
            None if self.0.len() == MAX_OWNERS => return false,
            None => {
                self.0.push(Waiting { owner, trains: VecDeque::new(), bytes: 0 });
                self.0.len() - 1
            }
        };
        let waiting = &mut self.0[place];
        if waiting.bytes + len > MAX_BYTES {
            return false;
        }
        let mut bytes = Vec::with_capacity(len);
        bytes.extend_from_slice(&message::encode(train, false));
        bytes.extend_from_slice(train.data);
        waiting.bytes += len;
        waiting.trains.push_back((Instant::now(), bytes.into_boxed_slice()));
        true
    }

    /// Tries again to send on what waits; gives up on what has waited too long.
    pub(super) fn retry(
        &mut self,
        stats: &mut LinkStats,
        mut pass_on: impl FnMut(Owner, &Train<'_>) -> Passed,
    ) {
        let now = Instant::now();
        for waiting in &mut self.0 {
            while let Some((since, bytes)) = waiting.trains.front() {
                let train = message::decode(bytes).expect("what we encoded");
                let datagrams = train.payloads().count() as u64;
                match pass_on(waiting.owner, &train) {
                    Passed::On => stats.forwarded += datagrams,
                    Passed::Full if now.duration_since(*since) < PATIENCE => break,
                    Passed::Full | Passed::NoSuchOwner | Passed::Lost => stats.undeliverable += datagrams,
                }
                waiting.bytes -= bytes.len();
                waiting.trains.pop_front();
            }
        }
        self.0.retain(|waiting| !waiting.trains.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn train(data: &[u8]) -> Train<'_> {
        Train {
            src: "127.0.0.1:49152".parse().expect("an address"),
            dst_ip: "127.0.0.1".parse().expect("an address"),
            ecn: 0,
            ttl: 64,
            segment_size: 100,
            first_index: 0,
            data,
        }
    }

    #[test]
    fn what_waits_goes_on_in_order_once_there_is_room() {
        let (mut backlog, mut stats) = (Backlog::default(), LinkStats::default());
        for i in 0..5 {
            assert!(backlog.push(Owner::Slot(1), &train(&[i; 150])));
            assert!(backlog.push(Owner::Service(9), &train(&[100 + i; 10])));
        }
        assert!(
            backlog.holds(Owner::Slot(1))
                && backlog.holds(Owner::Service(9))
                && !backlog.holds(Owner::Slot(2))
        );
        backlog.retry(&mut stats, |_, _| Passed::Full);
        assert_eq!(stats, LinkStats::default());
        let mut gone = Vec::new();
        backlog.retry(&mut stats, |owner, train| {
            gone.push((owner, train.data[0]));
            if gone.len() == 3 { Passed::Full } else { Passed::On }
        });
        backlog.retry(&mut stats, |owner, train| {
            gone.push((owner, train.data[0]));
            Passed::On
        });
        let to = |owner| gone.iter().filter(|g| g.0 == owner).map(|g| g.1).collect::<Vec<_>>();
        assert_eq!(to(Owner::Slot(1)), [0, 1, 2, 2, 3, 4], "the refused one came again, first");
        assert_eq!(to(Owner::Service(9)), [100, 101, 102, 103, 104]);
        assert!(backlog.is_empty());
        assert_eq!((stats.forwarded, stats.undeliverable), (15, 0));
    }

    #[test]
    fn it_is_bounded() {
        let (mut backlog, mut stats) = (Backlog::default(), LinkStats::default());
        let big = vec![0; 60_000];
        let fitting = (0..1000).take_while(|_| backlog.push(Owner::Slot(1), &train(&big))).count();
        assert!(fitting > 60 && fitting < 70, "{fitting}");
        for slot in 2..=16 {
            assert!(backlog.push(Owner::Slot(slot), &train(&big)));
        }
        assert!(!backlog.push(Owner::Slot(17), &train(&[])));
        backlog.retry(&mut stats, |_, _| Passed::NoSuchOwner);
        assert!(backlog.is_empty());
        assert_eq!(stats.undeliverable, (fitting as u64 + 15) * 600);
    }
}
