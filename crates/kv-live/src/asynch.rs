//! A client for programs that do not wait: futures, for any executor.
//!
//! A thread of the store's own carries operations out; it knows of no executor, and an executor need not know of it. What is
//! asked for while something is under way goes out together when that has come back: READs under one doorbell, messages as
//! one, values that are to be durable under one flush. So a thousand PUTs at a time cost a few flushes and not a thousand.
//! The thread carries one task out on the reactor of all its sessions: what the server sends, a time that is over and what is
//! asked for end the one wait. What can only block, to connect say, is done beside it.
//!
//! An operation begins when its method is called, not when its future is first polled: call many, then await them.
//!
//! **Nobody has to await a future.** One that is dropped is given up: if it has not begun, it never does; if the server has
//! handed out room and the value is not on its way, that is abandoned, and the key is free again; a value that is on its way
//! arrives, and counts. Who wants to know which, asks by [`Pending::cancel`].
//!
//! ```
//! # use remanence_kv_live::{AsyncStore, ConnectOptions, Error, PutOptions};
//! # async fn example(context: &remanence_verbs::Context, to: std::net::SocketAddr) -> Result<(), Error> {
//! let store = AsyncStore::connect(context, to, ConnectOptions::default())?;
//! // All under way at once, and durable together.
//! let puts: Vec<_> = (0..100_u32).map(|n| store.put(&n.to_le_bytes(), b"value", PutOptions::default())).collect();
//! for put in puts {
//!     put.await?;
//! }
//! let found = store.get(&7_u32.to_le_bytes()).within(std::time::Duration::from_secs(1)).await?;
//! assert_eq!(found.expect("it is there").value, b"value");
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::pin::Pin;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as Task, Poll, Waker};
use std::time::{Duration, Instant};

use remanence_pmem::Survives;
use remanence_remote::{Deadlines, Face, Timer};
use remanence_verbs::Context;

use super::connector::{Connector, Path, delays};
use super::{ConnectOptions, Error, Page, PutOptions, Session, Version};
use remanence_kv::client::{
    AnyOperation, Call, Client, Completion, Ended, Found, Get, Mux, Output, Put, RemoteMemory as _, Verb,
};
use remanence_kv::proto::{Expect, Reply, Request};
use remanence_kv::view::View;

/// A client that has been idle for so long tells what its writes would have carried along.
const REST: Duration = Duration::from_millis(100);
/// The longest pause before something is asked again that waits for others; they may wait for what this client says then.
const WAIT_MAX: Duration = Duration::from_millis(2);

/// A store at a server, or on several members, for any number of tasks and threads. Clones are the same client.
pub struct AsyncStore {
    shared: Arc<Shared>,
}

/// What futures and the thread share.
struct Shared {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Asked for, and not taken up yet.
    queue: VecDeque<Command>,
    slots: BTreeMap<u64, Slot>,
    next: u64,
    stores: usize,
    /// Which failures survives what was acknowledged, as far as it was told.
    survives: Option<Survives>,
    /// The thread has ended.
    over: bool,
    /// The thread's task, while it waits for something to be asked for.
    idle: Option<Waker>,
    /// Operations that must have ended by a time, and the thread's task, which keeps these.
    deadlines: Deadlines<u64, Instant>,
    clock: Option<Waker>,
}

enum Command {
    Begin { number: u64, spec: OperationSpec },
    GiveUp(u64),
}

/// What is asked for. Times to live become times when the operation begins, by the server's clock.
enum OperationSpec {
    Get(Vec<u8>),
    Put { key: Vec<u8>, value: Vec<u8>, options: PutOptions },
    Call(Request),
}

struct Slot {
    waker: Option<Waker>,
    outcome: Option<Outcome>,
    /// Whether it changes something.
    changes: bool,
    /// The thread has taken it up.
    taken: bool,
    /// Its future is gone: nobody takes the outcome.
    orphan: bool,
}

/// What becomes of an operation.
enum Outcome {
    Ended(Result<Output, Error>),
    /// It was given up before anything was changed.
    Never,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No step leaves it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the thread for something.
    fn command(&self, mut state: MutexGuard<'_, State>, command: Command) {
        state.queue.push_back(command);
        self.tell(state);
    }

    /// Something has changed that an idle thread has to look at.
    fn tell(&self, mut state: MutexGuard<'_, State>) {
        let idle = state.idle.take();
        drop(state);
        idle.into_iter().for_each(Waker::wake);
    }

    /// Ends what is late. What it was told to do is given up by the thread, whenever that comes round to it. The task is woken when
    /// the next one is late.
    fn keep_times(&self, timer: &mut Timer, task: &Task<'_>) {
        loop {
            let mut state = self.lock();
            if state.deadlines.first().is_some() {
                let now = Instant::now();
                while let Some(number) = state.deadlines.pop_due(now) {
                    let Some(slot) = state.slots.get(&number) else { continue };
                    let error = if slot.changes && slot.taken { Error::LateUnknown } else { Error::Late };
                    let waker = state.settle(number, Outcome::Ended(Err(error)));
                    self.command(state, Command::GiveUp(number));
                    waker.into_iter().for_each(Waker::wake);
                    state = self.lock();
                }
            }
            let first = state.deadlines.first();
            wakes(&mut state.clock, task);
            drop(state);
            timer.set(first);
            if timer.poll_over(task).is_pending() {
                return;
            }
        }
    }
}

/// The task is woken by whoever takes this.
fn wakes(known: &mut Option<Waker>, task: &Task<'_>) {
    if known.as_ref().is_none_or(|known| !known.will_wake(task.waker())) {
        *known = Some(task.waker().clone());
    }
}

impl State {
    /// An operation has an outcome, for whoever still wants it: this is to wake that one once the lock is open, as it may poll at once.
    #[must_use]
    fn settle(&mut self, number: u64, outcome: Outcome) -> Option<Waker> {
        let slot = self.slots.get_mut(&number)?;
        self.deadlines.set(number, None);
        if slot.orphan {
            self.slots.remove(&number);
            return None;
        }
        if slot.outcome.is_none() {
            slot.outcome = Some(outcome);
        }
        slot.waker.take()
    }
}

impl fmt::Debug for AsyncStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncStore").field("under_way", &self.under_way()).finish_non_exhaustive()
    }
}

impl Clone for AsyncStore {
    fn clone(&self) -> Self {
        self.shared.lock().stores += 1;
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for AsyncStore {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stores -= 1;
        self.shared.tell(state);
    }
}

impl AsyncStore {
    /// Connects to a [`Server`](super::Server), waiting for it, and begins the thread.
    ///
    /// # Errors
    /// As [`Session::connect`]; or the system refuses a thread.
    pub fn connect(context: &Context, to: SocketAddr, options: ConnectOptions) -> Result<Self, Error> {
        let (connector, session, view) = Connector::server(context, to, &options)?;
        Self::over(connector, session, view, options)
    }

    /// Connects by a device of its own, at the local address from which the server is reached: see [`connect`](Self::connect).
    ///
    /// # Errors
    /// As [`connect`](Self::connect); or there is no way from here to the server.
    pub fn connect_to(to: SocketAddr, options: ConnectOptions) -> Result<Self, Error> {
        let context = Context::towards(to.ip()).map_err(remanence_remote::Error::from)?;
        Self::connect(&context, to, options)
    }

    /// Connects to a store on several [`Member`](super::Member)s, waiting for the one that is the primary, and begins the
    /// thread: see [`Store::connect_members`](super::Store::connect_members). When the primary is lost, what is under way ends
    /// as if a server were, and what is asked for then waits for the next primary.
    ///
    /// # Errors
    /// As [`Store::connect_members`](super::Store::connect_members); or the system refuses a thread.
    pub fn connect_members(
        context: &Context,
        members: &[SocketAddr],
        options: ConnectOptions,
    ) -> Result<Self, Error> {
        let (connector, session, view) = Connector::members(context, members, &options)?;
        Self::over(connector, session, view, options)
    }

    fn over(
        connector: Connector,
        session: Session,
        view: View,
        options: ConnectOptions,
    ) -> Result<Self, Error> {
        let client = Client::new(view, options.locations);
        let state = State { stores: 1, ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state) });
        let driver = Driver {
            shared: Arc::clone(&shared),
            options,
            client,
            timer: session.reactor().timer(),
            path: Some(Box::new(Path { connector, session })),
            mux: Mux::new(),
        };
        std::thread::Builder::new()
            .name("erda".into())
            .spawn(move || run(driver))
            .map_err(|e| Error::Argument(format!("the system refuses a thread: {e}")))?;
        Ok(Self { shared })
    }

    /// The key's value; `None` if it has none.
    pub fn get(&self, key: &[u8]) -> Pending<Option<Found>> {
        self.begin(OperationSpec::Get(key.to_vec()), false, |output| match output {
            Output::Get(found) => Ok(found?),
            _ => Err(Error::Protocol("no answer to a GET")),
        })
    }

    /// Writes a key's value; its version comes back.
    pub fn put(&self, key: &[u8], value: &[u8], options: PutOptions) -> Pending<Version> {
        let spec = OperationSpec::Put { key: key.to_vec(), value: value.to_vec(), options };
        self.begin(spec, true, |output| match output {
            Output::Put(version) => Ok(version?),
            _ => Err(Error::Protocol("no answer to a PUT")),
        })
    }

    /// Takes a key's value away. The version of the deletion comes back; `None` if there was no value.
    pub fn delete(&self, key: &[u8], expect: Expect) -> Pending<Option<Version>> {
        let spec = OperationSpec::Call(Request::Delete { key: key.to_vec(), expect });
        self.begin(spec, true, |output| match output {
            Output::Call(reply) => match reply? {
                Reply::Done { version } => Ok((version > 0).then_some(version)),
                _ => Err(Error::Protocol("no answer to a DELETE")),
            },
            _ => Err(Error::Protocol("no answer to a DELETE")),
        })
    }

    /// Some keys from a cursor on: 0, or what the last page said. [`keys`](Self::keys) and [`entries`](Self::entries) go over all of
    /// them.
    pub fn scan(&self, cursor: u64, limit: u32) -> Pending<Page> {
        let spec = OperationSpec::Call(Request::Scan { cursor, limit });
        self.begin(spec, false, move |output| match output {
            Output::Call(reply) => match reply? {
                // A page that did not go on would be shown for ever.
                Reply::Page { next, keys, nameless } => {
                    Ok(Page { keys, next: next.filter(|next| *next > cursor), nameless })
                }
                _ => Err(Error::Protocol("no answer to a scan")),
            },
            _ => Err(Error::Protocol("no answer to a scan")),
        })
    }

    /// Which failures changes survive that were acknowledged: see [`Store::survives`](super::Store::survives). `None` before there was one.
    #[must_use]
    pub fn survives(&self) -> Option<Survives> {
        self.shared.lock().survives
    }

    /// Operations that have been asked for and have not ended.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.shared.lock().slots.values().filter(|slot| slot.outcome.is_none()).count()
    }

    fn begin<T>(
        &self,
        spec: OperationSpec,
        changes: bool,
        read: impl Fn(Output) -> Result<T, Error> + Send + 'static,
    ) -> Pending<T> {
        let mut state = self.shared.lock();
        let number = state.next;
        state.next += 1;
        let outcome =
            state.over.then(|| Outcome::Ended(Err(Error::Lost("the client's thread has ended".to_owned()))));
        let slot = Slot { waker: None, outcome, changes, taken: false, orphan: false };
        state.slots.insert(number, slot);
        self.shared.command(state, Command::Begin { number, spec });
        let read: Read<T> = Box::new(read);
        Pending { shared: Arc::clone(&self.shared), number, read, taken: false, kind: PhantomData }
    }
}

type Read<T> = Box<dyn Fn(Output) -> Result<T, Error> + Send>;

/// An operation under way: a future of its result. Dropped, the operation is given up; see the head of `asynch.rs`.
#[must_use = "an operation that nobody awaits is given up"]
pub struct Pending<T> {
    shared: Arc<Shared>,
    number: u64,
    read: Read<T>,
    /// The outcome was handed out, or the slot is another future's now.
    taken: bool,
    kind: PhantomData<fn() -> T>,
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("number", &self.number).finish_non_exhaustive()
    }
}

/// What became of an operation that was cancelled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cancelled<T> {
    /// Nothing was changed, and nothing will be.
    Never,
    /// It had come too far, and took effect.
    Done(T),
}

impl<T> Pending<T> {
    /// With a time by which it must have ended; it is given up then. The error says whether something may have been changed:
    /// [`Error::Late`] or [`Error::LateUnknown`].
    pub fn within(self, time: Duration) -> Self {
        let mut state = self.shared.lock();
        let is_open = state.slots.get(&self.number).is_some_and(|slot| slot.outcome.is_none());
        // A time that never comes is none.
        if is_open && state.deadlines.set(self.number, Instant::now().checked_add(time)) {
            let clock = state.clock.take();
            drop(state);
            clock.into_iter().for_each(Waker::wake);
        } else {
            drop(state);
        }
        self
    }

    /// Gives it up, and says what became of it: a future that ends when that is known.
    pub fn cancel(mut self) -> Cancelling<T> {
        self.taken = true;
        self.shared.command(self.shared.lock(), Command::GiveUp(self.number));
        Cancelling(Self {
            shared: Arc::clone(&self.shared),
            number: self.number,
            read: std::mem::replace(&mut self.read, Box::new(|_| Err(Error::Protocol("it was cancelled")))),
            taken: false,
            kind: PhantomData,
        })
    }

    fn take(&mut self, task: &Task<'_>) -> Poll<Outcome> {
        let mut state = self.shared.lock();
        let Some(slot) = state.slots.get_mut(&self.number) else {
            panic!("a future was polled after its end");
        };
        match slot.outcome.take() {
            None => {
                slot.waker = Some(task.waker().clone());
                Poll::Pending
            }
            Some(outcome) => {
                state.slots.remove(&self.number);
                drop(state);
                self.taken = true;
                Poll::Ready(outcome)
            }
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Self::Output> {
        self.take(task).map(|outcome| match outcome {
            Outcome::Ended(output) => (self.read)(output?),
            Outcome::Never => Err(Error::Late),
        })
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let mut state = self.shared.lock();
        let Some(slot) = state.slots.get_mut(&self.number) else { return };
        if slot.outcome.is_some() {
            state.slots.remove(&self.number);
            return;
        }
        (slot.orphan, slot.waker) = (true, None);
        state.deadlines.set(self.number, None);
        self.shared.command(state, Command::GiveUp(self.number));
    }
}

/// A future of what became of an operation that was cancelled.
#[must_use = "the operation is given up in any case; this says what became of it"]
#[derive(Debug)]
pub struct Cancelling<T>(Pending<T>);

impl<T> Future for Cancelling<T> {
    type Output = Result<Cancelled<T>, Error>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Self::Output> {
        self.0.take(task).map(|outcome| match outcome {
            Outcome::Never => Ok(Cancelled::Never),
            Outcome::Ended(output) => (self.0.read)(output?).map(Cancelled::Done),
        })
    }
}

/// The thread's task: the client, its session, and what is under way.
struct Driver {
    shared: Arc<Shared>,
    options: ConnectOptions,
    client: Client,
    /// What is reached, but while something that blocks is done with it.
    path: Option<Box<Path>>,
    /// For whatever ends if nothing comes.
    timer: Timer,
    mux: Mux,
}

/// Whatever ends the thread, nobody waits for ever.
struct Farewell(Arc<Shared>);

impl Drop for Farewell {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.over = true;
        let open: Vec<u64> = state.slots.keys().copied().collect();
        let mut wakers = Vec::new();
        for number in open {
            let unknown = state.slots.get(&number).is_some_and(|slot| slot.changes && slot.taken);
            let gone = Error::Lost("the client's thread has ended".to_owned());
            let error = if unknown { Error::Unknown(Box::new(gone)) } else { gone };
            wakers.extend(state.settle(number, Outcome::Ended(Err(error))));
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// What the thread does: it keeps the times of the operations, and carries the task of the driver out.
fn run(mut driver: Driver) {
    let shared = Arc::clone(&driver.shared);
    let _farewell = Farewell(Arc::clone(&shared));
    let reactor = driver.path().session.reactor().clone();
    let mut times = reactor.timer();
    let mut work = pin!(driver.run());
    reactor.block_on(std::future::poll_fn(|task| {
        shared.keep_times(&mut times, task);
        work.as_mut().poll(task)
    }));
}

impl Driver {
    fn path(&mut self) -> &mut Path {
        self.path.as_mut().expect("it is only away while this waits for that")
    }

    async fn post(&mut self, verbs: Vec<Verb>) -> Result<Vec<Completion>, Error> {
        self.path().session.post_as(Face::Task, verbs).await
    }

    /// Takes the newest view, and says what there is to say.
    async fn attend(&mut self) -> Result<(), Error> {
        let attention = self.client.attention();
        let done = self.post(attention).await?;
        if let Some(acknowledge) = self.client.attended(done) {
            self.post(vec![acknowledge]).await?;
        }
        Ok(())
    }

    async fn run(&mut self) {
        let mut waiting_since: Option<Instant> = None;
        let mut pause = Duration::ZERO;
        while self.take_up(pause).await {
            match self.turn().await {
                Ok(false) => (waiting_since, pause) = (None, Duration::ZERO),
                // Somebody else must go on first, and may wait for our acknowledgement.
                Ok(true) => {
                    let since = *waiting_since.get_or_insert_with(Instant::now);
                    pause = (pause * 2).clamp(Duration::from_micros(50), WAIT_MAX);
                    let attended = self.attend().await;
                    if since.elapsed() >= self.options.waits() {
                        waiting_since = None;
                        self.end_all(&Error::Waited(
                            since.elapsed().as_secs(),
                            "writers of the key, or the cleaning of its log",
                        ));
                    }
                    if let Err(error) = attended {
                        self.end_all(&error);
                        self.connect_again().await;
                    }
                }
                Err(error) => {
                    self.end_all(&error);
                    self.connect_again().await;
                }
            }
        }
    }

    /// Takes up what was asked for; waits for that if there is nothing else to do, for a pause if there is only something to
    /// wait for. Returns whether to go on.
    async fn take_up(&mut self, pause: Duration) -> bool {
        let is_idle = self.mux.is_idle();
        if is_idle || !pause.is_zero() {
            let limit = if is_idle { self.client.has_confirm().then_some(REST) } else { Some(pause) };
            self.timer.set(limit.map(|limit| Instant::now() + limit));
            let Self { shared, path, timer, .. } = self;
            let path = path.as_mut().expect("nothing is done with it");
            let goes_on = std::future::poll_fn(|task| {
                let mut state = shared.lock();
                if !state.queue.is_empty() {
                    return Poll::Ready(true);
                }
                if is_idle && state.stores == 0 {
                    return Poll::Ready(false);
                }
                wakes(&mut state.idle, task);
                drop(state);
                // An idle client hears of views, and that its connection is gone.
                let came = is_idle && path.session.poll_ready(task).is_ready();
                if came || timer.poll_over(task).is_ready() { Poll::Ready(true) } else { Poll::Pending }
            });
            if !goes_on.await {
                return false;
            }
        }
        self.join();
        true
    }

    /// One round. Returns whether something waits for others.
    async fn turn(&mut self) -> Result<bool, Error> {
        if self.mux.is_idle() {
            self.rest().await?;
            return Ok(false);
        }
        let mut completions: Vec<Completion> = Vec::new();
        loop {
            let now = self.path().session.now();
            let step = self.mux.step(&mut self.client, now, &completions);
            self.believe(step.ended).await?;
            if step.post.is_empty() {
                return Ok(step.again && !self.mux.is_idle());
            }
            // Whatever ends with this round has begun before it.
            self.path().connector.look_ahead();
            completions = self.post(step.post).await?;
            // What came meanwhile joins the next round, but for those that wait: they come to their turn when this has ended.
            if !step.again {
                self.join();
            }
        }
    }

    /// Takes up what has been asked for.
    fn join(&mut self) {
        let now = self.path().session.now();
        let mut state = self.shared.lock();
        state.idle = None;
        for command in std::mem::take(&mut state.queue) {
            match command {
                Command::Begin { number, spec } => {
                    if let Some(slot) = state.slots.get_mut(&number) {
                        slot.taken = true;
                    }
                    self.mux.begin(number, spec.operation(now));
                }
                Command::GiveUp(number) => self.mux.give_up(number),
            }
        }
    }

    /// Tells what came of operations, as far as that may be believed.
    ///
    /// # Errors
    /// Who said it is no primary any more.
    async fn believe(&mut self, mut ended: Vec<(u64, Ended)>) -> Result<(), Error> {
        let mut over = Ok(());
        if !ended.is_empty() && self.path().connector.is_replicated() {
            over = Path::vouched(&mut self.path, &mut self.timer).await;
            let state = self.shared.lock();
            for (number, ended) in &mut ended {
                let changes = state.slots.get(number).is_none_or(|slot| slot.changes);
                if let Some(doubt) = doubt(ended, changes, over.is_ok()) {
                    *ended = doubt;
                    over = over.and(Err(Error::Deposed));
                }
            }
        }
        self.tell(ended, over.as_ref().err().map(Error::reason).as_deref());
        over
    }

    fn tell(&self, ended: Vec<(u64, Ended)>, broke: Option<&str>) {
        if ended.is_empty() {
            return;
        }
        let lost = || Error::Lost(broke.unwrap_or("the connection is gone").to_owned());
        let mut wakers = Vec::new();
        let path = self.path.as_ref().expect("nothing is done with it");
        let mut state = self.shared.lock();
        state.survives = path.connector.survives(&path.session).or(state.survives);
        for (number, ended) in ended {
            let outcome = match ended {
                Ended::Done(output) => Outcome::Ended(Ok(output)),
                Ended::Never => Outcome::Never,
                Ended::Lost => Outcome::Ended(Err(lost())),
                Ended::Unknown => Outcome::Ended(Err(Error::Unknown(Box::new(lost())))),
            };
            wakers.extend(state.settle(number, outcome));
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn end_all(&mut self, why: &Error) {
        let ended = self.mux.broken(&mut self.client);
        self.tell(ended, Some(&why.reason()));
    }

    /// Nothing else is there to do.
    async fn rest(&mut self) -> Result<(), Error> {
        if self.path().session.noticed()?.is_some_and(|view| view > self.client.view().number) {
            self.attend().await?;
        }
        if let Some(confirm) = self.client.poll_confirm() {
            self.post(vec![Verb::Call(confirm)]).await?;
        }
        Ok(())
    }

    /// Until there is a connection again; what is asked for meanwhile is told when the patience is over.
    async fn connect_again(&mut self) {
        let mut since = Instant::now();
        let mut delays = delays();
        loop {
            let options = self.options.clone();
            let dialled = Path::beside(&mut self.path, move |path| {
                let (session, view) = path.connector.dial(&options)?;
                path.session = session;
                Ok::<_, Error>(view)
            });
            let error = match dialled.await {
                Ok(view) => {
                    self.client.adopt(view);
                    return;
                }
                Err(error) => error,
            };
            if self.shared.lock().stores == 0 {
                return;
            }
            if !self.options.reconnect || since.elapsed() >= self.options.waits() {
                self.join();
                self.end_all(&error);
                since = Instant::now();
            }
            let Self { timer, .. } = self;
            timer.set(Some(Instant::now() + delays.next_delay()));
            std::future::poll_fn(|task| timer.poll_over(task)).await;
        }
    }
}

/// What is to be said in place of what a primary said, if that does not count: it was not vouched for, or it says itself that it
/// is the primary no more.
fn doubt(ended: &Ended, changes: bool, vouched: bool) -> Option<Ended> {
    let lost = if changes { Ended::Unknown } else { Ended::Lost };
    match ended {
        // Enough members have it, whoever is the primary now.
        Ended::Done(Output::Put(Ok(_)) | Output::Call(Ok(Reply::Done { version: 1.. }))) => None,
        Ended::Done(Output::Put(Err(error)) | Output::Call(Err(error))) if error.ends_session() => Some(lost),
        Ended::Done(_) if vouched => None,
        // What it did not do was not done, whatever the reason was worth.
        Ended::Done(Output::Put(Err(error)) | Output::Call(Err(error))) if error.came_to_nothing() => {
            Some(Ended::Lost)
        }
        Ended::Done(Output::Call(Ok(Reply::Done { version: 0 }))) => Some(Ended::Lost),
        Ended::Done(_) => Some(lost),
        Ended::Never | Ended::Lost | Ended::Unknown => None,
    }
}

impl OperationSpec {
    fn operation(self, now: u64) -> AnyOperation {
        match self {
            Self::Get(key) => AnyOperation::Get(Get::new(&key)),
            Self::Put { key, value, options } => {
                let expires = options.ttl.map_or(0, |ttl| {
                    let milliseconds = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
                    now.saturating_add(milliseconds.max(1))
                });
                AnyOperation::Put(Put::new(&key, &value, expires, options.expect))
            }
            Self::Call(request) => AnyOperation::Call(Call::new(request)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    /// A task that is polled by whoever wakes it, as some executors do.
    struct PolledAtOnce {
        shared: Arc<Shared>,
        polls: AtomicU32,
    }

    impl Wake for PolledAtOnce {
        fn wake(self: Arc<Self>) {
            assert!(self.shared.state.try_lock().is_ok(), "a poll would wait for whoever wakes");
            self.polls.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_is_woken_may_poll_at_once() {
        let shared = Arc::new(Shared { state: Mutex::default() });
        let task = Arc::new(PolledAtOnce { shared: Arc::clone(&shared), polls: AtomicU32::new(0) });
        for number in 0..3 {
            let waker = Some(Arc::clone(&task).into());
            let slot = Slot { waker, outcome: None, changes: false, taken: false, orphan: false };
            shared.lock().slots.insert(number, slot);
        }
        drop(Farewell(shared));
        assert_eq!(task.polls.load(Ordering::Relaxed), 3);
    }
}
