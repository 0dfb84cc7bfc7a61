# SPDX-License-Identifier: GPL-2.0
"""What the packages bring: units, udev rules, scripts and documents, as far as that needs no machine."""

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


if __name__ == "__main__":
    unittest.main()
