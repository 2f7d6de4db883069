"""`auto` chooses who acts on tables: unbiased with its decisions, by enumeration; and what it decides."""

import itertools

import numpy as np
import pytest

import bpsearch as bps
from bpsearch.control_variates import Scores, TabularAdvantages, choice
from bpsearch.control_variates.choice import Choice, Spread, can_choose, is_decision
from bpsearch.inference import choosing, judgement
from bpsearch.inference.choosing import ChoosingValuation
from bpsearch.methods import find_method, for_policy
from bpsearch.search import MayMove
from enumeration import enumerate_trajectories, random_mdp, random_policy
from test_closed_form import gamble

EAGER = ChoosingValuation(control_variates=(Scores(doubt=0.0), TabularAdvantages(doubt=0.0)))


class Run:
    """A study, step by step, as `Study` does it."""

    def __init__(self, mdp, policy, valuation):
        self.search, self.valuation = MayMove(), valuation
        self.states = self.search.init(policy, mdp.discount), valuation.init(policy, mdp.discount)
        self.batches = []

    def tell(self, batch):
        self.batches.append(self.valuation.value(self.states[1], batch))
        self.states = self.search.step(self.states[0], batch)[0], self.valuation.learn(self.states[1], batch)
        return self

    @property
    def choice(self):
        return Choice(int(self.states[1].course.choice))

    @property
    def behavior(self):
        return self.search.behavior(self.states[0])

    def conclude(self, batch):
        """What the study says after another batch, without telling it."""
        valued = [*self.batches, self.valuation.value(self.states[1], batch)]
        return self.valuation.conclude(self.valuation.learn(self.states[1], batch), valued)


def lopsided():
    """A rare action opens a coin of the environment, whose sides are not alike; one step."""
    mdp, _ = gamble()
    rewards = np.where(mdp.rewards > 0.0, 3.0, mdp.rewards)
    return (
        bps.TabularMDP(mdp.transitions, rewards, mdp.initial, mdp.terminal, mdp.horizon),
        bps.SoftmaxTable.from_probabilities(np.tile([0.8, 0.2], (4, 1))),
    )


def test_whole_studies_with_their_decisions_are_unbiased(monkeypatch):
    """Every study of two batches of three episodes and, after the decision, a batch of one."""
    for name, value in (("FEW", 0.0), ("GAIN", 0.8)):
        monkeypatch.setattr(choice, name, value)
    mdp, policy = lopsided()
    everything = enumerate_trajectories(mdp)
    batch, probabilities = everything.under(policy), everything.probabilities(policy.probabilities)
    truth = bps.oracle.value(mdp, policy)
    total, careless, decided, weights = 0.0, 0.0, dict.fromkeys(Choice, 0.0), set()
    openings = [np.array(rows) for rows in itertools.combinations_with_replacement(range(len(batch)), 3)]
    # Without control variates the order within a batch does not matter: how many orders there are counts.
    chances = [len(set(itertools.permutations(rows.tolist()))) * np.prod(probabilities[rows]) for rows in openings]
    for (first, chance), (second, other) in itertools.product(zip(openings, chances, strict=True), repeat=2):
        run = Run(mdp, policy, EAGER).tell(batch.take(first)).tell(batch.take(second))
        decided[run.choice] += chance * other
        third, acts = everything.under(run.behavior), everything.probabilities(run.behavior.probabilities)
        for row, probability in enumerate(acts):
            found = run.conclude(third.take(np.array([row])))
            total += chance * other * probability * found.mean
            weights.add(tuple(np.round(found.weights, 9)))
            share = 0.05 if run.choice.moved else 0.5  # by the very episodes that it weighs
            opening = np.concatenate(found.batches[:2]).mean()
            careless += chance * other * probability * (share * opening + (1.0 - share) * found.batches[2][0])
    assert sum(decided.values()) == pytest.approx(1.0)
    assert min(decided.values()) > 0.1, decided
    assert len(weights) > 3
    assert total == pytest.approx(truth, abs=1e-12)
    assert abs(careless - truth) > 1e-2, "weights that depend on what they weigh are biased: this test can fail"


@pytest.mark.slow
def test_given_all_others_what_an_episode_adds_is_unbiased(monkeypatch):
    """Σ_h Pr(h) u_b(h) (X_i(h) − ρ) = 0 for an episode i of batch b, control variates and decisions included.

    The first two batches have 20 episodes each. What comes after them has the right expectation given each of them.
    """
    mdp = random_mdp(0, (2, 2, 2), 0.9)
    policy = random_policy(1, mdp)
    everything = enumerate_trajectories(mdp)
    batch, probabilities = everything.under(policy), everything.probabilities(policy.probabilities)
    truth = bps.oracle.value(mdp, policy)
    rows = np.random.default_rng(0).choice(len(probabilities), size=45, p=probabilities)
    episode, gains = 23, []

    def begin(trajectory):
        rows[episode] = trajectory
        return Run(mdp, policy, EAGER).tell(batch.take(rows[:20])).tell(batch.take(rows[20:40]))

    for trajectory in range(0, len(batch), 3):
        forecast = begin(trajectory).states[1].course.seen.forecast
        gains.append(forecast.variance(forecast.behavior(choice.SHARE)) / forecast.variance(forecast.policy))
    # About half of what the episode may be leads to the one decision, and half to the other.
    for name, value in (("FEW", 0.0), ("GAIN", float(np.median(gains)))):
        monkeypatch.setattr(choice, name, value)
    monkeypatch.setattr(judgement, "CAUTION", 0.0)
    total, corrected, decided = 0.0, 0, set()
    for trajectory, probability in enumerate(probabilities):
        run = begin(trajectory)
        possible, acts = everything.under(run.behavior), everything.probabilities(run.behavior.probabilities)
        found = run.conclude(possible.take(rows[40:]))
        total += probability * found.weights[1] * (found.batches[1][3] - truth)
        corrected += found.batches[1][3] != run.batches[1].returns[3]
        if run.choice not in decided:
            later = 0.0
            for last, chance in enumerate(acts):
                after = np.append(rows[40:44], last)
                later += chance * run.conclude(possible.take(after)).batches[2][4]
            assert later == pytest.approx(truth, abs=1e-10)
        decided.add(run.choice)
    assert total == pytest.approx(0.0, abs=1e-12)
    assert corrected
    assert decided == {Choice.STAY, Choice.MOVE}, decided


def test_when_it_is_decided():
    assert [told for told in range(40) if is_decision(told)] == [2, 4, 8, 16, 32]
    asked = [0, 0, 2, 3, 4, 7, 8, 9]
    assert [choosing._block(told, -1) for told in asked] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [choosing._block(told, 2) for told in asked] == [0, 0, 1, 1, 1, 1, 1, 1]


def test_the_spread_of_returns():
    returns = np.random.default_rng(0).normal(50.0, 3.0, size=40)
    spread = Spread.none().add(returns[:15]).add(returns[15:])
    assert spread.variance == pytest.approx(np.var(returns))
    squares = (returns - returns.mean()) ** 2
    assert spread.effective_episodes == pytest.approx(squares.sum() ** 2 / np.sum(squares**2))
    assert Spread.none().add(np.full(5, 7.0)).variance == 0.0


def test_for_which_policies_it_chooses():
    auto = find_method("auto")
    table = bps.shipped_policy("gridworld-early")
    rare = table.with_probability(0, 0, 0.01)
    assert not can_choose(table)
    assert can_choose(rare)
    assert not can_choose(bps.SoftmaxTable([[0.0, -np.inf]]))
    assert not can_choose(bps.shipped_policy("cartpole-swingup"))
    assert not can_choose(bps.SoftmaxTable(np.tile([0.0, -9.0], (1000, 1))))
    assert for_policy(auto, table) is auto
    assert for_policy(find_method("mc"), rare).search == bps.OnPolicy()
    assert for_policy(auto, rare).name == "auto"


def test_as_long_as_nothing_is_decided_it_is_auto_without_a_choice():
    mdp, policy = bps.envs.gridworld(), bps.shipped_policy("gridworld-early").with_probability(0, 0, 0.01)
    ours, plain = (bps.Study(policy, m, seed=1) for m in (for_policy(find_method("auto"), policy), "auto"))
    one, other = ours.run(mdp, total=200), plain.run(mdp, total=200)
    assert (one.value, one.interval(), one.anytime_interval()) == (
        other.value,
        other.interval(),
        other.anytime_interval(),
    )


def test_it_moves_where_a_rare_action_opens_noise(tmp_path):
    """And a stored study goes on where it was, to the last bit."""
    mdp, policy = gamble()
    store = tmp_path / "study"
    half = bps.evaluate(policy, mdp, 300, seed=2, store=store)
    whole = bps.evaluate(policy, mdp, 600, seed=2, store=store)
    assert whole.value == bps.evaluate(policy, mdp, 600, seed=2).value
    assert half.data.weighted
    assert np.abs(whole.data.log_weights[:200]).max() == 0.0
    assert whole.savings > 3.0
    with bps.Study.open(store, read_only=True) as study:
        assert study.verify() == []


def test_a_failure_on_a_table_with_rare_actions():
    mdp, policy = gamble()
    found = bps.evaluate(policy, mdp, 600, for_policy(find_method("auto"), policy), failure="return > 0", seed=3)
    assert found.data.weighted
    low, high = found.interval()
    assert 0.0 <= low <= 0.01 <= high <= 1.0
