"""The page of the command line, made from its commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from headrace.cli.main import headrace

_INTRODUCTION = """\
# Command line

<!-- Made from src/headrace/cli by `make reference`; edit it there. -->

`headrace COMMAND --help` prints the same text. Results go to stdout, everything else to stderr;
`NO_COLOR` is honoured. [Exit codes](errors.md): 0 done, 1 failed, 2 wrong usage or configuration,
3 not ready, busy or locked, 4 not reachable, 5 refused. With `--json` an error is one object,
`{"error": {"code", "message", "facts", "remedy"}}`.

Commands that talk to a running engine find it by its data directory: `--data`, otherwise the one in
the configuration, otherwise `./headrace-data`. Those with an option `--address` reach one on the
network, too: `headrace status --address HOST:PORT`, or `headrace --address HOST:PORT status`. See
[the command line over the network](../guides/network.md).
"""


def commands(
    command: click.Command = headrace, path: tuple[str, ...] = ("headrace",)
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command with its words, in the order of their names."""
    if isinstance(command, click.Group):
        if command is not headrace and command.invoke_without_command:
            yield path, command
        for name, inner in sorted(command.commands.items()):
            if not inner.hidden:
                yield from commands(inner, (*path, name))
    else:
        yield path, command


def options(command: click.Command) -> Iterator[click.Option]:
    """Yield the options of a command, without --help."""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            yield parameter


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield _INTRODUCTION
    yield "| command | |"
    yield "|---|---|"
    for path, command in commands():
        words = " ".join(path)
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        yield f"| [`{words}`](#{anchor}) | {_cell(command.get_short_help_str(200))} |"
    for path, command in commands():
        yield ""
        yield f"## {' '.join(path)}"
        yield ""
        yield f"`{_usage(path, command)}`"
        for paragraph in _paragraphs(command):
            yield ""
            yield paragraph
        if rows := [_row(option) for option in options(command)]:
            yield ""
            yield "| option | |"
            yield "|---|---|"
            yield from rows


def _usage(path: tuple[str, ...], command: click.Command) -> str:
    with click.Context(command, info_name=" ".join(path)) as context:
        return " ".join([context.info_name or "", *command.collect_usage_pieces(context)])


def _paragraphs(command: click.Command) -> Iterator[str]:
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    for paragraph in text.split("\n\n"):
        yield _escaped(paragraph)


def _row(option: click.Option) -> str:
    with click.Context(click.Command("none")) as context:
        name, about = option.get_help_record(context) or ("", "")
    return f"| `{name}` | {_cell(about)} |"


def _cell(text: str) -> str:
    return _escaped(" ".join(text.split())).replace("|", "\\|")


def _escaped(text: str) -> str:
    # Markdown would take these for emphasis or tags.
    return text.replace("*", "\\*").replace("<", "&lt;")
