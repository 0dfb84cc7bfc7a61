# SPDX-License-Identifier: GPL-2.0
"""The test scripts' side of the runner: ask it to do something with a guest.

    on.py on GUEST SECONDS SCRIPT...    run a shell script in a guest; its output and exit code are ours
    on.py vm kill|start|pause|resume GUEST
    on.py vm link-down|link-up GUEST N  pull or plug the guest's Nth network cable
    on.py vm trace GUEST EVENT          have QEMU write down what its devices do
    on.py vm traced GUEST EVENT         the end of that, and what was written down
    on.py log wait GUEST SECONDS REGEX  wait for a kernel message of this test
    on.py log grep GUEST REGEX          the kernel messages of this test that match

Exit code 124: no end within the time; 125: the guest is gone or does not answer.
"""

import os
import socket
import sys


def main() -> int:
    control = os.environ.get("HCABLK_CONTROL")
    if not control:
        print("this runs under tests/run.sh only", file=sys.stderr)
        return 125
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(control)
    sock.sendall("\0".join(sys.argv[1:]).encode() + b"\0\0")
    stream = sock.makefile("rb")
    while head := stream.read(5):
        data = stream.read(int.from_bytes(head[1:], "little"))
        if head[:1] == b"x":
            return int(data)
        out = sys.stdout if head[:1] == b"o" else sys.stderr
        out.buffer.write(data)
        out.buffer.flush()
    print("the test runner is gone", file=sys.stderr)
    return 125


sys.exit(main())
