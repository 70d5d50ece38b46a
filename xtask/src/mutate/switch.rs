//! Many mutations in one build: each function that some of them change gets their bodies beside its own, and the environment says which
//! one runs. What then is built once would else be built for each mutation, and simulations in it can be fast.
//!
//! Sources are text here. Only what tells a function from the rest of a file is understood: braces, strings, comments.

use std::collections::BTreeMap;
use std::ops::Range;

use super::table::Mutation;

/// What says which mutation is made: its place among those that were built, from 1 on.
pub(super) const WHICH: &str = "REMANENCE_MUTATION";

/// The functions of a file that get bodies beside their own, by where their own are: each with the mutation that it is of.
type Functions = BTreeMap<(usize, usize), Vec<(usize, String)>>;

/// The sources in which each of these can be made, of those files that some of them change.
///
/// # Errors
/// One of them changes what is in no function.
pub(super) fn all(
    chosen: &[&Mutation],
    read: impl Fn(&str) -> Result<String, String>,
) -> Result<BTreeMap<String, String>, String> {
    let mut changed: BTreeMap<&str, Functions> = BTreeMap::new();
    let mut texts = BTreeMap::new();
    for (n, mutation) in chosen.iter().enumerate() {
        for edit in &mutation.edits {
            let text = match texts.get(&edit.file[..]) {
                Some(text) => text,
                None => texts.entry(&edit.file[..]).or_insert(read(&edit.file)?),
            };
            edit.apply(text)?;
            let at = text.find(&edit.old).expect("it applies");
            let body = body(text, at..at + edit.old.len())
                .ok_or_else(|| format!("{}: what it changes is in no function", mutation.name))?;
            let bodies = changed.entry(&edit.file).or_default().entry((body.start, body.end)).or_default();
            // A second edit of the same function.
            match bodies.last_mut().filter(|(which, _)| *which == n + 1) {
                Some((_, before)) => *before = edit.apply(before)?,
                None => bodies.push((n + 1, edit.apply(&text[body])?)),
            }
        }
    }
    let with = |(file, functions): (&str, Functions)| {
        let mut text = texts[file].clone();
        for ((start, end), bodies) in functions.into_iter().rev() {
            let own = text[start..end].to_owned();
            text.replace_range(start..end, &switched(&own, &bodies));
            forget_const(&mut text, start);
        }
        (file.to_owned(), text)
    };
    Ok(changed.into_iter().map(with).collect())
}

/// A body that is one of several.
fn switched(own: &str, bodies: &[(usize, String)]) -> String {
    let arms: String = bodies.iter().map(|(which, body)| format!("{which} => {body}\n")).collect();
    format!(
        "{{\nstatic WHICH: std::sync::LazyLock<usize> = std::sync::LazyLock::new(|| \
         std::env::var(\"{WHICH}\").map_or(0, |which| which.parse().expect(\"a number\")));\n\
         match *WHICH {{\n{arms}_ => {own}\n}}\n}}"
    )
}

/// A function that looks at the environment is not `const`.
fn forget_const(text: &mut String, body: usize) {
    let Some(function) = text[..body].rfind("fn ") else { return };
    let line = text[..function].rfind('\n').map_or(0, |end| end + 1);
    if let Some(word) = text[line..function].find("const ") {
        text.replace_range(line + word..line + word + "const ".len(), "");
    }
}

/// The body, with its braces, of the innermost function around a place.
fn body(text: &str, place: Range<usize>) -> Option<Range<usize>> {
    // Every brace that is open, and whether it is that of a function.
    let mut open: Vec<(usize, bool)> = Vec::new();
    let (mut parens, mut awaits) = (0_usize, false);
    let mut found: Option<Range<usize>> = None;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let skipped = no_code(rest);
        if skipped > 0 {
            at += skipped;
            continue;
        }
        let first = rest.chars().next().expect("there is more");
        if first.is_alphanumeric() || first == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            // A type of functions has no name.
            if &rest[..end] == "fn" && !rest[end..].starts_with('(') {
                (parens, awaits) = (0, true);
            }
            at += end;
            continue;
        }
        match first {
            '(' | '[' => parens += 1,
            ')' | ']' => parens = parens.saturating_sub(1),
            ';' if parens == 0 => awaits = false,
            '{' => {
                open.push((at, awaits && parens == 0));
                awaits = false;
            }
            '}' => {
                let (start, is_function) = open.pop()?;
                let around = is_function && start < place.start && place.end <= at;
                // Inner ones end first.
                if around && found.is_none() {
                    found = Some(start..at + 1);
                }
            }
            _ => {}
        }
        at += first.len_utf8();
    }
    found
}

/// How much at the beginning of a text is a comment, a string or a character.
fn no_code(text: &str) -> usize {
    let up_to =
        |end: &str, from: usize| text[from..].find(end).map_or(text.len(), |at| from + at + end.len());
    if text.starts_with("//") {
        return up_to("\n", 0);
    }
    if text.starts_with("/*") {
        return up_to("*/", 0);
    }
    let raw = text.strip_prefix('r').map(|more| more.len() - more.trim_start_matches('#').len());
    if let Some(marks) = raw.filter(|marks| text[1 + marks..].starts_with('"')) {
        return up_to(&format!("\"{}", "#".repeat(marks)), marks + 2);
    }
    let quote = text.chars().next();
    if quote == Some('"') {
        return quoted(text, '"');
    }
    // A lifetime has no quote behind it.
    let mut chars = text.chars().skip(1);
    let (first, second) = (chars.next(), chars.next());
    if quote == Some('\'') && (first == Some('\\') || second == Some('\'')) {
        return quoted(text, '\'');
    }
    0
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::super::table::Edit;
    use super::*;

    const TEXT: &str = "
const X: u8 = b'{';
/// Of `fn x() {`.
pub const fn one<'a>(f: fn(u8) -> u8, of: [u8; 2]) -> u8 {
    let brace = \"}\\\"}\"; // }
    if f(1) > 2 { 3 } else { 4 }
}
trait T { fn none(&self); fn two(&self) -> char { '}' } }
";

    fn mutation(name: &str, old: &str, new: &str) -> Mutation {
        let edit = Edit { file: "f".into(), old: old.into(), new: new.into() };
        Mutation {
            name: name.into(),
            hole: None,
            does: String::new(),
            edits: vec![edit],
            tests: Vec::new(),
            seeds: None,
            lives: None,
        }
    }

    #[test]
    fn functions_are_found_in_a_text() {
        let of = |what: &str| {
            let at = TEXT.find(what).expect("there");
            body(TEXT, at..at + what.len()).map(|body| &TEXT[body])
        };
        assert!(
            of("f(1) > 2")
                .is_some_and(|body| body.starts_with("{\n    let brace") && body.ends_with("4 }\n}"))
        );
        assert_eq!(of("'}' }").or(of("'}'")), Some("{ '}' }"));
        assert_eq!((of("const X"), of("none"), of("of: [u8")), (None, None, None));
    }

    #[test]
    fn each_mutation_has_a_body_of_its_own() {
        let (more, other) = (mutation("a", "f(1) > 2", "f(1) > 3"), mutation("b", "'}' }", "'{' }"));
        let less = mutation("c", "f(1) > 2", "f(1) > 1");
        let read = |_: &str| Ok(TEXT.to_owned());
        // Its end is no part of a body.
        assert!(all(&[&other], read).is_err());
        let other = mutation("b", "'}'", "'{'");
        let made = all(&[&more, &other, &less], read).expect("they are all in functions")["f"].clone();
        assert!(made.contains("pub fn one") && made.contains("const X"), "{made}");
        for arm in [
            "1 => {\n    let brace",
            "3 => {\n    let brace",
            "f(1) > 3",
            "f(1) > 1",
            "2 => { '{' }",
            "_ => { '}' }",
        ] {
            assert_eq!(made.matches(arm).count(), 1, "{arm} in {made}");
        }
        assert!(all(&[&mutation("d", "const X: u8", "const X: u16")], read).is_err());
    }
}
