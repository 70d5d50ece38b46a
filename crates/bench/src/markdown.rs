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
                let _ = writeln!(
                    sections,
                    "| {} | {value} | {interval} | {limit} | {verdict} |",
                    cell(&bar.name)
                );
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
    use crate::report::{Bar, Report, Sense};

    #[test]
    fn each_bar_and_claim_is_a_row_with_its_verdict() {
        let params =
            serde_json::json!({ "claims": [Claim::new("5.2: a | b", Verdict::FailsHere, "1.50 x")] });
        let bars = vec![Bar::new("the first", Some(0.5), Sense::AtMost, 1.0)];
        let report = Report::of_rows("erda", params, Vec::new(), bars, vec!["redis: not installed".into()]);
        let source = Source { name: "erda.json".into(), json: report.json(), svg: Some("<svg/>".into()) };
        let page = markdown(&[source]).expect("a report");
        for part in [
            "| [erda](#erda) ([figure](erda.svg)) | `rem",
            "| the first | 0.500 | – | ≤ 1.00 | holds here |",
            "| 5.2: a \\| b | does not hold here | 1.50 x |",
            "Not measured: redis: not installed.",
        ] {
            assert!(page.contains(part), "no {part} in {page}");
        }
    }
}
