//! Sentences in messages.

/// A sentence of a peer, as far as it may be printed: no terminal is told what to do by it, and the zeros that pad the
/// field are not part of it.
pub(crate) fn sentence(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim_end_matches('\0').chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// As much of a sentence as fits.
pub(crate) fn clipped(text: &str, max: usize) -> &[u8] {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_clipped_at_a_character_and_tells_no_terminal_what_to_do() {
        assert_eq!(clipped("a\u{e9}", 2), b"a");
        assert_eq!(clipped("abc", 10), b"abc");
        assert_eq!(sentence(b"no\x1b[2Jway\0\0"), "no [2Jway");
    }
}
