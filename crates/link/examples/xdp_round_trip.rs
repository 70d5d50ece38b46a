//! What the AF_XDP link adds to the bare path: round trips over a veth pair of its own, taken in turns.
//!
//! `cargo run --release -p remanence-link --example xdp_round_trip` (as root), optionally with the payload's length.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use remanence_link::veth::{End, Veth};
use remanence_link::xdp::probe::Bare;
use remanence_link::xdp::{Config, Mode, XdpLink};
use remanence_link::{Link, Outgoing};

const ROUNDS: usize = 20_000;

fn main() -> io::Result<()> {
    let len = std::env::args().nth(1).map_or(96, |len| len.parse().expect("a length in bytes"));
    for mode in [Mode::Generic, Mode::Native] {
        for repeat in 0..3 {
            let veth = Veth::new(1500)?;
            let config = Config { mode, ..Config::new(Veth::INTERFACE) };
            let bare = pair(
                &veth,
                |end| Bare::open(&config, end.ipv4(), end.other().ipv4(), len),
                Bare::echo,
                |b| b.round_trip(),
            )?;
            let link = pair(
                &veth,
                |end| Ok((end, Box::new(XdpLink::open(&config)?) as Box<dyn Link>)),
                |(end, link)| {
                    let count = link.recv(&mut |_| ())?;
                    (0..count).try_for_each(|_| send(link.as_mut(), *end, len))?;
                    Ok(count)
                },
                |(end, link)| {
                    send(link.as_mut(), *end, len)?;
                    while link.recv(&mut |_| ())? == 0 {
                        std::hint::spin_loop();
                    }
                    Ok(())
                },
            )?;
            let (bare, link) = (bare as f64 / 1e3, link as f64 / 1e3);
            let added = (link - bare) * 1e3;
            println!(
                "{mode} #{repeat}: bare {bare:.2} us, link {link:.2} us, {:.3}x, {added:+.0} ns",
                link / bare
            );
        }
    }
    Ok(())
}

fn send(link: &mut dyn Link, end: End, len: usize) -> io::Result<()> {
    link.tx_buffer()?[..len].fill(0x5A);
    let dst = SocketAddr::new(end.other().ipv4(), 4791);
    link.send(&Outgoing { src: end.ipv4(), src_port: 4791, dst, tos: 0, ttl: 64, len, segment_size: len })?;
    link.flush()
}

/// Median round trip in nanoseconds between two pinned threads.
fn pair<T: Send>(
    veth: &Veth,
    open: impl Fn(End) -> io::Result<T> + Sync,
    echo: impl Fn(&mut T) -> io::Result<usize> + Sync,
    round_trip: impl Fn(&mut T) -> io::Result<()> + Sync,
) -> io::Result<u64> {
    let (stop, ready) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let server = scope.spawn(|| -> io::Result<()> {
            veth.enter(End::Left)?;
            let mut end = open(End::Left)?;
            pin(0);
            ready.store(true, Ordering::Release);
            while !stop.load(Ordering::Relaxed) {
                if echo(&mut end)? == 0 {
                    std::hint::spin_loop();
                }
            }
            Ok(())
        });
        let client = scope.spawn(|| -> io::Result<u64> {
            veth.enter(End::Right)?;
            let mut end = open(End::Right)?;
            pin(1);
            while !ready.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let mut samples = Vec::with_capacity(ROUNDS);
            for _ in 0..ROUNDS {
                let start = Instant::now();
                round_trip(&mut end)?;
                samples.push(start.elapsed().as_nanos() as u64);
            }
            samples.sort_unstable();
            Ok(samples[ROUNDS / 2])
        });
        let median = client.join().expect("the client does not panic");
        stop.store(true, Ordering::Relaxed);
        server.join().expect("the server does not panic")?;
        median
    })
}

/// Pins the calling thread to a core, best effort.
fn pin(core: usize) {
    #[expect(unsafe_code, reason = "sched_setaffinity has no safe wrapper in std")]
    // SAFETY: the set is a plain bit mask of the size that is passed.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}
