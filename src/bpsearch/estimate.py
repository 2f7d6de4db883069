"""Estimate: what a study says about the value of a policy, and how far it can be trusted."""

import math
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from bpsearch import promises
from bpsearch.checks import check_real
from bpsearch.confidence_sequence import anytime_bounds, upper_bound_of_event
from bpsearch.diagnostics import Diagnostics, Episodes
from bpsearch.history import History
from bpsearch.intervals import MeanError, binomial_upper_bound, clopper_pearson

MIN_EFFECTIVE_EPISODES = 10.0
NOTHING_EXPLAINED = 0.03  # a share of the variance that is not worth a search
ENOUGH_TO_JUDGE = 300  # episodes


@dataclass(frozen=True, eq=False)
class Estimate:
    """The expected return of the evaluation policy, from all episodes of a study.

    Attributes:
        value: the estimate.
        std_error: its standard error; None for fewer than two episodes or values without any spread.
        episodes: how many episodes it took, those of the search included.
        method: what collected and valued the episodes.
        unbiased: whether the method is unbiased; with False neither value nor interval have a guarantee.
        savings: how many times as many episodes Monte Carlo would need for the same standard error; None if unknown.
        savings_basis: how the savings were obtained.
        diagnostics: effective sample size and the like.
        unreliable: why the standard error should not be trusted; empty if nothing speaks against it.
        history: the study batch by batch.
        data: the study episode by episode.
        explained: the share of Monte Carlo's variance that the search expects to remove; None if it does not know.
        no_help: why no search was made although one is the default; empty if there was one or none was wanted.
        settings: what repeats the evaluation, by name.
        return_range: the numbers between which every return lies; None if they are not known.
        weight_bound: what no importance weight can exceed.
        event: the event whose probability is estimated, as its condition; empty if it is an expected return.
        ended: why no more episodes were run: "budget", "target", "time limit" or "interrupted".
        waiting: the numbers of the requests whose episodes have not been told yet.
        abandoned: the numbers of the requests that were given up.
    """

    value: float
    episodes: int
    method: str
    unbiased: bool
    error: MeanError | None
    diagnostics: Diagnostics
    history: History
    data: Episodes
    explained: float | None = None
    no_help: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    return_range: tuple[float, float] | None = None
    weight_bound: float = math.inf
    event: str = ""
    ended: str = "budget"
    waiting: tuple[int, ...] = ()
    abandoned: tuple[int, ...] = ()

    @property
    def std_error(self) -> float | None:
        """The standard error of `value`."""
        return None if self.error is None else self.error.std_error

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """The confidence interval of this level for a number of episodes fixed in advance; see `interval_kind`.

        The interval of a probability lies in [0, 1] and has a width, whatever was seen.
        """
        if self._binomial:
            return clopper_pearson(self.events, self.episodes, level)
        if self.error is None:
            return self.anytime_interval(level) if self.event else None
        half = self.error.half_width(level)
        low, high = self.value - half, self.value + half
        return (min(max(low, 0.0), 1.0), max(min(high, 1.0), 0.0)) if self.event else (low, high)

    @property
    def interval_kind(self) -> str:
        """What the interval promises."""
        if not self._binomial and self.event and self.error is None:
            return self.anytime_kind
        if not self.unbiased:
            return promises.BIASED
        return promises.fixed_kind(self.ended, binomial=self._binomial, weighted=self.data.weighted)

    def anytime_interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """The interval of this level that stays valid when one looks after every batch; see `anytime_kind`.

        It is made of the importance weights and the returns alone, whatever the estimator, and is None if the range of
        the returns is not known.
        """
        check_real("level", level, above=0.0, high=1.0 - 1e-12)
        if self.return_range is None or self._out_of_range:
            return None
        low, high = anytime_bounds(
            self.data.log_weights, self.data.returns, self.return_range, self.history.episodes, level
        )
        return float(low[-1]), float(high[-1])

    @property
    def anytime_kind(self) -> str:
        """What the anytime-valid interval promises, or why there is none."""
        if self.return_range is None:
            return promises.NO_RANGE
        if self._out_of_range:
            seen = float(self.data.returns.min()), float(self.data.returns.max())
            return promises.out_of_range(seen, self.return_range)
        return promises.anytime_kind(self.return_range, self.weight_bound, moved=self.data.weighted)

    @property
    def events(self) -> int:
        """In how many episodes the event happened."""
        return int(self.data.returns.sum()) if self.event else 0

    def upper_bound(self, level: float = 0.95) -> float | None:
        """A one-sided upper bound of the probability of the event; None if an expected return is estimated.

        Of unweighted episodes it is the exact binomial one, else that of a confidence sequence, which needs no number
        of episodes fixed in advance.
        """
        if not self.event:
            return None
        if not self.data.weighted:
            return binomial_upper_bound(self.events, self.episodes, level)
        bounds = upper_bound_of_event(self.data.log_weights, self.data.returns, self.history.episodes, level)
        return float(bounds[-1])

    @property
    def certificate(self) -> str:
        """What can, and what cannot, be promised about the probability of the event; empty without one."""
        return promises.certificate(self.episodes, self.weight_bound, moved=self.data.weighted) if self.event else ""

    @property
    def _binomial(self) -> bool:
        """Whether the value is a plain count, or there is nothing but the count to go by."""
        if not self.event or self.data.weighted:
            return False
        return self.error is None or not self.data.corrected

    @property
    def _out_of_range(self) -> bool:
        if self.return_range is None:
            return False
        low, high = self.return_range
        rounding = 1e-9 * (high - low)
        returns = self.data.returns
        return bool(returns.min() < low - rounding or returns.max() > high + rounding)

    @property
    def savings(self) -> float | None:
        """Monte Carlo's variance divided by this study's variance per episode."""
        monte_carlo, own = self.diagnostics.monte_carlo_variance, self.diagnostics.variance
        return monte_carlo / own if monte_carlo is not None and own else None

    @property
    def savings_basis(self) -> str:
        """How `savings` was obtained."""
        how, what = ("by importance weighting ", ", search included") if self.data.weighted else ("", "")
        return (
            f"Monte Carlo's variance estimated {how}from the same {self.episodes} episodes, divided by the variance "
            f"per episode over the whole study{what}"
        )

    @property
    def unreliable(self) -> tuple[str, ...]:
        """Reasons not to trust the standard error."""
        reasons = []
        found = self.diagnostics
        if found.effective_sample_size < min(MIN_EFFECTIVE_EPISODES, 0.5 * self.episodes):
            reasons.append(
                f"the importance weights of {self.episodes} episodes are worth only {found.effective_sample_size:.1f} "
                "equally weighted ones"
            )
        if self.episodes > 2 and found.largest_weight_share > 0.5:
            reasons.append(f"one episode has {found.largest_weight_share:.0%} of all importance weight")
        if self.episodes > 2 and found.largest_value_share > 0.5:
            reasons.append(f"one episode makes {found.largest_value_share:.0%} of the variance")
        return tuple(reasons)

    @property
    def hopeless(self) -> str:
        """Why behavior search cannot help here; empty if nothing says so."""
        if self.no_help:
            return self.no_help
        if self.event and not self.events:
            return ""  # nothing is known about a failure that was never seen
        if self.explained is None or self.explained > NOTHING_EXPLAINED or self.episodes < ENOUGH_TO_JUDGE:
            return ""
        return (
            f"the policy's action noise was found to explain {max(self.explained, 0.0):.0%} of the variance of the "
            f"returns; the rest comes from the environment and its starts, or from actions in a way that "
            f"{self.episodes} episodes do not show"
        )

    @property
    def left_out(self) -> str:
        """Which batches are not part of the estimate, and what that may do to it; empty if all are."""
        waiting = [f"{len(self.waiting)} not told yet ({_listed(self.waiting)})"] if self.waiting else []
        given_up = [f"{len(self.abandoned)} abandoned ({_listed(self.abandoned)})"] if self.abandoned else []
        if not waiting and not given_up:
            return ""
        return (
            f"requests left out: {', '.join(waiting + given_up)}; the estimate is biased if what keeps a batch out has "
            "to do with what happened in its episodes, long ones that take their time for instance"
        )

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        spread = "interval unknown" if self.interval() is None else f"95% interval {_brackets(self.interval())}"
        if self.anytime_interval() is not None:
            spread += f", anytime-valid {_brackets(self.anytime_interval())}"
        if self.event and not self.events:
            return (
                f"{self.event} in none of {self.episodes} episodes: its probability is at most "
                f"{self.upper_bound():.3g} (95%, one-sided), {spread}"
            )
        saved = ""
        if self.savings is not None and self.savings > 1.05:
            saved = f", as good as {self.savings * self.episodes:.0f} episodes of Monte Carlo"
        what = f"probability of {self.event}: " if self.event else ""
        return f"{what}{self.value:.6g}, {spread}, from {self.episodes} episodes{saved}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must know besides the number."""
        found = []
        if not self.unbiased:
            found.append("biased, without guarantee")
        if self.ended == "interrupted":
            found.append(f"interrupted after {self.episodes} episodes")
        if self.unreliable:
            found.append("unreliable, because " + " and ".join(self.unreliable))
        if self.hopeless:
            found.append(f"behavior search cannot help here, because {self.hopeless}")
        if self.left_out:
            found.append(self.left_out)
        return tuple(found)

    def __str__(self) -> str:
        return "; ".join([f"{self.sentence} ({self.method})", *self.warnings])

    def _repr_html_(self) -> str:
        rows = {
            f"probability of {self.event}" if self.event else "value": f"{self.value:.6g}",
            "95% interval": _brackets(self.interval()),
            "95% interval, anytime-valid": _brackets(self.anytime_interval()),
            "episodes": str(self.episodes),
        }
        if self.savings is not None:
            rows["as good as"] = f"{self.savings * self.episodes:.0f} episodes of Monte Carlo"
        rows["method"] = self.method
        cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows.items())
        return f"<table>{cells}</table>" + "".join(f"<p>{escape(text)}</p>" for text in self.warnings)

    def to_json(self) -> dict[str, Any]:
        """What a program wants to know, of types that JSON has; None for what is unknown."""
        return {
            "value": self.value,
            "std_error": self.std_error,
            "interval": self.interval(),
            "interval_level": 0.95,
            "interval_kind": self.interval_kind,
            "anytime_interval": self.anytime_interval(),
            "anytime_kind": self.anytime_kind,
            "ended": self.ended,
            "event": self.event or None,
            "upper_bound": self.upper_bound(),
            "certificate": self.certificate or None,
            "episodes": self.episodes,
            "method": self.method,
            "unbiased": self.unbiased,
            "savings": self.savings,
            "savings_basis": self.savings_basis,
            "explained": self.explained,
            "diagnostics": asdict(self.diagnostics),
            "unreliable": list(self.unreliable),
            "hopeless": self.hopeless or None,
            "settings": self.settings,
            "waiting": list(self.waiting),
            "abandoned": list(self.abandoned),
        }

    def report(self, path: str | Path) -> Path:
        """Write a page that shows and explains the estimate: one HTML file that needs no network."""
        from bpsearch.report.page import render

        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(self), encoding="utf-8")
        return path


def _brackets(interval: tuple[float, float] | None) -> str:
    return "unknown" if interval is None else f"[{interval[0]:.6g}, {interval[1]:.6g}]"


def _listed(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(str(number) for number in numbers[:10])
    return shown if len(numbers) <= 10 else f"{shown}, ..."
