//! A copy engine in a child that was forked while copies were under way: it has no thread there, and nobody waits for one.
//! Alone in its program, as it forks.
#![expect(unsafe_code, reason = "forks")]

use remanence_pmem::Region;
use remanence_pmem::engine::{CopyEngine, CopyError, Options, Refusal, Worker};

/// Longer than any machine takes; a child that hangs is ended by it.
const FOR_EVER: u32 = 60;

#[test]
fn a_forked_child_is_told_that_the_engine_is_its_parents_and_the_parent_goes_on() {
    let region = Region::anonymous(1 << 20).expect("memory");
    let mut engine = Worker::new(Options::new().window(4)).expect("a thread");
    for n in 0..3 {
        engine.submit(vec![n as u8 + 1; 4096].into(), &region, n * 4096).expect("there is room");
    }
    // SAFETY: the child touches what it inherited, allocates (which glibc's fork allows for), and ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no handler is set, so that it ends this process.
        unsafe { libc::alarm(FOR_EVER) };
        let refused = engine.submit(vec![9; 64].into(), &region, 0);
        let told =
            (0..3).filter(|_| matches!(engine.wait(), Some(c) if matches!(c.outcome, Err(CopyError::Died))));
        let told = told.count();
        let copied = engine.copy(b"bytes", &region, 0);
        let good = matches!(refused, Err(r) if r.why == Refusal::Stopped)
            && told == 3
            && engine.wait().is_none()
            && matches!(copied, Err(CopyError::Refused(Refusal::Stopped)));
        drop(engine);
        // SAFETY: ends this process.
        unsafe { libc::_exit(if good { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for a child of ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "it waited for a thread that it has not: {status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "it was told something else");
    // The parent's engine is as it was.
    let mut done = 0;
    engine.finish(&mut |completion| {
        assert!(completion.outcome.is_ok());
        done += 1;
    });
    assert_eq!(done, 3);
    let mut back = [0; 1];
    region.read(2 * 4096, &mut back);
    assert_eq!(back, [3]);
}
