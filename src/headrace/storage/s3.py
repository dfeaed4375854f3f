"""
Buckets of S3, or of what speaks like it, through boto3; and which storage a location means.

A location is a folder of this machine, or a bucket. An engine whose log lies elsewhere notes the
location in its data directory, so that a reader that is given the directory finds the log, with
no configuration at hand.

Credentials, and the address of the storage, come by AWS's own ways: the environment
(`AWS_ACCESS_KEY_ID`, `AWS_PROFILE`, `AWS_REGION`, `AWS_ENDPOINT_URL_S3`), its files, or the
machine we run on. None of it stands in a configuration of Headrace, or in a message.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from headrace.errors import StorageError, WrongValue
from headrace.storage.disk import Buffer, RealDisk
from headrace.storage.files import Files
from headrace.storage.locations import bucket_of, elsewhere
from headrace.storage.objects import Objects, Refused, Unanswered

# --- the storage at a location --------------------------------------------------------------------

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


# --- a bucket through boto3 -----------------------------------------------------------------------

_LATER = {408, 409, 429, 500, 502, 503, 504}
"""Put off, or in doubt; 409 is another write of the same key that is under way."""

_LATER_CODES = {"RequestTimeout", "SlowDown", "Throttling", "ThrottlingException"}

_MISSING = "NoSuchKey"

_NO_NAMES = {"", "404", "NotFound"}
"""Of a 404 that is not the storage's own: of a proxy whose storage is away, or of HEAD."""

_REMEDIES = {
    "NoSuchBucket": "Make the bucket, or correct its name; Headrace makes none.",
    "AccessDenied": "Allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket there.",
    "Forbidden": "Allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket there.",
    "InvalidAccessKeyId": "Check AWS_ACCESS_KEY_ID, or the profile that it comes from.",
    "SignatureDoesNotMatch": "Check AWS_SECRET_ACCESS_KEY, or the profile that it comes from.",
    "ExpiredToken": "Get new credentials: these are over. Then start again.",
    "RequestTimeTooSkewed": "Set this machine's clock: signatures hold for minutes.",
    "PermanentRedirect": "Set AWS_REGION to the bucket's region.",
    "AuthorizationHeaderMalformed": "Set AWS_REGION to the bucket's region.",
    "NotImplemented": "Use a storage that keeps to conditional writes (If-None-Match).",
}
_NO_CREDENTIALS = (
    "Give credentials as AWS's own tools take them: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,"
    " AWS_PROFILE, or a role of this machine."
)
_UNKNOWN = (
    "Look it up in the storage's own words; check the bucket, and AWS_ACCESS_KEY_ID or the profile"
    " that we come with."
)

_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 30
_CONNECTIONS = 32


class S3Bucket:
    """`Bucket` over boto3's client, which is safe to share between threads."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self._bucket = bucket

    def store(self, key: str, data: Buffer, *, new: bool) -> None:
        condition = {"IfNoneMatch": "*"} if new else {}
        # Its own copy: the client would hold the view for longer than we have the buffer.
        body = bytes(memoryview(data).cast("B"))
        with _translated():
            _whole(self._client.put_object(Bucket=self._bucket, Key=key, Body=body, **condition))

    def read(self, key: str) -> bytes:
        with self._got(key) as found:
            return bytes(found["Body"].read())

    def size(self, key: str) -> int:
        try:
            with _translated():
                found = _whole(self._client.head_object(Bucket=self._bucket, Key=key))
                return int(found["ContentLength"])
        except _Nameless:
            # No answer to HEAD has a name, so this one may be a proxy's: GET's have.
            with self._got(key) as found:
                found["Body"].close()
                return int(found["ContentLength"])

    def list(self, prefix: str) -> list[str]:
        names: set[str] = set()
        more: dict[str, str] = {}
        while True:
            with _translated():
                page = self._client.list_objects_v2(
                    Bucket=self._bucket, Prefix=prefix, Delimiter="/", **more
                )
            if not page.keys() & {"IsTruncated", "KeyCount"}:
                # Somebody else's answer: no names in it does not mean that there are none.
                raise Unanswered("NoListing")
            names.update(each["Key"] for each in page.get("Contents", ()))
            names.update(each["Prefix"].rstrip("/") for each in page.get("CommonPrefixes", ()))
            if not page.get("IsTruncated"):
                # An object named like the folder itself is what some tools leave as its mark.
                return [name[len(prefix) :] for name in names if len(name) > len(prefix)]
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def remove(self, key: str) -> None:
        # Some storages tell that it was missing; what was asked for is so.
        with suppress(FileNotFoundError), _translated():
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def unique(self) -> str:
        return secrets.token_hex(8)

    @contextmanager
    def _got(self, key: str) -> Iterator[Any]:
        with _translated():
            yield _whole(self._client.get_object(Bucket=self._bucket, Key=key))

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)


@lru_cache
def s3_bucket(bucket: str) -> S3Bucket:
    """Return a bucket as this process reaches it; nothing is asked of it yet."""
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise StorageError(
            "A log on S3 needs boto3, which is not installed",
            bucket=bucket,
            remedy='Run pip install "headrace[s3]".',
        ) from error
    # One try: a second one inside would be refused because of the first, and nobody could tell.
    once = {"total_max_attempts": 1, "mode": "standard"}
    # Not its own checksums, unless asked for: other storages than AWS stumble over them.
    # Segments and entries carry ours.
    settings = Config(
        retries=once,
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_ANSWER_SECONDS,
        max_pool_connections=_CONNECTIONS,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        # It reads AWS_DEFAULT_REGION alone; Spark's side, and every other client, this one.
        session = boto3.session.Session(region_name=os.environ.get("AWS_REGION") or None)
        return S3Bucket(session.client("s3", config=settings), bucket)
    except (BotoCoreError, ValueError) as error:
        raise StorageError(
            "The object storage cannot be reached as it is set up",
            bucket=bucket,
            reason=type(error).__name__,
            remedy=_NO_CREDENTIALS,
        ) from error


class _Nameless(Unanswered):
    """A 404 that does not say what is missing."""


def _whole(answer: Any) -> Any:
    """Return an answer that is about an object; `Unanswered` where a proxy made it up."""
    if "ETag" not in answer:
        raise Unanswered("NoETag")
    return answer


@contextmanager
def _translated() -> Iterator[None]:
    """Turn what boto3 raises into the errors of a `Bucket`; names of errors only, never texts."""
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        raise _answered(error.response) from error
    except (
        exceptions.ConnectionError,
        exceptions.CredentialRetrievalError,
        exceptions.HTTPClientError,
        exceptions.IncompleteReadError,
        exceptions.ResponseStreamingError,
    ) as error:
        raise Unanswered(type(error).__name__) from error
    except RecursionError as error:
        # It follows redirects to another region; a proxy's sign-in page redirects those as well.
        raise Unanswered("Redirected") from error
    except exceptions.BotoCoreError as error:
        raise Refused(type(error).__name__, _NO_CREDENTIALS) from error


def _answered(response: Any) -> Exception:
    code = str(response.get("Error", {}).get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if status == 412:
        return FileExistsError(code)
    if status in _LATER or code in _LATER_CODES:
        return Unanswered(code)
    # By its name: a bucket, or we ourselves, may be what is not found, and no log is not empty.
    if status == 404 and code == _MISSING:
        return FileNotFoundError(code)
    if status == 404 and code in _NO_NAMES:
        return _Nameless("404")
    # An answer to HEAD has no body, and so no name but its number.
    name = {"403": "Forbidden", "301": "PermanentRedirect"}.get(code, code)
    return Refused(name, _REMEDIES.get(name, _UNKNOWN))
