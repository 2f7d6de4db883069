"""The docs pages say what their runs have found."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bpsearch as bps
from benchmarks.comparisons.tasks import UNSEEN
from benchmarks.coverage_studies.__main__ import GROUPS
from benchmarks.coverage_studies.__main__ import table as coverage_table
from benchmarks.evaluators.beside import beside
from benchmarks.evaluators.table import markdown, read_csv
from benchmarks.evaluators.tasks import TASKS, references
from bpsearch.paper.reproduce import EXPERIMENTS
from bpsearch.report import words

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGE = (DOCS / "paper.md").read_text()


def table(name: str) -> list[dict[str, str]]:
    with (DOCS / "paper" / name).open() as file:
        return list(csv.DictReader(file))


def rows_that_start(start: str) -> list[str]:
    return [row for row in PAGE.splitlines() if row.startswith(start)]


def test_the_page_has_every_claim_of_its_run_with_its_verdict():
    experiments = json.loads((DOCS / "paper" / "claims.json").read_text())["experiments"]
    assert set(experiments) == set(EXPERIMENTS)
    for found in experiments.values():
        for claim in found:
            start = f"| {claim['text']} | {claim['measured']} |".replace("|return|", r"\|return\|")
            rows = rows_that_start(start)
            assert len(rows) == 1, claim["name"]
            assert f"**{claim['verdict']}**" in rows[0]
            assert f"| {claim['ours']:.3g} |" in rows[0]


def test_the_page_has_the_truth_of_both_continuous_tasks():
    truths = table("continuous-truth.csv")
    assert {truth["domain"] for truth in truths} == {"cartpole-swingup", "acrobot"}
    columns = ("value", "std-error", "variance", "start-state-variance", "action-noise-variance", "action-noise-share")
    for truth in truths:
        numbers = (f"{float(truth[column]):.4g}" for column in columns)
        assert rows_that_start(" | ".join((f"| {truth['domain']}", *numbers)) + " |")


@pytest.mark.parametrize(("name", "curves"), [("continuous-steps.csv", 2), ("continuous-extras-steps.csv", 8)])
def test_the_page_names_the_step_sizes_that_the_sweeps_chose(name: str, curves: int):
    chosen = [row for row in table(name) if row["chosen"] == "True"]
    assert len(chosen) == curves
    for row in chosen:
        assert row["diverged"] == "0"
        if row["method"] in ("bpg", "normalized"):
            step = f"{float(row['step']):.0e}".replace("e-0", "e-")
            task = row["domain"].removesuffix("-swingup").replace("cartpole", "cart-pole")
            assert re.search(rf"{step}\s(for|on)\s{task}", PAGE), (row["method"], step, task)


def test_links_and_figures_exist():
    targets = re.findall(r"\]\(([^)#:]+)\)", PAGE)
    assert targets
    for target in targets:
        assert (DOCS / target).exists(), target
    assert {path.name for path in (DOCS / "paper").iterdir()} == {
        Path(target).name for target in targets if target.startswith("paper/")
    }


def test_the_page_about_intervals_shows_what_its_benchmark_has_measured():
    page = (DOCS / "intervals.md").read_text()
    found = json.loads((DOCS / "intervals" / "coverage.json").read_text())
    assert found["studies"] >= 2000
    rows = {tuple(part.strip() for part in row.split("|")[1:-1]) for row in page.splitlines() if row.startswith("|")}
    for cell in found["cells"]:
        rates = tuple(f"{100 * cell[name]:.1f}" for name in ("fixed", "stopped", "always"))
        names = tuple(cell[name] for name in ("weights", "problem", "collected"))
        width = f"{cell['half_width']:.3g}"
        assert (*names, f"{cell['largest_weight']:.3g}", cell["interval"], *rates, width) in rows
        if cell["interval"] == "certified":
            assert min(cell["fixed"], cell["stopped"], cell["always"]) >= 0.95
        if cell["interval"] == "anytime-valid" and cell["weights"] != "heavy":
            assert cell["stopped"] >= 0.94
            assert cell["always"] >= 0.93


@pytest.mark.slow
def test_the_examples_about_comparing_run_one_after_the_other(tmp_path):
    page = (DOCS / "comparing.md").read_text()
    script = tmp_path / "comparing.py"
    script.write_text("\n".join(re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "new is better than old" in done.stdout
    for target in re.findall(r"\]\(([^)#:]+)\)", page):
        assert (DOCS / target).exists(), target


def test_the_page_about_comparing_shows_what_its_benchmarks_have_measured():
    page = (DOCS / "comparing.md").read_text()
    rows = {tuple(part.strip() for part in row.split("|")[1:-1]) for row in page.splitlines() if row.startswith("|")}
    measured = {
        name: json.loads((DOCS / "comparing" / f"{name}.json").read_text())
        for name in ("false", "power", "savings", "targets")
    }
    for cell in measured["false"]:
        assert cell["false"] <= 0.05 or (cell["problem"] == UNSEEN and cell["method"] != "certified")
        rate = f"{100 * cell['false']:.1f}"
        assert (cell["problem"], cell["method"], str(cell["comparisons"]), rate) in rows, cell
    for cell in measured["power"]:
        numbers = (str(cell["comparisons"]), f"{100 * cell['power']:.0f}", f"{cell['episodes']:.0f}")
        assert (cell["problem"], cell["procedure"], *numbers) in rows, cell
    for cell in measured["savings"]:
        names = ("pairing_savings", "control_savings", "tight_savings", "savings")
        pairing, *others = (f"{cell[name]:.3g}" for name in names)
        with_error = f"{pairing} ± {cell['pairing_error']:.1g}"
        assert (cell["task"], cell["policies"], cell["method"], with_error, *others) in rows, cell
        assert cell["pairing_savings"] > 0.97
    needed = {(cell["task"], cell["method"]): cell["episodes"] for cell in measured["targets"]}
    for cell in measured["targets"]:
        plain, auto = (needed[cell["task"], method] for method in ("mc", "auto"))
        ends = (f"{plain:.0f}", f"{auto:.0f}", f"{plain / auto:.1f}")
        assert (cell["task"], f"{cell['halfwidth']:g}", *ends) in rows, cell


def test_the_page_about_intervals_has_the_coverage_of_every_method():
    looks, targets = (
        json.loads((DOCS / "intervals" / f"coverage-{kind}.json").read_text()) for kind in ("looks", "targets")
    )
    page = (DOCS / "intervals.md").read_text()
    for group in GROUPS:
        assert coverage_table(looks, "always", group) in page
        assert coverage_table(targets, "stopped", group) in page
    assert coverage_table(looks, "half_width", GROUPS[0]) in page
    short = {cell["task"] for cell in looks if cell["always"] < 0.93}
    assert short | {cell["task"] for cell in targets if cell["stopped"] < 0.94} == {
        "gridworld-noisy",
        "gridworld-converged",
    }, "the page names the tasks that miss"


def test_what_is_said_of_intervals_is_what_was_measured():
    """The page quotes its own measurements; estimates say what their intervals promise, and quote none."""
    cells = json.loads((DOCS / "intervals" / "coverage.json").read_text())["cells"]
    fixed = [cell for cell in cells if cell["interval"] == "fixed n"]
    heavy = [cell["fixed"] for cell in fixed if cell["weights"] == "heavy"]
    light = [cell["fixed"] for cell in fixed if cell["weights"] != "heavy"]
    page = " ".join((DOCS / "intervals.md").read_text().split())
    assert f"With heavy weights it fails, down to {min(heavy):.0%}" in page
    assert "with light weights, or with weights that a mixture bounds, it holds about as promised" in page
    assert min(light) > 0.94
    for arguments in ({"method": "mc"}, {"method": "bpg"}, {"failure": "return < -80"}, {"target": 10.0}):
        found = bps.evaluate("gridworld-early", "bpsearch/Gridworld-v0", 300, seed=0, **arguments)
        for kind in (words.interval_kind(found), words.anytime_kind(found), words.certified_kind(found)):
            assert "%" not in kind, "a coverage that was measured once is no promise"


def test_the_tables_of_evaluators_are_those_of_their_csv():
    cells = read_csv(DOCS / "evaluators" / "evaluators.csv")
    tasks = [TASKS[name]() for name in dict.fromkeys(cell.task for cell in cells)]
    assert (DOCS / "evaluators" / "evaluators.md").read_text() == markdown(cells, tasks, references())
    assert min(cell.studies for cell in cells) >= 200
    page = (DOCS / "evaluators.md").read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", page):
        assert (DOCS / target).exists(), target


def test_what_is_said_of_auto_beside_its_first_version_is_what_was_measured():
    before, today = (read_csv(DOCS / "evaluators" / name) for name in ("evaluators.csv", "auto.csv"))
    assert beside(before, today, "auto") in (DOCS / "auto.md").read_text()
    assert {cell.task for cell in today} == set(TASKS)
    assert min(cell.studies for cell in today) >= 200


def named_commands() -> dict[str, set[str]]:
    """By module of benchmarks, the options that pages and docstrings name."""
    pages = [*DOCS.glob("*.md"), *DOCS.glob("[!_]*/*.md"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    found: dict[str, set[str]] = {}
    for path in [*pages, *(ROOT / "benchmarks").rglob("*.py")]:
        for module, options in re.findall(r"python -m (benchmarks[.\w]*)([^`\n]*)", path.read_text()):
            found.setdefault(module, set()).update(re.findall(r"(?<= )--[a-z][a-z-]*", options))
    return found


@pytest.mark.parametrize(("module", "options"), named_commands().items())
def test_the_commands_of_benchmarks_are_there_with_their_options(module, options):
    path = ROOT / Path(*module.split("."))
    source = (path / "__main__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    for option in options:
        assert f'"{option}"' in source, option


def test_benchmarks_are_run_as_modules():
    """They import each other: as files they would not find themselves."""
    for path in [
        *DOCS.rglob("*.md"),
        *(ROOT / "benchmarks").rglob("*.py"),
        ROOT / "CONTRIBUTING.md",
        ROOT / "Makefile",
    ]:
        assert "python benchmarks/" not in path.read_text(), path
