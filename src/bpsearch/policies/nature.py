"""Nature as a policy: declared noise becomes a part of what a behavior may change."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from bpsearch.envs.base import CompiledEnv
from bpsearch.envs.exposed import ExposedNoise, MakeGiven, declaring
from bpsearch.envs.noise import Categorical, Noise, NoisyEnv
from bpsearch.envs.registration import FACTORIES, make_compiled
from bpsearch.envs.resolve import Factory, GymnasiumSource, factory_of
from bpsearch.envs.tabular import TabularMDP
from bpsearch.errors import InvalidArgumentError
from bpsearch.policies.base import Policy
from bpsearch.policies.mlp import CategoricalMLP, GaussianMLP
from bpsearch.policies.product import Product
from bpsearch.policies.resolve import PolicySource, load
from bpsearch.policies.table import SoftmaxTable


def expose_noise(
    policy: PolicySource,
    env: CompiledEnv | GymnasiumSource,
    *,
    names: Sequence[str] | None = None,
    deterministic: bool = False,
    search_agent: bool = True,
) -> tuple[Policy, CompiledEnv | Factory]:
    """Let behaviors tilt what the environment leaves to chance, too.

    Nature is a second policy: she sees what the agent sees and draws the noise of the step from the declared
    distribution. The pair (agent, nature) is then evaluated where the noise is given with the action,

        policy, env = bps.expose_noise(controller, env)
        bps.evaluate(policy, env, 3000, "levels", failure=..., level=...)

    and its value is that of the agent: pair and agent have the same episodes. A behavior changes nature as it changes
    an agent, and log p(noise) − log q(noise|observation) is added to the log-ratio of the step. The agent may be
    deterministic, or a plain function.

    Args:
        policy: the agent, as for `evaluate`.
        env: a `NoisyEnv`; a Gymnasium environment that declares noise (`DeclaresNoise`), a factory of it, or its id; or
            a `TabularMDP`, all of whose transitions are declared, with a table as policy.
        names: of the noise that behaviors may tilt; all by default.
        deterministic: as for `evaluate`.
        search_agent: whether behaviors may change the agent's actions, too. An agent without action noise, or of
            unknown probabilities, is never changed.

    Returns:
        The pair, and the environment in which it acts. Recorded actions are the agent's and nature's, side by side.
    """
    if isinstance(env, str) and env in FACTORIES:
        env = make_compiled(env)
    agent = load(policy, env)
    agent = agent.mode() if deterministic else agent
    if isinstance(env, TabularMDP):
        return _expose_table(agent, env, names)
    factory: Factory | None = None
    if isinstance(env, NoisyEnv):
        declared = dict(env.noise)
    elif isinstance(env, CompiledEnv):
        raise InvalidArgumentError(f"{type(env).__name__} declares no noise: it must be a bps.envs.NoisyEnv")
    else:
        factory = factory_of(env)
        if factory is None:
            raise InvalidArgumentError(f"give an id or a factory to expose noise, got the open environment {env}")
        made = factory()
        declared = dict(declaring(made).noise)
        made.close()
    chosen = tuple(declared) if names is None else tuple(names)
    missing = [name for name in chosen if name not in declared]
    if missing or not chosen:
        raise InvalidArgumentError(f"names must be of the declared noise, {', '.join(declared)}, got {list(chosen)}")
    natures = [nature_of(declared[name], agent.observation_space) for name in chosen]
    pair = _pair(agent, natures, chosen, search_agent=search_agent)
    if isinstance(env, NoisyEnv):
        return pair, ExposedNoise(env, chosen, env.horizon, env.discount)
    assert factory is not None
    return pair, MakeGiven(factory, chosen)


def nature_of(noise: Noise, observation_space: gymnasium.Space[Any]) -> Policy:
    """The policy that draws `noise` whatever it sees, and can be changed to draw it by what it sees.

    Of vectors it is linear: its mean, or its logits, are W s + b with W = 0 at first. Of Discrete observations it is a
    table.

    Raises:
        InvalidArgumentError: there is none for these observations.
    """
    space: Any = observation_space
    if isinstance(noise, Categorical) and isinstance(space, gymnasium.spaces.Discrete):
        return SoftmaxTable(np.tile(noise.logits, (int(space.n), 1)))
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        raise InvalidArgumentError(
            f"noise can be tilted by what vectors of observations show, or categorical noise by Discrete ones; "
            f"got {noise} and {space}"
        )
    size = len(noise.probabilities) if isinstance(noise, Categorical) else int(np.prod(noise.space.shape or (1,)))
    weights = np.zeros((size, *space.shape))
    if isinstance(noise, Categorical):
        return CategoricalMLP((weights,), (noise.logits,))
    return GaussianMLP((weights,), (np.zeros(size),), np.zeros(size))


def _pair(agent: Policy, natures: Sequence[Policy], names: Sequence[str], *, search_agent: bool) -> Policy:
    parts = (agent, *natures)
    if all(isinstance(part, SoftmaxTable) for part in parts):
        return _join_tables([part for part in parts if isinstance(part, SoftmaxTable)])
    fixed = agent.deterministic or agent.opaque or not search_agent
    said = f"The environment's noise ({', '.join(names)}) is drawn with the actions, and behaviors may tilt it"
    note = f"{said}; the agent itself is never changed." if fixed else f"{said} as they do the agent's actions."
    return Product(parts, (fixed, *(False for _ in natures)), (*agent.notes, note))


def _join_tables(tables: Sequence[SoftmaxTable]) -> SoftmaxTable:
    """One table whose actions are those of all, as `Joint` counts them."""
    joined = tables[0].probabilities
    for table in tables[1:]:
        joined = (joined[:, :, None] * table.probabilities[:, None, :]).reshape(len(joined), -1)
    return SoftmaxTable.from_probabilities(joined)


def _expose_table(agent: Policy, mdp: TabularMDP, names: Sequence[str] | None) -> tuple[SoftmaxTable, TabularMDP]:
    """The table π(a|s) p(k|s, a), and the MDP in which the outcome k of the K that (s, a) may have is chosen."""
    if not isinstance(agent, SoftmaxTable) or names is not None:
        raise InvalidArgumentError(
            f"of a TabularMDP all transitions are exposed, without names, and the policy must be a SoftmaxTable; got "
            f"{agent.name} and names={names}"
        )
    # A terminal state has no transitions that would count, but a distribution of actions.
    ends = np.asarray(mdp.terminal)[:, None, None]
    chances = np.where(ends, np.eye(mdp.states)[:, None, :], np.asarray(mdp.transitions))
    outcomes = int((chances > 0.0).sum(axis=-1).max())
    successors = np.argsort(chances <= 0.0, axis=-1, kind="stable")[..., :outcomes]  # (S, A, K)
    shape = (mdp.states, mdp.actions * outcomes)
    probabilities = agent.probabilities[:, :, None] * np.take_along_axis(chances, successors, axis=-1)
    transitions = np.eye(mdp.states)[successors].reshape(*shape, mdp.states)
    rewards = np.repeat(np.asarray(mdp.rewards), outcomes, axis=1)
    exposed = TabularMDP(transitions, rewards, mdp.initial, mdp.terminal, mdp.horizon, mdp.discount)
    return SoftmaxTable.from_probabilities(probabilities.reshape(shape)), exposed
