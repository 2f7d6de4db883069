"""The methods side by side on the adversary's families, on the tasks that all of them have.

for method in auto bpg as dr-bpg; do
    python -m benchmarks.adversary --method $method --tasks 42 --studies 40 --episodes 300 --out DIR
done
python -m benchmarks.adversary.beside DIR --episodes 300
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.adversary.families import FAMILIES
from benchmarks.adversary.methods import METHODS
from benchmarks.adversary.report import table
from benchmarks.adversary.run import Result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where the results of the methods are kept")
    parser.add_argument("--episodes", type=int, default=300)
    options = parser.parse_args()
    print(side_by_side(load(options.out), options.episodes))


def load(folder: Path) -> dict[str, list[Result]]:
    """The results of each method that has some there."""
    return {
        method: [Result.from_json(path.read_text()) for path in sorted((folder / "tasks" / method).glob("*.json"))]
        for method in METHODS
        if (folder / "tasks" / method).is_dir()
    }


def side_by_side(results: Mapping[str, Sequence[Result]], episodes: int) -> str:
    """For each family and method the median ratio over tasks, and the largest if it is above 1.05 beyond noise."""
    shared = set.intersection(*({(result.family, result.number) for result in found} for found in results.values()))
    rows = []
    for family in FAMILIES:
        numbers = {number for name, number in shared if name == family}
        row = [family, str(len(numbers))]
        for found in results.values():
            own = [result for result in found if result.family == family and result.number in numbers]
            cells = [c for result in own for c in result.cells if c.episodes == episodes and c.failed < c.studies]
            row.append(_text([(c.ratio, c.ratio_low) for c in cells]))
        rows.append(row)
    return table(["family", "tasks", *results], rows)


def _text(ratios: Sequence[tuple[float, float]]) -> str:
    if not ratios:
        return "–"
    median, worst = np.median([ratio for ratio, _ in ratios]), max(ratios, key=lambda found: found[1])
    return f"{median:.2g}" + (f" (up to {worst[0]:.2g})" if worst[1] > 1.05 else "")


if __name__ == "__main__":
    main()
