"""Study: the loop of asking for a behavior, running it, telling the episodes, and estimating."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from bpsearch.checks import check_discount, check_integer, check_range, check_real
from bpsearch.diagnostics import Episodes, diagnose
from bpsearch.envs.base import CompiledEnv
from bpsearch.errors import InvalidArgumentError, InvalidTrajectoriesError, StoreError
from bpsearch.estimate import Estimate
from bpsearch.history import History
from bpsearch.outcomes import Outcome
from bpsearch.policies.base import Policy
from bpsearch.sampling import GymnasiumSampler, sample
from bpsearch.search.base import Info, Search, Valued
from bpsearch.store import Store, opened
from bpsearch.store.acceptance import check_fit, check_log_probs
from bpsearch.store.ledger import Entry, Ledger, Status
from bpsearch.store.policies import policy_setting, stored_policy
from bpsearch.store.progress import Progress
from bpsearch.store.replay import replay
from bpsearch.store.settings import build, describe
from bpsearch.trajectories import Trajectories


@dataclass(frozen=True, eq=False)
class Request:
    """A behavior policy that waits for its episodes.

    Attributes:
        number: the batch that it is for.
        behavior: the policy to run.
        identity: a hash of study, number and parameters, by which its episodes can be known again.
    """

    number: int
    behavior: Policy
    identity: str


class Study:
    """An evaluation in progress: `ask`, run the episodes, `tell`, as often as wanted; `estimate` at any time.

    `run` does it all for an environment. People who run the episodes themselves use `ask` and `tell`.

    Any number of requests may be open, and be told in any order. The behavior of a request is fixed when it is asked,
    from what has been told up to then, and so is all else with which its episodes will be valued (baseline, shift,
    model): a batch never has a say in how it is valued, nor has the time that it took, and the estimate is exactly
    unbiased in whatever order batches are told. The search learns from each batch when it is told, with the state of
    that moment; from a late batch, of a behavior that the search has left since, BPG learns only approximately.

    With a `store` every told batch is on disk before `tell` returns. A study that was killed goes on where it was when
    it is made again with the same store and the same settings, and ends with the same numbers to the last bit (on the
    same versions and the same kind of machine).

    Args:
        policy: the evaluation policy.
        search: how behaviors are chosen and episodes valued; `BPG(...)` or `OnPolicy()`.
        discount: γ.
        seed: of the episodes that `run` samples.
        return_range: the numbers between which every return lies, or every outcome; the anytime-valid interval needs
            them. `run` asks a compiled environment for them if they are not given.
        outcome: what is estimated in place of the return; it is not discounted. Episodes are kept with their outcome as
            the only reward.
        store: the path of the study's file, which is made if there is none, or a `Store`; by default the study ends
            with its process.

    Raises:
        SettingsMismatchError: the store holds a study with other settings.
        StoreLockedError: another process is writing to the store.
        StoreError: the file is damaged or not a store.
    """

    def __init__(
        self,
        policy: Policy,
        search: Search,
        *,
        discount: float = 1.0,
        seed: int = 0,
        return_range: tuple[float, float] | None = None,
        outcome: Outcome | None = None,
        store: Store | str | Path | None = None,
    ) -> None:
        self.policy = policy
        self.search = search
        self.discount = check_discount(discount)
        self.seed = check_integer("seed", seed, at_least=0)
        self.outcome = outcome
        self.return_range = None if return_range is None else check_range("return_range", return_range)
        if outcome is not None and outcome.event:
            if return_range is not None:
                raise InvalidArgumentError(
                    f"return_range has no meaning for the event {outcome.name!r}, which is 0 or 1, got {return_range}"
                )
            self.return_range = (0.0, 1.0)
        self._ended = "budget"
        self._durable = store is not None
        self.ledger = Ledger(opened(store), keeps=self._durable or search.revalues)
        try:
            self._progress = Progress(
                self.ledger, policy, search, self._own_discount, self._settings() if self._durable else {}
            )
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls,
        store: Store | str | Path,
        *,
        policy: Policy | None = None,
        search: Search | None = None,
        outcome: Outcome | None = None,
        return_range: tuple[float, float] | None = None,
        read_only: bool = False,
    ) -> "Study":
        """The study in a store, with the settings that it has there.

        Args:
            store: the path of the study's file, or a `Store`.
            policy: the evaluation policy, needed if it is neither a table nor a network of bpsearch.
            search: the search, needed if it, or its estimator, is not one of bpsearch.
            outcome: what is estimated, needed if it is a function.
            return_range: as for a new study; it is not stored.
            read_only: whether to look only, beside a process that may be writing.
        """
        if not isinstance(store, Store) and not Path(store).exists():
            raise StoreError(f"there is no store {store}")
        found = opened(store, read_only=read_only)
        try:
            ledger = Ledger(found)
            if ledger.is_empty:
                raise StoreError(f"{found} holds no study yet")
            settings = ledger.settings
            return cls(
                policy or stored_policy(settings["policy"], ledger.policy),
                search or build(settings["search"]),
                discount=settings["discount"],
                seed=settings["seed"],
                return_range=return_range,
                outcome=outcome or _stored_outcome(settings),
                store=found,
            )
        except BaseException:
            found.close()
            raise

    @property
    def state(self) -> Any:
        """The state of the search after everything told so far."""
        return self._progress.state

    @property
    def episodes(self) -> int:
        """How many episodes have been told."""
        return sum(len(batch.values) for batch in self._progress.batches.values())

    @property
    def identity(self) -> str:
        """What tells this study from every other."""
        return self._progress.identity

    @property
    def outstanding(self) -> tuple[Request, ...]:
        """The requests that were asked and neither told nor abandoned."""
        progress = self._progress
        return tuple(self._request(progress.entries[number]) for number in sorted(progress.asked_states))

    def ask(self) -> Request:
        """A new request: the behavior that is to collect a batch, fixed by what has been told so far.

        Raises:
            SupportError: the search has ruled out actions that the evaluation policy takes. What has been told stays.
        """
        entry = self._progress.next_entry()
        self._progress.ask(entry)
        return self._request(entry)

    def tell(self, number: int, trajectories: Trajectories, *, request: str = "") -> Info:
        """Give the episodes of request `number`. If they are refused, the study is as it was before.

        The episodes must be all those that were begun with the request's behavior: leaving out some that went wrong
        biases the estimate.

        Args:
            number: of the request.
            trajectories: its episodes. If their `behavior_parameters` are known they must be the request's; if not,
                they may be of another behavior that was fixed as early, whose log-probabilities they have.
            request: the identity that came with the episodes; it must be the request's, and the log-probabilities must
                be those of its behavior.

        Raises:
            RequestError: the request was never asked, or is told or abandoned already.
            InvalidTrajectoriesError: the episodes are those of another request or behavior.
        """
        entry = self._progress.open_entry(number)
        if request and request != entry.identity:
            raise InvalidTrajectoriesError(
                f"the episodes answer another request: request {number} of this study has the identity "
                f"{entry.identity}, got {request}"
            )
        asked, told = entry.parameters, trajectories.behavior_parameters
        if asked is not None and told is not None and not np.array_equal(asked, told):
            raise InvalidTrajectoriesError(f"the episodes were not collected by the behavior of request {number}")
        check_fit(self.policy, trajectories)
        if request:
            check_log_probs(self._request(entry).behavior, trajectories, number)
        return self._progress.tell(entry, self._paid(trajectories))

    def abandon(self, number: int, reason: str = "") -> None:
        """Wait no longer for the episodes of request `number`; every estimate will say so.

        The estimate stays unbiased only if the batch is given up for a reason that has nothing to do with what happened
        in its episodes.

        Raises:
            RequestError: the request was never asked, or is told or abandoned already.
        """
        self._progress.abandon(self._progress.open_entry(number), reason)

    def close(self) -> None:
        """Let go of the store, if there is one."""
        self.ledger.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def verify(self) -> list[str]:
        """What is wrong with the store, in words; empty if every record is as it was written.

        If so, the search is run again over the stored episodes, and must give the same numbers to the last bit.
        """
        if not self._durable:
            raise InvalidArgumentError("a study without a store keeps nothing that could be verified")
        return self.ledger.damages() or replay(self.ledger, self.search, self._progress.first, self._own_discount)

    def run(
        self,
        env: CompiledEnv | GymnasiumSampler,
        *,
        episodes: int | None = None,
        total: int | None = None,
        batch_size: int = 100,
        on_batch: Callable[["Study", Info], None] | None = None,
        target_halfwidth: float | None = None,
        time_limit: float | None = None,
    ) -> Estimate:
        """Run episodes in batches; the last may be smaller.

        An interrupt (Ctrl-C) ends the run too, once there is a batch: the estimate is that of all whole batches, and
        says so.

        Args:
            env: where; the discount of a compiled environment must be the study's.
            episodes: how many more; or
            total: how many the study is to have in the end, those that it has already included. This is what a program
                wants that may be killed and started again: nothing is run that is there already.
            batch_size: how many between two steps of the search; a stored study keeps to its first.
            on_batch: called after each batch, to show progress.
            target_halfwidth: stop when half the width of the 95% anytime-valid interval is at most this.
            time_limit: start no batch after this many seconds.
        """
        if (episodes is None) == (total is None):
            raise InvalidArgumentError(f"give either episodes or total, got episodes={episodes} and total={total}")
        wanted = check_integer("episodes", episodes) if total is None else check_integer("total", total)
        remaining = wanted - (0 if total is None else self.episodes)
        check_integer("batch_size", batch_size)
        if isinstance(env, CompiledEnv) and env.discount != self.discount:
            raise InvalidArgumentError(
                f"discount must be the environment's {env.discount}, but the study was made with {self.discount}"
            )
        if isinstance(env, CompiledEnv) and self.return_range is None and self.outcome is None:
            self.return_range = env.return_range
        if target_halfwidth is not None:
            check_real("target_halfwidth", target_halfwidth, above=0.0)
            if self.return_range is None:
                raise InvalidArgumentError(
                    "target_halfwidth needs an interval that stays valid when one looks at it after every batch, and "
                    "that needs return_range, two numbers between which every return lies"
                )
        deadline = math.inf
        if time_limit is not None:
            deadline = time.monotonic() + check_real("time_limit", time_limit, above=0.0)
        if self._durable and remaining > 0:
            self.fix({"batch_size": batch_size})
        # A study that was ended by its results and goes on still has a number of episodes that depends on them.
        self._ended = "target" if self._ended == "target" else "budget"
        try:
            for start in range(0, remaining, batch_size):
                if start and time.monotonic() > deadline:
                    self._ended = "time limit"
                    break
                # Nobody else is to answer this request: it is written with its episodes, or not at all.
                entry = self._progress.next_entry()
                size = min(batch_size, remaining - start)
                behavior = self.search.behavior(self.state)
                batch = sample(env, behavior, size, seed=self.seed, batch=entry.number)
                info = self._progress.tell(entry, self._paid(batch))
                if on_batch is not None:
                    on_batch(self, info)
                if target_halfwidth is not None and self._reached(target_halfwidth):
                    self._ended = "target"
                    break
        except KeyboardInterrupt:
            if not self._progress.batches:
                raise
            self._ended = "interrupted"
        return self.estimate()

    @property
    def _is_event(self) -> bool:
        return self.outcome is not None and self.outcome.event

    @property
    def _own_discount(self) -> float:
        return 1.0 if self.outcome is not None else self.discount

    def _paid(self, trajectories: Trajectories) -> Trajectories:
        return trajectories if self.outcome is None else self.outcome.paid(trajectories)

    def _reached(self, target_halfwidth: float) -> bool:
        estimate = self.estimate()
        interval = estimate.anytime_interval()
        if interval is None:
            raise InvalidArgumentError(
                f"the anytime-valid interval that is to reach its target is {estimate.anytime_kind}"
            )
        return interval[1] - interval[0] <= 2.0 * target_halfwidth

    def estimate(self) -> Estimate:
        """The estimate from everything told so far."""
        if not self._progress.batches:
            raise InvalidArgumentError("a study without episodes has no estimate: tell it a batch first")
        # In the order of asking, in which they are martingale differences; the order of telling may depend on them.
        progress = self._progress
        numbers = sorted(progress.batches)
        told = [progress.batches[number] for number in numbers]
        if self.search.revalues:
            valued = self.search.revalue(self.state, [self.ledger.episodes(number) for number in numbers])
        else:
            counts = [self.search.counts(number) for number in numbers]
            valued = Valued.of([batch.values for batch in told], self.search.explained(self.state), counts)
        episodes = Episodes(
            values=np.concatenate(valued.batches),
            log_weights=np.concatenate([batch.log_weights for batch in told]),
            returns=np.concatenate([batch.returns for batch in told]),
        )
        return Estimate(
            value=valued.mean,
            episodes=len(episodes.values),
            method=self.search.label,
            unbiased=self.search.unbiased,
            error=valued.error,
            diagnostics=diagnose(episodes, valued.batches[-1], valued.error),
            history=History.of(valued.batches, [batch.log_weights for batch in told], valued.weights),
            data=episodes,
            explained=valued.explained,
            return_range=self.return_range,
            weight_bound=self.search.weight_bound,
            event=self.outcome.name if self.outcome is not None and self._is_event else "",
            ended=self._ended,
            waiting=tuple(sorted(progress.asked_states)),
            abandoned=tuple(entry.number for entry in progress.entries if entry.status is Status.ABANDONED),
        )

    def fix(self, settings: dict[str, Any]) -> None:
        """Write down further settings of a stored study, its environment for instance, or check that they are the same.

        Raises:
            SettingsMismatchError: one was another before.
        """
        self.ledger.fix({name: describe(value, name) for name, value in settings.items()}, str(self.ledger.store))

    def _settings(self) -> dict[str, Any]:
        return {
            "policy": policy_setting(self.policy),
            "search": describe(self.search, "search"),
            "discount": self.discount,
            "seed": self.seed,
            "outcome": None if self.outcome is None else self.outcome.name,
        }

    def _request(self, entry: Entry) -> Request:
        state = self._progress.asked_states[entry.number]
        return Request(entry.number, self.search.behavior(state), entry.identity)


def _stored_outcome(settings: dict[str, Any]) -> Outcome | None:
    return None if settings["outcome"] is None else Outcome.failure(settings["outcome"], settings["discount"])
