//! The radix tree from a page of a file to its descriptor (paper 000, 3.2.6, "Radix Tree").
//!
//! One tree a file, of as many levels as its highest page needs, six bits a level: the paper has eight, and nodes of that size are nearly empty where
//! pages are far apart. **A lookup takes no lock**: it loads one word a level. What makes that sound without unsafe code is that nothing is ever a
//! pointer: nodes lie in chunks that are never moved or freed, and a word is an index. A node that has become empty is used again
//! elsewhere, perhaps under a lookup that is still in it; that one then finds nothing, or a descriptor of another page. So what a lookup
//! finds is a hint. The descriptor says which page it is of, and whoever has it locked compares; whoever finds nothing asks again with the lock of
//! changes, which each insertion and removal takes for a bounded walk.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Bits of the page number that a level tells apart.
const BITS: u32 = 6;
const FAN: usize = 1 << BITS;
/// Chunk n has 64 << n nodes, so these are more than there are numbers for.
const CHUNKS: usize = 26;

/// Each word is 0, or one more than a node's number or a descriptor's.
#[derive(Debug)]
struct Node([AtomicU32; FAN]);

impl Node {
    fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU32::new(0)))
    }
}

/// The trees of all files.
#[derive(Debug)]
pub(crate) struct Tree {
    /// Of each file: its levels in the upper half, and one more than its top node in the lower.
    roots: Box<[AtomicU64]>,
    chunks: [OnceLock<Box<[Node]>>; CHUNKS],
    changes: Mutex<Changes>,
}

/// What only changes need.
#[derive(Debug, Default)]
struct Changes {
    /// Words in use of each node.
    used: Vec<u8>,
    /// Nodes without any.
    free: Vec<u32>,
}

fn place(page: u64, level: u32) -> usize {
    (page >> ((level - 1) * BITS)) as usize % FAN
}

fn fits(page: u64, levels: u32) -> bool {
    page.checked_shr(levels * BITS).unwrap_or(0) == 0
}

impl Tree {
    /// Empty trees of so many files.
    pub(crate) fn new(files: u32) -> Self {
        Self {
            roots: (0..files).map(|_| AtomicU64::new(0)).collect(),
            chunks: std::array::from_fn(|_| OnceLock::new()),
            changes: Mutex::default(),
        }
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn node(&self, number: u32) -> Option<&Node> {
        let n = number as usize + FAN;
        let chunk = n.ilog2() - BITS;
        self.chunks.get(chunk as usize)?.get()?.get(n - (FAN << chunk))
    }

    fn root(&self, file: u32) -> (u32, u32) {
        let word = self.roots.get(file as usize).map_or(0, |root| root.load(Ordering::Acquire));
        ((word >> 32) as u32, word as u32)
    }

    fn set_root(&self, file: u32, levels: u32, top: u32) {
        self.roots[file as usize].store(u64::from(levels) << 32 | u64::from(top), Ordering::Release);
    }

    /// Looks a page up, without a lock: what it finds, or does not, is a hint.
    pub(crate) fn get(&self, file: u32, page: u64) -> Option<u32> {
        let (mut levels, mut word) = self.root(file);
        if !fits(page, levels) {
            return None;
        }
        while levels > 0 {
            let node = self.node(word.checked_sub(1)?)?;
            word = node.0[place(page, levels)].load(Ordering::Acquire);
            levels -= 1;
        }
        word.checked_sub(1)
    }

    /// Looks a page up while nothing changes: what it finds is so.
    pub(crate) fn find(&self, file: u32, page: u64) -> Option<u32> {
        let _changes = self.changes();
        self.get(file, page)
    }

    /// Has a page lead to a descriptor.
    ///
    /// # Errors
    /// It leads to that one already.
    pub(crate) fn insert(&self, file: u32, page: u64, descriptor: u32) -> Result<(), u32> {
        let mut changes = self.changes();
        if let Some(found) = self.get(file, page) {
            return Err(found);
        }
        let (mut levels, mut top) = self.root(file);
        while levels == 0 || !fits(page, levels) {
            let node = self.take(&mut changes);
            if levels == 0 {
                levels = (u64::BITS - page.leading_zeros()).div_ceil(BITS).max(1);
            } else {
                self.set(&mut changes, node, 0, top);
                levels += 1;
            }
            top = node + 1;
            self.set_root(file, levels, top);
        }
        let mut at = top - 1;
        for level in (2..=levels).rev() {
            let n = place(page, level);
            let next = self.here(at).0[n].load(Ordering::Acquire);
            at = match next.checked_sub(1) {
                Some(next) => next,
                None => {
                    let next = self.take(&mut changes);
                    self.set(&mut changes, at, n, next + 1);
                    next
                }
            };
        }
        self.set(&mut changes, at, place(page, 1), descriptor + 1);
        Ok(())
    }

    /// Has a page lead nowhere, if it leads to that descriptor.
    pub(crate) fn remove(&self, file: u32, page: u64, descriptor: u32) {
        let mut changes = self.changes();
        if self.get(file, page) != Some(descriptor) {
            return;
        }
        let (levels, top) = self.root(file);
        let mut path = vec![top - 1];
        for level in (2..=levels).rev() {
            let at = path[path.len() - 1];
            path.push(self.here(at).0[place(page, level)].load(Ordering::Acquire) - 1);
        }
        for (at, level) in path.into_iter().rev().zip(1..) {
            self.here(at).0[place(page, level)].store(0, Ordering::Release);
            changes.used[at as usize] -= 1;
            if changes.used[at as usize] > 0 {
                return;
            }
            changes.free.push(at);
            if level == levels {
                self.set_root(file, 0, 0);
            }
        }
    }

    /// The pages of a file from one on that lead somewhere, so many at most, and to which descriptors.
    pub(crate) fn from(&self, file: u32, page: u64, most: usize) -> Vec<(u64, u32)> {
        let _changes = self.changes();
        let (levels, top) = self.root(file);
        let mut found = Vec::new();
        if levels > 0 && fits(page, levels) {
            self.gather(top - 1, levels, 0, page, most, &mut found);
        }
        found
    }

    fn gather(&self, at: u32, level: u32, base: u64, from: u64, most: usize, found: &mut Vec<(u64, u32)>) {
        let each = 1_u64.checked_shl((level - 1) * BITS).unwrap_or(u64::MAX);
        for n in 0..FAN as u64 {
            let start = base.saturating_add(n.saturating_mul(each));
            let word = self.here(at).0[n as usize].load(Ordering::Acquire);
            if word == 0 || start.saturating_add(each - 1) < from {
                continue;
            }
            if found.len() >= most {
                return;
            }
            match level {
                1 => found.push((start, word - 1)),
                _ => self.gather(word - 1, level - 1, start, from, most, found),
            }
        }
    }

    fn here(&self, number: u32) -> &Node {
        self.node(number).expect("a node that was taken is there")
    }

    fn set(&self, changes: &mut Changes, at: u32, n: usize, word: u32) {
        self.here(at).0[n].store(word, Ordering::Release);
        changes.used[at as usize] += 1;
    }

    /// A node without words.
    fn take(&self, changes: &mut Changes) -> u32 {
        if let Some(node) = changes.free.pop() {
            return node;
        }
        let number = changes.used.len();
        changes.used.push(0);
        let chunk = (number + FAN).ilog2() - BITS;
        self.chunks[chunk as usize].get_or_init(|| (0..FAN << chunk).map(|_| Node::new()).collect());
        number as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn it_has_what_a_map_has_and_gives_its_nodes_back() {
        let tree = Tree::new(2);
        let mut map = BTreeMap::new();
        let mut state = 7_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for round in 0..4000 {
            let file = next(2) as u32;
            // Near and far: one level, and as many as there can be.
            let page = [next(100), next(100) << 6, next(100) << 30, u64::MAX - next(100)][next(4) as usize];
            if next(2) == 0 {
                let known = map.get(&(file, page)).copied();
                assert_eq!(tree.insert(file, page, round).err(), known);
                map.entry((file, page)).or_insert(round);
            } else if let Some(found) = map.remove(&(file, page)) {
                tree.remove(file, page, found + 1);
                assert_eq!(tree.get(file, page), Some(found), "it leads to another one");
                tree.remove(file, page, found);
            }
            assert_eq!(tree.get(file, page), map.get(&(file, page)).copied());
            assert_eq!(tree.find(file, page), tree.get(file, page));
        }
        for file in 0..2 {
            let all: Vec<(u64, u32)> =
                map.range((file, 50)..=(file, u64::MAX)).map(|((_, page), to)| (*page, *to)).collect();
            assert_eq!(tree.from(file, 50, usize::MAX), all);
            assert_eq!(tree.from(file, 50, 3), all[..3]);
        }
        for ((file, page), found) in map {
            tree.remove(file, page, found);
        }
        let changes = tree.changes();
        assert_eq!(changes.free.len(), changes.used.len(), "no node is in use");
        assert!(changes.used.iter().all(|used| *used == 0));
        drop(changes);
        assert_eq!((tree.get(0, 0), tree.get(9, 0)), (None, None));
    }
}
