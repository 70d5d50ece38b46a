//! What a server did, and how full its store is.

use remanence_kv::server::{Room, Stats, Usage};
use remanence_kv::view::Mode;

use super::wire::{emit_words, parse_words};

/// A server at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreStats {
    /// What the store did in this run.
    pub server: Stats,
    /// How full it is.
    pub usage: Usage,
    /// Calls that the server's application answered. One-sided GETs are not among them: nobody there sees them.
    pub calls: u64,
    /// Clients that are connected.
    pub clients: u64,
    /// Since when it serves, milliseconds.
    pub uptime: u64,
    /// How often the store was opened.
    pub boot: u32,
    /// What an acknowledgement means.
    pub mode: Mode,
    /// Bytes of the store.
    pub size: u64,
    /// Bytes of a region.
    pub region_len: u64,
    /// Heads whose logs are still to be cleaned, because somebody asked for it.
    pub to_clean: u64,
}

/// What every server of this version of the protocol says, and what newer ones say behind it.
const WORDS: usize = 28;
const MORE: usize = 6;

impl StoreStats {
    pub(super) fn emit(&self) -> Vec<u8> {
        let (s, u) = (&self.server, &self.usage);
        let words: [u64; WORDS + MORE] = [
            s.reserved,
            s.settled,
            s.given_up,
            s.written,
            s.unfinished,
            s.regions_freed,
            s.objects_moved,
            s.entries_moved,
            s.grown,
            s.damaged,
            s.repaired,
            s.fenced,
            u.regions.into(),
            u.regions_free.into(),
            u.entries,
            u.entries_max,
            u.unfinished as u64,
            u.cleaning.into(),
            u.growing.into(),
            self.calls,
            self.clients,
            self.uptime,
            self.boot.into(),
            u64::from(self.mode == Mode::Durable),
            self.size,
            self.region_len,
            self.to_clean,
            s.expired,
            u.room.counted.into(),
            u.room.keys,
            u.room.live,
            u.room.garbage,
            u.room.free,
            u.room.left,
        ];
        emit_words(&words)
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let w: [u64; WORDS] = parse_words(bytes)?;
        let more = parse_words(bytes.get(8 * WORDS..)?).map(|r: [u64; MORE]| Room {
            counted: r[0] != 0,
            keys: r[1],
            live: r[2],
            garbage: r[3],
            free: r[4],
            left: r[5],
        });
        let server = Stats {
            reserved: w[0],
            settled: w[1],
            given_up: w[2],
            written: w[3],
            unfinished: w[4],
            regions_freed: w[5],
            objects_moved: w[6],
            entries_moved: w[7],
            grown: w[8],
            damaged: w[9],
            repaired: w[10],
            fenced: w[11],
            expired: w[27],
        };
        let usage = Usage {
            regions: u32::try_from(w[12]).ok()?,
            regions_free: u32::try_from(w[13]).ok()?,
            entries: w[14],
            entries_max: w[15],
            unfinished: usize::try_from(w[16]).ok()?,
            cleaning: w[17] != 0,
            growing: w[18] != 0,
            room: more.unwrap_or_default(),
        };
        Some(Self {
            server,
            usage,
            calls: w[19],
            clients: w[20],
            uptime: w[21],
            boot: u32::try_from(w[22]).ok()?,
            mode: if w[23] == 0 { Mode::Erda } else { Mode::Durable },
            size: w[24],
            region_len: w[25],
            to_clean: w[26],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_may_know_more_than_the_other() {
        let words: Vec<u64> = (1..=(WORDS + MORE) as u64).collect();
        let bytes = crate::wire::emit_words(&words);
        let stats = StoreStats::parse(&bytes).expect("all of it");
        assert_eq!((stats.usage.room.keys, stats.usage.room.left, stats.server.expired), (30, 34, 28));
        let back = StoreStats::parse(&stats.emit()).expect("all of it");
        assert_eq!(back, stats);
        // A server of before says nothing of its room, and one of later more than this.
        let older = StoreStats::parse(&bytes[..8 * WORDS]).expect("what they all say");
        assert_eq!(older, StoreStats { usage: Usage { room: Room::default(), ..stats.usage }, ..stats });
        assert_eq!(StoreStats::parse(&[&bytes[..], &[0; 8]].concat()), Some(stats));
        assert_eq!(StoreStats::parse(&bytes[..8 * WORDS - 1]), None);
    }
}
