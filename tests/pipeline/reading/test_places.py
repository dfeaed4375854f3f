"""Where a log is looked for, by what was written in `load`."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import BadDataDirectory
from headrace.spark_source.options import ReadOptions, located
from headrace.storage import s3
from headrace.storage.objects import Objects
from headrace.storage.simulation import SimulatedBucket
from tests.changelog.log_making import SOURCE, begun


def test_what_is_no_data_directory_has_no_log(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    (tmp_path / "storage").mkdir()
    for path in (file, tmp_path, tmp_path / "none"):
        with pytest.raises(BadDataDirectory, match="contains no change log"):
            located(options(str(path)), 0.0)


@pytest.mark.parametrize("bucket", ["log", "logs"])
def test_a_bucket_may_have_any_name(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimulatedBucket()
    asked: list[str] = []

    def named(name: str) -> SimulatedBucket:
        asked.append(name)
        if len(asked) == 3:
            # An engine that begins while somebody waits for it.
            begun(Objects(made, bucket, "shop"))
        return made

    monkeypatch.setattr(s3, "s3_bucket", named)
    assert located(options(f"s3://{bucket}/shop"), 10.0) == (f"s3a://{bucket}/shop", SOURCE)
    inside = f"s3a://{bucket}/shop/log/{SOURCE}"
    assert located(options(inside), 0.0) == (f"s3a://{bucket}/shop", SOURCE)


def options(log: str) -> ReadOptions:
    return ReadOptions(log=log, table="orders")
