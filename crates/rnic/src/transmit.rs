//! A batch of packets under construction: one buffer, equal segments, the shape that segmentation offload takes.

use remanence_wire::icrc;
use remanence_wire::packet::{self, Repr};

#[derive(Debug)]
pub(crate) struct Batch<'b> {
    buf: &'b mut [u8],
    len: usize,
    /// Size of the first packet, which all but the last must have.
    segment: usize,
    count: usize,
    max: usize,
    /// A shorter packet came, and ended the batch.
    closed: bool,
    /// Packets get an ICRC.
    icrc: bool,
    /// The IPv4 identification of the first packet, which that ICRC covers; the others follow.
    ident: u16,
}

impl<'b> Batch<'b> {
    pub(crate) const fn new(buf: &'b mut [u8], max: usize, icrc: bool, ident: u16) -> Self {
        Self { buf, len: 0, segment: 0, count: 0, max, closed: false, icrc, ident }
    }

    /// Whether a packet of `size` bytes may come next.
    #[inline]
    pub(crate) const fn admits(&self, size: usize) -> bool {
        self.count == 0
            || (!self.closed
                && self.count < self.max
                && size <= self.segment
                && self.len + size <= self.buf.len())
    }

    /// How many packets of `size` bytes it takes when it is empty.
    #[inline]
    pub(crate) fn room_for(&self, size: usize) -> u32 {
        (self.buf.len() / size).min(self.max) as u32
    }

    /// Appends a packet that [`admits`](Self::admits) let in: headers, then `payload_len` bytes that `fill`
    /// writes, then pad and ICRC. If `fill` fails the batch is as before.
    #[inline]
    pub(crate) fn push<E>(
        &mut self,
        flow: &icrc::Flow,
        repr: &Repr,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let ident = self.ident_of(self.count);
        let buf = &mut self.buf[self.len..];
        let header_len = repr.emit(buf);
        fill(&mut buf[header_len..header_len + payload_len])?;
        let size = if self.icrc {
            packet::finish(buf, header_len, payload_len, flow, ident)
        } else {
            packet::finish_without_icrc(buf, header_len, payload_len)
        };
        if self.count == 0 {
            self.segment = size;
        } else {
            self.closed = size < self.segment;
        }
        self.len += size;
        self.count += 1;
        Ok(())
    }

    /// Gives the last packet, a FLUSH of `size` bytes, the ICRC that Linux computes for one.
    #[cold]
    pub(crate) fn seal_for_linux(&mut self, flow: &icrc::Flow, size: usize) {
        if self.icrc {
            let start = self.len - size;
            let ident = self.ident_of(self.count - 1);
            icrc::seal_linux_flush(flow, ident, &mut self.buf[start..self.len]);
        }
    }

    const fn ident_of(&self, index: usize) -> u16 {
        self.ident.wrapping_add(index as u16)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn segment(&self) -> usize {
        self.segment
    }

    pub(crate) const fn count(&self) -> usize {
        self.count
    }
}
