//! Replicas on real memory and connections: they elect, commit, take over, come back with their logs, and answer each command once.

use std::time::Duration;

use remanence_coord::mu::service::{Ask, Told};
use remanence_remote::Session;
use remanence_smr::map::{Change, Outcome};
use remanence_smr::{Client, ClientOptions, Map, Replica, ReplicaError, SERVICE};

use crate::common::{Group, change, clients_of, get, options, own_device, put};

#[test]
fn what_is_put_is_got_from_a_group_of_any_size() {
    for count in [1, 2, 3] {
        let group = Group::started(count);
        let mut client = group.client();
        assert_eq!(get(&mut client, b"a"), None);
        let version = put(&mut client, b"a", b"one");
        let found = get(&mut client, b"a").expect("it is there");
        assert_eq!((found.version, &found.bytes[..]), (version, &b"one"[..]), "{count}");
        let swap = |version| Change::Swap { key: b"a", version, value: b"two" };
        assert_eq!(change(&mut client, swap(version + 7)), Outcome::Differs(version));
        let Outcome::Done(next) = change(&mut client, swap(version)) else { panic!("it has that version") };
        assert_eq!(get(&mut client, b"a").map(|value| value.version), Some(next));
        assert_eq!(change(&mut client, Change::Delete { key: b"a" }), Outcome::Done(next));
        assert_eq!(get(&mut client, b"a"), None);
        let applied = group.wait(0, "it leads", |status| status.term > 0).applied;
        for me in 0..count {
            let status = group.wait(me, "it has all, and follows 0", |status| {
                status.applied >= applied && status.leader == 0
            });
            assert_eq!((status.replicas, status.sessions > 0), (count as u16, true));
        }
    }
}

#[test]
fn a_leader_that_stops_is_replaced_and_comes_back_with_its_log() {
    let mut group = Group::started(3);
    let mut client = group.client();
    let mut versions = Vec::new();
    // The log is written over some times.
    for n in 0..300_u32 {
        versions.push(put(&mut client, &(n % 7).to_le_bytes(), &n.to_le_bytes()));
    }
    assert!(versions.is_sorted_by(|a, b| a < b), "each was applied once");
    group.stop(0);
    put(&mut client, b"without 0", b"x");
    let status = group.wait(1, "it leads", |status| status.term > 0);
    assert_eq!(status.leader, 1);
    group.start(0);
    group.wait(0, "it leads again, with all", |status| status.term > 0 && status.connected == 2);
    assert_eq!(get(&mut client, b"without 0").map(|value| value.bytes), Some(b"x".to_vec()));
    for n in 293..300_u32 {
        let found = get(&mut client, &(n % 7).to_le_bytes()).expect("it is there");
        assert_eq!((found.version, &found.bytes[..]), (versions[n as usize], &n.to_le_bytes()[..]));
    }
    // Nothing but what is in their files.
    (0..3).for_each(|me| group.stop(me));
    (0..3).for_each(|me| group.start(me));
    let mut client = group.client();
    assert_eq!(get(&mut client, b"without 0").map(|value| value.bytes), Some(b"x".to_vec()));
    assert_eq!(put(&mut client, b"behind it all", b"y"), versions[299] + 2);
}

#[test]
fn a_replica_that_was_away_for_a_whole_log_is_brought_up_to_date() {
    let mut group = Group::started(3);
    let mut client = group.client();
    put(&mut client, b"first", b"x");
    group.stop(2);
    for n in 0..200_u32 {
        put(&mut client, b"many", &n.to_le_bytes());
    }
    let applied = group.wait(0, "it answers", |status| status.term > 0).applied;
    group.start(2);
    let status = group.wait(2, "it has all", |status| status.applied >= applied);
    assert!(status.snapshot > 64, "by a snapshot");
    // It is as good as any other one.
    group.stop(0);
    put(&mut client, b"many", b"of 1 and 2");
    assert_eq!(get(&mut client, b"many").map(|value| value.bytes), Some(b"of 1 and 2".to_vec()));
}

#[test]
fn a_minority_answers_nobody() {
    let mut group = Group::started(3);
    let mut client = group.client();
    put(&mut client, b"a", b"x");
    group.stop(0);
    group.stop(1);
    let options = ClientOptions::default().patience(Duration::from_secs(2));
    let mut hasty = Client::connect(&own_device(), &clients_of(&group.members), options).expect("a client");
    assert!(hasty.query(b"a").is_err(), "nobody can confirm that 2 leads");
    assert!(hasty.call(&Change::Put { key: b"a", value: b"y" }.emit()).is_err());
    group.start(1);
    let found = get(&mut client, b"a").expect("it is there");
    assert!(found.bytes == b"x" || found.bytes == b"y", "what was not answered may come true: {found:?}");
}

#[test]
fn a_command_that_is_sent_twice_is_carried_out_once() {
    let group = Group::started(3);
    let mut client = group.client();
    let device = own_device();
    let to = clients_of(&group.members)[0];
    let mut session = Session::connect(&device, to, remanence_remote::Options::default()).expect("a session");
    let mut ask = |ask: &Ask| loop {
        match Told::parse(&session.call(SERVICE, &ask.emit()).expect("answered")).expect("told") {
            // Until it leads.
            Told::Elsewhere(_) | Told::Unknown => std::thread::sleep(Duration::from_millis(5)),
            told => return told,
        }
    };
    let Told::Opened(of) = ask(&Ask::Open) else { panic!("a session") };
    let add = |number, value: &[u8]| Ask::Command {
        session: of,
        number,
        command: Change::Put { key: b"k", value }.emit(),
    };
    let first = ask(&add(1, b"x"));
    assert_eq!(first, ask(&add(1, b"x")), "it is known what it was answered");
    assert_eq!(get(&mut client, b"k").map(|value| value.version), Some(1));
    assert_ne!(ask(&add(2, b"y")), first, "and another one is another one");
    assert_eq!(ask(&add(1, b"x")), Told::Stale);
    assert_eq!(get(&mut client, b"k").map(|value| value.bytes), Some(b"y".to_vec()));
    assert_eq!(ask(&add(3, &[7; 600])), Told::TooLong(512 - 40 - 17));
}

#[test]
fn a_file_of_another_replica_is_not_served() {
    let mut group = Group::new(3);
    group.start(1);
    group.stop(1);
    let device = own_device();
    let refused = |options| match Replica::<Map>::bind(&device, &options) {
        Err(ReplicaError::Other(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(refused(options(&group.file(1), 2, &group.members)).contains("is the memory of replica 1"));
    let mut others = group.members.clone();
    others.reverse();
    assert!(refused(options(&group.file(1), 1, &others)).contains("in another order"));
    std::fs::write(group.file(2), b"something else").expect("a file");
    assert!(Replica::<Map>::bind(&device, &options(&group.file(2), 2, &group.members)).is_err());
    assert_eq!(std::fs::read(group.file(2)).expect("it is there"), b"something else");
}
