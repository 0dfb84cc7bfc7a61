# SPDX-License-Identifier: GPL-2.0
"""Decides the outcome of a test, and whether a failed test is tried again."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# A late test is run again until it has passed or been late this number of times.
DECIDES = 2


@dataclass
class Outcome:
    """The outcome of a test: of one try, or of all of them."""

    # "passed", "failed" or "skipped"; of one try also "late": nothing failed, but something ended after its time limit.
    result: str
    # The reasons of a failure.
    reasons: list[str] = field(default_factory=list)
    # The points that were late, in any try.
    late: list[str] = field(default_factory=list)
    # The logs of the tries before the last.
    logs: list[str] = field(default_factory=list)


def late_points(log: str) -> list[str]:
    """Return the points of a script that were late, if no other point failed: see `late` of kselftest/lib/lib.sh."""
    failed = re.findall(r"^not ok \d+ - (.*)$", log, re.MULTILINE)
    late = [point.removesuffix(" # late") for point in failed if point.endswith(" # late")]
    return late if len(late) == len(failed) else []


class Tries:
    """The tries of one test so far.

    A late test is run again, and has failed when it was late in two of three tries. Any other failure is final, unless
    the kernel's RDMA stack has caused it (`kmsg.kernel_broke`), which is not our drivers' fault: then the test is run
    once more.
    """

    def __init__(self, only_once: bool = False) -> None:
        # A run with an injected bug ends at the first point that finds the bug.
        self.only_once = only_once
        self.passed = 0
        self.late = 0
        self.broke = ""
        self.points: list[str] = []
        self.logs: list[str] = []

    def again(self, outcome: Outcome, kernel_broke: str) -> str:
        """Return the reason to run the test again after this try; "" if `outcome`, which is completed, is final."""
        again = ""
        if outcome.result == "late":
            self.late += 1
            self.points += outcome.late
            if self.late < DECIDES and not self.only_once:
                again = f"late: {', '.join(outcome.late)}"
            else:
                outcome.result = "failed"
        elif outcome.result == "failed" and kernel_broke and not self.broke:
            again = self.broke = kernel_broke
        elif outcome.result == "passed":
            self.passed += 1
            if self.late and self.passed < DECIDES:
                again = "it was late before"
        if not again:
            outcome.late, outcome.logs = self.points, self.logs
            if outcome.result == "failed" and self.logs:
                outcome.reasons.append(f"tries before: {' '.join(self.logs)}")
        return again
