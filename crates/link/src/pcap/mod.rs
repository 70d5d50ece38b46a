//! Records what passes through a link, in a form that Wireshark opens as RoCEv2.
//!
//! A socket never shows the headers below its payload, so they are made up, exactly as they were on the wire where the
//! ICRC covers them: addresses, ports, lengths, "don't fragment", and the IPv4 identification that the kernel gives to
//! unconnected sockets. Only for received datagrams may that be unknown; [`Capture::ip_id_from`] lets someone who
//! understands the payload (the ICRC betrays the identification) fill it in.
//!
//! A disk that is full ends the recording, never the link: [`Capture::error`] tells.

mod frame;
mod pcapng;

use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::link::{Event, Link, LinkCaps, LinkStats, Outgoing, Received, SideChannel, WaitFd};
use crate::route::Interface;
use frame::{Frame, Headers};
use pcapng::Direction;

/// The hop limit written where the real one is unknown.
const DEFAULT_TTL: u8 = 64;

/// Bytes collected before they are written.
const BUFFER: usize = 256 << 10;

/// Finds the IPv4 identification of a received datagram.
pub type IpIdOf = fn(&Received<'_>) -> Option<u16>;

/// A link whose datagrams are recorded.
pub struct Capture<L: ?Sized> {
    inner: Box<L>,
    recorder: Recorder,
}

/// The recording itself, apart from the link so that both can be borrowed at once.
struct Recorder {
    out: Option<Box<dyn Write + Send>>,
    error: Option<io::Error>,
    pending: Vec<u8>,
    frame: Frame,
    ip_id_of: IpIdOf,
    port: u16,
    datagrams: u64,
}

impl<L: Link + ?Sized> Capture<L> {
    /// Records into a new file.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(inner: Box<L>, path: &Path) -> io::Result<Self> {
        let file = std::fs::File::create(path).map_err(|err| {
            io::Error::new(err.kind(), format!("cannot record to {}: {err}", path.display()))
        })?;
        Ok(Self::new(inner, Box::new(file)))
    }

    /// Records into `out`. Nothing else needs to buffer it.
    pub fn new(inner: Box<L>, out: Box<dyn Write + Send>) -> Self {
        let caps = inner.caps();
        let mut pending = Vec::with_capacity(BUFFER);
        pcapng::begin(&mut pending, caps.kind);
        let recorder = Recorder {
            out: Some(out),
            error: None,
            pending,
            frame: Frame::default(),
            ip_id_of: |rx| rx.ip_id,
            port: caps.port,
            datagrams: 0,
        };
        Self { inner, recorder }
    }

    /// Asks `find` for the IPv4 identification of received datagrams. Where it does not know either, the position in
    /// the train is written, which is what a sender with segmentation offload gives.
    #[must_use]
    pub fn ip_id_from(mut self, find: IpIdOf) -> Self {
        self.recorder.ip_id_of = find;
        self
    }

    /// Why the recording ended early, if it did.
    #[must_use]
    pub fn error(&self) -> Option<&io::Error> {
        self.recorder.error.as_ref()
    }

    /// Datagrams that the capture has recorded so far.
    #[must_use]
    pub fn datagrams(&self) -> u64 {
        self.recorder.datagrams
    }
}

impl<L: fmt::Debug + ?Sized> fmt::Debug for Capture<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture")
            .field("inner", &self.inner)
            .field("datagrams", &self.recorder.datagrams)
            .field("error", &self.recorder.error)
            .finish_non_exhaustive()
    }
}

impl Recorder {
    fn sent(&mut self, out: &Outgoing, src_port: u16, ident: u16, payload: &[u8]) {
        let src = SocketAddr::new(out.src, src_port);
        let now = now();
        let pieces = payload.chunks(out.segment_size.max(1));
        let empty = payload.is_empty().then_some(payload);
        for (index, piece) in (0u16..).zip(empty.into_iter().chain(pieces)) {
            let ip_id = ident.wrapping_add(index);
            let headers = Headers { src, dst: out.dst, tos: out.tos, ttl: out.ttl, ip_id };
            self.record(Direction::Outbound, now, &headers, piece);
        }
    }

    fn received(&mut self, rx: &Received<'_>) {
        let ip_id = (self.ip_id_of)(rx).unwrap_or(rx.train_index);
        let ttl = if rx.ttl == 0 { DEFAULT_TTL } else { rx.ttl };
        let dst = SocketAddr::new(rx.dst_ip, self.port);
        let headers = Headers { src: rx.src, dst, tos: rx.ecn, ttl, ip_id };
        self.record(Direction::Inbound, now(), &headers, rx.payload);
    }

    fn record(&mut self, direction: Direction, at: u64, headers: &Headers, payload: &[u8]) {
        if self.out.is_none() {
            return;
        }
        let frame = self.frame.build(headers, payload);
        pcapng::packet(&mut self.pending, direction, at, &[frame, payload]);
        self.datagrams += 1;
        if self.pending.len() >= BUFFER - (80 << 10) {
            self.write();
        }
    }

    fn write(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let Some(out) = &mut self.out else { return };
        if let Err(err) = out.write_all(&self.pending) {
            self.error = Some(err);
            self.out = None;
        }
        self.pending.clear();
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.write();
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl<L: Link + ?Sized> Link for Capture<L> {
    fn caps(&self) -> &LinkCaps {
        self.inner.caps()
    }

    fn ident(&self) -> u16 {
        self.inner.ident()
    }

    fn tx_buffer(&mut self) -> io::Result<&mut [u8]> {
        self.inner.tx_buffer()
    }

    fn send(&mut self, out: &Outgoing) -> io::Result<()> {
        // Recorded before it is gone (an answer must not come first in the file), and taken back if it was refused.
        let (mark, count) = (self.recorder.pending.len(), self.recorder.datagrams);
        let src_port = self.inner.caps().effective_src_port(out.src_port);
        let ident = self.inner.ident();
        let buffer = self.inner.tx_buffer()?;
        let payload = buffer.get(..out.len).ok_or(io::ErrorKind::InvalidInput)?;
        self.recorder.sent(out, src_port, ident, payload);
        let result = self.inner.send(out);
        if result.is_err() && self.recorder.pending.len() >= mark {
            self.recorder.pending.truncate(mark);
            self.recorder.datagrams = count;
        }
        result
    }

    fn send_surely(&mut self, out: &Outgoing) {
        // Never on a network: not recorded.
        self.inner.send_surely(out);
    }

    fn flush(&mut self) -> io::Result<()> {
        // After this the process may end at any time, and nothing tells a link.
        self.recorder.write();
        self.inner.flush()
    }

    fn recv(&mut self, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        let recorder = &mut self.recorder;
        let received = self.inner.recv(&mut |rx| {
            recorder.received(&rx);
            sink(rx);
        });
        if matches!(received, Ok(0)) {
            recorder.write();
        }
        received
    }

    fn wait_fds(&self, fds: &mut Vec<WaitFd>) {
        self.inner.wait_fds(fds);
    }

    fn wait_is_over(&mut self) {
        self.inner.wait_is_over();
    }

    fn prepare_wait(&mut self) -> io::Result<bool> {
        // Whoever waits has time to write, and whoever is killed while waiting leaves a whole file.
        self.recorder.write();
        self.inner.prepare_wait()
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.inner.poll_event()
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        self.inner.join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        self.inner.leave(group);
    }

    fn readdress(&mut self, interfaces: &[Interface]) {
        self.inner.readdress(interfaces);
    }

    fn path_mtu(&self, src: IpAddr, dst: IpAddr) -> usize {
        self.inner.path_mtu(src, dst)
    }

    fn side_channel(&mut self) -> Option<&mut dyn SideChannel> {
        self.inner.side_channel()
    }

    fn stats(&self) -> LinkStats {
        self.inner.stats()
    }
}

#[cfg(test)]
mod tests;
