//! A key-value store: put, get, compare and swap, scan.
//!
//! ```text
//! cargo run --release -p remanence --example kv
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::thread;

use remanence::kv::{self, ConnectOptions, Expect, PutOptions, Refusal, Server, ServerOptions, Stop, Store};
use remanence::verbs::{Context, Options};

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("users.kv");
    let device = Context::open(Options::udp("127.0.0.1".parse()?))?;
    let mut server = Server::bind(&device, ServerOptions::file(&file).size(8 << 20))?;
    println!("server: {} at {}: {}", file.display(), server.addr(), server.summary());
    let (to, stop) = (server.addr(), Stop::new());
    thread::scope(|scope| {
        let serving = scope.spawn(|| server.run(&stop));
        let done = conduct(to);
        stop.ask();
        serving.join().expect("the server's thread")?;
        done
    })
}

fn conduct(to: SocketAddr) -> Result<(), Box<dyn Error>> {
    let mut store = Store::connect_to(to, ConnectOptions::default())?;

    // Durable when it returns.
    let version = store.put(b"greeting", b"hello", PutOptions::default())?;
    let survives = store.survives().ok_or("nothing was acknowledged")?;
    println!("client: version {version} survives {survives}");
    // One or two READs of the server's memory; its CPU takes no part.
    let found = store.get(b"greeting")?.ok_or("somebody has deleted it")?;
    println!("client: version {version}: {}", String::from_utf8_lossy(&found.value));

    // Compare and swap: it succeeds on the version that was read, and fails on it the next time.
    let swap = PutOptions { expect: Expect::Version(found.version), ..PutOptions::default() };
    store.put(b"greeting", b"hello again", swap)?;
    match store.put(b"greeting", b"too late", swap) {
        Err(kv::Error::Refused(Refusal::WrongVersion { found })) => {
            println!("client: refused, as it has version {found} by now");
        }
        other => return Err(format!("not what was expected: {other:?}").into()),
    }

    // Many at once: one message, one doorbell, one flush for each lot. Each has an outcome of its own.
    let pairs: Vec<(String, String)> = (0..100).map(|n| (format!("key{n}"), format!("value{n}"))).collect();
    for outcome in store.put_many(&pairs, PutOptions::default())? {
        outcome?;
    }
    // Keys come in no order that means anything, each once.
    let mut keys = store.keys().collect::<Result<Vec<_>, _>>()?;
    keys.sort();
    println!("client: {} keys, the first is {}", keys.len(), String::from_utf8_lossy(&keys[0]));
    let mut bytes = 0;
    for entry in store.entries() {
        let (_key, found) = entry?;
        bytes += found.value.len();
    }
    println!("client: {bytes} bytes of values");
    store.delete(b"greeting", Expect::Any)?;
    Ok(())
}
