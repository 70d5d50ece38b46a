//! Real conversations, of which a third party repeats packets with changed bytes and a right ICRC: the worst that
//! a broken or hostile peer can send. Nothing panics, and what no right covers stays as it was.
//!
//! The fuzzer (`fuzzing.rs`) goes deeper; this runs always, and over both directions of real traffic.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use remanence_wire::packet::Packet;
use remanence_wire::{Mtu, icrc};

use super::pair::*;
use crate::*;

/// Changes a few bytes behind the opcode; now and then the opcode, or the length.
fn mutate(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>) {
    for _ in 0..1 + rng.next_u32() % 4 {
        match rng.next_u32() % 8 {
            0 => bytes[0] = rng.next_u32() as u8,
            1 if bytes.len() > 20 => bytes.truncate(bytes.len() - 4),
            2 => bytes.extend_from_slice(&rng.next_u32().to_be_bytes()),
            // The PSN, near where it was.
            3 => bytes[11] = bytes[11].wrapping_add(rng.next_u32() as u8 % 5),
            _ => {
                // Not the QP number: the packet would go nowhere.
                let at = 8 + rng.next_u32() as usize % (bytes.len() - 8).min(40);
                bytes[at] ^= 1 << (rng.next_u32() % 8);
            }
        }
    }
}

#[test]
fn changed_copies_of_real_packets_break_nothing() {
    let mut executed = 0;
    for seed in 0..400 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut pair = Pair::unconnected(Config::default());
        let ty = [QpType::Rc, QpType::Rc, QpType::Rc, QpType::Uc][seed as usize % 4];
        pair.qpns = pair.connect(ty, Mtu::B256, |_| {});
        let qpns = pair.qpns;
        let src = pair.a().buffer(4096, Access::LOCAL_WRITE, 0x11);
        let dst = pair.b().buffer(4096, REMOTE, 0xee);
        let read_only = pair.b().buffer(4096, Access::REMOTE_READ, 0x22);
        let private = pair.b().buffer(4096, Access::empty(), 0x33);
        let own = pair.a().buffer(4096, Access::empty(), 0x44);
        for n in 0..12 {
            let len = 1 + rng.next_u32() % 1000;
            let op = match rng.next_u32() % if ty == QpType::Rc { 7 } else { 3 } {
                0 => SendOp::Write(dst.remote(8)),
                1 => SendOp::SendImm(5),
                2 => SendOp::WriteImm(dst.remote(16), 6),
                3 => SendOp::Read(read_only.remote(0)),
                4 => SendOp::FetchAdd { remote: dst.remote(2048), add: 1 },
                5 => SendOp::AtomicWrite(dst.remote(2056)),
                _ => SendOp::Flush {
                    remote: dst.remote(0),
                    len: 64,
                    placement: Placement::Persistence,
                    selectivity: Selectivity::Range,
                },
            };
            let len = match op {
                SendOp::FetchAdd { .. } | SendOp::AtomicWrite(_) => 8,
                SendOp::Flush { .. } => 0,
                _ => len,
            };
            let sges = [src.sge(0, len)];
            pair.post(n, op, if len == 0 { &[] } else { &sges });
            pair.b().post_recv(qpns[1], n, &[dst.sge(3000, 1024)]);
        }
        // Copies of what is under way arrive changed, before the originals do.
        let mut buf = vec![0; 65_507];
        for _ in 0..60 {
            for from in [0, 1] {
                let node = &mut pair.nodes[from];
                let mut copies = Vec::new();
                while let Some(t) = node.device.poll_transmit(pair.now, &mut buf, 64, &mut node.mem) {
                    for bytes in buf[..t.len].chunks(t.segment_size) {
                        copies.push(bytes.to_vec());
                    }
                }
                let rx = pair.rx_meta(1 - from);
                let flow = icrc::Flow::new(rx.src, rx.dst, rx.src_port, ROCE_PORT);
                for original in copies {
                    let mut bytes = original.clone();
                    if rng.next_u32() % 2 == 0 {
                        mutate(&mut rng, &mut bytes);
                        icrc::seal(&flow, 0, &mut bytes);
                        executed += u32::from(Packet::parse(&bytes).is_ok());
                        pair.inject_raw(1 - from, &rx, &bytes);
                    }
                    let mut bytes = original;
                    icrc::seal(&flow, 0, &mut bytes);
                    pair.inject_raw(1 - from, &rx, &bytes);
                }
            }
            for node in &mut pair.nodes {
                if let Some(next) = node.device.poll_timeout() {
                    pair.now = pair.now.max(next);
                }
                node.device.handle_timeout(pair.now);
            }
            for (node, qpn) in pair.nodes.iter().zip(qpns) {
                node.device.qps.get(qpn).unwrap().audit();
            }
        }
        assert!(pair.b().bytes(&read_only).iter().all(|&byte| byte == 0x22));
        assert!(pair.b().bytes(&private).iter().all(|&byte| byte == 0x33));
        assert!(pair.a().bytes(&own).iter().all(|&byte| byte == 0x44));
        for node in &pair.nodes {
            for region in &node.mem.regions {
                let fill = region[0];
                assert!(
                    region[..64].iter().chain(&region[64 + 4096..]).all(|&byte| byte == fill),
                    "the guards"
                );
            }
        }
    }
    assert!(executed > 2000, "{executed} changed packets had the shape of a packet");
}
