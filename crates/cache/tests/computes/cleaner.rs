//! The cleaner, one rule after the other.

use remanence_cache::cleaner::{Action, Cleaner, Feed, Options, Token};
use remanence_cache::entry::Owner;
use remanence_cache::format::Promise;
use remanence_cache::log::Log;
use remanence_cache::table::FileId;
use remanence_cache::words::LocalWords;
use remanence_pmem::PersistenceDomain;
use remanence_pmem::crash_image::CrashImage;

use crate::crash::made;
use crate::files::Change;
use crate::log::{NOW, change};

const ME: Owner = Owner::new(1);
const OPTIONS: Options = Options { batch: 4, low: 8 };

struct Bench {
    log: Log<CrashImage, LocalWords>,
    cleaner: Cleaner,
}

impl Bench {
    fn new(changes: &[Change]) -> Self {
        let image = made(16, Promise::AtSync, PersistenceDomain::PageCache);
        let log = Log::start(image, LocalWords::default(), Promise::AtSync).unwrap();
        let mut bench = Self { cleaner: Cleaner::new(OPTIONS, log.tail()), log };
        for change in changes {
            bench.log.append(ME, &change.op(), NOW).unwrap();
        }
        bench.feed();
        bench
    }

    fn feed(&mut self) {
        assert_eq!(self.cleaner.feed(&self.log, |_| false).unwrap(), Feed::Fed);
    }

    /// All that may be done beside each other.
    fn asked(&mut self) -> Vec<(Token, Action)> {
        let cleaner = &mut self.cleaner;
        std::iter::from_fn(|| cleaner.poll(|_| true)).collect()
    }

    fn done(&mut self, asked: Vec<(Token, Action)>) {
        asked.into_iter().for_each(|(token, _)| self.cleaner.done(token));
    }

    /// What is asked for next, done.
    fn next(&mut self) -> Vec<String> {
        let asked = self.asked();
        let said = asked.iter().map(|(_, action)| said(action)).collect();
        self.done(asked);
        said
    }
}

fn said(action: &Action) -> String {
    match action {
        Action::Persist { upto, .. } => format!("persist {upto}"),
        Action::Apply { entry } => format!("apply {}", entry.first),
        Action::Sync { file } => format!("sync {}", file.0),
        Action::Names => "names".to_owned(),
        Action::Advance { tail } => format!("advance {tail}"),
        Action::Free { tail } => format!("free {tail}"),
    }
}

#[test]
fn what_was_carried_out_is_only_synced() {
    let mut bench = Bench::new(&[change(1, 0, 1, 70), change(1, 69, 2, 2), change(2, 0, 3, 1)]);
    bench.cleaner = Cleaner::new(OPTIONS, bench.log.tail()).of_what_was_done();
    bench.feed();
    let asked = [bench.next(), bench.next(), bench.next(), bench.next()];
    assert_eq!(asked.concat(), ["persist 20", "sync 1", "sync 2", "advance 20", "free 20"]);
    assert!(bench.cleaner.is_idle() && bench.asked().is_empty());
}

#[test]
fn a_batch_is_made_durable_carried_out_synced_once_a_file_and_freed() {
    // The second overlaps the first, the third is another file's, the fourth waits for the next batch.
    let mut bench =
        Bench::new(&[change(1, 0, 1, 70), change(1, 69, 2, 2), change(2, 0, 3, 1), change(2, 1, 4, 1)]);
    assert_eq!(bench.next(), ["persist 20"]);
    assert_eq!(bench.next(), ["apply 16"], "what overlaps waits, and what is behind it too");
    assert_eq!(bench.next(), ["apply 18", "apply 19"]);
    assert_eq!(bench.next(), ["sync 1", "sync 2"]);
    assert_eq!(bench.next(), ["advance 20"]);
    assert_eq!(bench.next(), ["free 20"]);
    assert_eq!((bench.next().len(), bench.cleaner.tail()), (0, 20), "one entry is no reason for a batch");
    bench.cleaner.drain_to(21);
    assert_eq!(bench.next(), ["persist 21"]);
    assert_eq!((bench.next(), bench.next()), (vec!["apply 20".to_owned()], vec!["sync 2".to_owned()]));
}

#[test]
fn names_change_one_after_the_other_and_their_directory_is_synced() {
    let mut bench = Bench::new(&[
        Change::Create { file: 1, name: b"a" },
        change(1, 0, 1, 1),
        Change::Rename { file: 1, from: b"a", to: b"b" },
        Change::Unlink { file: 2, name: b"c" },
    ]);
    assert_eq!(bench.next(), ["persist 20"]);
    for index in 16..20 {
        assert_eq!(bench.next(), [format!("apply {index}")]);
    }
    assert_eq!(bench.next(), ["sync 0", "sync 1"], "what lost its name need not be found again");
}

#[test]
fn a_batch_is_cut_before_a_page_that_is_locked() {
    let mut bench = Bench::new(&(0..4).map(|n| change(1, n * 10, 1, 1)).collect::<Vec<_>>());
    let asked: Vec<_> = std::iter::from_fn(|| bench.cleaner.poll(|entry| entry.offset != 20)).collect();
    assert_eq!(asked.iter().map(|(_, action)| said(action)).collect::<Vec<_>>(), ["persist 18"]);
    bench.done(asked);
    assert_eq!(bench.next(), ["apply 16", "apply 17"]);
    assert_eq!((bench.next().len(), bench.next().len(), bench.next().len()), (1, 1, 1));
    bench.cleaner.drain_to(20);
    assert_eq!(bench.cleaner.poll(|entry| entry.offset != 20), None, "it is still locked");
    assert_eq!(bench.next(), ["persist 20"]);
}

#[test]
fn what_fails_stops_it_and_a_retry_begins_with_the_writes() {
    let mut bench = Bench::new(&(0..4).map(|n| change(1 + n as u32 % 2, n * 10, 1, 1)).collect::<Vec<_>>());
    bench.next();
    let applies = bench.asked();
    assert_eq!(applies.len(), 4);
    bench.cleaner.failed(applies[1].0, "no space is left on the device");
    let stopped = bench.cleaner.stopped().expect("something failed").clone();
    assert_eq!((stopped.file, &stopped.why[..]), (Some(FileId(2)), "no space is left on the device"));
    bench.cleaner.retry();
    assert_eq!(bench.asked(), [], "a write of the first attempt may still come, over one of the second");
    bench.cleaner.done(applies[0].0);
    bench.cleaner.done(applies[2].0);
    bench.cleaner.failed(applies[3].0, "again");
    assert_eq!(bench.asked(), [], "another failure: somebody has to look again");
    assert_eq!(bench.cleaner.stopped(), Some(&stopped), "the first is what is said");
    bench.cleaner.retry();
    assert_eq!(bench.next(), ["persist 20"]);
    assert_eq!(bench.next().len(), 4);
    let syncs = bench.asked();
    bench.cleaner.done(syncs[0].0);
    bench.cleaner.failed(syncs[1].0, "input/output error");
    assert_eq!(bench.cleaner.stopped().expect("a sync failed").file, Some(FileId(2)));
    assert_eq!((bench.asked(), bench.cleaner.tail()), (vec![], 16), "the log keeps everything");
    bench.cleaner.retry();
    assert_eq!((bench.next(), bench.next().len(), bench.next().len()), (vec!["persist 20".to_owned()], 4, 2));
    assert_eq!((bench.next(), bench.next()), (vec!["advance 20".to_owned()], vec!["free 20".to_owned()]));
}

#[test]
fn a_place_in_progress_holds_it_until_its_owner_has_committed_or_is_dead() {
    let mut bench = Bench::new(&[]);
    let dead = bench.log.reserve(Owner::new(5), 2).unwrap();
    bench.log.append(ME, &change(1, 0, 1, 1).op(), NOW).unwrap();
    let fed = bench.cleaner.feed(&bench.log, |_| false).unwrap();
    assert_eq!(fed, Feed::Waits { first: dead.first(), owner: Owner::new(5) });
    assert_eq!(bench.cleaner.feed(&bench.log, |owner| owner == Owner::new(5)).unwrap(), Feed::Fed);
    bench.cleaner.drain_to(19);
    assert_eq!(bench.next(), ["persist 19"]);
    assert_eq!(bench.next(), ["apply 18"], "of a hole nothing is to be done");
}

#[test]
fn batches_are_a_quarter_of_the_log_and_at_most_those_of_the_paper() {
    assert_eq!(Options::usual(16), Options { batch: 4, low: 8 });
    assert_eq!(Options::usual(1 << 24).batch, 10_000);
}
