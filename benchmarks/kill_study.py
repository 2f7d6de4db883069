"""Kill a stored study again and again, by SIGKILL, and see that nothing is lost and the result is the same.

A study runs in a process of its own, which is killed at a random moment, or at a named point of a write; it is started
again on the same file, killed again, and so on until it is let run to its end. Every start must find a file without
damage, with every batch that was acknowledged before the kill, whole; the end must be bit-identical to that of a
study that was never killed and has no store.

    python -m benchmarks.kill_study --kills 100
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections import Counter

import jax
import numpy as np

import bpsearch as bps
from bpsearch.study.sqlite import WRITE_POINTS

BATCHES, BATCH_SIZE = 25, 8
EPISODES = BATCHES * BATCH_SIZE - 3  # the last batch is smaller
# Of one study, the points at which its lives end: those of the event that makes it, of the one that fixes its settings,
# and of a told batch, which also changes the cache. A kill before an event is committed leaves the same event to come.
_CACHE = ("cache written", "cache deleted")
_EVERY = WRITE_POINTS[2:]
MADE = [point for point in WRITE_POINTS if point not in _CACHE]
FIXED = [point for point in _EVERY if point not in _CACHE]


def problem():
    rng = np.random.default_rng(0)
    transitions = rng.dirichlet(np.ones(3), size=(3, 2))
    mdp = bps.TabularMDP(transitions, rng.normal(size=(3, 2, 3)), [0.5, 0.5, 0.0], [False, False, True], 4)
    return mdp, bps.SoftmaxTable(rng.normal(size=(3, 2)))


def digest(study):
    """Of every number of the estimate and of the states of search and valuation, to the last bit."""
    estimate = study.estimate()
    parts = [estimate.data.values, estimate.data.log_weights, estimate.data.returns]
    parts += [estimate.value, estimate.std_error, estimate.anytime_interval()]
    parts += jax.tree_util.tree_leaves(study._progress.states)
    return hashlib.blake2b(b"".join(np.asarray(part).tobytes() for part in parts)).hexdigest()[:16]


def work(path, say, point=None, occurrence=1):
    """One life of the process: take the study up, say what is there, go on, say each batch that is told."""
    mdp, policy = problem()
    search = bps.BPG(bps.search.normalized(0.05))
    method = bps.Method(search, bps.Valuation(search.estimator), batch_size=BATCH_SIZE)
    seen = Counter()

    def on_write(name):
        seen[name] += 1
        if name == point and seen[name] == occurrence:
            os.kill(os.getpid(), signal.SIGKILL)

    store = None if path is None else bps.SQLiteJournal(path, on_write=on_write)
    with bps.Study(policy, method, seed=7, store=store) as study:
        say({"found": study.episodes, "damages": [] if store is None else store.damages()})
        study.run(mdp, total=EPISODES, on_batch=lambda study, _: say({"told": study.episodes}))
        say({"digest": digest(study), "verified": [] if store is None else study.verify()})


def live(path, delay=None, **options):
    """Run `work` in a process of its own, kill it `delay` seconds after it took the study up.

    Returns:
        What it said, whether it was killed, and the seconds from the first word to the end.
    """
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(receiving)
            work(path, lambda fact: os.write(sending, json.dumps(fact).encode() + b"\n"), **options)
            code = 0
        finally:
            os._exit(code)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        select.select([pipe], [], [], 120.0)
        start = time.perf_counter()
        if delay is not None:
            time.sleep(delay)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        said = [json.loads(line) for line in pipe.read().splitlines()]
    status = os.waitpid(pid, 0)[1]
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if not killed and os.WEXITSTATUS(status) != 0:
        sys.exit(f"a study ended with exit code {os.WEXITSTATUS(status)}")
    return said, killed, time.perf_counter() - start


class Trial:
    """One study and its lives; what it acknowledged must be there in the next life."""

    def __init__(self, path):
        self.path = path
        self.acknowledged = 0
        self.kills = 0
        self.seconds = 0.0
        self.wrong = []

    def live(self, **options):
        """One life, and a look at what the one before left."""
        said, killed, self.seconds = live(self.path, **options)
        self.kills += killed
        for fact in said:
            if "found" in fact:
                if fact["found"] < self.acknowledged:
                    self.wrong.append(f"{self.acknowledged} episodes were acknowledged, {fact['found']} were found")
                if fact["found"] % BATCH_SIZE and fact["found"] != EPISODES:
                    self.wrong.append(f"a batch was found in part: {fact['found']} episodes")
                self.wrong += fact["damages"]
            self.acknowledged = max(self.acknowledged, fact.get("told", 0))
        return said

    def finish(self, expected):
        """The life that comes to its end."""
        last = self.live()[-1]
        if last.get("digest") != expected:
            self.wrong.append(f"the result is {last}, expected {expected}")
        self.wrong += last.get("verified", [])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="at random moments, besides those at write points")
    parser.add_argument("--per-study", type=int, default=6, help="random kills of the same study")
    parser.add_argument("--rounds", type=int, default=3, help="studies that are killed at every write point")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", f"{folder}/compiled")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        expected = live(None)[0][-1]["digest"]
        trials: list[Trial] = []
        points = 0
        for turn in range(1, options.rounds + 1):
            trials.append(Trial(f"{folder}/points-{turn}.db"))
            lives = [(point, 1) for point in MADE + FIXED] + [(point, turn) for point in _EVERY]
            points += len(lives)
            for point, occurrence in lives:
                before = trials[-1].kills
                trials[-1].live(point=point, occurrence=occurrence)
                if trials[-1].kills == before:
                    trials[-1].wrong.append(f"the point {point!r} was not reached {occurrence} times")
            trials[-1].finish(expected)
        at_points, length, random_kills = sum(trial.kills for trial in trials), trials[0].seconds, 0
        while random_kills < options.kills:
            trials.append(Trial(f"{folder}/random-{len(trials)}.db"))
            for _ in range(min(options.per_study, options.kills - random_kills)):
                trials[-1].live(delay=rng.uniform(0.0, length / options.per_study))
            random_kills += trials[-1].kills
            trials[-1].finish(expected)
    wrong = [line for trial in trials for line in trial.wrong]
    result = {"studies": len(trials), "random_kills": random_kills, "kills_at_write_points": at_points}
    print(json.dumps({**result, "write_points": points, "wrong": wrong, "digest": expected}))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    # Work is done in forks, each with its own JAX, which only then starts its threads.
    assert not jax._src.xla_bridge.backends_are_initialized()
    main()
