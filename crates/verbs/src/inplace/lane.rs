//! The fast half: operations that are carried out when they are posted, and their completions.
//!
//! A [`Lane`] belongs to an RC QP whose peer maps memory with us. While it is *open*, nothing of the QP is with the
//! engine, so that an operation done here is done in order. It lives beside the CQ that its completions go to, under
//! that CQ's own small lock; the device lock is not touched. Rules of order between the two kinds of completions:
//!
//! * What waits in the engine's CQ is older than what waits here: whoever polls takes that first.
//! * Before a request goes to the engine, what waits here is moved to the engine's CQ ([`State::spill`]).
//! * A CQ on which somebody sleeps, or whose consumer asked for notifications, gets all completions from the engine,
//!   which knows which thread to wake.
//!
//! Locks are taken in this order: device, CQ. Nothing is waited for under the CQ's.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

use remanence_pmem::Region;
use remanence_rnic::{
    Access, Data, Placement, RemoteAddr, Selectivity, SendFlags, SendOp, SendWr, Sge, Wc, WcOpcode,
};
use remanence_wire::{Lkey, Qpn, Rkey};
use spin::mutex::SpinMutex;
use spin::relax::Yield;

/// Completions that wait here at most; more go through the engine.
const DONE_MAX: u32 = 4096;
/// MRs of ours that a lane remembers.
const LOCALS: usize = 8;
/// MRs of the peer that a lane reaches.
const REMOTES: usize = 64;
/// One poll in so many serves the device even if it found something here: it may be the only one who does.
const SERVE_EVERY: u32 = 64;

/// Memory of ours, as an lkey names it.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    pub(crate) lkey: Lkey,
    pub(crate) access: Access,
    /// Virtual address of the first byte.
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) region: Region,
    /// Where in the region the first byte is.
    pub(crate) offset: u64,
}

/// Memory of the peer, mapped here.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub(crate) rkey: Rkey,
    pub(crate) access: Access,
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) region: Region,
    /// The grant: where in the guard page, and what must be there while it is valid.
    pub(crate) valid_at: u64,
    pub(crate) generation: u64,
}

/// How the owner of the memory knows that we are in the middle of something.
#[derive(Clone, Debug)]
pub(crate) struct Hazard {
    /// The page that both sides map.
    pub(crate) guard: Region,
    /// Our word in it.
    pub(crate) at: u64,
}

/// Why an operation was not carried out here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// It is the engine's business: of another kind, or it will fail and the engine knows how.
    Engine,
    /// An MR of ours that the lane does not know.
    Local(Lkey),
    /// An MR of the peer that the lane does not know.
    Remote(Rkey),
    /// The peer took the memory back.
    Revoked(Rkey),
}

/// What a lane must know of its QP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) sq_sig_all: bool,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
}

#[derive(Debug)]
pub(crate) struct Lane {
    qpn: Qpn,
    limits: Limits,
    open: bool,
    hazard: Option<Hazard>,
    remotes: Vec<Remote>,
    /// The one that was used last.
    last: usize,
    locals: Vec<Local>,
    /// Which one is forgotten next.
    oldest: usize,
    operations: u64,
}

impl Lane {
    pub(crate) fn new(qpn: Qpn, limits: Limits) -> Self {
        let (remotes, locals) = (Vec::new(), Vec::new());
        Self { qpn, limits, open: false, hazard: None, remotes, last: 0, locals, oldest: 0, operations: 0 }
    }

    /// Carries the operation out. The completion, if it asks for one.
    #[inline]
    fn execute(&mut self, wr: &SendWr<'_>) -> Result<Option<Wc>, Refusal> {
        // Earlier operations are visible before this one, as they are on a reliable connection.
        fence(Ordering::AcqRel);
        let (opcode, len) = match wr.op {
            SendOp::Write(to) => (WcOpcode::RdmaWrite, self.write(to, wr.data)?),
            SendOp::Read(from) => (WcOpcode::RdmaRead, self.read(from, wr.data)?),
            SendOp::CompareSwap { remote, compare, swap } => {
                self.atomic(remote, wr.data, |region, at| region.compare_and_swap(at, compare, swap))?;
                (WcOpcode::CompSwap, 8)
            }
            SendOp::FetchAdd { remote, add } => {
                self.atomic(remote, wr.data, |region, at| region.fetch_add(at, add))?;
                (WcOpcode::FetchAdd, 8)
            }
            SendOp::AtomicWrite(to) => {
                self.atomic_write(to, wr.data)?;
                (WcOpcode::AtomicWrite, 8)
            }
            SendOp::Flush { remote, len, placement: Placement::GlobalVisibility, selectivity } => {
                self.flush(remote, len, selectivity)?;
                (WcOpcode::Flush, 0)
            }
            // Persistence may take a system call, which is the peer's business.
            SendOp::Flush { .. }
            | SendOp::Send
            | SendOp::SendImm(_)
            | SendOp::SendInv(_)
            | SendOp::WriteImm(..)
            | SendOp::LocalInv(_)
            | SendOp::BindMw { .. } => return Err(Refusal::Engine),
        };
        self.operations += 1;
        let signaled = self.limits.sq_sig_all || wr.flags.contains(SendFlags::SIGNALED);
        Ok(signaled.then(|| Wc { wr_id: wr.wr_id, byte_len: len, ..Wc::new(opcode, self.qpn) }))
    }

    #[inline]
    fn write(&mut self, to: RemoteAddr, data: Data<'_>) -> Result<u32, Refusal> {
        match data {
            Data::Inline(bytes) => {
                if bytes.len() > self.limits.max_inline as usize {
                    return Err(Refusal::Engine);
                }
                let (remote, at) = self.remote(to, bytes.len() as u64, Access::REMOTE_WRITE)?;
                self.guarded(remote, |region| region.write(at, bytes))?;
                Ok(bytes.len() as u32)
            }
            Data::Sges([sge]) => {
                let (remote, at) = self.remote(to, sge.len.into(), Access::REMOTE_WRITE)?;
                let (local, from) = self.local(sge, Access::empty())?;
                self.guarded(remote, |region| local.region.copy_to(from, region, at, sge.len as usize))?;
                Ok(sge.len)
            }
            Data::Sges(sges) => {
                let len = self.total(sges, Access::empty())?;
                let (remote, mut at) = self.remote(to, len.into(), Access::REMOTE_WRITE)?;
                self.guarded(remote, |region| {
                    for sge in sges {
                        let (local, from) = self.local(sge, Access::empty()).expect("checked with the total");
                        local.region.copy_to(from, region, at, sge.len as usize);
                        at += u64::from(sge.len);
                    }
                })?;
                Ok(len)
            }
        }
    }

    #[inline]
    fn read(&mut self, from: RemoteAddr, data: Data<'_>) -> Result<u32, Refusal> {
        let Data::Sges(sges) = data else { return Err(Refusal::Engine) };
        let len = self.total(sges, Access::LOCAL_WRITE)?;
        let (remote, mut at) = self.remote(from, len.into(), Access::REMOTE_READ)?;
        let whole = self.guarded(remote, |region| {
            for sge in sges {
                let (local, to) = self.local(sge, Access::LOCAL_WRITE).expect("checked with the total");
                region.copy_to(at, &local.region, to, sge.len as usize);
                at += u64::from(sge.len);
            }
            region.failure().is_ok()
        })?;
        // A page that was lost reads as zeros: the peer's engine says that they are none of its data.
        if whole { Ok(len) } else { Err(Refusal::Engine) }
    }

    #[expect(clippy::host_endian_bytes, reason = "the old value lands in host order, as from an RNIC")]
    fn atomic(
        &mut self,
        to: RemoteAddr,
        data: Data<'_>,
        act: impl FnOnce(&Region, u64) -> u64,
    ) -> Result<(), Refusal> {
        let Data::Sges([sge @ Sge { len: 8, .. }]) = data else { return Err(Refusal::Engine) };
        let (remote, at) = self.word(to, Access::REMOTE_ATOMIC)?;
        let (local, result) = self.local(sge, Access::LOCAL_WRITE)?;
        self.guarded(remote, |region| local.region.write(result, &act(region, at).to_ne_bytes()))
    }

    #[expect(clippy::host_endian_bytes, reason = "bytes of memory to a native word: no format")]
    fn atomic_write(&mut self, to: RemoteAddr, data: Data<'_>) -> Result<(), Refusal> {
        let (remote, at) = self.word(to, Access::REMOTE_WRITE)?;
        let mut bytes = [0; 8];
        match data {
            Data::Inline(inline) if inline.len() <= self.limits.max_inline as usize => {
                bytes = inline.try_into().map_err(|_| Refusal::Engine)?;
            }
            Data::Sges([sge @ Sge { len: 8, .. }]) => {
                let (local, from) = self.local(sge, Access::empty())?;
                local.region.read(from, &mut bytes);
            }
            Data::Inline(_) | Data::Sges(_) => return Err(Refusal::Engine),
        }
        self.guarded(remote, |region| region.store_u64(at, u64::from_ne_bytes(bytes)))
    }

    /// What was written here is visible already; that it is not lost is what is asked.
    fn flush(&mut self, to: RemoteAddr, len: u32, selectivity: Selectivity) -> Result<(), Refusal> {
        let len = if selectivity == Selectivity::MemoryRegion { 0 } else { len };
        let found = self.find(to.rkey)?;
        if len > 0 {
            self.remote(to, len.into(), Access::FLUSH_GLOBAL)?;
        } else if !self.remotes[found].access.contains(Access::FLUSH_GLOBAL) {
            return Err(Refusal::Engine);
        }
        match self.guarded(found, |region| region.failure().is_ok())? {
            true => Ok(()),
            false => Err(Refusal::Engine),
        }
    }

    /// The bytes of all of them, each of which is a live buffer with the right `need`.
    fn total(&self, sges: &[Sge], need: Access) -> Result<u32, Refusal> {
        if sges.len() > self.limits.max_sge as usize {
            return Err(Refusal::Engine);
        }
        sges.iter().try_fold(0_u32, |sum, sge| {
            self.local(sge, need)?;
            sum.checked_add(sge.len).ok_or(Refusal::Engine)
        })
    }

    #[inline]
    fn find(&mut self, rkey: Rkey) -> Result<usize, Refusal> {
        if self.remotes.get(self.last).is_some_and(|remote| remote.rkey == rkey) {
            return Ok(self.last);
        }
        self.last = self.remotes.iter().position(|r| r.rkey == rkey).ok_or(Refusal::Remote(rkey))?;
        Ok(self.last)
    }

    /// A checked range of the peer's memory: which MR, and where in it. An empty one has no place.
    #[inline]
    fn remote(&mut self, to: RemoteAddr, len: u64, need: Access) -> Result<(usize, u64), Refusal> {
        let found = self.find(to.rkey)?;
        let remote = &self.remotes[found];
        match within(remote.base, remote.len, to.addr, len) {
            Some(at) if remote.access.contains(need) && len > 0 => Ok((found, at)),
            _ => Err(Refusal::Engine),
        }
    }

    fn word(&mut self, to: RemoteAddr, need: Access) -> Result<(usize, u64), Refusal> {
        let (remote, at) = self.remote(to, 8, need)?;
        if to.addr.is_multiple_of(8) && at.is_multiple_of(8) {
            Ok((remote, at))
        } else {
            Err(Refusal::Engine)
        }
    }

    /// A checked buffer of ours, and where in its region it begins.
    #[inline]
    fn local(&self, sge: &Sge, need: Access) -> Result<(&Local, u64), Refusal> {
        let local = self.locals.iter().find(|l| l.lkey == sge.lkey).ok_or(Refusal::Local(sge.lkey))?;
        match within(local.base, local.len, sge.addr, sge.len.into()) {
            Some(at) if local.access.contains(need) => Ok((local, local.offset + at)),
            _ => Err(Refusal::Engine),
        }
    }

    /// Touches the peer's memory, if the grant still stands; the peer waits for the end of it before it believes
    /// that nobody does. See `guard.rs` for why no fence is needed between saying so and looking.
    #[inline]
    fn guarded<R>(&self, remote: usize, act: impl FnOnce(&Region) -> R) -> Result<R, Refusal> {
        let remote = &self.remotes[remote];
        let Some(Hazard { guard, at }) = &self.hazard else { return Err(Refusal::Engine) };
        guard.store_u64(*at, 1);
        compiler_fence(Ordering::SeqCst);
        let result = (guard.load_u64(remote.valid_at) == remote.generation).then(|| act(&remote.region));
        guard.store_u64(*at, 0);
        result.ok_or(Refusal::Revoked(remote.rkey))
    }
}

/// Where `len` bytes at `addr` begin within `span` bytes at `base`.
#[inline]
fn within(base: u64, span: u64, addr: u64, len: u64) -> Option<u64> {
    let offset = addr.checked_sub(base)?;
    (offset <= span && len <= span - offset).then_some(offset)
}

/// What a CQ keeps beside the engine.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    /// A lane was ever added: who polls must look here.
    used: AtomicBool,
    state: SpinMutex<State, Yield>,
}

/// Under the CQ's lock.
#[derive(Debug, Default)]
pub(crate) struct State {
    lanes: Vec<Option<Lane>>,
    done: VecDeque<Wc>,
    capacity: u32,
    /// Threads that sleep on this CQ, or are about to.
    sleepers: u32,
    /// The consumer once asked for a notification, and may sleep on that.
    notifies: bool,
    polls: u32,
}

impl Beside {
    pub(crate) fn lock(&self) -> impl std::ops::DerefMut<Target = State> + '_ {
        self.state.lock()
    }

    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn set_capacity(&self, capacity: u32) {
        self.lock().capacity = capacity.min(DONE_MAX);
    }

    /// Adds a lane, closed. The number names it from now on.
    pub(crate) fn add(&self, lane: Lane) -> usize {
        let mut state = self.lock();
        self.used.store(true, Ordering::Relaxed);
        let capacity = state.capacity as usize;
        state.done.reserve(capacity);
        if let Some(free) = state.lanes.iter().position(Option::is_none) {
            state.lanes[free] = Some(lane);
            return free;
        }
        state.lanes.push(Some(lane));
        state.lanes.len() - 1
    }

    /// Carries an operation out now, if nothing speaks against it. False: ask [`super::post`].
    #[inline]
    pub(crate) fn post(&self, lane: usize, wr: &SendWr<'_>) -> bool {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.sleepers > 0 || state.notifies || state.done.len() >= state.capacity as usize {
            return false;
        }
        let Some(Some(lane)) = state.lanes.get_mut(lane) else { return false };
        if !lane.open {
            return false;
        }
        match lane.execute(wr) {
            Ok(Some(wc)) => {
                state.done.push_back(wc);
                true
            }
            Ok(None) => true,
            Err(_) => false,
        }
    }

    /// Moves what is done to `out`. Says how many, and whether the device is to be served all the same.
    #[inline]
    pub(crate) fn take(&self, out: &mut impl Extend<Wc>, max: usize) -> (usize, bool) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let taken = state.done.len().min(max);
        out.extend(state.done.drain(..taken));
        state.polls += u32::from(taken > 0);
        (taken, state.polls.is_multiple_of(SERVE_EVERY))
    }

    /// From now on every completion goes through the engine, which notifies.
    pub(crate) fn notifies(&self) {
        self.lock().notifies = true;
    }

    /// A thread is about to sleep until something completes here, or does not any more.
    pub(crate) fn sleeper(&self, comes: bool) {
        let sleepers = &mut self.lock().sleepers;
        *sleepers = if comes { *sleepers + 1 } else { *sleepers - 1 };
    }
}

impl State {
    /// May a completion wait here?
    pub(crate) fn holds_completions(&self) -> bool {
        self.sleepers == 0 && !self.notifies && self.done.len() < self.capacity as usize
    }

    pub(crate) fn push(&mut self, wc: Wc) {
        self.done.push_back(wc);
    }

    /// Hands what is done to the engine.
    pub(crate) fn spill(&mut self, mut to: impl FnMut(Wc)) {
        self.done.drain(..).for_each(&mut to);
    }

    fn lane(&mut self, lane: usize) -> &mut Lane {
        self.lanes[lane].as_mut().expect("a lane lives as long as its QP")
    }

    pub(crate) fn execute(&mut self, lane: usize, wr: &SendWr<'_>) -> Result<Option<Wc>, Refusal> {
        self.lane(lane).execute(wr)
    }

    pub(crate) fn is_open(&mut self, lane: usize) -> bool {
        self.lane(lane).open
    }

    pub(crate) fn set_open(&mut self, lane: usize, open: bool) {
        self.lane(lane).open = open;
    }

    pub(crate) fn operations(&mut self, lane: usize) -> u64 {
        self.lane(lane).operations
    }

    pub(crate) fn learn_local(&mut self, lane: usize, local: Local) {
        let lane = self.lane(lane);
        if lane.locals.len() < LOCALS {
            lane.locals.push(local);
        } else {
            lane.locals[lane.oldest] = local;
            lane.oldest = (lane.oldest + 1) % LOCALS;
        }
    }

    pub(crate) fn learn_remote(&mut self, lane: usize, remote: Remote) {
        let lane = self.lane(lane);
        lane.remotes.retain(|known| known.rkey != remote.rkey);
        if lane.remotes.len() == REMOTES {
            lane.remotes.remove(0);
        }
        lane.remotes.push(remote);
    }

    pub(crate) fn forget_remote(&mut self, lane: usize, rkey: Rkey) {
        self.lane(lane).remotes.retain(|known| known.rkey != rkey);
    }

    pub(crate) fn remotes(&mut self, lane: usize) -> &[Remote] {
        &self.lane(lane).remotes
    }

    pub(crate) fn hazard(&mut self, lane: usize) -> &mut Option<Hazard> {
        &mut self.lane(lane).hazard
    }

    /// Closes a lane and forgets the peer's memory. What was the hazard is free.
    pub(crate) fn disconnect(&mut self, lane: usize) -> Option<Hazard> {
        let lane = self.lane(lane);
        lane.open = false;
        lane.remotes.clear();
        lane.hazard.take()
    }

    /// Forgets an MR of ours, in all lanes.
    pub(crate) fn forget_local(&mut self, lkey: Lkey) {
        for lane in self.lanes.iter_mut().flatten() {
            lane.locals.retain(|local| local.lkey != lkey);
            lane.oldest = 0;
        }
    }

    pub(crate) fn remove(&mut self, lane: usize) {
        if let Some(lane) = self.lanes[lane].take() {
            // As the engine does with those of a QP that goes: its number may be another's soon.
            self.done.retain(|wc| wc.qpn != lane.qpn);
        }
    }
}
