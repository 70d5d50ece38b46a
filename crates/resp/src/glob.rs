//! Patterns of KEYS, SCAN and CONFIG GET: `stringmatchlen` of Redis, without its exponential worst case.
//!
//! `*` any bytes, `?` one byte, `[a-z]` and `[^a-z]` one byte of a class, `\` the next byte itself. As there, a class that
//! nothing closes ends with the pattern, and a range may be given backwards.

/// Whether all of `text` matches `pattern`.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
    let (mut matching, mut endless) = (Matching::default(), usize::MAX);
    loop {
        if let Some(matches) = matching.go_on(pattern, text, ignore_case, &mut endless) {
            return matches;
        }
        endless = usize::MAX;
    }
}

/// How far a text has been matched with a pattern: for those of which others choose how long they are.
#[derive(Clone, Copy, Default, Debug)]
pub struct Matching {
    /// How much of the pattern fits how much of the text.
    p: usize,
    t: usize,
    /// Where the last star stood, and how much of the text it has taken so far. Only the last one can need to take more:
    /// whatever an earlier one took, the later one could make up for.
    star: Option<(usize, usize)>,
}

impl Matching {
    /// Goes on with so many bytes of the pattern at most, about, which are counted down. `None`: there is more to look at.
    pub fn go_on(
        &mut self,
        pattern: &[u8],
        text: &[u8],
        ignore_case: bool,
        left: &mut usize,
    ) -> Option<bool> {
        let fold = |byte: u8| if ignore_case { byte.to_ascii_lowercase() } else { byte };
        // As there: nothing but the empty pattern takes an empty text. What `*` alone lets through, KEYS and SCAN do not look at.
        if text.is_empty() {
            return Some(pattern.is_empty());
        }
        let Self { p, t, star } = self;
        while *left > 0 {
            *left -= 1;
            if pattern.get(*p) == Some(&b'*') {
                *star = Some((*p + 1, *t));
                *p += 1;
                continue;
            }
            if *t == text.len() && *p >= pattern.len() {
                return Some(true);
            }
            if *t < text.len() && *p < pattern.len() {
                let (hit, after) = one(pattern, *p, text[*t], fold);
                *left = left.saturating_sub(after - *p - 1);
                if hit {
                    *p = after;
                    *t += 1;
                    continue;
                }
            }
            match *star {
                Some((after, taken)) if taken < text.len() => {
                    *star = Some((after, taken + 1));
                    *p = after;
                    *t = taken + 1;
                }
                _ => return Some(false),
            }
        }
        None
    }
}

/// Whether the element of the pattern at `at` takes `byte`, and where the next one is.
fn one(pattern: &[u8], at: usize, byte: u8, fold: impl Fn(u8) -> u8) -> (bool, usize) {
    match pattern[at] {
        b'?' => (true, at + 1),
        b'[' => class(pattern, at + 1, byte, fold),
        b'\\' if at + 1 < pattern.len() => (fold(pattern[at + 1]) == fold(byte), at + 2),
        literal => (fold(literal) == fold(byte), at + 1),
    }
}

fn class(pattern: &[u8], mut at: usize, byte: u8, fold: impl Fn(u8) -> u8) -> (bool, usize) {
    let negated = pattern.get(at) == Some(&b'^');
    at += usize::from(negated);
    let mut hit = false;
    loop {
        match pattern[at.min(pattern.len())..] {
            [] => break,
            [b'\\', escaped, ..] => {
                hit |= escaped == byte;
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [from, b'-', to, ..] => {
                let (low, high) = (from.min(to), from.max(to));
                hit |= (fold(low)..=fold(high)).contains(&fold(byte));
                at += 3;
            }
            [literal, ..] => {
                hit |= fold(literal) == fold(byte);
                at += 1;
            }
        }
    }
    (hit != negated, at)
}

#[cfg(test)]
mod tests {
    use super::{Matching, matches};

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", false),
            ("**", "", false),
            ("*", "anything", true),
            ("a*c", "abbc", true),
            ("a*c", "abb", false),
            ("a**c", "ac", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h\\*", "h*", true),
            ("h\\*", "hx", false),
            ("[\\]]", "]", true),
            ("[abc", "b", true),
            ("[", "x", false),
            ("a\\", "a\\", true),
            ("*a*b*c", "xxaxxbxxc", true),
            ("*a*b*c", "xxaxxcxxb", false),
            ("HELLO", "hello", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes(), false), expected, "{pattern} {text}");
            // However little at a time.
            let mut matching = Matching::default();
            let found =
                (0..100).find_map(|_| matching.go_on(pattern.as_bytes(), text.as_bytes(), false, &mut 1));
            assert_eq!(found, Some(expected), "{pattern} {text}");
        }
        assert!(matches(b"MaxMem*", b"maxmemory", true));
    }

    #[test]
    fn stars_do_not_explode() {
        let pattern = b"a*".repeat(1000);
        let text = vec![b'a'; 20_000];
        assert!(!matches(&[&pattern[..], b"b"].concat(), &text, false));
    }
}
