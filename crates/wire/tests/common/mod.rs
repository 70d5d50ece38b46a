//! Golden packets: classic pcap files of Ethernet frames, which tshark reads as well as we do.

#![allow(dead_code, reason = "each test binary takes what it needs")]

use std::path::{Path, PathBuf};

use remanence_wire::ip::Datagram;

/// A file of `testdata/` that holds one packet.
pub(crate) struct Golden {
    /// File name without extension: the opcode's name in kebab case, then, after a dot, what is special.
    pub(crate) name: String,
    /// The whole file.
    pub(crate) pcap: Vec<u8>,
}

impl Golden {
    /// The Ethernet frame.
    pub(crate) fn frame(&self) -> &[u8] {
        let [frame] = frames(&self.pcap)[..] else { panic!("{}: one packet per file", self.name) };
        frame
    }

    /// The UDP datagram in it.
    pub(crate) fn datagram(&self) -> Datagram<'_> {
        datagram(self.frame())
    }

    /// The name without what is special.
    pub(crate) fn opcode_name(&self) -> &str {
        self.name.split('.').next().unwrap()
    }
}

/// Every golden packet, in order of file names.
pub(crate) fn goldens() -> Vec<Golden> {
    let mut paths: Vec<_> = std::fs::read_dir(testdata())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .filter(|path| !path.ends_with(CONVERSATION))
        .collect();
    paths.sort();
    let golden = |path: PathBuf| Golden {
        name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
        pcap: std::fs::read(&path).unwrap(),
    };
    paths.into_iter().map(golden).collect()
}

/// The capture that holds several packets.
pub(crate) const CONVERSATION: &str = "linux-6.12-rxe.pcap";

/// The directory of the golden packets.
pub(crate) fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

/// The bytes of [`CONVERSATION`].
pub(crate) fn conversation() -> Vec<u8> {
    std::fs::read(testdata().join(CONVERSATION)).unwrap()
}

/// Bytes of the header of a pcap file.
pub(crate) const PCAP_HEADER_LEN: usize = 24;

/// The Ethernet frames of a little-endian classic pcap file.
pub(crate) fn frames(pcap: &[u8]) -> Vec<&[u8]> {
    let word = |at: usize| u32::from_le_bytes(pcap[at..at + 4].try_into().unwrap());
    assert_eq!(word(0), 0xa1b2_c3d4, "a little-endian pcap with microseconds");
    assert_eq!(word(20), 1, "of Ethernet frames");
    let mut frames = Vec::new();
    let mut at = PCAP_HEADER_LEN;
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
