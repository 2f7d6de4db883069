"""Environments of MuJoCo Playground as compiled environments."""

from typing import Any

import jax
from mujoco_playground import MjxEnv, registry

from bpsearch.errors import InvalidArgumentError
from bpsearch.integrations.brax import BraxEnv

PREFIX = "playground:"


def as_compiled(env: str | MjxEnv) -> BraxEnv:
    """From "playground:CartpoleBalance" or an environment; episodes are as long as its configuration says.

    By name and without a GPU its physics runs in JAX: Playground's default, Warp, is made for GPUs. To choose, give
    `registry.load(name, config_overrides={"impl": ...})`.
    """
    if isinstance(env, str):
        name = env.removeprefix(PREFIX)
        if name not in registry.ALL_ENVS:
            raise InvalidArgumentError(f"MuJoCo Playground has no environment {name!r}")
        config: Any = registry.get_default_config(name)
        in_jax = "impl" in config and jax.default_backend() == "cpu"
        env = registry.load(name, config, config_overrides={"impl": "jax"} if in_jax else None)
    repeated = int(env._config.get("action_repeat", 1))
    if repeated != 1:
        raise InvalidArgumentError(f"an environment must not repeat actions, got {repeated} times")
    return BraxEnv(env, int(env._config.episode_length))
