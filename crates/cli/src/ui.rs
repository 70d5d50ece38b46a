//! What people see: aligned, calm, coloured only where stdout is a terminal.

use std::fmt::Display;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressStyle};

use crate::fail::{Context as _, Fail};

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();

/// How good the news of a line is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mood {
    /// As it should be.
    Good,
    /// Nothing is wrong, but the reader should know of it.
    Note,
    /// Not there; nothing is broken.
    Absent,
    /// Something is wrong.
    Bad,
}

impl Mood {
    const fn mark(self) -> (&'static str, Style) {
        match self {
            Self::Good => ("✓", AnsiColor::Green.on_default()),
            Self::Note => ("•", AnsiColor::Yellow.on_default()),
            Self::Absent => ("·", DIM),
            Self::Bad => ("✗", AnsiColor::Red.on_default().bold()),
        }
    }
}

/// Prints a line. A command whose words go nowhere ends: quietly where nobody reads any more, and else with a sentence.
pub(crate) fn print(line: impl Display) {
    let mut out = anstream::stdout().lock();
    if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        anstream::eprintln!("rem: standard output cannot be written: {error}");
        std::process::exit(1);
    }
}

/// A heading over lines.
pub(crate) fn heading(text: impl Display) {
    print(format_args!("\n{BOLD}{text}{BOLD:#}"));
}

/// A marked line with a name and what is to be said of it; long texts continue under themselves.
pub(crate) fn line(mood: Mood, name: &str, text: impl Display) {
    let (mark, style) = mood.mark();
    let text = text.to_string();
    let mut rows = wrap(&text, width().saturating_sub(NAME + 5).max(30)).into_iter();
    let first = rows.next().unwrap_or_default();
    print(format_args!("  {style}{mark}{style:#} {name:<NAME$} {first}"));
    for row in rows {
        print(format_args!("    {:<NAME$} {row}", ""));
    }
}

/// A remark in a lighter colour.
pub(crate) fn remark(text: impl Display) {
    print(format_args!("{DIM}{text}{DIM:#}"));
}

/// The width of the name column.
const NAME: usize = 20;

fn width() -> usize {
    console::Term::stdout().size_checked().map_or(110, |(_, columns)| usize::from(columns)).clamp(60, 120)
}

/// Breaks a text into rows of at most `width` characters, between words.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut rows: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match rows.last_mut() {
            Some(row) if row.chars().count() + 1 + word.chars().count() <= width => {
                row.push(' ');
                row.push_str(word);
            }
            _ => rows.push(word.to_owned()),
        }
    }
    rows
}

/// Bytes for people: `1.5 GiB`.
pub(crate) fn bytes(n: u64) -> String {
    let unit = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]
        .into_iter()
        .find(|(unit, _)| n >= *unit);
    match unit {
        Some((unit, name)) => {
            let value = n as f64 / unit as f64;
            let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
            format!("{value:.digits$} {name}")
        }
        None => format!("{n} bytes"),
    }
}

/// A duration for people: three digits and a fitting unit.
pub(crate) fn time(t: Duration) -> String {
    let nanos = t.as_nanos() as f64;
    let (value, unit) = match nanos {
        n if n < 1e3 => return format!("{n:.0} ns"),
        n if n < 1e6 => (n / 1e3, "µs"),
        n if n < 1e9 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

/// Bytes per second for people.
pub(crate) fn rate(n: u64, t: Duration) -> String {
    format!("{:.0} MB/s", n as f64 / 1e6 / t.as_secs_f64().max(1e-9))
}

/// `1 file`, `2 files`.
pub(crate) fn count(n: usize, one: &str) -> String {
    format!("{n} {one}{}", if n == 1 { "" } else { "s" })
}

/// `1 of 3 values is`, `2 of 3 values are`.
pub(crate) fn part(n: u64, of: u64, one: &str) -> String {
    let of = count(usize::try_from(of).unwrap_or(usize::MAX), one);
    format!("{n} of {of} {}", if n == 1 { "is" } else { "are" })
}

/// `once`, `2 times`.
pub(crate) fn times(n: u64) -> String {
    if n == 1 { "once".into() } else { format!("{n} times") }
}

/// `a`, `a and b`, `a, b and c`.
pub(crate) fn list(names: &[&str]) -> String {
    match names {
        [] => "none".into(),
        [one] => (*one).into(),
        [head @ .., last] => format!("{} and {last}", head.join(", ")),
    }
}

/// A JSON object, for programs; indented, as people read it too.
pub(crate) fn print_json(value: &serde_json::Value) -> Result<(), Fail> {
    let mut out = std::io::stdout().lock();
    let written = serde_json::to_writer_pretty(&mut out, value).map_err(std::io::Error::from);
    written.and_then(|()| writeln!(out)).context(|| "standard output cannot be written".into())
}

/// Progress on stderr, if somebody sees it.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// For so many bytes, if it is known.
    pub(crate) fn bytes(total: Option<u64>, quiet: bool) -> Self {
        if quiet || !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let this = Self(ProgressBar::new(0));
        match total {
            Some(total) => this.begin(total),
            None => this.0.set_style(style("{spinner} {bytes:>11}  {binary_bytes_per_sec}")),
        }
        this
    }

    /// For so many things of one kind.
    pub(crate) fn items(total: u64, what: &str, quiet: bool) -> Self {
        if quiet || !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(total).with_message(what.to_owned());
        bar.set_style(style("{wide_bar:.cyan/dim} {pos:>6} of {len} {msg}  {eta:>4} left"));
        Self(bar)
    }

    /// Begins (again) with a known number of bytes.
    pub(crate) fn begin(&self, total: u64) {
        self.0.set_style(style(
            "{wide_bar:.cyan/dim} {bytes:>11} of {total_bytes}  {binary_bytes_per_sec:>12}",
        ));
        self.0.set_length(total);
        self.0.set_position(0);
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// A remark on stderr, above the bar.
    pub(crate) fn say(&self, text: impl Display) {
        self.0.suspend(|| anstream::eprintln!("rem: {text}"));
    }

    /// Says something on stdout, above the bar.
    pub(crate) fn around(&self, say: impl FnOnce()) {
        self.0.suspend(say);
    }

    pub(crate) fn done(&self) {
        self.0.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("a constant template").progress_chars("━━─")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        assert_eq!(
            [999, 1024, 1536, 150 << 20, 3 << 30].map(bytes),
            ["999 bytes", "1.00 KiB", "1.50 KiB", "150 MiB", "3.00 GiB"]
        );
        assert_eq!(
            [5, 1_500, 25_000, 250_000_000, 3_000_000_000].map(|n| time(Duration::from_nanos(n))),
            ["5 ns", "1.50 µs", "25.0 µs", "250 ms", "3.00 s"]
        );
    }

    #[test]
    fn rows_break_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("unbreakable", 4), ["unbreakable"]);
    }
}
