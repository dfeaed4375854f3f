"""The contract of `Files` on a disk, on a simulated one, and in a bucket that gives trouble."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.storage.objects import Objects
from headrace.storage.simulation import SimulatedBucket, SimulatedDisk
from tests.storage.files_contract import FilesContract
from tests.support.tiers import sweep


class TestOnADisk(FilesContract):
    @pytest.fixture
    def files(self, tmp_path: Path) -> Files:
        files = Files(RealDisk(), str(tmp_path))
        files.make_folder("log")
        return files


class TestOnASimulatedDisk(FilesContract):
    @pytest.fixture
    def files(self) -> Files:
        files = Files(SimulatedDisk(), "/data")
        files.make_folder("log")
        return files


class TestInABucket(FilesContract):
    @pytest.fixture(params=["", "shop", "shop/eu"])
    def files(self, request: pytest.FixtureRequest) -> Files:
        # Another's objects lie around: of a name that ours begins with, too.
        bucket = SimulatedBucket()
        for key in ("other", "shop2/log/z", "shop/eu2/log/z"):
            bucket.objects[key] = b""
        return Objects(bucket, "bucket", request.param)


@pytest.mark.meets("P2")
class TestInABucketWhoseAnswersGetLost(FilesContract):
    @pytest.fixture(params=sweep(range(20), every=5))
    def files(self, request: pytest.FixtureRequest) -> Files:
        return Objects(SimulatedBucket(Random(request.param), 0.3), "bucket", "shop")
