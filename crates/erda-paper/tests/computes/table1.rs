//! Table 1 of paper 002: bytes written to the medium by a create, an update and a delete, exactly.

use remanence_erda_paper::baseline::Scheme;
use remanence_erda_paper::table1::{Change, Design, measure};
use remanence_kv::Mode;

const KEY: usize = 16;

/// What the schemes count is what the paper's formulas say; and what really went to the medium is 4 bytes more where Erda stores its
/// 8-byte word, of which only the tag and one offset change.
#[test]
fn the_papers_schemes_write_what_its_formulas_say() {
    let cells = measure(KEY, &[16, 64, 256, 1024, 4096]).expect("memory does not fail");
    let mut compared = 0;
    for cell in cells {
        let Some(formula) = cell.formula() else { continue };
        let word = if cell.who == Design::Paper { 4 } else { 0 };
        assert_eq!((cell.counted, cell.stored), (formula, formula + word), "{cell:?}");
        compared += 1;
    }
    assert_eq!(compared, 3 * 3 * 5);
    // The formulas, once as numbers: n is 16 + 1024.
    let formula =
        |who: Design| Change::ALL.map(|change| who.formula(change, KEY, 1024).expect("in the paper"));
    assert_eq!(formula(Design::Paper), [16 + 10 + 1040, 9 + 1040, 16 + 9]);
    for scheme in [Scheme::RedoLogging, Scheme::ReadAfterWrite] {
        assert_eq!(formula(Design::Baseline(scheme)), [16 + 12 + 2080, 4 + 2080, 16 + 8]);
    }
}

/// What ours writes, so that a change of it is seen: the object has 43 bytes more of header than the paper's, a mark of 8
/// is stored at the version before, and the pending bit is cleared by a store of its own.
#[test]
fn ours() {
    let cells = measure(KEY, &[1024]).expect("memory does not fail");
    for mode in [Mode::Erda, Mode::Durable] {
        let object = 48 + KEY as u64 + 1024;
        let settle = if mode == Mode::Durable { 8 + 8 } else { 0 };
        let update = 8 + 8 + object + settle;
        // A delete writes a smaller object: the hint changes too.
        let all = [16 + object + settle, update, 8 + 8 + 8 + 48 + KEY as u64 + settle];
        let written = cells.iter().filter(|cell| cell.who == Design::Ours(mode)).map(|cell| cell.stored);
        assert_eq!(written.collect::<Vec<_>>(), all, "{mode:?}");
        let redo = (4 + 2 * (KEY + 1024)) as f64;
        assert!(update as f64 / redo <= 0.55, "{update} is more than 0.55 of {redo}");
    }
}
