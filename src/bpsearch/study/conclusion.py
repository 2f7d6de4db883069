"""From all told batches to the estimate."""

import math

import numpy as np

from bpsearch.estimands import Range
from bpsearch.inference.diagnostics import Episodes, diagnose
from bpsearch.inference.estimate import Estimate
from bpsearch.inference.history import History
from bpsearch.inference.looks import Looks
from bpsearch.inference.stopping import Ended
from bpsearch.study.progress import Progress
from bpsearch.study.requests import Status


def conclude(
    progress: Progress,
    looks: Looks,
    tightest: int,
    *,
    return_range: Range | None,
    ended: Ended,
    no_resets: str = "",
) -> Estimate:
    """The estimate of a study that has come so far.

    Args:
        progress: at least one batch.
        looks: at the batches, for the anytime-valid interval.
        tightest: the number of episodes at which that is to be narrow.
        return_range: the numbers between which every return lies, if they are known.
        ended: why no more episodes were run.
        no_resets: why there were no further starts to learn from; empty if there were, or need be none.
    """
    method, estimand = progress.method, progress.estimand
    # In the order of asking, in which they are martingale differences; the order of telling may depend on them.
    told = {number: progress.batch(number) for number in progress.batches}
    batches = [told[number] for number in sorted(told)]
    values = method.valuation.conclude(progress.states.valuation, batches)
    data = Episodes(
        values=np.concatenate(values.batches),
        log_weights=np.concatenate([batch.log_weights for batch in batches]),
        returns=np.concatenate([batch.returns for batch in batches]),
        counts=np.repeat(values.weights, [len(batch) for batch in values.batches]),
    )
    plain = [method.valuation.plain(batch) for batch in batches]
    explained_by = values.explained or {}
    explained = progress.explained if values.explained is None else sum(explained_by.values())
    return Estimate(
        value=values.mean,
        episodes=len(data.values),
        method=method.name,
        unbiased=method.valuation.estimator.unbiased,
        error=values.error,
        tight_error=values.tight_error,
        find_sequence=looks.later(told, tightest),
        diagnostics=diagnose(data, values.batches[-1], values.error, values.tight_error),
        history=History.of(
            values.batches,
            [batch.log_weights for batch in batches],
            values.weights,
            None if any(returns is None for returns in plain) else [batch.returns for batch in batches],
        ),
        data=data,
        explained=None if math.isnan(explained) else explained,
        explained_by=explained_by,
        unused=method.valuation.unused(progress.policy)
        + method.search.unused(progress.states.search)
        + ((f"starts: {no_resets}",) if no_resets else ()),
        return_range=return_range if method.valuation.independent else None,
        weight_bound=method.search.weight_bound(progress.states.search),
        event=estimand.name if estimand.event else "",
        ended=ended,
        waiting=tuple(sorted(progress.asked)),
        abandoned=tuple(entry.number for entry in progress.entries if entry.status is Status.ABANDONED),
    )
