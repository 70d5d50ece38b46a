//! What a server's application costs, and what it puts off.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{Host, fixed as options};
use remanence_remote::{Meter, Session};

const SERVICE: u16 = 7;

#[test]
fn messages_are_counted_and_one_sided_operations_are_not() {
    let meter = Arc::new(Mutex::new(Meter::default()));
    let kept = Arc::clone(&meter);
    let mut host = Host::with(
        1 << 16,
        None,
        |options| options,
        |server| {
            *kept.lock().expect("nobody panics") = server.meter();
            server.on_call(SERVICE, |call| {
                // As much CPU time as a clock of whatever grain sees.
                let sum =
                    (0..2_000_000_u64).fold(0, |sum: u64, n| std::hint::black_box(sum.wrapping_mul(31) + n));
                Ok([call.request, &sum.to_le_bytes()].concat())
            });
        },
    );
    let meter = meter.lock().expect("nobody panics").clone();
    let mut session = Session::connect(&common::context(), host.addr, options()).expect("a session");
    session.call(SERVICE, b"one").expect("it answers");
    // The second one is taken when the first one has been counted.
    session.call(SERVICE, b"two").expect("it answers");
    let before = loop {
        let read = meter.read();
        // Three: the session asked for the server's sentence when it connected.
        if read.messages >= 3 {
            break read;
        }
        std::thread::yield_now();
    };
    assert!(!before.application.is_zero());
    let mut bytes = [0; 64];
    for _ in 0..100 {
        session.read(0, &mut bytes).expect("memory");
    }
    assert_eq!(meter.read(), before, "a READ is nobody's message");
    drop(session);
    host.stop();
}

#[test]
fn what_was_put_off_is_done_without_another_message() {
    let left = Arc::new(AtomicU64::new(0));
    let (add, take) = (Arc::clone(&left), Arc::clone(&left));
    let done = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&done);
    let mut host = Host::with(
        1 << 16,
        None,
        |options| options,
        |server| {
            server.on_call(SERVICE, move |_| {
                add.store(1000, Ordering::Release);
                Ok(Vec::new())
            });
            server.on_idle(move || {
                if take.load(Ordering::Acquire) == 0 {
                    return false;
                }
                count.fetch_add(1, Ordering::Release);
                take.fetch_sub(1, Ordering::AcqRel) > 1
            });
        },
    );
    let mut session = Session::connect(&common::context(), host.addr, options()).expect("a session");
    session.call(SERVICE, &[]).expect("it answers");
    while done.load(Ordering::Acquire) < 1000 {
        std::thread::yield_now();
    }
    assert_eq!(left.load(Ordering::Acquire), 0);
    host.stop();
}
