"""Who runs the episodes: the contract of runners."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import gymnasium

from bpsearch.estimands import Range
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories


class Runner(ABC):
    """Runs behavior policies for whole episodes.

    What every runner promises, and `bpsearch.testing.check_runner` checks:

    - An episode is a pure function of (seed, batch, episode number, behavior): it does not matter where it runs, beside
      which others, or how often.
    - Exactly the episodes that were asked for come back, in the order of their numbers, each run to its own end.
      None is left out, neither for being long nor for going wrong: an episode that cannot be run is an error.

    Attributes:
        discount: γ of the environment; None if it has none of its own.
        return_range: two numbers between which every return lies; None if they are not known.
        resets: how many further starts for each episode are worth their price; 0 if there can be none.
        no_resets: why there are none, once that is known.
    """

    discount: float | None = None
    return_range: Range | None = None
    resets: int = 0
    no_resets: str = ""

    @property
    @abstractmethod
    def observation_space(self) -> gymnasium.Space[Any]:
        """Of one environment."""

    @property
    @abstractmethod
    def action_space(self) -> gymnasium.Space[Any]:
        """Of one environment."""

    @abstractmethod
    def run(
        self, behavior: Policy, episodes: int, *, seed: int, batch: int, repeats: int = 1, resets: int = 0
    ) -> Trajectories:
        """Episodes 0 to `episodes` − 1 of a batch.

        Args:
            behavior: who acts.
            episodes: how many.
            seed: of the study.
            batch: the number of the batch: another random stream of the same seed.
            repeats: so many neighboring episodes have the same start and get the same random numbers in the
                environment; only their actions are drawn independently.
            resets: how many further starts to draw for each episode, from random numbers of their own. A runner whose
                `resets` is 0 is never asked for any.
        """

    def expect(  # noqa: B027
        self, behavior: Policy, sizes: Iterable[int], *, seed: int, batch: int, resets: int = 0
    ) -> None:
        """Batches that will be run, number `batch` and those after it, by the same behavior.

        A runner with workers begins as many as keep them busy; others need not care.

        Args:
            behavior: who acts.
            sizes: the episodes of each.
            seed: of the study.
            batch: the number of the first.
            resets: see `run`.
        """

    def close(self) -> None:  # noqa: B027
        """Free what the runner holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
