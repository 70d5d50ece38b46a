//! Transactions of clients whose connections belong to different threads.

use crate::common;

use common::{Client, bulk, ok, options, start};
use remanence_gateway::Options;
use remanence_resp::engine::Config;
use remanence_resp::protocol::Frame;

#[test]
fn nobody_sees_or_does_anything_between_the_commands_of_a_transaction() {
    const ROUNDS: i64 = 200;
    let gateway = start(options());
    let mut client = Client::connect(&gateway);
    assert_eq!(client.run("MSET a 0 b 0"), ok());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // The writes of a transaction are in one piece, and so are its looks. All of it comes in one go.
                let mut client = Client::connect(&gateway);
                for _ in 0..ROUNDS {
                    client.send(b"MULTI\r\nINCR a\r\nGET b\r\nINCR b\r\nGET a\r\nEXEC\r\n");
                    assert_eq!(client.reply(), Some(ok()));
                    for _ in 0..4 {
                        assert_eq!(client.reply(), Some(Frame::Simple(b"QUEUED".to_vec())));
                    }
                    let Some(Frame::Array(said)) = client.reply() else { panic!("EXEC answers an array") };
                    let [Frame::Integer(a), before, Frame::Integer(b), after] = &said[..] else {
                        panic!("{said:?}")
                    };
                    assert_eq!((a, before), (b, &bulk(&(a - 1).to_string())), "{said:?}");
                    assert_eq!(after, &bulk(&a.to_string()));
                }
            });
            scope.spawn(|| {
                // And a plain write to one of them is in front of a transaction, or behind it.
                let mut client = Client::connect(&gateway);
                for n in 0..ROUNDS {
                    assert_eq!(client.run(&format!("SET c {n}")), ok());
                    let Frame::Array(both) = client.run("MGET a b") else { panic!("MGET answers an array") };
                    assert_eq!(both[0], both[1]);
                }
            });
        }
    });
    assert_eq!(client.run("MGET a b"), Frame::Array(vec![bulk("800"), bulk("800")]));
    gateway.stop();
}

#[test]
fn of_clients_that_watch_a_key_and_change_it_none_undoes_what_another_did() {
    const EACH: usize = 50;
    let gateway = start(options());
    let mut client = Client::connect(&gateway);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = Client::connect(&gateway);
                let mut done = 0;
                while done < EACH {
                    assert_eq!(client.run("WATCH n"), ok());
                    let n = match client.run("GET n") {
                        Frame::Null => 0,
                        Frame::Bulk(n) => String::from_utf8(n).unwrap().parse::<u64>().unwrap(),
                        other => panic!("{other:?}"),
                    };
                    assert_eq!(client.run("MULTI"), ok());
                    client.run(&format!("SET n {}", n + 1));
                    match client.run("EXEC") {
                        Frame::Array(said) => {
                            assert_eq!(said, [ok()]);
                            done += 1;
                        }
                        // Somebody was faster.
                        Frame::Null => {}
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
    });
    assert_eq!(client.run("GET n"), bulk(&(4 * EACH).to_string()));
    gateway.stop();
}

#[test]
fn where_others_write_to_the_store_a_transaction_in_one_go_does_nothing() {
    let config = Config { transactions: false, ..Config::default() };
    let gateway = start(Options { config, ..options() });
    let mut client = Client::connect(&gateway);
    // Long enough for plain SETs to go to the store together, if they did.
    client.send(b"MULTI\r\n");
    for _ in 0..100 {
        client.send(b"SET a 1\r\n");
    }
    client.send(b"EXEC\r\nGET a\r\n");
    for _ in 0..102 {
        assert!(matches!(client.reply(), Some(Frame::Error(_))));
    }
    assert_eq!(client.reply(), Some(Frame::Null), "nothing of it was carried out");
    gateway.stop();
}
