"""
Which running engine a verb talks to: one of this machine, or one on the network.

| it is named by | and found |
|---|---|
| `--address`, `--profile` | on the network |
| `--data`, `--config`, `--set` | by the socket that its data directory names |
| `HEADRACE_ADDRESS` | on the network |
| nothing | by the data directory in the configuration, or `./headrace-data` |

The first that is given counts; the first two exclude each other. An address may also be the name
of a profile. The token is that of the profile, otherwise `HEADRACE_TOKEN`, otherwise what is in the
file `HEADRACE_TOKEN_FILE`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli.common import (
    confirmed,
    data_directory,
    engine_options,
    same_engine,
    used_folder,
)
from headrace.cli.profiles import Profile, profile_named, read_profiles
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.api.client import Control

ADDRESS = "HEADRACE_ADDRESS"
TOKEN, TOKEN_FILE = "HEADRACE_TOKEN", "HEADRACE_TOKEN_FILE"

ADDRESS_HELP = "Engine on the network: HOST:PORT, https://HOST:PORT or a profile."
PROFILE_HELP = "Engine on the network: a name that headrace profiles lists."

_NAME = re.compile(r"[\w-]+")
_NOWHERE = (None, None)

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The options of one command that name an engine."""

    config: Path | None = None
    sets: tuple[str, ...] = ()
    data: Path | None = None
    address: str | None = None
    profile: str | None = None

    def __post_init__(self) -> None:
        given = [
            option
            for option, value in (
                ("--address", self.address),
                ("--profile", self.profile),
                ("--data", self.data),
                ("--config", self.config),
                ("--set", self.sets or None),
            )
            # Not `if value`: an empty address, of a variable that is not set, is a mistake.
            if value is not None
        ]
        if len(given) > 1 and given[0] in ("--address", "--profile"):
            raise click.UsageError(
                f"{given[0]} cannot be combined with {given[1]}: both name an engine."
            )

    @property
    def on_network(self) -> bool:
        """Whether the engine is reached by an address."""
        if self.address is not None or self.profile is not None:
            return True
        return not (self.data or self.config or self.sets) and bool(os.environ.get(ADDRESS))

    def reach(self) -> Control:
        """Return the engine; raises `NoEngine` with what to type next."""
        from headrace.api.client import Control

        if not self.on_network:
            return Control.connect(self.folder())
        chosen = self._chosen()
        token = chosen.secret() if chosen.token is not None else _token_given()
        return Control.at(
            chosen.address,
            token=token,
            ca=chosen.ca,
            certificate=chosen.certificate,
            key=chosen.key,
        )

    def folder(self) -> Path:
        """Return the data directory of an engine of this machine; it need not exist."""
        return data_directory(self.config, self.sets, self.data)

    def used_folder(self) -> Path:
        """Return it; raises `BadDataDirectory` if no engine has used it."""
        return used_folder(self.folder())

    def again(self) -> tuple[str, ...]:
        """Return the options with which the next command selects the same engine."""
        if self.address is not None:
            return ("--address", self.address)
        if self.profile is not None:
            return ("--profile", self.profile)
        return same_engine(self.config, self.sets, self.data)

    def confirmed(self, question: str) -> bool:
        """Ask whether to do what was shown; the question names an engine on the network."""
        if not self.on_network:
            return confirmed(f"{question}?")
        return confirmed(f"{question} at {self._chosen().address}?")

    def _chosen(self) -> Profile:
        if self.profile is not None:
            return profile_named(self.profile)
        from headrace.api.address import Address

        text = os.environ[ADDRESS] if self.address is None else self.address
        if _NAME.fullmatch(text) and text in (known := read_profiles()):
            return known[text]
        return Profile("", str(Address.parse(text)))


def _token_given() -> str | None:
    """Return the token in the environment, if there is one."""
    from headrace.config.secrets import read_secret

    # Set and empty is not a token; it is how a variable is switched off.
    token, file = os.environ.get(TOKEN), os.environ.get(TOKEN_FILE)
    if token and file:
        raise click.UsageError(f"{TOKEN} and {TOKEN_FILE} are both set; unset one of them.")
    if file:
        return read_secret(f"file:{file}")
    return token.strip() if token else None


def running_engine(command: _Command) -> Callable[..., Any]:
    """
    Add the options that name a running engine: `engine: EngineChoice`.

    They are `--address`, `--profile`, `--data`, `--config` and `--set`. Options of `headrace`
    itself, before the command, count as those of the command.
    """

    @wraps(command)
    def with_engine(
        *,
        config: Path | None,
        sets: tuple[str, ...],
        data: Path | None,
        address: str | None,
        profile: str | None,
        **others: Any,
    ) -> Any:
        before = before_command(click.get_current_context())
        given = (address, profile)
        if before != _NOWHERE and given != _NOWHERE:
            raise click.UsageError("Name the engine once, before or after the command.")
        chosen = given if before == _NOWHERE else before
        return command(engine=EngineChoice(config, sets, data, *chosen), **others)

    return engine_options(address_options(with_engine))


def address_options(command: _Command) -> _Command:
    """Add `--address` and `--profile`."""
    command = click.option("--profile", metavar="NAME", help=PROFILE_HELP)(command)
    return click.option("--address", metavar="ADDRESS", help=ADDRESS_HELP)(command)


def before_command(context: click.Context) -> tuple[str | None, str | None]:
    """Return the address and the profile that were given before the command."""
    given = context.find_root().params
    return given.get("address"), given.get("profile")


def refuse_address(context: click.Context) -> None:
    """Refuse an address before a command that works with the files of this machine."""
    given = before_command(context)
    if given != _NOWHERE and not _takes_address(context.command, context.invoked_subcommand):
        option = "--profile" if given[0] is None else "--address"
        raise click.UsageError(not_remote(f"headrace {context.invoked_subcommand}", option))


def not_remote(command: str, option: str) -> str:
    """Return why a command takes no address."""
    return (
        f"{command} works with this machine, not with a running engine, and takes no {option}. Run"
        " it where the engine is."
    )


def refuse_remote_default(command: str, *given: object) -> None:
    """Refuse to read local files for somebody who works with an engine on the network."""
    if not any(given) and os.environ.get(ADDRESS):
        raise click.UsageError(
            f"{command} reads the files of a data directory, and {ADDRESS} names an engine on the"
            " network. Give --data FOLDER, or unset it."
        )


def _takes_address(root: click.Command, name: str | None) -> bool:
    command = root.commands.get(name or "") if isinstance(root, click.Group) else None
    while isinstance(command, click.Group):
        # The commands of a group all do, or none does.
        command = next(iter(command.commands.values()))
    return command is None or any(each.name == "address" for each in command.params)


def pipeline_names(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Return the pipelines of the running engine that begin with `begun`, for completion."""
    given = context.params
    try:
        engine = EngineChoice(given.get("config"), given.get("sets") or (), given.get("data"))
        if engine.on_network or given.get("address") or given.get("profile"):
            return []  # completion must not wait for a network
        answer = engine.reach().call("Status", answer_seconds=2.0)
    except HeadraceError:
        return []
    return [each["name"] for each in answer["pipelines"] if each["name"].startswith(begun)]
