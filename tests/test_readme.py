"""The README's examples run as they are printed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from test_cli import bpsearch

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.M | re.S)


def test_the_python_examples_run_one_after_the_other(tmp_path):
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks("python")))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "95% interval" in done.stdout


def commands(block):
    lines = [line.split("#")[0].strip() for line in block.splitlines()]
    return [line for line in lines if line]


SESSIONS = [[c for c in commands(block) if c.startswith("bpsearch ")] for block in blocks("bash")]


@pytest.mark.parametrize("session", [session for session in SESSIONS if session], ids=lambda session: session[0])
def test_the_commands_run(session, tmp_path):
    # The README's Python examples train this agent; here a small one that is trained already.
    shutil.copy(ROOT / "tests" / "agents" / "ppo-cartpole-v1.zip", tmp_path / "ppo.zip")
    for command in session:
        done = bpsearch(*command.split()[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        if command == "bpsearch demo":
            for expected in ("Monte Carlo", "BPG", "95% interval", "truth", "saved", "demo/demo.png"):
                assert expected in done.stdout


def test_the_make_targets_exist():
    every = [command for block in blocks("bash") for command in commands(block)]
    targets = [c.split()[1] for c in every if c.startswith("make ")]
    assert targets
    targets += re.findall(r"`make ([a-z-]+)`", README)
    for target in targets:
        assert re.search(rf"^{target}:", MAKEFILE, flags=re.M), target


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_the_examples_run(example, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
