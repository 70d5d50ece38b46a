//! What the fuzz targets do with their bytes; `fuzz/` holds the shells, and the unit tests run the committed corpus through the same
//! functions.
//!
//! Each body takes any bytes and panics if a promise of the crate is broken.

use crate::engine::{Config, Moment, Session, Shared};
use crate::memory::MemoryStore;
use crate::parts::{Bucket, Root};
use crate::protocol::{Decoder, Limits, parse_frame};
use crate::value::{Fields, Head};

/// A fuzz target.
pub type Body = fn(&[u8]);

/// Every body, under its target's name.
pub const BODIES: &[(&str, Body)] = &[("resp", resp), ("resp_value", value)];

fn small() -> Limits {
    Limits { bulk: 1 << 16, request: 1 << 18, words: 1 << 10 }
}

/// The words of every request, and the error that ended the stream.
fn requests<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    stranger: bool,
    run: usize,
) -> (Vec<Vec<Vec<u8>>>, Option<String>) {
    let (mut decoder, mut requests) = (Decoder::new(small()), Vec::new());
    for piece in pieces {
        decoder.push(piece);
        loop {
            match decoder.next_run(stranger, run, |_, _| true) {
                Ok(Some(run)) => requests
                    .extend(run.requests().map(|request| request.words(0).map(<[u8]>::to_vec).collect())),
                Ok(None) => break,
                Err(error) => return (requests, Some(error.to_string())),
            }
        }
    }
    (requests, None)
}

/// What a client sends: the same requests come out however the bytes are cut, carrying them out never panics, and every
/// byte of every reply is RESP.
pub fn resp(data: &[u8]) {
    let (Some((&first, bytes)), stranger) =
        (data.split_first(), data.first().is_some_and(|byte| byte & 1 == 1))
    else {
        return;
    };
    let size = usize::from(first >> 1).max(1);
    let whole = requests(std::iter::once(bytes), stranger, 1);
    assert_eq!(requests(std::iter::once(bytes), stranger, 5), whole, "several at a time");
    let pieces = requests(bytes.chunks(size), stranger, 1 + size % 4);
    assert_eq!(whole.0, pieces.0, "in pieces of {size}");
    // A limit on what is pending may be noticed sooner in one than in the other, and nothing else may differ.
    if whole.1 != pieces.1 {
        let limit = |error: &Option<String>| {
            error.as_ref().is_none_or(|error| error.contains("too big") || error.contains("larger"))
        };
        assert!(limit(&whole.1) || limit(&pieces.1), "{whole:?} or {pieces:?}");
    }

    let password = stranger.then(|| "secret".to_owned());
    // Strings may not grow beyond what a fuzzer's memory holds.
    let config = Config { password, bulk_max: 1 << 16, hash_whole: 64, ..Config::default() };
    let shared = Shared::new(config, 0);
    let mut session = Session::open(&shared, "fuzz:1", "fuzz:2", 0);
    let (mut store, mut decoder, mut out) = (MemoryStore::default(), Decoder::new(small()), Vec::new());
    decoder.push(bytes);
    let mut clock = 1_700_000_000_000_000;
    while !session.closing() {
        clock += 1000;
        match decoder.next(session.stranger(&shared)) {
            Ok(None) => break,
            Ok(Some(request)) => {
                let moment = Moment { unix_us: clock, random: clock as u64 };
                session.execute(&request, &mut store, &shared, moment, &mut out);
                while shared.fold(&mut store, moment).expect("memory does not fail") {}
            }
            Err(error) => session.protocol_error(&error, &shared, &mut out),
        }
        let mut rest = &out[..];
        while !rest.is_empty() {
            let (_, len) = parse_frame(rest).expect("a reply is RESP").expect("a reply is whole");
            rest = &rest[len..];
        }
        out.clear();
    }
}

/// A value out of a store: read as what it is, or refused.
pub fn value(data: &[u8]) {
    if let Ok(bucket) = Bucket::parse(data) {
        assert!(bucket.owner.len() + bucket.fields.count() <= data.len());
    }
    let Ok((head, len)) = Head::parse(data) else { return };
    let mut again = Vec::new();
    head.emit(&mut again);
    assert_eq!(again, data[..len]);
    if let Ok(fields) = Fields::parse(&data[len..]) {
        let count = fields.count();
        assert!(fields.index().len() <= count);
    }
    if let Ok(root) = Root::parse(&data[len..]) {
        let changes = root.sealed.chain(root.log).count();
        assert!(changes <= data.len() && root.place(b"field") < root.buckets);
    }
}

#[cfg(test)]
mod tests;
