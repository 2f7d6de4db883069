"""What people do to tell which of two policies is better: from independent episodes of each."""

import math
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import numpy as np
from scipy import stats

from bpsearch.inference.confidence_sequence import AsymptoticSequence, choose_tightest

Outcome = tuple[bool, int]  # whether the first was found to be better, and after how many episodes of each


def welch(x: np.ndarray, y: np.ndarray, level: float) -> bool:
    """The t-test for a number of episodes fixed in advance says that the first is better."""
    found = stats.ttest_ind(x, y, equal_var=False)
    return bool(found.pvalue < 1.0 - level and found.statistic > 0.0)


def separate_sequences(x: np.ndarray, y: np.ndarray, size: int, level: float) -> Outcome:
    """Two independent evaluations, each with its own anytime-valid interval, until those do not overlap."""
    one = other = AsymptoticSequence(choose_tightest(len(x), may_end=True))
    for at in range(0, len(x), size):
        one, other = one.add(x[at : at + size]), other.add(y[at : at + size])
        # Both hold at once with the level.
        first, second = (s.interval(1.0 - (1.0 - level) / 2.0) for s in (one, other))
        if first is not None and second is not None and (first[0] > second[1] or second[0] > first[1]):
            return first[0] > second[1], at + size
    return False, len(x)


def safe_test(x: np.ndarray, y: np.ndarray, level: float) -> Outcome:
    """An exact sequential test of two proportions, after every pair: the safe test of Turner, Ly and Grünwald (2024).

    The proportions are those of 1 in x and in y. Nothing limits the number of pairs.
    """
    factors = safe_factors(x, y)
    for n, capital in enumerate(np.cumsum(np.log(factors)).tolist()):
        if capital >= math.log(1.0 / (1.0 - level)):
            return x[: n + 1].sum() > y[: n + 1].sum(), n + 1
    return False, len(x)


def safe_factors(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What each pair multiplies the capital by: p(x) q(y) / (r(x) r(y)).

    p and q are the shares of successes before the pair, with half a success and half a failure more, and r = (p + q)/2.
    Under equal proportions the capital is a supermartingale, whatever they are.
    """
    before = np.arange(len(x)) + 1.0
    p, q = ((np.cumsum(z) - z + 0.5) / before for z in (x, y))
    r = (p + q) / 2.0
    first, second = np.where(x, p / r, (1.0 - p) / (1.0 - r)), np.where(y, q / r, (1.0 - q) / (1.0 - r))
    return np.asarray(first * second)


def lai_test(most: int, level: float) -> Callable[[np.ndarray, np.ndarray], Outcome] | None:
    """A sequential test of two proportions for at most so many pairs, if the package that has it is installed.

    It is Lai's, as calibrated by `sequentialized-barnard-tests` (Snyder and others, 2025), which takes it for more than
    500 pairs. Knowing when it must end it needs fewer pairs than a test that may go on forever. Each side has half of
    the errors.
    """
    if find_spec("sequentialized_barnard_tests") is None:
        return None
    tests = import_module("sequentialized_barnard_tests")
    test = tests.MirroredLaiTest(tests.Hypothesis.P0MoreThanP1, most, (1.0 - level) / 2.0)

    def decide(x: np.ndarray, y: np.ndarray) -> Outcome:
        test.reset()
        for n, (a, b) in enumerate(zip(x.astype(bool).tolist(), y.astype(bool).tolist(), strict=True)):
            decision = test.step(a, b).decision
            if decision is not tests.Decision.FailToDecide:
                return decision is tests.Decision.AcceptAlternative, n + 1
        return False, len(x)

    return decide
