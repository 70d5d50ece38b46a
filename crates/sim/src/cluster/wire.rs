//! Connections as RC gives them: in order, exactly once, until they are cut.
//!
//! A connection has two ends, and each end has its own view of whether it is there: whoever was cut off learns of it later, or when
//! what it sent has found no answer for as long as an RNIC tries. What had arrived by then is carried out all the same.
//!
//! One-sided operations are carried out by the end that they arrive at, without its process, one step at a time: a line of a WRITE,
//! or a flush. Whatever ends the connection, or the machine, finds them half done. Those behind a flush do not wait for it, and are
//! answered behind it; only what is one operation is ordered by it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use remanence_pmem::Medium as _;

use super::disk::Disk;
use super::stages::{Stages, Verb};

/// Why a connection is lost on which somebody would have written what it may not write.
pub(super) const NOT_LET: &str = "the other side has not let it write there";

/// Bytes that are written in one step.
const LINE: u64 = 64;

/// What is under way from one end to the other.
#[derive(Debug)]
pub(super) enum Packet {
    /// A connection is asked for.
    Open,
    /// It is there.
    Opened,
    /// A message for the process.
    Message(Vec<u8>),
    /// A one-sided operation.
    Operation(Operation),
    /// The answer to the oldest one.
    Answer(Answer),
}

impl Packet {
    /// What the hash of a run knows it by.
    pub(super) const fn code(&self) -> u64 {
        match self {
            Self::Open => 1,
            Self::Opened => 2,
            Self::Message(_) => 3,
            Self::Operation(_) => 4,
            Self::Answer(_) => 5,
        }
    }
}

/// What became of a one-sided operation.
#[derive(Debug)]
pub(super) enum Answer {
    /// What was read.
    Read(Vec<u8>),
    /// It is durable.
    Durable,
    /// It is visible.
    Written,
    /// The medium failed.
    Failed,
    /// It would have written what it may not write.
    Refused,
}

/// A one-sided operation on a disk of the other end.
#[derive(Debug)]
pub(super) enum Operation {
    Read {
        disk: usize,
        offset: u64,
        len: u32,
    },
    /// Updates that become durable one after the other.
    Update {
        disk: usize,
        updates: Vec<(u64, Vec<u8>)>,
    },
    /// Bytes that become visible, and nothing more.
    Write {
        disk: usize,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// A work request that is completed as RC does it, on the first disk.
    Verb(Verb),
    /// Whatever was written there becomes durable.
    Flush {
        disk: usize,
        offset: u64,
        len: u64,
    },
}

/// A direction of a connection.
#[derive(Debug, Default)]
pub(super) struct Wire {
    /// When it was sent, and what.
    pub(super) packets: VecDeque<(u64, Packet)>,
    /// When the last one arrives at the earliest.
    pub(super) last: u64,
}

/// An operation that has arrived.
#[derive(Debug)]
struct Running {
    number: u64,
    operation: Operation,
    /// The update that is carried out, and how many bytes of it are written.
    update: usize,
    written: u64,
    flushing: bool,
    answer: Option<Answer>,
}

/// What carries one-sided operations out at an end.
#[derive(Debug, Default)]
pub(super) struct Responder {
    running: VecDeque<Running>,
    number: u64,
    /// The next step is to come.
    pub(super) is_stepping: bool,
    /// Work requests whose stages are followed.
    pub(super) stages: Stages,
    /// What the other end may write, by where it begins and how many bytes it has; `None`: everything.
    pub(super) rooms: Option<BTreeMap<u64, u64>>,
}

impl Responder {
    fn may_write(rooms: &Option<BTreeMap<u64, u64>>, offset: u64, len: u64) -> bool {
        let Some(rooms) = rooms else { return true };
        let before = rooms.range(..=offset).next_back();
        before.is_some_and(|(from, room)| offset + len <= from + room)
    }

    pub(super) fn take(&mut self, operation: Operation) {
        if let Operation::Verb(verb) = operation {
            return self.stages.take(verb);
        }
        self.number += 1;
        let number = self.number;
        self.running.push_back(Running {
            number,
            operation,
            update: 0,
            written: 0,
            flushing: false,
            answer: None,
        });
    }

    pub(super) fn clear(&mut self) {
        self.running.clear();
        self.stages.clear();
    }

    pub(super) fn has_steps(&self) -> bool {
        let waits = |running: &Running| !running.flushing && running.answer.is_none();
        self.running.iter().any(waits) || self.stages.has_steps()
    }

    /// One step of the first operation that does not wait for a flush: the number of one whose flush begins by that.
    pub(super) fn step(&mut self, disks: &[Disk]) -> Option<u64> {
        if self.stages.has_steps() {
            self.stages.step(&disks[0]);
            return None;
        }
        let running =
            self.running.iter_mut().find(|running| !running.flushing && running.answer.is_none())?;
        match &running.operation {
            Operation::Read { disk, offset, len } => {
                let mut bytes = vec![0; *len as usize];
                disks[*disk].read(*offset, &mut bytes);
                running.answer = Some(Answer::Read(bytes));
                None
            }
            // A room may be taken back in the middle of it.
            Operation::Write { offset, bytes, .. }
                if !Self::may_write(&self.rooms, *offset, bytes.len() as u64) =>
            {
                running.answer = Some(Answer::Refused);
                None
            }
            Operation::Flush { offset, len, .. } if !Self::may_write(&self.rooms, *offset, *len) => {
                running.answer = Some(Answer::Refused);
                None
            }
            Operation::Flush { .. } => {
                running.flushing = true;
                Some(running.number)
            }
            Operation::Write { disk, offset, bytes } => {
                let piece = line_of(*offset, bytes.len(), running.written);
                disks[*disk].write(offset + running.written, &bytes[piece.clone()]);
                running.written = piece.end as u64;
                if piece.end == bytes.len() {
                    running.answer = Some(Answer::Written);
                }
                None
            }
            Operation::Update { updates, .. }
                if !Self::may_write(
                    &self.rooms,
                    updates[running.update].0,
                    updates[running.update].1.len() as u64,
                ) =>
            {
                running.answer = Some(Answer::Refused);
                None
            }
            Operation::Update { disk, updates } => {
                let (offset, bytes) = &updates[running.update];
                let piece = line_of(*offset, bytes.len(), running.written);
                disks[*disk].write(offset + running.written, &bytes[piece.clone()]);
                running.written = piece.end as u64;
                running.flushing = running.written == bytes.len() as u64;
                running.flushing.then_some(running.number)
            }
            Operation::Verb(_) => unreachable!("its stages are followed elsewhere"),
        }
    }

    /// A flush has taken its time: makes durable what it is for, alone or with everything else that was written back.
    pub(super) fn flush(&mut self, number: u64, disks: &[Disk], alone: bool) {
        let Some(running) = self.running.iter_mut().find(|running| running.number == number) else { return };
        let (disk, range, updates): (_, Range<u64>, _) = match &running.operation {
            Operation::Update { disk, updates } => {
                let (offset, bytes) = &updates[running.update];
                (disk, *offset..offset + bytes.len() as u64, updates.len())
            }
            Operation::Flush { disk, offset, len } => (disk, *offset..offset + len, 1),
            Operation::Read { .. } | Operation::Write { .. } | Operation::Verb(_) => return,
        };
        let disk = &disks[*disk];
        let done = if alone { disk.persist_alone(range) } else { disk.persist(range) };
        (running.flushing, running.written) = (false, 0);
        running.update += 1;
        if done.is_err() {
            running.answer = Some(Answer::Failed);
        } else if running.update == updates {
            running.answer = Some(Answer::Durable);
        }
    }

    /// The answer to the oldest operation, if it has come.
    pub(super) fn answer(&mut self) -> Option<Answer> {
        if let Some(answer) = self.stages.answer() {
            return Some(answer);
        }
        let answer = self.running.front_mut()?.answer.take()?;
        self.running.pop_front();
        Some(answer)
    }
}

/// The bytes of what is written at `offset` that lie on one line with the first one behind those that are written.
fn line_of(offset: u64, len: usize, written: u64) -> Range<usize> {
    let at = offset + written;
    let end = ((at / LINE + 1) * LINE).min(offset + len as u64);
    written as usize..(end - offset) as usize
}

/// A connection. End 0 is whoever asked for it.
#[derive(Debug)]
pub(super) struct Connection {
    /// The nodes at its two ends.
    pub(super) ends: [usize; 2],
    /// Whether each takes it for one that is there.
    pub(super) is_up: [bool; 2],
    /// From each to the other.
    pub(super) wires: [Wire; 2],
    /// What each carries out for the other.
    pub(super) responders: [Responder; 2],
    /// What end 0 has sent does not arrive before this time.
    pub(super) held: u64,
}

impl Connection {
    pub(super) fn new(from: usize, to: usize) -> Self {
        Self {
            ends: [from, to],
            is_up: [true, false],
            wires: Default::default(),
            responders: Default::default(),
            held: 0,
        }
    }

    /// Nothing that this end has sent and that has not arrived ever will, unless it is held up; and what it has begun for the other
    /// stays half done.
    pub(super) fn end(&mut self, end: usize, now: u64) {
        self.is_up[end] = false;
        if end == 1 || self.held <= now {
            self.wires[end].packets.clear();
        }
        self.responders[end].clear();
    }

    /// When the other end learns of the end of this one, if that were at a time and nothing is held up.
    pub(super) fn after_held(&self, end: usize, at: u64) -> u64 {
        if end == 0 { at.max(self.held + 1) } else { at }
    }

    /// The end that lies on a node.
    pub(super) fn end_of(&self, node: usize) -> usize {
        usize::from(self.ends[0] != node)
    }
}

#[cfg(test)]
mod tests {
    use remanence_pmem::PersistenceDomain;
    use remanence_pmem::crash_image::Failure;

    use super::super::disk::Power;
    use super::*;

    fn update(updates: &[(u64, &[u8])]) -> Operation {
        let updates = updates.iter().map(|(at, bytes)| (*at, bytes.to_vec())).collect();
        Operation::Update { disk: 0, updates }
    }

    #[test]
    fn an_update_is_written_line_by_line_and_the_next_one_of_the_operation_waits_for_its_flush() {
        let power = Power::default();
        let disks = [Disk::new(256, PersistenceDomain::Adr, &power)];
        let mut responder = Responder::default();
        responder.take(update(&[(32, &[1; 64]), (128, &[2; 8])]));
        assert_eq!(responder.step(&disks), None);
        let mut bytes = [0; 64];
        disks[0].read(32, &mut bytes);
        assert_eq!((bytes[31], bytes[32]), (1, 0), "half of it");
        let number = responder.step(&disks).expect("all of it is written");
        assert!(!responder.has_steps() && responder.step(&disks).is_none());
        responder.flush(number, &disks, true);
        assert!(responder.answer().is_none());
        assert_eq!(responder.step(&disks), Some(number));
        assert_eq!(disks[0].load_u64(128), 0x0202_0202_0202_0202);
        let left = disks[0].crash(Failure::PowerLoss, 0, &power);
        left.read(32, &mut bytes);
        assert_eq!(bytes, [1; 64], "what was flushed is there");
        responder.flush(number, &disks, true);
        assert!(matches!(responder.answer(), Some(Answer::Durable)));
    }

    #[test]
    fn a_write_is_visible_line_by_line_and_durable_at_no_time() {
        let power = Power::default();
        let disks = [Disk::new(256, PersistenceDomain::Adr, &power)];
        let mut responder = Responder::default();
        responder.take(Operation::Write { disk: 0, offset: 32, bytes: vec![1; 64] });
        assert_eq!(responder.step(&disks), None);
        assert!(responder.has_steps() && responder.answer().is_none());
        assert_eq!((responder.step(&disks), disks[0].syncs()), (None, 0));
        let mut bytes = [0; 64];
        disks[0].read(32, &mut bytes);
        assert_eq!(bytes, [1; 64]);
        assert!(matches!(responder.answer(), Some(Answer::Written)));
    }

    #[test]
    fn a_flush_makes_durable_what_was_written_before_it_where_that_may_be_written() {
        let power = Power::default();
        let disks = [Disk::new(256, PersistenceDomain::Adr, &power)];
        let mut responder = Responder { rooms: Some(BTreeMap::from([(64, 64)])), ..Responder::default() };
        responder.take(Operation::Write { disk: 0, offset: 64, bytes: vec![1; 64] });
        responder.take(Operation::Flush { disk: 0, offset: 64, len: 64 });
        assert_eq!(responder.step(&disks), None);
        let number = responder.step(&disks).expect("the WRITE before it was carried out");
        assert!(matches!(responder.answer(), Some(Answer::Written)) && responder.answer().is_none());
        responder.flush(number, &disks, true);
        assert!(matches!(responder.answer(), Some(Answer::Durable)));
        assert_eq!(disks[0].durable().load_u64(64), 0x0101_0101_0101_0101);
        responder.take(Operation::Flush { disk: 0, offset: 0, len: 128 });
        assert_eq!(responder.step(&disks), None);
        assert!(matches!(responder.answer(), Some(Answer::Refused)));
    }

    #[test]
    fn what_a_room_does_not_cover_any_more_is_not_written() {
        let disks = [Disk::new(256, PersistenceDomain::Adr, &Power::default())];
        let mut responder = Responder { rooms: Some(BTreeMap::from([(32, 96)])), ..Responder::default() };
        responder.take(Operation::Write { disk: 0, offset: 32, bytes: vec![1; 96] });
        responder.take(Operation::Write { disk: 0, offset: 120, bytes: vec![1; 16] });
        assert_eq!((responder.step(&disks), disks[0].load_u64(32)), (None, 0x0101_0101_0101_0101));
        responder.rooms.as_mut().expect("it is guarded").remove(&32);
        responder.step(&disks);
        assert!(matches!(responder.answer(), Some(Answer::Refused)), "it was taken back");
        responder.rooms = Some(BTreeMap::from([(32, 96)]));
        responder.step(&disks);
        assert!(matches!(responder.answer(), Some(Answer::Refused)), "its end lies behind the room");
        responder.take(update(&[(96, &[2; 64])]));
        responder.step(&disks);
        assert!(matches!(responder.answer(), Some(Answer::Refused)), "nor is an update made durable there");
        assert_eq!((disks[0].load_u64(64), disks[0].load_u64(120)), (0, 0));
    }

    #[test]
    fn an_operation_passes_a_flush_and_is_answered_behind_it() {
        let disks = [Disk::new(256, PersistenceDomain::Adr, &Power::default())];
        let mut responder = Responder::default();
        responder.take(update(&[(0, &[1; 8])]));
        responder.take(Operation::Read { disk: 0, offset: 0, len: 8 });
        let number = responder.step(&disks).expect("it is short");
        assert_eq!(responder.step(&disks), None);
        assert!(responder.answer().is_none(), "the first one is not durable yet");
        responder.flush(number, &disks, false);
        assert!(matches!(responder.answer(), Some(Answer::Durable)));
        assert!(matches!(responder.answer(), Some(Answer::Read(bytes)) if bytes == [1; 8]));
    }
}
