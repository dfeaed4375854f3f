"""What may be asked for: everything is checked, and nothing misspelled passes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from headrace.changelog.position import Position
from headrace.errors import MissingKey, UnknownKey, WrongValue
from headrace.spark_source.options import (
    NAMES,
    ReadOptions,
    check_batch,
    check_stream,
    parse_options,
)

LEAST = {"log": "data", "table": "orders"}


def parsed(**more: str) -> ReadOptions:
    return parse_options({**LEAST, **more})


def test_names_are_read_without_regard_to_case_as_spark_gives_them() -> None:
    found = parsed(MAXROWSPERBATCH="5", onschemachange="Continue")
    assert (found.most_rows, found.on_schema_change) == (5, "continue")


def test_an_option_that_nobody_knows_is_an_error_with_the_nearest_one() -> None:
    with pytest.raises(UnknownKey) as caught:
        parsed(endingversoin="5")
    assert caught.value.remedy == "Did you mean endingVersion?"
    with pytest.raises(UnknownKey) as caught:
        parsed(zzzzzzzzz="5")
    assert all(name in caught.value.remedy for name in NAMES)


def test_the_path_of_load_is_the_log_where_none_is_named() -> None:
    assert parse_options({"path": "there", "table": "orders"}).log == "there"
    assert parsed(path="elsewhere").log == "data"


def test_the_properties_of_a_catalogs_table_are_not_options() -> None:
    given = {"provider": "headrace", "owner": "me", "log": "data", "table": "t"}
    given |= {"option.serialization.format": "1"}
    assert parse_options(given).table == "t"
    assert parse_options({**given, "option.table": "u"}).table == "u"


@pytest.mark.parametrize("missing", ["log", "table"])
def test_log_and_table_must_be_named(missing: str) -> None:
    with pytest.raises(MissingKey):
        parse_options({name: value for name, value in LEAST.items() if name != missing})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"path": "/warehouse/t"},
        {"provider": "headrace", "owner": "me", "option.serialization.format": "1"},
    ],
)
def test_whoever_comes_without_any_option_is_told_what_to_write_in_sql(
    given: dict[str, str],
) -> None:
    # So Spark reads a table that was made by `create table … using headrace options (…)`.
    with pytest.raises(MissingKey) as caught:
        parse_options(given)
    assert "create temporary view … using headrace options" in caught.value.remedy
    with pytest.raises(MissingKey) as caught:
        parse_options({"wait": "0s"})
    assert "create temporary view" not in caught.value.remedy


def test_a_place_is_a_word_a_position_a_version_or_a_time() -> None:
    position = Position(1, 1204, 3)
    assert parsed().start == "earliest"
    assert parsed(startingPosition="Baseline").start == "baseline"
    assert parsed(startingPosition=str(position)).start == position
    assert parsed(startingVersion="1204").start == 1204
    assert parsed(startingTimestamp="2026-11-15T12:00:00Z").start == datetime(
        2026, 11, 15, 12, tzinfo=UTC
    )
    assert parsed(endingPosition=str(position)).end == position
    assert parsed(endingVersion="7").end == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingPosition", "first"),
        ("startingVersion", "-1"),
        ("startingVersion", str(2**63)),
        ("startingTimestamp", "2026-11-15 12:00:00"),
        ("endingTimestamp", "yesterday"),
        ("endingPosition", "earliest"),
        ("maxRowsPerBatch", "0"),
        ("maxRowsPerBatch", "many"),
        ("images", "before"),
        ("pushdown", "yes"),
        ("pushdown", "true"),
        ("onTruncate", "skip"),
        ("lease", "5m"),
        ("reader", ""),
        ("reader", "a b"),
        ("reader", "../x"),
        ("columns", ""),
        ("columns", " , "),
    ],
)
def test_a_value_that_means_nothing_is_an_error_that_names_the_option(
    name: str, value: str
) -> None:
    with pytest.raises(WrongValue) as caught:
        parsed(**{name: value})
    assert caught.value.facts["option"] == name
    assert caught.value.remedy


@pytest.mark.parametrize("lease", ["an hour", "0s", "0"])
def test_a_name_is_kept_for_a_time(lease: str) -> None:
    assert parsed(reader="me", lease="5m").lease == 300
    with pytest.raises(WrongValue) as caught:
        parsed(reader="me", lease=lease)
    assert caught.value.facts["option"] == "lease"


def test_there_is_one_beginning_and_one_end() -> None:
    with pytest.raises(WrongValue, match="Only one starting position"):
        parsed(startingVersion="1", startingPosition="earliest")


def test_columns_are_a_list_in_which_quotes_do_not_matter() -> None:
    assert parsed(columns="id, `total` ,name").columns == ("id", "total", "name")


def test_what_only_a_stream_can_do_is_refused_of_a_batch() -> None:
    with pytest.raises(WrongValue):
        check_batch(parsed(startingPosition="latest"))
    with pytest.raises(WrongValue):
        check_batch(parsed(maxRowsPerBatch="5"))


def test_what_a_stream_cannot_do_is_refused() -> None:
    with pytest.raises(WrongValue):
        check_stream(parsed(endingVersion="5"), admission=True)
    with pytest.raises(WrongValue) as caught:
        check_stream(parsed(maxRowsPerBatch="5"), admission=False)
    assert "4.2" in caught.value.remedy
    with pytest.raises(WrongValue, match="in the future"):
        check_stream(parsed(startingTimestamp="2999-01-01T00:00:00Z"), admission=True)
    check_stream(parsed(startingTimestamp="2026-01-01T00:00:00Z"), admission=True)


def test_a_predicate_is_not_printed() -> None:
    assert "secret" not in repr(parsed(where="card = 'secret'"))
