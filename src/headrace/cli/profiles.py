"""
Profiles: engines on the network under names of your own, in `~/.config/headrace/profiles.conf`.

```
production {
  address = "https://cdc.example.com:4080"
  token = "file:~/.config/headrace/production.token"
  ca = "authority.pem"
}
```

The file is HOCON, like a configuration. A token is a reference, `file:…` or `env:…`, or the token
itself; then the file must be readable by its owner only. `headrace profiles` lists the profiles.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.common import json_option, one_of, output_console, printable
from headrace.errors import BadAddress, MissingKey, WrongValue

if TYPE_CHECKING:
    from headrace.config.schema import Problems, Values
    from headrace.config.text import Node


@dataclass(frozen=True, slots=True)
class Profile:
    """An engine on the network, and what proves who we are there."""

    name: str
    """Empty for an address that was given without a profile."""

    address: str
    token: str | None = field(default=None, repr=False)
    """A reference to a token, or the token; None if there is none."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def secret(self) -> str | None:
        """Return the token; raises `NoSecret` if the reference leads to none."""
        from headrace.config.secrets import is_reference, read_secret

        if self.token is None:
            return None
        return read_secret(self.token) if is_reference(self.token) else self.token

    @property
    def masked_token(self) -> str | None:
        """Where the token is, or stars for the token itself."""
        from headrace.config.secrets import MASK, is_reference

        return self.token if self.token is None or is_reference(self.token) else MASK


def profiles_file() -> Path:
    """Return the path of the file; it need not exist."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "headrace" / "profiles.conf"


def read_profiles() -> Mapping[str, Profile]:
    """
    Return the profiles by name; none if there is no file.

    Raises `InvalidConfiguration` with every error: unknown keys, addresses that are none, a token
    in a file that others can read.
    """
    from headrace.config.hocon import IncludeChain, parse_section, read_relative, read_text
    from headrace.config.resolve import resolve_root
    from headrace.config.schema import Entries, FilePath, Key, Problems, Section, Text, Values
    from headrace.config.text import SourceText

    if not (file := profiles_file()).exists():
        return {}
    keys = (
        Key("address", _AddressText(), 'address = "https://HOST:PORT"', required=True),
        Key("token", Text("file:~/.config/headrace/token", secret=True), "The token"),
        Key("ca", FilePath("authority.pem"), "The authorities to trust"),
        Key("certificate", FilePath("client.pem"), "Our certificate"),
        Key("key", FilePath("client.key"), "Its key"),
    )
    root = parse_section(SourceText(read_text(file), str(file)), IncludeChain(read_relative))
    problems = Problems()
    read = Entries(Section(keys)).read(resolve_root(root, os.environ), "", problems)
    problems.raise_all()
    found = {}
    for name, values in read.items():
        assert isinstance(values, Values)
        found[name] = profile = Profile(name, **values)
        if profile.masked_token not in (None, profile.token):
            _check_private(values, name, problems)
        if profile.key is not None and profile.certificate is None:
            problems.add(MissingKey, values.location, f"{name}.certificate", "is missing")
    problems.raise_all()
    return found


def _check_private(values: Values, name: str, problems: Problems) -> None:
    """Refuse a token in a file that others can read."""
    place = values.location_of("token")
    found = Path(place.origin).stat()
    if stat.S_IMODE(found.st_mode) & 0o077 or found.st_uid not in (os.getuid(), 0):
        problems.add(
            WrongValue,
            place,
            f"{name}.token",
            "is a token, in a file that other users can read",
            remedy=f"Protect the file: chmod 600 {place.origin}. Or write where the token is:"
            ' token = "file:…".',
        )


@dataclass(frozen=True, slots=True)
class _AddressText:
    """The address of an engine."""

    @property
    def label(self) -> str:
        return "address"

    def read(self, node: Node, at: str, problems: Problems) -> str:
        from headrace.api.address import Address
        from headrace.config.schema import Text

        text = Text("https://cdc.example.com:4080").read(node, at, problems)
        try:
            return str(Address.parse(text)) if text else ""
        except BadAddress as error:
            problems.add(
                WrongValue, node.location, at, f"is wrong: {error.message}", remedy=error.remedy
            )
            return ""


def profile_named(name: str) -> Profile:
    """Return a profile; a wrong usage if the file has none of this name."""
    known = read_profiles()
    if name not in known:
        raise click.UsageError(
            f"There is no profile {name} in {profiles_file()}. {one_of(sorted(known))}"
        )
    return known[name]


# --- `headrace profiles` --------------------------------------------------------------------------


@click.command(short_help="List the engines that have a name here.")
@json_option
def profiles(as_json: bool) -> None:
    """
    List the profiles of ~/.config/headrace/profiles.conf: engines on the network, by name.

    A token is shown as the place that it is read from, never itself. With --json each line is a
    profile.
    """
    found = read_profiles()
    if as_json:
        for each in found.values():
            click.echo(json.dumps(_fields(each), ensure_ascii=False))
        return
    if not found:
        click.echo(f"No profiles. They are written in {profiles_file()}.")
        return
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("PROFILE", "ADDRESS", "TOKEN", "CA", "CERTIFICATE"):
        shown.add_column(heading, overflow="fold")
    for each in found.values():
        fields = _fields(each)
        shown.add_row(
            *(
                printable(fields[key] or "-")
                for key in ("profile", "address", "token", "ca", "certificate")
            )
        )
    output_console().print(shown)


def _fields(profile: Profile) -> dict[str, str | None]:
    return {
        "profile": profile.name,
        "address": profile.address,
        "token": profile.masked_token,
        **{
            name: None if path is None else str(path)
            for name, path in (
                ("ca", profile.ca),
                ("certificate", profile.certificate),
                ("key", profile.key),
            )
        },
    }
