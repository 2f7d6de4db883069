"""Starts that are spread along a prediction: exactly unbiased, honest about their error, the same wherever they run."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, permutations, product
from math import factorial, prod
from typing import Any

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.control_variates import Starts, StartStates
from bpsearch.errors import InvalidArgumentError
from bpsearch.inference import judgement
from bpsearch.inference.cross_fitting import FOLDS
from bpsearch.inference.intervals import martingale_error
from bpsearch.inference.systematic import SystematicValuation, paired_error
from bpsearch.policies.chosen_starts import ChosenStarts, StartStrata, arrange
from bpsearch.policies.resolve import load
from bpsearch.search.systematic import SystematicStarts
from bpsearch.testing import check_search
from toy_envs import Ramp

CHANCES = np.array([0.5, 0.3, 0.2])  # of three starts
PAID = np.array([1.0, -2.0, 4.0])  # what comes of them
G, K = 2, 2


def dealings(turns=(0, 1)):
    """Every set of offered starts with every way to deal them, by the order of their numbers, and how likely it is."""
    ways = list(product(product(range(K), repeat=G), product(turns, repeat=G // 2), permutations(range(G * (K - 1)))))
    for offered in combinations_with_replacement(range(3), G * K):
        orders = factorial(G * K) / prod(factorial(count) for count in Counter(offered).values())
        for picks, swaps, rest in ways:
            dealt = arrange(np.arange(G * K), *map(np.array, (picks, range(G // 2), swaps, rest)))
            starts = np.array(offered)
            yield starts[dealt.indices], starts[dealt.others], orders * prod(CHANCES[list(offered)]) / len(ways)


def test_every_start_is_run_with_the_same_probability_and_further_starts_cancel():
    f = np.array([0.3, 5.0, -1.0])
    values, controls, total = np.zeros(G), np.zeros(G), 0.0
    for own, others, chance in dealings():
        values += chance * PAID[own]
        controls += chance * (f[own] - f[others].mean(axis=1))
        total += chance
    assert total == pytest.approx(1.0)
    assert values == pytest.approx(np.full(G, CHANCES @ PAID), abs=1e-12)
    assert controls == pytest.approx(np.zeros(G), abs=1e-12)


@pytest.mark.parametrize("slope", [0.0, 0.6], ids=["returns", "less a control variate"])
@pytest.mark.parametrize("paid", [PAID, np.sort(PAID)], ids=["a wrong order", "the right order"])
def test_the_error_is_on_average_not_too_small(paid, slope):
    """D + s²/K beside the variance of the mean of a group, both by enumeration; a batch has many groups."""
    f = slope * paid
    mean, square, squares, within = 0.0, 0.0, 0.0, 0.0
    for own, others, chance in dealings():
        values = paid[own] - f[own] + f[others].mean(axis=1)
        mean += chance * values.mean()
        square += chance * values.mean() ** 2
        squares += chance * np.mean(values**2)
        within += chance * (values[0] - values[1]) ** 2 / 2.0
    exact, plain = square - mean**2, (squares - mean**2) / G
    told = (within + (squares - mean**2) / K) / G
    assert exact <= told
    if not slope and paid is not PAID:
        assert exact < 0.8 * plain


def test_the_error_is_what_its_formula_says():
    values = np.random.default_rng(0).normal(size=27)
    pairs = [(first + at, first + at + FOLDS) for first in (0, 2 * FOLDS) for at in range(FOLDS)]
    within = np.mean([(values[i] - values[j]) ** 2 / 2.0 for i, j in pairs])
    spread = values.var(ddof=1)
    expected = (20 * (within + spread / 8) + 7 * spread) / 27**2
    assert paired_error([values], [1.0], [8]).variance == pytest.approx(expected, rel=1e-12)
    assert paired_error([values, values], [2.0, 2.0], [8, 8]).variance == pytest.approx(expected / 2.0, rel=1e-12)


def start_task() -> tuple[bps.TabularMDP, bps.SoftmaxTable]:
    """Pays by the start, and ends."""
    transitions = np.zeros((4, 2, 4))
    transitions[..., -1] = 1.0
    rewards = np.broadcast_to(np.append(PAID, 0.0)[:, None, None], transitions.shape)
    mdp = bps.TabularMDP(transitions, rewards, np.append(CHANCES, 0.0), np.arange(4) == 3, 1)
    return mdp, bps.SoftmaxTable(np.zeros((4, 2)))


def number(states: Any) -> np.ndarray:
    return np.asarray(states, float)


@pytest.mark.parametrize(
    "control",
    [
        pytest.param(StartStates(doubt=0.0), id="states"),
        pytest.param(Starts(doubt=0.0, proxy=number), id="numbers", marks=pytest.mark.slow),
    ],
)
def test_cross_fitted_values_are_unbiased(control, monkeypatch):
    """A group takes every offer and every dealing in turn; all other episodes stay as they are.

    Which of the two episodes has which stratum does not matter for their mean, and is left out to save time.
    """
    monkeypatch.setattr(judgement, "CAUTION", 0.0)
    mdp, policy = start_task()
    valuation = SystematicValuation(control_variates=(control,), together=G)
    state = valuation.init(policy, 1.0)
    first, second = (bps.sample(mdp, policy, n, seed=n, resets=K - 1) for n in (20, FOLDS * G))
    valued = valuation.value(state, first)
    expected, moved = 0.0, 0
    for own, others, chance in dealings(turns=(0,)):
        rows, further = np.array(second.observations)[:, 0], np.array(second.resets)
        rows[::FOLDS], further[::FOLDS] = own, others
        batch = replace(second, observations=rows[:, None], rewards=PAID[rows][:, None], resets=further)
        values = valuation.conclude(state, [valued, valuation.value(state, batch)]).batches[1][::FOLDS]
        expected += chance * values.mean()
        moved += np.any(values != PAID[own])
    assert expected == pytest.approx(CHANCES @ PAID, abs=1e-10)
    assert moved


def pay(number: Any) -> Any:
    return number + 2.0 * (number > 0.5)


class Bent(Ramp):
    """Pays with a bend."""

    def pay(self) -> float:
        return float(pay(self.start[0]))


class Forgetful(Bent):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=None)


def still(observation: Any) -> int:
    return 0


@dataclass(frozen=True, eq=False)
class Numbered(StartStrata):
    """The first number of a start is its promise."""

    apart: int = FOLDS
    together: int = 4

    def promise(self, group: int, observations: Any) -> np.ndarray:
        return np.asarray(observations, float).reshape(len(observations), -1)[:, 0]

    @property
    def parameters(self) -> np.ndarray:
        return np.zeros(0)


def test_samplers_run_one_of_every_few_neighbors():
    """In both samplers: each stratum of what a group was offered has one start, and pairs are neighbors."""
    for env, policy in ((Bent, load(still, Bent)), (bps.envs.acrobot(), bps.shipped_policy("acrobot"))):
        behavior = ChosenStarts(policy, Numbered())
        batch = bps.sample(env, behavior, 2 * FOLDS * 4, seed=1, resets=6)
        recorded = np.asarray(policy.log_prob(batch.observations[:, 0], batch.actions[:, 0]))
        np.testing.assert_allclose(np.asarray(batch.log_probs)[:, 0], recorded, atol=1e-5)  # nothing is weighted
        own, others = (np.asarray(part, float)[..., 0] for part in (batch.observations[:, 0], batch.resets))
        for first in (0, 3, 22):
            members = np.array(behavior.choice.members(first))
            assert len(members) == 4
            every = np.sort(np.concatenate([own[members], others[members].reshape(-1)]))
            assert len(np.unique(every)) == 28
            strata = np.searchsorted(every, own[members]) // 7
            assert sorted(strata) == [0, 1, 2, 3]
            assert {strata[0] // 2, strata[1] // 2} in ({0}, {1})
    few = bps.sample(Bent, ChosenStarts(load(still, Bent), Numbered()), 5, seed=1, first=3, resets=6)
    many = bps.sample(Bent, ChosenStarts(load(still, Bent), Numbered()), 31, seed=1, num_envs=3, resets=6)
    np.testing.assert_array_equal(few.observations, many.observations[3:8])
    np.testing.assert_array_equal(few.resets, many.resets[3:8])


def test_a_fold_teaches_itself_alone():
    """What cross-fitting rests on: another return in one fold changes the order of starts in that fold, and nowhere."""
    policy, search = load(still, Bent), SystematicStarts()
    assert search.folds == FOLDS
    assert SystematicValuation().together == search.together
    batch = bps.sample(Bent, policy, 100, seed=0, resets=3)
    rewards = np.array(batch.rewards)
    rewards[7] += 100.0
    slopes = [
        search.behavior(search.step(search.init(policy), told)[0]).starts.slopes
        for told in (batch, replace(batch, rewards=rewards))
    ]
    np.testing.assert_array_equal(np.any(slopes[0] != slopes[1], axis=1), np.arange(FOLDS) == 7 % FOLDS)
    assert search.behavior(search.step(search.init(policy), replace(batch, resets=None))[0]) is policy
    check_search(search, policy, [batch, batch.take(np.arange(40))])


def test_a_batch_with_missing_episodes_is_valued_by_those_before_it():
    policy, valuation = load(still, Bent), SystematicValuation(control_variates=(Starts(),))
    state = valuation.init(policy, 1.0)
    batches = [bps.sample(Bent, policy, n, seed=0, batch=n, resets=5) for n in (100, 200, 37, 300)]
    valued = [valuation.value(state, batch) for batch in batches]
    before, after = (valuation.conclude(state, part).batches for part in (valued[:3], valued))
    np.testing.assert_array_equal(before[2], after[2])
    assert before[2].var() < 0.5 * valued[2].returns.var()
    assert np.any(before[1] != after[1])


def test_what_the_promise_orders_is_removed():
    """400 groups of 20 with 10 offers each: what is left of the variance is about a tenth, ± 7% of that."""
    choice, rng = Numbered(together=20), np.random.default_rng(0)
    means = []
    for _ in range(400):
        starts = rng.uniform(-1.0, 1.0, (200, 2))
        dealt = choice.deal(choice.members(0), rng.random(20), starts)
        means.append(np.mean(pay(starts[dealt.indices, 0])))
    plain = pay(rng.uniform(-1.0, 1.0, 100_000)).var() / 20
    assert np.var(means) < 0.15 * plain
    assert abs(np.mean(means) - 0.5) < 4.0 * np.std(means) / 20.0


def test_a_study_goes_on_with_the_same_numbers(tmp_path):
    result = bps.evaluate(still, Bent, 230, "systematic", seed=0, resets=9)
    assert result.unbiased
    assert not result.data.weighted
    assert abs(result.value - 0.5) < 4.0 * result.std_error
    assert result.tight_savings > 3.0
    bps.evaluate(still, Bent, 100, "systematic", seed=0, resets=9, store=tmp_path / "s.db")
    again = bps.evaluate(still, Bent, 230, "systematic", seed=0, resets=9, store=tmp_path / "s.db")
    assert again.value == result.value
    with bps.Study.open(tmp_path / "s.db", policy=load(still, Bent)) as study:
        assert study.verify() == []


@pytest.mark.slow
def test_workers_give_the_same_bits():
    one, two = (bps.evaluate(still, Bent, 250, "systematic", seed=0, workers=workers) for workers in (None, 2))
    assert two.data.values.tobytes() == one.data.values.tobytes()


def test_what_cannot_be_done_is_said():
    plain = bps.evaluate(still, Forgetful, 200, "systematic", seed=0)
    assert "do not come again" in plain.unused[0]
    estimand = bps.Return(return_range=(-1.0, 3.0))
    result = bps.evaluate(still, Bent, 200, "systematic", seed=0, estimand=estimand)
    assert result.certified_interval() is None
    target = bps.Target(halfwidth=0.1, kind="certified")
    with pytest.raises(InvalidArgumentError, match="nothing can be certified here"):
        bps.evaluate(still, Bent, 200, "systematic", seed=0, estimand=estimand, target=target)
    with pytest.raises(InvalidArgumentError, match="together must be even"):
        SystematicStarts(together=3)


def test_without_a_choice_pairs_say_what_student_says():
    rng = np.random.default_rng(0)
    batches = [rng.normal(size=n) for n in (3000, 4000, 17, 1)]
    error, student = paired_error(batches, [1.0] * 4, [20] * 4), martingale_error(batches)
    assert error.variance == pytest.approx(student.variance * 1.05, rel=0.05)
    assert paired_error(batches, [1.0] * 4, [1] * 4).variance == pytest.approx(student.variance, rel=0.01)
    assert paired_error([np.ones(40)], [1.0], [20]) is None
