"""Set before anything imports JAX, and handed on to every process that a test starts."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

# Most of the suite's time is compilation, and a little less optimization takes a fifth less of it.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1 --xla_cpu_parallel_codegen_split_count=1")

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
LONGEST = ("reproduce", "readme", "evaluators", "store", "reproduce_continuous", "trials", "evaluate", "plan", "cli")


def pytest_collection_modifyitems(items):
    order = {f"test_{name}.py": rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(LONGEST)))
