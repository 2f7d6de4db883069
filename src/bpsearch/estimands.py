"""What is asked: the expected return, the probability of a failure, the expectation of any outcome."""

import math
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bpsearch._core.arrays import Array
from bpsearch._core.checks import check_discount, check_range, quote
from bpsearch._core.jaxtools import replace
from bpsearch.errors import InvalidArgumentError, InvalidTrajectoriesError
from bpsearch.sampling.trajectories import Trajectories

_COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}
_CONDITION = re.compile(r"\s*(return|length)\s*(<=|>=|==|<|>)\s*(\S+)\s*")
Range = tuple[float, float]


class Estimand(ABC):
    """A number for each whole episode, whose expectation under the evaluation policy is estimated.

    Attributes:
        name: what results call it.
        discount: γ of the rewards that `pay` gives.
        event: whether the numbers are 0 and 1, so that their expectation is a probability.
        lower_is_better: whether of two policies the one with the smaller expectation is the better one.
        return_range: two numbers between which every one of them lies; None if they are not known.
    """

    event: bool = False
    lower_is_better: bool = False

    @property
    @abstractmethod
    def name(self) -> str:
        """What results call it."""

    @property
    def discount(self) -> float:
        """γ of the rewards that `pay` gives."""
        return 1.0

    @property
    def return_discount(self) -> float | None:
        """γ of the return that it is about, which must be the environment's; None if it is about something else."""
        return None

    @property
    def return_range(self) -> Range | None:
        """Two numbers between which it lies in every episode."""
        return None

    @abstractmethod
    def pay(self, batch: Trajectories) -> Trajectories:
        """The batch with rewards whose return, discounted by `discount`, is the number of each episode.

        Of an event it also has the `margins`, where they are known.
        """

    @property
    def graded(self) -> bool:
        """Whether `pay` tells how near each episode came to the event, so that a search can go there step by step."""
        return False


@dataclass(frozen=True)
class Return(Estimand):
    """The return Σ_t γ^t R_t.

    Attributes:
        discount: γ.
        return_range: two numbers between which every return lies, if they are known: the certified interval needs them.
    """

    discount: float = 1.0
    return_range: Range | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "discount", check_discount(self.discount))
        if self.return_range is not None:
            object.__setattr__(self, "return_range", check_range("return_range", self.return_range))

    @property
    def name(self) -> str:
        """What results call it."""
        return "return"

    @property
    def return_discount(self) -> float:
        """γ."""
        return self.discount

    def pay(self, batch: Trajectories) -> Trajectories:
        """The batch as it is."""
        return batch


@dataclass(frozen=True)
class Outcome(Estimand):
    """A number that a function gives to each episode of a batch.

    Attributes:
        function: from a batch of N episodes to N numbers.
        return_range: two numbers between which they lie, if they are known.
    """

    function: Callable[[Trajectories], Array]
    return_range: Range | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidArgumentError(f"an outcome must be a function of a batch of episodes, got {self.function!r}")
        if self.return_range is not None:
            object.__setattr__(self, "return_range", check_range("return_range", self.return_range))

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self.function, "__name__", "outcome")

    def pay(self, batch: Trajectories) -> Trajectories:
        """The number as the reward of each episode's last step, and no other reward."""
        return _pay_at_end(batch, _numbers(self.name, self.function(batch), batch, event=False))


@dataclass(frozen=True)
class Failure(Estimand):
    """The event that an episode fails; its expectation is a probability.

    Attributes:
        condition: a comparison of `return` or `length` with a number, "return < -100" for instance; or a function of a
            batch of N episodes that gives N truth values.
        of_discount: γ of the return in the comparison.
        level: how near each episode came to failing: a function of a batch of N episodes that gives N numbers, larger
            for those that came nearer (minus the smallest distance to an obstacle, for instance). Only their order
            counts, and it serves the search alone: no level can bias the estimate. A comparison has one of its own,
            by how much the return or the length misses the number.
    """

    condition: str | Callable[[Trajectories], Array]
    of_discount: float = 1.0
    level: Callable[[Trajectories], Array] | None = None
    event = True
    lower_is_better = True

    def __post_init__(self) -> None:
        check_discount(self.of_discount)
        if isinstance(self.condition, str):
            _parse(self.condition)
        elif not callable(self.condition):
            raise InvalidArgumentError(
                f"failure must be a comparison such as 'return < -100', or a function of a batch of episodes that "
                f"gives a truth value for each, got {quote(self.condition)}"
            )
        if self.level is not None and not callable(self.level):
            raise InvalidArgumentError(
                f"level must be a function of a batch of episodes that gives a number for each, larger for those that "
                f"came nearer to failing, got {quote(self.level)}"
            )

    @property
    def name(self) -> str:
        """The condition."""
        if isinstance(self.condition, str):
            return " ".join(self.condition.split())
        return getattr(self.condition, "__name__", "failure")

    @property
    def return_discount(self) -> float | None:
        """γ of the return that is compared."""
        compares = isinstance(self.condition, str) and _parse(self.condition)[0] == "return"
        return self.of_discount if compares else None

    @property
    def return_range(self) -> Range:
        """An event happens or not."""
        return 0.0, 1.0

    @property
    def graded(self) -> bool:
        """Whether there is a level."""
        return self.level is not None or isinstance(self.condition, str)

    def pay(self, batch: Trajectories) -> Trajectories:
        """1 as the reward of the last step of an episode that fails, and no other reward; and the margins."""
        if isinstance(self.condition, str):
            quantity, compare, number = _parse(self.condition)
            found = batch.returns(self.of_discount) if quantity == "return" else np.asarray(batch.lengths, np.float64)
            happened, margins = compare(found, number), _nearness(compare, found - number)
        else:
            happened, margins = self.condition(batch), None
        if self.level is not None:
            name = f"level {getattr(self.level, '__name__', '')}".strip()
            margins = _numbers(name, self.level(batch), batch, event=False)
        return replace(_pay_at_end(batch, _numbers(self.name, happened, batch, event=True)), margins=margins)


def _nearness(compare: Callable[[Array, float], Array], excess: Array) -> Array:
    """How near a quantity came to fulfilling a comparison, from how much it exceeds the number."""
    if compare is operator.eq:
        return -np.abs(excess)
    return -excess if compare in (operator.lt, operator.le) else excess


def _pay_at_end(batch: Trajectories, numbers: Array) -> Trajectories:
    rewards = np.zeros_like(batch.rewards)
    rewards[np.arange(len(batch)), batch.lengths - 1] = numbers
    return replace(batch, rewards=rewards)


def _numbers(name: str, found: Array, batch: Trajectories, *, event: bool) -> Array:
    """(N,), one for each episode, checked, 64 bit."""
    found = np.asarray(found)
    numbers = found.astype(np.float64) if found.dtype.kind in "biuf" else None
    if numbers is None or numbers.shape != (len(batch),):
        raise InvalidArgumentError(
            f"the outcome {name!r} must give {len(batch)} numbers, one per episode, got an array of {found.dtype} with "
            f"the shape {found.shape}"
        )
    bad = ~np.isfinite(numbers) | (event & (numbers != 0.0) & (numbers != 1.0))
    if bad.any():
        episode = int(np.argmax(bad))
        allowed = "True or False" if event else "a finite number"
        raise InvalidTrajectoriesError(
            f"the outcome {name!r} of episode {episode} is {numbers[episode]:g}, but must be {allowed}; the batch is "
            f"not counted"
        )
    return numbers


def _parse(condition: str) -> tuple[str, Callable[[Array, float], Array], float]:
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
    return found[1], _COMPARISONS[found[2]], number
