//! One bench several times: whether each bar has the same verdict each time.

use std::fmt::Write as _;

use comfy_table::{Table, presets};
use serde_json::{Value, json};

use crate::stats::Judgement;

/// The reports of one bench, in the order in which they were made.
#[derive(Clone, Debug, Default)]
pub struct Repeated {
    /// As they were written, and as they are read.
    texts: Vec<String>,
    reports: Vec<Value>,
    /// Which of them lack something, counted from one.
    lacking: Vec<usize>,
}

impl Repeated {
    /// Adds what a repetition wrote as JSON, and whether all of it was measured.
    ///
    /// # Errors
    /// One sentence: it is no report.
    pub fn add(&mut self, text: String, is_whole: bool) -> Result<(), String> {
        let report: Value =
            serde_json::from_str(&text).map_err(|e| format!("a report cannot be read: {e}"))?;
        if !report["bars"].is_array() {
            return Err("a report has no bars".to_owned());
        }
        self.reports.push(report);
        self.texts.push(text);
        if !is_whole {
            self.lacking.push(self.reports.len());
        }
        Ok(())
    }

    /// The bars by name, in the order of their first appearance, with the verdict of each repetition that has them.
    fn verdicts(&self) -> Vec<(&str, Vec<Option<&str>>)> {
        let mut all: Vec<(&str, Vec<Option<&str>>)> = Vec::new();
        for (n, report) in self.reports.iter().enumerate() {
            for bar in report["bars"].as_array().into_iter().flatten() {
                let name = bar["name"].as_str().unwrap_or_default();
                let at = all.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
                    all.push((name, vec![None; self.reports.len()]));
                    all.len() - 1
                });
                all[at].1[n] = bar["verdict"].as_str();
            }
        }
        all
    }

    /// A table of the verdicts, and which of them differ.
    #[must_use]
    pub fn text(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        let numbers = (1..=self.reports.len()).map(|n| n.to_string());
        table.set_header(["bar".to_owned()].into_iter().chain(numbers).chain([String::new()]));
        let all = self.verdicts();
        let mut differ = Vec::new();
        for (name, verdicts) in &all {
            let same = is_one(verdicts);
            if !same {
                differ.push(*name);
            }
            let words = verdicts.iter().map(|verdict| verdict.map_or("-", word).to_owned());
            let mark = if same { "" } else { "differs" };
            table.add_row([(*name).to_owned()].into_iter().chain(words).chain([mark.to_owned()]));
        }
        let times = self.reports.len();
        let mut out = format!("{table}\n");
        let _ = match differ.len() {
            0 => writeln!(out, "each of {} bars has the same verdict {times} times", all.len()),
            n => writeln!(out, "{n} of {} bars have different verdicts: {}", all.len(), differ.join("; ")),
        };
        let against = all.iter().filter(|(_, verdicts)| contradict(verdicts)).map(|(name, _)| *name);
        let against: Vec<&str> = against.collect();
        if !against.is_empty() {
            let _ = writeln!(out, "of these hold in one and are missed in another: {}", against.join("; "));
        }
        out
    }

    /// One report as it is; of several the last one, as its figure is the one that was drawn last, with all of them as `repetitions`, and the `verdicts` of each bar.
    #[must_use]
    pub fn json(&self) -> String {
        if let [text] = &self.texts[..] {
            return text.clone();
        }
        let verdicts = self.verdicts();
        let each = verdicts
            .iter()
            .map(|(name, verdicts)| json!({ "bar": name, "verdicts": verdicts, "same": is_one(verdicts) }));
        let mut report = self.reports.last().cloned().unwrap_or_default();
        report["verdicts"] = each.collect::<Vec<_>>().into();
        report["repetitions"] = self.reports.clone().into();
        serde_json::to_string_pretty(&report).expect("a report is plain data") + "\n"
    }

    /// Whether all was measured each time. Verdicts that differ are a result.
    ///
    /// # Errors
    /// One sentence that says in which repetitions something was not.
    pub fn whole(&self) -> Result<(), String> {
        if self.lacking.is_empty() {
            return Ok(());
        }
        let which: Vec<String> = self.lacking.iter().map(ToString::to_string).collect();
        Err(format!("something was not measured in repetition {}; each says above what", which.join(", ")))
    }
}

fn is_one(verdicts: &[Option<&str>]) -> bool {
    verdicts.windows(2).all(|two| two[0] == two[1])
}

/// Whether one run says that it holds, and another one that it does not: more than that one of them could not decide it.
fn contradict(verdicts: &[Option<&str>]) -> bool {
    ["holds", "missed"].iter().all(|word| verdicts.contains(&Some(word)))
}

/// A verdict of a report as tables have it.
fn word(verdict: &str) -> &str {
    let all = [Judgement::Holds, Judgement::Missed, Judgement::Undecided, Judgement::NotMeasured];
    let is = |known: &Judgement| serde_json::to_value(known).is_ok_and(|value| value == verdict);
    all.iter().find(|known| is(known)).map_or(verdict, |known| known.word())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Bar, Report, Sense};

    fn repeated(values: &[[Option<f64>; 2]]) -> Repeated {
        let mut repeated = Repeated::default();
        for [one, two] in values {
            let bar = |name, value: Option<f64>| Bar::new(name, value, Sense::AtMost, 1.0);
            let bars = vec![bar("one", *one), bar("two", *two)];
            let report = Report::of_rows("a", json!({}), Vec::new(), bars, Vec::new());
            repeated.add(report.json(), report.whole().is_ok()).expect("a report");
        }
        repeated
    }

    #[test]
    fn verdicts_that_differ_are_named_and_are_no_failure() {
        let twice = repeated(&[[Some(0.5), Some(0.5)], [Some(0.6), Some(2.0)]]);
        let text = twice.text();
        assert!(text.contains("1 of 2 bars have different verdicts: two\n"), "{text}");
        assert!(text.contains("MISSED") && text.matches("differs").count() == 1, "{text}");
        assert!(text.ends_with("of these hold in one and are missed in another: two\n"), "{text}");
        assert!(!contradict(&[Some("holds"), Some("undecided"), None]));
        assert_eq!(twice.whole(), Ok(()));
        let json: Value = serde_json::from_str(&twice.json()).expect("JSON");
        assert_eq!(json["bench"], "a");
        assert_eq!(json["repetitions"].as_array().map(Vec::len), Some(2));
        assert_eq!(json["verdicts"][0]["same"], true);
        assert_eq!(json["verdicts"][1]["same"], false);
    }

    #[test]
    fn the_same_verdicts_are_said_to_be_the_same() {
        let text = repeated(&[[Some(0.5), Some(2.0)], [Some(0.6), Some(3.0)], [Some(0.7), Some(4.0)]]).text();
        assert!(text.contains("each of 2 bars has the same verdict 3 times"), "{text}");
        assert!(!text.contains("differ"), "{text}");
    }

    #[test]
    fn what_was_not_measured_once_is_a_failure() {
        let why = repeated(&[[Some(0.5), Some(0.5)], [Some(0.5), None]]).whole().unwrap_err();
        assert!(why.contains("in repetition 2;"), "{why}");
        assert!(["{}", "no"].iter().all(|text| Repeated::default().add((*text).to_owned(), true).is_err()));
    }
}
