//! A recording of what comes to a switch and leaves it: a classic pcap file whose packets begin with their IP header, as `tshark` and Wireshark read it.
//!
//! The thread that carries packets never waits for who writes them down: it hands over blocks of whole packets, and drops a block, and counts its packets, where the last ones were not taken yet.
//! A packet is recorded as the switch has it. The kernel numbers what it cuts a train into, and only the first of each has the identification that is recorded here.
//!
//! Read first: draft-ietf-opsawg-pcap.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{SystemTime, UNIX_EPOCH};

/// Times in nanoseconds.
const MAGIC: u32 = 0xa1b2_3c4d;
/// Packets begin with an IPv4 or IPv6 header.
const LINKTYPE_RAW: u32 = 101;
/// The longest packet.
const SNAPLEN: u32 = 1 << 16;
/// Bytes of a block that is handed over before anybody waits.
const BLOCK: usize = 64 << 10;
/// Blocks that may wait to be written down.
const BLOCKS: usize = 64;

/// What is recorded, block by block; the first begins the file.
#[derive(Debug)]
pub struct Recording(Receiver<Vec<u8>>);

impl Iterator for Recording {
    type Item = Vec<u8>;

    /// Waits for the next block; `None` when the recording is over.
    fn next(&mut self) -> Option<Vec<u8>> {
        self.0.recv().ok()
    }
}

/// Where packets are recorded.
#[derive(Debug)]
pub(crate) struct Tape {
    to: SyncSender<Vec<u8>>,
    block: Vec<u8>,
    packets: u64,
}

impl Tape {
    pub(crate) fn begin() -> (Self, Recording) {
        let (to, from) = sync_channel(BLOCKS);
        let mut block = Vec::with_capacity(BLOCK);
        // Version 2.4, of UTC, in big-endian numbers.
        for word in [MAGIC, 2 << 16 | 4, 0, 0, SNAPLEN, LINKTYPE_RAW] {
            block.extend_from_slice(&word.to_be_bytes());
        }
        (Self { to, block, packets: 0 }, Recording(from))
    }

    /// Whether somebody still takes what is recorded.
    pub(crate) fn is_heard(&self) -> bool {
        !matches!(self.to.try_send(Vec::new()), Err(TrySendError::Disconnected(_)))
    }

    /// Records a packet; how many were dropped.
    pub(crate) fn record(&mut self, packet: &[u8]) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let len = packet.len() as u32;
        for word in [since.as_secs() as u32, since.subsec_nanos(), len, len] {
            self.block.extend_from_slice(&word.to_be_bytes());
        }
        self.block.extend_from_slice(packet);
        self.packets += 1;
        if self.block.len() < BLOCK { 0 } else { self.hand_over() }
    }

    /// Hands over what there is; how many packets were dropped.
    pub(crate) fn hand_over(&mut self) -> u64 {
        if self.block.is_empty() {
            return 0;
        }
        let packets = std::mem::take(&mut self.packets);
        match self.to.try_send(std::mem::replace(&mut self.block, Vec::with_capacity(BLOCK))) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => 0,
            Err(TrySendError::Full(_)) => packets,
        }
    }
}

/// Whoever stops has no more to record.
impl Drop for Tape {
    fn drop(&mut self) {
        self.hand_over();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_a_file_of_whole_packets_whatever_is_dropped() {
        let (mut tape, recording) = Tape::begin();
        let packet = [0x45; 1000];
        let dropped = (0..8000).map(|_| tape.record(&packet)).sum::<u64>() + tape.hand_over();
        assert!(dropped > 0, "nobody has taken anything");
        drop(tape);
        let file: Vec<u8> = recording.flatten().collect();
        assert_eq!(file[..4], MAGIC.to_be_bytes());
        let records = file[24..].as_chunks::<1016>();
        assert!(records.1.is_empty(), "cut between packets");
        assert_eq!(records.0.len() as u64 + dropped, 8000);
        for record in records.0 {
            assert_eq!((&record[8..16], &record[16..]), (&[0, 0, 3, 232, 0, 0, 3, 232][..], &packet[..]));
        }
    }

    #[test]
    fn a_recording_that_nobody_takes_is_over() {
        let (tape, recording) = Tape::begin();
        assert!(tape.is_heard());
        drop(recording);
        assert!(!tape.is_heard());
    }
}
