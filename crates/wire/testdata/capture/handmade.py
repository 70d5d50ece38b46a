#!/usr/bin/env python3
"""Builds the golden packets that Linux 6.12 Soft-RoCE cannot be made to send: handmade.py OUTPUT_DIR

Written from the specification's tables with nothing but struct and zlib.crc32, so that it shares no mistake with
the crate that reads the result.
"""

import socket
import struct
import sys
import zlib

A4, B4 = socket.inet_aton("10.77.0.3"), socket.inet_aton("10.77.0.2")
A6, B6 = (socket.inet_pton(socket.AF_INET6, a) for a in ("fd77::3", "fd77::2"))
PORT = 0xC0DE


def checksum(header):
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def frame(body, v6=False, ip_id=0, tos=0x60, ttl=64):
    """Ethernet, IP and UDP around BTH ... pad, and the ICRC behind it."""
    udp_len = 8 + len(body) + 4
    udp = struct.pack(">HHHH", PORT, 4791, udp_len, 0)
    masked_udp = struct.pack(">HHHH", PORT, 4791, udp_len, 0xFFFF)
    masked_bth = body[:4] + b"\xff" + body[5:]
    if v6:
        ip = struct.pack(">IHBB", 6 << 28 | tos << 20 | 0x12345, udp_len, 17, ttl) + A6 + B6
        masked_ip = struct.pack(">IHBB", 0x6FFFFFFF, udp_len, 17, 255) + A6 + B6
    else:
        ip = struct.pack(">BBHHHBBH", 0x45, tos, 20 + udp_len, ip_id, 0x4000, ttl, 17, 0) + A4 + B4
        ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
        masked_ip = struct.pack(">BBHHHBBH", 0x45, 255, 20 + udp_len, ip_id, 0x4000, 255, 17, 0xFFFF) + A4 + B4
    icrc = zlib.crc32(b"\xff" * 8 + masked_ip + masked_udp + masked_bth)
    ethernet = bytes.fromhex("525400770002525400770003") + (b"\x86\xdd" if v6 else b"\x08\x00")
    return ethernet + ip + udp + body + struct.pack("<I", icrc)


def bth(opcode, qpn, psn, flags=0, congestion=0, ack=0):
    return struct.pack(">BBHII", opcode, flags, 0xFFFF, congestion << 24 | qpn, ack << 31 | psn)


def cm(attribute, data):
    """A CM MAD in UD SEND Only to QP 1, with the Q_Key of QP 1."""
    mad = struct.pack(">BBBBHHQHHI", 1, 7, 2, 3, 0, 0, 0x1122334455667788, attribute, 0, 0) + data
    return bth(0x64, 1, 0x123456) + struct.pack(">II", 0x80010000, 1) + mad.ljust(256, b"\0")


GID_A = b"\0" * 10 + b"\xff\xff" + A4
GID_B = b"\0" * 10 + b"\xff\xff" + B4
LAP = (struct.pack(">IIIII", 0x0A0B0C0D, 0x1A1B1C1D, 0, 0x000011 << 8 | 20 << 3, 0)
       + struct.pack(">HH", 0xFFFF, 0xFFFF) + GID_A + GID_B
       + bytes([0xAB, 0xCD, 0xE0, 0x60, 64, 0x0A, 0x38, 17 << 3]) + b"\xd1" * 168)

PACKETS = {
    # A router marked it: BECN in the answer, and the DSCP that switches give CNPs (Annex A17).
    "cnp": frame(bth(0x81, 0x11, 0, congestion=0x40) + b"\0" * 16, tos=48 << 2),
    "cnp.ipv6": frame(bth(0x81, 0x11, 0, congestion=0x40) + b"\0" * 16, v6=True, tos=48 << 2),
    # Soft-RoCE never grants credits: 0x0b stands for 48.
    "rc-acknowledge.credits-48": frame(bth(0x11, 0x11, 0x5A0102) + struct.pack(">I", 0x0B << 24 | 7)),
    # What a batch of our own sends look like: identification 3 for the fourth segment, marked by a router, FECN.
    "uc-rdma-write-only.congestion": frame(
        bth(0x2A, 0x24, 0xFFFFFF, flags=0x80 | 0x40 | 3 << 4, congestion=0xC0)
        + struct.pack(">QII", 0xFFFFFFFFFFFFFFF0, 0x89ABCDEF, 5) + b"hello\0\0\0", ip_id=3, tos=0x63, ttl=1),
    "ud-send-only.cm-mra": frame(cm(0x11, struct.pack(">IIBB", 0x0A0B0C0D, 0x1A1B1C1D, 1 << 6, 22 << 3) + b"\xd2" * 222)),
    "ud-send-only.cm-lap": frame(cm(0x19, LAP)),
    "ud-send-only.cm-apr": frame(cm(0x1A, struct.pack(">IIBBH", 0x1A1B1C1D, 0x0A0B0C0D, 4, 2, 0) + b"\xe3" * 72 + b"\xd3" * 148)),
}

for name, packet in PACKETS.items():
    header = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1)
    record = struct.pack("<IIII", 0, 0, len(packet), len(packet))
    open(f"{sys.argv[1]}/{name}.pcap", "wb").write(header + record + packet)
