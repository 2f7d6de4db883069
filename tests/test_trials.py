"""Compiled trials: independent of devices, grouping and of what ran before."""

import subprocess
import sys

import numpy as np

import bpsearch as bps
from bpsearch.training import load_policy
from bpsearch.trials import Trials

PROGRAM = """
import sys, jax, numpy as np
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
import bpsearch as bps
from bpsearch.training import load_policy
from bpsearch.trials import Trials
assert len(jax.devices()) == int(sys.argv[1])
trials = Trials(bps.BPG(1e-5), iterations=20, batch_size=50, seed=3, group=3)
states, means = trials.run(bps.envs.gridworld(), load_policy("gridworld-early"), 7)
np.savez(sys.argv[2], parameters=states.parameters, means=means)
"""


def test_the_same_numbers_on_one_and_on_two_devices(tmp_path):
    for devices in (1, 2):
        path = tmp_path / f"{devices}.npz"
        subprocess.run([sys.executable, "-c", PROGRAM, str(devices), str(path)], check=True)
    one, two = (np.load(tmp_path / f"{devices}.npz") for devices in (1, 2))
    for name in ("parameters", "means"):
        np.testing.assert_array_equal(one[name], two[name])
    assert one["means"].shape == (7, 20)


def test_a_trial_depends_on_its_index_only():
    mdp, policy = bps.envs.gridworld(), load_policy("gridworld-early")
    trials = Trials(bps.BPG(1e-5), iterations=5, batch_size=20, seed=3, group=3)
    _, all_means = trials.run(mdp, policy, 7)
    later = dict(
        pair
        for group, (_, means) in trials.run_in_groups(mdp, policy, [5, 2])
        for pair in zip(group, means, strict=True)
    )
    np.testing.assert_array_equal(later[5], all_means[5])
    np.testing.assert_array_equal(later[2], all_means[2])
    assert len(np.unique(all_means[:, 0])) == 7


def test_a_trial_is_the_search_step_by_step():
    """The compiled trial gives what `behavior`, `sample` and `step` give one by one, on average over trials."""
    mdp, policy = bps.envs.gridworld(), load_policy("gridworld-early")
    search = bps.BPG(1e-5)
    _, means = Trials(search, iterations=3, batch_size=100, seed=1).run(mdp, policy, 100)
    exact = bps.oracle.value(mdp, policy)
    error = means.std(axis=0, ddof=1) / 10
    assert (np.abs(means.mean(axis=0) - exact) < 4.9 * error).all()
