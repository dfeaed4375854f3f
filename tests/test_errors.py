"""The error tree: stable codes, remedies, and identity that survives Spark and pickling."""

from __future__ import annotations

import ast
import pickle
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import errors
from headrace.errors import BadPosition, HeadraceError, InvalidConfiguration, Locked, code_in

SRC = Path(__file__).parent.parent / "src" / "headrace"
CLASSES = sorted(errors.all_errors(), key=lambda error: error.__name__)

PARTS = {
    *("config", "storage", "changelog", "observe", "tables", "capture", "targets"),
    *("pipeline", "serving", "recovery", "control", "streams", "interfaces", "client"),
}


def test_every_code_has_one_meaning() -> None:
    counts = Counter(error.code for error in CLASSES)
    assert [code for code, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_error_has_a_code_a_remedy_an_exit_code_and_a_docstring(
    error: type[HeadraceError],
) -> None:
    if error is not HeadraceError:
        part, _, name = error.code.partition(".")
        assert part in PARTS
        assert re.fullmatch(r"[a-z_]+", name)
    assert re.fullmatch(r"[A-Z].*[.…]", error.remedy), "a remedy is a sentence"
    assert error.exit_code in range(1, 6)
    assert error.__dict__.get("__doc__"), "a docstring of its own"


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_an_error_pickles_with_its_facts_and_its_remedy(error: type[HeadraceError]) -> None:
    raised = error("Something happened", remedy="Do this.", table="orders", rows=3)
    back = pickle.loads(pickle.dumps(raised))
    assert type(back) is error
    assert str(back) == f"[headrace:{error.code}] Something happened, table=orders, rows=3"
    assert (back.message, back.remedy) == ("Something happened", "Do this.")
    assert back.facts == {"table": "orders", "rows": 3}


def test_a_remedy_of_the_class_holds_unless_another_is_given() -> None:
    assert Locked("Held").remedy == Locked.remedy
    assert Locked("Held", remedy="Wait.").remedy == "Wait."
    assert Locked.remedy != "Wait."


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
    assert [error.code for error in gathered.errors] == [BadPosition.code, Locked.code]


def test_the_tree_is_drawn_at_the_top_of_the_module() -> None:
    assert errors.__doc__ is not None
    drawn = set(re.findall(r"\b[A-Z]\w+", errors.__doc__.split("Spark carries")[0]))
    assert {error.__name__ for error in CLASSES} <= drawn


def calls_of_errors() -> Iterator[tuple[Path, ast.Call]]:
    names = {error.__name__ for error in CLASSES}
    for module in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):  # noqa: SIM102
                if node.func.id in names and node.args:
                    yield module, node


def test_messages_begin_with_a_capital_and_do_not_end_with_a_full_stop() -> None:
    wrong = []
    for module, call in calls_of_errors():
        message: object = call.args[0]
        parts = message.values if isinstance(message, ast.JoinedStr) else [message]
        first, last = parts[0], parts[-1]
        text = first.value if isinstance(first, ast.Constant) else None
        end = last.value if isinstance(last, ast.Constant) else None
        # A file's name may come first, and is written as it is.
        if isinstance(text, str) and re.match(r"[a-z]+( |$)", text):
            wrong.append(f"{module.relative_to(SRC)}:{call.lineno}: {text}")
        if isinstance(end, str) and end.endswith("."):
            wrong.append(f"{module.relative_to(SRC)}:{call.lineno}: {end}")
    assert wrong == []


def test_errors_are_declared_in_one_place() -> None:
    names = {error.__name__ for error in CLASSES}
    elsewhere = [
        f"{module.relative_to(SRC)}: {node.name}"
        for module in SRC.rglob("*.py")
        if SRC / "errors" not in module.parents
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id in names for base in node.bases)
    ]
    assert elsewhere == []
