"""The error tree: stable codes, remedies, and identity that survives Spark and pickling."""

from __future__ import annotations

import ast
import pickle
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from headrace import errors
from headrace.errors import BadPosition, HeadraceError, InvalidConfiguration, Locked, code_in
from tests.support.sources import SRC, all_of, modules, name, parsed

CLASSES = sorted(errors.all_errors(), key=lambda error: error.__name__)

PARTS = {
    *("config", "storage", "changelog", "observe", "tables", "capture", "targets"),
    *("pipeline", "serving", "recovery", "control", "streams", "interfaces", "client"),
}


def test_every_code_has_one_meaning() -> None:
    counts = Counter(error.code for error in CLASSES)
    assert [code for code, count in counts.items() if count > 1] == []


def test_every_error_has_a_code_a_remedy_an_exit_code_and_a_docstring() -> None:
    assert len(CLASSES) > 50
    wrong = {error.__name__: found for error in CLASSES if (found := [*_lacks(error)])}
    assert wrong == {}, all_of(wrong)


def _lacks(error: type[HeadraceError]) -> Iterator[str]:
    part, _, rest = error.code.partition(".")
    if error is not HeadraceError and not (part in PARTS and re.fullmatch(r"[a-z_]+", rest)):
        yield f"a code that names a part of ours: {error.code}"
    if not re.fullmatch(r"[A-Z].*[.…]", error.remedy):
        yield "a remedy that is a sentence"
    if error.exit_code not in range(1, 6):
        yield f"an exit code: {error.exit_code}"
    if not error.__dict__.get("__doc__"):
        yield "a docstring of its own"


def test_an_error_pickles_with_its_facts_and_its_remedy() -> None:
    wrong = {}
    for error in CLASSES:
        raised = error("Something happened", remedy="Do this.", table="orders", rows=3)
        back = pickle.loads(pickle.dumps(raised))
        found = (type(back), str(back), back.message, back.remedy, back.facts)
        expected = (
            error,
            f"[headrace:{error.code}] Something happened, table=orders, rows=3",
            "Something happened",
            "Do this.",
            {"table": "orders", "rows": 3},
        )
        if found != expected:
            wrong[error.__name__] = found
    assert wrong == {}, all_of(wrong)


def test_a_remedy_of_the_class_holds_unless_another_is_given() -> None:
    assert Locked("Held").remedy == Locked.remedy
    assert Locked("Held", remedy="Wait.").remedy == "Wait."
    assert Locked.remedy != "Wait."


@pytest.mark.parametrize(
    "error", [errors.BadTransform, errors.BadRequest, errors.ServerRefused, errors.TableError]
)
def test_the_remedy_of_an_error_with_many_causes_names_none_of_them(
    error: type[HeadraceError],
) -> None:
    for cause in ("report", "key column", "same version", "setting that the message names"):
        assert cause not in error.remedy


def test_a_code_is_found_again_in_the_text_that_spark_carries() -> None:
    text = f"PythonException: Traceback …\n  {BadPosition('Text is not a position', text='x')}\n"
    assert code_in(text) == "changelog.bad_position"
    assert code_in("an error of somebody else") is None


def test_the_first_of_several_codes_is_the_root_cause() -> None:
    text = f"{BadPosition('First')}\nDuring handling of the above …\n{Locked('Second')}"
    assert code_in(text) == BadPosition.code


def test_errors_of_a_configuration_are_gathered_in_order() -> None:
    found: list[HeadraceError] = [BadPosition("One"), Locked("Two")]
    gathered = pickle.loads(pickle.dumps(InvalidConfiguration.of(found)))
    assert gathered.message == "One; Two"
    # Several tables may have the same problem.
    found = [BadPosition("No key", table=table) for table in ("orders", "items")]
    both = InvalidConfiguration.of(found)
    assert both.message == "No key (table orders); No key (table items)"
    assert str(both) == f"[headrace:{InvalidConfiguration.code}] {both.message}"
    assert [error.code for error in gathered.errors] == [BadPosition.code, Locked.code]


def test_the_tree_is_drawn_at_the_top_of_the_module() -> None:
    assert errors.__doc__ is not None
    drawn = set(re.findall(r"\b[A-Z]\w+", errors.__doc__.split("Spark carries")[0]))
    assert {error.__name__ for error in CLASSES} <= drawn


@pytest.mark.slow
def test_no_text_names_a_page_by_a_path_that_an_installation_does_not_have() -> None:
    wrong = [
        f"{name(module)}: {text}"
        for module in modules(SRC)
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Constant) and isinstance(text := node.value, str)
        # Docstrings of modules are for readers of the code.
        if re.search(r"(?<![/\w])docs/\w", text)
        and text != ast.get_docstring(ast.parse(module.read_text()), clean=False)
    ]
    assert wrong == [], all_of(wrong)


@pytest.mark.slow
def test_messages_begin_with_a_capital_and_do_not_end_with_a_full_stop() -> None:
    names = {error.__name__ for error in CLASSES}
    calls = [
        (f"{name(module)}:{call.line}", call)
        for module in modules(SRC)
        for call in parsed(module).calls
        if call.name in names and not call.is_attribute
    ]
    assert len(calls) > 100
    # A file's name may come first, and is written as it is.
    wrong = [
        f"{where}: {call.begins}"
        for where, call in calls
        if call.begins is not None and re.match(r"[a-z]+( |$)", call.begins)
    ]
    wrong += [
        f"{where}: {call.ends}"
        for where, call in calls
        if call.ends is not None and call.ends.endswith(".")
    ]
    assert wrong == [], all_of(wrong)


@pytest.mark.slow
def test_errors_are_declared_in_one_place() -> None:
    names = {error.__name__ for error in CLASSES}
    elsewhere = [
        f"{name(module)}: {declared}"
        for module in modules(SRC)
        if module != SRC / "errors.py"
        for declared, bases in parsed(module).classes
        if bases & names
    ]
    assert elsewhere == [], all_of(elsewhere)
