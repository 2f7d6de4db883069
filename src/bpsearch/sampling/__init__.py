"""Sampling: the one `sample` function over the compiled and the Gymnasium sampler."""

from functools import partial
from typing import Any, Literal

import jax
import numpy as np
from gymnasium import Space, spaces

from bpsearch._core.checks import check_integer, check_type, quote
from bpsearch._core.foreign import MAX_BYTES
from bpsearch._core.jaxtools import in_64_bit, replace, to_numpy
from bpsearch.envs.adapter import GymnasiumEnv
from bpsearch.envs.base import CompiledEnv
from bpsearch.envs.resolve import GymnasiumSource, HasSpaces, adapt, factory_of
from bpsearch.envs.spaces import MisfitError, outside
from bpsearch.envs.spaces import first as first_index
from bpsearch.errors import InvalidArgumentError, InvalidTrajectoriesError, SpaceMismatchError
from bpsearch.policies.base import Policy
from bpsearch.sampling.compiled import choose_starts, jitted_rollout
from bpsearch.sampling.gymnasium import ASYNC_ENVS, GymnasiumSampler
from bpsearch.sampling.masks import masked_space
from bpsearch.sampling.seeds import batch_key
from bpsearch.sampling.trajectories import Trajectories

__all__ = ["GymnasiumSampler", "check_spaces", "sample", "stream_size"]

MAX_EPISODES = 10**8  # of one batch
_STEP_BYTES = 17  # of reward, log-probability and mask, which every step has
CHUNK = 1000  # episodes per random stream and compiled call; bounds memory, and results do not depend on it being met


@in_64_bit
def sample(
    env: CompiledEnv | GymnasiumSampler | GymnasiumSource,
    policy: Policy,
    episodes: int = 100,
    *,
    seed: int = 0,
    batch: int = 0,
    repeats: int = 1,
    resets: int = 0,
    first: int = 0,
    horizon: int | None = None,
    env_kwargs: dict[str, Any] | None = None,
    num_envs: int | None = None,
    vectorization: Literal["sync", "async"] | None = None,
) -> Trajectories:
    """Run `policy` in `env` for `episodes` whole episodes.

    Args:
        env: a compiled environment, a `TabularMDP` for instance; or, for Gymnasium, an environment's id, a factory, a
            single or a vector environment, or a `GymnasiumSampler`, whose environments stay open from call to call.
        policy: the behavior policy.
        episodes: how many episodes.
        seed: the same seed gives the same episodes.
        batch: the number of the batch within a study: another random stream of the same seed.
        repeats: so many neighboring episodes have the same start and get the same random numbers in the environment;
            only their actions are drawn independently. In Gymnasium they are reset with the same seed.
        resets: how many further starts to draw for each episode, which cost no steps.
        first: the number of the first episode; a smaller batch is a part of a larger one. A multiple of `repeats`, in a
            compiled environment of `stream_size(repeats)`.
        horizon: cut episodes after this many steps; by default they end as the environment says.
        env_kwargs: what `gymnasium.make` is given besides an id.
        num_envs: Gymnasium: how many environments run in parallel; the episodes do not depend on it.
        vectorization: Gymnasium: "sync" (default) or "async", a process for each environment.

    Returns:
        The batch, checked, as NumPy arrays.
    """
    check_type("policy", policy, Policy, "a policy of bpsearch (`bpsearch.policies.resolve.load` makes one)")
    env = adapt(env)
    check_integer("episodes", episodes)
    check_integer("batch", batch, at_least=0)
    if episodes > MAX_EPISODES:
        raise InvalidArgumentError(f"episodes must be at most {MAX_EPISODES} in one batch, got {quote(episodes)}")
    if episodes % check_integer("repeats", repeats):
        raise InvalidArgumentError(f"episodes must be a multiple of repeats = {repeats}, got {episodes}")
    check_integer("resets", resets, at_least=0)
    if check_integer("first", first, at_least=0) % repeats:
        raise InvalidArgumentError(f"first must be a multiple of repeats = {repeats}, got {first}")
    options = {"env_kwargs": env_kwargs, "num_envs": num_envs, "vectorization": vectorization}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if isinstance(env, CompiledEnv) and policy.traceable:
        _refuse("a compiled environment", given)
        place = env if horizon is None else _cut(env, horizon)
        return _sample_compiled(place, policy, episodes, seed, batch, repeats, resets, first)
    numbers = {"seed": seed, "batch": batch, "repeats": repeats, "resets": resets, "first": first}
    if isinstance(env, GymnasiumSampler):
        _refuse("an open GymnasiumSampler", given if horizon is None else given | {"horizon": horizon})
        check_spaces(env, policy)
        return env.sample(policy, episodes, **numbers)
    source = partial(GymnasiumEnv, env) if isinstance(env, CompiledEnv) else env
    if num_envs is None and vectorization == "async" and factory_of(source, env_kwargs) is not None:
        given["num_envs"] = min(ASYNC_ENVS, episodes)
    with GymnasiumSampler(source, horizon=horizon, **given) as sampler:
        check_spaces(sampler, policy)
        return sampler.sample(policy, episodes, **numbers)


def _sample_compiled(
    env: CompiledEnv, policy: Policy, episodes: int, seed: int, batch: int, repeats: int, resets: int, first: int
) -> Trajectories:
    check_spaces(env, policy)
    size = episodes * env.horizon * _STEP_BYTES
    if size > MAX_BYTES:
        raise InvalidArgumentError(
            f"{episodes} episodes of {env.horizon} steps would take more than {MAX_BYTES} bytes: sample fewer "
            f"of them, or cut them by a smaller horizon"
        )
    key = batch_key(seed, batch)
    chunk = stream_size(repeats)
    if first % chunk:
        raise InvalidArgumentError(f"first must be a multiple of {chunk} in a compiled environment, got {first}")
    sizes = [min(chunk, episodes - start) for start in range(0, episodes, chunk)]
    behavior, policy = policy, policy.actor
    chunks, start_weights, offered = [], [], []
    for i, size in enumerate(sizes):
        own, chosen = jax.random.fold_in(key, first // chunk + i), None
        if behavior.starts is not None:
            chosen, log_weights, others = choose_starts(env, behavior.starts, own, size, resets)
            start_weights.append(log_weights)
            offered += [] if others is None else [others]
        chunks.append(jitted_rollout(env, policy, own, size, repeats, 0 if offered else resets, chosen))
    fields = ["observations", "actions", "rewards", "log_probs", "mask", "final_observations"]
    fields += ["resets"] if resets and not offered else []
    joined = {name: np.concatenate([np.asarray(getattr(chunk, name)) for chunk in chunks]) for name in fields}
    if offered:
        joined["resets"] = np.concatenate(offered)
    _check_joined(env, joined)
    if start_weights:
        joined["log_probs"] = np.array(joined["log_probs"])
        joined["log_probs"][:, 0] -= np.concatenate(start_weights)
    return Trajectories(
        **joined, behavior_parameters=to_numpy(behavior.flat), seed=np.array([seed, batch], dtype=np.int64)
    )


def _check_joined(env: CompiledEnv, joined: dict[str, Any]) -> None:
    """Refuse what a compiled environment shows outside of its countable space: a table would look up another state."""
    for name in ("observations", "final_observations"):
        values, leading = joined[name], 1 if name.startswith("final") else 2
        try:
            bad = None if values.dtype.kind == "f" else outside(env.observation_space, values, leading)
        except MisfitError as misfit:
            raise InvalidTrajectoriesError(f"each of the {name} {misfit}; the batch is not counted") from misfit
        at = None if bad is None else first_index(bad)
        if at is not None:
            raise InvalidTrajectoriesError(
                f"{name} of episode {at[0]} hold {values[at]}, but the environment declares {env.observation_space}; "
                f"the batch is not counted"
            )


def stream_size(repeats: int = 1) -> int:
    """How many episodes of a compiled environment share a random stream: they are compiled and run together."""
    return max(CHUNK // repeats, 1) * repeats


def check_spaces(env: HasSpaces, policy: Policy) -> None:
    """Refuse a policy that does not speak of the environment's observations and actions.

    Boxes must have the same shape and both hold real numbers; the policy's must have room for the environment's. Its
    raw actions may lie beyond the environment's bounds, which clips them, and 32 and 64 bit go together.
    """
    for what in ("observation", "action"):
        of_env, of_policy = getattr(env, f"{what}_space"), getattr(policy, f"{what}_space")
        if what == "observation" and policy.sees_masks:
            of_env = masked_space(of_env, env.action_space)
        if of_env != of_policy and not _has_room(of_policy, of_env):
            raise SpaceMismatchError(
                f"the {what} spaces differ: the environment has {of_env}, the policy has {of_policy}"
            )


def _has_room(outer: Space[Any], inner: Space[Any]) -> bool:
    if not (isinstance(outer, spaces.Box) and isinstance(inner, spaces.Box)):
        return False
    real = all(np.issubdtype(space.dtype, np.floating) for space in (outer, inner))
    same = outer.shape == inner.shape
    return real and same and bool(np.all(outer.low <= inner.low) and np.all(outer.high >= inner.high))


def _cut(env: CompiledEnv, horizon: int) -> CompiledEnv:
    return replace(env, horizon=min(env.horizon, check_integer("horizon", horizon)))


def _refuse(what: str, given: dict[str, Any]) -> None:
    for name, value in given.items():
        raise InvalidArgumentError(f"{name} has no meaning for {what}, got {value!r}")
