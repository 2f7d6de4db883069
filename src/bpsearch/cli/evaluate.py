"""`bpsearch evaluate`: one policy, one environment, one answer."""

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from bpsearch.cli.shared import (
    AsJson,
    Defensive,
    Discount,
    EnvId,
    EnvKwargs,
    Horizon,
    NormalizeFile,
    NumEnvs,
    PolicyFile,
    Seed,
    Trust,
    one_torch_thread,
    parsed_kwargs,
    prepare_jax,
    print_json,
)
from bpsearch.evaluate import METHODS

if TYPE_CHECKING:
    from bpsearch.estimate import Estimate
    from bpsearch.search import Info
    from bpsearch.study import Study


def evaluate(
    env: EnvId,
    policy: PolicyFile,
    episodes: Annotated[int, typer.Option(help="How many episodes, those of the search included.")] = 1000,
    out: Annotated[Path | None, typer.Option(help="Directory for report.html and result.json.")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="auto (the default), mc, bpg, pdis-bpg; on tabular environments as, dr-bpg.",
            autocompletion=lambda incomplete: [name for name in METHODS if name.startswith(incomplete)],
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Episodes between two steps of the search.")] = 100,
    horizon: Horizon = None,
    discount: Discount = None,
    seed: Seed = 0,
    env_kwargs: EnvKwargs = None,
    num_envs: NumEnvs = None,
    vec_normalize: NormalizeFile = None,
    trust: Trust = False,
    target_halfwidth: Annotated[
        float | None, typer.Option(help="Stop when half the anytime-valid interval's width is at most this.")
    ] = None,
    time_limit: Annotated[float | None, typer.Option(help="Start no batch after this many seconds.")] = None,
    return_range: Annotated[
        tuple[float, float] | None, typer.Option(help="Two numbers between which every return lies.")
    ] = None,
    defensive: Defensive = 0.0,
    failure: Annotated[
        str | None, typer.Option(help="Estimate a probability instead: 'return < -100', 'length >= 500', ...")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="File that keeps every batch: the same command goes on from there.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the expected return of a policy, with a confidence interval, from fewer episodes."""
    prepare_jax()
    from bpsearch.evaluate import evaluate as run

    one_torch_thread()
    kwargs = parsed_kwargs(env_kwargs)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # now, not after hours of episodes
    try:
        with progress_display(episodes, quiet=as_json or not sys.stdout.isatty()) as on_batch:
            result = run(
                policy,
                env,
                episodes,
                method,
                batch_size,
                horizon,
                discount,
                seed,
                env_kwargs=kwargs,
                num_envs=num_envs,
                normalize=vec_normalize,
                trust=trust,
                failure=failure,
                return_range=return_range,
                target_halfwidth=target_halfwidth,
                time_limit=time_limit,
                defensive=defensive,
                store=store,
                on_batch=on_batch,
            )
    except KeyboardInterrupt:
        typer.echo("bpsearch: stopped before the first batch was complete; nothing was written", err=True)
        sys.exit(130)
    if out is not None:
        result.report(out / "report.html")
        (out / "result.json").write_text(json.dumps(result.to_json(), indent=2) + "\n", encoding="utf-8")
    if as_json:
        print_json(result.to_json() | {"report": None if out is None else str(out / "report.html")})
    else:
        print_estimate(result)
        if out is not None:
            typer.echo(f"wrote {out / 'report.html'} and {out / 'result.json'}")
    if result.ended == "interrupted":
        if store is not None:
            typer.echo(f"bpsearch: {store} has all whole batches, the same command goes on", err=True)
        sys.exit(130)


@contextlib.contextmanager
def progress_display(episodes: int, *, quiet: bool) -> Iterator[Callable[["Study", "Info"], None] | None]:
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

        def show(study: "Study", info: "Info") -> None:
            nonlocal text, due
            start = time.monotonic()
            if start >= due:
                text = _line(study.estimate())
                # Where all episodes are valued anew an estimate takes long: at most a tenth of the time is for it.
                end = time.monotonic()
                due = end + 10.0 * (end - start)
            progress.update(task, completed=study.episodes, description=text)

        yield show


def _line(estimate: "Estimate") -> str:
    half = "" if estimate.error is None else f" ± {estimate.error.half_width(0.95):.3g}"
    ratio = "" if not estimate.savings else f", variance {1.0 / estimate.savings:.2f} of Monte Carlo's"
    return f"{estimate.value:.5g}{half}{ratio}"


def print_estimate(result: "Estimate") -> None:
    """The answer and what belongs to it, for the terminal."""
    typer.echo(result.sentence)
    typer.echo(f"method: {result.method}; ended by: {result.ended}")
    typer.echo(f"interval: {result.interval_kind}")
    typer.echo(f"anytime-valid interval: {result.anytime_kind}")
    if result.certificate:
        typer.echo(f"certificate: {result.certificate}")
    effective = result.diagnostics.effective_sample_size
    savings = "unknown" if result.savings is None else f"{result.savings:.2f}"
    typer.echo(f"savings {savings}, effective sample size {effective:.0f} of {result.episodes}")
    for warning in result.warnings:
        typer.echo(f"{warning[0].upper()}{warning[1:]}.")
