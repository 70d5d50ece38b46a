//! What goes wrong in a run, as data: a list that a seed draws, and of which any part can be left out.

use std::fmt;

use super::aim::Aim;
use super::datagram::Harm;
use crate::rng::Rng;

/// In which direction nothing goes through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Neither from the node nor to it.
    Both,
    /// What the node sends does not arrive.
    Out,
    /// What is sent to the node does not arrive.
    In,
}

/// What goes wrong with a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It does nothing, and its connections stay: SIGSTOP.
    Pause,
    /// Its process dies.
    Kill,
    /// Its machine loses its power.
    PowerLoss,
    /// It loses its power after so many more syncs, in the middle of whatever it does then.
    PowerLossWithin(u64),
    /// It loses its power, and its disks with it, if others have what was on them.
    DiskLost,
    /// It loses its power, and something on its disks rots that it must notice, if others have what was on them.
    Rots,
    /// Nothing becomes durable on its disks any more, until they are replaced by healthy ones with what was durable.
    MediumFails,
    /// One sync fails.
    SyncFails,
    /// Nothing becomes durable on this one of its disks any more, until it is replaced by a healthy one with what was durable.
    DiskFails(usize),
    /// Its disks answer nothing, and what they were asked for is done at the end.
    Hangs,
    /// Its disks take so many times as long.
    SlowDisk(u32),
    /// What it sends and is sent takes so many times as long.
    SlowLink(u32),
    /// Of the datagrams that it sends and is sent this happens to so many of a hundred.
    Datagrams(Harm, u32),
    /// Nothing goes through between it and this node.
    Partition(usize, Way),
    /// This client loses its connections to all servers, and what it has sent arrives at the end, if the servers still listen to it.
    Linger(usize),
    /// What it says, when the protocol has come to where it is aimed. This fault's own time is how long that is waited for.
    Aimed(Aim),
}

/// Something that goes wrong for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// When it begins, in nanoseconds.
    pub at: u64,
    /// How long it lasts.
    pub lasts: u64,
    /// The node that it happens to.
    pub node: usize,
    /// What it is.
    pub kind: Kind,
    /// What decides which stores a loss of power takes back.
    pub salt: u64,
}

impl Fault {
    /// When it is over.
    #[must_use]
    pub const fn ends(&self) -> u64 {
        self.at + self.lasts
    }

    /// A sentence with the names of the nodes.
    pub(super) fn sentence(&self, names: &[String]) -> String {
        let name = |node: usize| names.get(node).map_or("nobody", |name| &name[..]);
        let node = name(self.node);
        let what = match self.kind {
            Kind::Pause => format!("{node} is stopped"),
            Kind::Kill => format!("the process of {node} is killed"),
            Kind::PowerLoss => format!("{node} loses its power"),
            Kind::PowerLossWithin(syncs) => {
                format!("{node} loses its power within its next {} syncs", syncs + 1)
            }
            Kind::DiskLost => format!("{node} loses its power and its disk"),
            Kind::Rots => format!("{node} loses its power, and something on its disk rots"),
            Kind::MediumFails => format!("the disk of {node} fails"),
            Kind::SyncFails => format!("one sync of {node} fails, and it is restarted"),
            Kind::DiskFails(disk) => format!("disk {disk} of {node} fails, and no other one"),
            Kind::Hangs => format!("the disk of {node} does not answer"),
            Kind::SlowDisk(times) => format!("the disk of {node} is {times} times as slow"),
            Kind::SlowLink(times) => format!("the link of {node} is {times} times as slow"),
            Kind::Datagrams(harm, percent) => {
                format!("{percent} % of the datagrams from and to {node} {}", harm.sentence())
            }
            Kind::Linger(client) => {
                let client = name(client);
                format!("{client} loses its connections, and what it has sent is held up")
            }
            Kind::Aimed(aim) => aim.to_string(),
            Kind::Partition(peer, Way::Both) => format!("{node} and {} do not hear each other", name(peer)),
            Kind::Partition(peer, Way::Out) => format!("{} does not hear {node}", name(peer)),
            Kind::Partition(peer, Way::In) => format!("{node} does not hear {}", name(peer)),
        };
        format!("{} to {}: {what}", Time(self.at), Time(self.ends()))
    }
}

/// A time as people read it.
pub(super) struct Time(pub(super) u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ms", self.0 as f64 / 1e6)
    }
}

/// What faults are drawn for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene {
    /// The first nodes, which have disks.
    pub(super) servers: usize,
    /// Those behind them, which have none.
    pub(super) clients: usize,
    /// Servers are cut off from each other as well, and not only from clients.
    pub(super) among_servers: bool,
    /// All faults are over by then.
    pub(super) ends: u64,
}

impl Scene {
    /// One whose servers are cut off from clients only.
    pub(super) fn new(servers: u16, clients: u16, ends: u64) -> Self {
        Self { servers: servers.into(), clients: clients.into(), among_servers: false, ends }
    }

    /// How many nodes a run has: one more client comes at the end.
    pub(super) const fn nodes(&self) -> usize {
        self.servers + self.clients + 1
    }
}

/// Faults for a seed. Each seed leaves some kinds out and prefers others, as a mix of everything hides what much of one thing
/// shows.
pub(super) fn draw(rng: &mut Rng, scene: &Scene) -> Vec<Fault> {
    let mut weights = [0; 10];
    for weight in &mut weights {
        *weight = if rng.one_in(3) { 0 } else { rng.between(1, 4) };
    }
    let sum: u64 = weights.iter().sum();
    if sum == 0 {
        return Vec::new();
    }
    let count = rng.pick(&[0, 1, 2, 3, 5, 8, 12, 16]);
    let long = rng.pick(&[scene.ends / 100, scene.ends / 10, scene.ends / 3]);
    let mut faults: Vec<Fault> = (0..count).map(|_| one(rng, scene, &weights, sum, long)).collect();
    if rng.one_in(3) {
        // All of them at once, late: what was acknowledged by then must be there.
        let at = scene.ends - rng.between(1, scene.ends / 4);
        let of = |node| (node, rng.u64());
        for (node, salt) in (0..scene.servers).map(of).collect::<Vec<_>>() {
            let lasts = rng.between(1, scene.ends - at);
            faults.push(Fault { at, lasts, node, kind: Kind::PowerLoss, salt });
        }
    }
    faults.sort_by_key(|fault| fault.at);
    faults
}

fn one(rng: &mut Rng, scene: &Scene, weights: &[u64; 10], sum: u64, long: u64) -> Fault {
    let at = rng.below(scene.ends - 1);
    let lasts = (1 + rng.exponential(long)).min(scene.ends - at);
    let mut at_weight = rng.below(sum);
    let index = weights.iter().position(|weight| {
        let here = at_weight < *weight;
        at_weight = at_weight.saturating_sub(*weight);
        here
    });
    let all = scene.servers + scene.clients;
    let server = rng.index(scene.servers);
    // Mostly servers: of writers there are new ones anyway.
    let any = if rng.one_in(3) { rng.index(all) } else { server };
    let (node, kind) = match index.expect("below the sum") {
        0 => (any, Kind::Pause),
        1 => (any, Kind::Kill),
        2 => (any, Kind::PowerLoss),
        3 => (server, Kind::PowerLossWithin(rng.below(12))),
        4 => (server, Kind::DiskLost),
        5 => (server, Kind::MediumFails),
        6 => (server, Kind::SyncFails),
        7 => (server, Kind::SlowDisk(rng.pick(&[10, 100, 2000]))),
        8 => (any, Kind::SlowLink(rng.pick(&[10, 100, 1000]))),
        _ => {
            let to_clients = scene.clients > 0 && !scene.among_servers;
            let peer = if to_clients { scene.servers + rng.index(scene.clients) } else { rng.index(all) };
            if to_clients && rng.one_in(3) {
                (server, Kind::Linger(peer))
            } else {
                (server, Kind::Partition(peer, rng.pick(&[Way::Both, Way::Out, Way::In])))
            }
        }
    };
    // It waits for what the node does.
    let within = matches!(kind, Kind::PowerLossWithin(_));
    let lasts = if within { lasts.max((scene.ends - at) / 2) } else { lasts };
    Fault { at, lasts, node, kind, salt: rng.u64() }
}
