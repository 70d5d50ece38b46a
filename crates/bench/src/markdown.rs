//! What benches found as a Markdown page, for a repository that keeps their JSON and their figures: a table of all, and of each its bars and its claims.
//!
//! It is made of the same JSON as the HTML [`page`](crate::page), and says the same verdicts in the same order.

use std::fmt::Write as _;

use crate::page::{Source, Tally, all};

const BEFORE: &str = "\
# Figures

`rem report --markdown docs/figures/README.md` makes this page of the JSON files beside it, and `rem report` one of HTML, with the figures in
it. What the words and the columns mean stands in [benches.md](../benches.md). Everything is live, over real sockets or memory, unless a row says
*simulated* or *model*. Each bench says on which machine it ran, with nothing else running.

A ratio stands with its 95 % interval: 1.30 x (1.28 to 1.34). It holds, or does not, where the whole interval is on one side of the limit, in every
*state of the machine*: a cache line takes less than 200 ns from one core to the other and back (*near*), more than 300 ns (*far*), or something in
between (*unclear*, which on some machines is all there is). A state is named where several were met, and a bar has the value of the worse one. What is
decided by less than half of its interval is *close*: another run may leave it undecided. A claim holds *in shape* where the paper's factor is missed, and the
order or the growth that it tells of is here too.

| bench | command | claims of the papers | bars |
|---|---|---|---|
";

/// Makes the page. The figure of `NAME.json` is `NAME.svg`, in the same directory as the page.
///
/// # Errors
/// One sentence that names a file that is no report.
pub fn markdown(sources: &[Source]) -> Result<String, String> {
    let mut table = BEFORE.to_owned();
    let mut sections = String::new();
    for (_, benches) in all(sources)? {
        for (read, source) in benches {
            let name = &read.bench;
            let (mut claims, mut bars) = (Tally::default(), Tally::default());
            let _ = writeln!(sections, "\n## {name}\n\n{}\n", read.machine());
            if source.svg.is_some() {
                let _ = writeln!(sections, "![{name}]({name}.svg)\n");
            }
            if !read.bars.is_empty() {
                sections.push_str("| bar | value | 95 % | limit | verdict |\n|---|---|---|---|---|\n");
            }
            for bar in &read.bars {
                let [value, interval, limit] = bar.cells();
                let (_, verdict) = bars.count(bar.verdict());
                let (name, remark) = (cell(&bar.name), bar.remark());
                let _ = writeln!(sections, "| {name} | {value} | {interval} | {limit} | {verdict}{remark} |");
            }
            let claimed = read.claims();
            if !claimed.is_empty() {
                sections.push_str("\n| claim of the paper | here | why |\n|---|---|---|\n");
            }
            for claim in &claimed {
                let (_, verdict) = claims.count(&claim.verdict);
                let shape = claim.shape.as_ref().map_or_else(String::new, |(words, holds)| {
                    format!("; shape: {words}: {}", Tally::default().count(holds).1)
                });
                let _ = writeln!(
                    sections,
                    "| {} | {verdict} | {}{} |",
                    cell(&claim.paper),
                    cell(&claim.found),
                    cell(&shape)
                );
            }
            let pairs = read.pairs();
            if !pairs.is_empty() {
                let _ = writeln!(sections, "\nThe same twice (A/A): {}.", cell(&pairs.join("; ")));
            }
            for (who, how) in read.settings() {
                let _ = writeln!(sections, "\n{}: `{}`", cell(who), cell(&how));
            }
            for (word, lines) in [("Too few bursts", &read.lacking), ("Not measured", &read.skipped)] {
                for line in lines {
                    let _ = writeln!(sections, "\n{word}: {}.", cell(line));
                }
            }
            let figure =
                if source.svg.is_some() { format!(" ([figure]({name}.svg))") } else { String::new() };
            let _ = writeln!(
                table,
                "| [{name}](#{name}){figure} | `{}` | {claims} | {bars} |",
                cell(&read.command())
            );
        }
    }
    Ok(table + &sections)
}

/// A text that ends no cell and no row of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::{Claim, Verdict};
    use crate::machine::State;
    use crate::report::{Bar, Control, Report, Sense};
    use crate::stats::{Estimate, Interval, LEAST};

    #[test]
    fn each_bar_and_claim_is_a_row_with_its_verdict() {
        let params = serde_json::json!({
            "claims": [Claim::new("5.2: a | b", Verdict::FailsHere, "1.50 x")],
            "settings": { "UCX": "ucx_perftest -p PORT" },
        });
        let near = Interval { value: 0.9, low: 0.8, high: 0.99, n: LEAST };
        let ratio = Estimate::by_state(|state| match state {
            State::Near => Some(near),
            State::Far => Some(near.map(|value| value / 2.0)),
            _ => None,
        });
        let bars = vec![
            Bar::new("the first", Some(0.5), Sense::AtMost, 1.0),
            Bar::new("the second", ratio, Sense::AtMost, 1.0),
        ];
        let mut report =
            Report::of_rows("erda", params, Vec::new(), bars, vec!["redis: not installed".into()]);
        let (op, series) = ("get".to_owned(), "ours".to_owned());
        report.controls = vec![Control { op, x: 64, series, metric: "latency", ratio }];
        let source = Source { name: "erda.json".into(), json: report.json(), svg: Some("<svg/>".into()) };
        let page = markdown(&[source]).expect("a report");
        for part in [
            "| [erda](#erda) ([figure](erda.svg)) | `rem",
            "| the first | 0.500 | – | ≤ 1.00 | holds here |",
            "| the second | 0.900 near | 0.800 to 0.990 | ≤ 1.00 | holds here, close |",
            "(A/A): get 64, ours beside itself: ",
            "near 0.900 (0.800 to 0.990)",
            "UCX: `ucx_perftest -p PORT`",
            "| 5.2: a \\| b | does not hold here | 1.50 x |",
            "Not measured: redis: not installed.",
        ] {
            assert!(page.contains(part), "no {part} in {page}");
        }
    }
}
