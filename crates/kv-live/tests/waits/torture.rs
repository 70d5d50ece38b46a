//! Real servers and clients, killed with SIGKILL at any moment under load. Nothing acknowledged is lost, nothing torn is ever
//! served, and each key's history, over all the deaths, is one that a register could have had.
//!
//! `REMANENCE_ROUNDS=N` kills N times in each setting (5 if nothing is said), `REMANENCE_SEED=n` draws another
//! story, and `REMANENCE_KV_HISTORIES=file` keeps the histories for `tests/porcupine`. What is killed when does not follow
//! from the seed alone, as the machine has its say.

pub(crate) mod board;
pub(crate) mod client;
pub(crate) mod harness;
use crate::checker as porcupine;
use crate::servers as live;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use harness::{Story, Victim, asked, client_part, part, start};
use remanence_effort::Process;
use remanence_kv::Geometry;
use remanence_kv::view::Mode;
use remanence_kv_live::{Server, ServerOptions, Stop, Store, inspect};
use remanence_pmem::FileOptions;
use remanence_pmem::crash_image::{Choices, Seeded};
use remanence_verbs::Context;

/// Small regions, so that logs are cleaned all the time.
const GEOMETRY: Geometry =
    Geometry { size: 4 << 20, region_len: 64 << 10, segment_len: 16 << 10, heads: 2, grown_from: 0 };
const SIZE: u64 = GEOMETRY.size + 4096;

/// Not a test by itself: the server that is killed.
#[test]
fn be_a_server() {
    let Some([at, port, mode, path]) = part() else { return };
    let at: IpAddr = at.parse().expect("an address");
    let (mode, by_room) = match mode.as_str() {
        "erda" => (Mode::Erda, true),
        "durable-by-room" => (Mode::Durable, true),
        _ => (Mode::Durable, false),
    };
    let context = Context::open(remanence_verbs::Options::udp(at)).expect("a device on loopback");
    let options = ServerOptions::file(path)
        .size(SIZE)
        .geometry(GEOMETRY)
        .keys(64)
        .port(port.parse().expect("a port"))
        .mode(mode)
        .lease(Duration::from_millis(500));
    let options = if by_room { options.inline_max(0) } else { options };
    let mut server = Server::bind(&context, options).expect("a server");
    println!("\nready {}", server.addr());
    server.run(&Stop::new()).expect("it serves");
}

/// Not a test by itself: a client that is killed.
#[test]
fn be_a_client() {
    let Some((to, lane, first, seed)) = client_part() else { return };
    let (context, to) = (live::context(), to.parse().expect("an address"));
    client::work(|options| Store::connect(&context, to, options), lane, first, seed);
}

/// A server in one setting.
struct One {
    name: String,
    mode: Mode,
    store: PathBuf,
    at: IpAddr,
    /// Where it listens; the port is chosen by the first one.
    to: Option<SocketAddr>,
    process: Option<Process>,
    killed: u64,
}

impl One {
    fn serve(&mut self) {
        // In turn: what the one leaves the other recovers.
        let mode = match (self.mode, self.killed % 2) {
            (Mode::Erda, _) => "erda",
            (Mode::Durable, 0) => "durable",
            (Mode::Durable, _) => "durable-by-room",
        };
        let port = self.to.map_or(0, |to| to.port());
        let part = format!("{} {port} {mode} {}", self.at, self.store.display());
        let mut server = start("torture::be_a_server", part);
        let ready =
            server.after("ready ").unwrap_or_else(|| panic!("{}: the server does not start", self.name));
        self.to = Some(ready.parse().expect("an address"));
        self.process = Some(server);
    }

    /// Nothing that is named is damaged, though nobody has shut anything down.
    fn look(&self) {
        let region = FileOptions::new().open(&self.store).expect("nobody else has it");
        let found = inspect(&region).expect("a crash is no damage");
        assert_eq!((found.scrubbed.lost, found.scrubbed.repaired), (0, 0), "{}: {found:?}", self.name);
    }
}

impl Victim for One {
    const CLIENTS: u64 = 3;
    const EPOCH: u64 = 8;
    const CLIENT: &'static str = "torture::be_a_client";

    fn name(&self) -> String {
        self.name.clone()
    }

    fn begin(&mut self) {
        self.serve();
    }

    fn address(&self) -> String {
        self.to.expect("a server has started").to_string()
    }

    fn round(&mut self, story: &mut Story, round: u64) {
        let (kill_server, kill_clients) = match story.choices.pick(10) {
            0..5 => (true, 0),
            5..8 => (false, 1),
            8 => (true, 1),
            _ => (true, Self::CLIENTS),
        };
        if kill_server {
            self.process = None;
            self.killed += 1;
        }
        story.kill_clients(kill_clients);
        if kill_server {
            if round.is_multiple_of(3) {
                self.look();
            }
            self.serve();
            story.restarted();
        }
        story.new_clients(kill_clients);
    }

    fn revive(&mut self) -> Store {
        self.process = None;
        self.look();
        self.serve();
        let to = self.to.expect("it serves");
        Store::connect(&live::context(), to, live::options()).expect("connected")
    }

    fn killed(&self) -> String {
        format!("{} servers", self.killed)
    }
}

/// Directories that go with the test: on a disk, and in shared memory.
fn directory(shared: bool) -> tempfile::TempDir {
    let dir = if shared { tempfile::tempdir_in("/dev/shm") } else { tempfile::tempdir() };
    dir.expect("a directory")
}

fn torture(name: &str, mode: Mode, shared: bool) {
    let seed = asked("REMANENCE_SEED").unwrap_or(1);
    let (dir, boards) = (directory(shared), directory(true));
    let mut server = One {
        name: format!("{name}, seed {seed}"),
        mode,
        store: dir.path().join("store"),
        at: live::address(),
        to: None,
        process: None,
        killed: 0,
    };
    harness::torture(5, &boards, Seeded::new(seed), &mut server);
    assert!(server.killed > 0 || remanence_effort::rounds(5, 50) < 3);
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
