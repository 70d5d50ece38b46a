//! Fields of CM messages: big-endian numbers at byte offsets, and bit fields counted from a byte's top bit.

use crate::mad;

/// The data part of a MAD.
pub(super) type Data = [u8; mad::DATA_LEN];

pub(super) const fn get16(data: &Data, at: usize) -> u16 {
    u16::from_be_bytes([data[at], data[at + 1]])
}

pub(super) const fn get24(data: &Data, at: usize) -> u32 {
    u32::from_be_bytes([0, data[at], data[at + 1], data[at + 2]])
}

pub(super) const fn get32(data: &Data, at: usize) -> u32 {
    u32::from_be_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
}

pub(super) const fn get64(data: &Data, at: usize) -> u64 {
    (get32(data, at) as u64) << 32 | get32(data, at + 4) as u64
}

/// `width` bits of the byte at `at`, the first being bit `from` counted from the top.
pub(super) const fn get_bits(data: &Data, at: usize, from: u32, width: u32) -> u8 {
    data[at] >> (8 - from - width) & (0xff >> (8 - width))
}

pub(super) const fn get_bit(data: &Data, at: usize, from: u32) -> bool {
    get_bits(data, at, from, 1) != 0
}

pub(super) fn get_bytes<const N: usize>(data: &Data, at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&data[at..at + N]);
    bytes
}

pub(super) fn put16(data: &mut Data, at: usize, value: u16) {
    data[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

pub(super) fn put24(data: &mut Data, at: usize, value: u32) {
    assert!(value < 1 << 24, "{value:#x} in a field of 24 bits");
    data[at..at + 3].copy_from_slice(&value.to_be_bytes()[1..]);
}

pub(super) fn put32(data: &mut Data, at: usize, value: u32) {
    data[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

pub(super) fn put64(data: &mut Data, at: usize, value: u64) {
    data[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

/// Sets bits that were zero.
pub(super) fn put_bits(data: &mut Data, at: usize, from: u32, width: u32, value: u8) {
    assert!(value <= 0xff >> (8 - width), "{value} in a field of {width} bits");
    data[at] |= value << (8 - from - width);
}

pub(super) fn put_bytes(data: &mut Data, at: usize, bytes: &[u8]) {
    data[at..at + bytes.len()].copy_from_slice(bytes);
}
