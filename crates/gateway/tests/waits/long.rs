//! Commands that go over all keys: others of the same thread are served between their parts.

use crate::common;

use std::io::Read as _;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use common::{PATIENCE, UnixClient};
use remanence_gateway::{Address, Gateway, Options};
use remanence_resp::memory::MemoryStore;
use remanence_resp::store::{Condition, Key, Store, StoreError, StoreLimits, Version};

/// Goes over all keys, and comes to no end before it may.
#[derive(Clone, Default)]
struct Endless {
    store: MemoryStore,
    parts: Arc<AtomicU64>,
    may_end: Arc<AtomicBool>,
}

impl Endless {
    fn may_end(&self) -> bool {
        self.parts.fetch_add(1, Ordering::SeqCst);
        self.may_end.load(Ordering::SeqCst)
    }
}

impl Store for Endless {
    fn limits(&self) -> StoreLimits {
        self.store.limits()
    }
    fn get(&mut self, key: Key<'_>, value: &mut Vec<u8>) -> Result<Option<Version>, StoreError> {
        self.store.get(key, value)
    }
    fn put(&mut self, key: Key<'_>, value: &[u8], condition: Condition) -> Result<bool, StoreError> {
        self.store.put(key, value, condition)
    }
    fn delete(&mut self, key: Key<'_>, condition: Condition) -> Result<bool, StoreError> {
        self.store.delete(key, condition)
    }
    fn scan(
        &mut self,
        space: u8,
        _: u64,
        _: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<u64, StoreError> {
        if self.may_end() { self.store.scan(space, 0, usize::MAX, each) } else { Ok(1) }
    }
    fn count(&mut self, space: u8) -> Result<Option<u64>, StoreError> {
        if self.may_end() { self.store.count(space) } else { Ok(None) }
    }
    fn clear(&mut self, space: Option<u8>, _: u64) -> Result<u64, StoreError> {
        if self.may_end() { self.store.clear(space, 0) } else { Ok(1) }
    }
}

#[test]
fn others_are_served_between_the_parts_of_what_goes_over_all_keys() {
    let cases = [
        ("KEYS *", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
        ("RANDOMKEY", "$1\r\n"),
        ("DBSIZE", ":2\r\n"),
        ("FLUSHDB", "+OK\r\n"),
        ("FLUSHALL ASYNC", "+OK\r\n"),
    ];
    for (command, reply) in cases {
        let store = Endless::default();
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("gateway");
        let options =
            Options { listen: vec![Address::Unix(path.clone())], threads: 1, sweep: 0, ..Options::default() };
        let served = store.clone();
        let gateway = Gateway::start(options, move |_| Ok(served.clone())).expect("a gateway");
        let (mut long, mut short) = (UnixClient::connect(&path), UnixClient::connect(&path));
        short.send("SET a 1\r\n");
        short.expect("+OK\r\n");
        // What follows is carried out behind it, though its sender has nothing more to say.
        long.send(&format!("{command}\r\nECHO after\r\n"));
        long.0.shutdown(Shutdown::Write).expect("a socket");
        let since = Instant::now();
        while store.parts.load(Ordering::SeqCst) < 3 {
            assert!(since.elapsed() < PATIENCE, "{command} comes to no third part");
            std::thread::yield_now();
        }
        short.send("SET b 2\r\nGET b\r\n");
        short.expect("+OK\r\n$1\r\n2\r\n");
        assert!(long.has_no_reply(), "{command} cannot be over");
        store.may_end.store(true, Ordering::SeqCst);
        long.expect(reply);
        if command == "RANDOMKEY" {
            long.0.read_exact(&mut [0; 3]).expect("a key");
        }
        long.expect("$5\r\nafter\r\n");
        // In a transaction nothing comes between.
        short.send(&format!("MULTI\r\n{command}\r\nEXEC\r\n"));
        short.expect("+OK\r\n+QUEUED\r\n*1\r\n");
        gateway.stop();
    }
}
