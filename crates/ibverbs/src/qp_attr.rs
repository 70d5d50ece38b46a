//! Attributes of queue pairs: which ones a transition needs and allows, and their translation to the engine's and back.
//!
//! Read first: IBA Vol 1, 11.2.5.2 (modify QP). The engine has a table of its own; this one has the attributes that
//! only the C API knows (port, P_Key index, alternate path), and the words of the kernel: EINVAL for everything.

use std::ffi::c_int;

use remanence_rnic::{Access, AhAttr, QpAttr, QpCaps, QpInfo, QpState, QpType};
use remanence_wire::{Gid, Mtu, Psn, Qkey, Qpn};

use crate::abi::{
    IBV_ACCESS_HUGETLB, IBV_ACCESS_ON_DEMAND, IBV_ACCESS_OPTIONAL_RANGE, IBV_MIG_MIGRATED,
    IBV_QP_ACCESS_FLAGS as ACCESS, IBV_QP_ALT_PATH as ALT_PATH, IBV_QP_AV as AV,
    IBV_QP_CUR_STATE as CUR_STATE, IBV_QP_DEST_QPN as DEST_QPN,
    IBV_QP_EN_SQD_ASYNC_NOTIFY as EN_SQD_ASYNC_NOTIFY, IBV_QP_MAX_DEST_RD_ATOMIC as MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC as MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER as MIN_RNR_TIMER,
    IBV_QP_PATH_MIG_STATE as PATH_MIG_STATE, IBV_QP_PATH_MTU as PATH_MTU, IBV_QP_PKEY_INDEX as PKEY_INDEX,
    IBV_QP_PORT as PORT, IBV_QP_QKEY as QKEY, IBV_QP_RETRY_CNT as RETRY_CNT, IBV_QP_RNR_RETRY as RNR_RETRY,
    IBV_QP_RQ_PSN as RQ_PSN, IBV_QP_SQ_PSN as SQ_PSN, IBV_QP_STATE as STATE, IBV_QP_TIMEOUT as TIMEOUT,
    Plain, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_mtu, ibv_qp_attr, ibv_qp_cap, ibv_qp_state,
};

/// The hop limit that leaves at least. Programs write 0 or 1 here, as the kernel takes its own.
const HOP_LIMIT: u8 = 64;

/// The attributes that a transition needs, and those that it also allows; `None` where there is no transition.
fn transition(ty: QpType, from: QpState, to: QpState) -> Option<(u32, u32)> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    use QpType::{Rc, Uc, Ud};
    let path = ALT_PATH | PATH_MIG_STATE;
    Some(match (from, to) {
        // A QP that was never used has nothing that could be in error.
        (Reset, Err) => return None,
        (_, Reset | Err) => (0, 0),
        (Reset, Init) => match ty {
            Rc | Uc => (PKEY_INDEX | PORT | ACCESS, 0),
            Ud => (PKEY_INDEX | PORT | QKEY, 0),
        },
        (Init, Init) => match ty {
            Rc | Uc => (0, PKEY_INDEX | PORT | ACCESS),
            Ud => (0, PKEY_INDEX | PORT | QKEY),
        },
        (Init, Rtr) => {
            let connect = AV | PATH_MTU | DEST_QPN | RQ_PSN;
            match ty {
                Rc => (connect | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER, ALT_PATH | ACCESS | PKEY_INDEX),
                Uc => (connect, ALT_PATH | ACCESS | PKEY_INDEX),
                Ud => (0, PKEY_INDEX | QKEY),
            }
        }
        (Rtr, Rts) => match ty {
            Rc => (
                TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC,
                CUR_STATE | path | ACCESS | MIN_RNR_TIMER,
            ),
            Uc => (SQ_PSN, CUR_STATE | path | ACCESS),
            Ud => (SQ_PSN, CUR_STATE | QKEY),
        },
        (Rts | Sqd, Rts) => match ty {
            Rc => (0, CUR_STATE | path | ACCESS | MIN_RNR_TIMER),
            Uc => (0, CUR_STATE | path | ACCESS),
            Ud => (0, CUR_STATE | QKEY),
        },
        (Rts, Sqd) => (0, EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => match ty {
            Rc => (
                0,
                PORT | AV
                    | TIMEOUT
                    | RETRY_CNT
                    | RNR_RETRY
                    | MAX_QP_RD_ATOMIC
                    | MAX_DEST_RD_ATOMIC
                    | ACCESS
                    | PKEY_INDEX
                    | MIN_RNR_TIMER
                    | path,
            ),
            Uc => (0, AV | ACCESS | PKEY_INDEX | path),
            Ud => (0, PKEY_INDEX | QKEY),
        },
        (Sqe, Rts) if ty != Rc => (0, CUR_STATE | if ty == Ud { QKEY } else { ACCESS }),
        (Reset | Init | Rtr | Rts | Sqd | Sqe | Err, Init | Rtr | Rts | Sqd | Sqe) => return None,
    })
}

/// Checks a change of a QP that is in state `now`, and translates it.
pub(crate) fn change(ty: QpType, now: QpState, attr: &ibv_qp_attr, mask: c_int) -> Result<QpAttr, c_int> {
    let mask = mask as u32;
    let given = |bit| mask & bit != 0;
    let from = if given(CUR_STATE) { state(attr.cur_qp_state)? } else { now };
    let to = if given(STATE) { state(attr.qp_state)? } else { from };
    let (needed, allowed) = transition(ty, from, to).ok_or(libc::EINVAL)?;
    if mask & needed != needed || mask & !(needed | allowed | STATE) != 0 {
        return Err(libc::EINVAL);
    }
    // There is one port, one partition, and one path.
    if given(PORT) && attr.port_num != 1
        || given(PKEY_INDEX) && attr.pkey_index != 0
        || given(PATH_MIG_STATE) && attr.path_mig_state != IBV_MIG_MIGRATED
    {
        return Err(libc::EINVAL);
    }
    if given(ALT_PATH) {
        return Err(libc::EOPNOTSUPP);
    }
    Ok(QpAttr {
        state: given(STATE).then_some(to),
        cur_state: given(CUR_STATE).then_some(from),
        qkey: given(QKEY).then_some(Qkey(attr.qkey)),
        access: given(ACCESS).then(|| access(attr.qp_access_flags)).transpose()?,
        av: given(AV).then(|| av(&attr.ah_attr)).transpose()?,
        path_mtu: given(PATH_MTU).then(|| mtu(attr.path_mtu)).transpose()?,
        dest_qpn: given(DEST_QPN).then_some(Qpn::new(attr.dest_qp_num)),
        rq_psn: given(RQ_PSN).then_some(Psn::new(attr.rq_psn)),
        sq_psn: given(SQ_PSN).then_some(Psn::new(attr.sq_psn)),
        max_rd_atomic: given(MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic),
        max_dest_rd_atomic: given(MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic),
        timeout: given(TIMEOUT).then_some(attr.timeout),
        retry_cnt: given(RETRY_CNT).then_some(attr.retry_cnt),
        rnr_retry: given(RNR_RETRY).then_some(attr.rnr_retry),
        min_rnr_timer: given(MIN_RNR_TIMER).then_some(attr.min_rnr_timer),
        sqd_event: given(EN_SQD_ASYNC_NOTIFY).then_some(attr.en_sqd_async_notify != 0),
    })
}

/// What a query answers. What was never set is zero.
pub(crate) fn answer(info: &QpInfo) -> ibv_qp_attr {
    let attr = &info.attr;
    let ah_attr = attr.av.as_ref().map_or_else(ibv_ah_attr::zeroed, av_of);
    let state = info.state as ibv_qp_state;
    ibv_qp_attr {
        qp_state: state,
        cur_qp_state: state,
        path_mtu: attr.path_mtu.map_or(0, mtu_of),
        path_mig_state: IBV_MIG_MIGRATED,
        qkey: attr.qkey.map_or(0, |qkey| qkey.0),
        rq_psn: attr.rq_psn.map_or(0, Psn::value),
        sq_psn: attr.sq_psn.map_or(0, Psn::value),
        dest_qp_num: attr.dest_qpn.map_or(0, Qpn::value),
        qp_access_flags: attr.access.map_or(0, |access| access.bits()),
        cap: caps_of(&info.init.caps),
        ah_attr,
        en_sqd_async_notify: u8::from(attr.sqd_event.unwrap_or(false)),
        sq_draining: u8::from(info.draining),
        max_rd_atomic: attr.max_rd_atomic.unwrap_or(0),
        max_dest_rd_atomic: attr.max_dest_rd_atomic.unwrap_or(0),
        min_rnr_timer: attr.min_rnr_timer.unwrap_or(0),
        port_num: 1,
        timeout: attr.timeout.unwrap_or(0),
        retry_cnt: attr.retry_cnt.unwrap_or(0),
        rnr_retry: attr.rnr_retry.unwrap_or(0),
        ..ibv_qp_attr::zeroed()
    }
}

/// An address vector. On RoCE it has a global route, and leaves through the one port.
pub(crate) fn av(attr: &ibv_ah_attr) -> Result<AhAttr, c_int> {
    if attr.is_global == 0 || attr.port_num != 1 {
        return Err(libc::EINVAL);
    }
    let grh = &attr.grh;
    Ok(AhAttr {
        // SAFETY: both readings of a GID are 16 bytes of which any will do.
        dgid: Gid(unsafe { grh.dgid.raw }),
        sgid_index: grh.sgid_index,
        hop_limit: grh.hop_limit.max(HOP_LIMIT),
        traffic_class: grh.traffic_class,
        flow_label: grh.flow_label,
    })
}

/// An address vector as C sees it.
pub(crate) fn av_of(av: &AhAttr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: av.dgid.0 },
            flow_label: av.flow_label,
            sgid_index: av.sgid_index,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
        },
        is_global: 1,
        port_num: 1,
        ..ibv_ah_attr::zeroed()
    }
}

/// The sizes that C asks for.
pub(crate) fn caps(cap: &ibv_qp_cap) -> QpCaps {
    QpCaps {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline: cap.max_inline_data,
    }
}

/// The sizes that there are.
pub(crate) fn caps_of(caps: &QpCaps) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline,
    }
}

fn state(state: ibv_qp_state) -> Result<QpState, c_int> {
    QpState::ALL.into_iter().find(|&known| known as ibv_qp_state == state).ok_or(libc::EINVAL)
}

fn mtu(mtu: ibv_mtu) -> Result<Mtu, c_int> {
    Mtu::ALL.into_iter().find(|&known| mtu_of(known) == mtu).ok_or(libc::EINVAL)
}

/// 256 bytes are 1, each doubling one more.
pub(crate) fn mtu_of(mtu: Mtu) -> ibv_mtu {
    mtu.bytes().ilog2() - 7
}

/// What a peer may do. Hints about memory mean nothing here.
fn access(flags: u32) -> Result<Access, c_int> {
    let hints = IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE;
    Access::from_bits(flags & !hints).ok_or(libc::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{
        IBV_MTU_256, IBV_MTU_1024, IBV_MTU_4096, IBV_QP_CAP, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET,
        IBV_QPS_RTR, IBV_QPS_RTS,
    };

    fn attr(to: ibv_qp_state) -> ibv_qp_attr {
        let mut attr = ibv_qp_attr { qp_state: to, port_num: 1, path_mtu: IBV_MTU_1024, ..Plain::zeroed() };
        (attr.ah_attr.is_global, attr.ah_attr.port_num) = (1, 1);
        attr
    }

    #[test]
    fn a_transition_needs_all_of_its_attributes_and_no_others() {
        let rtr = AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
        for (ty, from, to, needed) in [
            (QpType::Rc, QpState::Reset, IBV_QPS_INIT, PKEY_INDEX | PORT | ACCESS),
            (QpType::Ud, QpState::Reset, IBV_QPS_INIT, PKEY_INDEX | PORT | QKEY),
            (QpType::Rc, QpState::Init, IBV_QPS_RTR, rtr),
            (QpType::Uc, QpState::Init, IBV_QPS_RTR, AV | PATH_MTU | DEST_QPN | RQ_PSN),
            (QpType::Uc, QpState::Rtr, IBV_QPS_RTS, SQ_PSN),
        ] {
            let change = |mask: u32| change(ty, from, &attr(to), (mask | STATE) as c_int);
            assert_eq!(change(needed).unwrap().state, Some(state(to).unwrap()));
            for bit in (0..26).map(|n| 1 << n).filter(|bit| needed & bit != 0) {
                assert_eq!(change(needed & !bit), Err(libc::EINVAL), "{ty:?} to {to} without {bit:#x}");
            }
            assert_eq!(change(needed | EN_SQD_ASYNC_NOTIFY), Err(libc::EINVAL));
            assert_eq!(change(needed | IBV_QP_CAP), Err(libc::EINVAL));
        }
        let any = |from, to| change(QpType::Rc, from, &attr(to), STATE as c_int);
        assert_eq!(any(QpState::Reset, IBV_QPS_RTS), Err(libc::EINVAL));
        assert_eq!(any(QpState::Rts, 17), Err(libc::EINVAL));
        for to in [IBV_QPS_RESET, IBV_QPS_ERR] {
            assert!(any(QpState::Rts, to).is_ok());
        }
    }

    /// What Linux allows (`qp_state_table` in drivers/infiniband/core/verbs.c), written down from there: states, types,
    /// what is needed, what else may be given. Every QP may go to RESET, and to ERR but from RESET.
    const LINUX: &str = "
        RESET INIT RC,UC: PKEY_INDEX PORT ACCESS_FLAGS;
        RESET INIT UD: PKEY_INDEX PORT QKEY;
        INIT INIT RC,UC: ; PKEY_INDEX PORT ACCESS_FLAGS
        INIT INIT UD: ; PKEY_INDEX PORT QKEY
        INIT RTR RC: AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER; ALT_PATH ACCESS_FLAGS PKEY_INDEX
        INIT RTR UC: AV PATH_MTU DEST_QPN RQ_PSN; ALT_PATH ACCESS_FLAGS PKEY_INDEX
        INIT RTR UD: ; PKEY_INDEX QKEY
        RTR RTS RC: TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC; \
            CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
        RTR RTS UC: SQ_PSN; CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE
        RTR RTS UD: SQ_PSN; CUR_STATE QKEY
        RTS RTS RC: ; CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
        RTS RTS UC: ; CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE
        RTS RTS UD: ; CUR_STATE QKEY
        RTS SQD RC,UC,UD: ; EN_SQD_ASYNC_NOTIFY
        SQD RTS RC: ; CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
        SQD RTS UC: ; CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE
        SQD RTS UD: ; CUR_STATE QKEY
        SQD SQD RC: ; PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ALT_PATH \
            ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE
        SQD SQD UC: ; AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE
        SQD SQD UD: ; PKEY_INDEX QKEY
        SQE RTS UC: ; CUR_STATE ACCESS_FLAGS
        SQE RTS UD: ; CUR_STATE QKEY";

    fn bits(names: &str) -> u32 {
        let bit = |name: &str| match name {
            "PKEY_INDEX" => PKEY_INDEX,
            "PORT" => PORT,
            "ACCESS_FLAGS" => ACCESS,
            "QKEY" => QKEY,
            "AV" => AV,
            "PATH_MTU" => PATH_MTU,
            "DEST_QPN" => DEST_QPN,
            "RQ_PSN" => RQ_PSN,
            "SQ_PSN" => SQ_PSN,
            "MAX_DEST_RD_ATOMIC" => MAX_DEST_RD_ATOMIC,
            "MAX_QP_RD_ATOMIC" => MAX_QP_RD_ATOMIC,
            "MIN_RNR_TIMER" => MIN_RNR_TIMER,
            "ALT_PATH" => ALT_PATH,
            "PATH_MIG_STATE" => PATH_MIG_STATE,
            "TIMEOUT" => TIMEOUT,
            "RETRY_CNT" => RETRY_CNT,
            "RNR_RETRY" => RNR_RETRY,
            "CUR_STATE" => CUR_STATE,
            "EN_SQD_ASYNC_NOTIFY" => EN_SQD_ASYNC_NOTIFY,
            other => panic!("{other}"),
        };
        names.split_whitespace().map(bit).fold(0, |all, bit| all | bit)
    }

    /// By [`LINUX`].
    fn of_linux(ty: &str, from: QpState, to: QpState) -> Option<(u32, u32)> {
        match to {
            QpState::Err if from == QpState::Reset => return None,
            QpState::Err | QpState::Reset => return Some((0, 0)),
            _ => {}
        }
        LINUX.lines().find_map(|row| {
            let (head, masks) = row.split_once(':')?;
            let words: Vec<&str> = head.split_whitespace().collect();
            let is_it = words[0] == from.to_string()
                && words[1] == to.to_string()
                && words[2].split(',').any(|of| of == ty);
            let (needed, allowed) = masks.split_once(';')?;
            is_it.then(|| (bits(needed), bits(allowed)))
        })
    }

    #[test]
    fn transitions_are_those_of_linux() {
        for (ty, name) in [(QpType::Rc, "RC"), (QpType::Uc, "UC"), (QpType::Ud, "UD")] {
            for from in QpState::ALL {
                for to in QpState::ALL {
                    assert_eq!(transition(ty, from, to), of_linux(name, from, to), "{name}, {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn there_is_one_port_one_partition_and_one_path() {
        let init = (STATE | PKEY_INDEX | PORT | ACCESS) as c_int;
        let good = attr(IBV_QPS_INIT);
        let rc = |attr: &ibv_qp_attr| change(QpType::Rc, QpState::Reset, attr, init);
        assert!(rc(&good).is_ok());
        assert_eq!(rc(&ibv_qp_attr { port_num: 2, ..good }), Err(libc::EINVAL));
        assert_eq!(rc(&ibv_qp_attr { pkey_index: 1, ..good }), Err(libc::EINVAL));
        assert_eq!(rc(&ibv_qp_attr { qp_access_flags: 1 << 15, ..good }), Err(libc::EINVAL));
        let rts = attr(IBV_QPS_RTS);
        let mask = (STATE | SQ_PSN | ALT_PATH) as c_int;
        assert_eq!(change(QpType::Uc, QpState::Rtr, &rts, mask), Err(libc::EOPNOTSUPP));
        let mut local = attr(IBV_QPS_RTR);
        local.ah_attr.is_global = 0;
        let mask = (STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN) as c_int;
        assert_eq!(change(QpType::Uc, QpState::Init, &local, mask), Err(libc::EINVAL), "RoCE needs a GRH");
    }

    #[test]
    fn mtus_have_the_numbers_of_the_headers() {
        assert_eq!(Mtu::ALL.map(mtu_of), [IBV_MTU_256, 2, IBV_MTU_1024, 4, IBV_MTU_4096]);
        assert_eq!(mtu(0), Err(libc::EINVAL));
        assert_eq!(mtu(6), Err(libc::EINVAL));
    }
}
