//! What the programs of the torture do with their files, as a function of a seed: whoever knows it knows what a file is after each step.

use std::collections::BTreeMap;

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

/// Names and what they mean, by the numbers of files, and what files have.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Tree {
    pub(crate) names: BTreeMap<String, u64>,
    pub(crate) files: BTreeMap<u64, Vec<u8>>,
    /// The permissions of those that were given some.
    pub(crate) modes: BTreeMap<u64, u32>,
    next: u64,
}

/// The directory that is made and removed.
pub(crate) const SUB: &str = "sub";
/// What a file is called until it replaces another.
pub(crate) const TMP: &str = "tmp";

/// What is done with names. Each is durable before the next one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NameStep {
    /// A new file is written under another name, synced, and renamed; whatever had the name is replaced.
    Replace {
        name: String,
        len: u64,
        word: u64,
    },
    /// A file that is made if it is not there gets so many bytes at its beginning, and is synced.
    Write {
        name: String,
        len: u64,
        word: u64,
    },
    Unlink {
        name: String,
    },
    Rename {
        from: String,
        to: String,
    },
    /// Both are there, and are files.
    Exchange {
        from: String,
        to: String,
    },
    Link {
        from: String,
        to: String,
    },
    /// A file gets permissions, and is synced.
    Permit {
        name: String,
        mode: u32,
    },
    /// The directory is made, or removed if it is empty.
    Directory,
}

impl NameStep {
    pub(crate) fn draw(numbers: &mut Numbers, tree: &Tree) -> Self {
        let has_sub = tree.names.contains_key(SUB);
        let mut name = || {
            let name = ["a", "b", "c", "d"][numbers.below(4) as usize];
            let within = has_sub && numbers.below(2) == 0;
            if within { format!("{SUB}/{name}") } else { name.to_owned() }
        };
        let (from, to) = (name(), name());
        let [has_from, has_to] = [&from, &to].map(|name| tree.names.get(name));
        let (len, word) = (1 + numbers.below(9000), numbers.below(u64::MAX));
        match numbers.below(100) {
            0..8 => Self::Directory,
            8..16 if has_from.is_some() => Self::Permit { name: from, mode: 0o400 + (word % 0o400) as u32 },
            16..25 if has_from.is_some() => Self::Unlink { name: from },
            25..40 if has_from.is_some() && has_from != has_to => Self::Rename { from, to },
            40..50 if has_from.is_some() && has_to.is_some() && has_from != has_to => {
                Self::Exchange { from, to }
            }
            50..60 if has_from.is_some() && has_to.is_none() => Self::Link { from, to },
            60..80 => Self::Write { name: from, len, word },
            _ => Self::Replace { name: from, len, word },
        }
    }

    /// The names that it changes.
    pub(crate) fn touches(&self) -> Vec<&str> {
        match self {
            Self::Replace { name, .. } => vec![name, TMP],
            Self::Write { name, .. } | Self::Unlink { name } | Self::Permit { name, .. } => vec![name],
            Self::Rename { from, to } | Self::Exchange { from, to } | Self::Link { from, to } => {
                vec![from, to]
            }
            Self::Directory => vec![SUB],
        }
    }

    pub(crate) fn change(&self, tree: &mut Tree) {
        match self {
            Self::Replace { name, len, word } => {
                tree.next += 1;
                tree.files.insert(tree.next, bytes(*word, *len));
                tree.names.insert(name.clone(), tree.next);
            }
            Self::Write { name, len, word } => {
                let next = tree.next + 1;
                let file = *tree.names.entry(name.clone()).or_insert(next);
                tree.next = tree.next.max(file);
                let (had, new) = (tree.files.entry(file).or_default(), bytes(*word, *len));
                had.resize(had.len().max(new.len()), 0);
                had[..new.len()].copy_from_slice(&new);
            }
            Self::Permit { name, mode } => {
                tree.modes.insert(tree.names[name], *mode);
            }
            Self::Unlink { name } => {
                tree.names.remove(name);
            }
            Self::Rename { from, to } => {
                let file = tree.names.remove(from).expect("it is there");
                tree.names.insert(to.clone(), file);
            }
            Self::Exchange { from, to } => {
                let (one, other) = (tree.names[from], tree.names[to]);
                tree.names.insert(from.clone(), other);
                tree.names.insert(to.clone(), one);
            }
            Self::Link { from, to } => {
                let file = tree.names[from];
                tree.names.insert(to.clone(), file);
            }
            Self::Directory if !tree.names.contains_key(SUB) => {
                tree.names.insert(SUB.into(), 0);
            }
            Self::Directory if tree.names.keys().any(|name| name.contains('/')) => {}
            Self::Directory => {
                tree.names.remove(SUB);
            }
        }
    }
}
