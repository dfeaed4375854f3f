"""Places of storage: how they are written, and how a data directory names another."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import UnsafeStorage, WrongValue
from headrace.storage import s3
from headrace.storage.files import Files
from headrace.storage.locations import bucket_of, elsewhere
from headrace.storage.s3 import opened, storage_of, use_storage
from headrace.storage.simulation import SimulatedBucket


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> SimulatedBucket:
    """The bucket that every place on S3 is."""
    made = SimulatedBucket()
    monkeypatch.setattr(s3, "s3_bucket", lambda name: made)
    return made


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("s3://logs", "s3a://logs"),
        ("s3://logs/", "s3a://logs"),
        ("s3a://logs/eu/shop/", "s3a://logs/eu/shop"),
        ("s3://my.logs-1/day=1", "s3a://my.logs-1/day=1"),
    ],
)
def test_a_bucket_is_given_as_people_write_it_and_told_as_spark_does(
    place: str, path: str, bucket: SimulatedBucket
) -> None:
    files = opened(place)
    assert (files.path(""), files.local) == (path, False)
    assert opened(files.path("")).path("a") == f"{path}/a"


def test_a_folder_is_a_folder(tmp_path: Path) -> None:
    files = opened(tmp_path)
    assert type(files) is Files
    assert (files.path(""), files.local) == (str(tmp_path), True)
    assert not elsewhere("relative/s3")


@pytest.mark.parametrize(
    "place",
    [
        "gs://logs/x",
        "s3://",
        "s3://A",
        "s3://key:secret@logs/x",
        "s3://logs/a*",
        "s3://logs/a//b",
        "s3://logs/a b",
        "s3://logs/a/../b",
        "s3://logs/./b",
        "s3://logs/..",
        "s3://my..logs/a",
    ],
)
def test_what_is_no_place_for_a_log_is_refused_without_a_secret_in_the_text(place: str) -> None:
    with pytest.raises(WrongValue) as caught:
        bucket_of(place)
    assert "secret" not in str(caught.value)


def test_a_data_directory_remembers_where_its_log_lies(
    tmp_path: Path, bucket: SimulatedBucket
) -> None:
    assert storage_of(tmp_path).path("") == str(tmp_path)
    files = use_storage(tmp_path, "s3://logs/shop")
    files.create("a", b"a")
    assert storage_of(tmp_path).read("a") == b"a"
    assert use_storage(tmp_path, "s3://logs/moved").path("") == "s3a://logs/moved"
    assert storage_of(tmp_path).path("") == "s3a://logs/moved"


def test_a_log_elsewhere_is_not_left_without_a_word(
    tmp_path: Path, bucket: SimulatedBucket
) -> None:
    use_storage(tmp_path, "s3://logs/shop")
    with pytest.raises(WrongValue) as caught:
        use_storage(tmp_path, None)
    assert 'log.storage = "s3a://logs/shop"' in caught.value.remedy
    assert str(tmp_path / "storage") in caught.value.remedy
    assert storage_of(tmp_path).path("") == "s3a://logs/shop"
    (tmp_path / "storage").unlink()
    assert use_storage(tmp_path, None).path("") == storage_of(tmp_path).path("") == str(tmp_path)


def test_what_is_no_data_directory_names_no_other_place(tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    assert storage_of(tmp_path).path("") == str(tmp_path)
    file = tmp_path / "file"
    file.touch()
    assert storage_of(file).path("") == str(file)


def test_a_storage_that_is_refused_is_remembered_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "s3_bucket", lambda name: SimulatedBucket(conditions=False))
    with pytest.raises(UnsafeStorage):
        use_storage(tmp_path, "s3://logs/shop")
    assert list(tmp_path.iterdir()) == []
