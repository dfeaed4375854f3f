"""Dead letters: what is kept, what is held, and what a truncate or a reload makes of them."""

from __future__ import annotations

import stat
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headrace.changelog.change import as_segment
from headrace.changelog.position import Position
from headrace.changelog.schema import TableSchema
from headrace.deadletters.letter import waiting_changes
from headrace.deadletters.store import read_letters
from headrace.errors import AlreadyStored, CorruptLetters, UnknownFormat
from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.storage.simulation import SimulatedDisk
from tests.changelog.test_value_table import ANYTHING, FITTING, PLAIN, same, surrogate_texts
from tests.pipeline.letter_making import (
    LINEAGE,
    NOW,
    at,
    deleted,
    files_on,
    inserted,
    letter,
    moved,
    opened,
    order,
)
from tests.pipeline.making import ORDERS, insert, table, truncate, update
from tests.support.tiers import examples

CUSTOMERS = table(("id", "int64"), ("name", "text"), name="customers")
FIRST = "dead-letters/orders/000000000001.letters"


@pytest.fixture
def files() -> Files:
    return files_on(SimulatedDisk())


def key(number: int) -> bytes:
    (found,) = inserted(1, number).keys
    return found


# --- what a dead letter keeps ----------------------------------------------------------------


@pytest.mark.meets("R30", "S2")
def test_a_letter_comes_back_as_it_was_given(files: Files) -> None:
    change = update(7, order(1, price=None), order(2, price="1.50"), ordinal=3)
    facts = {"column": "total", "message": "half a pair: \ud83d"}
    assert opened(files).add([letter(change, facts=facts)]) == 1
    (found,) = opened(files).all()
    assert (found.pipeline, found.table, found.lineage) == ("orders", "orders", LINEAGE)
    assert (found.position, found.baseline, found.op) == (at(7, 3), None, "update")
    assert (found.kind, found.code) == ("failed", "DIVIDE_BY_ZERO")
    assert found.facts == {"column": "total", "message": r"half a pair: \ud83d"}
    assert found.key == (2,)
    assert found.before == order(1, price=None)
    assert found.after is not None
    assert str(found.after["price"]) == "1.50"
    assert found.time == datetime(1970, 1, 1, microsecond=7, tzinfo=UTC)
    assert found.parked == datetime.fromtimestamp(NOW, UTC)
    assert found.superseded is None
    assert found.keys == (key(1), key(2))


def test_a_delete_is_known_by_the_key_it_had_and_a_truncate_has_none(files: Files) -> None:
    letters = opened(files)
    letters.add([deleted(1, 5), letter(truncate(2))])
    assert [(each.op, each.key) for each in letters.all()] == [("delete", (5,)), ("truncate", ())]
    assert [each.after for each in letters.all()] == [None, None]
    assert letters.keys() == 1


@pytest.mark.meets("R30", "S6")
@pytest.mark.parametrize("kind", sorted(FITTING))
@examples(15)
@given(data=st.data())
def test_a_value_of_every_type_comes_back_exactly_in_both_images(
    kind: str, data: st.DataObject
) -> None:
    schema = table(("id", kind), ("v.w", kind))
    values = [data.draw(st.none() | FITTING[kind]) for _ in range(4)]
    old, new = (dict(zip(schema.names, pair, strict=True)) for pair in (values[:2], values[2:]))
    files = files_on(SimulatedDisk())
    opened(files).add([letter(update(1, old, new), schema=schema)])
    (found,) = read_letters(files)
    assert found.before is not None
    assert found.after is not None
    back = [*found.before.values(), *found.after.values()]
    assert all(map(same, values, back)), (values, back)
    assert [type(value) for value in values] == [type(value) for value in back]
    assert same(found.key[0], values[2])


@pytest.mark.meets("R30", "R23f")
@pytest.mark.parametrize("kind", ["int64", "text", "decimal(12,2)", "date", "variant"])
@examples(25)
@given(data=st.data())
def test_a_value_that_its_column_could_not_hold_comes_back_from_its_exact_text(
    kind: str, data: st.DataObject
) -> None:
    schema = table(("id", "int64"), ("v", kind))
    old, new = (data.draw(ANYTHING) for _ in range(2))
    files = files_on(SimulatedDisk())
    change = update(1, {"id": 1, "v": old}, {"id": 1, "v": new})
    opened(files).add([letter(change, schema=schema)])
    (found,) = read_letters(files)
    assert found.before is not None
    assert found.after is not None
    for value, back in ((old, found.before["v"]), (new, found.after["v"])):
        if (
            type(value) in PLAIN
            and value not in surrogate_texts([value])
            and kind != "decimal(12,2)"
        ):
            assert same(back, value)


def test_a_column_that_was_not_sent_is_not_in_the_image(files: Files) -> None:
    given = letter(update(1, None, {"id": 1, "status": None, "qty": 2}))
    place = given.row.schema.get_field_index("_unsent")
    marks = pa.array([[2]], given.row.schema.field(place).type)
    row = given.row.set_column(place, given.row.schema.field(place), marks)
    opened(files).add([replace(given, row=row)])
    (found,) = opened(files).all()
    assert found.after == {"id": 1, "qty": 2, "price": None}


def test_letters_of_several_tables_and_schemas_share_a_file(files: Files) -> None:
    wider = TableSchema(
        "orders", (*ORDERS.columns, replace(CUSTOMERS.columns[1], field=9)), ("id",)
    )
    opened(files).add(
        [
            inserted(1, 1),
            letter(insert(2, {"id": 2, "name": "Ada"}), schema=wider),
            letter(insert(3, {"id": 3, "name": "Bob"}), schema=CUSTOMERS),
            inserted(4, 4),
        ]
    )
    assert files.list("dead-letters/orders") == ["000000000001.letters"]
    found = opened(files).all()
    assert [each.key for each in found] == [(1,), (2,), (3,), (4,)]
    assert [(each.after or {}).get("name") for each in found] == [None, "Ada", "Bob", None]
    assert [each.position for each in opened(files).all("customers")] == [at(3)]


# --- a dead letter that is added several times -----------------------------------------------


@pytest.mark.meets("R30")
def test_a_letter_added_twice_is_one(files: Files) -> None:
    letters = opened(files)
    assert letters.add([inserted(1, 1), inserted(1, 1), inserted(2, 2)]) == 2
    assert letters.add([inserted(2, 2), inserted(3, 3)]) == 1
    assert opened(files).add([inserted(1, 1)]) == 0
    assert len(read_letters(files)) == 3
    assert len(files.list("dead-letters/orders")) == 2


@pytest.mark.meets("R30")
def test_a_letter_is_known_by_table_lineage_and_position_and_a_baselines_row_by_its_key(
    files: Files,
) -> None:
    row = {"id": 1, "name": None}
    one = [
        inserted(1, 1),
        inserted(1, 1, lineage="sqlite/b"),
        letter(insert(1, row), schema=CUSTOMERS),
        letter(insert(1, row, ordinal=1), schema=CUSTOMERS),
        inserted(0, 1, baseline=(4, at(1))),
        inserted(0, 2, baseline=(4, at(1))),
        inserted(0, 2, baseline=(5, at(1))),
    ]
    letters = opened(files)
    assert letters.add(one) == len(one)
    assert letters.add(one) == 0
    assert len(letters.all()) == len(one)


def test_letters_come_by_position_a_baselines_rows_first(files: Files) -> None:
    letters = opened(files)
    letters.add([inserted(9, 1), inserted(2, 2)])
    letters.add(
        [inserted(2, 3, baseline=(1, at(2))), replace(inserted(1, 4), position=Position(2, 1))]
    )
    assert [(each.key, each.op) for each in letters.all()] == [
        ((3,), "baseline"),
        ((2,), "insert"),
        ((1,), "insert"),
        ((4,), "insert"),
    ]
    assert letters.all()[0].time == datetime(1970, 1, 1, microsecond=2, tzinfo=UTC)


# --- what is held --------------------------------------------------------------------------------


@pytest.mark.meets("R30")
def test_a_key_is_held_from_its_first_letter_on_old_key_and_new(files: Files) -> None:
    letters = opened(files)
    letters.add([moved(5, 1, 2), inserted(7, 1, kind="behind"), deleted(3, 9)])
    held = {key(1): at(5), key(2): at(5), key(9): at(3)}
    assert letters.held("orders") == opened(files).held("orders") == held
    assert letters.held("customers") == {}
    assert letters.keys() == 3


@pytest.mark.meets("R30")
def test_the_same_key_in_two_tables_counts_twice(files: Files) -> None:
    letters = opened(files)
    other = letter(insert(1, {"id": 1}), schema=CUSTOMERS)
    letters.add([inserted(1, 1), other])
    assert other.keys == (key(1),)
    assert letters.keys() == 2
    assert letters.keys(with_new=[inserted(2, 1), moved(3, 1, 8)]) == 3
    assert letters.keys() == 2


@pytest.mark.meets("R30")
def test_a_table_from_a_baseline_is_held_by_its_rows_and_by_changes_after_it(files: Files) -> None:
    letters = opened(files)
    letters.add([inserted(3, 1), inserted(6, 1), inserted(4, 2)])
    letters.add([inserted(0, 3, baseline=(1, at(2))), inserted(0, 4, baseline=(2, at(4)))])
    letters.add([inserted(9, 4)])
    assert letters.held("orders", since=at(4), baseline=2) == {key(1): at(6), key(4): at(4)}
    assert letters.held("orders", since=at(5), baseline=3) == {key(1): at(6), key(4): at(9)}
    assert letters.held("orders") == {
        key(1): at(3),
        key(2): at(4),
        key(3): at(2),
        key(4): at(4),
    }


# --- superseded ---------------------------------------------------------------------------------


@pytest.mark.meets("R23d", "R30")
def test_a_truncate_supersedes_the_letters_up_to_it_in_its_table(files: Files) -> None:
    letters = opened(files)
    other = letter(insert(1, {"id": 1}), schema=CUSTOMERS)
    letters.add([inserted(1, 1), inserted(5, 1), inserted(6, 2), other])
    letters.add([inserted(0, 7, baseline=(1, at(1)))])
    letters.clear("orders", at(5), "truncate")
    for each in (letters, opened(files)):
        assert [found.position for found in each.all("orders")] == [at(6)]
        assert each.held("orders") == {key(2): at(6)}
        assert each.held("customers") == {key(1): at(1)}
        assert each.keys() == 2
        reasons = [found.superseded for found in each.all("orders", superseded=True)]
        assert reasons == ["truncate", "truncate", "truncate", None]


@pytest.mark.meets("R30")
def test_a_reload_keeps_the_letters_of_its_own_baseline(files: Files) -> None:
    letters = opened(files)
    letters.add([inserted(1, 1), inserted(9, 2), inserted(0, 3, baseline=(1, at(1)))])
    letters.add([inserted(0, 3, baseline=(2, at(5)))])
    letters.clear("orders", at(5), "reload", keep_baseline=2)
    found = opened(files).all(superseded=True)
    assert [(each.position, each.baseline, each.superseded) for each in found] == [
        (at(1), 1, "reload"),
        (at(1), None, "reload"),
        (at(5), 2, None),
        (at(9), None, None),
    ]
    assert opened(files).held("orders") == {key(3): at(5), key(2): at(9)}


@pytest.mark.meets("R30")
def test_what_is_superseded_stays_so_with_its_first_reason(files: Files) -> None:
    letters = opened(files)
    letters.add([inserted(1, 1)])
    assert letters.count == 1
    letters.clear("orders", at(2), "truncate")
    letters.clear("orders", at(3), "reload")
    assert letters.count == 0
    assert [each.superseded for each in letters.all(superseded=True)] == ["truncate"]


def test_a_clear_that_concerns_no_letter_writes_nothing(files: Files) -> None:
    letters = opened(files)
    letters.clear("orders", at(9), "truncate")
    assert files.list("dead-letters") == []
    letters.add([inserted(5, 1), inserted(0, 2, baseline=(3, at(4)))])
    letters.clear("orders", at(4), "reload", keep_baseline=3)
    letters.clear("customers", at(9), "truncate")
    assert len(files.list("dead-letters/orders")) == 1


@pytest.mark.meets("R30")
def test_a_superseded_letter_that_comes_again_counts_again(files: Files) -> None:
    letters = opened(files)
    letters.add([inserted(1, 1)])
    letters.clear("orders", at(2), "reload")
    assert letters.add([inserted(1, 1)]) == 1
    for each in (letters, opened(files)):
        assert each.held("orders") == {key(1): at(1)}
        assert [found.superseded for found in each.all(superseded=True)] == [None]


@pytest.mark.meets("R30")
def test_a_reload_frees_a_row_that_went_on_changing_while_the_table_was_loaded(
    files: Files,
) -> None:
    letters = opened(files)
    # The old table parked 6 and 7 behind 2, after the new one's beginning at 5.
    letters.add([inserted(2, 1), moved(6, 1, 2, kind="behind"), deleted(7, 2, kind="behind")])
    letters.add([inserted(8, 3), deleted(9, 3, kind="behind")])
    assert letters.held("orders", since=at(5), baseline=1) == {key(3): at(8)}
    letters.clear("orders", at(5), "reload", keep_baseline=1)
    for each in (letters, opened(files)):
        assert each.held("orders") == {key(3): at(8)}
        reasons = [found.superseded for found in each.all(superseded=True)]
        assert reasons == ["reload"] * 3 + [None] * 2


@pytest.mark.meets("R30")
def test_a_letter_behind_a_row_of_the_new_baseline_outlives_the_reload(files: Files) -> None:
    letters = opened(files)
    letters.add([inserted(2, 1), moved(6, 1, 2, kind="behind")])
    letters.add([inserted(0, 1, baseline=(1, at(5)))])
    held = {key(1): at(5), key(2): at(6)}
    assert letters.held("orders", since=at(5), baseline=1) == held
    letters.clear("orders", at(5), "reload", keep_baseline=1)
    assert letters.held("orders") == opened(files).held("orders") == held


@pytest.mark.meets("R30")
def test_a_letter_that_was_behind_and_now_failed_itself_holds_on_its_own_account(
    files: Files,
) -> None:
    letters = opened(files)
    letters.add([inserted(2, 1), inserted(6, 1, kind="behind")])
    assert letters.add([inserted(6, 1)]) == 1
    assert letters.add([inserted(6, 1, kind="behind"), inserted(6, 1)]) == 0
    letters.clear("orders", at(5), "reload")
    for each in (letters, opened(files)):
        assert each.held("orders") == {key(1): at(6)}
        assert [(found.position, found.kind) for found in each.all()] == [(at(6), "failed")]


def test_the_letters_behind_another_follow_it_through_changes_of_key(files: Files) -> None:
    letters = opened(files)
    given = [inserted(1, 1), moved(2, 1, 2), deleted(3, 2), inserted(4, 9)]
    letters.add([each if at else replace(each, kind="behind") for at, each in enumerate(given)])
    found = letters.all()
    assert waiting_changes(found[0], found) == list(found[1:3])
    assert waiting_changes(found[2], found) == []


# --- stored --------------------------------------------------------------------------------------


def test_nothing_is_created_before_there_is_a_letter(tmp_path: Path) -> None:
    files = files_on(RealDisk(), str(tmp_path))
    letters = opened(files)
    assert (letters.add([]), letters.all(), letters.keys(), letters.held("orders")) == (
        0,
        (),
        0,
        {},
    )
    assert read_letters(files) == ()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.meets("P8")
def test_letters_are_for_their_owner_alone(tmp_path: Path) -> None:
    opened(files_on(RealDisk(), str(tmp_path))).add([inserted(1, 1)])
    modes = {
        path.relative_to(tmp_path).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in tmp_path.rglob("*")
    }
    assert modes == {"dead-letters": 0o700, "dead-letters/orders": 0o700, FIRST: 0o600}


def test_letters_of_all_pipelines_are_read_without_an_engine(files: Files) -> None:
    opened(files, "b").add([inserted(2, 1)])
    opened(files, "a").add([inserted(3, 1), inserted(4, 2)])
    opened(files, "a").clear("orders", at(3), "truncate")
    assert [(each.pipeline, each.position) for each in read_letters(files)] == [
        ("a", at(4)),
        ("b", at(2)),
    ]
    assert [each.pipeline for each in read_letters(files, "b")] == ["b"]
    assert read_letters(files, "c") == read_letters(files, "../dead-letters/a") == ()
    assert len(read_letters(files, superseded=True)) == 3


@pytest.mark.meets("R31")
def test_of_two_engines_one_loses_the_number_and_overwrites_nothing(files: Files) -> None:
    one, other = opened(files), opened(files)
    one.add([inserted(1, 1)])
    for _ in range(2):
        with pytest.raises(AlreadyStored) as caught:
            other.add([inserted(2, 2)])
    assert FIRST in str(caught.value)
    assert [each.key for each in read_letters(files)] == [(1,)]
    assert one.add([inserted(3, 3)]) == 1


def stored(files: Files) -> bytes:
    letters = opened(files)
    letters.add([inserted(1, 1)])
    letters.add([inserted(2, 2)])
    return files.read(FIRST)


@pytest.mark.meets("R30")
def test_a_damaged_byte_anywhere_is_found_and_the_file_named(files: Files) -> None:
    good = stored(files)
    for place in range(0, len(good), 7):
        files.put(FIRST, good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises((CorruptLetters, UnknownFormat)) as caught:
            read_letters(files)
        assert FIRST in str(caught.value)
        with pytest.raises((CorruptLetters, UnknownFormat)):
            opened(files)
    for cut in (0, 1, 40, len(good) - 1):
        files.put(FIRST, good[:cut])
        with pytest.raises(CorruptLetters):
            read_letters(files)


@pytest.mark.meets("R30")
def test_a_file_that_is_missing_or_in_anothers_place_is_named(files: Files) -> None:
    good = stored(files)
    files.remove(FIRST)
    with pytest.raises(CorruptLetters) as caught:
        opened(files)
    assert FIRST in str(caught.value)
    files.put(FIRST, files.read("dead-letters/orders/000000000002.letters"))
    with pytest.raises(CorruptLetters):
        read_letters(files)
    files.make_folder("dead-letters/other")
    files.put("dead-letters/other/000000000001.letters", good)
    with pytest.raises(CorruptLetters):
        read_letters(files, "other")


def test_bytes_that_are_whole_but_no_record_are_refused(files: Files) -> None:
    stored(files)
    for body in (b"", b"nonsense", b"\x80"):
        check = xxhash.xxh3_64_hexdigest(body).encode()
        files.put(FIRST, b'{"format":1,"check":"%s"}\n%s' % (check, body))
        with pytest.raises(CorruptLetters):
            read_letters(files)


@pytest.mark.parametrize("head", [b'{"format":3,"check":"0123456789abcdef"}', b'{"format":17}'])
def test_a_format_of_tomorrow_is_refused_by_name(files: Files, head: bytes) -> None:
    stored(files)
    files.put(FIRST, head + b"\n\x00\x01")
    with pytest.raises(UnknownFormat) as caught:
        opened(files)
    assert FIRST in str(caught.value)


def test_other_files_in_the_folder_are_left_alone(files: Files) -> None:
    stored(files)
    files.put("dead-letters/orders/notes.txt", b"by hand")
    files.put("dead-letters/orders/000000000003.letters.7.tmp", b"half")
    assert len(read_letters(files)) == 2
    assert "000000000003.letters.7.tmp" in files.list("dead-letters/orders")
    opened(files)
    assert files.list("dead-letters/orders") == [
        "000000000001.letters",
        "000000000002.letters",
        "notes.txt",
    ]


def test_a_letter_of_many_is_read_from_a_batch_of_slices(files: Files) -> None:
    changes = [insert(commit, order(commit)) for commit in range(1, 501)]
    rows = as_segment(ORDERS, changes)
    one = replace(inserted(1, 1), kind="behind", code="")
    many = [replace(one, position=at(place + 1), row=rows.slice(place, 1)) for place in range(500)]
    letters = opened(files)
    assert letters.add(many) == 500
    assert [each.key for each in letters.all()] == [(number,) for number in range(1, 501)]
    assert letters.held("orders") == {key(1): at(1)}
