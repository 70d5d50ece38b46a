//! Keeps the kernel's choice among the sockets that share our port right.
//!
//! The BPF program names a socket by its index in the kernel's array of the group. The index is nowhere to be read,
//! and it changes: when a socket closes, the last one takes its place. So each process finds its own by experiment:
//! it sends itself *probes*, small datagrams that every program here delivers to the index they name, for the indices
//! 0, 1, 2, … The first that arrives tells. (The kernel spreads probes for indices beyond the group by a hash, so that
//! they may arrive too; but the true index is smaller, was sent first, and a socket is a queue.) What was found goes to
//! the board, and everybody who changes something there attaches a program made from all of it.
//!
//! When to doubt: on joining; when others send our datagrams on to us; and on a timer, because a process that is
//! stopped sends nothing on. Together with the probes goes a *test* that must come here by the ordinary rule; if it
//! does not, the program is attached anew.
//!
//! Read first: `../host/mod.rs`; `reuseport_select_sock` and `reuseport_detach_sock` in the kernel's
//! net/core/sock_reuseport.c.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::Port;
use crate::host::{self, Owner, PROBE_MAGIC, Seat, Sharing, Table};
use crate::link::WaitFd;
use crate::sys::net;
use crate::train::Train;
use crate::wait;

/// Bytes of a probe or test.
const PROBE_LEN: usize = 64;

/// A test begins so. The first byte is another opcode that RoCEv2 leaves to manufacturers.
const TEST_MAGIC: u32 = 0xFEE5_7A1D;

/// Where a probe or test carries the number by which its sender knows it.
const NONCE: std::ops::Range<usize> = 48..56;

/// The most sockets in a group that we look for.
const MAX_GROUP: u32 = 256;

/// How often to doubt while others share the port, and how often to see whether others do.
const DOUBT_EVERY: Duration = Duration::from_millis(200);
const LOOK_AROUND_EVERY: Duration = Duration::from_secs(1);

/// Ticks between two looks for those who died without leaving the board.
const BURY_EVERY: u32 = 8;

/// Detours set off an experiment at most this often; the pause doubles while experiments change nothing.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The steering of one link: a group per address.
#[derive(Debug)]
pub(super) struct Steering {
    groups: Vec<Group>,
    ticks: u32,
    last_detour: Instant,
    /// The board's state when a program was last made from it.
    seen_changes: u64,
}

/// Our socket among those of one address.
#[derive(Debug)]
struct Group {
    addr: SocketAddr,
    index: Option<u32>,
    /// The number of the probes under way.
    probes: Option<u64>,
    /// The number of the test under way.
    test: Option<u64>,
    /// How many indices to probe.
    reach: u32,
    /// There is a program of ours.
    attached: bool,
    /// The program may not say what the board says.
    stale: bool,
    /// A probe arrived; the index is to be published.
    news: bool,
    last: Instant,
    pause: Duration,
}

impl Steering {
    /// Joins the groups: attaches what the board knows, and starts looking for our place.
    pub(super) fn begin(sharing: &mut Sharing, ports: &[Port]) -> io::Result<Self> {
        let groups = ports.iter().map(|port| Group::new(port.rx.addr())).collect();
        let mut steering = Self { groups, ticks: 0, last_detour: Instant::now(), seen_changes: 0 };
        sharing.seat().bury_the_dead();
        for (group, port) in steering.groups.iter_mut().zip(ports) {
            group.attach(sharing, port)?;
            group.experiment(sharing, port);
        }
        sharing.set_period(LOOK_AROUND_EVERY.min(DOUBT_EVERY))?;
        Ok(steering)
    }

    /// Takes a probe or test out of the stream; `true` if `train` was one, ours or not. Every process of the host
    /// gets to see those of others.
    pub(super) fn intercept(&mut self, seat: &Seat, index: usize, train: &Train<'_>) -> bool {
        let Some(magic) = train.data.first_chunk::<4>().map(|b| u32::from_be_bytes(*b)) else { return false };
        if magic != PROBE_MAGIC[0] && magic != TEST_MAGIC || train.data.len() != PROBE_LEN {
            return false;
        }
        // Of an address that went, nobody waits for any.
        self.groups.get_mut(index).is_none_or(|group| group.hear(seat, magic, train.data))
    }

    /// One more address, whose port is to be the last. If another process has it, the timer tries again to get it.
    pub(super) fn add(&mut self, sharing: &Sharing, port: &Port) -> io::Result<()> {
        let mut group = Group::new(port.rx.addr());
        group.attach(sharing, port)?;
        group.experiment(sharing, port);
        self.groups.push(group);
        Ok(())
    }

    /// An address less. The others see to their sockets themselves.
    pub(super) fn remove(&mut self, sharing: &Sharing, index: usize) {
        let group = self.groups.remove(index);
        let board = sharing.board();
        if board.shared() {
            board.withdraw_index(sharing.seat().slot(), group.addr);
        }
    }

    /// Others had to send datagrams on to us: our place, or the program, is not what we think.
    pub(super) fn suspect(&mut self, sharing: &Sharing, ports: &[Port]) {
        let now = Instant::now();
        self.last_detour = now;
        sharing.seat().bury_the_dead();
        for (group, port) in self.groups.iter_mut().zip(ports) {
            if now.duration_since(group.last) >= group.pause {
                group.pause = (group.pause * 2).min(PAUSE_MAX);
                group.stale = true;
                group.experiment(sharing, port);
            }
        }
    }

    /// The timer fired.
    pub(super) fn tick(&mut self, sharing: &mut Sharing, ports: &mut [Port]) -> io::Result<()> {
        sharing.find_board()?;
        let seat = sharing.seat();
        self.ticks = self.ticks.wrapping_add(1);
        if self.ticks.is_multiple_of(BURY_EVERY) {
            seat.bury_the_dead();
        }
        let calm = self.last_detour.elapsed() > PAUSE_MAX;
        let others = sharing.board().taken().any(|(slot, _)| slot != seat.slot());
        for (group, port) in self.groups.iter_mut().zip(ports) {
            if !port.rx.bound() && port.rx.try_bind() {
                // Who had the port is gone. We are no longer a guest.
                group.attach(sharing, port)?;
                group.experiment(sharing, port);
            }
            // What was sent at the last tick had all the time in the world to arrive.
            if group.probes.is_some() {
                group.reach = (group.reach * 2).min(MAX_GROUP);
            }
            group.stale |= group.test.is_some();
            if calm {
                group.pause = PAUSE_MIN;
            }
            if others {
                group.experiment(sharing, port);
            }
        }
        sharing.set_period(if others { DOUBT_EVERY } else { LOOK_AROUND_EVERY })
    }

    /// Our sockets are about to close: the kernel is to choose others, as far as they are known. What it has chosen ours for
    /// by now stands in their queues.
    pub(super) fn end(&mut self, sharing: &Sharing, ports: &[Port]) {
        let (seat, board) = (sharing.seat(), sharing.board());
        for (group, port) in self.groups.iter_mut().zip(ports) {
            if !board.shared() || !port.rx.bound() {
                continue;
            }
            board.withdraw_index(seat.slot(), group.addr);
            let mut table = board.table(group.addr);
            table.otherwise = table.slots.first().map(|(_, index)| *index);
            if table.otherwise.is_some() {
                let _ = host::attach(port.rx.as_fd(), seat.rule(), &table);
            }
            (group.probes, group.test) = (None, None);
        }
    }

    /// Publishes and attaches what is to be published and attached.
    pub(super) fn settle(&mut self, sharing: &Sharing, ports: &[Port]) {
        let changes = sharing.board().changes();
        let others_changed = changes != self.seen_changes;
        for (group, port) in self.groups.iter_mut().zip(ports) {
            if !group.news && !others_changed {
                continue;
            }
            if group.news {
                group.news = false;
                if let Some(index) = group.index {
                    sharing.board().publish_index(sharing.seat().slot(), group.addr, index);
                }
            }
            // A kernel that refuses the program leaves us with detours.
            let _ = group.attach(sharing, port);
        }
        self.seen_changes = changes;
    }
}

impl Group {
    fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            index: None,
            probes: None,
            test: None,
            reach: 2,
            attached: false,
            stale: false,
            news: false,
            last: Instant::now(),
            pause: PAUSE_MIN,
        }
    }

    /// Sends ourselves the probes and the test. Without a common board there is nobody to tell the outcome.
    fn experiment(&mut self, sharing: &Sharing, port: &Port) {
        if !sharing.board().shared() || !port.rx.bound() {
            return;
        }
        let known = sharing.board().taken().count() as u32 + 1;
        self.reach = self.reach.max(known).clamp(self.index.map_or(1, |index| index + 1), MAX_GROUP);
        let nonce = net::random_u64();
        for index in 0..self.reach {
            port.tx.send_aside(&probe(index, nonce), self.addr);
        }
        self.probes = Some(nonce);
        self.test = test(sharing.seat(), nonce).map(|payload| {
            port.tx.send_aside(&payload, self.addr);
            nonce
        });
        self.last = Instant::now();
    }

    /// Reads a probe or test; `true` as it must not go any further (unless it is another's test, which is to be sent
    /// on as any datagram is).
    fn hear(&mut self, seat: &Seat, magic: u32, payload: &[u8]) -> bool {
        let nonce = payload[NONCE].first_chunk::<8>().map(|b| u64::from_be_bytes(*b));
        if magic == TEST_MAGIC {
            if nonce == self.test {
                self.test = None;
            }
            return seat.rule().owner(payload) == Some(Owner::Slot(seat.slot()));
        }
        if nonce == self.probes {
            self.probes = None;
            let found = payload[8..].first_chunk::<4>().map(|b| u32::from_be_bytes(*b));
            self.news = found != self.index || self.stale;
            if found != self.index {
                self.index = found;
                self.reach = 1;
                self.pause = PAUSE_MIN;
            }
        }
        true
    }

    /// Attaches the program that the board asks for.
    fn attach(&mut self, sharing: &Sharing, port: &Port) -> io::Result<()> {
        let board = sharing.board();
        if !board.shared() || !port.rx.bound() {
            // Knowing only of ourselves, we would undo what others know of themselves.
            return Ok(());
        }
        if !self.attached && !board.taken().any(|(slot, _)| slot != sharing.seat().slot()) {
            // Alone there is nothing to choose, and choosing costs. Whoever joins attaches a program.
            return Ok(());
        }
        // Whoever publishes while we attach an older state may have attached before us: then ours must be repeated.
        for _ in 0..8 {
            let before = board.changes();
            let table: Table = board.table(self.addr);
            host::attach(port.rx.as_fd(), sharing.seat().rule(), &table)?;
            self.stale = false;
            self.attached = true;
            if board.changes() == before {
                break;
            }
        }
        Ok(())
    }
}

/// Whether the process that has the port sends on to us what is ours. It may belong to root, whom we trust; then the
/// kernel does not let us share its port, but it can hand on.
pub(super) fn is_sent_on(seat: &Seat, port: &Port) -> bool {
    let nonce = net::random_u64();
    let Some(payload) = test(seat, nonce) else { return false };
    let mut buffer = vec![0; 1 << 10];
    let start = Instant::now();
    while start.elapsed() < GUEST_PATIENCE {
        port.tx.send_aside(&payload, port.rx.addr());
        let news = [WaitFd { fd: seat.news_fd(), events: libc::POLLIN }];
        let _ = wait::poll(&news, Some(GUEST_PATIENCE / 8));
        for channel in seat.channels_with_news() {
            while let Ok(Some(message)) = seat.receive(channel, &mut buffer) {
                if message.is_some_and(|message| message.train.data == payload) {
                    return true;
                }
            }
        }
    }
    false
}

/// How long the owner of the port may take to send a first datagram on.
const GUEST_PATIENCE: Duration = Duration::from_millis(800);

fn probe(index: u32, nonce: u64) -> [u8; PROBE_LEN] {
    let mut payload = [0; PROBE_LEN];
    payload[..4].copy_from_slice(&PROBE_MAGIC[0].to_be_bytes());
    payload[4..8].copy_from_slice(&PROBE_MAGIC[1].to_be_bytes());
    payload[8..12].copy_from_slice(&index.to_be_bytes());
    payload[NONCE].copy_from_slice(&nonce.to_be_bytes());
    payload
}

/// A datagram that the rule gives to us, if there is room for it beside the test's own fields.
fn test(seat: &Seat, nonce: u64) -> Option<[u8; PROBE_LEN]> {
    let mut payload = [0; PROBE_LEN];
    *payload.get_mut(usize::from(seat.rule().plain_slot_offset()?))? = seat.slot();
    payload[..4].copy_from_slice(&TEST_MAGIC.to_be_bytes());
    payload[NONCE].copy_from_slice(&nonce.to_be_bytes());
    (seat.rule().owner(&payload) == Some(Owner::Slot(seat.slot()))).then_some(payload)
}
