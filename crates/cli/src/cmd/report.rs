//! `rem report`: what benches found, on one page.

use std::path::{Path, PathBuf};

use remanence_bench::markdown::markdown;
use remanence_bench::page::{self, Source, Summary};

use crate::fail::{Context as _, Fail};
use crate::{standard, ui, whole};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem bench transport --json docs/figures/transport.json --plot docs/figures/transport.svg
  rem report                                     (docs/figures/*.json, with the .svg beside each, to report.html)
  rem report measured --html measured.html")]
pub(crate) struct Args {
    /// Where the reports are: what `rem bench NAME --json` wrote, and the figure of the same name beside it
    #[arg(value_name = "DIRECTORY", default_value = "docs/figures")]
    directory: PathBuf,
    /// The page
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    html: PathBuf,
    /// The verdicts as a page of Markdown too, which lies beside the figures
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<(), Fail> {
    standard::output_is_there()?;
    let sources = sources(&args.directory)?;
    let (html, summaries) = page::page(&sources).map_err(Fail::new)?;
    whole::write(&args.html, html.as_bytes())
        .context(|| format!("{} cannot be written", args.html.display()))?;
    if let Some(path) = &args.markdown {
        let page = markdown(&sources).map_err(Fail::new)?;
        whole::write(path, page.as_bytes()).context(|| format!("{} cannot be written", path.display()))?;
    }
    for Summary { bench, claims, bars } in &summaries {
        ui::print(format_args!("{bench:<12} claims: {claims}; bars: {bars}"));
    }
    ui::print(format_args!("{} has them all", args.html.display()));
    Ok(())
}

fn sources(directory: &Path) -> Result<Vec<Source>, Fail> {
    let none = || {
        Fail::new(format!(
            "{} has no reports: `rem bench NAME --json {0}/NAME.json --plot {0}/NAME.svg` makes one",
            directory.display()
        ))
    };
    let entries = std::fs::read_dir(directory).map_err(|_| none())?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .collect();
    if files.is_empty() {
        return Err(none());
    }
    files.sort();
    let read = |path: PathBuf| {
        let json = std::fs::read_to_string(&path).context(|| format!("{} cannot be read", path.display()))?;
        let svg = std::fs::read_to_string(path.with_extension("svg")).ok();
        Ok(Source { name: path.display().to_string(), json, svg })
    };
    files.into_iter().map(read).collect()
}
