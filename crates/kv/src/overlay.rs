//! A view of a medium in which writes change nothing but the view: to see what recovery would do.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use remanence_pmem::{Medium, Region};

const PAGE: u64 = 4096;

/// A medium, and copies of those of its pages that were written through this view.
#[derive(Debug)]
pub struct Overlay<M = Region> {
    medium: M,
    /// The pages that were written, by their number.
    pages: RefCell<BTreeMap<u64, Vec<u8>>>,
}

impl<M: Medium> Overlay<M> {
    /// A view in which nothing was written yet.
    pub const fn new(medium: M) -> Self {
        Self { medium, pages: RefCell::new(BTreeMap::new()) }
    }

    fn inside(&self, offset: u64, len: usize) {
        let fits = offset.checked_add(len as u64).is_some_and(|end| end <= self.medium.len());
        assert!(fits, "{len} bytes at offset {offset} do not lie in the medium");
    }

    /// A page as the medium has it.
    fn fresh(&self, page: u64) -> Vec<u8> {
        let at = page * PAGE;
        let mut bytes = vec![0; PAGE.min(self.medium.len() - at) as usize];
        self.medium.read(at, &mut bytes);
        bytes
    }

    fn swap(&self, offset: u64, change: impl FnOnce(u64) -> u64) -> u64 {
        let had = self.load_u64(offset);
        self.store_u64(offset, change(had));
        had
    }
}

/// The pages that a range lies in: page, where in it, where in the range, how many bytes.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        (done < len).then(|| {
            let at = offset + done as u64;
            let within = (at % PAGE) as usize;
            let count = (PAGE as usize - within).min(len - done);
            let part = done..done + count;
            done += count;
            (at / PAGE, within, part)
        })
    })
}

impl<M: Medium> Medium for Overlay<M> {
    fn len(&self) -> u64 {
        self.medium.len()
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.inside(offset, into.len());
        self.medium.read(offset, into);
        let pages = self.pages.borrow();
        if pages.is_empty() {
            return;
        }
        for (page, within, part) in parts(offset, into.len()) {
            if let Some(bytes) = pages.get(&page) {
                let len = part.len();
                into[part].copy_from_slice(&bytes[within..within + len]);
            }
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.inside(offset, bytes.len());
        let mut pages = self.pages.borrow_mut();
        for (page, within, part) in parts(offset, bytes.len()) {
            let into = pages.entry(page).or_insert_with(|| self.fresh(page));
            into[within..within + part.len()].copy_from_slice(&bytes[part]);
        }
    }

    fn load_u64(&self, offset: u64) -> u64 {
        let mut word = [0; 8];
        self.read(offset, &mut word);
        u64::from_le_bytes(word).to_le()
    }

    fn store_u64(&self, offset: u64, value: u64) {
        self.write(offset, &value.to_le().to_le_bytes());
    }

    fn compare_and_swap(&self, offset: u64, compare: u64, swap: u64) -> u64 {
        self.swap(offset, |had| if had == compare { swap } else { had })
    }

    fn fetch_add(&self, offset: u64, add: u64) -> u64 {
        self.swap(offset, |had| had.wrapping_add(add))
    }

    fn pwb(&self, _: Range<u64>) {}

    fn pfence(&self) -> io::Result<()> {
        Ok(())
    }

    fn psync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_seen_in_the_view_and_nowhere_else() {
        let region = Region::anonymous(3 * PAGE).expect("memory");
        region.write(PAGE - 4, b"01234567");
        let view = Overlay::new(region.clone());
        view.write(PAGE - 2, b"abcd");
        assert_eq!(view.fetch_add(2 * PAGE, 3), 0);
        assert_eq!(view.compare_and_swap(2 * PAGE, 3, 9), 3);
        assert_eq!(view.load_u64(2 * PAGE), 9);
        let mut bytes = [0; 8];
        view.read(PAGE - 4, &mut bytes);
        assert_eq!(&bytes, b"01abcd67");
        region.read(PAGE - 4, &mut bytes);
        assert_eq!(&bytes, b"01234567");
        assert_eq!(region.load_u64(2 * PAGE), 0);
    }
}
