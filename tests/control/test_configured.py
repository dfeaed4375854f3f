"""An engine from a configuration: everything wrong told at once, everything right built."""

from __future__ import annotations

import inspect
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.capture.postgres import definition, options
from headrace.capture.postgres import definition as postgres_settings
from headrace.capture.sqlite import definition as sqlite_settings
from headrace.capture.sqlite.tables import KINDS
from headrace.config.schema import Key, Plain, Text, node_of
from headrace.config.text import SourceLocation
from headrace.engine.config_keys import FILTERS, TARGETS, TRANSFORMS
from headrace.engine.from_config import EngineConfig, configured
from headrace.errors import InvalidConfiguration
from headrace.lake import definition as lake_definition
from headrace.lake import target as lake_target
from headrace.pipeline import definition as pipeline_definition
from headrace.pipeline import settings as pipeline_settings
from headrace.pipeline import steps
from headrace.pipeline.definition import DeadLetters, Pipeline
from headrace.storage.records import Records
from headrace.targets.memory import IndexedMemory
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Shop, await_that

PLACE = SourceLocation("headrace.conf", 7, 3)


def shop_plain(folder: Path, **more: Plain) -> dict[str, Plain]:
    """Return a configuration that is right."""
    return {
        "data": str(folder / "data"),
        "sources": {"shop": {"type": "sqlite", "path": str(folder / "shop.db")}},
        "pipelines": {
            "paid": {
                "source": "shop",
                "tables": ["orders"],
                "filters": [{"type": "field-equals", "field": "status", "value": "paid"}],
                "transforms": [{"type": "drop-fields", "fields": ["card"]}],
                "target": {
                    "type": "indexed-memory",
                    "indexes": {"by_customer": {"fields": ["customer_id"]}},
                },
            }
        },
        **more,
    }


def of(plain: Plain) -> EngineConfig:
    return configured(node_of(plain, PLACE))


def errors_of(plain: Plain) -> list[tuple[str, str]]:
    with pytest.raises(InvalidConfiguration) as caught:
        of(plain).build()
    return [(each.code, str(each.facts.get("key", ""))) for each in caught.value.errors]


def pipeline_with(folder: Path, **more: Plain) -> Pipeline:
    plain: Any = shop_plain(folder)
    plain["pipelines"]["paid"].update(more)
    (pipeline,) = of(plain).build().pipelines
    return pipeline


def test_an_engine_from_a_configuration_brings_rows_and_changes(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    found = of(shop_plain(tmp_path))
    with found.engine(runner=ArrowRunner(), recorder="thread") as engine:
        assert engine.await_ready(PATIENCE)
        target = engine.target("paid", "indexed-memory")
        assert isinstance(target, IndexedMemory)
        assert {row["id"]: dict(row) for row in target.all()} == shop.truth()
        shop.insert(range(100, 103))
        assert await_that(engine, lambda: target.count() == len(shop.truth()))
        assert [row["id"] for row in target.lookup_all("by_customer", 100 % 7)]
        assert [info.name for info in engine.sources()] == ["shop"]


def test_all_errors_are_told_together_with_their_places() -> None:
    plain: Plain = {
        "dta": "x",
        "sources": {
            "shop": {"type": "sqlit", "path": "shop.db"},
            "Main": {"type": "postgres", "slot_mode": "statefull"},
        },
        "pipelines": {
            "orders": {
                "source": "shp",
                "filters": [{"type": "field-equal", "field": "status"}, {"field": "x"}],
                "target": {"type": "memory", "lookup": ["id"]},
                "error_handling": {"max_retries": 5},
            }
        },
        "secrets": {"inline": "forbid"},
    }
    with pytest.raises(InvalidConfiguration) as caught:
        of(plain)
    found = [
        (each.code.removeprefix("config."), each.facts.get("key")) for each in caught.value.errors
    ]
    assert found == [
        ("unknown_key", "dta"),
        ("unknown_part", "sources.shop.type"),
        ("missing_key", "sources.Main.connection"),
        ("wrong_value", "sources.Main.slot_mode"),
        ("missing_key", "pipelines.orders.tables"),
        ("unknown_part", "pipelines.orders.filters[0].type"),
        ("missing_key", "pipelines.orders.filters[1].type"),
        ("unknown_key", "pipelines.orders.target.lookup"),
        ("unknown_key", "pipelines.orders.error_handling.max_retries"),
        ("wrong_value", "secrets.inline"),
        ("control.bad_name", None),
        ("wrong_value", "pipelines.orders.source"),
    ]
    assert all(each.message.startswith("headrace.conf:7:3: ") for each in caught.value.errors)
    remedies = [each.remedy for each in caught.value.errors]
    assert remedies[0] == "Did you mean data?"
    assert remedies[1] == "Did you mean sqlite?"
    assert remedies[5] == "Did you mean field-equals?"
    assert remedies[-1] == "Did you mean shop?"


def test_a_configuration_without_anything_to_do_is_refused() -> None:
    assert errors_of({}) == [("config.missing_key", "sources")]
    only: Plain = {"sources": {"shop": {"type": "sqlite", "path": "a.db"}}}
    assert errors_of(only) == [("config.missing_key", "pipelines")]


def test_a_source_may_only_be_recorded() -> None:
    plain: Plain = {"sources": {"shop": {"type": "sqlite", "path": "a.db", "record": ["orders"]}}}
    built = of(plain).build()
    assert [(source.name, tables) for source, tables in built.records] == [("shop", ("orders",))]
    assert of(plain).warnings == ()


def test_a_source_that_nothing_uses_is_warned_about(tmp_path: Path) -> None:
    plain: Any = shop_plain(tmp_path)
    plain["sources"]["other"] = {"type": "sqlite", "path": "b.db"}
    (warning,) = of(plain).warnings
    assert warning.facts["key"] == "sources.other"


FILTER_STEPS: list[tuple[Plain, steps.Filter]] = [
    ({"type": "field-equals", "field": "a", "value": None}, steps.equals("a", None)),
    ({"type": "field-equals", "field": "a", "value": 7}, steps.equals("a", 7)),
    ({"type": "field-prefix", "field": "a", "prefix": "EU-"}, steps.prefix("a", "EU-")),
    ({"type": "field-regex", "field": "a", "pattern": "^E"}, steps.regex("a", "^E")),
    ({"type": "where", "condition": "a > 1"}, steps.where("a > 1")),
    (
        {"type": "function", "call": "m:f", "reads": ["a"], "batch": True, "time_limit": "5s"},
        steps.function("m:f", reads=["a"], batch=True, time_limit=5.0),
    ),
]
TRANSFORM_STEPS: list[tuple[Plain, steps.Transform]] = [
    ({"type": "drop-fields", "fields": ["a", "b"]}, steps.drop("a", "b")),
    ({"type": "rename-fields", "mapping": {"a": "b"}}, steps.rename(a="b")),
    ({"type": "derive", "columns": {"t": "a * b"}}, steps.derive(t="a * b")),
    ({"type": "add-timestamp", "field": "at"}, steps.timestamp("at")),
    (
        {"type": "add-timestamp", "field": "at", "of": "capture"},
        steps.timestamp("at", of="capture"),
    ),
    (
        {"type": "mask", "fields": ["a"], "keep": 4, "with": "#"},
        steps.mask("a", keep=4, with_="#"),
    ),
    (
        {"type": "function", "call": "m:f", "columns": {"t": "double"}},
        steps.function("m:f", columns={"t": "double"}),
    ),
    (
        {"type": "frame", "call": f"{__name__}:as_it_is"},
        steps.frame(lambda df: df),
    ),
]


def as_it_is(df: object, batch: object = None) -> object:
    return df


@pytest.mark.parametrize(("plain", "step"), FILTER_STEPS)
def test_every_filter_can_be_configured(tmp_path: Path, plain: Plain, step: object) -> None:
    assert pipeline_with(tmp_path, filters=[plain]).filters == (step,)


@pytest.mark.parametrize(("plain", "step"), TRANSFORM_STEPS)
def test_every_transform_can_be_configured(tmp_path: Path, plain: Plain, step: object) -> None:
    (made,) = pipeline_with(tmp_path, transforms=[plain]).transforms
    if isinstance(made, steps.Frame):
        assert made.make is as_it_is
    else:
        assert made == step


def test_no_type_is_left_out_of_these_tests() -> None:
    configured_types = {str(plain["type"]) for plain, _ in FILTER_STEPS if isinstance(plain, dict)}
    assert configured_types == set(FILTERS.types())
    configured_types = {str(p["type"]) for p, _ in TRANSFORM_STEPS if isinstance(p, dict)}
    assert configured_types == set(TRANSFORMS.types())
    assert set(TARGETS.types()) == {"indexed-memory", "foreach-batch", "table"}


def test_a_function_is_a_target(tmp_path: Path) -> None:
    made = pipeline_with(tmp_path, target={"type": "foreach-batch", "call": f"{__name__}:as_it_is"})
    assert made.target.traits.type == hr.foreach_batch(as_it_is).traits.type


def test_a_table_of_a_lake_is_a_target(tmp_path: Path) -> None:
    plain: Plain = {"type": "table", "name": "lake.orders", "mode": "history", "adopt": True}
    made = pipeline_with(tmp_path, target=plain).target
    assert isinstance(made, lake_target.TableTarget)
    assert made.traits.type == "table"
    kept = (lake_target.COMPACT_EVERY, lake_target.STAGED_FROM)
    assert kept == (lake_definition.COMPACT_EVERY, lake_definition.STAGED_FROM)
    wrong: Any = shop_plain(tmp_path)
    wrong["pipelines"]["paid"]["target"] = {"type": "table", "path": "/l", "format": "parquet"}
    with pytest.raises(InvalidConfiguration) as caught:
        of(wrong).build()
    assert [each.code for each in caught.value.errors] == ["pipeline.bad_table"]
    assert "headrace.conf" in str(caught.value.errors[0])


@pytest.mark.parametrize(
    "call", ["no_such_module:f", f"{__name__}:nothing", "no_colon", f"{__name__}:PLACE"]
)
def test_a_function_that_is_not_there_is_an_error_with_its_place(tmp_path: Path, call: str) -> None:
    plain: Any = shop_plain(tmp_path)
    plain["pipelines"]["paid"]["target"] = {"type": "foreach-batch", "call": call}
    with pytest.raises(InvalidConfiguration) as caught:
        of(plain).build()
    (error,) = caught.value.errors
    assert (error.code, error.facts["place"]) == ("config.bad_part", "headrace.conf:7:3")


def test_how_failing_rows_are_handled_is_configured(tmp_path: Path) -> None:
    letters: Plain = {"dead_letter": {"store": "local", "max_per_batch": 3, "max_keys": 9}}
    assert pipeline_with(tmp_path, error_handling=letters).on_error == DeadLetters(3, 9)
    more: Plain = {"dead_letter": {"warn_keys": 5, "keep": "7d", "store": "memory"}}
    made = pipeline_with(tmp_path, error_handling=more).on_error
    assert made == DeadLetters(warn_keys=5, keep="7d", store="memory")
    stop: Plain = {"on_persistent_failure": "stop"}
    assert pipeline_with(tmp_path, error_handling=stop).on_error == "stop"
    assert pipeline_with(tmp_path).on_error == DeadLetters()


class Shelf:
    """A store of another package."""

    config_keys = (Key("cellar", Text(), "Which one.", required=True),)
    type = "shelf"
    volatile = False

    def __init__(self, cellar: str) -> None:
        self.location = cellar

    def records(self, name: str) -> Records:
        raise NotImplementedError


@pytest.mark.meets("ENG-49")
def test_where_dead_letters_are_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def store_of(store: Plain) -> object:
        letters: Plain = {"dead_letter": {"store": store}}
        made = pipeline_with(tmp_path, error_handling=letters).on_error
        assert isinstance(made, DeadLetters)
        return made.store

    assert store_of("local") == store_of({"type": "local"}) == "local"
    assert store_of("memory") == "memory"
    assert store_of({"type": "s3", "location": "s3://shop/a"}) == "s3://shop/a"
    monkeypatch.setattr(
        metadata,
        "entry_points",
        lambda group: (
            [metadata.EntryPoint("shelf", f"{__name__}:Shelf", group)]
            if group == "headrace.dead_letter_stores"
            else []
        ),
    )
    shelf = store_of({"type": "shelf", "cellar": "left"})
    assert isinstance(shelf, Shelf)
    assert shelf.location == "left"
    wrong: tuple[tuple[Plain, str], ...] = (
        ("disk", "config.unknown_part"),
        ({"type": "local", "path": "x"}, "config.unknown_key"),
        ({"type": "s3"}, "config.missing_key"),
        ({"type": "s3", "location": "s3://a/b", "key": "secret"}, "config.unknown_key"),
        ({"type": "s3", "location": "ftp://user:secret@a/b"}, "config.wrong_value"),
    )
    for store, code in wrong:
        with pytest.raises(InvalidConfiguration) as caught:
            store_of(store)
        assert [error.code for error in caught.value.errors] == [code]
        assert "secret" not in str(caught.value)


def test_every_option_of_a_pipeline_can_be_configured(tmp_path: Path) -> None:
    made = pipeline_with(
        tmp_path, tables=["orders", "a*", "!ab*"], mode="changes", on_schema_change="stop"
    )
    assert (made.tables, made.patterns) == (("orders",), ("a*", "!ab*"))
    assert (made.name, made.mode, made.on_schema_change) == ("paid", "changes", "stop")


def test_every_option_of_a_sqlite_source_can_be_configured(tmp_path: Path) -> None:
    plain: Any = shop_plain(tmp_path)
    plain["sources"]["shop"] |= {
        "columns": {"at": "text", "orders": {"total": "int64"}},
        "copy_rows_per_s": 500,
    }
    expected = hr.sqlite(
        tmp_path / "shop.db",
        name="shop",
        columns={"at": "text", "orders.total": "int64"},
        copy_rows_per_s=500,
    )
    assert of(plain).build().sources["shop"].spec == expected.spec


def test_every_option_of_a_postgres_source_can_be_configured(tmp_path: Path) -> None:
    plain: Any = shop_plain(tmp_path)
    plain["sources"]["shop"] = {
        "type": "pg",
        "connection": "host=db dbname=shop",
        "password_ref": "env:SHOP",
        "before_connect": "m:f",
        "slot_mode": "ephemeral",
        "slot_name": "slot",
        "publication": {
            "name": "pub",
            "create": False,
            "publish": ["insert"],
            "tables": {"orders": {"columns": ["id"], "where": "id > 0"}},
        },
        "always_baseline": True,
        "failover": True,
        "create_slot_timeout": "30s",
        "copy_rows_per_s": 500,
        "toast_store": False,
        "toast_store_bytes": "2GiB",
        "wal_budget": "1GiB",
    }
    expected = hr.postgres(
        "host=db dbname=shop",
        name="shop",
        password_ref="env:SHOP",
        before_connect="m:f",
        slot="ephemeral",
        slot_name="slot",
        publication="pub",
        create_publication=False,
        publish=["insert"],
        tables={"orders": {"columns": ["id"], "where": "id > 0"}},
        always_baseline=True,
        failover=True,
        create_slot_timeout=30.0,
        copy_rows_per_s=500,
        toast_store=False,
        toast_store_bytes=2 << 30,
        wal_budget=1 << 30,
    )
    made = dict(of(plain).build().sources["shop"].spec.options)
    made["publish"] = list(made["publish"])  # type: ignore[call-overload]
    assert made == dict(expected.spec.options)
    given = set(inspect.signature(hr.postgres).parameters) - {"name"}
    assert given == set(expected.spec.options), "an option without a key of the configuration"


def test_sparks_settings_are_put_together_from_sections(tmp_path: Path) -> None:
    spark: Plain = {
        "master": "local[2]",
        "conf": {"spark": {"driver": {"memory": "2g"}, "speculation": False}},
        "ui": True,
    }
    found = of(shop_plain(tmp_path, spark=spark, service="shop")).spark
    assert found.conf == {
        "spark.master": "local[2]",
        "spark.driver.memory": "2g",
        "spark.speculation": "false",
        "spark.app.name": "shop",
    }
    assert (found.ui, found.events) == (True, False)


def test_words_that_stand_twice_are_the_same() -> None:
    assert sqlite_settings.COLUMN_KINDS == KINDS
    assert postgres_settings.OPERATIONS == options.OPERATIONS
    assert postgres_settings.SLOT_MODES == definition.MODES
    assert postgres_settings.LEAST_WAL_BUDGET == definition.LEAST_BUDGET
    assert pipeline_settings.MODES == pipeline_definition.MODES
    assert pipeline_settings.ON_SCHEMA_CHANGE == pipeline_definition.ON_SCHEMA_CHANGE
    assert DeadLetters().max_keys == pipeline_settings.MAX_KEYS
    assert DeadLetters().max_per_batch == pipeline_settings.MAX_PER_BATCH


# -- looking at the databases -----------------------------------------------------------


def test_databases_are_looked_at_without_being_changed(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    before = shop.app.execute("select name from sqlite_master").fetchall()
    of(shop_plain(tmp_path)).check()
    assert shop.app.execute("select name from sqlite_master").fetchall() == before
    assert not (tmp_path / "data").exists()


def test_wrong_tables_and_columns_are_told_where_they_are_written(tmp_path: Path) -> None:
    Shop(tmp_path)
    plain: Any = shop_plain(tmp_path)
    pipeline = plain["pipelines"]["paid"]
    pipeline["tables"] = ["orders", "ordrs"]
    pipeline["transforms"] = [{"type": "drop-fields", "fields": ["cardd"]}]
    tree = node_of(plain, PLACE)
    assert isinstance(tree.value, dict)
    with pytest.raises(InvalidConfiguration) as caught:
        configured(tree).check()
    assert [each.code for each in caught.value.errors] == [
        "capture.unsupported_table",
        "pipeline.unknown_column",
    ]
    assert all(each.message.startswith("headrace.conf:7:3: ") for each in caught.value.errors)


def test_a_missing_database_is_told_where_its_source_is_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        of(shop_plain(tmp_path)).check()
    (error,) = caught.value.errors
    assert (error.code, error.facts["place"]) == ("capture.refused", "headrace.conf:7:3")


# -- secrets ----------------------------------------------------------------------------


def with_password(folder: Path, place: SourceLocation = PLACE, **more: Plain) -> EngineConfig:
    plain: Any = shop_plain(folder, **more)
    plain["sources"]["shop"] = {
        "type": "postgres",
        "connection": "postgresql://me:hunter2@db/shop",
        "toast_store_bytes": 1,
    }
    return configured(node_of(plain, place))


def test_a_password_written_out_is_warned_about(tmp_path: Path) -> None:
    (warning,) = with_password(tmp_path).warnings
    assert warning.code == "config.inline_secret"
    assert warning.facts == {"key": "sources.shop.connection", "place": "headrace.conf:7:3"}


def test_a_password_written_out_is_refused_where_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        with_password(tmp_path, secrets={"inline": "refuse"})
    assert [each.code for each in caught.value.errors] == ["config.inline_secret"]
    assert "hunter2" not in str(caught.value)


def test_a_password_in_the_environment_is_written_out_nowhere(tmp_path: Path) -> None:
    place = SourceLocation("environment variable DATABASE_URL")
    assert with_password(tmp_path, place, secrets={"inline": "refuse"}).warnings == ()


def test_what_is_shown_has_no_secret_in_it(tmp_path: Path) -> None:
    spark: Plain = {"conf": {"spark.hadoop.fs.s3a.secret.key": "hunter2"}}
    found = with_password(tmp_path, spark=spark)
    assert "hunter2" not in f"{found!r} {found.masked()} {found.settings()} {found.build()!r}"
    masked = found.masked()
    assert masked["sources"]["shop"]["connection"] == "postgresql://me:***@db/shop"
    assert masked["spark"]["conf"] == {"spark.hadoop.fs.s3a.secret.key": "***"}
    assert masked["pipelines"]["paid"]["tables"] == ["orders"]
    assert masked["pipelines"]["paid"]["mode"] == "baseline_then_changes"


def test_what_is_shown_says_where_it_comes_from(tmp_path: Path) -> None:
    found = {each.name: each.location for each in of(shop_plain(tmp_path)).settings()}
    assert found["pipelines.paid.filters[0].value"] == PLACE
    assert found["pipelines.paid.mode"] == SourceLocation("")
