//! What the fuzz targets do with their bytes; `fuzz/` holds the shells, and the unit tests run the committed corpus through the same
//! functions.

use remanence_pmem::crash_image::CrashImage;
use remanence_pmem::{Medium, PersistenceDomain};

use crate::format::object::{Content, WRITTEN_FROM, emit};
use crate::format::{Geometry, Header, Object, ObjectAddress, Offset, RegionWord, Slot, Superblock};
use crate::proto::{Expect, Reply, Request, Reserved};
use crate::server::{ClientId, Event, Options, Server, format};

/// A fuzz target.
pub type Body = fn(&[u8]);

/// Every body, under its target's name.
pub const BODIES: &[(&str, Body)] =
    &[("kv_decoders", decoders), ("kv_medium", medium), ("kv_server", server)];

/// The salt of the stores that the fuzz targets make.
const SALT: u64 = 11;
/// The geometry of the stores that the fuzz targets make: few small regions, so that everything happens soon.
const GEOMETRY: Geometry =
    Geometry { size: 48 << 10, region_len: 2048, segment_len: 1024, heads: 2, grown_from: 0 };

/// Everything that is decoded from memory or messages of others.
pub fn decoders(data: &[u8]) {
    let _ = Superblock::parse(data, 1 << 30);
    let _ = Header::parse(data);
    let place = ObjectAddress { salt: SALT, head: 1, offset: Offset(9), epoch: 2 };
    if let Ok(object) = Object::parse(data, &place) {
        assert!(object.header.len() <= data.len() as u64);
        if let Some((total, chunks)) = object.chunks() {
            assert_eq!(total, chunks.iter().map(|chunk| u64::from(chunk.len)).sum::<u64>());
        }
    }
    // The same with a checksum that fits, so that more than the checksum is tried.
    if data.len() > 20 && data.len() < 900 {
        let object = emit(&place, 1, 0, &data[..4], Content::Value(&data[4..]));
        let object = Object::parse(&object, &place).expect("whole");
        let _ = object.chunks();
    }
    for slot in Slot::parse_all(data) {
        let word = slot.word;
        assert!(!word.settled().is_pending() && !word.flipped().is_pending());
        if let Some(old) = word.old_offset() {
            assert_eq!(word.flipped().new_offset(), Some(old));
        }
        assert_eq!(word.update(Offset(77)).old_offset(), word.new_offset());
        let _ = RegionWord::parse(word.0);
    }
    if let Some(request) = Request::parse(data) {
        assert_eq!(Request::parse(&request.emit()).as_ref(), Some(&request));
    }
    if let Some(reply) = Reply::parse(data) {
        assert_eq!(Reply::parse(&reply.emit()).as_ref(), Some(&reply));
    }
}

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

fn prepared() -> CrashImage {
    let image = CrashImage::new(GEOMETRY.size, PersistenceDomain::Eadr);
    format(&&image, &GEOMETRY, 16, SALT, [0; 16]).expect("fair");
    image
}

fn options() -> Options {
    Options { lease: 20, unfinished_max: 4, ..Options::default() }
}

/// The value that a key has in these stories.
fn value(key: u8) -> Vec<u8> {
    vec![key; usize::from(key) * 9]
}

fn put(server: &mut Server<&CrashImage>, client: ClientId, key: u8) {
    let put = Request::PutInline { key: vec![key], value: value(key), expires: 0, expect: Expect::Any };
    let _ = server.handle(1, client, &put);
}

/// A store with a few bytes changed at rest: triples of place and value.
pub fn medium(data: &[u8]) {
    let image = prepared();
    {
        let (mut server, _) = Server::open(&image, options()).expect("a store");
        let client = server.connect();
        (1..30).for_each(|key| put(&mut server, client, key));
    }
    let mut story = Story(data);
    for _ in 0..(data.len() / 3).min(64) {
        let at = story.wide() % GEOMETRY.size;
        let mut byte = [0];
        image.read(at, &mut byte);
        image.write(at, &[byte[0] ^ story.byte()]);
    }
    let Ok((mut server, _)) = Server::open(&image, options()) else { return };
    let client = server.connect();
    for key in 1..30 {
        if let Reply::Value { value: found, .. } = server.handle(1, client, &Request::Get { key: vec![key] })
        {
            assert_eq!(found, value(key), "what was tampered with was served");
        }
        if key % 3 == 0 {
            put(&mut server, client, key);
        }
    }
    let _ = server.scrub(0, 100);
    for head in 0..2 {
        let _ = server.clean(head);
        (0..40).for_each(|now| drop(server.step(now, 8)));
        let _ = server.resize(40);
        (0..40).for_each(|now| drop(server.step(now, 8)));
    }
    let _ = server.handle(1, client, &Request::Scan { cursor: 0, limit: 100 });
}

/// Two clients say what they like and write what they like to what they were given; a third one's values stay.
pub fn server(data: &[u8]) {
    let image = prepared();
    // A third of the stories each: clients write all values, the server writes small ones, and the same on a disk.
    let options = match data.len() % 3 {
        0 => options(),
        1 => Options { inline_max: 64, ..options() },
        _ => Options { defer: true, inline_max: 64, ..options() },
    };
    let (mut server, _) = Server::open(&image, options).expect("a store");
    // As a host's memory windows: nobody writes to what was handed out to it once what became of it is decided.
    let (revoke, revoked) = std::sync::mpsc::channel();
    server
        .set_revoke(Box::new(move |rooms| rooms.iter().for_each(|at| revoke.send(*at).unwrap_or_default())));
    let honest = server.connect();
    (200..206).for_each(|key| put(&mut server, honest, key));
    let mut story = Story(data);
    let mut clients = [server.connect(), server.connect()];
    let mut given: Vec<(ClientId, Reserved, u8)> = Vec::new();
    let take_back = |given: &mut Vec<(ClientId, Reserved, u8)>| {
        for room in revoked.try_iter() {
            given.retain(|(_, reserved, _)| reserved.at + WRITTEN_FROM as u64 != room);
        }
    };
    let mut now = 1;
    let acknowledge = |server: &mut Server<&CrashImage>, now| {
        let view = server.view().number;
        let _ = server.handle(now, honest, &Request::Acknowledge { view });
    };
    while !story.0.is_empty() {
        let who = clients[usize::from(story.byte() & 1)];
        let key = vec![story.byte() % 40 + 1];
        let expect = match story.byte() % 4 {
            0 => Expect::Absent,
            1 => Expect::Present,
            2 => Expect::Version(story.wide()),
            _ => Expect::Any,
        };
        let request = match story.byte() % 14 {
            0..4 => Request::Put { key: key.clone(), len: story.wide() % 5000, expires: 0, expect },
            4 => Request::PutInline { key, value: value(story.byte() % 99), expires: story.wide(), expect },
            5 => Request::Delete { key, expect },
            6 => Request::Settle { key },
            7 => Request::Get { key },
            8 => Request::Confirm { versions: vec![1 << 40 | story.wide()] },
            9 => Request::Abandon { version: 1 << 40 | story.wide() },
            10 => Request::Acknowledge { view: story.wide() },
            11 => Request::Scan { cursor: story.wide() << 32, limit: story.wide() as u32 },
            12 => match Request::parse(story.0) {
                // Those could name the third client's keys.
                Some(
                    Request::Put { .. }
                    | Request::PutInline { .. }
                    | Request::Delete { .. }
                    | Request::Batch(_),
                )
                | None => Request::View,
                Some(request) => request,
            },
            _ => {
                let version = given.last().map_or(0, |(_, reserved, _)| reserved.version);
                Request::Batch(vec![Request::Abandon { version }, Request::View])
            }
        };
        let written_key = match &request {
            Request::Put { key, .. } => key[0],
            _ => 0,
        };
        let reply = server.handle(now, who, &request);
        take_back(&mut given);
        if let Reply::Reserved(reserved) = reply {
            given.push((who, reserved, written_key));
        }
        match story.byte() % 8 {
            0 => {
                let budget = usize::from(story.byte() % 8);
                now += u64::from(story.byte() % 8);
                let _ = server.step(now, budget);
                acknowledge(&mut server, now);
            }
            1 => {
                let _ = server.clean(story.byte() % 2);
            }
            2 => {
                let _ = server.resize(16 + story.wide() % 64);
            }
            3 => {
                let who = usize::from(story.byte() & 1);
                given.retain(|(client, ..)| *client != clients[who]);
                let _ = server.disconnected(clients[who]);
                clients[who] = server.connect();
            }
            4..7 => {
                if let Some((_, reserved, key)) = given.get(usize::from(story.byte()) % given.len().max(1)) {
                    tamper(&image, reserved, *key, &mut story);
                }
            }
            _ => {}
        }
        while let Some(event) = server.poll_event() {
            let Event::Fence { client } = event else { continue };
            given.retain(|(owner, ..)| *owner != client);
            let _ = server.disconnected(client);
            if let Some(gone) = clients.iter_mut().find(|c| **c == client) {
                *gone = server.connect();
            }
        }
        acknowledge(&mut server, now);
        take_back(&mut given);
    }
    for key in 200..206 {
        let reply = server.handle(now, honest, &Request::Get { key: vec![key] });
        assert!(
            matches!(&reply, Reply::Value { value: found, .. } if *found == value(key)),
            "{key}: {reply:?}"
        );
    }
}

/// Writes an object, or something like it, to what was handed out.
fn tamper(image: &CrashImage, reserved: &Reserved, key: u8, story: &mut Story<'_>) {
    let place =
        ObjectAddress { salt: SALT, head: reserved.head, offset: reserved.offset, epoch: reserved.epoch };
    let len = usize::from(story.byte());
    let object = emit(&place, reserved.version, 0, &[key.max(1)], Content::Value(&vec![key; len]));
    // What a client holds keys for; here never more than it was handed out for, which is 49 bytes at least.
    let end = object.len().min(49);
    let from = WRITTEN_FROM + usize::from(story.byte()) % 40;
    image.write(reserved.at + from as u64, &object[from..end.max(from)]);
}

#[cfg(test)]
mod tests;
