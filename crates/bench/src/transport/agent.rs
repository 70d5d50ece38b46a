//! One end of the transport bench: spins on one carrier.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use remanence_remote::Stop;

use super::cabi::CAbi;
use super::ours::Ours;
use super::protocol::{Burst, Carrier, Spec, Where};
use crate::limits::udp::BareUdp;
use crate::limits::xdp::BareXdp;
use crate::role::{Counters, Role};

/// One end of a path.
pub(crate) struct Transport(Open);

/// What is open.
enum Open {
    Ours(Box<Ours>),
    CAbi(Box<CAbi>),
    BareUdp(BareUdp),
    BareXdp(Box<BareXdp>),
}

impl Role for Transport {
    const WORD: &'static str = "transport";
    type Spec = Spec;
    type Here = Where;
    type Peer = Where;
    type Burst = Burst;
    /// Nanoseconds of each operation, or for a burst one pair of operations and nanoseconds.
    type Values = Vec<u64>;

    fn open(spec: Spec) -> Result<(Self, Where), String> {
        let Spec { carrier, address, peer, interface, server } = spec;
        let (open, endpoint) = match carrier {
            Carrier::Udp | Carrier::UdpServed | Carrier::Xdp | Carrier::Shm => {
                let ours = Ours::open(carrier, address, &interface)?;
                let endpoint = ours.endpoint();
                (Open::Ours(Box::new(ours)), Where::Qp(endpoint))
            }
            Carrier::CAbi => {
                let directory = std::env::var_os("REMANENCE_LIB").ok_or("REMANENCE_LIB is not set")?;
                let ours = CAbi::open(directory.as_ref(), &interface)?;
                let endpoint = ours.endpoint();
                (Open::CAbi(Box::new(ours)), Where::Qp(endpoint))
            }
            Carrier::BareUdp => {
                let bare = BareUdp::open(address, server)?;
                let local = bare.local();
                (Open::BareUdp(bare), Where::Socket(local))
            }
            Carrier::BareXdp => {
                (Open::BareXdp(Box::new(BareXdp::new(&interface, address, peer))), Where::Interface)
            }
        };
        Ok((Self(open), endpoint))
    }

    fn connect(&mut self, peer: Where) -> Result<(), String> {
        match (&mut self.0, peer) {
            (Open::Ours(ours), Where::Qp(peer)) => ours.connect(&peer),
            (Open::CAbi(ours), Where::Qp(peer)) => ours.connect(&peer),
            (Open::BareUdp(bare), Where::Socket(peer)) => bare.connect(peer),
            _ => Ok(()),
        }
    }

    /// An AF_XDP path takes its interface when it first knows the size; a socket has what an earlier burst left.
    fn prepare(&mut self, burst: &Burst) -> Result<(), String> {
        match &mut self.0 {
            Open::BareXdp(bare) => bare.prepare(burst.test, burst.size),
            Open::BareUdp(bare) => bare.prepare(),
            Open::Ours(_) | Open::CAbi(_) => Ok(()),
        }
    }

    fn serve(&mut self, burst: Burst, stop: &Stop) -> Result<(), String> {
        // Who spins looks at a plain flag.
        let told = Arc::new(AtomicBool::new(false));
        let telling = Arc::clone(&told);
        let _wakes = stop.wakes(move || telling.store(true, Ordering::Relaxed));
        if stop.is_asked() {
            return Ok(());
        }
        let Burst { test, size, .. } = burst;
        match &mut self.0 {
            Open::Ours(ours) => ours.serve(test, size, &told),
            Open::CAbi(ours) => ours.serve(&told),
            Open::BareUdp(bare) => bare.serve(test, size, &told),
            Open::BareXdp(bare) => bare.serve(test, size, &told),
        }
    }

    fn run(&mut self, burst: Burst) -> Result<Vec<u64>, String> {
        self.prepare(&burst)?;
        let Burst { test, size, ms } = burst;
        match &mut self.0 {
            Open::Ours(ours) => {
                let samples = ours.run(test, size, ms)?;
                ours.settle();
                Ok(samples)
            }
            Open::CAbi(ours) => ours.run(test, size, ms),
            Open::BareUdp(bare) => bare.run(test, size, ms),
            Open::BareXdp(bare) => bare.run(test, size, ms),
        }
    }

    fn counters(&self) -> Counters {
        match &self.0 {
            Open::Ours(ours) => Counters::of(ours.device()),
            Open::CAbi(_) | Open::BareUdp(_) | Open::BareXdp(_) => Counters::default(),
        }
    }
}
