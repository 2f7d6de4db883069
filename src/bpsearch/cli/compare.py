"""`bpsearch compare`: which one is better?"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bpsearch.cli.shared import (
    AsJson,
    Deterministic,
    Discount,
    EnvKwargs,
    EpisodeTimeout,
    Horizon,
    MethodName,
    NumEnvs,
    ResetsOption,
    Seed,
    Trust,
    Vectorization,
    WorkersOption,
    open_task,
    prepare_jax,
    print_json,
    read_resets,
    read_workers,
)
from bpsearch.errors import InvalidArgumentError

if TYPE_CHECKING:
    from bpsearch.estimands import Estimand
    from bpsearch.study import ComparisonStudy

_UNDECIDED = 3  # the exit code of --check if not all is decided


def compare(
    policies: Annotated[
        list[str], typer.Argument(help="Files or names as for evaluate, two or more; NAME=FILE gives one a name.")
    ],
    env: Annotated[list[str], typer.Option(help="Gymnasium id; twice or more for one policy in several environments.")],
    episodes: Annotated[int, typer.Option(help="How many episodes each policy may run.")] = 1000,
    method: MethodName = "auto",
    seed: Seed = None,
    margin: Annotated[float | None, typer.Option(help="Call differences within ± this equivalent.")] = None,
    level: Annotated[float, typer.Option(help="Confidence that all verdicts are right at once.")] = 0.95,
    reference: Annotated[
        str | None, typer.Option(help="Compare all others with this one; by default all pairs.")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Go on until half the interval's width is at most this, not until decided.")
    ] = None,
    time_limit: Annotated[float | None, typer.Option(help="Start no round after this many seconds.")] = None,
    stop_early: Annotated[bool, typer.Option(help="Stop when all is decided.")] = True,
    drop_losers: Annotated[
        bool, typer.Option("--drop-losers", help="Stop running a policy that is clearly worse than another.")
    ] = False,
    kind: Annotated[
        Literal["asymptotic", "certified"],
        typer.Option(help="Which intervals decide; certified ones hold for any number of episodes, and need a range."),
    ] = "asymptotic",
    failure: Annotated[
        str | None, typer.Option(help="Compare probabilities instead: 'return < -100', 'length >= 500', ...")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="Directory that keeps every batch: the same command goes on from there.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="File for the page, page.html for instance.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Episodes of each policy in a round.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help=f"Exit with {_UNDECIDED} if a difference is undecided.")
    ] = False,
    horizon: Horizon = None,
    discount: Discount = None,
    return_range: Annotated[
        tuple[float, float] | None, typer.Option(help="Two numbers between which every return lies.")
    ] = None,
    env_kwargs: EnvKwargs = None,
    num_envs: NumEnvs = None,
    vectorization: Vectorization = None,
    deterministic: Deterministic = False,
    resets: ResetsOption = "auto",
    workers: WorkersOption = None,
    episode_timeout: EpisodeTimeout = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Decide which of two or more policies is better, from as few episodes as it takes."""
    prepare_jax()
    from bpsearch.calls.compare import compare as decide
    from bpsearch.estimands import Failure, Return
    from bpsearch.inference.difference import Decision
    from bpsearch.inference.stopping import Target
    from bpsearch.report.comparison_words import describe_lines
    from bpsearch.report.packages import require_report

    named = _name_each(policies, env)
    if report is not None:
        require_report()
        report.parent.mkdir(parents=True, exist_ok=True)  # now, not after hours of episodes
    if failure is not None and return_range is not None:
        raise InvalidArgumentError(f"return_range has no meaning for a failure, which is 0 or 1, got {return_range}")
    rule = None if target is time_limit is None else Target(halfwidth=target, seconds=time_limit, kind=kind)
    try:
        with contextlib.ExitStack() as stack:
            tasks = {
                name: stack.enter_context(
                    open_task(
                        place,
                        policy,
                        horizon=horizon,
                        discount=discount,
                        env_kwargs=env_kwargs,
                        num_envs=num_envs,
                        vectorization=vectorization,
                        normalize=None,
                        deterministic=deterministic,
                        trust=trust,
                    )
                )
                for name, (policy, place) in named.items()
            }
            asked: Estimand | None = None
            if failure is not None and discount is not None:
                asked = Failure(failure, discount)
            elif discount is not None or return_range is not None:
                of_discount = next(iter(tasks.values())).discount if discount is None else discount
                asked = Return(of_discount, return_range)
            on_round = stack.enter_context(progress_display(episodes, quiet=as_json or not sys.stdout.isatty()))
            found = decide(
                tasks,
                {name: place for name, (_, place) in named.items()} if len(env) > 1 else env[0],
                episodes,
                method,
                seed=seed,
                margin=margin,
                level=level,
                reference=reference,
                target=rule,
                stop_early=stop_early,
                drop_losers=drop_losers,
                kind=kind,
                failure=failure if asked is None else None,
                estimand=asked,
                store=store,
                batch_size=batch_size,
                resets=read_resets(resets),
                workers=read_workers(workers),
                episode_timeout=episode_timeout,
                on_round=on_round,
            )
    except KeyboardInterrupt:
        typer.echo("bpsearch: stopped before the first round was complete; nothing was written", err=True)
        sys.exit(130)
    if report is not None:
        found.report(report)
    if as_json:
        print_json(found.to_json())
    else:
        for line in describe_lines(found):
            typer.echo(line)
        typer.echo(f"seed {found.settings['seed']}")
        if report is not None:
            typer.echo(f"wrote {report}")
    if found.ended == "interrupted":
        if store is not None:
            typer.echo(f"bpsearch: {store} has all whole rounds, the same command goes on", err=True)
        sys.exit(130)
    if check and any(difference.decision is Decision.UNDECIDED for difference in found.differences):
        sys.exit(_UNDECIDED)


def _name_each(policies: list[str], envs: list[str]) -> dict[str, tuple[str, str]]:
    """By name, which policy runs where."""
    if len(envs) > 1:
        if len(policies) > 1:
            raise InvalidArgumentError(
                f"give several policies and one --env, or one policy and several, got {len(policies)} and {len(envs)}"
            )
        return {_own_name(env)[0]: (_own_name(policies[0])[1], _own_name(env)[1]) for env in envs}
    if len(policies) == 1:
        raise InvalidArgumentError(
            f"compare takes two or more policies, or one policy and --env twice or more, got {policies[0]} alone"
        )
    named = {}
    for name, source in _apart([_own_name(policy) for policy in policies]):
        if name in named:
            raise InvalidArgumentError(f"two policies have the name {name!r}: give them others by NAME=FILE")
        named[name] = (source, envs[0])
    return named


def _apart(named: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Names that tell files apart: two runs may both have a best_model.zip, in folders of their own."""
    names = [name for name, _ in named]
    found = []
    for name, source in named:
        folder = Path(source).parent.name
        own = name == Path(source).stem  # nobody has given it a name
        found.append((f"{folder}/{name}" if own and folder and names.count(name) > 1 else name, source))
    return found


def _own_name(text: str) -> tuple[str, str]:
    """The name and the file of NAME=FILE; without a name, that of the file."""
    name, equals, source = text.partition("=")
    return (name, source) if equals else (Path(text).stem if Path(text).suffix in (".zip", ".npz") else text, text)


@contextlib.contextmanager
def progress_display(episodes: int, *, quiet: bool) -> Iterator[Callable[["ComparisonStudy"], None] | None]:
    """A live line: episodes of each policy, and the differences with their intervals."""
    if quiet:
        yield None
        return
    import math

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(), transient=True, speed_estimate_period=math.inf) as progress:
        task = progress.add_task("first round", total=episodes)

        def show(study: "ComparisonStudy") -> None:
            progress.update(task, completed=study.done, description=_line(study))

        yield show


def _line(study: "ComparisonStudy") -> str:
    names, contests = study.design.names, study.standing.contests
    if len(contests) == 1:
        (one, other), point = study.design.pairs[0], contests[0].course[-1]
        return f"{names[one]} − {names[other]}: {point.mean:.4g} ± {point.half_width:.3g}, {point.decision}"
    decided = sum(contest.decided_at is not None for contest in contests)
    return f"{decided} of {len(contests)} decided, {len(study.running)} policies run"
