//! One HTML page of what benches found: claim by claim, with the verdict, the figure beside it, and the command that drew it.
//!
//! It is made of the JSON that benches write, of this release or an earlier one, so that no bench need run again for it. The page has no
//! script and loads nothing; it is readable light, dark and printed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::Value;

use crate::report::{bytes, figure};

/// What one bench wrote: its JSON, and its figure if there is one.
#[derive(Clone, Debug)]
pub struct Source {
    /// The name of the file, for errors.
    pub name: String,
    /// The JSON report.
    pub json: String,
    /// The SVG figure.
    pub svg: Option<String>,
}

/// What is read of a report.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Read {
    pub(crate) bench: String,
    machine: Value,
    params: Value,
    #[serde(default)]
    pub(crate) bars: Vec<Bar>,
    #[serde(default)]
    controls: Vec<Value>,
    #[serde(default)]
    pub(crate) lacking: Vec<String>,
    #[serde(default)]
    pub(crate) skipped: Vec<String>,
    /// Of a bench that was repeated.
    #[serde(default)]
    verdicts: Vec<Repeated>,
}

/// The verdicts of a bar in several repetitions.
#[derive(Clone, Debug, Deserialize)]
struct Repeated {
    bar: String,
    verdicts: Vec<Option<String>>,
    same: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Bar {
    pub(crate) name: String,
    value: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    limit: f64,
    sense: String,
    holds: bool,
    verdict: Option<String>,
    /// Whether it is decided by so little that another run may leave it undecided; earlier releases did not say it.
    #[serde(default)]
    close: bool,
    /// In which state of the machine the value was found, and those that were met.
    #[serde(default)]
    state: Option<String>,
    #[serde(default)]
    states: Option<BTreeMap<String, Value>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Claim {
    pub(crate) paper: String,
    pub(crate) verdict: String,
    pub(crate) found: String,
    /// In words, and whether it holds.
    #[serde(default)]
    pub(crate) shape: Option<(String, String)>,
}

impl Read {
    /// What became of the paper's claims.
    pub(crate) fn claims(&self) -> Vec<Claim> {
        serde_json::from_value(self.params["claims"].clone()).unwrap_or_default()
    }

    /// The command that measured it.
    pub(crate) fn command(&self) -> String {
        self.params["command"].as_str().map_or_else(|| format!("rem bench {}", self.bench), str::to_owned)
    }

    /// The A/A pairs, a line each.
    pub(crate) fn pairs(&self) -> Vec<String> {
        let of = |control: &Value| {
            let text = |key: &str| control[key].as_str().unwrap_or_default();
            let states = control["ratio"].as_object().into_iter().flatten();
            let state = |(state, ratio): (&String, &Value)| {
                let bound = |key: &str| ratio[key].as_f64().map_or_else(|| "–".to_owned(), figure);
                format!("{state} {} ({} to {})", bound("value"), bound("low"), bound("high"))
            };
            let found: Vec<String> = states.map(state).collect();
            let found = if found.is_empty() { "not measured".to_owned() } else { found.join(", ") };
            let x = control["x"].as_u64().map_or_else(String::new, |x| format!(" {}", bytes(x)));
            format!("{}{x}, {} beside itself: {found}", text("op"), text("series"))
        };
        self.controls.iter().map(of).collect()
    }

    /// Who was measured beside ours, and how they were run.
    pub(crate) fn settings(&self) -> impl Iterator<Item = (&String, String)> {
        let settings = self.params["settings"].as_object().into_iter().flatten();
        settings.map(|(who, how)| (who, how.as_str().map_or_else(|| how.to_string(), str::to_owned)))
    }

    /// The machine that it ran on, in words.
    pub(crate) fn machine(&self) -> String {
        let text = |key: &str| self.machine[key].as_str().unwrap_or("unknown");
        let cores = self.machine["cores"].as_u64().unwrap_or_default();
        format!("{}, {cores} cores, Linux {}", text("cpu"), text("kernel"))
    }
}

impl Bar {
    /// Its verdict; earlier releases had none.
    pub(crate) fn verdict(&self) -> &str {
        self.verdict.as_deref().unwrap_or(if self.holds { "holds" } else { "missed" })
    }

    /// What is said behind the verdict.
    pub(crate) const fn remark(&self) -> &'static str {
        if self.close { ", close" } else { "" }
    }

    /// What was found, with the state of the machine where there were several; its interval, and the limit.
    pub(crate) fn cells(&self) -> [String; 3] {
        let number = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), figure);
        let interval = match (self.low, self.high) {
            (Some(low), Some(high)) if low < high => format!("{} to {}", figure(low), figure(high)),
            _ => "–".to_owned(),
        };
        let sense = if self.sense == "<=" { "≤" } else { "≥" };
        let several = self.states.as_ref().is_some_and(|states| states.len() > 1);
        let state = self.state.as_deref().filter(|_| several).map(|state| format!(" {state}"));
        [number(self.value) + &state.unwrap_or_default(), interval, format!("{sense} {}", figure(self.limit))]
    }
}

/// How many of something came out how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Those that hold.
    pub hold: usize,
    /// Those whose factor was missed, and whose shape holds.
    pub shape: usize,
    /// Those that do not.
    pub fail: usize,
    /// Those that were measured and not decided.
    pub undecided: usize,
    /// Those that were not measured, or are shown by a model only.
    pub other: usize,
}

/// One bench on the page, in short.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Its name on the command line.
    pub bench: String,
    /// The claims of the paper.
    pub claims: Tally,
    /// What was asked of the figures.
    pub bars: Tally,
}

/// Which paper a bench belongs to, in the order of the page.
const PAPERS: [(&str, &[&str]); 5] = [
    (
        "Paper 000: a write cache in persistent memory (NVCache) under unmodified programs, and pages (NVPages)",
        &["nvcache", "nvpages"],
    ),
    (
        "Paper 001: challenges and solutions for fast remote persistent memory access",
        &["pwrite", "bulk", "logserver", "copy-engine", "counter"],
    ),
    (
        "Paper 002: Erda, write-optimised and consistent remote data",
        &["erda", "gateway", "kv-size", "failover"],
    ),
    ("Paper 004: correct remote persistence over RDMA", &["remotelog", "quorum"]),
    (
        "The transport, beside bare sockets and what a user would pick instead",
        &["transport", "load-latency", "verbs", "urdma"],
    ),
];

/// The title of a paper, and the reports that belong to it.
pub(crate) type Paper<'s> = (&'static str, Vec<(Read, &'s Source)>);

/// All reports, by the paper that they belong to: the title, and what there is of it.
///
/// # Errors
/// One sentence that names a file that is no report.
pub(crate) fn all(sources: &[Source]) -> Result<Vec<Paper<'_>>, String> {
    let mut papers: Vec<Paper<'_>> = PAPERS.iter().map(|(title, _)| (*title, Vec::new())).collect();
    papers.push(("More", Vec::new()));
    for source in sources {
        let read: Read = serde_json::from_str(&source.json)
            .map_err(|e| format!("{}: no report of a bench: {e}", source.name))?;
        let paper = PAPERS.iter().position(|(_, benches)| benches.contains(&&read.bench[..]));
        papers[paper.unwrap_or(PAPERS.len())].1.push((read, source));
    }
    let benches = PAPERS.iter().map(|(_, benches)| *benches).chain([&[][..]]);
    for ((_, of), benches) in papers.iter_mut().zip(benches) {
        of.sort_by_cached_key(|(read, _)| {
            (benches.iter().position(|bench| *bench == read.bench), read.bench.clone())
        });
    }
    papers.retain(|(_, of)| !of.is_empty());
    Ok(papers)
}

/// Makes the page.
///
/// # Errors
/// One sentence that names a file that is no report.
pub fn page(sources: &[Source]) -> Result<(String, Vec<Summary>), String> {
    let (mut body, mut summaries) = (String::new(), Vec::new());
    for (title, of) in all(sources)? {
        let _ = writeln!(body, "<h2>{}</h2>", escape(title));
        for (read, source) in of {
            let id = summaries.len();
            summaries.push(section(&mut body, id, &read, source));
        }
    }
    let mut head = String::new();
    let _ = writeln!(head, "<table class=\"sum\"><tr><th>bench<th>claims of the papers<th>bars</tr>");
    let mut total = (Tally::default(), Tally::default());
    for (id, Summary { bench, claims, bars }) in summaries.iter().enumerate() {
        let name = escape(bench);
        total = (total.0.with(claims), total.1.with(bars));
        let _ = writeln!(head, "<tr><td><a href=\"#b{id}\">{name}</a><td>{claims}<td>{bars}</tr>");
    }
    let _ = writeln!(head, "<tr><th>all<th>{}<th>{}</tr>", total.0, total.1);
    head.push_str("</table>\n");
    Ok((format!("{BEFORE}{head}{body}{AFTER}"), summaries))
}

fn section(out: &mut String, id: usize, read: &Read, source: &Source) -> Summary {
    let claims = read.claims();
    let name = escape(&read.bench);
    let _ = writeln!(out, "<section id=\"b{id}\"><h3>{name}</h3>");
    let _ = writeln!(
        out,
        "<p class=\"how\"><code>{}</code><br>{}</p>",
        escape(&read.command()),
        escape(&read.machine())
    );
    // What `remotelog` judges of its paper are bars.
    let (claimed, asked): (Vec<&Bar>, Vec<&Bar>) =
        read.bars.iter().partition(|bar| bar.name.starts_with(CLAIM));
    let (mut tally, mut bars) = (Tally::default(), Tally::default());
    if !claims.is_empty() || !claimed.is_empty() {
        let _ = writeln!(out, "<table><tr><th>the paper says<th><th>found here</tr>");
        for Claim { paper, verdict, found, shape } in &claims {
            let verdict = tally.shown(verdict);
            let _ = write!(out, "<tr><td>{}<td>{verdict}<td>{}", escape(paper), escape(found));
            if let Some((words, holds)) = shape {
                let holds = Tally::default().shown(holds);
                let _ = write!(out, "<br>Shape: {}: {holds}", escape(words));
            }
            out.push_str("</tr>\n");
        }
        for bar in claimed {
            let (verdict, [value, interval, limit]) = (tally.shown(bar.verdict()), bar.cells());
            let paper = escape(bar.name.trim_start_matches(CLAIM));
            let _ = writeln!(
                out,
                "<tr><td>{paper}<td>{verdict}<td class=\"w\">{value} ({interval}), and {limit} is asked</tr>"
            );
        }
        out.push_str("</table>\n");
    }
    if let Some(svg) = source.svg.as_deref().and_then(inner) {
        let _ = writeln!(out, "<figure>{svg}</figure>");
    }
    if !asked.is_empty() {
        let _ = writeln!(
            out,
            "<table><tr><th>asked of the figures<th class=\"n\">found<th class=\"n\">95 %<th class=\"n\">limit<th></tr>"
        );
        for bar in asked {
            let (name, verdict) = (escape(&bar.name), bars.shown(bar.verdict()));
            let [value, interval, limit] = bar.cells().map(|cell| format!("<td class=\"n\">{cell}"));
            let remark = bar.remark();
            let _ = writeln!(out, "<tr><td>{name}{value}{interval}{limit}<td>{verdict}{remark}</tr>");
        }
        out.push_str("</table>\n");
    }
    if let Some(first) = read.verdicts.first() {
        let times = first.verdicts.len();
        let differ: Vec<String> =
            read.verdicts.iter().filter(|one| !one.same).map(|one| escape(&one.bar)).collect();
        let which = if differ.is_empty() { "none".to_owned() } else { differ.join("; ") };
        let _ = writeln!(
            out,
            "<p class=\"how\">Measured {times} times; other verdicts than the last had: {which}</p>"
        );
    }
    for pair in read.pairs() {
        let _ = writeln!(out, "<p class=\"how\">A/A: {}</p>", escape(&pair));
    }
    for (who, how) in read.settings() {
        let _ = writeln!(out, "<p class=\"how\">{}: <code>{}</code></p>", escape(who), escape(&how));
    }
    for (word, lines) in [("too few bursts", &read.lacking), ("not measured", &read.skipped)] {
        for line in lines {
            let _ = writeln!(out, "<p class=\"how\">{word}: {}</p>", escape(line));
        }
    }
    out.push_str("</section>\n");
    Summary { bench: read.bench.clone(), claims: tally, bars }
}

/// What the name of a bar begins with that is a claim of a paper.
const CLAIM: &str = "claim ";

impl Tally {
    /// This one and another one together.
    const fn with(self, other: &Self) -> Self {
        Self {
            hold: self.hold + other.hold,
            shape: self.shape + other.shape,
            fail: self.fail + other.fail,
            undecided: self.undecided + other.undecided,
            other: self.other + other.other,
        }
    }

    /// Counts a verdict of a claim or a bar; what is shown of it in HTML.
    fn shown(&mut self, verdict: &str) -> String {
        let (class, word) = self.count(verdict);
        format!("<span class=\"{class}\">{word}</span>")
    }

    /// Counts a verdict of a claim or a bar: its class, and in words.
    pub(crate) fn count(&mut self, verdict: &str) -> (&'static str, &'static str) {
        match verdict {
            "holds-here" | "holds" => {
                self.hold += 1;
                ("hold", "holds here")
            }
            "holds-in-shape" => {
                self.shape += 1;
                ("hold", "holds in shape")
            }
            "fails-here" | "missed" => {
                self.fail += 1;
                ("fail", "does not hold here")
            }
            "undecided" => {
                self.undecided += 1;
                ("open", "undecided here")
            }
            "model-only" => {
                self.other += 1;
                ("open", "in the model only")
            }
            _ => {
                self.other += 1;
                ("open", "not measured")
            }
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { hold, shape, fail, undecided, other } = self;
        if *self == Self::default() {
            return f.write_str("none");
        }
        let verb = |n: usize, one: &'static str, several: &'static str| if n == 1 { one } else { several };
        let all = [
            (*hold, verb(*hold, "holds", "hold")),
            (*shape, verb(*shape, "holds in shape", "hold in shape")),
            (*fail, verb(*fail, "does not hold", "do not hold")),
            (*undecided, "undecided"),
            (*other, "not measured, or in a model only"),
        ];
        let said = all.into_iter().filter(|(n, _)| *n > 0).map(|(n, words)| format!("{n} {words}"));
        f.write_str(&said.collect::<Vec<_>>().join(", "))
    }
}

/// The figure from its `<svg` on: what a file has before it does not belong into a page. One that does not say what its coordinates are could
/// be cut off only, and not be scaled.
fn inner(svg: &str) -> Option<String> {
    let svg = &svg[svg.find("<svg")?..];
    let (tag, rest) = svg.split_once('>')?;
    let number = |name: &str| {
        let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
        Some(rest.split_once('"')?.0)
    };
    let size = number("width").zip(number("height")).filter(|_| number("viewBox").is_none());
    let view = size.map(|(width, height)| format!(" viewBox=\"0 0 {width} {height}\""));
    Some(format!("{tag}{}>{rest}", view.unwrap_or_default()))
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

const BEFORE: &str = r#"<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Remanence: figures and verdicts</title>
<style>
:root { color-scheme: light dark; --ink: #1b1f24; --ground: #fff; --line: #d4d8dd; --quiet: #57606a;
  --hold: #116329; --fail: #a40e26; --open: #7d4e00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --ground: #14171b; --line: #3a4048; --quiet: #9aa4af;
  --hold: #6fdd8b; --fail: #ff8f8f; --open: #e3b341; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 1100px;
  margin: 0 auto; padding: 1.5em; }
table { border-collapse: collapse; width: 100%; margin: .8em 0; font-size: 14px; }
th, td { text-align: left; vertical-align: top; padding: .35em .7em .35em 0; border-bottom: 1px solid var(--line); }
.n, .w { white-space: nowrap; font-variant-numeric: tabular-nums; } .n { text-align: right; }
.hold { color: var(--hold); } .fail { color: var(--fail); } .open { color: var(--open); }
.hold, .fail, .open { font-weight: 600; white-space: nowrap; }
.how { color: var(--quiet); font-size: 13px; margin: .3em 0; overflow-wrap: anywhere; }
figure { margin: 1em 0; padding: .5em; background: #fff; border: 1px solid var(--line); overflow-x: auto;
  position: relative; left: 50%; transform: translateX(-50%); width: max-content; max-width: calc(100vw - 3em); box-sizing: border-box; }
figure svg { display: block; min-width: 900px; max-width: 100%; height: auto; }
td { overflow-wrap: break-word; } a { color: inherit; }
h3 { margin-bottom: .2em; }
@media print { :root { --ink: #000; --ground: #fff; --line: #999; --quiet: #333; --hold: #064; --fail: #800; --open: #640; }
  body { max-width: none; padding: 0; font-size: 11px; } figure, tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
  table { font-size: 10px; } .how { font-size: 9px; }
  figure { page: figure; border: 0; padding: 0; position: static; transform: none; width: auto; max-width: none; overflow: visible; }
  figure svg { width: 100%; min-width: 0; max-height: 18cm; } }
@page { size: A4; margin: 14mm; }
@page figure { size: A4 landscape; margin: 10mm; }
</style></head><body>
<h1>Figures and verdicts</h1>
<p>What the papers claim, and what became of it on this machine. A claim or a bar holds only where the whole 95 % interval of its ratio does, in
every state of the machine; where the interval has the limit in it, it is undecided. One that is decided by less than half of its interval is
<em>close</em>: another run may leave it undecided. A claim holds in shape where the paper's factor is
missed, and the order, the growth or the crossing that it tells of is here too. Figures are live, on real memory and sockets, unless a
series or a claim says <em>model</em> or <em>simulated</em>. <em>Near</em>, <em>far</em> and <em>unclear</em> are states of the machine, by how long
a cache line takes from one core to another; <em>any</em> is of one core alone.</p>
"#;
const AFTER: &str = "</body></html>\n";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::{self, Verdict};
    use crate::report::{self, Report, Sense};

    fn source(bench: &'static str) -> Source {
        let claim = claims::Claim::new("5.2: a < b & c", Verdict::FailsHere, "1.50 x");
        let ahead = claims::Shape::new("a before b").and(Some(0.9), Sense::AtMost, 1.0);
        let params = serde_json::json!({ "claims": [claim.clone(), claim.or_in_shape(ahead)] });
        let bars = vec![
            report::Bar::new("the first", Some(0.5), Sense::AtMost, 1.0),
            report::Bar::new("the second", None::<f64>, Sense::AtMost, 1.0),
            report::Bar::new("claim 4.3: c < d", Some(2.0), Sense::AtMost, 1.0),
        ];
        let report = Report::of_rows(bench, params, Vec::new(), bars, vec!["redis: not installed".into()]);
        let svg = Some("<?xml version=\"1.0\"?>\n<svg width=\"30\" height=\"20\"><g/></svg>".to_owned());
        Source { name: format!("{bench}.json"), json: report.json(), svg }
    }

    #[test]
    fn a_page_has_each_claim_and_bar_with_its_verdict_and_the_figure_beside_it() {
        let (html, summaries) = page(&[source("transport"), source("erda")]).unwrap();
        for part in [
            "5.2: a &lt; b &amp; c",
            "does not hold here",
            "holds here",
            "holds in shape",
            "Shape: a before b: <span class=\"hold\">holds here",
            "not measured",
            "<figure><svg width=\"30\" height=\"20\" viewBox=\"0 0 30 20\"><g/></svg></figure>",
            "<td>4.3: c &lt; d<td><span class=\"fail\">does not hold here",
            "redis: not installed",
        ] {
            assert!(html.contains(part), "no {part}");
        }
        assert!(html.contains("<p class=\"how\"><code>rem") && !html.contains("<?xml"));
        let order: Vec<&str> = summaries.iter().map(|one| &one.bench[..]).collect();
        assert_eq!(order, ["erda", "transport"], "papers come in their order");
        assert_eq!(summaries[0].bars, Tally { hold: 1, other: 1, ..Tally::default() });
        assert_eq!(summaries[0].claims, Tally { fail: 2, shape: 1, ..Tally::default() });
        // All of them together, and each where its link goes.
        assert!(
            html.contains("<th>2 hold in shape, 4 do not hold")
                && html.contains("<th>2 hold, 2 not measured"),
            "{html}"
        );
        assert!(
            html.contains("<a href=\"#b1\">transport") && html.contains("<section id=\"b1\"><h3>transport")
        );
        assert!(html.find("<figure>") < html.find("asked of the figures"), "a figure is beside the claims");
        assert!(summaries[0].claims.to_string().contains("1 holds in shape"));
    }

    #[test]
    fn a_bench_that_was_repeated_says_which_verdicts_were_not_the_same() {
        let mut one = source("counter");
        let mut json: Value = serde_json::from_str(&one.json).expect("JSON");
        let verdict = |bar: &str, same: bool| serde_json::json!({ "bar": bar, "verdicts": ["holds", null, "missed"], "same": same });
        json["verdicts"] = serde_json::json!([verdict("the first", true), verdict("a < b", false)]);
        one.json = json.to_string();
        let (html, _) = page(&[one]).expect("a report");
        assert!(html.contains("Measured 3 times; other verdicts than the last had: a &lt; b</p>"), "{html}");
    }

    #[test]
    fn two_reports_of_one_bench_are_two_sections() {
        let (html, summaries) = page(&[source("mine"), source("mine"), source("counter")]).expect("reports");
        assert_eq!(summaries.len(), 3);
        assert_eq!((html.matches("<section id=\"b1\">").count(), html.matches("<h3>mine").count()), (1, 2));
    }

    #[test]
    fn what_is_no_report_is_named() {
        let bad = Source { name: "notes.json".into(), json: "{}".into(), svg: None };
        assert!(page(&[bad]).is_err_and(|why| why.contains("notes.json")));
    }
}
