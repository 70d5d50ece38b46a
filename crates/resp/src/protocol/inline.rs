//! The words of an inline request, quoted as in a shell: `sdssplitargs` of Redis.

use std::ops::Range;

/// Splits `line` into words, unquoted one after the other into `bytes`; false if a quote is not closed, or is closed in
/// the middle of a word.
pub(super) fn split(line: &[u8], bytes: &mut Vec<u8>, words: &mut Vec<Range<usize>>) -> bool {
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(|&byte| is_space(byte)) {
            at += 1;
        }
        if at == line.len() {
            return true;
        }
        let start = bytes.len();
        let Some(end) = word(line, at, bytes) else { return false };
        words.push(start..bytes.len());
        at = end;
    }
}

/// C's `isspace`.
const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn word(line: &[u8], mut at: usize, bytes: &mut Vec<u8>) -> Option<usize> {
    while let Some(&byte) = line.get(at) {
        match byte {
            b'"' => {
                at = double_quoted(line, at + 1, bytes)?;
                return ends_word(line, at).then_some(at);
            }
            b'\'' => {
                at = single_quoted(line, at + 1, bytes)?;
                return ends_word(line, at).then_some(at);
            }
            b' ' | b'\n' | b'\r' | b'\t' | 0 => break,
            _ => {
                bytes.push(byte);
                at += 1;
            }
        }
    }
    // A NUL ends the line, in Redis because it ends the string.
    Some(if line.get(at) == Some(&0) { line.len() } else { at })
}

/// A closing quote must be followed by a space or the end.
fn ends_word(line: &[u8], at: usize) -> bool {
    line.get(at).is_none_or(|&byte| is_space(byte))
}

fn double_quoted(line: &[u8], mut at: usize, bytes: &mut Vec<u8>) -> Option<usize> {
    loop {
        match (*line.get(at)?, line.get(at + 1)) {
            (b'"', _) => return Some(at + 1),
            (b'\\', Some(b'x')) if hex(line, at + 2).is_some() => {
                bytes.push(hex(line, at + 2)?);
                at += 4;
            }
            (b'\\', Some(&escaped)) => {
                bytes.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => other,
                });
                at += 2;
            }
            (byte, _) => {
                bytes.push(byte);
                at += 1;
            }
        }
    }
}

fn single_quoted(line: &[u8], mut at: usize, bytes: &mut Vec<u8>) -> Option<usize> {
    loop {
        match (*line.get(at)?, line.get(at + 1)) {
            (b'\'', _) => return Some(at + 1),
            (b'\\', Some(b'\'')) => {
                bytes.push(b'\'');
                at += 2;
            }
            (byte, _) => {
                bytes.push(byte);
                at += 1;
            }
        }
    }
}

fn hex(line: &[u8], at: usize) -> Option<u8> {
    let digit = |at: usize| char::from(*line.get(at)?).to_digit(16);
    Some((digit(at)? * 16 + digit(at + 1)?) as u8)
}

#[cfg(test)]
mod tests {
    use super::split;

    fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
        let (mut bytes, mut words) = (Vec::new(), Vec::new());
        split(line, &mut bytes, &mut words)
            .then(|| words.into_iter().map(|word| bytes[word].to_vec()).collect())
    }

    #[test]
    fn words_are_split_and_unquoted_as_redis_does() {
        let cases: [(&[u8], &[&[u8]]); 8] = [
            (b"", &[]),
            (b"  \t ", &[]),
            (b"PING", &[b"PING"]),
            (b" set  a b ", &[b"set", b"a", b"b"]),
            (br#"set "a b" 'c d'"#, &[b"set", b"a b", b"c d"]),
            (br#"x "\x41\n\r\t\b\a\\\"\q""#, &[b"x", b"A\n\r\t\x08\x07\\\"q"]),
            (br#"x '\'\n'"#, &[b"x", b"'\\n"]),
            (br#"x "" """#, &[b"x", b"", b""]),
        ];
        for (line, expected) in cases {
            assert_eq!(words(line).unwrap(), expected, "{:?}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn quotes_that_are_open_or_close_in_a_word_are_refused() {
        for line in [&br#"x "a"#[..], b"x 'a", br#"x "a"b"#, b"x 'a'b", br#"x "a\"#] {
            assert_eq!(words(line), None, "{:?}", String::from_utf8_lossy(line));
        }
    }
}
