"""The public API with wrong arguments: each argument of each call in turn is replaced by something that it is not."""

import random
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import bpsearch as bps
from benchmarks.fuzz.tally import Tally
from benchmarks.fuzz.tell import problem
from bpsearch.inference.stopping import Target
from bpsearch.policies.files import save_policy

WRONG: tuple[Any, ...] = (
    None, "x", "", -1, 0, 2**70, np.nan, -0.5, 1e400, [], {}, (), [1, "a"], np.zeros((2, 3, 4)), np.array(["a"]), 1j,
    True, np.float64(2.5), b"bytes", object(), print, int, np.zeros((0, 2)), [[1, 2], [3]], np.datetime64("2020-01-01"),
)  # fmt: skip
PATIENCE = 30  # seconds for one call
Call = tuple[str, Callable[..., Any], dict[str, Any]]


def calls(folder: Path) -> Iterator[Call]:
    """Calls that work, by name, with all their arguments by keyword."""
    mdp, policy = problem()
    batch = bps.sample(mdp, policy, 6, seed=1)
    fields = ("observations", "actions", "rewards", "log_probs", "mask", "final_observations")
    arrays = {name: getattr(batch, name) for name in fields}
    plain = bps.Trajectories(**arrays)
    network = bps.shipped_policy("cartpole-swingup")
    estimate = bps.evaluate(policy, mdp, 40, "mc", seed=1)
    save_policy(policy, folder / "p.npz")

    def study(**changes: Any) -> bps.Study:
        return bps.Study(**{"policy": policy, "method": "mc", "seed": 1} | changes)

    def tell(**changes: Any) -> None:
        asked = study()
        asked.ask()
        asked.tell(**{"number": 0, "batch": plain} | changes)

    def abandon(**changes: Any) -> None:
        asked = study()
        asked.ask()
        asked.abandon(**changes)

    table = {"transitions": mdp.transitions, "rewards": mdp.rewards, "initial": mdp.initial, "terminal": mdp.terminal}
    yield "TabularMDP", bps.TabularMDP, {**table, "horizon": 4, "discount": 1.0}
    yield "SoftmaxTable", bps.SoftmaxTable, {"logits": policy.logits}
    yield "SoftmaxTable.uniform", bps.SoftmaxTable.uniform, {"states": 3, "actions": 2}
    yield "from_probabilities", bps.SoftmaxTable.from_probabilities, {"probabilities": policy.probabilities}
    yield "with_probability", policy.with_probability, {"state": 0, "action": 1, "probability": 0.5}
    yield "with_flat", policy.with_flat, {"vector": policy.flat}
    layers = {"weights": network.weights, "biases": network.biases, "log_std": network.log_std, "adapt": "all"}
    yield "GaussianMLP", bps.GaussianMLP, layers
    spaces = (policy.observation_space, policy.action_space)
    yield "FunctionPolicy", bps.FunctionPolicy, {"function": lambda observation: 0, "spaces": spaces}
    yield "Mixture", bps.Mixture, {"evaluation": policy, "component": policy, "share": 0.5}
    yield "shipped_policy", bps.shipped_policy, {"name": "gridworld-early"}
    yield "load_policy", bps.load_policy, {"path": folder / "p.npz"}
    yield "save_policy", save_policy, {"policy": policy, "path": folder / "q.npz"}
    yield "sample", bps.sample, {"env": mdp, "policy": policy, "episodes": 4, "seed": 0, "batch": 0, "repeats": 1}
    yield "sample with a horizon", bps.sample, {"env": mdp, "policy": policy, "episodes": 4, "horizon": 3}
    gym = {"env": "CartPole-v1", "num_envs": 1, "vectorization": "sync", "horizon": 5, "env_kwargs": {}}
    yield "GymnasiumSampler", bps.GymnasiumSampler, gym
    yield "environment", bps.environment, {"env": mdp, "horizon": 3, "discount": 0.5}
    yield "Trajectories", bps.Trajectories, arrays
    yield "take", plain.take, {"episodes": np.array([0, 2])}
    yield "returns", plain.returns, {"discount": 0.9}
    yield "concatenate", bps.Trajectories.concatenate, {"batches": [plain, plain]}
    yield "BPG", bps.BPG, {"step_size": 0.1, "patience": 3, "defensive": 0.1, "estimator": bps.estimators.per_decision}
    yield "StepSize", bps.StepSize, {"initial": 0.1}
    yield "AdaptiveBPG", bps.AdaptiveBPG, {"caution": 0.5, "defensive": 0.1}
    yield "Return", bps.Return, {"discount": 0.9, "return_range": (0, 1)}
    yield "Failure", bps.Failure, {"condition": "return < 0", "of_discount": 1.0}
    yield "Target", Target, {"halfwidth": 0.1, "level": 0.9, "kind": "asymptotic", "seconds": 3.0}
    search = bps.BPG(0.1)
    method = {"search": search, "valuation": bps.Valuation(search.estimator), "batch_size": 10}
    yield "Method", bps.Method, method
    yield "Valuation", bps.Valuation, {"estimator": search.estimator}
    arguments = {"policy": policy, "env": mdp, "episodes": 20, "method": "mc", "seed": 1}
    yield "evaluate", bps.evaluate, {**arguments, "target": 0.5, "failure": "return < 0", "store": folder / "e.db"}
    yield "evaluate an estimand", bps.evaluate, {**arguments, "estimand": bps.Return()}
    yield "plan", bps.plan, {"policy": policy, "env": mdp, "seed": 1}
    yield "Study", study, {"policy": policy, "method": "bpg", "estimand": bps.Return(), "seed": 1, "store": None}
    yield "Study.open", bps.Study.open, {"store": folder / "e.db", "read_only": True}
    yield "tell", tell, {"number": 0, "batch": plain, "request": ""}
    yield "abandon", abandon, {"number": 0, "reason": "none"}
    yield "run", lambda **k: study().run(**k), {"env": mdp, "episodes": 20, "target": 0.5}
    yield "run in total", lambda **k: study().run(**k), {"env": mdp, "total": 20}
    yield "interval", estimate.interval, {"level": 0.9}
    yield "anytime_interval", estimate.anytime_interval, {"level": 0.9}
    yield "report", estimate.report, {"path": folder / "page.html"}
    yield "oracle.value", bps.oracle.value, {"mdp": mdp, "policy": policy}
    yield (
        "oracle.variance",
        bps.oracle.variance,
        {"mdp": mdp, "evaluation": policy, "behavior": policy, "estimator": "is"},
    )
    ratios = {"rewards": plain.rewards, "log_ratios": np.zeros_like(plain.rewards), "mask": plain.mask, "discount": 1.0}
    yield "importance_sampling", bps.estimators.importance_sampling, ratios
    yield "search.step", lambda **k: search.step(search.init(policy), **k), {"batch": batch}
    yield "search.init", search.init, {"policy": policy, "discount": 1.0}
    yield "estimate too early", lambda: study().estimate(), {}
    yield "tell too early", lambda: study().tell(0, plain), {}
    yield "verify without a store", lambda: study().verify(), {}


def _too_long(*_: object) -> None:
    raise TimeoutError(f"not done after {PATIENCE} s")


def run(runs: int, seed: int, folder: Path, tally: Tally) -> None:
    warnings.simplefilter("ignore")
    cases: list[tuple[str, Callable[..., Any], dict[str, Any]]] = []
    for name, function, arguments in calls(folder):
        cases += [(name, function, arguments)] if not arguments else []
        for argument in arguments:
            cases += [
                (f"{name}({argument}={wrong!r:.60})", function, {**arguments, argument: wrong}) for wrong in WRONG
            ]
    random.Random(seed).shuffle(cases)
    signal.signal(signal.SIGALRM, _too_long)
    for how, function, arguments in cases[:runs]:
        for old in folder.glob("e.db*"):
            if not how.startswith("Study.open"):
                old.unlink()
        signal.alarm(PATIENCE)
        try:
            # Some of what is wrong for one argument is right for another, True for a flag or None for an option.
            tally.attempt(lambda function=function, arguments=arguments: function(**arguments), how)  # type: ignore[misc]
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            tally.complain(f"{type(error).__name__}: {error!s:.200}", how)
        finally:
            signal.alarm(0)
    tally.counts["possible"] = len(cases)
