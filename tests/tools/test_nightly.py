"""The ledger of the night."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.postgres.witness.report import LONG_MINUTES, RESULTS
from tools import nightly
from tools.nightly import LONGEST, PARTS, Entry, Part, is_current, read, run, table, write

ENTRY = Entry("cluster", "passed", "abc", "2026-11-16", "19", "0", "0", "14.0")


def test_a_ledger_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "nightly.tsv"
    write({"cluster": ENTRY}, path)
    assert read(path) == {"cluster": ENTRY}


def test_a_part_that_never_ran_is_shown_as_such(tmp_path: Path) -> None:
    lines = table(tmp_path / "none.tsv").splitlines()
    assert len(lines) == len(PARTS) + 1
    assert all(line.endswith("never run") for line in lines[1:])


def test_parts_have_names_of_their_own() -> None:
    assert len({part.name for part in PARTS}) == len(PARTS)
    assert LONGEST == 40


def test_the_status_is_examined_every_night_for_half_an_hour() -> None:
    [part] = [part for part in PARTS if "tests.postgres.witness" in part.words]
    assert float(part.words[part.words.index("--minutes") + 1]) >= LONG_MINUTES
    assert nightly.ROOT in RESULTS.parents
    assert any(RESULTS.match(pattern) for pattern in nightly.WRITTEN)


@pytest.mark.process
def test_what_a_part_printed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nightly, "PRINTED", tmp_path)
    entry = run(Part("broken", "a module that does not exist", ("tools.no_such_module",)))

    assert entry.result == "failed"
    assert "no_such_module" in (tmp_path / "broken.log").read_text()


@pytest.mark.process
def test_what_passed_is_current_until_the_code_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        names = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *names, *words], cwd=tmp_path, check=True, capture_output=True)

    for name in nightly.JUDGED:
        (tmp_path / name).touch() if "." in name else (tmp_path / name).mkdir()
    (tmp_path / "src" / "a.py").write_text("a = 1\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    monkeypatch.setattr(nightly, "ROOT", tmp_path)
    monkeypatch.setattr(nightly, "LEDGER", tmp_path / "tests" / "nightly.tsv")
    passed = Entry("cluster", "passed", nightly.head(), "", "", "", "", "")
    assert is_current(passed)
    assert not is_current(None)

    # The ledger itself and the figures do not make it old.
    nightly.LEDGER.write_text("x\n")
    (tmp_path / "bench" / "RESULTS.md").write_text("words\n")
    (tmp_path / "CHANGELOG.md").write_text("words\n")
    git("add", "-A")
    git("commit", "-qm", "two")
    assert is_current(passed)

    (tmp_path / "src" / "a.py").write_text("a = 2\n")
    assert not is_current(passed)
    git("add", "-A")
    git("commit", "-qm", "three")
    assert not is_current(passed)
