//! Address handles: where a UD send goes.

use std::ffi::c_int;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use remanence_link::route;
use remanence_verbs::Ah;
use remanence_wire::Gid;

use crate::abi::*;
use crate::context::{Ctx, ctx};
use crate::errno;
use crate::neighbour;
use crate::pd::pd;
use crate::qp_attr;
use crate::query;

/// An address handle, with what C sees of it in front.
#[repr(C)]
pub(crate) struct AhObj {
    pub(crate) c: ibv_ah,
    pub(crate) ah: Ah,
}

/// Our address handle behind C's pointer.
///
/// # Safety
/// `p` came from [`ibv_create_ah`] or [`ibv_create_ah_from_wc`] and was not destroyed yet.
pub(crate) unsafe fn ah<'a>(p: *mut ibv_ah) -> &'a AhObj {
    // SAFETY: by the contract `c` is the first field of a live AhObj.
    unsafe { &*p.cast::<AhObj>() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(p: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller's domain and structure.
    let (domain, context, attr) = unsafe { (pd(p), (*p).context, &*attr) };
    let created = qp_attr::av(attr).and_then(|av| {
        // SAFETY: the domain's device is open.
        neighbour::find(unsafe { ctx(context) }, &av)?;
        domain.pd.create_ah(&av).map_err(|e| errno::of(&e))
    });
    match created {
        Ok(ah) => {
            let c = ibv_ah { context, pd: p, handle: ah.raw().0 };
            Box::into_raw(Box::new(AhObj { c, ah })).cast()
        }
        Err(e) => errno::null_with(e),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(p: *mut ibv_ah) -> c_int {
    // SAFETY: the caller gives it back.
    drop(unsafe { Box::from_raw(p.cast::<AhObj>()) });
    0
}

/// What a datagram's header, as it lies in front of the data, says of its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Way {
    source: Gid,
    destination: Gid,
    hop_limit: u8,
    traffic_class: u8,
}

/// Reads the 40 bytes of a GRH: an IPv6 header, or zeros and an IPv4 header at the end.
fn way(grh: &[u8; 40]) -> Option<Way> {
    let v4: &[u8; 20] = grh[20..].try_into().expect("the last 20 of 40 bytes");
    let gid = |at: usize| Gid(grh[at..at + 16].try_into().expect("16 bytes"));
    let is_v6 = grh[0] >> 4 == 6;
    // The end of an IPv6 header is its destination, and may look like an IPv4 header; but hardly with its checksum.
    if v4[0] == 0x45 && (!is_v6 || checksum(v4) == 0xffff) || !is_v6 && v4[0] >> 4 == 4 {
        let address = |at: usize| Gid::from(Ipv4Addr::new(v4[at], v4[at + 1], v4[at + 2], v4[at + 3]));
        let (source, destination) = (address(12), address(16));
        return Some(Way { source, destination, hop_limit: v4[8], traffic_class: v4[1] });
    }
    is_v6.then(|| Way {
        source: gid(8),
        destination: gid(24),
        hop_limit: grh[7],
        traffic_class: grh[0] << 4 | grh[1] >> 4,
    })
}

/// The ones' complement sum of an IPv4 header: all ones if it is undamaged.
fn checksum(header: &[u8; 20]) -> u16 {
    let words = header.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

/// The address that answers what a completion and its GRH came from.
fn answer(ctx: &Ctx, port_num: u8, wc: &ibv_wc, grh: &[u8; 40]) -> Result<ibv_ah_attr, c_int> {
    let mut attr = ibv_ah_attr {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num,
        ..ibv_ah_attr::zeroed()
    };
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return Ok(attr);
    }
    let way = way(grh).ok_or(libc::EPROTONOSUPPORT)?;
    // Who sent to a group cannot be answered from the group.
    let index = ctx.context.port().index_of(way.destination).ok_or(libc::EINVAL)?;
    attr.is_global = 1;
    attr.grh = ibv_global_route {
        dgid: ibv_gid { raw: way.source.0 },
        flow_label: u32::from_be_bytes([0, grh[1] & 0xf, grh[2], grh[3]]),
        sgid_index: index,
        hop_limit: way.hop_limit,
        traffic_class: way.traffic_class,
    };
    Ok(attr)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    // SAFETY: the caller's open device and structures. A GRH without which there is nothing to read may be absent.
    unsafe {
        let bytes = grh.cast::<[u8; 40]>().as_ref().copied().unwrap_or([0; 40]);
        match answer(ctx(context), port_num, &*wc, &bytes) {
            Ok(found) => {
                *attr = found;
                0
            }
            Err(e) => errno::minus_one_with(e),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    p: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    let mut attr = ibv_ah_attr::zeroed();
    // SAFETY: what the caller hands in is handed on.
    unsafe {
        if ibv_init_ah_from_wc((*p).context, port_num, wc, grh, &raw mut attr) != 0 {
            return std::ptr::null_mut();
        }
        ibv_create_ah(p, &raw mut attr)
    }
}

/// The MAC that a text of six numbers says.
fn mac(text: &str) -> Option<[u8; 6]> {
    let mut parts = text.trim().split(':').map(|part| u8::from_str_radix(part, 16).ok());
    let mac = [(); 6].map(|()| parts.next().flatten());
    mac.iter().all(Option::is_some).then(|| mac.map(Option::unwrap_or_default))
}

/// The link-layer address of a peer on the same network, as far as it is known without asking the peer.
fn link_layer(peer: IpAddr) -> Option<[u8; 6]> {
    if let Ok(own) = route::interface_of(peer) {
        return mac(&fs::read_to_string(format!("/sys/class/net/{}/address", own.name)).ok()?);
    }
    match peer {
        IpAddr::V4(v4) if v4.is_multicast() => {
            let [_, b, c, d] = v4.octets();
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V4(v4) => {
            let table = fs::read_to_string("/proc/net/arp").ok()?;
            let row = table.lines().find(|row| row.split_whitespace().next() == Some(&v4.to_string()))?;
            mac(row.split_whitespace().nth(3)?)
        }
        IpAddr::V6(v6) => {
            let o = v6.octets();
            match o {
                [0xff, ..] => Some([0x33, 0x33, o[12], o[13], o[14], o[15]]),
                // Made of the MAC, as interfaces do that have no better idea.
                [.., 0xff, 0xfe, _, _, _] => Some([o[8] ^ 2, o[9], o[10], o[13], o[14], o[15]]),
                _ => None,
            }
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    eth_mac: *mut u8,
    vid: *mut u16,
) -> c_int {
    // SAFETY: the caller's open device and structure.
    let (ctx, attr) = unsafe { (ctx(context), &*attr) };
    match query::gid(ctx, attr.port_num.into(), attr.grh.sgid_index.into()) {
        Ok(Some(_)) => {}
        _ => return -libc::EINVAL,
    }
    // SAFETY: both readings of a GID are 16 bytes of which any will do.
    let Some(found) = link_layer(Gid(unsafe { attr.grh.dgid.raw }).to_ip()) else {
        return -libc::EHOSTUNREACH;
    };
    // SAFETY: the caller's six bytes, and its variable if it has one.
    unsafe {
        std::ptr::copy_nonoverlapping(found.as_ptr(), eth_mac, found.len());
        if !vid.is_null() {
            // No VLAN.
            *vid = 0xffff;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10.0.0.1 to 10.0.0.2, TOS 0x28, TTL 63, with its checksum.
    fn v4() -> [u8; 40] {
        let mut grh = [0; 40];
        let header = [0x45, 0x28, 0, 60, 0, 0, 0x40, 0, 63, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        grh[20..].copy_from_slice(&header);
        let sum = !checksum(&header);
        grh[30..32].copy_from_slice(&sum.to_be_bytes());
        grh
    }

    #[test]
    fn an_ipv4_header_lies_in_the_last_half() {
        let way = way(&v4()).expect("an IPv4 header");
        assert_eq!(way.source, Gid::from(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(way.destination, Gid::from(Ipv4Addr::new(10, 0, 0, 2)));
        assert_eq!((way.hop_limit, way.traffic_class), (63, 0x28));
    }

    #[test]
    fn an_ipv6_header_is_not_taken_for_an_ipv4_one_without_its_checksum() {
        let mut grh = v4();
        grh[0] = 0x62;
        grh[1] = 0x80;
        grh[7] = 9;
        assert_eq!(way(&grh).expect("the IPv4 header fits").hop_limit, 63);
        grh[31] ^= 1;
        let v6 = way(&grh).expect("an IPv6 header");
        assert_eq!((v6.hop_limit, v6.traffic_class), (9, 0x28));
        assert_eq!(v6.destination.0, grh[24..]);
    }

    #[test]
    fn noise_is_neither() {
        assert_eq!(way(&[0; 40]), None);
    }

    #[test]
    fn link_layer_addresses_follow_from_groups() {
        assert_eq!(link_layer("224.129.2.3".parse().expect("IP")), Some([1, 0, 0x5e, 1, 2, 3]));
        assert_eq!(link_layer("ff0e::1:2".parse().expect("IP")), Some([0x33, 0x33, 0, 1, 0, 2]));
        assert_eq!(link_layer("fe80::ff:fe00:1".parse().expect("IP")), Some([2, 0, 0, 0, 0, 1]));
    }
}
