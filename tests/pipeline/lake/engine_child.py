"""
An engine with a table of a lake as its target, in a process of its own that may be killed.

`python -m tests.pipeline.lake.engine_child FORMAT FOLDER` follows the bank there, says `ready`, and
answers each line: `check` with `right` once the table equals the bank, or with what is wrong;
`kill` with `killed` when its JVM is dead.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path

import headrace as hr
from headrace.errors import HeadraceError
from headrace.spark_session import jvm
from headrace.spark_session.errors import running
from tests.pipeline.lake.engine_stories import LONG, Bank, check_versions, read, seen
from tests.pipeline.lake.kinds import KINDS


def main(format: str, folder: Path) -> None:
    bank, kind = Bank(folder), KINDS[format]
    path = folder / "lake"
    target = hr.table(path=str(path), format=format, compact_every=4)
    with bank.engine(("accounts", target), spark=None) as engine:
        say("ready" if engine.await_ready(LONG) else "not ready")
        runner = engine._state.spark
        assert runner is not None

        def equal() -> bool:
            try:
                with running():
                    return read(kind, runner.spark, path) == bank.rows()
            except HeadraceError:
                return False  # its Spark died, and is started again

        for line in sys.stdin:
            try:
                if line.strip() == "kill":
                    assert jvm.running is not None
                    os.kill(jvm.running.machine.process.pid, signal.SIGKILL)
                    say("killed")
                    continue
                assert seen(equal), "the table is another"
                check_versions(kind, runner.spark, path)
            except Exception:  # noqa: BLE001  # It is told to whoever asked.
                say(repr(traceback.format_exc()))
            else:
                say("right")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
