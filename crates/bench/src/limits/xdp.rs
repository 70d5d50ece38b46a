//! The limit of AF_XDP: rings that carry bare frames, without the engine.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use remanence_link::xdp::probe::Bare;

use super::udp::{Flow, SAMPLES_MAX_WAIT};
use super::{WARM, each};
use crate::transport::protocol::Test;

/// AF_XDP rings that carry bare frames, without the engine.
pub(crate) struct BareXdp {
    interface: String,
    address: IpAddr,
    peer: IpAddr,
    open: Option<(usize, Bare)>,
}

impl BareXdp {
    pub(crate) fn new(interface: &str, address: IpAddr, peer: IpAddr) -> Self {
        Self { interface: interface.to_owned(), address, peer, open: None }
    }

    /// Takes the interface, with frames of the length that the test wants.
    pub(crate) fn prepare(&mut self, test: Test, size: u64) -> Result<(), String> {
        let len = if test == Test::Rate { Flow::rate(size).packet } else { size as usize };
        if self.open.as_ref().is_none_or(|(of, _)| *of != len) {
            self.open = None;
            let config = remanence_link::xdp::Config::new(&self.interface);
            let bare = Bare::open(&config, self.address, self.peer, len).map_err(|e| e.to_string())?;
            self.open = Some((len, bare));
        }
        Ok(())
    }

    fn bare(&mut self) -> Result<&mut Bare, String> {
        self.open.as_mut().map(|(_, bare)| bare).ok_or_else(|| "not prepared".into())
    }

    pub(crate) fn serve(&mut self, test: Test, size: u64, stop: &AtomicBool) -> Result<(), String> {
        let bare = self.bare()?;
        let train = Flow::rate(size).train;
        let mut received = 0;
        while !stop.load(Ordering::Relaxed) {
            if test == Test::Rate {
                received += bare.receive(train);
                if received >= train {
                    received -= train;
                    bare.send(1).map_err(|e| e.to_string())?;
                }
            } else {
                bare.echo().map_err(|e| e.to_string())?;
            }
        }
        Ok(())
    }

    pub(crate) fn run(&mut self, test: Test, size: u64, ms: u64) -> Result<Vec<u64>, String> {
        let bare = self.bare()?;
        let budget = Duration::from_millis(ms);
        let result =
            if test == Test::Rate { rate(bare, Flow::rate(size), budget) } else { ping(bare, budget) };
        result.map_err(|e| format!("bare AF_XDP: {e}"))
    }
}

fn ping(bare: &mut Bare, budget: Duration) -> io::Result<Vec<u64>> {
    (0..WARM).try_for_each(|_| bare.round_trip())?;
    each(budget, || bare.round_trip())
}

/// One pair: packets that arrived, and nanoseconds.
fn rate(bare: &mut Bare, flow: Flow, budget: Duration) -> io::Result<Vec<u64>> {
    let trains = flow.window / flow.bytes() as u64;
    // What an earlier run left on the way.
    while bare.receive(flow.train) > 0 {}
    let (mut sent, mut arrived) = (0, 0);
    let begin = Instant::now();
    let mut heard = begin;
    // As above: who waits for the first too long is told so below.
    while begin.elapsed() < budget || arrived == 0 {
        if sent - arrived < trains {
            bare.send(flow.train as u32)?;
            sent += 1;
        }
        match bare.receive(1) {
            0 if heard.elapsed() > SAMPLES_MAX_WAIT => return Err(io::ErrorKind::TimedOut.into()),
            0 => {}
            count => (arrived, heard) = (arrived + count as u64, Instant::now()),
        }
    }
    Ok(vec![arrived * flow.train as u64, begin.elapsed().as_nanos() as u64])
}
