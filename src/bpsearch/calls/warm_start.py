"""warm_start(): a study that begins with episodes that are there already."""

import dataclasses
from pathlib import Path

import numpy as np

from bpsearch.calls.estimate import check_overlap, is_own, weigh
from bpsearch.errors import InvalidArgumentError
from bpsearch.estimands import Estimand
from bpsearch.methods import AnySearch, Method, find_method
from bpsearch.policies.base import Policy
from bpsearch.policies.resolve import PolicySource
from bpsearch.runners.in_process import Environment
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search.warm_start import WarmStart
from bpsearch.study.study import Study

PILOT = 5  # one old episode in so many tells what the others are worth


def warm_start(
    policy: PolicySource,
    trajectories: Trajectories,
    method: str | Method | AnySearch = "auto",
    *,
    env: Environment | None = None,
    behavior: Policy | None = None,
    estimand: Estimand | None = None,
    seed: int | None = None,
    store: str | Path | None = None,
    insist: bool = False,
) -> Study:
    """A study that has been told old episodes, and goes on with new ones: `study.run(env, episodes=500)`.

    The policy's own old episodes count like new ones, with every method. Those of another behavior count by their
    importance weights: a fifth of them only tells what the others are worth beside new ones, which is how much these
    count, and the search learns from all of them (`bpsearch.search.WarmStart`). What `estimate` says of recorded
    probabilities holds here, too. The estimate is unbiased; its number of episodes includes the old ones.

    Args:
        policy: the evaluation policy, as for `evaluate`.
        trajectories: the old episodes, as for `estimate`.
        method: as for `evaluate`. "auto" for the episodes of another behavior is "pdis-bpg"; methods without importance
            weights cannot value them.
        env: needed to load a policy that is a file, a module or a function.
        behavior: who collected the episodes, if their log-probabilities are to be computed again.
        estimand: what is estimated; the return without discount by default.
        seed: of the new episodes.
        store: as for `Study`; a study that has been told the old episodes is not told them again.
        insist: whether to take episodes that hardly overlap with the policy.

    Raises:
        PoorOverlapError: the weights are worth fewer than 10 equally weighted episodes.
        InvalidArgumentError: the method cannot value episodes of another behavior.
    """
    loaded, old, ratios = weigh(policy, trajectories, env, behavior)
    check_overlap(ratios.sum(axis=1), insist)
    own = is_own(ratios)
    chosen = find_method("pdis-bpg" if method == "auto" and not own else method)
    if not own and chosen.valuation.estimator.on_policy:
        raise InvalidArgumentError(
            f"the method {chosen.name!r} values episodes of the policy itself only, and these are another behavior's; "
            f"take 'auto', 'bpg' or 'pdis-bpg'"
        )
    old = dataclasses.replace(old, behavior_parameters=None, seed=None)
    rows = np.arange(len(old))
    parts = [rows] if own else [part for part in (rows[: len(old) // PILOT], rows[len(old) // PILOT :]) if len(part)]
    if not own and len(parts) == 2:
        chosen = dataclasses.replace(chosen, search=WarmStart(chosen.search))
    study = Study(loaded, chosen, estimand=estimand, seed=seed, store=store)
    told = study.episodes
    for part in parts:
        if part[-1] >= told:
            study.tell(study.ask().number, old.take(part))
    return study
