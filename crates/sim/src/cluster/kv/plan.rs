//! What a run does: drawn from a seed, and data from then on.

use remanence_pmem::PersistenceDomain;

use super::member::{IMAGE, LEDGER, LOG_DISK};
use crate::cluster::fault::{self, Fault, Scene};
use crate::cluster::shrink::Shrink;
use crate::cluster::{Clock, Kind, Speeds, Way};
use crate::rng::Rng;

/// How many nanoseconds a millisecond has.
const MS: u64 = 1_000_000;

/// The bounds within which a seed draws its run. The defaults are those of `rem sim`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// Members, and how many of them must have a change before it is acknowledged. `None`: the seed says so.
    pub quorum: Option<(u16, u16)>,
    /// Clients ask members whether the primary may be believed. Without, some of them read what was replaced.
    pub guarded: bool,
    /// Lines of the trace that a failed run shows.
    pub trace_lines: usize,
    /// How many runs the search for a smaller plan that fails may take.
    pub shrinking: usize,
}

impl Default for Params {
    fn default() -> Self {
        Self { quorum: None, guarded: true, trace_lines: 100, shrinking: 200 }
    }
}

/// What one run does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// How many members there are.
    pub members: u16,
    /// How many of them must have a change before it is acknowledged.
    pub acks: u16,
    /// Clients ask members whether the primary may be believed.
    pub guarded: bool,
    /// Where what is flushed is safe.
    pub domain: PersistenceDomain,
    /// A flush makes durable what it is for, and nothing else.
    pub flush_alone: bool,
    /// Segments of each member's log, of 4 KiB.
    pub segments: u64,
    /// Clients. One more comes at the end.
    pub clients: u16,
    /// So many of the clients only read: the others leave a primary that is silent when they change something.
    pub readers: u16,
    /// Operations of each of them, at most.
    pub operations: u32,
    /// Mean pause of a client between operations, in nanoseconds.
    pub pause: u64,
    /// Keys that they use.
    pub keys: u64,
    /// All values are long, so that logs are soon full.
    pub long: bool,
    /// Clients scan all keys now and then.
    pub scans: bool,
    /// Clients may write only the rooms that were handed out to them; else only who takes too long is kept from writing.
    pub rooms: bool,
    /// How long a primary may be silent, in nanoseconds.
    pub notice: u64,
    /// Milliseconds that a client may take to finish what it has begun.
    pub lease: u64,
    /// Milliseconds for which an image is looked at before it is sent.
    pub check: u64,
    /// Updates that a member has under way at a time.
    pub depth: usize,
    /// Bytes of records that a member applies for one order, about.
    pub portion: usize,
    /// How fast everything is.
    pub speeds: Speeds,
    /// The clock of each node: the members', the clients', and that of the one who comes last.
    pub clocks: Vec<Clock>,
    /// When all faults are over, in nanoseconds. The last client comes then, and no other one begins anything any more.
    pub heals: u64,
    /// What goes wrong until then. The number of each is its place among those that the seed has drawn.
    pub faults: Vec<(usize, Fault)>,
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn draw(seed: u64, params: &Params) -> Self {
        let mut rng = Rng::new(seed, 30);
        let rng = &mut rng;
        let of = rng.pick(&[(2, 1), (2, 2), (3, 2), (3, 2), (3, 2), (3, 2), (3, 3), (4, 2), (4, 3), (5, 3)]);
        let (members, acks) = params.quorum.unwrap_or(of);
        let clients = rng.pick(&[1, 2, 3, 4]);
        let nodes = usize::from(members + clients) + 1;
        let heals = rng.pick(&[1_000, 2_500, 5_000]) * MS;
        let operations = rng.pick(&[10, 40, 100]);
        let slow = rng.pick(&[1, 1, 1, 10]);
        let clock = |rng: &mut Rng| Clock {
            offset: if rng.one_in(2) { 0 } else { rng.below(1 << 50) },
            ppm: rng.pick(&[0, 50, -50, 5_000, -30_000, 30_000]),
        };
        let scene =
            Scene { servers: members.into(), clients: clients.into(), among_servers: true, ends: heals };
        let mut faults = fault::draw(&mut Rng::new(seed, 31), &scene);
        faults.extend(isolations(&mut Rng::new(seed, 32), &scene));
        faults.extend(hangs(&mut Rng::new(seed, 33), &scene));
        faults.extend(losses(&mut Rng::new(seed, 35), &scene));
        faults.extend(single_disks(&mut Rng::new(seed, 36), &scene));
        let more = &mut Rng::new(seed, 37);
        Self {
            members,
            acks,
            guarded: params.guarded,
            domain: rng.pick(&[
                PersistenceDomain::Adr,
                PersistenceDomain::Adr,
                PersistenceDomain::Adr,
                PersistenceDomain::Eadr,
                PersistenceDomain::PageCache,
            ]),
            flush_alone: rng.one_in(2),
            segments: rng.pick(&[12, 12, 16, 40]),
            clients,
            readers: rng.below(u64::from(clients)) as u16,
            operations,
            // As long as there are faults, or all at once.
            pause: rng.pick(&[MS / 10, heals / u64::from(operations) / 4, heals / u64::from(operations)]),
            keys: rng.pick(&[1, 3, 10]),
            long: more.one_in(3),
            scans: more.one_in(2),
            rooms: more.one_in(2),
            notice: rng.pick(&[160, 200, 200, 400]) * MS,
            lease: rng.pick(&[100, 500, 2000]),
            check: Rng::new(seed, 34).pick(&[0, 50, 3000]),
            depth: rng.pick(&[1, 4, 32]),
            portion: rng.pick(&[1000, 3000, 4 << 20]),
            speeds: Speeds {
                links: (0..nodes).map(|_| rng.pick(&[1_000, 5_000, 50_000]) * slow).collect(),
                jitter: rng.pick(&[200, 2_000, 100_000]),
                disks: (0..nodes).map(|_| rng.pick(&[500, 5_000, 100_000]) * slow).collect(),
                retry: rng.pick(&[3, 50, 500]) * MS,
            },
            clocks: (0..nodes).map(|_| clock(rng)).collect(),
            heals,
            faults: (0..).zip(faults).collect(),
        }
    }

    /// Leaves out all faults but these.
    pub fn keep(&mut self, numbers: &[usize]) {
        self.faults.retain(|(number, _)| numbers.contains(number));
    }

    /// Names of the nodes.
    pub(super) fn names(&self) -> Vec<String> {
        let members = (0..self.members).map(|n| format!("member {n}"));
        let clients = (0..self.clients).map(|n| format!("client {n}"));
        members.chain(clients).chain(["the last client".to_owned()]).collect()
    }

    /// What goes wrong, in sentences.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let names = self.names();
        self.faults.iter().map(|(number, fault)| format!("{number:>2}  {}", fault.sentence(&names))).collect()
    }
}

/// Times in which a member is cut off from all others, and not from its clients: a primary that is replaced, and serves.
fn isolations(rng: &mut Rng, scene: &Scene) -> Vec<Fault> {
    let mut faults = Vec::new();
    for _ in 0..rng.pick(&[0, 0, 1, 3]) {
        let at = rng.below(scene.ends - 1);
        let lasts = (1 + rng.exponential(scene.ends / 4)).min(scene.ends - at);
        // The first members lead first.
        let node = if rng.one_in(2) { 0 } else { rng.index(scene.servers) };
        let way = rng.pick(&[Way::Both, Way::Both, Way::Out, Way::In]);
        for peer in (0..scene.servers).filter(|peer| *peer != node) {
            faults.push(Fault { at, lasts, node, kind: Kind::Partition(peer, way), salt: 0 });
        }
    }
    faults
}

/// Times in which the disks of a member do not answer: for less than a primary may be silent, or for longer than anybody waits.
fn hangs(rng: &mut Rng, scene: &Scene) -> Vec<Fault> {
    let one = |rng: &mut Rng| {
        let at = rng.below(scene.ends - 1);
        let lasts = (1 + rng.exponential(scene.ends / 3)).min(scene.ends - at);
        Fault { at, lasts, node: rng.index(scene.servers), kind: Kind::Hangs, salt: 0 }
    };
    let count = rng.pick(&[0, 0, 1, 3]);
    (0..count).map(|_| one(rng)).collect()
}

/// Disks that are lost one after the other: many members are sent an image, and before each the log must not be trimmed too far.
fn losses(rng: &mut Rng, scene: &Scene) -> Vec<Fault> {
    let one = |rng: &mut Rng| {
        let at = rng.below(scene.ends - 1);
        let lasts = (1 + rng.exponential(scene.ends / 50)).min(scene.ends - at);
        Fault { at, lasts, node: rng.index(scene.servers), kind: Kind::DiskLost, salt: rng.u64() }
    };
    let count = rng.pick(&[0, 0, 0, 4, 12]);
    (0..count).map(|_| one(rng)).collect()
}

/// Times in which one disk of a member fails and its others do not: mostly that of its image, which then stays behind its log. Sometimes
/// another member loses all that it has meanwhile.
fn single_disks(rng: &mut Rng, scene: &Scene) -> Vec<Fault> {
    let mut faults = Vec::new();
    for _ in 0..rng.pick(&[0, 0, 0, 1, 2]) {
        let at = rng.below(scene.ends - 1);
        let lasts = (1 + rng.exponential(scene.ends / 3)).min(scene.ends - at);
        let (node, disk) = (rng.index(scene.servers), rng.pick(&[IMAGE, IMAGE, IMAGE, LEDGER, LOG_DISK]));
        faults.push(Fault { at, lasts, node, kind: Kind::DiskFails(disk), salt: rng.u64() });
        if rng.one_in(2) {
            let other = (node + 1) % scene.servers;
            let at = at + rng.below(lasts);
            let lasts = (1 + rng.exponential(scene.ends / 50)).min(scene.ends - at);
            faults.push(Fault { at, lasts, node: other, kind: Kind::DiskLost, salt: rng.u64() });
        }
    }
    faults
}

impl Shrink for Plan {
    /// Halves of the faults first, then each of them, then fewer operations.
    fn less(&self) -> Vec<Self> {
        let with = |change: &dyn Fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            plan
        };
        let mut less = Vec::new();
        let count = self.faults.len();
        if count > 3 {
            less.push(with(&|plan| drop(plan.faults.drain(..count / 2))));
            less.push(with(&|plan| plan.faults.truncate(count / 2)));
        }
        less.extend((0..count).map(|n| with(&|plan| _ = plan.faults.remove(n))));
        if self.operations > 1 {
            less.push(with(&|plan| plan.operations /= 2));
            less.push(with(&|plan| plan.operations -= 1));
        }
        less
    }
}
