//! Faults that are aimed: they happen just after the protocol has come to a chosen moment.
//!
//! A window in which a server has promised and has not been asked again is open for some microseconds of a run of milliseconds, and
//! what is drawn by the clock alone hardly ever meets two of them. So processes say what they have come to ([`Moment`]), and what a seed has
//! aimed at the n-th of these happens then, or a drawn time later: to the node where it was, to whoever asked there, or to another one.

use std::fmt;

use super::NodeId;
use super::core::{Core, Event};
use super::fault::{Fault, Kind, Scene, Way};
use crate::rng::Rng;

/// What a node has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// A server is asked for its promise.
    Promise,
    /// A server is asked how its log is, perhaps for a confirmation.
    Look,
    /// A server is to cut records off, or to begin anew.
    Cut,
    /// A server is to adopt an epoch.
    Adopt,
    /// A server is to give records up, or to note that they are acknowledged.
    Note,
    /// A one-sided update has arrived at a server.
    Update,
    /// A writer has opened the log.
    Open,
    /// A writer is told that a record is acknowledged.
    Acknowledge,
    /// A server is to make a blob of what was written, or to delete one.
    Commit,
    /// A server is asked for a blob.
    Find,
    /// A client is told that a blob is durable, or durably gone.
    Stored,
    /// A member that followed a primary follows nobody any more.
    Doubt,
    /// A member tries to lead.
    Try,
    /// A member serves.
    Serve,
    /// A client has a session of calls.
    Session,
    /// A call is handed to whoever carries it out.
    Request,
}

impl Moment {
    const fn sentence(self) -> &'static str {
        match self {
            Self::Promise => "a promise is asked for",
            Self::Look => "a log is asked about",
            Self::Cut => "a log is to be cut",
            Self::Adopt => "an epoch is to be adopted",
            Self::Note => "records are to be given up",
            Self::Update => "an update arrives",
            Self::Open => "a log was opened",
            Self::Acknowledge => "a record is acknowledged",
            Self::Commit => "a blob is to be committed",
            Self::Find => "a blob is asked for",
            Self::Stored => "a client is told that a blob is durable or gone",
            Self::Doubt => "a primary is suspected",
            Self::Try => "a member tries to lead",
            Self::Serve => "a member serves",
            Self::Session => "a client has a session",
            Self::Request => "a call is to be carried out",
        }
    }
}

/// Whom it happens to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AimTarget {
    /// The node that has come to the moment.
    There,
    /// Whoever asked it, or that node itself if nobody did.
    Asker,
    /// The server so many places behind it, or that one of all if it is none.
    Behind(usize),
}

/// What happens to the node that is struck.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blow {
    /// It does nothing for a while, and its connections stay.
    Pause,
    /// Its process dies.
    Kill,
    /// It loses its power.
    PowerLoss,
    /// It loses its power after so many more syncs: in the middle of what it is asked for, if that takes so many.
    PowerLossWithin(u64),
    /// It loses its power, and its disks if others have what was on them.
    DiskLost,
    /// It loses its power, and something on its disk rots, if others have what was on it.
    Rots,
    /// Its disks are so many times as slow.
    SlowDisk(u32),
    /// Nothing goes through between it and all others.
    CutOff(Way),
    /// It, a client, loses its connections, and what it has sent arrives at the end.
    Linger,
}

/// What is aimed at what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aim {
    /// What is waited for.
    pub moment: Moment,
    /// So many of these are let pass.
    pub nth: u32,
    /// Nanoseconds from then on.
    pub delay: u64,
    /// How long it lasts.
    pub lasts: u64,
    /// Whom it happens to.
    pub whom: AimTarget,
    /// What happens to it.
    pub blow: Blow,
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { moment, nth, delay, lasts, whom, blow } = self;
        let whom = match whom {
            AimTarget::There => "there".to_owned(),
            AimTarget::Asker => "to whoever asked".to_owned(),
            AimTarget::Behind(n) => format!("{n} servers further"),
        };
        let moment = moment.sentence();
        write!(
            f,
            "{blow:?} {whom} for {lasts} ns, {delay} ns after the time number {} at which {moment}",
            nth + 1
        )
    }
}

/// An aim that waits for its moment: the fault that it is, and how many are let pass still.
pub(super) type Aiming = (usize, u32);

/// Has half of the runs have faults that are aimed, and half of those no others.
pub(super) fn add(rng: &mut Rng, scene: &Scene, moments: &[Moment], faults: &mut Vec<Fault>) {
    if rng.one_in(2) {
        if rng.one_in(2) {
            faults.clear();
        }
        faults.extend(draw(rng, scene, moments));
    }
}

/// Aims for a seed: a few themes, each of them several times in a row.
pub(super) fn draw(rng: &mut Rng, scene: &Scene, moments: &[Moment]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for _ in 0..rng.between(1, 3) {
        let moment = rng.pick(moments);
        let whom = rng.pick(&[0, 0, 0, 1, 2, 2]);
        let mut kind = rng.below(9);
        if scene.among_servers && rng.one_in(2) {
            kind = 0;
        }
        let skips = rng.pick(&[1, 3, 12]);
        let delay = rng.pick(&[0, 1, 2_000, 50_000, scene.ends / 40]);
        let long = rng.pick(&[scene.ends / 200, scene.ends / 20, scene.ends / 4]);
        let mut nth = 0;
        for _ in 0..rng.pick(&[1, 1, 2, 4, 8]) {
            nth += rng.below(skips) as u32;
            let whom = match whom {
                0 => AimTarget::There,
                1 => AimTarget::Asker,
                _ => AimTarget::Behind(rng.index(scene.servers)),
            };
            let blow = match kind {
                0 => Blow::Pause,
                1 => Blow::Kill,
                2 => Blow::PowerLoss,
                3 => Blow::PowerLossWithin(rng.below(8)),
                4 => Blow::DiskLost,
                5 => Blow::SlowDisk(rng.pick(&[10, 100, 2000])),
                8 if !scene.among_servers => Blow::Rots,
                6..=8 if scene.among_servers => Blow::CutOff(rng.pick(&[Way::Both, Way::Out, Way::In])),
                6 if whom != AimTarget::Asker => {
                    Blow::CutOff(rng.pick(&[Way::Both, Way::Both, Way::Out, Way::In]))
                }
                _ => Blow::Linger,
            };
            let delay = if delay == 0 { 0 } else { rng.exponential(delay) };
            let aim = Aim { moment, nth, delay, lasts: 1 + rng.exponential(long), whom, blow };
            let kind = Kind::Aimed(aim);
            faults.push(Fault { at: 0, lasts: scene.ends, node: 0, kind, salt: rng.u64() });
            nth += 1;
        }
    }
    faults
}

impl<O> Core<O> {
    /// A node has come to a moment, perhaps as another one has asked it.
    pub(crate) fn moment(&mut self, moment: Moment, there: NodeId, asker: Option<NodeId>) {
        if self.aims.is_empty() {
            return;
        }
        let (mut fired, faults) = (Vec::new(), &self.faults);
        self.aims.retain_mut(|(n, left)| {
            let Kind::Aimed(aim) = faults[*n].kind else { return false };
            if aim.moment != moment {
                return true;
            }
            if *left == 0 {
                fired.push((*n, aim));
                return false;
            }
            *left -= 1;
            true
        });
        for (n, aim) in fired {
            self.strike(n, aim, there, asker);
        }
    }

    fn strike(&mut self, n: usize, aim: Aim, there: NodeId, asker: Option<NodeId>) {
        let (at, ends, servers) = (self.now() + aim.delay, self.faults[n].ends(), self.servers());
        let node = match aim.whom {
            AimTarget::There => there,
            AimTarget::Asker => asker.unwrap_or(there),
            AimTarget::Behind(by) => (if there < servers { there + by } else { by }) % servers,
        };
        let kinds: Vec<Kind> = match aim.blow {
            Blow::Pause => vec![Kind::Pause],
            Blow::Kill => vec![Kind::Kill],
            Blow::PowerLoss => vec![Kind::PowerLoss],
            Blow::PowerLossWithin(syncs) if node < servers => vec![Kind::PowerLossWithin(syncs)],
            Blow::DiskLost if node < servers => vec![Kind::DiskLost],
            Blow::Rots if node < servers => vec![Kind::Rots],
            Blow::PowerLossWithin(_) | Blow::DiskLost | Blow::Rots => vec![Kind::PowerLoss],
            Blow::SlowDisk(times) => vec![Kind::SlowDisk(times)],
            Blow::CutOff(way) => {
                let peers = (0..self.nodes.len()).filter(|peer| *peer != node);
                peers.map(|peer| Kind::Partition(peer, way)).collect()
            }
            Blow::Linger => {
                let clients = [Some(node), asker, Some(there)].into_iter().flatten();
                clients.filter(|node| *node >= servers).take(1).map(Kind::Linger).collect()
            }
        };
        if at >= ends {
            return;
        }
        self.counts.aimed += 1;
        for kind in kinds {
            let salt = self.faults[n].salt;
            self.faults.push(Fault { at, lasts: aim.lasts.min(ends - at), node, kind, salt });
            let n = self.faults.len() - 1;
            match kind {
                // Within what is done just now.
                Kind::PowerLossWithin(syncs) if at == self.now() && self.nodes[node].is_up => {
                    self.nodes[node].power.goes_after(syncs, salt);
                }
                _ => self.queue.push(at, Event::Begin(n)),
            }
            self.queue.push(self.faults[n].ends(), Event::End(n));
        }
    }

    /// The nodes that have disks come first.
    fn servers(&self) -> usize {
        self.nodes.iter().take_while(|node| !node.disks.is_empty()).count().max(1)
    }
}
