//! Receive buffers in persistent memory, and what recovery does with the messages in them.
//!
//! They lie behind the memory that is served, in the same region, and so in the same persistence domain:
//!
//! ```text
//! 0            served by WRITE and READ
//! data_len     session 0: a page with its stamp (at 0) and the number of the last message applied (at 64),
//!              then its receive buffers
//!              session 1 ...
//! len - 4096   superblock: magic, version, sessions, slots, slot size, data_len, CRC
//! ```
//!
//! Why a crash at any point is harmless. Messages are no log of [records](remanence_pmem::image::Records), as each lies where its number says; what
//! is believed of one is the same. A message counts if it is whole, carries the stamp of its session, and its number
//! is above the last one applied. That number becomes durable after the effects of the messages up to it, and before a
//! buffer is given back or the client is told so: what the client writes to the same places by other means comes later,
//! and no message is applied over it. Messages that recovery must apply name the one before them, so that none is applied
//! without its predecessor. A new session has a new stamp, durable before the client hears of it; older messages then do
//! not count. To apply a message twice is to apply it once, as nothing newer is there yet.

use std::io;

use remanence_codec::{Malformed, Reader};
use remanence_pmem::Medium;

use crate::message::{Kind, Parsed};

/// The version of what lies there. It is older than that of the handshake.
pub const VERSION: u16 = 1;

/// Bytes of a session's page, and of the superblock.
pub const PAGE: u64 = 4096;
const MAGIC: [u8; 8] = *b"REMRECV\0";
/// Bytes of the superblock that are used.
const SUPERBLOCK: usize = 40;
const APPLIED: u64 = 64;

/// Where the receive buffers lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Bytes before them, which are served.
    pub data_len: u64,
    /// Sessions at a time.
    pub sessions: u16,
    /// Receive buffers of each.
    pub slots: u16,
    /// Bytes of a receive buffer.
    pub slot_size: u32,
}

/// Why a region cannot be opened, or recovered.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// It is too small.
    #[error(
        "the region has {have} bytes, and receive buffers in it would take {need}; make it larger, or take fewer sessions, fewer buffers, or smaller ones"
    )]
    TooSmall {
        /// Bytes that it has.
        have: u64,
        /// Bytes that the receive buffers take.
        need: u64,
    },
    /// Written by another release.
    #[error(
        "the receive buffers in this region have format {0}, and this release writes format {VERSION}; start the release that wrote them once, so that it applies what is in them"
    )]
    OtherVersion(u16),
    /// What says where they are is damaged.
    #[error(
        "the receive buffers in this region cannot be found, as their superblock is damaged, and messages in them may have been acknowledged; restore the file from a copy, or clear its last 4096 bytes to give them up"
    )]
    Damaged,
    /// The medium failed.
    #[error(
        "the medium failed while messages were applied ({0}); nothing that was not acknowledged is safe; check the disk"
    )]
    Medium(#[from] io::Error),
}

impl Layout {
    /// The receive buffers of that many sessions at the end of a region of `len` bytes.
    ///
    /// # Errors
    /// There is no room for them and a page to serve.
    pub fn at_the_end(len: u64, sessions: u16, slots: u16, slot_size: u32) -> Result<Self, RingError> {
        let need = u64::from(sessions) * (PAGE + u64::from(slots) * u64::from(slot_size)) + PAGE;
        let data_len = len.checked_sub(need).map(|rest| rest / PAGE * PAGE).filter(|rest| *rest > 0);
        let data_len = data_len.ok_or(RingError::TooSmall { have: len, need: need + PAGE })?;
        Ok(Self { data_len, sessions, slots, slot_size })
    }

    /// Whether a region of so many bytes, of which a service has the first ones, can have receive buffers at its end.
    #[must_use]
    pub const fn has_room(len: u64, service: u64) -> bool {
        len.saturating_sub(service) >= PAGE
    }

    fn session(&self, n: u16) -> u64 {
        self.data_len + u64::from(n) * (PAGE + u64::from(self.slots) * u64::from(self.slot_size))
    }

    /// The receive buffers of session `n`.
    #[must_use]
    pub fn ring(&self, n: u16) -> Ring {
        assert!(n < self.sessions, "session {n} of {}", self.sessions);
        let page = self.session(n);
        Ring { page, first: page + PAGE, slots: self.slots, slot_size: self.slot_size }
    }

    fn superblock(&self) -> [u8; SUPERBLOCK] {
        let mut b = [0; SUPERBLOCK];
        b[..8].copy_from_slice(&MAGIC);
        b[8..10].copy_from_slice(&VERSION.to_be_bytes());
        b[10..12].copy_from_slice(&self.sessions.to_be_bytes());
        b[12..14].copy_from_slice(&self.slots.to_be_bytes());
        b[16..20].copy_from_slice(&self.slot_size.to_be_bytes());
        b[20..28].copy_from_slice(&self.data_len.to_be_bytes());
        let crc = crc32fast::hash(&b[..36]);
        b[36..].copy_from_slice(&crc.to_be_bytes());
        b
    }

    /// What a region says of its receive buffers; `None` if it has none.
    ///
    /// # Errors
    /// Another version wrote them, or what says where they are is damaged.
    pub fn find(medium: &impl Medium) -> Result<Option<Self>, RingError> {
        let Some(at) = medium.len().checked_sub(PAGE) else { return Ok(None) };
        let mut b = [0; SUPERBLOCK];
        medium.read(at, &mut b);
        let crc = u32::from_be_bytes([b[36], b[37], b[38], b[39]]);
        let sum = |b: &[u8]| crc32fast::hash(&b[..36]);
        if b[..8] == [0; 8] || b[..8] != MAGIC && sum(&[&MAGIC[..], &b[8..36]].concat()) != crc {
            return Ok(None);
        }
        // It is put there last and taken away first: what is not whole was whole once, and messages may wait behind it.
        if b[..8] != MAGIC || sum(&b) != crc {
            return Err(RingError::Damaged);
        }
        let mut r = Reader::new(&b[8..36]);
        let mut fields = || -> Result<_, Malformed> {
            let (version, sessions, slots, _, slot_size) =
                (r.u16_be()?, r.u16_be()?, r.u16_be()?, r.u16_be()?, r.u32_be()?);
            Ok((version, Self { sessions, slots, slot_size, data_len: r.u64_be()? }))
        };
        let (version, layout) = fields().expect("28 bytes are there");
        if version != VERSION {
            return Err(RingError::OtherVersion(version));
        }
        // Whoever may write the region could have written this, checksum and all, before there were receive buffers in it.
        let ring = u64::from(layout.slots).checked_mul(layout.slot_size.into());
        let all = ring.and_then(|ring| ring.checked_add(PAGE)?.checked_mul(layout.sessions.into()));
        let fits = all.and_then(|all| layout.data_len.checked_add(all)).is_some_and(|end| end <= at);
        let aligned = layout.data_len.is_multiple_of(PAGE) && layout.slot_size.is_multiple_of(64);
        Ok((fits && aligned && layout.slots > 0 && layout.slot_size > 0).then_some(layout))
    }

    /// Makes the receive buffers of a region that has none, or other ones; what was in them must have been applied.
    ///
    /// # Errors
    /// The medium failed.
    pub fn format(&self, medium: &impl Medium) -> io::Result<()> {
        let at = medium.len() - PAGE;
        if self.superblock() == {
            let mut b = [0; SUPERBLOCK];
            medium.read(at, &mut b);
            b
        } {
            return Ok(());
        }
        Self::remove(medium)?;
        for n in 0..self.sessions {
            self.ring(n).begin(medium, 0)?;
        }
        // The magic number is never torn, and says that the rest is there.
        let superblock = self.superblock();
        for part in [8..SUPERBLOCK, 0..8] {
            let begins = at + part.start as u64;
            medium.write(begins, &superblock[part.clone()]);
            medium.persist(begins..at + part.end as u64)?;
        }
        Ok(())
    }

    /// Takes the receive buffers away again: from now on the whole region is served.
    ///
    /// # Errors
    /// The medium failed.
    pub fn remove(medium: &impl Medium) -> io::Result<()> {
        let at = medium.len() - PAGE;
        for len in [8, SUPERBLOCK] {
            medium.write(at, &[0; SUPERBLOCK][..len]);
            medium.persist(at..at + len as u64)?;
        }
        Ok(())
    }
}

/// The receive buffers of one session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ring {
    page: u64,
    /// Offset of the first buffer.
    pub first: u64,
    /// How many buffers there are.
    pub slots: u16,
    /// Bytes of each.
    pub slot_size: u32,
}

impl Ring {
    /// Buffers in memory that no recovery looks at, from its start.
    #[must_use]
    pub const fn volatile(slots: u16, slot_size: u32) -> Self {
        Self { page: 0, first: 0, slots, slot_size }
    }

    /// Bytes of all buffers.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.slot_size)
    }

    /// Where the buffer of a message lies, by its number.
    #[must_use]
    pub fn buffer(&self, number: u64) -> u64 {
        self.first + (number - 1) % u64::from(self.slots) * u64::from(self.slot_size)
    }

    /// Begins a session: from now on older messages do not count. Durable on return.
    ///
    /// # Errors
    /// The medium failed.
    pub fn begin(&self, medium: &impl Medium, stamp: u64) -> io::Result<()> {
        medium.store_u64(self.page, stamp.to_be());
        medium.persist(self.page..self.page + 8)?;
        medium.store_u64(self.page + APPLIED, 0);
        medium.persist(self.page + APPLIED..self.page + APPLIED + 8)
    }

    /// Every message up to this one is applied, durably. So is this, on return.
    ///
    /// # Errors
    /// The medium failed.
    pub fn applied(&self, medium: &impl Medium, number: u64) -> io::Result<()> {
        medium.store_u64(self.page + APPLIED, number.to_be());
        medium.persist(self.page + APPLIED..self.page + APPLIED + 8)
    }

    fn recover(&self, medium: &impl Medium, data_len: u64, found: &mut Recovered) -> Result<(), RingError> {
        let stamp = u64::from_be(medium.load_u64(self.page));
        let done = u64::from_be(medium.load_u64(self.page + APPLIED));
        let mut buffer = vec![0; self.slot_size as usize];
        let mut numbers = Vec::new();
        for slot in 0..self.slots {
            medium.read(self.first + u64::from(slot) * u64::from(self.slot_size), &mut buffer);
            match Parsed::read(&buffer) {
                Ok(message) if message.header.stamp == stamp && message.header.number > done => {
                    // Its number says where it must lie; anything else is no message of this ring.
                    let here = (message.header.number - 1) % u64::from(self.slots) == u64::from(slot);
                    let applies = message.header.kind == Kind::Update && message.header.replay;
                    if here && applies {
                        numbers.push(message.header.number);
                    }
                }
                Ok(_) => {}
                Err(_) => found.partial += u64::from(buffer.iter().any(|b| *b != 0)),
            }
        }
        numbers.sort_unstable();
        let mut last = done;
        for number in numbers {
            medium.read(self.buffer(number), &mut buffer);
            let Ok(message) = Parsed::read(&buffer) else { continue };
            let inside = message
                .entries
                .iter()
                .all(|e| e.offset.checked_add(u64::from(e.len)).is_some_and(|end| end <= data_len));
            // Without its predecessor it was never acknowledged.
            if message.header.after > last || !inside {
                break;
            }
            for entry in &message.entries {
                if let Some(at) = entry.data {
                    medium.write(entry.offset, &buffer[at as usize..][..entry.len as usize]);
                    medium.pwb(entry.offset..entry.offset + u64::from(entry.len));
                }
            }
            medium.psync()?;
            found.applied += 1;
            last = number;
        }
        if last > done {
            self.applied(medium, last)?;
        }
        Ok(())
    }
}

/// What recovery found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Recovered {
    /// Messages that were applied.
    pub applied: u64,
    /// Buffers that hold something that is not a whole message: nothing of it was acknowledged.
    pub partial: u64,
}

/// Applies the messages that a crash left in receive buffers: whole ones, oldest first. To be called before anything is
/// served; to be crashed in is harmless.
///
/// # Errors
/// Another version wrote them, they are damaged, or the medium failed.
pub fn recover(medium: &impl Medium) -> Result<Recovered, RingError> {
    let mut found = Recovered::default();
    if let Some(layout) = Layout::find(medium)? {
        for n in 0..layout.sessions {
            layout.ring(n).recover(medium, layout.data_len, &mut found)?;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use remanence_pmem::PersistenceDomain;
    use remanence_pmem::crash_image::{CrashImage, Explorer};

    use super::*;
    use crate::message::{Entry, Header};

    const LEN: u64 = 16 * 4096;

    fn layout() -> Layout {
        Layout::at_the_end(LEN, 2, 4, 512).expect("room")
    }

    fn message(stamp: u64, number: u64, after: u64, offset: u64, data: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        Entry::emit(&mut body, offset, data.len() as u32, true);
        body.extend_from_slice(data);
        let mut hash = crc32fast::Hasher::new();
        hash.update(&body);
        let header =
            Header { stamp, number, after, kind: Kind::Update, replay: true, part: 0, plan: 1, entries: 1 };
        [&header.emit(body.len() as u32, &hash)[..], &body].concat()
    }

    fn at(image: &impl Medium, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        image.read(offset, &mut bytes);
        bytes
    }

    fn made() -> CrashImage {
        let image = CrashImage::new(LEN, PersistenceDomain::Adr);
        layout().format(&image).expect("memory");
        layout().ring(0).begin(&image, 7).expect("memory");
        image
    }

    #[test]
    fn whole_messages_are_applied_oldest_first_and_only_once() {
        let image = made();
        let ring = layout().ring(0);
        for (number, after, data) in [(1, 0, b"first..."), (2, 1, b"second..")] {
            image.write(ring.buffer(number), &message(7, number, after, 128, data));
        }
        // Half a message, one of an older session, and one whose predecessor is missing.
        image.write(ring.buffer(3), &message(7, 3, 2, 256, b"torn....")[..50]);
        assert_eq!(recover(&image).expect("sound"), Recovered { applied: 2, partial: 1 });
        assert_eq!(at(&image, 128, 8), b"second..");
        assert_eq!(at(&image, 256, 8), [0; 8], "nothing of half a message");
        // Newer data by other means is not overwritten by the same messages.
        image.write(128, b"by WRITE");
        assert_eq!(recover(&image).expect("sound").applied, 0);
        assert_eq!(at(&image, 128, 8), b"by WRITE");
        image.write(ring.buffer(4), &message(7, 8, 7, 256, b"gap....."));
        image.write(ring.buffer(1), &message(6, 5, 0, 256, b"old....."));
        assert_eq!(recover(&image).expect("sound").applied, 0);
        assert_eq!(at(&image, 256, 8), [0; 8]);
    }

    #[test]
    fn a_message_that_would_write_elsewhere_is_not_applied() {
        let image = made();
        let data_len = layout().data_len;
        image.write(layout().ring(0).buffer(1), &message(7, 1, 0, data_len - 4, b"over...."));
        assert_eq!(recover(&image).expect("sound").applied, 0);
        image.write(layout().ring(0).buffer(1), &message(7, 1, 0, u64::MAX - 3, b"over...."));
        assert_eq!(recover(&image).expect("sound").applied, 0);
    }

    #[test]
    fn recovery_may_be_crashed_at_every_step() {
        let image = made();
        let ring = layout().ring(0);
        for (number, data) in [(1, b"first..."), (2, b"second.."), (3, b"third...")] {
            image.write(ring.buffer(number), &message(7, number, number - 1, 64 * number, data));
            image.write(ring.buffer(number) + 200, &[0xEE; 8]);
        }
        image.persist(0..LEN).expect("memory");
        let report = Explorer::default().run(
            &image,
            |image| {
                recover(image).expect("sound");
                image.note(1);
                // From here on something newer may be written there.
                image.write(64, b"newer...");
                image.persist(64..72).expect("memory");
                image.note(2);
            },
            |crashed, notes| {
                recover(crashed).expect("a crash is no damage");
                let first = at(crashed, 64, 8);
                match notes.len() {
                    0 => assert_eq!(first, b"first..."),
                    1 => assert!(first == b"first..." || first == b"newer..."),
                    _ => assert_eq!(first, b"newer...", "an old message was applied over newer data"),
                }
                assert_eq!(at(crashed, 192, 8), b"third...");
            },
        );
        assert!(report.steps > 8, "{report:?}");
    }

    #[test]
    fn a_new_session_ends_the_claims_of_the_one_before_at_every_step() {
        let image = made();
        let ring = layout().ring(0);
        image.write(ring.buffer(1), &message(7, 1, 0, 64, b"applied."));
        ring.applied(&image, 1).expect("memory");
        image.write(64, b"newer...");
        image.persist(0..LEN).expect("memory");
        Explorer::default().run(
            &image,
            |image| ring.begin(image, 8).expect("memory"),
            |crashed, _| {
                assert_eq!(recover(crashed).expect("sound").applied, 0);
                assert_eq!(at(crashed, 64, 8), b"newer...");
            },
        );
    }

    #[test]
    fn a_superblock_that_a_client_made_up_does_no_harm() {
        let honest = layout();
        for lie in [
            Layout { data_len: u64::MAX - 4095, ..honest },
            Layout { data_len: honest.data_len + 1, ..honest },
            Layout { slots: u16::MAX, slot_size: u32::MAX - 63, ..honest },
            Layout { sessions: u16::MAX, ..honest },
            Layout { slots: 0, ..honest },
            Layout { slot_size: 0, ..honest },
            Layout { slot_size: 500, ..honest },
        ] {
            let image = CrashImage::new(LEN, PersistenceDomain::Adr);
            image.write(LEN - PAGE, &lie.superblock());
            assert_eq!(Layout::find(&image).expect("ours by its checksum"), None, "{lie:?}");
            assert_eq!(recover(&image).expect("nothing there"), Recovered::default());
        }
    }

    /// A message was acknowledged when it was in its buffer: buffers that are made anew give it up.
    #[test]
    fn a_superblock_that_is_damaged_is_not_taken_for_none() {
        let image = made();
        image.write(layout().ring(0).buffer(1), &message(7, 1, 0, 128, b"kept...."));
        let good = image.bytes();
        for bit in 0..SUPERBLOCK * 8 {
            let mut bad = good.clone();
            bad[(LEN - PAGE) as usize + bit / 8] ^= 1 << (bit % 8);
            let bad = CrashImage::from_bytes(bad, PersistenceDomain::Adr);
            assert!(matches!(recover(&bad), Err(RingError::Damaged)), "bit {bit}");
        }
        assert_eq!(recover(&image).expect("sound").applied, 1);
    }

    #[test]
    fn a_crash_while_buffers_are_made_or_taken_away_is_no_damage() {
        for domain in [PersistenceDomain::Adr, PersistenceDomain::PageCache] {
            let other = Layout::at_the_end(LEN, 1, 8, 256).expect("room");
            let image = CrashImage::new(LEN, domain);
            layout().format(&image).expect("memory");
            Explorer::default().run(
                &image,
                |image| other.format(image).and_then(|()| Layout::remove(image)).expect("memory"),
                |crashed, _| {
                    let found = Layout::find(crashed).expect("a crash is no damage");
                    assert!(found.is_none_or(|found| found == layout() || found == other), "{found:?}");
                },
            );
        }
    }

    #[test]
    fn another_version_is_not_touched_and_too_small_a_region_is_refused() {
        let image = made();
        let mut b = layout().superblock();
        b[9] = 9;
        let crc = crc32fast::hash(&b[..36]);
        b[36..].copy_from_slice(&crc.to_be_bytes());
        image.write(LEN - PAGE, &b);
        assert!(matches!(recover(&image), Err(RingError::OtherVersion(9))));
        assert!(matches!(Layout::at_the_end(LEN, 200, 4, 512), Err(RingError::TooSmall { .. })));
        assert_eq!(Layout::find(&CrashImage::new(LEN, PersistenceDomain::Adr)).expect("zeros"), None);
    }
}
