from __future__ import annotations

from random import Random

import pytest

from headrace.changelog.entries import AnyEntry, Heartbeat, encode
from headrace.changelog.index import CHECKPOINT_EVERY, LogIndex
from headrace.changelog.position import Position
from headrace.errors import CorruptIndex, LostLog, UnknownFormat
from headrace.storage.files import Files
from headrace.storage.simulation import SimulatedDisk
from tests.changelog.log_making import files_on


def beat(number: int, *, writer: str = "w") -> Heartbeat:
    return Heartbeat(
        entry=number,
        writer=writer,
        term=1,
        epoch=1,
        last=str(Position(1, number)),
        source=str(number),
    )


@pytest.fixture
def files() -> Files:
    files = files_on()
    files.make_folder("")
    return files


def filled(files: Files, count: int) -> LogIndex:
    index = LogIndex(files)
    for number in range(1, count + 1):
        index.append(beat(number))
        index.checkpoint()
    return index


def load(files: Files) -> list[AnyEntry]:
    return list(LogIndex(files).load())


def name(number: int) -> str:
    return f"{number:012x}.json"


def checkpoint(number: int) -> str:
    return f"{number:012x}.checkpoint.parquet"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_entries_are_loaded_in_order(files: Files, count: int) -> None:
    filled(files, count)
    assert load(files) == [beat(number) for number in range(1, count + 1)]


def test_a_checkpoint_covers_the_thousand_entries_up_to_its_number(files: Files) -> None:
    filled(files, 2 * CHECKPOINT_EVERY + 5)
    names = files.list("")
    assert [each for each in names if "checkpoint" in each] == [
        checkpoint(CHECKPOINT_EVERY),
        checkpoint(2 * CHECKPOINT_EVERY),
    ]
    for number in range(1, 2 * CHECKPOINT_EVERY + 1):
        files.remove(name(number))
    assert [entry.entry for entry in load(files)] == [*range(1, 2 * CHECKPOINT_EVERY + 6)]


def test_checkpoints_spare_reading_the_entries_they_cover() -> None:
    read: list[str] = []
    disk = SimulatedDisk()
    files = files_on(disk)
    files.make_folder("")
    filled(files, 2 * CHECKPOINT_EVERY + 7)
    disk.on_step = lambda step, path: read.append(path) if step == "read" else None
    load(files)
    assert len(read) == 2 + 7


@pytest.mark.meets("P7")
@pytest.mark.parametrize("damage", ["byte", "shorter", "nonsense", "missing"])
def test_a_damaged_checkpoint_costs_nothing_but_reads(files: Files, damage: str) -> None:
    filled(files, CHECKPOINT_EVERY + 1)
    at = checkpoint(CHECKPOINT_EVERY)
    data = bytearray(files.read(at))
    match damage:
        case "byte":
            data[len(data) // 2] ^= 1
        case "shorter":
            del data[-20:]
        case "nonsense":
            data = bytearray(b"nonsense")
    files.put(at, data)
    if damage == "missing":
        files.remove(at)
    index = LogIndex(files)
    assert [entry.entry for entry in index.load()] == [*range(1, CHECKPOINT_EVERY + 2)]
    assert index.missing_checkpoints == (CHECKPOINT_EVERY,)
    index.write_missing_checkpoints()
    for number in range(1, CHECKPOINT_EVERY):
        files.remove(name(number))
    assert len(load(files)) == CHECKPOINT_EVERY + 1


@pytest.mark.meets("P7")
def test_no_damage_to_a_checkpoint_is_believed(files: Files) -> None:
    filled(files, CHECKPOINT_EVERY)
    whole = files.read(checkpoint(CHECKPOINT_EVERY))
    good = load(files)
    dice = Random(3)
    for _ in range(30):
        data = bytearray(whole)
        data[dice.randrange(len(data))] ^= dice.randrange(1, 256)
        files.put(checkpoint(CHECKPOINT_EVERY), data)
        assert load(files) == good


@pytest.mark.meets("P7")
def test_where_checkpoint_and_entry_are_gone_the_entry_is_named(files: Files) -> None:
    filled(files, CHECKPOINT_EVERY)
    files.remove(checkpoint(CHECKPOINT_EVERY))
    files.remove(name(500))
    with pytest.raises(CorruptIndex) as caught:
        load(files)
    assert caught.value.facts["file"] == files.path(name(500))


@pytest.mark.meets("P7")
def test_a_missing_number_in_the_middle_is_named(files: Files) -> None:
    filled(files, 5)
    files.remove(name(3))
    with pytest.raises(CorruptIndex) as caught:
        load(files)
    assert caught.value.facts["file"] == files.path(name(3))


@pytest.mark.meets("P7")
@pytest.mark.parametrize("data", [b"", b"nonsense", b"{}", encode(beat(4)), encode(beat(3))[:-4]])
def test_an_entry_that_cannot_be_read_is_named(files: Files, data: bytes) -> None:
    filled(files, 5)
    files.put(name(3), data)
    with pytest.raises((CorruptIndex, UnknownFormat)) as caught:
        load(files)
    assert caught.value.facts["file"] == files.path(name(3))


@pytest.mark.meets("P8")
def test_an_entry_of_another_format_is_refused_by_name(files: Files) -> None:
    filled(files, 2)
    files.put(name(2), encode(beat(2)).replace(b'"format":1', b'"format":9'))
    with pytest.raises(UnknownFormat) as caught:
        load(files)
    assert caught.value.facts == {"file": files.path(name(2)), "format": "9"}


@pytest.mark.meets("R31")
def test_of_two_writers_one_loses_the_number(files: Files) -> None:
    first, second = filled(files, 3), LogIndex(files)
    assert len(list(second.load())) == 3
    second.append(beat(4, writer="second"))
    with pytest.raises(LostLog) as caught:
        first.append(beat(4, writer="first"))
    assert caught.value.facts["file"] == files.path(name(4))
    last = load(files)[-1]
    assert last.writer == "second"


def test_a_refresh_reads_what_appeared_and_lists_no_folder() -> None:
    steps: list[str] = []
    disk = SimulatedDisk(lambda step, _: steps.append(step))
    files = files_on(disk)
    files.make_folder("")
    writer = filled(files, 2)
    reader = LogIndex(files)
    assert len(list(reader.load())) == 2
    steps.clear()
    assert list(reader.refresh()) == []
    assert steps == ["read", "size"]
    for number in (3, 4):
        writer.append(beat(number))
    assert [entry.entry for entry in reader.refresh(3)] == [3]
    assert [entry.entry for entry in reader.refresh()] == [4]
    assert "list" not in steps


def test_a_refresh_to_an_entry_that_is_gone_names_it(files: Files) -> None:
    filled(files, 2)
    reader = LogIndex(files)
    assert len(list(reader.load())) == 2
    with pytest.raises(CorruptIndex) as caught:
        list(reader.refresh(3))
    assert caught.value.facts["file"] == files.path(name(3))


@pytest.mark.meets("P2")
def test_what_was_loaded_is_durable() -> None:
    """A killed process can leave a name that is not: whoever builds on it makes it so."""
    for seed in range(30):
        disk = SimulatedDisk()
        files = files_on(disk)
        files.make_folder("")
        filled(files, 2)
        disk.write(files.path("x.tmp"), encode(beat(3)))
        disk.sync(files.path("x.tmp"))
        disk.link(files.path("x.tmp"), files.path(name(3)))
        assert len(load(files)) == 3
        disk.power_cut(Random(seed))
        assert len(load(files)) == 3
