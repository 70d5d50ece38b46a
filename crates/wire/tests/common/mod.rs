//! Golden packets: classic pcap files of Ethernet frames, which tshark reads as well as we do.

use std::path::{Path, PathBuf};

use remanence_wire::ip::Datagram;

/// The directory of the golden packets.
pub(crate) fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

/// The Ethernet frames of a little-endian classic pcap file.
pub(crate) fn frames(pcap: &[u8]) -> Vec<&[u8]> {
    let word = |at: usize| u32::from_le_bytes(pcap[at..at + 4].try_into().unwrap());
    assert_eq!(word(0), 0xa1b2_c3d4, "a little-endian pcap with microseconds");
    assert_eq!(word(20), 1, "of Ethernet frames");
    let mut frames = Vec::new();
    let mut at = 24;
    while at < pcap.len() {
        let (captured, original) = (word(at + 8) as usize, word(at + 12) as usize);
        assert_eq!(captured, original, "a frame that was captured whole");
        frames.push(&pcap[at + 16..at + 16 + captured]);
        at += 16 + captured;
    }
    frames
}

/// The UDP datagram of an Ethernet frame.
pub(crate) fn datagram(frame: &[u8]) -> Datagram<'_> {
    let ethertype = u16::from_be_bytes([frame[12], frame[13]]);
    assert!([0x0800, 0x86dd].contains(&ethertype), "ethertype {ethertype:#06x}");
    Datagram::parse(&frame[14..]).unwrap()
}
