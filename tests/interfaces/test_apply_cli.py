"""`headrace apply`: a changed configuration brought to an engine that runs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.errors import TargetError
from headrace.targets.memory import IndexedMemory
from tests.interfaces.at_work import CONFIGURATION, started
from tests.interfaces.inside import Begin, inside
from tests.support.patience import patience
from tests.support.shop import Shop

__all__ = ["inside"]

OPEN = """
pipelines.open {
  source = shop, tables = [orders], target { type = indexed-memory }
  filters = [{ type = field-equals, field = status, value = open }]
}
"""


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    capsys.readouterr()
    assert main.exit_code([*arguments, "--json", "--data", "data"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.process
def test_a_watch_goes_on_with_the_table_that_replaces_its_own(
    shop: Shop, tmp_path: Path, inside: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    child = None
    try:
        with inside("run") as run:
            run.ready()
            child = started("watch", "orders", "--rows", "--json", cwd=tmp_path)
            assert child.stdout is not None
            assert child.stderr is not None
            for _ in range(10):
                assert "insert" in child.stdout.readline()
            (tmp_path / "headrace.conf").write_text(CONFIGURATION.replace("by_cust", "of_cust"))
            asked(capsys, "apply", "--yes")
            # Said once it follows again: what changes from now on is printed.
            while "was replaced" not in (line := child.stderr.readline()):
                assert line
            run.ready()
            shop.insert(range(50, 51))
            while json.loads(child.stdout.readline())["key"] != [50]:
                pass
            run.ended()
        assert child.wait(patience()) == 3
        assert "The engine stopped." in child.stderr.read()
    finally:
        if child is not None:
            child.kill()
            child.communicate()


def test_what_changed_is_shown_and_done_while_the_engine_runs(
    shop: Shop, tmp_path: Path, inside: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    configuration = tmp_path / "headrace.conf"
    with inside("run") as run:
        run.ready()
        told = asked(capsys, "apply")
        assert (told["steps"], told["now"]) == ([], False)
        configuration.write_text(CONFIGURATION + OPEN)
        assert main.exit_code(["apply", "--dry-run", "--config", "headrace.conf"]) == 0
        shown = capsys.readouterr().out
        assert "+ pipelines.open" in shown
        assert "applied" not in shown
        shop.insert(range(500, 503), status="open")
        assert main.exit_code(["apply", "--yes", "--set", "data=data"]) == 0
        assert "✓ applied" in capsys.readouterr().out
        run.ready()
        run.until(lambda: asked(capsys, "query", "open", "--count")["count"] == 3)
        configuration.write_text(CONFIGURATION.replace("orders {", "bills {"))
        told = asked(capsys, "apply", "--yes")
        assert told["done"]
        steps = told["steps"]
        assert isinstance(steps, list)
        assert {(step["kind"], step["what"]) for step in steps} == {
            ("add", "pipelines.bills"),
            ("drop", "pipelines.orders"),
            ("drop", "pipelines.open"),
        }
        run.ready()
        status = asked(capsys, "status")
        names = [each["name"] for each in status["pipelines"]]  # type: ignore[attr-defined]
        assert names == ["bills"]
        code, *_ = run.ended()
    assert code == 0


def test_a_target_that_cannot_be_opened_is_named_by_apply_and_tried_again(
    shop: Shop,
    tmp_path: Path,
    inside: Begin,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise TargetError("The target is away")

    with inside("run") as run:
        run.ready()
        (tmp_path / "headrace.conf").write_text(CONFIGURATION + OPEN)
        with monkeypatch.context() as patched:
            patched.setattr(IndexedMemory, "open", refuse)
            assert main.exit_code(["apply", "--yes"]) == 0
            told = capsys.readouterr()
            assert "✓ applied" in told.out
            assert "pipeline open: The target is away" in told.err
        run.ready()
        assert run.ended()[0] == 0


def test_a_wrong_configuration_changes_nothing_and_is_told_with_its_place(
    shop: Shop, tmp_path: Path, inside: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    with inside("run") as run:
        run.ready()
        (tmp_path / "headrace.conf").write_text(CONFIGURATION + OPEN.replace("[orders]", "[gone]"))
        capsys.readouterr()
        assert main.exit_code(["apply", "--yes"]) == 2
        assert "headrace.conf:" in capsys.readouterr().err
        assert main.exit_code(["status", "--ready"]) == 0
        assert run.ended()[0] == 0


def test_what_would_not_be_heeded_is_refused(
    shop: Shop,
    tmp_path: Path,
    inside: Begin,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "other.conf").write_text(CONFIGURATION + OPEN)
    with inside("run") as run:
        run.ready()
        assert main.exit_code(["apply", "--yes", "--config", "other.conf"]) == 2
        assert f"The engine uses {tmp_path / 'headrace.conf'}" in capsys.readouterr().err
        for sets in ("pipelines.orders.tables=[other]", "foo=bar"):
            for verb in (["apply", "--yes"], ["status"], ["log"], ["status", "--data", "data"]):
                assert main.exit_code([*verb, "--set", sets]) == 2
                assert f"--set {sets.partition('=')[0]}=… has no effect" in capsys.readouterr().err
        # A build has nobody to ask.
        (tmp_path / "headrace.conf").write_text(CONFIGURATION + OPEN)
        monkeypatch.setattr("sys.stdin", io.StringIO(""))
        assert main.exit_code(["apply"]) == 2
        assert "use --yes" in capsys.readouterr().err
        monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
        assert main.exit_code(["apply"]) == 0
        assert "applied" not in capsys.readouterr().out
        assert run.ended()[0] == 0


def test_without_an_engine_there_is_nothing_to_apply_to(shop: Shop) -> None:
    assert main.exit_code(["apply"]) == 4
