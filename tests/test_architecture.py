"""The tree shows the data's way: a module imports only from its left."""

import ast
from pathlib import Path

import pytest

import bpsearch

ROOT = Path(bpsearch.__file__).parent
LAYERS = [
    "errors",
    "versions",
    "checks",
    "numerics",
    "trajectories",
    "outcomes",
    "random",
    "exchange",
    "envs",
    "policies",
    "sampling",
    "problem",
    "estimators",
    "models",
    "intervals",
    "search",
    "variance_split",
    "confidence_sequence",
    "promises",
    "history",
    "diagnostics",
    "report",
    "estimate",
    "forecast",
    "oracle",
    "training",
    "trials",
    "store",
    "study",
    "evaluate",
    "plan",
    "experiments",
    "cli",
]


def imported_layers(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "bpsearch" and len(parts) > 1:
                yield parts[1]


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_from_its_left(path):
    layer = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if layer in ("__init__", "__main__"):
        return
    assert layer in LAYERS, f"add {layer} to the layers"
    for imported in imported_layers(path):
        if imported in LAYERS:
            assert LAYERS.index(imported) <= LAYERS.index(layer), f"{layer} imports {imported}"


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_outgrows_its_reason(path):
    assert len(path.read_text().splitlines()) <= 400


def test_importing_the_package_flips_no_global_flag():
    import jax

    assert not jax.config.jax_enable_x64


def test_every_public_name_is_documented():
    for name in bpsearch.__all__:
        assert getattr(bpsearch, name).__doc__, name
