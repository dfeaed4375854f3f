"""The decision before every START_REPLICATION, against the words of its rule."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from headrace.capture.postgres.position import LsnPosition
from headrace.capture.postgres.server.slot import Identity, Slot, SlotState, Switch, state
from headrace.capture.postgres.server.start_position import Begin, Reason, Resume, decide
from headrace.errors import HeadraceError, OtherDatabase, SlotBusy, SlotRefused

SERVER = Identity("7000", timeline=1, flushed=3, database=5)
SLOT = Slot(
    name="headrace_shop",
    plugin="pgoutput",
    database=5,
    database_name="shop",
    temporary=False,
    active=False,
    reader=None,
    restart=1,
    confirmed=2,
    wal_status="reserved",
    safe_wal_size=None,
    two_phase=False,
)
LOG_END = LsnPosition("7000", 5, branch=0, timeline=1, lsn=2)

SLOTS: dict[SlotState, Slot | None] = {
    SlotState.ABSENT: None,
    SlotState.USABLE: SLOT,
    SlotState.BUSY: replace(SLOT, active=True, reader=77),
    SlotState.LOST: replace(SLOT, wal_status="lost"),
    SlotState.CONFLICTING: replace(SLOT, wal_status="lost", conflicting=True),
    SlotState.INVALIDATED: replace(SLOT, wal_status="lost", invalidation="idle_timeout"),
    SlotState.OTHER_PLUGIN: replace(SLOT, plugin="test_decoding"),
    SlotState.OTHER_DATABASE: replace(SLOT, database=6),
}


def histories(timeline: int) -> Iterator[tuple[Switch, ...]]:
    """Every way a server can have come to `timeline`, with switches at 0 … 3."""
    for before in itertools.chain.from_iterable(
        itertools.combinations(range(1, timeline), count) for count in range(timeline)
    ):
        if timeline > 1 and 1 not in before:
            continue  # every history begins on the first timeline
        for points in itertools.combinations_with_replacement(range(4), len(before)):
            yield tuple(map(Switch, before, points))


def by_the_rule(
    after: LsnPosition, server: Identity, slot: Slot, history: tuple[Switch, ...]
) -> Resume | tuple[Reason, int]:
    """R2, sentence by sentence, for a slot that can be read from."""
    assert slot.confirmed is not None
    # (b) log end > server's flush position …
    ahead = after.lsn > server.flushed
    # … or the timeline changed and its history shows a switch point below the log's end;
    # a timeline that the history does not name was left before it began.
    left_at = [switch.at for switch in history if switch.timeline == after.timeline] or [-1]
    switched = server.timeline != after.timeline and left_at[0] < after.lsn
    if ahead or switched:
        return Reason.REWOUND, after.branch + 1
    # (a) confirmed_flush_lsn > log end
    if slot.confirmed > after.lsn:
        return Reason.GAP, after.branch
    # (d) otherwise start at the log's end, not at confirmed_flush_lsn
    return Resume(replace(after, timeline=server.timeline))


@pytest.mark.meets("R2", "R1", "H0")
def test_every_small_case_is_decided_as_the_rule_says() -> None:
    seen: dict[str, int] = {}
    for end, on, branch, flushed, timeline, confirmed in itertools.product(
        range(4), (1, 2, 3), (0, 4), range(4), (1, 2, 3), range(4)
    ):
        after = LsnPosition("7000", 5, branch, on, end)
        server = replace(SERVER, timeline=timeline, flushed=flushed)
        slot = replace(SLOT, confirmed=confirmed)
        for history in histories(timeline):
            expected = by_the_rule(after, server, slot, history)
            found = decide(after, server, slot, history)
            if isinstance(expected, Resume):
                assert found == expected
            else:
                assert found == Begin(*expected, drop=True)
            name = "resume" if isinstance(found, Resume) else found.reason.value
            seen[name] = seen.get(name, 0) + 1
    assert set(seen) == {"resume", "capture.gap", "capture.rewound"}
    assert min(seen.values()) > 100, seen


@pytest.mark.meets("R2")
@pytest.mark.parametrize("slot", SLOTS.values(), ids=SLOTS)
@pytest.mark.parametrize("ephemeral", [False, True])
@pytest.mark.parametrize("server", [replace(SERVER, system="7001"), replace(SERVER, database=6)])
def test_another_system_or_database_stops_whatever_else_is_the_case(
    server: Identity, ephemeral: bool, slot: Slot | None
) -> None:
    with pytest.raises(OtherDatabase):
        decide(LOG_END, server, slot, ephemeral=ephemeral)


@pytest.mark.meets("R2", "R35")
@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (SlotState.ABSENT, Reason.ABSENT),
        (SlotState.LOST, Reason.LOST),
        (SlotState.CONFLICTING, Reason.CONFLICTING),
        (SlotState.INVALIDATED, Reason.INVALIDATED),
    ],
)
def test_a_slot_that_is_gone_is_a_gap_with_its_own_code(found: SlotState, reason: Reason) -> None:
    slot = SLOTS[found]
    assert decide(LOG_END, SERVER, slot) == Begin(reason, 0, drop=slot is not None)
    # A rewound server is one whatever became of the slot: its numbers come again.
    ahead = replace(LOG_END, lsn=9, branch=2)
    assert decide(ahead, SERVER, slot) == Begin(Reason.REWOUND, 3, drop=slot is not None)


@pytest.mark.meets("R35")
@pytest.mark.parametrize(
    ("found", "error"),
    [
        (SlotState.BUSY, SlotBusy),
        (SlotState.OTHER_PLUGIN, SlotRefused),
        (SlotState.OTHER_DATABASE, SlotRefused),
    ],
)
@pytest.mark.parametrize("after", [LOG_END, None, replace(LOG_END, lsn=9)])
def test_a_slot_of_somebody_else_is_refused_and_never_dropped(
    after: LsnPosition | None, found: SlotState, error: type[HeadraceError]
) -> None:
    with pytest.raises(error):
        decide(after, SERVER, SLOTS[found], intended=True)


@pytest.mark.parametrize("found", SLOTS)
def test_each_state_of_a_slot_has_its_own_name(found: SlotState) -> None:
    assert state(SLOTS[found], database=5) is found


def test_a_physical_slot_is_not_ours() -> None:
    assert state(replace(SLOT, plugin=None, database=None), 5) is SlotState.OTHER_PLUGIN


@pytest.mark.parametrize("reason", ["wal_removed", None])
def test_removed_log_is_lost_also_where_the_server_names_it_as_the_reason(
    reason: str | None,
) -> None:
    slot = replace(SLOT, wal_status="lost", invalidation=reason, conflicting=False)
    assert state(slot, 5) is SlotState.LOST


def test_removed_log_is_lost_also_where_the_server_calls_every_lost_slot_conflicting() -> None:
    slot = replace(SLOT, wal_status="lost", conflicting=True, restart=None)
    assert state(slot, 5) is SlotState.LOST


@pytest.mark.parametrize("reason", ["rows_removed", "wal_level_insufficient"])
def test_a_conflict_with_recovery_is_one_also_where_a_reason_is_named(reason: str) -> None:
    slot = replace(SLOT, wal_status="lost", invalidation=reason, conflicting=True)
    assert state(slot, 5) is SlotState.CONFLICTING


@pytest.mark.meets("R2")
def test_the_first_start_begins() -> None:
    assert decide(None, SERVER, None) == Begin(Reason.FIRST, 0, drop=False)


def test_a_slot_we_were_making_when_we_died_is_made_anew() -> None:
    assert decide(None, SERVER, SLOT, intended=True) == Begin(Reason.FIRST, 0, drop=True)


def test_a_slot_that_the_log_knows_nothing_of_is_not_dropped() -> None:
    with pytest.raises(SlotRefused) as caught:
        decide(None, SERVER, SLOT)
    assert "pg_drop_replication_slot('headrace_shop')" in caught.value.remedy


@pytest.mark.meets("R35")
@pytest.mark.parametrize("slot", SLOTS.values(), ids=SLOTS)
def test_an_ephemeral_source_always_begins_and_drops_nothing(slot: Slot | None) -> None:
    begins = decide(LOG_END, SERVER, slot, ephemeral=True)
    assert begins == Begin(Reason.EPHEMERAL, 0, drop=False)
    first = decide(None, SERVER, slot, ephemeral=True)
    assert first == Begin(Reason.FIRST, 0, drop=False)
    rewound = decide(replace(LOG_END, lsn=9), SERVER, slot, ephemeral=True)
    assert rewound == Begin(Reason.REWOUND, 1, drop=False)


@pytest.mark.meets("PG-07")
def test_always_baseline_begins_where_reading_could_go_on() -> None:
    assert decide(LOG_END, SERVER, SLOT) == Resume(LOG_END)
    always = decide(LOG_END, SERVER, SLOT, always_baseline=True)
    assert always == Begin(Reason.ALWAYS, 0, drop=True)
    # The true reason is worth more than that it was asked for.
    gap = decide(LOG_END, SERVER, replace(SLOT, confirmed=3), always_baseline=True)
    assert gap == Begin(Reason.GAP, 0, drop=True)


def test_a_slot_without_a_confirmed_place_is_no_place_to_go_on_from() -> None:
    slot = replace(SLOT, confirmed=None)
    assert decide(LOG_END, SERVER, slot) == Begin(Reason.GAP, 0, drop=True)


@pytest.mark.meets("R2")
def test_reading_goes_on_over_a_promotion_that_lost_nothing() -> None:
    promoted = replace(SERVER, timeline=2, flushed=9)
    resumed = decide(LOG_END, promoted, SLOT, (Switch(1, 2),))
    assert resumed == Resume(replace(LOG_END, timeline=2))
    assert isinstance(resumed, Resume)
    assert resumed.at.lineage == LOG_END.lineage
