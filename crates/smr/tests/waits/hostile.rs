//! Who is not to get in, and what who is in may not do.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use remanence_coord::mu::memory::{DECIDED, STATUS, request_at};
use remanence_persist::plan::Request as PlanRequest;
use remanence_remote::{Error, Session, Token};
use remanence_smr::{Client, ClientOptions};

use crate::common::{GEOMETRY, Group, clients_of, get, own_device, put};

/// The number of the service by which replicas join each other.
const JOIN: u16 = 3;
/// Where a superblock has the salt.
const SALT: u64 = 40;

fn token(text: &str) -> Token {
    Token::new(text).expect("a fair token")
}

fn guarded() -> Group {
    let mut group = Group::new(3);
    group.tokens = Some((token("of-the-clients-1"), token("of-the-members-2")));
    (0..3).for_each(|me| group.start(me));
    group
}

fn session(group: &Group, of: Option<Token>) -> Result<Session, Error> {
    let options = remanence_remote::Options::default().tokens(of);
    Session::connect(&own_device(), group.members[0], options)
}

/// What a replica of a group with that salt says when it joins another one.
fn join(from: u16, plane: u8, salt: u64) -> Vec<u8> {
    let mut bytes = vec![1, plane];
    bytes.extend(from.to_le_bytes());
    bytes.extend(salt.to_le_bytes());
    bytes.extend(GEOMETRY.replicas.to_le_bytes());
    for word in [GEOMETRY.slots, GEOMETRY.slot, GEOMETRY.window, GEOMETRY.snapshot] {
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

#[test]
fn who_has_not_the_token_gets_in_nowhere() {
    let group = guarded();
    let mut client = group.client();
    put(&mut client, b"a", b"x");
    let (clients, members) = group.tokens.clone().expect("it has some");
    for wrong in [None, Some(members), Some(token("somebody-elses-3"))] {
        let options = ClientOptions::default().tokens(wrong).patience(std::time::Duration::from_secs(1));
        let mut stranger =
            Client::connect(&own_device(), &clients_of(&group.members), options).expect("a client");
        assert!(stranger.query(b"a").is_err() && stranger.call(b"x").is_err() && stranger.status(0).is_err());
    }
    for wrong in [None, Some(clients), Some(token("somebody-elses-3"))] {
        assert!(session(&group, wrong).is_err(), "who joins as a replica may write the log");
    }
    assert_eq!(get(&mut client, b"a").map(|value| value.bytes), Some(b"x".to_vec()));
}

#[test]
fn who_is_of_another_group_does_not_join() {
    let group = guarded();
    let mut other =
        session(&group, group.tokens.clone().map(|(_, members)| members)).expect("it has the token");
    for bytes in [join(1, 0, 77), join(9, 0, 77), Vec::new(), vec![9; 40]] {
        assert!(matches!(other.call(JOIN, &bytes), Err(Error::Application(_))), "{bytes:?}");
    }
}

/// Has a session write somewhere, and says whether it could.
fn writes(session: &mut Session, at: u64) -> bool {
    let plan = session.plan(&PlanRequest::record(8)).expect("a plan");
    session.persist(&plan, &[(at, &[0xEE; 8])]).is_ok()
}

#[test]
fn who_has_joined_writes_what_is_its_own_and_nothing_else() {
    let mut group = Group::new(3);
    // 2 is not there: its place is taken by somebody of the group who does what it should not.
    group.start(0);
    group.start(1);
    let mut client = group.client();
    put(&mut client, b"a", b"x");
    let file = File::open(group.file(0)).expect("its file");
    let look = |at: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).expect("it is there");
        bytes
    };
    let (salt, slot) = (u64::from_le_bytes(look(SALT)), GEOMETRY.slot_at(40));
    // What it may not write.
    let of_others = [DECIDED, slot, request_at(1), STATUS];
    let on_background = of_others.map(|at| (0, at));
    for (plane, at) in on_background.into_iter().chain([(1, DECIDED), (1, slot), (1, request_at(2))]) {
        let mut other = session(&group, None).expect("this machine may");
        let keys = other.call(JOIN, &join(2, plane, salt)).expect("it is of the group");
        assert_eq!(keys.len(), if plane == 0 { 8 } else { 0 });
        if let Some((key, _)) = keys.split_first_chunk::<4>() {
            // Its own key is good for its own word alone.
            other.grant(0, GEOMETRY.size(), u32::from_le_bytes(*key));
        }
        assert!(!writes(&mut other, at), "plane {plane} at {at}");
        assert_ne!(look(at), [0xEE; 8], "plane {plane} at {at}");
    }
    // And what it may, if it has the key.
    let mut other = session(&group, None).expect("this machine may");
    let keys = other.call(JOIN, &join(2, 0, salt)).expect("it is of the group");
    let (key, _) = keys.split_first_chunk::<4>().expect("keys");
    other.grant(request_at(2), 8, u32::from_le_bytes(*key));
    assert!(writes(&mut other, request_at(2)) && look(request_at(2)) == [0xEE; 8]);
    put(&mut client, b"a", b"what is no number disturbs nobody");
    assert_eq!(get(&mut client, b"a").map(|value| value.version), Some(2));
}
