//! A server: it answers calls with bytes of its own, at once or later, and keeps a log on its disk.

use std::collections::BTreeMap;
use std::time::Duration;

use remanence_rpc::core::event::{Event, RequestId};
use remanence_rpc::header::Status;
use remanence_rpc::log::machine::Machine;
use remanence_rpc::log::{APPEND, LogFile, TRIM};

use super::end::{End, node_at};
use super::oracle::{Oracle, answer};
use crate::cluster::core::{Host, blank_disk};
use crate::cluster::disk::Disk;
use crate::cluster::{Input, Moment, NodeId};
use crate::rng::Rng;

/// The service that answers with bytes of its own.
pub(super) const ECHO: u16 = 7;

/// How those are told that wait for something: whom, how it ended, and what else there is to say.
type Answers = Vec<(RequestId, Status, Vec<u8>)>;

pub(super) struct Server {
    end: End,
    machine: Machine<Disk>,
    /// The calls of appends that are not committed.
    appends: BTreeMap<RequestId, u64>,
    /// Answers that are given later, by the calls that they are for.
    later: Vec<(Duration, RequestId, u64)>,
    rng: Rng,
    /// When it looks at what has come.
    round: Option<Duration>,
    /// Its medium has failed, and it has ended.
    has_ended: bool,
}

/// A disk with an empty log.
pub(super) fn make(oracle: &Oracle, node: NodeId) -> Disk {
    let plan = &oracle.plan;
    let disk = blank_disk(plan.disk, plan.domain);
    LogFile::format(disk.clone(), plan.word, oracle.seed ^ (node as u64) << 56)
        .expect("a new disk is healthy");
    disk
}

/// Opens a log, which must have what was acknowledged, and nothing that was never appended.
///
/// # Errors
/// It does not. A sentence.
pub(super) fn open(disk: Disk, oracle: &Oracle, server: NodeId) -> Result<LogFile<Disk>, String> {
    let mut entries = BTreeMap::new();
    let log =
        LogFile::open(disk, |entry, bytes| drop(entries.insert(entry.position, (entry, bytes.to_vec()))));
    let log = log.map_err(|why| why.to_string())?;
    oracle.compare(server, log.bounds(), &entries)?;
    Ok(log)
}

impl Server {
    pub(super) fn boot(host: &mut Host<'_, Oracle>) -> Result<Self, String> {
        let (node, life) = (host.node(), host.life());
        let log = open(host.disk(0), host.known(), node)?;
        let oracle = host.oracle();
        oracle.work.found_again += u64::from(life > 0);
        let rng = Rng::new(oracle.seed, (7000 + node as u64) << 32 ^ u64::from(life));
        Ok(Self {
            end: End::boot(host),
            machine: Machine::new(log),
            appends: BTreeMap::new(),
            later: Vec::new(),
            rng,
            round: None,
            has_ended: false,
        })
    }

    pub(super) fn sessions(&self) -> usize {
        self.end.core.sessions()
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        let later = self.later.iter().map(|(at, ..)| *at);
        let all = later.chain(self.end.deadline()).chain(self.round).min();
        all.filter(|_| !self.has_ended)
    }

    pub(super) fn on(&mut self, input: Input, host: &mut Host<'_, Oracle>) {
        if self.has_ended {
            return;
        }
        let now = host.now();
        self.end.take(input, host);
        for (_, id, tag) in self.later.extract_if(.., |(at, ..)| *at <= now) {
            self.end.respond(id, Status::Done, answer(tag));
        }
        let round = Duration::from_nanos(host.known().plan.round);
        if self.end.core.has_event() && *self.round.get_or_insert(now + round) <= now {
            self.round = None;
            if let Err(why) = self.look(now, host) {
                host.core().wrong(why);
            }
        }
        self.end.transmit(host);
    }

    /// Does what has come.
    fn look(&mut self, now: Duration, host: &mut Host<'_, Oracle>) -> Result<(), String> {
        let node = host.node();
        while let Some(event) = self.end.core.poll_event() {
            if host.has_no_power() || self.has_ended {
                return Ok(());
            }
            host.tell(format_args!("{event:?}"));
            match event {
                Event::Request { id, service, body } => {
                    let client = self.end.core.peer(id.session()).map(node_at);
                    host.core().moment(Moment::Request, node, client);
                    self.serve(now, id, service, &body.to_vec(), host)?;
                }
                Event::Accepted { peer, .. } => {
                    let client = node_at(peer);
                    if host.known().is_stranger(client) {
                        return Err("a stranger has a session".into());
                    }
                    host.core().moment(Moment::Session, node, Some(client));
                }
                Event::Ended { why, .. } => host.oracle().ended(node, why)?,
                Event::Connected(_) | Event::Response { .. } | Event::Failed { .. } => {
                    return Err("a server has called nobody".into());
                }
            }
            if self.machine.is_due(host.known().plan.batch, self.end.core.has_event()) {
                let mut answers = Answers::new();
                let committed = self.machine.commit();
                let told = |id, status, bytes: &[u8]| answers.push((id, status, bytes.to_vec()));
                let answered = self.machine.answer(committed, told);
                host.oracle().work.commits += 1;
                self.tell(answers, true, host)?;
                self.goes_on(answered.is_ok(), host);
            }
        }
        Ok(())
    }

    fn serve(
        &mut self,
        now: Duration,
        id: RequestId,
        service: u16,
        body: &[u8],
        host: &mut Host<'_, Oracle>,
    ) -> Result<(), String> {
        let node = host.node();
        match service {
            ECHO => {
                let tag = host.oracle().carried_out(node, body)?;
                let delay = match self.rng.below(10) {
                    0 => self.rng.below(30_000_000),
                    1..4 => self.rng.below(1_000_000),
                    _ => 0,
                };
                self.later.push((now + Duration::from_nanos(delay), id, tag));
                return Ok(());
            }
            APPEND => {
                let tag = host.oracle().carried_out(node, body)?;
                self.appends.insert(id, tag);
            }
            TRIM => host.oracle().trims(node, position(body)),
            _ => {}
        }
        let mut answers = Answers::new();
        let told = |id, status, bytes: &[u8]| answers.push((id, status, bytes.to_vec()));
        let served = self.machine.serve(id, service, body, told);
        let is_trimmed = service == TRIM && answers.iter().any(|(_, status, _)| *status == Status::Done);
        if is_trimmed && !host.has_no_power() {
            host.oracle().trimmed(node, position(body));
        }
        self.tell(answers, is_trimmed, host)?;
        self.goes_on(served.is_ok(), host);
        Ok(())
    }

    /// Tells clients what they are told. What says that the log was changed must be true of what is durable.
    fn tell(&mut self, answers: Answers, is_change: bool, host: &mut Host<'_, Oracle>) -> Result<(), String> {
        if host.has_no_power() {
            return Ok(());
        }
        let (node, mut is_said) = (host.node(), false);
        for (id, status, bytes) in answers {
            let append = self.appends.remove(&id);
            if status == Status::Done {
                is_said |= is_change;
                if let Some(tag) = append {
                    host.oracle().acknowledged(node, tag, &bytes)?;
                }
            }
            self.end.respond(id, status, bytes);
        }
        if !is_said {
            return Ok(());
        }
        if host.disk(0).has_failed() {
            return Err(format!("server {node} acknowledges something, and its medium has failed"));
        }
        let durable = open(host.disk(0).durable(), host.known(), node);
        durable.map(|_| ()).map_err(|why| format!("server {node}, if its power went now: {why}"))
    }

    /// One whose medium has failed ends, when it has said its last words.
    fn goes_on(&mut self, is_well: bool, host: &mut Host<'_, Oracle>) {
        if is_well || host.has_no_power() {
            return;
        }
        host.tell(format_args!("ends, as its medium has failed"));
        self.has_ended = true;
        let (node, oracle) = (host.node(), host.oracle());
        oracle.work.media_ended += 1;
        oracle.logs[node].failed = true;
    }
}

/// The position that a request has, if it has one.
fn position(body: &[u8]) -> u64 {
    body.try_into().map_or(0, u64::from_be_bytes)
}
