# SPDX-License-Identifier: GPL-2.0
"""A drive whose volatile write cache is lost with the power: an NBD server next to QEMU.

The file of any other drive survives a killed QEMU, with all that was ever written to it. Here nbdkit's cache filter
keeps writes in a temporary file until a flush copies them to the drive's file, and SIGKILL loses the writes that were
not copied.
"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

MIB = 512
# The cache is written back in blocks of this size, which the drive reports as its physical block size. nbdkit's default is
# 64 KiB: a write with FUA would save 64 KiB of its neighbours' unflushed data as well.
BLOCK = 4096


class VolatileDrive:
    """The file of one drive, and the server that holds its write cache while the drive has power."""

    def __init__(self, file: Path, log: Path) -> None:
        self.file = file
        self._log = log
        self._server: subprocess.Popen[bytes] | None = None
        with open(file, "wb") as empty:
            empty.truncate(MIB << 20)

    def power_on(self) -> socket.socket:
        """Start the server, with an empty cache; returns the client's end of its only connection."""
        ours, theirs = socket.socketpair()
        # No cache-max-size: evicting data would save it. The filter that is nearer to the file, fua, spares the host
        # fdatasync(): data in a file survives the server without it.
        command = ["nbdkit", "--single", "--filter=cache", "--filter=fua", "file", str(self.file)]
        command += ["cache=writeback", f"cache-min-block-size={BLOCK}", "fuamode=discard"]
        with theirs, open(self._log, "ab") as log:
            self._server = subprocess.Popen(
                command,
                stdin=theirs,
                stdout=theirs,
                stderr=log,
                # The folder of the temporary file, which has no name.
                env={**os.environ, "TMPDIR": str(self.file.parent)},
                start_new_session=True,
            )
        return ours

    def power_off(self) -> None:
        """Kill the server, and lose all data that was not flushed."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None

    def remove(self) -> None:
        """Kill the server, and delete the drive's file."""
        self.power_off()
        self.file.unlink()
