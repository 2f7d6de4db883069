"""Vector environments of one piece whose episodes can be started one by one, as those of single environments are.

`gymnasium.make_vec` gives some environments as one program for all of them, many times faster than one after the other.
Such a program draws all starts from one generator, so an episode would depend on those beside it. Here each start comes
from its own seed, as in the single environment, and the steps are Gymnasium's own. So the episodes are the same to the
last bit, which is looked at before the program is used.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv

from bpsearch._core.arrays import NumpyArray
from bpsearch.envs.resolve import Factory, Make

FEWEST = 16  # environments from which on one program is faster than one after the other
_LOOKED_AT = 32  # steps


class WholeCartPole(CartPoleVectorEnv):
    """CartPole as one program; a list of seeds, and `reset_mask` among the options, start single environments."""

    metadata = {**CartPoleVectorEnv.metadata, "autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012
    state: Any  # (4, environments), 64 bit

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NumpyArray, dict[str, Any]]:
        """Start the environments of the mask, all without one; those without a seed stand upright."""
        chosen = np.flatnonzero((options or {}).get("reset_mask", np.ones(self.num_envs, bool)))
        if self.state is None:
            self.state = np.zeros((4, self.num_envs))
        self.state[:, chosen] = 0.0
        self.steps[chosen] = 0
        if seed is not None:
            seeds = [seed] * self.num_envs if isinstance(seed, int) else seed
            for slot in chosen.tolist():
                self.state[:, slot] = seeding.np_random(seeds[slot])[0].uniform(low=-0.05, high=0.05, size=(4,))
        return self.state.T.astype(np.float32), {}

    def step(self, action: NumpyArray) -> tuple[NumpyArray, NumpyArray, NumpyArray, NumpyArray, dict[str, Any]]:
        """Gymnasium's step; the next one resets nothing."""
        found = super().step(action)
        self.prev_done[:] = False
        return found

    def agrees(self, slot: int, single: gymnasium.Env[Any, Any]) -> bool:
        """Whether the state of an environment is that of a single one, in all of its 64 bit."""
        unwrapped: Any = single.unwrapped
        return np.array_equal(self.state[:, slot], unwrapped.state)


# By entry points, that of single environments and that of all together; with the arguments that both understand.
_KNOWN: dict[tuple[Any, Any], tuple[Callable[..., WholeCartPole], frozenset[str]]] = {
    (
        "gymnasium.envs.classic_control.cartpole:CartPoleEnv",
        "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv",
    ): (WholeCartPole, frozenset({"sutton_barto_reward"})),
}


def find_whole(factory: Factory, single: gymnasium.Env[Any, Any], count: int) -> VectorEnv[Any, Any, Any] | None:
    """`count` environments as one program; None if there is none that gives the same episodes, or if they are few.

    Args:
        factory: what makes single environments.
        single: one of them; it is reset and stepped to see whether the program does the same.
        count: how many.
    """
    spec = single.spec
    if not isinstance(factory, Make) or spec is None or spec.max_episode_steps is None or count < FEWEST:
        return None
    make, understood = _KNOWN.get((spec.entry_point, spec.vector_entry_point), (None, frozenset()))
    if make is None or spec.additional_wrappers or not understood.issuperset(spec.kwargs):
        return None
    whole = make(num_envs=count, max_episode_steps=spec.max_episode_steps, **spec.kwargs)
    whole.spec = spec
    return whole if _same_episodes(single, whole) else None


def _same_episodes(single: gymnasium.Env[Any, Any], whole: WholeCartPole) -> bool:
    """Whether some steps of all environments are those of the single one, to the last bit."""
    seeds = list(range(whole.num_envs))
    chosen, actions = whole.num_envs // 2, np.arange(whole.num_envs) % 2
    seen, _ = whole.reset(seed=seeds)
    if not np.array_equal(single.reset(seed=seeds[chosen])[0], seen[chosen]):
        return False
    for step in range(_LOOKED_AT):
        pushes = actions ^ (step // 3 % 2)
        seen, rewards, terminated, truncated, _ = whole.step(pushes)
        observation, *rest = single.step(pushes[chosen])[:4]
        if not np.array_equal(observation, seen[chosen]) or not whole.agrees(chosen, single):
            return False
        if rest != [rewards[chosen], terminated[chosen], truncated[chosen]]:
            return False
        if terminated[chosen]:
            break
    return True
