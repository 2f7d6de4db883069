"""Environments that now and then show, pay or declare something else than they should."""

import random
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import bpsearch as bps
from benchmarks.fuzz.tally import Tally

SPACES: tuple[gymnasium.Space[Any], ...] = (
    spaces.Discrete(5),
    spaces.Discrete(3, start=-1),
    spaces.Box(-1.0, 1.0, (2,), np.float32),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(3),
    spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(0.0, 1.0, (1,))),
)
LIES: tuple[Any, ...] = (
    99, -1, -2, 2.7, 2.0, "3", None, np.nan, np.inf, True, 1j, [], [0], [0, 1], np.zeros(2), np.zeros((2, 2)),
    np.array([0, 5]), np.array([[1]]), np.zeros(3, np.int8), np.array([0.0, np.nan]), {"a": 1}, {"a": 9, "b": [0.5]},
    {"b": np.zeros(1)}, {"a": 1, "b": np.zeros(1), "c": 2}, np.array(3), np.zeros(2, ">f4"), np.zeros(2, object),
)  # fmt: skip
REWARDS: tuple[Any, ...] = (np.ones(2), "1", None, 1j, np.nan, np.inf, [1.0], np.array([1.0]), np.float32(2), 3, True)


class Liar(gymnasium.Env[Any, Any]):
    """Pays 1 in each of 5 steps, and keeps to its space, but for one lie in one step."""

    action_space: Any = spaces.Discrete(2)

    def __init__(
        self, space: gymnasium.Space[Any], at: int, shown: Any = None, paid: Any = 1.0, lies: str = ""
    ) -> None:
        self.observation_space: Any = space
        self.at, self.shown, self.paid, self.lies, self.steps = at, shown, paid, lies, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self.observation_space.seed(seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        """One step."""
        self.steps += 1
        if self.lies == "tuple" and self.steps == self.at:
            return self._observe(), 1.0
        reward = self.paid if self.lies == "reward" and self.steps == self.at else 1.0
        return self._observe(), reward, self.steps >= 5, False, {}

    def _observe(self) -> Any:
        lie = self.lies == "observation" and self.steps == self.at
        return self.shown if lie else self.observation_space.sample()


def run(runs: int, seed: int, folder: Path, tally: Tally) -> None:
    warnings.simplefilter("ignore")
    for number in range(runs):
        rng = random.Random(f"{seed} {number}")
        space, lies, at = (
            rng.choice(SPACES),
            rng.choice(("observation", "observation", "reward", "tuple")),
            rng.randrange(6),
        )
        shown, paid = rng.choice(LIES), rng.choice(REWARDS)
        how = f"run {number} ({lies} {shown if lies == 'observation' else paid!r} of {space} at step {at})"
        policy = bps.FunctionPolicy(lambda observation: 0, (space, Liar.action_space))
        made = [space, at, shown, paid, lies]
        batch = tally.attempt(lambda made=made, policy=policy: bps.sample(lambda: Liar(*made), policy, 3), how)  # type: ignore[misc]
        if batch is None:
            continue
        expected = 5.0 if lies != "reward" or at == 0 else 4.0 + float(np.asarray(paid).reshape(-1)[0])
        if not np.allclose(batch.returns(), expected):
            tally.complain(f"returns {batch.returns()}, expected {expected}", how)
        if lies == "observation" and not space.contains(shown) and not _harmless(space, shown):
            tally.complain("the lie was believed", how)


def _harmless(space: gymnasium.Space[Any], shown: Any) -> bool:
    """Whether the lie is the same number in another type, which a space of Gymnasium refuses as well."""
    if isinstance(space, spaces.Dict):
        return (
            isinstance(shown, dict)
            and shown.keys() == space.keys()
            and all(_harmless(part, shown[key]) for key, part in space.items())
        )
    value = np.asarray(shown)
    if value.shape != space.shape or value.dtype.kind not in "biuf" or not np.isfinite(value).all():
        return False
    # Bounds of a Box are the environment's own affair.
    return isinstance(space, spaces.Box) or (
        value.dtype.kind in "biu"
        and bool(space.contains(value.astype(space.dtype)[()] if value.ndim == 0 else value.astype(space.dtype)))
    )
