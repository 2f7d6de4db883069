"""The command `bpsearch`."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from bpsearch.errors import BPSearchError

app = typer.Typer(
    name="bpsearch",
    help="How good is my policy? Unbiased answers from fewer episodes, by behavior policy search.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Out = Annotated[Path, typer.Option(help="Directory for what is written.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same numbers.", min=0)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


@app.callback()
def options(
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
) -> None:
    """Options of every command."""
    _settings["debug"] = debug


_settings = {"debug": False}


@app.command(epilog="Example: bpsearch demo --out demo")
def demo(
    out: Out = Path("demo"),
    episodes: Annotated[int, typer.Option(help="Episodes per evaluation.", min=200)] = 10_000,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Evaluate one policy with Monte Carlo and with behavior policy search, from the same number of episodes."""
    use_all_cores()
    from bpsearch.experiments.demo import draw_demo, run_demo

    result = run_demo(episodes=episodes, seed=seed)
    path = draw_demo(result, out)
    errors = result.mean_squared_errors()
    baseline = errors["Monte Carlo"]
    if as_json:
        rows = {
            name: {
                "value": estimate.value,
                "interval": estimate.interval(),
                "episodes": estimate.episodes,
                "savings": estimate.savings,
                "mean_squared_error": errors[name],
            }
            for name, estimate in result.estimates.items()
        }
        print_json({"truth": result.truth, "methods": rows, "figure": str(path)})
        return
    table = Table(title="One policy of the 4x4 gridworld, evaluated by two methods", box=box.SIMPLE_HEAD)
    for column in ("method", "episodes", "value", "95% interval", "truth", "saved", "MSE ratio"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name, estimate in result.estimates.items():
        low, high = estimate.interval() or (float("nan"), float("nan"))
        saved = max(round(((estimate.savings or 1.0) - 1.0) * estimate.episodes), 0)
        table.add_row(
            name,
            f"{estimate.episodes}",
            f"{estimate.value:.3f}",
            f"[{low:.2f}, {high:.2f}]".replace("[", r"\["),
            f"{result.truth:.3f}",
            f"{saved}" if name != "Monte Carlo" else "-",
            f"{errors[name] / baseline:.2f}",
        )
    console = Console()
    console.print(table)
    repetitions = len(next(iter(result.squared_errors.values())))
    console.print(
        "BPG: behavior policy gradient. Truth: exact. Saved: how many more episodes Monte Carlo would need for\n"
        f"the same standard error. MSE ratio: to Monte Carlo's, over {repetitions} repeated evaluations.\n"
        f"Figure: {path}",
        soft_wrap=True,
    )


@app.command(epilog="Example: bpsearch train gridworld-early --out policies")
def train(
    name: Annotated[str, typer.Argument(help="gridworld-early, gridworld-converged or stochastic-gridworld.")],
    out: Out = Path("policies"),
) -> None:
    """Train one of the evaluation policies that are shipped with the package anew, by REINFORCE."""
    from bpsearch.training import train_policy

    typer.echo(f"wrote {train_policy(name, out)}")


def use_all_cores() -> None:
    """One JAX device per core: XLA by itself runs such programs on a single core. Before anything touches JAX."""
    import os

    import jax

    jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))  # type: ignore[no-untyped-call]


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    typer.echo(json.dumps(value))


def main() -> None:
    """Run the command; a user's mistake gives one clear line and exit code 2."""
    try:
        app()
    except BPSearchError as error:
        if _settings["debug"]:
            raise
        typer.echo(f"bpsearch: {error}", err=True)
        sys.exit(2)
