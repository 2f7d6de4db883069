"""What the checks of observations and rewards cost an evaluation: CPU time with them and without, in turns.

    python -m benchmarks.check_cost --rounds 9

Without means: written as they come, and only tested to be finite.
"""

import argparse
import statistics
import time
from typing import Any

import gymnasium
import numpy as np

import bpsearch as bps
from bpsearch.envs.observations import write
from bpsearch.sampling import slots, stepping


def unchecked_write(arrays: Any, slot: int | None, values: Any) -> None:
    write(arrays, slice(None) if slot is None else slot, values)


def only_finite(self: Any, place: Any, step: Any) -> None:
    values = place.observations
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError("not finite")


def unchecked_step(self: Any, running: Any, actions: Any) -> None:
    for slot in running:
        observation, reward, terminated, truncated, _ = self._envs[slot].step(actions[slot])
        write(self.observations, slot, observation)
        self.rewards[slot] = reward
        self.ended[slot] = terminated or truncated


def seconds(env: str, policy: Any, episodes: int) -> float:
    start = time.process_time()
    bps.evaluate(policy, env, episodes, "mc", seed=1)
    return time.process_time() - start


def policy_for(env: str) -> bps.Policy:
    made = gymnasium.make(env)
    if isinstance(made.observation_space, gymnasium.spaces.Discrete):
        return bps.SoftmaxTable.uniform(int(made.observation_space.n), int(made.action_space.n))  # type: ignore[attr-defined]
    return bps.FunctionPolicy(lambda observation: 0, (made.observation_space, made.action_space))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--episodes", type=int, default=600)
    options = parser.parse_args()
    checked = (slots.accept, stepping.Stepper._check_observations, slots.EnvSlots.step)
    for env in ("CartPole-v1", "FrozenLake-v1"):
        policy = policy_for(env)
        seconds(env, policy, options.episodes)
        ratios = []
        for _ in range(options.rounds):
            with_checks = seconds(env, policy, options.episodes)
            slots.accept, stepping.Stepper._check_observations = unchecked_write, only_finite  # type: ignore[assignment]
            slots.EnvSlots.step = unchecked_step  # type: ignore[method-assign, assignment]
            without = seconds(env, policy, options.episodes)
            slots.accept, stepping.Stepper._check_observations, slots.EnvSlots.step = checked  # type: ignore[method-assign]
            ratios.append(with_checks / without)
        print(f"{env}: {statistics.median(ratios):.3f} times the CPU time (median of {options.rounds} pairs)")


if __name__ == "__main__":
    main()
