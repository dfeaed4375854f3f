"""`headrace health` and `headrace metrics`: what they print and return, and that they answer."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headrace.api import server
from headrace.api.client import Control
from headrace.api.handlers import ControlService
from headrace.cli.health import health_view
from headrace.engine import health, metrics
from headrace.engine.health import CHECKS
from headrace.targets.memory import memory
from tests.interfaces.at_work import AtWork, at_work, printed, told
from tests.support.promtext import families
from tests.support.shop import PATIENCE, Market


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AtWork]:
    monkeypatch.chdir(tmp_path)
    # On a slow machine a look may take a while, and does not hang.
    monkeypatch.setattr(health, "ANSWER_SECONDS", PATIENCE)
    monkeypatch.setattr(metrics, "COLLECT_SECONDS", PATIENCE)
    with at_work(tmp_path) as here:
        yield here


def test_health_is_a_table_of_three_checks(
    here: AtWork, capsys: pytest.CaptureFixture[str]
) -> None:
    head, *checks = told(capsys, "health").splitlines()
    assert head.split() == ["CHECK", "RESULT", "MEANING"]
    assert [line.split()[0] for line in checks] == list(CHECKS)
    assert all("✓ ok" in line for line in checks)


@pytest.mark.meets("ACC-15")
def test_a_red_check_has_its_reasons_and_exit_code_1(
    here: AtWork, capsys: pytest.CaptureFixture[str]
) -> None:
    here.engine.pause()
    code, out, err = printed(capsys, "health")
    assert (code, err) == (1, "")
    assert "ready    ✗ not ok" in out
    assert "• ready: pipeline orders: the pipeline was paused" in out
    assert "pipeline_paused" in out
    # Each check by itself: only what is asked for decides.
    assert printed(capsys, "health", "--live")[0] == 0
    assert printed(capsys, "health", "--startup")[0] == 0
    assert printed(capsys, "health", "--ready")[0] == 1
    assert printed(capsys, "health", "--live", "--ready")[0] == 1
    found = json.loads(told(capsys, "health", "--ready", "--json", code=1))
    assert list(found) == ["ready"]
    [reason] = found["ready"]["reasons"]
    assert (reason["part"], reason["name"], reason["code"]) == (
        "pipeline",
        "orders",
        "pipeline_paused",
    )
    here.engine.resume()
    assert here.engine.await_ready(PATIENCE)
    found = json.loads(told(capsys, "health", "--json"))
    assert {name: found[name]["ok"] for name in CHECKS} == dict.fromkeys(CHECKS, True)


def test_colours_and_times_are_on_a_terminal() -> None:
    reason = {
        "part": "source",
        "name": "shop",
        "code": "source_silent",
        "message": "Nothing came",
        "since": time.time() - 75,
    }
    green = {"ok": True, "reasons": []}
    answer = {"live": green, "startup": green, "ready": {"ok": False, "reasons": [reason]}}
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=120, color_system="standard").print(
        health_view(answer)
    )
    text = out.getvalue()
    assert "\x1b[32m✓ ok" in text
    assert "\x1b[1;31m✗ not ok" in text
    assert "• ready: source shop: Nothing came, since " in text
    assert "(75 s)" in text


@pytest.mark.meets("ACC-15")
def test_metrics_are_the_text_that_prometheus_reads(
    here: AtWork, capsys: pytest.CaptureFixture[str]
) -> None:
    found = families(told(capsys, "metrics"))
    at = {"pipeline": "orders", "source": "shop"}
    assert found["headrace_pipeline_rows"].value(table="orders", **at) == 10
    assert found["headrace_health"].value(check="ready") == 1
    assert not any(name.startswith("laredo_") for name in found)
    both = families(told(capsys, "metrics", "--compat"))
    assert both["laredo_pipeline_state"].value(pipeline="orders") == 2
    assert found.keys() < both.keys()


def test_metrics_as_json_have_names_kinds_and_samples(
    here: AtWork, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {
        metric["name"]: metric
        for metric in json.loads(told(capsys, "metrics", "--json"))["metrics"]
    }
    rows = found["headrace_pipeline_rows"]
    assert (rows["type"], rows["unit"]) == ("gauge", "")
    assert rows["samples"] == [
        {"labels": {"pipeline": "orders", "source": "shop", "table": "orders"}, "value": 10}
    ]


@pytest.mark.parametrize("verb", ["Health", "Metrics"])
def test_both_are_answered_although_the_status_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    free = threading.Event()
    market = Market(tmp_path)
    assert health.ANSWER_SECONDS < 1
    assert metrics.COLLECT_SECONDS < 1
    monkeypatch.setattr(health, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(metrics, "COLLECT_SECONDS", 0.05)
    with market.engine(market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        engine.pause()  # health has to say why it is not ready
        recording = engine._state.recordings["shop"]

        def hang() -> Any:
            free.wait()
            raise AssertionError("nobody waits for this")

        with monkeypatch.context() as patched:
            patched.setattr(recording, "info", hang)
            with server.serve(engine, market.data):
                answer = Control.connect(market.data).call(verb)
            free.set()
        if verb == "Health":
            assert not answer["ready"]["ok"]
            assert answer["ready"]["reasons"][0]["code"] == "engine_hangs"
            assert answer["live"]["ok"], "for a moment: it may only be slow"
        else:
            assert families(answer["text"])["headrace_up"].value() == 0


def test_an_engine_that_is_starting_answers_that(tmp_path: Path) -> None:
    market = Market(tmp_path)
    engine = market.engine(market.pipeline(memory(), name="orders"))
    service = ControlService(engine, phase="starting")
    answer = service.unary["Health"]({})
    assert (answer["phase"], answer["startup"]["ok"]) == ("starting", False)
