"""Time per iteration of behavior policy gradient on the 4x4 gridworld: 100 episodes of up to 100 steps, 100 trials.

Compares, in one run: this program on one and on two devices, a NumPy version vectorised over the 100 episodes, and a
plain loop over episodes and steps. Ratios are what counts: the rounds are interleaved, the medians printed.

    python -m benchmarks.bpg_iteration
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import numpy as np

EPISODES, TRIALS, ITERATIONS, STEP_SIZE = 100, 100, 50, 1e-5


def tables():
    import bpsearch as bps

    mdp = bps.envs.gridworld()
    successors = mdp.transitions.argmax(axis=-1)
    rewards = np.take_along_axis(mdp.rewards, successors[..., None], axis=-1)[..., 0]
    return successors, rewards, mdp.terminal, mdp.horizon, np.array(bps.shipped_policy("gridworld-early").logits)


def log_softmax(logits):
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def numpy_iteration(world, theta, log_evaluation, baseline, rng):
    """One iteration, every step vectorised over the episodes."""
    successors, rewards, terminal, horizon, _ = world
    log_behavior = log_softmax(theta)
    probabilities = np.exp(log_behavior)
    cumulative = probabilities.cumsum(axis=1)[:, :-1]
    log_ratio = log_evaluation - log_behavior
    state = np.zeros(EPISODES, int)
    running = np.ones(EPISODES, bool)
    total, log_weight = np.zeros(EPISODES), np.zeros(EPISODES)
    visited = []
    uniforms = rng.random((horizon, EPISODES))
    for t in range(horizon):
        action = (uniforms[t][:, None] >= cumulative[state]).sum(axis=1)
        total += np.where(running, rewards[state, action], 0.0)
        log_weight += np.where(running, log_ratio[state, action], 0.0)
        visited.append((state, action, running))
        state = np.where(running, successors[state, action], state)
        running = running & ~terminal[state]
    squares = (np.exp(log_weight) * total) ** 2
    counts = np.zeros_like(theta)
    for state, action, running in visited:
        np.add.at(counts, (state[running], action[running]), (-squares - baseline)[running])
    gradient = (counts - counts.sum(axis=1, keepdims=True) * probabilities) / EPISODES
    return theta - STEP_SIZE * gradient, -squares.mean()


def loop_iteration(world, theta, log_evaluation, baseline, rng):
    """One iteration, one step of one episode at a time."""
    successors, rewards, terminal, horizon, _ = world
    log_behavior = log_softmax(theta)
    probabilities = np.exp(log_behavior)
    gradient, squares = np.zeros_like(theta), []
    for _ in range(EPISODES):
        state, total, log_weight, score = 0, 0.0, 0.0, np.zeros_like(theta)
        for _ in range(horizon):
            action = rng.choice(theta.shape[1], p=probabilities[state])
            score[state] -= probabilities[state]
            score[state, action] += 1.0
            total += rewards[state, action]
            log_weight += log_evaluation[state, action] - log_behavior[state, action]
            state = successors[state, action]
            if terminal[state]:
                break
        squares.append((np.exp(log_weight) * total) ** 2)
        gradient += (-squares[-1] - baseline) * score / EPISODES
    return theta - STEP_SIZE * gradient, -float(np.mean(squares))


def seconds_of(iteration, repeats):
    world = tables()
    theta, baseline, rng = world[-1], 0.0, np.random.default_rng(0)
    log_evaluation = log_softmax(theta)
    start = time.perf_counter()
    for _ in range(repeats):
        theta, baseline = iteration(world, theta, log_evaluation, baseline, rng)
    return (time.perf_counter() - start) / repeats


def serve(devices):
    """Time this program once per line read from standard input."""
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    import bpsearch as bps
    from bpsearch.paper.trials import Trials

    mdp, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early")
    trials = Trials(bps.BPG(STEP_SIZE), iterations=ITERATIONS, batch_size=EPISODES)
    trials.run(mdp, policy, TRIALS)
    for _ in sys.stdin:
        start = time.perf_counter()
        trials.run(mdp, policy, TRIALS)
        print((time.perf_counter() - start) / (TRIALS * ITERATIONS), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve)
    servers = {
        f"bpsearch, {devices} device{'s' if devices > 1 else ''}": subprocess.Popen(
            [sys.executable, __file__, "--serve", str(devices)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for devices in (1, 2)
    }

    def ask(server):
        server.stdin.write("go\n")
        server.stdin.flush()
        return float(server.stdout.readline())

    for server in servers.values():  # compile, then wait
        ask(server)
    seconds = {name: [] for name in (*servers, "NumPy, vectorised over episodes", "plain loop")}
    for _ in range(arguments.rounds):
        for name, server in servers.items():
            seconds[name].append(ask(server))
        seconds["NumPy, vectorised over episodes"].append(seconds_of(numpy_iteration, 20))
        seconds["plain loop"].append(seconds_of(loop_iteration, 1))
    for server in servers.values():
        server.stdin.close()
        server.wait()
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    numpy_time = medians["NumPy, vectorised over episodes"]
    if arguments.json:
        print(json.dumps({name: {"ms": 1e3 * m, "speed": numpy_time / m} for name, m in medians.items()}))
        return None
    print(
        f"one BPG iteration: {EPISODES} episodes, 4x4 gridworld, up to 100 steps; median of {arguments.rounds} rounds"
    )
    for name, median in medians.items():
        print(f"  {name:34s} {1e3 * median:9.3f} ms per iteration and trial   {numpy_time / median:8.2f} x NumPy")
    return None


if __name__ == "__main__":
    main()
