"""Exact values, variances, gradients and optima for tabular MDPs: the yardstick of tests and benchmarks.

Everything here is NumPy in 64 bit and shares no code with the samplers and estimators that it judges. The recursions
run backward from the horizon. Notation: π the evaluation policy, μ the behavior, k_t(a|s) = π(a|s)² / μ_t(a|s), ρ the
value of π; E is over (S', R) given (s, a); a prime marks a quantity at t + 1.

A behavior is a `SoftmaxTable` or an array of probabilities, (S, A) if stationary and (L, S, A) if it depends on time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from bpsearch._core.checks import check_choice, check_type
from bpsearch._core.foreign import own_array
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

    Returns:
        The variance; infinite if it does not fit a 64-bit float.

    Raises:
        SupportError: the behavior rules out actions that the estimator needs.
    """
    problem = _Problem.of(mdp, evaluation)
    if _check(estimator) in ("mc", "as"):
        behavior, estimator = None, {"mc": "is", "as": "dr"}[_check(estimator)]
    mu = problem.probabilities_of(behavior)
    centre = problem.value - shift if estimator == "is" else problem.value
    return _second_moment(problem, mu, estimator, shift, _gaps(problem, estimator, model)).total - centre**2


def variances(mdp: TabularMDP, evaluation: SoftmaxTable, behaviors: Floats) -> Floats:
    """(N,), the variance of "is" with each of N stationary behaviors, an array (N, S, A) of probabilities.

    What `variance` gives one by one, in a fraction of the time; infinite also where a behavior rules out actions that
    the evaluation policy takes.
    """
    problem = _Problem.of(mdp, evaluation)
    if behaviors.shape[1:] != problem.pi.shape:
        raise SpaceMismatchError(
            f"behaviors must have the shape (N, {mdp.states}, {mdp.actions}), got {behaviors.shape}"
        )
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        weights = problem.pi * problem.ratio_to(behaviors)
        *_, (_, moments) = _trajectory_backward(problem, np.broadcast_to(weights, (mdp.horizon, *weights.shape)))
        totals = moments[:, 2] @ mdp.initial
    return np.where(np.isfinite(totals), totals - problem.value**2, np.inf)


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
    by_mu = _second_moment(problem, mu, estimator, shift, _gaps(problem, estimator, model)).gradient().sum(axis=0)
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
    free, gaps = np.isfinite(evaluation.logits), _gaps(problem, estimator, model)

    def table(parameters: Floats) -> SoftmaxTable:
        logits = np.full(free.shape, -np.inf)
        logits[free] = parameters
        return SoftmaxTable(logits)

    def objective(parameters: Floats) -> tuple[float, Floats]:
        behavior = table(parameters)
        p = behavior.probabilities
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            moment = _second_moment(problem, problem.probabilities_of(behavior), estimator, shift, gaps)
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


def optimal_behavior(
    mdp: TabularMDP, evaluation: SoftmaxTable, estimator: str = "pdis", model: QFunction | None = None
) -> tuple[Floats, float]:
    """The best behavior of all, (L, S, A), and its variance (section 3.1 of the paper).

    μ* ∝ π √M*, with M* = E[(R − q̂ + γ v')²] + γ² E[U*'] and U* = (Σ_a π √M*)² − (v − v̂)²; "pdis" has q̂ = v̂ = 0. For
    "pdis" in a deterministic environment whose returns have one sign this is μ* ∝ π |q|, and every episode has the same
    value, ρ.

    The paper says that such a behavior "exists in the space of stochastic policies". It depends on time, and for
    trajectory importance sampling it would depend on the whole history, so there is none to return for "is".
    """
    if estimator not in ("pdis", "dr"):
        raise InvalidArgumentError(f"estimator must be 'pdis' or 'dr' for optimal_behavior, got {estimator!r}")
    problem = _Problem.of(mdp, evaluation)
    gaps = _ModelGaps.of(problem, estimator, model)
    behavior = np.empty((mdp.horizon, *problem.pi.shape))
    best = np.zeros(mdp.states)  # U* at t + 1
    for t in reversed(range(mdp.horizon)):
        root = problem.pi * np.sqrt(gaps.squares[t] + mdp.discount**2 * problem.p @ best)
        total = root.sum(axis=1, keepdims=True)
        behavior[t] = np.where(total > 0, root / np.where(total > 0, total, 1.0), problem.pi)
        best = np.where(mdp.terminal, 0.0, np.maximum(total[:, 0] ** 2 - gaps.means[t] ** 2, 0.0))
    return behavior, float(mdp.initial @ (best + problem.true_q.v[0] ** 2) - problem.value**2)


@dataclass(frozen=True)
class _Problem:
    """An MDP and an evaluation policy with the sums that every recursion needs; terminal states have no successors."""

    mdp: TabularMDP
    pi: Floats
    p: Floats  # P(s'|s, a)
    powers: Floats  # (S, A, 3, S): P, P · R and P · R²
    true_q: QFunction

    @classmethod
    def of(cls, mdp: TabularMDP, evaluation: SoftmaxTable) -> "_Problem":
        check_type("mdp", mdp, TabularMDP, "a TabularMDP")
        check_type("the evaluation policy", evaluation, SoftmaxTable, "a SoftmaxTable")
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
        powers = np.stack([p, p_r, p_r * mdp.rewards], axis=2)
        return cls(mdp, pi, p, powers, QFunction(q, v))

    @property
    def value(self) -> float:
        return float(self.mdp.initial @ self.true_q.v[0])

    def probabilities_of(self, behavior: Behavior | None) -> Floats:
        mu = self.pi if behavior is None else behavior
        mu = mu.probabilities if isinstance(mu, SoftmaxTable) else np.asarray(own_array("behavior", mu), np.float64)
        shape = (self.mdp.horizon, *self.pi.shape)
        if mu.shape not in (shape, shape[1:]):
            raise SpaceMismatchError(f"a behavior must have the shape {shape} or {shape[1:]}, got {mu.shape}")
        return np.broadcast_to(mu, shape)

    def ratio_to(self, mu: Floats) -> Floats:
        """π/μ; 0 where π is."""
        return np.where(self.pi > 0.0, self.pi / mu, 0.0)


@dataclass(frozen=True)
class _Moment:
    """E[X²] and its gradient with respect to μ_t(a|s), (L, S, A), computed when asked for."""

    total: float
    gradient: Callable[[], Floats]


def _second_moment(problem: _Problem, mu: Floats, estimator: str, shift: float, gaps: "_ModelGaps | None") -> _Moment:
    if shift != 0.0 and estimator != "is":
        raise InvalidArgumentError(f"shift is defined for estimator 'is' only, got {shift} for {estimator!r}")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = problem.ratio_to(mu)
        moment = (
            _trajectory_moment(problem, ratio, shift) if gaps is None else _per_decision_moment(problem, ratio, gaps)
        )
    if np.isfinite(moment.total):
        return moment
    if ((problem.pi > 0.0) & (mu == 0.0)).any():
        raise SupportError(
            f"the behavior gives probability 0 to actions that the evaluation policy takes: {estimator!r} has no "
            "variance"
        )
    return _Moment(np.inf, moment.gradient)


def _check(estimator: str) -> str:
    return check_choice("estimator", estimator, ESTIMATORS)


def _weigh(weights: Floats, moments: Floats) -> Floats:
    """Σ_a weights · moments, where a moment of 0 counts as 0 even at an infinite weight."""
    return np.asarray(np.where(moments == 0.0, 0.0, weights * moments).sum(axis=-1))


def _trajectory_backward(problem: _Problem, weights: Floats) -> Iterator[tuple[Floats, Floats]]:
    """IS: A = Σ_a k E[A'], B = Σ_a k E[R A' + γ B'], C = Σ_a k E[R² A' + 2γ R B' + γ² C']; at the end A = 1, B = C = 0.

    A, B and C are E[w² (1, g, g²)] of the rest of an episode. From the last step to the first, yields the expectations
    E given (s, a), (..., 3, S, A), and A, B and C, (..., 3, S), for weights k of the shape (L, ..., S, A).
    """
    mdp, gamma = problem.mdp, problem.mdp.discount
    by_successor = problem.powers.transpose(3, 2, 0, 1).reshape(mdp.states, -1)
    moments = np.zeros((*weights.shape[1:-2], 3, mdp.states))
    moments[..., 0, :] = 1.0
    for k in reversed(weights):
        # All nine products at once, six of which are needed: [A', B' or C'][times 1, R or R²].
        e = (moments @ by_successor).reshape(*moments.shape[:-1], 3, mdp.states, mdp.actions)
        e_b = e[..., 0, 1, :, :] + gamma * e[..., 1, 0, :, :]
        e_c = e[..., 0, 2, :, :] + 2 * gamma * e[..., 1, 1, :, :] + gamma**2 * e[..., 2, 0, :, :]
        rest = np.stack([e[..., 0, 0, :, :], e_b, e_c], axis=-3)
        moments = _weigh(k[..., None, :, :], rest)
        moments[..., 0, mdp.terminal] = 1.0
        yield rest, moments


def _trajectory_moment(problem: _Problem, ratio: Floats, shift: float) -> _Moment:
    """IS: E[(w (g − b))²] = d_0 · (C − 2 b B + b² A)."""
    mdp, pi, gamma = problem.mdp, problem.pi, problem.mdp.discount
    backward = list(_trajectory_backward(problem, pi * ratio))
    a, b, c = backward[-1][1]
    total = float(mdp.initial @ (c - 2 * shift * b + shift**2 * a))

    def gradient() -> Floats:
        # Forward: F, H, K = E[w² (1, g, g²) 1{S_t = s}] of the episode so far, g starting at −b.
        by_pair = problem.powers.reshape(pi.size, -1)
        f, h, k2 = mdp.initial, -shift * mdp.initial, shift**2 * mdp.initial
        result = np.empty_like(ratio)
        for t, ((e_a, e_b, e_c), _) in enumerate(reversed(backward)):
            power = gamma**t
            moments = k2[:, None] * e_a + 2 * power * h[:, None] * e_b + power**2 * f[:, None] * e_c
            result[t] = -(ratio[t] ** 2) * moments
            weights = np.stack([f, h, k2])[..., None] * (pi * ratio[t])
            by_f, by_h, by_k = (weights.reshape(3, -1) @ by_pair).reshape(3, 3, mdp.states)
            k2 = by_k[0] + 2 * power * by_h[1] + power**2 * by_f[2]
            h = by_h[0] + power * by_f[1]
            f = by_f[0]
        return result

    return _Moment(total, gradient)


class _ModelGaps(NamedTuple):
    """How far a model is from the truth: what is left of per-decision variance."""

    squares: Floats  # (L, S, A), E[(R − q̂ + γ v')²]
    means: Floats  # (L, S), v − v̂

    @classmethod
    def of(cls, problem: _Problem, estimator: str, model: QFunction | None) -> "_ModelGaps":
        """The gaps of `model`, which "dr" needs; "pdis" has none, which is q̂ = v̂ = 0."""
        if (estimator == "dr") != (model is not None):
            raise ModelRequiredError(f"estimator {estimator!r} {'takes no' if model else 'needs a'} model")
        q_hat = np.zeros_like(problem.true_q.q) if model is None else model.q
        v_next = np.vstack([problem.true_q.v[1:], np.zeros(problem.mdp.states)])
        errors = (
            problem.mdp.rewards + problem.mdp.discount * v[None, None] - q[..., None]
            for q, v in zip(q_hat, v_next, strict=True)
        )
        squares = np.stack([(problem.p * error**2).sum(axis=-1) for error in errors])
        return cls(squares, problem.true_q.v - (problem.pi * q_hat).sum(axis=-1))


def _gaps(problem: _Problem, estimator: str, model: QFunction | None) -> _ModelGaps | None:
    """What a per-decision estimator needs to know of its model; None for "is"."""
    return None if _check(estimator) == "is" else _ModelGaps.of(problem, estimator, model)


def _per_decision_moment(problem: _Problem, ratio: Floats, gaps: _ModelGaps) -> _Moment:
    """DR: M = E[(R − q̂ + γ v')²] + γ² E[U'], U = Σ_a k M − (v − v̂)², v̂ = Σ_a π q̂; PDIS is q̂ = v̂ = 0.

    U is the variance of the value of the rest of an episode. Carrying it instead of the second moment U + v² keeps the
    digits where the model is good: no large numbers are subtracted.
    """
    mdp, pi = problem.mdp, problem.pi
    moments = np.empty((mdp.horizon, *pi.shape))
    rest = np.zeros(mdp.states)  # U at t + 1
    for t in reversed(range(mdp.horizon)):
        moments[t] = gaps.squares[t] + mdp.discount**2 * problem.p @ rest
        rest = np.where(mdp.terminal, 0.0, _weigh(pi * ratio[t], moments[t]) - gaps.means[t] ** 2)

    def gradient() -> Floats:
        e = mdp.initial
        result = np.empty_like(moments)
        for t in range(mdp.horizon):
            result[t] = -e[:, None] * ratio[t] ** 2 * moments[t]
            e = mdp.discount**2 * np.einsum("sa,san->n", e[:, None] * pi * ratio[t], problem.p)
        return result

    return _Moment(float(mdp.initial @ (rest + problem.true_q.v[0] ** 2)), gradient)
