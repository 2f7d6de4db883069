"""What is needed to install and to run, and what says so if it is missing."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bpsearch as bps

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# As if the extra `report` were not installed: its packages cannot be found.
HIDE = """
import sys, importlib.util, importlib.abc
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jinja2", "matplotlib"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Hidden())
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in ("jinja2", "matplotlib") else real(name, package)
"""
WITHOUT_REPORT = """
import sys
import bpsearch as bps
found = bps.evaluate("gridworld-early", "bpsearch/Gridworld-v0", 40, "mc", seed=0)
print(found)
try:
    found.report("page.html")
except bps.errors.MissingDependencyError as error:
    assert "pip install 'bpsearch[report]'" in str(error), error
else:
    raise AssertionError("a page without its packages")
"""
COMMAND = """
import sys
from bpsearch.cli import main
name, *options = sys.argv[1:]
sys.argv = ["bpsearch", name, "--env", "bpsearch/Gridworld-v0", "--policy", "gridworld-early", *options]
main()
"""
FEW = {"evaluate": ("--episodes", "40", "--method", "mc"), "plan": ("--pilot", "40")}


def run(program, *arguments, cwd):
    command = [sys.executable, "-c", HIDE + program, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_core_runs_without_what_only_pages_need(tmp_path):
    done = run(WITHOUT_REPORT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "95% interval" in done.stdout
    plain = run(COMMAND, "evaluate", *FEW["evaluate"], cwd=tmp_path)
    assert plain.returncode == 0, plain.stderr
    for name, few in FEW.items():
        paged = run(COMMAND, name, *few, "--out", "page", cwd=tmp_path)
        assert paged.returncode == 2, paged.stderr
        assert "pages and figures need jinja2 and matplotlib" in paged.stderr
        assert not (tmp_path / "page").exists(), "refused before anything is done"


def test_the_required_packages_are_few():
    names = {re.match(r"[a-z0-9-]+", requirement)[0] for requirement in PROJECT["dependencies"]}
    assert names == {"cloudpickle", "gymnasium", "jax", "jaxtyping", "numpy", "rich", "scipy", "typer"}


def test_the_version_is_the_same_everywhere():
    assert f"\nversion: {bps.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1].startswith(bps.__version__)


@pytest.mark.parametrize("name", ["requirements.lock", "constraints.txt"])
def test_pinned_versions_are_allowed_and_agree(name):
    """The lock file has every package of the constraints that it installs, in the same version."""
    pinned = dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", (ROOT / name).read_text(), flags=re.M))
    constraints = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), flags=re.M))
    for requirement in PROJECT["dependencies"]:
        assert re.match(r"[a-z0-9-]+", requirement)[0] in pinned, requirement
    for package in set(pinned) & set(constraints):
        assert pinned[package] == constraints[package], package
