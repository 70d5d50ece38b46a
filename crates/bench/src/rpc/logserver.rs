//! `rem bench logserver`: the persistent log server under a plain and under rotating words (paper 001, section 6, figure 9).

use std::time::{Duration, Instant};

use remanence_rpc::core::event::{Event, SessionId};
use remanence_rpc::header::{Address, Status};
use remanence_rpc::live::Rpc;
use remanence_rpc::log::{APPEND, BOUNDS, TRIM, Word};

use super::client::{Burst, Found, Spec};
use super::server::{self, Served, words};
use super::{Bench, FIGURES, JUDGED, PAPERS, addresses, at, key, serve};
use crate::claims::{Claim, Shape, Verdict, times};
use crate::effort::Options;
use crate::limits::udp::BarePair;
use crate::report::{Bar, Report, Sense};
use crate::samples::{Key, Metric, Samples};
use crate::server_load::ServerLoad;

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

fn rate(size: u64, word: &str, load: ServerLoad) -> Key {
    key(&at(OP, load), size, word, Metric::Rate)
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
pub fn run(options: &Options, mut progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let (rounds, ms) = options.effort.extent();
    let sizes = options.effort.pick(&QUICK[..], &QUICK[..], &SIZES[..]);
    let mut bench = Bench::new(options, server::Spec::Logs, Spec::Logs);
    let mut bare = BarePair::open(addresses())?;
    let steps = rounds * sizes.len() as u64;
    for load in FIGURES {
        bench.samples.control(&rate(sizes[0], SERVED[0].0, load));
    }
    while bench.another(rounds, |samples| bars(samples, sizes))? {
        for &size in sizes {
            progress(bench.samples.step(), steps, &format!("appends of {size} bytes"));
            for (n, load) in bench.cells(SERVED.len(), size == sizes[0]) {
                // What one burst appended the next one need not have room for.
                let (key, burst) = (rate(size, SERVED[n].0, load), Burst::Append { n, size, ms });
                bench.burst(&key, serve(Served::Endpoint(n), load), burst);
            }
            bench.sample(&FIGURES.map(|load| rate(size, BARE, load)), || {
                let trips = bare.round_trips(size, ms)?;
                Ok(vec![trips.len() as f64 / trips.iter().sum::<f64>()])
            });
        }
    }
    let params = serde_json::json!({
        "rounds": bench.samples.blocks(), "ms": ms, "clients": CLIENTS, "window": WINDOW,
        "servers": ServerLoad::ALL.map(ServerLoad::name),
        "rate": "appends acknowledged as durable; one server thread, clients in one thread",
    });
    bench.report("logserver", params, |samples| bars(samples, sizes), |samples| claims(samples, sizes))
}

impl Clients {
    pub(super) fn connect(mut rpc: Rpc, to: Address) -> Result<Self, String> {
        let sessions: Option<Vec<_>> = (0..CLIENTS).map(|_| rpc.connect(to)).collect();
        Ok(Self { rpc, sessions: sessions.ok_or("no more sessions")? })
    }

    /// Millions of appends a second.
    pub(super) fn burst(&mut self, size: u64, ms: u64) -> Result<Found, String> {
        let entry = vec![0x5A; size as usize];
        let budget = Duration::from_millis(ms);
        for number in 0..self.sessions.len() {
            for _ in 0..WINDOW {
                self.append(number, &entry)?;
            }
        }
        let (begin, mut under_way, mut finished) = (Instant::now(), self.sessions.len() * WINDOW, 0_u64);
        let mut operations = 0;
        let mut elapsed = None;
        while under_way > 0 {
            match self.rpc.poll(None).map_err(words)? {
                Some(Event::Response { tag, status: Status::Done, .. }) => {
                    under_way -= 1;
                    operations += 1;
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
        // What was under way when the time was over costs as well.
        Ok(Found { values: vec![finished as f64 / micros], operations })
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

fn bars(samples: &Samples, sizes: &[u64]) -> Vec<Bar> {
    let small = sizes[0];
    let [(plain, ..), (counter, ..), (register, ..), (shared, ..)] = SERVED;
    // (Where a commit is two write-backs none is shared, so that the last ones are two measurements of the same.)
    let asked = [
        ("rotating counter / plain", counter, plain),
        ("rotating register / plain", register, plain),
        ("commits shared / one by one", shared, plain),
    ];
    let judged = |load: ServerLoad| {
        asked.map(|(words, over, under)| {
            let name = format!("64 B appends, server {}: {words}", load.name());
            let ratio = samples.ratio(&rate(small, over, load), &rate(small, under, load));
            Bar::new(name, ratio, Sense::AtLeast, 0.95)
        })
    };
    JUDGED.into_iter().flat_map(judged).collect()
}

fn claims(samples: &Samples, sizes: &[u64]) -> Vec<Claim> {
    let of = |size, over: &str, under: &str, load| {
        samples.ratio(&rate(size, over, load), &rate(size, under, load))
    };
    let ratio = |size, over: &str, under: &str| of(size, over, under, PAPERS);
    let [(plain, ..), (counter, ..), _, (shared, ..)] = SERVED;
    let (small, large) = (sizes[0], sizes[sizes.len() - 1]);
    let (gain, late, grouped) =
        (ratio(small, counter, plain), ratio(large, counter, plain), ratio(small, shared, plain));
    let fades = samples.combined(
        [
            &rate(small, counter, PAPERS),
            &rate(small, plain, PAPERS),
            &rate(large, counter, PAPERS),
            &rate(large, plain, PAPERS),
        ],
        |[a, b, c, d]| a / b / (c / d),
    );
    vec![
        Claim::new(
            "6.4, figure 9: the rotating counter makes appends of up to 512 B 80 to 90 % faster",
            Verdict::judged(gain, Sense::AtLeast, 1.8),
            format!(
                "{} at 64 B; {} with an idle server, {} with a busy one. The cause is a clwb that drops the line, as Cascade Lake's does; \
                 where a fenced write-back costs the same for one line as for many (rem bench counter measures this CPU, and has the \
                 paper's delays as a model) there is nothing to gain, and an append is mostly a call",
                times(gain),
                times(of(small, counter, plain, ServerLoad::IDLE)),
                times(of(small, counter, plain, ServerLoad::BUSY)),
            ),
        )
        .or_in_shape(
            Shape::new("the counter is faster at 64 B, and gains less at 4 KiB")
                .and(gain, Sense::AtLeast, 1.0)
                .and(fades, Sense::AtLeast, 1.0),
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
    ]
}
