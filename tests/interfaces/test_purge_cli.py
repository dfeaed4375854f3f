"""`headrace dead-letters purge`, `summary` and long lists: with a running engine, and without."""

from __future__ import annotations

import getpass
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.api.server import serve
from headrace.deadletters.ledger import Selection
from headrace.deadletters.store import DeadLetterStore, open_store, read_letters
from headrace.engine.engine import Engine
from headrace.pipeline.definition import DeadLetters, Pipeline
from headrace.runtime.lease import Lease
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.targets.memory import memory
from tests.interfaces.at_work import printed
from tests.pipeline.letter_making import at, inserted, letter, moved
from tests.pipeline.making import insert, table
from tests.support.arrow_runner import ArrowRunner, Row
from tests.support.shop import PATIENCE, Market, await_that

CUSTOMERS = table(("id", "int64"), ("name", "text"), name="customers")


def opened(data: Path, pipeline: str = "orders") -> DeadLetterStore:
    return DeadLetterStore.open(files_of(data), pipeline, lambda: datetime.now(UTC).timestamp())


def files_of(data: Path) -> Files:
    return Files(RealDisk(), str(data))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Letters of two pipelines."""
    opened(tmp_path, "billing").add([letter(insert(2, {"id": 7}), schema=CUSTOMERS)])
    orders = opened(tmp_path)
    orders.add([inserted(1, 1), moved(2, 1, 2, kind="behind"), inserted(3, 3, code="CAST")])
    orders.add([inserted(4, 4)])
    return tmp_path


def ran(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    return printed(capsys, "dead-letters", *map(str, arguments))


def commits(data: Path, pipeline: str = "orders") -> list[int]:
    return [each.position.commit for each in read_letters(files_of(data), pipeline)]


# --- without an engine ----------------------------------------------------------------------------


@pytest.mark.meets("R30", "TYP-32")
def test_a_purge_asks_first_and_says_what_it_means_and_what_repairs_it(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(question: str, default: bool) -> bool:
        asked.append(question)
        return len(asked) > 1

    monkeypatch.setattr("click.confirm", answer)
    code, out, err = ran(capsys, "purge", "orders", "--data", data)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "orders: 4 dead letters of 4 rows would be purged"
    assert "given up for good" in out
    assert "may differ" in out
    assert commits(data) == [1, 2, 3, 4], "the answer was no"
    code, out, err = ran(capsys, "purge", "orders", "--position", at(1), "--data", data)
    assert (code, out.splitlines()[0]) == (0, "orders: 2 dead letters of 2 rows would be purged")
    assert out.splitlines()[-1] == "✓ purged"
    assert f"reload orders --table orders --data {data}" in err
    assert commits(data) == [3, 4]
    assert asked == ["Purge them?"] * 2
    assert opened(data).purged_keys() == {"orders": 2}


def test_a_question_without_somebody_to_answer_is_an_error_on_a_line_of_its_own(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    code, out, err = ran(capsys, "purge", "orders", "--data", data)
    assert code == 2
    assert out.endswith("Purge them? [y/N]: \n")
    assert "Cannot ask for confirmation without a terminal" in err
    assert commits(data) == [1, 2, 3, 4]


def test_a_purge_does_only_what_its_options_name(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def purged(*options: object) -> dict[str, Any]:
        code, out, _ = ran(capsys, "purge", *options, "--data", data, "--json")
        assert code == 0
        return dict(json.loads(out))

    nothing = purged("orders", "--before", "-1h", "--yes")
    assert nothing == {"pipeline": "orders", "done": False, "tables": []}
    found = purged("orders", "--code", "CAST")
    assert found["tables"] == [{"table": "orders", "dead_letters": 1, "keys": 1}]
    assert not found["done"], "--json does not ask"
    assert not purged("orders", "--dry-run", "--yes")["done"]
    assert commits(data) == [1, 2, 3, 4]
    assert purged("orders", "--code", "CAST", "--note", "known", "--yes")["done"]
    assert commits(data) == [1, 2, 4]
    purged("orders", "--before", at(4), "--table", "orders", "--yes")
    assert commits(data) == [4]
    assert commits(data, "billing") == [2]
    notes = [each.note for each in read_letters(files_of(data), "orders", superseded=True)]
    assert all(note.startswith(f"{getpass.getuser()} on ") for note in notes[:3])
    assert notes[2].endswith(": known")
    assert notes[3] == ""
    _, out, _ = ran(capsys, "list", "orders", "--all", "--data", data)
    assert out.count("purged") == 3


def test_a_purge_of_nothing_says_so_and_of_nobody_is_an_error(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    code, out, _ = ran(capsys, "purge", "orders", "--code", "NONE", "--yes", "--data", data)
    assert (code, out) == (0, "No dead letters.\n")
    code, _, err = ran(capsys, "purge", "nobody", "--yes", "--data", data)
    assert code == 2
    assert "There is no pipeline nobody" in err
    code, _, err = ran(capsys, "purge", "orders", "--position", "nine", "--data", data)
    assert code == 2
    assert "is not a position" in err


@pytest.mark.meets("R31")
def test_a_purge_is_refused_while_a_process_without_a_socket_has_the_directory(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = Lease(data, lambda: 0.0)
    code, _, err = ran(capsys, "purge", "orders", "--yes", "--data", data)
    lease.release()
    assert code != 0
    assert "control.locked" in err
    assert commits(data) == [1, 2, 3, 4]


def test_the_page_of_a_purged_letter_says_who_gave_it_up(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(data).purge(Selection(position=at(3)), "Ada: known")
    _, out, _ = ran(capsys, "show", at(3), "--data", data)
    assert "nothing, it was purged by Ada: known." in out


def test_long_lists_come_in_pages(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*options: object) -> list[int]:
        code, out, _ = ran(capsys, "list", *options, "--data", data, "--json")
        assert code == 0
        positions = [json.loads(line)["position"] for line in out.splitlines()]
        return [int(each.split("-")[1], 16) for each in positions]

    assert listed("orders", "--limit", 2) == [1, 2]
    assert listed("orders", "--limit", 2, "--after", at(2)) == [3, 4]
    assert listed("orders", "--after", at(4)) == []
    assert listed("--limit", 2) == [2, 1]
    code, _, err = ran(capsys, "list", "--after", at(2), "--data", data)
    assert code == 2
    assert "--after needs a PIPELINE" in err


def test_the_summary_counts_by_table_and_reason_and_the_rows_that_were_given_up(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = ran(capsys, "summary", "orders", "--data", data)
    assert code == 0
    assert [line.split() for line in out.splitlines()[2:]] == [
        ["orders", "orders", "behind", "1"],
        ["orders", "orders", "failed", "CAST", "1"],
        ["orders", "orders", "failed", "DIVIDE_BY_ZERO", "2"],
    ]
    opened(data).purge(Selection())
    _, out, _ = ran(capsys, "summary", "orders", "--data", data)
    assert out.startswith("No dead letters.\n4 rows of orders may differ from the source")
    _, out, _ = ran(capsys, "summary", "--data", data, "--json")
    assert json.loads(out) == {
        "dead_letters": [
            {
                "pipeline": "billing",
                "table": "customers",
                "kind": "failed",
                "code": "DIVIDE_BY_ZERO",
                "count": 1,
            }
        ],
        "rows_given_up": [{"pipeline": "orders", "table": "orders", "rows": 4}],
    }


def test_both_find_the_data_directory_as_the_configuration_says(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    config = data / "shop.conf"
    config.write_text(f'data = "{data}"')
    for options in (["--config", config], ["--set", f"data={data}"]):
        code, out, _ = ran(capsys, "summary", "orders", *options)
        assert (code, len(out.splitlines())) == (0, 5)
        code, out, _ = ran(capsys, "purge", "orders", "--dry-run", *options)
        assert (code, out.splitlines()[0]) == (
            0,
            "orders: 4 dead letters of 4 rows would be purged",
        )


def test_dead_letters_that_only_an_engine_has_are_not_called_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_store(files_of(tmp_path), "orders", lambda: 0.0, DeadLetters(store="memory"))
    _, _, err = ran(capsys, "list", "--data", tmp_path)
    assert "Dead letters of orders are in memory, and are gone when its engine stops." in err


# --- with an engine -------------------------------------------------------------------------------


def fails(pipeline: Pipeline, row: Row) -> str | None:
    return "DIVIDE_BY_ZERO" if row["status"] == "bad" else None


@pytest.fixture(params=["local", "memory"])
def engine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    market = Market(tmp_path)
    policy = DeadLetters(store=request.param)
    pipeline = market.pipeline(memory(), on_error=policy)
    with market.engine(pipeline, runner=ArrowRunner(fails=fails)) as engine:
        assert engine.await_ready(PATIENCE)
        market.put("orders", 2, status="bad")
        market.put("orders", 3, status="bad")
        assert await_that(engine, lambda: len(engine.dead_letters()) == 2)
        with serve(engine, market.data, service="shop"):
            yield engine


@pytest.mark.meets("R30", "TYP-32", "ENG-49")
def test_an_engine_that_runs_purges_and_lists_wherever_its_store_is(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    first, second = engine.dead_letters()
    _, out, _ = ran(capsys, "list", "orders", "--data", data, "--json")
    assert [json.loads(line)["position"] for line in out.splitlines()] == [
        str(first.position),
        str(second.position),
    ]
    code, out, _ = ran(
        capsys, "purge", "orders", "--before", second.position, "--yes", "--data", data, "--json"
    )
    assert code == 0
    assert json.loads(out) == {
        "pipeline": "orders",
        "done": True,
        "tables": [{"table": "orders", "dead_letters": 1, "keys": 1}],
    }
    assert engine.dead_letters() == (second,)
    # A time, and nothing that is so old.
    ran(capsys, "purge", "orders", "--before", "-1h", "--yes", "--data", data)
    assert engine.dead_letters() == (second,)
    code, out, err = printed(capsys, "status", "--data", str(data))
    assert "Rows may differ from those of the source" in out + err
    _, out, _ = ran(capsys, "summary", "--data", data, "--json")
    assert json.loads(out)["rows_given_up"] == [
        {"pipeline": "orders", "table": "orders", "rows": 1}
    ]
