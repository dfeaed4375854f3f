from __future__ import annotations

import pytest
from py4j.protocol import Py4JError

import headrace as hr
from headrace.changelog.schema import Column, TableSchema
from headrace.changelog.values import ValueType
from headrace.errors import BadTable, SparkFailed
from headrace.lake.formats import ICEBERG, check_session, needs
from headrace.lake.history import CUT_OFF, CommitNote, TableHistory, TableLocation, written
from headrace.lake.iceberg import (
    PREFIX,
    Head,
    IcebergSnapshot,
    IcebergTable,
    ancestry,
    create_branch,
    drop_branch,
    fast_forward,
    found_in,
    fresh_branch,
    in_folder,
    made_with,
    own_catalog,
    rewrite,
)
from headrace.lake.sql import replace_from
from headrace.testing.source import TABLE


def note(number: int) -> CommitNote:
    return CommitNote(1, "p/x", "w", number, "0001-0000000000000002-00000003", "l", 4, "b")


# -- what is asked for --------------------------------------------------------------------------


def test_there_is_an_iceberg_for_one_version_of_spark_and_others_are_refused_by_name() -> None:
    found = needs(ICEBERG, "4.1.4")
    package = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
    assert found["spark.jars.packages"] == package
    for version in ("4.2.1", "4.3.0"):
        with pytest.raises(BadTable, match="iceberg") as refused:
            needs(ICEBERG, version)
        assert "pyspark==4.1" in refused.value.remedy


def test_a_spark_without_iceberg_is_refused_with_the_settings_to_add() -> None:
    with pytest.raises(SparkFailed, match="iceberg") as found:
        check_session(ICEBERG, lambda name: None)
    assert "IcebergSparkSessionExtensions" in found.value.remedy


@pytest.mark.parametrize("mode", ["merge", "append", "history"])
def test_a_table_is_in_a_catalog_or_in_a_folder(mode: str) -> None:
    for where in (
        {"name": "lake.db.{table}"},
        {"path": "/lake/orders"},
        {"path": "hdfs://names/lake/orders"},
    ):
        hr.table(format="iceberg", mode=mode, **where)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("where", "word"),
    [
        ({"name": "orders"}, "catalog"),
        ({"name": "lake.orders"}, "catalog"),
        ({"name": "spark_catalog.lake.orders"}, "catalog"),
        ({"name": "lake.db.orders", "path": "/lake/orders"}, "catalog"),
        ({"path": "s3a://bucket/orders"}, "rename"),
    ],
)
def test_where_it_cannot_be_is_refused(where: dict[str, str], word: str) -> None:
    with pytest.raises(BadTable, match="iceberg") as found:
        hr.table(format="iceberg", **where)  # type: ignore[arg-type]
    assert word in str(found.value)


@pytest.mark.parametrize("names", [("_file",), ("_POS",), ("Name", "name")])
def test_columns_that_it_cannot_hold_are_refused_by_name(names: tuple[str, ...]) -> None:
    columns = [Column(name, ValueType("text"), at) for at, name in enumerate(("id", *names), 1)]
    schema = TableSchema(TABLE, tuple(columns), key=("id",))
    with pytest.raises(BadTable, match="iceberg") as found:
        hr.table(path="/lake", format="iceberg").check({TABLE: schema})
    assert names[0] in str(found.value)


# -- what a history says ------------------------------------------------------------------------


def snapshot(id: int, number: int | None = None, operation: str = "overwrite") -> IcebergSnapshot:
    """Return one of a chain; its sequence number is ten times its own."""
    text = None if number is None else written(note(number))
    return IcebergSnapshot(id, id - 1 or None, id * 10, operation, text)


def history(
    snapshots: list[IcebergSnapshot], head: int | None, since: int | None = None
) -> TableHistory:
    known = {each.id: each for each in snapshots}
    return found_in(ancestry(known.get, head, since), since, known.values)


def test_the_last_note_that_led_to_what_readers_see_counts() -> None:
    chain = [snapshot(1, 1), snapshot(2, 2)]
    # Of a branch that never became main.
    aside = IcebergSnapshot(9, 1, 30, "append", written(note(3)))
    assert history([*chain, aside], 2) == TableHistory(note(2), None, 20, 2)
    assert history([*chain, aside], 1) == TableHistory(note(1), None, 10, 1)


@pytest.mark.parametrize("operation", ["append", "overwrite", "delete"])
def test_what_others_did_since_is_told_and_compaction_is_nothing(operation: str) -> None:
    chain = [snapshot(1, 1), snapshot(2, operation="replace")]
    assert history(chain, 2) == TableHistory(note(1), None, 20, 1)
    chain.append(snapshot(3, operation=operation))
    assert history(chain, 3) == TableHistory(note(1), operation, 30, 1)


def test_what_others_did_is_not_hidden_by_a_commit_of_ours() -> None:
    chain = [snapshot(1, 1), snapshot(2, operation="append"), snapshot(3, 2)]
    assert history(chain, 3, since=10) == TableHistory(note(2), "append", 30, 2)
    assert history(chain, 3, since=20) == TableHistory(note(2), None, 30, 2)


def test_no_more_of_a_history_is_walked_than_is_needed() -> None:
    looked: list[int] = []

    def look(id: int) -> IcebergSnapshot:
        looked.append(id)
        return snapshot(id, id)

    ancestry(look, 90, None)
    ancestry(look, 90, 880)
    assert looked == [90, 90, 89, 88]


def test_a_history_that_is_cut_off_says_so() -> None:
    assert history([snapshot(3, 2)], 3, since=10) == TableHistory(note(2), CUT_OFF, 30, 2)
    assert history([snapshot(7, operation="replace")], 7) == TableHistory(None, None, 70, 0)
    assert history([snapshot(1, operation="append")], 1) == TableHistory(None, None, 10, 0)
    assert history([], None) == TableHistory(None, None, -1, 0)


def test_numbers_count_that_no_history_leads_to_any_more() -> None:
    aside = IcebergSnapshot(9, 1, 30, "append", written(note(3)))
    found = history([snapshot(7, operation="replace"), aside], 7)
    assert found == TableHistory(None, None, 70, 3)
    # They may be expired as well: who knows of a higher one goes on from that.
    head = Head(7, found)
    assert [number for number in range(1, 8) if head.is_before(note(number))] == [4, 5, 6, 7]


def test_only_the_next_number_can_be_had() -> None:
    head = Head(5, TableHistory(note(4), None, 50, 4))
    assert [number for number in range(1, 8) if head.is_before(note(number))] == [5]


# -- what is said to it -------------------------------------------------------------------------


def test_each_attempt_has_a_branch_of_its_own() -> None:
    names = {fresh_branch() for _ in range(10)}
    assert len(names) == 10
    assert all(name.startswith(PREFIX) for name in names)


def test_names_are_written_so_that_nothing_in_them_ends_a_text() -> None:
    assert create_branch("`l`.`t`", "b", 7) == (
        "ALTER TABLE `l`.`t` CREATE BRANCH `b` AS OF VERSION 7"
    )
    assert drop_branch("`l`.`t`", "b") == "ALTER TABLE `l`.`t` DROP BRANCH IF EXISTS `b`"
    assert fast_forward("la`ke", "`d'b`.`t\\`", "b") == (
        "CALL `la``ke`.system.fast_forward(table => '`d\\'b`.`t\\\\`', branch => 'main', to => 'b')"
    )
    assert rewrite("c", "rewrite_data_files", "`t`", {"a": "1", "b": "2"}) == (
        "CALL `c`.system.rewrite_data_files(table => '`t`', options => map('a', '1', 'b', '2'))"
    )


def test_rows_of_a_time_are_replaced_by_the_values_that_are_to_go() -> None:
    assert replace_from("l", ("id", "_position"), "_position", "0001-02") == (
        "MERGE INTO l AS t USING headrace_batch AS s"
        " ON t.`_position` = s.k0 AND t.`_position` >= '0001-02'"
        " WHEN MATCHED THEN DELETE"
        " WHEN NOT MATCHED AND s.added THEN INSERT (`id`, `_position`) VALUES (s.c0, s.c1)"
    )


@pytest.mark.parametrize(
    ("path", "folder", "parts"),
    [
        ("/a/b/lake/orders", "/a/b", ("lake", "orders")),
        ("/lake/history/", "/", ("lake", "history")),
        ("/orders", "/", ("orders",)),
        ("hdfs://names/a/lake/orders", "hdfs://names/a", ("lake", "orders")),
        ("hdfs://names:8020/lake/orders", "hdfs://names:8020/", ("lake", "orders")),
        ("hdfs://names/orders", "hdfs://names/", ("orders",)),
        ("file:///lake/orders", "file:///", ("lake", "orders")),
    ],
)
def test_a_folder_is_a_table_of_a_catalog_above_it(
    path: str, folder: str, parts: tuple[str, ...]
) -> None:
    assert in_folder(path) == (folder, parts)


def test_tables_of_one_folder_are_in_one_catalog() -> None:
    name, settings = own_catalog("/lake")
    assert own_catalog("/lake")[0] == name != own_catalog("/other")[0]
    assert settings[f"spark.sql.catalog.{name}.warehouse"] == "/lake"


@pytest.mark.meets("R24")
@pytest.mark.parametrize("type", ["hadoop", None, "", "custom"])
def test_metadata_stays_where_a_file_that_exists_keeps_a_late_writer_out(type: str | None) -> None:
    assert "write.metadata.delete-after-commit.enabled" not in made_with(type)
    assert made_with("Hive") == {
        **made_with(type),
        "write.metadata.delete-after-commit.enabled": "true",
    }


class Conflicting:
    """A session in which every statement fails with what PySpark does not know."""

    def __init__(self) -> None:
        self.conf = self
        self.said: list[str] = []

    def set(self, name: str, value: str) -> None: ...

    def sql(self, statement: str) -> None:
        self.said.append(statement)
        raise Py4JError("CommitFailedException")


def test_a_branch_that_cannot_be_dropped_does_not_undo_the_commit() -> None:
    session = Conflicting()
    where = TableLocation((), "/lake/orders")
    table = IcebergTable(session, where, persistent=True)  # type: ignore[arg-type]
    table._drop(["a", "b"])
    assert len(session.said) == 2
