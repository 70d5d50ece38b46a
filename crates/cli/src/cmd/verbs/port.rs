//! Who has the RoCEv2 port, as far as it decides what view a program can have.
//!
//! While root's processes have it, those of other users receive what root's send on, and believe nobody else. In a user
//! namespace they would not know root: every user but their own looks the same there.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::devices::Device;

/// IANA's port of RoCEv2.
const PORT: u16 = 4791;

/// Whether a process of root's has the port at an address of these devices.
pub(super) fn is_roots(devices: &[Device]) -> bool {
    let tables = ["/proc/net/udp", "/proc/net/udp6"].map(|file| fs::read_to_string(file).unwrap_or_default());
    let sockets = tables.iter().flat_map(|table| table.lines()).filter_map(socket);
    let ours = |addr: IpAddr| devices.iter().any(|device| device.addresses.contains(&addr));
    sockets.into_iter().any(|(addr, port, user)| {
        port == PORT && user == 0 && (addr.is_unspecified() || ours(addr.to_canonical()))
    })
}

/// A line of the table: the socket's address, its port and its user.
fn socket(line: &str) -> Option<(IpAddr, u16, u32)> {
    let mut fields = line.split_ascii_whitespace();
    let (addr, port) = fields.nth(1)?.split_once(':')?;
    // The kernel prints the address as words of the machine's byte order.
    let word = |at: usize| u32::from_str_radix(addr.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let addr: IpAddr = match addr.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let mut octets = [0; 16];
            for (n, four) in octets.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(8 * n)?);
            }
            Ipv6Addr::from(octets).into()
        }
        _ => return None,
    };
    Some((addr, u16::from_str_radix(port, 16).ok()?, fields.nth(5)?.parse().ok()?))
}

#[cfg(test)]
#[expect(
    clippy::host_endian_bytes,
    reason = "the kernel prints addresses as words of the machine's byte order"
)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_read_from_the_kernels_table() {
        let four = u32::from_ne_bytes([127, 0, 0, 1]);
        let line = format!(
            "  12: {four:08X}:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 5 2 0 0"
        );
        assert_eq!(socket(&line), Some((Ipv4Addr::LOCALHOST.into(), PORT, 1000)));
        let last = u32::from_ne_bytes([0, 0, 0, 1]);
        let line = format!("1: {:024}{last:08X}:0035 {:032}:0000 07 0:0 00:0 0 0 0 9", 0, 0);
        assert_eq!(socket(&line), Some((Ipv6Addr::LOCALHOST.into(), 53, 0)));
        let heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
        for other in
            ["", heading, "1: 0100007F", "1: 0100:12B7 0 0 0 0 0 0", "1: 0100007F:12B7 0 7 0:0 0:0 0"]
        {
            assert_eq!(socket(other), None, "{other:?}");
        }
    }
}
