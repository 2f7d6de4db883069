"""Every kind of agent in the table of docs/agents.md, run for real: our value beside that of the agent's own library.

    python -m benchmarks.agents_table --out docs/agents.md
    python -m benchmarks.agents_table --row "SB3 PPO, LunarLander-v3"

Agents are trained for seconds and kept in `--cache`, and so is the result of each row: the command goes on where it was
stopped. A row whose package is missing says so. Both sides load nothing in the time that is shown, which is that of one
core (`time.process_time`): other work on the computer does not count.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import bpsearch as bps
from benchmarks.agents_cases import ROWS, Row

EPISODES = 100
FEWEST, MOST, SECONDS = 200, 2_000, 10.0  # of the reference: episodes, and seconds that it should take


def measure(row: Row, folder: Path) -> dict[str, Any]:
    """Our estimate, the other library's returns, and the seconds of both; each side runs a few episodes before.

    The number of reference episodes follows from the time of the first few, which are not counted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    agent, env, loop = row.make(folder)
    loop(2)
    start = time.process_time()
    loop(16)
    reference = int(np.clip(SECONDS * 16 / (time.process_time() - start), FEWEST, MOST))
    bps.evaluate(agent, env, 20, seed=0, deterministic=row.deterministic)
    start = time.process_time()
    result = bps.evaluate(agent, env, EPISODES, seed=1, deterministic=row.deterministic)
    ours = time.process_time() - start
    start = time.process_time()
    returns = loop(reference)
    theirs = (time.process_time() - start) * EPISODES / reference
    half = None if result.error is None else result.error.half_width(0.95)
    tight = None if result.tight_error is None else result.tight_error.std_error
    reference_error = returns.std(ddof=1) / np.sqrt(reference)
    error, gap = np.hypot(tight or 0.0, reference_error), result.value - returns.mean()
    return {
        "value": result.value,
        "half": half,
        "reference": float(returns.mean()),
        "reference_half": float(1.96 * reference_error),
        "reference_episodes": reference,
        "z": float(gap / error) if error > 0.0 else 0.0 if gap == 0.0 else float("inf"),
        "seconds": ours,
        "reference_seconds": theirs,
        "savings": result.savings,
        "tight_savings": result.tight_savings,
        "method": result.method,
    }


def table(found: dict[str, Any]) -> Iterator[str]:
    yield "| case | method | value, ± 95% | its library, ± 95% | z | seconds | its library | savings |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in ROWS:
        cells = found.get(row.name)
        if cells is None:
            yield f"| {row.name} | not run | | | | | | |"
        elif "missing" in cells:
            yield f"| {row.name} | skipped: {cells['missing']} | | | | | | |"
        else:
            yield _line(row.name, cells)


def _line(name: str, cells: dict[str, Any]) -> str:
    def shown(value: float, half: float | None) -> str:
        if not half:
            return f"{value:.4g}"
        digits = max(0, 1 - int(np.floor(np.log10(half))))
        return f"{value:.{digits}f} ± {half:.2g}"

    def seconds(value: float) -> str:
        return f"{value:.0f}" if value >= 10.0 else f"{value:.2g}"

    saved = "" if cells["tight_savings"] is None else f"{cells['tight_savings']:.2f}"
    ours, theirs = shown(cells["value"], cells["half"]), shown(cells["reference"], cells["reference_half"])
    return (
        f"| {name} | {cells['method']} | {ours} | {theirs} | {cells['z']:.1f} | "
        f"{seconds(cells['seconds'])} | {seconds(cells['reference_seconds'])} | {saved} |"
    )


def write(page: Path, found: dict[str, Any]) -> None:
    """Put the table between the page's marks."""
    begin, end = "<!-- table: benchmarks/agents_table.py -->", "<!-- end of table -->"
    text = page.read_text(encoding="utf-8")
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    page.write_text(f"{head}{begin}\n\n" + "\n".join(table(found)) + f"\n\n{end}{tail}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", help="only rows with this text in their names")
    parser.add_argument("--cache", type=Path, default=Path("runs/agents"), help="trained agents and results")
    parser.add_argument("--out", type=Path, help="the page whose table is replaced")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for row in ROWS:
        folder = options.cache / row.name.replace(" ", "-").replace(",", "").replace("/", "-")
        result = folder / "result.json"
        wanted = options.row is None or any(text in row.name for text in options.row)
        if wanted and not result.exists():
            try:
                cells = measure(row, folder)
                result.write_text(json.dumps(cells))
            except (ModuleNotFoundError, gymnasium.error.DependencyNotInstalled) as error:
                found[row.name] = {"missing": str(error)}
        if result.exists():
            found[row.name] = json.loads(result.read_text())
            print(_line(row.name, found[row.name]), flush=True)
    if options.out is not None:
        write(options.out, found)


if __name__ == "__main__":
    main()
