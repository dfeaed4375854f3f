"""The state of a source: which moves there are, what each report makes of it, and who sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture.messages import Command, Failed, LagReport, Report, Retries, StateReport
from headrace.changelog.reader import LogReader
from headrace.engine.engine import Engine
from headrace.errors import SourceRefused, SourceUnreachable
from headrace.observe import source_state
from headrace.observe.source_state import (
    SOURCE_MOVES,
    SourceMove,
    SourceState,
    SourceStateMachine,
    moves_between,
)
from headrace.runtime.source_run import SILENT_SECONDS, SourceRun
from headrace.storage.files import Files
from headrace.storage.simulation import SimulatedDisk
from headrace.targets.memory import memory
from tests.support.arrow_runner import ArrowRunner
from tests.support.shop import PATIENCE, Market, Shop, await_seen, await_that
from tests.support.tiers import examples

S = SourceState


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class NoRecorder:
    """A recorder that does nothing."""

    restarts = 0
    pid = None
    alive = True

    def start(self) -> None: ...

    def send(self, command: Command) -> None: ...

    def stop(self, timeout: float = 10.0) -> None: ...


def source_run() -> tuple[SourceRun, Clock, list[SourceMove]]:
    """Return a source's run, its clock, and its moves from now on."""
    clock, moves = Clock(), list[SourceMove]()
    log = LogReader.open(Files(SimulatedDisk(), "/data"), "shop")
    run = SourceRun("shop", "test", log, lambda: None, clock, clock)
    run.machine.on_move = moves.append
    run.start(NoRecorder)
    return run, clock, moves


def lag() -> LagReport:
    return LagReport(changes=0, seconds=0.0, captured=0)


def failed(*, stops: bool) -> Failed:
    return Failed.of(SourceUnreachable("Away", source="shop"), stops=stops)


def states(moves: Sequence[SourceMove]) -> list[SourceState]:
    return [move.after for move in moves]


# --- the table of moves ---------------------------------------------------------------------------


@pytest.mark.meets("TYP-13")
def test_the_states_are_seven_and_only_a_resume_leads_out_of_error() -> None:
    assert [str(state) for state in S] == [
        "connecting", "connected", "streaming", "reconnecting", "paused", "error", "closed",
    ]  # fmt: skip
    assert SOURCE_MOVES.keys() == set(S)
    assert SOURCE_MOVES[S.ERROR] == {S.CONNECTING, S.CLOSED}
    assert SOURCE_MOVES[S.CLOSED] == set()
    # What was lost is connected before it streams again.
    for state in (S.CONNECTING, S.RECONNECTING, S.ERROR):
        assert S.STREAMING not in SOURCE_MOVES[state]


@pytest.mark.parametrize("start", [state for state in S if state != S.CLOSED])
@pytest.mark.parametrize("end", S)
def test_every_state_can_be_reached_by_allowed_moves(start: SourceState, end: SourceState) -> None:
    way = [start, *moves_between(start, end)]
    assert way[-1] == end
    assert all(after in SOURCE_MOVES[before] for before, after in pairwise(way))


def test_nothing_leads_out_of_closed_and_nothing_is_reported_then() -> None:
    moves = list[SourceMove]()
    machine = SourceStateMachine("shop", Clock())
    machine.on_move = moves.append
    machine.move(S.CLOSED, "")
    machine.move(S.STREAMING, "")
    assert machine.state == S.CLOSED
    assert states(moves) == [S.CLOSED]


# --- what reports make of it ----------------------------------------------------------------------


@pytest.mark.meets("TYP-13")
def test_a_source_connects_streams_is_lost_and_comes_back_each_with_reason_and_time() -> None:
    run, clock, moves = source_run()
    steps: list[tuple[Report, SourceState]] = [
        (StateReport("connecting"), S.CONNECTING),
        (StateReport("waiting", "2 sessions"), S.CONNECTING),
        (StateReport("streaming"), S.CONNECTED),
        (lag(), S.STREAMING),
        (StateReport("full", "The log is almost full"), S.PAUSED),
        (lag(), S.PAUSED),
        (StateReport("streaming"), S.STREAMING),
        (StateReport("reconnecting", "The server went away"), S.RECONNECTING),
        (lag(), S.RECONNECTING),
        (StateReport("connecting"), S.RECONNECTING),
        (StateReport("streaming"), S.CONNECTED),
        (lag(), S.STREAMING),
        (StateReport("watching"), S.CONNECTED),
        (failed(stops=False), S.RECONNECTING),
        (failed(stops=True), S.ERROR),
        (StateReport("failed", "Away"), S.ERROR),
    ]
    for report, state in steps:
        clock.now += 1
        before = run.machine.since
        had = run.machine.state
        run.on_report(report)
        info = run.info()
        assert info.phase == state, report
        assert info.since == (clock.now if state != had else before)
    reasons = {move.after: move.reason for move in moves}
    assert reasons[S.PAUSED] == "The log is almost full"
    assert "Away" in reasons[S.ERROR]
    run.resume()
    assert run.info().phase == S.CONNECTING
    run.stop(0)
    assert run.info().phase == S.CLOSED
    run.on_report(StateReport("streaming"))
    assert run.info().phase == S.CLOSED
    assert [move.source for move in moves] == ["shop"] * len(moves)


@pytest.mark.meets("TYP-13")
def test_a_source_of_which_nothing_is_heard_is_not_streaming() -> None:
    run, clock, _ = source_run()
    run.on_report(StateReport("streaming"))
    run.on_report(lag())
    assert run.info().phase == S.STREAMING
    clock.now += SILENT_SECONDS + 1
    info = run.info()
    assert (info.phase, info.since) == (S.RECONNECTING, clock.now)
    assert "No report from the recorder" in info.reason
    run.on_report(lag())
    assert run.info().phase == S.STREAMING


EVENTS: dict[str, Callable[[], Report]] = {
    **{
        word: (lambda word=word: StateReport(word, f"because {word}"))  # type: ignore[misc]
        for word in (
            "connecting", "waiting", "streaming", "full", "watching", "reconnecting",
            "resetting", "failed", "closed",
        )
    },
    "lag": lag,
    "trouble": lambda: failed(stops=False),
    "end": lambda: failed(stops=True),
}  # fmt: skip


@pytest.mark.meets("TYP-13")
@examples(300)
@given(st.lists(st.sampled_from([*EVENTS, "silence", "resume", "look"]), max_size=40))
def test_whatever_is_reported_every_move_is_allowed_and_streaming_means_reading(
    events: list[str],
) -> None:
    run, clock, moves = source_run()
    word, has_read, silent, ended = "connecting", False, False, False
    for event in events:
        clock.now += 1
        match event:
            case "silence":
                clock.now += SILENT_SECONDS
                silent = True
                run.info()
                continue
            case "resume":
                if ended:
                    word, has_read, ended = "connecting", False, False
                run.resume()
            case "look":
                run.info()
                continue
            case _:
                silent = False
                run.on_report(EVENTS[event]())
                match event:
                    case "lag":
                        has_read = has_read or word == "streaming"
                    case "end":
                        word, ended = "failed", True
                    case "trouble":
                        word, ended = "failed", False
                    case _:
                        word = event
                        has_read = has_read and word in ("streaming", "full")
        info = run.info()
        reads = word == "streaming" and has_read and not (ended or silent)
        assert (info.phase == S.STREAMING) == reads
        assert (info.phase == S.ERROR) == ended
    assert [move.before for move in moves] == [S.CONNECTING, *states(moves)][:-1] or not moves
    assert all(move.after in SOURCE_MOVES[move.before] for move in moves)
    assert [move.at for move in moves] == sorted(move.at for move in moves)


# --- of an engine ---------------------------------------------------------------------------------


@pytest.mark.meets("TYP-12", "TYP-13")
def test_a_status_has_the_states_the_order_and_the_source_s_own_position(shop: Shop) -> None:
    with shop.engine(shop.pipeline(memory())) as engine:
        assert engine.await_ready(PATIENCE)
        assert await_that(engine, lambda: engine.source_info("shop").phase == "streaming")
        info = engine.source_info("shop")
        assert info.ordering == "total"
        assert info.since > 0
        assert info.source_position == engine._state.recordings["shop"].log.source_position_at(
            info.end
        )
        assert info.source_position
        moves = list[SourceMove]()
        engine._state.recordings["shop"].machine.on_move = moves.append
    assert states(moves) == [S.CLOSED]


@pytest.mark.meets("TYP-13", "ACC-14")
def test_retries_that_are_exhausted_end_in_error_and_a_resume_leads_back(market: Market) -> None:
    engine = Engine(
        market.pipeline(memory(), name="orders"),
        data=market.data, runner=ArrowRunner(), recorder="thread",
        reconnect=Retries(2, 0.01, 0.02),
    )  # fmt: skip
    moves = list[SourceMove]()
    with engine:
        assert engine.await_ready(PATIENCE)
        assert await_that(engine, lambda: engine.source_info("shop").phase == "streaming")
        engine._state.recordings["shop"].machine.on_move = moves.append
        market.source.set_away(True)
        assert await_seen(lambda: engine.source_info("shop").phase == "error")
        market.source.set_away(False)
        engine.resume(source="shop")
        assert await_seen(lambda: engine.source_info("shop").phase == "streaming")
        # A failure in between does not count with those before.
        market.source.inject_error(SourceUnreachable("Away", source="shop"))
        assert await_seen(lambda: S.RECONNECTING in states(moves[2:]))
        assert await_seen(lambda: engine.source_info("shop").phase == "streaming")
    assert states(moves) == [
        S.RECONNECTING, S.ERROR, S.CONNECTING, S.CONNECTED, S.STREAMING,
        S.RECONNECTING, S.CONNECTED, S.STREAMING, S.CLOSED,
    ]  # fmt: skip
    assert "The source is away" in moves[1].reason


def test_a_source_that_refuses_is_in_error_at_once(market: Market) -> None:
    with market.engine(market.pipeline(memory(), name="orders")) as engine:
        assert engine.await_ready(PATIENCE)
        market.source.inject_error(SourceRefused("Not any more", source="shop"))
        assert await_seen(lambda: engine.source_info("shop").phase == "error")


def test_the_drawing_of_the_states_names_them_all() -> None:
    assert source_state.__doc__ is not None
    assert all(state in source_state.__doc__ for state in S)
