"""
Whether a table is what was left there, and what is said where it is not.

Judgements alone: what follows from them is the table's own business, see `table`.
"""

from __future__ import annotations

from headrace.changelog.position import Position
from headrace.errors import TableTaken, TargetError
from headrace.pipeline.lake.commits import Commits, Found
from headrace.pipeline.lake.looking import CUT_OFF
from headrace.pipeline.lake.naming import Where
from headrace.pipeline.lake.note import Note
from headrace.pipeline.lake.shape import MODES, Mode, Shape, columns_of

MADE_ANEW = "the table was made anew"


def followed(
    table: Commits, before: int | None, identity: str | None
) -> tuple[int | None, str | None]:
    """
    Return how far a table is known after a commit of ours, and what is wrong with it.

    `before` is how far it was known, `identity` which one it is to be; None: any.
    """
    version, why = _reached(table, before)
    if why is None and identity and not table.is_still(identity):
        return before, MADE_ANEW
    return version, why


def _reached(table: Commits, before: int | None) -> tuple[int | None, str | None]:
    version = table.committed()
    if before is not None and version == before + 1:
        return version, None
    found = table.found(before)
    if found is None or found.note is None:
        return before, "the table is gone"
    return judged(found, found.note, before, -1 if before is None else before + 1)


def loaded_as(table: Commits, note: Note) -> str | None:
    """Return which table a load has made; None: another took its place already."""
    identity = table.identity()
    # Looked at behind it: otherwise it may be the identity of what came in between.
    found = table.found()
    return identity if found is not None and found.note == note else None


def judged(
    found: Found, note: Note, before: int | None, least: int
) -> tuple[int | None, str | None]:
    """
    Return how far a table of ours is known, and what is wrong with it.

    `before` is how far it was known, `least` the version that it must have reached.
    """
    # A load begins anew, whatever was there before.
    if found.version < least and not note.loads:
        return before, "the table was put back to an earlier version, or made anew"
    if found.others is not None:
        cut_off = found.others == CUT_OFF
        why = CUT_OFF if cut_off else f"somebody else changed its rows ({found.others})"
        return before, why
    return found.version, None


def put_back(note: Note, lineage: str, at: Position) -> str | None:
    """
    Return what is wrong with a table that was at `at`, and that another life committed to since.

    A position beyond the last note of our own is nothing unusual, for what has no rows of a table
    is no commit. But another life that has come less far has loaded it, or knows another log.
    """
    if note.lineage != lineage:
        return "another engine wrote to it, from another log"
    if _commit(note.at) < _commit(at):
        return "another engine put it back to an earlier position"
    return None


def further(note: Note, lineage: str, at: Position) -> bool:
    """Whether a commit has brought a table beyond `at` of the same log."""
    return note.lineage == lineage and _commit(note.at) > _commit(at)


def _commit(at: Position) -> tuple[int, int]:
    # Ends of a batch stand on its last change, those of a baseline behind all of a commit.
    return at.epoch, at.commit


def misfit(table: Commits, shape: Shape) -> str | None:
    """Return why a table of ours cannot take rows of a shape; None: it can."""
    from headrace.pipeline.shapes import spark_type

    have = {field.name: field.dataType for field in table.schema()}
    for name, type in shape.columns:
        if name not in have:
            return f"it lacks the column {name}"
        if have[name].simpleString() != table.kept(spark_type(type)).simpleString():
            return f"its column {name} has another type"
    return None


def not_last(where: Where) -> TargetError:
    """Return what is raised where a commit is not what the table ends with."""
    return TargetError(
        "Another writer was quicker: the table is read back, and the batch comes again",
        table=where.shown,
    )


def not_ours(why: str, where: Where) -> TableTaken:
    """Return what is raised where a table of ours has other rows than were left there."""
    return TableTaken(
        f"The table is not what was left there: {why}",
        remedy="Let nobody else write to it, and restart the engine: it is loaded anew.",
        table=where.shown,
    )


def kept_by(note: Note | None, table: Commits) -> Mode:
    """Return the mode that a table of ours is kept by; where no note says so, by its columns."""
    if note is not None and note.mode:
        return note.mode  # type: ignore[return-value]
    have = set(table.schema().names)
    return next((mode for mode in MODES if columns_of(mode) and columns_of(mode) <= have), "merge")


def other_mode(mode: Mode, where: Where) -> TableTaken:
    """Return what is raised where a table of ours was kept by another mode."""
    return TableTaken(
        f"The table is kept by this pipeline, with mode {mode}",
        remedy="Go back to that mode, or name another table. With adopt=True its rows, and"
        " all that it keeps of before, are replaced.",
        table=where.shown,
    )


def taken(note: Note | None, owner: str, where: Where) -> TableTaken:
    """Return what is raised where there is a table that somebody else has, by its last note."""
    if note is None:
        return TableTaken("There is a table already, and it is not ours", table=where.shown)
    if note.owner == owner:
        return TableTaken(
            "Another table of this pipeline is kept here",
            table=where.shown,
            kept=note.table,
        )
    return TableTaken(
        "Another pipeline writes to this table",
        table=where.shown,
        pipeline=note.owner.partition("/")[0],
    )
