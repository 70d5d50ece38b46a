//! Two rings of datagrams in memory that two processes map: one for each direction, one writer and one reader each.
//!
//! A *record* is a header of 16 bytes and the payload, at a multiple of 64 bytes so that the writer's next record
//! and the reader's current one never share a cache line. The ring is mapped twice, one copy behind the other, so
//! that every record is one piece of memory, even across the end.
//!
//! The reader waits on the header of the record that comes next: a small datagram costs the transfer of its own
//! cache lines and of no index. For that the header of the next record must be zero before a record is published:
//! the writer clears it first. The reader tells how far it has read only now and then, or when the writer asks.
//!
//! # What a peer can do to us
//! Both sides may write all of it at any time, so everything read from it is checked; what cannot be checked once
//! and for all is that the bytes of a record stay as they are while we look at them. Peers of the same user are
//! believed to keep to that: they could as well debug this process. Records from others are copied out before
//! anybody looks (see `ShmLink`), and nothing of ours is lent out in a ring that they map.
#![expect(unsafe_code, reason = "memory shared with another process, by the rules of the ring above")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// The largest payload of a record: what the link lends at a time.
pub(super) const MAX_PAYLOAD: usize = 64 << 10;
/// Bytes of a record's header.
const HEADER: usize = 16;
/// Alignment of records.
const GRANULE: usize = 64;
/// A record of the largest payload, and the next one's header.
const LARGEST: u64 = (HEADER + MAX_PAYLOAD + 2 * GRANULE) as u64;
/// The smallest ring that takes some of the largest records.
pub(super) const MIN_RING: usize = 256 << 10;
/// The largest ring that is believed to be meant.
pub(super) const MAX_RING: usize = 256 << 20;
/// The page with the control words.
const CONTROL: usize = 4096;
/// In a header word: there is a record.
const PUBLISHED: u64 = 1 << 63;

/// The words beside the bytes of one direction, each on lines of its own.
#[repr(C)]
struct Control {
    /// How far the reader has read; written by the reader.
    read: AtomicU64,
    _line0: [u64; 15],
    /// The reader sleeps, or is about to; cleared by whoever wakes it.
    asleep: AtomicU32,
    _line1: [u32; 31],
    /// The writer waits for room; cleared by the reader when it has told.
    wants_room: AtomicU32,
    _line2: [u32; 31],
}

const _: () = assert!(2 * size_of::<Control>() <= CONTROL);

/// The mappings, unmapped together.
#[derive(Debug)]
struct Mapping {
    control: NonNull<u8>,
    rings: [NonNull<u8>; 2],
    size: usize,
}

// SAFETY: plain memory, not tied to a thread; who may touch what is the two halves' business below.
unsafe impl Send for Mapping {}
// SAFETY: as above; the methods that are reached through a shared reference only use the atomic control words.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &OwnedFd, size: usize) -> io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let control =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), CONTROL, prot, MapFlags::SHARED, file, 0)? };
        let mut mapping = Self { control: non_null(control), rings: [NonNull::dangling(); 2], size: 0 };
        let mut mapped = Vec::new();
        for direction in 0..2 {
            let offset = (CONTROL + direction * size) as u64;
            match map_twice(file, offset, size) {
                Ok(ring) => mapped.push(ring),
                Err(e) => {
                    for ring in mapped {
                        unmap(ring, 2 * size);
                    }
                    return Err(e);
                }
            }
        }
        mapping.rings = [mapped[0], mapped[1]];
        mapping.size = size;
        Ok(mapping)
    }

    fn words(&self, direction: usize) -> &Control {
        // SAFETY: inside the control page (asserted above), aligned, and alive as long as `self`; only atomics.
        unsafe { self.control.cast::<Control>().add(direction).as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.control, CONTROL);
        if self.size > 0 {
            self.rings.iter().for_each(|ring| unmap(*ring, 2 * self.size));
        }
    }
}

fn non_null(address: *mut std::ffi::c_void) -> NonNull<u8> {
    NonNull::new(address.cast()).expect("mmap gives no null")
}

fn unmap(start: NonNull<u8>, len: usize) {
    // SAFETY: called once for each mapping of this file, by its owner, when nothing points into it any more.
    let _ = unsafe { rustix::mm::munmap(start.as_ptr().cast(), len) };
}

/// Maps `size` bytes of the file at `offset` twice in a row.
fn map_twice(file: &OwnedFd, offset: u64, size: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: reserves addresses that nothing else uses.
    let start = non_null(unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), 2 * size, ProtFlags::empty(), MapFlags::PRIVATE)?
    });
    for half in 0..2 {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: replaces half of the reservation just made.
        let mapped = unsafe {
            let at = start.add(half * size).as_ptr().cast();
            rustix::mm::mmap(at, size, prot, MapFlags::SHARED | MapFlags::FIXED, file, offset)
        };
        if let Err(e) = mapped {
            unmap(start, 2 * size);
            return Err(e.into());
        }
    }
    Ok(start)
}

/// Makes the memory for a pair of rings of `size` bytes each.
pub(super) fn create(size: usize) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("remanence-shm", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, (CONTROL + 2 * size) as u64)?;
    // Neither side can cut it short under the other, which would be a SIGBUS there.
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Maps the rings of a peer or our own: what we write and what we read. The one who made them writes the first.
pub(super) fn map(file: &OwnedFd, size: usize, made_by_us: bool) -> io::Result<(Writer, Reader)> {
    let sealed = rustix::fs::fcntl_get_seals(file)?;
    let len = rustix::fs::fstat(file.as_fd())?.st_size;
    let fits = size.is_power_of_two() && (MIN_RING..=MAX_RING).contains(&size);
    let whole = fits && u64::try_from(len).is_ok_and(|len| len == (CONTROL + 2 * size) as u64);
    if !whole || !sealed.contains(SealFlags::SHRINK) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a pair of rings"));
    }
    let mapping = std::sync::Arc::new(Mapping::new(file, size)?);
    let (writes, reads) = if made_by_us { (0, 1) } else { (1, 0) };
    let half = |direction| Half { mapping: std::sync::Arc::clone(&mapping), direction, at: 0 };
    Ok((Writer { half: half(writes), read: 0 }, Reader { half: half(reads), told: 0 }))
}

/// What both sides of one direction have.
#[derive(Debug)]
struct Half {
    mapping: std::sync::Arc<Mapping>,
    direction: usize,
    /// Where the next record begins; only grows.
    at: u64,
}

impl Half {
    #[inline]
    fn control(&self) -> &Control {
        self.mapping.words(self.direction)
    }

    /// The byte at a position. The `2 * size` bytes mapped behind a ring's start hold `size` bytes from there on.
    #[inline]
    fn byte(&self, at: u64) -> NonNull<u8> {
        let offset = (at & (self.mapping.size as u64 - 1)) as usize;
        // SAFETY: `offset` is below `size`, and twice that is mapped.
        unsafe { self.mapping.rings[self.direction].add(offset) }
    }

    #[inline]
    fn word(&self, at: u64) -> &AtomicU64 {
        // SAFETY: records begin at multiples of 64 and both header words are used as atomics only; the mapping
        // outlives `self`.
        unsafe { self.byte(at).cast::<AtomicU64>().as_ref() }
    }
}

/// What a record carries beside its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Envelope {
    pub(super) len: usize,
    pub(super) segment_size: usize,
    pub(super) src_port: u16,
    pub(super) tos: u8,
    pub(super) ttl: u8,
}

/// The writing side of one direction.
#[derive(Debug)]
pub(super) struct Writer {
    half: Half,
    /// How far the reader had read when we last looked.
    read: u64,
}

impl Writer {
    /// Is there room for a record of the largest payload?
    #[inline]
    pub(super) fn has_room(&mut self) -> bool {
        let size = self.half.mapping.size as u64;
        if size - (self.half.at - self.read) >= LARGEST {
            return true;
        }
        let read = self.half.control().read.load(Ordering::Acquire);
        // A reader that claims to have read what was never written is not believed.
        if (self.read..=self.half.at).contains(&read) {
            self.read = read;
        }
        size - (self.half.at - self.read) >= LARGEST
    }

    /// As [`Self::has_room`]; if not, the reader will be asked to tell when there is.
    pub(super) fn wait_for_room(&mut self) -> bool {
        self.half.control().wants_room.store(1, Ordering::Relaxed);
        // Either the reader sees the wish after its last look at the ring, or we see how far it got (`Reader::tell`).
        fence(Ordering::SeqCst);
        self.has_room()
    }

    /// How far the reader has got, as far as we know.
    pub(super) fn progress(&self) -> u64 {
        self.read
    }

    /// The place of the next payload, for which [`Self::has_room`].
    #[inline]
    pub(super) fn buffer(&mut self) -> &mut [u8] {
        let payload = self.half.byte(self.half.at + HEADER as u64);
        // SAFETY: `MAX_PAYLOAD + HEADER` is below `size`, so it is mapped behind every position. Nobody but us
        // touches it before it is published: the reader by the rules of the ring (see the head for peers that we
        // do not believe), we by the borrow of `self`.
        unsafe { std::slice::from_raw_parts_mut(payload.as_ptr(), MAX_PAYLOAD) }
    }

    /// Writes the payload by copy, for which [`Self::has_room`].
    pub(super) fn fill(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= MAX_PAYLOAD);
        let payload = self.half.byte(self.half.at + HEADER as u64);
        // SAFETY: mapped as in `buffer`; no reference to the target is made, as a peer of another user may write
        // there too.
        unsafe { payload.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Publishes the record.
    #[inline]
    pub(super) fn publish(&mut self, envelope: Envelope) {
        let Envelope { len, segment_size, src_port, tos, ttl } = envelope;
        assert!(len <= MAX_PAYLOAD && segment_size <= MAX_PAYLOAD);
        let at = self.half.at;
        let next = at + ((HEADER + len).next_multiple_of(GRANULE)) as u64;
        self.half.word(next).store(0, Ordering::Relaxed);
        let second =
            segment_size as u64 | u64::from(src_port) << 32 | u64::from(tos) << 48 | u64::from(ttl) << 56;
        self.half.word(at + 8).store(second, Ordering::Relaxed);
        self.half.word(at).store(PUBLISHED | len as u64, Ordering::Release);
        self.half.at = next;
    }

    /// Must the reader be woken? To be asked after publishing; who gets `true` wakes it.
    #[inline]
    pub(super) fn must_wake(&self) -> bool {
        // Either the reader sees the record after it said that it sleeps, or we see that it sleeps.
        fence(Ordering::SeqCst);
        let asleep = &self.half.control().asleep;
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
    }
}

/// The reading side of one direction.
#[derive(Debug)]
pub(super) struct Reader {
    half: Half,
    /// How far we have told the writer that we read.
    told: u64,
}

/// A record breaks the rules: the peer is broken or hostile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Broken;

impl Reader {
    /// Is there a record?
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.half.word(self.half.at).load(Ordering::Acquire) != 0
    }

    /// The next record, if there is one.
    #[inline]
    pub(super) fn next(&self) -> Result<Option<Envelope>, Broken> {
        let first = self.half.word(self.half.at).load(Ordering::Acquire);
        if first == 0 {
            return Ok(None);
        }
        let second = self.half.word(self.half.at + 8).load(Ordering::Relaxed);
        let (len, segment_size) = ((first & !PUBLISHED) as usize, (second & 0xFFFF_FFFF) as usize);
        if first & PUBLISHED == 0 || len > MAX_PAYLOAD || segment_size > MAX_PAYLOAD {
            return Err(Broken);
        }
        Ok(Some(Envelope {
            len,
            segment_size: segment_size.max(1),
            src_port: (second >> 32) as u16,
            tos: (second >> 48) as u8,
            ttl: (second >> 56) as u8,
        }))
    }

    /// The payload of the record that [`Self::next`] showed, where it is.
    #[inline]
    pub(super) fn payload(&self, len: usize) -> &[u8] {
        assert!(len <= MAX_PAYLOAD);
        let payload = self.half.byte(self.half.at + HEADER as u64);
        // SAFETY: mapped as in `Writer::buffer`; published, and not given back before the borrow of `self` ends, so
        // that a writer that keeps to the rules leaves it alone. The head says which writers are believed.
        unsafe { std::slice::from_raw_parts(payload.as_ptr(), len) }
    }

    /// The payload of the record that [`Self::next`] showed, copied out: for writers that are not believed.
    pub(super) fn copy_out(&self, into: &mut [u8]) {
        assert!(into.len() <= MAX_PAYLOAD);
        let payload = self.half.byte(self.half.at + HEADER as u64);
        // SAFETY: mapped; no reference to the source is made, and torn bytes are as good as any.
        unsafe { into.as_mut_ptr().copy_from_nonoverlapping(payload.as_ptr(), into.len()) };
    }

    /// Goes on behind a record of `len` bytes.
    #[inline]
    pub(super) fn advance(&mut self, len: usize) {
        self.half.at += ((HEADER + len).next_multiple_of(GRANULE)) as u64;
    }

    /// Gives what was read back to the writer, if that is much or the writer asks. True: the writer waited for it
    /// and must be woken.
    #[inline]
    pub(super) fn tell(&mut self) -> bool {
        let asked = self.half.control().wants_room.load(Ordering::Relaxed) != 0;
        if !asked && self.half.at - self.told < self.half.mapping.size as u64 / 8 {
            return false;
        }
        if self.half.at == self.told {
            return false;
        }
        self.told = self.half.at;
        self.half.control().read.store(self.told, Ordering::Release);
        asked && self.half.control().wants_room.swap(0, Ordering::SeqCst) != 0
    }

    /// Says that this side is about to sleep. Look at the ring once more after a [`sleepy_fence`].
    pub(super) fn fall_asleep(&self) {
        self.half.control().asleep.store(1, Ordering::Relaxed);
    }

    /// Says that it does not sleep any more.
    pub(super) fn wake_up(&self) {
        self.half.control().asleep.store(0, Ordering::Relaxed);
    }
}

/// Between [`Reader::fall_asleep`] and the last look at the rings; pairs with the fences of the writer.
pub(super) fn sleepy_fence() {
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(size: usize) -> ((Writer, Reader), (Writer, Reader)) {
        let file = create(size).unwrap();
        (map(&file, size, true).unwrap(), map(&file, size, false).unwrap())
    }

    fn envelope(len: usize) -> Envelope {
        Envelope { len, segment_size: len.max(1), src_port: 0xC0DE, tos: 0x6B, ttl: 7 }
    }

    fn write(writer: &mut Writer, bytes: &[u8]) -> bool {
        if !writer.has_room() {
            return false;
        }
        writer.buffer()[..bytes.len()].copy_from_slice(bytes);
        writer.publish(envelope(bytes.len()));
        true
    }

    #[test]
    fn records_of_all_sizes_cross_the_end_many_times() {
        let ((mut writer, _), (_, mut reader)) = pair(MIN_RING);
        let sizes = [0, 1, 47, 48, 49, 64, 112, 113, 4148, 60_000, MAX_PAYLOAD];
        for round in 0..200_usize {
            let len = sizes[round % sizes.len()];
            let bytes: Vec<u8> = (0..len).map(|i| (i ^ round) as u8).collect();
            assert_eq!(reader.next(), Ok(None));
            assert!(write(&mut writer, &bytes));
            assert_eq!(reader.next(), Ok(Some(envelope(len))));
            assert_eq!(reader.payload(len), bytes);
            let mut copy = vec![0; len];
            reader.copy_out(&mut copy);
            assert_eq!(copy, bytes);
            reader.advance(len);
            reader.tell();
        }
    }

    #[test]
    fn a_full_ring_has_room_again_after_the_reader_was_asked() {
        let ((mut writer, _), (_, mut reader)) = pair(MIN_RING);
        let mut written = 0_u32;
        while write(&mut writer, &written.to_be_bytes()) {
            written += 1;
        }
        assert!(written > 2000, "{written}");
        assert!(!writer.wait_for_room());
        let mut read = 0_u32;
        let mut told = 0;
        while let Some(envelope) = reader.next().unwrap() {
            assert_eq!(reader.payload(envelope.len), read.to_be_bytes());
            reader.advance(envelope.len);
            read += 1;
            told += u32::from(reader.tell());
        }
        assert_eq!((read, told), (written, 1), "the writer is woken once for its wish");
        assert!(writer.has_room());
    }

    #[test]
    fn both_directions_are_independent() {
        let ((mut a_writes, a_reads), (mut b_writes, b_reads)) = pair(MIN_RING);
        write(&mut a_writes, b"to b");
        assert_eq!(a_reads.next(), Ok(None));
        write(&mut b_writes, b"to a");
        assert_eq!((a_reads.payload(4), b_reads.payload(4)), (&b"to a"[..], &b"to b"[..]));
    }

    #[test]
    fn a_sleeping_reader_is_woken_once() {
        let ((mut writer, _), (_, reader)) = pair(MIN_RING);
        write(&mut writer, b"1");
        assert!(!writer.must_wake(), "nobody sleeps");
        reader.fall_asleep();
        write(&mut writer, b"2");
        assert!(writer.must_wake());
        assert!(!writer.must_wake());
        reader.fall_asleep();
        reader.wake_up();
        assert!(!writer.must_wake());
    }

    #[test]
    fn what_a_hostile_peer_writes_is_refused() {
        let ((mut writer, _), (_, reader)) = pair(MIN_RING);
        for first in [1, PUBLISHED | (MAX_PAYLOAD as u64 + 1), u64::MAX] {
            writer.half.word(0).store(first, Ordering::Relaxed);
            assert_eq!(reader.next(), Err(Broken), "{first:#x}");
        }
        writer.half.word(0).store(PUBLISHED | 8, Ordering::Relaxed);
        writer.half.word(8).store(u64::MAX, Ordering::Relaxed);
        assert_eq!(reader.next(), Err(Broken), "a segment size without sense");
        // A reader that claims to be ahead of the writer gains no room.
        writer.half.at = MIN_RING as u64;
        reader.half.control().read.store(u64::MAX, Ordering::Relaxed);
        assert!(!writer.has_room());
    }

    #[test]
    fn only_a_sealed_file_of_the_right_length_is_mapped() {
        let unsealed = rustix::fs::memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, (CONTROL + 2 * MIN_RING) as u64).unwrap();
        assert!(map(&unsealed, MIN_RING, false).is_err());
        let good = create(MIN_RING).unwrap();
        assert!(map(&good, MIN_RING * 2, false).is_err());
        assert!(map(&good, MIN_RING - 1, false).is_err());
        assert!(map(&good, 0, false).is_err());
        assert!(map(&good, MIN_RING, false).is_ok());
    }

    #[test]
    fn two_threads_pass_many_records_in_order() {
        let ((mut writer, _), (_, mut reader)) = pair(MIN_RING);
        let count = 300_000_u64;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for i in 0..count {
                    let len = 8 + (i % 200) as usize;
                    while !writer.has_room() {
                        std::thread::yield_now();
                    }
                    writer.buffer()[..8].copy_from_slice(&i.to_be_bytes());
                    writer.buffer()[len - 1] = i as u8;
                    writer.publish(envelope(len));
                }
            });
            for i in 0..count {
                let envelope = loop {
                    if let Some(envelope) = reader.next().unwrap() {
                        break envelope;
                    }
                    std::thread::yield_now();
                };
                assert_eq!(envelope.len, 8 + (i % 200) as usize);
                let payload = reader.payload(envelope.len);
                assert_eq!(
                    (payload[..8].to_vec(), payload[envelope.len - 1]),
                    (i.to_be_bytes().to_vec(), i as u8)
                );
                reader.advance(envelope.len);
                reader.tell();
            }
        });
    }
}
