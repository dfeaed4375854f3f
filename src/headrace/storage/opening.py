"""
Which storage a place is: a folder of this machine, or a bucket.

An engine whose log lies elsewhere notes the place in its data directory, so that whoever is
given the directory finds the log, with no configuration at hand.
"""

from __future__ import annotations

import os
from contextlib import suppress

from headrace.storage.disk import RealDisk
from headrace.storage.files import Files
from headrace.storage.places import bucket_of, elsewhere

_NOTE = "storage"


def opened(place: str | os.PathLike[str]) -> Files:
    """
    Return the storage at a place: a folder's path, or `s3://bucket/prefix`.

    `s3a://`, as Spark writes it, is the same. Nothing is asked of the storage yet.
    """
    place = os.fspath(place)
    if not elsewhere(place):
        return Files(RealDisk(), place)
    bucket, prefix = bucket_of(place)
    # Here and not above: most logs lie on a disk.
    from headrace.storage.objects import Objects
    from headrace.storage.s3 import s3_bucket

    return Objects(s3_bucket(bucket), bucket, prefix)


def storage_of(data: str | os.PathLike[str]) -> Files:
    """Return the storage of a data directory: the directory itself, or what it names."""
    here = Files(RealDisk(), os.fspath(data))
    try:
        place = here.read(_NOTE).decode().strip()
    except FileNotFoundError:
        return here
    return opened(place)


def use_storage(data: str | os.PathLike[str], place: str | None) -> Files:
    """Return the storage of an engine, and note where it is in its data directory."""
    here = Files(RealDisk(), os.fspath(data))
    if place is None:
        with suppress(FileNotFoundError):
            here.remove(_NOTE)
        return here
    files = opened(place)
    # First: a storage that is refused is noted nowhere.
    files.prove()
    here.put(_NOTE, f"{files.path('')}\n".encode())
    return files
