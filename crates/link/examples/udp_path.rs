//! What the UDP link adds to bare sockets: round trips and streams over loopback, taken in turns.
//!
//! `cargo run --release -p remanence-link --example udp_path`, optionally with the round trip's payload length. The
//! bare round trip is the cheapest that sockets allow (connected, nothing looked at), which RoCEv2 cannot use.
#![expect(unsafe_code, reason = "affinity and segmentation have no safe wrapper in std")]

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use remanence_link::host::{Seat, SteerCase, SteerRule, SteerTo};
use remanence_link::udp::{Options, UdpLink};
use remanence_link::{Link, Outgoing};

const ROUNDS: usize = 20_000;
const REPEATS: usize = 9;
const SEGMENT: usize = 4112;
const TRAIN: usize = 15 * SEGMENT;
const WINDOW: u64 = 2 << 20;
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// One end of a path that can play ping-pong.
trait End: Send {
    fn send(&mut self, len: usize);
    fn receive(&mut self) -> usize;
}

struct Connected(UdpSocket, Vec<u8>);

impl End for Connected {
    fn send(&mut self, len: usize) {
        while self.0.send(&self.1[..len]).is_err() {}
    }

    fn receive(&mut self) -> usize {
        self.0.recv(&mut self.1).unwrap_or(0)
    }
}

struct Unconnected(UdpSocket, SocketAddr, Vec<u8>);

impl End for Unconnected {
    fn send(&mut self, len: usize) {
        while self.0.send_to(&self.2[..len], self.1).is_err() {}
    }

    fn receive(&mut self) -> usize {
        self.0.recv_from(&mut self.2).map_or(0, |(len, _)| len)
    }
}

struct Linked(Box<dyn Link>, SocketAddr);

impl End for Linked {
    fn send(&mut self, len: usize) {
        let segment_size = len.min(SEGMENT);
        let out = Outgoing { src: LOCALHOST, src_port: 0, dst: self.1, tos: 2, ttl: 64, len, segment_size };
        while self.0.send(&out).is_err() {}
    }

    fn receive(&mut self) -> usize {
        let mut len = 0;
        self.0.recv(&mut |rx| len += rx.payload.len()).expect("a working link");
        len
    }
}

fn sockets() -> io::Result<(UdpSocket, UdpSocket)> {
    let (a, b) = (UdpSocket::bind((LOCALHOST, 0))?, UdpSocket::bind((LOCALHOST, 0))?);
    for socket in [&a, &b] {
        socket.set_nonblocking(true)?;
        set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 16 << 20);
    }
    Ok((a, b))
}

fn connected() -> io::Result<[Box<dyn End>; 2]> {
    let (a, b) = sockets()?;
    a.connect(b.local_addr()?)?;
    b.connect(a.local_addr()?)?;
    Ok([Box::new(Connected(a, vec![0; 1 << 16])), Box::new(Connected(b, vec![0; 1 << 16]))])
}

fn unconnected() -> io::Result<[Box<dyn End>; 2]> {
    let (a, b) = sockets()?;
    let (to_a, to_b) = (a.local_addr()?, b.local_addr()?);
    Ok([Box::new(Unconnected(a, to_b, vec![0; 1 << 16])), Box::new(Unconnected(b, to_a, vec![0; 1 << 16]))])
}

fn linked(shared: bool) -> io::Result<[Box<dyn End>; 2]> {
    let rule = SteerRule { cases: vec![SteerCase { when: Vec::new(), to: SteerTo::Slot(5) }] };
    let open = || -> io::Result<(UdpLink, u8)> {
        let seat = if shared { Some(Seat::claim(rule.clone())?) } else { None };
        let slot = seat.as_ref().map_or(0, Seat::slot);
        Ok((UdpLink::open(&Options { port: 0, seat, ..Options::new(vec![LOCALHOST]) })?, slot))
    };
    let ((mut a, slot_a), (mut b, slot_b)) = (open()?, open()?);
    for (link, slot) in [(&mut a, slot_b), (&mut b, slot_a)] {
        link.tx_buffer()?
            .chunks_mut(SEGMENT)
            .filter(|segment| segment.len() > 5)
            .for_each(|segment| segment[5] = slot);
    }
    let (to_a, to_b) = ((LOCALHOST, a.caps().port).into(), (LOCALHOST, b.caps().port).into());
    Ok([Box::new(Linked(Box::new(a), to_b)), Box::new(Linked(Box::new(b), to_a))])
}

fn set(socket: &UdpSocket, level: i32, name: i32, value: i32) {
    let value: *const i32 = &raw const value;
    // SAFETY: the kernel reads four bytes from a live `i32`; the descriptor is open as long as `socket` is.
    unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value.cast(), 4) };
}

fn pin(core: usize) {
    // SAFETY: all-zero is an empty set; the macro sets a bit inside it; the call reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

/// Nanoseconds of a round trip: the 10th and the 50th percentile.
fn round_trip([mut a, mut b]: [Box<dyn End>; 2], len: usize) -> [u64; 2] {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            while !stop.load(Ordering::Relaxed) {
                if b.receive() > 0 {
                    b.send(len);
                }
            }
        });
        pin(0);
        let mut samples = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            a.send(len);
            while a.receive() == 0 {}
            samples.push(start.elapsed().as_nanos() as u64);
        }
        stop.store(true, Ordering::Relaxed);
        samples.sort_unstable();
        [samples[ROUNDS / 10], samples[ROUNDS / 2]]
    })
}

/// GB/s of trains one way, with a window kept in shared memory.
fn stream([mut a, mut b]: [Box<dyn End>; 2]) -> f64 {
    let (stop, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            while !stop.load(Ordering::Relaxed) {
                let len = b.receive();
                if len > 0 {
                    arrived.fetch_add(len as u64, Ordering::Release);
                }
            }
        });
        pin(0);
        let start = Instant::now();
        let (mut sent, mut seen, mut moved) = (0_u64, 0, start);
        while start.elapsed() < Duration::from_millis(200) {
            let now = arrived.load(Ordering::Acquire);
            if now != seen {
                (seen, moved) = (now, Instant::now());
            }
            if sent - now < WINDOW {
                a.send(TRAIN);
                sent += TRAIN as u64;
            } else if moved.elapsed() > Duration::from_millis(2) {
                // Lost on the way.
                sent = now;
            }
        }
        let bytes = arrived.load(Ordering::Acquire);
        stop.store(true, Ordering::Relaxed);
        bytes as f64 / start.elapsed().as_secs_f64() / 1e9
    })
}

fn bare_stream() -> io::Result<[Box<dyn End>; 2]> {
    let (a, b) = sockets()?;
    set(&a, libc::SOL_UDP, libc::UDP_SEGMENT, SEGMENT as i32);
    set(&b, libc::SOL_UDP, libc::UDP_GRO, 1);
    a.connect(b.local_addr()?)?;
    Ok([Box::new(Connected(a, vec![0; 1 << 16])), Box::new(Connected(b, vec![0; 1 << 16]))])
}

fn main() -> io::Result<()> {
    let len = std::env::args().nth(1).map_or(64, |len| len.parse().expect("a length in bytes"));
    let mut best = [[u64::MAX; 2]; 4];
    let mut streams = [const { Vec::new() }; 3];
    for _ in 0..REPEATS {
        for (i, pair) in [connected()?, unconnected()?, linked(false)?, linked(true)?].into_iter().enumerate()
        {
            let [p10, p50] = round_trip(pair, len);
            best[i] = [best[i][0].min(p10), best[i][1].min(p50)];
        }
        for (i, pair) in [bare_stream()?, linked(false)?, linked(true)?].into_iter().enumerate() {
            streams[i].push(stream(pair));
        }
    }
    for (name, [p10, p50]) in
        ["bare, connected", "bare, unconnected", "link", "link, shared port"].iter().zip(best)
    {
        let ratio = p50 as f64 / best[0][1] as f64;
        println!("{name:20} {len} B round trip: best p10 {p10} ns, best p50 {p50} ns, {ratio:.3}x");
    }
    for (name, mut rates) in ["bare, connected", "link", "link, shared port"].iter().zip(streams) {
        rates.sort_by(f64::total_cmp);
        println!("{name:20} stream: median {:.2} GB/s, best {:.2}", rates[REPEATS / 2], rates[REPEATS - 1]);
    }
    Ok(())
}
