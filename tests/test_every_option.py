"""Every command and option was run by a test of this very run; comes last in it."""

from __future__ import annotations

import click
import pytest

from headrace.interfaces.cli.main import headrace
from tests import invocations
from tools.cli_reference import commands, options, page


def offered() -> set[tuple[tuple[str, ...], str]]:
    """Return every command, and every command with each of its options."""
    return {
        (path, name)
        for path, command in commands()
        for name in ("", *(option.opts[-1] for option in options(command)))
    }


def test_every_command_and_option_was_run() -> None:
    if not invocations.is_whole_run():
        pytest.skip("only a run of all tests can tell")
    assert sorted(offered() - invocations.seen()) == []


def test_every_command_and_option_is_in_the_reference() -> None:
    text = "\n".join(page())
    for path, name in sorted(offered()):
        section = text.split(f"\n## {' '.join(path)}\n")[1].split("\n## ")[0]
        assert name in section


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("status --json", {(("headrace", "status"), "--json")}),
        ("dead-letters list orders --data=x", {(("headrace", "dead-letters", "list"), "--data")}),
        ("query orders --key --json", {(("headrace", "query"), "--key")}),
        ("query orders --count -- --json", {(("headrace", "query"), "--count")}),
        ("status --nonsense", set()),
    ],
)
def test_what_a_command_line_uses_is_read_from_it(
    line: str, found: set[tuple[tuple[str, ...], str]]
) -> None:
    assert {each for each in invocations.used(headrace, line.split()) if each[1]} == found


def test_a_command_that_nobody_ran_would_be_missed() -> None:
    @click.command()
    @click.option("--never")
    def unseen(never: str) -> None:
        """Stand here."""

    headrace.add_command(unseen)
    try:
        assert (("headrace", "unseen"), "--never") in offered() - invocations.seen()
    finally:
        del headrace.commands["unseen"]
