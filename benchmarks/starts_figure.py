"""When starts matter: where the variance of returns comes from, task by task, as `plan` tells it.

python -m benchmarks.starts_figure --pilot 400 --out docs/starts
"""

import argparse
from pathlib import Path

import bpsearch as bps
from benchmarks.evaluators.tasks import TASKS
from benchmarks.starts import CONTROLLERS, MODE, find_task
from bpsearch.inference.pilot import Plan
from bpsearch.report.plots import COLORS, figure, save

NAMES = (
    "acrobot",
    "cartpole-swingup",
    "pendulum-v1-trained",
    f"pendulum-v1-trained{MODE}",
    "Reacher-v5",
    "Pusher-v5",
    "InvertedPendulum-v5",
    "acrobot-v1-trained",
    "cartpole-v1-half",
)
HUES = {"starts": COLORS["blue"], "actions": COLORS["orange"], "rest": COLORS["gray"]}


def draw(plans: dict[str, Plan], out: Path) -> list[Path]:
    """A bar for each task, of three parts; beside it what is left of Monte Carlo's variance with the default."""
    with figure(1, 2, width=9.2, height=0.38 * len(plans) + 1.2) as (drawing, axes):
        shares, left = axes[0]
        for row, (_, plan) in enumerate(reversed(plans.items())):
            begin = 0.0
            for source in plan.sources:
                shares.barh(row, source.share.estimate, left=begin, color=HUES[source.name], height=0.7)
                begin += source.share.estimate
            if plan.savings is not None:
                left.barh(row, 1.0 / plan.savings.estimate, color=COLORS["green"], height=0.7)
        shares.set_yticks(range(len(plans)), list(reversed(plans)))
        left.set_yticks(range(len(plans)), [""] * len(plans))
        shares.set(title="Share of the variance of a return", xlim=(0.0, 1.0))
        left.set(title="What auto leaves of the variance", xlim=(0.0, 1.1))
        for panel in (shares, left):
            panel.grid(visible=False, axis="y")
        left.axvline(1.0, color=COLORS["vermilion"], linestyle="--", linewidth=1.0)
        handles = [shares.barh([0], [0], color=hue) for hue in HUES.values()]
        labels = ["starts, as far as learned", "actions", "the rest"]
        drawing.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        return save(drawing, out, "sources")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pilot", type=int, default=400)
    parser.add_argument("--tasks", nargs="+", default=NAMES, help=f"of {', '.join([*TASKS, *CONTROLLERS])}")
    parser.add_argument("--out", type=Path, default=Path("docs/starts"))
    options = parser.parse_args()
    plans = {}
    for name in options.tasks:
        title, env, policy, _ = find_task(name)
        plans[title] = bps.plan(policy, env, options.pilot, seed=0)
        parts = ", ".join(f"{source.name} {source.share.text('{:.0%}'.format)}" for source in plans[title].sources)
        print(f"{title}: {parts}", flush=True)
    print(*draw(plans, options.out), sep="\n")


if __name__ == "__main__":
    main()
