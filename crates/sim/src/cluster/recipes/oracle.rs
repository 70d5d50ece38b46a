//! What clients wrote and believe durable, where it lies, and what recovery must find.

use std::io;
use std::ops::Range;

use remanence_persist::recipe::{Message, Rq, Update};
use remanence_persist::taxonomy::Buffers;
use remanence_pmem::Medium as _;

use super::Plan;
use crate::cluster::disk::Disk;
use crate::cluster::stages::{WORD, copy};
use crate::report::counters;
use crate::rng::fill;

/// Bytes of a place for an update, and of a receive buffer.
const PLACE: u64 = 128;
const BUFFER: u64 = 512;
/// What the bytes of a message begin with.
const MESSAGE: u8 = b'M';

counters! {
/// What the service did, counted.
Work {
    /// Times that a client began to carry the recipe out.
    begun,
    /// Those after which the updates are durable, as far as the client knows.
    acknowledged,
    /// Those that ended with their connection.
    unknown,
    /// Sessions that servers began.
    sessions,
    /// Times that a server found its memory again.
    found_again,
    /// Messages that recovery has applied.
    replayed,
    /// Servers that ended because their medium had failed.
    media_ended,
}
}

/// Where everything lies on a disk. A lane is a client at one of its servers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    lanes: u64,
    slots: u64,
    count: u64,
    words: usize,
    word: bool,
    buffers: u64,
}

impl Layout {
    fn new(plan: &Plan) -> Self {
        let shape = plan.recipe.shape;
        Self {
            lanes: u64::from((plan.clients + 1) * plan.acks),
            slots: plan.slots,
            count: shape.count.into(),
            words: plan.words,
            word: shape.word,
            buffers: plan.buffers,
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.buffer(self.lanes, 0).next_multiple_of(4096)
    }

    /// Bytes of an update.
    pub(super) fn update(&self, update: Update) -> usize {
        let is_word = self.word && u64::from(update.0) + 1 == self.count;
        WORD * if is_word { 1 } else { self.words }
    }

    /// Where an update of that number lies.
    pub(super) fn place(&self, lane: usize, number: u64, update: Update) -> u64 {
        ((lane as u64 * self.slots + number % self.slots) * self.count + u64::from(update.0)) * PLACE
    }

    /// The receive buffers of a lane, and how long each is.
    pub(super) fn buffers(&self, lane: usize) -> (u64, u64) {
        (self.buffer(lane as u64, 0), BUFFER)
    }

    fn buffer(&self, lane: u64, n: u64) -> u64 {
        self.lanes * self.slots * self.count * PLACE + (lane * self.buffers + n) * BUFFER
    }
}

/// What was begun in a lane, and whether it is believed durable: the first has number 1.
#[derive(Debug, Default)]
struct Lane {
    begun: Vec<bool>,
    /// The last one has not come to its end.
    is_running: bool,
}

/// What the run knows, and no process of it.
#[derive(Debug)]
pub(crate) struct Oracle {
    pub(super) plan: Plan,
    pub(super) seed: u64,
    pub(super) work: Work,
    pub(super) layout: Layout,
    /// The messages of one carrying out.
    pub(super) messages: Vec<Rq>,
    lanes: Vec<Lane>,
    /// Times that each client may still begin, in each of its lanes.
    pub(super) operations: Vec<u32>,
    /// What is carried out now.
    pub(super) running: u32,
    /// The last client has come to its end.
    pub(super) finished: bool,
}

/// A message as it lies in a buffer.
struct Found {
    number: u64,
    place: usize,
    message: Message,
}

impl Oracle {
    pub(super) fn new(seed: u64, plan: &Plan) -> Self {
        let (layout, lanes) = (Layout::new(plan), usize::from((plan.clients + 1) * plan.acks));
        Self {
            plan: plan.clone(),
            seed,
            work: Work::default(),
            layout,
            messages: plan.messages(),
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            operations: vec![plan.operations; lanes],
            running: 0,
            finished: false,
        }
    }

    /// The lanes of a client, and the server of each.
    pub(super) fn lanes(&self, client: usize) -> Vec<(usize, usize)> {
        let (servers, acks) = (usize::from(self.plan.servers), usize::from(self.plan.acks));
        (0..acks).map(|n| (client * acks + n, (client + n) % servers)).collect()
    }

    /// The lanes of a server.
    fn lanes_at(&self, server: usize) -> Vec<usize> {
        let all = (0..=usize::from(self.plan.clients)).flat_map(|client| self.lanes(client));
        all.filter(|(_, at)| *at == server).map(|(lane, _)| lane).collect()
    }

    /// What an update of that number is.
    pub(super) fn content(&self, lane: usize, number: u64, update: Update) -> Vec<u8> {
        let mut bytes = vec![0; self.layout.update(update)];
        fill((lane as u64) << 40 | number << 8 | u64::from(update.0), &mut bytes);
        bytes
    }

    /// The bytes of a message: which it is, and the updates that it brings.
    pub(super) fn message(&self, lane: usize, number: u64, n: usize) -> Vec<u8> {
        let mut bytes = vec![MESSAGE, n as u8];
        bytes.extend_from_slice(&(lane as u16).to_le_bytes());
        bytes.extend_from_slice(&(number as u32).to_le_bytes());
        if let Rq::Send(message) = self.messages[n] {
            message.data.iter().for_each(|update| bytes.extend(self.content(lane, number, update)));
        }
        bytes
    }

    /// Which message of which number begins so.
    pub(super) fn parse(bytes: &[u8]) -> Option<(usize, u64, usize)> {
        let [MESSAGE, n, a, b, rest @ ..] = bytes.first_chunk::<8>()? else { return None };
        Some((u16::from_le_bytes([*a, *b]).into(), u32::from_le_bytes(*rest).into(), usize::from(*n)))
    }

    /// The recipe is carried out once more in a lane: its number.
    pub(super) fn begins(&mut self, lane: usize) -> u64 {
        self.work.begun += 1;
        self.running += 1;
        let lane = &mut self.lanes[lane];
        lane.begun.push(false);
        lane.is_running = true;
        lane.begun.len() as u64
    }

    /// The last one has come to its end, if it had not before, and its updates are durable, or nothing is known of them.
    pub(super) fn ends(&mut self, lane: usize, durable: bool) {
        let lane = &mut self.lanes[lane];
        if std::mem::take(&mut lane.is_running) {
            self.running -= 1;
            *lane.begun.last_mut().expect("it was begun") = durable;
            let count = if durable { &mut self.work.acknowledged } else { &mut self.work.unknown };
            *count += 1;
        }
    }

    /// Recovers what lies on a disk, in one lane or in all of a server: applies the whole messages that it finds, oldest first. How many.
    pub(super) fn recover(&self, disk: &Disk, lanes: &[usize]) -> io::Result<u64> {
        if !self.plan.recipe.replay || self.plan.config.buffers == Buffers::Dram {
            return Ok(0);
        }
        let mut applied = 0;
        for lane in lanes.iter().copied() {
            let mut all: Vec<Found> =
                (0..self.layout.buffers).filter_map(|n| self.find(disk, lane, n)).collect();
            all.sort_by_key(|found| (found.number, found.place));
            for Found { number, message, .. } in all {
                for update in message.data.iter() {
                    let at = self.layout.place(lane, number, update);
                    let bytes = self.content(lane, number, update);
                    copy(disk, at, &bytes);
                    disk.pwb(at..at + bytes.len() as u64);
                }
                applied += 1;
            }
            disk.psync()?;
            // What was applied is not found again.
            for n in 0..self.layout.buffers {
                let at = self.layout.buffer(lane as u64, n);
                disk.write(at, &[0; WORD]);
                disk.pwb(at..at + WORD as u64);
            }
            disk.psync()?;
        }
        Ok(applied)
    }

    /// The message with updates that lies in a buffer, if it is whole.
    fn find(&self, disk: &Disk, lane: usize, n: u64) -> Option<Found> {
        let at = self.layout.buffer(lane as u64, n);
        let mut bytes = [0; BUFFER as usize];
        disk.read(at, &mut bytes);
        let (of, number, place) = Self::parse(&bytes)?;
        let Rq::Send(message) = *self.messages.get(place).filter(|_| of == lane)? else { return None };
        let whole = self.message(lane, number, place);
        (!message.data.is_empty() && bytes.starts_with(&whole)).then_some(Found { number, place, message })
    }

    /// Whether what would be left of a disk is what must be, when recovery has been there: in one lane, or in all of that server.
    ///
    /// # Errors
    /// It is not. A sentence.
    pub(super) fn would_be(&self, disk: &Disk, server: usize, lane: Option<usize>) -> Result<(), String> {
        let lanes = lane.map_or_else(|| self.lanes_at(server), |lane| vec![lane]);
        self.recover(disk, &lanes).map_err(|why| why.to_string())?;
        self.judge(disk, &lanes)
    }

    /// As [`would_be`](Self::would_be), behind a recovery.
    fn judge(&self, disk: &Disk, lanes: &[usize]) -> Result<(), String> {
        for lane in lanes.iter().copied() {
            for slot in 0..self.layout.slots {
                self.judge_slot(disk, lane, slot).map_err(|why| format!("lane {lane}: {why}"))?;
            }
        }
        Ok(())
    }

    /// Recovers a server's disk when it starts.
    ///
    /// # Errors
    /// What is found is not what must be.
    pub(super) fn opens(&mut self, disk: &Disk, server: usize) -> Result<(), String> {
        let lanes = self.lanes_at(server);
        self.work.replayed += self.recover(disk, &lanes).map_err(|why| why.to_string())?;
        self.judge(disk, &lanes)
    }

    fn judge_slot(&self, disk: &Disk, lane: usize, slot: u64) -> Result<(), String> {
        let begun = &self.lanes[lane].begun;
        let numbers = (1..=begun.len() as u64).filter(|number| number % self.layout.slots == slot);
        let numbers: Vec<u64> = numbers.collect();
        let Some(last) = numbers.last().copied() else { return Ok(()) };
        let kept = numbers.iter().copied().rfind(|number| begun[*number as usize - 1]);
        let all: Range<u8> = 0..self.layout.count as u8;
        let mut is_last = Vec::new();
        for update in all.map(Update) {
            let at = self.layout.place(lane, slot, update);
            let mut found = vec![0; self.layout.update(update)];
            disk.read(at, &mut found);
            is_last.push(found == self.content(lane, last, update));
            let may: Vec<Vec<u8>> = numbers
                .iter()
                .filter(|number| kept.is_none_or(|kept| **number >= kept))
                .map(|number| self.content(lane, *number, update))
                .collect();
            for (n, word) in found.chunks(WORD).enumerate() {
                let is_there = may.iter().any(|bytes| bytes[n * WORD..].starts_with(word));
                if !(is_there || kept.is_none() && *word == [0; WORD]) {
                    return Err(match kept {
                        Some(kept) => {
                            format!("word {n} of update {update} is not that of {kept}, which is durable")
                        }
                        None => format!("word {n} of update {update} was never written"),
                    });
                }
            }
        }
        let is_torn = self.plan.recipe.shape.ordered && is_last.windows(2).any(|pair| !pair[0] && pair[1]);
        if is_torn {
            Err(format!("of {last} a later update is there without the one before it"))
        } else {
            Ok(())
        }
    }
}
