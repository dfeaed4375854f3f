"""`headrace dead-letters`: read from a data directory, without an engine and without Spark."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from headrace.changelog.values import BeyondDate, BeyondTime, BeyondTimestamp, Interval, OffsetTime
from headrace.cli import dead_letters as views
from headrace.cli.dead_letters import value_object
from headrace.deadletters.store import DeadLetterStore, read_letters
from headrace.runtime.store import ProgressStore
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from tests.changelog.test_value_table import FITTING, same
from tests.interfaces.at_work import printed
from tests.pipeline.letter_making import at, deleted, inserted, letter, moved, order
from tests.pipeline.making import insert, table, update
from tests.support.tiers import examples

ROOT = Path(__file__).parent.parent.parent
CUSTOMERS = table(("id", "int64"), ("name", "text"), name="customers")


def opened(data: Path, pipeline: str) -> DeadLetterStore:
    parked = datetime.now(UTC) - timedelta(minutes=5, seconds=30)
    return DeadLetterStore.open(Files(RealDisk(), str(data)), pipeline, parked.timestamp)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Letters of two pipelines, one of them superseded."""
    billing = opened(tmp_path, "billing")
    billing.add([letter(insert(2, {"id": 7, "name": "Ada"}), schema=CUSTOMERS)])
    billing.add([inserted(1, 1)])
    billing.clear("orders", at(1), "truncate")
    orders = opened(tmp_path, "orders")
    facts = {"column": "total", "message": "Division by zero"}
    orders.add([letter(update(4, order(1), order(1, qty=0)), facts=facts)])
    orders.add([moved(5, 1, 2, kind="behind"), deleted(6, 2, kind="behind")])
    orders.add([inserted(0, 9, baseline=(3, at(3)), code="CAST_INVALID_INPUT")])
    return tmp_path


def ran(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    return printed(capsys, "dead-letters", *map(str, arguments))


# --- list --------------------------------------------------------------------------------------


@pytest.mark.meets("R30")
def test_the_list_names_every_letter_and_counts_them(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ran(capsys, "list", "--data", data)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["pipeline", "table", "position", "key", "op", "kind", "code", "age"]
    found = [line.split() for line in lines[2:7]]
    assert found[0][:5] == ["billing", "customers", str(at(2)), "7", "insert"]
    assert found[1][2:7] == [str(at(3)), "9", "baseline", "failed", "CAST_INVALID_INPUT"]
    assert found[2][3:] == ["1", "update", "failed", "DIVIDE_BY_ZERO", "5", "min"]
    assert found[3][3:] == ["2", "update", "behind", "5", "min"]
    assert found[4][3:] == ["2", "delete", "behind", "5", "min"]
    assert lines[-1] == "5 dead letters, 4 keys held."


def test_the_list_can_be_of_one_pipeline_of_one_table_and_with_history(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def positions(*arguments: str) -> list[str]:
        code, out, _ = ran(capsys, "list", *arguments, "--data", data, "--json")
        assert code == 0
        return [json.loads(line)["position"] for line in out.splitlines()]

    assert positions("billing") == [str(at(2))]
    assert positions("billing", "--all") == [str(at(1)), str(at(2))]
    assert positions("--table", "customers") == [str(at(2))]
    assert positions("orders", "--table", "orders") == positions("orders")
    assert positions("billing", "--table", "orders") == []  # there is history of it
    _, out, _ = ran(capsys, "list", "billing", "--all", "--data", data)
    assert "superseded" in out.splitlines()[0]
    assert "truncate" in out
    assert "2 dead letters, 1 key held." in out


@pytest.mark.parametrize("columns", [72, 80, 120])
def test_the_list_fits_a_terminal_and_folds_no_position(data: Path, columns: int) -> None:
    letters = read_letters(Files(RealDisk(), str(data)), superseded=True)
    console = Console(width=columns, record=True, file=io.StringIO())
    console.print(
        views.dead_letter_list(letters, datetime.now(UTC), console.width, superseded=columns == 120)
    )
    out = console.export_text()
    lines = out.splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) == (2 * len(letters) if columns < 120 else 2 + len(letters))
    for each in letters:
        assert str(each.position) in out
        assert each.code in out


def test_where_there_are_none_it_says_so_and_that_is_no_failure(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(data, "orders").clear("orders", at(99), "reload")
    assert ran(capsys, "list", "orders", "--data", data) == (0, "No dead letters.\n", "")
    fresh = tmp_path / "fresh"
    (fresh / "log").mkdir(parents=True)
    assert ran(capsys, "list", "--data", fresh) == (0, "No dead letters.\n", "")
    assert ran(capsys, "list", "--data", fresh, "--json") == (0, "", "")
    assert [path.name for path in fresh.iterdir()] == ["log"]


def test_a_name_that_nobody_knows_is_an_error_that_lists_the_known_ones(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, known in (
        (["list", "nope"], "Use one of billing, orders."),
        (["list", "--table", "nope"], "Use one of customers, orders."),
        (["list", "orders", "--table", "customers"], "Use one of orders."),
        (["show", at(4), "--pipeline", "nope"], "Use one of billing, orders."),
    ):
        code, out, err = ran(capsys, *arguments, "--data", data)
        assert (code, out) == (2, "")
        assert known in err
    store = ProgressStore.at(data / "control.sqlite")
    store.take_over()
    store.advance("stored", ["visits"], "test/1", at(5))
    store.close()
    (tmp_path / "headrace.conf").write_text("pipelines.configured.tables = [parcels]")
    # One that is stored or configured and has no letters has none: that is an answer.
    for words in (
        ["stored"],
        ["configured"],
        ["--table", "parcels"],
        ["stored", "--table", "visits"],
    ):
        assert ran(capsys, "list", *words, "--data", data) == (0, "No dead letters.\n", "")


def test_letters_are_found_where_the_configuration_says(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    listed, shown = ran(capsys, "list", "--data", data), ran(capsys, "show", at(4), "--data", data)
    assert f"reload orders --table orders --data {data}\n" in shown[1]
    (tmp_path / "other.conf").write_text(f'data = "{data}"\n')
    for options in (["--config", "other.conf"], ["--set", f"data={data}"]):
        assert ran(capsys, "list", *options) == listed
        code, out, err = ran(capsys, "show", at(4), *options)
        # The command that is suggested selects the engine as this one did.
        assert (code, out.replace(" ".join(options), f"--data {data}"), err) == shown
    (tmp_path / "headrace.conf").write_text(f'data = "{data}"\n')
    assert ran(capsys, "list") == listed


@pytest.mark.parametrize("make", [False, True], ids=["absent", "of something else"])
def test_a_folder_no_engine_has_used_is_an_error_with_a_remedy(
    make: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "nowhere"
    if make:
        folder.mkdir()
    for verb in (["list"], ["show", str(at(1))]):
        code, out, err = ran(capsys, *verb, "--data", folder)
        assert (code, out) == (2, "")
        assert "control.bad_data_directory" in err
        assert "headrace run" in err
        assert "control.bad_data_directory" in err
    code, out, _ = ran(capsys, "list", "--data", folder, "--json")
    assert (code, json.loads(out)["error"]["code"]) == (2, "control.bad_data_directory")
    assert folder.exists() == make


def test_a_damaged_file_is_named(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = data / "dead-letters" / "orders" / "000000000001.letters"
    file.write_bytes(file.read_bytes()[:-1])
    code, _, err = ran(capsys, "list", "--data", data)
    assert code == 1
    assert str(file) in err.replace("\n", "")
    assert "pipeline.corrupt_letters" in err


# --- show --------------------------------------------------------------------------------------


@pytest.mark.meets("R30", "S2")
def test_a_letter_is_shown_with_both_images_its_reason_and_what_to_do(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ran(capsys, "show", at(4), "--data", data)
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert ["column", "before", "after"] in rows
    assert ["qty", "1", "0"] in rows
    assert ["price", "null", "null"] in rows
    assert ["why", "DIVIDE_BY_ZERO"] in rows
    assert ["message", "Division", "by", "zero"] in rows
    assert "2 later changes are waiting, in this order:" in out
    assert f"{at(5)}  update" in out
    assert f"{at(6)}  delete" in out
    assert "engine.reload(source, 'orders')" in out


def test_the_step_and_the_column_that_failed_are_named(tmp_path: Path) -> None:
    failed = update(4, order(1), order(1, qty=0))
    for number, (facts, named) in enumerate(
        [
            ({"step": "transform 2", "column": "cents"}, "expression of column cents in transform"),
            ({"step": "filters"}, "fix the filters, or the row in the source."),
        ]
    ):
        opened(tmp_path / str(number), "orders").add([letter(failed, facts=facts)])
        (found,) = read_letters(Files(RealDisk(), str(tmp_path / str(number))))
        assert named in views.what_to_do(found)


def test_a_letter_behind_another_says_which(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ran(capsys, "show", at(6), "--data", data)
    assert f"Waits for the dead letter at {at(4)}." in out
    assert "No later changes are waiting." in out
    assert "fix the cause of the first dead letter of this row" in out


def test_a_superseded_letter_and_a_baselines_row_are_shown_as_such(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = ran(capsys, "show", at(1), "--data", data)
    assert "What to do: nothing, it was superseded by a truncate." in out
    _, out, _ = ran(capsys, "show", at(3), "--data", data)
    assert "row of baseline 3" in out


def test_all_letters_of_a_position_are_shown_or_those_of_a_pipeline(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(data, "copy").add([inserted(4, 1)])
    _, out, _ = ran(capsys, "show", at(4), "--data", data)
    assert out.count("Dead letter 0001") == 2
    _, out, _ = ran(capsys, "show", at(4), "--data", data, "--pipeline", "copy")
    assert out.count("Dead letter 0001") == 1
    assert "No later changes are waiting." in out


def test_a_letter_as_json_names_what_is_behind_it(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = ran(capsys, "show", at(4), "--data", data, "--json")
    found = json.loads(out)
    assert found.pop("parked").endswith("+00:00")
    assert found == {
        "pipeline": "orders",
        "table": "orders",
        "position": str(at(4)),
        "lineage": "sqlite/a",
        "baseline": None,
        "op": "update",
        "kind": "failed",
        "code": "DIVIDE_BY_ZERO",
        "facts": {"column": "total", "message": "Division by zero"},
        "key": [1],
        "before": {"id": 1, "status": "new", "qty": 1, "price": None},
        "after": {"id": 1, "status": "new", "qty": 0, "price": None},
        "time": "1970-01-01T00:00:00.000004+00:00",
        "superseded": None,
        "ended": None,
        "note": "",
        "behind": [str(at(5)), str(at(6))],
    }


@pytest.mark.parametrize(
    ("position", "words"),
    [("7", "'7' is not a position such as 0001-"), (str(at(77)), "There is no dead letter at")],
)
def test_a_position_that_is_none_or_has_no_letter_is_wrong_usage(
    position: str, words: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ran(capsys, "show", position, "--data", data)
    assert (code, out) == (2, "")
    assert words in err.replace("\n  ", " ")


# --- values ------------------------------------------------------------------------------------


def from_object(value: Any) -> object:
    """Make the value again from the JSON that was documented."""
    if isinstance(value, list):
        return [from_object(each) for each in value]
    if not isinstance(value, dict):
        return value
    text = value["value"]
    match value:
        case {"kind": "date", "days": days}:
            return BeyondDate(days)
        case {"kind": "timestamp" | "timestamptz" as kind, "micros": micros}:
            return BeyondTimestamp(micros, utc=kind == "timestamptz")
        case {"kind": "time", "micros": micros}:
            return BeyondTime(micros)
        case {"kind": "timetz", "micros": micros, "offset": offset}:
            return OffsetTime(micros, offset)
        case {"kind": "interval", "months": months, "days": days, "micros": micros}:
            return Interval(months, days, micros)
        case {"kind": "bytes"}:
            return base64.b64decode(text)
        case {"kind": "text_bytes"}:
            return base64.b64decode(text).decode(errors="surrogateescape")
        case {"kind": "struct"}:
            return {name: from_object(each) for name, each in text.items()}
        case {"kind": kind}:
            makers: dict[str, Any] = {
                "int": lambda digits: int(Decimal(digits)),
                "float": float,
                "decimal": Decimal,
                "uuid": UUID,
                "date": date.fromisoformat,
                "timestamp": datetime.fromisoformat,
                "timestamptz": datetime.fromisoformat,
                "time": time.fromisoformat,
            }
            return makers[kind](text)
    raise AssertionError(value)


@pytest.mark.parametrize("kind", sorted(FITTING))
@examples(30)
@given(data=st.data())
def test_every_value_can_be_made_again_from_its_json(kind: str, data: st.DataObject) -> None:
    value = data.draw(FITTING[kind])
    line = json.dumps(value_object(value), allow_nan=False)
    back = from_object(json.loads(line))
    assert same(back, value)
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2**53 + 1, {"kind": "int", "value": "9007199254740993"}),
        (2**53, 2**53),
        pytest.param(10**5000, {"kind": "int", "value": "1" + "0" * 5000}, id="long"),
        (1.0, 1.0),
        (Decimal("1.50"), {"kind": "decimal", "value": "1.50"}),
        (b"\0\xff", {"kind": "bytes", "value": "AP8="}),
        ("a\udcff", {"kind": "text_bytes", "value": "Yf8="}),
        ([1, {"a": None}], [1, {"kind": "struct", "value": {"a": None}}]),
        (3j, {"kind": "other", "value": "3j"}),
    ],
)  # fmt: skip
def test_values_as_json_have_their_kind(value: object, shown: object) -> None:
    assert value_object(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        ("null", "'null'"),
        ("12", "'12'"),
        (12, "12"),
        ("a b", "a b"),
        (b"\1", "X'01'"),
    ],
)
def test_values_for_people_can_be_told_apart(value: object, shown: str) -> None:
    assert views.exact_value_text(value) == shown


@pytest.mark.meets("P8")
def test_no_value_can_move_the_cursor_of_a_terminal_or_pass_for_markup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "[red]x\x1b[2J\r\n\u202e"
    schema = table(("id", "text"), (evil, "text"))
    facts = {evil: evil}
    opened(tmp_path, "orders").add(
        [letter(insert(1, {"id": evil, evil: evil}), schema=schema, code=evil, facts=facts)]
    )
    for arguments in (["list"], ["show", str(at(1))]):
        _, out, _ = ran(capsys, *arguments, "--data", tmp_path)
        assert "\x1b" not in out
        assert "\r" not in out
        assert "\u202e" not in out
        assert r"[red]x\x1b[2J\r\n\u202e" in out


def test_ages_are_told_in_their_largest_unit() -> None:
    now = datetime(2026, 11, 15, tzinfo=UTC)
    seconds = (-5, 0, 59, 60, 3_599, 3_600, 86_399, 86_400 * 3)
    told = [views.age(now - timedelta(seconds=each), now) for each in seconds]
    assert told == ["0 s", "0 s", "59 s", "1 min", "59 min", "1 h", "23 h", "3 d"]


# --- as a process --------------------------------------------------------------------------------


@pytest.fixture
def plain() -> Iterator[dict[str, str]]:
    yield {
        **{name: value for name, value in os.environ.items() if name in ("PATH", "HOME")},
        "PYTHONPATH": str(ROOT / "src"),
    }


@pytest.mark.process
def test_letters_are_read_without_spark(data: Path, plain: dict[str, str]) -> None:
    program = (
        "import sys; from headrace.cli.main import exit_code\n"
        f"assert exit_code(['dead-letters', 'list', '--data', {str(data)!r}]) == 0\n"
        f"assert exit_code(['dead-letters', 'show', '{at(4)}', '--data', {str(data)!r}]) == 0\n"
        "heavy = {'pyspark', 'py4j', 'pandas', 'headrace.runtime', 'headrace.engine.engine'}\n"
        "assert not heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=plain, capture_output=True)


@pytest.mark.process
def test_no_colour_is_shown_where_none_is_wanted(data: Path, plain: dict[str, str]) -> None:
    def out(**more: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "headrace", "dead-letters", "list", "--data", str(data)],
            check=True,
            env={**plain, "FORCE_COLOR": "1", "TERM": "xterm-256color", **more},
            capture_output=True,
            text=True,
        ).stdout

    assert "\x1b[31m" in out()
    assert "\x1b[31m" not in out(NO_COLOR="1")
