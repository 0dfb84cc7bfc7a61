# SPDX-License-Identifier: GPL-2.0
"""Reads the headers of test scripts, and selects tests."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, field
from pathlib import Path


# The interpreter of a script, by its suffix.
INTERPRETERS = {".sh": ["bash"], ".py": ["python3", "-B"]}

# The folder of shared code.
LIBRARIES = "lib"

# Features whose tests run for a configured time: only by name.
NAMED_ONLY = {"soak"}

# The number of CI's turns: see `Test.turn`.
TURNS = 24
# A test up to this time also runs on the oldest and on the debug kernel, in its turn.
SHORT_SECONDS = 80


@dataclass
class Test:
    """One script of tests/kselftest: FEATURE/NAME.sh, or .py."""

    path: Path
    proves: str = ""
    guests: list[str] = field(default_factory=lambda: ["target", "c1", "c2"])
    timeout: float = 480
    expect_log: list[str] = field(default_factory=list)
    # The test must fail for each of these reasons.
    must_fail: list[str] = field(default_factory=list)
    # The test's first try must be late in a point like this, and the others must pass.
    must_be_late: str = ""
    # The test mostly waits, so that a test that computes can run next to it.
    waits: bool = False
    # Seconds that the test takes next to others: the longest begin first.
    takes: float = 0
    # "heart" for a test of `make test`, which CI always runs.
    tier: str = ""
    # The turn of CI in which the test runs, from 0: on the usual kernel unless it is of the heart, and on the others
    # if it is short.
    turn: int | None = None
    # The reason why no other test may run next to this one; empty if others may.
    alone: str = ""
    # Kinds of guests on which the test may be skipped: see `kinds` of run.py.
    skips: list[str] = field(default_factory=list)

    @property
    def feature(self) -> str:
        return self.path.parent.name

    @property
    def name(self) -> str:
        return f"{self.feature}/{self.path.stem}"

    @property
    def heart(self) -> bool:
        return self.tier == "heart"

    @property
    def short(self) -> bool:
        return self.takes <= SHORT_SECONDS

    def matches(self, pattern: str) -> bool:
        """Return whether the test is selected by T=…: a feature, a name, or a glob of names."""
        pattern = pattern.removesuffix(self.path.suffix).rstrip("/")
        return pattern == self.feature or fnmatch.fnmatch(self.name, pattern)


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
            case "guests", value:
                test.guests = value.split()
            case "timeout", value:
                test.timeout = float(value)
            case "expect-log", value:
                test.expect_log.append(value)
            case "must-fail", value:
                test.must_fail.append(value)
            case "must-be-late", value:
                test.must_be_late = value
            case "waits", "yes":
                test.waits = True
            case "takes", value:
                test.takes = float(value)
            case "tier", value:
                test.tier = value
            case "turn", value:
                test.turn = int(value)
            case "alone", value:
                test.alone = value
            case "skips", value:
                test.skips = value.split()
    if not test.proves:
        raise SystemExit(f"{path}: the header lacks 'Proves:'")
    return test


def read_tests(folder: Path) -> list[Test]:
    """Return all tests, ordered by name."""
    paths = (path for path in folder.glob("*/*") if path.suffix in INTERPRETERS and path.parent.name != LIBRARIES)
    tests = sorted(map(read_test, paths), key=lambda test: test.name)
    for one, other in zip(tests, tests[1:]):
        if one.name == other.name:
            raise SystemExit(f"there are two tests {one.name}")
    return tests


def part_of(tests: list[Test], word: str) -> list[Test] | None:
    """Return part I of N of the tests, from 0, if the word is I/N: neighbours are in different parts."""
    if not (found := re.fullmatch(r"(\d+)/(\d+)", word)):
        return None
    part, parts = int(found[1]), int(found[2])
    if part >= parts:
        raise SystemExit(f"there is no part {word}: the first one is 0/{parts}")
    return tests[part::parts]


def wanted_words(words: list[str]) -> list[str]:
    """Split words at blanks and commas into features, names, globs and sets."""
    return [part for word in words for part in word.replace(",", " ").split()]


def set_of(tests: list[Test], word: str) -> list[Test] | None:
    """Return the tests of a set, if the word is a set's name:

    heart       tests that show in a quarter of an hour that each feature works
    all         all tests except those that run only by name
    turn:N      the tests that CI runs in turn N in addition to the heart
    short:N     the tests that CI runs on the oldest kernel and on the debug kernel in turn N
    I/N         part I of N of all
    """
    tests = [test for test in tests if test.feature not in NAMED_ONLY]
    if (part := part_of(tests, word)) is not None:
        return part
    match word.split(":"):
        case ["heart"]:
            return [test for test in tests if test.heart]
        case ["all"]:
            return tests
        case ["turn", turn]:
            return [test for test in tests if test.turn == int(turn) and not test.heart]
        case ["short", turn]:
            return [test for test in tests if test.turn == int(turn) and test.short]
    return None


def chosen(tests: list[Test], words: list[str]) -> list[Test]:
    """Return the tests that the words select: sets, features, names and globs; all tests without a word."""
    found: set[str] = set()
    for word in wanted_words(words) or ["all"]:
        wanted = set_of(tests, word)
        if wanted is None:
            wanted = [test for test in tests if test.matches(word)]
            if not wanted:
                raise SystemExit(f"no test is called {word}; tests/run.sh --list shows them")
        found.update(test.name for test in wanted)
    return [test for test in tests if test.name in found]


def next_test(waiting: list[Test], running: list[Test], processors: int) -> Test | None:
    """Remove the next test to run from `waiting` and return it; `running` are the tests that run now. None: none may
    run now.

    A test that mostly waits runs next to tests that compute, of which at most one runs per processor. A test that must be alone
    runs when all others have ended.
    """
    if any(test.alone for test in running):
        return None
    shared = [test for test in waiting if not test.alone]
    if not shared:
        if not waiting or running:
            return None
        return waiting.pop(0)
    if sum(not test.waits for test in running) >= processors:
        shared = [test for test in shared if test.waits]
        if not shared:
            return None
    computing = not any(test.waits for test in running)
    fitting = [test for test in shared if test.waits == (computing and bool(running))] or shared
    # A slow test that begins last would leave all other lanes idle in the end.
    test = max(fitting, key=lambda test: test.takes)
    waiting.remove(test)
    return test
