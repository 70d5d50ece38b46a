//! What there is without any of ours: a bare UDP round trip and stream, and memcpy into the same kind of memory.

use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::machine::pin;
use crate::transport::bare::BareUdp;
use crate::transport::protocol::Test;

/// Bare sockets, the server's in a thread while they run.
pub(super) struct Bare {
    client: BareUdp,
    server: Option<BareUdp>,
}

impl Bare {
    pub(super) fn open((there, here): (IpAddr, IpAddr)) -> Result<Self, String> {
        Ok(Self {
            server: Some(BareUdp::open(there, here, true)?),
            client: BareUdp::open(here, there, false)?,
        })
    }

    fn run(&mut self, test: Test, size: u64, ms: u64) -> Result<Vec<u64>, String> {
        let mut server = self.server.take().ok_or("the bare server is gone")?;
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            pin(0);
            let served = server.serve(test, size, &told);
            (server, served)
        });
        let values = self.client.run(test, size, ms);
        stop.store(true, Ordering::Relaxed);
        let (server, served) = thread.join().map_err(|_| "the bare server panicked")?;
        self.server = Some(server);
        served?;
        values
    }

    /// Round trips, in microseconds.
    pub(super) fn round_trips(&mut self, size: u64, ms: u64) -> Result<Vec<f64>, String> {
        Ok(self.run(Test::Ping, size, ms)?.into_iter().map(|nanos| nanos as f64 / 1e3).collect())
    }

    /// One way, in GB/s.
    pub(super) fn stream(&mut self, size: u64, ms: u64) -> Result<Vec<f64>, String> {
        match self.run(Test::Stream, size, ms)?[..] {
            [operations, nanos] => Ok(vec![(operations * size) as f64 / nanos.max(1) as f64]),
            _ => Err("the bare stream said something else".into()),
        }
    }
}

/// GB/s of copying the same `size` bytes again and again, on one core.
pub(super) fn memcpy(size: u64, ms: u64) -> Vec<f64> {
    let from = vec![0x5A_u8; size as usize];
    let mut to = vec![0_u8; size as usize];
    let (begin, budget) = (Instant::now(), Duration::from_millis(ms));
    let mut bytes = 0_u64;
    while begin.elapsed() < budget {
        for _ in 0..8 {
            black_box(&mut to).copy_from_slice(black_box(&from));
            bytes += size;
        }
    }
    vec![bytes as f64 / begin.elapsed().as_nanos() as f64]
}
