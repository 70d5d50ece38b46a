//! Futures, for any executor: an append-only log on three servers, many appends at once and a reader; then a service of one's own, which
//! many tasks share. Here the executor is the thread that waits for the reactor; who has one lets a thread do that in the background.
//!
//! ```text
//! cargo run --release -p remanence --example futures
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use remanence::log::{AsyncLog, AsyncLogReader, ConnectOptions, Server, ServerOptions};
use remanence::remote::{Reactor, Stop};
use remanence::replicated::{AsyncClient, ClientOptions, Host, HostOptions, Malformed, StateMachine};
use remanence::verbs::{Context, Options};

/// How many commands there were.
#[derive(Default)]
struct Count(u64);

impl StateMachine for Count {
    fn apply(&mut self, _: &[u8]) -> Vec<u8> {
        self.0 += 1;
        self.snapshot()
    }

    fn snapshot(&self) -> Vec<u8> {
        self.0.to_le_bytes().to_vec()
    }

    fn restore(snapshot: &[u8]) -> Result<Self, Malformed> {
        snapshot.try_into().map(|count| Self(u64::from_le_bytes(count))).map_err(|_| Malformed { at: 0 })
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let device = Context::open(Options::udp("127.0.0.1".parse()?))?;
    let serve =
        |name: &str| Server::open(&device, ServerOptions::file(directory.path().join(name)).size(1 << 20));
    let mut servers = [serve("one.log")?, serve("two.log")?, serve("three.log")?, serve("service.log")?];
    let to = servers.each_ref().map(Server::addr);
    let mut host = Host::<Count>::bind(&device, &to[3..], HostOptions::default())?;
    let service = host.addr();
    let (stop, stop_host) = (Stop::new(), Stop::new());
    thread::scope(|scope| {
        let serving = servers.each_mut().map(|server| scope.spawn(|| server.run(&stop)));
        let hosting = scope.spawn(|| host.run(&stop_host));
        let reactor = Reactor::new(&device)?;
        let done = reactor.block_on(async {
            append(&reactor, &to[..3]).await?;
            count(&reactor, service).await
        });
        stop_host.ask();
        hosting.join().expect("the host's thread")?;
        stop.ask();
        for server in serving {
            server.join().expect("a server's thread")?;
        }
        done
    })
}

async fn append(reactor: &Reactor, to: &[SocketAddr]) -> Result<(), Box<dyn Error>> {
    let options = ConnectOptions::default().acks(2);
    let log = AsyncLog::connect(reactor, to, &options).await?;
    // All under way at once, each durable on two of the three when its future ends.
    let appends: Vec<_> = (17..100).map(|amount| log.append(format!("paid {amount}").as_bytes())).collect();
    for append in appends {
        append.await?;
    }
    println!("client: all below {} are durable", log.acknowledged());
    // No longer than that. A record that is late may be found in the log, or not.
    match reactor.within(Duration::from_secs(10), log.append(b"paid 100")).await {
        Some(number) => println!("client: record {} is durable too", number?),
        None => println!("client: the last record is late"),
    }
    log.close().await?;
    let mut reader = AsyncLogReader::connect(reactor, to[0], &options).await?;
    let mut count = 0;
    while let Some(record) = reader.next().await {
        record?;
        count += 1;
    }
    println!("client: {} has {count} records", to[0]);
    Ok(())
}

async fn count(reactor: &Reactor, host: SocketAddr) -> Result<(), Box<dyn Error>> {
    let client = AsyncClient::connect(reactor, &[host], ClientOptions::default())?;
    for expected in 1..=100_u64 {
        let answer = client.call(b"one more").await?;
        if answer != expected.to_le_bytes() {
            return Err(format!("command {expected} was answered with {answer:?}").into());
        }
    }
    println!("client: 100 commands were carried out, each once");
    Ok(())
}
