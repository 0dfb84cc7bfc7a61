# SPDX-License-Identifier: GPL-2.0
"""Boot guests and run tests with them (called by tests/run.sh, inside the build root).

Prints TAP version 14 and, as the last line, how many tests passed, failed and were skipped.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import image
import kmsg
from accel import accelerator
from control import Server
from guest import Guest, GuestError, Settings, Spec

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
SKIPPED = 4
RESET_SECONDS = 240


@dataclass
class Test:
    """One script and what the comments at its top say about it."""

    path: Path
    proves: str = ""
    group: str = ""
    guests: list[str] = field(default_factory=lambda: ["target", "c1", "c2"])
    timeout: float = 120
    expect_log: list[str] = field(default_factory=list)
    must_fail: str = ""

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def number(self) -> str:
        return self.name.split("-")[0]

    def matches(self, pattern: str) -> bool:
        """Is this what a T=… asks for: a number, a name, a group, or a glob of names?"""
        pattern = pattern.removesuffix(".sh")
        return pattern in (self.number, self.group, self.name) or fnmatch.fnmatch(self.name, pattern)


def read_test(path: Path) -> Test:
    """Read a test's header."""
    test = Test(path)
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not (found := re.match(r"# ([\w-]+): (.*)", line)):
            continue
        match found[1], found[2].strip():
            case "Proves", value:
                test.proves = value
            case "group", value:
                test.group = value
            case "guests", value:
                test.guests = value.split()
            case "timeout", value:
                test.timeout = float(value)
            case "expect-log", value:
                test.expect_log.append(value)
            case "must-fail", value:
                test.must_fail = value
    if not test.proves or not test.group:
        raise SystemExit(f"{path}: the header lacks 'Proves:' or 'group:'")
    return test


def say(text: str = "") -> None:
    print(text, flush=True)


class Run:
    """The guests of one run, and the tests on them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        cache = Path(args.cache)
        # Goes with this process, however it ends.
        self.folder = tempfile.TemporaryDirectory(prefix="hcablk-", ignore_cleanup_errors=True)
        self.work = Path(self.folder.name)
        self.logs = Path(args.logs)
        self.logs.mkdir(parents=True, exist_ok=True)
        modules = sorted(Path(args.modules).glob("hcablk*.ko")) if args.modules else []
        modules += sorted(Path(args.missing).glob("*.ko")) if args.missing else []
        self.started = time.monotonic()
        self.settings = Settings(
            kernel=Path(args.kernels, args.krel, "vmlinuz"),
            image=self.work / "initrd",
            accel="tcg",
            work=self.work,
            logs=self.logs,
            memory=args.memory,
            slow=args.slow,
            rdma=args.rdma,
            parameters=args.parameters,
        )
        command = Path(args.command) if args.command and Path(args.command).exists() else None
        image.build(self.settings.image, cache, TESTS / "guest", Path(args.kernels, args.krel), modules, command)
        self.settings.accel = accelerator(self.settings, cache)
        say(f"# kernel {args.krel}, {self.settings.accel}; image in {time.monotonic() - self.started:.1f} s")
        say(f"# modules: {', '.join(m.name for m in modules) or 'none of ours'}")
        if args.parameters:
            say(f"# module parameters: {args.parameters}")
        say(f"# logs: {self.logs}")

        clients = [f"c{n}" for n in range(1, args.clients + 1)]
        specs = [Spec("target", 1, [(c, True) for c in clients], drives=[1024, 512, 64], drive_memory=16, memories=[16, 4, 4])]
        specs += [Spec(c, n + 2, [(c, False)]) for n, c in enumerate(clients)]
        self.guests = {spec.name: Guest(self.settings, spec) for spec in specs}
        self.server = Server(self.work / "control", self.guests)
        # How far each guest's console was looked through.
        self.scanned: dict[str, int] = {}

    def boot(self, names: list[str]) -> None:
        """Start those guests that do not run, together."""
        missing = [self.guests[name] for name in names if not self.guests[name].booted]
        if not missing:
            return
        started = time.monotonic()
        for guest in missing:
            self.server.kill(guest)
        self.server.start(missing)
        say(f"# booted {', '.join(g.name for g in missing)} in {time.monotonic() - started:.1f} s")

    def environment(self) -> dict[str, str]:
        """What a script gets to know."""
        env = dict(os.environ)
        env["HCABLK_CONTROL"] = str(self.work / "control")
        env["HCABLK_ON"] = f"{sys.executable} -I -S {HERE / 'on.py'}"
        env["HCABLK_LOGS"] = str(self.logs)
        env["HCABLK_SLOW"] = str(self.args.slow)
        env["HCABLK_RDMA"] = self.args.rdma
        env["TMPDIR"] = str(self.work)
        return env

    def script(self, test: Test, log: Path) -> int:
        """Run a script; its output goes to the log and, as TAP's subtest, to ours."""
        with open(log, "wb") as errors:
            process = subprocess.Popen(
                ["bash", test.path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self.environment(),
                start_new_session=True,
            )
            assert process.stdout is not None
            too_long = threading.Event()

            def stop() -> None:
                too_long.set()
                os.killpg(process.pid, signal.SIGKILL)

            timer = threading.Timer(test.timeout * self.args.slow, stop)
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
        """Bring a guest back to how it was after boot; what could not be."""
        if not guest.booted:
            return []
        # The search for leaks takes 5 to 15 s: only where our modules may have been.
        leaks = "leaks" if guest.name in test.guests and test.group != "harness" else ""
        try:
            code, said = guest.shell(f"hcablk-reset {leaks}", RESET_SECONDS * self.args.slow)
            guest.mark(f"end of {test.name}")
        except GuestError as err:
            return [str(err)]
        return [f"left behind: {line}" for line in said.splitlines()] if code != 0 else []

    def finish(self, test: Test) -> list[str]:
        """Bring the guests back to the start and read their logs; what was wrong."""
        wrong: list[str] = []
        # All at the same time: for the most part they wait.
        with ThreadPoolExecutor() as pool:
            resets = {name: pool.submit(self.reset, guest, test) for name, guest in self.guests.items()}
        for guest in self.guests.values():
            complaints = resets[guest.name].result()
            wrong += complaints
            # Also a guest that died has said something.
            text = guest.console_text(self.scanned.get(guest.name, 0))
            lines = kmsg.trouble(text, test.expect_log)
            wrong += [f"{guest.name}'s kernel: {line}" for line in lines[:40]]
            if complaints or lines:
                self.diagnose(guest)
            # Some of these are said only once per boot, and lockdep is off after its first report: also one
            # that the test expects leaves a guest that would not see the next.
            if complaints or kmsg.reports(text):
                self.server.kill(guest)
            self.scanned[guest.name] = guest.console_size()
        return wrong

    def diagnose(self, guest: Guest) -> None:
        """Have a guest that is about to be killed say what it hangs on; it is in its log then."""
        if not guest.booted:
            return
        try:
            guest.shell("cat /proc/modules; ps; rdma resource; grep -r . /sys/kernel/config/hcablk*/", 20)
            guest.shell("echo hcablk-test: blocked tasks: > /dev/kmsg; echo w > /proc/sysrq-trigger", 20)
            guest.mark("end of diagnosis")
        except GuestError:
            pass

    def one(self, test: Test) -> tuple[str, list[str]]:
        """Run one test: "passed", "failed" or "skipped", and why."""
        self.server.begin.clear()
        try:
            self.boot(test.guests)
            for name in test.guests:
                self.server.begin[name] = self.guests[name].mark(f"begin of {test.name}")
        except GuestError as err:
            return "failed", [str(err)]
        log = self.logs / f"{test.name}.log"
        code = self.script(test, log)
        reasons: list[str] = []
        if code == 124:
            reasons.append(f"no end after {test.timeout * self.args.slow:g} s")
        elif code not in (0, SKIPPED):
            reasons.append(f"exit code {code}")
        if reasons:
            tail = [x for x in log.read_text(errors="replace").splitlines() if not re.match(r"ok |1\.\.|TAP ", x)]
            reasons += [f"| {line}" for line in tail[-25:]]
        reasons += self.finish(test)
        if test.must_fail:
            text = "\n".join(reasons)
            if re.search(test.must_fail, text):
                return "passed", []
            return "failed", [f"this test has to fail with {test.must_fail!r}, but:", *reasons]
        if reasons:
            return "failed", reasons
        return ("skipped" if code == SKIPPED else "passed"), []

    def all(self, tests: list[Test]) -> int:
        """Run the tests; the exit code."""
        count = {"passed": 0, "failed": 0, "skipped": 0}
        failed: list[str] = []
        say("TAP version 14")
        say(f"1..{len(tests)}")
        for n, test in enumerate(tests, 1):
            say(f"# Subtest: {test.name}: {test.proves}")
            started = time.monotonic()
            result, reasons = self.one(test)
            count[result] += 1
            word = "not ok" if result == "failed" else "ok"
            skip = " # SKIP" if result == "skipped" else ""
            for reason in reasons:
                say(f"# {reason}")
            say(f"{word} {n} - {test.name}{skip}")
            say(f"# time={time.monotonic() - started:.1f}s")
            if result == "failed":
                failed.append(test.name)
        if failed:
            say(f"# failed: {' '.join(failed)}; logs in {self.logs}")
        say(f"# time={time.monotonic() - self.started:.0f}s in all")
        skipped = f", {count['skipped']} skipped" if count["skipped"] else ""
        say(f"{count['passed']} passed, {count['failed']} failed{skipped}")
        return 1 if failed else 0

    def demo(self, script: Path) -> int:
        """Run a script that shows something on fresh guests; no TAP."""
        self.boot(list(self.guests))
        for guest in self.guests.values():
            self.server.begin[guest.name] = guest.mark("begin of the demonstration")
        code = subprocess.run(["bash", script], env=self.environment(), check=False).returncode
        wrong = self.finish(Test(script))
        for line in wrong:
            say(line)
        return 1 if wrong else code

    def close(self) -> None:
        for guest in self.guests.values():
            guest.kill()
        self.folder.cleanup()


def terminated(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", required=True, help="where images are kept")
    parser.add_argument("--krel", required=True, help="release of the guests' kernel")
    parser.add_argument("--logs", required=True, help="folder for the logs of this run")
    parser.add_argument("--kernels", default="/usr/lib/modules", help="folder with RELEASE/vmlinuz and modules")
    parser.add_argument("--slow", type=int, default=1, help="how much more time everything may take")
    parser.add_argument("--rdma", choices=("rxe", "siw"), default="rxe", help="the guests' RDMA device")
    parser.add_argument("--parameters", default="", help="the guests' module parameters: MODULE.NAME=VALUE…")
    parser.add_argument("--memory", type=int, default=768, help="a guest's memory in MiB")
    parser.add_argument("--modules", help="folder with hcablk*.ko")
    parser.add_argument("--missing", help="folder with modules of Linux that the kernel lacks")
    parser.add_argument("--command", help="the hcablk program")
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--demo", help="run this script instead of tests")
    parser.add_argument("--list", action="store_true", help="print the tests and what they prove")
    parser.add_argument("tests", nargs="*", help="numbers, names, groups or globs; all when none is given")
    args = parser.parse_args()

    tests = [read_test(path) for path in sorted((TESTS / "kselftest").glob("[0-9]*.sh"))]
    wanted = [word for arg in args.tests for word in arg.replace(",", " ").split()]
    for word in wanted:
        if not any(test.matches(word) for test in tests):
            raise SystemExit(f"no test is called {word}; tests/run.sh --list shows them")
    if wanted:
        tests = [test for test in tests if any(test.matches(word) for word in wanted)]
    if args.list:
        for test in tests:
            print(f"{test.group:10} {test.name:28} {test.proves}")
        return 0

    signal.signal(signal.SIGTERM, terminated)
    signal.signal(signal.SIGHUP, terminated)
    run = Run(args)
    try:
        return run.demo(Path(args.demo)) if args.demo else run.all(tests)
    except GuestError as err:
        say(f"# {err}")
        return 1
    finally:
        run.close()


sys.exit(main())
