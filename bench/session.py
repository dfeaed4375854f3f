"""A Spark for measurements of tables in Delta."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.lake.formats import DELTA, needs
from headrace.spark_session.session import Spark, start_session


@contextmanager
def delta_session() -> Iterator[tuple[Spark, Path]]:
    """Start one, with a folder for what is measured; both are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    spark = start_session(folder / "spark", conf=needs(DELTA))
    try:
        yield spark, folder
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
