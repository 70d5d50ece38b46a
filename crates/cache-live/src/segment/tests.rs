//! What the words of a segment say, one after the other.

use super::*;

pub(crate) fn segment() -> Segment {
    let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
    let segment = Segment::of(words.leak()).expect("enough words");
    segment.make(7, 4);
    segment
}

const fn key(inode: u64) -> Key {
    Key { device: 1, inode, born: 3 }
}

const FIRST: First = First { id: 5, why: 0, due: 1, changed: 100 };

#[test]
fn one_of_those_who_wait_syncs_for_all() {
    const LONG_MS: u64 = 600_000;
    let segment = segment();
    let (synced, (go, went)) = (&AtomicU64::new(0), std::sync::mpsc::channel::<()>());
    let sync = move |upto| {
        synced.fetch_add(1, Ordering::SeqCst);
        segment.log().raise(Word::Durable, upto);
        true
    };
    let until = |holds: &dyn Fn() -> bool| {
        while !holds() {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|threads| {
        let held = move |upto| {
            let _ = went.recv();
            sync(upto)
        };
        threads.spawn(move || assert!(segment.sync_in_turn(1, LONG_MS, held)));
        until(&|| segment.word(TURN).load(Ordering::SeqCst) & TAKEN != 0);
        for upto in 2..=9 {
            threads.spawn(move || assert!(segment.sync_in_turn(upto, LONG_MS, sync)));
            until(&|| segment.word(SYNC_UPTO).load(Ordering::SeqCst) == upto);
        }
        drop(go);
    });
    assert_eq!(synced.load(Ordering::SeqCst), 2, "that of the first, and one for the eight behind it");
    assert_eq!(segment.word(TURN).load(Ordering::SeqCst) & (TAKEN | AWAITED), 0);
}

#[test]
fn who_has_died_with_the_turn_has_it_taken_away_and_ends_nobody_elses() {
    let segment = segment();
    let dead = NEXT | TAKEN;
    segment.word(TURN).store(dead, Ordering::SeqCst);
    let sync = |upto| {
        segment.give_back(dead);
        assert_eq!(segment.word(TURN).load(Ordering::SeqCst) & TAKEN, TAKEN, "it is another's by now");
        segment.log().raise(Word::Durable, upto);
        true
    };
    assert!(segment.sync_in_turn(5, 1, sync));
    assert!(segment.sync_in_turn(5, 1, |_| panic!("all of it is durable")));
    assert_eq!(segment.word(TURN).load(Ordering::SeqCst) & TAKEN, 0);
    segment.fail();
    assert!(!segment.sync_in_turn(5, 1, |_| true), "nothing is durable any more that somebody asks for");
}

#[test]
fn a_file_is_found_by_its_identity_and_not_after_it_was_removed() {
    let segment = segment();
    let slots: Vec<usize> =
        (0..900).map(|inode| segment.insert(&key(inode), &FIRST).expect("room")).collect();
    assert!((0..900).all(|inode| segment.find(&key(inode)).is_some()));
    assert!(segment.find(&Key { born: 4, ..key(1) }).is_none(), "an inode that is used again");
    for (inode, slot) in (0..900).zip(slots).filter(|(inode, _)| inode % 2 == 0) {
        assert!(segment.remove(slot));
        assert!(segment.find(&key(inode)).is_none());
    }
    assert!((0..900).filter(|inode| inode % 2 == 1).all(|inode| segment.find(&key(inode)).is_some()));
}

/// Numbers from 40 on are left, as many as there is room for.
fn spare() -> Segment {
    let segment = segment();
    segment.leave_spares(|room| (40..).take(room).collect());
    segment
}

#[test]
fn who_makes_a_file_has_its_lock_and_a_number_that_nobody_else_gets() {
    let segment = spare();
    let make = |inode, owner| segment.make_file(&key(inode), owner, 100, |_| true);
    let made: Vec<(File, u32)> = (0..SPARES as u64)
        .map(|inode| {
            let file = make(inode, 9).expect("a number");
            assert_eq!((file.holder(), segment.find(&key(inode)).map(File::slot)), (9, Some(file.slot())));
            assert!(file.is_unheard() && !file.is_absorbed(), "its maker has not logged it");
            file.born(100, true, 40);
            assert!(file.is_absorbed());
            assert_eq!(segment.lacks_spares(), inode >= SPARES as u64 / 2);
            file.unlock();
            (file, file.id())
        })
        .collect();
    let numbers: std::collections::BTreeSet<u32> = made.iter().map(|(_, id)| *id).collect();
    assert_eq!(numbers, (40..40 + SPARES as u32).collect());
    assert!(make(900, 9).is_none() && !segment.has_spares(), "there is none left");
    segment.leave_spares(|_| panic!("the daemon has not heard of those that were made"));
    let heard: Vec<(usize, u32)> = segment.made().iter().map(|(file, id)| (file.slot(), *id)).collect();
    assert_eq!(heard, made.iter().map(|(file, id)| (file.slot(), *id)).collect::<Vec<_>>());
    assert!(segment.made().is_empty() && !made[0].0.is_unheard());
    segment.leave_spares(|room| (500..).take(room).collect());
    assert_eq!(make(900, 9).map(File::id), Some(500));
    segment.take_spares();
    assert!(make(901, 9).is_none(), "the daemon ends");
    assert_eq!(segment.made().len(), 1, "what was made is heard of all the same");
}

#[test]
fn a_file_has_one_place_whoever_makes_it() {
    let segment = spare();
    let insert = |inode| segment.insert(&key(inode), &FIRST);
    let make = |inode| segment.make_file(&key(inode), 9, 100, |_| true);
    assert!(insert(1).is_some() && make(1).is_none() && make(2).is_some() && insert(2).is_none());
    assert!(segment.make_file(&key(3), 9, 100, |_| false).is_none(), "the log does not say what it means");
    assert!(segment.find(&key(3)).is_none() && make(3).is_some());
    for (file, _) in segment.made() {
        file.break_lock(9);
    }
    // Makers and the daemon at a time: each finds what is there by its place.
    let word = std::sync::atomic::AtomicU64::new(10);
    std::thread::scope(|scope| {
        for owner in 1..4 {
            let word = &word;
            scope.spawn(move || {
                for _ in 0..500 {
                    let inode = word.fetch_add(1, Ordering::SeqCst);
                    let slot = match owner {
                        1 => segment.insert(&key(inode), &FIRST),
                        _ => segment.make_file(&key(inode), owner, 100, |_| true).map(File::slot),
                    };
                    if let Some(slot) = slot {
                        assert_eq!(segment.find(&key(inode)).map(File::slot), Some(slot));
                        segment.file(slot).break_lock(owner);
                    }
                    if owner == 1 {
                        let heard = segment.made();
                        segment.leave_spares(|room| vec![7; room]);
                        for slot in heard.iter().map(|(file, _)| file.slot()).chain(slot) {
                            assert!(segment.file(slot).lock(DAEMON, 60_000), "its maker gives it back");
                            while !segment.remove(slot) {
                                std::thread::yield_now();
                            }
                            segment.file(slot).unlock();
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn who_dies_while_he_makes_a_file_has_made_none_and_keeps_no_number() {
    let segment = spare();
    let died = std::panic::catch_unwind(|| segment.make_file(&key(1), 9, 100, |_| panic!("killed")));
    assert!(died.is_err() && segment.insert(&key(2), &FIRST).is_none(), "the places are his");
    segment.places_left(8);
    assert!(segment.insert(&key(2), &FIRST).is_none(), "he was somebody else");
    segment.places_left(9);
    assert!(segment.insert(&key(2), &FIRST).is_some() && segment.find(&key(1)).is_none());
    // Later: the number is taken, and the file cannot be found.
    let file = segment.make_file(&key(1), 9, 100, |_| true).expect("a number");
    file.state().store(File::NONE, Ordering::SeqCst);
    segment.word(TABLE).store(9, Ordering::SeqCst);
    assert!(segment.made().is_empty());
    segment.places_left(9);
    assert_eq!((segment.made().len(), file.holder()), (0, 0));
    assert_eq!(segment.make_file(&key(3), 7, 100, |_| true).map(File::id), Some(40), "it is free again");
}

#[test]
fn garbage_leaves_no_bounds() {
    let words: Vec<AtomicU64> =
        (0..WORDS).map(|n| AtomicU64::new((n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    let segment = Segment::of(words.leak()).expect("enough words");
    assert!(!segment.is_ours());
    for n in 0..10_000 {
        let _ = segment.find(&key(n));
        let file = segment.file(n as usize * 31);
        file.note(n);
        let _ = (file.is_absorbed(), file.error(), segment.client(n as usize).owner());
    }
    assert!(segment.log().load(Word::Head) < 1 << 50);
    assert!(Segment::of(&[]).is_none());
}

#[test]
fn what_somebody_else_did_is_synced_twice_before_anything_is_absorbed() {
    let segment = segment();
    let file = segment.file(segment.insert(&key(1), &FIRST).expect("room"));
    assert!(!file.is_absorbed(), "it was never synced");
    file.note(100);
    file.synced(file.before_sync(), true, 100);
    assert!(file.is_absorbed());
    // A change of ours.
    file.set_changed(101);
    file.note(101);
    assert!(file.is_absorbed());
    let strangers: [fn(File); 2] = [|file| file.note(102), File::mark];
    for stranger in strangers {
        stranger(file);
        assert!(!file.is_absorbed());
        file.note(102);
        file.synced(file.before_sync(), true, 102);
        assert!(!file.is_absorbed(), "whoever did it may have been at it");
        file.synced(file.before_sync(), false, 102);
        assert!(!file.is_absorbed(), "a change was under way");
        file.synced(file.before_sync(), true, 103);
        assert!(!file.is_absorbed(), "it changed meanwhile");
        let before = file.before_sync();
        file.synced(before, true, 102);
        assert!(file.is_absorbed());
    }
    file.refuse(why::MAPPED);
    file.note(102);
    file.synced(file.before_sync(), true, 102);
    assert!(!file.is_absorbed(), "for good");
}

#[test]
fn an_exclusive_file_that_somebody_has_opened_is_synced_twice() {
    let segment = segment();
    let file = segment.file(segment.insert(&key(1), &First { due: 0, ..FIRST }).expect("room"));
    let other = segment.file(segment.insert(&key(2), &FIRST).expect("room"));
    assert!(file.stamp() != other.stamp() && !segment.is_leaked(&key(1)));
    file.end_exclusive();
    assert!(file.is_absorbed(), "it was none");
    file.begin_exclusive();
    assert!(file.is_exclusive() && file.is_absorbed());
    file.doubt_exclusive();
    assert!(!file.is_exclusive() && file.is_doubted() && file.is_absorbed());
    file.prove_exclusive();
    assert!(file.is_exclusive() && !file.is_doubted());
    segment.leak(&key(1));
    assert!(!file.is_exclusive() && !file.is_absorbed());
    file.doubt_exclusive();
    file.prove_exclusive();
    assert!(!file.is_exclusive() && !file.is_doubted(), "it is over");
    assert!(segment.is_leaked(&key(1)) && !segment.is_leaked(&key(2)));
    let tries: Vec<bool> = (0..40).map(|_| other.is_to_try()).collect();
    let at: Vec<usize> = (0..40).filter(|n| tries[*n]).collect();
    assert_eq!(at, [7, 23], "after eight, and after sixteen more");
}

#[test]
fn what_is_changed_while_nothing_is_logged_is_owed() {
    let segment = segment();
    let file = segment.file(segment.insert(&key(1), &First { due: 0, ..FIRST }).expect("room"));
    assert!(file.is_absorbed());
    segment.freeze(true);
    assert!(!file.is_absorbed());
    file.owe();
    file.set_changed(101);
    segment.freeze(false);
    assert!(!file.is_absorbed(), "nobody has synced that");
    file.synced(file.before_sync(), true, 101);
    assert!(file.is_absorbed());
}

#[test]
fn what_others_have_logged_of_a_file_before_its_maker_said_so_counts() {
    let segment = segment();
    let file = |inode| segment.file(segment.insert(&key(inode), &FIRST).expect("room"));
    let alone = file(1);
    alone.born(100, true, 40);
    assert!(alone.is_absorbed() && alone.last() == 40);
    let shared = file(2);
    // Somebody has synced it, and written to it since.
    shared.synced(shared.before_sync(), true, 100);
    shared.set_changed(101);
    shared.set_last(57);
    shared.born(100, true, 40);
    assert_eq!(shared.last(), 57, "a sync has to wait for that");
}

#[test]
fn a_daemon_that_is_silent_is_called_now_and_then_until_it_is_heard() {
    let segment = segment();
    assert!(!segment.is_silent());
    segment.silent(5 * CALL_NS);
    assert!(segment.is_silent() && !segment.is_to_call(6 * CALL_NS - 1));
    assert!(segment.is_to_call(6 * CALL_NS), "the daemon may have gone on just before");
    assert!(!segment.is_to_call(6 * CALL_NS + 1), "one is enough");
    assert!(segment.is_silent() && segment.is_to_call(7 * CALL_NS));
    segment.heard();
    assert!(!segment.is_silent());
}

#[test]
fn a_mark_during_a_sync_is_not_lost() {
    let segment = segment();
    let file = segment.file(segment.insert(&key(1), &FIRST).expect("room"));
    let before = file.before_sync();
    file.mark();
    file.synced(before, true, 100);
    file.note(100);
    assert!(!file.is_absorbed());
}

#[test]
fn the_lock_of_a_dead_owner_is_broken_and_its_file_is_due() {
    let segment = segment();
    let file = segment.file(segment.insert(&key(1), &First { due: 0, ..FIRST }).expect("room"));
    assert_eq!(file.take(&key(1), 9), Taken::Held);
    assert!(file.is_absorbed() && file.holder() == 9);
    assert!(!file.lock(10, 0), "it is another's");
    file.break_lock(10);
    assert_eq!(file.holder(), 9);
    file.break_lock(9);
    assert!(!file.is_absorbed(), "what it wrote may be in no log");
    assert_eq!(file.take(&key(2), 10), Taken::Gone);
    assert_eq!(file.take(&key(1), 10), Taken::Held);
}

#[test]
fn who_waits_for_changes_goes_on_when_each_file_was_given_back() {
    let segment = segment();
    let file = segment.file(segment.insert(&key(1), &FIRST).expect("room"));
    segment.wait_changes(60_000);
    assert_eq!(file.take(&key(1), 9), Taken::Held);
    let before = sys::monotonic();
    segment.wait_changes(30);
    assert!(sys::monotonic() - before >= 30_000_000, "somebody has it all the time");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| segment.wait_changes(60_000));
        file.unlock();
        waits.join().expect("it goes on");
    });
}

#[test]
fn who_waits_for_a_file_is_woken() {
    let segment = segment();
    let file = segment.file(segment.insert(&key(1), &FIRST).expect("room"));
    let turns = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for owner in 1..5 {
            let turns = &turns;
            scope.spawn(move || {
                for _ in 0..2000 {
                    assert!(file.lock(owner, 60_000));
                    let was = turns.load(Ordering::Relaxed);
                    std::hint::spin_loop();
                    turns.store(was + 1, Ordering::Relaxed);
                    file.unlock();
                }
            });
        }
    });
    assert_eq!(turns.load(Ordering::Relaxed), 8000);
}
