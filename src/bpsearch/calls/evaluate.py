"""evaluate(): how good is it?"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from bpsearch._core.arrays import Array, Proxy
from bpsearch._core.checks import check_integer, check_type
from bpsearch.calls.task import Task, name_of
from bpsearch.errors import InvalidArgumentError
from bpsearch.estimands import Estimand, Failure, Return
from bpsearch.inference.estimate import Estimate
from bpsearch.inference.stopping import Target
from bpsearch.methods import AnySearch, Method, find_method, for_event, for_policy, with_proxy
from bpsearch.policies.resolve import PolicySource
from bpsearch.runners.choice import Workers
from bpsearch.runners.in_process import Environment
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search import Info
from bpsearch.study.resets import Resets
from bpsearch.study.study import OnBatch, Study


def evaluate(
    policy: PolicySource,
    env: Environment,
    episodes: int = 1000,
    method: str | Method | AnySearch = "auto",
    *,
    deterministic: bool = False,
    seed: int | None = None,
    target: float | Target | None = None,
    failure: str | Callable[[Trajectories], Array] | None = None,
    level: Callable[[Trajectories], Array] | None = None,
    estimand: Estimand | None = None,
    store: str | Path | None = None,
    resets: int | Resets = "auto",
    proxy: Proxy | None = None,
    on_batch: OnBatch | None = None,
    workers: Workers | None = None,
    episode_timeout: float | None = None,
    progress: bool = False,
) -> Estimate:
    """Estimate the expected return of `policy` in `env`.

    Args:
        policy: the evaluation policy: a policy of bpsearch, a model of Stable-Baselines3 or sb3-contrib or the path of
            its .zip, a folder of rl_zoo3, "hf://owner/name", a torch module that gives `torch.distributions`, an agent
            of CleanRL or TorchRL, a module of Flax or Equinox, an .npz of bpsearch, a function from observation to
            action, or an object with `predict`, or with `reset()` if it has a memory. docs/agents.md lists them all.
            `bps.load_sb3` loads a file that needs trust.
        env: a Gymnasium id, a factory, an environment or a vector environment; a `VecEnv` of SB3; a `TabularMDP` or
            another compiled environment, "gymnax:CartPole-v1" or "brax:ant"; a sampler or a runner.
            `bps.environment` makes one with another horizon or discount.
        episodes: how many episodes may be run, those that serve the search included.
        method: "auto" episodes of the policy itself with all that can be learned from them, without any setting;
            "systematic" the same from starts that are spread along a prediction (docs/starts.md);
            "mc" Monte Carlo; "bpg" behavior policy search with importance sampling; "pdis-bpg" with per-decision
            importance sampling; "closed-form", for tables, the behavior that a model of earlier batches finds best; on
            tabular MDPs also "as", the advantage sum, and "dr-bpg", both with such a model; of a failure also "levels",
            a search through those that came near, "starts", which runs the policy from starts near the failure,
            deterministic policies too, and "levels-starts", which does both at once. All are unbiased. On tables with
            rare actions "auto" moves to the closed form where that promises far more. Of a failure "auto" is "failures"
            if it is known how near an episode came: levels, or on tables the closed form where failures
            are common; else it is "bpg". A `Method` or a search of your own also works.
        deterministic: whether the policy takes its most likely action rather than one that is drawn, as SB3's
            `evaluate_policy` does by default. The result says which question was answered.
        seed: the same seed gives the same result; None draws one, which the result records.
        target: stop when half the width of the 95% anytime-valid interval is at most this; or a `Target`.
        failure: estimate the probability of this event in place of the expected return: a comparison of `return` or
            `length` with a number, "return < -100", or a function of a batch of episodes that gives a truth value for
            each.
        level: how near each episode came to the failure, if something tells it better than the return or the length
            does: a function of a batch of episodes that gives a number for each, larger for those that came nearer.
        estimand: what is estimated, if it is neither: `bps.Return(discount=0.9, return_range=(0, 1))`,
            `bps.Outcome(function)`.
        store: the path of a file in which every batch is kept; the same call after a crash goes on from there, up to
            the same number of episodes, and gives the same result.
        resets: how many further starts to draw for each episode, from which "auto" learns what the start explains:
            "auto" as many as are worth their price; "never" for an environment that must not be reset without need
            (then "levels-starts" is "levels").
        proxy: a function of many starts, a batch of observations, that gives a number for each: what a cheap simulator,
            an older agent or a model says of them. It is one more thing that "auto" learns from, on the episodes and
            their further starts; a bad one costs nothing but its time.
        on_batch: called after each batch with the study and what the search says of it: a tracker of
            `bps.integrations` for instance.
        workers: who runs the episodes: a number of processes; "ray" or the address of a Ray cluster; a
            `concurrent.futures.Executor` or a Dask client; this process by default. The result is the same to the last
            bit.
        episode_timeout: with workers, the seconds that an episode may take by itself; the worker of one that takes
            longer is ended, as if it had crashed.
        progress: whether to show a line with the estimate so far, in a terminal or a notebook.

    For a policy without action noise, or of unknown probabilities, only starts can help; where they do not, the result
    is Monte Carlo's and says why. An interrupt (Ctrl-C) after the first batch gives the estimate of all whole batches,
    marked as interrupted.
    """
    check_integer("episodes", episodes)
    with Task.open(policy, env, deterministic=deterministic, workers=workers, episode_timeout=episode_timeout) as task:
        asked = find_estimand(failure, estimand, task.discount, level)
        chosen, no_help = choose_method(method, task, asked, proxy)
        with _shown_progress(episodes, on_batch, progress) as told:
            estimate = run_task(
                task,
                chosen,
                asked,
                episodes,
                seed=seed,
                target=target,
                store=store,
                resets=resets,
                on_batch=told,
                no_help=no_help,
            )
    named = {} if isinstance(method, str) else {"method": f"<{chosen.name}>"}
    extra = {
        "resets": None if resets == "auto" else resets,
        "proxy": proxy,
        "target": target,
        "failure": failure,
        "level": level,
        "estimand": estimand,
        "store": store,
    }
    given = {key: describe(value) for key, value in extra.items() if value is not None}
    return dataclasses.replace(estimate, settings=estimate.settings | named | given)


@contextlib.contextmanager
def _shown_progress(episodes: int, on_batch: OnBatch | None, progress: bool) -> Iterator[OnBatch | None]:
    if not progress:
        yield on_batch
        return
    from bpsearch.report.progress import progress_display

    with progress_display(episodes, quiet=False) as show:

        def told(study: Study, info: Info) -> None:
            if show is not None:
                show(study, info)
            if on_batch is not None:
                on_batch(study, info)

        yield told


def choose_method(
    method: str | Method | AnySearch, task: Task, asked: Estimand, proxy: Proxy | None = None, *, may_move: bool = True
) -> tuple[Method, str]:
    """The method that is meant, and why "auto" is nothing but Monte Carlo; empty if it is more, or was not wanted.

    Args:
        method: what was given.
        task: the policy, and where it runs.
        asked: what is estimated.
        proxy: a control variate of the user's own.
        may_move: whether "auto" may choose who acts, and have batches that count nothing. A comparison may not: its
            policies run on common random numbers.
    """
    by_name = isinstance(method, str)
    is_auto = by_name and method == "auto"
    no_help = task.no_help if is_auto else ""
    if is_auto:
        # Where episodes of the policy itself may never show what is asked for, another behavior has to look for it.
        # Without action noise only the start can help.
        searched = asked.event and not no_help
        method = for_event(task.policy, may_move and asked.graded) if searched else "auto"
    found = find_method(method, task.compiled)
    found = found if proxy is None else with_proxy(found, proxy)
    return for_policy(found, task.policy) if by_name and may_move else found, no_help


def run_task(
    task: Task,
    method: Method,
    asked: Estimand,
    episodes: int,
    *,
    seed: int | None = None,
    target: float | Target | None = None,
    store: str | Path | None = None,
    resets: int | Resets = "auto",
    on_batch: OnBatch | None = None,
    no_help: str = "",
) -> Estimate:
    """`evaluate`, once it is clear what its arguments mean."""
    if resets == "never":
        method = dataclasses.replace(method, search=method.search.without_resets())
    with Study(task.policy, method, estimand=asked, seed=seed, store=store) as study:
        if store is not None:
            study.fix(task.fixed)
        estimate = study.run(
            task.env,
            total=episodes,
            target=target,
            resets=resets,
            on_batch=on_batch,
            workers=task.workers,
            episode_timeout=task.episode_timeout,
        )
    settings = {**task.names, "episodes": episodes, "method": method.name, "seed": study.seed}
    return dataclasses.replace(
        estimate, settings=settings, no_help=no_help, deterministic=task.noiseless, notes=task.policy.notes
    )


def find_estimand(
    failure: str | Callable[[Trajectories], Array] | None,
    estimand: Estimand | None,
    discount: float,
    level: Callable[[Trajectories], Array] | None = None,
) -> Estimand:
    """What is asked: the probability of a failure, what was given, or the return."""
    if level is not None and failure is None:
        raise InvalidArgumentError("level tells how near an episode came to a failure: give failure, too")
    if failure is not None and estimand is not None:
        raise InvalidArgumentError("give failure or estimand, not both: one thing is estimated at a time")
    if failure is not None:
        return Failure(failure, discount, level)
    return Return(discount) if estimand is None else check_type("estimand", estimand, Estimand, "an Estimand")


def describe(value: object) -> object:
    """A setting for the record."""
    if isinstance(value, Target):
        return {name: part for name, part in dataclasses.asdict(value).items() if part is not None}
    if isinstance(value, float | int | str):
        return value
    return str(value) if isinstance(value, Path | Estimand) else name_of(value)
