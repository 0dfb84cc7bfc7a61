# SPDX-License-Identifier: GPL-2.0
"""Unit tests of the figures in the documents: they are those of bench/results."""

import re
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]


def results(name):
    """Return the text of a file of results."""
    return (TOP / "bench/results" / name).read_text()


def numbers(text, row):
    """Return the numbers of the first line that begins with the words of `row`."""
    line = re.search(rf"(?m)^{re.escape(row)} +(.*)$", text).group(1)
    return [float(word.replace(",", "").rstrip("*")) for word in line.split() if word != "-"]


class Readme(unittest.TestCase):
    def setUp(self):
        self.text = " ".join((TOP / "README.md").read_text().split())
        self.reference = results("reference.txt")

    def test_the_commit_and_the_day_are_those_of_the_results(self):
        commit, day = re.search(r"hcablk ([0-9a-f]+), .*, (\d{4}-\d\d-\d\d)", self.reference).groups()
        self.assertIn(f"of commit {commit}", self.text)
        self.assertEqual(day, "2026-11-22")
        self.assertIn("(22 November 2026)", self.text)

    def test_the_ratios_are_those_of_the_results(self):
        _, _, _, nvme, rnbd = numbers(self.reference, "4k-randread-qd1")
        self.assertIn(f"nvme-rdma {nvme:.1f} times and RNBD {rnbd:.1f} times what it costs hcablk at queue depth 1", self.text)
        _, _, _, nvme, rnbd = numbers(self.reference, "4k-randread-qd64")
        self.assertIn(f"and {nvme:.1f} and {rnbd:.1f} times at depth 64", self.text)


class Tuning(unittest.TestCase):
    def setUp(self):
        self.text = (TOP / "docs/user/tuning.md").read_text()

    def test_the_ratios_of_small_requests_are_those_of_the_results(self):
        reads, writes = results("paths.txt").split("\nrandwrite, ")
        small = [numbers(reads, f"4k qd{depth}") for depth in (1, 8)]
        low, high = (bounced / registered for bounced, registered in small)
        self.assertIn(f"costs {low:.2f} of a registered one at depth 1, {high:.2f} at depth 8", self.text)
        small = [numbers(writes, f"4k qd{depth}") for depth in (1, 8)]
        low, high = (eager / fetched for _, eager, fetched in small)
        self.assertIn(f"costs {low:.2f} of a fetched one at depth 1, {high:.2f} at depth 8", self.text)

    def test_the_ratios_of_chunks_are_those_of_the_results(self):
        _, _, time, _, cost = numbers(results("chunks.txt"), "chunks-128k")
        self.assertIn(f"take {time:.2f} of the time of a whole 1 MiB read", self.text)
        self.assertIn(f"and {cost:.3f} of the instructions", self.text)

    def test_the_interrupts_and_doorbells_are_those_of_the_results(self):
        row = re.search(r"(?m)^hcablk-4k-randread-qd64 +initiator +(.*)$", results("reference.txt")).group(1).split()
        doorbells, events = float(row[0]), float(row[5])
        self.assertIn(f"a 4 KiB read makes {events:.2f} interrupts at the initiator, and takes {doorbells:.2f} doorbells", self.text)


if __name__ == "__main__":
    unittest.main()
