"""
Reading dead letters back from their folder.

Nothing here creates, syncs or removes: whoever looks at letters does not disturb the engine
that writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from headrace.changelog.position import Position
from headrace.errors import CorruptLetters, UnknownFormat
from headrace.pipeline.letter import BASELINE, DeadLetter, contents
from headrace.pipeline.letter_file import Page, Record, decode, read_groups
from headrace.storage.files import Files

_NAME = re.compile(r"([0-9a-f]{12})\.letters")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def file_name(number: int) -> str:
    """Return the name of a file by its number."""
    return f"{number:012x}.letters"


def last_number(files: Files) -> int:
    """Return the number of the newest file; 0 where there is none."""
    found = (_NAME.fullmatch(name) for name in files.list(""))
    return max((int(match[1], 16) for match in found if match), default=0)


def records(files: Files, pipeline: str, last: int) -> Iterator[Record]:
    """Yield what each file up to `last` says: `CorruptLetters` where one is missing."""
    # By number, not as listed: a listing taken while files appear may miss one of them.
    for number in range(1, last + 1):
        yield _record(files, pipeline, number)


def read_chosen(
    files: Files, pipeline: str, chosen: Iterable[tuple[int, int, str | None]]
) -> tuple[DeadLetter, ...]:
    """Return the letters at these places (file, index), each with what superseded it."""
    by_number: dict[int, dict[int, str | None]] = {}
    for number, index, superseded in chosen:
        by_number.setdefault(number, {})[index] = superseded
    found: list[DeadLetter] = []
    for number, indexes in by_number.items():
        record = _record(files, pipeline, number)
        assert isinstance(record, Page)
        with _named(files, number):
            found += _opened(record, indexes)
    # Rows of a baseline come before the changes on top of them.
    found.sort(key=lambda each: (each.position, each.baseline is None, each.table, each.keys))
    return tuple(found)


def _opened(record: Page, indexes: Mapping[int, str | None]) -> Iterator[DeadLetter]:
    groups = [list(contents(rows, schema)) for rows, schema in read_groups(record)]
    for index, superseded in indexes.items():
        letter = record.letters[index]
        content = groups[letter.group][letter.row]
        yield DeadLetter(
            pipeline=record.pipeline,
            table=letter.table,
            lineage=letter.lineage,
            position=Position.parse(letter.position),
            baseline=letter.baseline,
            op=content.op if letter.baseline is None else BASELINE,
            kind=letter.kind,
            code=letter.code,
            facts=letter.facts,
            key=content.key,
            before=content.before,
            after=content.after,
            time=content.time,
            parked=_EPOCH + timedelta(microseconds=letter.parked),
            superseded=superseded,
            keys=letter.keys,
        )


def _record(files: Files, pipeline: str, number: int) -> Record:
    with _named(files, number):
        try:
            data = files.read(file_name(number))
        except FileNotFoundError as error:
            raise CorruptLetters("File of dead letters is missing") from error
        return decode(data, number, pipeline)


@contextmanager
def _named(files: Files, number: int) -> Iterator[None]:
    """Let an error about a file say which it is."""
    try:
        yield
    except (CorruptLetters, UnknownFormat) as error:
        error.facts = {"file": files.path(file_name(number)), **error.facts}
        raise
