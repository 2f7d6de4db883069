"""Study: the loop of asking for a behavior, running it, telling the episodes, and estimating."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bpsearch.checks import check_discount, check_integer, check_range, check_real
from bpsearch.envs.base import CompiledEnv
from bpsearch.errors import InvalidArgumentError, InvalidTrajectoriesError
from bpsearch.estimate import Episodes, Estimate, History, diagnose
from bpsearch.intervals import martingale_error
from bpsearch.numerics import to_numpy
from bpsearch.outcomes import Outcome
from bpsearch.policies.base import Policy
from bpsearch.sampling import GymnasiumSampler, sample
from bpsearch.search.base import Info, Search
from bpsearch.trajectories import Array, Trajectories


@dataclass(frozen=True, eq=False)
class Request:
    """A behavior policy that waits for its episodes.

    Attributes:
        number: the batch that it is for.
        behavior: the policy to run.
    """

    number: int
    behavior: Policy


@dataclass(frozen=True, eq=False)
class _Batch:
    """What a study keeps of a batch; the episodes themselves only where a new model values them again."""

    values: Array
    log_weights: Array
    returns: Array
    trajectories: Trajectories | None


class Study:
    """An evaluation in progress: `ask`, run the episodes, `tell`, as often as wanted; `estimate` at any time.

    `run` does it all for an environment. People who run the episodes themselves use `ask` and `tell`.

    Args:
        policy: the evaluation policy.
        search: how behaviors are chosen and episodes valued; `BPG(...)` or `OnPolicy()`.
        discount: γ.
        seed: of the episodes that `run` samples.
        return_range: the numbers between which every return lies, or every outcome; the anytime-valid interval needs
            them. `run` asks a compiled environment for them if they are not given.
        outcome: what is estimated in place of the return; it is not discounted.
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
        self.state: Any = search.init(policy, 1.0 if outcome is not None else self.discount)
        self._batches: list[_Batch] = []

    @property
    def episodes(self) -> int:
        """How many episodes have been told."""
        return sum(len(batch.values) for batch in self._batches)

    def ask(self) -> Request:
        """The behavior that is to collect the next batch; asking again before telling gives the same.

        Raises:
            SupportError: the search has ruled out actions that the evaluation policy takes. What has been told stays.
        """
        behavior = self.search.behavior(self.state)
        behavior.check_support(self.policy)
        return Request(len(self._batches), behavior)

    def tell(self, number: int, trajectories: Trajectories) -> Info:
        """Give the episodes of request `number`. If they are refused, the study is as it was before."""
        if number != len(self._batches):
            raise InvalidArgumentError(f"the study waits for batch {len(self._batches)}, got batch {number}")
        asked, told = to_numpy(self.ask().behavior.flat), trajectories.behavior_parameters
        if told is not None and not np.array_equal(asked, told):
            raise InvalidTrajectoriesError(f"the episodes were not collected by the behavior of request {number}")
        if self.outcome is not None:
            trajectories = self.outcome.paid(trajectories)
        state, info = self.search.step(self.state, trajectories)
        keep = trajectories if self.search.valuation.revalues else None
        returns = trajectories.returns(1.0 if self.outcome is not None else self.discount)
        batch = _Batch(info.values, info.log_weights, returns, keep)
        # One statement without a call: an interrupt cannot come between the two.
        self.state, self._batches = state, [*self._batches, batch]
        return info

    def run(
        self,
        env: CompiledEnv | GymnasiumSampler,
        *,
        episodes: int,
        batch_size: int = 100,
        on_batch: Callable[["Study", Info], None] | None = None,
        target_halfwidth: float | None = None,
        time_limit: float | None = None,
    ) -> Estimate:
        """Run at most `episodes` more episodes in batches; the last may be smaller.

        An interrupt (Ctrl-C) ends the run too, once there is a batch: the estimate is that of all whole batches, and
        says so.

        Args:
            env: where; the discount of a compiled environment must be the study's.
            episodes: how many.
            batch_size: how many between two steps of the search.
            on_batch: called after each batch, to show progress.
            target_halfwidth: stop when half the width of the 95% anytime-valid interval is at most this.
            time_limit: start no batch after this many seconds.
        """
        check_integer("episodes", episodes)
        check_integer("batch_size", batch_size)
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
        if isinstance(env, CompiledEnv) and env.discount != self.discount:
            raise InvalidArgumentError(
                f"discount must be the environment's {env.discount}, but the study was made with {self.discount}"
            )
        # A study that was ended by its results and goes on still has a number of episodes that depends on them.
        self._ended = "target" if self._ended == "target" else "budget"
        try:
            for start in range(0, episodes, batch_size):
                if start and time.monotonic() > deadline:
                    self._ended = "time limit"
                    break
                request = self.ask()
                size = min(batch_size, episodes - start)
                batch = sample(env, request.behavior, size, seed=self.seed, batch=request.number)
                info = self.tell(request.number, batch)
                if on_batch is not None:
                    on_batch(self, info)
                if target_halfwidth is not None and self._reached(target_halfwidth):
                    self._ended = "target"
                    break
        except KeyboardInterrupt:
            if not self._batches:
                raise
            self._ended = "interrupted"
        return self.estimate()

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
        if not self._batches:
            raise InvalidArgumentError("a study without episodes has no estimate: tell it a batch first")
        valuation = self.search.valuation
        batches = [batch.values for batch in self._batches]
        if valuation.revalues:
            batches = [valuation.values(self.state.valuation, b.trajectories) for b in self._batches if b.trajectories]
        episodes = Episodes(
            values=np.concatenate(batches),
            log_weights=np.concatenate([b.log_weights for b in self._batches]),
            returns=np.concatenate([b.returns for b in self._batches]),
        )
        error = martingale_error(batches)
        return Estimate(
            value=float(episodes.values.mean()),
            episodes=len(episodes.values),
            method=f"{type(self.search).__name__}, {self.search.estimator.name}",
            unbiased=self.search.estimator.unbiased and not valuation.revalues,
            error=error,
            diagnostics=diagnose(episodes, batches[-1], error),
            history=_history(batches, self._batches),
            data=episodes,
            explained=self.search.explained(self.state),
            return_range=self.return_range,
            weight_bound=self.search.weight_bound,
            event=self.outcome.name if self.outcome is not None and self.outcome.event else "",
            ended=self._ended,
        )


def _history(batches: list[Array], told: list[_Batch]) -> History:
    """The estimate after each batch, from running sums: the cost does not grow with the square of the batches."""
    sizes = np.array([len(values) for values in batches])
    variances = np.array([np.var(values, ddof=1) if len(values) > 1 else np.nan for values in batches])
    episodes = np.cumsum(sizes)
    return History(
        episodes=episodes,
        values=np.cumsum([values.sum() for values in batches]) / episodes,
        std_errors=np.sqrt(np.cumsum(sizes * variances)) / episodes,
        batch_variances=variances,
        divergences=np.array([_divergence(batch.log_weights) for batch in told]),
    )


def _divergence(log_weights: Array) -> float:
    """KL(π_b ‖ π_e) = E_b[w − 1 − log w]: each term is non-negative, so it is quieter than the mean of −log w."""
    with np.errstate(over="ignore"):
        return float(np.mean(np.expm1(log_weights) - log_weights))
