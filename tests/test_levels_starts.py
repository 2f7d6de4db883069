"""Behaviors and starts in one search: exactly unbiased through all that it learns, better where both matter."""

import json
from itertools import product

import numpy as np
import pytest
from scipy import special, stats

import bpsearch as bps
from benchmarks.rare_levels import TASKS
from bpsearch._core.jaxtools import replace
from bpsearch.errors import InvalidArgumentError
from bpsearch.estimators import importance_sampling
from bpsearch.inference.counting import count_episodes
from bpsearch.inference.valuation import Valuation
from bpsearch.policies.chosen_starts import ChosenStarts
from bpsearch.policies.mixture import Mixture
from bpsearch.search import LevelsStarts, levels, levels_starts
from bpsearch.search.starts import StartSearch
from bpsearch.testing import check_search, enumerate_trajectories

BOTH, ACTIONS = "slope, starts and actions", "slope, actions"


def two_doors():
    """From the second of two starts the second action fails."""
    transitions, rewards = np.zeros((3, 2, 3)), np.zeros((3, 2, 3))
    transitions[:, :, 2] = 1.0
    rewards[1, 1, 2] = 1.0
    mdp = bps.TabularMDP(transitions, rewards, np.array([0.7, 0.3, 0.0]), np.array([False, False, True]), horizon=1)
    return mdp, bps.SoftmaxTable.from_probabilities(np.array([[0.6, 0.4], [0.7, 0.3], [0.5, 0.5]]))


def outcomes(mdp, everything, behavior):
    """Every episode of a behavior as a batch, and the probability of each: offered starts, choice, trajectory."""
    batch, first = everything.batch, np.asarray(everything.batch.observations)[:, 0]
    log_probs = np.where(batch.mask, np.asarray(behavior.actor.log_prob(batch.observations, batch.actions)), 0.0)
    chances = everything.env_probs * np.exp(log_probs.sum(axis=1))
    found: dict[tuple[int, float], float] = {}
    choice = behavior.starts
    starts = np.flatnonzero(mdp.initial)
    for offered in product(starts, repeat=choice.candidates) if choice else ((start,) for start in starts):
        given = choice.probabilities(np.array(offered)) if choice else np.ones(1)
        for start, chance in zip(offered, given, strict=True):
            key = int(start), float(np.log(len(offered) * chance))
            found[key] = found.get(key, 0.0) + float(np.prod(mdp.initial[list(offered)]) * chance)
    parts, probabilities = [], []
    for (start, log_chance), probability in found.items():
        rows = np.flatnonzero((first == start) & (chances > 0.0))
        own = batch.take(rows)
        recorded = log_probs[rows].copy()
        recorded[:, 0] += log_chance  # as samplers record it
        parts.append(bps.Trajectories(own.observations, own.actions, own.rewards, recorded, own.mask))
        probabilities.append(probability * chances[rows] / mdp.initial[start])
    return bps.Trajectories.concatenate(parts), np.concatenate(probabilities)


def test_whole_studies_are_unbiased(monkeypatch):
    """Every offer, choice and trajectory of batches of 2, 2 and 1, with all that is learned in between.

    One failure makes episodes count, so does one batch without a better behavior, and every shift is taken.
    """
    monkeypatch.setattr(levels, "COMMON", 0.01)
    monkeypatch.setattr(levels, "SPREAD", 0.0)
    monkeypatch.setattr(levels_starts, "STEADY", 1)
    mdp, policy = two_doors()
    search, valuation = (
        LevelsStarts(starts=StartSearch(candidates=2, uniform_share=0.3)),
        Valuation(importance_sampling),
    )
    asked, fixed = bps.Failure("return >= 1"), valuation.init(policy, 1.0)
    sizes, truth = (2, 2, 1), float(bps.oracle.value(mdp, policy))
    everything = enumerate_trajectories(mdp)
    found, total, acted = np.zeros(2), 0.0, set()

    def extend(state, values, weights, probability):
        nonlocal found, total
        number, behavior = len(values), search.behavior(state)
        if behavior.starts is not None:
            acted.add((number, type(behavior.starts).__name__, search.shift(state) != 0.0))
        every, chances = outcomes(mdp, everything, behavior)
        assert chances.sum() == pytest.approx(1.0, abs=1e-12)
        paid = asked.pay(every)
        weights = [*weights, search.weight(state)]
        valued = valuation.value(fixed, paid, search.shift(state), weights[-1])
        assert np.exp(valued.log_weights.max()) <= behavior.weight_bound + 1e-9
        for rows in map(list, product(range(len(every)), repeat=sizes[number])):
            means, chance = [*values, valued.values[rows].mean()], probability * np.prod(chances[rows])
            if number + 1 < len(sizes):
                extend(search.step(state, paid.take(np.array(rows)))[0], means, weights, chance)
                continue
            counts, naive = np.array(count_episodes(weights, sizes)) * sizes, np.array(weights) * sizes
            ratio = naive @ means / naive.sum() if naive.any() else np.mean(means)
            found, total = found + chance * np.array([counts @ means / counts.sum(), ratio]), total + chance

    extend(search.init(policy, 1.0), [], [], 1.0)
    assert total == pytest.approx(1.0, abs=1e-12)
    assert {(1, "LikelyStates", False), (2, "Squared", True)} <= acted, "or less was proved"
    assert found[0] == pytest.approx(truth, abs=1e-12)
    assert abs(found[1] - truth) > 1e-4, "the negative control"


@pytest.mark.slow
def test_a_failure_that_needs_a_start_and_actions_is_found():
    """One in ten thousand, 1,500 episodes, where Monte Carlo's relative error is 2.6 and this one's is about 0.2."""
    task = TASKS[BOTH]()
    found = bps.evaluate(task.policy, task.env, 1500, "levels-starts", estimand=task.asked, seed=1)
    assert found.value == pytest.approx(task.truth, rel=0.8)
    assert found.std_error < 0.5 * task.truth
    assert found.unused == ()
    assert found.weight_bound == pytest.approx(25.0)
    assert np.exp(found.data.log_weights).max() <= 25.0 + 1e-9


def test_the_bound_of_weights_is_that_of_all_batches():
    """Also where the next one is run without a choice, and its own weights are smaller."""
    _, policy = two_doors()
    search = LevelsStarts()
    state = search.init(policy, 1.0)
    assert search.behavior(state).weight_bound == 2.0, "the first looks around; later ones have weights of 5"
    assert search.weight_bound(state) == 5.0
    varied = replace(state, varied=np.bool_(True))
    assert search.behavior(varied).weight_bound == 2.0
    assert search.weight_bound(varied) == pytest.approx(25.0)
    assert search.without_resets().weight_bound(varied) == 5.0


def test_where_starts_tell_nothing_it_is_levels():
    task = TASKS[ACTIONS]()
    one, other = (
        bps.evaluate(task.policy, task.env, 600, method, estimand=task.asked, seed=0)
        for method in ("levels", "levels-starts")
    )
    assert one.data.values.tobytes() == other.data.values.tobytes()
    assert other.unused == ("starts: no choice among them was found better than none",)


def test_without_resets_it_is_levels_and_says_so():
    task = TASKS[BOTH]()
    given = {"estimand": task.asked, "seed": 0, "resets": "never"}
    one, other = (bps.evaluate(task.policy, task.env, 400, m, **given) for m in ("levels", "levels-starts"))
    assert one.data.values.tobytes() == other.data.values.tobytes()
    assert "must not be reset" in str(other.unused)
    study = bps.Study(task.policy, "levels-starts", estimand=task.asked, seed=0)
    with pytest.raises(InvalidArgumentError, match=r"resets='never' forbids that; make the study with LevelsStarts"):
        study.run(task.env, total=100, resets="never")
    with pytest.raises(InvalidArgumentError, match=r"resets the environment several times .* another method"):
        bps.evaluate(task.policy, task.env, 400, "starts", **given)


def test_with_one_start_it_is_levels_and_says_so():
    task = TASKS["two levels of 0.1"]()
    one, other = (
        bps.evaluate(task.policy, task.env, 400, method, estimand=task.asked, seed=0)
        for method in ("levels", "levels-starts")
    )
    assert one.data.values.tobytes() == other.data.values.tobytes()
    assert "all episodes start alike" in str(other.unused)


def test_a_stored_study_goes_on_to_the_last_bit(tmp_path):
    task = TASKS["doors, starts and actions"]()
    whole = bps.Study(task.policy, "levels-starts", estimand=task.asked, seed=3).run(task.env, total=700)
    with bps.Study(task.policy, "levels-starts", estimand=task.asked, seed=3, store=tmp_path / "a.db") as study:
        study.run(task.env, total=400)
    with bps.Study(task.policy, "levels-starts", estimand=task.asked, store=tmp_path / "a.db") as study:
        again = study.run(task.env, total=700)
        assert study.verify() == []
    assert whole.unused == ()
    assert again.data.values.tobytes() == whole.data.values.tobytes()


def test_it_keeps_the_promises_of_a_search_where_starts_are_numbers():
    task = TASKS[BOTH]()
    behaviors = (task.policy, task.policy.noisier(2.0), task.policy)
    batches = [task.asked.pay(bps.sample(task.env, b, 60, seed=0, batch=n)) for n, b in enumerate(behaviors)]
    check_search(LevelsStarts(), task.policy, batches)


def test_who_asks_and_runs_himself_gets_the_mixture_to_act_with():
    """A behavior that chooses starts acts as its actor does, memory included."""
    _, policy = two_doors()
    mixture = Mixture(policy, policy.with_flat(np.array([0.0, 3.0, 0.0, 3.0, 0.0, 0.0])), np.float64(0.2))
    chosen = ChosenStarts(mixture, levels_starts.Squared(_AsTheyCome()), mixture.weight_bound)
    assert chosen.weight_bound == pytest.approx(25.0)
    numbers, seen = np.random.default_rng(0).random(6), np.array([0, 1, 1, 0, 1, 0])
    one, other = (who.act_next(numbers[:, None], seen, who.begin(numbers)) for who in (mixture, chosen))
    for a, b in zip(one[:3], other[:3], strict=True):
        np.testing.assert_array_equal(a, b)
    assert chosen.remembers
    assert chosen.uniforms == mixture.uniforms


class _AsTheyCome(levels_starts.StartWeights):
    candidates, uniform_share, parameters = 3, 0.2, np.zeros(0)

    def weigh(self, observations):
        return np.ones(len(observations))


def test_what_a_start_promises_is_what_the_policy_does_from_there():
    """Episodes of a mixture that pushes on, weighted by their actions, predict the policy's own margins, x − 3.7."""
    task, search = TASKS[BOTH](), StartSearch()
    pushes = task.policy.with_flat(np.asarray(task.policy.flat) + np.eye(22, dtype=np.float32)[20])  # the last bias
    mixture = Mixture(task.policy, pushes, np.float64(0.5))
    batch = task.asked.pay(bps.sample(task.env, mixture, 1500, seed=0))
    margins, places = np.asarray(batch.margins), np.array([[-1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    weights = np.exp(levels.weigh_episodes(task.policy, batch))
    state = search.init(task.policy)
    found = []
    for by in (weights, np.ones(len(batch))):
        choice = search.choose(search.learn(state, batch, margins, by))
        found.append(special.ndtri(choice.weigh(places.astype(np.float32)) ** 2) * choice.deviation)
    own = places[:, 0] - stats.norm.isf(1e-4)
    assert weights.mean() == pytest.approx(1.0, abs=0.1)
    np.testing.assert_allclose(found[0], own, atol=0.25)
    assert np.all(found[1] > own + 0.5), "the negative control: unweighted they predict the mixture's"


def test_the_command_obeys_when_resets_are_forbidden(in_process):
    """As Python does: levels alone, which says so."""
    options = ["--env", "bpsearch/Gridworld-v0", "--policy", "gridworld-early", "--episodes", "200", "--seed", "0"]
    options += ["--failure", "return < -80", "--method", "levels-starts", "--resets", "never", "--json"]
    done = in_process("evaluate", *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "must not be reset" in " ".join(found["unused"])
