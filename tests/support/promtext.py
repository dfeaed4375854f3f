"""
Reads the text format of Prometheus, strictly: written from its description, not from our writer.

https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
PAIR = re.compile(rf'({LABEL})="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(?:,|$)')
KINDS = ("counter", "gauge", "histogram")

Labels = frozenset[tuple[str, str]]


@dataclass
class Family:
    """A metric as it is read."""

    kind: str
    help: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, **labels: str) -> float | None:
        """Return the one sample with these labels; None if there is none."""
        found = [v for (_, at), v in self.samples.items() if set(labels.items()) <= at]
        assert len(found) <= 1, labels
        return found[0] if found else None


def families(text: str) -> dict[str, Family]:
    """Return the metrics of a text by name; fails where the format is not kept."""
    assert text == "" or text.endswith("\n")
    found: dict[str, Family] = {}
    helps: dict[str, str] = {}
    current = ""
    for line in text.split("\n")[:-1]:  # nothing else ends a line
        if line.startswith("# HELP "):
            name, _, about = line.removeprefix("# HELP ").partition(" ")
            assert name not in helps, f"HELP of {name} twice"
            helps[name] = _plain(about)
        elif line.startswith("# TYPE "):
            current, kind = line.removeprefix("# TYPE ").split(" ")
            assert current not in found, f"TYPE of {current} twice"
            assert kind in KINDS
            found[current] = Family(kind, helps[current])
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            name, pairs, value = match.groups()
            assert _belongs(name, current, found[current].kind), f"{name} after {current}"
            key = (name, frozenset(_labels(pairs or "")))
            assert key not in found[current].samples, f"twice: {line}"
            found[current].samples[key] = _number(value)
    for name, family in found.items():
        if family.kind == "histogram":
            _check_histogram(name, family)
    return found


def _belongs(name: str, family: str, kind: str) -> bool:
    suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
    return name in {family + suffix for suffix in suffixes}


def _labels(pairs: str) -> list[tuple[str, str]]:
    at, found = 0, []
    while at < len(pairs):
        match = PAIR.match(pairs, at)
        assert match, pairs
        found.append((match[1], _plain(match[2])))
        at = match.end()
    assert len({name for name, _ in found}) == len(found), "a label twice"
    return found


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: {"n": "\n"}.get(match[1], match[1]), text)


def _number(text: str) -> float:
    return {"+Inf": math.inf, "-Inf": -math.inf, "NaN": math.nan}.get(text) or float(text)


def _check_histogram(name: str, family: Family) -> None:
    series: dict[Labels, list[tuple[float, float]]] = {}
    for (sample, labels), value in family.samples.items():
        if sample == f"{name}_bucket":
            bound = next(_number(text) for label, text in labels if label == "le")
            rest = frozenset(pair for pair in labels if pair[0] != "le")
            series.setdefault(rest, []).append((bound, value))
    for labels, buckets in series.items():
        assert buckets == sorted(buckets), f"{name}: buckets that shrink"
        assert buckets[-1] == (math.inf, family.samples[f"{name}_count", labels])
        assert (f"{name}_sum", labels) in family.samples
