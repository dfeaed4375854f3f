"""What `Files` promises, whatever it stores in: one suite, run by every kind of storage."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import AlreadyStored
from headrace.storage.files import Files


class FilesContract:
    """Subclasses give the fixture `files`: an empty storage with a folder `log`."""

    def test_what_is_put_is_read_back_and_replaces(self, files: Files) -> None:
        files.put("log/a", b"one")
        files.put("log/a", b"three")
        assert files.read("log/a") == b"three"
        assert files.size("log/a") == 5
        assert files.list("log") == ["a"]

    @pytest.mark.parametrize("data", [b"", pa.py_buffer(b"abc"), memoryview(b"abc")])
    def test_anything_that_gives_its_bytes_is_stored(
        self, files: Files, data: bytes | memoryview | pa.Buffer
    ) -> None:
        files.put("log/put", data)
        files.create("log/created", data)
        assert files.read("log/put") == files.read("log/created") == bytes(memoryview(data))

    @pytest.mark.meets("R31")
    def test_what_is_created_is_never_replaced(self, files: Files) -> None:
        files.create("log/a", b"one")
        with pytest.raises(AlreadyStored) as caught:
            files.create("log/a", b"two")
        assert caught.value.facts["file"] == files.path("log/a")
        assert files.read("log/a") == b"one"
        assert files.list("log") == ["a"], "nothing of the loser is left"

    @pytest.mark.meets("R31")
    def test_of_many_who_create_one_file_at_once_one_does(self, files: Files) -> None:
        def create(number: int) -> bool:
            try:
                files.create("log/a", str(number).encode())
            except AlreadyStored:
                return False
            return True

        with ThreadPoolExecutor(8) as threads:
            done = list(threads.map(create, range(8)))
        assert done.count(True) == 1
        assert files.read("log/a") == str(done.index(True)).encode()

    def test_a_part_of_the_storage_is_storage_too(self, files: Files) -> None:
        files.make_folder("log/shop")
        inner = files.within("log").within("shop")
        inner.create("a", b"a", settle=False)
        inner.settle("")
        assert files.read("log/shop/a") == b"a"
        assert inner.path("a") == files.path("log/shop/a") == f"{files.path('')}/log/shop/a"
        assert inner.path("") == files.path("log/shop")

    def test_a_missing_file_passes_as_such(self, files: Files) -> None:
        for step in (files.read, files.size):
            with pytest.raises(FileNotFoundError):
                step("log/none")

    def test_names_are_listed_in_order_with_those_of_folders(self, files: Files) -> None:
        files.make_folder("log/b")
        for name in ("log/c", "log/b/inner", "log/a"):
            files.create(name, b"")
        assert files.list("log") == ["a", "b", "c"]
        assert files.list("log/none") == []
        assert "log" in files.list("")

    def test_what_was_removed_is_gone_and_may_be_created_again(self, files: Files) -> None:
        files.create("log/a", b"one")
        files.remove("log/a")
        assert files.list("log") == []
        files.create("log/a", b"two")
        assert files.read("log/a") == b"two"

    def test_many_are_removed_and_the_missing_ones_passed_over(self, files: Files) -> None:
        for number in range(40):
            files.create(f"log/{number}", b"")
        files.remove_many([f"log/{number}" for number in (*range(39), 99)])
        assert files.list("log") == ["39"]
        files.remove_many([])

    def test_many_are_read_in_order_and_the_missing_ones_are_told(self, files: Files) -> None:
        for number in range(40):
            files.create(f"log/{number}", str(number).encode())
        names = [f"log/{number}" for number in (*range(40), 99, 3)]
        found = list(files.read_many(names))
        assert found == [*(str(number).encode() for number in range(40)), None, b"3"]

    def test_parquet_is_read_from_what_a_reader_gives(self, files: Files) -> None:
        if files.path("").startswith("/data"):
            pytest.skip("a path of a simulated disk is no path of this machine")
        rows = pa.table({"id": [1, 2, 3]})
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink)
        files.create("log/a.parquet", sink.getvalue())
        assert pq.ParquetFile(files.reader("log/a.parquet")).read().equals(rows)

    def test_nothing_is_left_to_sweep_and_two_writers_are_kept_apart(self, files: Files) -> None:
        files.create("log/a", b"a")
        before = files.list("")
        files.prove()
        assert files.sweep("log") == 0
        assert files.list("") == before
