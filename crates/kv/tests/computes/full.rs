//! A store that is full, of values of any length: each write is taken, or refused at once, or cleaning gets on meanwhile.

use std::collections::BTreeMap;

use crate::bounded::{BY_ITSELF, Bench, plain};
use remanence_kv::proto::{Expect, Reply, Request};
use remanence_kv::{Geometry, Refusal};

const SIZE: u64 = 4 << 20;

/// As the paper's: 64 regions at least, of four segments each.
fn geometry() -> Geometry {
    Geometry::for_size(SIZE)
}

/// The same value has the same bytes, and another one hardly any of them.
fn value(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (seed.wrapping_mul(0x9E37_79B9).wrapping_add(n * 13) >> 3) as u8).collect()
}

/// What became of a write.
#[derive(PartialEq, Eq, Debug)]
enum Outcome {
    Taken,
    Full,
}

/// A store, and what it is to have.
struct Full<'m> {
    bench: Bench<'m>,
    model: BTreeMap<u64, (u64, usize)>,
    seed: u64,
}

impl<'m> Full<'m> {
    fn open(medium: &'m crate::bounded::Plain) -> Self {
        let mut bench = Bench::open(medium, BY_ITSELF);
        bench.rest();
        Self { bench, model: BTreeMap::new(), seed: 0 }
    }

    /// Writes a value. While that waits for cleaning, each one that comes to its end has made room worth while, or makes an end of it:
    /// so all of them together move a few times what the store has.
    fn put(&mut self, key: u64, len: usize) -> Outcome {
        self.seed += 1;
        let put = Request::PutInline {
            key: key.to_le_bytes().to_vec(),
            value: value(self.seed, len),
            expires: 0,
            expect: Expect::Any,
        };
        // So much is far more than it takes to make all the room that can be had.
        let (before, most) = (self.bench.server.spent(), 100_000);
        for _ in 0..most {
            match self.bench.server.handle(self.bench.now, self.bench.client, &put) {
                Reply::Done { .. } | Reply::Written(_) => {
                    self.model.insert(key, (self.seed, len));
                    return Outcome::Taken;
                }
                Reply::Refused(Refusal::Full | Refusal::TooLarge { .. }) => return Outcome::Full,
                Reply::Refused(Refusal::Cleaning | Refusal::Growing) => {}
                reply => panic!("{reply:?}"),
            }
            let spent = self.bench.server.spent() - before;
            assert!(
                spent < most,
                "{spent} things for one value of {len} bytes: {:?}",
                self.bench.server.usage()
            );
            self.bench.step();
        }
        panic!("{len} bytes are neither taken nor refused: {:?}", self.bench.server.usage());
    }

    fn delete(&mut self, key: u64) {
        let delete = Request::Delete { key: key.to_le_bytes().to_vec(), expect: Expect::Any };
        let reply = self.bench.server.handle(self.bench.now, self.bench.client, &delete);
        assert!(matches!(reply, Reply::Done { .. }), "a deletion is always made: {reply:?}");
        self.model.remove(&key);
    }

    fn check(&mut self) {
        for (key, (seed, len)) in &self.model {
            let Reply::Value { value: found, .. } = self.bench.get(*key) else { panic!("{key} has gone") };
            assert!(found == value(*seed, *len), "{key} has another value");
        }
    }

    /// New keys until one is refused; how many there are then.
    fn fill(&mut self, len: impl Fn(u64) -> usize) -> u64 {
        (0..).take_while(|key| self.put(*key, len(*key)) == Outcome::Taken).count() as u64
    }
}

/// Steps of a generator that needs nothing else.
fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    *random >> 33
}

#[test]
fn a_full_store_takes_each_of_its_values_again_however_long() {
    // Up to a quarter of the store each, at the edges of segments and regions and anywhere between them.
    let (segment, region) = (geometry().segment_len as usize, geometry().region_len as usize);
    let edges = [segment - 200, segment - 100, segment + 1, region - 200, region, 2 * region + 77];
    for len in edges.into_iter().chain([3000, 20_000, 62_500, 150_000, 250_000, 500_000, 900_000]) {
        let medium = plain(&geometry(), 4000);
        let mut full = Full::open(&medium);
        let keys = full.fill(|_| len);
        // Of some that are a little too long for a segment each takes two.
        assert!(keys >= 2 && keys * len as u64 * 10 > SIZE * 3, "{keys} values of {len} bytes");
        let mut random = len as u64;
        for round in 0..2 {
            for key in 0..keys {
                assert_eq!(full.put(key, len), Outcome::Taken, "{key} of {keys}, {len} bytes, round {round}");
            }
            let some = next(&mut random) % keys;
            for _ in 0..3 {
                assert_eq!(
                    full.put(some, len),
                    Outcome::Taken,
                    "{some} of {keys}, {len} bytes, round {round}"
                );
            }
        }
        full.check();
        full.bench.assert_bounded();
        // As recovery finds it.
        let Full { model, seed, .. } = full;
        let mut full = Full { model, seed, ..Full::open(&medium) };
        full.check();
        for key in 0..keys {
            assert_eq!(full.put(key, len), Outcome::Taken, "{key} of {keys}, {len} bytes, opened again");
        }
        full.check();
        // Deletions are always made, and make room.
        for key in (0..keys).step_by(2) {
            full.delete(key);
        }
        // What is put beside their tombstones is padded differently.
        for key in (0..keys).step_by(4) {
            assert_eq!(full.put(key, len), Outcome::Taken, "{key} of {keys}, {len} bytes");
        }
        (0..keys).for_each(|key| full.delete(key));
        assert_eq!(full.bench.server.usage().room.live, 0);
    }
}

#[test]
fn what_is_written_is_taken_or_refused_and_no_cleaning_goes_on_for_nothing() {
    let lens = [100, 3000, 8000, 30_000, 100_000, 250_000, 700_000, 1_900_000, 3_000_000];
    for round in 0..12u64 {
        let medium = plain(&geometry(), 4000);
        let mut full = Full::open(&medium);
        let mut random = round;
        // Of two lengths in some rounds, of all in others; up to what the store never has room for.
        let some: Vec<usize> = match round % 3 {
            0 => lens.to_vec(),
            1 => vec![lens[round as usize % lens.len()], lens[(round as usize / 3) % lens.len()]],
            _ => vec![lens[round as usize % lens.len()]],
        };
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..150 {
            let key = next(&mut random) % 40;
            match next(&mut random) % 16 {
                0 => full.delete(key),
                n => {
                    let len = some[next(&mut random) as usize % some.len()];
                    let len = if n < 4 { 1 + next(&mut random) as usize % len } else { len };
                    match full.put(key, len) {
                        Outcome::Taken => taken += 1,
                        Outcome::Full => refused += 1,
                    }
                }
            }
        }
        assert!(taken > 0, "round {round}: {refused} refused");
        full.check();
        let keys: Vec<u64> = full.model.keys().copied().collect();
        keys.into_iter().for_each(|key| full.delete(key));
        assert_eq!(
            full.put(0, 250_000),
            Outcome::Taken,
            "an empty store has room: {:?}",
            full.bench.server.usage()
        );
    }
}
