//! Descriptors that lead to no regular file: a call on one of these is let through after a look at one word, and costs no system call of ours.
//!
//! The only thing that is remembered is that a number was, a moment ago, a pipe, a socket, a terminal or the like. A number that is in use gets another meaning by
//! `close`, `close_range`, `dup2` and `dup3` alone, which are seen before they are carried out, each by the same look: the number's word then counts up, and who was about to note something
//! that he had asked the kernel before that notes nothing. New memory (`exec`) has no notes, and a forked child has its parent's, as it has its descriptors.
//!
//! **A note that is wrong all the same** (one thread writes to a number while another one has it closed and a third opens a file with it; a number that was closed by instructions that
//! are not hooked; the child of `vfork`, which has its parent's memory) makes writes of the program those of somebody else: they are in the file and not in the log, the file's time of change tells, and
//! its next syncs are the kernel's (`segment.rs`).

use std::sync::atomic::{AtomicU32, Ordering};

/// Higher numbers are asked about each time.
const NUMBERS: usize = 4096;

/// Of each number: how often it was closed, twice; and one more, if it leads to no regular file.
static NOTES: [AtomicU32; NUMBERS] = [const { AtomicU32::new(0) }; NUMBERS];

fn note(fd: u64) -> Option<&'static AtomicU32> {
    // The kernel looks at the low half of the register.
    NOTES.get(fd as u32 as usize)
}

/// Whether it leads to no regular file.
pub(super) fn is_noted(fd: u64) -> bool {
    note(fd).is_some_and(|note| !note.load(Ordering::SeqCst).is_multiple_of(2))
}

/// How a number stands, for [`noted`].
pub(super) fn before(fd: u64) -> u32 {
    note(fd).map_or(0, |note| note.load(Ordering::SeqCst))
}

/// Notes that it leads to no regular file, as the kernel has just said; unless it was closed since.
pub(super) fn noted(fd: u64, before: u32) {
    if let Some(note) = note(fd)
        && before.is_multiple_of(2)
    {
        // Whoever was quicker has noted the same, or has closed it.
        let _ = note.compare_exchange(before, before + 1, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// Numbers from one up to another get another meaning.
pub(super) fn closed(from: u64, upto: u64) {
    let (from, upto) = (from as u32 as usize, upto as u32 as usize);
    for note in NOTES.iter().take(upto.saturating_add(1)).skip(from) {
        let next = |was: u32| Some((was | 1).wrapping_add(1));
        let _ = note.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_before_a_close_is_not_noted_behind_it() {
        let fd = 4000;
        assert!(!is_noted(fd));
        let seen = before(fd);
        noted(fd, seen);
        assert!(is_noted(fd) && !is_noted(fd + 1) && !is_noted(fd - 1));
        let late = before(fd);
        closed(fd, fd);
        assert!(!is_noted(fd));
        noted(fd, seen);
        noted(fd, late);
        assert!(!is_noted(fd), "it may be another one");
        let seen = before(fd);
        noted(fd, seen);
        assert!(is_noted(fd));
        closed(3990, u64::MAX);
        assert!(!is_noted(fd), "close_range");
        noted(u64::from(u32::MAX), before(u64::from(u32::MAX)));
        assert!(!is_noted(u64::from(u32::MAX)), "no number");
    }
}
