# SPDX-License-Identifier: GPL-2.0
"""A test's script: what the comments at its top say about it."""

from __future__ import annotations

import fnmatch
import os
import re
from dataclasses import dataclass, field
from pathlib import Path


# Groups whose tests run for as long as they are told to.
NAMED_ONLY = {"soak"}

# How many turns there are, and how long a test takes of which that is not said.
TURNS = 12
USUAL_SECONDS = 40


@dataclass
class Test:
    """One script of tests/kselftest."""

    path: Path
    proves: str = ""
    group: str = ""
    guests: list[str] = field(default_factory=lambda: ["target", "c1", "c2"])
    timeout: float = 480
    expect_log: list[str] = field(default_factory=list)
    # It has to fail for each of these reasons.
    must_fail: list[str] = field(default_factory=list)
    # Its first try has to be late in a point like this, and the others have to pass.
    must_be_late: str = ""
    # It waits for most of its time, so that a test that computes can run beside it.
    waits: bool = False
    # Seconds that it takes with others beside it, if many: the longest begin first.
    takes: float = 0
    # Of so many runs of all tests it is part of one, if turns are taken: see `has_turn`.
    turns: int = 1
    # Which one, from 0: see `take_turns`.
    turn: int = 0
    # Why nothing may run beside it; empty when something may.
    alone: str = ""
    # Kinds of guests on which it may be skipped: see `kinds` of run.py.
    skips: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def number(self) -> str:
        return self.name.split("-")[0]

    def has_turn(self, turn: int | None) -> bool:
        """Is it part of a run of all tests in this turn? Always, when no turns are taken."""
        return turn is None or turn % self.turns == self.turn

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
                test.must_fail.append(value)
            case "must-be-late", value:
                test.must_be_late = value
            case "waits", "yes":
                test.waits = True
            case "takes", value:
                test.takes = float(value)
            case "turns", value:
                test.turns = int(value)
            case "alone", value:
                test.alone = value
            case "skips", value:
                test.skips = value.split()
    if not test.proves or not test.group:
        raise SystemExit(f"{path}: the header lacks 'Proves:' or 'group:'")
    return test


def take_turns(tests: list[Test]) -> None:
    """Divide those that take turns among these so that each takes about as long."""
    seconds = [0.0] * TURNS
    for test in sorted((test for test in tests if test.turns > 1), key=lambda test: (-test.takes, int(test.number))):
        if TURNS % test.turns:
            raise SystemExit(f"{test.name}: {TURNS} turns cannot be divided by {test.turns}")
        test.turn = min(range(test.turns), key=lambda turn: max(seconds[turn :: test.turns]))
        for turn in range(test.turn, TURNS, test.turns):
            seconds[turn] += test.takes or USUAL_SECONDS


def read_tests(folder: Path) -> list[Test]:
    """All tests, by their numbers, of which each has its own."""
    tests = sorted((read_test(path) for path in folder.glob("[0-9]*.sh")), key=lambda test: int(test.number))
    for one, other in zip(tests, tests[1:]):
        if one.number == other.number:
            raise SystemExit(f"{one.name} and {other.name} have the same number")
    take_turns(tests)
    return tests


def part_of(tests: list[Test], word: str) -> list[Test] | None:
    """Part I of N of the tests, counted from 0, if that is what the word I/N asks for: neighbours are in different ones."""
    if not (found := re.fullmatch(r"(\d+)/(\d+)", word)):
        return None
    part, parts = int(found[1]), int(found[2])
    if part >= parts:
        raise SystemExit(f"there is no part {word}: the first one is 0/{parts}")
    return tests[part::parts]


def left_out(tests: list[Test]) -> list[Test]:
    """Those of the tests that a run of all does not have: they have to be named, or it is not their turn."""
    turn = os.environ.get("HCABLK_TURN")
    return [test for test in tests if test.group in NAMED_ONLY or not test.has_turn(int(turn) if turn else None)]


def wanted_words(words: list[str]) -> list[str]:
    """The numbers, names, groups, globs and parts in what was said, which may have blanks and commas."""
    return [part for word in words for part in word.replace(",", " ").split()]


def of_all(wanted: list[str]) -> bool:
    """Do the words ask for all tests, or for a part of all, and name none?"""
    return not wanted or part_of([], wanted[0]) is not None


def chosen(tests: list[Test], words: list[str]) -> list[Test]:
    """The tests that the words ask for; all of them without a word, but for `left_out`."""
    wanted = wanted_words(words)
    if of_all(wanted):
        tests = [test for test in tests if test not in left_out(tests)]
    if len(wanted) == 1 and (part := part_of(tests, wanted[0])) is not None:
        return part
    for word in wanted:
        if not any(test.matches(word) for test in tests):
            raise SystemExit(f"no test is called {word}; tests/run.sh --list shows them")
    return [test for test in tests if not wanted or any(test.matches(word) for word in wanted)]


def next_test(waiting: list[Test], beside: list[Test], processors: int) -> Test | None:
    """Take the test to run next out of those that wait, `beside` being what runs; None when none of them may run now.

    What waits for time to pass goes beside what computes, of which there is one for each processor at most. What has to
    be alone comes when all else is over.
    """
    if any(test.alone for test in beside):
        return None
    shared = [test for test in waiting if not test.alone]
    if not shared:
        if not waiting or beside:
            return None
        return waiting.pop(0)
    if sum(not test.waits for test in beside) >= processors:
        shared = [test for test in shared if test.waits]
        if not shared:
            return None
    computing = not any(test.waits for test in beside)
    fitting = [test for test in shared if test.waits == (computing and bool(beside))] or shared
    # One that takes long and begins last would keep all lanes but its own idle in the end.
    test = max(fitting, key=lambda test: test.takes)
    waiting.remove(test)
    return test
