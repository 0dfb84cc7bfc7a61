# SPDX-License-Identifier: GPL-2.0
"""A lane: one set of guests, and the tests that run on it one after the other."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import monotonic

import kmsg
from control import Server
from guest import Guest, GuestError, Settings, Spec
from script import INTERPRETERS, LIBRARIES, Test
from tries import Outcome, Tries, late_points

TESTS = Path(__file__).resolve().parent.parent
FAILED, SKIPPED = 1, 4
RESET_SECONDS = 120

Say = Callable[[str], None]


class Lane:
    """A target and its clients, with their own network."""

    def __init__(self, settings: Settings, name: str, clients: int) -> None:
        work, logs = settings.work / name, settings.logs / name
        work.mkdir()
        logs.mkdir(exist_ok=True)
        self.name = name
        self.settings = replace(settings, work=work, logs=logs)
        names = [f"c{n}" for n in range(1, clients + 1)]
        specs = [Spec("target", 1, [(c, True) for c in names], drives=[1024, 512, 64], drive_memory=16, memories=[16, 4, 4])]
        specs += [Spec(c, n + 2, [(c, False)]) for n, c in enumerate(names)]
        # Target and initiator in one guest, with the tests' own RDMA devices.
        specs += [
            Spec(name, n, [("", False)], drives=[1024, 512, 64], drive_memory=16, memories=[16, 4, 4], hcas=2, **how)
            for name, n, how in (("hca", 20, {}), ("hca-iommu", 21, {"iommu": True}), ("hca-bounce", 23, {"bounce": True}))
        ]
        # The same with many processors, and therefore with many hardware queues.
        specs += [Spec("hca-wide", 24, [("", False)], drives=[1024, 512, 64], hcas=2, cpus=32, memory=3072)]
        # A guest whose firmware has a key for modules.
        specs += [Spec("uefi", 22, [("", False)], firmware=True)]
        # Two targets and a host between them, which reaches either while the other has no power. Both targets have two
        # drives in common.
        specs += [Spec("host", 40, [("t1", True), ("t2", True)], rare=True)]
        specs += [Spec(f"t{n}", 40 + n, [(f"t{n}", False)], drives=[256], shared=[64, 32], rare=True) for n in (1, 2)]
        if settings.system is not None:
            # Whole Debian machines: a target, and two clients.
            specs += [Spec("mt", 31, [("m1", True), ("m2", True)], drives=[512], machine=True)]
            specs += [Spec(f"m{n}", 31 + n, [(f"m{n}", False)], machine=True) for n in (1, 2)]
        self.guests = {spec.name: Guest(self.settings, spec) for spec in specs}
        self.server = Server(work / "control", self.guests)
        # The length of each guest's console that was searched for complaints.
        self.scanned: dict[str, int] = {}
        # The seconds of booting and of resetting the guests for the last test.
        self.boot_seconds = 0.0
        self.reset_seconds = 0.0
        # The failure of the kernel's RDMA stack that may have failed the last test.
        self.kernel_broke = ""

    def boot(self, names: list[str], say: Say) -> None:
        """Start all guests that are not running, together."""
        # Guests that few tests need do not keep running.
        for guest in self.guests.values():
            spec = guest.spec
            if (spec.hcas or spec.machine or spec.firmware or spec.rare) and guest.name not in names:
                guest.kill()
        missing = [self.guests[name] for name in names if not self.guests[name].booted]
        if not missing:
            return
        started = monotonic()
        for guest in missing:
            self.server.kill(guest)
        self.server.start(missing)
        self.boot_seconds = monotonic() - started
        say(f"# booted {', '.join(g.name for g in missing)} in {self.boot_seconds:.1f} s")

    def processor_seconds(self) -> float:
        """Return the processor time that these guests have used since the run began."""
        return sum(guest.processor_seconds() for guest in self.guests.values())

    def environment(self, number: int = 1) -> dict[str, str]:
        """Return a script's environment for its `number`th run."""
        env = dict(os.environ)
        env["HCABLK_CONTROL"] = str(self.settings.work / "control")
        env["HCABLK_ON"] = str(self.settings.on)
        env["HCABLK_LOGS"] = str(self.settings.logs)
        env["HCABLK_SLOW"] = str(self.settings.slow)
        env["HCABLK_RDMA"] = self.settings.rdma
        # Python tests find their shared module here.
        env["PYTHONPATH"] = str(TESTS / "kselftest" / LIBRARIES)
        env["HCABLK_TRY"] = str(number)
        env["TMPDIR"] = str(self.settings.work)
        return env

    def script(self, test: Test, log: Path, number: int, say: Say) -> int:
        """Run a script; its output goes to the log and, as TAP's subtest, to `say`."""
        with open(log, "wb") as errors:
            process = subprocess.Popen(
                [*INTERPRETERS[test.path.suffix], test.path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self.environment(number),
                start_new_session=True,
            )
            assert process.stdout is not None
            too_long = threading.Event()

            def stop() -> None:
                too_long.set()
                os.killpg(process.pid, signal.SIGKILL)

            timer = threading.Timer(test.timeout * self.settings.slow, stop)
            timer.start()
            try:
                for line in process.stdout:
                    text = line.decode(errors="replace").rstrip()
                    errors.write(line)
                    errors.flush()
                    say(f"    {text}")
                return 124 if process.wait() != 0 and too_long.is_set() else process.returncode
            finally:
                timer.cancel()

    def reset(self, guest: Guest, test: Test) -> list[str]:
        """Reset a guest to its state after boot; return what could not be reset."""
        if not guest.booted:
            return []
        # The search for leaks takes 5 to 15 s: only in guests that may have loaded our modules.
        leaks = "leaks" if guest.name in self.needed(test) and test.feature != "harness" else ""
        try:
            # A whole machine is not reset, but recreated for the next test.
            reset = "true" if guest.spec.machine else f"hcablk-reset {leaks}"
            code, output = guest.shell(reset, RESET_SECONDS * self.settings.slow)
            guest.mark(f"end of {test.name}")
        except GuestError as err:
            return [str(err)]
        return [f"left behind: {line}" for line in output.splitlines()] if code != 0 else []

    def finish(self, test: Test) -> list[str]:
        """Reset the guests and read their logs; return the complaints."""
        wrong: list[str] = []
        started = monotonic()
        # All at the same time: resetting is mostly waiting.
        with ThreadPoolExecutor() as pool:
            resets = {name: pool.submit(self.reset, guest, test) for name, guest in self.guests.items()}
        for guest in self.guests.values():
            complaints = resets[guest.name].result()
            wrong += complaints
            # The console of a dead guest is read, too.
            text = guest.complaints_text(self.scanned.get(guest.name, 0))
            self.kernel_broke = self.kernel_broke or kmsg.kernel_broke(text)
            lines = kmsg.trouble(text, test.expect_log)
            wrong += [f"{guest.name}'s kernel: {line}" for line in lines[:40]]
            if complaints or lines:
                self.diagnose(guest)
            # Some of these are reported only once per boot, and lockdep is off after its first report: even after an
            # expected report the guest would not notice the next.
            if complaints or kmsg.reports(text):
                self.server.kill(guest)
            try:
                guest.remove_drive()
            except GuestError as err:
                wrong.append(str(err))
                self.server.kill(guest)
            if guest.spec.machine:
                guest.forget()
            self.scanned[guest.name] = guest.console_size()
        self.reset_seconds = monotonic() - started
        return wrong

    def diagnose(self, guest: Guest) -> None:
        """Make a guest that is about to be killed log what its tasks wait for."""
        if not guest.booted:
            return
        try:
            guest.shell("cat /proc/modules; ps; rdma resource; grep -r . /sys/kernel/config/hcablk*/", 20)
            guest.shell("echo hcablk-test: blocked tasks: > /dev/kmsg; echo w > /proc/sysrq-trigger", 20)
            guest.mark("end of diagnosis")
        except GuestError:
            pass

    def begin(self, test: Test, names: list[str], say: Say) -> None:
        """Start the test's guests, and mark the beginning of the test in their logs."""
        self.server.begin.clear()
        self.boot_seconds = self.reset_seconds = 0.0
        self.boot(names, say)
        with ThreadPoolExecutor() as pool:
            marks = {name: pool.submit(self.guests[name].mark, f"begin of {test.name}") for name in names}
        self.server.begin.update({name: mark.result() for name, mark in marks.items()})

    def run(self, test: Test, say: Say) -> Outcome:
        """Run one test, and again on fresh guests if `Tries` requires it. Failures of earlier tries are shown, but are
        not TAP points."""
        tries = Tries(only_once=bool(os.environ.get("HCABLK_STOP_AT")))
        while True:
            held: list[str] = []

            def hold(line: str) -> None:
                # Lines are shown at once until a point fails.
                if held or line.lstrip().startswith("not ok "):
                    held.append(line)
                else:
                    say(line)

            number = len(tries.logs) + 1
            outcome = self.attempt(test, number, hold)
            again = tries.again(outcome, self.kernel_broke)
            for line in held:
                say(f"    # before: {line.strip()}" if again else line)
            if not again:
                return self.check_lateness(test, outcome)
            for line in outcome.reasons:
                say(f"    # before: {line}")
            say(f"# {test.name}: run again on fresh guests: {again}")
            log = self.log(test)
            tries.logs.append(str(log.rename(log.with_suffix(f".try{number}.log"))))
            for name in self.needed(test):
                self.server.kill(self.guests[name])

    def check_lateness(self, test: Test, outcome: Outcome) -> Outcome:
        """Return the outcome of a test; one that must be late at first fails if it was not."""
        if not test.must_be_late or outcome.result == "failed":
            return outcome
        if not any(re.search(test.must_be_late, point) for point in outcome.late):
            return Outcome("failed", [f"this test has to be late at first in {test.must_be_late!r}, but: {outcome.late}"])
        return Outcome(outcome.result)

    def log(self, test: Test) -> Path:
        """Return the path of a test's log, which depends on the test's name only, not on its lane."""
        log = self.settings.logs.parent / f"{test.name}.log"
        log.parent.mkdir(exist_ok=True)
        return log

    def needed(self, test: Test) -> list[str]:
        """Return the guests for a test; with --rdma hca, the one guest that has two of the tests' own RDMA devices."""
        if self.settings.rdma != "hca" or self.guests[test.guests[0]].spec.hcas:
            return test.guests
        return ["hca"]

    def attempt(self, test: Test, number: int, say: Say) -> Outcome:
        """Run one try of a test: see `run`."""
        self.kernel_broke = ""
        log = self.log(test)
        log.touch()
        try:
            self.begin(test, self.needed(test), say)
        except GuestError as err:
            return Outcome("failed", [str(err)])
        code = self.script(test, log, number, say)
        reasons: list[str] = []
        late: list[str] = []
        if code == 124:
            reasons.append(f"no end after {test.timeout * self.settings.slow:g} s")
        elif code not in (0, SKIPPED):
            reasons.append(f"exit code {code}")
        if reasons:
            text = log.read_text(errors="replace")
            late = late_points(text) if code == FAILED else []
            tail = [x for x in text.splitlines() if not re.match(r"ok |1\.\.|TAP ", x)]
            reasons += [f"| {line}" for line in tail[-25:]]
        wrong = self.finish(test)
        reasons += wrong
        if test.must_fail:
            text = "\n".join(reasons)
            missing = [pattern for pattern in test.must_fail if not re.search(pattern, text)]
            if not missing:
                return Outcome("passed")
            return Outcome("failed", [f"this test has to fail with {missing!r}, too, but:", *reasons])
        if late and not wrong:
            return Outcome("late", reasons, late)
        if reasons:
            return Outcome("failed", reasons)
        if code != SKIPPED:
            return Outcome("passed")
        # Otherwise a missing feature would go unnoticed.
        if not self.settings.kinds.intersection(test.skips):
            return Outcome("failed", [f"it may not be skipped on {' '.join(sorted(self.settings.kinds))}"])
        return Outcome("skipped")

    def demo(self, script: Path, say: Say) -> int:
        """Run a demonstration script on fresh guests, without TAP."""
        test = Test(script)
        self.begin(test, list(self.guests), say)
        code = subprocess.run(["bash", script], env=self.environment(), check=False).returncode
        wrong = self.finish(test)
        for line in wrong:
            say(line)
        return 1 if wrong else code

    def close(self) -> None:
        for guest in self.guests.values():
            guest.kill()
