# SPDX-License-Identifier: GPL-2.0
"""What becomes of a test: whether what failed is tried again."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# A test that was late is run again until it has passed or been late twice.
DECIDES = 2


@dataclass
class Outcome:
    """What became of a test: of one try, or of all of them."""

    # "passed", "failed" or "skipped"; of one try also "late": nothing is wrong, but something ended after its time.
    result: str
    # Why it failed.
    reasons: list[str] = field(default_factory=list)
    # The points that were late, in any try.
    late: list[str] = field(default_factory=list)
    # The logs of the tries before the last.
    logs: list[str] = field(default_factory=list)


def late_points(log: str) -> list[str]:
    """The points of a script that were late, if no other point failed: see `late` of kselftest/lib/lib.sh."""
    failed = re.findall(r"^not ok \d+ - (.*)$", log, re.MULTILINE)
    late = [point.removesuffix(" # late") for point in failed if point.endswith(" # late")]
    return late if len(late) == len(failed) else []


class Tries:
    """The tries of one test so far.

    A test that was late is run again, and has failed when it was late twice of three times. Anything else that is wrong fails it at
    once, unless the kernel's RDMA stack has failed it (`kmsg.kernel_broke`), which is no fault of our drivers: then it is run once
    more.
    """

    def __init__(self, only_once: bool = False) -> None:
        # Who injects a bug has it found by the first point that fails.
        self.only_once = only_once
        self.passed = 0
        self.late = 0
        self.broke = ""
        self.points: list[str] = []
        self.logs: list[str] = []

    def again(self, outcome: Outcome, kernel_broke: str) -> str:
        """Why the test is to be run again after this try; "" if `outcome`, which is completed, is what became of it."""
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
