//! The controller's hold on a server process.

use std::net::SocketAddr;
use std::process::Command;

use super::protocol::{Cost, Open, Reply, Request};
use crate::process::Agent;

/// A server process, which ends when this goes.
pub(super) struct Server(Agent<Request, Reply>);

impl Server {
    /// Starts `command`, which shall come to [`super::agent::main`].
    pub(super) fn start(mut command: Command) -> Result<Self, String> {
        Agent::start(&mut command).map(Self)
    }

    pub(super) fn open(&mut self, open: &Open) -> Result<(SocketAddr, String), String> {
        match self.0.ask(&Request::Open(open.clone()))? {
            Reply::Opened { addr, sentence } => Ok((addr, sentence)),
            other => Err(odd(&other)),
        }
    }

    pub(super) fn cost(&mut self) -> Result<Cost, String> {
        match self.0.ask(&Request::Cost)? {
            Reply::Cost(cost) => Ok(cost),
            other => Err(odd(&other)),
        }
    }

    pub(super) fn close(&mut self) -> Result<(), String> {
        match self.0.ask(&Request::Close)? {
            Reply::Closed => Ok(()),
            other => Err(odd(&other)),
        }
    }
}

fn odd(reply: &Reply) -> String {
    format!("the server process answered out of turn: {reply:?}")
}
