"""Set before anything imports JAX, and handed on to every process that a test starts."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

# Most of the suite's time is compilation: programs as small as these need no optimization that takes long.
FLAGS = (
    "backend_optimization_level=1",
    "cpu_parallel_codegen_split_count=1",
    "cpu_use_fusion_emitters=false",
    "backend_extra_options=xla_cpu_small_while_loop_byte_threshold=1000000",
)
os.environ.setdefault("XLA_FLAGS", " ".join(f"--xla_{flag}" for flag in FLAGS))
# Small networks are slower on several threads, the more so where each core has a worker of its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What one process has compiled the next one need not: tests and the commands that they run share a cache, which starts
# empty and goes with them. Each worker has its own, because entries are not written in one piece.
worker = os.environ.get("PYTEST_XDIST_WORKER")
if worker is None:
    cache = Path(tempfile.mkdtemp(prefix="bpsearch-tests-"))
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
else:
    cache = Path(os.environ["XDG_CACHE_HOME"]) / worker
os.environ["XDG_CACHE_HOME"] = str(cache)
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache / "bpsearch" / "compiled")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"

# The files that take longest begin first, so that none of them is left to a single worker at the end.
LONGEST = ("readme", "unbiased", "cli", "workers", "store", "extending", "conformance", "foreign", "adversary", "mlp")


def pytest_collection_modifyitems(items):
    order = {f"test_{name}.py": rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(LONGEST)))


@pytest.fixture
def in_process(monkeypatch, capsys):
    """The command run in this process, where to start one takes seconds: its exit code and what it printed."""
    from bpsearch.cli import main

    for name, module in list(sys.modules.items()):
        if name.startswith("bpsearch.cli") and hasattr(module, "prepare_jax"):
            monkeypatch.setattr(module, "prepare_jax", lambda **_: None)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bpsearch", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, stopped.value.code, printed.out, printed.err)

    return run
