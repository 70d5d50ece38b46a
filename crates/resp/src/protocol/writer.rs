//! Replies, in the version of the protocol that the connection asked for.

/// Which RESP a connection speaks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Version {
    /// Every connection starts with it.
    #[default]
    Resp2,
    /// After HELLO 3.
    Resp3,
}

impl Version {
    /// The number in HELLO.
    #[must_use]
    pub const fn number(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// Appends replies to a connection's output.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    version: Version,
}

impl<'a> Writer<'a> {
    /// Replies in `version`, after what is in `out` already.
    pub const fn new(out: &'a mut Vec<u8>, version: Version) -> Self {
        Self { out, version }
    }

    /// From the next reply on: HELLO answers in the version it switches to.
    pub const fn set_version(&mut self, version: Version) {
        self.version = version;
    }

    /// The version in use.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Whole replies that were written elsewhere.
    pub fn written(&mut self, replies: &[u8]) {
        self.out.extend_from_slice(replies);
    }

    /// `+OK`.
    pub fn ok(&mut self) {
        self.simple("OK");
    }

    /// A simple string: one line, of ours.
    pub fn simple(&mut self, text: &str) {
        debug_assert!(!text.contains(['\r', '\n']), "{text:?}");
        self.line(b'+', text.as_bytes());
    }

    /// An error reply: its code in capitals and the text. Line ends become spaces, since an error is one line.
    pub fn error(&mut self, text: &[u8]) {
        self.out.push(b'-');
        self.out.extend(text.iter().map(|&byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }));
        self.end();
    }

    /// Writes an integer reply, `:` and its decimal digits.
    pub fn integer(&mut self, value: i64) {
        self.number(b':', value);
    }

    /// A truth that RESP2 has as 1 or 0 and so do the commands here, in both versions.
    pub fn flag(&mut self, value: bool) {
        self.integer(i64::from(value));
    }

    /// A bulk string.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.number(b'$', bytes.len() as i64);
        self.out.extend_from_slice(bytes);
        self.end();
    }

    /// An integer as a bulk string.
    pub fn bulk_integer(&mut self, value: i64) {
        self.bulk(value.to_string().as_bytes());
    }

    /// No value where a bulk string might be.
    pub fn null(&mut self) {
        self.out.extend_from_slice(match self.version {
            Version::Resp2 => b"$-1\r\n",
            Version::Resp3 => b"_\r\n",
        });
    }

    /// No value where an array might be.
    pub fn null_array(&mut self) {
        self.out.extend_from_slice(match self.version {
            Version::Resp2 => b"*-1\r\n",
            Version::Resp3 => b"_\r\n",
        });
    }

    /// The head of an array: so many replies follow.
    pub fn array(&mut self, len: usize) {
        self.number(b'*', len as i64);
    }

    /// The head of a map: so many pairs of replies follow. RESP2 has them as an array.
    pub fn map(&mut self, pairs: usize) {
        match self.version {
            Version::Resp2 => self.array(pairs * 2),
            Version::Resp3 => self.number(b'%', pairs as i64),
        }
    }

    /// The head of a set: so many replies follow. RESP2 has them as an array.
    pub fn set(&mut self, len: usize) {
        match self.version {
            Version::Resp2 => self.array(len),
            Version::Resp3 => self.number(b'~', len as i64),
        }
    }

    /// The head of what comes unasked: so many replies follow. RESP2 has it as an array.
    pub fn push(&mut self, len: usize) {
        match self.version {
            Version::Resp2 => self.array(len),
            Version::Resp3 => self.number(b'>', len as i64),
        }
    }

    /// Plain text for people. RESP2 has it as a bulk string.
    pub fn text(&mut self, text: &[u8]) {
        match self.version {
            Version::Resp2 => self.bulk(text),
            Version::Resp3 => {
                self.number(b'=', text.len() as i64 + 4);
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text);
                self.end();
            }
        }
    }

    fn number(&mut self, kind: u8, value: i64) {
        self.out.push(kind);
        push_i64(self.out, value);
        self.end();
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(text);
        self.end();
    }

    fn end(&mut self) {
        self.out.extend_from_slice(b"\r\n");
    }
}

/// The decimal digits of a number, without the formatting machinery: this is on every reply's path.
fn push_i64(out: &mut Vec<u8>, value: i64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::{Version, Writer, push_i64};

    fn written(version: Version, write: impl Fn(&mut Writer<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Writer::new(&mut out, version));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_reply_has_its_form_in_both_versions() {
        type Write = fn(&mut Writer<'_>);
        let cases: [(Write, &str, &str); 9] = [
            (|w| w.ok(), "+OK\r\n", "+OK\r\n"),
            (|w| w.error(b"ERR a\r\nb"), "-ERR a  b\r\n", "-ERR a  b\r\n"),
            (|w| w.bulk(b""), "$0\r\n\r\n", "$0\r\n\r\n"),
            (|w| w.null(), "$-1\r\n", "_\r\n"),
            (|w| w.null_array(), "*-1\r\n", "_\r\n"),
            (|w| w.map(2), "*4\r\n", "%2\r\n"),
            (|w| w.set(2), "*2\r\n", "~2\r\n"),
            (|w| w.text(b"hi"), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n"),
            (|w| w.bulk_integer(-7), "$2\r\n-7\r\n", "$2\r\n-7\r\n"),
        ];
        for (write, two, three) in cases {
            assert_eq!(written(Version::Resp2, write), two);
            assert_eq!(written(Version::Resp3, write), three);
        }
    }

    #[test]
    fn numbers_are_written_to_their_ends() {
        for value in [0, 1, -1, 9, 10, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            push_i64(&mut out, value);
            assert_eq!(out, value.to_string().as_bytes());
        }
    }
}
