//! A stream of requests means the same however it is cut, and what is no request is told as Redis tells it.

use proptest::prelude::*;
use remanence_resp::protocol::{Decoder, Limits, ProtocolError};

type Words = Vec<Vec<u8>>;

fn decode<'a>(pieces: impl Iterator<Item = &'a [u8]>, limits: Limits) -> (Vec<Words>, Option<ProtocolError>) {
    let (mut decoder, mut requests) = (Decoder::new(limits), Vec::new());
    for piece in pieces {
        decoder.push(piece);
        loop {
            match decoder.next(false) {
                Ok(Some(request)) => requests.push(request.words(0).map(<[u8]>::to_vec).collect()),
                Ok(None) => break,
                Err(error) => return (requests, Some(error)),
            }
        }
    }
    (requests, None)
}

/// The same, several at a time.
fn decode_runs<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    limits: Limits,
) -> (Vec<Words>, Option<ProtocolError>) {
    let (mut decoder, mut requests) = (Decoder::new(limits), Vec::new());
    for piece in pieces {
        decoder.push(piece);
        loop {
            // Alike are requests whose first words begin with the same bit.
            let parity = |request: &remanence_resp::protocol::Request<'_>| {
                request.word(0).first().map_or(0, |byte| byte & 1)
            };
            match decoder.next_run(false, 3, |a, b| parity(a) == parity(b)) {
                Ok(Some(run)) => {
                    assert!(run.len() <= 3 && run.requests().all(|r| parity(&r) == parity(&run.request(0))));
                    requests
                        .extend(run.requests().map(|r| r.words(0).map(<[u8]>::to_vec).collect::<Words>()));
                }
                Ok(None) => break,
                Err(error) => return (requests, Some(error)),
            }
        }
    }
    (requests, None)
}

fn encode(words: &Words) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

fn stream() -> impl Strategy<Value = (Vec<u8>, Vec<Words>)> {
    let word = proptest::collection::vec(any::<u8>(), 0..12);
    let array = proptest::collection::vec(word, 1..5).prop_map(|words| (encode(&words), Some(words)));
    let inline = proptest::collection::vec("[a-z]{1,5}", 1..4).prop_map(|words| {
        let line = words.join(" ") + "\r\n";
        (line.into_bytes(), Some(words.into_iter().map(String::into_bytes).collect()))
    });
    let empty = prop_oneof![Just(&b"\r\n"[..]), Just(&b"*0\r\n"[..]), Just(&b"*-1\r\n"[..])]
        .prop_map(|bytes| (bytes.to_vec(), None));
    proptest::collection::vec(prop_oneof![4 => array, 2 => inline, 1 => empty], 0..8).prop_map(|parts| {
        let (mut bytes, mut requests) = (Vec::new(), Vec::new());
        for (part, words) in parts {
            bytes.extend(part);
            requests.extend(words);
        }
        (bytes, requests)
    })
}

proptest! {
    #[test]
    fn requests_come_out_whole_wherever_the_stream_is_cut((bytes, requests) in stream()) {
        prop_assert_eq!(&decode(std::iter::once(&bytes[..]), Limits::default()), &(requests.clone(), None));
        prop_assert_eq!(&decode(bytes.chunks(1), Limits::default()), &(requests.clone(), None), "byte by byte");
        for cut in 0..=bytes.len() {
            let (front, back) = bytes.split_at(cut);
            prop_assert_eq!(&decode([front, back].into_iter(), Limits::default()), &(requests.clone(), None), "cut at {}", cut);
            prop_assert_eq!(&decode_runs([front, back].into_iter(), Limits::default()), &(requests.clone(), None), "runs, cut at {}", cut);
        }
    }

    #[test]
    fn any_bytes_are_requests_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let whole = decode(std::iter::once(&bytes[..]), Limits::default());
        prop_assert_eq!(decode(bytes.chunks(1), Limits::default()), whole.clone());
        prop_assert_eq!(decode_runs(std::iter::once(&bytes[..]), Limits::default()), whole, "in runs");
    }
}

#[test]
fn what_is_no_request_is_told_as_redis_tells_it() {
    let long = vec![b'1'; 70_000];
    let cases: [(&[u8], &str); 10] = [
        (b"*x\r\n", "Protocol error: invalid multibulk length"),
        (b"*2147483648\r\n", "Protocol error: invalid multibulk length"),
        (b"*1\r\nGET\r\n", "Protocol error: expected '$', got 'G'"),
        (b"*1\r\n\r\n", "Protocol error: expected '$', got ' '"),
        (b"*1\r\n$-1\r\n", "Protocol error: invalid bulk length"),
        (b"*1\r\n$x\r\n", "Protocol error: invalid bulk length"),
        (b"*1\r\n$536870913\r\n", "Protocol error: invalid bulk length"),
        (b"set \"a\r\n", "Protocol error: unbalanced quotes in request"),
        (&long, "Protocol error: too big inline request"),
        (&[b"*".as_slice(), &long].concat(), "Protocol error: too big mbulk count string"),
    ];
    for (bytes, text) in cases {
        let (requests, error) = decode(std::iter::once(bytes), Limits::default());
        assert!(requests.is_empty());
        assert_eq!(error.unwrap().to_string(), text);
    }
    let bulk = [b"*1\r\n$".as_slice(), &long].concat();
    let (_, error) = decode(std::iter::once(&bulk[..]), Limits::default());
    assert_eq!(error.unwrap().to_string(), "Protocol error: too big bulk count string");
}

#[test]
fn a_stranger_may_send_little() {
    let next = |bytes: &[u8], stranger| {
        let mut decoder = Decoder::new(Limits::default());
        decoder.push(bytes);
        decoder.next(stranger).map(|request| request.is_some())
    };
    assert_eq!(next(b"*11\r\n", true), Err(ProtocolError::StrangerCount));
    assert_eq!(next(b"*11\r\n", false), Ok(false));
    assert_eq!(next(b"*1\r\n$16385\r\n", true), Err(ProtocolError::StrangerLength));
    assert_eq!(next(b"*2\r\n$4\r\nAUTH\r\n$16384\r\n", true), Ok(false));
}

#[test]
fn nothing_is_set_aside_for_what_is_only_announced() {
    let mut decoder = Decoder::new(Limits::default());
    decoder.push(b"*1048576\r\n$536870912\r\nfew");
    assert!(decoder.next(false).unwrap().is_none());
    assert!(decoder.capacity() < 4096, "{} bytes", decoder.capacity());
}

#[test]
fn a_request_that_outgrows_its_limit_is_refused_while_it_grows() {
    let limits = Limits { bulk: 1 << 20, request: 1000, words: 100 };
    let mut decoder = Decoder::new(limits);
    decoder.push(b"*2\r\n$5000\r\n");
    for _ in 0..9 {
        decoder.push(&[b'x'; 100]);
        assert!(decoder.next(false).unwrap().is_none());
    }
    decoder.push(&[b'x'; 200]);
    assert_eq!(decoder.next(false).err(), Some(ProtocolError::RequestTooBig));
    assert!(decoder.next(false).unwrap().is_none(), "and then nothing comes any more");
}

#[test]
fn a_large_buffer_is_given_back_after_a_large_request() {
    let mut decoder = Decoder::new(Limits::default());
    decoder.push(&encode(&vec![vec![b'x'; 10 << 20]]));
    assert!(decoder.next(false).unwrap().is_some());
    decoder.push(b"PING\r\n");
    assert!(decoder.next(false).unwrap().is_some());
    assert!(decoder.capacity() < 1 << 20, "{} bytes", decoder.capacity());
}

#[test]
fn a_decoder_at_rest_holds_nothing_and_goes_on() {
    let mut decoder = Decoder::new(Limits::default());
    decoder.push(b"PING\r\n*1\r\n$4\r\nQU");
    assert_eq!(decoder.next(false).unwrap().unwrap().word(0), b"PING");
    assert!(decoder.next(false).unwrap().is_none());
    decoder.relax();
    decoder.push(b"IT\r\n");
    assert_eq!(decoder.next(false).unwrap().unwrap().word(0), b"QUIT", "not in the middle of a request");
    decoder.relax();
    assert_eq!(decoder.capacity(), 0);
    decoder.push(b"PING\r\n");
    assert_eq!(decoder.next(false).unwrap().unwrap().word(0), b"PING");
}

#[test]
fn a_long_pipeline_is_decoded_in_one_pass() {
    let one = encode(&vec![b"GET".to_vec(), b"key".to_vec()]);
    let bytes = one.repeat(50_000);
    let (requests, error) = decode(bytes.chunks(16 * 1024), Limits::default());
    assert_eq!((requests.len(), error), (50_000, None));
}
