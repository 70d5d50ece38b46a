//! `rem bench logserver`: the persistent log server under a plain and under rotating words (paper 001, section 6, figure 9).

use std::time::{Duration, Instant};

use remanence_rpc::core::event::{Event, SessionId};
use remanence_rpc::header::{Address, Status};
use remanence_rpc::live::Rpc;
use remanence_rpc::log::{APPEND, BOUNDS, TRIM, Word};

use super::client::{Burst, Spec};
use super::peer::Bare;
use super::server::{self, Serve, words};
use super::{Bench, Options, Outcome, addresses, key};
use crate::claims::{Claim, Verdict, times};
use crate::report::{Bar, Sense};
use crate::samples::{Key, Metric};

const OP: &str = "append";
const BARE: &str = "bare UDP round trips, one at a time";
/// Bytes of an entry, as in figure 9 of the paper.
const SIZES: [u64; 7] = [64, 128, 256, 512, 1024, 2048, 4096];
const QUICK: [u64; 3] = [64, 512, 4096];
/// Clients, with eight appends under way each.
const CLIENTS: usize = 4;
const WINDOW: usize = 8;

/// What is served: each word as in the paper, one append to a commit, and one that commits what has come together.
pub(super) const SERVED: [(&str, Word, usize); 4] = [
    ("plain", Word::Plain, 1),
    ("rotating counter", Word::RotatingCounter, 1),
    ("rotating register", Word::RotatingRegister, 1),
    ("plain, commits shared", Word::Plain, 32),
];

fn rate(size: u64, series: &str) -> Key {
    key(OP, size, series, Metric::Rate)
}

/// Several clients of one log, in one thread.
pub(super) struct Clients {
    pub(super) rpc: Rpc,
    sessions: Vec<SessionId>,
}

/// Runs it. `progress` is told each step, as (done, of, what).
///
/// # Errors
/// One sentence when nothing at all can be measured.
pub fn run(options: &Options, mut progress: impl FnMut(u64, u64, &str)) -> Outcome {
    let (rounds, ms) = options.extent();
    let sizes = options.effort.pick(&QUICK[..], &QUICK[..], &SIZES[..]);
    let mut bench = Bench::new(options, server::Spec::Logs, Spec::Logs);
    let mut bare = Bare::open(addresses())?;
    let steps = rounds * sizes.len() as u64;
    let mut done = 0;
    bench.samples.control(&rate(sizes[0], SERVED[0].0));
    for round in 0..rounds {
        bench.samples.block(round);
        for &size in sizes {
            progress(done, steps, &format!("appends of {size} bytes"));
            done += 1;
            for (n, (series, ..)) in SERVED.into_iter().enumerate() {
                // What one burst appended the next one need not have room for.
                bench.burst(&rate(size, series), Serve::Endpoint(n), Burst::Append { n, size, ms });
            }
            bench.sample(&rate(size, BARE), || {
                let trips = bare.round_trips(size, ms)?;
                Ok(vec![trips.len() as f64 / trips.iter().sum::<f64>()])
            });
        }
    }
    let (bars, claims) = verdicts(&bench, sizes);
    let params = serde_json::json!({
        "rounds": rounds, "ms": ms, "clients": CLIENTS, "window": WINDOW,
        "rate": "appends acknowledged as durable; one server thread, clients in one thread",
    });
    bench.report("logserver", params, Vec::new(), bars, claims)
}

impl Clients {
    pub(super) fn connect(mut rpc: Rpc, to: Address) -> Result<Self, String> {
        let sessions: Option<Vec<_>> = (0..CLIENTS).map(|_| rpc.connect(to)).collect();
        Ok(Self { rpc, sessions: sessions.ok_or("no more sessions")? })
    }

    /// Millions of appends a second.
    pub(super) fn burst(&mut self, size: u64, ms: u64) -> Result<Vec<f64>, String> {
        let entry = vec![0x5A; size as usize];
        let budget = Duration::from_millis(ms);
        for number in 0..self.sessions.len() {
            for _ in 0..WINDOW {
                self.append(number, &entry)?;
            }
        }
        let (begin, mut under_way, mut finished) = (Instant::now(), self.sessions.len() * WINDOW, 0_u64);
        let mut elapsed = None;
        while under_way > 0 {
            match self.rpc.poll(None).map_err(words)? {
                Some(Event::Response { tag, status: Status::Done, .. }) => {
                    under_way -= 1;
                    finished += u64::from(elapsed.is_none());
                    if elapsed.is_none() && begin.elapsed() >= budget {
                        elapsed = Some(begin.elapsed());
                    }
                    if elapsed.is_none() {
                        self.append(tag as usize, &entry)?;
                        under_way += 1;
                    }
                }
                Some(Event::Response { body, .. }) => {
                    return Err(String::from_utf8_lossy(&body.to_vec()).into_owned());
                }
                Some(Event::Failed { why, .. }) => return Err(words(why)),
                Some(_) | None => {}
            }
        }
        let micros = elapsed.map_or(1.0, |elapsed| elapsed.as_nanos() as f64 / 1e3);
        Ok(vec![finished as f64 / micros])
    }

    fn append(&mut self, number: usize, entry: &[u8]) -> Result<(), String> {
        let message = self.rpc.message(entry.len()).ok_or("there is no memory for messages")?;
        message.write(0, entry);
        let tag = number as u64;
        self.rpc.call(self.sessions[number], APPEND, message, tag).map_err(|(why, _)| words(why))
    }

    /// Trims the log to its end.
    pub(super) fn forget(&mut self) -> Result<(), String> {
        let session = self.sessions[0];
        let (_, bounds) = self.rpc.call_and_wait(session, BOUNDS, &[], |_| {})?;
        let tail = bounds.to_vec().split_off(8);
        match self.rpc.call_and_wait(session, TRIM, &tail, |_| {})? {
            (Status::Done, _) => Ok(()),
            (_, body) => Err(String::from_utf8_lossy(&body.to_vec()).into_owned()),
        }
    }
}

fn verdicts(bench: &Bench, sizes: &[u64]) -> (Vec<Bar>, Vec<Claim>) {
    let ratio = |size, over: &str, under: &str| bench.ratio(&rate(size, over), &rate(size, under));
    let [(plain, ..), (counter, ..), (register, ..), (shared, ..)] = SERVED;
    let small = sizes[0];
    let large = sizes[sizes.len() - 1];
    let (gain, other, late) =
        (ratio(small, counter, plain), ratio(small, register, plain), ratio(large, counter, plain));
    let grouped = ratio(small, shared, plain);
    let bars = vec![
        Bar::new("64 B appends, rotating counter / plain", gain, Sense::AtLeast, 0.95),
        Bar::new("64 B appends, rotating register / plain", other, Sense::AtLeast, 0.95),
        // (Where a commit is two write-backs none is shared, so that these are two measurements of the same.)
        Bar::new("64 B appends, commits shared / one by one", grouped, Sense::AtLeast, 0.95),
    ];
    let claims = vec![
        Claim::new(
            "6.4, figure 9: the rotating counter makes appends of up to 512 B 80 to 90 % faster",
            Verdict::judged(gain, Sense::AtLeast, 1.5),
            format!(
                "{} at 64 B. The cause is a clwb that drops the line, as Cascade Lake's does; where a fenced write-back \
                 costs the same for one line as for many (rem bench counter measures this CPU, and has the paper's delays \
                 as a model) there is nothing to gain, and an append is mostly a call",
                times(gain)
            ),
        ),
        Claim::new(
            "6.4, figure 9: for larger appends the choice of the counter has little effect",
            Verdict::judged(late, Sense::AtLeast, 0.85).and(Verdict::judged(late, Sense::AtMost, 1.2)),
            format!("{} at {large} B", times(late)),
        ),
        Claim::new(
            "(ours) several appends under one commit save most of what durability costs",
            Verdict::judged(grouped, Sense::AtLeast, 1.1),
            format!("{} at 64 B", times(grouped)),
        ),
    ];
    (bars, claims)
}
