//! What the fuzz targets do with the bytes of calls and answers; `fuzz/` holds the shells, and the unit tests run the committed corpus
//! through the same functions.

use std::time::Duration;

use remanence_pmem::Region;
use remanence_remote::{Call as Called, Role, SessionControl};

use super::StoreStats;
use super::host::Host;
use super::memory::Memory;
use super::wire::{
    ANSWER_HEADER, ANSWERS_MAX, Answer, Call, Hello, REQUEST_MAX, VERSION, What, emit_keyed, emit_words,
    parse_keyed, parse_words,
};
use remanence_kv::Geometry;
use remanence_kv::proto::{Expect, Reply, Request};
use remanence_kv::server::{Event, Options, Server, format};

/// A fuzz target.
pub type Body = fn(&[u8]);

/// Every body, under its target's name.
pub const BODIES: &[(&str, Body)] = &[("kv_wire", wire), ("kv_host", host)];

/// Few small regions, so that everything happens soon.
const GEOMETRY: Geometry =
    Geometry { size: 48 << 10, region_len: 2048, segment_len: 1024, heads: 2, grown_from: 0 };
/// Bytes of an answer, with its header: little, so that most have several parts.
const SLOT: usize = 96;
/// Keys that are nobody's but the honest client's.
const HONEST: std::ops::Range<u8> = 200..206;

/// Takes small numbers off the front; zeros at the end.
struct Story<'a>(&'a [u8]);

impl Story<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or_default()
    }

    fn wide(&mut self) -> u64 {
        u64::from(self.byte()) << 8 | u64::from(self.byte())
    }
}

/// The value that a key has in these stories.
fn value(key: u8) -> Vec<u8> {
    vec![key; usize::from(key) * 9]
}

/// Everything that host and session decode of each other: what parses is emitted and parsed again as the same.
pub fn wire(data: &[u8]) {
    if let Some(call) = Call::parse(data) {
        assert_eq!(call.emit(), data);
    }
    if let Some(answer) = Answer::parse(data) {
        assert_eq!(answer.emit(), data);
    }
    if let Some((hello, rest)) = Hello::parse(data) {
        assert_eq!([&hello.emit()[..], rest].concat(), data);
    }
    if let Some((keys, reply)) = parse_keyed(data) {
        assert_eq!(emit_keyed(&keys, reply), data);
    }
    if let Some(words) = parse_words::<3>(data) {
        assert_eq!(emit_words(&words), data[..24]);
    }
    if let Some(stats) = StoreStats::parse(data) {
        assert_eq!(StoreStats::parse(&stats.emit()).expect("its own words"), stats);
    }
}

/// The whole answer to a call of a well-behaved session, fetched part by part.
fn ask(host: &mut Host, session: u64, what: What, body: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = host.serve(session, Role::Writer, &Call { what, tag: 7, body }.emit())?;
    let mut all = Vec::new();
    loop {
        let answer = Answer::parse(&bytes).expect("an answer");
        all.extend_from_slice(answer.body);
        if answer.left == 0 {
            return Ok(all);
        }
        bytes = host.serve(session, Role::Writer, &Call { what: What::Rest, tag: 7, body: &[] }.emit())?;
    }
}

/// What an honest client says, and what it hears.
fn request(host: &mut Host, session: u64, request: &Request) -> Reply {
    let said = ask(host, session, What::Request, &request.emit()).expect("it may");
    let (keys, reply) = parse_keyed(&said).expect("keys and a reply");
    assert!(keys.is_empty(), "nothing is guarded here");
    Reply::parse(reply).expect("a reply")
}

/// A request that a stranger may make up, of keys that are not the honest client's.
fn made_up(story: &mut Story<'_>, last: u64) -> Request {
    let key = vec![story.byte() % 40 + 1];
    let expect = match story.byte() % 4 {
        0 => Expect::Absent,
        1 => Expect::Present,
        2 => Expect::Version(story.wide()),
        _ => Expect::Any,
    };
    match story.byte() % 12 {
        0 | 1 => Request::Put { key, len: story.wide() % 5000, expires: story.wide(), expect },
        2 | 3 => Request::PutInline { key, value: value(story.byte() % 99), expires: 0, expect },
        4 => Request::Delete { key, expect },
        5 => Request::Get { key: vec![story.byte()] },
        6 => Request::Settle { key: vec![story.byte()] },
        7 => Request::Confirm { versions: vec![last] },
        8 if key[0] < 8 => Request::Renew { version: last, written: story.wide() },
        8 => Request::Abandon { version: last },
        9 => Request::Scan { cursor: story.wide() << 48, limit: story.wide() as u32 },
        10 => Request::Acknowledge { view: story.wide() },
        _ => Request::View,
    }
}

/// Sessions of strangers, one of them a reader's, that call what they like in any order and parts. Nothing panics, what is kept
/// for them has its bounds, a reader changes nothing, and an honest client's values stay.
pub fn host(data: &[u8]) {
    let region = Region::anonymous(GEOMETRY.size).expect("memory");
    format(&region, &GEOMETRY, 16, 11, [0; 16]).expect("fair");
    let options = Options { lease: 1 << 40, unfinished_max: 4, ..Options::default() };
    // A third of the stories each: clients write all values, the server writes small ones, and the same on a disk.
    let options = match data.len() % 3 {
        0 => options,
        1 => Options { inline_max: 64, ..options },
        _ => Options { defer: true, inline_max: 64, ..options },
    };
    let (core, _) = Server::open(Memory::Alone(region.clone()), options).expect("a store");
    let lease = Duration::from_secs(1 << 20);
    let mut host = Host::new(core, region, SessionControl::default(), None, lease, SLOT, None);
    let mut honest = 0_u64;
    let begin = |host: &mut Host, honest: u64| {
        ask(host, honest, What::Hello, &VERSION.to_le_bytes()).expect("it may begin");
    };
    begin(&mut host, honest);
    for key in HONEST {
        let put = Request::PutInline { key: vec![key], value: value(key), expires: 0, expect: Expect::Any };
        let reply = request(&mut host, honest, &put);
        assert!(matches!(reply, Reply::Done { .. } | Reply::Written(_)), "there is room: {reply:?}");
    }
    let mut story = Story(data);
    let mut last = 0;
    let mut base = 0;
    while !story.0.is_empty() {
        let (who, how, tag) = (story.byte() % 4, story.byte(), u32::from(story.byte() % 24));
        let session = base + 1 + u64::from(who);
        let role = if who == 3 { Role::Reader } else { Role::Writer };
        let requested = made_up(&mut story, last);
        let emitted = requested.emit();
        let half = emitted.len() / 2;
        let words = emit_words(&[story.wide(), story.wide()]);
        let call = |what, body| Call { what, tag, body }.emit();
        let bytes = match how % 16 {
            0 => call(What::Hello, &VERSION.to_le_bytes()),
            1 => call(What::Part, &emitted[..half]),
            2 => call(What::Request, &emitted[half..]),
            3 => call(What::Rest, &[]),
            4 => call(What::Stats, &[]),
            5 => call(What::Scrub, &words),
            6 => call(What::Compact, &[]),
            7 => {
                let many = Request::Batch(vec![requested.clone(), Request::Scan { cursor: 0, limit: 99 }]);
                call(What::Request, &many.emit())
            }
            8 => {
                let (some, rest) = story.0.split_at(story.0.len().min(usize::from(how >> 4)));
                story.0 = rest;
                // It is not to name the honest client's keys, at once or in parts.
                let fair = |call: Call<'_>| {
                    call.what != What::Part
                        && Request::parse(call.body).is_none_or(|request| !request.changes())
                };
                if Call::parse(some).is_some_and(|call| !fair(call)) { continue } else { some.to_vec() }
            }
            9 => {
                // Everybody's connection ends.
                host.forget_ended().expect("memory does not fail");
                base += 5;
                honest = base;
                begin(&mut host, honest);
                continue;
            }
            10 => {
                let now = host.now();
                host.core.step(now, usize::from(how >> 4)).expect("memory does not fail");
                continue;
            }
            _ => call(What::Request, &emitted),
        };
        // Another one's may come at the same time, and is shown with it.
        let beside = (how & 0x10 != 0).then(|| {
            let other = base + 1 + u64::from((who + 1) % 3);
            (other, Call { what: What::Request, tag: tag ^ 1, body: &emitted }.emit())
        });
        if let Some((other, request)) = &beside {
            let first = Called { session, role, request: &bytes };
            host.prepare(&[first, Called { session: *other, role: Role::Writer, request }]);
        }
        let before = host.core.stats();
        let said = host.serve(session, role, &bytes);
        while let Some(event) = host.core.poll_event() {
            assert!(!matches!(event, Event::Fence { .. }), "nobody's time is over");
        }
        let after = host.core.stats();
        if role == Role::Reader {
            assert_eq!((before.reserved, before.written), (after.reserved, after.written), "{requested:?}");
        }
        if let Ok(said) = said {
            let answer = Answer::parse(&said).expect("an answer");
            assert!(answer.body.len() <= SLOT - ANSWER_HEADER, "it fits a message");
            let reply = parse_keyed(answer.body).and_then(|(_, reply)| Reply::parse(reply));
            assert!(role.may_write() || !matches!(reply, Some(Reply::Written(_))), "a reader's value");
            if let Some(Reply::Reserved(reserved)) = reply {
                assert!(role.may_write(), "room for a reader");
                last = reserved.version;
            }
        }
        if let Some((other, request)) = &beside {
            // It need not have begun.
            let _ = host.serve(*other, Role::Writer, request);
            host.turn(2).expect("memory does not fail");
        }
        let (parts, answers) = host.kept(session);
        assert!(parts <= REQUEST_MAX && answers <= ANSWERS_MAX, "{parts} bytes and {answers} answers");
        if let Reply::View(view) = request(&mut host, honest, &Request::View) {
            let acknowledge = Request::Acknowledge { view: view.number };
            assert_eq!(request(&mut host, honest, &acknowledge), Reply::Ok);
        }
    }
    for key in HONEST {
        let reply = request(&mut host, honest, &Request::Get { key: vec![key] });
        let same = matches!(&reply, Reply::Value { value: found, .. } if *found == value(key));
        assert!(same, "{key}: {reply:?}");
    }
    assert!(!host.has_failed());
}

#[cfg(test)]
mod tests;
