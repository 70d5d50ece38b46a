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
    /// Every reason that a packet is dropped for.
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
    /// Bytes of UDP payload of the datagrams handed in.
    pub rx_bytes: u64,
    /// Packets handed out.
    pub tx_packets: u64,
    /// Bytes of UDP payload of the packets handed out.
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
    /// RNR NAKs sent.
    pub tx_rnr_nak: u64,
    /// Duplicate requests answered.
    pub rx_duplicates: u64,
    /// Gaps in the PSNs of requests, each refused with one NAK.
    pub rx_gaps: u64,
    /// Requests given up as nobody answered any more.
    pub retries_exceeded: u64,
    /// Requests given up as the peer had no receive WQE for too long.
    pub rnr_retries_exceeded: u64,
    /// SENDs completed, with success.
    pub sends: u64,
    /// Receive WQEs completed, with success.
    pub receives: u64,
    /// Congestion notifications sent.
    pub tx_cnp: u64,
    /// Congestion notifications received.
    pub rx_cnp: u64,
    /// Packets that arrived marked as having met congestion.
    pub rx_ecn_marked: u64,
    /// ACKs of plain WRITEs that had to wait for a WRITE of ours to leave with.
    pub acks_deferred: u64,
    /// Those of them that left in one train with it.
    pub acks_ridden: u64,
    /// Those that waited in vain.
    pub acks_in_vain: u64,
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

    /// What Linux shows of a Soft-RoCE port in `hw_counters`, by its names (`rxe_hw_counters.c`). `refused`: packets that left
    /// the engine and not the host. A port is never down here.
    #[must_use]
    pub fn hw_counters(&self, refused: u64) -> [(&'static str, u64); 15] {
        [
            ("sent_pkts", self.tx_packets),
            ("rcvd_pkts", self.rx_packets - self.rx_unusable()),
            ("duplicate_request", self.rx_duplicates),
            ("out_of_seq_request", self.rx_gaps),
            ("rcvd_rnr_err", self.rx_rnr_nak),
            ("send_rnr_err", self.tx_rnr_nak),
            ("rcvd_seq_err", self.rx_nak_sequence),
            ("ack_deferred", self.acks_deferred),
            ("retry_exceeded_err", self.retries_exceeded),
            ("retry_rnr_exceeded_err", self.rnr_retries_exceeded),
            ("completer_retry_err", self.timeouts + self.rx_nak_sequence),
            ("send_err", refused),
            ("link_downed", 0),
            ("rdma_sends", self.sends),
            ("rdma_recvs", self.receives),
        ]
    }

    /// The same for `counters`, the ones that every port has by the PortCounters of IBA Vol 1, 16.1.3.5. Data is counted in
    /// words of four bytes; what only a cable, a switch or virtual lanes can get wrong stays at zero.
    #[must_use]
    pub fn port_counters(&self, refused: u64) -> [(&'static str, u64); 16] {
        [
            ("port_xmit_packets", self.tx_packets),
            ("port_rcv_packets", self.rx_packets),
            ("port_xmit_data", self.tx_bytes / 4),
            ("port_rcv_data", self.rx_bytes / 4),
            ("port_rcv_errors", self.rx_unusable()),
            ("port_xmit_discards", refused),
            ("port_xmit_wait", 0),
            ("port_rcv_remote_physical_errors", 0),
            ("port_rcv_switch_relay_errors", 0),
            ("port_rcv_constraint_errors", 0),
            ("port_xmit_constraint_errors", 0),
            ("symbol_error", 0),
            ("link_error_recovery", 0),
            ("link_downed", 0),
            ("local_link_integrity_errors", 0),
            ("excessive_buffer_overrun_errors", 0),
        ]
    }

    /// Datagrams that were no packets for us.
    const fn rx_unusable(&self) -> u64 {
        self.dropped_for(DropReason::Malformed)
            + self.dropped_for(DropReason::BadIcrc)
            + self.dropped_for(DropReason::BadPkey)
    }

    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.dropped[reason as usize] += 1;
    }
}
