//! Table 1 of paper 002 as rows and bars. What is not counted as the paper does, and stored all the same, are the rows *stored*.

use remanence_erda_paper::baseline::Scheme;
pub(super) use remanence_erda_paper::table1::{Cell, Change, Design};
use remanence_kv::view::Mode;
use remanence_ycsb::workload::PAPER_002_VALUE_SIZES;

use crate::report::{Bar, Kind, Row, Sense};

/// Bytes of a key: `user` and a number of 19 digits.
pub(super) const KEY: usize = 23;

/// All cells of the table, over the paper's value sizes.
pub(super) fn measure() -> Result<Vec<Cell>, String> {
    remanence_erda_paper::table1::measure(KEY, &PAPER_002_VALUE_SIZES)
}

fn row(cell: &Cell, series: String, bytes: u64) -> Row {
    Row::single(cell.change.op(), cell.value as u64, series, ("written", "B"), bytes as f64, Kind::Live)
}

/// The table as rows: what is counted, and where that is not all, what is stored.
pub(super) fn rows(cells: &[Cell]) -> Vec<Row> {
    let mut rows = Vec::new();
    for cell in cells {
        rows.push(row(cell, cell.who.series().to_owned(), cell.counted));
        if cell.counted != cell.stored {
            rows.push(row(cell, format!("{}, stored", cell.who.series()), cell.stored));
        }
    }
    rows
}

/// Cells that are not what the paper's formula says.
pub(super) fn differing(cells: &[Cell]) -> usize {
    cells.iter().filter(|cell| cell.formula().is_some_and(|f| f != cell.counted)).count()
}

/// Bytes of an update at 1 KiB, ours or the paper's over a baseline's.
pub(super) fn update_ratio(cells: &[Cell], who: Design, under: Scheme) -> Option<f64> {
    let at = |who: Design| {
        let found = cells.iter().find(|c| c.who == who && c.change == Change::Update && c.value == 1024)?;
        Some(found.stored as f64)
    };
    Some(at(who)? / at(Design::Baseline(under))?)
}

/// The bars of bytes written.
pub(super) fn bars(cells: &[Cell]) -> Vec<Bar> {
    let formulas = cells.iter().filter(|cell| cell.formula().is_some()).count();
    let mut bars = vec![Bar::new(
        format!("Table 1: cells of {formulas} that differ from the paper's formulas"),
        Some(differing(cells) as f64),
        Sense::AtMost,
        0.0,
    )];
    for who in [Design::Paper, Design::Ours(Mode::Erda), Design::Ours(Mode::Durable)] {
        for under in [Scheme::RedoLogging, Scheme::ReadAfterWrite] {
            let name = format!(
                "bytes stored by an update of 1 KiB: {} / {}",
                who.series(),
                Design::Baseline(under).series()
            );
            bars.push(Bar::new(name, update_ratio(cells, who, under), Sense::AtMost, 0.55));
        }
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_1_is_the_papers_to_the_byte() {
        let cells = measure().expect("memory does not fail");
        assert_eq!(cells.len(), Design::ALL.len() * 3 * PAPER_002_VALUE_SIZES.len());
        for cell in &cells {
            if let Some(formula) = cell.formula() {
                assert_eq!(cell.counted, formula, "{cell:?}");
            }
        }
        assert_eq!(differing(&cells), 0);
        for bar in bars(&cells) {
            assert!(bar.holds, "{bar:?}");
        }
    }

    #[test]
    fn a_cell_that_is_off_by_one_is_seen() {
        let mut cells = measure().expect("memory does not fail");
        cells[0].counted += 1;
        assert_eq!(differing(&cells), 1);
        assert!(!bars(&cells)[0].holds);
    }
}
