"""Exact values, variances, gradients and optima for tabular MDPs: the yardstick of tests and benchmarks.

Everything here is NumPy in 64 bit and shares no code with the samplers and estimators that it judges. The recursions
run backward from the horizon. Notation: π the evaluation policy, μ the behavior, k_t(a|s) = π(a|s)² / μ_t(a|s), ρ the
value of π; E is over (S', R) given (s, a); a prime marks a quantity at t + 1.

A behavior is a `SoftmaxTable` or an array of probabilities, (S, A) if stationary and (L, S, A) if it depends on time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from bpsearch.envs.tabular import TabularMDP
from bpsearch.errors import InvalidArgumentError, ModelRequiredError, SpaceMismatchError, SupportError
from bpsearch.policies.table import SoftmaxTable

Floats = np.ndarray[Any, np.dtype[np.float64]]
Behavior = SoftmaxTable | Floats
ESTIMATORS = ("mc", "as", "is", "pdis", "dr")


class QFunction(NamedTuple):
    """A model's q̂_t(s, a), (L, S, A), and v̂_t(s) = Σ_a π(a|s) q̂_t(s, a), (L, S)."""

    q: Floats
    v: Floats


def value(mdp: TabularMDP, policy: SoftmaxTable) -> float:
    """ρ(π), by backward induction."""
    problem = _Problem.of(mdp, policy)
    return float(mdp.initial @ problem.true_q.v[0])


def q_function(mdp: TabularMDP, policy: SoftmaxTable) -> QFunction:
    """The true q_t(s, a) and v_t(s) of `policy`: the best model that there is."""
    return _Problem.of(mdp, policy).true_q


def variance(
    mdp: TabularMDP,
    evaluation: SoftmaxTable,
    behavior: Behavior | None = None,
    estimator: str = "is",
    shift: float = 0.0,
    model: QFunction | None = None,
) -> float:
    """The variance of one episode's value.

    Args:
        mdp: the environment.
        evaluation: π.
        behavior: μ; the evaluation policy if None. Not used by the on-policy estimators "mc" and "as".
        estimator: "mc", "as", "is", "pdis" or "dr".
        shift: b of the shifted estimator b + w (g − b); for "is" only.
        model: q̂ and v̂, for "as" and "dr".

    Raises:
        SupportError: the behavior rules out actions that the estimator needs.
    """
    problem = _Problem.of(mdp, evaluation)
    if estimator in ("mc", "as"):
        behavior, estimator = None, {"mc": "is", "as": "dr"}[_checked(estimator)]
    mu = problem.probabilities_of(behavior)
    centre = problem.value - shift if estimator == "is" else problem.value
    return _second_moment(problem, mu, estimator, shift, model).total - centre**2


def gradient(
    mdp: TabularMDP,
    evaluation: SoftmaxTable,
    behavior: SoftmaxTable,
    estimator: str = "is",
    shift: float = 0.0,
    model: QFunction | None = None,
) -> Floats:
    """(S, A), the gradient of `variance` with respect to the behavior's logits."""
    problem = _Problem.of(mdp, evaluation)
    mu = problem.probabilities_of(behavior)
    by_mu = _second_moment(problem, mu, estimator, shift, model).gradient().sum(axis=0)
    p = behavior.probabilities
    return np.asarray(p * (by_mu - (p * by_mu).sum(axis=1, keepdims=True)))


def optimum(
    mdp: TabularMDP,
    evaluation: SoftmaxTable,
    estimator: str = "is",
    shift: float = 0.0,
    model: QFunction | None = None,
) -> tuple[SoftmaxTable, float]:
    """The best stationary softmax behavior, and its variance: the limit by which every search is measured.

    L-BFGS on log E[X²] from the evaluation policy. E[IS²] is convex in the logits, so for "is" the result is the global
    optimum; for "pdis" and "dr" it is a local one. Actions of probability 0 under π stay at 0.
    """
    problem = _Problem.of(mdp, evaluation)
    free = np.isfinite(evaluation.logits)

    def table(parameters: Floats) -> SoftmaxTable:
        logits = np.full(free.shape, -np.inf)
        logits[free] = parameters
        return SoftmaxTable(logits)

    def objective(parameters: Floats) -> tuple[float, Floats]:
        behavior = table(parameters)
        p = behavior.probabilities
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            moment = _second_moment(problem, problem.probabilities_of(behavior), estimator, shift, model, check=False)
            if not np.isfinite(moment.total):
                return np.inf, np.zeros_like(parameters)
            by_mu = moment.gradient().sum(axis=0)
            by_logits = p * (by_mu - (p * by_mu).sum(axis=1, keepdims=True))
        return float(np.log(moment.total)), np.asarray(by_logits[free] / moment.total)

    result = minimize(
        objective,
        evaluation.logits[free],
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-15, "gtol": 1e-10},
    )
    best = table(result.x)
    return best, variance(mdp, evaluation, best, estimator, shift, model)


def optimal_behavior(mdp: TabularMDP, evaluation: SoftmaxTable, estimator: str = "pdis") -> tuple[Floats, float]:
    """The best behavior of all, (L, S, A), and its variance (section 3.1 of the paper).

    - "pdis": μ* ∝ π √M*, with M* = E[R² + 2γ R v' + γ² S*'] and S* = (Σ_a π √M*)². In a deterministic environment whose
      returns have one sign this is μ* ∝ π |q| and every episode has the same value, ρ.
    - "dr": with the true q for q̂; μ* ∝ π √u, u = Var(R + γ v') + γ² E[V*'], V* = (Σ_a π √u)².

    The paper says that such a behavior "exists in the space of stochastic policies". It depends on time, and for
    trajectory importance sampling it would depend on the whole history, so there is none to return for "is".
    """
    problem = _Problem.of(mdp, evaluation)
    pi, gamma, v = problem.pi, mdp.discount, problem.true_q.v
    if estimator not in ("pdis", "dr"):
        raise InvalidArgumentError(f"estimator must be 'pdis' or 'dr' for optimal_behavior, got {estimator!r}")
    behavior = np.empty((mdp.horizon, *pi.shape))
    best = np.zeros(mdp.states)  # S* or V* at t + 1
    for t in reversed(range(mdp.horizon)):
        v_next = v[t + 1] if t + 1 < mdp.horizon else np.zeros(mdp.states)
        moment = problem.expect_r2 + 2 * gamma * problem.p_r @ v_next
        if estimator == "pdis":
            moment = moment + gamma**2 * problem.p @ best
        else:
            q = problem.expect_r + gamma * problem.p @ v_next
            moment = moment + gamma**2 * problem.p @ (v_next**2 + best) - q**2
        root = pi * np.sqrt(np.maximum(moment, 0.0))
        total = root.sum(axis=1, keepdims=True)
        behavior[t] = np.where(total > 0, root / np.where(total > 0, total, 1.0), pi)
        best = np.where(mdp.terminal, 0.0, total[:, 0] ** 2)
    if estimator == "pdis":
        return behavior, float(mdp.initial @ best - problem.value**2)
    return behavior, float(mdp.initial @ (best + v[0] ** 2) - problem.value**2)


@dataclass(frozen=True)
class _Problem:
    """An MDP and an evaluation policy with the sums that every recursion needs; terminal states have no successors."""

    mdp: TabularMDP
    pi: Floats
    p: Floats  # P(s'|s, a)
    p_r: Floats  # P · R
    p_r2: Floats  # P · R²
    true_q: QFunction

    @classmethod
    def of(cls, mdp: TabularMDP, evaluation: SoftmaxTable) -> "_Problem":
        if evaluation.logits.shape != (mdp.states, mdp.actions):
            raise SpaceMismatchError(
                f"the MDP has {mdp.states} states and {mdp.actions} actions, the policy a table of "
                f"{evaluation.logits.shape}"
            )
        p = np.where(mdp.terminal[:, None, None], 0.0, mdp.transitions)
        pi = evaluation.probabilities
        p_r = p * mdp.rewards
        q = np.empty((mdp.horizon, *pi.shape))
        v = np.empty((mdp.horizon, mdp.states))
        v_next = np.zeros(mdp.states)
        for t in reversed(range(mdp.horizon)):
            q[t] = p_r.sum(axis=-1) + mdp.discount * p @ v_next
            v[t] = v_next = (pi * q[t]).sum(axis=1)
        return cls(mdp, pi, p, p_r, p_r * mdp.rewards, QFunction(q, v))

    @property
    def value(self) -> float:
        return float(self.mdp.initial @ self.true_q.v[0])

    @property
    def expect_r(self) -> Floats:
        return np.asarray(self.p_r.sum(axis=-1))

    @property
    def expect_r2(self) -> Floats:
        return np.asarray(self.p_r2.sum(axis=-1))

    def probabilities_of(self, behavior: Behavior | None) -> Floats:
        mu = self.pi if behavior is None else behavior
        mu = mu.probabilities if isinstance(mu, SoftmaxTable) else np.asarray(mu, dtype=np.float64)
        shape = (self.mdp.horizon, *self.pi.shape)
        if mu.shape not in (shape, shape[1:]):
            raise SpaceMismatchError(f"a behavior must have the shape {shape} or {shape[1:]}, got {mu.shape}")
        return np.broadcast_to(mu, shape)


@dataclass(frozen=True)
class _Moment:
    """E[X²] and its gradient with respect to μ_t(a|s), (L, S, A), computed when asked for."""

    total: float
    gradient: Callable[[], Floats]


def _second_moment(
    problem: _Problem, mu: Floats, estimator: str, shift: float, model: QFunction | None, check: bool = True
) -> _Moment:
    needs_model = _checked(estimator) in ("as", "dr")
    if needs_model != (model is not None):
        raise ModelRequiredError(f"estimator {estimator!r} {'needs' if needs_model else 'takes no'} model")
    if shift != 0.0 and estimator != "is":
        raise InvalidArgumentError(f"shift is defined for estimator 'is' only, got {shift} for {estimator!r}")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(problem.pi > 0.0, problem.pi / mu, 0.0)
        moment = (
            _trajectory_moment(problem, mu, ratio, shift)
            if estimator == "is"
            else _per_decision_moment(problem, ratio, model)
        )
    if check and not np.isfinite(moment.total):
        raise SupportError(
            f"the behavior gives probability 0 to actions that the evaluation policy takes: {estimator!r} has no "
            "variance"
        )
    return moment


def _checked(estimator: str) -> str:
    if estimator not in ESTIMATORS:
        raise InvalidArgumentError(f"estimator must be one of {ESTIMATORS}, got {estimator!r}")
    return estimator


def _weighted(weights: Floats, moments: Floats) -> Floats:
    """Σ_a weights · moments, where a moment of 0 counts as 0 even at an infinite weight."""
    return np.asarray(np.where(moments == 0.0, 0.0, weights * moments).sum(axis=1))


def _trajectory_moment(problem: _Problem, mu: Floats, ratio: Floats, shift: float) -> _Moment:
    """IS: A = Σ_a k E[A'], B = Σ_a k E[R A' + γ B'], C = Σ_a k E[R² A' + 2γ R B' + γ² C']; at the end A = 1, B = C = 0.

    A, B and C are E[w² (1, g, g²)] of the rest of an episode, so E[(w (g − b))²] = d_0 · (C − 2 b B + b² A).
    """
    mdp, gamma, pi = problem.mdp, problem.mdp.discount, problem.pi
    p, p_r, p_r2 = problem.p, problem.p_r, problem.p_r2
    horizon = mdp.horizon
    rest: list[tuple[Floats, Floats, Floats]] = [np.empty(0)] * horizon  # type: ignore[list-item]
    a, b, c = np.ones(mdp.states), np.zeros(mdp.states), np.zeros(mdp.states)
    for t in reversed(range(horizon)):
        rest[t] = (p @ a, p_r @ a + gamma * p @ b, p_r2 @ a + 2 * gamma * p_r @ b + gamma**2 * p @ c)
        k = pi * ratio[t]
        a, b, c = (_weighted(k, moments) for moments in rest[t])
        a = np.where(mdp.terminal, 1.0, a)
    total = float(mdp.initial @ (c - 2 * shift * b + shift**2 * a))

    def gradient() -> Floats:
        # Forward: F, H, K = E[w² (1, g, g²) 1{S_t = s}] of the episode so far, g starting at −b.
        f, h, k2 = mdp.initial, -shift * mdp.initial, shift**2 * mdp.initial
        result = np.empty_like(mu)
        for t in range(horizon):
            e_a, e_b, e_c = rest[t]
            power = gamma**t
            moments = k2[:, None] * e_a + 2 * power * h[:, None] * e_b + power**2 * f[:, None] * e_c
            result[t] = -(ratio[t] ** 2) * moments
            k = pi * ratio[t]
            by_f, by_h, by_k = k * f[:, None], k * h[:, None], k * k2[:, None]

            def push(weights: Floats, dynamics: Floats) -> Floats:
                return np.asarray(np.einsum("sa,san->n", weights, dynamics))

            k2 = push(by_k, p) + 2 * power * push(by_h, p_r) + power**2 * push(by_f, p_r2)
            h = push(by_h, p) + power * push(by_f, p_r)
            f = push(by_f, p)
        return result

    return _Moment(total, gradient)


def _per_decision_moment(problem: _Problem, ratio: Floats, model: QFunction | None) -> _Moment:
    """DR: M = E[(R − q̂)² + 2γ (R − q̂) v' + γ² N'], N = v̂² + 2 v̂ (v − Σ_a π q̂) + Σ_a k M; PDIS is q̂ = v̂ = 0."""
    mdp, gamma, pi = problem.mdp, problem.mdp.discount, problem.pi
    horizon = mdp.horizon
    zero = np.zeros(mdp.states)
    v_true = np.vstack([problem.true_q.v, zero])
    q_hat, v_hat = (np.zeros_like(problem.true_q.q), np.zeros_like(problem.true_q.v)) if model is None else model
    moments = np.empty((horizon, *pi.shape))
    n = zero
    for t in reversed(range(horizon)):
        q, v = q_hat[t], np.where(mdp.terminal, 0.0, v_hat[t])
        moments[t] = (
            problem.expect_r2
            - 2 * q * problem.expect_r
            + q**2
            + 2 * gamma * (problem.p_r @ v_true[t + 1] - q * (problem.p @ v_true[t + 1]))
            + gamma**2 * problem.p @ n
        )
        n = v**2 + 2 * v * (v_true[t] - (pi * q).sum(axis=1)) + _weighted(pi * ratio[t], moments[t])
        n = np.where(mdp.terminal, 0.0, n)

    def gradient() -> Floats:
        e = mdp.initial
        result = np.empty_like(moments)
        for t in range(horizon):
            result[t] = -e[:, None] * ratio[t] ** 2 * moments[t]
            e = gamma**2 * np.einsum("sa,san->n", e[:, None] * pi * ratio[t], problem.p)
        return result

    return _Moment(float(mdp.initial @ n), gradient)
