"""Where `headrace sqlite` writes records, and how it is ended."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import FrameType

import click

from headrace.capture.sqlite.handlers import Lines, Post, Words
from headrace.capture.sqlite.records import Handler
from headrace.capture.sqlite.rendering import Form


@contextmanager
def handler_for(output: str, form: Form, retry_seconds: float) -> Iterator[Handler]:
    """Yield the handler that `--output` names."""
    match output:
        case "-":
            yield Words(sys.stdout.buffer, form)
            return
        case "json":
            yield Lines(sys.stdout.buffer, form)
            return
        case _ if output.startswith(("http://", "https://")):
            with closing(Post(output, form, retry_seconds=retry_seconds)) as post:
                yield post
            return
    raise click.BadParameter(
        "Use -, json, or an address with http:// or https://.", param_hint="--output"
    )


@contextmanager
def ending(close: Callable[[], object]) -> Iterator[list[int]]:
    """
    Let Ctrl-C and SIGTERM call `close`, so that a run ends after a whole batch.

    The second one ends it at once, in whatever it waits for. Yields what has come.
    """
    asked: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) > 1:
            raise KeyboardInterrupt
        close()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
