//! A gateway over a store in its own memory, for trying Redis' tools on it:
//!
//! ```text
//! cargo run --release -p remanence-gateway --example memory -- 127.0.0.1:6380 127.0.0.1:9180
//! redis-cli -p 6380 SET greeting hello
//! curl http://127.0.0.1:9180/metrics
//! ```
//!
//! It prints where it listens, one address a line, and serves until its standard input ends.

use std::io::Read as _;

use remanence_gateway::{Address, Gateway, Options};
use remanence_resp::memory::MemoryStore;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let listen = Address::parse(&arguments.next().unwrap_or_else(|| "127.0.0.1:6379".to_owned()))?;
    let metrics = arguments.next().map(|text| text.parse()).transpose()?;
    let store = MemoryStore::default();
    let options = Options { listen: vec![listen], metrics, ..Options::default() };
    let gateway = Gateway::start(options, |_| Ok(store.clone()))?;
    for address in gateway.addresses() {
        println!("{address}");
    }
    if let Some(address) = gateway.metrics() {
        println!("http://{address}/metrics");
    }
    std::io::stdin().read_to_end(&mut Vec::new())?;
    gateway.stop();
    Ok(())
}
