"""The check of a round: what every version of a table says of itself is true."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from headrace.changelog.position import ORIGIN
from tests.pipeline.lake.rounds.versions import Version
from tests.pipeline.lake.rounds.workload import ACCOUNTS, DEFAULT, MONEY, Diary
from tests.rounds.source import Row

KEYS = {"accounts": ("id",), "entries": ("tx", "n")}


def wrong(table: str, found: Iterable[Version], diary: Diary) -> list[str]:
    """Judge all versions of a table: whole transactions, each commit once, at its position."""
    problems: list[str] = []
    number, position = 0, ORIGIN
    before: Sequence[Row] = ()
    for version in found:
        name = f"{table} version {version.number} ({version.operation})"
        problems += [f"{name}: {what}" for what in broken(table, version.rows)]
        note = version.note
        if note is None:
            if what := different(table, before, version.rows):
                problems.append(f"{name} is none of ours, and has other rows: {what}")
            continue
        if not note.number == version.transaction == number + 1:
            problems.append(
                f"{name} is commit {note.number}, after {number}: {version.transaction}"
            )
        # A baseline may come where nothing was changed since.
        if note.at < position or (note.at == position and not note.batch.startswith("baseline")):
            problems.append(f"{name} is at {note.at}, after {position}")
        number, position, before = note.number, note.at, version.rows
        states = diary.at(position.commit)
        differences = [different(table, state.of(table), version.rows) for state in states]
        if all(differences):
            problems.append(f"{name} is not the source at {position}: {differences[-1:]}")
    if number == 0:
        problems.append(f"{table} has no commit of ours")
    return problems


def unsure(table: str, found: Iterable[Version], diary: Diary) -> int:
    """Count versions that were right with either of two states of the source."""
    states = [diary.at(version.note.at.commit) for version in found if version.note is not None]
    return sum(
        bool(different(table, each[0].of(table), each[1].of(table)))
        for each in states
        if len(each) > 1
    )


def broken(table: str, rows: Sequence[Row]) -> list[str]:
    """Say where half a transaction is seen, whatever the source had."""
    if table == "accounts":
        money = sum(row["money"] for row in rows)
        return [] if money == ACCOUNTS * MONEY else [f"there is money of {money}"]
    together: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        together[row["tx"]].append(row)
    return [
        f"transaction {tx} has {len(own)} rows of {own[0]['size']}"
        for tx, own in together.items()
        if {row["size"] for row in own} != {len(own)} or len({row["revision"] for row in own}) > 1
    ]


def different(table: str, wanted: Sequence[Row], there: Sequence[Row]) -> str:
    """Say in what rows differ, without saying it of every one; empty where they do not."""
    names = _columns(wanted) & _columns(there)
    problems = [
        f"no column {name}"
        for name in sorted(_columns(wanted) - names)
        # Of columns nobody has written to the server says nothing.
        if {row[name] for row in wanted} - {None, DEFAULT} and there
    ]
    a, b = (Counter(_values(table, rows, names)) for rows in (wanted, there))
    if missing := a - b:
        problems.append(f"{missing.total()} rows missing: {list(missing)[:3]}")
    if extra := b - a:
        problems.append(f"{extra.total()} rows too many: {list(extra)[:3]}")
    return ", ".join(problems)


def _columns(rows: Sequence[Row]) -> set[str]:
    return set(rows[0]) if rows else set()


def _values(table: str, rows: Sequence[Row], names: set[str]) -> list[tuple[object, ...]]:
    # The key first, and also where one side has no row.
    keys = KEYS[table]
    others = sorted(names - set(keys))
    return [tuple(row[name] for name in (*keys, *others)) for row in rows]
