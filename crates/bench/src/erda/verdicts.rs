//! What the issue and the paper ask of the figures, and what was found.

use std::collections::BTreeMap;

use remanence_erda_paper::baseline::Scheme;
use remanence_kv::view::Mode;
use remanence_ycsb::workload::Mix;

use super::Carrier;
use super::cleaning::{self, Cleaned};
use super::peerside::{self, Action, DataDirectory, Who};
use super::{Bench, Figure, Part, Series, key, table1, title};
use crate::claims::{Claim, Verdict, times};
use crate::redis::{Fsync, Shape};
use crate::report::{Bar, Sense, figure};
use crate::samples::Key;
use crate::stats::{self, Estimate};

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

impl Bench<'_> {
    /// Over all value sizes.
    fn by_size(&self, figure: Figure, mix: Mix, over: Series, under: Series, busy: bool) -> Ratios {
        let of = |series, value| key(figure, mix, series, busy, value);
        let sizes = self.options.effort.sizes().into_iter();
        Ratios(sizes.map(|value| self.samples.ratio(&of(over, value), &of(under, value))).collect())
    }

    fn at_threads(
        &self,
        mix: Mix,
        over: Series,
        under: Series,
        busy: bool,
        threads: usize,
    ) -> Option<Estimate> {
        let of = |series| key(Figure::Threads, mix, series, busy, threads);
        self.samples.ratio(&of(over), &of(under))
    }

    /// The most that was seen at any size, server idle or busy.
    fn most(&self, figure: Figure, mix: Mix, series: Series) -> Option<f64> {
        let sizes = self.options.effort.sizes().into_iter();
        let found = sizes.flat_map(|value| [false, true].map(|busy| key(figure, mix, series, busy, value)));
        found.filter_map(|key| self.samples.median(&key)).reduce(f64::max)
    }
}

pub(super) fn bars(bench: &Bench<'_>, parts: &[Part]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for part in parts {
        match part {
            Part::Latency => latency(bench, &mut bars),
            Part::Threads => threads(bench, &mut bars),
            Part::Cleaning => {}
            Part::Bytes => bars.extend(table1::bars(&bench.table1)),
            Part::Peers => peers(bench, &mut bars),
        }
    }
    bars
}

fn latency(bench: &Bench<'_>, bars: &mut Vec<Bar>) {
    for erda in [Series::TwoReads, Series::Erda] {
        for baseline in Series::BASELINES {
            let ratios = bench.by_size(Figure::Mean, Mix::C, erda, baseline, true);
            let name = format!("YCSB-C latency, busy server: {} / {}", erda.name(), baseline.name());
            bars.push(Bar::new(
                format!("{name}, worst of {} sizes", bench.options.effort.sizes().len()),
                ratios.largest(),
                Sense::AtMost,
                0.7,
            ));
            bars.push(Bar::new(format!("{name}, median"), ratios.median(), Sense::AtMost, 0.7));
        }
    }
    for erda in [Series::TwoReads, Series::Erda, Series::Durable] {
        let messages = bench.most(Figure::Messages, Mix::C, erda);
        let name = format!("messages to the application per read, {}, most", erda.name());
        bars.push(Bar::new(name, messages, Sense::AtMost, 0.0));
        let cpu = bench.most(Figure::Application, Mix::C, erda);
        let name = format!("application CPU per read (us), {}, most", erda.name());
        bars.push(Bar::new(name, cpu, Sense::AtMost, 0.0));
    }
}

fn threads(bench: &Bench<'_>, bars: &mut Vec<Bar>) {
    for (busy, words) in [(true, "busy server"), (false, "idle server")] {
        for erda in [Series::TwoReads, Series::Erda] {
            for baseline in Series::BASELINES {
                let ratio = bench.at_threads(Mix::C, erda, baseline, busy, 4);
                let name =
                    format!("YCSB-C throughput, 4 threads, {words}: {} / {}", erda.name(), baseline.name());
                bars.push(Bar::new(name, ratio, Sense::AtLeast, 1.5));
            }
        }
    }
}

fn peers(bench: &Bench<'_>, bars: &mut Vec<Bar>) {
    let mut bar = |name: String, over: &Key, under: &Key, sense, limit| {
        bars.push(Bar::new(name, bench.samples.ratio(over, under), sense, limit));
    };
    let natives = [Carrier::Udp, Carrier::Shm].map(Who::Native);
    for value in peerside::SIZES {
        let at = |place, deed, who| peerside::spinning(place, deed, who, value);
        let (no, always) = (Who::Redis(Fsync::No), Who::Redis(Fsync::Always));
        for native in natives {
            let (name, place) = (native.name(), DataDirectory::Tmpfs);
            bar(
                format!("GET latency, {value} B, spinning: {name} / Redis"),
                &at(place, Action::Get, native),
                &at(place, Action::Get, no),
                Sense::AtMost,
                0.5,
            );
            bar(
                format!("durable PUT on a disk, {value} B: Redis always / {name}"),
                &at(DataDirectory::Disk, Action::Put, always),
                &at(DataDirectory::Disk, Action::Put, native),
                Sense::AtLeast,
                10.0,
            );
            bar(
                format!("PUT on tmpfs, {value} B: {name} / Redis always"),
                &at(place, Action::Put, native),
                &at(place, Action::Put, always),
                Sense::AtMost,
                1.0,
            );
        }
        let get = |who| at(DataDirectory::Tmpfs, Action::Get, who);
        for gateway in [Who::Gateway, Who::GatewayAndStore] {
            let name = gateway.name();
            bar(
                format!("GET latency, {value} B, spinning: {name} / Redis"),
                &get(gateway),
                &get(no),
                Sense::AtMost,
                1.0,
            );
            for shape in Shape::ALL {
                let of = |who| peerside::benchmarked(DataDirectory::Tmpfs, Action::Get, who, shape, value);
                bar(
                    format!("GET rate, {value} B, redis-benchmark {}: {name} / Redis", shape.words()),
                    &of(gateway),
                    &of(no),
                    Sense::AtLeast,
                    1.0,
                );
            }
        }
    }
}

/// What the paper says, in its order.
pub(super) fn claims(bench: &Bench<'_>, cleaned: &BTreeMap<Mix, Cleaned>) -> Vec<Claim> {
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

fn latency_claims(bench: &Bench<'_>, claims: &mut Vec<Claim>) {
    for (mix, number, papers) in LATENCY {
        let of = |erda, baseline, busy| bench.by_size(Figure::Mean, mix, erda, baseline, busy).median();
        let all =
            |erda, busy| worse(Series::BASELINES.map(|baseline| of(erda, baseline, busy)), Sense::AtMost);
        let (idle, busy) = (all(Series::TwoReads, false), all(Series::TwoReads, true));
        claims.push(Claim::new(
            format!(
                "5.2, figure {number}: {} is faster with Erda than with either scheme ({papers} of their mean latency)",
                title(mix)
            ),
            Verdict::judged(idle, Sense::AtMost, 1.0),
            format!(
                "{} of the better one with an idle server and {} with a busy one (medians over the value sizes); with the \
                 location cache {} and {}",
                times(idle),
                times(busy),
                times(all(Series::Erda, false)),
                times(all(Series::Erda, true)),
            ),
        ));
        if mix == Mix::Update {
            let durable = all(Series::Durable, false);
            claims.push(Claim::new(
                "(ours) and what it costs to be durable at the acknowledgement, which the paper's Erda is not",
                Verdict::judged(durable, Sense::AtMost, 1.0),
                format!("update-only takes {} of the better scheme, both durable", times(durable)),
            ));
        }
    }
}

fn throughput_claims(bench: &Bench<'_>, claims: &mut Vec<Claim>) {
    let most = bench.options.effort.threads().into_iter().max().unwrap_or(1);
    let growth = |series| {
        let at = |threads| bench.samples.median(&key(Figure::Threads, Mix::C, series, false, threads));
        Some(at(most)? / at(1)?)
    };
    let own = growth(Series::TwoReads);
    let others = Series::BASELINES.map(growth);
    let verdict = (|| Some(own? > others[0]?.max(others[1]?)))();
    claims.push(Claim::new(
        "5.3, figure 18: with the number of threads YCSB-C grows about linearly in Erda, and not in the others",
        Verdict::of(verdict),
        format!(
            "from 1 to {most} threads it grows by {}, Redo Logging by {}, Read After Write by {}; on a machine of {} cores, \
             which server and clients share, nothing can grow beyond them",
            times(own),
            times(others[0]),
            times(others[1]),
            std::thread::available_parallelism().map_or(1, usize::from),
        ),
    ));
    for (mix, number, papers) in [(Mix::C, 18, 1.52), (Mix::B, 19, 1.48), (Mix::A, 20, 1.37)] {
        let of = |baseline| {
            let threads = bench.options.effort.threads().into_iter();
            let all = threads.map(|n| bench.at_threads(mix, Series::TwoReads, baseline, false, n));
            Ratios(all.collect()).median()
        };
        let found = Series::BASELINES.map(of);
        let least = worse(found, Sense::AtLeast);
        claims.push(Claim::new(
            format!("5.3, figure {number}: {} has {papers} times the throughput of the others", title(mix)),
            Verdict::judged(least, Sense::AtLeast, 1.0),
            format!(
                "{} of Redo Logging and {} of Read After Write, median over the threads; {} and {} with a busy server and 4 \
                 threads",
                times(found[0]),
                times(found[1]),
                times(bench.at_threads(mix, Series::TwoReads, Series::Redo, true, 4)),
                times(bench.at_threads(mix, Series::TwoReads, Series::ReadAfterWrite, true, 4)),
            ),
        ));
    }
    let update = Series::BASELINES.map(|b| bench.at_threads(Mix::Update, Series::TwoReads, b, false, 4));
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

fn cpu_claims(bench: &Bench<'_>, claims: &mut Vec<Claim>) {
    let none = bench.most(Figure::Messages, Mix::C, Series::TwoReads);
    let spent = bench.most(Figure::Application, Mix::C, Series::TwoReads);
    let process = |series| {
        let at = |value| bench.samples.median(&key(Figure::Process, Mix::C, series, false, value));
        bench.options.effort.sizes().into_iter().find_map(at)
    };
    let words = |value: Option<f64>| value.map_or_else(|| "not measured".into(), figure);
    claims.push(Claim::new(
        "5.4, figures 22 to 25: YCSB-C costs the server's CPU nothing in Erda",
        Verdict::of((|| Some(none? == 0.0 && spent? == 0.0))()),
        format!(
            "{} messages and {} us of the application per read. The RNIC is software here and runs on the same CPU: the whole \
             server process takes {} us per read of the smallest value, with Redo Logging {} us",
            words(none),
            words(spent),
            words(process(Series::TwoReads)),
            words(process(Series::Redo)),
        ),
    ));
    for (mix, papers) in
        [(Mix::B, "20.09 and 20.81"), (Mix::A, "1.89 and 1.96"), (Mix::Update, "1.17 and 1.11")]
    {
        let of = |figure, baseline| bench.by_size(figure, mix, baseline, Series::TwoReads, false).median();
        let found = Series::BASELINES.map(|baseline| of(Figure::Application, baseline));
        let whole = Series::BASELINES.map(|baseline| of(Figure::Process, baseline));
        claims.push(Claim::new(
            format!(
                "5.4: {} costs the server's CPU {papers} times as much in Redo Logging and Read After Write",
                title(mix)
            ),
            Verdict::judged(worse(found, Sense::AtLeast), Sense::AtLeast, 1.0),
            format!(
                "the application's CPU {} and {}; the whole process, RNIC and waiting included, {} and {}",
                times(found[0]),
                times(found[1]),
                times(whole[0]),
                times(whole[1]),
            ),
        ));
    }
}

fn cleaning_claims(bench: &Bench<'_>, cleaned: &BTreeMap<Mix, Cleaned>, claims: &mut Vec<Claim>) {
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

fn bytes_claims(bench: &Bench<'_>, claims: &mut Vec<Claim>) {
    let cells = &bench.table1;
    let measured = !cells.is_empty();
    let off = table1::differing(cells);
    claims.push(Claim::new(
        "5.6, Table 1: bytes written to NVM by a create, an update and a delete",
        Verdict::of(measured.then_some(off == 0)),
        format!("{off} cells differ from the formulas, over all five value sizes"),
    ));
    let ratio = |who| table1::update_ratio(cells, who, Scheme::RedoLogging);
    let paper = ratio(table1::Who::Paper);
    claims.push(Claim::new(
        "5.6: Erda reduces NVM writes by about 50 %",
        Verdict::judged(paper, Sense::AtMost, 0.55),
        format!(
            "an update of 1 KiB writes {} of Redo Logging's bytes in the paper's layout, {} in ours, {} when it is durable",
            times(paper),
            times(ratio(table1::Who::Ours(Mode::Erda))),
            times(ratio(table1::Who::Ours(Mode::Durable))),
        ),
    ));
}
