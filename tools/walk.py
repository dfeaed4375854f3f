"""
The walk of one change: every function entered from its commit in PostgreSQL to `get`.

Runs an engine with its recorder on a thread, PostgreSQL → memory, and commits one row at a time.
All threads are profiled while a row is on its way. A function counts if it was entered for each of
several rows, so that a timer that fires meanwhile does not. Generated code, such as the
`__init__` of a dataclass, does not count: there is nothing of it to read.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any
from unittest import mock

import psycopg

import headrace as hr
from headrace.embedded.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGE = Path(hr.__file__).resolve().parent
PATIENCE_SECONDS = 120.0
WARM_UP = 5
ROWS = 7
TIMERS = (
    ("headrace.capture.recorder", "LAG_SECONDS"),
    ("headrace.runtime.retention", "LOOK_SECONDS"),
    ("headrace.runtime.spark", "_LOOK_SECONDS"),
)
"""What is due every second or two, which on a slow machine is once for every row."""


@dataclass(frozen=True, slots=True, order=True)
class Function:
    """A function of ours, by the lines it stands in."""

    module: str
    first: int
    last: int
    name: str


@dataclass(frozen=True, slots=True)
class Walk:
    """What one change passes through."""

    functions: tuple[Function, ...]

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules entered, by name."""
        return tuple(sorted({each.module for each in self.functions}))

    @property
    def lines(self) -> int:
        """The lines of all functions; those of a function within another count once."""
        return len(
            {
                (each.module, line)
                for each in self.functions
                for line in range(each.first, each.last + 1)
            }
        )

    def __str__(self) -> str:
        shown = []
        for module in self.modules:
            mine = [each for each in self.functions if each.module == module]
            lines = len({n for each in mine for n in range(each.first, each.last + 1)})
            shown.append(f"{module}  ({len(mine)} functions, {lines} lines)")
            shown += [f"    {each.first:5}  {each.name}" for each in mine]
        total = f"{len(self.modules)} modules, {len(self.functions)} functions, {self.lines} lines"
        return "\n".join([*shown, "", total])


def walk(data: Path, spark: SparkSession | None = None) -> Walk:
    """Commit rows one by one, and return what each of them went through."""
    with PostgresServer() as server, psycopg.connect(server.dsn, autocommit=True) as shop:
        shop.execute("create table orders (id int primary key, state text, amount numeric(10,2))")
        shop.execute("insert into orders values (0, 'open', 1.00)")
        orders = hr.memory()
        pipeline = hr.Pipeline(hr.postgres(server.dsn, name="shop"), "orders", orders)
        profile = Profile()
        with (
            timers_held_off(),
            profile.of_new_threads(),
            hr.Engine(pipeline, data=data, spark=spark, recorder="thread") as engine,
        ):
            if not engine.await_ready(timeout=PATIENCE_SECONDS):
                raise SystemExit("the engine was not ready in time")
            seen = [_one(shop, orders, profile, key) for key in range(1, WARM_UP + ROWS + 1)]
    return Walk(tuple(sorted(set.intersection(*seen[WARM_UP:]))))


def _one(shop: psycopg.Connection[Any], orders: Any, profile: Profile, key: int) -> set[Function]:
    profile.begin()
    shop.execute("insert into orders values (%s, 'paid', 42.50)", (key,))
    until = time.monotonic() + PATIENCE_SECONDS
    while orders.get(key) is None:
        if time.monotonic() > until:
            raise SystemExit(f"row {key} did not arrive")
        time.sleep(0.002)
    sys.setprofile(profile.take)
    orders.get(key)
    sys.setprofile(None)
    # Progress is stored, and the source acknowledged, after the row can be read.
    time.sleep(0.05)
    return {found for code in profile.end() if (found := function_of(code)) is not None}


@contextmanager
def timers_held_off() -> Iterator[None]:
    """Let nothing that is merely due now and then count as part of the walk."""
    with ExitStack() as patches:
        for module, name in TIMERS:
            if hasattr(importlib.import_module(module), name):
                patches.enter_context(mock.patch(f"{module}.{name}", 30.0))
        yield


class Profile:
    """Collects the code that threads run."""

    def __init__(self) -> None:
        self._on = False
        self._codes: set[CodeType] = set()
        self._threads: set[int] = set()

    @contextmanager
    def of_new_threads(self) -> Iterator[None]:
        """Profile every thread that is started meanwhile."""
        threading.setprofile(self.take)
        try:
            yield
        finally:
            threading.setprofile(None)

    def begin(self) -> None:
        """Forget what was seen, and look."""
        self._codes, self._threads = set(), set()
        self._on = True

    def end(self) -> set[CodeType]:
        """Look no more, and return what was seen."""
        self._on = False
        return self._codes

    def take(self, frame: FrameType, event: str, argument: object) -> None:
        """Note a function that is entered; called by the interpreter."""
        if not self._on or event not in ("call", "return"):
            return
        self._codes.add(frame.f_code)
        if threading.get_ident() not in self._threads:
            # The first sign of life in this thread: its callers were waiting for the change.
            self._threads.add(threading.get_ident())
            caller = frame.f_back
            while caller is not None:
                self._codes.add(caller.f_code)
                caller = caller.f_back


def function_of(code: CodeType) -> Function | None:
    """Return the function that code belongs to; None where it is not ours, or generated."""
    path = Path(code.co_filename)
    if not path.is_relative_to(PACKAGE):
        return None
    holding = [each for each in _functions(path) if each.first <= code.co_firstlineno <= each.last]
    return min(holding, key=lambda each: each.last - each.first, default=None)


@cache
def _functions(path: Path) -> tuple[Function, ...]:
    module = ".".join(("headrace", *path.relative_to(PACKAGE).with_suffix("").parts))
    module = module.removesuffix(".__init__")
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # The code of a decorated function begins at its first decorator.
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found.append(Function(module, first, node.end_lineno or first, node.name))
    return tuple(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the walk."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="headrace-walk-") as folder:
        print(walk(Path(folder) / "data"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
