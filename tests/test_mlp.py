"""Neural policies: their score is the gradient of Lemma 1's surrogate, by autodiff and by finite differences."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bpsearch as bps
from bpsearch.errors import InvalidArgumentError, OnPolicyError, PolicyFileError, SpaceMismatchError
from bpsearch.estimators import log_ratios, score_weights
from bpsearch.policies import CategoricalMLP, GaussianMLP, load_policy

OBSERVATIONS = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
SPACES = {
    GaussianMLP: gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float64),
    CategoricalMLP: gymnasium.spaces.Discrete(4),
}
KINDS = list(SPACES)


@pytest.fixture(autouse=True)
def _in_64_bit():
    with jax.enable_x64(True):
        yield


def small_policy(kind, *, dtype=np.float64, adapt="all", seed=1):
    policy = kind.init(seed, OBSERVATIONS, SPACES[kind], (5, 4), dtype=dtype, adapt=adapt)
    random = np.random.default_rng(seed + 100)
    return policy.with_flat((np.asarray(policy.flat) + 0.3 * random.standard_normal(policy.flat.shape)).astype(dtype))


def episodes(policy, count=6, steps=7, seed=0):
    """A batch of `policy` on made-up observations and rewards, with episodes of different lengths."""
    random = np.random.default_rng(seed)
    observations = random.standard_normal((count, steps, 3))
    actions, log_probs = policy.sample(jax.random.key(seed), observations.reshape(-1, 3))
    return bps.Trajectories(
        observations=observations,
        actions=np.asarray(actions).reshape(count, steps, *actions.shape[1:]),
        rewards=random.standard_normal((count, steps)),
        log_probs=np.asarray(log_probs).reshape(count, steps),
        mask=np.arange(steps) < random.integers(2, steps + 1, count)[:, None],
    )


def surrogate(flat, behavior, evaluation, batch, estimator, discount, constant=None):
    """Σ_n stop_gradient(X²) Σ_t log π_θ + X², whose gradient at the behavior is Lemma 1's."""
    log_probs = behavior.with_flat(flat).log_prob(batch.observations, batch.actions)
    ratios = jnp.where(batch.mask, evaluation.log_prob(batch.observations, batch.actions) - log_probs, 0.0)
    squares = estimator(batch.rewards, ratios, batch.mask, discount) ** 2
    constant = jax.lax.stop_gradient(squares) if constant is None else constant
    return jnp.sum(constant * jnp.where(batch.mask, log_probs, 0.0).sum(axis=1) + squares)


@pytest.mark.parametrize(
    ("kind", "estimator"),
    [(GaussianMLP, bps.estimators.importance_sampling), (CategoricalMLP, bps.estimators.per_decision)],
)
def test_score_weights_through_the_network_are_the_gradient_of_the_surrogate(kind, estimator):
    evaluation = small_policy(kind)
    behavior = evaluation.with_flat(np.asarray(evaluation.flat) * 1.1)
    batch, discount = episodes(behavior), 0.9
    values, weights = score_weights(estimator, batch.rewards, log_ratios(evaluation, batch), batch.mask, discount)
    score = np.asarray(behavior.score(batch.observations, batch.actions, weights))

    rest = (behavior, evaluation, batch, estimator, discount)
    autodiff = np.asarray(jax.jit(jax.grad(lambda theta: surrogate(theta, *rest)))(behavior.flat))
    np.testing.assert_allclose(score, autodiff, rtol=1e-9, atol=1e-9 * np.abs(autodiff).max())

    flat, step = np.asarray(behavior.flat), 1e-5
    along = jax.jit(jax.vmap(lambda theta: surrogate(theta, *rest, constant=values**2)))
    ahead, behind = (np.asarray(along(flat + sign * step * np.eye(len(flat)))) for sign in (1.0, -1.0))
    differences = (ahead - behind) / (2.0 * step)
    np.testing.assert_allclose(score, differences, rtol=1e-6, atol=1e-6 * np.abs(autodiff).max())


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_layer_has_the_end_of_the_full_score(kind):
    every, last = small_policy(kind), small_policy(kind).adapting("last")
    batch = episodes(every)
    weights = np.random.default_rng(3).standard_normal(batch.mask.shape) * batch.mask
    full = np.asarray(every.score(batch.observations, batch.actions, weights))
    part = np.asarray(last.score(batch.observations, batch.actions, weights))
    assert 0 < len(part) < len(full)
    np.testing.assert_allclose(part, full[-len(part) :], rtol=1e-12)
    moved = last.with_flat(np.asarray(last.flat) + 1.0)
    np.testing.assert_array_equal(moved.weights[0], every.weights[0])
    np.testing.assert_array_equal(np.asarray(moved.adapting("all").flat)[-len(part) :], np.asarray(last.flat) + 1.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float64, 1e-12)])
def test_sampled_log_probs_are_those_of_log_prob(kind, dtype, tolerance):
    policy = small_policy(kind, dtype=dtype)
    batch = episodes(policy, count=50)
    again = policy.log_prob(batch.observations, batch.actions)
    assert again.dtype == dtype
    np.testing.assert_allclose(np.where(batch.mask, again, 0.0), batch.log_probs, atol=tolerance, rtol=tolerance)


def test_gaussian_log_prob_is_the_density_of_scipy():
    from scipy.stats import multivariate_normal

    policy = small_policy(GaussianMLP)
    batch = episodes(policy)
    hidden = batch.observations[0, 0]
    for weight, bias in zip(policy.weights[:-1], policy.biases[:-1], strict=True):
        hidden = np.tanh(weight @ hidden + bias)
    density = multivariate_normal(policy.weights[-1] @ hidden + policy.biases[-1], np.diag(np.exp(2 * policy.log_std)))
    found = policy.log_prob(batch.observations[0, 0], batch.actions[0, 0])
    np.testing.assert_allclose(found, density.logpdf(batch.actions[0, 0]), rtol=1e-12)


def test_categorical_samples_follow_its_probabilities():
    """Chi-squared over 40,000 draws: fails falsely once in a million runs, with a fixed seed never."""
    from scipy.stats import chisquare

    policy = small_policy(CategoricalMLP)
    observation = np.array([0.3, -1.0, 0.5])
    actions, _ = policy.sample(jax.random.key(0), np.tile(observation, (40_000, 1)))
    probabilities = np.exp([float(policy.log_prob(observation[None], np.array([a]))[0]) for a in range(4)])
    assert probabilities.sum() == pytest.approx(1.0)
    assert chisquare(np.bincount(actions, minlength=4), 40_000 * probabilities).pvalue > 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_kl_is_the_mean_log_ratio(kind):
    """A z-test at 5 standard errors over 200,000 draws."""
    policy = small_policy(kind)
    other = policy.with_flat(np.asarray(policy.flat) * 1.2)
    observation = np.tile([0.3, -1.0, 0.5], (200_000, 1))
    actions, log_probs = policy.sample(jax.random.key(0), observation)
    ratios = np.asarray(log_probs - other.log_prob(observation, actions))
    found = float(policy.kl(other, observation[:1])[0])
    assert found > 0.0
    assert abs(ratios.mean() - found) < 5.0 * ratios.std() / np.sqrt(len(ratios))


def test_score_survives_weights_beyond_32_bit():
    policy = small_policy(GaussianMLP, dtype=np.float32)
    batch = episodes(policy)
    weights = np.where(batch.mask, 1.0, 0.0)
    small = np.asarray(policy.score(batch.observations, batch.actions, weights))
    large = np.asarray(policy.score(batch.observations, batch.actions, 1e60 * weights))
    np.testing.assert_allclose(large, 1e60 * small, rtol=1e-12)


def test_a_search_keeps_the_networks_type():
    env = bps.envs.cartpole_swingup()
    policy = GaussianMLP.init(0, env.observation_space, env.action_space)
    batch = bps.sample(env, policy, 100)
    search = bps.BPG(bps.StepSize(1e-3, normalized=True))
    state, info = search.step(search.init(policy), batch)
    assert state.parameters.dtype == np.float32
    assert info.values.dtype == np.float64
    assert info.step_size > 0
    assert not np.array_equal(state.parameters, policy.flat)


def test_rounding_in_32_bit_does_not_make_episodes_off_policy():
    env = bps.envs.cartpole_swingup()
    policy = GaussianMLP.init(0, env.observation_space, env.action_space)
    batch = bps.sample(env, policy, 100)
    valuation = bps.Valuation()
    valued = valuation.value(valuation.init(policy), batch)
    np.testing.assert_allclose(valued.values, batch.returns(), rtol=1e-12)
    with pytest.raises(OnPolicyError):
        valuation.value(valuation.init(policy.with_flat(np.asarray(policy.flat) * np.float32(1.01))), batch)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_save_and_load(kind, dtype, tmp_path):
    policy = small_policy(kind, dtype=dtype, adapt="last")
    policy.save(tmp_path / "policy.npz")
    loaded = load_policy(tmp_path / "policy.npz")
    assert type(loaded) is kind
    assert loaded.adapt == "last"
    assert loaded.dtype == dtype
    np.testing.assert_array_equal(loaded.adapting("all").flat, policy.adapting("all").flat)


def test_foreign_and_damaged_files_are_refused(tmp_path):
    path = tmp_path / "policy.npz"
    with pytest.raises(PolicyFileError, match="No such file"):
        load_policy(path)
    small_policy(GaussianMLP).save(path)
    whole = path.read_bytes()
    for damaged in (b"", b"not a policy", whole[: len(whole) // 2], whole.replace(b"\x93NUMPY", b"\x93GARBA", 1)):
        path.write_bytes(damaged)
        with pytest.raises(PolicyFileError, match="damaged or no npz"):
            load_policy(path)
    np.savez(path, weight_0=np.zeros(3))
    with pytest.raises(PolicyFileError, match="expected the format"):
        load_policy(path)
    np.savez(path, code=np.array([object()], dtype=object))
    with pytest.raises(PolicyFileError, match="damaged or no npz"):
        load_policy(path)
    with np.load(_write(path, whole)) as arrays:
        bad = {**arrays, "log_std": np.array([np.nan, 0.0])}
    np.savez(path, **bad)
    with pytest.raises(PolicyFileError, match="log_std must be finite"):
        load_policy(path)


def _write(path, content):
    path.write_bytes(content)
    return path


def test_bad_arguments_are_named():
    box = OBSERVATIONS
    with pytest.raises(InvalidArgumentError, match="Gaussian policy needs a Box"):
        GaussianMLP.init(0, box, SPACES[CategoricalMLP])
    with pytest.raises(InvalidArgumentError, match="needs a Discrete"):
        CategoricalMLP.init(0, box, SPACES[GaussianMLP])
    with pytest.raises(InvalidArgumentError, match="observation space, got Discrete"):
        GaussianMLP.init(0, SPACES[CategoricalMLP], SPACES[GaussianMLP])
    with pytest.raises(InvalidArgumentError, match="adapt must be 'all' or 'last', got 'first'"):
        small_policy(GaussianMLP, adapt="first")
    with pytest.raises(InvalidArgumentError, match="weights of layer 1 must be of shape"):
        CategoricalMLP((np.zeros((3, 2)), np.zeros((2, 2))), (np.zeros(3), np.zeros(2)))
    with pytest.raises(InvalidArgumentError, match="32-bit or 64-bit floats, got int64"):
        CategoricalMLP((np.zeros((3, 2), int),), (np.zeros(3),))


def test_spaces_are_compared_before_sampling():
    cartpole, acrobot = bps.envs.cartpole_swingup(), bps.envs.acrobot()
    policy = GaussianMLP.init(0, cartpole.observation_space, cartpole.action_space, dtype=np.float64)
    assert len(bps.sample(cartpole, policy, 3)) == 3  # 64-bit raw actions for a 32-bit environment that clips them
    with pytest.raises(SpaceMismatchError, match="observation spaces differ"):
        bps.sample(acrobot, policy, 3)
    discrete = CategoricalMLP.init(0, cartpole.observation_space, gymnasium.spaces.Discrete(3))
    with pytest.raises(SpaceMismatchError, match="action spaces differ"):
        bps.sample(cartpole, discrete, 3)
