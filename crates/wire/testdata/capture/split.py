#!/usr/bin/env python3
"""Picks one packet per golden file out of a capture: split.py capture.pcap OUTPUT_DIR

Knows the opcodes' numbers by itself, so that a mistake in our table would not be repeated here.
"""

import struct
import sys

NAMES = {
    0x00: "rc-send-first", 0x01: "rc-send-middle", 0x02: "rc-send-last", 0x03: "rc-send-last-with-immediate",
    0x04: "rc-send-only", 0x05: "rc-send-only-with-immediate", 0x06: "rc-rdma-write-first",
    0x07: "rc-rdma-write-middle", 0x08: "rc-rdma-write-last", 0x09: "rc-rdma-write-last-with-immediate",
    0x0A: "rc-rdma-write-only", 0x0B: "rc-rdma-write-only-with-immediate", 0x0C: "rc-rdma-read-request",
    0x0D: "rc-rdma-read-response-first", 0x0E: "rc-rdma-read-response-middle",
    0x0F: "rc-rdma-read-response-last", 0x10: "rc-rdma-read-response-only", 0x11: "rc-acknowledge",
    0x12: "rc-atomic-acknowledge", 0x13: "rc-cmpswap", 0x14: "rc-fetchadd",
    0x16: "rc-send-last-with-invalidate", 0x17: "rc-send-only-with-invalidate", 0x1C: "rc-flush",
    0x1D: "rc-atomic-write",
    0x20: "uc-send-first", 0x21: "uc-send-middle", 0x22: "uc-send-last", 0x23: "uc-send-last-with-immediate",
    0x24: "uc-send-only", 0x25: "uc-send-only-with-immediate", 0x26: "uc-rdma-write-first",
    0x27: "uc-rdma-write-middle", 0x28: "uc-rdma-write-last", 0x29: "uc-rdma-write-last-with-immediate",
    0x2A: "uc-rdma-write-only", 0x2B: "uc-rdma-write-only-with-immediate",
    0x64: "ud-send-only", 0x65: "ud-send-only-with-immediate",
}
NAKS = {0x60: "nak-psn-sequence-error", 0x61: "nak-invalid-request", 0x62: "nak-remote-access-error",
        0x63: "nak-remote-operational-error"}
CM = {0x10: "cm-req", 0x11: "cm-mra", 0x12: "cm-rej", 0x13: "cm-rep", 0x14: "cm-rtu", 0x15: "cm-dreq",
      0x16: "cm-drep", 0x17: "cm-sidr-req", 0x18: "cm-sidr-rep"}


def name(frame, previous):
    """The packet's golden name: the opcode, then what is special about this packet."""
    v6 = frame[12:14] == b"\x86\xdd"
    bth = frame[14 + (40 if v6 else 20) + 8:-4]
    opcode, pad = bth[0], bth[1] >> 4 & 3
    parts = [NAMES[opcode]]
    if opcode == 0x11 and bth[12] >> 5 == 1:
        parts.append("rnr-nak")
    if opcode == 0x11 and bth[12] in NAKS:
        parts.append(NAKS[bth[12]])
    if opcode == 0x10 and previous == 0x1C:
        parts.append("answer-to-flush")
    if opcode == 0x10 and previous == 0x1D:
        parts.append("answer-to-atomic-write")
    if opcode == 0x0A and len(bth) == 28:
        parts.append("empty")
    if opcode == 0x1C:
        parts.append({0x01: "global-range", 0x11: "global-mr", 0x02: "persistent-range"}[bth[15]])
    if opcode == 0x64 and bth[5:8] == b"\0\0\1":
        parts.append(CM[int.from_bytes(bth[36:38], "big")])
    if v6:
        parts.append("ipv6")
    return ".".join(parts), opcode


def main(source, target):
    data = open(source, "rb").read()
    header, at, previous, seen = data[:24], 24, None, set()
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at + 8)
        record = data[at:at + 16 + length]
        at += len(record)
        golden, previous = name(record[16:], previous)
        if golden not in seen:
            seen.add(golden)
            open(f"{target}/{golden}.pcap", "wb").write(header + record)
    print(f"{len(seen)} files")


main(*sys.argv[1:])
