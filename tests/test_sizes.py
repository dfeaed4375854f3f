"""Modules stay small enough to be read in one sitting."""

from __future__ import annotations

from tests.support.sources import ROOT, modules, name, text

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
    assert long.keys() == EXCEPTIONS.keys(), f"split it, or list it with a reason: {long}"
    assert all(EXCEPTIONS.values()), "an exception has a reason"
