"""Every dotted name that a page or an example gives can be imported as it is written."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    + [path for path in (ROOT / "docs").rglob("*.md") if path.name != "obligations.md"]
    + [path for path in (ROOT / "examples").rglob("*") if path.suffix in {".py", ".md", ".toml"}]
)

DOTTED = re.compile(r"(?<![\w./$:{-])headrace(?:\.[A-Za-z_]\w*)+(?![\w/-])")

GROUPS = {
    "headrace.dead_letter_stores",
    "headrace.filters",
    "headrace.observers",
    "headrace.sources",
    "headrace.targets",
    "headrace.transforms",
}
"""Groups of entry points, by which installed packages bring parts."""

NO_MODULES = {
    "headrace.secrets": "a group of entry points, too",
    "headrace.conf": "a file",
    "headrace.conf.d": "a folder",
    "headrace.log": "a file",
    "headrace.format": "a key in the metadata of a segment",
    "headrace.v1.ControlService": "a service, by the name of its protocol",
    "headrace.v1.OAMService": "another",
    "headrace.v1.QueryService": "another",
    "headrace.v1.Error": "a message, by the name of its protocol",
}


def documented() -> dict[str, str]:
    """Return the names, each with the page that gives it first."""
    found: dict[str, str] = {}
    for page in PAGES:
        for match in DOTTED.finditer(page.read_text()):
            found.setdefault(match.group(), page.relative_to(ROOT).as_posix())
    return {name: page for name, page in found.items() if name not in GROUPS | NO_MODULES.keys()}


def resolve(name: str) -> object:
    """Import the longest part of a name that is a module, and return what the rest names in it."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        module = ".".join(parts[:end])
        try:
            found: object = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                raise  # a library that is missing is not a name that is wrong
            continue
        for part in parts[end:]:
            annotated = getattr(found, "__annotations__", {})
            # A field without a default is no attribute of its class.
            found = annotated[part] if part in annotated else getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


def test_every_documented_name_can_be_imported() -> None:
    names = documented()
    assert len(names) > 50, "the pages were not found"
    wrong = {}
    for name, page in names.items():
        try:
            resolve(name)
        except (ModuleNotFoundError, AttributeError) as error:
            wrong[f"{page}: {name}"] = str(error)
    assert wrong == {}
