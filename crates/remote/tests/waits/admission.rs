//! Tokens over real connections: who has none, another one, or somebody else's proof gets neither a session nor a key.

use crate::common;

use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use common::{Host, address, context, fixed, session};
use remanence_link::fault::{Faults, Plan};
use remanence_persist::Config;
use remanence_persist::plan::Request;
use remanence_persist::taxonomy::Domain;
use remanence_pmem::{Guarantee, PersistenceDomain, Region};
use remanence_remote::admission::{Ends, Transcript};
use remanence_remote::hello::{Credentials, Hello, Rejection, Welcome, Window};
use remanence_remote::{Error, Options, Role, Server, ServerOptions, Session, Token};
use remanence_rnic::Access;
use remanence_verbs::{
    ConnectAttr, Connection, Context, Incoming, Listener, Options as DeviceOptions, QpOptions,
};

const LIMIT: Option<Duration> = Some(Duration::from_secs(30));
const OURS: &str = "correct-horse-battery";

fn token(text: &str) -> Token {
    Token::new(text).expect("a fair token")
}

fn with(tokens: &[&str]) -> Options {
    fixed().tokens(tokens.iter().map(|text| token(text)))
}

fn host() -> Host {
    Host::declared(1 << 20, PersistenceDomain::Adr, |o| o.token(token(OURS)))
}

fn refused(host: &Host, options: Options) -> Error {
    match Session::connect(&context(), host.addr, options) {
        Ok(_) => panic!("it was let in"),
        Err(e) => e,
    }
}

#[test]
fn who_has_the_token_gets_a_session_and_several_may_be_tried() {
    let mut host = host();
    for options in [with(&[OURS]), with(&["another-one-of-mine", OURS])] {
        let mut session = session(&host, options);
        let plan = session.plan(&Request::record(64)).expect("a plan");
        let _ = session.persist(&plan, &[(64, &[7; 64])]).expect("it is there");
        assert_eq!(host.region.load_u64(64), 0x0707_0707_0707_0707);
    }
    let stats = host.stop();
    assert_eq!((stats.sessions, stats.wrong_tokens), (2, 1));
}

#[test]
fn who_has_no_token_or_another_one_gets_no_session_and_is_told_which() {
    let mut host = host();
    let e = refused(&host, fixed());
    assert!(matches!(e, Error::TokenNeeded(to) if to == host.addr), "{e}");
    assert!(e.to_string().contains("--token-file"), "{e}");
    let e = refused(&host, with(&["correct-horse-batterz"]));
    assert!(matches!(e, Error::WrongToken(to) if to == host.addr), "{e}");
    // A guesser is slowed down, and told so.
    let e = refused(&host, with(&["guess-guess-guess-1"; 8]));
    assert!(matches!(&e, Error::Refused { why, .. } if why.contains("too many wrong tokens")), "{e}");
    // Others are not: its address is another one.
    drop(session(&host, with(&[OURS])));
    let stats = host.stop();
    assert_eq!(stats.sessions, 1, "strangers had sessions");
    assert_eq!(stats.wrong_tokens, 5);
}

#[test]
fn a_client_with_a_token_goes_on_with_no_server_that_has_none() {
    let open = Host::declared(1 << 20, PersistenceDomain::Adr, |o| o);
    let e = refused(&open, with(&[OURS]));
    assert!(matches!(e, Error::Unproven(to) if to == open.addr), "{e}");
    drop(session(&open, fixed()));
}

/// Asks once, with a QP of this device, and says what becomes of it.
fn knock(
    device: &Context,
    to: SocketAddr,
    hello: impl FnOnce(Ends) -> Hello,
) -> Result<Connection, Rejection> {
    let pd = device.alloc_pd().expect("room");
    let cq = device.create_cq(16, None, 0).expect("room");
    let qp = pd.create_qp(&QpOptions::rc(&cq)).expect("room");
    let client = device.link_caps().addresses[0];
    let hello = hello(Ends { client, qpn: qp.qpn().value(), server: to });
    match Connection::connect(&qp, to, &ConnectAttr::default(), &hello.emit(), LIMIT) {
        Ok(connection) => Ok(connection),
        Err(remanence_verbs::Error::Rejected { private_data, .. }) => Err(Rejection::parse(&private_data)),
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn a_proof_is_neither_replayed_nor_taken_to_another_connection() {
    let mut host = host();
    let (device, nonce) = (context(), [9; 32]);
    let asking = Hello { declared: None, credentials: Credentials::Nonce(nonce) };
    let challenge = |device: &Context| match knock(device, host.addr, |_| asking) {
        Err(Rejection::Challenge(theirs)) => theirs,
        other => panic!("{other:?}"),
    };
    // What went over the wire when somebody who has the token connected.
    let (theirs, mut recorded, mut at) = (challenge(&device), asking, None);
    let admitted = knock(&device, host.addr, |ends| {
        at = Some(ends);
        recorded = Transcript::new(token(OURS), nonce, theirs, ends).answer(&asking);
        recorded
    });
    drop(admitted.expect("it has the token"));
    // The same again, from the same machine.
    match knock(&device, host.addr, |_| recorded) {
        Err(Rejection::Sentence(why)) => assert!(why.contains("for the second time"), "{why}"),
        other => panic!("a recorded proof: {other:?}"),
    }
    // A proof made for one QP, brought by another one: of the same machine, and of one in between.
    let ends = at.expect("asked");
    for other in [device, context()] {
        let theirs = challenge(&other);
        let proof = Transcript::new(token(OURS), nonce, theirs, ends).answer(&asking);
        assert_eq!(knock(&other, host.addr, |_| proof).map(drop), Err(Rejection::WrongToken));
    }
    // What was declared is part of the proof: nobody on the way weakens it.
    let other = context();
    let theirs = challenge(&other);
    let weaker = knock(&other, host.addr, |ends| {
        let proof = Transcript::new(token(OURS), nonce, theirs, ends).answer(&asking);
        Hello { declared: Some(Config::SAFE), ..proof }
    });
    assert_eq!(weaker.map(drop), Err(Rejection::WrongToken));
    assert_eq!(host.stop().sessions, 1);
}

/// Somebody at an address of its own who answers so many requests as `answer` says.
fn impostor(
    requests: usize,
    mut answer: impl FnMut(usize, Incoming, &Context) -> Option<Connection> + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let address = address();
    let device = Context::open(DeviceOptions::udp(address)).expect("a device");
    let listener = Listener::bind(&device, 7777, 4).expect("free");
    let thread = std::thread::spawn(move || {
        for n in 0..requests {
            let incoming = listener.get_request(LIMIT).expect("somebody came");
            if let Some(connection) = answer(n, incoming, &device) {
                let _ = connection.wait_ended(LIMIT);
            }
        }
    });
    ((address, 7777).into(), thread)
}

fn welcome(incoming: Incoming, device: &Context, change: impl FnOnce(&mut Vec<u8>)) -> Option<Connection> {
    let pd = device.alloc_pd().expect("room");
    let cq = device.create_cq(16, None, 0).expect("room");
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mr = pd.reg_mr(&Region::anonymous(1 << 16).expect("memory"), access).expect("fair");
    let qp = pd.create_qp(&QpOptions::rc(&cq)).expect("room");
    let region = Window { rkey: mr.rkey().0, addr: mr.addr(), len: mr.len() };
    let config = Config::software(Domain::Dmp);
    let mut bytes = Welcome {
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
        sentence: "an impostor".into(),
    }
    .emit();
    change(&mut bytes);
    Some(incoming.accept(&qp, &ConnectAttr::default(), &bytes).expect("accepted"))
}

fn unproven(to: SocketAddr, thread: JoinHandle<()>) {
    let Err(e) = Session::connect(&context(), to, with(&[OURS])) else { panic!("it was believed") };
    thread.join().expect("the impostor ends");
    assert!(matches!(e, Error::Unproven(_)), "{e}");
}

#[test]
fn an_impostor_cannot_talk_a_client_out_of_its_token() {
    // It welcomes whoever comes.
    let (to, thread) = impostor(1, |_, incoming, device| welcome(incoming, device, |_| ()));
    unproven(to, thread);
    // It says that it has no token.
    let (to, thread) = impostor(1, |_, incoming, _| {
        incoming.reject(&Rejection::Open.emit()).expect("sent");
        None
    });
    unproven(to, thread);
    // It challenges, and welcomes whatever the answer is: without a proof, and with one by another token.
    for guess in [None, Some("correct-horse-batterz")] {
        let (to, thread) = impostor(2, move |n, incoming, device| {
            if n == 0 {
                incoming.reject(&Rejection::Challenge([8; 32]).emit()).expect("sent");
                return None;
            }
            let ends = Ends {
                client: incoming.peer(),
                qpn: incoming.request().remote_qpn.value(),
                server: (device.link_caps().addresses[0], 7777).into(),
            };
            welcome(incoming, device, |bytes| {
                if let Some(guess) = guess {
                    Transcript::new(token(guess), [0; 32], [8; 32], ends).seal(bytes);
                }
            })
        });
        unproven(to, thread);
    }
    // An older release, or one that pretends to be one.
    let (to, thread) = impostor(1, |_, incoming, device| {
        welcome(incoming, device, |bytes| bytes[4..6].copy_from_slice(&1_u16.to_be_bytes()))
    });
    unproven(to, thread);
}

#[test]
fn a_client_in_the_middle_cannot_use_what_it_hears() {
    // The client is led to the wrong address; who sits there passes everything on to the real server.
    let mut host = host();
    let (real, seen) = (host.addr, std::sync::mpsc::channel());
    let tell = seen.0;
    let (to, thread) = impostor(2, move |_, incoming, device| {
        let hello = Hello::parse(incoming.private_data()).expect("ours");
        let Err(rejection) = knock(device, real, |_| hello) else {
            panic!("let in by somebody else's proof")
        };
        incoming.reject(&rejection.emit()).expect("sent");
        tell.send(rejection).expect("somebody listens");
        None
    });
    let Err(e) = Session::connect(&context(), to, with(&[OURS])) else { panic!("it was believed") };
    thread.join().expect("the middle ends");
    assert!(matches!(e, Error::WrongToken(_)), "{e}");
    assert!(matches!(seen.1.recv(), Ok(Rejection::Challenge(_))));
    assert_eq!(seen.1.recv(), Ok(Rejection::WrongToken));
    assert_eq!(host.stop().sessions, 0);
}

#[test]
fn over_a_bad_network_a_client_with_the_token_still_gets_in() {
    let host = host();
    let faults =
        Faults { loss: 0.08, duplication: 0.1, reordering: 0.1, corruption: 0.04, ..Faults::default() };
    for seed in 1..=2 {
        let plan = Plan { rx: faults, tx: faults };
        let options = DeviceOptions { faults: Some((plan, seed)), ..DeviceOptions::udp(address()) };
        let device = Context::open(options).expect("a device");
        let session = Session::connect(&device, host.addr, with(&[OURS]))
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(session.config().domain, Domain::Dmp);
    }
}

#[test]
fn without_a_token_only_this_machine_may_reach_a_server_unless_that_is_said() {
    // An address of this machine that is not loopback, if it has one.
    let Ok(route) = remanence_link::route::to([192, 0, 2, 1].into()) else {
        return println!("skipped: there is no way out of this machine");
    };
    let bind = |change: fn(ServerOptions) -> ServerOptions| {
        let device = Context::open(DeviceOptions::udp(route.source)).expect("a device");
        let dir = tempfile::tempdir().expect("a directory");
        let options = remanence_pmem::FileOptions::new().create(1 << 16);
        let region = options.open(dir.path().join("memory")).expect("a file");
        Server::bind(change(ServerOptions::new(&device, region, 0)))
    };
    let e = bind(|o| o).expect_err("nobody said so");
    assert!(e.to_string().contains("--token-file") && e.to_string().contains("--insecure"), "{e}");
    assert!(bind(ServerOptions::insecure).is_ok());
    assert!(bind(|o| o.token(token(OURS))).is_ok());
}
