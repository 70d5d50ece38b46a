//! A store in the gateway's own process.
//!
//! Each worker is a client of it that reads by loads and has its values written by the server. A client that does not
//! acknowledge a view within its lease is cut off, as any other: a process that was stopped for a while finds its workers so.
//! Such a worker becomes a new client. It reads again, then; of a write that failed so nobody says whether it happened.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use remanence_kv::client::{Client, Found, Peek};
use remanence_kv_live::{Local, Locals};
use remanence_resp::store::StoreError;

use crate::erda::{Erda, Handle, NamedChange, Parts};

/// A worker's client.
pub struct Near {
    locals: Locals,
    locations: usize,
    parts: Parts<Local>,
    wake: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Near").field("parts", &self.parts).finish_non_exhaustive()
    }
}

impl Near {
    /// For one thread; it keeps so many locations.
    #[must_use]
    pub fn connect(locals: &Locals, locations: usize) -> Erda<Self> {
        Erda::over(Self::new(locals, locations))
    }

    fn new(locals: &Locals, locations: usize) -> Self {
        let (client, local) = locals.connect(locations);
        Self { locals: locals.clone(), locations, parts: Parts::new(client, local), wake: None }
    }

    /// What the client does, and counts.
    #[must_use]
    pub const fn client(&self) -> &Client {
        self.parts.client()
    }

    /// Whether it was cut off, and is a new client from here on.
    fn begins_anew(&mut self) -> bool {
        let cut_off = self.parts.remote().is_cut_off();
        if cut_off {
            let wake = self.wake.take();
            *self = Self::new(&self.locals, self.locations);
            wake.into_iter().for_each(|wake| self.wake_by(wake));
        }
        cut_off
    }

    /// What changes nothing is done again.
    fn look<T>(
        &mut self,
        mut look: impl FnMut(&mut Parts<Local>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let found = look(&mut self.parts);
        if found.is_err() && self.begins_anew() { look(&mut self.parts) } else { found }
    }

    fn change<T>(
        &mut self,
        change: impl FnOnce(&mut Parts<Local>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let changed = change(&mut self.parts);
        if changed.is_err() {
            self.begins_anew();
        }
        changed
    }
}

impl Handle for Near {
    fn get(&mut self, name: &[u8]) -> Result<Option<Found>, StoreError> {
        self.look(|parts| parts.get(name))
    }

    fn peek(&mut self, name: &[u8], buffer: &mut Vec<u8>) -> Result<Peek, StoreError> {
        self.look(|parts| parts.peek(name, buffer))
    }

    fn peek_front(&mut self, name: &[u8], max: usize, buffer: &mut Vec<u8>) -> Result<Peek, StoreError> {
        self.look(|parts| parts.peek_front(name, max, buffer))
    }

    fn front(&mut self, name: &[u8], max: usize) -> Result<Option<Found>, StoreError> {
        self.look(|parts| parts.front(name, max))
    }

    fn get_many(&mut self, names: &[Vec<u8>]) -> Vec<Result<Option<Found>, StoreError>> {
        let found = self.parts.get_many(names);
        let again = found.iter().any(Result::is_err) && self.begins_anew();
        if again { self.parts.get_many(names) } else { found }
    }

    fn change_many(&mut self, changes: &[NamedChange<'_>]) -> Vec<Result<bool, StoreError>> {
        let done = self.parts.change_many(changes);
        if done.iter().any(Result::is_err) {
            self.begins_anew();
        }
        done
    }

    fn page(&mut self, cursor: u64, limit: u32) -> Result<(Vec<Vec<u8>>, Option<u64>), StoreError> {
        self.look(|parts| parts.page(cursor, limit))
    }

    fn counts(&mut self) -> Result<(bool, Vec<(u8, u64)>), StoreError> {
        self.look(|parts| parts.counts())
    }

    fn clear(&mut self, first: Option<u8>, cursor: u64) -> Result<Option<u64>, StoreError> {
        self.change(|parts| parts.clear(first, cursor))
    }

    fn rest(&mut self) -> Option<Duration> {
        self.begins_anew();
        self.parts.rest()
    }

    fn tells(&self) -> bool {
        true
    }

    fn wake_by(&mut self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.parts.remote().wake_by(Arc::clone(&wake));
        self.wake = Some(wake);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use remanence_kv_live::{Server, ServerOptions, Stop};
    use remanence_verbs::{Context, Options};

    use remanence_kv::proto::Expect;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(120);

    fn put(near: &mut Near, name: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        let change = NamedChange { name, value: Some(value), expect: Expect::Any };
        near.change_many(&[change]).pop().expect("one for one")
    }

    /// What is done with a store of 8 MiB that serves meanwhile.
    fn with_store(ip: &str, lease: Duration, test: impl FnOnce(&dyn Fn() -> Near)) {
        let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        let context = Context::open(Options::udp(ip.parse().expect("an address"))).expect("a device");
        let options = ServerOptions::file(memory.path().join("store")).size(8 << 20).lease(lease);
        let mut server = Server::bind(&context, options).expect("a server");
        let locals = server.locals().expect("alone");
        let over = Stop::new();
        let stop = over.clone();
        let serving = std::thread::spawn(move || server.run(&stop));
        test(&|| Near::new(&locals, 16));
        over.ask();
        serving.join().expect("the server's thread").expect("it served");
    }

    #[test]
    fn a_store_full_of_long_values_takes_each_again_and_nobody_waits_in_place() {
        with_store("127.9.41.2", Duration::from_secs(60), |new| {
            let mut near = new();
            let mut put = |key: u8, byte: u8| {
                let value = vec![byte; 250 << 10];
                let since = Instant::now();
                loop {
                    match put(&mut near, &[key], &value) {
                        Err(StoreError::InTheWay) => std::thread::yield_now(),
                        outcome => break outcome,
                    }
                    assert!(since.elapsed() < PATIENCE, "it is neither taken nor refused");
                }
            };
            let keys = (0..).take_while(|key| put(*key, 0) == Ok(true)).count() as u8;
            assert!(keys > 8, "{keys} values");
            for round in 1..3 {
                for key in 0..keys {
                    assert_eq!(put(key, round), Ok(true), "{key} of {keys}");
                }
            }
        });
    }

    #[test]
    fn a_worker_that_was_cut_off_becomes_a_new_client() {
        with_store("127.9.41.1", Duration::from_millis(50), begins_anew);
    }

    #[test]
    fn an_idle_worker_is_woken_when_the_server_waits_for_it() {
        with_store("127.9.41.3", Duration::from_secs(60), |new| {
            let (mut idle, mut busy) = (new(), new());
            let (wakes, woken) = std::sync::mpsc::channel();
            idle.wake_by(Arc::new(move || _ = wakes.send(())));
            let since = Instant::now();
            // Several times what fits, so that the log is cleaned; that is over when everybody has said that he knows of it.
            for _ in 0..3 {
                while woken.try_recv().is_err() {
                    assert!(since.elapsed() < PATIENCE, "it is not told");
                    let _ = put(&mut busy, b"changed", &[1; 32 << 10]);
                    busy.rest();
                }
                idle.rest();
            }
            assert!(!idle.parts.remote().is_cut_off());
        });
    }

    fn begins_anew(new: &dyn Fn() -> Near) {
        let cut_off = |near: &mut Near| {
            // Several times what fits: cleaning waits for every client's word, for a lease.
            let (mut busy, since) = (new(), Instant::now());
            while !near.parts.remote().is_cut_off() {
                assert!(since.elapsed() < PATIENCE, "it is never cut off");
                // On a busy machine this one is, too.
                let _ = put(&mut busy, b"changed", &[1; 32 << 10]);
                busy.rest();
            }
        };
        let value = |found: Option<Found>| found.map(|found| found.value);
        let mut near = new();
        assert_eq!(put(&mut near, b"kept", b"value"), Ok(true));
        cut_off(&mut near);
        assert_eq!(near.get(b"kept").map(value), Ok(Some(b"value".to_vec())), "it reads again");
        cut_off(&mut near);
        let mut buffer = b"before".to_vec();
        match near.peek(b"kept", &mut buffer).expect("it looks again") {
            Peek::Found { value, .. } => assert_eq!(&buffer[value], b"value"),
            Peek::Absent => panic!("it has a value"),
            Peek::Unknown => assert_eq!(buffer, b"before"),
        }
        cut_off(&mut near);
        let many = near.get_many(&[b"kept".to_vec(), b"never".to_vec()]);
        let many: Vec<_> = many.into_iter().map(|one| one.map(value)).collect();
        assert_eq!(many, [Ok(Some(b"value".to_vec())), Ok(None)]);
        // Of a write nobody says whether it happened, and the next one is made.
        cut_off(&mut near);
        assert!(put(&mut near, b"kept", b"next").is_err());
        let since = Instant::now();
        while put(&mut near, b"kept", b"last") != Ok(true) {
            assert!(since.elapsed() < PATIENCE, "it never writes again");
        }
        assert_eq!(near.get(b"kept").map(value), Ok(Some(b"last".to_vec())));
        cut_off(&mut near);
        near.rest();
        assert!(!near.parts.remote().is_cut_off(), "who rests begins anew, too");
    }
}
