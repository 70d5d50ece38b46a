use std::collections::BTreeSet;

use remanence_pmem::{Guarantee, PersistenceDomain, Region};

use super::core::{ClientId, Core, Keys, Limits, Rights, Verdict};
use crate::auth::{Gate, Room, Side, Token};
use crate::blob::{BlobName, Digest, State, Version};
use crate::format::superblock::Uuid;
use crate::pool::Pool;
use crate::proto::{Code, RemoteExtent, Reply, Request};
use std::time::Duration;

/// Keys that only remember who may do what.
#[derive(Default)]
struct Ring {
    next: u32,
    open: BTreeSet<(ClientId, u32, u64, u64)>,
    rights: Vec<Rights>,
    broken: bool,
}

impl Keys for Ring {
    fn open(
        &mut self,
        client: ClientId,
        offset: u64,
        len: u64,
        rights: Rights,
    ) -> Result<RemoteExtent, String> {
        if self.broken {
            return Err("no more keys".into());
        }
        self.next += 1;
        self.open.insert((client, self.next, offset, len));
        self.rights.push(rights);
        Ok(RemoteExtent { addr: offset, len, rkey: self.next })
    }

    fn close(&mut self, client: ClientId, extent: RemoteExtent) {
        assert!(self.open.remove(&(client, extent.rkey, extent.addr, extent.len)), "closed twice");
    }
}

struct World {
    core: Core<Region>,
    keys: Ring,
    now: Duration,
    numbers: u32,
}

const TOKEN: &str = "a-token-for-the-tests";

impl World {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        let pool = Pool::create(Region::anonymous(1 << 20).expect("memory"), Uuid([1; 16]), 2).expect("fair");
        let token = Token::new(TOKEN).expect("fair");
        let core = Core::new(pool, token, limits, Guarantee::of(PersistenceDomain::Volatile), "nothing");
        Self { core, keys: Ring::default(), now: Duration::from_secs(100), numbers: 0 }
    }

    fn send(&mut self, from: ClientId, request: &Request) -> Verdict {
        self.numbers += 1;
        let bytes = request.emit(self.numbers);
        // Numbers that are used once, and long before that are none.
        let numbers = self.numbers;
        let mut random = |bytes: &mut [u8]| {
            bytes.fill(9);
            if bytes.len() == 32 {
                bytes[..4].copy_from_slice(&numbers.to_be_bytes());
            }
        };
        self.core.receive(self.now, from, &bytes, &mut random, &mut self.keys)
    }

    /// Sends, settles if need be, and returns the reply, which must have the request's number.
    fn ask(&mut self, from: ClientId, request: &Request) -> Reply {
        let bytes = match self.send(from, request) {
            Verdict::Reply(bytes) | Verdict::Last(bytes) => bytes,
            Verdict::Later => {
                let mut answers = self.core.settle();
                assert_eq!(answers.len(), 1);
                let (to, bytes) = answers.remove(0);
                assert_eq!(to, from);
                bytes
            }
            Verdict::Hostile(what) => panic!("{request:?}: {what}"),
        };
        let (number, reply) = Reply::parse(&bytes).expect("our own");
        assert_eq!(number, self.numbers);
        reply
    }

    fn connect(&mut self, id: u64) -> ClientId {
        self.core.connected(self.now, ClientId(id), [10, 0, 0, id as u8].into());
        ClientId(id)
    }

    fn authenticate(&mut self, client: ClientId, token: &str) -> Reply {
        let nonce = [5; 32];
        let server = match self.ask(client, &Request::Hello { nonce }) {
            Reply::Challenge { nonce, .. } => nonce,
            other => return other,
        };
        let token = Token::new(token).expect("fair");
        let reply =
            self.ask(client, &Request::Authenticate { proof: Side::Client.prove(&token, &nonce, &server) });
        if let Reply::Welcome { proof, .. } = &reply {
            assert!(Side::Server.verify(&token, &nonce, &server, proof));
        }
        reply
    }

    fn member(&mut self, id: u64) -> ClientId {
        let client = self.connect(id);
        assert!(matches!(self.authenticate(client, TOKEN), Reply::Welcome { .. }));
        client
    }

    fn reserve(&mut self, client: ClientId, text: &str, bytes: u64) -> (u64, Vec<RemoteExtent>) {
        match self.ask(client, &Request::Reserve { name: name(text), bytes, at_least: bytes }) {
            Reply::Reserved { reservation, extents, .. } => (reservation, extents),
            other => panic!("{other:?}"),
        }
    }

    fn put(&mut self, client: ClientId, text: &str, counter: u64, data: &[u8]) -> Reply {
        let (reservation, extents) = self.reserve(client, text, data.len() as u64);
        let mut rest = data;
        for extent in extents {
            let (part, behind) = rest.split_at(rest.len().min(extent.len as usize));
            self.core.pool().medium().write(extent.addr, part);
            rest = behind;
        }
        self.ask(client, &commit(reservation, counter, data))
    }
}

fn name(text: &str) -> BlobName {
    BlobName::new(text).expect("a fair name")
}

fn version(counter: u64) -> Version {
    Version { counter, writer: 1 }
}

fn commit(reservation: u64, counter: u64, data: &[u8]) -> Request {
    Request::Commit {
        reservation,
        version: version(counter),
        len: data.len() as u64,
        digest: Digest::of(data),
    }
}

fn code(reply: &Reply) -> Option<Code> {
    if let Reply::Refused { code, .. } = reply { Some(*code) } else { None }
}

#[test]
fn before_the_token_is_proved_nothing_is_answered_and_no_key_exists() {
    let requests = [
        Request::Ping,
        Request::Reserve { name: name("a"), bytes: 1, at_least: 1 },
        Request::Lookup { name: name("a") },
        Request::List { after: None },
        Request::Stat,
        Request::Scratch { bytes: 1 },
        Request::Delete { name: name("a"), version: version(9) },
        Request::VersionOf { name: name("a") },
        Request::Authenticate { proof: [0; 32] },
    ];
    for request in requests {
        let mut world = World::new();
        let stranger = world.connect(1);
        assert_eq!(world.send(stranger, &request), Verdict::Hostile("a request before authentication"));
        assert!(world.keys.open.is_empty() && !world.core.has_waiting());
    }
}

#[test]
fn a_wrong_token_is_refused_and_guessing_becomes_slow() {
    let mut world = World::new();
    for attempt in 0..=Gate::FREE {
        let client = world.connect(7);
        assert_eq!(
            code(&world.authenticate(client, "not-the-right-token")),
            Some(Code::WrongToken),
            "{attempt}"
        );
        world.core.disconnected(client, &mut world.keys);
    }
    let client = world.connect(7);
    assert_eq!(code(&world.authenticate(client, TOKEN)), Some(Code::TryLater), "even with the right one");
    world.core.disconnected(client, &mut world.keys);
    world.member(8);
    world.now += Duration::from_secs(2);
    world.member(7);
    assert_eq!((world.core.stats().wrong_tokens, world.core.stats().admitted), (4, 2));
}

#[test]
fn guesses_that_were_challenged_in_advance_wait_too() {
    let mut world = World::new();
    let many: Vec<_> = (0..10)
        .map(|n| {
            assert_eq!(world.core.connected(world.now, ClientId(n), [10, 0, 0, 1].into()), None);
            assert!(matches!(
                world.ask(ClientId(n), &Request::Hello { nonce: [1; 32] }),
                Reply::Challenge { .. }
            ));
            ClientId(n)
        })
        .collect();
    let codes: Vec<_> =
        many.into_iter().map(|c| code(&world.ask(c, &Request::Authenticate { proof: [0; 32] }))).collect();
    assert_eq!(codes.iter().filter(|c| **c == Some(Code::WrongToken)).count(), 4);
    assert_eq!(codes.iter().filter(|c| **c == Some(Code::TryLater)).count(), 6);
}

#[test]
fn keys_are_opened_for_what_was_reserved_and_closed_before_it_is_a_blob() {
    let mut world = World::new();
    let client = world.member(1);
    let (reservation, extents) = world.reserve(client, "a", 10_000);
    assert_eq!(extents.iter().map(|e| e.len).sum::<u64>(), 12_288);
    assert_eq!((world.keys.open.len(), world.keys.rights.as_slice()), (1, &[Rights::Fill][..]));
    let data = vec![7; 10_000];
    world.core.pool().medium().write(extents[0].addr, &data);
    assert_eq!(world.send(client, &commit(reservation, 1, &data)), Verdict::Later);
    assert!(world.keys.open.is_empty(), "closed before the commit, not after");
    assert_eq!(world.core.pool().find(&name("a")), None);
    assert_eq!(world.core.settle().len(), 1);
    assert_eq!(world.core.pool().verify(&name("a")), Some(true));
    assert_eq!(code(&world.ask(client, &commit(reservation, 2, &data))), Some(Code::NotFound));
}

#[test]
fn a_reader_gets_read_rights_page_by_page_and_gives_them_back() {
    let mut world = World::new();
    let client = world.member(1);
    assert!(matches!(world.put(client, "a", 1, &[1; 5000]), Reply::Committed { .. }));
    world.keys.rights.clear();
    let Reply::Found { lease, len, total, extents, .. } =
        world.ask(client, &Request::Lookup { name: name("a") })
    else {
        panic!("not found")
    };
    assert_eq!((len, total, extents.len()), (5000, 1, 1));
    assert_eq!(world.keys.rights, [Rights::Read]);
    assert_eq!(code(&world.ask(client, &Request::MoreExtents { lease, from: 0 })), Some(Code::Refused));
    assert_eq!(
        world.ask(client, &Request::MoreExtents { lease, from: 1 }),
        Reply::Extents { extents: vec![] }
    );
    assert_eq!(world.ask(client, &Request::Release { lease }), Reply::Done);
    assert!(world.keys.open.is_empty());
    assert_eq!(code(&world.ask(client, &Request::Release { lease })), Some(Code::NotFound));
    assert_eq!(code(&world.ask(client, &Request::Lookup { name: name("b") })), Some(Code::NotFound));
}

#[test]
fn one_client_cannot_touch_what_another_holds() {
    let mut world = World::new();
    let (alice, mallory) = (world.member(1), world.member(2));
    let (reservation, _) = world.reserve(alice, "a", 5000);
    world.put(alice, "b", 1, &[1; 100]);
    let Reply::Found { lease, .. } = world.ask(alice, &Request::Lookup { name: name("b") }) else { panic!() };
    for request in [
        Request::Extend { reservation, bytes: 1, at_least: 1 },
        commit(reservation, 9, &[]),
        Request::Abandon { reservation },
        Request::MoreExtents { lease, from: 1 },
        Request::Release { lease },
    ] {
        assert_eq!(code(&world.ask(mallory, &request)), Some(Code::NotFound), "{request:?}");
    }
    assert!(matches!(
        world.ask(alice, &Request::Extend { reservation, bytes: 1, at_least: 1 }),
        Reply::Extents { .. }
    ));
}

#[test]
fn what_a_dead_client_held_is_free_again() {
    let mut world = World::new();
    let survivor = world.member(1);
    world.put(survivor, "kept", 1, &[1; 5000]);
    let free = world.core.pool().usage().free;
    let dead = world.member(2);
    let (reservation, _) = world.reserve(dead, "a", 100_000);
    world.reserve(dead, "b", 50_000);
    world.ask(dead, &Request::Scratch { bytes: 4096 });
    world.ask(dead, &Request::Lookup { name: name("kept") });
    assert_eq!(world.send(dead, &commit(reservation, 1, &[0; 100])), Verdict::Later);
    world.core.disconnected(dead, &mut world.keys);
    assert!(world.keys.open.is_empty());
    assert_eq!(world.core.settle(), []);
    assert_eq!((world.core.pool().usage().free, world.core.pool().find(&name("a"))), (free, None));
    world.ask(survivor, &Request::Delete { name: name("kept"), version: version(2) });
    assert_eq!(world.core.pool().usage().free, free + 8192, "no lease is left on it");
}

#[test]
fn commits_that_arrive_together_share_a_frame_and_each_gets_its_answer() {
    let mut world = World::new();
    let clients: Vec<_> = (1..=5).map(|n| world.member(n)).collect();
    let held: Vec<_> = clients.iter().map(|c| world.reserve(*c, "same", 100).0).collect();
    for (n, (client, reservation)) in clients.iter().zip(&held).enumerate() {
        let counter = [3, 1, 2, 4, 4][n];
        assert_eq!(world.send(*client, &commit(*reservation, counter, &[])), Verdict::Later);
    }
    let sequence = world.core.pool().usage().sequence;
    let answers = world.core.settle();
    assert_eq!(world.core.pool().usage().sequence, sequence + 1);
    let codes: Vec<_> =
        answers.iter().map(|(_, bytes)| code(&Reply::parse(bytes).expect("our own").1)).collect();
    let late = Some(Code::Superseded);
    assert_eq!(codes, [None, late, late, None, late]);
    assert_eq!(world.core.pool().version(&name("same")), version(4));
    // The data of a loser is still there, sealed: it may win with a newer version, or go.
    assert!(matches!(world.ask(clients[1], &commit(held[1], 5, &[])), Reply::Committed { .. }));
    assert_eq!(
        code(&world.ask(clients[2], &Request::Extend { reservation: held[2], bytes: 1, at_least: 1 })),
        Some(Code::Refused)
    );
    assert_eq!(world.ask(clients[2], &Request::Abandon { reservation: held[2] }), Reply::Done);
}

#[test]
fn a_full_pool_is_said_and_what_was_half_reserved_is_given_back() {
    let mut world = World::new();
    let client = world.member(1);
    let free = world.core.pool().usage().free;
    assert_eq!(
        code(&world.ask(client, &Request::Reserve { name: name("a"), bytes: free + 1, at_least: free + 1 })),
        Some(Code::Full)
    );
    world.keys.broken = true;
    assert_eq!(
        code(&world.ask(client, &Request::Reserve { name: name("a"), bytes: 10, at_least: 10 })),
        Some(Code::Refused)
    );
    world.keys.broken = false;
    assert_eq!(world.core.pool().usage().free, free);
    let (reservation, _) = world.reserve(client, "a", free);
    assert_eq!(
        code(&world.ask(client, &Request::Extend { reservation, bytes: 1, at_least: 1 })),
        Some(Code::Full)
    );
}

#[test]
fn a_stream_gets_what_is_left_when_that_will_do() {
    let mut world = World::new();
    let client = world.member(1);
    let free = world.core.pool().usage().free;
    let reserve = |bytes, at_least| Request::Reserve { name: name("a"), bytes, at_least };
    assert_eq!(code(&world.ask(client, &reserve(2 * free, free + 1))), Some(Code::Full));
    let Reply::Reserved { reservation, extents, .. } = world.ask(client, &reserve(2 * free, 1)) else {
        panic!()
    };
    assert_eq!(extents.iter().map(|e| e.len).sum::<u64>(), free);
    let extend = Request::Extend { reservation, bytes: 4096, at_least: 1 };
    assert_eq!(code(&world.ask(client, &extend)), Some(Code::Full), "nothing at all will not do");
}

/// Whoever connects and says nothing keeps nobody out, however often: not from one address, and not from many.
#[test]
fn strangers_who_say_nothing_do_not_shut_out_who_has_the_token() {
    let mut world = World::new();
    for n in 0..2000_u64 {
        let address = if n % 2 == 0 { [10, 0, 0, 9] } else { [10, 1, (n >> 8) as u8, n as u8] };
        let goes = world.core.connected(world.now, ClientId(n), address.into());
        goes.into_iter().for_each(|client| world.core.disconnected(client, &mut world.keys));
        assert!(world.core.clients() <= Limits::default().strangers.most);
    }
    world.member(3000);
}

#[test]
fn crowds_are_bounded_and_strangers_do_not_stay() {
    let room = Room { most: 2, each: 2, patience: Duration::from_secs(10) };
    let mut world = World::with(Limits { clients: 2, strangers: room, holdings: 2, ..Limits::default() });
    let member = world.member(1);
    world.connect(2);
    world.connect(3);
    let connect = |world: &mut World, id| world.core.connected(world.now, ClientId(id), [1, 1, 1, 1].into());
    assert_eq!(connect(&mut world, 4), Some(ClientId(2)), "a stranger goes for the next one");
    world.core.disconnected(ClientId(2), &mut world.keys);
    world.now += Duration::from_secs(10);
    assert_eq!(world.core.expired(world.now).collect::<Vec<_>>(), [ClientId(3), ClientId(4)]);
    world.core.disconnected(ClientId(3), &mut world.keys);
    world.core.disconnected(ClientId(4), &mut world.keys);
    world.member(5);
    world.reserve(member, "a", 1);
    world.reserve(member, "b", 1);
    assert_eq!(code(&world.ask(member, &Request::Scratch { bytes: 1 })), Some(Code::Refused));
}

fn member_from(world: &mut World, id: u64, address: [u8; 4]) -> Reply {
    let client = ClientId(id);
    world.now += Duration::from_secs(1);
    let goes = world.core.connected(world.now, client, address.into());
    assert_eq!(goes, None);
    world.authenticate(client, TOKEN)
}

/// Whoever has the token may open as many sessions as there are, and keep them.
#[test]
fn who_holds_all_places_does_not_shut_out_others_who_have_the_token() {
    const GREEDY: [u8; 4] = [10, 0, 0, 9];
    const OTHER: [u8; 4] = [10, 0, 0, 2];
    let mut world = World::with(Limits { clients: 4, ..Limits::default() });
    let is_in = |reply: Reply| matches!(reply, Reply::Welcome { .. });
    for id in 1..=4 {
        assert!(is_in(member_from(&mut world, id, GREEDY)));
        assert_eq!(world.core.gave_way(), None, "there is room");
    }
    // One works, and one has said something since.
    world.reserve(ClientId(1), "a", 1);
    world.now += Duration::from_secs(1);
    world.ask(ClientId(2), &Request::Ping);
    let goes = |world: &mut World, goes| {
        assert_eq!(world.core.gave_way(), Some(ClientId(goes)));
        assert_eq!(world.core.gave_way(), None, "once");
        world.core.disconnected(ClientId(goes), &mut world.keys);
    };
    assert!(is_in(member_from(&mut world, 5, OTHER)));
    goes(&mut world, 3);
    // Its own idle sessions go for more of its own, not those of who has fewer.
    assert!(is_in(member_from(&mut world, 6, GREEDY)));
    goes(&mut world, 4);
    // That it holds something is no way out, where others have less; nor is it a reason to break off what it does for more.
    world.reserve(ClientId(2), "b", 1);
    world.reserve(ClientId(6), "c", 1);
    assert_eq!(code(&member_from(&mut world, 7, GREEDY)), Some(Code::TryLater));
    assert_eq!(world.core.gave_way(), None);
    world.core.disconnected(ClientId(7), &mut world.keys);
    world.ask(ClientId(1), &Request::Ping);
    assert!(is_in(member_from(&mut world, 8, OTHER)));
    goes(&mut world, 2);
    // Now they have two each, and neither breaks off what the other does.
    world.reserve(ClientId(5), "d", 1);
    world.reserve(ClientId(8), "e", 1);
    for address in [GREEDY, OTHER] {
        assert_eq!(code(&member_from(&mut world, 9, address)), Some(Code::TryLater));
        world.core.disconnected(ClientId(9), &mut world.keys);
    }
    assert!(is_in(member_from(&mut world, 10, [10, 0, 0, 3])), "who has none is let in");
    goes(&mut world, 6);
    assert_eq!(world.core.clients(), 4);
}

#[test]
fn more_requests_at_once_than_agreed_end_the_connection() {
    let mut world = World::new();
    let client = world.member(1);
    let request = Request::Delete { name: name("a"), version: version(1) };
    for _ in 0..crate::proto::WINDOW {
        assert_eq!(world.send(client, &request), Verdict::Later);
    }
    assert_eq!(world.send(client, &request), Verdict::Hostile("more requests at once than agreed"));
}

#[test]
fn scratch_memory_never_becomes_a_blob() {
    let mut world = World::new();
    let client = world.member(1);
    let Reply::Reserved { reservation, .. } = world.ask(client, &Request::Scratch { bytes: 100 }) else {
        panic!()
    };
    assert_eq!(world.keys.rights, [Rights::All]);
    assert_eq!(code(&world.ask(client, &commit(reservation, 1, &[]))), Some(Code::NotFound));
    assert_eq!(
        code(&world.ask(client, &Request::Extend { reservation, bytes: 1, at_least: 1 })),
        Some(Code::Refused)
    );
    assert_eq!(world.ask(client, &Request::Abandon { reservation }), Reply::Done);
    assert!(world.keys.open.is_empty());
}

#[test]
fn the_catalogue_is_listed_with_deletions_for_who_has_to_catch_up() {
    let mut world = World::new();
    let client = world.member(1);
    world.put(client, "a", 1, &[1; 10]);
    world.put(client, "b", 1, &[2; 10]);
    world.ask(client, &Request::Delete { name: name("a"), version: version(2) });
    let Reply::Page { listings, more } = world.ask(client, &Request::List { after: None }) else { panic!() };
    let states: Vec<_> = listings.iter().map(|l| (l.name.as_str(), l.version, l.state)).collect();
    let b = State::Live { len: 10, digest: Digest::of(&[2; 10]) };
    assert_eq!((states, more), (vec![("a", version(2), State::Deleted), ("b", version(1), b)], false));
    assert_eq!(
        world.ask(client, &Request::VersionOf { name: name("a") }),
        Reply::IsAt { version: version(2), live: false }
    );
}

#[test]
fn who_has_proved_the_token_has_a_ticket_for_its_second_qp() {
    let mut world = World::new();
    let stranger = world.connect(7);
    assert_eq!(world.core.ticket(stranger), None);
    let member = world.member(1);
    assert_eq!(world.core.ticket(member), Some([9; 16]), "the ticket is what `random` gave");
    world.core.disconnected(member, &mut world.keys);
    assert_eq!(world.core.ticket(member), None);
}

proptest::proptest! {
    /// Whatever members and strangers send: no panic, and no key is left when they are gone.
    #[test]
    fn any_conversation_does_no_harm(messages in proptest::collection::vec((0_u64..3, 0_u8..20, proptest::collection::vec(0_u8..4, 0..60)), 0..60)) {
        let mut world = World::new();
        let clients = [world.connect(0), world.member(1), world.member(2)];
        let free = world.core.pool().usage().free;
        for (who, kind, body) in messages {
            let mut bytes = vec![0, 1, kind, 0, 0, 0, 0, 1];
            bytes.extend(body);
            world.core.receive(world.now, clients[who as usize], &bytes, &mut |b| b.fill(9), &mut world.keys);
            if kind % 3 == 0 {
                world.core.settle();
            }
        }
        clients.iter().for_each(|c| world.core.disconnected(*c, &mut world.keys));
        proptest::prop_assert!(world.keys.open.is_empty() && world.core.clients() == 0);
        proptest::prop_assert_eq!(world.core.settle(), vec![]);
        proptest::prop_assert!(world.core.pool().usage().free <= free);
        proptest::prop_assert_eq!(world.core.pool().usage().blobs * 4096, free - world.core.pool().usage().free);
    }
}
