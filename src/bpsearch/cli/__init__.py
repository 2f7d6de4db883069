"""The command `bpsearch`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bpsearch import __version__
from bpsearch._core.texts import printable
from bpsearch.cli.compare import compare
from bpsearch.cli.evaluate import evaluate
from bpsearch.cli.plan import plan
from bpsearch.cli.shared import AsJson, FixedSeed, Out, prepare_jax, print_json
from bpsearch.cli.study import study
from bpsearch.errors import BPSearchError

if TYPE_CHECKING:
    from rich.table import Table

    from bpsearch.paper.claims import Claim

app = typer.Typer(
    name="bpsearch",
    help="How good is my policy? Unbiased answers from fewer episodes, by behavior policy search.",
    epilog="Exit codes: 0 done, 1 failed, 2 a mistake in the call or its files, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bpsearch {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options of every command."""
    _settings["debug"] = debug


_settings = {"debug": False}
_USAGE: Any = typer.BadParameter.__bases__[0]  # of Click, which newer versions of Typer have under a name of their own

app.command(epilog="Example: bpsearch evaluate --env CartPole-v1 --policy ppo.zip --episodes 1000 --out report")(
    evaluate
)
app.command(epilog="Example: bpsearch compare new.zip old.zip --env CartPole-v1 --margin 5 --report page.html")(compare)
app.command(epilog="Example: bpsearch plan --env CartPole-v1 --policy ppo.zip --pilot 200 --halfwidth 5")(plan)
app.add_typer(study)


@app.command(epilog="Example: bpsearch demo --out demo")
def demo(
    out: Out = Path("demo"),
    episodes: Annotated[int, typer.Option(help="Episodes per evaluation.", min=200)] = 10_000,
    seed: FixedSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Evaluate one policy by Monte Carlo, by the paper's method and by the default, from as many episodes each."""
    prepare_jax(tables=True)
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from bpsearch.report.packages import require_report

    require_report()
    from bpsearch.paper.demo import MONTE_CARLO, draw_demo, run_demo

    result = run_demo(episodes=episodes, seed=seed)
    path = draw_demo(result, out)
    errors = result.mean_squared_errors()
    baseline = errors[MONTE_CARLO]
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
    table = Table(
        title=f"One policy of the 4x4 gridworld, three methods, {episodes} episodes each", box=box.SIMPLE_HEAD
    )
    for column in ("method", "value", "95% interval", "truth", "saved", "MSE ratio"):
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for name, estimate in result.estimates.items():
        low, high = estimate.interval() or (float("nan"), float("nan"))
        saved = max(round(((estimate.savings or 1.0) - 1.0) * estimate.episodes), 0)
        table.add_row(
            name,
            f"{estimate.value:.3f}",
            f"[{low:.2f}, {high:.2f}]".replace("[", r"\["),
            f"{result.truth:.3f}",
            f"{saved}" if name != MONTE_CARLO else "-",
            f"{errors[name] / baseline:.2g}",
        )
    console = Console()
    console.print(table)
    counts = {name: len(curve.squared_errors) for name, curve in result.curves.items()}
    console.print(
        "BPG: behavior policy gradient. Truth: exact. Saved: how many more episodes\n"
        "Monte Carlo would need for an interval as narrow. MSE ratio: mean squared error\n"
        f"over {', '.join(map(str, counts.values()))} repeated evaluations, relative to Monte Carlo's.\n"
        f"Figure: {path}",
        soft_wrap=True,
    )


@app.command(epilog="Example: bpsearch reproduce gridworld --trials 10 --out runs/paper")
def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(help="gridworld, control-variates, rare-event, continuous, continuous-extras, tabular or all."),
    ],
    trials: Annotated[int, typer.Option(help="Trials per curve; the paper has 100.", min=2)] = 100,
    seed: FixedSeed = 0,
    out: Out = Path("runs/paper"),
    as_json: AsJson = False,
) -> None:
    """Run the paper's experiments and check its claims.

    Finished trials are kept in the directory: after Ctrl-C the same command goes on from there.
    """
    from rich.console import Console

    from bpsearch.report.packages import require_report

    require_report()
    from bpsearch.paper.reproduce import EXPERIMENTS, GROUPS, names_of, progress_display
    from bpsearch.paper.reproduce import reproduce as run

    names = names_of(experiment)
    prepare_jax(tables=set(names) <= set(GROUPS["tabular"]))
    try:
        with progress_display(quiet=as_json or not sys.stderr.isatty()) as progress:
            claims = run(names, trials=trials, seed=seed, out=out, progress=progress)
    except KeyboardInterrupt:
        typer.echo(f"bpsearch: stopped; finished trials are in {out / 'trials'}, the same command goes on", err=True)
        sys.exit(130)
    if as_json:
        print_json({name: [claim.to_json() for claim in found] for name, found in claims.items()})
        return
    console = Console(width=None if sys.stdout.isatty() else 120)
    for name, found in claims.items():
        console.print(claims_table(EXPERIMENTS[name](trials, seed).title, found))
    console.print(f"Figures, CSV files and claims.json: {out}")


def claims_table(title: str, claims: "list[Claim]") -> "Table":
    """The claims of one experiment, for the terminal."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("claim", "paper", "ours", "95% interval", "optimum", "p", "verdict"):
        table.add_column(column, justify="left" if column in ("claim", "verdict") else "right", overflow="fold")
    for claim in claims:
        table.add_row(claim.name, *claim.numbers(), str(claim.verdict))
    return table


@app.command(epilog="Example: bpsearch train gridworld-early --out policies")
def train(
    name: Annotated[
        str,
        typer.Argument(help="gridworld-early, gridworld-converged, stochastic-gridworld, cartpole-swingup, acrobot."),
    ],
    out: Out = Path("policies"),
) -> None:
    """Train one of the evaluation policies that come with the package again, by REINFORCE or TRPO."""
    from bpsearch.paper.training import train_policy

    typer.echo(f"wrote {train_policy(name, out)}")


def main() -> None:
    """Run the command; what goes wrong gives one clear line, and the traceback only with --debug."""
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except typer.Abort:
        typer.echo("bpsearch: stopped", err=True)
        sys.exit(130)
    except Exception as error:
        usage = _usage(error)
        if usage is None and _settings["debug"]:
            raise
        mistake = usage is not None or isinstance(error, BPSearchError | OSError)  # of the call, or its files
        # Messages that quote another library's may have several lines.
        text = printable(" ".join((usage or str(error)).split()))
        if not mistake:
            text = f"failed by {type(error).__name__}: {text} (bpsearch --debug ... shows where)"
        typer.echo(f"bpsearch: {text}", err=True)
        sys.exit(2 if mistake else 1)


def _usage(error: Exception) -> str | None:
    """What is wrong with the options, in Typer's words, and where to read of them; None for other errors."""
    if not isinstance(error, _USAGE):
        return None
    known: Any = error
    if type(error).__name__ == "NoArgsIsHelpError":  # not a mistake: a command without arguments shows its help
        known.show()
        sys.exit(known.exit_code)
    command = "bpsearch" if known.ctx is None else known.ctx.command_path
    return f"{known.format_message().rstrip('.')}; see {command} --help"
