"""The evaluation policies of the experiments: how they were trained, and the trained tables as data files."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from bpsearch.envs import TabularMDP, gridworld, stochastic_gridworld
from bpsearch.errors import InvalidArgumentError
from bpsearch.policies.table import SoftmaxTable
from bpsearch.training.reinforce import reinforce


@dataclass(frozen=True)
class Recipe:
    """REINFORCE from the uniform policy in `environment`, stopped after `iterations` steps."""

    environment: Callable[[], TabularMDP]
    iterations: int
    step_size: float = 0.005
    batch_size: int = 100
    seed: int = 1

    def train(self) -> SoftmaxTable:
        """The policy, trained anew."""
        policies = reinforce(
            self.environment(),
            iterations=self.iterations,
            batch_size=self.batch_size,
            step_size=self.step_size,
            seed=self.seed,
        )
        return policies[-1]


RECIPES = {
    "gridworld-early": Recipe(gridworld, 10),
    "gridworld-converged": Recipe(gridworld, 1000),
    "stochastic-gridworld": Recipe(stochastic_gridworld, 200),
}


def load_policy(name: str) -> SoftmaxTable:
    """A shipped policy by name."""
    _check(name)
    text = resources.files("bpsearch").joinpath("data", f"{name}.json").read_text()
    return SoftmaxTable(np.array(json.loads(text)["logits"]))


def train_policy(name: str, directory: Path) -> Path:
    """Train a shipped policy anew and write its data file into `directory`."""
    recipe = _check(name)
    path = directory / f"{name}.json"
    directory.mkdir(parents=True, exist_ok=True)
    rows = [[float(x) for x in row] for row in recipe.train().logits]
    path.write_text(json.dumps({"name": name, "logits": rows}, indent=1) + "\n")
    return path


def _check(name: str) -> Recipe:
    if name not in RECIPES:
        raise InvalidArgumentError(f"policy must be one of {list(RECIPES)}, got {name!r}")
    return RECIPES[name]
