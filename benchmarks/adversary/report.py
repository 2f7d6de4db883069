"""The results as CSV and as Markdown: tables by family and number of episodes, and the worst cases."""

import csv
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.adversary.families import FAMILIES
from benchmarks.adversary.measure import Cell
from benchmarks.adversary.run import Result
from benchmarks.adversary.verdicts import (
    COVERAGE,
    PLAIN_COVERAGE,
    SAVINGS_FACTOR,
    WORST_RATIO,
    coverage_excess,
    highest_coverage,
    is_below_plain,
    is_biased,
    is_comparable,
    is_worse,
    misses,
    misstates,
    overstatement,
    promised_coverage,
    states_savings,
)

WORST = 10  # cases in each list
FEW = 10  # tasks of which each is shown
Case = tuple[Result, Cell]
EXPLANATION = (
    "Ratios are mean squared errors relative to Monte Carlo's. The worst is the one that is largest with noise taken "
    "off. Coverages are the lowest where Monte Carlo's interval holds. Widths are relative to Monte Carlo's. Reported "
    "savings have room for events that no episode has shown, tight ones have not; realised ones should lie between "
    "them. Savings that are off are relative to realised ones."
)


def write(results: Sequence[Result], directory: Path) -> str:
    """Write adversary.csv and adversary.md, and give the text of the latter."""
    directory.mkdir(parents=True, exist_ok=True)
    write_csv(results, directory / "adversary.csv")
    text = markdown(results)
    (directory / "adversary.md").write_text(text)
    return text


def write_csv(results: Iterable[Result], path: Path) -> None:
    """One row for each cell, six digits."""
    rows = []
    for result in results:
        of_task = {name: value for name, value in asdict(result).items() if name != "cells"}
        of_task["parameters"] = json.dumps(result.parameters)
        rows += [{**of_task, **asdict(cell), "realised": cell.realised} for cell in result.cells]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})


def markdown(results: Sequence[Result]) -> str:
    """The verdict, the tables, the worst cases."""
    cases = [(result, cell) for result in results for cell in result.cells]
    sizes = sorted({cell.episodes for _, cell in cases})
    any_below = any(is_below_plain(cell) for _, cell in cases)
    parts = [verdict(cases), EXPLANATION]
    parts += [f"### Every task\n\n{task_table(results, sizes)}"] if len(results) <= FEW else []
    parts += [f"### {size} episodes\n\n{family_table(_of_size(cases, size))}" for size in sizes]
    parts += [
        f"### The ten largest ratios\n\n{worst_ratios(cases)}",
        f"### The ten lowest coverages where Monte Carlo's is {PLAIN_COVERAGE:.0%} or more\n\n{worst_coverages(cases)}",
        *([f"### Where Monte Carlo's interval holds more often\n\n{below_plain(cases)}"] if any_below else []),
        f"### The ten savings that are off most\n\n{worst_savings(cases)}",
    ]
    return "\n\n".join(parts) + "\n"


def verdict(cases: Sequence[Case]) -> str:
    """Whether the method keeps what it promises."""
    cells = [cell for _, cell in cases]
    tasks = {(result.family, result.number) for result, _ in cases}
    comparable = [cell for cell in cells if is_comparable(cell) and promised_coverage(cell) > 0.0]
    trusted = [cell for cell in cells if is_comparable(cell)]
    failing = [cell for cell in cells if cell.failed]
    limits = ", ".join(f"{limit:.0%} from {least} episodes on" for least, limit in sorted(COVERAGE.items()))
    found = {
        f"Ratio above {WORST_RATIO:g}": (sum(map(is_worse, cells)), len(cells)),
        f"Coverage below its limit ({limits}), where Monte Carlo's is {PLAIN_COVERAGE:.0%} or more": (
            sum(map(misses, comparable)),
            len(comparable),
        ),
        "Coverage below Monte Carlo's own, which may itself be far too low": (
            sum(map(is_below_plain, cells)),
            sum(promised_coverage(cell) > 0.0 for cell in cells),
        ),
        f"Savings off by more than a factor of {SAVINGS_FACTOR:g}": (sum(map(misstates, cells)), len(cells)),
        "The same where Monte Carlo's interval holds, so that its own variance is known": (
            sum(map(misstates, trusted)),
            len(trusted),
        ),
        "Biased": (sum(map(is_biased, cells)), len(cells)),
        f"No answer, but an error{_first_message(failing)}": (len(failing), len(cells)),
        "Too few studies to show what makes the variance; the ratio is 1 plus what differs from Monte Carlo": (
            sum(not cell.resolved for cell in cells),
            len(cells),
        ),
    }
    lines = [f"- {what}: {count} of {total} cells." for what, (count, total) in found.items()]
    return "\n".join([f"{len(tasks)} tasks; a cell is a task with a number of episodes. Beyond noise:", "", *lines])


def family_table(cases: Sequence[Case]) -> str:
    """One row for each family."""
    heads = ["family", "tasks", "ratio, median", "worst", f"> {WORST_RATIO:g}", "coverage, worst (MC's)", "too low"]
    heads += [
        "width, median",
        "widest",
        "savings reported, median",
        "tight",
        "realised",
        "off most",
        "off",
        "failed",
        "unresolved",
    ]
    rows = []
    for family in FAMILIES:
        own = [case for case in cases if case[0].family == family]
        if own:
            rows.append([family, str(len(own)), *_family_cells([cell for _, cell in own])])
    return table(heads, rows)


def task_table(results: Sequence[Result], sizes: Sequence[int]) -> str:
    """One row for each task: of each number of episodes the ratio, the coverage and Monte Carlo's."""
    rows = []
    for result in results:
        cells = [
            f"{cell.ratio:.3g} ± {cell.ratio_error:.1g}, {cell.coverage:.1%} ({cell.plain_coverage:.1%})"
            for cell in result.cells
        ]
        rows.append([result.family, str(result.number), *cells, parameters_text(result.parameters)])
    return table(
        ["family", "task", *(f"{size} episodes: ratio, coverage (MC's)" for size in sizes), "parameters"], rows
    )


def _family_cells(cells: Sequence[Cell]) -> list[str]:
    answered = [cell for cell in cells if cell.failed < cell.studies]
    failed, unresolved = (str(sum(kind)) for kind in ([bool(c.failed) for c in cells], [not c.resolved for c in cells]))
    if not answered:
        return ["–"] * 12 + [failed, unresolved]
    worst = max(answered, key=lambda cell: cell.ratio_low)
    comparable = [cell for cell in answered if is_comparable(cell)]
    stated = [cell for cell in answered if states_savings(cell)]
    coverage = "–"
    if comparable:
        lowest = min(comparable, key=lambda cell: cell.coverage)
        coverage = f"{lowest.coverage:.0%} ({lowest.plain_coverage:.0%})"
    savings = ["–"] * 4
    if stated:
        off = max(stated, key=lambda cell: abs(_log(overstatement(cell))))
        said = [[getattr(cell, name) for cell in stated] for name in ("reported", "tight", "realised")]
        savings = [*(_median_text(numbers) for numbers in said), f"x {overstatement(off):.2g}"]
    return [
        f"{np.median([cell.ratio for cell in answered]):.3g}",
        f"{worst.ratio:.3g} ± {worst.ratio_error:.1g}",
        str(sum(map(is_worse, answered))),
        coverage,
        str(sum(map(misses, answered))),
        f"{np.median([cell.width for cell in answered]):.2g}",
        f"{max(cell.width for cell in answered):.2g}",
        *savings,
        str(sum(map(misstates, answered))),
        failed,
        unresolved,
    ]


def worst_ratios(cases: Sequence[Case]) -> str:
    """The cells whose ratio is at least the largest, noise taken off."""
    answered = [case for case in cases if case[1].failed < case[1].studies]
    # Right answers where there is no variance have a ratio of 1, and nobody asks for them.
    worst = _worst(
        [case for case in answered if case[1].tail > 0.0 or case[1].ratio > 1.0], lambda cell: cell.ratio_low
    )
    return _cases(
        worst,
        ["ratio", "at least"],
        lambda cell: [f"{cell.ratio:.3g} ± {cell.ratio_error:.1g}", f"{cell.ratio_low:.3g}"],
    )


def worst_coverages(cases: Sequence[Case]) -> str:
    """The cells whose coverage is at most the lowest, beside what is promised."""
    promised = [case for case in cases if is_comparable(case[1]) and promised_coverage(case[1]) > 0.0]
    worst = _worst(promised, lambda cell: promised_coverage(cell) - highest_coverage(cell))
    return _coverages(worst)


def below_plain(cases: Sequence[Case]) -> str:
    """The cells whose coverage is furthest below Monte Carlo's own, beyond noise."""
    return _coverages(_worst([case for case in cases if is_below_plain(case[1])], coverage_excess))


def worst_savings(cases: Sequence[Case]) -> str:
    """The cells whose realised savings are furthest outside of the stated ones."""
    stated = [case for case in cases if states_savings(case[1])]
    worst = _worst(stated, lambda cell: abs(_log(overstatement(cell))))
    return _cases(
        worst,
        ["reported", "tight", "realised"],
        lambda cell: [f"{number:.3g}" for number in (cell.reported, cell.tight, cell.realised)],
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def parameters_text(parameters: dict[str, float]) -> str:
    """As `build` takes them, so that a case can be copied from the page."""
    return f"`{json.dumps(parameters)}`"


def _worst(cases: Sequence[Case], badness: Callable[[Cell], float]) -> list[Case]:
    return sorted(cases, key=lambda case: -badness(case[1]))[:WORST]


def _cases(cases: Sequence[Case], heads: Sequence[str], texts: Callable[[Cell], list[str]]) -> str:
    rows = [
        [result.family, str(result.number), str(cell.episodes), *texts(cell), parameters_text(result.parameters)]
        for result, cell in cases
    ]
    return table(["family", "task", "episodes", *heads, "parameters"], rows)


def _coverages(cases: Sequence[Case]) -> str:
    return _cases(cases, ["coverage", "MC's"], lambda cell: [f"{cell.coverage:.1%}", f"{cell.plain_coverage:.1%}"])


def _of_size(cases: Sequence[Case], size: int) -> list[Case]:
    return [case for case in cases if case[1].episodes == size]


def _median_text(numbers: Sequence[float]) -> str:
    known = [number for number in numbers if not math.isnan(number)]
    return f"{np.median(known):.3g}" if known else "–"


def _first_message(failing: Sequence[Cell]) -> str:
    return f' ("{failing[0].message}")' if failing else ""


def _log(factor: float) -> float:
    """The logarithm; of what is not positive, which noise can make it, that of very little."""
    return math.log(max(factor, 1e-12))
