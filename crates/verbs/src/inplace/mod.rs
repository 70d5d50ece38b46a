//! Memory of a peer on this host, reached with no packet and no help of its CPU.
//!
//! On a link with a side channel (shared memory) an RC QP that is connected to another process of the host may get
//! at that process's memory itself: if its owner has offered it ([`Mr::share_in_place`](crate::Mr::share_in_place)).
//! WRITE, READ, CAS, FAA, ATOMIC WRITE and FLUSH to global visibility are then carried out when they are posted, by
//! loads and stores, and complete at once. The consumer sees no difference but the speed: keys, bounds and rights
//! are checked as ever, completions keep their order, and what cannot be done here goes to the engine, which also
//! finds the errors.
//!
//! | file | what it does |
//! |---|---|
//! | `lane.rs` | the fast path: an operation, its checks, its completion |
//! | `guard.rs` | how memory is taken back from a peer |
//! | `protocol.rs` | the messages |
//! | this one | who may have what: asking, granting, withdrawing. All of it under the device lock |
//!
//! The first operation on an rkey goes to the engine, and beside it the owner is asked for the memory; from the
//! answer on, the operations that find the send queue idle are done here.
//!
//! What is given away: the peer *process* maps the memory and could write it at any time, grant or no grant. So
//! memory is given only where its owner says so; to processes that the link trusts (same user, root, or named);
//! through a connected QP of the memory's domain with all rights to read and write it; and only memory without a
//! name. A file could be opened by a successor of this process while a peer still writes it.

mod guard;
mod lane;
mod protocol;

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use remanence_link::{SideChannel, SideEvent};
use remanence_pmem::{Kind, Region};
use remanence_rnic::{
    Access, CqHandle, Device, Instant, Mr, PdHandle, PostError, QpState, QpType, SendWr, Span, VerbError,
};
use remanence_wire::{Qpn, Rkey};

use crate::driver::Driver;
use crate::error::Error;
pub(crate) use guard::Withdrawal;
pub(crate) use lane::{Beside, Limits};
use lane::{Hazard, Lane, Local, Refusal, Remote, State};
use protocol::Message;

/// An owner that did not answer, or said no by silence, is asked again after this time.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Keys that are remembered as asked for.
const ASKED_MAX: usize = 1024;

/// Where a QP's lane is, and what posting needs to know of the QP.
#[derive(Clone, Debug)]
pub(crate) struct LaneOf {
    pub(crate) beside: Arc<Beside>,
    pub(crate) lane: usize,
    pub(crate) qpn: Qpn,
    pub(crate) pd: PdHandle,
    pub(crate) cq: CqHandle,
}

/// The other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Far {
    address: IpAddr,
    qpn: Qpn,
}

#[derive(Debug)]
struct Known {
    of: LaneOf,
    /// Whose memory the lane reaches.
    far: Option<Far>,
}

/// Memory of ours that peers may have.
#[derive(Debug)]
struct Share {
    region: Region,
    pd: PdHandle,
    base: u64,
    len: u64,
    access: Access,
}

/// Memory of ours that a peer has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Granted {
    rkey: Rkey,
    /// Our QP that it was asked for through.
    qpn: Qpn,
    far: Far,
}

/// Memory of a peer that is offered to us.
struct Offer {
    rkey: Rkey,
    index: u32,
    generation: u64,
    base: u64,
    len: u64,
    access: Access,
}

/// A peer process.
#[derive(Debug, Default)]
struct PeerProcess {
    /// Our guard page for it, and what stands in its grants.
    ours: Option<(Region, Vec<Option<Granted>>)>,
    /// Its guard page for us, and our hazards in it that are free.
    theirs: Option<(Region, Vec<u32>)>,
}

/// What a device knows of memory in place; under its lock.
#[derive(Debug, Default)]
pub(crate) struct InPlace {
    /// The link has a side channel.
    possible: bool,
    lanes: HashMap<Qpn, Known>,
    shares: HashMap<Rkey, Share>,
    peers: HashMap<IpAddr, PeerProcess>,
    asked: HashMap<(Qpn, Rkey), Instant>,
    generation: u64,
    /// [`Device::qp_changes`] at the last review.
    reviewed: u64,
}

impl InPlace {
    pub(crate) fn new(possible: bool) -> Self {
        Self { possible, ..Self::default() }
    }

    pub(crate) fn is_possible(&self) -> bool {
        self.possible
    }

    /// Makes the lane of a new QP.
    pub(crate) fn add_lane(
        &mut self,
        beside: &Arc<Beside>,
        qpn: Qpn,
        pd: PdHandle,
        cq: CqHandle,
        limits: Limits,
    ) -> LaneOf {
        let lane = beside.add(Lane::new(qpn, limits));
        let of = LaneOf { beside: Arc::clone(beside), lane, qpn, pd, cq };
        self.lanes.insert(qpn, Known { of: of.clone(), far: None });
        of
    }

    /// The QP is gone.
    pub(crate) fn remove_lane(&mut self, of: &LaneOf) {
        let hazard = of.beside.lock().disconnect(of.lane);
        of.beside.lock().remove(of.lane);
        // One that was destroyed by name may have given its number to another.
        let same = |known: &Known| known.of.lane == of.lane && Arc::ptr_eq(&known.of.beside, &of.beside);
        if self.lanes.get(&of.qpn).is_some_and(same)
            && let Some(known) = self.lanes.remove(&of.qpn)
        {
            self.free_hazard(known.far, hazard);
            self.asked.retain(|(asked, _), _| *asked != of.qpn);
        }
    }

    fn free_hazard(&mut self, far: Option<Far>, hazard: Option<Hazard>) {
        let peer = far.and_then(|far| self.peers.get_mut(&far.address));
        if let Some(hazard) = hazard
            && let Some((page, free)) = peer.and_then(|peer| peer.theirs.as_mut())
            && hazard.guard.base() == page.base()
        {
            free.push(guard::hazard_index(hazard.at));
        }
    }

    /// An MR of ours is gone or has changed: no lane may use it any more, and no peer. The caller waits for those,
    /// without the device lock.
    pub(crate) fn mr_gone(&mut self, mr: &Mr) -> Withdrawal {
        for known in self.lanes.values() {
            known.of.beside.lock().forget_local(mr.lkey);
        }
        self.withdraw(mr.rkey)
    }

    /// Offers memory to peers.
    pub(crate) fn share(
        &mut self,
        device: &Device,
        pd: PdHandle,
        keys: &Mr,
        region: &Region,
    ) -> Result<(), Error> {
        let mr = device.local_mr(pd, keys.lkey).ok_or(VerbError::NoSuchObject("MR"))?;
        let whole = mr.span.offset == 0 && mr.span.len == region.len();
        if region.kind() != Kind::Memfd {
            return Err(VerbError::InvalidArgument(
                "only memory without a name (Region::memfd) can be shared in place",
            )
            .into());
        }
        if !whole || !mr.access.contains(Access::REMOTE_READ | Access::REMOTE_WRITE) {
            return Err(VerbError::InvalidArgument(
                "to be shared in place an MR must cover its whole region, with remote read and write",
            )
            .into());
        }
        if !self.possible || !guard::is_possible() {
            // The MR works as ever, by packets.
            return Ok(());
        }
        let share = Share { region: region.clone(), pd, base: mr.base, len: mr.span.len, access: mr.access };
        self.shares.insert(keys.rkey, share);
        Ok(())
    }

    fn withdraw(&mut self, rkey: Rkey) -> Withdrawal {
        if self.shares.remove(&rkey).is_none() {
            return Withdrawal::default();
        }
        let mut withdrawal = Withdrawal::default();
        for (page, grants) in self.peers.values_mut().filter_map(|peer| peer.ours.as_mut()) {
            if revoke(page, grants, |granted| granted.rkey == rkey) {
                withdrawal.guards.push(page.clone());
            }
        }
        withdrawal
    }

    /// After QPs have changed their states: lanes and grants of those that are no longer connected end.
    pub(crate) fn review(&mut self, device: &Device) {
        if device.qp_changes() == self.reviewed {
            return;
        }
        self.reviewed = device.qp_changes();
        let mut freed = Vec::new();
        for known in self.lanes.values_mut().filter(|known| known.far.is_some()) {
            let rts = device.query_qp(known.of.qpn).is_ok_and(|qp| qp.state == QpState::Rts);
            if !rts {
                freed.push((known.far.take(), known.of.beside.lock().disconnect(known.of.lane)));
            }
        }
        freed.into_iter().for_each(|(far, hazard)| self.free_hazard(far, hazard));
        for (page, grants) in self.peers.values_mut().filter_map(|peer| peer.ours.as_mut()) {
            revoke(page, grants, |granted| {
                connection(device, granted.qpn).is_none_or(|c| c.far != granted.far)
            });
        }
    }

    /// A peer process has ended.
    fn gone(&mut self, address: IpAddr) {
        self.peers.remove(&address);
        for known in self.lanes.values_mut().filter(|known| known.far.is_some_and(|f| f.address == address)) {
            known.far = None;
            known.of.beside.lock().disconnect(known.of.lane);
        }
    }

    /// Gives memory to a peer that may have it. `None`: it may not, and gets no answer.
    fn grant(
        &mut self,
        device: &Device,
        far: Far,
        qpn: Qpn,
        rkey: Rkey,
    ) -> Option<(Message, OwnedFd, Option<OwnedFd>)> {
        let share = self.shares.get(&rkey)?;
        let connection = connection(device, qpn).filter(|connection| connection.far == far)?;
        let access = share.access & connection.access;
        if connection.pd != share.pd || !access.contains(Access::REMOTE_READ | Access::REMOTE_WRITE) {
            return None;
        }
        let memory = share.region.share().ok()?;
        let peer = self.peers.entry(far.address).or_default();
        let mut new_page = None;
        if peer.ours.is_none() {
            let page = guard::create().ok()?;
            new_page = Some(page.share().ok()?);
            peer.ours = Some((page, vec![None; guard::GRANTS as usize]));
        }
        let (page, grants) = peer.ours.as_mut().expect("just made");
        let granted = Granted { rkey, qpn, far };
        let index = grants
            .iter()
            .position(|g| *g == Some(granted))
            .or_else(|| grants.iter().position(Option::is_none))?;
        grants[index] = Some(granted);
        let index = index as u32;
        self.generation += 1;
        page.store_u64(guard::grant_at(index), self.generation);
        let (base, len, generation) = (share.base, share.len, self.generation);
        let grant = Message::Grant { to: far.qpn, from: qpn, rkey, index, generation, base, len, access };
        Some((grant, memory, new_page))
    }

    /// A peer has given us memory.
    fn granted(&mut self, far: Far, to: Qpn, offer: &Offer, file: OwnedFd) {
        let Some(known) = self.lanes.get(&to).filter(|known| known.far == Some(far)) else { return };
        let of = known.of.clone();
        let theirs = self.peers.get_mut(&far.address).and_then(|peer| peer.theirs.as_mut());
        let Some((page, free)) = theirs.filter(|_| offer.index < guard::GRANTS) else { return };
        // Another QP to the same peer may map it already.
        let neighbours = self.lanes.values().filter(|k| k.far.is_some_and(|f| f.address == far.address));
        let mapped = neighbours.into_iter().find_map(|neighbour| {
            let mut state = neighbour.of.beside.lock();
            let same = |known: &&Remote| {
                let stands = page.load_u64(known.valid_at) == known.generation;
                known.rkey == offer.rkey && known.len == offer.len && stands
            };
            state.remotes(neighbour.of.lane).iter().find(same).map(|known| known.region.clone())
        });
        let Some(region) = mapped.or_else(|| Region::from_shared_fd(file, offer.len).ok()) else { return };
        let mut state = of.beside.lock();
        if state.hazard(of.lane).is_none() {
            let Some(free) = free.pop() else { return };
            *state.hazard(of.lane) = Some(Hazard { guard: page.clone(), at: guard::hazard_at(free) });
        }
        self.asked.remove(&(to, offer.rkey));
        let &Offer { rkey, index, generation, base, len, access } = offer;
        let valid_at = guard::grant_at(index);
        state.learn_remote(of.lane, Remote { rkey, access, base, len, region, valid_at, generation });
    }

    /// A peer's guard page for us.
    fn guarded(&mut self, from: IpAddr, file: OwnedFd) {
        if let Ok(page) = Region::from_shared_fd(file, guard::LEN)
            && guard::register()
        {
            self.peers.entry(from).or_default().theirs = Some((page, (0..guard::HAZARDS).rev().collect()));
        }
    }

    /// Asks the owner of `rkey` for the memory, if that was not done lately.
    fn ask(&mut self, now: Instant, side: Option<&mut dyn SideChannel>, of: &LaneOf, rkey: Rkey) {
        let Some((side, far)) = side.zip(self.lanes.get(&of.qpn).and_then(|known| known.far)) else { return };
        if self.asked.len() >= ASKED_MAX {
            self.asked.retain(|_, at| now.since(*at) < ASK_AGAIN);
        }
        let asked = self.asked.get(&(of.qpn, rkey)).is_some_and(|at| now.since(*at) < ASK_AGAIN);
        if asked || self.asked.len() >= ASKED_MAX {
            return;
        }
        self.asked.insert((of.qpn, rkey), now);
        // Unheard, it is asked again: until then the operations go by packets.
        let _ = side.send_side(far.address, &Message::Ask { from: of.qpn, to: far.qpn, rkey }.emit(), None);
    }
}

/// Clears the grants that `which` names, and says whether there were any.
fn revoke(page: &Region, grants: &mut [Option<Granted>], which: impl Fn(&Granted) -> bool) -> bool {
    let mut any = false;
    for (index, grant) in (0..).zip(grants) {
        if grant.as_ref().is_some_and(&which) {
            page.store_u64(guard::grant_at(index), 0);
            *grant = None;
            any = true;
        }
    }
    any
}

/// An RC QP that is connected: to whom, and what it lets the peer do.
struct Connection {
    far: Far,
    pd: PdHandle,
    access: Access,
}

fn connection(device: &Device, qpn: Qpn) -> Option<Connection> {
    let info = device.query_qp(qpn).ok()?;
    let connected = matches!(info.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
    if info.init.ty != QpType::Rc || !connected {
        return None;
    }
    let far = Far { address: info.attr.av?.dgid.to_ip(), qpn: info.attr.dest_qpn? };
    Some(Connection { far, pd: info.init.pd, access: info.attr.access? })
}

/// Posts a send request of a QP that has a lane, when the fast path ([`Beside::post`]) would not have it.
pub(crate) fn post(driver: &mut Driver, now: Instant, of: &LaneOf, wr: &SendWr<'_>) -> Result<(), PostError> {
    let mut state = of.beside.lock();
    if open(driver, of, &mut state) {
        match execute(driver, of, &mut state, wr) {
            Ok(None) => return Ok(()),
            Ok(Some(wc)) if state.holds_completions() => {
                state.push(wc);
                return Ok(());
            }
            Ok(Some(wc)) => {
                state.spill(|wc| driver.device.complete_beside(of.cq, wc));
                driver.device.complete_beside(of.cq, wc);
                return Ok(());
            }
            Err(Refusal::Remote(rkey) | Refusal::Revoked(rkey)) => {
                let (inplace, side) = driver.in_place_and_side();
                inplace.ask(now, side, of, rkey);
            }
            Err(Refusal::Engine | Refusal::Local(_)) => {}
        }
    }
    leave_to_engine(driver, of, &mut state);
    drop(state);
    driver.device.post_send(of.qpn, wr)
}

/// What follows goes to the engine, so what waits beside it goes there first.
fn leave_to_engine(driver: &mut Driver, of: &LaneOf, state: &mut State) {
    state.spill(|wc| driver.device.complete_beside(of.cq, wc));
    state.set_open(of.lane, false);
}

/// A request that is never done here is about to be posted.
pub(crate) fn before_engine(driver: &mut Driver, of: &LaneOf) {
    let beside = Arc::clone(&of.beside);
    leave_to_engine(driver, of, &mut beside.lock());
}

/// Opens the lane if the engine has nothing of the QP.
fn open(driver: &mut Driver, of: &LaneOf, state: &mut State) -> bool {
    if state.is_open(of.lane) {
        return true;
    }
    if !driver.device.send_queue_is_idle(of.qpn) {
        return false;
    }
    let Some(known) = driver.in_place.lanes.get_mut(&of.qpn) else { return false };
    if known.far.is_none() {
        known.far = connection(&driver.device, of.qpn).map(|connection| connection.far);
    }
    state.set_open(of.lane, known.far.is_some());
    known.far.is_some()
}

/// Carries the operation out, telling the lane of the MRs of ours that it does not know yet.
fn execute(
    driver: &mut Driver,
    of: &LaneOf,
    state: &mut State,
    wr: &SendWr<'_>,
) -> Result<Option<remanence_rnic::Wc>, Refusal> {
    let mut learnt = None;
    loop {
        match state.execute(of.lane, wr) {
            Err(Refusal::Local(lkey)) if learnt != Some(lkey) => {
                let mr = driver.device.local_mr(of.pd, lkey).ok_or(Refusal::Engine)?;
                let Span { region, offset, len } = mr.span;
                let region = driver.memory.clone_of(region);
                let local = Local { lkey, access: mr.access, base: mr.base, len, region, offset };
                state.learn_local(of.lane, local);
                learnt = Some(lkey);
            }
            Err(Refusal::Revoked(rkey)) => {
                state.forget_remote(of.lane, rkey);
                return Err(Refusal::Revoked(rkey));
            }
            other => return other,
        }
    }
}

/// Takes what came on the side channel; says whether anything did.
pub(crate) fn side_events(driver: &mut Driver) -> bool {
    let mut came = false;
    loop {
        let (inplace, Some(side)) = driver.in_place_and_side() else { return came };
        let event = side.poll_side();
        came |= event.is_some();
        match event {
            None => return came,
            Some(SideEvent::Gone { peer }) => inplace.gone(peer),
            Some(SideEvent::Message { from, message, file }) => {
                // What makes no sense is dropped: operations then go by packets.
                let Some(message) = Message::parse(&message) else { continue };
                listen(driver, from, message, file);
            }
        }
    }
}

fn listen(driver: &mut Driver, address: IpAddr, message: Message, file: Option<OwnedFd>) {
    match (message, file) {
        (Message::Ask { from, to, rkey }, None) => {
            let far = Far { address, qpn: from };
            let Some((grant, memory, page)) = driver.in_place.grant(&driver.device, far, to, rkey) else {
                return;
            };
            let (_, Some(side)) = driver.in_place_and_side() else { return };
            if let Some(page) = page {
                let _ = side.send_side(address, &Message::Guard.emit(), Some(page.as_fd()));
            }
            let _ = side.send_side(address, &grant.emit(), Some(memory.as_fd()));
        }
        (Message::Guard, Some(file)) => driver.in_place.guarded(address, file),
        (Message::Grant { to, from, rkey, index, generation, base, len, access }, Some(file)) => {
            let offer = Offer { rkey, index, generation, base, len, access };
            driver.in_place.granted(Far { address, qpn: from }, to, &offer, file);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
