"""Estimate: what a study says about the value of a policy, and how far it can be trusted."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bpsearch._core.checks import check_path, check_real
from bpsearch.inference.confidence_sequence import (
    AsymptoticSequence,
    anytime_bounds,
    out_of_range,
    upper_bound_of_event,
)
from bpsearch.inference.diagnostics import Diagnostics, Episodes
from bpsearch.inference.history import History
from bpsearch.inference.intervals import MeanError, binomial_upper_bound, clopper_pearson
from bpsearch.inference.stopping import Ended

if TYPE_CHECKING:
    from bpsearch.report.json import EstimateJson

Interval = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Estimate:
    """The expected return of the evaluation policy, or the probability of an event, from all episodes of a study.

    Attributes:
        value: the estimate.
        std_error: its standard error; None for fewer than two episodes or values without any spread.
        episodes: how many episodes it took, those of the search included.
        savings: how many times as many episodes Monte Carlo would need for the same standard error; None if unknown.
        tight_savings: the same for the standard error without room for events that no episode has shown.
        method: the name of the method, or of its search and estimator.
        unbiased: whether the method is unbiased; with False neither value nor interval have a guarantee.
        error: of the mean, with room for events that no episode has shown.
        tight_error: the same without that room.
        find_sequence: gives `sequence`, computed when it is first asked for.
        diagnostics: effective sample size and the like.
        history: the study batch by batch.
        data: the study episode by episode.
        explained: the share of Monte Carlo's variance that the method expects to remove; None if it does not know.
        explained_by: the same by kind of noise, "starts" and "actions", where control variates removed it.
        unused: what could have helped and was not used, each with the reason.
        no_help: why nothing but Monte Carlo was possible for this policy; empty if something was, or was not wanted.
        deterministic: whether the policy had no action noise, because it has none or its mode was asked for; None if
            that is unknown.
        notes: what is to be known about how the policy acted, a sentence each.
        settings: what repeats the evaluation, by name.
        return_range: the numbers between which every return lies; None if they are not known.
        weight_bound: what no importance weight can exceed.
        event: the event whose probability is estimated, as its condition; empty if it is an expected return.
        ended: why no more episodes were run.
        waiting: the numbers of the requests whose episodes have not been told yet.
        abandoned: the numbers of the requests that were given up.
    """

    value: float
    episodes: int
    method: str
    unbiased: bool
    error: MeanError | None
    tight_error: MeanError | None
    find_sequence: Callable[[], AsymptoticSequence]
    diagnostics: Diagnostics
    history: History
    data: Episodes
    explained: float | None = None
    explained_by: dict[str, float] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    no_help: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    return_range: Interval | None = None
    weight_bound: float = math.inf
    event: str = ""
    ended: Ended = Ended.BUDGET
    waiting: tuple[int, ...] = ()
    abandoned: tuple[int, ...] = ()
    deterministic: bool | None = None
    notes: tuple[str, ...] = ()

    @property
    def sequence(self) -> AsymptoticSequence:
        """What the anytime-valid interval is made of."""
        return self.find_sequence()

    @property
    def std_error(self) -> float | None:
        """The standard error of `value`."""
        return None if self.error is None else self.error.std_error

    @property
    def savings(self) -> float | None:
        """Monte Carlo's variance divided by this study's variance per episode, with room for what was not seen."""
        return self._savings(self.error)

    @property
    def tight_savings(self) -> float | None:
        """The same without that room: what was saved if the episodes missed no rare event."""
        return self._savings(self.tight_error)

    def interval(self, level: float = 0.95) -> Interval | None:
        """The confidence interval of this level for a number of episodes fixed in advance.

        Where variance was reduced it has room for an event that no episode has shown (`inference.unseen`). The
        interval of a probability lies in [0, 1] and has a width, whatever was seen.
        """
        if self.counted:
            return clopper_pearson(self.events, self.episodes, level)
        if self.error is None:
            return self.certified_interval(level) if self.event else None
        half = self.error.half_width(level)
        return self._possible((self.value - half, self.value + half))

    def tight_interval(self, level: float = 0.95) -> Interval | None:
        """The interval of this level that the spread of the values tells, for a number of episodes fixed in advance.

        It holds if the episodes missed no rare event: in an environment that has none of its own.
        """
        if self.counted or self.tight_error is None:
            return self.interval(level)
        half = self.tight_error.half_width(level)
        return self._possible((self.value - half, self.value + half))

    def anytime_interval(self, level: float = 0.95) -> Interval | None:
        """The interval of this level that stays valid, for many episodes, when one looks after every batch.

        It needs no range of the returns, and every reduction of variance makes it narrower. It is made of values that
        no later batch changes, so its middle may differ a little from `value`. None while there are fewer than 30
        episodes, or nothing has varied.
        """
        found = self.sequence.interval(level)
        return None if found is None else self._possible(found)

    def certified_interval(self, level: float = 0.95) -> Interval | None:
        """The interval of this level that holds for any number of episodes, however often one looks.

        It is made of the importance weights and the returns alone, whatever the method, and is None if the range of
        the returns is not known or was exceeded.
        """
        check_real("level", level, above=0.0, high=1.0 - 1e-12)
        if self.return_range is None or self.out_of_range:
            return None
        low, high = anytime_bounds(
            self.data.log_weights,
            self.data.returns,
            self.return_range,
            self.history.episodes,
            level,
            self.data.counts > 0.0,
        )
        return float(low[-1]), float(high[-1])

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
    def counted(self) -> bool:
        """Whether the value is a plain count of events, or there is nothing but the count to go by."""
        if not self.event or self.data.weighted:
            return False
        return self.error is None or not self.data.corrected

    @property
    def out_of_range(self) -> bool:
        """Whether a return was seen beyond the range that was given."""
        if self.return_range is None:
            return False
        return out_of_range(self.data.returns, self.return_range)

    def __str__(self) -> str:
        from bpsearch.report.words import describe

        return describe(self)

    def _repr_html_(self) -> str:
        from bpsearch.report.words import describe_html

        return describe_html(self)

    def to_json(self) -> "EstimateJson":
        """What a program wants to know, of types that JSON has; None for what is unknown.

        `bpsearch.report.json.SCHEMA` is its JSON Schema.
        """
        from bpsearch.report.json import estimate_json

        return estimate_json(self)

    def to_dataframe(self) -> Any:
        """A pandas `DataFrame` with a row for each episode: its batch, return, importance weight and value.

        The mean of the values is the estimate, unless the batches of a search count differently.
        """
        from bpsearch.report.frames import to_dataframe

        return to_dataframe(self)

    def report(self, path: str | Path) -> Path:
        """Write a page that shows and explains the estimate: one HTML file that needs no network."""
        from bpsearch.report.packages import require_report

        require_report()
        from bpsearch.report.layout import write_page
        from bpsearch.report.page import render

        return write_page(render(self), check_path("path", path))

    def _savings(self, error: MeanError | None) -> float | None:
        plain = self.diagnostics.monte_carlo_variance
        return None if plain is None or error is None else plain / (error.variance * self.episodes)

    def _possible(self, interval: Interval) -> Interval:
        """Within [0, 1] if it is of a probability."""
        if not self.event:
            return interval
        low, high = np.clip(interval, 0.0, 1.0)
        return float(low), float(high)
