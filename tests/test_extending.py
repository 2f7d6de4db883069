"""The stranger's exercise: what docs/extending.md shows runs, keeps its promises, and can be used by name."""

import ast
import importlib
import io
import os
import re
import subprocess
import sys
import tokenize
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

import bpsearch as bps
from bpsearch._core import plugins

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "extending"
KINDS = ("control_variate", "search", "runner", "policy", "environment")
FILES = [*(EXAMPLES / f"own_{kind}.py" for kind in KINDS), EXAMPLES / "plugins.py"]
PAGE = (ROOT / "docs" / "extending.md").read_text()

every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def test_no_example_is_left_out():
    assert sorted(EXAMPLES.glob("*.py")) == sorted(FILES)


@every_file
def test_the_page_shows_the_files_as_they_are(path):
    assert f"```python\n{path.read_text()}```\n" in PAGE


def code_lines(text):
    """The lines that are neither empty, nor comments, nor docstrings."""
    strings = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
    words = [node for node in strings if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)]
    docstrings = {line for node in words for line in range(node.lineno, node.end_lineno + 1)}
    nothing = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type not in nothing]
    return {line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - docstrings


@every_file
def test_an_example_has_at_most_40_lines_of_code(path):
    assert len(code_lines(path.read_text())) <= 40


@every_file
def test_an_example_uses_public_names_only(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "bpsearch":
            room = importlib.import_module(node.module)
            assert node.module.removeprefix("bpsearch.") in bps.__all__
            assert {alias.name for alias in node.names} <= set(room.__all__)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "bps":
            assert node.attr in bps.__all__


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_example_checks_itself_and_finds_the_exact_value(kind, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    assert "check_" in (EXAMPLES / f"own_{kind}.py").read_text()
    importlib.import_module(f"own_{kind}").main()
    printed = capsys.readouterr().out
    low, high = map(float, re.search(r"95% interval \[(\S+), (\S+)\]", printed).groups())
    exact = float(re.search(r"exact value: (\S+)", printed)[1])
    # Twice the width of a 95% interval: of five fixed seeds one fails with probability 5e-4.
    assert abs((low + high) / 2 - exact) <= high - low


# Another package's entry points, installed for real.

SCRIPT = """
import contextlib
import sys
from bpsearch.cli import main

OPTIONS = ["--method", "action-counts", "--episodes", "200", "--seed", "0"]
sys.argv = ["bpsearch", "evaluate", "--env", "walk:0.5", "--policy", "uniform.linear.npz", *OPTIONS]
with contextlib.suppress(SystemExit):
    main()

import bpsearch as bps

table = bps.SoftmaxTable.uniform(11, 2)
found = [
    bps.evaluate("uniform.linear.npz", "walk:0.5", episodes=200, method="action-counts", seed=0),
    bps.evaluate(table, "walk:0.5", episodes=400, method="cross-entropy", seed=0),
    bps.evaluate(bps.SoftmaxTable.uniform(6, 2), "hurdles", episodes=200, seed=0),
    bps.evaluate(lambda hurdle: 1, "hurdles", episodes=200, seed=0),
]
print("from Python")
for estimate in found:
    print(estimate.value, estimate.std_error, estimate.settings["method"])
print(bps.plan("uniform.linear.npz", "walk:0.5", pilot=20, seed=0).settings["env"])
"""
# Of the walk and of the hurdles: with coins, and always jumping.
EXACT = (0.0, 0.0, sum(0.3 * 0.9**n for n in range(5)), sum(0.6 * 0.8**n for n in range(5)))


@pytest.mark.slow
def test_another_package_registers_methods_policies_and_environments(tmp_path):
    groups = re.findall(r'\[project.entry-points."(\S+)"\]', (EXAMPLES / "plugins.py").read_text())
    assert sorted(groups) == sorted(plugins.GROUPS)
    entries = re.search(r"names these functions:\n\n(.*?)\"\"\"", (EXAMPLES / "plugins.py").read_text(), re.S)[1]
    text = re.sub(r'project.entry-points."(\S+)"', r"\1", entries.replace("    ", "")).replace('"', "")
    installed = tmp_path / "stranger-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(text)
    np.savez(tmp_path / "uniform.linear.npz", features=np.ones((11, 1)), weights=np.zeros((1, 2)))
    path = os.pathsep.join([str(tmp_path), str(EXAMPLES)])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    command, python = done.stdout.split("from Python\n")
    *estimates, planned = python.splitlines()
    assert [line.split()[2] for line in estimates] == ["action-counts", "cross-entropy", "auto", "auto"]
    for line, exact in zip(estimates, EXACT, strict=True):
        value, error = map(float, line.split()[:2])
        assert abs(value - exact) < 5 * error  # a false alarm: 6e-7 each
    assert planned == "walk:0.5"
    assert float(command.split(",")[0]) == pytest.approx(float(estimates[0].split()[0]), abs=0.05)


@pytest.fixture
def registered(monkeypatch):
    """Entry points as if they were installed."""

    def register(group, value):
        monkeypatch.syspath_prepend(str(EXAMPLES))
        entry = EntryPoint("stranger", value, group)
        monkeypatch.setattr(plugins, "_entries", lambda asked: (entry,) if asked == group else ())

    return register


def test_a_runner_that_another_package_opens_is_closed(registered, monkeypatch):
    registered("bpsearch.runners", "plugins:find_hurdles")
    runner = importlib.import_module("own_runner").Threads
    closed, close = [], runner.close
    monkeypatch.setattr(runner, "close", lambda self: closed.append(self) or close(self))
    policy = bps.SoftmaxTable.uniform(6, 2)
    bps.evaluate(policy, "hurdles", episodes=20, seed=0)
    assert len(closed) == 1
    bps.Study(policy, "mc", seed=0).run("hurdles", episodes=20)
    assert len(closed) == 2
    with pytest.raises(bps.errors.SpaceMismatchError):
        bps.evaluate(bps.SoftmaxTable.uniform(5, 2), "hurdles", episodes=20)
    with pytest.raises(bps.errors.SpaceMismatchError):
        bps.Study(bps.SoftmaxTable.uniform(5, 2), "mc").run("hurdles", episodes=20)
    assert len(set(map(id, closed))) == len(closed) == 4
    with runner() as own:
        bps.evaluate(policy, own, episodes=20, seed=0)
        assert len(closed) == 4


@pytest.mark.parametrize("group", ["bpsearch.runners", "bpsearch.policies", "bpsearch.methods"])
def test_what_is_no_runner_policy_or_method_is_refused_by_name(group, registered):
    registered(group, "builtins:print" if group == "bpsearch.methods" else "builtins:slice")
    policy = bps.SoftmaxTable.uniform(16, 4)
    arguments = {
        "bpsearch.runners": (policy, "somewhere"),
        "bpsearch.policies": ("someone", bps.envs.gridworld()),
        "bpsearch.methods": (policy, bps.envs.gridworld(), 10, "stranger"),
    }
    with pytest.raises(bps.errors.InvalidArgumentError, match="must"):
        bps.evaluate(*arguments[group])


def test_entry_points_are_not_asked_about_what_is_known(registered):
    registered("bpsearch.runners", "no_such_module:function")
    policy = bps.SoftmaxTable.uniform(16, 4)
    assert bps.evaluate(policy, bps.envs.gridworld(), episodes=20, seed=0).episodes == 20


def test_a_runner_brings_its_own_discount():
    mdp = bps.testing.random_mdp(0, (3, 2, 2), 0.9)
    policy = bps.testing.random_policy(0, mdp)
    runner = bps.runners.InProcess(mdp)
    assert bps.evaluate(policy, runner, 100, seed=0).value == bps.evaluate(policy, mdp, 100, seed=0).value
