"""A zip file for whoever helps: what is installed, configured and logged; no rows, no secrets."""

from __future__ import annotations

import json
import os
import platform
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from headrace.config.masking import masked_text
from headrace.errors import HeadraceError
from headrace.interfaces.cli.examining import Result
from headrace.interfaces.cli.outputs import opened_output

MOST_LOG_BYTES = 1 << 20
"""Of each log file the end: what happened last."""


def write_bundle(
    path: Path,
    results: Sequence[Result],
    config: Path | None,
    sets: tuple[str, ...],
    data: Path | None,
    *,
    force: bool,
) -> None:
    """Write what was examined, the configuration as it may be shown, states, and logs."""
    with (
        opened_output(path, force=force) as stream,
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as bundle,
    ):
        _put(bundle, "doctor.json", [asdict(result) for result in results])
        _put(bundle, "machine.json", {"platform": platform.platform(), "cores": os.cpu_count()})
        folder = data
        try:
            from headrace.interfaces.cli.reading import read_configuration

            found = read_configuration(config, sets, warn=False)
            _put(bundle, "configuration.json", found.masked())
            folder = folder or found.data
        except HeadraceError as error:
            _put(bundle, "configuration.json", {"error": error.code})
        folder = (folder or Path("headrace-data")).expanduser().absolute()
        _put(bundle, "status.json", _status(folder))
        for log in sorted((folder / "logs").glob("*.log*")):
            # Masked once more: a line of a library's may quote an address.
            bundle.writestr(f"logs/{log.name}", masked_text(_end_of(log)))


def _status(folder: Path) -> object:
    from headrace.interfaces.control.client import Control

    try:
        return Control.connect(folder).call("Status")
    except HeadraceError as error:
        return {"error": error.code}


def _put(bundle: zipfile.ZipFile, name: str, value: object) -> None:
    bundle.writestr(name, json.dumps(value, indent=2, ensure_ascii=False, default=str))


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - MOST_LOG_BYTES))
        return file.read().decode("utf-8", "replace")
