"""Where the variance of a return comes from, starts, actions and the rest, and what each tool would save alone."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bpsearch._core.arrays import NumpyArray
from bpsearch.inference.quantity import Quantity, from_logarithm, share_of
from bpsearch.inference.variance_split import jackknife, split_parts, split_terms

TOOLS = {"starts": "further resets", "actions": "scores and models"}


@dataclass(frozen=True)
class Source:
    """A source of the variance of a return.

    Attributes:
        name: "starts", "actions" or "rest".
        share: of the variance.
        savings: by which factor the variance falls if only the tool for this source is used; None if there is none.
        tool: which that is; empty for the rest.
    """

    name: str
    share: Quantity
    savings: Quantity | None = None
    tool: str = ""

    @property
    def saves(self) -> bool:
        """Whether its tool is known to save something."""
        return self.savings is not None and self.savings.low is not None and self.savings.low > 1.0

    @property
    def text(self) -> str:
        """For people; the share of the actions a plan says itself."""
        share = self.share.text(lambda part: f"{part:.0%}")
        saves = "" if self.savings is None else f"{self.tool} alone save a factor of {self.savings.text(_factor)}"
        if self.name == "starts":
            return f"variance that starts explain, as far as the pilot has learned it: {share}; {saves}"
        if self.name == "actions":
            return saves
        return (
            f"variance that neither explains: {share}, noise of the environment and what of the starts the pilot has "
            f"not learned; only more episodes help"
        )


def split_sources(
    returns: NumpyArray,
    alone: Mapping[str, NumpyArray],
    actions: Quantity,
    *,
    resets: int,
    quantile: float,
) -> tuple[Source, ...]:
    """The sources of the variance, with intervals by the jackknife over groups.

    The share of the actions is E[Var[g|U]] / Var[g] (`variance_split`). The share of the starts is what a cross-fitted
    regression f of returns on starts removes: with the mean of r further starts in its place a value has the variance
    Var[g − f] + Var[f]/r, so what was removed is r/(r − 1) times as much without that. The rest is what is left of 1.

    Args:
        returns: (groups, repeats).
        alone: (groups, repeats) by kind, with those of that kind only.
        actions: the share of the actions.
        resets: r; 0 if there were none, and then nothing is known about starts.
        quantile: of the t-distribution.
    """
    repeats = returns.shape[1]
    kinds = [kind for kind in alone if kind != "starts" or resets > 1]
    larger = resets / (resets - 1.0) if resets > 1 else 1.0

    def statistic(sums: NumpyArray, count: int) -> NumpyArray:
        parts = [split_parts(part, count, repeats) for part in np.split(sums, len(sums) // 3)]
        plain, _, *others = (rest + action for rest, action in parts)
        logs = [np.log(plain / other) for other in others]
        removed = [
            larger * (1.0 - other / plain) for kind, other in zip(kinds, others, strict=True) if kind == "starts"
        ]
        starts = removed[0] if removed else np.zeros_like(plain)
        # By returns, and by values without the luck of the actions: given U both have the same mean.
        rests = [parts[0][0] / plain - starts, parts[1][0] / plain - starts]
        return np.stack([starts, *rests, *logs])

    terms = np.vstack(
        [split_terms(array) for array in (returns, alone.get("actions", returns), *(alone[kind] for kind in kinds))]
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        found, errors = jackknife(statistic, terms)
    savings = {
        kind: from_logarithm(log, error, quantile)
        for kind, log, error in zip(kinds, found[3:], errors[3:], strict=True)
    }
    which = 1 + int(errors[2] < errors[1])
    sources = [Source("actions", actions, savings.get("actions"), TOOLS["actions"])]
    if "starts" in savings:
        share = share_of(found[0], quantile * errors[0], known=True)
        sources.insert(0, Source("starts", share, savings["starts"], TOOLS["starts"]))
    return (*sources, Source("rest", share_of(found[which], quantile * errors[which], known=True)))


def _factor(factor: float) -> str:
    return f"{factor:.3g}"
