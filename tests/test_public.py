"""The names a user sees."""

from __future__ import annotations

import importlib

import pytest

import headrace
from tests.support.children import python
from tests.support.sources import ROOT, all_of


def test_the_list_of_names_is_sorted_and_is_what_is_there() -> None:
    assert headrace.__all__ == sorted(headrace.__all__)
    assert set(headrace._MODULES) == set(headrace.__all__)
    assert set(headrace.__all__) <= set(dir(headrace))


def test_a_name_is_what_its_home_has() -> None:
    strange = [
        name
        for name in headrace.__all__
        if getattr(headrace, name)
        is not getattr(importlib.import_module(headrace._MODULES[name]), name)
    ]
    assert strange == [], all_of(strange)


def test_a_name_says_what_it_is() -> None:
    silent = [
        name for name in headrace.__all__ if not (getattr(headrace, name).__doc__ or "").strip()
    ]
    assert silent == [], all_of(silent)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'postgress'"):
        getattr(headrace, "postgress")  # noqa: B009 - mypy knows that it is not there


@pytest.mark.process
def test_importing_the_package_loads_nothing_heavy() -> None:
    program = (
        "import sys, headrace; "
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'pandas', 'rich', 'click', 'structlog'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = python("-c", program, env={"PYTHONPATH": str(ROOT / "src")}, check=True)
    assert done.stdout.strip() == "[]"


def test_the_docstring_draws_the_flow() -> None:
    assert headrace.__doc__ is not None
    assert "change log" in headrace.__doc__
