//! Posting, polling and serving allocate nothing once a connection is warm. Alone in its program, as it counts the
//! allocations of the whole process.
#![expect(unsafe_code, reason = "an allocator that counts is an allocator")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Pair, wr};
use remanence_link::veth::{End, Veth};
use remanence_rnic::{RecvWr, SendOp, WcStatus};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is the system allocator's; counting touches no memory of anyone.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, and all memory is from `System`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_warm_connection_allocates_nothing() {
    // A port of its own: who shares one counts in what others do to it. Without root's rights, with whoever is there.
    let alone = Veth::new(1500).and_then(|veth| veth.enter(End::Left).map(|()| veth));
    let pair = Pair::new();
    let mut wcs = Vec::with_capacity(64);
    let sge = [pair.a.mr.sge(0, 64)];
    let receive = [pair.b.mr.sge(4096, 64)];
    let remote = pair.b.mr.remote(0);
    let mut rounds = |count: u64| {
        for i in 0..count {
            pair.qb.post_recv(&RecvWr { wr_id: i, sges: &receive }).unwrap();
            pair.qa.post_send(&wr(i, SendOp::Write(remote), &sge)).unwrap();
            pair.qa.post_send(&wr(i, SendOp::Read(remote), &sge)).unwrap();
            pair.qa.post_send(&wr(i, SendOp::Send, &sge)).unwrap();
            wcs.clear();
            while wcs.len() < 3 {
                pair.a.cq.poll(&mut wcs, 8).unwrap();
            }
            while wcs.len() < 4 {
                pair.b.cq.poll(&mut wcs, 8).unwrap();
            }
            assert!(wcs.iter().all(|wc| wc.status == WcStatus::Success));
        }
    };
    rounds(1_000);
    // The housekeeping of a port allocates now and then, which is not the data path, and meets some of these runs. What
    // allocates for a request does so in each of them.
    let least = (0..150).map(|_| {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        rounds(20);
        ALLOCATIONS.load(Ordering::Relaxed) - before
    });
    let least = least.min();
    drop(alone);
    assert_eq!(least, Some(0), "allocations in 20 rounds of four operations");
}
