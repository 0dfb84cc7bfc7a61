# SPDX-License-Identifier: GPL-2.0
"""Determines whether guests run with KVM or are emulated."""

from __future__ import annotations

import os
from pathlib import Path

from guest import Guest, Settings, Spec


def accelerator(settings: Settings, cache: Path) -> str:
    """Return "kvm" if KVM really runs a guest, else "tcg": the device node alone proves nothing.

    The answer is cached until the machine boots again.
    """
    wanted = os.environ.get("HCABLK_ACCEL", "")
    if wanted in ("kvm", "tcg"):
        return wanted
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    known = cache / "guest" / "accel"
    if known.exists() and known.read_text(encoding="ascii").split()[:1] == [boot]:
        return known.read_text(encoding="ascii").split()[1]
    settings.accel, settings.append = "kvm", "guest.probe"
    probe = Guest(settings, Spec("probe", 99, []))
    probe.start()
    answer = "kvm" if probe.wait_console("hcablk-test: probe", 0, 15) else "tcg"
    probe.kill()
    settings.append = ""
    known.write_text(f"{boot} {answer}\n", encoding="ascii")
    return answer
