"""What a method does on a task: many studies of the same sizes, judged by the exact truth and by Monte Carlo."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from benchmarks.adversary.family import Task
from benchmarks.adversary.methods import Method, MonteCarlo, Outcome
from benchmarks.looks import study_seed

ROUNDING = 1e-9  # errors below this part of value and spread are none
RESOLVED = 0.5  # the largest relative noise of Monte Carlo's mean squared error over the studies that is bearable
FOLDS = 10
NOISE = 3.0  # standard errors that are taken off to say what is beyond noise
CAPS = (2.0, 5.0, 20.0, 100.0, np.inf)


@dataclass(frozen=True)
class Cell:
    """A method on a task with one number of episodes.

    Attributes:
        episodes: of a study.
        studies: how many.
        failed: in how many of them the method raised an error; they count nowhere else.
        ratio: mean squared error relative to Monte Carlo's exact Var(g)/n. Monte Carlo's squared error on the same
            episodes, whose mean is known, is its control variate.
        ratio_error: the standard error of the ratio.
        ratio_low: what the ratio is at least, beyond noise: three standard errors below it. A few very large errors
            make the standard error as large as the ratio. So single studies may also count only up to a cap, which
            can but lower the ratio, and the cap that proves most is taken.
        tail: the relative standard error of Monte Carlo's own mean squared error over so many studies, which is known
            from the kurtosis. Beyond 0.5 the studies together have not shown what makes the variance, and the ratio
            says only how the method differs from Monte Carlo in what they have shown. 0 without variance, where the
            ratio is 1 if all answers are right and infinite else.
        bias: the mean error in its standard errors, with Monte Carlo's error as a control variate.
        coverage: the share of studies whose 95% interval holds the truth.
        plain_coverage: that of Student's interval of the returns.
        width: mean width of the intervals relative to that of Student's.
        reported: the median of the savings that the method reports; NaN if it reports none.
        tight: the same without room for events that no episode has shown.
        unreported: the share of studies without reported savings.
        message: of the first error.
    """

    episodes: int
    studies: int
    failed: int
    ratio: float
    ratio_error: float
    ratio_low: float
    tail: float
    bias: float
    coverage: float
    plain_coverage: float
    width: float
    reported: float
    tight: float
    unreported: float
    message: str = ""

    @property
    def realised(self) -> float:
        """What the studies saved: Monte Carlo's mean squared error divided by theirs; NaN without variance."""
        if self.tail == 0.0:
            return np.nan
        return 1.0 / self.ratio if self.ratio > 0.0 else np.inf

    @property
    def resolved(self) -> bool:
        """Whether the studies have shown what makes the variance."""
        return not self.tail > RESOLVED


def measure(task: Task, sizes: Sequence[int], studies: int, seed: int, method: Method) -> list[Cell]:
    """One cell for each number of episodes; the episodes of a smaller study are the first ones of the larger.

    Args:
        task: with its truth.
        sizes: numbers of episodes.
        studies: how many; more of them leave the first ones as they are.
        seed: tasks with the same seed get the same random numbers.
        method: what is judged.
    """
    sizes = sorted(sizes)
    own: dict[int, list[Outcome]] = {size: [] for size in sizes}
    plain: dict[int, list[Outcome]] = {size: [] for size in sizes}
    messages: dict[int, list[str]] = {size: [] for size in sizes}
    for study in range(studies):
        answers, rivals = (one.answers(task, sizes, study_seed(seed, study)) for one in (method, MonteCarlo()))
        for place, size in enumerate(sizes):
            try:
                own[size].append(next(answers))
            except Exception as error:  # whatever it is, the user has no answer, nor later ones
                for later in sizes[place:]:
                    messages[later].append(f"{type(error).__name__}: {error}")
                break
            plain[size].append(next(rivals))
    return [cell(task, size, own[size], plain[size], messages[size]) for size in sizes]


def cell(task: Task, size: int, own: Sequence[Outcome], plain: Sequence[Outcome], messages: Sequence[str] = ()) -> Cell:
    """The numbers of one cell, from the outcomes of the method and of Monte Carlo in the same studies."""
    if not own:
        unknown = {field.name: np.nan for field in fields(Cell) if field.type is float}
        counts = {"episodes": size, "studies": len(messages), "failed": len(messages)}
        return Cell(**{**unknown, **counts, "unreported": 1.0, "message": messages[0]})
    rounding = ROUNDING * (abs(task.truth) + np.sqrt(task.variance))
    errors, plain_errors = (np.array([o.value for o in found]) - task.truth for found in (own, plain))
    tail = float(np.sqrt((2.0 + (task.kurtosis - 3.0) / size) / len(own))) if task.variance > 0.0 else 0.0
    if task.variance > 0.0:
        ratios = pair_ratios(errors**2 * size / task.variance, plain_errors**2 * size / task.variance, tail <= RESOLVED)
    else:
        ratios = np.where(np.abs(errors) <= rounding, 1.0, np.inf)
    known = [outcome.savings for outcome in own if not np.isnan(outcome.savings)]
    return Cell(
        episodes=size,
        studies=len(own) + len(messages),
        failed=len(messages),
        ratio=float(ratios.mean()),
        ratio_error=_error(ratios),
        ratio_low=max(float(capped.mean()) - NOISE * _error(capped) for capped in np.minimum.outer(CAPS, ratios)),
        tail=tail,
        bias=_bias(errors, plain_errors, rounding),
        coverage=_coverage(own, task.truth, rounding),
        plain_coverage=_coverage(plain, task.truth, rounding),
        width=_width(own, plain, rounding),
        reported=_median(known),
        tight=_median([outcome.tight for outcome in own if not np.isnan(outcome.tight)]),
        unreported=1.0 - len(known) / len(own),
        message=messages[0] if messages else "",
    )


def pair_ratios(own: np.ndarray, plain: np.ndarray, resolved: bool) -> np.ndarray:
    """Of each study x − b (y − 1), whose mean is the ratio; x and y are squared errors in units of Var(g)/n.

    The slope b is learned from other studies, so nothing is biased, and lies in [0, 1]. Studies that have not shown
    what makes the variance cannot teach a slope. They get 1: the ratio is then 1 plus the mean of x − y.
    """
    slopes, folds = np.ones(len(own)), np.arange(len(own)) % FOLDS
    if resolved and len(own) >= 2 * FOLDS:
        for fold in range(FOLDS):
            x, y = own[folds != fold], plain[folds != fold]
            spread = np.var(y)
            slope = np.mean((x - x.mean()) * (y - y.mean())) / spread if spread > 0.0 else 1.0
            slopes[folds == fold] = np.clip(slope, 0.0, 1.0)
    return own - slopes * (plain - 1.0)


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else np.nan


def _error(values: np.ndarray) -> float:
    """The standard error of their mean; infinite if it cannot be known."""
    if len(values) < 2 or not np.isfinite(values).all():
        return 0.0 if np.isinf(values).all() else np.inf
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def _bias(errors: np.ndarray, plain: np.ndarray, rounding: float) -> float:
    """The mean of e or, if that is quieter, of e − e_MC, which has the same expectation, in its standard errors."""
    differences = min((errors, errors - plain), key=lambda values: float(np.std(values)))
    if len(errors) < 2 or np.std(differences) <= rounding:
        return 0.0
    return float(differences.mean() / (np.std(differences, ddof=1) / np.sqrt(len(differences))))


def _coverage(outcomes: Sequence[Outcome], truth: float, rounding: float) -> float:
    """An interval without width holds what it is, up to rounding; so does a value without an interval."""
    ends = np.array([(o.value, o.value) if np.isnan(o.low) else (o.low, o.high) for o in outcomes])
    return float(np.mean((ends[:, 0] - rounding <= truth) & (truth <= ends[:, 1] + rounding)))


def _width(own: Sequence[Outcome], plain: Sequence[Outcome], rounding: float) -> float:
    ours, theirs = (
        float(np.mean([0.0 if np.isnan(o.low) else o.high - o.low for o in outcomes])) for outcomes in (own, plain)
    )
    if theirs <= rounding:
        return 1.0 if ours <= rounding else np.inf
    return ours / theirs
