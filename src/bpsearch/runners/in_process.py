"""Episodes in this process: compiled, or through Gymnasium."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import gymnasium

from bpsearch._core.plugins import ask_plugins
from bpsearch.envs.adapter import GymnasiumEnv
from bpsearch.envs.base import CompiledEnv
from bpsearch.envs.registration import FACTORIES, make_compiled
from bpsearch.envs.resolve import GymnasiumSource, adapt
from bpsearch.policies.base import Policy
from bpsearch.runners.ahead import Ahead
from bpsearch.runners.base import Runner
from bpsearch.sampling import GymnasiumSampler, sample
from bpsearch.sampling.trajectories import Trajectories

COMPILED_RESETS = 50  # further starts of an episode in a compiled environment, where they cost next to nothing
MAX_RESETS = 20  # in another
STEPS_PER_RESET = 15  # there is at most one for so many steps of the longest episode,
FEW_RESETS, STEPS_PER_FEW = 10, 5  # but up to the first number one for as many as the second: few leave most noise

Environment = Runner | CompiledEnv | GymnasiumSampler | GymnasiumSource


def advise_resets(env: CompiledEnv | GymnasiumSampler) -> int:
    """How many further starts for each episode are worth their price, whatever machine this is."""
    if isinstance(env, CompiledEnv):
        return COMPILED_RESETS if env.varied_starts else 0
    inner = env.source.args[0] if isinstance(env.source, partial) and env.source.func is GymnasiumEnv else None
    if inner is not None and not inner.varied_starts:
        return 0
    longest = 10 * STEPS_PER_RESET if env.longest is None else env.longest
    few = min(longest // STEPS_PER_FEW, FEW_RESETS)
    return min(max(longest // STEPS_PER_RESET, few, 1), MAX_RESETS)


class InProcess(Runner):
    """Runs episodes in a compiled environment, or in the environments of a sampler.

    Args:
        env: where.
        closes: whether the sampler is closed with the runner.
    """

    def __init__(self, env: CompiledEnv | GymnasiumSampler, *, closes: bool = False) -> None:
        self.env = env
        self._closes = closes
        self._ahead = Ahead(env) if isinstance(env, GymnasiumSampler) and env.independent else None
        if isinstance(env, CompiledEnv):
            self.discount = env.discount
            self.return_range = env.return_range
        self.resets = advise_resets(env)

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """The environment's."""
        return self.env.observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The environment's."""
        return self.env.action_space

    def run(
        self, behavior: Policy, episodes: int, *, seed: int, batch: int, repeats: int = 1, resets: int = 0
    ) -> Trajectories:
        """See `bpsearch.sample`."""
        if isinstance(self.env, GymnasiumSampler) and resets != self.resets:
            self.env.ignore_price()  # of a number that somebody asked for
        if self._ahead is not None and repeats == 1:
            found = self._ahead.run(behavior, episodes, (seed, batch, resets))
        else:
            found = sample(self.env, behavior, episodes, seed=seed, batch=batch, repeats=repeats, resets=resets)
        if isinstance(self.env, GymnasiumSampler):
            self.no_resets = self.env.no_resets
        return found

    def expect(self, behavior: Policy, sizes: Iterable[int], *, seed: int, batch: int, resets: int = 0) -> None:
        """Batches whose episodes are short may be run together."""
        if self._ahead is not None:
            self._ahead.expect(behavior, sizes, (seed, batch, resets))

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
    return adapt(env) if found is None else found
