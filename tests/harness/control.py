# SPDX-License-Identifier: GPL-2.0
"""The socket over which test scripts reach the guests (see on.c)."""

from __future__ import annotations

import re
import socket
import socketserver
import threading
from pathlib import Path

from guest import Guest, GuestError

# The largest number of attempts to boot a guest.
BOOT_TRIES = 3


class Handler(socketserver.BaseRequestHandler):
    """One request of one script."""

    server: "Server"
    request: socket.socket

    def reply(self, kind: str, data: bytes) -> None:
        try:
            self.request.sendall(kind.encode() + len(data).to_bytes(4, "little") + data)
        except OSError:
            # The script has ended; `Guest.run` notices that, too.
            pass

    def handle(self) -> None:
        data = b""
        while not data.endswith(b"\0\0"):
            part = self.request.recv(65536)
            if not part:
                return
            data += part
        words = data[:-2].decode().split("\0")
        try:
            code = self.perform(words)
        except GuestError as err:
            self.reply("e", f"{err}\n".encode())
            code = 125
        except OSError as err:
            self.reply("e", f"{' '.join(words)}: {err!r}\n".encode())
            code = 125
        except (IndexError, KeyError, ValueError, re.error) as err:
            self.reply("e", f"bad request {words}: {err!r}\n".encode())
            code = 125
        self.reply("x", str(code).encode())

    def perform(self, words: list[str]) -> int:
        guests, begin = self.server.guests, self.server.begin
        match words:
            case ["on", name, seconds, *script]:
                guest = guests[name]
                return guest.run(" ".join(script), float(seconds) * guest.settings.slow, self.reply, self.request)
            case ["vm", "trace", name, event]:
                guests[name].trace(event)
                return 0
            case ["vm", "traced", name, event]:
                self.reply("o", guests[name].traced(event).encode())
                return 0
            case ["vm", action, name, *rest]:
                return self.machine(action, guests[name], rest)
            case ["log", "wait", name, seconds, pattern]:
                guest = guests[name]
                line = guest.wait_console(pattern, begin.get(name, 0), float(seconds) * guest.settings.slow)
                if line is None:
                    self.reply("e", f"{name}: no message like {pattern!r} within {seconds} s\n".encode())
                    return 124
                self.reply("o", f"{line}\n".encode())
                return 0
            case ["log", "grep", name, pattern]:
                # The kernel's messages are on the console before the mark, even if another processor was still
                # writing them.
                if guests[name].booted:
                    guests[name].mark("the log is read")
                lines = guests[name].console_text(begin.get(name, 0)).splitlines()
                found = [line for line in lines if re.search(pattern, line)]
                self.reply("o", "".join(f"{line}\n" for line in found).encode())
                return 0 if found else 1
        raise ValueError("unknown request")

    def machine(self, action: str, guest: Guest, rest: list[str]) -> int:
        match action:
            case "kill":
                self.server.kill(guest)
            case "start":
                self.server.start([guest])
            case "add-drive":
                guest.add_drive()
            case "off":
                return 0 if guest.wait_off(float(rest[0]) * guest.settings.slow) else 124
            case "pause":
                guest.qmp("stop")
            case "resume":
                guest.qmp("cont")
            case "link-down" | "link-up":
                guest.qmp("set_link", name=f"card{int(rest[0])}", up=action == "link-up")
            case _:
                raise ValueError(action)
        return 0


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Serves scripts until the run ends."""

    daemon_threads = True

    def __init__(self, path: Path, guests: dict[str, Guest]) -> None:
        super().__init__(str(path), Handler)
        self.guests = guests
        # The size of each guest's console when the running test began.
        self.begin: dict[str, int] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def start(self, guests: list[Guest]) -> None:
        """Start guests together, and wait until each of them reaches the running guest in the middle of its network."""
        for guest in guests:
            guest.start()
        for guest in guests:
            self.wait_booted(guest)
            guest.attach_drive()
        for middle in ("target", "host"):
            for guest in self.neighbours(self.guests[middle]):
                if guest in guests or self.guests[middle] in guests:
                    guest.wait_reaches(self.guests[middle].spec.address)
        # The started guests have connected to their neighbours by now.
        for guest in self.guests.values():
            try:
                guest.unblock()
            except OSError as err:
                print(f"# {guest.name} may stand still while a neighbour is paused: {err}", flush=True)

    def neighbours(self, guest: Guest) -> list[Guest]:
        """Return the running guests at the other ends of a running guest's cables."""
        cables = {cable for cable, _ in guest.spec.cables if cable}
        others = (other for other in self.guests.values() if other is not guest and other.booted)
        return [other for other in others if guest.booted and cables & {cable for cable, _ in other.spec.cables}]

    def wait_booted(self, guest: Guest) -> None:
        """Wait until a guest has booted. An emulated machine sometimes hangs or dies before any program runs in it,
        while its kernel switches clocks or patches its code (int3): the guest is then started again with a remark, and
        its kernel's messages fail no test."""
        for left in range(BOOT_TRIES - 1, -1, -1):
            try:
                return guest.wait_booted()
            except GuestError as err:
                if not left:
                    raise
                print(f"# {err}: started anew", flush=True)
                self.kill(guest)
                guest.forget_boot()
                guest.start()

    def kill(self, guest: Guest) -> None:
        """Kill a guest, and unblock its neighbours."""
        guest.kill()
        cables = {cable for cable, _ in guest.spec.cables}
        for other in self.guests.values():
            if other is not guest and cables & {cable for cable, _ in other.spec.cables}:
                other.let_go()
