//! Clients that write where they may not, with keys that are not theirs or not theirs any more, by one-sided WRITEs and by
//! messages, and clients that ask for everything: nothing of anybody else changes, and everybody else goes on.

use crate::servers as common;

use common::{Host, SIZE, client, context};
use remanence_kv::format::ObjectAddress;
use remanence_kv::format::object::{Content, WRITTEN_FROM, emit};
use remanence_kv::proto::{Expect, Refusal, Reply, Request, Reserved};
use remanence_kv::view::View;
use remanence_kv_live::{Error as StoreError, PROTOCOL_VERSION, PutOptions, SERVICE, ServerOptions, Store};
use remanence_persist::plan::{Costs, Request as PlanRequest};
use remanence_persist::recipe::Op;
use remanence_pmem::{FileOptions, Region};
use remanence_remote::{CostSource, Error, Options, Role, Session, Token, Work};

/// A right to write, as it was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key {
    at: u64,
    len: u64,
    rkey: u32,
}

/// A client that makes its calls and its work requests by hand.
struct Hostile {
    session: Session,
    view: View,
}

impl Hostile {
    fn new(host: &Host) -> Self {
        Self::with(host, [])
    }

    fn with(host: &Host, tokens: impl IntoIterator<Item = Token>) -> Self {
        let options = Options::default().costs(CostSource::Fixed(Costs::PAPERS)).tokens(tokens);
        let mut session = Session::connect(&context(), host.addr, options).expect("connected");
        let hello = session.call(SERVICE, &[&[3, 0, 0, 0, 0][..], &PROTOCOL_VERSION.to_le_bytes()].concat());
        let hello = hello.expect("an answer");
        let Some(Reply::View(view)) = Reply::parse(&hello[12 + 10..]) else { panic!("{hello:?}") };
        Self { session, view }
    }

    fn ask(&mut self, request: &Request) -> (Vec<Key>, Reply) {
        let call = [&[4, 0, 0, 0, 0][..], &request.emit()].concat();
        let answer = self.session.call(SERVICE, &call).expect("an answer");
        assert_eq!(answer[..4], [0; 4], "all of it");
        let word = |at: usize| u32::from_le_bytes(answer[at..at + 4].try_into().expect("four bytes"));
        let count = word(12) as usize;
        let key = |n: usize| {
            let at = u64::from(word(16 + 16 * n)) | u64::from(word(20 + 16 * n)) << 32;
            Key { at, len: word(24 + 16 * n).into(), rkey: word(28 + 16 * n) }
        };
        let reply = Reply::parse(&answer[16 + 16 * count..]).expect("a reply");
        ((0..count).map(key).collect(), reply)
    }

    fn reserve(&mut self, key: &[u8], len: u64) -> (Key, Reserved) {
        let put = Request::Put { key: key.to_vec(), len, expires: 0, expect: Expect::Any };
        let (keys, reply) = self.ask(&put);
        let (Reply::Reserved(reserved), [key]) = (reply, &keys[..]) else { panic!("no room: {keys:?}") };
        (*key, reserved)
    }

    /// The object that belongs there, without its mark.
    fn object(&self, reserved: &Reserved, key: &[u8], value: &[u8]) -> Vec<u8> {
        let Reserved { head, offset, epoch, .. } = *reserved;
        let place = ObjectAddress { salt: self.view.salt, head, offset, epoch };
        emit(&place, reserved.version, 0, key, Content::Value(value)).split_off(WRITTEN_FROM)
    }

    /// A one-sided WRITE under this key, wherever it is.
    fn write(&mut self, at: u64, bytes: &[u8], key: Option<Key>) -> Result<(), Error> {
        if let Some(key) = key {
            self.session.grant(at, bytes.len() as u64, key.rkey);
        }
        self.session.together(&[Work::Write { at, bytes }]).map(drop)
    }
}

fn refused(outcome: Result<(), Error>) {
    let error = outcome.expect_err("it was written");
    assert!(error.to_string().contains("remote access"), "{error}");
}

/// A store in a region that the test sees, too.
struct Scene {
    host: Host,
    region: Region,
    honest: Store,
    _dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        Self::with(|options| options, None)
    }

    fn with(change: impl FnOnce(ServerOptions) -> ServerOptions, token: Option<Token>) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let region = FileOptions::new().create(SIZE).open(dir.path().join("store")).expect("memory");
        let host = Host::of(change(ServerOptions::region(region.clone())));
        let mut honest =
            Store::connect(&context(), host.addr, common::options().tokens(token)).expect("connected");
        for n in 0..20_u8 {
            honest.put(&[n], &[n; 100], PutOptions::default()).expect("a PUT");
        }
        honest.rest().expect("the writes are confirmed");
        host.settled();
        Self { host, region, honest, _dir: dir }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; SIZE as usize];
        self.region.read(0, &mut bytes);
        bytes
    }

    /// Everybody's values are there, and everybody can work.
    fn is_unharmed(&mut self) {
        for n in 0..20_u8 {
            assert_eq!(self.honest.get(&[n]).expect("a GET").map(|f| f.value), Some(vec![n; 100]));
        }
        self.honest.put(b"still", b"works", PutOptions::default()).expect("a PUT");
        assert_eq!(self.host.metrics().server.damaged, 0);
    }
}

#[test]
fn a_write_that_was_not_granted_is_a_remote_access_error_and_changes_nothing() {
    let mut scene = Scene::new();
    let table = scene.host.metrics().size / 2;
    for at in [0, 4096, 12_288, 14_336, 16_384, table, SIZE - 64] {
        let mut hostile = Hostile::new(&scene.host);
        let before = scene.bytes();
        refused(hostile.write(at, &[0xAA; 64], None));
        assert!(scene.bytes() == before, "something changed by a write at {at}");
    }
    scene.is_unharmed();
}

#[test]
fn a_grant_ends_at_its_ends() {
    let mut scene = Scene::new();
    let mark = WRITTEN_FROM as u64;
    // The mark before the room, one byte too many, all before and behind.
    for (from, len) in [(-(mark as i64), 8), (0, 1), (-64, 64), (1, 0), (4096, 64)] {
        let mut hostile = Hostile::new(&scene.host);
        let (key, _) = hostile.reserve(b"mine", 100);
        let before = scene.bytes();
        let (at, len) = match len {
            0 | 1 => (key.at.wrapping_add_signed(from), key.len + 1 - u64::from(from == 1)),
            len => (key.at.wrapping_add_signed(from), len),
        };
        refused(hostile.write(at, &vec![0xAA; len as usize], Some(key)));
        // The session is over with that, and the entry given back: only what is around the room is looked at.
        let (after, end) = (scene.bytes(), (key.at + key.len) as usize);
        let around = [key.at as usize - 64..key.at as usize, end..end + 4096 + 64];
        assert!(around.into_iter().all(|range| before[range.clone()] == after[range]), "{from} {len}");
        drop(hostile);
        scene.host.settled();
    }
    scene.is_unharmed();
}

#[test]
fn a_key_is_good_through_its_own_connection_alone() {
    let mut scene = Scene::new();
    let (mut alice, mut mallory) = (Hostile::new(&scene.host), Hostile::new(&scene.host));
    let (key, reserved) = alice.reserve(b"alice", 50);
    let before = scene.bytes();
    let object = mallory.object(&reserved, b"alice", &[0xAA; 50]);
    refused(mallory.write(key.at, &object, Some(key)));
    assert!(scene.bytes() == before, "a key that was overheard is good for something");
    // And what is Alice's is not to be confirmed or given up by others.
    let mut mallory = Hostile::new(&scene.host);
    let abandon = Request::Abandon { version: reserved.version };
    assert_eq!(mallory.ask(&abandon).1, Reply::Refused(Refusal::NotYours));
    mallory.ask(&Request::Confirm { versions: vec![reserved.version] });
    let object = alice.object(&reserved, b"alice", &[7; 50]);
    alice.write(key.at, &object, Some(key)).expect("her own room");
    let settle = Request::Settle { key: b"alice".to_vec() };
    assert_eq!(alice.ask(&settle).1, Reply::Settled { version: reserved.version });
    assert_eq!(scene.honest.get(b"alice").expect("a GET").map(|found| found.value), Some(vec![7; 50]));
    scene.is_unharmed();
}

#[test]
fn what_is_settled_cannot_be_written_any_more() {
    let mut scene = Scene::new();
    for abandoned in [false, true] {
        let mut hostile = Hostile::new(&scene.host);
        let (key, reserved) = hostile.reserve(b"mine", 50);
        let value = hostile.object(&reserved, b"mine", &[1; 50]);
        let end = if abandoned {
            Request::Abandon { version: reserved.version }
        } else {
            hostile.write(key.at, &value, Some(key)).expect("its own room");
            Request::Settle { key: b"mine".to_vec() }
        };
        let (_, reply) = hostile.ask(&end);
        assert!(matches!(reply, Reply::Settled { .. } | Reply::Ok), "{reply:?}");
        let before = scene.bytes();
        let other = hostile.object(&reserved, b"mine", &[2; 50]);
        refused(hostile.write(key.at, &other, Some(key)));
        assert!(scene.bytes() == before, "what was settled has changed");
    }
    assert_eq!(scene.honest.get(b"mine").expect("a GET").map(|found| found.value), Some(vec![1; 50]));
    scene.is_unharmed();
}

#[test]
fn messages_write_no_more_than_keys_do() {
    let mut scene = Scene::new();
    let mut hostile = Hostile::new(&scene.host);
    let (key, reserved) = hostile.reserve(b"mine", 50);
    let plan = hostile.session.plan_by(Op::Send, &PlanRequest::record(64)).expect("a plan");
    let value = hostile.object(&reserved, b"mine", &[1; 50]);
    let _ = hostile.session.persist(&plan, &[(key.at, &value)]).expect("its own room, by message");
    let settle = Request::Settle { key: b"mine".to_vec() };
    assert_eq!(hostile.ask(&settle).1, Reply::Settled { version: reserved.version });
    for at in [0, key.at, key.at - 64, 16_384] {
        let mut hostile = Hostile::new(&scene.host);
        let plan = hostile.session.plan_by(Op::Send, &PlanRequest::record(64)).expect("a plan");
        let before = scene.bytes();
        let outcome = hostile.session.persist(&plan, &[(at, &[0xAA; 64])]);
        assert!(outcome.is_err(), "a message wrote to {at}");
        assert!(scene.bytes() == before, "a message changed something at {at}");
    }
    scene.is_unharmed();
}

#[test]
fn who_asks_for_everything_gets_its_share() {
    let mut scene = Scene::new();
    let mut hostile = Hostile::new(&scene.host);
    let mut refusals = Vec::new();
    for n in 0..1200_u32 {
        let put = Request::Put { key: n.to_be_bytes().to_vec(), len: 10, expires: 0, expect: Expect::Any };
        if let Reply::Refused(refusal) = hostile.ask(&put).1 {
            refusals.push(refusal);
        }
    }
    assert!(refusals.contains(&Refusal::TooMany), "{refusals:?}");
    // Others go on meanwhile, and afterwards.
    scene.is_unharmed();
    drop(hostile);
    scene.honest.rest().expect("the writes are confirmed");
    scene.host.settled();
    scene.is_unharmed();
}

fn token(text: &str) -> Token {
    Token::new(text).expect("a fair token")
}

const WRITERS: &str = "writers-writers-writers";
const READERS: &str = "readers-readers-readers";

fn with_readers(guarded: bool) -> Scene {
    let both =
        |options: ServerOptions| options.token(token(WRITERS)).reader_token(token(READERS)).guarded(guarded);
    Scene::with(both, Some(token(WRITERS)))
}

#[test]
fn whatever_a_reader_asks_for_changes_nothing() {
    let mut scene = with_readers(true);
    // Somebody's write is under way all the time, and is not a reader's to end.
    let mut alice = Hostile::with(&scene.host, [token(WRITERS)]);
    let (_, reserved) = alice.reserve(b"alice", 50);
    let mut reader = Hostile::with(&scene.host, [token(READERS)]);
    assert_eq!(reader.session.role(), Role::Reader);
    let before = scene.bytes();
    let (key, expect) = (vec![3], Expect::Any);
    let changes = [
        Request::Put { key: key.clone(), len: 10, expires: 0, expect },
        Request::Put { key: b"new".to_vec(), len: 10, expires: 0, expect },
        Request::PutInline { key: key.clone(), value: b"forged".to_vec(), expires: 0, expect },
        Request::Delete { key: key.clone(), expect },
        Request::Confirm { versions: vec![reserved.version] },
        Request::Abandon { version: reserved.version },
    ];
    let refused = Reply::Refused(Refusal::ReadOnly);
    for request in &changes {
        assert!(request.changes());
        assert_eq!(reader.ask(request), (Vec::new(), refused.clone()), "{request:?}");
        // In a batch it is refused, and what is beside it is answered.
        let (keys, reply) =
            reader.ask(&Request::Batch(vec![request.clone(), Request::Get { key: key.clone() }]));
        let Reply::Batch(replies) = reply else { panic!("{reply:?}") };
        assert!(keys.is_empty() && replies[0] == refused, "{replies:?}");
        assert!(matches!(&replies[1], Reply::Value { value, .. } if *value == [3; 100]), "{replies:?}");
    }
    // A request in parts is the same request.
    let part = [&[1, 0, 0, 0, 0][..], &changes[2].emit()[..5]].concat();
    reader.session.call(SERVICE, &part).expect("kept");
    let rest = [&[4, 0, 0, 0, 0][..], &changes[2].emit()[5..]].concat();
    let answer = reader.session.call(SERVICE, &rest).expect("an answer");
    assert_eq!(Reply::parse(&answer[16..]), Some(refused.clone()));
    // Scrubbing repairs, and cleaning moves: neither is for who may only look.
    for (what, body) in [(6, &[0; 16][..]), (7, &[])] {
        let e = reader.session.call(SERVICE, &[&[what, 0, 0, 0, 0][..], body].concat());
        assert!(matches!(&e, Err(Error::Application(why)) if why.contains("one for readers")), "{e:?}");
    }
    assert!(scene.bytes() == before, "a reader changed something");
    // All that is left to it, it can do.
    for request in [
        Request::Get { key: key.clone() },
        Request::Settle { key },
        Request::Scan { cursor: 0, limit: 5 },
        Request::View,
        Request::Acknowledge { view: 1 },
    ] {
        let (keys, reply) = reader.ask(&request);
        assert!(keys.is_empty() && !matches!(reply, Reply::Refused(_)), "{request:?}: {reply:?}");
    }
    assert!(scene.bytes() == before, "a reader changed something by looking");
    assert_eq!(scene.host.metrics().usage.unfinished, 1, "Alice's write is under way still");
    drop(alice);
    scene.is_unharmed();
}

#[test]
fn a_reader_is_a_client_that_looks_and_is_told_why_it_may_not_more() {
    // Without windows, too, where the memory's own key is good for writing: through a writer's connection.
    for guarded in [true, false] {
        let mut scene = with_readers(guarded);
        let options = || common::options().tokens([token(READERS)]);
        let mut reader = Store::connect(&context(), scene.host.addr, options()).expect("connected");
        for n in 0..20_u8 {
            assert_eq!(reader.get(&[n]).expect("a GET").map(|f| f.value), Some(vec![n; 100]));
        }
        assert_eq!(reader.scan(0, 100).expect("a page").keys.len(), 20);
        assert_eq!(reader.stats().expect("figures").usage.entries, 20);
        let before = scene.bytes();
        let said = [
            reader.put(&[3], b"forged", PutOptions::default()).map(drop),
            reader.delete(&[3], Expect::Any).map(drop),
        ];
        for said in said {
            assert!(matches!(said, Err(StoreError::Refused(Refusal::ReadOnly))), "{said:?}");
        }
        let outcomes = reader.put_many(&[(&[3][..], b"a"), (&[4], b"b")], PutOptions::default());
        let outcomes = outcomes.expect("each has its own");
        assert!(
            outcomes.iter().all(|o| matches!(o, Err(StoreError::Refused(Refusal::ReadOnly)))),
            "{outcomes:?}"
        );
        for said in [reader.compact().map(drop), reader.scrub(0, 10).map(drop)] {
            let e = said.expect_err("it is a reader");
            assert!(e.to_string().contains("one for readers"), "{e}");
        }
        assert!(scene.bytes() == before, "a reader changed something");
        // It sees what others write, and goes on all the while on one connection.
        scene.honest.put(&[3], b"new", PutOptions::default()).expect("a PUT");
        assert_eq!(reader.get(&[3]).expect("a GET").map(|f| f.value), Some(b"new".to_vec()));
        assert_eq!(reader.reconnected(), 0);
        scene.honest.put(&[3], &[3; 100], PutOptions::default()).expect("a PUT");
        scene.is_unharmed();
    }
}

/// What a window per write costs a PUT: medians with and without, interleaved. Printed, not judged.
#[test]
fn measure_what_a_window_per_write_costs() {
    if std::env::var_os("REMANENCE_KV_MEASURE").is_none() {
        println!("REMANENCE_KV_MEASURE=1 measures it");
        return;
    }
    let hosts = [true, false].map(|guarded| Host::new(SIZE, |options| options.guarded(guarded)));
    let mut clients = hosts.each_ref().map(client);
    let mut times = [Vec::new(), Vec::new()];
    for n in 0..4000_u32 {
        for (client, times) in clients.iter_mut().zip(&mut times) {
            let key = (n % 200).to_le_bytes();
            let begin = std::time::Instant::now();
            client.put(&key, &[7; 256], PutOptions::default()).expect("a PUT");
            times.push(begin.elapsed());
        }
    }
    let [with, without] = times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    });
    println!("a PUT of 256 bytes: {with:?} with a window per write, {without:?} without");
}
