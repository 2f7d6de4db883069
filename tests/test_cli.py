"""The command, as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).parent / "bpsearch"


def bpsearch(*arguments, cwd):
    return subprocess.run([str(PROGRAM), *arguments], cwd=cwd, capture_output=True, text=True, check=False)


def test_demo_shows_that_the_search_beats_monte_carlo(tmp_path):
    done = bpsearch("demo", "--episodes", "3000", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    methods = result["methods"]
    assert methods["BPG"]["mean_squared_error"] < methods["Monte Carlo"]["mean_squared_error"]
    assert methods["BPG"]["savings"] > 1.2
    assert methods["BPG"]["episodes"] == methods["Monte Carlo"]["episodes"] == 3000
    assert (tmp_path / result["figure"]).stat().st_size > 10_000


@pytest.mark.parametrize("command", ["demo", "train", "reproduce"])
def test_help_has_an_example(command, tmp_path):
    assert "Example: bpsearch" in bpsearch(command, "--help", cwd=tmp_path).stdout


def test_a_mistake_gives_one_line_and_a_non_zero_exit(tmp_path):
    done = bpsearch("train", "nobody", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "policy must be one of" in done.stderr
    assert "Traceback" in bpsearch("--debug", "train", "nobody", cwd=tmp_path).stderr
