//! Three replicas in processes of their own, killed with SIGKILL and held with SIGSTOP under load, the leader above all. Nothing acknowledged is lost, nobody reads
//! what is old, and each key's history over all changes of the leader is one that a register could have had.
//!
//! `REMANENCE_ROUNDS=N` does so N times, `REMANENCE_SEED=n` draws another story. What happens when does not follow from the seed alone, as the machine has its say.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use remanence_effort::{Process, again, rounds};
use remanence_pmem::crash_image::{Choices as _, Seeded};
use remanence_sim::history::{Event, History, Kind, NEVER};
use remanence_smr::map::{Change, Outcome, Value};
use remanence_smr::{Client, ClientError, ClientOptions, Map, NOBODY, Replica, Status, Stop};
use remanence_verbs::Context;
use tempfile::TempDir;

use crate::common::{PATIENCE, clients_of, device, members, options, own_device, wait};

const PART: &str = "REMANENCE_SMR_PART";
const REPLICAS: usize = 3;
const KEYS: usize = 4;
const WORKERS: u32 = 3;

/// Not a test by itself: a replica that is killed.
#[test]
fn be_a_replica() {
    let Ok(part) = std::env::var(PART) else { return };
    let mut words = part.splitn(3, ' ');
    let mut word = || words.next().expect("three words");
    let me: usize = word().parse().expect("a number");
    let members: Vec<SocketAddr> = word().split(',').map(|at| at.parse().expect("an address")).collect();
    let options = options(word().as_ref(), me, &members);
    let mut replica = Replica::<Map>::bind(&device(members[me].ip()), &options).expect("a replica");
    println!("\nready {}", replica.addr());
    replica.run(&Stop::new()).expect("it takes part");
}

struct Cluster {
    dir: TempDir,
    members: Vec<SocketAddr>,
    processes: Vec<Option<Process>>,
    context: Context,
}

impl Cluster {
    fn start(&mut self, me: usize) {
        let names: Vec<String> = self.members.iter().map(ToString::to_string).collect();
        let file = self.dir.path().join(format!("{me}.log"));
        let part = format!("{me} {} {}", names.join(","), file.display());
        let mut command = again("kill::be_a_replica");
        let mut process = Process::start(command.env(PART, part).stdin(Stdio::null()));
        assert!(process.after("ready ").is_some(), "replica {me} does not start");
        self.processes[me] = Some(process);
    }

    fn client(&self) -> Client {
        let options = ClientOptions::default().patience(PATIENCE);
        Client::connect(&self.context, &clients_of(&self.members), options).expect("a client")
    }

    /// Who leads, of those that are asked.
    fn leader(&self, of: impl Fn(usize) -> bool) -> usize {
        let (mut client, begin) = (self.client(), Instant::now());
        loop {
            for me in (0..REPLICAS).filter(|me| of(*me)) {
                if client.status(me).is_ok_and(|status: Status| status.term > 0 && status.leader != NOBODY) {
                    return me;
                }
            }
            assert!(begin.elapsed() < PATIENCE, "nobody leads");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// What all that ask share.
struct Shared {
    begin: Instant,
    is_over: AtomicBool,
    states: AtomicU64,
    answered: AtomicU64,
}

impl Shared {
    fn now(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }
}

fn key(n: usize) -> [u8; 1] {
    [b'a' + n as u8]
}

fn state_of(value: &Value) -> u64 {
    u64::from_le_bytes(value.bytes[..].try_into().expect("a state"))
}

/// Asks one thing after the other until it is over; what it was told.
fn works(mut client: Client, who: u32, shared: &Shared, seed: u64) -> Vec<(usize, Event)> {
    let (mut choices, mut events) = (Seeded::new(seed), Vec::new());
    // What it has seen last of each key: the version, and the state.
    let mut seen = [(0, 0); KEYS];
    while !shared.is_over.load(Ordering::Relaxed) {
        let (at, what) = (choices.pick(KEYS), choices.pick(4));
        let (key, new) = (key(at), shared.states.fetch_add(1, Ordering::Relaxed) + 1);
        let invoked = shared.now();
        let mut told = |kind: Kind, known: bool| {
            let returned = if known { shared.now() } else { NEVER };
            shared.answered.fetch_add(u64::from(known), Ordering::Relaxed);
            events.push((at, Event { kind, client: who, invoked, returned, maybe: !known }));
        };
        let (version, state) = seen[at];
        let value = &new.to_le_bytes()[..];
        let outcome = |answer: Result<Vec<u8>, ClientError>| match answer {
            Ok(answer) => Some(Outcome::parse(&answer).expect("an outcome")),
            Err(ClientError::Unknown(_) | ClientError::Unanswered(_)) => None,
            Err(other) => panic!("{other}"),
        };
        match what {
            0 => match client.query(&key) {
                Ok(answer) => {
                    let found = Value::parse(&answer).expect("a value");
                    seen[at] = found.as_ref().map_or((0, 0), |value| (value.version, state_of(value)));
                    told(Kind::Read(seen[at].1), true);
                }
                Err(error) => panic!("{error}"),
            },
            1 | 2 => match outcome(client.call(&Change::Put { key: &key, value }.emit())) {
                Some(Outcome::Done(version)) => {
                    seen[at] = (version, new);
                    told(Kind::Write(new), true);
                }
                None => told(Kind::Write(new), false),
                other => panic!("{other:?}"),
            },
            _ => match outcome(client.call(&Change::Swap { key: &key, version, value }.emit())) {
                Some(Outcome::Done(version)) => {
                    seen[at] = (version, new);
                    told(Kind::Swap(state, new), true);
                }
                Some(Outcome::Differs(_)) => told(Kind::NoSwap(state), true),
                None => told(Kind::Swap(state, new), false),
                other => panic!("{other:?}"),
            },
        }
        std::thread::sleep(Duration::from_micros(choices.pick(2000) as u64));
    }
    events
}

#[test]
fn nothing_acknowledged_is_lost_whoever_is_killed_or_held() {
    let seed = std::env::var("REMANENCE_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let members = members(REPLICAS);
    let context = own_device();
    let dir = tempfile::tempdir().expect("a directory");
    let processes = (0..REPLICAS).map(|_| None).collect();
    let mut cluster = Cluster { dir, members, processes, context };
    (0..REPLICAS).for_each(|me| cluster.start(me));
    let shared = &Shared {
        begin: Instant::now(),
        is_over: AtomicBool::new(false),
        states: AtomicU64::new(0),
        answered: AtomicU64::new(0),
    };
    let mut choices = Seeded::new(seed);
    let all = rounds(4, 100);
    let mut gaps = Vec::new();
    let events = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|who| {
                let client = cluster.client();
                scope.spawn(move || works(client, who, shared, seed << 8 ^ u64::from(who)))
            })
            .collect();
        let mut probe = cluster.client();
        for round in 0..all {
            std::thread::sleep(Duration::from_millis(50 + choices.pick(300) as u64));
            let leader = cluster.leader(|_| true);
            let victim = if choices.pick(4) == 0 { choices.pick(REPLICAS) } else { leader };
            let is_held = choices.pick(3) == 0;
            let (begin, before) = (Instant::now(), shared.answered.load(Ordering::Relaxed));
            if is_held {
                cluster.processes[victim].as_ref().expect("it runs").hold();
            } else {
                cluster.processes[victim].take().expect("it runs").kill();
            }
            // The others go on.
            let others = cluster.leader(|me| me != victim);
            while shared.answered.load(Ordering::Relaxed) < before + 20 {
                assert!(begin.elapsed() < PATIENCE, "round {round}: nobody is answered without {victim}");
                std::thread::sleep(Duration::from_millis(1));
            }
            gaps.push(begin.elapsed());
            if is_held {
                cluster.processes[victim].as_ref().expect("it is there").go_on();
            } else {
                cluster.start(victim);
            }
            let applied = wait(&mut probe, others, "it answers", |_| true).applied;
            let is_back = |status: &Status| status.applied >= applied && status.connected == 2;
            wait(&mut probe, victim, "it is back, with all", is_back);
        }
        shared.is_over.store(true, Ordering::Relaxed);
        workers.into_iter().flat_map(|worker| worker.join().expect("a client")).collect::<Vec<_>>()
    });
    // Nothing but what is in their files.
    for process in &mut cluster.processes {
        process.take().expect("it runs").kill();
    }
    (0..REPLICAS).for_each(|me| cluster.start(me));
    let mut client = cluster.client();
    println!("{} answers, and 20 of them in {gaps:?} without one", events.len());
    for at in 0..KEYS {
        let invoked = shared.now();
        let found = Value::parse(&client.query(&key(at)).expect("it is answered")).expect("a value");
        let kind = Kind::Read(found.as_ref().map_or(0, state_of));
        let last = Event { kind, client: WORKERS, invoked, returned: shared.now(), maybe: false };
        let of_key = events.iter().filter(|(of, _)| *of == at).map(|(_, event)| *event);
        let history = History { start: 0, events: of_key.chain([last]).collect() };
        assert!(
            history.is_linearizable(),
            "no register could have had this, seed {seed}:\n{}",
            history.json_lines("smr", &key(at))
        );
    }
}
