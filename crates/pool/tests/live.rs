//! Client and server over sockets, in one process.

mod common;

use std::io::Read as _;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use common::{Hangs, Host, bytes, name, put, put_with, source, token};
use remanence_pool::auth::Token;
use remanence_pool::client::{
    AsyncClient, Client, Error, Event, LossReason, Options, Source, Upload, measure::Op,
};
use remanence_pool::server::Limits;
use remanence_pool::{BlobName, Digest, State, Version};

fn get(client: &mut Client, text: &str) -> Result<Vec<u8>, Error> {
    let mut data = Vec::new();
    client
        .get(&name(text), |reader| {
            data.clear();
            reader.read_to_end(&mut data).map(drop)
        })
        .map(|_| data)
}

#[test]
fn what_is_put_is_got_back_whatever_its_length() {
    let host = Host::new(64 << 20);
    let mut client = host.client();
    for len in [0, 1, 7, 4095, 4096, 4097, 131_072, 524_288, 524_289, 3_000_000, 20_000_000] {
        let (text, data) = (format!("blob-{len}"), bytes(len as u64, len));
        let known = put(&mut client, &text, data.clone(), 1).expect("durable");
        assert_eq!((known.blobs, known.bytes), (1, len as u64));
        assert!(get(&mut client, &text).expect("there") == data, "{len} bytes, length known");
        let unknown = Source { len: None, ..source(&format!("stream-{len}"), data.clone()) };
        put_with(&mut client, vec![unknown], 1, &mut |_| ()).expect("durable");
        assert!(get(&mut client, &format!("stream-{len}")).expect("there") == data, "{len} bytes, a stream");
    }
    let info = client.stat(0).expect("there");
    assert_eq!(info.blobs, 22);
}

#[test]
fn bytes_are_put_and_got_by_who_names_no_address_of_its_own() {
    let host = Host::new(16 << 20);
    let mut client =
        Client::connect_to(Options::new(vec![host.named()]).tokens([token()]), 1).expect("it is there");
    let report = client.put_bytes(&name("a"), &bytes(1, 700_000), 1).expect("durable");
    let survives = client.info(0).expect("it is there").guarantee.after_psync;
    assert_eq!((report.blobs, report.survives, client.survives()), (1, survives, Some(survives)));
    assert_eq!(client.get_bytes(&name("a")).expect("there"), bytes(1, 700_000));
    assert!(matches!(client.get_bytes(&name("b")), Err(Error::NotFound(_))));
    let nobody = Client::connect_to(Options::new(vec![]), 1).map(drop).expect_err("nobody is named");
    assert!(matches!(nobody, Error::BadQuorum { servers: 0, .. }), "{nobody}");
}

#[test]
fn a_thousand_small_blobs_are_put_side_by_side() {
    let host = Host::new(64 << 20);
    let mut client = host.client();
    let sources = (0..1000).map(|n| source(&format!("{n:04}"), bytes(n, 100 + n as usize))).collect();
    let mut told = Vec::new();
    let report = put_with(&mut client, sources, 1, &mut |event| {
        if let Event::Durable { name, len, copies, .. } = event {
            assert_eq!(copies, 1);
            told.push((name.to_string(), len));
        }
    });
    assert_eq!(report.expect("durable").blobs, 1000);
    told.sort();
    assert_eq!(told.len(), 1000);
    assert_eq!(told[999], ("0999".into(), 1099));
    let catalogue = client.list(0).expect("there");
    assert_eq!(catalogue.len(), 1000);
    for n in [0, 1, 500, 999] {
        assert_eq!(get(&mut client, &format!("{n:04}")).expect("there"), bytes(n, 100 + n as usize));
        let State::Live { digest, .. } = catalogue[n as usize].state else { panic!("live") };
        assert_eq!(digest, Digest::of(&bytes(n, 100 + n as usize)));
    }
}

#[test]
fn a_blob_is_overwritten_and_deleted_by_name() {
    let host = Host::new(16 << 20);
    let mut client = host.client();
    put(&mut client, "a", bytes(1, 10_000), 1).expect("durable");
    put(&mut client, "a", bytes(2, 500), 1).expect("durable");
    assert_eq!(get(&mut client, "a").expect("there"), bytes(2, 500));
    let free = client.stat(0).expect("there").free;
    assert_eq!(client.delete(&name("a"), 1).expect("there"), 1);
    assert!(matches!(get(&mut client, "a"), Err(Error::NotFound(_))));
    assert!(matches!(client.delete(&name("a"), 1), Err(Error::NotFound(_))));
    assert_eq!(client.stat(0).expect("there").free, free + 4096);
}

#[test]
fn a_wrong_token_is_said_and_opens_nothing() {
    let host = Host::new(16 << 20);
    let wrong = vec![Token::new("this-is-not-the-one").expect("fair")];
    let error = Client::connect(&host.context(), Options::new(vec![host.named()]).tokens(wrong), 1)
        .map(drop)
        .expect_err("shut");
    let Error::TooFew { lost, .. } = error else { panic!("{error}") };
    assert_eq!(lost[0].why, LossReason::WrongToken);
    // The right one among others is found by its fingerprint.
    let ring = vec![Token::new("this-is-not-the-one").expect("fair"), token()];
    Client::connect(&host.context(), Options::new(vec![host.named()]).tokens(ring), 1)
        .map(drop)
        .expect("open");
    assert_eq!(host.server().stats().admitted, 1);
}

#[test]
fn a_server_whose_program_hangs_while_its_device_answers_is_given_up() {
    let (hangs, host) = (Hangs::new(), Host::new(1 << 20));
    let answer_limit = Duration::from_millis(300);
    let options = Options::new(vec![hangs.named()]).tokens([token()]).answer_limit(answer_limit);
    let mut client = Client::connect(&host.context(), options, 1).expect("it lets clients in");
    // Else this would wait for ever.
    let error = put(&mut client, "a", bytes(1, 1000), 1).expect_err("nobody answers");
    assert!(error.to_string().contains("has not answered for 0.3 s"), "{error}");
    assert_eq!(client.lost()[0].why, LossReason::Stuck(answer_limit));
    assert!(client.stat(0).is_err(), "nor is it asked again");
}

#[test]
fn a_full_pool_is_said_and_what_was_there_stays() {
    let host = Host::new(1 << 20);
    let mut client = host.client();
    put(&mut client, "small", bytes(1, 5000), 1).expect("durable");
    let error = put(&mut client, "large", bytes(2, 2 << 20), 1).expect_err("full");
    assert!(error.to_string().contains("the pool is full"), "{error}");
    // A stream finds out on the way.
    let mut client = host.client();
    let stream = Source { len: None, ..source("stream", bytes(2, 2 << 20)) };
    let error = put_with(&mut client, vec![stream], 1, &mut |_| ()).expect_err("full");
    assert!(error.to_string().contains("the pool is full"), "{error}");
    let mut client = host.client();
    assert_eq!(get(&mut client, "small").expect("there"), bytes(1, 5000));
}

#[test]
fn a_blob_is_durable_on_all_servers_or_on_a_quorum() {
    let hosts = [Host::new(16 << 20), Host::new(16 << 20), Host::new(64 << 10)];
    let servers: Vec<_> = hosts.iter().map(Host::named).collect();
    let context = hosts[0].context();
    let mut client =
        Client::connect(&context, Options::new(servers).tokens([token()]), 3).expect("all there");
    let mut copies = Vec::new();
    put_with(&mut client, vec![source("a", bytes(1, 10_000))], 3, &mut |event| {
        if let Event::Durable { copies: n, .. } = event {
            copies.push(n);
        }
    })
    .expect("durable on all");
    assert_eq!(copies, [3]);
    // The third one is too small for this.
    let report =
        put_with(&mut client, vec![source("b", bytes(2, 3_000_000))], 2, &mut |_| ()).expect("on two");
    assert_eq!((report.blobs, report.incomplete), (1, 1));
    assert_eq!(get(&mut client, "b").expect("there"), bytes(2, 3_000_000));
    let error = put(&mut client, "c", bytes(3, 3_000_000), 3).expect_err("not on all");
    assert!(error.to_string().contains("is durable on"), "{error}");
    assert_eq!(client.list(2).expect("there").len(), 1);
}

#[test]
fn a_damaged_copy_is_noticed_and_the_next_server_asked() {
    let hosts = [Host::new(16 << 20), Host::new(16 << 20)];
    let servers: Vec<_> = hosts.iter().map(Host::named).collect();
    let context = hosts[0].context();
    let mut client =
        Client::connect(&context, Options::new(servers).tokens([token()]), 2).expect("both there");
    put(&mut client, "a", bytes(1, 1_000_000), 2).expect("durable");
    hosts[0].rot(500_000);
    let mut data = Vec::new();
    let got = client.get(&name("a"), |reader| {
        data.clear();
        reader.read_to_end(&mut data).map(drop)
    });
    let got = got.expect("the other one is sound");
    assert_eq!((got.server, got.lost.len(), &got.lost[0].why), (1, 1, &LossReason::Damaged));
    assert_eq!(data, bytes(1, 1_000_000));
    hosts[1].rot(500_000);
    let error = get(&mut client, "a").expect_err("both are damaged");
    assert!(matches!(error, Error::Unreadable { ref lost, .. } if lost.len() == 2), "{error}");
}

#[test]
fn a_server_that_stops_while_it_is_read_is_left_and_the_next_one_asked() {
    let mut hosts = [Host::new(16 << 20), Host::new(16 << 20)];
    let servers: Vec<_> = hosts.iter().map(Host::named).collect();
    let context = hosts[0].context();
    // Most of it is asked for when the server is gone.
    let options = Options::new(servers).tokens([token()]).ring(2, 64 << 10);
    let mut client = Client::connect(&context, options, 2).expect("both there");
    put(&mut client, "a", bytes(1, 3_000_000), 2).expect("durable");
    let (mut data, mut left) = (Vec::new(), None);
    let got = client.get(&name("a"), |reader| {
        data.resize(1000, 0);
        reader.read_exact(&mut data)?;
        if left.is_none() {
            left = Some(reader.server());
            hosts[reader.server()].take().stop().expect("closed");
        }
        reader.read_to_end(&mut data).map(drop)
    });
    let got = got.expect("the other one has it");
    assert_eq!((got.lost.len(), Some(got.server)), (1, left.map(|left| 1 - left)));
    assert_eq!(data, bytes(1, 3_000_000));
}

/// A put of OLD reaches one server of three, and fails; the others come back without it, and NEW is put on them. With
/// the first one back NEW is what everybody reads, and what a catch-up spreads, whatever the random numbers.
#[test]
fn a_put_that_failed_never_outranks_a_later_one() {
    for turn in 0..2 {
        let mut hosts = [Host::file(16 << 20), Host::file(16 << 20), Host::file(16 << 20)];
        let servers: Vec<_> = hosts.iter().map(Host::named).collect();
        let context = hosts[0].context();
        let connect = |places: &[usize], need| {
            let servers = servers.clone();
            let client = Client::connect(&context, Options::new(servers).tokens([token()]), need);
            let client = client.expect("enough are there");
            assert_eq!(client.live().collect::<Vec<_>>(), places);
            client
        };
        put(&mut connect(&[0, 1, 2], 3), "x", bytes(0, 5000), 3).expect("on all");

        // As if the other two had been killed before their commits came.
        let mut client = connect(&[0, 1, 2], 3);
        let version = client.next_version().expect("all promise");
        let mut alone = Client::connect(&context, Options::new(vec![hosts[0].named()]).tokens([token()]), 1)
            .expect("it is there");
        let old = Source { version: Some(version), ..source("x", bytes(1, 5000)) };
        put_with(&mut alone, vec![old], 1, &mut |_| ()).expect("on one");
        drop((client, alone));

        hosts[0].take().stop().expect("closed");
        let report = put(&mut connect(&[1, 2], 2), "x", bytes(2, 7000), 2).expect("on two");
        assert_eq!(report.incomplete, 1);
        hosts[0].restart();
        let mut client = connect(&[0, 1, 2], 3);
        assert_eq!(get(&mut client, "x").expect("there"), bytes(2, 7000), "turn {turn}");
        for (place, host) in hosts.iter().enumerate() {
            let one = Options::new(vec![host.named()]).tokens([token()]);
            let mut target = Client::connect(&context, one, 1).expect("there");
            target.catch_up(&mut client, &mut |_| ()).expect("up to date");
            assert_eq!(get(&mut target, "x").expect("there"), bytes(2, 7000), "turn {turn}, server {place}");
        }
    }
}

/// What one get says no later get takes back: it is brought to a majority first. And fewer than a majority say nothing.
#[test]
fn a_get_asks_a_majority_and_brings_there_what_it_finds_on_fewer() {
    let mut hosts = [Host::file(16 << 20), Host::file(16 << 20), Host::file(16 << 20)];
    let servers: Vec<_> = hosts.iter().map(Host::named).collect();
    let context = hosts[0].context();
    let connect = || {
        Client::connect(&context, Options::new(servers.clone()).tokens([token()]), 1).expect("one at least")
    };
    put(&mut connect(), "x", bytes(0, 5000), 3).expect("on all");
    put(&mut connect(), "gone", bytes(0, 500), 3).expect("on all");
    hosts[2].take().stop().expect("closed");
    put(&mut connect(), "x", bytes(1, 3_000_000), 2).expect("on two");
    assert_eq!(connect().delete(&name("gone"), 2).expect("on two"), 2);

    // The one that missed both is alone: it is not believed unless that is wanted.
    hosts[0].take().stop().expect("closed");
    hosts[1].take().stop().expect("closed");
    hosts[2].restart();
    let error = get(&mut connect(), "x").expect_err("one of three");
    assert!(matches!(error, Error::NoMajority { have: 1, servers: 3, need: 2, .. }), "{error}");
    assert!(matches!(connect().delete(&name("x"), 2), Err(Error::NoMajority { .. })));
    let mut stale = Vec::new();
    let got =
        connect().get_any(&name("x"), |reader| reader.read_to_end(&mut stale).map(drop)).expect("as asked");
    assert_eq!((stale, got.asked, got.newest), (bytes(0, 5000), 1, false));

    // With one that has them it is two of three; the new one is on one of them only.
    hosts[0].restart();
    assert_eq!(get(&mut connect(), "x").expect("there"), bytes(1, 3_000_000));
    assert!(matches!(get(&mut connect(), "gone"), Err(Error::NotFound(_))));
    // It was brought to the other: that one and the third are enough to say the same.
    hosts[0].take().stop().expect("closed");
    hosts[1].restart();
    assert_eq!(get(&mut connect(), "x").expect("there"), bytes(1, 3_000_000));
    let one = Options::new(vec![hosts[2].named()]).tokens([token()]);
    let mut third = Client::connect(&context, one, 1).expect("there");
    assert_eq!(get(&mut third, "x").expect("there"), bytes(1, 3_000_000));
    assert!(matches!(get(&mut third, "gone"), Err(Error::NotFound(_))));
}

#[test]
fn a_quorum_that_others_could_miss_is_refused() {
    let hosts = [Host::new(16 << 20), Host::new(16 << 20), Host::new(16 << 20)];
    let servers: Vec<_> = hosts.iter().map(Host::named).collect();
    let options = Options::new(servers).tokens([token()]);
    let mut client = Client::connect(&hosts[0].context(), options, 3).expect("all there");
    let error = put(&mut client, "x", bytes(0, 10), 1).expect_err("no majority");
    assert!(matches!(error, Error::SmallQuorum { quorum: 1, servers: 3, need: 2 }), "{error}");
    put(&mut client, "x", bytes(0, 10), 2).expect("a majority");
    assert!(matches!(client.delete(&name("x"), 1), Err(Error::SmallQuorum { .. })));
}

/// A put that is on one server only must not count as being on two.
#[test]
fn a_server_that_is_named_twice_does_not_count_as_two() {
    let hosts = [Host::new(16 << 20), Host::new(16 << 20)];
    let (one, other) = (hosts[0].named(), hosts[1].named());
    let options = Options::new(vec![one.clone(), other, ("again".into(), one.1)]).tokens([token()]);
    match Client::connect(&hosts[0].context(), options, 2) {
        Err(Error::Twice { one: first, other }) => assert_eq!((first, &other[..]), (one.0, "again")),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was counted twice"),
    }
    // Under another address too: the pool says which one it is.
    let mut copied = Host::file(16 << 20);
    copied.take().stop().expect("closed");
    let twin = copied.twin();
    copied.restart();
    let options = Options::new(vec![copied.named(), twin.named()]).tokens([token()]);
    assert!(matches!(Client::connect(&hosts[0].context(), options, 2), Err(Error::Twice { .. })));
}

/// What was deleted while a server was away that never had the blob is not brought back by the one that missed it.
#[test]
fn a_deletion_is_kept_by_servers_that_never_had_the_blob() {
    let mut hosts = [Host::file(16 << 20), Host::file(16 << 20), Host::file(16 << 20)];
    let servers: Vec<_> = hosts.iter().map(Host::named).collect();
    let context = hosts[0].context();
    let connect = || {
        Client::connect(&context, Options::new(servers.clone()).tokens([token()]), 2).expect("two at least")
    };
    hosts[2].take().stop().expect("closed");
    put(&mut connect(), "x", bytes(0, 5000), 2).expect("on the first two");
    hosts[2].restart();
    hosts[0].take().stop().expect("closed");
    // The third one has nothing of it, and is one of the two that make the deletion count.
    assert_eq!(connect().delete(&name("x"), 2).expect("on two"), 2);
    hosts[1].take().stop().expect("closed");
    hosts[0].restart();
    assert!(matches!(get(&mut connect(), "x"), Err(Error::NotFound(_))));
}

#[test]
fn a_server_that_stops_on_the_way_is_told_of_and_catches_up_later() {
    let mut hosts = [Host::file(64 << 20), Host::file(64 << 20), Host::file(64 << 20)];
    let servers: Vec<_> = hosts.iter().map(Host::named).collect();
    let context = hosts[0].context();
    let mut client =
        Client::connect(&context, Options::new(servers.clone()).tokens([token()]), 3).expect("all there");
    put(&mut client, "before", bytes(0, 5000), 3).expect("durable");
    put(&mut client, "deleted", bytes(0, 5000), 3).expect("durable");
    let (mut durable, mut lost, mut victim) = (0, Vec::new(), Some(hosts[1].take()));
    let sources = (0..200).map(|n| source(&format!("{n:03}"), bytes(n, 100_000))).collect();
    let report = put_with(&mut client, sources, 2, &mut |event| match event {
        Event::Durable { .. } => {
            durable += 1;
            if durable == 50 {
                victim.take().expect("once").stop().expect("closed");
            }
        }
        Event::Lost(which) => lost.push(which.clone()),
        Event::Sent(_) => {}
    });
    let report = report.expect("two are left");
    assert_eq!((report.blobs, lost.len()), (200, 1));
    assert!(report.incomplete > 0 && report.incomplete < 200, "{report:?}");
    assert_eq!(lost[0].server, servers[1].0);
    client.delete(&name("deleted"), 2).expect("on two");
    put(&mut client, "before", bytes(1, 70_000), 2).expect("durable");

    hosts[1].restart();
    let mut target =
        Client::connect(&context, Options::new(vec![hosts[1].named()]).tokens([token()]), 1).expect("back");
    let sync = target.catch_up(&mut client, &mut |_| ()).expect("caught up");
    assert_eq!((sync.copied, sync.deleted), (report.incomplete + 1, 1));
    assert_eq!(target.catch_up(&mut client, &mut |_| ()).expect("nothing to do").copied, 0);
    for n in 0..200 {
        assert!(get(&mut target, &format!("{n:03}")).expect("there") == bytes(n, 100_000));
    }
    assert_eq!(get(&mut target, "before").expect("there"), bytes(1, 70_000));
    assert_eq!(client.list(0).expect("there"), target.list(0).expect("there"));
}

/// A client of these servers alone.
fn client_of(hosts: &[&Host]) -> Client {
    let options = Options::new(hosts.iter().map(|host| host.named()).collect()).tokens([token()]);
    Client::connect(&hosts[0].context(), options, 1).expect("one is there at least")
}

#[test]
fn a_catch_up_takes_what_one_source_cannot_give_from_another_one() {
    let (one, other) = (Host::new(16 << 20), Host::new(16 << 20));
    let mut sources = client_of(&[&one, &other]);
    put(&mut sources, "a", bytes(1, 1_000_000), 2).expect("durable");
    put(&mut sources, "b", bytes(2, 5000), 2).expect("durable");
    one.rot(500_000);
    let fresh = [Host::new(16 << 20), Host::new(16 << 20)];
    let mut target = fresh[0].client();
    let sync = target.catch_up(&mut sources, &mut |_| ()).expect("the other one is sound");
    assert_eq!((sync.copied, sync.bytes), (2, 1_005_000));
    assert_eq!(get(&mut target, "a").expect("there"), bytes(1, 1_000_000));
    // From nobody: that is said, and the rest is there.
    other.rot(500_000);
    let mut target = fresh[1].client();
    let error = target.catch_up(&mut sources, &mut |_| ()).expect_err("both are damaged");
    assert!(error.to_string().contains("has other bytes than were put there"), "{error}");
    assert_eq!(get(&mut target, "b").expect("there"), bytes(2, 5000));
}

/// A target that may have a new disk is no part of what knows what was put last, or which numbers were given out.
#[test]
fn a_catch_up_needs_so_many_others_that_each_majority_has_one_of_them() {
    let (one, other, mut away) = (Host::new(16 << 20), Host::new(16 << 20), Host::new(16 << 20));
    put(&mut client_of(&[&one, &away]), "a", bytes(1, 5000), 2).expect("on two of three");
    let (mut all, mut sources) = (client_of(&[&away, &other]), client_of(&[&other, &away]));
    let target = Host::new(16 << 20);
    assert_eq!(target.client().catch_up(&mut all, &mut |_| ()).expect("all others are there").copied, 1);
    away.take().stop().expect("closed");
    let error = target.client().catch_up(&mut sources, &mut |_| ()).expect_err("the one that has it is away");
    assert!(matches!(error, Error::TooFewSources { have: 1, need: 2, .. }), "{error}");
    // Who has no number left cannot say which ones it gave out.
    let last = Version { counter: u64::MAX, writer: 1 };
    let used_up = Source { version: Some(last), ..source("b", bytes(2, 10)) };
    put_with(&mut one.client(), vec![used_up], 1, &mut |_| ()).expect("on one");
    let error =
        target.client().catch_up(&mut client_of(&[&one, &other]), &mut |_| ()).expect_err("no number");
    assert!(matches!(error, Error::TooFewSources { have: 1, need: 2, .. }), "{error}");
}

#[test]
fn what_a_client_reserved_and_did_not_commit_is_free_when_it_is_gone() {
    let host = Host::new(16 << 20);
    let mut client = host.client();
    let free = client.stat(0).expect("there").free;
    let broken = Source {
        name: name("broken"),
        len: Some(3_000_000),
        reader: Box::new(std::io::repeat(1).take(1_000_000).chain(Broken)),
        version: None,
    };
    let error = put_with(&mut client, vec![broken], 1, &mut |_| ()).expect_err("the source fails");
    assert!(error.to_string().contains("the disk is on fire"), "{error}");
    drop(client);
    let mut client = host.client();
    for _ in 0..100 {
        if client.stat(0).expect("there").free == free {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{} of {free} bytes are free", client.stat(0).expect("there").free);
}

struct Broken;

impl std::io::Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(std::io::Error::other("the disk is on fire"))
    }
}

/// A stream that takes long says nothing on the control QP; that is no reason to end it.
#[test]
fn a_quiet_client_is_asked_whether_it_is_there_and_stays() {
    let limits = Limits { quiet: Duration::from_millis(1), ..Limits::default() };
    let host = Host::with_limits(16 << 20, limits);
    let mut client = host.client();
    let probed = |at_least| {
        for _ in 0..1000 {
            if host.server().stats().probed >= at_least {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("not probed: {:?}, {} clients", host.server().stats(), host.server().clients());
    };
    probed(1);
    put(&mut client, "a", bytes(1, 10_000), 1).expect("still connected");
    probed(3);
    assert_eq!(get(&mut client, "a").expect("still connected"), bytes(1, 10_000));
    assert_eq!(host.server().stats().admitted, 1);
}

#[test]
fn every_operation_can_be_measured() {
    let host = Host::new(16 << 20);
    let mut client = host.client();
    let mut scratch = client.scratch(0, 1 << 20).expect("room");
    for op in Op::ALL {
        let once = scratch.once(op, 64).expect("done");
        let (count, time) = scratch.stream(op, 4096, 16, Duration::from_millis(20)).expect("done");
        assert!(once > Duration::ZERO && count > 0 && time >= Duration::from_millis(20), "{op:?}");
    }
    drop(scratch);
    assert_eq!(client.list(0).expect("there"), []);
}

#[test]
fn an_upload_of_nothing_is_done_at_once() {
    let host = Host::new(16 << 20);
    let report = put_with(&mut host.client(), vec![], 1, &mut |_| ()).expect("nothing to do");
    assert_eq!((report.blobs, report.bytes), (0, 0));
    let mut client = host.client();
    let bad = Upload { quorum: 2, servers: None };
    let none = std::iter::empty();
    assert!(matches!(client.put(none, &bad, &mut |_| ()), Err(Error::BadQuorum { quorum: 2, servers: 1 })));
    assert!(
        matches!(get(&mut client, "nothing"), Err(Error::NotFound(n)) if n == BlobName::new("nothing").expect("fair"))
    );
}

/// Waits for a future, as any executor would.
fn wait<T>(future: impl Future<Output = T>) -> T {
    struct Parked(std::thread::Thread);
    impl Wake for Parked {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let (waker, mut future) = (Arc::new(Parked(std::thread::current())).into(), pin!(future));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn async_client(hosts: &[&Host]) -> AsyncClient {
    let options = Options::new(hosts.iter().map(|host| host.named()).collect()).tokens([token()]);
    wait(AsyncClient::connect_to(options, hosts.len())).expect("all are there")
}

#[test]
fn tasks_and_threads_share_a_client_with_futures() {
    let hosts = [Host::new(16 << 20), Host::new(16 << 20)];
    let client = async_client(&[&hosts[0], &hosts[1]]);
    std::thread::scope(|scope| {
        for t in 0..4_usize {
            let client = client.clone();
            scope.spawn(move || {
                for n in 0..5 {
                    let (text, data) = (format!("{t}-{n}"), bytes(n as u64, 1000 * t + n));
                    wait(client.put_bytes(&name(&text), data.clone(), 2)).expect("durable");
                    assert_eq!(wait(client.get_bytes(&name(&text))).expect("there"), data);
                }
            });
        }
    });
    let many = (0..50).map(|n| source(&format!("many-{n}"), bytes(n, 100))).collect();
    let report = wait(client.put(many, Upload { quorum: 2, servers: None })).expect("durable");
    assert_eq!((report.blobs, report.bytes), (50, 5000));
    assert_eq!(wait(client.list(1)).expect("there").len(), 70);
    assert_eq!(wait(client.delete(&name("0-0"), 2)).expect("there"), 2);
    let gone = wait(client.get_bytes(&name("0-0")));
    assert!(matches!(gone, Err(Error::NotFound(_))), "{gone:?}");
    assert_eq!(
        (wait(client.stat(0)).expect("there").blobs, wait(client.lost()).expect("there")),
        (69, vec![])
    );
}

/// A slow source that never ends, and says when it is read, and when nobody wants it any more.
struct Endless(std::sync::mpsc::Sender<bool>);

impl std::io::Read for Endless {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let _ = self.0.send(true);
        std::thread::sleep(Duration::from_millis(1));
        Ok(into.len().min(1000))
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        let _ = self.0.send(false);
    }
}

#[test]
fn a_put_whose_future_is_dropped_ends_and_the_next_one_is_served() {
    let host = Host::new(16 << 20);
    let client = async_client(&[&host]);
    let (read, is_read) = std::sync::mpsc::channel();
    let endless = Source { len: None, reader: Box::new(Endless(read)), ..source("endless", Vec::new()) };
    let mut put = Box::pin(client.put(vec![endless], Upload { quorum: 1, servers: None }));
    let never = name("never");
    let mut queued = Box::pin(client.put_bytes(&never, b"never".to_vec(), 1));
    let mut noop = Context::from_waker(Waker::noop());
    assert!(put.as_mut().poll(&mut noop).is_pending() && queued.as_mut().poll(&mut noop).is_pending());
    assert!(is_read.recv().expect("it is read"));
    drop((queued, put));
    assert!(is_read.iter().any(|read| !read), "nobody reads it any more");
    // It has its turn when the other one has ended, which has given back what it had reserved.
    wait(client.put_bytes(&name("next"), bytes(1, 10 << 20), 1)).expect("durable");
    let names: Vec<String> =
        wait(client.list(0)).expect("there").iter().map(|listing| listing.name.to_string()).collect();
    assert_eq!(names, ["next"]);
}

#[test]
fn who_waits_for_servers_that_stop_is_told() {
    let mut hosts = [Host::new(16 << 20), Host::new(16 << 20), Host::new(16 << 20)];
    let client = async_client(&[&hosts[0], &hosts[1], &hosts[2]]);
    wait(client.put_bytes(&name("one"), b"one".to_vec(), 2)).expect("durable");
    let (read, is_read) = std::sync::mpsc::channel();
    let endless = Source { len: None, reader: Box::new(Endless(read)), ..source("endless", Vec::new()) };
    let mut put = pin!(client.put(vec![endless], Upload { quorum: 2, servers: None }));
    assert!(put.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(is_read.recv().expect("it is read"));
    for host in &mut hosts[1..] {
        host.take().stop().expect("it ends well");
    }
    let lost = wait(put);
    assert!(matches!(lost, Err(Error::NoQuorum { .. })), "{lost:?}");
    let few = wait(client.get_bytes(&name("one")));
    assert!(matches!(few, Err(Error::NoMajority { .. })), "{few:?}");
}
