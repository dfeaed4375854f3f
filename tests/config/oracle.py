"""
The reader that HOCON comes from, `com.typesafe:config`, to compare ours with.

`mvn` fetches it, by its coordinates, into the user's cache. One JVM answers all questions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from headrace.spark_session.java import find_java
from tests.support import maven

ARTIFACT = "com.typesafe:config:1.4.5"


class Refused(Exception):
    """It is no configuration, they say."""


class Broken(Exception):
    """They found a fault in themselves, and say so."""


class Theirs:
    """
    Reads texts as the original does.

    In a process of its own: where a Spark session was, PySpark takes every Java exception of
    the process for one of Spark's.
    """

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    def plain(self, text: str) -> Any:
        """Return what a text says; raise `Refused` where it is none, or `Broken`."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps(text) + "\n")
        self._child.stdin.flush()
        kind, answer = json.loads(self._child.stdout.readline())
        if kind == "plain":
            return answer
        raise (Broken if kind == "broken" else Refused)(answer)


def jar() -> Path | None:
    """Return their jar, from the cache or fetched now; None where it cannot be had."""
    return maven.jar(ARTIFACT, "typesafe")


@contextmanager
def original(theirs: Path) -> Iterator[Theirs]:
    """Start a JVM with their reader in it, and end it."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.config.oracle", str(theirs)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        cwd=Path(__file__).parent.parent.parent,
    )
    with child:
        yield Theirs(child)
        assert child.stdin is not None
        child.stdin.close()


def answered(config: Any, text: str) -> tuple[str, Any]:
    """Return what they say of a text."""
    try:
        read = config.ConfigFactory.parseString(text).resolve()
        concise = config.ConfigRenderOptions.concise()
        return "plain", json.loads(read.root().render(concise))
    except Py4JJavaError as error:
        name = error.java_exception.getClass().getSimpleName()
        kind = "broken" if name == "BugOrBroken" else "refused"
        return kind, str(error.java_exception.getMessage())


def main() -> None:
    """Answer a text a line, until there is none."""
    [bridge] = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    port, token = launch_gateway(
        jarpath=str(bridge),
        classpath=sys.argv[1],
        java_path=find_java(os.environ).executable,
        die_on_exit=True,
        enable_auth=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    try:
        for line in sys.stdin:
            print(json.dumps(answered(gateway.jvm.com.typesafe.config, json.loads(line))))
            sys.stdout.flush()
    finally:
        gateway.shutdown()


if __name__ == "__main__":
    main()
