//! How a format frames what it stores: a header, a payload, and a checksum over both. As data, so that formats with other
//! bytes have one codec, and one reader that no bytes mislead.

use std::convert::Infallible;
use std::ops::Range;

use crate::layout::get_u32;
use crate::medium::Medium;

/// Where the parts of a frame lie. All integers are little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Framing {
    /// Bytes before the payload, [`HEADER_MAX`] at most.
    pub header: usize,
    /// Where a u32 says how many bytes of payload there are. Without it there are none: all is in the header.
    pub length: Option<usize>,
    /// A length that stands for none: such a frame is a mark.
    pub mark: Option<u32>,
    /// The most bytes of payload.
    pub max: usize,
    /// Where the CRC-32 lies: of a salt, if the format has one, and of all of the frame but this field.
    pub crc: usize,
    /// A frame takes a multiple of so many bytes.
    pub align: usize,
    /// Whether the checksum covers the zeros up to there.
    pub padding: bool,
}

/// The most bytes of a header.
pub const HEADER_MAX: usize = 64;

/// Why bytes are not the frame that was looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw<W> {
    /// There are zeros where a header would be, or no room for one.
    Nothing,
    /// The format finds this wrong with the header; whether its checksum fits was not looked at.
    Wrong(W),
    /// The header says more bytes than there is room for.
    Length,
    /// The checksum does not fit.
    Checksum,
}

/// What a format made of a header, and how many bytes the frame takes; or why it is none.
pub type Judged<H, W> = Result<(H, u64), Flaw<W>>;

/// Where bytes come from: a medium, bytes in memory, or a region that is reached by RDMA READs.
pub trait Source {
    /// The reason for which no bytes come.
    type Error;

    /// Fills `into` with the bytes at an offset.
    ///
    /// # Errors
    /// The bytes cannot be read.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Self::Error>;
}

impl<S: Source> Source for &mut S {
    type Error = S::Error;

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), S::Error> {
        S::read(self, offset, into)
    }
}

/// Bytes in memory, which never fail. An offset that is not in them is the caller's mistake, and panics.
impl Source for &[u8] {
    type Error = Infallible;

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Infallible> {
        into.copy_from_slice(&self[offset as usize..][..into.len()]);
        Ok(())
    }
}

/// A medium as a source, which never fails.
#[derive(Debug)]
pub struct Local<'a, M>(pub &'a M);

impl<M: Medium> Source for Local<'_, M> {
    type Error = Infallible;

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Infallible> {
        self.0.read(offset, into);
        Ok(())
    }
}

impl Framing {
    /// Bytes that a frame takes with so many of payload.
    #[must_use]
    pub const fn len(&self, payload: usize) -> u64 {
        ((self.header + payload) as u64).next_multiple_of(self.align as u64)
    }

    /// Bytes of payload that a header says; `None` if no frame has so many.
    #[must_use]
    pub fn payload(&self, header: &[u8]) -> Option<usize> {
        let Some(at) = self.length else { return Some(0) };
        let length = get_u32(header, at);
        if self.mark == Some(length) {
            return Some(0);
        }
        Some(length as usize).filter(|length| *length <= self.max)
    }

    /// Appends a frame. The header is the format's own, with the length in its place; the checksum is filled in.
    ///
    /// # Panics
    /// The header has not the bytes of one, or says another length than the payload's.
    pub fn emit(&self, salt: Option<u64>, header: &[u8], payload: &[u8], out: &mut Vec<u8>) {
        assert!(
            header.len() == self.header && self.payload(header) == Some(payload.len()),
            "a header of {} bytes for {} of payload",
            header.len(),
            payload.len()
        );
        let start = out.len();
        out.extend_from_slice(header);
        out.extend_from_slice(payload);
        out.resize(start + self.len(payload.len()) as usize, 0);
        let sum = self.checksum(salt, &out[start..], payload.len()).to_le_bytes();
        out[start + self.crc..][..4].copy_from_slice(&sum);
    }

    /// Whether these bytes are one frame, whole, and no byte more.
    #[must_use]
    pub fn is_whole(&self, salt: Option<u64>, frame: &[u8]) -> bool {
        frame.len() >= self.header
            && self.payload(frame).is_some_and(|payload| {
                self.len(payload) == frame.len() as u64
                    && self.checksum(salt, frame, payload) == get_u32(frame, self.crc)
            })
    }

    fn checksum(&self, salt: Option<u64>, frame: &[u8], payload: usize) -> u32 {
        let end = if self.padding { frame.len() } else { self.header + payload };
        let mut hasher = crc32fast::Hasher::new();
        salt.into_iter().for_each(|salt| hasher.update(&salt.to_le_bytes()));
        hasher.update(&frame[..self.crc]);
        hasher.update(&frame[self.crc + 4..end]);
        hasher.finalize()
    }

    /// Reads the frame at the start of `room`, if it is whole, lies within that, and the format finds nothing wrong with its header:
    /// what `judge` made of that, and how many bytes the frame takes. Its payload is then in `into`. No bytes make this panic, nor
    /// allocate more than the room has.
    ///
    /// # Errors
    /// The source fails.
    pub fn read<S: Source, H, W>(
        &self,
        salt: Option<u64>,
        source: &mut S,
        room: Range<u64>,
        into: &mut Vec<u8>,
        judge: impl FnOnce(&[u8]) -> Result<H, W>,
    ) -> Result<Judged<H, W>, S::Error> {
        let mut header = [0; HEADER_MAX];
        let header = &mut header[..self.header];
        let left = room.end.saturating_sub(room.start);
        if left < self.header as u64 {
            return Ok(Err(Flaw::Nothing));
        }
        source.read(room.start, header)?;
        if header.iter().all(|byte| *byte == 0) {
            return Ok(Err(Flaw::Nothing));
        }
        let judged = match judge(header) {
            Ok(judged) => judged,
            Err(wrong) => return Ok(Err(Flaw::Wrong(wrong))),
        };
        let Some(payload) = self.payload(header).filter(|payload| self.len(*payload) <= left) else {
            return Ok(Err(Flaw::Length));
        };
        let len = self.len(payload);
        into.clear();
        into.resize(len as usize, 0);
        // The header is not read again: whoever writes there meanwhile could change it.
        into[..self.header].copy_from_slice(header);
        source.read(room.start + self.header as u64, &mut into[self.header..])?;
        if !self.is_whole(salt, into) {
            return Ok(Err(Flaw::Checksum));
        }
        into.copy_within(self.header.., 0);
        into.truncate(payload);
        Ok(Ok((judged, len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each kind: a length and covered padding, a length and none, a header alone.
    const ALL: [Framing; 3] = [
        Framing {
            header: 16,
            length: Some(0),
            mark: Some(u32::MAX),
            max: 100,
            crc: 4,
            align: 8,
            padding: true,
        },
        Framing { header: 20, length: Some(4), mark: None, max: 100, crc: 16, align: 64, padding: false },
        Framing { header: 20, length: None, mark: None, max: 0, crc: 16, align: 1, padding: false },
    ];

    fn frame(framing: &Framing, salt: Option<u64>, payload: &[u8]) -> Vec<u8> {
        let mut header = vec![7; framing.header];
        if let Some(at) = framing.length {
            header[at..at + 4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        }
        let mut out = vec![1, 2, 3];
        framing.emit(salt, &header, payload, &mut out);
        out.split_off(3)
    }

    fn read(framing: &Framing, salt: Option<u64>, bytes: &[u8]) -> Result<(Vec<u8>, u64), Flaw<()>> {
        let mut into = Vec::new();
        let room = 0..bytes.len() as u64;
        let Ok(found) = framing.read(salt, &mut &*bytes, room, &mut into, |_| Ok(()));
        found.map(|((), len)| (into, len))
    }

    #[test]
    fn every_bit_that_means_something_is_covered_by_the_checksum() {
        for framing in &ALL {
            for salt in [None, Some(7)] {
                for len in [0, 1, 8, 13].into_iter().filter(|len| *len <= framing.max) {
                    let payload = vec![0x5A; len];
                    let good = frame(framing, salt, &payload);
                    assert_eq!(good.len() as u64, framing.len(len));
                    assert_eq!(read(framing, salt, &good), Ok((payload, good.len() as u64)));
                    assert!(!framing.is_whole(Some(8), &good));
                    let covered = if framing.padding { good.len() } else { framing.header + len };
                    for bit in 0..covered * 8 {
                        let mut bad = good.clone();
                        bad[bit / 8] ^= 1 << (bit % 8);
                        assert!(
                            read(framing, salt, &bad).is_err() && !framing.is_whole(salt, &bad),
                            "bit {bit}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_frame_lies_within_its_room_and_a_mark_has_no_payload() {
        let framing = &ALL[0];
        let good = frame(framing, None, &[1; 20]);
        for len in 0..good.len() {
            let expected = if len < framing.header { Flaw::Nothing } else { Flaw::Length };
            assert_eq!(read(framing, None, &good[..len]), Err(expected), "{len} bytes");
        }
        assert_eq!(read(framing, None, &[0; 64]), Err(Flaw::Nothing));
        let mut long = good.clone();
        long[..4].copy_from_slice(&101_u32.to_le_bytes());
        long.resize(200, 0);
        assert_eq!(read(framing, None, &long), Err(Flaw::Length), "no frame has so many");
        let mut mark = Vec::new();
        framing.emit(Some(3), &[0xFF; 16], &[], &mut mark);
        assert_eq!(read(framing, Some(3), &mark), Ok((Vec::new(), 16)));
        let Ok(refused) =
            framing.read(None, &mut &good[..], 0..40, &mut Vec::new(), |_| Err::<(), _>("not due"));
        assert_eq!(refused, Err(Flaw::Wrong("not due")));
    }
}
