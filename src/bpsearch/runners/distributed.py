"""Episodes by workers: in processes, on a cluster, wherever a backend has them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium

from bpsearch.envs.adapter import GymnasiumEnv
from bpsearch.envs.base import CompiledEnv
from bpsearch.envs.resolve import factory_of
from bpsearch.errors import InvalidArgumentError
from bpsearch.policies.base import Policy
from bpsearch.runners.backend import Backend
from bpsearch.runners.base import Runner
from bpsearch.runners.chunks import BEHAVIORS, Chunk, Piece, Place, digest_of, encode
from bpsearch.runners.in_process import advise_resets
from bpsearch.runners.scheduler import Order, Scheduler
from bpsearch.sampling import GymnasiumSampler
from bpsearch.sampling.trajectories import Trajectories


class Distributed(Runner):
    """Runs batches by the workers of a backend; the numbers are those of one process, to the last bit.

    Args:
        env: a compiled environment; or a Gymnasium sampler, id or factory, each worker of which makes its own
            environments.
        policy: the evaluation policy: one that cannot be traced runs in a compiled environment through Gymnasium.
        backend: the workers.
        closes: whether the backend is closed with the runner.
        episode_timeout: seconds that an episode may take by itself. The worker of one that takes longer is ended, as
            if it had crashed.
    """

    def __init__(
        self,
        env: Any,
        policy: Policy,
        backend: Backend,
        *,
        closes: bool = False,
        episode_timeout: float | None = None,
    ) -> None:
        if episode_timeout is not None and not backend.can_end_workers:
            raise InvalidArgumentError(
                f"episode_timeout ends the process of a worker, and those of {type(backend).__name__} are not its own; "
                f"give workers=N or 'ray'"
            )
        self._place = place_of(env, policy)
        with _open(env, self._place) as place:
            self._spaces, self.resets = (place.observation_space, place.action_space), advise_resets(place)
        self._backend, self._closes = backend, closes
        self._scheduler = Scheduler(backend, episode_timeout)
        self._place_bytes = encode(self._place, "environment")
        self._place_digest = digest_of(self._place_bytes)
        self._behaviors: dict[int, tuple[Policy, str, bytes]] = {}  # the last few, by their identity
        if isinstance(env, CompiledEnv):
            self.discount, self.return_range = env.discount, env.return_range

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """The environment's."""
        return self._spaces[0]

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The environment's."""
        return self._spaces[1]

    def run(
        self, behavior: Policy, episodes: int, *, seed: int, batch: int, repeats: int = 1, resets: int = 0
    ) -> Trajectories:
        """Wait for a batch; it may have been begun by `expect`."""
        order = self._submit(behavior, episodes, seed, batch, repeats, resets)
        found = self._scheduler.fetch(order)
        if resets and found.resets is None:
            self.no_resets = "starts do not come again when the environment is reset with the same seed"
        return found

    def expect(self, behavior: Policy, sizes: Iterable[int], *, seed: int, batch: int, resets: int = 0) -> None:
        """Begin batches as long as workers will soon have nothing to do."""
        for number, episodes in enumerate(sizes, start=batch):
            if not self._scheduler.hungry:
                break
            self._submit(behavior, episodes, seed, number, repeats=1, resets=resets)
        self._scheduler.begin()

    def close(self) -> None:
        """Let the workers go, if they are this runner's own."""
        self._scheduler.forget()
        if self._closes:
            self._backend.close()

    def _submit(self, behavior: Policy, episodes: int, seed: int, batch: int, repeats: int, resets: int) -> Order:
        if id(behavior) not in self._behaviors:
            data = encode(behavior, "policy")
            while len(self._behaviors) >= BEHAVIORS:
                self._behaviors.pop(next(iter(self._behaviors)))
            self._behaviors[id(behavior)] = (behavior, digest_of(data), data)
        _, digest, data = self._behaviors[id(behavior)]
        chunk = Chunk(self._place_digest, digest, seed, (Piece(batch, 0, episodes),), repeats, resets)
        order = Order(chunk, self._place.grain(repeats))
        self._scheduler.submit(order, {self._place_digest: self._place_bytes, digest: data})
        return order


def place_of(env: Any, policy: Policy) -> Place:
    """Where workers run `policy` for what people name as `env`.

    Raises:
        InvalidArgumentError: there is one of it, and it is here.
    """
    if isinstance(env, CompiledEnv):
        return Place(env) if policy.traceable else Place(partial(GymnasiumEnv, env))
    options: dict[str, Any] = {}
    source, kwargs = env, None
    if isinstance(env, GymnasiumSampler):
        source, kwargs = env.source, env.env_kwargs
        options = {"horizon": env.horizon, "num_envs": env.num_envs}
    factory = None if isinstance(source, Runner) else factory_of(source, kwargs)
    if factory is None:
        raise InvalidArgumentError(
            f"workers make their own environments, so env must be an environment's id, a factory or a compiled "
            f"environment, got {source!r}; or leave out workers"
        )
    return Place(factory, **options)


@contextmanager
def _open(env: Any, place: Place) -> Iterator[CompiledEnv | GymnasiumSampler]:
    """The environment here, to ask for its spaces and the length of its episodes."""
    if isinstance(env, GymnasiumSampler) or isinstance(place.env, CompiledEnv):
        yield env
        return
    with GymnasiumSampler(place.env, num_envs=1) as sampler:
        yield sampler
