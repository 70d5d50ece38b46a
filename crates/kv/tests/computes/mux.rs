//! Operations of any kind together, given up at every step, over a server that is called and never waited for.

use remanence_kv::client::{
    AnyOperation, Call, Client, Completion, Ended, Get, Many, Mux, Operation as _, Output, Progress, Put,
    Verb,
};
use remanence_kv::proto::{Expect, Reply, Request};
use remanence_kv::server::{ClientId, Options, Server, format};
use remanence_kv::view::Mode;
use remanence_kv::{Geometry, Refusal};
use remanence_pmem::crash_image::CrashImage;
use remanence_pmem::{Medium as _, PersistenceDomain};

struct World<'a> {
    image: &'a CrashImage,
    server: Server<&'a CrashImage>,
}

fn image() -> CrashImage {
    let geometry =
        Geometry { size: 8 << 20, region_len: 256 << 10, segment_len: 64 << 10, heads: 2, grown_from: 0 };
    let image = CrashImage::new(geometry.size, PersistenceDomain::Adr);
    format(&&image, &geometry, 64, 0x5EED, [7; 16]).expect("a fair geometry");
    image
}

impl<'a> World<'a> {
    fn open(image: &'a CrashImage) -> Self {
        // Nobody is cut off: what is not given back is held for ever.
        let options = Options {
            mode: Mode::Durable,
            lease: 1 << 40,
            unfinished_max: 64,
            clean_by_itself: true,
            ..Options::default()
        };
        Self { image, server: Server::open(image, options).expect("a store").0 }
    }

    fn connect(&mut self) -> (ClientId, Client) {
        let id = self.server.connect();
        (id, Client::new(self.server.view(), 64))
    }

    fn post(&mut self, id: ClientId, verbs: Vec<Verb>) -> Vec<Completion> {
        let one = |verb: Verb| match verb {
            Verb::Read { at, len } => {
                let mut bytes = vec![0; len as usize];
                self.image.read(at, &mut bytes);
                Completion::Read(bytes)
            }
            Verb::Write { .. } => unreachable!("in mode durable all is Persist"),
            Verb::Persist(updates) => {
                updates.iter().for_each(|(at, bytes)| self.image.write_nt(*at, bytes));
                self.image.psync().expect("memory does not fail");
                Completion::Persistent
            }
            Verb::Call(request) => {
                let request = Request::parse(&request.emit()).expect("what was emitted is parsed");
                Completion::Reply(self.server.handle(1, id, &request))
            }
        };
        verbs.into_iter().map(one).collect()
    }

    /// Everything to its end, from the completions of what was posted last.
    fn finish(
        &mut self,
        id: ClientId,
        client: &mut Client,
        mux: &mut Mux,
        mut completions: Vec<Completion>,
    ) -> Vec<(u64, Ended)> {
        let mut ended = Vec::new();
        for _ in 0..1000 {
            let step = mux.step(client, 1, &completions);
            ended.extend(step.ended);
            if mux.is_idle() && step.post.is_empty() {
                return ended;
            }
            completions = self.post(id, step.post);
            self.server.step(1, 16).expect("memory does not fail");
        }
        panic!("it does not come to an end");
    }
}

#[test]
fn a_put_that_is_given_up_at_any_step_frees_its_key_and_says_what_it_did() {
    let mut outcomes = Vec::new();
    for steps in 0..5 {
        let image = image();
        let mut world = World::open(&image);
        let (id, mut client) = world.connect();
        let mut mux = Mux::new();
        mux.begin(1, AnyOperation::Put(Put::new(b"key", b"value", 0, Expect::Any)));
        mux.begin(2, AnyOperation::Put(Put::new(b"other", b"stays", 0, Expect::Any)));
        let (mut completions, mut ended) = (Vec::new(), Vec::new());
        for _ in 0..steps {
            let step = mux.step(&mut client, 1, &completions);
            ended.extend(step.ended);
            completions = world.post(id, step.post);
        }
        mux.give_up(1);
        ended.extend(world.finish(id, &mut client, &mut mux, completions));
        let of = |number| ended.iter().find(|(other, _)| *other == number).map(|(_, ended)| ended.clone());
        let first = of(1).expect("that it ended is said");
        assert_eq!(ended.len(), 2, "each ends once: {ended:?}");
        let (reader, mut view) = world.connect();
        let mut look = Mux::new();
        look.begin(7, AnyOperation::Get(Get::new(b"key")));
        let found = match &world.finish(reader, &mut view, &mut look, Vec::new())[..] {
            [(7, Ended::Done(Output::Get(Ok(found))))] => found.as_ref().map(|found| found.value.clone()),
            other => panic!("{other:?}"),
        };
        match &first {
            Ended::Never => assert_eq!(found, None, "after {steps} steps"),
            Ended::Done(Output::Put(Ok(_))) => assert_eq!(found.as_deref(), Some(&b"value"[..])),
            other => panic!("{other:?}"),
        }
        // Nobody holds the key.
        let put = Request::Put { key: b"key".to_vec(), len: 5, expires: 0, expect: Expect::Any };
        let reply = world.server.handle(1, reader, &put);
        assert!(matches!(reply, Reply::Reserved(_)), "after {steps} steps: {reply:?}");
        outcomes.push(first == Ended::Never);
    }
    assert!(outcomes.contains(&true) && outcomes.contains(&false), "both happen: {outcomes:?}");
}

#[test]
fn when_the_connection_breaks_only_what_was_on_its_way_is_unknown() {
    let image = image();
    let mut world = World::open(&image);
    let (id, mut client) = world.connect();
    let mut mux = Mux::new();
    mux.begin(1, AnyOperation::Put(Put::new(b"a", b"1", 0, Expect::Any)));
    let step = mux.step(&mut client, 1, &[]);
    let completions = world.post(id, step.post);
    mux.begin(2, AnyOperation::Put(Put::new(b"b", b"2", 0, Expect::Any)));
    mux.begin(3, AnyOperation::Get(Get::new(b"c")));
    mux.begin(4, AnyOperation::Call(Call::delete(b"d", Expect::Any)));
    // The first is written by now, the others have been asked for; a fifth has not even begun.
    let step = mux.step(&mut client, 1, &completions);
    assert!(step.post.iter().any(|verb| matches!(verb, Verb::Persist(_))));
    mux.begin(5, AnyOperation::Call(Call::delete(b"e", Expect::Any)));
    let ended = mux.broken(&mut client);
    let fates = [Ended::Unknown, Ended::Lost, Ended::Lost, Ended::Unknown, Ended::Lost];
    assert_eq!(ended, (1..=5).zip(fates).collect::<Vec<_>>());
    assert!(mux.is_idle() && client.poll_acknowledgement().is_none());
}

/// Two that ask in turn for what somebody else holds would leave the host no moment at which nothing is under way; it has to
/// have one, as the server may wait for what it says then.
#[test]
fn those_that_wait_for_others_leave_the_host_a_pause() {
    let image = image();
    let mut world = World::open(&image);
    let holder = world.server.connect();
    for key in [b"a", b"b"] {
        let held = Request::Put { key: key.to_vec(), len: 1, expires: 0, expect: Expect::Any };
        assert!(matches!(world.server.handle(1, holder, &held), Reply::Reserved(_)));
    }
    let put = |key: &[u8]| Put::new(key, b"x", 0, Expect::Any);
    let (id, mut client) = world.connect();

    let mut mux = Mux::new();
    mux.begin(1, AnyOperation::Put(put(b"a")));
    let step = mux.step(&mut client, 1, &[]);
    let completions = world.post(id, step.post);
    mux.begin(2, AnyOperation::Put(put(b"b")));
    let step = mux.step(&mut client, 1, &completions);
    assert!(step.again && step.post.len() == 1, "the second one begins: {step:?}");
    let completions = world.post(id, step.post);
    let step = mux.step(&mut client, 1, &completions);
    assert!(step.again && step.post.is_empty(), "nothing is under way: {step:?}");
    let step = mux.step(&mut client, 1, &[]);
    assert!(matches!(&step.post[..], [Verb::Call(Request::Batch(both))] if both.len() == 2), "{step:?}");
    // Who rests can be given up, too.
    let completions = world.post(id, step.post);
    mux.begin(3, AnyOperation::Put(put(b"c")));
    mux.step(&mut client, 1, &completions);
    mux.give_up(1);
    assert!(mux.step(&mut client, 1, &[]).ended.contains(&(1, Ended::Never)));

    let (id, mut client) = world.connect();
    let mut many = Many::new(vec![put(b"a"), put(b"d"), put(b"e")]);
    let mut completions = Vec::new();
    for under_way in ["all ask", "the others write"] {
        let Progress::Post(verbs) = many.step(&mut client, 1, completions) else { panic!("{under_way}") };
        completions = world.post(id, verbs);
    }
    assert!(matches!(many.step(&mut client, 1, completions), Progress::Again), "nothing is under way");
    assert!(matches!(many.step(&mut client, 1, Vec::new()), Progress::Post(_)), "it asks again");
}

#[test]
fn operations_of_all_kinds_share_one_message_and_one_flush() {
    let image = image();
    let mut world = World::open(&image);
    let (id, mut client) = world.connect();
    let mut mux = Mux::new();
    for n in 0..10_u64 {
        mux.begin(n, AnyOperation::Put(Put::new(&n.to_le_bytes(), b"x", 0, Expect::Any)));
    }
    mux.begin(10, AnyOperation::Call(Call::delete(b"none", Expect::Any)));
    let first = mux.step(&mut client, 1, &[]);
    assert!(
        matches!(&first.post[..], [Verb::Call(Request::Batch(all))] if all.len() == 11),
        "{:?}",
        first.post
    );
    let completions = world.post(id, first.post);
    mux.begin(11, AnyOperation::Get(Get::new(b"none")));
    let second = mux.step(&mut client, 1, &completions);
    assert!(matches!(&second.post[..], [Verb::Read { .. }, Verb::Persist(all)] if all.len() == 10));
    assert_eq!(second.ended, [(10, Ended::Done(Output::Call(Ok(Reply::Done { version: 0 }))))]);
    let completions = world.post(id, second.post);
    let third = mux.step(&mut client, 1, &completions);
    assert_eq!(third.ended.len(), 10);
    mux.begin(12, AnyOperation::Put(Put::new(&[], b"x", 0, Expect::Any)));
    let rest = world.post(id, third.post);
    let fourth = mux.step(&mut client, 1, &rest);
    let refused = Ended::Done(Output::Put(Err(remanence_kv::client::Error::Refused(Refusal::BadKey))));
    assert!(fourth.ended.contains(&(12, refused)), "{:?}", fourth.ended);
}
