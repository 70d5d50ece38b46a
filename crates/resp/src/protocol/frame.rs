//! Replies as a client reads them, in both versions: for tests, fuzzing and programs that talk to a gateway.

use memchr::memchr;

use crate::number::parse_i64;

/// How deep replies may be nested.
const DEPTH_MAX: usize = 32;

/// One reply of a server, with the replies nested in it.
#[derive(Clone, PartialEq, Debug)]
pub enum Frame {
    /// `+`
    Simple(Vec<u8>),
    /// `-`: code and text.
    Error(Vec<u8>),
    /// `:`
    Integer(i64),
    /// `$`
    Bulk(Vec<u8>),
    /// `$-1`, `*-1` and `_`
    Null,
    /// `*`
    Array(Vec<Self>),
    /// `%`, keys and values in turn
    Map(Vec<Self>),
    /// `~`
    Set(Vec<Self>),
    /// `>`
    Push(Vec<Self>),
    /// `,`, as text
    Double(Vec<u8>),
    /// `#`
    Boolean(bool),
    /// `=`, with its three letters and the colon
    Verbatim(Vec<u8>),
    /// `(`, as text
    BigNumber(Vec<u8>),
    /// `!`
    BulkError(Vec<u8>),
}

/// Bytes that are no reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("byte {at} of the reply is not RESP: is there a Redis server at this address?")]
pub struct FrameError {
    /// How far it was.
    pub at: usize,
}

/// Reads one reply from the start of `bytes`: the reply and its length, or `None` if more must come.
///
/// # Errors
/// [`FrameError`] where the bytes are no reply, or one nested too deep.
pub fn parse_frame(bytes: &[u8]) -> Result<Option<(Frame, usize)>, FrameError> {
    let mut reader = Reader { bytes, at: 0 };
    Ok(reader.frame(0)?.map(|frame| (frame, reader.at)))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    const fn fault<T>(&self) -> Result<T, FrameError> {
        Err(FrameError { at: self.at })
    }

    fn line(&mut self) -> Result<Option<&'a [u8]>, FrameError> {
        let rest = &self.bytes[self.at..];
        let Some(end) = memchr(b'\r', rest) else { return Ok(None) };
        match rest.get(end + 1) {
            None => Ok(None),
            Some(b'\n') => {
                self.at += end + 2;
                Ok(Some(&rest[..end]))
            }
            Some(_) => self.fault(),
        }
    }

    fn count(&self, line: &[u8]) -> Result<Option<usize>, FrameError> {
        match parse_i64(line) {
            Some(-1) => Ok(None),
            Some(count) if count >= 0 => Ok(Some(count as usize)),
            _ => self.fault(),
        }
    }

    fn bulk(&mut self, line: &[u8]) -> Result<Option<Option<Vec<u8>>>, FrameError> {
        let Some(len) = self.count(line)? else { return Ok(Some(None)) };
        let rest = &self.bytes[self.at..];
        if rest.len() < 2 || rest.len() - 2 < len {
            return Ok(None);
        }
        if &rest[len..len + 2] != b"\r\n" {
            return self.fault();
        }
        self.at += len + 2;
        Ok(Some(Some(rest[..len].to_vec())))
    }

    fn several(&mut self, count: usize, depth: usize) -> Result<Option<Vec<Frame>>, FrameError> {
        // Nothing is set aside for what a length only announces.
        let mut frames = Vec::new();
        for _ in 0..count {
            let Some(frame) = self.frame(depth + 1)? else { return Ok(None) };
            frames.push(frame);
        }
        Ok(Some(frames))
    }

    fn frame(&mut self, depth: usize) -> Result<Option<Frame>, FrameError> {
        if depth > DEPTH_MAX {
            return self.fault();
        }
        let Some(&kind) = self.bytes.get(self.at) else { return Ok(None) };
        if !b"+-:$*_%~>,#=(!".contains(&kind) {
            return self.fault();
        }
        let start = self.at;
        self.at += 1;
        let Some(line) = self.line()? else {
            self.at = start;
            return Ok(None);
        };
        Ok(Some(match kind {
            b'+' => Frame::Simple(line.to_vec()),
            b'-' => Frame::Error(line.to_vec()),
            b',' => Frame::Double(line.to_vec()),
            b'(' => Frame::BigNumber(line.to_vec()),
            b':' => match parse_i64(line) {
                Some(value) => Frame::Integer(value),
                None => return self.fault(),
            },
            b'_' if line.is_empty() => Frame::Null,
            b'#' if line == b"t" => Frame::Boolean(true),
            b'#' if line == b"f" => Frame::Boolean(false),
            b'$' | b'=' | b'!' => match self.bulk(line)? {
                None => return Ok(None),
                Some(None) if kind == b'$' => Frame::Null,
                Some(Some(bytes)) if kind == b'$' => Frame::Bulk(bytes),
                Some(Some(bytes)) if kind == b'=' => Frame::Verbatim(bytes),
                Some(Some(bytes)) => Frame::BulkError(bytes),
                Some(None) => return self.fault(),
            },
            b'*' | b'~' | b'>' | b'%' => {
                let Some(count) = self.count(line)? else { return Ok(Some(Frame::Null)) };
                let Some(count) = count.checked_mul(if kind == b'%' { 2 } else { 1 }) else {
                    return self.fault();
                };
                let Some(frames) = self.several(count, depth)? else { return Ok(None) };
                match kind {
                    b'*' => Frame::Array(frames),
                    b'~' => Frame::Set(frames),
                    b'>' => Frame::Push(frames),
                    _ => Frame::Map(frames),
                }
            }
            _ => return self.fault(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::{Frame, parse_frame};

    #[test]
    fn a_reply_is_read_once_all_of_it_is_there() {
        let bytes = b"%1\r\n$1\r\na\r\n*3\r\n:-7\r\n_\r\n#t\r\n+next\r\n";
        let whole = bytes.len() - b"+next\r\n".len();
        for cut in 0..whole {
            assert_eq!(parse_frame(&bytes[..cut]), Ok(None), "cut at {cut}");
        }
        let expected = Frame::Map(vec![
            Frame::Bulk(b"a".to_vec()),
            Frame::Array(vec![Frame::Integer(-7), Frame::Null, Frame::Boolean(true)]),
        ]);
        assert_eq!(parse_frame(bytes), Ok(Some((expected, whole))));
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        let deep = b"*1\r\n".repeat(40);
        for bytes in [&b"hello"[..], b":x\r\n", b"$3\r\nabcde", b"*-2\r\n", b"#x\r\n", b"+a\rb", &deep] {
            assert!(parse_frame(bytes).is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
