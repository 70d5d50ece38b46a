//! What a device and its port are, and the GID table.

use std::ffi::{c_char, c_int};
use std::net::IpAddr;
use std::ptr;

use remanence_link::route;
use remanence_rnic::MAX_MESSAGE;
use remanence_wire::Gid;

use crate::abi::*;
use crate::context::{Ctx, ctx};
use crate::device::GID_TABLE_LEN;
use crate::errno;

/// What RC does with demand-paged memory.
const ODP: u32 = IBV_ODP_SUPPORT_SEND
    | IBV_ODP_SUPPORT_RECV
    | IBV_ODP_SUPPORT_WRITE
    | IBV_ODP_SUPPORT_READ
    | IBV_ODP_SUPPORT_ATOMIC
    | IBV_ODP_SUPPORT_SRQ_RECV
    | IBV_ODP_SUPPORT_FLUSH
    | IBV_ODP_SUPPORT_ATOMIC_WRITE;

/// The one partition.
const PKEY: u16 = 0xffff;

/// Capabilities that only the extended query tells, and that verbs.h has no names for (`IB_UVERBS_DEVICE_FLUSH_GLOBAL`
/// and `_ATOMIC_WRITE` of the kernel). Flushing to persistence (bit 39) is not among them: memory that a program lends us
/// is volatile as far as we know, and registering it for that is refused.
const CAP_FLUSH_GLOBAL: u64 = 1 << 38;
const CAP_ATOMIC_WRITE: u64 = 1 << 40;

pub(crate) fn install(ops: &mut ibv_context_ops, block: &mut verbs_context) {
    ops._compat_query_device = Some(ibv_query_device);
    ops._compat_query_port = Some(ibv_query_port);
    block.query_port = Some(query_port);
    block.query_device_ex = Some(query_device_ex);
}

/// A limit as C has it.
fn int(limit: u32) -> c_int {
    c_int::try_from(limit).unwrap_or(c_int::MAX)
}

/// The attributes of the device.
fn device_attr(ctx: &Ctx) -> ibv_device_attr {
    let config = ctx.context.config();
    let guid = ctx.device.info.guid.to_be();
    let mut fw_ver = [0; 64];
    for (to, from) in fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *to = from as c_char;
    }
    ibv_device_attr {
        fw_ver,
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX,
        // Any power of two: we have no page tables.
        page_size_cap: 0xffff_f000,
        // Nobody's, as of other devices in software; programs take 0 for a broken one.
        vendor_id: 0x00ff_ffff,
        device_cap_flags: IBV_DEVICE_CURR_QP_STATE_MOD
            | IBV_DEVICE_SYS_IMAGE_GUID
            | IBV_DEVICE_RC_RNR_NAK_GEN
            | IBV_DEVICE_SRQ_RESIZE
            | IBV_DEVICE_N_NOTIFY_CQ
            | IBV_DEVICE_MEM_WINDOW
            | IBV_DEVICE_MEM_MGT_EXTENSIONS
            | IBV_DEVICE_MEM_WINDOW_TYPE_2B,
        max_qp: int(config.max_qp),
        max_qp_wr: int(config.max_qp_wr),
        max_sge: int(config.max_sge),
        max_sge_rd: int(config.max_sge),
        max_cq: int(config.max_cq),
        max_cqe: int(config.max_cqe),
        max_mr: int(config.max_mr),
        max_pd: int(config.max_pd),
        max_qp_rd_atom: config.max_rd_atomic.into(),
        max_res_rd_atom: int(config.max_qp.saturating_mul(config.max_rd_atomic.into())),
        max_qp_init_rd_atom: config.max_rd_atomic.into(),
        // As Soft-RoCE says. Ours are atomic for processors too (GLOB), but UCX and others ask for exactly this.
        atomic_cap: IBV_ATOMIC_HCA,
        max_mw: int(config.max_mw),
        max_mcast_grp: 8192,
        max_mcast_qp_attach: 256,
        max_total_mcast_qp_attach: 8192 * 256,
        max_ah: int(config.max_ah),
        max_srq: int(config.max_srq),
        max_srq_wr: int(config.max_srq_wr),
        max_srq_sge: int(config.max_sge),
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
        ..ibv_device_attr::zeroed()
    }
}

fn device_attr_ex(ctx: &Ctx) -> ibv_device_attr_ex {
    let orig_attr = device_attr(ctx);
    let cas = u16::try_from(IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP).expect("a bit of sixteen");
    ibv_device_attr_ex {
        orig_attr,
        // All memory is demand-paged: it is the processor that touches it.
        odp_caps: ibv_odp_caps {
            general_caps: (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT).into(),
            per_transport_caps: ibv_odp_caps_per_transport_caps {
                rc_odp_caps: ODP,
                uc_odp_caps: IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE,
                ud_odp_caps: IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV,
            },
        },
        device_cap_flags_ex: u64::from(orig_attr.device_cap_flags) | CAP_FLUSH_GLOBAL | CAP_ATOMIC_WRITE,
        pci_atomic_caps: ibv_pci_atomic_caps { fetch_add: cas, swap: 0, compare_swap: cas },
        phys_port_cnt_ex: 1,
        ..ibv_device_attr_ex::zeroed()
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller's open device, and structure.
    unsafe { *attr = device_attr(ctx(context)) };
    0
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    // SAFETY: null or the caller's structure.
    if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0)
        || attr_size < size_of::<ibv_device_attr>()
    {
        return libc::EINVAL;
    }
    // SAFETY: the caller's open device, and its structure of the length that it says.
    unsafe { write_prefix(&device_attr_ex(ctx(context)), attr.cast(), attr_size) };
    0
}

/// Writes as much of a structure as the caller has room for, and zeros behind it where the caller's is longer.
///
/// # Safety
/// `into` points to `len` bytes that may be written.
unsafe fn write_prefix<T: Plain>(value: &T, into: *mut u8, len: usize) {
    let n = len.min(size_of::<T>());
    // SAFETY: `n` bytes of the value, and no more than the room there is.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(value).cast(), into, n);
        ptr::write_bytes(into.add(n), 0, len - n);
    }
}

/// How the width and speed of a port are encoded that carries so many Mbit/s: the one that is not slower, or the
/// fastest.
fn width_and_speed(mbps: u32) -> (u8, u8) {
    const X1: u8 = 1;
    const X4: u8 = 2;
    let table = [
        (2_500, X1, 1),
        (5_000, X1, 2),
        (10_000, X1, 4),
        (25_000, X1, 32),
        (40_000, X4, 4),
        (50_000, X1, 64),
        (100_000, X4, 32),
        (200_000, X4, 64),
        (400_000, X4, 128),
    ];
    let found = table.iter().find(|row| row.0 >= mbps).or(table.last()).expect("the table is not empty");
    (found.1, found.2)
}

/// The speed of the port in Mbit/s. What has none of its own, as loopback and veth, is as fast as the processor.
pub(crate) fn mbps(ctx: &Ctx) -> u32 {
    ctx.device.speed_mbps().unwrap_or(10_000)
}

fn port_attr(ctx: &Ctx) -> ibv_port_attr {
    let port = ctx.context.port();
    let (active_width, active_speed) = width_and_speed(mbps(ctx));
    ibv_port_attr {
        state: if port.active { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN },
        max_mtu: IBV_MTU_4096,
        active_mtu: port.mtu as ibv_mtu,
        gid_tbl_len: GID_TABLE_LEN as c_int,
        port_cap_flags: IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS,
        max_msg_sz: MAX_MESSAGE,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        active_width,
        active_speed,
        // LinkUp, or Disabled.
        phys_state: if port.active { 5 } else { 3 },
        link_layer: IBV_LINK_LAYER_ETHERNET as u8,
        flags: IBV_QPF_GRH_REQUIRED,
        active_speed_ex: active_speed.into(),
        ..ibv_port_attr::zeroed()
    }
}

unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    attr_len: usize,
) -> c_int {
    if port_num != 1 {
        return libc::EINVAL;
    }
    // SAFETY: the caller's open device, and its structure of the length that it says.
    unsafe { write_prefix(&port_attr(ctx(context)), attr.cast(), attr_len) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: as of the longer one; this symbol was there before the structure grew.
    unsafe { query_port(context, port_num, attr.cast(), size_of::<_compat_ibv_port_attr>()) }
}

/// The GID at an index; nothing where the table has an empty place, and an error beyond its end.
pub(crate) fn gid(ctx: &Ctx, port_num: u32, index: u32) -> Result<Option<Gid>, c_int> {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    if port_num != 1 || index >= GID_TABLE_LEN {
        return Err(libc::EINVAL);
    }
    Ok(ctx.context.port().gids.get(index).copied().filter(|&gid| gid != Gid::default()))
}

/// The number of the network interface that has the address of a GID, 0 if none has.
fn interface_index(ctx: &Ctx, gid: Gid) -> u32 {
    if ctx.device.info.index != 0 {
        return ctx.device.info.index;
    }
    let address: IpAddr = gid.to_ip();
    route::interface_of(address).map_or(0, |interface| interface.index)
}

fn gid_entry(ctx: &Ctx, index: u32, gid: Gid) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: gid.0 },
        gid_index: index,
        port_num: 1,
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: interface_index(ctx, gid),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    into: *mut ibv_gid,
) -> c_int {
    // SAFETY: the caller's open device.
    let found = gid(unsafe { ctx(context) }, port_num.into(), index.cast_unsigned());
    match found {
        Ok(found) => {
            let raw = found.map_or([0; 16], |gid| gid.0);
            // SAFETY: the caller's GID.
            unsafe { *into = ibv_gid { raw } };
            0
        }
        Err(e) => errno::minus_one_with(e),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    // SAFETY: the caller's open device.
    let ctx = unsafe { ctx(context) };
    if flags != 0 {
        return libc::EOPNOTSUPP;
    }
    match gid(ctx, port_num, gid_index) {
        Err(e) => e,
        Ok(None) => libc::ENODATA,
        Ok(Some(gid)) => {
            // SAFETY: the caller's structure of the length that it says.
            unsafe { write_prefix(&gid_entry(ctx, gid_index, gid), entry.cast(), entry_size) };
            0
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    // SAFETY: the caller's open device.
    let ctx = unsafe { ctx(context) };
    let port = ctx.context.port();
    let gids: Vec<(u32, Gid)> =
        (0..).zip(port.gids.iter().copied()).filter(|&(_, gid)| gid != Gid::default()).collect();
    if flags != 0 {
        return -(libc::EOPNOTSUPP as isize);
    }
    if gids.len() > max_entries {
        return -(libc::EINVAL as isize);
    }
    let entries: *mut u8 = entries.cast();
    for (i, &(index, gid)) in gids.iter().enumerate() {
        // SAFETY: an array of the caller, as long as the check above wants.
        unsafe { write_prefix(&gid_entry(ctx, index, gid), entries.add(i * entry_size), entry_size) };
    }
    gids.len().cast_signed()
}

/// Of the private node: the type as sysfs would name it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: u32,
    into: *mut ibv_gid_type_sysfs,
) -> c_int {
    // SAFETY: the caller's open device.
    match gid(unsafe { ctx(context) }, port_num.into(), index) {
        Ok(found) => {
            let ty = if found.is_some() { IBV_GID_TYPE_SYSFS_ROCE_V2 } else { IBV_GID_TYPE_SYSFS_IB_ROCE_V1 };
            // SAFETY: the caller's variable.
            unsafe { *into = ty };
            0
        }
        Err(e) => errno::minus_one_with(e),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    _context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    if port_num != 1 || index != 0 {
        return errno::minus_one_with(libc::EINVAL);
    }
    // SAFETY: the caller's variable.
    unsafe { *pkey = PKEY.to_be() };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_pkey_index(_context: *mut ibv_context, port_num: u8, pkey: u16) -> c_int {
    if port_num == 1 && pkey == PKEY.to_be() { 0 } else { errno::minus_one_with(libc::EINVAL) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_never_slower_than_its_interface_if_there_is_such_a_port() {
        assert_eq!(width_and_speed(1_000), (1, 1));
        assert_eq!(width_and_speed(10_000), (1, 4));
        assert_eq!(width_and_speed(40_001), (1, 64));
        assert_eq!(width_and_speed(u32::MAX), (2, 128));
    }

    #[test]
    fn the_callers_length_is_kept() {
        let value = ibv_values_ex { comp_mask: u32::MAX, ..ibv_values_ex::zeroed() };
        let mut room = [7_u8; 64];
        // SAFETY: within the array.
        unsafe { write_prefix(&value, room.as_mut_ptr(), 3) };
        assert_eq!(room[..4], [255, 255, 255, 7], "no byte more than the caller has");
        // SAFETY: as above.
        unsafe { write_prefix(&value, room.as_mut_ptr(), 60) };
        assert!(room[size_of::<ibv_values_ex>()..60].iter().all(|&b| b == 0), "unknown fields read as zero");
        assert_eq!(room[60], 7);
    }
}
