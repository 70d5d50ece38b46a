//! What the issue and the paper ask of the figures, and what was found.

use std::collections::BTreeMap;

use remanence_erda_paper::baseline::Scheme;
use remanence_kv::view::Mode;
use remanence_ycsb::workload::Mix;

use super::cleaning::{self, Cleaned};
use super::peerside::{self, Action, DataDirectory, Via, Who};
use super::{Figure, Part, Series, key, loads, table1, title};
use crate::claims::{Claim, Shape, Verdict, times};
use crate::effort::Effort;
use crate::redis::{self, Fsync, Setting};
use crate::report::{Bar, Sense, figure};
use crate::samples::{Key, Samples};
use crate::server_load::ServerLoad;
use crate::stats::{self, Estimate};

/// What share of another scheme's CPU time is nothing.
const NOTHING: f64 = 0.001;

/// Ratios at several points, if they were found at each of them.
struct Ratios(Option<Vec<Estimate>>);

impl Ratios {
    fn median(&self) -> Option<Estimate> {
        stats::median(self.0.as_deref()?)
    }

    fn largest(&self) -> Option<Estimate> {
        stats::worst(self.0.as_deref()?, Sense::AtMost)
    }
}

/// The worse of two.
fn worse(found: [Option<Estimate>; 2], sense: Sense) -> Option<Estimate> {
    stats::worst(&[found[0]?, found[1]?], sense)
}

/// What verdicts are made of.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    pub(super) samples: &'a Samples,
    pub(super) effort: Effort,
    pub(super) table1: &'a [table1::Cell],
}

impl Seen<'_> {
    /// Over all value sizes.
    fn by_size(&self, figure: Figure, mix: Mix, over: Series, under: Series, load: ServerLoad) -> Ratios {
        let of = |series, value| key(figure, mix, series, load, value);
        let sizes = self.effort.sizes().into_iter();
        Ratios(sizes.map(|value| self.samples.ratio(&of(over, value), &of(under, value))).collect())
    }

    fn at_threads(
        &self,
        mix: Mix,
        over: Series,
        under: Series,
        load: ServerLoad,
        threads: usize,
    ) -> Option<Estimate> {
        let of = |series| key(Figure::Threads, mix, series, load, threads);
        self.samples.ratio(&of(over), &of(under))
    }

    /// A figure of YCSB-C at each size and server.
    fn reads(&self, figure: Figure, series: Series) -> impl Iterator<Item = Key> {
        let sizes = self.effort.sizes().into_iter();
        sizes.flat_map(move |value| {
            loads(value).iter().map(move |&load| key(figure, Mix::C, series, load, value))
        })
    }

    /// The most messages of a read that were seen at any size and server, if it was measured at each.
    fn messages(&self, series: Series) -> Option<f64> {
        let all = self.reads(Figure::Messages, series).map(|key| self.samples.median(&key));
        all.collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::max)
    }

    /// The application's CPU time of a read as a share of what one of Redo Logging costs it, where that is most. What any thread of a process is
    /// charged with now and then is no read's.
    fn share(&self, series: Series) -> Option<Estimate> {
        let both = self.reads(Figure::Application, series).zip(self.reads(Figure::Application, Series::Redo));
        let all = both.map(|(own, redo)| {
            let whole = self.samples.median(&redo).filter(|whole| *whole > 0.0)?;
            Some(self.samples.level(&own)?.map(|share| share.map(|cpu| cpu / whole)))
        });
        stats::worst(&all.collect::<Option<Vec<_>>>()?, Sense::AtMost)
    }

    /// Whether Table 1 is asked for.
    fn has_table1(&self) -> bool {
        let is_known = |cell: &table1::Cell| {
            let (op, series) = (cell.change.op(), cell.who.series());
            self.samples.value(op, cell.value as u64, series).is_some()
        };
        self.table1.first().is_some_and(is_known)
    }
}

pub(super) fn bars(bench: Seen<'_>, parts: &[Part]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for part in parts {
        match part {
            Part::Latency => latency(bench, &mut bars),
            Part::Threads => threads(bench, &mut bars),
            Part::Cleaning => {}
            Part::Bytes if bench.has_table1() => bars.extend(table1::bars(bench.table1)),
            Part::Bytes => bars.extend(table1::bars(bench.table1).into_iter().map(Bar::unmeasured)),
            Part::Peers => peers(bench, &mut bars),
        }
    }
    bars
}

fn latency(bench: Seen<'_>, bars: &mut Vec<Bar>) {
    for (load, limit) in [(ServerLoad::BUSY, 0.7), (ServerLoad::IDLE, 1.0)] {
        for erda in [Series::TwoReads, Series::Erda] {
            for baseline in Series::BASELINES {
                let ratios = bench.by_size(Figure::Mean, Mix::C, erda, baseline, load);
                let pair = format!("{} / {}", erda.name(), baseline.name());
                let name = format!("YCSB-C latency, server {}: {pair}", load.name());
                let worst = format!("{name}, worst of {} sizes", bench.effort.sizes().len());
                bars.push(Bar::new(worst, ratios.largest(), Sense::AtMost, limit));
                bars.push(Bar::new(format!("{name}, median"), ratios.median(), Sense::AtMost, limit));
            }
        }
    }
    for erda in [Series::TwoReads, Series::Erda, Series::Durable] {
        let messages = bench.messages(erda);
        let name = format!("messages to the application per read, {}, most", erda.name());
        bars.push(Bar::new(name, messages, Sense::AtMost, 0.0));
        let name = format!("application CPU per read, {} / Redo Logging, most", erda.name());
        bars.push(Bar::new(name, bench.share(erda), Sense::AtMost, NOTHING));
    }
}

fn threads(bench: Seen<'_>, bars: &mut Vec<Bar>) {
    for (load, words) in [(ServerLoad::BUSY, "busy server"), (ServerLoad::IDLE, "idle server")] {
        for erda in [Series::TwoReads, Series::Erda] {
            for baseline in Series::BASELINES {
                let ratio = bench.at_threads(Mix::C, erda, baseline, load, 4);
                let name =
                    format!("YCSB-C throughput, 4 threads, {words}: {} / {}", erda.name(), baseline.name());
                bars.push(Bar::new(name, ratio, Sense::AtLeast, 1.5));
            }
        }
    }
}

fn peers(bench: Seen<'_>, bars: &mut Vec<Bar>) {
    let mut bar = |name: String, over: &Key, under: &Key, sense, limit| {
        bars.push(Bar::new(name, bench.samples.ratio(over, under), sense, limit));
    };
    for value in peerside::SIZES {
        let at = |place, action, who| peerside::spinning(place, action, who, value);
        let redis = |setting, via| Who::Redis(setting, via);
        let (plain, always) = (Setting::plain(Fsync::NoLog), Setting::plain(Fsync::Always));
        // Over the network's stack both, or neither.
        for via in Via::ALL {
            let native = Who::Native(via.carrier());
            let (name, place) = (native.name(), DataDirectory::Tmpfs);
            bar(
                format!("GET latency, {value} B, spinning: {name} / {}", redis(plain, via).name()),
                &at(place, Action::Get, native),
                &at(place, Action::Get, redis(plain, via)),
                Sense::AtMost,
                0.5,
            );
            bar(
                format!("durable PUT on a disk, {value} B: {} / {name}", redis(always, via).name()),
                &at(DataDirectory::Disk, Action::Put, redis(always, via)),
                &at(DataDirectory::Disk, Action::Put, native),
                Sense::AtLeast,
                10.0,
            );
            bar(
                format!("PUT on tmpfs, {value} B: {name} / {}", redis(always, via).name()),
                &at(place, Action::Put, native),
                &at(place, Action::Put, redis(always, via)),
                Sense::AtMost,
                1.0,
            );
        }
        let get = |who| at(DataDirectory::Tmpfs, Action::Get, who);
        for gateway in [Who::Gateway, Who::GatewayAndStore] {
            let name = gateway.name();
            bar(
                format!("GET latency, {value} B, spinning: {name} / {}", redis(plain, Via::Tcp).name()),
                &get(gateway),
                &get(redis(plain, Via::Tcp)),
                Sense::AtMost,
                1.0,
            );
            for (shape, setting) in redis::Shape::ALL.into_iter().flat_map(|shape| {
                // Other threads have something to do where there are many connections.
                let threaded = (shape.clients > 1).then_some(Setting::threaded(Fsync::NoLog));
                std::iter::once(plain).chain(threaded).map(move |setting| (shape, setting))
            }) {
                let of = |who| peerside::benchmarked(DataDirectory::Tmpfs, Action::Get, who, shape, value);
                let peer = redis(setting, Via::Tcp);
                bar(
                    format!(
                        "GET rate, {value} B, redis-benchmark {}: {name} / {}",
                        shape.words(),
                        peer.name()
                    ),
                    &of(gateway),
                    &of(peer),
                    Sense::AtLeast,
                    1.0,
                );
            }
        }
    }
}

/// What the paper says, in its order.
pub(super) fn claims(bench: Seen<'_>, cleaned: &BTreeMap<Mix, Cleaned>) -> Vec<Claim> {
    let mut claims = Vec::new();
    latency_claims(bench, &mut claims);
    throughput_claims(bench, &mut claims);
    cpu_claims(bench, &mut claims);
    cleaning_claims(bench, cleaned, &mut claims);
    bytes_claims(bench, &mut claims);
    claims
}

/// Figures 14 to 17: the paper's own ratios of its averages, the worse of the two.
const LATENCY: [(Mix, u32, f64); 4] =
    [(Mix::C, 14, 0.68), (Mix::B, 15, 0.67), (Mix::A, 16, 0.75), (Mix::Update, 17, 0.98)];

fn latency_claims(bench: Seen<'_>, claims: &mut Vec<Claim>) {
    for (mix, number, papers) in LATENCY {
        let of = |erda, baseline, load| bench.by_size(Figure::Mean, mix, erda, baseline, load).median();
        let all =
            |erda, load| worse(Series::BASELINES.map(|baseline| of(erda, baseline, load)), Sense::AtMost);
        let (idle, busy) = (all(Series::TwoReads, ServerLoad::IDLE), all(Series::TwoReads, ServerLoad::BUSY));
        let claim = Claim::new(
            format!(
                "5.2, figure {number}: {} is faster with Erda than with either scheme ({papers} of their mean latency)",
                title(mix)
            ),
            Verdict::judged(idle, Sense::AtMost, papers),
            format!(
                "{} of the better one with an idle server and {} with a busy one (medians over the value sizes); with the \
                 location cache {} and {}",
                times(idle),
                times(busy),
                times(all(Series::Erda, ServerLoad::IDLE)),
                times(all(Series::Erda, ServerLoad::BUSY)),
            ),
        )
        .or_in_shape(Shape::new("Erda is the fastest").and(idle, Sense::AtMost, 1.0));
        claims.push(claim);
        if mix == Mix::Update {
            let durable = all(Series::Durable, ServerLoad::IDLE);
            claims.push(Claim::new(
                "(ours) and what it costs to be durable at the acknowledgement, which the paper's Erda is not",
                Verdict::judged(durable, Sense::AtMost, 1.0),
                format!("update-only takes {} of the better scheme, both durable", times(durable)),
            ));
        }
    }
}

fn throughput_claims(bench: Seen<'_>, claims: &mut Vec<Claim>) {
    let most = bench.effort.threads().into_iter().max().unwrap_or(1);
    let at = |series, threads| key(Figure::Threads, Mix::C, series, ServerLoad::IDLE, threads);
    let growth = |series| bench.samples.ratio(&at(series, most), &at(series, 1));
    let beside = |baseline| {
        let own = Series::TwoReads;
        let keys = [at(own, most), at(own, 1), at(baseline, most), at(baseline, 1)];
        bench.samples.combined(keys.each_ref(), |[a, b, c, d]| a / b / (c / d))
    };
    let own = growth(Series::TwoReads);
    let claim = Claim::new(
        "5.3, figure 18: with the number of threads YCSB-C grows about linearly in Erda, and not in the others",
        Verdict::judged(own, Sense::AtLeast, 0.8 * most as f64),
        format!(
            "from 1 to {most} threads it grows by {}, Redo Logging by {}, Read After Write by {}; on a machine of {} cores, \
             which server and clients share, nothing can grow beyond them",
            times(own),
            times(growth(Series::Redo)),
            times(growth(Series::ReadAfterWrite)),
            std::thread::available_parallelism().map_or(1, usize::from),
        ),
    )
    .or_in_shape(
        Shape::new("it grows, and by more than in either other scheme")
            .and(own, Sense::AtLeast, 1.0)
            .and(beside(Series::Redo), Sense::AtLeast, 1.0)
            .and(beside(Series::ReadAfterWrite), Sense::AtLeast, 1.0),
    );
    claims.push(claim);
    for (mix, number, papers) in [(Mix::C, 18, 1.52), (Mix::B, 19, 1.48), (Mix::A, 20, 1.37)] {
        let of = |baseline| {
            let threads = bench.effort.threads().into_iter();
            let all = threads.map(|n| bench.at_threads(mix, Series::TwoReads, baseline, ServerLoad::IDLE, n));
            Ratios(all.collect()).median()
        };
        let found = Series::BASELINES.map(of);
        let least = worse(found, Sense::AtLeast);
        let claim = Claim::new(
            format!("5.3, figure {number}: {} has {papers} times the throughput of the others", title(mix)),
            Verdict::judged(least, Sense::AtLeast, papers),
            format!(
                "{} of Redo Logging and {} of Read After Write, median over the threads; {} and {} with a busy server and 4 \
                 threads",
                times(found[0]),
                times(found[1]),
                times(bench.at_threads(mix, Series::TwoReads, Series::Redo, ServerLoad::BUSY, 4)),
                times(bench.at_threads(mix, Series::TwoReads, Series::ReadAfterWrite, ServerLoad::BUSY, 4)),
            ),
        )
        .or_in_shape(Shape::new("Erda has the highest").and(least, Sense::AtLeast, 1.0));
        claims.push(claim);
    }
    let update =
        Series::BASELINES.map(|b| bench.at_threads(Mix::Update, Series::TwoReads, b, ServerLoad::IDLE, 4));
    let near =
        |ratio| Verdict::judged(ratio, Sense::AtLeast, 0.7).and(Verdict::judged(ratio, Sense::AtMost, 1.5));
    claims.push(Claim::new(
        "5.3, figure 21: update-only has about the same throughput in all three",
        near(update[0]).and(near(update[1])),
        format!(
            "{} of Redo Logging and {} of Read After Write, 4 threads",
            times(update[0]),
            times(update[1])
        ),
    ));
}

fn cpu_claims(bench: Seen<'_>, claims: &mut Vec<Claim>) {
    let (messages, spent) = (bench.messages(Series::TwoReads), bench.share(Series::TwoReads));
    let process = |series| {
        let at = |value| bench.samples.median(&key(Figure::Process, Mix::C, series, ServerLoad::IDLE, value));
        bench.effort.sizes().into_iter().find_map(at)
    };
    let words = |value: Option<f64>| value.map_or_else(|| "not measured".into(), figure);
    claims.push(Claim::new(
        "5.4, figures 22 to 25: YCSB-C costs the server's CPU nothing in Erda",
        Verdict::of(messages.map(|n| n == 0.0)).and(Verdict::judged(spent, Sense::AtMost, NOTHING)),
        format!(
            "{} messages per read, and {} the application's CPU time of Redo Logging. The RNIC is software here and runs on the same CPU: the \
             whole server process takes {} us per read of the smallest value, with Redo Logging {} us",
            words(messages),
            times(spent),
            words(process(Series::TwoReads)),
            words(process(Series::Redo)),
        ),
    ));
    for (mix, papers) in [(Mix::B, [20.09, 20.81]), (Mix::A, [1.89, 1.96]), (Mix::Update, [1.17, 1.11])] {
        let of = |figure, baseline| {
            bench.by_size(figure, mix, baseline, Series::TwoReads, ServerLoad::IDLE).median()
        };
        let found = Series::BASELINES.map(|baseline| of(Figure::Application, baseline));
        let whole = Series::BASELINES.map(|baseline| of(Figure::Process, baseline));
        let judged = |n: usize| Verdict::judged(found[n], Sense::AtLeast, papers[n]);
        let claim = Claim::new(
            format!(
                "5.4: {} costs the server's CPU {} and {} times as much in Redo Logging and Read After Write",
                title(mix),
                papers[0],
                papers[1]
            ),
            judged(0).and(judged(1)),
            format!(
                "the application's CPU {} and {}; the whole process, RNIC and waiting included, {} and {}",
                times(found[0]),
                times(found[1]),
                times(whole[0]),
                times(whole[1]),
            ),
        )
        .or_in_shape(Shape::new("Erda costs the least").and(
            worse(found, Sense::AtLeast),
            Sense::AtLeast,
            1.0,
        ));
        claims.push(claim);
    }
}

fn cleaning_claims(bench: Seen<'_>, cleaned: &BTreeMap<Mix, Cleaned>, claims: &mut Vec<Claim>) {
    let of = |mix: Mix| cleaned.get(&mix).copied().unwrap_or_default();
    let ratio = |mix: Mix| bench.samples.ratio(&cleaning::key(mix, true), &cleaning::key(mix, false));
    let rates = |mix: Mix| Some(of(mix).rates.1? / of(mix).rates.0?);
    let beside = [Mix::A, Mix::B, Mix::C]
        .map(|mix| bench.samples.ratio(&cleaning::key(mix, true), &cleaning::key(Mix::Update, true)));
    let seen: Vec<Estimate> = beside.into_iter().flatten().collect();
    let slowest = Verdict::judged(stats::worst(&seen, Sense::AtMost), Sense::AtMost, 1.0);
    let during = |mix| of(mix).during.map_or_else(|| "not seen".into(), figure);
    claims.push(Claim::new(
        "5.5, figure 26: during log cleaning update-only has the highest mean latency",
        slowest,
        format!(
            "{} us update-only, {} us YCSB-A, {} us YCSB-B, {} us YCSB-C",
            during(Mix::Update),
            during(Mix::A),
            during(Mix::B),
            during(Mix::C)
        ),
    ));
    claims.push(Claim::new(
        "5.5: update-only is about as fast during log cleaning as normally",
        Verdict::judged(ratio(Mix::Update), Sense::AtMost, 1.25),
        format!(
            "its mean latency is {} and its throughput {} of normal, over {} ms of cleaning",
            times(ratio(Mix::Update)),
            times(rates(Mix::Update)),
            figure(of(Mix::Update).cleaning_ms)
        ),
    ));
    claims.push(Claim::new(
        "5.5: YCSB-C is slower during log cleaning, as clients then ask the server",
        Verdict::judged(ratio(Mix::C), Sense::AtLeast, 1.1),
        format!(
            "{} of normal. Ours go on one-sidedly: what they lose is what the cleaner takes of a CPU that they share, and the \
             locations that it moves",
            times(ratio(Mix::C))
        ),
    ));
}

fn bytes_claims(bench: Seen<'_>, claims: &mut Vec<Claim>) {
    let (cells, measured) = (bench.table1, bench.has_table1());
    let off = table1::differing(cells);
    claims.push(Claim::new(
        "5.6, Table 1: bytes written to NVM by a create, an update and a delete",
        Verdict::of(measured.then_some(off == 0)),
        format!("{off} cells differ from the formulas, over all five value sizes"),
    ));
    let ratio = |who| measured.then(|| table1::update_ratio(cells, who, Scheme::RedoLogging)).flatten();
    let paper = ratio(table1::Design::Paper);
    claims.push(Claim::new(
        "5.6: Erda reduces NVM writes by about 50 %",
        Verdict::judged(paper, Sense::AtMost, 0.55),
        format!(
            "an update of 1 KiB writes {} of Redo Logging's bytes in the paper's layout, {} in ours, {} when it is durable",
            times(paper),
            times(ratio(table1::Design::Ours(Mode::Erda))),
            times(ratio(table1::Design::Ours(Mode::Durable))),
        ),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::State;
    use crate::stats::Judgement;

    /// Of 24 bursts one was charged with 17 us that were nobody's, which is 0.007 us for each of its reads; a scheme that has its application
    /// do a hundredth of Redo Logging's work is seen.
    #[test]
    fn a_read_costs_an_application_nothing_where_it_is_charged_by_chance() {
        let effort = Effort::Quick;
        let judged = |of: fn(u64) -> f64| {
            let mut samples = Samples::default();
            let keys = |series| {
                let seen = Seen { samples: &Samples::default(), effort, table1: &[] };
                seen.reads(Figure::Application, series).collect::<Vec<Key>>()
            };
            for block in 0..24 {
                samples.block(block);
                for (series, us) in [(Series::TwoReads, of(block)), (Series::Redo, 8.0)] {
                    let mut add = |key| samples.add(key, State::Near, State::Near, [us]);
                    keys(series).iter().for_each(&mut add);
                }
            }
            let seen = Seen { samples: &samples, effort, table1: &[] };
            seen.share(Series::TwoReads).expect("both were measured").judge(Sense::AtMost, NOTHING)
        };
        assert_eq!(judged(|block| if block == 7 { 0.007 } else { 0.0 }), Judgement::Holds);
        assert_eq!(judged(|_| 0.0), Judgement::Holds);
        assert_eq!(judged(|block| 0.08 + 0.001 * (block % 3) as f64), Judgement::Missed);
    }
}
