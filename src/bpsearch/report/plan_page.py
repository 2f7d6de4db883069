"""The page about a plan: where the variance comes from, and what each tool would save."""

import math

from bpsearch.inference.pilot import Plan
from bpsearch.inference.quantity import Quantity
from bpsearch.report.figures import Drawing
from bpsearch.report.layout import render_page
from bpsearch.report.numbers import significant
from bpsearch.report.plots import COLORS, figure, inline_svg

NAMES = {"starts": "starts", "actions": "actions", "rest": "the rest"}
HUES = {"starts": COLORS["blue"], "actions": COLORS["orange"], "rest": COLORS["gray"]}
_WIDTH, _HEIGHT = 5.2, 2.4


def render(plan: Plan) -> str:
    """The page of a `Plan`, as HTML."""
    return render_page(
        "plan.html",
        plan=plan,
        numbers=_numbers(plan),
        figures=draw_figures(plan),
        settings=plan.settings,
        repeat="",
    )


def draw_figures(plan: Plan) -> list[Drawing]:
    """Those that have something to show."""
    return [_shares(plan), _left(plan)] if plan.sources else []


def _shares(plan: Plan) -> Drawing:
    title = "Where the variance of a return comes from"
    with figure(1, 1, width=_WIDTH, height=_HEIGHT) as (drawing, axes):
        panel = axes[0, 0]
        for row, source in enumerate(reversed(plan.sources)):
            panel.barh(row, 100.0 * source.share.estimate, color=HUES[source.name], height=0.6)
            _whisker(panel, row, source.share, 100.0)
        panel.set_yticks(range(len(plan.sources)), [NAMES[source.name] for source in reversed(plan.sources)])
        panel.set(xlabel="percent of the variance", xlim=(0.0, 100.0))
        panel.grid(visible=False, axis="y")
        svg = inline_svg(drawing, title)
    text = (
        "Starts as far as the pilot has learned what they explain; actions as the policy draws them; the rest is noise "
        "of the environment, and what of the starts was not learned. Lines are confidence intervals."
    )
    return Drawing(title, text, svg)


def _left(plan: Plan) -> Drawing:
    """What is left of Monte Carlo's variance with each tool alone, and with all of them."""
    title = "What each tool leaves of it"
    tools = [("Monte Carlo", Quantity(1.0, None, None), COLORS["vermilion"])]
    tools += [
        (f"{source.tool} alone", _inverse(source.savings), HUES[source.name])
        for source in plan.sources
        if source.savings is not None
    ]
    if plan.savings is not None:
        tools.append(("all of auto", _inverse(plan.savings), COLORS["green"]))
    with figure(1, 1, width=_WIDTH, height=_HEIGHT) as (drawing, axes):
        panel = axes[0, 0]
        for row, (_, left, color) in enumerate(reversed(tools)):
            panel.barh(row, left.estimate, color=color, height=0.6)
            _whisker(panel, row, left, 1.0)
        panel.set_yticks(range(len(tools)), [name for name, _, _ in reversed(tools)])
        panel.set(xlabel="variance of an episode, relative to Monte Carlo's", xlim=(0.0, None))
        panel.grid(visible=False, axis="y")
        svg = inline_svg(drawing, title)
    text = (
        f"Half of the variance needs half of the episodes. Learned from the {plan.pilot} episodes of the pilot; more "
        f"episodes teach more."
    )
    return Drawing(title, text, svg)


def _inverse(savings: Quantity) -> Quantity:
    if savings.low is None or savings.high is None:
        return Quantity(1.0 / savings.estimate, None, None)
    return Quantity(1.0 / savings.estimate, 1.0 / savings.high, 1.0 / savings.low)


def _whisker(panel: object, row: int, share: Quantity, unit: float) -> None:
    if share.low is not None and share.high is not None:
        panel.plot(  # type: ignore[attr-defined]
            [unit * share.low, unit * share.high], [row, row], color=COLORS["vermilion"], linewidth=1.5
        )


def _numbers(plan: Plan) -> dict[str, str]:
    found = {
        "expected return, about": significant(plan.value),
        "standard error": significant(plan.std_error, 2),
        "deviation of an episode": significant(math.sqrt(plan.variance)),
    }
    for name, quantity in (
        ("savings to expect of auto", plan.savings),
        ("episodes of Monte Carlo", plan.monte_carlo_episodes),
        ("episodes of auto", plan.auto_episodes),
    ):
        if quantity is not None:
            found[name] = significant(quantity.estimate)
    return found
