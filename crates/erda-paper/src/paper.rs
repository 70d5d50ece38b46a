//! Erda exactly as paper 002 has it, with what it loses: for tests that show the difference, and for its Table 1.
//!
//! Do not keep data in it. Keys and values are of one size each, as in the paper's own code; the table is a linear window of
//! entries without displacement. Everything that the paper orders is ordered, and nothing else: it speaks of one fence
//! nowhere, and of 8-byte atomic updates of the word.
//!
//! ```text
//! head array  8 bytes per head     where its Region 1 starts
//! entries     word u64, head ID u8, key
//! object      delete tag u8, CRC-32 u32, key, value
//! ```

use remanence_kv::format::{Offset, Word};
use remanence_pmem::Medium;

use crate::get_u32;

/// Bytes of an object before its key: a tag of one bit, which takes a byte, and the checksum.
pub const OBJECT_HEADER: usize = 5;

/// Bytes that operations wrote to the medium, counted as Table 1 counts them: data-comparison write does not program what
/// does not change, so an update of the word is a tag of 1 bit and an offset of 31, 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// Bytes that went to the hash table.
    pub metadata: u64,
    /// Bytes that went to logs, buffers and destination storage.
    pub data: u64,
}

impl Written {
    /// Bytes of both kinds together.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.metadata + self.data
    }
}

/// How large the parts of a store are.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of each key.
    pub key: usize,
    /// Bytes of each value.
    pub value: usize,
    /// Entries of the table.
    pub entries: u64,
    /// Bytes of a region.
    pub region: u64,
    /// Bytes of a segment.
    pub segment: u64,
    /// How many heads there are; each has two regions.
    pub heads: u8,
}

impl Sizes {
    /// Bytes of a whole object.
    #[must_use]
    pub const fn object(&self) -> usize {
        OBJECT_HEADER + self.key + self.value
    }

    const fn stride(&self) -> u64 {
        (9 + self.key as u64).next_multiple_of(8)
    }

    const fn entry(&self, index: u64) -> u64 {
        8 * self.heads as u64 + index * self.stride()
    }

    /// Two regions per head: the paper's Region 1 and Region 2, in turn.
    const fn region(&self, head: u8, which: u64) -> u64 {
        self.entry(self.entries) + (2 * head as u64 + which) * self.region
    }

    /// Bytes of medium that a store takes.
    #[must_use]
    pub const fn medium(&self) -> u64 {
        self.region(self.heads, 0)
    }
}

/// A store of the paper's design.
#[derive(Debug)]
pub struct Paper<M> {
    medium: M,
    sizes: Sizes,
    /// Per head: where the log ends, in its region.
    tails: Vec<u32>,
    cleaning: Option<Cleaning>,
    written: Written,
}

/// A log cleaning under way.
#[derive(Debug)]
struct Cleaning {
    head: u8,
    /// Where Region 2 starts, and its log's end.
    region: u64,
    tail: u32,
    /// The end of Region 1's log when merging began.
    merged_to: u32,
}

fn checksum(tag: u8, rest: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[tag]);
    hasher.update(rest);
    hasher.finalize()
}

/// An object as a client writes it; `None` for a deletion.
#[must_use]
pub fn object(key: &[u8], value: Option<&[u8]>) -> Vec<u8> {
    let rest = [key, value.unwrap_or_default()].concat();
    let tag = u8::from(value.is_none());
    let mut bytes = vec![tag];
    bytes.extend(checksum(tag, &rest).to_le_bytes());
    bytes.extend(rest);
    bytes
}

impl<M: Medium> Paper<M> {
    /// An empty store.
    #[must_use]
    pub fn format(medium: M, sizes: Sizes) -> Self {
        medium.write(0, &vec![0; sizes.medium() as usize]);
        for head in 0..sizes.heads {
            medium.store_u64(8 * u64::from(head), sizes.region(head, 0).to_le());
        }
        medium.pwb(0..sizes.medium());
        medium.psync().expect("a test's medium does not fail");
        let tails = vec![8; sizes.heads.into()];
        Self { medium, sizes, tails, cleaning: None, written: Written::default() }
    }

    /// Recovery (4.2): "the server needs to check objects in the last segment following each head and correspondingly
    /// update metadata".
    #[must_use]
    pub fn recover(medium: M, sizes: Sizes) -> Self {
        let mut this = Self {
            medium,
            sizes,
            tails: vec![8; sizes.heads.into()],
            cleaning: None,
            written: Written::default(),
        };
        let entries: Vec<u64> = (0..sizes.entries).filter(|index| !this.word(*index).is_free()).collect();
        for index in &entries {
            let (word, head) = (this.word(*index), this.head(*index));
            let end = word.new_offset().map_or(8, |offset| offset.0 + sizes.object() as u32);
            let tail = &mut this.tails[usize::from(head)];
            *tail = (*tail).max(end);
        }
        for index in entries {
            let (word, head) = (this.word(index), this.head(index));
            let last = u64::from(this.tails[usize::from(head)] - 1) / sizes.segment;
            let in_last = word.new_offset().is_some_and(|offset| u64::from(offset.0) / sizes.segment == last);
            if in_last && this.object(head, word.new_offset()).is_none() {
                this.replace_new_by_old(index);
            }
        }
        this
    }

    /// What was written so far.
    #[must_use]
    pub const fn written(&self) -> Written {
        self.written
    }

    fn word(&self, index: u64) -> Word {
        Word(u64::from_le(self.medium.load_u64(self.sizes.entry(index))))
    }

    fn head(&self, index: u64) -> u8 {
        let mut head = [0];
        self.medium.read(self.sizes.entry(index) + 8, &mut head);
        head[0]
    }

    fn key(&self, index: u64) -> Vec<u8> {
        let mut key = vec![0; self.sizes.key];
        self.medium.read(self.sizes.entry(index) + 9, &mut key);
        key
    }

    fn find(&self, key: &[u8]) -> Option<u64> {
        (0..self.sizes.entries).find(|index| !self.word(*index).is_free() && self.key(*index) == key)
    }

    /// The 8-byte atomic update, of which 4 bytes change.
    fn store_word(&mut self, index: u64, word: Word) {
        let at = self.sizes.entry(index);
        self.medium.store_u64(at, word.0.to_le());
        self.medium.pwb(at..at + 8);
        self.written.metadata += 4;
    }

    fn replace_new_by_old(&mut self, index: u64) {
        let word = self.word(index).flipped();
        self.store_word(index, word);
    }

    fn base(&self, head: u8) -> u64 {
        u64::from_le(self.medium.load_u64(8 * u64::from(head)))
    }

    /// The whole object at an offset of a head: its key, and its value unless it is a deletion.
    fn object(&self, head: u8, offset: Option<Offset>) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        self.object_in(self.base(head), offset)
    }

    fn object_in(&self, base: u64, offset: Option<Offset>) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let offset = u64::from(offset?.0);
        let mut bytes = vec![0; self.sizes.object()];
        if offset + bytes.len() as u64 > self.sizes.region {
            return None;
        }
        self.medium.read(base + offset, &mut bytes);
        if bytes[0] == 1 {
            bytes.truncate(OBJECT_HEADER + self.sizes.key);
        }
        let whole = checksum(bytes[0], &bytes[OBJECT_HEADER..]) == get_u32(&bytes, 1);
        let (key, value) = bytes[OBJECT_HEADER..].split_at(self.sizes.key);
        whole.then(|| (key.to_vec(), (bytes[0] == 0).then(|| value.to_vec())))
    }

    fn append(&mut self, head: u8, len: usize) -> Option<Offset> {
        let (len, segment) = (len as u64, self.sizes.segment);
        let tail = &mut self.tails[usize::from(head)];
        let mut at = u64::from(*tail);
        if at / segment != (at + len - 1) / segment {
            at = at.next_multiple_of(segment);
        }
        if at + len > self.sizes.region {
            return None;
        }
        *tail = (at + len) as u32;
        Some(Offset(at as u32))
    }

    /// A write request (3.3): the entry is updated, and the address goes back. `None`: full.
    pub fn reserve(&mut self, head: u8, key: &[u8]) -> Option<u64> {
        let offset = self.append(head, self.sizes.object())?;
        self.name(head, key, offset)?;
        Some(self.base(head) + u64::from(offset.0))
    }

    fn name(&mut self, head: u8, key: &[u8], offset: Offset) -> Option<()> {
        if let Some(index) = self.find(key) {
            // The tag flips, whatever became of the write before; there is no bit that would say.
            let word = self.word(index).update(offset).settled();
            self.store_word(index, word);
            return Some(());
        }
        let index = (0..self.sizes.entries).find(|index| self.word(*index).is_free())?;
        let at = self.sizes.entry(index);
        self.medium.write(at + 8, &[head]);
        self.medium.write(at + 9, key);
        self.medium.pwb(at + 8..at + 9 + key.len() as u64);
        self.written.metadata += 1 + key.len() as u64;
        self.store_word(index, Word::FREE.update(offset).settled());
        Some(())
    }

    /// What a client's one-sided WRITE does; visible when it is acknowledged.
    pub fn client_write(&mut self, at: u64, bytes: &[u8]) {
        self.medium.write(at, bytes);
        self.written.data += bytes.len() as u64;
    }

    /// A PUT from begin to end, as its client sees it.
    pub fn put(&mut self, head: u8, key: &[u8], value: &[u8]) -> Option<()> {
        let at = self.reserve(head, key)?;
        self.client_write(at, &object(key, Some(value)));
        Some(())
    }

    /// A DELETE: like an update, and the object is a tombstone.
    pub fn delete(&mut self, head: u8, key: &[u8]) -> Option<()> {
        self.find(key)?;
        let bytes = object(key, None);
        let offset = self.append(head, bytes.len())?;
        self.name(head, key, offset)?;
        self.client_write(self.base(head) + u64::from(offset.0), &bytes);
        Some(())
    }

    /// A GET: the entry, the object, and if that is incomplete the version before; the server is told and repairs (4.2).
    pub fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let index = self.find(key)?;
        let (word, head) = (self.word(index), self.head(index));
        // 3.3 verifies the key of the entry, and the checksum of the object.
        if let Some((_, value)) = self.object(head, word.new_offset()) {
            return value;
        }
        let (_, value) = self.object(head, word.old_offset())?;
        value
    }

    /// Takes the entry away from a key, as when its tombstone is not needed any more.
    pub fn free_entry(&mut self, key: &[u8]) {
        if let Some(index) = self.find(key) {
            self.store_word(index, Word::FREE);
        }
    }

    /// Begins to clean (4.4). Region 2 is the other one of the head's two.
    pub fn clean(&mut self, head: u8) {
        let (first, second) = (self.sizes.region(head, 0), self.sizes.region(head, 1));
        let region = if self.base(head) == first { second } else { first };
        let merged_to = self.tails[usize::from(head)];
        self.cleaning = Some(Cleaning { head, region, tail: 8, merged_to });
    }

    /// The merge: the newest version of each key, found from the end, goes to Region 2; the old offset is its place there.
    pub fn merge(&mut self) {
        let Some(cleaning) = self.cleaning.take() else { return };
        let Cleaning { head, region, mut tail, .. } = cleaning;
        for index in 0..self.sizes.entries {
            let word = self.word(index);
            if word.is_free() || self.head(index) != head {
                continue;
            }
            let Some((key, value)) = self.object(head, word.new_offset()) else { continue };
            let Some(value) = value else { continue };
            let bytes = object(&key, Some(&value));
            self.medium.write_nt(region + u64::from(tail), &bytes);
            self.written.data += bytes.len() as u64;
            self.store_word(index, word.with_old(Some(Offset(tail))));
            tail += bytes.len() as u32;
        }
        self.cleaning = Some(Cleaning { tail, ..cleaning });
    }

    /// The end, first half: the head points to Region 2.
    pub fn switch_head(&mut self) {
        let Some(cleaning) = &self.cleaning else { return };
        assert_eq!(
            self.tails[usize::from(cleaning.head)],
            cleaning.merged_to,
            "nothing to replicate in these tests"
        );
        let at = 8 * u64::from(cleaning.head);
        self.medium.store_u64(at, cleaning.region.to_le());
        self.medium.pwb(at..at + 8);
        self.tails[usize::from(cleaning.head)] = cleaning.tail;
    }

    /// The end, second half: "flips the new tags in the hash tables of all the objects in Region 2"; at most so many.
    pub fn flip_tags(&mut self, at_most: usize) {
        let Some(cleaning) = self.cleaning.take() else { return };
        let of_head = |index: &u64| !self.word(*index).is_free() && self.head(*index) == cleaning.head;
        let indexes: Vec<u64> = (0..self.sizes.entries).filter(of_head).take(at_most).collect();
        for index in indexes {
            // Only the tag: the other offset stays as it is.
            let word = Word(self.word(index).0 ^ 1 << 63);
            self.store_word(index, word);
        }
    }

    /// Cleans the log of a head from beginning to end.
    pub fn clean_all(&mut self, head: u8) {
        self.clean(head);
        self.merge();
        self.switch_head();
        self.flip_tags(usize::MAX);
    }

    /// Waits for the medium, as nothing in the paper does; for tests that start from a durable state.
    pub fn sync(&self) {
        self.medium.pwb(0..self.sizes.medium());
        self.medium.psync().expect("a test's medium does not fail");
    }
}
