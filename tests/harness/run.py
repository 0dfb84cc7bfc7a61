# SPDX-License-Identifier: GPL-2.0
"""Boot guests and run tests with them (called by tests/run.sh, inside the build root).

Prints TAP version 14 and, as the last line, how many tests passed, failed and were skipped. With several lanes, tests
run side by side, each lane with its own guests; the output of a test is printed when the test has ended.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType

import image
from accel import accelerator
from guest import GuestError, Settings
from lane import Lane
from script import Test, chosen, next_test, read_tests
from tries import Outcome

TESTS = Path(__file__).resolve().parent.parent
PROCESSORS = os.cpu_count() or 1
# For each number of lanes, the seconds of tests (`takes` in their headers) that they run in a second.
USUAL_SPEED = {1: 2.0, 2: 2.4, 3: 2.7}
# An emulated processor without fast string instructions: QEMU emulates them byte by byte, and Linux would clear and
# copy all memory with them. Without them this takes a third of the time.
PROCESSOR = "max,la57=off,erms=off,fsrm=off,fzrm=off,fsrs=off,fsrc=off"


def say(text: str = "") -> None:
    print(text, flush=True)


class Run:
    """The lanes of one run, and the tests for them."""

    def __init__(self, args: argparse.Namespace) -> None:
        # Deleted when this process ends.
        self.folder = tempfile.TemporaryDirectory(prefix="hcablk-", ignore_cleanup_errors=True)
        self.logs = Path(args.logs)
        self.logs.mkdir(parents=True, exist_ok=True)
        cache, work = Path(args.cache), Path(self.folder.name)
        modules = sorted(Path(args.modules).glob("hcablk*.ko")) if args.modules else []
        modules += sorted(Path(args.missing).glob("*.ko")) if args.missing else []
        self.started = time.monotonic()
        helpers = {program.name.rpartition("-")[0]: program for program in image.helpers(cache, TESTS / "harness")}
        settings = Settings(
            kernel=Path(args.kernels, args.krel, "vmlinuz"),
            image=work / "initrd",
            accel="tcg",
            work=work,
            logs=self.logs,
            on=helpers["on"],
            tsc_khz=int(subprocess.run([helpers["tsc"]], check=True, capture_output=True).stdout or 0),
            cpu=PROCESSOR,
            system=Path(args.system) if args.system else None,
            packages=self.packages_disk(work, args.packages),
            memory=args.memory,
            slow=args.slow,
            rdma=args.rdma,
            seed=os.environ.get("HCABLK_SEED", "0"),
            whole=bool(os.environ.get("HCABLK_WHOLE")),
            parameters=args.parameters,
            kinds=frozenset({"debug" if "debug" in args.krel else "stock", args.rdma}),
        )
        command = Path(args.command) if args.command and Path(args.command).exists() else None
        image.build(settings.image, cache, TESTS / "guest", Path(args.kernels, args.krel), modules, command, other=Path(args.other) if args.other else None)
        settings.accel = accelerator(settings, cache)
        say(f"# kernel {args.krel}, {settings.accel}; image in {time.monotonic() - self.started:.1f} s")
        say(f"# modules: {', '.join(m.name for m in modules) or 'none of ours'}")
        whole = ", all values of sweeps" if settings.whole else ""
        say(f"# HCABLK_SEED: {os.environ.get('HCABLK_SEED') or 'not set'}{whole}")
        if args.parameters:
            say(f"# module parameters: {args.parameters}")
        say(f"# logs: {self.logs}")
        self.lanes = [Lane(settings, f"lane{n}", args.clients) for n in range(1, args.lanes + 1)]
        # Protects the fields below, and is notified when a test ends.
        self.turn = threading.Condition()
        self.waiting: list[Test] = []
        self.running: list[Test] = []
        self.count = {"passed": 0, "failed": 0, "skipped": 0}
        self.begun = time.monotonic()
        # The seconds of the ended tests, by their headers.
        self.done = 0.0
        self.failed: list[str] = []
        self.flaky: list[str] = []

    @staticmethod
    def packages_disk(work: Path, packages: str | None) -> Path | None:
        """Return a disk with the Debian packages, for guests that are whole machines."""
        if not packages:
            return None
        folder, disk = work / "packages", work / "packages.img"
        folder.mkdir()
        for package in Path(packages).glob("*.deb"):
            shutil.copy(package, folder)
        subprocess.run(["mkfs.ext4", "-q", "-L", "packages", "-d", folder, disk, "64M"], check=True)
        return disk

    def take(self) -> Test | None:
        """Wait for the next test for an idle lane, and return it; None when all tests have begun."""
        with self.turn:
            while self.waiting:
                if test := next_test(self.waiting, self.running, PROCESSORS):
                    self.running.append(test)
                    return test
                self.turn.wait()
            return None

    def work(self, lane: Lane) -> None:
        """Run tests in a lane until none is left."""
        while test := self.take():
            say(f"# {self.progress(test)}")
            lines: list[str] = []
            report = say if len(self.lanes) == 1 else lines.append
            report(f"# Subtest: {test.name}: {test.proves}")
            started, processor = time.monotonic(), lane.processor_seconds()
            try:
                outcome = lane.run(test, report)
            except Exception as err:  # The other tests must run, and this one must be counted.
                outcome = Outcome("failed", [f"the runner: {err!r}"])
            lines += [f"# {reason}" for reason in outcome.reasons]
            with self.turn:
                self.running.remove(test)
                self.done += test.takes
                self.record(test, outcome, lines, self.times(lane, time.monotonic() - started, lane.processor_seconds() - processor))
                self.turn.notify_all()

    def progress(self, test: Test) -> str:
        """Return a line: which test begins, how many are left, and about how many minutes they take."""
        with self.turn:
            left = sum(test.takes for test in self.waiting) + sum(test.takes for test in self.running) / 2
            elapsed = time.monotonic() - self.begun
            # The seconds of tests done in a second: measured in this run, once it has lasted long enough.
            speed = self.done / elapsed if self.done > 60 * len(self.lanes) else USUAL_SPEED[min(len(self.lanes), 3)]
            return f"{test.name} begins; {len(self.waiting)} after it, about {left / speed / 60:.0f} min left"

    def times(self, lane: Lane, seconds: float, processor: float) -> str:
        """Return a line with a test's time, and its parts outside of the script."""
        where = f" {lane.name}" if len(self.lanes) > 1 else ""
        boot = f" boot={lane.boot_seconds:.1f}s" if lane.boot_seconds else ""
        return f"# time={seconds:.1f}s{boot} reset={lane.reset_seconds:.1f}s processor={processor:.1f}s{where}"

    def record(self, test: Test, outcome: Outcome, lines: list[str], times: str) -> None:
        """Count a test that has ended, and print its lines."""
        self.count[outcome.result] += 1
        if outcome.result == "failed":
            self.failed.append(test.name)
        elif outcome.late:
            self.flaky.append(test.name)
            seed = os.environ.get("HCABLK_SEED") or "not set"
            lines.append(f"# FLAKY {test.name}: late: {', '.join(outcome.late)}; HCABLK_SEED: {seed}; {' '.join(outcome.logs)}")
        word = "not ok" if outcome.result == "failed" else "ok"
        skip = " # SKIP" if outcome.result == "skipped" else ""
        lines.append(f"{word} {sum(self.count.values())} - {test.name}{skip}")
        lines.append(times)
        say("\n".join(lines))

    def all(self, tests: list[Test]) -> int:
        """Run the tests, and return the exit code."""
        say("TAP version 14")
        say(f"1..{len(tests)}")
        self.begun = time.monotonic()
        self.waiting = list(tests)
        # More lanes than tests would boot guests for nothing.
        self.lanes = self.lanes[: max(1, len(tests))]
        threads = [threading.Thread(target=self.work, args=(lane,), daemon=True) for lane in self.lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failed:
            say(f"# failed: {' '.join(self.failed)}; logs in {self.logs}")
        say(f"# time={time.monotonic() - self.started:.0f}s in all")
        say(" ".join([f"# {len(self.flaky)} flaky", *self.flaky]))
        skipped = f", {self.count['skipped']} skipped" if self.count["skipped"] else ""
        say(f"{self.count['passed']} passed, {self.count['failed']} failed{skipped}")
        # A lane that died silently has left tests out.
        return 1 if self.failed or sum(self.count.values()) != len(tests) else 0

    def close(self) -> None:
        for lane in self.lanes:
            lane.close()
        self.folder.cleanup()


def terminated(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", required=True, help="folder in which images are stored")
    parser.add_argument("--krel", required=True, help="release of the guests' kernel")
    parser.add_argument("--logs", required=True, help="folder for the logs of this run")
    parser.add_argument("--kernels", default="/usr/lib/modules", help="folder with RELEASE/vmlinuz and modules")
    parser.add_argument("--slow", type=int, default=1, help="the factor of all time limits")
    parser.add_argument("--rdma", choices=("rxe", "siw", "hca"), default="rxe", help="the guests' RDMA device")
    parser.add_argument("--parameters", default="", help="the guests' module parameters: MODULE.NAME=VALUE…")
    parser.add_argument("--memory", type=int, default=768, help="a guest's memory in MiB")
    parser.add_argument("--modules", help="folder with hcablk*.ko")
    parser.add_argument("--other", help="folder with hcablk*.ko of another build, for the tests of feature upgrade")
    parser.add_argument("--missing", help="folder with modules of Linux that the kernel lacks")
    parser.add_argument("--command", help="the hcablk program")
    parser.add_argument("--system", help="folder of scripts/machine-image, for the tests of feature machine")
    parser.add_argument("--packages", help="folder with the Debian packages, for the tests of feature machine")
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--lanes", type=int, default=1, help="how many sets of guests run tests side by side")
    parser.add_argument("--demo", help="run this script instead of tests")
    parser.add_argument("--list", action="store_true", help="print the tests and what they prove")
    parser.add_argument("tests", nargs="*", help="features, names, globs, or sets: see set_of() of script.py; all when none is given")
    args = parser.parse_args()

    # Tests with whole machines take minutes, and need an image and packages: `make test-machine`. The tests of feature
    # upgrade need the modules of another build: `make test-upgrade`.
    needs = {"machine": args.system, "upgrade": args.other}
    tests = [test for test in read_tests(TESTS / "kselftest") if args.list or needs.get(test.feature, True)]
    tests = chosen(tests, args.tests)
    if args.list:
        for test in tests:
            print(f"{test.name:36} {test.proves}")
        return 0

    signal.signal(signal.SIGTERM, terminated)
    signal.signal(signal.SIGHUP, terminated)
    run = Run(args)
    try:
        return run.lanes[0].demo(Path(args.demo), say) if args.demo else run.all(tests)
    except GuestError as err:
        say(f"# {err}")
        return 1
    finally:
        run.close()


sys.exit(main())
