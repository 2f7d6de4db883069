"""How the evaluation policies that come with the package were made, and a way to make them again.

The tabular ones are REINFORCE from the uniform policy, stopped early or after convergence. As in the paper, the
continuous ones are random (32, 32) Gaussian networks after 10 iterations of TRPO on cart-pole swing-up and after 60 on
acrobot, trained on the tasks as they are evaluated, with horizon 50 and −1000 for leaving the rail: 100 episodes per
batch, which are rllab's 5000 steps if no episode ends early.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bpsearch.envs import CompiledEnv, TabularMDP, acrobot, cartpole_swingup, gridworld, stochastic_gridworld
from bpsearch.errors import InvalidArgumentError
from bpsearch.paper.training.reinforce import reinforce
from bpsearch.paper.training.trpo import TRPO
from bpsearch.policies.files import SHIPPED, save_policy
from bpsearch.policies.mlp import MLP, GaussianMLP
from bpsearch.policies.table import SoftmaxTable


@dataclass(frozen=True)
class ReinforceRecipe:
    """REINFORCE from the uniform policy, stopped after `iterations` steps."""

    environment: Callable[[], TabularMDP]
    iterations: int

    def train(self) -> SoftmaxTable:
        """The policy, trained again."""
        return reinforce(self.environment(), iterations=self.iterations, batch_size=100, step_size=0.005, seed=1)[-1]


@dataclass(frozen=True)
class TRPORecipe:
    """TRPO from a random network, stopped after `iterations` steps."""

    environment: Callable[[], CompiledEnv]
    iterations: int

    def train(self) -> MLP:
        """The policy, trained again."""
        env = self.environment()
        start = GaussianMLP.init(0, env.observation_space, env.action_space)
        return TRPO().train(env, start, self.iterations, seed=0)


RECIPES: dict[str, ReinforceRecipe | TRPORecipe] = {
    "gridworld-early": ReinforceRecipe(gridworld, 10),
    "gridworld-converged": ReinforceRecipe(gridworld, 1000),
    "stochastic-gridworld": ReinforceRecipe(stochastic_gridworld, 50),
    "cartpole-swingup": TRPORecipe(cartpole_swingup, 10),
    "acrobot": TRPORecipe(acrobot, 60),
}


def train_policy(name: str, directory: Path) -> Path:
    """Train a shipped policy again and write its file into `directory`."""
    if name not in RECIPES:
        raise InvalidArgumentError(f"policy must be one of {', '.join(SHIPPED)}, got {name!r}")
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.npz"
    save_policy(RECIPES[name].train(), path)
    return path
