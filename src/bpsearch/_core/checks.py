"""Argument checks that name the argument, its value and the allowed range."""

import math
import os
from collections.abc import Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bpsearch._core.texts import show
from bpsearch.errors import InvalidArgumentError

T = TypeVar("T")


def quote(value: object) -> str:
    """A value in a message: on one line, and not longer than it helps."""
    text = str(value) if isinstance(value, np.ndarray | np.generic) else repr(value)
    return show(" ".join(text.split()), 120)


def check_type(name: str, value: object, kinds: type[T] | tuple[type[T], ...], what: str) -> T:
    """Return `value` if it is an instance of `kinds`; `what` says in words what these are."""
    if not isinstance(value, kinds):
        raise InvalidArgumentError(f"{name} must be {what}, got {quote(value)}")
    return value


def check_choice(name: str, value: object, choices: Sequence[str]) -> str:
    """Return `value` if it is one of some texts."""
    if not isinstance(value, str) or value not in choices:
        allowed = " or ".join(map(repr, choices)) if len(choices) == 2 else f"one of {', '.join(choices)}"
        raise InvalidArgumentError(f"{name} must be {allowed}, got {quote(value)}")
    return value


def check_path(name: str, value: object) -> Path:
    """Return `value` as a path, if it is one or its text."""
    if not isinstance(value, str | os.PathLike) or not str(value) or "\0" in str(value):
        raise InvalidArgumentError(f"{name} must be the path of a file, got {quote(value)}")
    return Path(value)


LARGEST_INTEGER = 2**53  # all of them are 64-bit floats, too


def check_integer(name: str, value: Any, *, at_least: int = 1) -> int:
    """Return `value` as an int if it is a whole number from `at_least` to `LARGEST_INTEGER`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < at_least:
        raise InvalidArgumentError(f"{name} must be a whole number of at least {at_least}, got {quote(value)}")
    if int(value) > LARGEST_INTEGER:
        raise InvalidArgumentError(f"{name} must be at most 2^53, got {quote(value)}")
    return int(value)


LARGEST_SEED = 2**63 - 1  # batches record theirs as 64-bit integers


def check_seed(value: Any) -> int:
    """Return `value` as an int if it is a whole number from 0 to `LARGEST_SEED`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) <= LARGEST_SEED:
        raise InvalidArgumentError(f"seed must be a whole number from 0 to 2^63 - 1, got {quote(value)}")
    return int(value)


def check_real(
    name: str, value: Any, *, above: float | None = None, low: float = -math.inf, high: float = math.inf
) -> float:
    """Return `value` as a float if it is finite, greater than `above` and within [low, high]."""
    allowed = f"greater than {above}" if above is not None else f"in [{low:g}, {high:g}]"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidArgumentError(f"{name} must be a number {allowed}, got {quote(value)}")
    number = float(value)
    if not (math.isfinite(number) and low <= number <= high and (above is None or number > above)):
        raise InvalidArgumentError(f"{name} must be a finite number {allowed}, got {quote(value)}")
    return number


def check_discount(value: Any) -> float:
    """Return the discount γ as a float if it lies in [0, 1]."""
    return check_real("discount", value, low=0.0, high=1.0)


def check_range(name: str, value: Any) -> tuple[float, float]:
    """Return `value` as a pair of floats if it is two finite numbers, the first below the second."""
    try:
        low, high = (check_real(name, end) for end in value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{name} must be two finite numbers (low, high), got {quote(value)}") from error
    if low >= high:
        raise InvalidArgumentError(f"{name} must be (low, high) with low < high, got {quote(value)}")
    return low, high
