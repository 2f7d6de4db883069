"""A callback for the training of Stable-Baselines3 models: evaluates with an error, and keeps what is really better."""

from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback

from bpsearch._core.checks import check_integer, check_real
from bpsearch.calls.compare import compare
from bpsearch.calls.evaluate import evaluate
from bpsearch.inference.comparison import Comparison
from bpsearch.inference.difference import Decision
from bpsearch.inference.estimate import Estimate
from bpsearch.integrations.sb3 import from_sb3
from bpsearch.policies.base import Policy
from bpsearch.runners.in_process import Environment


class EvaluationCallback(BaseCallback):
    """In place of SB3's `EvalCallback`: logs value and interval, and keeps a best model that is significantly better.

    `EvalCallback` takes the model with the highest mean of a few episodes for the best: the luckiest of many. This one
    lets the present model and the best so far run from the same starts, with seeds that neither has seen, and keeps the
    present one only if the verdict is that it is better. It ends as soon as that is clear.

    It evaluates the policy with its action noise, as it was trained. The logger gets `eval/value`, `eval/interval_low`,
    `eval/interval_high`, `eval/episodes`, `eval/savings`, `eval/best_value`, and from the second evaluation on
    `eval/difference` (to the best so far) and `eval/is_better`.

    Args:
        eval_env: where, as for `bps.evaluate`.
        eval_freq: evaluate every so many calls of the callback, which are steps of each parallel environment.
        episodes: how many episodes the model may run in an evaluation; the best so far may run as many.
        method: as for `bps.evaluate`.
        level: of intervals and verdicts.
        best_model_save_path: directory for `best_model.zip`.
        seed: of the evaluations; each has episodes of its own.
        verbose: 1 prints every evaluation.

    Attributes:
        estimates: of all evaluations, with the number of training steps before each.
        comparisons: of each model with the best before it, in the same way.
        best: the estimate of the best model, when it became that.
        best_policy: the best model's policy, as it was then.
    """

    def __init__(
        self,
        eval_env: Environment,
        *,
        eval_freq: int = 10_000,
        episodes: int = 200,
        method: str = "auto",
        level: float = 0.95,
        best_model_save_path: str | Path | None = None,
        seed: int = 0,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        self.eval_env, self.method = eval_env, method
        self.eval_freq = check_integer("eval_freq", eval_freq)
        self.episodes = check_integer("episodes", episodes)
        self.level = check_real("level", level, above=0.0, high=1.0 - 1e-12)
        self.seed = check_integer("seed", seed, at_least=0)
        self.best_model_save_path = None if best_model_save_path is None else Path(best_model_save_path)
        self.estimates: list[tuple[int, Estimate]] = []
        self.comparisons: list[tuple[int, Comparison]] = []
        self.best: Estimate | None = None
        self.best_policy: Policy | None = None

    def _on_step(self) -> bool:
        if self.n_calls % self.eval_freq == 0:
            self._evaluate()
        return True

    def _evaluate(self) -> None:
        policy = from_sb3(self.model, adapt="last")
        seed = self.seed + len(self.estimates)
        found, better = None, True
        if self.best_policy is None:
            estimate = evaluate(policy, self.eval_env, self.episodes, self.method, seed=seed)
        else:
            found = compare(
                {"model": policy, "best": self.best_policy},
                self.eval_env,
                self.episodes,
                self.method,
                seed=seed,
                level=self.level,
            )
            estimate, better = found.estimates["model"], found.decision is Decision.BETTER
            self.comparisons.append((self.num_timesteps, found))
        self.estimates.append((self.num_timesteps, estimate))
        if better:
            self.best, self.best_policy = estimate, policy
            if self.best_model_save_path is not None:
                self.best_model_save_path.mkdir(parents=True, exist_ok=True)
                self.model.save(self.best_model_save_path / "best_model")
        self._log(estimate, found, better)

    def _log(self, estimate: Estimate, found: Comparison | None, better: bool) -> None:
        assert self.best is not None
        # A comparison ends by its verdict: then the anytime-valid interval is the one that holds.
        interval = estimate.interval(self.level) if found is None else estimate.anytime_interval(self.level)
        numbers = {"value": estimate.value, "episodes": estimate.episodes, "best_value": self.best.value}
        if interval is not None:
            numbers |= {"interval_low": interval[0], "interval_high": interval[1]}
        if estimate.savings is not None:
            numbers["savings"] = estimate.savings
        if found is not None:
            numbers |= {"difference": found.difference, "is_better": float(better)}
        for name, number in numbers.items():
            self.logger.record(f"eval/{name}", number)
        self.logger.record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(self.num_timesteps)
        if self.verbose:
            print(f"{self.num_timesteps} steps: {estimate if found is None else found}")
