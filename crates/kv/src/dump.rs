//! A copy of a store's values as a stream: whatever keys and values have in them, versions, and when they end.
//!
//! ```text
//! header   "REMKVDMP", u32 version 1, u32 zero
//! record   u8 kind, u8 zero, u16 bytes of key, u32 zero, u64 bytes of value, u64 version, u64 expires
//!          key, value, u64 CRC-64/NVME of the record's number (u64, from 0) and of all that stands before
//!   kind 1 a value; expires in milliseconds since 1970, 0: never
//!   kind 2 the end, and nothing behind it: no key and no value; bytes of value: how many values there were; version: how
//!          many keys had one that could not be read; expires: CRC-64/NVME of the checksums of all records before
//! ```
//! All integers are little-endian. The layout has nothing of the store's own format in it, so a dump of one is loaded into any
//! other. A stream without its end was cut short.

use std::io::{self, Read, Write};

use crate::format::KEY_MAX;
use crate::format::object::crc64;

/// What a dump begins with.
pub const MAGIC: &[u8; 8] = b"REMKVDMP";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 32;
const VALUE: u8 = 1;
const END: u8 = 2;

/// A key and its value, as a dump has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The key that the value is of.
    pub key: Vec<u8>,
    /// The version that it had in the store that was dumped.
    pub version: u64,
    /// When it ends, in milliseconds since 1970; 0: never.
    pub expires: u64,
    /// The bytes of the value.
    pub value: Vec<u8>,
}

/// What a dump has, as its end says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// How many values the dump has.
    pub values: u64,
    /// Bytes that these values have.
    pub bytes: u64,
    /// How many keys had a value that could not be read when the dump was made.
    pub unreadable: u64,
}

/// Why a stream is no dump, or not all of one.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The stream cannot be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The stream begins with something else.
    #[error("it is no dump of a store")]
    Foreign,
    /// The dump was made by a program of a later version.
    #[error("it is a dump of version {0}, and this program reads version 1: use the program that made it")]
    Version(u32),
    /// The checksum of a record does not fit.
    #[error("it is damaged: the checksum of record {0} is wrong")]
    Damaged(u64),
    /// The stream has no end record.
    #[error("it was cut short: it ends behind {0} whole records")]
    CutShort(u64),
    /// There is something behind the end.
    #[error("there is something behind its end")]
    Behind,
}

fn header(kind: u8, key: usize, value: u64, version: u64, expires: u64) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[0] = kind;
    bytes[2..4].copy_from_slice(&(key as u16).to_le_bytes());
    bytes[8..16].copy_from_slice(&value.to_le_bytes());
    bytes[16..24].copy_from_slice(&version.to_le_bytes());
    bytes[24..].copy_from_slice(&expires.to_le_bytes());
    bytes
}

/// Makes a dump, value by value.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    summary: Summary,
    checksums: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a dump.
    ///
    /// # Errors
    /// The dump cannot be written.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&[0; 4])?;
        Ok(Self { out, summary: Summary::default(), checksums: 0 })
    }

    fn put(&mut self, header: [u8; HEADER_LEN], key: &[u8], value: &[u8]) -> io::Result<()> {
        let crc = crc64(&[&self.summary.values.to_le_bytes(), &header, key, value]);
        self.out.write_all(&header)?;
        self.out.write_all(key)?;
        self.out.write_all(value)?;
        self.out.write_all(&crc.to_le_bytes())?;
        self.checksums = crc64(&[&self.checksums.to_le_bytes(), &crc.to_le_bytes()]);
        Ok(())
    }

    /// Adds a value.
    ///
    /// # Errors
    /// The dump cannot be written.
    ///
    /// # Panics
    /// A key that no store has.
    pub fn value(&mut self, key: &[u8], version: u64, expires: u64, value: &[u8]) -> io::Result<()> {
        assert!((1..=KEY_MAX).contains(&key.len()), "a key of {} bytes", key.len());
        self.put(header(VALUE, key.len(), value.len() as u64, version, expires), key, value)?;
        self.summary.values += 1;
        self.summary.bytes += value.len() as u64;
        Ok(())
    }

    /// A key had a value that could not be read.
    pub const fn unreadable(&mut self) {
        self.summary.unreadable += 1;
    }

    /// Ends the dump, and gives back where it went.
    ///
    /// # Errors
    /// The dump cannot be written.
    pub fn end(mut self) -> io::Result<(Summary, W)> {
        let Summary { values, unreadable, .. } = self.summary;
        self.put(header(END, 0, values, unreadable, self.checksums), &[], &[])?;
        self.out.flush()?;
        Ok((self.summary, self.out))
    }
}

/// Reads a dump, and believes nothing whose checksum is wrong.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    summary: Summary,
    checksums: u64,
    over: bool,
}

impl<R: Read> Reader<R> {
    /// A reader of a stream that is at its beginning.
    ///
    /// # Errors
    /// It is no dump that this program reads.
    pub fn new(mut from: R) -> Result<Self, DumpError> {
        let mut start = [0; 16];
        let mut got = 0;
        while got < start.len() {
            match from.read(&mut start[got..])? {
                0 => break,
                n => got += n,
            }
        }
        if got < 8 || &start[..8] != MAGIC {
            return Err(DumpError::Foreign);
        }
        if got < start.len() {
            return Err(DumpError::CutShort(0));
        }
        match u32::from_le_bytes(start[8..12].try_into().expect("four bytes")) {
            VERSION => Ok(Self { from, summary: Summary::default(), checksums: 0, over: false }),
            other => Err(DumpError::Version(other)),
        }
    }

    fn bytes(&mut self, len: u64) -> Result<Vec<u8>, DumpError> {
        // The length is not verified yet: as much is kept as comes.
        let mut bytes = Vec::new();
        (&mut self.from).take(len).read_to_end(&mut bytes)?;
        if bytes.len() as u64 == len { Ok(bytes) } else { Err(DumpError::CutShort(self.summary.values)) }
    }

    /// The next value; `None` behind the last one, when the end was read and fits.
    ///
    /// # Errors
    /// It was cut short, is damaged, or cannot be read.
    #[expect(clippy::should_implement_trait, reason = "it can fail, and is then to be given up")]
    pub fn next(&mut self) -> Result<Option<Record>, DumpError> {
        if self.over {
            return Ok(None);
        }
        let number = self.summary.values;
        let header = self.bytes(HEADER_LEN as u64)?;
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        let (kind, key_len) = (header[0], u16::from_le_bytes([header[2], header[3]]));
        let (len, version, expires) = (word(8), word(16), word(24));
        let fair = match kind {
            VALUE => (1..=KEY_MAX).contains(&usize::from(key_len)),
            END => key_len == 0,
            _ => false,
        };
        if !fair {
            return Err(DumpError::Damaged(number));
        }
        let key = self.bytes(key_len.into())?;
        let value = self.bytes(if kind == VALUE { len } else { 0 })?;
        let crc = self.bytes(8)?;
        if crc64(&[&number.to_le_bytes(), &header, &key, &value]).to_le_bytes() != crc[..] {
            return Err(DumpError::Damaged(number));
        }
        if kind == END {
            if len != number || expires != self.checksums {
                return Err(DumpError::Damaged(number));
            }
            if self.from.read(&mut [0])? != 0 {
                return Err(DumpError::Behind);
            }
            self.summary.unreadable = version;
            self.over = true;
            return Ok(None);
        }
        self.checksums = crc64(&[&self.checksums.to_le_bytes(), &crc]);
        self.summary.values += 1;
        self.summary.bytes += value.len() as u64;
        Ok(Some(Record { key, version, expires, value }))
    }

    /// What was read so far.
    #[must_use]
    pub const fn summary(&self) -> Summary {
        self.summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Vec<Record>, Vec<u8>) {
        let records = vec![
            Record { key: vec![0, b'\n', 0xFF], version: 7, expires: 0, value: vec![] },
            Record { key: vec![b'k'; KEY_MAX], version: u64::MAX, expires: 1 << 40, value: vec![9; 3000] },
            Record { key: b"tab\there".to_vec(), version: 1, expires: 3, value: b"\r\n\0".to_vec() },
        ];
        let mut writer = Writer::new(Vec::new()).expect("memory");
        for record in &records {
            writer.value(&record.key, record.version, record.expires, &record.value).expect("memory");
        }
        writer.unreadable();
        let (summary, bytes) = writer.end().expect("memory");
        assert_eq!((summary.values, summary.unreadable), (3, 1));
        (records, bytes)
    }

    fn read(bytes: &[u8]) -> Result<(Vec<Record>, Summary), DumpError> {
        let mut reader = Reader::new(bytes)?;
        let mut records = Vec::new();
        while let Some(record) = reader.next()? {
            records.push(record);
        }
        Ok((records, reader.summary()))
    }

    #[test]
    fn what_was_dumped_comes_back() {
        let (records, bytes) = sample();
        let summary = Summary { values: 3, bytes: 3003, unreadable: 1 };
        assert_eq!(read(&bytes).expect("a dump"), (records, summary));
        let (_, nothing) = Writer::new(Vec::new()).expect("memory").end().expect("memory");
        assert_eq!(read(&nothing).expect("a dump of nothing").0, []);
    }

    #[test]
    fn a_dump_that_is_cut_short_damaged_or_goes_on_is_an_error() {
        let (_, bytes) = sample();
        for len in 0..bytes.len() {
            let error = read(&bytes[..len]).expect_err("cut short");
            assert!(matches!(error, DumpError::CutShort(_) | DumpError::Foreign), "{len} bytes: {error}");
        }
        for bit in (0..bytes.len() * 8).step_by(3).filter(|bit| !(96..128).contains(bit)) {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bad).is_err(), "bit {bit}");
        }
        let mut more = bytes.clone();
        more.push(0);
        assert!(matches!(read(&more), Err(DumpError::Behind)));
        // A record that is missing, with both others and the end whole.
        let first = 16 + 32 + 3 + 8;
        let without = [&bytes[..16], &bytes[first..]].concat();
        assert!(matches!(read(&without), Err(DumpError::Damaged(0))));
        let mut later = bytes;
        later[8] = 2;
        assert!(matches!(read(&later), Err(DumpError::Version(2))));
    }
}
