"""Environment steps per second on cart-pole swing-up, beside plain NumPy and on two cores.

A BPG iteration is: sample 500 episodes of 50 steps, log-ratios to the evaluation policy, score weights of importance
sampling, gradient through the (32, 32) network, step. Both programs run in 32 bit, with sums of weights in 64 bit.
The first part is pinned to one core and alternates between the two programs, so that whatever else the machine
does hits both; the ratio of each round is taken, and the median of the ratios is printed.

    python -m benchmarks.continuous_speed            # everything
    python -m benchmarks.continuous_speed one-core   # one part alone, in this process
    python -m benchmarks.continuous_speed two-cores
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import jax
import numpy as np

import bpsearch as bps
from benchmarks.continuous_numpy import NumPyBPG
from bpsearch._core.jaxtools import in_64_bit
from bpsearch.sampling.compiled import rollout
from bpsearch.search.step_size import normalized

SINGLE_THREADED = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
EPISODES, ROUNDS, ITERATIONS = 500, 11, 10
ENV = bps.envs.cartpole_swingup()
STEPS = EPISODES * ENV.horizon * ITERATIONS
SEARCH = bps.BPG(step_size=normalized(1e-3))
POLICY = bps.GaussianMLP.init(0, ENV.observation_space, ENV.action_space)


def sample(policy, key):
    """`ITERATIONS` batches, reduced to a number so that the compiler must make them."""

    def batch(total, key):
        trajectories = rollout(ENV, policy, key, EPISODES)
        return total + trajectories.rewards.sum() + trajectories.log_probs.sum() + trajectories.actions.sum(), None

    return jax.lax.scan(batch, 0.0, jax.random.split(key, ITERATIONS))[0]


def search(state, key):
    """`ITERATIONS` iterations of BPG."""

    def iteration(state, key):
        return SEARCH.update(state, rollout(ENV, SEARCH.behavior(state), key, EPISODES))[0], None

    return jax.lax.scan(iteration, state, jax.random.split(key, ITERATIONS))[0]


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


@in_64_bit
def one_core() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    key, state, plain = jax.random.key(0), SEARCH.init(POLICY), NumPyBPG(POLICY, EPISODES, ENV.horizon)
    compiled_sample, compiled_search = jax.jit(sample), jax.jit(search)

    def numpy_sample() -> None:
        for _ in range(ITERATIONS):
            plain.sample()

    def numpy_search() -> None:
        for _ in range(ITERATIONS):
            plain.iterate()

    pairs = {
        "sampling": (lambda: jax.block_until_ready(compiled_sample(POLICY, key)), numpy_sample),
        "BPG iteration": (lambda: jax.block_until_ready(compiled_search(state, key)), numpy_search),
    }
    print(f"one core, {EPISODES} episodes of {ENV.horizon} steps, network {POLICY.hidden}, {ROUNDS} rounds in turn")
    for name, (ours, theirs) in pairs.items():
        ours(), theirs()  # compile, warm up
        times = np.array([(seconds(ours), seconds(theirs)) for _ in range(ROUNDS)])
        rates = STEPS / np.median(times, axis=0) / 1e6
        ratios = times[:, 1] / times[:, 0]
        print(
            f"  {name:14s} bpsearch {rates[0]:6.2f}M steps/s   NumPy {rates[1]:6.2f}M steps/s   "
            f"ratio {statistics.median(ratios):.2f} (rounds: {ratios.min():.2f} to {ratios.max():.2f})"
        )


@in_64_bit
def two_cores() -> None:
    jax.config.update("jax_num_cpu_devices", 2)
    devices = jax.devices()
    state = SEARCH.init(POLICY)

    def trials(devices):
        """One trial per device, each in its own random stream."""
        mesh = jax.sharding.Mesh(np.array(devices), ("trials",))
        spec = jax.sharding.PartitionSpec("trials")

        def one_trial(keys):
            return jax.tree_util.tree_map(lambda x: x[None], search(state, keys[0]))

        run = jax.jit(jax.shard_map(one_trial, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
        keys = jax.random.split(jax.random.key(1), len(devices))
        return lambda: jax.block_until_ready(run(keys))

    one, two = trials(devices[:1]), trials(devices)
    one(), two()
    times = np.array([(seconds(one), seconds(two)) for _ in range(ROUNDS)])
    rates = STEPS * np.array([1, 2]) / np.median(times, axis=0) / 1e6
    scaling = 2.0 * times[:, 0] / times[:, 1]
    print("trials of BPG sharded over host devices")
    print(
        f"  {'BPG iteration':14s} one device {rates[0]:6.2f}M steps/s   two devices {rates[1]:6.2f}M steps/s   "
        f"scaling {statistics.median(scaling):.2f} (rounds: {scaling.min():.2f} to {scaling.max():.2f})"
    )


if __name__ == "__main__":
    parts = {"one-core": one_core, "two-cores": two_cores}
    if len(sys.argv) > 1:
        parts[sys.argv[1]]()
    else:
        # Affinity and the number of devices cannot be changed once JAX runs: each part has its own process.
        for part in parts:
            subprocess.run(
                [sys.executable, "-m", "benchmarks.continuous_speed", part],
                check=True,
                env=os.environ | SINGLE_THREADED,
            )
