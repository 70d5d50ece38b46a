//! Replicas in threads of the test, each with a device, a file and an address of its own.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use remanence_smr::map::{Change, Outcome, Value};
use remanence_smr::{
    Client, ClientOptions, Geometry, Map, Replica, ReplicaError, ReplicaOptions, Status, Stop, Token,
};
use remanence_verbs::{Context, Options};
use tempfile::TempDir;

/// Where clients ask a replica.
pub(crate) const CLIENTS: u16 = 7480;
/// Where replicas reach each other.
pub(crate) const MEMBERS: u16 = 7481;
/// How long a test waits for what must come: much longer than it takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// A small log, which is written over all the time.
pub(crate) const GEOMETRY: Geometry =
    Geometry { replicas: 3, slots: 64, slot: 512, window: 16, snapshot: 64 << 10 };

/// Addresses for so many replicas, where they reach each other.
pub(crate) fn members(count: usize) -> Vec<SocketAddr> {
    (0..count).map(|_| SocketAddr::new(remanence_effort::address(), MEMBERS)).collect()
}

pub(crate) fn clients_of(members: &[SocketAddr]) -> Vec<SocketAddr> {
    members.iter().map(|member| SocketAddr::new(member.ip(), CLIENTS)).collect()
}

/// Beats that a busy machine keeps.
pub(crate) fn options(file: &Path, me: usize, members: &[SocketAddr]) -> ReplicaOptions {
    let beat = Duration::from_millis(20);
    ReplicaOptions::new(file, me, members.to_vec()).port(CLIENTS).geometry(GEOMETRY).beat(beat)
}

pub(crate) fn device(at: IpAddr) -> Context {
    Context::open(Options::udp(at)).expect("a device on loopback")
}

/// A device that is nobody's else.
pub(crate) fn own_device() -> Context {
    device(remanence_effort::address())
}

struct Running {
    stop: Stop,
    thread: JoinHandle<Result<(), ReplicaError>>,
}

/// Some of which run.
pub(crate) struct Group {
    pub(crate) dir: TempDir,
    pub(crate) members: Vec<SocketAddr>,
    pub(crate) tokens: Option<(Token, Token)>,
    running: Vec<Option<Running>>,
}

impl Group {
    pub(crate) fn new(count: usize) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let running = (0..count).map(|_| None).collect();
        Self { dir, members: members(count), tokens: None, running }
    }

    pub(crate) fn started(count: usize) -> Self {
        let mut group = Self::new(count);
        (0..count).for_each(|me| group.start(me));
        group
    }

    pub(crate) fn file(&self, me: usize) -> PathBuf {
        self.dir.path().join(format!("{me}.log"))
    }

    pub(crate) fn start(&mut self, me: usize) {
        let mut options = options(&self.file(me), me, &self.members);
        if let Some((clients, members)) = &self.tokens {
            options = options.tokens(clients.clone(), members.clone());
        }
        let (stop, device) = (Stop::new(), device(self.members[me].ip()));
        let mut replica = Replica::<Map>::bind(&device, &options).expect("a replica");
        assert_eq!(replica.addr(), clients_of(&self.members)[me]);
        let stopping = stop.clone();
        let thread = std::thread::spawn(move || replica.run(&stopping));
        self.running[me] = Some(Running { stop, thread });
    }

    pub(crate) fn stop(&mut self, me: usize) {
        if let Some(Running { stop, thread }) = self.running[me].take() {
            stop.ask();
            thread.join().expect("its thread").expect("it took part");
        }
    }

    pub(crate) fn client(&self) -> Client {
        let mut options = ClientOptions::default().patience(PATIENCE);
        if let Some((clients, _)) = &self.tokens {
            options = options.tokens([clients.clone()]);
        }
        Client::connect(&own_device(), &clients_of(&self.members), options).expect("a client")
    }

    /// Waits until a replica says so of itself.
    pub(crate) fn wait(&self, me: usize, what: &str, is: impl Fn(&Status) -> bool) -> Status {
        wait(&mut self.client(), me, what, is)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for running in self.running.iter_mut().filter_map(Option::take) {
            running.stop.ask();
            let _ = running.thread.join();
        }
    }
}

/// Waits until a replica says so of itself.
pub(crate) fn wait(client: &mut Client, me: usize, what: &str, is: impl Fn(&Status) -> bool) -> Status {
    let begin = Instant::now();
    loop {
        let said = client.status(me);
        if let Ok(status) = &said
            && is(status)
        {
            return status.clone();
        }
        assert!(begin.elapsed() < PATIENCE, "replica {me}, {what}: {said:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn change(client: &mut Client, change: Change<'_>) -> Outcome {
    Outcome::parse(&client.call(&change.emit()).expect("it is answered")).expect("an outcome")
}

pub(crate) fn put(client: &mut Client, key: &[u8], value: &[u8]) -> u64 {
    match change(client, Change::Put { key, value }) {
        Outcome::Done(version) => version,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn get(client: &mut Client, key: &[u8]) -> Option<Value> {
    Value::parse(&client.query(key).expect("it is answered")).expect("a value")
}
