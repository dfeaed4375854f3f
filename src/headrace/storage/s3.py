"""
S3 buckets, or compatible ones, through boto3; and which storage a location means.

A location is a folder of this machine, or a bucket. An engine whose log is in a bucket records the
location in its data directory, so that a reader of the directory finds the log without a
configuration.

Credentials, and the address of the storage, come from AWS's own settings: the environment
(`AWS_ACCESS_KEY_ID`, `AWS_PROFILE`, `AWS_REGION`, `AWS_ENDPOINT_URL_S3`), its files, or the
role of this machine. None of it is in a configuration of Headrace, or in a message.
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
from headrace.extras import require
from headrace.storage.disk import Buffer, RealDisk
from headrace.storage.files import Files
from headrace.storage.locations import bucket_of, elsewhere
from headrace.storage.objects import Objects, Refused, Unanswered

# --- the storage at a location --------------------------------------------------------------------

_LOCATION_FILE = "storage"


def opened(location: str | os.PathLike[str]) -> Files:
    """
    Return the storage at a location: a folder's path, or `s3://bucket/prefix`.

    Spark's `s3a://` is the same as `s3://`. No request is sent yet.
    """
    location = os.fspath(location)
    if not elsewhere(location):
        return Files(RealDisk(), location)
    bucket, prefix = bucket_of(location)
    return Objects(s3_bucket(bucket), bucket, prefix)


def storage_of(data: str | os.PathLike[str]) -> Files:
    """Return the storage of a data directory: the directory itself, or what it names."""
    here = Files(RealDisk(), os.fspath(data))
    location = _recorded_location(here)
    return here if location is None else opened(location)


def use_storage(data: str | os.PathLike[str], location: str | None) -> Files:
    """
    Return the storage of an engine, and record its location in the data directory.

    Raises `WrongValue` if no location is given but one is recorded: omitting the setting must not
    start a second log. Changing the location is allowed.
    """
    here = Files(RealDisk(), os.fspath(data))
    if location is None:
        recorded = _recorded_location(here)
        if recorded is not None:
            raise WrongValue(
                "The log of this data directory is in another storage, and log.storage is not set",
                data=os.fspath(data),
                storage=recorded,
                remedy=f'Set log.storage = "{recorded}", or remove the file'
                f" {here.path(_LOCATION_FILE)} to keep the log in this folder.",
            )
        return here
    files = opened(location)
    # First: an unsafe storage must not be recorded.
    files.prove()
    here.put(_LOCATION_FILE, f"{files.path('')}\n".encode())
    return files


def _recorded_location(here: Files) -> str | None:
    """Return the location that a data directory records; None if there is none."""
    try:
        return here.read(_LOCATION_FILE).decode().strip()
    except FileNotFoundError:
        return None
    except StorageError as error:
        # A folder of that name is unrelated, and a file is not a data directory.
        if isinstance(error.__cause__, IsADirectoryError | NotADirectoryError):
            return None
        raise


# --- a bucket through boto3 -----------------------------------------------------------------------

_RETRY_STATUS = {408, 409, 429, 500, 502, 503, 504}
"""Deferred, or uncertain; 409 is a concurrent write of the same key."""

_RETRY_CODES = {"RequestTimeout", "SlowDown", "Throttling", "ThrottlingException"}

_MISSING = "NoSuchKey"

_UNNAMED = {"", "404", "NotFound"}
"""Codes of a 404 from a proxy whose storage is down, or in response to HEAD."""

_REMEDIES = {
    "NoSuchBucket": "Create the bucket, or correct its name; Headrace does not create buckets.",
    "AccessDenied": "Allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket there.",
    "Forbidden": "Allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket there.",
    "InvalidAccessKeyId": "Check AWS_ACCESS_KEY_ID or the AWS profile.",
    "SignatureDoesNotMatch": "Check AWS_SECRET_ACCESS_KEY or the AWS profile.",
    "ExpiredToken": "The credentials have expired. Get new ones and start again.",
    "RequestTimeTooSkewed": "Correct this machine's clock: signatures are valid for minutes.",
    "PermanentRedirect": "Set AWS_REGION to the bucket's region.",
    "AuthorizationHeaderMalformed": "Set AWS_REGION to the bucket's region.",
    "NotImplemented": "Use a storage that supports conditional writes (If-None-Match).",
}
_NO_CREDENTIALS = (
    "Provide credentials as for AWS's own tools: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,"
    " AWS_PROFILE, or a role of this machine."
)
_UNKNOWN_REMEDY = (
    "Look up the reason in the storage's documentation; check the bucket, and AWS_ACCESS_KEY_ID or"
    " the AWS profile."
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
        # A copy: the client may keep a view longer than the buffer is valid.
        body = bytes(memoryview(data).cast("B"))
        with _translated():
            _about_object(
                self._client.put_object(Bucket=self._bucket, Key=key, Body=body, **condition)
            )

    def read(self, key: str) -> bytes:
        with self._object(key) as found:
            return bytes(found["Body"].read())

    def size(self, key: str) -> int:
        try:
            with _translated():
                found = _about_object(self._client.head_object(Bucket=self._bucket, Key=key))
                return int(found["ContentLength"])
        except _Unnamed404:
            # A response to HEAD has no error code, so it may be from a proxy; GET has one.
            with self._object(key) as found:
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
                # Not a response of the storage: it does not mean that the folder is empty.
                raise Unanswered("NoListing")
            names.update(each["Key"] for each in page.get("Contents", ()))
            names.update(each["Prefix"].rstrip("/") for each in page.get("CommonPrefixes", ()))
            if not page.get("IsTruncated"):
                # Some tools create an object with the name of the folder itself.
                return [name[len(prefix) :] for name in names if len(name) > len(prefix)]
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def remove(self, key: str) -> None:
        # Some storages report a missing object; it is gone, as intended.
        with suppress(FileNotFoundError), _translated():
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def unique(self) -> str:
        return secrets.token_hex(8)

    @contextmanager
    def _object(self, key: str) -> Iterator[Any]:
        with _translated():
            yield _about_object(self._client.get_object(Bucket=self._bucket, Key=key))

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)


@lru_cache
def s3_bucket(bucket: str) -> S3Bucket:
    """Return a bucket with the credentials of this process; no request is sent yet."""
    require("s3", "A log on S3")
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    # No retries in boto3: a retry could be rejected because of the first attempt, unnoticed.
    once = {"total_max_attempts": 1, "mode": "standard"}
    # No checksums of boto3 unless required: storages other than AWS reject them.
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
        # boto3 reads only AWS_DEFAULT_REGION; Spark and other clients read AWS_REGION.
        session = boto3.session.Session(region_name=os.environ.get("AWS_REGION") or None)
        return S3Bucket(session.client("s3", config=settings), bucket)
    except (BotoCoreError, ValueError) as error:
        raise StorageError(
            "The settings for the object storage are not valid",
            bucket=bucket,
            reason=type(error).__name__,
            remedy=_NO_CREDENTIALS,
        ) from error


class _Unnamed404(Unanswered):
    """A 404 without an error code."""


def _about_object(answer: Any) -> Any:
    """Return a response about an object; `Unanswered` if it came from a proxy."""
    if "ETag" not in answer:
        raise Unanswered("NoETag")
    return answer


@contextmanager
def _translated() -> Iterator[None]:
    """Translate boto3's errors to those of a `Bucket`; with their names, never their texts."""
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        raise _error_of(error.response) from error
    except (
        exceptions.ConnectionError,
        exceptions.CredentialRetrievalError,
        exceptions.HTTPClientError,
        exceptions.IncompleteReadError,
        exceptions.ResponseStreamingError,
    ) as error:
        raise Unanswered(type(error).__name__) from error
    except RecursionError as error:
        # boto3 follows redirects to another region; a proxy's sign-in page redirects endlessly.
        raise Unanswered("Redirected") from error
    except exceptions.BotoCoreError as error:
        raise Refused(type(error).__name__, _NO_CREDENTIALS) from error


def _error_of(response: Any) -> Exception:
    code = str(response.get("Error", {}).get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if status == 412:
        return FileExistsError(code)
    if status in _RETRY_STATUS or code in _RETRY_CODES:
        return Unanswered(code)
    # By its code: the bucket or the account may be missing, which must not look like an empty log.
    if status == 404 and code == _MISSING:
        return FileNotFoundError(code)
    if status == 404 and code in _UNNAMED:
        return _Unnamed404("404")
    # A response to HEAD has no body, and so no code but its number.
    name = {"403": "Forbidden", "301": "PermanentRedirect"}.get(code, code)
    return Refused(name, _REMEDIES.get(name, _UNKNOWN_REMEDY))
