//! Redis' commands over Erda: the same replies as over a store in memory, with Erda's own server, formats and clients
//! between, every message through its bytes.

use remanence_gateway::erda::{Erda, Parts};
use remanence_kv::Geometry;
use remanence_kv::offline::{Local, Reach};
use remanence_kv::server::Options;
use remanence_kv::view::Mode;
use remanence_resp::engine::{Config, Moment, Session, Shared};
use remanence_resp::memory::MemoryStore;
use remanence_resp::protocol::{Decoder, Limits};
use remanence_resp::store::{Change, Condition, HEAD_LEN, Key, Store, StoreError, Version};

const OPTIONS: Options = Options {
    mode: Mode::Durable,
    lease: 1 << 40,
    unfinished_max: 16,
    clean_by_itself: true,
    ..Options::DEFAULT
};

fn store() -> Local {
    let geometry =
        Geometry { size: 8 << 20, region_len: 256 << 10, segment_len: 64 << 10, heads: 2, grown_from: 0 };
    Local::new(&geometry, 64, OPTIONS).expect("a fair geometry")
}

fn connect(local: &Local) -> Erda<Parts<Reach>> {
    let (client, reach) = local.connect(64);
    Erda::new(client, reach)
}

/// One that posts everything, as if it were elsewhere.
fn connect_far(local: &Local) -> Erda<Parts<Reach>> {
    let (client, reach) = local.connect(64);
    Erda::new(client, reach.far())
}

/// A client whose link is down.
fn cut_off(local: &Local) -> Erda<Parts<Reach>> {
    let (client, reach) = local.connect(0);
    Erda::new(client, reach.cut_off())
}

/// What a server does between messages, and its notice of a new view.
fn go_on(local: &Local, client: &mut Erda<Parts<Reach>>) {
    local.go_on();
    client.client().adopt(local.view());
    client.rest();
}

fn reply<S: Store>(session: &mut Session, store: &mut S, shared: &Shared, now: i64, line: &str) -> String {
    let mut decoder = Decoder::new(Limits::default());
    decoder.push(format!("{line}\r\n").as_bytes());
    let request = decoder.next(false).unwrap().expect("a line is a request");
    let mut out = Vec::new();
    session.execute(&request, store, shared, Moment { unix_us: now * 1000, random: 1 << 60 }, &mut out);
    String::from_utf8(out).unwrap()
}

/// The same, asked again for as long as others are in the way of it: of a store that cleans, the cleaning.
fn in_time(
    local: &Local,
    session: &mut Session,
    erda: &mut Erda<Parts<Reach>>,
    shared: &Shared,
    now: i64,
    line: &str,
) -> String {
    for _ in 0..10_000 {
        let said = reply(session, erda, shared, now, line);
        if !said.is_empty() {
            return said;
        }
        go_on(local, erda);
    }
    panic!("{line} never comes to its turn");
}

/// A step of splitmix64's sequence.
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (z >> 33) as usize
}

/// Deletes all keys of a database.
fn clear(erda: &mut impl Store, space: Option<u8>) {
    let mut cursor = erda.clear(space, 0).expect("it is served");
    while cursor != 0 {
        cursor = erda.clear(space, cursor).expect("it is served");
    }
}

#[test]
fn of_a_long_value_the_front_is_enough_to_know_of_it() {
    let local = store();
    let mut clients = [connect(&local), connect_far(&local)];
    let shared = Shared::new(Config::default(), 0);
    let mut session = Session::open(&shared, "a", "b", 0);
    // In one object, and in chunks.
    for len in [10, 3000, 60_000, 300_000] {
        let line = format!("SETRANGE long {len} x");
        assert_eq!(reply(&mut session, &mut clients[0], &shared, 1, &line), format!(":{}\r\n", len + 1));
        for client in &mut clients {
            go_on(&local, client);
            let key = Key { space: 0, name: b"long" };
            let (mut whole, mut front) = (Vec::new(), b"before".to_vec());
            let version = client.get(key, &mut whole).unwrap();
            assert!(version.is_some() && whole.len() > len);
            for _ in 0..2 {
                front.truncate(6);
                assert_eq!(client.head(key, &mut front), Ok(version));
                assert_eq!(front, [b"before", &whole[..HEAD_LEN]].concat());
            }
            assert_eq!(reply(&mut session, client, &shared, 1, "EXISTS long long never"), ":2\r\n");
            assert_eq!(reply(&mut session, client, &shared, 1, "TYPE long"), "+string\r\n");
        }
    }
}

#[test]
fn replies_over_erda_are_those_over_memory() {
    let local = store();
    // Three clients take turns: what one writes, the others read. One of them is elsewhere.
    let mut erda = [connect(&local), connect(&local), connect_far(&local)];
    let mut memory = MemoryStore::default();
    let shared = Shared::new(Config::default(), 0);
    let (mut ours, mut theirs) = (Session::open(&shared, "a", "b", 0), Session::open(&shared, "c", "d", 0));
    let (mut state, mut now) = (7, 1_000_000);
    let lines = [
        "SET @ %",
        "SET @ % PX 50",
        "SET @ % NX",
        "SET @ % XX GET",
        "SET @ % KEEPTTL",
        "GET @",
        "GETDEL @",
        "APPEND @ %",
        "INCR @",
        "INCRBYFLOAT @ 0.5",
        "MSET @ % @ %",
        "MGET @ @ @",
        "MSETNX @ % @ %",
        "DEL @ @",
        "EXISTS @ @",
        "RENAME @ @",
        "EXPIRE @ 1",
        "PEXPIRE @ 20",
        "PTTL @",
        "PERSIST @",
        "TYPE @",
        "HSET @ f % g %",
        "HGETALL @",
        "HDEL @ f",
        "HINCRBY @ n 2",
        "HMGET @ f g n",
        "KEYS *",
        "DBSIZE",
        "STRLEN @",
        "SETRANGE @ 3 %",
        "GETEX @ PX 30",
        "SELECT 1",
        "SELECT 0",
    ];
    for step in 0..3000 {
        let mut line = lines[random(&mut state) % lines.len()].to_owned();
        while let Some(at) = line.find('@') {
            line.replace_range(at..=at, &format!("key{}", random(&mut state) % 12));
        }
        while let Some(at) = line.find('%') {
            let len = 1 + random(&mut state) % 200;
            line.replace_range(at..=at, &"1".repeat(len.min(1 + random(&mut state) % 200)));
        }
        let expected = reply(&mut theirs, &mut memory, &shared, now, &line);
        let client = &mut erda[step % 3];
        assert_eq!(reply(&mut ours, client, &shared, now, &line), expected, "step {step}: {line}");
        go_on(&local, client);
        now += (random(&mut state) % 5) as i64;
    }
    for space in [0, 1] {
        assert_eq!(erda[0].count(space).unwrap(), memory.count(space).unwrap());
    }
    assert_eq!(reply(&mut ours, &mut erda[1], &shared, now, "FLUSHALL"), "+OK\r\n");
    assert_eq!((erda[0].count(0), erda[0].count(1)), (Ok(Some(0)), Ok(Some(0))));
}

#[test]
fn what_goes_together_is_what_would_have_gone_one_after_the_other() {
    let local = store();
    let mut erda = [connect(&local), connect_far(&local), connect(&local)];
    let mut memory = MemoryStore::default();
    let mut state = 11;
    for step in 0..300_u64 {
        let client = &mut erda[step as usize % 3];
        let value = |i: usize| format!("{step}-{i}").repeat(1 + i % 7).into_bytes();
        // Keys come once, and one is too long for Erda.
        let mut names: Vec<Vec<u8>> =
            (0..1 + random(&mut state) % 12).map(|_| vec![b'k', (random(&mut state) % 8) as u8]).collect();
        names.sort_unstable();
        names.dedup();
        if step % 5 == 0 {
            names.insert(names.len() / 2, vec![b'x'; 2000]);
        }
        let keys: Vec<Key<'_>> = names.iter().map(|name| Key { space: 3, name }).collect();
        let values: Vec<Vec<u8>> = (0..keys.len()).map(value).collect();
        let fits = |key: &Key<'_>| key.name.len() < 1024;
        if step % 2 == 0 {
            // Values and deletions, each on a condition that may not hold; versions are those that each store has given.
            let theirs: Vec<Option<Version>> =
                keys.iter().map(|key| client.get(*key, &mut Vec::new()).expect("a GET")).collect();
            let expected: Vec<Option<Version>> =
                keys.iter().map(|key| memory.get(*key, &mut Vec::new()).expect("a GET")).collect();
            let kinds: Vec<usize> = keys.iter().map(|_| random(&mut state)).collect();
            let changes = |seen: &[Option<Version>]| -> Vec<Change<'_>> {
                let one = |n: usize| {
                    let value = (!kinds[n].is_multiple_of(3)).then_some(&values[n][..]);
                    let condition = match (kinds[n] / 3 % 4, seen[n]) {
                        (0, _) => Condition::Absent,
                        (1 | 2, Some(version)) => Condition::Is(version),
                        (1, None) => Condition::Is(Version(1)),
                        _ => Condition::Always,
                    };
                    Change { key: keys[n], value, condition }
                };
                (0..keys.len()).map(one).collect()
            };
            let (mut done, mut wanted) = (Vec::new(), Vec::new());
            client.change_many(&changes(&theirs), &mut done);
            memory.change_many(&changes(&expected), &mut wanted);
            assert_eq!(done.len(), keys.len());
            for (n, (done, wanted)) in done.into_iter().zip(wanted).enumerate() {
                if fits(&keys[n]) || kinds[n].is_multiple_of(3) {
                    assert_eq!(done, wanted, "step {step}, {n}: {}", kinds[n]);
                } else {
                    assert!(matches!(done, Err(StoreError::KeyTooLong { .. })), "{done:?}");
                    assert_eq!(memory.delete(keys[n], Condition::Always), wanted);
                }
            }
        }
        let (mut bytes, mut found) = (Vec::new(), Vec::new());
        client.get_many(&keys, &mut bytes, &mut found);
        assert_eq!(found.len(), keys.len());
        for (key, found) in keys.iter().zip(found) {
            let mut expected = Vec::new();
            let there = memory.get(*key, &mut expected).unwrap().is_some();
            let value = found.unwrap().map(|(_, range)| bytes[range].to_vec());
            assert_eq!(value, there.then_some(expected), "step {step}");
        }
        go_on(&local, client);
    }
    // A store that cannot be reached says so for each.
    let mut cut_off = cut_off(&local);
    let (key, mut found, mut done) = (Key { space: 0, name: b"a" }, Vec::new(), Vec::new());
    cut_off.get_many(&[key, key], &mut Vec::new(), &mut found);
    let other = Key { space: 0, name: b"b" };
    let change = |key, value| Change { key, value, condition: Condition::Always };
    cut_off.change_many(&[change(key, Some(b"1")), change(other, None)], &mut done);
    assert!(
        found.len() == 2
            && found.iter().all(Result::is_err)
            && done.len() == 2
            && done.iter().all(Result::is_err)
    );
}

#[test]
fn what_goes_together_is_there_or_refused_when_the_pool_is_nearly_full() {
    // A large value waits for the cleaner, and a small one behind it has room at once.
    let geometry = Geometry { size: 64 << 10, region_len: 4096, segment_len: 2048, heads: 1, grown_from: 0 };
    let local = Local::new(&geometry, 16, OPTIONS).expect("a fair geometry");
    let mut client = connect(&local);
    let (mut state, mut refused, mut written) = (3, 0, 0);
    for step in 0..400_u32 {
        let first = random(&mut state) % 9;
        let names: Vec<[u8; 1]> = (0..6).map(|n| [((first + n) % 9) as u8]).collect();
        let lens = [1900, 40, 1200, 10, 1900, 600];
        let values: Vec<Vec<u8>> = lens
            .iter()
            .map(|len| [&step.to_le_bytes()[..], &vec![7; len + random(&mut state) % 60]].concat())
            .collect();
        let condition = Condition::Always;
        let puts: Vec<Change<'_>> = names
            .iter()
            .zip(&values)
            .map(|(name, value)| Change { key: Key { space: 0, name }, value: Some(value), condition })
            .collect();
        let mut done = Vec::new();
        for _ in 0..100 {
            done.clear();
            client.change_many(&puts, &mut done);
            if !done.contains(&Err(StoreError::InTheWay)) {
                break;
            }
            go_on(&local, &mut client);
        }
        for (put, _) in puts.iter().zip(&done).filter(|(_, done)| done.is_ok()) {
            let mut found = Vec::new();
            client.get(put.key, &mut found).expect("a GET").expect("it was written");
            assert!(Some(&found[..]) == put.value, "step {step}: {} bytes", found.len());
        }
        written += done.iter().filter(|done| done.is_ok()).count();
        refused += done.iter().filter(|done| done.is_err()).count();
        go_on(&local, &mut client);
    }
    println!("{written} written, {refused} refused");
    assert!(written > 1000, "{written} written, {refused} refused");
}

/// A removal is noted in a hash's value before it reaches the part that the field is in: the value grows.
#[test]
fn a_full_store_is_emptied_field_by_field() {
    let geometry =
        Geometry { size: 8 << 20, region_len: 64 << 10, segment_len: 32 << 10, heads: 2, grown_from: 0 };
    let local = Local::new(&geometry, 64, OPTIONS).expect("a fair geometry");
    let mut erda = connect(&local);
    let shared = Shared::new(Config { hash_whole: 2048, ..Config::default() }, 0);
    let mut session = Session::open(&shared, "a", "b", 0);
    let mut state = 1;
    let mut ask = |line: &str| {
        let mut erda_reply = reply(&mut session, &mut erda, &shared, 1, line);
        for _ in 0..10_000 {
            let moment = Moment { unix_us: 1000, random: random(&mut state) as u64 };
            let more = shared.fold(&mut erda, moment).unwrap_or(true);
            go_on(&local, &mut erda);
            let is_late = erda_reply.is_empty() || erda_reply.contains("try again");
            if !is_late && !more {
                break;
            }
            if is_late {
                erda_reply = reply(&mut session, &mut erda, &shared, 1, line);
            }
        }
        erda_reply
    };
    let text = "x".repeat(400);
    let mut fields = 0;
    let full = loop {
        let hash = fields % 5;
        let reply = ask(&format!("HSET hash{hash} field{fields} {text}"));
        if !reply.starts_with(':') {
            break reply;
        }
        fields += 1;
    };
    assert!(full.starts_with("-OOM "), "{full}");
    assert!(fields > 5000, "{fields}");
    for field in 0..fields {
        let hash = field % 5;
        // What makes something shorter in time has the same right.
        if field % 500 == 0 {
            assert_eq!(ask(&format!("EXPIRE hash{hash} 1000")), ":1\r\n", "at {field}");
        }
        assert_eq!(ask(&format!("HDEL hash{hash} field{field}")), ":1\r\n", "field {field} of {fields}");
    }
    for hash in 0..5 {
        assert_eq!(ask(&format!("EXISTS hash{hash}")), ":0\r\n");
    }
    assert_eq!(ask(&format!("SET more {text}")), "+OK\r\n");
}

#[test]
fn scans_go_through_every_key_of_one_database() {
    let local = store();
    let mut erda = connect(&local);
    let shared = Shared::new(Config::default(), 0);
    let mut session = Session::open(&shared, "a", "b", 0);
    for i in 0..100 {
        for space in [0, 1] {
            reply(&mut session, &mut erda, &shared, 1, &format!("SELECT {space}"));
            let line = format!("SET s{space}-{i} v");
            assert_eq!(in_time(&local, &mut session, &mut erda, &shared, 1, &line), "+OK\r\n");
            go_on(&local, &mut erda);
        }
    }
    let (mut names, mut cursor) = (std::collections::BTreeSet::new(), 0);
    loop {
        cursor = erda.scan(1, cursor, 7, &mut |name, _| _ = names.insert(name.to_vec())).unwrap();
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(names.len(), 100);
    assert!(names.iter().all(|name| name.starts_with(b"s1-")));
    // From anywhere on there are others.
    let mut firsts = std::collections::BTreeSet::new();
    for n in 0..50_u64 {
        let mut first = None;
        let from = erda.anywhere(n << 58);
        erda.scan(0, from, 1, &mut |name, _| first = first.take().or(Some(name.to_vec()))).unwrap();
        firsts.extend(first);
    }
    assert!(firsts.len() > 20, "{firsts:?}");
    clear(&mut erda, Some(1));
    assert_eq!((erda.count(0), erda.count(1)), (Ok(Some(100)), Ok(Some(0))));
}

#[test]
fn what_erda_cannot_hold_or_reach_is_an_error_of_redis() {
    let local = store();
    let mut erda = connect(&local);
    let mut put =
        |name: &[u8], len: usize| erda.put(Key { space: 0, name }, &vec![1; len], Condition::Always);
    assert_eq!(put(&[b'k'; 1023], 10), Ok(true));
    assert_eq!(put(&[b'k'; 1024], 10), Err(StoreError::KeyTooLong { len: 1024, limit: 1023 }));
    let too_long = put(b"a", 9 << 20);
    assert!(matches!(too_long, Err(StoreError::ValueTooLong { .. } | StoreError::Full)), "{too_long:?}");
    let mut cut_off = cut_off(&local);
    let shared = Shared::new(Config::default(), 0);
    let mut session = Session::open(&shared, "a", "b", 0);
    assert_eq!(
        reply(&mut session, &mut cut_off, &shared, 1, "GET a"),
        "-ERR the store did not answer: the link is down\r\n"
    );
}

#[test]
fn what_expired_makes_room_though_nobody_sweeps() {
    // Several times what fits, each for a second; of the room a third is alive.
    let geometry =
        Geometry { size: 2 << 20, region_len: 32 << 10, segment_len: 16 << 10, heads: 2, grown_from: 0 };
    let shared = Shared::new(Config::default(), 0);
    for connect in [connect, connect_far] {
        let local = Local::new(&geometry, 2000, OPTIONS).expect("a fair geometry");
        let mut erda = connect(&local);
        let mut session = Session::open(&shared, "a", "b", 0);
        let value = "v".repeat(400);
        // As the store's clock.
        for now in 1..12_000_i64 {
            let line = match now % 4 {
                0 => format!("SET key{now} {value} PX 1000"),
                1 => format!("SETEX key{now} 1 {value}"),
                2 => format!("SET key{now} {value} EX 1"),
                _ => format!("PSETEX key{now} 1000 {value}"),
            };
            let said = in_time(&local, &mut session, &mut erda, &shared, now, &line);
            assert_eq!(said, "+OK\r\n", "at {now}");
            for back in [1, 500, 1000, 1001].into_iter().filter(|back| *back < now) {
                // Who looks at what has expired deletes it.
                if back > 1000 && now % 101 != 0 {
                    continue;
                }
                let line = format!("STRLEN key{}", now - back);
                let got = in_time(&local, &mut session, &mut erda, &shared, now, &line);
                assert_eq!(got, if back <= 1000 { ":400\r\n" } else { ":0\r\n" }, "{back} before {now}");
            }
            go_on(&local, &mut erda);
        }
    }
}

#[test]
fn a_scan_of_a_database_with_few_keys_or_none_does_not_go_through_all_others() {
    let local = store();
    let mut erda = connect(&local);
    let mut put = |space, n: u32| {
        let name = n.to_le_bytes();
        loop {
            let put = erda.put(Key { space, name: &name }, b"\x01v", Condition::Always);
            go_on(&local, &mut erda);
            if put != Err(StoreError::InTheWay) {
                return assert_eq!(put, Ok(true));
            }
        }
    };
    (0..8000).for_each(|n| put(0, n));
    put(1, 7);
    let mut never = |_: &[u8], _: &[u8]| panic!("there is none");
    assert_eq!(erda.scan(2, 0, 10, &mut never), Ok(0), "nothing is looked for that is not there");
    let (mut shown, mut calls, mut cursor) = (0, 0, 0);
    loop {
        cursor = erda.scan(1, cursor, 10, &mut |_, _| shown += 1).unwrap();
        calls += 1;
        if cursor == 0 {
            break;
        }
    }
    assert!(shown == 1 && (4..50).contains(&calls), "{shown} keys in {calls} calls");
    clear(&mut erda, Some(0));
    assert_eq!((erda.count(0), erda.count(1)), (Ok(Some(0)), Ok(Some(1))));
}
