//! A client that waits: write, read, compare and swap, list.
//!
//! ```text
//! rem kv serve /tmp/store.kv --size 64M &
//! cargo run --release -p remanence-kv-live --example blocking -- 127.0.0.1:7471
//! ```

use std::net::SocketAddr;

use remanence_kv::{Expect, Refusal};
use remanence_kv_live::{ConnectOptions, Error, PutOptions, Store};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let to: SocketAddr = std::env::args().nth(1).ok_or("give the server's address")?.parse()?;
    let mut store = Store::connect_to(to, ConnectOptions::default())?;

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
    for key in store.keys() {
        println!("{}", String::from_utf8_lossy(&key?));
    }
    store.delete(b"greeting", Expect::Any)?;
    Ok(())
}
