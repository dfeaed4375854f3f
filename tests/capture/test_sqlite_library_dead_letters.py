"""Records that a handler refuses: stored with what waits for them, and delivered again in order."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from headrace.capture.sqlite import Batch, Capture
from headrace.capture.sqlite.library import dead_letters as module
from headrace.errors import LeaseTaken, RecordsRefused, SourceRefused
from tests.capture.library import Heard, Running, ops

pytestmark = pytest.mark.meets("R30")


class Picky(Heard):
    """A handler that refuses records whose `v` is in a set."""

    def __init__(self, *refused: object) -> None:
        super().__init__()
        self.refused = set(refused)

    def __call__(self, batch: Batch) -> None:
        wrong = [at for at, each in enumerate(batch) if (each.after or {}).get("v") in self.refused]
        super().__call__([each for at, each in enumerate(batch) if at not in wrong])  # type: ignore[arg-type]
        if wrong:
            raise RecordsRefused("not a value", records=wrong)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "dead.db"


@pytest.fixture(autouse=True)
def _captured(path: Path, two_tables: None) -> None:
    Capture(path, ["t", "u"], print).setup()


def deliver(
    path: Path, file: Path, handler: Picky, last: object, method: str = "cdc", **options: int
) -> list[tuple[str, str, object]]:
    """Run until the row of `u` with this id comes; return what was delivered before."""
    capture = Capture(path, None, handler, dead_letters=file, **options)  # type: ignore[arg-type]
    run = Running(capture, method, handler)
    handler.until(lambda all: any(("u", last) == (table, id) for table, _, id in ops(all)))
    capture.close()
    run.join()
    assert run.error is None
    return [each for each in ops(handler.records) if each[0] == "t"]


def stored(path: Path, file: Path) -> list[tuple[str, object]]:
    letters = Capture(path, None, print, dead_letters=file).dead_records()
    return [(each.kind, ops([each.record])[0]) for each in letters]


@pytest.mark.parametrize("size", [1, 2, 100])
def test_what_is_refused_is_stored_and_later_changes_of_its_key_wait(
    path: Path, app: sqlite3.Connection, file: Path, size: int
) -> None:
    app.execute("insert into t values (1, 'good'), (2, 'bad'), (3, 'good')")
    app.execute("update t set v = 'fine' where id = 2")
    app.execute("update t set v = 'fine' where id = 3")
    app.execute("insert into u values (1, 0)")
    found = deliver(path, file, Picky("bad"), 1, batch_size=size)
    assert ("t", "INSERT", 2) not in found
    assert [each for each in found if each[2] != 2] == [
        *(("t", "INSERT", 1), ("t", "INSERT", 3), ("t", "UPDATE", 3))
    ]
    # Of one batch, the handler has taken the later one already; it comes once more.
    assert (("t", "UPDATE", 2) in found) is (size == 100)
    expected = [("refused", ("t", "INSERT", 2)), ("waiting", ("t", "UPDATE", 2))]
    assert stored(path, file) == expected
    # Also those of a later run wait, whatever its handler takes.
    app.execute("delete from t where id = 2")
    app.execute("insert into u values (2, 0)")
    assert deliver(path, file, Picky(), 2) == []
    assert stored(path, file) == [*expected, ("waiting", ("t", "DELETE", 2))]
    heard = Heard()
    assert Capture(path, None, heard, dead_letters=file).redeliver() == 3
    assert ops(heard.records) == [*(("t", "INSERT", 2), ("t", "UPDATE", 2), ("t", "DELETE", 2))]
    assert stored(path, file) == []
    app.execute("insert into t values (2, 0)")
    app.execute("insert into u values (3, 0)")
    assert deliver(path, file, Picky(), 3) == [("t", "INSERT", 2)]


def test_what_waits_takes_its_new_key_with_it(
    path: Path, app: sqlite3.Connection, file: Path
) -> None:
    app.execute("insert into t values (1, 'bad')")
    app.execute("update t set id = 2, v = 'fine'")
    app.execute("update t set v = 'finer' where id = 2")
    app.execute("insert into t values (3, 'good')")
    app.execute("insert into u values (1, 0)")
    assert deliver(path, file, Picky("bad"), 1, batch_size=1) == [("t", "INSERT", 3)]
    assert len(stored(path, file)) == 3
    picky = Picky("fine")
    assert Capture(path, None, picky, dead_letters=file).redeliver() == 1
    assert stored(path, file) == [("refused", ("t", "UPDATE", 2)), ("waiting", ("t", "UPDATE", 2))]
    assert Capture(path, None, print, dead_letters=file).purge() == 2
    assert stored(path, file) == []


def test_values_are_stored_exactly(path: Path, app: sqlite3.Connection, file: Path) -> None:
    values = [0.1 + 0.2, float("-inf"), 2**63 - 1, b"\x00\xff", "é\x00\n", "", None, b""]
    app.executemany("insert into t (v) values (?)", [(value,) for value in values])
    app.execute("insert into t (v) values (cast(x'ff41' as text))")
    app.execute("insert into u values (1, 0)")

    def refuses(batch: Batch) -> None:
        heard([each for each in batch if each.table == "u"])  # type: ignore[arg-type]
        if wrong := [at for at, each in enumerate(batch) if each.table == "t"]:
            raise RecordsRefused("none of these", records=wrong)

    heard = Heard()
    capture = Capture(path, None, refuses, dead_letters=file)
    run = Running(capture, "cdc", heard)
    heard.count(1)
    capture.close()
    run.join()
    letters = Capture(path, None, print, dead_letters=file).dead_records()
    assert [(each.record.after or {})["v"] for each in letters] == [*values, "\udcffA"]
    assert {each.reason for each in letters} == {"none of these"}
    assert all(each.record.position for each in letters)
    capture = Capture(path, None, print, dead_letters=file)
    assert capture.purge([letters[0].id]) == 1
    assert len(capture.dead_records()) == 8


def test_a_row_of_a_bootstrap_may_be_refused_and_the_next_one_supersedes_it(
    path: Path, app: sqlite3.Connection, file: Path
) -> None:
    app.execute("insert into t values (1, 'good'), (2, 'bad')")
    app.execute("insert into u values (1, 0)")
    found = deliver(path, file, Picky("bad"), 1, "bootstrap_and_cdc")
    assert found[:2] == [("t", "BOOTSTRAP", None), ("t", "INSERT", 1)]
    assert stored(path, file)[0] == ("refused", ("t", "INSERT", 2))
    app.execute("update t set v = 'fine' where id = 2")
    app.execute("insert into u values (2, 0)")
    assert deliver(path, file, Picky(), 2, "bootstrap_and_cdc")[:3] == [
        *(("t", "BOOTSTRAP", None), ("t", "INSERT", 1), ("t", "INSERT", 2))
    ]
    assert stored(path, file) == []


@pytest.mark.parametrize("records", [None, [7], [-1], ["0"], []])
def test_a_refusal_that_names_no_records_ends_the_run(
    path: Path, app: sqlite3.Connection, file: Path, records: object
) -> None:
    app.execute("insert into t values (1, 0)")
    raised = RecordsRefused("all wrong")
    if records is not None:
        raised.facts["records"] = records

    def refuses(batch: Batch) -> None:
        raise raised

    with pytest.raises(RecordsRefused) as caught:
        Capture(path, None, refuses, dead_letters=file).cdc()
    assert caught.value is raised
    assert stored(path, file) == []


def test_without_a_file_and_with_too_many_keys_the_run_ends(
    path: Path, app: sqlite3.Connection, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_KEYS", 2)
    app.executemany("insert into t values (?, 'bad')", [(at,) for at in range(3)])
    with pytest.raises(RecordsRefused):
        Capture(path, None, Picky("bad")).cdc()
    with pytest.raises(RecordsRefused):
        Capture(path, None, Picky("bad"), dead_letters=file).cdc()
    assert stored(path, file) == []


def test_they_are_delivered_only_while_the_reader_does_not_run(
    path: Path, app: sqlite3.Connection, file: Path, tmp_path: Path
) -> None:
    app.execute("insert into t values (1, 'bad'), (2, 0)")
    heard = Picky("bad")
    run = Running(Capture(path, None, heard, dead_letters=file), "cdc", heard)
    heard.count(1)
    with pytest.raises(LeaseTaken):
        Capture(path, None, print, dead_letters=file).redeliver()
    run.capture.close()
    run.join()
    with pytest.raises(SourceRefused):
        Capture(path, None, print).redeliver()
    with pytest.raises(SourceRefused):
        Capture(path, None, print, dead_letters=tmp_path / "none").dead_records()
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("pragma user_version = 99")
    other.close()
    with pytest.raises(SourceRefused):
        Capture(path, None, print, dead_letters=tmp_path / "other.db").dead_records()
