"""The loop: who acts next, run it, count it, look; until there are enough episodes, or a reason to stop."""

import math
import time
from typing import TYPE_CHECKING, Any

from bpsearch.inference.stopping import Ended, Target
from bpsearch.runners.base import Runner

if TYPE_CHECKING:
    from bpsearch.study.study import OnBatch, Study


def run_batches(
    study: "Study", runner: Runner, episodes: int, rule: Target, resets: int, on_batch: "OnBatch | None"
) -> Ended | None:
    """Run batches of a study; return why there are fewer episodes than wanted, None if there are not.

    Args:
        study: counts the batches.
        runner: runs them.
        episodes: how many.
        rule: when to stop before that.
        resets: further starts of each episode.
        on_batch: called after each batch.
    """
    if rule.looks and rule.kind == "certified":
        study.method.valuation.check_certifiable()
    deadline = math.inf if rule.seconds is None else time.monotonic() + rule.seconds
    if study.reached(rule):  # before it was closed or killed
        return Ended.TARGET
    further: dict[str, Any] = {"resets": resets} if resets else {}
    size = study.method.batch_size
    for start in range(0, episodes, size):
        if start and time.monotonic() > deadline:
            return Ended.TIME_LIMIT
        # Nobody else is to answer this request: it is written with its episodes, or not at all.
        entry, behavior = study.next_request()
        left = range(start, episodes, size)
        if not study.method.search.moves:
            sizes = (min(size, episodes - later) for later in left)
            runner.expect(behavior, sizes, seed=study.seed, batch=entry.number, **further)
        elif study.method.lag:
            # The behaviors of the next batches are fixed already: workers need not wait for this one.
            for ahead, later in enumerate(left[: study.method.lag + 1]):
                due, acts = study.next_request(ahead)
                runner.expect(acts, (min(size, episodes - later),), seed=study.seed, batch=due.number, **further)
        count = min(size, episodes - start)
        # Without a name, the batch is let go before the next is run.
        info = study.count(entry, runner.run(behavior, count, seed=study.seed, batch=entry.number, **further))
        if on_batch is not None:
            on_batch(study, info)
        if study.reached(rule):
            return Ended.TARGET
    return None
