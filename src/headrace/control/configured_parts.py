"""The parts that a configuration may name: ours, and those of installed packages."""

from __future__ import annotations

from typing import Any

from headrace.capture.postgres.settings import POSTGRES
from headrace.capture.sqlite.settings import SQLITE
from headrace.config.checking import Values
from headrace.config.parts import Catalogue, Part, called_by_name
from headrace.config.secrets import Secret
from headrace.pipeline.settings import FILTERS as FILTER_TYPES
from headrace.pipeline.settings import TARGETS as FUNCTION_TARGETS
from headrace.pipeline.settings import TRANSFORMS as TRANSFORM_TYPES
from headrace.targets.settings import MEMORY


def adopted_source(type: str, maker: Any) -> Part:
    """
    Return a part for a source's class of somebody else.

    It is made from a `SourceSpec`, here and again in the recorder's process, so its values
    must be plain: a secret goes as its reference.
    """

    def build(name: str, values: Values) -> Any:
        from headrace.capture.source import SourceSpec

        return maker(SourceSpec(type, name, {key: _plain(each) for key, each in values.items()}))

    part = called_by_name(type, maker)
    return Part(part.doc, part.keys, build)


def _plain(value: object) -> object:
    match value:
        case Secret():
            return value.reference
        case None | bool() | int() | float() | str():
            return value
        case tuple():
            return [_plain(each) for each in value]
    if hasattr(value, "items"):
        return {str(key): _plain(each) for key, each in value.items()}
    return str(value)


SOURCES = Catalogue(
    "source", "headrace.sources", {"sqlite": SQLITE, "postgres": POSTGRES}, adopted_source
)
TARGETS = Catalogue("target", "headrace.targets", {"indexed-memory": MEMORY, **FUNCTION_TARGETS})
FILTERS = Catalogue("filter", "headrace.filters", FILTER_TYPES)
TRANSFORMS = Catalogue("transform", "headrace.transforms", TRANSFORM_TYPES)
