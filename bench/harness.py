"""
How a measurement is judged, kept and shown.

These machines are noisy, so a time alone says little: each figure stands beside a floor
taken in the same run, and is judged by what its goal says about the two. A goal that is
missed stays in the table, in red.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Literal

NOISY_FLOOR_MS = 120.0
"""A one-job floor above this means that somebody else had the cores."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is asked of a figure, in words and as a test of (ours, floor)."""

    text: str
    met: Callable[[float, float | None], bool]


def at_least(number: float) -> Goal:
    """The figure itself reaches a number."""
    return Goal(f"≥ {number:g}", lambda ours, floor: ours >= number)


def at_most(number: float) -> Goal:
    """The figure itself stays below a number."""
    return Goal(f"≤ {number:g}", lambda ours, floor: ours <= number)


def ratio_at_least(number: float) -> Goal:
    """The figure reaches a part of its floor."""
    return Goal(f"≥ {number:g} of floor", lambda ours, floor: ours >= number * (floor or 0.0))


def ratio_at_most(number: float) -> Goal:
    """The figure stays below a multiple of its floor."""
    return Goal(f"≤ {number:g} of floor", lambda ours, floor: ours <= number * (floor or 0.0))


def floor_plus(number: float) -> Goal:
    """The figure stays within a distance of its floor."""
    return Goal(f"≤ floor + {number:g}", lambda ours, floor: ours <= (floor or 0.0) + number)


@dataclass(frozen=True, slots=True)
class Result:
    """One figure."""

    name: str
    ours: float
    unit: str
    floor: float | None = None
    floor_is: str = ""
    goal: Goal | None = None
    spread: tuple[float, float] | None = None
    """Lowest and highest of the rounds."""

    note: str = ""
    seed: int | None = None

    @property
    def ratio(self) -> float | None:
        """Ours over the floor."""
        return self.ours / self.floor if self.floor else None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none."""
        return None if self.goal is None else bool(self.goal.met(self.ours, self.floor))


@dataclass(slots=True)
class Rounds:
    """Figures of interleaved rounds, floor and ours in turn."""

    ours: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)

    def result(self, name: str, unit: str, goal: Goal | None, floor_is: str) -> Result:
        """Return the medians, with the spread of ours."""
        return Result(
            name,
            statistics.median(self.ours),
            unit,
            statistics.median(self.floor) if self.floor else None,
            floor_is,
            goal,
            (min(self.ours), max(self.ours)),
        )


def machine() -> dict[str, object]:
    """Return what the figures were taken on."""
    packages = ("pyspark", "pyarrow", "numpy")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def show(results: Sequence[Result], *, noisy: bool) -> None:
    """Print the table, missed goals in red, and below it what there is to say of each figure."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="noisy run" if noisy else None)
    for heading in ("name", "ours", "floor", "ratio", "goal", "met"):
        table.add_column(heading, justify="left" if heading in ("name", "goal") else "right")
    for r in results:
        met = {True: "[green]yes[/]", False: "[bold red]no[/]", None: ""}[r.met]
        table.add_row(
            r.name,
            f"{number(r.ours)} {r.unit}",
            "" if r.floor is None else number(r.floor),
            "" if r.ratio is None else f"{r.ratio:.2f}",
            r.goal.text if r.goal else "",
            met,
        )
    console = Console(width=110)
    console.print(table)
    for r in results:
        if r.note:
            console.print(f"{r.name}: {r.note}", highlight=False, markup=False)


def number(value: float) -> str:
    """Return a figure as people read it."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


Better = Literal["higher", "lower"]
