"""
What a pipeline is: tables of a source, a target, and what happens between.

All filters apply first, to the table's columns as the source has them; a row passes when
every one of them is true of it. Then the transforms apply, in order. With several tables,
filters and transforms are those of each of them; tables that differ want pipelines of
their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from headrace.capture.table_selection import is_pattern
from headrace.changelog.schema import TableSchema
from headrace.errors import BadTransform, HeadraceError
from headrace.pipeline.check_steps import check_steps, check_unsent
from headrace.pipeline.steps import Filter, Transform

if TYPE_CHECKING:
    from headrace.capture.source import Recordable
    from headrace.targets.target import Target


Mode: TypeAlias = Literal["baseline_then_changes", "baseline", "changes"]
MODES: tuple[Mode, ...] = ("baseline_then_changes", "baseline", "changes")


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """
    Rows that cannot be computed are set aside, and the others go on (S2, R30).

    Later changes of such a row are set aside behind it, in order. Beyond these numbers
    the pipeline stops: then it is not a few bad rows, but a bad expression.
    """

    max_per_batch: int = 20
    max_keys: int = 1_000


OnError: TypeAlias = "DeadLetters | Literal['stop']"

OnSchemaChange: TypeAlias = Literal["continue", "rebaseline", "stop"]
"""What a pipeline does when a table of it gets other columns (R23b)."""

ON_SCHEMA_CHANGE: tuple[OnSchemaChange, ...] = ("continue", "rebaseline", "stop")


@dataclass(frozen=True, eq=False, init=False)
class Pipeline:
    """Tables of a source, kept in a target, filtered and transformed on the way."""

    source: Recordable
    tables: tuple[str, ...]
    """Those that are named."""

    patterns: tuple[str, ...]
    """`public.*`, `!public.audit_*`: tables that match are taken as well, today's and new ones."""

    target: Target
    name: str | None
    """The pipeline's id; None leaves it to the engine, which takes the table's name."""

    mode: Mode
    filters: tuple[Filter, ...]
    transforms: tuple[Transform, ...]
    on_error: OnError
    on_schema_change: OnSchemaChange
    """
    `continue`: go on with the columns as they are, loading the table anew from the log where the
    target needs that; `rebaseline`: copy it from the source again; `stop`: until a person resumes.
    Whatever is asked for, rows that were altered without a change are copied again.
    """

    def __init__(
        self,
        source: Recordable,
        table: str | None = None,
        target: Target | None = None,
        *,
        tables: Sequence[str] | None = None,
        name: str | None = None,
        mode: Mode = "baseline_then_changes",
        filters: Sequence[Filter] = (),
        transforms: Sequence[Transform] = (),
        on_error: OnError | None = None,
        on_schema_change: OnSchemaChange = "continue",
    ) -> None:
        named = [*([] if table is None else [table]), *(tables or ())]
        if not named or len(set(named)) < len(named):
            raise BadTransform(
                "A pipeline takes tables, each once",
                remedy='Give one, "orders", or several: tables=["orders", "customers"].',
                tables=len(named),
            )
        patterns = tuple(entry for entry in named if is_pattern(entry))
        if patterns and all(entry.startswith("!") for entry in patterns):
            raise BadTransform(
                "There is no pattern to take tables away from",
                remedy='Give one: tables=["public.*", "!public.audit_*"].',
            )
        if target is None:
            raise BadTransform("A pipeline needs a target", remedy="Give one: memory().")
        if mode not in MODES:
            raise BadTransform(
                "No such mode of a pipeline", remedy=f"Choose {', '.join(MODES)}.", mode=mode
            )
        if on_schema_change not in ON_SCHEMA_CHANGE:
            raise BadTransform(
                "No such policy for other columns",
                remedy=f"Choose {', '.join(ON_SCHEMA_CHANGE)}.",
                on_schema_change=on_schema_change,
            )
        # Frozen, so set the way a frozen dataclass sets its own.
        for field, value in {
            "source": source,
            "tables": tuple(entry for entry in named if entry not in patterns),
            "patterns": patterns,
            "target": target,
            "name": name,
            "mode": mode,
            "filters": tuple(filters),
            "transforms": tuple(transforms),
            "on_error": DeadLetters() if on_error is None else on_error,
            "on_schema_change": on_schema_change,
        }.items():
            object.__setattr__(self, field, value)

    @property
    def most_failures(self) -> int:
        """Rows of a batch that may fail before the pipeline stops."""
        return 0 if self.on_error == "stop" else self.on_error.max_per_batch

    def check(self, schema: TableSchema) -> list[HeadraceError]:
        """Return everything that is wrong with this pipeline over such a table, without Spark."""
        steps = self.filters, self.transforms, schema
        return [*check_steps(*steps), *check_unsent(*steps)]
