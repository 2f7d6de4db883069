"""`bpsearch evaluate`: one policy, one environment, one answer."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bpsearch.cli.shared import (
    AsJson,
    Defensive,
    Deterministic,
    Discount,
    EnvId,
    EnvKwargs,
    EpisodeTimeout,
    Horizon,
    MethodName,
    Normalize,
    NumEnvs,
    PolicyFile,
    ResetsOption,
    Seed,
    Trust,
    Vectorization,
    WorkersOption,
    open_task,
    prepare_jax,
    print_json,
    read_resets,
    say,
)
from bpsearch.errors import InvalidArgumentError

if TYPE_CHECKING:
    from bpsearch.calls.task import Task
    from bpsearch.estimands import Estimand
    from bpsearch.inference.estimate import Estimate
    from bpsearch.inference.stopping import Target
    from bpsearch.methods import Method

BATCH_SIZE = 100  # of `Method`


def evaluate(
    env: EnvId,
    policy: PolicyFile,
    episodes: Annotated[int, typer.Option(help="How many episodes, those of the search included.")] = 1000,
    method: MethodName = "auto",
    deterministic: Deterministic = False,
    seed: Seed = None,
    target: Annotated[
        float | None, typer.Option(help="Stop when half the anytime-valid interval's width is at most this.")
    ] = None,
    relative_target: Annotated[
        float | None, typer.Option(help="The same, relative to the size of the estimate.")
    ] = None,
    time_limit: Annotated[float | None, typer.Option(help="Start no batch after this many seconds.")] = None,
    failure: Annotated[
        str | None, typer.Option(help="Estimate a probability instead: 'return < -100', 'length >= 500', ...")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="File that keeps every batch: the same command goes on from there.")
    ] = None,
    resets: ResetsOption = "auto",
    out: Annotated[Path | None, typer.Option(help="Directory for report.html and result.json.")] = None,
    batch_size: Annotated[int, typer.Option(help="Episodes between two steps of the search.")] = BATCH_SIZE,
    defensive: Defensive = 0.0,
    horizon: Horizon = None,
    discount: Discount = None,
    return_range: Annotated[
        tuple[float, float] | None, typer.Option(help="Two numbers between which every return lies.")
    ] = None,
    env_kwargs: EnvKwargs = None,
    num_envs: NumEnvs = None,
    vectorization: Vectorization = None,
    workers: WorkersOption = None,
    episode_timeout: EpisodeTimeout = None,
    lag: Annotated[
        int,
        typer.Option(
            help="Batches that the search need not have learned from when the next begins, so that workers need not "
            "wait. Changes the numbers, without a bias, and often widens the interval."
        ),
    ] = 0,
    normalize: Normalize = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Estimate the expected return of a policy, with a confidence interval, from fewer episodes."""
    prepare_jax()
    from bpsearch._core.checks import check_integer
    from bpsearch.calls.evaluate import run_task
    from bpsearch.estimands import Failure, Return
    from bpsearch.inference.stopping import Target
    from bpsearch.report.packages import require_report
    from bpsearch.report.progress import progress_display

    check_integer("episodes", episodes)
    if failure is not None and return_range is not None:
        raise InvalidArgumentError(f"return_range has no meaning for a failure, which is 0 or 1, got {return_range}")
    if out is not None:
        require_report()
        out.mkdir(parents=True, exist_ok=True)  # now, not after hours of episodes
    rule = Target(halfwidth=target, relative=relative_target, seconds=time_limit)
    opened = open_task(
        env,
        policy,
        horizon=horizon,
        discount=discount,
        env_kwargs=env_kwargs,
        num_envs=num_envs,
        vectorization=vectorization,
        normalize=normalize,
        trust=trust,
        deterministic=deterministic,
        workers=workers,
        episode_timeout=episode_timeout,
    )
    try:
        with opened as task, progress_display(episodes, quiet=as_json or not sys.stdout.isatty()) as on_batch:
            of_discount = task.discount if discount is None else discount
            asked: Estimand = Return(of_discount, return_range)
            if failure is not None:
                asked = Failure(failure, of_discount)
            chosen, no_help = _method(method, task, asked, batch_size, defensive)
            chosen = with_lag(chosen, lag)
            result = run_task(
                task,
                chosen,
                asked,
                episodes,
                seed=seed,
                target=rule,
                store=store,
                resets=read_resets(resets),
                on_batch=on_batch,
                no_help=no_help,
            )
    except KeyboardInterrupt:
        typer.echo("bpsearch: stopped before the first batch was complete; nothing was written", err=True)
        sys.exit(130)
    options = {
        "target": _to_json(rule),
        "failure": failure,
        "estimand": None if return_range is None else str(asked),
        "store": None if store is None else str(store),
        "resets": None if resets == "auto" else read_resets(resets),
        "batch_size": batch_size if batch_size != BATCH_SIZE else None,
        "defensive": defensive or None,
        "lag": lag or None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    result = dataclasses.replace(result, settings=result.settings | given)
    if out is not None:
        result.report(out / "report.html")
        (out / "result.json").write_text(json.dumps(result.to_json(), indent=2) + "\n", encoding="utf-8")
    if as_json:
        print_json(result.to_json())
    else:
        print_estimate(result)
        if out is not None:
            typer.echo(f"wrote {out / 'report.html'} and {out / 'result.json'}")
    if result.ended == "interrupted":
        if store is not None:
            typer.echo(f"bpsearch: {store} has all whole batches, the same command goes on", err=True)
        sys.exit(130)


def _method(name: str, task: "Task", asked: "Estimand", batch_size: int, defensive: float) -> "tuple[Method, str]":
    """The method of the options, and why it is nothing but Monte Carlo; empty if it is more, or was not wanted."""
    from bpsearch.calls.evaluate import choose_method

    searches = defensive > 0.0 and not (name == "auto" and task.no_help)
    chosen, no_help = choose_method("bpg" if searches and name == "auto" else name, task, asked, may_move=True)
    chosen = dataclasses.replace(chosen, batch_size=batch_size)
    return with_defense(chosen, defensive) if searches else chosen, no_help


def _to_json(rule: "Target") -> "float | dict[str, float | str] | None":
    """A target as `bps.evaluate` takes it: a number, or what makes a `Target`."""
    given = {name: getattr(rule, name) for name in ("halfwidth", "relative", "seconds")}
    parts = {name: value for name, value in given.items() if value is not None}
    return rule.halfwidth if set(parts) == {"halfwidth"} else parts or None


def with_defense(method: "Method", defensive: float) -> "Method":
    """The method with a share of its episodes run by the policy itself."""
    if not hasattr(method.search, "defensive"):
        raise InvalidArgumentError(f"defensive has no meaning for method {method.name!r}, whose weights are all 1")
    search = dataclasses.replace(method.search, defensive=defensive)  # type: ignore[type-var]
    return dataclasses.replace(method, search=search)


def with_lag(method: "Method", lag: int) -> "Method":
    """The method, whose behaviors know nothing of so many of the last batches."""
    if lag > 0 and not method.search.moves:
        raise InvalidArgumentError(
            f"lag has no meaning for method {method.name!r}, whose behavior never changes: workers wait for nothing "
            f"there; leave it out"
        )
    return dataclasses.replace(method, lag=lag)


def print_estimate(result: "Estimate") -> None:
    """The answer and what belongs to it, for the terminal."""
    from bpsearch.report.words import describe_lines

    for line in describe_lines(result):
        say(line)
    if "seed" in result.settings:
        typer.echo(f"seed {result.settings['seed']}")
