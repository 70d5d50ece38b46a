//! Clients in the server's own process, beside clients elsewhere.

use crate::servers as common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use common::{SIZE, context, options};
use remanence_kv::client::{
    Client, Completion, Error as Failure, Get, Operation, Put, RemoteMemory as _, Verb, attend, run,
};
use remanence_kv::proto::{Expect, Inline, Refusal};
use remanence_kv_live::{Error, Local, Locals, PutOptions, Server, ServerOptions, Stop, Store, StoreStats};

/// A client that dallies is cut off after this; the others must have been heard of within it on a busy machine too.
const LEASE: Duration = Duration::from_secs(4);

struct Serving {
    locals: Locals,
    addr: std::net::SocketAddr,
    stop: Stop,
    thread: Option<JoinHandle<Result<StoreStats, Error>>>,
    dir: tempfile::TempDir,
}

impl Serving {
    fn begin() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let options = ServerOptions::file(dir.path().join("store")).size(SIZE).lease(LEASE);
        let mut server = Server::bind(&context(), options).expect("a server");
        let (locals, addr, stop) = (server.locals().expect("alone"), server.addr(), Stop::new());
        let stopping = stop.clone();
        let thread = Some(std::thread::spawn(move || server.run(&stopping)));
        Self { locals, addr, stop, thread, dir }
    }

    fn remote(&self) -> Store {
        Store::connect(&context(), self.addr, options()).expect("connected")
    }

    fn end(&mut self) -> Result<StoreStats, Error> {
        self.stop.ask();
        self.thread.take().expect("it runs").join().expect("the server's thread")
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.end();
        }
    }
}

struct Near {
    client: Client,
    local: Local,
}

impl Near {
    fn new(serving: &Serving) -> Self {
        let (client, local) = serving.locals.connect(1 << 10);
        Self { client, local }
    }

    fn act<T>(&mut self, mut operation: impl Operation<Output = Result<T, Failure>>) -> Result<T, Error> {
        if self.local.noticed() > self.client.view().number {
            attend(&mut self.client, &mut self.local)?;
        }
        Ok(run(&mut self.client, &mut self.local, &mut operation)??)
    }

    fn get(&mut self, key: &[u8]) -> Option<(u64, Vec<u8>)> {
        self.act(Get::new(key)).expect("a GET").map(|found| (found.version, found.value))
    }

    fn put(&mut self, key: &[u8], value: &[u8], expect: Expect) -> Result<u64, Error> {
        self.act(Put::new(key, value, 0, expect))
    }
}

#[test]
fn local_and_remote_clients_share_a_store() {
    let mut serving = Serving::begin();
    let (mut near, mut far) = (Near::new(&serving), serving.remote());
    let version = near.put(b"from here", b"one", Expect::Absent).expect("a PUT");
    let found = far.get(b"from here").expect("a GET").expect("it is there");
    assert_eq!((found.version, &found.value[..]), (version, &b"one"[..]));
    // The place that the local client has cached is noticed to be out of date.
    assert_eq!(near.get(b"from here"), Some((version, b"one".to_vec())));
    let version = far.put(b"from here", b"two", PutOptions::default()).expect("a PUT");
    assert_eq!(near.get(b"from here"), Some((version, b"two".to_vec())));
    let large = vec![7; 1 << 20];
    let version = near.put(b"large", &large, Expect::Any).expect("a PUT in chunks");
    assert_eq!(far.get(b"large").expect("a GET").map(|found| found.value), Some(large.clone()));
    assert_eq!(near.get(b"large"), Some((version, large)));
    assert!(far.delete(b"large", Expect::Any).expect("a DELETE").is_some());
    assert_eq!(near.get(b"large"), None);
    assert!(matches!(near.put(b"", b"", Expect::Any), Err(Error::Refused(Refusal::BadKey))));
    let stats = serving.end().expect("it served");
    assert_eq!(stats.usage.unfinished, 0, "what was written is settled");
    assert!(matches!(near.put(b"too late", b"", Expect::Any), Err(Error::Refused(Refusal::Fenced))));
}

#[test]
fn a_medium_that_fails_a_local_client_ends_the_server() {
    let mut serving = Serving::begin();
    let mut near = Near::new(&serving);
    near.act(Put::new(b"a", b"1", 0, Expect::Any)).expect("a PUT");
    // Somebody cuts the file off, which no sync succeeds after. The server itself has no reason to sync anything.
    let file = std::fs::File::options().write(true).open(serving.dir.path().join("store")).expect("there");
    file.set_len(file.metadata().expect("there").len() - 4096).expect("cut");
    let failed = near.act(Put::new(b"a", b"2", 0, Expect::Any));
    assert!(failed.is_err(), "{failed:?}");
    let ended = serving.thread.take().expect("it runs").join().expect("the server's thread");
    let ended = ended.expect_err("it served on a medium that failed").to_string();
    assert!(ended.contains("the medium failed") && ended.contains("truncated"), "{ended}");
    // Whoever comes later is told of the medium, and not of a lease.
    let late = near.act(Put::new(b"a", b"3", 0, Expect::Any));
    assert!(matches!(late, Err(Error::Refused(Refusal::Medium))), "{late:?}");
    let put = Inline { key: b"a", value: Some(b"3"), expires: 0, expect: Expect::Any };
    let late = near.local.put_all(&[put], &mut Vec::new());
    assert!(matches!(late, Err(Error::Refused(Refusal::Medium))), "{late:?}");
}

#[test]
fn counting_here_and_there_loses_nothing() {
    const EACH: u64 = 150;
    let serving = Serving::begin();
    let number = |value: &[u8]| u64::from_le_bytes(value.try_into().expect("a count"));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut near = Near::new(&serving);
                for _ in 0..EACH {
                    loop {
                        let (expect, next) = match near.get(b"count") {
                            Some((version, value)) => (Expect::Version(version), number(&value) + 1),
                            None => (Expect::Absent, 1),
                        };
                        match near.put(b"count", &next.to_le_bytes(), expect) {
                            Ok(_) => break,
                            Err(Error::Refused(Refusal::WrongVersion { .. })) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut far = serving.remote();
            for _ in 0..EACH {
                loop {
                    let (expect, next) = match far.get(b"count").expect("a GET") {
                        Some(found) => (Expect::Version(found.version), number(&found.value) + 1),
                        None => (Expect::Absent, 1),
                    };
                    let options = PutOptions { expect, ..PutOptions::default() };
                    match far.put(b"count", &next.to_le_bytes(), options) {
                        Ok(_) => break,
                        Err(Error::Refused(Refusal::WrongVersion { .. })) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
    });
    let counted = Near::new(&serving).get(b"count").map(|(_, value)| number(&value));
    assert_eq!(counted, Some(3 * EACH));
}

#[test]
fn a_local_client_that_does_not_look_is_cut_off_and_one_that_looks_is_not() {
    let serving = Serving::begin();
    let (mut idle, mut awake, mut far) = (Near::new(&serving), Near::new(&serving), serving.remote());
    let kept = idle.put(b"kept", b"value", Expect::Any).expect("a PUT");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                assert_eq!(awake.get(b"kept"), Some((kept, b"value".to_vec())));
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        // Several times what fits: without cleaning, which waits for everybody, there would be no room.
        let written = (0..600_u32).try_for_each(|n| {
            let value = vec![n as u8; 32 << 10];
            far.put(b"changed", &value, PutOptions::default()).map(drop)
        });
        over.store(true, Ordering::Release);
        written.expect("PUTs");
    });
    assert!(matches!(idle.put(b"kept", b"late", Expect::Any), Err(Error::Refused(Refusal::Fenced))));
    // Nor does it write any more.
    let at = 0;
    assert!(idle.local.post(vec![Verb::Write { at, bytes: vec![0; 64] }]).is_err());
    assert!(idle.local.post(vec![Verb::Persist(vec![(at, vec![0; 64])])]).is_err());
    // What it reads may be something else by now: nobody waits for its view any more.
    assert!(idle.local.post(vec![Verb::Read { at, len: 8 }]).is_err());
    assert!(idle.local.load(at, &mut [0; 8]).is_err());
    assert!(idle.act(Get::new(b"kept")).is_err(), "nor does it find, or miss, anything");
    assert!(idle.act(Get::new(b"never")).is_err());
    let awake_reads = awake.local.post(vec![Verb::Read { at, len: 8 }]).expect("others read on");
    assert!(matches!(&awake_reads[..], [Completion::Read(bytes)] if bytes.len() == 8));
    assert!(awake.local.post(vec![Verb::Read { at: u64::MAX, len: 8 }]).is_err(), "nothing is there");
    assert_eq!(awake.get(b"kept"), Some((kept, b"value".to_vec())));
}
