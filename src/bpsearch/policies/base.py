"""The policy interface, and what every policy written in JAX shares."""

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float, Key, PyTree, Shaped

from bpsearch._core.arrays import Array, NumpyArray, Observations
from bpsearch._core.foreign import own_array
from bpsearch._core.jaxtools import at_the_edge, in_64_bit, to_numpy
from bpsearch.errors import DeterministicPolicyError, InvalidArgumentError

if TYPE_CHECKING:
    from bpsearch.policies.chosen_starts import StartChoice


class Policy(ABC):
    """A stochastic policy π_θ whose log-probabilities are differentiable in θ.

    A policy is immutable and a JAX pytree. Its methods are pure JAX functions, so that whole searches compile, unless
    `traceable` is False: then they work on NumPy arrays outside of `jit`. A batch of observations has any number of
    leading axes.

    Subclasses give `parameters`, `with_parameters`, `sample` and `log_prob`; the flat view of the parameters and
    the score are derived. One that is not traceable gives `act` and `score` in place of `sample`.
    """

    traceable: ClassVar[bool] = True
    # Samplers call `act` with this many rows at a time: for other numbers of rows matrix products round a row
    # differently, and an episode should not depend on how many others run beside it.
    row_multiple: ClassVar[int] = 16
    # Whether an action may depend on earlier steps of its episode, by a memory that samplers carry from step to step.
    remembers: ClassVar[bool] = False
    # Whether its action probabilities are unknown, so that nothing but Monte Carlo is possible.
    opaque: ClassVar[bool] = False
    # Whether it must be told which actions are allowed: its observations then are a dict of what the environment shows,
    # "observation", and of what `env.action_masks()` gives, "action_mask".
    sees_masks: ClassVar[bool] = False
    # Whether no other episode may run beside one of its own: its memory is one, and out of reach.
    alone: ClassVar[bool] = False

    @property
    def actor(self) -> "Policy":
        """Who acts: itself, unless it is the behavior of another that chooses starts."""
        return self

    @property
    def starts(self) -> "StartChoice | None":
        """Who chooses where episodes start; None if the environment does, as always for an evaluation policy."""
        return None

    @property
    @abstractmethod
    def observation_space(self) -> gymnasium.Space[Any]:
        """The observations that the policy accepts."""

    @property
    @abstractmethod
    def action_space(self) -> gymnasium.Space[Any]:
        """The actions that the policy draws."""

    @property
    @abstractmethod
    def parameters(self) -> PyTree[Array]:
        """θ, a pytree of arrays."""

    @abstractmethod
    def with_parameters(self, parameters: PyTree[Array]) -> Self:
        """The same policy with other parameters."""

    @in_64_bit
    def sample(
        self, key: Key[Array, ""], observations: Observations
    ) -> tuple[Shaped[Array, "..."], Float[Array, "*batch"]]:
        """Draw one action per observation; return the actions and their log-probabilities.

        A policy that is not traceable need not write it: by default it draws numbers for `act`.
        """
        if self.traceable:
            raise NotImplementedError(f"{type(self).__name__} is traceable and must give `sample`")
        rows = len(jax.tree_util.tree_leaves(observations)[0])
        uniforms = jax.random.uniform(key, (rows, self.uniforms), dtype=jnp.float64)
        return self.act(np.asarray(uniforms), observations)[:2]

    @abstractmethod
    def log_prob(self, observations: Observations, actions: Shaped[Array, "..."]) -> Float[Array, "*batch"]:
        """Log π_θ(a|s), one per observation."""

    @property
    def uniforms(self) -> int:
        """How many uniform numbers select one action in `act`."""
        return 1

    @in_64_bit
    def act(
        self, uniforms: Float[NumpyArray, "rows uniforms"], observations: Observations
    ) -> tuple[Shaped[NumpyArray, "rows ..."], Float[NumpyArray, " rows"], Shaped[NumpyArray, "rows ..."]]:
        """Select one action per observation by given random numbers, outside of `jit`.

        Where `sample` draws a batch from one key, here a row's action is a function of that row alone. A sampler that
        gives every episode its own numbers makes the episode independent of those that run beside it.

        Args:
            uniforms: (N, U), U = `self.uniforms`, in [0, 1), 64 bit.
            observations: (N, ...).

        Returns:
            The actions as drawn, their log-probabilities, and the actions that the environment is to be given:
            drawn actions outside of a box are clipped to it.
        """
        actions, log_probs = to_numpy(_jitted_rows(self, uniforms, observations))
        return actions, log_probs, clip_to(self.action_space, actions)

    def critic(self, observations: Observations) -> Float[NumpyArray, " rows"] | None:
        """What the policy's own critic expects from each observation; None without one. It serves as a feature only."""
        return None

    def begin(self, uniforms: Float[Array, " episodes"]) -> PyTree[Array]:
        """What the policy remembers of its episodes before their first steps; nothing, by default.

        Args:
            uniforms: (N,), one random number in [0, 1) for each episode.
        """
        return ()

    def sample_next(
        self, key: Key[Array, ""], observations: Observations, memory: PyTree[Array]
    ) -> tuple[Shaped[Array, "episodes ..."], Float[Array, " episodes"], PyTree[Array]]:
        """`sample` within episodes: takes what `begin` or the step before gave, and gives it for the step after."""
        return *self.sample(key, observations), memory

    def act_next(
        self, uniforms: Float[NumpyArray, "rows uniforms"], observations: Observations, memory: PyTree[Array]
    ) -> tuple[
        Shaped[NumpyArray, "rows ..."], Float[NumpyArray, " rows"], Shaped[NumpyArray, "rows ..."], PyTree[Array]
    ]:
        """`act` within episodes; see `sample_next`."""
        return *self.act(uniforms, observations), memory

    def act_in_blocks(
        self, uniforms: Float[NumpyArray, "rows uniforms"], observations: Observations, memory: PyTree[Array]
    ) -> tuple[
        Shaped[NumpyArray, "rows ..."], Float[NumpyArray, " rows"], Shaped[NumpyArray, "rows ..."], PyTree[Array]
    ]:
        """`act_next` for a multiple of `row_multiple` rows: a row does not depend on how many blocks there are.

        By default every block is a call of its own. A policy that gives a row the same bits beside any number of others
        overrides it.
        """
        if len(uniforms) == self.row_multiple:
            return self.act_next(uniforms, observations, memory)
        blocks = [slice(start, start + self.row_multiple) for start in range(0, len(uniforms), self.row_multiple)]
        found = []
        for block in blocks:
            seen, own = jax.tree_util.tree_map(lambda array: array[block], (observations, memory))  # noqa: B023
            found.append(self.act_next(uniforms[block], seen, own))
        actions, log_probs, executed, after = jax.tree_util.tree_map(lambda *parts: np.concatenate(parts), *found)
        return actions, log_probs, executed, after

    def log_prob_in_blocks(
        self, observations: Observations, actions: Shaped[Array, "rows ..."]
    ) -> Float[NumpyArray, " rows"]:
        """`log_prob` for a multiple of `row_multiple` rows; see `act_in_blocks`."""
        rows = len(actions)
        found = []
        for start in range(0, rows, self.row_multiple):
            block = slice(start, start + self.row_multiple)
            seen = jax.tree_util.tree_map(lambda array: array[block], observations)  # noqa: B023
            found.append(np.asarray(self.log_prob(seen, actions[block])))
        return np.concatenate(found)

    @property
    def deterministic(self) -> bool:
        """Whether the policy has no action noise at all, so that no other behavior could be of use."""
        return False

    def mode(self) -> "Policy":
        """The policy that takes the most likely action: it has no action noise, no scores, and is not searchable.

        By default it is made of `most_likely`, or of `act_most_likely` where actions are changed before the environment
        gets them, or depend on a memory.
        """
        from bpsearch.policies.mode import Mode  # it imports this module

        if self.deterministic:
            return self
        own = type(self)
        if own.most_likely is Policy.most_likely and own.act_most_likely is Policy.act_most_likely:
            raise InvalidArgumentError(
                f"the most likely action of {self.name} is not known, so it cannot be evaluated with deterministic=True"
            )
        return Mode(self)

    def most_likely(self, observations: Observations) -> Shaped[Array, "..."]:
        """The action of the largest probability or density, one per observation; a JAX function if `traceable`."""
        raise NotImplementedError(f"{self.name} does not know its most likely actions")

    def act_most_likely(
        self, observations: Observations, memory: PyTree[Array]
    ) -> tuple[Shaped[NumpyArray, "rows ..."], Shaped[NumpyArray, "rows ..."], PyTree[Array]]:
        """`act_next` of the most likely actions: as drawn, as the environment is given them, and the memory after."""
        actions = np.asarray(self.most_likely(observations))
        return actions, clip_to(self.action_space, actions), memory

    @property
    def name(self) -> str:
        """What errors call the policy."""
        return f"the policy {type(self).__name__}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of its value should know about how the policy acts, a sentence each."""
        return ()

    @property
    def mode_notes(self) -> tuple[str, ...]:
        """The same of its mode."""
        return self.notes

    @property
    def weight_bound(self) -> float:
        """What no importance weight of an episode that this policy collects can exceed; infinity if none is known."""
        return math.inf

    @property
    def constants(self) -> dict[str, Array]:
        """What the policy computes with besides its leaves, by name: a stored study tells policies apart by it."""
        return {}

    def check_searchable(self) -> None:
        """Refuse a search for a better behavior if there can be none."""
        if self.deterministic:
            raise DeterministicPolicyError(
                "the evaluation policy is deterministic: its actions add no variance that another behavior could "
                "remove; evaluate it by Monte Carlo (method='mc', or OnPolicy())"
            )

    def check_support(self, evaluation: "Policy") -> None:  # noqa: B027
        """Refuse this policy as behavior for `evaluation` if it rules out an action that `evaluation` may take.

        Densities of full support, the default, rule out nothing.
        """

    @property
    @in_64_bit
    def flat(self) -> Float[Array, " parameters"]:
        """θ as a vector."""
        return at_the_edge(ravel_pytree(self.parameters)[0])

    @in_64_bit
    def with_flat(self, vector: Float[Array, " parameters"]) -> Self:
        """The same policy with the parameters of `vector`, in the order of `flat`."""
        flat, unravel = ravel_pytree(self.parameters)
        if not isinstance(vector, jax.Array):
            vector = own_array("vector", vector)
        if vector.shape != flat.shape:
            raise InvalidArgumentError(f"vector must have the shape {flat.shape} of the parameters, got {vector.shape}")
        return self.with_parameters(at_the_edge(unravel(jnp.asarray(vector))))

    def score(
        self,
        observations: Observations,
        actions: Shaped[Array, "episodes steps ..."],
        weights: Float[Array, "episodes steps"],
    ) -> Float[Array, " parameters"]:
        """The score Σ_nt c_nt ∇θ log π_θ(a_nt|s_nt), as a vector in the order of `flat`.

        The sum runs over time in a scan: one step's activations stay in cache, where a single
        vector-Jacobian product over all steps would write them to memory and read them back. The weights are brought
        to the size of 1 for a network of 32 bit, whose range squared importance weights can leave, and the result
        has their type.

        Args:
            observations: (N, T, ...).
            actions: (N, T, ...).
            weights: (N, T), the score weights c; 0 on padding.
        """
        flat, unravel = ravel_pytree(self.parameters)

        def weighted_log_prob(vector: jax.Array, step: tuple[jax.Array, ...]) -> jax.Array:
            observations_t, actions_t, weights_t = step
            log_probs = self.with_parameters(unravel(vector)).log_prob(observations_t, actions_t)
            return jnp.vdot(weights_t.astype(log_probs.dtype), log_probs)

        def accumulate(total: jax.Array, step: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
            return total + jax.grad(weighted_log_prob)(flat, step), None

        largest = jnp.max(jnp.abs(weights))
        scale = jnp.where(largest > 0.0, largest, 1.0)
        steps = tuple(jnp.moveaxis(jnp.asarray(x), 1, 0) for x in (observations, actions, weights / scale))
        return jax.lax.scan(accumulate, jnp.zeros_like(flat), steps)[0] * scale

    @in_64_bit
    def episode_scores(
        self,
        observations: Observations,
        actions: Shaped[Array, "episodes steps ..."],
        weights: Bool[Array, "episodes steps"] | Float[Array, "episodes steps"],
    ) -> Float[Array, "episodes parameters"]:
        """(N, P), the score Z_n = Σ_t c_nt ∇θ log π_θ(a_nt|s_nt) of each episode, in 64 bit.

        Args:
            observations: (N, T, ...).
            actions: (N, T, ...).
            weights: (N, T), c; 0 on padding. The mask of the episodes gives their own scores.
        """
        if not self.traceable:
            batch = (observations, actions, np.asarray(weights, np.float64))
            rows = [jax.tree_util.tree_map(lambda leaf, n=n: leaf[n : n + 1], batch) for n in range(len(weights))]
            return np.stack([self.score(*row) for row in rows])

        def of_episode(*steps: Array) -> Array:
            return self.score(*(step[None] for step in steps))

        scores = jax.vmap(of_episode)(
            jnp.asarray(observations), jnp.asarray(actions), jnp.asarray(weights, jnp.float64)
        )
        return at_the_edge(scores.astype(jnp.float64))

    # Whether steps can be counted by state and action, each with one parameter: the logarithm of its probability up to
    # a constant of the state.
    counts_actions: ClassVar[bool] = False

    def count_actions(
        self,
        observations: Observations,
        actions: Shaped[Array, "episodes steps ..."],
        weights: Float[Array, "episodes steps"],
    ) -> Float[Array, " parameters"]:
        """(P,), the weighted number of times that each action was taken in each state, in the order of `flat`."""
        raise NotImplementedError(f"{self.name} does not count actions")

    def noisier(self, temperature: float) -> Self:
        """The same policy with more noise, π(a|s)^(1/temperature) normalised, to look for what it hardly ever does.

        Itself, if it is not known how; that is the default.
        """
        return self

    def visits(
        self, observations: Observations, mask: Bool[Array, "episodes steps"]
    ) -> Float[Array, "episodes states"] | None:
        """(N, D), how often each episode was in each of D kinds of states; None where states cannot be counted.

        Those who count them also have `score_covariance` and `score_variances`, which know about actions that were
        never taken.
        """
        return None

    @property
    def free_parameters(self) -> NumpyArray | slice:
        """Those whose scores determine the scores of all; a regression on scores needs no more."""
        return slice(None)

    def score_covariance(self, visits: Float[Array, " states"]) -> Float[Array, "parameters parameters"]:
        """(P, P), Σ_s V_s Cov_{a~π_θ(·|s)} ∇θ log π_θ(a|s) for (D,) visits V.

        With the visits of an episode its expectation is that of Z Zᵀ.
        """
        raise NotImplementedError(f"{type(self).__name__} does not count states")

    def score_steps(
        self, directions: Float[Array, "directions parameters"]
    ) -> Float[NumpyArray, "directions states actions"] | None:
        """(J, D, A), vᵀ∇θ log π_θ(a|s) of each of (J, P) directions v in each kind of state for each action.

        None where states or actions cannot be counted.
        """
        return None

    def score_variances(self, directions: Float[Array, "directions parameters"]) -> Float[Array, "directions states"]:
        """(J, D), Var_{a~π_θ(·|s)} vᵀ∇θ log π_θ(a|s) of each of (J, P) directions v in each kind of state."""
        raise NotImplementedError(f"{type(self).__name__} does not count states")


def clip_to(space: gymnasium.Space[Any], actions: NumpyArray) -> NumpyArray:
    """What the environment is given for drawn actions: those outside of a box are clipped to it."""
    if isinstance(space, gymnasium.spaces.Box):
        # On a few rows twice as fast as np.clip.
        return np.minimum(np.maximum(actions, space.low), space.high).astype(space.dtype, copy=False)
    return actions


@jax.jit
def _jitted_rows(policy: Policy, uniforms: Array, observations: Observations) -> tuple[Array, Array]:
    """`sample` with one key per row, made of the bits of the row's number."""
    bits = (uniforms[:, 0] * 2.0**53).astype(jnp.uint64)
    words = jnp.stack([bits >> 32, bits & 0xFFFFFFFF], axis=-1).astype(jnp.uint32)
    return jax.vmap(policy.sample)(jax.random.wrap_key_data(words, impl="threefry2x32"), observations)
