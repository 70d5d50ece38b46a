//! What members tell each other all the time: a thread for each other member, so that none waits for another's silence.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;
use std::time::{Duration, Instant};

use remanence_persist::plan::Costs;
use remanence_remote::{CostSource, Options, Reactor, Session, Token};
use remanence_remotelog::group::ConnectionLost;
use remanence_remotelog::{Method, connect};
use remanence_verbs::Context;

use super::connection::{DEPTH, MemberConnection};
use super::node::{Connections, Node};
use super::wire::{MemberStats, VERSION};
use super::{BEATS, MEMBERS};
use crate::Error;
use remanence_kv::replica::{Bring, Bringing, Round};

/// How a member reaches others.
#[derive(Clone, Debug)]
pub(super) struct MemberConnector {
    pub(super) context: Context,
    /// Of the connections that a primary has, which are waited for together.
    pub(super) reactor: Reactor,
    /// Of clients, and of members.
    pub(super) clients: Option<Token>,
    pub(super) members: Option<Token>,
}

/// Options of a session for which nothing is measured.
pub(crate) fn plain(patience: Duration) -> Options {
    Options::default().patience(patience).staging(64 << 10).costs(CostSource::Fixed(Costs::PAPERS))
}

/// Asks a member, as clients do, what it says of itself.
pub(crate) fn describe(session: &mut Session, to: SocketAddr) -> Result<MemberStats, Error> {
    let said = match session.call(MEMBERS, &[]) {
        Err(remanence_remote::Error::Application(_)) => return Err(Error::Stranger(to)),
        said => said?,
    };
    match MemberStats::parse(&said).ok_or(Error::Stranger(to))? {
        Ok(said) => Ok(said),
        Err(theirs) => Err(Error::Argument(format!(
            "{to} speaks version {theirs} of the members' protocol, and this is version {VERSION}; use the same release everywhere"
        ))),
    }
}

impl MemberConnector {
    fn beats(&self, node: &Arc<Node>, at: usize) -> Result<Session, Error> {
        let to = node.addrs[at];
        let patience = node.notice.max(Duration::from_secs(1));
        let options = plain(patience).tokens(self.clients.clone());
        let mut asking = Session::connect(&self.context, to, options)?;
        let said = describe(&mut asking, to)?;
        let log = SocketAddr::new(to.ip(), said.log_port);
        node.heard(Some(at), said);
        drop(asking);
        // What it does not answer counts only while it is waited for: an answer comes out first.
        let waits = Arc::clone(node);
        let options = plain(patience).tokens(self.members.clone()).give_up(node.interval(), move |_| {
            waits.asks(at);
            false
        });
        Ok(Session::connect(&self.context, log, options)?)
    }

    /// Tells a member all the time what this one is, and hears what it is, until the node is over.
    pub(super) fn keep(&self, node: &Arc<Node>, at: usize) {
        let interval = node.interval();
        let mut session: Option<Session> = None;
        let mut news = 0;
        loop {
            let (is_over, has_failed) = node.last_word();
            // Why it ends the others hear from itself, and do not wait for its silence.
            if is_over && !(has_failed && session.is_some()) {
                break;
            }
            let mut once = || -> Result<(), Error> {
                let session = match &mut session {
                    Some(session) => session,
                    none => none.insert(self.beats(node, at)?),
                };
                node.asks(at);
                let said = session.call(BEATS, &node.said().emit())?;
                match MemberStats::parse(&said) {
                    Some(Ok(said)) => node.heard(Some(at), said),
                    _ => return Err(Error::Stranger(node.addrs[at])),
                }
                Ok(())
            };
            if let Err(error) = once() {
                session = None;
                match error {
                    // Whoever reads this sees several members, by their names.
                    Error::Remote(remanence_remote::Error::Verbs(remanence_verbs::Error::NoAnswer(_))) => {
                        node.missed(at, &"no answer");
                    }
                    error => node.missed(at, &error),
                }
            }
            if is_over {
                break;
            }
            news = node.wait_for_news(news, interval);
        }
    }

    /// A connection to a member's log, as long as it is wanted.
    fn connection(
        &self,
        node: &Arc<Node>,
        at: usize,
        over: &Arc<AtomicBool>,
    ) -> Result<MemberConnection, ConnectionLost> {
        if at == node.who {
            return Ok(MemberConnection::own(Arc::clone(node), self.reactor.waiter()));
        }
        let (log_port, life) = {
            let state = node.lock();
            let Some(said) = node.recent(&state, at) else {
                return Err(ConnectionLost(node.absent(&state, at)));
            };
            (said.log_port, said.life)
        };
        let to = SocketAddr::new(node.addrs[at].ip(), log_port);
        // The links find out whether it is there; a call may take as long as its medium.
        let watching = Arc::clone(node);
        let (connected, over) = (Arc::new(AtomicBool::new(false)), Arc::clone(over));
        let (is_connected, until) = (Arc::clone(&connected), Instant::now() + limit(node));
        let options = plain(5 * node.notice + Duration::from_secs(10))
            .give_up(node.interval(), move |_| {
                let is_late = || !is_connected.load(Ordering::Acquire) && Instant::now() >= until;
                let is_wanted = !over.load(Ordering::Acquire) && !watching.lock().over;
                !is_wanted || watching.gone(at, life).is_some() || is_late()
            })
            .depth(DEPTH + 1)
            .staging(1 << 20)
            .tokens(self.members.clone());
        let connection = connect(&self.reactor, to, options, Method::Cheapest)?;
        connected.store(true, Ordering::Release);
        Ok(MemberConnection::other(Arc::clone(node), self.reactor.waiter(), at, life, connection))
    }
}

/// How long it may take to connect to a member: one whose medium does not answer is taken for gone after about as long.
fn limit(node: &Node) -> Duration {
    5 * node.notice + Duration::from_secs(1)
}

/// What came of connecting to a member.
type Made = (usize, Result<MemberConnection, ConnectionLost>);

/// Connects to the logs of members beside whatever else is done, for whoever leads or is about to: a thread for each connection, so that
/// none waits for another one, and nobody for all of them.
pub(super) struct Connecting<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    connector: &'env MemberConnector,
    node: &'env Arc<Node>,
    /// Nobody wants any of them any more.
    over: Arc<AtomicBool>,
    to: Sender<Made>,
    from: Receiver<Made>,
    under_way: BTreeSet<usize>,
}

impl<'scope, 'env> Connecting<'scope, 'env> {
    pub(super) fn new(
        scope: &'scope Scope<'scope, 'env>,
        connector: &'env MemberConnector,
        node: &'env Arc<Node>,
        over: Arc<AtomicBool>,
    ) -> Self {
        let (to, from) = channel();
        Self { scope, connector, node, over, to, from, under_way: BTreeSet::new() }
    }

    fn begin(&mut self, at: usize) {
        if !self.under_way.insert(at) {
            return;
        }
        let (connector, node, over, to) =
            (self.connector, self.node, Arc::clone(&self.over), self.to.clone());
        self.scope.spawn(move || {
            let connecting = AssertUnwindSafe(|| connector.connection(node, at, &over));
            let made = catch_unwind(connecting)
                .unwrap_or_else(|_| Err(ConnectionLost("connecting to it has failed".into())));
            // If nobody is there to take it any more, nobody wants it.
            let _ = to.send((at, made));
            node.stir_returns(node.lock());
        });
    }

    fn taken(&mut self, until: Option<Duration>) -> Option<Made> {
        let left = until.map(|until| until.saturating_sub(self.node.now()));
        let made = match left {
            Some(left) => self.from.recv_timeout(left).ok(),
            None => self.from.recv().ok(),
        }?;
        self.under_way.remove(&made.0);
        Some(made)
    }

    /// Connections to all members; those that take longer than enough others are made all the same, for [later](Self::bring_back).
    pub(super) fn all_members(&mut self) -> Connections {
        let node = self.node;
        (0..node.names.len()).for_each(|at| self.begin(at));
        let mut round = Round::new(&node.lock().takeover, node.notice);
        while let Some((at, made)) = self.taken(round.end()) {
            round.take(node.now(), at, made);
        }
        round.connections(&node.names)
    }

    /// While a primary does without members that are there again: connects to them, for its serving thread to take over.
    pub(super) fn bring_back(mut self) {
        let node = self.node;
        let mut bringing = {
            let state = node.lock();
            Bringing::new(node.now(), node.notice, &state.takeover)
        };
        let (mut known, mut until) = (0, None);
        loop {
            known = node.wait_for_returns(known, until);
            if self.over.load(Ordering::Acquire) {
                return;
            }
            while let Some((at, made)) = self.taken(Some(Duration::ZERO)) {
                if let Some(connection) = bringing.made(node.now(), at, made) {
                    node.lock().back.some.push((node.names[at].clone(), connection));
                    node.wake_primary();
                }
            }
            let turn = {
                let state = node.lock();
                match state.back.all {
                    // The primary has not taken these yet.
                    Some(_) => Bring::Rest(None),
                    None => {
                        bringing.turn(node.now(), &state.takeover, state.epoch, &node.lost(&state), |at| {
                            self.under_way.contains(&at)
                        })
                    }
                }
            };
            until = None;
            match turn {
                Bring::Rest(at) => until = at,
                Bring::Connect(wanted) => wanted.into_iter().for_each(|at| self.begin(at)),
                Bring::Open(round) => {
                    node.lock().back.all = Some(round.connections(&node.names));
                    node.wake_primary();
                }
                Bring::Leave(round) => {
                    drop(round);
                    until = Some(node.now());
                }
            }
        }
    }
}
