"""The benchmark of evaluators measures what it says."""

import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from scipy import stats
from stable_baselines3 import PPO

import bpsearch as bps
from benchmarks.evaluators.agents import network_of
from benchmarks.evaluators.beside import beside
from benchmarks.evaluators.measure import Outcome, Studies, cell
from benchmarks.evaluators.methods import METHODS
from benchmarks.evaluators.ros import ROS
from benchmarks.evaluators.run import Settings, is_kept, run
from benchmarks.evaluators.table import read_csv, width_text, write_csv
from benchmarks.evaluators.tasks import TASKS, references
from benchmarks.looks import study_seed
from bpsearch.inference.intervals import martingale_error
from bpsearch.inference.valuation import Values
from bpsearch.methods import find_method, for_policy
from enumeration import enumerate_trajectories

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
TABLES = [name for name in TASKS if name.startswith(("gridworld", "stochastic", "rare", "random"))]


def values(seed=0, studies=3, batches=4, size=7):
    scale = np.arange(1, batches + 1)[:, None]
    return np.random.default_rng(seed).normal(size=(studies, batches, size)) * scale


def test_the_intervals_are_those_of_an_estimate():
    data = values()
    counts = np.array([0.5, 1.0, 1.0, 2.0])
    studies = Studies(data.mean(axis=2), data.var(axis=2, ddof=1), data.shape[2], counts)
    half, estimates = studies.half_widths(), studies.estimates()
    for study, batches in np.ndindex(half.shape):
        told, weights = list(data[study, : batches + 1]), list(counts[: batches + 1])
        error = martingale_error(told, weights)
        assert half[study, batches] == pytest.approx(error.half_width(0.95))
        assert estimates[study, batches] == pytest.approx(Values(told, weights, error, error).mean)
    again = Studies.of_episodes(data.reshape(3, -1), 7)
    np.testing.assert_allclose(again.means, studies.means)
    np.testing.assert_allclose(again.variances, studies.variances)


def test_values_without_spread_have_no_interval():
    assert np.isnan(Studies(np.ones((2, 3)), np.zeros((2, 3)), 5, np.ones(3)).half_widths()).all()


def test_a_cell_by_hand():
    # After two batches of 10 the four estimates are off by -1, 0, 0.5 and 4; Monte Carlo's variance is 8/20.
    means = np.array([[9.0, 9.0], [9.0, 11.0], [10.5, 10.5], [14.0, 14.0]])
    studies = Studies(means, np.full((4, 2), 4.0), 10, np.ones(2))
    found = cell("t", "m", studies.at(20), 20, truth=10.0, truth_error=0.2, variance=8.0, biased=False)
    assert found.ratio == pytest.approx((1.0 + 0.0 + 0.25 + 16.0) / 4 / 0.4)
    assert found.ratio_low < found.ratio < found.ratio_high
    assert found.refined == pytest.approx((2.0 + 2.0 + 0.5 + 32.0) / 4 / 4 / 0.4)
    assert found.bias == pytest.approx(3.5 / 4 / np.sqrt(0.4))
    # Each interval is ± t(18) sqrt(4/20) = ± 0.94.
    assert found.coverage == 0.5
    assert found.floor == pytest.approx(0.04 / 0.4)
    assert found.diverged == 0
    # Monte Carlo's is ± t(19) sqrt(8/20).
    assert found.width == pytest.approx(stats.t.ppf(0.975, 18) / stats.t.ppf(0.975, 19) * np.sqrt(0.5))
    assert found.tight_width is None


def test_widths_are_medians_of_the_intervals_that_there_are():
    half = np.array([1.0, np.nan, 5.0, 2.0])
    outcome = Outcome(np.ones(4), half, tight_half_widths=0.5 * half)
    found = cell("t", "m", outcome, 16, truth=1.0, truth_error=0.0, variance=4.0, biased=False)
    plain = stats.t.ppf(0.975, 15) * np.sqrt(4.0 / 16)
    assert (found.width, found.tight_width) == pytest.approx((2.0 / plain, 1.0 / plain))
    assert width_text(found) == "1.9 (0.94)"


def test_monte_carlos_error_on_the_same_episodes_takes_the_noise_away():
    """A method that halves every error: exactly a quarter of Monte Carlo's, however the studies fell out."""
    errors = np.random.default_rng(0).normal(size=50)
    outcome = Outcome(3.0 + 0.5 * errors, np.ones(50), plain=3.0 + errors)
    found = cell("t", "m", outcome, 20, truth=3.0, truth_error=0.0, variance=20.0, biased=False)
    assert found.refined == pytest.approx(0.25, abs=1e-12)
    assert found.refined_high - found.refined_low < 1e-9
    assert found.ratio == pytest.approx(0.25 * np.mean(errors**2))
    assert cell("t", "m", outcome, 20, truth=3.0, truth_error=0.0, variance=20.0, biased=True).refined is None


def test_two_runs_side_by_side():
    half = np.array([1.0, 1.0])
    known = {"truth": 0.0, "truth_error": 0.0, "variance": 16.0, "biased": False}
    old = cell("rare-0.3", "auto", Outcome(np.array([1.0, -1.0]), half), 16, **known)
    new = cell("rare-0.3", "auto", Outcome(np.array([0.5, -0.5]), half, tight_half_widths=0.5 * half), 16, **known)
    page = beside([old, replace(old, method="mc"), replace(old, episodes=32)], [new], "auto").splitlines()
    assert len(page) == 3
    assert page[2] == (
        "| rare event, p = 0.3 | 16 | 1 (1–1) | 0.25 (0.25–0.25) | 0.25 | 100% | 100% | 0.47 | 0.47 (0.23) |"
    )


def test_a_study_that_diverged_is_counted_and_spoils_the_mean():
    means = np.array([[1.0, np.nan], [1.0, 1.0]])
    studies = Studies(means, np.ones((2, 2)), 10, np.ones(2))
    found = cell("t", "m", studies.at(20), 20, truth=1.0, truth_error=0.0, variance=1.0, biased=False)
    assert (found.diverged, found.ratio, found.refined, found.coverage) == (1, np.inf, np.inf, 0.5)
    before = cell("t", "m", studies.at(10), 10, truth=1.0, truth_error=0.0, variance=1.0, biased=False)
    assert (before.diverged, before.ratio) == (0, 0.0)


@pytest.mark.parametrize("name", TABLES)
def test_references_of_tables_are_exact(name):
    task, known = TASKS[name](), references()[name]
    assert task.name == name
    assert known.value == pytest.approx(bps.oracle.value(task.env, task.policy), rel=1e-12)
    assert known.variance == pytest.approx(bps.oracle.variance(task.env, task.policy, None, "mc"), rel=1e-9)
    assert (known.std_error, known.episodes) == (0.0, 0)
    assert 0.0 <= known.optimum <= 1.0
    truth = bps.oracle.q_function(task.env, task.policy)
    best = bps.oracle.optimal_behavior(task.env, task.policy, "dr", truth)[1] / known.variance
    assert known.best == pytest.approx(best, rel=1e-9, abs=1e-12)
    assert known.best <= known.environment_share


def test_every_task_has_its_reference():
    assert list(references()) == list(TASKS)


def bandit():
    """Two actions, one step, rewards 1 and 5."""
    rewards = np.zeros((2, 2, 2))
    rewards[0, 1], rewards[0, 0] = 5.0, 1.0
    transitions = np.zeros((2, 2, 2))
    transitions[..., 1] = 1.0
    return bps.TabularMDP(transitions, rewards, np.array([1.0, 0.0]), np.array([False, True]), horizon=1)


def test_ros_steps_against_the_mean_score_and_is_biased():
    env, policy = bandit(), bps.SoftmaxTable(np.array([[0.3, -0.2], [0.0, 0.0]]))
    search, all_episodes = ROS(2.0), enumerate_trajectories(env)
    pi = policy.probabilities[0]
    truth = bps.oracle.value(env, policy)
    expected = 0.0
    for row, probability in enumerate(all_episodes.probabilities(policy.probabilities)):
        batch = jax.tree_util.tree_map(lambda x, row=row: x[row : row + 1], all_episodes.under(policy))
        state, info = search.step(search.init(policy), batch)
        action = int(batch.actions[0, 0])
        logits = policy.logits[0] - 2.0 * (np.eye(2)[action] - pi)
        after = search.behavior(state).probabilities[0]
        np.testing.assert_allclose(after, np.exp(logits) / np.exp(logits).sum())
        assert after[action] < pi[action]
        expected += probability * (info.values[0] + after @ [1.0, 5.0]) / 2
    assert abs(expected - truth) > 0.01


@pytest.mark.slow
def test_studies_are_kept_and_begun_alike(tmp_path):
    task, few = TASKS["random-0"](), Settings(2, (10, 40), 10, seed=0, store=tmp_path)
    two = run(task, "mc", METHODS["mc"], few)
    three = run(task, "mc", METHODS["mc"], replace(few, studies=3))
    np.testing.assert_array_equal(three[40].estimates[:2], two[40].estimates)
    assert len(np.unique(three[40].batch_means)) == 12
    bpg = run(task, "bpg", METHODS["bpg"], few)
    np.testing.assert_allclose(bpg[10].estimates, two[10].estimates, rtol=1e-12)
    for name in ("mc", "auto"):
        first = run(task, name, METHODS[name], few)
        assert is_kept(task, name, METHODS[name], few)
        assert not is_kept(task, name, METHODS[name], replace(few, studies=4))
        (kept,) = tmp_path.glob(f"random-0--{name}-*")
        (kept / "stale").touch()
        again = run(task, name, METHODS[name], replace(few, fresh=True))
        assert not (kept / "stale").exists()
        np.testing.assert_array_equal(again[40].estimates, first[40].estimates)


def test_what_is_no_program_is_a_study_of_evaluate(tmp_path):
    task, settings = TASKS["random-0"](), Settings(2, (10, 40), 10, seed=0, store=tmp_path)
    found, seed = run(task, "auto", METHODS["auto"], settings), study_seed(zlib.crc32(b"random-0"), 1)
    auto = replace(for_policy(find_method("auto"), task.policy), batch_size=10)
    estimate = bps.evaluate(task.policy, task.env, 40, auto, seed=seed)
    assert found[40].estimates[1] == estimate.value
    for half_widths, interval in (
        (found[40].half_widths, estimate.interval()),
        (found[40].tight_half_widths, estimate.tight_interval()),
    ):
        assert half_widths[1] == (interval[1] - interval[0]) / 2
    np.testing.assert_allclose(found[10].estimates, found[10].plain, rtol=1e-12)  # too few to learn from
    monte_carlo = replace(find_method("mc"), batch_size=10)
    for size in (10, 40):
        assert found[size].plain[1] == pytest.approx(
            bps.evaluate(task.policy, task.env, size, monte_carlo, seed=seed).value, rel=1e-12
        )
    assert estimate.value != pytest.approx(found[40].plain[1], rel=1e-6)
    assert found[40].batch_means is None


def test_auto_may_move_as_evaluate_lets_it(tmp_path):
    task, settings = TASKS["gridworld-converged"](), Settings(1, (100, 400), 100, seed=0, store=tmp_path)
    found = run(task, "auto", METHODS["auto"], settings)
    seed = study_seed(zlib.crc32(b"gridworld-converged"), 0)
    moved = bps.evaluate(task.policy, task.env, 400, seed=seed)
    assert found[400].estimates[0] == moved.value
    assert moved.value != bps.evaluate(task.policy, task.env, 400, find_method("auto"), seed=seed).value


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1"])
def test_networks_are_the_agents(env_id):
    """Probabilities as SB3 computes them, and the value of a Monte Carlo run in Gymnasium.

    The z-test gives a false alarm in 1 of 16,000 runs.
    """
    path = ROOT / "tests" / "agents" / f"ppo-{env_id.lower()}.zip"
    policy, task = PPO.load(path, device="cpu").policy, TASKS[f"{env_id.lower()}-half"]()
    network = network_of(policy)
    np.testing.assert_array_equal(network.flat, task.policy.flat)
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(200, task.env.observation_space.shape[0])).astype(np.float32)
    if env_id == "Pendulum-v1":
        actions = rng.normal(size=(200, 1)).astype(np.float32)
    else:
        actions = rng.integers(task.env.action_space.n, size=200)
    with torch.no_grad():
        expected = policy.get_distribution(torch.tensor(observations)).log_prob(torch.tensor(actions)).numpy()
    np.testing.assert_allclose(network.log_prob(observations, actions), expected, rtol=1e-4, atol=1e-5)
    with bps.environment(env_id, num_envs=20) as env:
        sampled, known = bps.evaluate(path, env, episodes=60, method="mc", seed=0), references()[task.name]
    assert abs(sampled.value - known.value) < 4.0 * np.sqrt(known.variance / 60)


@pytest.mark.slow
def test_the_command_writes_what_it_measured(tmp_path):
    what = ["--tasks", "random-1,random-2", "--methods", "mc,as,auto,ros"]
    size = ["--studies", "3", "--budget", "10", "20", "--batch", "10"]
    command = [sys.executable, "-W", "error", "-m", "benchmarks.evaluators", *what, *size]
    done = subprocess.run(
        [*command, "--out", str(tmp_path), "--store", str(tmp_path / "studies")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cells = read_csv(tmp_path / "evaluators.csv")
    assert [(c.task, c.method, c.episodes) for c in cells] == [
        (task, method, n)
        for task in ("random-1", "random-2")
        for method in ("mc", "as", "auto", "ros")
        for n in (10, 20)
    ]
    assert [c.biased for c in cells[:8]] == [False] * 6 + [True] * 2
    write_csv(cells, tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "evaluators.csv").read_text()
    page = (tmp_path / "evaluators.md").read_text()
    assert f"{cells[0].ratio:.2g} ({cells[0].ratio_low:.2g}–{cells[0].ratio_high:.2g})" in page
    assert f"| {cells[4].width:.2g} ({cells[4].tight_width:.2g}) |" in page
    assert (tmp_path / "evaluators.png").exists()


def test_the_command_refuses_unknown_names():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.evaluators", "--methods", "mc,magic"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "'magic' is not one of auto, mc, bpg" in done.stderr
