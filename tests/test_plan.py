"""plan(): the split of the variance, proven by enumeration; the numbers of episodes; and what a pilot cannot tell."""

import dataclasses
import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from scipy import stats

import bpsearch as bps
from bpsearch.calls.plan import grouped_values
from bpsearch.errors import InvalidArgumentError, PolicyFileError, SpaceMismatchError
from bpsearch.inference.cross_fitting import FOLDS
from bpsearch.inference.intervals import episodes_for
from bpsearch.inference.pilot import judge
from bpsearch.inference.variance_split import split_variance
from bpsearch.policies.resolve import load
from enumeration import random_mdp, random_model, random_policy
from toy_envs import PaysAction, Toy

CARTPOLE = Path(__file__).parent / "agents" / "ppo-cartpole-v1.zip"
CASES = [(0, (3, 2, 2), 0.9), (1, (2, 2, 3), 1.0), (2, (2, 3, 2), 1.0)]


class Cells:
    """All that can happen in an MDP: of every cell of the environment's random numbers U, every sequence of actions.

    The sampler draws a uniform number for the start and one for every step; a cell is a product of intervals within
    which the start, and every outcome of every action in every state, is the same.
    """

    def __init__(self, mdp: bps.TabularMDP, policy: bps.SoftmaxTable, model: bps.oracle.QFunction) -> None:
        starts = cells_of(np.cumsum(mdp.initial))
        steps = cells_of(np.cumsum(mdp.transitions, axis=-1).ravel())
        self.probabilities, self.means, self.squares, self.luck = [], [], [], []
        for cell in itertools.product(starts, *[steps] * mdp.horizon):
            start = int(np.searchsorted(np.cumsum(mdp.initial), cell[0].mean(), side="right"))
            numbers = [interval.mean() for interval in cell[1:]]
            paths = list(self.paths(mdp, policy, model, start, numbers))
            weights = np.array([weight for weight, _, _ in paths])
            returns = np.array([total for _, total, _ in paths])
            self.probabilities.append(np.prod([interval[1] - interval[0] for interval in cell]))
            self.means.append(weights @ returns)
            self.squares.append(weights @ returns**2)
            self.luck.append(weights @ [luck for _, _, luck in paths])

    def paths(self, mdp, policy, model, start, numbers):
        """The probability of each sequence of actions, its return, and its sum of γ^t (q̂ − v̂)."""
        for actions in itertools.product(range(mdp.actions), repeat=mdp.horizon):
            state, weight, total, luck, over = start, 1.0, 0.0, 0.0, False
            for t, (action, number) in enumerate(zip(actions, numbers, strict=True)):
                weight *= policy.probabilities[state, action]
                if over:
                    continue
                successor = int(np.searchsorted(np.cumsum(mdp.transitions[state, action]), number, side="right"))
                total += mdp.discount**t * mdp.rewards[state, action, successor]
                luck += mdp.discount**t * (model.q[t, state, action] - model.v[t, state])
                state, over = successor, bool(mdp.terminal[successor])
            yield weight, total, luck


def cells_of(boundaries: np.ndarray) -> np.ndarray:
    """The intervals of [0, 1] between these numbers."""
    points = np.unique(np.concatenate([[0.0, 1.0], boundaries[boundaries < 1.0 - 1e-12]]))
    return np.stack([points[:-1], points[1:]], axis=1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_no_choice_of_actions_can_remove(case):
    """By enumeration: the parts sum to the oracle's variance; given U control variates have mean 0 in every cell.

    So a value that they give has the mean E[g|U], its variance is at least Var[E[g|U]], and so is the oracle's with the
    true q.
    """
    mdp = random_mdp(*case)
    policy = random_policy(1, mdp)
    cells = Cells(mdp, policy, random_model(3, mdp, policy))
    probabilities, means = np.array(cells.probabilities), np.array(cells.means)
    assert probabilities.sum() == pytest.approx(1.0)
    assert probabilities @ means == pytest.approx(bps.oracle.value(mdp, policy), abs=1e-10)
    rest = probabilities @ means**2 - (probabilities @ means) ** 2
    actions = probabilities @ (np.array(cells.squares) - means**2)
    assert rest + actions == pytest.approx(bps.oracle.variance(mdp, policy, None, "mc"), abs=1e-10)
    np.testing.assert_allclose(cells.luck, 0.0, atol=1e-10)
    perfect = bps.oracle.variance(mdp, policy, None, "as", model=bps.oracle.q_function(mdp, policy))
    assert 0.0 < rest <= perfect + 1e-10


@pytest.mark.parametrize(
    "case", [CASES[0], *(pytest.param(case, marks=pytest.mark.slow) for case in CASES[1:])], ids=str
)
def test_pairs_of_the_compiled_sampler_have_the_enumerated_split(case):
    """z-tests at a false-alarm rate of 1e-6 each, on 4000 pairs; also of the values that `auto` makes."""
    mdp = random_mdp(*case)
    policy = random_policy(1, mdp)
    cells = Cells(mdp, policy, random_model(3, mdp, policy))
    probabilities, means = np.array(cells.probabilities), np.array(cells.means)
    rest = probabilities @ means**2 - (probabilities @ means) ** 2
    actions = probabilities @ (np.array(cells.squares) - means**2)
    batch = bps.sample(mdp, policy, 8000, seed=5, repeats=2)
    found = split_variance(batch.returns(mdp.discount).reshape(-1, 2))
    for value, exact, error in zip((found.start, found.action), (rest, actions), found.std_errors, strict=False):
        assert abs(value - exact) < 4.9 * error < 0.3 * (rest + actions)
    valued = split_variance(grouped_values(policy, mdp.discount, batch, 2))
    assert abs(valued.start - rest) < 4.9 * valued.std_errors[0]
    assert valued.action < found.action  # what auto is there for


def test_pairs_without_action_noise_are_twins():
    """Nothing but the actions differs within a pair, compiled and through Gymnasium."""
    mdp = random_mdp(4, (3, 2, 4), 1.0)
    always = bps.SoftmaxTable(np.where(np.arange(2) == 0, 0.0, -np.inf) * np.ones((3, 1)))
    for env in (mdp, bps.GymnasiumSampler(partial(bps.envs.GymnasiumEnv, mdp))):
        returns = bps.sample(env, always, 60, seed=1, repeats=3).returns().reshape(-1, 3)
        assert (returns == returns[:, :1]).all()
        assert len(np.unique(returns[:, 0])) > 5


def test_repeats_in_gymnasium_share_the_seed_and_nothing_else():
    policy = load(CARTPOLE, "CartPole-v1")
    pairs = bps.sample("CartPole-v1", policy, 8, seed=3, repeats=2)
    single = bps.sample("CartPole-v1", policy, 8, seed=3)
    np.testing.assert_array_equal(pairs.observations[0::2, 0], pairs.observations[1::2, 0])
    assert len(np.unique(pairs.observations[0::2, 0], axis=0)) == 4
    assert (pairs.actions[0::2] != pairs.actions[1::2]).any(axis=1).all()
    steps = min(pairs.mask.shape[1], single.mask.shape[1])
    np.testing.assert_array_equal(pairs.take(np.arange(0, 8, 2)).rewards[:, :steps], single.rewards[0::2, :steps])
    with pytest.raises(InvalidArgumentError, match="episodes must be a multiple of repeats = 2, got 7"):
        bps.sample("CartPole-v1", policy, 7, repeats=2)


def test_an_episode_has_no_say_in_the_value_of_its_twin():
    """Both are in one fold, whatever the folds: with another return of the one, the value of the other stays."""
    mdp, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    batch = bps.sample(mdp, policy, 4 * FOLDS, seed=0, repeats=2)
    before = grouped_values(policy, 1.0, batch, 2)
    for pair in (0, FOLDS + 1):
        rewards = batch.rewards.copy()
        rewards[2 * pair + 1, 0] += 1000.0
        fields = (batch.observations, batch.actions, rewards, batch.log_probs, batch.mask, batch.final_observations)
        after = grouped_values(policy, 1.0, bps.Trajectories(*fields), 2)
        assert after[pair, 0] == before[pair, 0]
        assert (after != before).sum() > 2 * FOLDS


def synthetic(rng, pairs, start=9.0, action=1.0, left=0.2):
    """Returns of known parts, and values that keep a share of the actions' part."""
    common = rng.normal(50.0, np.sqrt(start), (pairs, 1))
    noise = rng.normal(0.0, np.sqrt(action), (pairs, 2))
    return common + noise, common + np.sqrt(left) * noise


@pytest.mark.slow
def test_the_intervals_of_a_plan_hold_as_often_as_they_say():
    """400 pilots of 200 episodes; intervals that hold in 93% fail here once in a million times."""
    rng = np.random.default_rng(0)
    held = dict.fromkeys(("share", "savings", "plain", "auto"), 0)
    total, kept = 10.0, 9.2
    exact = {"share": 0.1, "savings": total / kept}
    exact |= {"plain": episodes_for(total, 0.2, 0.95), "auto": episodes_for(kept, 0.2, 0.95)}
    for _ in range(400):
        plan = judge(*synthetic(rng, 100), halfwidth=0.2)
        found = (plan.action_share, plan.savings, plan.monte_carlo_episodes, plan.auto_episodes)
        for name, quantity in zip(held, found, strict=True):
            held[name] += quantity.low <= exact[name] <= quantity.high
    for name, count in held.items():
        assert stats.binom.ppf(1e-6, 400, 0.93) <= count, name
        assert count <= 399, name


def test_the_numbers_of_a_plan():
    returns, values = synthetic(np.random.default_rng(1), 5000, action=9.0)
    plan = judge(returns, values, relative_halfwidth=0.001, level=0.9)
    assert plan.variance == pytest.approx(np.var(returns), rel=0.01)
    assert plan.halfwidth == pytest.approx(0.001 * values.mean())
    assert plan.monte_carlo_episodes.estimate == pytest.approx(
        episodes_for(plan.variance, 0.001 * returns.mean(), 0.9), abs=1
    )
    assert plan.std_error == pytest.approx(np.std(values.mean(axis=1), ddof=1) / np.sqrt(5000))
    assert plan.largest_savings == pytest.approx(1.0 / (1.0 - plan.action_share.high))
    assert plan.action_share.low < 0.5 < plan.action_share.high
    ratio = plan.monte_carlo_episodes.estimate / plan.auto_episodes.estimate
    assert ratio == pytest.approx(plan.savings.estimate, rel=0.01)


@pytest.mark.parametrize(("variance", "half_width"), [(1.0, 10.0), (1.0, 1.0), (4.0, 0.5), (100.0, 0.31), (0.0, 1.0)])
def test_the_smallest_number_of_episodes(variance, half_width):
    counts = np.arange(2, 100_000)
    enough = stats.t.ppf(0.975, counts - 1) * np.sqrt(variance / counts) <= half_width
    assert episodes_for(variance, half_width, 0.95) == counts[enough][0]


def test_a_halfwidth_that_no_number_of_episodes_reaches_is_refused():
    with pytest.raises(InvalidArgumentError, match="half_width must be large enough"):
        episodes_for(1.0, 1e-200, 0.95)


@pytest.mark.slow
def test_actions_make_all_the_variance():
    """4x4: the environment is deterministic and has one start; the numbers against the oracle's and a real run's."""
    mdp, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    plan = bps.plan(policy, mdp, halfwidth=0.5, seed=0)
    assert plan.action_share.low > 0.9
    assert plan.action_share.high == 1.0
    assert not plan.no_gain
    needed = episodes_for(bps.oracle.variance(mdp, policy, None, "mc"), 0.5, 0.95)
    assert plan.monte_carlo_episodes.low < needed < plan.monte_carlo_episodes.high
    enough = bps.evaluate(policy, mdp, int(plan.auto_episodes.estimate), seed=0)
    assert enough.episodes < needed / 10
    assert 0.8 < enough.error.half_width(0.95) / 0.5 < 1.3  # the farthest return of more episodes is farther
    wide = bps.plan(policy, mdp, halfwidth=2.6, seed=0)
    assert wide.auto_episodes.estimate == wide.pilot == 200, "fewer would teach less"
    real = bps.evaluate(policy, mdp, 200, seed=0)
    assert 0.3 < plan.savings.estimate / real.tight_savings < 3.0  # of a thousand, from 200 episodes
    assert abs(plan.value - bps.oracle.value(mdp, policy)) < 4.9 * plan.std_error
    assert plan.value != real.value, "another random stream"
    assert str(bps.plan(policy, mdp, halfwidth=0.5, seed=0)) == str(plan)


def test_the_agent_that_gains_and_the_agent_that_does_not():
    agent = bps.plan(CARTPOLE, "CartPole-v1", 100, relative_halfwidth=0.1, seed=0)
    assert agent.action_share.low > 0.5
    assert agent.savings.low > 1.2
    assert agent.auto_episodes.estimate < agent.monte_carlo_episodes.estimate
    start = bps.plan(CARTPOLE.with_name("ppo-pendulum-v1.zip"), "Pendulum-v1", 60, seed=0)
    assert start.action_share.high < 0.5
    assert start.largest_savings is None, "starts save as well, and more with more episodes"
    assert (start.halfwidth, start.monte_carlo_episodes, start.auto_episodes) == (None, None, None)


class Starts(Toy):
    """Pays a number that the start decides; the actions pay `weight` times themselves."""

    def __init__(self, weight: float = 0.0) -> None:
        super().__init__()
        self.weight = weight
        self.pay = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        self.pay = float(self.np_random.normal())
        return observation, info

    def reward(self, action: Any) -> float:
        return self.pay + self.weight * float(action)


class Lawless(Starts):
    """Takes its seeds from elsewhere."""

    seeds = itertools.count()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=next(self.seeds))


def policy_for(env: type[gymnasium.Env[Any, Any]]) -> bps.Policy:
    return bps.CategoricalMLP.init(0, env.observation_space, env.action_space)


def test_starts_make_all_the_variance():
    plan = bps.plan(policy_for(Starts), partial(Starts, 0.01), 60, halfwidth=0.1, seed=0)
    assert plan.no_gain == "starts and the environment make at least 100% of the variance"
    assert plan.monte_carlo_episodes is not None
    assert "nothing to gain over Monte Carlo, because starts" in str(plan)
    assert "of auto" not in plan.lines[-1]


def test_a_deterministic_policy():
    policy = bps.FunctionPolicy(
        lambda observation: 0, (Starts.observation_space, Starts.action_space), is_deterministic=True
    )
    plan = bps.plan(policy, Starts, 60, halfwidth=0.1, seed=0)
    assert plan.no_gain.startswith("the policy is deterministic")
    assert (plan.action_share.estimate, plan.action_share.high, plan.largest_savings) == (0.0, 0.0, 1.0)
    assert plan.monte_carlo_episodes.low < episodes_for(25.0, 0.1, 0.95) < plan.monte_carlo_episodes.high
    assert plan.savings is None
    assert plan.auto_episodes is None


def test_a_policy_of_unknown_probabilities():
    rng = np.random.default_rng(0)
    noisy = bps.plan(lambda observation: int(rng.integers(2)), partial(Starts, 10.0), 60, halfwidth=0.1, seed=0)
    assert noisy.no_gain.startswith("the policy's action probabilities are unknown")
    assert noisy.action_share.low > 0.3
    assert noisy.monte_carlo_episodes is not None
    assert noisy.auto_episodes is None
    steady = bps.plan(lambda observation: 0, Starts, 60, halfwidth=0.1, seed=0)
    assert (steady.action_share.estimate, steady.action_share.high) == (0.0, None)
    assert "the pilot cannot tell how precisely" in str(steady)


def test_from_no_variance_nothing_is_promised():
    plan = bps.plan(policy_for(Toy), Toy, 60, halfwidth=0.1, seed=0)
    assert plan.value == 5.0
    assert plan.variance == 0.0
    unknown = (plan.std_error, plan.action_share, plan.savings, plan.monte_carlo_episodes, plan.auto_episodes)
    assert unknown == (None,) * 5
    assert "all episodes had the same return" in plan.doubts[0]
    assert "9.5% (95% confidence)" in plan.doubts[0]  # 1 − 0.05^(1/30)
    json.dumps(plan.to_json(), allow_nan=False)


@pytest.mark.filterwarnings("ignore:the environment ignores seeds")
def test_an_environment_that_does_not_obey_its_seed():
    plan = bps.plan(policy_for(Lawless), partial(Lawless, 1.0), 60, halfwidth=0.1, seed=0)
    assert plan.action_share is None
    assert "do not start alike" in plan.doubts[0]
    assert plan.monte_carlo_episodes is not None


def test_a_value_that_may_be_zero_has_no_relative_interval():
    plan = bps.plan(policy_for(Starts), Starts, 60, relative_halfwidth=0.1, seed=0)
    assert plan.halfwidth is None
    assert plan.monte_carlo_episodes is None
    assert any("may be 0" in doubt for doubt in plan.doubts)


def test_one_pair_that_makes_the_variance_is_named():
    returns = np.zeros((50, 2))
    returns[7] = 100.0, 0.0
    plan = judge(returns, returns, halfwidth=1.0)
    assert any("one pair or episode makes" in doubt for doubt in plan.doubts)
    assert (plan.monte_carlo_episodes.low, plan.monte_carlo_episodes.high) == (None, None)
    assert (plan.action_share.low, plan.action_share.high) == (None, None)
    json.dumps(plan.to_json(), allow_nan=False)


def test_values_without_variance_promise_nothing():
    returns, _ = synthetic(np.random.default_rng(2), 50, start=0.0)
    plan = judge(returns, np.full_like(returns, 50.0), halfwidth=0.1)
    assert (plan.std_error, plan.savings, plan.auto_episodes) == (None, None, None)
    assert "the values of auto do not vary" in plan.doubts[0]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"pilot": 0}, InvalidArgumentError, "pilot must be a whole number of at least 20, got 0"),
        ({"pilot": 25}, InvalidArgumentError, "pilot must be a multiple of 10"),
        ({"pilot": 30.0}, InvalidArgumentError, "pilot must be a whole number"),
        ({"halfwidth": 0.0}, InvalidArgumentError, "halfwidth must be a finite number greater than 0"),
        ({"relative_halfwidth": -1}, InvalidArgumentError, "relative_halfwidth must be"),
        ({"halfwidth": 1.0, "relative_halfwidth": 0.1}, InvalidArgumentError, "halfwidth or relative_halfwidth"),
        ({"level": 1.0}, InvalidArgumentError, "level must be"),
        ({"estimand": bps.Failure("return < 5")}, InvalidArgumentError, "estimand must be a Return"),
        ({"seed": -1}, InvalidArgumentError, "seed must be"),
        ({"env": "Acrobot-v1"}, SpaceMismatchError, "observation"),
        ({"policy": "nobody.zip"}, PolicyFileError, "nobody.zip"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        bps.plan(**({"policy": CARTPOLE, "env": "CartPole-v1", "pilot": 20} | arguments))


def test_bad_discounts_and_horizons():
    with pytest.raises(InvalidArgumentError, match="discount must be"):
        bps.plan(CARTPOLE, "CartPole-v1", 20, estimand=bps.Return(discount=2.0))
    with pytest.raises(InvalidArgumentError, match="horizon must be"):
        bps.plan(CARTPOLE, bps.environment("CartPole-v1", horizon=0), 20)


def test_the_discount_is_the_estimands_or_the_environments():
    """With γ = 0 the first reward is all there is: CartPole-v1 always pays 1."""
    with bps.environment("CartPole-v1", horizon=30) as sampler:
        plan = bps.plan(CARTPOLE, sampler, 20, seed=0, estimand=bps.Return(discount=0.0))
        assert (plan.value, plan.variance) == (1.0, 0.0)
        assert plan.settings["discount"] == 0.0
        assert bps.plan(CARTPOLE, sampler, 20, seed=0).settings["discount"] == 1.0
    mdp, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    short = bps.plan(policy, bps.environment(mdp, discount=0.0), 20, seed=0)
    assert abs(short.value) <= 10.0
    assert short.settings["discount"] == 0.0


def test_a_seed_is_drawn_and_recorded():
    mdp, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    drawn = bps.plan(policy, mdp, 20)
    assert bps.plan(policy, mdp, 20).settings["seed"] != drawn.settings["seed"]
    assert bps.plan(policy, mdp, 20, seed=drawn.settings["seed"]).to_json() == drawn.to_json()


def test_continuous_actions_beyond_the_bounds():
    """A Gaussian policy in an environment that pays its actions: all variance is the actions'."""
    policy = bps.GaussianMLP.init(0, PaysAction.observation_space, PaysAction.action_space)
    plan = bps.plan(policy, PaysAction, 100, seed=0)
    assert plan.action_share.high > 0.8


def three_sources() -> tuple[bps.TabularMDP, bps.SoftmaxTable, dict[str, float]]:
    """The return is the start's number, plus or minus 2 by the action, plus or minus 3 by where the step leads."""
    starts = 12
    transitions = np.zeros((starts + 2, 2, starts + 2))
    transitions[..., -2:] = 0.5
    rewards = np.zeros_like(transitions)
    rewards += np.minimum(np.arange(starts + 2), starts)[:, None, None] + np.array([-2.0, 2.0])[:, None]
    rewards[..., -1] += 3.0
    rewards[..., -2] -= 3.0
    initial = np.append(np.full(starts, 1.0 / starts), [0.0, 0.0])
    mdp = bps.TabularMDP(transitions, rewards, initial, np.arange(starts + 2) >= starts, 1)
    parts = {"starts": (starts**2 - 1) / 12.0, "actions": 4.0, "rest": 9.0}
    total = sum(parts.values())
    return mdp, bps.SoftmaxTable(np.zeros((starts + 2, 2))), {name: part / total for name, part in parts.items()}


def test_a_plan_splits_the_variance_into_starts_actions_and_the_rest(tmp_path):
    """A fixed seed; each of three 95% intervals would miss its share with another one in 20."""
    mdp, policy, shares = three_sources()
    plan = bps.plan(policy, mdp, 600, seed=0)
    assert [source.name for source in plan.sources] == ["starts", "actions", "rest"]
    for source in plan.sources:
        assert source.share.low <= shares[source.name] <= source.share.high, source
        assert source.share.high - source.share.low < 0.25
    assert sum(source.share.estimate for source in plan.sources) == pytest.approx(1.0)
    for source in plan.sources[:2]:  # alone each tool leaves what it does not know of
        assert source.savings.low <= 1.0 / (1.0 - shares[source.name]) <= 1.1 * source.savings.high, source
    assert plan.largest_savings is None
    text = str(plan)
    assert "variance that starts explain" in text
    assert "variance that neither explains" in text
    page = plan.report(tmp_path / "plan.html").read_text()
    assert page.count("<svg") == 2
    assert "further resets alone" in page
    never = bps.plan(policy, dataclasses.replace(mdp, initial=np.eye(14)[0]), 60, seed=0)
    assert [source.name for source in never.sources] == ["actions", "rest"]
