//! One end of the transport bench: a process that does what the controller says.

use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::cabi::CAbi;
use super::ours::Ours;
use super::protocol::{Carrier, Reply, Request, Test, Where};
use crate::limits::udp::BareUdp;
use crate::limits::xdp::BareXdp;
use crate::process::answer;

/// What is open. Everything that measures is behind one lock-free hand-over: the serving thread owns it while it
/// serves, and gives it back.
enum Open {
    Ours(Box<Ours>),
    CAbi(Box<CAbi>),
    BareUdp(BareUdp),
    BareXdp(Box<BareXdp>),
}

type Serving = (Arc<AtomicBool>, JoinHandle<(Open, Result<(), String>)>);

#[derive(Default)]
struct Agent {
    open: Option<Open>,
    serving: Option<Serving>,
}

/// Serves one controller on standard input and output until it closes them.
pub fn main() -> ExitCode {
    let mut agent = Agent::default();
    answer(|request| agent.handle(request))
}

impl Agent {
    fn handle(&mut self, request: Request) -> Result<Reply, String> {
        match request {
            Request::Open { carrier, address, peer, interface } => {
                self.open(carrier, address, peer, &interface)
            }
            Request::Connect { peer, serves } => self.connect(&peer, serves),
            Request::Serve { test, size } => self.serve(test, size),
            Request::Stop => self.stop(),
            Request::Run { test, size, ms } => self.run(test, size, ms),
        }
    }

    fn open(
        &mut self,
        carrier: Carrier,
        address: IpAddr,
        peer: IpAddr,
        interface: &str,
    ) -> Result<Reply, String> {
        let open = match carrier {
            Carrier::Udp | Carrier::UdpServed | Carrier::Xdp | Carrier::Shm => {
                Open::Ours(Box::new(Ours::open(carrier, address, interface)?))
            }
            Carrier::CAbi => {
                let directory = std::env::var_os("REMANENCE_LIB").ok_or("REMANENCE_LIB is not set")?;
                Open::CAbi(Box::new(CAbi::open(directory.as_ref(), interface)?))
            }
            Carrier::BareUdp => Open::BareUdp(BareUdp::open(address)?),
            Carrier::BareXdp => Open::BareXdp(Box::new(BareXdp::new(interface, address, peer))),
        };
        let endpoint = match &open {
            Open::Ours(ours) => Where::Qp(ours.endpoint()),
            Open::CAbi(ours) => Where::Qp(ours.endpoint()),
            Open::BareUdp(bare) => Where::Socket(bare.local()),
            Open::BareXdp(_) => Where::Interface,
        };
        self.open = Some(open);
        Ok(Reply::Opened(endpoint))
    }

    fn connect(&mut self, peer: &Where, serves: bool) -> Result<Reply, String> {
        match (&mut self.open, peer) {
            (Some(Open::Ours(ours)), Where::Qp(peer)) => ours.connect(peer)?,
            (Some(Open::CAbi(ours)), Where::Qp(peer)) => ours.connect(peer)?,
            (Some(Open::BareUdp(bare)), Where::Socket(peer)) => bare.connect(*peer, serves)?,
            _ => {}
        }
        Ok(Reply::Ok)
    }

    fn serve(&mut self, test: Test, size: u64) -> Result<Reply, String> {
        let mut open = self.open.take().ok_or("nothing is open")?;
        // An AF_XDP path takes its interface when it first knows the size.
        if let Open::BareXdp(bare) = &mut open {
            bare.prepare(test, size)?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let result = match &mut open {
                    Open::Ours(ours) => ours.serve(test, size, &stop),
                    Open::CAbi(ours) => ours.serve(&stop),
                    Open::BareUdp(bare) => bare.serve(test, size, &stop),
                    Open::BareXdp(bare) => bare.serve(test, size, &stop),
                };
                (open, result)
            }
        });
        self.serving = Some((stop, thread));
        Ok(Reply::Ok)
    }

    fn stop(&mut self) -> Result<Reply, String> {
        let (stop, thread) = self.serving.take().ok_or("nothing is served")?;
        stop.store(true, Ordering::Relaxed);
        let (open, result) = thread.join().map_err(|_| "the serving thread panicked")?;
        self.open = Some(open);
        result.map(|()| Reply::Ok)
    }

    fn run(&mut self, test: Test, size: u64, ms: u64) -> Result<Reply, String> {
        let samples = match self.open.as_mut().ok_or("nothing is open")? {
            Open::Ours(ours) => {
                let samples = ours.run(test, size, ms)?;
                ours.settle();
                samples
            }
            Open::CAbi(ours) => ours.run(test, size, ms)?,
            Open::BareUdp(bare) => bare.run(test, size, ms)?,
            Open::BareXdp(bare) => {
                bare.prepare(test, size)?;
                bare.run(test, size, ms)?
            }
        };
        Ok(Reply::Samples(samples))
    }
}
