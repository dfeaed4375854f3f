"""What S3's answers mean, as boto3 gives them; a server's own are asked in tests/s3."""

from __future__ import annotations

import http.server
import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore import exceptions

from headrace.errors import NotInstalled, StorageError
from headrace.storage import objects
from headrace.storage.objects import Objects, Refused, Unanswered
from headrace.storage.s3 import S3Bucket, s3_bucket


class Client:
    """Answers every call with one error, or with pages of names."""

    def __init__(self, error: Exception | None = None, pages: list[dict[str, Any]] | None = None):
        self.error = error
        self.pages = pages or []
        self.asked: list[dict[str, Any]] = []

    def put_object(self, **asked: Any) -> dict[str, Any]:
        self.asked.append(asked)
        if self.error is not None:
            raise self.error
        return {"ETag": "x"}

    get_object = head_object = delete_object = put_object

    def list_objects_v2(self, **asked: Any) -> dict[str, Any]:
        self.asked.append(asked)
        return self.pages.pop(0)


def answer(status: int, code: str) -> exceptions.ClientError:
    response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return exceptions.ClientError(response, "PutObject")  # type: ignore[arg-type, unused-ignore]


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (answer(412, "PreconditionFailed"), FileExistsError),
        (answer(409, "ConditionalRequestConflict"), Unanswered),
        (answer(503, "SlowDown"), Unanswered),
        (answer(500, "InternalError"), Unanswered),
        (answer(400, "RequestTimeout"), Unanswered),
        (answer(404, "NoSuchKey"), FileNotFoundError),
        (answer(404, "404"), Unanswered),
        (answer(404, "NotFound"), Unanswered),
        (answer(404, ""), Unanswered),
        (answer(404, "NoSuchBucket"), Refused),
        (answer(404, "NoSuchUser"), Refused),
        (answer(403, "AccessDenied"), Refused),
        (answer(403, "403"), Refused),
        (answer(501, "NotImplemented"), Refused),
        (exceptions.ReadTimeoutError(endpoint_url="http://x"), Unanswered),
        (exceptions.ConnectTimeoutError(endpoint_url="http://x"), Unanswered),
        (exceptions.EndpointConnectionError(endpoint_url="http://x"), Unanswered),
        (exceptions.ConnectionClosedError(endpoint_url="http://x"), Unanswered),
        (exceptions.NoCredentialsError(), Refused),
        (exceptions.ProfileNotFound(profile="x"), Refused),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)[:60]),
)
def test_an_answer_is_told_by_what_it_means(error: Exception, meaning: type[Exception]) -> None:
    bucket = S3Bucket(Client(error), "logs")
    with pytest.raises(meaning) as caught:
        bucket.store("a", b"", new=True)
    assert isinstance(caught.value, meaning)
    if isinstance(caught.value, Refused):
        assert caught.value.remedy


def test_only_what_must_be_new_has_a_condition() -> None:
    client = Client()
    bucket = S3Bucket(client, "logs")
    bucket.store("a", memoryview(b"x"), new=True)
    bucket.store("a", b"y", new=False)
    assert client.asked == [
        {"Bucket": "logs", "Key": "a", "Body": b"x", "IfNoneMatch": "*"},
        {"Bucket": "logs", "Key": "a", "Body": b"y"},
    ]


def test_all_pages_of_names_are_read_and_a_folders_own_mark_is_none_of_them() -> None:
    client = Client(
        pages=[
            {
                "Contents": [{"Key": "p/"}, {"Key": "p/b"}],
                "CommonPrefixes": [{"Prefix": "p/sub/"}],
                "IsTruncated": True,
                "NextContinuationToken": "more",
            },
            {"Contents": [{"Key": "p/a"}], "IsTruncated": False},
        ]
    )
    assert sorted(S3Bucket(client, "logs").list("p/")) == ["a", "b", "sub"]
    assert client.asked[1]["ContinuationToken"] == "more"


@pytest.mark.parametrize("name", ["AWS_REGION", "AWS_DEFAULT_REGION"])
@pytest.mark.slow
def test_a_region_is_taken_by_either_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, "eu-central-1")
    s3_bucket.cache_clear()
    assert s3_bucket("logs")._client.meta.region_name == "eu-central-1"
    s3_bucket.cache_clear()


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("http://minio.example:9000", "http://minio.example:9000/logs/a"),
        (None, "https://logs.s3.amazonaws.com/a"),
    ],
)
@pytest.mark.slow
def test_elsewhere_than_at_aws_a_bucket_is_named_in_the_path(
    endpoint: str | None, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(each, raising=False)
    if endpoint is not None:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    for each in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(each, "x")
    s3_bucket.cache_clear()
    client = s3_bucket("logs")._client
    signed = client.generate_presigned_url("get_object", Params={"Bucket": "logs", "Key": "a"})
    assert signed.partition("?")[0] == address
    s3_bucket.cache_clear()


def test_without_boto3_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    s3_bucket.cache_clear()
    with pytest.raises(NotInstalled) as caught:
        s3_bucket("logs")
    assert "pip install 'headrace-core[s3]'" in caught.value.remedy


class Page(http.server.BaseHTTPRequestHandler):
    """A proxy whose storage is away: the same page to everybody, none of it S3's."""

    status, page = 404, b""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.page)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.page)

    do_GET = do_PUT = do_HEAD = do_DELETE = answer

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def proxied() -> Iterator[S3Bucket]:
    """Give a bucket that nobody gets through to."""
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server,
    ):
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("AWS_PROFILE", raising=False)
        for each in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(each, "x")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        s3_bucket.cache_clear()
        made = s3_bucket("logs")
        s3_bucket.cache_clear()
        monkeypatch.undo()
        yield made
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def behind_a_proxy() -> Iterator[S3Bucket]:
    """Made once, for a client takes its time."""
    with proxied() as bucket:
        yield bucket


@pytest.fixture(scope="module")
def behind_a_redirect() -> Iterator[S3Bucket]:
    """Another: a client may keep where it was sent to, and others are not to go there."""
    with proxied() as bucket:
        yield bucket


@pytest.fixture
def files(behind_a_proxy: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> Objects:
    monkeypatch.setattr(objects, "RESTS", (0.0,))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return Objects(behind_a_proxy, "logs", "shop")


@pytest.mark.parametrize("step", ["read", "size", "list", "create", "put", "remove"])
@pytest.mark.parametrize(
    "page", [b"404 page not found\n", b"<html><body><h1>404</h1></body></html>", b"{}", b""]
)
def test_a_404_of_a_proxy_does_not_mean_that_an_object_is_missing(
    step: str, page: bytes, files: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Page, "page", page)
    more = (b"",) if step in ("create", "put") else ()
    with pytest.raises(StorageError, match="does not respond"):
        getattr(files, step)("a", *more)


@pytest.mark.parametrize("step", ["read", "size", "list", "create", "put"])
def test_an_empty_page_is_no_answer(
    step: str, files: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Page, "status", 200)
    more = (b"",) if step in ("create", "put") else ()
    with pytest.raises(StorageError, match="does not respond"):
        getattr(files, step)("a", *more)


@pytest.mark.parametrize("step", ["read", "size", "list", "create", "put", "remove"])
@pytest.mark.parametrize("status", [302, 307])
@pytest.mark.slow
def test_a_proxy_that_sends_everybody_elsewhere_is_no_answer(
    step: str, status: int, behind_a_redirect: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "RESTS", (0.0,))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(Page, "status", status)
    files = Objects(behind_a_redirect, "logs", "shop")
    more = (b"",) if step in ("create", "put") else ()
    with pytest.raises(StorageError, match="does not respond"):
        getattr(files, step)("a", *more)


def test_a_size_that_is_not_found_is_asked_for_in_another_way() -> None:
    class Doubtful(Client):
        def head_object(self, **asked: Any) -> dict[str, Any]:
            raise answer(404, "404")

        def get_object(self, **asked: Any) -> dict[str, Any]:
            if asked["Key"] == "none":
                raise answer(404, "NoSuchKey")
            return {"ETag": "x", "ContentLength": 3, "Body": io.BytesIO(b"abc")}

    bucket = S3Bucket(Doubtful(), "logs")
    assert bucket.size("a") == 3
    with pytest.raises(FileNotFoundError):
        bucket.size("none")


def test_what_is_missing_is_as_good_as_removed() -> None:
    S3Bucket(Client(answer(404, "NoSuchKey")), "logs").remove("a")
