# SPDX-License-Identifier: GPL-2.0
"""Unit tests of `tries`: `make host-test` runs them."""

from __future__ import annotations

import unittest

from tries import Outcome, Tries, late_points

BROKE = "soft-RoCE broke a connection"


def judged(*tries: str, broke: str = "", only_once: bool = False) -> tuple[str, int]:
    """Return the outcome of a test whose tries end like this, and their number."""
    all_of_them = Tries(only_once)
    for n, result in enumerate(tries, 1):
        outcome = Outcome(result, late=["it is back"] if result == "late" else [])
        if not all_of_them.again(outcome, broke):
            return outcome.result, n
    raise AssertionError("it is run again")


class Judged(unittest.TestCase):
    """Tests which outcomes are tried again, and the final outcome."""

    def test_what_is_wrong_fails_at_once(self) -> None:
        self.assertEqual(judged("failed", "passed", "passed"), ("failed", 1))

    def test_what_is_wrong_after_it_was_late_fails_at_once(self) -> None:
        self.assertEqual(judged("late", "failed", "passed"), ("failed", 2))
        self.assertEqual(judged("late", "passed", "failed"), ("failed", 3))

    def test_late_once_of_three_times_passes(self) -> None:
        self.assertEqual(judged("late", "passed", "passed"), ("passed", 3))

    def test_late_twice_of_three_times_fails(self) -> None:
        self.assertEqual(judged("late", "late"), ("failed", 2))
        self.assertEqual(judged("late", "passed", "late"), ("failed", 3))

    def test_what_passes_or_is_skipped_is_run_once(self) -> None:
        self.assertEqual(judged("passed"), ("passed", 1))
        self.assertEqual(judged("skipped"), ("skipped", 1))

    def test_what_the_kernel_has_failed_is_run_once_more(self) -> None:
        self.assertEqual(judged("failed", "passed", broke=BROKE), ("passed", 2))
        self.assertEqual(judged("failed", "failed", broke=BROKE), ("failed", 2))

    def test_an_injected_bug_is_found_by_what_is_late(self) -> None:
        self.assertEqual(judged("late", only_once=True), ("failed", 1))

    def test_a_pass_in_the_end_reports_what_was_late(self) -> None:
        tries, outcome = Tries(), Outcome("passed")
        self.assertTrue(tries.again(Outcome("late", late=["it is back"]), ""))
        self.assertTrue(tries.again(Outcome("passed"), ""))
        self.assertFalse(tries.again(outcome, ""))
        self.assertEqual(outcome.late, ["it is back"])


class Points(unittest.TestCase):
    """Tests which points of a script count as late."""

    def test_points_that_are_only_late(self) -> None:
        self.assertEqual(late_points("ok 1 - a\nnot ok 2 - it is back # late\n1..2\n"), ["it is back"])

    def test_one_wrong_point_is_enough(self) -> None:
        self.assertEqual(late_points("not ok 1 - it is back # late\nnot ok 2 - the data is right\n"), [])

    def test_no_point(self) -> None:
        self.assertEqual(late_points("TAP version 14\n1..0\n"), [])


if __name__ == "__main__":
    unittest.main()
