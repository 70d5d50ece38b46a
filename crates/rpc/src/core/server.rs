//! The server's half of a session: what it remembers of each slot, and the answers that wait to leave.

use std::collections::VecDeque;

use remanence_auth::Proof;
use remanence_rnic::Instant;

use super::buffers::{Body, Buffers};
use super::client::Outgoing;
use super::fragment::Fragment;
use crate::header::{PACKETS_MAX, Repr, SLOTS, Status, packets, range};

enum Work<M> {
    /// No call came yet.
    Idle,
    /// Packets of a request, in order.
    Receiving { message: M, length: u32, service: u16, received: u32 },
    /// The handler has it.
    Executing,
    /// Kept until the next call of the slot, as the client may ask again.
    Answered { status: Status, message: Option<M>, length: u32 },
}

struct Slot<M> {
    number: u64,
    /// Packets of its request.
    packets: u32,
    /// When the last of them came.
    asked: Instant,
    work: Work<M>,
}

#[derive(Clone, Copy)]
enum What {
    Credit(u16),
    Working,
    Response(u16),
}

struct Reply {
    number: u64,
    what: What,
    since: Instant,
}

/// What a packet of the client led to.
pub(super) enum Verdict<B: Buffers> {
    /// Of an earlier call, repeated, or behind a gap.
    Stale,
    /// A rule is broken that no network breaks.
    Misbehaved,
    Progress,
    /// For the handler.
    Deliver {
        service: u16,
        body: Body<B>,
    },
}

pub(super) struct Server<M> {
    slots: [Slot<M>; SLOTS],
    replies: VecDeque<Reply>,
    replies_max: usize,
    /// What the client says of itself.
    pub(super) incarnation: u64,
    /// The client's number of the session.
    pub(super) remote: u32,
    /// The key of the client's hello.
    pub(super) hello: u32,
    pub(super) credits: u16,
    /// That we have the token, for a client that proved to have it.
    pub(super) seal: Option<Proof>,
}

impl<M: Clone> Server<M> {
    pub(super) fn new(incarnation: u64, remote: u32, hello: u32, credits: u16) -> Self {
        let slot = |slot| Slot { number: slot as u64, packets: 0, asked: Instant::ZERO, work: Work::Idle };
        Self {
            slots: std::array::from_fn(slot),
            replies: VecDeque::new(),
            replies_max: 2 * usize::from(credits) + SLOTS,
            incarnation,
            remote,
            hello,
            credits,
            seal: None,
        }
    }

    pub(super) fn wants_tx(&self) -> bool {
        !self.replies.is_empty()
    }

    /// More than a client that keeps to its credits can have coming is dropped: it asks again.
    fn reply(&mut self, number: u64, what: What, since: Instant) {
        if self.replies.len() < self.replies_max {
            self.replies.push_back(Reply { number, what, since });
        }
    }

    fn slot(&mut self, request: u64) -> &mut Slot<M> {
        &mut self.slots[(request % SLOTS as u64) as usize]
    }

    pub(super) fn on_request<B: Buffers<Message = M>>(
        &mut self,
        now: Instant,
        buffers: &mut B,
        capacity: u32,
        message_max: u32,
        fragment: Fragment<B::Packet>,
        service: u16,
    ) -> Verdict<B> {
        let Some(place) = fragment.place(capacity).filter(|place| u64::from(place.count) <= PACKETS_MAX)
        else {
            return Verdict::Misbehaved;
        };
        let Fragment { request, packet, length, datagram } = fragment;
        let (number, count) = (place.number, place.count);
        let slot = self.slot(request);
        if request < slot.number {
            return Verdict::Stale;
        }
        let last = number == count - 1;
        let known = request == slot.number && !matches!(slot.work, Work::Idle);
        if known {
            if count != slot.packets {
                return Verdict::Misbehaved;
            }
            match &mut slot.work {
                Work::Receiving { message, length: of, service: called, received } => {
                    if number > *received {
                        return Verdict::Stale;
                    }
                    if (*of, *called) != (length, service) {
                        return Verdict::Misbehaved;
                    }
                    if number == *received {
                        place.copy(buffers, &datagram, message);
                        *received += 1;
                        if last {
                            slot.asked = now;
                            let message = message.clone();
                            slot.work = Work::Executing;
                            let body = Body::Message { message, len: length as usize };
                            return Verdict::Deliver { service, body };
                        }
                    }
                    self.reply(request, What::Credit(packet), now);
                }
                Work::Executing if last => self.reply(request, What::Working, now),
                Work::Answered { .. } if last => self.reply(request, What::Response(0), now),
                Work::Executing | Work::Answered { .. } => self.reply(request, What::Credit(packet), now),
                Work::Idle => unreachable!("it is known"),
            }
            return Verdict::Progress;
        }
        // A call that is new here. Its client has the whole response of the one before.
        match slot.work {
            Work::Receiving { .. } | Work::Executing => return Verdict::Misbehaved,
            Work::Idle | Work::Answered { .. } => {}
        }
        if number > 0 {
            return Verdict::Stale;
        }
        (slot.number, slot.packets, slot.asked) = (request, count, now);
        if length > message_max {
            return self.refuse(now, request, Status::Overloaded);
        }
        if count == 1 && buffers.may_keep() {
            slot.work = Work::Executing;
            return Verdict::Deliver { service, body: Body::Packet(datagram) };
        }
        let Some(mut message) = buffers.allocate(length as usize) else {
            return self.refuse(now, request, Status::Overloaded);
        };
        place.copy(buffers, &datagram, &mut message);
        if count == 1 {
            slot.work = Work::Executing;
            return Verdict::Deliver { service, body: Body::Message { message, len: length as usize } };
        }
        slot.work = Work::Receiving { message, length, service, received: 1 };
        self.reply(request, What::Credit(0), now);
        Verdict::Progress
    }

    /// Answers in the handler's place. (Packets of the request that are still under way get their credits.)
    fn refuse<B: Buffers<Message = M>>(&mut self, now: Instant, request: u64, status: Status) -> Verdict<B> {
        let slot = self.slot(request);
        slot.work = Work::Answered { status, message: None, length: 0 };
        let what = if slot.packets == 1 { What::Response(0) } else { What::Credit(0) };
        self.reply(request, what, now);
        Verdict::Progress
    }

    pub(super) fn on_more<B: Buffers<Message = M>>(
        &mut self,
        now: Instant,
        request: u64,
        packet: u16,
        capacity: u32,
    ) -> Verdict<B> {
        let slot = self.slot(request);
        if request < slot.number {
            return Verdict::Stale;
        }
        match slot.work {
            Work::Answered { length, .. }
                if request == slot.number && packet > 0 && u32::from(packet) < packets(length, capacity) =>
            {
                self.reply(request, What::Response(packet), now);
                Verdict::Progress
            }
            Work::Answered { .. } | Work::Idle | Work::Receiving { .. } | Work::Executing => {
                Verdict::Misbehaved
            }
        }
    }

    /// The handler's answer; `false` if nobody waits for it.
    pub(super) fn respond(&mut self, request: u64, status: Status, message: Option<M>, length: u32) -> bool {
        let slot = self.slot(request);
        let waits = slot.number == request && matches!(slot.work, Work::Executing);
        if waits {
            slot.work = Work::Answered { status, message, length };
            let since = slot.asked;
            self.reply(request, What::Response(0), since);
        }
        waits
    }

    /// The next answer.
    pub(super) fn poll(&mut self, now: Instant, key: u32, capacity: u32) -> Option<Outgoing<M>> {
        while let Some(Reply { number, what, since }) = self.replies.pop_front() {
            let (session, request) = (self.remote, number);
            let delay = u32::try_from(now.since(since).as_nanos()).unwrap_or(u32::MAX);
            let slot = self.slot(number);
            if slot.number != number {
                // The client went on meanwhile, so it has what it needed.
                continue;
            }
            match (what, &slot.work) {
                (What::Credit(packet), _) => {
                    return Some((Repr::Credit { session, key, request, packet, delay }, None));
                }
                (What::Working, Work::Executing) => {
                    return Some((Repr::Working { session, key, request, delay }, None));
                }
                (What::Response(packet), Work::Answered { status, message, length }) => {
                    let (status, length) = (*status, *length);
                    let range = range(packet.into(), length, capacity);
                    let payload = message.clone().filter(|_| !range.is_empty()).map(|m| (m, range));
                    let repr = Repr::Response { session, key, request, packet, status, length, delay };
                    return Some((repr, payload));
                }
                // Answered since.
                (What::Working | What::Response(_), _) => {}
            }
        }
        None
    }
}
