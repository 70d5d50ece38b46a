//! Memory of an application, registered where it lies: as `ibv_reg_mr` has it.
#![expect(unsafe_code, reason = "borrows memory by its address")]

use crate::common;

use common::{ALL, Pair, Side, open, pattern, wr};
use remanence_pmem::Region;
use remanence_rnic::{Access, AsyncEvent, RecvWr, RemoteAddr, SendOp, Sge, WcStatus};
use remanence_verbs::{DeviceEvent, Error, Mr, MrMemory, Progress};

const LEN: usize = 64 << 10;

fn lend(memory: &Region, offset: usize, len: usize) -> Region {
    assert!(memory.contains(offset as u64, len as u64));
    // SAFETY: no Rust code refers to memory that a region mapped.
    unsafe { Region::borrowed(memory.base().wrapping_add(offset), len as u64) }.unwrap()
}

/// Registers part of the second side's memory as an application would: addresses are addresses.
fn register(side: &Side, memory: &Region, offset: usize, len: usize) -> Mr {
    let region = lend(memory, offset, len);
    let address = region.base().addr() as u64;
    side.pd.reg_mr_at(&region, 0, len as u64, address, ALL).unwrap()
}

/// Memory that its owner unmapped, and that nobody gets again: it lies below what a program may map.
fn gone() -> Region {
    // SAFETY: there is nothing to refer to.
    unsafe { Region::borrowed(std::ptr::without_provenance_mut(4096), 4096) }.unwrap()
}

fn register_gone(side: &Side) -> Mr {
    side.pd.reg_mr(&gone(), ALL | Access::ON_DEMAND).unwrap()
}

fn errno(error: &Error) -> Option<i32> {
    match error {
        Error::Os { source, .. } => source.raw_os_error(),
        _ => None,
    }
}

const EFAULT: Option<i32> = Some(14);

#[test]
fn memory_is_reached_by_its_address_at_any_alignment() {
    let pair = Pair::new();
    let memory = Region::anonymous(2 * LEN as u64).unwrap();
    for skew in [0, 1, 3, 13] {
        let mr = register(&pair.b, &memory, skew, LEN);
        let data = pattern(LEN, skew as u8);
        pair.a.fill(0, &data);
        pair.qa.post_send(&wr(1, SendOp::Write(mr.remote(0)), &[pair.a.mr.sge(0, LEN as u32)])).unwrap();
        pair.a.success();
        let mut got = vec![0; LEN];
        memory.read(skew as u64, &mut got);
        assert!(got == data);
        pair.a.fill(0, &[0; LEN]);
        pair.qa.post_send(&wr(2, SendOp::Read(mr.remote(0)), &[pair.a.mr.sge(0, LEN as u32)])).unwrap();
        pair.a.success();
        assert!(pair.a.bytes(0, LEN) == data);

        // The word is aligned, its offset is not.
        let word = RemoteAddr { addr: mr.addr().next_multiple_of(8), rkey: mr.rkey() };
        memory.store_u64(word.addr - memory.base().addr() as u64, 40);
        pair.qa.post_send(&wr(3, SendOp::FetchAdd { remote: word, add: 2 }, &[pair.a.mr.sge(0, 8)])).unwrap();
        pair.a.success();
        assert_eq!(memory.load_u64(word.addr - memory.base().addr() as u64), 42);
    }
}

#[test]
fn the_iova_need_not_be_the_address_and_the_length_may_be_zero() {
    let pair = Pair::new();
    let memory = Region::anonymous(LEN as u64).unwrap();
    let region = lend(&memory, 4096, 100);
    let mr = pair.b.pd.reg_mr_at(&region, 0, 100, 0x7000_0000_1000, ALL).unwrap();
    pair.a.fill(0, b"by another name");
    let to = RemoteAddr { addr: 0x7000_0000_1000 + 85, rkey: mr.rkey() };
    pair.qa.post_send(&wr(1, SendOp::Write(to), &[pair.a.mr.sge(0, 15)])).unwrap();
    pair.a.success();
    let mut got = [0; 15];
    memory.read(4096 + 85, &mut got);
    assert_eq!(&got, b"by another name");

    let nothing = pair.b.pd.reg_mr_at(&lend(&memory, 0, 0), 0, 0, 77, ALL).unwrap();
    pair.qa.post_send(&wr(2, SendOp::Write(nothing.remote(0)), &[])).unwrap();
    pair.a.success();
    pair.qa.post_send(&wr(3, SendOp::Write(nothing.remote(0)), &[pair.a.mr.sge(0, 1)])).unwrap();
    assert_eq!(pair.a.completion().status, WcStatus::RemAccessErr);
}

#[test]
fn memory_that_is_not_there_is_refused_with_an_error_of_its_own() {
    let side = Side::new();
    let refused = side.pd.reg_mr(&gone(), ALL).unwrap_err();
    assert_eq!(errno(&refused), EFAULT, "{refused}");
    // Unless it may come later.
    drop(register_gone(&side));

    let memory = Region::anonymous(LEN as u64).unwrap();
    let mut mr = side.pd.reg_mr(&lend(&memory, 0, LEN), ALL).unwrap();
    let new = MrMemory { region: &gone(), offset: 0, len: 4096, iova: 0, access: ALL };
    assert_eq!(errno(&mr.rereg(None, Some(&new)).unwrap_err()), EFAULT);
    let other = side.context.alloc_pd().unwrap();
    let smaller = lend(&memory, 1, 10);
    mr.rereg(Some(&other), Some(&MrMemory { region: &smaller, len: 10, iova: 5, ..new })).unwrap();
    assert_eq!((mr.addr(), mr.len(), mr.pd().raw()), (5, 10, other.raw()));
}

#[test]
fn a_peer_that_writes_freed_memory_is_told_and_nobody_dies() {
    for operation in 0..3 {
        let pair = Pair::new();
        let mr = register_gone(&pair.b);
        let sge = [pair.a.mr.sge(0, 8)];
        let op = match operation {
            0 => SendOp::Write(mr.remote(8)),
            1 => SendOp::Read(mr.remote(8)),
            _ => SendOp::FetchAdd { remote: mr.remote(8), add: 1 },
        };
        pair.qa.post_send(&wr(1, op, &sge)).unwrap();
        assert_eq!(pair.a.completion().status, WcStatus::RemOpErr, "operation {operation}");
        let event = pair.b.context.get_async_event(common::LIMIT);
        assert!(
            matches!(event, Some(DeviceEvent::Affiliated(AsyncEvent::QpFatal(qpn))) if qpn == pair.qb.qpn()),
            "{event:?}"
        );
        // Another QP of the same device is none the worse for it.
        let (qa, qb) = (pair.a.qp(), pair.b.qp());
        common::connect(&qa, &qb);
        qa.post_send(&wr(2, SendOp::Write(pair.b.mr.remote(0)), &sge)).unwrap();
        while pair.a.completion().wr_id != 2 {}
    }
}

#[test]
fn own_buffers_that_were_freed_fail_their_own_work_request() {
    let pair = Pair::new();
    let (from, into) = (register_gone(&pair.a), register_gone(&pair.b));
    pair.qb.post_recv(&RecvWr { wr_id: 5, sges: &[into.sge(0, 64)] }).unwrap();
    pair.qa.post_send(&wr(1, SendOp::Send, &[pair.a.mr.sge(0, 10)])).unwrap();
    assert_eq!(pair.a.completion().status, WcStatus::RemOpErr);
    let wc = pair.b.completion();
    assert_eq!((wc.wr_id, wc.status), (5, WcStatus::LocProtErr));

    let pair = Pair::of(pair.a, Side::with(open(Progress::default())));
    let sge: [Sge; 1] = [from.sge(0, 64)];
    pair.qa.post_send(&wr(2, SendOp::Write(pair.b.mr.remote(0)), &sge)).unwrap();
    assert_eq!(pair.a.completion().status, WcStatus::LocProtErr);
}
