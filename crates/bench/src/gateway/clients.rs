//! Clients of whatever answers a line to each command: connections of one thread, which sleeps until any of them has an answer.

use std::io::{Read as _, Write as _};
use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::erda::tcp::{At, Stream};
use crate::programs::Started;
use crate::role::Role;

/// No answer takes longer, unless a server hangs.
const PATIENCE: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };
/// Commands that are under way together while a server is filled.
const PIPELINE: u64 = 500;
/// Digits of a number.
const DIGITS: usize = 12;

/// A command, up to its number and from there on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Ask {
    head: String,
    tail: String,
}

impl Ask {
    /// In Redis' words: `VALUE` is one of so many bytes, and `NUMBER` the number.
    pub(super) fn resp(words: &[&str], value: usize) -> Self {
        let word = |word: &&str| {
            let word = word.replace("VALUE", &"x".repeat(value));
            let len = word.replace("NUMBER", &"0".repeat(DIGITS)).len();
            format!("${len}\r\n{word}\r\n")
        };
        Self::of(&format!("*{}\r\n{}", words.len(), words.iter().map(word).collect::<String>()))
    }

    /// In memcached's, of a SET.
    pub(super) fn memcached(words: &[&str], value: usize) -> Self {
        let key = words.get(1).unwrap_or(&"NUMBER");
        Self::of(&format!("set {key} 0 0 {value}\r\n{}\r\n", "x".repeat(value)))
    }

    fn of(text: &str) -> Self {
        let (head, tail) = text.split_once("NUMBER").unwrap_or((text, ""));
        Self { head: head.to_owned(), tail: tail.to_owned() }
    }

    fn put(&self, number: u64, into: &mut Vec<u8>) {
        let _ = write!(into, "{}{number:0DIGITS$}{}", self.head, self.tail);
    }
}

/// What clients do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Burst {
    /// Give the command with each number below `space`, in pipelines.
    Fill { ask: Ask, space: u64 },
    /// Give it for a while, each of so many clients one after the other, with numbers below `space`: random ones, or each once.
    Load { ask: Ask, space: u64, once: bool, clients: usize, time: Duration },
}

/// What they found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Microseconds from each command to its answer.
    pub(super) micros: Vec<f64>,
    /// Commands a second.
    pub(super) rate: f64,
}

/// Clients of one server: connections, as many as were asked for so far.
pub(crate) struct Clients {
    unix: bool,
    to: Option<At>,
    poll: OwnedFd,
    all: Vec<Client>,
}

struct Client {
    stream: Box<dyn Stream>,
    out: Vec<u8>,
    answer: Vec<u8>,
    asked: Instant,
}

impl Role for Clients {
    const WORD: &'static str = "gateway-clients";
    /// Whether they come over a Unix socket.
    type Spec = bool;
    type Here = ();
    type Peer = Vec<Started>;
    type Burst = Burst;
    type Values = Found;

    fn open(unix: bool) -> Result<(Self, ()), String> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| e.to_string())?;
        Ok((Self { unix, to: None, poll, all: Vec::new() }, ()))
    }

    fn connect(&mut self, servers: Vec<Started>) -> Result<(), String> {
        let mut all = servers.into_iter().flat_map(|server| server.at);
        self.to = all.find(|at| matches!(at, At::Unix(_)) == self.unix);
        if self.to.is_some() { Ok(()) } else { Err("the server has no such socket".into()) }
    }

    fn run(&mut self, burst: Burst) -> Result<Found, String> {
        match burst {
            Burst::Fill { ask, space } => self.fill(&ask, space).map(|()| Found::default()),
            Burst::Load { ask, space, once, clients, time } => {
                let (mut next, mut random) = (0, fastrand::Rng::new());
                self.load(&ask, clients, time, || {
                    next += 1;
                    if once { (next <= space).then(|| next - 1) } else { Some(random.u64(..space)) }
                })
            }
        }
    }
}

impl Clients {
    /// One more connection; it is the one of this number.
    fn client(&self, nonblocking: bool) -> Result<Client, String> {
        let to = self.to.as_ref().ok_or("nobody is connected")?;
        let stream = to.connect(nonblocking).map_err(|e| format!("{to} cannot be reached: {e}"))?;
        Ok(Client { stream, out: Vec::new(), answer: Vec::new(), asked: Instant::now() })
    }

    fn load(
        &mut self,
        ask: &Ask,
        clients: usize,
        time: Duration,
        mut number: impl FnMut() -> Option<u64>,
    ) -> Result<Found, String> {
        while self.all.len() < clients {
            let client = self.client(true)?;
            let data = epoll::EventData::new_u64(self.all.len() as u64);
            epoll::add(&self.poll, client.stream.as_fd(), data, epoll::EventFlags::IN)
                .map_err(|e| e.to_string())?;
            self.all.push(client);
        }
        let (begin, mut under_way, mut micros) = (Instant::now(), 0_usize, Vec::new());
        for client in &mut self.all[..clients] {
            let Some(number) = number() else { break };
            client.ask(ask, number..number + 1)?;
            under_way += 1;
        }
        let mut events = Vec::with_capacity(clients);
        while under_way > 0 {
            match epoll::wait(&self.poll, spare_capacity(&mut events), Some(&PATIENCE)) {
                Ok(0) => return Err(format!("no answer for {} s", PATIENCE.tv_sec)),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e.to_string()),
            }
            for event in events.drain(..) {
                let client = &mut self.all[event.data.u64() as usize];
                if client.hear(1)? {
                    let now = Instant::now();
                    micros.push((now - client.asked).as_nanos() as f64 / 1e3);
                    let next = if now - begin < time { number() } else { None };
                    match next {
                        Some(number) => client.ask(ask, number..number + 1)?,
                        None => under_way -= 1,
                    }
                }
            }
        }
        let rate = micros.len() as f64 / begin.elapsed().as_secs_f64();
        Ok(Found { micros, rate })
    }

    fn fill(&self, ask: &Ask, space: u64) -> Result<(), String> {
        let mut client = self.client(false)?;
        let mut from = 0;
        while from < space {
            let to = space.min(from + PIPELINE);
            client.ask(ask, from..to)?;
            while !client.hear((to - from) as usize)? {}
            from = to;
        }
        Ok(())
    }
}

impl Client {
    /// Sends a command with each of these numbers.
    fn ask(&mut self, ask: &Ask, numbers: Range<u64>) -> Result<(), String> {
        self.out.clear();
        numbers.for_each(|number| ask.put(number, &mut self.out));
        self.asked = Instant::now();
        self.stream.write_all(&self.out).map_err(|e| format!("the connection is lost: {e}"))
    }

    /// Whether so many lines have come since the last time that they had: `+OK`, `STORED` or a number each.
    fn hear(&mut self, lines: usize) -> Result<bool, String> {
        let mut chunk = [0; 4096];
        let len = self.stream.read(&mut chunk).map_err(|e| format!("the connection is lost: {e}"))?;
        if len == 0 {
            return Err("the server closed the connection".into());
        }
        self.answer.extend_from_slice(&chunk[..len]);
        let all = self.answer.iter().filter(|byte| **byte == b'\n').count();
        if all < lines {
            return Ok(false);
        }
        let text = String::from_utf8_lossy(&self.answer);
        let is_fault = |line: &&str| line.starts_with('-') || line.contains("ERROR");
        if let Some(fault) = text.lines().find(is_fault) {
            return Err(format!("the server refuses: {fault}"));
        }
        if all > lines {
            return Err(format!("{all} answers came to {lines} commands"));
        }
        self.answer.clear();
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_command_has_its_number_and_says_how_long_its_words_are() {
        let asked = |ask: Ask| {
            let mut out = Vec::new();
            ask.put(7, &mut out);
            String::from_utf8(out).expect("text")
        };
        let resp = asked(Ask::resp(&["SET", "a:NUMBER", "VALUE"], 3));
        assert_eq!(resp, "*3\r\n$3\r\nSET\r\n$14\r\na:000000000007\r\n$3\r\nxxx\r\n");
        let memcached = asked(Ask::memcached(&["SET", "a:NUMBER", "VALUE"], 3));
        assert_eq!(memcached, "set a:000000000007 0 0 3\r\nxxx\r\n");
    }

    /// Clients of a server that answers each command of each connection with this, as long as it is asked.
    fn served(answer: &'static [u8], burst: Burst) -> Result<Found, String> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let at = At::Tcp(listener.local_addr().expect("it listens"));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a client");
                std::thread::spawn(move || {
                    let mut chunk = [0; 4096];
                    while let Ok(len @ 1..) = stream.read(&mut chunk) {
                        for _ in chunk[..len].iter().filter(|byte| **byte == b'*') {
                            stream.write_all(answer).expect("a client");
                        }
                    }
                });
            }
        });
        let (mut clients, ()) = Clients::open(false).expect("they are there");
        clients.connect(vec![Started { id: 0, at: vec![at], said: serde_json::Value::Null }])?;
        clients.run(burst)
    }

    fn load(space: u64, once: bool, clients: usize) -> Burst {
        let ask = Ask::resp(&["DEL", "a:NUMBER"], 0);
        Burst::Load { ask, space, once, clients, time: Duration::from_millis(2) }
    }

    #[test]
    fn each_command_of_each_client_is_timed() {
        let found = served(b":1\r\n", load(1000, false, 16)).expect("answers");
        assert!(found.micros.len() >= 16 && found.rate > 0.0, "{found:?}");
        // However long it may take: three numbers are three commands.
        let Burst::Load { ask, space, once, clients, .. } = load(3, true, 16) else { panic!("a load") };
        let found =
            served(b":1\r\n", Burst::Load { ask, space, once, clients, time: Duration::from_secs(60) });
        assert_eq!(found.expect("answers").micros.len(), 3);
    }

    #[test]
    fn an_answer_that_is_an_error_is_one() {
        let why = served(b"-READONLY it is\r\n", load(10, false, 2)).expect_err("it refuses");
        assert_eq!(why, "the server refuses: -READONLY it is");
        let why = served(b":1\r\n:1\r\n", load(10, false, 1)).expect_err("one too many");
        assert_eq!(why, "2 answers came to 1 commands");
        let fill = Burst::Fill { ask: Ask::resp(&["SET", "a:NUMBER", "VALUE"], 8), space: 1234 };
        served(b"+OK\r\n", fill).expect("it is filled");
    }
}
