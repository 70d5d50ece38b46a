//! How the cluster is built, and how connections break and come back.

use std::collections::VecDeque;

use remanence_rnic::device::SourcePort;
use remanence_rnic::{
    Access, AhAttr, Config, Device, MrAttr, MwType, QpAttr, QpCaps, QpInit, QpState, QpType, Span, SrqAttr,
    VerbError,
};
use remanence_wire::{Gid, Psn, Qkey, Qpn};

use crate::end::{End, RecvQueue, Slots, WORDS, Window};
use crate::memory::SimMemory;
use crate::rng::{Rng, fill};
use crate::target::Target;
use crate::world::{Check, Conn, ConnState, Event, Violation, World, ensure, trace};

/// Words that all ends share at each node.
pub(crate) const SHARED_WORDS: usize = 4;
/// Bytes that a target has beside its words and one longest message: little, so that operations overlap.
const TARGET_EXTRA: usize = 1024;
/// Virtual addresses of local regions begin here.
pub(crate) const LOCAL_IOVA: u64 = 0x7000_0000_0000;
pub(crate) const RECV_IOVA: u64 = 0x7100_0000_0000;
pub(crate) const SHARED_IOVA: u64 = 0x1000;
pub(crate) const QKEY: Qkey = Qkey(0x1111_2222);

const REMOTE: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

impl From<VerbError> for Violation {
    fn from(error: VerbError) -> Self {
        Self(format!("a verb was refused: {error}"))
    }
}

impl World<'_> {
    pub(crate) fn set_up(&mut self) -> Check {
        for index in 0..self.plan.nodes as usize {
            let addr = Self::address(index, self.plan.ipv6);
            let rng = Rng::new(self.seed, 16 + index as u64);
            let plan = &self.plan;
            let mut memory = SimMemory::new(rng, plan.domain, plan.flush_pending, plan.flush_nanos);
            let shared = memory.add_volatile(vec![0; SHARED_WORDS * 8]);
            self.nodes.push(Self::node(addr, memory, shared));
        }
        for _ in 0..self.plan.connections {
            self.add_connection();
        }
        for node in 0..self.nodes.len() {
            self.start(node)?;
        }
        for conn in 0..self.conns.len() {
            self.connect(conn)?;
        }
        self.schedule_faults();
        Ok(())
    }

    fn add_connection(&mut self) {
        let nodes = self.nodes.len();
        let a = self.rng.index(nodes);
        // Now and then a QP is connected to another of its own machine.
        let b = if self.rng.one_in(8) { a } else { (a + 1 + self.rng.index(nodes - 1)) % nodes };
        let ty = if self.plan.unreliable && self.rng.one_in(6) {
            self.rng.pick(&[QpType::Uc, QpType::Ud])
        } else {
            QpType::Rc
        };
        let first = self.ends.len();
        let length = self.target_len();
        let mut oracles = Vec::new();
        for node in [a, b] {
            let mut content = vec![0; length];
            fill(self.rng.u64(), &mut content);
            let target = self.nodes[node].memory.add_persistent(content.clone());
            oracles.push((target, Target::new(content)));
        }
        let share = self.plan.ops / self.plan.connections / 2 + 1;
        for (side, node) in [a, b].into_iter().enumerate() {
            let slots = Slots::new(0, self.plan.message_max as usize, self.plan.send_depth as usize);
            let local = self.nodes[node].memory.add_volatile(vec![0; slots.bytes()]);
            // The oracle of an end is about the other end's target.
            let oracle = Target::new(oracles[1 - side].1.image().to_vec());
            let recv = self.recv_queue(node, ty);
            let target_iova = self.rng.below(1 << 40) << 3;
            self.ends.push(End {
                node,
                peer: first + 1 - side,
                ty,
                qpn: None,
                ah: None,
                local,
                local_mr: None,
                slots,
                target: oracles[side].0,
                target_mr: None,
                target_iova,
                mw: None,
                window: Window::Free,
                window_rkey: None,
                window_key: 0,
                recv,
                oracle,
                ops: VecDeque::new(),
                atomics: VecDeque::new(),
                outbox: VecDeque::new(),
                seq: 0,
                completed: 0,
                flushing: false,
                survivors: None,
                todo: share,
                tick: false,
            });
        }
        self.conns.push(Conn { state: ConnState::Down, excused: false, generation: 0 });
    }

    pub(crate) fn target_len(&self) -> usize {
        WORDS + self.plan.message_max as usize + TARGET_EXTRA
    }

    /// The receive queue of a new end at `node`: with an SRQ, the node's. Only RC QPs share it: a UC QP keeps the
    /// WQE of a message that broke off until another begins, and could starve the others for ever.
    fn recv_queue(&mut self, node: usize, ty: QpType) -> usize {
        let shared = self.plan.srq && ty == QpType::Rc;
        if shared && let Some(queue) = self.recvs.iter().position(|queue| queue.shared && queue.node == node)
        {
            return queue;
        }
        let depth = self.plan.recv_depth as usize;
        let slots = Slots::new(0, self.plan.message_max as usize, depth);
        let region = self.nodes[node].memory.add_volatile(vec![0; slots.bytes()]);
        self.recvs.push(RecvQueue {
            posted: VecDeque::new(),
            slots,
            region,
            mr: None,
            shared,
            depth,
            node,
            wr_id: 0,
        });
        self.recvs.len() - 1
    }

    /// Gives a node power: a new device, with its objects.
    fn start(&mut self, index: usize) -> Check {
        let plan = &self.plan;
        let qps = u32::try_from(self.ends.len()).expect("few ends");
        let node = &mut self.nodes[index];
        node.epoch += 1;
        let mut device = Device::new(Config {
            gids: vec![Gid::from_ip(node.addr)],
            // QP numbers of an earlier life come back late, as packets of that life may still be under way.
            qpns: 0x11 + node.epoch * 0x1000..0x11 + (node.epoch + 1) * 0x1000,
            mtu: plan.mtu,
            source_port: if plan.fixed_port { SourcePort::Fixed(4791) } else { SourcePort::PerQp },
            credits: plan.credits,
            seed: self.seed.wrapping_mul(31).wrapping_add(u64::from(node.epoch) << 8 | index as u64),
            ..Config::default()
        });
        node.pd = device.alloc_pd()?;
        let cqe = qps * (plan.send_depth + plan.recv_depth) + 1;
        node.cqs = [device.create_cq(cqe)?, device.create_cq(cqe)?];
        if plan.srq {
            let attr = SrqAttr { max_wr: plan.recv_depth, max_sge: plan.sges, limit: 0 };
            node.srq = Some(device.create_srq(node.pd, &attr)?);
        }
        let span = Span { region: node.shared, offset: 0, len: SHARED_WORDS as u64 * 8 };
        let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
        node.shared_mr =
            Some(device.reg_mr(node.pd, &MrAttr { span, iova: SHARED_IOVA, access }, &node.memory)?);
        for recv in self.recvs.iter_mut().filter(|recv| recv.node == index) {
            let span = Span { region: recv.region, offset: 0, len: recv.slots.bytes() as u64 };
            let attr = MrAttr { span, iova: RECV_IOVA, access: Access::LOCAL_WRITE };
            recv.mr = Some(device.reg_mr(node.pd, &attr, &node.memory)?);
        }
        for end in self.ends.iter_mut().filter(|end| end.node == index) {
            let span = Span { region: end.local, offset: 0, len: end.slots.bytes() as u64 };
            let attr = MrAttr { span, iova: LOCAL_IOVA, access: Access::LOCAL_WRITE };
            end.local_mr = Some(device.reg_mr(node.pd, &attr, &node.memory)?);
            let span = Span { region: end.target, offset: 0, len: end.oracle.len() as u64 };
            let access = Access::LOCAL_WRITE | Access::MW_BIND | REMOTE;
            let attr = MrAttr { span, iova: end.target_iova, access };
            end.target_mr = Some(device.reg_mr(node.pd, &attr, &node.memory)?);
        }
        node.device = Some(device);
        Ok(())
    }

    /// Brings both QPs of a connection to RTS.
    pub(crate) fn connect(&mut self, conn: usize) -> Check {
        let pair = [conn * 2, conn * 2 + 1];
        let psns = pair.map(|_| self.random_psn());
        for index in pair {
            self.create_qp(index)?;
        }
        for (side, index) in pair.into_iter().enumerate() {
            let end = &self.ends[index];
            let peer = &self.ends[end.peer];
            let dest = peer.qpn.expect("just created");
            let av = AhAttr::new(Gid::from_ip(self.nodes[peer.node].addr));
            self.bring_up(index, dest, av, psns[side], psns[1 - side])?;
            self.ends[index].window = Window::Free;
            self.schedule_tick(index, 0);
        }
        let conn = &mut self.conns[conn];
        conn.state = ConnState::Up;
        let nodes = pair.map(|index| self.nodes[self.ends[index].node].addr);
        conn.excused = self.network.is_partitioned(nodes[0], nodes[1]);
        trace!(self, "ends {} and {} are connected", pair[0], pair[1]);
        for index in pair {
            self.pump(self.ends[index].node)?;
        }
        Ok(())
    }

    /// A first PSN: often just before the circle closes.
    fn random_psn(&mut self) -> Psn {
        if self.rng.one_in(2) {
            Psn::new(0u32.wrapping_sub(1 + self.rng.below(64) as u32))
        } else {
            Psn::new(self.rng.u64() as u32)
        }
    }

    fn create_qp(&mut self, index: usize) -> Check {
        let plan = &self.plan;
        let end = &mut self.ends[index];
        let node = &mut self.nodes[end.node];
        let device = node.device.as_mut().expect("connected nodes have power");
        let init = QpInit {
            pd: node.pd,
            ty: end.ty,
            send_cq: node.cqs[1],
            recv_cq: node.cqs[0],
            srq: node.srq.filter(|_| self.recvs[end.recv].shared),
            caps: QpCaps {
                max_send_wr: plan.send_depth,
                max_recv_wr: plan.recv_depth,
                max_send_sge: plan.sges,
                max_recv_sge: plan.sges,
                max_inline: plan.inline,
            },
            sq_sig_all: false,
        };
        end.qpn = Some(device.create_qp(&init)?);
        if end.ty == QpType::Rc {
            let (mw, rkey) = device.alloc_mw(node.pd, MwType::Type2)?;
            (end.mw, end.window_rkey) = (Some(mw), Some(rkey));
        }
        Ok(())
    }

    fn bring_up(&mut self, index: usize, dest: Qpn, av: AhAttr, rq_psn: Psn, sq_psn: Psn) -> Check {
        let now = self.instant();
        let plan = &self.plan;
        let end = &mut self.ends[index];
        let node = &mut self.nodes[end.node];
        let device = node.device.as_mut().expect("connected nodes have power");
        let qpn = end.qpn.expect("just created");
        let (rc, ud) = (end.ty == QpType::Rc, end.ty == QpType::Ud);
        let init = QpAttr {
            state: Some(QpState::Init),
            access: (!ud).then_some(REMOTE),
            qkey: ud.then_some(QKEY),
            ..QpAttr::default()
        };
        let rtr = QpAttr {
            state: Some(QpState::Rtr),
            av: (!ud).then_some(av),
            path_mtu: (!ud).then_some(plan.mtu),
            dest_qpn: (!ud).then_some(dest),
            rq_psn: (!ud).then_some(rq_psn),
            max_dest_rd_atomic: rc.then_some(plan.rd_atomic),
            min_rnr_timer: rc.then_some(plan.rnr_timer),
            ..QpAttr::default()
        };
        let rts = QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(sq_psn),
            // Generous: eight tries in half a second, so that no loss of ten percent ends a connection.
            timeout: rc.then_some(14),
            retry_cnt: rc.then_some(7),
            rnr_retry: rc.then_some(7),
            max_rd_atomic: rc.then_some(plan.rd_atomic),
            ..QpAttr::default()
        };
        for attr in [init, rtr, rts] {
            device.modify_qp(now, qpn, &attr)?;
        }
        if ud {
            end.ah = Some(device.create_ah(node.pd, &av)?);
        }
        Ok(())
    }

    fn schedule_faults(&mut self) {
        let span = 1 + u64::from(self.plan.ops) * self.plan.pause;
        for _ in 0..self.plan.crashes {
            let (at, node) = (self.rng.below(span), self.rng.index(self.nodes.len()));
            let nanos = self.rng.pick(&[1_000, 1_000_000, 2_000_000_000]);
            self.schedule(at, Event::Crash { node, nanos });
        }
        for _ in 0..self.plan.partitions {
            let (at, a) = (self.rng.below(span), self.rng.index(self.nodes.len()));
            let b = (a + 1 + self.rng.index(self.nodes.len() - 1)) % self.nodes.len();
            let nanos = self.rng.pick(&[50_000, 5_000_000, 200_000_000, 2_000_000_000]);
            self.schedule(at, Event::Partition { a, b, nanos });
        }
    }

    pub(crate) fn partition(&mut self, a: usize, b: usize, nanos: u64) {
        if self.healed.is_some() {
            return;
        }
        trace!(self, "nodes {a} and {b} do not see each other for {} us", nanos / 1000);
        self.counts.partitions += 1;
        self.network.partition(self.nodes[a].addr, self.nodes[b].addr);
        for (index, conn) in self.conns.iter_mut().enumerate() {
            let nodes = [self.ends[index * 2].node, self.ends[index * 2 + 1].node];
            conn.excused |= nodes == [a, b] || nodes == [b, a];
        }
        self.schedule(nanos, Event::Join { a, b });
    }

    pub(crate) fn crash(&mut self, index: usize, nanos: u64) -> Check {
        if self.healed.is_some() || self.nodes[index].device.is_none() {
            return Ok(());
        }
        trace!(self, "node {index} loses power for {} us", nanos / 1000);
        self.counts.crashes += 1;
        self.retire_device(index);
        self.nodes[index].memory.crash();
        self.forget_timer(index);
        for recv in self.recvs.iter_mut().filter(|recv| recv.node == index) {
            recv.posted.clear();
            recv.slots.give_all_back();
        }
        for end in 0..self.ends.len() {
            if self.ends[end].node != index {
                continue;
            }
            self.forget_end(end);
            self.note_survivors(end)?;
            let conn = &mut self.conns[end / 2];
            conn.excused = true;
            if conn.state == ConnState::Up {
                conn.state = ConnState::Broken;
            }
        }
        self.schedule(nanos, Event::Restart { node: index });
        Ok(())
    }

    /// The machine of end `index` has crashed: what its target holds now is what survived. Whether it may is looked
    /// at when the connection is taken down, as the answer to a FLUSH may still be under way.
    fn note_survivors(&mut self, index: usize) -> Check {
        let end = &self.ends[index];
        let actual = self.nodes[end.node].memory.bytes(end.target, 0, self.ends[end.peer].oracle.len());
        let peer = end.peer;
        if self.conns[index / 2].state == ConnState::Down {
            return self.check_survivors(peer, &actual);
        }
        self.ends[peer].survivors = Some(actual);
        Ok(())
    }

    pub(crate) fn restart(&mut self, index: usize) -> Check {
        if self.nodes[index].device.is_some() {
            return Ok(());
        }
        trace!(self, "node {index} starts again");
        self.start(index)?;
        for conn in 0..self.conns.len() {
            if [conn * 2, conn * 2 + 1].iter().any(|&end| self.ends[end].node == index) {
                self.tear_down(conn)?;
            }
        }
        Ok(())
    }

    /// Takes the QPs of a connection away, looks at what they flush, and schedules new ones.
    pub(crate) fn tear_down(&mut self, conn: usize) -> Check {
        let now = self.instant();
        if self.conns[conn].state != ConnState::Down {
            self.conns[conn].state = ConnState::Broken;
            trace!(self, "connection {conn} is taken down");
            for index in [conn * 2, conn * 2 + 1] {
                let node = self.ends[index].node;
                let Some(qpn) = self.ends[index].qpn else { continue };
                let device = self.nodes[node].device.as_mut().expect("a QP has a device");
                let attr = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
                device.modify_qp(now, qpn, &attr)?;
                self.pump(node)?;
                self.check_flushed(index)?;
                let end = &mut self.ends[index];
                let device = self.nodes[node].device.as_mut().expect("a QP has a device");
                device.destroy_qp(qpn)?;
                if let Some(mw) = end.mw.take() {
                    device.dealloc_mw(mw)?;
                }
                if let Some(ah) = end.ah.take() {
                    device.destroy_ah(ah)?;
                }
                self.forget_end(index);
            }
            self.conns[conn].state = ConnState::Down;
            for index in [conn * 2, conn * 2 + 1] {
                self.ends[index].outbox.clear();
                self.adopt(index)?;
            }
        }
        self.conns[conn].generation += 1;
        let generation = self.conns[conn].generation;
        // Packets of the old connection must be gone (IBA Vol 1, 12.9.8.3.1, timewait).
        let timewait = self.network.lifetime_max() + 1;
        self.schedule(timewait, Event::Reconnect { conn, generation });
        Ok(())
    }

    pub(crate) fn reconnect(&mut self, conn: usize, generation: u32) -> Check {
        let up = |index: usize| self.nodes[self.ends[index].node].device.is_some();
        if self.conns[conn].generation != generation || !up(conn * 2) || !up(conn * 2 + 1) {
            // Another crash; the restart will come back here.
            return Ok(());
        }
        ensure!(self.conns[conn].state == ConnState::Down, "connection {conn} comes back twice");
        self.counts.reconnects += 1;
        self.connect(conn)
    }

    /// Every work request of an end in the error state must have been flushed.
    fn check_flushed(&self, index: usize) -> Check {
        let end = &self.ends[index];
        // Unsignalled ones may have succeeded before.
        ensure!(
            end.ops.is_empty() || !end.flushing && end.ops.iter().all(|op| !op.signaled),
            "end {index} is in the error state, and {} send WRs from {} on never completed",
            end.ops.len(),
            end.ops[0].seq
        );
        ensure!(
            self.recvs[end.recv].shared || self.recvs[end.recv].posted.is_empty(),
            "end {index} is in the error state, and {} receive WRs never completed",
            self.recvs[end.recv].posted.len()
        );
        Ok(())
    }

    /// Forgets what an end waited for: its QP is gone.
    fn forget_end(&mut self, index: usize) {
        let end = &mut self.ends[index];
        end.qpn = None;
        end.ah = None;
        end.mw = None;
        end.ops.clear();
        end.flushing = false;
        end.slots.give_all_back();
        end.window = Window::Free;
    }

    /// Nobody knows which of the last operations of end `index` took place: what is in the target now is what did,
    /// if it is possible at all.
    fn adopt(&mut self, index: usize) -> Check {
        if let Some(survivors) = self.ends[index].survivors.take() {
            return self.check_survivors(index, &survivors);
        }
        let end = &self.ends[index];
        let peer = &self.ends[end.peer];
        let actual = self.nodes[peer.node].memory.bytes(peer.target, 0, end.oracle.len());
        let floor = if end.ty == QpType::Rc { end.completed } else { 0 };
        if let Err(wrong) = end.oracle.check_visible(floor, 0, &actual) {
            return Err(Violation(format!(
                "end {index} was lost, and its target holds {:#04x} at {}: completed operations (up to {}) are not \
                 there",
                wrong.found, wrong.offset, end.completed
            )));
        }
        let end = &mut self.ends[index];
        end.seq += 1;
        end.oracle.adopt(end.seq, &actual);
        end.completed = end.seq;
        end.atomics.clear();
        Ok(())
    }

    /// The target of end `index` was in a crash: it must hold what was flushed, and nothing that was never written.
    fn check_survivors(&mut self, index: usize, survivors: &[u8]) -> Check {
        let end = &mut self.ends[index];
        if let Err(wrong) = end.oracle.check_survived(0, survivors) {
            return Err(Violation(format!(
                "a crash left {:#04x} at {} of the target of end {index}, which neither was flushed nor came after \
                 (newest: {:#04x})",
                wrong.found, wrong.offset, wrong.newest
            )));
        }
        end.oracle.restart(survivors);
        end.completed = end.seq;
        end.atomics.clear();
        Ok(())
    }
}
