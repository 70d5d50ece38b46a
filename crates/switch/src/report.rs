//! What the control plane is told, and what is counted.

use std::collections::VecDeque;

use remanence_wire::Psn;
use remanence_wire::aeth::NakCode;

use crate::group::GroupId;

/// Reports that wait to be taken at most.
const REPORTS_MAX: usize = 1024;

/// Something that a data plane cannot put right by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    /// A replica misses a request which the leader was told to be acknowledged, and so will not send again. Said once, until it has caught up.
    Behind {
        /// Where it is a replica.
        group: GroupId,
        /// Its place among the replicas.
        replica: usize,
        /// The request, in the leader's PSNs.
        missing: Psn,
    },
    /// A replica lags by more PSNs than it may. It counts no more in this group, and gets nothing more of it.
    LeftOut {
        /// Where it was a replica.
        group: GroupId,
        /// Its place among the replicas.
        replica: usize,
    },
    /// A replica has refused a request. The leader is told, and the group scatters no more.
    Refused {
        /// Where it is a replica.
        group: GroupId,
        /// Its place among the replicas.
        replica: usize,
        /// The reason that it gave.
        code: NakCode,
    },
    /// A replica's answer to a READ is not what another one's was.
    Discrepancy {
        /// Where it is a replica.
        group: GroupId,
        /// The one that came later.
        replica: usize,
        /// The answer's, in the leader's PSNs.
        psn: Psn,
    },
    /// A group has made room for that of a later leader.
    Replaced {
        /// The one that is over.
        group: GroupId,
        /// The one that came.
        by: GroupId,
    },
}

/// Keeps a report until it is taken, unless too many wait.
pub(crate) fn note(reports: &mut VecDeque<Report>, stats: &mut Stats, report: Report) {
    if reports.len() < REPORTS_MAX {
        reports.push_back(report);
    } else {
        stats.unread += 1;
    }
}

/// What a switch has counted since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Packets that were none of the switch's business, and went on as they came.
    pub forwarded: u64,
    /// Requests of leaders that went to replicas.
    pub scattered: u64,
    /// Copies of them.
    pub copies: u64,
    /// Answers of replicas that were taken into account.
    pub gathered: u64,
    /// Packets that leaders were sent: ACKs, NAKs and answers to READs.
    pub answered: u64,
    /// Packets to a QP of the switch that there is not, or not any more.
    pub no_qp: u64,
    /// Packets through a group, from an address that is not that of its leader, or not that of the replica whose QP it is.
    pub strangers: u64,
    /// Packets to the switch whose ICRC is wrong, where it was looked at.
    pub damaged: u64,
    /// Packets that are longer than any path MTU allows, or not for the one that they were sent to.
    pub malformed: u64,
    /// Answers to what the leader has not sent, and requests too far ahead.
    pub ahead: u64,
    /// Requests with answers of their own beyond what a group keeps track of.
    pub too_many: u64,
    /// Answers of replicas that were left out, or that came after the end.
    pub late: u64,
    /// Reports that nobody took in time.
    pub unread: u64,
    /// Requests for a group from who is no leader.
    pub no_leader: u64,
    /// Requests for a group of somebody who is no replica.
    pub no_replica: u64,
    /// Requests for a group without the proof that they take.
    pub unproven: u64,
    /// Requests for a group from who has as many as it may, or waits for an answer of one of these replicas already.
    pub bounded: u64,
}

impl Stats {
    /// Each counter, by its name.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, u64); 17] {
        [
            ("forwarded", self.forwarded),
            ("scattered", self.scattered),
            ("copies", self.copies),
            ("gathered", self.gathered),
            ("answered", self.answered),
            ("no_qp", self.no_qp),
            ("strangers", self.strangers),
            ("damaged", self.damaged),
            ("malformed", self.malformed),
            ("ahead", self.ahead),
            ("too_many", self.too_many),
            ("late", self.late),
            ("unread", self.unread),
            ("no_leader", self.no_leader),
            ("no_replica", self.no_replica),
            ("unproven", self.unproven),
            ("bounded", self.bounded),
        ]
    }
}
