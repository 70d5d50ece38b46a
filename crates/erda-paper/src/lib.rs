//! Paper 002 as it was published: its own [design](paper), with what that loses, and the two [schemes](baseline) that it is compared with.
//!
//! Nothing that is shipped uses this. `remanence_kv` is the store; the tests here show, scenario by scenario, what the paper's design does
//! and ours does not, and `remanence_bench` measures the schemes, with their [bytes](table1) as the paper's Table 1. Pure, as `remanence_kv` is.
#![forbid(unsafe_code)]

pub mod baseline;
pub mod paper;
pub mod table1;

/// A little-endian integer at that place.
fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
