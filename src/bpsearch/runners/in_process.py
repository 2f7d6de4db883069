"""Episodes in this process: compiled, or through Gymnasium."""

from functools import partial
from typing import Any

import gymnasium

from bpsearch._core.plugins import ask_plugins
from bpsearch.envs.adapter import GymnasiumEnv
from bpsearch.envs.base import CompiledEnv
from bpsearch.envs.registration import FACTORIES, make_compiled
from bpsearch.envs.resolve import GymnasiumSource, adapt
from bpsearch.policies.base import Policy
from bpsearch.runners.base import Runner
from bpsearch.sampling import GymnasiumSampler, check_spaces, sample
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


class _Borrowed(Runner):
    """A runner that somebody else closes."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.discount, self.return_range = runner.discount, runner.return_range

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        return self._runner.observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        return self._runner.action_space

    def run(self, behavior: Policy, episodes: int, *, seed: int, batch: int, repeats: int = 1) -> Trajectories:
        return self._runner.run(behavior, episodes, seed=seed, batch=batch, repeats=repeats)


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


def runner_for(env: Environment, policy: Policy) -> Runner:
    """Who runs `policy` in what people name as `env`; to be closed after use.

    Args:
        env: a runner; a compiled environment; a `GymnasiumSampler`; a Gymnasium id, a factory, an environment or a
            vector environment; or what another package knows. The ids of bpsearch's own environments give the compiled
            ones.
        policy: a policy that cannot be traced runs in a compiled environment through Gymnasium.
    """
    if isinstance(env, Runner):
        check_spaces(env, policy)
        return _Borrowed(env)
    env = plugged_env(env)
    if isinstance(env, Runner):
        return _checked(env, policy)
    compiled = compiled_env(env)
    if compiled is not None and policy.traceable:
        check_spaces(compiled, policy)
        return InProcess(compiled)
    if isinstance(env, GymnasiumSampler):
        check_spaces(env, policy)
        return InProcess(env)
    sampler = GymnasiumSampler(env if compiled is None else partial(GymnasiumEnv, compiled))  # type: ignore[arg-type]
    runner = InProcess(sampler, closes=True)
    if compiled is not None:
        runner.discount, runner.return_range = compiled.discount, compiled.return_range
    return _checked(runner, policy)


def _checked(runner: Runner, policy: Policy) -> Runner:
    """A runner that was opened for this policy, closed if they do not fit."""
    try:
        check_spaces(runner, policy)
    except BaseException:
        runner.close()
        raise
    return runner
