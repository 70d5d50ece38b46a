//! What a client promises: it repeats nothing of which it does not know whether it happened.

use crate::servers as live;

use remanence_kv::proto::Expect;
use remanence_kv_live::{ConnectOptions, Error, PutOptions, Server, ServerOptions, Stop, Store};
use remanence_persist::recipe::Op;

#[test]
fn a_change_whose_end_nobody_knows_is_not_made_again() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let context = live::context();
    let bind = |port| {
        let options = ServerOptions::file(dir.path().join("store")).size(live::SIZE).port(port);
        Server::bind(&context, options.inline_max(0)).expect("a server")
    };
    let mut server = bind(0);
    let addr = server.addr();
    // As soon as room was handed out, the server answers nobody any more: the value is in a message that it does not read.
    let stop = Stop::new();
    let (metrics, stopping) = (server.metrics(), stop.clone());
    server.on_round(move || {
        if metrics.read().server.reserved > 0 {
            stopping.ask();
        }
    });
    let restarted = Stop::new();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            server.run(&stop).expect("it served");
            drop(server);
            // There is one to repeat it at.
            let mut server = bind(addr.port());
            server.run(&restarted).expect("it serves")
        });
        let options: ConnectOptions = live::options().patience(live::PATIENCE);
        let mut store = Store::connect(&live::context(), addr, options).expect("connected");
        store.session().use_method(Some(Op::Send));
        let put = PutOptions { expect: Expect::Absent, ttl: None };
        let outcome = store.put(b"key", b"value", put);
        // Who looks learns it.
        let found = store.get(b"key");
        restarted.ask();
        assert!(matches!(outcome, Err(Error::Unknown(_))), "{outcome:?}");
        let found = found.expect("the server is there again");
        assert!(found.is_none_or(|found| found.value == b"value"));
        let stats = serving.join().expect("the server's thread");
        assert_eq!(stats.server.reserved, 0, "it was asked again");
    });
}
