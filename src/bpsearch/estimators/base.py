"""What an estimator is, and how it is applied to a batch of episodes."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bpsearch._core.arrays import Array, Scalar
from bpsearch._core.checks import quote
from bpsearch._core.foreign import own_array
from bpsearch._core.jaxtools import at_the_edge, in_64_bit
from bpsearch.errors import InvalidArgumentError, OnPolicyError, WeightOverflowError
from bpsearch.policies.base import Policy
from bpsearch.sampling.groups import episode_groups
from bpsearch.sampling.trajectories import Trajectories

# Log-probabilities of a 32-bit network, computed again in a batch of another shape, differ by this much at most.
ON_POLICY_TOLERANCE = 1e-3

_DATA = ("rewards", "log_ratios", "mask", "discount")
_MODEL = ("q_hat", "v_hat")

# Of the arguments that `Estimator` names: a checker of types cannot say "with or without the last two".
Function: TypeAlias = Callable[..., Float[Array, " episodes"]]


@dataclass(frozen=True)
class Estimator:
    """A pure function of a batch's arrays that gives one value per episode.

    The function is called as `function(rewards, log_ratios, mask, discount)`, and with `q_hat, v_hat` besides if it
    takes them. Arrays are (N, T); time is the last axis; padding has reward 0, log-ratio 0 and mask False.

    - `rewards`: R_t.
    - `log_ratios`: log π_e(A_t|S_t) − log π_b(A_t|S_t).
    - `q_hat`: (N, T), q̂_t(S_t, A_t); 0 on padding.
    - `v_hat`: (N, T + 1), v̂_t(S_t); 0 after the end of the episode and after the horizon.

    It must be written with `jax.numpy`, so that its behavior policy gradient can be derived (`score_weights`).

    Attributes:
        function: the function.
        name: what results and messages call it.
        unbiased: whether E[value] is the value of the evaluation policy, for every behavior policy of full support.
        on_policy: whether that holds only if the behavior policy is the evaluation policy.
    """

    function: Function
    name: str
    unbiased: bool = True
    on_policy: bool = False

    def __post_init__(self) -> None:
        names = tuple(inspect.signature(self.function).parameters)
        if names not in (_DATA, _DATA + _MODEL):
            raise InvalidArgumentError(
                f"estimator {self.name!r} must take the arguments {_DATA} or {_DATA + _MODEL}, in this order and with "
                f"these names; got {names}"
            )

    @property
    def needs_model(self) -> bool:
        """Whether the function takes q̂ and v̂."""
        return "q_hat" in inspect.signature(self.function).parameters

    @in_64_bit
    def __call__(self, *args: Scalar | float | None, **kwargs: Scalar | float | None) -> Float[Array, " episodes"]:
        """The values, (N,), in 64 bit."""
        named = inspect.signature(self.function).bind(*args, **kwargs).arguments
        checked = {name: _own_argument(name, value) for name, value in named.items()}
        if np.shape(checked["discount"]) != () or checked["discount"] is None:
            raise InvalidArgumentError(f"discount must be one number, got {quote(checked['discount'])}")
        shapes = {name: np.shape(value) for name, value in checked.items() if name in ("rewards", "log_ratios", "mask")}
        if len(set(shapes.values())) > 1 or any(len(shape) != 2 for shape in shapes.values()):
            raise InvalidArgumentError(f"an estimator takes arrays of one shape (episodes, steps), got {shapes}")
        return at_the_edge(self.function(**checked))


def _own_argument(name: str, value: Any) -> Any:
    """An array of ours; one of JAX, which may be traced, and None stay as they are."""
    return value if value is None or isinstance(value, jax.Array) else own_array(name, value)


@overload
def estimator(function: Function) -> Estimator: ...
@overload
def estimator(*, unbiased: bool = ..., on_policy: bool = ...) -> Callable[[Function], Estimator]: ...
def estimator(
    function: Function | None = None, *, unbiased: bool = True, on_policy: bool = False
) -> Estimator | Callable[[Function], Estimator]:
    """Decorator: make a function an `Estimator` that carries its name and docstring."""

    def wrap(function: Function) -> Estimator:
        wrapped = Estimator(function, function.__name__, unbiased=unbiased, on_policy=on_policy)
        object.__setattr__(wrapped, "__doc__", function.__doc__)
        return wrapped

    return wrap if function is None else wrap(function)


@in_64_bit
def log_ratios(evaluation: Policy, trajectories: Trajectories) -> Float[Array, "episodes steps"]:
    """(N, T), log π_e(A_t|S_t) − log π_b(A_t|S_t) in 64 bit, 0 on padding."""
    if not evaluation.traceable and not evaluation.remembers:
        mask = np.asarray(trajectories.mask)
        known = np.zeros(mask.shape)
        for group in episode_groups(trajectories.observations, mask):
            steps = mask[group]
            observations = jax.tree_util.tree_map(lambda array: array[group][steps], trajectories.observations)  # noqa: B023
            log_probs = evaluation.log_prob(observations, trajectories.actions[group][steps])
            known[group][steps] = log_probs - trajectories.log_probs[group][steps]
        return known
    log_probs = evaluation.log_prob(trajectories.observations, trajectories.actions)
    ratios = jnp.asarray(log_probs, jnp.float64) - trajectories.log_probs
    return at_the_edge(jnp.where(trajectories.mask, ratios, 0.0))


def discounts(discount: Scalar | float, like: Float[Array, "... steps"]) -> Float[Array, " steps"]:
    """(T,), γ^t for the steps on the last axis of `like`."""
    return jnp.asarray(discount, like.dtype) ** jnp.arange(like.shape[-1])


def check_values(name: str, values: Float[Array, "episodes ..."], log_ratios: Float[Array, "episodes steps"]) -> None:
    """Refuse values (and anything derived from them) that overflow a 64-bit float, naming the largest log-weight."""
    finite = np.isfinite(np.asarray(values))
    if finite.all():
        return
    episode = int(np.argwhere(~finite)[0][0])
    cumulative = np.cumsum(np.asarray(log_ratios, dtype=np.float64)[episode])
    step = int(np.argmax(cumulative))
    raise WeightOverflowError(
        f"{name} of episode {episode} does not fit a 64-bit float: its largest log-weight is {cumulative[step]:.6g}, "
        f"at step {step}. The behavior policy has left the evaluation policy too far behind: use a smaller step size, "
        f"a shorter horizon, or a per-decision estimator"
    )


def check_on_policy(
    estimator: Estimator, log_ratios: Float[Array, "episodes steps"], tolerance: float = ON_POLICY_TOLERANCE
) -> None:
    """Refuse off-policy episodes for an estimator that is unbiased only on-policy."""
    if not estimator.on_policy:
        return
    off = np.abs(np.asarray(log_ratios)) > tolerance
    if off.any():
        episode, step = np.argwhere(off)[0]
        raise OnPolicyError(
            f"{estimator.name} is unbiased only for episodes of the evaluation policy, but at episode {episode}, step "
            f"{step} the log-ratio of evaluation to behavior policy is {np.asarray(log_ratios)[episode, step]:.6g}; "
            f"use importance_sampling, per_decision or doubly_robust"
        )
