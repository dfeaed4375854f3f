"""
Documentation is held to the code: its programs run, its links lead somewhere, and what the
code offers or cites is written down.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import click
import pytest

import headrace
from headrace.errors import all_errors
from headrace.interfaces.cli.main import headrace as command_line
from tools.obligations import UPHELD, proofs
from tools.reference import pages

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

FENCE = re.compile(
    r"(?P<note><!--[^\n]*-->\n)?^```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^```$", re.M | re.S
)
NOT_RUN = re.compile(r"<!-- not run: \S.*-->")
"""Stands before a Python block that is no program, with the reason."""

ON_SPARK = re.compile(r"<!-- on Spark (?P<version>\d+\.\d+)(?P<later> and later)? -->")
"""Stands on a page whose programs need that version."""


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> Iterator[str]:
    """Yield the code blocks of one language that are meant to be run."""
    for block in FENCE.finditer(page.read_text()):
        if block["language"] == language and not NOT_RUN.search(block["note"] or ""):
            yield block["body"]


def prose(page: Path) -> str:
    """Return the page without its code blocks."""
    return FENCE.sub("", page.read_text())


def tracked() -> list[Path]:
    """Return the files of the project, without what tools leave in it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / line for line in listed.stdout.split("\0") if line and (ROOT / line).is_file()]


# -- programs ---------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize("page", [p for p in PAGES if any(blocks(p, "python"))], ids=name)
def test_the_programs_on_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    if named := ON_SPARK.search(page.read_text()):
        here, there = (
            [int(part) for part in text.split(".")[:2]]
            for text in (metadata.version("pyspark"), named["version"])
        )
        if here < there or (here > there and not named["later"]):
            pytest.skip(f"its programs are for Spark {named['version']}{named['later'] or ''}")
    program = tmp_path / "page.py"
    program.write_text("\n".join(blocks(page, "python")))
    # In a process of its own, as a reader would: it starts and stops its own Spark.
    done = run_python(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "a program for readers shows something"


@pytest.mark.spark
@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=name)
def test_an_example_runs_in_an_empty_folder(example: Path, tmp_path: Path) -> None:
    done = run_python(example, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def run_python(program: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(program)], cwd=folder, capture_output=True, text=True, timeout=240
    )


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_on_a_page_is_valid(page: Path) -> None:
    for number, block in enumerate(blocks(page, "python")):
        compile(block, f"{name(page)}, block {number}", "exec")


# -- what is written about exists -------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page's headings get, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_targets_on_a_page_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:`|^\$ )make ([a-z0-9-]+)", page.read_text(), re.M))
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_on_a_page_exist(page: Path) -> None:
    # The rules page also speaks of what is not delivered yet, and says so.
    text = page.read_text()
    if page.name in ("rules.md", "CHANGELOG.md"):
        text = ""
    named = set(re.findall(r"(?:^|[`$/] ?|bin/)headrace ([a-z][a-z-]+)", text, re.M))
    assert isinstance(command_line, click.Group)
    assert named <= set(command_line.commands)


# -- what exists is written about -------------------------------------------------------


def test_every_public_name_is_in_the_reference() -> None:
    reference = (ROOT / "docs/reference/api.md").read_text()
    assert [n for n in headrace.__all__ if not re.search(rf"`(hr\.)?{n}\b", reference)] == []


def test_every_command_is_in_the_readme_or_the_docs() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert [verb for verb in command_line.commands if f"headrace {verb}" not in text] == []


def test_generated_pages_are_current() -> None:
    for path, text in pages():
        assert path.read_text() == text, "run: make reference"


def test_every_rule_of_this_stage_has_a_test_that_proves_it() -> None:
    proved = proofs()
    assert [rule for rule in UPHELD if rule not in proved] == []


def test_every_error_code_is_documented() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text()
    assert [error.code for error in all_errors() if f"`{error.code}`" not in page] == []


CITED = re.compile(r"\b([RS]\d{1,2}[a-g]?|RH|H[0-5]|P[1-8])\b")


def test_every_rule_that_is_cited_can_be_looked_up() -> None:
    rules = (ROOT / "docs/rules.md").read_text() + (ROOT / "docs/how-it-is-tested.md").read_text()
    known = {*re.findall(r"^\*\*([RSHP]\d{1,2}[a-g]?)\.", rules, re.M), "RH"}
    cited: dict[str, str] = {}
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")):
        if path != Path(__file__):
            cited |= dict.fromkeys(CITED.findall(path.read_text()), name(path))
    assert {rule: where for rule, where in cited.items() if rule not in known} == {}


def test_every_rule_says_whether_it_is_upheld_today() -> None:
    rules = (ROOT / "docs/rules.md").read_text()
    said = re.findall(r"^\*\*([RSH]\d{1,2}[a-g]?)\.[^\n]*\n\*(Upheld|From|In part)\b", rules, re.M)
    assert [rule for rule, _ in said] == re.findall(r"^\*\*([RSH]\d{1,2}[a-g]?)\.", rules, re.M)


def test_every_invariant_that_is_cited_is_in_the_architecture() -> None:
    page = (ROOT / "docs/architecture.md").read_text().split("## Invariants")[1]
    known = set(re.findall(r"^(\d+)\. ", page, re.M))
    assert len(known) == 10
    for path in (ROOT / "src").rglob("*.py"):
        for listed in re.findall(r"[Ii]nvariants? (\d+(?:(?:, | and )\d+)*)", path.read_text()):
            assert set(re.findall(r"\d+", listed)) <= known, path


# -- nothing of one machine -------------------------------------------------------------

_OF_ONE_MACHINE = re.compile(r"(?<![\w.~-])/(?:work/\w|root/|home/(?!you)\w)")
_REGISTRY = re.compile(
    r"://[^/\s\"']*(?:pypi|pythonhosted|artifact|nexus|jfrog|registry|mirror)[^/\s\"']*", re.I
)


def test_no_file_holds_a_path_of_one_machine_or_the_address_of_a_registry() -> None:
    found = []
    for path in tracked():
        if path == Path(__file__):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for pattern in (_OF_ONE_MACHINE, _REGISTRY):
            found += [f"{name(path)}: {match[0]}" for match in pattern.finditer(text)]
    assert found == []
