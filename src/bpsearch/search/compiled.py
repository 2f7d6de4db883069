"""Searches whose step is one compiled program."""

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

import jax
import numpy as np
from jaxtyping import Float

from bpsearch._core.arrays import Array
from bpsearch._core.checks import check_type
from bpsearch._core.jaxtools import in_64_bit, in_turn, to_numpy
from bpsearch.control_variates.modeled import ModeledEstimator, ModeledState
from bpsearch.control_variates.tabular_model import TabularModel
from bpsearch.errors import InvalidArgumentError, OnPolicyError
from bpsearch.estimators.base import Estimator, check_values, log_ratios
from bpsearch.policies.base import Policy
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search.base import Info, Search, check_defensive, defend


class CompiledState(Protocol):
    """What every compiled search carries on."""

    @property
    def objective(self) -> ModeledState:
        """The state of the estimator."""
        ...

    @property
    def parameters(self) -> Float[Array, " parameters"]:
        """θ."""
        ...


S = TypeVar("S", bound=CompiledState)


class CompiledSearch(Search[S]):
    """A search over the parameters of the policy that lowers the variance of an estimator.

    Subclasses are frozen dataclasses with the fields below, and write `update`, a pure JAX function; `step` is
    `update` compiled and checked. Fields named in `numbers` are arguments of the compiled program: searches that differ
    in those alone share it, so that a sweep over step sizes compiles once. For a policy that cannot be traced `update`
    runs uncompiled: its parts that work on arrays only should be compiled functions of their own.

    A state has `objective`, the state of the estimator, and `parameters`, θ.

    Attributes:
        estimator: an unbiased off-policy estimator.
        model: for estimators with a control variate; learned predictably, or fixed.
        defensive: α of the defensive mixture (`Mixture`) that collects the episodes in place of π_θ; 0 is π_θ alone.
    """

    estimator: Estimator
    model: TabularModel | None
    defensive: float

    def __init_subclass__(cls, numbers: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)

        def constants() -> list[str]:
            return [field.name for field in dataclasses.fields(cls) if field.name not in numbers]  # type: ignore[arg-type]

        def flatten(search: Any) -> tuple[list[Any], tuple[Any, ...]]:
            return [getattr(search, n) for n in numbers], tuple(getattr(search, name) for name in constants())

        def unflatten(fixed: Iterable[Any], leaves: Iterable[Any]) -> Any:
            search: Any = object.__new__(cls)
            for name, value in [*zip(numbers, leaves, strict=True), *zip(constants(), fixed, strict=True)]:
                object.__setattr__(search, name, value)
            return search

        jax.tree_util.register_pytree_node(cls, flatten, unflatten)

    @property
    def objective(self) -> ModeledEstimator:
        """The estimator with its model."""
        return ModeledEstimator(self.estimator, self.model)

    def check(self) -> None:
        """Refuse settings that do not go together; for the constructor of a subclass."""
        if not self.objective.traceable:  # which also checks that estimator and model belong together
            raise InvalidArgumentError(
                f"{type(self).__name__} is compiled, and {self.model} cannot be; use TabularModel"
            )
        check_defensive(self.defensive)
        if self.estimator.on_policy:
            raise OnPolicyError(
                f"{self.estimator.name} is unbiased only on-policy, so no other behavior can serve it; "
                "use importance_sampling, per_decision or doubly_robust"
            )

    @abstractmethod
    def update(self, state: S, batch: Trajectories) -> tuple[S, Info]:
        """`step` as a pure JAX function, without checks."""

    @in_64_bit
    def behavior(self, state: S) -> Policy:
        """π_{θ_i}, or its defensive mixture."""
        evaluation = state.objective.evaluation
        return defend(evaluation, evaluation.with_flat(state.parameters), self.defensive)

    @in_64_bit
    def step(self, state: S, batch: Trajectories) -> tuple[S, Info]:
        """Learn from a batch of the present behavior's episodes.

        Raises:
            WeightOverflowError: a value or its square does not fit a 64-bit float.
        """
        check_type("batch", batch, Trajectories, "Trajectories")
        evaluation = state.objective.evaluation
        update = _jitted_update if evaluation.traceable else _update
        state, info = to_numpy(update(self, state, batch))
        with np.errstate(over="ignore"):
            squares = info.values**2
        if not np.isfinite(squares).all():
            # The log-ratios of all steps are worth computing again only to name what is wrong.
            ratios = np.asarray(log_ratios(evaluation, batch))
            check_values(f"the {self.estimator.name} value", info.values, ratios)
            check_values(f"the squared {self.estimator.name} value", squares, ratios)
        return state, info


def _update(search: CompiledSearch[S], state: S, batch: Trajectories) -> tuple[S, Info]:
    return search.update(state, batch)


_jitted_update = in_turn(jax.jit(_update))
