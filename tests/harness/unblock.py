# SPDX-License-Identifier: GPL-2.0
"""Makes an emulator's sockets non-blocking.

QEMU leaves the connections that `-netdev stream,server=on` accepts blocking. A stopped guest reads nothing: when the
socket to it is full, its neighbour's emulator waits in the middle of a packet, and all processors of that guest stop.
"""

import ctypes
import fcntl
import os
import re
from pathlib import Path

# include/uapi/asm-generic/unistd.h; Python has no function for it.
PIDFD_GETFD = 438


def unblock(pid: int) -> None:
    """Make all sockets of a process non-blocking."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    try:
        # The process id in /proc's namespace, which may differ.
        known = re.search(r"^Pid:\s*([0-9]+)$", Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii"), re.M)
        if known is None:
            raise OSError(f"/proc does not know process {pid}")
        pid = int(known[1])
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if not os.readlink(entry).startswith("socket:"):
                    continue
                info = Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text(encoding="ascii")
            except FileNotFoundError:
                continue
            flags = re.search(r"^flags:\s*([0-7]+)$", info, re.M)
            if flags is None or int(flags[1], 8) & os.O_NONBLOCK:
                continue
            # Only the descriptor is copied; the flag belongs to the socket.
            copy = libc.syscall(PIDFD_GETFD, pidfd, int(entry.name), 0)
            if copy < 0:
                raise OSError(ctypes.get_errno(), f"pidfd_getfd: {os.strerror(ctypes.get_errno())}")
            fcntl.fcntl(copy, fcntl.F_SETFL, fcntl.fcntl(copy, fcntl.F_GETFL) | os.O_NONBLOCK)
            os.close(copy)
    finally:
        os.close(pidfd)
