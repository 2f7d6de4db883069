"""The procedures that comparisons are measured beside are fair to those who use them."""

from itertools import product

import numpy as np
import pytest

from benchmarks.comparisons.beside import safe_factors, safe_test, separate_sequences, welch


@pytest.mark.parametrize("chance", [0.03, 0.5, 0.8])
def test_the_capital_of_the_safe_test_does_not_grow_under_equal_proportions(chance: float) -> None:
    """By enumeration of all outcomes of four pairs, and with a negative control."""

    def expected(first: float, second: float) -> np.ndarray:
        capital = np.zeros(4)
        for outcome in product((0.0, 1.0), repeat=8):
            x, y = np.array(outcome[:4]), np.array(outcome[4:])
            weight = np.prod(np.where(x, first, 1 - first)) * np.prod(np.where(y, second, 1 - second))
            capital += weight * np.cumprod(safe_factors(x, y))
        return capital

    equal = expected(chance, chance)
    assert equal[0] == pytest.approx(1.0)
    assert np.all(np.diff(equal) < 1e-12)
    different = expected(0.95, 0.05)
    assert different[-1] > 1.5


def test_procedures_find_what_is_plain() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.random(400) < chance for chance in (0.8, 0.4))
    one, other = x.astype(float), y.astype(float)
    assert welch(one, other, 0.95)
    assert not welch(other, one, 0.95)
    for found in (safe_test(one, other, 0.95), separate_sequences(one, other, 50, 0.95)):
        assert found[0]
        assert found[1] < 400
    assert not safe_test(other, one, 0.95)[0]
    assert not separate_sequences(other, one, 50, 0.95)[0]
