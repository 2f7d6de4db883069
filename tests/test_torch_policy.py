"""Torch modules as policies: draws, log-probabilities, scores, and the parameters that are adapted."""

import pickle
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
import scipy.stats
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch.distributions import (
    AffineTransform,
    Bernoulli,
    Categorical,
    Independent,
    Normal,
    TanhTransform,
    TransformedDistribution,
)

import bpsearch as bps
from bpsearch.errors import InvalidArgumentError, MissingDependencyError, SpaceMismatchError
from bpsearch.integrations.torch import TorchPolicy, from_torch
from bpsearch.policies.resolve import load

OBSERVATIONS = Box(-1.0, 1.0, (3,), np.float64)


class Module(torch.nn.Module):
    """Two layers in 64 bit, a critic that the actions do not depend on, and a head."""

    def __init__(self, outputs: int, head: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden = torch.nn.Linear(3, 4)
        self.last = torch.nn.Linear(4, outputs)
        self.critic = torch.nn.Linear(4, 1)
        self.log_std = torch.nn.Parameter(torch.full((outputs,), -0.5))
        self.head = head
        self.double()

    def forward(self, observations: torch.Tensor) -> Any:
        output = self.last(torch.tanh(self.hidden(observations)))
        return self.head(output) if self.head.__code__.co_argcount == 1 else self.head(output, self.log_std.exp())


class Logits(torch.nn.Module):
    def forward(self, logits: torch.Tensor) -> Categorical:
        return Categorical(logits=logits)


KINDS: dict[str, tuple[int, gymnasium.Space[Any], Callable[..., Any]]] = {
    "categorical": (3, Discrete(3, start=2), lambda x: Categorical(logits=x)),
    "categorical by probabilities": (3, Discrete(3), lambda x: Categorical(probs=x.softmax(-1))),
    "multi-categorical": (5, MultiDiscrete([2, 3]), lambda x: [Categorical(logits=y) for y in x.split([2, 3], -1)]),
    "rows of a categorical": (6, MultiDiscrete([3, 3]), lambda x: Categorical(logits=x.reshape(-1, 2, 3))),
    "bernoulli": (3, MultiBinary(3), lambda x: Bernoulli(logits=x)),
    "normal": (2, Box(-1.0, 1.0, (2,)), lambda x, std: Normal(x, std)),
    "independent normal": (4, Box(-1.0, 1.0, (2, 2)), lambda x, std: Independent(
        Normal(x.reshape(-1, 2, 2), std.reshape(2, 2).expand(len(x), 2, 2)), 2)),
    "squashed": (2, Box(-3.0, 1.0, (2,)), lambda x, std: TransformedDistribution(
        Normal(x, std), [TanhTransform(), AffineTransform(-1.0, 2.0)])),
}  # fmt: skip


def policy_of(kind: str, **options: Any) -> TorchPolicy:
    outputs, space, head = KINDS[kind]
    return from_torch(Module(outputs, head), OBSERVATIONS, space, **options)


def drawn(policy: TorchPolicy, rows: int) -> tuple[Any, ...]:
    generator = np.random.default_rng(1)
    observations = generator.uniform(-1.0, 1.0, (rows, 3))
    return observations, *policy.act(generator.random((rows, policy.uniforms)), observations)


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_log_probabilities_are_those_of_the_drawn_actions(kind: str) -> None:
    policy = policy_of(kind)
    observations, actions, log_probs, executed = drawn(policy, 50)
    np.testing.assert_allclose(policy.log_prob(observations, actions), log_probs, rtol=1e-10)
    np.testing.assert_allclose(
        policy.log_prob(observations.reshape(5, 10, 3), actions.reshape(5, 10, *actions.shape[1:])),
        log_probs.reshape(5, 10),
        rtol=1e-12,
    )
    assert all(policy.action_space.contains(action) for action in executed.astype(policy.action_space.dtype))


@pytest.mark.parametrize("kind", ["categorical", "normal", "bernoulli"])
def test_log_probabilities_are_torchs_own(kind: str) -> None:
    outputs, _, head = KINDS[kind]
    policy = policy_of(kind)
    observations, actions, log_probs, _ = drawn(policy, 20)
    distribution = Module(outputs, head)(torch.tensor(observations))
    start = getattr(policy.action_space, "start", 0)
    expected = distribution.log_prob(torch.tensor(actions - start).to(torch.float64)).detach().numpy()
    np.testing.assert_allclose(log_probs, expected.reshape(20, -1).sum(axis=1), rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_by_numpy_are_torchs(kind: str) -> None:
    outputs, _, head = KINDS[kind]
    policy = policy_of(kind)
    observations, actions, log_probs, _ = drawn(policy, 20)
    own = policy.architecture.head
    found = own.log_prob_from(own.arrays(Module(outputs, head)(torch.tensor(observations))), actions)
    np.testing.assert_allclose(found, log_probs, rtol=1e-10)
    np.testing.assert_allclose(policy.log_prob_in_blocks(observations, actions), log_probs, rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_score_is_the_derivative_of_the_weighted_log_probability(kind: str) -> None:
    policy = policy_of(kind)
    observations, actions, _, _ = drawn(policy, 12)
    observations, actions = observations.reshape(3, 4, 3), actions.reshape(3, 4, *actions.shape[1:])
    weights = np.random.default_rng(2).normal(size=(3, 4))
    weights[1, 2:] = 0.0
    score = policy.score(observations, actions, weights)

    def weighted(theta: Any) -> float:
        return float((weights * policy.with_flat(theta).log_prob(observations, actions)).sum())

    for index in range(0, len(policy.flat), 3):
        step = np.zeros_like(policy.flat)
        step[index] = 1e-6
        difference = (weighted(policy.flat + step) - weighted(policy.flat - step)) / 2e-6
        assert score[index] == pytest.approx(difference, rel=1e-5, abs=1e-6)


def episodes_of(policy: TorchPolicy) -> tuple[Any, Any, Any]:
    observations, actions, _, _ = drawn(policy, 24)
    mask = np.arange(4) < np.array([4, 1, 3, 2, 4, 4])[:, None]
    return observations.reshape(6, 4, 3), actions.reshape(6, 4, *actions.shape[1:]), mask


def check_episode_scores(policy: TorchPolicy) -> None:
    observations, actions, mask = episodes_of(policy)
    scores = policy.episode_scores(observations, actions, mask)
    for n, row in enumerate(mask.astype(float)):
        expected = policy.score(observations[n : n + 1], actions[n : n + 1], row[None])
        np.testing.assert_allclose(scores[n], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("adapt", [None, "last"])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_episodes_are_those_of_each_alone(
    kind: str, adapt: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bpsearch.integrations.torch._CHUNK", 5)  # episodes begin in one pass and end in the next
    policy = policy_of(kind, adapt=adapt)
    # The scale of a Gaussian is no linear layer's.
    assert (policy.architecture.layers is None) == (adapt is None and KINDS[kind][2].__code__.co_argcount == 2)
    check_episode_scores(policy)


class Twice(Module):
    def forward(self, observations: torch.Tensor) -> Any:
        return self.head(self.last(torch.tanh(self.hidden(observations))) + self.last(self.hidden(observations)))


class Around(Module):
    def forward(self, observations: torch.Tensor) -> Any:
        return self.head(self.last(torch.tanh(self.hidden(observations))) + self.last.weight.sum(dim=1))


@pytest.mark.parametrize("module", [Twice, Around])
def test_scores_of_modules_that_use_a_layer_in_their_own_way(module: type[Module]) -> None:
    outputs, space, head = KINDS["categorical"]
    policy = from_torch(module(outputs, head), OBSERVATIONS, space, adapt="last")
    assert policy.architecture.layers is None
    check_episode_scores(policy)


def test_draws_follow_the_distribution() -> None:
    """χ² and Kolmogorov-Smirnov tests; a false alarm once in 10,000 seeds each."""
    uniforms = np.random.default_rng(3).random((4000, 1))
    observations = np.tile([0.3, -0.5, 0.9], (4000, 1))
    policy = policy_of("categorical")
    actions, _, _ = policy.act(uniforms, observations)
    probabilities = np.exp(policy.log_prob(observations[:3], np.array([2, 3, 4])))
    assert scipy.stats.chisquare(np.bincount(actions - 2), 4000 * probabilities).pvalue > 1e-4
    normal = policy_of("normal")
    raw, _, _ = normal.act(np.repeat(uniforms, 2, axis=1), observations)
    mean = normal.act(np.full((1, 2), 0.5), observations[:1])[0]
    assert scipy.stats.kstest((raw[:, 0] - mean[0, 0]) / np.exp(-0.5), "norm").pvalue > 1e-4
    key_actions, key_log_probs = policy.sample(jax.random.key(0), observations.reshape(40, 100, 3))
    assert key_actions.shape == key_log_probs.shape == (40, 100)
    assert scipy.stats.chisquare(np.bincount(key_actions.ravel() - 2), 4000 * probabilities).pvalue > 1e-4


def test_impossible_actions_are_never_drawn_and_have_probability_zero() -> None:
    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.zeros(4))

        def forward(self, observations: torch.Tensor) -> Categorical:
            mask = torch.tensor([-torch.inf, 0.0, -torch.inf, -torch.inf])
            return Categorical(logits=(self.bias + mask).expand(len(observations), 4), validate_args=False)

    policy = from_torch(Masked(), OBSERVATIONS, Discrete(4))
    uniforms = np.array([[0.0], [0.5], [np.nextafter(1.0, 0.0)]])
    actions, log_probs, _ = policy.act(uniforms, np.zeros((3, 3)))
    np.testing.assert_array_equal(actions, 1)
    np.testing.assert_array_equal(log_probs, 0.0)
    assert policy.log_prob(np.zeros((1, 3)), np.array([3]))[0] == -np.inf


def test_extreme_numbers_give_finite_actions() -> None:
    policy = policy_of("normal")
    actions, log_probs, _ = policy.act(np.array([[0.0, np.nextafter(1.0, 0.0)]]), np.zeros((1, 3)))
    assert np.isfinite(actions).all()
    assert np.isfinite(log_probs).all()


def test_saturated_squashed_actions_keep_their_probability() -> None:
    policy = policy_of("squashed")
    theta = np.array(policy.flat)
    theta[-2:] = 40.0  # the bias of the last layer: tanh rounds to 1
    saturated = policy.with_flat(theta)
    observations, actions, log_probs, executed = drawn(saturated, 10)
    np.testing.assert_allclose(executed, 1.0, atol=1e-6)
    np.testing.assert_allclose(saturated.log_prob(observations, actions), log_probs, rtol=1e-9)
    assert np.isfinite(log_probs).all()


def test_only_parameters_of_the_distribution_are_adapted() -> None:
    whole, last = policy_of("normal"), policy_of("normal", adapt=("last", "log_std"))
    assert len(whole.flat) == (3 * 4 + 4) + (4 * 2 + 2) + 2
    assert len(last.flat) == (4 * 2 + 2) + 2
    observations, actions, log_probs, _ = drawn(whole, 5)
    np.testing.assert_allclose(last.log_prob(observations, actions), log_probs)
    with pytest.raises(InvalidArgumentError, match=r"hidden\.weight.*got 'critic'"):
        policy_of("normal", adapt="critic")


def test_policies_are_immutable() -> None:
    module = Module(3, KINDS["categorical"][2])
    policy = from_torch(module, OBSERVATIONS, KINDS["categorical"][1])
    observations, actions, log_probs, _ = drawn(policy, 5)
    other = policy.with_flat(policy.flat + 1.0)
    assert not np.allclose(other.log_prob(observations, actions), log_probs)
    with torch.no_grad():
        module.last.weight.mul_(5.0)
    np.testing.assert_allclose(policy.log_prob(observations, actions), log_probs)
    np.testing.assert_array_equal(other.flat, policy.flat + 1.0)
    with pytest.raises(ValueError, match="read-only"):
        policy.flat[0] = 1.0
    doubled = jax.tree_util.tree_map(lambda leaf: 2.0 * leaf, policy)
    np.testing.assert_array_equal(doubled.flat, 2.0 * policy.flat)


def test_policies_can_be_pickled() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), Logits())
    policy = from_torch(module, OBSERVATIONS, Discrete(3))
    observations, actions, log_probs, _ = drawn(policy, 5)
    copied = pickle.loads(pickle.dumps(policy))
    np.testing.assert_array_equal(copied.log_prob(observations, actions), policy.log_prob(observations, actions))
    other = copied.with_flat(policy.flat + np.arange(12.0))
    assert not np.allclose(other.log_prob(observations, actions), log_probs)


def test_distributions_that_do_not_fit_are_refused() -> None:
    for space, head in (
        (Discrete(4), KINDS["categorical"][2]),
        (Box(-1.0, 1.0, (2,)), KINDS["categorical"][2]),
        (Discrete(3), lambda x: Normal(x, 1.0)),
        (Discrete(3), lambda x: x),
        (Box(-1.0, 1.0, (2,)), lambda x: Normal(x, 1.0)),
        (MultiDiscrete([2, 2]), lambda x: [Categorical(logits=x), Categorical(logits=x)]),
    ):
        with pytest.raises(SpaceMismatchError, match="the module must return"):
            from_torch(Module(3, head), OBSERVATIONS, space)
    with pytest.raises(SpaceMismatchError, match="transforms"):
        from_torch(
            Module(2, lambda x, std: TransformedDistribution(Normal(x, 1.0), [AffineTransform(0.0, std)])),
            OBSERVATIONS,
            Box(-1.0, 1.0, (2,)),
        )
    with pytest.raises(InvalidArgumentError, match="no parameters"):
        from_torch(torch.nn.Identity(), OBSERVATIONS, Discrete(2))


def test_names_that_need_torch_are_found_late() -> None:
    assert bps.from_torch is from_torch
    with pytest.raises(AttributeError, match="has no attribute 'from_keras'"):
        bps.from_keras  # noqa: B018


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "bpsearch.integrations.torch")
    monkeypatch.delitem(vars(bps), "from_torch", raising=False)  # kept there once it is found
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r"needs the package torch.*pip install 'bpsearch\[sb3\]'"):
        bps.from_torch  # noqa: B018


def _compiled(program):
    """The compiled program within one that takes turns."""
    return program if hasattr(program, "_cache_size") else program.__wrapped__


def test_a_study_of_another_module_compiles_nothing_anew() -> None:
    from bpsearch.inference import valuation
    from bpsearch.search import adaptive, compiled

    programs = (adaptive._propose, adaptive._limit, adaptive._value, compiled._jitted_update, valuation._jitted_value)
    method = bps.Method(bps.AdaptiveBPG(), bps.Valuation(bps.estimators.importance_sampling), batch_size=8)
    sizes = []
    with bps.environment("CartPole-v1", horizon=8) as sampler:
        for _ in range(2):
            module = Module(2, lambda x: Categorical(logits=x))
            module.hidden = torch.nn.Linear(4, 4).double()
            bps.evaluate(module, sampler, 24, method, seed=0)
            sizes.append([_compiled(program)._cache_size() for program in programs])
    assert min(sizes[0][:3]) > 0, "something was compiled"
    assert sizes[0] == sizes[1]


class Player(torch.nn.Module):
    """Plays Blackjack: observations are tuples of three numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(3, 2)

    def forward(self, observation: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.distributions.Categorical:
        total, dealer, ace = observation
        return torch.distributions.Categorical(logits=self.last(torch.stack([total, dealer, ace], -1).float() / 10.0))


def test_modules_get_tuples_where_the_environment_gives_tuples() -> None:
    torch.manual_seed(0)
    player = Player()
    policy = load(player, "Blackjack-v1")
    batch = bps.sample("Blackjack-v1", policy, 30, seed=0)
    observed: Any = batch.observations
    seen = tuple(torch.as_tensor(observed[key][batch.mask]) for key in ("0", "1", "2"))
    expected = player(seen).log_prob(torch.as_tensor(batch.actions[batch.mask])).detach().numpy()
    np.testing.assert_allclose(batch.log_probs[batch.mask], expected, atol=1e-6)
    assert bps.evaluate(player, "Blackjack-v1", 60, seed=0).method == "auto"
