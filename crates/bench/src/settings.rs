//! How the peers of a bench were run: versions, command lines, sockets and threads, as the report's parameter `settings` has
//! them by series. Whoever reads a figure has them beside it.

use std::path::Path;

use serde_json::Value;

/// Pixels of a line below a figure, and of a letter of it on average.
const LINE: usize = 14;
const LETTER: usize = 6;

/// A line for each peer, of a report's parameters.
#[must_use]
pub fn lines(params: &Value) -> Vec<String> {
    let settings = params["settings"].as_object().into_iter().flatten();
    settings.map(|(peer, how)| format!("{peer}: {}", how.as_str().unwrap_or_default())).collect()
}

/// Puts them below a figure that was drawn.
///
/// # Errors
/// One sentence if it cannot be read or written, or is no figure.
pub fn caption(params: &Value, figure: &Path) -> Result<(), String> {
    let lines = lines(params);
    if lines.is_empty() {
        return Ok(());
    }
    let fault = |e: std::io::Error| format!("{}: {e}", figure.display());
    let svg = std::fs::read_to_string(figure).map_err(fault)?;
    let below = below(&svg, &lines).ok_or_else(|| format!("{} is no figure", figure.display()))?;
    std::fs::write(figure, below).map_err(fault)
}

/// The figure with a place for the lines.
fn below(svg: &str, lines: &[String]) -> Option<String> {
    let number = |name: &str| {
        let (_, rest) = svg.split_once(&format!(" {name}=\""))?;
        rest.split_once('"')?.0.parse::<usize>().ok()
    };
    let (width, height) = (number("width")?, number("height")?);
    let room = (width / LETTER).max(40);
    let wrapped: Vec<String> = lines.iter().flat_map(|line| wrap(line, room)).collect();
    let more = (wrapped.len() + 1) * LINE;
    let size = format!(" height=\"{height}\" viewBox=\"0 0 {width} {height}\"");
    let larger = format!(" height=\"{}\" viewBox=\"0 0 {width} {}\"", height + more, height + more);
    let (body, _) = svg.split_once(&size).is_some().then(|| svg.rsplit_once("</svg>"))??;
    let mut out = body.replacen(&size, &larger, 1);
    out += &format!("<rect x=\"0\" y=\"{height}\" width=\"{width}\" height=\"{more}\" fill=\"#FFFFFF\"/>\n");
    for (n, line) in wrapped.iter().enumerate() {
        let y = height + (n + 1) * LINE;
        let line = line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        out +=
            &format!("<text x=\"12\" y=\"{y}\" font-family=\"sans-serif\" font-size=\"11\">{line}</text>\n");
    }
    Some(out + "</svg>\n")
}

/// In lines of so many letters at most, where words allow; all but the first are set in.
fn wrap(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is one");
        if !line.is_empty() && line.len() + 1 + word.len() > room {
            lines.push(format!("\u{2003}{word}"));
        } else {
            *line += if line.is_empty() { "" } else { " " };
            *line += word;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_stand_below_the_figure_and_cover_nothing() {
        let svg = "<svg width=\"300\" height=\"100\" viewBox=\"0 0 300 100\" xmlns=\"x\">\n<text>a</text>\n</svg>\n";
        let long = format!("Redis, appendonly no: redis-server <{}>", "word ".repeat(20).trim_end());
        let drawn = below(svg, &[long.clone(), "UCX: ucx_perftest".into()]).expect("a figure");
        let lines = drawn.matches("<text x=\"12\"").count();
        assert_eq!(lines, 4, "{drawn}");
        let height = 100 + (lines + 1) * LINE;
        assert!(drawn.contains(&format!("height=\"{height}\" viewBox=\"0 0 300 {height}\"")), "{drawn}");
        assert!(drawn.contains("&lt;word") && drawn.contains("y=\"114\"") && drawn.ends_with("</svg>\n"));
        assert!(wrap(&long, 50).iter().all(|line| line.chars().count() <= 51), "{:?}", wrap(&long, 50));
        assert_eq!(below("no figure", &[long]), None);
    }

    #[test]
    fn a_bench_without_peers_has_no_lines() {
        assert!(lines(&serde_json::json!({ "rounds": 1 })).is_empty());
        let with = serde_json::json!({ "settings": { "memcached": "memcached -t 4" } });
        assert_eq!(lines(&with), ["memcached: memcached -t 4"]);
    }
}
