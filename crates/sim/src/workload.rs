//! What the consumers post, and when.

use std::ops::Range;

use remanence_rnic::{
    Access, Data, MwBind, Placement, QpType, RecvWr, RemoteAddr, Selectivity, SendFlags, SendOp, SendWr, Sge,
    UdDest,
};
use remanence_wire::{Lkey, Rkey};

use crate::connect::{LOCAL_IOVA, QKEY, RECV_IOVA, SHARED_IOVA, SHARED_WORDS};
use crate::end::{AtomicTarget, Kind, Message, Op, Piece, Recv, WORDS, Window, gap_pattern, scatter};
use crate::memory::AtomicKind;
use crate::rng::fill;
use crate::world::{Check, ConnState, Event, Violation, World, trace};

/// The GRH area in front of a datagram.
pub(crate) const GRH: usize = 40;

impl World<'_> {
    /// Lets the consumer of an end act after a pause, unless it is about to anyway.
    pub(crate) fn schedule_tick(&mut self, index: usize, nanos: u64) {
        if !self.ends[index].tick {
            self.ends[index].tick = true;
            self.schedule(nanos, Event::Tick { end: index });
        }
    }

    /// The consumer of an end acts: posts receives and sends.
    pub(crate) fn tick(&mut self, index: usize) -> Check {
        self.ends[index].tick = false;
        if self.conns[index / 2].state != ConnState::Up {
            return Ok(());
        }
        let receives = self.post_receives(index)?;
        let burst = 1 + self.rng.below(u64::from(self.plan.send_depth));
        let mut sends = true;
        for _ in 0..burst {
            sends = self.post_next(index)?;
            if !sends {
                break;
            }
        }
        if sends || receives {
            let pause = 1 + self.rng.exponential(self.plan.pause);
            self.schedule_tick(index, pause);
        }
        self.pump(self.ends[index].node)
    }

    /// Posts receives; says whether there is room for more.
    fn post_receives(&mut self, index: usize) -> Check<bool> {
        let queue = self.ends[index].recv;
        let room = self.recvs[queue].depth - self.recvs[queue].posted.len();
        let count = if self.plan.lazy_receiver && room > 0 { self.rng.index(room + 1) } else { room };
        for _ in 0..count {
            self.post_receive(index)?;
        }
        Ok(count < room)
    }

    fn post_receive(&mut self, index: usize) -> Check {
        let end = &self.ends[index];
        let queue = &mut self.recvs[end.recv];
        let slot = queue.slots.take().expect("a slot for each receive");
        let range = queue.slots.range(slot);
        let len = self.plan.message_max as usize + if end.ty == QpType::Ud { GRH } else { 0 };
        let pieces = scatter(&mut self.rng, range.clone(), len, self.plan.sges as usize);
        let node = &mut self.nodes[end.node];
        node.memory.store(queue.region, range.start, &gap_pattern(&range));
        queue.wr_id += 1;
        // Told apart from sends by the top bit, from other queues by the next ones.
        let wr_id = 1 << 63 | (end.recv as u64) << 48 | queue.wr_id;
        let sges = sges(&pieces, RECV_IOVA, queue.mr.expect("the node has power").lkey);
        let wr = RecvWr { wr_id, sges: &sges };
        let device = node.device.as_mut().expect("an end that is up has a device");
        let posted = match node.srq.filter(|_| queue.shared) {
            Some(srq) => device.post_srq_recv(srq, &wr),
            None => device.post_recv(end.qpn.expect("an end that is up has a QP"), &wr),
        };
        posted.map_err(|error| Violation(format!("end {index}: a receive was not accepted: {error}")))?;
        queue.posted.push_back(Recv { wr_id, slot, pieces });
        Ok(())
    }

    /// Posts one send work request; says whether another one could be posted.
    fn post_next(&mut self, index: usize) -> Check<bool> {
        let end = &self.ends[index];
        let depth = self.plan.send_depth as usize;
        if end.todo == 0 || end.ops.len() >= depth {
            return Ok(false);
        }
        let kind = self.choose(index);
        let op = self.draw(index, kind);
        self.post(index, op)?;
        let end = &mut self.ends[index];
        end.todo -= 1;
        self.counts.posted += 1;
        Ok(end.todo > 0 && end.ops.len() < depth)
    }

    fn choose(&mut self, index: usize) -> Kind {
        let end = &self.ends[index];
        let imm = self.rng.u64() as u32;
        let with_imm = self.rng.one_in(3);
        if end.ty != QpType::Rc {
            let write = end.ty == QpType::Uc && self.rng.one_in(2);
            return match (write, with_imm) {
                (false, false) => Kind::Send,
                (false, true) => Kind::SendImm(imm),
                (true, false) => Kind::Write,
                (true, true) => Kind::WriteImm(imm),
            };
        }
        let mix = self.plan.mix;
        let window = if mix.window > 0 { self.choose_window_op(index) } else { None };
        let weights = [mix.send, mix.write, mix.read, mix.atomic, mix.atomic_write, mix.flush];
        let window_weight = if window.is_some() { mix.window } else { 0 };
        let mut at = self.rng.below(u64::from(weights.iter().sum::<u32>() + window_weight)) as u32;
        for (which, weight) in weights.into_iter().enumerate() {
            if at >= weight {
                at -= weight;
                continue;
            }
            return match which {
                0 if with_imm => Kind::SendImm(imm),
                0 => Kind::Send,
                1 if with_imm => Kind::WriteImm(imm),
                1 => Kind::Write,
                2 => Kind::Read,
                3 if self.rng.one_in(2) => Kind::Atomic(AtomicKind::FetchAdd { add: self.rng.u64() }),
                // The compared value is filled in when the word is known.
                3 => Kind::Atomic(AtomicKind::CompareSwap { compare: self.rng.u64(), swap: self.rng.u64() }),
                4 => Kind::AtomicWrite,
                _ => Kind::Flush { persist: !self.rng.one_in(4), whole: self.rng.one_in(4) },
            };
        }
        window.expect("the weights say so")
    }

    /// What could be done about the memory windows of an end and its peer.
    fn choose_window_op(&mut self, index: usize) -> Option<Kind> {
        let end = &self.ends[index];
        let peer = &self.ends[end.peer];
        if self.rng.one_in(2) {
            // Its own window: bind it, or take it back while nobody uses it.
            return match end.window {
                Window::Free => Some(Kind::BindMw),
                Window::Bound { .. } if peer.ops.is_empty() => Some(Kind::LocalInv),
                Window::Bound { .. } | Window::Binding { .. } | Window::Ending => None,
            };
        }
        match peer.window {
            Window::Bound { rkey, .. } => Some(Kind::SendInv(rkey)),
            Window::Free | Window::Binding { .. } | Window::Ending => None,
        }
    }

    fn draw(&mut self, index: usize, kind: Kind) -> Op {
        let end = &self.ends[index];
        let seq = end.seq + 1;
        // The last one, and the one that fills the queue, must be signalled, or nobody would learn of their end.
        let last = end.todo == 1 || end.ops.len() + 1 >= self.plan.send_depth as usize;
        let signaled = last || !self.rng.chance(self.plan.unsignaled);
        let mut op = Op {
            seq,
            kind,
            signaled,
            slot: None,
            pieces: Vec::new(),
            len: 0,
            remote: 0..0,
            window: None,
            place: AtomicTarget::Target,
            fence: self.rng.chance(self.plan.fenced),
            old: None,
            barrier: u64::MAX,
        };
        match kind {
            Kind::Send | Kind::SendImm(_) | Kind::SendInv(_) => op.len = self.draw_len(index),
            Kind::Write | Kind::WriteImm(_) => {
                op.len = self.draw_len(index);
                // Among the words nothing may pass anything, or the outcome would be open.
                let among_words = self.ends[index].ty == QpType::Rc && self.rng.one_in(4);
                op.fence |= among_words;
                self.draw_remote(index, &mut op, if among_words { 0..WORDS } else { WORDS..usize::MAX }, 1);
            }
            Kind::Read => {
                op.len = self.draw_len(index);
                self.draw_remote(index, &mut op, 0..usize::MAX, 1);
            }
            Kind::Flush { .. } => {
                op.len = self.draw_len(index);
                self.draw_remote(index, &mut op, 0..usize::MAX, 1);
            }
            Kind::AtomicWrite => {
                op.len = 8;
                self.draw_remote(index, &mut op, 0..WORDS, 8);
            }
            Kind::Atomic(_) => {
                op.len = 8;
                if self.rng.one_in(4) {
                    op.place = AtomicTarget::Shared;
                    let at = 8 * self.rng.index(SHARED_WORDS);
                    op.remote = at..at + 8;
                } else {
                    self.draw_remote(index, &mut op, 0..WORDS, 8);
                }
            }
            Kind::BindMw | Kind::LocalInv => {}
        }
        // A READ that is asked for once more after its window is gone would be refused (IBA Vol 1, 10.6.7.2.6 asks
        // consumers to wait); the fence is the wait.
        op.fence |= matches!(kind, Kind::SendInv(_));
        op
    }

    fn draw_len(&mut self, index: usize) -> usize {
        let mtu = self.plan.mtu.bytes();
        let max = self.plan.message_max as usize;
        let max = if self.ends[index].ty == QpType::Ud { max.min(mtu) } else { max };
        let len = match self.rng.below(8) {
            0 => 0,
            1 => 1 + self.rng.index(8),
            2 => mtu * (1 + self.rng.index(4)),
            3 => mtu * (1 + self.rng.index(4)) + 1,
            _ => self.rng.index(max + 1),
        };
        len.min(max)
    }

    /// Where in the target an operation goes: into `area`, aligned, and under the window's rkey where there is one.
    fn draw_remote(&mut self, index: usize, op: &mut Op, area: Range<usize>, align: usize) {
        let end = &self.ends[index];
        let (mut start, mut stop) = (area.start, area.end.min(end.oracle.len()));
        if let Window::Bound { start: from, len, rkey } = self.ends[end.peer].window
            && self.rng.one_in(2)
            && from.max(start) + op.len + align <= (from + len).min(stop)
        {
            op.window = Some((from..from + len, rkey));
            (start, stop) = (from.max(start), (from + len).min(stop));
        }
        op.len = op.len.min(stop - start);
        let at = (start + self.rng.index(stop - start - op.len + 1)).next_multiple_of(align);
        let at = if at + op.len > stop { at - align } else { at };
        op.remote = at..at + op.len;
    }

    fn post(&mut self, index: usize, mut op: Op) -> Check {
        let data = self.payload(index, &op);
        let peer = self.ends[index].peer;
        // Decides what must be found, in the order of posting.
        self.post_to_oracle(index, &mut op, &data);
        let inline = data.len() <= self.plan.inline as usize
            && !matches!(
                op.kind,
                Kind::Read | Kind::Atomic(_) | Kind::Flush { .. } | Kind::BindMw | Kind::LocalInv
            )
            && self.rng.one_in(2);
        let local = match op.kind {
            Kind::Flush { .. } | Kind::BindMw | Kind::LocalInv => 0,
            _ if inline => 0,
            _ => op.len,
        };
        if local > 0 || matches!(op.kind, Kind::Read | Kind::Atomic(_)) {
            self.lay_out(index, &mut op, &data);
        }
        let send_op = self.send_op(index, &op);
        let end = &self.ends[index];
        let sges = sges(&op.pieces, LOCAL_IOVA, end.local_mr.expect("the node has power").lkey);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, op.signaled);
        flags.set(SendFlags::FENCE, op.fence);
        let ud = end.ah.map(|ah| UdDest { ah, qpn: self.ends[peer].qpn.expect("connected"), qkey: QKEY });
        let wr = SendWr {
            wr_id: wr_id(index, op.seq),
            op: send_op,
            data: if inline { Data::Inline(&data) } else { Data::Sges(&sges) },
            flags,
            ud,
        };
        trace!(
            self,
            "end {index} posts {:#x} {:?} {} bytes at {:?}{}{}{}",
            wr.wr_id,
            op.kind,
            op.len,
            op.remote,
            if op.place == AtomicTarget::Shared { " (shared)" } else { "" },
            if op.fence { " fenced" } else { "" },
            if op.signaled { "" } else { " unsignalled" }
        );
        let node = &mut self.nodes[end.node];
        let device = node.device.as_mut().expect("an end that is up has a device");
        device
            .post_send(end.qpn.expect("an end that is up has a QP"), &wr)
            .map_err(|error| Violation(format!("end {index}: {:?} was not accepted: {error}", op.kind)))?;
        let end = &mut self.ends[index];
        end.seq = op.seq;
        match (op.kind, send_op) {
            (Kind::BindMw, SendOp::BindMw { rkey, bind, .. }) => {
                let start = (bind.addr - end.target_iova) as usize;
                end.window_key = end.window_key.wrapping_add(1);
                end.window = Window::Binding { start, len: bind.len as usize, rkey };
            }
            (Kind::LocalInv, _) => end.window = Window::Ending,
            (Kind::SendInv(_), _) => self.ends[peer].window = Window::Ending,
            _ => {}
        }
        self.ends[index].ops.push_back(op);
        Ok(())
    }

    fn payload(&self, index: usize, op: &Op) -> Vec<u8> {
        let len = match op.kind {
            Kind::Send
            | Kind::SendImm(_)
            | Kind::SendInv(_)
            | Kind::Write
            | Kind::WriteImm(_)
            | Kind::AtomicWrite => op.len,
            Kind::Read | Kind::Atomic(_) | Kind::Flush { .. } | Kind::BindMw | Kind::LocalInv => 0,
        };
        let mut data = vec![0; len];
        fill((index as u64) << 40 | op.seq, &mut data);
        data
    }

    fn post_to_oracle(&mut self, index: usize, op: &mut Op, data: &[u8]) {
        let end = &mut self.ends[index];
        if op.fence {
            for earlier in &mut end.ops {
                earlier.barrier = earlier.barrier.min(op.seq - 1);
            }
        }
        match &mut op.kind {
            Kind::Write | Kind::WriteImm(_) => end.oracle.post(op.seq, op.remote.start, data),
            Kind::AtomicWrite => {
                end.oracle.post(op.seq, op.remote.start, data);
                let value = u64::from_le_bytes(data.try_into().expect("8 bytes"));
                let kind = AtomicKind::Store { value };
                end.atomics.push_back((op.seq, AtomicTarget::Target, op.remote.start, kind));
            }
            Kind::Atomic(kind) => {
                if op.place == AtomicTarget::Target {
                    let old = end.oracle.word(op.remote.start);
                    if let AtomicKind::CompareSwap { compare, .. } = kind
                        && self.rng.one_in(2)
                    {
                        *compare = old;
                    }
                    let end = &mut self.ends[index];
                    end.oracle.post(op.seq, op.remote.start, &kind.apply(old).to_le_bytes());
                    op.old = Some(old);
                }
                let expected = (op.seq, op.place, op.remote.start, *kind);
                self.ends[index].atomics.push_back(expected);
            }
            Kind::Send
            | Kind::SendImm(_)
            | Kind::SendInv(_)
            | Kind::Read
            | Kind::Flush { .. }
            | Kind::BindMw
            | Kind::LocalInv => {}
        }
        if op.kind.is_message() {
            let (imm, invalidated) = match op.kind {
                Kind::SendImm(imm) | Kind::WriteImm(imm) => (Some(imm), None),
                Kind::SendInv(rkey) => (None, Some(rkey)),
                _ => (None, None),
            };
            let written = matches!(op.kind, Kind::WriteImm(_)).then_some(op.remote.start);
            self.ends[index].outbox.push_back(Message {
                seq: op.seq,
                data: data.to_vec(),
                written,
                imm,
                invalidated,
            });
        }
    }

    /// Puts the data of an operation into a slot, or empties the slot for what will come.
    fn lay_out(&mut self, index: usize, op: &mut Op, data: &[u8]) {
        let end = &mut self.ends[index];
        let slot = end.slots.take().expect("a slot for each send WQE");
        let range = end.slots.range(slot);
        // Atomics take one piece.
        let max = if matches!(op.kind, Kind::Atomic(_)) { 1 } else { self.plan.sges as usize };
        op.pieces = scatter(&mut self.rng, range.clone(), op.len, max);
        op.slot = Some(slot);
        let mut content = gap_pattern(&range);
        let mut rest = data;
        for piece in &op.pieces {
            let (head, tail) = rest.split_at(piece.len.min(rest.len()));
            content[piece.start - range.start..][..head.len()].copy_from_slice(head);
            rest = tail;
        }
        self.nodes[end.node].memory.store(end.local, range.start, &content);
    }

    fn send_op(&mut self, index: usize, op: &Op) -> SendOp {
        let end = &self.ends[index];
        let peer = &self.ends[end.peer];
        let target = peer.target_mr.expect("the peer's node has power");
        let remote = match (op.place, &op.window) {
            (AtomicTarget::Shared, _) => {
                let mr = self.nodes[peer.node].shared_mr.expect("the peer's node has power");
                RemoteAddr { addr: SHARED_IOVA + op.remote.start as u64, rkey: mr.rkey }
            }
            (AtomicTarget::Target, None) => {
                RemoteAddr { addr: peer.target_iova + op.remote.start as u64, rkey: target.rkey }
            }
            (AtomicTarget::Target, &Some((_, rkey))) => {
                RemoteAddr { addr: peer.target_iova + op.remote.start as u64, rkey }
            }
        };
        match op.kind {
            Kind::Send => SendOp::Send,
            Kind::SendImm(imm) => SendOp::SendImm(imm),
            Kind::SendInv(rkey) => SendOp::SendInv(rkey),
            Kind::Write => SendOp::Write(remote),
            Kind::WriteImm(imm) => SendOp::WriteImm(remote, imm),
            Kind::Read => SendOp::Read(remote),
            Kind::Atomic(AtomicKind::FetchAdd { add }) => SendOp::FetchAdd { remote, add },
            Kind::Atomic(AtomicKind::CompareSwap { compare, swap }) => {
                SendOp::CompareSwap { remote, compare, swap }
            }
            Kind::AtomicWrite => SendOp::AtomicWrite(remote),
            Kind::Atomic(AtomicKind::Store { .. }) => unreachable!("an ATOMIC WRITE has its own kind"),
            Kind::Flush { persist, whole } => SendOp::Flush {
                remote,
                len: op.remote.len() as u32,
                placement: if persist { Placement::Persistence } else { Placement::GlobalVisibility },
                selectivity: if whole { Selectivity::MemoryRegion } else { Selectivity::Range },
            },
            Kind::LocalInv => match end.window {
                Window::Bound { rkey, .. } => SendOp::LocalInv(rkey),
                Window::Free | Window::Binding { .. } | Window::Ending => {
                    unreachable!("chosen for a bound window")
                }
            },
            Kind::BindMw => self.bind_op(index),
        }
    }

    fn bind_op(&mut self, index: usize) -> SendOp {
        let end = &self.ends[index];
        let length = self.ends[end.peer].oracle.len();
        let start = self.rng.index(length / 2);
        let len = 1 + self.rng.index(length - start);
        let mw = end.mw.expect("an RC end has a window");
        let base = end.window_rkey.expect("an RC end has a window");
        let rkey = Rkey(base.0 & !0xff | u32::from(end.window_key));
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let access = access | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
        let mr = end.target_mr.expect("the node has power").lkey;
        let bind = MwBind { mr, addr: end.target_iova + start as u64, len: len as u64, access };
        SendOp::BindMw { mw, rkey, bind }
    }
}

/// The work request ID of operation `seq` of an end.
pub(crate) const fn wr_id(end: usize, seq: u64) -> u64 {
    (end as u64) << 40 | seq
}

fn sges(pieces: &[Piece], iova: u64, lkey: Lkey) -> Vec<Sge> {
    let sge = |piece: &Piece| Sge { addr: iova + piece.start as u64, len: piece.len as u32, lkey };
    pieces.iter().map(sge).collect()
}
