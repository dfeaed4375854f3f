"""Modules stay small enough to be read in one sitting."""

from __future__ import annotations

from tests.support.sources import ROOT, all_of, modules, name, text

HARD_LIMIT = 500

EXCEPTIONS: dict[str, str] = {}
"""Path of a module that may be longer, and the reason."""


def test_a_module_has_at_most_500_lines() -> None:
    lines = {
        name(module): len(text(module).splitlines())
        for folder in ("src", "tests", "bench", "tools", "examples")
        for module in modules(ROOT / folder)
    }
    assert len(lines) > 300, "the modules are looked for in the wrong place"
    long = {module: count for module, count in lines.items() if count > HARD_LIMIT}
    # One that is too long is split, or listed with a reason; one that is short again, not listed.
    assert long.keys() == EXCEPTIONS.keys(), all_of(long)
    assert all(EXCEPTIONS.values()), "an exception has a reason"
