#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Check that a text is OpenMetrics 1.0, limited to the parts that hcablk uses.

openmetrics.py FILE             prints the first mistake and exits with 1, or prints the number of samples
openmetrics.py FILE SERIES…     prints the value of each series, named as in the text: NAME{LABEL="VALUE",…}
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"')
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?Inf|NaN")
# The suffixes to a family's name in the names of its samples, by the family's type.
SUFFIXES = {
    "counter": ("_total", "_created"),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum", "_created"),
    "unknown": ("",),
    "info": ("_info",),
    "stateset": ("",),
}


class Wrong(Exception):
    """The text is not OpenMetrics."""


class Family:
    """The samples of one family, in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.metadata: dict[str, str] = {}
        self.samples: list[tuple[str, dict[str, str], float]] = []

    def type(self) -> str:
        return self.metadata.get("TYPE", "unknown")

    def check(self) -> None:
        if self.type() not in SUFFIXES:
            raise Wrong(f"{self.name}: there is no type {self.type()}")
        unit = self.metadata.get("UNIT")
        if unit and not self.name.endswith(f"_{unit}"):
            raise Wrong(f"{self.name}: its name does not end with its unit {unit}")
        if self.type() == "counter" and any(not value >= 0 for _, _, value in self.samples):
            raise Wrong(f"{self.name}: a counter is less than 0, or no number")
        if self.type() == "histogram":
            self.check_histograms()

    def check_histograms(self) -> None:
        """Check that each histogram has ascending buckets, the last one infinite and equal to the count."""
        histograms: dict[tuple, dict[str, list]] = {}
        for name, labels, value in self.samples:
            rest = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
            histogram = histograms.setdefault(rest, {"_bucket": [], "_count": [], "_sum": []})
            suffix = name[len(self.name):]
            if suffix == "_bucket" and "le" not in labels:
                raise Wrong(f"{self.name}: a bucket has no bound")
            histogram.setdefault(suffix, []).append((float(labels["le"]), value) if suffix == "_bucket" else value)
        for labels, histogram in histograms.items():
            what = f"{self.name} {dict(labels)}"
            buckets = histogram["_bucket"]
            if not buckets or buckets[-1][0] != float("inf"):
                raise Wrong(f"{what}: the last bucket is not infinite")
            for before, after in zip(buckets, buckets[1:]):
                if not (before[0] < after[0] and before[1] <= after[1]):
                    raise Wrong(f"{what}: the buckets do not ascend at {after[0]}")
            if histogram["_count"] != [buckets[-1][1]]:
                raise Wrong(f"{what}: _count is not the last bucket")
            if len(histogram["_sum"]) != 1:
                raise Wrong(f"{what}: there must be exactly one _sum")


def parse_labels(text: str) -> dict[str, str]:
    """Parse NAME="VALUE",…"""
    labels: dict[str, str] = {}
    while text:
        found = LABEL.match(text)
        if not found or found[1] in labels:
            raise Wrong(f"labels: {text}")
        labels[found[1]] = found[2]
        text = text[found.end():]
        if text:
            if not text.startswith(",") or text == ",":
                raise Wrong(f"labels: {text}")
            text = text[1:]
    return labels


def parse_sample(line: str) -> tuple[str, dict[str, str], float]:
    """Parse NAME{LABELS} VALUE."""
    name = NAME.match(line)
    if not name:
        raise Wrong("no name")
    rest = line[name.end():]
    labels = {}
    if rest.startswith("{"):
        inside, brace, rest = rest[1:].rpartition("}")
        if not brace:
            raise Wrong("no closing brace")
        labels = parse_labels(inside)
    if not rest.startswith(" ") or not NUMBER.fullmatch(rest[1:]):
        raise Wrong(f"no value: {rest!r}")
    return name[0], labels, float(rest[1:])


def belongs(family: Family | None, name: str) -> bool:
    return family is not None and any(name == family.name + suffix for suffix in SUFFIXES.get(family.type(), ("",)))


def parse(text: str) -> list[Family]:
    """Parse the whole text."""
    if not text.endswith("# EOF\n"):
        raise Wrong("the text does not end with # EOF and a newline")
    families: list[Family] = []
    names: set[str] = set()
    series: set[tuple] = set()
    for number, line in enumerate(text.splitlines()[:-1], 1):
        try:
            if line.startswith("# "):
                word, _, rest = line[2:].partition(" ")
                name, _, value = rest.partition(" ")
                if word not in ("TYPE", "UNIT", "HELP") or not NAME.fullmatch(name):
                    raise Wrong("no metadata")
                if not families or families[-1].name != name:
                    if name in names:
                        raise Wrong(f"{name} comes again")
                    names.add(name)
                    families.append(Family(name))
                if word in families[-1].metadata or families[-1].samples:
                    raise Wrong(f"{word} is repeated, or follows the samples")
                families[-1].metadata[word] = value
                continue
            name, labels, value = parse_sample(line)
            if not belongs(families[-1] if families else None, name):
                raise Wrong(f"{name} is not of the family before it")
            key = (name, tuple(sorted(labels.items())))
            if key in series:
                raise Wrong(f"{name} has these labels twice")
            series.add(key)
            families[-1].samples.append((name, labels, value))
        except Wrong as error:
            raise Wrong(f"line {number}: {error}: {line}") from None
    for family in families:
        family.check()
    return families


def main() -> int:
    text = Path(sys.argv[1]).read_text()
    try:
        families = parse(text)
    except Wrong as error:
        print(f"{sys.argv[1]}: {error}", file=sys.stderr)
        return 1
    samples = {(name, tuple(sorted(labels.items()))): value for family in families for name, labels, value in family.samples}
    for wanted in sys.argv[2:]:
        name, labels, _ = parse_sample(f"{wanted} 0")
        value = samples.get((name, tuple(sorted(labels.items()))))
        if value is None:
            print(f"there is no {wanted}", file=sys.stderr)
            return 1
        print(int(value) if value.is_integer() else value)
    if len(sys.argv) == 2:
        print(f"{len(samples)} samples of {len(families)} families")
    return 0


if __name__ == "__main__":
    sys.exit(main())
