# SPDX-License-Identifier: GPL-2.0
"""What the packages bring: units, udev rules, scripts and documents, as far as that needs no machine."""

import importlib.machinery
import importlib.util
import os
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PACKAGING = TOP / "packaging"


def module(path):
    """A script without a suffix, as a module."""
    loader = importlib.machinery.SourceFileLoader(path.name.replace("-", "_"), str(path))
    loaded = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(loaded)
    return loaded


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


class Fence(unittest.TestCase):
    def test_all_targets_have_the_same_end(self):
        agent = module(PACKAGING / "fence/fence_hcablk")
        left = []

        def end(_process, seconds):
            left.append(seconds)
            time.sleep(0.2)
            return None, "", "it did not end in time"

        agent.start = lambda options, words: words
        agent.end = end
        options = {name: default for name, _, _, default, _ in agent.OPTIONS}
        options.update(method="evict", volume="data", ip="10.0.0.1,10.0.0.2", plug="x")
        with self.assertRaises(agent.Failed):
            agent.Evict(options).off()
        self.assertEqual(len(left), 2)
        self.assertLess(left[1], left[0] - 0.1)

    def test_root_is_not_needed(self):
        agent = module(PACKAGING / "fence/fence_hcablk")
        run = []
        agent.start = lambda options, words: run.append(words[-1])
        agent.end = lambda process, seconds: (0, "", "")
        options = {name: default for name, _, _, default, _ in agent.OPTIONS}
        options.update(agent.from_lines(["use_sudo=1", "username=fence", "volume=data", "ip=10.0.0.1", "plug=x"]))
        agent.Evict(options).off()
        self.assertTrue(run[0].startswith("sudo -n hcablk target evict"), run)


if __name__ == "__main__":
    unittest.main()
