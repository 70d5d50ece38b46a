//! The link's side of a seat: sorts what arrives into ours and others', and takes in what others sent on.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::allowance::Allowance;
use super::backlog::Backlog;
use super::board::Board;
use super::seat::{Message, News, Passed};
use super::{Owner, Seat};
use crate::link::LinkStats;
use crate::train::Train;

/// The most messages taken in at a time.
const BATCH: usize = 16;

/// How often the backlog is tried again while nobody receives.
const RETRY_EVERY: Duration = Duration::from_millis(1);

/// Whose a datagram is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Mine,
    Of(Owner),
}

/// A seat in use by a link.
#[derive(Debug)]
pub(crate) struct Sharing {
    seat: Seat,
    /// The seat's board, at hand.
    board: Arc<Board>,
    /// The doorbell's count when last looked at.
    bell: u64,
    /// Someone said that there is something.
    look: bool,
    /// What could not be sent on yet.
    backlog: Backlog,
    /// How much more may be said to everyone.
    allowance: Allowance,
    /// How often the timer is wanted, and when it was last reported.
    period: Duration,
    ticked: Instant,
    buffer: Box<[u8]>,
}

/// What the slow channels brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct TakenIn {
    /// The timer fired.
    pub(crate) tick: bool,
    /// Others had to send datagrams of our slot on: steering is wrong somewhere.
    pub(crate) detour: bool,
}

impl Sharing {
    pub(crate) fn new(seat: Seat) -> Self {
        let board = seat.board();
        let bell = board.rung(seat.slot());
        // A train of the largest size and its header.
        let buffer = vec![0; super::message::HEADER_LEN + (1 << 16)].into_boxed_slice();
        Self {
            seat,
            board,
            bell,
            look: true,
            backlog: Backlog::default(),
            allowance: Allowance::new(Instant::now()),
            period: Duration::MAX,
            ticked: Instant::now(),
            buffer,
        }
    }

    pub(crate) fn seat(&self) -> &Seat {
        &self.seat
    }

    pub(crate) fn board(&self) -> &Board {
        &self.board
    }

    /// Moves to the board that others use now, if that is another one.
    pub(crate) fn find_board(&mut self) -> io::Result<()> {
        self.seat.find_board()?;
        self.board = self.seat.board();
        Ok(())
    }

    /// Whose `payload`, sent to `train`'s destination, is. What nobody can own is ours to count as malformed.
    fn verdict(&self, train: &Train<'_>, payload: &[u8]) -> Verdict {
        match self.seat.rule().owner(payload) {
            Some(Owner::Slot(slot) | Owner::SlotOrHeir(slot)) if slot == self.seat.slot() => Verdict::Mine,
            Some(Owner::Service(id)) if self.seat.listens(id, train.dst_ip) => Verdict::Mine,
            Some(owner) => Verdict::Of(owner),
            None => Verdict::Mine,
        }
    }

    /// Hands our part of `train` to `mine` and sends the rest on.
    pub(crate) fn sort(
        &mut self,
        train: &Train<'_>,
        stats: &mut LinkStats,
        mut mine: impl FnMut(&mut LinkStats, Train<'_>),
    ) {
        if train.data.len() <= train.segment_size {
            return self.settle(self.verdict(train, train.data), train, stats, &mut mine);
        }
        let mut start = 0;
        let mut verdict = None;
        let mut count = 0;
        for payload in train.payloads() {
            let next = self.verdict(train, payload);
            if let Some(current) = verdict.filter(|current| *current != next) {
                self.settle(current, &train.part(start, count), stats, &mut mine);
                start = count;
            }
            verdict = Some(next);
            count += 1;
        }
        if let Some(last) = verdict {
            self.settle(last, &train.part(start, count), stats, &mut mine);
        }
    }

    fn settle(
        &mut self,
        verdict: Verdict,
        part: &Train<'_>,
        stats: &mut LinkStats,
        mine: &mut impl FnMut(&mut LinkStats, Train<'_>),
    ) {
        let Verdict::Of(owner) = verdict else { return mine(stats, *part) };
        let datagrams = part.payloads().count() as u64;
        if owner == Owner::Everyone {
            if !self.allowance.take(Instant::now(), datagrams) {
                stats.undeliverable += datagrams;
                return mine(stats, *part);
            }
            // Said once, to whoever can hear it now: it is not worth a place among what waits. And only to who may have been asked
            // for something: a process that never listens need not be woken.
            let others = self.board.taken().map(|(slot, _)| slot).filter(|slot| *slot != self.seat.slot());
            for slot in others.filter(|slot| self.board.listens(*slot)) {
                if self.seat.pass_on(Owner::Slot(slot), part) == Passed::On {
                    stats.forwarded += datagrams;
                }
            }
            return mine(stats, *part);
        }
        // Behind what waits already, so that the order stays.
        let queued = !self.backlog.is_empty() && self.backlog.holds(owner);
        let passed = if queued { Passed::Full } else { self.seat.pass_on(owner, part) };
        match (passed, owner) {
            (Passed::On, _) => stats.forwarded += datagrams,
            (Passed::Full, _) if self.keep(owner, part) => {}
            // Nobody listens, or lives: any of us may say so to the one who asks.
            (Passed::NoSuchOwner, Owner::Service(_) | Owner::SlotOrHeir(_)) => mine(stats, *part),
            (Passed::NoSuchOwner, Owner::Slot(_) | Owner::Everyone) | (Passed::Full | Passed::Lost, _) => {
                stats.undeliverable += datagrams
            }
        }
    }

    /// Hands a train of our own to the process of this host that it is for. One whose queue stays full is stopped, and
    /// has to do without.
    pub(crate) fn hand_over(&mut self, train: &Train<'_>) {
        if self.seat.hand_over(train) == Passed::Full
            && let Some(owner) = self.seat.rule().owner(train.data)
        {
            self.keep(owner, train);
        }
    }

    /// Keeps a train that could not be sent on; `false` if there is no room.
    fn keep(&mut self, owner: Owner, part: &Train<'_>) -> bool {
        if self.backlog.is_empty() {
            // Should the timer fail, the backlog still moves whenever somebody receives.
            let _ = self.seat.set_timer(RETRY_EVERY);
        }
        self.backlog.push(owner, part)
    }

    /// Nobody will call again: gives what waits for others a moment.
    pub(crate) fn finish(&mut self, stats: &mut LinkStats) {
        const LIMIT: u32 = 20;
        for _ in 0..LIMIT {
            if self.backlog.is_empty() {
                return;
            }
            std::thread::sleep(RETRY_EVERY);
            self.work_off(stats);
        }
    }

    fn work_off(&mut self, stats: &mut LinkStats) {
        let seat = &self.seat;
        self.backlog.retry(stats, |owner, train| seat.pass_on(owner, train));
        if self.backlog.is_empty() {
            let _ = seat.set_timer(self.period);
        }
    }

    /// Something may wait on a slow channel: the doorbell rang, or [`Sharing::look_soon`] was called. One load.
    pub(crate) fn rung(&mut self) -> bool {
        let bell = self.board.rung(self.seat.slot());
        let rung = self.look || bell != self.bell || !self.backlog.is_empty();
        self.bell = bell;
        self.look = false;
        rung
    }

    /// Makes the next [`Sharing::rung`] say yes.
    pub(crate) fn look_soon(&mut self) {
        self.look = true;
    }

    /// Takes in what others sent on to us, a batch at most, in the order of arrival at each channel.
    pub(crate) fn take_in(
        &mut self,
        stats: &mut LinkStats,
        mut sink: impl FnMut(&mut LinkStats, Train<'_>),
    ) -> io::Result<TakenIn> {
        let mut taken = TakenIn::default();
        let seat = self.seat.clone();
        let news: Vec<_> = seat.news()?.collect();
        let channels = news.iter().filter(|news| **news != News::Timer).count();
        // Each has its share, so that a stranger who fills one cannot keep the others waiting.
        let share = (BATCH / channels.max(1)).max(1);
        for news in news {
            let News::Datagrams(token) = news else {
                // The timer also fires for the backlog.
                taken.tick = self.ticked.elapsed() + RETRY_EVERY >= self.period;
                continue;
            };
            let mut left = share;
            while left > 0 {
                let Some(message) = seat.receive(token, &mut self.buffer)? else { break };
                left -= 1;
                let Some(Message { train, chosen }) = message else {
                    stats.rx_malformed += 1;
                    continue;
                };
                taken.detour |= !chosen;
                // Only once: what is not ours now would go round in circles. Senders pass on datagrams of one owner.
                let ours = train.payloads().all(|payload| match seat.rule().owner(payload) {
                    Some(Owner::Slot(slot) | Owner::SlotOrHeir(slot)) => slot == seat.slot(),
                    Some(Owner::Service(_) | Owner::Everyone) => true,
                    None => false,
                });
                let datagrams = train.payloads().count() as u64;
                if ours {
                    stats.forwarded_here += datagrams;
                    sink(stats, train);
                } else {
                    stats.undeliverable += datagrams;
                }
            }
            self.look |= left == 0;
        }
        if taken.tick {
            self.ticked = Instant::now();
        }
        if !self.backlog.is_empty() {
            self.work_off(stats);
        }
        Ok(taken)
    }

    /// The descriptor that becomes readable with news.
    pub(crate) fn news_fd(&self) -> RawFd {
        self.seat.news_fd()
    }

    /// Makes [`Sharing::take_in`] report a tick every `period`.
    pub(crate) fn set_period(&mut self, period: Duration) -> io::Result<()> {
        if period == self.period {
            return Ok(());
        }
        self.period = period;
        if self.backlog.is_empty() { self.seat.set_timer(period) } else { Ok(()) }
    }
}
