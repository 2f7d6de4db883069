"""Small environments, each with one property that a sampler can get wrong."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from gymnasium.vector import SyncVectorEnv, VectorEnv


class Toy(gymnasium.Env[Any, Any]):
    """Observes the number of the step and a uniform number; ends after `length` steps; pays 1 per step."""

    observation_space: Any = Box(-np.inf, np.inf, (2,), np.float32)
    action_space: Any = Discrete(2)

    def __init__(self, length: int = 5) -> None:
        self.length = length
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observe(), self.reward(action), self.steps >= self.length, False, {}

    def observe(self) -> Any:
        return np.array([self.steps, self.np_random.random()], np.float32)

    def reward(self, action: Any) -> float:
        return 1.0


class Image(Toy):
    """Observes a picture whose channels come last; pays 1 for action 1 when its top left corner is bright."""

    observation_space = Box(0, 255, (36, 36, 3), np.uint8)

    def observe(self) -> Any:
        self.picture = self.np_random.integers(0, 256, (36, 36, 3), np.uint8)
        self.bright = self.picture[0, 0, 0] > 127
        return self.picture

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.bright)
        return super().step(action)[0], reward, self.steps >= self.length, False, {}


class ImageDict(Toy):
    """Observes a picture and a vector."""

    observation_space = Dict(
        {"picture": Box(0, 255, (36, 36, 3), np.uint8), "vector": Box(-1.0, 1.0, (2,), np.float32)}
    )

    def observe(self) -> Any:
        picture = self.np_random.integers(0, 256, (36, 36, 3), np.uint8)
        return {"picture": picture, "vector": self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)}


class RandomLength(Toy):
    """Lengths uniform on 1 to 99: the first to finish are the short ones."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        self.length = int(self.np_random.integers(1, 100))
        return observation, info


class PaysAction(Toy):
    """Pays the action that it is given."""

    action_space = Box(-0.5, 0.5, (1,), np.float32)

    def reward(self, action: Any) -> float:
        return float(action[0])


class Bad(Toy):
    """Shows a number that is not finite as reward, or as observation, of the third step."""

    def __init__(self, what: str, value: float) -> None:
        super().__init__()
        self.what, self.value = what, value

    def observe(self) -> Any:
        return np.array([self.steps, self.value if (self.what, self.steps) == ("observation", 2) else 0.0], np.float32)

    def reward(self, action: Any) -> float:
        return self.value if (self.what, self.steps) == ("reward", 3) else 1.0


class Crashing(Toy):
    """Raises in the third step of episodes that start with a number above 0.8, as long as `budget` lasts."""

    def __init__(self, budget: list[int]) -> None:
        super().__init__()
        self.budget = budget
        self.fatal = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        self.fatal = bool(observation[1] > 0.8)
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.fatal and self.steps == 2 and self.budget[0] > 0:
            self.budget[0] -= 1
            raise RuntimeError("the simulator broke down")
        return super().step(action)


class DictToy(Toy):
    """Dict observations and multi-discrete actions."""

    observation_space = Dict({"position": Box(-10.0, 10.0, (3,), np.float32), "mode": Discrete(4)})
    action_space = MultiDiscrete([2, 3])

    def observe(self) -> Any:
        return {"position": self.np_random.random(3).astype(np.float32), "mode": np.int64(self.steps % 4)}

    def reward(self, action: Any) -> float:
        return float(action[0] + 10 * action[1])


class Foreign(VectorEnv[Any, Any, Any]):
    """A vector environment of another make: it can be reset only as a whole."""

    def __init__(self, envs: SyncVectorEnv) -> None:
        self.envs = envs
        self.num_envs = envs.num_envs
        self.metadata = envs.metadata
        self.single_observation_space, self.single_action_space = (
            envs.single_observation_space,
            envs.single_action_space,
        )

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        assert options is None
        return self.envs.reset(seed=seed)

    def step(self, actions: Any) -> Any:
        return self.envs.step(actions)


class Ramp(gymnasium.Env[Any, Any]):
    """Pays for where it started, and ends."""

    observation_space: Any = Box(-9.0, 9.0, (2,), np.float64)
    action_space: Any = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.start = self.np_random.uniform(-1.0, 1.0, 2)
        return self.start, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.start, self.pay(), True, False, {}

    def pay(self) -> float:
        """The first number, cubed."""
        return float(self.start[0] ** 3)
