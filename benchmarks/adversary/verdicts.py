"""When a cell speaks against a method: beyond noise, and only where Monte Carlo does better."""

import math

from scipy import stats

from benchmarks.adversary.measure import NOISE, Cell

WORST_RATIO = 1.05
PLAIN_COVERAGE = 0.94  # where Monte Carlo's interval does not hold this often, ours need not
COVERAGE = {300: 0.92, 100: 0.90}  # by the least number of episodes; below 100 nothing is promised
SAVINGS_FACTOR = 1.5
BIAS = 5.0  # standard errors of the mean error; those of skewed errors are rough


def is_worse(cell: Cell) -> bool:
    """Whether the method is worse than Monte Carlo beyond noise."""
    return cell.failed < cell.studies and cell.ratio_low > WORST_RATIO


def promised_coverage(cell: Cell) -> float:
    """What the interval must hold at least; 0 if nothing is promised."""
    return next((limit for least, limit in COVERAGE.items() if cell.episodes >= least), 0.0)


def is_comparable(cell: Cell) -> bool:
    """Whether Monte Carlo's own interval holds here, and there is one to compare it with."""
    return cell.failed < cell.studies and cell.plain_coverage >= PLAIN_COVERAGE


def highest_coverage(cell: Cell) -> float:
    """What the coverage is at most: Clopper and Pearson's bound at the level of three standard errors."""
    count = cell.studies - cell.failed
    held = round(cell.coverage * count)
    return 1.0 if held >= count else float(stats.beta.ppf(stats.norm.cdf(NOISE), held + 1, count - held))


def misses(cell: Cell) -> bool:
    """Whether the interval holds too rarely, beyond noise, where Monte Carlo's holds."""
    return is_comparable(cell) and highest_coverage(cell) < promised_coverage(cell)


def coverage_excess(cell: Cell) -> float:
    """By how much Monte Carlo's interval holds more often, beyond the noise of two independent shares.

    Both come from the same episodes, so that the noise is less, and what is beyond this one is beyond that too.
    """
    count = max(cell.studies - cell.failed, 1)
    noise = math.sqrt(sum(share * (1.0 - share) for share in (cell.coverage, cell.plain_coverage)) / count)
    return cell.plain_coverage - cell.coverage - NOISE * noise


def is_below_plain(cell: Cell) -> bool:
    """Whether the interval holds less often than Monte Carlo's, beyond noise, wherever something is promised."""
    return cell.failed < cell.studies and promised_coverage(cell) > 0.0 and coverage_excess(cell) > 0.0


def states_savings(cell: Cell) -> bool:
    """Whether reported savings can be compared with realised ones."""
    return cell.resolved and not math.isnan(cell.reported) and not math.isnan(cell.realised)


def overstatement(cell: Cell) -> float:
    """How far realised savings lie outside of what is said, as a factor; 1 if they do not.

    What is said is a range: from the reported savings, which have room for events that no episode has shown, to the
    tight ones. Above 1 even the former are too high; below 1 even the latter are too low.
    """
    if cell.reported * cell.ratio > 1.0:
        return cell.reported * cell.ratio
    return min(cell.tight * cell.ratio, 1.0) if not math.isnan(cell.tight) else 1.0


def misstates(cell: Cell) -> bool:
    """Whether realised savings lie outside of what is said by more than the factor, beyond noise."""
    if not states_savings(cell):
        return False
    low, high = (cell.ratio + sign * NOISE * cell.ratio_error for sign in (-1.0, 1.0))
    return cell.reported * low > SAVINGS_FACTOR or cell.tight * high < 1.0 / SAVINGS_FACTOR


def is_biased(cell: Cell) -> bool:
    """Whether the mean error cannot be noise."""
    return cell.resolved and abs(cell.bias) > BIAS
