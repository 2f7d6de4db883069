"""The house: which room may import which, and what every room keeps to. docs/architecture.md shows it as a picture."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import bpsearch

ROOT = Path(bpsearch.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
COMMON = {"errors", "_core"}
DATA = {*COMMON, "envs", "policies", "sampling"}

# A room, and the rooms that it may import besides itself. Those that are not named here it must not know.
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "_core": {"errors"},
    "envs": COMMON,
    "policies": {*COMMON, "envs"},
    "sampling": {*COMMON, "envs", "policies"},
    "estimands": {*COMMON, "sampling"},
    "runners": {*DATA, "estimands"},
    "estimators": {*COMMON, "policies", "sampling"},
    "oracle": {*COMMON, "envs", "policies", "estimators"},
    "control_variates": {*DATA, "estimators"},
    "search": {*COMMON, "policies", "sampling", "estimators", "control_variates"},
    "inference": {*COMMON, "policies", "sampling", "estimands", "estimators", "control_variates"},
    "methods": {*DATA, "estimators", "control_variates", "search", "inference"},
    "study": {*DATA, "estimands", "runners", "estimators", "control_variates", "search", "inference", "methods"},
    "calls": {*DATA, "estimands", "runners", "estimators", "search", "inference", "methods", "study"},
    "integrations": {*DATA, "inference", "runners", "calls"},
    "report": {*COMMON, "envs", "inference"},
}
EVERY = set(ROOMS)
ROOMS["testing"] = EVERY
ROOMS["paper"] = EVERY
ROOMS["cli"] = {*EVERY, "paper"}
# The front door names what is inside, and opens it when it is used; `python -m bpsearch` is the command.
ROOMS["__init__"] = {*EVERY, "testing"}
ROOMS["__main__"] = {"cli"}

# Imports to the right, with the reason; each is made within a function, or for types alone.
LATE = {
    ("inference/estimate.py", "report"): "an estimate is put into words when somebody reads it",
    ("inference/comparison.py", "report"): "a comparison is put into words when somebody reads it",
    ("inference/pilot.py", "report"): "a plan is put on a page when somebody wants one",
    ("inference/suite.py", "report"): "a suite is put into words when somebody reads it",
    ("calls/evaluate.py", "report"): "progress is shown when somebody wants to see it",
    ("policies/resolve.py", "integrations"): "another library's policy is adapted when somebody gives one",
    ("envs/resolve.py", "integrations"): "another library's environment is adapted when somebody gives one",
}

# Packages that are slow to import or may be missing, and the rooms in which they are used.
OPTIONAL = {
    "torch": {"integrations"},
    "stable_baselines3": {"integrations"},
    "sb3_contrib": {"integrations"},
    "minari": {"integrations"},
    "gymnax": {"integrations"},
    "brax": {"integrations"},
    "flax": {"integrations"},
    "equinox": {"integrations"},
    "tensordict": {"integrations"},
    "huggingface_hub": {"integrations"},
    "pandas": {"report"},
    "ray": {"runners"},
    "tensorboard": {"integrations"},
    "wandb": {"integrations"},
    "mlflow": {"integrations"},
    "matplotlib": {"report"},
    "jinja2": {"report"},
    "rich": {"cli", "paper", "report"},
    "typer": {"cli"},
}
OPTIONAL_LATE = {
    ("inference/comparison.py", "pandas"): "a table of differences, for those who want one",
    ("inference/suite.py", "pandas"): "a table of tasks, for those who want one",
    ("cli/shared.py", "torch"): "the command keeps torch to one thread",
    ("policies/resolve.py", "stable_baselines3"): "the type of an argument",
    ("policies/resolve.py", "torch"): "the type of an argument",
}


@dataclass(frozen=True)
class Import:
    """One imported name, its module's parts first, and whether it is imported with the file."""

    name: tuple[str, ...]
    at_once: bool


def imports(path: Path) -> Iterator[Import]:
    def visit(node: ast.AST, at_once: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ImportFrom):
                assert not child.level, f"{path} imports relatively"
                for alias in child.names:
                    yield Import((*child.module.split("."), alias.name), at_once)
            elif isinstance(child, ast.Import):
                yield from (Import(tuple(alias.name.split(".")), at_once) for alias in child.names)
            late = isinstance(child, ast.FunctionDef | ast.Lambda) or _is_for_types(child)
            yield from visit(child, at_once and not late)

    return visit(ast.parse(path.read_text()), True)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))


def test_every_room_has_its_place():
    assert {room_of(path) for path in FILES} == set(ROOMS)
    TopologicalSorter(ROOMS).prepare()  # raises where two rooms know each other


def test_the_page_has_the_same_table():
    page = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text()
    table = page.split("## Who may import whom")[1].split("##")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", table, flags=re.M)
    assert {room: set(re.findall(r"`(\w+)`", others)) for room, others in rows} == {room: ROOMS[room] for room in EVERY}


@every_file
def test_a_room_imports_only_what_it_may_know(path):
    here, room = str(path.relative_to(ROOT)), room_of(path)
    for found in imports(path):
        if found.name[0] != "bpsearch" or found.name[1] in (room, "__version__"):
            continue
        other = found.name[1]
        if (here, other) in LATE:
            assert not found.at_once, f"{here} may import {other} late only: {LATE[here, other]}"
        else:
            assert other in ROOMS[room], f"{room} must not know {other}"
        assert other != "paper" or not found.at_once, f"{here} imports the paper's experiments before they are wanted"
        assert not found.name[-1].startswith("_"), f"{here} imports {'.'.join(found.name)}, which is private to {other}"


@every_file
def test_optional_packages_stay_in_their_rooms(path):
    here, room = str(path.relative_to(ROOT)), room_of(path)
    for found in imports(path):
        package = found.name[0]
        if package in OPTIONAL and room not in OPTIONAL[package]:
            assert (here, package) in OPTIONAL_LATE, f"{room} imports {package}"
            assert not found.at_once, f"{here} may import {package} late only: {OPTIONAL_LATE[here, package]}"


def test_no_exception_is_out_of_date():
    used = {(str(path.relative_to(ROOT)), found.name[0]) for path in FILES for found in imports(path)}
    assert set(OPTIONAL_LATE) <= used
    inside = [(path, found) for path in FILES for found in imports(path) if found.name[0] == "bpsearch"]
    assert set(LATE) <= {(str(path.relative_to(ROOT)), found.name[1]) for path, found in inside}


@every_file
def test_no_file_outgrows_its_reason(path):
    assert len(path.read_text().splitlines()) <= 400


def test_importing_the_package_flips_no_global_flag():
    modules = [".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in FILES]
    wanted = [name for name in modules if not name.endswith("__main__")]
    script = f"""
import importlib, os, warnings
import jax, numpy, gymnasium, matplotlib, scipy, torch, stable_baselines3, typer
for name in ("brax.envs", "equinox", "flax", "gymnax", "huggingface_hub", "tensordict"):  # what they flip is their own
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        pass
before = dict(jax.config.values), dict(os.environ), numpy.geterr(), torch.get_num_threads(), torch.get_default_dtype()
for name in {wanted}:
    try:
        importlib.import_module(name.removesuffix(".__init__"))
    except ModuleNotFoundError as error:  # an integration whose package is not installed
        assert ".integrations." in name and not error.name.startswith("bpsearch"), (name, error)
after = dict(jax.config.values), dict(os.environ), numpy.geterr(), torch.get_num_threads(), torch.get_default_dtype()
assert before == after
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", bpsearch.__all__)
def test_every_public_name_is_documented(name):
    found = getattr(bpsearch, name)
    assert found.__doc__
    for inside in getattr(found, "__all__", ()):
        assert getattr(found, inside).__doc__, f"{name}.{inside}"
