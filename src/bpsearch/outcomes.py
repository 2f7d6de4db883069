"""Outcomes: what is estimated in place of the return, the probability of a failure for instance."""

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bpsearch.checks import check_discount
from bpsearch.errors import InvalidArgumentError, InvalidTrajectoriesError
from bpsearch.numerics import replace
from bpsearch.trajectories import Array, Trajectories

_COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}
_CONDITION = re.compile(r"\s*(return|length)\s*(<=|>=|==|<|>)\s*(\S+)\s*")


@dataclass(frozen=True)
class Outcome:
    """A number for each whole episode, whose expectation under the evaluation policy is estimated.

    Attributes:
        function: from a batch of N episodes to N numbers; for an event, whether it happened.
        name: what results call it.
        event: whether the numbers are 0 and 1, so that their expectation is a probability.
    """

    function: Callable[[Trajectories], Array]
    name: str
    event: bool = False

    @classmethod
    def failure(cls, condition: "str | Callable[[Trajectories], Array] | Outcome", discount: float = 1.0) -> "Outcome":
        """The event that an episode fails.

        Args:
            condition: a comparison of `return` or `length` with a number, "return < -100" for instance; or a function
                of a batch that gives N truth values.
            discount: γ of the return in the comparison.
        """
        if isinstance(condition, Outcome):
            return condition
        if isinstance(condition, str):
            return cls(_parsed(condition, check_discount(discount)), " ".join(condition.split()), event=True)
        if not callable(condition):
            raise InvalidArgumentError(
                f"failure must be a comparison such as 'return < -100', or a function of a batch of episodes that "
                f"gives a truth value for each, got {condition!r}"
            )
        return cls(condition, getattr(condition, "__name__", "failure"), event=True)

    def __call__(self, batch: Trajectories) -> Array:
        """(N,), the outcome of each episode, checked, 64 bit."""
        found = np.asarray(self.function(batch))
        numbers = found.astype(np.float64) if found.dtype.kind in "biuf" else None
        if numbers is None or numbers.shape != (len(batch),):
            raise InvalidArgumentError(
                f"the outcome {self.name!r} must give {len(batch)} numbers, one per episode, got an array of "
                f"{found.dtype} with the shape {found.shape}"
            )
        bad = ~np.isfinite(numbers) | (self.event & (numbers != 0.0) & (numbers != 1.0))
        if bad.any():
            episode = int(np.argmax(bad))
            allowed = "True or False" if self.event else "a finite number"
            raise InvalidTrajectoriesError(
                f"the outcome {self.name!r} of episode {episode} is {numbers[episode]:g}, but must be {allowed}; the "
                f"batch is not counted"
            )
        return numbers

    def paid(self, batch: Trajectories) -> Trajectories:
        """The batch with the outcome as reward of each episode's last step, and no other reward.

        Its undiscounted return is the outcome, so that every estimator and every search serves it unchanged.
        """
        rewards = np.zeros_like(batch.rewards)
        rewards[np.arange(len(batch)), batch.lengths - 1] = self(batch)
        return replace(batch, rewards=rewards)


def _parsed(condition: str, discount: float) -> Callable[[Trajectories], Array]:
    found = _CONDITION.fullmatch(condition)
    try:
        number = float(found[3]) if found else math.nan
    except ValueError:
        number = math.nan
    if found is None or not math.isfinite(number):
        raise InvalidArgumentError(
            f"failure must compare 'return' or 'length' with a number by <, <=, >, >= or ==, as in 'return < -100', "
            f"got {condition!r}"
        )
    quantity, compare = found[1], _COMPARISONS[found[2]]

    def happened(batch: Trajectories) -> Array:
        return compare(batch.returns(discount) if quantity == "return" else batch.lengths, number)

    return happened
