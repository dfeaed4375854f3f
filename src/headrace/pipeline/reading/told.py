"""
Errors on their way through Spark, of which nothing but the text arrives.

The text has everything then: the code, what happened, and what to do. Spark would print a
page of its own frames before it; a worker that fails is not used again, so it is told not to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.errors import HeadraceError

_WORKER = "PYTHON_WORKER_FACTORY"
"""How the names of variables begin that only Spark's workers have."""


@contextmanager
def told() -> Iterator[None]:
    """Give our errors a text that says everything."""
    try:
        yield
    except HeadraceError as error:
        facts = "".join(f", {name}={value}" for name, value in error.facts.items())
        error.args, error.facts = (f"{error.message}{facts}. {error.remedy}",), {}
        if any(name.startswith(_WORKER) for name in os.environ):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise error from None
