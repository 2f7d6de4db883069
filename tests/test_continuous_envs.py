"""Cart-pole swing-up and acrobot: energy, agreement with SciPy's integration, rewards, Gymnasium's interface.

Derivatives for SciPy are taken from the Lagrangian by autodiff, not from the environments' own solved equations.
"""

import subprocess
import sys

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from scipy.integrate import solve_ivp

import bpsearch as bps
from bpsearch.envs.acrobot import MAX_SPEED, MAX_TORQUE, STEPS_PER_ACTION, AcrobotState
from bpsearch.envs.acrobot import TIME_STEP as ACROBOT_STEP
from bpsearch.envs.acrobot import advance as acrobot_advance
from bpsearch.envs.acrobot import energy as acrobot_energy
from bpsearch.envs.cartpole_swingup import TIME_STEP, CartPoleState
from bpsearch.envs.cartpole_swingup import advance as cartpole_advance
from bpsearch.envs.cartpole_swingup import energy as cartpole_energy
from bpsearch.envs.trigonometry import sin_cos
from bpsearch.errors import InvalidArgumentError
from bpsearch.sampling.compiled import rollout

IDS = ["bpsearch/CartPoleSwingUp-v0", "bpsearch/Acrobot-v0", "bpsearch/StochasticGridworld-v0"]
CARTPOLE_START = np.array([0.2, -0.5, np.pi - 0.6, 1.5])
ACROBOT_START = np.array([0.6, -1.0, -0.4, 2.0])


@pytest.fixture(autouse=True)
def _in_64_bit():
    with jax.enable_x64(True):
        yield


def simulated(advance, kind, start, control, time_step, steps):
    """The states after each of `steps` steps, (steps, 4)."""

    def step(state, _):
        state = advance(state, control, time_step)
        return state, jnp.stack(state)

    run = jax.jit(lambda start: jax.lax.scan(step, kind(*start), None, length=steps)[1])
    return np.asarray(run(jnp.asarray(start)))


def independent(kinetic, potential, forces, start, seconds):
    """Integrate d/dt ∂K/∂v = ∂(K − V)/∂q + forces for a state (q_1, v_1, q_2, v_2), to a relative 1e-10."""

    def lagrangian(q, v):
        return kinetic(q, v) - potential(q)

    @jax.jit
    def derivative(state):
        q, v = state[::2], state[1::2]
        mass = jax.hessian(lagrangian, 1)(q, v)
        mixed = jax.jacobian(jax.grad(lagrangian, 1), 0)(q, v)
        acceleration = jnp.linalg.solve(mass, jax.grad(lagrangian, 0)(q, v) + jnp.asarray(forces) - mixed @ v)
        return jnp.stack([v, acceleration], axis=1).ravel()

    solution = solve_ivp(lambda _, y: np.asarray(derivative(y)), (0.0, seconds), start, rtol=1e-10, atol=1e-10)
    return solution.y[:, -1]


def cartpole_truth(force, seconds):
    """The pole as a body whose center of mass is at (x − l sin θ, l cos θ)."""

    def kinetic(q, v):
        velocity = jnp.array([v[0] - 0.5 * jnp.cos(q[1]) * v[1], -0.5 * jnp.sin(q[1]) * v[1]])
        return 0.5 * 1.0 * v[0] ** 2 + 0.5 * 0.1 * velocity @ velocity + 0.5 * 0.0084167 * v[1] ** 2

    return independent(kinetic, lambda q: 0.1 * 10.0 * 0.5 * jnp.cos(q[1]), [force, 0.0], CARTPOLE_START, seconds)


def acrobot_truth(torque, seconds):
    """Two bodies with their centers of mass at half their lengths, on absolute angles."""

    def heights(q):
        return -0.5 * jnp.cos(q[0]), -jnp.cos(q[0]) - 0.5 * jnp.cos(q[1])

    def kinetic(q, v):
        joint = jnp.array([jnp.cos(q[0]), jnp.sin(q[0])]) * v[0]
        second = joint + 0.5 * jnp.array([jnp.cos(q[1]), jnp.sin(q[1])]) * v[1]
        return 0.5 * 0.5 * (0.25 * joint @ joint + second @ second) + 0.5 * 0.0420833 * (v @ v)

    return independent(kinetic, lambda q: 5.0 * sum(heights(q)), [-torque, torque], ACROBOT_START, seconds)


def test_cartpole_agrees_with_scipy_and_converges_to_it():
    """One second of 5 N: each of [x, ẋ, θ, θ̇] within 0.15 at the environment's own step, and of first order."""
    truth = cartpole_truth(5.0, 1.0)
    errors = [
        np.abs(simulated(cartpole_advance, CartPoleState, CARTPOLE_START, 5.0, 1.0 / n, n)[-1] - truth).max()
        for n in (round(1.0 / TIME_STEP), 320, 640, 20480)
    ]
    assert errors[0] < 0.15
    assert errors[1] / errors[2] == pytest.approx(2.0, rel=0.05)
    assert errors[3] < 2e-4


def test_acrobot_agrees_with_scipy_and_converges_to_it():
    """One second of 2 N m, up to 20 rad/s: within 1e-4 at the environment's own step, and of at least fourth order."""
    truth = acrobot_truth(2.0, 1.0)
    errors = [
        np.abs(simulated(acrobot_advance, AcrobotState, ACROBOT_START, 2.0, 1.0 / n, n)[-1] - truth).max()
        for n in (round(1.0 / ACROBOT_STEP), 2 * round(1.0 / ACROBOT_STEP))
    ]
    assert errors[0] < 1e-4
    assert errors[0] / errors[1] > 14.0


def test_energy_is_conserved_without_force():
    """Over 50 actions: within 0.03 J on cart-pole, where raising the pole takes 1 J, and 1e-6 J on acrobot, of 20 J."""
    states = simulated(cartpole_advance, CartPoleState, CARTPOLE_START, 0.0, TIME_STEP, 50)
    energies = np.array([cartpole_energy(CartPoleState(*s)) for s in [CARTPOLE_START, *states]])
    assert np.abs(energies - energies[0]).max() < 0.03
    states = simulated(cartpole_advance, CartPoleState, CARTPOLE_START, 0.0, TIME_STEP / 100, 5000)
    fine = np.abs(cartpole_energy(CartPoleState(*states.T)) - energies[0]).max()
    assert fine < np.abs(energies - energies[0]).max() / 90
    states = simulated(acrobot_advance, AcrobotState, ACROBOT_START, 0.0, ACROBOT_STEP, 50 * STEPS_PER_ACTION)
    drift = acrobot_energy(AcrobotState(*states.T)) - acrobot_energy(AcrobotState(*ACROBOT_START))
    assert np.abs(drift).max() < 1e-6


def test_acrobot_is_stable_at_full_torque():
    """500 actions of ±50 N m in 32 bit, always, with the rotation, and at random: no state leaves its bounds."""
    env = bps.envs.acrobot()

    def step(states, key):
        along = jnp.where(states.omega_2[1] >= states.omega_1[1], 1.0, -1.0)
        signs = jnp.array([1.0, along, jnp.where(jax.random.bernoulli(key), 1.0, -1.0)], jnp.float32)
        states, rewards, _ = jax.vmap(env.step, (None, 0, 0))(key, states, MAX_TORQUE * signs[:, None])
        return states, (env.observe(states), rewards)

    def run(key):
        starts = jax.vmap(env.reset)(jax.random.split(key, 3))
        return jax.lax.scan(step, starts, jax.random.split(key, 500))[1]

    observations, rewards = map(np.asarray, jax.jit(run)(jax.random.key(0)))
    assert observations.dtype == rewards.dtype == np.float32
    assert all(env.observation_space.contains(o) for o in observations.reshape(-1, 6))
    assert np.abs(observations[..., [2, 5]]).max() == np.float32(MAX_SPEED)  # the limit is met
    assert np.all((rewards <= 0.0) & (rewards >= -4.0 - 1e-5))


def test_sine_and_cosine_are_those_of_numpy():
    """32 bit within 1.2e-7, twice the spacing of numbers below 1, up to the angles of the longest simulations."""
    for largest in (1.0, 10.0, 5000.0):
        angles = np.random.default_rng(0).uniform(-largest, largest, 100_000).astype(np.float32)
        sin, cos = map(np.asarray, jax.jit(sin_cos)(angles))
        assert sin.dtype == cos.dtype == np.float32
        np.testing.assert_allclose(sin, np.sin(angles.astype(np.float64)), rtol=0, atol=1.2e-7)
        np.testing.assert_allclose(cos, np.cos(angles.astype(np.float64)), rtol=0, atol=1.2e-7)
    np.testing.assert_array_equal(sin_cos(jnp.float64(1.0)), (jnp.sin(1.0), jnp.cos(1.0)))


def test_cartpole_rewards_and_ends():
    env = bps.envs.cartpole_swingup(dtype=np.float64)
    key = jax.random.key(0)
    state, reward, ended = env.step(key, CartPoleState(*map(jnp.float64, (0.0, 0.0, 0.3, 0.0))), np.array([0.0]))
    assert not ended
    assert reward == pytest.approx(np.cos(float(state.theta)))
    state, reward, ended = env.step(key, CartPoleState(*map(jnp.float64, (2.99, 1.0, 0.0, 0.0))), np.array([0.0]))
    assert ended
    assert reward == -1000.0
    strong, limit = (env.step(key, state, np.array([force]))[0] for force in (1e6, 10.0))
    assert strong == limit


def test_acrobot_reward_is_the_distance_of_the_tip():
    env = bps.envs.acrobot(dtype=np.float64)
    state, reward, ended = env.step(jax.random.key(0), AcrobotState(*map(jnp.float64, ACROBOT_START)), np.array([3.0]))
    theta_1, _, theta_2, _ = map(float, state)
    tip = np.array([np.sin(theta_1) + np.sin(theta_2), -np.cos(theta_1) - np.cos(theta_2)])
    assert reward == pytest.approx(-np.linalg.norm(tip - [0.0, 2.0]))
    assert not ended


@pytest.mark.parametrize("make", [bps.envs.cartpole_swingup, bps.envs.acrobot])
def test_the_simulation_stays_in_its_type(make):
    for dtype in (np.float32, np.float64):
        env = make(dtype=dtype)
        policy = bps.GaussianMLP.init(0, env.observation_space, env.action_space, dtype=dtype)
        traced = jax.make_jaxpr(lambda key, env=env, policy=policy: rollout(env, policy, key, 3))(jax.random.key(0))
        (scan,) = [equation for equation in traced.eqns if equation.primitive.name == "scan"]
        inside = {v.aval.dtype for e in scan.params["jaxpr"].eqns for v in e.outvars if hasattr(v.aval, "dtype")}
        floats = {d for d in inside if jnp.issubdtype(d, jnp.floating)}
        assert floats == {np.dtype(dtype)}


@pytest.mark.filterwarnings("ignore:.*infinity. This is probably too:UserWarning")
@pytest.mark.filterwarnings("ignore:.*we recommend using a symmetric and normalized space:UserWarning")
@pytest.mark.parametrize("env_id", IDS)
def test_gymnasium_accepts_the_environment(env_id):
    check_env(gymnasium.make(env_id).unwrapped)


@pytest.mark.parametrize("env_id", IDS[:2])
def test_pictures(env_id):
    env = gymnasium.make(env_id, render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    env.step(env.action_space.high)
    after = env.render()
    assert before.ndim == 3
    assert before.dtype == np.uint8
    assert not np.array_equal(before, after)
    with pytest.raises(InvalidArgumentError, match="render_mode"):
        bps.envs.GymnasiumEnv(bps.envs.gridworld(), render_mode="rgb_array")


@pytest.mark.parametrize("env_id", IDS)
def test_the_vector_environment_runs_the_episodes_of_single_ones(env_id):
    settings = {} if "Gridworld" in env_id else {"horizon": 4}
    vector = gymnasium.make_vec(env_id, num_envs=3, **settings)
    assert vector.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    reference = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(env_id, **settings) for _ in range(3)])
    assert vector.observation_space == reference.observation_space
    assert vector.action_space == reference.action_space
    seeds = [5, 17, 4]
    starts = (vector.reset(seed=seeds)[0], reference.reset(seed=seeds)[0])
    np.testing.assert_allclose(*starts, rtol=1e-5)  # 32 bit, vectorized differently
    vector.action_space.seed(0)
    for _ in range(12 if settings else 150):
        actions = vector.action_space.sample()
        for a, b in zip(vector.step(actions)[:4], reference.step(actions)[:4], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_the_vector_environment_resets_those_of_the_mask():
    vector = gymnasium.make_vec("bpsearch/Acrobot-v0", num_envs=3)
    first, _ = vector.reset(seed=0)
    vector.step(vector.action_space.sample())
    mask = np.array([False, True, False])
    again, _ = vector.reset(seed=[0, 1, 2], options={"reset_mask": mask})
    np.testing.assert_array_equal(again[1], first[1])
    assert not np.array_equal(again[0], first[0])
    with pytest.raises(InvalidArgumentError, match="reset_mask must be 3 bools"):
        vector.reset(options={"reset_mask": np.zeros(3, bool)})
    with pytest.raises(InvalidArgumentError, match="actions must be in"):
        vector.step(np.full((3, 1), np.nan))


@pytest.mark.slow
def test_ids_are_found_in_a_program_that_does_not_import_bpsearch():
    program = (
        "import gymnasium; e = gymnasium.make('bpsearch.envs:bpsearch/CartPoleSwingUp-v0'); e.reset(seed=0); "
        "v = gymnasium.make_vec('bpsearch.envs:bpsearch/Acrobot-v0', num_envs=2); print(v.reset(seed=0)[0].shape)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(2, 6)"
