"""What a package with the extensions of this folder registers, so that people can use them by name.

The package's pyproject.toml names these functions:

    [project.entry-points."bpsearch.methods"]
    cross-entropy = "plugins:cross_entropy"
    action-counts = "plugins:action_counts"

    [project.entry-points."bpsearch.policies"]
    linear = "plugins:find_linear"

    [project.entry-points."bpsearch.runners"]
    walk = "plugins:find_walk"
    hurdles = "plugins:find_hurdles"
"""

from typing import Any

import numpy as np
from own_control_variate import ActionCounts
from own_environment import WindyWalk
from own_policy import LinearSoftmax
from own_runner import Threads
from own_search import CrossEntropy

import bpsearch as bps


def cross_entropy(env: bps.envs.CompiledEnv | None) -> CrossEntropy:
    """A method by name is a function of the compiled environment, if there is one: it gives a search or a `Method`."""
    return CrossEntropy()


def action_counts(env: bps.envs.CompiledEnv | None) -> bps.Method:
    """A control variate or an estimator is used by name as a part of a method."""
    return bps.Method(bps.OnPolicy(), bps.Valuation(control_variates=(ActionCounts(),)))


def find_linear(source: Any, env: Any) -> LinearSoftmax | None:
    """The policy in a file that ends in ".linear.npz"; None for everything else, which others may know."""
    return LinearSoftmax(**np.load(source)) if str(source).endswith(".linear.npz") else None


def find_walk(env: Any) -> WindyWalk | None:
    """The walk in a wind of 0.5 for "walk:0.5"; None for everything else, which others may know."""
    return WindyWalk(float(env.removeprefix("walk:"))) if str(env).startswith("walk:") else None


def find_hurdles(env: Any) -> Threads | None:
    """A runner for "hurdles"; it is closed after use."""
    return Threads() if env == "hurdles" else None
