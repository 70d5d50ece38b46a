//! The engine against the Linux kernel's Soft-RoCE, both as requester and as responder.
//!
//! One test boots one guest (`tests/guest`) behind a tap, in a network namespace of its own, and tells it what to do.
//! It needs to be root or to have user namespaces, QEMU, and the Debian packages that `make test` installs; where
//! something is missing it says what, and is skipped. `dumpcap` records all packets; `tshark` must find none malformed.

mod guest;
mod host;
use crate::machine;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use guest::{Guest, GuestQp, guest_beside, pattern};
use host::{Carrier, Host, Pair, remote};
use machine::Capture;
use remanence_pmem::FileOptions;
use remanence_rnic::{
    Access, MwBind, MwType, Placement, QpType, RemoteAddr, Selectivity, SendOp, WcOpcode, WcStatus,
};
use remanence_verbs::{ConnectAttr, Connection, Listener, QpOptions};
use remanence_wire::{Gid, Mtu, Qpn, Rkey};

/// Set in the process that runs inside the network namespace.
const INSIDE: &str = "REMANENCE_SOFT_ROCE";

/// Around every boundary that matters: nothing, less than a word, one packet, one more byte, many packets.
const LENGTHS: [usize; 9] = [0, 1, 7, 1024, 1025, 4096, 4097, 70_001, 1 << 20];

/// Where data lies in both memories; the byte before and after must stay as they are.
const AT: u64 = 4096;

#[test]
fn linux_soft_roce_and_we_understand_each_other() {
    machine::in_a_namespace("soft_roce::linux_soft_roce_and_we_understand_each_other", INSIDE, inside);
}

/// In a user namespace everybody is root of something.
fn is_real_root() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.contains("4294967295"))
}

type Story = fn(&Host, &mut Guest);

/// Every carrier goes through all of them.
const STORIES: &[(&str, Story)] = &[
    ("we write, read and send", we_request),
    ("the guest writes, reads and sends", the_guest_requests),
    ("our atomics, ATOMIC WRITE and FLUSH", |host, guest| {
        host.hearing_the_guest(|| our_atomics_and_flushes(host, guest));
    }),
    ("the guest's atomics, ATOMIC WRITE and FLUSH", |host, guest| {
        host.hearing_the_guest(|| the_guests_atomics_and_flushes(host, guest));
    }),
    ("FLUSH to persistence", |host, guest| host.hearing_the_guest(|| a_flush_to_persistence(host, guest))),
    ("memory windows, bound and invalidated", |host, guest| {
        host.hearing_the_guest(|| memory_windows(host, guest));
    }),
    ("UC both ways", unreliable_connections),
    ("UD both ways", datagrams),
    ("a wrong key is refused, both ways", |host, guest| host.hearing_the_guest(|| wrong_keys(host, guest))),
    ("both at once, on many QPs", both_at_once),
    ("connections that we make", cm_we_connect),
    ("connections that the guest makes", cm_the_guest_connects),
    ("connections that are refused", |host, guest| host.hearing_the_guest(|| cm_refusals(host, guest))),
];

fn inside() {
    let mut guest = Guest::boot();
    let capture = Capture::start();
    for carrier in [Carrier::UdpV4, Carrier::UdpV6, Carrier::Xdp, Carrier::BadWeather] {
        if carrier == Carrier::Xdp && !is_real_root() {
            eprintln!("skipped: AF_XDP, which needs more than a user namespace");
            continue;
        }
        let start = Instant::now();
        let host = Host::open(carrier);
        // What its connection manager asks for follows from its interface, and is refused if we cannot carry it.
        guest.ask(&format!("mtu {}", host.mtus[1].bytes() + 204));
        for (name, story) in STORIES {
            let start = Instant::now();
            story(&host, &mut guest);
            eprintln!("  {name}: {:.1} s", start.elapsed().as_secs_f64());
        }
        let again = host.context.stats().retransmits;
        eprintln!("{carrier:?}: {:.1} s, {again} packets sent again", start.elapsed().as_secs_f64());
    }
    guest.end();
    capture.judge();
}

fn we_request(host: &Host, guest: &mut Guest) {
    for mtu in host.mtus {
        let pair = host.pair(guest, QpType::Rc, mtu);
        let id = pair.theirs.id;
        for (number, len) in LENGTHS.into_iter().enumerate() {
            let seed = (number as u64 + 1) * 100 + mtu.bytes() as u64;
            let around = len + 2;
            // WRITE
            guest.fill(AT - 1, around, seed);
            host.fill(AT, len, seed + 1);
            pair.run_ok(host, SendOp::Write(remote(guest, AT)), AT, len);
            guest.check(AT, len, seed + 1);
            guest.check(AT - 1, 1, seed);
            let after = pattern(seed, around)[around - 1];
            let end = AT + len as u64;
            let found = guest.word(end & !7) >> (end % 8 * 8) & 0xff;
            assert_eq!(found, u64::from(after), "the byte after {len} written ones");
            // READ
            guest.fill(AT, len, seed + 2);
            // Linux 6.12 never answers a READ of nothing again: it forgets the rkey, and then misses it.
            if len > 0 || host.carrier != Carrier::BadWeather {
                let wc = pair.run_ok(host, SendOp::Read(remote(guest, AT)), AT, len);
                assert_eq!((wc.opcode, wc.byte_len as usize), (WcOpcode::RdmaRead, len));
                host.check(AT, len, seed + 2);
            }
            // SEND, with immediate and without, and WRITE with immediate
            for (op, imm, is_write) in [
                (SendOp::Send, 0, false),
                (SendOp::SendImm(0xdead_beef), 0xdead_beef, false),
                (SendOp::WriteImm(remote(guest, AT), 0x0102_0304), 0x0102_0304, true),
            ] {
                guest.fill(AT, len, 0);
                guest.post_recv(id, AT, 1 << 20);
                host.fill(AT, len, seed + 3 + u64::from(imm));
                pair.run_ok(host, op, AT, len);
                let wc = guest.wait_one(id).assert_success();
                assert_eq!((wc.len as usize, wc.imm), (len, imm), "{op:?}");
                assert_eq!(wc.opcode == WcOpcode::RecvRdmaWithImm as u32, is_write);
                guest.check(AT, len, seed + 3 + u64::from(imm));
            }
        }
        guest.ask(&format!("destroy {id}"));
    }
}

fn the_guest_requests(host: &Host, guest: &mut Guest) {
    let place = host.mr.remote(AT);
    for mtu in host.mtus {
        let pair = host.pair(guest, QpType::Rc, mtu);
        let id = pair.theirs.id;
        for (number, len) in LENGTHS.into_iter().enumerate() {
            if len > 100_000 && host.carrier == Carrier::BadWeather {
                continue; // Linux waits for its timer after most losses, and takes long
            }
            let seed = (number as u64 + 1) * 1000 + mtu.bytes() as u64;
            let post = |guest: &mut Guest, op: &str, imm: u32| {
                let (addr, rkey) = (place.addr, place.rkey.0);
                guest.ask(&format!("post {id} {op} {AT} {len} {addr} {rkey} {imm}"));
                guest.wait_one(id).assert_success()
            };
            // WRITE
            host.fill(AT - 1, len + 2, seed);
            let around = pattern(seed, len + 2);
            guest.fill(AT, len, seed + 1);
            post(guest, "write", 0);
            host.check(AT, len, seed + 1);
            let mut edge = [0; 1];
            host.region.read(AT - 1, &mut edge);
            assert_eq!(edge[0], around[0], "the byte before");
            host.region.read(AT + len as u64, &mut edge);
            assert_eq!(edge[0], around[len + 1], "the byte after");
            // READ
            host.fill(AT, len, seed + 2);
            post(guest, "read", 0);
            guest.check(AT, len, seed + 2);
            // SEND, with immediate and without, and WRITE with immediate
            for (op, imm) in [("send", 0), ("send_imm", 0xdead_beef), ("write_imm", 0x0102_0304)] {
                host.fill(AT, len, 0);
                pair.post_recv(host, AT, 1 << 20);
                guest.fill(AT, len, seed + 3 + u64::from(imm));
                post(guest, op, imm);
                let wc = pair.wait(1)[0];
                assert_eq!((wc.status, wc.byte_len as usize), (WcStatus::Success, len), "{op}: {wc:?}");
                assert_eq!(wc.imm, (imm != 0).then_some(imm));
                assert_eq!(wc.opcode == WcOpcode::RecvRdmaWithImm, op == "write_imm");
                host.check(AT, len, seed + 3 + u64::from(imm));
            }
        }
        guest.ask(&format!("destroy {id}"));
    }
}

const WORD: u64 = 0x0123_4567_89ab_cdef;

fn flush(remote: RemoteAddr, len: u32, placement: Placement, selectivity: Selectivity) -> SendOp {
    SendOp::Flush { remote, len, placement, selectivity }
}

fn our_atomics_and_flushes(host: &Host, guest: &mut Guest) {
    let pair = host.pair(guest, QpType::Rc, Mtu::B1024);
    let word = remote(guest, 64);
    guest.set_word(64, WORD);
    let add = SendOp::FetchAdd { remote: word, add: u64::MAX };
    assert_eq!(pair.run_ok(host, add, 0, 8).byte_len, 8);
    assert_eq!((host.region.load_u64(0), guest.word(64)), (WORD, WORD - 1));
    let miss = SendOp::CompareSwap { remote: word, compare: WORD, swap: 7 };
    pair.run_ok(host, miss, 0, 8);
    assert_eq!((host.region.load_u64(0), guest.word(64)), (WORD - 1, WORD - 1), "no match, no swap");
    let hit = SendOp::CompareSwap { remote: word, compare: WORD - 1, swap: 7 };
    pair.run_ok(host, hit, 0, 8);
    assert_eq!((host.region.load_u64(0), guest.word(64)), (WORD - 1, 7));
    host.region.store_u64(8, WORD);
    let wc = pair.run_ok(host, SendOp::AtomicWrite(word), 8, 8);
    assert_eq!((wc.opcode, guest.word(64)), (WcOpcode::AtomicWrite, WORD));

    // WRITE, FLUSH, ATOMIC WRITE, FLUSH: a durable log entry and its commit word, posted at once.
    host.fill(AT, 3000, 5);
    pair.post(host, SendOp::Write(remote(guest, AT)), AT, 3000);
    pair.post(host, flush(remote(guest, AT), 3000, Placement::GlobalVisibility, Selectivity::Range), 0, 0);
    host.region.store_u64(8, 99);
    pair.post(host, SendOp::AtomicWrite(word), 8, 8);
    let whole = flush(remote(guest, 0), 0, Placement::GlobalVisibility, Selectivity::MemoryRegion);
    pair.post(host, whole, 0, 0);
    let opcodes: Vec<WcOpcode> = pair
        .wait(4)
        .iter()
        .inspect(|wc| assert_eq!(wc.status, WcStatus::Success, "{wc:?}"))
        .map(|wc| wc.opcode)
        .collect();
    assert_eq!(opcodes, [WcOpcode::RdmaWrite, WcOpcode::Flush, WcOpcode::AtomicWrite, WcOpcode::Flush]);
    guest.check(AT, 3000, 5);
    assert_eq!(guest.word(64), 99);

    // The guest's memory is not persistent, so its region was not registered for it.
    let refused = flush(remote(guest, AT), 8, Placement::Persistence, Selectivity::Range);
    assert_eq!(pair.run(host, refused, 0, 0).status, WcStatus::RemAccessErr);
    guest.ask(&format!("destroy {}", pair.theirs.id));
}

fn the_guests_atomics_and_flushes(host: &Host, guest: &mut Guest) {
    let pair = host.pair(guest, QpType::Rc, Mtu::B1024);
    let id = pair.theirs.id;
    let place = host.mr.remote(64);
    let (addr, rkey) = (place.addr, place.rkey.0);
    host.region.store_u64(64, WORD);
    let post = |guest: &mut Guest, what: &str, offset: u64, a: u64, b: u64| {
        guest.ask(&format!("post {id} {what} {offset} 8 {addr} {rkey} {a} {b}"));
        guest.wait_one(id)
    };
    post(guest, "faa", 0, u64::MAX, 0).assert_success();
    assert_eq!((guest.word(0), host.region.load_u64(64)), (WORD, WORD - 1));
    post(guest, "cas", 0, WORD, 7).assert_success();
    assert_eq!((guest.word(0), host.region.load_u64(64)), (WORD - 1, WORD - 1), "no match, no swap");
    post(guest, "cas", 0, WORD - 1, 7).assert_success();
    assert_eq!((guest.word(0), host.region.load_u64(64)), (WORD - 1, 7));
    guest.set_word(8, WORD);
    post(guest, "atomic_write", 8, 0, 0).assert_success();
    assert_eq!(host.region.load_u64(64), WORD);
    for (placement, selectivity) in [(1, 0), (1, 1)] {
        post(guest, "flush", 0, placement, selectivity).assert_success();
    }
    // Shared memory cannot be persistent, and the region was not registered for it.
    let refused = post(guest, "flush", 0, 2, 0);
    assert_eq!(refused.status, WcStatus::RemAccessErr as u32, "{refused:?}");
    guest.ask(&format!("destroy {id}"));
}

fn a_flush_to_persistence(host: &Host, guest: &mut Guest) {
    let pair = host.pair(guest, QpType::Rc, host.mtus[0]);
    let id = pair.theirs.id;
    let path = machine::directory().join(format!("flushed-{}", std::process::id()));
    let region = FileOptions::new().create_new(1 << 20).open(&path).expect("a file");
    let _ = std::fs::remove_file(&path);
    let domain = region.domain().to_string();
    let mr = host.pd.reg_mr(&region, host::all_rights() | Access::FLUSH_PERSISTENT).expect("a file can");
    let place = mr.remote(AT);
    guest.fill(AT, 5000, 3);
    guest.ask(&format!("post {id} write {AT} 5000 {} {}", place.addr, place.rkey.0));
    guest.ask(&format!("post {id} flush {AT} 5000 {} {} 2 0", place.addr, place.rkey.0));
    guest.ask(&format!("post {id} flush {AT} 0 {} {} 3 1", place.addr, place.rkey.0));
    guest.wait(id, 3).into_iter().for_each(|wc| _ = wc.assert_success());
    let mut found = vec![0; 5000];
    region.read(AT, &mut found);
    assert_eq!(found, pattern(3, 5000), "{domain}");

    // And to the guest's NVDIMM.
    let words = guest.ask("pmem");
    let addr: u64 = words[0].parse().expect("an address");
    let nvdimm = RemoteAddr { addr: addr + AT, rkey: Rkey(words[1].parse().expect("a key")) };
    host.fill(AT, 5000, 4);
    pair.post(host, SendOp::Write(nvdimm), AT, 5000);
    pair.post(host, flush(nvdimm, 5000, Placement::Persistence, Selectivity::Range), 0, 0);
    pair.post(host, flush(nvdimm, 0, Placement::Persistence, Selectivity::MemoryRegion), 0, 0);
    pair.wait(3).iter().for_each(|wc| assert_eq!(wc.status, WcStatus::Success, "{wc:?}"));
    guest.ask(&format!("pmem_check {AT} 5000 4"));
    guest.ask(&format!("destroy {id}"));
}

fn memory_windows(host: &Host, guest: &mut Guest) {
    // Ours, invalidated by the guest's SEND.
    let pair = host.pair(guest, QpType::Rc, host.mtus[0]);
    let id = pair.theirs.id;
    let mw = host.pd.alloc_mw(MwType::Type2).expect("a window");
    let rkey = Rkey(mw.rkey().0 & !0xff | 0x5a);
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let bind = MwBind { mr: host.mr.lkey(), addr: host.mr.addr() + AT, len: 100, access };
    pair.run_ok(host, SendOp::BindMw { mw: mw.raw(), rkey, bind }, 0, 0);
    guest.fill(AT, 100, 1);
    let addr = host.mr.addr() + AT;
    let write = |guest: &mut Guest, len: u32| {
        guest.ask(&format!("post {id} write {AT} {len} {addr} {}", rkey.0));
        guest.wait_one(id)
    };
    write(guest, 100).assert_success();
    host.check(AT, 100, 1);
    pair.post_recv(host, AT, 100);
    guest.ask(&format!("post {id} send_inv {AT} 10 0 {}", rkey.0));
    guest.wait_one(id).assert_success();
    assert_eq!(pair.wait(1)[0].invalidated, Some(rkey));
    assert_eq!(write(guest, 1).status, WcStatus::RemAccessErr as u32, "the window is gone");
    guest.ask(&format!("destroy {id}"));

    // The guest's, invalidated by our SEND.
    let pair = host.pair(guest, QpType::Rc, host.mtus[0]);
    let id = pair.theirs.id;
    let rkey = Rkey(guest.ask(&format!("bind {id} {AT} 100"))[0].parse().expect("a key"));
    guest.wait_one(id).assert_success();
    let window = RemoteAddr { rkey, ..remote(guest, AT) };
    host.fill(AT, 100, 2);
    pair.run_ok(host, SendOp::Write(window), AT, 100);
    guest.check(AT, 100, 2);
    guest.post_recv(id, AT, 100);
    pair.run_ok(host, SendOp::SendInv(rkey), AT, 10);
    guest.wait_one(id).assert_success();
    assert_eq!(pair.run(host, SendOp::Write(window), AT, 1).status, WcStatus::RemAccessErr);
    guest.ask(&format!("destroy {id}"));
}

fn unreliable_connections(host: &Host, guest: &mut Guest) {
    if host.carrier == Carrier::BadWeather {
        return; // what is lost stays lost
    }
    for mtu in host.mtus {
        let pair = host.pair(guest, QpType::Uc, mtu);
        let id = pair.theirs.id;
        for (seed, len) in [(1, 0), (2, 5), (3, 1025), (4, 9000)] {
            guest.post_recv(id, AT, 1 << 16);
            host.fill(AT, len, seed);
            pair.run_ok(host, SendOp::SendImm(7), AT, len);
            assert_eq!(guest.wait_one(id).assert_success().len as usize, len);
            guest.check(AT, len, seed);
            // A WRITE tells nobody, so one with immediate comes behind it.
            let written = AT + (1 << 20);
            guest.post_recv(id, AT, 0);
            pair.run_ok(host, SendOp::Write(remote(guest, written)), AT, len);
            pair.run_ok(host, SendOp::WriteImm(remote(guest, written + len as u64), 8), AT, len);
            guest.wait_one(id).assert_success();
            guest.check(written, len, seed);
            guest.check(written + len as u64, len, seed);

            pair.post_recv(host, AT, 1 << 16);
            guest.fill(AT, len, seed + 10);
            guest.ask(&format!("post {id} send {AT} {len}"));
            guest.wait_one(id).assert_success();
            let wc = pair.wait(1)[0];
            assert_eq!((wc.status, wc.byte_len as usize), (WcStatus::Success, len));
            host.check(AT, len, seed + 10);
            let place = host.mr.remote(written);
            pair.post_recv(host, AT, 0);
            guest.ask(&format!("post {id} write_imm {AT} {len} {} {} 9", place.addr, place.rkey.0));
            guest.wait_one(id).assert_success();
            assert_eq!(pair.wait(1)[0].imm, Some(9));
            host.check(written, len, seed + 10);
        }
        guest.ask(&format!("destroy {id}"));
    }
}

/// Bytes before a received datagram: the GRH, or what stands for it.
const GRH: usize = 40;

fn datagrams(host: &Host, guest: &mut Guest) {
    use remanence_rnic::{AhAttr, Data, SendFlags, SendWr};
    if host.carrier == Carrier::BadWeather {
        return;
    }
    let pair = host.pair(guest, QpType::Ud, host.mtus[1]);
    let id = pair.theirs.id;
    let ah = host.pd.create_ah(&AhAttr::new(pair.theirs.gid)).expect("an address handle");
    for (seed, len) in [(1, 0), (2, 5), (3, 1024), (4, host.mtus[1].bytes())] {
        guest.post_recv(id, AT, GRH + len);
        host.fill(AT, len, seed);
        let sges = [host.mr.sge(AT, len as u32)];
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::SendImm(5),
            data: Data::Sges(&sges),
            flags: SendFlags::SIGNALED,
            ud: Some(ah.dest(pair.theirs.qpn, remanence_wire::Qkey(0x1122_3344))),
        };
        pair.qp.post_send(&wr).expect("posted");
        assert_eq!(pair.wait(1)[0].status, WcStatus::Success);
        let wc = guest.wait_one(id).assert_success();
        assert_eq!((wc.len as usize, wc.imm), (GRH + len, 5));
        guest.check(AT + GRH as u64, len, seed);

        pair.post_recv(host, AT, GRH + len);
        guest.fill(AT, len, seed + 10);
        guest.ask(&format!("post {id} send {AT} {len}"));
        guest.wait_one(id).assert_success();
        let wc = pair.wait(1)[0];
        assert_eq!((wc.status, wc.byte_len as usize), (WcStatus::Success, GRH + len));
        assert_eq!((wc.src_qp, wc.grh), (pair.theirs.qpn, true));
        host.check(AT + GRH as u64, len, seed + 10);
    }
    guest.ask(&format!("destroy {id}"));
}

fn wrong_keys(host: &Host, guest: &mut Guest) {
    let pair = host.pair(guest, QpType::Rc, Mtu::B1024);
    guest.fill(AT, 100, 3);
    let wrong = RemoteAddr { rkey: Rkey(guest.rkey.0 ^ 0x5500), ..remote(guest, AT) };
    assert_eq!(pair.run(host, SendOp::Write(wrong), AT, 100).status, WcStatus::RemAccessErr);
    guest.check(AT, 100, 3);
    guest.ask(&format!("destroy {}", pair.theirs.id));

    let pair = host.pair(guest, QpType::Rc, Mtu::B1024);
    let id = pair.theirs.id;
    let end = host.region.len();
    host.region.write(end - 4096, &[0; 4096]);
    let place = host.mr.remote(end - 4096);
    guest.ask(&format!("post {id} write {AT} 4097 {} {}", place.addr, place.rkey.0));
    assert_eq!(guest.wait_one(id).status, WcStatus::RemAccessErr as u32);
    host.check_untouched(end - 4096..end);
    guest.ask(&format!("destroy {id}"));
}

/// Several QPs, a deep queue on each, both directions together.
fn both_at_once(host: &Host, guest: &mut Guest) {
    const QPS: usize = 4;
    const DEPTH: usize = 16;
    const LEN: usize = 20_000;
    let slot = |qp: usize, wr: usize| ((qp * DEPTH + wr) * LEN) as u64;
    let (out, back) = (AT, AT + (2 << 20));
    let pairs: Vec<Pair> = (0..QPS).map(|i| host.pair(guest, QpType::Rc, host.mtus[i % 2])).collect();
    host.fill(out, QPS * DEPTH * LEN, 41);
    guest.fill(back, QPS * DEPTH * LEN, 42);
    for (i, pair) in pairs.iter().enumerate() {
        for wr in 0..DEPTH {
            let at = slot(i, wr);
            let id = pair.theirs.id;
            let place = host.mr.remote(back + at);
            guest.tell(&format!("post {id} write {} {LEN} {} {}", back + at, place.addr, place.rkey.0));
            pair.post(host, SendOp::Write(remote(guest, out + at)), out + at, LEN);
            guest.answer().expect("posted");
        }
    }
    for pair in &pairs {
        assert!(pair.wait(DEPTH).iter().all(|wc| wc.status == WcStatus::Success));
        guest.wait(pair.theirs.id, DEPTH).into_iter().for_each(|wc| _ = wc.assert_success());
    }
    guest.check(out, QPS * DEPTH * LEN, 41);
    host.check(back, QPS * DEPTH * LEN, 42);
    for pair in &pairs {
        guest.ask(&format!("destroy {}", pair.theirs.id));
    }
}

const LIMIT: Option<Duration> = Some(Duration::from_secs(150));

/// The guest's private data, which it prints in hex, zeros behind it included.
fn private(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex")).collect()
}

/// A connected QP of the guest, from its answer: number, QPN, private data.
fn connected(host: &Host, words: &[String]) -> GuestQp {
    let id = words[0].parse().expect("a number");
    let qpn = Qpn::new(words[1].parse().expect("a QPN"));
    GuestQp { id, qpn, gid: Gid::from_ip(guest_beside(host.address)) }
}

/// Data both ways over a connection, by each side's own operations.
fn exercise(host: &Host, guest: &mut Guest, pair: &Pair, seed: u64) {
    let id = pair.theirs.id;
    let len = 10_000;
    host.fill(AT, len, seed);
    pair.run_ok(host, SendOp::Write(remote(guest, AT)), AT, len);
    guest.check(AT, len, seed);
    guest.fill(AT, len, seed + 1);
    let place = host.mr.remote(AT);
    guest.ask(&format!("post {id} write {AT} {len} {} {}", place.addr, place.rkey.0));
    guest.wait_one(id).assert_success();
    host.check(AT, len, seed + 1);
    pair.post_recv(host, AT, len);
    guest.fill(AT, len, seed + 2);
    guest.ask(&format!("post {id} send {AT} {len}"));
    guest.wait_one(id).assert_success();
    assert_eq!(pair.wait(1)[0].status, WcStatus::Success);
    host.check(AT, len, seed + 2);
    guest.post_recv(id, AT, len);
    pair.run_ok(host, SendOp::Read(remote(guest, AT)), AT, len);
    pair.run_ok(host, SendOp::Send, AT, len);
    guest.wait_one(id).assert_success();
}

fn cm_we_connect(host: &Host, guest: &mut Guest) {
    guest.ask("cm_listen 7471");
    let peer = SocketAddr::new(guest_beside(host.address), 7471);
    for ours in [true, false] {
        let cq = host.cq();
        let qp = host.pd.create_qp(&QpOptions::rc(&cq)).expect("a QP");
        guest.tell("cm_accept welcome");
        let connection = Connection::connect(&qp, peer, &ConnectAttr::default(), b"hello guest", LIMIT)
            .expect("the guest accepts");
        let words = guest.answer().expect("accepted");
        assert!(private(&words[2]).starts_with(b"hello guest\0"), "{words:?}");
        assert!(connection.private_data().starts_with(b"welcome\0"));
        let pair = Pair { qp, cq, theirs: connected(host, &words) };
        exercise(host, guest, &pair, 7);
        if ours {
            connection.disconnect().expect("established");
            guest.ask(&format!("cm_gone {}", pair.theirs.id));
        } else {
            guest.ask(&format!("cm_disconnect {}", pair.theirs.id));
        }
        assert!(connection.wait_ended(LIMIT).expect("it was established"), "the end was not noticed");
    }
}

fn cm_the_guest_connects(host: &Host, guest: &mut Guest) {
    let listener = Listener::bind(&host.context, 7472, 8).expect("the port is free");
    for ours in [true, false] {
        let cq = host.cq();
        let qp = host.pd.create_qp(&QpOptions::rc(&cq)).expect("a QP");
        guest.tell(&format!("cm_connect {} 7472 hello-host", host.address));
        let incoming = listener.get_request(LIMIT).expect("the guest asks");
        assert_eq!(incoming.peer(), guest_beside(host.address));
        assert!(incoming.private_data().starts_with(b"hello-host\0"), "{:?}", incoming.private_data());
        let connection = incoming.accept(&qp, &ConnectAttr::default(), b"welcome guest").expect("accepted");
        let words = guest.answer().expect("connected");
        assert!(private(&words[2]).starts_with(b"welcome guest\0"), "{words:?}");
        assert!(connection.wait_established(LIMIT).expect("the guest goes on"), "no RTU came");
        let pair = Pair { qp, cq, theirs: connected(host, &words) };
        exercise(host, guest, &pair, 8);
        if ours {
            connection.disconnect().expect("established");
            guest.ask(&format!("cm_gone {}", pair.theirs.id));
        } else {
            guest.ask(&format!("cm_disconnect {}", pair.theirs.id));
        }
        assert!(connection.wait_ended(LIMIT).expect("it was established"), "the end was not noticed");
    }
}

fn cm_refusals(host: &Host, guest: &mut Guest) {
    let cq = host.cq();
    let connect = |port: u16| {
        let qp = host.pd.create_qp(&QpOptions::rc(&cq)).expect("a QP");
        let peer = SocketAddr::new(guest_beside(host.address), port);
        let refused = Connection::connect(&qp, peer, &ConnectAttr::default(), b"", LIMIT);
        refused.expect_err("refused").to_string()
    };
    guest.ask("cm_listen 7471");
    guest.tell("cm_accept reject");
    let rejected = connect(7471);
    guest.answer().expect("rejected");
    eprintln!("  the guest's consumer rejects: {rejected}");
    eprintln!("  nobody listens in the guest: {}", connect(7599));

    let listener = Listener::bind(&host.context, 7472, 8).expect("the port is free");
    guest.tell(&format!("cm_connect {} 7472 x", host.address));
    listener.get_request(LIMIT).expect("the guest asks").reject(b"not now").expect("rejected");
    let answer = guest.answer().expect_err("rejected");
    assert!(answer.contains("REJECTED"), "{answer}");
    drop(listener);
    guest.tell(&format!("cm_connect {} 7472 x", host.address));
    let answer = guest.answer().expect_err("nobody listens");
    assert!(answer.contains("REJECTED"), "{answer}");
}
