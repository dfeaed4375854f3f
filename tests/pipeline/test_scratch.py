"""Copies of segments with some of their rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.changelog.schema import CAPTURED
from headrace.changelog.segment import segment_bytes
from headrace.errors import JobFailed, StorageError
from headrace.pipeline.failed_rows import Scratch, Workspace, references_in, rows_in
from headrace.storage import s3
from headrace.storage.objects import Refused
from headrace.storage.simulation import SimulatedBucket
from tests.pipeline.making import insert, table, written

PAIRS = table(("id", "int64"), ("v", "uuid"))
LAST = (2**63 - 1, 2**31 - 1)


def segments(folder: Path, *all_places: list[tuple[int, int]]) -> list[str]:
    folder.mkdir(exist_ok=True)
    return [
        written(folder, PAIRS, [insert(c, {"id": c % 97, "v": None}, o) for c, o in places])[0]
        for places in all_places
    ]


def test_only_segments_that_hold_such_rows_are_copied(tmp_path: Path) -> None:
    first, second = segments(tmp_path / "log", [(1, 0), (1, 1), LAST], [(2, 0), (3, 1)])
    scratch = Scratch(Workspace(str(tmp_path / "scratch")))
    with scratch.copies() as copies:
        copy, same = copies.without([first, second], {(1, 1), LAST, (2, 1), (4, 0)})
        assert same == second
        assert references_in([copy]) == [(1, 0)]
        # In the same physical form, so that Spark reads it by the same schema.
        assert pq.ParquetFile(copy).schema.equals(pq.ParquetFile(first).schema)
        assert not Path(copy).name.startswith(("_", "."))
        assert Path(copy).stat().st_mode & 0o777 == 0o600
        assert Path(copy).parent.stat().st_mode & 0o777 == 0o700
        [one] = copies.only([first, second], {(3, 1), (2, 1)})
        assert references_in([one]) == [(3, 1)]
        assert copies.only([first, second], {(9, 9)}) == []
        assert copies.without([first], set()) == [first]
    assert list((tmp_path / "scratch").iterdir()) == []


def test_segments_with_and_without_the_time_of_capture_are_read_together(tmp_path: Path) -> None:
    first, second = segments(tmp_path, [(1, 0)], [(2, 0)])
    now = pa.array([12], CAPTURED.type)
    Path(first).write_bytes(segment_bytes(pq.read_table(first).append_column(CAPTURED, now)))
    rows = rows_in([first, second])
    assert rows["_commit"].to_pylist() == [1, 2]
    assert rows[CAPTURED.name].cast(pa.int64()).to_pylist() == [12, None]
    assert rows_in([second])[CAPTURED.name].null_count == 1


places = st.tuples(st.sampled_from([0, 1, 2, 2**62, LAST[0]]), st.sampled_from([0, 1, LAST[1]]))


@given(st.sets(places, min_size=1), st.sets(places))
def test_with_and_without_make_the_whole(
    tmp_path_factory: pytest.TempPathFactory, held: set[tuple[int, int]], some: set[tuple[int, int]]
) -> None:
    paths = segments(tmp_path_factory.mktemp("log"), sorted(held))
    with Scratch(Workspace(str(tmp_path_factory.mktemp("scratch")))).copies() as copies:
        assert set(references_in(copies.without(paths, some))) == held - some
        assert set(references_in(copies.only(paths, some))) == held & some


def test_rows_of_a_baseline_get_numbers_for_positions(tmp_path: Path) -> None:
    paths = segments(tmp_path / "log", [(0, 0), (0, 0)], [(0, 0)])
    with Scratch(Workspace(str(tmp_path / "scratch"))).copies() as copies:
        numbered = copies.numbered(paths, 5)
        assert references_in(numbered) == [(5, 0), (5, 1), (6, 0)]
        assert pq.ParquetFile(numbered[0]).schema.equals(pq.ParquetFile(paths[0]).schema)


def test_what_a_crash_left_is_removed_at_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    (folder / "000000000003.parquet").touch()
    Scratch(Workspace(str(folder)))
    assert list(folder.iterdir()) == []


def test_without_a_folder_there_is_a_temporary_one_that_goes_with_it(tmp_path: Path) -> None:
    [path] = segments(tmp_path / "log", [(1, 0), (2, 0)])
    scratch = Scratch()
    with scratch.copies() as copies:
        [copy] = copies.without([path], {(1, 0)})
        folder = Path(copy).parent
        assert folder.stat().st_mode & 0o777 == 0o700
    del scratch, copies
    assert not folder.exists()


def test_a_segment_that_cannot_be_read_is_the_jobs_trouble(tmp_path: Path) -> None:
    damaged = tmp_path / "x.parquet"
    damaged.write_bytes(b"PAR1")
    with Scratch(Workspace(str(tmp_path / "scratch"))).copies() as copies:
        for path in (damaged, tmp_path / "missing.parquet"):
            with pytest.raises(JobFailed):
                copies.without([str(path)], {(1, 0)})


def test_copies_in_a_bucket_that_is_away_are_given_up_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Away(SimulatedBucket):
        def remove(self, key: str) -> None:
            self.steps.append(("remove", key))
            raise Refused("AccessDenied")

    bucket = Away()
    monkeypatch.setattr(s3, "s3_bucket", lambda name: bucket)
    scratch = Scratch(Workspace("s3a://logs/shop/scratch"))
    with scratch.copies() as copies:
        copies._made.extend(scratch.next_name() for _ in range(1_000))
    assert 0 < sum(step == "remove" for step, _ in bucket.steps) < 1_000


def test_a_file_that_cannot_be_written_for_a_batch_is_an_error_that_is_tried_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        Workspace(str(tmp_path / "taken")).write("1.parquet", pa.table({"c0": [1]}))
