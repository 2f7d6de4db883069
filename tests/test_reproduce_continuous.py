"""Figure 2 on a small scale: its files and claims, the truth's error, divergence, the choice of a step."""

import csv
from functools import partial

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.inference.variance_split import split_variance
from bpsearch.paper.continuous import Continuous, ContinuousExtras, Domain
from bpsearch.paper.continuous_figure import Curve
from bpsearch.paper.reproduce import progress_display, run_experiments
from bpsearch.paper.starts import returns_by_start
from bpsearch.paper.step_choice import Reference, choose_step, find_diverged

pytestmark = pytest.mark.slow

BATCH = 20
CARTPOLE = Domain(
    "cartpole-swingup",
    "Cart-pole swing-up",
    partial(bps.envs.cartpole_swingup, horizon=5),
    (1.0, 1e-6, 1e-7),
    (100.0, 1e-4, 1e-5),
)
ACROBOT = Domain("acrobot", "Acrobot", partial(bps.envs.acrobot, horizon=5), (1e-9, 1e-10), (1e-6, 1e-7))
SMALL = {"iterations": 50, "batch_size": BATCH, "sweep_iterations": 50, "split_starts": 100}
REFERENCE = Reference(value=10.0, std_error=0.01, variance=4.0, episodes=40_000)


def run(experiment, out):
    out.mkdir(exist_ok=True)
    return run_experiments([experiment], out, progress_display(quiet=True))[experiment.name]


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_figure_2_end_to_end(tmp_path):
    claims = {c.name: c for c in run(Continuous(2, 0, domains=(CARTPOLE, ACROBOT), **SMALL), tmp_path)}
    assert set(claims) == {
        *(f"{d}-{c}" for d in ("cartpole-swingup", "acrobot") for c in ("mse", "mse-by-batch", "action-noise")),
        "acrobot-gap",
    }
    for name in ("figure-2-continuous.png", "figure-2-continuous.svg"):
        assert (tmp_path / name).stat().st_size > 10_000
    for row in rows(tmp_path / "continuous-mse.csv"):
        assert np.isfinite([float(value) for value in row.values()]).all()
    for row in rows(tmp_path / "continuous-truth.csv"):
        variance, episodes = float(row["variance"]), int(row["episodes"])
        assert episodes == 10 * 50 * BATCH
        assert float(row["std-error"]) == pytest.approx(np.sqrt(variance / episodes))
    steps = rows(tmp_path / "continuous-steps.csv")
    wild = next(row for row in steps if row["step"] == "1.0")
    assert (wild["diverged"], wild["chosen"], wild["final-variance-ratio"]) == ("2", "False", "inf")
    assert [
        sum(row["chosen"] == "True" for row in steps if row["domain"] == d) for d in ("cartpole-swingup", "acrobot")
    ]

    kept = sorted(path.name for path in (tmp_path / "trials").iterdir())
    assert kept == ["continuous"]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("trials/continuous/*/*.npz")}
    again = {c.name: c for c in run(Continuous(2, 0, domains=(CARTPOLE, ACROBOT), **SMALL), tmp_path)}
    assert {name: c.to_json() for name, c in again.items()} == {name: c.to_json() for name, c in claims.items()}
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_the_additions_share_the_trials_of_the_figure(tmp_path):
    experiment = ContinuousExtras(2, 0, domains=(CARTPOLE,), **SMALL)
    names = {c.name for c in run(experiment, tmp_path)}
    assert names == {f"cartpole-swingup-{v}" for v in ("normalized", "per-decision", "last-layer")}
    assert (tmp_path / "figure-2-continuous-extras.png").exists()
    proper = Continuous(2, 0, domains=(CARTPOLE,), **SMALL)
    assert {r.name for r in proper.runs()} < {r.name for r in experiment.runs()}
    assert all(r.store == "continuous" for r in experiment.runs())


def test_the_progress_display_knows_the_second_stage():
    experiment = Continuous(2, 0, domains=(CARTPOLE,), **SMALL)
    first = sum(run.cost for run in experiment.runs())
    assert experiment.cost() - first == 2 * 50 * BATCH * 5


def batches(trials=3, iterations=60, scale=1.0):
    """Batches of 25 episodes of a search whose variance is `scale` times Monte Carlo's."""
    random = np.random.default_rng(0)
    variance = scale * REFERENCE.variance
    return {
        "means": REFERENCE.value + np.sqrt(variance / 25) * random.standard_normal((trials, iterations)),
        "variances": variance * random.chisquare(24, (trials, iterations)) / 24,
    }


def test_divergence_is_detected_and_counted():
    arrays = batches(5)
    assert not find_diverged(arrays, REFERENCE, 25).any()
    arrays["means"][0, 50:] = np.nan  # no number
    arrays["variances"][1, 30:] = np.inf
    arrays["means"][2, 40:], arrays["variances"][2, 40:] = 0.0, 0.0  # all weights have vanished
    arrays["variances"][3, 10:40] *= 50.0  # far above Monte Carlo, and back
    np.testing.assert_array_equal(find_diverged(arrays, REFERENCE, 25), [True, True, True, True, False])
    curve = Curve.of("BPG", arrays, REFERENCE, 25)
    assert (curve.diverged, curve.legend) == (4, "BPG (4 of 5 diverged)")
    assert np.isfinite(curve.squared_errors()).all()


def test_a_diverged_trial_forbids_a_reproduced_claim(tmp_path):
    wild = Domain(CARTPOLE.name, CARTPOLE.title, CARTPOLE.make, (1.0,), (1.0,))
    claims = {c.name: c for c in run(Continuous(2, 0, domains=(wild,), **SMALL), tmp_path)}
    claim = claims["cartpole-swingup-mse-by-batch"]
    assert claim.verdict == "not reproduced"
    assert "2 of 2 trials diverged" in claim.measured


def test_the_chosen_step_has_a_margin_to_divergence():
    gone = batches()
    gone["means"][0, -1] = np.nan
    sweep = {1e-3: batches(scale=0.3), 3e-3: gone, 3e-4: batches(scale=0.6), 1e-4: batches(scale=0.9)}
    assert choose_step(sweep, REFERENCE, 25) == 3e-4
    assert choose_step(sweep | {1e-4: gone}, REFERENCE, 25) == 1e-4
    assert choose_step({1e-3: batches(scale=0.3), 1e-4: batches(scale=0.6)}, REFERENCE, 25) == 1e-3
    assert choose_step({1e-2: gone, 1e-3: gone}, REFERENCE, 25) == 1e-3


def test_errors_of_all_batches_estimate_the_final_mean_squared_error():
    """Both have the mean Var / (n k); z-test over 4000 trials, false alarm below 1e-6."""
    curve = Curve.of("Monte Carlo", batches(4000, 30), REFERENCE, 25)
    expected = REFERENCE.variance / (30 * 25)
    spread = {}
    for by_batch in (False, True):
        errors = curve.final_errors(by_batch=by_batch)
        spread[by_batch] = errors.std() / np.sqrt(len(errors))
        assert abs(errors.mean() - expected) < 4.9 * spread[by_batch]
    assert spread[True] < 0.25 * spread[False]


def test_the_reference_of_batches():
    random = np.random.default_rng(1)
    values = random.normal(3.0, 2.0, (4, 10, 25))
    reference = Reference.of({"means": values.mean(axis=2), "variances": values.var(axis=2)}, 25)
    assert reference.value == pytest.approx(values.mean())
    assert reference.variance == pytest.approx(values.var(ddof=1))
    assert reference.std_error == pytest.approx(values.std(ddof=1) / np.sqrt(values.size))


def test_the_variance_split_of_known_parts():
    random = np.random.default_rng(2)
    returns = random.normal(0.0, 3.0, (4000, 1)) + random.normal(0.0, 1.0, (4000, 10))
    parts = split_variance(returns)
    for value, expected, error in zip(
        (parts.start, parts.action, parts.share), (9.0, 1.0, 0.1), parts.std_errors, strict=True
    ):
        assert abs(value - expected) < 4.9 * error < 0.15 * expected


def test_episodes_from_one_start_differ_by_their_actions_only():
    returns = returns_by_start(bps.envs.acrobot(horizon=5), bps.shipped_policy("acrobot"), 150, 4)
    assert returns.shape == (150, 4)
    assert (returns.std(axis=1) > 0.0).all()
    assert returns.std(axis=1).mean() < 0.5 * returns.std()
