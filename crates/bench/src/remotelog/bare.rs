//! A bare UDP round trip over loopback: two sockets, two threads that spin, nothing of ours.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A datagram that is lost on loopback: the machine is overloaded.
const PATIENCE: Duration = Duration::from_secs(2);

/// Sends datagrams of so many bytes back and forth for a while; microseconds each.
pub(super) fn round_trips(bytes: usize, burst: Duration) -> Result<Vec<f64>, String> {
    let words = |e: io::Error| format!("bare UDP: {e}");
    let open = || -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let (ours, theirs) = (open().map_err(words)?, open().map_err(words)?);
    ours.connect(theirs.local_addr().map_err(words)?).map_err(words)?;
    theirs.connect(ours.local_addr().map_err(words)?).map_err(words)?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&stop);
    let echo = std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while !stopping.load(Ordering::Relaxed) {
            match theirs.recv(&mut buffer) {
                Ok(len) => drop(theirs.send(&buffer[..len])),
                Err(_) => std::hint::spin_loop(),
            }
        }
    });
    let mut values = Vec::with_capacity(4096);
    let (message, mut buffer) = (vec![0x5a; bytes], [0; 2048]);
    let begin = Instant::now();
    let result = loop {
        let start = Instant::now();
        if start - begin >= burst {
            break Ok(values);
        }
        if let Err(e) = ours.send(&message) {
            break Err(words(e));
        }
        let lost = loop {
            match ours.recv(&mut buffer) {
                Ok(_) => break false,
                Err(_) if start.elapsed() > PATIENCE => break true,
                Err(_) => std::hint::spin_loop(),
            }
        };
        if lost {
            break Err("bare UDP: a datagram was lost on loopback; run the bench on a quieter machine".into());
        }
        values.push(start.elapsed().as_nanos() as f64 / 1e3);
    };
    stop.store(true, Ordering::Relaxed);
    let _ = echo.join();
    result
}
