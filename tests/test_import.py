"""What importing costs, and where the package can be imported."""

import json
import os
import subprocess
import sys

import pytest

import bpsearch as bps

HEAVY = ("jax", "gymnasium", "scipy", "matplotlib", "torch", "stable_baselines3", "h5py")
LOADED = "import sys; print([name for name in {names} if name in sys.modules], file=sys.stderr)"
# The command in a process that then tells which modules it has loaded.
COMMAND = """
import sys
from bpsearch.cli import main
sys.argv = ["bpsearch", *sys.argv[1:]]
try:
    main()
except SystemExit as stopped:
    assert not stopped.code, stopped.code
"""
COMPLETION = {"_BPSEARCH_COMPLETE": "complete_bash", "COMP_WORDS": "bpsearch evaluate --method pd", "COMP_CWORD": "3"}


def python(program, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments],
        env=os.environ | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def loaded(program, names, *arguments, **environment):
    """Which of the modules a program has loaded when it ends."""
    done = python(program + "\n" + LOADED.format(names=names), *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stderr.strip().splitlines()[-1], done.stdout


def test_import_loads_nothing_that_takes_long():
    assert loaded("import bpsearch", (*HEAVY, "numpy", "typer", "rich"))[0] == "[]"


@pytest.mark.parametrize("arguments", [("--help",), ("evaluate", "--help"), ("study", "ask", "--help"), ("--version",)])
def test_help_loads_nothing_that_takes_long(arguments):
    found, printed = loaded(COMMAND, (*HEAVY, "numpy", "jinja2", "sqlite3"), *arguments)
    assert found == "[]"
    assert "bpsearch" in printed


def test_completion_loads_nothing_that_takes_long():
    """A shell asks for it at every press of a key."""
    found, printed = loaded(COMMAND, (*HEAVY, "numpy", "jinja2", "sqlite3"), **COMPLETION)
    assert (found, printed.split()) == ("[]", ["pdis-bpg"])


@pytest.mark.slow
def test_an_evaluation_loads_nothing_that_it_does_not_need():
    program = "import bpsearch as bps; bps.evaluate('gridworld-early', bps.envs.gridworld(), 20, 'mc', seed=0)"
    assert loaded(program, ("torch", "stable_baselines3", "matplotlib", "jinja2", "typer", "h5py", "ray"))[0] == "[]"


def test_every_public_name_is_found():
    assert sorted(bps.__all__) == sorted(set(bps.__all__))
    assert set(bps.__all__) <= set(dir(bps))
    for name in bps.__all__:
        assert getattr(bps, name) is getattr(bps, name)
    with pytest.raises(AttributeError, match="has no attribute 'from_keras'"):
        bps.from_keras  # noqa: B018


def test_own_environments_are_registered_when_they_are_first_used():
    program = """
import gymnasium, bpsearch as bps
own = lambda: [name for name in gymnasium.registry if name.startswith("bpsearch/")]
assert not own()
bps.envs
assert len(own()) == 5
"""
    assert python(program).returncode == 0


HIDE = {
    "fcntl": "import sys; sys.modules['fcntl'] = None\n",
    "sched_getaffinity": "import os; vars(os).pop('sched_getaffinity', None)\n",
}
SYSTEMS = {"macOS": ("sched_getaffinity",), "Windows": ("fcntl", "sched_getaffinity")}
# The command, which counts cores; a study with a store that goes on, and its lock; the whole package.
EVERYWHERE = """
import importlib, pkgutil, sys
from bpsearch.cli import main
options = ["--policy", "gridworld-early", "--episodes", "200", "--method", "bpg", "--seed", "1", "--store", "other.db"]
sys.argv = ["bpsearch", "evaluate", "--env", "bpsearch/Gridworld-v0", *options, "--json"]
try:
    main()
except SystemExit as stopped:
    assert not stopped.code, stopped.code

import bpsearch as bps
policy, env = bps.shipped_policy("gridworld-early"), bps.envs.gridworld()
for total in (100, 200):
    with bps.Study(policy, "bpg", seed=1, store="study.db") as study:
        value = study.run(env, total=total).value
        assert study.verify() == []
        try:
            bps.Study(policy, "bpg", seed=1, store="study.db")
        except bps.errors.StoreLockedError:
            pass
        else:
            raise AssertionError("two writers at once")
assert value == bps.evaluate(policy, env, 200, "bpg", seed=1).value

for found in pkgutil.walk_packages(bps.__path__, "bpsearch."):
    if not found.name.endswith("__main__"):
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:  # an integration whose package is not installed
            assert ".integrations." in found.name and not error.name.startswith("bpsearch"), error
"""


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_systems_that_lack_what_linux_has(system, tmp_path):
    program = "".join(HIDE[name] for name in SYSTEMS[system]) + EVERYWHERE
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    here = bps.evaluate("gridworld-early", "bpsearch/Gridworld-v0", 200, "bpg", seed=1)
    # Some packages print when they are imported.
    assert json.loads(done.stdout.splitlines()[0])["value"] == pytest.approx(here.value, rel=1e-9)
