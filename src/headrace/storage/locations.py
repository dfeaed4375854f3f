"""The syntax of a location that is not a folder of this machine: `s3://bucket/prefix`."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from headrace.errors import WrongValue

_S3 = re.compile(r"s3a?://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>.*))?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PREFIX = re.compile(r"[A-Za-z0-9_.=/-]*")
"""Spark treats other characters as a pattern (S6), or escapes them."""


class BucketLocation(NamedTuple):
    """A prefix in a bucket."""

    bucket: str
    prefix: str
    """Without `/` at its ends; empty for the whole bucket."""


def elsewhere(location: str | os.PathLike[str]) -> bool:
    """Whether a location is not a path of this machine: it begins with a scheme, such as `s3://`."""
    return _SCHEME.match(os.fspath(location)) is not None


def bucket_of(location: str) -> BucketLocation:
    """Return the bucket that a location names; Spark's `s3a://` is the same as `s3://`."""
    found = _S3.fullmatch(location)
    if found is None or ".." in found["bucket"]:
        raise WrongValue(
            "The location of a log must be a folder or s3://bucket/prefix",
            # Not all of it: it may contain credentials.
            given=location.partition("://")[0],
            remedy="Write s3://bucket/prefix; credentials are read from AWS's own settings.",
        )
    prefix = (found["prefix"] or "").strip("/")
    parts = prefix.split("/") if prefix else []
    # To Spark . and .. are the current and the parent folder; to S3 they are names.
    if _PREFIX.fullmatch(prefix) is None or not {"", ".", ".."}.isdisjoint(parts):
        raise WrongValue(
            "Spark cannot read from a prefix with these characters",
            bucket=found["bucket"],
            remedy="Use letters, digits and - _ . = in the prefix, with single / between parts;"
            " no part may be `.` or `..`.",
        )
    return BucketLocation(found["bucket"], prefix)
