//! What a torture is, whoever is tortured: clients that work and write down what they do, processes that are killed, looks at
//! everything in between, and histories that must be those of registers.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use remanence_effort::{Process, again};
use remanence_kv_live::Store;
use remanence_pmem::crash_image::{Choices, Seeded};
use remanence_sim::history::{Event, History, Kind, NEVER, State};
use tempfile::TempDir;

use super::board::{Board, LANES, Lane};
use super::client::{KEYS, first_write, key, state};
use super::porcupine::{Named, Porcupine};

/// What a process is told to be.
const PART: &str = "REMANENCE_KV_TORTURE_PART";
/// How long a torture waits for what must come: much longer than it takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

pub(crate) fn asked(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// This program, as one of its tests that is none by itself.
pub(crate) fn start(test: &str, part: String) -> Process {
    Process::start(again(test).env(PART, part).stdin(Stdio::null()))
}

/// What this process is told to be, in so many words; `None`: it is a test.
pub(crate) fn part<const N: usize>() -> Option<[String; N]> {
    let part = std::env::var(PART).ok()?;
    let words: Vec<String> = part.splitn(N, ' ').map(str::to_owned).collect();
    words.try_into().ok()
}

/// The place of a client, the number of its first write, and what it draws from.
pub(crate) fn client_part() -> Option<(String, Lane, State, u64)> {
    let [to, lane, first, seed, board] = part()?;
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let lane = Lane::new(Board::open(board.as_ref()), number(&lane));
    Some((to, lane, number(&first), number(&seed)))
}

/// Who is tortured.
pub(crate) trait Victim {
    /// Clients at a time.
    const CLIENTS: u64;
    /// Rounds between two looks at everything.
    const EPOCH: u64;
    /// The test of this program that is a client, in a process of its own.
    const CLIENT: &'static str;

    /// The name of what is tortured, as sentences have it.
    fn name(&self) -> String;

    /// It is to be there, and to serve.
    fn begin(&mut self);

    /// By what clients reach it, without blanks.
    fn address(&self) -> String;

    /// Something happens, now that clients work.
    fn round(&mut self, story: &mut Story, round: u64);

    /// Everything is killed, looked at and started again. Returns a client.
    fn revive(&mut self) -> Store;

    /// What was killed besides clients, in words.
    fn killed(&self) -> String;
}

/// A life of a client.
struct Life {
    lane: u64,
    process: Process,
    /// When it was known to be dead.
    killed: Option<u64>,
}

/// What happens to clients from one look at everything to the next.
pub(crate) struct Story {
    pub(crate) choices: Seeded,
    name: String,
    /// By what clients reach whoever is tortured.
    address: String,
    /// What a client's process is asked for.
    client: &'static str,
    path: PathBuf,
    board: Board,
    epoch: u64,
    lives: Vec<Life>,
    /// After each of these moments nothing that was asked for before can have any effect.
    restarts: Vec<u64>,
    clients_killed: u64,
}

impl Story {
    fn begin(&mut self, epoch: u64, clients: u64) {
        self.board = Board::create(&self.path);
        self.epoch = epoch;
        self.lives.clear();
        self.restarts.clear();
        self.new_clients(clients);
    }

    pub(crate) fn new_clients(&mut self, count: u64) {
        for _ in 0..count {
            let lane = self.lives.len() as u64;
            assert!(lane < LANES, "there are not so many lanes");
            let seed = self.choices.pick(1 << 30);
            let first = first_write(self.epoch, lane);
            let part = format!("{} {lane} {first} {seed} {}", self.address, self.path.display());
            self.lives.push(Life { lane, process: start(self.client, part), killed: None });
        }
    }

    pub(crate) fn kill_clients(&mut self, count: u64) {
        for _ in 0..count {
            let living: Vec<usize> =
                (0..self.lives.len()).filter(|n| self.lives[*n].killed.is_none()).collect();
            let victim = &mut self.lives[living[self.choices.pick(living.len())]];
            victim.process.kill();
            victim.killed = Some(self.board.tick());
            self.clients_killed += 1;
        }
    }

    /// Whoever served before serves no more, and nothing that it was asked for can have an effect from now on.
    pub(crate) fn restarted(&mut self) {
        self.restarts.push(self.board.tick());
    }

    /// Waits until clients have done something, more or less of it.
    pub(crate) fn under_load(&mut self) {
        let living: Vec<u64> =
            self.lives.iter().filter(|life| life.killed.is_none()).map(|life| life.lane).collect();
        let board = &self.board;
        let done = || living.iter().map(|lane| board.ended(*lane)).sum::<u64>();
        let enough = done() + 3 + self.choices.pick(60) as u64;
        let begin = Instant::now();
        while done() < enough {
            assert!(begin.elapsed() < PATIENCE, "{}: nothing goes on any more", self.name);
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    /// All clients come to their end.
    fn end(&mut self) {
        self.board.stop();
        let begin = Instant::now();
        for life in self.lives.iter_mut().filter(|life| life.killed.is_none()) {
            let status = loop {
                if let Some(status) = life.process.child().try_wait().expect("it is ours") {
                    break status;
                }
                assert!(begin.elapsed() < PATIENCE, "{}: a client does not end", self.name);
                std::thread::sleep(Duration::from_millis(1));
            };
            assert!(status.success(), "{}: a client failed, see above", self.name);
        }
    }

    /// What happened to each key, with what it has in the end.
    fn histories(&self, mut store: Store, starts: &mut BTreeMap<u64, State>) -> BTreeMap<u64, History> {
        let bound =
            |moment: u64| self.restarts.iter().copied().find(|restart| *restart > moment).unwrap_or(NEVER);
        let mut histories: BTreeMap<u64, History> = (0..KEYS)
            .map(|key| (key, History { start: starts.get(&key).copied().unwrap_or(0), events: Vec::new() }))
            .collect();
        for life in &self.lives {
            for (key, event) in self.board.events(life.lane, life.killed, bound) {
                histories.get_mut(&key).expect("one of the keys").events.push(event);
            }
        }
        for (number, history) in &mut histories {
            let invoked = self.board.tick();
            let found = store.get(&key(*number)).expect("a GET");
            let state = state(*number, found.as_ref());
            let state = state.unwrap_or_else(|| panic!("{}: key {number} is torn: {found:?}", self.name));
            let (kind, returned) = (Kind::Read(state), self.board.tick());
            history.events.push(Event { kind, client: LANES as u32, invoked, returned, maybe: false });
            starts.insert(*number, state);
        }
        histories
    }
}

/// Tortures somebody for as many rounds as are asked for, or for a few.
pub(crate) fn torture<V: Victim>(few: u64, boards: &TempDir, choices: Seeded, victim: &mut V) {
    let rounds = remanence_effort::rounds(few, 50);
    let name = victim.name();
    let second_opinion = Porcupine::build(boards.path());
    let (mut starts, mut left, mut operations, mut doubtful) = (BTreeMap::new(), rounds, 0, 0);
    let path = boards.path().join("board");
    let board = Board::create(&path);
    victim.begin();
    let mut story = Story {
        choices,
        name: name.clone(),
        address: victim.address(),
        client: V::CLIENT,
        path,
        board,
        epoch: 0,
        lives: Vec::new(),
        restarts: Vec::new(),
        clients_killed: 0,
    };
    for epoch in 1.. {
        if left == 0 {
            break;
        }
        let some = left.min(V::EPOCH);
        left -= some;
        story.begin(epoch, V::CLIENTS);
        for round in 0..some {
            story.under_load();
            victim.round(&mut story, round);
        }
        story.under_load();
        story.end();
        let store = victim.revive();
        story.restarted();
        let histories = story.histories(store, &mut starts);
        let named: Vec<Named> = histories
            .into_iter()
            .map(|(number, history)| Named { run: format!("{name} {epoch}"), key: key(number), history })
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
    println!(
        "{name}: {} and {} clients killed; {operations} operations, {doubtful} in doubt",
        victim.killed(),
        story.clients_killed
    );
}
