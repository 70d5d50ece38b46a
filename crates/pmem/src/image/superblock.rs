//! The superblock: a magic number, a version, the fields, and a checksum behind them. Little-endian.
//!
//! Formats that are made anew have the fields that all need in the [places](Places::COMMON) that `pool` and `coord` have them in:
//!
//! ```text
//! 0   magic, 8 bytes       16  uuid, 16 bytes      40       fields of the format
//! 8   version, u32         32  size, u64           crc_at   CRC-32 of all before it, u32
//! 12  0x01020304, u32
//! ```

use std::io;
use std::ops::Range;

use super::signature::put;
use super::{Fault, Signature};
use crate::layout::{Uuid, get_u32, get_u64};
use crate::{Image, JOURNAL_NOTE_LEN, Medium, Region};

const VERSION: usize = 8;
const BYTE_ORDER: u32 = 0x0102_0304;

/// A format, as far as its superblock tells it from others.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// How its media begin.
    pub signature: Signature,
    /// The versions that are read.
    pub versions: &'static [Version],
    /// Where the fields lie that all formats have.
    pub places: Places,
    /// What proves a superblock whole.
    pub checksum: Checksum,
}

/// A version of a format, as far as the codec has to know it.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// The number that stands in the superblock.
    pub number: u32,
    /// Where the checksum lies, in bytes from the start of a copy; it covers all before it.
    pub crc_at: usize,
    /// Bytes of a copy, with the zeros behind its checksum.
    pub len: usize,
    /// Whether there is a [second](Signature::second) copy.
    pub twice: bool,
}

/// Where the fields lie that the codec reads itself.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// A number that shows the byte order, if the format has one.
    pub byte_order: Option<usize>,
    /// The name of the image.
    pub uuid: usize,
    /// How many bytes it takes.
    pub size: usize,
}

impl Places {
    /// Those of a format that had no reason for others: its own fields begin at byte 40.
    pub const COMMON: Self = Self { byte_order: Some(12), uuid: 16, size: 32 };
}

/// A checksum of up to eight bytes.
#[derive(Clone, Copy, Debug)]
pub struct Checksum {
    /// How many bytes it takes.
    pub len: usize,
    /// How it is computed.
    pub of: fn(&[u8]) -> u64,
}

impl Checksum {
    /// CRC-32, of IEEE 802.3.
    pub const CRC32: Self = Self { len: 4, of: |bytes| crc32fast::hash(bytes).into() };

    /// Whether these bytes have it behind so many of them.
    fn fits(&self, bytes: &[u8], at: usize) -> bool {
        let sum = (self.of)(&bytes[..at.min(bytes.len())]).to_le_bytes();
        bytes.get(at..at + self.len).is_some_and(|found| *found == sum[..self.len])
    }
}

/// A superblock whose checksum fits.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// What it says.
    pub fields: Fields<'a>,
    /// Which of the copies are whole, and say so: the first, and the second, which counts as whole in a version that has none.
    pub whole: [bool; 2],
}

/// The fields of a superblock whose checksum fits.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    bytes: &'a [u8],
    version: Version,
    places: Places,
}

impl Fields<'_> {
    /// The version that wrote them.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version.number
    }

    /// The name of the image.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        Uuid(self.bytes[self.places.uuid..][..16].try_into().expect("sixteen bytes"))
    }

    /// Bytes that the image has.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.u64(self.places.size)
    }

    /// The number at a constant place in front of the checksum.
    ///
    /// # Panics
    /// No field of the format lies there.
    #[must_use]
    pub fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.bytes[at..at + 2].try_into().expect("two bytes"))
    }

    /// The same, of four bytes.
    ///
    /// # Panics
    /// As for [`u16`](Self::u16).
    #[must_use]
    pub fn u32(&self, at: usize) -> u32 {
        get_u32(self.bytes, at)
    }

    /// The same, of eight bytes.
    ///
    /// # Panics
    /// As for [`u16`](Self::u16).
    #[must_use]
    pub fn u64(&self, at: usize) -> u64 {
        get_u64(self.bytes, at)
    }

    /// Compares the size with a medium of `has` bytes.
    ///
    /// # Errors
    /// The medium is [shorter](Fault::Truncated) or [longer](Fault::Grown).
    pub fn fill(&self, has: u64) -> Result<(), Fault> {
        let wants = self.size();
        match has.cmp(&wants) {
            std::cmp::Ordering::Less => Err(Fault::Truncated { has, wants }),
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => Err(Fault::Grown { has, wants }),
        }
    }
}

impl Format {
    /// The bytes of a copy, with the fields of the format's own, each at its place. Those of the [note](Signature::note) are zeros:
    /// [`make`](Self::make) leaves out what is there.
    ///
    /// # Panics
    /// The format has no such version, or a field lies behind the checksum.
    #[must_use]
    pub fn emit(&self, version: u32, uuid: Uuid, size: u64, own: &[(usize, &[u8])]) -> Vec<u8> {
        let Version { crc_at, len, .. } = self.version(version).expect("a version of the format");
        let order = BYTE_ORDER.to_le_bytes();
        let common: [(usize, &[u8]); 4] = [
            (0, &self.signature.magic),
            (VERSION, &version.to_le_bytes()),
            (self.places.uuid, &uuid.0),
            (self.places.size, &size.to_le_bytes()),
        ];
        let mut bytes = vec![0; len];
        for (at, field) in common
            .into_iter()
            .chain(self.places.byte_order.map(|at| (at, &order[..])))
            .chain(own.iter().copied())
        {
            assert!(at + field.len() <= crc_at, "the checksum at {crc_at} does not cover the field at {at}");
            bytes[at..at + field.len()].copy_from_slice(field);
        }
        let sum = (self.checksum.of)(&bytes[..crc_at]).to_le_bytes();
        bytes[crc_at..crc_at + self.checksum.len].copy_from_slice(&sum[..self.checksum.len]);
        bytes
    }

    /// Tells what a medium has that begins with these bytes, as far as [`read`](Self::read) hands them out at least. Where there are
    /// two copies, the first counts if it is whole, and otherwise the second. The size of the image is not compared with anything
    /// ([`Fields::fill`]): the fields of the format's own are checked before.
    ///
    /// # Errors
    /// There is no image of a version that is read, or it is damaged. No bytes make this panic.
    pub fn judge<'a>(&self, head: &'a [u8]) -> Result<Found<'a>, Fault> {
        self.signature.judge(head)?;
        if head.len() < self.least() {
            return Err(Fault::TooShort);
        }
        let second = self.signature.second.and_then(|at| head.get(at as usize..));
        match (self.copy(head), second.map_or(Err(Fault::Foreign), |copy| self.copy(copy))) {
            (Ok(fields), second) => {
                let whole = !fields.version.twice || second.is_ok_and(|second| second.bytes == fields.bytes);
                Ok(Found { fields, whole: [true, whole] })
            }
            // Who writes a later version over ours need not know of the second copy.
            (Err(later @ (Fault::OtherVersion { .. } | Fault::OtherByteOrder)), _) => Err(later),
            (Err(_), Ok(fields)) => Ok(Found { fields, whole: [false, true] }),
            (Err(Fault::Foreign), Err(second)) => Err(second),
            (Err(first), Err(_)) => Err(first),
        }
    }

    /// What a copy says that begins here; [`Fault::Foreign`]: there is none.
    fn copy<'a>(&self, bytes: &'a [u8]) -> Result<Fields<'a>, Fault> {
        if !bytes.starts_with(&self.signature.magic) || bytes.len() < self.least() {
            return Err(Fault::Foreign);
        }
        if self.places.byte_order.is_some_and(|at| get_u32(bytes, at) == BYTE_ORDER.swap_bytes()) {
            return Err(Fault::OtherByteOrder);
        }
        let found = get_u32(bytes, VERSION);
        let Some(version) = self.version(found) else {
            // Another version, unless it is the number that is damaged: then the other copy counts.
            let damaged = |version: &Version| {
                let mut mended = bytes[..bytes.len().min(version.len)].to_vec();
                mended[VERSION..][..4].copy_from_slice(&version.number.to_le_bytes());
                self.checksum.fits(&mended, version.crc_at)
            };
            let damaged = self.signature.second.is_some() && self.versions.iter().any(damaged);
            return Err(if damaged { Fault::Damaged } else { Fault::OtherVersion { found } });
        };
        if !self.checksum.fits(bytes, version.crc_at) {
            return Err(Fault::Damaged);
        }
        Ok(Fields { bytes: &bytes[..version.crc_at], version, places: self.places })
    }

    fn version(&self, number: u32) -> Option<Version> {
        self.versions.iter().copied().find(|version| version.number == number)
    }

    /// Bytes of the shortest superblock, up to the end of its checksum.
    fn least(&self) -> usize {
        self.versions.iter().map(|version| version.crc_at).min().unwrap_or(0) + self.checksum.len
    }

    /// How many bytes a head says that its image has, if it begins like one: it need not be right.
    #[must_use]
    pub fn recorded_size(&self, head: &[u8]) -> Option<u64> {
        let begins = head.len() >= self.least() && head.starts_with(&self.signature.magic);
        begins.then(|| get_u64(head, self.places.size))
    }

    /// What a file of `len` bytes has that begins so: [`Signature::image`]. What is left of an image that was cut off within its
    /// superblock is none.
    #[must_use]
    pub fn image(&self, head: &[u8], len: u64) -> Image {
        match self.signature.image(head, len) {
            Image::Ours { .. } if head.len() < self.least() => Image::Foreign,
            other => other,
        }
    }

    /// The head of a medium as far as it is judged: where a superblock begins, its copies, with zeros between; otherwise
    /// [all of it](Signature::read).
    #[must_use]
    pub fn read(&self, medium: &impl Medium) -> Vec<u8> {
        let mut head = vec![0; (self.signature.head as u64).min(medium.len()) as usize];
        let longest =
            self.versions.iter().map(|version| version.crc_at).max().unwrap_or(0) + self.checksum.len;
        let making = self.signature.making.map(|making| (making.at, making.mark.len()));
        let second = self.signature.second.map(|at| (at, longest));
        for (at, len) in [Some((0, longest)), second, making].into_iter().flatten() {
            let part = at as usize..(at as usize + len).min(head.len());
            head.get_mut(part).into_iter().for_each(|part| medium.read(at, part));
        }
        if self.signature.is_ours(&head) { head } else { self.signature.read(medium) }
    }

    /// The head of a region that somebody else opened, as [`read`](Self::read) has it. `unused` is told that head, and says where the
    /// image has nothing of its own: all of a blank region, what lies behind an image that is whole, nothing of what is foreign. There what
    /// is left of a journal would lie. Who opens a file by [`Signature::file_options`] need not ask.
    ///
    /// # Errors
    /// The region's file was cut short within its journal: what psync promised may have been in what was cut off.
    pub fn open(
        &self,
        region: &Region,
        unused: impl FnOnce(&[u8]) -> Range<u64>,
    ) -> Result<Vec<u8>, crate::Error> {
        let head = self.read(region);
        region.refuse_cut_journal(unused(&head))?;
        Ok(head)
    }

    /// Where the copies of such a superblock are, the first last: each is durable before the next is touched.
    fn copies(&self, bytes: &[u8]) -> impl Iterator<Item = u64> + use<> {
        let twice = self.version(get_u32(bytes, VERSION)).is_some_and(|version| version.twice);
        self.signature.second.filter(|_| twice).into_iter().chain([0])
    }

    /// Puts a superblock on a medium that has none; durable on return. A crash leaves none, or this one, and none that is damaged.
    ///
    /// # Errors
    /// The medium failed.
    pub fn make(&self, medium: &impl Medium, bytes: &[u8]) -> io::Result<()> {
        let note = self.signature.note.map_or(bytes.len(), |(at, _)| bytes.len().min(at as usize));
        let behind = bytes.len().min(note + JOURNAL_NOTE_LEN);
        for copy in self.copies(bytes) {
            // The first word says that there is one, and is stored atomically.
            for part in [8..note, behind..bytes.len(), 0..8] {
                if !part.is_empty() {
                    put(medium, copy + part.start as u64, &bytes[part])?;
                }
            }
        }
        Ok(())
    }

    /// Replaces the superblock of an image by another; durable on return. A crash leaves one copy whole, where there are two: the
    /// first, as it was, or the second, which is then the new one.
    ///
    /// # Errors
    /// The medium failed, and has one of them.
    pub fn replace(&self, medium: &impl Medium, bytes: &[u8]) -> io::Result<()> {
        self.copies(bytes).try_for_each(|at| put(medium, at, bytes))
    }

    /// Takes all copies away: there is no image any more.
    ///
    /// # Errors
    /// The medium failed.
    pub fn erase(&self, medium: &impl Medium) -> io::Result<()> {
        let longest = self.versions.iter().map(|version| version.len).max().unwrap_or(0);
        for at in self.signature.second.into_iter().chain([0]) {
            medium.write(at, &vec![0; longest]);
            medium.pwb(at..at + longest as u64);
        }
        medium.psync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PersistenceDomain;
    use crate::crash_image::{CrashImage, Explorer};
    use crate::image::Making;

    const LONG: Version = Version { number: 3, crc_at: 52, len: 64, twice: true };
    const FORMAT: Format = Format {
        signature: Signature {
            magic: *b"REMTEST\0",
            second: Some(256),
            making: Some(Making { at: 192, mark: b"REMTESTm", ends: false }),
            head: 512,
            note: Some((128, "ask its owner")),
        },
        versions: &[Version { number: 2, crc_at: 44, len: 48, twice: false }, LONG],
        places: Places::COMMON,
        checksum: Checksum::CRC32,
    };

    fn old() -> Vec<u8> {
        FORMAT.emit(2, Uuid([7; 16]), 4096, &[(40, &[1, 2, 3, 4])])
    }

    fn new() -> Vec<u8> {
        FORMAT.emit(3, Uuid([7; 16]), 4096, &[(40, &[1, 2, 3, 4]), (50, &[5, 6])])
    }

    /// A head with these copies.
    fn head(first: &[u8], second: &[u8]) -> Vec<u8> {
        let mut head = vec![0; 512];
        head[..first.len()].copy_from_slice(first);
        head[256..256 + second.len()].copy_from_slice(second);
        head
    }

    /// The number of the version, and which copies are whole.
    fn judged(first: &[u8], second: &[u8]) -> Result<(u32, [bool; 2]), Fault> {
        FORMAT.judge(&head(first, second)).map(|found| (found.fields.version(), found.whole))
    }

    fn with(bytes: &[u8], change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        change(&mut bytes);
        bytes
    }

    /// As another version of the format writes it that has its checksum in the same place.
    fn resealed(bytes: &[u8], version: u8) -> Vec<u8> {
        with(bytes, |bytes| {
            bytes[VERSION] = version;
            let sum = crc32fast::hash(&bytes[..LONG.crc_at]).to_le_bytes();
            bytes[LONG.crc_at..][..4].copy_from_slice(&sum);
        })
    }

    #[test]
    fn what_was_emitted_is_read() {
        assert_eq!((old().len(), new().len()), (48, 64));
        let head = head(&new(), &new());
        let fields = FORMAT.judge(&head).expect("whole").fields;
        assert_eq!((fields.uuid(), fields.size()), (Uuid([7; 16]), 4096));
        assert_eq!(
            (fields.u16(50), fields.u32(40), fields.u64(40) as u32),
            (0x0605, 0x0403_0201, 0x0403_0201)
        );
        assert_eq!(fields.fill(4096), Ok(()));
        assert_eq!(fields.fill(4095), Err(Fault::Truncated { has: 4095, wants: 4096 }));
        assert_eq!(fields.fill(4097), Err(Fault::Grown { has: 4097, wants: 4096 }));
    }

    /// A later version may have its checksum elsewhere, so one that fits no more says nothing of it.
    #[test]
    fn the_version_is_looked_at_before_the_checksum() {
        let later = with(&new(), |bytes| bytes[VERSION..].fill(4));
        assert_eq!(judged(&later, &[]), Err(Fault::OtherVersion { found: 0x0404_0404 }));
        assert_eq!(judged(&resealed(&new(), 4), &[]), Err(Fault::OtherVersion { found: 4 }));
        assert_eq!(judged(&resealed(&new(), 4), &new()), Err(Fault::OtherVersion { found: 4 }));
        let number = with(&new(), |bytes| bytes[VERSION] = 4);
        assert_eq!(judged(&number, &[]), Err(Fault::Damaged), "only the number is");
        let once = Format { signature: Signature { second: None, ..FORMAT.signature }, ..FORMAT };
        assert_eq!(once.judge(&number).map(|_| ()), Err(Fault::OtherVersion { found: 4 }));
        assert_eq!(judged(&with(&new(), |b| b[12..16].reverse()), &new()), Err(Fault::OtherByteOrder));
        assert_eq!(judged(&with(&new(), |b| b[..8].reverse()), &[]), Err(Fault::OtherByteOrder));
        for byte in 8..LONG.crc_at + 4 {
            assert_eq!(judged(&with(&new(), |b| b[byte] ^= 0x10), &[]), Err(Fault::Damaged), "byte {byte}");
        }
    }

    #[test]
    fn the_first_copy_that_is_whole_counts() {
        let bad = with(&new(), |bytes| bytes[40] ^= 1);
        assert_eq!(judged(&new(), &new()), Ok((3, [true, true])));
        assert_eq!(judged(&new(), &bad), Ok((3, [true, false])));
        assert_eq!(judged(&new(), &FORMAT.emit(3, Uuid([7; 16]), 8192, &[])), Ok((3, [true, false])));
        assert_eq!(judged(&bad, &new()), Ok((3, [false, true])));
        assert_eq!(judged(&[], &new()), Ok((3, [false, true])));
        assert_eq!(judged(&old(), &[]), Ok((2, [true, true])), "it has one");
        assert_eq!((judged(&bad, &bad), judged(&[], &bad)), (Err(Fault::Damaged), Err(Fault::Damaged)));
        assert_eq!(FORMAT.judge(&new()[..47]).map(|_| ()), Err(Fault::TooShort));
        assert_eq!(FORMAT.judge(&new()[..54]).map(|_| ()), Err(Fault::Damaged));
    }

    #[test]
    fn a_file_that_begins_like_an_image_is_one_also_if_it_is_damaged() {
        let damaged = with(&old(), |bytes| bytes[20] ^= 1);
        assert_eq!(FORMAT.image(&damaged, 9000), Image::Ours { len: 9000 });
        assert_eq!(FORMAT.recorded_size(&damaged), Some(4096));
        assert_eq!(FORMAT.image(&damaged[..40], 40), Image::Foreign);
        let making = [&[0; 192][..], b"REMTESTm", &[1; 200]].concat();
        assert_eq!(FORMAT.image(&making, 400), Image::Blank);
        assert_eq!(FORMAT.image(b"", 0), Image::Blank);
        assert_eq!(FORMAT.image(b"something", 9), Image::Foreign);
    }

    #[test]
    fn no_head_makes_it_panic() {
        let whole = head(&new(), &new());
        for len in 0..=whole.len() {
            for fill in [None, Some(0), Some(0xff)] {
                let mut head = whole[..len].to_vec();
                fill.into_iter().for_each(|byte| head.fill(byte));
                let _ = (FORMAT.judge(&head).is_ok(), FORMAT.image(&head, u64::MAX));
            }
        }
    }

    #[test]
    fn what_lies_in_the_note_s_place_stays_when_an_image_is_made() {
        const LONG: Version = Version { number: 2, crc_at: 44, len: 256, twice: false };
        let format = Format { versions: &[LONG], ..FORMAT };
        let image = CrashImage::from_bytes(vec![0xEE; 512], PersistenceDomain::Adr);
        let bytes = format.emit(2, Uuid([7; 16]), 4096, &[]);
        format.make(&image, &bytes).expect("memory");
        let made = image.bytes();
        assert_eq!((&made[..128], &made[192..256]), (&bytes[..128], &bytes[192..]));
        assert_eq!((&made[128..192], &made[256..]), (&[0xEE; 64][..], &[0xEE; 256][..]));
    }

    #[test]
    fn a_crash_while_it_is_made_or_replaced_leaves_none_or_one_that_is_whole() {
        for domain in [PersistenceDomain::Adr, PersistenceDomain::PageCache] {
            let blank = CrashImage::new(512, domain);
            let made = |image: &CrashImage| {
                FORMAT.signature.begin(image).expect("memory");
                FORMAT.make(image, &new()).expect("memory");
            };
            let mut seen = [0; 3];
            Explorer::default().run(
                &blank,
                |image| made(image),
                |crashed, _| match FORMAT.judge(&FORMAT.read(crashed)).map(|found| found.whole) {
                    Err(Fault::Blank | Fault::Making) => seen[0] += 1,
                    Ok(whole) => seen[if whole == [true; 2] { 2 } else { 1 }] += 1,
                    other => panic!("{other:?}"),
                },
            );
            assert!(seen.iter().all(|times| *times > 0), "{seen:?}");
            made(&blank);
            Explorer::default().run(
                &blank,
                |image| FORMAT.replace(image, &FORMAT.emit(3, Uuid([8; 16]), 8192, &[])).expect("memory"),
                |crashed, _| {
                    let head = FORMAT.read(crashed);
                    let fields = FORMAT.judge(&head).expect("one of them").fields;
                    assert!(matches!((fields.uuid().0[0], fields.size()), (7, 4096) | (8, 8192)));
                },
            );
            FORMAT.erase(&blank).and_then(|()| FORMAT.signature.end(&blank)).expect("memory");
            assert_eq!(FORMAT.judge(&FORMAT.read(&blank)).map(|_| ()), Err(Fault::Blank));
        }
    }
}
