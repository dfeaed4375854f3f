"""
Engines at work for the tests of verbs: everything is real but Spark, which would take a JVM.

`python -m tests.interfaces.at_work` is the command line in which engines run on Arrow.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.api.server import ControlServer, serve
from headrace.cli import main
from headrace.engine.engine import Engine
from headrace.pipeline.definition import Pipeline
from headrace.targets.memory import memory
from tests.support.arrow_runner import ArrowRunner
from tests.support.patience import patience
from tests.support.shop import Shop

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parent.parent.parent

CONFIGURATION = """
service = shop
data = "./data"
sources.shop { type = sqlite, path = "shop.db" }
pipelines.orders {
  source = shop
  tables = [orders]
  filters = [{ type = field-equals, field = status, value = paid }]
  transforms = [{ type = drop-fields, fields = [card] }]
  target { type = indexed-memory, indexes.by_customer { fields = [customer_id] } }
}
"""


@dataclass(frozen=True)
class AtWork:
    """A shop whose orders an engine of this process brings into memory."""

    shop: Shop
    engine: Engine
    serving: ControlServer

    @property
    def data(self) -> str:
        return str(self.shop.data)


@contextmanager
def at_work(folder: Path, runner: ArrowRunner | None = None) -> Iterator[AtWork]:
    shop = Shop(folder)
    target = memory(indexes={"by_customer": ["customer_id"]}, lookup=["id"])
    pipeline = Pipeline(shop.source(), "orders", target, name="orders", on_error="stop")
    engine = Engine(pipeline, data=shop.data, runner=runner or ArrowRunner(), recorder="thread")
    (folder / "headrace.conf").write_text(CONFIGURATION)
    with engine, serve(engine, shop.data, service="shop") as serving:
        assert engine.await_ready(patience())
        yield AtWork(shop, engine, serving)
    shop.close()


def lines_of(text: str) -> list[dict[str, Any]]:
    """Return JSON lines."""
    return [json.loads(line) for line in text.splitlines()]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code and what it printed."""
    code = main.exit_code(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """Run a command in this process; return what it printed to stdout."""
    assert main.exit_code(list(arguments)) == code
    return capsys.readouterr().out


def environment(**more: str) -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **more}


def started(*arguments: str, cwd: Path, **more: str) -> subprocess.Popen[str]:
    """Start the command line, with engines that run on Arrow, as a child."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.interfaces.at_work", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment(**more),
    )


if __name__ == "__main__":
    from headrace.cli.main import run
    from headrace.engine.from_config import EngineConfig

    of_spark = EngineConfig.engine

    def of_arrow(self: EngineConfig, **overrides: Any) -> Engine:
        return of_spark(self, runner=ArrowRunner(), **overrides)

    setattr(EngineConfig, "engine", of_arrow)  # noqa: B010 - mypy minds the assignment to a method
    run()
