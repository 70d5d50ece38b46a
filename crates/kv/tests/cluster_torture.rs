//! A store on three real processes, killed with SIGKILL at any moment under load, with and without their disks. Nothing
//! acknowledged is lost, nothing torn is ever served, and each key's history, over all takeovers and rebuilds, is one that a
//! register could have had.
//!
//! `REMANENCE_KV_TORTURE=rounds` kills so often (3 if it is not set), `REMANENCE_KV_SEED=n` draws another story. What is killed
//! when does not follow from the seed alone, as the machine has its say.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "real processes take real time")]

#[path = "torture/board.rs"]
mod board;
#[path = "torture/client.rs"]
mod client;
#[path = "live/common.rs"]
mod live;
#[path = "common/porcupine.rs"]
mod porcupine;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use board::{Board, LANES, Lane};
use client::{KEYS, first_write, key, state};
use porcupine::{Named, Porcupine};
use remanence_kv::Geometry;
use remanence_kv::history::{Event, History, Kind, NEVER, State};
use remanence_kv::live::{ConnectOptions, Member, MemberOptions, MemberStats, Role, Store};
use remanence_pmem::crash_image::{Choices, Seeded};
use remanence_verbs::Context;

const PART: &str = "REMANENCE_KV_CLUSTER_PART";
const MEMBERS: usize = 3;
const CLIENTS: u64 = 2;
/// Rounds between two looks at everything.
const EPOCH: u64 = 6;
const PORT: u16 = 7471;
/// How long this test waits for what must come: much longer than it takes.
const PATIENCE: Duration = Duration::from_secs(180);
/// Small regions, so that logs are cleaned all the time, and a small log, so that images are needed.
const GEOMETRY: Geometry = Geometry { size: 4 << 20, region_len: 64 << 10, segment_len: 16 << 10, heads: 2 };
const SIZE: u64 = GEOMETRY.size + 4096;

fn asked(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn addrs(list: &str) -> Vec<SocketAddr> {
    list.split(',').map(|text| text.parse().expect("an address")).collect()
}

/// Not a test by itself: the member that is killed.
#[test]
fn be_a_member() {
    let Ok(part) = std::env::var(PART) else { return };
    let [at, list, dir] = part.splitn(3, ' ').collect::<Vec<_>>()[..] else { return };
    let at: SocketAddr = at.parse().expect("an address");
    let members = addrs(list).into_iter().map(|addr| (addr.to_string(), addr)).collect();
    let context = Context::open(remanence_verbs::Options::udp(at.ip())).expect("a device on loopback");
    let options = MemberOptions::directory(dir, members)
        .size(SIZE)
        .log(1 << 20)
        .geometry(GEOMETRY)
        .keys(64)
        .notice(Duration::from_millis(700))
        .lease(Duration::from_secs(2));
    let mut member = Member::bind(&context, at.port(), options).expect("a member");
    println!("\nready {}", member.addr());
    member.run(&AtomicBool::new(false)).expect("it is a member");
}

/// Not a test by itself: a client that is killed.
#[test]
fn be_a_client() {
    let Ok(part) = std::env::var(PART) else { return };
    let [list, lane, first, seed, board] = part.splitn(5, ' ').collect::<Vec<_>>()[..] else { return };
    let lane = Lane::new(Board::open(Path::new(board)), lane.parse().expect("a number"));
    let (first, seed) = (first.parse().expect("a number"), seed.parse().expect("a number"));
    let (context, members) = (live::context(), addrs(list));
    client::work_at(|options| Store::connect_members(&context, &members, options), lane, first, seed);
}

/// A process of ours. It ends with its holder, however that ends.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(test: &str, part: String) -> Process {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(PART, part);
    Process(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts"))
}

struct Torture {
    dirs: Vec<PathBuf>,
    board: PathBuf,
    at: Vec<SocketAddr>,
    members: Vec<Option<Process>>,
    choices: Seeded,
    /// Members, disks, clients.
    killed: (u64, u64, u64),
    context: Context,
}

struct Life {
    lane: u64,
    process: Process,
    /// When it was known to be dead.
    killed: Option<u64>,
}

impl Torture {
    fn list(&self) -> String {
        self.at.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    fn serve(&mut self, n: usize) {
        let part = format!("{} {} {}", self.at[n], self.list(), self.dirs[n].display());
        let mut member = start("be_a_member", part);
        let mut said = BufReader::new(member.0.stdout.take().expect("piped")).lines();
        let ready = said.by_ref().map_while(Result::ok).any(|line| line.starts_with("ready "));
        assert!(ready, "member {n} does not start");
        self.members[n] = Some(member);
    }

    fn client(&mut self, epoch: u64, lane: u64) -> Life {
        assert!(lane < LANES, "there are not so many lanes");
        let seed = self.choices.pick(1 << 30);
        let part =
            format!("{} {lane} {} {seed} {}", self.list(), first_write(epoch, lane), self.board.display());
        Life { lane, process: start("be_a_client", part), killed: None }
    }

    fn control(&self) -> Store {
        let options: ConnectOptions = live::options().patience(PATIENCE);
        Store::connect_members(&self.context, &self.at, options).expect("a primary")
    }

    /// Waits until the members say so.
    fn wait<T>(&self, what: &str, is: impl Fn(&[Option<MemberStats>]) -> Option<T>) -> T {
        let begin = Instant::now();
        let mut store = self.control();
        loop {
            let said: Vec<Option<MemberStats>> =
                store.members().expect("members").into_iter().map(|(_, said)| said.ok()).collect();
            if let Some(found) = is(&said) {
                return found;
            }
            assert!(begin.elapsed() < PATIENCE, "{what}: {said:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Which member serves: of two that say so, the later.
    fn primary(&self) -> (usize, u64) {
        self.wait("a primary", |said| {
            let primaries = said.iter().enumerate().filter_map(|(n, said)| Some((n, said.as_ref()?)));
            let primaries = primaries.filter(|(_, said)| said.role == Role::Primary);
            primaries.map(|(n, said)| (n, said.epoch.0)).max_by_key(|(_, epoch)| *epoch)
        })
    }

    /// Every member has an image, and follows.
    fn whole(&self) {
        self.wait("all members are whole", |said| {
            let all: Vec<&MemberStats> = said.iter().flatten().collect();
            let primary =
                all.iter().filter(|said| said.role == Role::Primary).max_by_key(|said| said.epoch)?;
            let whole = |said: &&MemberStats| said.complete && said.applied >= said.first && said.acks > 0;
            let settled = all.len() == MEMBERS && primary.lost.is_empty() && primary.of == 0;
            (settled && all.iter().all(whole)).then_some(())
        });
    }

    /// Waits until clients have done something, more or less of it.
    fn under_load(&mut self, board: &Board, lives: &[Life]) {
        let living: Vec<u64> =
            lives.iter().filter(|life| life.killed.is_none()).map(|life| life.lane).collect();
        let done = || living.iter().map(|lane| board.ended(*lane)).sum::<u64>();
        let enough = done() + 3 + self.choices.pick(60) as u64;
        let begin = Instant::now();
        while done() < enough {
            assert!(begin.elapsed() < PATIENCE, "nothing goes on any more");
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    fn round(&mut self, board: &Board, lives: &mut Vec<Life>, epoch: u64, restarts: &mut Vec<u64>) {
        self.under_load(board, lives);
        let (primary, served) = self.primary();
        let follower = (primary + 1 + self.choices.pick(MEMBERS - 1)) % MEMBERS;
        let (victims, disk) = match self.choices.pick(12) {
            0..5 => (vec![primary], false),
            5..7 => (vec![follower], false),
            7 => (vec![follower], true),
            8 => (vec![primary], true),
            9 => (vec![primary, follower], false),
            10 => ((0..MEMBERS).collect(), false),
            _ => {
                let living: Vec<usize> = (0..lives.len()).filter(|n| lives[*n].killed.is_none()).collect();
                let victim = &mut lives[living[self.choices.pick(living.len())]];
                victim.process.0.kill().expect("it is ours");
                victim.process.0.wait().expect("it is dead");
                victim.killed = Some(board.tick());
                self.killed.2 += 1;
                let life = self.client(epoch, lives.len() as u64);
                lives.push(life);
                (vec![], false)
            }
        };
        // Fewer disks than acknowledge are lost at a time.
        let disk = disk && {
            self.whole();
            true
        };
        for victim in &victims {
            self.members[*victim] = None;
            self.killed.0 += 1;
        }
        if disk {
            std::fs::remove_dir_all(&self.dirs[victims[0]]).expect("it was there");
            self.killed.1 += 1;
        }
        // While enough are left, clients go on.
        if victims.len() == 1 {
            self.under_load(board, lives);
        }
        for victim in &victims {
            self.serve(*victim);
        }
        if victims.contains(&primary) {
            self.wait("another primary", |said| {
                let later = |said: &&MemberStats| said.role == Role::Primary && said.epoch.0 > served;
                said.iter().flatten().any(|said| later(&said)).then_some(())
            });
            // Nothing that the one before was asked for can have an effect any more.
            restarts.push(board.tick());
        }
    }

    /// Some rounds, and then everything is looked at. Returns the histories.
    fn epoch(
        &mut self,
        epoch: u64,
        rounds: u64,
        starts: &mut BTreeMap<u64, State>,
    ) -> BTreeMap<u64, History> {
        let board = Board::create(&self.board);
        let mut lives: Vec<Life> = Vec::new();
        for _ in 0..CLIENTS {
            let life = self.client(epoch, lives.len() as u64);
            lives.push(life);
        }
        let mut restarts: Vec<u64> = Vec::new();
        for _ in 0..rounds {
            self.round(&board, &mut lives, epoch, &mut restarts);
        }
        self.under_load(&board, &lives);
        board.stop();
        let begin = Instant::now();
        for life in lives.iter_mut().filter(|life| life.killed.is_none()) {
            let status = loop {
                if let Some(status) = life.process.0.try_wait().expect("it is ours") {
                    break status;
                }
                assert!(begin.elapsed() < PATIENCE, "a client does not end");
                std::thread::sleep(Duration::from_millis(1));
            };
            assert!(status.success(), "a client failed, see above");
        }
        // The end of it: everybody is killed, and starts again.
        self.members.iter_mut().for_each(|member| *member = None);
        (0..MEMBERS).for_each(|n| self.serve(n));
        let mut store = self.control();
        restarts.push(board.tick());
        let bound = |moment: u64| restarts.iter().copied().find(|restart| *restart > moment).unwrap_or(NEVER);
        let mut histories: BTreeMap<u64, History> = (0..KEYS)
            .map(|key| (key, History { start: starts.get(&key).copied().unwrap_or(0), events: Vec::new() }))
            .collect();
        for life in &lives {
            for (key, event) in board.events(life.lane, life.killed, bound) {
                histories.get_mut(&key).expect("one of the keys").events.push(event);
            }
        }
        for (number, history) in &mut histories {
            let invoked = board.tick();
            let found = store.get(&key(*number)).expect("a GET");
            let state = state(*number, found.as_ref());
            let state = state.unwrap_or_else(|| panic!("key {number} is torn: {found:?}"));
            let kind = Kind::Read(state);
            let event = Event { kind, client: LANES as u32, invoked, returned: board.tick(), maybe: false };
            history.events.push(event);
            starts.insert(*number, state);
        }
        histories
    }
}

#[test]
fn nothing_is_lost_or_torn_whichever_member_dies() {
    let rounds = asked("REMANENCE_KV_TORTURE").unwrap_or(3);
    let seed = asked("REMANENCE_KV_SEED").unwrap_or(1);
    let (dir, boards) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir_in("/dev/shm").expect("a directory"));
    let mut torture = Torture {
        dirs: (0..MEMBERS).map(|n| dir.path().join(format!("m{n}"))).collect(),
        board: boards.path().join("board"),
        at: (0..MEMBERS).map(|_| SocketAddr::new(live::address(), PORT)).collect(),
        members: (0..MEMBERS).map(|_| None).collect(),
        choices: Seeded::new(seed),
        killed: (0, 0, 0),
        context: live::context(),
    };
    (0..MEMBERS).for_each(|n| torture.serve(n));
    torture.whole();
    let second_opinion = Porcupine::build(boards.path());
    let (mut starts, mut left, mut operations, mut doubtful) = (BTreeMap::new(), rounds, 0, 0);
    let mut epoch = 0;
    while left > 0 {
        epoch += 1;
        let some = left.min(EPOCH);
        left -= some;
        let histories = torture.epoch(epoch, some, &mut starts);
        let named: Vec<Named> = histories
            .into_iter()
            .map(|(number, history)| Named { run: format!("{seed} {epoch}"), key: key(number), history })
            .collect();
        for Named { run, key, history } in &named {
            operations += history.events.len();
            doubtful += history.events.iter().filter(|event| event.maybe).count();
            let lines = history.json_lines(run, key);
            assert!(history.is_linearizable(), "{run}: no register could have had this history:\n{lines}");
        }
        if let Some(porcupine) = &second_opinion {
            porcupine.agrees(&named);
        }
    }
    let (members, disks, clients) = torture.killed;
    println!(
        "seed {seed}: {members} members, {disks} of them with their disks, and {clients} clients killed; {operations} \
         operations, {doubtful} in doubt"
    );
}
