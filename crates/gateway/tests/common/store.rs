//! A live Erda server as a process of its own: this test binary, started again as one of its tests.

use std::io::Read as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use remanence_effort::{Process, again};
use remanence_gateway::live::Connector;
use remanence_kv_live::{ConnectOptions, Server, ServerOptions, Stop};
use remanence_verbs::Context;

use crate::common::PATIENCE;

const FILE: &str = "REMANENCE_GATEWAY_TEST_FILE";
const ADDRESS: &str = "REMANENCE_GATEWAY_TEST_ADDRESS";

/// A device at a loopback address of this test's own.
pub(crate) fn context(ip: &str) -> Context {
    Context::open(remanence_verbs::Options::udp(ip.parse().unwrap())).unwrap()
}

/// What the server's process does: the test that is named so calls it, and nothing else.
pub(crate) fn serve() {
    let (Ok(file), Ok(address)) = (std::env::var(FILE), std::env::var(ADDRESS)) else { return };
    let address: SocketAddr = address.parse().unwrap();
    // A process that was killed may still be on its way out of the port.
    let mut server = loop {
        let options = ServerOptions::file(&file).size(16 << 20).port(address.port());
        match Server::bind(&context(&address.ip().to_string()), options) {
            Ok(server) => break server,
            Err(error) => println!("not yet: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let stop = Stop::new();
    let asked = stop.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        asked.ask();
    });
    println!("ready {}", server.addr());
    server.run(&stop).unwrap();
}

pub(crate) struct Served {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
}

impl Served {
    /// Starts the server; port 0 is one that is free.
    pub(crate) fn start(file: &Path, address: SocketAddr) -> Self {
        let mut command = again("store::the_server_of_these_tests");
        command.env(FILE, file).env(ADDRESS, address.to_string()).stdin(Stdio::piped());
        let mut process = Process::start(&mut command);
        let address = process.after("ready ").expect("the server ended").parse().unwrap();
        Self { process, address }
    }

    /// SIGKILL, and its end.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }
}

pub(crate) fn connector(context: &Context, to: SocketAddr) -> Connector {
    Connector::new(context, to, ConnectOptions::default().patience(PATIENCE))
}
