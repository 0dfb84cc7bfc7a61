# SPDX-License-Identifier: GPL-2.0
"""Tests of the packages' units, udev rules, scripts and documents that need no guest."""

import importlib.machinery
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PACKAGING = TOP / "packaging"
GENERATOR = "/usr/lib/systemd/system-generators/systemd-fstab-generator"
# Units for which a login waits, directly or indirectly.
BEFORE_A_LOGIN = {"remote-fs-pre.target", "remote-fs.target", "o2cb.service", "network.target", "systemd-user-sessions.service"}


def module(path):
    """Load a script without a suffix as a module."""
    loader = importlib.machinery.SourceFileLoader(path.name.replace("-", "_"), str(path))
    loaded = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(loaded)
    return loaded


def setting(unit, name):
    """Return the words of all lines NAME= of a unit."""
    lines = (line.partition("=") for line in unit.read_text().splitlines())
    return [word for key, _, value in lines if key == name for word in value.split()]


class Units(unittest.TestCase):
    def test_no_login_waits_for_a_target(self):
        units = [unit for unit in (PACKAGING / "systemd").rglob("*") if unit.is_file()]
        self.assertGreater(len(units), 8)
        for unit in units:
            self.assertFalse(BEFORE_A_LOGIN & set(setting(unit, "Before")), unit.name)

    def test_file_systems_are_mounted_when_their_disk_is_connected(self):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "SYSTEMD_FSTAB": str(PACKAGING / "examples/fstab")}
            subprocess.run([GENERATOR, folder, folder, folder], check=True, env=environment)
            made = Path(folder)
            for mount, disk in (("srv-db", "db"), ("srv-shared", "data"), ("srv-gfs2", "data")):
                self.assertTrue((made / f"hcablk-mounts@{disk}.target.wants/{mount}.mount").is_symlink(), mount)
                # No unit of the boot requires the mount, so the boot does not wait for it.
                self.assertEqual([wants.parent.name for wants in made.rglob(f"{mount}.mount") if wants.is_symlink()],
                                 [f"hcablk-mounts@{disk}.target.wants"])
                unit = made / f"{mount}.mount"
                self.assertIn(f"hcablk@{disk}.service", setting(unit, "Requires"))
                self.assertIn(f"hcablk@{disk}.service", setting(unit, "After"))

    def test_a_connected_disk_has_its_file_systems_mounted(self):
        service = (PACKAGING / "systemd/hcablk@.service").read_text()
        self.assertRegex(service, r"(?m)^ExecStartPost=/usr/bin/systemctl --no-block start hcablk-mounts@%i\.target$")
        self.assertTrue((PACKAGING / "systemd/hcablk-mounts@.target").exists())

    def test_a_hung_drive_does_not_hold_up_a_shutdown(self):
        unit = PACKAGING / "systemd/hcablk-target.service"
        self.assertEqual(setting(unit, "KillMode"), ["process"])
        words = setting(unit, "ExecStop")
        self.assertLess(int(words[words.index("--timeout") + 1]), int(setting(unit, "TimeoutStopSec")[0]))

    def test_every_unit_is_installed(self):
        package = "".join((PACKAGING / "debian" / name).read_text() for name in
                          ("hcablk.install", "hcablk-ublk.install", "hcablk-vhost-user.install"))
        script = (TOP / "scripts/install").read_text()
        for unit in (PACKAGING / "systemd").glob("*.*"):
            if unit.is_file():
                self.assertIn(f"systemd/{unit.name} ", package)
                self.assertIn(unit.name, script)


class Install(unittest.TestCase):
    """Tests `make install` and `make uninstall` of a checkout with a command and modules that do nothing."""

    COMMAND = """#!/bin/sh
    case $1 in
    man) : > "$2/hcablk.8" ;;
    completions) echo "$2" ;;
    esac
    """
    RELEASE = "7.3.1-test"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.top = Path(folder.name) / "checkout"
        self.dest = Path(folder.name) / "dest"
        self.dest.mkdir()
        for name in ("scripts", "packaging", "userspace-tools/hcablk/schema", "userspace-tools/ublk/man",
                     "userspace-tools/vhost-user/man"):
            shutil.copytree(TOP / name, self.top / name)
        modules = self.top / "build" / self.RELEASE
        modules.mkdir(parents=True)
        for name in ("hcablk_core", "hcablk", "hcablk_target", "hcablk_pcimem"):
            (modules / f"{name}.ko").touch()
        programs = self.top / "build/userspace-tools/release"
        programs.mkdir(parents=True)
        for name in ("hcablk", "hcablk-ublk", "hcablk-vhost-user", "hcablk-bench", "hcablk-cachesim"):
            (programs / name).write_text(self.COMMAND)
            (programs / name).chmod(0o755)

    def run_script(self, name, **variables):
        environment = {**os.environ, "DESTDIR": str(self.dest), "KREL": self.RELEASE, **variables}
        return subprocess.run([self.top / "scripts" / name], env=environment, capture_output=True, text=True)

    def files(self):
        return {str(path.relative_to(self.dest)) for path in self.dest.rglob("*") if not path.is_dir()}

    def test_uninstall_removes_what_install_has_installed(self):
        kept = {"etc/hcablk/hcablk.toml", "etc/hcablk/keys/host", "usr/local/share/man/man8/other.8",
                f"lib/modules/{self.RELEASE}/updates/hcablk/mine"}
        for name in kept:
            (self.dest / name).parent.mkdir(parents=True, exist_ok=True)
            (self.dest / name).touch()
        done = self.run_script("install")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(len(self.files()), 30)
        done = self.run_script("uninstall")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.files(), kept | {"var/lib/hcablk/reservations/.hcablk-reservations"})
        folders = {str(path.relative_to(self.dest)) for path in self.dest.rglob("*hcablk*") if path.is_dir()}
        self.assertEqual(folders, {"etc/hcablk", "etc/hcablk/hcablk.d", "var/lib/hcablk",
                                   f"lib/modules/{self.RELEASE}/updates/hcablk"})
        # Again: nothing is left to remove.
        done = self.run_script("uninstall")
        self.assertIn("removed 0 files", done.stderr)

    def test_uninstall_leaves_what_belongs_to_a_package(self):
        self.assertEqual(self.run_script("install").returncode, 0)
        stubs = self.top / "stubs"
        stubs.mkdir()
        (stubs / "dpkg-query").write_text("#!/bin/sh\ncase $2 in */hcablk_core.ko) ;; *) exit 1 ;; esac\n")
        (stubs / "dpkg-query").chmod(0o755)
        done = self.run_script("uninstall", PATH=f"{stubs}:{os.environ['PATH']}")
        self.assertEqual(done.returncode, 0, done.stderr)
        module = f"lib/modules/{self.RELEASE}/updates/hcablk/hcablk_core.ko"
        self.assertEqual({name for name in self.files() if not name.startswith("var/")}, {module})
        self.assertIn(f"left {self.dest}/{module}, which belongs to a package", done.stderr)

    def test_uninstall_names_what_it_needs(self):
        done = self.run_script("uninstall", KREL="7.2.0-other")
        self.assertEqual(done.returncode, 1)
        self.assertIn("there are no modules for kernel 7.2.0-other", done.stderr)

    def test_the_help_of_make_has_a_column_that_is_wide_enough(self):
        text = (TOP / "Makefile").read_text()
        width = int(re.search(r"printf '  %-(\d+)s %s", text).group(1))
        targets = re.findall(r"(?m)^([a-z-]+):[^#\n]*## ", text)
        self.assertIn("uninstall", targets)
        self.assertLessEqual(max(map(len, targets)), width)


class Udev(unittest.TestCase):
    # Other packages' rules that read a disk because of its ID_FS_TYPE have lower numbers.
    LAST_READER = 69

    def test_no_rule_reads_a_disk_because_of_an_event_of_its_state(self):
        """A disk's saved properties are restored after all rules that would then read the disk."""
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
    """Tests the script that runs after a kernel's installation."""

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


class NewestKernel(unittest.TestCase):
    """Tests the package that installs the modules with each new kernel."""

    def test_it_keeps_a_kernel_away_that_has_no_modules(self):
        text = (PACKAGING / "debian/modules-amd64.control.in").read_text()
        fields = dict(re.findall(r"(?m)^(\w+): (.*)$", text))
        self.assertEqual(fields["Package"], "hcablk-modules-amd64")
        self.assertIn("hcablk-modules-@RELEASE@ (= ${binary:Version})", fields["Depends"])
        self.assertEqual(fields["Breaks"], "linux-image-amd64 (>> @VERSION@)")
        self.assertIn("modules-amd64.control.in", (TOP / "scripts/deb").read_text())


class Fence(unittest.TestCase):
    def options(self, *lines):
        """Return the agent, and the options that it reads from these lines on standard input."""
        agent = module(PACKAGING / "fence/fence_hcablk")
        names = agent.define_options()
        with mock.patch.object(sys, "argv", ["fence_hcablk"]), mock.patch.object(sys, "stdin", io.StringIO("\n".join(lines))):
            options = agent.fencing.check_input(names, agent.fencing.process_input(names), other_conditions=True)
        return agent, options

    def test_all_targets_have_one_deadline(self):
        # Pacemaker sets this variable. fencing.py then removes the time limits of an agent without a default of its
        # own.
        with mock.patch.dict(os.environ, {"PCMK_service": "pacemaker-fenced"}):
            agent, options = self.options("method=evict", "volume=data", "ip=10.0.0.1,10.0.0.2", "plug=x")
        left = []

        def end(_process, limit):
            left.append(limit)
            time.sleep(0.2)
            return None, "", "it did not end in time"

        agent.start = lambda options, words: words
        agent.end = end
        with self.assertRaises(agent.Failed):
            agent.Evict(options).off()
        self.assertEqual(len(left), 2)
        self.assertLessEqual(left[0], 35)
        self.assertLess(left[1], left[0] - 0.1)

    def test_root_is_not_needed(self):
        agent, options = self.options("method=evict", "use_sudo=1", "username=fence", "volume=data", "ip=10.0.0.1", "plug=x")
        run = []
        agent.start = lambda options, words: run.append(words)
        agent.end = lambda process, limit: (0, "", "")
        agent.Evict(options).off()
        self.assertEqual(run[0][run[0].index("-l") + 1], "fence")
        self.assertTrue(run[0][-1].startswith("/usr/bin/sudo -n hcablk target evict"), run)
        _, options = self.options("method=evict", "use_sudo=0", "volume=data", "ip=10.0.0.1", "plug=x")
        agent.Evict(options).off()
        self.assertTrue(run[1][-1].startswith("hcablk target evict"), run)

    def test_an_option_without_a_value_is_left_out_as_zero(self):
        words = []
        for value in ("1", "0"):
            agent, options = self.options("method=evict", f"inet4_only={value}", "volume=data", "ip=[fd00::1]", "plug=x")
            words.append(agent.Evict(options).at_target("[fd00::1]", ["true"]))
        self.assertIn("-4", words[0])
        self.assertNotIn("-4", words[1])
        # ssh would look up a host of this name, with its brackets.
        self.assertEqual(words[0][-2:], ["fd00::1", "true"])

    def test_its_page_has_every_option_and_action(self):
        agent = PACKAGING / "fence/fence_hcablk"
        described = subprocess.run([sys.executable, agent, "-o", "metadata"], capture_output=True, check=True).stdout
        page = subprocess.run([TOP / "scripts/fence-manpage"], input=described, capture_output=True, check=True).stdout.decode()
        for word in ("method", "devices", "volume", "use\\-sudo", "power\\-timeout", "validate\\-all"):
            self.assertIn(word, page)


class Documents(unittest.TestCase):
    def test_installed_documents_have_no_dead_links(self):
        wanted = re.search(r"installed-docs\" .*\n.*\{command,configuration\}", (TOP / "scripts/deb").read_text())
        self.assertIsNotNone(wanted)
        names = (PACKAGING / "debian/hcablk.docs").read_text().replace("docs/", "").split()
        names.remove("pictures")
        files = [next(TOP.glob(f"docs/*/{name}")) for name in names]
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([TOP / "scripts/installed-docs", folder, *files], check=True)
            links = module(TOP / "scripts/installed-docs").LINK
            kept = 0
            for name in names:
                for _, target in links.findall((Path(folder) / name).read_text()):
                    path = target.partition("#")[0]
                    if path and "://" not in path:
                        kept += 1
                        self.assertTrue((Path(folder) / path).exists(), f"{name}: {target}")
            self.assertGreater(kept, 5)
            self.assertEqual({picture.name for picture in (Path(folder) / "pictures").iterdir()},
                             {"list.svg", "stats.svg", "read-chunked.svg", "read-whole.svg"})


class Copyright(unittest.TestCase):
    def test_the_crates_that_are_linked_are_named_and_no_others(self):
        def package(name, source="registry"):
            return {"id": name, "name": name, "version": "1.0", "source": source, "authors": ["A <a@example.org>"],
                    "license": "MIT", "license_file": None}

        def dependency(name, kind=None):
            return {"pkg": name, "dep_kinds": [{"kind": kind}]}

        nodes = {"own": [dependency("direct"), dependency("tests", "dev"), dependency("builds", "build")], "direct": [dependency("deep")],
                 "deep": [], "tests": [], "builds": []}
        metadata = {
            "packages": [package("own", None)] + [package(name) for name in ("tests", "direct", "builds", "deep")],
            "workspace_members": ["own"],
            "resolve": {"nodes": [{"id": name, "deps": deps} for name, deps in nodes.items()]},
        }
        crates = module(TOP / "scripts/crates-of")
        self.assertEqual([one["name"] for one in crates.linked(metadata)], ["deep", "direct"])
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "metadata"
            file.write_text(json.dumps(metadata))
            printed = subprocess.run([TOP / "scripts/crates-of", file], capture_output=True, text=True, check=True).stdout
        self.assertIn("\n direct 1.0: MIT (A)\n", printed)
        # A field of a control file: each line continues the one before.
        self.assertTrue(all(line.startswith(" ") for line in printed.splitlines()[1:]))


if __name__ == "__main__":
    unittest.main()
