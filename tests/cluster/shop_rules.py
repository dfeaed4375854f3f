"""A project's own module; executors have it by `headrace cluster pack --with`."""

from __future__ import annotations

import sys
from typing import Any


def with_double(row: dict[str, Any]) -> dict[str, Any]:
    """Give twice the quantity, and where that was computed."""
    import headrace

    return {"double": row["qty"] * 2, "python": sys.executable, "headrace": headrace.__file__}
