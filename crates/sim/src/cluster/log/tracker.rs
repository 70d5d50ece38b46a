//! What servers have said to a writer, beside its machine: an acknowledgement comes when enough have said so, no sooner and no
//! later.

use std::collections::VecDeque;

use remanence_coord::log::format::superblock::Uuid;
use remanence_coord::log::group::Machine;
use remanence_coord::log::proto::Request;
use remanence_coord::log::{Epoch, Status};

#[derive(Clone, Default)]
struct Server {
    is_up: bool,
    /// It has a say, or is being made equal, or is fed: others may have to come for that.
    is_taken_in: bool,
    /// READs under way.
    reads: u32,
    /// What is asked of it.
    asked: Option<Request>,
    /// One more than the last record of each update under way.
    in_flight: VecDeque<u64>,
    has: u64,
    /// It has adopted the epoch, on this connection or before.
    adopted: bool,
    /// What it had at most since it adopted, on any connection, with the disk that it has.
    ever: u64,
    /// The name of that disk.
    disk: Option<Uuid>,
}

/// What has come from the servers of a group.
pub(super) struct Tracker {
    servers: Vec<Server>,
    /// What enough had at any time.
    most: u64,
    /// Something was sent that changes what a log has.
    has_changed: bool,
    /// A server has promised its log to a later writer, and said so before anything was changed.
    told: Option<Epoch>,
}

impl Tracker {
    pub(super) fn new(servers: usize) -> Self {
        Self { servers: vec![Server::default(); servers], most: 0, has_changed: false, told: None }
    }

    pub(super) fn connected(&mut self, n: usize) {
        self.lost(n);
        self.servers[n].is_up = true;
    }

    pub(super) fn reads(&mut self, n: usize) {
        self.servers[n].reads += 1;
    }

    pub(super) fn has_read(&mut self, n: usize) {
        self.servers[n].reads = self.servers[n].reads.saturating_sub(1);
    }

    pub(super) fn lost(&mut self, n: usize) {
        let Server { ever, disk, .. } = self.servers[n];
        self.servers[n] = Server { ever, disk, ..Server::default() };
    }

    pub(super) fn asks(&mut self, n: usize, request: &Request) -> Result<(), String> {
        self.servers[n].asked = Some(*request);
        match request {
            Request::Status | Request::Grant { .. } => Ok(()),
            _ => self.changes(n),
        }
    }

    pub(super) fn sends(&mut self, n: usize, below: u64) -> Result<(), String> {
        self.servers[n].in_flight.push_back(below);
        self.changes(n)
    }

    /// Nothing is changed by a writer that could know that it is too late: of two that open the log at one moment one gives way.
    fn changes(&mut self, n: usize) -> Result<(), String> {
        (self.has_changed, self.servers[n].is_taken_in) = (true, true);
        match self.told {
            Some(later) => {
                Err(format!("server {n} is changed by a writer that was told of epoch {later} before"))
            }
            None => Ok(()),
        }
    }

    /// A server has promised its log to this epoch.
    pub(super) fn is_promised(&mut self, promised: Epoch, epoch: Epoch) {
        if !self.has_changed && epoch != Epoch::NONE && promised > epoch {
            self.told = Some(promised);
        }
    }

    pub(super) fn says(&mut self, n: usize, status: &Status, epoch: Epoch) {
        let server = &mut self.servers[n];
        if server.disk.replace(status.superblock.uuid) != Some(status.superblock.uuid) {
            server.ever = 0;
        }
        server.is_taken_in |= status.state.adopted != Epoch::NONE && status.damage.is_none();
        match server.asked.take() {
            Some(Request::Grant { .. }) if status.damage.is_none() => {
                server.has = status.tail.sequence;
                server.adopted = status.state.adopted == epoch;
            }
            Some(Request::Truncate { sequence, .. } | Request::Reset { sequence, .. }) => {
                server.has = sequence
            }
            Some(Request::Adopt { .. }) => server.adopted = true,
            _ => {}
        }
        server.note();
    }

    pub(super) fn durable(&mut self, n: usize) {
        let server = &mut self.servers[n];
        if let Some(below) = server.in_flight.pop_front() {
            server.has = server.has.max(below);
        }
        server.note();
    }

    /// Whether the machine acknowledges what it should.
    pub(super) fn check(&mut self, machine: &Machine) -> Result<(), String> {
        let acks = machine.quorum().0;
        let with_enough = |has: fn(&Server) -> u64| {
            let mut all: Vec<u64> = self.servers.iter().map(has).collect();
            all.sort_unstable_by(|a, b| b.cmp(a));
            all[acks - 1].min(machine.next())
        };
        let said = with_enough(|server| if server.adopted { server.has } else { 0 });
        self.most = self.most.max(with_enough(|server| server.ever));
        let ever = self.most;
        let acknowledged = machine.acknowledged();
        if acknowledged > ever {
            return Err(format!(
                "records below {acknowledged} are acknowledged, and {acks} servers have those below {ever}"
            ));
        }
        if acknowledged < said {
            return Err(format!(
                "{acks} servers have the records below {said}, and those below {acknowledged} are acknowledged"
            ));
        }
        let rests =
            |server: &Server| server.asked.is_none() && server.in_flight.is_empty() && server.reads == 0;
        let there = self
            .servers
            .iter()
            .filter(|server| server.is_up && (server.adopted || server.is_taken_in))
            .count();
        if there < acks
            && self.servers.iter().all(rests)
            && machine.enough().is_ok()
            && !machine.has_actions()
        {
            return Err(format!(
                "nothing is under way, {there} of {acks} servers are there, and nobody is told"
            ));
        }
        Ok(())
    }
}

impl Server {
    fn note(&mut self) {
        if self.adopted {
            self.ever = self.ever.max(self.has);
        }
    }
}
