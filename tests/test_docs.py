"""
Documentation is held to the code: its programs run, its links lead somewhere, and what the
code offers or cites is written down.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

import click
import pytest

import headrace
from headrace.cli.main import headrace as command_line
from headrace.errors import all_errors
from headrace.runtime.model import PipelineState, TableState
from tests.support.children import python
from tests.support.sources import ROOT, all_of, modules, name, text
from tools.obligations import AFTERWARDS, UPHELD, proofs
from tools.reference import pages

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

FENCE = re.compile(
    r"(?P<note><!--[^\n]*-->\n)?^```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^```$", re.M | re.S
)
NOT_RUN = re.compile(r"<!-- not run: \S.*-->")
"""Stands before a Python block that is no program, with the reason."""

ON_SPARK = re.compile(r"<!-- on Spark (?P<version>\d+\.\d+)(?P<later> and later)? -->")
"""Stands on a page whose programs need that version."""


FIRST = "docs/quickstart.md"
"""The newcomer's first program; each of the others starts a JVM of its own as well."""

IN_CI = ("README.md", "docs/guides/delta.md", "examples/first_water.py")
"""What most readers try; the other programs are run by `make nightly`."""


@cache
def programs(page: Path) -> tuple[str, ...]:
    """Return the blocks of Python that are meant to be run."""
    return tuple(
        block["body"]
        for block in FENCE.finditer(text(page))
        if block["language"] == "python" and not NOT_RUN.search(block["note"] or "")
    )


@cache
def prose(page: Path) -> str:
    """Return the page without its code blocks."""
    return FENCE.sub("", text(page))


def in_tiers(paths: Iterable[Path]) -> list[object]:
    """Return parameters for a test: what a newcomer runs first always, the others later."""
    found: list[object] = []
    for path in paths:
        later = pytest.mark.ci if name(path) in IN_CI else pytest.mark.nightly
        marks = () if name(path) == FIRST else later
        found.append(pytest.param(path, id=name(path), marks=marks))
    return found


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
@pytest.mark.parametrize("page", in_tiers(filter(programs, PAGES)))
def test_the_programs_on_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    if named := ON_SPARK.search(text(page)):
        here, there = (
            [int(part) for part in text.split(".")[:2]]
            for text in (metadata.version("pyspark"), named["version"])
        )
        if here < there or (here > there and not named["later"]):
            pytest.skip(f"its programs are for Spark {named['version']}{named['later'] or ''}")
    program = tmp_path / "page.py"
    program.write_text("\n".join(programs(page)))
    # In a process of its own, as a reader would: it starts and stops its own Spark.
    done = run_python(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "a program for readers shows something"


@pytest.mark.spark
@pytest.mark.parametrize("example", in_tiers(sorted((ROOT / "examples").glob("*.py"))))
def test_an_example_runs_in_an_empty_folder(example: Path, tmp_path: Path) -> None:
    done = run_python(example, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def run_python(program: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return python(str(program), cwd=folder, seconds=240)


def test_the_first_program_of_a_newcomer_is_on_a_page() -> None:
    assert programs(ROOT / FIRST)


def test_python_on_a_page_is_valid() -> None:
    wrong = []
    for page in PAGES:
        for number, program in enumerate(programs(page)):
            try:
                compile(program, f"{name(page)}, block {number}", "exec")
            except SyntaxError as error:
                wrong.append(str(error))
    assert wrong == [], all_of(wrong)


# -- what is written about exists -------------------------------------------------------


def test_links_lead_somewhere() -> None:
    assert len(PAGES) > 30
    broken = [
        f"{name(page)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page))
        if not re.match(r"[a-z]+:", target) and not leads_somewhere(page, target)
    ]
    assert broken == [], all_of(broken)


def leads_somewhere(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    linked = (page.parent / path).resolve() if path else page
    return linked.exists() and (not anchor or anchor in anchors(linked))


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors that a page's headings get, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_make_targets_on_a_page_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    strange = {
        name(page): named - targets
        for page in PAGES
        if (named := set(re.findall(r"(?:`|^\$ )make ([a-z0-9-]+)", text(page), re.M))) - targets
    }
    assert strange == {}, all_of(strange)


def test_commands_on_a_page_exist() -> None:
    assert isinstance(command_line, click.Group)
    strange = {}
    for page in PAGES:
        # The rules page also speaks of what is not delivered yet, and says so.
        if page.name in ("rules.md", "CHANGELOG.md"):
            continue
        named = re.findall(r"(?:^|[`$/] ?|bin/)headrace ([a-z][a-z-]+)", text(page), re.M)
        if unknown := set(named) - set(command_line.commands):
            strange[name(page)] = unknown
    assert strange == {}, all_of(strange)


# -- what exists is written about -------------------------------------------------------


def test_every_public_name_is_in_the_reference() -> None:
    reference = (ROOT / "docs/reference/api.md").read_text()
    assert [n for n in headrace.__all__ if not re.search(rf"`(hr\.)?{n}\b", reference)] == []


def test_every_state_of_a_source_and_a_table_is_in_the_reference() -> None:
    reference = (ROOT / "docs/reference/api.md").read_text()
    code = "".join(
        (ROOT / "src/headrace" / module).read_text()
        for module in ("capture/recorder.py", "capture/process.py", "runtime/source_run.py")
    )
    moves = re.findall(r'(?:_move\(|StateReport\(|_state = |_enter\()"([a-z]+)"', code)
    states = {*moves, "resetting", "silent", *TableState, *PipelineState}
    assert {"full", "watching", "catching_up", "paused"} <= states
    assert [state for state in sorted(states) if f"`{state}`" not in reference] == []


def test_every_command_is_in_the_readme_or_the_docs() -> None:
    said = "".join(text(page) for page in PAGES)
    assert [verb for verb in command_line.commands if f"headrace {verb}" not in said] == []


@pytest.mark.slow
def test_generated_pages_are_current() -> None:
    stale = [name(path) for path, made in pages() if path.read_text() != made]
    assert stale == [], "run: make reference"


@pytest.mark.slow
def test_every_rule_of_this_stage_has_a_test_that_proves_it() -> None:
    proved = {proof.rule for proof in proofs()}
    assert [rule for rule in UPHELD if rule not in proved] == []


@pytest.mark.slow
def test_every_rule_of_this_stage_is_proved_before_a_change_lands() -> None:
    # What only the night proves is found broken when others have built upon it.
    proved = {proof.rule for proof in proofs() if not proof.marks & AFTERWARDS}
    assert [rule for rule in UPHELD if rule not in proved] == []


def test_every_error_code_is_documented() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text()
    missing = [error.code for error in all_errors() if f"`{error.code}`" not in page]
    assert missing == [], all_of(missing)


CITED = re.compile(r"\b([RS]\d{1,2}[a-g]?|RH|H[0-5]|P[1-8])\b")


@pytest.mark.slow
def test_every_rule_that_is_cited_can_be_looked_up() -> None:
    internals = ROOT / "docs/internals"
    rules = "".join((internals / page).read_text() for page in ("rules.md", "how-it-is-tested.md"))
    known = {*re.findall(r"^\*\*([RSHP]\d{1,2}[a-g]?)\.", rules, re.M), "RH"}
    cited: dict[str, str] = {}
    for path in (*modules(ROOT / "src"), *modules(ROOT / "tests")):
        if path != Path(__file__).resolve():
            cited |= dict.fromkeys(CITED.findall(text(path)), name(path))
    unknown = {rule: where for rule, where in cited.items() if rule not in known}
    assert unknown == {}, all_of(unknown)


def test_every_rule_says_whether_it_is_upheld_today() -> None:
    rules = (ROOT / "docs/internals/rules.md").read_text()
    said = re.findall(r"^\*\*([RSH]\d{1,2}[a-g]?)\.[^\n]*\n\*(Upheld|From|In part)\b", rules, re.M)
    assert [rule for rule, _ in said] == re.findall(r"^\*\*([RSH]\d{1,2}[a-g]?)\.", rules, re.M)


def test_every_invariant_that_is_cited_is_in_the_architecture() -> None:
    page = (ROOT / "docs/internals/architecture.md").read_text().split("## Invariants")[1]
    known = set(re.findall(r"^(\d+)\. ", page, re.M))
    assert len(known) == 10
    cited = {
        f"{name(path)}: {number}"
        for path in modules(ROOT / "src")
        for listed in re.findall(r"[Ii]nvariants? (\d+(?:(?:, | and )\d+)*)", text(path))
        for number in re.findall(r"\d+", listed)
        if number not in known
    }
    assert cited == set(), all_of(cited)


# -- nothing of one machine -------------------------------------------------------------

_OF_ONE_MACHINE = re.compile(r"(?<![\w.~-])/(?:work/\w|root/|home/(?!you)\w)")
_REGISTRY = re.compile(
    r"://[^/\s\"']*(?:pypi|pythonhosted|artifact|nexus|jfrog|registry|mirror)[^/\s\"']*", re.I
)


@pytest.mark.process
def test_no_file_holds_a_path_of_one_machine_or_the_address_of_a_registry() -> None:
    found = []
    for path in tracked():
        if path == Path(__file__).resolve():
            continue
        try:
            held = text(path)
        except UnicodeDecodeError:
            continue
        for pattern in (_OF_ONE_MACHINE, _REGISTRY):
            found += [f"{name(path)}: {match[0]}" for match in pattern.finditer(held)]
    assert found == [], all_of(found)
