"""One way to be wrong: an exact piece of text, and what takes its place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SIMULATION = "simulation"
"""The test of a mutation that seeds are to find."""

FINDINGS = "tests/simulation/test_findings.py"
"""What seeds seldom find, told in a few lines."""

GUARDS = "tests/control/test_mutation_guards.py"
"""What only a break on purpose shows."""


class TextMissing(LookupError):
    """The text to be replaced is not in the module exactly once."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A break of our code."""

    name: str
    module: str
    """Under `src/headrace`."""

    old: str
    new: str
    test: str = SIMULATION
    """What must turn red: the simulation, or a test of pytest's by its address."""

    seeds: int = 20
    """Of the simulation, from 0 on: the one that finds it, and some more."""

    also: tuple[tuple[str, str, str], ...] = ()
    """More modules, texts and what takes their place, where one does not make the break."""

    spark: bool = False
    """Whether its test starts a JVM: of these, one is tried at a time."""

    reason: str = ""
    """Why its test is none of `make test`, but of `.ci/run` alone."""

    def applied(self, package: Path) -> dict[Path, str]:
        """Return the modules of `package` that change, each with its text as it is then."""
        texts: dict[Path, str] = {}
        for module, old, new in ((self.module, self.old, self.new), *self.also):
            path = package / module
            text = texts[path] if path in texts else path.read_text()
            if (count := text.count(old)) != 1:
                raise TextMissing(f"{self.name}: found {count} times in {module}: {old!r}")
            texts[path] = text.replace(old, new)
        return texts
