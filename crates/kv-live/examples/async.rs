//! A client that does not wait: many operations under way on one connection, a time limit, and a change that is given up.
//!
//! ```text
//! rem kv serve /tmp/store.kv --size 64M &
//! cargo run --release -p remanence-kv-live --example async -- 127.0.0.1:7471
//! ```
//!
//! Any executor will do; this is the smallest that there is.

use std::net::SocketAddr;
use std::time::Duration;

use remanence_kv_live::{AsyncStore, Cancelled, ConnectOptions, PutOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let to: SocketAddr = std::env::args().nth(1).ok_or("give the server's address")?.parse()?;
    let store = AsyncStore::connect_to(to, ConnectOptions::default())?;
    pollster::block_on(conduct(&store))
}

async fn conduct(store: &AsyncStore) -> Result<(), Box<dyn std::error::Error>> {
    // An operation begins when it is called. A thousand at a time share messages, doorbells and flushes.
    let keys: Vec<String> = (0..1000).map(|n| format!("key{n}")).collect();
    let puts: Vec<_> =
        keys.iter().map(|key| store.put(key.as_bytes(), b"value", PutOptions::default())).collect();
    for put in puts {
        put.await?;
    }
    let gets: Vec<_> = keys.iter().map(|key| store.get(key.as_bytes())).collect();
    for get in gets {
        assert_eq!(get.await?.ok_or("somebody has deleted it")?.value, b"value");
    }

    // What takes longer is given up, and the error says whether something may have been changed.
    let version =
        store.put(b"greeting", b"hello", PutOptions::default()).within(Duration::from_secs(5)).await?;
    println!("version {version}");

    // Who drops a future gives its operation up. Who cancels it learns what became of it.
    match store.put(b"greeting", b"never mind", PutOptions::default()).cancel().await? {
        Cancelled::Never => println!("nothing was changed"),
        Cancelled::Done(version) => println!("too late: it is version {version}"),
    }
    Ok(())
}
