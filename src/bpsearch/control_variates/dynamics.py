"""What some episodes have shown of a table's dynamics: counts and sums, whatever behavior ran the episodes."""

from dataclasses import dataclass

import numpy as np

from bpsearch._core.arrays import Array, NumpyArray, Scalar
from bpsearch._core.jaxtools import pytree
from bpsearch.errors import InvalidArgumentError, InvalidTrajectoriesError
from bpsearch.policies.base import Policy
from bpsearch.policies.table import SoftmaxTable
from bpsearch.sampling.trajectories import Trajectories

MAX_CELLS = 4_000_000  # S · A · S; three arrays of so many numbers are kept


@pytree()
@dataclass(frozen=True, eq=False)
class Dynamics:
    """Sums over the steps of all episodes so far. What follows a state and an action does not depend on who acted.

    Attributes:
        counts: (S, A, S), how often a pair (s, a) led to s'.
        rewards: (S, A, S), the rewards then.
        squares: (S, A), the squared rewards of a pair.
        first: (S, A, S), those of the counts that were first steps of episodes.
        paid: (S, A), the rewards of a pair at first steps.
        starts: (S,), how often an episode began in s.
        longest: the length of the longest episode.
    """

    counts: Array
    rewards: Array
    squares: Array
    first: Array
    paid: Array
    starts: Array
    longest: Scalar

    @classmethod
    def of(cls, policy: Policy) -> "Dynamics":
        """Before the first episode of this policy.

        Raises:
            InvalidArgumentError: the policy is no table, or too large a one.
        """
        if not isinstance(policy, SoftmaxTable):
            raise InvalidArgumentError(
                f"a tabular model needs a SoftmaxTable, whose states can be counted, got a {type(policy).__name__}"
            )
        states, actions = policy.logits.shape
        if states * actions * states > MAX_CELLS:
            raise InvalidArgumentError(
                f"a tabular model has one number for each (s, a, s'), at most {MAX_CELLS}; got {states} states and "
                f"{actions} actions"
            )
        pairs, cells = np.zeros((states, actions)), np.zeros((states, actions, states))
        return cls(cells, cells, pairs, cells, pairs, np.zeros(states), np.int64(1))

    def add(self, batch: Trajectories) -> "Dynamics":
        """With the episodes of a batch, too.

        Raises:
            InvalidTrajectoriesError: it is not known where the last steps led.
        """
        if batch.final_observations is None:
            raise InvalidTrajectoriesError(
                "a tabular model learns where each step led, but the batch has no final_observations; record them"
            )
        return self.add_steps(**steps_of(batch))

    def add_steps(
        self,
        times: NumpyArray,
        states: NumpyArray,
        actions: NumpyArray,
        rewards: NumpyArray,
        successors: NumpyArray,
        lengths: NumpyArray,
    ) -> "Dynamics":
        """With more steps of whole episodes, given one after the other."""
        start = times == 0
        table = np.shape(self.squares)
        pairs = np.ravel_multi_index((states, actions), table)
        cells = np.ravel_multi_index((pairs, successors), (self.squares.size, table[0]))

        def count(index: NumpyArray, shape: tuple[int, ...], weights: NumpyArray | None = None) -> NumpyArray:
            return np.bincount(index, weights, minlength=int(np.prod(shape))).reshape(shape)

        return Dynamics(
            self.counts + count(cells, self.counts.shape),
            self.rewards + count(cells, self.counts.shape, rewards),
            self.squares + count(pairs, table, rewards**2),
            self.first + count(cells, self.counts.shape, start.astype(np.float64)),
            self.paid + count(pairs, table, start * rewards),
            self.starts + count(states[start], table[:1]),
            np.maximum(self.longest, np.int64(lengths.max())),
        )

    @property
    def visits(self) -> NumpyArray:
        """(S, A), how often each action was taken in each state."""
        return np.asarray(np.asarray(self.counts).sum(axis=-1))

    @property
    def bonus(self) -> float:
        """What every episode is paid at its first step besides.

        A model that knows no time would take such a constant for luck of the actions that happened to come first. It is
        what pairs are paid more at first steps than at later ones.
        """
        first = np.asarray(self.first).sum(axis=-1)
        later = self.visits - first
        both = (first > 0.0) & (later > 0.0)
        paid_later = (np.asarray(self.rewards).sum(axis=-1) - self.paid)[both] / later[both]
        return float(np.sum(np.asarray(self.paid)[both] - first[both] * paid_later) / max(first[both].sum(), 1.0))


def steps_of(batch: Trajectories) -> dict[str, NumpyArray]:
    """The steps of all episodes, one after the other, and the lengths of the episodes; final observations are known."""
    mask = np.asarray(batch.mask)
    times = np.broadcast_to(np.arange(mask.shape[1]), mask.shape)
    columns = (times, batch.observations, batch.actions, batch.rewards, batch.successors)
    names = ("times", "states", "actions", "rewards", "successors")
    steps = {name: np.asarray(column)[mask] for name, column in zip(names, columns, strict=True)}
    return {"lengths": np.asarray(batch.lengths)} | steps
