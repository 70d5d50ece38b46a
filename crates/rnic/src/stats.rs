//! Counters of one device.

/// Why a datagram or packet was dropped without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum DropReason {
    /// Not a well-formed packet.
    Malformed,
    /// The ICRC does not match.
    BadIcrc,
    /// The P_Key is not ours.
    BadPkey,
    /// No such QP.
    NoSuchQp,
    /// The QP's transport has no such opcode, or its state does not receive.
    WrongState,
    /// The addresses are not those of the QP's address vector.
    WrongAddress,
    /// UD: the Q_Key is not the QP's.
    BadQkey,
    /// The PSN is outside the windows of new and duplicate packets, or a gap was already NAKed.
    OutOfSequence,
    /// A duplicate that nothing remembers, or a response that nobody waits for.
    Stale,
    /// UC and UD: no receive WQE, or it is too small; or a broken message.
    NoReceive,
    /// A MAD beyond what the queue of QP 1 holds.
    MadOverflow,
}

impl DropReason {
    /// Every reason.
    pub const ALL: [Self; 11] = [
        Self::Malformed,
        Self::BadIcrc,
        Self::BadPkey,
        Self::NoSuchQp,
        Self::WrongState,
        Self::WrongAddress,
        Self::BadQkey,
        Self::OutOfSequence,
        Self::Stale,
        Self::NoReceive,
        Self::MadOverflow,
    ];
}

/// Counters since the device was created. They only grow.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Datagrams handed in.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Packets handed out.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Work completions written to CQs.
    pub completions: u64,
    /// Request packets sent again.
    pub retransmits: u64,
    /// Local ACK timeouts.
    pub timeouts: u64,
    /// NAK sequence errors received.
    pub rx_nak_sequence: u64,
    /// RNR NAKs received.
    pub rx_rnr_nak: u64,
    /// NAKs of any kind sent, RNR NAKs too.
    pub tx_nak: u64,
    /// Duplicate requests answered.
    pub rx_duplicates: u64,
    /// Congestion notifications sent.
    pub tx_cnp: u64,
    /// Congestion notifications received.
    pub rx_cnp: u64,
    /// Packets that arrived marked as having met congestion.
    pub rx_ecn_marked: u64,
    /// Dropped packets by reason, in the order of [`DropReason::ALL`].
    pub dropped: [u64; DropReason::ALL.len()],
}

impl Stats {
    /// How many packets were dropped for one reason.
    #[must_use]
    pub const fn dropped_for(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }

    /// How many packets were dropped.
    #[must_use]
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }

    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.dropped[reason as usize] += 1;
    }
}
