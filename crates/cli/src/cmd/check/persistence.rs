//! `rem check persistence`: the cells of paper 004 and beyond, their mutants, the misuse matrix, what they stand on, and
//! whether anything shorter would do.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use remanence_persist::check::{
    self, Checked, Counterexample, Matrix, Outcome, Prover, Subject, Synthesis, Withdrawn,
};
use remanence_persist::recipe::{self, Cell};
use remanence_persist::taxonomy::{Order, Transport};
use remanence_persist::{Config, Op, Shape};
use serde_json::{Value, json};

use crate::fail::{Context as _, Fail};
use crate::signals::Stop;
use crate::ui::{self, Bar, Mood};

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  rem check persistence                        everything; about a minute on one core
  rem check persistence --quick                the paper's 144 cells with their mutants, and nothing else
  rem check persistence --cell MHP+DDIO+DRAM   the cells of one configuration: recipes, sources, why each step is needed
  rem check persistence --cell DMP+no-DDIO+PM/WRITE/compound --svg lines
                                               one cell, and a time line for each of its mutants")]
pub(crate) struct Args {
    /// Write what was found to this file as JSON; `-` is standard output, in place of the tables
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Only cells whose name begins like this: CONFIGURATION[/OPERATION[/SHAPE]]
    #[arg(long, value_name = "NAME")]
    cell: Option<String>,
    /// Draw the time line of each mutant's failure into this directory, as SVG
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Only the paper's cells and their mutants
    #[arg(long, conflicts_with = "cell")]
    quick: bool,
}

impl Args {
    /// Nobody waits a minute to hear that the result has no place.
    fn can_be_written(&self) -> Result<(), Fail> {
        if let Some(file) = self.json.as_deref().filter(|file| *file != Path::new("-")) {
            let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
            opened.context(|| format!("{} cannot be written", file.display()))?;
        }
        match &self.svg {
            Some(dir) => std::fs::create_dir_all(dir).context(|| format!("{} cannot be made", dir.display())),
            None => Ok(()),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Fail> {
    args.can_be_written()?;
    let stop = Stop::listen()?;
    let quiet = args.json.as_deref().is_some_and(|f| f == Path::new("-"));
    let began = Instant::now();
    let mut work = Work { prover: Prover::default(), stop, quiet, cells: Vec::new() };
    let found = if let Some(name) = &args.cell { work.one(name)? } else { work.all(args.quick)? };
    let took = began.elapsed();
    if let Some(dir) = &args.svg {
        let drawn = draw(dir, &work.cells, args.cell.is_none())?;
        if !quiet {
            ui::print(format_args!("{} drawn to {}", ui::count(drawn, "time line"), dir.display()));
        }
    }
    if let Some(file) = &args.json {
        let json = report(&work, &found, took, args);
        if quiet {
            ui::print_json(&json)?;
        } else {
            std::fs::write(file, format!("{json:#}\n"))
                .context(|| format!("{} cannot be written", file.display()))?;
        }
    }
    if !quiet {
        summary(&work, &found, took);
    }
    verdict(&work)
}

/// The status of the whole: 0 if every recipe holds and every mutant fails.
fn verdict(work: &Work) -> Result<(), Fail> {
    let failing: Vec<String> =
        work.cells.iter().filter(|(_, c)| !c.outcome.holds()).map(|(s, _)| s.name()).collect();
    if let Some(first) = failing.first() {
        let n = failing.len();
        return Err(Fail::new(format!(
            "{n} of the recipes do not hold; see `rem check persistence --cell {first}`"
        )));
    }
    let survivors: usize = work.cells.iter().map(|(_, c)| c.survivors().count()).sum();
    if survivors > 0 {
        return Err(Fail::new(format!(
            "{survivors} mutants hold though a step is missing or misplaced; see the table"
        )));
    }
    Ok(())
}

struct Work {
    prover: Prover,
    stop: Stop,
    quiet: bool,
    cells: Vec<(Subject, Checked)>,
}

/// What is found beyond the cells.
#[derive(Default)]
struct Found {
    matrices: Vec<Matrix>,
    withdrawn: Vec<Withdrawn>,
    ground: Vec<Cell>,
    synthesis: Vec<(Subject, Synthesis)>,
}

impl Work {
    fn check(&mut self, subjects: Vec<Subject>, what: &str) -> Result<(), Fail> {
        let bar = Bar::items(subjects.len() as u64, what, self.quiet);
        for subject in subjects {
            let checked = self.prover.check_subject(&subject);
            self.cells.push((subject, checked));
            bar.add(1);
            self.go_on()?;
        }
        bar.done();
        Ok(())
    }

    fn go_on(&self) -> Result<(), Fail> {
        if self.stop.is_asked() {
            Err(Fail::new("stopped before the end; nothing was proven"))
        } else {
            Ok(())
        }
    }

    fn all(&mut self, quick: bool) -> Result<Found, Fail> {
        self.check(check::paper_subjects(), "the paper's cells")?;
        if !self.quiet {
            papers_table(&self.cells);
        }
        let mut found = Found::default();
        if quick {
            return Ok(found);
        }
        self.check(check::further_subjects(), "cells beyond the paper")?;
        if !self.quiet {
            further_table(&self.cells);
        }
        let configs = check::matrix_configs();
        for op in Op::ALL {
            for shape in [Shape::SINGLETON, Shape::COMPOUND] {
                found.matrices.push(check::matrix(&mut self.prover, &configs, op, shape));
                self.go_on()?;
            }
        }
        found.ground = recipe::cells(Transport::Roce);
        found.withdrawn = check::withdraw(&mut self.prover, &found.ground);
        let papers: Vec<Subject> = self.cells.iter().map(|(s, _)| s).filter(|s| s.paper).cloned().collect();
        let bar = Bar::items(papers.len() as u64, "shorter recipes", self.quiet);
        for subject in papers {
            let known = found.synthesis.iter().find(|(other, _): &&(Subject, Synthesis)| {
                (other.op, &other.recipe) == (subject.op, &subject.recipe) && same_machine(other, &subject)
            });
            let synthesis = match known {
                Some((_, synthesis)) => Synthesis { tried: 0, states: 0, ..synthesis.clone() },
                None => check::synthesise(&subject.recipe, &subject.config, subject.op),
            };
            found.synthesis.push((subject, synthesis));
            bar.add(1);
            self.go_on()?;
        }
        bar.done();
        if !self.quiet {
            matrix_tables(&found.matrices);
            withdrawn_table(&found);
            synthesis_table(&found.synthesis);
        }
        Ok(found)
    }

    fn one(&mut self, name: &str) -> Result<Found, Fail> {
        let wanted = canonical(name)?;
        let of = |subjects: Vec<Subject>| -> Vec<Subject> {
            subjects.into_iter().filter(|s| begins(&s.name(), &wanted)).collect()
        };
        let mut subjects = of(check::paper_subjects());
        subjects.extend(of(check::further_subjects()));
        if subjects.is_empty() {
            return Err(Fail::new(format!(
                "there is no cell {name:?}; a name is like DMP+no-DDIO+PM+iwarp/WRITE/compound, and its end may be left out"
            )));
        }
        self.check(subjects, "cells")?;
        let mut found = Found::default();
        if !self.quiet {
            ui::remark(format!("In the time lines {}.", check::LEGEND));
        }
        for (subject, checked) in &self.cells {
            if !self.quiet {
                tell(subject, checked);
            }
            if subject.recipe.shape.count <= 2
                && subject.recipe.shape.ordered != (subject.recipe.shape.count == 1)
            {
                let synthesis = check::synthesise(&subject.recipe, &subject.config, subject.op);
                if !self.quiet {
                    ui::line(Mood::Note, "shorter", shorter(&synthesis));
                }
                found.synthesis.push((subject.clone(), synthesis));
            }
        }
        Ok(found)
    }
}

/// A configuration has one name, whatever the order in which somebody writes it.
fn canonical(name: &str) -> Result<String, Fail> {
    let (config, rest) = name.split_once('/').map_or((name, ""), |(c, r)| (c, r));
    let config: Config = config.parse().map_err(Fail::new)?;
    let rest = if rest.is_empty() { String::new() } else { format!("/{rest}") };
    Ok(format!("{config}{rest}"))
}

fn begins(name: &str, wanted: &str) -> bool {
    let (name, wanted) = (name.to_ascii_lowercase(), wanted.to_ascii_lowercase());
    name == wanted || name.strip_prefix(&wanted).is_some_and(|rest| rest.starts_with('/'))
}

/// DDIO changes what is explored, and domains and buffers do; cells that agree in them are searched once.
fn same_machine(a: &Subject, b: &Subject) -> bool {
    a.config == b.config
}

fn papers_table(cells: &[(Subject, Checked)]) {
    ui::heading("The cells of paper 004, tables 2 and 3");
    ui::remark(
        "each recipe holds (✓) or fails, over the mutants of it that were made, all of which must fail",
    );
    for shape in [Shape::SINGLETON, Shape::COMPOUND] {
        ui::print(format_args!(
            "\n  {:<26}{:>12}{:>14}{:>10}     on iWARP: the same",
            shape.to_string(),
            "WRITE",
            "WRITE_IMM",
            "SEND"
        ));
        for config in Config::papers() {
            let mut row = format!("  {:<26}", config.short());
            for transport in [Transport::Roce, Transport::Iwarp] {
                for (op, width) in Op::ALL.into_iter().zip([12, 14, 10]) {
                    let config = Config { transport, ..config };
                    let at = |(s, _): &&(Subject, Checked)| {
                        s.paper && (s.config, s.op, s.recipe.shape) == (config, op, shape)
                    };
                    let text = cells.iter().find(at).map_or_else(String::new, |(_, c)| mark(c));
                    row.push_str(&format!("{text:>width$}"));
                }
            }
            ui::print(format_args!("{row}"));
        }
    }
    for (subject, _) in cells {
        if let Some(misprint) = subject.misprint {
            ui::remark(format!("  misprint in {}: {misprint}", subject.name()));
        }
    }
}

fn mark(checked: &Checked) -> String {
    let survivors = checked.survivors().count();
    let made = checked.mutants.len();
    match (&checked.outcome, survivors) {
        (Outcome::Holds, 0) => format!("✓ {made}"),
        (Outcome::Holds, n) => format!("✓ {made}, {n} live"),
        (other, _) => other.word().to_owned(),
    }
}

fn further_table(cells: &[(Subject, Checked)]) {
    ui::heading("Beyond the paper");
    type Belongs = fn(&Subject) -> bool;
    let groups: [(&str, Belongs); 6] = [
        ("FLUSH to persistence", |s| s.config.flush == remanence_persist::taxonomy::FlushSupport::Persistent),
        ("READ for FLUSH", |s| s.config.flush == remanence_persist::taxonomy::FlushSupport::Read),
        ("relaxed ordering", |s| s.config.order == Order::Relaxed),
        ("page cache, process", |s| !remanence_persist::taxonomy::Domain::PAPER.contains(&s.config.domain)),
        ("lists and batches", |s| {
            s.recipe.shape.count > 2 || s.recipe.shape.count == 2 && !s.recipe.shape.ordered
        }),
        ("our own recipes", |s| s.variant.is_some()),
    ];
    for (name, belongs) in groups {
        let of: Vec<&(Subject, Checked)> = cells.iter().filter(|(s, _)| !s.paper && belongs(s)).collect();
        let hold = of.iter().filter(|(_, c)| c.outcome.holds()).count();
        let made: usize = of.iter().map(|(_, c)| c.mutants.len()).sum();
        let live: usize = of.iter().map(|(_, c)| c.survivors().count()).sum();
        let mood = if hold == of.len() && live == 0 { Mood::Good } else { Mood::Bad };
        ui::line(
            mood,
            name,
            format!("{hold} of {} cells hold, {} of {made} mutants fail", of.len(), made - live),
        );
    }
}

fn matrix_tables(matrices: &[Matrix]) {
    ui::heading("The misuse matrix: the recipe of a row on the machine of a column");
    ui::remark(
        "· holds   L an acknowledged update is lost   O the order is broken   T torn   R refused   S stuck",
    );
    for matrix in matrices {
        ui::print(format_args!("\n  {} {}", matrix.op.name(), matrix.shape));
        let n = 12.min(matrix.configs.len());
        let numbers: String = (1..=n).map(|n| format!("{n:>3}")).collect();
        ui::print(format_args!("  {:<24}{numbers}", ""));
        for row in 0..n {
            let marks: String =
                (0..n).map(|column| format!("{:>3}", letter(matrix.entry(row, column)))).collect();
            ui::print(format_args!("  {:>2} {:<21}{marks}", row + 1, matrix.configs[row].short()));
        }
    }
    ui::remark("  iWARP, FLUSH to persistence, page cache and process are in the JSON");
}

fn letter(entry: &check::Entry) -> &'static str {
    match entry.outcome.word() {
        "holds" => "·",
        "lost" => "L",
        "order" => "O",
        "torn" | "garbage" => "T",
        "refused" => "R",
        _ => "S",
    }
}

fn withdrawn_table(found: &Found) {
    ui::heading("What the paper's 72 cells stand on: cells that fall when an assumption is withdrawn");
    for withdrawn in &found.withdrawn {
        ui::print(format_args!("  {:>3}  {}", withdrawn.fall.len(), withdrawn.assumption.sentence()));
    }
}

fn synthesis_table(all: &[(Subject, Synthesis)]) {
    ui::heading("Is anything shorter correct?");
    let mut none = 0;
    for (subject, synthesis) in all {
        if synthesis.shorter.is_empty() && synthesis.bound == synthesis.length {
            none += 1;
        } else {
            ui::line(Mood::Note, "", format!("{}: {}", subject.name(), shorter(synthesis)));
        }
    }
    ui::line(Mood::Good, "none shorter", format!("for {none} of the {} cells", all.len()));
}

fn shorter(synthesis: &Synthesis) -> String {
    match synthesis.shorter.first() {
        Some(recipe) => {
            let more = synthesis.shorter.len() - 1;
            let more = if more > 0 { format!(" (and {more} more of that length)") } else { String::new() };
            format!("{} steps instead of {}: {recipe}{more}", recipe.steps.len(), synthesis.length)
        }
        None if synthesis.bound < synthesis.length => {
            format!("none of fewer than {} steps; it has {}", synthesis.bound, synthesis.length)
        }
        None => "no shorter list of steps is correct".into(),
    }
}

/// Everything about one cell.
fn tell(subject: &Subject, checked: &Checked) {
    ui::heading(subject.name());
    let mood = if checked.outcome.holds() { Mood::Good } else { Mood::Bad };
    ui::line(mood, checked.outcome.word(), &subject.recipe);
    ui::line(Mood::Note, "source", &subject.recipe.source);
    if let Some(misprint) = subject.misprint {
        ui::line(Mood::Note, "misprint", misprint);
    }
    if !subject.recipe.deferred.is_empty() {
        let steps: Vec<String> = subject.recipe.deferred.iter().map(ToString::to_string).collect();
        ui::line(Mood::Note, "afterwards", steps.join("; "));
    }
    for precondition in subject.recipe.preconditions(&subject.config) {
        ui::line(Mood::Note, "provided that", precondition);
    }
    if let Outcome::Fails(how) = &checked.outcome {
        ui::print(format_args!("{how}"));
    }
    if !checked.mutants.is_empty() {
        ui::remark(
            "  without any one step, or with two exchanged, it must fail (✓), and this is the shortest way there:",
        );
    }
    for mutant in &checked.mutants {
        let mood = if mutant.outcome.holds() { Mood::Bad } else { Mood::Good };
        ui::line(mood, mutant.outcome.word(), &mutant.mutation);
        if let Outcome::Fails(how) = &mutant.outcome {
            for line in how.to_string().lines() {
                ui::remark(format!("      {line}"));
            }
        }
    }
}

fn summary(work: &Work, found: &Found, took: Duration) {
    let made: usize = work.cells.iter().map(|(_, c)| c.mutants.len()).sum();
    let live: usize = work.cells.iter().map(|(_, c)| c.survivors().count()).sum();
    let hold = work.cells.iter().filter(|(_, c)| c.outcome.holds()).count();
    ui::print(format_args!(
        "\n{hold} of {} cells hold; {} of {made} mutants fail; {} states explored, and {} for shorter recipes, in {}",
        work.cells.len(),
        made - live,
        work.prover.states,
        found.synthesis.iter().map(|(_, s)| s.states).sum::<u64>(),
        ui::time(took)
    ));
}

/// Draws the failure of each mutant (of the paper's cells only, if there are many).
fn draw(dir: &Path, cells: &[(Subject, Checked)], paper_only: bool) -> Result<usize, Fail> {
    let mut drawn = 0;
    let mut write = |name: String, how: &Counterexample, title: &str| -> Result<(), Fail> {
        let safe: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "+-.".contains(c) { c } else { '_' })
            .collect();
        let file = dir.join(format!("{safe}.svg"));
        std::fs::write(&file, how.svg(title)).context(|| format!("{} cannot be written", file.display()))?;
        drawn += 1;
        Ok(())
    };
    for (subject, checked) in cells.iter().filter(|(s, _)| s.paper || !paper_only) {
        if let Outcome::Fails(how) = &checked.outcome {
            write(subject.name(), how, &subject.name())?;
        }
        for (n, mutant) in checked.mutants.iter().enumerate() {
            if let Outcome::Fails(how) = &mutant.outcome {
                let title = format!("{}, {}: {}", subject.name(), mutant.mutation, how.fault);
                write(format!("{}.{:02}", subject.name(), n + 1), how, &title)?;
            }
        }
    }
    Ok(drawn)
}

fn report(work: &Work, found: &Found, took: Duration, args: &Args) -> Value {
    let made: usize = work.cells.iter().map(|(_, c)| c.mutants.len()).sum();
    let live: usize = work.cells.iter().map(|(_, c)| c.survivors().count()).sum();
    json!({
        "check": "persistence",
        "quick": args.quick,
        "seconds": took.as_secs_f64(),
        "states": work.prover.states,
        "explorations": work.prover.runs,
        "answered_from_memory": work.prover.reused,
        "synthesis_states": found.synthesis.iter().map(|(_, s)| s.states).sum::<u64>(),
        "cells_checked": work.cells.len(),
        "cells_holding": work.cells.iter().filter(|(_, c)| c.outcome.holds()).count(),
        "paper_cells": work.cells.iter().filter(|(s, _)| s.paper).count(),
        "mutants_made": made,
        "mutants_killed": made - live,
        "cells": work.cells.iter().map(|(s, c)| cell_json(s, c)).collect::<Vec<_>>(),
        "matrix": found.matrices.iter().map(matrix_json).collect::<Vec<_>>(),
        "assumptions": found.withdrawn.iter().map(|w| withdrawn_json(w, &found.ground)).collect::<Vec<_>>(),
        "synthesis": found.synthesis.iter().map(|(s, x)| synthesis_json(s, x)).collect::<Vec<_>>(),
    })
}

fn cell_json(subject: &Subject, checked: &Checked) -> Value {
    let strings = |all: Vec<String>| Value::from(all);
    // Time lines of thousands of mutants would drown the rest: the paper's cells have them.
    let mutants: Vec<Value> = checked
        .mutants
        .iter()
        .map(|m| {
            let mut entry = json!({ "mutation": m.mutation.to_string(), "verdict": m.outcome.word() });
            if let (Outcome::Fails(how), true) = (&m.outcome, subject.paper) {
                entry["scenario"] = how.scenario.name.into();
                entry["events"] = how.events.len().into();
                entry["time_line"] = how.to_string().lines().map(str::trim).collect::<Vec<_>>().into();
            }
            entry
        })
        .collect();
    json!({
        "cell": subject.name(),
        "configuration": subject.config.to_string(),
        "operation": subject.op.name(),
        "shape": subject.recipe.shape.to_string(),
        "paper": subject.paper,
        "source": subject.recipe.source.to_string(),
        "misprint": subject.misprint,
        "steps": strings(subject.recipe.steps.iter().map(ToString::to_string).collect()),
        "afterwards": strings(subject.recipe.deferred.iter().map(ToString::to_string).collect()),
        "replay": subject.recipe.replay,
        "one_sided": !subject.recipe.is_two_sided(),
        "verdict": checked.outcome.word(),
        "mutants_made": checked.mutants.len(),
        "mutants_killed": checked.mutants.len() - checked.survivors().count(),
        "mutants": mutants,
    })
}

fn matrix_json(matrix: &Matrix) -> Value {
    let names: Vec<String> = matrix.configs.iter().map(ToString::to_string).collect();
    let rows: Vec<Vec<&str>> = (0..names.len())
        .map(|row| (0..names.len()).map(|column| matrix.entry(row, column).outcome.word()).collect())
        .collect();
    let count = |word| matrix.count(word);
    json!({
        "operation": matrix.op.name(),
        "shape": matrix.shape.to_string(),
        "configurations": names,
        "recipe_of_row_on_column": rows,
        "holds": count("holds"), "lost": count("lost"), "order": count("order"), "refused": count("refused"),
    })
}

fn withdrawn_json(withdrawn: &Withdrawn, cells: &[Cell]) -> Value {
    let fall: Vec<Value> = withdrawn
        .fall
        .iter()
        .map(|(n, outcome)| json!({ "cell": cells[*n].name(), "verdict": outcome.word() }))
        .collect();
    json!({ "without": format!("{:?}", withdrawn.assumption), "meaning": withdrawn.assumption.sentence(), "fall": fall })
}

fn synthesis_json(subject: &Subject, synthesis: &Synthesis) -> Value {
    json!({
        "cell": subject.name(),
        "length": synthesis.length,
        "none_shorter_than": synthesis.bound.min(synthesis.length),
        "tried": synthesis.tried,
        "states": synthesis.states,
        "shorter": synthesis.shorter.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_cells_mutants_matrix_assumptions_and_synthesis() {
        let mut prover = Prover::default();
        let is_wanted = |s: &Subject| s.name() == "DMP+DDIO+PM/SEND/singleton";
        let subject = check::paper_subjects().into_iter().find(is_wanted).expect("a cell");
        let checked = prover.check_subject(&subject);
        let configs = ["DMP+DDIO+DRAM", "MHP+DDIO+DRAM"].map(|name| name.parse().expect("a configuration"));
        let ground: Vec<Cell> = recipe::cells(Transport::Roce).into_iter().take(4).collect();
        let found = Found {
            matrices: vec![check::matrix(&mut prover, &configs, Op::Write, Shape::SINGLETON)],
            withdrawn: check::withdraw(&mut prover, &ground),
            ground,
            synthesis: vec![(
                subject.clone(),
                check::synthesise(&subject.recipe, &subject.config, subject.op),
            )],
        };
        let stop = Stop::listen().expect("signals");
        let made = checked.mutants.len();
        let work = Work { prover, stop, quiet: true, cells: vec![(subject, checked)] };
        let args = Args { json: None, cell: None, svg: None, quick: false };
        let report = report(&work, &found, Duration::from_secs(3), &args);
        assert_eq!((&report["cells_checked"], &report["cells_holding"]), (&1.into(), &1.into()));
        assert_eq!((&report["mutants_made"], &report["mutants_killed"]), (&made.into(), &made.into()));
        assert!(report["states"].as_u64().is_some_and(|n| n > 0) && report["seconds"] == 3.0);
        let mutants = report["cells"][0]["mutants"].as_array().expect("a list");
        let told = |m: &Value| m["time_line"].as_array().is_some_and(|lines| !lines.is_empty());
        assert!(mutants.len() == made && mutants.iter().all(told), "{mutants:?}");
        // The recipe of MHP on DMP loses data, and the other way round nothing.
        let matrix = &report["matrix"][0];
        assert_eq!(matrix["configurations"], json!(["DMP+DDIO+DRAM", "MHP+DDIO+DRAM"]));
        assert_eq!(matrix["recipe_of_row_on_column"], json!([["holds", "holds"], ["lost", "holds"]]));
        let fallen = |entry: &Value| entry["fall"].as_array().is_some_and(|fall| !fall.is_empty());
        assert!(report["assumptions"].as_array().is_some_and(|all| all.iter().any(fallen)));
        // One of the two that were predicted: flush the buffer, and copy later.
        assert_eq!(report["synthesis"][0]["length"], 6);
        let shorter = report["synthesis"][0]["shorter"].to_string();
        assert!(shorter.contains("flush(buffer)"), "{shorter}");
    }
}
