"""Which tests prove a rule, and when they are run, is read from their markers."""

from __future__ import annotations

from tools.obligations import citing

MODULE = """
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(10)]
SHARED = pytest.mark.meets("R3")
LATE = pytest.mark.nightly


@pytest.mark.ci
@pytest.mark.meets("R1", "R2")
def test_one(): ...


@SHARED
@LATE
class TestTwo:
    pytestmark = pytest.mark.s3

    @pytest.mark.meets("R4")
    def test_three(self): ...


def test_four(): ...
"""


def test_a_test_has_the_markers_of_its_module_and_its_class() -> None:
    found = {
        rule: (name, sorted(marks - {"meets", "timeout"})) for rule, name, marks in citing(MODULE)
    }
    assert found == {
        "R1": ("test_one", ["ci", "spark"]),
        "R2": ("test_one", ["ci", "spark"]),
        "R3": ("TestTwo", ["nightly", "s3", "spark"]),
        "R4": ("test_three", ["nightly", "s3", "spark"]),
    }


def test_a_module_may_give_one_marker_for_all_or_none() -> None:
    text = "import pytest\n{}\n@pytest.mark.meets('R1')\ndef test_one(): ...\n"
    one = "pytestmark = pytest.mark.nightly"
    assert [*citing(text.format(one))] == [("R1", "test_one", frozenset({"meets", "nightly"}))]
    assert [*citing(text.format(""))] == [("R1", "test_one", frozenset({"meets"}))]
