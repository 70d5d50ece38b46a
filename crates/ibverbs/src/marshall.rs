//! Conversions from and to what the kernel's interface looks like: librdmacm of rdma-core calls them, and others that
//! speak to `/dev/infiniband/rdma_cm` themselves.

use crate::abi::*;

/// `struct ib_uverbs_ah_attr` of `rdma/ib_user_verbs.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ib_uverbs_ah_attr {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    reserved: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    reserved2: u8,
}

/// `struct ib_uverbs_qp_attr` of `rdma/ib_user_verbs.h`.
#[repr(C)]
pub struct ib_uverbs_qp_attr {
    qp_attr_mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah_attr: ib_uverbs_ah_attr,
    alt_ah_attr: ib_uverbs_ah_attr,
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    reserved: [u8; 5],
}

/// `struct ib_user_path_rec` of `rdma/ib_user_sa.h`.
#[repr(C)]
pub struct ib_user_path_rec {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

const _: () = {
    assert!(size_of::<ib_uverbs_ah_attr>() == 32);
    assert!(size_of::<ib_uverbs_qp_attr>() == 144);
    assert!(size_of::<ib_user_path_rec>() == 64);
};

fn ah_attr(from: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: from.dgid },
            flow_label: from.flow_label,
            sgid_index: from.sgid_index,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(dst: *mut ibv_ah_attr, src: *mut ib_uverbs_ah_attr) {
    // SAFETY: two structures of the caller.
    unsafe { *dst = ah_attr(&*src) };
}

/// All but the state and the rate limit, as ever.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(dst: *mut ibv_qp_attr, src: *mut ib_uverbs_qp_attr) {
    // SAFETY: two structures of the caller.
    let (dst, src) = unsafe { (&mut *dst, &*src) };
    *dst = ibv_qp_attr {
        qp_state: dst.qp_state,
        cur_qp_state: src.cur_qp_state,
        path_mtu: src.path_mtu,
        path_mig_state: src.path_mig_state,
        qkey: src.qkey,
        rq_psn: src.rq_psn,
        sq_psn: src.sq_psn,
        dest_qp_num: src.dest_qp_num,
        qp_access_flags: src.qp_access_flags,
        cap: ibv_qp_cap {
            max_send_wr: src.max_send_wr,
            max_recv_wr: src.max_recv_wr,
            max_send_sge: src.max_send_sge,
            max_recv_sge: src.max_recv_sge,
            max_inline_data: src.max_inline_data,
        },
        ah_attr: ah_attr(&src.ah_attr),
        alt_ah_attr: ah_attr(&src.alt_ah_attr),
        pkey_index: src.pkey_index,
        alt_pkey_index: src.alt_pkey_index,
        en_sqd_async_notify: src.en_sqd_async_notify,
        sq_draining: src.sq_draining,
        max_rd_atomic: src.max_rd_atomic,
        max_dest_rd_atomic: src.max_dest_rd_atomic,
        min_rnr_timer: src.min_rnr_timer,
        port_num: src.port_num,
        timeout: src.timeout,
        retry_cnt: src.retry_cnt,
        rnr_retry: src.rnr_retry,
        alt_port_num: src.alt_port_num,
        alt_timeout: src.alt_timeout,
        rate_limit: dst.rate_limit,
    };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(dst: *mut ibv_sa_path_rec, src: *mut ib_user_path_rec) {
    // SAFETY: two structures of the caller. Of the small numbers the kernel has wide ones, C keeps their low bytes.
    let (dst, src) = unsafe { (&mut *dst, &*src) };
    *dst = ibv_sa_path_rec {
        dgid: ibv_gid { raw: src.dgid },
        sgid: ibv_gid { raw: src.sgid },
        dlid: src.dlid,
        slid: src.slid,
        raw_traffic: src.raw_traffic.cast_signed(),
        flow_label: src.flow_label,
        hop_limit: src.hop_limit,
        traffic_class: src.traffic_class,
        reversible: src.reversible.cast_signed(),
        numb_path: src.numb_path,
        pkey: src.pkey,
        sl: src.sl,
        mtu_selector: src.mtu_selector,
        mtu: src.mtu as u8,
        rate_selector: src.rate_selector,
        rate: src.rate,
        packet_life_time_selector: src.packet_life_time_selector,
        packet_life_time: src.packet_life_time,
        preference: src.preference,
    };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(dst: *mut ib_user_path_rec, src: *mut ibv_sa_path_rec) {
    // SAFETY: two structures of the caller; both readings of a GID are 16 bytes of which any will do.
    unsafe {
        let src = &*src;
        *dst = ib_user_path_rec {
            dgid: src.dgid.raw,
            sgid: src.sgid.raw,
            dlid: src.dlid,
            slid: src.slid,
            raw_traffic: src.raw_traffic.cast_unsigned(),
            flow_label: src.flow_label,
            reversible: src.reversible.cast_unsigned(),
            mtu: src.mtu.into(),
            pkey: src.pkey,
            hop_limit: src.hop_limit,
            traffic_class: src.traffic_class,
            numb_path: src.numb_path,
            sl: src.sl,
            mtu_selector: src.mtu_selector,
            rate_selector: src.rate_selector,
            rate: src.rate,
            packet_life_time_selector: src.packet_life_time_selector,
            packet_life_time: src.packet_life_time,
            preference: src.preference,
        };
    }
}
