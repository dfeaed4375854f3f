"""The environment of a program that uses Spark, and of Headrace only what is installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headrace.spark_session.java import find_java
from tests.spark_session import jvm_options
from tests.support.cpu import MARK

ROOT = Path(__file__).parents[3]


def environment() -> dict[str, str]:
    """Return what such a program is started with."""
    java = find_java(os.environ)
    kept = {name: os.environ[name] for name in ("HOME", "TMPDIR", MARK) if name in os.environ}
    return {
        **kept,
        "JAVA_HOME": java.home,
        "PATH": f"{Path(java.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        **jvm_options(),
    }
