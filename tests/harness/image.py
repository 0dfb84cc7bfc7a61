# SPDX-License-Identifier: GPL-2.0
"""Build the guests' initramfs.

One image serves every guest; the kernel's command line describes the guest. The image consists of two cpio archives one
after the other, which the kernel unpacks in order:

* the base: programs with their libraries and the distribution's kernel modules. Building it takes seconds; the cache keeps it
  under a hash of its inputs;
* the top: our modules, our command, the guest's scripts and helpers. Built for every run.

Everything is read from the running root: this code runs inside the build root.
"""

from __future__ import annotations

import fcntl
import hashlib
import lzma
import os
import py_compile
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

# Programs that busybox lacks, or that replace its own.
PROGRAMS = (
    "blkdiscard blkid blockdev cmp dash dd dmesg fallocate fio flock fsck.ocfs2 ip jq losetup lsblk mkfs.ext4 mkfs.xfs e2fsck "
    "mkfs.ocfs2 mount mount.ocfs2 umount o2cb ocfs2_hb_ctl o2info rdma sfdisk partx kmod sha256sum timeout dmsetup tc udevadm script gawk xmllint "
    "blkpr iscsi-test-cu mdadm"
).split()

# Kernel modules; their dependencies are added.
MODULES = (
    "libcurve25519 "
    "virtio_pci virtio_net virtio_console virtio_rng "
    "bridge veth configfs sch_netem "
    "rdma_rxe rdma_cm ib_cm iw_cm ib_uverbs rdma_ucm siw "
    "nvme null_blk scsi_debug sd_mod virtio_scsi brd loop dm_mod dm_flakey dm_delay raid0 raid1 raid456 "
    "nvme_rdma nvmet nvmet_rdma nvme_fabrics "
    "ext4 xfs overlay crc32c_cryptoapi nbd ublk_drv "
    "target_core_mod target_core_iblock iscsi_target_mod "
    "ocfs2 ocfs2_stack_o2cb ocfs2_dlm ocfs2_dlmfs ocfs2_nodemanager"
).split()

# Modules that some supported kernels have built in or lack.
OPTIONAL_MODULES = {
    "virtio_pci", "virtio_rng", "crc32c_cryptoapi", "siw", "iw_cm", "configfs", "scsi_debug", "sd_mod",
    "virtio_scsi", "dm_flakey", "dm_delay", "raid1", "raid456", "libcurve25519", "nvme_rdma", "nvmet", "nvmet_rdma", "nvme_fabrics", "nbd", "ublk_drv", "xfs",
    "overlay",
    "target_core_mod", "target_core_iblock", "iscsi_target_mod",
}

# Libraries of fio's I/O engines that no test uses. fio would load them and their dependencies, 40
# MiB, at each start, which takes an emulated guest a second. Libraries of the same names, whose
# functions trap, replace them.
STUBS = {"libgfapi.so.0", "libnbd.so.0", "libnfs.so.14", "libpmem.so.1", "librados.so.2", "librbd.so.1"}

# By default fio scans /sys for the use of each disk, and measures the processor's counter: tests need neither.
FIO = b'#!/bin/sh\nexec /usr/libexec/fio --disk_util=0 --clocksource=clock_gettime "$@"\n'

# The Python modules that the fence agent imports, and Python itself. Libraries that neither needs are not in the
# guests.
PYTHON = "array atexit fcntl fencing hashlib json logging os re shlex stat struct subprocess time site _sitebuiltins"
NOT_PYTHON = {"_hashlib", "_uuid"}
PYTHON_FOLDERS = ("/usr/share/fence", "/usr/lib/python3/dist-packages")

# fencing.py imports pycurl for agents that use HTTP, and ours does not: 20 libraries that no test uses.
PYCURL = "class error(Exception):\n    pass\n"

# Examples of the crate libhcablk that tests and the benchmark run, and their names in the guests.
EXAMPLES = {"hcablk-user": "hcablk-user", "hcablk-cost": "hcablk-cost", "copy": "hcablk-rust-copy", "hcablk-vhost-frontend": "hcablk-vhost-frontend"}

# Seconds since its last use after which a base archive is deleted, when a new archive is made.
UNUSED_SECONDS = 86400

DIRECTORIES = "dev proc sys tmp run root mnt etc var etc/ocfs2 usr usr/bin usr/sbin usr/lib usr/lib64".split()


class Archive:
    """A cpio archive in the kernel's "newc" format, root-owned and without time stamps."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._made: set[str] = set()
        self._ino = 0

    def _entry(self, name: str, mode: int, data: bytes, rdev: tuple[int, int] = (0, 0)) -> None:
        self._ino += 1
        raw = name.encode() + b"\0"
        fields = (self._ino, mode, 0, 0, 1, 0, len(data), 0, 0, *rdev, len(raw), 0)
        self._data += b"070701" + b"".join(b"%08X" % f for f in fields) + raw
        self._pad()
        self._data += data
        self._pad()

    def _pad(self, to: int = 4) -> None:
        self._data += b"\0" * (-len(self._data) % to)

    def has(self, name: str) -> bool:
        return name in self._made

    def directory(self, name: str) -> None:
        if name in ("", ".") or name in self._made:
            return
        self.directory(os.path.dirname(name))
        self._made.add(name)
        self._entry(name, stat.S_IFDIR | 0o755, b"")

    def symlink(self, name: str, to: str) -> None:
        if name not in self._made:
            self.directory(os.path.dirname(name))
            self._made.add(name)
            self._entry(name, stat.S_IFLNK | 0o777, to.encode())

    def file(self, name: str, data: bytes, mode: int = 0o644) -> None:
        if name not in self._made:
            self.directory(os.path.dirname(name))
            self._made.add(name)
            self._entry(name, stat.S_IFREG | mode, data)

    def device(self, name: str, mode: int, major: int, minor: int) -> None:
        self._made.add(name)
        self._entry(name, stat.S_IFCHR | mode, b"", (major, minor))

    def finish(self) -> bytes:
        self._entry("TRAILER!!!", 0, b"")
        self._pad(512)
        return bytes(self._data)


def find_program(name: str) -> Path:
    """Return the path of a program in this root."""
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if not found:
        raise SystemExit(f"guest image: {name} is not in the build root")
    return Path(found)


def libraries(program: Path, stubs: Path | None = None) -> list[Path]:
    """Return the shared libraries that a program needs, with the loader; those in `stubs` take precedence."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(stubs)} if stubs else None
    out = subprocess.run(["ldd", program], capture_output=True, text=True, env=environment).stdout
    return [Path(w) for line in out.splitlines() for w in line.split() if w.startswith("/")]


def symbols(file: Path, which: str) -> list[tuple[str, str]]:
    """Return the dynamic symbols of a file that are "defined" or "undefined", each with its version, if any."""
    command = ["nm", "--dynamic", f"--{which}-only", "--with-symbol-versions", file]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = [line.split()[-1].replace("@@", "@").partition("@") for line in out.splitlines()]
    return [(name, version) for name, _, version in names]


def make_stub(program: Path, library: Path, folder: Path) -> None:
    """Build a replacement of a library, for a program that calls none of its functions."""
    defined = {name for name, _ in symbols(library, "defined")}
    versions: dict[str, list[str]] = {}
    for name, version in symbols(program, "undefined"):
        if name in defined:
            versions.setdefault(version, []).append(name)
    source, script = folder / f"{library.name}.c", folder / f"{library.name}.map"
    source.write_text("".join(f"void {name}(void) {{ __builtin_trap(); }}\n" for names in versions.values() for name in names))
    script.write_text("".join(f"{v} {{ global: {'; '.join(names)}; }};\n" for v, names in versions.items() if v))
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-fno-builtin", f"-Wl,-soname,{library.name}"]
    if script.stat().st_size:
        command.append(f"-Wl,--version-script,{script}")
    subprocess.run([*command, "-o", folder / library.name, source], check=True)


def add_program(archive: Archive, source: Path, name: str | None = None, place: str | None = None) -> None:
    """Put a program and its libraries into the archive."""
    place = place or ("usr/sbin" if "sbin" in source.parts else "usr/bin")
    archive.file(f"{place}/{name or source.name}", source.resolve().read_bytes(), 0o755)
    with tempfile.TemporaryDirectory(prefix="hcablk-stubs-") as stubs:
        for lib in libraries(source):
            if lib.name in STUBS:
                make_stub(source, lib, Path(stubs))
        add_libraries(archive, source, Path(stubs))


def add_libraries(archive: Archive, source: Path, stubs: Path) -> None:
    """Put a program's libraries into the archive."""
    for lib in libraries(source, stubs):
        if lib.is_relative_to(stubs):
            archive.file(f"usr/lib/x86_64-linux-gnu/{lib.name}", lib.read_bytes(), 0o755)
            continue
        # In the guest /lib and /lib64 are links into /usr.
        inside = str(lib).lstrip("/")
        inside = inside if inside.startswith("usr/") else "usr/" + inside
        archive.file(inside, lib.resolve().read_bytes(), 0o755)


def module_files(top: Path) -> dict[str, Path]:
    """Return the wanted modules and their dependencies, with paths below the kernel's module folder."""
    needs: dict[str, list[str]] = {}
    place: dict[str, str] = {}
    for line in (top / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
        place[Path(path).name.split(".ko")[0].replace("-", "_")] = path
    built_in = {
        Path(line).stem.replace("-", "_") for line in (top / "modules.builtin").read_text().splitlines()
    }
    result: dict[str, Path] = {}
    for module in MODULES:
        if module in place:
            for path in (place[module], *needs[place[module]]):
                result[path] = top / path
        elif module not in built_in and module not in OPTIONAL_MODULES:
            raise SystemExit(f"guest image: kernel {top.name} has no module {module}")
    return result


def stripped(module: bytes) -> bytes:
    """Return a module without its signature and the data for debuggers and BPF, most of our modules' size: an emulated
    guest is slow to read, check and parse all that at each load."""
    with tempfile.NamedTemporaryFile(prefix="hcablk-module-") as file:
        Path(file.name).write_bytes(module)
        subprocess.run(["strip", "--strip-debug", "--remove-section=.BTF", "--remove-section=.BTF.base", file.name], check=True)
        return Path(file.name).read_bytes()


def add_python(archive: Archive) -> None:
    """Put Python and the modules of PYTHON into the archive, compiled: an emulated guest compiles slowly."""
    interpreter = find_program("python3").resolve()
    add_program(archive, interpreter)
    archive.symlink("usr/bin/python3", interpreter.name)
    # Python warns at each start if this folder is missing.
    archive.directory(f"usr/lib/{interpreter.name}/lib-dynload")
    with tempfile.TemporaryDirectory(prefix="hcablk-python-") as stubs:
        (Path(stubs) / "pycurl.py").write_text(PYCURL)
        script = (
            f"import sys; sys.path += {[stubs, *PYTHON_FOLDERS]}\nimport {PYTHON.replace(' ', ', ')}\n"
            "for m in list(sys.modules.values()): print(getattr(m, '__file__', None) or '')"
        )
        out = subprocess.run([interpreter, "-I", "-S", "-c", script], capture_output=True, text=True, check=True).stdout
        for source in sorted({Path(line) for line in out.splitlines() if line}):
            place = Path(PYTHON_FOLDERS[-1]) / source.name if source.is_relative_to(stubs) else source
            if source.suffix == ".py":
                with tempfile.NamedTemporaryFile(prefix="hcablk-python-") as made:
                    py_compile.compile(str(source), cfile=made.name, doraise=True)
                    archive.file(str(place.with_suffix(".pyc"))[1:], Path(made.name).read_bytes())
            elif source.name.partition(".")[0] not in NOT_PYTHON:
                archive.file(str(place)[1:], source.read_bytes())


def make_base(top: Path) -> tuple[bytes, list[str]]:
    """Return the base archive, and the modules in it."""
    archive = Archive()
    for directory in DIRECTORIES:
        archive.directory(directory)
    for link in ("bin", "sbin", "lib", "lib64"):
        archive.symlink(link, f"usr/{link}")
    # The kernel opens the console before anything is mounted.
    archive.device("dev/console", 0o600, 5, 1)
    archive.device("dev/null", 0o666, 1, 3)

    for name in PROGRAMS:
        add_program(archive, find_program(name), place="usr/libexec" if name == "fio" else None)
    archive.file("usr/bin/fio", FIO, 0o755)
    for name in ("modprobe", "insmod", "rmmod", "lsmod", "modinfo", "depmod"):
        archive.symlink(f"usr/sbin/{name}", "../bin/kmod")
    # A test that needs udev starts it, and adds rules to ours.
    archive.symlink("usr/lib/systemd/systemd-udevd", "../../bin/udevadm")
    # busybox's shell would prefer its own dd, mount and so on to the programs here.
    archive.symlink("usr/bin/sh", "dash")
    add_python(archive)
    busybox = find_program("busybox")
    add_program(archive, busybox)
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    for applet in applets:
        if not archive.has(f"usr/sbin/{applet}"):
            archive.symlink(f"usr/bin/{applet}", "busybox")

    # The user-space part of soft-RoCE, for the malicious peer.
    for provider in Path("/usr/lib/x86_64-linux-gnu/libibverbs").glob("librxe-*.so"):
        archive.file(str(provider)[1:], provider.read_bytes(), 0o755)
        archive.file("etc/libibverbs.d/rxe.driver", b"driver rxe\n")

    modules = module_files(top)
    for path, source in sorted(modules.items()):
        data = source.read_bytes()
        if source.suffix == ".xz":
            data = lzma.decompress(data)
        archive.file(f"usr/lib/modules/{top.name}/{path.removesuffix('.xz')}", stripped(data))
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        archive.file(f"usr/lib/modules/{top.name}/{name}", (top / name).read_bytes())
    # mkfs and fsck read the list of mounted file systems here.
    archive.symlink("etc/mtab", "../proc/mounts")
    archive.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
    archive.file("etc/group", b"root:x:0:\nnogroup:x:65534:\n")
    # The checker of Pacemaker's resource agents.
    for folder in ("usr/lib/ocf/lib/heartbeat", "usr/share/resource-agents"):
        for file in sorted(Path("/", folder).iterdir()):
            if file.is_file():
                archive.file(f"{folder}/{file.name}", file.read_bytes(), 0o755)
    archive.file("usr/sbin/ocf-tester", find_program("ocf-tester").read_bytes(), 0o755)
    return archive.finish(), sorted(modules)


def base(cache: Path, kernel: Path) -> Path:
    """Return the base archive's file in the cache, and create it if it does not exist."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    digest.update(Path("/var/lib/dpkg/status").read_bytes())
    digest.update(str(kernel).encode())
    folder = cache / "guest"
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / f"base-{kernel.name}-{digest.hexdigest()[:16]}.cpio"
    with open(folder / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            data, _ = make_base(kernel)
            for old in folder.glob(f"base-{kernel.name}-*"):
                # Another checkout's run may be about to read a newer one.
                if time.time() - old.stat().st_mtime > UNUSED_SECONDS:
                    old.unlink()
            partial = result.with_suffix(".partial")
            partial.write_bytes(data)
            partial.rename(result)
        os.utime(result)
    return result


def helpers(cache: Path, sources: Path) -> list[Path]:
    """Compile the small programs of a folder; the cache keeps them under the hash of their sources.

    A program is a file, or a folder with a main.c; headers may be anywhere.
    """
    folder = cache / "guest"
    folder.mkdir(parents=True, exist_ok=True)
    headers = sorted(sources.glob("**/*.h"))
    result = []
    for source in sorted([*sources.glob("*.rs"), *sources.glob("*.c"), *sources.glob("*/main.c")]):
        name, parts = source.stem, [source]
        if name == "main":
            name, parts = source.parent.name, sorted(source.parent.glob("*.c"))
        read = parts if source.suffix == ".rs" else parts + headers
        digest = hashlib.sha256(b"\0".join(file.read_bytes() for file in read)).hexdigest()[:16]
        program = folder / f"{name}-{digest}"
        if not program.exists():
            rustc = ["rustc", "--edition=2021", "-O", "-Dwarnings"]
            gcc = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror"]
            libraries = [] if source.suffix == ".rs" else ["-Wl,--as-needed", "-lrdmacm", "-libverbs", "-lblkio"]
            compiler = rustc if source.suffix == ".rs" else gcc
            # A temporary folder: another run may build the same, with the same process id in its namespace.
            with tempfile.TemporaryDirectory(prefix="making-", dir=folder) as place:
                made = Path(place, name)
                subprocess.run([*compiler, *map(str, parts), *libraries, "-o", str(made)], check=True)
                made.rename(program)
        result.append(program)
    return result


def add_c_library(archive: Archive, library: Path, folder: Path) -> None:
    """Put the C library into the archive, and its examples and tests as hcablk-c-NAME."""
    with tempfile.TemporaryDirectory(prefix="hcablk-c-") as tmp:
        # As the packages install the library.
        shared = Path(tmp, "libhcablk.so.1")
        shutil.copy(library, shared)
        Path(tmp, library.name).symlink_to(shared.name)
        for source in sorted([*folder.glob("examples/*.c"), *folder.glob("tests/*.c")]):
            program = Path(tmp, f"hcablk-c-{source.stem}")
            gcc = ["gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{folder}/include"]
            if any(needed.name.startswith("libasan") for needed in libraries(shared)):
                # Its runtime must be the first library of a program.
                gcc.append("-fsanitize=address")
            subprocess.run([*gcc, str(source), f"-L{tmp}", "-lhcablk", "-o", str(program)], check=True)
            archive.file(f"usr/bin/{program.name}", program.read_bytes(), 0o755)
        archive.file(f"usr/lib/x86_64-linux-gnu/{shared.name}", shared.read_bytes(), 0o755)
        add_libraries(archive, shared, Path(tmp))


def depmod(kernel: Path, modules: list[Path]) -> dict[str, bytes]:
    """Return the module index of the guest: of the base's modules and ours."""
    with tempfile.TemporaryDirectory(prefix="hcablk-depmod-") as tmp:
        top = Path(tmp, "lib/modules", kernel.name)
        top.mkdir(parents=True)
        for path, source in module_files(kernel).items():
            # The index must name the files as in the guest.
            place = top / path.removesuffix(".xz")
            place.parent.mkdir(parents=True, exist_ok=True)
            data = source.read_bytes()
            place.write_bytes(lzma.decompress(data) if source.suffix == ".xz" else data)
        (top / "updates").mkdir()
        for module in modules:
            shutil.copy(module, top / "updates")
        for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
            shutil.copy(kernel / name, top)
        subprocess.run(["depmod", "-b", tmp, kernel.name], check=True)
        return {f.name: f.read_bytes() for f in top.glob("modules.*")}


def build(
    out: Path,
    cache: Path,
    sources: Path,
    kernel: Path,
    modules: list[Path],
    command: Path | None,
    more_programs: Sequence[str] = (),
    more_helpers: Path | None = None,
    other: Path | None = None,
) -> None:
    """Write the whole image for one run; `more_*` are additions for this run: programs of the root, a folder of
    helpers' sources. `other` is a folder with the modules of another build."""
    base_file = base(cache, kernel)
    top = Archive()
    for script in ("init", "inittab", "rc", "reset", "hca-pair", "volatile"):
        place = {"init": "init", "inittab": "etc/inittab"}.get(script, f"usr/sbin/hcablk-{script}")
        top.file(place, (sources / script).read_bytes(), 0o755)
    for rules in sorted((sources.parent.parent / "packaging/udev").iterdir()):
        top.file(f"usr/lib/udev/rules.d/{rules.name}", rules.read_bytes())
    for agent in sorted((sources.parent.parent / "packaging/ocf/hcablk").iterdir()):
        top.file(f"usr/lib/ocf/resource.d/hcablk/{agent.name}", agent.read_bytes(), 0o755)
    re_add = sources.parent.parent / "packaging/md/md-re-add"
    top.file(f"usr/lib/hcablk/{re_add.name}", re_add.read_bytes(), 0o755)
    fence = sources.parent.parent / "packaging/fence/fence_hcablk"
    top.file(f"usr/sbin/{fence.name}", fence.read_bytes(), 0o755)
    for name in more_programs:
        add_program(top, find_program(name))
    for program in [*helpers(cache, sources), *(helpers(cache, more_helpers) if more_helpers else [])]:
        name = "hcablk-" + program.name.rsplit("-", 1)[0]
        top.file(f"usr/bin/{name}", program.read_bytes(), 0o755)
        for lib in libraries(program):
            top.file("usr/" + str(lib).lstrip("/").removeprefix("usr/"), lib.resolve().read_bytes(), 0o755)
    if command:
        add_program(top, command, "hcablk")
        # The udev rule and the command look for these programs here.
        for program in ("hcablk-bench", "hcablk-ublk", "hcablk-vhost-user"):
            add_program(top, command.parent / program, place="usr/sbin")
        # Examples of the library for user space, in cargo's folder next to the command.
        for example, name in EXAMPLES.items():
            add_program(top, command.parent / "examples" / example, name, "usr/bin")
        add_c_library(top, command.parent / "libhcablk.so", sources.parent.parent / "userspace-tools/libhcablk-c")
        # The engine is missing if the package archive has no source of fio.
        engine = command.parent / "libhcablk-fio.so"
        if engine.exists():
            top.file(f"usr/lib/x86_64-linux-gnu/fio/{engine.name}", engine.read_bytes(), 0o755)
    for module in modules:
        top.file(f"usr/lib/modules/{kernel.name}/updates/{module.name}", stripped(module.read_bytes()))
    for module in sorted(other.glob("hcablk*.ko")) if other else []:
        top.file(f"usr/lib/hcablk-other/{module.name}", stripped(module.read_bytes()))
    for name, data in depmod(kernel, modules).items():
        top.file(f"usr/lib/modules/{kernel.name}/{name}", data)
    with open(out, "wb") as image:
        with open(base_file, "rb") as part:
            shutil.copyfileobj(part, image)
        image.write(top.finish())
