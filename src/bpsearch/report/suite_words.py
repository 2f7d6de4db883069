"""What a suite says: a table of tasks, and the mean with both of its intervals."""

from bpsearch.inference.suite import Suite
from bpsearch.report.numbers import brackets, round_to, significant, spread


def describe(suite: Suite) -> str:
    """What `print` shows."""
    rows: list[tuple[str, ...]] = [("task", "score", "value", "95% interval", "episodes", "savings")]
    for name, estimate in suite.estimates.items():
        interval = estimate.interval()
        rows.append(
            (
                name,
                significant(suite.scores[name]),
                round_to(estimate.value, spread(interval, estimate.value)),
                brackets(interval, estimate.value),
                str(estimate.episodes),
                significant(estimate.savings),
            )
        )
    if not suite.scales:
        rows = [(row[0], *row[2:]) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    mean, these, like = suite.mean, suite.interval(), suite.clustered_interval()
    lines.append(f"mean {round_to(mean, spread(these, mean))}, 95% interval {brackets(these, mean)} for these tasks")
    if like is not None:
        lines.append(f"95% interval {brackets(like, mean)} for other tasks like these (clustered by task)")
    return "\n".join(lines)
