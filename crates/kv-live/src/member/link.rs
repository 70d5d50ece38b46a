//! What members tell each other all the time: a thread for each other member, so that none waits for another's silence.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use remanence_persist::plan::Costs;
use remanence_remote::{CostSource, Options, Reactor, Session, Token};
use remanence_remotelog::group::ConnectionLost;
use remanence_remotelog::{Method, connect_on};
use remanence_verbs::Context;

use super::connection::{DEPTH, MemberConnection};
use super::node::{Back, Connections, Node};
use super::wire::{MemberStats, VERSION};
use super::{BEATS, MEMBERS};
use crate::Error;

/// How long a member is left alone at most, to which a primary could not connect.
const PAUSE_MAX: Duration = Duration::from_secs(10);

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
    fn beats(&self, node: &Node, at: usize) -> Result<Session, Error> {
        let to = node.addrs[at];
        let patience = node.notice.max(Duration::from_secs(1));
        let options = plain(patience).tokens(self.clients.clone());
        let mut asking = Session::connect(&self.context, to, options)?;
        let said = describe(&mut asking, to)?;
        let log = SocketAddr::new(to.ip(), said.log_port);
        node.heard(Some(at), said);
        drop(asking);
        let options = plain(patience).tokens(self.members.clone());
        Ok(Session::connect(&self.context, log, options)?)
    }

    /// Tells a member all the time what this one is, and hears what it is, until the node is over.
    pub(super) fn keep(&self, node: &Node, at: usize) {
        let interval = node.interval();
        let mut session: Option<Session> = None;
        let mut news = 0;
        while !node.lock().over {
            let mut once = || -> Result<(), Error> {
                let session = match &mut session {
                    Some(session) => session,
                    none => none.insert(self.beats(node, at)?),
                };
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
            news = node.wait_for_news(news, interval);
        }
    }

    /// A connection to a member's log.
    fn connection(&self, node: &Arc<Node>, at: usize) -> Result<MemberConnection, ConnectionLost> {
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
        let options = plain(5 * node.notice + Duration::from_secs(10))
            .give_up(node.interval(), move |_| watching.gone(at, life).is_some())
            .depth(DEPTH + 1)
            .staging(1 << 20)
            .tokens(self.members.clone());
        Ok(MemberConnection::other(
            Arc::clone(node),
            self.reactor.waiter(),
            at,
            life,
            connect_on(&self.reactor, to, options, Method::Cheapest)?,
        ))
    }

    /// Connections to these members' logs, made at the same time.
    pub(super) fn connections(&self, node: &Arc<Node>, members: &[usize]) -> Connections {
        std::thread::scope(|scope| {
            let connections: Vec<_> =
                members.iter().map(|at| scope.spawn(move || self.connection(node, *at))).collect();
            let connection = |joined: std::thread::ScopedJoinHandle<
                '_,
                Result<MemberConnection, ConnectionLost>,
            >| {
                joined.join().unwrap_or_else(|_| Err(ConnectionLost("connecting to it has failed".into())))
            };
            let names = members.iter().map(|at| node.names[*at].clone());
            names.zip(connections.into_iter().map(connection)).collect()
        })
    }

    /// While a primary does without members that are there again: connects to them, for its serving thread to take over.
    pub(super) fn bring_back(&self, node: &Arc<Node>, stop: &AtomicBool) {
        let shortest = (node.notice / 2).min(PAUSE_MAX);
        let mut pause_for = shortest;
        while !stop.load(Ordering::Acquire) && !node.lock().over {
            pause(node, node.interval());
            let (away, wanted) = {
                let state = node.lock();
                let others = (0..node.names.len()).filter(|at| *at != node.who && state.back.is_none());
                let away = others.clone().any(|at| node.has_promised_away(&state, at));
                (away, others.filter(|at| node.wants_back(&state, *at)).collect::<Vec<_>>())
            };
            if !away && wanted.is_empty() {
                continue;
            }
            let lives = node.lives();
            let wanted = if away { (0..node.names.len()).collect() } else { wanted };
            let connections = self.connections(node, &wanted);
            let reached =
                |(name, connection): &(String, Result<_, _>)| connection.is_ok() && name != node.own_name();
            if connections.iter().any(reached) {
                let state = &mut *node.lock();
                // Connecting takes its time: somebody may have become the primary meanwhile.
                let mut others = (0..node.names.len()).filter(|at| *at != node.who);
                let still = others.any(|at| node.has_promised_away(state, at));
                if !away || still {
                    state.back = Some(if away { Back::All(connections) } else { Back::Some(connections) });
                }
            }
            // A member that fails again and again does not hold up clients all the time; one that was started again may do better.
            let begin = std::time::Instant::now();
            while begin.elapsed() < pause_for && !node.changed_lives(&lives) && !stop.load(Ordering::Acquire)
            {
                pause(node, node.interval());
            }
            pause_for = (2 * pause_for).min(PAUSE_MAX);
            if node.lock().lost.is_empty() {
                pause_for = shortest;
            }
        }
    }
}

/// Between two looks: a change of the node does not end it, or members would talk without end.
fn pause(node: &Node, time: Duration) {
    let begin = std::time::Instant::now();
    while let Some(left) = time.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
        if node.lock().over {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(20)));
    }
}
