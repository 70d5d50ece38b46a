//! Hashes in parts are what hashes are: whatever their size, whoever is at them meanwhile, and wherever somebody stops.

use crate::common;

use std::collections::{BTreeMap, BTreeSet};

use common::{Hooked, ends, hooked};
use remanence_resp::engine::{Config, Moment, Session, Shared};
use remanence_resp::joint::Joint;
use remanence_resp::memory::{self, Hook, MemoryStore, Step};
use remanence_resp::parts::{Collected, collect, has_part, is_in_parts, owner_of, sweep};
use remanence_resp::protocol::{Decoder, Frame, Limits, parse_frame};
use remanence_resp::store::{Condition, Key, Store, StoreError};
use remanence_resp::sweep::Sweep;

/// So small that a hash of a few fields is in parts, and folded at every other change.
const WHOLE: usize = 64;
const BUCKETS: u8 = 128;

fn shared(whole: usize) -> Shared {
    Shared::new(Config { hash_whole: whole, ..Config::default() }, 0)
}

fn moment(state: &mut u64) -> Moment {
    Moment { unix_us: 1_000_000, random: random(state) as u64 }
}

fn random(state: &mut u64) -> usize {
    *state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
    (*state >> 33) as usize
}

fn run<S: Store>(shared: &Shared, store: &mut S, line: &str) -> Vec<u8> {
    let mut session = Session::open(shared, "a", "b", 0);
    let mut out = Vec::new();
    let mut decoder = Decoder::new(Limits::default());
    decoder.push(format!("{line}\r\n").as_bytes());
    let request = decoder.next(false).expect("a request").expect("all of it");
    session.execute(&request, store, shared, Moment { unix_us: 1_000_000, random: 7 }, &mut out);
    session.close(shared);
    out
}

/// Folds all that is due.
fn fold<S: Store>(shared: &Shared, store: &mut S, state: &mut u64) -> Result<(), StoreError> {
    while shared.fold(store, moment(state))? {}
    Ok(())
}

/// The leaves of a reply, in an order of their own.
fn sorted(reply: &[u8]) -> Vec<String> {
    fn leaves(frame: &Frame, into: &mut Vec<String>) {
        match frame {
            Frame::Array(items) | Frame::Map(items) => {
                // Pairs stay pairs, so that values do not change places.
                into.extend(items.chunks(2).map(|pair| format!("{pair:?}")));
            }
            other => into.push(format!("{other:?}")),
        }
    }
    let (frame, len) = parse_frame(reply).expect("a reply").expect("all of it");
    assert_eq!(len, reply.len());
    let mut all = Vec::new();
    leaves(&frame, &mut all);
    all.sort();
    all
}

/// What a hash has, by HGETALL; by HGET it has the same.
fn content<S: Store>(shared: &Shared, store: &mut S, key: &str) -> Vec<String> {
    let all = run(shared, store, &format!("HGETALL {key}"));
    if let Ok(Some((Frame::Array(fields), _))) = parse_frame(&all) {
        for pair in fields.chunks(2) {
            let [Frame::Bulk(name), value] = pair else { panic!("{pair:?}") };
            let line = format!("HGET {key} {}", String::from_utf8_lossy(name));
            let reply = run(shared, store, &line);
            assert_eq!(parse_frame(&reply).expect("a reply").expect("all of it").0, *value, "{line}");
        }
    }
    sorted(&all)
}

/// How many buckets there are to be of the hashes of these keys.
fn buckets_of(store: &mut MemoryStore, names: &[&str]) -> u64 {
    let mut sum = 0;
    for name in names {
        let mut value = Vec::new();
        let key = Key { space: 0, name: name.as_bytes() };
        // A hash in parts that does not expire has its number behind its head, its id and two numbers.
        if store.get(key, &mut value).expect("memory does not fail").is_some() && value[0] == 3 {
            sum += u64::from(u32::from_le_bytes(value[29..33].try_into().expect("four bytes")));
        }
    }
    sum
}

fn buckets(store: &mut MemoryStore) -> u64 {
    store.count(BUCKETS).expect("memory does not fail").expect("it counts")
}

fn a_command(state: &mut u64) -> String {
    let key = ["a", "b"][random(state) % 2];
    let mut field = || format!("f{}", random(state) % 40);
    let (one, two, three) = (field(), field(), field());
    let value = "v".repeat(random(state) % 20) + &random(state).to_string();
    match random(state) % 100 {
        0..30 => format!("HSET {key} {one} {value}"),
        30..40 => format!("HSET {key} {one} {value} {two} {value} {three} 5"),
        40..50 => format!("HDEL {key} {one}"),
        50..52 => format!("HDEL {key} {one} {two} {three} {one}"),
        52..58 => format!("HINCRBY {key} n{} {}", random(state) % 5, random(state) % 9),
        58..60 => format!("HINCRBYFLOAT {key} n{} 1", random(state) % 5),
        60..63 => format!("HSETNX {key} {one} {value}"),
        63..72 => format!("HGET {key} {one}"),
        72..75 => {
            let many: Vec<String> = (0..12).map(|_| format!("f{}", random(state) % 40)).collect();
            format!("HMGET {key} {one} {}", many.join(" "))
        }
        75..78 => format!("HGETALL {key}"),
        78..80 => format!("HKEYS {key}"),
        80..83 => format!("HLEN {key}"),
        83..85 => format!("HEXISTS {key} {one}"),
        85..87 => format!("HSTRLEN {key} {one}"),
        87..89 => format!("TYPE {key}"),
        89 => format!("DEL {key}"),
        90 => "RENAME a b".to_owned(),
        91 => "RENAMENX b a".to_owned(),
        92 => format!("EXPIRE {key} 100"),
        93 => format!("PERSIST {key}"),
        94 => format!("TTL {key}"),
        95 => format!("GET {key}"),
        96 if random(state).is_multiple_of(4) => "FLUSHDB".to_owned(),
        97 if random(state).is_multiple_of(4) => "FLUSHALL".to_owned(),
        98 if random(state).is_multiple_of(2) => format!("SET {key} text"),
        _ => format!("HSET {key} {one} {value}"),
    }
}

#[test]
fn a_hash_in_parts_answers_as_a_whole_one() {
    let mut parted = 0;
    for seed in 0..60 {
        let mut state = seed;
        let (ours, theirs) = (shared(WHOLE << (seed % 4)), shared(usize::MAX));
        let (mut store, mut model) = (MemoryStore::default(), MemoryStore::default());
        let mut cleaner = Sweep::default();
        for n in 0..400 {
            let line = a_command(&mut state);
            let (got, wanted) = (run(&ours, &mut store, &line), run(&theirs, &mut model, &line));
            let unordered = ["HGETALL", "HKEYS"].iter().any(|name| line.starts_with(name));
            if unordered && line.starts_with("HGETALL") {
                assert_eq!(sorted(&got), sorted(&wanted), "seed {seed}, command {n}: {line}");
            } else if unordered {
                assert_eq!(got.len(), wanted.len(), "seed {seed}, command {n}: {line}");
            } else {
                let (got, wanted) = (got.escape_ascii(), wanted.escape_ascii());
                assert_eq!(got.to_string(), wanted.to_string(), "seed {seed}, command {n}: {line}");
            }
            if random(&mut state).is_multiple_of(3) {
                fold(&ours, &mut store, &mut state).expect("memory does not fail");
            }
            cleaner.step(&mut store, &ours.stats, 2, 1000, 10).expect("memory does not fail");
            parted += u64::from(buckets(&mut store) > 8);
        }
    }
    assert!(parted > 5_000, "{parted}");
}

/// A hash with some fields, folded or not, and one more change that makes it due; what it has, by HGETALL.
fn prepared(shared: &Shared, fields: usize, state: &mut u64) -> (MemoryStore, Vec<String>) {
    let mut store = MemoryStore::default();
    for n in 0..fields {
        run(shared, &mut store, &format!("HSET h f{n} first{n}"));
        if n % 3 == 0 {
            fold(shared, &mut store, state).expect("memory does not fail");
        }
    }
    for n in 0..4 {
        run(shared, &mut store, &format!("HSET h f{n} second{n} new{n} {n}"));
        run(shared, &mut store, &format!("HDEL h f{}", n + 4));
    }
    let before = content(shared, &mut store, "h");
    (store, before)
}

/// How many steps something takes.
fn steps(store: &MemoryStore, run: impl FnOnce(&mut Hooked<'_>)) -> usize {
    const MANY: usize = 1 << 20;
    let mut hooked = hooked(store, MANY, |_| ());
    run(&mut hooked);
    MANY - hooked.hook.left
}

#[test]
fn who_stops_anywhere_while_folding_spoils_nothing_and_the_next_one_finishes() {
    for fields in [0, 5, 30] {
        let all = {
            let (shared, mut state) = (shared(WHOLE), 1);
            let (store, _) = prepared(&shared, fields, &mut state);
            steps(&store, |store| fold(&shared, store, &mut state).expect("memory does not fail"))
        };
        assert!(all > 6, "{all} steps");
        for left in 0..all {
            let (shared, mut state) = (shared(WHOLE), 1);
            let (mut store, before) = prepared(&shared, fields, &mut state);
            let mut hooked = ends(&store, left);
            fold(&shared, &mut hooked, &mut state).expect_err("it stops");
            assert_eq!(content(&shared, &mut store, "h"), before, "{fields} fields, {left} steps");
            // Whoever comes next changes something, and finishes.
            run(&shared, &mut store, "HSET h f1 third last 1");
            let changed = content(&shared, &mut store, "h");
            assert_ne!(changed, before);
            for n in 0..20 {
                run(&shared, &mut store, &format!("HSET h g{n} more"));
                run(&shared, &mut store, &format!("HDEL h g{n}"));
                fold(&shared, &mut store, &mut state).expect("memory does not fail");
            }
            assert_eq!(content(&shared, &mut store, "h"), changed, "{fields} fields, {left} steps");
        }
    }
}

#[test]
fn who_is_held_up_anywhere_while_folding_undoes_nothing() {
    for (fields, many) in [(30, 0), (0, 3), (5, 1), (30, 1), (30, 3), (30, 40)] {
        let mut left = 0;
        loop {
            let (shared, mut state) = (shared(WHOLE), 1);
            let (store, _) = prepared(&shared, fields, &mut state);
            let (mut after, mut called) = (Vec::new(), false);
            let mut hook = |store: &mut MemoryStore| {
                // Others go on, through several batches, or change something and no more.
                called = true;
                let others = self::shared(WHOLE);
                let mut state = 2;
                run(&others, store, "HSET h f2 since");
                for n in 0..many {
                    run(&others, store, &format!("HSET h f{n} other{n} f1 other{n} h{n} 1"));
                    run(&others, store, &format!("HDEL h f{} new{n} h{}", n + 20, n / 2));
                    fold(&others, store, &mut state).expect("memory does not fail");
                }
                after = content(&others, store, "h");
            };
            let mut hooked = hooked(&store, left, &mut hook);
            fold(&shared, &mut hooked, &mut state).expect("memory does not fail");
            drop(hooked);
            if !called {
                assert!(left > 6, "{left} steps");
                break;
            }
            let mut store = store;
            assert_eq!(content(&shared, &mut store, "h"), after, "{fields} fields, {left} steps");
            for n in 0..10 {
                run(&shared, &mut store, &format!("HSET h g{n} more"));
                run(&shared, &mut store, &format!("HDEL h g{n}"));
                fold(&shared, &mut store, &mut state).expect("memory does not fail");
            }
            assert_eq!(content(&shared, &mut store, "h"), after, "{fields} fields, {left} steps");
            left += 1;
        }
    }
}

#[test]
fn what_is_read_of_many_parts_is_one_state() {
    let reads = ["HGETALL h", "HMGET h f0 f1 f2 f3 f9 f10 f11 f12 f13 f25", "HLEN h", "HGET h f1"];
    for (fields, line) in [5, 30].into_iter().flat_map(|fields| reads.map(|line| (fields, line))) {
        let mut left = 0;
        loop {
            let (shared, mut state) = (shared(WHOLE), 1);
            let (mut store, _) = prepared(&shared, fields, &mut state);
            // With a batch that is sealed and not in the buckets, and without.
            if left % 2 == 1 {
                fold(&shared, &mut store, &mut state).expect("memory does not fail");
            }
            let order =
                |reply: &[u8]| if line == "HGETALL h" { sorted(reply) } else { vec![format!("{reply:?}")] };
            let before = order(&run(&shared, &mut store, line));
            let mut after = Vec::new();
            let mut hook = |store: &mut MemoryStore| {
                let others = self::shared(WHOLE);
                let mut state = 2;
                // All at once, so that there are two states and none between them.
                let all: Vec<String> = (0..30).map(|n| format!("f{n} changed{n}")).collect();
                run(&others, store, &format!("HSET h {} plus 1", all.join(" ")));
                after = order(&run(&others, store, line));
                fold(&others, store, &mut state).expect("memory does not fail");
            };
            let mut hooked = hooked(&store, left / 2, &mut hook);
            let got = order(&run(&shared, &mut hooked, line));
            drop(hooked);
            if after.is_empty() {
                assert_eq!(got, before);
                break;
            }
            assert!(got == before || got == after, "{line}, {fields} fields, {left}: {got:?}");
            left += 1;
        }
    }
}

#[test]
fn parts_go_when_their_hash_has_gone_and_no_others() {
    for end in ["DEL h", "SET h text", "PEXPIREAT h 1", "RENAME h other", "FLUSHDB", "FLUSHALL"] {
        let (shared, mut state) = (shared(WHOLE), 1);
        let (mut store, before) = prepared(&shared, 30, &mut state);
        run(&shared, &mut store, "SELECT 0");
        fold(&shared, &mut store, &mut state).expect("memory does not fail");
        assert!(buckets(&mut store) > 8);
        run(&shared, &mut store, end);
        let flushes = end.starts_with("FLUSH");
        if !flushes {
            // A hash that comes after it has parts of its own.
            for n in 0..40 {
                run(
                    &shared,
                    &mut store,
                    &format!("HSET {} f{n} again", if end == "SET h text" { "i" } else { "h" }),
                );
                fold(&shared, &mut store, &mut state).expect("memory does not fail");
            }
        }
        let mut cursor = 0;
        loop {
            (cursor, _) = sweep(&mut store, 0, cursor, 3).expect("memory does not fail");
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(buckets(&mut store) == 0, flushes, "{end}");
        assert_eq!(buckets(&mut store), buckets_of(&mut store, &["h", "i", "other"]), "{end}");
        if end == "RENAME h other" {
            assert_eq!(content(&shared, &mut store, "other"), before);
        }
        for key in ["h", "i"] {
            let reply = content(&shared, &mut store, key);
            assert!(reply.iter().all(|pair| !pair.contains("first") || flushes), "{end}: {reply:?}");
        }
        let names = ["h", "i", "other"];
        for name in names {
            run(&shared, &mut store, &format!("DEL {name}"));
        }
        let mut cleaner = Sweep::default();
        for _ in 0..200 {
            cleaner.step(&mut store, &shared.stats, 2, 1000, 5).expect("memory does not fail");
        }
        assert_eq!(buckets(&mut store), 0, "{end}: a sweep goes over all databases");
    }
}

#[test]
fn a_sweep_leaves_what_others_have_put_where_parts_are() {
    let mut store = MemoryStore::default();
    // It is read as a bucket without fields, of a key without a name.
    let value = [4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for name in [&b""[..], b"a", &[7; 19], &[7; 21]] {
        store.put(Key { space: BUCKETS, name }, &value, Condition::Always).expect("memory does not fail");
    }
    store
        .put(Key { space: BUCKETS, name: &[7; 20] }, b"text", Condition::Always)
        .expect("memory does not fail");
    assert_eq!(sweep(&mut store, 0, 0, 100).expect("memory does not fail").1.deleted, 0);
    assert_eq!(buckets(&mut store), 5);
}

#[test]
fn a_sweep_while_a_hash_is_folded_takes_nothing_of_it() {
    let mut left = 0;
    loop {
        let (shared, mut state) = (shared(WHOLE), 1);
        let (mut store, before) = prepared(&shared, 0, &mut state);
        let mut called = false;
        let mut hook = |store: &mut MemoryStore| {
            called = true;
            sweep(store, 0, 0, 1000).expect("memory does not fail");
        };
        let mut hooked = hooked(&store, left, &mut hook);
        fold(&shared, &mut hooked, &mut state).expect("memory does not fail");
        drop(hooked);
        assert_eq!(content(&shared, &mut store, "h"), before, "{left} steps");
        if !called {
            break;
        }
        left += 1;
    }
    assert!(left > 6);
}

#[test]
fn a_scan_shows_every_field_that_stays_however_a_hash_grows() {
    let (shared, mut state) = (shared(WHOLE), 1);
    let mut store = MemoryStore::default();
    for n in 0..50 {
        run(&shared, &mut store, &format!("HSET h stay{n} v"));
    }
    let (mut shown, mut cursor, mut calls) = (BTreeSet::new(), "0".to_owned(), 0);
    loop {
        // A hash that is one value as it begins, and in parts from then on.
        let reply = run(&shared, &mut store, &format!("HSCAN h {cursor} COUNT 3"));
        if calls == 0 {
            fold(&shared, &mut store, &mut state).expect("memory does not fail");
        }
        let (frame, _) = parse_frame(&reply).expect("a reply").expect("all of it");
        let Frame::Array(parts) = frame else { panic!("{frame:?}") };
        let [Frame::Bulk(next), Frame::Array(fields)] = &parts[..] else { panic!("{parts:?}") };
        for pair in fields.chunks(2) {
            let Frame::Bulk(name) = &pair[0] else { panic!("{pair:?}") };
            shown.insert(String::from_utf8(name.clone()).expect("text"));
        }
        if calls == 0 {
            shown.clear();
            cursor = "0".to_owned();
        } else {
            cursor = String::from_utf8(next.clone()).expect("text");
        }
        // As in Redis, it ends if the hash does not grow for ever.
        for n in 0..if calls < 100 { 10 } else { 0 } {
            run(&shared, &mut store, &format!("HSET h come{calls}-{n} v"));
            run(&shared, &mut store, &format!("HDEL h come{}-{n}", calls / 2));
        }
        fold(&shared, &mut store, &mut state).expect("memory does not fail");
        calls += 1;
        if calls > 1 && cursor == "0" {
            break;
        }
        assert!(calls < 10_000, "a scan ends");
    }
    assert!((0..50).all(|n| shown.contains(&format!("stay{n}"))), "{shown:?}");
    assert!(calls > 10, "{calls} calls");
}

/// Whoever has changed a hash in front of the store, and finds that others have folded it there, carries the command out again.
#[test]
fn a_hash_that_others_fold_while_changes_of_it_wait_loses_none() {
    let mut again = 0;
    for seed in 0..60 {
        let mut state = seed;
        let (ours, others) = (shared(WHOLE), shared(WHOLE));
        let (mut store, _) = prepared(&ours, 30, &mut state);
        let mut model: BTreeMap<String, String> = BTreeMap::new();
        let mut session = Session::open(&ours, "a", "b", 0);
        let mut joint = Joint::default();
        for round in 0..20 {
            let lines: Vec<(String, String)> = (0..6)
                .map(|n| (format!("f{}", random(&mut state) % 40), format!("s{seed}r{round}n{n}")))
                .collect();
            let request = |line: &str, act: &mut dyn FnMut(&remanence_resp::protocol::Request<'_>)| {
                let mut decoder = Decoder::new(Limits::default());
                decoder.push(format!("{line}\r\n").as_bytes());
                act(&decoder.next(false).expect("a request").expect("all of it"));
            };
            for (n, (field, value)) in lines.iter().enumerate() {
                request(&format!("HSET h {field} {value}"), &mut |request| {
                    let pair = (&mut store, &mut joint);
                    let mut out = Vec::new();
                    session.execute_joined(n, request, pair, &ours, moment(&mut 1), &mut out);
                });
                if random(&mut state).is_multiple_of(4) {
                    let field = format!("g{}", random(&mut state) % 9);
                    run(&others, &mut store, &format!("HSET h {field} {round}"));
                    model.insert(field, round.to_string());
                    fold(&others, &mut store, &mut state).expect("memory does not fail");
                }
            }
            let mut left = joint.write(&mut store, &ours);
            again += left.len();
            while !left.is_empty() {
                for (piece, verdict) in left {
                    let pair = (&mut store, &mut joint);
                    session.mend((&piece, verdict), pair, &ours, moment(&mut 1), &mut Vec::new());
                }
                left = joint.write(&mut store, &ours);
            }
            model.extend(lines);
            fold(&ours, &mut store, &mut state).expect("memory does not fail");
            for (field, value) in &model {
                let reply = run(&ours, &mut store, &format!("HGET h {field}"));
                let wanted = format!("${}\r\n{value}\r\n", value.len());
                assert_eq!(String::from_utf8_lossy(&reply), wanted, "seed {seed}, round {round}: {field}");
            }
        }
        session.close(&ours);
        assert_eq!(
            ours.stats.errors.get(),
            0,
            "what comes again is no error: {:?}",
            ours.stats.errors_by_code()
        );
    }
    assert!(again > 100, "{again}");
}

#[test]
fn threads_that_change_and_fold_one_hash_lose_nothing() {
    const EACH: usize = 400;
    let shared = shared(256);
    let store = MemoryStore::default();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (shared, mut store) = (&shared, store.clone());
            scope.spawn(move || {
                let mut state = thread;
                for n in 0..EACH {
                    run(shared, &mut store, "HINCRBY h sum 1");
                    run(shared, &mut store, &format!("HINCRBY h sum{} 1", n % 50));
                    run(shared, &mut store, &format!("HSET h t{thread}-{n} v"));
                    if n % 20 == 0 {
                        let reply = run(shared, &mut store, "HGETALL h");
                        assert!(reply.starts_with(b"*"), "{}", reply.escape_ascii());
                    }
                    let _ = shared.fold(&mut store, moment(&mut state)).expect("memory does not fail");
                }
            });
        }
    });
    let mut store = store;
    assert_eq!(run(&shared, &mut store, "HGET h sum"), format!("$4\r\n{}\r\n", 4 * EACH).as_bytes());
    assert_eq!(run(&shared, &mut store, "HGET h sum7"), format!("$2\r\n{}\r\n", 4 * EACH / 50).as_bytes());
    assert_eq!(run(&shared, &mut store, "HLEN h"), format!(":{}\r\n", 4 * EACH + 51).as_bytes());
    assert_eq!(content(&shared, &mut store, "h").len(), 4 * EACH + 51);
}

/// Counts what waits for the medium: each write, and those together once.
#[derive(Default)]
struct Counts {
    waits: u64,
}

impl Hook for Counts {
    const TOGETHER: bool = true;

    fn before(&mut self, step: Step<'_>, _: &mut MemoryStore) -> Result<(), StoreError> {
        self.waits += u64::from(matches!(step, Step::Put(..) | Step::Delete(_) | Step::Changes));
        Ok(())
    }
}

/// New buckets take two waits more than those that are there.
#[test]
fn a_growing_hash_gets_new_parts_several_at_a_time() {
    let (shared, mut state) = (shared(2048), 1);
    let mut store = MemoryStore::default();
    let mut fields = 0;
    let set = |store: &mut MemoryStore, state: &mut u64, field: usize| {
        run(&shared, store, &format!("HSET h field{field} value"));
        fold(&shared, store, state).expect("memory does not fail");
    };
    while fields < 2000 {
        set(&mut store, &mut state, fields);
        fields += 1;
    }
    let batch = |store: &mut MemoryStore| {
        let value = read(store, b"\0h").expect("it is there");
        u64::from_le_bytes(value[17..25].try_into().expect("eight bytes"))
    };
    let (first, mut growths, mut last) = (batch(&mut store), 0, buckets(&mut store));
    for n in 0..5000 {
        // One in ten is new.
        let field = if n % 10 == 0 { fields } else { random(&mut state) % fields };
        fields += usize::from(field == fields);
        set(&mut store, &mut state, field);
        let now = buckets(&mut store);
        growths += u64::from(now != last);
        last = now;
    }
    let batches = batch(&mut store) - first;
    assert!(
        batches > 20 && growths > 0 && growths * 3 < batches,
        "{growths} of {batches} batches had new ones"
    );
}

/// Nothing folds beside a transaction.
#[test]
fn a_hash_that_one_transaction_changes_often_is_folded_within_it() {
    let (shared, mut store) = (shared(2048), MemoryStore::default());
    run(&shared, &mut store, "HSET h field0 value");
    let mut session = Session::open(&shared, "a", "b", 0);
    let mut ask = |store: &mut MemoryStore, line: &str| {
        let mut decoder = Decoder::new(Limits::default());
        decoder.push(format!("{line}\r\n").as_bytes());
        let request = decoder.next(false).expect("a request").expect("all of it");
        session.execute(&request, store, &shared, moment(&mut 1), &mut Vec::new());
    };
    ask(&mut store, "MULTI");
    for n in 0..20_000 {
        ask(&mut store, &format!("HSET h field{} value{n}", n % 5000));
    }
    ask(&mut store, "EXEC");
    let left = read(&mut store, b"\0h").expect("it is there").len();
    assert!(left < 64 << 10 && buckets(&mut store) > 500, "{left} bytes wait");
    assert_eq!(run(&shared, &mut store, "HLEN h"), b":5000\r\n");
    assert_eq!(run(&shared, &mut store, "HGET h field4999"), b"$10\r\nvalue19999\r\n");
}

/// Commands seal what they have changed, and take out what is in the buckets, with writes that they wait for anyway; and the
/// buckets of a batch share a wait, however many they are.
#[test]
fn a_hash_that_is_changed_all_the_time_is_folded_with_one_wait_for_a_batch() {
    const FIELDS: usize = 800;
    let (shared, mut state) = (shared(2048), 1);
    let mut store = memory::Hooked::<Counts>::default();
    let mut model = BTreeMap::new();
    for n in 0..FIELDS {
        run(&shared, &mut store, &format!("HSET h field{n} value"));
        fold(&shared, &mut store, &mut state).expect("memory does not fail");
        model.insert(n, "value".to_owned());
    }
    assert!(buckets(&mut store.store) > 64, "more than are read together");
    let batch = |store: &mut memory::Hooked<Counts>| {
        let value = read(&mut store.store, b"\0h").expect("it is there");
        u64::from_le_bytes(value[17..25].try_into().expect("eight bytes"))
    };
    let mut session = Session::open(&shared, "a", "b", 0);
    let mut joint = Joint::default();
    let (mut before, mut writes) = (0, 0);
    for round in 100..500 {
        if round == 150 {
            // From here on there are as many buckets as there are to be: new ones would come with a wait of their own.
            (before, writes, store.hook.waits) = (batch(&mut store), 0, 0);
        }
        if round == 350 {
            let batches = batch(&mut store) - before;
            assert!(batches > 5, "{batches} batches");
            assert_eq!(store.hook.waits, writes + batches, "{batches} batches");
        }
        for n in 0..10 {
            let (field, value) = (random(&mut state) % FIELDS, format!("{n}r{round}"));
            let mut decoder = Decoder::new(Limits::default());
            decoder.push(format!("HSET h field{field} {value}\r\n").as_bytes());
            let request = decoder.next(false).expect("a request").expect("all of it");
            let pair = (&mut store, &mut joint);
            session.execute_joined(n, &request, pair, &shared, moment(&mut 1), &mut Vec::new());
            model.insert(field, value);
        }
        assert!(joint.write(&mut store, &shared).is_empty());
        writes += 1;
        // In the end so seldom that the next batch is large enough before the last one is out.
        if round < 350 || round % 20 == 0 {
            shared.fold(&mut store, moment(&mut state)).expect("memory does not fail");
        }
    }
    for (field, value) in model {
        let reply = run(&shared, &mut store, &format!("HGET h field{field}"));
        let wanted = format!("${}\r\n{value}\r\n", value.len());
        assert_eq!(String::from_utf8_lossy(&reply), wanted, "field {field}");
    }
}

/// A bucket that is gone, or garbled, is an error, and no hash with holes.
#[test]
fn a_part_that_is_lost_is_told() {
    let (shared, mut state) = (shared(WHOLE), 1);
    let (mut store, _) = prepared(&shared, 30, &mut state);
    fold(&shared, &mut store, &mut state).expect("memory does not fail");
    let mut names = Vec::new();
    store.scan(BUCKETS, 0, 1000, &mut |name, _| names.push(name.to_vec())).expect("memory does not fail");
    let name = names.iter().min().expect("a bucket");
    let key = Key { space: BUCKETS, name };
    let mut value = Vec::new();
    store.get(key, &mut value).expect("memory does not fail");
    for broken in [None, Some(&b"\x04short"[..]), Some(b"foreign"), Some(&value[..value.len() - 1])] {
        match broken {
            None => assert!(store.delete(key, Condition::Always).expect("memory does not fail")),
            Some(bytes) => assert!(store.put(key, bytes, Condition::Always).expect("memory does not fail")),
        }
        let reply = run(&shared, &mut store, "HGETALL h");
        assert!(reply.starts_with(b"-ERR "), "{}", reply.escape_ascii());
        let lost = broken.is_none();
        assert_eq!(reply.starts_with(b"-ERR a part of this hash is lost"), lost, "{}", reply.escape_ascii());
    }
    // And ends with the hash.
    assert_eq!(run(&shared, &mut store, "DEL h"), b":1\r\n");
    assert_eq!(run(&shared, &mut store, "HGETALL h"), b"*0\r\n");
}

/// Reads a key of the store by its own name.
fn read(store: &mut MemoryStore, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    let key = Key { space: key[0], name: &key[1..] };
    store.get(key, &mut value).expect("memory does not fail").map(|_| value)
}

#[test]
fn a_copy_has_every_field_that_is_there_all_the_while() {
    for many in [1, 3, 30] {
        let mut left = 0;
        loop {
            let (shared, mut state) = (shared(WHOLE), 1);
            let (mut store, _) = prepared(&shared, 30, &mut state);
            let is = |value: &[u8]| format!("{:?}", run(&self::shared(WHOLE), &mut wrap(value), "HGETALL h"));
            let (mut steps, mut called) = (0, false);
            let copy = collect(b"\0h", |keys| {
                // The last one first: the order means nothing.
                let mut values = Vec::new();
                for key in keys.iter().rev() {
                    if steps == left {
                        called = true;
                        for n in 0..many {
                            run(
                                &shared,
                                &mut store,
                                &format!("HSET h come{n} v f8 changed{n} f1 changed{n}"),
                            );
                            run(&shared, &mut store, &format!("HSET h more{n} v"));
                            run(&shared, &mut store, "HDEL h f9");
                            fold(&shared, &mut store, &mut state).expect("memory does not fail");
                        }
                    }
                    steps += 1;
                    values.push(read(&mut store, key));
                }
                values.reverse();
                Ok::<_, StoreError>(values)
            });
            let Ok(Collected::Value(copy)) = copy else { panic!("{copy:?}") };
            assert!(!is_in_parts(&copy), "it is one value");
            let mut copied = wrap(&copy);
            let copied = content(&shared, &mut copied, "h");
            let now = content(&shared, &mut store, "h");
            // What nobody touched is there as it is, and what was changed has a value that it had.
            for pair in &now {
                let touched = ["[99, 111, 109, 101", "[109, 111, 114, 101", "[102, 56]", "[102, 49]"];
                let touched = touched.iter().any(|name| pair.starts_with(&format!("[Bulk({name}")));
                assert!(touched || copied.contains(pair), "{many}, {left}: {pair} is not in {}", is(&copy));
            }
            for field in ["f1", "f8"] {
                let reply = run(&shared, &mut wrap(&copy), &format!("HGET h {field}"));
                assert!(reply.starts_with(b"$") && reply != b"$-1\r\n", "{many}, {left}: {field}");
            }
            if !called {
                assert_eq!(copied, now);
                assert!(left > 10);
                break;
            }
            left += 1;
        }
    }
}

/// A store with this value.
fn wrap(value: &[u8]) -> MemoryStore {
    let mut store = MemoryStore::default();
    store.put(Key { space: 0, name: b"h" }, value, Condition::Always).expect("memory does not fail");
    store
}

#[test]
fn a_copy_leaves_out_the_parts_of_hashes_and_nothing_that_looks_like_one() {
    let (shared, mut state) = (shared(WHOLE), 1);
    let (mut store, _) = prepared(&shared, 30, &mut state);
    let mut names = Vec::new();
    store.scan(BUCKETS, 0, 1000, &mut |name, _| names.push(name.to_vec())).expect("memory does not fail");
    for name in &names {
        let key = [&[BUCKETS][..], name].concat();
        let value = read(&mut store, &key).expect("it is there");
        let owner = owner_of(&key, &value).expect("it is a part");
        assert_eq!(owner, b"\0h");
        let hash = read(&mut store, &owner).expect("it is there");
        assert!(is_in_parts(&hash) && has_part(&hash, &key));
        assert_eq!(owner_of(&key[1..], &value), None);
        assert_eq!(owner_of(&key, &value[1..]), None);
        let mut other = key.clone();
        other[3] ^= 1;
        assert!(!has_part(&hash, &other) && !has_part(&value, &key));
    }
    // What others have written is copied as it is, whatever it begins with.
    for other in [&b""[..], &[3], &[3; 20], &[3; 200], &[0x83; 200], &[4; 200], &[3, 0, 0, 0]] {
        assert!(!is_in_parts(other) && !has_part(other, &[BUCKETS; 21]));
        assert_eq!(owner_of(&[BUCKETS; 21], other), None);
        let copy = collect(b"\0x", |_| Ok::<_, StoreError>(vec![Some(other.to_vec())]));
        assert_eq!(copy, Ok(Collected::Value(other.to_vec())));
    }
    // A part that is lost makes no hash with holes.
    let key = Key { space: BUCKETS, name: &names[3] };
    assert!(store.delete(key, Condition::Always).expect("memory does not fail"));
    let copy =
        collect(b"\0h", |keys| Ok::<_, StoreError>(keys.iter().map(|key| read(&mut store, key)).collect()));
    assert_eq!(copy, Ok(Collected::Lost));
    run(&shared, &mut store, "DEL h");
    let copy =
        collect(b"\0h", |keys| Ok::<_, StoreError>(keys.iter().map(|key| read(&mut store, key)).collect()));
    assert_eq!(copy, Ok(Collected::Gone));
}

#[test]
fn parts_of_a_hash_that_is_deleted_go_soon_and_those_of_one_that_stays_do_not() {
    let tidy = |shared: &Shared, store: &mut MemoryStore| {
        shared.leaving_is_due();
        while shared.has_leaving() {
            shared.delete_leaving(store).expect("memory does not fail");
        }
    };
    for end in ["DEL h", "RENAME h other", "HGET h f1", "EXISTS h"] {
        let (shared, mut state) = (shared(WHOLE), 1);
        let (mut store, _) = prepared(&shared, 200, &mut state);
        if end.starts_with("HGET") || end.starts_with("EXISTS") {
            // Its time has come when the command looks: it is set by hand, as the past deletes at once.
            let mut value = read(&mut store, b"\0h").expect("it is there");
            value.splice(..1, [0x83, 1, 0, 0, 0, 0, 0, 0, 0]);
            store.put(Key { space: 0, name: b"h" }, &value, Condition::Always).expect("memory does not fail");
        }
        run(&shared, &mut store, end);
        assert!(buckets(&mut store) > 128, "more than go at once");
        tidy(&shared, &mut store);
        assert_eq!(buckets(&mut store), 0, "{end}");
    }
    // What was to be deleted, and was not in the end.
    let (shared, mut state) = (shared(WHOLE), 1);
    let (mut store, before) = prepared(&shared, 200, &mut state);
    let mut joint = Joint::default();
    let mut session = Session::open(&shared, "a", "b", 0);
    let mut decoder = Decoder::new(Limits::default());
    decoder.push(b"DEL h\r\n");
    let request = decoder.next(false).expect("a request").expect("all of it");
    let mut out = Vec::new();
    session.execute_joined(0, &request, (&mut store, &mut joint), &shared, moment(&mut 1), &mut out);
    tidy(&shared, &mut store);
    assert_eq!(content(&shared, &mut store, "h"), before);
}

#[test]
fn a_hash_is_folded_when_what_made_it_large_has_been_written() {
    let (shared, mut state) = (shared(WHOLE), 1);
    let mut store = MemoryStore::default();
    let mut joint = Joint::default();
    let mut session = Session::open(&shared, "a", "b", 0);
    for n in 0..20 {
        let mut decoder = Decoder::new(Limits::default());
        decoder.push(format!("HSET h field{n} value\r\n").as_bytes());
        let request = decoder.next(false).expect("a request").expect("all of it");
        let pair = (&mut store, &mut joint);
        session.execute_joined(n, &request, pair, &shared, moment(&mut 1), &mut Vec::new());
    }
    // Another worker, which sees nothing of it yet.
    fold(&shared, &mut store, &mut state).expect("memory does not fail");
    assert!(joint.write(&mut store, &shared).is_empty());
    fold(&shared, &mut store, &mut state).expect("memory does not fail");
    assert!(buckets(&mut store) > 4);
    // One that lost to somebody comes again.
    for n in 0..20 {
        run(&shared, &mut store, &format!("HSET h other{n} value"));
    }
    let before = buckets(&mut store);
    // The batch that the commands have made, and then what has come since.
    for step in ["into the buckets", "out of the key's value"] {
        assert_eq!(shared.fold(&mut store, moment(&mut state)), Ok(true), "{step}");
    }
    let hook = |store: &mut MemoryStore| drop(run(&self::shared(WHOLE), store, "HSET h between 1"));
    let mut hooked = hooked(&store, 1, hook);
    assert_eq!(shared.fold(&mut hooked, moment(&mut state)), Ok(false));
    drop(hooked);
    assert!(shared.has_folds());
    fold(&shared, &mut store, &mut state).expect("memory does not fail");
    assert!(buckets(&mut store) > before);
    // And so does what RENAME has made one value.
    run(&shared, &mut store, "RENAME h i");
    assert!(shared.has_folds());
    fold(&shared, &mut store, &mut state).expect("memory does not fail");
    assert!(is_in_parts(&read(&mut store, b"\0i").expect("it is there")));
}

#[test]
fn a_large_hash_that_came_whole_is_folded_when_somebody_looks_at_it() {
    let mut store = MemoryStore::default();
    let elsewhere = shared(usize::MAX);
    for n in 0..50 {
        run(&elsewhere, &mut store, &format!("HSET h field{n} value"));
    }
    let (shared, mut state) = (shared(WHOLE), 1);
    assert_eq!(run(&shared, &mut store, "HGET h field7"), b"$5\r\nvalue\r\n");
    fold(&shared, &mut store, &mut state).expect("memory does not fail");
    assert!(is_in_parts(&read(&mut store, b"\0h").expect("it is there")));
    assert_eq!(run(&shared, &mut store, "HGET h field7"), b"$5\r\nvalue\r\n");
}

/// Native clients of a store may write what they like.
#[test]
fn what_says_that_it_is_a_hash_in_parts_and_is_none_ends_nothing() {
    const EXTREMES: [u64; 9] =
        [0, 1, 2, 63, 1 << 30, (1 << 30) + 1, u32::MAX as u64, (1 << 48) - 1, u64::MAX];
    let mut understood = 0;
    for seed in 0..3000 {
        let mut state = seed;
        let mut any = || EXTREMES[random(&mut state) % EXTREMES.len()];
        let (before, buckets) = (any() as u32, any() as u32);
        let same = any() < 64;
        let mut value = vec![3];
        value.extend([7; 16]);
        value.extend(any().to_le_bytes());
        value.extend(before.to_le_bytes());
        value.extend((if same { before } else { buckets }).to_le_bytes());
        value.extend(any().to_le_bytes());
        value.extend(any().to_le_bytes());
        // A batch of one field, or none, and one change behind it.
        let sealed = any() < 3;
        value.extend(u64::from(if sealed { 5_u32 } else { 0 }).to_le_bytes());
        if sealed {
            value.extend(b"\x01a\x01\x01v");
        }
        value.extend(b"\x02f1\x01\x01v");
        understood += u64::from(is_in_parts(&value));
        let shared = shared(usize::from(any() < 3));
        let mut store = wrap(&value);
        for line in [
            "HGETALL h",
            "HLEN h",
            "HGET h f1",
            "HMGET h f1 a zz 1 2 3 4 5 6 7 8 9",
            "HSCAN h 0 COUNT 1000000",
            "HSCAN h 1073741823",
            "HSCAN h 4294967290 COUNT 1000",
            "HSCAN h 4294967295 COUNT 9223372036854775807",
            "HSET h new value",
            "HDEL h f1",
            "HINCRBY h n 1",
            "RENAME h h2",
            "RENAME h2 h",
            "EXPIRE h 100",
            "DEL h",
        ] {
            let reply = run(&shared, &mut store, line);
            parse_frame(&reply).expect("a reply").expect("all of it");
            let _ = shared.fold(&mut store, moment(&mut state));
            let copy = collect(b"\0h", |keys| {
                Ok::<_, StoreError>(keys.iter().map(|key| read(&mut store, key)).collect())
            });
            assert!(copy.is_ok());
        }
        shared.leaving_is_due();
        while shared.has_leaving() {
            shared.delete_leaving(&mut store).expect("memory does not fail");
        }
    }
    assert!(understood > 100, "{understood}");
}
