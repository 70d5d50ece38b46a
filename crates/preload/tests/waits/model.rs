//! What the programs of the torture do with their files, as a function of a seed: whoever knows it knows what a file is after each step.

/// Numbers that look drawn (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    /// The next one below another.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

/// What is done with a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// So many bytes are written to an offset.
    Write {
        /// Where they go.
        offset: u64,
        /// How many they are.
        len: u64,
        /// What they are made of.
        word: u64,
    },
    /// So many bytes are written behind its end.
    Append {
        /// How many they are.
        len: u64,
        /// What they are made of.
        word: u64,
    },
    /// It is so long from now on.
    Truncate {
        /// Bytes that the file has then.
        len: u64,
    },
    /// All of it is made durable; by `fdatasync` or `fsync`.
    Sync {
        /// It is the former.
        only_data: bool,
    },
}

/// The bytes that a word stands for.
pub(crate) fn bytes(word: u64, len: u64) -> Vec<u8> {
    (0..len).map(|n| (word >> (n % 8 * 8)) as u8 ^ (n / 8) as u8).collect()
}

impl Step {
    /// The next one, for a file that is so long.
    pub(crate) fn draw(numbers: &mut Numbers, len: u64) -> Self {
        let word = numbers.below(u64::MAX);
        if len > 64 << 10 {
            return Self::Truncate { len: word % 5000 };
        }
        match numbers.below(100) {
            0..45 => Self::Write { offset: numbers.below(len + 2000), len: 1 + numbers.below(6000), word },
            45..70 => Self::Append { len: 1 + numbers.below(3000), word },
            70..76 => Self::Truncate { len: numbers.below(len + 9000) },
            _ => Self::Sync { only_data: word.is_multiple_of(2) },
        }
    }

    /// Does it with bytes in memory.
    pub(crate) fn change(self, file: &mut Vec<u8>) {
        let (offset, new) = match self {
            Self::Write { offset, len, word } => (offset as usize, bytes(word, len)),
            Self::Append { len, word } => (file.len(), bytes(word, len)),
            Self::Truncate { len } => return file.resize(len as usize, 0),
            Self::Sync { .. } => return,
        };
        file.resize(file.len().max(offset + new.len()), 0);
        file[offset..offset + new.len()].copy_from_slice(&new);
    }

    /// How long a file is behind it that was so long before.
    pub(crate) const fn len(self, before: u64) -> u64 {
        match self {
            Self::Write { offset, len, .. } if offset + len > before => offset + len,
            Self::Write { .. } | Self::Sync { .. } => before,
            Self::Append { len, .. } => before + len,
            Self::Truncate { len } => len,
        }
    }
}

/// A record that a thread appends to the file of all.
pub(crate) const RECORD: usize = 64;

/// The record with a number of a thread of a process, of a run with a seed.
pub(crate) fn record(seed: u64, process: u64, thread: u64, number: u64) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    for (n, to) in record.chunks_exact_mut(8).enumerate() {
        let word = [seed, process, thread, number][n % 4].wrapping_add(n as u64);
        to.copy_from_slice(&word.to_le_bytes());
    }
    record
}

/// The numbers that a thread draws.
pub(crate) const fn numbers(seed: u64, process: u64, thread: u64) -> Numbers {
    Numbers(seed.wrapping_mul(1_000_003).wrapping_add(process * 101 + thread))
}
