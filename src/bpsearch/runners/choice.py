"""Which runner: for what people name as environment, and as workers."""

from collections.abc import Iterable
from concurrent.futures import Executor
from functools import partial
from typing import Any

import gymnasium

from bpsearch._core.checks import check_real
from bpsearch.envs.adapter import GymnasiumEnv
from bpsearch.errors import InvalidArgumentError
from bpsearch.policies.base import Policy
from bpsearch.runners.backend import Backend
from bpsearch.runners.base import Runner
from bpsearch.runners.distributed import Distributed
from bpsearch.runners.executor import DaskClient, Futures
from bpsearch.runners.in_process import Environment, InProcess, compiled_env, plugged_env
from bpsearch.runners.processes import Processes
from bpsearch.sampling import GymnasiumSampler, check_spaces
from bpsearch.sampling.trajectories import Trajectories

Workers = int | str | Executor | DaskClient | Backend


class _Borrowed(Runner):
    """A runner that somebody else closes."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.discount, self.return_range, self.resets = runner.discount, runner.return_range, runner.resets

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        return self._runner.observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        return self._runner.action_space

    def run(
        self, behavior: Policy, episodes: int, *, seed: int, batch: int, repeats: int = 1, resets: int = 0
    ) -> Trajectories:
        further = {"resets": resets} if resets else {}
        found = self._runner.run(behavior, episodes, seed=seed, batch=batch, repeats=repeats, **further)
        self.no_resets = self._runner.no_resets
        return found

    def expect(self, behavior: Policy, sizes: Iterable[int], *, seed: int, batch: int, resets: int = 0) -> None:
        self._runner.expect(behavior, sizes, seed=seed, batch=batch, **({"resets": resets} if resets else {}))


def runner_for(
    env: Environment, policy: Policy, workers: Workers | None = None, episode_timeout: float | None = None
) -> Runner:
    """Who runs `policy` in what people name as `env`; to be closed after use.

    Args:
        env: a runner; a compiled environment; a `GymnasiumSampler`; a Gymnasium id, a factory, an environment or a
            vector environment; or what another package knows. The ids of bpsearch's own environments give the compiled
            ones.
        policy: a policy that cannot be traced runs in a compiled environment through Gymnasium.
        workers: see `open_workers`; None runs all episodes in this process.
        episode_timeout: seconds that an episode may take; it takes workers to end one.
    """
    if episode_timeout is not None:
        check_real("episode_timeout", episode_timeout, above=0.0)
        if workers is None:
            raise InvalidArgumentError(
                f"episode_timeout needs workers, whose processes can be ended: give workers=1, or more; got "
                f"episode_timeout={episode_timeout}"
            )
    if isinstance(env, Runner) and workers is None:
        check_spaces(env, policy)
        return _Borrowed(env)
    env = plugged_env(env)
    compiled = compiled_env(env)
    if workers is not None:
        backend, own = open_workers(workers)
        try:
            place = env if compiled is None else compiled
            return _check(Distributed(place, policy, backend, closes=own, episode_timeout=episode_timeout), policy)
        except BaseException:
            if own:
                backend.close()
            raise
    if isinstance(env, Runner):
        return _check(env, policy)
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
    return _check(runner, policy)


def open_workers(workers: Workers) -> tuple[Backend, bool]:
    """The workers that are meant, and whether they were opened here, so that whoever uses them closes them.

    Args:
        workers: how many processes of this computer; "ray" for a Ray cluster (the one that this process is connected
            to, or else a new one on this computer), or the address of one; a `concurrent.futures.Executor` or a Dask
            client; a `Backend`, `Processes(4)` for instance.
    """
    if isinstance(workers, Backend):
        return workers, False
    if isinstance(workers, str):
        from bpsearch.runners.ray import RayTasks

        return RayTasks(None if workers == "ray" else workers), True
    if isinstance(workers, Executor | DaskClient):
        return Futures(workers), True
    if isinstance(workers, int) and not isinstance(workers, bool):
        return Processes(workers), True
    raise InvalidArgumentError(
        f"workers must be a number of processes, 'ray' or the address of a Ray cluster, a concurrent.futures.Executor, "
        f"a Dask client, or a Backend of bpsearch.runners, got {workers!r}"
    )


def _check(runner: Runner, policy: Policy) -> Runner:
    """A runner that was opened for this policy, closed if they do not fit."""
    try:
        check_spaces(runner, policy)
    except BaseException:
        runner.close()
        raise
    return runner
