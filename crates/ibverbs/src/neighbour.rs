//! Whether anybody is there to be sent to: what the kernel's `drivers/infiniband/core/addr.c` finds out before it takes an
//! address.
//!
//! Packets go to a neighbour first, the peer itself or a router. If the kernel knows his address, all is well; otherwise the
//! network is asked, and the answer waited for: nobody is `ETIMEDOUT`. Here is the waiting for address vectors (QPs on
//! their way to RTR, address handles); that of librdmacm, which goes on in the background, is in `cm/neighbour.rs`.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use remanence_link::neighbour::{Hop, Neighbours, Watch, call};
use remanence_link::wait;
use remanence_rnic::AhAttr;

use crate::context::Ctx;
use crate::query;

/// How long the kernel waits for the neighbour of an address vector (`rdma_addr_find_l2_eth_by_grh`).
const PATIENCE: Duration = Duration::from_secs(1);

/// Who has to be asked for before anything can be sent; `None` if packets may go at once. A kernel that does not tell
/// leaves it to whoever sends to find out that nobody is there.
///
/// # Errors
/// The kernel says that there is no way.
pub(crate) fn missing(src: IpAddr, dst: SocketAddr) -> Result<Option<Hop>, c_int> {
    let Ok(neighbours) = Neighbours::open() else { return Ok(None) };
    match neighbours.hop(src, dst) {
        Ok(Some(hop)) => Ok(matches!(neighbours.is_known(hop), Ok(false)).then_some(hop)),
        Ok(None) => Ok(None),
        Err(why) => match why.raw_os_error() {
            Some(e @ (libc::ENETUNREACH | libc::EHOSTUNREACH)) => Err(e),
            _ => Ok(None),
        },
    }
}

/// Finds the neighbour of an address vector of a device, and waits for him.
///
/// # Errors
/// `ETIMEDOUT`: nobody answers; `ENETUNREACH` and `EHOSTUNREACH`: there is no way.
pub(crate) fn find(ctx: &Ctx, av: &AhAttr) -> Result<(), c_int> {
    let ip = av.dgid.to_ip();
    let src = query::gid(ctx, 1, av.sgid_index.into()).ok().flatten().map(|gid| gid.to_ip());
    let src = src.filter(|src| src.is_ipv4() == ip.is_ipv4() && ctx.device.info.interface.is_some());
    // The engine says what is wrong with a source; nobody needs to be found in shared memory, nor a group.
    let Some(src) = src.filter(|_| !ip.is_multicast()) else { return Ok(()) };
    let at = |ip| match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddrV6::new(v6, 0, 0, ctx.device.info.index).into()
        }
        _ => SocketAddr::new(ip, 0),
    };
    let (src, dst) = (at(src), at(ip));
    let Some(hop) = missing(src.ip(), dst)? else { return Ok(()) };
    let (Ok(neighbours), Ok(watch)) = (Neighbours::open(), Watch::open()) else { return Ok(()) };
    if call(src, dst).is_err() {
        return Ok(());
    }
    let until = Instant::now() + PATIENCE;
    loop {
        // What comes after this wakes.
        let _ = watch.drain();
        if !matches!(neighbours.is_known(hop), Ok(false)) {
            return Ok(());
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(libc::ETIMEDOUT);
        }
        // A signal that ends it early is as good as news.
        let _ = wait::poll(&[watch.wait_fd()], Some(left));
    }
}
