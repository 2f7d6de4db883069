"""The house in numbers: what a batch goes through, what a look costs, and how large the package is.

Prints three things:

- The trace of two batches of `auto` without a store: the modules of bpsearch of which a function is called, and how
  often anything is encoded, decoded or hashed. Everything is compiled before.
- The processor's seconds against the number of batches, with and without a stopping rule that is never reached, and of
  the error of the mean of many small batches. The cost of a batch should not grow with the batches before it.
- Lines of the package without the paper's experiments, before it was rebuilt and now.

    python -m benchmarks.house
"""

import argparse
import ast
import io
import sys
import time
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import bpsearch as bps
from bpsearch.inference.intervals import martingale_error

MOST_MODULES = 15
NEVER = bps.Target(halfwidth=1e-9)
# Where bytes are made or read: the journal's codec, and what it is made of. Hashes are C types of these modules.
CODECS = {"bpsearch.study.codec": "encode or decode", "json": "encode or decode", "_json": "encode or decode"}
CODECS |= {"zlib": "encode or decode", "hashlib": "hash", "_hashlib": "hash", "_blake2": "hash"}

# Before the rebuild: commit ee7cad6, counted by `count_lines(root, ("experiments", "training", "trials.py"))`.
BEFORE = {"files": 95, "lines": 11894, "lines of code": 7909}
# `trace_call` at that commit: 35 modules, of which 10 calls of `encode` and 5 of `decode`. The same study in batches of
# 50 without a target took 0.24, 0.52, 0.87 and 1.74 processor seconds at 25, 50, 100 and 200 batches; with one, by the
# clock, 1.1, 5.4, 22 and 58 s.


def problem() -> tuple[bps.TabularMDP, bps.SoftmaxTable]:
    policy = bps.shipped_policy("gridworld-early")
    assert isinstance(policy, bps.SoftmaxTable)
    return bps.envs.gridworld(), policy


def auto(batch_size: int) -> bps.Method:
    """What the name "auto" stands for, in batches of this size."""
    controls = (bps.Scores(), bps.TabularAdvantages())
    return bps.Method(bps.OnPolicy(), bps.Valuation(control_variates=controls), batch_size)


class Trace:
    """Which modules of bpsearch run, and what is encoded, while it is on."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.calls: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """What `sys.setprofile` calls."""
        module = ""
        if event == "call":
            module = frame.f_globals.get("__name__", "")
            if module.split(".")[0] == "bpsearch":
                self.modules.add(module)
        elif event == "c_call":
            owner = type(getattr(argument, "__self__", None)).__module__
            module = getattr(argument, "__module__", None) or owner
        kind = CODECS.get(module) or CODECS.get(module.split(".")[0])
        if kind is not None:
            self.calls[kind] += 1

    @contextmanager
    def on(self) -> Iterator[None]:
        """Trace what the block does."""
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)

    def show(self, what: str) -> None:
        """Print it."""
        counts = ", ".join(f"{kind}: {self.calls[kind]} calls" for kind in ("encode or decode", "hash"))
        print(f"{what}: {len(self.modules)} modules; {counts}")
        for module in sorted(self.modules):
            print(f"    {module}")


def trace_batches() -> Trace:
    """Two whole batches within a run, between the end of the first and that of the third."""
    env, policy = problem()
    trace, batches = Trace(), 0

    def on_batch(study: bps.Study, info: bps.search.Info) -> None:
        nonlocal batches
        batches += 1
        sys.setprofile(trace if batches in (1, 2) else None)

    bps.Study(policy, auto(100), seed=0).run(env, episodes=300, on_batch=on_batch)
    return trace


def trace_call() -> Trace:
    """All of `evaluate`, with two batches."""
    env, policy = problem()
    trace = Trace()
    bps.evaluate(policy, env, episodes=200, seed=0)
    with trace.on():
        bps.evaluate(policy, env, episodes=200, seed=0)
    return trace


def seconds(run: Callable[[], object], times: int = 1) -> float:
    """The processor's, of the shortest of several runs: other programs hardly disturb it."""
    found = []
    for _ in range(times):
        start = time.process_time()
        run()
        found.append(time.process_time() - start)
    return min(found)


def time_batches(counts: tuple[int, ...], size: int = 50) -> None:
    env, policy = problem()
    rules: dict[str, bps.Target | None] = {"without a target": None, "with a target": NEVER}

    def run(batches: int, target: bps.Target | None) -> bps.Estimate:
        return bps.Study(policy, auto(size), seed=0).run(env, episodes=batches * size, target=target)

    for target in rules.values():
        run(2, target)  # compile
    print(f"{'batches of ' + str(size):>16}" + "".join(f"{name:>20}" for name in rules))
    for batches in counts:
        found = [seconds(partial(run, batches, target)) for target in rules.values()]
        print(f"{batches:16d}" + "".join(f"{value:18.2f} s" for value in found))


def time_errors(counts: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for count in counts:
        batches = list(rng.normal(size=(count, 2)))
        took = seconds(partial(martingale_error, batches), times=3)
        print(f"error of the mean of {count:7d} batches of 2: {took:.3f} s")


def count_lines(root: Path, without: tuple[str, ...]) -> dict[str, int]:
    """Files, lines, and lines that are neither empty, nor comments, nor docstrings."""
    files = [path for path in root.rglob("*.py") if path.relative_to(root).parts[0] not in without]
    texts = [path.read_text(encoding="utf-8") for path in files]
    lines = sum(len(text.splitlines()) for text in texts)
    return {"files": len(files), "lines": lines, "lines of code": sum(map(_code_lines, texts))}


def _code_lines(text: str) -> int:
    words: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            words |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in layout]
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - words)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[25, 50, 100, 200])
    options = parser.parse_args()
    trace_batches()  # compile
    batches = trace_batches()
    batches.show(f"two batches of auto in memory (wanted: nothing encoded, at most {MOST_MODULES} modules)")
    trace_call().show("all of evaluate with two batches")
    print()
    time_batches(tuple(options.batches))
    time_errors((10_000, 100_000))
    print()
    root = Path(bps.__file__).parent
    print(f"{'package without':>34}" + "".join(f"{name:>15}" for name in BEFORE))
    after = {"paper/, now": ("paper",), "paper/ and testing/, now": ("paper", "testing")}
    rows = {"the experiments, before": BEFORE} | {name: count_lines(root, skipped) for name, skipped in after.items()}
    for name, counts in rows.items():
        print(f"{name:>34}" + "".join(f"{count:15d}" for count in counts.values()))


if __name__ == "__main__":
    main()
