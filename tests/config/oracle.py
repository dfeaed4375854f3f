"""
The reader that HOCON comes from, `com.typesafe:config`, to compare ours with.

`mvn` fetches it, by its coordinates, into the user's cache. One JVM answers all questions.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from headrace.embedded.fetch import cache_folder
from headrace.pipeline.java import find_java

ARTIFACT = "com.typesafe:config:1.4.5"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"


class Refused(Exception):
    """It is no configuration, they say."""


class Broken(Exception):
    """They found a fault in themselves, and say so."""


class Theirs:
    """Reads texts as the original does."""

    def __init__(self, gateway: Any) -> None:
        self._config = gateway.jvm.com.typesafe.config
        self._concise = self._config.ConfigRenderOptions.concise()

    def plain(self, text: str) -> Any:
        """Return what a text says; raise `Refused` where it is none, or `Broken`."""
        try:
            read = self._config.ConfigFactory.parseString(text).resolve()
            return json.loads(read.root().render(self._concise))
        except Py4JJavaError as error:
            name = error.java_exception.getClass().getSimpleName()
            kind = Broken if name == "BugOrBroken" else Refused
            raise kind(str(error.java_exception.getMessage())) from None


def jar() -> Path | None:
    """Return their jar, from the cache or fetched now; None where it cannot be had."""
    kept = cache_folder(os.environ).parent / "typesafe" / f"{ARTIFACT.replace(':', '-')}.jar"
    mvn = shutil.which("mvn")
    if kept.exists() or mvn is None:
        return kept if kept.exists() else None
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
        done = subprocess.run(
            [
                *(mvn, "--batch-mode", "--quiet", "--strict-checksums", _COPY),
                *(f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={scratch}"),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=scratch,  # a pom.xml where we are would be taken for the project
            timeout=200,
            check=False,
        )
        jars = list(Path(scratch).glob("*.jar"))
        if done.returncode != 0 or len(jars) != 1:
            return None
        jars[0].rename(kept)
    return kept


@contextmanager
def original(theirs: Path) -> Iterator[Theirs]:
    """Start a JVM with their reader in it, and end it."""
    [bridge] = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    port, token, process = launch_gateway(
        jarpath=str(bridge),
        classpath=str(theirs),
        java_path=find_java(os.environ).executable,
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    try:
        yield Theirs(gateway)
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait(timeout=30)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
