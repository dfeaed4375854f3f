"""
Runs statements with a current SQLite library and strict settings, in a process of its own.

Two SQLite libraries in one process cancel each other's locks (decision 0005). Standard input is a
pickled list of (file, statements), standard output the pickled errors of each.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

Statement = tuple[str, Sequence[object]]
Job = tuple[str, Sequence[Statement]]


def run(jobs: Sequence[Job]) -> list[list[str]]:
    """Run statements on each file; return the name of each one's error, or ""."""
    done = subprocess.run(
        [sys.executable, __file__], input=pickle.dumps(jobs), stdout=subprocess.PIPE, check=True
    )
    found: list[list[str]] = pickle.loads(done.stdout)
    return found


def _write(file: str, statements: Sequence[Statement]) -> list[str]:
    import apsw

    connection = apsw.Connection(file)
    connection.execute("pragma synchronous = off")
    # As several drivers do: a name in double quotes is never a text.
    connection.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
    errors = []
    for sql, values in statements:
        try:
            list(connection.execute(sql, tuple(values)))
            errors.append("")
        except apsw.Error as error:
            errors.append(f"{type(error).__name__}: {error}")
    connection.close()
    return errors


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))
    sys.stdout.buffer.write(
        pickle.dumps([_write(*job) for job in pickle.loads(sys.stdin.buffer.read())])
    )
