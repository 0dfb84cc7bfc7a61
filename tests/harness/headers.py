# SPDX-License-Identifier: GPL-2.0
"""Check the headers of tests and injected bugs: `make tests-check`. With --list, write the list of tests into
tests/README.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from script import NAMED_ONLY, TURNS, Test, read_tests

TESTS = Path(__file__).resolve().parent.parent
# The time limit of `make test`, by the headers: with three lanes on two processors a quarter of an hour.
HEART_SECONDS = 2000
# The time limits of a turn of CI: on the usual kernel (eight minutes, with injected bugs), and on the oldest kernel
# and on the debug kernel (ten minutes together).
TURN_SECONDS = 550
SHORT_SET_SECONDS = 270
# The largest number of injected bugs in a turn: each takes one or two minutes.
TURN_BUGS = 2


def of_header(tests: list[Test]) -> list[str]:
    """Return the mistakes in the headers of tests."""
    wrong = []
    for test in tests:
        others = test.feature in NAMED_ONLY | {"machine", "upgrade"}
        if not test.takes:
            wrong.append(f"{test.name}: the header does not say `takes:`")
        if test.tier not in ("", "heart"):
            wrong.append(f"{test.name}: there is no tier {test.tier}")
        if test.turn is None and not others:
            wrong.append(f"{test.name}: the header does not say in which `turn:` of CI it runs, 0 to {TURNS - 1}")
        if test.turn is not None and (others or test.turn not in range(TURNS)):
            wrong.append(f"{test.name}: CI has no turn {test.turn} for it")
    return wrong


def skippers(libraries: Path) -> set[str]:
    """Return the words by which a test skips itself: `skip`, library functions that call it, and libraries that call it
    when sourced."""
    found = {"skip"}
    for library in libraries.glob("*.sh"):
        for part in re.split(r"^(?=\w+\(\) \{$)", library.read_text(encoding="utf-8"), flags=re.MULTILINE):
            if re.search(r"^[^#\n]*\bskip \S", part, re.MULTILINE):
                function = re.match(r"(\w+)\(\) \{", part)
                found.add(function[1] if function else library.name)
    return found


def of_skips(tests: list[Test], skippers: set[str]) -> list[str]:
    """Return the tests whose headers allow skipping, but whose scripts never skip."""
    # `skip` is also an operand of dd.
    others = "|".join(map(re.escape, sorted(skippers - {"skip"})))
    words = re.compile(rf"^(?!#).*\b(skip [\"']|skip\(|{others})", re.MULTILINE)
    may_skip = (test for test in tests if test.skips)
    never = (test for test in may_skip if not words.search(test.path.read_text(encoding="utf-8")))
    return [f"{test.name}: its header says that it may be skipped, but the script never skips" for test in never]


def of_bugs(folder: Path) -> tuple[list[str], list[int]]:
    """Return the mistakes in the headers of injected bugs, and the turn of each."""
    wrong, turns = [], []
    for patch in sorted(folder.glob("*.patch")):
        found = re.search(r"^turn: (\d+)$", patch.read_text(encoding="utf-8"), re.MULTILINE)
        if found and int(found[1]) < TURNS:
            turns.append(int(found[1]))
        else:
            wrong.append(f"{patch.name}: the header does not say in which `turn:` of CI it runs, 0 to {TURNS - 1}")
    return wrong, turns


def with_list(readme: str, tests: list[Test]) -> str:
    """Return the text of tests/README.md with the list of these tests."""
    head, begin, rest = readme.partition("<!-- made by make tests-list -->\n")
    _, end, tail = rest.partition("<!-- end of the list -->\n")
    lines = []
    for feature in sorted({test.feature for test in tests}):
        lines += [f"### {feature}", "", "| test | proves: |", "|---|---|"]
        for test in tests:
            if test.feature == feature:
                name = f"**`{test.path.stem}`**" if test.heart else f"`{test.path.stem}`"
                lines.append(f"| {name} | {test.proves} |")
        lines.append("")
    return head + begin + "\n" + "\n".join(lines) + "\n" + end + tail


def main() -> int:
    tests = read_tests(TESTS / "kselftest")
    readme = TESTS / "README.md"
    text = readme.read_text(encoding="utf-8")
    if sys.argv[1:] == ["--list"]:
        readme.write_text(with_list(text, tests), encoding="utf-8")
        return 0
    wrong, bugs = of_bugs(TESTS / "debug" / "injected_bugs")
    wrong += of_header(tests)
    wrong += of_skips(tests, skippers(TESTS / "kselftest" / "lib"))
    if text != with_list(text, tests):
        wrong.append("the list of tests in tests/README.md differs from their headers: run make tests-list")

    def bound(what: str, of_them: list[Test], limit: int) -> None:
        """Check that these tests together stay within a time limit."""
        seconds = sum(test.takes for test in of_them)
        print(f"{what}: {len(of_them)} tests, {seconds:g} s by their headers")
        if seconds > limit:
            wrong.append(f"{what} takes {seconds:g} s by the headers, more than {limit} s")

    bound("the heart", [test for test in tests if test.heart], HEART_SECONDS)
    for turn in range(TURNS):
        of_turn = [test for test in tests if test.turn == turn]
        bound(f"turn {turn}, on the usual kernel", [test for test in of_turn if not test.heart], TURN_SECONDS)
        bound(f"turn {turn}, on the oldest and the debug kernel", [test for test in of_turn if test.short], SHORT_SET_SECONDS)
        if bugs.count(turn) > TURN_BUGS:
            wrong.append(f"turn {turn} has {bugs.count(turn)} injected bugs, more than {TURN_BUGS}")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
