//! What is found in code, and what is written over it.

mod elf;
mod filter;
mod random;
mod recorded;

use remanence_intercept::image::{Image, Segment};

/// Where the code of these tests is.
const BASE: u64 = 0x10_0000;

/// An object of code only, that begins with enough of nothing for a sweep to be believed.
fn code(bytes: &[u8]) -> Vec<u8> {
    [&[0x90; 64], bytes].concat()
}

fn image(code: &[u8]) -> Image<'_> {
    let segments = vec![Segment { address: BASE - 64, bytes: code, executable: true }];
    Image { segments, eh_frame_hdr: None }
}
