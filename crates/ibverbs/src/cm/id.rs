//! Identifiers (`rdma_cm_id`): what C sees of them, what we know of them, and who is told of their events.
//!
//! An identifier goes through the states of the kernel's `cma.c`, which decide what may be called when. What C sees is
//! written by us and read by the program, at times that the man pages lay down, and is otherwise the program's; what we
//! rely on is kept beside it. Events are counted when they are handed out and when they are acknowledged: an
//! identifier is destroyed only when both counts agree.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::ptr::{self, NonNull};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use remanence_rnic::cm::{CommId, ListenId};
use remanence_verbs::Claim;
use remanence_wire::Gid;

use crate::abi::*;
use crate::context;
use crate::device::Device;
use crate::per_process::PerProcess;

use super::addr;
use super::channel::Channel;
use super::devices;
use super::multicast::Group;
use super::neighbour;

/// How far an identifier is, as `enum rdma_cm_state` of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Idle,
    Bound,
    AddrQuery,
    AddrResolved,
    RouteResolved,
    Connect,
    Disconnect,
    Listen,
}

/// What an identifier tells itself: answers that are not the connection manager's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Local {
    AddrResolved,
    /// With the negative errno.
    AddrError(c_int),
    /// What came of asking the network for the peer: 0 or the negative errno.
    Neighbour(c_int),
    RouteResolved,
    /// By the number of the group.
    Joined(u64),
    DeviceRemoved,
}

/// A port at one address of a device, taken but not listened on.
pub(super) struct Bound {
    pub(super) verbs: Verbs,
    pub(super) gid: Gid,
    pub(super) claim: Claim,
}

/// An open device as C knows it, which may go from thread to thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Verbs(pub(super) *mut ibv_context);

// SAFETY: contexts of the process are never closed, and verbs may be called from every thread.
unsafe impl Send for Verbs {}

impl Verbs {
    /// What we keep of the device.
    pub(super) fn ctx(self) -> &'static context::Ctx {
        // SAFETY: it came from `context::of_process`, which never closes what it opened.
        unsafe { context::ctx(self.0) }
    }
}

/// What we know of an identifier. Nothing else is locked while this is, the device apart.
pub(super) struct Inner {
    pub(super) state: State,
    /// Its own channel, and calls that wait for their answers.
    pub(super) sync: bool,
    pub(super) src: Option<SocketAddr>,
    pub(super) dst: Option<SocketAddr>,
    /// The address that packets to `dst` leave from, while the network is asked for it.
    pub(super) asked_from: Option<IpAddr>,
    pub(super) verbs: Option<Verbs>,
    /// In the device's connection manager; `None` before it is asked, and when it has forgotten.
    pub(super) conn: Option<CommId>,
    /// What was bound and is not listened on yet.
    pub(super) bound: Vec<Bound>,
    pub(super) listeners: Vec<(Verbs, ListenId)>,
    /// Under which tokens it hears connection requests.
    pub(super) tokens: Vec<u64>,
    pub(super) local: VecDeque<Local>,
    pub(super) groups: Vec<Group>,
    pub(super) next_group: u64,
    /// Data of `rdma_create_ep` that goes ahead of the program's.
    pub(super) connect_data: Vec<u8>,
    /// What `rdma_get_request` makes QPs with.
    pub(super) qp_init_attr: Option<Template>,
    /// A request that the program has not accepted: of its end it hears when it tries to, as from the kernel.
    pub(super) undecided: bool,
    /// The connection failed on our side, and the program was told: what else is heard of it is no news.
    pub(super) connect_error: bool,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) qkey: Option<u32>,
    pub(super) tos: Option<u8>,
    pub(super) ack_timeout: Option<u8>,
    pub(super) reuseaddr: bool,
    pub(super) afonly: Option<bool>,
    pub(super) local_ece: (u32, u32),
    /// Events handed out, and acknowledged.
    pub(super) reported: u64,
    pub(super) completed: u64,
}

/// Attributes of QPs to come. The pointers in them are the program's, and handed back to verbs as they are.
#[derive(Clone, Copy)]
pub(super) struct Template(pub(super) ibv_qp_init_attr);

// SAFETY: nothing here follows the pointers.
unsafe impl Send for Template {}

impl Inner {
    fn new(sync: bool) -> Self {
        Self {
            state: State::Idle,
            sync,
            src: None,
            dst: None,
            asked_from: None,
            verbs: None,
            conn: None,
            bound: Vec::new(),
            listeners: Vec::new(),
            tokens: Vec::new(),
            local: VecDeque::new(),
            groups: Vec::new(),
            next_group: 0,
            connect_data: Vec::new(),
            qp_init_attr: None,
            undecided: false,
            connect_error: false,
            responder_resources: 0,
            initiator_depth: 0,
            qkey: None,
            tos: None,
            ack_timeout: None,
            reuseaddr: false,
            afonly: None,
            local_ece: (0, 0),
            reported: 0,
            completed: 0,
        }
    }

    /// The device and the name of the connection in it, while there is one.
    pub(super) fn connection(&self) -> Option<(Verbs, CommId)> {
        Some((self.verbs?, self.conn?))
    }
}

/// An identifier, with what C sees of it in front.
#[repr(C)]
struct IdObj {
    c: rdma_cm_id,
    token: u64,
    inner: Mutex<Inner>,
    acked: Condvar,
}

/// A live identifier.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Id(NonNull<IdObj>);

// SAFETY: C gives identifiers from thread to thread as well; what is ours is under a lock.
unsafe impl Send for Id {}

macro_rules! c_fields {
    ($($get:ident $set:ident $ty:ty;)*) => {
        $(
            pub(super) fn $get(self) -> $ty {
                // SAFETY: the identifier is live. No reference into the part that is C's exists.
                unsafe { (*self.c()).$get }
            }

            pub(super) fn $set(self, value: $ty) {
                // SAFETY: as above.
                unsafe { (*self.c()).$get = value };
            }
        )*
    };
}

impl Id {
    /// # Safety
    /// `id` came from `rdma_create_id`, or with a connection request, and was not destroyed.
    pub(super) unsafe fn of(id: *mut rdma_cm_id) -> Self {
        // SAFETY: by the contract it is not null, and the first field of an IdObj.
        Self(unsafe { NonNull::new_unchecked(id.cast()) })
    }

    /// A new identifier, with no channel yet.
    pub(super) fn new(context: *mut c_void, ps: rdma_port_space, qp_type: ibv_qp_type) -> Self {
        let token = registry().next_token();
        let c = rdma_cm_id { context, ps, qp_type, ..rdma_cm_id::zeroed() };
        let inner = Mutex::new(Inner::new(false));
        let id = Self(NonNull::from(Box::leak(Box::new(IdObj { c, token, inner, acked: Condvar::new() }))));
        registry().insert(token, Target { id, heard: None });
        id
    }

    /// The pointer that the C program has of this id.
    pub(super) fn c(self) -> *mut rdma_cm_id {
        self.0.as_ptr().cast()
    }

    c_fields! {
        verbs set_verbs *mut ibv_context;
        channel set_channel *mut rdma_event_channel;
        context set_context *mut c_void;
        qp set_qp *mut ibv_qp;
        ps set_ps rdma_port_space;
        port_num set_port_num u8;
        event set_event *mut rdma_cm_event;
        send_cq_channel set_send_cq_channel *mut ibv_comp_channel;
        send_cq set_send_cq *mut ibv_cq;
        recv_cq_channel set_recv_cq_channel *mut ibv_comp_channel;
        recv_cq set_recv_cq *mut ibv_cq;
        srq set_srq *mut ibv_srq;
        pd set_pd *mut ibv_pd;
        qp_type set_qp_type ibv_qp_type;
        route set_route rdma_route;
    }

    /// By what its own events are marked.
    pub(super) fn token(self) -> u64 {
        // SAFETY: the identifier is live; the field is never written.
        unsafe { (*self.0.as_ptr()).token }
    }

    /// What we know of it.
    pub(super) fn lock<'a>(self) -> MutexGuard<'a, Inner> {
        // SAFETY: the identifier is live for as long as calls with it go on.
        let inner = unsafe { &(*self.0.as_ptr()).inner };
        // A panic would be a mistake of ours; the program shall still be able to clean up.
        inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_ud(self) -> bool {
        self.qp_type() == IBV_QPT_UD
    }

    pub(super) fn events(self) -> Channel {
        // SAFETY: an identifier's channel outlives it.
        unsafe { Channel::of(self.channel()) }
    }

    /// Makes an event of its own.
    pub(super) fn tell(self, inner: &mut Inner, local: Local) {
        inner.local.push_back(local);
        self.events().queue().push(self.token());
    }

    /// One of its events was acknowledged.
    pub(super) fn complete(self, group: Option<u64>) {
        let mut inner = self.lock();
        inner.completed += 1;
        if let Some(group) = group.and_then(|number| inner.groups.iter_mut().find(|g| g.number == number)) {
            group.completed += 1;
        }
        // Under the lock: whoever waits may free the identifier as soon as it has it.
        self.condvar().notify_all();
    }

    /// Waits until every event that was handed out is acknowledged.
    pub(super) fn wait_acked<'a>(self, inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        self.wait_while(inner, |inner| inner.completed < inner.reported)
    }

    pub(super) fn wait_while<'a>(
        self,
        inner: MutexGuard<'a, Inner>,
        condition: impl FnMut(&mut Inner) -> bool,
    ) -> MutexGuard<'a, Inner> {
        self.condvar().wait_while(inner, condition).unwrap_or_else(PoisonError::into_inner)
    }

    fn condvar<'a>(self) -> &'a Condvar {
        // SAFETY: the identifier is live.
        unsafe { &(*self.0.as_ptr()).acked }
    }

    /// Shows C the addresses.
    pub(super) fn show_addresses(self, inner: &Inner) {
        let mut route = self.route();
        if let Some(src) = inner.src {
            route.addr.src_storage = addr::storage(src);
            // The kernel gives the other side the same family, even while nothing else is known of it.
            route.addr.dst_storage = addr::storage(inner.dst.unwrap_or_else(|| addr::unspecified(src, 0)));
            if inner.verbs.is_some() {
                route.addr.ibaddr.sgid = gid(Some(src));
                route.addr.ibaddr.dgid = gid(inner.dst);
                route.addr.ibaddr.pkey = PKEY_BE;
            }
        }
        self.set_route(route);
    }

    /// Shows C the path to the peer.
    pub(super) fn show_path(self, inner: &Inner) -> Result<(), c_int> {
        let (Some(src), Some(dst), Some(verbs)) = (inner.src, inner.dst, inner.verbs) else {
            return Err(libc::EINVAL);
        };
        let mut route = self.route();
        if route.path_rec.is_null() {
            // SAFETY: calloc may be called with any size.
            route.path_rec = unsafe { libc::calloc(1, size_of::<ibv_sa_path_rec>()) }.cast();
        }
        let Some(path) = NonNull::new(route.path_rec) else { return Err(libc::ENOMEM) };
        route.num_paths = 1;
        const EXACTLY: u8 = 2;
        let record = ibv_sa_path_rec {
            dgid: gid(Some(dst)),
            sgid: gid(Some(src)),
            hop_limit: HOP_LIMIT,
            traffic_class: inner.tos.unwrap_or(0),
            reversible: 1,
            numb_path: 1,
            pkey: PKEY_BE,
            mtu_selector: EXACTLY,
            mtu: verbs.ctx().context.port().mtu as u8,
            rate_selector: EXACTLY,
            rate: IBV_RATE_10_GBPS as u8,
            packet_life_time_selector: EXACTLY,
            packet_life_time: PACKET_LIFETIME,
            ..ibv_sa_path_rec::zeroed()
        };
        // SAFETY: room for one was allocated.
        unsafe { path.write(record) };
        self.set_route(route);
        Ok(())
    }

    /// Ties it to a device.
    pub(super) fn attach(self, inner: &mut Inner, device: &'static Device) -> Result<(), c_int> {
        let verbs = Verbs(context::of_process(device)?);
        self.attach_open(inner, verbs)
    }

    pub(super) fn attach_open(self, inner: &mut Inner, verbs: Verbs) -> Result<(), c_int> {
        let pd = devices::default_pd(verbs)?;
        inner.verbs = Some(verbs);
        self.set_verbs(verbs.0);
        self.set_pd(pd);
        self.set_port_num(1);
        Ok(())
    }

    /// Ends everything that it stands for, waits until its events are acknowledged, and frees it.
    pub(super) fn destroy(self) {
        let mut inner = self.lock();
        let tokens: Vec<u64> = inner.tokens.drain(..).chain([self.token()]).collect();
        drop(inner);
        // From here on nobody gets an event of it.
        registry().remove(&tokens);
        neighbour::forget(self.token());
        let mut inner = self.lock();
        if let Some((verbs, conn)) = inner.connection() {
            verbs.ctx().context.cm().close(conn);
        }
        for (verbs, listener) in inner.listeners.drain(..) {
            verbs.ctx().context.cm().unlisten(listener);
        }
        inner.bound.clear();
        drop(inner);
        let events = self.events();
        for token in tokens {
            events.queue().discard(token);
        }
        if let Some(event) = super::event::EventRef::of(self.event()) {
            self.set_event(ptr::null_mut());
            event.acknowledge();
        }
        let inner = self.wait_acked(self.lock());
        let sync = inner.sync;
        drop(inner);
        if sync {
            events.destroy();
        }
        // SAFETY: nobody has it any more: C gave it up, and no event of it is out. calloc made the path.
        unsafe {
            libc::free(self.route().path_rec.cast());
            drop(Box::from_raw(self.0.as_ptr()));
        }
    }
}

/// An address as a GID; all zeros for none.
fn gid(addr: Option<SocketAddr>) -> ibv_gid {
    ibv_gid { raw: addr.map_or([0; 16], |addr| Gid::from_ip(addr.ip()).0) }
}

/// The only partition key there is, in network byte order.
pub(super) const PKEY_BE: u16 = 0xffff;
/// What `cma.c` of Linux lets packets of connections travel.
pub(super) const HOP_LIMIT: u8 = 64;
/// As an exponent of 4.096 us; what the engine's connection manager assumes.
const PACKET_LIFETIME: u8 = 15;

/// To whom an event goes.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) id: Id,
    /// The device, for what a listener hears.
    pub(super) heard: Option<Verbs>,
}

/// Who has which token. Tokens are what marks events; a token that is not here is of an identifier that is gone.
#[derive(Default)]
pub(super) struct Registry {
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    last: u64,
    targets: HashMap<u64, Target>,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Books> {
        // Every change is one insertion or removal.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_token(&self) -> u64 {
        let mut books = self.lock();
        books.last += 1;
        books.last
    }

    fn insert(&self, token: u64, target: Target) {
        self.lock().targets.insert(token, target);
    }

    /// A token for connection requests that `id` hears on a device.
    pub(super) fn add_listener(&self, id: Id, heard: Verbs) -> u64 {
        let token = self.next_token();
        self.insert(token, Target { id, heard: Some(heard) });
        token
    }

    pub(super) fn remove(&self, tokens: &[u64]) {
        let mut books = self.lock();
        for token in tokens {
            books.targets.remove(token);
        }
    }

    /// Tells whoever has a token, if anybody still has.
    pub(super) fn tell(&self, token: u64, local: Local) {
        let books = self.lock();
        if let Some(target) = books.targets.get(&token) {
            // It is not freed while it is in the books.
            target.id.tell(&mut target.id.lock(), local);
        }
    }

    /// Tells whoever is bound to the device of an interface.
    pub(super) fn tell_those_at(&self, interface: u32, local: Local) {
        let books = self.lock();
        // Under other tokens an identifier hears requests.
        for id in books.targets.values().filter(|target| target.heard.is_none()).map(|target| target.id) {
            let mut inner = id.lock();
            if inner.verbs.is_some_and(|verbs| verbs.ctx().device.info.index == interface) {
                id.tell(&mut inner, local);
            }
        }
    }

    /// Takes something out of a queue and finds out whose it is, in one step as far as `destroy` can tell: it is
    /// counted as handed out before the identifier can go.
    pub(super) fn take<T>(&self, mut pop: impl FnMut() -> Option<(u64, T)>) -> Option<(Target, T)> {
        let books = self.lock();
        while let Some((token, event)) = pop() {
            if let Some(&target) = books.targets.get(&token) {
                target.id.lock().reported += 1;
                return Some((target, event));
            }
        }
        None
    }
}

/// The registry of this process.
pub(super) fn registry() -> &'static Registry {
    static REGISTRY: PerProcess<Registry> = PerProcess::new();
    REGISTRY.get()
}
