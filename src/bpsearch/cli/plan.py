"""`bpsearch plan`: a few episodes, and what an evaluation will need."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from bpsearch.cli.shared import (
    AsJson,
    Deterministic,
    Discount,
    EnvId,
    EnvKwargs,
    EpisodeTimeout,
    Horizon,
    Normalize,
    NumEnvs,
    PolicyFile,
    Seed,
    Trust,
    Vectorization,
    WorkersOption,
    open_task,
    prepare_jax,
    print_json,
)


def plan(
    env: EnvId,
    policy: PolicyFile,
    pilot: Annotated[int, typer.Option(help="How many episodes to run now, a multiple of 10.")] = 200,
    halfwidth: Annotated[
        float | None, typer.Option(help="Half the width of the wanted interval, in units of the return.")
    ] = None,
    relative_halfwidth: Annotated[
        float | None, typer.Option(help="The same, relative to the size of the expected return.")
    ] = None,
    level: Annotated[float, typer.Option(help="Confidence level of the wanted interval.")] = 0.95,
    deterministic: Deterministic = False,
    seed: Seed = None,
    horizon: Horizon = None,
    discount: Discount = None,
    env_kwargs: EnvKwargs = None,
    num_envs: NumEnvs = None,
    vectorization: Vectorization = None,
    workers: WorkersOption = None,
    episode_timeout: EpisodeTimeout = None,
    normalize: Normalize = None,
    trust: Trust = False,
    out: Annotated[Path | None, typer.Option(help="Directory for plan.html, a page with pictures.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tell from a few episodes how many an evaluation will need, and whether anything can be saved."""
    prepare_jax()
    from bpsearch.calls.plan import plan as run
    from bpsearch.estimands import Return
    from bpsearch.report.packages import require_report

    if out is not None:
        require_report()
    estimand = None if discount is None else Return(discount)
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
        with opened as task:
            result = run(
                task.policy,
                task.env,
                pilot,
                halfwidth,
                relative_halfwidth=relative_halfwidth,
                level=level,
                seed=seed,
                estimand=estimand,
                workers=task.workers,
                episode_timeout=task.episode_timeout,
            )
            result = dataclasses.replace(result, settings=result.settings | task.names)
    except KeyboardInterrupt:
        typer.echo("bpsearch: stopped before the pilot was complete; nothing is known", err=True)
        sys.exit(130)
    if out is not None:
        result.report(out / "plan.html")
    if as_json:
        print_json(result.to_json())
        return
    for line in result.lines:
        typer.echo(f"{line[0].upper()}{line[1:]}.")
    if out is not None:
        typer.echo(f"wrote {out / 'plan.html'}")
