"""evaluate_suite(): how good is it over several tasks?"""

from collections.abc import Callable, Mapping

from bpsearch._core.arrays import Array
from bpsearch._core.checks import check_range
from bpsearch.calls.evaluate import evaluate
from bpsearch.errors import InvalidArgumentError
from bpsearch.estimands import Estimand
from bpsearch.inference.stopping import Target
from bpsearch.inference.suite import Suite
from bpsearch.policies.resolve import PolicySource
from bpsearch.runners.in_process import Environment
from bpsearch.sampling.trajectories import Trajectories


def evaluate_suite(
    policies: Mapping[str, PolicySource] | PolicySource,
    envs: Mapping[str, Environment],
    episodes: int = 1000,
    method: str = "auto",
    *,
    seed: int | None = None,
    scales: Mapping[str, tuple[float, float]] | None = None,
    target: float | Target | None = None,
    failure: str | Callable[[Trajectories], Array] | None = None,
    estimand: Estimand | None = None,
) -> Suite:
    """Evaluate on several tasks: a table of them, and the mean with its error.

    Args:
        policies: one for each task by its name, or one for all.
        envs: the tasks, by name.
        episodes: how many episodes each task may have.
        method: as for `evaluate`.
        seed: the same seed gives the same result; None draws one for each task.
        scales: for each task the return that scores 0 and the one that scores 1, so that tasks of different returns can
            be averaged; by default the values are averaged as they are.
        target: as for `evaluate`, of each task.
        failure: as for `evaluate`.
        estimand: as for `evaluate`.
    """
    if not envs:
        raise InvalidArgumentError("a suite needs at least one environment, got none")
    for what, given in (("policies", policies), ("scales", scales)):
        if isinstance(given, Mapping) and set(given) != set(envs):
            raise InvalidArgumentError(
                f"{what} must have the names of the tasks {', '.join(envs)}, got {', '.join(map(str, given))}"
            )
    known = {name: check_range(f"the scale of {name}", scale) for name, scale in (scales or {}).items()}
    estimates = {
        name: evaluate(
            policies[name] if isinstance(policies, Mapping) else policies,
            env,
            episodes,
            method,
            seed=seed,
            target=target,
            failure=failure,
            estimand=estimand,
        )
        for name, env in envs.items()
    }
    settings = {"episodes": episodes, "method": method, "seed": {n: e.settings["seed"] for n, e in estimates.items()}}
    return Suite(estimates, known, settings)
