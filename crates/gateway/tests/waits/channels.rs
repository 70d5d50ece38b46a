//! Messages of channels over real sockets and between workers.

use crate::common;

use std::time::{Duration, Instant};

use common::{Client, PATIENCE, bulk, options, start};
use remanence_gateway::Options;
use remanence_resp::protocol::Frame;

fn array(words: &[&str]) -> Frame {
    Frame::Array(words.iter().map(|word| bulk(word)).collect())
}

fn subscribe(client: &mut Client, channel: &str, count: i64) {
    client.send(format!("SUBSCRIBE {channel}\r\n").as_bytes());
    let said = Frame::Array(vec![bulk("subscribe"), bulk(channel), Frame::Integer(count)]);
    assert_eq!(client.reply(), Some(said));
}

#[test]
fn messages_come_in_order_from_whatever_worker() {
    const EACH: usize = 2000;
    let gateway = start(Options { threads: 2, ..options() });
    // Some of each worker's: connections are dealt out in turn.
    let mut listeners: Vec<Client> = (0..4).map(|_| Client::connect(&gateway)).collect();
    for listener in &mut listeners {
        subscribe(listener, "news", 1);
    }
    let mut publishers: Vec<Client> = (0..4).map(|_| Client::connect(&gateway)).collect();
    for n in 0..EACH {
        for (who, publisher) in publishers.iter_mut().enumerate() {
            publisher.send(format!("PUBLISH news {who}:{n}\r\n").as_bytes());
        }
    }
    for publisher in &mut publishers {
        for _ in 0..EACH {
            assert_eq!(publisher.reply(), Some(Frame::Integer(4)));
        }
    }
    for listener in &mut listeners {
        let mut next = [0; 4];
        for _ in 0..4 * EACH {
            let Some(Frame::Array(words)) = listener.reply() else { panic!("no message") };
            let [_, _, Frame::Bulk(text)] = &words[..] else { panic!("{words:?}") };
            let text = String::from_utf8(text.clone()).unwrap();
            let (who, n) = text.split_once(':').unwrap();
            let who: usize = who.parse().unwrap();
            assert_eq!(n.parse::<usize>().unwrap(), next[who], "of publisher {who}");
            next[who] += 1;
        }
        assert_eq!(next, [EACH; 4]);
        listener.send(b"PING\r\n");
        assert_eq!(listener.reply(), Some(array(&["pong", ""])), "nothing came twice");
    }
    gateway.stop();
}

#[test]
fn who_reads_no_messages_is_closed_and_holds_nobody_up() {
    let gateway = start(Options { threads: 2, output_high: 1 << 16, ..options() });
    let (mut silent, mut listener) = (Client::connect(&gateway), Client::connect(&gateway));
    subscribe(&mut silent, "news", 1);
    subscribe(&mut listener, "news", 1);
    let mut publisher = Client::connect(&gateway);
    let message = "x".repeat(1 << 20);
    let begin = Instant::now();
    while gateway.shared().stats.mail_closed.get() == 0 {
        assert!(begin.elapsed() < PATIENCE, "nobody ends it");
        publisher.send(
            format!("*3\r\n$7\r\nPUBLISH\r\n$4\r\nnews\r\n${}\r\n{message}\r\n", message.len()).as_bytes(),
        );
        assert!(matches!(publisher.reply(), Some(Frame::Integer(1..=2))));
        assert_eq!(
            listener.reply(),
            Some(array(&["message", "news", &message])),
            "who reads has all of them"
        );
    }
    while gateway.shared().peers().len() > 2 {
        assert!(begin.elapsed() < PATIENCE, "it stays");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(publisher.run("PUBLISH news last"), Frame::Integer(1));
    assert_eq!(listener.reply(), Some(array(&["message", "news", "last"])));
    gateway.stop();
}
