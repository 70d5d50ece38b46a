//! Clients of Redis and memcached that spin: what a tuned native client of those is, so that a comparison with ours is not
//! one of waiting.
//!
//! One request under way on one connection, over TCP (`TCP_NODELAY`) or a Unix socket, no allocation on the way. Whatever speaks RESP2 is a Redis: our
//! gateway too.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use remanence_ycsb::packed::KeyValue;
use serde::{Deserialize, Serialize};

use super::load::StoreClient;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum At {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl From<SocketAddr> for At {
    fn from(addr: SocketAddr) -> Self {
        Self::Tcp(addr)
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// A connection over either.
pub(crate) trait Stream: Read + Write + AsFd + Send {}

impl Stream for TcpStream {}

impl Stream for UnixStream {}

impl At {
    /// A connection, whose calls block for no longer than an answer may take, or not at all.
    pub(crate) fn connect(&self, nonblocking: bool) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Tcp(addr) => {
                let stream = TcpStream::connect_timeout(addr, PATIENCE)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                stream.set_nonblocking(nonblocking)?;
                Ok(Box::new(stream))
            }
            Self::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                stream.set_nonblocking(nonblocking)?;
                Ok(Box::new(stream))
            }
        }
    }
}

/// A connection whose reader spins or sleeps.
struct Wire {
    stream: Box<dyn Stream>,
    spin: bool,
    /// What was received and not consumed.
    buffer: Vec<u8>,
    at: usize,
    chunk: Box<[u8]>,
}

impl Wire {
    fn connect(to: &At, spin: bool) -> io::Result<Self> {
        let stream = to.connect(spin)?;
        Ok(Self { stream, spin, buffer: Vec::new(), at: 0, chunk: vec![0; 64 << 10].into() })
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.buffer.clear();
        self.at = 0;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (stream, chunk) = (&mut self.stream, rest);
            match spin(self.spin, || stream.write(chunk))? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                sent => rest = &rest[sent..],
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        let Self { stream, chunk, .. } = self;
        let got = spin(self.spin, || stream.read(chunk))?;
        if got == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
        }
        self.buffer.extend_from_slice(&self.chunk[..got]);
        Ok(())
    }

    /// The next line, without its end.
    fn line(&mut self) -> io::Result<std::ops::Range<usize>> {
        let mut from = self.at;
        loop {
            if let Some(end) = self.buffer[from..].windows(2).position(|pair| pair == b"\r\n") {
                let line = self.at..from + end;
                self.at = line.end + 2;
                return Ok(line);
            }
            from = self.buffer.len().saturating_sub(1).max(self.at);
            self.receive()?;
        }
    }

    /// The next bytes, and the line's end behind them.
    fn bytes(&mut self, len: usize) -> io::Result<&[u8]> {
        while self.buffer.len() < self.at + len + 2 {
            self.receive()?;
        }
        let from = self.at;
        self.at += len + 2;
        Ok(&self.buffer[from..from + len])
    }

    fn text(&self, line: std::ops::Range<usize>) -> String {
        String::from_utf8_lossy(&self.buffer[line]).into_owned()
    }
}

/// Tries until the socket is ready. A socket that blocks gives up by itself, with the same errors.
fn spin(spinning: bool, mut attempt: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    let begin = Instant::now();
    let mut tries = 0_u32;
    loop {
        match attempt() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && spinning => {
                std::hint::spin_loop();
                tries += 1;
                // Whoever shall answer may be waiting for this core.
                if tries.is_multiple_of(1024) {
                    std::thread::yield_now();
                    if begin.elapsed() > PATIENCE {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
            }
            other => return other,
        }
    }
}

fn number(line: &[u8]) -> Option<i64> {
    std::str::from_utf8(line).ok()?.parse().ok()
}

/// A client of whatever speaks RESP.
pub(crate) struct Redis {
    wire: Wire,
    out: Vec<u8>,
    name: &'static str,
}

impl Redis {
    /// Connects. `name` is what errors call the server.
    ///
    /// # Errors
    /// One sentence that says what failed, and at which server.
    pub(crate) fn connect(to: &At, spin: bool, name: &'static str) -> Result<Self, String> {
        let wire = Wire::connect(to, spin).map_err(|e| unreachable_(name, to, &e))?;
        Ok(Self { wire, out: Vec::new(), name })
    }

    /// Asks, and puts a bulk answer into `value`; whether there was one, for other answers whether they are no error.
    fn ask(&mut self, parts: &[&[u8]], value: Option<&mut Vec<u8>>) -> Result<bool, String> {
        self.out.clear();
        let _ = write!(self.out, "*{}\r\n", parts.len());
        for part in parts {
            let _ = write!(self.out, "${}\r\n", part.len());
            self.out.extend_from_slice(part);
            self.out.extend_from_slice(b"\r\n");
        }
        let Self { wire, out, name } = self;
        let lost = |e: io::Error| format!("{name}: the connection is lost ({e})");
        wire.send(out).map_err(lost)?;
        let line = wire.line().map_err(lost)?;
        let body = line.start + 1..line.end;
        match wire.buffer.get(line.start) {
            Some(b'+' | b':') => Ok(true),
            Some(b'-') => Err(format!("{name} refuses: {}", wire.text(body))),
            Some(b'$') => match number(&wire.buffer[body]) {
                Some(len @ 0..) => {
                    let bytes = wire.bytes(len as usize).map_err(lost)?;
                    value.into_iter().for_each(|value| value.extend_from_slice(bytes));
                    Ok(true)
                }
                Some(_) => Ok(false),
                None => Err(format!("{name} answers something that is no RESP")),
            },
            Some(b'_') => Ok(false),
            _ => Err(format!("{name} answers {:?}, which is no RESP", wire.text(line))),
        }
    }

    /// Whether it answers.
    ///
    /// # Errors
    /// One sentence that says what failed, and at which server.
    pub(crate) fn ping(&mut self) -> Result<(), String> {
        self.ask(&[b"PING"], None).map(drop)
    }

    /// Has it begin to rewrite its log.
    ///
    /// # Errors
    /// One sentence that says what failed, and at which server.
    pub(crate) fn rewrite_log(&mut self) -> Result<(), String> {
        self.ask(&[b"BGREWRITEAOF"], None).map(drop)
    }
}

fn unreachable_(name: &str, to: &At, error: &io::Error) -> String {
    format!("{name} cannot be reached at {to} ({error}); start it, or check the address")
}

impl StoreClient for Redis {}

impl KeyValue for Redis {
    type Error = String;

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, String> {
        self.ask(&[b"GET", key], Some(value))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        self.ask(&[b"SET", key, value], None).map(drop)
    }
}

/// A client of memcached's text protocol.
pub(crate) struct Memcached {
    wire: Wire,
    out: Vec<u8>,
}

impl Memcached {
    /// Connects to the memcached at `to`; `spin`: without sleeping in waits.
    ///
    /// # Errors
    /// One sentence that says what failed, and at which server.
    pub(crate) fn connect(to: &At, spin: bool) -> Result<Self, String> {
        let wire = Wire::connect(to, spin).map_err(|e| unreachable_("memcached", to, &e))?;
        Ok(Self { wire, out: Vec::new() })
    }

    fn odd(&self, line: std::ops::Range<usize>) -> String {
        format!("memcached answers {:?}", self.wire.text(line))
    }
}

fn lost(e: io::Error) -> String {
    format!("memcached: the connection is lost ({e})")
}

impl StoreClient for Memcached {}

impl KeyValue for Memcached {
    type Error = String;

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, String> {
        self.out.clear();
        self.out.extend_from_slice(b"get ");
        self.out.extend_from_slice(key);
        self.out.extend_from_slice(b"\r\n");
        self.wire.send(&self.out).map_err(lost)?;
        let line = self.wire.line().map_err(lost)?;
        if &self.wire.buffer[line.clone()] == b"END" {
            return Ok(false);
        }
        // VALUE key flags length
        let words = &self.wire.buffer[line.clone()];
        let len = words.starts_with(b"VALUE ").then(|| words.rsplit(|b| *b == b' ').next().and_then(number));
        let Some(Some(len @ 0..)) = len else { return Err(self.odd(line)) };
        value.extend_from_slice(self.wire.bytes(len as usize).map_err(lost)?);
        let end = self.wire.line().map_err(lost)?;
        if &self.wire.buffer[end.clone()] == b"END" { Ok(true) } else { Err(self.odd(end)) }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        self.out.clear();
        self.out.extend_from_slice(b"set ");
        self.out.extend_from_slice(key);
        let _ = write!(self.out, " 0 0 {}\r\n", value.len());
        self.out.extend_from_slice(value);
        self.out.extend_from_slice(b"\r\n");
        self.wire.send(&self.out).map_err(lost)?;
        let line = self.wire.line().map_err(lost)?;
        if &self.wire.buffer[line.clone()] == b"STORED" { Ok(()) } else { Err(self.odd(line)) }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Answers one connection's requests from a script, in pieces of `piece` bytes, and returns what it was sent. One that
    /// answers byte by byte listens on a Unix socket.
    fn server(answers: Vec<&'static [u8]>, piece: usize) -> (At, std::thread::JoinHandle<Vec<Vec<u8>>>) {
        let (to, accept): (_, Box<dyn FnOnce() -> Box<dyn Stream> + Send>) = if piece == 1 {
            let name = format!("rem-bench-tcp-{}-{:p}", std::process::id(), &raw const answers);
            let path = std::env::temp_dir().join(name);
            let listener = UnixListener::bind(&path).expect("a socket");
            let to = At::Unix(path.clone());
            (
                to,
                Box::new(move || {
                    let (stream, _) = listener.accept().expect("a client");
                    std::fs::remove_file(path).expect("it is ours");
                    Box::new(stream)
                }),
            )
        } else {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
            let to = At::Tcp(listener.local_addr().expect("it listens"));
            (
                to,
                Box::new(move || {
                    let (stream, _) = listener.accept().expect("a client");
                    stream.set_nodelay(true).expect("a socket");
                    Box::new(stream)
                }),
            )
        };
        let thread = std::thread::spawn(move || {
            let mut stream = accept();
            let mut asked = Vec::new();
            for answer in answers {
                let mut request = vec![0; 4096];
                let len = stream.read(&mut request).expect("a request");
                request.truncate(len);
                asked.push(request);
                for part in answer.chunks(piece) {
                    stream.write_all(part).expect("it listens");
                }
            }
            asked
        });
        (to, thread)
    }

    #[test]
    fn redis_answers_are_read_however_they_come() {
        for (piece, spin) in [(1, true), (3, false), (4096, true)] {
            let (to, thread) = server(
                vec![b"+OK\r\n", b"$5\r\nab\r\nc\r\n", b"$-1\r\n", b"_\r\n", b"-ERR no\r\n", b"!\r\n"],
                piece,
            );
            let mut redis = Redis::connect(&to, spin, "Redis").expect("it listens");
            redis.put(b"key", b"ab\r\nc").expect("OK");
            let mut value = Vec::new();
            assert!(redis.get(b"key", &mut value).expect("a value"));
            assert_eq!(value, b"ab\r\nc");
            assert!(!redis.get(b"other", &mut value).expect("no value"));
            assert!(!redis.get(b"other", &mut value).expect("no value, RESP3"));
            assert_eq!(redis.get(b"x", &mut value).unwrap_err(), "Redis refuses: ERR no");
            assert!(redis.get(b"x", &mut value).unwrap_err().contains("no RESP"));
            assert!(redis.get(b"x", &mut value).unwrap_err().contains("the connection is lost"));
            assert_eq!(value, b"ab\r\nc", "nothing else was put into it");
            let asked = thread.join().expect("the server");
            assert_eq!(asked[0], b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nab\r\nc\r\n");
            assert_eq!(asked[1], b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n");
        }
    }

    #[test]
    fn memcached_answers_are_read_however_they_come() {
        for (piece, spin) in [(1, true), (4096, false)] {
            let (to, thread) = server(
                vec![b"STORED\r\n", b"VALUE key 0 4\r\n\r\nab\r\nEND\r\n", b"END\r\n", b"ERROR\r\n"],
                piece,
            );
            let mut memcached = Memcached::connect(&to, spin).expect("it listens");
            memcached.put(b"key", b"\r\nab").expect("STORED");
            let mut value = Vec::new();
            assert!(memcached.get(b"key", &mut value).expect("a value"));
            assert_eq!(value, b"\r\nab");
            assert!(!memcached.get(b"other", &mut value).expect("no value"));
            assert!(memcached.put(b"key", b"").unwrap_err().contains("ERROR"));
            let asked = thread.join().expect("the server");
            assert_eq!(asked[0], b"set key 0 0 4\r\n\r\nab\r\n");
            assert_eq!(asked[1], b"get key\r\n");
        }
    }
}
