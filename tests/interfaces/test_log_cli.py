"""`headrace log` and `headrace log read`, on logs that a SQLite source recorded."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.changelog.position import Position
from headrace.changelog.ranges import ChangeSlice, changes, span
from headrace.cli import log as log_views
from headrace.cli.common import parse_moment, parse_seconds
from headrace.engine.engine import Engine
from headrace.errors import PositionExpired
from headrace.targets.memory import memory
from tests.interfaces.at_work import printed
from tests.support.children import python
from tests.support.patience import patience
from tests.support.shop import Shop, await_seen

ODD = "a\x1b[2Jb"


def flushed(engine: Engine, beyond: int) -> bool:
    return engine.source_info("shop").flushes > beyond


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A log of some flushes: inserts, updates, a key change, deletes, odd values."""
    made = Shop(tmp_path_factory.mktemp("shop"))
    orders = memory()
    steps = [
        "insert into orders values (20, 9007199254740993, 'paid', null)",
        f"update orders set status = '{ODD}' where id = 1",
        "update orders set id = 99 where id = 2",
        "delete from orders where id = 3",
        "update orders set customer_id = 'not a number' where id = 4",
        "update orders set status = 'paid' where id = 1",
    ]
    with made.engine(made.pipeline(orders)) as engine:
        assert engine.await_ready(patience())
        for number, step in enumerate(steps):
            before = engine.source_info("shop").flushes
            made.app.execute(step)
            # A flush each, so that there is something in the middle to damage.
            assert await_seen(partial(flushed, engine, before)), number
        end = engine.source_info("shop").end
        assert await_seen(lambda: engine.pipelines()[0].position >= end)
    made.app.execute("pragma wal_checkpoint(truncate)")
    yield made
    made.close()


def ran(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    return printed(capsys, "log", *map(str, arguments))


def lines(
    capsys: pytest.CaptureFixture[str], shop: Shop, *arguments: object
) -> list[dict[str, Any]]:
    code, out, err = ran(capsys, "read", "shop", "orders", "--data", shop.data, *arguments)
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def all_changes(shop: Shop) -> list[Position]:
    log = shop.log()
    found = []
    for piece in changes(log, "orders", span(log, ["orders"], None, None)):
        assert isinstance(piece, ChangeSlice)
        found += [piece.position(row) for row in range(piece.rows.num_rows)]
    return found


# --- the overview ------------------------------------------------------------------------------


def test_the_overview_shows_tables_positions_sizes_times_and_progress(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ran(capsys, "--data", shop.data)
    assert (code, err) == (0, "")
    places = all_changes(shop)
    assert f"shop  sqlite:{shop.path}" in out
    (row,) = [line for line in out.splitlines() if line.startswith("orders  6")]
    assert str(places[0]) in row
    assert str(places[-1]) in row
    assert "1: 10 rows" in row
    (reached,) = [line for line in out.splitlines() if line.startswith("orders    orders")]
    assert reached.split()[2:4] == [str(places[-1]), "live"]


def test_what_else_lies_between_the_logs_is_no_log(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    stray = shop.data / "log" / "note.txt"
    stray.touch()
    code, out, _ = ran(capsys, "--json", "--data", shop.data)
    stray.unlink()
    assert code == 0
    assert [json.loads(line)["source"] for line in out.splitlines()] == ["shop"]


def test_a_log_without_changes_has_no_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = Shop(tmp_path)
    with quiet.engine(quiet.pipeline(memory())) as engine:
        assert engine.await_ready(patience())
    end = quiet.log().end
    quiet.close()
    code, out, _ = ran(capsys, "--data", quiet.data)
    assert code == 0
    assert f"no changes yet, up to {end}" in out
    assert f" to {end}" not in out.replace(f"up to {end}", "")


def test_the_overview_as_json_has_every_number(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ran(capsys, "--data", shop.data, "--json", "--source", "shop")
    assert (code, err) == (0, "")
    found = json.loads(out)
    (table,) = found["tables"]
    assert (table["changes"], table["segments"]) == (6, 6)
    assert (table["inserts"], table["updates"], table["deletes"]) == (1, 4, 1)
    assert [table["first"], table["last"]] == [
        str(each) for each in (all_changes(shop)[0], all_changes(shop)[-1])
    ]
    assert datetime.fromisoformat(table["since"]) <= datetime.fromisoformat(table["until"])
    assert table["baseline"]["rows"] == 10
    segments = list((shop.data / "log" / "shop" / "segments").iterdir())
    assert table["bytes"] + table["baseline"]["bytes"] == sum(e.stat().st_size for e in segments)
    assert found["bytes_on_disk"] > table["bytes"]
    (progress,) = found["progress"]
    assert progress["pipeline"] == "orders"
    assert progress["position"] == table["last"]


def test_a_narrow_terminal_gets_lines_and_no_position_is_folded(shop: Shop) -> None:
    from headrace.changelog.ranges import inventory

    info = inventory(shop.log(), "shop")
    parts = [str(part) for part in log_views.overview(info, [], 1_000, 80)]
    assert any(str(info.tables[0].last) in part for part in parts)
    assert max(map(len, parts[1:])) <= 80  # but for the database's path


def test_the_overview_of_a_folder_without_a_log_and_of_an_unknown_source(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").mkdir()
    assert ran(capsys, "--data", tmp_path) == (0, "No log yet.\n", "")
    code, _, err = ran(capsys, "--data", tmp_path / "nowhere")
    assert (code, "control.bad_data_directory" in err) == (2, True)
    assert "Engine(" not in err
    for arguments in (("--source", "nobody"), ("read", "nobody", "orders")):
        code, _, err = ran(capsys, *arguments, "--data", shop.data)
        assert (code, "There is no log of source" in err) == (2, True)
        assert "Use one of shop." in err


# --- reading -----------------------------------------------------------------------------------


def test_changes_are_printed_in_order_with_exact_values(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    found = lines(capsys, shop)
    assert [each["position"] for each in found] == [str(each) for each in all_changes(shop)]
    assert [each["op"] for each in found] == [
        "insert",
        "update",
        "update",
        "delete",
        "update",
        "update",
    ]
    assert found[0]["after"] == {
        "id": 20,
        "customer_id": 9007199254740993,
        "status": "paid",
        "card": None,
    }
    assert found[0]["before"] is None
    assert found[1]["after"]["status"] == ODD
    assert (found[2]["before"]["id"], found[2]["after"]["id"]) == (2, 99)
    assert found[3]["after"] is None
    assert found[4]["after"]["customer_id"] == {"exact": "not a number"}
    for each in found:
        assert datetime.fromisoformat(each["time"]).utcoffset() is not None
        assert each["unsent"] == []


def test_a_part_is_chosen_by_position_time_and_limit(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [str(each) for each in all_changes(shop)]

    def read(*arguments: object) -> list[str]:
        return [each["position"] for each in lines(capsys, shop, *arguments)]

    assert read("--from", places[1], "--to", places[3]) == places[1:4]
    assert read("--limit", 2) == places[:2]
    assert read("--from", places[2], "--limit", 1) == places[2:3]
    assert read("--from", "-2h") == places
    assert read("--to=-2h") == []
    assert read("--from", "2020-01-01", "--to", "now") == places
    instant = lines(capsys, shop)[2]["time"]
    assert places[2] in read("--from", instant, "--to", instant)


def test_reading_before_the_log_begins_is_an_error(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    early = "0001-0000000000000000-00000000"
    code, out, err = ran(capsys, "read", "shop", "orders", "--data", shop.data, "--from", early)
    assert (code, out) == (PositionExpired.exit_code, "")
    assert "changelog.expired" in err
    assert early in err


@pytest.mark.parametrize("text", ["tomorrow", "0001-4b4-0", "-2", "2026-13-01", "-2h30s5m"])
def test_what_is_no_place_is_wrong_usage(
    text: str, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ran(capsys, "read", "shop", "orders", "--data", shop.data, "--from", text)
    assert (code, out) == (2, "")
    assert "is not a position" in err


def test_a_time_without_an_offset_is_utc_and_a_span_is_counted_back() -> None:
    now = datetime.fromisoformat("2026-11-15T12:00:00+00:00")
    assert parse_moment("2026-11-15T10:00", now) == datetime.fromisoformat("2026-11-15T10:00Z")
    assert parse_moment("2026-11-15T10:00+02:00", now) == datetime.fromisoformat(
        "2026-11-15T08:00Z"
    )
    assert parse_moment("-2h", now) == datetime.fromisoformat("2026-11-15T10:00Z")
    assert parse_moment("now", now) == now
    assert parse_seconds("2h") == 7200


def test_an_unknown_table_and_forms_that_do_not_go_together_are_refused(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = ran(capsys, "read", "shop", "nothing", "--data", shop.data)
    assert (code, "has no table" in err) == (2, True)
    assert "Use one of orders." in err
    for wrong in (
        ["--format", "parquet"],
        ["--format", "table", "--json"],
        ["--format", "parquet", "--envelope", "debezium", "--output", "x"],
    ):
        code, _, _ = ran(capsys, "read", "shop", "orders", "--data", shop.data, *wrong)
        assert code == 2


def test_lines_for_people_show_what_changed_and_obey_nothing_in_it(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ran(capsys, "read", "shop", "orders", "--data", shop.data, "--format", "table")
    assert (code, err) == (0, "")
    header, *found = out.splitlines()
    assert header.split() == ["position", "time", "op", "values"]
    assert len(found) == 6
    assert "\x1b" not in out
    assert r"status=paid→a\x1b[2Jb" in found[1]
    assert "id=2→99" in found[2]
    assert "customer_id=4→not a number" in found[4]
    assert "card=null" in found[0]


def test_a_file_is_written_in_place_of_stdout(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = lines(capsys, shop)
    file = tmp_path / "changes.jsonl"
    assert lines(capsys, shop, "--output", file) == []
    assert [json.loads(line) for line in file.read_text().splitlines()] == wanted


def test_parquet_holds_the_same_changes(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = lines(capsys, shop)
    file = tmp_path / "changes.parquet"
    code, out, err = ran(
        capsys,
        *("read", "shop", "orders", "--data", shop.data),
        *("--format", "parquet", "--output", file),
    )
    assert (code, out) == (0, "")
    assert err.startswith("6 changes in")
    found = pq.read_table(file).to_pylist()
    assert [row["position"] for row in found] == [each["position"] for each in wanted]
    assert [row["op"] for row in found] == [each["op"] for each in wanted]
    assert [row["time"].isoformat(timespec="microseconds") for row in found] == [
        each["time"] for each in wanted
    ]
    assert found[0]["after"] == wanted[0]["after"]
    assert found[0]["before"] is None
    assert found[4]["after"]["customer_id"] is None
    assert found[4]["exact"] == [("customer_id", "not a number")]
    assert list(tmp_path.iterdir()) == [file]


def test_debeziums_envelope_is_for_each_change_the_key_change_two(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    found = lines(capsys, shop, "--envelope", "debezium")
    assert [each["op"] for each in found] == ["c", "u", "d", "c", "d", "u", "u"]
    assert {each["source"]["connector"] for each in found} == {"sqlite"}
    assert {each["source"]["db"] for each in found} == {"shop.db"}
    assert [each["source"]["position"] for each in found][:2] == [
        str(each) for each in all_changes(shop)[:2]
    ]
    assert found[0]["ts_us"] >= found[0]["source"]["ts_us"]


# --- damage ------------------------------------------------------------------------------------


def segment_of(shop: Shop, number: int) -> Path:
    log = shop.log()
    pieces = [*changes(log, "orders", span(log, ["orders"], None, None))]
    piece = pieces[number]
    assert isinstance(piece, ChangeSlice)
    return Path(log.path(piece.file))


@pytest.mark.parametrize("form", ["json", "table"])
def test_a_damaged_segment_in_the_middle_is_an_error_after_all_before_it(
    form: str, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [str(each) for each in all_changes(shop)]
    file = segment_of(shop, 3)
    whole = file.read_bytes()
    try:
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        code, out, err = ran(
            capsys, "read", "shop", "orders", "--data", shop.data, "--format", form
        )
    finally:
        file.write_bytes(whole)
    assert code == 1
    assert [place for place in places if place in out] == places[:3]
    # Where a line is folded is a matter of the terminal's width.
    told = "".join(err.split())
    assert "changelog.corrupt_segment" in told
    assert str(file) in told
    assert places[3] in told


def test_with_json_the_error_is_the_last_line(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    file = segment_of(shop, 2)
    whole = file.read_bytes()
    try:
        file.unlink()
        code, out, _ = ran(capsys, "read", "shop", "orders", "--data", shop.data, "--json")
    finally:
        file.write_bytes(whole)
    *found, last = [json.loads(line) for line in out.splitlines()]
    assert (code, len(found)) == (1, 2)
    assert last["error"]["code"] == "changelog.corrupt_segment"
    assert last["error"]["facts"]["file"] == str(file)
    assert last["error"]["facts"]["position"] == str(all_changes(shop)[2])


def test_a_parquet_file_that_would_end_early_is_not_left_behind(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = segment_of(shop, 5)
    whole = file.read_bytes()
    output = tmp_path / "changes.parquet"
    try:
        file.write_bytes(b"")
        code, _, err = ran(
            capsys,
            *("read", "shop", "orders", "--data", shop.data),
            *("--format", "parquet", "--output", output),
        )
    finally:
        file.write_bytes(whole)
    assert (code, "changelog.corrupt_segment" in err) == (1, True)
    assert list(tmp_path.iterdir()) == []


# --- as a process ------------------------------------------------------------------------------


@pytest.mark.process
def test_it_runs_beside_an_engine_without_spark_and_changes_nothing(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.engine(shop.pipeline(memory())) as engine:
        assert engine.await_ready(patience())
        shop.insert(range(50, 60))
        assert await_seen(lambda: engine.source_info("shop").captured >= 10)
        before = sorted(str(path) for path in (shop.data / "log").rglob("*"))
        program = (
            "import sys; from headrace.cli import main;"
            " code = main.exit_code(['log', 'read', 'shop', 'orders', '--json',"
            f" '--data', {str(shop.data)!r}]); assert 'pyspark' not in sys.modules; sys.exit(code)"
        )
        done = python(
            "-c", program, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=True
        )
        assert len(done.stdout.splitlines()) == 10
        assert sorted(str(path) for path in (shop.data / "log").rglob("*")) == before
        assert engine.is_ready()
    shop.close()
