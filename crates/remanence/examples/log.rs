//! An append-only log on three servers: appends that are durable when they return, many at once, and a reader; then the same with
//! one server gone.
//!
//! ```text
//! cargo run --release -p remanence --example log
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::thread;

use remanence::log::{ConnectOptions, Log, LogReader, Server, ServerOptions, Stop};
use remanence::verbs::{Context, Options};

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let device = Context::open(Options::udp("127.0.0.1".parse()?))?;
    let mut servers = Vec::new();
    for name in ["one.log", "two.log", "three.log"] {
        let file = directory.path().join(name);
        let server = Server::open(&device, ServerOptions::file(&file).size(1 << 20))?;
        println!("server: {} at {}: {}", file.display(), server.addr(), server.summary());
        servers.push(server);
    }
    let to: Vec<SocketAddr> = servers.iter().map(Server::addr).collect();
    let stops: Vec<Stop> = servers.iter().map(|_| Stop::new()).collect();
    thread::scope(|scope| {
        let serving: Vec<_> = servers
            .iter_mut()
            .zip(&stops)
            .map(|(server, stop)| scope.spawn(move || server.run(stop)))
            .collect();
        let done = conduct(&to, &stops[2]);
        stops.iter().for_each(Stop::ask);
        for server in serving {
            server.join().expect("a server's thread")?;
        }
        done
    })
}

fn conduct(to: &[SocketAddr], third: &Stop) -> Result<(), Box<dyn Error>> {
    // Two of the three have a record when it is acknowledged: any one of them may be lost.
    let mut log = Log::connect_to(to, &ConnectOptions::default().acks(2))?;
    let number = log.append(b"paid 17")?;
    let survives = log.survives().ok_or("nothing was appended")?;
    println!("client: record {number} is durable, and survives {survives}");

    // Begun, and promised nothing until the wait for all of them has ended.
    for amount in 18..100 {
        log.begin_append(format!("paid {amount}").as_bytes())?;
    }
    log.wait(log.next())?;
    println!("client: all below {} are durable", log.acknowledged());

    // One server goes. The others are enough.
    third.ask();
    let number = log.append(b"paid 100")?;
    println!("client: record {number} is durable on the two that are left");
    log.close()?;

    let mut reader = LogReader::connect_to(to[0], &ConnectOptions::default())?;
    let first = reader.next().ok_or("the log is empty")??;
    let last = reader.last().ok_or("the log has one record")??;
    for record in [first, last] {
        println!("client: read record {}: {}", record.sequence, String::from_utf8_lossy(&record.payload));
    }
    Ok(())
}
