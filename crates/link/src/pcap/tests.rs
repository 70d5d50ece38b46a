//! What was recorded is what passed, and Wireshark's dissector sees RoCEv2 in it.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use super::Capture;
use crate::conformance::{self, Pair, outgoing, receive, send_patiently};
use crate::link::{Link, Outgoing};
use crate::udp::{Options, UdpLink};

/// A place to write to that can be looked at afterwards.
#[derive(Clone, Default)]
struct Tape(Arc<Mutex<Vec<u8>>>);

impl Write for Tape {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("one thread").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A disk that is full after a few bytes.
struct FullDisk;

impl Write for FullDisk {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn udp(addr: &str, port: u16) -> UdpLink {
    let addr = addr.parse().expect("an address");
    UdpLink::open(&Options { port, ..Options::new(vec![addr]) }).expect("a socket on loopback")
}

#[test]
fn a_recorded_link_conforms() {
    conformance::all(|| Pair {
        a: Box::new(Capture::new(Box::new(udp("127.0.0.1", 0)), Box::new(std::io::sink()))),
        b: Box::new(Capture::new(Box::new(udp("127.0.0.1", 0)), Box::new(std::io::sink()))),
        lossy: true,
        sees_ecn: true,
    });
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_link() {
    let mut a = Capture::new(Box::new(udp("127.0.0.1", 0)), Box::new(FullDisk));
    let mut b = udp("127.0.0.1", 0);
    for _ in 0..3 {
        conformance::send(&mut a, &b, b"goes on", 64);
        assert_eq!(receive(&mut b, 1)[0].payload, b"goes on");
        a.prepare_wait().expect("a working link");
    }
    assert_eq!(a.error().expect("noticed").kind(), std::io::ErrorKind::StorageFull);
}

#[test]
fn the_headers_are_those_of_the_wire() {
    let tape = Tape::default();
    let mut a = Capture::new(Box::new(udp("127.0.0.1", 0)), Box::new(tape.clone()));
    let b = udp("127.0.0.1", 0);
    a.tx_buffer().expect("room")[..150].fill(0x5A);
    let out = Outgoing { tos: 2, ttl: 9, ..outgoing(&a, &b, 150, 100) };
    send_patiently(&mut a, &out);
    let port = a.caps().effective_src_port(0).to_be_bytes();
    drop(a);
    let bytes = tape.0.lock().expect("one thread").clone();
    for (len, id) in [(100_u16, 0), (50, 1)] {
        let [total, udp_len] = [len + 28, len + 8].map(u16::to_be_bytes);
        // Version, TOS, total length, identification, DF, TTL, protocol.
        let ip = [0x45, 2, total[0], total[1], 0, id, 0x40, 0, 9, 17];
        let at = bytes.windows(ip.len()).position(|window| window == ip).expect("the IP header");
        assert_eq!(bytes[at + 12..at + 20], [127, 0, 0, 1, 127, 0, 0, 1]);
        assert_eq!(bytes[at + 20..at + 22], port);
        assert_eq!(bytes[at + 24..at + 26], udp_len);
    }
}

/// A RoCEv2 packet with the given opcode and extension headers, without a valid ICRC.
fn packet(opcode: u8, headers: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![opcode, 0x40, 0xFF, 0xFF, 0, 0, 0, 0x11, 0x80, 0, 0, 7];
    bytes.extend(headers);
    bytes.extend(payload);
    bytes.extend([0; 4]);
    bytes
}

#[test]
fn wireshark_opens_it_as_rocev2() {
    if Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("skipped: tshark is not installed (apt-get install tshark)");
        return;
    }
    let packets = [
        ("4", packet(0x04, &[], b"sixteen bytes!!!")),
        ("10", packet(0x0A, &[0; 16], b"sixteen bytes!!!")),
        ("12", packet(0x0C, &[0; 16], &[])),
        ("17", packet(0x11, &[0x1F, 0, 0, 1], &[])),
        ("100", packet(0x64, &[0, 0, 0, 1, 0, 0, 0, 1], b"sixteen bytes!!!")),
    ];
    for addr in ["127.0.0.1", "::1"] {
        if crate::route::interface_of(addr.parse().expect("an address")).is_err() {
            eprintln!("skipped: this machine has no {addr}");
            continue;
        }
        let path: PathBuf =
            std::env::temp_dir().join(format!("remanence-{}-{}.pcapng", std::process::id(), addr.len()));
        // Any port may receive; the capture says 4791, as it would in life.
        let mut a = Capture::create(Box::new(udp(addr, 0)), &path).expect("a temporary file");
        a.recorder.port = crate::udp::ROCE_PORT;
        let mut b = udp(addr, 0);
        for (_, bytes) in &packets {
            b.tx_buffer().expect("room")[..bytes.len()].copy_from_slice(bytes);
            let out = outgoing(&b, &a, bytes.len(), bytes.len());
            send_patiently(&mut b, &out);
            receive(&mut a, 1);
        }
        assert_eq!(a.datagrams(), packets.len() as u64);
        drop(a);
        let fields = [
            "infiniband.bth.opcode",
            "infiniband.bth.psn",
            "_ws.malformed",
            "ip.checksum.status",
            "udp.checksum.status",
        ];
        // Without a home it has no preferences of somebody's.
        let output = Command::new("tshark")
            .env("HOME", std::env::temp_dir())
            .args([
                "-n",
                "-o",
                "ip.check_checksum:TRUE",
                "-o",
                "udp.check_checksum:TRUE",
                "-T",
                "fields",
                "-E",
                "separator=;",
            ])
            .args(fields.iter().flat_map(|field| ["-e", field]))
            .arg("-r")
            .arg(&path)
            .output()
            .expect("tshark runs");
        std::fs::remove_file(&path).expect("our own file");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), packets.len(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        for (line, (opcode, _)) in lines.iter().zip(&packets) {
            let columns: Vec<_> = line.split(';').collect();
            assert_eq!(columns[..3], [*opcode, "7", ""], "{line}");
            // 1 is "good", 2 "unverified"; IPv6 has no header checksum.
            assert!(["", "1"].contains(&columns[3]) && columns[4] == "1", "{line}");
        }
    }
}
