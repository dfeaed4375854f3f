"""
The selection of tables that are captured: those that were named, and those that patterns match.

A table that was named and cannot be captured is an error. One that merely matches a pattern
is left out, and reported: it never keeps the others from being captured, and nothing is
done to it (R23a). Tables that come later are found by looking again and again.

A pattern is a name that is not written out: `public.*`, and without some, `!public.audit_*`. An
entry with `*` (any letters) or `?` (one letter) stands for every table that it matches, today's
and those to come. One that begins with `!` takes names away again, wherever in the list it stands.
Both speak of a schema and a table; without a schema, `public` is meant. As in SQL, letters are
lower case except within quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from headrace.capture.messages import Failed, FoundTable, TablesFound
from headrace.capture.source import Lists, Recordable
from headrace.changelog.schema import TableName, TableSchema
from headrace.errors import HeadraceError, SourceRefused, SourceUnreachable, TableRefused

# --- patterns -------------------------------------------------------------------------------------

_PART = re.compile(r'"((?:[^"]|"")*)"|([^."]+)')


def is_pattern(entry: str) -> bool:
    """Whether an entry stands for other names than its own."""
    return entry.startswith("!") or "*" in entry or "?" in entry


def place_of(name: str) -> tuple[str, str]:
    """Return the schema and the table that a name or a pattern speaks of."""
    parts = [
        (quoted.replace('""', '"') if quoted else plain.lower())
        for quoted, plain in _PART.findall(name)
    ]
    # A name that is none is for its source to refuse.
    return ("public", parts[-1] if parts else name) if len(parts) < 2 else (parts[-2], parts[-1])


def matches(name: str, pattern: str) -> bool:
    """Whether `pattern`, without a `!`, stands for the table called `name`."""
    return all(
        _expression(wanted).fullmatch(found)
        for wanted, found in zip(place_of(pattern), place_of(name), strict=True)
    )


def chosen(names: Iterable[str], patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the names that a pattern stands for and no `!` takes away, in their order."""
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
    return re.compile("".join(signs.get(letter) or re.escape(letter) for letter in wanted), re.S)


# --- the selection --------------------------------------------------------------------------------

LOOK_SECONDS = 10.0
"""The longest that a new table goes unnoticed."""


def matching(
    source: Recordable, named: Iterable[TableName], selections: Iterable[Sequence[str]]
) -> tuple[TableName, ...]:
    """Return the tables there are now that a selection chooses, without those named anyway."""
    if not (selections := list(selections)):
        return ()
    if not source.traits.lists:
        raise SourceRefused(
            "Patterns cannot be used: this kind of source cannot list its tables",
            source=source.name,
            remedy="Name the tables one by one.",
        )
    # However it is written: a table has one name in the log.
    taken = {place_of(name) for name in named}
    there = [name for name in cast(Lists, source).tables() if place_of(name) not in taken]
    wanted = {name for patterns in selections for name in chosen(there, patterns)}
    return tuple(name for name in there if name in wanted)


def blamed(
    problems: Iterable[HeadraceError], matched: Iterable[TableName]
) -> tuple[dict[TableName, HeadraceError], list[HeadraceError]]:
    """Return what speaks against tables that merely match, by table, and all other problems."""
    candidates = frozenset(matched)
    left_out: dict[TableName, HeadraceError] = {}
    others: list[HeadraceError] = []
    for problem in problems:
        named = [problem.facts.get("table"), problem.facts.get("other")]
        found = next((str(name) for name in named if name in candidates), None)
        if found is None:
            others.append(problem)
        else:
            left_out.setdefault(found, problem)
    return left_out, others


def describe(
    source: Recordable, tables: Sequence[TableName], matched: Iterable[TableName]
) -> tuple[Mapping[TableName, TableSchema], dict[TableName, HeadraceError]]:
    """Return the schemas, and what speaks against tables that merely match by now."""
    left_out: dict[TableName, HeadraceError] = {}
    while True:
        try:
            return source.describe([name for name in tables if name not in left_out]), left_out
        except HeadraceError as error:
            # Something happened to a table since it was listed and checked.
            refused, others = blamed([error], [name for name in matched if name not in left_out])
            if others:
                raise
            left_out |= refused


class TableSelection:
    """The tables of one recorder. For its thread alone."""

    def __init__(
        self,
        source: Recordable,
        named: Sequence[TableName],
        selections: Sequence[Sequence[str]],
        clock: Callable[[], float],
    ) -> None:
        self.named = tuple(named)
        self.found: dict[TableName, TableSchema] = {}
        """The tables that are captured because a pattern stands for them."""

        self.left_out: dict[TableName, HeadraceError] = {}
        self._gone: dict[TableName, HeadraceError] = {}
        """Of the tables left out, those that were captured before."""

        self._source = source
        self._selections = selections
        self._clock = clock
        self.next_look = clock()
        """When it is time to look for new tables."""

    @property
    def tables(self) -> tuple[TableName, ...]:
        """All that are captured."""
        return (*self.named, *self.found)

    @property
    def patterns(self) -> bool:
        """Whether there are any."""
        return bool(self._selections)

    @property
    def report(self) -> TablesFound:
        """What the engine should know of it."""
        return TablesFound(
            tuple(FoundTable.of(schema) for schema in self.found.values()),
            {name: Failed.of(error, stops=False) for name, error in self.left_out.items()},
        )

    @property
    def due(self) -> bool:
        """Whether it is time to look for new tables."""
        return bool(self._selections) and self._clock() >= self.next_look

    def matches(self, table: TableName) -> bool:
        """Whether a pattern stands for the table, whether or not it is there."""
        return any(chosen([table], patterns) for patterns in self._selections)

    def all(self) -> Mapping[TableName, TableSchema]:
        """Choose anew, and return the schemas; the source will capture these tables."""
        self._looked()
        matched = list(matching(self._source, self.named, self._selections))
        self._gone |= {name: _gone(name) for name in self.found}
        self.left_out = self._still_gone(matched)
        # Before anything is raised, or it would be taken for an error that comes of one gone.
        self.found = {name: each for name, each in self.found.items() if name in matched}
        if self._selections and not (self.named or matched):
            self.found = {}
            return {}
        refused, others = blamed(self._source.check([*self.named, *matched]), matched)
        if others:
            raise others[0]
        wanted = [name for name in (*self.named, *matched) if name not in refused]
        described, more = describe(self._source, wanted, matched)
        self.left_out |= {**refused, **more}
        self.found = {name: described[name] for name in matched if name in described}
        return described

    def look(self) -> list[TableName]:
        """
        Return tables that could be captured, and are not yet.

        Raises `SourceUnreachable` where one that was found is gone: reading begins anew.
        """
        self._looked()
        matched = matching(self._source, self.named, self._selections)
        if gone := [name for name in self.found if name not in matched]:
            raise SourceUnreachable("The table no longer exists", table=gone[0])
        new = [name for name in matched if name not in self.found]
        refused, others = blamed(self._source.check(new) if new else (), new)
        if any(isinstance(problem, SourceUnreachable) for problem in others):
            return []
        self.left_out = {**self._still_gone(matched), **refused}
        return [name for name in new if name not in refused]

    def take(self, table: TableName) -> bool:
        """Capture one more table; False where the source has to be opened anew for that."""
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

    def lost_one(self) -> bool:
        """Whether a table that was found is not there any more, and an error may come of that."""
        if not self.found:
            return False
        try:
            there = matching(self._source, self.named, self._selections)
        except HeadraceError:
            return False  # then the error itself is what there is to tell
        return any(name not in there for name in self.found)

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
