"""Compiled trials: independent of devices, grouping and of what ran before."""

import os
import subprocess
import sys

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.paper.on_policy import OnPolicyCurve
from bpsearch.paper.trials import Job, Trials, run_jobs

pytestmark = pytest.mark.slow

PROGRAM = """
import sys, jax, numpy as np
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
import bpsearch as bps
from bpsearch.paper.trials import Trials

assert len(jax.devices()) == int(sys.argv[1])
trials = Trials(bps.BPG(1e-5), iterations=20, batch_size=50, seed=3, group=1)
states, means = trials.run(bps.envs.gridworld(), bps.shipped_policy("gridworld-early"), 7)
np.savez(sys.argv[2], parameters=states.parameters, means=means)
"""


def test_the_same_numbers_on_one_and_on_two_devices(tmp_path):
    for devices in (1, 2):
        path = tmp_path / f"{devices}.npz"
        anew = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
        subprocess.run([sys.executable, "-c", PROGRAM, str(devices), str(path)], env=anew, check=True)
    one, two = (np.load(tmp_path / f"{devices}.npz") for devices in (1, 2))
    for name in ("parameters", "means"):
        np.testing.assert_array_equal(one[name], two[name])
    assert one["means"].shape == (7, 20)


def test_a_trial_depends_on_its_index_only():
    mdp, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    trials = Trials(bps.BPG(1e-5), iterations=5, batch_size=20, seed=3, group=3)
    _, all_means = trials.run(mdp, policy, 7)
    later = dict(
        pair
        for _, group, (_, means) in run_jobs([Job(trials, mdp, policy, [5, 2])])
        for pair in zip(group, means, strict=True)
    )
    np.testing.assert_array_equal(later[5], all_means[5])
    np.testing.assert_array_equal(later[2], all_means[2])
    assert len(np.unique(all_means[:, 0])) == 7


def test_a_trial_is_the_search_step_by_step():
    """The compiled trial gives what `behavior`, `sample` and `step` give one by one, on average over trials."""
    mdp, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    search = bps.BPG(1e-5)
    _, means = Trials(search, iterations=3, batch_size=100, seed=1).run(mdp, policy, 100)
    exact = bps.oracle.value(mdp, policy)
    error = means.std(axis=0, ddof=1) / 10
    assert (np.abs(means.mean(axis=0) - exact) < 4.9 * error).all()


def test_jobs_share_the_devices_and_keep_their_groups_apart():
    mdp, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    searches = (OnPolicyCurve(), bps.BPG(1e-5), bps.BPG(1e-4))
    jobs = [Job(Trials(search, 4, 20, seed=2, group=2), mdp, policy, list(range(5))) for search in searches]
    found = {}
    for position, group, (_, means) in run_jobs(jobs):
        found |= {(position, index): row for index, row in zip(group, means, strict=True)}
    assert len(found) == 15
    for position, job in enumerate(jobs):
        _, means = job.trials.run(mdp, policy, 5)
        np.testing.assert_array_equal(means, np.stack([found[position, index] for index in range(5)]))


def test_a_program_is_compiled_once_for_all_cores(tmp_path):
    """Two threads, six jobs that differ in numbers only, in the schedule of a model too: two programs."""
    program = """
import jax
jax.config.update("jax_num_cpu_devices", 2)
import bpsearch as bps
from bpsearch.estimators import advantage_sum
from bpsearch.control_variates import TabularModel
from bpsearch.paper.on_policy import OnPolicyCurve
from bpsearch.paper.trials import Job, Trials, _run_block, run_jobs
mdp, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
models = [TabularModel.like(mdp, "fixed", 2), TabularModel.like(mdp, "fixed", 3), TabularModel.like(mdp, refit=1.5)]
searches = [bps.BPG(1e-5), bps.BPG(1e-4), bps.BPG(1e-3), *(OnPolicyCurve(advantage_sum, model) for model in models)]
jobs = [Job(Trials(search, 4, 20, group=2), mdp, policy, list(range(6))) for search in searches]
groups = [(position, *group) for position, group, _ in run_jobs(jobs)]
assert len(set(groups)) == 18, groups
print(_run_block._cache_size())
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2"]


def test_an_error_in_a_group_reaches_the_caller():
    def broken(search, state, info, batch):
        raise ArithmeticError("no record")

    trials = Trials(OnPolicyCurve(), iterations=2, batch_size=5, record=broken)
    with pytest.raises(ArithmeticError, match="no record"):
        trials.run(bps.envs.gridworld(), bps.shipped_policy("gridworld-early"), 20)
