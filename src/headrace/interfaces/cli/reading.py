"""The configuration that a verb works with, and what is said of it in passing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.interfaces.cli import show

if TYPE_CHECKING:
    from headrace.control.configured import Configured


def read_configuration(
    config: Path | None, sets: Sequence[str], *, warn: bool = True
) -> Configured:
    """
    Return the checked configuration of `--config` and `--set`; warnings go to stderr.

    Raises `InvalidConfiguration` with every error, or what is wrong with the text itself.
    """
    # Here and not above: `--help` reads no configuration.
    from headrace.config.loading import load
    from headrace.control.configured import configured

    found = configured(load(config, environment=os.environ, sets=sets))
    if warn:
        for warning in found.warnings:
            show.print_warning(warning)
    return found
