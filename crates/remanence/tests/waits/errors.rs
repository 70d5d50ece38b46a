//! Whoever returns an error from `main` sees its `Debug`: it has to be the sentence, with the address that was asked for, and
//! without the names of types around it.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use remanence::verbs::{ConnectAttr, Connection, Context, Listener, Options, QpOptions};
use remanence::{Token, kv, log, pmem, pool, remote};

/// What a program prints whose `main` returns the error.
fn printed(error: impl Into<Box<dyn Error>>) -> String {
    let error = error.into();
    let printed = format!("{error:?}");
    assert_eq!(printed, error.to_string());
    assert!(!printed.contains(['{', '}', '[']) && !printed.contains("Some("), "{printed}");
    printed
}

/// A port of this host at which nobody listens, and a device, so that somebody says so.
fn nobody() -> (Context, SocketAddr) {
    let device = Context::open(Options::udp("127.0.0.1".parse().expect("an address"))).expect("a device");
    let free = Listener::bind(&device, 0, 1).expect("a port").port();
    (device, SocketAddr::new("127.0.0.1".parse().expect("an address"), free))
}

#[test]
fn who_connects_to_nobody_reads_where_that_was() {
    let (device, to) = nobody();
    let sentence = format!("{to} refused the connection: nothing listens on that port");
    let pd = device.alloc_pd().expect("room");
    let cq = device.create_cq(16, None, 0).expect("room");
    let qp = pd.create_qp(&QpOptions::rc(&cq)).expect("room");
    let limit = Some(Duration::from_secs(10));
    let verbs = Connection::connect(&qp, to, &ConnectAttr::default(), b"hello", limit).expect_err("nobody");
    let remote = remote::Session::connect_to(to, remote::ConnectOptions::default()).expect_err("nobody");
    let kv = kv::Store::connect_to(to, kv::ConnectOptions::default()).expect_err("nobody");
    let reader = log::LogReader::connect_to(to, &log::ConnectOptions::default()).expect_err("nobody");
    for printed in [printed(verbs), printed(remote), printed(kv), printed(reader)] {
        assert!(printed.starts_with(&sentence), "{printed}");
    }
    let log = printed(log::Log::connect_to(&[to], &log::ConnectOptions::default()).expect_err("nobody"));
    assert!(log.contains(&sentence), "{log}");
    let token = Token::new("a-token-of-sixteen-characters").expect("fair");
    let options = pool::ConnectOptions::new(vec![(to.to_string(), to)]).tokens([token]);
    let pool = printed(pool::Client::connect_to(options, 1).map(drop).expect_err("nobody"));
    assert!(pool.contains(&sentence), "{pool}");
}

#[test]
fn what_a_caller_did_wrong_is_said_in_a_sentence() {
    let missing = printed(pmem::FileOptions::new().open("/nonexistent/memory").expect_err("it is not there"));
    assert!(missing.starts_with("/nonexistent/memory does not exist"), "{missing}");
    assert!(printed(Token::new("short").expect_err("too short")).contains("at least 16 characters"));
    assert!(printed(pool::BlobName::new("").expect_err("empty")).contains("may not be empty"));
    let (device, _) = nobody();
    let first = Listener::bind(&device, 0, 1).expect("a port");
    let taken = printed(Listener::bind(&device, first.port(), 1).expect_err("taken"));
    assert!(taken.contains("is taken by another listener"), "{taken}");
    let region = pmem::Region::anonymous(1 << 16).expect("memory");
    let forgets = remote::Server::bind(remote::ServerOptions::new(&device, region, 0)).expect_err("volatile");
    assert!(printed(forgets).starts_with("nothing of this region outlives its process"));
    let open = Context::open(Options::udp("192.0.2.200".parse().expect("an address")));
    let foreign = printed(open.expect_err("no address of this host"));
    assert!(foreign.starts_with("UDP"), "{foreign}");
}
