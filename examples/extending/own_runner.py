"""A runner of your own: a simulator that knows nothing of bpsearch, in a pool of threads.

An episode is a function of (seed, batch, number, behavior) alone, so it does not matter which thread runs it. All its
random numbers come from two generators that are made of these numbers: the simulator's, and that of the actions.

    python examples/extending/own_runner.py
"""

from concurrent.futures import ThreadPoolExecutor

import gymnasium
import numpy as np

import bpsearch as bps
from bpsearch.testing import check_runner


class Hurdles:
    """Your simulator: jump each of five hurdles (action 1), which pays 1 and may end in a fall, or walk around it."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.hurdle = rng, 0

    def step(self, action: int) -> tuple[float, bool]:
        """The points, and whether the race is over."""
        self.hurdle += 1
        falls = action == 1 and self.rng.random() < 0.2
        return action - 2.0 * falls, falls or self.hurdle == 5


class Threads(bps.Runner):
    """Runs races in threads."""

    observation_space = gymnasium.spaces.Discrete(6)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(4)

    def close(self) -> None:
        """End the threads."""
        self.pool.shutdown()

    def run(self, behavior: bps.Policy, episodes: int, *, seed: int, batch: int, repeats: int = 1) -> bps.Trajectories:
        """All races, in the order of their numbers."""
        numbers = [((0, seed, batch, n // repeats), (1, seed, batch, n)) for n in range(episodes)]
        return bps.Trajectories.concatenate(list(self.pool.map(lambda own: self.race(behavior, *own), numbers)))

    def race(self, behavior: bps.Policy, shared: tuple[int, ...], own: tuple[int, ...]) -> bps.Trajectories:
        """One race, as a batch of one; `repeats` neighbors get the same random numbers from the simulator."""
        world, rng = Hurdles(np.random.default_rng(shared)), np.random.default_rng(own)
        memory, steps, over = behavior.begin(rng.random(1)), [], False
        while not over:
            place = np.array([world.hurdle])
            action, log_prob, executed, memory = behavior.act_next(rng.random((1, behavior.uniforms)), place, memory)
            reward, over = world.step(int(executed[0]))
            steps.append((place, action, [reward], log_prob))
        observations, actions, rewards, log_probs = (np.stack(column, axis=1) for column in zip(*steps, strict=True))
        return bps.Trajectories(observations, actions, rewards, log_probs, np.ones(rewards.shape, bool))


def main() -> None:
    policy = bps.SoftmaxTable.uniform(states=6, actions=2)
    with Threads() as runner:
        check_runner(runner, policy)
        print(bps.evaluate(policy, runner, episodes=500, seed=0))
    # A hurdle that is reached is worth 0.5 (1 − 0.2 · 2) = 0.3, and passed without a fall with probability 0.9.
    print(f"exact value: {sum(0.3 * 0.9**hurdle for hurdle in range(5)):.4g}")


if __name__ == "__main__":
    main()
