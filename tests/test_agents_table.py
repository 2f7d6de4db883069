"""The table of docs/agents.md is what its command has found."""

from pathlib import Path

import pytest

from benchmarks.agents_cases import ROWS

PAGE = (Path(__file__).parents[1] / "docs" / "agents.md").read_text(encoding="utf-8")
TASKS = ["LunarLander", "Hopper", "HalfCheetah", "Reacher", "InvertedPendulum", "MiniGrid", "Breakout"]
TASKS += ["Taxi", "FrozenLake", "CliffWalking"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_was_run(row) -> None:
    """No value is 4 standard errors off: of 29 rows that happens by chance once in 500 tables."""
    lines = [line for line in PAGE.splitlines() if line.startswith(f"| {row.name} |")]
    assert len(lines) == 1
    cells = [cell.strip() for cell in lines[0].strip("|").split("|")]
    assert len(cells) == 8
    assert abs(float(cells[4])) < 4.0


def test_the_table_has_the_tasks_that_people_know() -> None:
    for task in TASKS:
        assert any(task in row.name for row in ROWS), task
