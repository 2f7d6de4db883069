"""Other ways to find a behavior than the search that the library has, judged by the exact oracle.

From one batch of the policy's own episodes:

- closed form: μ ∝ π √M̂ (section 3.1 of the paper) of the maximum-likelihood model of that batch, for per-decision
  importance sampling, a tenth of π mixed in at every step; and the same with the true model, which nobody has.
- cross-entropy: the table that makes the episodes most probable, each weighed by |g − ḡ|, with ten pseudo-visits of π
  in every state, for importance sampling with the returns shifted by ḡ.
- convex: the table of least Σ_n w_n (g_n − b)² plus a penalty on its divergence from π, both in a convex program; b and
  the strength of the penalty, of three each, are those of least variance of left-out episodes, and π itself is kept if
  none has less than its own.
- the library's search (`AdaptiveBPG`) after the same batch.

Printed is the exact variance of the next batch's values relative to Monte Carlo's, the median over studies.

    python -m benchmarks.candidates --episodes 300 --studies 9
"""

import argparse
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

import bpsearch as bps
from benchmarks.coverage import failures
from benchmarks.evaluators.tasks import TASKS
from bpsearch.sampling.trajectories import Trajectories

COURIER = "failure of a courier"
SHARE_OF_POLICY, PSEUDO_VISITS = 0.1, 10.0
SHIFTS = (-3.0, 0.0, 3.0)  # b − ḡ in standard deviations of the returns; 0 stands for b = 0
PENALTIES, FOLDS = (0.1, 1.0, 10.0), 3


def fitted(mdp: bps.TabularMDP, batch: Trajectories) -> bps.TabularMDP:
    """The maximum-likelihood model; an action never seen ends the episode without a reward."""
    mask = batch.mask
    counts, rewards = np.zeros((2, mdp.states, mdp.actions, mdp.states))
    cells = (np.asarray(batch.observations)[mask], batch.actions[mask], batch.successors[mask])
    np.add.at(counts, cells, 1.0)
    np.add.at(rewards, cells, batch.rewards[mask])
    unseen = counts.sum(axis=-1) == 0.0
    counts[unseen] = mdp.terminal
    transitions = counts / counts.sum(axis=-1, keepdims=True)
    return bps.TabularMDP(
        transitions, rewards / np.maximum(counts, 1.0), mdp.initial, mdp.terminal, mdp.horizon, mdp.discount
    )


def closed_form(mdp: bps.TabularMDP, policy: bps.SoftmaxTable, model: bps.TabularMDP) -> float:
    """The exact variance of the per-decision estimator under μ ∝ π √M of `model`."""
    best, _ = bps.oracle.optimal_behavior(model, policy)
    mixed = SHARE_OF_POLICY * policy.probabilities + (1.0 - SHARE_OF_POLICY) * best
    return bps.oracle.variance(mdp, policy, mixed, "pdis")


def cross_entropy(mdp: bps.TabularMDP, policy: bps.SoftmaxTable, batch: Trajectories) -> float:
    """The exact variance of the shifted estimator under the table of largest weighted likelihood."""
    returns = batch.returns(mdp.discount)
    weights = np.abs(returns - returns.mean())
    weights = weights / max(weights.mean(), 1e-300)
    visits = PSEUDO_VISITS * policy.probabilities
    each = np.broadcast_to(weights[:, None], batch.mask.shape)[batch.mask]
    np.add.at(visits, (np.asarray(batch.observations)[batch.mask], batch.actions[batch.mask]), each)
    behavior = bps.SoftmaxTable(np.log(visits / visits.sum(axis=1, keepdims=True)))
    return bps.oracle.variance(mdp, policy, behavior, "is", shift=float(returns.mean()))


@dataclass(frozen=True, eq=False)
class Program:
    """The sample version of the convex problem: episodes of π, with π's table.

    Attributes:
        visits: (N, S, A), how often each episode took each action in each state.
        returns: (N,).
        policy: π.
    """

    visits: np.ndarray
    returns: np.ndarray
    policy: bps.SoftmaxTable

    @classmethod
    def of(cls, policy: bps.SoftmaxTable, batch: Trajectories, discount: float) -> "Program":
        """Count what each episode did."""
        visits = np.zeros((len(batch), *policy.logits.shape))
        episodes, _ = np.nonzero(batch.mask)
        np.add.at(visits, (episodes, np.asarray(batch.observations)[batch.mask], batch.actions[batch.mask]), 1.0)
        return cls(visits, batch.returns(discount), policy)

    def only(self, kept: np.ndarray) -> "Program":
        """The same with some of the episodes."""
        return replace(self, visits=self.visits[kept], returns=self.returns[kept])

    def gaps(self, behavior: bps.SoftmaxTable) -> np.ndarray:
        """(S, A), log π(a|s) − log π_θ(a|s)."""
        return log_softmax(self.policy.logits, axis=1) - log_softmax(behavior.logits, axis=1)

    def weights(self, behavior: bps.SoftmaxTable) -> np.ndarray:
        """(N,), π(H) / π_θ(H)."""
        return np.exp(np.einsum("nsa,sa->n", self.visits, self.gaps(behavior)))

    def solved(self, shift: float, penalty: float) -> bps.SoftmaxTable:
        """The table of least penalized second moment of the shifted returns."""
        squares = (self.returns - shift) ** 2
        shares = squares / squares.sum()
        states = self.visits.sum(axis=2)
        steps, mine = states.mean(axis=0)[:, None], self.policy.probabilities

        def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
            table = bps.SoftmaxTable(flat.reshape(mine.shape))
            theirs = table.probabilities
            with np.errstate(over="ignore", invalid="ignore"):
                terms = self.weights(table) * shares
                total = terms.sum() + penalty * np.sum(steps * mine * self.gaps(table))
                if not np.isfinite(total):
                    return np.inf, np.zeros_like(flat)
                moved = np.einsum("n,nsa->sa", terms, self.visits) - (terms @ states)[:, None] * theirs
            return float(total), -(moved + penalty * steps * (mine - theirs)).ravel()

        start = log_softmax(self.policy.logits, axis=1).ravel()
        found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
        return bps.SoftmaxTable(found.x.reshape(mine.shape))

    def left_out(self, shift: float, penalty: float) -> float:
        """The variance of shifted importance sampling that left-out episodes let one expect."""
        folds, moment = np.arange(len(self.returns)) % FOLDS, 0.0
        for fold in range(FOLDS):
            out = self.only(folds == fold)
            behavior = self.only(folds != fold).solved(shift, penalty)
            moment += np.sum(out.weights(behavior) * (out.returns - shift) ** 2)
        return float(moment / len(self.returns) - (self.returns.mean() - shift) ** 2)


def convex(mdp: bps.TabularMDP, policy: bps.SoftmaxTable, batch: Trajectories) -> float:
    """The exact variance of the shifted estimator with the solution of the convex problem."""
    program = Program.of(policy, batch, mdp.discount)
    mean, deviation = program.returns.mean(), program.returns.std()
    tried = [(mean + unit * deviation if unit else 0.0, penalty) for unit in SHIFTS for penalty in PENALTIES]
    expected = [program.left_out(*pair) for pair in tried]
    if not min(expected) < deviation**2:
        return bps.oracle.variance(mdp, policy, None, "mc")
    shift, penalty = tried[int(np.argmin(expected))]
    return bps.oracle.variance(mdp, policy, program.solved(shift, penalty), "is", shift=float(shift))


def search(mdp: bps.TabularMDP, policy: bps.SoftmaxTable, batch: Trajectories) -> float:
    """The exact variance of the library's search after the batch."""
    own = bps.AdaptiveBPG()
    state, _ = own.step(own.init(policy, mdp.discount), batch)
    return bps.oracle.variance(mdp, policy, own.behavior(state), "is", shift=float(state.shift))


def problems() -> dict[str, tuple[bps.TabularMDP, bps.SoftmaxTable]]:
    """The tabular tasks of the suite, and a rare failure."""
    tables = {}
    for task in (make() for make in TASKS.values()):
        if isinstance(task.env, bps.TabularMDP) and isinstance(task.policy, bps.SoftmaxTable):
            tables[task.name] = (task.env, task.policy)
    return {**tables, COURIER: failures()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--studies", type=int, default=9)
    parser.add_argument("--problems", help="names, with commas; all by default")
    options = parser.parse_args()
    known = problems()
    wanted = options.problems.split(",") if options.problems else list(known)
    heads = ("task", "closed form, true model", "closed form", "cross-entropy", "convex", "AdaptiveBPG")
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for name, (mdp, policy) in ((name, known[name]) for name in wanted):
        plain = bps.oracle.variance(mdp, policy, None, "mc")
        found = []
        for study in range(options.studies):
            batch = bps.sample(mdp, policy, options.episodes, seed=5, batch=study)
            ways = (
                closed_form(mdp, policy, fitted(mdp, batch)),
                cross_entropy(mdp, policy, batch),
                convex(mdp, policy, batch),
                search(mdp, policy, batch),
            )
            found.append(np.array(ways) / plain)
        possible = closed_form(mdp, policy, mdp) / plain
        cells = [f"{x:.3g}" for x in (possible, *np.median(found, axis=0))]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
