"""
What an executor reports about itself.

The code of this module is sent to executors, because they may have no Headrace or another version.
It only uses the standard library, and plain functions, which pickle by value. The driver calls the
same function itself, and compares.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import time
from importlib import metadata, util
from pathlib import Path

TRIES = 3


def look(path: str, token: str, linger: float, found: str | None = None) -> str:
    """
    Return, as JSON, the host, the versions, and whether a file could be read.

    `found` is what Spark read from it, if it is an object in a bucket. Then Headrace, if it is
    installed here, reads the object as well, with boto3.
    """
    began = time.monotonic()
    report = {
        "host": socket.gethostname(),
        # Each executor on a host has its own.
        "folder": str(Path.cwd()),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "headrace": version("headrace", "headrace-core"),
        "code": fingerprint("headrace"),
        "pyarrow": version("pyarrow"),
        "unread": unread(path, token) if found is None else other(found, token),
        "unreached": None if found is None else unreached(path, token),
    }
    # If a task ended at once, the same executor would run all tasks, and others none.
    time.sleep(max(0.0, linger - (time.monotonic() - began)))
    return json.dumps(report)


def unread(path: str, token: str) -> str | None:
    """Return why a file cannot be read here with the expected contents; None if it can."""
    try:
        found = Path(path).read_text()
    except OSError as error:
        return os.strerror(error.errno) if error.errno else type(error).__name__
    except ValueError:
        return "other contents"
    return other(found, token)


def unreached(path: str, token: str) -> str | None:
    """Return why Headrace cannot read an object here; None if it can, or is not installed."""
    if not path or util.find_spec("headrace") is None:
        return None
    why = ""
    for _ in range(TRIES):
        try:
            from headrace.storage.locations import bucket_of
            from headrace.storage.s3 import s3_bucket

            # Not through `Files`, which would retry for minutes.
            name, key = bucket_of(path)
            found = s3_bucket(name).read(key)
        except Exception as error:  # noqa: BLE001 - every error is reported
            # Names of errors, and our own texts: never the texts of other libraries.
            why = str(getattr(error, "message", "") or getattr(error, "reason", ""))
            why = why or type(error).__name__
        else:
            return other(found.decode(errors="replace"), token)
    return why


def other(found: str, token: str) -> str | None:
    """Return "other contents" if that is what was found; None if it is what was written."""
    return None if found == token else "other contents"


def version(package: str, distribution: str | None = None) -> str | None:
    """Return the version of a package; None if it is not installed."""
    if util.find_spec(package) is None:
        return None
    try:
        return metadata.version(distribution or package)
    except metadata.PackageNotFoundError:
        return "unknown"


def fingerprint(package: str) -> str | None:
    """Return a digest of a package's modules: a version may stay the same while code changes."""
    spec = util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0")
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
