"""Which starts to run: exactly unbiased whatever chooses, the same for any number of workers, and near failures."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.errors import InvalidArgumentError, InvalidTrajectoriesError
from bpsearch.estimators import importance_sampling
from bpsearch.inference.valuation import Valuation
from bpsearch.policies.chosen_starts import ChosenStarts, StartWeights
from bpsearch.policies.resolve import load
from bpsearch.search.starts import StartSearch
from bpsearch.testing.enumeration import enumerate_trajectories, random_mdp, random_policy
from toy_envs import Ramp


@dataclass(frozen=True, eq=False)
class Numbered(StartWeights):
    """u is the first number of the start, squared."""

    candidates: int = 3
    uniform_share: float = 0.25

    def weigh(self, observations: Any) -> np.ndarray:
        return np.asarray(observations, float).reshape(len(observations), -1)[:, 0] ** 2

    @property
    def parameters(self) -> np.ndarray:
        return np.zeros(0)


@pytest.mark.parametrize("candidates", [2, 3])
def test_chosen_starts_are_unbiased(candidates):
    """Every set of offered starts, every choice among them and every trajectory from there, in turn."""
    mdp = random_mdp(3, (4, 2, 2), 1.0)
    policy = random_policy(3, mdp)
    everything = enumerate_trajectories(mdp)
    batch, chances = everything.under(policy), everything.probabilities(policy.probabilities)
    starts = np.flatnonzero(mdp.initial)
    assert len(starts) > 1
    choice, valuation = Numbered(candidates), Valuation(importance_sampling)
    first, state = np.asarray(batch.observations)[:, 0], valuation.init(policy, 1.0)
    total, largest = 0.0, 0.0
    for offered in product(starts, repeat=candidates):
        bounds = np.concatenate([[0.0], np.cumsum(choice.probabilities(np.array(offered)))])
        assert bounds[-1] == pytest.approx(1.0)
        for low, high, start in zip(bounds[:-1], bounds[1:], offered, strict=True):
            index, log_weight = choice.choose((low + high) / 2.0, np.array(offered))
            assert offered[index] == start
            log_probs = np.array(batch.log_probs)
            log_probs[:, 0] -= log_weight  # as samplers record it
            told = bps.Trajectories(batch.observations, batch.actions, batch.rewards, log_probs, batch.mask)
            from_there = np.where(first == start, chances, 0.0) / mdp.initial[start]
            chance = np.prod(mdp.initial[list(offered)]) * (high - low)
            total += chance * float(from_there @ valuation.value(state, told).values)
            largest = max(largest, np.exp(log_weight))
    assert total == pytest.approx(bps.oracle.value(mdp, policy), abs=1e-10)
    assert 1.0 < largest <= ChosenStarts(policy, choice).weight_bound


class Forgetful(Ramp):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=None)


FAILURE = "return < -0.985"
CHANCE = (1.0 - 0.985 ** (1.0 / 3.0)) / 2.0  # a quarter of a percent


def still(observation: Any) -> int:
    return 0


def test_samplers_run_the_start_that_was_chosen_and_record_its_weight():
    """In both samplers: what the recorded weights say is what the choice says; in the mean they are 1."""
    mdp = random_mdp(3, (4, 2, 2), 1.0)
    table = random_policy(3, mdp)
    for env, policy in ((Ramp, load(still, Ramp)), (mdp, table)):
        behavior = ChosenStarts(policy, Numbered(5))
        plain, chosen = (bps.sample(env, who, 400, seed=1) for who in (policy, behavior))
        recorded = np.asarray(chosen.log_probs)[:, 0]
        weights = np.exp(np.asarray(policy.log_prob(chosen.observations[:, 0], chosen.actions[:, 0])) - recorded)
        assert weights.max() <= behavior.weight_bound
        assert weights.mean() == pytest.approx(1.0, abs=4.0 * weights.std() / 20.0)
        sizes = [np.mean(np.asarray(b.observations, float).reshape(400, -1)[:, 0] ** 2) for b in (plain, chosen)]
        assert sizes[1] > 1.2 * sizes[0]
        part = bps.sample(env, behavior, 400, seed=1)
        np.testing.assert_array_equal(part.log_probs, chosen.log_probs)
    few = bps.sample(Ramp, ChosenStarts(load(still, Ramp), Numbered(5)), 5, seed=1, first=3)
    many = bps.sample(Ramp, ChosenStarts(load(still, Ramp), Numbered(5)), 9, seed=1, num_envs=3)
    np.testing.assert_array_equal(few.observations, many.observations[3:8])
    np.testing.assert_array_equal(few.log_probs, many.log_probs[3:8])


def test_a_rare_failure_is_found_by_its_starts(tmp_path):
    result = bps.evaluate(still, Ramp, 800, "starts", failure=FAILURE, seed=0)
    assert result.unbiased
    assert result.savings > 5.0
    assert abs(result.value - CHANCE) < 4.0 * result.std_error
    assert result.events > 20
    stored = bps.evaluate(still, Ramp, 400, "starts", failure=FAILURE, seed=0, store=tmp_path / "s.db")
    assert stored.episodes == 400
    assert (
        bps.evaluate(still, Ramp, 800, "starts", failure=FAILURE, seed=0, store=tmp_path / "s.db").value == result.value
    )


@pytest.mark.slow
def test_workers_give_the_same_bits():
    one = bps.evaluate(still, Ramp, 300, "starts", failure=FAILURE, seed=0)
    two = bps.evaluate(still, Ramp, 300, "starts", failure=FAILURE, seed=0, workers=2)
    assert two.data.values.tobytes() == one.data.values.tobytes()
    assert two.data.log_weights.tobytes() == one.data.log_weights.tobytes()
    assert one.data.weighted


def test_nothing_is_chosen_where_starts_tell_nothing():
    def by_chance(batch: bps.Trajectories) -> np.ndarray:
        return np.asarray(batch.observations[:, 0, 0] * 1e7 % 1.0 < 0.05)

    result = bps.evaluate(still, Ramp, 500, "starts", failure=by_chance, seed=0)
    assert not result.data.weighted


def test_what_cannot_be_done_is_said():
    with pytest.raises(InvalidArgumentError, match="looks for starts near an event, and no event"):
        bps.evaluate(still, Ramp, 200, "starts", seed=0)
    with pytest.raises(InvalidTrajectoriesError, match=r"does not start again where .* 'mc' for instance"):
        bps.evaluate(still, Forgetful, 800, "starts", failure=FAILURE, seed=0)
    with pytest.raises(InvalidArgumentError, match="candidates"):
        StartSearch(candidates=1)
    with pytest.raises(InvalidArgumentError, match="uniform_share"):
        StartSearch(uniform_share=0.0)
