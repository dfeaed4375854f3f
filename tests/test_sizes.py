"""Modules stay small enough to be read in one sitting."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HARD_LIMIT = 500

EXCEPTIONS: dict[str, str] = {}
"""Path of a module that may be longer, and the reason."""

MODULES = sorted(
    path
    for folder in ("src", "tests", "bench", "tools", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if "v1" not in path.relative_to(ROOT).parts  # generated from proto/
)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_a_module_has_at_most_500_lines(module: Path) -> None:
    lines = len(module.read_text().splitlines())
    if name(module) in EXCEPTIONS:
        assert lines > HARD_LIMIT, "short enough by now: take it off the list"
    else:
        assert lines <= HARD_LIMIT, "split it, or list it in EXCEPTIONS with a reason"


def test_every_exception_names_a_module_and_gives_a_reason() -> None:
    assert set(EXCEPTIONS) <= {name(module) for module in MODULES}
    assert all(EXCEPTIONS.values())
