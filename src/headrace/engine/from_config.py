"""
An engine from a configuration.

    tree = load(Path("headrace.conf"), environment=os.environ)
    with configured(tree).engine() as engine:
        engine.await_ready()

`configured` checks what can be checked from the text alone. `EngineConfig.build` builds the parts.
`EngineConfig.check` looks at the databases as a start would, without starting anything. Each of
them reports all errors at once, with file, line and column.

`check_databases` finds errors in a configuration's databases and steps, and where they are written.
`wrong_columns` finds errors in the columns that an in-memory target is configured with.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.config.plugins import Chosen
from headrace.config.schema import (
    Problems,
    Values,
    key_path,
    located,
    prefixed,
    read_section,
    suggestion,
)
from headrace.config.secrets import password_in
from headrace.config.show import EffectiveSetting, as_tree, settings
from headrace.config.text import Node, SourceLocation
from headrace.engine.checks import ErrorCollector, collected_errors, looked_at
from headrace.engine.checks import checked as checked_id
from headrace.engine.config_keys import KEYS
from headrace.errors import (
    BadPart,
    HeadraceError,
    InlineSecret,
    MissingKey,
    NoKey,
    TableError,
    Unused,
    WrongValue,
)
from headrace.pipeline.steps import Transform
from headrace.storage.locations import bucket_of
from headrace.targets.definition import MEMORY

if TYPE_CHECKING:
    from headrace.capture.messages import Retries
    from headrace.capture.source import Recordable
    from headrace.changelog.schema import TableSchema
    from headrace.engine.engine import Engine
    from headrace.pipeline.definition import OnError, Pipeline


# --- the configuration, and its parts -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SparkSection:
    """The options of the Spark session that an engine starts, and of what runs in it."""

    conf: Mapping[str, str]
    ui: bool
    events: bool
    small_batches: str


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """The parts that a configuration names, for one engine: targets hold rows."""

    sources: Mapping[str, Recordable]
    pipelines: tuple[Pipeline, ...]
    records: tuple[tuple[Recordable, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """A configuration whose values are valid; nothing is built or opened yet."""

    service: str
    """Empty if the configuration has none."""

    data: Path
    sources: Mapping[str, Chosen] = field(repr=False)
    pipelines: Mapping[str, Values] = field(repr=False)
    spark: SparkSection = field(repr=False)
    log: Values = field(repr=False)
    shutdown_timeout: float
    retry: Values = field(repr=False)
    reconnect: Values = field(repr=False)
    observers: Mapping[str, Chosen] = field(repr=False)
    server: Values | None = field(repr=False)
    """None for no server."""

    warnings: tuple[HeadraceError, ...]
    """What is allowed but should be changed."""

    tree: Node = field(repr=False)
    """As it was read. It may contain passwords: do not print it."""

    def engine(self, **overrides: Any) -> Engine:
        """Return an engine that is not started; `overrides` are arguments of `Engine`."""
        from headrace.capture.messages import Retries
        from headrace.engine.engine import Engine
        from headrace.runtime.info import LogOptions

        built = self.build()
        given: dict[str, Any] = {
            "data": self.data,
            "records": built.records,
            "spark_conf": self.spark.conf,
            "spark_ui": self.spark.ui,
            "spark_events": self.spark.events,
            "small_batches": self.spark.small_batches,
            "log": LogOptions(**self.log),
            "shutdown_timeout": self.shutdown_timeout,
            "retry": Retries(**self.retry),
            "reconnect": self.reconnects() if self._own_reconnects else Retries(**self.reconnect),
        }
        engine = Engine(*built.pipelines, **{**given, **overrides})
        with collected_errors() as errors:
            for name, chosen in self.observers.items():
                _observe(engine, name, chosen, errors)
        return engine

    def reconnects(self) -> dict[str, Retries]:
        """Return how each source is tried again."""
        return {
            name: _retries(self.reconnect, chosen.values["reconnect"])
            for name, chosen in self.sources.items()
        }

    @property
    def _own_reconnects(self) -> bool:
        return any(chosen.values["reconnect"] is not None for chosen in self.sources.values())

    def build(self) -> BuiltEngine:
        """Build the sources and pipelines, or raise `InvalidConfiguration` with every error."""
        with collected_errors() as errors:
            sources = {name: _made(chosen, name, errors) for name, chosen in self.sources.items()}
            pipelines = [
                _pipeline(name, values, sources, self.retry, errors)
                for name, values in self.pipelines.items()
            ]
        return BuiltEngine(
            sources,
            tuple(each for each in pipelines if each is not None),
            tuple(
                (sources[name], chosen.values["record"])
                for name, chosen in self.sources.items()
                if chosen.values["record"]
            ),
        )

    def check(self) -> None:
        """
        Check every database as a start does before it starts anything; without Spark.

        Raises `InvalidConfiguration` with all errors in sources, tables and steps.
        """
        check_databases(self, self.build())

    def masked(self) -> dict[str, Any]:
        """Return every effective value, including defaults, with secrets masked."""
        return as_tree(self.settings())

    def settings(self) -> tuple[EffectiveSetting, ...]:
        """Return every effective value with its origin; secrets are masked."""
        return tuple(settings(self.tree, KEYS))


def configured(tree: Node) -> EngineConfig:
    """Return the configuration in `tree`, or raise `InvalidConfiguration` with every error."""
    problems = Problems()
    values = read_section(tree, KEYS, "", problems)
    if not isinstance(tree.value, dict):
        problems.raise_all()
    else:
        _check_ids(tree.value, problems)
        _check_references(values, problems)
        _check_storage(values["log"], problems)
        _check_lag_limits(values["pipelines"] or {}, problems)
        _check_pauses(values, problems)
    warnings = _inline_secrets(values, problems) + _idle_sources(values)
    problems.raise_all()
    spark = values["spark"]
    conf = dict(spark["conf"])
    if spark["master"] is not None:
        conf["spark.master"] = spark["master"]
    if values["service"] is not None:
        conf.setdefault("spark.app.name", values["service"])
    return EngineConfig(
        values["service"] or "",
        values["data"],
        values["sources"],
        values["pipelines"],
        SparkSection(conf, spark["ui"], spark["events"], spark["small_batches"]),
        values["log"],
        values["shutdown"]["timeout"],
        values["retry"],
        values["reconnect"],
        values["observers"] or {},
        values["server"],
        tuple(warnings),
        tree,
    )


def _check_ids(given: Mapping[str, Node], problems: Problems) -> None:
    for section in ("sources", "pipelines", "observers"):
        entries = given.get(section)
        if entries is None or not isinstance(entries.value, dict):
            continue
        for name, node in entries.value.items():
            for error in checked_id(name, section[:-1].capitalize()):
                problems.found.append(located(error, node.location))


def _check_references(values: Values, problems: Problems) -> None:
    sources: Mapping[str, Chosen] = values["sources"] or {}
    pipelines: Mapping[str, Values] = values["pipelines"] or {}
    for pipeline in pipelines.values():
        if pipeline.get("source") and pipeline["source"] not in sources:
            problems.add(
                WrongValue,
                pipeline.location_of("source"),
                key_path(pipeline.at, "source"),
                f"is {pipeline['source']!r}, which is not a source in this configuration",
                remedy=suggestion(pipeline["source"], sources, "The sources are"),
            )
    if not sources or pipelines or problems.found:
        return
    if not any(chosen.values["record"] for chosen in sources.values()):
        problems.add(
            MissingKey,
            values.location,
            "pipelines",
            "is missing, and no source has tables to record",
            remedy="Add pipelines.NAME { source = …, tables = […], target { … } }.",
        )


def _check_storage(log: Values, problems: Problems) -> None:
    try:
        if log.get("storage"):
            bucket_of(log["storage"])
    except WrongValue as error:
        problems.found.append(located(error, log.location_of("storage")))


def _check_pauses(values: Values, problems: Problems) -> None:
    sources = [chosen.values.get("reconnect") for chosen in (values["sources"] or {}).values()]
    pipelines = [each.get("retry") for each in (values["pipelines"] or {}).values()]
    for for_all, parts in ((values["reconnect"], sources), (values["retry"], pipelines)):
        for own in (for_all, *(part for part in parts if part is not None)):
            first, longest = (
                own[key] if key in own.locations else for_all.get(key)
                for key in ("first_pause", "longest_pause")
            )
            if first is not None and longest is not None and first > longest:
                problems.add(
                    WrongValue,
                    own.location_of("first_pause"),
                    key_path(own.at, "first_pause"),
                    f"must not be longer than longest_pause, which is {longest:g} s",
                    remedy="Change one of the two.",
                )


def _check_lag_limits(pipelines: Mapping[str, Values], problems: Problems) -> None:
    for pipeline in pipelines.values():
        lag: Values = pipeline.get("lag") or Values("", pipeline.location, {}, {})
        policy, at = lag.get("policy", "block"), key_path(lag.at, "policy")
        if policy == "block":
            continue
        location = lag.location_of("policy")
        if all(lag.get(key) is None for key in ("max_bytes", "max_changes", "max_age")):
            problems.add(
                WrongValue,
                location,
                at,
                f"is {policy}, but there is no limit",
                remedy="Add max_bytes, max_changes or max_age.",
            )
        if policy == "release" and pipeline.get("mode") == "changes":
            problems.add(
                WrongValue,
                location,
                at,
                "is release, but mode changes does not copy tables",
                remedy="Use block or error, or another mode.",
            )


def _inline_secrets(values: Values, problems: Problems) -> list[HeadraceError]:
    """Return warnings about passwords in plain text, or add them to the problems."""
    found: list[HeadraceError] = []
    for chosen in (values["sources"] or {}).values():
        location = chosen.values.location_of("connection")
        text = chosen.values.get("connection")
        # A value from an environment variable is not written in a file.
        if isinstance(text, str) and not _from_environment(location) and password_in(text):
            at = key_path(chosen.values.at, "connection")
            sentence = prefixed(location, f"{at} contains a password in plain text")
            found.append(InlineSecret(sentence, key=at, place=str(location)))
    if values["secrets"].get("inline") == "refuse":
        problems.found += found
        return []
    return found


def _from_environment(location: SourceLocation) -> bool:
    return location.origin.startswith("environment variable")


def _idle_sources(values: Values) -> list[HeadraceError]:
    taken = {pipeline.get("source") for pipeline in (values["pipelines"] or {}).values()}
    return [
        Unused(
            prefixed(chosen.values.location, f"{chosen.values.at} is not used by any pipeline"),
            key=chosen.values.at,
            remedy="Add a pipeline or tables to record, or remove the source.",
        )
        for name, chosen in (values["sources"] or {}).items()
        if name not in taken and not chosen.values.get("record")
    ]


def _made(chosen: Chosen, name: str, errors: ErrorCollector) -> Any:
    """Return the part, or None if it could not be built; the reason is in `errors` then."""
    try:
        return chosen.build(name)
    except HeadraceError as error:
        errors.found.append(located(error, chosen.values.location))
    except Exception as error:  # noqa: BLE001  # A class of another package may raise anything.
        sentence = prefixed(chosen.values.location, f"{chosen.values.at} could not be created")
        # Not its text, which may contain a secret: say where it was raised instead.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raised = f"{Path(frame.filename).name}:{frame.lineno}"
        facts = {"type": chosen.type, "error": type(error).__name__, "raised": raised}
        errors.found.append(BadPart(sentence, place=str(chosen.values.location), **facts))
    return None


def _observe(engine: Engine, name: str, chosen: Chosen, errors: ErrorCollector) -> None:
    if (observer := _made(chosen, name, errors)) is not None:
        try:
            engine.observe(observer, name)
        except WrongValue as error:
            errors.found.append(located(error, chosen.values.location))


def _pipeline(
    name: str,
    values: Values,
    sources: Mapping[str, Recordable],
    retry: Values,
    errors: ErrorCollector,
) -> Pipeline | None:
    from headrace.pipeline.definition import TTL, LagLimit, Pipeline

    before = len(errors.found)
    filters = [_made(chosen, name, errors) for chosen in values["filters"]]
    transforms = [_made(chosen, name, errors) for chosen in values["transforms"]]
    target = _made(values["target"], name, errors)
    store = _made(values["error_handling"]["dead_letter"]["store"], name, errors)
    source = sources[values["source"]]
    if len(errors.found) > before or source is None:
        return None
    try:
        return Pipeline(
            source,
            tables=values["tables"],
            target=target,
            name=name,
            mode=values["mode"],
            filters=filters,
            transforms=transforms,
            on_error=_on_error(values["error_handling"], store),
            on_schema_change=values["on_schema_change"],
            on_failure=values["on_failure"],
            retry=None if values["retry"] is None else _retries(retry, values["retry"]),
            lag=LagLimit(**values["lag"]),
            ttl=None if values["ttl"] is None else TTL(**values["ttl"]),
        )
    except HeadraceError as error:
        errors.found.append(located(error, values.location_of("tables")))
        return None


def _retries(for_all: Values, own: Values | None) -> Retries:
    """Return the retries of one part; what it does not set is as for all."""
    from headrace.capture.messages import Retries

    given = {} if own is None else {key: own[key] for key in own.locations}
    return Retries(**{**for_all, **given})


def _on_error(values: Values, store: Any) -> OnError:
    from headrace.pipeline.definition import DeadLetters

    if values["on_persistent_failure"] == "stop":
        return "stop"
    dead_letters = values["dead_letter"]
    return DeadLetters(
        max_per_batch=dead_letters["max_per_batch"],
        max_keys=dead_letters["max_keys"],
        warn_keys=dead_letters["warn_keys"],
        keep=dead_letters["keep"],
        store=store,
    )


# --- columns of in-memory targets -----------------------------------------------------------------


def wrong_columns(
    target: Chosen, transforms: Sequence[Transform], schema: TableSchema
) -> list[HeadraceError]:
    """Return the errors that a start would raise for a target of such a table, as far as known."""
    from headrace.pipeline.check_steps import scope_after, unknown

    if target.part is not MEMORY:
        return []
    scope = scope_after(transforms, schema)
    errors = [located(error, target.values.location) for error in _wrong_key(target, scope.key)]
    if scope.known:
        errors += [
            located(unknown(name, scope.names, what), location)
            for what, location, names in _named(target)
            for name in names
            if name not in scope.names
        ]
    return [_of_table(error, schema.table) for error in errors]


def _wrong_key(target: Chosen, key: frozenset[str]) -> Iterator[HeadraceError]:
    given = target.values["key_fields"]
    if key and given and set(given) != key:
        yield TableError(
            "The table already has a primary key", remedy="Remove key_fields.", key=sorted(key)
        )
    if not (key or given):
        yield NoKey(
            "The table has no key",
            remedy="Add a primary key at the source, or set key_fields to unique, not-null"
            " columns.",
        )


def _named(target: Chosen) -> Iterator[tuple[str, SourceLocation, Sequence[str]]]:
    """Yield each setting that names columns: what it is, its location, and the columns."""
    values = target.values
    for key in ("key_fields", "lookup_fields"):
        yield key, values.location_of(key), values[key]
    for name, index in values["indexes"].items():
        yield f"Index {name}", index.location_of("fields"), index["fields"]


def _of_table(error: HeadraceError, table: str) -> HeadraceError:
    error.facts.setdefault("table", table)
    return error


# --- databases and steps --------------------------------------------------------------------------

_STEP = re.compile(r"(Filter|Transform) (\d+)")
"""How errors name a step; steps are counted from 1."""


def check_databases(configured: EngineConfig, built: BuiltEngine) -> None:
    """Raise `InvalidConfiguration` with all errors that a start would raise before Spark."""
    from headrace.engine.tables import TakenTables

    taken = TakenTables(built.pipelines, built.records, [])
    schemas: dict[str, TableSchema] = {}
    with collected_errors() as errors:
        for name, source in built.sources.items():
            found, wrong = looked_at(source, taken.named(name), taken.selections(name))
            schemas |= {f"{name}/{table}": schema for table, schema in found.items()}
            errors.found += [
                located(error, _location_of(error, name, configured)) for error in wrong
            ]
        for pipeline in built.pipelines:
            errors.found += _wrong_steps(pipeline, schemas, configured)


def _wrong_steps(
    pipeline: Pipeline, schemas: Mapping[str, TableSchema], configured: EngineConfig
) -> list[HeadraceError]:
    assert pipeline.name is not None
    values = configured.pipelines[pipeline.name]
    wrong: list[HeadraceError] = []
    for table in pipeline.tables:
        if (schema := schemas.get(f"{pipeline.source.name}/{table}")) is None:
            continue
        steps = [located(each, _location_of_step(each, values)) for each in pipeline.check(schema)]
        # The target's columns are only known once the steps are valid.
        wrong += steps or wrong_columns(values["target"], pipeline.transforms, schema)
    return wrong


def _location_of_step(error: HeadraceError, values: Values) -> SourceLocation:
    if (step := _STEP.match(error.message)) is None:
        return values.location
    steps: tuple[Chosen, ...] = values["filters" if step[1] == "Filter" else "transforms"]
    number = int(step[2]) - 1
    return steps[number].values.location if number < len(steps) else values.location


def _location_of(error: HeadraceError, source: str, configured: EngineConfig) -> SourceLocation:
    """Return the location of the table that an error names, or else of its source."""
    table = error.facts.get("table")
    for name, values in configured.pipelines.items():
        if values["source"] == source and table in values["tables"]:
            entry = _entry(configured.tree, "pipelines", name, "tables")
            return _element(entry, values["tables"].index(table), values.location_of("tables"))
    chosen = configured.sources[source]
    if table in chosen.values["record"]:
        return chosen.values.location_of("record")
    return chosen.values.location


def _entry(tree: Node, *path: str) -> Node | None:
    found: Node | None = tree
    for key in path:
        if found is None or not isinstance(found.value, dict):
            return None
        found = found.value.get(key)
    return found


def _element(entry: Node | None, number: int, otherwise: SourceLocation) -> SourceLocation:
    if entry is not None and isinstance(entry.value, list) and number < len(entry.value):
        return entry.value[number].location
    return otherwise
