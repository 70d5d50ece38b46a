//! Which pages of a file that somebody else has changed are replayed, one rule after the other.

use remanence_cache::Entry;
use remanence_cache::entry::{Kind, Mtime};
use remanence_cache::foreign::{PAGE, Pages, Verdict};
use remanence_cache::op::Op;
use remanence_cache::table::FileId;

use crate::files::Change;
use crate::log::change;

/// Entries of a file, and what each of them has.
struct Bench {
    pages: Pages,
    payloads: Vec<Vec<u8>>,
}

impl Bench {
    fn new(changes: &[Change]) -> Self {
        let mut bench = Self { pages: Pages::default(), payloads: Vec::new() };
        for change in changes {
            bench.add(&change.op());
        }
        bench
    }

    fn add(&mut self, op: &Op<'_>) {
        let payload = match op {
            Op::Write { bytes, .. } => bytes.to_vec(),
            _ => Vec::new(),
        };
        let entry = Entry {
            first: self.payloads.len() as u64,
            count: 1,
            kind: Kind::Write,
            file: FileId(1),
            offset: 0,
            len: payload.len() as u64,
            mtime: Mtime::UNKNOWN,
        };
        self.pages.add(entry, op);
        self.payloads.push(payload);
    }

    fn judge(&self, page: u64, disk: &[u8]) -> Verdict {
        let fetch = |entry: &Entry, into: &mut Vec<u8>| {
            into.clone_from(&self.payloads[entry.first as usize]);
            Ok(())
        };
        self.pages.judge(page, disk, fetch).unwrap()
    }
}

fn page(parts: &[(usize, u8, usize)]) -> Vec<u8> {
    let mut page = vec![0xd0; PAGE as usize];
    parts.iter().for_each(|(at, byte, len)| page[*at..at + len].fill(*byte));
    page
}

#[test]
fn a_page_as_after_an_entry_is_brought_to_what_it_is_after_the_last() {
    let bench = Bench::new(&[change(1, 100, 1, 50), change(1, 120, 2, 60), change(1, 100, 3, 10)]);
    let last = page(&[(100, 1, 50), (120, 2, 60), (100, 3, 10)]);
    assert_eq!(bench.judge(0, &last), Verdict::Done);
    let before = page(&[(100, 1, 50), (120, 2, 60)]);
    assert_eq!(bench.judge(0, &before), Verdict::Replayed { offset: 100, bytes: vec![3; 10] });
    // Of before the first: the log does not know what was there.
    assert_eq!(bench.judge(0, &page(&[])), Verdict::Kept);
    // As after the first, which does not cover all that the second does.
    assert_eq!(bench.judge(0, &page(&[(100, 1, 50)])), Verdict::Kept);
    // Somebody else's byte where nothing of ours is.
    let mut elsewhere = before;
    elsewhere[2000] = 77;
    assert_eq!(bench.judge(0, &elsewhere), Verdict::Replayed { offset: 100, bytes: vec![3; 10] });
    // And where something is.
    elsewhere[179] = 77;
    assert_eq!(bench.judge(0, &elsewhere), Verdict::Kept);
    assert_eq!(bench.judge(1, &page(&[])), Verdict::Done, "no entry changes it");
}

#[test]
fn a_page_that_was_torn_between_two_known_states_is_replayed() {
    let bench = Bench::new(&[change(1, 0, 1, 4096), change(1, 0, 2, 4096), change(1, 4096 + 3000, 3, 2000)]);
    let torn = page(&[(0, 1, 4096), (512, 2, 1024)]);
    assert_eq!(bench.judge(0, &torn), Verdict::Replayed { offset: 0, bytes: vec![2; 4096] });
    let within = page(&[(0, 1, 4096), (500, 2, 1024)]);
    assert_eq!(bench.judge(0, &within), Verdict::Kept, "no crash tears a sector");
    assert_eq!(bench.judge(1, &page(&[(3000, 3, 1096)])), Verdict::Done);
    let second = page(&[(0, 3, 904)]);
    assert_eq!(bench.judge(2, &second), Verdict::Done);
    assert_eq!(bench.pages.pages(0).into_iter().collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn what_is_cut_off_or_punched_is_zeros_and_the_length_is_followed() {
    let file = FileId(1);
    let mut bench = Bench::new(&[change(1, 0, 1, 6000), Change::Truncate { file: 1, len: 1000 }]);
    bench.add(&Op::Allocate { file, mode: 0x03, offset: 100, len: 200 });
    bench.add(&Op::Allocate { file, mode: 0, offset: 0, len: 5000 });
    bench.add(&change(1, 4096, 4, 10).op());
    assert_eq!((bench.pages.len(9000), bench.pages.len(0)), (5000, 5000));
    assert_eq!(bench.pages.pages(9000).into_iter().collect::<Vec<_>>(), [0, 1, 2]);
    let last = page(&[(0, 1, 1000), (100, 0, 200), (1000, 0, 3096)]);
    assert_eq!(bench.judge(0, &last), Verdict::Done);
    let uncut = page(&[(0, 1, 4096)]);
    let Verdict::Replayed { offset: 100, bytes } = bench.judge(0, &uncut) else {
        panic!("as after the first")
    };
    assert_eq!(bytes, last[100..]);
    // The third page was cut off, and has something that nobody here wrote.
    assert_eq!(bench.judge(2, &page(&[(0, 9, 4096)])), Verdict::Kept);
    assert_eq!(bench.judge(2, &[0; PAGE as usize]), Verdict::Done);
}
