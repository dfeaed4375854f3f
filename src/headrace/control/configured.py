"""
An engine from a configuration.

    tree = load(Path("headrace.conf"), environment=os.environ)
    with configured(tree).engine() as engine:
        engine.await_ready()

`configured` checks all that can be known from the text alone; `Configured.build` makes the
parts, `Configured.check` looks at the databases as a start would, without starting anything.
Each of them tells everything it finds at once, with file, line and column.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.config.checking import Problems, Values, below, located, meant, prefixed
from headrace.config.dumping import Setting, as_tree, settings
from headrace.config.keys import read_section
from headrace.config.masking import password_in
from headrace.config.parts import Chosen
from headrace.config.tree import Node, Place
from headrace.control.configured_keys import KEYS
from headrace.control.gathering import Gathering, gathered
from headrace.control.names import checked as checked_id
from headrace.errors import (
    BadPart,
    HeadraceError,
    InlineSecret,
    MissingKey,
    Unused,
    WrongValue,
)
from headrace.storage.places import bucket_of

if TYPE_CHECKING:
    from headrace.capture.source import Recordable
    from headrace.control.engine import Engine
    from headrace.pipeline.definition import OnError, Pipeline


@dataclass(frozen=True, slots=True)
class SparkConfigured:
    """What is asked of the Spark that an engine starts."""

    conf: Mapping[str, str]
    ui: bool
    events: bool


@dataclass(frozen=True, slots=True)
class Built:
    """The parts of a configuration, made: for one engine, because targets hold rows."""

    sources: Mapping[str, Recordable]
    pipelines: tuple[Pipeline, ...]
    records: tuple[tuple[Recordable, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Configured:
    """A configuration whose values are right; nothing is made or touched yet."""

    service: str
    """Empty where it has no name."""

    data: Path
    sources: Mapping[str, Chosen] = field(repr=False)
    pipelines: Mapping[str, Values] = field(repr=False)
    spark: SparkConfigured = field(repr=False)
    log: Values = field(repr=False)
    warnings: tuple[HeadraceError, ...]
    """What is allowed, and should not be so."""

    tree: Node = field(repr=False)
    """As it was read; it may hold passwords, and is not for printing."""

    def engine(self, **overrides: Any) -> Engine:
        """Return an engine that was not started; `overrides` are arguments of `Engine`."""
        from headrace.control.engine import Engine
        from headrace.control.keeping import LogOptions

        built = self.build()
        given: dict[str, Any] = {
            "data": self.data,
            "records": built.records,
            "spark_conf": self.spark.conf,
            "spark_ui": self.spark.ui,
            "spark_events": self.spark.events,
            "log": LogOptions(**self.log),
        }
        return Engine(*built.pipelines, **{**given, **overrides})

    def build(self) -> Built:
        """Make the sources and pipelines, or raise `InvalidConfiguration` with every error."""
        with gathered() as errors:
            sources = {name: _made(chosen, name, errors) for name, chosen in self.sources.items()}
            pipelines = [
                _pipeline(name, values, sources, errors) for name, values in self.pipelines.items()
            ]
        return Built(
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
        Look at every database as a start does, before it starts anything; without Spark.

        Raises `InvalidConfiguration` with all that is wrong with sources, tables and steps.
        """
        from headrace.control.configured_checks import check_databases

        check_databases(self, self.build())

    def masked(self) -> dict[str, Any]:
        """Return every value in effect, defaults too, as it may be shown."""
        return as_tree(self.settings())

    def settings(self) -> tuple[Setting, ...]:
        """Return every value in effect, with where it came from, as it may be shown."""
        return tuple(settings(self.tree, KEYS))


def configured(tree: Node) -> Configured:
    """Return the configuration that `tree` is, or raise `InvalidConfiguration` with every error."""
    problems = Problems()
    values = read_section(tree, KEYS, "", problems)
    if not isinstance(tree.value, dict):
        problems.raise_all()
    else:
        _check_ids(tree.value, problems)
        _check_references(values, problems)
        _check_storage(values["log"], problems)
    warnings = _inline_secrets(values, problems) + _idle_sources(values)
    problems.raise_all()
    spark = values["spark"]
    conf = dict(spark["conf"])
    if spark["master"] is not None:
        conf["spark.master"] = spark["master"]
    if values["service"] is not None:
        conf.setdefault("spark.app.name", values["service"])
    return Configured(
        values["service"] or "",
        values["data"],
        values["sources"],
        values["pipelines"],
        SparkConfigured(conf, spark["ui"], spark["events"]),
        values["log"],
        tuple(warnings),
        tree,
    )


def _check_ids(given: Mapping[str, Node], problems: Problems) -> None:
    for section in ("sources", "pipelines"):
        entries = given.get(section)
        if entries is None or not isinstance(entries.value, dict):
            continue
        for name, node in entries.value.items():
            for error in checked_id(name, section[:-1].capitalize()):
                problems.found.append(located(error, node.place))


def _check_references(values: Values, problems: Problems) -> None:
    sources: Mapping[str, Chosen] = values["sources"] or {}
    pipelines: Mapping[str, Values] = values["pipelines"] or {}
    for pipeline in pipelines.values():
        if pipeline.get("source") and pipeline["source"] not in sources:
            problems.add(
                WrongValue,
                pipeline.place_of("source"),
                below(pipeline.at, "source"),
                "is no source of this configuration",
                remedy=meant(pipeline["source"], sources, "There are"),
            )
    if not sources or pipelines or problems.found:
        return
    if not any(chosen.values["record"] for chosen in sources.values()):
        problems.add(
            MissingKey,
            values.place,
            "pipelines",
            "is missing, and no source records a table",
            remedy="Add pipelines.NAME { source = …, tables = […], target { … } }.",
        )


def _check_storage(log: Values, problems: Problems) -> None:
    try:
        if log.get("storage"):
            bucket_of(log["storage"])
    except WrongValue as error:
        problems.found.append(located(error, log.place_of("storage")))


def _inline_secrets(values: Values, problems: Problems) -> list[HeadraceError]:
    """Return warnings about passwords that are written out, or add them to the problems."""
    found: list[HeadraceError] = []
    for chosen in (values["sources"] or {}).values():
        place = chosen.values.place_of("connection")
        text = chosen.values.get("connection")
        # What only stands in the environment is written out nowhere.
        if isinstance(text, str) and not _from_environment(place) and password_in(text):
            at = below(chosen.values.at, "connection")
            sentence = prefixed(place, f"{at} has a password written out")
            found.append(InlineSecret(sentence, key=at, place=str(place)))
    if values["secrets"].get("inline") == "refuse":
        problems.found += found
        return []
    return found


def _from_environment(place: Place) -> bool:
    return place.origin.startswith("environment variable")


def _idle_sources(values: Values) -> list[HeadraceError]:
    taken = {pipeline.get("source") for pipeline in (values["pipelines"] or {}).values()}
    return [
        Unused(
            prefixed(chosen.values.place, f"{chosen.values.at} is used by no pipeline"),
            key=chosen.values.at,
            remedy="Give it a pipeline, or tables to record; or take it out.",
        )
        for name, chosen in (values["sources"] or {}).items()
        if name not in taken and not chosen.values.get("record")
    ]


def _made(chosen: Chosen, name: str, errors: Gathering) -> Any:
    """Return a part that was made, or None where it could not be: then `errors` say why."""
    try:
        return chosen.build(name)
    except HeadraceError as error:
        errors.found.append(located(error, chosen.values.place))
    except Exception as error:  # noqa: BLE001  # Somebody else's class may raise anything.
        sentence = prefixed(chosen.values.place, f"{chosen.values.at} cannot be made")
        # Not its text, which may hold a value: where it was raised says more, and no secret.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raised = f"{Path(frame.filename).name}:{frame.lineno}"
        facts = {"type": chosen.type, "error": type(error).__name__, "raised": raised}
        errors.found.append(BadPart(sentence, place=str(chosen.values.place), **facts))
    return None


def _pipeline(
    name: str, values: Values, sources: Mapping[str, Recordable], errors: Gathering
) -> Pipeline | None:
    from headrace.pipeline.definition import Pipeline

    before = len(errors.found)
    filters = [_made(chosen, name, errors) for chosen in values["filters"]]
    transforms = [_made(chosen, name, errors) for chosen in values["transforms"]]
    target = _made(values["target"], name, errors)
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
            on_error=_on_error(values["error_handling"]),
            on_schema_change=values["on_schema_change"],
        )
    except HeadraceError as error:
        errors.found.append(located(error, values.place_of("tables")))
        return None


def _on_error(values: Values) -> OnError:
    from headrace.pipeline.definition import DeadLetters

    if values["on_persistent_failure"] == "stop":
        return "stop"
    letters = values["dead_letter"]
    return DeadLetters(max_per_batch=letters["max_per_batch"], max_keys=letters["max_keys"])
