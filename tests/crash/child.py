"""
The engine of a round, in a process that can be killed.

Says `started` and `ready`, then answers commands: `settle N` with `settled POSITION RESTARTS`
once the target has come to commit N and all is well, `rows` with the target's rows and
effects as JSON, `stop` with `stopped`. It ends with whoever started it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from headrace.capture.sqlite.source import sqlite
from headrace.control.engine import Engine
from headrace.errors import HeadraceError
from headrace.pipeline.definition import Pipeline, drop, equals
from headrace.targets.memory import IndexedMemory
from tests.support.arrow_runner import ArrowRunner
from tests.support.file_target import FileTarget
from tests.support.watched_target import WatchedTarget

READY_SECONDS = 90.0
SETTLE_SECONDS = 30.0


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("place", type=Path)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--spark", action="store_true")
    arguments = parser.parse_args()
    memory = IndexedMemory()
    # Held from before the start on: what it is told are this engine's effects.
    changes = memory.changes()
    inner = memory if arguments.memory else FileTarget(arguments.place / "target.db")
    target = WatchedTarget(inner)
    engine = Engine(
        Pipeline(
            sqlite(arguments.place / "shop.db"),
            "orders",
            target,
            filters=[equals("status", "paid")],
            transforms=[drop("card")],
        ),
        data=arguments.place / "data",
        runner=None if arguments.spark else ArrowRunner(),
    )
    try:
        with engine:
            say("started")
            say("ready" if engine.await_ready(READY_SECONDS) else f"error {told(engine)}")
            for line in sys.stdin:
                command, _, argument = line.strip().partition(" ")
                match command:
                    case "settle":
                        settled = target.wait(int(argument), SETTLE_SECONDS)
                        settled = settled and engine.await_ready(SETTLE_SECONDS)
                        restarts = engine.sources()[0].restarts
                        done = f"settled {target.reached} {restarts}"
                        say(done if settled else f"error {told(engine)}")
                    case "rows":
                        effects = [next(changes) for _ in range(changes.behind)]
                        found = {
                            "rows": [dict(row) for row in memory.all()],
                            "effects": [
                                [e.op, list(e.key), e.after and dict(e.after), str(e.position)]
                                for e in effects
                            ],
                        }
                        say(f"rows {json.dumps(found)}")
                    case "stop":
                        break
    except HeadraceError as error:
        say(f"error {error}")
        return error.exit_code
    say("stopped")
    return 0


def told(engine: Engine) -> str:
    return f"{engine.pipelines()} {engine.sources()}"


if __name__ == "__main__":
    sys.exit(main())
