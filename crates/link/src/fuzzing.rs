//! What the fuzz target does with its bytes; `fuzz/` holds the shell, and the unit tests run the committed corpus through the same
//! function.

use crate::host::names;

/// A fuzz target.
pub type Body = fn(&[u8]);

/// Every body, under its target's name.
pub const BODIES: &[(&str, Body)] = &[("sock_diag", sock_diag)];

/// The kernel's answer to the question who has which abstract name: the number of the request, then one part of the answer.
/// Reading ends, and tells of no name that is not in the part; without its end, a part is not the last.
pub fn sock_diag(data: &[u8]) {
    let Some((sequence, part)) = data.split_first_chunk() else { return };
    let sequence = u32::from_be_bytes(*sequence);
    let heard = |part: &[u8]| {
        let (mut names, mut bytes) = (Vec::new(), 0);
        let last = names::read(part, sequence, &mut |name, user, socket| {
            bytes += name.len();
            names.push((name.to_vec(), user, socket));
        });
        assert!(bytes <= part.len(), "{bytes} bytes of names in {}", part.len());
        (last.ok(), names)
    };
    let (whole, names) = heard(part);
    for (name, ..) in &names {
        assert!(name.is_empty() || part.windows(name.len()).any(|window| window == name));
    }
    // Where what is cut off was read, the rest has told of the same names, or of fewer.
    let cut = part.len() / 2;
    let (half, fewer) = heard(&part[..cut]);
    assert!(names.starts_with(&fewer) || whole.is_none(), "{names:?}, of which the half told {fewer:?}");
    assert!(half != Some(true) || whole == Some(true), "the half had an end");
}

#[cfg(test)]
mod tests;
