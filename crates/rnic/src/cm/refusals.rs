//! What was refused lately: a peer whose REJ was lost asks again, and gets the same answer instead of a new decision
//! of a caller who believes it has decided (IBA Vol 1, 12.9.8: what was lost is said again).

use std::collections::VecDeque;

use remanence_wire::Gid;
use remanence_wire::cm::Req;
use remanence_wire::{Psn, Qpn};

use super::message::Mad;
use super::types::Path;

/// Refusals kept. Beyond that the oldest is forgotten, and its peer's question counts as a new one.
const KEPT: usize = 256;

/// What makes two REQs the same question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Question {
    pub(super) from: Gid,
    pub(super) guid: u64,
    pub(super) id: u32,
    pub(super) qpn: Qpn,
    pub(super) psn: Psn,
}

impl Question {
    pub(super) const fn of(from: Gid, req: &Req) -> Self {
        Self {
            from,
            guid: req.local_ca_guid,
            id: req.local_comm_id,
            qpn: req.local_qpn,
            psn: req.starting_psn,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Refusals {
    kept: VecDeque<(Question, Path, Box<Mad>)>,
}

impl Refusals {
    pub(super) fn remember(&mut self, question: Question, path: Path, answer: Box<Mad>) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((question, path, answer));
    }

    /// The answer that was given before.
    pub(super) fn find(&self, question: &Question) -> Option<(Path, Box<Mad>)> {
        let (_, path, answer) = self.kept.iter().rev().find(|(kept, ..)| kept == question)?;
        Some((*path, answer.clone()))
    }
}
