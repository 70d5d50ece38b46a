//! A process' connection to a node that it talks to again and again, or the wait for the next one.

use std::time::Duration;

use super::NodeId;
use super::core::{ConnectionId, Host};

#[derive(Clone, Copy, Debug)]
pub(super) enum Link {
    Connecting(ConnectionId),
    Up(ConnectionId),
    /// It is connected to again at that time.
    Down(Duration),
}

impl Link {
    /// Begins to connect to a node.
    pub(super) fn to<O>(node: NodeId, host: &mut Host<'_, O>) -> Self {
        Self::Connecting(host.connect(node))
    }

    pub(super) const fn connection(&self) -> Option<ConnectionId> {
        match self {
            Self::Connecting(connection) | Self::Up(connection) => Some(*connection),
            Self::Down(_) => None,
        }
    }

    /// The connection, if it is there.
    pub(super) const fn up(&self) -> Option<ConnectionId> {
        match self {
            Self::Up(connection) => Some(*connection),
            Self::Connecting(_) | Self::Down(_) => None,
        }
    }

    /// When it is to be connected to again.
    pub(super) const fn deadline(&self) -> Option<Duration> {
        match self {
            Self::Down(until) => Some(*until),
            Self::Connecting(_) | Self::Up(_) => None,
        }
    }

    /// Connects again, if it is time.
    pub(super) fn go_on<O>(&mut self, now: Duration, node: NodeId, host: &mut Host<'_, O>) {
        if self.deadline().is_some_and(|until| until <= now) {
            *self = Self::to(node, host);
        }
    }
}

/// Which of these has that connection.
pub(super) fn find(links: &[Link], connection: ConnectionId) -> Option<usize> {
    links.iter().position(|link| link.connection() == Some(connection))
}
