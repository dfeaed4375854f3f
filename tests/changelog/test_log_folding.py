"""Folding: a baseline with its changes comes to the same rows, or it is not folded."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pyarrow as pa
import pytest

from headrace.changelog import compaction as module
from headrace.changelog.change import Change, Op
from headrace.changelog.compaction import CannotFold, Fold, plan_fold
from headrace.changelog.entries import Baseline
from headrace.changelog.position import Position
from headrace.changelog.reader import LogReader, LogWriter
from headrace.changelog.retention import FileDeletion, prune
from headrace.changelog.schema import TableSchema
from headrace.errors import HeadraceError
from headrace.storage.files import Files
from headrace.storage.simulation import PowerCut, SimulatedDisk
from tests.changelog.log_making import (
    ORDERS,
    ORIGIN_TEXT,
    SOURCE,
    At,
    begun,
    changes,
    files_on,
    insert,
    opened,
    reading,
    row_table,
    table,
    truncate,
)
from tests.support.cuts import (
    STEPS,
    Step,
    assert_every_kind,
    counting,
    cut,
    places,
    steps_of,
)

TWO = table("pairs", a="int64", b="text", n="int64")
TWO = TableSchema("pairs", TWO.columns, ("a", "b"))
WIDE = table(id="int64", name="text", more="text")
Rows = dict[object, dict[str, object]]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_BYTES", 1)
    monkeypatch.setattr(module, "SHARE", 1_000_000)
    monkeypatch.setattr(module, "FOLD_MOST_FILES", 2)


def key_of(schema: TableSchema, row: dict[str, object]) -> object:
    return tuple(row[name] for name in schema.key)


def write(log: LogWriter, schema: TableSchema, *rows: Change) -> None:
    log.append(changes(rows, schema))
    log.flush()


def copied(log: LogWriter, schema: TableSchema, *rows: dict[str, object]) -> None:
    writer = log.baseline(schema)
    if rows:
        writer.write(row_table(schema, *rows))
    writer.finish(log.end.commit, log.end.commit)


def held(reader: LogReader, name: str = "orders") -> tuple[Baseline, Rows]:
    """Return the usable baseline, and its rows by key."""
    baseline = reader.usable_baseline(name)
    assert baseline is not None
    rows: Rows = {}
    for file in baseline.files:
        schema = reader.schema(name, file.schema)
        for row in reader.rows(file)["after"].to_pylist():
            key = key_of(schema, row)
            assert key not in rows
            rows[key] = row
    assert baseline.rows == len(rows)
    return baseline, rows


def replayed(reader: LogReader, name: str = "orders") -> Rows:
    """Return what the baseline and all changes after it come to."""
    baseline, rows = held(reader, name)
    for files in reader._history.tables[name].files:
        for file in files:
            schema = reader.schema(name, file.schema)
            for change in reader.rows(file).to_pylist():
                if change["_commit"] <= baseline.window[0].commit:
                    continue
                if change["_op"] == Op.TRUNCATE:
                    rows.clear()
                    continue
                if change["before"] is not None:
                    rows.pop(key_of(schema, change["before"]), None)
                if change["after"] is not None:
                    rows[key_of(schema, change["after"])] = change["after"]
    return rows


def fold(log: LogWriter, upto: int) -> Baseline:
    plan = plan_fold(log, Position(1, upto, 2**31 - 1))
    assert plan is not None
    folding = Fold(log, plan)
    try:
        while (found := folding.advance()) is None:
            pass
    except BaseException:
        folding.discard()
        raise
    return found


def change(dice: Random, commit: int, ordinal: int, rows: set[int]) -> Change:
    """Return a change that can be made to these keys, and make it."""
    time, name = commit * 1_000, {"name": f"n{commit}.{ordinal}"}
    key = dice.randrange(12)
    if dice.random() < 0.04:
        rows.clear()
        return truncate(commit, ordinal)
    if key not in rows:
        rows.add(key)
        return Change(Op.INSERT, commit, ordinal, time, after={"id": key, **name})
    if dice.random() < 0.3:
        rows.discard(key)
        return Change(Op.DELETE, commit, ordinal, time, before={"id": key})
    free = [other for other in range(12) if other not in rows]
    if free and dice.random() < 0.3:
        new = dice.choice(free)
        rows.symmetric_difference_update({key, new})
        return Change(
            Op.UPDATE, commit, ordinal, time, before={"id": key}, after={"id": new, **name}
        )
    before = None if dice.random() < 0.5 else {"id": key, "name": "x"}
    return Change(Op.UPDATE, commit, ordinal, time, before=before, after={"id": key, **name})


@pytest.mark.meets("R19")
@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 25))]
)
def test_a_folded_baseline_holds_what_its_changes_lead_to(files: Files, seed: int) -> None:
    dice = Random(seed)
    log = begun(files)
    keys = set(dice.sample(range(12), 6))
    copied(log, ORDERS, *({"id": key, "name": "first"} for key in sorted(keys)))
    number = 0
    for _ in range(4):
        for _ in range(dice.randint(1, 6)):
            number += 1
            count = dice.randint(1, 4)
            write(log, ORDERS, *(change(dice, number, n, keys) for n in range(count)))
        wanted = replayed(reading(files))
        upto = dice.randint(max(1, number - 3), number)
        if plan_fold(log, Position(1, upto)) is None:
            continue
        folded = fold(log, upto)
        assert folded.copy == 1
        assert folded.window[0].commit == upto
        assert {key[0] for key in wanted} == keys  # type: ignore[index]
        assert replayed(reading(files)) == wanted
        prune(log, Position(1, upto), set(log.history.tables["orders"].baselines))
        FileDeletion(log).delete(-1)
        assert replayed(reading(files)) == wanted
        assert replayed(LogReader.open(files, SOURCE)) == wanted
        assert list(log.history.tables["orders"].baselines) == [folded.baseline]


def test_keys_of_several_columns_are_told_apart(files: Files) -> None:
    log = begun(files)
    rows = [{"a": 1, "b": "1:2", "n": 0}, {"a": 11, "b": ":2", "n": 0}, {"a": 1, "b": "", "n": 0}]
    copied(log, TWO, *rows)
    write(
        log,
        TWO,
        Change(Op.UPDATE, 1, 0, 1, after={"a": 11, "b": ":2", "n": 5}),
        Change(Op.DELETE, 1, 1, 1, before={"a": 1, "b": ""}),
    )
    fold(log, 1)
    _, found = held(reading(files), "pairs")
    assert found == {
        (1, "1:2"): {"a": 1, "b": "1:2", "n": 0},
        (11, ":2"): {"a": 11, "b": ":2", "n": 5},
    }


def test_rows_keep_the_schema_that_they_were_written_with(files: Files) -> None:
    log = begun(files)
    copied(log, ORDERS, {"id": 1, "name": "a"}, {"id": 2, "name": "b"})
    after = {"id": 2, "name": "B", "more": "m"}
    write(log, WIDE, Change(Op.UPDATE, 1, 0, 1, after=after))
    write(log, WIDE, insert(2, 3))
    fold(log, 2)
    baseline, rows = held(reading(files))
    assert rows[(1,)] == {"id": 1, "name": "a"}
    assert rows[(2,)] == after
    assert [file.schema for file in baseline.files] == [1, 2]


def test_files_that_nothing_changed_are_named_again(files: Files) -> None:
    log = begun(files)
    other = table("items")
    copied(log, ORDERS, {"id": 1, "name": "a"})
    write(log, other, insert(1))
    write(log, other, insert(2))
    old = reading(files).usable_baseline("orders")
    folded = fold(log, 2)
    assert old is not None
    assert folded.files == old.files
    size = log.size
    pruned = prune(log, Position(1, 1), {1, 2})
    assert pruned is not None
    assert pruned.baselines == (old.baseline,)
    FileDeletion(log).delete(-1)
    assert log.size < size
    assert held(reading(files))[1] == {(1,): {"id": 1, "name": "a"}}
    assert opened(files, term=2).size == log.size


def test_marks_of_values_that_do_not_fit_stay_with_their_row(files: Files) -> None:
    log = begun(files)
    copied(log, ORDERS, {"id": 1, "name": "a"})
    write(log, ORDERS, Change(Op.UPDATE, 1, 0, 1, {"id": 1, "name": 5}, {"id": 1, "name": 7}))
    fold(log, 1)
    baseline, _ = held(reading(files))
    [file] = baseline.files
    assert file.marked == 1
    assert reading(files).rows(file)["_exact"].to_pylist() == [[(2, "7")]]


@pytest.mark.meets("R19")
@pytest.mark.parametrize("why", ["no key", "unsent", "key of floats", "key without a value"])
def test_what_would_not_be_exact_is_not_folded(files: Files, why: str) -> None:
    log = begun(files)
    schema = ORDERS
    if why == "no key":
        schema = TableSchema("orders", ORDERS.columns)
    if why == "key of floats":
        schema = table(id="float64", name="text")
    copied(log, schema, {"id": 1, "name": "a"})
    given = changes([insert(1, 2)], schema)
    if why == "key without a value":
        given = changes([Change(Op.INSERT, 1, 0, 1, after={"id": None, "name": "x"})])
    if why == "unsent":
        rows = given.tables[0].rows
        unsent = pa.array([[2]], rows.schema.field("_unsent").type)
        rows = rows.set_column(rows.schema.get_field_index("_unsent"), "_unsent", unsent)
        given = changes([insert(1, 2)], schema)
        object.__setattr__(given.tables[0], "rows", rows)
    log.append(given)
    log.flush()
    before = files.list(f"log/{SOURCE}/segments")
    with pytest.raises(CannotFold):
        fold(log, 1)
    assert files.list(f"log/{SOURCE}/segments") == before


def test_a_fold_that_was_overtaken_comes_to_nothing(files: Files) -> None:
    log = begun(files)
    copied(log, ORDERS, {"id": 1, "name": "a"})
    write(log, ORDERS, insert(1, 2))
    plan = plan_fold(log, Position(1, 1))
    assert plan is not None
    folding = Fold(log, plan)
    assert folding.advance() is None
    copied(log, ORDERS, {"id": 9, "name": "new"})
    with pytest.raises(CannotFold):
        folding.advance()
    assert folding.outdated
    assert list(held(reading(files))[1]) == [(9,)]


def test_it_is_folded_only_where_that_is_worth_it(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = begun(files)
    assert plan_fold(log, Position(1, 0)) is None
    copied(log, ORDERS, {"id": 1, "name": "a"})
    assert plan_fold(log, Position(1, 0)) is None
    for number in range(1, 6):
        write(log, ORDERS, insert(number, number + 10))
    assert plan_fold(log, Position(1, 0)) is None
    monkeypatch.setattr(module, "FOLD_MOST_ROWS", 2)
    plan = plan_fold(log, Position(1, 5))
    assert plan is not None
    assert (plan.upto.commit, len(plan.pieces)) == (2, 2)
    monkeypatch.setattr(module, "LEAST_BYTES", 1 << 20)
    assert plan_fold(log, Position(1, 5)) is None
    assert plan_fold(log, Position(1, 5), 100) is not None
    monkeypatch.setattr(module, "SHARE", 1e-3)
    assert plan_fold(log, Position(1, 5), 100) is None
    assert plan_fold(log, Position(1, 5), anyhow=True) is not None


def record(files: Files, term: int) -> None:
    log = opened(files, writer=f"w{term}", term=term)
    if log.epoch == 0:
        log.begin(At(0), "start", ORIGIN_TEXT)
    if not log.has_baseline("orders"):
        copied(log, ORDERS, {"id": 100, "name": "a"}, {"id": 101, "name": "b"})
    deleting = FileDeletion(log)
    while (number := log.end.commit) < 12:
        keys = {100, 101}
        write(log, ORDERS, change(Random(number), number + 1, 0, keys))
        if number % 4 == 3:
            with suppress(CannotFold):
                if plan_fold(log, Position(1, number)) is not None:
                    fold(log, number)
            usable = log.history.tables["orders"].baseline
            assert usable is not None
            numbers = set(log.history.tables["orders"].baselines)
            prune(log, min(usable.window[0], log.end), numbers)
            deleting.delete(0)


def expected() -> Rows:
    files = files_on()
    record(files, 1)
    return replayed(reading(files))


def cuts() -> tuple[list[Step], Sequence[int]]:
    """Return all steps, and at which of them it is cut: those of folds rather than of the copy."""
    steps = steps_of(lambda disk: record(files_on(disk), 1), STEPS)
    folding = next(n for n, (_, path) in enumerate(steps) if "-b2-" in path)
    return steps, places(steps, folding)


def test_a_fold_is_cut_at_every_kind_of_step_and_where_it_counts() -> None:
    steps, walked = cuts()
    assert_every_kind(steps, walked)
    links = [n for n, (step, _) in enumerate(steps) if step == "link"]
    folded = next(n for n in links if "-b2-" in steps[n][1])
    entry = next(n for n in links if n > folded and steps[n][1].endswith(".json"))
    assert {folded, entry} <= {*walked}


@pytest.mark.meets("P2", "R19")
@pytest.mark.parametrize("takeover", [False, True])
@pytest.mark.slow
def test_a_fold_that_is_cut_at_any_step_leaves_the_same_rows(takeover: bool) -> None:
    truth = expected()
    for step in cuts()[1]:
        dice = Random(step)
        disk = SimulatedDisk()
        files = files_on(disk)

        def other(disk: SimulatedDisk = disk, files: Files = files) -> None:
            disk.on_step = None
            record(files, 2)

        disk.on_step = counting(step, other if takeover else cut)
        try:
            record(files, 1)
        except PowerCut:
            disk.on_step = None
            if dice.random() < 0.7:
                disk.power_cut(dice)
        except HeadraceError:
            assert takeover
        disk.on_step = None
        record(files, 3)
        disk.power_cut(dice)
        assert replayed(reading(files)) == truth
