"""
Who a server of ours runs as.

PostgreSQL refuses to run as root. Then it runs as `nobody`, who has no rights and is on every
system; no account is made and no folder of the user's is opened for it. What `nobody` cannot
reach is found out here, before the server fails over it with a message of its own.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OVERFLOW_ID = 65534
"""What the kernel itself calls nobody."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user a process is started as."""

    user: int
    group: int

    def reaches(self, path: Path) -> bool:
        """Return whether this user can look into every folder above `path`, and at `path`."""
        resolved = path.resolve()
        return all(self._may(part, 0o1) for part in resolved.parents) and self._may(
            resolved, 0o5 if resolved.is_dir() else 0o4
        )

    def own(self, path: Path) -> None:
        """Give this user a file or folder that we made."""
        os.chown(path, self.user, self.group)

    def _may(self, path: Path, bits: int) -> bool:
        facts = path.stat()
        if facts.st_uid == self.user:
            bits <<= 6
        elif facts.st_gid == self.group:
            bits <<= 3
        return facts.st_mode & bits == bits


def server_account() -> Account | None:
    """Return whom to become; None where we are not root and stay who we are."""
    if os.geteuid() != 0:
        return None
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        return Account(_OVERFLOW_ID, _OVERFLOW_ID)
    return Account(nobody.pw_uid, nobody.pw_gid)


def as_account(account: Account | None) -> dict[str, Any]:
    """Return the arguments with which `subprocess` starts a process as `account`."""
    if account is None:
        return {}
    return {"user": account.user, "group": account.group, "extra_groups": []}
