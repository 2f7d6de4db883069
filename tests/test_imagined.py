"""Imagined actions: exact by enumeration, for every kind of policy, and networks that they keep from going wrong."""

from itertools import product

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bpsearch as bps
from benchmarks.adversary.families import NETWORKS
from benchmarks.adversary.measure import measure
from benchmarks.adversary.methods import METHODS
from bpsearch.control_variates import imagined
from bpsearch.control_variates.scores import Scores

NUMBERS = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)


def a_network(actions=3, seed=0, masked=False):
    """Linear logits; those of the last action are minus infinity where the first number is negative."""
    rng = np.random.default_rng(seed)

    def apply(parameters, observation):
        logits = parameters["weights"] @ observation + parameters["bias"]
        return logits.at[-1].set(jnp.where(observation[0] < 0.0, -jnp.inf, logits[-1])) if masked else logits

    parameters = {"weights": rng.normal(size=(actions, 2)), "bias": rng.normal(size=actions)}
    return bps.from_jax(apply, parameters, NUMBERS, gymnasium.spaces.Discrete(actions))


def episodes(policy, count, steps, seed=1):
    """Episodes of all lengths up to `steps`; their actions are allowed everywhere."""
    rng = np.random.default_rng(seed)
    seen = rng.normal(size=(count, steps, 2))
    mask = np.arange(steps) <= np.arange(count)[:, None] % steps
    return seen, np.zeros((count, steps), np.int64), mask


def of_all_steps(policy, seen):
    """(T, A, P), ∇log π(a|s), by autodiff of the log-probability of each action in each step."""
    with jax.enable_x64(True):

        def log_probs(vector):
            own = policy.with_flat(vector)
            return jnp.stack([own.log_prob(seen, jnp.full(len(seen), a)) for a in range(policy.action_space.n)], 1)

        return np.asarray(jax.jacobian(log_probs)(jnp.asarray(policy.flat)))


def test_the_mean_of_their_products_is_the_covariance_of_scores():
    policy = a_network()
    seen, actions, mask = episodes(policy, 1, 2)
    every = list(product(product(range(3), repeat=2), product((-1.0, 1.0), repeat=2)))
    chosen, signs = (np.array(column) for column in zip(*every, strict=True))
    alike = (np.repeat(array, len(every), axis=0) for array in (seen, actions, np.ones_like(mask)))
    r = np.asarray(imagined.score(policy, *alike, chosen, np.sqrt(3.0) * signs))
    total = r.T @ r / len(every)
    gradients = of_all_steps(policy, seen[0])
    probabilities = np.exp(np.stack([policy.log_prob(seen[0], np.full(2, a)) for a in range(3)], axis=1))
    np.testing.assert_allclose(total, np.einsum("ta,tap,taq->pq", probabilities, gradients, gradients), atol=1e-6)


def test_what_is_drawn_does_not_depend_on_padding_and_holds_every_action():
    policy = a_network()
    actions, scales = imagined.draw(policy, (400, 6))
    fewer, fewer_scales = imagined.draw(policy, (400, 4))
    np.testing.assert_array_equal(actions[:, :, :4], fewer)
    np.testing.assert_array_equal(scales[:, :, :4], fewer_scales)
    assert actions.shape == scales.shape == (3, 400, 6)
    assert np.all(np.sort(actions, axis=0) == np.arange(3)[:, None, None]), "in each step every action once"
    np.testing.assert_allclose(np.abs(scales), 1.0)
    assert abs(scales.mean()) < 0.07  # six standard errors


def test_few_of_many_actions_are_drawn_alike_and_no_two_the_same():
    policy = a_network(actions=11)
    actions, scales = imagined.draw(policy, (500, 4))
    assert len(actions) == imagined.MOST
    assert all(len(set(step)) == imagined.MOST for step in actions.reshape(imagined.MOST, -1).T)
    counts = np.bincount(actions.ravel(), minlength=11)
    assert counts.min() > 8000 / 11 - 6 * np.sqrt(8000 / 11)
    np.testing.assert_allclose(scales**2, 11 / imagined.MOST)


@pytest.mark.parametrize(
    ("space", "alike"),
    [
        (gymnasium.spaces.Discrete(4, start=2), 4),
        (gymnasium.spaces.MultiDiscrete([2, 3]), 6),
        (gymnasium.spaces.MultiBinary(3), 8),
    ],
)
def test_all_countable_actions_are_drawn_alike(space, alike):
    class Anyone:
        action_space = space

    actions, scales = imagined.draw(Anyone(), (300, 5))
    assert all(space.contains(np.asarray(action, space.dtype)) for action in actions.reshape(-1, *space.shape))
    assert len(np.unique(actions.reshape(len(actions) * 1500, -1), axis=0)) == alike
    np.testing.assert_allclose(scales**2, alike / len(actions))


def test_there_may_be_more_actions_than_a_whole_number_counts():
    class Switches:
        action_space = gymnasium.spaces.MultiBinary(70)

    _, scales = imagined.draw(Switches(), (2, 3))
    np.testing.assert_allclose(scales**2, 2.0**69)


def test_continuous_actions_are_not_imagined():
    assert imagined.draw(bps.shipped_policy("cartpole-swingup"), (3, 2)) is None


def test_an_action_that_is_not_allowed_counts_nothing():
    policy = a_network(masked=True)
    seen, actions, mask = episodes(policy, 8, 5)
    every = np.full(mask.shape, 2)
    found = np.asarray(imagined.score(policy, seen, actions, mask, every, np.ones(mask.shape)))
    assert np.isfinite(found).all()
    allowed = mask & (seen[..., 0] >= 0.0)
    weights = np.where(allowed, np.exp(np.asarray(policy.log_prob(seen, np.where(allowed, 2, 0))) / 2.0), 0.0)
    np.testing.assert_allclose(
        found, policy.episode_scores(seen, np.where(allowed, 2, 0), weights), rtol=1e-6, atol=1e-9
    )


def test_torch_and_jax_imagine_alike():
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.last = torch.nn.Linear(2, 3)

        def forward(self, seen):
            return torch.distributions.Categorical(logits=self.last(seen.to(torch.float32)))

    module = Module()
    in_torch = bps.from_torch(module, NUMBERS, gymnasium.spaces.Discrete(3))
    weights, bias = (value.detach().numpy().astype(float) for value in module.parameters())
    in_jax = bps.from_jax(
        lambda parameters, seen: parameters["weight"] @ seen + parameters["bias"],
        {"weight": weights, "bias": bias},
        NUMBERS,
        gymnasium.spaces.Discrete(3),
    )
    seen, actions, mask = episodes(in_jax, 7, 4)
    drawn = [column[1] for column in imagined.draw(in_jax, mask.shape)]
    ours, theirs = (np.asarray(imagined.score(policy, seen, actions, mask, *drawn)) for policy in (in_jax, in_torch))
    order = np.r_[3:9, 0:3]  # JAX has the bias first
    np.testing.assert_allclose(ours[:, order], theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "seed"), [("luck-chain-network", 2), ("rare-nothing-network", 2), ("rare-nothing-network", 3)]
)
def test_a_rare_action_does_not_throw_off_a_network(family, seed):
    """Eight studies of 300 episodes; without imagined actions the ratios are 1.9, 2,300 and 12,000."""
    task = NETWORKS[family](np.random.default_rng(seed))
    (cell,) = measure(task, [300], 8, 1, METHODS["auto"])
    assert cell.ratio < 1.1


def test_the_spread_of_a_fit_is_that_of_imagined_scores():
    policy = a_network()
    bound = Scores().bind(policy, 1.0)
    summary = {"scores": np.ones((4, 9)), "imagined": np.arange(72.0).reshape(4, 2, 9)}
    fit = np.eye(9)[None]
    np.testing.assert_array_equal(bound.spread(fit, summary)[0], (summary["imagined"] ** 2).sum(axis=1).T)


def test_a_single_step_tells_all_that_the_probabilities_know():
    """With up to four actions: Σ_k r_k r_kᵀ is the covariance itself, whatever was drawn."""
    policy = a_network()
    seen, actions, mask = episodes(policy, 5, 1)
    mask[:] = True
    batch = bps.Trajectories(seen, actions, np.zeros(mask.shape), np.zeros(mask.shape), mask)
    found = imagined.imagined_scores(policy, batch)
    gradients = of_all_steps(policy, seen[:, 0])
    probabilities = np.exp(np.stack([policy.log_prob(seen[:, 0], np.full(5, a)) for a in range(3)], axis=1))
    expected = np.einsum("na,nap,naq->npq", probabilities, gradients, gradients)
    np.testing.assert_allclose(np.einsum("nkp,nkq->npq", found, found), expected, atol=1e-6)
