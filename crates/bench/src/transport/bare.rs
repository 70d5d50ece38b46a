//! The physical limits of the paths: plain sockets and rings with nothing of ours on them.
//!
//! The socket calls that std lacks are this file's room of `unsafe`: each hands the kernel pointers to live
//! buffers of the stated lengths, and nothing else.
#![expect(unsafe_code, reason = "setsockopt, send and recv with offloads have no safe wrapper in std")]

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use remanence_link::xdp::probe::Bare;

use super::protocol::Test;

const SERVER_PORT: u16 = 4793;
const CLIENT_PORT: u16 = 4794;
/// A packet of the stream: a path MTU of 4096 with BTH and ICRC, so that both streams are cut alike.
const SEGMENT: usize = 4096 + 16;
/// Segments of one send, as many as fit a datagram's length.
const SEGMENTS: usize = 15;
/// Bytes under way at most, and after how many the receiver says how far it is.
const WINDOW: u64 = 2 << 20;
const REPORT_EVERY: u64 = 256 << 10;
/// Silence for this long means that what was under way is lost.
const LOST_AFTER: Duration = Duration::from_millis(5);
const SAMPLES_MAX_WAIT: Duration = Duration::from_secs(2);

/// Plain UDP sockets.
pub(crate) struct BareUdp {
    socket: UdpSocket,
    peer: SocketAddr,
    buffer: Vec<u8>,
}

fn words(e: &io::Error) -> String {
    format!("bare UDP: {e}")
}

impl BareUdp {
    pub(crate) fn open(address: IpAddr, peer: IpAddr, server: bool) -> Result<Self, String> {
        let (ours, theirs) = if server { (SERVER_PORT, CLIENT_PORT) } else { (CLIENT_PORT, SERVER_PORT) };
        let socket = UdpSocket::bind((address, ours)).map_err(|e| words(&e))?;
        socket.set_nonblocking(true).map_err(|e| words(&e))?;
        // As root these exceed the system's limit, as our own link's do; otherwise both get what they get.
        for option in [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE] {
            let _ = set(&socket, libc::SOL_SOCKET, option, 16 << 20);
        }
        set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1).map_err(|e| words(&e))?;
        Ok(Self { socket, peer: (peer, theirs).into(), buffer: vec![0x5A; 1 << 16] })
    }

    pub(crate) fn serve(&mut self, test: Test, stop: &AtomicBool) -> Result<(), String> {
        let (mut received, mut reported) = (0_u64, 0);
        while !stop.load(Ordering::Relaxed) {
            let len = match self.socket.recv_from(&mut self.buffer) {
                Ok((len, _)) => len,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    std::hint::spin_loop();
                    continue;
                }
                Err(e) => return Err(words(&e)),
            };
            if test == Test::Ping {
                self.send(len)?;
                continue;
            }
            received += len as u64;
            if received - reported >= REPORT_EVERY {
                reported = received;
                self.socket.send_to(&received.to_be_bytes(), self.peer).map_err(|e| words(&e))?;
            }
        }
        Ok(())
    }

    fn send(&self, len: usize) -> Result<(), String> {
        self.socket.send_to(&self.buffer[..len], self.peer).map(drop).map_err(|e| words(&e))
    }

    /// Spins for the next datagram.
    fn receive(&mut self, patience: Duration) -> Result<Option<usize>, String> {
        let mut since = None;
        for spins in 1_u32.. {
            match self.socket.recv_from(&mut self.buffer) {
                Ok((len, _)) => return Ok(Some(len)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(words(&e)),
            }
            if spins.is_multiple_of(256) && since.get_or_insert_with(Instant::now).elapsed() > patience {
                break;
            }
        }
        Ok(None)
    }

    pub(crate) fn run(&mut self, test: Test, size: u64, ms: u64) -> Result<Vec<u64>, String> {
        let budget = Duration::from_millis(ms);
        // What an earlier run left on the way.
        while self.receive(Duration::ZERO)?.is_some() {}
        if test == Test::Ping { self.ping(size as usize, budget) } else { self.stream(size, budget) }
    }

    fn ping(&mut self, size: usize, budget: Duration) -> Result<Vec<u64>, String> {
        let mut samples = Vec::with_capacity(1 << 14);
        let begin = Instant::now();
        let mut start = begin;
        while start - begin < budget {
            self.send(size)?;
            if self.receive(SAMPLES_MAX_WAIT)?.is_none() {
                return Err("bare UDP: a datagram was lost on an idle path".into());
            }
            let end = Instant::now();
            samples.push((end - start).as_nanos() as u64);
            start = end;
        }
        Ok(samples)
    }

    /// One pair: operations of `size` bytes that arrived, and nanoseconds.
    fn stream(&mut self, size: u64, budget: Duration) -> Result<Vec<u64>, String> {
        set(&self.socket, libc::SOL_UDP, libc::UDP_SEGMENT, SEGMENT as i32).map_err(|e| words(&e))?;
        let result = self.windowed(budget);
        set(&self.socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).map_err(|e| words(&e))?;
        // Headers are no payload: a segment carries 4096 bytes of an operation.
        let (bytes, nanos) = result?;
        Ok(vec![bytes / SEGMENT as u64 * 4096 / size, nanos])
    }

    fn windowed(&mut self, budget: Duration) -> Result<(u64, u64), String> {
        let (mut sent, mut arrived, mut base) = (0_u64, 0_u64, 0_u64);
        let begin = Instant::now();
        let mut heard = begin;
        while begin.elapsed() < budget {
            while sent - base < WINDOW {
                match self.send_train() {
                    Ok(bytes) => sent += bytes,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(e) => return Err(words(&e)),
                }
            }
            let mut report = [0; 8];
            match self.socket.recv_from(&mut report) {
                Ok((8, _)) => {
                    let total = u64::from_be_bytes(report);
                    // What was taken for lost may still come.
                    base = (base + total.saturating_sub(arrived)).min(sent);
                    arrived = arrived.max(total);
                    heard = Instant::now();
                }
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if heard.elapsed() > LOST_AFTER {
                        base = sent;
                        heard = Instant::now();
                    }
                }
                Err(e) => return Err(words(&e)),
            }
        }
        Ok((arrived, begin.elapsed().as_nanos() as u64))
    }

    fn send_train(&self) -> io::Result<u64> {
        self.socket.send_to(&self.buffer[..SEGMENT * SEGMENTS], self.peer).map(|len| len as u64)
    }
}

fn set(socket: &UdpSocket, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the kernel reads four bytes from a live `i32`; the descriptor is open as long as `socket` is.
    let result = unsafe {
        let value: *const i32 = &raw const value;
        libc::setsockopt(socket.as_raw_fd(), level, option, value.cast(), 4)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// AF_XDP rings.
pub(super) struct BareXdp {
    interface: String,
    address: IpAddr,
    peer: IpAddr,
    open: Option<(u64, Bare)>,
}

impl BareXdp {
    pub(super) fn new(interface: &str, address: IpAddr, peer: IpAddr) -> Self {
        Self { interface: interface.to_owned(), address, peer, open: None }
    }

    /// Takes the interface, with frames of `size`.
    pub(super) fn prepare(&mut self, size: u64) -> Result<(), String> {
        if self.open.as_ref().is_none_or(|(of, _)| *of != size) {
            self.open = None;
            let config = remanence_link::xdp::Config::new(&self.interface);
            let bare =
                Bare::open(&config, self.address, self.peer, size as usize).map_err(|e| e.to_string())?;
            self.open = Some((size, bare));
        }
        Ok(())
    }

    pub(super) fn serve(&mut self, stop: &AtomicBool) -> Result<(), String> {
        let (_, bare) = self.open.as_mut().ok_or("not prepared")?;
        while !stop.load(Ordering::Relaxed) {
            bare.echo().map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    pub(super) fn run(&mut self, ms: u64) -> Result<Vec<u64>, String> {
        let (_, bare) = self.open.as_mut().ok_or("not prepared")?;
        let budget = Duration::from_millis(ms);
        let mut samples = Vec::with_capacity(1 << 14);
        let begin = Instant::now();
        let mut start = begin;
        while start - begin < budget {
            bare.round_trip().map_err(|e| format!("bare AF_XDP: {e}"))?;
            let end = Instant::now();
            samples.push((end - start).as_nanos() as u64);
            start = end;
        }
        Ok(samples)
    }
}
