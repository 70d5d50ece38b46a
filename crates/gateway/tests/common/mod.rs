//! A gateway over a store in memory, and a client that speaks bytes.
#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
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
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no reply: {error}"),
            }
        }
    }

    pub(crate) fn run(&mut self, line: &str) -> Frame {
        self.send(format!("{line}\r\n").as_bytes());
        self.reply().expect("the gateway closed the connection")
    }
}

/// A connection by a unix socket: what was written to one is at its other end.
pub(crate) struct UnixClient(pub(crate) UnixStream);

impl UnixClient {
    pub(crate) fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("the gateway listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut client = Self(stream);
        client.send("PING\r\n");
        client.expect("+PONG\r\n");
        client
    }

    pub(crate) fn send(&mut self, lines: &str) {
        self.0.write_all(lines.as_bytes()).expect("it is read");
    }

    pub(crate) fn expect(&mut self, reply: &str) {
        let mut bytes = vec![0; reply.len()];
        self.0.read_exact(&mut bytes).expect("a reply");
        assert_eq!(String::from_utf8_lossy(&bytes), reply);
    }

    /// Whether nothing has come for it.
    pub(crate) fn has_no_reply(&mut self) -> bool {
        self.0.set_nonblocking(true).expect("a socket");
        let read = self.0.read(&mut [0]);
        self.0.set_nonblocking(false).expect("a socket");
        matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }
}

pub(crate) fn ok() -> Frame {
    Frame::Simple(b"OK".to_vec())
}

pub(crate) fn bulk(text: &str) -> Frame {
    Frame::Bulk(text.as_bytes().to_vec())
}

/// Has Prometheus' own Python library read a page, where it is installed: its parser of OpenMetrics is a strict one.
pub(crate) fn check_openmetrics(page: &str) {
    use std::process::{Command, Stdio};
    let script = "import sys\n\
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse\n\
        assert len(list(parse(sys.stdin.read()))) > 10\n";
    let mut python = Command::new("/usr/bin/python3");
    let python = python.args(["-c", script]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut python) = python else { return println!("skipped: no /usr/bin/python3") };
    python.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains("No module named 'prometheus_client'") {
        return println!("skipped: install the package python3-prometheus-client");
    }
    assert!(output.status.success(), "{error}\n{page}");
}
