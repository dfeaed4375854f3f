import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.checks import checked, fitted, pipeline_names
from headrace.errors import AlreadyStored, CorruptSegment, JobFailed, RowFailed, StorageFull
from headrace.observe.counters import BatchTimes, Hops
from headrace.runtime.model import LONGEST_PAUSE, Again, Stop, TableState, decide, may_move


@pytest.fixture(autouse=True)
def brisk() -> None:
    """Leave the pauses as they are: they are looked at here."""


@given(st.text())
def test_a_made_name_always_fits(text: str) -> None:
    assert checked(fitted(text), "Source") == []


def test_a_pipeline_is_called_after_its_table_unless_that_is_taken() -> None:
    names, errors = pipeline_names(
        [
            (None, "shop", "Orders", "indexed-memory"),
            (None, "shop", "orders", "indexed-memory"),
            ("mine", "shop", "orders", "indexed-memory"),
        ]
    )
    assert names == ["orders", "shop.orders.indexed-memory", "mine"]
    assert errors == []


def test_two_pipelines_of_one_name_are_an_error() -> None:
    _, errors = pipeline_names([("a", "s", "t", "x"), ("a", "s", "u", "x")])
    assert [error.code for error in errors] == ["control.bad_name"]
    assert "name=" not in errors[0].remedy, "whoever writes a file has no such argument"


def test_only_what_time_can_mend_is_tried_again() -> None:
    assert decide(JobFailed("x"), 1) == Again(0.2)
    assert decide(StorageFull("x"), 2) == Again(0.4)
    assert decide(JobFailed("x"), 50) == Again(LONGEST_PAUSE)
    assert decide(JobFailed("x"), 5_000) == Again(LONGEST_PAUSE)
    assert decide(AlreadyStored("x"), 1) == Again(0.2)
    assert decide(RowFailed("x"), 1) == Stop()
    assert decide(CorruptSegment("x"), 1) == Stop()


def test_a_table_is_shown_only_after_it_caught_up() -> None:
    assert not may_move(TableState.WAITING, TableState.LIVE)
    assert may_move(TableState.CATCHING_UP, TableState.LIVE)
    assert may_move(TableState.RELOADING, TableState.LIVE)


def test_hops_are_quantiles_in_milliseconds() -> None:
    hops = Hops()
    assert hops.quantiles() == {}
    for late in range(100):
        hops.add(BatchTimes(0.0, 0.001, 0.002, 0.010, 0.010 + late / 1_000))
    found = hops.quantiles()
    assert found["captured"].p50_ms == 1.0
    assert found["total"].p50_ms == 60.0
    assert found["total"].p99_ms == 109.0
