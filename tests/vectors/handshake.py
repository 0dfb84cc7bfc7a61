#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Computes the test vectors of the handshake from docs/reference/protocol.md, without code of hcablk.

handshake.py          compares handshake.txt with the computed vectors; exit code 1 if they differ
handshake.py --write  writes it

rust/proto/auth/tests.rs compares the same file with the results of the modules' code.
"""

import hashlib
import hmac
import struct
import sys
import uuid
from pathlib import Path

FILE = Path(__file__).with_name("handshake.txt")
P = 2**255 - 19


def x25519(private: bytes, point: bytes) -> bytes:
    """RFC 7748, section 5."""
    k = bytearray(private)
    k[0] &= 248
    k[31] = k[31] & 127 | 64
    scalar = int.from_bytes(k, "little")
    u = int.from_bytes(point, "little") & (1 << 255) - 1
    x1, x2, z2, x3, z3, swap = u, 1, 0, u, 1, 0
    for t in reversed(range(255)):
        bit = scalar >> t & 1
        if swap ^ bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = bit
        a, b = x2 + z2, x2 - z2
        aa, bb = a * a % P, b * b % P
        e = aa - bb
        da, cb = (x3 - z3) * a % P, (x3 + z3) * b % P
        x3, z3 = (da + cb) ** 2 % P, x1 * (da - cb) ** 2 % P
        x2, z2 = aa * bb % P, e * (aa + 121665 * e) % P
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


def mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def label(text: str) -> bytes:
    return f"hcablk/2 {text:7}".encode()


def compute() -> dict[str, bytes]:
    v: dict[str, bytes] = {}

    def number(name: str, first: int, length: int = 32) -> bytes:
        v[name] = bytes((first + 7 * i) % 256 for i in range(length))
        return v[name]

    host_key, target_key = number("host_key", 0x10), number("target_key", 0x80)
    initiator_gid, target_gid = number("initiator_gid", 3, 16), number("target_gid", 4, 16)
    initiator_ip, target_ip = number("initiator_ip", 5, 16), number("target_ip", 6, 16)
    initiator_port = v["initiator_port"] = struct.pack("<H", 0x9C41)
    target_port = v["target_port"] = struct.pack("<H", 7744)
    initiator_qp = v["initiator_qp"] = struct.pack("<I", 0x11)
    target_qp = v["target_qp"] = struct.pack("<I", 0x2345)
    initiator_private, target_private = number("initiator_private", 0x21), number("target_private", 0x42)
    nonce = number("target_nonce", 0x63)

    # The request for an admin queue pair, with the flag that a proof will follow.
    proves, resume = 0x4000, 0x8000

    def head(queue: int) -> bytes:
        return struct.pack("<4sBBHBBHQI", b"HCAB", 2, 2, 128, queue, 4, proves | resume, 0x1122334455667788, 7)

    names = uuid.UUID("6fa459ea-ee8a-3ca4-894e-db77e160355e").bytes + b"vol0".ljust(16, b"\0")
    hello = v["hello"] = head(255) + names
    basepoint = (9).to_bytes(32, "little")
    challenge = v["challenge"] = (
        struct.pack("<4sHBBHHI", b"HCAB", 12, 2, 3, 0x1234, 0x4000, 0) + nonce + x25519(target_private, basepoint)
    )
    share = x25519(initiator_private, basepoint)
    proof = struct.pack("<4sBBH", b"HCAB", 2, 2, 0x8000 | 0x4000 | 0x1234) + share
    shared = x25519(initiator_private, challenge[48:])
    assert shared == x25519(target_private, share)

    ends = initiator_gid + target_gid + initiator_ip + target_ip + initiator_port + target_port
    asking = ends + initiator_qp + bytes(4)
    answering = ends + initiator_qp + target_qp
    pair = v["pair_key"] = mac(host_key, label("pair"), target_key)
    key = mac(pair, label("shake"), asking, hello, challenge, proof, shared)
    proof_mac = mac(key, label("proof"))[:16]
    v["proof"] = proof + proof_mac
    session_key = mac(key, label("session"))

    reply, handle = number("reply", 0x5A, 88), struct.pack("<Q", 0x0123456789ABCDEF)
    v["sealed_reply"] = reply + handle + mac(session_key, label("reply"), answering, proof_mac, reply, handle)[:16]
    request = head(3) + handle + struct.pack("<Q", 1)
    v["sealed_request"] = request + mac(session_key, label("request"), asking, request)[:16]
    reject = struct.pack("<4sHBBQ", b"HCAB", 10, 2, 3, 0)
    v["sealed_reject"] = reject + mac(session_key, label("reject"), asking, proof_mac, reject)[:16]
    entry = number("entry", 0x37, 64)
    v["sealed_entry"] = entry + mac(session_key, label("entry"), asking, proof_mac, entry)[:16]
    return v


def main() -> int:
    # RFC 7748, section 6.1.
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    public = x25519(bob, (9).to_bytes(32, "little")).hex()
    assert public == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f", public
    text = "# Made by handshake.py; all numbers in hexadecimal, in the order in which they are sent.\n"
    text += "".join(f"{name} = {value.hex()}\n" for name, value in compute().items())
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(text)
        return 0
    if FILE.read_text() != text:
        print(f"{FILE.name} differs from the numbers that follow from docs/reference/protocol.md", file=sys.stderr)
        return 1
    print(f"{FILE.name}: {len(compute())} numbers are as they should be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
