"""How a place is written that is no folder of this machine: `s3://bucket/prefix`."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from headrace.errors import WrongValue

_S3 = re.compile(r"s3a?://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>.*))?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PREFIX = re.compile(r"[A-Za-z0-9_.=/-]*")
"""Spark takes other signs for a pattern (S6), or writes them in another way."""


class BucketPlace(NamedTuple):
    """A part of a bucket."""

    bucket: str
    prefix: str
    """Without `/` at its ends; empty for all of it."""


def elsewhere(place: str | os.PathLike[str]) -> bool:
    """Whether a place is no path of this machine: it begins with a scheme, as `s3://`."""
    return _SCHEME.match(os.fspath(place)) is not None


def bucket_of(place: str) -> BucketPlace:
    """Return the bucket that a place names; `s3a://`, as Spark writes it, is the same."""
    found = _S3.fullmatch(place)
    if found is None or ".." in found["bucket"]:
        raise WrongValue(
            "A log lies in a folder or on S3",
            # Not all of it: somebody may have put a key into it.
            given=place.partition("://")[0],
            remedy="Give it as s3://bucket/prefix; how to get in comes by AWS's own settings.",
        )
    prefix = (found["prefix"] or "").strip("/")
    parts = prefix.split("/") if prefix else []
    # Spark would take . and .. for ways between folders; to S3 they are names.
    if _PREFIX.fullmatch(prefix) is None or not {"", ".", ".."}.isdisjoint(parts):
        raise WrongValue(
            "Spark cannot read under such a prefix",
            bucket=found["bucket"],
            remedy="Use letters, digits and - _ . = in it, with single / between, and neither"
            " . nor .. alone.",
        )
    return BucketPlace(found["bucket"], prefix)
