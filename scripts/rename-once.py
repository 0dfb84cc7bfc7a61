#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""rename8.py [--dry] [--no-fmt] [--force]

Gives names that say nothing names that stand alone (issue 45, point 3), in the checkout that is the current directory:
"The glossary is what the code speaks". Idempotent: a second run changes nothing.

A rule that matches nothing fails the run before anything is written, unless what the rule makes is in its files already.
The injected bugs (tests/debug/injected_bugs/*.patch) are made anew from the renamed source where their context changes.
Afterwards `make fmt` is run (--no-fmt: it is not, and patches are not formatted either).

--dry    report, write nothing
--force  report rules without a match, and go on
"""

import functools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path.cwd()

# ------------------------------------------------------------------------------------------------ engine

RUST = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<string>b?c?r(?P<hashes>\#*)".*?"(?P=hashes) | [bc]?"(?:[^"\\]|\\.)*")
      | b?'(?:[^'\\\n]|\\[^\n]{1,8}?)'""",
    re.S | re.X,
)


def segments(text):
    """Splits Rust source into ("code" | "comment" | "string", text)."""
    at = 0
    for match in RUST.finditer(text):
        kind = "comment" if match["comment"] is not None else "string" if match["string"] is not None else None
        if kind is None:
            continue
        if match.start() > at:
            yield "code", text[at : match.start()]
        yield kind, match[0]
        at = match.end()
    if at < len(text):
        yield "code", text[at:]


def in_kind(text, kinds, change):
    return "".join(change(part) if kind in kinds else part for kind, part in segments(text))


def in_ticks(comment, change):
    """Applies `change` to the code in a comment: between backticks, and the targets of links."""
    return re.sub(r"`[^`\n]*`|\]\((?:[\w]+::)*\w+\)", lambda m: change(m[0]), comment)


def outside_ticks(comment, change):
    parts = re.split(r"(`[^`\n]*`|\]\([^)\n]*\))", comment)
    return "".join(part if n % 2 else change(part) for n, part in enumerate(parts))


DRAWING = re.compile(r"[│─►└┌┐┘├┤┬┼◄▲▼]|^\s*//[/!]?\s*\|")


class Files:
    """The files of the checkout, and what they become."""

    def __init__(self):
        listed = subprocess.run(
            ["git", "ls-files", "-z", "-co", "--exclude-standard"], check=True, capture_output=True, text=True
        ).stdout
        names = [n for n in set(listed.split("\0")) if n and not (TOP / n).is_symlink() and (TOP / n).is_file()]
        # The former names of files that get new ones.
        self.former = {MOVES[n]: n for n in names if n in MOVES}
        self.names = sorted(MOVES.get(n, n) for n in names)
        self.new = {}

    def path(self, name):
        return TOP / self.former.get(name, name)

    def text(self, name):
        if name not in self.new:
            self.new[name] = self.path(name).read_text()
        return self.new[name]

    def matching(self, globs):
        globs = expand(globs)
        for name in self.names:
            if any(matches(name, g) for g in globs):
                try:
                    self.text(name)
                except UnicodeDecodeError:
                    continue
                yield name


def expand(globs):
    found = []
    for g in globs.split() if isinstance(globs, str) else globs:
        if m := re.fullmatch(r"(.*)\{(.*)\}(.*)", g):
            found += [m[1] + x + m[3] for x in m[2].split(",")]
        else:
            found.append(g)
    return found


@functools.cache
def compiled(glob):
    return re.compile(re.escape(glob).replace(r"\*\*/", "(?:.*/)?").replace(r"\*\*", ".*").replace(r"\*", "[^/]*"))


@functools.cache
def matches(name, glob):
    """`*` stays within a folder, `**` does not."""
    return compiled(glob).fullmatch(name) is not None


USE = re.compile(r"\b(?:pub(?:\([^)]*\))?\s+)?use\s+([^;]*?);", re.S)


def use_leaves(text):
    """Yields (start, end, path) of each imported name."""
    blank = in_kind(text, ("comment", "string"), lambda part: re.sub(r"[^\n]", " ", part))
    for match in USE.finditer(blank):
        tokens = [(m[0], m.start()) for m in re.finditer(r"\w+|::|[{},*]", match[1])]
        base, stack, path, last, alias = match.start(1), [], [], None, False
        for token, at in tokens:
            if token == "{":
                stack.append(list(path))
                last = None
            elif token in (",", "}"):
                if last is not None:
                    yield last
                last = None
                alias = False
                if token == "}":
                    path = stack.pop() if stack else []
                    # What follows belongs to the outer list.
                path = list(stack[-1]) if stack else []
            elif token == "::":
                continue
            elif token == "as":
                alias = True
            elif not alias:
                path = path + [token]
                last = (base + at, base + at + len(token), "::".join(path))
        if last is not None:
            yield last


class Rule:
    def apply(self, name, text):
        raise NotImplementedError

    def is_done(self, texts):
        """Whether what the rule makes is there."""
        raise NotImplementedError


class T(Rule):
    """Renames a type. `home`: files in which the bare name is this type. Elsewhere it is renamed where it is imported by
    a path that matches `imports`, or named by a path that matches `qualified`. In comments: only in backticks."""

    def __init__(self, old, new, home="", imports=None, qualified=None, scope="**.rs", skip=None, keep=""):
        self.old, self.new = old, new
        self.home, self.scope, self.keep = expand(home), expand(scope), expand(keep)
        self.imports = re.compile(imports) if imports else None
        self.qualified = re.compile(r"(?:%s)::$" % qualified) if qualified else None
        self.skip = re.compile(skip) if skip else None
        self.globs = self.scope + self.home

    def __str__(self):
        return f"type {self.old} -> {self.new} ({' '.join(self.home) or self.imports.pattern})"

    def apply(self, name, text):
        if any(matches(name, g) for g in self.keep) or self.old not in text:
            return text
        home = any(matches(name, g) for g in self.home)
        imported = []
        if self.imports or home:
            imported = [
                (s, e) for s, e, path in use_leaves(text)
                if path.split("::")[-1] == self.old
                and ((self.imports and self.imports.search(path)) or (home and re.match(r"(self|super)::", path)))
            ]
        for start, end in reversed(imported):
            text = text[:start] + self.new + text[end:]
        # With `as` the file has a name of its own.
        active = home or any(not re.match(r"\s+as\b", text[s + len(self.new) :]) for s, e in imported)

        def change(part, whole_before=""):
            def one(m):
                before = part[: m.start()]
                if re.search(r"::\s*$", before):
                    here = home and re.search(r"(?<![\w:])(super|self)::$", before)
                    if not here and not (self.qualified and self.qualified.search(before)):
                        return m[0]
                elif not active:
                    return m[0]
                if self.skip and self.skip.match(part[m.start() :]):
                    return m[0]
                return self.new

            return re.sub(r"\b%s\b" % self.old, one, part)

        out = []
        for kind, part in segments(text):
            if kind == "code":
                part = change(part)
            elif kind == "comment":
                part = in_ticks(part, change)
            out.append(part)
        return "".join(out)

    def is_done(self, texts):
        return any(re.search(r"\b%s\b" % self.new, t) for t in texts)


class I(Rule):
    """Renames identifiers, in code and in backticks of comments. `before`, `after`: what must be around them."""

    def __init__(self, globs, names, before="", after="", keep=""):
        self.globs, self.names, self.keep = expand(globs), names, expand(keep)
        self.expression = re.compile(r"%s\b(%s)\b%s" % (before, "|".join(map(re.escape, names)), after))

    def __str__(self):
        return f"identifiers {', '.join(f'{a} -> {b}' for a, b in self.names.items())} ({' '.join(self.globs)})"

    def apply(self, name, text):
        if any(matches(name, g) for g in self.keep) or not self.expression.search(text):
            return text
        change = lambda part: self.expression.sub(lambda m: self.names[m[1]], part)
        return "".join(
            change(part) if kind == "code" else in_ticks(part, change) if kind == "comment" else part
            for kind, part in segments(text)
        )

    def is_done(self, texts):
        return all(any(re.search(r"\b%s\b" % re.escape(new), t) for t in texts) for new in self.names.values())


class R(Rule):
    """Replaces an expression, anywhere in the file. `done`: what shows that this has been done (`None`: the result)."""

    def __init__(self, globs, expression, result, done=None, optional=False):
        self.globs = expand(globs)
        self.expression, self.result, self.done = re.compile(expression, re.M), result, done
        self.optional = optional

    def __str__(self):
        return f"text {self.expression.pattern!r} ({' '.join(self.globs)})"

    def apply(self, name, text):
        return self.expression.sub(self.result, text)

    def is_done(self, texts):
        if self.optional:
            return True
        if self.done is not None:
            return any(self.done in t for t in texts)
        return any(self.result in t for t in texts)


class C(R):
    """Replaces an expression in the prose of comments, outside of drawings and code."""

    def apply(self, name, text):
        if not self.expression.search(text):
            return text
        change = lambda part: self.expression.sub(self.result, part)
        return in_kind(
            text, ("comment",), lambda part: part if DRAWING.search(part) else outside_ticks(part, change)
        )


class S(R):
    """Replaces an expression in strings."""

    def apply(self, name, text):
        if not self.expression.search(text):
            return text
        return in_kind(text, ("string",), lambda part: self.expression.sub(self.result, part))


def width_of(name):
    kernel = ("c/", "initiator/", "hcablk_target/", "pcimem/", "rust/", "tests/kunit/")
    return 100 if name.startswith(kernel) else 120


def rewrap(name, old, new):
    """Breaks the lines of comments that became too long, as rustfmt does not."""
    width, known = width_of(name), set(old.splitlines())
    lines = new.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        match = re.match(r"(\s*//[/!]? ?)(- |\d+\. |\* )?(\s*)(.*)$", line)
        if (
            len(line.expandtabs(8)) <= width
            or line in known
            or not match
            or DRAWING.search(line)
            or re.search(r"\S\s{2,}\S", match[4])
        ):
            at += 1
            continue
        prefix, item, indent, body = match[1], match[2] or "", match[3], match[4]
        hang = prefix + " " * len(item) + indent
        words, kept = body.split(" "), prefix + item + indent
        count = 0
        while count < len(words) and len((kept + words[count]).expandtabs(8)) <= width:
            kept += words[count] + " "
            count += 1
        # A backtick span must not be broken.
        while count > 1 and " ".join(words[:count]).count("`") % 2:
            count -= 1
        kept = prefix + item + indent + " ".join(words[:count])
        rest = " ".join(words[count:])
        lines[at] = kept.rstrip()
        follows = lines[at + 1] if at + 1 < len(lines) else ""
        more = re.match(re.escape(hang) + r"(\S.*)$", follows)
        if more and not re.match(r"- |\d+\. |\* |\||```|#", more[1]) and not DRAWING.search(follows):
            lines[at + 1] = hang + rest + " " + more[1]
        else:
            lines.insert(at + 1, hang + rest)
        at += 1
    return "\n".join(lines) + ("\n" if new.endswith("\n") else "")


def apply_all(name, text, rules, counts=None):
    old = text
    for number, rule in enumerate(rules):
        if any(matches(name, g) for g in rule.globs):
            after = rule.apply(name, text)
            if counts is not None and after != text:
                counts[number] = counts.get(number, 0) + 1
            text = after
    return rewrap(name, old, text) if text != old and name.endswith(".rs") else text


def rustfmt(texts):
    """Formats texts, (name of the file, text), as `make fmt` does. Returns them in the same order."""
    kernel = ("rust/", "initiator/", "hcablk_target/", "pcimem/", "tests/guest/", "tests/kunit/")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        for number, (name, text) in enumerate(texts):
            if name.endswith(".rs") and name.startswith(("userspace-tools/", *kernel)):
                kind = "kernel" if name.startswith(kernel) else "tools"
                (Path(folder) / f"{number}.{kind}").write_text(text)
        script = f"""set -euo pipefail
. scripts/lib.sh
release=$(wanted_releases | tail -n 1)
exec scripts/in-root -C "$TOP" -- bash -euc '
for file in {folder}/*; do
	config=userspace-tools/rustfmt.toml
	case $file in *.kernel) config=$1 ;; esac
	rustfmt --color never --edition 2021 --config-path "$config" <"$file" >"$file.new"
	mv "$file.new" "$file"
done' format "$CACHE/kernel/$release/.rustfmt.toml"
"""
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"rustfmt: {done.stderr}")
        result = []
        for number, (name, text) in enumerate(texts):
            found = list(Path(folder).glob(f"{number}.*"))
            result.append(found[0].read_text() if found else text)
        return result


def patched(patch, name, text):
    """Returns the text of a file with the part of a patch that is for it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
        done = subprocess.run(
            ["patch", "-p1", "--force", "--quiet", "--no-backup-if-mismatch", "--reject-file=-"],
            cwd=folder, input=patch, capture_output=True, text=True,
        )
        if done.returncode:
            sys.exit(f"a patch does not apply to {name} before the renames: {done.stdout}{done.stderr}\n{patch}")
        return path.read_text()


def diff(name, old, new):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a").write_text(old)
        (Path(folder) / "b").write_text(new)
        out = subprocess.run(["diff", "-U3", "a", "b"], cwd=folder, capture_output=True, text=True).stdout
    lines = out.splitlines(keepends=True)[2:]
    return f"--- a/{name}\n+++ b/{name}\n" + "".join(lines)


def main():
    dry, fmt, force = "--dry" in sys.argv, "--no-fmt" not in sys.argv, "--force" in sys.argv
    if not (TOP / "docs/glossary.md").exists():
        sys.exit("run this in a checkout of hcablk")
    files, counts = Files(), {}
    touched = set()
    for rule in RULES:
        touched.update(files.matching(rule.globs))
    before = {}
    for name in sorted(touched):
        before[name] = files.text(name)
        files.new[name] = apply_all(name, files.text(name), RULES, counts)
    missing = [
        rule for number, rule in enumerate(RULES)
        if number not in counts and not rule.is_done([files.new[n] for n in files.matching(rule.globs)])
    ]
    for rule in missing:
        print(f"no match: {rule}", file=sys.stderr)
    if missing and not force:
        sys.exit("nothing was written")
    for name in sorted(touched):
        again = apply_all(name, files.new[name], RULES)
        if again != files.new[name]:
            out = diff(name, files.new[name], again)
            print(f"a second run would change {name}:\n{out}", file=sys.stderr)
            if not force:
                sys.exit("nothing was written")
    changed = [n for n in sorted(touched) if files.new[n] != before[n]]
    # The patches, against the source before and after.
    patches, parts_of = {}, {}
    for name in files.names:
        if not re.fullmatch(r"tests/debug/injected_bugs/[^/]*\.patch", name):
            continue
        text = (TOP / name).read_text()
        head, *parts = re.split(r"(?m)^(?=--- a/)", text)
        new = head
        for expression, result in PATCH_HEADS:
            new = re.sub(expression, result, new, flags=re.M)
        patches[name], parts_of[name] = (text, new), []
        for part in parts:
            named = re.match(r"--- a/(\S+)\n", part)[1]
            of = MOVES.get(named, named)
            if of not in changed and of == named:
                parts_of[name].append((part, of, None, None))
                continue
            old = before.get(of) or files.path(of).read_text()
            bug = patched(part, named, old)
            parts_of[name].append((part, of, files.new.get(of, old), apply_all(of, bug, RULES)))
    if fmt and not dry:
        texts = [(of, text) for parts in parts_of.values() for _, of, *both in parts if both[0] is not None for text in both]
        formatted = iter(rustfmt(texts))
        for parts in parts_of.values():
            parts[:] = [(p, of, next(formatted), next(formatted)) if good is not None else (p, of, None, None) for p, of, good, _ in parts]
    for name, parts in parts_of.items():
        new = "".join(part if good is None else diff(of, good, bad) for part, of, good, bad in parts)
        patches[name] = (patches[name][0], patches[name][1] + new)
    fitted = [n for n, (old, new) in patches.items() if old != new]
    print(f"{len(changed)} files change, and {len(fitted)} injected bugs")
    if dry:
        return
    for new, old in files.former.items():
        subprocess.run(["git", "mv", old, new], check=True)
    for name in changed:
        (TOP / name).write_text(files.new[name])
    for name in fitted:
        (TOP / name).write_text(patches[name][1])
    if fmt and changed:
        # The last word on the form; patches were made from the same.
        subprocess.run(["make", "fmt"], check=True)
        # The tables of files quote first sentences.
        subprocess.run(["make", "docs-tables"], check=True)


# ------------------------------------------------------------------------------------------------- rules

RULES = []
PATCH_HEADS = []
# Files whose names said the same as what is renamed in them.
MOVES = {
    "initiator/io/transfers.rs": "initiator/io/data_paths.rs",
    "initiator/admin/answer.rs": "initiator/admin/response.rs",
}
#RULES-BEGIN

# --- State: fourteen types of this name, each named for its owner -----------------------------------------------------

RULES += [
    T("State", "FlushErrorState", home="hcablk_target/drive/flush_errors.rs"),
    T("State", "IoTurnsState", home="hcablk_target/drive/io_turns.rs"),
    # The settings of a volume, and whether it is exported.
    T("State", "ExportState", home="hcablk_target/export/volume.rs"),
    T("State", "PortState", home="hcablk_target/export/port.rs"),
    T("State", "WatchState", home="hcablk_target/session/watched.rs"),
    # What the lock of a port's memory account protects.
    T("State", "AccountState", home="hcablk_target/memory.rs"),
    # Of an admin queue pair, on either side.
    T("State", "AdminState", home="hcablk_target/admin.rs hcablk_target/admin/*.rs"),
    T("State", "AdminState", home="initiator/admin.rs initiator/admin/*.rs userspace-tools/libhcablk/src/admin.rs"),
    # Of a connection that is traced: a session or a queue pair.
    T("State", "ConnectionState", home="rust/report/trace.rs", imports=r"trace::State$", qualified=r"\btrace"),
    T("State", "LineState", home="rust/logic/mq/lines.rs rust/logic/mq/lines/*.rs"),
    # Of a memory region.
    T("State", "RegionState", home="rust/rdma/mr.rs"),
    T("State", "DeskState", home="tests/kunit/desk.rs"),
    T("State", "LastSessionState", home="initiator/head/last_sessions.rs"),
    # How far a loss of writes has been reported: see the module.
    T("State", "LossStage", home="initiator/head/lost_writes.rs"),
    # Of a device, as its attribute shows it.
    T("State", "DeviceState", home="initiator/device.rs initiator/device/*.rs", keep="initiator/device/announce.rs"),
    # Of a disk that a program in user space serves.
    T(
        "State", "UserDiskState", home="userspace-tools/hcablk/src/user/files.rs",
        imports=r"files::State$", qualified=r"\bfiles", scope="userspace-tools/**.rs",
    ),
    # The two aliases of SessionState hide that it is the same type: named where they are used.
    R(
        "initiator/session.rs",
        r"/// The state of a session; see the module's picture\. The reason is `None` if the session has not\n/// failed\.\ntype State = SessionState<Option<Failure>>;\n\n",
        "", done="SessionState<Option<Failure>>",
    ),
    R(
        "initiator/session.rs", r"^(\s*)state: IrqLock<State>,",
        r"\1/// See the module's picture. The reason is `None` if the session has not failed.\n\1state: IrqLock<SessionState<Option<Failure>>>,",
        done="IrqLock<SessionState<Option<Failure>>>",
    ),
    R(
        "hcablk_target/session.rs",
        r"/// The states of a session: see the module\. A session is live from the start\.\ntype State = SessionState<EndReason>;\n\n",
        "", done="SessionState<EndReason>",
    ),
    R(
        "hcablk_target/session.rs", r"^(\s*)state: IrqLock<State>,",
        r"\1/// See the module. A session is live from the start.\n\1state: IrqLock<SessionState<EndReason>>,",
        done="IrqLock<SessionState<EndReason>>",
    ),
    T("State", "SessionState", home="initiator/session.rs initiator/session/*.rs hcablk_target/session.rs", imports=r"(^|::)super::State$", scope="initiator/session/*.rs"),
]

# --- Request: a request of the block layer keeps the kernel's name ----------------------------------------------------

RULES += [
    # An initiator's request to connect a queue pair.
    T(
        "Request", "ConnectRequest", home="rust/proto/connect.rs rust/proto/connect/*.rs",
        imports=r"(^|::)connect::Request$", qualified=r"\bconnect",
    ),
    # The message that asks for one operation, as AdminRequest is on the admin queue pair.
    T(
        "Request", "IoRequest", home="rust/proto/message.rs rust/proto/message/*.rs rust/proto/message/tests/*.rs",
        imports=r"(^|::)message::Request$", qualified=r"\bmessage",
    ),
    T(
        "Response", "IoResponse", home="rust/proto/message.rs rust/proto/message/*.rs rust/proto/message/tests/*.rs",
        imports=r"(^|::)message::Response$", qualified=r"\bmessage", keep="rust/proto/message.rs",
    ),
    T("Response", "IoResponse", home="rust/proto/message.rs", imports=r"(^|::)response::Response$", scope="rust/proto/message.rs", skip=r"Response,"),
    T("Request", "TracedRequest", home="rust/report/trace.rs", qualified=r"\btrace"),
    # The target's state of a request, from its message to the completion of its response.
    T(
        "Request", "TargetRequest", home="hcablk_target/io.rs hcablk_target/io/*.rs tests/host/src/shape.rs",
        imports=r"(^|::)(io|request)::Request$", scope="hcablk_target/**.rs",
    ),
]

# --- Step, Link, Shape, Grant -----------------------------------------------------------------------------------------

RULES += [
    T(
        "Step", "ConnectStep", home="initiator/failure.rs userspace-tools/libhcablk/src/failure.rs",
        imports=r"(^|::)failure::Step$", scope="initiator/**.rs userspace-tools/libhcablk/**.rs", skip=r"Step\(",
    ),
    # The next step of a request on the workqueue.
    T(
        "Step", "WorkStep", home="hcablk_target/io/request.rs",
        imports=r"(^|::)request::Step$", scope="hcablk_target/**.rs",
    ),
    T(
        "Step", "PlanStep", home="userspace-tools/hcablk/src/apply/step.rs",
        imports=r"(^|::)step::Step$", qualified=r"\bstep", scope="userspace-tools/hcablk/**.rs",
    ),
    T(
        "Step", "WorkerStep", home="userspace-tools/bench/src/worker.rs",
        imports=r"(^|::)worker::Step$", qualified=r"\bworker", scope="userspace-tools/bench/**.rs",
    ),
    # What listens to the connection manager's events of one connection.
    T("Link", "CmLink", home="initiator/connect.rs", imports=r"(^|::)(connect|super)::Link$", scope="initiator/**.rs"),
    T("Link", "CmLink", home="hcablk_target/export/connect.rs", imports=r"(^|::)super::Link$", scope="hcablk_target/export/connect/*.rs"),
    I("initiator/connect.rs hcablk_target/export/connect.rs", {"LinkState": "CmLinkState"}),
    T("Link", "LivePair", home="userspace-tools/libhcablk/src/queue.rs", imports=r"(^|::)queue::Link$", scope="userspace-tools/libhcablk/**.rs"),
    T("Shape", "QueueShape", home="initiator/shape.rs", imports=r"(^|::)shape::Shape$", scope="initiator/**.rs", qualified=r"\bshape"),
    T("Shape", "QueueShape", home="initiator/io/send_queue.rs"),
    T("Shape", "QueueShape", home="hcablk_target/io.rs hcablk_target/io/*.rs", imports=r"(^|::)(io|limits)::Shape$", scope="hcablk_target/**.rs"),
    I("hcablk_target/memory.rs hcablk_target/io/chunks.rs", {"Shape::overhead": "QueueShape::overhead", "Shape::chunks": "QueueShape::chunks"}, before="(?<!Queue)"),
    R("tests/host/src/*.rs", r"\b(target|initiator)::Shape\b", r"\1::QueueShape", done="target::QueueShape"),
    R("tests/host/src/verbs.rs", r"both `Shape`s", "both `QueueShape`s"),
    T("Shape", "QueueShape", home="userspace-tools/libhcablk/src/queue.rs", imports=r"(^|::)queue::Shape$", qualified=r"\bqueue", scope="userspace-tools/libhcablk/**.rs"),
    # What a virtio device tells its driver.
    T("Shape", "VirtioConfig", home="userspace-tools/vhost-user/src/block.rs", imports=r"(^|::)block::Shape$", scope="userspace-tools/vhost-user/**.rs"),
    T(
        "Grant", "EagerRingGrant", home="rust/proto/eager_ring.rs rust/proto/eager_ring/*.rs",
        imports=r"(^|::)eager_ring::Grant$", qualified=r"\beager_ring",
    ),
]

# --- Way, Transfer: data path, as in the trace ------------------------------------------------------------------------

RULES += [
    # How the data of a request moves between buffers and drive is the target's matter alone.
    I("hcablk_target/io/drive.rs", {"DataPath": "DrivePath", "data_path": "drive_path"}),
    T("Transfer", "DataPath", home="initiator/io/{data_paths,registered,eager,complete,queue}.rs"),
    I("initiator/io/{data_paths,registered,eager,issue}.rs", {"Way": "IssuePath"}),
    I("initiator/io/{data_paths,registered,eager,issue,complete,queue}.rs", {"transfer": "data_path"}),
    I("initiator/io/queue.rs", {"transfers": "data_paths"}, before=r"(?<!c\")"),
    I("initiator/io.rs initiator/io/*.rs", {"transfers": "data_paths"}),
    R("initiator/io/issue.rs", r"`transfers\.rs`", "`data_paths.rs`"),
    R("initiator/io/queue.rs", r"in the state that its transfer demands", "in the state that its data path demands"),
    R(
        "initiator/io/data_paths.rs", r"^//! \| `(Transfer|DataPath)` \| data path \|", "//! | `DataPath` | [`IssuePath`] |",
    ),
    T("Transfer", "DataPath", home="userspace-tools/libhcablk/src/engine.rs", imports=r"(^|::)engine::Transfer$", scope="userspace-tools/libhcablk/**.rs tests/fuzz/**.rs"),
    I("userspace-tools/libhcablk/src/engine.rs", {"transfer": "data_path"}),
    I("hcablk_target/io/stats.rs", {"count_way": "count_data_path"}),
    I("hcablk_target/io/drive.rs hcablk_target/drive/backing.rs", {"way": "file_access"}, after=r"(?=\()"),
    I("userspace-tools/bench/src/selftest/ways.rs", {"Way": "DataPathTest"}),
]

# --- Told, Shown, Past, Named, Returned, Place, Took, Held, Kept ------------------------------------------------------

RULES += [
    # A target's reply to a question of discovery.
    T(
        "Told", "DiscoveryReply", home="rust/proto/discovery.rs rust/proto/discovery/*.rs",
        imports=r"(^|::)discovery::Told$", qualified=r"\bdiscovery", skip=r"Told\(DiscoveryReply\)|Told\(Told\)",
    ),
    R("rust/proto/discovery.rs", r"/// The answer to a question\.", "/// A target's reply to a question."),
    R("rust/proto/discovery.rs", r"/// Bytes of an answer\.", "/// Bytes of a reply."),
    R("rust/proto/discovery.rs", r"/// (Encodes|Returns) the answer\.", r"/// \1 the reply.", done="/// Encodes the reply."),
    R("rust/proto/discovery.rs", r"/// Decodes the answer to", "/// Decodes the reply to"),
    R("rust/proto/discovery.rs", r"entry of a list; the answer has", "entry of a list; the reply has"),
    R("rust/proto/discovery.rs", r"pub fn told\(self\)", "pub fn into_reply(self)"),
    I("rust/proto/discovery.rs", {"told": "reply"}),
    R("rust/proto/discovery/tests.rs", r"listing\.told\.", "listing.reply."),
    R("rust/proto/discovery/tests.rs", r"\.told\(\)", ".into_reply()"),
    I("rust/proto/discovery/tests.rs", {"told": "reply"}),
    I("rust/proto/auth/tests/entries.rs", {"told": "reply"}),
    R("hcablk_target/export/portals.rs", r"listing\.told\(\)", "listing.into_reply()"),
    R("hcablk_target/export/registry/listing.rs", r"listing\.told\(\)", "listing.into_reply()"),
    R("hcablk_target/export/registry/listing.rs", r"fn told\(", "fn reply("),
    R("hcablk_target/export/connect/identify.rs", r"(fn |self\.)told\(", r"\1discovery_reply(", done="fn discovery_reply("),
    R("hcablk_target/export/connect/identify.rs", r"\.told\(question, proven,", ".reply(question, proven,"),
    R("hcablk_target/export/connect/identify.rs", r"let told = ", "let reply = "),
    R("hcablk_target/export/connect/identify.rs", r"\btold\b(?=[,.);])", "reply", done="reply"),
    R("hcablk_target/export/connect/identify.rs", r"/// Returns the answer to a discovery question\.", "/// Returns the reply to a discovery question."),
    # The result of the last question, as the attributes of a discovery show it.
    R("initiator/discovery.rs", r"\bAnswer::Told\(", "LastResult::Reply(", done="LastResult::Reply("),
    R("initiator/discovery.rs", r"^(\s+)Told\((Told|DiscoveryReply)\),", r"\1Reply(DiscoveryReply),", done="Reply(DiscoveryReply),"),
    I("initiator/discovery.rs", {"Answer": "LastResult", "show_answer": "show_reply"}),
    R("initiator/discovery.rs", r"^(\s+)answer: Mutex<", r"\1result: Mutex<", done="result: Mutex<"),
    R("initiator/discovery.rs", r"^(\s+)answer <- new_mutex", r"\1result <- new_mutex", done="result <- new_mutex"),
    R("initiator/discovery.rs", r"\b(self|asker)\.answer\b", r"\1.result", done="self.result"),
    I("initiator/discovery.rs", {"told": "reply"}),
    # The states that were announced to user space last.
    T("Told", "Announced", home="initiator/device/events.rs initiator/device.rs"),
    I("initiator/device.rs initiator/device/events.rs", {"told": "announced"}),
    # What a watch, or a request for portals, has brought, and is not handled yet.
    R("initiator/admin/state.rs", r"answer                    the disk follows", "response                     the disk follows"),
    R("initiator/admin/state.rs", r"answer                 user space was told", "response                 user space is notified"),
    R("initiator/admin/state.rs", r"SEND              answer$", "SEND              response"),
    R("initiator/admin/state.rs", r"Watching\(known\) ───────────► Told\(changed\)", "Watching(known) ───────────► Noticed(changed)"),
    R("initiator/admin/state.rs", r"Asked\(known\) ────────────────► Told\(now\)", "Asked(known) ────────────────► Noticed(now)"),
    R("initiator/admin/state.rs", r"Asked ──────────► Answered\(yes\)", "Asked ──────────► Responded(yes)"),
    I("initiator/admin/state.rs", {"Told": "Noticed", "NotTold": "Unsupported"}),
    # The values that attributes show of a device.
    T("Shown", "DeviceStatus", home="initiator/device.rs initiator/device/*.rs"),
    # The sums of queues that exist no more.
    T("Past", "ClosedQueues", home="hcablk_target/export/volume/counters.rs hcablk_target/export/volume.rs"),
    T("Past", "DestroyedQueues", home="initiator/device/past.rs initiator/device.rs"),
    # What a fault was about: tag and key of each request.
    T("Named", "RequestSubjects", home="hcablk_target/io/fault.rs", imports=r"(^|::)fault::Named$", scope="hcablk_target/**.rs"),
    R("hcablk_target/io/{queue,setup,receive,fault}.rs", r"\b(self\.|parts\.)named\b", r"\1subjects", done="self.subjects"),
    R("hcablk_target/io/{queue,setup}.rs", r"^(\s+(?:pub\(super\) )?)named: ", r"\1subjects: ", done="subjects: "),
    I("hcablk_target/io/fault.rs", {"named": "subject"}, after=r"(?! type)"),
    # A disk that has a number.
    T("Named", "NumberedDisk", home="initiator/identity.rs"),
    # The users of a lease's memory are gone.
    T("Returned", "UsersGone", home="rust/p2p/memory.rs", imports=r"(^|::)memory::Returned$", scope="rust/p2p/*.rs"),
    T("Returned", "UsersGone", home="rust/p2p/lease.rs", skip=r"Returned ─"),
    I("rust/p2p/memory.rs rust/p2p/lease.rs", {"returned": "users_gone"}),
    # A shared pool, with what its clients may borrow.
    T("Place", "PoolWishes", home="hcablk_target/memory.rs"),
    # What a handle of a session stands for.
    T("Place", "HandleUse", home="hcablk_target/session.rs"),
    T("Took", "TakenBuffers", home="hcablk_target/memory/pool.rs", imports=r"(^|::)pool::Took$", scope="hcablk_target/**.rs"),
    I("hcablk_target/memory/pool.rs", {"took": "taken"}),
    T("Kept", "BorrowedBuffers", home="hcablk_target/memory/pool.rs"),
    # Kept is the glossary's word for memory of requests that were given up.
    T("Held", "KeptRequest", home="hcablk_target/io/reclaim.rs"),
    T("Kept", "KeptMemory", home="hcablk_target/io/{reclaim,queue,setup}.rs"),
    I("hcablk_target/io/reclaim.rs", {"held": "requests"}, before=r"(?<=\bself\.)"),
    R("hcablk_target/io/reclaim.rs", r"^(\s+)held: KVec<KeptRequest>", r"\1requests: KVec<KeptRequest>", done="requests: KVec<KeptRequest>"),
    R("hcablk_target/io/reclaim.rs", r"^(\s+)held: KVec::with_capacity\(requests", r"\1requests: KVec::with_capacity(requests", done="requests: KVec::with_capacity(requests"),
    I("hcablk_target/io/reclaim.rs", {"held": "kept"}),
    # A watch that waits for a change.
    R("hcablk_target/session/watched.rs", r"► Kept\(tag\) ────────────►", "► Pending(tag) ─────────►"),
    R("hcablk_target/session/watched.rs", r"answer, Unwatched$", "response, Unwatched"),
    I("hcablk_target/session/watched.rs hcablk_target/admin/serve.rs", {"Kept": "Pending"}, before=r"(?<!► )"),
    I("hcablk_target/session/watched.rs", {"told_gone": "end_noticed", "told": "notice_end", "is_told_within": "is_noticed_within"}),
    R("hcablk_target/**.rs", r"\bwatched\.told\(\)", "watched.notice_end()"),
    R("hcablk_target/**.rs", r"\bis_told_within\(", "is_noticed_within("),
    I("hcablk_target/admin/serve.rs hcablk_target/session.rs hcablk_target/session/*.rs", {"durable_told": "durable_reported"}),
    # Counts among what keeps a request from being ended.
    T(
        "Held", "HeldRequest", home="rust/blkdev/held.rs rust/blkdev.rs rust/sglist.rs rust/blkdev/{request,requests}.rs",
        imports=r"(^|::)held::Held$|(^|::)blkdev::Held$",
    ),
    R("rust/blkdev/{requests,request}.rs rust/sglist.rs", r"super::Held\b", "super::HeldRequest"),
    T("Held", "HeldReservation", home="rust/logic/reservation.rs rust/logic/reservation/*.rs"),
    # Of programs in user space.
    T("Place", "SocketFiles", home="userspace-tools/vhost-user/src/saved.rs", imports=r"(^|::)saved::Place$", scope="userspace-tools/vhost-user/**.rs"),
    T("Place", "DiskAddress", home="userspace-tools/hcablk/src/user/{connect,configured}.rs"),
    T("Place", "ConfigPlace", home="userspace-tools/hcablk/src/config.rs userspace-tools/hcablk/src/config/*.rs", imports=r"(^|::)config::Place$", qualified=r"\bconfig|\bloaded", scope="userspace-tools/hcablk/**.rs"),
    T("Place", "QueuePairSlot", home="userspace-tools/libhcablk/src/verbs/queue.rs"),
    T("Place", "DataPlace", home="userspace-tools/libhcablk/src/plan.rs", imports=r"(^|::)plan::Place$", scope="userspace-tools/libhcablk/**.rs"),
    T("Place", "QueueInbox", home="userspace-tools/libhcablk/src/session.rs"),
]

# --- Functions that say nothing: of, told, shown, named, place, beside, has_coming ------------------------------------


def made(new, types, defined):
    """`Type::of(` becomes `Type::new(`; `defined`: (file, start of the signature) of each definition."""
    rules = [
        R("**.rs", r"\b(%s)((?:::<[^>]*>)?)::of\(" % types, r"\1\2::%s(" % new, done="::%s(" % new),
    ]
    for name, signature in defined:
        rules.append(R(name, r"\bfn of(%s)" % signature, r"fn %s\1" % new, done="fn %s" % new))
    return rules


SELF = lambda name, new: R(name, r"\bSelf::of\(", "Self::%s(" % new)

RULES += [
    *made("from_word", "Outstanding", [("initiator/batching.rs", r"\(word: u64")]),
    *made("from_random", "HostInstance", [("rust/proto/connect.rs", r"\(random: u64")]),
    *made("from_number", "ExportInstance", [("rust/proto/connect.rs", r"\(number: u64")]),
    *made("from_reply", "VolumeInfo", [("initiator/session.rs initiator/session/*.rs", r"\(reply: &Reply")]),
    SELF("initiator/session.rs initiator/session/*.rs", "from_reply"),
    *made("from_op", "TracedRequest", [("rust/report/trace.rs", r"\(session: u64")]),
    *made("from_mapped", "trace::Memory", [("rust/report/trace.rs", r"\(mapped: ")]),
    R("rust/blkdev/per_tag.rs", r"pub fn of<'a>\(&'a self", "pub fn with_value<'a>(&'a self"),
    R("initiator/io/life.rs tests/kunit/requests.rs", r"\b(tags|values)\.of\(", r"\1.with_value(", done=".with_value("),
    R("initiator/identity.rs", r"\bfn of\(self: &Arc<Self>", "fn identify(self: &Arc<Self>"),
    R("initiator/device.rs", r"\bidentities\.of\(", "identities.identify("),
    *made("open", "Drives", [("hcablk_target/drive/reservations/drives.rs", r"\(\n\s*this: &Arc<Self>")]),
    *made("from_volume", "Served", [("hcablk_target/export/connect/sizing.rs", r"\(attachment: ")]),
    R("hcablk_target/export/connect/*.rs", r"\bof_any\(\)", "any_volumes()"),
    *made("derive", "Pairs", [("hcablk_target/export/keys.rs", r"\(hosts: ")]),
    *made("from_bytes", "AtomicWrites", [("rust/proto/message/limits.rs", r"\(min: u32")]),
    *made("new", "ChunkProgress|ChunkProgress::<u8>", [("hcablk_target/io/split.rs", r"\(chunks: u16")]),
    SELF("hcablk_target/io/split.rs", "new"),
    *made("from_bytes", "Secret", [("rust/proto/auth.rs", r"\(bytes: ")]),
    SELF("rust/proto/auth.rs", "from_bytes"),
    *made("new", "SessionKey", [("rust/proto/auth/seal.rs", r"\(secret: ")]),
    *made("from_name", "List", [("rust/proto/discovery.rs", r"\(name: ")]),
    R("rust/proto/discovery.rs", r"\bfn of\(list: List", "fn from_fields(list: List"),
    R("rust/proto/discovery.rs", r"\bEntry::of\(", "Entry::from_fields("),
    *made("from_flags", "VolumeState", [("rust/proto/message/admin.rs", r"\(sectors: u64")]),
    R("rust/report/times/buckets.rs", r"(\bfn |Some\()of\(", r"\1bucket_of(", done="fn bucket_of("),
    R("**.rs", r"\bbuckets::of\(", "buckets::bucket_of("),
    *made("of_request", "Pdu", [("rust/blkdev/request.rs", r"\(request: ")]),
    R("rust/configfs/entry.rs", r"\bfn of<'a>\(item", "fn from_item<'a>(item"),
    R("rust/configfs/entry.rs", r"\bEntry::<(T|T::Child)>::of\(", r"Entry::<\1>::from_item(", done="::from_item("),
    *made("from_id", "Ends", [("rust/rdma/cm/event.rs", r"\(id: ")]),
    *made("from_device", "Attributes", [("rust/rdma/device.rs", r"\(device: ")]),
    *made("new", "PeerMemory", [("rust/p2p/memory.rs", r"\(core: ")]),
    *made("first_bytes", "PageRange", [("rust/memory/pages.rs", r"\(page: ")]),
    *made("hold", "HeldRequest", [("rust/blkdev/held.rs", r"\(request: ")]),
    R("tests/kunit/*.rs", r"(\bfn |\bmemory\.|Memory::new\(1\)\?\.)of\(", r"\1with_pieces(", done="fn with_pieces("),
    # In user space.
    *made("from_result", "Status", [("userspace-tools/vhost-user/src/block.rs", r"\(result: ")]),
    *made("new", "VirtioConfig", [("userspace-tools/vhost-user/src/block.rs", r"\(volume: ")]),
    *made("from_bytes", "Header|Range", [("userspace-tools/vhost-user/src/block.rs", r"\(bytes: ")]),
    R("userspace-tools/vhost-user/src/memory.rs", r"\bKey::of\(", "Key::new("),
    R("userspace-tools/vhost-user/src/memory.rs", r"\bfn of\(region:", "fn new(region:"),
    R("userspace-tools/vhost-user/src/memory.rs", r"\bfn of\(regions", "fn from_regions(regions"),
    SELF("userspace-tools/vhost-user/src/memory.rs", "from_regions"),
    *made("new", "SocketFiles", [("userspace-tools/vhost-user/src/saved.rs", r"\(socket: ")]),
    R("userspace-tools/hcablk/src/trace/{chunks,merge}.rs", r"(\bfn |\bchunks::)of\(served", r"\1of_request(served", done="of_request(served"),
    *made("new", "Record|Records|Remarks", [
        ("userspace-tools/hcablk/src/target/records.rs", r"\(system: "),
        ("userspace-tools/hcablk/src/apply/record.rs", r"\(system: "),
        ("userspace-tools/hcablk/src/apply.rs", r"\(plan: "),
    ]),
    *made("read", "Times", [("userspace-tools/hcablk/src/times.rs", r"\(group: ")]),
    R("userspace-tools/hcablk/src/check.rs userspace-tools/hcablk/src/check/*.rs", r"(\bfindings\.)of\(", r"\1begin(", done="findings.begin("),
    R("userspace-tools/hcablk/src/check.rs", r"\bfn of\(&mut self, check", "fn begin(&mut self, check"),
    *made("from_status", "RequestError", [("userspace-tools/libhcablk/src/failure.rs", r"\(status: ")]),
    *made("after", "Deadline", [("userspace-tools/libhcablk/src/connect.rs", r"\(volume: ")]),
    *made("register", "Region|Buffer", [("userspace-tools/libhcablk/src/verbs/memory.rs", r"\(\n")]),
    SELF("userspace-tools/libhcablk/src/verbs/memory.rs", "register"),
    *made("from_part", "Span", [("userspace-tools/libhcablk/src/plan.rs", r"\(part: ")]),
    *made("new", "Parts", [("userspace-tools/libhcablk/src/plan.rs", r"\(limits: ")]),
    *made("new", "Export|Answer", [("userspace-tools/bench/src/lab.rs", r"\(mode: "), ("userspace-tools/bench/src/node.rs", r"\(done: ")]),
    R("userspace-tools/bench/src/selftest/*.rs", r"(\b(?:counted|again|first)\.)of\(", r"\1value(", done="counted.value("),
    R("userspace-tools/bench/src/selftest/ways.rs", r"\bfn of\(&self, side", "fn value(&self, side"),
    R("userspace-tools/bench/src/selftest/loads.rs", r"(?<![\w.:])of\((?=&|counters)", "value_of(", done="value_of("),
    # The rest.
    R("userspace-tools/hcablk/src/apply/plan.rs", r"(\bfn |\.)beside\(", r"\1add_not_configured(", done="fn add_not_configured("),
    R("initiator/session.rs initiator/connect.rs", r"\bhas_coming\(", "set_replacement_link("),
    R("initiator/session.rs", r"\b(self\.)coming\b", r"\1replacement_link", done="self.replacement_link"),
    R("initiator/session.rs", r"^(\s+)coming(: IrqLock| <- new_irq_lock)", r"\1replacement_link\2", done="replacement_link: IrqLock"),
    R("initiator/session.rs", r"let coming = |Some\(link\) = coming\b", lambda m: m[0].replace("coming", "link"), done="replacement_link"),
    R("initiator/device/{limits,disk}.rs", r"(\bfn |limits\.)shown\(", r"\1applied(", done="fn applied("),
    R("initiator/device/limits.rs", r"(self\.)shown\b", r"\1applied", done="self.applied"),
    R("initiator/device/limits.rs", r"^(\s+)shown: (LiveLimits|limits),", r"\1applied: \2,", done="applied: LiveLimits"),
    R("initiator/device/limits.rs", r"`shown`", "`applied`"),
    R("hcablk_target/io/queue_volume.rs", r"(\bfn |volumes\.)named\(", r"\1by_handle(", done="fn by_handle("),
    R("rust/p2p/provider.rs hcablk_target/drive/p2p.rs", r"(\bfn |Provider::)named\(", r"\1find(", done="fn find("),
    R("hcablk_target/drive/p2p.rs", r"\bNamed\b(?=\()", "Address", done="Address("),
    R("hcablk_target/drive/p2p.rs", r"\bSelf::Named\b", "Self::Address"),
    R("rust/logic/mq.rs rust/logic/mq/tests.rs", r"(\bfn |self\.|mq\.)place\(", r"\1index_slot(", done="fn index_slot("),
    R("rust/logic/mq/lines.rs rust/logic/mq/lines/*.rs", r"(?<![\w.])place\(", "writer_slot(", done="fn writer_slot("),
    R("rust/p2p/memory.rs", r"(\bfn |self\.)place\(", r"\1address_of(", done="fn address_of("),
    R("rust/blkdev/per_tag.rs", r"(\bfn |self\.)place\(", r"\1slot_and_value(", done="fn slot_and_value("),
    R("tests/kunit/*.rs", r"(\bfn |\b(?:piece|two|memory)\.)place\(", r"\1byte_at(", done="fn byte_at("),
    R("userspace-tools/hcablk/src/config.rs userspace-tools/hcablk/src/config/*.rs userspace-tools/hcablk/src/**.rs", r"\bfn place\(&self, table", "fn place_of(&self, table"),
    R("userspace-tools/hcablk/src/**.rs", r"(?<=\.)place\((?=[&\"t])", "place_of(", done="place_of("),
]

# --- answer: the messages are responses (RDMA, NVMe, blk-mq), of the connection manager replies -----------------------

# Field and type of a message's wish.
RULES += [
    T(
        "Answer", "ResponseKind", home="rust/proto/message.rs rust/proto/message/{request,tests}.rs",
        imports=r"(^|::)message::Answer$", qualified=r"\bmessage", skip=r"Answer\((Tag|tag)",
    ),
    R("rust/proto/message.rs", r"(pub enum (?:Answer|ResponseKind) \{\n\s*)/// By a response\.\n(\s*)Response,", r"\1/// With a message.\n\2Message,", done="    Message,"),
    R("rust/proto/message.rs", r"/// By a response that invalidates the key\.", "/// With a message that invalidates the key."),
    R("rust/proto/message.rs", r"/// How the target shall answer\.", "/// How the target must respond."),
    R("rust/proto/message.rs", r"/// The way in which the target must answer a request with data that it has carried out\.", "/// The form of the response to a request with data."),
    R("**.rs", r"\bResponseKind::Response\b", "ResponseKind::Message"),
    R("rust/proto/message.rs", r"pub answer: ResponseKind", "pub response: ResponseKind"),
    R("rust/**.rs initiator/**.rs hcablk_target/**.rs tests/host/src/*.rs userspace-tools/**.rs", r"\banswer: ResponseKind", "response: ResponseKind"),
    R("rust/**.rs initiator/**.rs hcablk_target/**.rs tests/host/src/*.rs userspace-tools/**.rs", r"\bremote\.answer\b", "remote.response"),
    I("rust/report/trace.rs initiator/io/registered.rs rust/proto/message/request.rs", {"answer": "response"}),
    R("userspace-tools/libhcablk/src/queue.rs", r"let answer = match self\.allowed", "let response = match self.allowed"),
    R("userspace-tools/libhcablk/src/queue.rs", r"^(\s+)answer,", r"\1response,", done="response,"),
    # A message that is not valid: it is refused by a response, or ends the session.
    I("rust/**.rs hcablk_target/**.rs tests/host/src/*.rs", {"BadRequest::Answer": "BadRequest::Refuse", "BadRequest::Unanswerable": "BadRequest::EndSession"}),
    R("rust/proto/message/request.rs", r"^(\s+)Unanswerable,\n\s+/// It can be answered, with this status\.\n\s+Answer\(", r"\1EndSession,\n\1/// The response has this status.\n\1Refuse(", done="    EndSession,"),
    I("rust/proto/message/tests.rs", {
        "unanswerable": "end_session",
        "short_messages_are_unanswerable_and_other_lengths_invalid": "short_messages_end_the_session_and_other_lengths_are_invalid",
        "who_uses_the_eager_ring_wrongly_is_not_answered": "wrong_use_of_the_eager_ring_ends_the_session",
    }),
    R("rust/proto/message/tests.rs", r"\"nothing answers like that and invalidates\"", "\"no response is like that and invalidates\""),
    I("rust/proto/message/tests/portals.rs", {"an_answer_tells_a_generation_and_nothing_else": "a_response_has_a_generation_and_nothing_else"}),
    I("rust/proto/discovery/tests.rs", {"answers_round_trip": "replies_round_trip"}),
]

# The eager ring.
RULES += [
    T("Answers", "EagerResponses", home="rust/proto/eager_ring.rs rust/proto/eager_ring/*.rs", imports=r"(^|::)eager_ring::Answers$", qualified=r"\beager_ring"),
    T("Answered", "DecodedResponses", home="rust/proto/eager_ring.rs", imports=r"(^|::)eager_ring::Answered$", qualified=r"\beager_ring"),
    R("rust/proto/eager_ring.rs", r"──► Answered$", "──► Done"),
    R("rust/proto/eager_ring.rs", r"all that were taken before are answered ───────┘", "all that were taken before are done ───────────┘"),
    I("rust/proto/eager_ring.rs rust/proto/eager_ring/*.rs", {
        "ANSWERS": "EAGER_RESPONSES", "ANSWER_LEN": "EAGER_RESPONSE_LEN", "answer": "response", "answers": "responses",
        "answers_round_trip_and_are_checked": "responses_round_trip_and_are_checked",
        "only_what_is_open_can_be_answered_and_once": "only_an_open_write_ends_and_once",
    }),
    R("rust/proto/eager_ring/tests.rs", r"\"before what is not answered\"", "\"before a write that is open\""),
    R("rust/proto/eager_ring.rs", r"/// Answers to eager writes: up to", "/// Responses to eager writes: up to"),
    R("rust/proto/eager_ring.rs", r"/// Answers in one message\.", "/// Responses in one message."),
    R("rust/proto/eager_ring.rs", r"/// It was not answered\.", "/// It has no response yet."),
    R("rust/proto/eager_ring.rs", r"/// Frees the slot of write `number`, which is answered\.", "/// Frees the slot of write `number`, which has its response."),
    R("rust/proto/eager_ring/tests.rs", r"// Each of these is answered at once, so", "// Each of these has its response at once, so"),
    R("rust/proto/connect/reply.rs", r"(\bfn |reply\.)answers\(", r"\1fits(", done="fn fits("),
    R("rust/proto/connect/reply.rs", r"/// A target's answer to a request it grants\.", "/// A target's reply to a request that it grants."),
    # The account of credits.
    R("rust/proto/credits.rs initiator/**.rs userspace-tools/libhcablk/**.rs tests/host/src/*.rs", r"(\bcredits\.|\baccount\.|\bc\.)answered\(", r"\1responded(", done="responded("),
    R("rust/proto/credits.rs", r"\bfn answered\(", "fn responded("),
    I("rust/proto/credits.rs", {"unanswered": "outstanding"}),
    C("rust/proto/credits.rs", r"Messages without an answer yet", "Messages without a response yet"),
]

# The target.
RULES += [
    I("hcablk_target/io/*.rs hcablk_target/admin.rs hcablk_target/admin/*.rs", {"ANSWER": "RESPONSE", "ANSWERS": "RESPONSES"}),
    R("hcablk_target/io/eager.rs", r"(= |\bfn )answer(\(|<'a>)", r"\1response_send\2", done="fn response_send"),
    R("hcablk_target/io/*.rs", r"(\bfn |\bself\.|\bqueue\.)answer\(", r"\1respond(", done="fn respond("),
    R("hcablk_target/admin/*.rs", r"(\bfn |\bself\.)answer\(", r"\1respond_status(", done="fn respond_status("),
    R("hcablk_target/io.rs", r"`answer` \(", "`respond` ("),
    R("hcablk_target/io/{stats,reclaim}.rs", r"(\bfn |self\.)answered\(", r"\1count_response(", done="fn count_response("),
    R("hcablk_target/io/*.rs", r"\bwaiting\.answers\b", "waiting.eager_responses"),
    R("hcablk_target/io/respond.rs", r"^(\s+(?:pub\(super\) )?)answers: ", r"\1eager_responses: ", done="eager_responses: "),
    I("hcablk_target/io.rs hcablk_target/io/*.rs", {
        "send_answer": "send_with_data", "post_answer": "post_response", "answer_eager": "respond_eager",
        "answer_completed": "response_completed", "flush_answers": "flush_responses",
        "AnsweredSlots": "RespondedSlots", "answered_slots": "responded_slots",
    }),
    I("hcablk_target/io/eager.rs", {"answers": "responses"}),
    I("hcablk_target/**.rs", {
        "let_answers_leave": "let_responses_leave", "answer_change": "respond_to_change", "answer_by": "respond_through",
        "answer_attach": "respond_to_attach",
    }),
    I("hcablk_target/drive/flush_errors.rs", {
        "an_error_is_told_until_an_answer_with_it_was_sent": "an_error_is_reported_until_a_response_with_it_was_sent",
        "a_later_error_is_not_told_by_an_earlier_answer": "an_earlier_response_does_not_report_a_later_error",
        "a_second_answer_with_the_same_error_changes_nothing": "a_second_response_with_the_same_error_changes_nothing",
    }),
    S("hcablk_target/**.rs", r"\ban answer\b", "a response"),
    S("hcablk_target/**.rs", r"\bfor its answer\b", "for its response"),
    S("hcablk_target/**.rs", r"\bcompleted answers\b", "completed responses"),
]

# The initiator, and its client in user space.
RULES += [
    T("Answer", "ReservationResponse", home="initiator/admin/state.rs", imports=r"(^|::)(state|admin|super)::Answer$", scope="initiator/**.rs"),
    R("initiator/failure.rs userspace-tools/libhcablk/src/failure.rs", r"^(\s+)Answer,$", r"\1Response,", done="    Response,"),
    R("initiator/failure.rs userspace-tools/libhcablk/src/failure.rs", r"Self::Answer => \"waiting for the target's answer\"", "Self::Response => \"waiting for the target's response\""),
    R("initiator/**.rs userspace-tools/libhcablk/**.rs", r"\bConnectStep::Answer\b", "ConnectStep::Response"),
    R("tests/kselftest/**.sh docs/**.md userspace-tools/**.rs", r"waiting for the target's answer", "waiting for the target's response"),
    I("initiator/**.rs", {"BadAnswer": "BadReply"}),
    R("initiator/failure.rs", r"the target's answer makes no sense", "the target's reply makes no sense"),
    R("tests/kselftest/**.sh docs/**.md userspace-tools/**.rs tests/guest/**", r"the target's answer makes no sense", "the target's reply makes no sense", optional=True),
    I("initiator/admin.rs initiator/admin/*.rs", {"fence_answered": "fence_response", "reserve_answered": "reserve_response", "ANSWER_MS": "RESPONSE_MS"}),
    R("initiator/admin.rs", r"^mod answer;", "mod response;", done="mod response;"),
    R("initiator/admin/state.rs userspace-tools/libhcablk/src/admin.rs initiator/admin/*.rs", r"\b(KeepAlive|Fence|Reserving|Attaching|Self)::Answered\b", r"\1::Responded", done="Fence::Responded"),
    # The session of one of several volumes.
    R("initiator/admin/state.rs", r"SEND            answer                SEND              (?:answer|response)$", "SEND           response               SEND             response", optional=True),
    R("initiator/admin/state.rs", r"Asked ──────────► Answered\(Ok\) ─────►", "Asked ──────────► Responded(Ok) ────►", optional=True),
    R("initiator/admin/state.rs", r"► Answered\(Err\)", "► Responded(Err)", optional=True),
    R("initiator/**.rs", r"\battach_answered\b", "attach_response", optional=True),
    R("initiator/**.rs", r"\ban_attach_is_answered_in_its_form\b", "an_attach_has_a_response_of_its_form", optional=True),
    R("initiator/admin/state.rs", r"^(\s+)Answered( \{ ms|\()", r"\1Responded\2", done="Responded { ms"),
    R("initiator/admin/state.rs", r"(\bfn )answered\(&mut self", r"\1handle_response(&mut self", done="fn handle_response(&mut self"),
    R("initiator/admin/state.rs", r"(\bfn )answered\(self", r"\1after_response(self", done="fn after_response(self"),
    R("initiator/admin/state.rs", r"(self\.keep_alive|self\.portals)\.answered\(", r"\1.after_response(", done=".after_response("),
    R("initiator/admin/*.rs userspace-tools/libhcablk/src/admin.rs", r"(\bstate|lock\(\))\.answered\(", r"\1.handle_response(", done=".handle_response("),
    R("initiator/admin/state.rs", r"(?<![\w.:])answer\(", "response(", done="fn response("),
    R("initiator/admin/reserve.rs", r"\banswer\b(?=\)| =>)", "response", done="response"),
    R("initiator/admin/state.rs", r"\.\.answer\(", "..response(", done="..response("),
    I("initiator/admin/state.rs", {
        "a_keep_alive_is_due_at_once_and_half_its_time_after_the_last_answer": "a_keep_alive_is_due_at_once_and_half_its_time_after_the_last_response",
        "answers_of_the_wrong_kind_are_refused": "responses_of_the_wrong_kind_are_refused",
    }),
    I("initiator/stats.rs", {"answered": "responded"}),
    R("initiator/stats.rs", r"\bfn answer\(&mut self", "fn note_response(&mut self"),
    R("initiator/io/complete.rs", r"\bmarks\.answer\(\)", "marks.note_response()"),
    # The target responds; the initiator handles responses.
    I("initiator/io/complete.rs", {"respond": "handle_response", "respond_eager": "handle_eager_response", "respond_nop": "handle_nop_response"}),
    I("initiator/io/complete.rs", {
        "lock_for_answer": "lock_for_response", "after_answer": "after_response", "after_last_answer": "after_last_response",
        "eager_answered": "handle_eager_responses", "invalidate_answered": "invalidate_after_response", "answers": "responses",
    }),
    I("initiator/io/{complete,life}.rs", {"nop_answered": "take_nop_response", "is_unanswered": "awaits_nop"}),
    R("initiator/io/{complete,queue,send_queue}.rs", r"\bPhase::Answered\b", "Phase::Responded"),
    R("initiator/io/queue.rs", r"^(\s+)Answered\(Awaited\)", r"\1Responded(Awaited)", done="Responded(Awaited)"),
    I("initiator/io/eager.rs", {"AfterAnswer": "AfterResponse"}),
    R("initiator/batching.rs initiator/batching/tests.rs initiator/io/*.rs", r"(\bfn |batching\.)answered\(", r"\1responded(", done="batching.responded("),
    I("initiator/batching/tests.rs", {"answer": "respond", "answer_early": "respond_early", "Answer": "Response", "EarlyAnswer": "EarlyResponse"}),
    S("initiator/batching/tests.rs", r"an answer was seen", "a response was seen"),
    R("initiator/connect.rs", r"(\bfn |\bone\.)answer_for\(", r"\1reply_for(", done="fn reply_for("),
    R("initiator/connect.rs", r"(\bfn |self\.)answer\(", r"\1reply(", done="fn reply("),
    R("initiator/connect.rs", r"missed an earlier answer: an answer that arrives", "missed an earlier reply: a reply that arrives"),
    R("initiator/connect/ask.rs", r"let answer = |&answer, ", lambda m: m[0].replace("answer", "reply"), done="let reply = "),
    R("initiator/connect/prove.rs initiator/device/bring_up.rs", r"\(answer, deadline\)", "(response, deadline)"),
    R("initiator/connect/prove.rs", r"initiator\.hello\(\), answer\)", "initiator.hello(), response)"),
    R("initiator/device/bring_up.rs", r"\(session, answer\)", "(session, response)"),
    I("initiator/device/attempt.rs", {"answer": "response", "answered": "responded", "was_answered": "has_responded"}),
    R("initiator/**.rs", r"\bwas_answered\(", "has_responded("),
    I("initiator/device/*.rs userspace-tools/libhcablk/src/session.rs", {"answer_ms": "response_ms", "Unanswered": "NoResponse"}),
    I("initiator/device/pace.rs", {"answer": "response", "unanswered": "no_responses", "a_refusal_is_an_answer": "a_refusal_is_a_response"}),
    I("initiator/device/reservations.rs", {"answer": "response"}),
    I("initiator/head/last_sessions.rs", {"an_earlier_answer_does_not_count": "an_earlier_response_does_not_count"}),
    I("userspace-tools/libhcablk/src/{opening,session}.rs", {"has_answered": "has_responded"}),
    I("userspace-tools/libhcablk/src/engine.rs", {
        "eager_answered": "handle_eager_response", "account_answer": "account_response", "answers": "responses",
        "a_write_ends_when_it_was_answered_and_its_send_has_completed": "a_write_ends_when_it_has_its_response_and_its_send_has_completed",
        "the_ring_is_closed_until_the_target_has_answered_and_its_answers_go_by_number": "the_ring_is_closed_until_the_first_response_and_responses_name_writes",
    }),
    R("userspace-tools/libhcablk/src/engine.rs", r"(\bfn |self\.)answered\(", r"\1handle_response(", done="fn handle_response("),
]

# Comments. The noun only: that a target answers a request is plain English.
NOUN = r"(?P<d>\b(?:the|its|their|no|late|repeated|earlier|other|first|second|last|next|without|of|such|target's|initiator's|any|for|with|whose|kind of)) (?P<n>answers?)\b|(?P<e>\b(?:that|this|each|every|one|by)) (?P<m>answer)\b"
for where in ("initiator/**.rs", "hcablk_target/**.rs", "rust/**.rs"):
    RULES += [
        C(where, r"\b([Aa])n answer\b", r"\1 response", optional=True),
        C(where, NOUN, lambda m: m[0].replace("answer", "response"), optional=True),
    ]
RULES += [
    C("initiator/**.rs hcablk_target/**.rs rust/**.rs", r"\bThe answer\b", "The response", optional=True),
    C("initiator/**.rs hcablk_target/**.rs rust/**.rs", r"\b(The|A) (first|last|late|other) answer\b", r"\1 \2 response", optional=True),
]

# --- fetch: the target's RDMA READ of the initiator's memory ----------------------------------------------------------

RULES += [
    I("hcablk_target/io/*.rs", {"FETCH": "RDMA_READ"}),
    I("hcablk_target/io/{rdma_read,receive}.rs", {
        "fetch": "rdma_read", "fetch_large": "rdma_read_large", "fetch_parts": "rdma_read_parts", "fetch_into": "rdma_read_into_sink",
    }),
    # A count at the queue, a table at its chunks. `fetching` of the times is shown to users.
    I("hcablk_target/io/*.rs", {"fetching": "rdma_reads", "ChunkedRequests::fetching": "ChunkedRequests::rdma_reads"}, before=r"(?<!times\.)"),
    I("hcablk_target/io/*.rs", {
        "take_fetched": "take_rdma_read", "chunk_fetched": "chunk_read_completed", "fetch_chunks": "rdma_read_chunks",
        "fetch_round": "rdma_read_round", "is_fetched": "has_arrived", "is_fetched_by_chunks": "is_read_in_chunks",
    }),
    R("hcablk_target/io/{rdma_read,queue,chunks}.rs", r"(\bfn |\bself\.|\bchunk\.)fetched\(", r"\1rdma_read_completed(", done="rdma_read_completed("),
    R("hcablk_target/io/rdma_read.rs", r"`Self::fetch`|Self::fetch\b", lambda m: m[0].replace("fetch", "rdma_read"), done="Self::rdma_read"),
    I("hcablk_target/io/stats.rs", {"fetched": "by_rdma_read"}),
    R("hcablk_target/stats.rs", r"pub\(crate\) fn end\(&self, fetched: bool", "pub(crate) fn end(&self, by_rdma_read: bool"),
    R("hcablk_target/stats.rs", r"\bif fetched \{", "if by_rdma_read {"),
    I("hcablk_target/io/limits.rs", {"fetch": "rdma_read"}),
    C("hcablk_target/session/attachment.rs", r"Atomic writes are fetched with a key, by RDMA READ\.", "The target reads the data of atomic writes by RDMA READ, with a key."),
    C("hcablk_target/io/drive.rs", r"all the data is fetched first, and", "one RDMA READ reads all the data first, and"),
    I("tests/kunit/sinks.rs", {"fetch": "rdma_read", "fetched": "read"}),
]

# The heads of injected bugs.
PATCH_HEADS += [
    (r"^bug: a buffer whose fetch failed", "bug: a buffer whose RDMA READ failed"),
    (r"^bug: an answer to an eager write", "bug: a response to an eager write"),
    (r"^bug: nobody waits for the answer to", "bug: nobody waits for the response to"),
]

# --- Former words that were left --------------------------------------------------------------------------------------

RULES += [
    R("hcablk_target/export/portals.rs", r"\bfn tell\(", "fn list("),
    R("hcablk_target/export/registry/listing.rs", r"\bportals::tell\(", "portals::list("),
    R("hcablk_target/export/portals.rs", r"(?<![\w.:])told\(", "listed(", done="listed("),
    R("hcablk_target/export/portals.rs", r"(?<![\w.:])tell\(", "list(", done="list("),
    R("hcablk_target/drive/reservations/drives.rs", r"(\bfn |self\.|list\.)tell\(", r"\1mark_ambiguous(", done="fn mark_ambiguous("),
    R("initiator/head.rs initiator/device.rs initiator/device/*.rs", r"(\bfn |\bhead(?:\(\))?\.)go\(\)", r"\1begin_removal()", done="fn begin_removal("),
    R("initiator/head.rs", r"\bfn go\(&self\)", "fn begin_removal(&self)"),
    R("initiator/io/hw_queue.rs", r"\bfn put\(&self, queue", "fn add(&self, queue"),
    R("initiator/head/fencing.rs", r"\bhw_queues\.put\(", "hw_queues.add("),
    R("initiator/device/attempt.rs", r"^(\s+)\.put\(&queue, retired\)", r"\1.add(&queue, retired)", done=".add(&queue, retired)"),
]

# --- Documents --------------------------------------------------------------------------------------------------------

RULES += [
    R("docs/glossary.md", r"Somebody who knows nvme-rdma can start with the \[ten terms\]\(#the-ten-terms\);\nsomebody who reads an older commit finds its words \[at the end\]\(#former-words\)\.", "Somebody who knows nvme-rdma can start with the [ten terms](#the-ten-terms)."),
    R("docs/glossary.md", r"\n## Former words\n(?:.*\n)*", "", done="## Administration"),
    R("docs/glossary.md", r"^\| reclaim \| to make a request \(`Request`\) idle", "| reclaim | to make a request (`TargetRequest`) idle"),
    R("docs/glossary.md", r"^\| `Request` \(`io::request`\) \|", "| `TargetRequest` |"),
    R("docs/glossary.md", r"a received request that was checked and has a `Request`", "a received request that was checked and has a `TargetRequest`"),
    R("docs/glossary.md", r"so that nobody may end it \(`Held`\)", "so that nobody may end it (`HeldRequest`)"),
    R("docs/glossary.md", r"freed with the queue pair \(`Kept`\)", "freed with the queue pair (`KeptMemory`)"),
    R("docs/glossary.md", r"^\| `Grant` \| the eager ring", "| `EagerRingGrant` | the eager ring"),
    R("docs/glossary.md", r"^\| `Remote` \| address, key and kind of answer in a message", "| `Remote` | address, key and kind of response in a message"),
    R(
        "docs/glossary.md", r"^\| `Transfer`, `Way` \| .*\n\| `DataPath` \| .*\n",
        "| `DataPath`, `IssuePath` | how the data of one of the initiator's requests moves, with the state that only this path needs; the steps of issuing a request that differ by it (map, reserve, encode, post) | `initiator/io/data_paths.rs`, `issue.rs` |\n"
        "| `trace::DataPath` | the same in tracepoints (the field `way`) | `rust/report/trace.rs` |\n"
        "| `DrivePath` | how data moves between a request's buffers and the drive | `hcablk_target/io/drive.rs` |\n"
        "| `ConnectRequest`, `IoRequest`, `TargetRequest`, `TracedRequest` | what connects a queue pair; a message that asks for an operation, as `AdminRequest` on the admin queue pair; the target's state of one; its description in tracepoints. `Request` alone is the block layer's | `rust/proto/`, `hcablk_target/io/request.rs`, `rust/report/trace.rs`, `rust/blkdev/request.rs` |\n",
        done="`DataPath`, `IssuePath`",
    ),
    R("docs/glossary.md", r"^\| notice \| the answer to a watch", "| notice | the response to a watch"),
    R("docs/glossary.md", r"it is the answer to a request on the admin queue pair", "it is the response to a request on the admin queue pair"),
    R("docs/glossary.md", r"^\| nop \| a request for nothing but an answer", "| nop | a request for nothing but a response"),
    R("docs/**.md", r"\bio/transfers\.rs\b", "io/data_paths.rs"),
    R("docs/**.md", r"`transfers\.rs`", "`data_paths.rs`"),
    R("docs/**.md", r"\badmin/answer\.rs\b", "admin/response.rs"),
    R("docs/design/memory-safety.md", r"\bis `Held` \(`blkdev/held\.rs`\)", "is a `HeldRequest` (`blkdev/held.rs`)"),
    R("docs/design/locking.md", r"`Link::(event|state)`", r"`CmLink::\1`", done="`CmLink::event`"),
    R("docs/design/locking.md", r"`Request::run`: page cache, files", "`TargetRequest::run`: page cache, files"),
    R("docs/design/locking.md", r"`Request::done`: the drive", "`TargetRequest::done`: the drive"),
    R("docs/design/locking.md", r"`Request::completed`: a file", "`TargetRequest::completed`: a file"),
    R("docs/design/overview.md", r"to an idle `Request` \|", "to an idle `TargetRequest` |"),
    R("docs/design/overview.md", r"the `plan` of each way in", "the `plan` of each data path in"),
    R("docs/design/overview.md", r"^\| choose a transfer by size", "| choose a data path by size"),
    R("docs/design/locking.md", r"\b(for|and|s and|;) an answer\b", r"\1 a response", done="for a response"),
    R("docs/design/locking.md", r"`Asker::keys` or `Asker::answer`", "`Asker::keys` or `Asker::result`"),
    R("docs/design/locking.md", r"its settings, and its answer", "its settings, and the reply"),
    R("docs/design/locking.md", r"once to issue a request and once for its answer", "once to issue a request and once for its response"),
]

# Drawings: where the word ends the line, or what is right of it stays in its column.
RULES += [
    R("hcablk_target/session/watched.rs", r"state is old: answer, Unwatched  │", "state is old: response           │"),
    R("hcablk_target/session/watched.rs", r"is detached: answer$", "is detached: response"),
    R("hcablk_target/session/watched.rs", r"a watch: answer that it is detached", "a watch: response that it is detached"),
    R("hcablk_target/session/watched.rs", r"\bkept\b", "watch_state", done="let mut watch_state"),
    R("hcablk_target/**.rs", r"(──?►) answer$", r"\1 response", done="► response"),
    R("hcablk_target/drive/flush_errors.rs", r"│ an answer with it was sent", "│ a response with it was sent"),
    C("rust/**.rs", r"/// The answers of a message", "/// The responses of a message"),
    C("rust/proto/message.rs", r"/// Answer only when the data is on stable storage", "/// Respond only when the data is on stable storage"),
    C("hcablk_target/export/connect/identify.rs", r"\bthe same answer whether", "the same reply whether"),
    C("initiator/**.rs hcablk_target/**.rs rust/**.rs", r"^(//[/!]? )answer to a request", r"\1response to a request", optional=True),
]


if __name__ == "__main__":
    main()
