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


def look(path: str, token: str, linger: float, found: str | None = None) -> str:
    """
    Return, as JSON, who is here, in which versions, and what came of reading a file.

    `found` is what Spark read of it, where Python has no way to the storage.
    """
    began = time.monotonic()
    told = {
        "host": socket.gethostname(),
        # On one host each executor has its own.
        "folder": str(Path.cwd()),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "headrace": version("headrace"),
        "code": fingerprint("headrace"),
        "pyarrow": version("pyarrow"),
        "unread": unread(path, token) if found is None else other(found, token),
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


def other(found: str, token: str) -> str | None:
    """Return that what was found is not what was written; None where it is."""
    return None if found == token else "other contents"


def version(package: str) -> str | None:
    """Return the version of a package; None where it is not installed."""
    if util.find_spec(package) is None:
        return None
    try:
        return metadata.version(package)
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
