//! Requests out of a stream of bytes that may stop anywhere.
//!
//! A request is a RESP array of bulk strings, or an inline line of words. Bytes go in as they arrive; requests come out
//! one by one as slices of what arrived, so that a pipeline of a thousand GETs is one buffer and no copies. What a
//! length announces is never allocated: the buffer grows with the bytes that came, and only with those, and the
//! decoder remembers where it stood, so that no byte is looked at twice however small the pieces are.
//!
//! Read first: the RESP specification. Texts, limits and what is let through follow Redis 7.0's `networking.c`: the two
//! bytes behind a bulk string, for instance, are skipped without a look.

use std::ops::Range;

use memchr::memchr;

use super::inline;
use crate::number::parse_i64;

/// The longest inline request, and the longest line that holds a length.
const LINE_MAX: usize = 64 * 1024;
/// What a connection may send before it has authenticated: words of a request, bytes of a word.
const STRANGER_WORDS: i64 = 10;
const STRANGER_BULK: i64 = 16 * 1024;
/// A buffer that grew beyond this for one big request is given back afterwards.
const KEEP: usize = 64 * 1024;

/// What a peer may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of one word: Redis' `proto-max-bulk-len`.
    pub bulk: usize,
    /// Bytes of one request with everything around its words: Redis' `client-query-buffer-limit`.
    pub request: usize,
    /// Words of one request.
    pub words: usize,
}

impl Default for Limits {
    /// 512 MiB, 1 GiB and 2^20 words: Redis' own but for the last, which Redis leaves at 2^31.
    fn default() -> Self {
        Self { bulk: 512 << 20, request: 1 << 30, words: 1 << 20 }
    }
}

/// What a peer sent that is no request. The connection has lost its place in the stream and must be closed, after the
/// peer has been told: the text is Redis', without `-ERR `.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProtocolError {
    /// A line without an end.
    #[error("Protocol error: too big inline request")]
    InlineTooBig,
    /// A quote that nothing closes.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// The number of words is no line.
    #[error("Protocol error: too big mbulk count string")]
    CountTooBig,
    /// The number of words is no number, or too many.
    #[error("Protocol error: invalid multibulk length")]
    BadCount,
    /// So many words before authentication.
    #[error("Protocol error: unauthenticated multibulk length")]
    StrangerCount,
    /// The length of a word is no line.
    #[error("Protocol error: too big bulk count string")]
    LengthTooBig,
    /// Something else where a word should start.
    #[error("Protocol error: expected '$', got '{}'", printable(*.0))]
    NotBulk(u8),
    /// The length of a word is no number, or too long.
    #[error("Protocol error: invalid bulk length")]
    BadLength,
    /// So long a word before authentication.
    #[error("Protocol error: unauthenticated bulk length")]
    StrangerLength,
    /// More bytes than a request may have. (Redis closes the connection without a word.)
    #[error("Protocol error: request is larger than the limit")]
    RequestTooBig,
}

impl ProtocolError {
    /// The text that the peer is told, byte for byte: a byte that is no character is told as it came.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        match self {
            Self::NotBulk(byte) => {
                [b"Protocol error: expected '$', got '".as_slice(), &[*byte], b"'"].concat()
            }
            other => other.to_string().into_bytes(),
        }
    }
}

/// Control characters stay out of our own messages.
fn printable(byte: u8) -> char {
    let character = char::from(byte);
    if character.is_control() { ' ' } else { character }
}

/// One request: words of bytes, the command's name first. Never empty.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    bytes: &'a [u8],
    words: &'a [Range<usize>],
}

impl<'a> Request<'a> {
    /// A request that was not decoded from a stream. `words` are ranges of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8], words: &'a [Range<usize>]) -> Self {
        Self { bytes, words }
    }

    /// How many words.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a request is never empty")]
    pub const fn len(&self) -> usize {
        self.words.len()
    }

    /// A word. 0 is the command's name.
    ///
    /// # Panics
    /// If there are not so many.
    #[must_use]
    pub fn word(&self, index: usize) -> &'a [u8] {
        &self.bytes[self.words[index].clone()]
    }

    /// Words from `first` on.
    pub fn words(&self, first: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.words[first..].iter().map(move |word| &bytes[word.clone()])
    }
}

impl Request<'_> {
    /// Appends it as a client would send it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("*{}\r\n", self.len()).as_bytes());
        for word in self.words(0) {
            out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            out.extend_from_slice(word);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Requests that came one behind the other, of equally many words each. Never empty.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    bytes: &'a [u8],
    words: &'a [Range<usize>],
    each: usize,
}

impl<'a> Run<'a> {
    /// How many requests.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a run is never empty")]
    pub const fn len(&self) -> usize {
        self.words.len() / self.each
    }

    /// One of them.
    ///
    /// # Panics
    /// If there are not so many.
    #[must_use]
    pub fn request(&self, index: usize) -> Request<'a> {
        let first = index * self.each;
        Request { bytes: self.bytes, words: &self.words[first..first + self.each] }
    }

    /// All of them.
    pub fn requests(&self) -> impl ExactSizeIterator<Item = Request<'a>> + use<'a> {
        let bytes = self.bytes;
        self.words.chunks_exact(self.each).map(move |words| Request { bytes, words })
    }
}

/// Requests of one connection.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    buffer: Vec<u8>,
    /// Where the request under way starts in `buffer`, and up to where it has been read.
    start: usize,
    at: usize,
    /// Where the request that was given last starts.
    given: usize,
    /// How far the search for the end of the current line has come.
    searched: usize,
    /// Words of the request under way that are still to come.
    missing: usize,
    /// The length of the word under way, once its line has been read.
    bulk: Option<usize>,
    words: Vec<Range<usize>>,
    /// The words of an inline request, unquoted.
    line: Vec<u8>,
    broken: bool,
}

/// How a request came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Array,
    Line,
}

enum Step {
    Multibulk,
    Inline,
    Empty,
    Partial,
}

impl Decoder {
    /// A connection that has sent nothing yet.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            buffer: Vec::new(),
            start: 0,
            at: 0,
            given: 0,
            searched: 0,
            missing: 0,
            bulk: None,
            words: Vec::new(),
            line: Vec::new(),
            broken: false,
        }
    }

    /// Takes what arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.compact();
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes that have been taken and are of no request yet.
    #[must_use]
    pub const fn pending(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Bytes that the buffers hold on to.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.buffer.capacity() + self.line.capacity() + self.words.capacity() * size_of::<Range<usize>>()
    }

    /// By how many bytes the buffer would grow if so many more arrived.
    #[must_use]
    pub const fn growth(&self, count: usize) -> usize {
        let (wanted, has) = (self.pending() + count, self.buffer.capacity());
        if wanted <= has {
            0
        } else if wanted - has > has {
            wanted - has
        } else {
            // It doubles.
            has
        }
    }

    /// Gives back the memory that is kept for the next request. Nothing happens in the middle of one.
    pub fn relax(&mut self) {
        if !self.partial() && !self.broken {
            *self = Self::new(self.limits);
        }
    }

    /// Whether a request has begun and has not ended.
    #[must_use]
    pub const fn partial(&self) -> bool {
        self.pending() > 0
    }

    /// The next request, if all of it is there. Words are given one last time: the next call frees them.
    ///
    /// `stranger` says that the peer has not authenticated and must, and so may send little.
    ///
    /// # Errors
    /// [`ProtocolError`], now and at every later call.
    pub fn next(&mut self, stranger: bool) -> Result<Option<Request<'_>>, ProtocolError> {
        Ok(match self.advance(stranger)? {
            None => None,
            Some(Form::Array) => Some(Request { bytes: &self.buffer, words: &self.words }),
            Some(Form::Line) => Some(Request { bytes: &self.line, words: &self.words }),
        })
    }

    fn advance(&mut self, stranger: bool) -> Result<Option<Form>, ProtocolError> {
        if self.broken {
            return Ok(None);
        }
        loop {
            match self.step(stranger) {
                Ok(step @ (Step::Multibulk | Step::Inline)) => {
                    self.given = self.start;
                    self.done();
                    let array = matches!(step, Step::Multibulk);
                    return Ok(Some(if array { Form::Array } else { Form::Line }));
                }
                Ok(Step::Empty) => self.done(),
                Ok(Step::Partial) => {
                    // What is being waited for must fit: a request may not grow for ever.
                    if self.pending() > self.limits.request {
                        self.broken = true;
                        return Err(ProtocolError::RequestTooBig);
                    }
                    return Ok(None);
                }
                Err(error) => {
                    self.broken = true;
                    return Err(error);
                }
            }
        }
    }

    /// What was given last is given again. Nothing may have been [pushed](Self::push) since.
    pub const fn unread(&mut self) {
        self.start = self.given;
        self.at = self.given;
        self.searched = self.given;
    }

    /// As [`next`](Self::next), and up to `max` requests if what has come goes on with more that `alike` finds to be like the
    /// first one. The others must be arrays of as many words.
    ///
    /// # Errors
    /// [`ProtocolError`], now and at every later call.
    pub fn next_run(
        &mut self,
        stranger: bool,
        max: usize,
        alike: impl Fn(&Request<'_>, &Request<'_>) -> bool,
    ) -> Result<Option<Run<'_>>, ProtocolError> {
        let Some(form) = self.advance(stranger)? else { return Ok(None) };
        let each = self.words.len();
        if form == Form::Line {
            return Ok(Some(Run { bytes: &self.line, words: &self.words, each }));
        }
        // What a stranger sends is looked at one by one.
        while !stranger && self.words.len() < max.saturating_mul(each) {
            let Some(end) = self.whole(each) else { break };
            let (words, last) = self.words.split_at(self.words.len() - each);
            let [first, last] = [&words[..each], last].map(|words| Request { bytes: &self.buffer, words });
            if !alike(&first, &last) {
                self.words.truncate(self.words.len() - each);
                break;
            }
            self.past(end);
            self.done();
        }
        Ok(Some(Run { bytes: &self.buffer, words: &self.words, each }))
    }

    /// Appends the words of a request that starts at `at`, if it is an array of so many and all of it is there, and says
    /// where it ends. What is unusual, wrong or too large is left to [`next`](Self::next).
    fn whole(&mut self, count: usize) -> Option<usize> {
        let before = self.words.len();
        let end = self.try_whole(count);
        if end.is_none() {
            self.words.truncate(before);
        }
        end
    }

    fn try_whole(&mut self, count: usize) -> Option<usize> {
        let mut at = self.at;
        if self.number(&mut at, b'*')? != count {
            return None;
        }
        for _ in 0..count {
            let len = self.number(&mut at, b'$')?;
            if len > self.limits.bulk || self.buffer.len() - at < len + 2 {
                return None;
            }
            self.words.push(at..at + len);
            at += len + 2;
        }
        (at - self.at <= self.limits.request).then_some(at)
    }

    /// A line of a mark and up to nine digits.
    fn number(&self, at: &mut usize, mark: u8) -> Option<usize> {
        let line = self.buffer.get(*at..)?.strip_prefix(&[mark])?;
        let digits = line.iter().take(10).take_while(|byte| byte.is_ascii_digit()).count();
        let padded = digits > 1 && line[0] == b'0';
        if digits == 0 || digits == 10 || padded || line.get(digits..digits + 2)? != b"\r\n" {
            return None;
        }
        *at += 1 + digits + 2;
        Some(line[..digits].iter().fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0')))
    }

    /// The request ends at `at`. Its bytes stay until more are pushed.
    const fn done(&mut self) {
        self.start = self.at;
        self.searched = self.at;
    }

    /// Drops the bytes of requests that have been given out.
    fn compact(&mut self) {
        let gone = self.start;
        if gone == 0 {
            return;
        }
        // Words of the request under way are ranges of the buffer and move with it.
        for word in &mut self.words {
            *word = word.start.wrapping_sub(gone)..word.end.wrapping_sub(gone);
        }
        if gone == self.buffer.len() {
            self.buffer.clear();
            self.buffer.shrink_to(KEEP);
            self.line.clear();
            self.line.shrink_to(KEEP);
            self.words.shrink_to(KEEP / 16);
        } else {
            self.buffer.drain(..gone);
        }
        self.start = 0;
        self.at -= gone;
        self.searched -= gone;
    }

    fn step(&mut self, stranger: bool) -> Result<Step, ProtocolError> {
        if self.missing == 0 {
            self.words.clear();
            match self.buffer.get(self.at) {
                None => return Ok(Step::Partial),
                Some(b'*') => {}
                Some(_) => return self.inline(),
            }
            let Some(line) = self.line_end(ProtocolError::CountTooBig)? else { return Ok(Step::Partial) };
            let count = parse_i64(&self.buffer[self.at + 1..line]).ok_or(ProtocolError::BadCount)?;
            if count > self.limits.words as i64 {
                return Err(ProtocolError::BadCount);
            }
            if count > STRANGER_WORDS && stranger {
                return Err(ProtocolError::StrangerCount);
            }
            self.past(line + 2);
            if count <= 0 {
                return Ok(Step::Empty);
            }
            self.missing = count as usize;
        }
        while self.missing > 0 {
            let len = match self.bulk {
                Some(len) => len,
                None => {
                    let Some(line) = self.line_end(ProtocolError::LengthTooBig)? else {
                        return Ok(Step::Partial);
                    };
                    let first = self.buffer[self.at];
                    if first != b'$' {
                        return Err(ProtocolError::NotBulk(first));
                    }
                    let len = parse_i64(&self.buffer[self.at + 1..line]).ok_or(ProtocolError::BadLength)?;
                    if len < 0 || len > self.limits.bulk as i64 {
                        return Err(ProtocolError::BadLength);
                    }
                    if len > STRANGER_BULK && stranger {
                        return Err(ProtocolError::StrangerLength);
                    }
                    self.past(line + 2);
                    *self.bulk.insert(len as usize)
                }
            };
            if self.buffer.len() - self.at < len + 2 {
                return Ok(Step::Partial);
            }
            self.words.push(self.at..self.at + len);
            self.past(self.at + len + 2);
            self.bulk = None;
            self.missing -= 1;
        }
        Ok(Step::Multibulk)
    }

    const fn past(&mut self, at: usize) {
        self.at = at;
        self.searched = at;
    }

    /// Where the line that starts at `at` ends, its CR; `None` while its LF has not come.
    fn line_end(&mut self, too_big: ProtocolError) -> Result<Option<usize>, ProtocolError> {
        match memchr(b'\r', &self.buffer[self.searched..]) {
            None => {
                self.searched = self.buffer.len();
                if self.buffer.len() - self.at > LINE_MAX {
                    return Err(too_big);
                }
                Ok(None)
            }
            Some(offset) => {
                let end = self.searched + offset;
                self.searched = end;
                Ok((end + 1 < self.buffer.len()).then_some(end))
            }
        }
    }

    fn inline(&mut self) -> Result<Step, ProtocolError> {
        let Some(offset) = memchr(b'\n', &self.buffer[self.searched..]) else {
            self.searched = self.buffer.len();
            if self.buffer.len() - self.at > LINE_MAX {
                return Err(ProtocolError::InlineTooBig);
            }
            return Ok(Step::Partial);
        };
        let end = self.searched + offset;
        let line = &self.buffer[self.at..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.line.clear();
        if !inline::split(line, &mut self.line, &mut self.words) {
            return Err(ProtocolError::UnbalancedQuotes);
        }
        self.past(end + 1);
        Ok(if self.words.is_empty() { Step::Empty } else { Step::Inline })
    }
}
