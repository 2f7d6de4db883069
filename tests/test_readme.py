"""The README is a landing page: short, and true as printed."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import savings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.M | re.S)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the agent that the README speaks of."""
    shutil.copy(ROOT / "tests" / "agents" / "ppo-cartpole-v1.zip", tmp_path / "ppo.zip")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_can_be_read_in_two_minutes():
    assert len(README.split()) <= 500


def test_the_python_examples_run_one_after_the_other(folder):
    script = folder / "readme.py"
    script.write_text("\n".join(blocks("python")))
    done = subprocess.run([sys.executable, "-W", "error", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "95% interval" in done.stdout
    assert "new is better than always left" in done.stdout


def commands():
    lines = [line.split("#")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line]


def test_the_commands_run(folder, in_process):
    printed = [command for command in commands() if command.startswith("bpsearch ")]
    assert printed
    for command in printed:
        done = in_process(*shlex.split(command)[1:])
        assert done.returncode == 0, done.stderr


def test_the_make_targets_exist():
    targets = [command.split()[1] for command in commands() if command.startswith("make ")]
    assert targets == ["demo", "test"]
    for target in targets + re.findall(r"`make ([a-z-]+)`", README):
        assert re.search(rf"^{target}:", MAKEFILE, flags=re.M), target


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_run(example, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README):
        assert (ROOT / target).exists(), target


def test_the_savings_are_those_that_were_measured():
    """The table is that of the CSV file, zeros included: every task that was measured is in the page of the docs."""
    rows = {(row.task, row.episodes): row for row in savings.read(ROOT / "docs" / "savings" / "savings.csv")}
    page = (ROOT / "docs" / "savings.md").read_text()
    assert savings.markdown(list(rows.values())) in page
    shown = [line.split("|")[1:-1] for line in README.splitlines() if line.startswith("| ")][1:]
    assert shown
    titles = {row.title: row.task for row in rows.values()}
    for title, cell in shown:
        assert cell.strip() == savings.short(rows[titles[title.strip()], 1000])
    unsure = [title for title, _ in shown if rows[titles[title.strip()], 1000].low < 1.0]
    assert unsure, "tasks on which nothing may be saved are shown, too"
