"""
What an executor says of itself.

Sent to executors as it stands, because they may have no Headrace or another one: it uses
the standard library alone, and plain functions, which pickle by value. The driver calls the
same function on itself, and compares.
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
    Return, as JSON, who is here, in which versions, and what came of reading a file.

    `found` is what Spark read of it, where it is an object: then Headrace reads it as well, if
    it is here, by a way of its own.
    """
    began = time.monotonic()
    told = {
        "host": socket.gethostname(),
        # On one host each executor has its own.
        "folder": str(Path.cwd()),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "headrace": version("headrace", "headrace-core"),
        "code": fingerprint("headrace"),
        "pyarrow": version("pyarrow"),
        "unread": unread(path, token) if found is None else other(found, token),
        "unreached": None if found is None else unreached(path, token),
    }
    # A task that is over at once leaves its place to the next one, and none for others.
    time.sleep(max(0.0, linger - (time.monotonic() - began)))
    return json.dumps(told)


def unread(path: str, token: str) -> str | None:
    """Return why a file cannot be read here as it was written; None where it can."""
    try:
        found = Path(path).read_text()
    except OSError as error:
        return os.strerror(error.errno) if error.errno else type(error).__name__
    except ValueError:
        return "other contents"
    return other(found, token)


def unreached(path: str, token: str) -> str | None:
    """Return why Headrace cannot read an object here; None where it can, or is not here."""
    if not path or util.find_spec("headrace") is None:
        return None
    why = ""
    for _ in range(TRIES):
        try:
            from headrace.storage.locations import bucket_of
            from headrace.storage.s3 import s3_bucket

            # Not as files, which would be tried for minutes.
            name, key = bucket_of(path)
            found = s3_bucket(name).read(key)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            # Names of errors, and our own words: never the texts of others.
            why = str(getattr(error, "message", "") or getattr(error, "reason", ""))
            why = why or type(error).__name__
        else:
            return other(found.decode(errors="replace"), token)
    return why


def other(found: str, token: str) -> str | None:
    """Return that what was found is not what was written; None where it is."""
    return None if found == token else "other contents"


def version(package: str, distribution: str | None = None) -> str | None:
    """Return the version of a package; None where it is not installed."""
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
