//! A client that waits: write, read, compare and swap, list.
//!
//! ```text
//! rem kv serve /tmp/store.kv --size 64M &
//! cargo run --release -p remanence-kv --example blocking -- 127.0.0.1:7471
//! ```

use std::net::SocketAddr;

use remanence_kv::live::{ConnectOptions, Error, PutOptions, Store};
use remanence_kv::{Expect, Refusal};
use remanence_verbs::{Context, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let to: SocketAddr = std::env::args().nth(1).ok_or("give the server's address")?.parse()?;
    // A device at the address from which the server is reached.
    let from =
        if to.ip().is_loopback() { to.ip() } else { std::env::args().nth(2).ok_or("and ours")?.parse()? };
    let device = Context::open(Options::udp(from))?;
    let mut store = Store::connect(&device, to, ConnectOptions::default())?;

    // Durable when it returns, in a store of mode durable.
    let version = store.put(b"greeting", b"hello", PutOptions::default())?;
    let found = store.get(b"greeting")?.ok_or("somebody has deleted it")?;
    println!("version {version}: {}", String::from_utf8_lossy(&found.value));

    // Compare and swap: it succeeds on the version that was read, and fails on it the next time.
    let swap = PutOptions { expect: Expect::Version(found.version), ..PutOptions::default() };
    store.put(b"greeting", b"hello again", swap)?;
    match store.put(b"greeting", b"too late", swap) {
        Err(Error::Refused(Refusal::WrongVersion { found })) => println!("it has version {found} by now"),
        other => println!("unexpected: {other:?}"),
    }

    // One message, one doorbell, one flush.
    let pairs: Vec<(String, String)> = (0..10).map(|n| (format!("key{n}"), format!("value{n}"))).collect();
    for outcome in store.put_many(&pairs, PutOptions::default())? {
        outcome?;
    }
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let page = store.scan(at, 100)?;
        for key in &page.keys {
            println!("{}", String::from_utf8_lossy(key));
        }
        cursor = page.next;
    }
    store.delete(b"greeting", Expect::Any)?;
    Ok(())
}
