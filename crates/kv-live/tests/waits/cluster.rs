//! One store on several members, live: real logs, real connections, in this process. What an acknowledgement promises, one
//! test each.

mod common;
use crate::servers as live;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Cluster, patient};
use live::context;
use pollster::block_on;
use remanence_kv::format::Superblock;
use remanence_kv::format::superblock::COPIES;
use remanence_kv::proto::{Expect, Refusal};
use remanence_kv_live::{
    AsyncStore, Error, Member, MemberOptions, MemberStats, Pending, PutOptions, Role, Stop, Store,
};
use remanence_pmem::Survives;
use remanence_remote::Token;
use remanence_verbs::Context;

fn key(n: u64) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

fn value(n: u64) -> Vec<u8> {
    (0..n * 61 % 3000 + 1).map(|i| (i * n + n) as u8).collect()
}

/// Of members whose loss is not the story: on a machine that is busy nobody takes them for dead.
fn calm(options: MemberOptions) -> MemberOptions {
    options.notice(Duration::from_secs(60))
}

/// Until it is known to be there: on a machine that is busy a primary may be replaced at any time.
fn put(store: &mut Store, key: &[u8], value: &[u8]) {
    loop {
        match store.put(key, value, PutOptions::default()) {
            Ok(_) => return,
            Err(Error::Unknown(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn what_is_put_on_two_members_is_got() {
    let cluster = Cluster::new(2, calm);
    let mut store = cluster.client();
    for n in 0..30 {
        store.put(&key(n), &value(n), PutOptions::default()).expect("a PUT");
    }
    for n in 0..30 {
        assert_eq!(store.get(&key(n)).expect("a GET").expect("it is there").value, value(n));
    }
    assert_eq!(store.get(b"nothing").expect("a GET"), None);
    let said = store.members().expect("both say something");
    assert!(said.iter().all(|(_, said)| said.is_ok()), "{said:?}");
}

/// Clients write while something happens. Returns what each key has, as far as that is known: what was acknowledged last, and
/// what may have come after it.
fn under_load(
    cluster: &mut Cluster,
    happen: impl FnOnce(&mut Cluster, &AtomicU64),
) -> BTreeMap<u64, Vec<u64>> {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let addrs = cluster.addrs();
    std::thread::scope(|scope| {
        let (stop, done, addrs) = (&stop, &done, &addrs);
        let clients: Vec<_> = (0..2_u64)
            .map(|id| {
                scope.spawn(move || {
                    let mut store = Store::connect_members(&context(), addrs, patient()).expect("connected");
                    let mut may_be: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
                    for n in 1.. {
                        if stop.load(Ordering::Acquire) {
                            break;
                        }
                        // Keys of its own, so that it knows what they have.
                        let own = id + 2 * (n % 7);
                        match store.put(&key(own), &value(n), PutOptions::default()) {
                            Ok(_) => drop(may_be.insert(own, vec![n])),
                            Err(Error::Unknown(_)) => may_be.entry(own).or_insert_with(|| vec![0]).push(n),
                            Err(error) => panic!("{error}"),
                        }
                        if let Some(found) = store.get(&key(own)).expect("a GET") {
                            let may_be = may_be.get_mut(&own).expect("it was written");
                            let is = may_be.iter().copied().find(|n| value(*n) == found.value);
                            *may_be = vec![is.expect("one of those that were written")];
                        }
                        done.fetch_add(1, Ordering::Release);
                    }
                    println!("client {id} has connected {} times again", store.reconnected());
                    may_be
                })
            })
            .collect();
        happen(cluster, done);
        stop.store(true, Ordering::Release);
        clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
    })
}

/// Clients do so many things more.
fn goes_on(cluster: &Cluster, done: &AtomicU64, count: u64) {
    let enough = done.load(Ordering::Acquire) + count;
    cluster.wait("clients go on", |_| (done.load(Ordering::Acquire) >= enough).then_some(()));
}

fn is_there(cluster: &Cluster, known: &BTreeMap<u64, Vec<u64>>) {
    let mut store = cluster.client();
    for (number, may_be) in known {
        let found = store.get(&key(*number)).expect("a GET");
        let is = |n: &u64| match &found {
            Some(found) => found.value == value(*n),
            None => *n == 0,
        };
        assert!(
            may_be.iter().any(is),
            "key {number} has {found:?}, and not what was acknowledged: {may_be:?}"
        );
    }
}

#[test]
fn the_primary_is_lost_and_what_was_acknowledged_is_there() {
    let mut cluster = Cluster::new(3, |options| options);
    let first = cluster.primary();
    let known = under_load(&mut cluster, |cluster, done| {
        goes_on(cluster, done, 30);
        cluster.stop(first);
        goes_on(cluster, done, 30);
    });
    assert_ne!(cluster.primary(), first);
    is_there(&cluster, &known);
}

#[test]
fn a_primary_whose_log_s_medium_fails_says_so_and_ends_and_another_member_takes_over() {
    let mut cluster = Cluster::new(3, |options| options);
    cluster.whole();
    let first = cluster.primary();
    let known = under_load(&mut cluster, |cluster, done| {
        goes_on(cluster, done, 10);
        let metrics = cluster.metrics(first);
        let log = cluster.dir_of(first).join("log");
        std::fs::File::options().write(true).open(log).and_then(|file| file.set_len(0)).expect("cut");
        let why = cluster.ends(first);
        let said = metrics.read();
        for why in [&why, &said.why] {
            assert!(why.contains("the log of this member: the medium failed"), "{why}");
        }
        assert!(said.failed && said.role != Role::Primary, "{said:?}");
        goes_on(cluster, done, 10);
    });
    assert_ne!(cluster.primary(), first);
    is_there(&cluster, &known);
}

#[test]
fn a_member_with_an_empty_disk_is_rebuilt_while_clients_go_on_and_can_be_all_that_is_left() {
    // A log so small that the new member finds most records trimmed, and needs the image.
    let mut cluster = Cluster::new(3, |options| options.log(1 << 20));
    cluster.whole();
    let primary = cluster.primary();
    let lost = (primary + 1) % 3;
    let known = under_load(&mut cluster, |cluster, done| {
        goes_on(cluster, done, 30);
        cluster.stop(lost);
        cluster.lose_disk(lost);

        // Records that it lacks are gone, so it needs the image.
        cluster.wait("a trimmed log", |this| this.said(primary).filter(|said| said.first > 0).map(drop));
        cluster.start(lost);
        cluster.whole();
        goes_on(cluster, done, 10);
    });
    is_there(&cluster, &known);
    // Those that had everything all the time go.
    let other = 3 - primary - lost;
    cluster.stop(primary);
    is_there(&cluster, &known);
    cluster.start(primary);
    cluster.whole();
    cluster.stop(other);
    is_there(&cluster, &known);
}

#[test]
fn a_member_that_was_away_is_taken_in_again() {
    let mut cluster = Cluster::new(3, |options| options);
    let primary = cluster.primary();
    let away = (primary + 2) % 3;
    let known = under_load(&mut cluster, |cluster, done| {
        goes_on(cluster, done, 10);
        cluster.stop(away);
        goes_on(cluster, done, 30);
        cluster.start(away);
        cluster.whole();
        goes_on(cluster, done, 10);
    });
    is_there(&cluster, &known);
    cluster.whole();
    assert_eq!(cluster.said(primary).expect("it serves").acks, 2);
}

fn place_in_image(directory: &std::path::Path, value: &[u8]) -> Option<usize> {
    let bytes = std::fs::read(directory.join("image")).expect("an image");
    bytes.windows(value.len()).position(|some| some == value)
}

fn write_image(directory: &std::path::Path, at: u64, bytes: &[u8]) {
    let image = std::fs::File::options().write(true).open(directory.join("image")).expect("an image");
    std::os::unix::fs::FileExt::write_all_at(&image, bytes, at).expect("it is in the image");
}

/// Turns a bit of a value in a member's image, where it lies.
fn rot(directory: &std::path::Path, value: &[u8]) {
    let at = place_in_image(directory, value).expect("it is in the image") + value.len() / 2;
    write_image(directory, at as u64, &[value[value.len() / 2] ^ 4]);
}

/// Which copies of the superblock in a member's image are whole.
fn superblocks(directory: &std::path::Path) -> [bool; 2] {
    let bytes = std::fs::read(directory.join("image")).expect("an image");
    Superblock::of_head(&bytes, bytes.len() as u64).map_or([false; 2], |found| found.whole)
}

#[test]
fn a_value_that_has_rotted_is_put_right_from_a_member_that_has_it_whole() {
    // All of them or none: who comes late may be rebuilt, and gets what the primary has then, its damage too.
    let mut cluster = Cluster::new(3, |options| calm(options).acks(3));
    cluster.whole();
    // The last is in chunks.
    let values: [Vec<u8>; 3] = [20, 3000, 200_000].map(|len| {
        let words = (0..len).flat_map(|n: usize| format!("{len}, {n}; ").into_bytes());
        words.take(len).collect()
    });
    let mut store = cluster.client();
    for (n, value) in (0..).zip(&values) {
        put(&mut store, &key(n), b"the version before");
        put(&mut store, &key(n), value);
    }
    store.rest().expect("the writes are confirmed");
    drop(store);
    // Images follow when a primary begins.
    for n in 0..3 {
        cluster.stop(n);
    }
    for n in 0..3 {
        cluster.start(n);
    }
    cluster.whole();
    cluster.wait("images that follow", |this| {
        let applied = |n| this.said(n).map(|said| (said.applied, said.next));
        (0..3).all(|n| applied(n).is_some_and(|(applied, next)| applied == next)).then_some(())
    });
    let cluster = &mut cluster.ended();
    // Whoever is the primary next has two that are damaged, and each of them one other member has whole.
    for (n, value) in values.iter().enumerate() {
        for member in (0..3).filter(|member| *member != n) {
            rot(&cluster.dir_of(member), &value[..value.len().min(16)]);
        }
    }
    for n in 0..3 {
        cluster.start(n);
    }
    cluster.whole();
    let mut store = cluster.client();
    for (n, value) in (0..).zip(&values) {
        // On a machine that is busy the one that has it whole may be away for a moment, and then it is damaged.
        let begin = Instant::now();
        let found = loop {
            match store.get(&key(n)) {
                Err(Error::Refused(Refusal::Damaged)) if begin.elapsed() < Duration::from_secs(60) => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                found => break found.expect("a GET").expect("it is there").value,
            }
        };
        assert_eq!(found, *value);
    }
    let scrubbed = store.scrub(0, 100).expect("a scrub");
    assert_eq!(scrubbed.lost, 0, "{scrubbed:?}");
}

/// Three members with a value, and which of them has been away for so long that it needs an image, and has not come back.
/// `fillers` are put meanwhile, at least, each so long.
fn one_needs_an_image(value: &[u8], (fillers, len): (u64, usize)) -> (Cluster, usize) {
    let mut cluster = Cluster::new(3, |options| calm(options).log(1 << 20));
    cluster.whole();
    let mut store = cluster.client();
    put(&mut store, b"key", value);
    store.rest().expect("the write is confirmed");
    drop(store);
    for n in 0..3 {
        cluster.stop(n);
    }
    for n in 0..3 {
        cluster.start(n);
    }
    cluster.whole();
    cluster.wait("images that follow", |this| {
        (0..3).all(|n| place_in_image(&this.dir_of(n), value).is_some()).then_some(())
    });
    let primary = cluster.primary();
    let away = (primary + 1) % 3;
    let has = cluster.said(away).expect("it runs").next;
    cluster.stop(away);
    let mut store = cluster.client();
    let filler = vec![1; len];
    let mut more = 0..2000;
    while cluster.said(primary).expect("it serves").first <= has || more.start < fillers {
        let n = more.next().expect("the log is trimmed");
        put(&mut store, &key(n % 7), &filler);
    }
    store.rest().expect("the writes are confirmed");
    drop(store);
    (cluster, away)
}

#[test]
fn what_is_damaged_is_put_right_from_who_needs_an_image_before_that_one_is_replaced() {
    let value: Vec<u8> = (0..900).flat_map(|n: u32| n.to_le_bytes()).collect();
    // Few, as its image has the value where it was put, and cleaning moves it.
    let (mut cluster, away) = one_needs_an_image(&value, (0, 4000));
    let others = [(away + 1) % 3, (away + 2) % 3];
    for n in others {
        cluster.stop(n);
    }
    for n in others {
        rot(&cluster.dir_of(n), &value);
        cluster.start(n);
    }
    let mut store = cluster.client();
    let found = store.get(b"key");
    assert!(matches!(found, Err(Error::Refused(Refusal::Damaged))), "nobody has it whole: {found:?}");
    cluster.start(away);
    cluster.whole();
    assert_eq!(store.get(b"key").expect("a GET").expect("it is there").value, value);
    drop(store);
    let cluster = cluster.ended();
    for n in 0..3 {
        assert!(place_in_image(&cluster.dir_of(n), &value).is_some(), "member {n}");
    }
}

#[test]
fn an_image_that_has_rotted_beside_what_is_served_is_not_sent() {
    let value: Vec<u8> = (0..900).flat_map(|n: u32| (n ^ 0x5555).to_le_bytes()).collect();
    // More than the primary has at hand for who is behind, beside what the logs have.
    let (mut cluster, away) = one_needs_an_image(&value, (120, 60_000));
    let primary = cluster.primary();
    // Stored again by this primary, so that what it serves is a page of its own.
    let value: Vec<u8> = value.into_iter().rev().collect();
    let mut store = cluster.client();
    put(&mut store, b"key", &value);
    store.rest().expect("the write is confirmed");
    let mut more = 0..2000;
    while place_in_image(&cluster.dir_of(primary), &value).is_none() {
        let n = more.next().expect("images follow");
        put(&mut store, &key(n % 7), &value[..3000]);
    }
    drop(store);
    rot(&cluster.dir_of(primary), &value);
    cluster.start(away);
    cluster.whole();
    let cluster = cluster.ended();
    for n in 0..3 {
        assert!(place_in_image(&cluster.dir_of(n), &value).is_some(), "member {n}");
    }
}

#[test]
fn a_scrub_names_the_member_whose_image_is_damaged_and_puts_it_right() {
    let cluster = Cluster::new(3, |options| calm(options).acks(3));
    cluster.whole();
    // One of them is in chunks.
    let values: [Vec<u8>; 2] = [3000, 200_000].map(|len| {
        let words = (0..len).flat_map(|n: usize| format!("{len}: {n}; ").into_bytes());
        words.take(len).collect()
    });
    let mut store = cluster.client();
    for (n, value) in (0..).zip(&values) {
        put(&mut store, &key(n), value);
    }
    store.rest().expect("the writes are confirmed");
    let primary = cluster.primary();
    let begin = |value: &[u8]| value[..16].to_vec();
    let names: Vec<String> = cluster.addrs().iter().map(ToString::to_string).collect();
    let scrub = |store: &mut Store| {
        let (mut verified, mut found) = (0, vec![(0, 0); 3]);
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let (scrubbed, held) = store.scrub_all(at, 100).expect("a scrub");
            assert_eq!((scrubbed.repaired, scrubbed.lost), (0, 0), "what is served is whole");
            assert_eq!(held.len(), 3);
            for (((name, held), member), found) in held.iter().zip(&names).zip(&mut found) {
                assert_eq!(name, member);
                *found = (found.0 + held.damaged, found.1 + held.repaired);
            }
            (verified, cursor) = (verified + scrubbed.verified, scrubbed.next);
        }
        (verified, found)
    };
    assert_eq!(scrub(&mut store), (2, vec![(0, 0); 3]), "the images follow, and have what is served");
    for other in [(primary + 1) % 3, (primary + 2) % 3] {
        for value in &values {
            rot(&cluster.dir_of(other), &begin(value));
        }
        let mut expected = vec![(0, 0); 3];
        expected[other] = (2, 2);
        assert_eq!(scrub(&mut store), (2, expected));
        assert!(values.iter().all(|value| place_in_image(&cluster.dir_of(other), &begin(value)).is_some()));
        assert_eq!(scrub(&mut store), (2, vec![(0, 0); 3]), "once is enough");
        // What the image begins with is looked at first.
        COPIES.iter().for_each(|at| write_image(&cluster.dir_of(other), *at, &[0; 512]));
        let mut expected = vec![(0, 0); 3];
        expected[other] = (2, 2);
        assert_eq!(scrub(&mut store), (2, expected));
        assert_eq!(superblocks(&cluster.dir_of(other)), [true; 2]);
        assert_eq!(scrub(&mut store), (2, vec![(0, 0); 3]), "once is enough");
    }
}

#[test]
fn an_image_that_cannot_be_read_is_made_anew_or_refused_when_its_member_is_opened() {
    let mut cluster = Cluster::new(3, calm);
    cluster.whole();
    let mut store = cluster.client();
    put(&mut store, b"key", b"value");
    store.rest().expect("the write is confirmed");
    drop(store);
    let other = (cluster.primary() + 1) % 3;
    cluster.wait("its image follows", |this| {
        this.said(other).filter(|said| said.applied > 0 && said.applied == said.next)
    });
    cluster.stop(other);
    // What it has, where no other member knows of it.
    let copy = tempfile::tempdir_in("/dev/shm").expect("a directory");
    for file in ["image", "log", "ledger"] {
        std::fs::copy(cluster.dir_of(other).join(file), copy.path().join(file)).expect("a copy");
    }
    let image = std::fs::read(copy.path().join("image")).expect("an image");
    let at = live::address();
    let device = Context::open(remanence_verbs::Options::udp(at)).expect("a device");
    let members = [7471, 7472].map(|port| std::net::SocketAddr::new(at, port));
    let opened = |damage: &[(u64, &[u8])]| {
        std::fs::write(copy.path().join("image"), &image).expect("room");
        damage.iter().for_each(|(at, bytes)| write_image(copy.path(), *at, bytes));
        let names = members.map(|addr| (addr.to_string(), addr)).to_vec();
        let member = Member::bind(&device, 7471, MemberOptions::directory(copy.path(), names))?;
        Ok::<_, Error>(member.metrics().read())
    };
    let said = opened(&[]).expect("it is whole");
    assert!(said.complete && said.why.is_empty(), "{said:?}");
    let [first, second] = COPIES;
    let said = opened(&[(first, &[0; 512])]).expect("the other copy is whole");
    assert!(said.complete && said.why.is_empty(), "{said:?}");
    let zeros: [(u64, &[u8]); 2] = [(first, &[0; 512]), (second, &[0; 512])];
    let rot: [(u64, &[u8]); 2] = [(first + 20, &[9; 40]), (second + 20, &[9; 40])];
    for damage in [zeros, rot] {
        let said = opened(&damage).expect("the others have it");
        assert!(
            !said.complete && said.why.contains("image is damaged") && said.why.contains("made anew"),
            "{said:?}"
        );
    }
    let later = [4, 0, 0, 0];
    let refused =
        opened(&[(first + 8, &later), (first + 60, &[1; 12]), (second + 8, &later), (second + 60, &[1; 12])]);
    let refused = refused.expect_err("another release made it").to_string();
    assert!(refused.contains("has format 4") && refused.contains("release that made it"), "{refused}");
    for (byte, cause) in [(0, "it is blank"), (0x5A, "those of something else")] {
        let refused = opened(&[(0, &vec![byte; image.len()])]).expect_err("it is none").to_string();
        assert!(
            refused.contains(cause) && refused.contains("take the directory of this member away"),
            "{refused}"
        );
    }
    // The member itself is as the others are again, by what they have.
    zeros.iter().for_each(|(at, bytes)| write_image(&cluster.dir_of(other), *at, bytes));
    cluster.start(other);
    cluster.whole();
    let why =
        cluster.wait("it follows", |this| this.said(other).filter(|said| said.applied == said.next)).why;
    assert_eq!(why, "", "it is whole");
    let cluster = cluster.ended();
    assert_eq!(superblocks(&cluster.dir_of(other)), [true; 2]);
    assert!(place_in_image(&cluster.dir_of(other), b"value").is_some());
}

/// Three members of a store with a value, which all images have, and which have ended.
fn ended_with_a_value() -> Cluster {
    let cluster = Cluster::new(3, calm);
    cluster.whole();
    let mut store = cluster.client();
    put(&mut store, b"key", b"value");
    store.rest().expect("the write is confirmed");
    drop(store);
    let follows = |said: MemberStats| said.applied > 0 && said.applied == said.next;
    cluster.wait("all images follow", |this| (0..3).all(|n| this.said(n).is_some_and(follows)).then_some(()));
    cluster.ended()
}

/// The same, of which the first one has nothing any more; and what that had.
fn first_is_emptied() -> (Cluster, tempfile::TempDir) {
    let cluster = ended_with_a_value();
    let copy = tempfile::tempdir_in("/dev/shm").expect("a directory");
    for file in ["image", "log", "ledger"] {
        std::fs::copy(cluster.dir_of(0).join(file), copy.path().join(file)).expect("a copy");
    }
    cluster.lose_disk(0);
    (cluster, copy)
}

/// Waits until a member says these things of why it does not serve. Nobody leads meanwhile.
fn says(cluster: &Cluster, n: usize, parts: &[&str]) {
    cluster.wait("it says what is left to do", |this| {
        let said = this.said(n)?;
        assert_eq!(said.role, Role::Waiting, "nobody can lead: {said:?}");
        parts.iter().all(|part| said.why.contains(part)).then_some(())
    });
}

/// A member with an empty directory is nobody's source: others do not wait for it to make theirs anew.
#[test]
fn where_images_are_damaged_and_a_directory_is_empty_each_says_what_is_left_to_do() {
    let (mut cluster, copy) = first_is_emptied();
    for damaged in [1, 2] {
        COPIES.iter().for_each(|at| write_image(&cluster.dir_of(damaged), at + 16, &[0xA5; 30]));
    }
    (0..3).for_each(|n| cluster.start(n));
    let [first, second, third] = [0, 1, 2].map(|n| cluster.addrs()[n].to_string());
    says(&cluster, 0, &["this member is new", "`rem kv salvage IMAGE -o DUMP` of what", &second, &third]);
    for n in [1, 2] {
        let salvage = format!("`rem kv salvage {} -o DUMP`", cluster.dir_of(n).join("image").display());
        says(
            &cluster,
            n,
            &["no member has a whole image", &first, "began with an empty directory", &salvage],
        );
    }
    // What it had is back: the others are made anew from that.
    cluster.stop(0);
    cluster.replace_dir(0, copy.path());
    cluster.start(0);
    cluster.whole();
    let found = cluster.client().get(b"key").expect("a GET").expect("it was acknowledged");
    assert_eq!(found.value, b"value");
}

/// They look like new ones, and what one with an empty directory had made would have been sent over their images.
#[test]
fn no_new_store_is_made_of_members_that_have_lost_their_logs_alone() {
    let (mut cluster, _copy) = first_is_emptied();
    for n in [1, 2] {
        std::fs::remove_file(cluster.dir_of(n).join("log")).expect("it is there");
    }
    (0..3).for_each(|n| cluster.start(n));
    let [second, third] = [1, 2].map(|n| cluster.addrs()[n].to_string());
    says(&cluster, 0, &["this member is new", "`rem kv salvage IMAGE -o DUMP` of what", &second, &third]);
    (1..3).for_each(|n| says(&cluster, n, &["no member has a whole image", "`rem kv salvage "]));
    let cluster = cluster.ended();
    (1..3).for_each(|n| assert!(place_in_image(&cluster.dir_of(n), b"value").is_some(), "it is there still"));
}

/// What was cut, or has no bytes, says so, and not that it does not grow.
#[test]
fn an_image_that_was_cut_is_refused_with_what_to_do() {
    let cluster = ended_with_a_value();
    let path = cluster.dir_of(1).join("image");
    let cut = |len: u64| {
        std::fs::File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(len))
            .expect("it is there");
        let context =
            Context::open(remanence_verbs::Options::udp(cluster.addrs()[1].ip())).expect("a device");
        Member::bind(&context, cluster.addrs()[1].port(), cluster.options(1))
            .expect_err("refused")
            .to_string()
    };
    let refused = cut(common::SIZE / 2);
    for part in
        ["its end was cut off", "put the file back that was there", "if another member serves the store"]
    {
        assert!(refused.contains(part), "{refused}");
    }
    let (refused, says) = (cut(0), format!("{} has no bytes: put back what was there", path.display()));
    assert!(refused.contains(&says) && refused.contains("if another one serves the store"), "{refused}");
}

#[test]
fn who_follows_says_nothing_of_why_it_could_not_lead() {
    static SAID: std::sync::Mutex<Vec<(Role, String)>> = std::sync::Mutex::new(Vec::new());
    let cluster = Cluster::new(3, |options| {
        calm(options).on_change(|said| SAID.lock().expect("whole").push((said.role, said.why.clone())))
    });
    cluster.whole();
    let followers = |n: &usize| cluster.said(*n).is_some_and(|said| said.role == Role::Follower);
    cluster.wait("two follow", |_| ((0..3).filter(followers).count() == 2).then_some(()));
    cluster.wait("they have said so", |_| {
        let said = SAID.lock().expect("whole");
        (said.iter().filter(|(role, _)| *role == Role::Follower).count() >= 2).then_some(())
    });
    let said = SAID.lock().expect("whole");
    let wrong =
        said.iter().find(|(role, why)| *role == Role::Follower && why.contains("a new store needs all"));
    assert_eq!(wrong, None, "it was made");
}

#[test]
fn a_copy_of_another_member_is_named_with_the_reason() {
    let mut cluster = Cluster::new(3, calm);
    cluster.whole();
    let primary = cluster.primary();
    let (of, copy) = ((primary + 1) % 3, (primary + 2) % 3);
    for n in [of, copy] {
        cluster.stop(n);
    }
    cluster.replace_dir(copy, &cluster.dir_of(of));
    cluster.start(of);
    cluster.start(copy);
    let names = [of, copy].map(|n| cluster.addrs()[n].to_string());
    // Of the two the one that comes second is none; it ends if it has heard of the other one first.
    cluster.wait("somebody says why", |this| {
        let behind = (0..3).filter_map(|n| this.said(n)).flat_map(|said| said.behind);
        let is_named = behind.into_iter().any(|behind| {
            names.iter().any(|name| behind.starts_with(&format!("{name}: ")))
                && behind.contains("copies of one member")
        });
        (is_named || this.has_ended(of) || this.has_ended(copy)).then_some(())
    });
}

#[test]
fn one_of_three_alone_acknowledges_nothing() {
    let mut cluster = Cluster::new(3, |options| options);
    let primary = cluster.primary();
    let mut store = cluster.client();
    put(&mut store, b"key", b"value");
    let others = [(primary + 1) % 3, (primary + 2) % 3];
    others.into_iter().for_each(|n| cluster.stop(n));
    let options = live::options().patience(Duration::from_secs(4));
    let addrs = cluster.addrs();
    let alone = Store::connect_members(&context(), &addrs, options.clone())
        .and_then(|mut store| store.put(b"key", b"lost", PutOptions { expect: Expect::Present, ttl: None }));
    assert!(alone.is_err(), "{alone:?}");
    let read = Store::connect_members(&context(), &addrs, options).and_then(|mut store| store.get(b"key"));
    // It may have been replaced, for all that it knows.
    let sentence = read.expect_err("nobody vouches for what it says").to_string();
    assert!(sentence.contains("no member serves"), "{sentence}");
    others.into_iter().for_each(|n| cluster.start(n));
    let found = store.get(b"key").expect("they are back").expect("it was acknowledged");
    assert!([&b"value"[..], b"lost"].contains(&&found.value[..]), "{found:?}");
}

#[test]
fn a_get_waits_for_no_promise_in_addition() {
    let cluster = Cluster::new(3, calm);
    cluster.whole();
    let mut store = cluster.client();
    for n in 0..20 {
        store.put(&key(n), &value(n), PutOptions::default()).expect("a PUT");
    }
    // It may have been connected to while the last member was taken in, and then learned of it.
    store.get(&key(0)).expect("a GET");
    let (before, reads) = (store.asked(), store.client().stats().reads);
    for n in 0..20 {
        assert!(store.get(&key(n)).expect("a GET").is_some());
    }
    // Two of three acknowledge, so two promises go with each GET, whose one READ is that of the object.
    let asked = store.asked();
    assert_eq!(asked.along - before.along, 40, "{asked:?}, {before:?}");
    assert_eq!(asked.after, before.after, "a GET waited for promises");
    assert_eq!(store.client().stats().reads - reads, 20);
    store.get_many(&(0..20).map(key).collect::<Vec<_>>()).expect("GETs");
    store.put(&key(1), b"value", PutOptions::default()).expect("a PUT");
    let many = store.asked();
    assert_eq!((many.along - asked.along, many.after), (4, asked.after), "two for each of the two calls");
}

#[test]
fn promises_that_are_not_enough_are_asked_for_again() {
    let mut cluster = Cluster::new(3, |options| options);
    cluster.whole();
    let mut store = cluster.client();
    put(&mut store, b"key", b"value");
    let primary = cluster.primary();
    let away = (primary + 1) % 3;
    cluster.stop(away);
    // One of those that were asked first may be gone: it finds out, and goes on.
    put(&mut store, b"key", b"another");
    cluster.start(away);
    cluster.whole();
    for _ in 0..3 {
        assert_eq!(store.get(b"key").expect("a GET").expect("it is there").value, b"another");
    }
    // And soon nobody waits any more.
    let begin = Instant::now();
    loop {
        let settled = store.asked().after;
        store.get(b"key").expect("a GET");
        if store.asked().after == settled {
            break;
        }
        assert!(begin.elapsed() < live::PATIENCE, "every GET has other READs after it: {:?}", store.asked());
    }
}

#[test]
fn an_asynchronous_client_survives_the_primary_and_believes_no_other() {
    let mut cluster = Cluster::new(3, |options| options);
    cluster.whole();
    let store = AsyncStore::connect_members(&context(), &cluster.addrs(), patient()).expect("connected");
    // What each key may have: what was acknowledged last, and what may have come after that. 0: nothing.
    let mut may_be: BTreeMap<u64, Vec<u64>> = (0..16).map(|k| (k, vec![0])).collect();
    let round = |n: u64, may_be: &mut BTreeMap<u64, Vec<u64>>| {
        let puts: Vec<_> =
            (0..16).map(|k| store.put(&key(k), &value(n + k), PutOptions::default())).collect();
        for (k, put) in (0..16).zip(puts) {
            let may_be = may_be.get_mut(&k).expect("one of the keys");
            match block_on(put) {
                Ok(_) => *may_be = vec![n + k],
                Err(Error::Unknown(_)) => may_be.push(n + k),
                // Nothing came of it.
                Err(Error::Lost(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    (0..5).for_each(|n| round(100 * n + 1, &mut may_be));
    // Their logs are in /dev/shm.
    assert_eq!(store.survives(), Some(Survives::PROCESS_CRASH));
    let first = cluster.primary();
    cluster.stop(first);
    // Some of these fail, and say so; then there is another primary.
    (5..10).for_each(|n| round(100 * n + 1, &mut may_be));
    assert_ne!(cluster.primary(), first);
    // This client repeats nothing that was under way when a connection broke.
    fn at_last<T>(begin: impl Fn() -> Pending<T>) -> T {
        loop {
            match block_on(begin()) {
                Ok(output) => return output,
                Err(Error::Lost(_) | Error::Unknown(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    for (k, may_be) in &may_be {
        let found = at_last(|| store.get(&key(*k))).map(|found| found.value);
        let is = |n: &u64| if *n == 0 { found.is_none() } else { found.as_ref() == Some(&value(*n)) };
        assert!(may_be.iter().any(is), "key {k} has {found:?}, and not what was acknowledged: {may_be:?}");
    }
    at_last(|| store.delete(&key(3), Expect::Any));
    assert_eq!(at_last(|| store.get(&key(3))), None);
    assert_eq!(at_last(|| store.delete(&key(3), Expect::Any)), None);
    assert!(!at_last(|| store.scan(0, 100)).keys.contains(&key(3)));
}

fn tokens() -> (Token, Token) {
    let token = |text: &str| Token::new(text).expect("a fair token");
    (token("clients-clients-clients-clients-0"), token("members-members-members-members-0"))
}

#[test]
fn a_client_has_no_way_to_a_log_and_no_right_to_what_it_was_not_given() {
    let cluster = Cluster::new(3, |options| {
        let (clients, members) = tokens();
        calm(options).tokens(clients, members)
    });
    let (clients, members) = tokens();
    cluster.primary();
    let stranger = Store::connect_members(
        &context(),
        &cluster.addrs(),
        live::options().patience(Duration::from_secs(3)),
    );
    let sentence = stranger.expect_err("it has no token").to_string();
    assert!(sentence.contains("token"), "{sentence}");
    let options = patient().tokens([clients.clone()]);
    let mut store = Store::connect_members(&context(), &cluster.addrs(), options).expect("connected");
    store.put(b"key", b"value", PutOptions::default()).expect("it has the token");
    let said = store.members().expect("they say what they are");
    let (_, first) = &said[0];
    let log = first.as_ref().expect("it is there").log_addr(cluster.addrs()[0]);
    let to_log = |token: Token| {
        let options = remanence_remote::Options::default().tokens([token]);
        remanence_remote::Session::connect(&context(), log, options).map(drop)
    };
    let refused = to_log(clients.clone()).expect_err("a client has no business there");
    assert!(refused.to_string().contains("another token"), "{refused}");
    to_log(members).expect("a member has");
    // What a member exports is to be read.
    let options = remanence_remote::Options::default().tokens([clients]);
    let mut reading =
        remanence_remote::Session::connect(&context(), cluster.addrs()[0], options).expect("connected");
    let mut promise = [0; 24];
    reading.read(0, &mut promise).expect("it is for that");
    let forged = [7; 24];
    let written = reading.together(&[remanence_remote::Work::Write { at: 0, bytes: &forged }]);
    assert!(written.is_err(), "a client writes what it likes");
    assert_eq!(store.get(b"key").expect("a GET").expect("it is there").value, b"value");
}

#[test]
fn a_reader_looks_at_whichever_member_serves_and_changes_nothing() {
    let readers = || Token::new("readers-readers-readers-readers-0").expect("a fair token");
    let mut cluster = Cluster::new(3, |options| {
        let (clients, members) = tokens();
        let readers = Token::new("readers-readers-readers-readers-0").expect("a fair token");
        options.tokens(clients, members).reader_token(readers)
    });
    let connect = |cluster: &Cluster, token: Token| {
        Store::connect_members(&context(), &cluster.addrs(), patient().tokens([token])).expect("connected")
    };
    let mut writer = connect(&cluster, tokens().0);
    put(&mut writer, b"key", b"value");
    let mut reader = connect(&cluster, readers());
    for _ in 0..2 {
        assert_eq!(reader.get(b"key").expect("a GET").expect("it is there").value, b"value");
        assert_eq!(reader.scan(0, 10).expect("a page").keys, [b"key"]);
        assert!(reader.members().expect("they say what they are").iter().any(|(_, said)| said.is_ok()));
        for put in [true, false] {
            let mut forge = || match put {
                true => reader.put(b"key", b"forged", PutOptions::default()).map(Some),
                false => reader.delete(b"key", Expect::Any),
            };
            // At a moment at which nobody knows who is the primary, nobody knows what it would have said.
            let refused = std::iter::repeat_with(|| forge().expect_err("it is a reader"))
                .find(|error| !matches!(error, Error::Unknown(_)));
            assert!(matches!(refused, Some(Error::Refused(Refusal::ReadOnly))), "{refused:?}");
        }
        let primary = cluster.primary();
        cluster.stop(primary);
        assert_eq!(reader.get(b"key").expect("a GET").expect("it is there").value, b"value");
        cluster.start(primary);
        cluster.whole();
    }
    // It is no member.
    let said = reader.members().expect("they say what they are");
    let first = said.iter().position(|(_, said)| said.is_ok()).expect("one is there");
    let log = said[first].1.as_ref().expect("it is").log_addr(cluster.addrs()[first]);
    let options = remanence_remote::Options::default().tokens([readers()]);
    remanence_remote::Session::connect(&context(), log, options).expect_err("a log is none of its business");
}

#[test]
fn a_member_tells_what_it_is_and_the_primary_what_it_serves() {
    let mut cluster = Cluster::new(2, calm);
    cluster.whole();
    let mut store = cluster.client();
    put(&mut store, b"key", b"value");
    let primary = cluster.primary();
    // It follows when it has heard that somebody serves.
    let follows = |this: &Cluster| this.said(1 - primary).is_some_and(|said| said.role == Role::Follower);
    cluster.wait("a follower", |this| follows(this).then_some(()));
    let page = |n: usize| remanence_metrics::render(vec![cluster.metrics(n).source()]);
    let (serving, following) = (page(primary), page(1 - primary));
    for (page, primary) in [(&serving, 1), (&following, 0)] {
        for line in [
            "remanence_kv_member_members 2\n".to_owned(),
            format!("remanence_kv_member_primary {primary}\n"),
            format!("remanence_kv_member_follower {}\n", 1 - primary),
            "remanence_kv_member_acks 2\n".to_owned(),
            "remanence_kv_member_complete 1\n".to_owned(),
        ] {
            assert!(page.contains(&line), "{line} is not in\n{page}");
        }
    }
    assert!(serving.contains("\nremanence_kv_entries 1\n"), "{serving}");
    assert!(!following.contains("remanence_kv_entries"), "what it does not serve is not its own");
    cluster.stop(primary);
}

#[test]
fn what_cannot_be_a_member_is_told_why() {
    let cluster = Cluster::new(2, calm);
    cluster.primary();
    let (a, b) = (cluster.addrs()[0], cluster.addrs()[1]);
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let at = live::address();
    let device = Context::open(remanence_verbs::Options::udp(at)).expect("a device");
    let own = std::net::SocketAddr::new(at, 7471);
    let names = |addrs: &[std::net::SocketAddr]| addrs.iter().map(|addr| (addr.to_string(), *addr)).collect();
    let options = |addrs: &[std::net::SocketAddr]| {
        MemberOptions::directory(dir.path().join("other"), names(addrs)).size(common::SIZE)
    };
    let bound = |addrs: &[std::net::SocketAddr]| {
        Member::bind(&device, 7471, options(addrs)).expect_err("it is none").to_string()
    };
    assert!(bound(&[a, b]).contains("is not among the members"), "{}", bound(&[a, b]));
    assert!(bound(&[a, a]).contains("named twice"));
    assert!(bound(&[own]).contains("2 to 16 members"));
    // A third one, of which those two do not know.
    let mut third = Member::bind(&device, 7471, options(&[a, b, own])).expect("a list is fair by itself");
    let why = third.run(&Stop::new()).expect_err("the others have another list").to_string();
    assert!(why.contains("start all of them with the same list"), "{why}");
    let why = Store::connect_members(&context(), &[own, a], live::options().patience(Duration::from_secs(2)))
        .expect_err("it is no member")
        .to_string();
    assert!(why.contains("is no member of the store"), "{why}");
    let role = cluster.said(cluster.primary()).map(|said| said.role);
    assert_eq!(role, Some(Role::Primary), "nobody who served was disturbed");
}

#[test]
fn a_member_whose_files_were_cut_within_their_journals_is_refused() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let at = live::address();
    let device = Context::open(remanence_verbs::Options::udp(at)).expect("a device");
    let members = [std::net::SocketAddr::new(at, 7471), std::net::SocketAddr::new(at, 7472)];
    let bind = || {
        let names = members.iter().map(|addr| (addr.to_string(), *addr)).collect();
        Member::bind(&device, 7471, MemberOptions::directory(dir.path(), names).size(common::SIZE))
    };
    drop(bind().expect("a new member"));
    for name in ["image", "ledger", "log"] {
        let path = dir.path().join(name);
        let whole = std::fs::read(&path).expect("a file");
        if whole.len().is_multiple_of(4096) {
            println!("skipped: no file on this machine has a journal, as /var/tmp is no disk");
            return;
        }
        std::fs::write(&path, &whole[..whole.len() - 1]).expect("a disk");
        let refused = bind().expect_err("a file is not whole").to_string();
        assert!(refused.contains(name) && refused.contains("was truncated"), "{refused}");
        std::fs::write(&path, &whole).expect("a disk");
        let kept = remanence_pmem::FileOptions::new().view(&path).expect("it is whole").len() as usize;
        let zeros = vec![0; whole.len() - kept];
        for left in [whole[..kept].to_vec(), [&whole[..kept], &zeros].concat()] {
            std::fs::write(&path, &left).expect("a disk");
            let refused = bind().expect_err("nothing is left of its journal").to_string();
            let directory = refused.contains("director") && refused.contains("taken away")
                || refused.contains("take the directory");
            assert!(refused.contains(name) && refused.contains("is gone") && directory, "{refused}");
            assert!(std::fs::read(&path).expect("a file") == left, "{name}: it stays as it was");
        }
        std::fs::write(&path, &whole).expect("a disk");
        drop(bind().expect("it is whole again"));
    }
}

#[test]
fn a_member_that_is_asked_to_grow_says_that_it_does_not_and_stays_as_it_is() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let at = live::address();
    let device = Context::open(remanence_verbs::Options::udp(at)).expect("a device");
    let members = [std::net::SocketAddr::new(at, 7471), std::net::SocketAddr::new(at, 7472)];
    let bind = |size: u64| {
        let names = members.iter().map(|addr| (addr.to_string(), *addr)).collect();
        Member::bind(&device, 7471, MemberOptions::directory(dir.path(), names).size(size))
    };
    let files = || {
        ["image", "ledger", "log"].map(|name| std::fs::read(dir.path().join(name)).expect("it was made once"))
    };
    drop(bind(common::SIZE).expect("a new member"));
    let before = files();
    let refused = bind(2 * common::SIZE).expect_err("a store on several members does not grow").to_string();
    let asked = format!("does not grow to {}", 2 * common::SIZE);
    assert!(refused.contains(&asked) && refused.contains("rem kv dump"), "{refused}");
    assert!(files() == before, "nothing of it was changed");
    // None shrinks, as a store on one server does not.
    for size in [common::SIZE, common::SIZE / 2] {
        assert!(!bind(size).expect("it is as large as that").is_new());
    }
}

#[test]
fn a_member_that_is_to_acknowledge_otherwise_than_its_store_is_refused() {
    let mut cluster = Cluster::new(3, |options| options);
    cluster.whole();
    cluster.stop(2);
    let own = cluster.addrs()[2];
    let device = Context::open(remanence_verbs::Options::udp(own.ip())).expect("its address");
    let refused = Member::bind(&device, own.port(), cluster.options(2).acks(3)).expect_err("it is of two");
    let refused = refused.to_string();
    assert!(
        refused.contains("acknowledges what 2 of its members have") && refused.contains("leave that out"),
        "{refused}"
    );
    drop(device);
    cluster.start(2);
    cluster.whole();
}

#[test]
fn a_member_of_another_store_is_not_taken_in() {
    let mut cluster = Cluster::new(3, |options| options);
    cluster.whole();
    let (primary, mut store) = (cluster.primary(), cluster.client());
    put(&mut store, b"key", b"value");
    let third = (primary + 1) % 3;
    cluster.stop(third);
    // What it finds in its directory is another store's.
    let other = Cluster::new(2, |options| options);
    other.whole();
    let other = other.ended();
    cluster.replace_dir(third, &other.dir_of(0));
    let why = cluster.fails(third);
    assert!(why.contains("is a member of another store"), "{why}");
    assert_eq!(store.get(b"key").expect("a GET").expect("it is there").value, b"value");
}
