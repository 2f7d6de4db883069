"""Does it keep its promises? Checks for searches, runners, control variates, estimators and policies of your own.

Each check raises `AssertionError` with what was expected and what was found. They prove where they can, by enumerating
every trajectory of small MDPs, and sample nowhere.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bpsearch import oracle
from bpsearch._core.arrays import Array
from bpsearch._core.jaxtools import in_64_bit, replace
from bpsearch.control_variates.base import AnyControlVariate
from bpsearch.control_variates.tabular_model import TabularModel
from bpsearch.envs.tabular import TabularMDP
from bpsearch.estimators.base import Estimator, log_ratios
from bpsearch.policies.base import Policy
from bpsearch.runners.base import Runner
from bpsearch.sampling.trajectories import Trajectories
from bpsearch.search.base import Search
from bpsearch.study.codec import same_bits
from bpsearch.testing.enumeration import Floats, enumerate_trajectories, random_mdp, random_policy

_CASES = ((0, (3, 2, 2), 0.9), (1, (2, 2, 3), 1.0))


def check_search(search: Search[Any], policy: Policy, batches: Sequence[Trajectories]) -> None:
    """Check a search on batches of any behaviors of full support.

    Args:
        search: the search.
        policy: an evaluation policy.
        batches: at least two, whose log-probabilities are those of their own behaviors.
    """
    state = search.init(policy, 1.0)
    leaves, structure = jax.tree_util.tree_flatten(state)
    shapes = [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves]
    for batch in batches:
        behavior = search.behavior(state)
        behavior.check_support(policy)
        _expect(bool(np.isfinite(behavior.flat).all()), "the behavior's parameters must be finite")
        _expect(np.isfinite(search.shift(state)), f"the shift must be finite, got {search.shift(state)}")
        weight = search.weight(state)
        _expect(0.0 <= weight < np.inf, f"the weight must be a finite number, not negative, got {weight}")
        _expect(
            same_bits(search.behavior(state).flat, behavior.flat), "behavior(state) must be a function of the state"
        )
        before = [np.array(leaf) for leaf in jax.tree_util.tree_leaves((state, batch))]
        after, _ = search.step(state, batch)
        again, _ = search.step(state, batch)
        unchanged = map(same_bits, before, jax.tree_util.tree_leaves((state, batch)))
        _expect(all(unchanged), "step must not change the state or the batch that it is given")
        same = map(same_bits, *(jax.tree_util.tree_leaves(found) for found in (after, again)))
        _expect(all(same), "the same state and batch must give the same new state, to the last bit")
        found, kept = jax.tree_util.tree_flatten(after)
        _expect(str(kept) == str(structure), f"the state must keep its structure {structure}, got {kept}")
        now = [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in found]
        _expect(now == shapes, f"the state must keep its shapes and types {shapes}, got {now}")
        state = after


def check_runner(runner: Runner, behavior: Policy, *, episodes: int = 7) -> None:
    """Check a runner: the same episodes whenever and beside whichever others they run.

    Args:
        runner: the runner.
        behavior: a policy for its spaces.
        episodes: how many to run.
    """
    first = runner.run(behavior, episodes, seed=3, batch=2)
    _expect(len(first) == episodes, f"{episodes} episodes were asked for, got {len(first)}")
    _same_episodes(first, runner.run(behavior, episodes, seed=3, batch=2), episodes, "run again")
    _same_episodes(first, runner.run(behavior, 2 * episodes, seed=3, batch=2), episodes, "run beside others")
    other = runner.run(behavior, episodes, seed=3, batch=1)
    _expect(_actions(other, episodes) != _actions(first, episodes), "another batch must have other episodes")
    ratios = np.abs(np.asarray(log_ratios(behavior, first)))
    _expect(ratios.max() < 1e-3, f"the recorded log-probabilities are off by up to {ratios.max():.3g}")
    pairs = runner.run(behavior, 2 * episodes, seed=3, batch=2, repeats=2)
    starts = jax.tree_util.tree_leaves(jax.tree_util.tree_map(lambda leaf: leaf[:, 0], pairs.observations))
    if runner.resets:
        further = runner.run(behavior, episodes, seed=3, batch=2, resets=2)
        _same_episodes(first, further, episodes, "run with further resets")
        again = runner.run(behavior, 2 * episodes, seed=3, batch=2, resets=2)
        if not runner.no_resets:
            _expect(further.resets is not None, "further resets were asked for, got none")
            resets = [jax.tree_util.tree_leaves(found.take(np.arange(episodes)).resets) for found in (further, again)]
            same = all(np.array_equal(one, other) for one, other in zip(*resets, strict=True))
            _expect(same, "an episode has other further starts when run beside others")
    alike = all(np.array_equal(leaf[0::2], leaf[1::2]) for leaf in starts)
    _expect(alike, "the episodes of a pair (repeats=2) must start alike")


def check_control_variate(control: AnyControlVariate) -> None:
    """Check a control variate for tabular policies by enumeration.

    Whatever it learns from some episodes, the expectation of its predictions over all trajectories must be 0; evidence
    must add up; a prediction must depend on its own episode and the fit alone.
    """
    for seed, shape, discount in _CASES:
        mdp = random_mdp(seed, shape, discount)
        policy = random_policy(seed, mdp)
        everything = enumerate_trajectories(mdp)
        batch, probabilities = everything.under(policy), everything.probabilities(policy.probabilities)
        reason = control.refuse(policy)
        _expect(not reason, f"the control variate refuses a table: {reason}")
        bound = control.bind(policy, discount)
        if control.needs_resets:
            batch, probabilities = _with_resets(batch, probabilities, mdp)
        rows = np.random.default_rng(seed).choice(len(probabilities), size=60, p=probabilities)
        some = batch.take(rows)
        summary, every = bound.summarize(some), bound.summarize(batch)
        assert summary is not None
        assert every is not None
        targets, groups = np.asarray(some.returns(discount)), np.arange(60) % 3
        parts = bound.evidence(summary, targets, groups, 3)
        whole = bound.evidence(summary, targets, np.zeros(60, int), 1)
        fit = bound.fit([parts[0] + parts[1] + parts[2], whole[0], parts[1]])
        numbers = np.asarray(bound.predict(fit, every))
        _expect(numbers.ndim == 3 and numbers.shape[::2] == (3, len(batch)), f"(C, J, N) expected, got {numbers.shape}")
        _expect(np.allclose(numbers[0], numbers[1], atol=1e-8), "the evidence of groups must add up to that of all")
        means = numbers @ probabilities
        _expect(np.abs(means).max() < 1e-9, f"the expectation of every prediction must be 0, got {means}")
        one = bound.summarize(batch.take(np.array([5])))
        alone = np.asarray(bound.predict(fit, one))
        _expect(np.allclose(alone[..., 0], numbers[..., 5], atol=1e-9), "a prediction depends on its own episode alone")
        spread = bound.spread(fit, every)
        if spread is not None:
            expected, told = numbers**2 @ probabilities, np.asarray(spread) @ probabilities
            _expect(np.allclose(told, expected, atol=1e-8), f"the spread has the expectation {told}, not {expected}")


@in_64_bit
def check_estimator(estimator: Estimator) -> None:
    """Check an estimator that calls itself unbiased by enumeration, and that padding does not matter to it."""
    for seed, shape, discount in _CASES:
        mdp = random_mdp(seed, shape, discount)
        evaluation, other = random_policy(1, mdp), random_policy(2, mdp)
        behavior = evaluation if estimator.on_policy else other
        everything = enumerate_trajectories(mdp)
        batch = everything.under(behavior)
        model = TabularModel.like(mdp)
        learned = model.fit(model.count(model.init(), batch), evaluation, np.float64(discount))
        extra = model.on_trajectories(learned, batch) if estimator.needs_model else ()
        ratios = log_ratios(evaluation, batch)
        values = np.asarray(estimator(batch.rewards, ratios, batch.mask, discount, *extra))
        _expect(values.shape == (len(batch),), f"{len(batch)} values expected, got {values.shape}")
        if estimator.unbiased:
            found = float(everything.probabilities(behavior.probabilities) @ values)
            truth = oracle.value(mdp, evaluation)
            _expect(abs(found - truth) < 1e-9, f"the expectation of the values must be {truth:.12g}, got {found:.12g}")
        padded = [np.pad(array, ((0, 0), (0, 2))) for array in (batch.rewards, ratios, batch.mask)]
        wider = [np.pad(np.asarray(array), ((0, 0), (0, 2))) for array in extra]
        again = np.asarray(estimator(*padded, discount, *wider))
        _expect(np.allclose(again, values, atol=1e-9), "steps after the end of an episode must not matter")


@in_64_bit
def check_policy(policy: Policy, observations: Array, *, atol: float = 1e-5) -> None:
    """Check a policy.

    Args:
        policy: the policy.
        observations: (N, ...), some that it accepts, N at least 4.
        atol: how far log-probabilities of the same action may be apart by rounding.
    """
    count = len(jax.tree_util.tree_leaves(observations)[0])
    uniforms = np.random.default_rng(0).random((count, policy.uniforms))
    actions, log_probs, executed = policy.act(uniforms, observations)
    _expect(len(actions) == len(log_probs) == len(executed) == count, "one action for each observation expected")
    _expect(all(policy.action_space.contains(action) for action in executed), "executed actions must be possible")
    again = np.asarray(policy.log_prob(observations, actions))
    _expect(np.allclose(again, log_probs, atol=atol), f"log_prob says {again}, act has recorded {log_probs}")
    half = jax.tree_util.tree_map(lambda leaf: leaf[count // 2 :], observations)
    apart, _, _ = policy.act(uniforms[count // 2 :], half)
    _expect(np.allclose(apart, actions[count // 2 :], atol=atol), "an action must not depend on other observations")
    same = policy.with_flat(policy.flat)
    _expect(same_bits(same.flat, policy.flat), "with_flat(flat) must give the same parameters")
    if policy.deterministic or not len(policy.flat):
        return
    steps = (jax.tree_util.tree_map(lambda leaf: leaf[:, None], observations), actions[:, None])
    score = np.asarray(policy.score(*steps, np.ones((count, 1))))
    direction = np.random.default_rng(1).normal(size=len(score))
    step = 1e-3 * direction / np.linalg.norm(direction)
    ends = [np.sum(policy.with_flat(policy.flat + side * step).log_prob(observations, actions)) for side in (1, -1)]
    slope, expected = float(score @ step), float(ends[0] - ends[1]) / 2.0
    _expect(
        bool(np.isclose(slope, expected, rtol=0.05, atol=1e-3)), f"the score gives the slope {slope}, got {expected}"
    )


def _with_resets(batch: Trajectories, probabilities: Floats, mdp: TabularMDP) -> tuple[Trajectories, Floats]:
    """Every trajectory with every further start, and the probabilities of both."""
    starts = np.flatnonzero(mdp.initial)
    rows = np.repeat(np.arange(len(batch)), len(starts))
    resets = np.tile(starts, len(batch)).astype(np.asarray(batch.observations).dtype)
    both = np.repeat(probabilities, len(starts)) * np.tile(mdp.initial[starts], len(batch))
    return replace(batch.take(rows), resets=resets[:, None]), both


def _same_episodes(one: Trajectories, other: Trajectories, count: int, how: str) -> None:
    rows = np.arange(count)
    one, other = one.take(rows), other.take(rows)
    _expect(bool(np.array_equal(one.lengths, other.lengths)), f"episodes have other lengths when {how}")
    for name in ("actions", "rewards"):
        found, again = (getattr(batch, name)[batch.mask] for batch in (one, other))
        _expect(np.allclose(found, again, atol=1e-6), f"episodes have other {name} when {how}")


def _actions(batch: Trajectories, count: int) -> bytes:
    rows = batch.take(np.arange(count))
    return bytes(rows.actions[rows.mask].tobytes())


def _expect(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)
