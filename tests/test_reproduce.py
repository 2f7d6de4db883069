"""`bpsearch reproduce`: runs that go on after an interruption, verdicts that are computed, and the whole command."""

import csv
import json

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.paper.claims import (
    Verdict,
    number_claim,
    reduction_interval,
    significance_claim,
)
from bpsearch.paper.curves import checkpoints, running_squared_errors
from bpsearch.paper.runs import Run, execute, means_only
from bpsearch.paper.trials import Trials
from test_cli import bpsearch

pytestmark = pytest.mark.slow


def means(run, directory, progress=lambda *_: None):
    return execute([run], directory, progress)[run.name]["means"]


def small_run(count, step_size=1e-5):
    trials = Trials(bps.BPG(step_size), iterations=3, batch_size=10, seed=1, group=2)
    return Run("small", trials, bps.envs.gridworld(), bps.shipped_policy("gridworld-early"), count, means_only)


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    steps = []
    whole = means(small_run(5), tmp_path / "whole")

    def interrupt(_, cost):
        steps.append(cost)
        if len(steps) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        means(small_run(5), tmp_path / "broken", interrupt)
    written = len(list((tmp_path / "broken").rglob("*.npz")))
    assert 0 < written < 3
    resumed = []
    again = means(small_run(5), tmp_path / "broken", lambda _, cost: resumed.append(cost))
    np.testing.assert_array_equal(again, whole)
    assert resumed[0] == pytest.approx(small_run(5).cost * 2 * written / 5)
    assert sum(resumed) == pytest.approx(small_run(5).cost)


def test_more_trials_extend_a_run_and_other_settings_start_anew(tmp_path):
    few = means(small_run(2), tmp_path)
    more = means(small_run(4), tmp_path)
    np.testing.assert_array_equal(more[:2], few)
    means(small_run(2, step_size=2e-5), tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_half_written_file_is_no_trial(tmp_path):
    whole = means(small_run(2), tmp_path)
    (path,) = tmp_path.rglob("*.npz")
    path.rename(path.with_suffix(".tmp"))
    np.testing.assert_array_equal(means(small_run(2), tmp_path), whole)


def test_verdicts_follow_from_the_numbers():
    rng = np.random.default_rng(0)
    low, high = rng.chisquare(1, 100), 3.0 * rng.chisquare(1, 100)
    lower = significance_claim("a", "lower", low, high, measured="m")
    assert lower.verdict == Verdict.REPRODUCED
    assert lower.p_value < 0.05
    assert lower.interval[0] < 2 / 3 < lower.interval[1]
    assert significance_claim("b", "lower", high, low, measured="m").verdict == Verdict.NOT_REPRODUCED
    assert significance_claim("c", "no difference", high, low, measured="m", expect=False).verdict == Verdict.REPRODUCED

    def verdict(ours, interval, optimum=None):
        return number_claim("d", "t", measured="m", ours=ours, interval=interval, paper=0.85, optimum=optimum).verdict

    assert verdict(0.8, (0.7, 0.9)) == Verdict.REPRODUCED
    assert verdict(0.5, (0.4, 0.6)) == Verdict.NOT_REPRODUCED
    assert verdict(0.5, (0.4, 0.6), optimum=0.78) == Verdict.NOT_COMPARABLE
    assert verdict(0.5, (0.4, 0.6), optimum=0.95) == Verdict.NOT_REPRODUCED


def test_the_bootstrap_interval_covers():
    """200 intervals for a known reduction of 1/2: at most 22 misses (binomial tail about 1e-3)."""
    rng = np.random.default_rng(1)
    misses = 0
    for _ in range(200):
        low, high = reduction_interval(rng.chisquare(1, 200), 2.0 * rng.chisquare(1, 200), resamples=1000)
        misses += not low <= 0.5 <= high
    assert misses <= 22


def test_curves():
    points = checkpoints(1000)
    assert points[0] == 0
    assert points[-1] == 999
    assert (np.diff(points) > 0).all()
    np.testing.assert_allclose(running_squared_errors(np.array([[1.0, 3.0]]), 1.0), [[0.0, 1.0]])


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    out = tmp_path_factory.mktemp("paper")
    done = bpsearch("reproduce", "tabular", "--trials", "10", "--out", str(out), cwd=out)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_every_experiment_writes_figures_tables_and_claims(reproduced):
    out, printed = reproduced
    for name in ("figure-1-gridworld", "figure-3a-control-variates", "figure-3b-rare-event"):
        for suffix in ("png", "svg"):
            assert (out / f"{name}.{suffix}").stat().st_size > 5_000
    claims = json.loads((out / "claims.json").read_text())
    assert claims["settings"]["trials"] == 10
    for found in claims["experiments"].values():
        for claim in found:
            assert claim["verdict"] in list(Verdict)
            assert claim["name"] in printed
            assert np.isfinite(claim["ours"])
    with (out / "gridworld-mse.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["episodes"]) == 100_000
    assert all(np.isfinite(float(value)) for row in rows for value in row.values())


def test_what_a_few_trials_can_show_is_reproduced(reproduced):
    """Claims with exact numbers behind them do not hang on luck."""
    claims = json.loads((reproduced[0] / "claims.json").read_text())["experiments"]
    by_name = {claim["name"]: claim for found in claims.values() for claim in found}
    for name in ("pi_1-achieved", "pi_2-achieved", "returns-spread", "variance-decrease", "step-sizes"):
        assert by_name[name]["verdict"] == "reproduced", by_name[name]
    for name in ("dr-final-exact", "falls-with-p", "rarest", "common"):
        assert by_name[name]["verdict"] == "reproduced", by_name[name]
    assert by_name["pi_1-achieved"]["ours"] > 0.99


def test_an_unknown_experiment_is_refused(in_process):
    done = in_process("reproduce", "everything")
    assert done.returncode == 2
    assert "experiment must be one of gridworld" in done.stderr
