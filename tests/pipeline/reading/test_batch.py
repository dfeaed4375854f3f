"""A part of the log as rows: all of it, each change as what it is, or an error."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pyspark_headrace
from headrace.changelog.change import Change, Op, as_segment
from headrace.changelog.compaction import Compaction
from headrace.changelog.position import Position
from headrace.changelog.ranges import ChangeSlice, changes, span
from headrace.changelog.reader import LogReader
from headrace.changelog.retention import prune
from headrace.changelog.values_json import images
from headrace.errors import (
    BadDataDirectory,
    BadSchema,
    BadValue,
    ChangesMissing,
    CorruptSegment,
    PositionExpired,
    Truncated,
    UnknownColumn,
    UnknownTable,
    UnknownValue,
    WrongValue,
)
from headrace.spark_source.columns import position_texts
from headrace.spark_source.plan import LEAST_BYTES, grouped
from headrace.spark_source.source import Partition
from tests.changelog.log_making import ORDERS, SOURCE, delete, insert, table, truncate, update
from tests.pipeline.reading.made_log import MadeLog, ids, short
from tests.pipeline.reading.plain import ROOT
from tests.support.tiers import examples


@pytest.fixture
def shop(log: MadeLog) -> MadeLog:
    log.flush(insert(1), insert(2), insert(3))
    log.flush(update(4, 1), update(5, 20, old=2), delete(6, 3))
    return log


def test_every_change_is_a_row_of_its_type(shop: MadeLog) -> None:
    assert short(shop.read()) == [
        (1, "insert", 1),
        (2, "insert", 2),
        (3, "insert", 3),
        (1, "update_postimage", 4),
        # Who keeps one row a key would otherwise keep the old one (R23).
        (2, "delete", 5),
        (20, "insert", 5),
        (3, "delete", 6),
    ]


def test_both_images_of_an_update_are_two_rows(shop: MadeLog) -> None:
    rows = [row for row in shop.read(images="both") if row["_commit_version"] == 4]
    assert [(row["name"], row["_change_type"]) for row in rows] == [
        ("before", "update_preimage"),
        ("n4", "update_postimage"),
    ]
    assert len({row["_position"] for row in rows}) == 1


def test_a_row_tells_where_it_stands_and_when_it_was_committed(shop: MadeLog) -> None:
    row = shop.read()[3]
    assert row["_position"] == str(Position(1, 4, 0))
    assert row["_commit_timestamp"].timestamp() == 0.004


@given(
    st.lists(
        st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)), min_size=1, max_size=20
    ),
    st.integers(0, 2**16 - 1),
)
def test_positions_made_together_are_those_made_one_by_one(
    made: list[tuple[int, int]], epoch: int
) -> None:
    rows = pa.table({"c": [c for c, _ in made], "o": pa.array([o for _, o in made], pa.int32())})
    found = position_texts(epoch, rows["c"].to_numpy(), rows["o"].to_numpy())
    assert found.to_pylist() == [str(Position(epoch, *each)) for each in made]


def from_the_log(log: MadeLog) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield each change as `headrace log read` shows it."""
    reader = LogReader.open(log.files, SOURCE)
    for piece in changes(reader, "orders", span(reader, ["orders"], None, None)):
        assert isinstance(piece, ChangeSlice)
        pairs = zip(
            images(piece.rows, piece.schema, "before"),
            images(piece.rows, piece.schema, "after"),
            strict=True,
        )
        for at, (before, after) in enumerate(pairs):
            op = Op(piece.rows["_op"][at].as_py())
            yield str(piece.position(at)), op.name.lower(), before, after


def in_words(rows: list[dict[str, Any]]) -> list[tuple[str, str, Any, Any]]:
    """Return rows of both images as changes."""
    found: list[tuple[str, str, Any, Any]] = []
    before = None
    for row in rows:
        values = {name: row[name] for name in ORDERS.names}
        kind = row["_change_type"]
        if kind == "update_preimage":
            before = values
        elif kind == "update_postimage":
            found.append((row["_position"], "update", before, values))
        elif kind == "delete":
            found.append((row["_position"], "delete", values, None))
        else:
            found.append((row["_position"], "insert", None, values))
    return found


_KEYS = st.integers(1, 4)
_CHANGES = st.lists(
    st.lists(
        st.tuples(st.sampled_from(["insert", "update", "delete"]), _KEYS, _KEYS),
        min_size=1,
        max_size=5,
    ),
    min_size=1,
    max_size=6,
)


@examples(25)
@given(flushes=_CHANGES, most=st.integers(1, 3))
def test_batch_and_stream_and_the_log_itself_tell_the_same(
    flushes: list[list[tuple[str, int, int]]], most: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = MadeLog(tmp_path_factory.mktemp("log"))
    commit = 0
    for flush in flushes:
        rows = []
        for kind, key, old in flush:
            commit += 1
            if kind == "insert":
                rows.append(insert(commit, key))
            elif kind == "update":
                rows.append(update(commit, key, old))
            else:
                rows.append(delete(commit, key))
        log.flush(*rows)
    whole = log.read(images="both")
    assert in_words(whole) == list(from_the_log(log))
    batches = log.stream(images="both", maxRowsPerBatch=most).all()
    assert [row for batch in batches for row in batch] == whole


def test_a_part_begins_and_ends_where_it_was_asked_to(shop: MadeLog) -> None:
    assert ids(shop.read(startingVersion=2, endingVersion=4)) == [2, 3, 1]
    assert ids(shop.read(startingPosition=Position(1, 3, 0), endingPosition=Position(1, 4, 0))) == [
        3,
        1,
    ]
    at = "1970-01-01T00:00:00.004+00:00"
    assert ids(shop.read(startingTimestamp=at)) == [1, 2, 20, 3]
    assert ids(shop.read(endingTimestamp=at)) == [1, 2, 3, 1]
    assert shop.read(startingVersion=99) == []


@pytest.mark.meets("R27")
def test_below_what_is_kept_is_an_error_with_the_earliest_position(shop: MadeLog) -> None:
    shop.flush(insert(7))
    prune(shop.writer, Position(1, 3, 0))
    with pytest.raises(PositionExpired, match="begins=0001-0000000000000003-00000001"):
        shop.read(startingVersion=1)
    assert short(shop.read())[0] == (1, "update_postimage", 4)


@pytest.mark.meets("R1")
def test_a_version_alone_says_nothing_where_commits_were_numbered_twice(shop: MadeLog) -> None:
    shop.restart_history(2, "sqlite/other")
    shop.flush(insert(3))
    with pytest.raises(WrongValue, match="0001-0000000000000003-00000000, 0002-"):
        shop.read(startingVersion=3)
    rows = shop.read(startingPosition=Position(2, 3, 0))
    assert [row["_position"] for row in rows] == [str(Position(2, 3, 0))]


@pytest.mark.meets("R1")
def test_a_gap_is_an_error_that_names_the_option_to_go_on(shop: MadeLog) -> None:
    shop.restart_history(2, "sqlite/other")
    shop.flush(insert(3))
    with pytest.raises(ChangesMissing, match="onGap=continue"):
        shop.read()
    rows = shop.read(onGap="continue")
    assert short(rows)[-1] == (3, "insert", 3)
    assert [row["_position"] for row in rows] == sorted(row["_position"] for row in rows)


def test_rows_that_changed_unseen_are_told_like_a_gap(shop: MadeLog) -> None:
    shop.writer.require_baseline("orders", "partitions")
    shop.flush(insert(7))
    with pytest.raises(ChangesMissing, match="not recorded"):
        shop.read()
    assert ids(shop.read(onGap="continue"))[-1] == 7


def test_a_truncate_is_an_error_a_row_or_nothing(shop: MadeLog) -> None:
    shop.flush(truncate(7), insert(8))
    with pytest.raises(Truncated, match="onTruncate=row"):
        shop.read()
    assert short(shop.read(onTruncate="row", startingVersion=7)) == [
        (None, "truncate", 7),
        (8, "insert", 8),
    ]
    assert short(shop.read(onTruncate="ignore", startingVersion=7)) == [(8, "insert", 8)]


def test_what_lies_outside_a_part_does_not_end_it(shop: MadeLog) -> None:
    shop.flush(insert(7), truncate(8), insert(9))
    assert short(shop.read(startingVersion=9)) == [(9, "insert", 9)]
    assert short(shop.read(startingVersion=7, endingVersion=7)) == [(7, "insert", 7)]
    with pytest.raises(Truncated):
        shop.read(startingVersion=8)
    stream = shop.stream(startingVersion=9)
    assert [short(batch) for batch in stream.all()] == [[(9, "insert", 9)]]


def test_both_images_need_a_source_that_sends_them(log: MadeLog) -> None:
    schema = replace(ORDERS, whole_before=False)
    log.flush(insert(1), update(2, 1), delete(3, 1), schema=schema)
    with pytest.raises(UnknownValue, match="images=after"):
        log.read(images="both")
    assert short(log.read()) == [
        (1, "insert", 1),
        (1, "update_postimage", 2),
        (1, "delete", 3),
    ]


def test_an_update_without_the_row_from_before_is_no_row_of_nulls(log: MadeLog) -> None:
    log.flush(insert(1), Change(Op.UPDATE, 2, 0, 2_000, after={"id": 1, "name": "x"}))
    with pytest.raises(UnknownValue, match="0001-0000000000000002"):
        log.read(images="both")
    assert short(log.read())[1] == (1, "update_postimage", 2)


@pytest.mark.meets("R21")
def test_a_value_that_was_not_sent_is_an_error_unless_it_is_told_beside(log: MadeLog) -> None:
    rows = as_segment(ORDERS, [insert(1), update(2, 1)])
    unsent = pa.array([None, [2]], rows.schema.field("_unsent").type)
    rows = rows.set_column(rows.schema.get_field_index("_unsent"), "_unsent", unsent)
    log.flush_rows(rows)
    with pytest.raises(UnknownValue, match=r"marks=true"):
        log.read()
    assert ids(log.read(columns="id")) == [1, 1]
    assert [row["_unsent"] for row in log.read(marks="true")] == [None, ["name"]]
    with pytest.raises(UnknownValue):
        log.read(columns="id", where="name = 'x'")


@pytest.mark.meets("R23f")
def test_a_value_that_its_column_cannot_hold_is_an_error_or_text_beside_null(
    log: MadeLog,
) -> None:
    log.flush(
        insert(1),
        Change(Op.INSERT, 2, 0, 2_000, after={"id": 2, "name": 1.5}),
        Change(Op.DELETE, 3, 0, 3_000, before={"id": "two", "name": "y"}),
    )
    with pytest.raises(BadValue, match="column=name, position=0001-0000000000000002"):
        log.read()
    rows = log.read(marks="true")
    assert rows[1]["name"] is None
    assert [name for name, _ in rows[1]["_exact"]] == ["name"]
    assert [name for name, _ in rows[2]["_exact"]] == ["id"]
    assert rows[0]["_exact"] is None


@pytest.mark.parametrize("options", [{}, {"columns": "id"}], ids=["whole", "in part"])
def test_a_damaged_segment_is_named_with_its_position(
    shop: MadeLog, options: dict[str, str]
) -> None:
    segment = sorted((shop.data / "log" / SOURCE / "segments").iterdir())[0]
    data = bytearray(segment.read_bytes())
    at = data.index((2).to_bytes(8, "little") + (3).to_bytes(8, "little"))
    data[at] ^= 64
    segment.write_bytes(data)
    with pytest.raises(CorruptSegment) as caught:
        shop.read(**options)
    assert segment.name in str(caught.value)
    assert "position=0001-0000000000000001" in str(caught.value)


def test_a_segment_that_was_let_go_of_tells_to_read_under_a_name(shop: MadeLog) -> None:
    shop.flush(insert(7))
    reader = shop.reader()
    partitions = reader.partitions()
    prune(shop.writer, Position(1, 3, 0))
    for segment in (shop.data / "log" / SOURCE / "segments").iterdir():
        segment.unlink()
    with pytest.raises(PositionExpired, match="the option reader"):
        list(reader.read(partitions[0]))


def test_merged_segments_hold_the_same_parts(log: MadeLog) -> None:
    for commit in range(1, 41):
        log.flush(insert(commit))
    stream = log.stream(startingVersion=3, maxRowsPerBatch=2)
    assert [ids(stream.batch() or []) for _ in range(2)] == [[3, 4], [5, 6]]
    before = log.read()
    assert Compaction(log.writer).advance(log.writer.end, ()) is not None
    assert log.read() == before
    # The batch that was planned before comes again, though no flush ends there any more.
    assert ids(stream.again()) == [5, 6]
    assert [key for batch in stream.all() for key in ids(batch)] == list(range(7, 41))


def test_neighbours_are_read_by_one_task_up_to_a_size(log: MadeLog) -> None:
    for commit in range(1, 6):
        log.flush(insert(commit))
    partition = log.reader().partitions()[0]
    assert isinstance(partition, Partition)
    slices = partition.slices
    assert [len(group) for group in grouped(slices, 2 * LEAST_BYTES)] == [2, 2, 1]
    assert [len(group) for group in grouped(slices, 1)] == [1] * 5
    assert grouped([]) == []


@pytest.mark.parametrize("given", ["data", "data/log/shop", "file"])
def test_the_log_is_found_by_its_folder_or_its_data_directory(shop: MadeLog, given: str) -> None:
    location = f"file://{shop.data}" if given == "file" else str(shop.data.parent / given)
    assert len(shop.read(log=location)) == 7


def test_what_is_not_there_is_told_with_what_is(shop: MadeLog) -> None:
    with pytest.raises(BadDataDirectory):
        shop.read(log=str(shop.data.parent / "nowhere"))
    with pytest.raises(UnknownTable, match="Did you mean orders"):
        shop.read(table="order")
    with pytest.raises(UnknownColumn, match="Did you mean name"):
        shop.read(columns="id,nam")
    with pytest.raises(WrongValue, match="sources=shop"):
        shop.read(source="store")


def test_a_column_with_a_name_of_ours_must_be_left_out(log: MadeLog) -> None:
    schema = table("orders", id="int64", _position="text")
    log.flush(Change(Op.INSERT, 1, 0, 1, after={"id": 1, "_position": "x"}), schema=schema)
    with pytest.raises(BadSchema, match="option columns"):
        log.read()
    assert ids(log.read(columns="id")) == [1]


def test_the_package_brings_the_module_in_which_spark_looks() -> None:
    assert pyspark_headrace.DefaultSource.name() == "headrace"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    built = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert "src/pyspark_headrace" in built
