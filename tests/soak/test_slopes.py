"""The judgement of a soak, on figures whose slope is known."""

from __future__ import annotations

import random

import pytest

from tests.soak.slopes import settled, slope

MINUTES = [at / 12 for at in range(180)]


@pytest.mark.parametrize("growth", [0.0, 0.5, 3.0])
def test_a_slope_is_found_beneath_noise(growth: float) -> None:
    dice = random.Random(3)
    found = slope(MINUTES, [100 + growth * at + dice.gauss(0, 1) for at in MINUTES])
    assert found.estimate == pytest.approx(growth, abs=0.1)
    assert found.lower < growth < found.lower + 0.2


def test_noise_alone_is_not_surely_above_anything() -> None:
    dice = random.Random(4)
    assert slope(MINUTES, [dice.gauss(0, 50) for _ in MINUTES]).lower < 1


def test_the_first_third_is_warming_up() -> None:
    assert list(settled([1, 2, 3, 4, 5, 6])) == [3, 4, 5, 6]
