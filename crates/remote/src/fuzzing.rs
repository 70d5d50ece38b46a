//! What the fuzz target does with its bytes; `fuzz/` holds the shell, and the unit tests run the committed corpus through the same
//! functions.

use std::ops::Range;

use remanence_persist::Config;
use remanence_pmem::crash_image::CrashImage;
use remanence_pmem::watched::{Watch, Watched};
use remanence_pmem::{Medium as _, PersistenceDomain};

use crate::hello::{Hello, Rejection, Welcome};
use crate::message::{Answer, BY_IMMEDIATE, HEADER, Immediates, Parsed};
use crate::program::Program;
use crate::responder::{Responder, Terms, World};
use crate::ring::{Layout, PAGE, Ring, recover};

/// Any bytes as everything that is decoded here: nothing panics, and what is accepted is written as it was read.
pub fn decode(bytes: &[u8]) {
    if let Ok(hello) = Hello::parse(bytes) {
        assert_eq!(Hello::parse(&hello.emit()), Ok(hello));
    }
    if let Ok(welcome) = Welcome::parse(bytes) {
        let again = Welcome::parse(&welcome.emit()).expect("its own words");
        assert_eq!(
            (again.server, again.agreed, again.region),
            (welcome.server, welcome.agreed, welcome.region)
        );
    }
    let _ = Rejection::parse(bytes);
    if let Ok(answer) = Answer::parse(bytes) {
        assert_eq!(answer.emit(), bytes);
    }
    if let Ok(message) = Parsed::read(bytes) {
        assert!(message.len as usize <= bytes.len());
    }
    if let Ok((program, rest)) = Program::parse(bytes) {
        assert_eq!([&program.emit()[..], rest].concat(), bytes);
        let _ = program.check(&Config::SAFE);
    }
}

const DATA: u64 = 4096;
const SLOT: u32 = 512;

/// Of a memory only the first bytes may be changed.
struct Guard;

impl Guard {
    fn check(range: Range<u64>) {
        assert!(range.end <= DATA, "{range:?} of {DATA} bytes");
    }
}

impl Watch for Guard {
    fn store(&self, range: Range<u64>) {
        Self::check(range);
    }

    fn pwb(&self, range: Range<u64>) {
        Self::check(range);
    }
}

/// What a client is told that may call by immediate.
const OURS: Immediates = Immediates { number: 77, rkey: 1 };

/// Counts what the responder gives back.
#[derive(Default)]
struct Counted {
    reposted: u64,
    answers: u64,
    /// Calls that are answered later.
    later: Vec<u64>,
}

impl World for Counted {
    fn send(&mut self, answer: Answer) {
        assert!(Answer::parse(&answer.emit()).is_ok());
        self.answers += 1;
    }

    fn repost(&mut self, number: u64) {
        assert_eq!(number, self.reposted + 1, "buffers are given back in their order, each once");
        self.reposted = number;
    }

    fn call(&mut self, _: u16, request: &[u8]) -> Result<Vec<u8>, String> {
        if request.len().is_multiple_of(2) { Ok(request.to_vec()) } else { Err("odd".into()) }
    }

    fn call_later(&mut self, number: u64, service: u16, _: &[u8]) -> bool {
        let is_later = service == 3;
        self.later.extend(is_later.then_some(number));
        is_later
    }

    fn immediates(&mut self) -> Result<Immediates, String> {
        Ok(OURS)
    }
}

/// Any bytes as a story of messages to a responder: number, stamp, length and checksum are filled in, so that most get past
/// the first checks. Nothing outside of the region is touched, and buffers are given back in order.
pub fn responder(bytes: &[u8]) {
    let configs = ["DMP+DDIO+DRAM", "DMP+no-DDIO+PM", "MHP+DDIO+PM", "page-cache+DDIO+PM+persistent"];
    let Some((first, mut rest)) = bytes.split_first() else { return };
    let config: Config = configs[usize::from(first % 4)].parse().expect("a configuration");
    let ring = Ring::volatile(4, SLOT);
    let terms = Terms { config, data_len: DATA, ring, durable_buffers: false, stamp: 5, shift: 6 };
    let mut responder = Responder::new(terms);
    let memory = Watched { medium: CrashImage::new(2 * DATA, PersistenceDomain::Adr), watch: Guard };
    let buffers = CrashImage::new(ring.bytes(), PersistenceDomain::Adr);
    let mut world = Counted::default();
    for number in 1_u64.. {
        let Some((head, more)) = rest.split_first_chunk::<8>() else { break };
        let [how, kind, flags, part, plan, entries, len, imm] = *head;
        let (body, more) = more.split_at(more.len().min(usize::from(len)));
        rest = more;
        let result = if how % 4 == 0 {
            let imm = u32::from_be_bytes([imm, plan, part, entries]);
            responder.message(len.into(), Some(imm), &memory, &buffers, &mut world)
        } else {
            let mut message = vec![0; HEADER];
            message[4..8].copy_from_slice(&((HEADER + body.len()) as u32).to_be_bytes());
            message[8..16].copy_from_slice(&5_u64.to_be_bytes());
            message[16..24].copy_from_slice(&number.to_be_bytes());
            message[32..35].copy_from_slice(&[kind % 4, flags % 2, part % 8]);
            let plan = if plan == u8::MAX { BY_IMMEDIATE } else { u16::from(plan % 4) };
            message[36..38].copy_from_slice(&plan.to_be_bytes());
            message[39] = entries % 8;
            message.extend_from_slice(body);
            let crc = crc32fast::hash(&message[4..]);
            message[..4].copy_from_slice(&crc.to_be_bytes());
            buffers.write(ring.buffer(number), &message);
            let imm = (how % 8 == 1).then_some(OURS.number);
            responder.message(message.len() as u32, imm, &memory, &buffers, &mut world)
        };
        if how >= 128 {
            // The last one first.
            let answered = world.later.pop();
            answered.into_iter().for_each(|number| responder.answered(number, Ok(vec![how]), &mut world));
        }
        if result.is_err() || responder.idle(&memory, &buffers, &mut world).is_err() {
            break;
        }
        assert!(world.reposted <= number && world.answers <= 2 * number);
    }
}

/// Any bytes in the place of receive buffers: recovery does not panic, touches nothing but what is served, and finds nothing
/// more to do the second time.
pub fn recovery(bytes: &[u8]) {
    const LEN: u64 = 16 * PAGE;
    let image = CrashImage::new(LEN, PersistenceDomain::Adr);
    let layout = Layout::at_the_end(LEN, 2, 4, SLOT).expect("room");
    layout.format(&image).expect("memory does not fail");
    let room = (LEN - PAGE - layout.data_len) as usize;
    image.write(layout.data_len, &bytes[..bytes.len().min(room)]);
    let _ = recover(&image).expect("no other version wrote this");
    assert_eq!(recover(&image).expect("the same").applied, 0);
    assert_eq!(Layout::find(&image).expect("the same"), Some(layout));
}

#[cfg(test)]
mod tests;
