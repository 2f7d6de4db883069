"""Batches of short episodes, run together: towards the end of a batch alone most environments would stand still."""

import time
from collections.abc import Iterable
from itertools import islice

import jax

from bpsearch.errors import BPSearchError
from bpsearch.policies.base import Policy
from bpsearch.sampling import GymnasiumSampler, sample
from bpsearch.sampling.trajectories import Trajectories

MOST = 32  # batches that may be run together
SECONDS = 1.0  # that they may take
BYTES = 2**27  # that they may hold

Stream = tuple[int, int, int]  # seed, batch and further starts


class Ahead:
    """Runs the batch that is asked for, and with it some of those that are expected next.

    The episodes are the same as those of one batch after the other. What an interruption may lose is `SECONDS` of work.

    Args:
        env: where.
    """

    def __init__(self, env: GymnasiumSampler) -> None:
        self.env = env
        self._behavior: Policy | None = None
        self._expected: dict[Stream, int] = {}
        self._done: dict[Stream, Trajectories] = {}
        self._together = 1

    def expect(self, behavior: Policy, sizes: Iterable[int], stream: Stream) -> None:
        """The batches that will be asked for: that of `stream`, and those after it."""
        if behavior is not self._behavior:
            self._behavior, self._together = behavior, 1
            self._done.clear()
        seed, batch, resets = stream
        self._expected = {(seed, batch + at, resets): size for at, size in enumerate(islice(sizes, MOST))}

    def run(self, behavior: Policy, episodes: int, stream: Stream) -> Trajectories:
        """One batch."""
        if behavior is self._behavior and self._expected.get(stream) == episodes:
            return self._done.pop(stream, None) or self._run_some(behavior, stream)
        return self._run_one(behavior, episodes, stream)

    def _run_some(self, behavior: Policy, stream: Stream) -> Trajectories:
        seed, _, resets = stream
        orders = [(number, range(size)) for (_, number, _), size in self._expected.items()][: self._together]
        began = time.perf_counter()
        if len(orders) == 1:
            found = [self._run_one(behavior, self._expected[stream], stream)]
        else:
            try:
                found = self.env.sample_batches(behavior, orders, seed=seed, resets=resets)
            except BPSearchError:
                # It may be a later batch that fails, and this one is to be counted before that.
                self._behavior = None
                return self._run_one(behavior, self._expected[stream], stream)
        seconds = max(time.perf_counter() - began, 1e-9) / len(orders)
        held = sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(found[0]))
        self._together = int(min(max(min(SECONDS / seconds, BYTES / held), 1), MOST))
        self._done = {(seed, number, resets): other for (number, _), other in zip(orders[1:], found[1:], strict=True)}
        return found[0]

    def _run_one(self, behavior: Policy, episodes: int, stream: Stream) -> Trajectories:
        seed, batch, resets = stream
        return sample(self.env, behavior, episodes, seed=seed, batch=batch, resets=resets)
