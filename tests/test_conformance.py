"""Every implementation of every room passes the suite that is shipped for it, and the suites can fail."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import bpsearch as bps
from bpsearch._core.jaxtools import pytree
from bpsearch.control_variates import Scores, StartStates, TabularAdvantages, TabularModel
from bpsearch.estimators import doubly_robust, per_decision
from bpsearch.methods import METHODS, find_method
from bpsearch.runners import runner_for
from bpsearch.testing import check_control_variate, check_estimator, check_policy, check_runner, check_search
from enumeration import enumerate_trajectories, random_mdp, random_policy

MDP = random_mdp(0, (3, 2, 2), 0.9)
POLICY = random_policy(1, MDP)


def searches():
    model = TabularModel.like(MDP)
    yield bps.OnPolicy()
    yield bps.BPG(0.1)
    yield bps.BPG(bps.search.normalized(0.1), estimator=per_decision, center=True, patience=2, defensive=0.2)
    yield bps.BPG(0.1, estimator=doubly_robust, model=model)
    yield bps.AdaptiveBPG()
    yield bps.Levels()
    yield bps.search.MayMove()
    yield bps.AdaptiveBPG(doubly_robust, model, defensive=0.1)
    for name in METHODS:
        yield find_method(name, MDP).search


def batches():
    """Of the policy itself, and of another."""
    return [
        bps.sample(MDP, behavior, 30, seed=0, batch=n) for n, behavior in enumerate((POLICY, random_policy(2, MDP)))
    ]


@pytest.mark.parametrize("search", list(searches()), ids=lambda search: type(search).__name__)
def test_searches(search):
    check_search(search, POLICY, batches())


@pytest.mark.parametrize(
    "env",
    [MDP, "CartPole-v1", pytest.param(bps.envs.cartpole_swingup(), marks=pytest.mark.slow)],
    ids=lambda env: type(env).__name__,
)
def test_runners(env):
    policy = POLICY if env is MDP else bps.shipped_policy("cartpole-swingup")
    if env == "CartPole-v1":
        sampler = bps.environment(env, horizon=20)
        policy = bps.CategoricalMLP.init(0, sampler.observation_space, sampler.action_space, (4,))
        env = sampler
    with runner_for(env, policy) as runner:
        check_runner(runner, policy)


@pytest.mark.parametrize(
    "control", [Scores(), TabularAdvantages(), StartStates()], ids=lambda control: type(control).__name__
)
def test_control_variates(control):
    check_control_variate(control)


ESTIMATORS = [found for found in vars(bps.estimators).values() if isinstance(found, bps.Estimator)]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: estimator.name)
def test_estimators(estimator):
    check_estimator(estimator)


def test_policies():
    rng = np.random.default_rng(0)
    box, discrete = bps.envs.cartpole_swingup().observation_space, MDP.action_space
    check_policy(POLICY, np.array([0, 1, 0, 1, 1, 0]))
    check_policy(bps.CategoricalMLP.init(0, box, discrete, (4,)), rng.normal(size=(16, 4)).astype(np.float32))
    action_space = bps.envs.cartpole_swingup().action_space
    check_policy(bps.GaussianMLP.init(0, box, action_space, (4,)), rng.normal(size=(16, 4)).astype(np.float32))


# Each suite finds an implementation that breaks its promise.


class Peeking(bps.OnPolicy):
    """Its behavior changes from call to call."""

    calls = 0

    def behavior(self, state):
        Peeking.calls += 1
        return state.with_flat(state.flat + 0.01 * Peeking.calls)


class Growing(bps.OnPolicy):
    """Its state grows."""

    def init(self, policy, discount=1.0):
        return (policy,)

    def behavior(self, state):
        return state[0]

    def step(self, state, batch):
        return (*state, np.zeros(1)), super().step(state[0], batch)[1]


@pytest.mark.parametrize(
    ("search", "message"), [(Peeking(), "function of the state"), (Growing(), "keep its structure")]
)
def test_the_suite_of_searches_can_fail(search, message):
    with pytest.raises(AssertionError, match=message):
        check_search(search, POLICY, batches())


class Biased(Scores):
    """Predicts a number whose mean is not 0."""

    def predict(self, fit, summary):
        return super().predict(fit, summary) + 0.01


class Pooled(Scores):
    """A prediction depends on the other episodes."""

    def predict(self, fit, summary):
        numbers = super().predict(fit, summary)
        return numbers * (1.0 + summary["scores"].shape[0])


@pytest.mark.parametrize(("control", "message"), [(Biased(), "must be 0"), (Pooled(), "own episode alone")])
def test_the_suite_of_control_variates_can_fail(control, message):
    with pytest.raises(AssertionError, match=message):
        check_control_variate(control)


def test_the_suite_of_estimators_can_fail():
    @bps.estimator
    def without_discount(rewards, log_ratios, mask, discount):
        return jnp.exp(log_ratios.sum(axis=-1)) * rewards.sum(axis=-1)

    with pytest.raises(AssertionError, match="the expectation of the values"):
        check_estimator(without_discount)


class Shuffled(bps.runners.InProcess):
    """Numbers its episodes by how many were asked for."""

    def run(self, behavior, episodes, *, seed, batch, repeats=1):
        return super().run(behavior, episodes, seed=seed + episodes, batch=batch, repeats=repeats)


def test_the_suite_of_runners_can_fail():
    with pytest.raises(AssertionError, match="run beside others"):
        check_runner(Shuffled(MDP), POLICY)


@pytree()
@dataclasses.dataclass(frozen=True, eq=False)
class Lying(bps.SoftmaxTable):
    """Reports other log-probabilities than it has."""

    def log_prob(self, observations, actions):
        return super().log_prob(observations, actions) + 0.1


def test_the_suite_of_policies_can_fail():
    with pytest.raises(AssertionError, match="act has recorded"):
        check_policy(Lying(POLICY.logits), np.array([0, 1, 0, 1]))


def test_enumerated_probabilities_add_up():
    everything = enumerate_trajectories(MDP)
    assert everything.probabilities(POLICY.probabilities).sum() == pytest.approx(1.0, abs=1e-12)
