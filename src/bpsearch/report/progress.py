"""The course of a study while it runs: a line in a terminal, and in a notebook."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from bpsearch.inference.estimate import Estimate


@contextlib.contextmanager
def progress_display(episodes: int, *, quiet: bool) -> Iterator[Callable[[Any, Any], None] | None]:
    """A live line: episodes, estimate and interval, variance relative to Monte Carlo's, time left."""
    if quiet:
        yield None
        return
    # One column: where a terminal is narrow it loses its end, not the number of episodes.
    text_column = TextColumn("{task.completed:.0f}/{task.total:.0f} {task.description}")
    columns = (BarColumn(6), text_column, TimeRemainingColumn())
    # The time left follows from all batches so far: one may take longer than Rich looks back by itself.
    with Progress(*columns, console=Console(), transient=True, speed_estimate_period=math.inf) as progress:
        task = progress.add_task("first batch", total=episodes)
        text, due = "", 0.0

        def show(study: Any, info: Any) -> None:
            nonlocal text, due
            start = time.monotonic()
            if start >= due:
                text = _line(study.estimate())
                # An estimate that values all episodes takes long: at most a tenth of the time is for it.
                end = time.monotonic()
                due = end + 10.0 * (end - start)
            progress.update(task, completed=study.episodes, description=text)

        yield show


def _line(estimate: Estimate) -> str:
    half = "" if estimate.error is None else f" ± {estimate.error.half_width(0.95):.3g}"
    ratio = "" if not estimate.savings else f", variance {1.0 / estimate.savings:.2f} of Monte Carlo's"
    return f"{estimate.value:.5g}{half}{ratio}"
