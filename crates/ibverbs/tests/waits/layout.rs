//! The mirrors of C's structures and constants against C's own headers, as a C compiler lays them out.
//!
//! The headers installed may be older than what we mirror. `RDMA_CORE_INCLUDE=DIR` takes those of another rdma-core, of
//! version 65 or later, and checks the newest fields too; without it, their places are the numbers at the end.

use crate::common;

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};
use std::path::PathBuf;

use remanence_ibverbs::abi::*;

/// A structure: what C calls it, its size, and its fields: what C calls them, and where they are.
struct Layout {
    name: &'static str,
    size: usize,
    fields: Vec<(String, usize)>,
}

macro_rules! layouts {
    (@name $($f:ident).+) => { concat!($("." , stringify!($f)),+) };
    (@name $($f:ident).+ = $c:literal) => { concat!(".", $c) };
    ($($kind:ident $name:ident { $($($f:ident).+ $(= $c:literal)?),* $(,)? })*) => {
        vec![$(Layout {
            name: concat!(stringify!($kind), " ", stringify!($name)),
            size: size_of::<$name>(),
            fields: vec![$((
                layouts!(@name $($f).+ $(= $c)?)[1..].to_owned(),
                offset_of!($name, $($f).+),
            )),*],
        }),*]
    };
}

/// What every header has that we support, from version 44.
#[rustfmt::skip]
fn of_version_44() -> Vec<Layout> {
    layouts! {
        union ibv_gid { raw, global.subnet_prefix, global.interface_id }
        struct ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        struct ibv_alloc_dm_attr { length, log_align_req, comp_mask }
        struct ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask, handle }
                struct ibv_device_attr { fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap,
            vendor_id, vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd,
            max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom,
            max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp,
            max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr,
            max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt }
        struct ibv_query_device_ex_input { comp_mask }
                struct ibv_odp_caps { general_caps, per_transport_caps.rc_odp_caps,
            per_transport_caps.uc_odp_caps, per_transport_caps.ud_odp_caps }
        struct ibv_tso_caps { max_tso, supported_qpts }
                struct ibv_rss_caps { supported_qpts, max_rwq_indirection_tables,
            max_rwq_indirection_table_size, rx_hash_fields_mask, rx_hash_function }
        struct ibv_packet_pacing_caps { qp_rate_limit_min, qp_rate_limit_max, supported_qpts }
        struct ibv_tm_caps { max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge }
        struct ibv_cq_moderation_caps { max_cq_count, max_cq_period }
        struct ibv_pci_atomic_caps { fetch_add, swap, compare_swap }
                struct ibv_device_attr_ex { orig_attr, comp_mask, odp_caps, completion_timestamp_mask,
            hca_core_clock, device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq, packet_pacing_caps,
            raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps, xrc_odp_caps,
            phys_port_cnt_ex }
                struct ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz,
            bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
            init_type_reply, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2 }
                struct ibv_async_event { element.cq, element.qp, element.srq, element.wq, element.port_num,
            event_type }
                struct ibv_wc { wr_id, status, opcode, vendor_err, byte_len, imm.imm_data = "imm_data",
            imm.invalidated_rkey = "invalidated_rkey", qp_num, src_qp, wc_flags, pkey_index, slid, sl,
            dlid_path_bits }
        struct ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        struct ibv_pd { context, handle }
        struct ibv_td_init_attr { comp_mask }
        struct ibv_td { context }
        struct ibv_xrcd_init_attr { comp_mask, fd, oflags }
        struct ibv_xrcd { context }
        struct ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        struct ibv_mw { context, pd, rkey, handle, type_ = "type" }
        struct ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        struct ibv_grh { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid }
        struct ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        struct ibv_srq_attr { max_wr, max_sge, srq_limit }
        struct ibv_srq_init_attr { srq_context, attr }
        struct ibv_tm_cap { max_num_tags, max_ops }
        struct ibv_srq_init_attr_ex { srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap }
        struct ibv_wq_init_attr { wq_context, wq_type, max_wr, max_sge, pd, cq, comp_mask, create_flags }
        struct ibv_wq_attr { attr_mask, wq_state, curr_wq_state, flags, flags_mask }
        struct ibv_rwq_ind_table { context, ind_tbl_handle, ind_tbl_num, comp_mask }
        struct ibv_rwq_ind_table_init_attr { log_ind_tbl_size, ind_tbl, comp_mask }
        struct ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        struct ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        struct ibv_rx_hash_conf { rx_hash_function, rx_hash_key_len, rx_hash_key, rx_hash_fields_mask }
                struct ibv_qp_init_attr_ex { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all,
            comp_mask, pd, xrcd, create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn,
            send_ops_flags }
        struct ibv_qp_open_attr { comp_mask, qp_num, xrcd, qp_context, qp_type }
                struct ibv_qp_attr { qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn,
            dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
            en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num,
            timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit }
        struct ibv_qp_rate_limit_attr { rate_limit, max_burst_sz, typical_pkt_sz, comp_mask }
        struct ibv_data_buf { addr, length }
        struct ibv_sge { addr, length, lkey }
                struct ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, imm.imm_data =
            "imm_data", imm.invalidate_rkey = "invalidate_rkey", wr.rdma.remote_addr, wr.rdma.rkey,
            wr.atomic.remote_addr, wr.atomic.compare_add, wr.atomic.swap, wr.atomic.rkey, wr.ud.ah,
            wr.ud.remote_qpn, wr.ud.remote_qkey, qp_type.xrc.remote_srqn, extra.bind_mw.mw = "bind_mw.mw",
            extra.bind_mw.rkey = "bind_mw.rkey", extra.bind_mw.bind_info = "bind_mw.bind_info", extra.tso.hdr
            = "tso.hdr", extra.tso.hdr_sz = "tso.hdr_sz", extra.tso.mss = "tso.mss" }
        struct ibv_recv_wr { wr_id, next, sg_list, num_sge }
                struct ibv_ops_wr { wr_id, next, opcode, flags, tm.unexpected_cnt, tm.handle,
            tm.add.recv_wr_id, tm.add.sg_list, tm.add.num_sge, tm.add.tag, tm.add.mask }
        struct ibv_mw_bind { wr_id, send_flags, bind_info }
        struct ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
                struct ibv_wq { context, wq_context, pd, cq, wq_num, handle, state, wq_type, post_recv, mutex,
            cond, events_completed, comp_mask }
                struct ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state,
            qp_type, mutex, cond, events_completed }
        struct ibv_ece { vendor_id, options, comp_mask }
        struct ibv_comp_channel { context, fd, refcnt }
                struct ibv_cq { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
            async_events_completed }
        struct ibv_poll_cq_attr { comp_mask }
        struct ibv_wc_tm_info { tag, priv_ = "priv" }
        struct ibv_moderate_cq { cq_count, cq_period }
        struct ibv_modify_cq_attr { attr_mask, moderate }
        struct ibv_ah { context, pd, handle }
                struct ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask,
            flags, parent_domain }
        struct ibv_parent_domain_init_attr { pd, td, comp_mask, alloc, free, pd_context }
        struct ibv_counters_init_attr { comp_mask }
        struct ibv_counters { context }
        struct ibv_counter_attach_attr { counter_desc, index, comp_mask }
        struct ibv_values_ex { comp_mask, raw_clock }
        struct _ibv_device_ops { _dummy1, _dummy2 }
        struct ibv_device { _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path }
                struct ibv_context { device, ops._compat_query_device, ops._compat_query_port,
            ops._compat_alloc_pd, ops._compat_dealloc_pd, ops._compat_reg_mr, ops._compat_rereg_mr,
            ops._compat_dereg_mr, ops.alloc_mw, ops.bind_mw, ops.dealloc_mw, ops._compat_create_cq,
            ops.poll_cq, ops.req_notify_cq, ops._compat_cq_event, ops._compat_resize_cq,
            ops._compat_destroy_cq, ops._compat_create_srq, ops._compat_modify_srq, ops._compat_query_srq,
            ops._compat_destroy_srq, ops.post_srq_recv, ops._compat_create_qp, ops._compat_query_qp,
            ops._compat_modify_qp, ops._compat_destroy_qp, ops.post_send, ops.post_recv,
            ops._compat_create_ah, ops._compat_destroy_ah, ops._compat_attach_mcast, ops._compat_detach_mcast,
            ops._compat_async_event, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
                struct verbs_context { query_port, advise_mr, alloc_null_mr, read_counters,
            attach_counters_point_flow, create_counters, destroy_counters, reg_dm_mr, alloc_dm, free_dm,
            modify_flow_action_esp, destroy_flow_action, create_flow_action_esp, modify_qp_rate_limit,
            alloc_parent_domain, dealloc_td, alloc_td, modify_cq, post_srq_ops, destroy_rwq_ind_table,
            create_rwq_ind_table, destroy_wq, modify_wq, create_wq, query_rt_values, create_cq_ex, priv_ =
            "priv", query_device_ex, ibv_destroy_flow, ABI_placeholder2, ibv_create_flow, ABI_placeholder1,
            open_qp, create_qp_ex, get_srq_num, create_srq_ex, open_xrcd, close_xrcd, _ABI_placeholder3, sz,
            context }
                struct ibv_qp_ex { qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp,
            wr_atomic_fetch_add, wr_bind_mw, wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm,
            wr_send, wr_send_imm, wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn,
            wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start, wr_complete,
            wr_abort, wr_atomic_write }
                struct ibv_cq_ex { context, channel, cq_context, handle, cqe, mutex, cond,
            comp_events_completed, async_events_completed, comp_mask, status, wr_id, start_poll, next_poll,
            end_poll, read_opcode, read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp,
            read_wc_flags, read_slid, read_sl, read_dlid_path_bits, read_completion_ts, read_cvlan,
            read_flow_tag, read_tm_info, read_completion_wallclock_ns }
                struct ibv_sa_path_rec { dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit,
            traffic_class, reversible, numb_path, pkey, sl, mtu_selector, mtu, rate_selector, rate,
            packet_life_time_selector, packet_life_time, preference }
                struct ibv_sa_mcmember_rec { mgid, port_gid, qkey, mlid, mtu_selector, mtu, traffic_class,
            pkey, rate_selector, rate, packet_life_time_selector, packet_life_time, sl, flow_label, hop_limit,
            scope, join_state, proxy_join }
        struct ibv_sa_service_rec { id, gid, pkey, lease, key, name, data8, data16, data32, data64 }
                struct ibv_path_record { service_id, dgid, sgid, dlid, slid, flowlabel_hoplimit, tclass,
            reversible_numpath, pkey, qosclass_sl, mtu, rate, packetlifetime, preference, reserved }
    }
}

/// Of `rdma_cma.h`.
#[rustfmt::skip]
fn of_rdma_cma() -> Vec<Layout> {
    layouts! {
        struct rdma_ib_addr { sgid, dgid, pkey }
        struct rdma_addr { src_storage, dst_storage, ibaddr = "addr.ibaddr", ibaddr.pkey = "addr.ibaddr.pkey" }
        struct rdma_route { addr, path_rec, num_paths }
        struct rdma_event_channel { fd }
        struct rdma_cm_id { verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq,
            recv_cq_channel, recv_cq, srq, pd, qp_type }
        struct rdma_conn_param { private_data, private_data_len, responder_resources, initiator_depth,
            flow_control, retry_count, rnr_retry_count, srq, qp_num }
        struct rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey }
        struct rdma_cm_event { id, listen_id, event, status, param.conn, param.ud }
        struct rdma_addrinfo { ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len, ai_dst_len, ai_src_addr,
            ai_dst_addr, ai_src_canonname, ai_dst_canonname, ai_route_len, ai_route, ai_connect_len, ai_connect,
            ai_next }
        struct rdma_cm_join_mc_attr_ex { comp_mask, join_flags, addr }
    }
}

/// What came later.
#[rustfmt::skip]
fn newer() -> Vec<Layout> {
    layouts! {
        struct ibv_port_attr { active_speed_ex }
        struct ibv_dmah { context }
        struct ibv_mr_init_attr { length, access, comp_mask, iova, addr, fd, fd_offset, dmah, buf }
        struct ibv_fd_arr { arr, count }
        struct ibv_comp_cntr_caps { max_value, max_counters, supported_qp_attach_ops }
        struct ibv_comp_cntr { context, handle }
        struct ibv_comp_cntr_init_attr { comp_mask, type_ = "type", flags }
        struct ibv_qp_attach_comp_cntr_attr { comp_mask, op_mask }
        struct ibv_dmah_init_attr { comp_mask, cpu_id, ph, tph_mem_type }
        struct verbs_context { free_buf, alloc_buf, dm_export_dmabuf_fd, reg_mr_ex, dealloc_dmah, alloc_dmah }
        struct ibv_qp_ex { wr_flush }
    }
}

/// Prints, by C's own view, the size of each structure and the offset of each field, one per line.
fn program(layouts: &[Layout], constants: &[(String, i128)]) -> String {
    let mut c = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <infiniband/sa.h>\n\
         #include <rdma/rdma_cma.h>\n\
         int main(void) {\n",
    );
    for layout in layouts {
        let name = layout.name;
        c += &format!("  printf(\"{name}=%zu\\n\", sizeof({name}));\n");
        for (field, _) in &layout.fields {
            c += &format!("  printf(\"{name}.{field}=%zu\\n\", offsetof({name}, {field}));\n");
        }
    }
    for (name, _) in constants {
        c += &format!("  printf(\"{name}=%lld\\n\", (long long){name});\n");
    }
    c + "}\n"
}

fn said_by_c(source: &str, name: &str, include: Option<&PathBuf>) -> BTreeMap<String, i128> {
    let output = common::run_c(name, source, include);
    output
        .lines()
        .map(|line| {
            let (name, value) = line.split_once('=').expect("name=value");
            (name.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

fn compare(layouts: &[Layout], constants: &[(String, i128)], c: &BTreeMap<String, i128>, sizes: bool) {
    let mut faults = Vec::new();
    let mut expect = |name: String, rust: i128| {
        let theirs = c[&name];
        if theirs != rust {
            faults.push(format!("{name}: {rust} here, {theirs} in C"));
        }
    };
    for layout in layouts {
        if sizes && !layout.name.ends_with("verbs_context") {
            expect(layout.name.to_owned(), layout.size as i128);
        }
        for (field, offset) in &layout.fields {
            expect(format!("{}.{field}", layout.name), *offset as i128);
        }
    }
    for (name, value) in constants {
        expect(name.clone(), *value);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The constants of `abi/enums.rs` and `abi/rdma.rs`, from their text: 400 names are not worth a second list.
fn constants() -> Vec<(String, i128)> {
    let number = |text: &str| {
        let text = text.replace('_', "");
        text.strip_prefix("0x")
            .map_or_else(|| text.parse(), |hex| i128::from_str_radix(hex, 16))
            .expect("a number")
    };
    let source = concat!(include_str!("../../src/abi/enums.rs"), include_str!("../../src/abi/rdma.rs"));
    let line = |line: &str| {
        let (name, rest) = line.strip_prefix("pub const ")?.split_once(':')?;
        let value = rest.split_once('=')?.1.trim().trim_end_matches(';');
        let value = match value.split_once(" << ") {
            Some((one, shift)) => number(one) << number(shift),
            None => number(value),
        };
        Some((name.to_owned(), value))
    };
    let found: Vec<_> = source.lines().filter_map(line).collect();
    assert!(found.len() > 400, "the parser no longer understands enums.rs: {} constants", found.len());
    found
}

/// Constants that came after version 44, and two that only sysfs knows.
fn is_newer(name: &str) -> bool {
    const NEWER: &[&str] = &[
        "FLUSH",
        "XDR",
        "COMP_CNTR",
        "TPH",
        "DMAH",
        "REG_MR_MASK",
        "DEVICE_SPEED_CHANGE",
        "CC_DMA_BOUNCE",
        "CC_UNPROTECTED",
        "QUERY_QP_DATA_IN_ORDER_",
        "RATE_800",
        "RATE_1200",
        "ODP_SUPPORT_ATOMIC_WRITE",
        "CQ_INIT_ATTR_MASK_PD",
        "ADDRINFO",
        "EVENT_USER",
        "EVENT_INTERNAL",
        "RAI_SA",
        "RAI_DNS",
    ];
    NEWER.iter().any(|part| name.contains(part)) && name != "IBV_ADVISE_MR_FLAG_FLUSH"
}

#[test]
fn structures_are_laid_out_as_the_installed_headers_say() {
    let mut layouts = of_version_44();
    layouts.extend(of_rdma_cma());
    // These three grew since, so their sizes and, for the context, the offsets, are another matter: below.
    let c = said_by_c(&program(&layouts, &[]), "layout", None);
    for layout in &mut layouts {
        let theirs = usize::try_from(c[layout.name]).expect("a size");
        match layout.name {
            // Grows at its front: count from the end.
            "struct verbs_context" => {
                let grown = layout.size - theirs;
                for (_, offset) in &mut layout.fields {
                    *offset -= grown;
                }
            }
            "struct ibv_qp_ex" | "struct ibv_port_attr" => {
                assert!(layout.size >= theirs, "{}", layout.name);
                layout.size = theirs;
            }
            _ => {}
        }
    }
    compare(&layouts, &[], &c, true);
}

#[test]
fn constants_have_the_values_of_the_installed_headers() {
    let constants: Vec<_> =
        constants().into_iter().filter(|(name, _)| !is_newer(name) && !name.contains("TYPE_SYSFS")).collect();
    let c = said_by_c(&program(&[], &constants), "constants", None);
    compare(&[], &constants, &c, true);
}

#[test]
fn the_newest_fields_are_where_newer_headers_have_them() {
    if let Some(include) = std::env::var_os("RDMA_CORE_INCLUDE").map(PathBuf::from) {
        let mut layouts = of_version_44();
        layouts.extend(newer());
        let constants: Vec<_> =
            constants().into_iter().filter(|(name, _)| !name.contains("TYPE_SYSFS")).collect();
        let c = said_by_c(&program(&layouts, &constants), "newer", Some(&include));
        compare(&layouts, &constants, &c, true);
        assert_eq!(c["struct verbs_context"], size_of::<verbs_context>() as i128);
    }
    // Read from version 65, so that nobody moves them where its headers are not at hand.
    assert_eq!(size_of::<verbs_context>(), 696);
    assert_eq!(offset_of!(verbs_context, context), 368);
    assert_eq!(offset_of!(verbs_context, sz), 360);
    assert_eq!(offset_of!(verbs_context, priv_), 256);
    assert_eq!(offset_of!(verbs_context, query_port), 48);
    assert_eq!((size_of::<ibv_qp_ex>(), offset_of!(ibv_qp_ex, wr_flush)), (360, 352));
    assert_eq!((size_of::<ibv_port_attr>(), offset_of!(ibv_port_attr, active_speed_ex)), (56, 52));
    // What stands behind the exported ibv_query_port, and what providers take a device for.
    assert_eq!(size_of::<_compat_ibv_port_attr>(), 48);
    assert_eq!((size_of::<verbs_device>(), offset_of!(verbs_device, ops)), (712, 664));
}
