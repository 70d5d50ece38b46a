//! Figure 2 of paper 004: latency of a durable append to a remote log, over the recipes of all 72 cells.
//!
//! The configurations are *declared*: the recipe of each is carried out step by step on live memory and real sockets, and
//! what is not here (a cache that arriving data stops in, a battery) is taken on trust. So the figures tell what the steps
//! cost, not what survives. A responder is in a process of its own; its serving thread is idle but for the
//! log, or has an application's work: [`ServerLoad`].
//!
//! Beside every configuration stands message passing (SEND, copy, flush, acknowledgement, whatever its receive buffers
//! are), and beside all of them a bare UDP round trip of a record's bytes.

pub(crate) mod ends;
pub mod figure;

use std::time::{Duration, Instant};

use remanence_persist::Config;
use remanence_persist::recipe::{Op, Recipe, Shape, build};
use remanence_persist::taxonomy::{Buffers, Domain};
use remanence_remotelog::Mode;

use crate::effort::{Effort, Options};
use crate::limits::udp::BarePair;
use crate::report::{Bar, Report, Sense};
use crate::role::{self, Launcher, Lost, Pair, Ran};
use crate::samples::{Key, Metric, Samples};
use crate::server_load::ServerLoad;
use crate::stats::{self, Estimate};
use ends::{Appender, Responder};

/// A quick run that has measured everything once begins no burst after this.
const QUICK: Duration = Duration::from_secs(120);
/// Bytes of a record's payload, as in the bar.
const PAYLOAD: usize = 64;
/// Bytes of the record.
const RECORD: u64 = 96;

/// One bar of the figure.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The configuration of the responder.
    pub config: Config,
    /// One update or two.
    pub mode: Mode,
    /// The operation; none is message passing.
    pub op: Option<Op>,
    /// What the responder's application does besides.
    pub load: ServerLoad,
}

impl Cell {
    /// The panel of the figure: (a) to (c) singleton, (d) to (f) compound.
    #[must_use]
    pub fn panel(&self) -> String {
        format!("{} {}", self.config.domain.name(), self.mode.name())
    }

    /// The paper's name of the bar.
    #[must_use]
    pub fn name(&self) -> String {
        let ddio = if self.config.ddio { "DDIO" } else { "noDDIO" };
        let buffers = if self.config.buffers == Buffers::Pm { "PM" } else { "DRAM" };
        format!("{ddio}_{buffers}_RQWRB_{}", self.op.map_or("MESSAGE", Op::name))
    }

    fn key(&self) -> Key {
        let series = self.load.series(&self.name());
        Key { op: self.panel(), x: PAYLOAD as u64, series, metric: Metric::Latency }
    }

    /// What is carried out.
    #[must_use]
    pub fn recipe(&self) -> Recipe {
        let shape = if self.mode == Mode::Singleton { Shape::SINGLETON } else { Shape::COMPOUND };
        match self.op {
            Some(op) => build(&self.config, op, shape),
            None => build(&Config { buffers: Buffers::Dram, ..self.config }, Op::Send, shape),
        }
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut other = self.clone();
        change(&mut other);
        other
    }
}

/// All of them, in the order of the paper: 72 cells and 24 of message passing, with the server idle and busy; and those
/// that are swept at the other servers.
#[must_use]
pub fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for load in ServerLoad::ALL {
        for mode in Mode::ALL {
            for config in Config::papers() {
                let ops = Op::ALL.into_iter().map(Some).chain([None]);
                let all = ops.map(|op| Cell { config, mode, op, load });
                cells.extend(
                    all.filter(|cell| matches!(load, ServerLoad::IDLE | ServerLoad::BUSY) || swept(cell)),
                );
            }
        }
    }
    cells
}

/// What is measured at every kind of server: one WRITE, and message passing beside it.
fn swept(cell: &Cell) -> bool {
    let configs = [Domain::Dmp, Domain::Wsp].map(|domain| Config::paper(domain, true, Buffers::Dram));
    cell.mode == Mode::Singleton
        && configs.contains(&cell.config)
        && matches!(cell.op, None | Some(Op::Write))
}

/// What is measured twice in each block: message passing, as most bars have it below the line.
fn is_control(cell: &Cell) -> bool {
    swept(cell) && cell.op.is_none() && cell.load == ServerLoad::IDLE
}

/// Runs the bench.
///
/// # Errors
/// One sentence that says what failed.
pub fn run(options: &Options, mut progress: impl FnMut(u64, u64, &str)) -> Result<Report, String> {
    let ms = Duration::from_millis;
    let Options { effort, only, program } = options;
    let (rounds, burst) = effort.pick((1_u64, ms(1)), (6, ms(5)), (9, ms(60)));
    let cells = cells();
    let (mut samples, mut lost) = (Samples::new(*effort, only), Lost::default());
    cells.iter().for_each(|cell| samples.expect(&cell.key()));
    let mut pair = Pair::new(Launcher::here(program));
    let total = rounds * cells.len() as u64;
    let (bare, loopback) = (bare_key(), std::net::Ipv4Addr::LOCALHOST.into());
    let mut limit = BarePair::open((loopback, loopback))?;
    samples.control(&cells.iter().find(|cell| is_control(cell)).expect("it is among them").key());
    let begin = Instant::now();
    while samples.another(rounds, |samples| bars(samples, &cells))? {
        pair.renew().unwrap_or_else(|why| lost.add("the end of a block", why));
        let round = samples.blocks() - 1;
        let late = || *effort == Effort::Quick && round > 0 && begin.elapsed() > QUICK;
        // What could decide more does not lack what it was not asked for.
        if round >= rounds && late() {
            break;
        }
        for (n, number) in samples.order(cells.len()).into_iter().enumerate() {
            let cell = &cells[number];
            let key = cell.key();
            if samples.wants(&key) {
                let name = format!("{} {}", cell.panel(), key.series);
                progress(samples.step(), total, &name);
                if round < rounds && late() {
                    let limit = QUICK.as_secs();
                    let why = format!(
                        "a burst of each, as {limit} s were over: run it without --quick, or on a machine that does less"
                    );
                    lost.add(name, why);
                    continue;
                }
                let measured = samples.burst(&key, || {
                    let ran = append(&mut pair, number, burst)?;
                    // It ends while nothing is measured.
                    pair.close().map(|()| ran)
                });
                measured.unwrap_or_else(|why| lost.add(name, why));
            }
            if n % 16 == 0 {
                samples.burst(&bare, || limit.round_trips(RECORD, burst.as_millis() as u64))?;
            }
        }
    }
    let params = serde_json::json!({
        "payload": PAYLOAD,
        "record": RECORD,
        "rounds": samples.blocks(),
        "burst_ms": burst.as_millis() as u64,
        "servers": ServerLoad::ALL.map(ServerLoad::name),
        "configurations": "declared: every recipe is carried out step by step on live memory, and nothing here makes the \
                           declared domain true",
        "recipes": cells.iter().filter(|cell| cell.load == ServerLoad::IDLE).map(|cell| {
            (format!("{} {}", cell.panel(), cell.name()), cell.recipe().to_string())
        }).collect::<std::collections::BTreeMap<_, _>>(),
        "pinned": role::pinned(),
    });
    Report::new("remotelog", params, &samples, |samples| bars(samples, &cells), |_| Vec::new(), lost.lines())
}

fn bare_key() -> Key {
    Key { op: "bare".into(), x: PAYLOAD as u64, series: "UDP round trip".into(), metric: Metric::Latency }
}

/// Appends to the log of a cell for a while; microseconds each.
fn append(
    pair: &mut Pair<Responder, Appender>,
    cell: usize,
    burst: Duration,
) -> Result<Ran<Vec<f64>>, String> {
    pair.open(&cell, &cell)?;
    pair.burst(None, &burst)
}

/// The worst of several ratios, if each of them is there, and how many they are.
fn worst(ratios: impl Iterator<Item = Option<Estimate>>) -> (Option<Estimate>, usize) {
    let all: Vec<Option<Estimate>> = ratios.collect();
    let n = all.len();
    let all: Option<Vec<Estimate>> = all.into_iter().collect();
    (all.and_then(|all| stats::worst(&all, Sense::AtMost)), n)
}

fn median(ratios: impl Iterator<Item = Option<Estimate>>) -> Option<Estimate> {
    stats::median(&ratios.collect::<Option<Vec<_>>>()?)
}

fn bars(samples: &Samples, cells: &[Cell]) -> Vec<Bar> {
    let ratio = |over: &Cell, under: &Cell| samples.ratio(&over.key(), &under.key());
    let message = |cell: &Cell| cell.with(|c| c.op = None);
    let of = |mode: Mode, load: ServerLoad| {
        cells.iter().filter(move |c| c.op.is_some() && c.mode == mode && c.load == load)
    };
    let one_sided = |cell: &&Cell| !cell.recipe().is_two_sided();
    let mut bars = Vec::new();

    // The issue.
    let against = |mode, load| of(mode, load).filter(one_sided).map(|cell| ratio(cell, &message(cell)));
    let (value, n) = worst(against(Mode::Singleton, ServerLoad::BUSY));
    bars.push(Bar::new(
        format!("one-sided singleton / message passing, same configuration, busy server: worst of {n}"),
        value,
        Sense::AtMost,
        0.75,
    ));
    let value = median(against(Mode::Singleton, ServerLoad::BUSY));
    bars.push(Bar::new("the same, median", value, Sense::AtMost, 0.75));
    for mode in Mode::ALL {
        // Where the recipes differ: the one with FLUSH, and the one without.
        let wsp = of(mode, ServerLoad::IDLE).filter(|c| c.config.domain == Domain::Wsp).filter(one_sided);
        let ratios: Vec<_> =
            wsp.map(|cell| ratio(cell, &cell.with(|c| c.config.domain = Domain::Mhp))).collect();
        let name = format!("WSP / MHP, one-sided {}, median", mode.name());
        bars.push(Bar::new(name, median(ratios.iter().copied()), Sense::AtMost, 0.75));
        let (value, n) = worst(ratios.into_iter());
        let name = format!("WSP / MHP, one-sided {}: worst of {n}", mode.name());
        bars.push(Bar::new(name, value, Sense::AtMost, 0.75));
    }
    let trip = of(Mode::Singleton, ServerLoad::IDLE).filter(|cell| {
        let recipe = cell.recipe();
        recipe.waits() == 1
            && !recipe.is_two_sided()
            && cell.op == Some(Op::Write)
            && cell.config.domain == Domain::Wsp
    });
    let ratios: Vec<_> = trip.map(|cell| samples.ratio(&cell.key(), &bare_key())).collect();
    let name = "durable 64 B append in one round trip (WSP, WRITE) / bare UDP round trip, median";
    bars.push(Bar::new(name, median(ratios.iter().copied()), Sense::AtMost, 1.4));
    let (value, n) = worst(ratios.into_iter());
    bars.push(Bar::new(format!("the same, worst of {n}"), value, Sense::AtMost, 1.4));

    // The paper's claims.
    let cell = |domain, ddio, buffers, mode, op| Cell {
        config: Config::paper(domain, ddio, buffers),
        mode,
        op: Some(op),
        load: ServerLoad::IDLE,
    };
    use Domain::{Dmp, Mhp, Wsp};
    let (single, compound, dram, pm) = (Mode::Singleton, Mode::Compound, Buffers::Dram, Buffers::Pm);
    let pair = |a: Cell, b: Cell| ratio(&a, &b);
    let mut claim = |name: &str, value: Option<Estimate>, limit: f64| {
        bars.push(Bar::new(format!("claim {name}"), value, Sense::AtMost, limit));
    };
    claim(
        "4.3: one-sided is faster than message passing (idle server, median)",
        median(against(single, ServerLoad::IDLE)),
        1.0,
    );
    claim(
        "4.3: MHP is faster than DMP where that makes it one-sided (DDIO, DRAM, WRITE)",
        pair(cell(Mhp, true, dram, single, Op::Write), cell(Dmp, true, dram, single, Op::Write)),
        1.0,
    );
    claim(
        "4.3: leaving out the FLUSH makes WSP faster (DDIO, DRAM, WRITE)",
        pair(cell(Wsp, true, dram, single, Op::Write), cell(Mhp, true, dram, single, Op::Write)),
        1.0,
    );
    for op in [Op::Write, Op::WriteImm] {
        let value = pair(cell(Dmp, false, pm, single, op), cell(Dmp, true, pm, single, op));
        claim(&format!("4.3: DDIO off makes DMP faster ({}, PM)", op.name()), value, 1.0);
    }
    for domain in [Mhp, Wsp] {
        let value =
            pair(cell(domain, true, pm, single, Op::Send), cell(domain, true, dram, single, Op::Send));
        claim(&format!("4.3: receive buffers in PM make SEND faster ({})", domain.name()), value, 1.0);
    }
    claim(
        "4.4: one message is faster than two round trips (DMP, DDIO, SEND / WRITE)",
        pair(cell(Dmp, true, dram, compound, Op::Send), cell(Dmp, true, dram, compound, Op::Write)),
        1.0,
    );
    for op in [Op::Write, Op::WriteImm] {
        let value = pair(cell(Mhp, true, dram, compound, op), cell(Mhp, true, dram, compound, Op::Send));
        claim(&format!("4.4: MHP makes one-sided {} faster than message passing", op.name()), value, 1.0);
    }
    claim(
        "4.4: DDIO off and the non-posted WRITE make compound DMP faster (WRITE)",
        pair(cell(Dmp, false, dram, compound, Op::Write), cell(Dmp, true, dram, compound, Op::Write)),
        1.0,
    );
    claim(
        "4.4: WRITE_IMM gains less than WRITE there, as it waits in between (WRITE / WRITE_IMM)",
        pair(cell(Dmp, false, dram, compound, Op::Write), cell(Dmp, false, dram, compound, Op::WriteImm)),
        1.0,
    );
    for domain in [Mhp, Wsp] {
        let value = pair(
            cell(domain, true, dram, compound, Op::Write),
            cell(domain, false, dram, compound, Op::Write),
        );
        claim(&format!("4.4: DDIO does not slow {} down (WRITE, with / without)", domain.name()), value, 1.1);
        let value = pair(
            cell(domain, false, dram, compound, Op::Write),
            cell(domain, true, dram, compound, Op::Write),
        );
        claim(&format!("4.4: nor does it speed it up ({}, without / with)", domain.name()), value, 1.1);
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_has_the_papers_cells_and_message_passing_beside_them() {
        let cells = cells();
        assert_eq!(cells.len(), 2 * (72 + 24) + 4 * 4, "four of them at four more servers");
        let mut names: Vec<(String, String)> = cells.iter().map(|c| (c.panel(), c.key().series)).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), cells.len(), "each has a name of its own");
        assert_eq!(names.iter().map(|(panel, _)| panel).collect::<std::collections::BTreeSet<_>>().len(), 6);
        for cell in cells.iter().filter(|cell| cell.op.is_none()) {
            assert!(cell.recipe().is_two_sided());
        }
    }
}
