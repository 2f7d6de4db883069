"""Makes the evaluation policies of the continuous tasks: `python -m bpsearch.training.continuous DIRECTORY`.

As in the paper, π_e is a random (32, 32) Gaussian network after 10 iterations of TRPO on cart-pole swing-up and after
60 on acrobot. Training runs on the tasks as they are evaluated, with horizon 50 and −1000 for leaving the rail: 100
episodes per batch, which are rllab's 5000 steps if no episode ends early.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from bpsearch.envs import CompiledEnv, acrobot, cartpole_swingup
from bpsearch.policies.files import SHIPPED
from bpsearch.policies.mlp import MLP, GaussianMLP
from bpsearch.training.trpo import TRPO, TRPOInfo

ITERATIONS = {"cartpole_swingup": 10, "acrobot": 60}
_ENVIRONMENTS: dict[str, Callable[[], CompiledEnv]] = {"cartpole_swingup": cartpole_swingup, "acrobot": acrobot}


def train_continuous_policies(
    out_dir: str | Path, seed: int = 0, progress: Callable[[str, int, TRPOInfo], None] | None = None
) -> dict[str, MLP]:
    """Train both policies from random networks and write them to `out_dir` under the names of the shipped files.

    Args:
        out_dir: an existing directory.
        seed: of the random networks and of training.
        progress: told of each task's iterations.

    Returns:
        The policies by the names of their tasks.
    """
    policies: dict[str, MLP] = {}
    for name, iterations in ITERATIONS.items():
        env = _ENVIRONMENTS[name]()
        start = GaussianMLP.init(seed, env.observation_space, env.action_space)

        def report(iteration: int, info: TRPOInfo, name: str = name) -> None:
            if progress is not None:
                progress(name, iteration, info)

        policies[name] = TRPO().train(env, start, iterations, seed=seed, progress=report)
        policies[name].save(Path(out_dir) / SHIPPED[name])
    return policies


def _print(name: str, iteration: int, info: TRPOInfo) -> None:
    print(
        f"{name} iteration {iteration:2d}: mean return {info.mean_return:9.2f} ± {info.std_error:.2f}, "
        f"step of KL {info.kl:.4f}"
    )


if __name__ == "__main__":
    train_continuous_policies(sys.argv[1] if len(sys.argv) > 1 else ".", progress=_print)
