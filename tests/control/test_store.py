import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.changelog.position import ORIGIN, Position
from headrace.errors import Fenced, StorageError, UnknownFormat
from headrace.runtime.store import ProgressStore

positions = st.builds(
    Position, st.integers(1, 9), st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)
)


def memory_store() -> ProgressStore:
    store = ProgressStore(
        sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    )
    store.take_over()
    return store


@pytest.mark.meets("R12")
@given(st.lists(positions, min_size=1, max_size=12))
def test_progress_moves_forward_only(found: list[Position]) -> None:
    store = memory_store()
    best = ORIGIN
    for position in found:
        best = max(best, position)
        assert store.advance("orders", ["orders"], "test/1", position) == best
    assert store.reached("orders", "orders") == best


def test_progress_is_kept_per_pipeline_and_table() -> None:
    store = memory_store()
    store.advance("a", ["orders"], "test/1", Position(1, 5))
    assert store.reached("b", "orders") == ORIGIN
    assert store.reached("a", "customers") == ORIGIN


def test_progress_and_states_outlive_the_process(tmp_path: Path) -> None:
    store = ProgressStore.at(tmp_path / "control.sqlite")
    store.take_over()
    store.advance("orders", ["orders"], "test/1", Position(1, 7, 2))
    store.set_state("orders", "orders", "catching_up", 3)
    store.close()
    again = ProgressStore.at(tmp_path / "control.sqlite")
    assert again.reached("orders", "orders") == Position(1, 7, 2)
    assert again.state("orders", "orders") == ("catching_up", 3)


@pytest.mark.meets("R31")
def test_an_engine_that_was_replaced_can_write_nothing(tmp_path: Path) -> None:
    old = ProgressStore.at(tmp_path / "control.sqlite")
    assert old.take_over() == 1
    new = ProgressStore.at(tmp_path / "control.sqlite")
    assert new.take_over() == 2
    with pytest.raises(Fenced):
        old.advance("orders", ["orders"], "test/1", Position(1, 1))
    with pytest.raises(Fenced):
        old.set_state("orders", "orders", "live", None)
    new.advance("orders", ["orders"], "test/1", Position(1, 1))


def test_nothing_can_be_written_before_the_term_is_taken(tmp_path: Path) -> None:
    first = ProgressStore.at(tmp_path / "control.sqlite")
    first.take_over()
    second = ProgressStore.at(tmp_path / "control.sqlite")
    with pytest.raises(Fenced):
        second.set_state("orders", "orders", "live", None)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "control.sqlite"
    ProgressStore.at(path).close()
    connection = sqlite3.connect(path)
    connection.execute("update about set format = 99")
    connection.commit()
    connection.close()
    with pytest.raises(UnknownFormat) as caught:
        ProgressStore.at(path)
    assert caught.value.facts["format"] == 99


def test_a_file_that_is_no_database_is_an_error_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "control.sqlite"
    path.write_bytes(b"not a database, but long enough to look like one" * 100)
    with pytest.raises(StorageError) as caught:
        ProgressStore.at(path)
    assert caught.value.facts["path"] == str(path)
