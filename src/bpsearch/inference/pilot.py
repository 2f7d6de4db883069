"""What a pilot says about an evaluation that is to come: from arrays of returns to a plan."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from bpsearch._core.arrays import NumpyArray
from bpsearch._core.checks import check_path
from bpsearch.inference.intervals import binomial_upper_bound, episodes_for
from bpsearch.inference.quantity import Quantity, from_logarithm, share_of
from bpsearch.inference.sources import Source, split_sources
from bpsearch.inference.unseen import PSEUDO_EPISODES, farthest
from bpsearch.inference.variance_split import jackknife, split_parts, split_terms

LITTLE = 0.1  # a share of the variance that is not worth a better method
MOST = 0.5  # of the variance from one pair of episodes: too much to trust the numbers
ROUNDING = 1e-12  # relative to what was summed


@dataclass(frozen=True)
class Plan:
    """What a pilot says about an evaluation that is to come. Its intervals have the confidence `level`.

    Attributes:
        pilot: how many episodes the pilot had.
        value: the expected return, a first estimate.
        std_error: of the value; None if nothing varied.
        variance: of the return of one episode.
        action_share: the share of the variance that comes from the policy's actions: the most that any method can
            remove that chooses actions or subtracts their luck; None if the pilot cannot tell.
        savings: how many times smaller the variance of `auto` is than Monte Carlo's, if `auto` learns from as many
            episodes as the pilot had and they missed no rare event; None if the pilot cannot tell.
        largest_savings: what the savings cannot exceed with any number of episodes, by the upper end of
            `action_share`; None if no limit is known.
        halfwidth: half the wanted interval's width, in units of the return; None if none was wanted.
        level: of the wanted interval, and of all intervals of the plan.
        monte_carlo_episodes: how many episodes Monte Carlo needs for it; None if unknown or none was wanted.
        auto_episodes: how many `auto` needs, with room for events that the episodes may not show; not fewer than the
            pilot's unless Monte Carlo needs fewer, because that many have taught what it saves.
        no_gain: why nothing better than Monte Carlo can be expected; empty if something can.
        doubts: what the pilot cannot tell, and why.
        settings: what repeats the pilot, by name.
        sources: where the variance comes from, and what each tool of the program would save alone; empty if the pilot
            cannot tell.
        deterministic: whether the policy had no action noise; None if that is unknown.
        notes: what is to be known about how the policy acted.
    """

    pilot: int
    value: float
    std_error: float | None
    variance: float
    action_share: Quantity | None
    savings: Quantity | None
    halfwidth: float | None
    level: float
    monte_carlo_episodes: Quantity | None
    auto_episodes: Quantity | None
    no_gain: str
    doubts: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    deterministic: bool | None = None
    notes: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()

    @property
    def largest_savings(self) -> float | None:
        """1 / (1 − share of the actions), unless starts save as well, of which more may be learned."""
        if any(source.name == "starts" and source.saves for source in self.sources):
            return None
        share = None if self.action_share is None else self.action_share.high
        return None if share is None or share >= 1.0 else 1.0 / (1.0 - share)

    @property
    def lines(self) -> tuple[str, ...]:
        """The answer, a sentence a line."""
        error = "" if self.std_error is None else f" (standard error {self.std_error:.2g})"
        deviation = f"standard deviation of an episode {math.sqrt(self.variance):.3g}"
        found = [f"a pilot of {self.pilot} episodes: expected return about {self.value:.5g}{error}, {deviation}"]
        if self.action_share is not None:
            found.append(
                f"variance from the policy's actions: {self.action_share.text(_percent)}; the rest, from starts and "
                f"the environment, no choice of actions can remove"
            )
        found += [source.text for source in self.sources if source.text]
        if self.no_gain:
            found.append(f"nothing to gain over Monte Carlo, because {self.no_gain}")
        elif self.savings is not None:
            limit = self.largest_savings
            most = "no limit known" if limit is None else f"at most {limit:.3g}"
            found.append(
                f"savings to expect of auto: a factor of {self.savings.text(_factor)} with {self.pilot} episodes, more "
                f"with more, {most}; its interval has room for events that were not seen, and shows less of them"
            )
        if self.halfwidth is not None and self.monte_carlo_episodes is not None:
            needed = f"{self.monte_carlo_episodes.text(_count)} episodes of Monte Carlo"
            if self.auto_episodes is not None and not self.no_gain:
                needed += f", or {self.auto_episodes.text(_count)} of auto"
            found.append(f"for a {100.0 * self.level:.4g}% interval of ± {self.halfwidth:.4g}: {needed}")
        return (*found, *self.doubts, *self.notes)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def to_json(self) -> dict[str, Any]:
        """Everything, of types that JSON has; None for what is unknown."""
        found = dataclasses.asdict(self) | {
            "largest_savings": self.largest_savings,
            "doubts": list(self.doubts),
            "notes": list(self.notes),
            "sources": [dataclasses.asdict(source) for source in self.sources],
        }
        return {"schema": "bpsearch plan 1", **found}

    def report(self, path: str | Path) -> Path:
        """Write a page that shows and explains the plan: one HTML file that needs no network."""
        from bpsearch.report.packages import require_report

        require_report()
        from bpsearch.report.layout import write_page
        from bpsearch.report.plan_page import render

        return write_page(render(self), check_path("path", path))


def judge(
    returns: NumpyArray,
    values: NumpyArray,
    *,
    halfwidth: float | None = None,
    relative_halfwidth: float | None = None,
    level: float = 0.95,
    no_help: str = "",
    alike: bool = True,
    alone: Mapping[str, NumpyArray] | None = None,
    resets: int = 0,
) -> Plan:
    """What follows from the episodes of a pilot.

    Args:
        returns: (groups, repeats); the episodes of a group share all but their actions, one episode has no actions of
            its own.
        values: (groups, repeats), what `auto` makes of them; the returns themselves if it cannot be used.
        halfwidth: see `plan`.
        relative_halfwidth: see `plan`.
        level: see `plan`.
        no_help: why `auto` cannot be used; empty if it can.
        alike: whether the episodes of a group were seen to start alike.
        alone: (groups, repeats) by kind of noise, what the control variates of that kind alone make of the returns.
        resets: how many further starts each episode had.
    """
    # Where starts are subtracted, too, values no longer tell how the mean given U varies.
    unmoved = values if alone is None else alone.get("actions", returns)
    found = _Found.of(returns, values, unmoved, level, relative=relative_halfwidth is not None)
    value, count = float(values.mean()), values.size
    doubts: list[str] = []
    base = Plan(count, value, None, found.variance, None, None, halfwidth, level, None, None, no_help, ())
    if found.variance <= (ROUNDING * float(np.abs(returns).max())) ** 2:
        others = binomial_upper_bound(0, len(returns), level)
        doubt = (
            f"all episodes had the same return: the pilot cannot tell how others vary, of which there may be "
            f"{others:.1%} ({100.0 * level:.4g}% confidence)"
        )
        return dataclasses.replace(base, doubts=(doubt,))
    error = float(np.sqrt(values.mean(axis=1).var(ddof=1) / len(values)))
    share, no_gain = None, no_help
    if alike:
        share = found.share
        gains = found.savings is not None and found.savings.low is not None and found.savings.low > 1.0
        if not no_help and not gains and share.high is not None and share.high <= LITTLE:
            no_gain = f"starts and the environment make at least {1.0 - share.high:.0%} of the variance"
    else:
        doubts.append(
            "episodes with the same seed do not start alike in this environment: the pilot cannot tell which share of "
            "the variance comes from actions"
        )
    savings = None if no_help else found.savings
    if not no_help and savings is None:
        doubts.append("the values of auto do not vary: the pilot cannot tell how much it saves")
    if savings is not None and not no_gain and (savings.low is None or savings.low <= 1.0):
        doubts.append(
            f"whether auto saves anything the pilot cannot tell: {count} episodes do not show how returns depend on "
            f"the actions"
        )
    if found.largest > MOST:
        doubts.append(f"unreliable, because one pair or episode makes {found.largest:.0%} of the variance")
    unit = halfwidth
    if relative_halfwidth is not None:
        unit = relative_halfwidth
        if abs(value) > found.quantile * error:
            halfwidth = relative_halfwidth * abs(value)
        else:
            unit = None
            doubts.append(
                f"the expected return may be 0 ({value:.3g} ± {error:.2g}): the pilot cannot tell what "
                f"{relative_halfwidth:g} of it is; give halfwidth instead"
            )
    plain = None if unit is None else _needed(found.plain, unit, level)
    room = PSEUDO_EPISODES * farthest(returns.ravel()) ** 2 / (1.0 if relative_halfwidth is None else value**2)
    auto = None if unit is None or savings is None else _needed(found.auto, unit, level, room)
    if plain is not None and auto is not None:
        # Fewer episodes than the pilot's would teach less than it has taught; no interval is wider than Monte Carlo's.
        taught = min(float(count), plain.estimate)
        pairs = ((auto.low, plain.low), (auto.high, plain.high))
        ends = (None if a is None or p is None else max(min(a, p), taught) for a, p in pairs)
        auto = Quantity(max(min(auto.estimate, plain.estimate), taught), *ends)
    sources: tuple[Source, ...] = ()
    if share is not None and alone and not math.isnan(share.estimate):
        sources = split_sources(returns, alone, share, resets=resets, quantile=found.quantile)
    return dataclasses.replace(
        base,
        sources=sources,
        std_error=error if error > 0.0 else None,
        action_share=share,
        savings=savings,
        halfwidth=halfwidth,
        monte_carlo_episodes=plain,
        auto_episodes=auto,
        no_gain=no_gain,
        doubts=tuple(doubts),
    )


@dataclass(frozen=True)
class _Found:
    """The numbers behind a plan: variances are relative to the squared mean if that is what was asked for."""

    variance: float
    share: Quantity
    plain: Quantity
    auto: Quantity
    savings: Quantity | None
    largest: float
    quantile: float

    @classmethod
    def of(
        cls, returns: NumpyArray, values: NumpyArray, unmoved: NumpyArray, level: float, *, relative: bool
    ) -> "_Found":
        groups, repeats = returns.shape
        centres = np.array([returns.mean(), values.mean()])

        def statistic(sums: NumpyArray, count: int) -> NumpyArray:
            """The share of the actions in two ways; the logarithms of both variances and of their ratio."""
            rests, actions = zip(*(split_parts(part, count, repeats) for part in np.split(sums, 3)), strict=True)
            plain, auto, _ = (rest + action for rest, action in zip(rests, actions, strict=True))
            # Given U returns and unmoved values have the same mean: both tell how it varies.
            shares = [1.0 - rests[0] / plain, 1.0 - rests[2] / plain]
            units = np.array([centre + total / count for centre, total in zip(centres, sums[[0, 3]], strict=True)])
            scale = np.log(units**2) if relative else np.zeros_like(units)
            logs = [np.log(plain) - scale[0], np.log(auto) - scale[1], np.log(plain / auto)]
            return np.stack([*shares, *logs])

        terms = split_terms(returns)
        with np.errstate(divide="ignore", invalid="ignore"):
            found, errors = jackknife(statistic, np.vstack([terms, split_terms(values), split_terms(unmoved)]))
        quantile = float(stats.t.ppf(0.5 + level / 2.0, groups - 1))
        plain, auto, savings = (from_logarithm(*pair, quantile) for pair in zip(found[2:], errors[2:], strict=True))
        precise = int(errors[1] < errors[0])  # values where actions make much of the variance, returns where little
        start, action = split_parts(terms.sum(axis=1), groups, repeats)
        each = terms[1] + 0.5 * terms[2]
        return cls(
            variance=float(start + action),
            share=share_of(found[precise], quantile * errors[precise], known=repeats == 1 or bool(action > 0.0)),
            plain=plain,
            auto=auto,
            savings=savings if savings.estimate < 1.0 / ROUNDING else None,
            largest=float(each.max() / max(each.sum(), 1e-300)),
            quantile=quantile,
        )


def _needed(variance: Quantity, half_width: float, level: float, room: float = 0.0) -> Quantity:
    def count_episodes(of_one: float) -> float:
        return float(episodes_for(of_one, half_width, level, room))

    ends = (None if end is None else count_episodes(end) for end in (variance.low, variance.high))
    return Quantity(count_episodes(variance.estimate), *ends)


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _factor(factor: float) -> str:
    return f"{factor:.3g}"


def _count(episodes: float) -> str:
    return f"{episodes:.0f}"
