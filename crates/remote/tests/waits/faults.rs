//! Peers that lie, that are of another version, that send nonsense, that ask for what would lose data; and a medium that
//! fails. Each is refused with a sentence, and hurts nobody else.

use crate::common;

use std::time::Duration;

use common::{Host, address, context, fixed, session};
use remanence_persist::Config;
use remanence_persist::plan::Request;
use remanence_persist::recipe::{Op, Rsp, Shape, build, variants};
use remanence_persist::taxonomy::Domain;
use remanence_pmem::crash_image::{Choices, CrashImage, Failure};
use remanence_pmem::{Guarantee, Medium, PersistenceDomain, Region};
use remanence_remote::hello::{Credentials, Hello, VERSION, Welcome, Window};
use remanence_remote::message::{Answer, AnswerKind, Entry, Header, Kind};
use remanence_remote::program::Program;
use remanence_remote::responder::{Fault, Responder, Terms, World};
use remanence_remote::ring::{Layout, Ring};
use remanence_remote::{Error, Role, Session};
use remanence_rnic::{Access, Data, RecvWr, SendFlags, SendOp, SendWr, Wc};
use remanence_verbs::{ConnectAttr, Connection, Context, Listener, Options as DeviceOptions, QpOptions};

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

/// A server that says what it likes and does nothing.
fn liar(
    answer: impl FnOnce(Window) -> Vec<u8> + Send + 'static,
) -> (std::net::SocketAddr, std::thread::JoinHandle<()>) {
    let address = address();
    let device = Context::open(DeviceOptions::udp(address)).expect("a device");
    let listener = Listener::bind(&device, 7777, 4).expect("free");
    let thread = std::thread::spawn(move || {
        let incoming = listener.get_request(LIMIT).expect("somebody came");
        let pd = device.alloc_pd().expect("room");
        let cq = device.create_cq(16, None, 0).expect("room");
        // No right to FLUSH.
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.reg_mr(&Region::anonymous(1 << 16).expect("memory"), access).expect("fair");
        let qp = pd.create_qp(&QpOptions::rc(&cq)).expect("room");
        let window = Window { rkey: mr.rkey().0, addr: mr.addr(), len: mr.len() };
        let connection = incoming.accept(&qp, &ConnectAttr::default(), &answer(window)).expect("accepted");
        let _ = connection.wait_ended(LIMIT);
    });
    ((address, 7777).into(), thread)
}

fn welcome(region: Window) -> Welcome {
    let config = Config::software(Domain::Dmp);
    Welcome {
        server: config,
        agreed: config,
        declared: false,
        role: Role::Writer,
        guarantee: Guarantee::of(PersistenceDomain::Adr),
        region,
        buffers: Window { len: 16 * 512, ..region },
        slots: 16,
        slot_size: 512,
        stamp: 1,
        sentence: "a liar".into(),
    }
}

fn refused(answer: impl FnOnce(Window) -> Vec<u8> + Send + 'static) -> Error {
    let (to, thread) = liar(answer);
    let Err(e) = Session::connect(&context(), to, fixed()) else { panic!("it was believed") };
    thread.join().expect("the liar ends");
    e
}

#[test]
fn a_server_that_does_not_execute_the_flush_that_it_claims_is_found_out() {
    let e = refused(|window| welcome(window).emit());
    assert!(matches!(e, Error::FlushRefused { .. }), "{e}");
    assert!(e.to_string().contains("FLUSH to persistence") && e.to_string().contains("declare"), "{e}");
}

#[test]
fn a_server_of_another_version_and_one_of_another_kind_are_told_apart() {
    let e = refused(|window| {
        let mut bytes = welcome(window).emit();
        bytes[4..6].copy_from_slice(&(VERSION + 1).to_be_bytes());
        bytes
    });
    assert!(matches!(e, Error::OtherVersion { theirs, .. } if theirs == VERSION + 1), "{e}");
    assert!(matches!(refused(|_| b"something else".to_vec()), Error::Stranger(_)));
    // It says that more was agreed than it is.
    let e = refused(|window| {
        let server = Config { ddio: false, ..Config::software(Domain::Dmp) };
        let agreed = Config { ddio: true, ..server };
        Welcome { server, agreed, ..welcome(window) }.emit()
    });
    assert!(matches!(&e, Error::Refused { why, .. } if why.contains("was agreed")), "{e}");
}

/// A connection of a client that says what it likes.
fn stranger(host: &Host, hello: &[u8]) -> Result<(Connection, Context), remanence_verbs::Error> {
    let device = context();
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(64, None, 0)?;
    let qp = pd.create_qp(&QpOptions::rc(&cq))?;
    Ok((Connection::connect(&qp, host.addr, &ConnectAttr::default(), hello, LIMIT)?, device))
}

#[test]
fn a_client_of_another_version_or_kind_is_rejected_with_a_sentence() {
    let host = Host::file(1 << 20, |o| o);
    let rejected = |hello: &[u8], what: &str| match stranger(&host, hello) {
        Err(remanence_verbs::Error::Rejected { private_data, .. }) => {
            let said = String::from_utf8_lossy(&private_data).into_owned();
            assert!(said.contains(what), "{said}");
        }
        other => panic!("{what}: {other:?}"),
    };
    let mut hello = Hello { declared: None, credentials: Credentials::None }.emit();
    hello[4..6].copy_from_slice(&7_u16.to_be_bytes());
    rejected(&hello, "you speak 7");
    rejected(b"hello", "you are no client of one");
}

#[test]
fn a_client_that_sends_nonsense_is_expelled_and_the_others_go_on() {
    let mut host = Host::file(1 << 20, |o| o);
    let mut honest = session(&host, fixed());
    let mut hash = crc32fast::Hasher::new();
    hash.update(b"");
    let header = Header {
        stamp: 1,
        number: 1,
        after: 0,
        kind: Kind::Call,
        replay: false,
        part: 0,
        plan: 0,
        entries: 0,
    };
    for bytes in [b"nonsense".to_vec(), vec![0xff; 200], header.emit(0, &hash).to_vec()] {
        let (connection, _device) =
            stranger(&host, &Hello { declared: None, credentials: Credentials::None }.emit())
                .expect("accepted");
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::Send,
            data: Data::Inline(&bytes),
            flags: SendFlags::SIGNALED,
            ud: None,
        };
        connection.qp().post_send(&wr).expect("posted");
        assert!(connection.wait_ended(LIMIT).expect("it was up"), "the server ends it");
        let plan = honest.plan(&Request::record(64)).expect("a plan");
        let _ = honest.persist(&plan, &[(0, &[7; 64])]).expect("the server goes on");
    }
    drop(honest);
    assert_eq!(host.stop().expelled, 3);
}

#[test]
fn a_live_server_gives_no_buffer_back_too_early_whatever_its_client_asks() {
    // Receive buffers in PM, copied late: the repost stands before the flush of what was copied.
    let config: Config = "DMP+no-DDIO+PM".parse().expect("a configuration");
    let host = Host::declared(1 << 20, PersistenceDomain::Adr, |o| o.declare(config).messages(8, 1024));
    let hello = Hello { declared: None, credentials: Credentials::None }.emit();
    let (connection, _device) = stranger(&host, &hello).expect("accepted");
    let welcome = Welcome::parse(&connection.private_data()).expect("a welcome");
    let answers = Region::anonymous(4096).expect("memory");
    let answers = connection.qp().pd().reg_mr(&answers, Access::LOCAL_WRITE).expect("fair");
    let sge = [answers.sge(0, 4096)];
    connection.qp().post_recv(&RecvWr { wr_id: 2, sges: &sge }).expect("room");
    let mut early = build(&config, Op::Send, Shape::COMPOUND);
    let last = early.deferred.len() - 1;
    early.deferred.swap(last - 1, last);
    let body = Program::compile(&early).expect("a list of steps").emit();
    let mut hash = crc32fast::Hasher::new();
    hash.update(&body);
    let header = Header { stamp: welcome.stamp, number: 1, kind: Kind::Plan, ..update(0) };
    let bytes = [&header.emit(body.len() as u32, &hash)[..], &body].concat();
    let data = Data::Inline(&bytes);
    let wr = SendWr { wr_id: 1, op: SendOp::Send, data, flags: SendFlags::SIGNALED, ud: None };
    connection.qp().post_send(&wr).expect("posted");
    let mut completions = Vec::new();
    while !completions.iter().any(|wc: &Wc| wc.wr_id == 2) {
        connection.qp().recv_cq().wait(&mut completions, 4, LIMIT).expect("it answers");
    }
    let answer = completions.iter().find(|wc| wc.wr_id == 2).expect("found just now");
    let mut said = vec![0; answer.byte_len as usize];
    answers.region().read(0, &mut said);
    let said = Answer::parse(&said).expect("an answer");
    let why = String::from_utf8_lossy(&said.body).into_owned();
    assert_eq!(said.kind, AnswerKind::Refused, "{why}");
    assert!(
        why.contains("before the effect of its message is durable") || why.contains("was given back"),
        "{why}"
    );
}

/// A responder of its own, with messages written into its buffers by hand.
struct Bench {
    responder: Responder,
    memory: CrashImage,
    buffers: CrashImage,
    ring: Ring,
    number: u64,
    said: Vec<Answer>,
    reposted: Vec<u64>,
}

struct Said<'a>(&'a mut Vec<Answer>, &'a mut Vec<u64>);

impl World for Said<'_> {
    fn send(&mut self, answer: Answer) {
        self.0.push(answer);
    }

    fn repost(&mut self, number: u64) {
        self.1.push(number);
    }

    fn call(&mut self, service: u16, request: &[u8]) -> Result<Vec<u8>, String> {
        Ok([&service.to_be_bytes(), request].concat())
    }
}

impl Bench {
    fn new(config: &str) -> Self {
        let config: Config = config.parse().expect("a configuration");
        let ring = Ring::volatile(8, 512);
        let terms = Terms { config, data_len: 4096, ring, durable_buffers: false, stamp: 9, shift: 6 };
        Self {
            responder: Responder::new(terms),
            memory: CrashImage::new(4096, PersistenceDomain::Adr),
            buffers: CrashImage::new(8 * 512, PersistenceDomain::Adr),
            ring,
            number: 0,
            said: Vec::new(),
            reposted: Vec::new(),
        }
    }

    fn message(&mut self, header: Header, body: &[u8]) -> Result<(), Fault> {
        self.number += 1;
        let mut hash = crc32fast::Hasher::new();
        hash.update(body);
        let header = Header { number: self.number, ..header };
        let bytes = [&header.emit(body.len() as u32, &hash)[..], body].concat();
        self.buffers.write(self.ring.buffer(self.number), &bytes);
        let mut world = Said(&mut self.said, &mut self.reposted);
        let (memory, buffers) = (&self.memory, &self.buffers);
        self.responder.message(bytes.len() as u32, None, memory, buffers, &mut world)?;
        self.responder.idle(memory, buffers, &mut world)
    }

    fn plan(&mut self, program: &Program) -> Option<Answer> {
        let header = Header { kind: Kind::Plan, ..update(0) };
        self.message(header, &program.emit()).expect("well-formed");
        self.said.pop()
    }
}

fn update(entries: u16) -> Header {
    Header { stamp: 9, number: 0, after: 0, kind: Kind::Update, replay: false, part: 0, plan: 0, entries }
}

fn entry(offset: u64, data: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    Entry::emit(&mut body, offset, data.len() as u32, true);
    body.extend_from_slice(data);
    body
}

#[test]
fn a_plan_that_would_lose_data_is_refused_by_the_server_itself() {
    let mut bench = Bench::new("DMP+DDIO+DRAM");
    let good = build(&bench.responder.terms().config, Op::Send, Shape::SINGLETON);
    let mut early = good.clone();
    early.steps.retain(|step| !step.to_string().contains("flush"));
    let said = bench.plan(&Program::compile(&early).expect("a list")).expect("answered");
    assert_eq!(said.kind, AnswerKind::Refused);
    assert!(String::from_utf8_lossy(&said.body).contains("acknowledges"), "{said:?}");
    let mut reposts = good.clone();
    reposts.deferred = vec![Rsp::Repost, Rsp::Flush(remanence_persist::recipe::Target::Buffer)];
    let said = bench.plan(&Program::compile(&reposts).expect("a list")).expect("answered");
    assert_eq!(said.kind, AnswerKind::Refused);
    assert_eq!(
        bench.plan(&Program::compile(&good).expect("a list")).expect("answered").kind,
        AnswerKind::Reply
    );
    bench.message(update(1), &entry(64, b"durable.")).expect("served");
    assert_eq!(bench.said.pop().expect("answered").kind, AnswerKind::Ack);
    assert_eq!(bench.reposted, [1, 2, 3, 4]);
}

#[test]
fn messages_that_reach_outside_or_are_not_the_ones_that_are_due_end_the_session() {
    let good = |bench: &mut Bench| {
        let recipe = build(&bench.responder.terms().config, Op::Send, Shape::SINGLETON);
        let said = bench.plan(&Program::compile(&recipe).expect("a list")).expect("answered");
        assert_eq!(said.kind, AnswerKind::Reply);
    };
    let data = entry(64, b"durable.");
    let far = entry(4090, b"durable.");
    let around = entry(u64::MAX - 3, b"durable.");
    let cases: [(&str, Header, &[u8]); 8] = [
        ("outside", update(1), &far),
        ("around the end of the address space", update(1), &around),
        ("of another session", Header { stamp: 8, ..update(1) }, &data),
        ("of an unknown plan", Header { plan: 5, ..update(1) }, &data),
        ("of an unknown part", Header { part: 1, ..update(1) }, &data),
        ("that recovery should apply, from DRAM", Header { replay: true, ..update(1) }, &data),
        ("with more than its plan says", update(1), &[&data[..], b"more"].concat()),
        ("with nothing", update(0), b""),
    ];
    for (what, header, body) in cases {
        let mut bench = Bench::new("DMP+DDIO+DRAM");
        good(&mut bench);
        assert!(matches!(bench.message(header, body), Err(Fault::Peer(_))), "a message {what}");
        assert_eq!(bench.memory.bytes(), vec![0; 4096], "{what}: nothing was touched");
    }
    // Half a message: its tail is not there.
    let mut bench = Bench::new("DMP+DDIO+DRAM");
    good(&mut bench);
    let mut hash = crc32fast::Hasher::new();
    hash.update(&data);
    let whole = [&Header { number: 2, ..update(1) }.emit(data.len() as u32, &hash)[..], &data].concat();
    bench.buffers.write(bench.ring.buffer(2), &whole[..whole.len() - 4]);
    let mut world = Said(&mut bench.said, &mut bench.reposted);
    let result = bench.responder.message(whole.len() as u32, None, &bench.memory, &bench.buffers, &mut world);
    assert!(matches!(result, Err(Fault::Peer(_))));
}

#[test]
fn a_medium_that_fails_is_told_and_nothing_is_acknowledged_after() {
    let mut bench = Bench::new("DMP+DDIO+DRAM");
    let recipe = build(&bench.responder.terms().config, Op::Send, Shape::SINGLETON);
    bench.plan(&Program::compile(&recipe).expect("a list"));
    bench.memory.fail_after_psyncs(1);
    bench.message(update(1), &entry(64, b"durable.")).expect("served");
    assert_eq!(bench.said.pop().expect("answered").kind, AnswerKind::Ack);
    assert!(matches!(bench.message(update(1), &entry(128, b"not so..")), Err(Fault::Medium(_))));
    let said = bench.said.pop().expect("answered");
    assert_eq!(said.kind, AnswerKind::Failed);
    assert!(String::from_utf8_lossy(&said.body).contains("medium failed"), "{said:?}");
}

#[test]
fn a_recipe_of_another_configuration_is_refused_before_anything_is_sent() {
    let host = Host::declared(1 << 20, PersistenceDomain::Adr, |o| o);
    let mut session = session(&host, fixed());
    let request = Request::record(64);
    let stronger = build(&"WSP+DDIO+DRAM".parse().expect("a configuration"), Op::Write, request.shape());
    let e = session.plan_for(Op::Write, stronger, &request).expect_err("it would lose data");
    assert!(e.to_string().contains("does not hold on DMP"), "{e}");
}

/// Looks at what a power loss would leave, whenever a buffer is given back.
struct Watch<'a> {
    image: &'a CrashImage,
    places: &'a [u64],
    given: Vec<u64>,
}

/// Nothing survives that was not promised.
struct Worst;

impl Choices for Worst {
    fn pick(&mut self, _: usize) -> usize {
        0
    }
}

impl World for Watch<'_> {
    fn send(&mut self, _: Answer) {}

    fn repost(&mut self, number: u64) {
        let crashed = self.image.crash(Failure::PowerLoss, &mut Worst);
        let mut found = [0; 8];
        crashed.read(self.places[number as usize - 1], &mut found);
        assert_eq!(
            found,
            number.to_be_bytes(),
            "the effect of message {number} is not durable, and its buffer goes"
        );
        // Whatever comes to these places by other means from now on stays: recovery has forgotten the message.
        let last = remanence_remote::ring::recover(&crashed).expect("sound").applied;
        assert_eq!(last, 0, "recovery would apply message {number} again");
        self.given.push(number);
    }

    fn call(&mut self, _: u16, _: &[u8]) -> Result<Vec<u8>, String> {
        unreachable!("nobody calls")
    }
}

#[test]
fn a_buffer_is_given_back_only_when_the_effect_of_its_message_is_durable() {
    for (text, late) in [("DMP+no-DDIO+PM", true), ("DMP+DDIO+PM", true), ("DMP+DDIO+PM", false)] {
        let config: Config = text.parse().expect("a configuration");
        let image = CrashImage::new(64 << 10, PersistenceDomain::Adr);
        let layout = Layout::at_the_end(image.len(), 1, 4, 512).expect("room");
        layout.format(&image).expect("memory");
        let ring = layout.ring(0);
        ring.begin(&image, 9).expect("memory");
        let terms =
            Terms { config, data_len: layout.data_len, ring, durable_buffers: true, stamp: 9, shift: 6 };
        let mut responder = Responder::new(terms);
        let built = build(&config, Op::Send, Shape::SINGLETON);
        let ours = variants(&config, Shape::SINGLETON).into_iter().map(|(_, recipe)| recipe);
        let recipe = ours.chain([built]).find(|recipe| recipe.replay == late).expect("one of both kinds");
        responder.insert_plan(0, Program::compile(&recipe).expect("a recipe"), &[]);
        let places = [64, 128, 64, 192, 64, 128];
        let mut world = Watch { image: &image, places: &places, given: Vec::new() };
        for pair in [[1_u64, 2], [3, 4], [5, 6]] {
            for number in pair {
                let body = entry(places[number as usize - 1], &number.to_be_bytes());
                let mut hash = crc32fast::Hasher::new();
                hash.update(&body);
                let after = if late { number - 1 } else { 0 };
                let header = Header { number, after, replay: late, ..update(1) };
                let bytes = [&header.emit(body.len() as u32, &hash)[..], &body].concat();
                image.write(ring.buffer(number), &bytes);
                responder.message(bytes.len() as u32, None, &image, &image, &mut world).expect("served");
            }
            responder.idle(&image, &image, &mut world).expect("memory");
        }
        assert_eq!(world.given, [1, 2, 3, 4, 5, 6], "{text}: {recipe}");
    }
}
