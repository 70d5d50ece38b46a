//! The three blocks of a pcapng file that a recording needs: section header, interface, packet.
//!
//! Read first: draft-ietf-opsawg-pcapng. Written here in 60 lines rather than taken from a crate: the one that exists
//! (`pcap-file`) reads as well, and copies every packet into structures of its own on the way.

/// Which way a packet went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Inbound = 1,
    Outbound = 2,
}

const SECTION_HEADER: u32 = 0x0A0D_0D0A;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1A2B_3C4D;
const LINKTYPE_ETHERNET: u32 = 1;

const OPT_END: u16 = 0;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

/// Begins a file with one interface, whose times are in nanoseconds.
pub(super) fn begin(out: &mut Vec<u8>, interface: &str) {
    block(out, SECTION_HEADER, |out| {
        put32(out, BYTE_ORDER_MAGIC);
        // Version 1.0, of unknown length.
        put32(out, 1);
        put32(out, u32::MAX);
        put32(out, u32::MAX);
        option(out, SHB_USERAPPL, b"remanence");
        option(out, OPT_END, &[]);
    });
    block(out, INTERFACE, |out| {
        put32(out, LINKTYPE_ETHERNET);
        // No limit on the bytes of a packet.
        put32(out, 0);
        option(out, IF_NAME, interface.as_bytes());
        option(out, IF_TSRESOL, &[9]);
        option(out, OPT_END, &[]);
    });
}

/// Adds a packet, seen `at` nanoseconds since 1970, made of `parts`.
pub(super) fn packet(out: &mut Vec<u8>, direction: Direction, at: u64, parts: &[&[u8]]) {
    let len = u32::try_from(parts.iter().map(|part| part.len()).sum::<usize>()).expect("a datagram");
    block(out, ENHANCED_PACKET, |out| {
        put32(out, 0);
        put32(out, (at >> 32) as u32);
        put32(out, at as u32);
        put32(out, len);
        put32(out, len);
        parts.iter().for_each(|part| out.extend_from_slice(part));
        pad(out, len as usize);
        option(out, EPB_FLAGS, &(direction as u32).to_le_bytes());
        option(out, OPT_END, &[]);
    });
}

/// A block: type, length, body, length again.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    put32(out, kind);
    put32(out, 0);
    body(out);
    let len = u32::try_from(out.len() - start + 4).expect("a block of a datagram");
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
    put32(out, len);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&u16::try_from(value.len()).expect("a short option").to_le_bytes());
    out.extend_from_slice(value);
    pad(out, value.len());
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn pad(out: &mut Vec<u8>, len: usize) {
    out.resize(out.len() + (4 - len % 4) % 4, 0);
}
