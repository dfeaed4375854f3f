"""Dead letters that end by request, what a purge leaves, and files that are merged."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from random import Random

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headrace.deadletters import store as store_module
from headrace.deadletters.ledger import Count, Purged, Selection
from headrace.deadletters.letter import (
    DeadLetterCheckpoint,
    decode,
    in_files,
)
from headrace.deadletters.store import (
    DeadLetterStore,
    open_store,
    pipelines_elsewhere,
    read_letters,
    read_records,
)
from headrace.errors import (
    AlreadyStored,
    CorruptLetters,
    DeadLettersElsewhere,
    StorageError,
    UnknownFormat,
    WrongValue,
)
from headrace.pipeline.definition import DeadLetters
from headrace.storage.files import Files
from headrace.storage.records import MemoryRecords, Records
from headrace.storage.simulation import PowerCut, SimulatedDisk
from tests.changelog.test_value_table import FITTING
from tests.pipeline.letter_making import (
    NOW,
    at,
    deleted,
    files_on,
    inserted,
    letter,
    moved,
    opened,
)
from tests.pipeline.making import insert, table, update
from tests.support.cuts import assert_every_kind, counting, cut, steps_of
from tests.support.tiers import examples, thinned

CUSTOMERS = table(("id", "int64"), ("name", "text"), name="customers")
FOLDER = "dead-letters/orders"
DAY = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def files() -> Files:
    return files_on(SimulatedDisk())


def key(number: int) -> bytes:
    (found,) = inserted(1, number).keys
    return found


def merging(files: Files) -> DeadLetterStore:
    """Return a store that merges its files as soon as there are three."""
    return DeadLetterStore.open(files, "orders", Clock(), compact_files=3)


def reasons(letters: DeadLetterStore) -> list[tuple[int, str | None]]:
    return [(each.position.commit, each.superseded) for each in letters.all(superseded=True)]


# --- resolved -------------------------------------------------------------------------------------


@pytest.mark.meets("R30", "TYP-32")
def test_a_resolved_letter_is_listed_with_reason_time_and_note_and_holds_nothing(
    files: Files,
) -> None:
    letters = opened(files)
    letters.add([inserted(1, 1), inserted(2, 2)])
    first, second = letters.all()
    assert letters.resolve([first], "edited", "Ada: price was null \ud83d") == 1
    assert letters.resolve([first], "replayed") == 0
    for each in (letters, opened(files)):
        assert each.all() == (second,)
        assert each.held("orders") == {key(2): at(2)}
        found = each.all(superseded=True)[0]
        assert (found.superseded, found.note) == ("edited", r"Ada: price was null \ud83d")
        assert found.ended == datetime.fromtimestamp(NOW, UTC)
        assert each.purged_keys() == {}
    assert len(files.list(FOLDER)) == 2


@pytest.mark.meets("R30")
def test_a_key_stays_held_by_what_waited_behind_until_that_is_resolved_too(files: Files) -> None:
    letters = opened(files)
    letters.add([inserted(1, 1), moved(2, 1, 2, kind="behind"), deleted(3, 2, kind="behind")])
    first, second, third = letters.all()
    letters.resolve([first], "replayed")
    for each in (letters, opened(files)):
        assert each.held("orders") == {key(1): at(2), key(2): at(2)}
    letters.resolve([second], "replayed")
    assert opened(files).held("orders") == {key(2): at(3)}
    letters.resolve([third], "replayed")
    assert opened(files).held("orders") == {}
    assert letters.keys() == letters.count == 0


@pytest.mark.meets("R30")
def test_a_reload_ends_what_is_left_behind_a_resolved_letter(files: Files) -> None:
    # The new table has these changes, wherever they are: nothing blocked them while it was loaded.
    letters = opened(files)
    letters.add([inserted(2, 1), inserted(7, 1, kind="behind")])
    letters.resolve(letters.all()[:1], "replayed")
    assert letters.held("orders", since=at(5), baseline=1) == {}
    letters.clear("orders", at(5), "reload", keep_baseline=1)
    for each in (letters, opened(files)):
        assert reasons(each) == [(2, "replayed"), (7, "reload")]
        assert each.held("orders") == {}


@pytest.mark.meets("R23d", "R30")
def test_a_truncate_leaves_what_waits_after_it(files: Files) -> None:
    letters = opened(files)
    letters.add([inserted(2, 1), inserted(7, 1, kind="behind")])
    letters.resolve(letters.all()[:1], "replayed")
    letters.clear("orders", at(5), "truncate")
    assert opened(files).held("orders") == {key(1): at(7)}


@pytest.mark.meets("R30")
def test_a_resolved_letter_that_comes_again_counts_again(files: Files) -> None:
    letters = opened(files)
    letters.add([inserted(1, 1)])
    letters.purge(Selection())
    assert letters.purged_keys() == {"orders": 1}
    assert letters.add([inserted(1, 1)]) == 1
    for each in (letters, opened(files)):
        assert reasons(each) == [(1, None)]
        assert each.held("orders") == {key(1): at(1)}
        assert each.purged_keys() == {}, "the row is not given up, it waits"


@pytest.mark.meets("R30")
def test_a_change_parked_by_a_batch_that_a_purge_did_not_know_of_holds_its_row(
    files: Files,
) -> None:
    # The batch was computed while the key was held, and stores its letters after the purge.
    letters = opened(files)
    letters.add([inserted(1, 1)])
    letters.purge(Selection())
    assert letters.add([inserted(2, 1, kind="behind")]) == 1
    for each in (letters, opened(files)):
        assert each.count == 1
        assert each.held("orders") == {key(1): at(2)}
    assert letters.purge(Selection(position=at(2))) == (Purged("orders", 1, 1),)


def test_a_letter_that_is_not_known_is_not_resolved(files: Files) -> None:
    letters = opened(files)
    letters.add([inserted(1, 1)])
    other = replace(letters.all()[0], lineage="sqlite/other")
    assert letters.resolve([other], "purged") == 0
    assert letters.count == 1


# --- purged ---------------------------------------------------------------------------------------


def some(files: Files) -> DeadLetterStore:
    clock = Clock()
    letters = DeadLetterStore.open(files, "orders", clock)
    letters.add([inserted(1, 1), moved(2, 1, 2, kind="behind"), inserted(3, 3, code="CAST")])
    clock.now += 60
    letters.add([deleted(4, 2, kind="behind"), letter(insert(5, {"id": 1}), schema=CUSTOMERS)])
    return letters


@pytest.mark.meets("R30", "TYP-32")
@pytest.mark.parametrize(
    ("selection", "commits"),
    [
        (Selection(), [1, 2, 3, 4, 5]),
        (Selection(table="customers"), [5]),
        (Selection(table="orders"), [1, 2, 3, 4]),
        (Selection(code="CAST"), [3]),
        (Selection(code="DIVIDE_BY_ZERO"), [1, 2, 4, 5]),
        (Selection(position=at(1)), [1, 2, 4]),
        (Selection(position=at(2)), [2, 4]),
        (Selection(position=at(4)), [4]),
        (Selection(before=at(3)), [1, 2, 4]),
        (Selection(before=datetime.fromtimestamp(NOW + 1, UTC)), [1, 2, 3, 4]),
        (Selection(table="orders", code="DIVIDE_BY_ZERO", before=at(1)), []),
    ],
)
def test_a_purge_takes_what_is_selected_and_what_waits_behind_it(
    files: Files, selection: Selection, commits: list[int]
) -> None:
    letters = some(files)
    count = sum(each.dead_letters for each in letters.to_purge(selection))
    found = letters.purge(selection, "Ada")
    assert sum(each.dead_letters for each in found) == count == len(commits)
    for each in (letters, opened(files)):
        ended = [one for one in each.all(superseded=True) if one.superseded]
        assert [one.position.commit for one in ended] == commits
        assert {(one.superseded, one.note) for one in ended} <= {("purged", "Ada")}


@pytest.mark.meets("R30")
def test_rows_of_purged_letters_are_counted_until_a_reload_or_truncate_after_them(
    files: Files,
) -> None:
    letters = some(files)
    assert letters.purge(Selection()) == (Purged("customers", 1, 1), Purged("orders", 4, 3))
    assert opened(files).held("orders") == {}
    letters.add([inserted(6, 1)])
    letters.clear("orders", at(1), "truncate")
    letters.clear("customers", at(9), "reload")
    for each in (letters, opened(files)):
        assert each.purged_keys() == {"orders": 3}, "key 1 was given up at 2, too"
        assert each.figures.purged_keys == {"orders": 3}
    letters.clear("orders", at(4), "reload")
    for each in (letters, opened(files)):
        assert each.purged_keys() == {}
        assert each.held("orders") == {key(1): at(6)}


@pytest.mark.meets("R30")
def test_a_purged_row_of_a_baseline_is_right_after_a_later_baseline_alone(files: Files) -> None:
    letters = opened(files)
    letters.add([inserted(0, 7, baseline=(2, at(5)))])
    letters.purge(Selection())
    letters.clear("orders", at(5), "reload", keep_baseline=2)
    assert opened(files).purged_keys() == {"orders": 1}
    letters.clear("orders", at(5), "reload", keep_baseline=3)
    assert opened(files).purged_keys() == {}


# --- many -----------------------------------------------------------------------------------------


def test_letters_are_listed_in_pages_and_a_position_is_never_cut(files: Files) -> None:
    letters = opened(files)
    letters.add([inserted(0, number, baseline=(1, at(2))) for number in (1, 2, 3)])
    letters.add([inserted(1, 4), inserted(3, 5), inserted(4, 6)])
    pages, after = [], None
    while page := letters.all(after=after, limit=2):
        pages.append([each.position.commit for each in page])
        after = page[-1].position
    assert pages == [[1, 2, 2, 2], [3, 4]]
    records = in_files(files, "orders")
    assert read_records(records, "orders", after=at(2), limit=1) == letters.all()[4:5]
    assert read_records(records, "orders", limit=0) == ()


def test_letters_are_counted_by_table_kind_and_code(files: Files) -> None:
    assert some(files).counts() == [
        Count("customers", "failed", "DIVIDE_BY_ZERO", 1),
        Count("orders", "behind", "", 2),
        Count("orders", "failed", "CAST", 1),
        Count("orders", "failed", "DIVIDE_BY_ZERO", 1),
    ]


# --- formats --------------------------------------------------------------------------------------


@pytest.mark.meets("P8")
def test_what_an_older_version_does_not_know_it_refuses_by_its_format(files: Files) -> None:
    letters = opened(files)
    letters.add([inserted(1, 1)])
    letters.clear("orders", at(1), "truncate")
    letters.add([inserted(2, 2), inserted(3, 3)])
    heads = [files.read(f"{FOLDER}/{name}")[:12] for name in files.list(FOLDER)]
    assert heads == [b'{"format":1,'] * 3, "it goes on with files of the kinds that it knows"
    letters.resolve(letters.all(), "replayed")
    letters.compact()
    names = files.list(FOLDER)
    assert names == ["000000000001.letters", "000000000005.letters"]
    # It begins with number 1.
    assert [files.read(f"{FOLDER}/{name}")[:12] for name in names] == [b'{"format":2,'] * 2
    checkpoint = decode(files.read(f"{FOLDER}/{names[0]}"), 1, "orders")
    assert checkpoint == DeadLetterCheckpoint(1, "orders", 5)


@pytest.mark.meets("P8")
def test_a_checkpoint_without_what_it_names_is_an_error_that_names_it(files: Files) -> None:
    letters = opened(files)
    letters.add([inserted(1, 1)])
    letters.compact()
    files.remove(f"{FOLDER}/000000000002.letters")
    with pytest.raises(CorruptLetters) as caught:
        opened(files)
    assert "000000000002.letters" in str(caught.value)


def test_a_format_of_tomorrow_is_refused_in_a_later_file_too(files: Files) -> None:
    opened(files).add([inserted(1, 1)])
    body = b"\x80"
    head = b'{"format":3,"check":"%s"}\n' % xxhash.xxh3_64_hexdigest(body).encode()
    files.put(f"{FOLDER}/000000000002.letters", head + body)
    with pytest.raises(UnknownFormat):
        read_letters(files)


# --- merged ---------------------------------------------------------------------------------------


@pytest.mark.meets("R30")
def test_many_files_become_one_that_says_the_same(files: Files) -> None:
    letters = some(files)
    letters.add([inserted(0, 7, baseline=(2, at(5)), facts={"column": "total"})])
    letters.clear("customers", at(9), "reload")
    letters.purge(Selection(position=at(4)), "Ada")
    before = letters.all(superseded=True)
    letters.compact()
    assert files.list(FOLDER) == ["000000000001.letters", "000000000006.letters"]
    for each in (letters, opened(files)):
        assert each.all(superseded=True) == before == read_letters(files, superseded=True)
        assert each.held("orders") == {key(1): at(1), key(2): at(2), key(3): at(3), key(7): at(5)}
        assert each.purged_keys() == {"orders": 1}
    # And it goes on from there.
    assert letters.add([inserted(1, 1)]) == 0
    assert letters.add([inserted(9, 9)]) == 1
    letters.compact()
    assert len(opened(files).all(superseded=True)) == len(before) + 1
    assert files.list(FOLDER) == ["000000000001.letters", "000000000008.letters"]


@pytest.mark.meets("R30", "S6")
@pytest.mark.parametrize("kind", sorted(FITTING))
@examples(3)
@given(data=st.data())
def test_a_value_of_every_type_is_the_same_after_a_merge(kind: str, data: st.DataObject) -> None:
    schema = table(("id", kind), ("v.w", kind))
    files = files_on(SimulatedDisk())
    letters = opened(files)
    for commit in (1, 2):
        values = [data.draw(st.none() | FITTING[kind]) for _ in range(4)]
        old, new = (dict(zip(schema.names, pair, strict=True)) for pair in (values[:2], values[2:]))
        letters.add([letter(update(commit, old, new), schema=schema)])
    before = letters.all()
    letters.resolve(before[:1], "replayed")
    letters.compact()
    assert repr(opened(files).all()) == repr(before[1:])


def test_files_are_merged_once_there_are_many(files: Files) -> None:
    letters = merging(files)
    for number in range(1, 30):
        letters.add([inserted(number, number)])
        assert len(files.list(FOLDER)) <= 12
    assert [each.position.commit for each in opened(files).all()] == [*range(1, 30)]


def test_what_is_large_is_not_written_again_for_a_few_new_files(files: Files) -> None:
    letters = merging(files)
    letters.add([inserted(number, number) for number in range(1, 41)])
    letters.compact()
    merged = files.list(FOLDER)[-1]
    for number in range(41, 50):
        letters.add([inserted(number, number)])
    assert merged in files.list(FOLDER)
    letters.add([inserted(50, 50)])
    assert merged not in files.list(FOLDER)


@pytest.mark.meets("R30")
def test_what_ended_long_ago_is_removed_and_nothing_else(files: Files) -> None:
    clock = Clock()
    letters = DeadLetterStore.open(files, "orders", clock, keep=10 * DAY)
    letters.add([inserted(1, 1), inserted(2, 2), inserted(3, 3)])
    letters.clear("orders", at(1), "truncate")
    clock.now += 9 * DAY
    letters.purge(Selection(position=at(2)))
    assert reasons(letters) == [(1, "truncate"), (2, "purged"), (3, None)]
    clock.now += 2 * DAY
    letters.add([inserted(4, 4)])
    assert reasons(letters) == [(2, "purged"), (3, None), (4, None)]
    clock.now += 30 * DAY
    letters.add([inserted(5, 5)])
    for each in (letters, DeadLetterStore.open(files, "orders", clock, keep=10 * DAY)):
        assert reasons(each) == [(3, None), (4, None), (5, None)]
        assert each.purged_keys() == {"orders": 1}, "the row differs for as long as it does"


@pytest.mark.meets("R30")
def test_what_ended_long_ago_is_removed_at_a_start(files: Files) -> None:
    opened(files).add([inserted(1, 1), inserted(2, 2)])
    opened(files).purge(Selection(position=at(1)))

    def started(days: int) -> DeadLetterStore:
        store, _ = open_store(files, "orders", lambda: NOW + days * DAY, DeadLetters(keep="7d"))
        return store

    assert reasons(started(6)) == [(1, "purged"), (2, None)]
    assert reasons(started(8)) == [(2, None)]
    assert started(8).purged_keys() == {"orders": 1}


def test_what_cannot_be_merged_is_not_tried_at_every_write(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MOST_COMPACTED", 3)
    tried = list[int]()
    letters = merging(files)
    monkeypatch.setattr(letters, "compact", lambda: tried.append(len(files.list(FOLDER))))
    for number in range(1, 10):
        letters.add([inserted(number, number)])
    assert tried == [3, 6, 9]


@pytest.mark.meets("R30")
def test_a_dropped_pipeline_holds_no_key_and_has_no_row_to_repair(files: Files) -> None:
    letters = some(files)
    letters.purge(Selection(table="customers"))
    letters.drop()
    for each in (letters, opened(files)):
        assert each.held("orders") == {}
        assert each.purged_keys() == {}
        assert {found.superseded for found in each.all(superseded=True)} == {"dropped", "purged"}


@pytest.mark.meets("R30")
def test_a_missing_file_after_a_merge_is_named(files: Files) -> None:
    letters = opened(files)
    for number in (1, 2):
        letters.add([inserted(number, number)])
    letters.compact()
    for number in (3, 4, 5):
        letters.add([inserted(number, number)])
    for lost in ("000000000003", "000000000004", "000000000005"):
        data = files.read(f"{FOLDER}/{lost}.letters")
        files.remove(f"{FOLDER}/{lost}.letters")
        with pytest.raises(CorruptLetters) as caught:
            opened(files)
        assert lost in str(caught.value)
        files.put(f"{FOLDER}/{lost}.letters", data)
    assert opened(files).count == 5


def test_a_reader_reads_again_what_was_merged_meanwhile(files: Files) -> None:
    letters = opened(files)
    for number in (1, 2, 3):
        letters.add([inserted(number, number)])
    before = letters.all()

    class Merged:
        """Records that are merged after the first look at them."""

        def __init__(self, records: Records) -> None:
            self._records = records

        def __getattr__(self, name: str) -> object:
            return getattr(self._records, name)

        def read(self, number: int) -> bytes:
            if number == 1 and len(self._records.numbers()) > 2:
                letters.compact()
            return self._records.read(number)

    records = in_files(files, "orders")
    assert read_records(Merged(records), "orders") == before  # type: ignore[arg-type]
    letters.add([inserted(4, 4)])
    store = DeadLetterStore(records, "orders", Clock())
    store._records = Merged(records)  # type: ignore[assignment]
    assert len(store.all()) == 4


# --- merged, whatever happens meanwhile -----------------------------------------------------------

STEPS = ("write", "sync", "rename", "link", "remove", "sync_folder", "make_folder")
KEYS = range(1, 9)


def write(letters: DeadLetterStore, promised: dict[int, str | None]) -> None:
    """Add letters one by one; some are ended. Note what returned: files are merged in between."""
    for number in KEYS:
        if promised.get(number):
            continue  # it would count again
        letters.add([inserted(number, number)])
        promised.setdefault(number, None)
        if number == 4 and promised[1] is None:
            letters.clear("orders", at(2), "truncate")
            promised.update({1: "truncate", 2: "truncate"})
        if number == 6 and promised[3] is None:
            letters.purge(Selection(position=at(3)))
            promised[3] = "purged"


def check(files: Files, promised: dict[int, str | None]) -> None:
    """Check that all that was promised is there, as the reader and as the engine see it."""
    everything = read_letters(files, superseded=True)
    found = {each.position.commit: each.superseded for each in everything}
    assert list(found) == list(KEYS)[: len(found)]
    assert [each.after["id"] for each in everything if each.after] == list(found)
    for number, reason in promised.items():
        assert number in found
        assert reason is None or found[number] == reason
    assert merging(files).all(superseded=True) == everything


@pytest.mark.slow
@pytest.mark.meets("R30", "P2")
@pytest.mark.parametrize("fate", ["cut", "kill"])
def test_no_power_cut_or_kill_at_any_step_of_a_merge_loses_a_letter(fate: str) -> None:
    steps = steps_of(lambda disk: write(merging(files_on(disk)), {}), STEPS)
    walked = thinned(range(len(steps)), every=5)
    assert_every_kind(steps, walked)
    for step in walked:
        for seed in range(2):
            disk = SimulatedDisk(counting(step, cut, STEPS))
            files = files_on(disk)
            promised: dict[int, str | None] = {}
            with pytest.raises(PowerCut):
                write(merging(files), promised)
            disk.on_step = None
            if fate == "cut":
                disk.power_cut(Random(seed))
            check(files, promised)
            write(merging(files), promised)
            disk.power_cut(Random(seed))
            check(files, promised)


@pytest.mark.slow
@pytest.mark.meets("R30", "R31")
def test_an_engine_that_takes_over_at_any_step_of_a_merge_loses_nothing() -> None:
    steps = steps_of(lambda disk: write(merging(files_on(disk)), {}), STEPS)
    for step in thinned(range(len(steps)), every=7):
        disk = SimulatedDisk()
        files = files_on(disk)
        promised: dict[int, str | None] = {}

        def take_over(disk: SimulatedDisk = disk, files: Files = files) -> None:
            disk.on_step = None
            write(merging(files), dict.fromkeys(range(1, 4)))

        disk.on_step = counting(step, take_over, STEPS)
        with suppress(AlreadyStored, StorageError):
            write(merging(files), promised)
        disk.on_step = None
        check(files, promised)


def test_a_merge_that_fails_fails_nothing_else(files: Files) -> None:
    disk = SimulatedDisk()
    files = files_on(disk)
    letters = merging(files)
    for number in (1, 2):
        letters.add([inserted(number, number)])
    disk.fail("write", 5, nth=2)
    assert letters.add([inserted(3, 3)]) == 1
    disk.heal()
    assert [each.position.commit for each in letters.all()] == [1, 2, 3]
    assert letters.add([inserted(4, 4)]) == 1
    assert [each.position.commit for each in opened(files).all()] == [1, 2, 3, 4]


# --- where a store is -----------------------------------------------------------------------------


class Shelf:
    """A storage of another package."""

    type = "shelf"
    volatile = False

    def __init__(self, location: str = "the cellar") -> None:
        self.location = location
        self.made: dict[str, MemoryRecords] = {}

    def records(self, name: str) -> Records:
        return self.made.setdefault(name, MemoryRecords())


def placed(files: Files, policy: DeadLetters, records: Records | None = None) -> DeadLetterStore:
    store, _ = open_store(files, "orders", Clock(), policy, records)
    return store


@pytest.mark.meets("ENG-49")
def test_a_store_of_another_package_is_used_and_named(files: Files) -> None:
    shelf = Shelf()
    placed(files, DeadLetters(store=shelf)).add([inserted(1, 1)])
    assert placed(files, DeadLetters(store=shelf)).count == 1
    assert files.list(FOLDER) == ["store"]
    assert pipelines_elsewhere(files) == {"orders": "shelf"}
    # Whether it holds keys is only known to it.
    with pytest.raises(DeadLettersElsewhere) as caught:
        placed(files, DeadLetters())
    assert f"/data/{FOLDER}/store" in caught.value.remedy
    assert read_letters(files) == ()
    assert len(read_records(shelf.made["orders"], "orders")) == 1


@pytest.mark.meets("ENG-49")
def test_a_store_in_memory_is_kept_as_long_as_its_records_are(files: Files) -> None:
    store, records = open_store(files, "orders", Clock(), DeadLetters(store="memory"))
    store.add([inserted(1, 1)])
    assert placed(files, DeadLetters(store="memory"), records).count == 1
    assert placed(files, DeadLetters(store="memory")).count == 0
    assert pipelines_elsewhere(files) == {"orders": "memory"}


@pytest.mark.meets("R30")
def test_another_store_is_refused_while_the_present_one_holds_keys(files: Files) -> None:
    local = placed(files, DeadLetters())
    local.add([inserted(1, 1)])
    with pytest.raises(DeadLettersElsewhere) as caught:
        placed(files, DeadLetters(store="memory"))
    assert caught.value.facts["count"] == 1
    assert pipelines_elsewhere(files) == {}
    local.purge(Selection())
    placed(files, DeadLetters(store="memory"))
    # And back again: what was there is there, as it ended.
    assert reasons(placed(files, DeadLetters())) == [(1, "purged")]
    assert pipelines_elsewhere(files) == {}


@pytest.mark.meets("R30")
def test_a_pipeline_that_stops_on_errors_still_holds_what_is_where_it_was(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = files_on(SimulatedDisk())
    monkeypatch.setattr(elsewhere, "prove", lambda: None)
    monkeypatch.setattr(store_module, "opened", lambda location: elsewhere)
    placed(files, DeadLetters(store="s3://shop/a")).add([inserted(1, 1)])
    store, _ = open_store(files, "orders", Clock(), "stop")
    assert store.held("orders") == {key(1): at(1)}
    assert placed(files, DeadLetters(store="s3://shop/a")).count == 1


@pytest.mark.meets("P8")
@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b'{"type":"s3","location":"s3://shop","format":2}', UnknownFormat),
        (b'{"type":"s3"}', CorruptLetters),
        (b"\xff", CorruptLetters),
    ],
)
def test_a_file_that_does_not_say_where_they_are_is_named(
    files: Files, data: bytes, error: type[Exception]
) -> None:
    files.make_folder(FOLDER)
    files.put(f"{FOLDER}/store", data)
    for read in (read_letters, lambda files: placed(files, DeadLetters())):
        with pytest.raises(error) as caught:
            read(files)
        assert f"{FOLDER}/store" in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"store": "disk"},
        {"store": "s3://"},
        {"store": "ftp://a/b"},
        {"store": object()},
        {"keep": "10m"},
        {"keep": 0},
    ],
)
def test_options_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(WrongValue):
        DeadLetters(**wrong)  # type: ignore[arg-type]
