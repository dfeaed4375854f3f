"""
Writes `data.tar.gz`: what an engine of an earlier commit left behind.

It was made with the code of 868c5ce, the last commit before the source tree was laid out anew.
To make it again, with that commit's sources and tests before today's:

    git worktree add /tmp/before 868c5ce
    cd / && PYTHONPATH=/tmp/before/src:/tmp/before:$REPOSITORY $REPOSITORY/.venv/bin/python \\
        $REPOSITORY/tests/compatibility/write_fixture.py

All of it is made in `/tmp/headrace-compat`, the only place that it names: a log remembers its
database by its path, and a database its readers by their data directories. A later format gets
a fixture of its own beside this one, made by the last commit before it, and this one stays.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import io
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import headrace as hr
from tests.compatibility import shop as world
from tests.support.arrow_runner import ArrowRunner

PLACE = Path(world.PLACE)
SECONDS = 600.0
LEFT_OUT = ("lock", "logs", "run", "scratch", "spark-warehouse", "staging", "spark-events")


def main() -> None:
    """Make both worlds, and pack them."""
    print("with the code of", Path(hr.__file__).parent)
    shutil.rmtree(PLACE, ignore_errors=True)
    for folder in (world.PLAIN, world.LAKE):
        (PLACE / folder).mkdir(parents=True)
    _plain(world.Shop(PLACE / world.PLAIN))
    _lake(world.Bank(PLACE / world.LAKE))
    _pack()


def _plain(shop: world.Shop) -> None:
    shop.create()
    runner = ArrowRunner(fails=world.fails)
    with _eager():
        # A recorder in this process, which is told to compact and fold a handful of changes.
        engine = shop.engine(runner=runner, recorder="thread", log=hr.log(keep=0, lease=0))
        with engine:
            assert engine.await_ready(SECONDS)
            floor = engine.log_info("shop").floor
            _change(shop.app, engine, "shop", world.EARLY)
            _until(lambda: engine.log_info("shop").floor > floor)
            _until(lambda: _settled(engine, "shop"))
    with shop.engine(runner=runner) as engine:
        assert engine.await_ready(SECONDS)
        _change(shop.app, engine, "shop", world.BETWEEN)
        _until(lambda: _settled(engine, "shop"))
    shop.app.execute(world.ALTER)
    with shop.engine(runner=runner) as engine:
        assert engine.await_ready(SECONDS)
        engine.pause("paused")
        _change(shop.app, engine, "shop", world.LATER)
        _until(lambda: _settled(engine, "shop", but=("paused",)))
    _change(shop.app, None, "shop", world.UNREAD)
    _tell(shop)
    _leave(shop.app)


def _lake(bank: world.Bank) -> None:
    bank.create()
    with bank.engine() as engine:
        assert engine.await_ready(SECONDS)
        for statement in world.MOVED:
            _change(bank.app, engine, "bank", [statement])
            _until(lambda: _settled(engine, "bank"))
    _change(bank.app, None, "bank", world.MOVED_UNREAD)
    _leave(bank.app)


def _change(app: Any, engine: hr.Engine | None, source: str, statements: Sequence[str]) -> None:
    """Run statements, each with a flush of its own where an engine follows."""
    for statement in statements:
        before = 0 if engine is None else engine.source_info(source).flushes
        app.executescript(statement)
        if engine is not None:
            _until(lambda: engine.source_info(source).flushes > before)  # noqa: B023


def _settled(engine: hr.Engine, source: str, but: Sequence[str] = ()) -> bool:
    end = engine.source_info(source).end
    return all(each.position >= end for each in engine.pipelines() if each.name not in but)


def _until(what: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < until, "it does not come"
        threading.Event().wait(0.05)


@contextlib.contextmanager
def _eager() -> Any:
    """Let a log be cared for at once; the modules are those of the commit this is run with."""
    settings: dict[tuple[str, str], dict[str, object]] = {
        ("control", "care"): {"LOOK_SECONDS": 0.02},
        ("capture", "caring"): {"LOOK_SECONDS": 0.02, "FOLD_SECONDS": 0.02, "DELETE_SECONDS": 0.02},
        ("changelog", "folding"): {"LEAST_BYTES": 1, "SHARE": 1_000_000},
        ("changelog", "compaction"): {"LEAST_FLUSHES": 3},
        ("changelog", "index"): {"CHECKPOINT_EVERY": 8},
    }
    before = []
    for names, values in settings.items():
        module = importlib.import_module(".".join(("headrace", *names)))
        for name, value in values.items():
            before.append((module, name, getattr(module, name)))
            setattr(module, name, value)
    yield
    for module, name, value in before:
        setattr(module, name, value)


def _tell(shop: world.Shop) -> None:
    """Keep what this code says about what it wrote."""
    folder = shop.folder / world.EXPECTED
    folder.mkdir()
    for name, command in world.QUESTIONS.items():
        done = subprocess.run(
            [sys.executable, "-m", "headrace", *command, "--json", "--data", str(shop.data)],
            capture_output=True,
            check=True,
        )
        (folder / name).write_bytes(done.stdout)


def _leave(app: Any) -> None:
    # A copy of a file is another file, unless the log was never told which one it is in.
    app.execute("delete from __headrace_meta where name = 'file'")
    app.execute("pragma wal_checkpoint(truncate)")
    app.execute("pragma journal_mode = delete")
    app.close()


def _pack() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(PLACE.rglob("*")):
            name = path.relative_to(PLACE)
            if path.is_file() and not set(name.parts) & set(LEFT_OUT):
                about = tarfile.TarInfo(str(name))
                about.size = path.stat().st_size
                with path.open("rb") as file:
                    archive.addfile(about, file)
    world.DATA.write_bytes(gzip.compress(packed.getvalue(), 9, mtime=0))
    print(world.DATA, world.DATA.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
