"""Study: the loop of asking for a behavior, running it, telling the episodes, and estimating."""

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import PyTree

from bpsearch._core.arrays import Array
from bpsearch._core.checks import check_integer, check_range, check_seed, check_type, quote
from bpsearch.errors import InvalidArgumentError
from bpsearch.estimands import Estimand, Range, Return
from bpsearch.inference.confidence_sequence import OPEN_ENDED, choose_tightest
from bpsearch.inference.difference import Turn
from bpsearch.inference.estimate import Estimate
from bpsearch.inference.looks import Looks
from bpsearch.inference.stopping import Ended, Target
from bpsearch.methods import AnySearch, Method, find_method
from bpsearch.policies.base import Policy
from bpsearch.runners.base import Runner
from bpsearch.runners.choice import Workers, runner_for
from bpsearch.runners.in_process import Environment
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search.base import Info
from bpsearch.study.acceptance import check_answer
from bpsearch.study.conclusion import conclude
from bpsearch.study.journal import Journal
from bpsearch.study.opening import open_journal
from bpsearch.study.policies import policy_arrays, policy_setting, stored_policy
from bpsearch.study.progress import Progress
from bpsearch.study.recorder import Recorder, understood
from bpsearch.study.requests import Entry, Request
from bpsearch.study.resets import Resets, choose_resets
from bpsearch.study.running import run_batches
from bpsearch.study.settings import build, check_same, describe, known_counts

OnBatch = Callable[["Study", Info], None]


class Study:
    """An evaluation in progress: `ask`, run the episodes, `tell`, as often as wanted; `estimate` at any time.

    `run` does it all for an environment. People who run the episodes themselves use `ask` and `tell`. Any number of
    requests may be open, and be told in any order. The behavior of a request is fixed when it is asked, from what has
    been told up to then, and so is all else with which its episodes will be valued (shift, model): a batch never has a
    say in how it is valued, nor has the time that it took, and the estimate is exactly unbiased in whatever order
    batches are told. The search learns from each batch when it is told, with the state of that moment; from a late
    batch, of a behavior that the search has left since, BPG learns only approximately.

    With a `store` every told batch is on disk before `tell` returns. A study that was killed goes on where it was when
    it is made again with the same store and the same settings, and ends with the same numbers to the last bit (on the
    same versions and the same kind of machine).

    Args:
        policy: the evaluation policy.
        method: the name of a method, a `Method`, or a search, which is then valued by its own estimator.
        estimand: what is estimated; the undiscounted return by default.
        seed: of the episodes that `run` samples; drawn if None.
        store: the path of the study's file, which is made if there is none, or a `Journal`; by default the study ends
            with its process.

    Raises:
        SettingsMismatchError: the store holds a study with other settings.
        StoreLockedError: another process is writing to the store.
        StoreError: the file is damaged or not a store.
    """

    def __init__(
        self,
        policy: Policy,
        method: str | Method | AnySearch = "auto",
        *,
        estimand: Estimand | None = None,
        seed: int | None = None,
        store: Journal | str | Path | None = None,
    ) -> None:
        self.policy = check_type("policy", policy, Policy, "a policy of bpsearch")
        self.method = find_method(method)
        self.estimand = Return() if estimand is None else check_type("estimand", estimand, Estimand, "an Estimand")
        self.return_range: Range | None = self.estimand.return_range
        self.journal = None if store is None else open_journal(store, make=True)
        try:
            recorder = None if self.journal is None else Recorder(self.journal)
            self._progress = Progress(policy, self.method, self.estimand, recorder)
            with understood(self.journal):
                self._begin(seed, recorder)
        except BaseException:
            self.close()
            raise

    def _begin(self, seed: int | None, recorder: Recorder | None) -> None:
        self._ended = Ended.BUDGET
        self._tightest: int | None = None
        self._resets: int | None = None
        self._no_resets = ""
        self._knows_range = self.return_range is not None  # whether a store would know it, too
        self.identity = secrets.token_hex(16)
        if recorder is None or recorder.is_empty:
            self.seed = secrets.randbits(31) if seed is None else check_seed(seed)
            if recorder is not None:
                recorder.journal.check_writable()
                self.identity = recorder.make(self._settings(), policy_arrays(self.policy))
        else:
            history = recorder.read()
            stored = history.settings
            self.seed = check_seed(stored.get("seed") if seed is None else seed)
            given = self._settings()
            check_same({name: stored.get(name) for name in given}, given, str(recorder.journal))
            self.identity = history.identity
            self._ended = history.ended or Ended.BUDGET
            self._tightest, self._resets = known_counts(stored)
            if self.return_range is None and stored.get("return_range") is not None:
                self.return_range, self._knows_range = check_range("return_range", build(stored["return_range"])), True
            self._progress.take_up(history)
        self._looks = Looks(self.method.valuation, self._progress.first.valuation)

    @classmethod
    def open(
        cls,
        store: Journal | str | Path,
        *,
        policy: Policy | None = None,
        method: Method | AnySearch | None = None,
        estimand: Estimand | None = None,
        read_only: bool = False,
    ) -> "Study":
        """The study in a store, with the settings that it has there.

        Args:
            store: the path of the study's file, or a `Journal`.
            policy: the evaluation policy, needed if it is neither a table nor a network of bpsearch.
            method: the method, needed if it, or its estimator, is not one of bpsearch.
            estimand: what is estimated, needed if it is a function.
            read_only: whether to look only, beside a process that may be writing.
        """
        journal = open_journal(store, read_only=read_only)
        try:
            history = Recorder(journal).read()
            settings = history.settings
            return cls(
                policy or stored_policy(settings.get("policy", {}), history.policy),
                method or build(settings.get("method")),
                estimand=estimand or build(settings.get("estimand")),
                store=journal,
            )
        except BaseException:
            journal.close()
            raise

    @property
    def state(self) -> PyTree[Array]:
        """The state of the search after everything told so far."""
        return self._progress.states.search

    @property
    def episodes(self) -> int:
        """How many episodes have been told."""
        return sum(len(batch.values) for batch in self._progress.batches.values())

    @property
    def outstanding(self) -> tuple[Request, ...]:
        """The requests that were asked and neither told nor abandoned."""
        entries = self._progress.entries
        return tuple(self._request(entries[number]) for number in sorted(self._progress.asked))

    def request(self, number: int) -> Request:
        """An open request once more, as it was when it was asked; a RequestError if it is no open one."""
        return self._request(self._progress.open_entry(number))

    def ask(self) -> Request:
        """A new request: the behavior that is to collect a batch, fixed by what has been told so far.

        Raises:
            SupportError: the search has ruled out actions that the evaluation policy takes. What has been told stays.
        """
        entry, behavior = self._propose(len(self._progress.batches))
        self._progress.ask(entry, behavior)
        return Request(entry.number, behavior, entry.identity)

    def tell(self, number: int, batch: Trajectories, *, request: str = "") -> Info:
        """Give the episodes of request `number`. If they are refused, the study is as it was before.

        The episodes must be all those that were begun with the request's behavior: leaving out some that went wrong
        biases the estimate.

        Args:
            number: of the request.
            batch: its episodes. If their `behavior_parameters` are known they must be the request's; if not, they may
                be of another behavior that was fixed as early, whose log-probabilities they have.
            request: the identity that came with the episodes; it must be the request's, and the log-probabilities must
                be those of its behavior.

        Raises:
            RequestError: the request was never asked, or is told or abandoned already.
            InvalidTrajectoriesError: the episodes are those of another request or behavior.
        """
        entry = self._progress.open_entry(number)
        check_type("batch", batch, Trajectories, "Trajectories")
        check_type("request", request, str, "the identity of a request")
        check_answer(self.policy, self._request(entry), batch, request)
        return self._progress.tell(entry, batch)

    def count(self, entry: Entry, batch: Trajectories) -> Info:
        """Count the episodes of a request that `next_request` gave and nobody else knows of."""
        return self._progress.tell(entry, batch)

    def abandon(self, number: int, reason: str = "") -> None:
        """Wait no longer for the episodes of request `number`; every estimate will say so.

        The estimate stays unbiased only if the batch is given up for a reason that has nothing to do with what happened
        in its episodes.

        Raises:
            RequestError: the request was never asked, or is told or abandoned already.
        """
        check_type("reason", reason, str, "a text")
        self._progress.abandon(self._progress.open_entry(number), reason)

    def close(self) -> None:
        """Let go of the store, if there is one."""
        if self.journal is not None:
            self.journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def verify(self) -> list[str]:
        """What is wrong with the store, in words; empty if every event is as it was written.

        If so, search and valuation are run again over the stored episodes, and must give the same numbers to the last
        bit.
        """
        recorder = self._progress.recorder
        if recorder is None:
            raise InvalidArgumentError("a study without a store keeps nothing that could be verified")
        again = Progress(self.policy, self.method, self.estimand, recorder)
        return recorder.journal.damages() or again.replay(recorder.read())

    def run(
        self,
        env: Environment,
        *,
        episodes: int | None = None,
        total: int | None = None,
        target: float | Target | None = None,
        resets: int | Resets = "auto",
        on_batch: OnBatch | None = None,
        workers: Workers | None = None,
        episode_timeout: float | None = None,
    ) -> Estimate:
        """Run episodes in batches; the last may be smaller.

        An interrupt (Ctrl-C) ends the run too, once there is a batch: the estimate is that of all whole batches, and
        says so.

        Args:
            env: where: as for `evaluate`; the discount of a compiled environment must be the estimand's.
            episodes: how many more; or
            total: how many the study is to have in the end, those that it has already included. This is what a program
                wants that may be killed and started again: nothing is run that is there already.
            target: when to stop before that: half the width of an anytime-valid 95% interval, or a `Target`.
            resets: how many further starts to draw for each episode, if the method learns from starts: "auto" as many
                as are worth their price, "never" for an environment that must not be reset without need.
            on_batch: called after each batch, to show progress.
            workers: who runs the episodes, see `bpsearch.runners.open_workers`; this process by default.
            episode_timeout: with workers, the seconds that an episode may take.
        """
        if (episodes is None) == (total is None):
            raise InvalidArgumentError(
                f"give either episodes or total, got episodes={quote(episodes)} and total={quote(total)}"
            )
        wanted = check_integer("episodes", episodes) if total is None else check_integer("total", total)
        remaining = wanted - (0 if total is None else self.episodes)
        rule = target if isinstance(target, Target) else Target(halfwidth=target)
        with runner_for(env, self.policy, workers, episode_timeout) as runner:
            self.check_runner(runner.discount, runner.return_range)
            if rule.looks and rule.kind == "certified" and self.return_range is None:
                raise InvalidArgumentError(
                    "a certified target needs return_range, two numbers between which every return lies"
                )
            further = self.decide_resets(runner, resets)
            if remaining > 0:
                self.plan_for(choose_tightest(remaining, rule.open_ended))
            # A study that was ended by its results and goes on still has a number of episodes that depends on them.
            ended = Ended.TARGET if self._ended is Ended.TARGET else Ended.BUDGET
            try:
                ended = run_batches(self, runner, remaining, rule, further, on_batch) or ended
            except KeyboardInterrupt:
                if not self._progress.batches:
                    raise
                ended = Ended.INTERRUPTED
            self._no_resets = runner.no_resets
        self._end(ended)
        return self.estimate()

    def estimate(self) -> Estimate:
        """The estimate from everything told so far."""
        progress = self._progress
        if not progress.batches:
            raise InvalidArgumentError("a study without episodes has no estimate: tell it a batch first")
        tightest, known = self._tightest or OPEN_ENDED, self.return_range
        return conclude(
            progress, self._looks, tightest, return_range=known, ended=self._ended, no_resets=self._no_resets
        )

    def turns(self) -> Mapping[int, Turn]:
        """What each batch says, by its number: values given the batches asked before it, and with what.

        No later batch changes them, unless one is told that was asked before.
        """
        if batches := self._progress.batches:
            self._looks.sequence(batches, self._progress.batch, self._tightest or OPEN_ENDED)
        return self._looks.turns

    def fix(self, settings: dict[str, Any]) -> None:
        """Write down further settings of a stored study, its environment for instance, or check that they are the same.

        Raises:
            SettingsMismatchError: one was another before.
        """
        if self._progress.recorder is not None:
            self._progress.recorder.fix({name: describe(value, name) for name, value in settings.items()})

    @property
    def settings(self) -> dict[str, Any]:
        """What a stored study was made with, by name; empty without a store."""
        recorder = self._progress.recorder
        return {} if recorder is None else recorder.read().settings

    def _settings(self) -> dict[str, Any]:
        return {
            "policy": policy_setting(self.policy),
            "method": describe(self.method, "method"),
            "estimand": describe(self.estimand, "estimand"),
            "seed": self.seed,
        }

    def next_request(self, ahead: int = 0) -> tuple[Entry, Policy]:
        """The next request of a run, not yet given out, with its behavior; or one later, at most the method's lag."""
        return self._propose(self._progress.request_version(ahead), ahead)

    def _propose(self, version: int, ahead: int = 0) -> tuple[Entry, Policy]:
        if self.journal is not None:
            self.journal.check_writable()
        behavior = self._progress.behavior_at(version)
        behavior.check_support(self.policy)
        number = len(self._progress.entries) + ahead
        return Entry.ask(number, np.asarray(behavior.flat), version, self.identity), behavior

    def _request(self, entry: Entry) -> Request:
        fixed = self._progress.asked[entry.number]
        return Request(entry.number, self.method.search.behavior(fixed.search), entry.identity)

    def check_runner(self, discount: float | None, return_range: Range | None) -> None:
        """Refuse another discount than the estimand's, and take over the range that the environment knows."""
        own = self.estimand.return_discount
        if own is None:
            return
        if discount is not None and discount != own:
            raise InvalidArgumentError(
                f"discount must be the environment's {discount}, but the study was made with {own}"
            )
        if self.return_range is None:
            self.return_range = return_range

    def decide_resets(self, runner: Runner, wanted: int | Resets) -> int:
        """How many further starts each episode gets: the same number in the whole study."""
        useful = self.method.valuation.needs_resets(self.policy)
        count = choose_resets(wanted, self.method.search, offered=runner.resets, useful=useful, before=self._resets)
        if self._resets != count:
            self.fix({"resets": count})
            self._resets = count
        return count

    def plan_for(self, episodes: int) -> None:
        """Before the first episode: where anytime-valid intervals are to be narrow. Later nothing may choose it."""
        known: dict[str, Any] = {}
        if self._tightest is None and not self._progress.batches:
            known["tightest"] = self._tightest = episodes
        if self.return_range is not None and not self._knows_range:
            known["return_range"], self._knows_range = self.return_range, True
        if known:
            self.fix(known)

    def reached(self, rule: Target) -> bool:
        """Whether the interval is as narrow as a target wants it."""
        progress, looks, tightest = self._progress, self._looks, self._tightest or OPEN_ENDED
        if not rule.looks or not progress.batches:
            return False
        return rule.reached(*looks.look(rule, progress.batches, progress.batch, self.return_range, tightest))

    def _end(self, ended: Ended) -> None:
        if ended is not self._ended and self._progress.recorder is not None:
            self._progress.recorder.end(ended)
        self._ended = ended
