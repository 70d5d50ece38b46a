//! What of a bench is measured where its user has named some of it (`--only`).
//!
//! A word is part of the name of an operation or a series, or of a part that a bench has; one that is in none of these is part of a bar's, and stands for
//! what that is made of. Nobody lists what there is a second time: a
//! bench that is given words goes through one block first in which nothing is measured, and whatever asks there whether it
//! [is wanted](crate::samples::Samples::wants) is known from then on. What a bar is made of is found by leaving points out until it has no value.

use std::collections::{BTreeMap, BTreeSet};

use crate::samples::Key;

/// Points, and the part of the bench that each belongs to.
pub(crate) type Points = BTreeMap<Key, &'static str>;

/// What is measured.
#[derive(Clone, Debug, Default)]
pub(crate) enum Only {
    /// All of it.
    #[default]
    All,
    /// What has one of these words in its name. What there is is being listed.
    Listed { words: Vec<String> },
    /// The same: these points. Some of the words name bars.
    These { words: Vec<String>, wanted: Points, bars: Vec<String> },
}

impl Only {
    /// What these words name, whatever their case; all, if there are none.
    pub(crate) fn new(words: &[String]) -> Self {
        let words: Vec<String> = words.iter().map(|word| word.trim().to_lowercase()).collect();
        if words.is_empty() { Self::All } else { Self::Listed { words } }
    }

    pub(crate) fn words(&self) -> &[String] {
        match self {
            Self::All => &[],
            Self::Listed { words } | Self::These { words, .. } => words,
        }
    }

    /// Whether a bar was asked for by its name.
    pub(crate) fn names(&self, bar: &str) -> bool {
        matches!(self, Self::These { bars, .. } if is_in(bar, bars))
    }

    /// Whether a point is measured.
    pub(crate) fn wants(&self, key: &Key) -> bool {
        match self {
            Self::All => true,
            Self::Listed { .. } => false,
            Self::These { wanted, .. } => wanted.contains_key(key),
        }
    }
}

fn has(name: &str, word: &str) -> bool {
    name.to_lowercase().contains(word)
}

/// Whether one of these words is in a name.
pub(crate) fn is_in(name: &str, words: &[String]) -> bool {
    words.iter().any(|word| has(name, word))
}

/// The points that these words name, and those of the words that name bars.
///
/// # Errors
/// What there is, where a word names nothing.
pub(crate) fn named(
    words: &[String],
    known: &Points,
    bars: BTreeSet<String>,
) -> Result<(Points, Vec<String>), String> {
    let all = |name: fn(&Key, &str) -> String| {
        known.iter().map(|(key, part)| name(key, part)).collect::<BTreeSet<String>>()
    };
    let there = [
        ("parts", all(|_, part| part.to_owned())),
        ("operations", all(|key, _| key.op.clone())),
        ("series", all(|key, _| key.series.clone())),
        ("bars", bars),
    ];
    let kinds = |word: &str| there.each_ref().map(|(_, names)| names.iter().any(|name| has(name, word)));
    if let Some(word) = words.iter().find(|word| !kinds(word).contains(&true)) {
        let some = there.iter().filter(|(_, names)| names.iter().any(|name| !name.is_empty()));
        let line = |(kind, names): &(&str, BTreeSet<String>)| {
            format!("{kind}: {}", names.iter().map(|name| &name[..]).collect::<Vec<_>>().join("; "))
        };
        let lines: Vec<String> = some.map(line).collect();
        return Err(format!(
            "--only: nothing here has {word:?} in its name; there are {}",
            lines.join(" | ")
        ));
    }
    let (of_points, of_bars): (Vec<String>, Vec<String>) =
        words.iter().cloned().partition(|word| kinds(word)[..3].contains(&true));
    let is = |key: &Key, part: &str| {
        [&key.op[..], &key.series[..], part].into_iter().any(|name| is_in(name, &of_points))
    };
    let points = known.iter().filter(|(key, part)| is(key, part));
    Ok((points.map(|(key, part)| (key.clone(), *part)).collect(), of_bars))
}

/// Those of a group, which is in order, without which something is not `there` any more, where it needs each of them.
pub(crate) fn needed(all: &Points, group: &[&Key], there: &impl Fn(&Points) -> bool) -> Vec<Key> {
    let mut without = all.clone();
    without.retain(|key, _| group.binary_search(&key).is_err());
    match group {
        [] => Vec::new(),
        _ if there(&without) => Vec::new(),
        [key] => vec![(*key).clone()],
        _ => {
            let (a, b) = group.split_at(group.len() / 2);
            [needed(all, a, there), needed(all, b, there)].concat()
        }
    }
}
