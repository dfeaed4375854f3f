"""
The root of the command line: what every verb hangs on.

A verb does its work and raises; this module turns whatever comes out into text and an
exit code (0 done, 1 failed, 2 wrong usage or configuration, 3 busy or not ready, 4 not
reachable, 5 refused). A verb that returns a number ends with that exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from headrace.errors import HeadraceError
from headrace.interfaces.cli import show
from headrace.interfaces.cli.apply import apply
from headrace.interfaces.cli.cluster import cluster
from headrace.interfaces.cli.completion import completion
from headrace.interfaces.cli.config import config
from headrace.interfaces.cli.dead_letters import dead_letters
from headrace.interfaces.cli.demo.command import demo
from headrace.interfaces.cli.doctor import doctor
from headrace.interfaces.cli.explain import explain
from headrace.interfaces.cli.init import init
from headrace.interfaces.cli.log import log
from headrace.interfaces.cli.query import query
from headrace.interfaces.cli.replay import replay
from headrace.interfaces.cli.run import run as run_command
from headrace.interfaces.cli.sqlite import sqlite
from headrace.interfaces.cli.status import status
from headrace.interfaces.cli.top import top
from headrace.interfaces.cli.try_ import try_
from headrace.interfaces.cli.validate import validate
from headrace.interfaces.cli.verbs import pause, reload, resume
from headrace.interfaces.cli.version import version
from headrace.interfaces.cli.watch import watch
from headrace.observe import logs


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: headrace demo",
)
def headrace() -> None:
    """Bring every committed change of a database to whoever needs it, on Apache Spark."""


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
headrace.add_command(pause)
headrace.add_command(query)
headrace.add_command(reload)
headrace.add_command(resume)
headrace.add_command(run_command)
headrace.add_command(sqlite)
headrace.add_command(status)
headrace.add_command(top)
headrace.add_command(try_)
headrace.add_command(watch)
headrace.add_command(replay)
headrace.add_command(version)


def run() -> NoReturn:
    """Run the command line of this process and leave it."""
    logs.take_over_process()
    show.forgiving(sys.stdout)
    show.forgiving(sys.stderr)
    sys.exit(exit_code(sys.argv[1:]))


def exit_code(arguments: Sequence[str]) -> int:
    """Run one command; print what it raises, and return what the shell is told."""
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
        show.print_error(error, as_json=as_json)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else error.format_message())
        return show.WRONG_USAGE
    except click.ClickException as error:
        show.print_usage_error(error, as_json=as_json)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return show.INTERRUPTED
    except BrokenPipeError:
        show.close_quietly()
        return show.FAILED
    except Exception as error:  # noqa: BLE001 - the last one to hold it: logged whole, told in a sentence
        show.print_unexpected(error, as_json=as_json)
        return show.FAILED
    return ended if isinstance(ended, int) else show.DONE
