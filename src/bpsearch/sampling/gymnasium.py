"""The Gymnasium sampler: episodes of any environment, each a pure function of its own seed."""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, Self

import gymnasium
import jax
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from bpsearch._core.checks import check_choice, check_integer, check_real, check_type, quote
from bpsearch._core.jaxtools import in_64_bit, replace, to_numpy
from bpsearch.envs.observations import empty_observations, take
from bpsearch.envs.resolve import Factory, GymnasiumSource, adapt, factory_of
from bpsearch.envs.whole import find_whole
from bpsearch.envs.wrappers import warn_of_wrappers
from bpsearch.errors import EpisodeCrashError, InvalidArgumentError
from bpsearch.policies.base import Policy
from bpsearch.sampling.masks import MaskedSlots
from bpsearch.sampling.offers import ChosenSeeds, choose_seeds
from bpsearch.sampling.records import Records
from bpsearch.sampling.replay import warn_of_ignored_seeds
from bpsearch.sampling.resets import FurtherStarts
from bpsearch.sampling.slots import EnvSlots, Slots, SlotsCrashedError, VectorSlots
from bpsearch.sampling.stepping import Stepper
from bpsearch.sampling.trajectories import Trajectories

# How many environments run side by side unless somebody says: the more, the less a step of the policy costs each of
# them. Fewer where they take long to make, or where what they show is large.
MOST_ENVS, FEWEST_ENVS, ASYNC_ENVS = 128, 8, 8
WHOLE_ENVS = 256  # of those that are one program (`envs.whole`)
MAX_NUM_ENVS = 100_000
PROCESS_REPLAYS = 3  # of an episode whose process was lost
_MAKING_SECONDS = 0.5  # that all environments together may take to be made
_SHOWN_BYTES = 2**20  # that the observations of one step may take


class GymnasiumSampler:
    """Runs episodes in parallel Gymnasium environments, which stay open from batch to batch.

    The episodes of a batch are numbered before they run and each is run to its end, so none is preferred for being
    short. Environment and policy of an episode get their random numbers from (seed, batch, episode) only: the batch
    does not depend on the number of parallel environments, nor on how they run, as far as the environment forgets all
    about earlier episodes when it is reset with a seed.

    Rounding does not depend on it either: the policy is evaluated in blocks of a fixed number of rows, in which an
    episode's place follows from its number (`Stepper`). On one kind of machine and with the same versions the episodes
    are the same to the last bit.

    An environment that raises an error is replaced, and its episode replayed with the same seed and policy, once. With
    "async", a process that is killed, or takes longer than `step_timeout`, is replaced too, up to three times. Workers
    (`evaluate(..., workers=4)`) do the same, and send whole episodes rather than single steps between processes.

    Args:
        env: the id of a registered environment; a factory, called once per parallel environment; a single environment;
            or a vector environment in any autoreset mode.
        env_kwargs: what `gymnasium.make` is given besides an id.
        num_envs: how many environments run in parallel; by default 128 if they are quickly made and show little, down
            to 8 if not. A given environment has its own number. The episodes do not depend on it.
        vectorization: "sync" steps the environments in this process, "async" each in a process of its own. Those are
            spawned, so a script must guard its entry point by `if __name__ == "__main__"`.
        horizon: the number of steps after which an episode is cut; its return up to there is what is estimated. By
            default episodes end as the environment says.
        priced: whether further starts are left out if they take longer than episodes; see `FurtherStarts`.
        step_timeout: "async": seconds that a step or a reset may take, which is longer than a process takes to start.

    Attributes:
        source: what the environments were made of, `env`.
        env_kwargs: as given.
        horizon: as given.
        num_envs: as given.
    """

    def __init__(
        self,
        env: GymnasiumSource,
        *,
        env_kwargs: dict[str, Any] | None = None,
        num_envs: int | None = None,
        vectorization: Literal["sync", "async"] = "sync",
        horizon: int | None = None,
        step_timeout: float | None = None,
        priced: bool = True,
    ) -> None:
        check_choice("vectorization", vectorization, ("sync", "async"))
        if env_kwargs is not None:
            check_type("env_kwargs", env_kwargs, dict, "a dict of arguments")
        self.source, self.env_kwargs = env, env_kwargs
        env = adapt(env)
        self.horizon = None if horizon is None else check_integer("horizon", horizon)
        self._factory = factory_of(env, env_kwargs)
        self._given = env if isinstance(env, gymnasium.Env | VectorEnv) else None
        if self._given is not None:
            own = self._given.num_envs if isinstance(self._given, VectorEnv) else 1
            if num_envs is not None and check_integer("num_envs", num_envs) != own:
                raise InvalidArgumentError(
                    f"num_envs must be {own}, the number of environments in {env!r}, got {num_envs}; give an id or a "
                    f"factory to choose it"
                )
        self.num_envs = None if num_envs is None else check_integer("num_envs", num_envs)
        if self.num_envs is not None and self.num_envs > MAX_NUM_ENVS:
            raise InvalidArgumentError(f"num_envs must be at most {MAX_NUM_ENVS}, got {quote(num_envs)}")
        self._async = vectorization == "async"
        self.step_timeout = None if step_timeout is None else check_real("step_timeout", step_timeout, above=0.0)
        if step_timeout is not None and not self._async:
            raise InvalidArgumentError("step_timeout ends a process, so it needs vectorization='async', or workers")
        self._further = FurtherStarts(priced=priced)
        self._one_by_one = self._cautioned = self._replayed = False
        self._slots = self._open()

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Of one environment."""
        return self._slots.observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Of one environment."""
        return self._slots.action_space

    @property
    def longest(self) -> int | None:
        """The number of steps after which every episode ends; None if it is not known."""
        return self.horizon or self._slots.longest

    @property
    def independent(self) -> bool:
        """Whether an episode is the same beside whatever others: not in a vector environment of one piece."""
        return self._slots.restarts_single

    @property
    def together(self) -> int:
        """How many episodes cost about as much as one: as many as one program runs; 1 for single environments."""
        return self._slots.count if isinstance(self._slots, VectorSlots) else 1

    @property
    def no_resets(self) -> str:
        """Why further starts cannot be had; empty as long as they can."""
        return self._further.refused

    def sample(
        self,
        policy: Policy,
        episodes: int,
        *,
        seed: int = 0,
        batch: int = 0,
        repeats: int = 1,
        resets: int = 0,
        first: int = 0,
    ) -> Trajectories:
        """Run `policy` for the episodes `first` to `first + episodes − 1`; see `bpsearch.sample`.

        Further starts are left out of the batch where they do not come again from their seed, or where they would take
        longer than the episodes; then `no_resets` says so.
        """
        order = (batch, range(first, first + episodes))
        return self.sample_batches(policy, [order], seed=seed, repeats=repeats, resets=resets)[0]

    @in_64_bit
    def sample_batches(
        self,
        policy: Policy,
        orders: Sequence[tuple[int, range]],
        *,
        seed: int = 0,
        repeats: int = 1,
        resets: int = 0,
    ) -> list[Trajectories]:
        """Several batches at once, the same to the last bit as one after the other: no slot waits for the next batch.

        Args:
            policy: who acts.
            orders: the number of each batch, and those of its episodes.
            seed: as for `sample`.
            repeats: as for `sample`.
            resets: as for `sample`.
        """
        began = time.perf_counter()
        behavior, policy = policy, policy.actor
        self._make_room(policy)
        numbers = [(batch, episode) for batch, episodes in orders for episode in episodes]
        records = Records(_seen(self._slots, policy).observation_space, len(numbers))
        chosen = self._choose_starts(behavior, seed, numbers, resets)
        if chosen is not None:
            records.weigh_starts(chosen.log_weights)
        run = Stepper(policy, records, self.horizon, seed, numbers, repeats, None if chosen is None else chosen.seeds)
        waiting = deque(range(len(numbers)))
        while waiting:
            try:
                run.run(_seen(self._slots, policy), waiting)
            except SlotsCrashedError as crash:
                crashed = [int(run.place[slot]) for slot in crash.slots]
                rest = [int(place) for place in run.place if place >= 0 and place not in crashed]
                records.forget([*crashed, *rest])
                waiting.extendleft(reversed(rest))
                self._replay(run, crashed)
        batches = records.trajectories(self.horizon, [len(episodes) for _, episodes in orders])
        for at, (batch, _) in enumerate(orders):
            origin = np.array([seed, batch], dtype=np.int64)
            batches[at] = replace(batches[at], behavior_parameters=to_numpy(behavior.flat), seed=origin)
        if chosen is not None:
            batches = _start_as_chosen(batches, chosen, numbers)
        if not resets or (chosen is not None and chosen.others is not None):
            return batches
        # The time of an episode of full length: that of those that ran would depend on what happened in them.
        per_step = (time.perf_counter() - began) / float(sum(found.mask.sum() for found in batches))
        per_episode = per_step * (self.longest or max(found.mask.shape[1] for found in batches))
        seen = _seen(self._slots, policy)
        if not self._replayed and self.independent and not policy.opaque and behavior.starts is None:
            warn_of_ignored_seeds(seen, policy, batches[0], numbers[0], seed, repeats)
        self._replayed = True
        self._further.check_price(seen, seed, resets, per_episode)
        for at, (batch, episodes) in enumerate(orders):
            further = self._further.draw(seen, batches[at], episodes, (seed, batch, repeats), resets)
            batches[at] = batches[at] if further is None else replace(batches[at], resets=further)
        return batches

    def ignore_price(self) -> None:
        """Draw further starts however long they take."""
        self._further.ignore_price()

    def close(self) -> None:
        """Close the environments that the sampler made; those that it was given stay open."""
        if self._given is None:
            self._slots.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, *, alone: bool = False) -> Slots:
        if self._given is not None:
            self._caution(self._given)
        if isinstance(self._given, VectorEnv):
            return VectorSlots(self._given)
        if self._given is not None:
            return EnvSlots(self._given)
        assert self._factory is not None
        if self._async:
            factories = [self._factory] * (1 if alone else self.num_envs or ASYNC_ENVS)
            # Forking a process that runs JAX's threads may deadlock.
            envs = AsyncVectorEnv(factories, context="spawn", autoreset_mode=AutoresetMode.DISABLED, copy=False)
            return VectorSlots(envs, self.step_timeout)
        first = self._factory()
        self._caution(first)
        whole = None if alone else find_whole(self._factory, first, self.num_envs or WHOLE_ENVS)
        if whole is not None:
            first.close()
            return VectorSlots(whole)
        count = 1 if alone else self.num_envs or _parallel_envs(self._factory, first.observation_space)
        return EnvSlots(first, count, self._factory)

    def _caution(self, env: Any) -> None:
        """Once: slots are opened again after a crash."""
        if not self._cautioned:
            self._cautioned = True
            warn_of_wrappers(env)

    def _make_room(self, policy: Policy) -> None:
        """One environment, if the policy's episodes run one after the other: a program of many would run all along."""
        if self._given is None and not self._async and policy.alone != self._one_by_one:
            self._one_by_one = policy.alone
            self._slots.close()
            self._slots = self._open(alone=policy.alone)

    def _choose_starts(
        self, behavior: Policy, seed: int, numbers: Sequence[tuple[int, int]], resets: int
    ) -> ChosenSeeds | None:
        """Where the episodes start, if the behavior chooses that."""
        if behavior.starts is None:
            return None
        return choose_seeds(_seen(self._slots, behavior.actor), behavior.starts, seed, numbers, resets)

    def _replay(self, run: Stepper, places: Sequence[int]) -> None:
        """Run crashed episodes again, each alone: where they ran before if no other environment can be made.

        An environment that raises would raise again: one replay is enough. A process that was killed may be replaced
        more often.
        """
        self.close()
        attempts = PROCESS_REPLAYS if self._async else 1
        alone: Slots | None = None
        for place in places:
            for left in reversed(range(attempts)):
                alone = self._open(alone=True) if alone is None else alone
                try:
                    run.run(_seen(alone, run.policy), deque([place]))
                    break
                except SlotsCrashedError as crash:
                    run.records.forget([place])
                    if self._given is None:
                        alone.close()
                    alone = None
                    if not left:
                        raise _crash(run, place, crash, attempts) from crash.__cause__
        if alone is not None and self._given is None:
            alone.close()
        self._slots = self._open(alone=self._one_by_one)


def _seen(slots: Slots, policy: Policy) -> Slots:
    """The slots as the policy sees them."""
    return MaskedSlots(slots) if policy.sees_masks else slots


def _start_as_chosen(
    batches: Sequence[Trajectories], chosen: ChosenSeeds, numbers: Sequence[tuple[int, int]]
) -> list[Trajectories]:
    """The batches, with their further starts if the choice leaves some; checked to start where they were to."""
    ends, found = np.cumsum([len(batch) for batch in batches]).tolist(), []
    for begin, end, batch in zip([0, *ends[:-1]], ends, batches, strict=True):
        rows = slice(begin, end)
        chosen.check(batch, numbers, rows)
        found.append(batch if chosen.others is None else replace(batch, resets=take(chosen.others, rows)))
    return found


def _crash(run: Stepper, place: int, crash: SlotsCrashedError, replays: int) -> EpisodeCrashError:
    batch, episode = run.numbers[place]
    return EpisodeCrashError(
        f"the environment failed in episode {episode} of batch {batch} (seed {run.seed}) with "
        f"{type(crash.__cause__).__name__}: {crash.__cause__}, and failed again when the episode was replayed with the "
        f"same seed{'' if replays == 1 else f', {replays} times'}; dropping it would bias the estimate, so the batch "
        f"is not counted"
    )


def _parallel_envs(factory: Factory, space: gymnasium.Space[Any]) -> int:
    """How many environments to run side by side: as many as making them and showing their observations allows.

    The second environment is made to see how long it takes: the first may have had to import its simulator.
    """
    shown = sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(empty_observations(space, 1)))
    start = time.perf_counter()
    factory().close()
    made = time.perf_counter() - start
    allowed = min(_MAKING_SECONDS / max(made, 1e-9), _SHOWN_BYTES / max(shown, 1))
    return int(min(max(allowed, FEWEST_ENVS), MOST_ENVS))
