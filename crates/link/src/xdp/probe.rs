//! The bare round trip of AF_XDP: what the path itself costs, to hold links and engines against.
//!
//! One frame, built beforehand, goes through the rings and the kernel and comes back, and is copied out at each
//! end, as a socket would do it: fetching bytes that the other core has written is part of the path. No header is
//! written or looked at, nothing is looked up. The same rings as the link's, so that only what the link adds
//! differs.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::frame::{Fields, HEADER_ROOM};
use super::neighbour::Way;
use super::ring::{FRAME, Frame};
use super::{BATCH, Config, XdpLink};

/// One end of the bare path.
#[derive(Debug)]
pub struct Bare {
    link: XdpLink,
    frame: Vec<u8>,
    received: Vec<u8>,
}

impl Bare {
    /// Takes the interface of `config`, and makes a frame with `len` bytes of UDP payload from `src` to `dst`.
    ///
    /// # Errors
    /// As [`XdpLink::open`]; `TimedOut` if the neighbour does not answer.
    pub fn open(config: &Config, src: IpAddr, dst: IpAddr, len: usize) -> io::Result<Self> {
        let mut link = XdpLink::open(config)?;
        let start = Instant::now();
        let template = loop {
            link.take_news()?;
            let destination = link.neighbours.find(src, dst)?.ok_or(io::ErrorKind::InvalidInput)?;
            if matches!(destination.way, Way::Ready) {
                break destination.template.clone();
            }
            if start.elapsed() > Duration::from_secs(5) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::yield_now();
        };
        let mut room = [0; HEADER_ROOM];
        let port = config.port;
        template.write(&mut room, Fields { src_port: port, dst_port: port, tos: 0, ttl: 64, len });
        let mut frame = room[template.start()..].to_vec();
        frame.resize(frame.len() + len, 0x5A);
        Ok(Self { link, received: vec![0; FRAME], frame })
    }

    /// Sends so many frames with one call of the kernel, as far as it takes them at once.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room for them; or the kernel refuses.
    pub fn send(&mut self, count: u32) -> io::Result<()> {
        let socket = &mut self.link.sockets[0];
        let full = || -> io::Error { io::ErrorKind::WouldBlock.into() };
        for _ in 0..count {
            let frame: Frame = socket.take().ok_or_else(full)?;
            socket.bytes(&frame)[..self.frame.len()].copy_from_slice(&self.frame);
            socket.submit(frame, 0, self.frame.len()).map_err(|_| full())?;
        }
        socket.push().map(drop)
    }

    /// Takes up to `max` frames that have arrived; how many there were.
    pub fn receive(&mut self, max: usize) -> usize {
        let Self { link, received, .. } = self;
        link.sockets[0].receive(max, |frame| received[..frame.len()].copy_from_slice(frame))
    }

    /// One frame out and one back, spinning.
    ///
    /// # Errors
    /// `TimedOut` when none comes back in a tenth of a second.
    pub fn round_trip(&mut self) -> io::Result<()> {
        self.send(1)?;
        let mut start = None;
        for spins in 1_u32.. {
            if self.receive(1) > 0 {
                return Ok(());
            }
            if spins % 65_536 == 0 && start.get_or_insert_with(Instant::now).elapsed().as_millis() > 100 {
                break;
            }
            std::hint::spin_loop();
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Answers what has arrived, one frame for one; returns how many. To be called in a loop.
    ///
    /// # Errors
    /// If the kernel refuses to send.
    pub fn echo(&mut self) -> io::Result<usize> {
        let count = self.receive(BATCH);
        (0..count).try_for_each(|_| self.send(1))?;
        Ok(count)
    }
}
