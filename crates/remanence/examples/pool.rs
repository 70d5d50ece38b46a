//! Puts blobs on three servers, durable on two of them at least when that returns, and gets one back when one server is gone.
//!
//! ```text
//! cargo run --release -p remanence --example pool
//! ```

use std::error::Error;
use std::io::Read as _;
use std::path::Path;

use remanence::pool::{
    BlobName, Client, ConnectOptions, Port, Server, ServerOptions, Source, Token, Upload, open_or_make,
};
use remanence::verbs::{Context, Options};

const SIZE: u64 = 16 << 20;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    // Client and servers prove to each other that they have it; it does not travel.
    let token = Token::new("a-token-of-sixteen-characters-or-more")?;
    let device = Context::open(Options::udp("127.0.0.1".parse()?))?;
    let serve = |name: &str| serve(&device, &directory.path().join(name), &token);
    let (one, two, three) = (serve("one.pool")?, serve("two.pool")?, serve("three.pool")?);

    let servers = [&one, &two, &three].map(|server| (server.address().to_string(), server.address()));
    let mut client = Client::connect_to(ConnectOptions::new(servers.into()).tokens([token.clone()]), 3)?;
    let name = BlobName::new("greeting")?;
    client.put_bytes(&name, b"hello, servers", 2)?;
    println!("client: \"{name}\" is durable on two of three servers at least");

    // A stream, of which nobody knows beforehand how long it is.
    let stream = Source {
        name: BlobName::new("zeros")?,
        len: None,
        reader: Box::new(std::io::repeat(0).take(1 << 20)),
        version: None,
    };
    let upload = Upload { quorum: 2, servers: None };
    let report = client.put(std::iter::once(Ok(stream)), &upload, &mut |_| ())?;
    println!("client: {} bytes in {:?}; they survive {}", report.bytes, report.elapsed, report.survives);

    // One of the three may go: the two that are left are a majority, and know what was put last.
    three.stop()?;
    let bytes = client.get_bytes(&name)?;
    println!("client: got {:?} with one server gone", String::from_utf8_lossy(&bytes));
    client.delete(&name, 2)?;
    for server in client.live().collect::<Vec<_>>() {
        let blobs = client.stat(server)?.blobs;
        println!("client: {} has {blobs} blob", client.name(server));
    }
    drop(client);
    one.stop()?;
    two.stop()?;
    Ok(())
}

/// A server with threads of its own; the pool is made if the file is not there.
fn serve(device: &Context, file: &Path, token: &Token) -> Result<Server, Box<dyn Error>> {
    let port = Port::take(device, 0)?;
    let (pool, _made) = open_or_make(file, Some(SIZE), SIZE, None)?;
    let options = ServerOptions::new(token.clone());
    let server = Server::start(port, pool, options)?;
    println!("server: {} at {}", file.display(), server.address());
    Ok(server)
}
