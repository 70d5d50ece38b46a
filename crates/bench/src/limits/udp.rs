//! The limit of UDP: plain connected sockets with nothing of ours on them.
//!
//! The socket calls that std lacks are this file's room of `unsafe`: each hands the kernel pointers to live
//! buffers of the stated lengths, and nothing else.
#![expect(unsafe_code, reason = "setsockopt, send and recv with offloads have no safe wrapper in std")]

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use remanence_wire::icrc;

use super::{WARM, each};
use crate::role::End;
use crate::transport::protocol::Test;

/// What streams use of the kernel, as our link does, for a report's parameters.
pub(crate) const OFFLOADS: &str =
    "UDP_SEGMENT: datagrams of 4112 bytes, 15 to a send; UDP_GRO at the receiver; 2 MiB under way at most";

/// What is sent one way: in trains of so many packets of so many bytes, of which the receiver says how far it is, and no
/// more than a window of them under way.
#[derive(Clone, Copy)]
pub(super) struct Flow {
    pub(super) packet: usize,
    pub(super) train: usize,
    pub(super) window: u64,
    report_every: u64,
}

impl Flow {
    /// Packets of a path MTU of 4096 with BTH and ICRC, so that both streams are cut alike, and as many of them as fit a
    /// datagram's length.
    const STREAM: Self = Self { packet: 4096 + 16, train: 15, window: 2 << 20, report_every: 256 << 10 };

    /// Packets of WRITEs of `size` bytes: BTH, RETH and ICRC. The window is that of the WRITEs that are compared.
    pub(super) const fn rate(size: u64) -> Self {
        let packet = 12 + 16 + size as usize + 4;
        let train = 32;
        let bytes = (packet * train) as u64;
        Self { packet, train, window: 4 * bytes, report_every: bytes }
    }

    /// What a train has of headers and ICRC of each packet.
    const FRAME: usize = 16;

    const fn of(test: Test, size: u64) -> Self {
        if matches!(test, Test::Rate) { Self::rate(size) } else { Self::STREAM }
    }

    pub(super) const fn bytes(self) -> usize {
        self.packet * self.train
    }
}

/// Silence for this long means that what was under way is lost.
const LOST_AFTER: Duration = Duration::from_millis(5);
pub(super) const SAMPLES_MAX_WAIT: Duration = Duration::from_secs(10);

/// One end: a socket that is connected to the other one's.
pub(crate) struct BareUdp {
    socket: UdpSocket,
    local: SocketAddr,
    /// It is the one that answers.
    serves: bool,
    buffer: Vec<u8>,
    framing: Framing,
}

/// What RoCEv2 does to packets: an ICRC in each, and payload that is copied from and to the memory of programs.
struct Framing {
    flow: icrc::Flow,
    memory: Vec<u8>,
    /// Where in it the next payload lies.
    at: usize,
}

impl Framing {
    /// Of what the client sends to the server.
    fn new(client: SocketAddr, server: SocketAddr) -> Self {
        let flow = icrc::Flow::new(client.ip(), server.ip(), client.port(), server.port());
        Self { flow, memory: vec![0x5A; 1 << 20], at: 0 }
    }

    fn next(&mut self, len: usize) -> &mut [u8] {
        let at = if self.at + len > self.memory.len() { 0 } else { self.at };
        self.at = at + len;
        &mut self.memory[at..at + len]
    }

    /// Makes packets of this length of what is there.
    fn seal(&mut self, train: &mut [u8], packet: usize) {
        for packet in train.chunks_mut(packet) {
            let (body, crc) = packet.split_at_mut(packet.len() - icrc::LEN);
            let payload = body.len() - (Flow::FRAME - icrc::LEN);
            body[Flow::FRAME - icrc::LEN..].copy_from_slice(self.next(payload));
            crc.copy_from_slice(&icrc::compute(&self.flow, 0, body).to_le_bytes());
        }
    }

    /// Takes what came; whether all of it is whole.
    fn open(&mut self, train: &[u8], packet: usize) -> bool {
        train.chunks(packet).all(|packet| {
            let Some((body, crc)) = packet.split_last_chunk::<{ icrc::LEN }>() else { return false };
            let Some(payload) = body.get(Flow::FRAME - icrc::LEN..) else { return false };
            let is_whole = icrc::compute(&self.flow, 0, body).to_le_bytes() == *crc;
            self.next(payload.len()).copy_from_slice(payload);
            is_whole
        })
    }
}

fn words(e: &io::Error) -> String {
    format!("bare UDP: {e}")
}

impl BareUdp {
    /// At this address, and a port that the kernel chooses.
    pub(crate) fn open(address: IpAddr, serves: bool) -> Result<Self, String> {
        let socket = UdpSocket::bind((address, 0)).map_err(|e| words(&e))?;
        socket.set_nonblocking(true).map_err(|e| words(&e))?;
        // As root these exceed the system's limit, as our own link's do; otherwise both get what they get.
        for option in [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE] {
            let _ = set(&socket, libc::SOL_SOCKET, option, 16 << 20);
        }
        set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1).map_err(|e| words(&e))?;
        let local = socket.local_addr().map_err(|e| words(&e))?;
        Ok(Self { socket, local, serves, buffer: vec![0x5A; 1 << 16], framing: Framing::new(local, local) })
    }

    /// Where the other end finds it.
    pub(crate) const fn local(&self) -> SocketAddr {
        self.local
    }

    /// Connects it to the other end.
    pub(crate) fn connect(&mut self, peer: SocketAddr) -> Result<(), String> {
        let (client, server) = if self.serves { (peer, self.local) } else { (self.local, peer) };
        self.framing = Framing::new(client, server);
        self.socket.connect(peer).map_err(|e| words(&e))
    }

    /// Takes what an earlier run left on the way: whoever serves does so before its peer begins.
    pub(crate) fn prepare(&mut self) -> Result<(), String> {
        while self.receive(Duration::ZERO)?.is_some() {}
        Ok(())
    }

    pub(crate) fn serve(&mut self, test: Test, size: u64, stop: &AtomicBool) -> Result<(), String> {
        let flow = Flow::of(test, size);
        let (mut received, mut reported) = (0_u64, 0);
        let mut begun = false;
        while !stop.load(Ordering::Relaxed) {
            let len = match self.socket.recv(&mut self.buffer) {
                Ok(len) => len,
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
            if test == Test::Framed {
                match self.framing.open(&self.buffer[..len], flow.packet) {
                    true => begun = true,
                    // The kernel had still held what an earlier run had sent.
                    false if !begun => continue,
                    false => return Err("bare UDP: a packet came that is not as it was sent".into()),
                }
            }
            received += len as u64;
            if received - reported >= flow.report_every {
                reported = received;
                self.socket.send(&received.to_be_bytes()).map_err(|e| words(&e))?;
            }
        }
        Ok(())
    }

    fn send(&self, len: usize) -> Result<(), String> {
        self.socket.send(&self.buffer[..len]).map(drop).map_err(|e| words(&e))
    }

    /// Spins for the next datagram.
    fn receive(&mut self, patience: Duration) -> Result<Option<usize>, String> {
        let mut since = None;
        for spins in 1_u32.. {
            match self.socket.recv(&mut self.buffer) {
                Ok(len) => return Ok(Some(len)),
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
        self.prepare()?;
        if test == Test::Ping { self.ping(size as usize, budget) } else { self.stream(test, size, budget) }
    }

    fn ping(&mut self, size: usize, budget: Duration) -> Result<Vec<u64>, String> {
        (0..WARM).try_for_each(|_| self.round_trip(size))?;
        each(budget, || self.round_trip(size))
    }

    fn round_trip(&mut self, size: usize) -> Result<(), String> {
        self.send(size)?;
        match self.receive(SAMPLES_MAX_WAIT)? {
            Some(_) => Ok(()),
            None => Err("bare UDP: a datagram was lost on an idle path".into()),
        }
    }

    /// One pair: operations of `size` bytes that arrived, and nanoseconds.
    fn stream(&mut self, test: Test, size: u64, budget: Duration) -> Result<Vec<u64>, String> {
        let flow = Flow::of(test, size);
        set(&self.socket, libc::SOL_UDP, libc::UDP_SEGMENT, flow.packet as i32).map_err(|e| words(&e))?;
        // An operation of the framed stream begins with a train of its own.
        let each = if test == Test::Framed { (size as usize / 4096).max(1) } else { flow.train };
        let result = self.windowed(flow, each, test == Test::Framed, budget);
        set(&self.socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).map_err(|e| words(&e))?;
        let (bytes, nanos) = result?;
        let packets = bytes / flow.packet as u64;
        // Headers are no payload: a packet of the stream carries 4096 bytes of an operation.
        let operations = if test == Test::Rate { packets } else { packets * 4096 / size };
        Ok(vec![operations, nanos])
    }

    /// Sends trains, as long as they may be, of operations of `each` packets.
    fn windowed(
        &mut self,
        flow: Flow,
        each: usize,
        framed: bool,
        budget: Duration,
    ) -> Result<(u64, u64), String> {
        let mut left = each;
        let (mut sent, mut arrived, mut base) = (0_u64, 0_u64, 0_u64);
        let begin = Instant::now();
        let mut heard = begin;
        // A burst in which nothing arrives, as the other end has not had the core yet, says nothing of the path.
        while begin.elapsed() < budget || arrived == 0 && begin.elapsed() < SAMPLES_MAX_WAIT {
            while sent - base < flow.window {
                let train = left.min(flow.train);
                if framed {
                    self.framing.seal(&mut self.buffer[..train * flow.packet], flow.packet);
                }
                match self.send_train(train * flow.packet) {
                    Ok(bytes) => {
                        sent += bytes;
                        left = if left > train { left - train } else { each };
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(e) => return Err(words(&e)),
                }
            }
            let mut report = [0; 8];
            match self.socket.recv(&mut report) {
                Ok(8) => {
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

    fn send_train(&self, bytes: usize) -> io::Result<u64> {
        self.socket.send(&self.buffer[..bytes]).map(|len| len as u64)
    }
}

/// Both ends in this process: threads on the cores that processes of these ends keep to, which spin while something is measured.
pub(crate) struct BarePair {
    client: BareUdp,
    server: BareUdp,
}

impl BarePair {
    /// With an address for each.
    pub(crate) fn open((server, client): (IpAddr, IpAddr)) -> Result<Self, String> {
        let (mut server, mut client) = (BareUdp::open(server, true)?, BareUdp::open(client, false)?);
        server.connect(client.local())?;
        client.connect(server.local())?;
        Ok(Self { client, server })
    }

    fn run(&mut self, test: Test, size: u64, ms: u64) -> Result<Vec<u64>, String> {
        let stop = AtomicBool::new(false);
        let Self { client, server } = self;
        server.prepare()?;
        let serve = || {
            End::Server.keep();
            server.serve(test, size, &stop)
        };
        let ask = || {
            End::Client.keep();
            client.run(test, size, ms)
        };
        std::thread::scope(|scope| {
            let serving = scope.spawn(serve);
            let values = scope.spawn(ask).join();
            stop.store(true, Ordering::Relaxed);
            serving.join().map_err(|_| "the bare server panicked")??;
            values.map_err(|_| "the bare client panicked")?
        })
    }

    /// Round trips, in microseconds.
    pub(crate) fn round_trips(&mut self, size: u64, ms: u64) -> Result<Vec<f64>, String> {
        Ok(self.run(Test::Ping, size, ms)?.into_iter().map(|nanos| nanos as f64 / 1e3).collect())
    }

    /// One way, in GB/s.
    pub(crate) fn stream(&mut self, size: u64, ms: u64) -> Result<Vec<f64>, String> {
        match self.run(Test::Stream, size, ms)?[..] {
            [operations, nanos] => Ok(vec![(operations * size) as f64 / nanos.max(1) as f64]),
            _ => Err("the bare stream said something else".into()),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_framed_is_looked_at_whole() {
        let [client, server] = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let (mut from, mut to) = (Framing::new(client, server), Framing::new(client, server));
        from.memory.iter_mut().zip(0_u32..).for_each(|(byte, n)| *byte = (n / 7) as u8);
        let packet = Flow::STREAM.packet;
        let mut train = vec![0; 15 * packet];
        from.seal(&mut train, packet);
        assert!(to.open(&train, packet));
        assert_eq!(to.memory[..15 * 4096], from.memory[..15 * 4096]);
        for at in [0, 12, packet - 1, 14 * packet + 100] {
            let mut torn = train.clone();
            torn[at] ^= 4;
            assert!(!to.open(&torn, packet), "byte {at}");
        }
        assert!(!to.open(&train[..train.len() - 1], packet), "one is cut off");
    }

    #[test]
    fn pairs_are_measured_side_by_side() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let [mut one, mut other] =
            [(); 2].map(|()| BarePair::open((loopback, loopback)).expect("ports are free"));
        assert_ne!(one.server.local(), other.server.local());
        std::thread::scope(|scope| {
            let streams = scope.spawn(|| one.stream(64 << 10, 1));
            let trips = other.round_trips(64, 1).expect("round trips");
            assert!(trips.iter().all(|micros| *micros > 0.0) && !trips.is_empty());
            let rate = streams.join().expect("no panic").expect("a stream");
            assert!(rate[0] > 0.0, "{rate:?}");
        });
        let flow = one.client.framing.flow;
        assert_eq!(flow, one.server.framing.flow, "both seal and open for the same two ports");
    }

    #[test]
    fn what_an_earlier_run_left_is_no_part_of_the_next_one() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let mut pair = BarePair::open((loopback, loopback)).expect("ports are free");
        pair.client.send(100).expect("it is sent");
        let values = pair.run(Test::Framed, 64 << 10, 1).expect("a stream");
        assert!(values[0] > 0, "{values:?}");
    }

    #[test]
    fn what_a_stranger_sends_is_not_received() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let mut pair = BarePair::open((loopback, loopback)).expect("ports are free");
        let stranger = UdpSocket::bind((loopback, 0)).expect("a port");
        stranger.send_to(b"hello", pair.client.local()).expect("it is sent");
        assert_eq!(pair.client.receive(Duration::from_millis(1)), Ok(None));
    }
}
