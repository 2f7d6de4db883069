"""Tune with Optuna by values that know their error: a trial is given up when it is clear that it cannot win.

    python examples/optuna_objective.py --trials 20

What is tuned here are the weights of a linear policy for cart-pole. The value is reported after every batch, and the
trial is pruned when the upper end of its anytime-valid interval, which may be looked at after every batch, lies below
the value of the best trial so far. A trial that was merely unlucky goes on. Needs Optuna: pip install optuna.
"""

import argparse

import numpy as np
import optuna

import bpsearch as bps

ENV = bps.envs.classic_cartpole()


def linear_policy(weights: list[float]) -> bps.CategoricalMLP:
    """Pushes to the right with probability sigmoid(weights · observation)."""
    rows = np.array([np.zeros(4), weights])
    return bps.CategoricalMLP((rows,), (np.zeros(2),))


def objective(trial: optuna.Trial, episodes: int = 500) -> float:
    names = ("position", "velocity", "angle", "spin")
    policy = linear_policy([trial.suggest_float(name, -3.0, 10.0) for name in names])
    done = [t for t in trial.study.get_trials(deepcopy=False) if t.state is optuna.trial.TrialState.COMPLETE]
    best = max((t.values[0] for t in done), default=-np.inf)

    def look(study: bps.Study, _: object) -> None:
        estimate = study.estimate()
        trial.report(estimate.value, estimate.episodes)
        interval = estimate.anytime_interval()
        if interval is not None and interval[1] < best:
            trial.set_user_attr("interval", interval)
            raise optuna.TrialPruned(f"at most {interval[1]:.3g}, and the best has {best:.3g}")

    found = bps.evaluate(policy, ENV, episodes, seed=trial.number, on_batch=look)
    trial.set_user_attr("std_error", found.std_error)
    trial.set_user_attr("interval", found.interval())
    return found.value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=options.trials)
    states = [trial.state.name.lower() for trial in study.trials]
    print(f"{states.count('complete')} trials complete, {states.count('pruned')} pruned")
    error = study.best_trial.user_attrs["std_error"]
    known = "no spread" if error is None else f"standard error {error:.2g}"
    print(f"best: {study.best_value:.4g} ({known}) with {study.best_params}")


if __name__ == "__main__":
    main()
