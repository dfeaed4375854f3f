"""
The root command, which has every verb.

`headrace completion` prints the script with which a shell completes our commands.

A verb does its work, and raises if it fails. This module turns what it raises into text and an
exit code (0 done, 1 failed, 2 wrong usage or configuration, 3 busy or not ready, 4 not
reachable, 5 refused). A verb that returns a number ends with that exit code.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from headrace.cli import errors
from headrace.cli.cluster import cluster
from headrace.cli.common import installed, version
from headrace.cli.config import config, validate
from headrace.cli.connection import address_options, not_remote, refuse_address
from headrace.cli.control import apply, explain, pause, reload, reset, resume
from headrace.cli.dead_letters import dead_letters
from headrace.cli.demo.command import demo
from headrace.cli.doctor import doctor
from headrace.cli.health import health, metrics
from headrace.cli.init import init
from headrace.cli.log import log
from headrace.cli.profiles import profiles
from headrace.cli.query import query, schema, watch
from headrace.cli.replay import replay
from headrace.cli.run import run as run_command
from headrace.cli.sqlite import sqlite
from headrace.cli.status import status, top
from headrace.cli.teardown import teardown
from headrace.cli.token import token
from headrace.cli.try_ import try_
from headrace.errors import HeadraceError
from headrace.extras import DISTRIBUTION
from headrace.observe import logs

# --- `headrace completion` ------------------------------------------------------------------------

_INSTALL = {
    "bash": 'eval "$(headrace completion bash)"      # in ~/.bashrc; bash 4.4 and later',
    "zsh": 'eval "$(headrace completion zsh)"       # in ~/.zshrc, after compinit',
    "fish": "headrace completion fish | source       # in ~/.config/fish/config.fish",
}


@click.command(
    short_help="Print a shell completion script.", epilog="\b\n" + "\n".join(_INSTALL.values())
)
@click.argument("shell", type=click.Choice(list(_INSTALL)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands and options in SHELL."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(context.find_root().command, {}, "headrace", "_HEADRACE_COMPLETE")
    # Not `source()`: it runs bash to find its version, and warns if that is old.
    click.echo(made.source_template % made.source_vars())


# --- the root -------------------------------------------------------------------------------------


def _print_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"headrace {installed(DISTRIBUTION) or 'not found'}")
        context.exit()


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: headrace demo. For your own database: headrace init, then headrace run.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
@address_options
@click.pass_context
def headrace(context: click.Context, address: str | None, profile: str | None) -> None:
    """
    Stream every committed change from your database, through Spark, to your tables and
    services.
    """
    refuse_address(context)


headrace.add_command(apply)
headrace.add_command(cluster)
headrace.add_command(config)
headrace.add_command(dead_letters)
headrace.add_command(demo)
headrace.add_command(init)
headrace.add_command(validate)
headrace.add_command(log)
headrace.add_command(completion)
headrace.add_command(doctor)
headrace.add_command(explain)
headrace.add_command(health)
headrace.add_command(metrics)
headrace.add_command(pause)
headrace.add_command(profiles)
headrace.add_command(query)
headrace.add_command(reload)
headrace.add_command(reset)
headrace.add_command(resume)
headrace.add_command(run_command)
headrace.add_command(schema)
headrace.add_command(sqlite)
headrace.add_command(status)
headrace.add_command(teardown)
headrace.add_command(token)
headrace.add_command(top)
headrace.add_command(try_)
headrace.add_command(watch)
headrace.add_command(replay)
headrace.add_command(version)


def run() -> NoReturn:
    """Run the command line of this process and exit."""
    code = [errors.FAILED]
    # Registered first, so called last: after everything else that a process does at its end.
    atexit.register(lambda: _leave(code[0]))
    logs.take_over_process()
    errors.forgiving(sys.stdout)
    errors.forgiving(sys.stderr)
    code[0] = exit_code(sys.argv[1:])
    sys.exit(code[0])


def _leave(code: int) -> NoReturn:
    """
    End the process without freeing its memory first.

    Arrow drops its last reference to bytes of ours on a thread of its own, which needs the
    interpreter. If that is just being taken down, Python before 3.14 ends the thread inside C++,
    which aborts the process.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or errors.FAILED
    os._exit(code)


def exit_code(arguments: Sequence[str]) -> int:
    """Run one command, print what it raises, and return the exit code."""
    try:
        # Read from the arguments themselves: an error may come before click has parsed them.
        return _ended(arguments, as_json="--json" in arguments)
    finally:
        logs.close_all()


def _ended(arguments: Sequence[str], *, as_json: bool) -> int:
    try:
        ended = headrace.main(args=list(arguments), prog_name="headrace", standalone_mode=False)
    except HeadraceError as error:
        logs.logger("cli").failed("command failed", error, code=error.code)
        errors.print_error(error, as_json=as_json)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else error.format_message())
        return errors.WRONG_USAGE
    except click.ClickException as error:
        errors.print_usage_error(_explained(error), as_json=as_json)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return errors.INTERRUPTED
    except BrokenPipeError:
        errors.close_quietly()
        return errors.FAILED
    except Exception as error:  # noqa: BLE001 - nothing above handles it: logged in full, printed in a sentence
        errors.print_unexpected(error, as_json=as_json)
        return errors.FAILED
    return ended if isinstance(ended, int) else errors.DONE


def _explained(error: click.ClickException) -> click.ClickException:
    """Return the error; for an address where none is taken, one that says why."""
    if (
        isinstance(error, click.NoSuchOption)
        and error.ctx is not None
        and error.option_name in ("--address", "--profile")
    ):
        return click.UsageError(not_remote(error.ctx.command_path, error.option_name), error.ctx)
    return error
