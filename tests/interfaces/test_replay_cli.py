"""`headrace replay`: a configuration, a log, and a target beside the live one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.cli import main, replay
from headrace.pipeline.batch import Runner
from headrace.targets.memory import memory
from tests.interfaces.at_work import printed
from tests.support.arrow_runner import ArrowRunner
from tests.support.children import python
from tests.support.patience import patience
from tests.support.shop import Shop, await_seen

CONF = """
data = data
sources.shop { type = sqlite, path = "shop.db" }
pipelines.orders {
  source = shop
  tables = [orders]
  filters = [{ type = field-equals, field = status, value = paid }]
  transforms = [{ type = drop-fields, fields = [card] }]
  target { type = indexed-memory }
}
"""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    (tmp_path / "headrace.conf").write_text(CONF)
    live = memory()
    with made.engine(made.pipeline(live)) as engine:
        assert engine.await_ready(patience())
        made.insert(range(20, 25))
        made.app.execute("update orders set status = 'open' where id = 1")
        assert await_seen(lambda: live.count() == 14)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    @contextmanager
    def arrow(conf: Mapping[str, str]) -> Iterator[Runner]:
        yield ArrowRunner()

    if request.node.get_closest_marker("spark") is None:
        monkeypatch.setattr(replay, "spark_alone", arrow)


def ran(capsys: pytest.CaptureFixture[str], shop: Shop, *arguments: str) -> tuple[int, str, str]:
    config = str(shop.path.parent / "headrace.conf")
    return printed(capsys, "replay", "--config", config, *arguments)


def test_into_memory_it_says_what_would_be_there(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ran(capsys, shop, "orders", "--into", "memory")
    assert (code, err) == (0, "")
    end = shop.log().end
    assert out.startswith(f"10 baseline rows, 6 changes, 14 rows in the target, up to {end}, in ")


def test_the_progress_is_shown_while_spark_starts(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    def noted(name: str, begin: Any) -> Any:
        @contextmanager
        def both(*given: object) -> Iterator[Any]:
            begun.append(name)
            with begin(*given) as made:
                yield made

        return both

    for name in ("_shown", "spark_alone"):
        monkeypatch.setattr(replay, name, noted(name, getattr(replay, name)))
    assert ran(capsys, shop, "orders", "--into", "memory")[0] == 0
    assert begun == ["_shown", "spark_alone"]


def test_the_summary_as_json(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ran(capsys, shop, "orders", "--into", "memory", "--json", "--from", "-2h")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found.pop("seconds") >= 0
    assert found == {
        "pipeline": "orders",
        "tables": ["orders"],
        "into": "memory",
        "first": "0001-0000000000000002-00000000",
        "position": str(shop.log().end),
        "baseline_rows": 0,
        "changes": 6,
        "failed": 0,
        "rows": 5,
    }


def test_lines_go_to_stdout_and_all_else_to_stderr(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    start, end = "0001-0000000000000003-00000000", "0001-0000000000000004-00000000"
    code, out, err = ran(capsys, shop, "orders", "--into", "jsonl:-", "--from", start, "--to", end)
    assert code == 0
    assert [json.loads(line)["row"] for line in out.splitlines()] == [
        {"id": key, "customer_id": key % 7, "status": "paid"} for key in (21, 22)
    ]
    assert err.startswith(f"2 changes, up to {end}")
    code, out, err = ran(capsys, shop, "orders", "--into", "jsonl:-", "--json")
    assert len(out.splitlines()) == 16
    assert json.loads(err)["changes"] == 6


def test_into_a_folder_of_parquet_files(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shop.path.parent / "out"
    code, _, err = ran(capsys, shop, "orders", "--into", f"parquet:{folder}")
    assert (code, err) == (0, "")
    files = sorted((folder / "orders").iterdir())
    assert [pq.read_metadata(file).num_rows for file in files] == [10, 6]
    code, _, err = ran(capsys, shop, "orders", "--into", f"parquet:{folder}")
    assert code == 1
    assert "The output folder is not empty" in err


def test_the_log_of_a_configuration_is_found_without_naming_its_folder(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop.path.parent)
    read = ["log", "read", "shop", "orders", "--json"]
    counts = []
    for arguments in (
        read,
        [*read, "--config", "headrace.conf"],
        [*read, "--set", f"data = {json.dumps(str(shop.data))}"],
        ["log", "--config", "headrace.conf", "--json"],
        ["log", "--set", f"data = {json.dumps(str(shop.data))}", "--json"],
    ):
        assert main.exit_code(arguments) == 0
        counts.append(len(capsys.readouterr().out.splitlines()))
    assert counts == [6, 6, 6, 1, 1]


def test_a_setting_counts_over_the_configuration(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = json.dumps(str(shop.data))
    for given in (["--set", f"data = {folder}"], ["--data", str(shop.data)]):
        code, out, err = ran(
            capsys, shop, "orders", "--into", "memory", "--json", "--set", "data = nowhere", *given
        )
        assert (code, err) == (0, "")
        assert json.loads(out)["rows"] == 14


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["nobody", "--into", "memory"], 2, "control.unknown_pipeline"),
        (["orders", "--into", "elsewhere"], 2, "config.unknown_part"),
        (["orders", "--into", "memory", "--force"], 2, "--into jsonl:FILE"),
        (["orders"], 2, "--into"),
        (["orders", "--into", "memory", "--to", "0001-0000000000000000-00000000"], 1, "expired"),
        (["orders", "--into", "memory", "--from", "0000-0000000000000001-00000000"], 1, "expired"),
        (["orders", "--into", "memory", "--data", "/nowhere"], 2, "bad_data_directory"),
    ],
)
def test_what_is_wrong_is_told(
    arguments: list[str],
    code: int,
    told: str,
    shop: Shop,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, out, err = ran(capsys, shop, *arguments)
    assert (found, out) == (code, "")
    assert told in err


def test_a_file_that_is_there_is_kept_unless_told(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = shop.path.parent / "out.jsonl"
    taken.write_text("mine")
    code, _, err = ran(capsys, shop, "orders", "--into", f"jsonl:{taken}")
    assert (code, "use --force to overwrite it" in " ".join(err.split())) == (2, True)
    assert taken.read_text() == "mine"
    code, *_ = ran(capsys, shop, "orders", "--into", f"jsonl:{taken}", "--force")
    assert (code, len(taken.read_text().splitlines())) == (0, 16)
    new = shop.path.parent / "new.jsonl"
    assert ran(capsys, shop, "orders", "--into", f"jsonl:{new}")[0] == 0
    assert new.stat().st_mode & 0o777 == 0o600


def test_no_part_of_an_address_that_is_no_target_is_shown(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ran(capsys, shop, "orders", "--into", "postgresql://me:hunter2@host/db")
    assert (code, "hunter2" in out + err) == (2, False)


def test_rows_that_were_left_out_end_it_with_exit_code_1(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def failing(conf: Mapping[str, str]) -> Iterator[Runner]:
        yield ArrowRunner(fails=lambda _, row: "pipeline.row_failed" if row["id"] == 21 else None)

    monkeypatch.setattr(replay, "spark_alone", failing)
    code, _, err = ran(capsys, shop, "orders", "--into", "memory")
    assert (code, "could not be computed" in err) == (1, True)


def on_spark(config: Path, *arguments: str) -> tuple[int, str]:
    """Replay in a process of its own: in this one another Spark may run."""
    done = python("-m", "headrace", "replay", "orders", "--config", config, *arguments, seconds=300)
    return done.returncode, done.stdout


@pytest.mark.ci
@pytest.mark.spark
def test_it_goes_through_sparks_expressions_and_leaves_the_data_directory_alone(
    shop: Shop,
) -> None:
    conf = shop.path.parent / "headrace.conf"
    conf.write_text(CONF.replace("fields = [card]", "fields = [card, status]"))
    before = sorted(str(path) for path in shop.data.rglob("*"))
    start = "0001-0000000000000003-00000000"
    code, out = on_spark(conf, "--into", "jsonl:-", "--from", start)
    assert code == 0
    # The first of the range lies in the middle of a flush; a row that left the filter is gone.
    assert [(each["op"], each["row"]) for each in map(json.loads, out.splitlines())] == [
        ("insert", {"id": 21, "customer_id": 0}),
        ("insert", {"id": 22, "customer_id": 1}),
        ("insert", {"id": 23, "customer_id": 2}),
        ("insert", {"id": 24, "customer_id": 3}),
        ("delete", {"id": 1}),
    ]
    code, out = on_spark(conf, "--into", "memory", "--json")
    assert (code, json.loads(out)["rows"]) == (0, 14)
    assert sorted(str(path) for path in shop.data.rglob("*")) == before
