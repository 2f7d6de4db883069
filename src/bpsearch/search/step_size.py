"""Step sizes of gradient searches."""

from dataclasses import dataclass

import jax.numpy as jnp

from bpsearch._core.arrays import Scalar
from bpsearch._core.checks import check_real
from bpsearch._core.jaxtools import pytree


@pytree(static=("normalized",))
@dataclass(frozen=True)
class StepSize:
    """α_i = initial / (1 + decay · i)^power, divided by the batch's mean X² if `normalized`.

    The gradient of E[X²] scales with the square of the reward's unit, so a constant step must be chosen again for
    every task. The normalised step does not: it follows the gradient of log E[X²].

    Attributes:
        initial: α_0 > 0.
        decay: how fast the step falls; 0 keeps it constant.
        power: the exponent of the decay, 1/2 < power ≤ 1 for convergence.
        normalized: whether to divide by the mean of X² over the batch.
    """

    initial: float
    decay: float = 0.0
    power: float = 1.0
    normalized: bool = False

    def __post_init__(self) -> None:
        check_real("step_size", self.initial, above=0.0)
        check_real("decay", self.decay, low=0.0)
        check_real("power", self.power, above=0.0)

    def at(self, iteration: Scalar, second_moment: Scalar) -> Scalar:
        """α_i, given the batch's mean X²."""
        alpha = self.initial / (1.0 + self.decay * iteration) ** self.power
        if not self.normalized:
            return alpha
        # If all values are 0 so is the gradient, and there is nothing to divide by.
        return jnp.where(second_moment > 0.0, alpha / jnp.where(second_moment > 0.0, second_moment, 1.0), 0.0)


def constant(step_size: float) -> StepSize:
    """The same step at every iteration, as in the paper's experiments."""
    return StepSize(step_size)


def decaying(step_size: float, decay: float, power: float = 1.0) -> StepSize:
    """α_i = step_size / (1 + decay · i)^power."""
    return StepSize(step_size, decay=decay, power=power)


def normalized(step_size: float, decay: float = 0.0, power: float = 1.0) -> StepSize:
    """A step divided by the batch's E[X²]: it does not depend on the unit of the rewards."""
    return StepSize(step_size, decay=decay, power=power, normalized=True)
