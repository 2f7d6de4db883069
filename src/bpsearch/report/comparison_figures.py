"""The figures of a comparison, as SVG for its page."""

import math
from collections.abc import Sequence

import numpy as np

from bpsearch.inference.comparison import Comparison, Difference
from bpsearch.inference.difference import Decision
from bpsearch.report.figures import Drawing
from bpsearch.report.plots import COLORS, band, figure, inline_svg

MOST_DOTS = 800  # in a picture; more are thinned out
MOST_PAIRS = 3  # differences that get pictures of their own: those that took longest
_WIDTH, _HEIGHT = 5.2, 3.2
_MARKS = {
    Decision.BETTER: COLORS["green"],
    Decision.WORSE: COLORS["vermilion"],
    Decision.EQUIVALENT: COLORS["purple"],
    Decision.UNDECIDED: COLORS["gray"],
}


def draw_figures(comparison: Comparison) -> list[Drawing]:
    """All differences beside each other if there are several; of the longest, how each settled; of one, its pairs."""
    many = len(comparison.differences) > 1
    # Of several, one that took a single round has nothing to settle.
    longest = sorted(comparison.differences, key=lambda found: -len(found.course))[:MOST_PAIRS]
    shown = [found for found in longest if len(found.course) > 1] if many else longest
    drawings = [_forest(comparison)] if many else []
    for found in shown:
        drawings.append(_settling(comparison, found))
        if not many and comparison.counts_failures:
            # Episodes of other behaviors are no picture of the policies.
            drawings += [_failures(found)] if math.isfinite(found.sequence.plain_variance) else []
        elif not many:
            drawings.append(_pairs(comparison, found))
    # The width of a certified interval is another: no control variate makes it narrower.
    saves = not many and comparison.design.kind == "asymptotic"
    saved = [_draw_savings(found) for found in shown if saves and found.savings is not None]
    return drawings + saved


def _settling(comparison: Comparison, found: Difference) -> Drawing:
    known = [point for point in found.course if math.isfinite(point.half_width)]
    pairs = np.array([point.pairs for point in known])
    means, halves = (np.array([getattr(point, name) for point in known]) for name in ("mean", "half_width"))
    title = f"{found.one} − {found.other}, as it settled"
    margin = comparison.design.margin
    with figure(1, 1, width=_WIDTH, height=_HEIGHT) as (drawing, axes):
        panel = axes[0, 0]
        panel.axhline(0.0, color=COLORS["gray"], linewidth=1.0)
        if margin is not None:
            for end, label in ((-margin, None), (margin, "margin")):
                panel.axhline(end, color=COLORS["purple"], linestyle=":", label=label)
        panel.plot(pairs, means, color=COLORS["blue"], marker="o", markersize=2.5, label="difference")
        band(panel, pairs, means - halves, means + halves, COLORS["blue"])
        if len(known) == 1:  # a band has no width
            panel.errorbar(pairs, means, halves, color=COLORS["blue"], capsize=4)
            panel.set_xlim(0.0, 2.0 * pairs[0])
        if found.decided_at is not None:
            panel.axvline(found.decided_at, color=COLORS["orange"], linestyle="--", label=f"verdict: {found.decision}")
        panel.set(xlabel="episodes of each", ylabel="difference")
        # The first intervals may be so wide that nothing else could be seen.
        if len(known) > 1:
            reach = 3.0 * float(np.median(halves)) + float(np.abs(means - means[-1]).max())
            low, high = panel.get_ylim()
            panel.set_ylim(max(low, means[-1] - reach), min(high, means[-1] + reach))
        panel.legend(fontsize=8)
        svg = inline_svg(drawing, title)
    text = "After each round, with the interval that holds at all rounds at once. The verdict comes when it leaves 0"
    return Drawing(title, f"{text}{'.' if margin is None else ', or lies within the margin.'}", svg)


def _pairs(comparison: Comparison, found: Difference) -> Drawing:
    step = -(-len(found.pairs) // MOST_DOTS)
    dots, shared = found.pairs[::step], found.shared[::step]
    title = "Pairs of episodes"
    with figure(1, 1, width=_WIDTH, height=_HEIGHT) as (drawing, axes):
        panel = axes[0, 0]
        low, high = float(dots.min()), float(dots.max())
        panel.plot([low, high], [low, high], color=COLORS["gray"], linewidth=1.0, label="as good")
        for which, color, label in ((shared, "blue", "same start"), (~shared, "orange", "starts of their own")):
            if which.any():
                panel.scatter(
                    dots[which, 1], dots[which, 0], s=7, alpha=0.5, color=COLORS[color], label=label, linewidths=0
                )
        panel.set(xlabel=f"return of {found.other}", ylabel=f"return of {found.one}")
        panel.legend(fontsize=8)
        svg = inline_svg(drawing, title)
    side = "Below" if comparison.design.lower_is_better else "Above"
    text = f"{side} the line {found.one} did better. The closer the dots follow a line, the more the same starts save."
    return Drawing(title, text, svg)


def _failures(found: Difference) -> Drawing:
    title, (one, other) = "Pairs of episodes", (found.pairs != 0.0).T
    counts = {
        "both fail": one & other,
        f"only {found.one} fails": one & ~other,
        f"only {found.other} fails": ~one & other,
        "neither fails": ~one & ~other,
    }
    lengths = [int(which.sum()) for which in counts.values()]
    svg = _bars(title, list(counts), lengths, [str(length) for length in lengths], "pairs of episodes")
    return Drawing(title, "The pairs in which only one fails make the difference.", svg)


def _draw_savings(found: Difference) -> Drawing:
    sequence = found.sequence
    rows = {
        "Monte Carlo, each for itself": sequence.plain_variance,
        "with control variates": sequence.unpaired_variance,
        "with the same starts, too": sequence.difference.reduced,
        "with room for unseen events": sequence.variance,
    }
    shares = [value / sequence.plain_variance for value in rows.values()]
    texts = [f"{share:.2g}" if share < 0.995 else "1" for share in shares]
    title = "What was saved"
    svg = _bars(title, list(rows), shares, texts, "variance of the difference, relative to Monte Carlo's")
    return Drawing(title, "As many episodes are needed as the bar is long. The interval has the last one's width.", svg)


def _bars(title: str, names: list[str], lengths: Sequence[float], texts: list[str], label: str) -> str:
    """One below the other, each with its text."""
    with figure(1, 1, width=_WIDTH, height=_HEIGHT - 0.8) as (drawing, axes):
        panel = axes[0, 0]
        places = np.arange(len(names))[::-1]
        colors = [COLORS[name] for name in ("vermilion", "sky", "blue", "gray")]
        panel.barh(places, lengths, color=colors, height=0.6)
        for at, length, text in zip(places, lengths, texts, strict=True):
            inside = length > 0.85 * max(lengths)
            panel.annotate(
                text,
                (length, at),
                xytext=(-4 if inside else 4, 0),
                textcoords="offset points",
                va="center",
                ha="right" if inside else "left",
                fontsize=8,
                color="white" if inside else "#010203",
            )
        panel.set_yticks(places, names)
        panel.set(xlabel=label)
        panel.grid(axis="y", visible=False)
        return inline_svg(drawing, title)


def _forest(comparison: Comparison) -> Drawing:
    title = "All differences"
    found = comparison.differences
    with figure(1, 1, width=_WIDTH, height=max(_HEIGHT, 0.6 + 0.28 * len(found))) as (drawing, axes):
        panel = axes[0, 0]
        panel.axvline(0.0, color=COLORS["gray"], linewidth=1.0)
        if comparison.design.margin is not None:
            for end in (-comparison.design.margin, comparison.design.margin):
                panel.axvline(end, color=COLORS["purple"], linestyle=":")
        places = np.arange(len(found))[::-1]
        named: set[Decision] = set()
        for at, difference in zip(places, found, strict=True):
            color = _MARKS[difference.decision]
            interval = difference.interval(comparison.design.level)
            if interval is not None:
                panel.plot(interval, [at, at], color=color, linewidth=2.0)
            label = None if difference.decision in named else str(difference.decision)
            named.add(difference.decision)
            panel.plot([difference.value], [at], "o", color=color, markersize=4, label=label)
        panel.set_yticks(places, [f"{d.one} − {d.other}" for d in found])
        panel.set(xlabel="difference")
        panel.grid(axis="y", visible=False)
        panel.legend(fontsize=8)
        svg = inline_svg(drawing, title)
    level = f"{100.0 * comparison.design.level:g}%"
    return Drawing(title, f"Each with its anytime-valid interval; with {level} all of them hold at once.", svg)
