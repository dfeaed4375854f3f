"""
Which storage a place is: a folder of this machine, or a bucket.

An engine whose log lies elsewhere notes the place in its data directory, so that whoever is
given the directory finds the log, with no configuration at hand.
"""

from __future__ import annotations

import os

from headrace.errors import StorageError, WrongValue
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
    place = _noted(here)
    return here if place is None else opened(place)


def use_storage(data: str | os.PathLike[str], place: str | None) -> Files:
    """
    Return the storage of an engine, and note where it is in its data directory.

    `WrongValue` where none is given and one is noted: a log that lies elsewhere is not left by
    leaving out a word. To another place it may move.
    """
    here = Files(RealDisk(), os.fspath(data))
    if place is None:
        noted = _noted(here)
        if noted is not None:
            raise WrongValue(
                "The log of this data directory lies elsewhere, and no log.storage is given",
                data=os.fspath(data),
                storage=noted,
                remedy=f'Give log.storage = "{noted}", or remove the file {here.path(_NOTE)} to'
                " have a log here.",
            )
        return here
    files = opened(place)
    # First: a storage that is refused is noted nowhere.
    files.prove()
    here.put(_NOTE, f"{files.path('')}\n".encode())
    return files


def _noted(here: Files) -> str | None:
    """Return the place that a data directory names; None where it names none."""
    try:
        return here.read(_NOTE).decode().strip()
    except FileNotFoundError:
        return None
    except StorageError as error:
        # A folder of that name is somebody's own, and a file is no data directory.
        if isinstance(error.__cause__, IsADirectoryError | NotADirectoryError):
            return None
        raise
