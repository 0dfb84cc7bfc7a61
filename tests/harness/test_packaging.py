# SPDX-License-Identifier: GPL-2.0
"""What the packages bring: units, udev rules, scripts and documents, as far as that needs no machine."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PACKAGING = TOP / "packaging"


class Udev(unittest.TestCase):
    # Rules of others that read a disk because of its ID_FS_TYPE.
    LAST_READER = 69

    def test_no_rule_reads_a_disk_because_of_an_event_of_its_state(self):
        """What was known of a disk is restored behind the rules that would read it then."""
        for rules in (PACKAGING / "udev").glob("*hcablk.rules"):
            restores = "IMPORT{db}=\"ID_FS_TYPE\"" in rules.read_text()
            self.assertEqual(restores, int(rules.name[:2]) > self.LAST_READER, rules.name)

    def test_an_event_of_a_state_leaves_the_early_rules_before_blkid(self):
        text = (PACKAGING / "udev/61-hcablk.rules").read_text()
        blkid = text.index("IMPORT{builtin}=\"blkid\"")
        for name in ("STATE", "PORTALS", "LOST_WRITES"):
            self.assertLess(text.index(f'ENV{{HCABLK_{name}}}=="?*", GOTO="hcablk_end"'), blkid)
            self.assertIn(f'ENV{{HCABLK_{name}}}!="?*"', (PACKAGING / "udev/90-hcablk.rules").read_text())


class NewKernel(unittest.TestCase):
    """The script that runs when a kernel was installed."""

    def run_for(self, release, modules=(), configured=True):
        with tempfile.TemporaryDirectory() as top:
            (Path(top) / "etc/hcablk").mkdir(parents=True)
            if configured:
                (Path(top) / "etc/hcablk/hcablk.toml").touch()
            folder = Path(top) / f"lib/modules/{release}/updates"
            folder.mkdir(parents=True)
            for name in modules:
                (folder / name).touch()
            done = subprocess.run([PACKAGING / "kernel/zz-hcablk", release], env={**os.environ, "HCABLK_TOP": top},
                                  capture_output=True, text=True, check=True)
            return done.stderr

    def test_it_warns_of_a_kernel_without_modules(self):
        self.assertIn("no module hcablk.", self.run_for("7.4.1"))
        self.assertIn("no module hcablk_target.", self.run_for("7.4.1", ["hcablk.ko"]))
        self.assertIn("hcablk-modules-7.4.1", self.run_for("7.4.1"))

    def test_it_is_silent_otherwise(self):
        self.assertEqual(self.run_for("7.4.1", ["hcablk.ko.xz", "hcablk_target.ko.xz"]), "")
        self.assertEqual(self.run_for("7.4.1", configured=False), "")


if __name__ == "__main__":
    unittest.main()
