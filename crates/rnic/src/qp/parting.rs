//! The last acknowledgement of a QP that will not answer any more.
//!
//! A receiver may destroy its QP as soon as it has the last message. If the ACK is lost then, nobody acknowledges the
//! duplicates, and the sender's work, all of it done, completes with an error. Nothing in the standard helps; so what was
//! acknowledged last is said once more (a requester ignores an ACK that it has), and the host may have a surer way to take it ([`Transmit::parting`](crate::Transmit::parting)).
//!
//! Not an acknowledgement of more than was answered: while a READ, an atomic or a FLUSH is open, nothing is said.

use remanence_wire::packet::{Headers, Repr};
use remanence_wire::{Opcode, Psn, Qpn, aeth, bth};

use super::path::Path;
use super::{Qp, QpState, QpType};
use crate::device::{Shared, Transmit};
use crate::transmit::Batch;

/// How many wait at most. A device that loses more QPs at once than that is being closed.
const MAX: usize = 1024;

/// An ACK without its QP.
#[derive(Debug)]
pub(crate) struct Parting {
    path: Box<Path>,
    dest: Qpn,
    psn: Psn,
    aeth: aeth::Repr,
}

impl Qp {
    /// The QP is about to leave the states that answer.
    pub(crate) fn part(&self, shared: &mut Shared) {
        let answers = matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        let responder = &self.responder;
        let said = self.attr.rq_psn.is_some_and(|first| first != responder.epsn)
            && responder.resources.is_quiet()
            && responder.refused.is_none()
            && responder.nak_due.is_none();
        let Some(path) = self.path.as_ref().filter(|_| answers && said && self.init.ty == QpType::Rc) else {
            return;
        };
        if shared.partings.len() < MAX {
            let psn = responder.epsn.sub(1);
            let aeth = self.ack_aeth(shared);
            shared.partings.push_back(Parting { path: path.clone(), dest: self.dest, psn, aeth });
        }
    }
}

impl Parting {
    pub(crate) fn transmit(&self, shared: &Shared, buf: &mut [u8]) -> Transmit {
        let mut batch = Batch::new(buf, 1, shared.config.icrc, shared.ident);
        let repr = Repr {
            bth: bth::Repr::new(Opcode::RcAck, self.dest, self.psn),
            headers: Headers::Aeth(self.aeth),
        };
        batch.push(&self.path.flow, &repr, 0, |_| Ok::<(), ()>(())).expect("no payload, nothing to fail");
        Transmit { parting: true, ..self.path.transmit(batch.len(), batch.segment()) }
    }
}
