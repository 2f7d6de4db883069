"""The paper's claims as measured verdicts: computed from numbers, never typed."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from scipy import stats

from bpsearch._core.arrays import NumpyArray

SIGNIFICANCE = 0.05


class Verdict(StrEnum):
    """What became of a claim."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper beside what was measured.

    Attributes:
        name: a short identifier.
        text: what the paper says.
        measured: what our number is.
        ours: our number.
        interval: its 95% confidence interval.
        paper: the paper's number, if it gives one.
        optimum: the best that any behavior in the search's class could reach, if the oracle knows.
        p_value: of the test, if the paper claims significance.
        verdict: computed by one of the functions below.
        rule: how the verdict follows from the numbers.
    """

    name: str
    text: str
    measured: str
    ours: float
    verdict: Verdict
    rule: str
    interval: tuple[float, float] | None = None
    paper: float | None = None
    optimum: float | None = None
    p_value: float | None = None

    def numbers(self) -> tuple[str, ...]:
        """The paper's number, ours, its interval, the optimum and the p-value as text; empty where there is none."""
        interval = "" if self.interval is None else f"{self.interval[0]:.3g} to {self.interval[1]:.3g}"
        paper, ours, optimum = ("" if x is None else f"{x:.3g}" for x in (self.paper, self.ours, self.optimum))
        return paper, ours, interval, optimum, "" if self.p_value is None else f"{self.p_value:.1g}"

    def to_json(self) -> dict[str, Any]:
        """The claim as plain values."""
        return asdict(self) | {"verdict": str(self.verdict)}


def significance_claim(
    name: str,
    text: str,
    lower: NumpyArray,
    higher: NumpyArray,
    *,
    measured: str,
    expect: bool = True,
    paper: float | None = None,
) -> Claim:
    """A claim that one method's squared errors are, or are not, significantly below another's.

    One-sided Welch test over the trials; ours is the reduction of the mean squared error.
    """
    p_value = float(stats.ttest_ind(lower, higher, equal_var=False, alternative="less").pvalue)
    holds = (p_value < SIGNIFICANCE) == expect
    relation = "<" if expect else "≥"
    return Claim(
        name,
        text,
        measured,
        ours=reduction(lower, higher),
        interval=reduction_interval(lower, higher),
        paper=paper,
        p_value=p_value,
        verdict=Verdict.REPRODUCED if holds else Verdict.NOT_REPRODUCED,
        rule=f"reproduced if the one-sided Welch test over trials gives p {relation} {SIGNIFICANCE}",
    )


def number_claim(
    name: str,
    text: str,
    *,
    measured: str,
    ours: float,
    interval: tuple[float, float],
    paper: float,
    optimum: float | None = None,
) -> Claim:
    """A claim of a number that depends on the authors' unpublished evaluation policy.

    Reproduced if our interval holds the paper's number. If even the exact optimum for our policy is below it, no
    search could have reached it here and the two are not comparable.
    """
    if interval[0] <= paper <= interval[1]:
        verdict = Verdict.REPRODUCED
    elif optimum is not None and (optimum < paper if paper > ours else ours > paper):
        verdict = Verdict.NOT_COMPARABLE
    else:
        verdict = Verdict.NOT_REPRODUCED
    rule = "reproduced if the interval holds the paper's number"
    if optimum is not None:
        rule += "; not comparable if with our policy the optimum is below it, or we are above it"
    return Claim(name, text, measured, ours, verdict, rule, interval, paper, optimum)


def condition_claim(
    name: str,
    text: str,
    *,
    measured: str,
    ours: float,
    holds: bool,
    rule: str,
    interval: tuple[float, float] | None = None,
    paper: float | None = None,
    optimum: float | None = None,
) -> Claim:
    """A qualitative claim: reproduced if the condition that `rule` states holds."""
    verdict = Verdict.REPRODUCED if holds else Verdict.NOT_REPRODUCED
    return Claim(name, text, measured, ours, verdict, f"reproduced if {rule}", interval, paper, optimum)


def reduction(lower: NumpyArray, higher: NumpyArray) -> float:
    """1 − mean(lower) / mean(higher)."""
    return float(1.0 - np.mean(lower) / np.mean(higher))


def reduction_interval(lower: NumpyArray, higher: NumpyArray, resamples: int = 10_000) -> tuple[float, float]:
    """95% bootstrap interval of `reduction`, resampling the trials of both methods."""
    rng = np.random.default_rng(0)

    def means(values: NumpyArray) -> NumpyArray:
        return np.asarray(values[rng.integers(len(values), size=(resamples, len(values)))].mean(axis=1))

    low, high = np.quantile(1.0 - means(np.asarray(lower)) / means(np.asarray(higher)), [0.025, 0.975])
    return float(low), float(high)


def mean_interval(values: NumpyArray) -> tuple[float, float]:
    """95% t interval of a mean."""
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values) - half), float(np.mean(values) + half)
