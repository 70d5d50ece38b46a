//! What a command reads before it writes it somewhere, which has an end only if it is told how long it may be.

use std::io::{self, BufRead};

use crate::fail::{Context as _, Fail};

/// Bytes that are read before anybody is asked how many there may be.
const UNASKED: u64 = 64 << 20;

/// The next piece of an input: up to the byte that ends it, which is left out, or all that there is. `None` behind the last one.
///
/// `longest` is asked once the piece is longer than 64 MiB: how many bytes it may have, and what `what` is that has no more.
pub(crate) fn piece(
    input: &mut dyn BufRead,
    from: &str,
    end: Option<u8>,
    what: &str,
    longest: &mut dyn FnMut() -> Result<u64, Fail>,
) -> Result<Option<Vec<u8>>, Fail> {
    let unread = || format!("{from} cannot be read");
    let (mut piece, mut limit) = (Vec::new(), None);
    loop {
        let there = match input.fill_buf() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            there => there.context(unread)?,
        };
        if there.is_empty() {
            return Ok((end.is_none() || !piece.is_empty()).then_some(piece));
        }
        let at = end.and_then(|end| there.iter().position(|byte| *byte == end));
        let len = at.unwrap_or(there.len());
        let so_far = (piece.len() + len) as u64;
        if so_far > UNASKED {
            let limit = match limit {
                Some(limit) => limit,
                None => *limit.insert(longest()?),
            };
            if so_far > limit {
                return Err(Fail::new(format!(
                    "{from} is too long: {what} has {limit} bytes at most, and there is more"
                )));
            }
        }
        piece.try_reserve(len).context(unread)?;
        piece.extend_from_slice(&there[..len]);
        input.consume(len + usize::from(at.is_some()));
        if at.is_some() {
            return Ok(Some(piece));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read as _};

    use super::*;

    fn pieces(mut input: &[u8], end: Option<u8>) -> Vec<Vec<u8>> {
        let mut next =
            || piece(&mut input, "it", end, "it", &mut || unreachable!("it is short")).expect("it is read");
        if end.is_none() {
            return next().into_iter().collect();
        }
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn an_input_comes_in_lines_or_as_a_whole() {
        assert_eq!(pieces(b"one\n\nthree", Some(b'\n')), [&b"one"[..], b"", b"three"]);
        assert_eq!(pieces(b"one\n", Some(b'\n')), [b"one"]);
        assert!(pieces(b"", Some(b'\n')).is_empty());
        assert_eq!(pieces(b"", None), [b""]);
        assert_eq!(pieces(b"one\ntwo\n", None), [b"one\ntwo\n"]);
    }

    #[test]
    fn what_has_no_end_is_refused_where_it_becomes_too_long() {
        for end in [Some(b'\n'), None] {
            for limit in [7, UNASKED + 100_000] {
                let mut input = BufReader::new(io::repeat(0));
                let found = piece(&mut input, "it", end, "a record", &mut || Ok(limit));
                let said = format!("it is too long: a record has {limit} bytes at most, and there is more");
                assert_eq!(found.unwrap_err().to_string(), said);
            }
            let mut input = BufReader::new(io::repeat(0).take(UNASKED + 10));
            let found = piece(&mut input, "it", end, "a record", &mut || Ok(UNASKED + 10));
            assert_eq!(found.expect("it fits").map(|all| all.len() as u64), Some(UNASKED + 10));
        }
    }
}
