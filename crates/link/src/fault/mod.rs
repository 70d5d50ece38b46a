//! A bad network, on purpose: loses, delays, duplicates, reorders and corrupts what passes through any link.
//!
//! Which datagrams suffer follows from the seed and their order alone; how long a delayed one takes is time, and hence
//! as exact as the machine is. Everything is decided for one datagram at a time. While faults are set for the sending
//! direction the link therefore sends single datagrams: a train cut by us would not carry the IPv4 identifications
//! that its ICRCs cover. To disturb a stream at full speed, set faults for the receiving direction, at either end.
//!
//! The side channel of a link is not offered: what goes there would go round the faults.
//!
//! Rates and partitions can be changed while traffic flows, through [`FaultControl`].

mod queue;

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::link::{Event, Link, LinkCaps, LinkStats, Outgoing, Received, WaitFd};
use crate::route::Interface;
use crate::sys::event::Timer;
use queue::Queue;

/// Bytes that may be held back in one direction before sending is refused, or receiving loses.
const MAX_HELD_BYTES: usize = 64 << 20;

/// What can happen to a datagram in one direction. Rates are probabilities from 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Faults {
    /// The rate at which datagrams are dropped without a trace.
    pub loss: f64,
    /// It comes twice.
    pub duplication: f64,
    /// It is held back for up to [`Faults::reorder_by`], so that later ones overtake it.
    pub reordering: f64,
    /// How long a reordered datagram is held back at most; zero stands for 1 ms.
    pub reorder_by: Duration,
    /// One of its bits is inverted. Where [`LinkCaps::reliable_bytes`] says that bytes arrive as they were sent or not
    /// at all, it vanishes instead.
    pub corruption: f64,
    /// Every datagram takes this much longer.
    pub delay: Duration,
    /// And up to this much longer still, each its own.
    pub jitter: Duration,
}

impl Faults {
    /// A perfect network.
    pub const NONE: Self = Self {
        loss: 0.0,
        duplication: 0.0,
        reordering: 0.0,
        reorder_by: Duration::ZERO,
        corruption: 0.0,
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
    };

    /// A carrier that guarantees its bytes has no checksum behind it: what it damages, it must not deliver.
    fn damage_is_loss(&mut self) {
        self.loss = 1.0 - (1.0 - self.loss) * (1.0 - self.corruption);
        self.corruption = 0.0;
    }

    fn any(&self) -> bool {
        *self != Self { reorder_by: self.reorder_by, ..Self::default() }
    }
}

/// Faults of both directions.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Plan {
    /// What happens to datagrams that we send.
    pub tx: Faults,
    /// What happens to datagrams that we receive.
    pub rx: Faults,
}

/// What the faults did so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultStats {
    /// Datagrams lost, by rate or by partition.
    pub lost: u64,
    /// Datagrams that came twice.
    pub duplicated: u64,
    /// Datagrams held back so that others could overtake.
    pub reordered: u64,
    /// Datagrams with an inverted bit.
    pub corrupted: u64,
}

#[derive(Debug, Default)]
struct Setting {
    plan: Plan,
    everyone: bool,
    isolated: Vec<IpAddr>,
}

/// Changes the faults of a running link. Clones change the same link.
#[derive(Clone, Debug, Default)]
pub struct FaultControl(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    setting: Mutex<Setting>,
    /// Counts the changes, so that the link need not take the lock for every datagram.
    changes: AtomicU64,
    stats: [AtomicU64; 4],
}

impl FaultControl {
    /// Replaces all rates.
    pub fn set(&self, plan: Plan) {
        self.change(|setting| setting.plan = plan);
    }

    /// Cuts the link off from `peer`, both ways.
    pub fn isolate(&self, peer: IpAddr) {
        self.change(|setting| setting.isolated.push(peer));
    }

    /// Cuts the link off from everybody.
    pub fn isolate_all(&self) {
        self.change(|setting| setting.everyone = true);
    }

    /// Ends all partitions. Rates stay as they are.
    pub fn heal(&self) {
        self.change(|setting| {
            setting.everyone = false;
            setting.isolated.clear();
        });
    }

    /// What the faults did so far.
    #[must_use]
    pub fn stats(&self) -> FaultStats {
        let [lost, duplicated, reordered, corrupted] =
            [0, 1, 2, 3].map(|i: usize| self.0.stats[i].load(Ordering::Relaxed));
        FaultStats { lost, duplicated, reordered, corrupted }
    }

    fn change(&self, change: impl FnOnce(&mut Setting)) {
        change(&mut self.setting());
        self.0.changes.fetch_add(1, Ordering::Release);
    }

    fn setting(&self) -> MutexGuard<'_, Setting> {
        self.0.setting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, what: Count) {
        self.0.stats[what as usize].fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy)]
enum Count {
    Lost,
    Duplicated,
    Reordered,
    Corrupted,
}

/// A link over a bad network.
#[derive(Debug)]
pub struct Faulty<L: Link + ?Sized> {
    inner: Box<L>,
    caps: LinkCaps,
    control: FaultControl,
    seen_changes: u64,
    plan: Plan,
    everyone: bool,
    isolated: Vec<IpAddr>,
    tx_dice: Dice,
    rx_dice: Dice,
    /// What the caller fills: what becomes of it is not decided before it is sent.
    tx_buffer: Box<[u8]>,
    /// Sent, but not yet on its way.
    tx_held: Queue<Outgoing>,
    /// Arrived, but not yet handed over.
    rx_held: Queue<Header>,
    timer: Timer,
    /// When the timer will fire.
    armed: Option<Instant>,
}

/// What a held datagram arrived with.
#[derive(Clone, Copy, Debug)]
struct Header {
    src: std::net::SocketAddr,
    dst_ip: IpAddr,
    ip_id: Option<u16>,
    train_index: u16,
    ecn: u8,
    ttl: u8,
}

/// The fate of one datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Fate {
    lost: bool,
    twice: bool,
    corrupt: Option<u64>,
    after: Duration,
}

impl<L: Link + ?Sized> Faulty<L> {
    /// Puts `inner` on a bad network.
    ///
    /// # Errors
    /// When the kernel has no timer for us.
    pub fn new(inner: Box<L>, plan: Plan, seed: u64) -> io::Result<Self> {
        let control = FaultControl::default();
        control.set(plan);
        let caps = inner.caps().clone();
        let tx_buffer = vec![0; caps.max_send_bytes].into_boxed_slice();
        let mut link = Self {
            inner,
            caps,
            control,
            seen_changes: 0,
            plan,
            everyone: false,
            isolated: Vec::new(),
            // The directions do not share a stream: how much is received must not change what is lost on sending.
            tx_dice: Dice::new(seed, 0),
            rx_dice: Dice::new(seed, 1),
            tx_buffer,
            tx_held: Queue::default(),
            rx_held: Queue::default(),
            timer: Timer::new()?,
            armed: None,
        };
        link.look_at_setting();
        Ok(link)
    }

    /// The handle by which the faults are changed while the link is in use.
    #[must_use]
    pub fn control(&self) -> FaultControl {
        self.control.clone()
    }

    fn look_at_setting(&mut self) {
        let changes = self.control.0.changes.load(Ordering::Acquire);
        if changes != self.seen_changes {
            let setting = self.control.setting();
            self.plan = setting.plan;
            if self.caps.reliable_bytes {
                self.plan.tx.damage_is_loss();
                self.plan.rx.damage_is_loss();
            }
            self.everyone = setting.everyone;
            self.isolated.clone_from(&setting.isolated);
            drop(setting);
            self.seen_changes = changes;
        }
        let segments = if self.plan.tx.any() { 1 } else { self.inner.caps().max_segments };
        self.caps.max_segments = segments;
    }

    fn cut_off(everyone: bool, isolated: &[IpAddr], peer: IpAddr) -> bool {
        everyone || isolated.contains(&peer)
    }

    /// Sends what has been held long enough; stops where the link underneath refuses.
    fn release_tx(&mut self, now: Instant) -> io::Result<()> {
        while let Some((out, payload)) = self.tx_held.first_due(now) {
            self.inner.tx_buffer()?[..payload.len()].copy_from_slice(payload);
            self.inner.send(out)?;
            self.tx_held.remove_first();
        }
        Ok(())
    }

    /// Makes the timer fire when the next held datagram is due. One that is due, and that the link underneath
    /// refuses, goes on when that link's own descriptors say so.
    fn arm(&mut self, now: Instant) -> io::Result<()> {
        let next = [self.tx_held.next_due(), self.rx_held.next_due()]
            .into_iter()
            .flatten()
            .filter(|due| *due > now)
            .min();
        if let Some(next) = next.filter(|next| self.armed.is_none_or(|armed| *next < armed)) {
            self.timer.set_once(next - now)?;
            self.armed = Some(next);
        }
        Ok(())
    }

    fn release_rx(&mut self, now: Instant, sink: &mut dyn FnMut(Received<'_>)) -> usize {
        let mut count = 0;
        while let Some((header, payload)) = self.rx_held.first_due(now) {
            sink(header.with(payload));
            self.rx_held.remove_first();
            count += 1;
        }
        count
    }
}

/// What was sent before the link closes is on its way, as on any network: a held ACK must not die with its sender. It
/// leaves early, as nobody is left to wait for its time.
impl<L: Link + ?Sized> Drop for Faulty<L> {
    fn drop(&mut self) {
        const LONGER_THAN_ANY_DELAY: Duration = Duration::from_secs(86_400);
        let _ = self.release_tx(Instant::now() + LONGER_THAN_ANY_DELAY);
    }
}

impl Header {
    fn of(rx: &Received<'_>) -> Self {
        let Received { src, dst_ip, ip_id, train_index, ecn, ttl, .. } = *rx;
        Self { src, dst_ip, ip_id, train_index, ecn, ttl }
    }

    fn with<'a>(&self, payload: &'a [u8]) -> Received<'a> {
        let Self { src, dst_ip, ip_id, train_index, ecn, ttl } = *self;
        Received { src, dst_ip, ip_id, train_index, ecn, ttl, payload }
    }
}

/// A seeded stream of decisions.
#[derive(Debug)]
struct Dice(ChaCha8Rng);

impl Dice {
    fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self(rng)
    }

    /// `true` with the given probability. Draws even for 0, so that one rate does not shift what another one hits.
    fn happens(&mut self, rate: f64) -> bool {
        // 53 random bits, as many as an f64 holds.
        ((self.0.next_u64() >> 11) as f64) / ((1_u64 << 53) as f64) < rate
    }

    fn up_to(&mut self, limit: Duration) -> Duration {
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let draw = (u128::from(self.0.next_u64()) * u128::from(limit)) >> 64;
        Duration::from_nanos(draw as u64)
    }

    fn decide(&mut self, faults: &Faults, control: &FaultControl) -> Fate {
        if !faults.any() {
            return Fate::default();
        }
        let lost = self.happens(faults.loss);
        let twice = self.happens(faults.duplication);
        let reordered = self.happens(faults.reordering);
        let corrupt = self.happens(faults.corruption);
        let bit = self.0.next_u64();
        let reorder_by =
            if faults.reorder_by.is_zero() { Duration::from_millis(1) } else { faults.reorder_by };
        let (held, jitter) = (self.up_to(reorder_by), self.up_to(faults.jitter));
        let counts = [
            (lost, Count::Lost),
            (twice && !lost, Count::Duplicated),
            (reordered && !lost, Count::Reordered),
            (corrupt && !lost, Count::Corrupted),
        ];
        counts.into_iter().filter(|(hit, _)| *hit).for_each(|(_, what)| control.count(what));
        let after = faults.delay + jitter + if reordered { held } else { Duration::ZERO };
        Fate { lost, twice, corrupt: corrupt.then_some(bit), after }
    }
}

fn invert_bit(payload: &mut [u8], bit: u64) {
    if !payload.is_empty() {
        let bit = (bit % (payload.len() as u64 * 8)) as usize;
        payload[bit / 8] ^= 1 << (bit % 8);
    }
}

impl<L: Link + ?Sized> Link for Faulty<L> {
    fn caps(&self) -> &LinkCaps {
        &self.caps
    }

    /// Right as long as nothing is held back: links that count their sends are not to be made worse on the way out.
    fn ident(&self) -> u16 {
        self.inner.ident()
    }

    fn tx_buffer(&mut self) -> io::Result<&mut [u8]> {
        self.look_at_setting();
        if self.tx_held.bytes() > MAX_HELD_BYTES {
            self.release_tx(Instant::now())?;
            if self.tx_held.bytes() > MAX_HELD_BYTES {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        Ok(&mut self.tx_buffer)
    }

    fn send(&mut self, out: &Outgoing) -> io::Result<()> {
        let clean = !self.plan.tx.any();
        let segments = out.segments();
        if out.len > self.tx_buffer.len()
            || segments > self.caps.max_segments
            || !self.caps.addresses.contains(&out.src)
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{out:?} breaks the link's limits"),
            ));
        }
        if Self::cut_off(self.everyone, &self.isolated, out.dst.ip()) {
            (0..segments).for_each(|_| self.control.count(Count::Lost));
            return Ok(());
        }
        if clean && self.tx_held.is_empty() {
            self.inner.tx_buffer()?[..out.len].copy_from_slice(&self.tx_buffer[..out.len]);
            return self.inner.send(out);
        }
        let fate = self.tx_dice.decide(&self.plan.tx, &self.control);
        if fate.lost {
            return Ok(());
        }
        let payload = &mut self.tx_buffer[..out.len];
        if let Some(bit) = fate.corrupt {
            invert_bit(payload, bit);
        }
        let now = Instant::now();
        for _ in 0..1 + u8::from(fate.twice) {
            self.tx_held.push(now + fate.after, *out, &self.tx_buffer[..out.len]);
        }
        match self.release_tx(now) {
            Err(err) if err.kind() != io::ErrorKind::WouldBlock => return Err(err),
            _ => {}
        }
        // Another thread may be waiting already, for an earlier state of ours.
        self.arm(now)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.release_tx(Instant::now())?;
        self.inner.flush()
    }

    fn recv(&mut self, sink: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        self.look_at_setting();
        let held = !self.tx_held.is_empty() || !self.rx_held.is_empty();
        let now = if held { Some(Instant::now()) } else { None };
        if let Some(now) = now {
            match self.release_tx(now).and_then(|()| self.inner.flush()) {
                Err(err) if err.kind() != io::ErrorKind::WouldBlock => return Err(err),
                _ => {}
            }
            let count = self.release_rx(now, sink);
            if count > 0 {
                return Ok(count);
            }
        }
        let (dice, held, control, faults) =
            (&mut self.rx_dice, &mut self.rx_held, &self.control, &self.plan.rx);
        let (everyone, isolated) = (self.everyone, &self.isolated);
        let mut count = 0;
        self.inner.recv(&mut |rx| {
            if Self::cut_off(everyone, isolated, rx.src.ip()) {
                control.count(Count::Lost);
                return;
            }
            let fate = dice.decide(faults, control);
            if fate.lost {
                return;
            }
            let copies = 1 + u8::from(fate.twice);
            if fate == Fate::default() {
                sink(rx);
                count += 1;
                return;
            }
            let mut payload = rx.payload.to_vec();
            if let Some(bit) = fate.corrupt {
                invert_bit(&mut payload, bit);
            }
            if fate.after.is_zero() {
                (0..copies).for_each(|_| sink(Received { payload: &payload, ..rx }));
                count += usize::from(copies);
                return;
            }
            if held.bytes() > MAX_HELD_BYTES {
                control.count(Count::Lost);
                return;
            }
            let due = Instant::now() + fate.after;
            (0..copies).for_each(|_| held.push(due, Header::of(&rx), &payload));
        })?;
        Ok(count)
    }

    fn wait_fds(&self, fds: &mut Vec<WaitFd>) {
        self.inner.wait_fds(fds);
        fds.push(WaitFd { fd: self.timer.as_raw_fd(), events: libc::POLLIN });
    }

    fn wait_is_over(&mut self) {
        self.inner.wait_is_over();
    }

    fn prepare_wait(&mut self) -> io::Result<bool> {
        self.timer.clear();
        self.armed = None;
        let now = Instant::now();
        match self.release_tx(now).and_then(|()| self.inner.flush()) {
            Err(err) if err.kind() != io::ErrorKind::WouldBlock => return Err(err),
            _ => {}
        }
        if self.rx_held.first_due(now).is_some() {
            return Ok(true);
        }
        self.arm(now)?;
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
        let caps = self.inner.caps();
        (self.caps.mtu, self.caps.addresses) = (caps.mtu, caps.addresses.clone());
    }

    fn path_mtu(&self, src: IpAddr, dst: IpAddr) -> usize {
        self.inner.path_mtu(src, dst)
    }

    fn stats(&self) -> LinkStats {
        self.inner.stats()
    }
}

#[cfg(test)]
mod tests;
