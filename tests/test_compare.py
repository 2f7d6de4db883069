"""Comparisons: unbiased by enumeration, valid verdicts, the same bits after a crash, and turns by ask and tell."""

import dataclasses
import math
from collections import Counter
from itertools import combinations_with_replacement

import gymnasium
import numpy as np
import pytest

import bpsearch as bps
from bpsearch.errors import (
    InvalidArgumentError,
    InvalidTrajectoriesError,
    RequestError,
    SettingsMismatchError,
    StoreError,
)
from bpsearch.inference.confidence_sequence import FEWEST, AsymptoticSequence
from bpsearch.inference.difference import (
    Decision,
    DifferenceSequence,
    Pairing,
    Side,
    Turn,
    add_errors,
    decide,
    paired_error,
)
from bpsearch.inference.intervals import martingale_error
from bpsearch.inference.standing import Design, Standing
from bpsearch.inference.stopping import Ended, Target
from bpsearch.methods import find_method
from bpsearch.report import comparison_words as words
from bpsearch.runners import InProcess

MDP = bps.envs.gridworld()
EARLY = bps.shipped_policy("gridworld-early")
SHARPER = bps.SoftmaxTable(1.05 * EARLY.logits)
TRUTH = bps.oracle.value(MDP, EARLY) - bps.oracle.value(MDP, SHARPER)


def coin(p):
    """A policy of one state that takes action 1, which pays 1, with probability p."""
    return bps.SoftmaxTable.from_probabilities(np.array([[1.0 - p, p]]))


def tosses(policy, heads):
    actions = np.asarray(heads, np.int32).reshape(-1, 1)
    log_probs = np.log(policy.probabilities[0, actions])
    mask = np.ones(actions.shape, bool)
    return bps.Trajectories(np.zeros_like(actions), actions, actions.astype(float), log_probs, mask, actions[:, 0] * 0)


def couplings(p, q):
    """The probability of each (x, y): with shared seeds the two go against each other, else they are independent."""
    both = max(p + q - 1.0, 0.0)
    against = {(1, 1): both, (1, 0): p - both, (0, 1): q - both, (0, 0): 1.0 - p - q + both}
    apart = {(x, y): (p if x else 1 - p) * (q if y else 1 - q) for x in (0, 1) for y in (0, 1)}
    return against, apart


def test_every_round_is_unbiased_whatever_the_rounds_before_it_chose():
    """Every first round of five pairs, and every second of one, each weighed by its probability.

    The first round decides by the covariance of its pairs whether the second shares its seeds. A choice by the second
    round itself, as a negative control, is biased.
    """
    p, q, size = 0.7, 0.45, 5
    policies = {"a": coin(p), "b": coin(q)}
    against, apart = couplings(p, q)
    shared_weight = mean = last = cheated = total = 0.0
    for first in combinations_with_replacement(against, size):
        counts = Counter(first)
        orders = math.factorial(size) / math.prod(map(math.factorial, counts.values()))
        weight = orders * math.prod(against[pair] for pair in first)
        if weight == 0.0:
            continue
        # One outcome of the second round tells which coupling was chosen; the standing is that of the real study.
        for second in apart:
            study = bps.ComparisonStudy(policies, "mc", episodes=size + 1, batch_size=size, seed=3)
            shared = True
            for pairs in (first, (second,)):
                asked = {turning.name: turning for turning in (study.ask(), study.ask())}
                shared = asked["b"].shared
                assert asked["a"].shared, "the first policy has the seeds that the others may share"
                assert (asked["a"].seeds == asked["b"].seeds) == shared
                for at, name in enumerate(("a", "b")):
                    study.tell(asked[name], tosses(policies[name], [pair[at] for pair in pairs]))
            chance = weight * (against if shared else apart)[second]
            contest = study.standing.contests[0]
            total += chance
            shared_weight += chance * shared
            mean += chance * contest.sequence.mean
            last += chance * (second[0] - second[1])
            cheated += chance * max(second[0] - second[1], 0.0 if shared else -1.0)
    assert total == pytest.approx(1.0, abs=1e-12)
    assert 0.2 < shared_weight < 0.99, "both choices must occur"
    assert last == pytest.approx(p - q, abs=1e-12)
    assert mean == pytest.approx(p - q, abs=1e-12)
    assert abs(cheated - (p - q)) > 1e-2


def test_dropping_leaves_the_rounds_that_are_run_unbiased():
    """By enumeration: given that a policy still runs, its next value has the right expectation."""
    p = 0.6
    runs = value = 0.0
    for heads in range(FEWEST + 1):
        chance = math.comb(FEWEST, heads) * p**heads * (1 - p) ** (FEWEST - heads)
        design = Design(("a", "b", "c"), drop_losers=True, tightest=FEWEST)
        played = np.repeat([1.0, 0.0], [heads, FEWEST - heads])
        fair, never = np.tile([1.0, 0.0], FEWEST // 2), np.zeros(FEWEST)
        turns = {at: Turn(x, x) for at, x in enumerate((played, fair, never))}
        standing = Standing.begin(design).add(turns)
        assert 2 not in standing.running, "a policy that never wins is dropped"
        if 0 in standing.running:
            runs += chance
            for x in (0.0, 1.0):
                after = standing.add({0: Turn(np.array([x]), np.array([x])), 1: Turn(np.ones(1), np.ones(1))})
                added = after.contests[0].sequence.one.total - heads
                value += chance * (p if x else 1 - p) * added
    assert 0.5 < runs < 1.0
    assert value / runs == pytest.approx(p, abs=1e-12)


def test_a_decision_is_what_the_interval_says():
    assert decide((0.1, 2.0)) is Decision.BETTER
    assert decide((-2.0, -0.1)) is Decision.WORSE
    assert decide((-0.1, 0.2)) is decide(None, 1.0) is Decision.UNDECIDED
    assert decide((-0.1, 0.2), 0.2) is decide((0.1, 0.2), 0.2) is Decision.EQUIVALENT
    assert decide((-0.1, 0.3), 0.2) is Decision.UNDECIDED
    assert decide((0.1, 0.3), 0.2) is Decision.BETTER


def in_rounds(x, y, size, *, tightest=1000, returns=None):
    sequence = DifferenceSequence.begin(tightest)
    g, h = (x, y) if returns is None else returns
    for at in range(0, len(x), size):
        part = slice(at, at + size)
        sequence = sequence.add(Turn(x[part], g[part]), Turn(y[part], h[part]), shared=True)
    return sequence


def test_the_sequence_is_that_of_the_differences_with_room_for_what_was_not_seen():
    rng = np.random.default_rng(0)
    common, x, y = rng.normal(size=(3, 400))
    g, h = 3.0 * common + x, 3.0 * common + y
    sequence = in_rounds(g, h, 50)
    own = sum(50 * np.var((g - h)[at : at + 50], ddof=1) for at in range(0, 400, 50))
    each = [sum(50 * np.var(part[at : at + 50], ddof=1) for at in range(0, 400, 50)) for part in (g, h)]
    plain, distance = sum(each), 4.0 * np.sqrt(max(each) / 400)
    assert distance > max(np.abs(part - part.mean()).max() for part in (g, h))
    assert sequence.mean == pytest.approx((g - h).mean())
    assert sequence.difference.reduced == pytest.approx(own)
    assert sequence.plain_variance == sequence.unpaired_variance == pytest.approx(plain)
    assert sequence.variance == pytest.approx(own + 3.0 * distance**2)
    assert sequence.variance < plain
    alone = AsymptoticSequence(1000, 400, 400.0, (g - h).sum(), sequence.variance)
    assert sequence.interval(0.9) == pytest.approx(alone.interval(0.9))
    # The room ends where two independent evaluations begin, and never makes the interval narrower than the pairs do.
    assert in_rounds(g[:6], h[:6], 6).variance == pytest.approx(in_rounds(g[:6], h[:6], 6).plain_variance)
    against = in_rounds(x, -x, 50)
    assert against.variance == against.difference.reduced > against.plain_variance


def test_policies_that_do_the_same_are_found_equivalent_and_those_that_never_vary_are_not():
    x = np.random.default_rng(1).normal(size=1000)
    same = in_rounds(x, x, 100)
    assert same.difference.reduced == 0.0
    assert same.decide(0.95, 0.1) is Decision.EQUIVALENT
    assert same.decide(0.95, None) is Decision.UNDECIDED
    constant = in_rounds(np.full(200, 500.0), np.full(200, 500.0), 100)
    assert constant.interval() is None
    assert constant.decide(0.95, 1.0) is Decision.UNDECIDED


def test_the_error_for_a_fixed_number_is_that_of_a_paired_t_interval_with_room():
    rng = np.random.default_rng(2)
    common, x, y = rng.normal(size=(3, 300))
    g, h = 2.0 * common + x, 2.0 * common + y
    error, tight = paired_error(Side([g], [g]), Side([h], [h]), [1.0])
    assert tight.variance == pytest.approx(np.var(g - h, ddof=1) / 300)
    distance = 4.0 * max(part.std() for part in (g, h))
    assert distance > max(np.abs(part - part.mean()).max() for part in (g, h))
    assert error.variance == pytest.approx(tight.variance + 3.0 * distance**2 / 300**2)
    roomy, _ = paired_error(Side([g], [g], room=1e-3), Side([h], [h], room=2e-3), [1.0])
    assert roomy.variance == pytest.approx(tight.variance + max(3e-3, 3.0 * distance**2 / 300**2))
    weighted, same = paired_error(Side([g], [g], plain=False), Side([h], [h]), [1.0])
    assert weighted is same
    welch = add_errors(martingale_error([g]), martingale_error([y]))
    assert welch.variance == pytest.approx(np.var(g, ddof=1) / 300 + np.var(y, ddof=1) / 300)
    assert 299 < welch.degrees_of_freedom < 598


def test_seeds_are_shared_until_that_clearly_does_harm():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 500))
    assert not Pairing().harms
    assert not Pairing().add(x, x + y, (0.0, 0.0)).harms
    assert Pairing().add(x, y - x, (0.0, 0.0)).harms
    design = Design(("a", "b", "c"), reference="c")
    standing = Standing.begin(design).add({0: Turn(x, x), 1: Turn(y - x, y - x), 2: Turn(x, x)})
    assert [standing.shares(at) for at in range(3)] == [True, False, True]


def test_all_pairs_or_those_with_a_reference_with_the_error_of_the_family_held():
    every, beside = Design(("a", "b", "c", "d")), Design(("a", "b", "c", "d"), reference="c")
    assert every.pairs == ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
    assert beside.pairs == ((0, 2), (1, 2), (3, 2))
    assert every.single_level() == pytest.approx(1 - 0.05 / 6)
    assert beside.single_level(0.9) == pytest.approx(1 - 0.1 / 3)


def test_false_verdicts_among_equals_are_rare_although_every_round_is_looked_at():
    """60 families of three equals, 20 looks each: at the promised 5%, 11 or more false ones come once in 3,000."""
    rng = np.random.default_rng(4)
    false = 0
    for _ in range(60):
        standing = Standing.begin(Design(tuple("abc"), tightest=400))
        for _ in range(20):
            common = rng.normal(size=20)
            turns = {at: (lambda x: Turn(x, x))(common + rng.exponential(size=20)) for at in standing.running}
            standing = standing.add(turns)
            if len(standing.running) < 3:
                break
        false += any(contest.decision is not Decision.UNDECIDED for contest in standing.contests)
    assert false <= 10


@pytest.mark.parametrize("method", ["mc", "auto", "bpg"])
def test_compare_finds_the_better_policy_and_holds_the_difference(method):
    found = bps.compare({"early": EARLY, "sharper": SHARPER}, MDP, 3000, method, seed=0)
    low, high = found.interval(0.95)
    assert low < TRUTH < high < 0.0
    assert found.decision is Decision.WORSE
    assert found.ended is Ended.VERDICT
    assert found.episodes < 6000
    only = found.differences[0]
    assert only.decided_at == len(only.pairs) == found.episodes // 2
    assert found.difference == pytest.approx(TRUTH, abs=(high - low) / 2)
    assert only.pairing_savings > 5.0, "the same random numbers for both"
    assert all(only.shared)
    if method != "bpg":
        one, other = (found.estimates[name] for name in ("early", "sharper"))
        assert found.difference == pytest.approx(one.value - other.value)
        assert only.pairs[:, 0] == pytest.approx(one.data.returns)


def test_the_second_route_of_what_is_saved():
    found = bps.compare({"a": EARLY, "b": SHARPER}, MDP, 500, "mc", seed=1, stop_early=False).differences[0]
    batches = found.pairs.reshape(5, 100, 2)
    paired = np.var(batches[..., 0] - batches[..., 1], axis=1, ddof=1).sum()
    apart = np.var(batches, axis=1, ddof=1).sum()
    assert found.tight_savings == found.pairing_savings == pytest.approx(apart / paired)
    assert found.control_savings == 1.0
    assert found.savings < found.tight_savings
    low, high = found.fixed_interval()
    assert (low + high) / 2 == pytest.approx((found.pairs[:, 0] - found.pairs[:, 1]).mean())
    assert low < TRUTH < high
    wide_low, wide_high = found.interval()
    assert wide_low < low < high < wide_high


def as_bits(comparison):
    return [
        (d.value, d.interval(), d.fixed_interval(), d.decision, d.decided_at, d.pairs.tobytes(), d.shared.tobytes())
        for d in comparison.differences
    ] + [(e.value, e.std_error, e.interval(), e.anytime_interval()) for e in comparison.estimates.values()]


FOUR = {f"x{scale}": bps.SoftmaxTable(scale * EARLY.logits) for scale in (1.0, 1.1, 1.4, 1.42)}


def test_a_comparison_that_was_killed_goes_on_to_the_same_bits(tmp_path):
    arguments = {"episodes": 600, "method": "auto", "seed": 5, "drop_losers": True}
    whole = bps.compare(FOUR, MDP, **arguments)

    def crash(study):
        if study.rounds == 2:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        bps.compare(FOUR, MDP, **arguments, store=tmp_path / "kept", on_round=crash)
    again = bps.compare(FOUR, MDP, **arguments, store=tmp_path / "kept")
    assert as_bits(again) == as_bits(whole)
    assert as_bits(bps.compare(FOUR, MDP, **arguments, store=tmp_path / "kept")) == as_bits(whole)
    assert whole.dropped
    assert len({e.episodes for e in whole.estimates.values()}) > 1
    with pytest.raises(SettingsMismatchError, match="comparison"):
        bps.compare(FOUR, MDP, **arguments, margin=1.0, store=tmp_path / "kept")


def test_more_episodes_go_on_with_a_kept_comparison(tmp_path):
    same = {"a": EARLY, "b": bps.SoftmaxTable(1.001 * EARLY.logits)}
    first = bps.compare(same, MDP, 150, "mc", seed=5, store=tmp_path)
    more = bps.compare(same, MDP, 350, "mc", seed=5, store=tmp_path)
    assert [point.pairs for point in more.differences[0].course] == [100, 150, 250, 350]
    assert more.differences[0].course[:2] == first.differences[0].course
    assert more.design.tightest == 150, "fixed before the first episode"


def test_a_crash_within_a_round_changes_nothing(tmp_path):
    class Failing(InProcess):
        left = 4

        def run(self, *arguments, **options):
            self.left -= 1
            if not self.left:
                raise RuntimeError("power cut")
            return super().run(*arguments, **options)

    policies = {"a": EARLY, "b": SHARPER}
    whole = bps.compare(policies, MDP, 400, "mc", seed=6, stop_early=False)
    assert whole.design.tightest == 400
    assert bps.compare(policies, MDP, 400, "mc", seed=6).design.tightest == 300, "it may end early"
    runner = Failing(MDP)
    with (
        pytest.raises(RuntimeError, match="power cut"),
        bps.ComparisonStudy(policies, "mc", episodes=400, seed=6, stop_early=False, store=tmp_path / "kept") as study,
    ):
        study.run(runner)
    with bps.ComparisonStudy(policies, "mc", episodes=400, stop_early=False, store=tmp_path / "kept") as study:
        assert study.rounds == 1
        assert study.seed == 6
        assert len(study.outstanding) == 1
        assert as_bits(study.run(MDP)) == as_bits(whole)


def test_asking_and_telling_is_what_run_does():
    policies = {"a": EARLY, "b": SHARPER}
    whole = bps.compare(policies, MDP, 300, "auto", seed=7, stop_early=False, batch_size=50)
    study = bps.ComparisonStudy(policies, "auto", episodes=300, seed=7, stop_early=False, batch_size=50)
    orders = set()
    for number in range(6):
        turnings = [study.ask(), study.ask()]
        orders.add(turnings[0].name)
        with pytest.raises(RequestError, match="tell the episodes of"):
            study.ask()
        assert study.outstanding[0].identity == turnings[0].identity
        for turning in reversed(turnings):
            assert (turning.number, turning.episodes, turning.shared) == (number, 50, True)
            batch = bps.sample(MDP, turning.behavior, turning.episodes, seed=turning.seed, batch=turning.number)
            study.tell(turning, batch)
        with pytest.raises(RequestError, match="told already"):
            study.tell(turnings[0], batch)
    assert orders == {"a", "b"}, "neither policy always comes first"
    assert as_bits(study.comparison()) == as_bits(whole)
    with pytest.raises(RequestError, match="all 300 episodes"):
        study.ask()


def test_the_seeds_of_a_turn_are_those_that_the_sampler_resets_with():
    seen = []

    class Watched(gymnasium.Wrapper):
        def reset(self, *, seed=None, options=None):
            seen.append(seed)
            return super().reset(seed=seed, options=options)

    def left(observation):
        return 0

    study = bps.compare(
        {"left": left, "right": lambda observation: 1}, lambda: Watched(gymnasium.make("CartPole-v1")), 40, seed=8
    )
    assert study.estimates["left"].episodes == 40
    spaces = gymnasium.make("CartPole-v1")
    policies = {name: bps.FunctionPolicy(left, (spaces.observation_space, spaces.action_space)) for name in "ab"}
    turning = bps.ComparisonStudy(policies, "mc", episodes=40, seed=8).ask()
    assert set(turning.seeds) <= set(seen)
    assert len(set(turning.seeds)) == 40


def test_seeds_are_not_shared_where_starts_set_the_policies_against_each_other():
    rewards = np.zeros((3, 2, 3))
    rewards[0, 0], rewards[0, 1], rewards[1, 0], rewards[1, 1] = 1.0, -1.0, -1.0, 1.0
    transitions = np.zeros((3, 2, 3))
    transitions[..., 2] = 1.0
    mdp = bps.TabularMDP(transitions, rewards, np.array([0.5, 0.5, 0.0]), np.array([False, False, True]), horizon=1)
    zero, one = (bps.SoftmaxTable.from_probabilities(np.tile(row, (3, 1))) for row in ([0.99, 0.01], [0.01, 0.99]))
    found = bps.compare({"zero": zero, "one": one}, mdp, 2000, "mc", seed=9).differences[0]
    assert found.shared[:100].all()
    assert not found.shared[100:].any()
    assert found.decision is Decision.UNDECIDED
    apart = found.pairs[100:]
    assert abs(np.corrcoef(apart.T)[0, 1]) < 0.08  # four standard errors
    low, high = found.interval()
    assert low < 0.0 < high


def test_one_policy_in_two_environments():
    worse = dataclasses.replace(MDP, rewards=MDP.rewards - 0.05)
    found = bps.compare(EARLY, {"before": MDP, "after": worse}, 2000, "auto", seed=0)
    assert found.decision is Decision.BETTER
    low, high = found.interval()
    assert low < bps.oracle.value(MDP, EARLY) - bps.oracle.value(worse, EARLY) < high
    assert found.settings["env"] == {"before": "<TabularMDP>", "after": "<TabularMDP>"}


def test_several_policies_are_ranked_and_losers_dropped():
    found = bps.compare(FOUR, MDP, 1000, seed=1, drop_losers=True, margin=0.05)
    values = {name: bps.oracle.value(MDP, policy) for name, policy in FOUR.items()}
    assert [rank.name for rank in found.ranking][2:] == ["x1.1", "x1.0"]
    for rank in found.ranking:
        place = sorted(values.values(), reverse=True).index(values[rank.name]) + 1
        assert rank.best <= place <= rank.worst
    assert {"x1.0", "x1.1"} <= set(found.dropped)
    for difference in found.differences:
        low, high = difference.interval()
        assert low < values[difference.one] - values[difference.other] < high
    with pytest.raises(InvalidArgumentError, match="between"):
        _ = found.difference
    assert found.between("x1.0", "x1.4").decision is Decision.WORSE
    with pytest.raises(InvalidArgumentError, match=r"got x1.4 − x1.0"):
        found.between("x1.4", "x1.0")
    beside = bps.compare(FOUR, MDP, 300, seed=1, reference="x1.1")
    assert [(d.one, d.other) for d in beside.differences] == [(n, "x1.1") for n in FOUR if n != "x1.1"]


def test_targets_for_a_difference():
    policies = {"a": EARLY, "b": SHARPER}
    found = bps.compare(policies, MDP, 5000, seed=2, target=0.8)
    low, high = found.interval()
    assert found.ended is Ended.TARGET
    assert (high - low) / 2 <= 0.8 < found.differences[0].course[-2].half_width
    assert found.differences[0].decided_at < len(found.differences[0].pairs)
    assert bps.compare(policies, MDP, 5000, seed=2, target=Target(seconds=1e-9)).ended is Ended.TIME_LIMIT
    few = bps.compare(policies, MDP, 400, "mc", seed=2, target=1000.0, batch_size=4)
    assert (few.ended, few.episodes) == (Ended.TARGET, 64), "no interval from fewer than 30 pairs"
    fewer = bps.compare(policies, MDP, 20, "mc", seed=2)
    assert fewer.interval() is None
    assert "only 20 pairs of episodes of a and b count; no verdict is given below 30" in str(fewer)
    held = bps.compare(policies, MDP, 300, "mc", seed=2, failure="return < -80")
    assert held.estimates["a"].event == "return < -80"
    assert held.estimates["a"].method == "mc"


@pytest.mark.parametrize("kind", ["asymptotic", "certified"])
def test_the_policy_that_fails_less_often_is_the_better_one(kind):
    policies = {
        "risky": bps.SoftmaxTable(0.5 * EARLY.logits),
        "early": EARLY,
        "safe": bps.SoftmaxTable(2 * EARLY.logits),
    }
    asked = {"failure": "return < -30", "seed": 0, "kind": kind}
    found = bps.compare(policies, MDP, 600, "mc", **asked)
    values = [found.estimates[name].value for name in policies]
    assert values == sorted(values, reverse=True), "probabilities to fail"
    assert [rank.name for rank in found.ranking] == ["safe", "early", "risky"]
    assert [(rank.best, rank.worst) for rank in found.ranking] == [(1, 1), (2, 2), (3, 3)]
    dropped = bps.compare(policies, MDP, 600, "mc", drop_losers=True, **asked).dropped
    assert "safe" not in dropped
    assert "risky" in dropped
    assert str(found).startswith("safe fails less often than all others; ")
    low, high = found.between("risky", "early").interval()
    assert 0.0 < low < found.between("risky", "early").value < high, "more failures"
    assert found.between("risky", "early").decision is Decision.WORSE
    assert words.verdict(found, found.between("risky", "early")) == "risky fails more often than early"


def test_what_is_better_must_be_the_same_of_all():
    estimands = {"a": bps.Return(), "b": bps.Failure("return < -80")}
    with pytest.raises(InvalidArgumentError, match="same direction"):
        bps.ComparisonStudy({"a": EARLY, "b": SHARPER}, "mc", estimand=estimands)


def test_an_interrupt_gives_all_whole_rounds():
    def stop(study):
        if study.rounds == 2:
            raise KeyboardInterrupt

    found = bps.compare({"a": EARLY, "b": SHARPER}, MDP, 900, "mc", seed=0, on_round=stop, stop_early=False)
    assert found.ended is Ended.INTERRUPTED
    assert found.episodes == 400


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bps.compare(EARLY, MDP), "two or more policies by name"),
        (lambda: bps.compare({"a": EARLY}, MDP), "two or more different names"),
        (lambda: bps.compare({"a": EARLY, "b": EARLY}, {"a": MDP, "c": MDP}), "the same names"),
        (lambda: bps.compare({"a": EARLY, "b": EARLY}, MDP, reference="c"), "reference must be one of a, b"),
        (lambda: bps.compare({"a": EARLY, "b": EARLY}, MDP, margin=-1.0), "margin must be"),
        (lambda: bps.compare({"a": EARLY, "b": EARLY}, MDP, level=1.0), "level must be"),
        (lambda: bps.compare({"a": EARLY, "b": EARLY}, MDP, target=Target(1.0, kind="certified")), "own kind"),
        (lambda: bps.ComparisonStudy({"a": EARLY, "b": EARLY}).comparison(), "without a complete round"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_a_file_is_no_store_and_a_round_is_told_whole(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="a directory"):
        bps.compare({"a": EARLY, "b": EARLY}, MDP, store=tmp_path / "file")
    study = bps.ComparisonStudy({"a": EARLY, "b": SHARPER}, find_method("mc"), episodes=100)
    turning = study.ask()
    with pytest.raises(InvalidTrajectoriesError, match="got 99"):
        study.tell(turning, bps.sample(MDP, turning.behavior, 99, seed=0))
