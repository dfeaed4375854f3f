"""
The definition of a pipeline: tables of a source, a target, and the steps in between.

All filters apply first, to the columns of the source table. A row passes if all filters are true.
Then the transforms apply, in order. With several tables, the same filters and transforms apply to
each of them; tables that need different steps need separate pipelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from headrace.capture.messages import Retries
from headrace.capture.table_selection import is_pattern
from headrace.changelog.schema import TableSchema
from headrace.config.units import duration
from headrace.errors import BadTransform, CannotExpire, HeadraceError, WrongValue
from headrace.pipeline.check_steps import check_steps, check_unsent, scope_after, unknown
from headrace.pipeline.steps import Derive, Expression, Filter, Transform
from headrace.storage.locations import bucket_of, elsewhere
from headrace.storage.records import RecordStorage
from headrace.targets.target import ListsRows

if TYPE_CHECKING:
    from headrace.capture.source import Recordable
    from headrace.targets.target import Target


Mode: TypeAlias = Literal["baseline_then_changes", "baseline", "changes"]
MODES: tuple[Mode, ...] = ("baseline_then_changes", "baseline", "changes")


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """
    Rows that cannot be computed are parked, and the other rows continue (S2, R30).

    Later changes of such a row are parked, too, in order. Above these limits the pipeline
    stops: then the cause is probably a wrong expression, not a few bad rows.
    """

    max_per_batch: int = 20
    max_keys: int = 1_000
    warn_keys: int | None = None
    """Held keys from which a status has a notice; None for 80 % of `max_keys`."""

    keep: str | float = "30d"
    """How long those that ended stay listed, in seconds or as `30d`; at least an hour."""

    store: str | RecordStorage = "local"
    """
    Where they are: `local`, next to the log; `memory`, lost when the process ends, only for targets
    that are loaded again at every start; `s3://bucket/prefix`; or a store of another package.
    """

    def __post_init__(self) -> None:
        seconds = duration(self.keep) if isinstance(self.keep, str) else float(self.keep)
        object.__setattr__(self, "keep", seconds)
        if seconds < 3_600:
            raise WrongValue("DeadLetters(keep=) must be at least an hour", given=self.keep)
        if isinstance(self.store, str):
            if elsewhere(self.store):
                bucket_of(self.store)
            elif self.store not in ("local", "memory"):
                raise WrongValue(
                    "The store of dead letters is not known",
                    remedy="Use local, memory or s3://bucket/prefix.",
                    store=self.store,
                )
        elif not isinstance(self.store, RecordStorage):
            raise WrongValue(
                "The store of dead letters has not what a store needs",
                remedy="Give it what headrace.storage.records.RecordStorage describes.",
                store=type(self.store).__name__,
            )

    @property
    def keep_seconds(self) -> float:
        """`keep` in seconds."""
        return float(self.keep)

    @property
    def warns_from(self) -> int:
        """The number of held keys from which a status has a notice."""
        if self.warn_keys is not None:
            return self.warn_keys
        return max(1, self.max_keys * 4 // 5)

    @property
    def volatile(self) -> bool:
        """Whether they are lost when the process ends."""
        return self.store == "memory" if isinstance(self.store, str) else self.store.volatile


OnError: TypeAlias = "DeadLetters | Literal['stop']"

OnSchemaChange: TypeAlias = Literal["continue", "rebaseline", "stop"]
"""What a pipeline does when the columns of one of its tables change (R23b)."""

ON_SCHEMA_CHANGE: tuple[OnSchemaChange, ...] = ("continue", "rebaseline", "stop")

OnFailure: TypeAlias = Literal["isolate", "stop_source", "stop_all"]
"""Which pipelines stop when one has failed: only this one, those of its source, or all."""

ON_FAILURE: tuple[OnFailure, ...] = ("isolate", "stop_source", "stop_all")

LagPolicy: TypeAlias = Literal["block", "error", "release"]
LAG_POLICIES: tuple[LagPolicy, ...] = ("block", "error", "release")


@dataclass(frozen=True, slots=True)
class LagLimit:
    """
    How far a pipeline may lag behind the change log, and what happens beyond that (R29).

    With `block`, nothing: the log keeps the changes, up to its own limits. With `error` the
    pipeline fails until it is resumed. With `release` it is released from its source, and its
    tables are copied again.
    """

    max_bytes: int | None = None
    """The size of the changes in the log that are not applied yet, as compressed there."""

    max_changes: int | None = None
    max_age: float | None = None
    """Seconds since the oldest of them was committed."""

    policy: LagPolicy = "block"

    def __post_init__(self) -> None:
        limits = (self.max_bytes, self.max_changes, self.max_age)
        if self.policy not in LAG_POLICIES:
            raise WrongValue(
                "The policy of a lag limit is not known",
                remedy=f"Use one of {', '.join(LAG_POLICIES)}.",
                policy=self.policy,
            )
        if any(limit is not None and limit <= 0 for limit in limits):
            raise WrongValue(
                "A lag limit must be greater than 0", remedy="Leave it out for no limit."
            )
        if self.policy != "block" and all(limit is None for limit in limits):
            raise WrongValue(
                "A lag limit without an amount never acts",
                remedy="Add max_bytes, max_changes or max_age.",
                policy=self.policy,
            )


@dataclass(frozen=True, slots=True)
class TTL:
    """
    When rows expire: a target does not show a row whose time in the column `field` has passed.

    `field` is a column of the result, after all transforms: a timestamp, a date, or text as in
    RFC 3339. With `expression`, the column is added to the result and computed by it:
    `TTL("expires_at", "created_at + INTERVAL 7 DAYS")`. A row without a time never expires.
    """

    field: str
    expression: Expression | None = None

    scan: str | float = "1m"
    """How often rows are looked for that have expired, in seconds or as `1m`; at least 1 s."""

    def __post_init__(self) -> None:
        seconds = duration(self.scan) if isinstance(self.scan, str) else float(self.scan)
        object.__setattr__(self, "scan", seconds)
        if not seconds >= 1:
            raise WrongValue("TTL(scan=) must be at least a second", given=self.scan)
        if not self.field:
            raise WrongValue("TTL needs the name of a column", remedy='TTL("expires_at").')

    @property
    def scan_seconds(self) -> float:
        """`scan` in seconds."""
        return float(self.scan)

    def check(self, result: TableSchema) -> None:
        """Raise an error if rows of a result with these columns cannot expire."""
        if self.field not in result.names:
            raise unknown(self.field, result.names, "ttl")
        if (type := result.column(self.field).type).kind not in _TIMES:
            raise CannotExpire(
                f"The column {self.field} of ttl has no times",
                remedy="Use a column with timestamps, dates, or text as in RFC 3339; or give ttl an"
                " expression that makes a timestamp.",
                table=result.table,
                column=self.field,
                type=str(type),
            )
        if not result.key:
            raise CannotExpire(
                "Rows of a table without a key cannot expire: nothing says which one to delete",
                remedy="Declare a primary key at the source, or leave ttl out.",
                table=result.table,
            )


_TIMES = frozenset({"timestamp", "timestamptz", "date", "text"})
"""The kinds of columns that have times."""


@dataclass(frozen=True, eq=False, init=False)
class Pipeline:
    """Keeps tables of a source in a target, filtered and transformed."""

    source: Recordable
    tables: tuple[str, ...]
    """The tables that are named."""

    patterns: tuple[str, ...]
    """`public.*`, `!public.audit_*`: matching tables are included, existing and new ones."""

    target: Target
    name: str | None
    """The pipeline's id; if None, the engine uses the table's name."""

    mode: Mode
    filters: tuple[Filter, ...]
    transforms: tuple[Transform, ...]
    on_error: OnError
    on_schema_change: OnSchemaChange
    """
    `continue`: continue with the new columns, and load the table again from the log if the target
    needs that. `rebaseline`: copy the table from the source again. `stop`: stop until resumed.
    In all cases, rows that were altered without a change message are copied again.
    """

    on_failure: OnFailure
    """
    Which pipelines stop when this one has failed: `isolate`, only this one; `stop_source`, all of
    its source; `stop_all`, all of the engine. They stop after their current batch, until resumed.
    """

    retry: Retries | None
    """How it is tried again after a failure; None: as the engine's `retry` says."""

    lag: LagLimit
    """How far it may lag behind, and what happens then."""

    ttl: TTL | None
    """When its rows expire; None: never."""

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
        on_failure: OnFailure = "isolate",
        retry: Retries | None = None,
        lag: LagLimit | None = None,
        ttl: TTL | None = None,
    ) -> None:
        named = [*([] if table is None else [table]), *(tables or ())]
        if not named or len(set(named)) < len(named):
            raise BadTransform(
                "A pipeline needs at least one table, and each table once",
                remedy='Name one table, "orders", or several: tables=["orders", "customers"].',
                tables=len(named),
            )
        patterns = tuple(entry for entry in named if is_pattern(entry))
        if patterns and all(entry.startswith("!") for entry in patterns):
            raise BadTransform(
                "All patterns exclude tables, and none includes any",
                remedy='Add one that includes tables: tables=["public.*", "!public.audit_*"].',
            )
        if target is None:
            raise BadTransform("A pipeline needs a target", remedy="Add one: hr.memory().")
        if mode not in MODES:
            raise BadTransform(
                "The mode of the pipeline is not known",
                remedy=f"Use one of {', '.join(MODES)}.",
                mode=mode,
            )
        if on_schema_change not in ON_SCHEMA_CHANGE:
            raise BadTransform(
                "The value of on_schema_change is not known",
                remedy=f"Use one of {', '.join(ON_SCHEMA_CHANGE)}.",
                on_schema_change=on_schema_change,
            )
        if on_failure not in ON_FAILURE:
            raise BadTransform(
                "The value of on_failure is not known",
                remedy=f"Use one of {', '.join(ON_FAILURE)}.",
                on_failure=on_failure,
            )
        if lag is not None and lag.policy == "release" and mode == "changes":
            raise BadTransform(
                "Pipelines in mode changes cannot be released: they do not load baselines",
                remedy="Use the policy block or error, or another mode.",
            )
        if isinstance(on_error, DeadLetters) and on_error.volatile and target.traits.durable:
            raise BadTransform(
                "Dead letters in memory are lost at a restart, and the target's rows are not",
                remedy="Use another store of dead letters, local or s3://bucket/prefix. Memory is"
                " for targets that are loaded again at every start.",
                target=target.traits.type,
            )
        if ttl is not None:
            if not isinstance(target, ListsRows):
                raise CannotExpire(
                    "Rows of this target cannot expire: it cannot say which of them have",
                    target=target.traits.type,
                )
            if ttl.expression is not None:
                transforms = [*transforms, Derive(((ttl.field, ttl.expression),))]
        # The class is frozen, so set the fields as a frozen dataclass does.
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
            "on_failure": on_failure,
            "retry": retry,
            "lag": lag or LagLimit(),
            "ttl": ttl,
        }.items():
            object.__setattr__(self, field, value)

    @property
    def most_failures(self) -> int:
        """Maximum number of rows of a batch that may fail before the pipeline stops."""
        return 0 if self.on_error == "stop" else self.on_error.max_per_batch

    def check(self, schema: TableSchema) -> list[HeadraceError]:
        """Return all errors of this pipeline for this table that can be found without Spark."""
        steps = self.filters, self.transforms, schema
        errors = [*check_steps(*steps), *check_unsent(*steps)]
        if self.ttl is not None and not errors:
            scope = scope_after(self.transforms, schema)
            if scope.known and self.ttl.field not in scope.names:
                errors.append(unknown(self.ttl.field, scope.names, "ttl"))
        return errors
