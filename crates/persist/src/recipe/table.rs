//! Tables 2 and 3 of paper 004, as printed: the rows are DDIO x receive buffers, the columns domain x operation.
//!
//! Two misprints are corrected, and said. The copy of the text at hand lost its overbars, so that rows 3 and 4 read
//! `DDIO` where they mean DDIO off, and the `Write(b)` between two FLUSHes is the non-posted one, `AtomicWrite(b)` here.
//! `copy + flush(a,b)` is written out in the order that section 3.3 demands: "first write and flush `a` before writing
//! and flushing `b`".

use super::{Flush, Op, Recipe, Rq, Rsp, Shape, Source, Step, Target, steps};
use crate::taxonomy::{Buffers, Config, Domain, Transport};

/// One cell of the paper's tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cell {
    /// The responder's configuration.
    pub config: Config,
    /// The operation that carries the updates.
    pub op: Op,
    /// [`Shape::SINGLETON`] (table 2) or [`Shape::COMPOUND`] (table 3).
    pub shape: Shape,
    /// The steps of the paper.
    pub steps: &'static [Step],
    /// What is printed there, where that is a misprint.
    pub misprint: Option<&'static str>,
}

impl Cell {
    /// The paper's recipe, with what it leaves unsaid: who posts receive buffers again, who applies messages late.
    #[must_use]
    pub fn recipe(&self) -> Recipe {
        let table = if self.shape == Shape::SINGLETON { 2 } else { 3 };
        let source = if self.config.transport == Transport::Iwarp {
            Source::Section("3.2 and 3.3, the paragraphs on iWARP")
        } else {
            Source::Table(table)
        };
        super::build::complete(&self.config, self.shape, self.steps.to_vec(), source)
    }

    /// A name that `rem check persistence --cell` takes: `DMP+DDIO+DRAM/WRITE/singleton`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.config, self.op.name(), self.shape)
    }
}

/// One row: DMP, MHP, WSP, of WRITE, WRITE_IMM, SEND each. `None` is the table's "as above".
type Row = [[Option<&'static [Step]>; 3]; 3];

const ABOVE: Option<&[Step]> = None;

// Singletons.
const W_MESSAGE: &[Step] = steps![
    Rq Write(a); Rq Send(&a); Rsp Receive(&a); Rsp flush(&a); Rsp Send(ack); Rq Receive(ack)
];
const I_MESSAGE: &[Step] =
    steps![Rq WriteImm(a); Rsp Receive(&a); Rsp flush(&a); Rsp Send(ack); Rq Receive(ack)];
const S_FLUSHED: &[Step] =
    steps![Rq Send(a); Rsp Receive(a); Rsp copy(a); Rsp flush(&a); Rsp Send(ack); Rq Receive(ack)];
const S_COPIED: &[Step] = steps![Rq Send(a); Rsp Receive(a); Rsp copy(a); Rsp Send(ack); Rq Receive(ack)];
const W_FLUSH: &[Step] = steps![Rq Write(a); Rq Flush; Rq Comp];
const I_FLUSH: &[Step] = steps![Rq WriteImm(a); Rq Flush; Rq Comp];
const S_FLUSH: &[Step] = steps![Rq Send(a); Rq Flush; Rq Comp];
const W_COMP: &[Step] = steps![Rq Write(a); Rq Comp];
const I_COMP: &[Step] = steps![Rq WriteImm(a); Rq Comp];
const S_COMP: &[Step] = steps![Rq Send(a); Rq Comp];

/// Table 2. In the third row the paper prints the recipes of SEND for MHP and WSP again.
const TABLE_2: [Row; 4] = [
    [
        [Some(W_MESSAGE), Some(I_MESSAGE), Some(S_FLUSHED)],
        [Some(W_FLUSH), Some(I_FLUSH), Some(S_COPIED)],
        [Some(W_COMP), Some(I_COMP), Some(S_COPIED)],
    ],
    [[ABOVE, ABOVE, ABOVE], [ABOVE, ABOVE, Some(S_FLUSH)], [ABOVE, ABOVE, Some(S_COMP)]],
    [[Some(W_FLUSH), Some(I_FLUSH), ABOVE], [ABOVE, ABOVE, Some(S_COPIED)], [ABOVE, ABOVE, Some(S_COPIED)]],
    [[ABOVE, ABOVE, Some(S_FLUSH)], [ABOVE, ABOVE, Some(S_FLUSH)], [ABOVE, ABOVE, Some(S_COMP)]],
];

// Compounds.
const W_MESSAGES: &[Step] = steps![
    Rq Write(a); Rq Send(&a); Rsp Receive(&a); Rsp flush(&a); Rsp Send(ack); Rq Receive(ack);
    Rq Write(b); Rq Send(&b); Rsp Receive(&b); Rsp flush(&b); Rsp Send(ack); Rq Receive(ack)
];
const I_MESSAGES: &[Step] = steps![
    Rq WriteImm(a); Rsp Receive(&a); Rsp flush(&a); Rsp Send(ack); Rq Receive(ack);
    Rq WriteImm(b); Rsp Receive(&b); Rsp flush(&b); Rsp Send(ack); Rq Receive(ack)
];
const SS_FLUSHED: &[Step] = steps![
    Rq Send(a, b); Rsp Receive(a, b); Rsp copy(a); Rsp flush(&a); Rsp copy(b); Rsp flush(&b);
    Rsp Send(ack); Rq Receive(ack)
];
const SS_COPIED: &[Step] =
    steps![Rq Send(a, b); Rsp Receive(a, b); Rsp copy(a); Rsp copy(b); Rsp Send(ack); Rq Receive(ack)];
const W_PIPELINED: &[Step] = steps![Rq Write(a); Rq Write(b); Rq Flush; Rq Comp];
const I_PIPELINED: &[Step] = steps![Rq WriteImm(a); Rq WriteImm(b); Rq Flush; Rq Comp];
const W_ATOMIC: &[Step] = steps![Rq Write(a); Rq Flush; Rq AtomicWrite(b); Rq Flush; Rq Comp];
const I_TWICE: &[Step] = steps![Rq WriteImm(a); Rq Flush; Rq Comp; Rq WriteImm(b); Rq Flush; Rq Comp];
const SS_FLUSH: &[Step] = steps![Rq Send(a, b); Rq Flush; Rq Comp];
const WW_COMP: &[Step] = steps![Rq Write(a); Rq Write(b); Rq Comp];
const II_COMP: &[Step] = steps![Rq WriteImm(a); Rq WriteImm(b); Rq Comp];
const SS_COMP: &[Step] = steps![Rq Send(a, b); Rq Comp];

/// The recipes of the paper's table 3, for the compound of two updates.
const TABLE_3: [Row; 4] = [
    [
        [Some(W_MESSAGES), Some(I_MESSAGES), Some(SS_FLUSHED)],
        [Some(W_PIPELINED), Some(I_PIPELINED), Some(SS_COPIED)],
        [Some(WW_COMP), Some(II_COMP), Some(SS_COPIED)],
    ],
    [[ABOVE, ABOVE, ABOVE], [ABOVE, ABOVE, Some(SS_FLUSH)], [ABOVE, ABOVE, Some(SS_COMP)]],
    [
        [Some(W_ATOMIC), Some(I_TWICE), ABOVE],
        [ABOVE, ABOVE, Some(SS_COPIED)],
        [ABOVE, ABOVE, Some(SS_COPIED)],
    ],
    [[ABOVE, ABOVE, Some(SS_FLUSH)], [ABOVE, ABOVE, Some(SS_FLUSH)], [ABOVE, ABOVE, Some(SS_COMP)]],
];

/// The paper's cells: 72 on InfiniBand and RoCE; 72 more on iWARP, where "the methods for remote persistence for WSP
/// essentially mimic the corresponding methods for MHP".
#[must_use]
pub fn cells(transport: Transport) -> Vec<Cell> {
    let mut cells = Vec::with_capacity(72);
    for (shape, table) in [(Shape::SINGLETON, &TABLE_2), (Shape::COMPOUND, &TABLE_3)] {
        for (column, domain) in Domain::PAPER.into_iter().enumerate() {
            for (row, (ddio, buffers)) in ROWS.into_iter().enumerate() {
                for (which, op) in Op::ALL.into_iter().enumerate() {
                    let like_mhp = transport == Transport::Iwarp && domain == Domain::Wsp;
                    let column = if like_mhp { 1 } else { column };
                    let above = table[..=row].iter().rev().find_map(|r| r[column][which]);
                    let steps = above.expect("the first row of a table is complete");
                    let config = Config { transport, ..Config::paper(domain, ddio, buffers) };
                    let misprint = misprint(&config, op, shape);
                    cells.push(Cell { config, op, shape, steps, misprint });
                }
            }
        }
    }
    cells
}

const ROWS: [(bool, Buffers); 4] =
    [(true, Buffers::Dram), (true, Buffers::Pm), (false, Buffers::Dram), (false, Buffers::Pm)];

fn misprint(config: &Config, op: Op, shape: Shape) -> Option<&'static str> {
    if config.transport == Transport::Iwarp {
        return None;
    }
    match (config.domain, config.ddio, config.buffers, op, shape) {
        (Domain::Dmp, true, Buffers::Dram, Op::Write, Shape::COMPOUND) => {
            Some("the last line but one reads \"Rq Send(ack)\"; the responder sends it")
        }
        (Domain::Wsp, false, Buffers::Dram, Op::Send, Shape::SINGLETON) => {
            Some("the last lines read \"Rsp Send(a)\", \"Rq Receive(a)\"; it is the acknowledgement")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_72_cells_for_each_transport() {
        for transport in [Transport::Roce, Transport::Iwarp] {
            let mut names: Vec<String> = cells(transport).iter().map(Cell::name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), 72);
        }
        let misprints = cells(Transport::Roce).iter().filter(|c| c.misprint.is_some()).count();
        assert_eq!(misprints, 2);
    }

    #[test]
    fn a_cell_reads_as_in_the_paper() {
        let cells = cells(Transport::Roce);
        let find = |name: &str| cells.iter().find(|c| c.name() == name).map(|c| c.recipe().to_string());
        assert_eq!(
            find("DMP+DDIO+PM/WRITE/singleton").as_deref(),
            Some("Rq Write(a); Rq Send(&a); Rsp Receive(&a); Rsp flush(&a); Rsp Send(ack); Rq Receive(ack)")
        );
        assert_eq!(
            find("DMP+no-DDIO+PM/WRITE/compound").as_deref(),
            Some("Rq Write(a); Rq Flush; Rq AtomicWrite(b); Rq Flush; Rq Comp")
        );
        assert_eq!(find("WSP+no-DDIO+PM/SEND/compound").as_deref(), Some("Rq Send(a,b); Rq Comp"));
    }

    #[test]
    fn iwarp_makes_wsp_like_mhp_and_changes_nothing_else() {
        for (roce, iwarp) in cells(Transport::Roce).iter().zip(cells(Transport::Iwarp)) {
            assert_eq!(
                (roce.op, roce.shape, roce.config.domain),
                (iwarp.op, iwarp.shape, iwarp.config.domain)
            );
            let two_sided = roce.recipe().is_two_sided();
            let same = roce.steps == iwarp.steps;
            assert_eq!(same, roce.config.domain != Domain::Wsp || two_sided, "{}", iwarp.name());
        }
    }
}
