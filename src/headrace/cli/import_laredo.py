"""
Another engine's configuration, converted to ours.

In the original, each entry of `tables = [{ source, schema, table, targets = […] }]` lists its
targets; here each of these targets becomes a pipeline with that table. A setting without a
counterpart becomes a comment with its key and location, never its value. A pipeline is replaced
by a comment as a whole if its source or target has no counterpart, or if one of its filters has
none: without the filter it would deliver more rows than the original.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from headrace.capture.messages import SHORTEST_PAUSE_SECONDS
from headrace.cli.init import (
    ConfigLines,
    PlaceholderEnvironment,
    entry,
    list_of,
    with_scheme,
    without_variables,
)
from headrace.config.hocon import parse
from headrace.config.schema import key_path
from headrace.config.secrets import passwords_in, without_password
from headrace.config.text import Node, Scalar
from headrace.config.units import duration
from headrace.engine.checks import fitted
from headrace.errors import HeadraceError

_POSTGRES = ("postgresql", "postgres", "pg")
_MEMORY = "indexed-memory"
_FILTERS = {"field-equals": ("value",), "field-prefix": ("prefix",), "field-regex": ("pattern",)}


@dataclass(frozen=True, slots=True)
class Conversion:
    """A configuration of ours, and notes about what should be reviewed."""

    text: str
    notes: tuple[str, ...]
    """What was left out or changed, each with its location in the original file."""

    sources: int
    pipelines: int


def converted(text: str, origin: str) -> Conversion:
    """Return our configuration for the other one; raises errors of its syntax."""
    # Variables stay variables: their current values do not belong in a file.
    return _Converter(parse(text, origin, environment=PlaceholderEnvironment())).done(origin)


class _Taken:
    """A section of the original; what is left in it at the end has no counterpart."""

    def __init__(self, node: Node | None, at: str) -> None:
        self.node = node
        self.at = at
        self._left = dict(node.value) if node and isinstance(node.value, dict) else {}

    def names(self) -> list[str]:
        """Return the keys that are left."""
        return list(self._left)

    def take(self, key: str) -> Node | None:
        """Return a value, which counts as converted."""
        return self._left.pop(key, None)

    def look(self, key: str) -> Node | None:
        """Return a value, which stays, to be reported."""
        return self._left.get(key)

    def text(self, key: str) -> str:
        """Return a text, empty if there is none."""
        node = self.take(key)
        return "" if node is None or isinstance(node.value, list | dict) else str(node.value)

    def section(self, key: str) -> _Taken:
        """Return a section, empty if there is none; another kind of value stays, to be reported."""
        node = self._left.get(key)
        fits = node is not None and isinstance(node.value, dict)
        return _Taken(self.take(key) if fits else None, key_path(self.at, key))

    def entries(self, key: str) -> list[_Taken]:
        """Return the sections of a list; a value that is no list stays, to be reported."""
        node, at = self._left.get(key), key_path(self.at, key)
        listed = node.value if node and isinstance(node.value, list) else []
        if node and isinstance(node.value, list):
            self.take(key)
        return [_Taken(each, f"{at}[{number}]") for number, each in enumerate(listed)]

    def rest(self) -> Iterator[tuple[str, Node]]:
        """Yield the path and value of everything that was not taken."""
        for key, node in self._left.items():
            yield from _leaves(key_path(self.at, key), node)


class _Converter:
    def __init__(self, tree: Node) -> None:
        self.tree = _Taken(tree, "")
        self.lines = ConfigLines()
        self.notes: list[str] = []
        self.sources: set[str] = set()
        self.pipelines: set[str] = set()

    def done(self, origin: str) -> Conversion:
        self.lines.comment(f"Written by headrace init --from {origin}.")
        self.lines.comment("Settings without a counterpart are listed in comments.")
        self.lines.blank()
        self.lines.add('data = "./headrace-data"')
        sources = self.tree.section("sources")
        for name in sources.names():
            self.source(name, sources.section(name))
        for table in self.tree.entries("tables"):
            self.table(table)
        self.lines.blank()
        self.left_out(self.tree)
        if not self.notes:
            self.lines.comment("Every setting was converted.")
        made = len(self.sources), len(self.pipelines)
        return Conversion(self.lines.text(), tuple(self.notes), *made)

    def note(self, node: Node | None, says: str, indent: str = "") -> None:
        """Add a note about a value of the original, as a comment and to `notes`."""
        location = f" ({node.location})" if node is not None and node.location.line else ""
        self.notes.append(f"{says}{location}")
        self.lines.comment(f"{says}{location}", indent)

    def left_out(self, taken: _Taken, indent: str = "") -> None:
        for at, node in taken.rest():
            self.note(node, f"{at} has no counterpart", indent)

    def source(self, name: str, theirs: _Taken) -> None:
        id_ = fitted(name)
        self.lines.blank()
        if theirs.text("type") not in _POSTGRES:
            self.note(theirs.node, f"{theirs.at}: this type of source is not supported")
            return
        self.sources.add(name)
        self.lines.add(f"sources.{entry(id_)} {{")
        self.lines.add("  type = postgres")
        self.connection(id_, theirs)
        mode = "stateful" if theirs.text("slot_mode") == "stateful" else "ephemeral"
        self.lines.add(f"  slot_mode = {mode}")
        if (slot := theirs.take("slot_name")) is not None:
            # So both engines can run in parallel until the new one is trusted.
            self.note(slot, f"{theirs.at}.slot_name: Headrace uses a slot of its own", "  ")
        if (always := theirs.take("always_baseline")) is not None:
            self.lines.add(f"  always_baseline = {entry(always.value)}")
        self.publication(theirs.section("publication"))
        self.reconnect(theirs.section("reconnect"))
        self.left_out(theirs, "  ")
        self.lines.add("}")

    def reconnect(self, theirs: _Taken) -> None:
        settings = []
        if (attempts := _at_least(theirs.look("max_attempts"), 1)) is not None:
            settings.append(f"max_attempts = {attempts}")
            theirs.take("max_attempts")
        for key, ours in (("initial_backoff", "first_pause"), ("max_backoff", "longest_pause")):
            if (pause := _pause(theirs.look(key))) is not None:
                settings.append(f"{ours} = {pause}")
                theirs.take(key)
        if (node := theirs.look("backoff_multiplier")) is not None and node.value in (2, 2.0, "2"):
            theirs.take("backoff_multiplier")  # pauses double here
        if settings:
            self.lines.add(f"  reconnect {{ {', '.join(settings)} }}")
        self.left_out(theirs, "  ")

    def connection(self, id_: str, theirs: _Taken) -> None:
        node = theirs.take("connection")
        if node is None or not isinstance(node.value, str):
            self.note(theirs.node, f"{theirs.at}.connection is missing or not a string", "  ")
            return
        text = node.value
        # A password that is entirely a variable stays one; if only part of it is a variable,
        # the rest may be the secret part.
        if any(without_variables(each) for each in passwords_in(with_scheme(text))):
            variable = re.sub(r"[^A-Z0-9]", "_", id_.upper()) + "_PASSWORD"
            says = (
                f"{theirs.at}.connection contains a password, which was not copied: set {variable}"
            )
            self.lines.add(f"  connection = {entry(without_password(text))}")
            self.note(node, says, "  ")
            self.lines.add(f'  password_ref = "env:{variable}"')
        else:
            self.lines.add(f"  connection = {entry(text)}")

    def publication(self, theirs: _Taken) -> None:
        if theirs.node is None:
            return
        if (name := theirs.take("name")) is not None:
            self.note(name, f"{theirs.at}.name: Headrace uses a publication of its own", "  ")
        create, publish = theirs.take("create"), theirs.take("publish")
        tables = theirs.section("tables")
        self.lines.add("  publication {")
        if create is not None:
            self.lines.add(f"    create = {entry(create.value)}")
        if publish is not None and (operations := _texts(publish)):
            self.lines.add(f"    publish = {list_of(operations)}")
        for table in tables.names():
            asked = tables.section(table)
            self.lines.add(f"    tables.{entry(table)} {{")
            if columns := _texts(asked.take("columns")):
                self.lines.add(f"      columns = {list_of(columns)}")
            if where := asked.text("where"):
                self.lines.add(f"      where = {entry(where)}")
            self.left_out(asked, "      ")
            self.lines.add("    }")
        self.left_out(theirs, "    ")
        self.lines.add("  }")

    def table(self, theirs: _Taken) -> None:
        source, schema, table = (theirs.text(key) for key in ("source", "schema", "table"))
        name = table if schema in ("", "public") else f"{schema}.{table}"
        targets = theirs.entries("targets")
        if not targets:
            self.note(theirs.node, f"{theirs.at}: it has no target, so it gets no pipeline")
        ttl = theirs.section("ttl")
        expires = self.ttl(ttl)
        for target in targets:
            self.lines.blank()
            self.pipeline(source, name, target, expires)
        self.left_out(ttl)
        self.left_out(theirs)

    def ttl(self, theirs: _Taken) -> str:
        """Return when the rows of a table's pipelines expire; empty if that has no counterpart."""
        mode, field = theirs.look("mode"), theirs.look("field")
        if field is None or not isinstance(field.value, str):
            return ""
        if mode is not None and mode.value != "field":
            return ""
        theirs.take("mode")
        theirs.take("field")
        made = f"field = {entry(field.value)}"
        if (scan := _scan(theirs.look("check_interval"))) is not None:
            theirs.take("check_interval")
            made += f", scan = {scan}"
        return made

    def pipeline(self, source: str, table: str, theirs: _Taken, expires: str) -> None:
        kind = theirs.text("type")
        filters = [_filter(each) for each in theirs.entries("filters")]
        transforms = [_transform(each) for each in theirs.entries("transforms")]
        if source not in self.sources:
            self.note(theirs.node, f"{theirs.at}: its source was not converted")
            return
        if kind != _MEMORY:
            self.note(theirs.node, f"{theirs.at}: this type of target is not supported")
            return
        # A value that is no list stays in `theirs`, and was not converted either.
        if None in filters or None in transforms or {"filters", "transforms"} & {*theirs.names()}:
            # Without that filter it would deliver rows that it must hold back.
            self.note(
                theirs.node, f"{theirs.at}: one of its filters or transforms has no counterpart"
            )
            return
        id_ = self.named(table, kind)
        self.lines.add(f"pipelines.{entry(id_)} {{")
        self.lines.add(f"  source = {entry(fitted(source))}")
        self.lines.add(f"  tables = {list_of([table])}")
        for key, steps in (("filters", filters), ("transforms", transforms)):
            if steps:
                self.lines.add(f"  {key} = [")
                self.lines.add(*(f"    {{ {step} }}" for step in steps if step))
                self.lines.add("  ]")
        self.target(theirs)
        self.error_handling(theirs.section("error_handling"))
        self.buffer(theirs.section("buffer"))
        if expires:
            self.lines.add(f"  ttl {{ {expires} }}")
        self.left_out(theirs, "  ")
        self.lines.add("}")

    def target(self, theirs: _Taken) -> None:
        self.lines.add("  target {", f"    type = {_MEMORY}")
        if fields := _texts(theirs.take("lookup_fields")):
            self.lines.add(f"    lookup_fields = {list_of(fields)}")
        for number, index in enumerate(theirs.entries("additional_indexes"), 1):
            name = index.text("name") or f"index_{number}"
            fields = _texts(index.take("fields"))
            self.lines.add(f"    indexes.{entry(name)} {{ fields = {list_of(fields)} }}")
            self.left_out(index, "    ")
        self.lines.add("  }")

    def error_handling(self, theirs: _Taken) -> None:
        policy = theirs.take("on_persistent_failure")
        if policy is not None and policy.value == "isolate":
            self.lines.add("  error_handling.on_persistent_failure = isolate")
        elif policy is not None:
            self.lines.add("  error_handling.on_persistent_failure = stop")
            if policy.value in ("stop_source", "stop_all"):
                self.lines.add(f"  on_failure = {policy.value}")
            else:
                says = f"{theirs.at}.on_persistent_failure: only the failed pipeline stops here"
                self.note(policy, says, "  ")
        settings = []
        if (retries := _at_least(theirs.look("max_retries"), 0)) is not None:
            settings.append(f"max_attempts = {retries + 1}")  # theirs come after the first attempt
            theirs.take("max_retries")
        for key, ours in (("retry_backoff_ms", "first_pause"), ("retry_max_ms", "longest_pause")):
            if (pause := _at_least(theirs.look(key), 10)) is not None:
                settings.append(f"{ours} = {pause}ms")
                theirs.take(key)
        if settings:
            self.lines.add(f"  retry {{ {', '.join(settings)} }}")
        self.left_out(theirs, "  ")

    def buffer(self, theirs: _Taken) -> None:
        node = theirs.look("policy")
        policy = (
            None
            if node is None
            else {"drop_oldest": "release", "error": "error"}.get(str(node.value))
        )
        if node is not None and (policy or node.value == "block"):
            theirs.take("policy")
        if policy is not None:
            size = theirs.look("max_size")
            most = _THEIR_BUFFER if size is None else _at_least(size, 1)
            if most is not None:
                theirs.take("max_size")
            self.lines.add(f"  lag {{ max_changes = {most or _THEIR_BUFFER}, policy = {policy} }}")
        self.left_out(theirs, "  ")

    def named(self, table: str, kind: str) -> str:
        """Return an unused pipeline id."""
        wanted = [fitted(table.rpartition(".")[2]), fitted(table), fitted(f"{table}.{kind}")]
        wanted += [fitted(f"{table}.{number}") for number in range(2, len(self.pipelines) + 3)]
        id_ = next(each for each in wanted if each not in self.pipelines)
        self.pipelines.add(id_)
        return id_


_THEIR_BUFFER = 10_000
"""Their default."""


def _at_least(node: Node | None, least: int) -> int | None:
    """Return a whole number; None if there is none, or a smaller one."""
    text = "" if node is None or isinstance(node.value, bool) else str(node.value)
    return int(text) if text.isdecimal() and int(text) >= least else None


def _pause(node: Node | None) -> str | None:
    """Return a duration in our form; None if it is none, or too short for a pause."""
    try:
        seconds = 0.0 if node is None else duration(str(node.value))
    except HeadraceError:
        return None
    return None if seconds < SHORTEST_PAUSE_SECONDS else f"{round(1000 * seconds)}ms"


def _scan(node: Node | None) -> str | None:
    """Return how often rows are looked for that have expired; None if it is too often."""
    try:
        seconds = 0.0 if node is None else duration(str(node.value))
    except HeadraceError:
        return None
    return None if seconds < 1 else f"{round(1000 * seconds)}ms"


def _filter(theirs: _Taken) -> str | None:
    """Return a filter in our form; None if it has no counterpart."""
    kind, field = theirs.text("type"), theirs.text("field")
    if kind not in _FILTERS or not field:
        return None
    values = {key: theirs.take(key) for key in _FILTERS[kind]}
    if None in values.values() or any(True for _ in theirs.rest()):
        return None
    written = ", ".join(f"{key} = {_scalar(node)}" for key, node in values.items())
    return f"type = {kind}, field = {entry(field)}, {written}"


def _transform(theirs: _Taken) -> str | None:
    """Return a transform in our form; None if it has no counterpart."""
    made = None
    match theirs.text("type"):
        case "drop-fields" if fields := _texts(theirs.take("fields")):
            made = f"type = drop-fields, fields = {list_of(fields)}"
        case "add-timestamp" if field := theirs.text("field"):
            made = f"type = add-timestamp, field = {entry(field)}"
        case "rename-fields":
            names = _plain_names(theirs.take("mapping"))
            pairs = ", ".join(f"{entry(old)} = {entry(new)}" for old, new in names.items())
            made = f"type = rename-fields, mapping {{ {pairs} }}" if names else None
    return None if any(True for _ in theirs.rest()) else made


def _plain_names(node: Node | None) -> Mapping[str, str]:
    if node is None or not isinstance(node.value, dict):
        return {}
    return {old: str(each.value) for old, each in node.value.items()}


def _scalar(node: Node | None) -> str:
    value: Scalar = None
    if node is not None and not isinstance(node.value, list | dict):
        value = node.value
    return entry(value)


def _texts(node: Node | None) -> list[str]:
    if node is None or not isinstance(node.value, list):
        return []
    return [str(each.value) for each in node.value if not isinstance(each.value, list | dict)]


def _leaves(at: str, node: Node) -> Iterator[tuple[str, Node]]:
    if isinstance(node.value, dict) and node.value:
        for key, each in node.value.items():
            yield from _leaves(key_path(at, key), each)
    else:
        yield at, node
