//! One store on several members, live: real logs, real connections, in this process. What an acknowledgement promises, one
//! test each.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "real members take real time")]

#[path = "cluster/common.rs"]
mod common;
#[path = "live/common.rs"]
mod live;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{Cluster, patient};
use live::context;
use remanence_kv::live::{Error, Member, MemberOptions, PutOptions, Role, Store};
use remanence_kv::proto::Expect;
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
    // What a door exports is to be read.
    let options = remanence_remote::Options::default().tokens([clients]);
    let mut door =
        remanence_remote::Session::connect(&context(), cluster.addrs()[0], options).expect("connected");
    let mut promise = [0; 24];
    door.read(0, &mut promise).expect("it is for that");
    let forged = [7; 24];
    let written = door.together(&[remanence_remote::Work::Write { at: 0, bytes: &forged }]);
    assert!(written.is_err(), "a client writes what it likes");
    assert_eq!(store.get(b"key").expect("a GET").expect("it is there").value, b"value");
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
    let why = third.run(&AtomicBool::new(false)).expect_err("the others have another list").to_string();
    assert!(why.contains("start all of them with the same list"), "{why}");
    let why = Store::connect_members(&context(), &[own, a], live::options().patience(Duration::from_secs(2)))
        .expect_err("it is no member")
        .to_string();
    assert!(why.contains("is no member of the store"), "{why}");
    let role = cluster.said(cluster.primary()).map(|said| said.role);
    assert_eq!(role, Some(Role::Primary), "nobody who served was disturbed");
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
