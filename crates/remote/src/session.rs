//! A client's session: connect, plan, make updates durable.

mod dial;

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::task::{Context as Task, Poll};
use std::time::{Duration, Instant};

use remanence_auth::{Role, Token};
use remanence_codec::printable;
use remanence_persist::Config;
use remanence_persist::check::{Machine, Prover};
use remanence_persist::plan::{self, Costs, Refusal, Request};
use remanence_persist::recipe::{Op, Persistent, Recipe, build};
use remanence_persist::taxonomy::{FlushSupport, Order};
use remanence_pmem::{Guarantee, Region};
use remanence_rnic::{Access, Data, Placement, PostError, RecvWr, SendFlags, SendOp, SendWr, Wc, WcStatus};
use remanence_service::client::{Endpoint, Face, Reactor, at_once};
use remanence_verbs::{Connection, Context, Doorbell, Mr, Pd};

use crate::costs::{self, CostSource};
use crate::error::Error;
use crate::hello::{SLOTS_MAX, Welcome};
use crate::message::{HEADER, Kind};
use crate::program::{Classes, granule_shift};
use crate::requester::{Broken, Method, Port, Refused, Requester, Terms, Ticket};
use dial::Dial;

/// Send work requests that a session may have posted.
const SQ_DEPTH: u32 = 512;
/// Receive work requests: an acknowledgement and a credit for each of the server's buffers.
const RQ_DEPTH: u32 = 2 * SLOTS_MAX as u32 + 8;
/// Marks a work request as a receive.
const RECEIVE: u64 = 1 << 63;
/// The service that the server itself answers: once it has applied everything before.
pub(crate) const SETTLE: u16 = u16::MAX;
/// The service that says what the server is, at full length.
pub(crate) const DESCRIBE: u16 = u16::MAX - 1;

/// How a client connects.
#[derive(Clone, Debug)]
pub struct Options {
    declared: Option<Config>,
    depth: usize,
    staging: u64,
    patience: Duration,
    costs: CostSource,
    tokens: Vec<Token>,
    watch: Option<Watch>,
}

/// Looks, while a session waits, whether that is of any use.
#[derive(Clone)]
struct Watch {
    every: Duration,
    is_over: Arc<dyn Fn(Duration) -> bool + Send + Sync>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("every", &self.every).finish_non_exhaustive()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            declared: None,
            depth: 16,
            staging: 1 << 20,
            patience: Duration::from_secs(30),
            costs: CostSource::Cached,
            tokens: Vec::new(),
            watch: None,
        }
    }
}

impl Options {
    /// What this side knows of the server, or wants to be assumed of it. On every axis the weaker of this and of what the
    /// server says holds. Without it the server's word counts.
    #[must_use]
    pub const fn declare(mut self, config: Config) -> Self {
        self.declared = Some(config);
        self
    }

    /// The token of the server, or several of which one is its own: they are tried in turn. With a token, a server that does
    /// not prove to have it too is refused.
    #[must_use]
    pub fn tokens(mut self, tokens: impl IntoIterator<Item = Token>) -> Self {
        self.tokens = tokens.into_iter().collect();
        self
    }

    /// How many runs [`Session::submit`] has under way at a time; 16 if nothing is said.
    #[must_use]
    pub const fn depth(mut self, runs: usize) -> Self {
        self.depth = runs;
        self
    }

    /// Bytes of registered memory for updates on their way; it grows for larger ones. 1 MiB if nothing is said.
    #[must_use]
    pub const fn staging(mut self, bytes: u64) -> Self {
        self.staging = bytes;
        self
    }

    /// How long the server may go without a sign before a call gives up; 30 s if nothing is said.
    #[must_use]
    pub const fn patience(mut self, limit: Duration) -> Self {
        self.patience = limit;
        self
    }

    /// What plans are compared by; [`CostSource::Cached`] if nothing is said.
    #[must_use]
    pub const fn costs(mut self, source: CostSource) -> Self {
        self.costs = source;
        self
    }

    /// Has somebody look, while the server is silent, whether to go on waiting for it: asked whenever nothing has come for
    /// `every` more, with how long that has been; where the answer is true the session ends ([`Error::GivenUp`]). So who
    /// learns elsewhere that the server is gone, or was replaced, need not wait until the patience is over.
    #[must_use]
    pub fn give_up(
        mut self,
        every: Duration,
        is_over: impl Fn(Duration) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.watch = Some(Watch { every, is_over: Arc::new(is_over) });
        self
    }
}

/// The server's memory, as a session sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemoteRegion {
    /// How many bytes the region has.
    pub len: u64,
    /// The rkey under which the session reaches the region.
    pub rkey: u32,
    /// Address of its first byte.
    pub addr: u64,
    /// What it promises, by the server's word.
    pub guarantee: Guarantee,
    /// The server's configuration was declared, in part at least, and not detected.
    pub declared: bool,
    /// What the server says of it, as a person would read it.
    pub sentence: String,
}

impl fmt::Display for RemoteRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes; {}", self.len, self.sentence)?;
        if self.declared { f.write_str("; its configuration is declared and not detected") } else { Ok(()) }
    }
}

/// A plan that a session can carry out. Clones are the same plan.
#[derive(Clone, Debug)]
pub struct Plan {
    plan: Arc<plan::Plan>,
    method: Arc<Method>,
}

impl Deref for Plan {
    type Target = plan::Plan;

    fn deref(&self) -> &plan::Plan {
        &self.plan
    }
}

impl Plan {
    pub(crate) const fn method(&self) -> &Arc<Method> {
        &self.method
    }
}

/// A plan whose half the server is to take.
#[derive(Debug)]
enum Planning {
    /// It has, or there is none.
    Ready(Plan),
    /// It was not told yet.
    Unannounced { plan: Plan, body: Vec<u8> },
    /// It was, by the call with this number.
    Announced { plan: Plan, number: u64 },
}

fn refused(why: &impl fmt::Display) -> Refusal {
    Refusal(format!("the plan cannot be carried out: {why}"))
}

/// Posts behind one doorbell.
pub(crate) struct Live<'a> {
    doorbell: Doorbell<'a>,
    staging: &'a Mr,
}

impl Port for Live<'_> {
    fn stage(&mut self, at: u64, bytes: &[u8]) {
        self.staging.region().write(at, bytes);
    }

    fn post(&mut self, wr_id: u64, op: SendOp, at: u64, len: u32, flags: SendFlags) -> Result<(), PostError> {
        let sge = [self.staging.sge(at, len)];
        let data = Data::Sges(if len == 0 { &[] } else { &sge });
        self.doorbell.post_send(&SendWr { wr_id, op, data, flags, ud: None })
    }
}

/// One connection to one responder, on which updates are made durable. Dropped, it disconnects.
///
/// What waits does so as a thread; the same for a task has a name that ends in `_as` and is told to wait as [`Face::Task`]. The task is
/// woken by whichever thread waits for the reactor: its own ([`Reactor::block_on`]), or one in the background
/// ([`Reactor::in_background`]). A future that is dropped before its end leaves behind what it has begun, which may still take effect: the
/// session is to be dropped then, too.
pub struct Session {
    requester: Requester,
    welcome: Welcome,
    connection: Connection,
    /// Behind the connection, which has the QP too.
    endpoint: Endpoint,
    pd: Pd,
    staging: Mr,
    incoming: Mr,
    prover: Prover,
    costs: Costs,
    plans: Vec<(Request, Option<Op>, Plan)>,
    planning: Option<(Request, Planning)>,
    /// The server was asked to apply everything before, by the call with this number.
    settling: Option<u64>,
    methods: Vec<Arc<Method>>,
    classes: Classes,
    ended: VecDeque<(Ticket, Persistent)>,
    completions: Vec<Wc>,
    patience: Duration,
    watch: Option<Watch>,
    /// Since when a task waits for something to come, and the deadline that the endpoint has for that.
    waits_since: Option<Instant>,
    deadline: Option<Instant>,
    /// The server has executed the FLUSH that both rely on.
    flushes: bool,
    over: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("peer", &self.connection.peer())
            .field("agreed", &self.welcome.agreed)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Connects to a [`Server`](crate::Server), and agrees with it on what both rely on.
    ///
    /// # Errors
    /// One sentence that says what to do: nobody or something else listens there, it is of another version, it refuses, its
    /// memory may be written in any order and that was not declared, it does not execute the FLUSH that it claims to.
    pub fn connect(context: &Context, to: SocketAddr, options: Options) -> Result<Self, Error> {
        Self::connect_on(&Reactor::new(context)?, to, options)
    }

    /// As [`connect`](Self::connect), on a reactor that other sessions may share: whoever has several of them waits for all of them at
    /// once ([`Reactor::waiter`]), and looks then at each one, with [`poll`](Self::poll) and its like.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_on(reactor: &Reactor, to: SocketAddr, options: Options) -> Result<Self, Error> {
        let pd = reactor.context().alloc_pd()?;
        let (connection, endpoint, welcome) = Dial { reactor, pd: &pd, to, options: &options }.dial()?;
        agree(to, &welcome, options.declared.as_ref())?;
        let size = u64::from(welcome.slot_size);
        // One more page of staging would do; growing it later costs a registration.
        let staging = Region::anonymous(options.staging.max(2 * size).max(4096))?;
        let staging = pd.reg_mr(&staging, Access::LOCAL_WRITE)?;
        let answers = u64::from(welcome.slots) * 2 + 8;
        let incoming = pd.reg_mr(&Region::anonymous(answers * size)?, Access::LOCAL_WRITE)?;
        let terms = Terms {
            config: welcome.agreed,
            region: welcome.region,
            buffers: welcome.buffers,
            slots: welcome.slots,
            slot_size: welcome.slot_size,
            stamp: welcome.stamp,
            shift: granule_shift(welcome.region.len),
        };
        let mut this = Self {
            requester: Requester::new(terms, SQ_DEPTH, options.depth, staging.len()),
            welcome,
            connection,
            endpoint,
            pd,
            staging,
            incoming,
            prover: Prover::default(),
            costs: Costs::PAPERS,
            plans: Vec::new(),
            planning: None,
            settling: None,
            methods: Vec::new(),
            classes: Classes::default(),
            ended: VecDeque::new(),
            completions: Vec::new(),
            patience: options.patience,
            watch: options.watch.clone(),
            waits_since: None,
            deadline: None,
            flushes: false,
            over: false,
        };
        for n in 0..answers {
            this.post_recv(n)?;
        }
        // Who writes nothing has nothing to flush, and may not.
        if this.role().may_write() {
            this.prove_flush()?;
            this.costs = costs::of(&mut this, to, options.costs)?;
        }
        this.welcome.sentence = printable(&this.call(DESCRIBE, &[])?);
        Ok(this)
    }

    /// Connects by a device of its own, at the local address from which the server is reached: see [`connect`](Self::connect).
    ///
    /// # Errors
    /// As [`connect`](Self::connect); or there is no way from here to the server.
    pub fn connect_to(to: SocketAddr, options: Options) -> Result<Self, Error> {
        Self::connect(&Context::towards(to.ip())?, to, options)
    }

    /// What both sides rely on.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.welcome.agreed
    }

    /// What the server lets this client do, by the token that it has.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.welcome.role
    }

    /// What the server is by its own word, which this side may have weakened.
    #[must_use]
    pub const fn server_config(&self) -> &Config {
        &self.welcome.server
    }

    /// The server's memory.
    #[must_use]
    pub fn region(&self) -> RemoteRegion {
        let welcome = &self.welcome;
        RemoteRegion {
            len: welcome.region.len,
            rkey: welcome.region.rkey,
            addr: welcome.region.addr,
            guarantee: welcome.guarantee,
            declared: welcome.declared,
            sentence: welcome.sentence.clone(),
        }
    }

    /// What plans are compared by.
    #[must_use]
    pub const fn costs(&self) -> &Costs {
        &self.costs
    }

    /// The largest update that a message can bring, alone in it.
    #[must_use]
    pub fn message_max(&self) -> u32 {
        self.room(1)
    }

    fn room(&self, count: usize) -> u32 {
        self.welcome.slot_size.saturating_sub((HEADER + count * crate::message::ENTRY) as u32)
    }

    /// The cheapest method that is proven for a request. Plans are remembered: a request that was planned before costs
    /// nothing, and a new one a message to the server.
    ///
    /// # Errors
    /// A sentence that says why there is no method, and what would help.
    pub fn plan(&mut self, request: &Request) -> Result<Plan, Refusal> {
        at_once(self.plan_as(Face::Thread, request))
    }

    /// As [`plan`](Self::plan), for whoever waits as it says.
    ///
    /// # Errors
    /// As [`plan`](Self::plan).
    pub async fn plan_as(&mut self, face: Face, request: &Request) -> Result<Plan, Refusal> {
        if let Some((.., known)) = self.plans.iter().find(|(r, op, _)| r == request && op.is_none()) {
            return Ok(known.clone());
        }
        let found = self.cheapest(request)?;
        let plan = self.adopt(face, found).await?;
        self.plans.push((request.clone(), None, plan.clone()));
        Ok(plan)
    }

    /// The method of the paper's cell for an operation, cheapest or not: to compare them.
    ///
    /// # Errors
    /// It does not hold here, or the update does not fit into a message.
    pub fn plan_by(&mut self, op: Op, request: &Request) -> Result<Plan, Refusal> {
        at_once(self.plan_by_as(Face::Thread, op, request))
    }

    /// As [`plan_by`](Self::plan_by), for whoever waits as it says.
    ///
    /// # Errors
    /// As [`plan_by`](Self::plan_by).
    pub async fn plan_by_as(&mut self, face: Face, op: Op, request: &Request) -> Result<Plan, Refusal> {
        if let Some((.., known)) = self.plans.iter().find(|(r, o, _)| r == request && *o == Some(op)) {
            return Ok(known.clone());
        }
        let config = self.welcome.agreed;
        let recipe = build(&config, op, request.shape());
        let plan = self.plan_for_as(face, op, recipe, request).await?;
        self.plans.push((request.clone(), Some(op), plan.clone()));
        Ok(plan)
    }

    /// A recipe of the caller's, if it holds here.
    ///
    /// # Errors
    /// It does not: the sentence says what is lost. Or the updates do not fit into a message.
    pub fn plan_for(&mut self, op: Op, recipe: Recipe, request: &Request) -> Result<Plan, Refusal> {
        at_once(self.plan_for_as(Face::Thread, op, recipe, request))
    }

    async fn plan_for_as(
        &mut self,
        face: Face,
        op: Op,
        recipe: Recipe,
        request: &Request,
    ) -> Result<Plan, Refusal> {
        let config = self.welcome.agreed;
        // As in the planner: from three updates on a recipe repeats itself, and so does its proof.
        if recipe.shape.count <= 3 {
            let outcome = self.prover.prove(&recipe, &Machine::new(config));
            if !outcome.holds() {
                return Err(Refusal(format!(
                    "{recipe} does not hold on {config} ({}); ask for a plan instead",
                    outcome.word()
                )));
            }
        } else {
            let small = plan::Request { sizes: vec![8; 3], ..request.clone() };
            let small = build(&config, op, remanence_persist::Shape { count: 3, ..small.shape() });
            if !self.prover.prove(&small, &Machine::new(config)).holds() {
                return Err(Refusal(format!("no such list is proven on {config}; ask for a plan instead")));
            }
        }
        let estimate = self.costs.estimate(&recipe, &request.sizes, &config);
        let request = request.clone();
        self.adopt(face, plan::Plan { config, request, op, recipe, estimate, others: Vec::new() }).await
    }

    /// Tells the server its half of a plan.
    async fn adopt(&mut self, face: Face, plan: plan::Plan) -> Result<Plan, Refusal> {
        let mut planning = self.begin_to_adopt(plan)?;
        loop {
            if let Some(plan) = self.planned(&mut planning)? {
                return Ok(plan);
            }
            self.came(face).await.map_err(|e| refused(&e))?;
        }
    }

    fn begin_to_adopt(&mut self, plan: plan::Plan) -> Result<Planning, Refusal> {
        let plan = Arc::new(plan);
        if let Some(known) = self.methods.iter().find(|method| *method.recipe() == plan.recipe) {
            return Ok(Planning::Ready(Plan { method: Arc::clone(known), plan }));
        }
        let number = self.methods.len() as u16;
        let bare = Method::new(&plan.recipe, number, Vec::new()).map_err(|e| refused(&e))?;
        let mut classes = Vec::new();
        if plan.op == Op::WriteImm && !bare.program().parts().is_empty() {
            let entered = self.classes.enter(bare.program());
            classes = entered.ok_or_else(|| refused(&"this session has too many plans with WRITE_IMM"))?;
        }
        let method = Method::new(&plan.recipe, number, classes.clone()).map_err(|e| refused(&e))?;
        let plan = Plan { method: Arc::new(method), plan };
        if bare.program().parts().is_empty() {
            self.methods.push(Arc::clone(&plan.method));
            return Ok(Planning::Ready(plan));
        }
        let mut body = bare.program().emit();
        body.extend_from_slice(&classes);
        Ok(Planning::Unannounced { plan, body })
    }

    /// The plan, when the server has taken its half of it.
    ///
    /// # Errors
    /// It does not take it, or the session is over.
    fn planned(&mut self, planning: &mut Planning) -> Result<Option<Plan>, Refusal> {
        if let Planning::Unannounced { plan, body } = planning {
            let number = plan.method.number();
            match self.try_ask(Kind::Plan, number, body).map_err(|e| refused(&e))? {
                Some(number) => *planning = Planning::Announced { plan: plan.clone(), number },
                None => return Ok(None),
            }
        }
        match planning {
            Planning::Ready(plan) => Ok(Some(plan.clone())),
            Planning::Announced { plan, number } => {
                let Some(reply) = self.requester.reply(*number) else { return Ok(None) };
                reply.map_err(|why| refused(&format!("the server refuses its half ({why})")))?;
                self.methods.push(Arc::clone(&plan.method));
                Ok(Some(plan.clone()))
            }
            Planning::Unannounced { .. } => Ok(None),
        }
    }

    /// As [`plan`](Self::plan), but does not wait: `None` until the server has taken its half of the plan. Ask again, with the same
    /// request, when something has come; another request only when this one was answered.
    ///
    /// # Errors
    /// A sentence that says why there is no method, and what would help.
    pub fn try_plan(&mut self, request: &Request) -> Result<Option<Plan>, Refusal> {
        if let Some((.., known)) = self.plans.iter().find(|(r, op, _)| r == request && op.is_none()) {
            return Ok(Some(known.clone()));
        }
        let mut planning = match self.planning.take() {
            Some((asked, planning)) if asked == *request => planning,
            _ => {
                let found = self.cheapest(request)?;
                self.begin_to_adopt(found)?
            }
        };
        let Some(plan) = self.planned(&mut planning)? else {
            self.planning = Some((request.clone(), planning));
            return Ok(None);
        };
        self.plans.push((request.clone(), None, plan.clone()));
        Ok(Some(plan))
    }

    fn cheapest(&mut self, request: &Request) -> Result<plan::Plan, Refusal> {
        let fitting = Request {
            message_max: request.message_max.min(self.room(request.sizes.len())),
            ..request.clone()
        };
        plan::plan(&mut self.prover, &self.welcome.agreed, &fitting, &self.costs)
    }

    /// Carries a plan out. `updates[i]` is where in the region, and the bytes. Blocks: spins while that pays, then waits.
    ///
    /// # Errors
    /// Nothing may be believed durable; but for [`Error::Argument`] the session is over, and what was under way may be
    /// durable or not.
    pub fn persist(&mut self, plan: &Plan, updates: &[(u64, &[u8])]) -> Result<Persistent, Error> {
        at_once(self.persist_as(Face::Thread, plan, updates))
    }

    /// As [`persist`](Self::persist), for whoever waits as it says.
    ///
    /// # Errors
    /// As [`persist`](Self::persist).
    pub async fn persist_as(
        &mut self,
        face: Face,
        plan: &Plan,
        updates: &[(u64, &[u8])],
    ) -> Result<Persistent, Error> {
        let ticket = self.submit_as(face, plan, updates).await?;
        loop {
            if let Some(persistent) = self.take_ended(ticket) {
                return Ok(persistent);
            }
            self.came(face).await?;
        }
    }

    /// Begins to carry a plan out, and returns when it is on its way: as many runs as [`Options::depth`] says are under way at
    /// a time, beyond that this waits for the oldest. Runs end in the order of their tickets ([`poll`](Self::poll)).
    ///
    /// Nothing is promised of the order between two runs under way, but that of two that write the same bytes the later
    /// one stays. It may do so early: who makes a line or a page durable for the one run takes along what the other one has
    /// written there, before that run's own earlier updates are durable. So who appends to a log and moves one pointer each
    /// time waits for the run before, or moves another pointer, in another page.
    ///
    /// # Errors
    /// As [`persist`](Self::persist).
    pub fn submit(&mut self, plan: &Plan, updates: &[(u64, &[u8])]) -> Result<Ticket, Error> {
        at_once(self.submit_as(Face::Thread, plan, updates))
    }

    async fn submit_as(
        &mut self,
        face: Face,
        plan: &Plan,
        updates: &[(u64, &[u8])],
    ) -> Result<Ticket, Error> {
        self.writes()?;
        loop {
            match self.begin_submit(plan, updates)? {
                Ok(ticket) => return Ok(ticket),
                Err(refused) => self.make_room(face, refused).await?,
            }
        }
    }

    /// The next run that has ended, if one has, in the order of the tickets. Does not wait.
    ///
    /// # Errors
    /// As [`persist`](Self::persist).
    pub fn poll(&mut self) -> Result<Option<(Ticket, Persistent)>, Error> {
        if let Some(first) = self.ended.pop_front() {
            return Ok(Some(first));
        }
        self.alive()?;
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        let polled = self.endpoint.poll(&mut completions);
        if polled == Ok(0) {
            // Nothing can go on that could not before: whoever spins is back at the link the sooner.
            self.completions = completions;
            return Ok(None);
        }
        self.take(completions, polled.map_err(|e| Error::Verbs(e.into())))?;
        Ok(self.ended.pop_front())
    }

    /// As [`poll`](Self::poll), but waits for the next run to end; `None` if none is under way.
    ///
    /// # Errors
    /// As [`persist`](Self::persist).
    pub fn next_ended(&mut self) -> Result<Option<(Ticket, Persistent)>, Error> {
        while self.ended.is_empty() && self.requester.under_way() > 0 {
            self.wait()?;
        }
        Ok(self.ended.pop_front())
    }

    /// Waits until every run has ended, and hands out the last ones.
    ///
    /// # Errors
    /// As [`persist`](Self::persist).
    pub fn finish(&mut self) -> Result<Vec<(Ticket, Persistent)>, Error> {
        while self.requester.under_way() > 0 {
            self.wait()?;
        }
        Ok(self.ended.drain(..).collect())
    }

    /// Runs that were submitted and have not been handed out.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.requester.under_way() + self.ended.len()
    }

    /// Reads what is visible at the server, by RDMA READ. That says nothing of whether it is durable.
    ///
    /// # Errors
    /// As [`persist`](Self::persist).
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        at_once(self.read_as(Face::Thread, offset, into))
    }

    /// As [`read`](Self::read), for whoever waits as it says.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_as(&mut self, face: Face, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let chunk = (self.staging.len() / 4).min(1 << 20) as usize;
        for (n, part) in into.chunks_mut(chunk).enumerate() {
            let at = offset.wrapping_add((n * chunk) as u64);
            let (number, staged) = loop {
                self.alive()?;
                match self.requester.read(at, part.len() as u32) {
                    Ok(read) => break read,
                    Err(refused) => self.make_room(face, refused).await?,
                }
            };
            self.drive()?;
            while !self.requester.is_done(number) {
                self.came(face).await?;
            }
            self.staging.region().read(staged, part);
            self.requester.release(number);
        }
        Ok(())
    }

    /// Asks the server's application: [`Server::on_call`](crate::Server::on_call). It sees what this session did before.
    ///
    /// # Errors
    /// [`Error::Application`] if it refuses; [`Error::Argument`] if the request is too long for a message; else the session is
    /// over.
    pub fn call(&mut self, service: u16, request: &[u8]) -> Result<Vec<u8>, Error> {
        at_once(self.call_as(Face::Thread, service, request))
    }

    /// As [`call`](Self::call), for whoever waits as it says.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn call_as(&mut self, face: Face, service: u16, request: &[u8]) -> Result<Vec<u8>, Error> {
        let number = loop {
            match self.begin_ask(Kind::Call, service, request)? {
                Ok(number) => break number,
                Err(refused) => self.make_room(face, refused).await?,
            }
        };
        loop {
            if let Some(reply) = self.requester.reply(number) {
                return reply.map_err(Error::Application);
            }
            self.came(face).await?;
        }
    }

    /// Waits until the server has applied every message: what is durable in its receive buffers is in its place then.
    ///
    /// # Errors
    /// The session is over.
    pub fn settle(&mut self) -> Result<(), Error> {
        self.call(SETTLE, &[]).map(drop)
    }

    /// The largest request of a [`call`](Self::call), bytes.
    #[must_use]
    pub const fn call_max(&self) -> usize {
        (self.welcome.slot_size as usize).saturating_sub(HEADER)
    }

    /// What the server's application said without being asked, oldest first, as far as it has been received:
    /// [`poll`](Self::poll), and everything that waits, receives. Of many that nobody takes the oldest are forgotten.
    pub fn notice(&mut self) -> Option<Vec<u8>> {
        self.requester.notice()
    }

    /// Writes these bytes with a key that the server's application granted this session ([`Grants`](crate::Grants)), until
    /// it is forgotten.
    pub fn grant(&mut self, offset: u64, len: u64, rkey: u32) {
        self.requester.grant(offset, len, rkey);
    }

    /// Forgets the key for what begins there.
    pub fn forget_grant(&mut self, offset: u64) {
        self.requester.forget_grant(offset);
    }

    /// The reactor that the session is on.
    #[must_use]
    pub fn reactor(&self) -> &Reactor {
        self.endpoint.reactor()
    }

    /// How long the server may go without a sign.
    #[must_use]
    pub const fn patience(&self) -> Duration {
        self.patience
    }

    fn begin_ask(&mut self, kind: Kind, service: u16, body: &[u8]) -> Result<Result<u64, Refused>, Error> {
        self.alive()?;
        let qp = self.connection.qp().clone();
        let mut port = Live { doorbell: qp.doorbell(), staging: &self.staging };
        let asked = self.requester.call(kind, service, body, &mut port);
        let driven = if asked.is_ok() { self.requester.drive(&mut port) } else { Ok(()) };
        drop(port);
        self.judge(driven)?;
        self.collect();
        Ok(asked)
    }

    fn try_ask(&mut self, kind: Kind, service: u16, body: &[u8]) -> Result<Option<u64>, Error> {
        self.unless_refused(|this| this.begin_ask(kind, service, body))
    }

    /// Begins something, and does all that lets it begin for which nobody has to wait. `None`: something is under way, or was brought
    /// by a READ and not taken yet, after which it can begin. So whoever then sleeps until something comes does not sleep for ever.
    pub(crate) fn unless_refused<T>(
        &mut self,
        mut begin: impl FnMut(&mut Self) -> Result<Result<T, Refused>, Error>,
    ) -> Result<Option<T>, Error> {
        loop {
            match begin(self)? {
                Ok(begun) => return Ok(Some(begun)),
                Err(Refused::Never(why)) => return Err(Error::Argument(why)),
                Err(Refused::Busy) => return Ok(None),
                Err(Refused::Unapplied) => {
                    self.settling = self.settling.filter(|number| self.requester.reply(*number).is_none());
                    if self.settling.is_none()
                        && let Ok(number) = self.begin_ask(Kind::Call, SETTLE, &[])?
                    {
                        self.settling = Some(number);
                    }
                    return Ok(None);
                }
                Err(Refused::Staging(bytes)) => {
                    // What a READ has brought lies in the present one.
                    if !self.requester.is_idle() || self.requester.holds_staging() {
                        return Ok(None);
                    }
                    self.exchange_staging(bytes)?;
                }
            }
        }
    }

    fn exchange_staging(&mut self, bytes: u64) -> Result<(), Error> {
        let region = Region::anonymous(bytes.next_power_of_two())?;
        self.staging = self.pd.reg_mr(&region, Access::LOCAL_WRITE)?;
        self.requester.set_staging(self.staging.len());
        Ok(())
    }

    /// As [`submit`](Self::submit), but does not wait: `None` if it did not begin now. Try again when something has come.
    ///
    /// # Errors
    /// As [`persist`](Self::persist).
    pub fn try_submit(&mut self, plan: &Plan, updates: &[(u64, &[u8])]) -> Result<Option<Ticket>, Error> {
        self.writes()?;
        self.unless_refused(|this| this.begin_submit(plan, updates))
    }

    fn begin_submit(
        &mut self,
        plan: &Plan,
        updates: &[(u64, &[u8])],
    ) -> Result<Result<Ticket, Refused>, Error> {
        self.alive()?;
        let qp = self.connection.qp().clone();
        let mut port = Live { doorbell: qp.doorbell(), staging: &self.staging };
        let result = self.requester.submit(&plan.method, updates, &mut port);
        let driven = if result.is_ok() { self.requester.drive(&mut port) } else { Ok(()) };
        drop(port);
        self.judge(driven)?;
        self.collect();
        Ok(result)
    }

    /// Begins to ask the server's application, as [`call`](Self::call) does, and does not wait: the number of the question, or
    /// `None` if it did not begin now.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn try_call(&mut self, service: u16, request: &[u8]) -> Result<Option<u64>, Error> {
        self.try_ask(Kind::Call, service, request)
    }

    /// The answer to a question that was [begun](Self::try_call), or the sentence with which the application refused, when it has
    /// come.
    pub fn answer(&mut self, question: u64) -> Option<Result<Vec<u8>, String>> {
        self.take_reply(question)
    }

    /// Waits until something comes, but no longer than this; that nothing has come is no error.
    ///
    /// # Errors
    /// The session is over.
    pub fn turn_within(&mut self, limit: Duration) -> Result<(), Error> {
        self.wait_within(limit)
    }

    /// Does what lets a refused request succeed the next time.
    pub(crate) async fn make_room(&mut self, face: Face, refused: Refused) -> Result<(), Error> {
        match refused {
            Refused::Never(why) => Err(Error::Argument(why)),
            Refused::Busy => self.came(face).await,
            // To ask may need room itself.
            Refused::Unapplied => Box::pin(self.call_as(face, SETTLE, &[])).await.map(drop),
            Refused::Staging(bytes) => {
                while !self.requester.is_idle() {
                    self.came(face).await?;
                }
                self.exchange_staging(bytes)
            }
        }
    }

    /// This client may write.
    pub(crate) fn writes(&self) -> Result<(), Error> {
        if self.role().may_write() { Ok(()) } else { Err(Error::ReadOnly(self.connection.peer_addr())) }
    }

    pub(crate) fn alive(&self) -> Result<(), Error> {
        if self.over { Err(Error::Over) } else { Ok(()) }
    }

    fn judge<T>(&mut self, result: Result<T, Broken>) -> Result<T, Error> {
        self.over |= result.is_err();
        Ok(result?)
    }

    /// Queues something and lets it go on, behind one doorbell.
    pub(crate) fn with_port<T>(
        &mut self,
        queue: impl FnOnce(&mut Requester, &mut Live<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let qp = self.connection.qp().clone();
        let mut port = Live { doorbell: qp.doorbell(), staging: &self.staging };
        let queued = queue(&mut self.requester, &mut port);
        let driven = self.requester.drive(&mut port);
        drop(port);
        self.judge(driven)?;
        self.collect();
        queued
    }

    pub(crate) fn staging_len(&self) -> u64 {
        self.staging.len()
    }

    pub(crate) const fn is_done(&self, number: u64) -> bool {
        self.requester.is_done(number)
    }

    /// Takes what a READ brought out of staging, if it has come.
    pub(crate) fn take_read(&mut self, number: u64, staged: u64, into: &mut [u8]) -> bool {
        let came = self.requester.is_done(number);
        if came {
            self.staging.region().read(staged, into);
            self.requester.release(number);
        }
        came
    }

    pub(crate) fn take_reply(&mut self, number: u64) -> Option<Result<Vec<u8>, String>> {
        self.requester.reply(number)
    }

    pub(crate) fn take_ended(&mut self, ticket: Ticket) -> Option<Persistent> {
        let at = self.ended.iter().position(|(other, _)| *other == ticket)?;
        self.ended.remove(at).map(|(_, persistent)| persistent)
    }

    /// Lets runs go on.
    pub(crate) fn drive(&mut self) -> Result<(), Error> {
        let qp = self.connection.qp().clone();
        let mut port = Live { doorbell: qp.doorbell(), staging: &self.staging };
        let driven = self.requester.drive(&mut port);
        drop(port);
        self.judge(driven)?;
        self.collect();
        Ok(())
    }

    fn collect(&mut self) {
        while let Some(ended) = self.requester.finished() {
            self.ended.push_back(ended);
        }
    }

    /// Waits for anything to come, and lets runs go on: for whoever has begun something, and looks then what became of it. A future that
    /// is dropped leaves nothing behind.
    ///
    /// # Errors
    /// The session is over; it is also when the server was silent for as long as the [patience](Options::patience) allows.
    pub async fn came(&mut self, face: Face) -> Result<(), Error> {
        match face {
            Face::Thread => self.wait(),
            Face::Task => std::future::poll_fn(|task| self.poll_came(task)).await,
        }
    }

    fn poll_came(&mut self, task: &Task<'_>) -> Poll<Result<(), Error>> {
        self.alive()?;
        let since = *self.waits_since.get_or_insert_with(Instant::now);
        while self.endpoint.poll_ready(task).is_ready() {
            if self.endpoint.take_due() {
                self.deadline = None;
            }
            let mut completions = std::mem::take(&mut self.completions);
            completions.clear();
            let came = self.endpoint.poll(&mut completions);
            if came != Ok(0) {
                self.waits_since = None;
                return Poll::Ready(self.take(completions, came.map_err(|e| Error::Verbs(e.into()))));
            }
            self.completions = completions;
        }
        // A deadline that comes too early is not moved before it is over: mostly there is an answer first.
        if self.deadline.is_none() {
            let quiet = since.elapsed();
            if let Some(error) = self.is_of_no_use(quiet) {
                self.waits_since = None;
                return Poll::Ready(Err(error));
            }
            let left = self.patience.saturating_sub(quiet);
            let next = self.watch.as_ref().map_or(left, |watch| watch.every.min(left));
            self.deadline = Instant::now().checked_add(next);
            self.endpoint.set_deadline(self.deadline);
        }
        Poll::Pending
    }

    /// For a task: ready when something has come, for [`poll`](Self::poll). For how long nothing does is nothing to it.
    pub fn poll_ready(&mut self, task: &Task<'_>) -> Poll<()> {
        if self.endpoint.take_due() {
            self.deadline = None;
        }
        self.endpoint.poll_ready(task)
    }

    /// Nothing has come for so long: the patience is over, or whoever looks says that it is of no use to go on. Then the session is
    /// over.
    fn is_of_no_use(&mut self, quiet: Duration) -> Option<Error> {
        let error = if quiet >= self.patience {
            Error::Silent(self.patience.as_secs())
        } else if self.watch.as_ref().is_some_and(|watch| quiet >= watch.every && (watch.is_over)(quiet)) {
            Error::GivenUp(self.connection.peer_addr())
        } else {
            return None;
        };
        self.over = true;
        Some(error)
    }

    /// As [`came`](Self::came), of a thread.
    pub(crate) fn wait(&mut self) -> Result<(), Error> {
        self.alive()?;
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        let begin = Instant::now();
        let came = loop {
            let left = self.patience.saturating_sub(begin.elapsed());
            let limit = self.watch.as_ref().map_or(left, |watch| watch.every.min(left));
            let came = self.endpoint.wait(&mut completions, Some(limit));
            let quiet = begin.elapsed();
            if !matches!(came, Ok(0)) || quiet < limit {
                break came;
            }
            if let Some(error) = self.is_of_no_use(quiet) {
                return Err(error);
            }
        };
        self.take(completions, came.map_err(|e| Error::Verbs(e.into())))
    }

    /// The same, for no longer than this; that nothing came is no failure.
    pub(crate) fn wait_within(&mut self, limit: Duration) -> Result<(), Error> {
        self.alive()?;
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        let came = self.endpoint.wait(&mut completions, Some(limit));
        self.take(completions, came.map_err(|e| Error::Verbs(e.into())))
    }

    fn take(&mut self, completions: Vec<Wc>, came: Result<usize, Error>) -> Result<(), Error> {
        let result = came.and_then(|_| self.completed(&completions));
        self.completions = completions;
        if result.is_err() {
            self.over = true;
            return result;
        }
        self.drive()
    }

    fn completed(&mut self, completions: &[Wc]) -> Result<(), Error> {
        for wc in completions {
            if wc.status != WcStatus::Success {
                // The first one says why; what was flushed after it says nothing.
                let all = completions.iter().filter(|wc| wc.status != WcStatus::Success);
                let first = all.clone().find(|wc| wc.status != WcStatus::WrFlushErr).unwrap_or(wc);
                return Err(self.failure(first));
            }
            if wc.wr_id & RECEIVE == 0 {
                self.requester.completed(wc.wr_id);
                continue;
            }
            let n = wc.wr_id & !RECEIVE;
            let mut bytes = vec![0; wc.byte_len as usize];
            self.incoming.region().read(n * u64::from(self.welcome.slot_size), &mut bytes);
            self.post_recv(n)?;
            self.requester.received(&bytes)?;
        }
        Ok(())
    }

    fn failure(&self, wc: &Wc) -> Error {
        if wc.status == WcStatus::WrFlushErr {
            return Error::Ended(self.connection.peer_addr());
        }
        if wc.wr_id & RECEIVE != 0 {
            return Error::Completion { what: "the connection", status: wc.status };
        }
        let what = self.requester.what(wc.wr_id);
        let status = wc.status;
        let Some(flush) = what.strip_prefix("a ").filter(|flush| flush.starts_with("FLUSH")) else {
            return Error::Completion { what, status };
        };
        match status {
            WcStatus::RemOpErr => Error::MediumFailed { what: flush, status },
            WcStatus::RemAccessErr | WcStatus::RemInvReqErr if self.flushes => {
                Error::FlushWithdrawn { what: flush, status }
            }
            WcStatus::RemAccessErr | WcStatus::RemInvReqErr => Error::FlushRefused { what: flush, status },
            _ => Error::Completion { what, status },
        }
    }

    fn post_recv(&self, n: u64) -> Result<(), Error> {
        let size = self.welcome.slot_size;
        let sge = [self.incoming.sge(n * u64::from(size), size)];
        let wr = RecvWr { wr_id: n | RECEIVE, sges: &sge };
        Ok(self.connection.qp().post_recv(&wr).map_err(remanence_verbs::Error::from)?)
    }

    /// Finds out whether the server executes the FLUSH that both rely on.
    fn prove_flush(&mut self) -> Result<(), Error> {
        let placement = match self.welcome.agreed.flush {
            FlushSupport::Read => return Ok(()),
            FlushSupport::Global => Placement::GlobalVisibility,
            FlushSupport::Persistent => Placement::Persistence,
        };
        self.timed(|requester| Ok(requester.flush(placement, 0, 8)))?;
        self.flushes = true;
        Ok(())
    }

    /// What a work request takes.
    pub(crate) fn timed(
        &mut self,
        queue: impl FnOnce(&mut Requester) -> Result<u64, Refused>,
    ) -> Result<Duration, Error> {
        let begin = Instant::now();
        let number = match queue(&mut self.requester) {
            Ok(number) => number,
            Err(Refused::Never(why)) => return Err(Error::Argument(why)),
            Err(_) => return Err(Error::Argument("something is under way".into())),
        };
        self.drive()?;
        while !self.requester.is_done(number) {
            self.wait()?;
        }
        Ok(begin.elapsed())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The server is told; nobody waits for its answer.
        let _ = self.connection.disconnect();
    }
}

/// Both sides must have come to the same conclusion, and this one must want it.
fn agree(peer: SocketAddr, welcome: &Welcome, declared: Option<&Config>) -> Result<(), Error> {
    if welcome.server.order == Order::Relaxed && declared.is_none_or(|d| d.order != Order::Relaxed) {
        return Err(Error::Relaxed);
    }
    let ours = declared.map_or(Ok(welcome.server), |declared| welcome.server.agree(declared))?;
    if ours != welcome.agreed {
        let why = format!(
            "it relies on {} where {ours} was agreed; use the same release on both sides",
            welcome.agreed
        );
        return Err(Error::Refused { peer, why });
    }
    Ok(())
}
