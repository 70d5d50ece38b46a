//! Latency and throughput of a device, between two processes:
//!
//! ```text
//! verbs_perf server 127.0.0.1 &
//! verbs_perf client 127.0.0.2 127.0.0.1
//! ```
//!
//! Pin the two processes (`taskset -c 0`, `-c 1`), and compare only what was measured in one state of the machine.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use remanence_pmem::Region;
use remanence_verbs::perf::{Client, Operation, Role, Stream, serve};
use remanence_verbs::{Context, Listener, Options};

const PORT: u16 = 7471;
const MEMORY: u64 = 16 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["server", address] => server(address.parse()?),
        ["client", address, server, operations @ ..] => client(address.parse()?, server.parse()?, operations),
        _ => {
            eprintln!(
                "usage: verbs_perf server ADDRESS | verbs_perf client ADDRESS SERVER [latency|stream|send|pong ...]"
            );
            std::process::exit(2);
        }
    }
}

fn server(address: IpAddr) -> Result<(), Box<dyn Error>> {
    let context = Context::open(Options::udp(address))?;
    let listener = Listener::bind(&context, PORT, 16)?;
    println!("listening at {address}:{PORT}");
    loop {
        let Some(incoming) = listener.get_request(None) else { continue };
        let context = context.clone();
        thread::spawn(move || {
            let memory = Region::anonymous(MEMORY).expect("memory");
            if let Err(e) = serve(&context, incoming, &memory) {
                eprintln!("{e}");
            }
        });
    }
}

fn client(address: IpAddr, server: IpAddr, operations: &[&str]) -> Result<(), Box<dyn Error>> {
    let context = Context::open(Options::udp(address))?;
    let peer = SocketAddr::new(server, PORT);
    let memory = Region::anonymous(MEMORY)?;
    let wanted = |name| operations.is_empty() || operations.contains(&name);
    if wanted("latency") {
        let mut client = Client::connect(&context, peer, Role::Target, 1 << 20, &memory)?;
        client.latency(Operation::Write, 64, 2_000)?;
        for (name, operation, size) in [
            ("WRITE 64 B", Operation::Write, 64),
            ("READ 64 B", Operation::Read, 64),
            ("FETCH_ADD", Operation::FetchAdd, 8),
            ("ATOMIC WRITE", Operation::AtomicWrite, 8),
            ("FLUSH global 64 B", Operation::FlushGlobal, 64),
            ("WRITE 4 KiB", Operation::Write, 4096),
            ("WRITE 64 KiB", Operation::Write, 65_536),
        ] {
            report(name, client.latency(operation, size, 20_000)?);
        }
    }
    if wanted("stream") {
        let mut client = Client::connect(&context, peer, Role::Target, 1 << 20, &memory)?;
        for (name, operation, size, depth) in [
            ("WRITE 64 KiB stream", Operation::Write, 65_536, 16),
            ("WRITE 1 MiB stream", Operation::Write, 1 << 20, 4),
            ("READ 64 KiB stream", Operation::Read, 65_536, 16),
        ] {
            let count = (4 << 30) / u64::from(size) / 4;
            client.stream(operation, size, depth, count / 10)?;
            let stream = client.stream(operation, size, depth, count)?;
            println!("{name:22} {:8.3} GB/s", stream.gigabytes_per_second());
        }
        let stream: Stream = client.stream(Operation::Write, 64, 64, 500_000)?;
        println!("{:22} {:8.3} Mop/s", "WRITE 64 B rate", stream.mega_operations_per_second());
    }
    if wanted("send") {
        let mut client = Client::connect(&context, peer, Role::Echo, 65_536, &memory)?;
        report("SEND 64 B round trip", client.send_round_trips(64, 20_000)?);
    }
    if wanted("pong") {
        let mut client = Client::connect(&context, peer, Role::Pong, 64, &memory)?;
        report("WRITE 64 B round trip", client.write_round_trips(64, 20_000)?);
    }
    println!("{:?}\n{:?}", context.stats(), context.link_stats());
    Ok(())
}

fn report(name: &str, mut samples: Vec<Duration>) {
    samples.sort_unstable();
    let at = |quantile: f64| samples[(samples.len() as f64 * quantile) as usize].as_nanos() as f64 / 1000.0;
    println!("{name:22} p50 {:8.2} us   p99 {:8.2} us   p99.9 {:8.2} us", at(0.5), at(0.99), at(0.999));
}
