"""Numbers for people, with as many digits as their interval carries."""

import math

Interval = tuple[float, float]

_TINY, _HUGE = 1e-3, 1e7  # beyond them a number may be written with an exponent
_DECIMALS = 5  # as many still read well in a small number
_DIGITS = 10  # more are rounding errors


def round_to(value: float | None, half_width: float | None) -> str:
    """A number that is known to ± `half_width`, with no more digits than that carries.

    The last digit shown is the coarsest that moves the number by at most a tenth of the half-width:
    -26.4 ± 0.8, 12.35 ± 0.24, 1235000 ± 8000, 1.2e-05 ± 9e-06. Without a half-width: four significant digits.
    """
    if value is None or math.isnan(value):
        return "unknown"
    if half_width is None or not 1e-300 < half_width < math.inf or value == 0.0 or math.isinf(value):
        return significant(value, 4)
    size = abs(value)
    first = math.floor(math.log10(size))
    place = max(math.floor(math.log10(half_width / 5.0) + 1e-9), first - _DIGITS)
    if (place < -_DECIMALS and size < _TINY) or (place > 0 and size >= _HUGE):
        return f"{value:.{first - place}e}" if first >= place else "0"
    return _unsigned_zero(f"{round(value, -place):.{max(-place, 0)}f}")


def significant(value: float | None, digits: int = 3) -> str:
    """A number whose precision is not known, with this many significant digits; whole digits are never lost."""
    if value is None or math.isnan(value):
        return "unknown"
    size = abs(value)
    if not 1e-4 <= size < _HUGE:
        return _unsigned_zero(f"{value:.{digits}g}")
    decimals = max(digits - 1 - math.floor(math.log10(size)), 0)
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def count(number: float) -> str:
    """About how many, with three significant digits."""
    return f"{float(f'{number:.3g}'):.0f}" if number < _HUGE else f"{number:.3g}"


def brackets(interval: Interval | None, value: float | None = None) -> str:
    """An interval, rounded to the precision that it gives to `value`."""
    if interval is None:
        return "unknown"
    carried = spread(interval, value)
    return f"[{round_to(interval[0], carried)}, {round_to(interval[1], carried)}]"


def spread(interval: Interval | None, value: float | None = None) -> float | None:
    """How precisely an interval knows `value`: the distance to its nearer end, as intervals may be lopsided.

    It is half the width for an interval around its middle, or without a value, and never less than a tenth of that.
    """
    if interval is None:
        return None
    low, high = interval
    half = (high - low) / 2.0
    side = half if value is None else min(value - low, high - value)
    return max(side, half / 10.0)


def percent(share: float | None) -> str:
    """A share of a whole."""
    return "unknown" if share is None else f"{significant(100.0 * share, 2)}%"


def _unsigned_zero(text: str) -> str:
    """Never -0."""
    return text if text.strip("-0.") else text.removeprefix("-")
