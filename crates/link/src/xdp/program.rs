//! The XDP program: which frames of an interface go to our socket. Assembled by hand, so that the build needs no
//! compiler for BPF and the program no file.
//!
//! Read first: the kernel's `Documentation/bpf/standardization/instruction-set.rst` (encoding) and
//! `Documentation/networking/af_xdp.rst` (XSKMAP). In C it would read
//!
//! ```c
//! if (unfragmented IPv4 without options, or IPv6 && protocol == UDP && dport == 4791 && daddr is one of ours)
//!     return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
//! return XDP_PASS;
//! ```
//!
//! so a frame of anybody else, a fragment, and a frame on a queue without a socket stay the kernel's business.
//! Our addresses are immediates of the program: nothing has to be looked up.

use std::net::IpAddr;

/// `XDP_PASS`: the kernel's stack takes the frame.
const XDP_PASS: i32 = 2;
/// `bpf_redirect_map`.
const HELPER_REDIRECT_MAP: i32 = 51;
/// `BPF_PSEUDO_MAP_FD`: the immediate of a 64-bit load is a map's descriptor.
const PSEUDO_MAP_FD: u8 = 1;

/// Bytes of an Ethernet header.
const ETH: i16 = 14;
/// Bytes of an IPv4 header without options.
const IPV4: i16 = 20;
/// Bytes of an IPv6 header.
const IPV6: i16 = 40;
/// Bytes of a UDP header.
const UDP: i16 = 8;

// Opcodes, as instruction-set.rst composes them (size | mode | class, or operation | source | class).
const LDX_W: u8 = 0x61;
const LDX_H: u8 = 0x69;
const LDX_B: u8 = 0x71;
const LD_IMM64: u8 = 0x18;
const MOV64_REG: u8 = 0xbf;
const MOV64_IMM: u8 = 0xb7;
const ADD64_IMM: u8 = 0x07;
const AND64_IMM: u8 = 0x57;
const JA: u8 = 0x05;
const JGT_REG: u8 = 0x2d;
const JEQ32_IMM: u8 = 0x16;
const JNE32_IMM: u8 = 0x56;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// Registers by what they hold in this program. 1 to 3 are also the helper's arguments, 0 the result.
mod reg {
    pub(super) const RESULT: u8 = 0;
    pub(super) const DATA: u8 = 1;
    pub(super) const ARG1: u8 = 1;
    pub(super) const DATA_END: u8 = 2;
    pub(super) const ARG2: u8 = 2;
    pub(super) const SCRATCH: u8 = 3;
    pub(super) const ARG3: u8 = 3;
    pub(super) const CONTEXT: u8 = 6;
}

/// Offsets in `struct xdp_md`.
mod xdp_md {
    pub(super) const DATA: i16 = 0;
    pub(super) const DATA_END: i16 = 4;
    pub(super) const RX_QUEUE_INDEX: i16 = 16;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Label {
    Ipv6,
    Redirect,
    Pass,
    /// The comparison with our next IPv6 address.
    NextIpv6(usize),
}

/// One `struct bpf_insn`, in the byte order of this machine.
pub(super) type Instruction = [u8; 8];

#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(usize, Label)>,
}

impl Assembler {
    fn op(&mut self, code: u8, dst: u8, src: u8, offset: i16, imm: i32) {
        let [o0, o1] = native16(offset);
        let [i0, i1, i2, i3] = native32(imm);
        // The register nibbles are a C bit field, so they swap on big-endian machines.
        let registers = if cfg!(target_endian = "little") { src << 4 | dst } else { dst << 4 | src };
        self.code.push([code, registers, o0, o1, i0, i1, i2, i3]);
    }

    fn jump(&mut self, code: u8, dst: u8, src: u8, imm: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.op(code, dst, src, 0, imm);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((self.code.len(), label));
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (at, to) in self.jumps {
            let target = self.labels.iter().find(|(_, label)| *label == to).map(|(target, _)| *target);
            let target = target.expect("every label that is jumped to is placed");
            let offset = i16::try_from(target - at - 1).expect("jumps go forward and the program is short");
            self.code[at][2..4].copy_from_slice(&native16(offset));
        }
        self.code
    }
}

#[expect(clippy::host_endian_bytes, reason = "the kernel reads instructions in the machine's own byte order")]
fn native16(value: i16) -> [u8; 2] {
    value.to_ne_bytes()
}

#[expect(clippy::host_endian_bytes, reason = "the kernel reads instructions in the machine's own byte order")]
fn native32(value: i32) -> [u8; 4] {
    value.to_ne_bytes()
}

/// What a 16-bit load of these network-order bytes gives.
fn net16(value: u16) -> i32 {
    i32::from(value.to_be())
}

#[expect(clippy::host_endian_bytes, reason = "what a 32-bit load of these bytes gives on this machine")]
fn loaded32(bytes: [u8; 4]) -> i32 {
    i32::from_ne_bytes(bytes)
}

/// The program that redirects RoCEv2 to `addresses` into the XSKMAP `map`, and passes everything else.
pub(super) fn assemble(map: i32, port: u16, addresses: &[IpAddr]) -> Vec<Instruction> {
    use reg::{ARG1, ARG2, ARG3, CONTEXT, DATA, DATA_END, RESULT, SCRATCH};
    let mut a = Assembler::default();

    a.op(MOV64_REG, CONTEXT, 1, 0, 0);
    a.op(LDX_W, DATA_END, CONTEXT, xdp_md::DATA_END, 0);
    a.op(LDX_W, DATA, CONTEXT, xdp_md::DATA, 0);
    // The verifier wants to see every byte we look at proven to lie before data_end.
    a.op(MOV64_REG, SCRATCH, DATA, 0, 0);
    a.op(ADD64_IMM, SCRATCH, 0, 0, (ETH + IPV4 + UDP).into());
    a.jump(JGT_REG, SCRATCH, DATA_END, 0, Label::Pass);
    a.op(LDX_H, SCRATCH, DATA, 12, 0);
    a.jump(JEQ32_IMM, SCRATCH, 0, net16(0x86DD), Label::Ipv6);
    a.jump(JNE32_IMM, SCRATCH, 0, net16(0x0800), Label::Pass);

    // IPv4: version 4 and five words, so that the UDP header is where we look for it.
    a.op(LDX_B, SCRATCH, DATA, ETH, 0);
    a.jump(JNE32_IMM, SCRATCH, 0, 0x45, Label::Pass);
    // No fragment: neither "more fragments" nor an offset. Only the first would show a port.
    a.op(LDX_H, SCRATCH, DATA, ETH + 6, 0);
    a.op(AND64_IMM, SCRATCH, 0, 0, net16(0x3FFF));
    a.jump(JNE32_IMM, SCRATCH, 0, 0, Label::Pass);
    a.op(LDX_B, SCRATCH, DATA, ETH + 9, 0);
    a.jump(JNE32_IMM, SCRATCH, 0, libc::IPPROTO_UDP, Label::Pass);
    a.op(LDX_H, SCRATCH, DATA, ETH + IPV4 + 2, 0);
    a.jump(JNE32_IMM, SCRATCH, 0, net16(port), Label::Pass);
    a.op(LDX_W, SCRATCH, DATA, ETH + 16, 0);
    for address in addresses {
        if let IpAddr::V4(address) = address {
            a.jump(JEQ32_IMM, SCRATCH, 0, loaded32(address.octets()), Label::Redirect);
        }
    }
    a.jump(JA, 0, 0, 0, Label::Pass);

    // IPv6: UDP directly after the fixed header; extension headers, fragments among them, pass.
    a.label(Label::Ipv6);
    a.op(MOV64_REG, SCRATCH, DATA, 0, 0);
    a.op(ADD64_IMM, SCRATCH, 0, 0, (ETH + IPV6 + UDP).into());
    a.jump(JGT_REG, SCRATCH, DATA_END, 0, Label::Pass);
    a.op(LDX_B, SCRATCH, DATA, ETH + 6, 0);
    a.jump(JNE32_IMM, SCRATCH, 0, libc::IPPROTO_UDP, Label::Pass);
    a.op(LDX_H, SCRATCH, DATA, ETH + IPV6 + 2, 0);
    a.jump(JNE32_IMM, SCRATCH, 0, net16(port), Label::Pass);
    let ipv6 = addresses.iter().filter_map(|address| match address {
        IpAddr::V6(address) => Some(address.octets()),
        IpAddr::V4(_) => None,
    });
    for (index, octets) in ipv6.enumerate() {
        let (words, _) = octets.as_chunks::<4>();
        for (word, offset) in words.iter().zip([24, 28, 32, 36]) {
            a.op(LDX_W, SCRATCH, DATA, ETH + offset, 0);
            a.jump(JNE32_IMM, SCRATCH, 0, loaded32(*word), Label::NextIpv6(index));
        }
        a.jump(JA, 0, 0, 0, Label::Redirect);
        a.label(Label::NextIpv6(index));
    }
    a.jump(JA, 0, 0, 0, Label::Pass);

    // The map's answer for a queue without a socket is its third argument.
    a.label(Label::Redirect);
    a.op(LDX_W, ARG2, CONTEXT, xdp_md::RX_QUEUE_INDEX, 0);
    a.op(LD_IMM64, ARG1, PSEUDO_MAP_FD, 0, map);
    a.op(0, 0, 0, 0, 0);
    a.op(MOV64_IMM, ARG3, 0, 0, XDP_PASS);
    a.op(CALL, 0, 0, 0, HELPER_REDIRECT_MAP);
    a.op(EXIT, 0, 0, 0, 0);

    a.label(Label::Pass);
    a.op(MOV64_IMM, RESULT, 0, 0, XDP_PASS);
    a.op(EXIT, 0, 0, 0, 0);
    a.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program on a frame in a small interpreter: true if it was redirected. Written against
    /// instruction-set.rst alone, so that a wrong encoding shows here and not only under root.
    fn redirects(program: &[Instruction], frame: &[u8]) -> bool {
        const DATA: u64 = 0x1000;
        let mut r = [0_u64; 11];
        r[1] = 0x9000;
        let mut pc = 0;
        loop {
            let [code, registers, o0, o1, imm @ ..] = program[pc];
            let (dst, src) = (usize::from(registers & 15), usize::from(registers >> 4));
            let (offset, imm) = (i64::from(i16::from_le_bytes([o0, o1])), i32::from_le_bytes(imm));
            let load = |len: usize| -> u64 {
                let address = r[src].wrapping_add_signed(offset);
                if r[src] == 0x9000 {
                    return match offset {
                        0 => DATA,
                        4 => DATA + frame.len() as u64,
                        16 => 0,
                        _ => panic!("no such field of xdp_md"),
                    };
                }
                let at = usize::try_from(address - DATA).unwrap();
                frame[at..at + len].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
            };
            let mut jump = false;
            match code {
                LDX_W => r[dst] = load(4),
                LDX_H => r[dst] = load(2),
                LDX_B => r[dst] = load(1),
                LD_IMM64 => pc += 1,
                MOV64_REG => r[dst] = r[src],
                MOV64_IMM => r[dst] = imm as u64,
                ADD64_IMM => r[dst] = r[dst].wrapping_add_signed(imm.into()),
                AND64_IMM => r[dst] &= imm as u64,
                JA => jump = true,
                JGT_REG => jump = r[dst] > r[src],
                JEQ32_IMM => jump = r[dst] as u32 == imm as u32,
                JNE32_IMM => jump = r[dst] as u32 != imm as u32,
                CALL => return true,
                EXIT => {
                    assert_eq!(r[0], 2, "anything else passes to the kernel");
                    return false;
                }
                other => panic!("unknown opcode {other:#x}"),
            }
            pc += 1;
            if jump {
                pc = pc.checked_add_signed(isize::try_from(offset).unwrap()).unwrap();
            }
        }
    }

    fn ipv4(to: [u8; 4], port: u16) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14] = 0x45;
        frame[20] = 0x40;
        frame[23] = 17;
        frame[30..34].copy_from_slice(&to);
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        frame
    }

    fn ipv6(to: [u8; 16], port: u16) -> Vec<u8> {
        let mut frame = vec![0; 80];
        frame[12..14].copy_from_slice(&[0x86, 0xDD]);
        frame[14] = 0x60;
        frame[20] = 17;
        frame[38..54].copy_from_slice(&to);
        frame[56..58].copy_from_slice(&port.to_be_bytes());
        frame
    }

    #[test]
    fn only_rocev2_to_one_of_our_addresses_is_taken() {
        let ours6 = "2001:db8::7".parse::<std::net::Ipv6Addr>().unwrap().octets();
        let addresses =
            ["10.0.0.1", "10.0.0.9", "2001:db8::6", "2001:db8::7"].map(|address| address.parse().unwrap());
        let program = assemble(5, 4791, &addresses);

        assert!(redirects(&program, &ipv4([10, 0, 0, 1], 4791)));
        assert!(redirects(&program, &ipv4([10, 0, 0, 9], 4791)));
        assert!(redirects(&program, &ipv6(ours6, 4791)));

        assert!(!redirects(&program, &ipv4([10, 0, 0, 2], 4791)), "another host's");
        assert!(!redirects(&program, &ipv4([10, 0, 0, 1], 4790)), "another port");
        assert!(!redirects(&program, &ipv6(ours6, 4790)), "another port");
        assert!(!redirects(&program, &ipv6([0; 16], 4791)), "another host's");
        let spoil = |frame: Vec<u8>, at: usize, byte: u8| {
            let mut frame = frame;
            frame[at] = byte;
            frame
        };
        let good = ipv4([10, 0, 0, 1], 4791);
        assert!(!redirects(&program, &spoil(good.clone(), 23, 6)), "TCP");
        assert!(!redirects(&program, &spoil(good.clone(), 14, 0x46)), "IPv4 options");
        assert!(!redirects(&program, &spoil(good.clone(), 20, 0x20)), "first fragment");
        assert!(!redirects(&program, &spoil(good.clone(), 21, 1)), "later fragment");
        assert!(!redirects(&program, &spoil(good.clone(), 13, 6)), "ARP");
        assert!(!redirects(&program, &spoil(ipv6(ours6, 4791), 20, 44)), "IPv6 fragment");
        for len in 0..42 {
            assert!(!redirects(&program, &good[..len]), "a frame cut to {len} bytes");
        }
        for len in 42..62 {
            assert!(!redirects(&program, &ipv6(ours6, 4791)[..len]), "an IPv6 frame cut to {len} bytes");
        }
    }

    #[test]
    fn an_interface_without_addresses_takes_nothing() {
        assert!(!redirects(&assemble(5, 4791, &[]), &ipv4([0; 4], 4791)));
    }
}
