//! The QP state machine: which transitions exist, and which attributes each needs and allows.
//!
//! Read first: IBA Vol 1, 10.3.1 (states) and 11.2.5 (modify QP, its table of transitions).

use std::fmt;

use bitflags::bitflags;

use super::attr::{QpAttr, QpType};
use crate::error::VerbError;

/// The states, with the verbs' values (`enum ibv_qp_state`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpState {
    /// The state that a QP is created in: it neither sends nor receives.
    Reset = 0,
    /// Receives may be posted; nothing moves.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send, too.
    Rts = 3,
    /// Send queue drained (or draining): what was begun is finished, nothing new is.
    Sqd = 4,
    /// Send queue error: a send failed on UC or UD; receives go on.
    Sqe = 5,
    /// Everything is flushed.
    Err = 6,
}

impl QpState {
    /// Every state, in the order of the values.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// Whether incoming requests are executed.
    #[must_use]
    pub const fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        })
    }
}

bitflags! {
    /// Which fields of a [`QpAttr`] are given.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct Mask: u32 {
        const STATE = 1 << 0;
        const CUR_STATE = 1 << 1;
        const QKEY = 1 << 2;
        const ACCESS = 1 << 3;
        const AV = 1 << 4;
        const PATH_MTU = 1 << 5;
        const DEST_QPN = 1 << 6;
        const RQ_PSN = 1 << 7;
        const SQ_PSN = 1 << 8;
        const MAX_RD_ATOMIC = 1 << 9;
        const MAX_DEST_RD_ATOMIC = 1 << 10;
        const TIMEOUT = 1 << 11;
        const RETRY_CNT = 1 << 12;
        const RNR_RETRY = 1 << 13;
        const MIN_RNR_TIMER = 1 << 14;
        const SQD_EVENT = 1 << 15;
    }
}

impl Mask {
    pub(crate) const fn of(attr: &QpAttr) -> Self {
        const fn bit(given: bool, bit: Mask) -> u32 {
            if given { bit.bits() } else { 0 }
        }
        Self::from_bits_truncate(
            bit(attr.state.is_some(), Self::STATE)
                | bit(attr.cur_state.is_some(), Self::CUR_STATE)
                | bit(attr.qkey.is_some(), Self::QKEY)
                | bit(attr.access.is_some(), Self::ACCESS)
                | bit(attr.av.is_some(), Self::AV)
                | bit(attr.path_mtu.is_some(), Self::PATH_MTU)
                | bit(attr.dest_qpn.is_some(), Self::DEST_QPN)
                | bit(attr.rq_psn.is_some(), Self::RQ_PSN)
                | bit(attr.sq_psn.is_some(), Self::SQ_PSN)
                | bit(attr.max_rd_atomic.is_some(), Self::MAX_RD_ATOMIC)
                | bit(attr.max_dest_rd_atomic.is_some(), Self::MAX_DEST_RD_ATOMIC)
                | bit(attr.timeout.is_some(), Self::TIMEOUT)
                | bit(attr.retry_cnt.is_some(), Self::RETRY_CNT)
                | bit(attr.rnr_retry.is_some(), Self::RNR_RETRY)
                | bit(attr.min_rnr_timer.is_some(), Self::MIN_RNR_TIMER)
                | bit(attr.sqd_event.is_some(), Self::SQD_EVENT),
        )
    }
}

/// The attributes that a transition needs and those that it also allows; `None` where there is no transition.
pub(crate) fn transition(ty: QpType, from: QpState, to: QpState) -> Option<(Mask, Mask)> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    use QpType::{Rc, Uc, Ud};
    let none = Mask::empty();
    Some(match (from, to) {
        (_, Reset | Err) => (none, none),
        (Reset, Init) => match ty {
            Rc | Uc => (Mask::ACCESS, none),
            Ud => (Mask::QKEY, none),
        },
        (Init, Init) => match ty {
            Rc | Uc => (none, Mask::ACCESS),
            Ud => (none, Mask::QKEY),
        },
        (Init, Rtr) => {
            let connect = Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN;
            match ty {
                Rc => (connect | Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER, Mask::ACCESS),
                Uc => (connect, Mask::ACCESS),
                Ud => (none, Mask::QKEY),
            }
        }
        (Rtr, Rts) => match ty {
            Rc => (
                Mask::SQ_PSN | Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_RD_ATOMIC,
                Mask::CUR_STATE | Mask::ACCESS | Mask::MIN_RNR_TIMER,
            ),
            Uc => (Mask::SQ_PSN, Mask::CUR_STATE | Mask::ACCESS),
            Ud => (Mask::SQ_PSN, Mask::CUR_STATE | Mask::QKEY),
        },
        (Rts | Sqd, Rts) => match ty {
            Rc => (none, Mask::CUR_STATE | Mask::ACCESS | Mask::MIN_RNR_TIMER),
            Uc => (none, Mask::CUR_STATE | Mask::ACCESS),
            Ud => (none, Mask::CUR_STATE | Mask::QKEY),
        },
        (Rts, Sqd) => (none, Mask::SQD_EVENT),
        // The send queue stands still, so that its attributes may change.
        (Sqd, Sqd) => match ty {
            Rc => (
                none,
                Mask::AV
                    | Mask::TIMEOUT
                    | Mask::RETRY_CNT
                    | Mask::RNR_RETRY
                    | Mask::MAX_RD_ATOMIC
                    | Mask::MAX_DEST_RD_ATOMIC
                    | Mask::ACCESS
                    | Mask::MIN_RNR_TIMER,
            ),
            Uc => (none, Mask::AV | Mask::ACCESS),
            Ud => (none, Mask::QKEY),
        },
        // A reliable connection has no SQE: a failed send takes the whole QP to ERR.
        (Sqe, Rts) if ty != Rc => (
            none,
            match ty {
                Uc => Mask::CUR_STATE | Mask::ACCESS,
                Rc | Ud => Mask::CUR_STATE | Mask::QKEY,
            },
        ),
        (Reset | Init | Rtr | Rts | Sqd | Sqe | Err, Init | Rtr | Rts | Sqd | Sqe) => return None,
    })
}

/// Checks a change against the state machine; returns the state that it leads to.
pub(crate) fn check(ty: QpType, state: QpState, attr: &QpAttr) -> Result<QpState, VerbError> {
    if attr.cur_state.is_some_and(|current| current != state) {
        return Err(VerbError::InvalidTransition("the QP is not in the state given as current"));
    }
    let to = attr.state.unwrap_or(state);
    if attr.state.is_none() && to == QpState::Err {
        return Err(VerbError::InvalidTransition("nothing can be changed in the error state"));
    }
    let Some((needed, allowed)) = transition(ty, state, to) else {
        return Err(VerbError::InvalidTransition("there is no such transition"));
    };
    let given = Mask::of(attr) - Mask::STATE;
    if !given.contains(needed) {
        return Err(VerbError::InvalidTransition("a required attribute is missing"));
    }
    if !(needed | allowed | Mask::CUR_STATE).contains(given) {
        return Err(VerbError::InvalidTransition("an attribute may not be changed here"));
    }
    Ok(to)
}
