"""A coarse simulator in front of an expensive one: what the cheap one says of a start saves runs of the other.

    python examples/coarse_simulator.py

A glider is released somewhere above a valley, and a fixed rule holds its nose. The expensive simulator follows it in
steps of 10 ms through gusts; it costs about as much as fifty coarse ones. The coarse simulator takes half a second at a
time, knows no gusts, and is wrong by some meters. That does not matter: `proxy=` uses only what it says about which
starts are better than others, and the estimate stays that of the expensive simulator, without bias.
"""

from typing import Any

import gymnasium
import numpy as np

import bpsearch as bps

GRAVITY, LIFT, DRAG, GUSTS = 9.81, 0.095, 0.014, 0.3
FINE, COARSE, DECISION, LONGEST = 0.01, 0.5, 0.5, 100


def nose(sinking: Any) -> Any:
    """The rule: lift the nose the more, the faster the glider sinks."""
    return np.clip(0.8 + 0.15 * sinking, 0.0, 2.0)


def fly(state: Any, pull: Any, seconds: float, wind: Any = 0.0) -> Any:
    """Height, forward and upward speed after a step; lift and drag grow with the square of the air speed."""
    height, forward, upward = state
    against = upward - wind
    speed = np.sqrt(forward**2 + against**2)
    forward_force = -speed * (DRAG * forward + LIFT * pull * against)
    upward_force = speed * (LIFT * pull * forward - DRAG * against) - GRAVITY
    return height + seconds * upward, forward + seconds * forward_force, upward + seconds * upward_force


class Glider(gymnasium.Env[Any, Any]):
    """The expensive simulator: pays the meters that the glider flies until it lands."""

    observation_space = gymnasium.spaces.Box(-1e4, 1e4, (3,), np.float64)
    action_space = gymnasium.spaces.Box(0.0, 2.0, (1,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Anywhere above the valley, slow or fast, sinking or climbing."""
        super().reset(seed=seed)
        draw = self.np_random.uniform
        self.state, self.steps, self.gust = (draw(10.0, 60.0), draw(2.0, 22.0), draw(-8.0, 8.0)), 0, 0.0
        return np.array(self.state), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Half a second of flight."""
        flown, self.steps = 0.0, self.steps + 1
        for _ in range(round(DECISION / FINE)):
            self.gust += -self.gust * FINE + GUSTS * np.sqrt(FINE) * self.np_random.normal()
            self.state = fly(self.state, float(action[0]), FINE, self.gust)
            flown += FINE * self.state[1]
            if self.state[0] <= 0.0:
                return np.array(self.state), flown, True, False, {}
        return np.array(self.state), flown, False, self.steps == LONGEST, {}


def coarse_simulator(starts: Any) -> Any:
    """Meters flown from each of (n, 3) starts: all at once, in steps of half a second, without gusts."""
    state, flown = tuple(starts.T), np.zeros(len(starts))
    for _ in range(LONGEST):
        state = fly(state, nose(-state[2]), COARSE / 2)
        state = fly(state, nose(-state[2]), COARSE / 2)
        state = tuple(np.clip(part, -100.0, 100.0) for part in state)
        flown += COARSE * np.where(state[0] > 0.0, state[1], 0.0)
    return flown


def main() -> None:
    def rule(observation: Any) -> Any:
        return np.array([nose(-observation[2])])

    alone = bps.evaluate(rule, Glider, episodes=40, seed=0, resets=100)
    helped = bps.evaluate(rule, Glider, episodes=40, seed=0, resets=100, proxy=coarse_simulator)
    for name, result in (("without the coarse simulator", alone), ("with it", helped)):
        error, savings = result.tight_error, result.tight_savings
        print(
            f"{name}: {result.value:.1f} ± {1.96 * error.std_error:.1f} meters, a saving by a factor of {savings:.1f}"
        )


if __name__ == "__main__":
    main()
