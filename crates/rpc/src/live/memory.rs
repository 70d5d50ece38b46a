//! Receive buffers and message buffers in registered memory.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remanence_pmem::Region;

use super::buddy::Buddy;
use crate::core::buffers::{Body, Buffers, Packet};
use crate::header::HEADER_LEN;

/// Bytes in front of the data of every received datagram (the GRH area of UD).
pub(super) const GRH_LEN: u64 = 40;
/// Payload in a receive buffer starts on a cache line.
const LINE: u64 = 64;
/// The share of the receive buffers that must stay posted: one in so many.
const POSTED_SHARE: u32 = 4;

/// Nothing that is done under these locks can fail half way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The receive buffers.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) region: Region,
    pub(super) slots: u32,
    stride: u64,
    /// Slots that nobody holds any more, to be posted again.
    returned: Mutex<Vec<u32>>,
    /// Slots in the hands of the endpoint or its consumer.
    held: AtomicU32,
}

impl Ring {
    /// `slots` buffers for datagrams of up to `datagram` bytes.
    pub(super) fn new(slots: u32, datagram: usize) -> Result<Self, remanence_pmem::Error> {
        let stride = Self::lead() + GRH_LEN + (datagram as u64).next_multiple_of(LINE) + LINE;
        let stride = stride.next_multiple_of(LINE);
        let region = Region::anonymous(stride * u64::from(slots))?;
        let returned = Mutex::new((0..slots).collect());
        Ok(Self { region, slots, stride, returned, held: AtomicU32::new(0) })
    }

    /// Bytes in front of the GRH area, so that the payload is aligned.
    const fn lead() -> u64 {
        (LINE - (GRH_LEN + HEADER_LEN as u64) % LINE) % LINE
    }

    /// Where the GRH area of a slot begins.
    pub(super) const fn start(&self, slot: u32) -> u64 {
        slot as u64 * self.stride + Self::lead()
    }

    /// Takes the slots that may be posted.
    pub(super) fn take_returned(&self, into: &mut Vec<u32>) {
        into.append(&mut lock(&self.returned));
    }

    /// Puts slots back that could not be posted now.
    pub(super) fn put_back(&self, slots: &mut Vec<u32>) {
        lock(&self.returned).append(slots);
    }

    fn may_keep(&self) -> bool {
        self.held.load(Ordering::Relaxed) < self.slots - self.slots / POSTED_SHARE
    }
}

/// A received datagram, where the device put it. Dropping it gives the buffer back.
pub struct Received {
    ring: Arc<Ring>,
    slot: u32,
    len: u32,
}

impl Received {
    /// `len` bytes came behind the GRH area of a slot.
    pub(super) fn new(ring: &Arc<Ring>, slot: u32, len: u32) -> Self {
        ring.held.fetch_add(1, Ordering::Relaxed);
        Self { ring: Arc::clone(ring), slot, len }
    }

    fn data(&self) -> u64 {
        self.ring.start(self.slot) + GRH_LEN
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.ring.held.fetch_sub(1, Ordering::Relaxed);
        lock(&self.ring.returned).push(self.slot);
    }
}

impl Packet for Received {
    fn len(&self) -> usize {
        self.len as usize
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        assert!(at + into.len() <= self.len as usize, "beyond the datagram");
        self.ring.region.read(self.data() + at as u64, into);
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received").field("slot", &self.slot).field("len", &self.len).finish_non_exhaustive()
    }
}

/// The message buffers.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) region: Region,
    free: Arc<Mutex<Buddy>>,
}

impl Pool {
    /// `len` bytes, a power of two.
    pub(super) fn new(len: u64) -> Result<Self, remanence_pmem::Error> {
        let region = Region::anonymous(len)?;
        Ok(Self { region, free: Arc::new(Mutex::new(Buddy::new(len))) })
    }

    pub(super) fn message(&self, len: usize) -> Option<Message> {
        let len = len as u64;
        let offset = lock(&self.free).take(len)?;
        Some(Message(Arc::new(Block { pool: self.clone(), offset, len })))
    }
}

#[derive(Debug)]
struct Block {
    pool: Pool,
    offset: u64,
    len: u64,
}

impl Drop for Block {
    fn drop(&mut self) {
        lock(&self.pool.free).give(self.offset, self.len);
    }
}

/// A message buffer in registered memory. Clones are the same buffer, which goes back to its endpoint with the last.
#[derive(Clone, Debug)]
pub struct Message(Arc<Block>);

impl Message {
    /// Bytes in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len as usize
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The memory, and where in it the message begins.
    #[must_use]
    pub fn place(&self) -> (&Region, u64) {
        (&self.0.pool.region, self.0.offset)
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// They do not fit.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(
            at + bytes.len() <= self.len(),
            "{} bytes at {at} of a message of {}",
            bytes.len(),
            self.len()
        );
        self.0.pool.region.write(self.0.offset + at as u64, bytes);
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// There are not so many.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        assert!(at + into.len() <= self.len(), "{} bytes at {at} of a message of {}", into.len(), self.len());
        self.0.pool.region.read(self.0.offset + at as u64, into);
    }
}

/// The memory of a live endpoint.
#[derive(Debug)]
pub struct Live {
    pub(super) ring: Arc<Ring>,
    pub(super) pool: Pool,
}

impl Buffers for Live {
    type Packet = Received;
    type Message = Message;

    fn allocate(&mut self, len: usize) -> Option<Message> {
        self.pool.message(len)
    }

    fn copy(&mut self, packet: &Received, from: usize, len: usize, to: &mut Message, at: usize) {
        assert!(from + len <= packet.len() && at + len <= to.len(), "a fragment beyond its message");
        let (target, start) = to.place();
        packet.ring.region.copy_to(packet.data() + from as u64, target, start + at as u64, len);
    }

    fn may_keep(&self) -> bool {
        self.ring.may_keep()
    }
}

impl Body<Live> {
    /// The memory in which it lies, and where. It stays as it is for as long as the body is held.
    #[must_use]
    pub fn place(&self) -> (&Region, u64) {
        match self {
            Self::Packet(packet) => (&packet.ring.region, packet.data() + HEADER_LEN as u64),
            Self::Message { message, .. } => message.place(),
        }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// There are not so many.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        assert!(at + into.len() <= self.len(), "{} bytes at {at} of a message of {}", into.len(), self.len());
        let (region, start) = self.place();
        region.read(start + at as u64, into);
    }

    /// All of it.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.read(0, &mut bytes);
        bytes
    }
}

/// A request of these bytes, for tests of what is done with one.
#[cfg(test)]
pub(crate) fn body_of(bytes: &[u8]) -> crate::core::buffers::Body<Live> {
    let pool = Pool::new(1 << 17).expect("memory");
    let message = pool.message(bytes.len()).expect("room");
    message.write(0, bytes);
    crate::core::buffers::Body::Message { message, len: bytes.len() }
}
