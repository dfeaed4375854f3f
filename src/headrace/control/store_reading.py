"""
What `control.sqlite` says of pipelines, for whoever only looks.

Nothing is written, no term is taken, and an engine that runs is not disturbed.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from headrace.changelog.position import Position
from headrace.control.store import FORMAT
from headrace.errors import StorageError, UnknownFormat

_PROGRESS = (
    'select p.pipeline, p."table", p.lineage, p.epoch, p."commit", p.ordinal, s.state,'
    " s.baseline, u.pipeline is not null, a.pipeline is not null from progress p"
    ' left join states s using (pipeline, "table") left join paused u using (pipeline)'
    " left join set_aside a using (pipeline) order by 1, 2"
)


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """How far a pipeline has brought a table, as stored."""

    pipeline: str
    table: str
    lineage: str
    position: Position
    state: str
    baseline: int
    """The baseline its rows began with; 0 for none."""

    paused: bool
    set_aside: bool


def stored_progress(data: Path) -> tuple[StoredProgress, ...]:
    """Return what is stored under a data directory; nothing where no engine stored anything."""
    path = data / "control.sqlite"
    if not path.exists():
        return ()
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            known = connection.execute("select format from about").fetchone()
            if known is not None and known[0] != FORMAT:
                raise UnknownFormat("control.sqlite is in an unknown format", format=known[0])
            rows = connection.execute(_PROGRESS).fetchall()
    except sqlite3.Error as error:
        raise StorageError(
            "Control state cannot be read", path=str(path), why=str(error)
        ) from error
    return tuple(
        StoredProgress(
            pipeline=pipeline,
            table=table,
            lineage=lineage,
            position=Position(epoch, commit, ordinal),
            state=state or "",
            baseline=baseline or 0,
            paused=bool(paused),
            set_aside=bool(aside),
        )
        for pipeline, table, lineage, epoch, commit, ordinal, state, baseline, paused, aside in rows
    )
