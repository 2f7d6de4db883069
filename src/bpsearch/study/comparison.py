"""ComparisonStudy: policies that run in turns, each in a study of its own, until it is clear which is better."""

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np

from bpsearch._core.checks import check_integer
from bpsearch.errors import InvalidArgumentError, InvalidTrajectoriesError, RequestError, StoreError
from bpsearch.estimands import Estimand, Return
from bpsearch.inference.comparison import Comparison, difference_of
from bpsearch.inference.confidence_sequence import choose_tightest
from bpsearch.inference.counting import count_episodes
from bpsearch.inference.standing import Design, Standing
from bpsearch.inference.stopping import Ended, Target
from bpsearch.methods import AnySearch, Method
from bpsearch.policies.base import Policy
from bpsearch.runners.base import Runner
from bpsearch.runners.choice import Workers, open_workers, runner_for
from bpsearch.runners.in_process import Environment
from bpsearch.sampling.seeds import episode_numbers
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.study.resets import Resets
from bpsearch.study.study import Study

OnRound = Callable[["ComparisonStudy"], None]
AnyMethod = str | Method | AnySearch


@dataclass(frozen=True, eq=False)
class Turning:
    """A batch that a policy is to run: who, how many episodes, and from which starts.

    Attributes:
        name: of the policy.
        number: of the round, and of the request in the policy's study.
        behavior: the policy to run.
        identity: by which the episodes can be known again.
        episodes: how many; all policies of a round have as many.
        seed: of the batch, for a `Runner`.
        shared: whether the other policies of the round get the same seed.
    """

    name: str
    number: int
    behavior: Policy
    identity: str
    episodes: int
    seed: int
    shared: bool

    @property
    def seeds(self) -> tuple[int, ...]:
        """For each episode the seed of its start: episodes of the same seed are to start alike."""
        return tuple(episode_numbers(self.seed, self.number, episode)[0] for episode in range(self.episodes))


class ComparisonStudy:
    """A comparison in progress: `ask` who is to run, run it, `tell` the episodes; `comparison` after any round.

    In a round every policy runs as many episodes, in an order that is drawn, from the same starts unless earlier rounds
    say that this does harm. `run` does it all; people who run the episodes themselves use `ask` and `tell`. Who runs in
    a round, and from which starts, is fixed by the rounds before it. So every batch has the right expectation.

    With a `store` a comparison that was killed goes on where it was when it is made again with the same settings.

    Args:
        policies: two or more, by name.
        method: of all policies, or of each by name.
        estimand: what is estimated of all, or of each by name; the undiscounted return by default.
        episodes: the most that each policy may run.
        seed: of the episodes; drawn if None.
        batch_size: episodes of a policy in a round; by default the method's.
        store: a directory, made if there is none, with a file for each policy.
        margin: see `Design`, and so for `level`, `reference`, `target`, `stop_early`, `drop_losers` and `kind`.
    """

    def __init__(
        self,
        policies: Mapping[str, Policy],
        method: AnyMethod | Mapping[str, AnyMethod] = "auto",
        *,
        estimand: Estimand | Mapping[str, Estimand] | None = None,
        episodes: int = 1000,
        seed: int | None = None,
        batch_size: int | None = None,
        store: str | Path | None = None,
        margin: float | None = None,
        level: float = 0.95,
        reference: str | None = None,
        target: Target | None = None,
        stop_early: bool = True,
        drop_losers: bool = False,
        kind: Literal["asymptotic", "certified"] = "asymptotic",
    ) -> None:
        self.episodes = check_integer("episodes", episodes)
        tightest = choose_tightest(self.episodes, stop_early)
        self.design = Design(tuple(policies), reference, margin, level, tightest, target, stop_early, drop_losers, kind)
        self.studies: dict[str, Study] = {}
        self._stack = contextlib.ExitStack()
        folder = None if store is None else _folder(Path(store))
        try:
            for at, (name, policy) in enumerate(policies.items()):
                study = Study(
                    policy,
                    method[name] if isinstance(method, Mapping) else method,
                    estimand=estimand[name] if isinstance(estimand, Mapping) else estimand or Return(),
                    seed=self._own_seed(seed),
                    store=None if folder is None else folder / f"{at}-{_file_name(name)}.db",
                )
                self.studies[name] = self._stack.enter_context(study)
            self._begin(batch_size)
        except BaseException:
            self.close()
            raise

    def _own_seed(self, seed: int | None) -> int | None:
        """That of the first study, once there is one: all have the same."""
        first = next(iter(self.studies.values()), None)
        return seed if first is None else first.seed

    def _begin(self, batch_size: int | None) -> None:
        first, *others = self.studies.values()
        self.seed = first.seed
        ways = {study.estimand.lower_is_better for study in self.studies.values()}
        if len(ways) > 1:
            raise InvalidArgumentError(
                "the estimands of all policies must be better in the same direction, got some whose smaller and some "
                "whose larger values are better"
            )
        self.design = dataclasses.replace(self.design, lower_is_better=ways.pop())
        sizes = {study.method.batch_size for study in self.studies.values()}
        self.batch_size = max(sizes) if batch_size is None else check_integer("batch_size", batch_size)
        known = first.settings.get("tightest")
        if known is not None:
            self.design = dataclasses.replace(self.design, tightest=int(known))
        fixed = dataclasses.asdict(self.design) | {"batch_size": self.batch_size}
        del fixed["lower_is_better"]  # follows from the estimand
        if fixed["kind"] == "asymptotic":  # stores of earlier versions know no other
            del fixed["kind"]
        for study in (first, *others):
            study.plan_for(self.design.tightest)
            study.fix({"comparison": json.dumps(fixed, sort_keys=True)})
        if self.design.kind == "certified":
            for study in (first, *others):
                study.method.valuation.check_certifiable()
        self.standing = Standing.begin(self.design, [study.return_range for study in self.studies.values()])
        self._advance()

    @property
    def rounds(self) -> int:
        """How many rounds are complete."""
        return self.standing.rounds

    @property
    def running(self) -> tuple[str, ...]:
        """The policies that run in this round, in the order in which they are asked; none once all is decided."""
        numbers = self.standing.running
        order = np.random.default_rng((self.seed, self.rounds)).permutation(len(numbers))
        return tuple(self.design.names[numbers[at]] for at in order)

    @property
    def done(self) -> int:
        """How many episodes each policy that still runs has had in complete rounds."""
        return max((contest.course[-1].pairs for contest in self.standing.contests if contest.course), default=0)

    @property
    def outstanding(self) -> tuple[Turning, ...]:
        """What was asked and has not been told."""
        return tuple(self._turning(name) for name in self.running if self.studies[name].outstanding)

    def ask(self) -> Turning:
        """Who is to run next, and from which starts.

        Raises:
            RequestError: all is decided, all episodes were run, or the others of this round must be told first.
        """
        running = self.running
        if not running:
            raise RequestError("the comparison is over: everything that was to be known is known")
        if self._size() <= 0:
            raise RequestError(f"all {self.episodes} episodes of each policy were asked; give more episodes to go on")
        for name in running:
            if not self._was_told(name) and not self.studies[name].outstanding:
                self.studies[name].ask()
                return self._turning(name)
        waiting = ", ".join(turning.name for turning in self.outstanding)
        raise RequestError(f"every policy of round {self.rounds} was asked: tell the episodes of {waiting} first")

    def tell(self, turning: Turning, batch: Trajectories) -> None:
        """Give the episodes that were asked, all of them and no others.

        Raises:
            RequestError: it was never asked, or is told already.
            InvalidTrajectoriesError: they are fewer or more, or another policy's.
        """
        if len(batch) != turning.episodes:
            raise InvalidTrajectoriesError(
                f"round {turning.number} has {turning.episodes} episodes of each policy, got {len(batch)} of "
                f"{turning.name}: leaving some out biases the comparison"
            )
        self.studies[turning.name].tell(turning.number, batch)
        self._advance()

    def run(
        self,
        env: Environment | Mapping[str, Environment],
        *,
        seconds: float | None = None,
        resets: int | Resets = "auto",
        workers: Workers | None = None,
        episode_timeout: float | None = None,
        on_round: OnRound | None = None,
    ) -> Comparison:
        """Run rounds until all is known that was to be known, or every policy has had its episodes.

        Args:
            env: where, for all policies or for each by name.
            seconds: start no round after so many.
            resets: see `Study.run`.
            workers: see `Study.run`.
            episode_timeout: see `Study.run`.
            on_round: called after each round, to show progress.
        """
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        ended = Ended.BUDGET
        with contextlib.ExitStack() as stack:
            runners: dict[str, tuple[Runner, int]] = {}
            try:
                if workers is not None:  # the same for all policies
                    workers, own = open_workers(workers)
                    if own:
                        stack.callback(workers.close)
                for name, study in self.studies.items():
                    place = env[name] if isinstance(env, Mapping) else env
                    runner = stack.enter_context(runner_for(place, study.policy, workers, episode_timeout))
                    study.check_runner(runner.discount, runner.return_range)
                    runners[name] = runner, study.decide_resets(runner, resets)
                while self.running and self._size() > 0:
                    if self.rounds and time.monotonic() > deadline:
                        ended = Ended.TIME_LIMIT
                        break
                    self._run_round(runners)
                    if on_round is not None:
                        on_round(self)
            except KeyboardInterrupt:
                if not self.rounds:
                    raise
                ended = Ended.INTERRUPTED
        return self.comparison(ended)

    def comparison(self, ended: Ended = Ended.BUDGET) -> Comparison:
        """What all complete rounds say."""
        if not self.rounds:
            raise InvalidArgumentError("a comparison without a complete round says nothing: tell it episodes first")
        if not self.running:
            ended = Ended.VERDICT if self.design.target is None or not self.design.target.looks else Ended.TARGET
        estimates = {name: study.estimate() for name, study in self.studies.items()}
        estimates = {name: dataclasses.replace(found, ended=ended) for name, found in estimates.items()}
        differences = []
        for pair, contest in zip(self.design.pairs, self.standing.contests, strict=True):
            one, other = (self.design.names[at] for at in pair)
            rounds = range(len(contest.course))
            told = [self.studies[name].turns() for name in (one, other)]
            fixed = [min(values[number].weight for values in told) for number in rounds]
            pairs = np.diff([0, *(point.pairs for point in contest.course)])
            weights = count_episodes(fixed, pairs.tolist())
            found = (estimates[one], estimates[other])
            differences.append(difference_of((one, other), found, contest, weights, len(self.design.pairs)))
        dropped = tuple(self.design.names[at] for at in sorted(self.standing.dropped))
        return Comparison(estimates, tuple(differences), self.design, ended, dropped)

    def close(self) -> None:
        """Let go of the stores, if there are any."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run_round(self, runners: Mapping[str, tuple[Runner, int]]) -> None:
        now = self.rounds
        for name in self.running:
            if self._was_told(name):  # before it was closed or killed
                continue
            if not self.studies[name].outstanding:
                self.studies[name].ask()
            turning = self._turning(name)
            runner, resets = runners[name]
            further = {"resets": resets} if resets else {}
            batch = runner.run(turning.behavior, turning.episodes, seed=turning.seed, batch=turning.number, **further)
            self.tell(turning, batch)
        assert self.rounds == now + 1

    def _was_told(self, name: str) -> bool:
        return self.rounds in self.studies[name].turns()

    def _size(self) -> int:
        """Episodes of each policy in this round."""
        told = [self.studies[name].turns().get(self.rounds) for name in self.running]
        known = [len(found.values) for found in told if found is not None]
        return known[0] if known else min(self.batch_size, self.episodes - self.done)

    def _turning(self, name: str) -> Turning:
        (request,) = self.studies[name].outstanding
        at = self.design.names.index(name)
        shared = self.standing.shares(at)
        seed = self.seed if shared else _other_seed(self.seed, at)
        return Turning(name, request.number, request.behavior, request.identity, self._size(), seed, shared)

    def _advance(self) -> None:
        """Count the rounds that are complete."""
        while self.running and all(map(self._was_told, self.running)):
            turns = {self.design.names.index(name): self.studies[name].turns()[self.rounds] for name in self.running}
            self.standing = self.standing.add(turns)


def _other_seed(seed: int, number: int) -> int:
    """The seed of a policy that does not share the others'."""
    return int(np.random.SeedSequence(seed, spawn_key=(number + 1,)).generate_state(1)[0] >> 1)


def _folder(path: Path) -> Path:
    if path.exists() and not path.is_dir():
        raise StoreError(f"the store of a comparison is a directory with a file for each policy, got the file {path}")
    path.mkdir(parents=True, exist_ok=True)
    return path


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)[:80]
