//! Real servers and clients, killed with SIGKILL at any moment under load. Nothing acknowledged is lost, nothing torn is ever
//! served, and each key's history, over all the deaths, is one that a register could have had.
//!
//! `REMANENCE_KV_TORTURE=rounds` kills so often in each setting (5 if it is not set), `REMANENCE_KV_SEED=n` draws another
//! story, and `REMANENCE_KV_HISTORIES=file` keeps the histories for `tests/porcupine`. What is killed when does not follow
//! from the seed alone, as the machine has its say.

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
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use board::{Board, LANES, Lane};
use client::{KEYS, first_write, key, state};
use porcupine::{Named, Porcupine};
use remanence_kv::Geometry;
use remanence_kv::history::{Event, History, Kind, NEVER, State};
use remanence_kv::live::{Server, ServerOptions, Store, inspect};
use remanence_kv::view::Mode;
use remanence_pmem::FileOptions;
use remanence_pmem::crash_image::{Choices, Seeded};
use remanence_verbs::Context;

const PART: &str = "REMANENCE_KV_TORTURE_PART";
const CLIENTS: u64 = 3;
/// Rounds between two looks at everything.
const EPOCH: u64 = 8;
/// How long this test waits for what must come: much longer than it takes.
const PATIENCE: Duration = Duration::from_secs(120);
/// Small regions, so that logs are cleaned all the time.
const GEOMETRY: Geometry = Geometry { size: 4 << 20, region_len: 64 << 10, segment_len: 16 << 10, heads: 2 };
const SIZE: u64 = GEOMETRY.size + 4096;

fn asked(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Not a test by itself: the server that is killed.
#[test]
fn be_a_server() {
    let Ok(part) = std::env::var(PART) else { return };
    let [at, port, mode, path] = part.splitn(4, ' ').collect::<Vec<_>>()[..] else { return };
    let at: IpAddr = at.parse().expect("an address");
    let mode = if mode == "erda" { Mode::Erda } else { Mode::Durable };
    let context = Context::open(remanence_verbs::Options::udp(at)).expect("a device on loopback");
    let options = ServerOptions::file(path)
        .size(SIZE)
        .geometry(GEOMETRY)
        .keys(64)
        .port(port.parse().expect("a port"))
        .mode(mode)
        .lease(Duration::from_millis(500));
    let mut server = Server::bind(&context, options).expect("a server");
    println!("\nready {}", server.addr());
    server.run(&AtomicBool::new(false)).expect("it serves");
}

/// Not a test by itself: a client that is killed.
#[test]
fn be_a_client() {
    let Ok(part) = std::env::var(PART) else { return };
    let [to, lane, first, seed, board] = part.splitn(5, ' ').collect::<Vec<_>>()[..] else { return };
    let lane = Lane::new(Board::open(Path::new(board)), lane.parse().expect("a number"));
    let (first, seed) = (first.parse().expect("a number"), seed.parse().expect("a number"));
    client::work(to.parse().expect("an address"), lane, first, seed);
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

/// One setting of the torture.
struct Torture {
    name: &'static str,
    mode: Mode,
    store: PathBuf,
    board: PathBuf,
    at: IpAddr,
    /// Where the server listens; the port is chosen by the first one.
    to: Option<SocketAddr>,
    choices: Seeded,
    killed: (u64, u64),
}

/// A life of a client.
struct Life {
    lane: u64,
    process: Process,
    /// When it was known to be dead.
    killed: Option<u64>,
}

impl Torture {
    fn serve(&mut self) -> Process {
        let mode = if self.mode == Mode::Erda { "erda" } else { "durable" };
        let port = self.to.map_or(0, |to| to.port());
        let mut server = start("be_a_server", format!("{} {port} {mode} {}", self.at, self.store.display()));
        let said = BufReader::new(server.0.stdout.take().expect("piped"));
        let ready = said
            .lines()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("ready ").map(str::to_owned));
        let ready = ready.unwrap_or_else(|| panic!("{}: the server does not start", self.name));
        self.to = Some(ready.parse().expect("an address"));
        server
    }

    fn client(&mut self, epoch: u64, lane: u64) -> Life {
        assert!(lane < LANES, "there are not so many lanes");
        let to = self.to.expect("a server has started");
        let seed = self.choices.pick(1 << 30);
        let part = format!("{to} {lane} {} {seed} {}", first_write(epoch, lane), self.board.display());
        Life { lane, process: start("be_a_client", part), killed: None }
    }

    /// Nothing that is named is damaged, though nobody has shut anything down.
    fn look(&self) {
        let region = FileOptions::new().open(&self.store).expect("nobody else has it");
        let found = inspect(&region).expect("a crash is no damage");
        assert_eq!((found.scrubbed.lost, found.scrubbed.repaired), (0, 0), "{}: {found:?}", self.name);
    }

    /// Some rounds, and then everything is looked at. Returns the histories.
    fn epoch(
        &mut self,
        epoch: u64,
        rounds: u64,
        starts: &mut BTreeMap<u64, State>,
    ) -> BTreeMap<u64, History> {
        let board = Board::create(&self.board);
        let mut server = Some(self.serve());
        let mut lives: Vec<Life> = Vec::new();
        for _ in 0..CLIENTS {
            let life = self.client(epoch, lives.len() as u64);
            lives.push(life);
        }
        // After each of these moments nothing of the server before can have any effect.
        let mut restarts: Vec<u64> = Vec::new();
        for round in 0..rounds {
            self.under_load(&board, &lives);
            let (kill_server, kill_clients) = match self.choices.pick(10) {
                0..5 => (true, 0),
                5..8 => (false, 1),
                8 => (true, 1),
                _ => (true, CLIENTS as usize),
            };
            if kill_server {
                drop(server.take());
                self.killed.0 += 1;
            }
            for _ in 0..kill_clients {
                let living: Vec<usize> = (0..lives.len()).filter(|n| lives[*n].killed.is_none()).collect();
                let victim = &mut lives[living[self.choices.pick(living.len())]];
                victim.process.0.kill().expect("it is ours");
                victim.process.0.wait().expect("it is dead");
                victim.killed = Some(board.tick());
                self.killed.1 += 1;
            }
            if kill_server {
                if round % 3 == 0 {
                    self.look();
                }
                server = Some(self.serve());
                restarts.push(board.tick());
            }
            for _ in 0..kill_clients {
                let life = self.client(epoch, lives.len() as u64);
                lives.push(life);
            }
        }
        self.under_load(&board, &lives);
        board.stop();
        let begin = Instant::now();
        for life in lives.iter_mut().filter(|life| life.killed.is_none()) {
            let status = loop {
                if let Some(status) = life.process.0.try_wait().expect("it is ours") {
                    break status;
                }
                assert!(begin.elapsed() < PATIENCE, "{}: a client does not end", self.name);
                std::thread::sleep(Duration::from_millis(1));
            };
            assert!(status.success(), "{}: a client failed, see above", self.name);
        }
        drop(server);
        self.look();
        let server = self.serve();
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
        // What is there in the end is a part of the history.
        let context = live::context();
        let mut store =
            Store::connect(&context, self.to.expect("it serves"), live::options()).expect("connected");
        for (number, history) in &mut histories {
            let invoked = board.tick();
            let found = store.get(&key(*number)).expect("a GET");
            let state = state(*number, found.as_ref());
            let state = state.unwrap_or_else(|| panic!("{}: key {number} is torn: {found:?}", self.name));
            let kind = Kind::Read(state);
            let event = Event { kind, client: LANES as u32, invoked, returned: board.tick(), maybe: false };
            history.events.push(event);
            starts.insert(*number, state);
        }
        drop(server);
        histories
    }

    /// Waits until clients have done something, more or less of it.
    fn under_load(&mut self, board: &Board, lives: &[Life]) {
        let living: Vec<u64> =
            lives.iter().filter(|life| life.killed.is_none()).map(|life| life.lane).collect();
        let done = || living.iter().map(|lane| board.ended(*lane)).sum::<u64>();
        let enough = done() + 3 + self.choices.pick(60) as u64;
        let begin = Instant::now();
        while done() < enough {
            assert!(begin.elapsed() < PATIENCE, "{}: nothing goes on any more", self.name);
            std::thread::sleep(Duration::from_micros(300));
        }
    }
}

/// Directories that go with the test: on a disk, and in shared memory.
fn directory(shared: bool) -> tempfile::TempDir {
    let dir = if shared { tempfile::tempdir_in("/dev/shm") } else { tempfile::tempdir() };
    dir.expect("a directory")
}

fn torture(name: &'static str, mode: Mode, shared: bool) {
    let rounds = asked("REMANENCE_KV_TORTURE").unwrap_or(5);
    let seed = asked("REMANENCE_KV_SEED").unwrap_or(1);
    let (dir, boards) = (directory(shared), directory(true));
    let mut torture = Torture {
        name,
        mode,
        store: dir.path().join("store"),
        board: boards.path().join("board"),
        at: live::address(),
        to: None,
        choices: Seeded::new(seed),
        killed: (0, 0),
    };
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
            .map(|(number, history)| Named {
                run: format!("{name} {seed} {epoch}"),
                key: key(number),
                history,
            })
            .collect();
        for Named { run, key, history } in &named {
            operations += history.events.len();
            doubtful += history.events.iter().filter(|event| event.maybe).count();
            let lines = history.json_lines(run, key);
            if let Ok(path) = std::env::var("REMANENCE_KV_HISTORIES") {
                let file = OpenOptions::new().create(true).append(true).open(path);
                file.and_then(|mut file| file.write_all(lines.as_bytes())).expect("a file for the histories");
            }
            assert!(history.is_linearizable(), "{run}: no register could have had this history:\n{lines}");
        }
        if let Some(porcupine) = &second_opinion {
            porcupine.agrees(&named);
        }
    }
    let (servers, clients) = torture.killed;
    println!(
        "{name}, seed {seed}: {servers} servers and {clients} clients killed; {operations} operations, {doubtful} in doubt"
    );
    assert!(servers > 0 || rounds < 3);
}

#[test]
fn nothing_is_lost_or_torn_on_a_disk() {
    torture("disk", Mode::Durable, false);
}

#[test]
fn nothing_is_lost_or_torn_in_shared_memory() {
    torture("shared memory", Mode::Durable, true);
}

/// Its acknowledgements promise nothing about the power; a process is another matter.
#[test]
fn mode_erda_loses_nothing_with_its_processes() {
    torture("mode erda", Mode::Erda, true);
}
