"""Episodes in this process: compiled, or through Gymnasium."""

from typing import Any

import gymnasium

from bpsearch._core.plugins import ask_plugins
from bpsearch.envs.base import CompiledEnv
from bpsearch.envs.registration import FACTORIES, make_compiled
from bpsearch.envs.resolve import GymnasiumSource
from bpsearch.policies.base import Policy
from bpsearch.runners.base import Runner
from bpsearch.sampling import GymnasiumSampler, sample
from bpsearch.sampling.trajectories import Trajectories

Environment = Runner | CompiledEnv | GymnasiumSampler | GymnasiumSource


class InProcess(Runner):
    """Runs episodes in a compiled environment, or in the environments of a sampler.

    Args:
        env: where.
        closes: whether the sampler is closed with the runner.
    """

    def __init__(self, env: CompiledEnv | GymnasiumSampler, *, closes: bool = False) -> None:
        self.env = env
        self._closes = closes
        if isinstance(env, CompiledEnv):
            self.discount = env.discount
            self.return_range = env.return_range

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """The environment's."""
        return self.env.observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The environment's."""
        return self.env.action_space

    def run(self, behavior: Policy, episodes: int, *, seed: int, batch: int, repeats: int = 1) -> Trajectories:
        """See `bpsearch.sample`."""
        return sample(self.env, behavior, episodes, seed=seed, batch=batch, repeats=repeats)

    def close(self) -> None:
        """Close a sampler that was opened for this runner."""
        if self._closes and isinstance(self.env, GymnasiumSampler):
            self.env.close()


def compiled_env(env: Environment) -> CompiledEnv | None:
    """The compiled environment that `env` is or names, or None."""
    if isinstance(env, str) and env in FACTORIES:
        return make_compiled(env)
    return env if isinstance(env, CompiledEnv) else None


def plugged_env(env: Environment) -> Environment:
    """What another package knows by `env`; itself if none does.

    Other packages add kinds of environments by entry points of the group "bpsearch.runners": functions of `env` that
    give a runner, which is then closed after use, or a compiled environment, or None for what they do not know.
    """
    if isinstance(env, Runner | CompiledEnv | GymnasiumSampler):
        return env
    found: Runner | CompiledEnv | None = ask_plugins("bpsearch.runners", (Runner, CompiledEnv), env)
    return env if found is None else found
