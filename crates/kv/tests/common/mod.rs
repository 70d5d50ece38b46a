//! A server and its clients in one thread: memory is a crash image, and every message goes through its bytes.
#![allow(dead_code, reason = "every test file uses a part of it")]

pub(crate) mod ops;
pub(crate) mod porcupine;
pub(crate) mod world;

use std::cell::{Cell, RefCell};

use remanence_kv::client::{
    Call, Change, Client, Completion, Error, Found, Get, Many, Operation, Peek, Put, RemoteMemory, Verb,
    peek, put_all, run,
};
use remanence_kv::proto::{Changed, Expect, Inline, Reply, Request};
use remanence_kv::server::{ClientId, Event, Options, Server, format};
use remanence_kv::view::{Mode, View};
use remanence_kv::{Geometry, Refusal};
use remanence_pmem::crash_image::CrashImage;
use remanence_pmem::{Medium, PersistenceDomain};

pub(crate) const SALT: u64 = 0x5EED;

/// A pool of few small regions, so that everything happens soon.
pub(crate) const SMALL: Geometry =
    Geometry { size: 64 << 10, region_len: 2048, segment_len: 1024, heads: 2, grown_from: 0 };

pub(crate) const DURABLE: Options = Options {
    mode: Mode::Durable,
    lease: 1000,
    unfinished_max: 16,
    clean_by_itself: false,
    ..Options::DEFAULT
};
/// Durable, and a reservation's entry becomes so by the client's flush.
pub(crate) const DEFERRED: Options = Options { defer: true, ..DURABLE };
/// The same, and the server writes small values itself, as on a disk.
pub(crate) const INLINE: Options = Options { inline_max: 40, ..DEFERRED };

/// The same where a wait is an instruction.
pub(crate) const INLINE_LINES: Options = Options { inline_max: 40, ..DURABLE };
pub(crate) const ERDA: Options = Options { mode: Mode::Erda, ..DURABLE };

pub(crate) fn formatted(geometry: Geometry, buckets: u64) -> CrashImage {
    let image = CrashImage::new(geometry.size, PersistenceDomain::Adr);
    format(&&image, &geometry, buckets, SALT, [7; 16]).expect("a fair geometry");
    image
}

pub(crate) type Core<'a, M = CrashImage> = Server<&'a M>;

/// A store with one server and any number of clients that wait.
pub(crate) struct Store<'a, M = CrashImage> {
    pub(crate) image: &'a M,
    pub(crate) server: RefCell<Core<'a, M>>,
    pub(crate) now: Cell<u64>,
    /// What [`RemoteMemory::again`] does: the server goes on with what can wait.
    pub(crate) budget: usize,
}

impl<'a, M: Medium> Store<'a, M> {
    pub(crate) fn open(image: &'a M, options: Options) -> Self {
        let (server, _) = Server::open(image, options).expect("a store");
        Self { image, server: RefCell::new(server), now: Cell::new(1), budget: 16 }
    }

    pub(crate) fn client(&self, locations: usize) -> Session<'_, 'a, M> {
        let id = self.server.borrow_mut().connect();
        let view = self.server.borrow().view();
        Session { store: self, id, client: Client::new(view, locations), posts: 0, verbs: Vec::new() }
    }

    pub(crate) fn step(&self) -> bool {
        self.server.borrow_mut().step(self.now.get(), self.budget).expect("memory does not fail")
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        std::iter::from_fn(|| self.server.borrow_mut().poll_event()).collect()
    }

    /// Steps, with these clients taking views and acknowledging them, until nothing goes on.
    pub(crate) fn settle_down(&self, sessions: &mut [&mut Session<'_, '_, M>]) {
        for _ in 0..10_000 {
            let more = self.step();
            for session in &mut *sessions {
                session.attend();
            }
            let usage = self.server.borrow().usage();
            if !more && !usage.cleaning && !usage.growing {
                if !self.server.borrow().is_settling() {
                    return;
                }
                // Words wait for somebody's sync, and for a time only.
                self.now.set(self.now.get() + 1);
            }
        }
        panic!("it never comes to rest: {:?}", self.server.borrow().usage());
    }
}

/// A connected client.
pub(crate) struct Session<'s, 'a, M = CrashImage> {
    pub(crate) store: &'s Store<'a, M>,
    pub(crate) id: ClientId,
    pub(crate) client: Client,
    pub(crate) posts: usize,
    /// Kinds of what was posted, for counting.
    pub(crate) verbs: Vec<&'static str>,
}

struct Remote<'r, 's, 'a, M> {
    store: &'s Store<'a, M>,
    id: ClientId,
    posts: &'r mut usize,
    verbs: &'r mut Vec<&'static str>,
}

pub(crate) fn call<M: Medium>(server: &mut Core<'_, M>, now: u64, id: ClientId, request: &Request) -> Reply {
    let request = Request::parse(&request.emit()).expect("what was emitted is parsed");
    let reply = server.handle(now, id, &request);
    Reply::parse(&reply.emit()).expect("what was emitted is parsed")
}

impl<M: Medium> RemoteMemory for Remote<'_, '_, '_, M> {
    type Error = &'static str;

    fn post(&mut self, verbs: Vec<Verb>) -> Result<Vec<Completion>, Self::Error> {
        *self.posts += 1;
        let one = |verb: Verb| {
            self.verbs.push(match verb {
                Verb::Read { .. } => "read",
                Verb::Write { .. } => "write",
                Verb::Persist(_) => "persist",
                Verb::Call(_) => "call",
            });
            let mut server = self.store.server.borrow_mut();
            verb.carry_out(&self.store.image, |request| {
                call(&mut server, self.store.now.get(), self.id, request)
            })
        };
        Ok(verbs.into_iter().map(one).collect())
    }

    fn load(&mut self, at: u64, into: &mut [u8]) -> Result<bool, Self::Error> {
        self.store.image.read(at, into);
        Ok(true)
    }

    fn put_all(
        &mut self,
        puts: &[Inline<'_>],
        done: &mut Vec<Result<Changed, Refusal>>,
    ) -> Result<bool, Self::Error> {
        self.store.server.borrow_mut().put_all(self.store.now.get(), self.id, puts, done);
        Ok(true)
    }

    fn now(&self) -> u64 {
        self.store.now.get()
    }

    fn again(&mut self, tries: u32) -> Result<(), Self::Error> {
        if tries > 500 {
            return Err("tried for too long");
        }
        self.store.step();
        Ok(())
    }
}

impl<M: Medium> Session<'_, '_, M> {
    pub(crate) fn run<O: Operation>(&mut self, operation: &mut O) -> O::Output {
        self.try_run(operation).expect("it comes to an end")
    }

    pub(crate) fn try_run<O: Operation>(&mut self, operation: &mut O) -> Result<O::Output, &'static str> {
        let mut remote =
            Remote { store: self.store, id: self.id, posts: &mut self.posts, verbs: &mut self.verbs };
        run(&mut self.client, &mut remote, operation)
    }

    pub(crate) fn get(&mut self, key: &[u8]) -> Option<Found> {
        self.run(&mut Get::new(key)).expect("a GET does not fail")
    }

    /// What a look at the memory tells, if it does: the version and the value, or that there is none.
    pub(crate) fn peek(&mut self, key: &[u8]) -> Option<Option<(u64, Vec<u8>)>> {
        let mut buffer = b"before".to_vec();
        let mut remote =
            Remote { store: self.store, id: self.id, posts: &mut self.posts, verbs: &mut self.verbs };
        match peek(&mut self.client, &mut remote, key, &mut buffer).expect("memory does not fail") {
            Peek::Found { version, value } => Some(Some((version, buffer[value].to_vec()))),
            Peek::Absent => Some(None),
            Peek::Unknown => None,
        }
    }

    /// Has the server write these, and puts what it does not.
    pub(crate) fn put_all(&mut self, puts: &[Inline<'_>]) -> Vec<Result<u64, Error>> {
        let mut remote =
            Remote { store: self.store, id: self.id, posts: &mut self.posts, verbs: &mut self.verbs };
        let mut done = Vec::new();
        put_all(&mut self.client, &mut remote, puts, &mut done).expect("memory does not fail");
        assert_eq!(done.len(), puts.len());
        let rest =
            |(put, done): (&Inline<'_>, Option<_>)| done.unwrap_or_else(|| self.run(&mut Change::new(put)));
        puts.iter().zip(done).map(rest).collect()
    }

    pub(crate) fn value(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.get(key).map(|found| found.value)
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<u64, Error> {
        self.put_if(key, value, Expect::Any)
    }

    pub(crate) fn put_if(&mut self, key: &[u8], value: &[u8], expect: Expect) -> Result<u64, Error> {
        self.run(&mut Put::new(key, value, 0, expect))
    }

    pub(crate) fn delete(&mut self, key: &[u8]) -> u64 {
        match self.run(&mut Call::delete(key, Expect::Any)) {
            Ok(Reply::Done { version }) => version,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn call(&mut self, request: &Request) -> Reply {
        call(&mut self.store.server.borrow_mut(), self.store.now.get(), self.id, request)
    }

    /// Takes the newest view and acknowledges it, as a host does after a notice.
    pub(crate) fn attend(&mut self) {
        let view: View = self.store.server.borrow().view();
        self.client.adopt(view);
        if let Some(acknowledge) = self.client.poll_acknowledgement() {
            self.call(&acknowledge);
        }
    }

    pub(crate) fn keys(&mut self) -> Vec<Vec<u8>> {
        let (mut cursor, mut all) = (0, Vec::new());
        loop {
            let Reply::Page { next, keys, .. } = self.call(&Request::Scan { cursor, limit: 7 }) else {
                panic!("no page")
            };
            all.extend(keys);
            let Some(next) = next else { break };
            cursor = next;
        }
        all.sort();
        all
    }
}

pub(crate) type Gets = Many<Get>;
pub(crate) const FULL: Error = Error::Refused(Refusal::Full);

/// Bytes that tell of their origin.
pub(crate) fn value(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (seed.wrapping_mul(0x9E37_79B9).wrapping_add(n * 13) >> 3) as u8 | 1).collect()
}
