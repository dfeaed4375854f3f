"""The pipelines and tables that a data directory or its configuration knows by name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import UnknownPipeline
from headrace.interfaces.cli.reaching import DEFAULT_FILE

if TYPE_CHECKING:
    from headrace.config.tree import Node
    from headrace.pipeline.letter import DeadLetter


def one_of(names: Sequence[str]) -> str:
    """Return what to do about a name that is none of these."""
    return f"Use one of {', '.join(names)}." if names else "There is none here yet."


def check_names(
    folder: Path,
    config: Path | None,
    letters: Iterable[DeadLetter],
    pipeline: str | None,
    table: str | None,
) -> None:
    """Raise `UnknownPipeline` for a name that nobody knows: it would be answered with nothing."""
    from headrace.control.store_reading import stored_progress

    # With a pipeline alone, too: one that has no table yet has a name.
    places: set[tuple[str, str | None]] = {(each.pipeline, each.table) for each in letters}
    places |= {(each.pipeline, each.table) for each in stored_progress(folder)}
    places |= set(_configured(config))
    pipelines = sorted({name for name, _ in places})
    if pipeline is not None and pipeline not in pipelines:
        raise UnknownPipeline(
            f"There is no pipeline {pipeline} here",
            remedy=one_of(pipelines),
        )
    tables = sorted({of for name, of in places if of and pipeline in (None, name)})
    if table is not None and table not in tables:
        whose = "No pipeline" if pipeline is None else f"Pipeline {pipeline}"
        raise UnknownPipeline(
            f"{whose} has {'a' if pipeline is None else 'no'} table {table}",
            remedy=one_of(tables),
        )


def _configured(config: Path | None) -> Iterator[tuple[str, str | None]]:
    """Yield what a configuration names; what is wrong in it is told by those who run it."""
    if config is None and not DEFAULT_FILE.exists():
        return
    from headrace.config.loading import load
    from headrace.errors import HeadraceError

    try:
        tree = load(config, environment=os.environ)
    except HeadraceError:
        return
    for name, pipeline in _entries(_entries(tree).get("pipelines")).items():
        yield name, None
        listed = _entries(pipeline).get("tables")
        for each in listed.value if listed is not None and isinstance(listed.value, list) else ():
            yield name, str(each.value)


def _entries(node: Node | None) -> dict[str, Node]:
    return node.value if node is not None and isinstance(node.value, dict) else {}
