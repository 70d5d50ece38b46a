//! The ICRC of a rewritten packet from the one that it came with, without a look at the payload.
//!
//! A CRC is linear. For two packets of one length the xor of their ICRCs is the CRC, with neither the inverted start nor the
//! inverted end, of the xor of the packets; and that xor is zero outside the headers that were rewritten. So it is `c`, the CRC of the
//! difference of the headers, and then what `n` bytes of zeros behind them make of it. The second step is a matrix for each `n`, here as
//! eight tables of sixteen words: one for each four bits of `c`. A data plane that can neither loop over a payload nor multiply in GF(2)
//! is given the same tables.
//!
//! What came damaged leaves damaged, as nothing of the payload goes into the difference.

/// The CRC's polynomial, reflected.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// `STEPS[t][b]`: what a register that holds the byte `b` holds `t + 1` bytes of zeros later.
static STEPS: [[u32; 256]; 4] = {
    let mut tables = [[0; 256]; 4];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte as u32;
        let mut table = 0;
        while table < 4 {
            let mut bit = 0;
            while bit < 8 {
                register = register >> 1 ^ POLYNOMIAL & (register & 1).wrapping_neg();
                bit += 1;
            }
            tables[table][byte] = register;
            table += 1;
        }
        byte += 1;
    }
    tables
};

/// The register four bytes of zeros later.
#[inline]
fn step(register: u32) -> u32 {
    let [a, b, c, d] = register.to_le_bytes().map(usize::from);
    STEPS[3][a] ^ STEPS[2][b] ^ STEPS[1][c] ^ STEPS[0][d]
}

/// The register of a CRC behind these bytes, of which only whole words count.
#[inline]
pub(crate) fn register(before: u32, bytes: &[u8]) -> u32 {
    let (words, _) = bytes.as_chunks();
    words.iter().fold(before, |register, word| step(register ^ u32::from_le_bytes(*word)))
}

/// `c`: the CRC of the difference of two headers.
#[inline]
pub(crate) fn share(difference: &[u8]) -> u32 {
    register(0, difference)
}

/// One matrix: `row[i][v]` is the share of the value `v` of bits `4 * i` and up.
pub type Row = [[u32; 16]; 8];

/// What zeros behind a difference make of its CRC, for every number of them that a packet may have.
pub struct Advance {
    /// For each whole number of words.
    rows: Box<[Row]>,
}

impl Advance {
    /// The most bytes between rewritten headers and the ICRC: the rest of a RETH, immediate data, and a payload of the largest path MTU.
    pub const BEHIND_MAX: usize = 4 + 4 + 4096;

    /// Makes the tables, half a megabyte.
    #[must_use]
    pub fn new() -> Self {
        let mut row: Row =
            std::array::from_fn(|nibble| std::array::from_fn(|value| (value as u32) << (4 * nibble)));
        let rows = (0..=Self::BEHIND_MAX / 4).map(|_| {
            let this = row;
            row = row.map(|table| table.map(step));
            this
        });
        Self { rows: rows.collect() }
    }

    /// The matrix for `n` bytes; `None` if no packet has as many, or they are not whole words.
    #[must_use]
    pub fn row(&self, n: usize) -> Option<&Row> {
        if n.is_multiple_of(4) { self.rows.get(n / 4) } else { None }
    }

    /// Gives the UDP payload of a packet over IPv4 whose identification is zero the ICRC that it has with another one: as the kernel numbers what it cuts a
    /// train into. `false` if it is no packet, or longer than any may be.
    pub fn renumber(&self, payload: &mut [u8], ident: u16) -> bool {
        // What is behind the identification in the IP header, the UDP header and the BTH; and where there is as much, a RETH: the rows are not made for more behind.
        const BTH: usize = 16 + 8 + 12;
        let front = if payload.len() >= 12 + 16 + 4 { BTH + 16 } else { BTH };
        let mut difference = [0; BTH + 16];
        difference[..2].copy_from_slice(&ident.to_be_bytes());
        let behind = (16 + 8 + payload.len()).checked_sub(4 + front);
        let share = behind.and_then(|n| self.apply(share(&difference[..front]), n));
        let (Some(share), Some(icrc)) = (share, payload.last_chunk_mut()) else { return false };
        *icrc = (u32::from_le_bytes(*icrc) ^ share).to_le_bytes();
        true
    }

    /// `c` behind `n` bytes of zeros.
    #[inline]
    pub(crate) fn apply(&self, c: u32, n: usize) -> Option<u32> {
        let row = self.row(n)?;
        let part = |nibble: usize| row[nibble][(c >> (4 * nibble) & 15) as usize];
        Some((0..8).fold(0, |share, nibble| share ^ part(nibble)))
    }
}

impl Default for Advance {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Advance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Advance").field("rows", &self.rows.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_the_one_before_with_four_bytes_more() {
        let advance = Advance::new();
        for c in [1, 0x8000_0000, 0xdead_beef] {
            let mut register = c;
            for n in (0..=Advance::BEHIND_MAX).step_by(4) {
                assert_eq!(advance.apply(c, n), Some(register), "{n} bytes behind");
                register = step(register);
            }
        }
        assert_eq!(advance.apply(1, Advance::BEHIND_MAX + 4), None, "longer than any packet");
        assert_eq!(advance.apply(1, 2), None, "not whole words");
    }

    #[test]
    fn a_packet_may_have_another_identification() {
        use remanence_wire::icrc::{Flow, check, seal};
        let advance = Advance::new();
        let flow = Flow::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc0de, 4791);
        for len in [16, 20, 28, 32, 36, 1044, 4096 + 36] {
            let mut payload: Vec<u8> = (0..len).map(|at| at as u8 ^ 0x5a).collect();
            seal(&flow, 0, &mut payload);
            for ident in [1, 0x100, 0xffff] {
                let mut renumbered = payload.clone();
                assert!(advance.renumber(&mut renumbered, ident), "{len}");
                assert!(check(&flow, Some(ident), &renumbered).is_ok(), "{len} bytes, {ident:#x}");
                assert_eq!(renumbered[..len - 4], payload[..len - 4]);
            }
        }
        assert!(!advance.renumber(&mut [0; 12], 1) && !advance.renumber(&mut [0; 4200], 1));
    }

    #[test]
    fn zeros_in_front_are_nothing_and_zeros_behind_are_a_step() {
        let difference = [0, 0, 0, 0, 0x12, 0x34, 0x56, 0x78];
        assert_eq!(share(&difference), share(&difference[4..]));
        let mut longer = difference.to_vec();
        longer.extend([0; 8]);
        assert_eq!(Advance::new().apply(share(&difference), 8), Some(share(&longer)));
    }
}
