//! The client's half of a session: calls in their slots, and what may be sent of them.
//!
//! A call is a line of *steps*. With `n` packets of request and `m` of response, steps `0..n` send the request and
//! steps `n..n + m - 1` ask for the response's packets but the first. Step `i` of the request is answered by its credit,
//! the last by the first packet of the response, and each step behind by the packet that it asks for. `answered` and
//! `sent` walk along that line; to go back is to set `sent` to `answered`.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use remanence_rnic::Instant;

use super::buffers::{Body, Buffers};
use super::congestion::Congestion;
use super::event::{Ended, Failure};
use super::fragment::Fragment;
use crate::header::{Address, PACKETS_MAX, Repr, SLOTS, Status, packets, range};

/// A packet to send: its header, and the part of a message that follows.
pub(super) type Outgoing<M> = (Repr, Option<(M, Range<usize>)>);

/// A call that waits for a slot.
pub(super) struct Waiting<M> {
    pub(super) tag: u64,
    pub(super) service: u16,
    pub(super) request: M,
    pub(super) length: u32,
}

struct Incoming<M> {
    status: Status,
    length: u32,
    packets: u32,
    message: M,
}

struct Call<M> {
    number: u64,
    what: Waiting<M>,
    /// Packets of the request.
    packets: u32,
    response: Option<Incoming<M>>,
    answered: u32,
    sent: u32,
    /// Steps that were ever sent.
    reached: u32,
    /// Steps below were sent more than once: their round trips mean nothing (Karn).
    ambiguous: u32,
    /// When each of `answered..sent` left.
    left: VecDeque<Instant>,
    /// The server has all of the request, and works on it: the last step holds no credit.
    parked: bool,
    backoff: u32,
    deadline: Instant,
}

impl<M> Call<M> {
    /// Steps that are known so far.
    fn steps(&self) -> u32 {
        self.packets + self.response.as_ref().map_or(0, |response| response.packets - 1)
    }

    fn outstanding(&self) -> u32 {
        self.sent - self.answered - u32::from(self.parked)
    }

    fn waits(&self) -> bool {
        self.sent > self.answered
    }

    /// Everything up to `step` is answered; the round trip of the one before, if it means something.
    fn advance(&mut self, now: Instant, step: u32, delay: u32) -> Option<Duration> {
        let last = (step - 1 - self.answered) as usize;
        let sample = (step > self.ambiguous)
            .then(|| self.left.get(last))
            .flatten()
            .map(|&left| now.since(left).saturating_sub(Duration::from_nanos(delay.into())));
        let gone = self.left.len().min(last + 1);
        self.left.drain(..gone);
        self.answered = step;
        self.sent = self.sent.max(step);
        (self.parked, self.backoff) = (false, 0);
        sample
    }

    fn go_back(&mut self) {
        self.ambiguous = self.ambiguous.max(self.sent);
        self.sent = self.answered;
        self.left.clear();
        self.parked = false;
    }
}

/// What a packet of the server led to.
pub(super) enum Outcome<B: Buffers> {
    /// It belongs to nothing: late, repeated, or out of order.
    Stale,
    /// A rule is broken that no network breaks.
    Misbehaved,
    Progress,
    Response {
        tag: u64,
        status: Status,
        body: Body<B>,
    },
    Failed {
        tag: u64,
        why: Failure,
    },
}

pub(super) struct Client<M> {
    calls: [Option<Call<M>>; SLOTS],
    /// The number of the next call in each slot.
    numbers: [u64; SLOTS],
    /// Whose turn it is to send.
    turn: usize,
    pub(super) waiting: VecDeque<Waiting<M>>,
    pub(super) congestion: Congestion,
    /// Where the server sees us.
    pub(super) own: Address,
    /// The server's number of the session; known when it is up.
    pub(super) remote: u32,
    credits: u32,
    /// Packets were sent since then, and nothing was heard.
    pub(super) asked: Option<Instant>,
}

impl<M: Clone> Client<M> {
    pub(super) fn new(own: Address, congestion: Congestion) -> Self {
        Self {
            own,
            calls: [const { None }; SLOTS],
            numbers: std::array::from_fn(|slot| slot as u64),
            turn: 0,
            waiting: VecDeque::new(),
            congestion,
            remote: 0,
            credits: 0,
            asked: None,
        }
    }

    /// The session is up.
    pub(super) fn open(&mut self, now: Instant, remote: u32, credits: u16, capacity: u32) {
        self.remote = remote;
        self.credits = u32::from(credits);
        self.congestion.limit(credits);
        self.fill_slots(now, capacity);
    }

    /// Moves calls that wait into free slots.
    pub(super) fn fill_slots(&mut self, now: Instant, capacity: u32) {
        for slot in 0..SLOTS {
            if self.waiting.is_empty() {
                return;
            }
            if self.calls[slot].is_some() {
                continue;
            }
            let Some(what) = self.waiting.pop_front() else { return };
            let number = self.numbers[slot];
            self.numbers[slot] += SLOTS as u64;
            self.calls[slot] = Some(Call {
                number,
                packets: packets(what.length, capacity),
                what,
                response: None,
                answered: 0,
                sent: 0,
                reached: 0,
                ambiguous: 0,
                left: VecDeque::new(),
                parked: false,
                backoff: 0,
                deadline: now,
            });
        }
    }

    fn in_flight(&self) -> u32 {
        self.calls.iter().flatten().map(Call::outstanding).sum()
    }

    /// Whether something waits for an answer.
    pub(super) fn waits(&self) -> bool {
        self.calls.iter().flatten().any(Call::waits)
    }

    /// Whether there is a call, begun or not.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.calls.iter().all(Option::is_none)
    }

    fn may_send(&self) -> bool {
        self.in_flight() < self.credits.min(self.congestion.window())
    }

    pub(super) fn wants_tx(&self) -> bool {
        self.calls.iter().flatten().any(|call| call.sent < call.steps()) && self.may_send()
    }

    /// When the first call has waited long enough for an answer.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.calls.iter().flatten().filter(|call| call.waits()).map(|call| call.deadline).min()
    }

    /// The next packet, if one may leave.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        key: u32,
        capacity: u32,
        timeout_max: Duration,
    ) -> Option<Outgoing<M>> {
        if !self.may_send() {
            return None;
        }
        let slot = (0..SLOTS)
            .map(|i| (self.turn + i) % SLOTS)
            .find(|&slot| self.calls[slot].as_ref().is_some_and(|call| call.sent < call.steps()))?;
        let timeout = self.congestion.timeout();
        let call = self.calls[slot].as_mut()?;
        let (session, request, step) = (self.remote, call.number, call.sent);
        if !call.waits() {
            call.deadline = now + backed_off(timeout, call.backoff, timeout_max);
        }
        call.sent += 1;
        call.reached = call.reached.max(call.sent);
        call.left.push_back(now);
        self.asked.get_or_insert(now);
        if step < call.packets {
            // A message goes out as a train; the next call's turn comes when it is through.
            self.turn = if call.sent == call.packets { slot + 1 } else { slot };
            let Waiting { service, length, .. } = call.what;
            let packet = step as u16;
            let repr = Repr::Request { session, key, request, packet, service, length };
            let range = range(step, length, capacity);
            let payload = (!range.is_empty()).then(|| (call.what.request.clone(), range));
            Some((repr, payload))
        } else {
            self.turn = slot + 1;
            let packet = (step - call.packets + 1) as u16;
            Some((Repr::More { session, key, request, packet }, None))
        }
    }

    fn call(&mut self, request: u64) -> Option<&mut Call<M>> {
        self.calls[(request % SLOTS as u64) as usize].as_mut().filter(|call| call.number == request)
    }

    fn sampled(&mut self, now: Instant, request: u64, sample: Option<Duration>) {
        if let Some(sample) = sample {
            self.congestion.on_answer(now, sample);
        }
        let timeout = self.congestion.timeout();
        if let Some(call) = self.call(request) {
            call.deadline = now + timeout;
        }
    }

    pub(super) fn on_credit<B: Buffers<Message = M>>(
        &mut self,
        now: Instant,
        request: u64,
        packet: u16,
        delay: u32,
    ) -> Outcome<B> {
        let Some(call) = self.call(request) else { return Outcome::Stale };
        let step = u32::from(packet) + 1;
        if step >= call.packets || step > call.reached {
            return Outcome::Misbehaved;
        }
        if step <= call.answered {
            return Outcome::Stale;
        }
        let sample = call.advance(now, step, delay);
        self.sampled(now, request, sample);
        Outcome::Progress
    }

    pub(super) fn on_working<B: Buffers<Message = M>>(
        &mut self,
        now: Instant,
        request: u64,
        probe: Duration,
    ) -> Outcome<B> {
        let Some(call) = self.call(request) else { return Outcome::Stale };
        if call.reached < call.packets {
            return Outcome::Misbehaved;
        }
        if call.response.is_some() {
            return Outcome::Stale;
        }
        // Everything but the last packet is answered by this.
        if call.packets > 1 && call.answered < call.packets - 1 {
            call.advance(now, call.packets - 1, 0);
        }
        if !call.waits() {
            call.sent = call.packets;
            call.left.push_back(now);
        }
        (call.parked, call.backoff, call.deadline) = (true, 0, now + probe);
        call.ambiguous = call.packets;
        Outcome::Progress
    }

    pub(super) fn on_response<B: Buffers<Message = M>>(
        &mut self,
        now: Instant,
        buffers: &mut B,
        capacity: u32,
        message_max: u32,
        fragment: Fragment<B::Packet>,
        (status, delay): (Status, u32),
    ) -> Outcome<B> {
        let request = fragment.request;
        let Some(call) = self.call(request) else { return Outcome::Stale };
        let Some(place) = fragment.place(capacity).filter(|_| call.reached >= call.packets) else {
            return Outcome::Misbehaved;
        };
        let Fragment { length, datagram, .. } = fragment;
        let (number, count) = (place.number, place.count);
        let step = call.packets + number;
        if step <= call.answered {
            return Outcome::Stale;
        }
        if number == 0 {
            if u64::from(count) > PACKETS_MAX || length > message_max {
                return self.finish(request, |tag| Outcome::Failed { tag, why: Failure::NoRoom(length) });
            }
            if count == 1 && buffers.may_keep() {
                let sample = call.advance(now, step, delay);
                self.sampled(now, request, sample);
                let body = Body::Packet(datagram);
                return self.finish(request, |tag| Outcome::Response { tag, status, body });
            }
            let Some(message) = buffers.allocate(length as usize) else {
                return self.finish(request, |tag| Outcome::Failed { tag, why: Failure::NoRoom(length) });
            };
            call.response = Some(Incoming { status, length, packets: count, message });
        } else if step != call.answered + 1 {
            // A gap: everything from there comes again.
            return Outcome::Stale;
        }
        let response = call.response.as_mut().expect("made with its first packet");
        if (response.status, response.length) != (status, length) || step > call.reached {
            return Outcome::Misbehaved;
        }
        place.copy(buffers, &datagram, &mut response.message);
        let sample = call.advance(now, step, delay);
        let whole = call.answered == call.steps();
        self.sampled(now, request, sample);
        if whole {
            return self.finish_whole(request);
        }
        Outcome::Progress
    }

    fn finish_whole<B: Buffers<Message = M>>(&mut self, request: u64) -> Outcome<B> {
        let slot = (request % SLOTS as u64) as usize;
        let call = self.calls[slot].take().expect("it was just here");
        let Incoming { status, length, message, .. } = call.response.expect("all of it is there");
        let body = Body::Message { message, len: length as usize };
        Outcome::Response { tag: call.what.tag, status, body }
    }

    fn finish<B: Buffers<Message = M>>(
        &mut self,
        request: u64,
        outcome: impl FnOnce(u64) -> Outcome<B>,
    ) -> Outcome<B> {
        let slot = (request % SLOTS as u64) as usize;
        outcome(self.calls[slot].take().expect("it was just here").what.tag)
    }

    /// Goes back where an answer is overdue; how often that happened for want of an answer.
    pub(super) fn on_timeout(&mut self, now: Instant) -> u64 {
        let (mut lost, mut timeouts) = (false, 0);
        for call in self.calls.iter_mut().flatten().filter(|call| call.waits() && call.deadline <= now) {
            if !call.parked {
                // One packet that waits for a handler is no sign of loss the first time.
                lost |= call.backoff > 0 || call.sent - call.answered > 1;
                call.backoff += 1;
                timeouts += 1;
            }
            call.go_back();
        }
        if lost {
            self.congestion.on_loss(now);
        }
        timeouts
    }

    /// The session is over: takes all calls out, oldest first.
    pub(super) fn fail(&mut self, why: Ended) -> Vec<(u64, Failure)> {
        let mut begun: Vec<Call<M>> = self.calls.iter_mut().filter_map(Option::take).collect();
        begun.sort_by_key(|call| call.number);
        let begun = begun.into_iter().map(|call| {
            (call.what.tag, if call.reached > 0 { Failure::Ended(why) } else { Failure::NeverSent(why) })
        });
        let waiting = self.waiting.drain(..).map(|what| (what.tag, Failure::NeverSent(why)));
        begun.chain(waiting).collect()
    }
}

fn backed_off(timeout: Duration, times: u32, max: Duration) -> Duration {
    timeout.saturating_mul(1 << times.min(16)).min(max)
}
