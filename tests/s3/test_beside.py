"""What pipelines keep beside a log on S3, and readers of it, without a JVM."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import BadDataDirectory, StorageError, WrongValue
from headrace.pipeline.failed_rows import Scratch, Workspace, readable, references_in
from headrace.storage.s3 import opened, use_storage
from tests.pipeline.making import insert, written
from tests.pipeline.reading.made_log import MadeLog
from tests.pipeline.test_scratch import PAIRS
from tests.s3.conftest import BUCKET

pytestmark = pytest.mark.s3

ROWS = pa.table({"a": [1, 2, 3]})


def test_files_set_aside_are_objects_until_they_are_cleared(place: str) -> None:
    aside = Workspace(opened(place).path("tables/staging"))
    for folder in (aside, aside.within("batches"), aside.within("batches/one")):
        with folder.writing("part-1.parquet") as file:
            pq.write_table(ROWS, file)
    assert aside.names() == ["part-1.parquet"]
    assert pq.read_table(readable(aside.path("batches/one/part-1.parquet"))).equals(ROWS)
    aside.within("batches").clear()
    assert aside.names() == ["part-1.parquet"]
    aside.clear()
    aside.clear()
    assert opened(place).list("tables") == []


def test_nothing_appears_of_a_file_whose_writing_failed(place: str) -> None:
    aside = Workspace(opened(place).path("scratch"))
    with pytest.raises(ZeroDivisionError), aside.writing("a.parquet") as file:
        pq.write_table(ROWS, file)
        raise ZeroDivisionError
    assert aside.names() == []


def test_copies_without_a_row_lie_in_the_bucket_and_go_with_their_job(
    place: str, tmp_path: Path
) -> None:
    files = opened(place)
    path, _ = written(tmp_path, PAIRS, [insert(at, {"id": at, "v": None}) for at in (1, 2, 3)])
    files.put("log/s/segments/1.parquet", Path(path).read_bytes())
    segment = files.path("log/s/segments/1.parquet")
    scratch = Workspace(files.path("scratch"))
    with Scratch(scratch).copies() as copies:
        [copy] = copies.without([segment], {(2, 0)})
        assert copy.startswith(f"s3a://{BUCKET}/")
        assert references_in([copy]) == [(1, 0), (3, 0)]
        [name] = scratch.names()
        assert Scratch(scratch)  # another engine, which has taken over
        assert name not in scratch.names()
    assert scratch.names() == []


def test_a_log_on_s3_is_read_by_its_place_and_by_the_directory_that_names_it(
    place: str, tmp_path: Path
) -> None:
    log = MadeLog(tmp_path, location=place)
    log.flush(insert(1, {"id": 1}), insert(2, {"id": 2}))
    log.flush(insert(3, {"id": 3}))
    assert [row["id"] for row in log.read()] == [1, 2, 3]
    assert [row["id"] for row in log.read(columns="id", where="id > 1")] == [2, 3]
    (tmp_path / "data").mkdir()
    use_storage(tmp_path / "data", place)
    [source] = opened(place).list("log")
    for where in (str(tmp_path / "data"), f"{place}/", f"{place}/log/{source}"):
        assert [row["id"] for row in log.read(log=where)] == [1, 2, 3]
    stream = log.stream(reader="r1")
    assert [row["id"] for row in stream.batch() or ()] == [1, 2, 3]


def test_what_is_no_log_on_s3_is_said(place: str, tmp_path: Path) -> None:
    log = MadeLog(tmp_path)
    with pytest.raises(BadDataDirectory):
        log.read(log=f"{place}/nothing")
    with pytest.raises(StorageError):
        log.read(log="s3://no-such-bucket-here/x")
    with pytest.raises(WrongValue):
        log.read(log="gs://bucket/x")
