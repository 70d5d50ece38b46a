//! The memory that we share with the kernel: the UMEM, in which frames lie, and the four rings through which
//! their ownership goes back and forth.
//!
//! Read first: the kernel's `Documentation/networking/af_xdp.rst`. A frame belongs to exactly one of: our free
//! list, the fill ring (the kernel may write it), the receive ring, us while we look at it, the transmit ring (the
//! kernel reads it), the completion ring. Whoever takes a descriptor from a ring owns its frame.
#![expect(
    unsafe_code,
    reason = "memory shared with the kernel; a frame is touched only by whom the rings made its owner"
)]

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::sys;
use crate::sys::descriptor::Descriptor;

/// Bytes of a frame: one page, the largest that needs no huge pages.
pub(super) const FRAME: usize = 4096;
/// What the kernel keeps free before a received packet (`XDP_PACKET_HEADROOM`).
pub(super) const HEADROOM: usize = 256;

/// A mapping that ends with its owner.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(len: usize, backing: Option<(RawFd, u64)>) -> io::Result<Self> {
        let (fd, offset, flags) = match backing {
            Some((fd, offset)) => (fd, offset, libc::MAP_SHARED | libc::MAP_POPULATE),
            None => (-1, 0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE),
        };
        let offset = libc::off_t::try_from(offset).expect("the rings' offsets are small");
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, offset)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A forked child has no use for it, and would keep the socket alive with it.
        // SAFETY: a mapping of ours; at worst a child keeps it.
        unsafe { libc::madvise(start, len, libc::MADV_DONTFORK) };
        Ok(Self { start: NonNull::new(start.cast()).expect("mmap gives no null"), len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours, whole, and nothing can reach it any more: what points into it is owned beside it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// One ring: entries, and the two indices that only grow. `T` is a plain structure of the kernel's.
#[derive(Debug)]
struct Ring<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
    /// Our own index: the next entry that we produce or consume.
    own: u32,
    /// The other's index when we last looked.
    seen: u32,
    _mapping: Mapping,
}

impl<T: Copy> Ring<T> {
    fn map(
        socket: &Descriptor,
        offset: u64,
        entries: u32,
        layout: &libc::xdp_ring_offset,
    ) -> io::Result<Self> {
        assert!(entries.is_power_of_two(), "the kernel's rings are powers of two");
        let at = |offset: u64| usize::try_from(offset).expect("a ring is small");
        let len = at(layout.desc) + entries as usize * size_of::<T>();
        let mapping = Mapping::new(len, Some((socket.as_raw_fd(), offset)))?;
        assert!([layout.producer, layout.consumer, layout.flags].iter().all(|word| at(*word) + 4 <= len));
        // SAFETY: the kernel's layout lies inside the mapping (just asserted; the entries by `len`), whose start
        // is page aligned, and the kernel aligns each part for its type.
        let part = |offset: u64| unsafe { mapping.start.add(at(offset)) };
        Ok(Self {
            producer: part(layout.producer).cast(),
            consumer: part(layout.consumer).cast(),
            flags: part(layout.flags).cast(),
            entries: part(layout.desc).cast(),
            mask: entries - 1,
            own: 0,
            seen: 0,
            _mapping: mapping,
        })
    }

    fn word(word: NonNull<AtomicU32>) -> &'static AtomicU32 {
        // SAFETY: lives as long as the mapping beside it; no caller keeps the reference beyond its statement.
        unsafe { word.as_ref() }
    }

    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: masked, so inside the entries that `map` measured.
        unsafe { self.entries.add((index & self.mask) as usize) }
    }

    // As the producer.

    /// Room for one more entry?
    fn has_room(&mut self) -> bool {
        if self.own.wrapping_sub(self.seen) <= self.mask {
            return true;
        }
        self.seen = Self::word(self.consumer).load(Ordering::Acquire);
        self.own.wrapping_sub(self.seen) <= self.mask
    }

    /// Writes an entry, for which [`Self::has_room`]; the kernel sees it at the next [`Self::publish`].
    fn put(&mut self, value: T) {
        debug_assert!(self.own.wrapping_sub(self.seen) <= self.mask, "the caller asked for room");
        // SAFETY: beyond what the consumer may read, hence ours alone.
        unsafe { self.entry(self.own).write(value) };
        self.own = self.own.wrapping_add(1);
    }

    fn publish(&self) {
        Self::word(self.producer).store(self.own, Ordering::Release);
    }

    /// How far the kernel has consumed.
    fn consumed(&self) -> u32 {
        Self::word(self.consumer).load(Ordering::Acquire)
    }

    /// Has the kernel consumed all that was published?
    fn drained(&self) -> bool {
        self.consumed() == self.own
    }

    fn needs_wakeup(&self) -> bool {
        Self::word(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    // As the consumer.

    fn get(&mut self) -> Option<T> {
        if self.own == self.seen {
            self.seen = Self::word(self.producer).load(Ordering::Acquire);
            if self.own == self.seen {
                return None;
            }
        }
        // SAFETY: published by the kernel (acquired above) and not released by us yet.
        let value = unsafe { self.entry(self.own).read() };
        self.own = self.own.wrapping_add(1);
        Some(value)
    }

    /// Gives what was read back to the kernel.
    fn release(&self) {
        Self::word(self.consumer).store(self.own, Ordering::Release);
    }

    /// Something published that we have not read?
    fn is_ready(&self) -> bool {
        Self::word(self.producer).load(Ordering::Acquire) != self.own
    }
}

/// A frame of the UMEM that belongs to us. Dropping one loses it: give it to [`Socket::submit`] or
/// [`Socket::free`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a frame that is not given back is lost"]
pub(super) struct Frame(u32);

/// One AF_XDP socket on one queue, with its UMEM.
#[derive(Debug)]
pub(super) struct Socket {
    fd: Descriptor,
    umem: Mapping,
    free: Vec<u32>,
    /// Received frames that wait for room in the fill ring.
    late: Vec<u32>,
    fill: Ring<u64>,
    completion: Ring<u64>,
    receive: Ring<libc::xdp_desc>,
    transmit: Ring<libc::xdp_desc>,
    /// Put on the transmit ring and not yet pushed.
    unpushed: bool,
}

// SAFETY: the pointers are into mappings that the socket owns; nothing is tied to a thread.
unsafe impl Send for Socket {}

impl Socket {
    /// Opens the socket and its rings of `entries` each, with twice as many frames; not bound yet.
    pub(super) fn open(entries: u32) -> io::Result<Self> {
        let fd = sys::xdp_socket()?;
        let frames = entries * 2;
        let umem = Mapping::new(frames as usize * FRAME, None)?;
        let registration = libc::xdp_umem_reg {
            addr: umem.start.as_ptr() as u64,
            len: umem.len as u64,
            chunk_size: u32::try_from(FRAME).expect("4096"),
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        sys::set_option(&fd, libc::XDP_UMEM_REG, &registration)?;
        for ring in
            [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING]
        {
            sys::set_option(&fd, ring, &entries)?;
        }
        let layout = sys::mmap_offsets(&fd)?;
        let offset = |offset: libc::off_t| u64::try_from(offset).expect("positive");
        let mut socket = Self {
            fill: Ring::map(&fd, libc::XDP_UMEM_PGOFF_FILL_RING, entries, &layout.fr)?,
            completion: Ring::map(&fd, libc::XDP_UMEM_PGOFF_COMPLETION_RING, entries, &layout.cr)?,
            receive: Ring::map(&fd, offset(libc::XDP_PGOFF_RX_RING), entries, &layout.rx)?,
            transmit: Ring::map(&fd, offset(libc::XDP_PGOFF_TX_RING), entries, &layout.tx)?,
            fd,
            umem,
            free: (entries..frames).collect(),
            late: Vec::new(),
            unpushed: false,
        };
        for frame in 0..entries {
            socket.fill.put(u64::from(frame) * FRAME as u64);
        }
        socket.fill.publish();
        Ok(socket)
    }

    pub(super) fn fd(&self) -> &Descriptor {
        &self.fd
    }

    /// A free frame to write, or none until the kernel has sent some.
    pub(super) fn take(&mut self) -> Option<Frame> {
        if self.free.is_empty() {
            self.reclaim();
        }
        self.free.pop().map(Frame)
    }

    /// Takes back the frames that the kernel has sent.
    fn reclaim(&mut self) {
        while let Some(address) = self.completion.get() {
            self.free.push(frame_of(address));
        }
        self.completion.release();
    }

    /// Gives an unsent frame back.
    pub(super) fn free(&mut self, frame: Frame) {
        self.free.push(frame.0);
    }

    /// The bytes of a frame of ours.
    pub(super) fn bytes(&mut self, frame: &Frame) -> &mut [u8] {
        let start = frame.0 as usize * FRAME;
        assert!(start + FRAME <= self.umem.len, "a frame of this UMEM");
        // SAFETY: inside the UMEM (asserted) and, since we hold its `Frame`, ours alone; the borrow of `self`
        // keeps it so while the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.umem.start.add(start).as_ptr(), FRAME) }
    }

    /// Puts `len` bytes from `start` of the frame on the transmit ring; the frame comes back when that is full.
    pub(super) fn submit(&mut self, frame: Frame, start: usize, len: usize) -> Result<(), Frame> {
        assert!(start + len <= FRAME);
        if !self.transmit.has_room() {
            return Err(frame);
        }
        let addr = u64::from(frame.0) * FRAME as u64 + start as u64;
        let len = u32::try_from(len).expect("a frame is small");
        self.transmit.put(libc::xdp_desc { addr, len, options: 0 });
        self.unpushed = true;
        Ok(())
    }

    /// Something submitted and not pushed?
    pub(super) fn has_unpushed(&self) -> bool {
        self.unpushed
    }

    /// Makes the kernel send what was submitted. False: it could not take all now; call again.
    pub(super) fn push(&mut self) -> io::Result<bool> {
        if !self.unpushed {
            return Ok(true);
        }
        self.transmit.publish();
        // The kernel sends a bounded batch a call, so it is called while that gets on.
        while self.transmit.needs_wakeup() && !self.transmit.drained() {
            let before = self.transmit.consumed();
            let kicked = sys::kick(self.fd.as_raw_fd());
            self.reclaim();
            match kicked {
                Ok(()) => {}
                Err(e) => match e.raw_os_error() {
                    // More than a batch, or no buffer: both say EAGAIN.
                    Some(libc::EAGAIN) if self.transmit.consumed() != before => {}
                    // The socket's, the device's or the completion ring's room is used up until it sends.
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS) => return Ok(false),
                    _ => return Err(e),
                },
            }
        }
        self.unpushed = !self.transmit.drained();
        Ok(!(self.unpushed && self.transmit.needs_wakeup()))
    }

    /// Something received that was not read?
    pub(super) fn is_ready(&self) -> bool {
        self.receive.is_ready()
    }

    /// Shows up to `max` received frames to `sink`, and gives each back to the kernel after that.
    pub(super) fn receive(&mut self, max: usize, mut sink: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        while count < max {
            let Some(desc) = self.receive.get() else { break };
            let (start, len) = (usize::try_from(desc.addr).expect("64-bit"), desc.len as usize);
            assert!(
                start % FRAME + len <= FRAME && start + len <= self.umem.len,
                "the kernel keeps to a frame"
            );
            // SAFETY: inside the UMEM (asserted); the kernel gave us the frame with the descriptor and gets it
            // back through the fill ring only below, after the slice is gone.
            sink(unsafe { std::slice::from_raw_parts(self.umem.start.add(start).as_ptr(), len) });
            // A frame that came from the fill ring fits in it; but the kernel publishes the received frame before
            // it says that the fill ring has an entry less, so that may still look full.
            self.late.push(frame_of(desc.addr));
            self.refill();
            count += 1;
        }
        if count > 0 {
            self.receive.release();
            self.fill.publish();
        }
        count
    }

    /// Gives frames that were looked at to the kernel, as far as the fill ring has room.
    fn refill(&mut self) {
        while !self.late.is_empty() && self.fill.has_room() {
            let frame = self.late.pop().expect("not empty");
            self.fill.put(u64::from(frame) * FRAME as u64);
        }
    }

    /// A driver in native mode may have run out of frames and gone to sleep.
    pub(super) fn wake_receiver(&self) {
        if self.fill.needs_wakeup() {
            // Nothing depends on the answer: the next call comes with the next look at the ring.
            let _ = sys::kick(self.fd.as_raw_fd());
        }
    }
}

/// The frame that an address of a descriptor lies in.
fn frame_of(address: u64) -> u32 {
    u32::try_from(address / FRAME as u64).expect("the UMEM is far below 16 TiB")
}
