//! A gateway over a store in memory, and a client that speaks bytes.
#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use remanence_gateway::{Address, Gateway, Options};
use remanence_resp::memory::MemoryStore;
use remanence_resp::protocol::{Frame, parse_frame};

/// Longer than any loaded machine takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn options() -> Options {
    Options { listen: vec![Address::parse("127.0.0.1:0").unwrap()], threads: 2, ..Options::default() }
}

pub(crate) fn start(options: Options) -> Gateway {
    let store = MemoryStore::default();
    Gateway::start(options, |_| Ok(store.clone())).unwrap()
}

pub(crate) fn tcp(gateway: &Gateway) -> SocketAddr {
    let tcp = |address: &Address| match address {
        Address::Tcp(socket) => Some(*socket),
        Address::Unix(_) => None,
    };
    gateway.addresses().iter().find_map(tcp).unwrap()
}

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pending: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(gateway: &Gateway) -> Self {
        let stream = TcpStream::connect(tcp(gateway)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, pending: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next reply; `None` once the gateway has closed the connection.
    pub(crate) fn reply(&mut self) -> Option<Frame> {
        let mut chunk = [0; 65536];
        loop {
            if let Some((frame, len)) = parse_frame(&self.pending).expect("a reply is RESP") {
                self.pending.drain(..len);
                return Some(frame);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(count) => self.pending.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no reply: {error}"),
            }
        }
    }

    pub(crate) fn run(&mut self, line: &str) -> Frame {
        self.send(format!("{line}\r\n").as_bytes());
        self.reply().expect("the gateway closed the connection")
    }
}

pub(crate) fn ok() -> Frame {
    Frame::Simple(b"OK".to_vec())
}

pub(crate) fn bulk(text: &str) -> Frame {
    Frame::Bulk(text.as_bytes().to_vec())
}
