from __future__ import annotations

import re
from pathlib import Path

import pytest

import headrace as hr
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.config.hocon import parse
from headrace.engine.from_config import configured
from headrace.errors import BadTable, HeadraceError, NoKey, SparkFailed, TableError
from headrace.lake.formats import DELTA, PARQUET, check_session, needs
from headrace.lake.history import CommitNote, TableLocation, check_name, locations, read, written
from headrace.lake.rows import answer, shaped
from headrace.lake.sql import merge_history, merge_rows
from headrace.lake.target import TableTarget
from headrace.spark_session.settings import ivy_folder, merged
from headrace.testing.source import TABLE, THINGS


def with_columns(*names: str, key: tuple[str, ...] = ("id",)) -> TableSchema:
    columns = [Column(name, ValueType("text"), at) for at, name in enumerate(("id", *names), 1)]
    return TableSchema(TABLE, tuple(columns), key=key)


# -- what is asked for ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"format": "hudi"}, "hudi"),
        ({"mode": "replace"}, "replace"),
        ({"format": "parquet"}, "merge"),
        ({"format": "parquet", "mode": "history"}, "history"),
        ({"compact_every": -1}, "compact_every"),
        ({"format": "iceberg"}, "catalog"),
        ({"format": "iceberg", "path": "/lake/orders"}, "catalog"),
    ],
)
def test_what_there_is_not_is_refused_by_name(options: dict[str, object], word: str) -> None:
    with pytest.raises(BadTable) as found:
        hr.table("lake.orders", **options)  # type: ignore[arg-type]
    assert word in str(found.value)


@pytest.mark.parametrize("name", ["", "a.b.c.d", "lake.", "lake.or ders", "a;b"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(BadTable):
        check_name(name, None)


def test_a_table_needs_a_name_or_a_path() -> None:
    with pytest.raises(BadTable):
        hr.table()
    hr.table(path="/lake/orders")
    hr.table("catalog.db.{table}")


def test_a_name_is_filled_for_each_table() -> None:
    found = locations("lake.{schema}_{table}", None, ["public.orders", "items"])
    assert found == {
        "public.orders": TableLocation(("lake", "public_orders"), None),
        "items": TableLocation(("lake", "main_items"), None),
    }
    assert locations(None, "/lake/{table}", ["orders"])["orders"].path == "/lake/orders"
    assert found["items"].name == "`lake`.`main_items`"


def test_two_tables_cannot_become_one() -> None:
    with pytest.raises(BadTable, match="Two source tables"):
        locations("lake.orders", None, ["orders", "items"])
    with pytest.raises(BadTable):
        hr.table("lake.orders").check({"a": THINGS, "b": THINGS})
    with pytest.raises(BadTable, match="Two source tables") as found:
        locations("lake.{table}", None, ["public.Orders", "public.orders"])
    assert "case" in found.value.remedy
    with pytest.raises(BadTable, match="Two source tables"):
        locations("lake.orders", "/lake/{table}", ["orders", "items"])
    # Folders may tell them apart; where these do not, the notes in the table do.
    assert len(locations(None, "/lake/{table}", ["Orders", "orders"])) == 2


@pytest.mark.parametrize(
    "schema", [with_columns("a b"), with_columns("a,b"), with_columns("Name", "name")]
)
def test_columns_that_delta_cannot_hold_are_refused_by_name(schema: TableSchema) -> None:
    with pytest.raises(BadTable, match="delta") as found:
        hr.table("lake.orders").check({TABLE: schema})
    assert "column" in str(found.value)
    hr.table("lake.orders", format="parquet", mode="append").check({TABLE: schema})


def test_a_column_of_ours_keeps_its_name_to_itself() -> None:
    with pytest.raises(BadTable, match="_valid_to"):
        shaped("history", with_columns("_valid_to"), None)
    shaped("merge", with_columns("_valid_to"), None)


def test_rows_are_kept_by_a_key_and_changes_without() -> None:
    without = with_columns("name", key=())
    with pytest.raises(NoKey):
        shaped("merge", without, None)
    assert shaped("append", without, None).key == ()
    with pytest.raises(TableError):
        shaped("merge", with_columns("name"), ("name",))
    assert shaped("merge", with_columns("name"), ("id",)).key == ("id",)


@pytest.mark.parametrize("mode", ["merge", "history", "append"])
def test_a_key_that_the_source_does_not_have_is_refused(mode: str) -> None:
    # Its deletes do not say which row is gone.
    target = hr.table("lake.orders", mode=mode, key=["id"])
    with pytest.raises(NoKey, match="key=") as found:
        target.check({TABLE: with_columns("name", key=())})
    assert "primary key" in found.value.remedy


# -- other columns ----------------------------------------------------------------------------


def altered(*columns: Column) -> TableSchema:
    return TableSchema(TABLE, (THINGS.columns[0], *columns), key=("id",))


NAME = THINGS.columns[1]
SIZE = Column("size", ValueType("int64"), 3, declared="int")


@pytest.mark.parametrize(
    ("new", "merge", "append", "history"),
    [
        (altered(NAME, SIZE), "continue", "continue", "continue"),
        (altered(NAME, Column("made", ValueType("int64"), 9)), "reload", "continue", "continue"),
        (
            altered(NAME, Column("size", ValueType("int64"), 3, declared="int", missing="7")),
            "reload",
            "continue",
            "continue",
        ),
        (altered(), "reload", "continue", "continue"),
        (altered(Column("name", ValueType("int64"), 2)), "reload", "refuse", "refuse"),
    ],
    ids=["added", "computed", "with a default", "dropped", "retyped"],
)
def test_other_columns_are_taken_loaded_or_refused(
    new: TableSchema, merge: str, append: str, history: str
) -> None:
    assert answer("merge", THINGS, new) == merge
    assert answer("append", THINGS, new) == append
    assert answer("history", THINGS, new) == history


# -- what Spark needs ---------------------------------------------------------------------------


def test_spark_is_started_with_what_its_targets_need() -> None:
    found = needs(DELTA, "4.2.1")
    assert found["spark.jars.packages"] == "io.delta:delta-spark_4.2_2.13:4.4.0"
    own = {"spark.jars.packages": "a:b:1", "spark.sql.extensions": "mine", "spark.jars.ivy": "/i"}
    both = merged(own, [found, found, needs(PARQUET)])
    assert both["spark.jars.packages"] == f"a:b:1,{found['spark.jars.packages']}"
    assert both["spark.sql.extensions"] == f"mine,{found['spark.sql.extensions']}"
    assert both["spark.jars.ivy"] == "/i"
    assert needs(PARQUET, "4.3.0") == {}


def test_a_spark_whose_delta_cannot_read_what_it_writes_is_refused() -> None:
    for version in ("4.3.0", "4.1.4"):
        with pytest.raises(BadTable) as found:
            needs(DELTA, version)
        assert "4.2" in found.value.remedy


def test_a_spark_without_delta_is_refused_with_the_settings_to_add() -> None:
    with pytest.raises(SparkFailed) as found:
        check_session(DELTA, lambda name: None)
    for each in DELTA.settings.values():
        assert each in found.value.remedy
    check_session(DELTA, lambda name: f"other,{DELTA.settings.get(name)}")


def test_jars_are_kept_in_the_users_cache(tmp_path: Path) -> None:
    assert ivy_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "headrace" / "ivy"
    assert ivy_folder({"HOME": "/h"}) == Path("/h/.cache/headrace/ivy")


# -- what stands in a commit --------------------------------------------------------------------


def test_a_note_is_read_back_and_nothing_else_is_one() -> None:
    note = CommitNote(1, "p/x", "w", 7, "0001-0000000000000002-00000003", "l", 4, "b")
    assert read(written(note)) == note
    for text in (None, "", "{}", "hand-made", written(note).replace("0001-", "1-")):
        assert read(text) is None
    assert read(written(note).replace('"headrace":1', '"headrace":2')) is None


def test_a_merge_names_every_column_and_looks_where_the_keys_are() -> None:
    text = merge_rows("t", ["id", "a`b"], ["id"], {"id": (3, 9)})
    assert "ON t.`id` = s.c0 AND t.`id` BETWEEN 3 AND 9" in text
    assert "UPDATE SET t.`a``b` = s.c1" in text
    assert "INSERT (`id`, `a``b`) VALUES (s.c0, s.c1)" in text
    assert "UPDATE" not in merge_rows("t", ["id"], ["id"])


def test_a_history_that_was_emptied_ends_all_that_has_not() -> None:
    names, ends = ["id", "from", "to", "from_at", "to_at"], ("to", "to_at")
    assert "BY SOURCE" not in merge_history("t", names, ["id"], ends, {"id": (1, 2)})
    text = merge_history("t", names, ["id"], ends, {"id": (1, 2)}, (5, "p"))
    assert "BETWEEN" not in text
    assert "t.`to` = timestamp_micros(5), t.`to_at` = 'p'" in text


def test_a_table_without_an_engine_says_so() -> None:
    target = hr.table("lake.orders", format="parquet", mode="append")
    with pytest.raises(HeadraceError, match="engine"):
        target.open({TABLE: THINGS}, {})


def test_the_guides_configuration_makes_the_guides_target() -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/delta.md").read_text()
    (text,) = re.findall(r"^```hocon\n(.*?)^```$", guide, re.M | re.S)
    tree = parse('sources.shop { type = sqlite, path = "shop.db" }\n' + text, "headrace.conf")
    (pipeline,) = configured(tree).build().pipelines
    assert isinstance(pipeline.target, TableTarget)
    assert pipeline.target.traits.transactional
