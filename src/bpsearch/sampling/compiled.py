"""The compiled sampler: a scan over time of environment steps mapped over the episodes of a batch."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bpsearch._core import threefry
from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch._core.jaxtools import in_turn
from bpsearch.envs.base import CompiledEnv
from bpsearch.policies.base import Policy
from bpsearch.policies.chosen_starts import StartChoice
from bpsearch.sampling.trajectories import Trajectories


def rollout(
    env: CompiledEnv,
    policy: Policy,
    key: Array,
    episodes: int,
    repeats: int = 1,
    resets: int = 0,
    start_keys: Array | None = None,
) -> Trajectories:
    """Sample `episodes` episodes of `policy`: a pure JAX function, to be used inside `jit`.

    Every episode is run to its own end, so none is preferred for being short. After its end an episode stands
    still: its further steps are masked. `repeats` neighbors at a time share the keys that the environment draws from.
    Every episode gets `resets` further starts. `start_keys` are the keys of chosen starts, one for each episode.
    """
    start_key, key = jax.random.split(key)
    starts = episodes // repeats

    def shared(keys: Array) -> Array:
        return keys if repeats == 1 else jnp.repeat(keys, repeats, axis=0)

    own_keys = jax.random.split(start_key, starts) if start_keys is None else start_keys
    state = jax.vmap(env.reset)(shared(own_keys))
    observe = jax.vmap(env.observe)

    # No step has the number of the horizon, so no other draw has this key.
    memory = policy.begin(jax.random.uniform(jax.random.fold_in(key, env.horizon), (episodes,), dtype=jnp.float64))

    def step(
        carry: tuple[Any, Any, jax.Array], keys: jax.Array
    ) -> tuple[tuple[Any, Any, jax.Array], tuple[Array, ...]]:
        state, memory, running = carry
        policy_key, env_key = keys
        observations = observe(state)
        actions, log_probs, memory = policy.sample_next(policy_key, observations, memory)
        moved, rewards, ended = jax.vmap(env.step)(shared(threefry.split(env_key, starts)), state, actions)

        def while_running(new: Array, old: Array) -> Array:
            return jnp.where(running.reshape(running.shape + (1,) * (new.ndim - 1)), new, old)

        state = jax.tree_util.tree_map(while_running, moved, state)
        record = (
            observations,
            actions,
            jnp.where(running, rewards, 0.0),
            jnp.where(running, log_probs, 0.0),
            running,
        )
        return (state, memory, running & ~ended), record

    further = {}
    if resets:
        # Nor has any the number after that.
        reset_keys = jax.random.split(jax.random.fold_in(key, env.horizon + 1), (episodes, resets))
        further["resets"] = jax.vmap(jax.vmap(lambda key: env.observe(env.reset(key))))(reset_keys)
    keys = jax.vmap(lambda time: jax.random.split(jax.random.fold_in(key, time)))(jnp.arange(env.horizon))
    (state, _, _), record = jax.lax.scan(step, (state, memory, jnp.ones(episodes, bool)), keys)
    observations, actions, rewards, log_probs, mask = (jnp.moveaxis(x, 0, 1) for x in record)
    return trajectories_inside_jit(
        observations=observations,
        actions=actions,
        rewards=rewards.astype(jnp.float64),
        log_probs=log_probs.astype(jnp.float64),
        mask=mask,
        final_observations=observe(state),
        **further,
    )


def trajectories_inside_jit(**arrays: Array) -> Trajectories:
    """A batch of traced arrays, whose numbers cannot be checked before the compiled program has run."""
    batch = object.__new__(Trajectories)
    origin = {"behavior_parameters": None, "seed": None, "resets": None}
    for name, value in (origin | arrays).items():
        object.__setattr__(batch, name, value)
    return batch


@in_turn
@partial(jax.jit, static_argnames=("episodes", "repeats", "resets"))
def jitted_rollout(
    env: CompiledEnv,
    policy: Policy,
    key: Array,
    episodes: int,
    repeats: int = 1,
    resets: int = 0,
    start_keys: Array | None = None,
) -> Trajectories:
    """`rollout`, compiled."""
    return rollout(env, policy, key, episodes, repeats, resets, start_keys)


def choose_starts(
    env: CompiledEnv, choice: StartChoice, key: Array, episodes: int, resets: int
) -> tuple[Array, NumpyArray, NumpyArray | None]:
    """For each episode the key of the start that is run, of those that are offered, and the log of what it counts.

    Also its further starts, if they are among the offered ones.
    """
    # The key of starts that are not chosen, folded: no other draw has it.
    offer = jax.random.fold_in(jax.random.split(key)[0], 1)
    groups = {choice.members(episode).start: choice.members(episode) for episode in range(episodes)}
    everyone = max(members[-1] for members in groups.values()) + 1
    keys, uniforms, offered = _offer(env, offer, everyone, choice.offers(resets))
    starts, numbers = np.asarray(offered), np.asarray(uniforms)
    at = np.arange(everyone * keys.shape[1]).reshape(everyone, -1)
    own, log_weights = np.zeros(everyone, int), np.zeros(everyone)
    others: dict[int, NumpyArray] = {}
    for members in groups.values():
        some = list(members)
        dealt = choice.deal(members, numbers[some], starts[some].reshape(-1, *starts.shape[2:]))
        places = at[some].reshape(-1)
        own[some], log_weights[some] = places[dealt.indices], dealt.log_weights
        if dealt.others is not None:
            others |= dict(zip(some, places[dealt.others], strict=True))
    flat = starts.reshape(-1, *starts.shape[2:])
    further = flat[np.stack([others[episode] for episode in range(episodes)])] if others else None
    return keys.reshape(-1)[own[:episodes]], log_weights[:episodes], further


@in_turn
@partial(jax.jit, static_argnames=("episodes", "candidates"))
def _offer(env: CompiledEnv, key: Array, episodes: int, candidates: int) -> tuple[Array, Array, Observations]:
    keys = jax.random.split(jax.random.fold_in(key, 0), (episodes, candidates))
    uniforms = jax.random.uniform(jax.random.fold_in(key, 1), (episodes,), dtype=jnp.float64)
    return keys, uniforms, jax.vmap(jax.vmap(lambda key: env.observe(env.reset(key))))(keys)
