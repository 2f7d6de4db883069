"""Argument checks that name the argument, its value and the allowed range."""

import math
from numbers import Integral, Real
from typing import Any

from bpsearch.errors import InvalidArgumentError


def check_integer(name: str, value: Any, *, at_least: int = 1) -> int:
    """Return `value` as an int if it is a whole number not below `at_least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < at_least:
        raise InvalidArgumentError(f"{name} must be a whole number of at least {at_least}, got {value!r}")
    return int(value)


LARGEST_SEED = 2**63 - 1  # batches record theirs as 64-bit integers


def check_seed(value: Any) -> int:
    """Return `value` as an int if it is a whole number from 0 to `LARGEST_SEED`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) <= LARGEST_SEED:
        raise InvalidArgumentError(f"seed must be a whole number from 0 to 2^63 - 1, got {value!r:.80}")
    return int(value)


def check_real(
    name: str, value: Any, *, above: float | None = None, low: float = -math.inf, high: float = math.inf
) -> float:
    """Return `value` as a float if it is finite, greater than `above` and within [low, high]."""
    allowed = f"greater than {above}" if above is not None else f"in [{low:g}, {high:g}]"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidArgumentError(f"{name} must be a number {allowed}, got {value!r}")
    number = float(value)
    if not (math.isfinite(number) and low <= number <= high and (above is None or number > above)):
        raise InvalidArgumentError(f"{name} must be a finite number {allowed}, got {value!r}")
    return number


def check_discount(value: Any) -> float:
    """Return the discount γ as a float if it lies in [0, 1]."""
    return check_real("discount", value, low=0.0, high=1.0)


def check_range(name: str, value: Any) -> tuple[float, float]:
    """Return `value` as a pair of floats if it is two finite numbers, the first below the second."""
    try:
        low, high = (check_real(name, end) for end in value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{name} must be two finite numbers (low, high), got {value!r}") from error
    if low >= high:
        raise InvalidArgumentError(f"{name} must be (low, high) with low < high, got {value!r}")
    return low, high
