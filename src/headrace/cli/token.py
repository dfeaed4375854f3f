"""`headrace token`: tokens for callers of a server, and their hashes for its configuration."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import click

from headrace.cli.common import json_option
from headrace.cli.errors import force_option, opened_output

PREFIX = "hrt_"
"""Begins every token, so that tools that look for secrets in texts find it."""


@click.group("token", short_help="Make tokens for a server's callers.")
def token() -> None:
    """
    Make tokens for the callers of a server.

    A server knows a token by its hash, which is in its configuration. The token itself is only
    with its caller.
    """


@token.command("new", short_help="Make a token.")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["read", "operate", "admin"]),
    required=True,
    help="What its caller may do; each role includes the ones before it.",
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="TABLE",
    help="The only table whose rows it may read; can be repeated (default: all).",
)
@click.option(
    "--expires",
    metavar="TIME",
    help="When it ends: a day, as in 2027-01-31, or a time (default: never).",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the token to this file, for its owner alone, instead of the terminal.",
)
@force_option
@json_option
def new(
    name: str,
    role: str,
    tables: tuple[str, ...],
    expires: str | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """
    Make a token, and print it with the lines for the configuration of a server.

    The token is random and is stored nowhere: it is printed once. The configuration has its hash,
    from which it cannot be found. Give the token to its caller, who passes it in HEADRACE_TOKEN,
    in a file, or in the header Authorization: Bearer.
    """
    from headrace.server.settings import Access, ServerSettings, moment, token_hash

    try:
        ends = None if expires is None else moment(expires)
    except ValueError:
        raise click.UsageError("--expires must be a day or a time: 2027-01-31.") from None
    made = PREFIX + secrets.token_urlsafe(32)
    hashed = token_hash(made)
    # A name that a configuration would refuse is refused here.
    ServerSettings(tokens={name: Access(role, hashed, tables=tables, expires=ends)})
    if output is not None:
        with opened_output(output, force=force) as file:
            file.write(f"{made}\n".encode())
    lines = _lines(name, role, hashed, tables, expires)
    if as_json:
        shown = {"name": name, "role": role, "hash": hashed, "configuration": lines}
        click.echo(json.dumps(shown if output else {**shown, "token": made}))
        return
    click.echo(made if output is None else f"The token is in {output}.")
    click.echo("Add this to the configuration of the server:\n", err=True)
    click.echo("\n".join(lines), err=output is None)
    if output is None:
        click.echo("\nThe token is not stored: keep it now.", err=True)


def _lines(
    name: str, role: str, hashed: str, tables: tuple[str, ...], expires: str | None
) -> list[str]:
    lines = [f'server.tokens."{name}" {{', f"  role = {role}", f'  hash = "{hashed}"']
    if tables:
        lines.append(f"  tables = {json.dumps(tables, ensure_ascii=False)}")
    if expires is not None:
        lines.append(f'  expires = "{expires}"')
    return [*lines, "}"]
