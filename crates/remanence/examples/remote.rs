//! Writes into a file of another process and knows that it is durable, by whatever method that process' machine needs.
//!
//! ```text
//! cargo run --release -p remanence --example remote
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::thread;

use remanence::pmem::FileOptions;
use remanence::remote::{ConnectOptions, Request, Server, ServerOptions, Session, Stop};
use remanence::verbs::{Context, Options};

const RECORD: &[u8] = b"not lost any more";

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("memory");
    let region = FileOptions::new().create(1 << 20).open(&file)?;
    let device = Context::open(Options::udp("127.0.0.1".parse()?))?;
    let mut server = Server::bind(ServerOptions::new(&device, region.clone(), 0))?;
    println!("server: {} at {}: {}", file.display(), server.addr(), server.sentence());
    let (to, stop) = (server.addr(), Stop::new());
    thread::scope(|scope| {
        let serving = scope.spawn(|| server.run(&stop));
        let done = write(to);
        stop.ask();
        serving.join().expect("the server's thread")?;
        done
    })?;
    let mut found = vec![0; RECORD.len()];
    region.read(64, &mut found);
    println!("server: {:?} is in the file", String::from_utf8_lossy(&found));
    Ok(())
}

fn write(to: SocketAddr) -> Result<(), Box<dyn Error>> {
    let mut session = Session::connect_to(to, ConnectOptions::default())?;
    // A record, and then the word that points to its end: durable in this order, so that no crash leaves a pointer to nothing.
    let plan = session.plan(&Request::append(RECORD.len() as u32))?;
    let end = 64 + RECORD.len() as u64;
    let token = session.persist(&plan, &[(64, RECORD), (0, &end.to_le_bytes())])?;
    println!("client: durable by {}", plan.recipe);
    println!("client: survives {}", token.survives());
    Ok(())
}
