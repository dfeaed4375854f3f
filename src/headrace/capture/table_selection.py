"""
The selection of captured tables: those that are named, and those that match a pattern.

A named table that cannot be captured is an error. If it was captured before, it is *lost* instead:
it is reported, the other tables continue, and it is checked again at regular intervals. A table
that only matches a pattern is left out and reported: it never keeps the others from being captured,
and nothing is done to it (R23a). New tables are found by listing the tables at regular intervals.

Examples of patterns are `public.*` and, to exclude tables, `!public.audit_*`. An entry with `*`
(any characters) or `?` (one character) selects every table that it matches, now and later. An entry
that begins with `!` excludes the names it matches, at any position in the list. Both kinds match a
schema and a table; the default schema is `public`. As in SQL, names are folded to lower case except
within quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import cast

from headrace.capture.messages import Failed, FoundTable, TablesFound
from headrace.capture.source import Lists, Recordable
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import (
    HeadraceError,
    Reopening,
    SourceRefused,
    SourceUnreachable,
    TableRefused,
)

# --- patterns -------------------------------------------------------------------------------------

_PART = re.compile(r'"((?:[^"]|"")*)"|([^."]+)')


def is_pattern(entry: str) -> bool:
    """Whether an entry is a pattern and not the name of a table."""
    return entry.startswith("!") or "*" in entry or "?" in entry


def split_table_name(name: str) -> tuple[str, str]:
    """Return the schema and the table of a name or a pattern."""
    parts = [
        (quoted.replace('""', '"') if quoted else plain.lower())
        for quoted, plain in _PART.findall(name)
    ]
    # A malformed name is refused by its source.
    return ("public", parts[-1] if parts else name) if len(parts) < 2 else (parts[-2], parts[-1])


def matches(name: str, pattern: str) -> bool:
    """Whether `pattern`, without a `!`, matches the table called `name`."""
    return all(
        _expression(wanted).fullmatch(found)
        for wanted, found in zip(split_table_name(pattern), split_table_name(name), strict=True)
    )


def chosen(names: Iterable[str], patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the names that match a pattern and that no `!` excludes, in their order."""
    wanted = [each for each in patterns if not each.startswith("!")]
    unwanted = [each[1:] for each in patterns if each.startswith("!")]
    return tuple(
        name
        for name in dict.fromkeys(names)
        if any(matches(name, each) for each in wanted)
        and not any(matches(name, each) for each in unwanted)
    )


def _expression(wanted: str) -> re.Pattern[str]:
    signs = {"*": ".*", "?": "."}
    return re.compile("".join(signs.get(each) or re.escape(each) for each in wanted), re.S)


# --- the selection --------------------------------------------------------------------------------

LOOK_SECONDS = 10.0
"""The longest time until a new table is noticed, or that a lost one can be captured again."""


def matching(
    source: Recordable, named: Iterable[TableName], selections: Iterable[Sequence[str]]
) -> tuple[TableName, ...]:
    """Return the existing tables that a selection matches, without those that are named."""
    if not (selections := list(selections)):
        return ()
    if not source.traits.lists:
        raise SourceRefused(
            "Patterns cannot be used: this kind of source cannot list its tables",
            source=source.name,
            remedy="Name the tables one by one.",
        )
    # Compared by schema and table: a table can be written in several ways, but has one name in
    # the log.
    taken = {split_table_name(name) for name in named}
    there = [name for name in cast(Lists, source).tables() if split_table_name(name) not in taken]
    wanted = {name for patterns in selections for name in chosen(there, patterns)}
    return tuple(name for name in there if name in wanted)


def blamed(
    problems: Iterable[HeadraceError], spared: Iterable[TableName]
) -> tuple[dict[TableName, HeadraceError], list[HeadraceError]]:
    """Return the problems of `spared` tables, which stop no others, by table; and all others."""
    candidates = frozenset(spared)
    left_out: dict[TableName, HeadraceError] = {}
    others: list[HeadraceError] = []
    for problem in problems:
        named = [problem.facts.get("table"), problem.facts.get("other")]
        found = next((str(name) for name in named if name in candidates), None)
        if found is None or isinstance(problem, SourceUnreachable):
            others.append(problem)
        else:
            left_out.setdefault(found, problem)
    return left_out, others


def describe(
    source: Recordable, tables: Sequence[TableName], spared: Iterable[TableName]
) -> tuple[Mapping[TableName, TableSchema], dict[TableName, HeadraceError]]:
    """Return the schemas, and the problems of `spared` tables, which stop no others."""
    left_out: dict[TableName, HeadraceError] = {}
    while True:
        try:
            return source.describe([name for name in tables if name not in left_out]), left_out
        except HeadraceError as error:
            # Something happened to a table since it was listed and checked.
            refused, others = blamed([error], [name for name in spared if name not in left_out])
            if others:
                raise
            left_out |= refused


class TableSelection:
    """The tables of one recorder; used only on its thread."""

    def __init__(
        self,
        source: Recordable,
        named: Sequence[TableName],
        selections: Sequence[Sequence[str]],
        clock: Callable[[], float],
    ) -> None:
        self.named = tuple(named)
        self.found: dict[TableName, TableSchema] = {}
        """The tables that are captured because they match a pattern."""

        self.left_out: dict[TableName, HeadraceError] = {}
        self._gone: dict[TableName, HeadraceError] = {}
        """The tables in `left_out` that were captured before and no longer exist."""

        self.lost: dict[TableName, HeadraceError] = {}
        """The named tables that were captured before and cannot be any more."""

        self._source = source
        self._selections = selections
        self._clock = clock
        self.next_look = clock()
        """When it is time to look for new tables."""

    @property
    def tables(self) -> tuple[TableName, ...]:
        """All captured tables."""
        return (*(name for name in self.named if name not in self.lost), *self.found)

    @property
    def patterns(self) -> bool:
        """Whether there are any patterns."""
        return bool(self._selections)

    @property
    def report(self) -> TablesFound:
        """The selection as a report to the engine."""
        return TablesFound(
            tuple(FoundTable.of(schema) for schema in self.found.values()),
            {name: Failed.of(error, stops=False) for name, error in self.left_out.items()},
            {name: Failed.of(error, stops=False) for name, error in self.lost.items()},
        )

    @property
    def due(self) -> bool:
        """Whether it is time to look for new tables, and at lost ones."""
        return bool(self._selections or self.lost) and self._clock() >= self.next_look

    def matches(self, table: TableName) -> bool:
        """Whether the table matches a pattern, whether or not it exists."""
        return any(chosen([table], patterns) for patterns in self._selections)

    def all(self, recorded: Collection[TableName] = ()) -> Mapping[TableName, TableSchema]:
        """
        Select the tables again, and return their schemas; the source will capture them.

        `recorded` are the tables that the log knows: they were captured before.
        """
        self._looked()
        matched = list(matching(self._source, self.named, self._selections))
        self._gone |= {name: _gone(name) for name in self.found}
        self.left_out = self._still_gone(matched)
        # Before anything is raised: otherwise the error would be attributed to a dropped table.
        self.found = {name: each for name, each in self.found.items() if name in matched}
        if self._selections and not (self.named or matched):
            self.found = {}
            return {}
        spared = [*matched, *(name for name in self.named if name in recorded)]
        refused, others = blamed(self._source.check([*self.named, *matched]), spared)
        if not any(isinstance(problem, SourceUnreachable) for problem in others):
            self._leave_out(refused)
        if others:
            raise others[0]
        wanted = [name for name in (*self.named, *matched) if name not in refused]
        described, more = describe(self._source, wanted, spared) if wanted else ({}, {})
        self._leave_out({**refused, **more})
        self.found = {name: described[name] for name in matched if name in described}
        return described

    def _leave_out(self, refused: Mapping[TableName, HeadraceError]) -> None:
        self.lost = {name: each for name, each in refused.items() if name in self.named}
        self.left_out |= {name: each for name, each in refused.items() if name not in self.named}

    def look(self) -> list[TableName]:
        """
        Return tables that can be captured and are not captured yet.

        Raises `Reopening` if a captured table no longer exists, or a lost one can be captured
        again.
        """
        self._looked()
        matched = matching(self._source, self.named, self._selections)
        if gone := [name for name in self.found if name not in matched]:
            raise Reopening("The table no longer exists", table=gone[0])
        new = [name for name in matched if name not in self.found]
        asked = [*new, *self.lost]
        refused, others = blamed(self._source.check(asked) if asked else (), asked)
        if any(isinstance(problem, SourceUnreachable) for problem in others):
            return []
        if back := [name for name in self.lost if name not in refused]:
            raise Reopening("The table can be captured again", table=back[0])
        self.lost = {name: refused.pop(name) for name in self.lost}
        self.left_out = {**self._still_gone(matched), **refused}
        return [name for name in new if name not in refused]

    def take(self, table: TableName) -> bool:
        """Capture one more table; False if the source has to be opened again for that."""
        try:
            schema = cast(Lists, self._source).add(table)
        except SourceUnreachable:
            raise
        except HeadraceError as error:
            self.left_out[table] = error
            return True
        if schema is None:
            return False
        self.left_out.pop(table, None)
        self.found[table] = schema
        return True

    def lost_one(self, recorded: Collection[TableName] = ()) -> bool:
        """Whether a captured table no longer can be, which may be the cause of an error."""
        spared = [name for name in self.tables if name in recorded and name in self.named]
        try:
            there = matching(self._source, self.named, self._selections)
            refused, _ = blamed(self._source.check(spared) if spared else (), spared)
        except HeadraceError:
            return False  # then the original error is the one to report
        return bool(refused) or any(name not in there for name in self.found)

    def _still_gone(self, there: Iterable[TableName]) -> dict[TableName, HeadraceError]:
        for name in there:
            self._gone.pop(name, None)
        return dict(self._gone)

    def _looked(self) -> None:
        self.next_look = self._clock() + LOOK_SECONDS


def _gone(table: TableName) -> TableRefused:
    return TableRefused(
        "The table no longer exists; rows already delivered stay as they are",
        table=table,
        remedy="No action is needed. If the table is created again, it is copied again.",
    )
