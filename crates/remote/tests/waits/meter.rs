//! What a server's application costs.

use crate::common;

use std::sync::{Arc, Mutex};

use common::{Host, context, fixed};
use remanence_remote::{Metered, Session};

const SERVICE: u16 = 7;

#[test]
fn messages_are_counted_and_one_sided_operations_are_not() {
    // What the meter shows when a call arrives: everything before it has been counted by then.
    let seen: Arc<Mutex<Vec<Metered>>> = Arc::default();
    let kept = Arc::clone(&seen);
    let mut host = Host::with(
        1 << 16,
        None,
        |options| options,
        |server| {
            let meter = server.meter();
            server.on_call(SERVICE, move |call| {
                kept.lock().expect("nobody panics").push(meter.read());
                // As much CPU time as a clock of whatever grain sees.
                let sum = (0..2_000_000_u64)
                    .fold(0, |sum: u64, n| std::hint::black_box(sum.wrapping_mul(31).wrapping_add(n)));
                Ok([call.request, &sum.to_le_bytes()].concat())
            });
        },
    );
    let mut session = Session::connect(&context(), host.addr, fixed()).expect("a session");
    session.call(SERVICE, b"one").expect("it answers");
    let mut bytes = [0; 64];
    for _ in 0..100 {
        session.read(0, &mut bytes).expect("memory");
    }
    session.call(SERVICE, b"two").expect("it answers");
    drop(session);
    host.stop();
    let seen = seen.lock().expect("nobody panics");
    let [one, two] = seen[..] else { panic!("{seen:?}") };
    assert_eq!(two.messages, one.messages + 1, "a READ is nobody's message");
    assert!(two.application > one.application, "a call takes time");
}
