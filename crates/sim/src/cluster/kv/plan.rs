//! What a run does: drawn from a seed, and data from then on.

use super::member::{IMAGE, LEDGER, LOG_DISK};
use super::{Node, Work};
use crate::cluster::aim;
use crate::cluster::fault::{self, Fault, Scene};
use crate::cluster::service::{domain, play};
use crate::cluster::{Clock, Kind, Moment, Outcome, Params, Plan, Service, Speeds, Way};
use crate::rng::Rng;

/// How many nanoseconds a millisecond has.
const MS: u64 = 1_000_000;

/// What faults are aimed at.
const MOMENTS: [Moment; 9] = [
    Moment::Promise,
    Moment::Promise,
    Moment::Cut,
    Moment::Adopt,
    Moment::Update,
    Moment::Doubt,
    Moment::Doubt,
    Moment::Try,
    Moment::Serve,
];

/// What only runs of the store have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kv {
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
    /// Milliseconds that a primary rests between two scrubs; 0: it does not scrub.
    pub scrub: u64,
    /// Updates that a member has under way at a time.
    pub depth: usize,
    /// Bytes of records that a member applies for one order, about.
    pub portion: usize,
}

impl Service for Kv {
    const NAME: &'static str = "kv";
    const SERVER: &'static str = "member";
    type Work = Work;
    /// The longest time in which no operation came to its end, before all faults were over, in nanoseconds.
    type Measured = u64;

    fn draw(seed: u64, params: &Params) -> Plan<Self> {
        const QUORUMS: [(u16, u16); 10] =
            [(2, 1), (2, 2), (3, 2), (3, 2), (3, 2), (3, 2), (3, 3), (4, 2), (4, 3), (5, 3)];
        let rng = &mut Rng::new(seed, 30);
        let (servers, acks) = params.draw_quorum(rng, &QUORUMS);
        let clients = rng.pick(&[1, 2, 3, 4]);
        let heals = rng.pick(&[1_000, 2_500, 5_000]) * MS;
        let operations = rng.pick(&[10, 40, 100]);
        let slow = rng.pick(&[1, 1, 1, 10]);
        let scene = Scene { among_servers: true, ..Scene::new(servers, clients, heals) };
        let mut faults = fault::draw(&mut Rng::new(seed, 31), &scene);
        faults.extend(isolations(&mut Rng::new(seed, 32), &scene));
        faults.extend(hangs(&mut Rng::new(seed, 33), &scene));
        faults.extend(losses(&mut Rng::new(seed, 35), &scene));
        faults.extend(single_disks(&mut Rng::new(seed, 36), &scene));
        aim::add(&mut Rng::new(seed, 38), &scene, &MOMENTS, &mut faults);
        let (links, disks) = ([1_000, 5_000, 50_000], [500, 5_000, 100_000]);
        let more = &mut Rng::new(seed, 37);
        Plan::of(
            params,
            acks,
            (&scene, faults),
            (domain(rng, 3), rng.one_in(2)),
            Self {
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
                scrub: Rng::new(seed, 39).pick(&[0, 0, 100, 1000]),
                depth: rng.pick(&[1, 4, 32]),
                portion: rng.pick(&[1000, 3000, 4 << 20]),
            },
            (
                Speeds::draw(
                    rng,
                    scene.nodes(),
                    slow,
                    [links, [200, 2_000, 100_000], disks, [3 * MS, 50 * MS, 500 * MS]],
                ),
                Clock::draw(rng, scene.nodes(), &[0, 50, -50, 5_000, -30_000, 30_000]),
            ),
        )
    }

    fn run(plan: &Plan<Self>, seed: u64, trace_lines: usize) -> Outcome<Self> {
        play::<Node>(plan, seed, trace_lines)
    }

    fn clients(&self) -> Vec<(&'static str, u16)> {
        vec![("client", self.clients)]
    }

    fn lengths(&mut self) -> Vec<(&'static str, &mut u32)> {
        vec![("operations", &mut self.operations)]
    }

    fn sentence(plan: &Plan<Self>) -> String {
        format!(
            "a store on {} members, {} of them acknowledge; {} clients, up to {} operations each on {} keys",
            plan.servers, plan.acks, plan.clients, plan.operations, plan.keys
        )
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
